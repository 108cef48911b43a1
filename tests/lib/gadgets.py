"""Random pickles over all listed names: calls, states, items and pops, some around
values that would write a file.
"""

from __future__ import annotations

import itertools
import pickletools
from collections.abc import Sequence
from random import Random
from typing import Any

import opcodes as op
from opcodes import build, call, glob, newobj, value

from ckpt.pickle.attributes import ATTRIBUTES
from ckpt.pickle.judge import known
from ckpt.pickle.judge.names_of_torch import LOOKED_UP

RUNG = "rung"
BELL = op.glob("torch.nn.functional", "softsign")
"""A function that a file may hold. The jail says where it is called."""


def write() -> bytes:
    """What makes RUNG when it is called without arguments, or with one that is an
    encoding.
    """
    method = call(glob("builtins", "getattr"), glob("pathlib", "Path"), "write_text")
    path = call(glob("pathlib", "Path"), RUNG)
    state = value((method, (path, "x"), {}, None))
    return call(glob("functools", "partial"), method) + state + build()


def made(module: str, name: str, state: Any) -> bytes:
    """An object without a call of its class, with a state."""
    return glob(module, name) + value(()) + newobj() + value(state) + build()


def partial(function: bytes) -> bytes:
    """A partial of a function with a tensor."""
    state = value((function, (op.tensor(),), {}, None))
    return call(glob("functools", "partial"), function) + state + build()


def default(factory: bytes) -> bytes:
    return call(glob("collections", "defaultdict"), factory)


def parameter(data: bytes) -> bytes:
    return call(glob("torch.nn.parameter", "Parameter"), data)


def _on_class() -> bytes:
    """A state that is set on a class: from then on each of its objects is built
    by it.
    """
    cls = call(glob("builtins", "type"), made("argparse", "Namespace", {}))
    changed = cls + value((None, {"__setstate__": write()})) + build() + op.pop()
    return changed + made("argparse", "Namespace", "utf-8")


HOOKS = {
    f"_{name}_hooks": {}
    for name in ("forward", "forward_pre", "backward", "backward_pre")
}

TRAMPOLINES: dict[str, bytes] = {
    "a missing key": call(
        glob("collections", "OrderedDict"),
        call(glob("collections", "ChainMap"), default(write()), {"k": 1}),
    ),
    "the groups of an optimizer": made(
        "torch.optim.adam",
        "Adam",
        {"param_groups": [default(write())], "defaults": {}, "state": {}},
    ),
    "the data of a parameter": parameter(
        made("argparse", "Namespace", {"detach": write()})
    ),
    "the keys of a dict": call(
        glob("builtins", "dict"), made("argparse", "Namespace", {"keys": write()})
    ),
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
    "param_groups",
    "defaults",
    "params",
    "_modules",
    "_parameters",
    "_buffers",
    "module",
    "all_weights",
    "hook",
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
)
_ALL_ATTRIBUTES = sorted(
    {
        *LOOKED_UP,
        *(name for row in ATTRIBUTES.values() for name in row),
        "__array_interface__",
        "__reduce_ex__",
    }
    | {
        "__hash__",
        "__len__",
        "__iter__",
        "__getitem__",
        "__call__",
        "__eq__",
        "__del__",
        "__dict__",
        "__array__",
    }
)
_WITH_ATTRIBUTES = sorted(
    known.MODULES | known.OPTIMIZERS | known.CLASSES | set(ATTRIBUTES)
)
_TENSORS = (
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.nn.parameter.Buffer",
    "torch.distributed.tensor.DTensor",
)
_ARGUMENTS = (
    op.storage_id("0", "FloatStorage", 6, "cpu"),
    0,
    (2, 3),
    (3, 1),
    False,
    op.ordered_dict(),
)
_CODES = ("f4", "f8", "O8", "O", "V8", "V4", "U1", "S8", "M8", "i8", "u1", "b1")
_TEXTS = (
    "",
    "a",
    "utf-8",
    "latin1",
    "write_text",
    "f4",
    "O",
    "O8",
    "cpu",
    "rung",
    "MT19937",
    "1",
    "append",
)
_NUMBERS = (0, 1, -1, 2, 3, 63, 2**31, 2**40, 2**62, 10**30, -(2**63))
_BY_CALL = (
    "builtins",
    "collections",
    "functools",
    "copyreg",
    "torch._utils",
    "numpy",
    "torch",
    "datetime",
)


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
        return b"".join(
            self._aside() for _ in range(self._random.randrange(3))
        ) + self._any(4)

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
        if pick < 0.82:
            return write()
        if pick < 0.88:
            return choose.choice((BELL, partial(BELL)))
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
        names = self._random.choice((_ATTRIBUTES, _ALL_ATTRIBUTES))
        keys = [self._random.choice(names) for _ in range(self._random.randrange(4))]
        return value({key: self._any(depth) for key in keys})

    def _with_attributes(self, depth: int) -> bytes:
        """An object of a known class: attributes that it has, and some that it may
        have.
        """
        choose = self._random
        cls = choose.choice(_WITH_ATTRIBUTES)
        listed = list(ATTRIBUTES.get(cls, ()))
        state: dict[str, bytes] = {
            name: self._leaf() for name in choose.sample(listed, min(len(listed), 3))
        }
        if cls in known.MODULES:
            state |= {
                "_parameters": op.empty_dict(),
                "_buffers": op.empty_dict(),
                "_modules": self._dict(depth),
            }
            state |= {
                "num_layers": value(1),
                "bidirectional": op.boolean(False),
                "_all_weights": value([["a"]]),
            }
        elif cls in known.OPTIMIZERS:
            groups = value([{"params": [op.tensor()], "lr": 1.0}])
            state |= {
                "param_groups": groups,
                "defaults": op.empty_dict(),
                "state": op.empty_dict(),
            }
        for _ in range(choose.randrange(3)):
            state[choose.choice(_ALL_ATTRIBUTES)] = self._any(depth)
        module, _, name = cls.rpartition(".")
        return made(module, name, choose.choice((state, state, state, (None, state))))

    def _tensor_with_state(self, depth: int) -> bytes:
        choose = self._random
        names = [choose.choice(_ALL_ATTRIBUTES) for _ in range(choose.randrange(1, 3))]
        state = value({name: self._any(depth) for name in names})
        if choose.random() < 0.5:
            function = glob("torch._utils", "_rebuild_parameter_with_state")
            return call(function, op.tensor(), True, op.ordered_dict(), state)
        module, _, name = choose.choice(_TENSORS).rpartition(".")
        rebuild, args = op.glob("torch._utils", "_rebuild_tensor_v2"), _ARGUMENTS
        return call(
            glob("torch._tensor", "_rebuild_from_type_v2"),
            rebuild,
            glob(module, name),
            args,
            state,
        )

    def _array(self, depth: int) -> bytes:
        """An array of numpy, whose dtype says more or less than its code."""
        choose = self._random
        dtype = call(glob("numpy", "dtype"), choose.choice(_CODES), False, True)
        parts: list[Any] = [
            3,
            "<",
            None,
            None,
            None,
            -1,
            -1,
            choose.choice((0, 0, 63, 8)),
        ]
        if choose.random() < 0.4:
            inner = call(glob("numpy", "dtype"), choose.choice(_CODES), False, True)
            fields = {"a": (inner, choose.choice((0, 0, 4, 64)))}
            table = choose.choice(
                (
                    value(fields),
                    call(glob("collections", "OrderedDict"), [("a", (inner, 0))]),
                )
            )
            parts[3:7] = [("a",), table, choose.choice((4, 8)), 1]
        dtype += op.put(99) + value(tuple(parts)) + build()
        data = choose.choice(
            (op.binary(b"A" * 8), op.binary(b"A" * 4), value([1]), op.binary(b""))
        )
        state = value((1, choose.choice(((1,), (1, 1), (2,))), dtype, False, data))
        array = call(
            glob("numpy.core.multiarray", "_reconstruct"),
            glob("numpy", "ndarray"),
            (0,),
            op.binary(b"b"),
        )
        array += state + build()
        if choose.random() < 0.3:
            again = (3, "|", None, None, None, -1, -1, 63)
            array += op.get(99) + value(again) + build() + op.pop()
        return array

    def _filled_late(self, depth: int) -> bytes:
        """A container that a call is handed before it is full."""
        choose = self._random
        container = choose.choice(
            (op.empty_list(), op.empty_dict(), call(glob("collections", "OrderedDict")))
        )
        slot = op.put(98)
        user = (
            self._name()
            + op.get(98)
            + op.tuple1()
            + choose.choice((op.reduce(), newobj()))
        )
        more = choose.choice(
            (
                self._any(depth) + op.append(),
                value("items") + self._any(depth) + op.setitem(),
            )
        )
        return container + slot + op.pop() + user + op.get(98) + more + op.pop()

    def _object(self, depth: int) -> bytes:
        choose = self._random
        pick = choose.random()
        if pick < 0.45:
            kinds = (
                self._with_attributes,
                self._with_attributes,
                self._tensor_with_state,
                self._array,
            )
            return choose.choice((*kinds, self._filled_late))(depth)
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
                made += (
                    value(choose.choice(_ATTRIBUTES)) + self._any(depth) + op.setitem()
                )
        return made

    def changed(self, honest: bytes) -> bytes:
        """An honest pickle without its STOP, with some opcodes changed, left out or
        added.
        """
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
                names = [
                    index for index, piece in enumerate(pieces) if piece[:1] == b"c"
                ]
                if names:
                    pieces[choose.choice(names)] = self._name()
        return b"".join(pieces)

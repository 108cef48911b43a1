"""Whether two loaded objects are the same: types, order, values, and what is shared
with what.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch

_ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    torch.dtype,
    torch.layout,
    torch.device,
)


def difference(one: Any, two: Any, *, devices: bool = True) -> str | None:
    """Where two objects differ first, None when they are the same. `devices` says
    whether those of tensors count.
    """
    return _Comparison(devices).run(one, two, "it")


class _Comparison:
    def __init__(self, devices: bool) -> None:
        self._devices = devices
        self._pairs: dict[int, tuple[int, Any, Any]] = {}
        self._back: dict[int, int] = {}
        self._storages: dict[int, tuple[int, Any]] = {}

    def run(self, one: Any, two: Any, at: str) -> str | None:
        if type(one) is not type(two):
            return f"{at}: {type(one)} and {type(two)}"
        if isinstance(one, _ATOMS):
            return None if one == two or one != one else f"{at}: {one!r} and {two!r}"
        if isinstance(one, (type, types.FunctionType, types.BuiltinFunctionType)):
            return None if one is two else f"{at}: {one} and {two}"
        known = self._pairs.get(id(one))
        if known is not None:
            return None if known[0] == id(two) else f"{at}: shared with something else"
        if not (isinstance(one, tuple) and not one):
            if id(two) in self._back:
                return f"{at}: not shared before"
            self._pairs[id(one)] = id(two), one, two
            self._back[id(two)] = id(one)
        return self._parts(one, two, at)

    def _parts(self, one: Any, two: Any, at: str) -> str | None:
        if isinstance(one, torch.Tensor):
            return self._tensor(one, two, at)
        if isinstance(one, (torch.TypedStorage, torch.UntypedStorage)):
            return self._storage(one, two, at)
        if isinstance(one, np.ndarray):
            same = (one.dtype, one.shape, one.flags.c_contiguous) == (
                two.dtype,
                two.shape,
                two.flags.c_contiguous,
            )
            if one.dtype == object:
                return (
                    self.run(list(one.flat), list(two.flat), f"{at}.flat")
                    if same
                    else f"{at}: an array"
                )
            return (
                None if same and one.tobytes() == two.tobytes() else f"{at}: an array"
            )
        if isinstance(one, (set, frozenset)):
            return None if one == two else f"{at}: {one} and {two}"
        if isinstance(one, dict):
            found = self._all(list(one), list(two), f"{at}.keys") or self._all(
                list(one.values()), list(two.values()), at
            )
            return found or self._attributes(one, two, at)
        if isinstance(one, (list, tuple)):
            return self._all(one, two, at) or self._attributes(one, two, at)
        if isinstance(one, torch.Generator):
            return self.run(one.get_state(), two.get_state(), f"{at}.state")
        if hasattr(one, "__dict__") != hasattr(
            two, "__dict__"
        ):  # which makes one, where it was not made yet
            return f"{at}: attributes"
        if (
            type(one).__reduce_ex__ is object.__reduce_ex__
            and hasattr(one, "__dict__")
            and one.__dict__
        ):
            return self._attributes(one, two, at)
        mine, other = one.__reduce_ex__(2), two.__reduce_ex__(2)
        if isinstance(mine, str):
            return None if one is two else f"{at}: {mine}"
        for index, (left, right) in enumerate(zip(mine, other, strict=True)):
            if index in (3, 4) and left is not None:  # iterators
                left, right = list(left), list(right)
            found = _Comparison(self._devices).run(left, right, f"{at}.reduce[{index}]")
            if found:
                return found
        return None

    def _all(self, one: Any, two: Any, at: str) -> str | None:
        if len(one) != len(two):
            return f"{at}: {len(one)} and {len(two)} items"
        return next(
            (
                found
                for i, (a, b) in enumerate(zip(one, two, strict=True))
                if (found := self.run(a, b, f"{at}[{i}]"))
            ),
            None,
        )

    def _attributes(self, one: Any, two: Any, at: str) -> str | None:
        mine, other = getattr(one, "__dict__", None), getattr(two, "__dict__", None)
        if mine is None:
            return None
        return self._all(list(mine), list(other), f"{at}.__dict__") or self._all(
            list(mine.values()), list(other.values()), f"{at}.__dict__"
        )

    def _tensor(self, one: Any, two: Any, at: str) -> str | None:
        if isinstance(one, torch.nn.parameter.UninitializedTensorMixin):
            return (
                None
                if one.requires_grad == two.requires_grad
                else f"{at}: requires_grad"
            )
        for name in ("dtype", "layout", "requires_grad", "is_quantized"):
            if getattr(one, name) != getattr(two, name):
                return f"{at}.{name}: {getattr(one, name)} and {getattr(two, name)}"
        if self._devices and one.device != two.device:
            return f"{at}.device: {one.device} and {two.device}"
        if one.layout is torch.jagged:  # its shape has a symbol that is new each time
            return self._all(
                [one.values(), one.offsets()], [two.values(), two.offsets()], at
            )
        found = self._attributes(one, two, at)
        if found:
            return found
        if hasattr(one, "__tensor_flatten__"):
            names = one.__tensor_flatten__()[0]
            return self._all(
                [getattr(one, n) for n in names], [getattr(two, n) for n in names], at
            )
        if one.is_nested:
            return self._all(list(one.unbind()), list(two.unbind()), f"{at}.unbind")
        if one.layout is not torch.strided:
            return (
                None
                if torch.equal(one.to_dense(), two.to_dense())
                else f"{at}: sparse values"
            )
        if one.is_quantized:
            one_q, two_q = one.__reduce_ex__(2)[1][4], two.__reduce_ex__(2)[1][4]
            inner = _Comparison(self._devices).run(one_q, two_q, f"{at}.qparams")
            if inner:
                return inner
        geometry = [
            (t.shape, t.stride(), t.storage_offset(), t.is_conj(), t.is_neg())
            for t in (one, two)
        ]
        if geometry[0] != geometry[1]:
            return f"{at}: {geometry[0]} and {geometry[1]}"
        if one.device.type == "meta":
            return None
        return self._storage(one.untyped_storage(), two.untyped_storage(), at)

    def _storage(self, one: Any, two: Any, at: str) -> str | None:
        left, right = (
            s.untyped() if isinstance(s, torch.TypedStorage) else s for s in (one, two)
        )
        known = self._storages.get(left._cdata)
        if known is not None:
            return None if known[0] == right._cdata else f"{at}: another storage"
        self._storages[left._cdata] = right._cdata, (left, right)
        if left.nbytes() != right.nbytes():
            return f"{at}: {left.nbytes()} and {right.nbytes()} bytes"
        a, b = (
            torch.empty(0, dtype=torch.uint8).set_(s).numpy().tobytes()
            for s in (left, right)
        )
        return None if a == b else f"{at}: values"

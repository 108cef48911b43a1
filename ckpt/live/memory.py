"""Tensors of a live process as tensor references. Their bytes are fetched when they are written."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ckpt.dtypes import BY_NAME, DType
from ckpt.errors import UnsupportedError
from ckpt.io.source import BaseSource
from ckpt.live import require_torch
from ckpt.live.parts import is_quantized
from ckpt.tensors import Range, Storage, TensorRef, tensor_ref

_ALIGN = 16
"""Bytes of the widest element. A part of a storage begins at a multiple of it, so that every dtype fits."""


class LiveSource(BaseSource):
    """The bytes of a storage, copied to the CPU as a whole at the first read. The copy of the last one is released."""

    _held: tuple[LiveSource, memoryview] | None = None
    _one = threading.Lock()
    """Threads come one after the other: torch does not bear it that two look at one storage anew."""

    def __init__(self, storage: Any, device: Any, first: int, last: int) -> None:
        self._storage = storage
        self._device = device
        self._first = first
        self.size = last - first

    def read(self, offset: int, count: int) -> bytes:
        self._check_range(offset, count)
        with LiveSource._one:
            held = LiveSource._held
            if held is None or held[0] is not self:
                held = LiveSource._held = None  # release it before the next one is allocated
                held = LiveSource._held = (self, self._fetch())
        return held[1][offset : offset + count].tobytes()

    def _fetch(self) -> memoryview:
        torch = require_torch()
        whole = torch.empty(0, dtype=torch.uint8, device=self._device).set_(self._storage)
        return memoryview(whole[self._first : self._first + self.size].cpu().numpy())

    @staticmethod
    def release() -> None:
        """Release the last copy."""
        LiveSource._held = None


def unfit(tensor: Any) -> str | None:
    """Why a tensor is not readable strided memory of this process; None when it is."""
    torch = require_torch()
    if torch.nn.parameter.is_lazy(tensor):
        return "uninitialized: its lazy module has not run yet"
    is_odd = tensor.is_quantized and not is_quantized(tensor)
    if tensor.layout is not torch.strided or is_odd or tensor.is_nested:
        return "quantized" if is_odd else str(tensor.layout).removeprefix("torch.")
    if str(tensor.dtype).removeprefix("torch.") not in BY_NAME:
        return str(tensor.dtype)
    try:
        held = tensor.untyped_storage().nbytes()
        here = tensor.device.type == "meta" or not tensor.numel() or tensor.data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return f"{type(tensor).__name__}, which has no storage"
    if _is_wrapper(tensor) or not here:
        return f"{type(tensor).__name__}, which wraps other tensors"
    if tensor.device.type != "meta" and held < _extent(tensor)[1]:
        return f"{type(tensor).__name__}, whose data is not in this process"
    return None


def _is_wrapper(tensor: Any) -> bool:
    """Whether a tensor is a subclass that holds other tensors and has no memory of its own."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    return flatten is not None


def references(tensors: Iterable[Any]) -> dict[int, TensorRef]:
    """A reference per tensor, by its id, tagged cpu. Tensors that share memory share a storage.

    A storage holds the bytes from the first to the last that one of its tensors uses. All tensors must be fit.
    """
    tensors = list(tensors)
    extents: dict[int, tuple[int, int]] = {}
    widths: dict[int, set[DType]] = {}
    for tensor in tensors:
        key, (first, last) = _key(tensor), _extent(tensor)
        if last:
            before = extents.get(key, (first, last))
            extents[key] = min(first, before[0]), max(last, before[1])
        widths.setdefault(key, set()).add(_dtype(tensor))
    storages: dict[int, Storage] = {}
    refs: dict[int, TensorRef] = {}
    for tensor in tensors:
        key, dtype = _key(tensor), _dtype(tensor)
        first, last = extents.get(key, (0, 0))
        first -= first % _ALIGN
        if key not in storages:
            same = widths[key] == {dtype}
            on_meta = tensor.device.type == "meta"
            place = (
                None
                if on_meta
                else Range(LiveSource(tensor.untyped_storage(), tensor.device, first, last), 0, last - first)
            )
            storages[key] = Storage(
                str(len(storages)), "meta" if on_meta else "cpu", dtype if same else None, last - first, place
            )
        offset = tensor.storage_offset() - first // tensor.element_size() if tensor.numel() else 0
        ref = tensor_ref(storages[key], dtype, tuple(tensor.shape), tuple(tensor.stride()), offset)
        refs[id(tensor)] = ref._replace(conj=tensor.is_conj(), neg=tensor.is_neg())
    return refs


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _dtype(tensor: Any) -> DType:
    return BY_NAME[str(tensor.dtype).removeprefix("torch.")]


def _extent(tensor: Any) -> tuple[int, int]:
    """The bytes of its storage that a tensor uses: first, and one past the last; (0, 0) without elements."""
    if not tensor.numel():
        return 0, 0
    first = tensor.storage_offset()
    last = first + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def tensor(ref: TensorRef, data: bytes) -> Any:
    """A new torch.Tensor on the CPU for a reference. `data` are its elements in the order of its shape."""
    torch = require_torch()
    dtype = vars(torch).get(ref.dtype.name)
    if dtype is None or ref.dtype.bits < 8 or ref.dtype.kind == "quantized":
        raise UnsupportedError(f"this torch has no plain tensors of {ref.dtype.name}")
    if not ref.numel:
        return torch.empty(ref.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(ref.shape)

"""Tensors of a live process as tensor references. Their bytes are fetched when they are
written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ckpt.bytes.source import BaseSource, Source
from ckpt.elements.blocks import is_big, memory_order, permute_dims
from ckpt.elements.fill import fill_buffer
from ckpt.ext.live import require_torch
from ckpt.model.dtypes import BY_NAME, UINT8, DType
from ckpt.model.errors import UnsupportedError
from ckpt.model.nodes import Global, Node, Opaque, PersistentId
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, TensorRef, overlapping_groups, tensor_ref
from ckpt.pickle.calls import ordered_dict
from ckpt.pickle.rebuild import Rebuilder
from ckpt.tree.view import MARKERS

_ALIGN = 16
"""Bytes of the widest element. A part of a storage begins at a multiple of it, so that
every dtype fits.
"""


class LiveSource(BaseSource):
    """The bytes of a storage, copied to the CPU as a whole at the first read. The copy
    of the last one is released.
    """

    _held: tuple[LiveSource, memoryview] | None = None
    _one = threading.Lock()
    """Threads come one after the other: torch does not bear it that two look at one
    storage anew.
    """

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
                # Release it before the next one is allocated.
                held = LiveSource._held = None
                held = LiveSource._held = (self, self._fetch())
        return held[1][offset : offset + count].tobytes()

    def _fetch(self) -> memoryview:
        torch = require_torch()
        # The whole storage as bytes, whatever its dtype and its tensors are.
        whole = torch.empty(0, dtype=torch.uint8, device=self._device).set_(
            self._storage
        )
        return memoryview(whole[self._first : self._first + self.size].cpu().numpy())

    @staticmethod
    def release() -> None:
        """Release the last copy."""
        LiveSource._held = None


def unfit(tensor: Any) -> str | None:
    """Return the reason why a tensor is not readable strided memory of this process, or
    None.
    """
    torch = require_torch()
    if torch.nn.parameter.is_lazy(tensor):
        return "uninitialized: its lazy module has not run yet"
    # Quantized tensors of whole bytes are read; packed ones are not.
    is_odd = tensor.is_quantized and not is_quantized(tensor)
    if tensor.layout is not torch.strided or is_odd or tensor.is_nested:
        return "quantized" if is_odd else str(tensor.layout).removeprefix("torch.")
    if str(tensor.dtype).removeprefix("torch.") not in BY_NAME:
        return str(tensor.dtype)
    try:
        held = tensor.untyped_storage().nbytes()
        is_on_meta = tensor.device.type == "meta"
        # A wrapper may have a storage, and no memory behind it.
        here = is_on_meta or not tensor.numel() or tensor.data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return f"{type(tensor).__name__}, which has no storage"
    if _is_wrapper(tensor) or not here:
        return f"{type(tensor).__name__}, which wraps other tensors"
    if tensor.device.type != "meta" and held < _byte_extent(tensor)[1]:
        return f"{type(tensor).__name__}, whose data is not in this process"
    return None


def _is_wrapper(tensor: Any) -> bool:
    """Tell whether a tensor is a subclass that holds other tensors and has no memory of
    its own.
    """
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    return flatten is not None


def tensor_references(tensors: Iterable[Any]) -> dict[int, TensorRef]:
    """A reference per tensor, by its id, tagged cpu. Tensors that share memory share a
    storage.

    A storage holds the bytes from the first to the last that one of its tensors uses.
    All tensors must be fit.
    """
    # Two passes: the extent of each storage is known only after all its tensors.
    tensors = list(tensors)
    extents: dict[int, tuple[int, int]] = {}
    widths: dict[int, set[DType]] = {}
    for tensor in tensors:
        key, (first, last) = _storage_key(tensor), _byte_extent(tensor)
        if last:
            before = extents.get(key, (first, last))
            extents[key] = min(first, before[0]), max(last, before[1])
        widths.setdefault(key, set()).add(_tensor_dtype(tensor))
    storages: dict[int, Storage] = {}
    refs: dict[int, TensorRef] = {}
    for tensor in tensors:
        key, dtype = _storage_key(tensor), _tensor_dtype(tensor)
        first, last = extents.get(key, (0, 0))
        # A multiple of the widest element, so that each offset is a whole number of
        # elements.
        first -= first % _ALIGN
        if key not in storages:
            same = widths[key] == {dtype}
            on_meta = tensor.device.type == "meta"
            place = None
            if not on_meta:
                source = LiveSource(
                    tensor.untyped_storage(), tensor.device, first, last
                )
                place = Range(source, 0, last - first)
            storages[key] = Storage(
                str(len(storages)),
                "meta" if on_meta else "cpu",
                dtype if same else None,
                last - first,
                place,
            )
        offset = 0
        if tensor.numel():
            offset = tensor.storage_offset() - first // tensor.element_size()
        ref = tensor_ref(
            storages[key], dtype, tuple(tensor.shape), tuple(tensor.stride()), offset
        )
        refs[id(tensor)] = ref._replace(conj=tensor.is_conj(), neg=tensor.is_neg())
    return refs


def _storage_key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensor_dtype(tensor: Any) -> DType:
    return BY_NAME[str(tensor.dtype).removeprefix("torch.")]


def _byte_extent(tensor: Any) -> tuple[int, int]:
    """The bytes of its storage that a tensor uses: first, and one past the last; (0, 0)
    without elements.
    """
    if not tensor.numel():
        return 0, 0
    first = tensor.storage_offset()
    last = first + sum(
        (size - 1) * step
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def tensor(ref: TensorRef, sources: list[Source] | None = None) -> Any:
    """A new torch.Tensor on the CPU with the elements of a reference, in the order of
    memory.

    `sources` gets the sources that were read. Raises UnsupportedError, UnreadableError.
    """
    torch = require_torch()
    dtype = dtype_of(ref)
    if not ref.numel:
        # Whatever the default device is.
        return torch.empty(ref.shape, dtype=dtype, device="cpu")
    # The elements are read in the order of the file's memory, and permuted as a view.
    order = memory_order(ref)
    data = torch.empty(ref.nbytes, dtype=torch.uint8, device="cpu")
    fill_buffer(permute_dims(ref, order), data.numpy().data, sources)
    shape = [ref.shape[dim] for dim in order]
    return (
        data.view(dtype)
        .reshape(shape)
        .permute([order.index(dim) for dim in range(len(order))])
    )


def pour_elements(ref: TensorRef, target: Any) -> None:
    """Read the elements of a reference into a contiguous tensor of torch on the CPU, of
    the same dtype and shape.
    """
    torch = require_torch()
    # No copy: the bytes go right into the memory of the target.
    fill_buffer(ref, target.detach().reshape(-1).view(torch.uint8).numpy().data)
    with torch.no_grad():
        target.reshape(-1)[:0].zero_()  # autograd counts changes of memory


def dtype_of(ref: TensorRef) -> Any:
    """The dtype of torch. Raises UnsupportedError where torch has no plain tensors of
    it.
    """
    dtype = vars(require_torch()).get(ref.dtype.name)
    if dtype is None or ref.dtype.bits < 8 or ref.dtype.kind == "quantized":
        raise UnsupportedError(f"this torch has no plain tensors of {ref.dtype.name}")
    return dtype


def tensors(
    refs: Mapping[str, TensorRef], sources: list[Source] | None = None
) -> dict[str, Any]:
    """New tensors on the CPU for references. Those that share memory in the file share
    it here too.

    Of a storage only the bytes from the first to the last that such tensors use are
    read. Raises as `tensor` does.
    """
    # One reference under several names is one tensor.
    names: dict[int, list[str]] = {}
    storages: dict[Storage, list[TensorRef]] = {}
    for name, ref in refs.items():
        names.setdefault(id(ref), []).append(name)
        if len(names[id(ref)]) == 1:
            storages.setdefault(ref.storage, []).append(ref)
    values = {name: tensor(ref, sources) for name, ref in refs.items() if not ref.numel}
    for several in storages.values():
        for group in overlapping_groups(several):
            # An expanded dimension (stride 0) has fewer elements in memory.
            is_shared = len(group) > 1 or 0 in group[0].stride
            if is_shared:
                made = _tensors_sharing_memory(group, sources)
            else:
                made = {id(group[0]): tensor(group[0], sources)}
            for ref in group:
                value = made[id(ref)]
                # Each further name is a view, as torch.load gives tied weights.
                for number, name in enumerate(names[id(ref)]):
                    values[name] = value.view_as(value) if number else value
    return {name: values[name] for name in refs}


def _tensors_sharing_memory(
    group: Sequence[TensorRef], sources: list[Source] | None
) -> dict[int, Any]:
    """Tensors over one memory, each by the id of its reference."""
    torch = require_torch()
    first_ref = group[0]
    # Equal views of one memory need no raw storage.
    if 0 not in first_ref.stride and all(ref.view == first_ref.view for ref in group):
        value = tensor(first_ref, sources)
        return {id(ref): value.view_as(value) for ref in group}
    storage = first_ref.storage
    kinds = {ref.dtype for ref in group}
    # Bytes are swapped by their dtype while they are read, so all must have the same
    # one.
    if is_big(storage) and len(kinds) > 1:
        raise UnsupportedError("tensors of several types share big-endian memory")
    unit = first_ref.dtype if is_big(storage) else UINT8
    begin = first_ref.extent[0] - first_ref.extent[0] % _ALIGN
    end = max(ref.extent[1] for ref in group)
    width = unit.bits // 8
    data = torch.empty(end - begin, dtype=torch.uint8, device="cpu")
    whole = tensor_ref(storage, unit, ((end - begin) // width,), (1,), begin // width)
    fill_buffer(whole, data.numpy().data, sources)
    values: dict[int, Any] = {}
    for ref in group:
        # The offset in elements from the beginning of what was read.
        offset = ref.offset - begin * 8 // ref.dtype.bits
        value = torch.empty(0, dtype=dtype_of(ref), device="cpu")
        value = value.set_(data.untyped_storage(), offset, ref.shape, ref.stride)
        value = value.conj() if ref.conj else value
        values[id(ref)] = torch._neg_view(value) if ref.neg else value
    return values


_DEPTH = 8
_QUANTIZED = ("qint8", "quint8", "qint32")
"""Quantized dtypes whose elements are whole bytes."""


def unpack_values(values: Mapping[str, Any], *, wrappers: bool) -> dict[str, Any]:
    """The values with packed parameters as what they hold and, with `wrappers`, each
    wrapper subclass as its parts.

    The parts of `weight` are `weight.qdata` and so on, with the dtype and the shape
    that it shows. One whose parts would have names that others have stays as it is.
    """
    parts_by_name: dict[str, Any] = {}
    for name, value in values.items():
        parts = _wrapper_parts(name, value, 0) if wrappers else {}
        if parts and not any(part in values or part in parts_by_name for part in parts):
            parts_by_name.update(parts)
        else:
            parts_by_name[name] = _unpack_value(value, 0)
    return parts_by_name


def _wrapper_parts(name: str, value: Any, depth: int) -> dict[str, Any]:
    """The parts of a wrapper subclass by their names; empty for anything else."""
    torch = require_torch()
    # A class that holds itself would have no end.
    if depth == _DEPTH or not isinstance(value, torch.Tensor) or value.is_nested:
        return {}
    if getattr(type(value), "__tensor_flatten__", None) is None or hasattr(
        value, "to_local"
    ):
        return {}
    held = {
        key: part
        for key, part in value.__dict__.items()
        if part is not None and key not in MARKERS
    }
    # `__tensor_flatten__` names the parts that are tensors; the other attributes are
    # settings.
    inner, _ = value.__tensor_flatten__()
    if not all(isinstance(held.get(key), torch.Tensor) for key in inner) or not inner:
        return {}
    outer = {"dtype": str(value.dtype), "shape": tuple(value.shape)}
    parts: dict[str, Any] = {}
    for key, part in {**outer, **held}.items():
        parts.update(
            _wrapper_parts(f"{name}.{key}", part, depth + 1) or {f"{name}.{key}": part}
        )
    return parts


def _unpack_value(value: Any, depth: int) -> Any:
    """A value with the content of the packed parameters in it: what they pickle."""
    torch = require_torch()
    if depth == _DEPTH:
        return value
    if isinstance(value, torch.ScriptObject):
        try:
            state = value.__getstate__()
        except RuntimeError:  # a class of C++ that does not pickle
            return value
        # The state of a packed parameter is a pair: what it holds, and a flag.
        if type(state) is not tuple or len(state) != 2:
            return value
        return _unpack_value(state[0], depth + 1)
    if type(value) in (list, tuple):
        items = [_unpack_value(item, depth + 1) for item in value]
        # The same object as long as nothing changed: tied values stay tied.
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if type(value) is list else tuple(items)
    return value


def is_quantized(tensor: Any) -> bool:
    """Tell whether the file can hold how a tensor is quantized: whole bytes, affine per
    tensor or channel.
    """
    torch = require_torch()
    affine = (
        torch.per_tensor_affine,
        torch.per_channel_affine,
        torch.per_channel_affine_float_qparams,
    )
    return bool(
        tensor.is_quantized
        and tensor.layout is torch.strided
        and str(tensor.dtype).removeprefix("torch.") in _QUANTIZED
        and tensor.qscheme() in affine
    )


def channel_scales(tensor: Any) -> tuple[Any, ...]:
    """The scales and zero points of a tensor that is quantized per channel; empty for
    any other.
    """
    torch = require_torch()
    if not tensor.is_quantized or tensor.qscheme() is torch.per_tensor_affine:
        return ()
    return tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()


def quantized_node(
    tensor: Any, ref: TensorRef, channels: tuple[TensorRef, ...]
) -> Node:
    """`_rebuild_qtensor` of a quantized tensor over its elements, as torch/_tensor.py
    writes it.
    """
    scheme = Global("torch", str(tensor.qscheme()).removeprefix("torch."))
    quantizer: tuple[Node, ...]
    if channels:
        quantizer = (scheme, *channels, int(tensor.q_per_channel_axis()))
    else:
        quantizer = (scheme, float(tensor.q_scale()), int(tensor.q_zero_point()))
    storage = PersistentId(None, 0)
    storage.meaning = ref.storage
    args = (
        storage,
        ref.offset,
        ref.shape,
        ref.stride,
        quantizer,
        False,
        ordered_dict(),
    )
    call = Opaque("reduce", Global("torch._utils", "_rebuild_qtensor"), args, None, 0)
    # The tensor is rebuilt from its call at once, as a reader of the file would.
    Rebuilder(lambda data: None).set_meaning(call)
    return call

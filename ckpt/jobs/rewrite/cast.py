"""Other dtypes for the floating tensors of models: what `--dtype` does, for every format."""

from __future__ import annotations

from collections import Counter

from ckpt.checkpoint import Entry
from ckpt.dtypes import BY_NAME, DType, contiguous
from ckpt.elements.blocks import place_of
from ckpt.elements.cast import CASTABLE, CASTS
from ckpt.errors import UsageError
from ckpt.evidence.survey import Survey
from ckpt.jobs.rewrite.report import Change
from ckpt.nodes import Global, Node, Opaque, PersistentId, is_tuple
from ckpt.pickles.edit import Edit
from ckpt.tensors import Computed, Storage, Tensor, TensorRef, parts_of, tensor_ref
from ckpt.text import show

_SHORT = {
    **dict.fromkeys(("bf16", "bfloat", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half", "float16"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single", "float32"), "float32"),
}
"""Other names of the dtypes of `--dtype`."""


def dtype_of(name: str | None) -> DType | None:
    """The dtype that `--dtype` names. Raises UsageError for one that is not cast to."""
    if name is None:
        return None
    if name not in CASTS:
        meant = _SHORT.get(name.lower().removeprefix("torch."))
        hint = f"did you mean {meant}?" if meant else None
        raise UsageError(f"--dtype {show(name, 40)}: not one of {' '.join(CASTS)}", hint=hint)
    return BY_NAME[name]


def uncastable(tensor: Tensor) -> str | None:
    """Why a tensor of floating numbers keeps its dtype: its layout or dtype, or no data; else None."""
    if not isinstance(tensor, TensorRef):
        return tensor.layout
    if tensor.dtype.kind in ("float", "quantized") and tensor.dtype.name not in CASTABLE:
        return tensor.dtype.name
    return "on meta, without data" if tensor.storage.place is None else None


class CastRefs:
    """Tensors in another dtype, each range of a storage once."""

    def __init__(self, to: DType | None) -> None:
        self._to = to
        self._made: dict[tuple[object, ...], TensorRef] = {}
        self.counts: Counter[str] = Counter()
        """How many were cast from each dtype."""

    def ref(self, tensor: object) -> TensorRef:
        assert isinstance(tensor, TensorRef)
        to = self._to
        if to is None or tensor.dtype == to or tensor.dtype.name not in CASTABLE:
            return tensor
        if tensor.view not in self._made:
            self.counts[tensor.dtype.name] += 1
            storage = Storage("", tensor.device, to, to.nbytes(tensor.numel), place_of(tensor, to))
            made = tensor_ref(storage, to, tensor.shape, contiguous(tensor.shape), 0, tensor.requires_grad)
            self._made[tensor.view] = made
        return self._made[tensor.view]._replace(
            is_parameter=tensor.is_parameter, requires_grad=tensor.requires_grad
        )

    def changes(self, unit: str = "tensor") -> list[Change]:
        to = self._to.name if self._to else ""
        # The most common dtype first: the order of a copy is not that of the file.
        most = sorted(self.counts.items(), key=lambda row: (-row[1], row[0]))
        return [Change("dtype", name, to, count, unit) for name, count in most]


class Cast(Edit):
    """Storages of models in another dtype. Views and ties stay what they are.

    `uncast` are the tensors that keep their dtype, and why: sparse and quantized ones, those of storages with several
    dtypes, those of a dtype that is not cast from, those without data.
    """

    def __init__(self, survey: Survey, to: DType, section: str | None) -> None:
        super().__init__()
        self._to = to
        self._refs = CastRefs(to)
        self._made: dict[Storage, Storage] = {}
        self.uncast: list[tuple[Entry, str]] = []
        dtypes: dict[Storage, set[DType]] = {}
        for entry in survey.tensors:
            for part in parts_of(entry.tensor):
                dtypes.setdefault(part.storage, set()).add(part.dtype)
        self._chosen: dict[Storage, DType] = {}
        for chosen in survey.weights(section):
            for entry in chosen.entries:
                tensor = entry.tensor
                if tensor.dtype.kind not in ("float", "quantized") or tensor.dtype == to:
                    continue
                why = uncastable(tensor)
                if why is None and isinstance(tensor, TensorRef):
                    if len(dtypes[tensor.storage]) == 1:
                        self._chosen[tensor.storage] = tensor.dtype
                        continue
                    why = "a view of a storage of several dtypes"
                self.uncast.append((entry, why or ""))

    def storage(self, storage: Storage) -> Storage:
        known = self._made.get(storage)
        if known is None:
            known = self._made[storage] = self._cast(storage)
        return known

    def _cast(self, storage: Storage) -> Storage:
        dtype = self._chosen.get(storage)
        if dtype is None:
            return storage
        self._refs.counts[dtype.name] += 1
        whole = tensor_ref(storage, dtype, (storage.nbytes * 8 // dtype.bits,), (1,), 0)
        place = Computed(whole, self._to)
        return storage._replace(dtype=self._to, nbytes=place.size, place=place, crc=None)

    def instead(self, node: Node) -> Node | None:
        # A call that names its dtype becomes one whose storage says it.
        if type(node) is Opaque and isinstance(node.meaning, TensorRef) and type(node.func) is Global:
            typed = self._typed(node.func, node.args)
            if typed is not None:
                return self.shell_of(Opaque(node.how, _V2, typed, None, node.offset), node)
        return None

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        args = call.args
        if type(call.func) is Global and call.func.name == "_rebuild_from_type_v2" and is_tuple(args[2]):
            typed = self._typed(args[0], args[2])
            if typed is not None:
                return (_V2, args[1], typed, *args[3:])
        return args

    def _typed(self, func: Node, args: tuple[Node, ...]) -> tuple[Node, ...] | None:
        """The arguments of `_rebuild_tensor_v3` without the dtype, when its storage is cast."""
        if type(func) is Global and func.name == "_rebuild_tensor_v3" and type(args[0]) is PersistentId:
            meaning = args[0].meaning
            if type(meaning) is Storage and self.storage(meaning) is not meaning:
                return (*args[:6], *args[7:])
        return None

    def changes(self) -> list[Change]:
        return self._refs.changes("storage")


_V2 = Global("torch._utils", "_rebuild_tensor_v2")

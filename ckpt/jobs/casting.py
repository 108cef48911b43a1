"""Other dtypes for the floating tensors of models: what `--dtype` does, for every format."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint, Computed, Node, Opaque, Range, Storage, TensorRef, tensor_ref
from ckpt.contents import place_of
from ckpt.dtypes import BY_NAME, DType, contiguous
from ckpt.errors import UsageError
from ckpt.jobs.rewrite import Change
from ckpt.kernels import CASTABLE, CASTS
from ckpt.names import show
from ckpt.pickles.edit import Edit
from ckpt.sections import chosen_models, sections


def dtype_of(name: str | None) -> DType | None:
    """The dtype that `--dtype` names. Raises UsageError for one that is not cast to."""
    if name is None:
        return None
    if name not in CASTS:
        raise UsageError(f"--dtype {show(name, 40)}: not one of {' '.join(CASTS)}")
    return BY_NAME[name]


class CastRefs:
    """Tensors in another dtype, each range of a storage once."""

    def __init__(self, big: bool, to: DType | None) -> None:
        self._big = big
        self._to = to
        self._made: dict[tuple[object, ...], TensorRef] = {}
        self.places: list[tuple[str, Computed]] = []

    def ref(self, tensor: object) -> TensorRef:
        assert isinstance(tensor, TensorRef)
        to = self._to
        if to is None or tensor.dtype == to or tensor.dtype.name not in CASTABLE:
            return tensor
        key = (id(tensor.storage), tensor.dtype, tensor.shape, tensor.stride, tensor.offset, tensor.neg)
        if key not in self._made:
            place = place_of(tensor, to, big=self._big)
            assert isinstance(place, Computed)
            self.places.append((tensor.dtype.name, place))
            storage = Storage("", tensor.device, to, to.nbytes(tensor.numel), place)
            made = tensor_ref(storage, to, tensor.shape, contiguous(tensor.shape), 0, tensor.requires_grad)
            self._made[key] = made
        return self._made[key]._replace(is_parameter=tensor.is_parameter, requires_grad=tensor.requires_grad)

    def changes(self) -> list[Change]:
        counts: dict[str, int] = {}
        for name, _ in self.places:
            counts[name] = counts.get(name, 0) + 1
        to = self._to.name if self._to else ""
        return [Change("dtype", name, to, count, "tensor") for name, count in counts.items()]


class Cast(Edit):
    """Storages of models in another dtype, all of them little-endian. Views and ties stay what they are."""

    def __init__(self, checkpoint: Checkpoint, to: DType | None, section: str | None) -> None:
        super().__init__()
        self._to = to
        self._big = checkpoint.byteorder == "big"
        self._refs = CastRefs(self._big, to)
        self._made: dict[int, Storage] = {}
        self._chosen: set[int] = set()
        if to is not None:
            for part in chosen_models(checkpoint, sections(checkpoint), section):
                for entry in checkpoint.tensors[part.first : part.last]:
                    if isinstance(entry.tensor, TensorRef):
                        self._chosen.add(id(entry.tensor.storage))

    def storage(self, storage: Storage) -> Storage:
        known = self._made.get(id(storage))
        if known is None:
            known = self._made[id(storage)] = self._cast(storage)
        return known

    def _cast(self, storage: Storage) -> Storage:
        dtype = storage.dtype
        if dtype is None or dtype.bits < 8 or not isinstance(storage.place, Range):
            return storage
        count = storage.nbytes * 8 // dtype.bits
        whole = tensor_ref(storage, dtype, (count,), (1,), 0)
        wanted = self._to is not None and id(storage) in self._chosen and dtype.name in CASTABLE
        if wanted and self._to is not None and dtype != self._to:
            place = Computed(whole, self._to, big=self._big)
            self._refs.places.append((dtype.name, place))
            return storage._replace(dtype=self._to, nbytes=place.size, place=place, crc=None)
        if self._big and dtype.bits > 8:
            return storage._replace(place=Computed(whole, dtype, big=True), crc=None)
        return storage

    def instead(self, node: Node) -> Node | None:
        # Untyped storages: each tensor gets one of its own dtype.
        if type(node) is Opaque and isinstance(node.meaning, TensorRef) and self._to is not None:
            ref = node.meaning
            if ref.storage.dtype is None and id(ref.storage) in self._chosen:
                made = self._refs.ref(ref)
                return made if made is not ref else None
        if isinstance(node, TensorRef):
            return node
        return None

    def changes(self) -> list[Change]:
        return self._refs.changes()

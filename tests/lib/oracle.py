"""What torch sees in a checkpoint, in our words: the paths of its tensors, and each
tensor held against our view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ckpt.bytes.source import inflate_exactly
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.names import Path
from ckpt.model.tensors import Composite, Storage, TensorRef

QUIET = [
    pytest.mark.filterwarnings(f"ignore:{text}:UserWarning")
    for text in (
        "ComplexHalf support is experimental",
        "torch.distributed is disabled, unavailable or uninitialized",
        "pickle_load_args only works",
        "torch.quantize_per_tensor, torch.quantize_per_channel",
        "Sparse (CSR|CSC|BSR|BSC) tensor support is in beta",
        "The PyTorch API of nested tensors is in prototype stage",
    )
]
"""Marks for tests that make such tensors: torch warns of them once a process."""

Leaf = tuple[tuple[Any, ...], torch.Tensor]


def step(key: Any) -> Any:
    """A key of a dict as paths have it: text and whole numbers as they are, others by
    their text.
    """
    if type(key) in (str, int) and (type(key) is str or -(2**63) <= key < 2**63):
        return key
    return f"({', '.join(map(repr, key))})" if isinstance(key, tuple) else repr(key)


def leaves(
    thing: Any, path: tuple[Any, ...] = (), above: tuple[int, ...] = ()
) -> Iterator[Leaf]:
    """Every place at which a loaded object holds a tensor, in the order of the object;
    cycles are cut.
    """
    if isinstance(thing, torch.Tensor):
        yield path, thing
    elif isinstance(thing, (dict, list, tuple)) and id(thing) not in above:
        pairs = thing.items() if isinstance(thing, dict) else enumerate(thing)
        for key, part in pairs:
            yield from leaves(part, (*path, step(key)), (*above, id(thing)))


def at(thing: Any, path: Path) -> Any:
    """The object at a path of exact keys."""
    for key in path:
        thing = thing[key]
    return thing


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of the whole storage of a tensor."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def stored(storage: Storage, byteorder: str = "little") -> bytes:
    """The bytes of a storage, read from where our view says that it lies, in the order
    of this machine.
    """
    place = storage.place
    assert place is not None
    data = place.source.read(place.offset, place.size)
    if place.inflated is not None:
        data = inflate_exactly(data, place.inflated, "storage")
    data = data[: storage.nbytes]
    if byteorder == "big" and storage.dtype is not None:
        width = max(1, storage.dtype.bits // 8) // (
            2 if storage.dtype.kind == "complex" else 1
        )
        data = np.frombuffer(data, np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    return data


def elements(ref: TensorRef, data: bytes) -> bytes:
    """The elements of a tensor in row order, picked from the bytes of its storage by
    our strides alone.
    """
    width = ref.dtype.bits // 8
    picked = np.lib.stride_tricks.as_strided(
        np.frombuffer(data, np.uint8)[ref.offset * width :]
        if ref.numel
        else np.empty(0, np.uint8),
        (*ref.shape, width),
        (*(step * width for step in ref.stride), 1),
    )
    return picked.tobytes()


class Comparison:
    """Holds the tensors of one checkpoint against those that torch loaded from it, pair
    by pair.

    `records_grad` is False for files of a torch that did not write requires_grad yet.
    """

    def __init__(self, checkpoint: Checkpoint, records_grad: bool = True) -> None:
        self.checkpoint = checkpoint
        self._records_grad = records_grad
        self._torch_of: dict[int, int] = {}
        self._ours_of: dict[int, int] = {}

    def tensors(self, loaded: Any) -> int:
        """Every tensor at its path, in order. Returns how many there are."""
        expected = list(leaves(loaded))
        assert [entry.path for entry in self.checkpoint.tensors] == [
            path for path, _ in expected
        ]
        names = [".".join(map(str, path)) for path, _ in expected]
        ours = [entry.name for entry in self.checkpoint.tensors]
        assert len(set(ours)) == len(names)
        for place, (name, own) in enumerate(zip(names, ours, strict=True)):
            if name in names[:place]:  # `0` beside 0: only the path tells them apart
                assert own.startswith(f"{name}#")
            else:
                assert own == name
        for entry, (_, tensor) in zip(self.checkpoint.tensors, expected, strict=True):
            self.pair(entry.tensor, tensor)
        return len(expected)

    def pair(self, ours: TensorRef | Composite, theirs: torch.Tensor) -> None:
        assert f"torch.{ours.dtype.name}" == str(theirs.dtype)
        assert ours.is_parameter == isinstance(theirs, nn.Parameter)
        assert ours.is_buffer == (
            isinstance(theirs, nn.Buffer) and not isinstance(theirs, nn.Parameter)
        )
        if isinstance(ours, Composite):
            self._composite(ours, theirs)
            return
        assert ours.shape == tuple(theirs.shape)
        assert ours.stride == theirs.stride()
        assert ours.offset == theirs.storage_offset()
        assert ours.numel == theirs.numel()
        assert ours.nbytes == theirs.numel() * theirs.element_size()
        assert ours.requires_grad == (
            theirs.requires_grad if self._records_grad else None
        )
        assert (ours.conj, ours.neg) == (theirs.is_conj(), theirs.is_neg())
        if theirs.device.type == "meta":
            assert ours.device == "meta"
            assert ours.storage.place is None
            return
        self._storage(ours.storage, theirs)
        plain = theirs.detach()
        plain = torch._neg_view(plain) if plain.is_neg() else plain
        plain = plain.conj() if plain.is_conj() else plain
        assert not (plain.is_neg() or plain.is_conj())
        if theirs.dtype not in (
            torch.qint8,
            torch.quint8,
            torch.qint32,
            torch.quint4x2,
        ):
            flat = (
                plain.clone(memory_format=torch.contiguous_format)
                .reshape(-1)
                .view(torch.uint8)
            )
            data = stored(ours.storage, self.checkpoint.byteorder)
            assert elements(ours, data) == flat.numpy().tobytes()

    def _storage(self, ours: Storage, theirs: torch.Tensor) -> None:
        storage = theirs.untyped_storage()
        assert ours.nbytes == storage.nbytes()
        assert stored(ours, self.checkpoint.byteorder) == raw(theirs)
        if ours.nbytes:  # torch makes empty storages anew for each tensor
            assert (
                self._torch_of.setdefault(id(ours), storage.data_ptr())
                == storage.data_ptr()
            )
            assert self._ours_of.setdefault(storage.data_ptr(), id(ours)) == id(ours)

    def _composite(self, ours: Composite, theirs: torch.Tensor) -> None:
        parts = dict(ours.parts)
        assert len(parts) == len(ours.parts)
        if theirs.is_quantized:
            assert ours.layout == "quantized"
            scheme = (
                str(theirs.qscheme())
                .removeprefix("torch.")
                .removesuffix("_float_qparams")
            )
            assert (
                ours.detail is not None and ours.detail.partition(",")[0] == scheme
            )  # torch writes both schemes of channels under one name
            assert ours.shape == tuple(theirs.shape)
            codes = parts.pop("int_repr")
            assert (codes.shape, codes.stride) == (tuple(theirs.shape), theirs.stride())
            assert codes.offset == theirs.storage_offset()
            self._storage(codes.storage, theirs)
            if theirs.qscheme() in (
                torch.per_channel_affine,
                torch.per_channel_affine_float_qparams,
            ):
                self._values(parts.pop("scales"), theirs.q_per_channel_scales())
                self._values(
                    parts.pop("zero_points"), theirs.q_per_channel_zero_points()
                )
            assert not parts
            return
        if theirs.is_nested:
            assert ours.layout == "nested"
            assert ours.numel == theirs.numel()
            self._values(parts["values"], theirs.values())
            self._values(parts["sizes"], theirs._nested_tensor_size())
            return
        assert ours.layout == str(theirs.layout).removeprefix("torch.")
        assert ours.shape == tuple(theirs.shape)
        if theirs.layout == torch.sparse_coo:
            expected = {"indices": theirs._indices(), "values": theirs._values()}
        elif theirs.layout in (torch.sparse_csr, torch.sparse_bsr):
            expected = {
                "compressed_indices": theirs.crow_indices(),
                "plain_indices": theirs.col_indices(),
            }
        else:
            expected = {
                "compressed_indices": theirs.ccol_indices(),
                "plain_indices": theirs.row_indices(),
            }
        if theirs.layout != torch.sparse_coo:
            expected["values"] = theirs.values()
        assert parts.keys() == expected.keys()
        for label, tensor in expected.items():
            self._values(parts[label], tensor)

    def _values(self, ours: TensorRef, theirs: torch.Tensor) -> None:
        """A part that torch may have copied while it built the whole: its values."""
        assert f"torch.{ours.dtype.name}" == str(theirs.dtype)
        assert ours.shape == tuple(theirs.shape)
        data = stored(ours.storage, self.checkpoint.byteorder)
        assert elements(ours, data) == theirs.detach().contiguous().numpy().tobytes()

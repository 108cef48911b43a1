"""References to tensors over bytes in memory, laid out in every way that a file may
have them.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch

from ckpt.bytes.source import Memory, Source
from ckpt.model.dtypes import BY_NAME
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, TensorRef, tensor_ref

BEFORE = b"what lies before"


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of the whole storage of a tensor."""
    return (
        torch.empty(0, dtype=torch.uint8)
        .set_(tensor.untyped_storage())
        .numpy()
        .tobytes()
    )


def expected(tensor: torch.Tensor) -> bytes:
    """The elements in the order of the shape, as torch has them."""
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    return dense.flatten().clone().view(torch.uint8).numpy().tobytes()


def swapped(data: bytes, width: int) -> bytes:
    """Elements of so many bytes with their bytes in the other order."""
    return np.frombuffer(data, "u1").reshape(-1, width)[:, ::-1].tobytes()


def deflated(data: bytes) -> bytes:
    machine = zlib.compressobj(1, zlib.DEFLATED, -15)
    return machine.compress(data) + machine.flush()


def range_of(
    data: bytes, *, is_deflated: bool = False, source: Source | None = None
) -> Range:
    """Bytes in the middle of a source."""
    held = deflated(data) if is_deflated else data
    size = len(data) if is_deflated else None
    return Range(
        source or Memory(BEFORE + held + b"behind"), len(BEFORE), len(held), size
    )


def ref_of(
    tensor: torch.Tensor,
    *,
    big: bool = False,
    is_deflated: bool = False,
    source: Source | None = None,
) -> TensorRef:
    """A tensor as a reference, over little-endian or `big`-endian bytes, deflated or
    not.
    """
    dtype = BY_NAME[str(tensor.dtype).removeprefix("torch.")]
    data = raw(tensor)
    if big:
        data = swapped(data, dtype.bits // (16 if dtype.kind == "complex" else 8))
    place = range_of(data, is_deflated=is_deflated, source=source)._replace(big=big)
    storage = Storage("0", "cpu", dtype, len(data), place)
    made = tensor_ref(
        storage,
        dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
    )
    return made._replace(conj=tensor.is_conj(), neg=tensor.is_neg())


def values(dtype: torch.dtype, nbytes: int, seed: int = 0) -> torch.Tensor:
    """A flat tensor of about so many bytes, any bit pattern that is a finite number."""
    chance = torch.Generator().manual_seed(seed)
    count = nbytes // dtype.itemsize
    if dtype.is_complex:
        return torch.view_as_complex(torch.randn(count, 2, generator=chance)).to(dtype)
    if dtype.is_floating_point:
        return (torch.randn(count, generator=chance) * 9).to(dtype)
    top = 2 if dtype is torch.bool else 127
    return torch.randint(0, top, (count,), generator=chance).to(dtype)

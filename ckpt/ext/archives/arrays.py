"""The arrays of numpy in an archive of its own (`.npz`), as Stable-Baselines 2 keeps
the weights of an agent.

Layout: numpy/lib/format.py. Each array is a record `NAME.npy`: a header that is a
Python dict of three fields, and the elements. An array of objects is a pickle, and is
refused.
"""

from __future__ import annotations

import re
from math import prod

from ckpt.bytes.source import Source, underlying_file
from ckpt.formats.common.archive import read_archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.members import Member
from ckpt.formats.common.pickled import Contents, make_checkpoint
from ckpt.model.checkpoint import Checkpoint, Traits
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Dict
from ckpt.model.places import Range
from ckpt.model.tensors import DIMENSIONS, Storage, TensorRef, tensor_ref
from ckpt.model.text import show
from ckpt.tree.quantized import numpy_dtype

_MAGIC = b"\x93NUMPY"
_HEADER = 10_000
"""Bytes of a header that numpy reads at most without being told to trust the file."""
# The header as numpy writes it, to the letter: any other is refused, never evaluated.
_FIELDS = re.compile(
    r"\{'descr': '([<>|])(\w{2,3})', 'fortran_order': (True"
    r"|False), 'shape': \(((?:\d{1,18}(?:, |,|(?=\))))*)\), \}\s*"
)
ENDING = ".npy"


def read_arrays(
    member: Member, mark: str, limits: Limits, budget: Budget
) -> Checkpoint:
    """The arrays of a member as a checkpoint: name -> tensor. Raises UnreadableError,
    LimitError.
    """
    member.admit(limits, budget)
    source = member.open()
    archive = read_archive(source, limits)
    budget.hold(archive.nbytes)
    contents = Contents(archive.notices, None, mark, budget)
    names: list[str] = []
    tensors: list[TensorRef] = []
    for record in archive.records.values():
        if not record.name.endswith(ENDING):
            raise UnreadableError(
                f"{show(record.name, 80)} of {show(member.member, 80)} is no array of "
                "numpy"
            )
        names.append(record.name.removesuffix(ENDING))
        tensors.append(_read_array(source, record, f"{mark}{names[-1]}"))
    for tensor in tensors:
        contents.storages[tensor.storage.id] = tensor.storage
    root = Dict()
    root.set(names, list(tensors))
    traits = Traits("numpy arrays", keeps_ties=False)
    return make_checkpoint(
        member.name, "npz", traits, root, contents, limits, source=source
    )


def _read_array(source: Source, record: Record, id: str) -> TensorRef:
    what = f"array {show(record.name, 80)}"
    # The elements are read in place, which compressed bytes do not allow.
    if record.deflated:
        raise UnreadableError(f"{what} is compressed")
    head = source.read(record.offset, min(12, record.size))
    # Version 1 has the length of its header in two bytes, later ones in four.
    wide = head[6:7] in (b"\x02", b"\x03")
    begin = 12 if wide else 10
    if (
        head[:6] != _MAGIC
        or head[6:7] not in (b"\x01", b"\x02", b"\x03")
        or len(head) < begin
    ):
        raise UnreadableError(f"{what} does not begin as numpy writes it")
    length = int.from_bytes(head[8:begin], "little")
    if length > _HEADER or begin + length > record.size:
        raise UnreadableError(f"the header of {what} needs {length:,} bytes")
    text = source.read(record.offset + begin, length).decode("latin-1")
    match = _FIELDS.fullmatch(text)
    dtype = None if match is None else numpy_dtype(match[2])
    if match is None or dtype is None:
        raise UnreadableError(
            f"{what} holds elements that torch does not have: {show(text.strip(), 100)}"
        )
    shape = tuple(int(size) for size in re.findall(r"\d+", match[4]))
    nbytes = _array_nbytes(what, dtype, shape, record.size - begin - length)
    file, offset = underlying_file(source, record.offset + begin + length)
    # `>` is big-endian.
    place = Range(file, offset, nbytes, None, match[1] == ">")
    if match[3] == "True":
        # In Fortran's order the first index moves fastest.
        stride = tuple(reversed(contiguous(tuple(reversed(shape)))))
    else:
        stride = contiguous(shape)
    return tensor_ref(Storage(id, None, dtype, nbytes, place), dtype, shape, stride, 0)


def _array_nbytes(what: str, dtype: DType, shape: tuple[int, ...], held: int) -> int:
    """The bytes of an array. Raises UnreadableError if its record holds others."""
    nbytes = prod(shape) * dtype.bits // 8
    if len(shape) > DIMENSIONS or nbytes != held:
        raise UnreadableError(f"{what} has {held:,} bytes, its shape needs {nbytes:,}")
    return nbytes

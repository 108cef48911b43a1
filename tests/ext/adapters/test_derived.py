"""Derived places: spans of a tensor that a function changes, read whole, in part, in
threads and in turn.
"""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import pytest
import torch

from ckpt import formats
from ckpt.elements.blocks import pour
from ckpt.ext.adapters.derived import Derived, Made
from ckpt.model.tensors import Storage, TensorRef

SIZE = 1_000


def negated(block: memoryview, first: int) -> Made:
    """Turn the sign of each float32, and of the first element of each span the number
    into its place.
    """
    import numpy as np

    values = -np.frombuffer(block, "<f4").copy()
    values[0] = first
    return Made(values.view("u1").data, int(first == 0), lambda: None)


@pytest.fixture(params=[False, True])
def ref(request: pytest.FixtureRequest, tmp_path: Path) -> TensorRef:
    """A tensor of a file, whose bytes can be read anywhere, or from their beginning
    only.
    """
    import zipfile

    torch.save({"w": torch.arange(float(SIZE))}, tmp_path / "a.pth")
    if request.param:
        with (
            zipfile.ZipFile(tmp_path / "a.pth") as old,
            zipfile.ZipFile(tmp_path / "b.pth", "w", 8) as new,
        ):
            for item in old.infolist():
                new.writestr(item.filename, old.read(item.filename))
    checkpoint = formats.open(str(tmp_path / ("b.pth" if request.param else "a.pth")))
    tensor = checkpoint.tensors[0].tensor
    assert isinstance(tensor, TensorRef)
    return tensor


def expected(step: int) -> bytes:
    values = -torch.arange(float(SIZE))
    values[::step] = torch.arange(0, SIZE, step).float()
    return values.numpy().tobytes()


@pytest.mark.parametrize("step", [1, 7, 100, 2_000])
def test_any_part_is_that_of_the_whole(ref: TensorRef, step: int) -> None:
    place = Derived(ref, (), step, negated, ref.dtype)
    whole = expected(step)
    assert place.nbytes == len(whole)
    for start, count in (
        (0, len(whole)),
        (0, 5),
        (3, 1),
        (4 * step, 40),
        (403, 1_111),
        (len(whole) - 2, 2),
    ):
        assert b"".join(place.read_blocks(start, count)) == whole[start : start + count]


def test_what_is_beyond_the_range_is_told(ref: TensorRef) -> None:
    told: list[int] = []
    place = Derived(ref, (), 10, negated, ref.dtype)
    list(
        place.read_blocks(tally=lambda overflowed, vanished=0: told.append(overflowed))
    )
    assert told == [1]


class Sink:
    """Takes what is written, and the CRC of the records that went by."""

    def __init__(self) -> None:
        self.data = io.BytesIO()
        self.passed_crcs: list[int] = []
        self.checked = 0
        self.audit = self

    def write(self, block: bytes) -> None:
        self.data.write(block)

    def tally(self, overflowed: int, vanished: int = 0) -> None: ...

    def check(self, place: object) -> None:
        self.checked += 1

    def passed(self, checksum: object, crc: int) -> None:
        self.passed_crcs.append(crc)


@pytest.mark.parametrize("step", [7, 2_000])
def test_the_record_of_the_tensor_is_summed_on_the_way(
    ref: TensorRef, step: int
) -> None:
    place = Derived(ref, (), step, negated, ref.dtype)
    sink = Sink()
    crc = pour(Storage("", None, ref.dtype, place.nbytes, place), sink, crc=True)  # type: ignore[arg-type]
    assert sink.data.getvalue() == expected(step) and crc == zlib.crc32(expected(step))
    can_jump = (
        ref.storage.place is not None
        and getattr(ref.storage.place, "inflated", None) is None
    )
    assert sink.passed_crcs == (
        [zlib.crc32(torch.arange(float(SIZE)).numpy().tobytes())] if can_jump else []
    )
    assert sink.checked == 1  # of what else it reads

"""Tensors that moved to another name: found by their bytes, never guessed."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType

import oracle
import torch
from rewriting import compared, statuses

from ckpt.commands.diff import rows
from ckpt.commands.diff.diff import DiffReport

pytestmark = oracle.QUIET
KEPT = {"kept.weight": torch.zeros(5)}


def renames(report: DiffReport) -> dict[str, str]:
    return {
        row.before.name: row.after.name
        for row in report.rows
        if row.status == "renamed" and row.before is not None and row.after is not None
    }


def test_a_tensor_is_found_although_no_part_of_its_name_is_left(tmp_path: Path) -> None:
    value = torch.randn(3, 4)
    report = compared(
        {**KEPT, "encoder.weight": value}, {**KEPT, "stem.kernel": value}, tmp_path
    )
    assert renames(report) == {"encoder.weight": "stem.kernel"} and not report.differs


def test_a_renamed_row_knows_both_of_its_places(tmp_path: Path) -> None:
    value = torch.randn(3, 4)
    report = compared(
        {"a.weight": value, **KEPT, "z.weight": torch.ones(1)},
        {"z.weight": torch.ones(1), **KEPT, "b.weight": value},
        tmp_path,
    )
    row = next(row for row in report.rows if row.status == "renamed")
    assert row.indices == (0, 2) and row.labels == ("a.weight", "b.weight")


def test_where_two_could_be_the_one_none_is(tmp_path: Path) -> None:
    ones = torch.ones(3)
    two, one = (
        {**KEPT, "a.weight": ones, "b.weight": ones.clone()},
        {**KEPT, "c.weight": ones},
    )
    there, back = compared(two, one, tmp_path), compared(one, two, tmp_path)
    assert not renames(there) and not renames(back)
    assert (there.count("removed"), there.count("added")) == (2, 1)
    assert (back.count("removed"), back.count("added")) == (1, 2)


def test_the_longest_end_of_a_name_decides_first_and_leaves_the_rest_to_the_shorter(
    tmp_path: Path,
) -> None:
    ones = torch.ones(3)
    report = compared(
        {**KEPT, "x.a.weight": ones, "x.b.weight": ones.clone()},
        {**KEPT, "y.c.weight": ones, "y.a.weight": ones.clone()},
        tmp_path,
    )
    assert renames(report) == {"x.a.weight": "y.a.weight", "x.b.weight": "y.c.weight"}


def test_the_same_bytes_in_another_shape_or_dtype_are_no_move(tmp_path: Path) -> None:
    value = torch.zeros(2, 3)
    for other in (value.reshape(3, 2).clone(), value.to(torch.int32)):
        report = compared(
            {**KEPT, "a.weight": value}, {**KEPT, "b.weight": other}, tmp_path
        )
        assert not renames(report) and report.differs


def test_one_of_another_shape_is_no_second_candidate(tmp_path: Path) -> None:
    value = torch.zeros(2, 3)
    after = {**KEPT, "x.kernel": torch.zeros(3, 2), "y.kernel": value}
    report = compared({**KEPT, "a.weight": value}, after, tmp_path)
    assert renames(report) == {"a.weight": "y.kernel"}


def test_tensors_without_elements_or_data_do_not_move(tmp_path: Path) -> None:
    for value in (torch.zeros(0, 3), torch.ones(2, 3, device="meta")):
        report = compared(
            {**KEPT, "a.weight": value}, {**KEPT, "b.weight": value}, tmp_path
        )
        assert statuses(report) == {
            "kept.weight": "same",
            "b.weight": "added",
            "a.weight": "removed",
        }


def test_other_bytes_are_no_move(tmp_path: Path) -> None:
    """Nor are bytes with the same CRC-32, which anybody can make: 0 and this number
    have one.
    """
    zeros = torch.zeros(5, dtype=torch.uint8)
    alike = torch.tensor(list((0x1DB710641).to_bytes(5, "little")), dtype=torch.uint8)
    assert zlib.crc32(bytes(zeros)) == zlib.crc32(bytes(alike))
    for one, two in ((torch.ones(3), torch.zeros(3)), (zeros, alike)):
        report = compared(
            {**KEPT, "a.weight": one}, {**KEPT, "b.weight": two}, tmp_path
        )
        assert not renames(report) and report.differs


def test_a_large_tensor_moves_as_one(small_blocks: None, tmp_path: Path) -> None:
    """Its spans are read apart; one in other strides is read as a whole, and so are
    those that it is compared with.
    """
    value = torch.arange(3000, dtype=torch.float32).reshape(50, 60)
    turned = value.t().contiguous().t()
    for after in (value, turned):
        report = compared(
            {**KEPT, "a.weight": value}, {**KEPT, "b.weight": after.clone()}, tmp_path
        )
        assert renames(report) == {"a.weight": "b.weight"} and not report.differs
    other = value.clone()
    other[-1, -1] = 0
    assert not renames(
        compared({**KEPT, "a.weight": value}, {**KEPT, "b.weight": other}, tmp_path)
    )


def operations_of(call: Callable[[], object], module: ModuleType) -> int:
    """The operations of Python that the functions of a module take in this thread while
    something is called.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal count
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_looking_for_moves_takes_twice_as_much_for_twice_the_tensors(
    tmp_path: Path,
) -> None:
    def moved(count: int) -> int:
        before = {
            f"a.{number}": torch.full((2,), float(number)) for number in range(count)
        }
        after = {
            f"b{number}.w": torch.full((2,), float(number)) for number in range(count)
        }
        return operations_of(lambda: compared(before, after, tmp_path), rows)

    moved(1)  # Python 3.12 reports operations from the second time on
    few, many = moved(100), moved(400)

    assert few > 1000 and many < 5 * few

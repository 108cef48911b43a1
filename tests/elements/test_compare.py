"""Comparing tensors: layouts, views that repeat, recorded CRCs, and how much is
read.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import refs
import rewriting
import safetensors.torch
import torch
from process import check_error, ckpt

from ckpt import formats
from ckpt.commands.diff.diff import DiffReport, Options, diff
from ckpt.elements.compare import Change, compare
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET


def of(before: Any, after: Any, folder: Path, **options: Any) -> DiffReport:
    paths = [
        rewriting.saved(thing, folder / name)
        for thing, name in ((before, "a.pt"), (after, "b.pt"))
    ]
    with formats.open(str(paths[0])) as one, formats.open(str(paths[1])) as two:
        return diff(Survey(one), Survey(two), Options(**options))


def change(before: torch.Tensor, after: torch.Tensor, folder: Path) -> Change:
    report = of({"a.weight": before}, {"a.weight": after}, folder)
    (row,) = report.rows
    assert row.change is not None
    return row.change


# --- layouts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lay",
    [
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t.permute(3, 1, 0, 2),
        lambda t: t.transpose(0, 1),
        lambda t: t[:, ::2],
        lambda t: t.flip(0).flip(0),
    ],
    ids=["channels_last", "permuted", "transposed", "strided", "copied"],
)
@pytest.mark.parametrize("both", [True, False])
def test_the_place_of_the_largest_change_is_an_index(
    lay: Any, both: bool, tmp_path: Path
) -> None:
    base = torch.randn(4, 6, 5, 3)
    before, after = lay(base), lay(base.clone())
    shape = before.shape
    at = tuple(int(torch.randint(0, size, ())) for size in shape)
    after[at] += 5
    after[(0,) * len(shape)] += 1

    found = change(before, after if both else after.contiguous(), tmp_path)

    delta = (after.double() - before.double()).abs()
    assert found.max_abs == delta.max().item() and found.at is not None
    assert delta[found.at] == delta.max() and found.differing == int((delta > 0).sum())
    assert found.rel_l2 == pytest.approx((delta.norm() / before.double().norm()).item())


def test_a_permuted_tensor_is_read_from_first_to_last(tmp_path: Path) -> None:
    base = torch.randn(8, 64, 16, 16).to(memory_format=torch.channels_last)
    with mock.patch("ckpt.elements.cast.gathered", side_effect=AssertionError):
        assert of({"a.weight": base}, {"a.weight": base.clone()}, tmp_path).same
        assert change(base, base + 1, tmp_path).differing == base.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_views_that_repeat_cost_what_they_hold(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    one = torch.arange(3).to(dtype).reshape(1, 3, 1).expand(10**6, 3, 10**6)
    two = (torch.arange(3) * 2).to(dtype).reshape(1, 3, 1).expand(10**6, 3, 10**6)

    found = change(one, two, tmp_path)

    assert found.differing == 2 * 10**12 and found.numel == 3 * 10**12
    assert found.at == (0, 2, 0) and found.max_abs == 2
    assert found.rms == pytest.approx(
        math.sqrt(5 / 3)
    ) and found.rel_l2 == pytest.approx(1)
    assert of({"a.weight": one}, {"a.weight": one}, tmp_path).same


def test_what_unfolds_to_too_much_is_refused(tmp_path: Path) -> None:
    line = torch.zeros(2 * 10**6)
    wide = line.as_strided((10**6, 10**6), (1, 1))
    other = (line + 1).as_strided((10**6, 10**6), (1, 1))
    for name, tensor in (("a.pt", wide), ("b.pt", other)):
        rewriting.saved({"a.weight": tensor}, tmp_path / name)

    done = ckpt("diff", tmp_path / "a.pt", tmp_path / "b.pt")

    check_error(done, "expands to 4,000,000,000,000")
    assert "--structure" in done.complaints[0]
    assert ckpt("diff", "--structure", tmp_path / "a.pt", tmp_path / "b.pt").code == 0


def test_the_numbers_of_equal_tensors_when_they_are_wanted(tmp_path: Path) -> None:
    report = of(
        {"a.weight": torch.ones(4)}, {"a.weight": torch.ones(4)}, tmp_path, norms=True
    )

    (row,) = report.rows
    assert report.same and row.status == "same" and row.change is not None
    assert (row.change.differing, row.change.reference, row.change.rel_l2) == (
        0,
        4.0,
        0.0,
    )


# --- what containers recorded ---------------------------------------------------------


def opened(path: Path) -> Checkpoint:
    return formats.open(str(path))


def with_crc(source: Path, to: Path, record: str, *, value: int | None = None) -> Path:
    """A copy in which a record has another CRC: in its local header and in the
    directory. None: that of its bytes.
    """
    data = bytearray(source.read_bytes())
    with opened(source) as checkpoint:
        held = checkpoint.origin.archive.find(record)
    found = (
        zlib.crc32(bytes(data[held.offset : held.offset + held.size]))
        if value is None
        else value
    )
    old = struct.pack("<I", held.crc)
    assert data.count(old) >= 2
    to.write_bytes(bytes(data).replace(old, struct.pack("<I", found)))
    return to


def test_equal_bytes_with_other_crcs_are_damage(tmp_path: Path) -> None:
    one = rewriting.saved(
        {"a.weight": torch.randn(50), "b.weight": torch.ones(3)}, tmp_path / "a.pt"
    )
    two = with_crc(one, tmp_path / "b.pt", "data/0", value=12345)

    done = ckpt("diff", one, two)

    assert (
        done.code == 2
        and "a.weight" in done.complaints[0]
        and "damaged" in done.complaints[0]
    )
    assert "same" in done.out.decode()  # the report is there all the same


def test_other_bytes_with_equal_crcs_are_damage(tmp_path: Path) -> None:
    one = rewriting.saved(
        {"a.weight": torch.randn(50), "b.weight": torch.ones(3)}, tmp_path / "a.pt"
    )
    with opened(one) as checkpoint:
        offset = checkpoint.storages[0].place.offset  # type: ignore[union-attr]
    data = bytearray(one.read_bytes())
    data[offset + 3] ^= 1
    (tmp_path / "b.pt").write_bytes(data)
    whole = with_crc(tmp_path / "b.pt", tmp_path / "c.pt", "data/0")

    assert ckpt("diff", one, tmp_path / "b.pt").code == 2
    assert ckpt("diff", one, whole).code == 1


def test_a_slice_is_no_reason_to_call_a_file_damaged(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    other = base.clone()
    other[9] = 7

    report = of({"a.weight": base[:5]}, {"a.weight": other[:5]}, tmp_path)

    assert report.same and not report.damaged


def test_quick_reads_no_tensor(tmp_path: Path) -> None:
    state = {"a.weight": torch.randn(5000), "b.weight": torch.randn(5000)}
    one = rewriting.saved(state, tmp_path / "a.pt")
    two = rewriting.saved({**state, "b.weight": torch.randn(5000)}, tmp_path / "b.pt")
    again = rewriting.saved(state, tmp_path / "c.pt")

    with opened(one) as before, opened(two) as after:
        read = [side.source.bytes_read for side in (before, after) if side.source]
        report = diff(Survey(before), Survey(after), Options(quick=True))
        assert [
            side.source.bytes_read for side in (before, after) if side.source
        ] == read

    assert {row.name: row.status for row in report.rows} == {
        "a.weight": "same",
        "b.weight": "changed",
    }
    assert ckpt("diff", "--quick", one, two).code == 1
    done = ckpt("diff", "--quick", one, again)
    assert done.code == 0 and done.lines[-1].startswith(
        "same sizes and checksums; values were not read"
    )


@pytest.mark.parametrize("how", ["no crc", "safetensors", "legacy", "slice", "order"])
def test_quick_never_says_same_without_a_crc(how: str, tmp_path: Path) -> None:
    state = {"a.weight": torch.randn(50), "b.weight": torch.ones(3)}
    one = rewriting.saved(state, tmp_path / "a.pt")
    two = tmp_path / "b.pt"
    if how == "no crc":
        with mock.patch("torch.utils.serialization.config.save.compute_crc32", False):
            rewriting.saved(state, two)
    elif how == "safetensors":
        two = tmp_path / "b.safetensors"
        assert ckpt("convert", one, "-o", two).code == 0
    elif how == "legacy":
        rewriting.saved(state, two, _use_new_zipfile_serialization=False)
    elif how == "slice":
        whole = torch.cat([state["a.weight"], torch.ones(1)])
        rewriting.saved({**state, "a.weight": whole[:50]}, two)
    else:
        rewriting.saved({**state, "a.weight": state["a.weight"].flip(0)}, two)
        rewriting.saved(
            {**state, "a.weight": state["a.weight"].reshape(5, 10).t().flatten()}, one
        )
        assert ckpt("diff", "--quick", one, two).code == 1
        return

    done = ckpt("diff", "--quick", one, two)

    assert (
        done.code == 2
        and "undecided" in done.out.decode()
        and "without --quick" in done.complaints[0]
    )
    assert ckpt("diff", one, two).code == 0


def test_views_of_one_storage_by_its_crc(tmp_path: Path) -> None:
    base = torch.randn(10)
    same = of({"a.weight": base[:5]}, {"a.weight": base[:5]}, tmp_path, quick=True)
    other = base.clone()
    other[9] += 1
    unknown = of({"a.weight": base[:5]}, {"a.weight": other[:5]}, tmp_path, quick=True)

    assert [row.status for row in same.rows] == ["same"]
    assert (
        [row.status for row in unknown.rows] == ["unchecked"]
        and not unknown.same
        and not unknown.differs
    )


def test_composites_are_compared_part_by_part(tmp_path: Path) -> None:
    one = torch.eye(3).to_sparse()
    two = (torch.eye(3) * 2).to_sparse()

    assert of({"a.weight": one}, {"a.weight": one.clone()}, tmp_path, quick=True).same
    assert (
        of({"a.weight": one}, {"a.weight": two}, tmp_path, quick=True).count("changed")
        == 1
    )
    assert not of({"a.weight": one}, {"a.weight": two}, tmp_path).damaged


# --- files of several blocks ----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
@pytest.mark.parametrize(
    "at",
    [None, 0, 1 << 18, (1 << 18) - 1, 3 << 18, 3 * 2**20 - 1],
    ids=lambda at: f"element {at}",
)
def test_files_of_twelve_megabytes_that_differ(
    at: int | None, kind: str, tmp_path: Path
) -> None:
    """All over, or in the last bit of one element: of the first block, one in the
    middle, the last.
    """
    before = torch.arange(3 * 2**20, dtype=torch.int32)
    after = before + 2**24 if at is None else before.clone()
    if at is not None:
        after[at] ^= 1
    paths = []
    for name, tensor in (("a", before), ("b", after), ("c", before)):
        path = tmp_path / f"{name}.{kind}"
        if kind == "pt":
            rewriting.saved({"a.weight": tensor}, path)
        else:
            safetensors.torch.save_file({"a.weight": tensor}, path)
        paths.append(str(path))
    with (
        formats.open(paths[0]) as one,
        formats.open(paths[1]) as two,
        formats.open(paths[2]) as same,
    ):
        report = diff(Survey(one), Survey(two))
        assert diff(Survey(one), Survey(same)).same

    (row,) = report.rows
    assert not report.same and report.differs and row.change is not None
    assert row.change.differing == (len(before) if at is None else 1)
    assert at is None or row.change.at == (at,)


@pytest.mark.parametrize(
    "view", ["whole", "columns", "every other", "rows", "repeated"]
)
@pytest.mark.parametrize("how", ["little", "big", "deflated"])
def test_one_element_that_differs_wherever_it_lies(
    how: str, view: str, small_blocks: None
) -> None:
    views: dict[str, Any] = {
        "whole": lambda t: t,
        "columns": lambda t: t.reshape(6, -1).t(),
        "every other": lambda t: t[::2],
        "rows": lambda t: t.reshape(-1, 6)[1:, 1:5],
        "repeated": lambda t: t[:9].reshape(9, 1).expand(9, 20),
    }
    base = refs.values(torch.float32, 600)
    before = views[view](base)
    kept = refs.ref_of(before, big=how == "big", is_deflated=how == "deflated")
    assert compare(kept, refs.ref_of(views[view](base.clone()))) is None
    for at in range(len(base)):
        other = base.clone()
        other[at] += 1
        after = views[view](other)
        differing = int((before != after).sum())

        found = compare(kept, refs.ref_of(after))

        assert (found is None) == (not differing), at
        if found is not None:
            assert found.differing == differing and found.at is not None
            assert before[found.at] != after[
                found.at
            ] and found.max_abs == pytest.approx(1, abs=1e-5)


def test_other_pending_signs_are_other_values(small_blocks: None) -> None:
    base = refs.values(torch.complex64, 640)

    assert compare(refs.ref_of(base), refs.ref_of(base.conj())) is not None
    assert (
        compare(refs.ref_of(base.conj()), refs.ref_of(base.conj().resolve_conj()))
        is None
    )
    assert compare(refs.ref_of(torch._neg_view(base)), refs.ref_of(-base)) is None
    assert compare(refs.ref_of(torch._neg_view(base)), refs.ref_of(base)) is not None


def test_a_file_that_is_cut_while_it_is_compared(tmp_path: Path) -> None:
    path = rewriting.saved({"a.weight": torch.randn(500_000)}, tmp_path / "a.pt")
    with opened(path) as one, opened(path) as two:
        path.write_bytes(path.read_bytes()[:100_000])
        with pytest.raises(CkptError, match="changed while"):
            compare(one.tensors[0].tensor, two.tensors[0].tensor)


@pytest.mark.parametrize("field", ["squares", "reference"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_sum_that_is_not_finite_gives_no_relative_number(
    field: str, value: float
) -> None:
    found = Change(2, 0, 2, 1.0, squares=4.0, reference=16.0)
    assert found.rel_l2 == 0.5
    assert found._replace(**{field: value}).rel_l2 is None

"""Files whose end is zeros: a download that had reserved its place, or a file system
after a crash.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from process import check_error, ckpt

TEXT = (
    "RuntimeError: unexpected EOF, expected 129070 more bytes. The file might be "
    "corrupted."
)
ZIP, LEGACY = True, False


def saved(path: Path, *, is_zip: bool) -> dict[str, torch.Tensor]:
    """A file of tensors without a zero, in the order of their names."""
    state = {
        f"layer{number:02}.weight": torch.full((512,), number + 1.5)
        for number in range(12)
    }
    torch.save(state, path, _use_new_zipfile_serialization=is_zip)
    return state


def zeroed(path: Path, begin: int, end: int | None = None) -> None:
    """Put zeros in the place of the bytes of a file."""
    data = bytearray(path.read_bytes())
    end = len(data) if end is None else end
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)


def report(path: Path, *words: str) -> dict[str, object]:
    done = ckpt(*words, path.name, "--json", cwd=path.parent)
    document: dict[str, object] = json.loads(done.out)
    return document


@pytest.mark.parametrize("is_zip", [ZIP, LEGACY])
@pytest.mark.parametrize("part", [0.4, 0.5, 0.7, 0.83])
def test_no_tensor_in_the_zeros_at_the_end_is_whole(
    part: float, is_zip: bool, tmp_path: Path
) -> None:
    path = tmp_path / "m.pth"
    state = saved(path, is_zip=is_zip)
    data = path.read_bytes()
    begin = int(len(data) * part)
    zeroed(path, begin)
    zeros = len(data) - len(data[:begin].rstrip(b"\0"))
    there = {
        name for name, value in state.items() if value.numpy().tobytes() in data[:begin]
    }

    found = report(path, "verify")

    assert (
        found["verdict"] == "damaged"
        and set(found["whole"]) <= there
        and found["whole"]
    )  # type: ignore[arg-type]
    assert f"ends in {zeros:,} zero bytes" in str(found["problems"])
    assert ckpt("salvage", path.name, "-o", "out.pth", cwd=tmp_path).code == 1
    assert torch.load(tmp_path / "out.pth").keys() <= there
    shown = ckpt("explain", TEXT, path.name, cwd=tmp_path).out.decode()
    assert (
        f"{zeros:,} zero bytes" in " ".join(shown.split())
        and "unfinished download" in shown
    )


def test_zeros_up_to_a_header_that_is_zero_too(tmp_path: Path) -> None:
    path = tmp_path / "m.pth"
    saved(path, is_zip=LEGACY)
    data = path.read_bytes()
    values = [
        (number, data.find(torch.full((512,), number + 1.5).numpy().tobytes()))
        for number in range(12)
    ]
    rows = sorted(values, key=lambda row: row[1])
    zeroed(
        path, rows[3][1] + 100, rows[4][1] + 50
    )  # the end of the fourth, and the header of the fifth

    found = report(path, "verify")

    lost = {f"layer{rows[index][0]:02}.weight" for index in (3, 4)}
    assert set(found["lost"]) == lost  # type: ignore[arg-type]
    assert ckpt("salvage", path.name, "-o", "out.pth", cwd=tmp_path).code == 1
    assert not lost & torch.load(tmp_path / "out.pth").keys()


@pytest.mark.parametrize("is_zip", [ZIP, LEGACY])
def test_tensors_of_zeros_are_whole(is_zip: bool, tmp_path: Path) -> None:
    torch.save(
        {"a": torch.zeros(4000)},
        tmp_path / "m.pth",
        _use_new_zipfile_serialization=is_zip,
    )
    assert report(tmp_path / "m.pth", "verify")["verdict"] == "intact"


def test_a_save_that_stopped_at_its_pickle(tmp_path: Path) -> None:
    """torch closes the archive of a save that fails, and leaves it without a pickle."""
    path = tmp_path / "a.pth"
    with pytest.raises(Exception, match="pickle"):
        torch.save({"w": torch.ones(2), "f": lambda: 0}, path)
    assert path.exists()

    check_error(
        ckpt("inspect", path),
        "torch.save stopped before it wrote data.pkl (an object that cannot be pickled?",
    )

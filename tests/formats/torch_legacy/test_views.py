"""Views of storages in legacy files, as torch before 0.4 wrote them, and as it did
not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import opcodes as op
import oracle
import pytest
import torch
from inside import inside
from opcodes import legacy, pickled, rebuilt, storage_id

pytestmark = oracle.QUIET


def written_as(folder: Path, view: Any, *more: Any, **options: Any) -> Path:
    path = folder / "x.pth"
    storage = storage_id("0", "FloatStorage", 6, "cpu", view)
    program = rebuilt(storage, *more, **options)
    path.write_bytes(legacy(pickled({"w": program})))
    return path


def test_a_view_is_counted_in_elements_of_its_storage(tmp_path: Path) -> None:
    path = written_as(tmp_path, ("1", 2, 4), (2,), (1,), 1)
    shown = inside("get", path, "w", cwd=tmp_path).out.decode()
    assert torch.load(path)["w"].tolist() == [3.0, 4.0]
    assert "3" in shown and "4" in shown


def test_a_view_with_another_dtype_is_refused(tmp_path: Path) -> None:
    """torch counts the view in elements of the class, and ckpt in those of the tensor:
    it showed other values.
    """
    flags = (False, op.ordered_dict(), op.glob("torch", "float64"))
    path = written_as(
        tmp_path, ("1", 2, 4), (1,), (1,), 0, *flags, rebuild="_rebuild_tensor_v3"
    )
    torch.load(path)
    run = inside("inspect", path, cwd=tmp_path)
    assert run.code == 2 and b"not that of the view" in run.err


@pytest.mark.parametrize(
    ("view", "offset"), [(("1", 0, 1), 2), (("1", 1, 2), 1), (("1", 6, 0), 0)]
)
def test_a_tensor_past_its_view_is_refused(
    view: Any, offset: int, tmp_path: Path
) -> None:
    """torch 2 refuses to make the view longer, and older ones go on behind it."""
    path = written_as(tmp_path, view, (2,), (1,), offset)
    run = inside("inspect", path, cwd=tmp_path)
    assert run.code == 2 and b"reaches past" in run.err
    with pytest.raises(RuntimeError, match="resiz"):
        torch.load(path)

"""What needs torch says in one line which one it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from process import SAMPLES, environment, python

OLD = """
__version__ = "1.13.1+cu117"

class nn:
    class Module:
        pass
"""
SNAPSHOT = "import ckpt, torch; ckpt.snapshot(torch.nn.Module(), 'a.pth')"
TENSOR = (
    f"import ckpt; c = ckpt.open({str(SAMPLES / 'branch.rank0.pth')!r}); "
    "c[next(iter(c))].torch()"
)
NEEDS = (
    "this needs torch 2.0 or later, and torch 1.13.1+cu117 is installed (pip install "
    "--upgrade 'torch-ckpt[torch]')"
)


@pytest.mark.parametrize("code", [SNAPSHOT, TENSOR], ids=["snapshot", "torch"])
def test_a_torch_that_is_too_old(code: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(OLD)
    path = environment()["PYTHONPATH"]
    done = python(
        "-c", code, env=environment(PYTHONPATH=f"{tmp_path}:{path}"), cwd=tmp_path
    )

    assert (
        done.code == 1
        and done.complaints[-1] == f"ckpt.model.errors.UsageError: {NEEDS}"
    )
    assert not (tmp_path / "a.pth").exists()


def test_a_command_with_a_torch_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(OLD)
    (tmp_path / "mine.py").write_text(
        "import torch\ndef make(): return torch.nn.Module()\n"
    )
    path = environment()["PYTHONPATH"]
    words = ("inspect", SAMPLES / "branch.rank0.pth", "--model", "mine:make")
    done = python(
        "-m",
        "ckpt",
        *words,
        env=environment(PYTHONPATH=f"{tmp_path}:{path}"),
        cwd=tmp_path,
    )

    assert done.code == 2 and len(done.complaints) == 1
    assert done.complaints[0].startswith("ckpt: ") and done.complaints[0].endswith(
        NEEDS
    )

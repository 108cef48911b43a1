"""The samples: each has its row, says what the row promises, and is what the script
beside it makes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process import TIMEOUT

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError

FOLDER = Path(__file__).resolve().parents[2] / "sample_checkpoints"
ROWS = {
    match[1]: int(match[2])
    for match in re.finditer(
        r"^\| `([^`]+)` \|.*\| (\d) \|$",
        (FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )
}
FILES = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.rglob("*")
    if path.is_file()
    and path.name not in ("README.md", "make_samples.py")
    and "__pycache__" not in path.parts
)

# Every finding of every sample: one that is not true would be a bug, one that is
# missing too.
FINDINGS = {
    "agent.zip": ["pickles-inside", "optimizer-heavy"],
    "branch.rank0.pth": ["list-modules", "list-modules"],
    "branch.rank1.pth": ["unused", "list-modules", "list-modules"],
    "compiled.pth": ["prefix"],
    "dcp/.metadata": ["resume-stops", "unused", "optimizer-heavy"],
    "dcp/__0_0.distcp": ["resume-stops", "unused", "optimizer-heavy"],
    "dcp/__1_0.distcp": ["resume-stops", "unused", "optimizer-heavy"],
    "ddp_after.pth": ["prefix", "unused", "optimizer-heavy"],
    "ddp_before.pth": ["prefix", "unused", "optimizer-heavy"],
    "dtypes.pth": ["no-weights"],
    "hostile.pth": ["called-on-load", "weights-only"],
    "legacy.pth": ["cuda"],
    "legacy_python2.pth": ["cuda"],
    "lightning.ckpt": ["cuda", "optimizer-heavy"],
    "llama_base.safetensors": [],
    "llama_bf16.pth": ["cuda"],
    "llama_q8_0.gguf": [],
    "lora/adapter_model.safetensors": [],
    "objects.pth": ["called-on-load", "unknown-import", "weights-only"],
    "scripted.pt": ["weights-only"],
    "sharded/model-00001-of-00002.safetensors": [],
    "sharded/model-00002-of-00002.safetensors": [],
    "sharded/model.safetensors.index.json": [],
    "snapshot_after.pth": ["unused"],
    "snapshot_before.pth": [],
    "tied_and_bloated.pth": ["bloat", "tied"],
    "train_cuda.pth": ["weights-only", "prefix", "unused", "cuda", "optimizer-heavy"],
    "weights.safetensors": [],
    "whole_model.pth": ["unknown-import", "weights-only", "list-modules"],
    "yolo_style.pt": ["unknown-import", "weights-only", "cuda"],
    "zoo.pkl": [],
}


def test_every_file_has_a_row_and_every_row_a_file() -> None:
    assert sorted(ROWS) == FILES


def test_the_samples_are_small() -> None:
    sizes = [(FOLDER / name).stat().st_size for name in FILES]

    assert sum(sizes) <= 2_000_000
    assert max(sizes) <= 100_000


@pytest.mark.parametrize("name", FILES)
def test_a_sample_says_what_its_row_promises(name: str) -> None:
    if ROWS[name] == 2:
        with pytest.raises(CkptError):
            formats.open(str(FOLDER / name))
        return
    with formats.open(str(FOLDER / name)) as checkpoint:
        report = inspect(Survey(checkpoint))

        assert [finding.code for finding in report.findings] == FINDINGS[name]
        assert inspect_lines(report)
        assert report.to_json()["totals"]["tensors"] == len(checkpoint.tensors)


@pytest.mark.slow
def test_the_script_makes_these_files(tmp_path: Path) -> None:
    """The same but for the last bits of what a step computes, which depend on the
    processor.
    """
    subprocess.run(
        [sys.executable, FOLDER / "make_samples.py", tmp_path],
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )

    for name in FILES:
        made = tmp_path / name
        assert made.stat().st_size == (FOLDER / name).stat().st_size, name
        assert document(made) == document(FOLDER / name), name


def document(path: Path) -> dict[str, Any]:
    """The report as JSON without the path, or the error."""
    try:
        with formats.open(str(path)) as checkpoint:
            found = inspect(Survey(checkpoint)).to_json()
    except CkptError as error:
        return {"error": error.problem}
    found["values"] = [
        row for row in found["values"] if row["name"] != "ckpt.model.tensors.gradient"
    ]
    for finding in found["findings"]:
        del finding["hint"]  # it names the path
    return {key: value for key, value in found.items() if key not in ("file", "load")}

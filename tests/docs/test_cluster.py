"""The scripts of docs/cluster.md: bash takes them, and with a loop in place of Slurm they give the report of one machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from process import ROOT, SAMPLES, TIMEOUT, ckpt, environment

SCRIPTS = re.findall(
    r"^```bash\n(.*?)^```$", (ROOT / "docs/cluster.md").read_text(), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_bash_takes_every_script(number: int) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=SCRIPTS[number], text=True, capture_output=True, timeout=TIMEOUT
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def bash(tmp_path: Path) -> dict[str, str]:
    """An environment with ckpt, and with stand-ins for what starts commands elsewhere."""
    tools = tmp_path / "bin"
    tools.mkdir()
    made = {
        "ckpt": f'#!/bin/sh\nexec {sys.executable} -m ckpt "$@"\n',
        "ssh": '#!/bin/sh\nshift\nexec sh -c "$*"\n',
        "sbatch": (
            "#!/bin/bash\nshift; script=$1; shift\n"
            "range=$(sed -n 's/^#SBATCH --array=0-//p' $script)\n"
            "export SLURM_ARRAY_TASK_COUNT=$((range + 1))\n"
            'for i in $(seq $range -1 0); do SLURM_ARRAY_TASK_ID=$i bash $script "$@"; done\n'
        ),
    }
    for name, text in made.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return environment(PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")


def test_the_array_job_gives_the_report_of_one_machine(bash: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "dcp", tmp_path / "step-1000")
    job, start = SCRIPTS[:2]
    assert job.startswith("#!/bin/bash\n#SBATCH")
    (tmp_path / "stats.sbatch").write_text(re.sub(r"--array=0-\d+", "--array=0-3", job))
    done = subprocess.run(["bash", "-c", start], env=bash, cwd=tmp_path, capture_output=True, timeout=TIMEOUT)
    whole = ckpt("stats", "step-1000", "--fail-on", "nan,inf", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (whole.code, whole.out, whole.err) and whole.out
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        f"{number}.json" for number in range(4)
    ]


def test_a_part_that_fails_is_named_when_all_are_merged(bash: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "dcp", tmp_path / "step-1000")
    job, start = SCRIPTS[:2]
    gone = job.replace("ckpt stats", "test $SLURM_ARRAY_TASK_ID = 2 && set -- nowhere\nckpt stats")
    (tmp_path / "stats.sbatch").write_text(re.sub(r"--array=0-\d+", "--array=0-3", gone))
    done = subprocess.run(["bash", "-c", start], env=bash, cwd=tmp_path, capture_output=True, timeout=TIMEOUT)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.splitlines() == [
        b"ckpt: nowhere: no such file",
        b"ckpt: parts/2.json: empty: the part was not finished",
    ]


def test_a_loop_over_machines(bash: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "dcp", tmp_path / "step-1000")
    done = subprocess.run(
        ["bash", "-c", SCRIPTS[2]], env=bash, cwd=tmp_path, capture_output=True, timeout=TIMEOUT
    )
    whole = ckpt("verify", "step-1000", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (whole.code, whole.out, whole.err) and whole.out


def test_every_field_of_a_part_is_described(tmp_path: Path) -> None:
    text = (ROOT / "docs/json.md").read_text()
    section = text[text.index("## `ckpt.part`, version 1") :].split("\n## ")[0]
    described = set(re.findall(r"\w+", section))
    shutil.copytree(SAMPLES, tmp_path / "s")
    for words in (
        ("stats", "train_cuda.pth", "--channels"),
        ("diff", "ddp_before.pth", "ddp_after.pth"),
        ("verify", "train_cuda.pth"),
        ("verify", "dcp"),
        ("sum", "legacy.pth"),
    ):
        document = json.loads(ckpt(*words, "--part", "0/1", cwd=tmp_path / "s").out)
        assert document["schema"] == {"name": "ckpt.part", "version": 1}
        names = set(document) | {name for row in document["inputs"] for name in row}
        names |= {name for row in document["results"] if isinstance(row, dict) for name in row}
        assert names - described == set(), words
        assert all(isinstance(row, (dict, str, bool)) or row is None for row in document["results"])

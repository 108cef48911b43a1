"""The scripts of docs/cluster.md: bash takes them, and with a loop in place of Slurm a
cluster gives the report of one machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import clusters
import pytest
from process import ROOT, SAMPLES, TIMEOUT, await_end, ckpt, environment

SCRIPTS = re.findall(
    r"^```bash\n(.*?)^```$",
    (ROOT / "docs/cluster.md").read_text(),
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_bash_takes_every_script(number: int) -> None:
    done = subprocess.run(
        ["bash", "-n"],
        input=SCRIPTS[number],
        text=True,
        capture_output=True,
        timeout=TIMEOUT,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def bash(tmp_path: Path) -> dict[str, str]:
    """An environment with ckpt as a program."""
    program = tmp_path / "bin" / "ckpt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ckpt "$@"\n')
    program.chmod(0o755)
    return environment(PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")


# --- a Dask cluster in one job --------------------------------------------------------

SRUN = """\
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
trap 'kill $(jobs -p)' TERM
for i in $(seq $SLURM_NTASKS); do "$@" & done
wait
wait
"""
"""Starts the tasks of a step. SIGTERM ends them, as that of Slurm does."""

SBATCH = """\
#!/bin/bash
shift
export SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_CPUS_PER_TASK=3
exec bash "$@"
"""


class Job(NamedTuple):
    """The job of the page, and how it is submitted."""

    folder: Path
    env: dict[str, str]

    def start(
        self, path: str, changed: Callable[[str], str] = str
    ) -> subprocess.Popen[bytes]:
        job, start = SCRIPTS[:2]
        assert "--idle-timeout" in job
        (self.folder / "dask.sbatch").write_text(changed(job))
        return subprocess.Popen(
            ["bash", "-c", start.replace("/shared/run/step-1000", path)],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def said(self, process: subprocess.Popen[bytes]) -> list[str]:
        """What ckpt said on stderr, once the job is done. Dask says more."""
        out, err = process.communicate(timeout=TIMEOUT)
        assert out == b""
        await_end(process.pid)  # the last is one of Python that cleans up after others
        return [line for line in err.decode().splitlines() if line.startswith("ckpt: ")]


@pytest.fixture
def job(bash: dict[str, str], tmp_path: Path) -> Job:
    made = {
        "srun": SRUN,
        "sbatch": SBATCH,
        "dask": f'#!/bin/sh\nexec {sys.executable} -m dask "$@"\n',
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    for name, text in made.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return Job(tmp_path, bash)


def left_over(job: Job) -> list[str]:
    return sorted(
        path.name
        for path in job.folder.iterdir()
        if path.name not in ("bin", "dask.sbatch")
    )


@pytest.mark.slow
def test_the_job_with_dask_has_the_answer_and_the_exit_code_of_one_machine(
    job: Job,
) -> None:
    path = str(SAMPLES / "llama_bf16.pth")
    process = job.start(path)
    said = job.said(process)
    whole = ckpt("stats", path, "--json")

    assert process.returncode == whole.code == 0
    assert (job.folder / "stats.json").read_bytes() == whole.out
    assert re.fullmatch(r"ckpt: [12] workers? at tcp://\S+", said[-1]), said
    assert left_over(job) == ["stats.json"]


@pytest.mark.slow
def test_the_job_with_dask_fails_where_the_command_does(job: Job) -> None:
    process = job.start(str(job.folder / "gone.pth"))
    said = job.said(process)

    assert process.returncode == 2
    assert said[-1] == f"ckpt: {job.folder}/gone.pth: no such file"


@pytest.mark.slow
def test_a_job_without_workers_ends(job: Job) -> None:
    (job.folder / "bin" / "srun").write_text("#!/bin/sh\nexit 1\n")
    process = job.start(
        str(SAMPLES / "llama_bf16.pth"), lambda text: text.replace("5m", "4s")
    )
    said = job.said(process)

    assert process.returncode == 2
    # A machine that is very busy may take longer than 4 seconds until ckpt has begun.
    assert said[-1].endswith(
        ("the connection to the scheduler is lost", "no scheduler listens there")
    ), said


@pytest.mark.slow
def test_a_job_whose_scheduler_does_not_start_ends(job: Job) -> None:
    process = job.start(
        str(SAMPLES / "llama_bf16.pth"),
        lambda text: text.replace("--port 0", "--port none"),
    )
    assert (job.said(process), process.returncode) == ([], 2)
    assert left_over(job) == []


@pytest.mark.slow
def test_a_job_that_is_cancelled_leaves_no_process(job: Job) -> None:
    """The batch script gets the signal, in the middle of a long task."""
    process = job.start(str(clusters.hole(job.folder)))
    assert process.stderr is not None
    while b" at tcp://" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    job.said(process)

    assert process.returncode == 143

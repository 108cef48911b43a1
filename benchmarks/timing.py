"""Times whole processes, interleaved, and takes medians. It never fails because of a
time.

A job is what a user waits for: from before the process is made until its output has
been read to the end and it is gone. The jobs of a round run one after the other, and
rounds repeat (A B C A B C ...), so that what slows the machine down for a while slows
all of them.
"""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass

SCREEN = (24, 80)  # rows, columns
_BLOCK = 1 << 16  # bytes: what a pipe holds
_TAIL = 2000  # bytes of output that a failure shows
_LONG, _FEW = 2.0, 3
"""A job whose warm-up took more seconds runs in so many rounds at most."""
_VERY_LONG = 8.0
"""A job whose warm-up took more seconds does not run again: the start of a process is
nothing beside that.
"""
# Settings that would make ckpt draw something else, or any Python do extra work, than
# it does for most users.
_UNSET = (
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPROFILEIMPORTTIME",
)


@dataclass(frozen=True, slots=True)
class Job:
    """A command line to time. Its stdout is a pipe, or with `terminal` all three
    streams are a pseudo-terminal.

    `prepare` runs before each run, and does not count.
    """

    name: str
    command: tuple[str, ...]
    terminal: bool = False
    prepare: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: wall time in seconds, the most memory that the process held, in bytes,
    and its CPU seconds.
    """

    seconds: float
    peak: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Result:
    """The medians of a job's runs: seconds, peak memory in MB (10⁶ bytes), and CPU
    seconds with those of its children.

    `rounds` is the number of runs.
    """

    name: str
    seconds: float
    peak_mb: float
    cpu: float
    rounds: int


def own_peak_mb() -> float:
    """Peak memory of this process in MB: Linux hands it on to a child, so no child is
    reported below it.

    This is why the modules here never import torch themselves, and import little before
    they have measured (setmax_mm_hiwater_rss in the kernel's fs/exec.c).
    """
    return _bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e6


def interleaved(
    jobs: Sequence[Job], runs: int, *, rotate: bool = False
) -> list[Result]:
    """The medians of `runs` rounds over the jobs, in their order, after a round that
    warms up and is not counted.

    Long jobs take part in the first rounds only, as `rounds_of` says; of a very long
    one the warm-up is the result. With `rotate` each round begins with another job:
    what one leaves to do (a deleted file, pages to write) falls on a different one each
    time.

    Raises SystemExit with the job's output when one fails: the time of a failure means
    nothing.
    """
    print("warm-up", file=sys.stderr)
    first = [run(job) for job in jobs]
    rounds = [rounds_of(sample.seconds, runs) for sample in first]
    samples = [
        [] if count else [sample] for sample, count in zip(first, rounds, strict=True)
    ]
    for number in range(1, max(rounds, default=0) + 1):
        print(f"round {number} of {runs}", file=sys.stderr)
        for place in range(len(jobs)):
            turn = (place + number * rotate) % len(jobs)
            if number <= rounds[turn]:
                samples[turn].append(run(jobs[turn]))
    return [
        Result(
            job.name,
            _median([one.seconds for one in taken]),
            _median([one.peak for one in taken]) / 1e6,
            _median([one.cpu for one in taken]),
            len(taken),
        )
        for job, taken in zip(jobs, samples, strict=True)
    ]


def rounds_of(seconds: float, runs: int) -> int:
    """The rounds that a job runs in after a warm-up of so many seconds: 0 where the
    warm-up is enough.
    """
    return 0 if seconds > _VERY_LONG else min(runs, _FEW) if seconds > _LONG else runs


def rule(runs: int) -> str:
    """The sentence that says how many rounds a median covers."""
    return (
        f"Medians of {runs} rounds after a warm-up; a job of more than {_LONG:g} s "
        f"runs in {min(runs, _FEW)}, and one of more than {_VERY_LONG:g} s once, "
        "without a warm-up."
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)  # the module statistics would cost memory, see own_peak_mb
    middle = len(ordered) // 2
    return (
        ordered[middle]
        if len(ordered) % 2
        else (ordered[middle - 1] + ordered[middle]) / 2
    )


def run(job: Job) -> Sample:
    """Runs a job once, and reads all that it prints. Raises SystemExit when it
    fails.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in _UNSET
    }
    environment["TERM"] = "xterm-256color"
    if job.prepare:
        code = subprocess.run(
            job.prepare, stdout=subprocess.DEVNULL, env=environment, check=False
        ).returncode
        if code:
            sys.exit(f"{job.name}: its preparation failed with exit code {code}")
    with tempfile.TemporaryFile() as errors:
        if job.terminal:
            reader, writer = pty.openpty()
            fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", *SCREEN, 0, 0))
            stdin, stderr = writer, writer
        else:
            reader, writer = os.pipe()
            stdin, stderr = subprocess.DEVNULL, errors.fileno()
        try:
            start = time.perf_counter()
            try:
                process = subprocess.Popen(
                    job.command,
                    stdin=stdin,
                    stdout=writer,
                    stderr=stderr,
                    env=environment,
                )
            finally:
                os.close(writer)
            output = _read_all(reader)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
        finally:
            os.close(reader)
        process.returncode = os.waitstatus_to_exitcode(
            status
        )  # or Popen waits for a process that is gone
        if process.returncode:
            errors.seek(0)
            said = (errors.read()[-_TAIL:] or output).decode(errors="replace")
            sys.exit(f"{job.name}: exit code {process.returncode}\n{said}")
    return Sample(seconds, _bytes(usage.ru_maxrss), usage.ru_utime + usage.ru_stime)


def _read_all(reader: int) -> bytes:
    """Reads to the end, and returns the last bytes only: what is kept here shows up in
    every later peak.
    """
    buffer = bytearray(_BLOCK)
    tail = b""
    while True:
        try:
            count = os.readv(reader, [buffer])
        except (
            OSError
        ):  # EIO is how Linux says that nobody has the terminal open any more
            count = 0
        if not count:
            return tail
        tail = (tail + buffer[:count])[-_TAIL:]


def _bytes(maxrss: int) -> int:
    return maxrss if sys.platform == "darwin" else maxrss * 1024

"""What the engine costs: tasks that do nothing, sent to two processes of this
machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.setting import Case, Setting
from benchmarks.timing import Job

TASKS = 1000
"""Each counts as 64 MiB, so each is sent alone."""

SEND = """\
import sys
from pathlib import Path

from ckpt.ext.cluster.connect import connected
from ckpt.bytes.executor import SPAN, Task
from ckpt.bytes.source import File


def read(source, offset, count):
    return float(source.size)


def main():
    source = File(sys.argv[2])
    tasks = [Task(read, (source, number, SPAN), SPAN) for number in range(int(sys.argv[1]))]
    with connected("local:2", [], print) as executor:
        executor.run(tasks)


if __name__ == "__main__":
    # A function of this script would be one of another module in a worker.
    sys.path.insert(0, str(Path(__file__).parent))
    from send_tasks import main

    main()
"""


def cases(setting: Setting) -> Iterator[list[Case]]:
    """The same run with tasks and without: the difference is what they cost."""
    script = setting.script("send_tasks", SEND)
    yield [
        Case(
            "cluster/tasks",
            Job(
                f"{TASKS:,} tasks, `--cluster local:2`",
                (*script, str(TASKS), script[1]),
            ),
            Job("no task: its start alone", (*script, "0", script[1])),
        )
    ]

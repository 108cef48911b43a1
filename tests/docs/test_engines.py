"""The adapter for Ray on docs/cluster.md does what every Executor does. Ray is a stub:
it is too large for a test.
"""

from __future__ import annotations

import re
import subprocess
import sys
import types
from typing import Any

import pytest
from process import ROOT, SAMPLES

from ckpt import formats
from ckpt.bytes.executor import SPAN, Task
from ckpt.commands.stats.stats import stats
from ckpt.evidence.survey import Survey

PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def block(mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


class Stub(types.ModuleType):
    """What the adapter uses of ray. A task runs when its result is asked for, in this
    process.
    """

    def __init__(self) -> None:
        super().__init__("ray")
        self.cancelled: list[Any] = []
        self.under_way = self.most = 0

    def remote(self, **options: Any) -> Any:
        assert options == {"max_retries": 2}

        def decorate(function: Any) -> Any:
            class Remote:
                @staticmethod
                def remote(*arguments: Any) -> Any:
                    self.under_way += 1
                    self.most = max(self.most, self.under_way)
                    return lambda: function(*arguments)

            return Remote

        return decorate

    def get(self, reference: Any) -> Any:
        self.under_way -= 1
        return reference()

    def cancel(self, reference: Any) -> None:
        self.cancelled.append(reference)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    monkeypatch.setitem(sys.modules, "ray", stub)
    return stub


def adapter() -> Any:
    names: dict[str, Any] = {}
    exec(compile(block("ray"), "docs/cluster.md", "exec"), names)
    return names["Ray"]


def test_the_adapter_on_the_page_runs_tasks_in_order(ray: Stub) -> None:
    seen: list[int] = []
    tasks = [Task(abs, (-number,), SPAN) for number in range(20)]

    assert adapter()(under_way=4).run(tasks, seen.append) == list(range(20))
    assert seen == [SPAN] * 20 and ray.most == 4 and ray.cancelled == []
    assert adapter()().run([]) == []


def test_it_cancels_what_is_under_way_after_an_error(ray: Stub) -> None:
    tasks: list[Task[Any]] = [Task(int, ("x",), SPAN), *([Task(abs, (-1,), SPAN)] * 9)]
    with pytest.raises(ValueError, match="'x'"):
        adapter()(under_way=4).run(tasks)
    assert len(ray.cancelled) == 3


def test_the_use_on_the_page_gives_the_numbers_of_threads(
    ray: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(SAMPLES / "llama_bf16.pth")
    code = block("ray use").replace("/shared/run/step-1000", path)
    exec(compile(code, "docs/cluster.md", "exec"), {"Ray": adapter()})

    with formats.open(path) as checkpoint:
        assert capsys.readouterr().out == f"{stats(Survey(checkpoint)).to_json()}\n"


def test_the_scripts_are_scripts() -> None:
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"sh", "python"}
    for kind, text in blocks:
        if kind == "python":
            compile(text, "docs/cluster.md", "exec")
        else:
            done = subprocess.run(
                ["bash", "-n"], input=text.encode(), capture_output=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, b""), text

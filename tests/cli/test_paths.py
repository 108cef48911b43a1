"""Several PATHs: an error stops nothing, and the worst exit code wins."""

from __future__ import annotations

import pytest

from ckpt.cli.paths import each, worst
from ckpt.errors import UnreadableError, UsageError


def test_the_worst_code_wins() -> None:
    assert worst([]) == 0
    assert worst([0, 1, 0]) == 1
    assert worst([1, 2, 0]) == 2


def test_each_goes_on_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def one(path: str) -> int:
        seen.append(path)
        if path == "b":
            raise UnreadableError("broken")
        return int(path == "c")

    assert each(["a", "b", "c"], one) == 2
    assert seen == ["a", "b", "c"]
    assert capsys.readouterr().err == "ckpt: b: broken\n"
    assert each(["a", "c"], one) == 1
    assert each(["a"], one) == 0


def test_only_errors_with_a_name_are_caught() -> None:
    def one(path: str) -> int:
        raise ValueError(path)

    with pytest.raises(ValueError, match="a"):
        each(["a"], one)
    assert issubclass(UsageError, Exception)

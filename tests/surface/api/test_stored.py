"""The sums of one file among those of several."""

from __future__ import annotations

import pytest

from ckpt.commands.sum.sums import Sum
from ckpt.model.errors import UsageError
from ckpt.surface.api.stored import sums_of

ROWS = [
    Sum("w", "1" * 64, "run/a.pth"),
    Sum("w", "2" * 64, "run/b.pth"),
    Sum("v", "3" * 64),
]


@pytest.mark.parametrize(
    "path", ["run/a.pth", "./run/a.pth", "run//a.pth", "run/x/../a.pth"]
)
def test_the_sums_of_a_file_are_found_however_its_path_is_typed(path: str) -> None:
    """Those without a file are sums of any."""
    assert sums_of(path, ROWS) == [ROWS[0], ROWS[2]]
    assert sums_of("run/a.pth", [ROWS[0]._replace(file=path)]) == [
        ROWS[0]._replace(file=path)
    ]


def test_a_file_without_sums_is_refused() -> None:
    with pytest.raises(UsageError, match="sums= has no sums of this file"):
        sums_of("c.pth", ROWS[:2])


def test_a_copy_elsewhere_has_the_sums_of_the_path_that_ends_alike() -> None:
    assert (
        sums_of("/copy/run/a.pth", ROWS[:2]) == sums_of("a.pth", ROWS[:2]) == [ROWS[0]]
    )
    with pytest.raises(UsageError, match="sums= has no sums of this file"):
        sums_of("a.pth", [ROWS[0], ROWS[1]._replace(file="other/a.pth")])

"""The plan of a command: what it would change, and the reasons for which it would be
refused.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
import rewriting
import torch

from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.errors import LossError, UnsupportedError
from ckpt.model.limits import Limits
from ckpt.surface.api import plans
from ckpt.surface.api.plans import changed_by

LIMITS = Limits()


@pytest.fixture
def survey(tmp_path: Path) -> Iterator[Survey]:
    """A model with the prefix of DDP, beside an object that weights_only refuses."""
    state = {
        "model": {"module.w": torch.ones(2), "module.b": torch.ones(1)},
        "args": Namespace(lr=0.1),
    }
    with formats.open(str(rewriting.saved(state, tmp_path / "a.pth"))) as checkpoint:
        yield Survey(checkpoint)


def test_a_plan_names_the_sections_that_it_changes(survey: Survey) -> None:
    assert changed_by(survey, ("strip",), "o.pth", LIMITS) == {"model"}
    assert changed_by(survey, ("strip", "--section", "model"), "o.pth", LIMITS) == {
        "model"
    }


def test_a_plan_that_changes_nothing_is_refused(survey: Survey) -> None:
    """But for slim, whose result has less in it."""
    with pytest.raises(UnsupportedError):
        changed_by(survey, ("rehome",), "o.pth", LIMITS)
    assert isinstance(changed_by(survey, ("slim",), "o.pth", LIMITS), set)


@pytest.mark.parametrize("words", [("slim",), ("convert", "--plain")])
def test_a_result_that_weights_only_refuses_is_no_plain_one(
    words: tuple[str, ...], survey: Survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "o.pth"
    monkeypatch.setattr(plans, "_refusal_reason", lambda checkpoint, limits: "my.Thing")
    with pytest.raises(LossError, match=r"weights_only refuses my\.Thing"):
        changed_by(survey, words, out, LIMITS)
    assert changed_by(survey, ("strip",), out, LIMITS) == {"model"}

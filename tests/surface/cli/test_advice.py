"""The command that helps: for all sections or for one of them, and the reason where
none does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import rewriting
import torch
from saved import Config

from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.errors import LossError, UnsupportedError
from ckpt.model.limits import Limits
from ckpt.surface.api.advice import Ways


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model"}, ["strip"]),
        ({"model", "teacher"}, ["strip"]),
        ({"teacher"}, ["strip", "--section", "model"]),
        (None, ["strip", "--section", "model"]),
    ],
)
def test_one_section_is_named_where_all_leave_it_as_it_is(
    changed: set[str] | None,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`changed` are the sections that stripping all would change, None where that is
    refused.
    """

    def planned(
        survey: Survey, asked: tuple[str, ...], out: str, limits: Limits
    ) -> set[str]:
        if "--section" in asked:
            return {asked[-1]}
        if changed is None:
            raise UnsupportedError("nothing to strip")
        return changed

    monkeypatch.setattr("ckpt.surface.api.plans.changed_by", planned)
    monkeypatch.setattr(
        "ckpt.surface.api.advice._is_plain", lambda survey, words: False
    )  # nothing is proved
    weights = {"module.w": torch.ones(2), "module.b": torch.ones(1)}
    state = {"model": weights, "teacher": dict(weights), "config": Config()}
    path = rewriting.saved(state, tmp_path / "a.pth")
    with formats.open(str(path)) as checkpoint:
        way = Ways(Survey(checkpoint)).way(("stripped", "model"))
    first, *rest = words
    assert way.command == " ".join(
        ["ckpt", first, str(path), *rest, "-o", str(tmp_path / "a.stripped.pth")]
    )


def test_without_a_command_the_first_loss_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(
        survey: Survey, asked: tuple[str, ...], out: str, limits: Limits
    ) -> set[str]:
        raise (
            LossError(f"no {asked[0]}")
            if asked[0] != "slim"
            else UnsupportedError("no model")
        )

    monkeypatch.setattr("ckpt.surface.api.plans.changed_by", refused)
    monkeypatch.setattr(
        "ckpt.surface.api.advice._is_plain", lambda survey, words: False
    )
    path = rewriting.saved({"w": torch.ones(2), "config": Config()}, tmp_path / "a.pth")
    with formats.open(str(path)) as checkpoint:
        way = Ways(Survey(checkpoint)).way(("weights",))
    assert (way.command, way.reason) == (None, "no convert")

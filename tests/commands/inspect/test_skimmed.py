"""What inspect and get say of a state dict that is read in columns is what they say of
one that the machine reads.
"""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import torch
from paths import many
from states import blocks, states, usual

from ckpt import formats
from ckpt.commands.get.get import get
from ckpt.commands.get.text import tensor_lines
from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.evidence.survey import Survey
from ckpt.formats.common import pickled
from ckpt.model.checkpoint import Checkpoint, Entries, keys_at, looks_of, names_of
from ckpt.model.columns import Column, looks, parts
from ckpt.model.limits import Limits
from ckpt.model.names import Globs

pytestmark = oracle.QUIET
NEVER = 1 << 40


def opened(path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> Checkpoint:
    monkeypatch.setattr(pickled, "LEAST_BYTES", least)
    with formats.open(str(path), Limits()) as checkpoint:
        return checkpoint


def text(report: Inspection) -> list[str]:
    shown = [
        inspect_lines(report, width=100, everything=whole) for whole in (False, True)
    ]
    return ["".join(piece for piece, _ in line) for lines in shown for line in lines]


def said(path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> dict[str, object]:
    def report(select: Globs | None = None, section: str | None = None) -> Inspection:
        return inspect(Survey(opened(path, monkeypatch, least)), select, section)

    whole = report()
    names = names_of(whole.checkpoint.tensors)
    found: dict[str, object] = {
        "text": text(whole),
        "json": report().to_json(),
        "selected": text(report(Globs(["*1*"], ["*9*"])))
        if any("1" in name and "9" not in name for name in names)
        else None,
        "sections": [text(report(section=part.name)) for part in whole.sections],
        "roles": report().survey.roles,
    }
    for name in sorted(set(names))[:: many(230, 23)]:
        survey = Survey(opened(path, monkeypatch, least))
        (one,) = get(survey, [name], Limits())
        assert one.row is not None and one.role is not None
        assert one.role == survey.roles[one.row.position]
        found[name] = (one.to_json(), tensor_lines(one.row, one.role, None))
    return json.loads(json.dumps(found, default=list))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in states()
        if kind not in ("list", "wide", "two thousand", "negative")
    ],
)
def test_columns_say_what_the_machine_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(states()[kind], tmp_path / "state.pth")
    path = tmp_path / "state.pth"
    assert said(path, monkeypatch, 0) == said(path, monkeypatch, NEVER)


def shared(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    report = inspect(Survey(opened(path, monkeypatch, 0)))
    return [finding.code for finding in report.findings]


@pytest.mark.usefixtures("as_shipped")
def test_a_tensor_outside_of_a_column_is_seen_to_share_memory_with_one_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = blocks(900, usual)
    tied = {**state, "head.weight": state["blocks.40.attn.weight"].detach()}
    for number, (thing, codes) in enumerate([(state, []), (tied, ["tied"])]):
        path = tmp_path / f"{number}.pth"
        torch.save(thing, path)
        tensors = opened(path, monkeypatch, 0).tensors
        assert (
            sum(len(part) for part in parts(tensors) if isinstance(part, Entries))
            > 3_000
        )
        assert shared(path, monkeypatch) == codes


def test_a_column_of_which_tensors_see_a_part_of_their_storage_is_bloated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(
        {f"t.{n}": torch.zeros(600)[:3] for n in range(2_500)}, tmp_path / "a.pth"
    )
    assert shared(tmp_path / "a.pth", monkeypatch) == ["bloat"]


@pytest.mark.usefixtures("as_shipped")
def test_looks_have_what_the_tensors_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"model": blocks(600, usual)}, tmp_path / "a.pth")
    checkpoint = opened(tmp_path / "a.pth", monkeypatch, 0)
    alike = looks_of(checkpoint.tensors)
    names, keys = names_of(checkpoint.tensors), keys_at(checkpoint.tensors, 2)
    storages = looks(checkpoint.storages)
    assert not any(
        part.made for part in parts(checkpoint.tensors) if isinstance(part, Column)
    ), "asks for no row"
    for entry, look, name, key in zip(
        checkpoint.tensors, alike, names, keys, strict=True
    ):
        assert entry.tensor[1:] == look[1:]
        assert entry.tensor.storage[1:4] == look.storage[1:4]
        assert (entry.name, entry.path) == (name, ("model", key))
    for storage, like in zip(checkpoint.storages, storages, strict=True):
        assert storage[1:4] == like[1:4]
    assert keys_at(checkpoint.tensors, 1) == [] and len(set(map(id, alike))) < 1_100


@pytest.mark.usefixtures("as_shipped")
def test_text_of_a_large_state_makes_no_tensor_of_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(blocks(600, usual), tmp_path / "a.pth")
    survey = Survey(opened(tmp_path / "a.pth", monkeypatch, 0))
    inspect_lines(inspect(survey), width=100, height=30)
    get(survey, ["blocks.300.attn.bias"], Limits())
    columns = [part for part in parts(survey.tensors) if isinstance(part, Entries)]
    assert sum(map(len, columns)) > 1_900
    assert sum(len(part.made) + len(part.tensors.made) for part in columns) <= 2


def test_layers_that_are_alike_inside_differ_by_what_is_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of a loss are constants, those of a layer parameters."""
    state = {
        f"{part}.{n}.weight": torch.zeros(2)
        for part in ("layers", "criterion")
        for n in range(40)
    }
    torch.save(state, tmp_path / "a.pth")
    roles = Survey(opened(tmp_path / "a.pth", monkeypatch, 0)).roles
    assert [role.role for role in roles] == ["parameter"] * 40 + ["unknown"] * 40

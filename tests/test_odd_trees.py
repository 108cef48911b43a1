"""Trees that hold themselves, through every command that writes: all tensors are in the
result or listed, or one line refuses.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import oracle
import pytest
import strategies
import torch
from hypothesis import assume, event, given, settings
from inside import inside
from paths import many
from safetensors.torch import load_file

pytestmark = [*oracle.QUIET, pytest.mark.usefixtures("fresh_torch")]


class Way(NamedTuple):
    """A command that writes, and whether its result loads with weights_only."""

    words: str
    out: str = "o.pth"
    is_plain: bool = False


WAYS = {
    "strip": Way("strip"),
    "rename": Way("rename --sub s/layers/blocks/"),
    "rehome": Way("rehome --to cuda:1"),
    "slim": Way("slim", is_plain=True),
    "slim, dropping": Way("slim --drop-other", is_plain=True),
    "to zip": Way("convert --format torch-zip"),
    "to legacy": Way("convert --format torch-legacy"),
    "plain": Way("convert --plain", is_plain=True),
    "plain, dropping": Way("convert --plain --drop-other", is_plain=True),
    "to safetensors": Way("convert", "o.safetensors"),
    "to safetensors, dropping": Way("convert --drop-other", "o.safetensors"),
    "to dcp": Way("convert --drop-other", "o.dcp"),
    "bfloat16": Way("convert --dtype bfloat16"),
}


def values_in(thing: Any) -> set[float]:
    """The values of all tensors that Python code finds in what was loaded, in
    attributes too.
    """
    found: set[float] = set()
    seen: dict[int, Any] = {}
    todo = [thing]
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, torch.Tensor):
            found.add(float(part.detach().float().flatten()[0]))
        if isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            todo += part
        todo += getattr(part, "__dict__", {}).values()
    return found


def values_of(path: str, cwd: Path) -> dict[str, float]:
    """The value of every tensor that `inspect` lists, by its name."""
    import ckpt

    with ckpt.open(cwd / path) as opened:
        found = {name: float(opened[name].torch().flatten()[0]) for name in opened}
    document = json.loads(inside("inspect", path, "--json", cwd=cwd).out)
    assert [row["name"] for row in document["tensors"]] == list(found)
    return found


def is_listed(name: str, rows: Collection[str]) -> bool:
    """Whether a report lists a tensor, or something that it lies in."""
    return any(
        row in (name, "(the root)") or name.startswith(f"{row}.") for row in rows
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=many(4, 400))
@given(tree=strategies.odd_trees())
def test_what_is_written_loads_and_adds_up(
    way: str, tree: strategies.State, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    try:
        torch.save(tree.value, folder / "a.pth")
    except RecursionError:  # torch's own pickler does not come to an end
        assume(False)
    words, out, is_plain = WAYS[way]
    names = values_of("a.pth", folder)
    restored = values_in(torch.load(folder / "a.pth", weights_only=False))
    # Of two tensors that are attributes of each other the file names both, and torch
    # restores one.
    assert restored <= set(names.values())

    done = inside(*shlex.split(words), "a.pth", "-o", out, "--json", cwd=folder)

    event(f"exit {done.code}")
    assert b"bug in ckpt" not in done.err, done.err
    if done.code == 2:
        assert not (folder / out).exists()
        assert (
            len([line for line in done.complaints if line.startswith("ckpt: ")]) == 1
        ), done.err
        assert b"Traceback" not in done.err
        return
    assert done.code == 0, done
    if not (folder / out).exists():  # nothing was to be changed
        return
    if out.endswith(".safetensors"):
        kept = values_in(load_file(folder / out))
    elif out.endswith(".dcp"):
        kept = set(values_of(out, folder).values())
    else:
        kept = values_in(
            torch.load(folder / out, weights_only=is_plain, map_location="cpu")
        )
        assert kept <= set(values_of(out, folder).values())
    listed = {row["name"] for row in json.loads(done.out)["left_out"]}
    lost = (
        restored
        - kept
        - {value for name, value in names.items() if is_listed(name, listed)}
    )
    assert not lost, (lost, names, listed)
    assert kept <= set(names.values())

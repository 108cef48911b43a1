"""Splitting a checkpoint into shards: how full each gets, what stays together, what the
index says.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import safetensors.torch
import torch

from ckpt import formats
from ckpt.bytes import target
from ckpt.formats.save import save_shards
from ckpt.formats.sharded.writer import index_draft, split_checkpoint
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.tree.find import metadata_of

pytestmark = oracle.QUIET


def parts_of(
    state: Any, folder: Path, size: int
) -> tuple[list[list[str]], dict[str, Any]]:
    """(the names in each shard, the index)."""
    with formats.open(str(rewriting.saved(state, folder / "a.pt"))) as opened:
        report = rewriting.convert(opened, "safetensors")
        parts = split_checkpoint(report.result, size)
        draft = index_draft(parts, [str(number) for number in range(len(parts))])
        sink = io.BytesIO()
        draft.write(sink)  # type: ignore[arg-type]
        assert draft.size == len(sink.getvalue())
    return [[entry.name for entry in part.tensors] for part in parts], json.loads(
        sink.getvalue()
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (40, [["a", "b"], ["c"], ["d"]]),
        (39, [["a"], ["b"], ["c"], ["d"]]),
        (1, [["a"], ["b"], ["c"], ["d"]]),
        (100, [["a", "b"], ["c"], ["d"]]),
        (119, [["a", "b"], ["c"], ["d"]]),
        (120, [["a", "b", "c"], ["d"]]),
        (200, [["a", "b", "c", "d"]]),
    ],
)
def test_a_shard_is_filled_up_to_its_size(
    size: int, expected: list[list[str]], tmp_path: Path
) -> None:
    state = {
        name: torch.ones(count)
        for name, count in (("a", 5), ("b", 5), ("c", 20), ("d", 20))
    }
    names, index = parts_of(state, tmp_path, size)
    assert names == expected
    assert index["metadata"]["total_size"] == 200
    assert index["weight_map"] == {
        name: str(n) for n, part in enumerate(expected) for name in part
    }


def test_a_large_tensor_in_front_leaves_no_empty_shard(tmp_path: Path) -> None:
    names, _ = parts_of({"a": torch.ones(50), "b": torch.ones(5)}, tmp_path, 40)
    assert names == [["a"], ["b"]]


def test_names_of_one_tensor_stay_together_and_its_bytes_count_once(
    tmp_path: Path,
) -> None:
    tied = torch.ones(10)
    names, index = parts_of(
        {
            "x.weight": torch.ones(10),
            "a.weight": tied,
            "b.weight": torch.zeros(10),
            "c.weight": tied,
        },
        tmp_path,
        40,
    )
    assert names == [["x.weight"], ["a.weight", "c.weight"], ["b.weight"]]
    assert index["metadata"]["total_size"] == 120
    assert "c.weight" not in index["weight_map"]


def test_each_shard_has_the_texts_of_the_file(tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(4), "b.weight": torch.ones(4)}
    safetensors.torch.save_file(
        state, tmp_path / "a.safetensors", metadata={"note": "mine"}
    )
    with formats.open(str(tmp_path / "a.safetensors")) as opened:
        parts = split_checkpoint(rewriting.convert(opened, "safetensors").result, 16)
    assert [metadata_of(part.root) for part in parts] == [{"note": "mine"}] * 2


def within(folder: Path) -> Callable[[str], target.Target]:
    return lambda name: target.target(str(folder / name), force=False)


def test_a_source_that_changes_while_shards_are_written_leaves_none_of_them(
    tmp_path: Path,
) -> None:
    source = rewriting.saved(
        {name: torch.ones(50) for name in "abc"}, tmp_path / "a.pt"
    )

    def touch(path: str, part: Checkpoint) -> None:
        os.utime(source, ns=(1, 1))

    with formats.open(str(source)) as opened:
        result = rewriting.convert(opened, "safetensors").result
        with pytest.raises(CkptError, match="changed while it was read"):
            save_shards(
                result,
                within(tmp_path),
                "model",
                200,
                Limits(),
                checks={"touch": touch},
            )

    assert os.listdir(tmp_path) == ["a.pt"]


def test_the_index_appears_after_all_of_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = rewriting.saved(
        {name: torch.ones(50) for name in "abc"}, tmp_path / "a.pt"
    )
    order: list[str] = []
    link = os.link

    def noted(one: Any, other: Any, **options: Any) -> None:
        order.append(os.path.basename(other))
        link(one, other, **options)

    monkeypatch.setattr(os, "link", noted)
    with formats.open(str(source)) as opened:
        result = rewriting.convert(opened, "safetensors").result
        save_shards(result, within(tmp_path), "model", 200, Limits())

    assert len(order) == 4 and order[-1] == "model.safetensors.index.json"

"""The default limits leave room for honest files, in proportion to their tensors."""

from __future__ import annotations

import json
import re
import tracemalloc
import zipfile
from pathlib import Path

import ggufs
import opcodes as op
import pytest
import rewriting
import torch
from inside import inside
from safetensors.torch import save_file

from ckpt import formats
from ckpt.formats.listing import open_listing
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import (
    TENSOR_BYTES,
    TENSOR_MEMORY,
    VALUE_MEMORY,
    Budget,
    Limits,
    parse_json,
)

PART = 100
TENSORS = 400_000 // PART


def a_part() -> Limits:
    """The default limits of a file that holds a part of 400,000 tensors."""
    limits = Limits()
    names = (
        "memory",
        "inflated_bytes",
        "operations",
        "entries",
        "directory_bytes",
        "header_bytes",
        "index_bytes",
    )
    return limits._replace(**{name: getattr(limits, name) // PART for name in names})


def name(index: int) -> str:
    return f"model.layers.{index // 4}.attention.projection.{index % 4}.weight"


@pytest.fixture(params=["zip", "deflated", "legacy", "adam", "safetensors", "index"])
def honest(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """A file of TENSORS tensors or more, and their number."""
    kind = request.param
    path = tmp_path / "file.pth"
    tensors = {name(index): torch.zeros(2) for index in range(TENSORS)}
    if kind in ("safetensors", "index"):
        header = {
            key: {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]}
            for at, key in enumerate(tensors)
        }
        path = tmp_path / "model.safetensors"
        path.write_bytes(op.safetensors_file(json.dumps(header), bytes(TENSORS)))
        if kind == "index":
            path = tmp_path / "model.safetensors.index.json"
            path.write_text(
                json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")})
            )
        return path, TENSORS
    if kind == "adam":
        states = {
            index: {
                "step": torch.tensor(1.0),
                "exp_avg": tensor,
                "exp_avg_sq": tensor.clone(),
            }
            for index, tensor in enumerate(list(tensors.values())[: TENSORS // 4])
        }
        torch.save({"state": states, "param_groups": [{"params": list(states)}]}, path)
        return path, 3 * len(states)
    torch.save(tensors, path, _use_new_zipfile_serialization=kind != "legacy")
    if kind == "deflated":
        packed = tmp_path / "packed.pth"
        with (
            zipfile.ZipFile(path) as old,
            zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for record in old.namelist():
                new.writestr(record, old.read(record))
        path = packed
    return path, TENSORS


@pytest.mark.slow
def test_400_000_tensors_open_at_the_defaults(honest: tuple[Path, int]) -> None:
    path, tensors = honest
    with formats.open(str(path), a_part()) as checkpoint:
        assert len(checkpoint.tensors) == tensors


def test_the_shards_of_a_set_share_one_budget(tmp_path: Path) -> None:
    program = b"\x80\2(" + b"]" * 10_000 + b"l."
    names = [f"part-{index}.bin" for index in range(4)]
    for shard in names:
        (tmp_path / shard).write_bytes(op.torch_zip(program, {}))
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(
        json.dumps(
            {"weight_map": {f"w{number}": shard for number, shard in enumerate(names)}}
        )
    )
    limits = Limits(memory=3_000_000)

    formats.open(str(tmp_path / names[0]), limits).close()
    with pytest.raises(LimitError, match="memory"):
        formats.open(str(index), limits)


def test_tensors_are_believed_as_far_as_their_bytes_go() -> None:
    budget = Budget(Limits(memory=0), stored=10 * TENSOR_BYTES)
    budget.claim(1_000)
    budget.charge(10 * TENSOR_MEMORY)
    with pytest.raises(LimitError, match=r"Limits\(memory=N"):
        budget.charge(1)


def test_values_are_believed_as_far_as_their_bytes_go() -> None:
    budget = Budget(Limits(memory=0), stored=1_000)
    budget.memory -= 1_000 * VALUE_MEMORY
    budget.charge_rows("the tree")
    budget.memory -= 1
    with pytest.raises(LimitError, match=r"Limits\(memory=N"):
        budget.charge_rows("the tree")


def test_rows_allow_no_more_objects() -> None:
    with pytest.raises(LimitError, match=r"Limits\(memory=N"):
        Budget(Limits(memory=0), stored=1_000).charge(1)


JOBS_WITH_VALUES = (
    ("inspect", "a.pth"),
    ("diff", "a.pth", "b.pth"),
    ("convert", "a.pth", "--plain", "-o", "out.pth"),
    ("rehome", "a.pth", "--to", "cpu", "-o", "out.pth"),
    ("strip", "a.pth", "--prefix", "module", "-o", "out.pth"),
    ("slim", "a.pth", "-o", "out.pth"),
    ("warmstart", "a.pth", "--into", "b.pth", "-o", "out.pth"),
)


@pytest.mark.parametrize("words", JOBS_WITH_VALUES, ids=lambda words: words[0])
def test_a_long_history_is_read_by_every_command(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """A history of steps takes 4 MB in a file for each 100,000 of them, and 200 MB of
    rows. Here both are smaller by the same factor.
    """
    for name, rate in (("a.pth", 0.5), ("b.pth", 0.25)):
        history = [{"loss": step * rate, "accuracy": 0.3} for step in range(500)]
        weights = torch.nn.Linear(3, 3).state_dict(prefix="module.")
        torch.save({"model": weights, "history": history}, tmp_path / name)

    done = inside(*words, "--limit", "memory=650kB", cwd=tmp_path)

    assert done.code == int(words[0] == "diff"), done
    assert not any("too much memory" in line for line in done.complaints)


def test_a_nested_stream_counts_each_time_that_it_is_met(tmp_path: Path) -> None:
    stream = op.legacy(op.pickled(b"(" + b"]" * 100 + b"l"), storages=())
    load = b"ctorch.storage\n_load_from_bytes\n"
    limits = Limits(inflated_bytes=0)
    for times, fits in ((10, True), (2_000, False)):
        path = tmp_path / f"{times}.pt"
        program = (
            load
            + b"q\0"
            + b"0"
            + op.binary(stream)
            + b"q\1"
            + b"0]("
            + b"h\0h\1\x85R" * times
            + b"e."
        )
        path.write_bytes(op.torch_zip(b"\x80\2" + program, {}))
        if fits:
            formats.open(str(path), limits).close()
        else:
            with pytest.raises(
                LimitError, match="the pickles of the file inflate too far"
            ):
                formats.open(str(path), limits)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": "b', "unterminated string starting at character 6"),
        ('{"a"', "expecting ':' delimiter at character 4"),
    ],
)
def test_what_is_no_json_says_where(text: str, problem: str) -> None:
    with pytest.raises(UnreadableError, match=re.escape(problem)):
        parse_json(text.encode(), "the index", Budget(Limits()))


def nested(key: str, depth: int, inner: bytes) -> bytes:
    """A file with dicts in each other under one long key, which it holds once."""
    program = op.text(key) + op.put(250) + op.pop()
    for _ in range(depth):
        inner = op.empty_dict() + op.get(250) + inner + op.setitem()
    return op.torch_zip(op.pickled(program + inner))


LEAVES = op.mapping([(op.text(f"w{number}"), op.tensor()) for number in range(200)])


@pytest.mark.parametrize(
    "inner",
    [LEAVES, op.ordered_dict() + LEAVES + op.build()],
    ids=["items", "attributes"],
)
def test_long_names_are_counted_before_they_are_made(
    inner: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(nested("k" * 10_000, 100, inner))

    tracemalloc.start()
    try:
        with pytest.raises(LimitError, match="needs too much memory"):
            formats.open(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 150_000_000


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("kind", ["zip", "safetensors", "gguf", "listing"])
def test_a_name_of_many_steps_is_refused(kind: str, count: int, tmp_path: Path) -> None:
    steps = "x.module." * 5_000
    names = [f"{steps}{number}" for number in range(count)]
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        rows = [(op.text(name), op.tensor()) for name in names]
        path.write_bytes(op.torch_zip(op.pickled(op.mapping(rows))))
    elif kind == "safetensors":
        save_file({name: torch.zeros(1) for name in names}, path)
    elif kind == "gguf":
        tensors = [ggufs.Tensor(name, (1,), 0, bytes(4)) for name in names]
        path.write_bytes(ggufs.gguf((), tensors))
    else:
        rewriting.saved({"w": torch.zeros(1)}, tmp_path / "w.pth")
        text = inside("inspect", "w.pth", "--json", cwd=tmp_path).out
        path.write_bytes(text.replace(b'"w"', json.dumps(names[0]).encode()))

    with pytest.raises(LimitError, match="needs too much memory"):
        if kind == "listing":
            open_listing(str(path), Limits())
        else:
            formats.open(str(path))

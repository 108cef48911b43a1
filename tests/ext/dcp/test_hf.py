"""Distributed checkpoints in safetensors: each tensor is the one that torch gathers,
and what is missing is said.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from folders import in_cache
from inside import inside
from safetensors.torch import load_file
from torch.distributed.checkpoint import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)

import ckpt
from ckpt import formats

pytestmark = oracle.QUIET

FIRST = "shard-00001-model-00001-of-00002.safetensors"
LAST = "shard-00004-model-00002-of-00002.safetensors"


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return (one.dtype, one.shape) == (two.dtype, two.shape) and torch.equal(one, two)


def full_of(ranks: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(ranks / "hf.full.pt", weights_only=True)
    return found


@pytest.fixture
def copy(ranks: Path, tmp_path: Path) -> Path:
    shutil.copytree(ranks / "hf", tmp_path / "c")
    return tmp_path / "c"


def header(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def store(path: Path, found: dict[str, Any], data: bytes) -> None:
    text = json.dumps(found).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def with_info(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the JSON of DCP_SHARDING_INFO: `edit` changes it, or gives another."""
    found, data = header(path)
    info = json.loads(found["__metadata__"]["DCP_SHARDING_INFO"])
    other = edit(info)
    found["__metadata__"]["DCP_SHARDING_INFO"] = json.dumps(
        info if other is None else other
    )
    store(path, found, data)


@pytest.mark.parametrize("blocks", ["usual", "small"])
def test_every_tensor_is_that_of_torch(
    blocks: str, ranks: Path, request: pytest.FixtureRequest
) -> None:
    if blocks == "small":
        request.getfixturevalue("small_blocks")
    full = full_of(ranks)
    with ckpt.open(ranks / "hf") as checkpoint:
        assert set(checkpoint) == set(full)
        assert checkpoint.checkpoint.format == "dcp-hf"
        for name, tensor in full.items():
            assert same(checkpoint[name].torch(), tensor), name
        assert (
            float(checkpoint["number"].numpy()) == 5.0
        )  # torch's consolidation makes it 0.0
        # What one file says of its own parts would be wrong of the whole.
        assert {value.path for value in checkpoint.checkpoint.values} == {
            ("__metadata__", "format")
        }
        ids = [storage.id for storage in checkpoint.checkpoint.storages]
        assert len(set(ids)) == len(ids) == len(full)


def test_what_loads_it_is_printed(ranks: Path) -> None:
    report = ckpt.inspect(ranks / "hf")
    expression = report.to_json()["load"]
    state = {name: torch.zeros_like(tensor) for name, tensor in full_of(ranks).items()}
    eval(str(expression), {"torch": torch, "state": state})
    assert all(
        same(state[name], tensor)
        for name, tensor in full_of(ranks).items()
        if tensor.numel()
    )
    assert {row.code: row.level for row in report.findings} == {
        "unverified-size": "info"
    }


def test_no_tensor_data_is_read(ranks: Path) -> None:
    with formats.open(str(ranks / "hf")) as checkpoint:
        for source in checkpoint.sources:
            found, _ = header(Path(source.name))
            assert (
                getattr(source, "bytes_read", 0) <= 4096 + len(json.dumps(found)) + 200
            )


@pytest.mark.parametrize("out", ["o.safetensors", "o.pth", "shards"])
def test_convert_writes_what_torch_gathers(
    out: str, ranks: Path, tmp_path: Path
) -> None:
    options = (
        ["-o", "o.safetensors", "--shard-size", "1K"]
        if out == "shards"
        else ["-o", out]
    )
    assert inside("convert", str(ranks / "hf"), *options, cwd=tmp_path).code == 0
    names = sorted(tmp_path.glob("o*.safetensors")) if out != "o.pth" else []
    found = torch.load(tmp_path / "o.pth", weights_only=True) if out == "o.pth" else {}
    for path in names:
        found |= load_file(path)
        assert set(header(path)[0].get("__metadata__", {})) <= {"format"}
    full = full_of(ranks)
    assert set(found) == set(full)
    assert all(same(found[name], tensor) for name, tensor in full.items())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("verify", "hf"), 0, "intact: 25 tensors"),
        (("verify", "hf"), 0, "no file records the sizes of the tensors"),
        (("diff", "hf", "hf.full.pt"), 0, "same: 25 tensors"),
        (("diff", "hf", "hf_of_two"), 0, "same: 25 tensors"),
        (("sum", "hf"), 0, "up.weight"),
        (("stats", "hf"), 0, "up.weight"),
        (("lint", "hf"), 0, ""),
        (("get", "hf", "number"), 0, "values   5"),
        (("slim", "hf", "-o", "OUT/s.pth"), 0, "25 tensors"),
    ],
)
def test_commands(
    words: tuple[str, ...], code: int, says: str, ranks: Path, tmp_path: Path
) -> None:
    done = inside(*(word.replace("OUT", str(tmp_path)) for word in words), cwd=ranks)
    assert (done.code, says in done.out.decode()) == (code, True), done


def test_warmstart_takes_from_it(ranks: Path, tmp_path: Path) -> None:
    torch.save({"up.weight": torch.zeros(16, 8)}, tmp_path / "model.pth")
    words = ("warmstart", str(ranks / "hf"), "--into", "model.pth", "-o", "o.pth")
    assert inside(*words, cwd=tmp_path).code == 0
    found = torch.load(tmp_path / "o.pth", weights_only=True)
    assert same(found["up.weight"], full_of(ranks)["up.weight"])


def test_ls_shows_one_row(ranks: Path) -> None:
    done = inside("ls", "hf", "--tsv", cwd=ranks)
    rows = [line.split("\t") for line in done.out.decode().splitlines()[1:]]
    assert [row[:2] for row in rows] == [["hf", "dcp-hf"]], done


def test_a_file_alone_is_what_it_holds(ranks: Path) -> None:
    with formats.open(str(ranks / "hf" / FIRST)) as checkpoint:
        assert checkpoint.format == "safetensors"


def test_what_rank_0_writes_alone_is_an_ordinary_set(tmp_path: Path) -> None:
    state = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(5.0),
        "c": torch.arange(4),
    }
    writer = HuggingFaceStorageWriter(
        str(tmp_path / "c"), fqn_to_index_mapping={"a": 1, "b": 2, "c": 2}
    )
    dcp.save(state, storage_writer=writer, no_dist=True)
    with ckpt.open(tmp_path / "c") as checkpoint:
        assert checkpoint.checkpoint.format == "sharded"
        assert all(
            same(checkpoint[name].torch(), tensor) for name, tensor in state.items()
        )
    (tmp_path / "o").mkdir()
    out = tmp_path / "o" / "model.safetensors"
    assert (
        inside("convert", str(tmp_path / "c"), "-o", str(out), cwd=tmp_path).code == 0
    )
    # The file of one shard says where its own tensors begin, and torch looks there for
    # all that a file holds.
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(
        loaded, storage_reader=HuggingFaceStorageReader(str(out.parent)), no_dist=True
    )
    assert all(same(loaded[name], tensor) for name, tensor in state.items())


def test_an_ordinary_set_beside_shards_is_read(ranks: Path, tmp_path: Path) -> None:
    """As where the consolidated result lies beside the shards."""
    shutil.copytree(ranks / "hf", tmp_path / "c")
    shutil.copy(ranks / "hf" / FIRST, tmp_path / "c/model.safetensors")
    with formats.open(str(tmp_path / "c")) as checkpoint:
        assert checkpoint.format == "safetensors"


# --- what is missing or mixed ---------------------------------------------------------


def findings(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        row.code: (row.message, row.tensors) for row in ckpt.inspect(folder).findings
    }


def test_a_missing_shard_in_the_middle(copy: Path) -> None:
    for path in copy.glob("shard-00002-*"):
        path.unlink()
    rows = [row for row in ckpt.inspect(copy).findings if row.code == "incomplete"]
    assert rows[0].level == "error"
    texts = [row.message for row in rows]
    assert "no file of shard-00002: the names go to shard-00004" in texts
    assert (
        "bfloat16 lacks [2:4, :]: no file holds it, and 18 more tensors lack parts too"
        in texts
    )
    assert "up.weight" in rows[1].tensors and "number" not in rows[1].tensors
    done = inside("verify", "c", cwd=copy.parent)
    assert done.code == 1 and "bfloat16 lacks [2:4, :]" in done.out.decode(), done
    done = inside("convert", "c", "-o", "o.safetensors", cwd=copy.parent)
    assert done.code == 2 and not (copy.parent / "o.safetensors").exists(), done


def test_a_missing_last_shard_is_seen_where_a_tensor_shows_it(copy: Path) -> None:
    """Nothing but the numbers could show it, so the finding says what cannot be
    known.
    """
    for path in copy.glob("shard-00004-*"):
        path.unlink()
    found = findings(copy)
    assert "files after shard-00003 would not be missed" in found["unverified-size"][0]
    with ckpt.open(copy) as checkpoint:
        assert checkpoint["up.weight"].shape == (12, 8)


def test_a_missing_file_of_the_model(copy: Path) -> None:
    for path in copy.glob("*-model-00001-of-*"):
        path.unlink()
    assert (
        "no file of model-00001: the names go to model-00002"
        in findings(copy)["incomplete"][0]
    )


def test_two_saves_that_are_mixed(ranks: Path, copy: Path) -> None:
    """A save of two ranks over one of four: torch takes rows of both without a word."""
    for path in (ranks / "hf_of_two").iterdir():
        shutil.copy(path, copy / path.name)
    text, names = findings(copy)["overlap"]
    assert (
        "up.weight" in names and "a save with fewer ranks may have left files" in text
    )
    assert len(set(names)) == len(names)
    assert inside("verify", "c", cwd=copy.parent).code == 1
    done = inside("convert", "c", "-o", "o.safetensors", cwd=copy.parent)
    assert done.code == 2 and "two files hold" in done.err.decode(), done


def test_a_number_that_two_files_hold(copy: Path) -> None:
    shutil.copy(copy / LAST, copy / "shard-00005-model-00002-of-00002.safetensors")
    _, names = findings(copy)["overlap"]
    assert "number" in names or "plain" in names, names


def test_other_counts_in_the_names(copy: Path) -> None:
    (copy / LAST).rename(copy / LAST.replace("of-00002", "of-00003"))
    assert "some names end in -of-00002 and -of-00003" in findings(copy)["overlap"][0]


# --- hostile --------------------------------------------------------------------------


def offsets(value: Any) -> Callable[[dict[str, Any]], Any]:
    def edit(info: dict[str, Any]) -> None:
        info["up.bias"] = value

    return edit


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "negative": offsets({"saved_offsets": [-1]}),
    "float": offsets({"saved_offsets": [0.0]}),
    "bool": offsets({"saved_offsets": [True]}),
    "text": offsets({"saved_offsets": "0"}),
    "no list": offsets({}),
    "no dict": offsets(5),
    "huge": offsets({"saved_offsets": [2**70]}),
    "too far": offsets({"saved_offsets": [2**62]}),
    "dimensions": offsets({"saved_offsets": [0, 0]}),
    "missing": lambda info: info.pop("up.bias") and None,
    "too many": lambda info: info.update(other={"saved_offsets": [0]}),
    "list": lambda info: [],
}


def holder(folder: Path) -> Path:
    """The file of rank 1 with `up.bias`."""
    return next(
        path for path in sorted(folder.iterdir()) if "up.bias" in header(path)[0]
    )


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_offsets_are_one_line(kind: str, copy: Path) -> None:
    with_info(holder(copy), HOSTILE[kind])
    done = inside("inspect", "c", cwd=copy.parent)
    assert (
        done.code == 2 and done.err.count(b"\n") == 1 and b"Traceback" not in done.err
    ), done


def test_a_part_of_nothing_far_away_is_refused(tmp_path: Path) -> None:
    name = tmp_path / "c" / "shard-00001-model-00001-of-00001.safetensors"
    name.parent.mkdir()
    info = json.dumps({"a": {"saved_offsets": [2**70, 0]}})
    row = {"dtype": "F32", "shape": [0, 0], "data_offsets": [0, 0]}
    store(
        name,
        {"__metadata__": {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": info}, "a": row},
        b"",
    )
    done = inside("inspect", "c", cwd=tmp_path)
    assert (
        done.code == 2 and "saved_offsets are not whole numbers" in done.err.decode()
    ), done


@pytest.mark.parametrize(
    "info",
    [
        "",
        "{",
        "[" * 5000,
        '{"a": 1, "a": 2}',
        '{"a": ' * 5000,
        "[" + "1," * 300_000 + "1]",
        "NaN",
    ],
)
def test_hostile_json_is_one_line(info: str, copy: Path) -> None:
    found, data = header(copy / FIRST)
    found["__metadata__"]["DCP_SHARDING_INFO"] = info
    store(copy / FIRST, found, data)
    done = inside("inspect", "c", cwd=copy.parent)
    assert (
        done.code == 2 and done.err.count(b"\n") == 1 and b"Traceback" not in done.err
    ), done


@pytest.mark.parametrize("key", ["DCP_VERSION", "DCP_SHARDING_INFO"])
def test_without_its_metadata_nothing_is_taken_as_whole(key: str, copy: Path) -> None:
    found, data = header(copy / FIRST)
    del found["__metadata__"][key]
    store(copy / FIRST, found, data)
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and f"has no {key}" in done.err.decode(), done


def test_another_version_is_refused(copy: Path) -> None:
    found, data = header(copy / FIRST)
    found["__metadata__"]["DCP_VERSION"] = "2.0"
    store(copy / FIRST, found, data)
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and "DCP_VERSION 2.0, ckpt reads 1.0" in done.err.decode(), (
        done
    )


def test_parts_of_two_dtypes_are_refused(copy: Path) -> None:
    path = holder(copy)
    found, data = header(path)
    found["up.bias"]["dtype"] = "I32"
    store(path, found, data)
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and "disagree on the dtype" in done.err.decode(), done


def test_links_fifos_and_other_files_are_refused(copy: Path) -> None:
    shutil.move(copy / FIRST, copy.parent / "elsewhere")
    os.symlink(copy.parent / "elsewhere", copy / FIRST)
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and b" is a link: " in done.err, done
    (copy / FIRST).unlink()
    os.mkfifo(copy / FIRST)
    assert inside("inspect", "c", cwd=copy.parent).code == 2
    (copy / FIRST).unlink()
    (copy / FIRST).write_bytes(b"PK\x03\x04")
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and "not a safetensors file" in done.err.decode(), done


@pytest.mark.parametrize(
    "name", ["shard-00000-model-00001-of-00002", "shard-00001-model-00003-of-00002"]
)
def test_impossible_numbers_are_refused(name: str, copy: Path) -> None:
    (copy / FIRST).rename(copy / f"{name}.safetensors")
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and "numbers" in done.err.decode(), done


def test_a_billion_shards_cost_nothing(copy: Path) -> None:
    (copy / LAST).rename(copy / LAST.replace("shard-00004", "shard-999999999"))
    assert "and 999,999,989 more" in findings(copy)["incomplete"][0]


def test_a_checkpoint_in_the_cache_of_hugging_face(copy: Path, tmp_path: Path) -> None:
    snapshot = in_cache(copy, tmp_path / "hub")

    for command in (
        ("inspect",),
        ("verify",),
        ("convert", "-o", str(tmp_path / "out.safetensors"), "--drop-other"),
    ):
        done = inside(command[0], str(snapshot), *command[1:], cwd=tmp_path)
        assert done.code == 0, done.err


def test_any_other_link_is_refused_as_a_link(copy: Path, tmp_path: Path) -> None:
    snapshot = in_cache(copy, tmp_path / "hub")
    name = next(
        path.name for path in sorted(snapshot.iterdir()) if path.name != ".metadata"
    )
    shutil.move((snapshot / name).resolve(), tmp_path / "elsewhere")
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(tmp_path / "elsewhere")

    for command in ("inspect", "verify", "lint"):
        done = inside(command, str(snapshot), cwd=tmp_path)
        text = (done.out + done.err).decode()
        assert done.code == 2 and f"{name} is a link: only one to the blobs/" in text, (
            text
        )
        assert "damaged" not in text and "missing" not in text

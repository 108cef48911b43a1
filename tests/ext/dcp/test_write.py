"""Distributed checkpoints that ckpt writes: torch's own loader finds in them what was
there before.
"""

from __future__ import annotations

import argparse
import copy
import io
import os
import pickle
import pickletools
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import oracle
import paths
import pytest
import torch
import torch.distributed.checkpoint as dcp
from inside import inside
from process import ROOT, TIMEOUT
from same import difference
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata

import ckpt
from ckpt import formats
from ckpt.bytes import target
from ckpt.ext.dcp import writer
from ckpt.ext.dcp.file_names import is_part
from ckpt.ext.dcp.items import Placement, placed
from ckpt.formats import save
from ckpt.model.errors import LossError, WriteError
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET

LISTED = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
}
"""The names that torch 2.1 and 2.13 have both. `_MEM_FORMAT_ENCODING` is none
of them.
"""


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 7), torch.nn.BatchNorm1d(7))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    return {
        "model": net.state_dict(),
        "optim": optimizer.state_dict(),
        "epoch": 3,
        "pair": (torch.arange(3), 1),
        "empty": {},
        "list": [torch.ones(2), {"x": torch.zeros(1)}, 5],
        "plain list": [1, [2, "x"]],
        "bf": torch.randn(9, 3).bfloat16(),
        "transposed": torch.randn(5, 6).t(),
        "f8": torch.randn(8, 2).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "view": torch.arange(100.0)[10:20],
        "conj": torch.randn(4, dtype=torch.complex64).conj(),
        "none": torch.zeros(0, 4),
        "number": torch.tensor(2.5),
        "u16": torch.arange(5).to(torch.uint16),
        "bool": torch.tensor([True, False, True, True]),
    }


def blank(value: Any) -> Any:
    """A state dict of the same shape for torch to fill."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value.detach().contiguous())
    if isinstance(value, dict):
        return {key: blank(each) for key, each in value.items()}
    if isinstance(value, list) and any(
        isinstance(each, (dict, torch.Tensor)) for each in value
    ):
        return [blank(each) for each in value]
    return None


def same(one: Any, two: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert [str(key) for key in one] == [str(key) for key in two], where
        for key in one:
            same(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert type(one) is type(two) and len(one) == len(two), where
        for number, (mine, other) in enumerate(zip(one, two, strict=True)):
            same(mine, other, f"{where}.{number}")
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (two.dtype, two.shape), where
        raw = [
            each.detach().resolve_conj().contiguous().view(-1).view(torch.uint8)
            for each in (one, two)
        ]
        assert not one.numel() or torch.equal(*raw), where
    else:
        assert one == two, where


def metadata(path: Path) -> Metadata:
    found: Metadata = pickle.loads((path / ".metadata").read_bytes())
    return found


def names_in(path: Path) -> set[tuple[str, str]]:
    """The names that a `.metadata` file imports."""
    found = set()
    data = (path / ".metadata").read_bytes()
    assert all(
        opcode.proto <= 4 for opcode, _, _ in pickletools.genops(data)
    )  # Python 3.8, the oldest of torch 2.1

    class Recording(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.add((module, name))
            return super().find_class(module, name)

    Recording(io.BytesIO(data)).load()
    return found


def only_listed(path: Path) -> bool:
    return all(
        name in LISTED.get(module, set())
        or (module == "torch" and (name == "Size" or hasattr(torch, name)))
        for module, name in names_in(path)
    )


def run(*arguments: str | Path, cwd: Path, code: int = 0) -> str:
    done = inside(*map(str, arguments), cwd=cwd)
    assert done.code == code, done
    return done.out.decode() + done.err.decode()


NUMBERS = ("--optimizer-keys", "numbers")
"""Two layers of the state have biases of one shape, so names are a matter of
tests/commands/convert/test_optimizers.py.
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.save(state(), tmp_path / "in.pth")
    return tmp_path / "in.pth"


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
def test_torch_loads_what_was_there(ranks: int, source: Path, tmp_path: Path) -> None:
    run(
        "convert",
        *NUMBERS,
        source,
        "-o",
        "out.dcp",
        "--ranks",
        str(ranks),
        "--verify",
        "crc",
        cwd=tmp_path,
    )
    wanted = {key: value for key, value in state().items() if key != "empty"}
    found = blank(wanted)
    dcp.load(found, checkpoint_id=str(tmp_path / "out.dcp"))
    same(wanted, found)
    assert only_listed(tmp_path / "out.dcp")
    files = sorted(os.listdir(tmp_path / "out.dcp"))
    assert (
        files
        == [
            ".metadata",
            *sorted(f"__{rank}_0.distcp" for rank in range(min(ranks, 9))),
        ][: len(files)]
        or ranks == 40
    )
    assert inside("verify", "out.dcp", cwd=tmp_path).code == 0


def test_names_are_those_of_torchs_flattener(source: Path, tmp_path: Path) -> None:
    run("convert", *NUMBERS, source, "-o", "out.dcp", cwd=tmp_path)
    flat, paths = flatten_state_dict(state())
    found = metadata(tmp_path / "out.dcp")
    assert list(found.planner_data.items()) == list(paths.items())
    assert list(found.state_dict_metadata) == list(flat)
    assert found.state_dict_metadata["parameter"].properties.requires_grad
    assert not found.state_dict_metadata["bf"].properties.requires_grad
    for name, tensor in flat.items():
        if isinstance(tensor, torch.Tensor):
            row = found.state_dict_metadata[name]
            assert (row.size, row.properties.dtype) == (tensor.shape, tensor.dtype)
    dcp.save(state(), checkpoint_id=str(tmp_path / "torch"))
    assert metadata(tmp_path / "torch").planner_data == found.planner_data


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 16])
def test_chunks_are_those_of_torch_chunk(rows: int, tmp_path: Path) -> None:
    torch.save({"a": torch.arange(rows * 2.0).reshape(rows, 2)}, tmp_path / "in.pth")
    run("convert", *NUMBERS, "in.pth", "-o", "out.dcp", "--ranks", "4", cwd=tmp_path)
    row = metadata(tmp_path / "out.dcp").state_dict_metadata["a"]
    expected = (
        [len(part) for part in torch.arange(rows).chunk(4)] if rows >= 4 else [rows]
    )
    assert [chunk.sizes[0] for chunk in row.chunks] == expected
    assert [chunk.offsets[0] for chunk in row.chunks] == [
        sum(expected[:n]) for n in range(len(expected))
    ]


@pytest.mark.slow
def test_two_ranks_load_it_by_rows_and_by_columns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    full = {
        "model": {"a": torch.randn(7, 5), "b": torch.randn(4, 6), "c": torch.randn(3)},
        "epoch": 2,
    }
    torch.save(full, tmp_path / "full.pt")
    run("convert", "full.pt", "-o", "out.dcp", "--ranks", "3", cwd=tmp_path)
    script = ROOT / "tests/lib/load_dcp.py"
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(script),
            str(tmp_path / "out.dcp"),
            str(tmp_path / "full.pt"),
        ],
        env={
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/lib'}",
            "PATH": "",
            "TORCH_LOGS": "-all",
        },
        capture_output=True,
        timeout=TIMEOUT,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_what_names_cannot_say_is_listed(source: Path, tmp_path: Path) -> None:
    said = run("convert", *NUMBERS, source, "-o", "out.dcp", "--dry-run", cwd=tmp_path)
    assert "numbers → text    4 keys of optim.state" in said
    assert "left out: empty: an empty dict" in said
    assert "left out: model._metadata: the versions of modules" in said
    assert "left alone: pair: a tuple, which stays one object" in said
    assert not (tmp_path / "out.dcp").exists()


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (
            {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)},
            "a.b (two values of one name)",
        ),
        ({1: torch.ones(1), "1": 5}, "1 (two values of one name)"),
        ({"s": torch.eye(2).to_sparse(), "x": torch.ones(1)}, "s (sparse_coo)"),
        (
            {"m": torch.ones(1, device="meta"), "x": torch.ones(1)},
            "m (on meta, without data)",
        ),
        ([torch.ones(1)], "a root that is not a dict"),
    ],
)
def test_what_cannot_be_held_is_refused(thing: Any, why: str, tmp_path: Path) -> None:
    torch.save(thing, tmp_path / "in.pth")
    assert why in run("convert", "in.pth", "-o", "out.dcp", cwd=tmp_path, code=2)
    assert os.listdir(tmp_path) == ["in.pth"]


def test_dicts_that_hold_each_other_are_refused(tmp_path: Path) -> None:
    many: dict[str, Any] = {"x": 1}
    for _ in range(60):
        many = {"a": many, "b": many}
    torch.save({"w": torch.ones(1), "many": many}, tmp_path / "in.pth")
    assert "too many items" in run(
        "convert", "in.pth", "-o", "out.dcp", cwd=tmp_path, code=2
    )


def test_the_ending_and_the_format(source: Path, tmp_path: Path) -> None:
    """`.dcp` chooses the format. A slash alone does not, and a folder that is there
    takes the result.
    """
    assert "names no format" in run(
        "convert", source, "-o", "new/", cwd=tmp_path, code=2
    )
    run("convert", *NUMBERS, source, "-o", "new/", "--format", "dcp", cwd=tmp_path)
    assert (tmp_path / "new" / ".metadata").exists()
    (tmp_path / "there").mkdir()
    run("convert", *NUMBERS, source, "-o", "there", "--format", "dcp", cwd=tmp_path)
    assert os.listdir(tmp_path / "there") == ["in.dcp"]
    assert "already exists (--force" in run(
        "convert",
        *NUMBERS,
        source,
        "-o",
        "new",
        "--format",
        "dcp",
        cwd=tmp_path,
        code=2,
    )
    run(
        "convert",
        *NUMBERS,
        source,
        "-o",
        "new",
        "--format",
        "dcp",
        "--force",
        cwd=tmp_path,
    )
    assert "this ending is not of dcp" in run(
        "convert", source, "-o", "x.pth", "--format", "dcp", cwd=tmp_path, code=2
    )
    for ranks, out in (("0", "x.dcp"), ("20000", "x.dcp"), ("2", "x.pth")):
        assert "--ranks" in run(
            "convert", source, "-o", out, "--ranks", ranks, cwd=tmp_path, code=2
        )
    (tmp_path / "new" / "config.json").touch()
    assert "config.json" in run(
        "convert",
        source,
        "-o",
        "new",
        "--format",
        "dcp",
        "--force",
        cwd=tmp_path,
        code=2,
    )
    assert "--force does not replace" in run(
        "convert",
        *NUMBERS,
        "there/in.dcp",
        "-o",
        "there/in.dcp",
        "--force",
        cwd=tmp_path,
        code=2,
    )


def test_from_safetensors(tmp_path: Path) -> None:
    torch.save({"a.w": torch.randn(4, 2), "b": torch.ones(3)}, tmp_path / "in.pth")
    run("convert", "in.pth", "-o", "in.safetensors", cwd=tmp_path)
    run("convert", "in.safetensors", "-o", "out.dcp", "--ranks", "2", cwd=tmp_path)
    wanted = torch.load(tmp_path / "in.pth")
    found = blank(wanted)
    dcp.load(found, checkpoint_id=str(tmp_path / "out.dcp"))
    same(wanted, found)


def test_verify_torch_compares_every_byte_instead(source: Path, tmp_path: Path) -> None:
    said = run(
        "convert", *NUMBERS, source, "-o", "out.dcp", "--verify", "torch", cwd=tmp_path
    )
    assert (
        "torch did not load it, because its loader runs the pickles in it; every "
        "byte was compared"
    ) in said
    assert "crc verified in" in said


def test_a_cast_is_written(tmp_path: Path) -> None:
    wanted = {"a.weight": torch.randn(9, 2), "n": torch.arange(4)}
    torch.save(wanted, tmp_path / "in.pth")
    run(
        "convert",
        "in.pth",
        "-o",
        "out.dcp",
        "--ranks",
        "2",
        "--dtype",
        "bfloat16",
        "--verify",
        "crc",
        cwd=tmp_path,
    )
    found = {
        "a.weight": torch.zeros(9, 2, dtype=torch.bfloat16),
        "n": torch.zeros(4, dtype=torch.int64),
    }
    dcp.load(found, checkpoint_id=str(tmp_path / "out.dcp"))
    assert torch.equal(
        found["a.weight"], wanted["a.weight"].bfloat16()
    ) and torch.equal(found["n"], wanted["n"])


# --- of a distributed checkpoint ------------------------------------------------------


@pytest.mark.parametrize("name", ["fsdp2", "grids", "tensor_parallel", "alone"])
def test_other_ranks(name: str, trained: Path, tmp_path: Path) -> None:
    run(
        "convert",
        trained / name,
        "-o",
        "out.dcp",
        "--ranks",
        "3",
        "--verify",
        "crc",
        cwd=tmp_path,
    )
    report = ckpt.diff(trained / name, tmp_path / "out.dcp")
    assert {row.status for row in report.rows} == {"same"} and not report.values
    full = torch.load(trained / f"{name}.full.pt", weights_only=False)
    full.pop("both", None)
    full.get("config", {}).pop("empty", None)
    found = blank(full)
    dcp.load(found, checkpoint_id=str(tmp_path / "out.dcp"))
    same(full, found)


def data_of(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.glob("*.distcp")}


@pytest.fixture
def wrapped(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    made = tmp_path / "wrapped"
    thing = {
        "model": {f"module.{name}": torch.randn(4, 2) for name in ("up", "down")},
        "optim": {
            "param_groups": [{"params": ["module.up", "module.down"], "lr": 0.1}]
        },
        "epoch": 3,
    }
    dcp.save(thing, checkpoint_id=str(made))
    return made


@pytest.mark.parametrize("link", [False, True], ids=["clones", "links"])
def test_strip_writes_metadata_and_keeps_the_data(
    link: bool, wrapped: Path, tmp_path: Path
) -> None:
    said = run(
        "strip", "wrapped", "-o", "out", *(["--link"] if link else []), cwd=tmp_path
    )
    out = tmp_path / "out"
    before, after = data_of(wrapped), data_of(out)
    assert {name: data for name, data in after.items() if name in before} == before
    assert (out / "__0_0.distcp").samefile(wrapped / "__0_0.distcp") is link
    assert ("a later save into wrapped changes it" in said) is link
    assert (
        sum(map(len, after.values())) < sum(map(len, before.values())) + 1000
    )  # one list of names is new
    found: dict[str, Any] = {
        "model": {"up": torch.zeros(4, 2), "down": torch.zeros(4, 2)},
        "optim": {"param_groups": [{"params": None, "lr": None}]},
        "epoch": None,
    }
    dcp.load(found, checkpoint_id=str(out))
    whole: dict[str, Any] = {
        "model": {f"module.{name}": torch.zeros(4, 2) for name in ("up", "down")}
    }
    dcp.load(whole, checkpoint_id=str(wrapped))
    for name in ("up", "down"):
        assert torch.equal(found["model"][name], whole["model"][f"module.{name}"])
    assert (
        found["optim"]["param_groups"] == [{"params": ["up", "down"], "lr": 0.1}]
        and found["epoch"] == 3
    )
    assert inside("verify", "out", cwd=tmp_path).code == 0


def test_rename_of_names_alone_makes_no_data(wrapped: Path, tmp_path: Path) -> None:
    run(
        "rename",
        "wrapped",
        "--sub",
        "s/up/high/",
        "--include",
        "module.up",
        "-o",
        "one",
        cwd=tmp_path,
    )
    assert set(data_of(tmp_path / "one")) == {"__0_0.distcp", "__1_0.distcp"}
    torch.manual_seed(0)
    dcp.save(
        {"model": {"up": torch.ones(2)}, "n": 1}, checkpoint_id=str(tmp_path / "small")
    )
    run("rename", "small", "--sub", "s/up/high/", "-o", "two", cwd=tmp_path)
    assert data_of(tmp_path / "two") == data_of(tmp_path / "small")
    assert list(metadata(tmp_path / "two").state_dict_metadata) == ["model.high", "n"]


def test_a_warm_start_keeps_what_it_does_not_fill(
    wrapped: Path, tmp_path: Path
) -> None:
    """And leaves no file behind whose bytes are mostly those of tensors that it
    replaced.
    """
    values = {"up": torch.full((4, 2), 7.0), "down": torch.full((4, 2), 8.0)}
    torch.save(values, tmp_path / "pre.pth")
    words = (
        "warmstart",
        "pre.pth",
        "--into",
        "wrapped",
        "-o",
        "out",
        "--verify",
        "crc",
    )
    run(*words, "--keep-optimizer", cwd=tmp_path)
    found: dict[str, Any] = {
        "model": {f"module.{name}": torch.zeros(4, 2) for name in values},
        "epoch": None,
    }
    dcp.load(found, checkpoint_id=str(tmp_path / "out"))
    same({f"module.{name}": value for name, value in values.items()}, found["model"])
    assert found["epoch"] == 3
    run(*words, "--force", cwd=tmp_path)
    assert "epoch" not in metadata(tmp_path / "out").state_dict_metadata
    big = {"model": {"w": torch.ones(100_000), "b": torch.ones(2)}, "n": 1}
    dcp.save(big, checkpoint_id=str(tmp_path / "big"))
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "pre.pth")
    run("warmstart", "pre.pth", "--into", "big", "-o", "filled", cwd=tmp_path)
    used = sum(
        place.length for place in metadata(tmp_path / "filled").storage_data.values()
    )
    assert used == sum(len(data) for data in data_of(tmp_path / "filled").values())


def test_link_goes_with_folders(source: Path, wrapped: Path, tmp_path: Path) -> None:
    for arguments in (
        ("in.pth", "-o", "x.pth", "--section", "model", "--prefix", "0"),
        ("wrapped", "-o", "x.pth"),
    ):
        assert "--link goes with" in run(
            "strip", *arguments, "--link", cwd=tmp_path, code=2
        )
    assert not (tmp_path / "x.pth").exists()


def test_slim_copies_the_items_that_are_kept(trained: Path, tmp_path: Path) -> None:
    run("slim", trained / "fsdp2", "-o", "out", "--verify", "crc", cwd=tmp_path)
    before, after = metadata(trained / "fsdp2"), metadata(tmp_path / "out")
    assert set(after.state_dict_metadata) == {
        name.removeprefix("model.")
        for name in before.state_dict_metadata
        if name.startswith("model.")
    }
    for index, place in after.storage_data.items():
        old = next(
            info
            for key, info in before.storage_data.items()
            if (key.fqn, key.offset) == (f"model.{index.fqn}", index.offset)
        )
        item, same_item = (
            (base / info.relative_path).read_bytes()[
                info.offset : info.offset + info.length
            ]
            for base, info in ((tmp_path / "out", place), (trained / "fsdp2", old))
        )
        assert item == same_item and place.relative_path == old.relative_path
    used = sum(place.length for place in after.storage_data.values())
    assert used == sum(len(data) for data in data_of(tmp_path / "out").values())
    assert {
        row.status for row in ckpt.diff(trained / "later", tmp_path / "out").rows
    } == {"same"}


def test_items_of_a_save_without_flattening_stay_whole(tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    thing = {"model.w": torch.ones(2), "config": {"a": {"b": 1}}}
    dcp.save(thing, checkpoint_id=str(tmp_path / "in"), planner=planner)
    run("rename", "in", "--sub", "s/w/v/", "-o", "out", cwd=tmp_path)
    found = metadata(tmp_path / "out")
    assert found.planner_data is None and list(found.state_dict_metadata) == [
        "model.v",
        "config",
    ]
    with ckpt.open(tmp_path / "out") as checkpoint:
        assert checkpoint.value("config") == {"a": {"b": 1}}
    loaded = {"model.v": torch.zeros(2)}
    dcp.load(
        loaded,
        checkpoint_id=str(tmp_path / "out"),
        planner=dcp.DefaultLoadPlanner(flatten_state_dict=False),
    )
    assert loaded["model.v"].tolist() == [1, 1]


class Bad:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def test_calls_in_metadata_are_not_copied(wrapped: Path, tmp_path: Path) -> None:
    found = metadata(wrapped)
    found.extra = Bad()  # type: ignore[attr-defined]
    (wrapped / ".metadata").write_bytes(pickle.dumps(found, 4))
    said = run("convert", "wrapped", "-o", "out.dcp", "--keep-code", cwd=tmp_path)
    run("strip", "wrapped", "-o", "stripped", "--keep-code", cwd=tmp_path)
    assert "extra" not in said
    for name in ("out.dcp", "stripped"):
        assert only_listed(tmp_path / name)
        assert not hasattr(metadata(tmp_path / name), "extra")
    assert not (tmp_path / "ran").exists()


def test_code_in_an_object_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1), "bad": Bad()}, tmp_path / "in.pth")
    assert "would run" in run(
        "convert", "in.pth", "-o", "out.dcp", cwd=tmp_path, code=2
    )
    assert os.listdir(tmp_path) == ["in.pth"]


def test_objects_stay_objects(tmp_path: Path) -> None:
    thing = {
        "w": torch.ones(1),
        "args": argparse.Namespace(lr=0.1),
        "od": OrderedDict(a=1),
    }
    torch.save(thing, tmp_path / "in.pth")
    run("convert", "in.pth", "-o", "out.dcp", cwd=tmp_path)
    found: dict[str, Any] = {"w": torch.zeros(1), "args": None, "od": {"a": None}}
    dcp.load(found, checkpoint_id=str(tmp_path / "out.dcp"))
    assert found["args"] == thing["args"] and found["od"] == {"a": 1}


# --- incomplete ones ------------------------------------------------------------------


@pytest.fixture
def cut(trained: Path, tmp_path: Path) -> Path:
    made = tmp_path / "cut"
    shutil.copytree(trained / "fsdp2", made)
    (made / "__3_0.distcp").unlink()
    return made


@pytest.mark.parametrize("out", ["out.pth", "out.safetensors", "out.dcp"])
def test_partial_converts_the_whole_tensors_only(
    out: str, cut: Path, trained: Path, tmp_path: Path
) -> None:
    section = ["--section", "model"] if out.endswith("safetensors") else []
    said = run("convert", "cut", "-o", out, *section, cwd=tmp_path, code=2)
    assert "--partial" in said and not (tmp_path / out).exists()
    with formats.open(str(cut)) as checkpoint:
        lost = {
            name
            for row in checkpoint.account.notices
            if row.code == "incomplete"
            for name in row.tensors
        }
        gone = dict(checkpoint.account.left_out)
        whole = {entry.name for entry in checkpoint.tensors} - lost
    assert lost and gone and whole
    said = run(
        "convert",
        "cut",
        "-o",
        out,
        "--partial",
        "--json",
        *section,
        cwd=tmp_path,
        code=1,
    )
    for name in (*lost, *gone):
        assert f'"name": "{name}"' in said
    with formats.open(str(tmp_path / out)) as checkpoint:
        found = {entry.name for entry in checkpoint.tensors}
    if section:
        whole = {
            name.removeprefix("model.") for name in whole if name.startswith("model.")
        }
    assert found == whole
    full = torch.load(trained / "fsdp2.full.pt", weights_only=False)
    with ckpt.open(tmp_path / out) as checkpoint:
        name = "bn.weight" if section else "model.bn.weight"
        if name in whole:
            same(full["model"]["bn.weight"], checkpoint[name].torch())


def test_partial_of_a_whole_one_is_a_conversion(trained: Path, tmp_path: Path) -> None:
    run("convert", trained / "later", "-o", "out.pth", "--partial", cwd=tmp_path)


def test_an_incomplete_one_is_not_renamed(cut: Path, tmp_path: Path) -> None:
    said = run(
        "rename", "cut", "--sub", "s/up/high/", "-o", "out", cwd=tmp_path, code=2
    )
    assert "__3_0.distcp" in said and not (tmp_path / "out").exists()


# --- the checks before it takes its place ---------------------------------------------


def write(source: Path, out: Path, ranks: int = 2) -> None:
    with formats.open(str(source)) as checkpoint:
        to = target.folder_target(str(out), is_part, force=False)
        save.save_checkpoint(
            placed(checkpoint, ranks, link=False),
            to,
            "dcp",
            Limits(),
            checks={"crc": save.check_bytes},
        )


def test_a_wrong_item_is_found_before_it_takes_its_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = writer._slice_rows

    def shifted(ref: Any, first: int, last: int) -> Any:
        return rows(ref, max(0, first - 1), max(0, first - 1) + last - first)

    monkeypatch.setattr(writer, "_slice_rows", shifted)
    with pytest.raises(WriteError, match=r"the bytes of .* differ"):
        write(source, tmp_path / "out.dcp")
    assert os.listdir(tmp_path) == ["in.pth"]


def test_a_missing_item_is_found_before_it_takes_its_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = writer.record
    monkeypatch.setattr(
        writer,
        "record",
        lambda rows, limits, **options: whole(rows[:-1], limits, **options),
    )
    with pytest.raises(WriteError, match="items instead of"):
        write(source, tmp_path / "out.dcp")
    assert os.listdir(tmp_path) == ["in.pth"]


def test_a_source_that_is_not_placed_is_one_rank(source: Path, tmp_path: Path) -> None:
    with formats.open(str(source)) as checkpoint:
        assert not isinstance(checkpoint.origin, Placement)
        to = target.folder_target(str(tmp_path / "out.dcp"), is_part, force=False)
        save.save_checkpoint(checkpoint, to, "dcp", Limits())
    assert sorted(os.listdir(tmp_path / "out.dcp")) == [".metadata", "__0_0.distcp"]
    with pytest.raises(LossError), formats.open(str(source)) as checkpoint:
        save.refuse_losses(checkpoint, "safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["fast", "slow"])
def test_many_tensors_open_with_the_memory_of_a_small_file(
    side: paths.Side, tmp_path: Path
) -> None:
    """What is allowed grows with `.metadata`, so 100,000 tensors open at the limits
    that are shipped.
    """
    state = {
        f"layers.{number}.{'x' * 100}.weight": torch.full((2,), float(number))
        for number in range(2_100)
    }
    torch.save({"train": {"model": state}}, tmp_path / "a.pth")
    assert inside("convert", "a.pth", "-o", "b.dcp", cwd=tmp_path).code == 0
    with (
        paths.walking(side),
        formats.open(str(tmp_path / "b.dcp"), Limits(memory=2_000_000)) as checkpoint,
    ):
        assert len(checkpoint.tensors) == 2_100


@pytest.mark.parametrize(
    "odd", ([{}, 7], [{"b": 1}, {}], [7, {}, {"a": {}}], [[{}], {}])
)
def test_an_empty_dict_in_a_list_keeps_its_place(
    odd: list[Any], tmp_path: Path
) -> None:
    """What torch itself writes of such a list lacks a position, and torch cannot load
    it.
    """
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    state = {
        "odd": [*odd, torch.ones(2)],
        "model": {"a": torch.ones(3)},
        "args": {"lr": 0.1},
    }
    torch.save(state, tmp_path / "a.pth")
    assert "left out" not in run("convert", "a.pth", "-o", "out.dcp", cwd=tmp_path)
    run("convert", "out.dcp", "-o", "b.pth", cwd=tmp_path)
    assert difference(state, torch.load(tmp_path / "b.pth")) is None
    if len(odd) > 2 or odd == [[{}], {}]:
        # torch takes dicts of nothing but empty dicts apart in other ways when it loads
        return
    dcp_to_torch_save(str(tmp_path / "out.dcp"), str(tmp_path / "c.pth"))
    assert difference(state, torch.load(tmp_path / "c.pth")) is None
    zeros = {
        "odd": [*odd, torch.zeros(2)],
        "model": {"a": torch.zeros(3)},
        "args": {"lr": 0.0},
    }
    dcp.load(zeros, checkpoint_id=str(tmp_path / "out.dcp"), no_dist=True)
    assert difference(state, zeros) is None


@pytest.mark.parametrize("odd", ([{}], [{}, {}], [[{}], {}]))
def test_a_list_of_empty_dicts_is_one_item(odd: list[Any], tmp_path: Path) -> None:
    """torch looked in vain for what each of them was written as."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    state = {
        "odd": odd,
        "more": [copy.deepcopy(odd), torch.ones(2)],
        "model": {"a": torch.ones(3)},
    }
    torch.save(state, tmp_path / "a.pth")
    run("convert", "a.pth", "-o", "out.dcp", cwd=tmp_path)
    run("convert", "out.dcp", "-o", "b.pth", cwd=tmp_path)
    assert difference(state, torch.load(tmp_path / "b.pth")) is None
    dcp_to_torch_save(str(tmp_path / "out.dcp"), str(tmp_path / "c.pth"))
    assert difference(state, torch.load(tmp_path / "c.pth")) is None
    zeros = {
        "odd": odd,
        "more": [copy.deepcopy(odd), torch.zeros(2)],
        "model": {"a": torch.zeros(3)},
    }
    dcp.load(zeros, checkpoint_id=str(tmp_path / "out.dcp"), no_dist=True)
    assert difference(state, zeros) is None


@pytest.mark.parametrize("out", ("out.dcp", "out.safetensors"))
def test_tensors_in_attributes_are_listed(out: str, tmp_path: Path) -> None:
    tensor = torch.ones(3)
    tensor.holder = {"x": torch.ones(2)}  # type: ignore[attr-defined]
    torch.save({"w": tensor, "v": torch.zeros(2)}, tmp_path / "a.pth")
    said = run("convert", "a.pth", "-o", out, cwd=tmp_path)
    assert "2 tensors" in said.splitlines()[0]
    assert "left out: w.holder.x: a tensor in an attribute" in said

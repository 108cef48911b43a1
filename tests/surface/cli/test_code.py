"""A file that runs code: what every writing command does with it, and how its weights
are got out.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from frameworks_dcp import save
from opcodes import (
    build,
    call,
    empty_tuple,
    glob,
    legacy,
    mapping,
    mark,
    newobj,
    ordered_dict,
    pickled,
    pop,
    setitems,
    tensor,
    torch_zip,
    value,
)
from process import Done, check_error, ckpt

from ckpt.formats import open

pytestmark = oracle.QUIET

RUNS = call(glob("posix", "system"), "true")
WEIGHTS = {"a.weight": tensor(), "b.weight": tensor()}
HOSTILE: dict[str, bytes] = {
    "beside the model": pickled({"model": WEIGHTS, "x": RUNS}),
    "in the model": pickled({**WEIGHTS, "version": RUNS}),
    "deep in the model": pickled({"model": {**WEIGHTS, "deep": {"x": [RUNS]}}}),
    "before the model": pickled(RUNS + pop(), WEIGHTS),
    "as a key": pickled(mapping([*WEIGHTS.items(), (RUNS, 1)])),
    "as the metadata": pickled(
        ordered_dict()
        + mark()
        + b"".join(value(k) + value(v) for k, v in WEIGHTS.items())
        + setitems(),
        value({"_metadata": RUNS}) + build(),
    ),
    "called with the model": pickled(call(glob("builtins", "exec"), "x", WEIGHTS)),
    "with the model as its state": pickled(RUNS + value(WEIGHTS) + build()),
    "with the model as its items": pickled(
        RUNS
        + mark()
        + b"".join(value(k) + value(v) for k, v in WEIGHTS.items())
        + setitems()
    ),
    "a module that lies": pickled(
        glob("evil", "Net") + empty_tuple() + newobj(),
        value(
            {"_parameters": WEIGHTS, "_buffers": {}, "_modules": {}, "training": RUNS}
        )
        + build(),
    ),
}


def put(folder: Path, pickle: bytes) -> Path:
    path = folder / "in.pth"
    path.write_bytes(torch_zip(pickle))
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_slim_gets_the_weights_out(name: str, tmp_path: Path) -> None:
    put(tmp_path, HOSTILE[name])
    done = ckpt("slim", "in.pth", "-o", "out.pth", cwd=tmp_path)
    assert done.code == 0, done
    left = [line for line in done.lines if line.startswith("left out: ")]
    assert any(
        "posix.system" in line or "exec" in line or "evil.Net" in line for line in left
    ), done.lines
    found = torch.load(tmp_path / "out.pth", weights_only=True)
    assert set(found) >= set(WEIGHTS) and "version" not in found
    assert all(
        torch.equal(found[key], torch.arange(6.0).reshape(2, 3)) for key in WEIGHTS
    )


def test_tensors_that_an_unknown_function_gets_are_weights_too(tmp_path: Path) -> None:
    put(tmp_path, pickled({**WEIGHTS, "x": call(glob("evil", "wrap"), tensor())}))
    done = ckpt("slim", "in.pth", "-o", "out.pth", cwd=tmp_path)
    assert done.code == 0 and any("evil.wrap" in line for line in done.lines)
    with open(str(tmp_path / "out.pth")) as found:
        assert [entry.name for entry in found.tensors] == ["a.weight", "b.weight", "x"]
        assert not found.weights_only


WRITERS: list[tuple[str, ...]] = [
    ("rehome", "in.pth", "--to", "cuda:0", "-o", "out.pth"),
    ("rehome", "in.pth", "-o", "out.pth"),
    ("rehome", "in.pth", "--to", "cuda:0", "--in-place"),
    ("rehome", "in.pth", "--to", "cuda:0", "--in-place", "--copy"),
    ("rehome", "in.pth", "--to", "cuda:0", "--dry-run"),
    ("strip", "in.pth", "-o", "out.pth"),
    ("rename", "in.pth", "--sub", "s/weight/w/", "-o", "out.pth"),
    ("convert", "in.pth", "-o", "out.pth"),
    ("convert", "in.pth", "--format", "torch-legacy", "-o", "out.pth"),
    ("convert", "in.pth", "--dtype", "float16", "-o", "out.pth"),
    ("warmstart", "given.pth", "--into", "in.pth", "-o", "out.pth"),
]


def attempt(arguments: tuple[str, ...], folder: Path) -> Done:
    torch.save({"model": {"a.weight": torch.ones(2, 3)}}, folder / "given.pth")
    return ckpt(*arguments, cwd=folder)


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_no_writer_passes_code_on(arguments: tuple[str, ...], tmp_path: Path) -> None:
    before = put(tmp_path, HOSTILE["beside the model"]).read_bytes()

    done = attempt(arguments, tmp_path)

    way = (
        "--keep-code writes it all the same; for the weights alone: ckpt slim in.pth "
        "-o in.slim.pth"
    )
    check_error(
        done, f"in.pth: loading the result would run posix.system('true') ({way})"
    )
    assert sorted(os.listdir(tmp_path)) == ["given.pth", "in.pth"]
    assert (tmp_path / "in.pth").read_bytes() == before


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_code_is_kept_on_demand(arguments: tuple[str, ...], tmp_path: Path) -> None:
    put(tmp_path, HOSTILE["beside the model"])
    done = attempt((*arguments, "--keep-code"), tmp_path)
    assert done.code == 0
    assert (
        "ckpt: in.pth: DANGER: loading the result runs posix.system('true')"
        in done.complaints
    )


def test_the_danger_is_red(tmp_path: Path) -> None:
    put(tmp_path, HOSTILE["beside the model"])
    done = ckpt(
        "strip", "in.pth", "--dry-run", "--keep-code", cwd=tmp_path, FORCE_COLOR="1"
    )
    assert done.complaints[0].startswith("\x1b[1;31mckpt: in.pth: DANGER")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"model": WEIGHTS, "x": call(glob("shop", "Mode"), "train")},
            "calls shop.Mode('train')",
        ),
        ({"model": WEIGHTS, "x": glob("shop", "Config")}, "imports shop.Config"),
    ],
)
def test_unknown_names_are_named_each_time(
    content: Any, said: str, tmp_path: Path
) -> None:
    for arguments in WRITERS[:-1]:
        put(tmp_path, pickled(content))
        done = attempt(
            (*arguments, *(() if arguments[-1] != "out.pth" else ("--force",))),
            tmp_path,
        )
        assert done.code == 0, done
        assert done.complaints == [
            f"ckpt: in.pth: loading the result {said}, which ckpt does not know"
        ]


def test_a_writer_that_leaves_the_code_behind_writes(tmp_path: Path) -> None:
    put(tmp_path, HOSTILE["beside the model"])
    for arguments in (
        ("convert", "in.pth", "-o", "out.safetensors"),
        ("convert", "in.pth", "--plain", "--drop-other", "-o", "out.pth"),
        ("convert", "in.pth", "--shard-size", "30", "-o", "shards"),
    ):
        done = ckpt(*arguments, cwd=tmp_path)
        assert done.code == 0 and not done.complaints, done


def test_a_pickle_inside_a_pickle_is_looked_at(tmp_path: Path) -> None:
    inner = legacy(pickled({"x": RUNS, "w": tensor()}))
    put(
        tmp_path,
        pickled(
            {
                "model": WEIGHTS,
                "x": call(
                    glob("torch.storage", "_load_from_bytes"),
                    b"B" + len(inner).to_bytes(4, "little") + inner,
                ),
            }
        ),
    )
    check_error(
        ckpt("strip", "in.pth", "-o", "out.pth", cwd=tmp_path),
        "would run posix.system('true')",
    )
    check_error(
        ckpt("rename", "in.pth", "--sub", "s/weight/w/", "-o", "out.pth", cwd=tmp_path),
        "would run posix.system",
    )


def test_the_way_out_names_the_model(tmp_path: Path) -> None:
    put(tmp_path, pickled({"G": WEIGHTS, "D": {"c.weight": tensor()}, "x": RUNS}))
    check_error(
        ckpt("strip", "in.pth", "-o", "out.pth", cwd=tmp_path),
        "ckpt slim in.pth --section g --keep d -o in.slim.pth)",
    )
    assert (
        "ckpt slim in.pth --section G --keep D -o in.slim.pth\n"
        in ckpt("inspect", "in.pth", cwd=tmp_path).out.decode()
    )
    assert (
        ckpt("slim", "in.pth", "--section", "G", "-o", "in.slim.pth", cwd=tmp_path).code
        == 0
    )


def test_no_way_out_is_named_that_does_not_lead_there(tmp_path: Path) -> None:
    put(tmp_path, pickled({"x": RUNS}))
    check_error(
        ckpt("convert", "in.pth", "-o", "out.pth", cwd=tmp_path),
        "would run posix.system('true') (--keep-code writes it all the same)",
    )
    check_error(ckpt("slim", "in.pth", "-o", "out.pth", cwd=tmp_path))
    assert "ckpt " not in ckpt("inspect", "in.pth", cwd=tmp_path).out.decode()


@pytest.mark.parametrize("name", HOSTILE)
def test_inspect_names_the_way_out(name: str, tmp_path: Path) -> None:
    put(tmp_path, HOSTILE[name])
    text = " ".join(ckpt("inspect", "in.pth", cwd=tmp_path).out.decode().split())
    assert "For the weights alone: ckpt slim in.pth -o in.slim.pth" in text


def test_intact_is_not_safe(tmp_path: Path) -> None:
    put(tmp_path, HOSTILE["beside the model"])
    done = ckpt("verify", "in.pth", cwd=tmp_path)
    assert done.code == 0
    assert done.lines[0].endswith(
        "all checksums match; not safe: loading it calls posix.system('true')"
    )


def lose(folder: Path, name: str) -> None:
    """Fill an item of a distributed checkpoint with zeros."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    row = next(row for index, row in metadata.storage_data.items() if index.fqn == name)
    path = folder / row.relative_path
    data = bytearray(path.read_bytes())
    data[row.offset : row.offset + row.length] = bytes(row.length)
    path.write_bytes(data)


def others(folder: Path) -> dict[str, Path]:
    """Saves that have the lost value `args` with a call, each in another format."""
    args = value({"model": {"w": 1}, "args": [RUNS]})
    made = {
        name: folder / name for name in ("zip.pth", "legacy.pth", "plain.pkl", "dcp")
    }
    made["zip.pth"].write_bytes(torch_zip(pickled(args), {}))
    made["legacy.pth"].write_bytes(legacy(pickled(args), ()))
    made["plain.pkl"].write_bytes(pickled(args))
    save(made["dcp"], {"model": {"w": torch.ones(4)}, "args": [1]})
    index = made["dcp"] / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    row = next(
        row for index, row in metadata.storage_data.items() if index.fqn == "args"
    )
    row.relative_path, row.offset = "evil.distcp", 0
    evil = torch_zip(pickled([RUNS]), {})
    row.length = len(evil)
    (made["dcp"] / "evil.distcp").write_bytes(evil)
    index.write_bytes(pickle.dumps(metadata))
    return made


@pytest.mark.parametrize("other", ["zip.pth", "legacy.pth", "plain.pkl", "dcp"])
@pytest.mark.parametrize("out", ["out.pth", "out.dcp"])
def test_a_filled_value_is_judged_as_what_is_written(
    other: str, out: str, tmp_path: Path
) -> None:
    save(tmp_path / "mine", {"model": {"w": torch.ones(4)}, "args": [1]})
    lose(tmp_path / "mine", "args")
    others(tmp_path)
    command = ("salvage", "mine", "--fill-from", other, "-o", out)

    for more in ((), ("--dry-run",)):
        done = ckpt(*command, *more, cwd=tmp_path)
        says = (
            f"{other}: loading the result would run posix.system('true') (--keep-code "
            "writes it all the same)"
        )
        check_error(done, says)
        assert not (tmp_path / out).exists()

    done = ckpt(*command, "--keep-code", cwd=tmp_path)
    assert (
        done.code == 0
        and b"DANGER: loading the result runs posix.system('true')" in done.err
    )
    with open(str(tmp_path / out)) as written:
        assert any(row.group == "called" for row in written.imports)


def test_a_filled_value_of_an_unknown_class_is_named(tmp_path: Path) -> None:
    save(tmp_path / "mine", {"model": {"w": torch.ones(4)}, "args": [1]})
    lose(tmp_path / "mine", "args")
    other = glob("evil", "Config") + empty_tuple() + newobj()
    (tmp_path / "other.pth").write_bytes(torch_zip(pickled({"args": other}), {}))

    done = ckpt(
        "salvage", "mine", "--fill-from", "other.pth", "-o", "out.pth", cwd=tmp_path
    )
    assert done.code == 0
    assert (
        b"other.pth: loading the result imports evil.Config, which ckpt does not know"
        in done.err
    )


def test_plain_values_are_filled_without_a_word(tmp_path: Path) -> None:
    save(tmp_path / "mine", {"model": {"w": torch.ones(4)}, "args": [1]})
    lose(tmp_path / "mine", "args")
    torch.save({"args": [1]}, tmp_path / "other.pth")

    done = ckpt(
        "salvage", "mine", "--fill-from", "other.pth", "-o", "out.pth", cwd=tmp_path
    )
    assert done.code == 0 and b"loading the result" not in done.err
    assert torch.load(tmp_path / "out.pth")["args"] == [1]

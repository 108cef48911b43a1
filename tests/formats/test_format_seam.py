"""Whatever is a Format does what the protocol says, and one of another distribution
goes through every command.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from deeds import HAS_FILTERS
from process import ROOT, Done, check_error, ckpt

from ckpt import formats
from ckpt.formats.format import (
    CanAppend,
    CanList,
    CanRead,
    CanRelist,
    CanSalvage,
    CanVerify,
    CanWrite,
    Format,
)
from ckpt.model.checkpoint import Traits
from ckpt.model.errors import CkptError

# --- the formats of the table ---------------------------------------------------------


def members(protocol: type) -> set[str]:
    """The names that an implementation of a protocol has."""
    functions = {
        name
        for name, value in vars(protocol).items()
        if callable(value) and not name.startswith("_")
    }
    return functions | get_type_hints(protocol).keys()


def test_the_protocols_ask_for_something() -> None:
    assert members(CanRead) == {"read"} and members(CanSalvage) == {"salvage"}
    assert members(CanWrite) == {"losses", "unfit", "draft", "compare", "compare_bytes"}
    assert members(CanAppend) == {"append", "end_before"} and members(CanVerify) == {
        "checksums"
    }
    assert members(CanList) == {"recorded"} and members(CanRelist) == {
        "listing",
        "relisting",
    }


@pytest.mark.parametrize("format", [*formats.FORMATS], ids=lambda format: format.name)
def test_a_format_of_the_table_is_all_that_it_says(format: Format) -> None:
    assert isinstance(format.name, str) and format.name.lower() == format.name
    assert isinstance(format.suffixes, tuple) and all(
        suffix.startswith(".") for suffix in format.suffixes
    )
    assert isinstance(format.traits, Traits) and format.traits.label
    for name, protocols in (
        (
            format.writer,
            (CanWrite, CanAppend) if format.traits.in_place else (CanWrite,),
        ),
        (format.reader, (CanRead,)),
        (format.writer, (CanRelist,) if format.traits.is_folder else ()),
        (
            format.verifier,
            (CanVerify, CanList) if format.traits.has_checksums else (CanVerify,),
        ),
        (format.salvager, (CanSalvage,)),
    ):
        if name:
            module = import_module(name)
            for protocol in protocols:
                assert {
                    each
                    for each in members(protocol)
                    if not callable(getattr(module, each, None))
                } == set()


def test_names_are_unique_and_found() -> None:
    names = [format.name for format in formats.FORMATS]

    assert len(set(names)) == len(names)
    assert all(formats.by_name(format.name) == format for format in formats.FORMATS)
    assert set(formats.written_formats()) == {
        format.name
        for format in formats.FORMATS
        if format.writer and not format.traits.names_are_code
    }
    assert {format.name for format in formats.FORMATS if format.owns} == {
        format.name for format in formats.FORMATS if format.traits.is_folder
    }
    for format in formats.FORMATS:
        assert format.reader
        assert isinstance(formats.verifier_of(format), ModuleType | None)
        assert (formats.appender_of(format.name) is not None) == format.traits.in_place
        if format.writer:
            assert formats.writer_of(format.name).__name__ == format.writer


# --- a format of another distribution -------------------------------------------------

READER = '''
"""TOY1: the word and a line end, a line of JSON (name -> shape), float32 of all tensors, little-endian.

A folder with a file TOYS, whose lines name such files, is one checkpoint: each file is a part of it.
"""
import json, os, pathlib
from math import prod
if os.environ.get("TOY_MARK"):
    pathlib.Path(os.environ["TOY_MARK"]).touch()
from ckpt.model.account import Account
from ckpt.model.checkpoint import Checkpoint, Entry, Member, Traits
from ckpt.model.dtypes import BY_NAME, contiguous
from ckpt.model.errors import CutOffError
from ckpt.formats.common.holes import partial_place, lost_notices
from ckpt.formats.common.merge import merge_members
from ckpt.formats.format import Format
from ckpt.model.nodes import Dict
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, tensor_ref

MAGIC = b"TOY1\\n"


def sniff(probe):
    return probe.head.startswith(MAGIC)


FORMAT = Format("toy", Traits("toy file", "toy.load({path})", keeps_ties=False), sniff, reader="toy_format",
                suffixes=(".toy",), writer="toy_writer", verifier="toy_verifier", salvager="toy_verifier")


def files(probe):
    if not probe.is_folder or "TOYS" not in probe.location.names():
        return None
    source = probe.location.child("TOYS").open()
    return ["TOYS", *source.read(0, source.size).decode().split()]


FOLDER = Format("toys", Traits("folder of toys", is_set=True), lambda probe: files(probe) is not None, files,
                reader="toy_folder", verifier="toy_folder")


def shapes_of(source):
    data = source.read(0, min(source.size, 65536))
    end = data.index(b"\\n", len(MAGIC)) + 1
    return json.loads(data[len(MAGIC) : end]), end


def read(probe, limits):
    return checkpoint_of(probe)


def checkpoint_of(probe, is_cut=False):
    shapes, at = shapes_of(probe.file)
    root, entries, storages, short = Dict(), [], [], {}
    dtype = BY_NAME["float32"]
    for name, shape in shapes.items():
        size = 4 * prod(shape)
        is_short = at + size > probe.size
        if is_short and not is_cut:
            raise CutOffError("cut off: its last tensors are not here")
        place = partial_place(size, "it is not here") if is_short else Range(probe.file, at, size)
        storage = Storage(f"{probe.mark}{len(storages)}", None, dtype, size, place)
        if is_short:
            short[storage] = 0
        ref = tensor_ref(storage, dtype, tuple(shape), contiguous(tuple(shape)), 0)
        root.keys.append(name)
        root.values.append(ref)
        entries.append(Entry((name,), name, ref))
        storages.append(storage)
        at += size
    return Checkpoint(path=probe.path, format=FORMAT.name, traits=FORMAT.traits, nbytes=probe.size, root=root,
                      tensors=tuple(entries), storages=tuple(storages), sources=(probe.file,),
                      account=Account(tuple(lost_notices(entries, short))))
'''

FOLDER = """
from ckpt.model.checkpoint import Member
from ckpt.formats.common.merge import merge_members
from ckpt.formats.format import ChecksumReport
from toy_format import FOLDER, files


def read(probe, limits):
    parts = [Member(name, name.removesuffix(".toy"), probe.open(probe.location.child(name), name + ":"))
             for name in files(probe)[1:]]
    return merge_members(probe.path, FOLDER.name, parts)


def checksums(probe, limits, executor, progress, check):
    return ChecksumReport.together([check(probe.location.child(name), name + ":") for name in files(probe)[1:]])
"""

WRITER = """
import json
from ckpt.elements.blocks import elements, pour, same_bytes
from ckpt.elements.computed import place_of
from ckpt.model.errors import WriteError
from ckpt.formats.common.writing import Draft
from ckpt.model.tensors import Storage, TensorRef
from toy_format import MAGIC


def unfit(entry):
    tensor = entry.tensor
    return None if isinstance(tensor, TensorRef) and tensor.dtype.name == "float32" else "no float32"


def losses(checkpoint):
    return [*(entry.name for entry in checkpoint.tensors if unfit(entry)), *(v.name for v in checkpoint.values)]


def draft(checkpoint, limits):
    shapes = {entry.name: list(entry.tensor.shape) for entry in checkpoint.tensors}
    head = MAGIC + json.dumps(shapes).encode() + b"\\n"

    def write(sink):
        sink.write(head)
        for entry in checkpoint.tensors:
            ref = entry.tensor
            if ref.numel:
                pour(Storage(entry.name, None, ref.dtype, ref.nbytes, place_of(ref)), sink, crc=False)

    return Draft(len(head) + sum(entry.tensor.nbytes for entry in checkpoint.tensors), write)


def compare(planned, written):
    if [(e.name, e.tensor.shape) for e in planned.tensors] != [(e.name, e.tensor.shape) for e in written.tensors]:
        raise WriteError("other tensors")


def compare_bytes(planned, written):
    for one, two in zip(planned.tensors, written.tensors, strict=True):
        if not same_bytes(elements(one.tensor), elements(two.tensor)):
            raise WriteError(f"other bytes in {one.name}")
"""

VERIFIER = '''
from math import prod
from ckpt.formats.format import ChecksumReport, Damage
from toy_format import MAGIC, checkpoint_of, shapes_of


def checksums(probe, limits, executor, progress, check):
    """A byte of all ones, four times, is what this format never holds."""
    shapes, at = shapes_of(probe.file)
    damage = []
    for number, shape in enumerate(shapes.values()):
        if b"\\xff\\xff\\xff\\xff" in probe.file.read(at, 4 * prod(shape)):
            damage.append(Damage("bytes that cannot be", f"{probe.mark}{number}"))
        at += 4 * prod(shape)
    return ChecksumReport(probe.size, tuple(damage), 0)


def salvage(probe, limits):
    return checkpoint_of(probe, is_cut=True) if probe.head.startswith(MAGIC) else None
'''


def toy_file(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    data = b"".join(
        tensor.numpy().astype("<f4").tobytes() for tensor in tensors.values()
    )
    path.write_bytes(b"TOY1\n" + json.dumps(shapes).encode() + b"\n" + data)
    return path


def read_toy(path: Path) -> dict[str, torch.Tensor]:
    """A toy file without anything of ckpt."""
    magic, head, data = path.read_bytes().split(b"\n", 2)
    assert magic == b"TOY1"
    found, at = {}, 0
    for name, shape in json.loads(head).items():
        count = int(np.prod(shape, dtype=np.int64))
        found[name] = torch.from_numpy(
            np.frombuffer(data, "<f4", count, at).reshape(shape).copy()
        )
        at += 4 * count
    assert at == len(data)
    return found


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return {
        "module.conv.weight": torch.randn(4, 3, 3, 3, generator=chance),
        "module.conv.bias": torch.randn(4, generator=chance),
        "module.fc.weight": torch.randn(2, 4, generator=chance),
    }


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) for name in one
    )


class Toy:
    """A folder with a toy file, and the command where its distribution is installed."""

    def __init__(self, folder: Path, entry: str = "toy_format:FORMAT") -> None:
        self.site = folder / "site"
        (self.site / "toy-1.0.dist-info").mkdir(parents=True)
        (self.site / "toy-1.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n"
        )
        (self.site / "toy-1.0.dist-info" / "entry_points.txt").write_text(
            f"[ckpt.formats]\ntoy = {entry}\ntoys = toy_format:FOLDER\n"
        )
        for name, text in (
            ("toy_format", READER),
            ("toy_folder", FOLDER),
            ("toy_writer", WRITER),
            ("toy_verifier", VERIFIER),
        ):
            (self.site / f"{name}.py").write_text(text)
        self.work = folder / "work"
        self.work.mkdir()
        self.file = toy_file(self.work / "a.toy", state())
        self.mark = folder / "mark"

    def run(self, *arguments: str, **changes: str) -> Done:
        """What `ckpt ARGUMENTS` does among the toy files; `mark` is there once the
        toy's module was imported.

        There is no fence, so that the toy can write its mark.
        """
        self.mark.unlink(missing_ok=True)
        return ckpt(
            *arguments,
            cwd=self.work,
            **{
                "PYTHONPATH": f"{ROOT}:{self.site}",
                "TOY_MARK": str(self.mark),
                "CKPT_FENCE": "0",
                **changes,
            },
        )

    def json(self, *arguments: str, code: int = 0) -> dict[str, object]:
        done = self.run(*arguments, "--json")
        assert done.code == code and not done.err, done
        found: dict[str, object] = json.loads(done.out)
        return found


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


def test_inspect(toy: Toy) -> None:
    found = toy.json("inspect", "a.toy")

    assert found["file"]["format"] == "toy"  # type: ignore[index]
    rows = {row["name"]: row["shape"] for row in found["tensors"]}  # type: ignore[attr-defined]
    assert rows == {name: list(tensor.shape) for name, tensor in state().items()}
    text = toy.run("inspect", "a.toy").out.decode()
    assert "toy file" in text and 'toy.load("a.toy")' in text
    assert toy.mark.exists()


def test_a_format_without_an_expression_that_loads_it_says_so(toy: Toy) -> None:
    code = READER.replace("toy.load({path})", "")
    (toy.site / "toy_format.py").write_text(code)

    lines = toy.run("inspect", "a.toy").lines
    assert lines[1] == "  loads   the format names no function that loads it"
    # And the command below it writes a file that torch or safetensors loads.
    command = lines[2].split()
    assert command[:3] == ["ckpt", "convert", "a.toy"]
    assert toy.run(*command[1:]).code == 0
    assert same(safetensors.torch.load_file(toy.work / command[-1]), state())
    assert toy.json("inspect", "a.toy")["load"] is None
    said = toy.run("explain", "KeyError: 'a'", "a.toy").lines
    assert "It loads so:" not in said


def test_get(toy: Toy) -> None:
    done = toy.run("get", "a.toy", "module.fc.weight")

    assert done.code == 0 and done.lines[:2] == [
        "module.fc.weight",
        "  dtype    float32",
    ]


def test_diff_with_itself_with_another_and_with_other_formats(toy: Toy) -> None:
    toy_file(toy.work / "same.toy", state())
    toy_file(
        toy.work / "other.toy",
        {**state(), "module.conv.bias": state()["module.conv.bias"] + 1},
    )
    torch.save(state(), toy.work / "same.pt")
    safetensors.numpy.save_file(
        {name: tensor.numpy() for name, tensor in state().items()},
        toy.work / "same.safetensors",
    )

    for other in ("a.toy", "same.toy", "same.pt", "same.safetensors"):
        assert toy.run("diff", "a.toy", other).code == 0, other
        assert toy.run("diff", other, "a.toy").code == 0, other
    done = toy.run("diff", "--name-only", "a.toy", "other.toy")
    assert done.code == 1 and done.lines == ["module.conv.bias"]
    assert toy.run("diff", "--structure", "a.toy", "other.toy").code == 0


def test_warmstart_on_both_sides(toy: Toy) -> None:
    target = {
        "conv.weight": torch.zeros(4, 3, 3, 3),
        "conv.bias": torch.zeros(4),
        "head.weight": torch.zeros(5, 4),
    }
    expected = {
        "conv.weight": state()["module.conv.weight"],
        "conv.bias": state()["module.conv.bias"],
        "head.weight": target["head.weight"],
    }
    torch.save(target, toy.work / "target.pt")
    toy_file(toy.work / "target.toy", target)
    torch.save(state(), toy.work / "given.pt")

    assert (
        toy.run("warmstart", "a.toy", "--into", "target.pt", "-o", "from.pt").code == 0
    )
    assert (
        toy.run("warmstart", "given.pt", "--into", "target.toy", "-o", "into.toy").code
        == 0
    )
    assert (
        toy.run("warmstart", "a.toy", "--into", "target.toy", "-o", "both.toy").code
        == 0
    )

    assert same(torch.load(toy.work / "from.pt"), expected)
    assert same(read_toy(toy.work / "into.toy"), expected) and same(
        read_toy(toy.work / "both.toy"), expected
    )


def test_stats(toy: Toy) -> None:
    rows = {row["name"]: row for row in toy.json("stats", "a.toy")["tensors"]}  # type: ignore[attr-defined]

    assert rows.keys() == state().keys()
    for name, tensor in state().items():
        assert rows[name]["mean"] == pytest.approx(tensor.double().mean().item())
        assert rows[name]["max"] == tensor.max().item()


def test_lint_never_asks_other_distributions(toy: Toy) -> None:
    """It is a gate for files that come from anywhere."""
    done = toy.run("lint", "a.toy")

    assert done.code == 2 and len(done.complaints) == 2 and not toy.mark.exists()
    torch.save({"a.weight": torch.ones(2)}, toy.work / "b.pt")
    assert toy.run("lint", ".").code == 0 and not toy.mark.exists()


def test_verify_a_whole_a_damaged_and_a_cut_file(toy: Toy) -> None:
    assert toy.json("verify", "a.toy")["verdict"] == "intact"
    data = toy.file.read_bytes()
    (toy.work / "damaged.toy").write_bytes(data[:-4] + b"\xff\xff\xff\xff")
    damaged = toy.json("verify", "damaged.toy", code=1)
    assert damaged["verdict"] == "damaged"
    assert [row["tensors"] for row in damaged["problems"]] == [["module.fc.weight"]]  # type: ignore[attr-defined]
    assert toy.json("verify", "--quick", "damaged.toy")["verdict"] == "intact"
    (toy.work / "cut.toy").write_bytes(data[:-4])
    cut = toy.json("verify", "cut.toy", code=1)
    assert cut["verdict"] == "damaged"
    assert (cut["whole"], cut["lost"]) == (
        ["module.conv.weight", "module.conv.bias"],
        ["module.fc.weight"],
    )


def test_sum_and_verify_sums(toy: Toy) -> None:
    torch.save(state(), toy.work / "same.pt")
    done = toy.run("sum", "a.toy")

    assert (
        done.code == 0
        and done.out == toy.run("sum", "same.pt").out
        and len(done.lines) == 3
    )
    (toy.work / "sums").write_bytes(done.out)
    assert toy.run("verify", "--sums", "sums", "a.toy").code == 0
    toy_file(toy.work / "other.toy", state(1))
    assert toy.run("verify", "--sums", "sums", "other.toy").code == 1


def test_rename_and_strip(toy: Toy) -> None:
    assert (
        toy.run("rename", "a.toy", "--sub", "s/conv/first/", "-o", "renamed.toy").code
        == 0
    )
    assert toy.run("strip", "a.toy", "-o", "stripped.toy").code == 0

    renamed = {
        name.replace("conv", "first"): tensor for name, tensor in state().items()
    }
    assert same(read_toy(toy.work / "renamed.toy"), renamed)
    stripped = {
        name.removeprefix("module."): tensor for name, tensor in state().items()
    }
    assert same(read_toy(toy.work / "stripped.toy"), stripped)


def test_rewriting_in_place(toy: Toy) -> None:
    """The format appends nothing: the file is written anew, and put in its place."""
    assert toy.run("strip", "a.toy", "--in-place").code == 0

    stripped = {
        name.removeprefix("module."): tensor for name, tensor in state().items()
    }
    assert same(read_toy(toy.file), stripped)


@pytest.mark.parametrize("further", [(), ("--verify", "crc")], ids=["", "--verify crc"])
def test_rehome_and_slim_keep_what_they_do_not_change(
    further: tuple[str, ...], toy: Toy
) -> None:
    for command in ("rehome", "slim"):
        done = toy.run(command, "a.toy", "-o", f"{command}.toy", *further)
        assert done.code == 0, done
        assert same(read_toy(toy.work / f"{command}.toy"), state())
    assert toy.run("strip", "a.toy", "-o", "stripped.toy", *further).code == 0


def test_convert_to_the_formats_of_the_table(toy: Toy) -> None:
    assert (
        toy.run("convert", "a.toy", "-o", "b.safetensors", "--verify", "crc").code == 0
    )
    assert (
        toy.run(
            "convert", "a.toy", "--format", "torch-zip", "-o", "b.pt", "--verify", "crc"
        ).code
        == 0
    )
    assert (
        toy.run("convert", "a.toy", "--format", "torch-legacy", "-o", "c.pt").code == 0
    )

    loaded = safetensors.numpy.load_file(toy.work / "b.safetensors")
    assert same(
        {name: torch.from_numpy(array) for name, array in loaded.items()}, state()
    )
    assert same(torch.load(toy.work / "b.pt"), state()) and same(
        torch.load(toy.work / "c.pt"), state()
    )


# --- a folder that is one checkpoint --------------------------------------------------


@pytest.fixture
def toys(toy: Toy) -> Toy:
    """A toy folder in a folder: two files that are one checkpoint, and another
    checkpoint beside them.
    """
    folder = toy.work / "runs" / "set"
    folder.mkdir(parents=True)
    toy.file.rename(folder / "a.toy")
    toy_file(folder / "b.toy", {"bias": torch.ones(3)})
    (folder / "TOYS").write_text("a.toy\nb.toy\n")
    torch.save({"a.weight": torch.ones(2)}, toy.work / "runs" / "z.pt")
    return toy


def test_a_folder_of_another_distribution_is_one_checkpoint(toys: Toy) -> None:
    names = [f"a.{name}" for name in state()] + ["b.bias"]

    assert [row["name"] for row in toys.json("inspect", "runs/set")["tensors"]] == names  # type: ignore[attr-defined]
    assert toys.json("verify", "runs/set")["verdict"] == "intact"
    assert (
        toys.run("convert", "runs/set", "--format", "torch-zip", "-o", "one.pt").code
        == 0
    )
    loaded = torch.load(toys.work / "one.pt")
    assert same(loaded["a"], state()) and loaded["b"]["bias"].tolist() == [1, 1, 1]


def test_ls_lists_a_folder_of_another_distribution_once(toys: Toy) -> None:
    done = toys.run("ls", "runs", "--tsv", "--no-header")
    rows = [line.split("\t") for line in done.lines]

    assert done.code == 0 and [row[0] for row in rows] == ["runs/set", "runs/z.pt"]
    assert rows[0][1] == "toys"
    without = toys.run("ls", "runs", "--tsv", "--no-header", CKPT_NO_PLUGINS="1")
    assert [line.split("\t")[0] for line in without.lines] == ["runs/z.pt"]
    assert b"3 not looked at" in without.err


def test_lint_counts_the_files_of_a_folder_of_another_distribution(toys: Toy) -> None:
    done = toys.run("lint", "runs")

    assert (
        done.code == 0
        and b"3 files not looked at" in done.err
        and not toys.mark.exists()
    )


@pytest.mark.skipif(not HAS_FILTERS, reason="this kernel filters no calls")
@pytest.mark.parametrize("command", ["ls", "verify"])
def test_another_distribution_reads_behind_the_fence(command: str, toys: Toy) -> None:
    with_fence = {"CKPT_FENCE": "1", "TOY_MARK": ""}

    done = toys.run(command, "runs", "--json", **with_fence)
    assert (
        done == toys.run(command, "runs", "--json")
        and done.code == 0
        and b"toys" in done.out
    )
    for path in ("runs/set", "runs"):
        stopped = toys.run(command, path, CKPT_FENCE="1")
        assert (
            stopped.code == 2 and stopped.out == b"" and b"toy_format.py" in stopped.err
        )
        assert stopped.complaints[-2].endswith("(CKPT_FENCE=0 switches it off)")
    assert not toys.mark.exists()


# --- when other distributions are asked -----------------------------------------------


def test_no_plugin_is_imported_where_a_format_of_the_table_knows_the_file(
    toy: Toy,
) -> None:
    torch.save(state(), toy.work / "b.pt")

    for arguments in (
        ("inspect", "b.pt"),
        ("diff", "b.pt", "b.pt"),
        ("stats", "b.pt"),
        ("verify", "b.pt"),
        ("strip", "b.pt", "-o", "c.pt", "--verify", "crc"),
        ("convert", "b.pt", "-o", "c.safetensors"),
    ):
        assert toy.run(*arguments).code == 0, arguments
        assert not toy.mark.exists(), arguments


def test_the_environment_says_no(toy: Toy) -> None:
    for arguments in (
        ("inspect", "a.toy"),
        ("verify", "a.toy"),
        ("strip", "a.toy", "-o", "b.toy"),
    ):
        done = toy.run(*arguments, CKPT_NO_PLUGINS="1")
        assert done.code == 2 and not toy.mark.exists()
        assert not (toy.work / "b.toy").exists()
    check_error(toy.run("inspect", "a.toy", CKPT_NO_PLUGINS="1"))


def test_python_asks_only_where_it_is_told_to(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(toy.site))
    monkeypatch.setenv("TOY_MARK", str(toy.mark))

    with pytest.raises(CkptError):
        formats.open(str(toy.file))
    assert not toy.mark.exists()


def test_a_file_that_nobody_knows_is_refused_as_without_plugins(toy: Toy) -> None:
    (toy.work / "page.pt").write_bytes(b"<!DOCTYPE html>\n<html></html>\n")

    assert (
        toy.run("inspect", "page.pt").err
        == toy.run("inspect", "page.pt", CKPT_NO_PLUGINS="1").err
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        "no_such_module",
        "toy_format:no_such_name",
        "toy_format",
        "toy_format:MAGIC",
        "broken",
        "broken_syntax",
        "exits",
    ],
)
def test_a_plugin_that_does_not_load_is_one_line(entry: str, tmp_path: Path) -> None:
    toy = Toy(tmp_path, entry)
    (toy.site / "broken.py").write_text("raise RuntimeError('two\\nlines \\x1b[31m')\n")
    (toy.site / "broken_syntax.py").write_text("def (:\n")
    (toy.site / "exits.py").write_text("raise ImportError('no GPU here')\n")

    line = check_error(toy.run("inspect", "a.toy"))
    assert "toy" in line
    torch.save(state(), toy.work / "b.pt")
    assert toy.run("inspect", "b.pt").code == 0, (
        "a file that is known needs nobody else"
    )
    assert toy.run("inspect", "a.toy", CKPT_NO_PLUGINS="1").code == 2

"""Damage is never laundered: what a writer copies keeps its checksum, and all other
bytes are compared with theirs.
"""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import deepspeeds
import folders
import frameworks_dcp
import oracle
import pytest
import torch
from inside import inside
from paths import IS_THOROUGH

from ckpt import formats
from ckpt.model.places import Checksum, Range
from ckpt.model.tensors import parts_of

pytestmark = oracle.QUIET

LARGE = 150_000
"""Bytes of a record that is not read in passing."""


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "l0.weight": torch.randn(40, LARGE // 160),
        "l0.bias": torch.randn(40),
        "l1.weight": torch.randn(7, 5).half(),
    }


def _zip(path: Path, _: Path) -> None:
    torch.save({"model": state(), "epoch": 1}, path)


def _deflated(path: Path, _: Path) -> None:
    stored = path.with_name("stored.pth")
    torch.save({"model": state()}, stored)
    with (
        zipfile.ZipFile(stored) as old,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    stored.unlink()


def _views(path: Path, _: Path) -> None:
    base = torch.arange(LARGE, dtype=torch.float32)
    torch.save(
        {
            "model": {
                "a.weight": base[:100].view(10, 10),
                "b.weight": base[200:300],
                "c.weight": base[::2],
            }
        },
        path,
    )


def _shards(path: Path, _: Path) -> None:
    path.mkdir()
    tensors = state()
    for number, name in enumerate(tensors, 1):
        torch.save(
            {name: tensors[name]}, path / f"pytorch_model-{number:05}-of-00003.bin"
        )
    listed = {
        name: f"pytorch_model-{number:05}-of-00003.bin"
        for number, name in enumerate(tensors, 1)
    }
    (path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": listed})
    )


def _accelerate(path: Path, _: Path) -> None:
    path.mkdir()
    folders.accelerate(path, safe=False)


def _copied(name: str) -> Callable[[Path, Path], None]:
    return lambda path, ranks: shutil.copytree(ranks / name, path) and None


SOURCES: dict[str, Callable[[Path, Path], None]] = {
    "zip": _zip,
    "deflated": _deflated,
    "views": _views,
    "shards": _shards,
    "accelerate": _accelerate,
    "dcp": lambda path, _: frameworks_dcp.save(path, {"model": state()}) and None,
    "fsdp2": _copied("fsdp2"),
    "tensor_parallel": _copied("tensor_parallel"),
    "deepspeed 2": lambda path, _: deepspeeds.write(path, 2) and None,
    "deepspeed 3": lambda path, _: deepspeeds.write(path, 3) and None,
    "script": lambda path, _: torch.jit.trace(
        torch.nn.Linear(90, 80), torch.randn(2, 90)
    ).save(str(path)),
}
COMMANDS = {
    "to a zip": ("convert", "a", "-o", "o.pth", "--force"),
    "to a stream": ("convert", "a", "-o", "o.pt", "--format", "torch-legacy"),
    "to safetensors": ("convert", "a", "-o", "o.safetensors", "--drop-other"),
    "to shards": (
        "convert",
        "a",
        "-o",
        "o.safetensors",
        "--drop-other",
        "--shard-size",
        "1KB",
    ),
    "to a DCP": ("convert", "a", "-o", "o.dcp", "--optimizer-keys", "numbers"),
    "to three ranks": (
        "convert",
        "a",
        "-o",
        "o.dcp",
        "--optimizer-keys",
        "numbers",
        "--ranks",
        "3",
    ),
    "cast": ("convert", "a", "-o", "o.pth", "--dtype", "bfloat16"),
    "slim": ("slim", "a", "-o", "o.pth", "--drop-other"),
    "rehome": ("rehome", "a", "--to", "cuda:1", "-o", "o.pth"),
    "rename": ("rename", "a", "--sub", "s/^/k./", "-o", "o.pth"),
}


def records(path: Path) -> dict[Checksum, set[str]]:
    """The records of a file or a folder, and the names of the tensors over each."""
    found: dict[Checksum, set[str]] = {}
    with formats.open(str(path)) as checkpoint:
        for entry in checkpoint.tensors:
            for part in parts_of(entry.tensor):
                for checksum in part.storage.list_checksums():
                    if checksum.place.size:
                        found.setdefault(checksum, set()).add(entry.name)
    return found


def flip(checksum: Checksum, number: int) -> None:
    """Change one byte of a record in its file."""
    place = checksum.place
    with open(place.source.name, "r+b") as file:
        file.seek(place.offset + number % place.size)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def verdict(path: str, folder: Path) -> str:
    return str(json.loads(inside("verify", path, "--json", cwd=folder).out)["verdict"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "command"),
    [
        # Each source and each command, three pairs of ten.
        (source, command)
        for row, source in enumerate(SOURCES)
        for at, command in enumerate(COMMANDS)
        if IS_THOROUGH or (at + 3 * row) % 10 < 3
    ],
)
def test_no_writer_makes_damage_look_intact(
    source: str, command: str, tmp_path: Path, ranks: Path
) -> None:
    words = COMMANDS[command]
    SOURCES[source](tmp_path / "a", ranks)
    whole = inside(*words, "--json", cwd=tmp_path)
    if whole.code:
        # What cannot be written cannot be laundered.
        no_device = command == "rehome" and b"keeps no device" in whole.err
        assert source == "script" or source.startswith("tensor") or no_device, whole
        return
    written = _names(tmp_path, whole.out)
    _clear(tmp_path)
    rows = [
        row
        for row, over in records(tmp_path / "a").items()
        if any(map(written.__contains__, map(_end, over)))
    ]
    assert rows
    machine = random.Random(7)
    seen: set[str] = set()
    for row in machine.sample(rows, min(3, len(rows))):
        number = machine.randrange(row.place.size)
        flip(row, number)
        assert verdict("a", tmp_path) == "damaged"
        done = inside(*words, "--json", cwd=tmp_path)
        if done.code == 2:
            document = json.loads(done.out)
            # A counter of steps that is damaged differs from the others as well, which
            # is said before.
            said = [
                line for line in done.err.splitlines() if b" took 3 steps" not in line
            ]
            assert document["error"]["code"] == "damaged-data" and len(said) == 1, done
            assert [path for path in tmp_path.iterdir() if path.name != "a"] == []
            seen.add("refused")
        else:
            assert done.code == 0, done
            out = json.loads(done.out)["output"]["path"]
            used = records(tmp_path / out)
            if verdict(out, tmp_path) == "damaged":
                seen.add("carried")
                assert used
            else:  # the copy of another rank, or another precision, was taken
                assert source in ("deepspeed 2", "deepspeed 3", "tensor_parallel")
        flip(row, number)
        _clear(tmp_path)
    assert seen or source in ("deepspeed 2", "deepspeed 3", "tensor_parallel")
    assert verdict("a", tmp_path) == "intact"


def _names(folder: Path, out: bytes) -> set[str]:
    with formats.open(str(folder / json.loads(out)["output"]["path"])) as checkpoint:
        return {_end(entry.name) for entry in checkpoint.tensors}


def _end(name: str) -> str:
    """The last two parts of a name, which no command here changes."""
    return ".".join(name.split(".")[-2:])


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "a":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_damage_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, ranks: Path
) -> None:
    _zip(tmp_path / "a", ranks)
    flip(max(records(tmp_path / "a"), key=lambda row: row.place.size), 5)
    done = inside("convert", "a", "-o", "o.safetensors", "--drop-other", cwd=tmp_path)
    assert done.code == 2 and [path.name for path in tmp_path.iterdir()] == ["a"]
    assert done.err.decode() == (
        "ckpt: a: l0.weight is damaged: the bytes do not match the recorded checksum, "
        "so nothing was written (--keep-damaged writes it all the same)\n"
    )


def test_keep_damaged_writes_and_says_which(tmp_path: Path, ranks: Path) -> None:
    _zip(tmp_path / "a", ranks)
    flip(max(records(tmp_path / "a"), key=lambda row: row.place.size), 5)
    words = ("convert", "a", "-o", "o.safetensors", "--drop-other", "--keep-damaged")
    done = inside(*words, "--json", cwd=tmp_path)
    assert done.code == 1 and json.loads(done.out)["damaged"] == ["l0.weight"]
    assert done.err.decode() == (
        "ckpt: o.safetensors: l0.weight is damaged: the bytes do not match the "
        "recorded checksum\n"
    )
    whole = inside(*words[:-1], "--force", "--dry-run", "--json", cwd=tmp_path)
    assert whole.code == 0 and json.loads(whole.out)["damaged"] == []


def test_a_deflated_record_keeps_its_checksum_where_damage_is_kept(
    tmp_path: Path, ranks: Path
) -> None:
    _deflated(tmp_path / "a", ranks)
    row = max(records(tmp_path / "a"), key=lambda row: row.place.size)
    flip(
        row, row.place.size // 2
    )  # inside of a stored block of deflate, or of its codes
    done = inside("slim", "a", "-o", "o.pth", "--keep-damaged", cwd=tmp_path)
    if done.code == 2:  # it does not inflate: nothing can be kept
        assert b"deflate" in done.err
    else:
        assert done.code == 1 and verdict("o.pth", tmp_path) == "damaged"


def test_verify_crc_compares_what_keeps_its_checksum_too(
    tmp_path: Path, ranks: Path
) -> None:
    _zip(tmp_path / "a", ranks)
    flip(max(records(tmp_path / "a"), key=lambda row: row.place.size), 5)
    assert (
        inside("rehome", "a", "--to", "cuda:1", "-o", "o.pth", cwd=tmp_path).code == 0
    )
    assert verdict("o.pth", tmp_path) == "damaged"
    done = inside(
        "rehome", "a", "--to", "cuda:1", "-o", "p.pth", "--verify", "crc", cwd=tmp_path
    )
    assert done.code == 2 and b"l0.weight is damaged" in done.err


@pytest.mark.parametrize("into", ["pretrained", "target"])
def test_a_warm_start_launders_neither_side(into: str, tmp_path: Path) -> None:
    first, second = state(1), state(2)
    second["l0.weight"] = torch.randn(50, LARGE // 160)
    torch.save(first, tmp_path / "pretrained")
    torch.save(second, tmp_path / "target")
    row = max(records(tmp_path / into), key=lambda row: row.place.size)
    flip(row, row.place.size - 1)
    words = (
        "warmstart",
        "pretrained",
        "--into",
        "target",
        "--on-mismatch",
        "slice",
        "-o",
        "o.pth",
    )
    done = inside(*words, cwd=tmp_path)
    assert done.code == 2 and b"l0.weight is damaged" in done.err, done
    assert done.err.startswith(f"ckpt: {into}: ".encode())


def test_whole_runs_of_several_records_are_not_read(
    tmp_path: Path, ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their recorded checksums are combined: the result verifies, and only small
    records passed.
    """
    torch.save(torch.zeros(1), tmp_path / "unused")
    frameworks_dcp.save(tmp_path / "d", {"model": state()})
    assert inside("convert", "d", "-o", "r.dcp", "--ranks", "4", cwd=tmp_path).code == 0

    def refuse(*_: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr("ckpt.elements.blocks.SMALL", 30_000)
        patch.setattr(Range, "stream_blocks", _small_only(refuse))
        assert inside("convert", "r.dcp", "-o", "o.pth", cwd=tmp_path).code == 0
    assert verdict("o.pth", tmp_path) == "intact"
    found = torch.load(tmp_path / "o.pth", weights_only=True)["model"]
    assert all(torch.equal(found[name], value) for name, value in state().items())


def _small_only(refuse: Callable[..., None]) -> Callable[..., object]:
    real = Range.stream_blocks

    def stream(place: Range, start: int, count: int, *more: object) -> object:
        if count > 30_000:
            refuse()
        return real(place, start, count, *more)  # type: ignore[arg-type]

    return stream


@pytest.mark.parametrize(
    "source", ["zip", "deflated", "views", "dcp", "fsdp2", "deepspeed 3"]
)
def test_figures_and_sums_of_damaged_tensors_are_not_given(
    source: str, tmp_path: Path, ranks: Path
) -> None:
    SOURCES[source](tmp_path / "a", ranks)
    whole = {
        command: inside(command, "a", "--all", cwd=tmp_path)
        for command in ("stats", "sum")
    }
    assert {done.code for done in whole.values()} == {0}
    row, over = max(records(tmp_path / "a").items(), key=lambda row: row[0].place.size)
    flip(row, 1)
    document = inside("stats", "a", "--all", "--json", cwd=tmp_path)
    assert document.code == 2 and set(json.loads(document.out)["unread"]) == over
    sums = inside("sum", "a", "--all", cwd=tmp_path)
    assert sums.code == 2 and sums.err.count(b"\n") == 1 and b"not read: " in sums.err
    assert {line.split("  ", 1)[1] for line in sums.lines if line[0] != "#"}.isdisjoint(
        over
    )
    listed = [
        [line for line in done.lines if line[0] != "#"] for done in (sums, whole["sum"])
    ]
    assert len(listed[0]) == len(listed[1]) - len(over)

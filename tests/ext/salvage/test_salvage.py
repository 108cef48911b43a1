"""What `ckpt salvage` writes of files that are cut off or damaged, held against the
tensors of the whole file.
"""

from __future__ import annotations

import json
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import folders
import numpy as np
import oracle
import pytest
import torch
from inside import inside
from paths import IS_THOROUGH
from safetensors.torch import save_file
from torch.jit._pickle import restore_type_tag

import ckpt
from ckpt import formats
from ckpt.elements.audit import DAMAGED
from ckpt.evidence.survey import Survey
from ckpt.ext.salvage.salvage import salvage
from ckpt.formats.verify import remainder
from ckpt.model.limits import Limits
from ckpt.model.places import Range
from ckpt.model.tensors import parts_of

pytestmark = oracle.QUIET
SAMPLES = Path(__file__).parents[3] / "sample_checkpoints"


def train(path: Path, **options: Any) -> Path:
    """A training checkpoint: tied weights, views of one storage, an empty tensor, the
    optimizer, values.
    """
    torch.manual_seed(0)
    flat = torch.randn(60)
    model = {
        f"layers.{n}.{key}": torch.randn(5, 7)
        for n in range(3)
        for key in ("weight", "proj")
    }
    model |= {
        "head.weight": model["layers.0.weight"],
        "a": flat[:20],
        "b": flat[20:50],
        "c": flat[50:].view(2, 5),
    }
    model |= {
        "none": torch.empty(0, 3),
        "count": torch.tensor(7),
        "half": torch.randn(3, 3).half().T,
    }
    state = {
        n: {
            "step": torch.tensor(3.0),
            "exp_avg": torch.randn(5, 7),
            "exp_avg_sq": torch.rand(5, 7),
        }
        for n in range(6)
    }
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(6))}]
    whole = {
        "model": model,
        "optimizer": {"state": state, "param_groups": groups},
        "epoch": 3,
        "list": [torch.ones(2), 5],
    }
    torch.save(whole, path, **options)
    return path


def deflated(path: Path, *, streamed: bool = False) -> Path:
    """The same archive with deflated records; `streamed` ones have their sizes behind
    them.
    """
    out = path.with_suffix(".deflated.pth")
    with zipfile.ZipFile(path) as old, out.open("wb") as raw:
        sink: Any = _Pipe(raw) if streamed else raw
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
    return out


class _Pipe:
    """A file that cannot seek: zipfile then writes sizes after the data."""

    def __init__(self, raw: Any) -> None:
        self.write, self.flush = raw.write, raw.flush


def ends_of(path: Path) -> dict[str, int]:
    """The offset behind the last byte of each tensor of a whole file."""
    ends: dict[str, int] = {}
    with formats.open(str(path)) as checkpoint:
        for entry in checkpoint.tensors:
            ends[entry.name] = 0
            for part in parts_of(entry.tensor):
                place = part.storage.place
                if part.numel and isinstance(place, Range):
                    last = place.size if place.inflated is not None else part.extent[1]
                    ends[entry.name] = max(ends[entry.name], place.offset + last)
    return ends


def values_of(path: Path) -> dict[str, Any]:
    with ckpt.open(path) as checkpoint:
        return {name: checkpoint[name].numpy() for name in checkpoint}


def same(one: Any, two: Any) -> bool:
    return (
        one.dtype == two.dtype
        and one.shape == two.shape
        and one.tobytes() == two.tobytes()
    )


def check(
    cut: Path, expected: set[str], whole: dict[str, Any], out: Path, *more: str
) -> dict[str, Any]:
    """Salvage a file, and hold the result against the whole tensors that are
    expected.
    """
    out.unlink(missing_ok=True)
    done = inside("salvage", cut, "-o", out, "--json", *more, cwd=cut.parent)
    report: dict[str, Any] = json.loads(done.out)
    if not expected:
        assert done.code == 2 and not out.exists()
        return report
    assert done.code == int(len(expected) < len(whole)), done
    found = values_of(out)
    assert found.keys() == expected
    assert all(same(found[name], whole[name]) for name in expected)
    lost = {row["name"] for row in report["lost"]}
    assert lost == whole.keys() - expected and report["salvaged"]["tensors"] == [
        len(expected),
        len(whole),
    ]
    return report


NUMBER = 200 if IS_THOROUGH else 24


def cuts(size: int, edges: set[int], seed: int, number: int = NUMBER) -> Iterator[int]:
    chance = random.Random(seed)
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    yield from sorted(
        {cut for cut in near if 0 < cut < size}
        | {chance.randrange(1, size) for _ in range(number)}
    )


def edges_of(path: Path) -> set[int]:
    """The first and last byte of each record, and of the parts of the directory."""
    if not zipfile.is_zipfile(path):
        return set(ends_of(path).values())
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        edges = {archive.start_dir}
        for row in archive.infolist():
            file.seek(row.header_offset)
            names, extras = struct.unpack("<26x2H", file.read(30))
            begin = row.header_offset + 30 + names + extras
            edges |= {
                row.header_offset,
                begin,
                begin + row.compress_size,
                begin + row.compress_size + 16,
            }
    return edges


CASES = (
    "zip",
    "legacy",
    "deflated",
    "streamed",
    "scripted",
    "module",
    "lightning",
    "safetensors",
)


def made(case: str, folder: Path) -> Path:
    if case == "legacy":
        return train(folder / "whole.pth", _use_new_zipfile_serialization=False)
    if case in ("deflated", "streamed"):
        return deflated(train(folder / "whole.pth"), streamed=case == "streamed")
    if case == "safetensors":
        save_file(
            {f"layers.{n}.w": torch.randn(n, 5) for n in range(7)},
            folder / "whole.safetensors",
        )
        return folder / "whole.safetensors"
    samples = {
        "scripted": "scripted.pt",
        "module": "whole_model.pth",
        "lightning": "lightning.ckpt",
    }
    if case in samples:
        path = folder / samples[case]
        path.write_bytes((SAMPLES / samples[case]).read_bytes())
        return path
    return train(folder / "whole.pth")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_file_cut_anywhere(case: str, tmp_path: Path) -> None:
    path = made(case, tmp_path)
    data, ends, whole = path.read_bytes(), ends_of(path), values_of(path)
    header = 8 + int.from_bytes(data[:8], "little")
    cut = tmp_path / f"cut{path.suffix}"
    counts = set()
    for size in cuts(len(data), edges_of(path), len(case)):
        cut.write_bytes(data[:size])
        rest = remainder(str(cut), Limits())
        if rest is None:  # its names are lost
            assert (
                size
                <= (
                    header
                    if case == "safetensors"
                    else min(end for end in ends.values() if end)
                )
                or case == "scripted"
            )
            check(cut, set(), whole, tmp_path / f"out{path.suffix}")
            continue
        expected = {name for name, end in ends.items() if end <= size}
        assert (
            set(rest.whole or ()) == expected
            and set(rest.lost or ()) == ends.keys() - expected
        )
        if (
            size % 3 == 0 or len(expected) not in counts
        ):  # not each of many that are alike
            check(cut, expected, whole, tmp_path / f"out{path.suffix}")
        counts.add(len(expected))
    assert len(counts) > 2 or (
        counts == {len(whole)} and case == "scripted"
    )  # whose names come last


# --- damage in the middle -------------------------------------------------------------


def damaged(path: Path, begin: int, data: bytes) -> Path:
    """A copy of a file with other bytes from an offset on."""
    out = path.with_name("damaged.pth")
    whole = bytearray(path.read_bytes())
    whole[begin : begin + len(data)] = data
    out.write_bytes(whole)
    return out


def test_a_record_that_contradicts_its_checksum(tmp_path: Path) -> None:
    path = train(tmp_path / "whole.pth")
    whole, data = values_of(path), path.read_bytes()
    at = data.index(whole["model.layers.1.proj"].tobytes())
    cut = damaged(path, at + 5, bytes([data[at + 5] ^ 4]))
    hurt = {"model.layers.1.proj"}
    report = check(cut, whole.keys() - hurt, whole, tmp_path / "o.pth")
    assert report["salvaged"]["reasons"] == [
        "1 tensor does not match its recorded checksum (--keep-damaged takes them)"
    ]
    done = inside(
        "salvage", cut, "-o", "kept.pth", "--keep-damaged", "--json", cwd=tmp_path
    )
    assert (
        done.code == 1
        and {row["name"] for row in json.loads(done.out)["left_alone"]} == hurt
    )
    assert values_of(tmp_path / "kept.pth").keys() == whole.keys()


@pytest.mark.parametrize("what", ["its header", "the end", "an entry", "the directory"])
def test_a_directory_and_records_that_disagree_lose_nothing(
    what: str, tmp_path: Path
) -> None:
    path = train(tmp_path / "whole.pth")
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        record, begin = archive.getinfo("whole/data/3"), archive.start_dir
    places = {
        "its header": (record.header_offset, bytes(30)),
        "the end": (len(data) - 22, bytes(22)),
        "an entry": (begin + 50, b"?" * 9),
        "the directory": (begin, bytes(len(data) - begin)),
    }
    cut = damaged(path, *places[what])
    check(cut, set(values_of(path)), values_of(path), tmp_path / "o.pth")


@pytest.mark.parametrize("share", [0.4, 0.5, 0.6])
def test_bytes_that_never_reached_the_disk_are_no_tensors(
    share: float, tmp_path: Path
) -> None:
    """A file of the right size whose end is zeros: a record there has its header, and
    no descriptor.
    """
    path = train(tmp_path / "whole.pth")
    size, whole = int(path.stat().st_size * share), values_of(path)
    with formats.open(str(path)) as checkpoint:
        ends = {
            entry.name: max(
                part.storage.place.offset + part.storage.nbytes
                for part in parts_of(entry.tensor)
            )
            for entry in checkpoint.tensors
        }
    cut = damaged(path, size, bytes(path.stat().st_size - size))
    check(
        cut,
        {name for name, end in ends.items() if end + 16 <= size} | {"model.none"},
        whole,
        tmp_path / "o.pth",
    )


def test_names_that_contradict_their_checksum_are_refused(tmp_path: Path) -> None:
    path = train(tmp_path / "whole.pth")
    cut = damaged(path, path.read_bytes().index(b"layers.1.proj"), b"k")
    done = inside("salvage", cut, "-o", "o.pth", cwd=tmp_path)
    assert done.code == 2 and not (tmp_path / "o.pth").exists()
    assert done.complaints == [
        (
            f"ckpt: {cut}: data.pkl does not match its recorded checksum: names, "
            "shapes and values in it may be wrong (--keep-damaged reads it all the "
            "same)"
        )
    ]
    assert (
        inside("salvage", cut, "-o", "o.pth", "--keep-damaged", cwd=tmp_path).code == 1
    )
    assert "model.kayers.1.proj" in values_of(tmp_path / "o.pth")


def test_a_rewrite_in_place_that_was_cut_off(tmp_path: Path) -> None:
    """The state before it is whole, and the one that `rehome --undo` brings back."""
    path = tmp_path / "whole.pth"
    torch.save({f"module.{n}": torch.ones(3) for n in range(900)}, path)
    size = path.stat().st_size
    assert inside("strip", path, "--in-place", cwd=tmp_path).code == 0
    data = path.read_bytes()
    assert len(data) > size + 65_535  # torch does not look so far back for the old end
    for cut_size in (size + 10, size + 40_000, len(data) - 30):
        cut = tmp_path / "cut.pth"
        cut.write_bytes(data[:cut_size])
        done = inside("salvage", cut, "-o", "o.pth", "--force", cwd=tmp_path)
        assert done.code == 0 and b"whole" in done.out, done
        assert set(values_of(tmp_path / "o.pth")) == {f"module.{n}" for n in range(900)}


# --- hostile headers ------------------------------------------------------------------


def archive_of(*rows: tuple[str, bytes]) -> bytes:
    """An archive of records with their sizes before the data."""
    out = b""
    for name, data in rows:
        out += struct.pack(
            "<4s5H3I2H",
            b"PK\3\4",
            0,
            0,
            0,
            0,
            0,
            zlib.crc32(data),
            len(data),
            len(data),
            len(name),
            0,
        )
        out += name.encode() + data
    return out


def pickle_in(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("whole/data.pkl")


def refused(data: bytes, folder: Path, text: str) -> None:
    (folder / "cut.pth").write_bytes(data)
    done = inside("salvage", "cut.pth", "-o", "o.pth", cwd=folder)
    assert done.code == 2 and not (folder / "o.pth").exists(), done
    (line,) = done.complaints
    assert text in line, line


def test_what_is_lost_is_named_once(tmp_path: Path) -> None:
    names = [f"layer{number}.weight" for number in range(9)]
    torch.save({name: torch.ones(64, 64) for name in names}, tmp_path / "whole.pth")
    data = (tmp_path / "whole.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(data[: len(data) * 2 // 3])

    done = inside("salvage", "cut.pth", "-o", "o.pth", cwd=tmp_path)
    text = done.out.decode()
    assert done.code == 1 and text.count("not whole") == 1, text
    assert "cut off: the zip archive has no directory" in text
    assert "lost: {layer6,layer7,layer8}.weight ×3: not whole" in text, text


def test_hostile_headers(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "whole.pth")
    names, ones = pickle_in(tmp_path / "whole.pth"), np.ones(4, "f4").tobytes()
    twice = archive_of(
        ("a/data.pkl", names), ("a/data/0", ones), ("a/data/0", bytes(16))
    )
    refused(twice, tmp_path, "duplicate record a/data/0")
    refused(
        archive_of(("a/data.pkl", names), ("b/data.pkl", names)), tmp_path, "two roots"
    )
    refused(
        archive_of(("a/../data.pkl", names)),
        tmp_path,
        "before the end of its list of tensors",
    )
    refused(
        archive_of(("a/data.pkl", names), ("a/data/1", ones)),
        tmp_path,
        "none of 1 tensor is whole",
    )
    refused(archive_of(("a/data.pkl", names[:-3])), tmp_path, "cut.pth")
    huge = bytearray(archive_of(("a/data.pkl", names), ("a/data/0", ones)))
    at = huge.index(b"a/data/0") - 30
    huge[at + 18 : at + 26] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    (tmp_path / "cut.pth").write_bytes(
        huge
    )  # it claims 4 GiB: the bytes that are there are those of the tensor
    assert inside("salvage", "cut.pth", "-o", "o.pth", cwd=tmp_path).code == 0
    assert values_of(tmp_path / "o.pth")["w"].tolist() == [1, 1, 1, 1]


def test_a_deflated_bomb_ends_at_the_size_of_its_storage(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "whole.pth")
    names = pickle_in(tmp_path / "whole.pth")
    machine = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = machine.compress(bytes(1 << 26)) + machine.flush()
    head = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 8, 8, 0, 0, 0, 0, 0, 8, 0)
    refused(
        archive_of(("a/data.pkl", names)) + head + b"a/data/0" + bomb,
        tmp_path,
        "none of 1 tensor is whole",
    )


def test_an_archive_in_a_tensor_is_not_taken_for_the_outer_one(tmp_path: Path) -> None:
    """The inner archive has records of the same names. Only the outer ones count, also
    where the file is cut.
    """
    inner = tmp_path / "whole.pth"
    torch.save({"w": torch.full((4,), 7.0), "v": torch.full((4,), 8.0)}, inner)
    raw = torch.frombuffer(bytearray(inner.read_bytes()), dtype=torch.uint8)
    (tmp_path / "outer").mkdir()
    path = tmp_path / "outer" / "whole.pth"
    torch.save(
        {"raw": raw, "w": torch.full((4,), 1.0), "v": torch.full((4,), 2.0)}, path
    )
    data, ends = path.read_bytes(), ends_of(path)
    for size in (ends["w"], ends["w"] + 20, ends["raw"] - 1, ends["v"] - 1):
        cut = tmp_path / "cut.pth"
        cut.write_bytes(data[:size])
        check(
            cut,
            {name for name, end in ends.items() if end <= size},
            values_of(path),
            tmp_path / "o.pth",
        )


# --- another save ---------------------------------------------------------------------


def test_lost_tensors_from_another_save(tmp_path: Path) -> None:
    path = train(tmp_path / "whole.pth")
    ends, whole = ends_of(path), values_of(path)
    other = {
        name: value + 1 for name, value in whole.items() if value.dtype == np.float32
    }
    state = torch.load(path, weights_only=True)
    with torch.no_grad():
        for tensor in [
            *state["model"].values(),
            *(t for s in state["optimizer"]["state"].values() for t in s.values()),
        ]:
            tensor.data = tensor + 1
    state["list"][0] += 1
    state["model"]["layers.2.weight"] = torch.zeros(3)
    state["model"]["layers.2.proj"] = torch.zeros(5, 7, dtype=torch.float64)
    torch.save(state, tmp_path / "other.pth")
    size = ends["model.layers.1.proj"]
    (tmp_path / "cut.pth").write_bytes(path.read_bytes()[:size])
    kept = {name for name, end in ends.items() if end <= size}
    done = inside(
        "salvage",
        "cut.pth",
        "--fill-from",
        "other.pth",
        "-o",
        "o.pth",
        "--json",
        cwd=tmp_path,
    )
    report = json.loads(done.out)
    assert done.code == 1
    assert {row["name"]: row["what"] for row in report["lost"]} == {
        "model.layers.2.weight": "not whole, and [3] in other.pth, not [5, 7]",
        "model.layers.2.proj": "not whole, and float64 in other.pth, not float32",
    }
    (fill,) = report["filled_from"]
    assert fill["path"] == "other.pth" and set(fill["names"]) == whole.keys() - kept - {
        row["name"] for row in report["lost"]
    }
    found = values_of(tmp_path / "o.pth")
    for name in found:
        if name in kept:
            assert same(found[name], whole[name]), name
        else:
            assert name in fill["names"] and (
                name not in other or np.array_equal(found[name], other[name])
            ), name
    loaded = torch.load(tmp_path / "o.pth", weights_only=True)
    assert (
        loaded["model"]["b"].untyped_storage().data_ptr()
        == loaded["model"]["a"].untyped_storage().data_ptr()
    )


def test_a_save_that_has_nothing_of_what_is_lost(tmp_path: Path) -> None:
    path = train(tmp_path / "whole.pth")
    (tmp_path / "cut.pth").write_bytes(
        path.read_bytes()[: ends_of(path)["model.layers.1.proj"]]
    )
    torch.save({"x": torch.ones(1)}, tmp_path / "other.pth")
    done = inside(
        "salvage", "cut.pth", "--fill-from", "other.pth", "-o", "o.pth", cwd=tmp_path
    )
    assert done.code == 2 and not (tmp_path / "o.pth").exists()
    assert "other.pth has nothing of what is lost" in done.complaints[0]


def test_state_that_was_lost_is_not_state_that_never_was(tmp_path: Path) -> None:
    """inspect would say of a parameter without state that it never had a gradient."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    path = tmp_path / "whole.pth"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    (tmp_path / "cut.pth").write_bytes(
        path.read_bytes()[: ends_of(path)["optimizer.state.5.step"]]
    )
    assert inside("salvage", "cut.pth", "-o", "o.pth", cwd=tmp_path).code == 1
    done = inside("inspect", "o.pth", "--json", cwd=tmp_path)
    codes = {row["code"] for row in json.loads(done.out)["findings"]}
    assert "unused" not in codes and "sometimes-unused" not in codes
    shown = inside("inspect", "o.pth", cwd=tmp_path).out.decode()
    assert "Adam-like, 5 of 8 parameters have state, that of 3 is lost" in shown
    state = torch.load(tmp_path / "o.pth", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    assert state["optimizer"]["ckpt_lost"] == [5, 6, 7]


@pytest.mark.slow
@pytest.mark.parametrize("count", [64, 2_100])
@pytest.mark.parametrize("deep", [1, 3])
def test_many_tensors_of_long_names(count: int, deep: int, tmp_path: Path) -> None:
    """The reader skims large pickles; what is lost is the same."""
    names = [f"{'block.' * 18}layer_{number}.weight" for number in range(count)]
    state: Any = {
        name: torch.full((3,), float(number)) for number, name in enumerate(names)
    }
    for key in ("model", "inner", "outer")[: deep - 1]:
        state = {key: state}
    path = tmp_path / "whole.pth"
    torch.save(state, path)
    ends, whole = ends_of(path), values_of(path)
    for name in (list(ends)[count // 2], list(ends)[-1]):
        for size in (ends[name], ends[name] - 1):
            (tmp_path / "cut.pth").write_bytes(path.read_bytes()[:size])
            check(
                tmp_path / "cut.pth",
                {key for key, end in ends.items() if end <= size},
                whole,
                tmp_path / "o.pth",
            )


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_changed_byte_anywhere_never_gives_a_wrong_value(
    is_cut: bool, tmp_path: Path
) -> None:
    """Headers, names, descriptors and the directory too: what is written is what was,
    or is listed, or nothing is.
    """
    torch.save(
        {f"layers.{n}.w": torch.randn(2, 3) for n in range(12)}, tmp_path / "whole.pth"
    )
    whole, data = (
        values_of(tmp_path / "whole.pth"),
        (tmp_path / "whole.pth").read_bytes(),
    )
    chance, written = random.Random(3), 0
    size = ends_of(tmp_path / "whole.pth")["layers.9.w"] if is_cut else len(data)
    with zipfile.ZipFile(tmp_path / "whole.pth") as archive:
        names = [
            row.header_offset + 30 + chance.randrange(len(row.filename))
            for row in archive.infolist()
        ]
    places = [
        *names,
        *(at + 12 for at in names),
        *(chance.randrange(size) for _ in range(60)),
    ]
    for at in (at for at in places if at < size):
        changed = bytearray(data[:size])
        changed[at] ^= 1 << chance.randrange(8)
        (tmp_path / "cut.pth").write_bytes(changed)
        done = inside(
            "salvage", "cut.pth", "-o", "o.pth", "--force", "--json", cwd=tmp_path
        )
        if done.code == 2:
            continue
        written += 1
        report, found = json.loads(done.out), values_of(tmp_path / "o.pth")
        assert all(same(found[name], whole[name]) for name in found), at
        assert found.keys() | {row["name"] for row in report["lost"]} == whole.keys()
        assert done.code == int(found.keys() != whole.keys())
    assert written > 40


@pytest.mark.parametrize("name", ["data/1", "data/4"])
def test_a_record_under_the_name_of_a_lost_one_is_lost(
    name: str, tmp_path: Path
) -> None:
    """Its name says that it is storage 9, which lies behind the cut and has the same
    size.
    """
    torch.save(
        {f"layers.{n}.w": torch.randn(2, 3) for n in range(12)}, tmp_path / "whole.pth"
    )
    data = (tmp_path / "whole.pth").read_bytes()
    whole, size = (
        values_of(tmp_path / "whole.pth"),
        ends_of(tmp_path / "whole.pth")["layers.8.w"],
    )
    changed = data[:size].replace(f"whole/{name}FB".encode(), b"whole/data/9FB", 1)
    assert changed != data[:size]
    (tmp_path / "cut.pth").write_bytes(changed)
    expected = {f"layers.{n}.w" for n in range(9)} - {f"layers.{name[-1]}.w"}
    check(tmp_path / "cut.pth", expected, whole, tmp_path / "o.pth")


def test_records_in_an_order_of_their_own_are_all_taken(tmp_path: Path) -> None:
    torch.save(
        {f"layers.{n}.w": torch.randn(2, 3) for n in range(12)}, tmp_path / "whole.pth"
    )
    out = tmp_path / "cut.pth"
    with (
        zipfile.ZipFile(tmp_path / "whole.pth") as old,
        zipfile.ZipFile(out, "w") as new,
    ):
        storages = [name for name in old.namelist() if "/data/" in name]
        random.Random(1).shuffle(storages)
        for name in ["whole/data.pkl", *storages]:
            new.writestr(name, old.read(name))
        end = new.start_dir
    out.write_bytes(out.read_bytes()[:end])
    check(
        out,
        set(values_of(tmp_path / "whole.pth")),
        values_of(tmp_path / "whole.pth"),
        tmp_path / "o.pth",
    )


def test_a_program_that_lost_a_tensor_becomes_a_state_dict(tmp_path: Path) -> None:
    path = made("scripted", tmp_path)
    with formats.open(str(path)) as checkpoint:
        (entry,) = [
            entry for entry in checkpoint.tensors if entry.name == "fc.weight"
        ] or checkpoint.tensors[:1]
        (part,) = parts_of(entry.tensor)
        assert isinstance(part.storage.place, Range)
        at = part.storage.place.offset
    whole, data = values_of(path), bytearray(path.read_bytes())
    data[at] ^= 1
    cut = tmp_path / "cut.pt"
    cut.write_bytes(data)
    check(cut, whole.keys() - {entry.name}, whole, tmp_path / "o.pth")
    assert isinstance(torch.load(tmp_path / "o.pth", weights_only=True), dict)


def test_a_big_endian_file_that_is_cut(tmp_path: Path) -> None:
    """A storage of which a part is there is lost: its bytes would have to be
    swapped.
    """
    torch.save({"a": torch.arange(6.0), "b": torch.arange(8.0)}, tmp_path / "plain.pth")
    path = tmp_path / "whole.pth"
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as old,
        zipfile.ZipFile(path, "w") as new,
    ):
        for name in old.namelist():
            raw = old.read(name)
            if "/data/" in name:
                raw = np.frombuffer(raw, "<f4").astype(">f4").tobytes()
            new.writestr(name, b"big" if name.endswith("byteorder") else raw)
    whole, ends = values_of(path), ends_of(path)
    for size in (ends["b"], ends["b"] - 4):
        (tmp_path / "cut.pth").write_bytes(path.read_bytes()[:size])
        check(
            tmp_path / "cut.pth",
            {name for name in ends if ends[name] <= size},
            whole,
            tmp_path / "o.pth",
        )


def test_shards_that_are_missing_or_cut(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(3):
        tensors = {f"layers.{number}.{key}": torch.randn(4, 4) for key in ("w", "b")}
        name = f"model-0000{number + 1}-of-00003.safetensors"
        save_file(tensors, folder / name)
        files |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": files})
    )
    whole = values_of(folder)
    torch.save(
        {name: torch.from_numpy(value) for name, value in whole.items()},
        tmp_path / "other.pth",
    )
    shard = folder / "model-00002-of-00003.safetensors"
    data = shard.read_bytes()
    ends = {
        name: len(data) - 64 * step
        for step, name in enumerate(sorted(n for n in whole if "layers.1" in n)[::-1])
    }
    for size in (len(data) - 1, len(data) - 65, 20, 0):
        shard.write_bytes(data[:size])
        lost = {name for name, end in ends.items() if end > size}
        check(folder, whole.keys() - lost, whole, tmp_path / "o.safetensors")
        check_filled(folder, whole, tmp_path)
    shard.unlink()
    check(
        folder,
        {name for name in whole if "layers.1" not in name},
        whole,
        tmp_path / "o.safetensors",
    )
    check_filled(folder, whole, tmp_path)


def check_filled(folder: Path, whole: dict[str, Any], tmp_path: Path) -> None:
    done = inside(
        "salvage",
        folder,
        "--fill-from",
        "other.pth",
        "-o",
        "f.safetensors",
        "--force",
        cwd=tmp_path,
    )
    assert done.code == 0, done
    found = values_of(tmp_path / "f.safetensors")
    assert found.keys() == whole.keys() and all(
        same(found[name], whole[name]) for name in whole
    )


@pytest.mark.parametrize("ending", ["pth", "safetensors", "dcp"])
@pytest.mark.parametrize("case", ["zip", "legacy", "scripted"])
def test_the_ending_chooses_another_format(
    case: str, ending: str, tmp_path: Path
) -> None:
    path = made(case, tmp_path)
    whole = values_of(path)
    done = inside("salvage", path, "-o", f"o.{ending}", "--json", cwd=tmp_path)
    assert done.code == 0, done
    names = {
        name.removeprefix("model.") for name in values_of(tmp_path / f"o.{ending}")
    }
    expected = {name.removeprefix("model.") for name in whole}
    left = json.loads(done.out)["left_out"]
    assert names == expected or (ending == "safetensors" and left)
    with formats.open(str(tmp_path / f"o.{ending}")) as checkpoint:
        assert (checkpoint.format == "dcp") == (ending == "dcp")


def test_a_cut_training_file_as_a_distributed_checkpoint(tmp_path: Path) -> None:
    """Its optimizer keeps its numbers: what is rescued stays what it was."""
    path = train(tmp_path / "whole.pth")
    ends = ends_of(path)
    (tmp_path / "cut.pth").write_bytes(
        path.read_bytes()[: ends["optimizer.state.2.exp_avg"]]
    )
    done = inside("salvage", "cut.pth", "-o", "o.dcp", cwd=tmp_path)
    assert done.code == 1, done
    found = values_of(tmp_path / "o.dcp")
    whole = values_of(path)
    assert {"optimizer.state.2.exp_avg", "optimizer.state.1.step"} <= found.keys()
    assert all(same(found[name], whole[name]) for name in found)


def test_a_plain_pickle_becomes_a_file_of_torch(tmp_path: Path) -> None:
    """The result is what the report calls it, and no copy."""
    with (tmp_path / "a.pkl").open("wb") as file:
        pickle.dump({"w": torch.ones(3)}, file)
    done = inside("salvage", "a.pkl", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 0 and b"torch-zip" in done.out, done
    assert torch.equal(torch.load(tmp_path / "o.pth")["w"], torch.ones(3))


def test_records_of_a_directory_that_overlap_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(40), "b": torch.zeros(40)}, tmp_path / "whole.pth")
    with (
        zipfile.ZipFile(tmp_path / "whole.pth") as old,
        zipfile.ZipFile(tmp_path / "a.pth", "w", zipfile.ZIP_STORED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    data = bytearray((tmp_path / "a.pth").read_bytes())
    name = b"whole/data/0"
    sizes = struct.pack(
        "<II", 300, 300
    )  # more than its 160 bytes: into the next record
    for mark, first, title in ((b"PK\x03\x04", 18, 30), (b"PK\x01\x02", 20, 46)):
        at = next(
            at
            for at in range(len(data))
            if data[at : at + 4] == mark
            and data[at + title : at + title + len(name)] == name
        )
        data[at + first : at + first + 8] = sizes
    (tmp_path / "a.pth").write_bytes(data)
    done = inside("salvage", "a.pth", "-o", "o.pth", cwd=tmp_path)
    assert (
        done.code == 2 and b"overlap" in done.err and not (tmp_path / "o.pth").exists()
    ), done


def test_a_text_like_a_descriptor_ends_no_record(tmp_path: Path) -> None:
    """torch writes no size before `data.pkl`, so its end is sought, and a text in it
    may look like one.
    """
    whole = {"note": "PK\x07\x08????" + "@@@@" * 4, "w": torch.ones(3)}
    torch.save(whole, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as archive:
        at = archive.read("a/data.pkl").index(b"PK\x07\x08")
    whole["note"] = "PK\x07\x08????" + (chr(at) + "\0\0\0") * 2 + "@@@@" * 2
    torch.save(whole, tmp_path / "a.pth")
    data = (tmp_path / "a.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(data[: data.index(b"PK\x01\x02")])
    done = inside("salvage", "cut.pth", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 0, done
    found = torch.load(tmp_path / "o.pth")
    assert found["note"] == whole["note"] and torch.equal(found["w"], torch.ones(3))


def test_a_header_that_says_another_offset_is_not_believed(tmp_path: Path) -> None:
    """The descriptor behind the data says where the data of the record lies."""
    torch.save({"a": torch.arange(40.0), "b": torch.ones(40)}, tmp_path / "a.pth")
    data = bytearray((tmp_path / "a.pth").read_bytes())
    with zipfile.ZipFile(tmp_path / "a.pth") as archive:
        one, two = (archive.getinfo(f"a/data/{n}").header_offset for n in (0, 1))
    data[one + 28] -= 1  # the length of the padding before the data
    data[two] ^= 1
    (tmp_path / "a.pth").write_bytes(data)
    done = inside("salvage", "a.pth", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 0, done
    found = torch.load(tmp_path / "o.pth")
    assert torch.equal(found["a"], torch.arange(40.0)) and torch.equal(
        found["b"], torch.ones(40)
    )


def test_a_legacy_storage_of_another_length_is_not_taken(tmp_path: Path) -> None:
    whole = {"a": torch.arange(40.0), "b": torch.arange(7.0)}
    torch.save(whole, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    data = bytearray((tmp_path / "a.pth").read_bytes())
    places = {
        name: data.index(oracle.raw(tensor)) - 8 for name, tensor in whole.items()
    }
    last = max(places, key=places.__getitem__)
    (other,) = places.keys() - {last}
    data[places[last]] += 1
    (tmp_path / "cut.pth").write_bytes(data)
    done = inside("salvage", "cut.pth", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 1, done
    found = torch.load(tmp_path / "o.pth")
    assert found.keys() == {other} and torch.equal(found[other], whole[other])


def test_a_cut_storage_of_a_big_endian_machine_is_lost(tmp_path: Path) -> None:
    """Its bytes are swapped as a whole, so that a view of its beginning is lost too,
    and never written as it lies.
    """
    flat = torch.arange(4000.0)
    torch.save({"a": flat[:10], "b": flat[10:], "c": torch.ones(3)}, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as old,
        zipfile.ZipFile(tmp_path / "big.pth", "w") as new,
    ):
        for name in sorted(old.namelist(), key=lambda name: name.endswith("data/0")):
            content = old.read(name)
            if "/data/" in name:
                content = np.frombuffer(content, "<f4").astype(">f4").tobytes()
            new.writestr(name, b"big" if name.endswith("byteorder") else content)
    data = (tmp_path / "big.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(data[: data.index(b"PK\x01\x02") - 4000])
    done = inside("salvage", "cut.pth", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 1, done
    found = torch.load(tmp_path / "o.pth")
    assert found.keys() == {"c"} and torch.equal(found["c"], torch.ones(3))


OWN = ("version", ".format_version", ".storage_alignment", ".data/serialization_id")


@pytest.mark.parametrize(
    ("names", "is_cut"),
    [
        *(((name,), False) for name in OWN),
        (OWN, False),
        (OWN[:1], True),
        (OWN[3:], True),
    ],
)
def test_damaged_records_of_the_writer_cost_no_tensor(
    names: tuple[str, ...], is_cut: bool, tmp_path: Path
) -> None:
    """They were copied as they are: what salvage wrote could not be read back, which
    was called a bug in ckpt.
    """
    path = tmp_path / "a.pth"
    saved = {f"layer{number}.weight": torch.randn(30, 40) for number in range(5)}
    torch.save(saved, path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for name in names:
            at = archive.getinfo(f"a/{name}").header_offset
            name_bytes, extra_bytes = struct.unpack_from("<HH", data, at + 26)
            data[at + 30 + name_bytes + extra_bytes] ^= 1
        directory = archive.start_dir
    path.write_bytes(data[:directory] if is_cut else data)

    done = inside("salvage", path, "-o", tmp_path / "b.pth", cwd=tmp_path)
    assert done.code == 0 and done.lines[0].startswith(
        "5 of 5 tensors are whole, 100 %"
    ), done
    assert is_cut or any(
        f"record a/{name} is damaged" in done.lines[1] for name in names
    ), done
    assert inside("verify", "b.pth", cwd=tmp_path).code == 0
    with formats.open(str(tmp_path / "b.pth")) as checkpoint:
        places = [
            part.storage.place
            for entry in checkpoint.tensors
            for part in parts_of(entry.tensor)
        ]
    assert all(isinstance(place, Range) and place.offset % 64 == 0 for place in places)
    found = torch.load(tmp_path / "b.pth")
    assert found.keys() == saved.keys() and all(
        torch.equal(found[name], saved[name]) for name in saved
    )


class Tagged:
    """Pickles as torch in C++ writes a list: with its type beside it."""

    def __init__(self, items: list[torch.Tensor]) -> None:
        self._items = items

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_type_tag, (self._items, "List[Tensor]")


def test_a_list_with_its_type_beside_it_loses_a_tensor(tmp_path: Path) -> None:
    torch.save(
        {"a": Tagged([torch.ones(2), torch.zeros(3)]), "b": torch.ones(4)},
        tmp_path / "a.pt",
    )
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        report = salvage(Survey(checkpoint), Limits(), damaged={"a.0": DAMAGED})
        assert [entry.name for entry in report.result.tensors] == ["a.1", "b"]
        assert [row.name for row in report.lost] == ["a.0"]


def test_lost_tensors_of_one_reason_are_one_line(tmp_path: Path) -> None:
    state = {
        f"layers.{layer}.{part}.weight": torch.ones(64)
        for layer in range(9)
        for part in "qk"
    }
    torch.save(state, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 3])
    done = inside("salvage", "cut.pt", "-o", "whole.pt", cwd=tmp_path)
    assert done.code == 1, done
    lost = [line for line in done.lines if line.startswith("lost: ")]
    assert 0 < len(lost) <= 3 and any(".{q,k}.weight ×" in line for line in lost), lost
    report = inside("salvage", "cut.pt", "-o", "b.pt", "--json", cwd=tmp_path)
    assert len(json.loads(report.out)["lost"]) > 6


def test_a_file_of_a_folder_that_is_cut_off(tmp_path: Path) -> None:
    """verify names the command as for a single file, and the name of the file stands
    once and as it is written.
    """
    folder = folders.trainer(tmp_path / "run")
    path = folder / "optimizer.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    command = "ckpt salvage run -o run.whole.safetensors"
    done = inside("verify", "run", cwd=tmp_path)
    assert done.code == 1 and done.out.decode().splitlines()[-1] == f"  {command}"
    message = "PytorchStreamReader failed: failed finding central directory"
    told = inside("explain", message, "run", cwd=tmp_path).out.decode()
    assert "\noptimizer.pt was not read: " in told and command in told
    done = inside("salvage", "run", "-o", "run.pth", cwd=tmp_path)
    assert done.out.decode().splitlines()[1].startswith("  optimizer.pt: cut off: ")


def test_bare_storages_that_are_lost_are_left_out(tmp_path: Path) -> None:
    """A storage that stands in the tree without a tensor is one of the tensors too."""
    path, made = tmp_path / "whole.pth", tmp_path / "lost.pth"
    lost = torch.ones(4).untyped_storage()
    state = {
        "w": torch.arange(3.0),
        "kept": torch.full((2,), 7, dtype=torch.uint8).untyped_storage(),
        "lost": lost,
        "list": [lost, 5],
    }
    torch.save(state, path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            if not name.endswith("/data/2"):
                new.writestr(name, old.read(name))
    done = inside("verify", "lost.pth", cwd=tmp_path)
    assert done.code == 1
    assert "  ckpt salvage lost.pth -o lost.whole.pth" in done.lines
    done = inside("salvage", "lost.pth", "-o", "out.pth", cwd=tmp_path)
    assert done.code == 1, done.err
    found = torch.load(tmp_path / "out.pth", weights_only=False)
    assert found.keys() == {"w", "kept", "list"} and found["list"] == {1: 5}
    assert found["w"].tolist() == [0, 1, 2] and bytes(found["kept"]) == b"\7\7"


def test_what_the_other_format_cannot_hold_is_refused_without_an_option_of_others(
    tmp_path: Path,
) -> None:
    state = {"a": torch.ones(3), "c": torch.ones(2, dtype=torch.complex128)}
    torch.save(state, tmp_path / "a.pth")

    done = inside("salvage", "a.pth", "-o", "b.safetensors", cwd=tmp_path)
    assert done.code == 2
    assert done.err == (
        b"ckpt: a.pth: safetensors holds only dense tensors, so c (complex128) would "
        b"be lost (-o OUT.pth holds them)\n"
    )

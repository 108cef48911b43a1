"""`ckpt verify` and `ckpt sum`: every cut and every flipped byte is found, or it is
said that nothing could tell.
"""

from __future__ import annotations

import json
import random
import shutil
import zipfile
import zlib
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import real_files
import rewriting
import safetensors.torch
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from needs import is_there
from paths import many
from process import SAMPLES, check_error, ckpt
from torch import nn

from ckpt import formats
from ckpt.commands.sum.sums import Sum, digest, lines, parse
from ckpt.commands.verify.api import verify
from ckpt.commands.verify.verify import VerifyReport
from ckpt.formats.verify import remainder
from ckpt.model.limits import Limits
from ckpt.model.places import Range

pytestmark = oracle.QUIET


def verified(path: Path, **options: Any) -> VerifyReport:
    return verify(path, **options)


WHOLE = [
    path
    for path in sorted(SAMPLES.iterdir())
    if path.suffix in (".pth", ".pt", ".ckpt", ".safetensors", "")
    and path.name
    not in ("truncated.pth", "html_page.pth", "lfs_pointer.pth", "dcp_interrupted")
    and not path.name.startswith(("_", "."))
]


@pytest.mark.needs("folders")
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name)
def test_whole_samples(path: Path) -> None:
    for quick in (False, True):
        report = verified(path, quick=quick)
        assert report.verdict == "intact" and not report.problems
        assert quick == ("the bytes themselves (--quick)" in report.not_checked)
    has_crc = path.suffix in (".pth", ".pt", ".ckpt") and not path.name.startswith(
        "legacy"
    )
    has_crc = has_crc or path.name == "dcp"
    has_all = (
        has_crc and path.name != "dtypes.pth"
    )  # one tensor of it is on meta, and has no values to check
    assert bool(verified(path).not_checked) != has_all


@pytest.mark.parametrize("name", real_files.FILES)
def test_whole_real_files(name: str) -> None:
    assert verified(real_files.path(name)).verdict == "intact"


def test_the_words_of_each_verdict() -> None:
    done = ckpt(
        "verify",
        SAMPLES / "llama_bf16.pth",
        SAMPLES / "weights.safetensors",
        SAMPLES / "truncated.pth",
    )

    assert done.code == 1 and done.err == b"3 files: 2 intact, 1 damaged\n"
    assert done.lines[0].endswith(
        "llama_bf16.pth: intact: 57 tensors, all checksums match"
    )
    assert (
        "not checked: values of 12.3 KiB (safetensors has no checksums)"
        in done.lines[1]
    )
    assert "12 of 18 tensors are whole, lost: fc1.weight" in done.lines[2]
    for name in ("none.pth", "lfs_pointer.pth", "html_page.pth"):
        done = ckpt("verify", SAMPLES / name)
        assert done.code == 2 and ": unreadable: " in done.lines[0]
    assert ckpt("verify", SAMPLES / "truncated.pth", SAMPLES / "none.pth").code == 2


def test_stored_sums_check_the_values_that_have_no_checksum(tmp_path: Path) -> None:
    """Call unchecked what the sums did not compare, and nothing else."""
    weights = {"a.weight": torch.ones(4, 2), "a.bias": torch.ones(4)}
    state = {0: {"momentum_buffer": torch.ones(4, 2)}}
    whole = {"model": weights, "optimizer": {"state": state, "param_groups": []}}
    safe, legacy = tmp_path / "w.safetensors", tmp_path / "run.pth"
    safetensors.torch.save_file(weights, str(safe))
    torch.save(whole, legacy, _use_new_zipfile_serialization=False)
    for path, options in ((safe, ()), (legacy, ("--all",))):
        (tmp_path / "list").write_bytes(ckpt("sum", path, *options).out)
        done = ckpt("verify", path, "--sums", tmp_path / "list")
        assert done.code == 0 and b"stored sums match\n" in done.out
        assert b"not checked" not in done.out
        root = ckpt("sum", "--root", path).out.split()[0].decode()
        done = ckpt("verify", path, "--root", root)
        assert done.code == 0 and b"not checked" not in done.out
    (tmp_path / "list").write_bytes(ckpt("sum", legacy).out)
    done = ckpt("verify", legacy, "--sums", tmp_path / "list")
    assert b"not checked: values of 32 B (PyTorch legacy has no checksums)" in done.out
    assert b"not checked: values of 80 B" in ckpt("verify", legacy).out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ddp_after.pth", "legacy.pth", "weights.safetensors", "scripted.pt"]
)
def test_every_cut_is_found(name: str, tmp_path: Path) -> None:
    data = (SAMPLES / name).read_bytes()
    path = tmp_path / name
    sizes = {
        *range(1, len(data), max(1, len(data) // 150)),
        len(data) - 1,
        len(data) - 22,
    }
    for size in sorted(sizes):
        path.write_bytes(data[:size])
        report = verified(path)
        assert report.verdict != "intact", size
        assert report.verdict == "damaged" or size < 64, (size, report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "zip, small blocks", "legacy", "safetensors"])
def test_what_is_left_of_a_cut_file(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What is said to be whole is there, byte for byte; what is said to be lost
    is not.
    """
    if "small" in kind:
        request.getfixturevalue("small_blocks")
    tied = torch.randn(50)
    state = {
        "a.weight": torch.randn(3, 5),
        "b.weight": tied,
        "c.weight": tied,
        "d.weight": torch.zeros(0),
        **{f"e.{i}.weight": torch.randn(200) for i in range(12)},
    }
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pth")
    if kind == "safetensors":
        safetensors.torch.save_file(
            {name: value.clone() for name, value in state.items()}, path
        )
    else:
        rewriting.saved(state, path, _use_new_zipfile_serialization=kind != "legacy")
    data = path.read_bytes()
    with formats.open(str(path)) as checkpoint:
        ends = {
            entry.name: place.offset + place.size
            for entry in checkpoint.tensors
            if isinstance(place := entry.tensor.storage.place, Range)  # type: ignore[union-attr]
        }
    seen = set()
    for size in range(len(data) - 1, 100, -97):
        path.write_bytes(data[:size])
        report = verified(path)
        assert report.verdict == "damaged"
        if report.whole is None or report.lost is None:
            assert size < min(end for name, end in ends.items() if name != "d.weight")
            continue
        assert {*report.whole, *report.lost} == state.keys()
        here = {
            name for name, end in ends.items() if end <= size or not state[name].numel()
        }
        assert set(report.whole) == here, size
        seen.add(len(report.whole))
    assert len(seen) > 5


@pytest.mark.parametrize("step", [5, 64, 1 << 20])
def test_a_record_of_unknown_size_before_the_data(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is where a descriptor gives the size that it has, in whatever block that
    lies, and not sooner.
    """
    monkeypatch.setattr(import_module("ckpt.formats.common.recovered"), "_STEP", step)
    tensor = torch.randn(20)
    rewriting.saved({"a.weight": tensor}, tmp_path / "plain.pth")
    for size in range(300, 330):
        notes = bytearray(random.Random(size).randbytes(size))
        notes[100:104] = b"PK\x07\x08"  # begins like a descriptor
        path = tmp_path / f"{size}.pth"
        writer = torch._C.PyTorchFileWriter(str(path))
        with zipfile.ZipFile(tmp_path / "plain.pth") as plain:
            for name, data in (
                ("data.pkl", plain.read("plain/data.pkl")),
                ("notes", bytes(notes)),
                ("data/0", plain.read("plain/data/0")),
            ):
                writer.write_record(name, data, len(data))
        writer.write_end_of_file()
        whole = path.read_bytes()
        end = whole.index(tensor.numpy().tobytes()) + 80

        for cut, held in ((end, True), (end - 1, False)):
            path.write_bytes(whole[:cut])
            found = remainder(str(path), Limits())
            assert found is not None
            assert (found.whole, found.lost) == (
                (("a.weight",), ()) if held else ((), ("a.weight",))
            ), size


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_in_a_storage_is_found(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    name = (
        "ddp_after.pth",
        "train_cuda.pth",
        "tied_and_bloated.pth",
        "scripted.pt",
        "whole_model.pth",
        "dtypes.pth",
    )[seed]
    data = bytearray((SAMPLES / name).read_bytes())
    with formats.open(str(SAMPLES / name)) as checkpoint:
        storages = [
            storage
            for storage in checkpoint.storages
            if isinstance(storage.place, Range) and storage.nbytes
        ]
        storage = chance.choice(storages)
        assert isinstance(storage.place, Range)
        at = storage.place.offset + chance.randrange(storage.nbytes)
        hit = {
            entry.name
            for entry in checkpoint.tensors
            if any(part.storage is storage for part in oracle_parts(entry.tensor))
        }
    data[at] ^= 1 << chance.randrange(8)
    (tmp_path / name).write_bytes(data)

    report = verified(tmp_path / name)

    assert report.verdict == "damaged" and len(report.problems) == 1
    assert (
        set(report.problems[0].tensors) == hit
        and "recorded checksum" in report.problems[0].what
    )
    assert verified(tmp_path / name, quick=True).verdict == "intact"  # it does not look
    assert ckpt("verify", tmp_path / name).code == 1


def oracle_parts(tensor: Any) -> Any:
    from ckpt.model.tensors import parts_of

    return parts_of(tensor)


@pytest.mark.parametrize("name", ["ddp_before.pth", "scripted.pt"])
def test_every_flipped_byte_of_an_archive(name: str, tmp_path: Path) -> None:
    """Of the bytes of records every one; of headers and padding, where readers look at
    them.
    """
    data = (SAMPLES / name).read_bytes()
    with formats.open(str(SAMPLES / name)) as checkpoint:
        places = [s.place for s in checkpoint.storages if isinstance(s.place, Range)]
    inside = [
        at for place in places for at in range(place.offset, place.offset + place.size)
    ]
    chance = random.Random(0)
    for at in chance.sample(inside, 60):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        (tmp_path / name).write_bytes(damaged)
        assert verified(tmp_path / name).verdict == "damaged", at


def test_a_record_is_checked_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a record are combined, so damage in any of them is damage, and whole
    ones are whole.
    """
    monkeypatch.setattr("ckpt.bytes.executor.SPAN", 1000)
    path = rewriting.saved(
        {"a.weight": torch.randn(1500), "b.weight": torch.randn(7)}, tmp_path / "a.pth"
    )
    with formats.open(str(path)) as checkpoint:
        place = checkpoint.storages[0].place
    assert isinstance(place, Range)
    data = path.read_bytes()
    assert verified(path).verdict == "intact"
    for at in (0, 999, 1000, 3500, 5999):
        damaged = bytearray(data)
        damaged[place.offset + at] ^= 4
        path.write_bytes(damaged)
        report = verified(path)
        assert report.verdict == "damaged" and report.problems[0].tensors == (
            "a.weight",
        ), at


def test_without_crcs_it_says_so(tmp_path: Path) -> None:
    with mock.patch("torch.utils.serialization.config.save.compute_crc32", False):
        path = rewriting.saved({"a.weight": torch.ones(100)}, tmp_path / "a.pth")

    report = verified(path)

    assert report.verdict == "intact" and report.problems == ()
    (left,) = report.not_checked
    assert "400 B" in left, "the bytes of the only tensor"


def test_a_deflated_archive(tmp_path: Path) -> None:
    source = rewriting.saved(
        {"a.weight": torch.randint(0, 9, (5000,))}, tmp_path / "a.pth"
    )
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for row in old.infolist():
            if not row.filename.endswith((".format_version", ".storage_alignment")):
                new.writestr(row.filename, old.read(row))
    assert verified(tmp_path / "b.pth").verdict == "intact"
    data = bytearray((tmp_path / "b.pth").read_bytes())
    with formats.open(str(tmp_path / "b.pth")) as checkpoint:
        place = checkpoint.storages[0].place
        assert isinstance(place, Range) and place.inflated
    data[place.offset + place.size // 2] ^= 0x10
    (tmp_path / "b.pth").write_bytes(data)
    assert verified(tmp_path / "b.pth").verdict == "damaged"


def test_a_deflated_record_without_its_end(tmp_path: Path) -> None:
    """A writer that was killed after all bytes of a record, and before the end of its
    stream.
    """
    source = rewriting.saved(
        {"a.weight": torch.randint(0, 9, (5000,))}, tmp_path / "a.pth"
    )

    class Endless:
        def __init__(self) -> None:
            self._machine = zlib.compressobj(9, zlib.DEFLATED, -15)
            self.compress = self._machine.compress

        def flush(self) -> bytes:
            return self._machine.flush(zlib.Z_SYNC_FLUSH)

    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for row in old.infolist():
            if not row.filename.endswith((".format_version", ".storage_alignment")):
                is_data = row.filename.endswith("/data/0")
                with (
                    mock.patch.object(zipfile, "_get_compressor", lambda *_: Endless())
                    if is_data
                    else nullcontext()
                ):
                    new.writestr(row.filename, old.read(row))

    report = verified(tmp_path / "b.pth")
    assert report.verdict == "damaged"
    assert "a deflated record holds less than the archive records" in str(
        report.problems
    )


# --- shards ---------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLES / "sharded", tmp_path / "s")
    return tmp_path / "s"


@pytest.mark.needs("folders")
@pytest.mark.parametrize("name", ["", "/model.safetensors.index.json"])
def test_a_shard_that_is_cut_off_is_counted_with_the_others(
    name: str, shards: Path
) -> None:
    every = verified(shards)
    cut = min(shards.glob("model-0*.safetensors"))
    cut.write_bytes(cut.read_bytes()[:-1])

    report = verified(Path(f"{shards}{name}"))

    assert (
        report.verdict == "damaged"
        and report.whole is not None
        and report.lost is not None
    )
    with formats.open(str(SAMPLES / "sharded")) as checkpoint:
        assert len(report.whole) + len(report.lost) == len(checkpoint.tensors)
    assert every.verdict == "intact" and len(report.lost) == 1
    if is_there("salvage"):
        assert report.hint is not None and report.hint.startswith(
            f"ckpt salvage {shards}{name} -o "
        )


@pytest.mark.needs("folders")
def test_swapped_shards(shards: Path) -> None:
    one, two = sorted(shards.glob("model-0*.safetensors"))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)

    report = verified(shards)

    assert (
        report.verdict == "damaged"
        and "in other shards than the index says" in report.problems[0].what
    )


@pytest.mark.needs("folders")
def test_a_shard_of_another_checkpoint(shards: Path) -> None:
    """The same layout with other values: nothing in the files could tell, and that is
    said.
    """
    one = min(shards.glob("model-0*.safetensors"))
    tensors = {
        name: value + 1 for name, value in safetensors.torch.load_file(one).items()
    }
    safetensors.torch.save_file(tensors, one, {"format": "pt"})

    report = verified(shards)

    assert report.verdict == "intact" and "no checksums" in report.not_checked[0]


@pytest.mark.needs("folders")
def test_the_size_of_the_index(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document.setdefault("metadata", {})["total_size"] = 17
    index.write_text(json.dumps(document))

    # Tied tensors are counted once or twice, and no loader looks: it is said, and no
    # damage by itself.
    assert verified(shards).verdict == verified(index).verdict == "intact"
    assert (
        "total_size of the index (17 bytes, the shards hold"
        in ckpt("verify", shards).lines[0]
    )


@pytest.mark.needs("folders")
def test_a_missing_shard(shards: Path) -> None:
    min(shards.glob("model-0*.safetensors")).unlink()
    assert (
        verified(shards).verdict == "damaged"
        and "1 of 2 shards missing" in verified(shards).problems[0].what
    )


def damage(path: Path) -> None:
    """Change one bit of the first storage of a file."""
    with formats.open(str(path)) as checkpoint:
        place = checkpoint.storages[0].place
        assert isinstance(place, Range)
    data = bytearray(path.read_bytes())
    data[place.offset] ^= 1
    path.write_bytes(data)


@pytest.mark.needs("folders")
def test_a_damaged_shard_of_pickles(tmp_path: Path) -> None:
    state = {"a.weight": torch.randn(50), "b.weight": torch.randn(50)}
    for number, name in enumerate(state, 1):
        rewriting.saved(
            {name: state[name]}, tmp_path / f"pytorch_model-0000{number}-of-00002.bin"
        )
    weight_map = {
        name: f"pytorch_model-0000{n}-of-00002.bin" for n, name in enumerate(state, 1)
    }
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {"total_size": 400}, "weight_map": weight_map})
    )
    assert verified(tmp_path).verdict == "intact"
    path = tmp_path / "pytorch_model-00002-of-00002.bin"
    damage(path)

    report = verified(tmp_path)

    assert report.verdict == "damaged" and "b.weight" in report.problems[0].tensors


# --- sums -----------------------------------------------------------------------------


def test_sums_are_equal_across_formats(tmp_path: Path) -> None:
    base = torch.randn(6, 4)
    state = {
        "a.weight": base,
        "b.weight": base.t(),
        "c.weight": torch.randn(3, dtype=torch.bfloat16),
        "d.weight": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "e.count": torch.tensor(3),
    }
    one = rewriting.saved(
        {"model": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "a.pth"
    )
    two = rewriting.saved(
        state, tmp_path / "b.pth", _use_new_zipfile_serialization=False
    )
    three = tmp_path / "c.safetensors"
    safetensors.torch.save_file(
        {name: value.contiguous().clone() for name, value in state.items()}, three
    )

    found = [sorted(ckpt("sum", path).lines) for path in (one, two, three)]

    assert (
        found[1] == found[2]
        and [line.replace("module.", "") for line in found[0]] == found[1]
    )
    (tmp_path / "sums").write_bytes(ckpt("sum", two).out)
    assert ckpt("verify", three, "--sums", tmp_path / "sums").code == 0
    assert ckpt("verify", one, "--sums", tmp_path / "sums").code == 1  # other names
    changed = {**state, "c.weight": state["c.weight"] + 1, "e.count": torch.tensor(4)}
    del changed["b.weight"]
    done = ckpt(
        "verify",
        rewriting.saved(changed, tmp_path / "d.pth"),
        "--sums",
        tmp_path / "sums",
        "--json",
    )
    problems = {
        row["what"]: set(row["tensors"]) for row in json.loads(done.out)["problems"]
    }
    assert done.code == 1
    assert problems == {
        "2 tensors with another sum": {"c.weight", "e.count"},
        "1 tensor missing": {"b.weight"},
    }


@given(st.data())
@settings(max_examples=many(10, 40))
def test_a_sum_knows_dtype_shape_and_bits(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("sums")
    base = strategies._bytes_as(torch.float32, 24, data.draw(st.integers(0, 100)))
    one = data.draw(strategies.views(base))
    path = rewriting.saved({"a": one, "b": one.contiguous().clone()}, folder / "a.pth")
    with formats.open(str(path)) as checkpoint:
        first, second = (digest(entry.tensor) for entry in checkpoint.tensors)
    assert first == second
    other = rewriting.saved(
        {"a": one.unsqueeze(0), "b": one.contiguous().clone().view(torch.int32)},
        folder / "b.pth",
    )
    with formats.open(str(other)) as checkpoint:
        assert {digest(entry.tensor) for entry in checkpoint.tensors}.isdisjoint(
            {first}
        )


@given(st.lists(st.text(min_size=1), min_size=1, unique=True))
def test_names_come_back(names: list[str]) -> None:
    rows = [Sum(name, "ab" * 32) for name in names]
    assert parse("\n".join(lines(rows))) == rows


def test_sums_of_a_section_and_of_everything(tmp_path: Path) -> None:
    path = SAMPLES / "ddp_after.pth"
    assert (
        len(ckpt("sum", path).lines) == 18
        and len(ckpt("sum", path, "--all").lines) == 48
    )
    (tmp_path / "sums").write_bytes(ckpt("sum", path, "--all").out)
    assert ckpt("verify", path, "--sums", tmp_path / "sums").code == 0
    (tmp_path / "sums").write_bytes(ckpt("sum", path, "--section", "model").out)
    assert ckpt("verify", path, "--sums", tmp_path / "sums").code == 0


def test_trouble(tmp_path: Path) -> None:
    (tmp_path / "a.sums").write_text("nonsense\n")
    (tmp_path / "b.sums").write_text("\n")
    (tmp_path / "c.sums").write_bytes(b"\xff\xfe")
    path = SAMPLES / "legacy.pth"
    check_error(
        ckpt("verify", path, "--sums", tmp_path / "a.sums"),
        "line 1 is no sha-256 and a name",
    )
    check_error(ckpt("verify", path, "--sums", tmp_path / "b.sums"), "holds no sums")
    check_error(ckpt("verify", path, "--sums", tmp_path / "c.sums"), "is not text")
    check_error(ckpt("verify", path, "--sums", tmp_path / "none"), "no such file")
    check_error(
        ckpt("verify", path, "--sums", tmp_path / "a.sums", "--quick"),
        "--quick goes with the list of ckpt sum --recorded",
    )
    meta = rewriting.saved(
        {"a.weight": torch.ones(1, device="meta")}, tmp_path / "m.pth"
    )
    check_error(ckpt("sum", meta), "a.weight: on meta, without data")


def test_the_document() -> None:
    document = json.loads(ckpt("verify", SAMPLES / "truncated.pth", "--json").out)
    assert (
        document["schema"] == {"name": "ckpt.verify", "version": 2}
        and document["verdict"] == "damaged"
    )
    assert len(document["whole"]) == 12 and len(document["lost"]) == 6


# --- traps ----------------------------------------------------------------------------


def test_a_record_marked_as_a_folder(tmp_path: Path) -> None:
    """torch reads something else from such a record, and says nothing."""
    data = bytearray((SAMPLES / "llama_bf16.pth").read_bytes())
    at = data.rfind(b"PK\x01\x02")
    data[at + 38] |= 0x10
    (tmp_path / "a.pth").write_bytes(data)

    report = verified(tmp_path / "a.pth")

    assert (
        report.verdict == "damaged" and "marked as a folder" in report.problems[0].what
    )


@pytest.mark.parametrize("width", [6, 300])
def test_a_cut_torchscript(width: int, tmp_path: Path) -> None:
    """Its storages come before the pickle that gives their sizes."""
    torch.jit.trace(torch.nn.Linear(width, width), torch.ones(1, width)).save(
        str(tmp_path / "a.pt")
    )
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[:-1])

    report = verified(tmp_path / "a.pt")

    assert (
        report.verdict == "damaged"
        and report.lost == ()
        and {"weight", "bias"} <= set(report.whole or ())
    )


def test_meta_tensors_have_nothing_to_lose(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"a.weight": torch.ones(3), "m.weight": torch.empty(3, device="meta")},
        tmp_path / "a.pth",
    )
    path.write_bytes(path.read_bytes()[:-5])
    assert verified(path).lost == ()


def test_a_zero_byte_is_no_interrupted_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes((SAMPLES / "llama_bf16.pth").read_bytes() + b"\0")
    assert not verified(path).problems  # torch opens it, and so does ckpt


def test_bytes_behind_a_legacy_file_are_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes((SAMPLES / "legacy.pth").read_bytes() + b"0123456789")
    report = verified(path)
    assert (
        report.verdict == "intact"
        and "10 bytes (text: '0123456789') follow the last storage"
        in report.not_checked
    )


@pytest.mark.needs("folders")
def test_the_shard_that_is_damaged(tmp_path: Path) -> None:
    names = {"a.weight": 1, "b.weight": 1, "c.weight": 2, "d.weight": 2}
    for number in (1, 2):
        state = {
            name: torch.randn(50) for name, shard in names.items() if shard == number
        }
        rewriting.saved(state, tmp_path / f"pytorch_model-0000{number}-of-00002.bin")
    weight_map = {
        name: f"pytorch_model-0000{number}-of-00002.bin"
        for name, number in names.items()
    }
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": weight_map})
    )
    path = tmp_path / "pytorch_model-00001-of-00002.bin"
    damage(path)

    assert verified(tmp_path).problems[0].tensors == ("a.weight",)


@pytest.mark.parametrize("section", ["", "model", "ema", "optimizer"])
@pytest.mark.parametrize(
    "under", [("ema",), ("ema", "model"), ("ema", "model", "optimizer"), ("optimizer",)]
)
def test_what_sum_prints_verify_accepts(
    section: str, under: tuple[str, ...], tmp_path: Path
) -> None:
    """As every last.pt of YOLO has it: `model` is None and the weights lie
    under `ema`.
    """
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    averaged = {name: value + 1 for name, value in model.state_dict().items()}
    things = {
        "model": model.state_dict(),
        "ema": averaged,
        "optimizer": optimizer.state_dict(),
    }
    path = rewriting.saved(
        {"model": None, **{key: things[key] for key in under}}, tmp_path / "a.pth"
    )
    if section and section not in under:
        return
    asked = ["--section", section] if section else []
    stored = inside("sum", "a.pth", *asked, cwd=tmp_path)
    (tmp_path / "sums").write_bytes(stored.out)

    assert stored.code == 0 and len(stored.lines) == (
        6 if "optimizer" in (section, *under[:1]) else 2
    )
    assert inside("verify", "a.pth", "--sums", "sums", cwd=tmp_path).code == 0
    part = section or next(key for key in ("model", "ema", "optimizer") if key in under)
    tensor = (
        things[part]["state"][0]["exp_avg"]
        if part == "optimizer"
        else things[part]["0.weight"]
    )
    tensor.data.add_(1)
    rewriting.saved({key: things[key] for key in under}, path)
    done = inside("verify", "a.pth", "--sums", "sums", cwd=tmp_path)
    assert done.code == 1 and b"1 tensor with another sum" in done.out


def test_odd_sums(tmp_path: Path) -> None:
    path = rewriting.saved({"": torch.ones(5), "a": torch.ones(1)}, tmp_path / "a.pth")
    (tmp_path / "sums").write_bytes(ckpt("sum", path).out)
    assert ckpt("verify", path, "--sums", tmp_path / "sums").code == 0
    (tmp_path / "odd").write_text("a" * 64 + "  x\\U00110000\n")
    assert ckpt("verify", path, "--sums", tmp_path / "odd").code == 1


@pytest.mark.parametrize("counted", [1, 2])
def test_an_index_may_count_tied_tensors_once_or_twice(
    counted: int, tmp_path: Path
) -> None:
    tied = torch.randn(50)
    rewriting.saved({"a.weight": tied, "b.weight": tied}, tmp_path / "1.bin")
    rewriting.saved({"c.weight": torch.randn(50)}, tmp_path / "2.bin")
    weight_map = {"a.weight": "1.bin", "b.weight": "1.bin", "c.weight": "2.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    for size, expected in ((200 + 200 * counted, 0), (1 + 200 * counted, 1)):
        index.write_text(
            json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map})
        )
        report = verified(index)
        assert report.verdict == "intact" and len(report.not_checked) == expected


def test_damage_is_told_of_the_tensors_of_that_storage_and_no_other(
    tmp_path: Path,
) -> None:
    """Storage 0 is not storage 10."""
    state = {
        f"{number}.weight": torch.full((8,), 100.0 + number) for number in range(11)
    }
    path = rewriting.saved(state, tmp_path / "a.pt")
    data = bytearray(path.read_bytes())
    data[data.index(state["0.weight"].numpy().tobytes())] ^= 1
    path.write_bytes(data)
    assert [problem.tensors for problem in verified(path).problems] == [("0.weight",)]


def test_sums_that_leave_out_a_damaged_tensor_hide_no_damage(tmp_path: Path) -> None:
    """`ckpt sum` of a damaged file lists the sums of the whole tensors alone."""
    torch.save(
        {"a.weight": torch.ones(64), "b.weight": torch.zeros(64)}, tmp_path / "a.pt"
    )
    sums = ckpt("sum", "a.pt", cwd=tmp_path).lines
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(torch.ones(4).numpy().tobytes()) + 5] ^= 1
    (tmp_path / "flip.pt").write_bytes(content)
    listed = ckpt("sum", "flip.pt", cwd=tmp_path)
    (tmp_path / "sums").write_bytes(listed.out)
    assert listed.code == 2 and len(listed.lines) == 1
    done = ckpt("verify", "flip.pt", "--sums", "sums", cwd=tmp_path)
    assert done.code == 1 and done.lines[0].startswith("flip.pt: damaged: ")
    (tmp_path / "part").write_text(sums[0] + "\n")
    done = ckpt("verify", "a.pt", "--sums", "part", cwd=tmp_path)
    rest = "not checked: 1 tensor that the sums do not name (b.weight)"
    assert done.code == 0 and done.lines[0].endswith(rest)


def test_a_record_that_does_not_match_its_checksum_has_a_way_out(
    tmp_path: Path,
) -> None:
    state = {"a": torch.full((64,), 3.0), "b": torch.full((64,), 5.0)}
    torch.save(state, tmp_path / "a.pth")
    data = (tmp_path / "a.pth").read_bytes()
    at = data.index(state["b"].numpy().tobytes())
    (tmp_path / "a.pth").write_bytes(data[:at] + b"\1" + data[at + 1 :])
    done = ckpt("verify", "a.pth", cwd=tmp_path)
    command = done.lines[-1].strip()
    assert done.code == 1 and command == "ckpt salvage a.pth -o a.whole.pth"
    assert ckpt(*command.split()[1:], cwd=tmp_path).code == 1
    assert list(torch.load(tmp_path / "a.whole.pth")) == ["a"]
    (tmp_path / "a.pth").write_bytes(data)
    assert "salvage" not in ckpt("verify", "a.pth", cwd=tmp_path).out.decode()


def test_a_folder_of_checkpoints_says_how_each_is_checked(tmp_path: Path) -> None:
    import ckpt as program

    (tmp_path / "runs/deep").mkdir(parents=True)
    torch.save({"w": torch.ones(4)}, tmp_path / "runs/a.pth")
    torch.save({"w": torch.ones(4)}, tmp_path / "runs/deep/b.pth")
    (tmp_path / "runs/notes.md").write_text("none")
    for folder, count in (("runs", "2 checkpoints"), ("runs/deep", "1 checkpoint")):
        path = str(tmp_path / folder)
        error = program.verify(path).error
        assert error is not None
        assert (
            error.message == f"a folder with {count}, each of which has its own verdict"
        )
        assert error.hint is not None
        reports = eval(error.hint, {"ckpt": program})
        assert {report.verdict for report in reports} == {"intact"}
        assert len(reports) == int(count[0])
    (tmp_path / "none").mkdir()
    report = program.verify(tmp_path / "none")
    assert report.error is not None
    assert report.error.message == "a directory without a checkpoint"


@pytest.mark.parametrize("name", ["x.pth", "./runs/x.pth", "other.pth"])
def test_a_list_of_files_is_no_list_of_tensors(name: str, tmp_path: Path) -> None:
    """sha256sum prints lines of the same form, and the file is whole."""
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pth")
    (tmp_path / "list").write_text(f"{'0' * 64}  {name}\n")

    done = inside("verify", "x.pth", "--sums", "list", cwd=tmp_path)

    assert done.code == 2
    said = "\n".join((*done.lines, *done.complaints))
    assert "the sums are of files" in said and "sha256sum -c LIST" in said
    assert "damaged" not in said


def test_a_tensor_that_is_gone_is_still_missing(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pth")
    (tmp_path / "list").write_text(f"{'0' * 64}  fc.weight\n")

    done = inside("verify", "x.pth", "--sums", "list", cwd=tmp_path)

    assert done.code == 1
    assert "1 tensor missing (fc.weight)" in "\n".join(done.lines)


def test_values_without_a_checksum_are_counted_without_the_header_of_their_file(
    tmp_path: Path,
) -> None:
    """A folder of weights in safetensors, and of an optimizer that has checksums."""
    from safetensors.torch import save_file

    save_file({"a.weight": torch.zeros(8, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    parameter = torch.nn.Parameter(torch.zeros(8, 4))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    done = inside("verify", ".", cwd=tmp_path)
    assert "values of 128 B (records without a checksum)" in done.lines[0]

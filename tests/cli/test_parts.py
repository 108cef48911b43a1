"""Parts and their merge: what is merged is byte for byte what the command prints by itself, and nothing else is merged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeeds
import oracle
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from inside import inside as inside_here
from paths import many
from process import SAMPLES, Done, ckpt, terminal
from strategies import states

from ckpt.cli import output
from ckpt.elements import blocks
from ckpt.errors import CkptError, LimitError
from ckpt.io.executor import Local
from ckpt.io.source import File
from ckpt.jobs import parts as module
from ckpt.jobs.parts import part_of
from ckpt.limits import Limits
from ckpt.tensors import Range

pytestmark = oracle.QUIET


def inside(*words: str, cwd: Path) -> Done:
    """A command in this process, as the first one in it: between the reports of several files are empty lines."""
    output._texts = 0
    return inside_here(*words, cwd=cwd)


SHOWN: dict[str, tuple[tuple[str, ...], ...]] = {
    "stats": (
        (),
        ("--json",),
        ("--tsv",),
        ("--tsv", "--no-header"),
        ("--table", "github"),
        ("--modules", "--sort", "rms"),
        ("--fail-on", "any"),
        ("--select", "nan", "-q"),
    ),
    "diff": (
        (),
        ("--json",),
        ("--tsv",),
        ("--name-only",),
        ("--show", "all"),
        ("--fail-on", "frozen", "-q"),
        ("--ignore", "frozen", "--json"),
    ),
    "verify": ((), ("--json",), ("-q",)),
    "sum": ((), ("-q",)),
}
"""What a command and the merge of its parts take alike."""

RUNS = [
    ("stats", "train_cuda.pth", "--all", "--channels"),
    ("stats", "dtypes.pth", "--all"),
    ("stats", "whole_model.pth", "--include", "*weight", "--channels", "--threshold", "0.5"),
    ("stats", "dcp", "--section", "optim"),
    ("stats", "sharded"),
    ("stats", "agent.zip", "--all"),
    ("stats", "train_cuda.pth", "--all", "--histogram"),
    ("stats", "dtypes.pth", "--all", "--histogram", "--channels"),
    ("diff", "ddp_before.pth", "ddp_after.pth"),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--stat", "--section", "optimizer"),
    ("diff", "legacy.pth", "weights.safetensors", "--strict", "--exclude", "*bias"),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--atol", "0.001", "--rtol", "0.01"),
    ("diff", "whole_model.pth", "weights.safetensors", "--close", "--no-align"),
    ("diff", "dcp", "dcp"),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--histogram", "--stat"),
    ("diff", "compiled.pth", "ddp_after.pth", "--sub", "s/^_orig_mod[.]//"),
    ("verify", "train_cuda.pth"),
    ("verify", "dcp"),
    ("verify", "sharded"),
    ("verify", "weights.safetensors"),
    ("verify", "legacy.pth", "--sums", "model.sums"),
    ("verify", "legacy.pth", "--sums", "other.sums", "--exclude", "*bias"),
    ("sum", "zoo.pkl", "--all"),
    ("sum", "scripted.pt"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the samples, whose times stay, with sums of a model."""
    made = tmp_path / "samples"
    shutil.copytree(SAMPLES, made)
    sums = inside("sum", "legacy.pth", cwd=made).out
    (made / "model.sums").write_bytes(sums)
    (made / "other.sums").write_bytes(sums.replace(b"4", b"5"))
    return made


def cut(folder: Path, *words: str, of: int, codes: tuple[int, ...] = (0,)) -> list[str]:
    """Run all parts of a command; the names of their documents."""
    names = []
    for number in range(of):
        done = inside(*words, "--part", f"{number}/{of}", cwd=folder)
        assert done.code in codes, done
        names.append(f"part-{of}-{number}.json")
        (folder / names[-1]).write_bytes(done.out)
    return names


def merged(folder: Path, names: list[str], *words: str) -> Done:
    return inside("merge-parts", *names, *words, cwd=folder)


def same(folder: Path, words: tuple[str, ...], of: int) -> None:
    names = cut(folder, *words, of=of)
    for shown in SHOWN[words[0]]:
        assert merged(folder, names, *shown) == inside(*words, *shown, cwd=folder), (words, shown, of)


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_what_is_merged_is_what_the_command_prints(words: tuple[str, ...], folder: Path) -> None:
    same(folder, words, 3)


FEW = [
    RUNS[0],
    ("stats", "train_cuda.pth", "--all", "--histogram"),
    ("diff", "ddp_before.pth", "ddp_after.pth", "--stat", "--section", "optimizer"),
    ("verify", "dcp"),
    ("verify", "legacy.pth", "--sums", "model.sums"),
    ("sum", "scripted.pt"),
]
"""One of each way in which results go into parts."""


@pytest.mark.parametrize(
    ("words", "of"),
    [*((words, of) for words in FEW for of in (1, 2, 7)), (FEW[1], 40), (FEW[3], 40)],
    ids=str,
)
def test_whatever_the_number_of_parts(words: tuple[str, ...], of: int, folder: Path) -> None:
    same(folder, words, of)


@pytest.mark.parametrize(
    "words",
    [
        *FEW[:4],
        ("diff", "ddp_before.pth", "ddp_after.pth", "--histogram", "--stat"),
        ("diff", "dcp", "dcp"),
        ("verify", "train_cuda.pth"),
    ],
    ids=" ".join,
)
def test_large_tensors_are_many_tasks(words: tuple[str, ...], folder: Path, small_blocks: None) -> None:
    """With small spans a tensor has tasks in several parts."""
    same(folder, words, 3)
    if words[0] == "verify":
        assert b": intact: " in inside(*words, cwd=folder).out


@settings(max_examples=many(5, 12), phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(states(), states(), st.sampled_from([1, 2, 3, 7]))
def test_of_any_state(tmp_path_factory: pytest.TempPathFactory, one: Any, two: Any, of: int) -> None:
    folder = tmp_path_factory.mktemp("any")
    torch.save(one.value, folder / "one.pth")
    torch.save(two.value, folder / "two.pth")
    for words in (
        ("stats", "one.pth", "--all", "--channels", "--histogram"),
        ("diff", "one.pth", "two.pth", "--histogram"),
        ("diff", "one.pth", "one.pth", "--stat"),
        ("verify", "one.pth"),
        ("sum", "two.pth", "--all"),
    ):
        done = [inside(*words, "--part", f"{number}/{of}", cwd=folder) for number in range(of)]
        if any(each.code for each in done):  # such as a tensor on meta, which has no sum
            assert inside(*words, cwd=folder).code == 2
            assert all(each.out == b"" for each in done if each.code), done
            continue
        same(folder, words, of)


def test_moved_tensors_and_equal_spans(folder: Path, small_blocks: None) -> None:
    """What a whole run finds out in a second look, parts must know at once."""
    value = torch.arange(3000, dtype=torch.float32)
    changed = value.clone()
    changed[1500] = -1
    torch.save({"a": value, "b": value * 2, "old.name": value * 3}, folder / "one.pth")
    torch.save({"a": changed, "b": value * 2, "new.name": value * 3}, folder / "two.pth")
    names = cut(folder, "diff", "one.pth", "two.pth", of=4)
    done = merged(folder, names, "--json")
    assert done == inside("diff", "one.pth", "two.pth", "--json", cwd=folder)
    rows = {row["after"]: row for row in json.loads(done.out)["tensors"]}
    assert [rows[name]["status"] for name in ("a", "b", "new.name")] == ["changed", "same", "renamed"]
    assert rows["a"]["change"]["rel_l2"] == pytest.approx(1501 / float(value.norm()))


# --- verify of what is damaged ----------------------------------------------------------------------------------------


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def local_header(data: bytes, name: bytes) -> int:
    """Where the local header of a record begins."""
    return data.index(b"PK\3\4", data.index(name) - 30)


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], bool]] = {
    "a byte of a record": (
        "train_cuda.pth",
        lambda data: flipped(data, data.index(b"train_cuda/data/6") + 99),
        True,
    ),
    "the header of a record": (
        "train_cuda.pth",
        lambda data: flipped(data, data.index(b"train_cuda/data/6")),
        False,
    ),
    "the pickle": ("train_cuda.pth", lambda data: flipped(data, 300), False),
    "a checksum in the directory": (
        "train_cuda.pth",
        lambda data: flipped(data, data.rindex(b"PK\1\2") + 16),
        True,
    ),
    "the directory": (
        "train_cuda.pth",
        lambda data: flipped(data, data.index(b"PK\1\2")),
        False,
    ),
    "a zip that is cut off": ("train_cuda.pth", lambda data: data[:54_829], False),
    "a header of safetensors": ("weights.safetensors", lambda data: flipped(data, 20), False),
    "safetensors that are cut off": ("weights.safetensors", lambda data: data[:9000], False),
    "data of safetensors": ("weights.safetensors", lambda data: flipped(data, len(data) - 9), True),
    "the pickle of a legacy file": ("legacy.pth", lambda data: flipped(data, 20), False),
    "a legacy file that is cut off": ("legacy.pth", lambda data: data[:9406], False),
    "an empty file": ("legacy.pth", lambda data: b"", False),
    "a byte of a DCP": ("dcp/__0_0.distcp", lambda data: flipped(data, len(data) // 2), True),
    "a file of a DCP that is cut off": ("dcp/__1_0.distcp", lambda data: data[: len(data) // 2], True),
    "the metadata of a DCP": ("dcp/.metadata", lambda data: data[: len(data) // 2], False),
    "a shard that is cut off": ("sharded/model-00001-of-00002.safetensors", lambda data: data[:4000], False),
    "the header of a shard": (
        "sharded/model-00002-of-00002.safetensors",
        lambda data: flipped(data, 20),
        False,
    ),
    "the index of shards": ("sharded/model.safetensors.index.json", lambda data: flipped(data, 20), False),
    "a setting beside shards": ("sharded/config.json", lambda data: data[:9], True),
}
"""What is damaged -> the file, how, and whether the checkpoint opens all the same."""


def damage(folder: Path, what: str) -> str:
    """Damage a file; the checkpoint."""
    name, how, _ = DAMAGE[what]
    (folder / name).write_bytes(how((folder / name).read_bytes()))
    return name.partition("/")[0]


@pytest.mark.parametrize("of", [1, 3])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_has_parts(what: str, of: int, folder: Path) -> None:
    name = damage(folder, what)
    same(folder, ("verify", name), of)
    part = inside("verify", name, "--part", f"{of - 1}/{of}", cwd=folder)
    document = json.loads(part.out)
    line = f"ckpt: {name}: part {of - 1} of {of}: nothing to check, it does not open: {document['problem']}"
    assert (document["problem"] is None) == DAMAGE[what][2]
    assert document["problem"] is None or part.complaints == [line]


def test_a_shard_that_is_missing_and_an_interrupted_save_have_parts(folder: Path) -> None:
    (folder / "sharded" / "model-00001-of-00002.safetensors").unlink()
    (folder / "dcp" / ".metadata").unlink()
    for name in ("sharded", "sharded/model.safetensors.index.json", "dcp"):
        assert inside("verify", name, cwd=folder).code == 1
        same(folder, ("verify", name), 2)


def test_a_damaged_file_below_a_folder_is_one_of_its_files(tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", 2)
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    (bad,) = tmp_path.glob("run/global_step*/mp_rank_00_*")
    data = bad.read_bytes()
    bad.write_bytes(data[: len(data) // 2])
    same(tmp_path, ("verify", "run"), 2)
    (name,) = cut(tmp_path, "verify", "run", of=1)
    document = json.loads((tmp_path / name).read_bytes())
    assert document["problem"] and document["inputs"][0]["files"] == 6
    before = bad.stat()
    bad.write_bytes(data[: len(data) // 3])
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(tmp_path, [name], f"ckpt: run: not the files that {name} was made of, or changed since")


def test_a_damaged_shard_is_one_of_the_files_of_its_index(folder: Path) -> None:
    bad = folder / "sharded" / "model-00002-of-00002.safetensors"
    bad.write_bytes(flipped(bad.read_bytes(), 20))
    index = "sharded/model.safetensors.index.json"
    same(folder, ("verify", index), 2)
    (name,) = cut(folder, "verify", index, of=1)
    assert json.loads((folder / name).read_bytes())["inputs"][0]["files"] == 2
    os.utime(bad, ns=(5, 5))
    hint = "(only the times differ: --at PATH takes a copy)"
    refused(folder, [name], f"ckpt: {index}: not the files that {name} was made of, or changed since {hint}")


def test_a_link_that_is_not_followed_is_no_damage(folder: Path) -> None:
    """Nothing is known of the bytes behind it."""
    (folder / "dcp" / "__0_0.distcp").rename(folder / "elsewhere")
    (folder / "dcp" / "__0_0.distcp").symlink_to("../elsewhere")
    assert inside("verify", "dcp", cwd=folder).code == 2
    done = inside("verify", "dcp", "--part", "0/2", cwd=folder)
    assert (done.code, done.out) == (2, b"") and "is a link" in done.complaints[0]


def test_sums_of_a_damaged_file(folder: Path) -> None:
    (folder / "legacy.pth").write_bytes((folder / "legacy.pth").read_bytes()[:9406])
    same(folder, ("verify", "legacy.pth", "--sums", "model.sums"), 2)


@pytest.mark.parametrize("what", ["the directory", "a byte of a record"])
@pytest.mark.parametrize("sums", [b"\xff\xfe", b"no sums\n", b"", None])
def test_bad_sums_are_no_damage_of_the_file(what: str, sums: bytes | None, folder: Path) -> None:
    name = damage(folder, what)
    if sums is not None:
        (folder / "bad.sums").write_bytes(sums)
    whole = inside("verify", name, "--sums", "bad.sums", cwd=folder)
    assert whole.code == 2 and whole.complaints[0].startswith("ckpt: bad.sums: ")
    assert inside("verify", name, "--sums", "bad.sums", "--part", "0/2", cwd=folder) == whole


def test_a_damaged_file_that_changed_after_the_parts_is_refused(folder: Path) -> None:
    whole = (folder / "train_cuda.pth").read_bytes()
    names = cut(folder, "verify", damage(folder, "the pickle"), of=2)
    (folder / "train_cuda.pth").write_bytes(whole)
    what = f"ckpt: train_cuda.pth: not the files that {names[0]} was made of, or changed since"
    refused(folder, names, what)


def test_parts_agree_on_whether_the_file_opens(folder: Path) -> None:
    names = cut(folder, "verify", "train_cuda.pth", of=2)
    edited(folder, names[1], problem="it is damaged")
    text = "part 1 of 2 differs from part 0 of 2 in whether the file opens"
    refused(folder, names, f"ckpt: {names[1]}: {text}", "ckpt: part 1 of 2 is missing")
    edited(folder, names[0], problem="it is damaged")
    text = "is of a file that did not open: it is damaged; here it opens"
    refused(folder, names, f"ckpt: {names[0]}: {text}")
    names = cut(folder, "verify", damage(folder, "the directory"), of=2)
    for name in names:
        edited(folder, name, problem=None)
    text = "is of a file that opened; here it does not: the zip directory is damaged"
    refused(folder, names, f"ckpt: {names[0]}: {text}")


def test_a_file_that_changes_while_it_is_verified_gives_no_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing() -> Local:
        os.utime(folder / "legacy.pth", ns=(1, 1))
        return Local()

    monkeypatch.setattr("ckpt.cli.parts.Local", changing)
    done = inside("verify", "legacy.pth", "--part", "0/1", cwd=folder)
    assert (done.code, done.out) == (2, b"") and "changed while it was read" in done.complaints[0], done


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_part_is_the_same_on_every_machine(folder: Path, tmp_path: Path) -> None:
    """Another mount has other devices and inodes, and may have another path."""
    there = tmp_path / "elsewhere" / "samples"
    shutil.copytree(folder, there)
    for words in RUNS[:1], RUNS[6:7], RUNS[14:15], RUNS[17:18]:
        ours, theirs = (inside(*words[0], "--part", "1/3", cwd=at) for at in (folder, there))
        assert ours == theirs


def test_parts_have_all_tasks_once_and_about_as_many_bytes(folder: Path) -> None:
    torch.save({f"t{number}": torch.zeros(250_000) for number in range(40)}, folder / "even.pth")
    parts = [json.loads((folder / name).read_bytes()) for name in cut(folder, "stats", "even.pth", of=4)]
    assert [(part["part"], part["of"], part["first"], len(part["results"])) for part in parts] == [
        (0, 4, 0, 10),  # of 40 tensors the figures, and the checksum of the same bytes
        (1, 4, 10, 10),
        (2, 4, 20, 10),
        (3, 4, 30, 10),
    ]


def test_a_part_without_tasks_is_a_part(folder: Path) -> None:
    torch.save({"one": torch.ones(3)}, folder / "one.pth")
    same(folder, ("stats", "one.pth"), 5)


@pytest.mark.parametrize(
    "text", ["", "1", "3/3", "-1/3", "0/0", "1/2/3", "a/b", "0/10000000", "１/3", "0/1000001"]
)
def test_what_is_no_part(text: str, folder: Path) -> None:
    done = inside("stats", "legacy.pth", f"--part={text}", cwd=folder)
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith(b"ckpt: --part "), done


@pytest.mark.parametrize(
    "words",
    [
        ("stats", "legacy.pth", "train_cuda.pth"),
        ("verify", "legacy.pth", "train_cuda.pth"),
        ("stats", "legacy.pth", "--json"),
        ("stats", "legacy.pth", "--fail-on", "nan"),
        ("stats", "legacy.pth", "--sort", "rms"),
        ("diff", "legacy.pth", "train_cuda.pth", "--quick"),
        ("diff", "legacy.pth", "train_cuda.pth", "--structure"),
        ("diff", "legacy.pth", "train_cuda.pth", "--show", "all"),
        ("verify", "legacy.pth", "--quick"),
        ("verify", "nothing.pth"),
        ("verify", "html_page.pth"),
        ("verify", "."),
        ("stats", "truncated.pth"),
        ("stats", "legacy.pth", "--section", "nope"),
    ],
    ids=" ".join,
)
def test_what_has_no_parts(words: tuple[str, ...], folder: Path) -> None:
    done = inside(*words, "--part", "0/2", cwd=folder)
    assert (done.code, done.out) == (2, b"") and done.err.count(b"\n") == 1, done


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(folder: Path) -> list[str]:
    return cut(folder, "stats", "legacy.pth", of=4)


def refused(folder: Path, names: list[str], *lines: str) -> None:
    done = merged(folder, names)
    assert (done.code, done.out, done.complaints) == (2, b"", [*lines])


def sealed(document: Any) -> str:
    """A part as text, whose digest fits whatever it holds."""
    if isinstance(document, dict):
        rest = {key: value for key, value in document.items() if key != "digest"}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        document = rest | {"digest": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(document)


def edited(folder: Path, name: str, **changes: Any) -> None:
    """Change a part as somebody who knows how would do."""
    document = json.loads((folder / name).read_bytes())
    (folder / name).write_text(sealed(document | changes))


def test_missing_and_double_parts_are_named(folder: Path, parts: list[str]) -> None:
    refused(folder, parts[:1] + parts[2:3], "ckpt: part 1 of 4 is missing", "ckpt: part 3 of 4 is missing")
    shutil.copy(folder / parts[2], folder / "again.json")
    refused(
        folder, [*parts, "again.json"], f"ckpt: again.json: part 2 of 4 is there twice, also as {parts[2]}"
    )


def test_a_great_many_missing_parts_are_counted(folder: Path) -> None:
    (folder / "one.json").write_bytes(inside("stats", "legacy.pth", "--part", "0/1000000", cwd=folder).out)
    done = merged(folder, ["one.json"])
    assert done.code == 2 and len(done.complaints) == 21
    assert done.complaints[-1] == "ckpt: 999,979 further parts of 1,000,000 are missing"


def test_parts_of_other_jobs_are_named(folder: Path, parts: list[str]) -> None:
    other = json.loads(inside("stats", "legacy.pth", "--part", "3/4", "--include", "*bias", cwd=folder).out)
    edited(folder, parts[3], **other)
    edited(folder, parts[2], of=5)
    edited(folder, parts[1], command="sum")
    refused(
        folder,
        parts,
        f"ckpt: {parts[1]}: part 1 of 4 differs from part 0 of 4 in the command",
        f"ckpt: {parts[2]}: part 2 of 5 differs from part 0 of 4 in the number of parts",
        f"ckpt: {parts[3]}: part 3 of 4 differs from part 0 of 4 in --include",
        "ckpt: part 1 of 4 is missing",
        "ckpt: part 2 of 4 is missing",
        "ckpt: part 3 of 4 is missing",
    )


def test_parts_of_changed_files_are_named(folder: Path, parts: list[str]) -> None:
    data = (folder / "legacy.pth").read_bytes()
    (folder / "legacy.pth").write_bytes(data)  # the same bytes at another time
    (folder / parts[3]).write_bytes(inside("stats", "legacy.pth", "--part", "3/4", cwd=folder).out)
    text = "part 3 of 4 differs from part 0 of 4 in the files of legacy.pth"
    refused(folder, parts, f"ckpt: {parts[3]}: {text}", "ckpt: part 3 of 4 is missing")


@pytest.mark.parametrize("name", ["legacy.pth", "train_cuda.pth", "weights.safetensors"])
def test_a_change_that_keeps_size_and_time_is_seen_in_headers_and_checksums(name: str, folder: Path) -> None:
    """Where a format records checksums, or the change is near an end of the file."""
    names = cut(folder, "stats", name, of=2)
    path = folder / name
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1 if name == "weights.safetensors" else len(data) - 40] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = merged(folder, names)
    assert (done.code, done.out) == (2, b""), done


def test_a_file_that_changed_after_the_parts_is_refused(folder: Path, parts: list[str]) -> None:
    os.utime(folder / "legacy.pth", ns=(5, 5))
    hint = "(only the times differ: --at PATH takes a copy)"
    what = f"not the files that {parts[0]} was made of, or changed since {hint}"
    refused(folder, parts, f"ckpt: legacy.pth: {what}")


def test_changed_sums_are_refused(folder: Path) -> None:
    names = cut(folder, "verify", "legacy.pth", "--sums", "model.sums", of=2)
    (folder / "model.sums").write_bytes((folder / "other.sums").read_bytes())
    refused(folder, names, f"ckpt: model.sums: not the files that {names[0]} was made of, or changed since")


def test_another_version_is_refused(folder: Path, parts: list[str]) -> None:
    for name in parts:
        edited(folder, name, ckpt="9.9")
    done = merged(folder, parts)
    assert done.code == 2 and done.complaints[0].startswith(f"ckpt: {parts[0]}: is of ckpt 9.9, this is")


def test_the_checkpoint_may_have_moved(folder: Path, parts: list[str]) -> None:
    whole = inside("stats", "legacy.pth", cwd=folder)
    (folder / "there").mkdir()
    (folder / "legacy.pth").rename(folder / "there" / "legacy.pth")
    hint = f"(--at PATH says where the checkpoint of {parts[0]} is now)"
    refused(folder, parts, f"ckpt: legacy.pth: no such file {hint}")
    done = merged(folder, parts, "--at", "there/legacy.pth")
    assert done == whole._replace(out=whole.out.replace(b"legacy.pth", b"there/legacy.pth"))
    twice = merged(folder, parts, "--at", "there/legacy.pth", "--at", "x")
    assert twice.complaints == [f"ckpt: {parts[0]}: is of 1 PATH, --at is given 2 times (--at PATH)"]


# --- copies -----------------------------------------------------------------------------------------------------------


def copied(folder: Path, name: str, to: str) -> str:
    """A copy at another time, as `cp -r` makes it."""
    if (folder / name).is_dir():
        shutil.copytree(folder / name, folder / to, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(folder / name, folder / to)
    for path in ((folder / to), *(folder / to).rglob("*")):
        os.utime(path, ns=(7, 7))
    return to


def as_copy(folder: Path, names: list[str], words: tuple[str, ...], *copies: tuple[str, str]) -> None:
    """Merge parts beside copies: as the command reports on these, behind a line about each."""
    done = merged(folder, names, *(word for at, _ in copies for word in ("--at", at)))
    whole = inside(*words, cwd=folder)
    lines = [f"ckpt: {at}: taken for a copy of {of}, whose bytes the parts have read" for at, of in copies]
    assert (done.code, done.out) == (whole.code, whole.out)
    assert done.complaints == [*lines, *whole.complaints]


@pytest.mark.parametrize(
    ("words", "name", "to"),
    [
        (("stats", "{}", "--all"), "train_cuda.pth", "other.bin"),
        (("stats", "{}", "--all"), "agent.zip", "renamed.zip"),
        (("stats", "{}"), "weights.safetensors", "renamed.safetensors"),
        (("sum", "{}"), "dcp", "renamed"),
        (("verify", "{}"), "sharded", "renamed/"),
        (("verify", "{}", "--sums", "model.sums"), "legacy.pth", "renamed.pth"),
    ],
)
def test_a_copy_may_have_another_name(words: tuple[str, ...], name: str, to: str, folder: Path) -> None:
    names = cut(folder, *[word.format(name) for word in words], of=2)
    copied(folder, name, to)
    as_copy(folder, names, tuple(word.format(to) for word in words), (to, name))


def test_an_index_of_another_name_is_of_the_same_files(folder: Path) -> None:
    names = cut(folder, "verify", "sharded/model.safetensors.index.json", of=2)
    at = copied(folder, "sharded/model.safetensors.index.json", "sharded/again.safetensors.index.json")
    assert merged(folder, names, "--at", at) == inside("verify", at, cwd=folder)


def test_a_copy_that_is_the_working_folder(folder: Path) -> None:
    names = [str(folder / name) for name in cut(folder, "verify", "dcp", of=2)]
    done = inside("merge-parts", *names, "--at", ".", cwd=folder / "dcp")
    assert done == inside("verify", ".", cwd=folder / "dcp") and done.code == 0
    as_copy(folder / copied(folder, "dcp", "renamed"), names, ("verify", "."), (".", "dcp"))
    deepspeeds.write(folder / "run", 2)  # its files are in a folder inside of it
    names = [str(folder / name) for name in cut(folder, "sum", "run", of=2)]
    done = inside("merge-parts", *names, "--at", ".", cwd=folder / "run")
    assert done == inside("sum", ".", cwd=folder / "run") and done.code == 0


def test_a_damaged_copy_has_the_verdict_of_verify(folder: Path) -> None:
    for what in ("the directory", "the metadata of a DCP", "a header of safetensors"):
        name = damage(folder, what)
        names = cut(folder, "verify", name, of=2)
        at = copied(folder, name, f"copy-{name}")
        as_copy(folder, names, ("verify", at), (at, name))


def test_other_content_is_no_copy(folder: Path) -> None:
    """Of the same size, wherever it differs in what is compared."""
    torch.save({f"t{number}": torch.full((20_000,), number) for number in range(8)}, folder / "a.pth")
    data = (folder / "a.pth").read_bytes()
    names = cut(folder, "sum", "a.pth", of=2)
    piece = len(data) * 65 // 128
    for at in (64, len(data) - 64, piece, piece + 4095):
        (folder / "b.pth").write_bytes(flipped(data, at))
        done = merged(folder, names, "--at", "b.pth")
        what = f"ckpt: b.pth: neither the files that {names[0]} was made of nor a copy of them"
        assert (done.code, done.out) == (2, b"") and len(done.complaints) == 1, (at, done)
        assert done.complaints == [what] or at in (64, len(data) - 64), (at, done)
    (folder / "b.pth").write_bytes(flipped(data, piece + 4096))
    assert merged(folder, names, "--at", "b.pth").code == 0, "it is between the pieces that are compared"
    (folder / "b.pth").write_bytes(data + b"\0")
    assert merged(folder, names, "--at", "b.pth").code == 2


def test_a_copy_has_the_same_tensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no piece of a large header was compared."""
    monkeypatch.setattr("ckpt.jobs.parts._PIECES", 0)
    monkeypatch.setattr("ckpt.jobs.parts._EDGE", 16)
    data = (folder / "weights.safetensors").read_bytes()
    names = cut(folder, "stats", "weights.safetensors", of=2)
    for old, new in ((b'"conv.bias"', b'"conv.biaz"'), (b'"I64"', b'"U64"'), (b"[8,3,3,3]", b"[8,3,9,1]")):
        assert data.count(old) == 1
        (folder / "b.safetensors").write_bytes(data.replace(old, new))
        done = merged(folder, names, "--at", "b.safetensors")
        assert done.code == 2 and "nor a copy of them" in done.complaints[0], (old, done)
    (folder / "b.safetensors").write_bytes(data)
    assert merged(folder, names, "--at", "b.safetensors").code == 0


def test_the_names_inside_of_a_folder_are_those_of_its_copy(folder: Path) -> None:
    (folder / "one").mkdir()
    shutil.copy(folder / "weights.safetensors", folder / "one" / "model.safetensors")
    names = cut(folder, "sum", "one", of=2)
    at = copied(folder, "one", "two")
    assert merged(folder, names, "--at", at).code == 0
    (folder / "two" / "model.safetensors").rename(folder / "two" / "adapter_model.safetensors")
    what = f"ckpt: two: neither the files that {names[0]} was made of nor a copy of them"
    assert merged(folder, names, "--at", at).complaints == [what]


def test_both_sides_of_a_comparison_may_be_copies(folder: Path) -> None:
    names = cut(folder, "diff", "ddp_before.pth", "ddp_after.pth", of=2)
    one, two = copied(folder, "ddp_before.pth", "one.bin"), copied(folder, "ddp_after.pth", "two.bin")
    as_copy(folder, names, ("diff", one, two), (one, "ddp_before.pth"), (two, "ddp_after.pth"))
    done = merged(folder, names, "--at", two, "--at", one)
    what = f"ckpt: {two}: neither the files that {names[0]} was made of nor a copy of them"
    assert (done.code, done.out, done.complaints) == (2, b"", [what])
    done = merged(folder, names, "--at", one)
    line = "is of 2 PATHs, --at is given 1 time (--at PATH --at PATH)"
    assert done.complaints == [f"ckpt: {names[0]}: {line}"]


def test_a_part_of_an_object_has_no_copy(folder: Path, parts: list[str]) -> None:
    for name in parts:
        document = json.loads((folder / name).read_bytes())
        edited(folder, name, inputs=[document["inputs"][0] | {"content": None}])
    at = copied(folder, "legacy.pth", "b.pth")
    hint = "(an object is known by its ETag, which a copy lacks)"
    what = f"neither the files that {parts[0]} was made of nor a copy of them {hint}"
    assert merged(folder, parts, "--at", at).complaints == [f"ckpt: b.pth: {what}"]
    assert merged(folder, parts, "--at", "legacy.pth").code == 0


def test_no_server_is_asked_because_a_part_says_so(folder: Path, parts: list[str]) -> None:
    for name in parts:
        document = json.loads((folder / name).read_bytes())
        document["inputs"][0]["path"] = "https://127.0.0.1:9/a.pth"
        edited(folder, name, **document)
    line = "names the URL https://127.0.0.1:9/a.pth, which is not opened for a file (--at URL)"
    refused(folder, parts, f"ckpt: {parts[0]}: {line}")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("sum", "legacy.pth"), ("--json",)),
        (("verify", "legacy.pth"), ("--fail-on", "nan")),
        (("stats", "legacy.pth"), ("--name-only",)),
        (("diff", "legacy.pth", "legacy.pth"), ("--table", "github")),
    ],
)
def test_options_of_another_command(words: tuple[str, ...], option: tuple[str, ...], folder: Path) -> None:
    names = cut(folder, *words, of=2)
    done = merged(folder, names, *option)
    assert (done.code, done.out) == (2, b"")
    line = f"{option[0]} does not go with the parts of ckpt {words[0]}"
    assert done.complaints == [f"ckpt: {names[0]}: {line}"]


@pytest.mark.parametrize("option", ["--fail-on", "--select"])
def test_dead_channels_are_not_denied_where_none_were_looked_at(
    option: str, folder: Path, parts: list[str]
) -> None:
    done = merged(folder, parts, option, "nan,dead-channels")
    assert (done.code, done.out) == (2, b"")
    assert done.complaints == [f"ckpt: {parts[0]}: holds no channels (ckpt stats --channels --part I/N)"]


def test_nothing_to_merge(folder: Path) -> None:
    assert merged(folder, []).complaints == ["ckpt: nothing to merge (PART..., what --part I/N printed)"]


# --- parts one after another ------------------------------------------------------------------------------------------


def indented(data: bytes) -> bytes:
    return json.dumps(json.loads(data), indent=2).encode() + b"\n"


def test_parts_come_in_files_and_on_stdin_in_any_form(folder: Path, parts: list[str]) -> None:
    whole = inside("stats", "legacy.pth", cwd=folder)
    lines = [(folder / name).read_bytes() for name in parts]
    pages = [indented(line) for line in lines]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    for stream in (
        b"".join(lines),
        b"".join(lines).removesuffix(b"\n"),
        b"\n\n".join(reversed(lines)),
        b"".join(lines).replace(b"\n", b"\r\n"),
        b"".join(pages),
        b"".join(pages).replace(b"\n", b"\r\n"),
        b"".join([lines[0], pages[1], b"\n", pages[2], lines[3]]),
    ):
        assert ckpt("merge-parts", "-", cwd=folder, input=stream) == whole
        (folder / "all.ndjson").write_bytes(stream)
        assert merged(folder, ["all.ndjson"]) == whole
    (folder / "two.ndjson").write_bytes(lines[1] + pages[2])
    assert ckpt("merge-parts", parts[3], "-", "two.ndjson", cwd=folder, input=lines[0]) == whole
    (folder / parts[1]).write_text(json.dumps(json.loads(lines[1])).replace(", ", ",\n "))
    assert merged(folder, parts) == whole, "one document of any form"


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_parts_are_split_wherever_the_bytes_are_cut(
    step: int, folder: Path, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [(folder / name).read_bytes() for name in parts]
    stream = b"".join([lines[0], indented(lines[1]), b"  \n", lines[2], lines[3].removesuffix(b"\n")])
    (folder / "all.ndjson").write_bytes(stream)
    monkeypatch.setattr(blocks, "BLOCK", step)
    source = File(str(folder / "all.ndjson"))
    chunks = blocks.blocks(Range(source, 0, source.size))
    rows = list(module.documents_of(chunks, "x", Limits()))
    assert [name for name, _ in rows] == [f"x (document {number})" for number in (1, 2, 3, 4)]
    assert [json.loads(data) for _, data in rows] == list(map(json.loads, lines))


def test_parts_are_added_to_a_file(folder: Path) -> None:
    """As a loop of the shell does, and on a terminal."""
    with (folder / "all.ndjson").open("ab") as file:
        for number in range(3):
            file.write(ckpt("stats", "legacy.pth", "--part", f"{number}/3", cwd=folder).out)
    assert (folder / "all.ndjson").read_bytes().count(b"\n") == 3
    whole = ckpt("stats", "legacy.pth", cwd=folder)
    assert ckpt("merge-parts", "all.ndjson", cwd=folder) == whole
    seen = [
        terminal("stats", str(folder / "legacy.pth"), "--part", f"{number}/2", CKPT_WIDTH="80")
        for number in (0, 1)
    ]
    assert all(text.count("\n") > 10 for text in seen)
    done = ckpt("merge-parts", "-", "--json", cwd=folder, input="".join(seen).encode())
    assert done == ckpt("stats", str(folder / "legacy.pth"), "--json", cwd=folder)


def test_stdin_that_holds_no_part(folder: Path, parts: list[str]) -> None:
    for stream in (b"", b"\n \n"):
        done = ckpt("merge-parts", "-", *parts, cwd=folder, input=stream)
        assert (done.code, done.out, done.complaints) == (2, b"", ["ckpt: -: empty: no part came"])
        (folder / "empty.ndjson").write_bytes(stream)
        refused(folder, ["empty.ndjson"], "ckpt: empty.ndjson: empty: the part was not finished")
    refused(folder, ["-", "-"], "ckpt: -: given twice, and stdin is read once")


def test_what_is_wrong_in_a_stream_is_named_with_its_number(folder: Path, parts: list[str]) -> None:
    lines = [(folder / name).read_bytes() for name in parts]

    def complaints(*rows: bytes, code: int = 2) -> list[str]:
        done = ckpt("merge-parts", "-", cwd=folder, input=b"".join(rows))
        assert (done.code, done.out) == (code, b""), done
        (folder / "all.ndjson").write_bytes(b"".join(rows))
        alike = [line.replace("all.ndjson", "-") for line in merged(folder, ["all.ndjson"]).complaints]
        assert done.complaints == alike
        return done.complaints

    assert complaints(*lines, lines[2]) == [
        "ckpt: - (document 5): part 2 of 4 is there twice, also as - (document 3)"
    ]
    assert complaints(*lines[:2], lines[3]) == ["ckpt: part 2 of 4 is missing"]
    cut_off = lines[1][: lines[1].index(b'"nan"')] + b"\n"
    for row in (cut_off, b"ckpt: a warning\n", b"[]\n", b"{}\n", b"}\n", b"\0\n", b"\xff\n", b"{\n"):
        (line,) = complaints(lines[0], row, *lines[2:])
        assert line.startswith("ckpt: - (document 2): "), (row, line)
        (line,) = complaints(row, *lines[1:])
        assert line.startswith(("ckpt: - (document 1): ", "ckpt: -: ")), (row, line)
    assert "damaged part: extra data" in complaints(lines[0].strip() + lines[1], *lines[2:])[0]
    other = inside("stats", "legacy.pth", "--part", "3/4", "--include", "*bias", cwd=folder).out
    assert complaints(*lines[:3], other)[0] == (
        "ckpt: - (document 4): part 3 of 4 differs from part 0 of 4 in --include"
    )


def test_no_part_is_longer_than_the_limit(folder: Path, parts: list[str]) -> None:
    """However much there is in all, and wherever lines end."""
    lines = [(folder / name).read_bytes() for name in parts]
    most = max(map(len, lines))
    assert (
        ckpt("merge-parts", "-", "--limit", f"index-bytes={most}", cwd=folder, input=b"".join(lines)).code
        == 0
    )
    for row in (
        b" " * 50_000,
        b" " * most + b"}",
        b"{\n" + b"\n" * 50_000,
        lines[0][:-2] + b" " * most + b"}\n",
    ):
        stream = b"".join([*lines[:2], row])
        (folder / "all.ndjson").write_bytes(stream)
        for name in ("-", "all.ndjson"):
            done = ckpt("merge-parts", name, "--limit", f"index-bytes={most}", cwd=folder, input=stream)
            assert (done.code, done.out, len(done.complaints)) == (2, b"", 1), done
            assert done.complaints[0].startswith(f"ckpt: {name} (document 3): the part has "), done
            assert done.complaints[0].endswith("(--limit index-bytes=N raises this)")


def test_a_line_without_an_end_is_not_read_to_its_end() -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"a": '
        for _ in range(20):
            yield b"0" * 1000
        raise AssertionError("it was read on")

    ((name, data),) = module.documents_of(endless(), "x", Limits(index_bytes=5000))
    assert name == "x" and 5000 < len(data) < 8000
    with pytest.raises(LimitError):
        part_of(data, name, Limits(index_bytes=5000))


# --- documents that nobody should trust -------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a document, and of the objects and lists around them."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))


def other_than(value: Any) -> Any:
    """Another value of the same type, which differs by one character or by one."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    if isinstance(value, (int, float)):
        return value + 1
    return [*value, 0] if isinstance(value, list) else {**value, "more": 0}


@pytest.mark.parametrize(
    "words",
    [
        ("stats", "legacy.pth", "--channels", "--histogram"),
        ("diff", "ddp_before.pth", "ddp_after.pth", "--include", "*.bn1.*"),
        ("verify", "truncated.pth"),
        ("sum", "legacy.pth"),
    ],
    ids=" ".join,
)
def test_a_part_that_was_edited_is_refused(words: tuple[str, ...], folder: Path) -> None:
    (name,) = cut(folder, *words, of=1)
    data = (folder / name).read_bytes()
    places = list(leaves(json.loads(data)))
    assert len(places) > 15
    line = "was changed after it was written: its SHA-256 is another"
    for path in places:
        document = json.loads(data)
        inside_of = document
        for key in path[:-1]:
            inside_of = inside_of[key]
        inside_of[path[-1]] = other_than(inside_of[path[-1]])
        with pytest.raises(CkptError) as error:
            part_of(json.dumps(document).encode(), "x", Limits())
        assert error.value.path == "x" and (error.value.problem == line or path[0] in ("schema", "ckpt")), (
            path
        )
    document = json.loads(data)
    for other in (document | {"more": 1}, *({**document, gone: None} for gone in document)):
        if other == document:  # its problem is null
            continue
        with pytest.raises(CkptError):
            part_of(json.dumps(other).encode(), "x", Limits())
    for gone in document:
        with pytest.raises(CkptError):
            part_of(
                json.dumps({key: document[key] for key in document if key != gone}).encode(), "x", Limits()
            )
    edited_by_hand = data.replace(b'"tasks": ', b'"tasks": 1', 1)
    (folder / name).write_bytes(edited_by_hand)
    refused(folder, [name], f"ckpt: {name}: {line} (run the part again)")


def test_a_part_in_another_form_is_the_same_part(folder: Path) -> None:
    """The digest is over what it says: not over spaces, the order of keys, or how a letter is written."""
    name = "ü##.pth"
    shutil.copy(folder / "legacy.pth", folder / name)
    (part,) = cut(folder, "stats", name, "--threshold", "0.001", of=1)
    document = json.loads((folder / part).read_bytes())
    assert sealed(document) == json.dumps(document), "SHA-256 over sorted keys, without spaces, in ASCII"
    whole = inside("stats", name, cwd=folder)
    for text in (
        json.dumps(dict(sorted(document.items()))),
        json.dumps(document, indent=1, ensure_ascii=False),
        json.dumps(dict(reversed(document.items())), separators=(",", ":")),
    ):
        (folder / "again.json").write_text(text, encoding="utf-8")
        assert merged(folder, ["again.json"]) == whole


def test_a_name_that_is_not_utf8_has_parts(folder: Path) -> None:
    name = os.fsdecode(b"\xff.pth")
    shutil.copy(folder / "legacy.pth", folder / name)
    same(folder, ("stats", name), 2)


def test_a_part_that_was_killed_is_no_part(folder: Path, parts: list[str]) -> None:
    """However much of its document was written."""
    data = (folder / parts[1]).read_bytes()
    (folder / parts[1]).write_bytes(b"")
    refused(folder, parts, f"ckpt: {parts[1]}: empty: the part was not finished")
    for size in range(1, len(data) - 1, 97):
        (folder / parts[1]).write_bytes(data[:size])
        done = merged(folder, parts)
        assert (done.code, done.out) == (2, b"") and "damaged part: " in done.complaints[0], done


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda part: [part],
    "another schema": lambda part: part | {"schema": {"name": "ckpt.stats", "version": 1}},
    "another version": lambda part: part | {"schema": {"name": "ckpt.part", "version": 2}},
    "no schema": lambda part: {key: part[key] for key in part if key != "schema"},
    "a part behind the last": lambda part: part | {"part": 4},
    "a huge count": lambda part: part | {"of": 10**18},
    "a count of many digits": lambda part: part | {"of": 10**4000},
    "a bool for a count": lambda part: part | {"tasks": True},
    "a negative count": lambda part: part | {"first": -1},
    "text for results": lambda part: part | {"results": "x" * 99},
    "more results": lambda part: part | {"results": part["results"] * 2},
    "fewer results": lambda part: part | {"results": part["results"][1:]},
    "other tasks": lambda part: part | {"tasks": part["tasks"] + 1},
    "another plan": lambda part: part | {"plan": "0" * 64},
    "no plan": lambda part: part | {"plan": "x"},
    "another first": lambda part: part | {"first": part["first"] + 1},
    "no inputs": lambda part: part | {"inputs": []},
    "many inputs": lambda part: part | {"inputs": part["inputs"] * 9},
    "inputs of text": lambda part: part | {"inputs": ["legacy.pth"]},
    "another command": lambda part: part | {"command": "convert"},
    "a path as command": lambda part: part | {"command": "../../os"},
    "more options": lambda part: part | {"options": part["options"] | {"model": "evil.py:run"}},
    "fewer options": lambda part: part | {"options": {}},
    "options of other types": lambda part: part | {"options": part["options"] | {"include": 5}},
    "options of a text": lambda part: part | {"options": part["options"] | {"include": "*"}},
    "a huge option": lambda part: part | {"options": part["options"] | {"threshold": 10**400}},
    "an empty problem": lambda part: part | {"problem": ""},
    "a content of text": lambda part: part | {"inputs": [part["inputs"][0] | {"content": "x"}]},
    "a list of options": lambda part: part | {"options": [1]},
    "escapes": lambda part: part | {"command": "\x1b[31m\n::error::"},
    **{
        f"result {number}": lambda part, value=value: part | {"results": [value, *part["results"][1:]]}
        for number, value in enumerate(
            (None, 5, "x", [], {}, True, {"failed": 5}, {"failed": "x" * 99_999}, {"crc": 1, "problem": None})
        )
    },
    **{
        f"{name} {value!r:.20}": lambda part, name=name, value=value: (
            part | {"results": [part["results"][0] | {name: value}, *part["results"][1:]]}
        )
        for name, values in {
            "numel": (-1, 10**30, "9", None, 10**6),
            "finite": (10**9, -1),
            "low": (None, "nan", "inf", 10**30, "0x1p99999", "1" * 99),
            "mean": (5, "0x", None),
            "spread": ("-0x1p1", 5),
            "squares": ("-inf",),
            "zeros": (1.5,),
            "channels": ({"first": 0, "sums": ""}, []),
            "histogram": ({}, [], {"low": "0x0p+0", "high": "0x0p+0", "counts": []}),
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_part_is_one_line(what: str, is_stream: bool, folder: Path) -> None:
    names = cut(folder, "stats", "legacy.pth", of=2)
    for name in names:
        document = json.loads((folder / name).read_bytes())
        (folder / name).write_text(sealed(HOSTILE[what](document)))
    if is_stream:
        lines = [(folder / name).read_bytes() + b"\n" for name in names]
        (folder / "all.ndjson").write_bytes(b"".join(lines))
        names = ["all.ndjson (document 1)", "all.ndjson (document 2)"]
    done = merged(folder, ["all.ndjson"] if is_stream else names)
    assert (done.code, done.out) == (2, b"") and len(done.complaints) >= 1, done
    own = [line for line in done.complaints if not line.startswith("ckpt: part ")]
    assert own and all(
        line.startswith((f"ckpt: {names[0]}: ", f"ckpt: {names[1]}: "))
        and "\x1b" not in line
        and len(line) < 400
        for line in own
    ), done


@pytest.mark.parametrize("what", ["a part behind the last", "a huge count"])
def test_a_number_that_no_part_has(what: str, folder: Path) -> None:
    (name,) = cut(folder, "stats", "legacy.pth", of=1)
    edited(folder, name, **HOSTILE[what](json.loads((folder / name).read_bytes())))
    refused(folder, [name], f"ckpt: {name}: is not a part: its number is not below that of all parts")


def test_deep_and_odd_json(folder: Path) -> None:
    for text in (
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"schema": NaN}',
        '{"a": 1, "a": 2}',
        "\ud800",
        "\0",
        "{}",
        "5",
    ):
        (folder / "odd.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        done = merged(folder, ["odd.json"])
        assert (done.code, done.out, len(done.complaints)) == (2, b"", 1), done
    assert merged(folder, ["dcp"]).code == merged(folder, ["nothing.json"]).code == 2


def test_lists_inside_of_lists_are_one_error(folder: Path) -> None:
    """Also where they are read, and cannot be written again for the digest."""
    (name,) = cut(folder, "sum", "legacy.pth", of=1)
    rest = (folder / name).read_bytes().partition(b'"results": ')[0]
    for depth in range(850, 1000):
        data = rest + b'"results": ' + b"[" * depth + b"]" * depth + b', "digest": "' + b"0" * 64 + b'"}'
        with pytest.raises(CkptError):
            part_of(data, "x", Limits())


def test_memory_grows_with_the_tensors(folder: Path) -> None:
    """A part of many is no attack."""
    (name,) = cut(folder, "stats", "legacy.pth", of=1)
    document = json.loads((folder / name).read_bytes())
    data = sealed(document | {"results": document["results"][:1] * 3000}).encode()
    assert len(part_of(data, "x", Limits(memory=2_000_000)).results) == 3000


def test_channels_that_do_not_fit(folder: Path) -> None:
    names = cut(folder, "stats", "legacy.pth", "--channels", of=1)
    document = json.loads((folder / names[0]).read_bytes())
    at = next(i for i, row in enumerate(document["results"]) if row["channels"])
    for value in (
        None,
        {"first": 0, "sums": "00" * 8 * 9999},
        {"first": 99, "sums": ""},
        {"first": 0, "sums": "0" * 15},
        {"first": 0, "sums": " " * 16},
        {"first": 0, "sums": "zz" * 8},
    ):
        document["results"][at]["channels"] = value
        (folder / "odd.json").write_text(sealed(document))
        done = merged(folder, ["odd.json"])
        assert (done.code, done.out, len(done.complaints)) == (2, b"", 1), (value, done)


@pytest.mark.parametrize(
    "words",
    [
        ("stats", "legacy.pth", "--histogram"),
        ("diff", "ddp_before.pth", "ddp_after.pth", "--histogram"),
    ],
)
def test_histograms_that_do_not_fit(words: tuple[str, ...], folder: Path) -> None:
    names = cut(folder, *words, of=1)
    assert merged(folder, names).code < 2
    document = json.loads((folder / names[0]).read_bytes())
    at = next(
        i for i, row in enumerate(document["results"]) if len((row["histogram"] or {}).get("counts", [])) > 1
    )
    real = document["results"][at]["histogram"]
    counts = real["counts"]
    for value in (
        None,
        {},
        5,
        real | {"counts": [*counts, 0]},
        real | {"counts": counts[1:]},
        *(
            [real | {"counts": []}] if words[0] == "stats" else []
        ),  # how many differences are finite is not known
        real | {"counts": [counts[0] + 10**6, *counts[1:]]},
        real | {"counts": [-1, *counts[1:]]},
        real | {"counts": [True, *counts[1:]]},
        real | {"counts": "1 2"},
        real | {"low": None},
        real | {"low": 3},
        real | {"low": "nan"},
        real | {"low": real["high"], "high": real["low"]},
        real | {"high": "inf"},
    ):
        document["results"][at]["histogram"] = value
        (folder / "odd.json").write_text(sealed(document))
        done = merged(folder, ["odd.json"])
        text = "part 0 of 1 holds a result that is not one of its task"
        assert (done.code, done.out, done.complaints) == (2, b"", [f"ckpt: odd.json: {text}"]), value


@pytest.mark.parametrize(
    ("name", "values"), [("ddp_before.pth", (None, True, -1, 1 << 32, "5")), ("legacy.pth", (0, 5))]
)
def test_checksums_that_do_not_fit(name: str, values: tuple[object, ...], folder: Path) -> None:
    names = cut(folder, "stats", name, of=1)
    document = json.loads((folder / names[0]).read_bytes())
    for value in values:
        document["results"][0]["crc"] = value
        (folder / "odd.json").write_text(sealed(document))
        done = merged(folder, ["odd.json"])
        text = "part 0 of 1 holds a result that is not one of its task"
        assert (done.code, done.out, done.complaints) == (2, b"", [f"ckpt: odd.json: {text}"]), value


def test_a_file_that_changes_while_a_part_is_measured_gives_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results are of bytes that no other part reads."""
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pth")
    assert inside("stats", "a.pth", "--part", "0/1", cwd=tmp_path).code == 0

    def changing() -> Local:
        os.utime(tmp_path / "a.pth", ns=(1, 1))
        return Local()

    monkeypatch.setattr("ckpt.cli.parts.Local", changing)
    done = inside("stats", "a.pth", "--part", "0/1", cwd=tmp_path)
    assert (done.code, done.out) == (2, b"") and "changed while it was read" in done.complaints[0], done


# --- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.fixture
def broken(folder: Path) -> Path:
    """An archive with a deflated record that does not inflate: stats and sum of it cannot be had, the rest can."""
    import zipfile

    torch.save({"good": torch.ones(4), "bad": torch.zeros(64)}, folder / "plain.pth")
    path = folder / "broken.pth"
    with zipfile.ZipFile(folder / "plain.pth") as plain, zipfile.ZipFile(path, "w") as made:
        for info in plain.infolist():
            how = zipfile.ZIP_DEFLATED if info.filename.endswith("data/1") else zipfile.ZIP_STORED
            made.writestr(info.filename, plain.read(info), how)
    with zipfile.ZipFile(path) as found:
        info = next(info for info in found.infolist() if info.filename.endswith("data/1"))
    data = bytearray(path.read_bytes())
    at = info.header_offset + 30 + len(info.filename)
    data[at : at + info.compress_size] = b"\xff" * info.compress_size
    path.write_bytes(data)
    return path


def test_what_cannot_be_read_is_named_and_the_rest_is_told(broken: Path) -> None:
    folder = broken.parent
    stats = inside("stats", "broken.pth", "--json", cwd=folder)
    rows = {row["name"]: row for row in json.loads(stats.out)["tensors"]}
    assert stats.code == 2 and stats.complaints[0].startswith(
        "ckpt: broken.pth: not measured: bad: unreadable:"
    )
    assert rows["good"]["mean"] == 1 and rows["bad"]["why_not"].startswith("unreadable: ")
    assert json.loads(stats.out)["unread"] == ["bad"]
    sums = inside("sum", "broken.pth", cwd=folder)
    assert sums.code == 2 and [line.split()[1] for line in sums.lines] == ["good"]
    assert sums.complaints[0].startswith("ckpt: broken.pth: not read: bad: ")
    diff = inside("diff", "plain.pth", "broken.pth", cwd=folder)
    assert diff.code == 2 and "undecided: 1 tensor could not be read; same: 1 tensor" in diff.out.decode()
    assert diff.complaints[0].startswith("ckpt: plain.pth or broken.pth: not compared: bad: ")
    document = json.loads(inside("diff", "plain.pth", "broken.pth", "--json", cwd=folder).out)
    assert document["same"] is False
    assert [row.get("unread") is None for row in document["tensors"]] == [True, False]
    (folder / "plain.sums").write_bytes(inside("sum", "plain.pth", cwd=folder).out)
    verify = inside("verify", "broken.pth", "--sums", "plain.sums", cwd=folder)
    assert verify.code == 1 and verify.lines[0].startswith(
        "broken.pth: damaged: not all could be read: bad: "
    )


def test_the_same_in_parts(broken: Path) -> None:
    folder = broken.parent
    for words in (("stats", "broken.pth"), ("sum", "broken.pth"), ("diff", "plain.pth", "broken.pth")):
        names = cut(folder, *words, of=2, codes=(0, 2))
        assert merged(folder, names) == inside(*words, cwd=folder)
        codes = [inside(*words, "--part", f"{number}/2", cwd=folder) for number in (0, 1)]
        assert sorted(done.code for done in codes) == [0, 2]
        told = next(done for done in codes if done.code).complaints[0]
        assert " of 2: 1 task could not read: " in told, "the document is there all the same"


# --- in processes of their own ----------------------------------------------------------------------------------------


def test_a_part_that_is_interrupted_prints_nothing(folder: Path) -> None:
    """The document is written once all tasks are done."""
    import signal
    import subprocess
    import sys

    from process import TIMEOUT, environment

    script = (
        "import os, signal, sys\n"
        "from ckpt.elements import measure\n"
        "real, calls = measure.Summary.add, []\n"
        "def add(self, *words):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 5: os.kill(os.getpid(), int(sys.argv.pop()))\n"
        "    return real(self, *words)\n"
        "measure.Summary.add = add\n"
        "number = sys.argv[-1]\n"
        "from ckpt.__main__ import main\n"
        "import ckpt.cli.app as app\n"
        "sys.argv.append(number)\n"
        "words = sys.argv[1:-2]\n"
        "sys.argv[1:] = [*words, number]\n"
        "old = app.main\n"
        "from ckpt.cli.start import run\n"
        "from ckpt.cli.app import program\n"
        "run(lambda: program(['stats'])(words, standalone_mode=False, prog_name='ckpt') or 0)\n"
    )
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)):
        words = ["stats", "train_cuda.pth", "--all", "--part", "0/2", str(int(number))]
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            capture_output=True,
            cwd=folder,
            env=environment(),
            timeout=TIMEOUT,
        )
        assert (done.returncode, done.stdout) == (code, b""), done


def test_the_names_of_parts_may_come_in_any_order(folder: Path, parts: list[str]) -> None:
    assert merged(folder, parts[::-1]) == inside("stats", "legacy.pth", cwd=folder)


def test_parts_in_processes(folder: Path) -> None:
    for number in (0, 1):
        done = ckpt("diff", "ddp_before.pth", "ddp_after.pth", "--part", f"{number}/2", cwd=folder)
        (folder / f"p{number}.json").write_bytes(done.out)
    done = ckpt("merge-parts", "p0.json", "p1.json", cwd=folder)
    assert done == ckpt("diff", "ddp_before.pth", "ddp_after.pth", cwd=folder) and done.code == 1

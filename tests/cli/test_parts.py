"""Parts and their merge: what is merged is byte for byte what the command prints by itself, and nothing else is merged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from inside import inside as inside_here
from paths import many
from process import SAMPLES, Done, ckpt
from strategies import states

from ckpt.cli import output
from ckpt.io.executor import Threads

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
    "sum": ((),),
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
        (0, 4, 0, 20),  # of 40 tensors the figures and the checksum
        (1, 4, 20, 20),
        (2, 4, 40, 20),
        (3, 4, 60, 20),
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
        ("verify", "truncated.pth"),
        ("verify", "nothing.pth"),
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


def edited(folder: Path, name: str, **changes: Any) -> None:
    document = json.loads((folder / name).read_bytes())
    (folder / name).write_text(json.dumps(document | changes))


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
    refused(folder, parts, "ckpt: legacy.pth: not the files that the parts were made of, or changed since")


def test_changed_sums_are_refused(folder: Path) -> None:
    names = cut(folder, "verify", "legacy.pth", "--sums", "model.sums", of=2)
    (folder / "model.sums").write_bytes((folder / "other.sums").read_bytes())
    refused(folder, names, "ckpt: model.sums: not the files that the parts were made of, or changed since")


def test_another_version_is_refused(folder: Path, parts: list[str]) -> None:
    for name in parts:
        edited(folder, name, ckpt="9.9")
    done = merged(folder, parts)
    assert done.code == 2 and done.complaints[0].startswith(
        f"ckpt: {parts[0]}: part 0 of 4 is of ckpt 9.9, this is"
    )


def test_the_checkpoint_may_have_moved(folder: Path, parts: list[str]) -> None:
    whole = inside("stats", "legacy.pth", cwd=folder)
    (folder / "there").mkdir()
    (folder / "legacy.pth").rename(folder / "there" / "legacy.pth")
    hint = "(--at PATH says where the checkpoint is now)"
    refused(folder, parts, f"ckpt: legacy.pth: no such file {hint}")
    done = merged(folder, parts, "--at", "there/legacy.pth")
    assert done == whole._replace(out=whole.out.replace(b"legacy.pth", b"there/legacy.pth"))
    assert merged(folder, parts, "--at", "there/legacy.pth", "--at", "x").code == 2


def test_no_server_is_asked_because_a_part_says_so(folder: Path, parts: list[str]) -> None:
    for name in parts:
        document = json.loads((folder / name).read_bytes())
        document["inputs"][0]["path"] = "https://127.0.0.1:9/a.pth"
        edited(folder, name, **document)
    line = "https://127.0.0.1:9/a.pth: the parts name a URL, which is not opened for a file (--at URL)"
    refused(folder, parts, f"ckpt: {line}")


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
    done = merged(folder, cut(folder, *words, of=2), *option)
    assert (done.code, done.out) == (2, b"")
    assert done.complaints == [f"ckpt: {option[0]} does not go with the parts of ckpt {words[0]}"]


@pytest.mark.parametrize("option", ["--fail-on", "--select"])
def test_dead_channels_are_not_denied_where_none_were_looked_at(
    option: str, folder: Path, parts: list[str]
) -> None:
    done = merged(folder, parts, option, "nan,dead-channels")
    assert (done.code, done.out) == (2, b"")
    assert done.complaints == ["ckpt: the parts hold no channels (ckpt stats --channels --part I/N)"]


def test_nothing_to_merge(folder: Path) -> None:
    assert merged(folder, []).complaints == ["ckpt: nothing to merge (PART..., what --part I/N printed)"]


# --- documents that nobody should trust -------------------------------------------------------------------------------


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
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_part_is_one_line(what: str, folder: Path) -> None:
    names = cut(folder, "stats", "legacy.pth", of=2)
    for name in names:
        document = json.loads((folder / name).read_bytes())
        (folder / name).write_text(json.dumps(HOSTILE[what](document)))
    done = merged(folder, names)
    assert (done.code, done.out) == (2, b"") and len(done.complaints) >= 1, done
    assert all(
        line.startswith("ckpt: ") and "\x1b" not in line and len(line) < 400 for line in done.complaints
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
        (folder / "odd.json").write_text(json.dumps(document))
        done = merged(folder, ["odd.json"])
        assert (done.code, done.out, len(done.complaints)) == (2, b"", 1), (value, done)


def test_a_file_that_changes_while_a_part_is_measured_gives_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results are of bytes that no other part reads."""
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pth")
    assert inside("stats", "a.pth", "--part", "0/1", cwd=tmp_path).code == 0

    def changing() -> Threads:
        os.utime(tmp_path / "a.pth", ns=(1, 1))
        return Threads()

    monkeypatch.setattr("ckpt.cli.parts.Threads", changing)
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
    assert verify.code == 2 and verify.lines[0].startswith(
        "broken.pth: unreadable: not all could be read: bad: "
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

"""`ckpt report` and `diff --html`: which documents stand in the page, where it is
written, and what is refused.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from process import SAMPLES, check_error, ckpt
from reports import payload_of

from ckpt.model.text import size_text

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "train_cuda.pth",
        "ddp_before.pth",
        "ddp_after.pth",
        "legacy.pth",
        "truncated.pth",
    ):
        shutil.copy(SAMPLES / name, tmp_path / name)
    return tmp_path


def drawn(path: Path) -> dict[str, Any]:
    return payload_of(path.read_bytes())


def weight(path: Path) -> str:
    """The size of a page as its line says it."""
    return size_text(path.stat().st_size)


def kinds(path: Path) -> list[str]:
    return [view["kind"] for view in drawn(path)["views"]]


def test_one_file_is_a_checkpoint(folder: Path) -> None:
    done = ckpt("report", "train_cuda.pth", "-o", "out.html", cwd=folder)

    assert (done.code, done.out) == (0, b"")
    assert done.complaints == [
        f"wrote out.html, 1 checkpoint, {weight(folder / 'out.html')}"
    ]
    page = drawn(folder / "out.html")
    assert [view["kind"] for view in page["views"]] == ["checkpoint"] and page[
        "unreadable"
    ] == []
    inspected = json.loads(ckpt("inspect", "--json", "train_cuda.pth", cwd=folder).out)
    (view,) = page["views"]
    for name in ("file", "totals", "weights_only", "load", "load_note", "findings"):
        assert view[name] == inspected[name], name
    assert view["tensors"]["count"] == 115 and "stats" not in view


def test_stats_are_measured_when_asked_for(folder: Path) -> None:
    assert (
        ckpt("report", "train_cuda.pth", "--stats", "-o", "out.html", cwd=folder).code
        == 0
    )
    (view,) = drawn(folder / "out.html")["views"]
    assert view["kind"] == "checkpoint" and view["stats"]["section"] == "model"
    assert (
        view["stats"]["tensors"]["count"] == 46 and view["stats"]["threshold"] == 1e-3
    )
    done = ckpt(
        "report",
        "train_cuda.pth",
        "--stats",
        "--section",
        "optimizer",
        "-o",
        "2.html",
        cwd=folder,
    )
    assert done.code == 0
    (view,) = drawn(folder / "2.html")["views"]
    assert view["stats"]["section"] == "optimizer" and view["tensors"]["count"] == 69


def test_several_models_are_measured_together(folder: Path) -> None:
    torch.save(
        {
            "a": {"fc.weight": torch.ones(3, 3), "fc.bias": torch.ones(3)},
            "b": {"fc.weight": torch.ones(4, 3), "fc.bias": torch.ones(4)},
        },
        folder / "gan.pth",
    )
    check_error(ckpt("stats", "gan.pth", cwd=folder), "holds 2 models")
    assert ckpt("report", "gan.pth", "--stats", "-o", "out.html", cwd=folder).code == 0
    assert drawn(folder / "out.html")["views"][0]["stats"]["tensors"]["count"] == 4


def test_several_files_are_a_series_in_natural_order(folder: Path) -> None:
    for number in (1, 2, 10):
        torch.save(
            {"fc.weight": torch.ones(3, 3) * number, "fc.bias": torch.ones(3)},
            folder / f"e_{number}.pth",
        )

    for names, order in (
        (
            ["e_1.pth", "e_10.pth", "e_2.pth"],
            ["e_1.pth", "e_2.pth", "e_10.pth"],
        ),  # as the shell sorts them
        (["e_2.pth", "e_10.pth", "e_1.pth"], ["e_2.pth", "e_10.pth", "e_1.pth"]),
    ):
        done = ckpt("report", *names, "-o", "out.html", "--force", cwd=folder)
        wrote = f"wrote out.html, 3 checkpoints, {weight(folder / 'out.html')}"
        assert (done.code, done.complaints) == (0, [wrote])
        (view,) = drawn(folder / "out.html")["views"]
        assert view["kind"] == "series"
        assert [each["file"]["path"] for each in view["stats"]] == order
        assert [each["path"] for each in view["files"]] == order
        assert view["labels"] == [[name, name.removesuffix(".pth")] for name in order]
        pairs = [
            (each["before"]["path"], each["after"]["path"]) for each in view["diffs"]
        ]
        assert pairs == list(itertools.pairwise(order))
        causes = view["diffs"][0]["tensors"]["columns"]
        assert causes["status"]["is"] == ["changed", "same"] and causes["rel_l2"]["is"][
            1
        ] in (0, 0.0, None)


def test_files_that_the_shell_sorts_come_in_the_order_of_what_they_record(
    folder: Path,
) -> None:
    for name, epoch in (("best", 7), ("last", 12), ("a_9", 9)):
        torch.save(
            {"fc.weight": torch.ones(3, 3) * epoch, "epoch": epoch},
            folder / f"{name}.pth",
        )

    def order(*names: str) -> list[str]:
        done = ckpt("report", *names, "-o", "out.html", "--force", cwd=folder)
        assert done.code == 0, done
        return [
            each["path"] for each in drawn(folder / "out.html")["views"][0]["files"]
        ]

    assert order("a_9.pth", "best.pth", "last.pth") == [
        "best.pth",
        "a_9.pth",
        "last.pth",
    ]
    assert order("best.pth", "a_9.pth", "last.pth") == [
        "best.pth",
        "a_9.pth",
        "last.pth",
    ]
    assert order("last.pth", "best.pth", "a_9.pth") == [
        "last.pth",
        "best.pth",
        "a_9.pth",
    ]
    torch.save({"fc.weight": torch.zeros(3, 3)}, folder / "a_9.pth")
    assert order("a_9.pth", "best.pth", "last.pth") == [
        "a_9.pth",
        "best.pth",
        "last.pth",
    ]


def test_two_files_are_compared_whole(folder: Path) -> None:
    done = ckpt(
        "report", "ddp_after.pth", "ddp_before.pth", "-o", "out.html", cwd=folder
    )
    assert done.complaints == [
        f"wrote out.html, 2 checkpoints, {weight(folder / 'out.html')}"
    ]
    (view,) = drawn(folder / "out.html")["views"]
    assert view["kind"] == "diff" and view["tensors"]["count"] == 48
    sides = [view[side]["path"] for side in ("before", "after")]
    assert (
        sides
        == ["ddp_before.pth", "ddp_after.pth"]
        == [each["path"] for each in view["files"]]
    )
    ckpt(
        "diff",
        "ddp_before.pth",
        "ddp_after.pth",
        "-q",
        "--html",
        "diff.html",
        cwd=folder,
    )
    (other,) = drawn(folder / "diff.html")["views"]
    assert {name: view[name] for name in other} == other and "files" not in other


def test_two_files_that_are_measured_are_a_series_of_their_models(folder: Path) -> None:
    done = ckpt(
        "report",
        "ddp_before.pth",
        "ddp_after.pth",
        "--stats",
        "-o",
        "out.html",
        cwd=folder,
    )
    assert done.code == 0
    (view,) = drawn(folder / "out.html")["views"]
    roles = view["diffs"][0]["tensors"]["columns"]["role"]
    assert view["kind"] == "series" and len(view["stats"]) == 2
    assert (
        set(roles["of"]) == {"parameter", "buffer"}
        and view["diffs"][0]["tensors"]["count"] == 18
    )


def test_files_of_different_models_are_a_list_that_says_so(folder: Path) -> None:
    torch.save(
        {"encoder.wte": torch.ones(5, 7), "encoder.wpe": torch.ones(9, 7)},
        folder / "other.pth",
    )
    done = ckpt("report", "other.pth", "ddp_after.pth", "-o", "out.html", cwd=folder)
    assert done.code == 0
    (view,) = drawn(folder / "out.html")["views"]
    assert (view["kind"], view["note"]) == (
        "folder",
        "These files have no tensor in common.",
    )
    assert [each["path"] for each in view["files"]] == ["other.pth", "ddp_after.pth"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("bad.pth", "--stats"), "not measured"),
        (("bad.pth", "llama_bf16.pth"), "damaged: the bytes do not match"),
        (("bad.pth", "llama_bf16.pth", "--stats"), "not measured"),
    ],
)
def test_a_damaged_tensor_is_no_success(
    words: tuple[str, ...], says: str, folder: Path
) -> None:
    """As in stats and diff; the page is drawn all the same."""
    data = bytearray((SAMPLES / "llama_bf16.pth").read_bytes())
    data[data.index(b"/data/0FB") + 200] ^= 1
    (folder / "bad.pth").write_bytes(data)
    shutil.copy(SAMPLES / "llama_bf16.pth", folder)
    done = ckpt("report", *words, "-o", "out.html", cwd=folder)

    assert done.code == 2
    assert done.complaints[0].startswith(f"ckpt: bad.pth: {says}")
    assert "embed_tokens.weight" in done.complaints[0]
    assert done.complaints[1].startswith("wrote out.html, ")


def test_a_series_goes_on_after_a_file_that_cannot_be_read(folder: Path) -> None:
    (folder / "page.pth").write_text("<!doctype html>")
    names = ["ddp_before.pth", "truncated.pth", "page.pth", "ddp_after.pth"]
    done = ckpt("report", *names, "-o", "out.html", cwd=folder)

    assert done.code == 2 and done.out == b""
    assert done.complaints[0].startswith("ckpt: truncated.pth: cut off")
    assert done.complaints[1].startswith("ckpt: page.pth: not a checkpoint")
    size = weight(folder / "out.html")
    assert done.complaints[2] == f"wrote out.html, 2 checkpoints, 2 unreadable, {size}"
    page = drawn(folder / "out.html")
    assert [row["path"] for row in page["unreadable"]] == ["truncated.pth", "page.pth"]
    assert [row["code"] for row in page["unreadable"]] == ["cut-off", "stand-in"]
    assert page["views"][0]["kind"] == "series" and len(page["views"][0]["diffs"]) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("report", "nothing.pth", "-o", "out.html"),
        ("report", "ddp_before.pth", "nothing.pth", "-o", "out.html"),
        ("report", "ddp_before.pth", "nothing.pth", "-o", "-"),
        ("diff", "ddp_before.pth", "nothing.pth", "--html", "out.html"),
        ("diff", "nothing.pth", "ddp_after.pth", "--html", "-"),
    ],
)
def test_a_missing_input_writes_no_page(command: tuple[str, ...], folder: Path) -> None:
    """Else the command, once it is corrected, would find its page in the way."""
    done = ckpt(*command, cwd=folder)

    assert done.code == 2 and done.out == b"" and not (folder / "out.html").exists()
    assert done.complaints[0].startswith("ckpt: nothing.pth: no such file")
    assert done.complaints[1:] == (
        ["nothing was written"] if command[0] == "report" else []
    )


def test_a_page_has_the_day_on_which_it_is_drawn(folder: Path) -> None:
    for seconds, day in (("0", "1970-01-01"), ("1700000000", "2023-11-14")):
        done = ckpt(
            "report",
            "legacy.pth",
            "-o",
            "out.html",
            "--force",
            cwd=folder,
            SOURCE_DATE_EPOCH=seconds,
        )
        assert done.code == 0 and drawn(folder / "out.html")["date"] == day
    today = time.time()
    for seconds in ("", "x", "-5", "9" * 40):
        ckpt(
            "report",
            "legacy.pth",
            "-o",
            "out.html",
            "--force",
            cwd=folder,
            SOURCE_DATE_EPOCH=seconds,
        )
        days = {
            time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (today, today + 3600)
        }
        assert drawn(folder / "out.html")["date"] in days


def test_quick_and_folders_are_lists(folder: Path) -> None:
    done = ckpt(
        "report", "ddp_before.pth", "legacy.pth", "--quick", "-o", "a.html", cwd=folder
    )
    assert done.code == 0 and kinds(folder / "a.html") == ["folder"]
    done = ckpt("report", ".", "-o", "b.html", cwd=folder)
    assert done.code == 2 and kinds(folder / "b.html") == ["folder"]
    (view,) = drawn(folder / "b.html")["views"]
    listed = [json.loads(line) for line in ckpt("ls", ".", "--json", cwd=folder).lines]
    assert [each["path"] for each in view["files"]] == [
        row["path"] for row in listed if row["error"] is None
    ]
    assert view["files"][0]["findings"] == listed[0]["findings"]
    done = ckpt("report", ".", "--stats", "-o", "c.html", cwd=folder)
    assert done.code == 2 and kinds(folder / "c.html") == ["series"]
    (folder / "empty").mkdir()
    done = ckpt("report", "empty", "-o", "d.html", cwd=folder)
    assert done.code == 2 and [
        row["path"] for row in drawn(folder / "d.html")["unreadable"]
    ] == ["empty"]


def test_what_a_page_leaves_out_is_said(folder: Path) -> None:
    (folder / "runs").mkdir()
    shutil.copy(folder / "legacy.pth", folder / "runs")
    (folder / "runs" / "again").symlink_to(folder)
    (folder / "runs" / "README.md").write_text("words")
    (folder / "runs" / "words.bin").write_text("words")
    for where in ("page.html", "-"):
        done = ckpt("report", "runs", "-o", where, cwd=folder)
        lines = done.err.decode().splitlines()
        assert lines[:2] == [
            "ckpt: runs/again: skipped: a link to a folder",
            "ckpt: runs/words.bin: skipped: not a checkpoint: a text file",
        ]
        assert lines[2].endswith("1 file not looked at: 1 *.md")


@pytest.mark.slow
def test_stored_documents_are_drawn(folder: Path) -> None:
    (folder / "i.json").write_bytes(
        ckpt("inspect", "--json", "train_cuda.pth", "legacy.pth", cwd=folder).out
    )
    (folder / "d.json").write_bytes(
        ckpt("diff", "--json", "ddp_before.pth", "ddp_after.pth", cwd=folder).out
    )
    (folder / "s.json").write_bytes(
        ckpt("stats", "--json", "train_cuda.pth", cwd=folder).out
    )
    (folder / "l.json").write_bytes(ckpt("ls", "--json", ".", cwd=folder).out)
    indented = json.dumps(json.loads((folder / "d.json").read_text()), indent=2)
    (folder / "indented.json").write_text(indented)

    def views(*names: str) -> list[str]:
        done = ckpt("report", *names, "-o", "out.html", "--force", cwd=folder)
        assert done.code == 0, done
        return kinds(folder / "out.html")

    assert views("i.json") == ["checkpoint", "checkpoint"]
    assert views("d.json") == views("indented.json") == ["diff"]
    assert views("s.json") == ["stats"]
    assert views("i.json", "s.json") == ["checkpoint", "checkpoint"]
    assert "stats" in drawn(folder / "out.html")["views"][0]
    assert (
        views("l.json") == ["folder"]
        and len(drawn(folder / "out.html")["unreadable"]) == 1
    )
    assert views("d.json", "legacy.pth") == ["diff", "checkpoint"]
    direct = ckpt(
        "report", "train_cuda.pth", "-o", "-", cwd=folder, SOURCE_DATE_EPOCH="0"
    ).out
    (folder / "one.json").write_bytes(
        ckpt("inspect", "--json", "train_cuda.pth", cwd=folder).out
    )
    assert (
        ckpt("report", "one.json", "-o", "-", cwd=folder, SOURCE_DATE_EPOCH="0").out
        == direct
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tensors": [{"name": 5}]}, "tensors[].name is not as"),
        ({"tensors": 5}, "tensors is not as"),
        ({"file": {"path": 5}}, "file has no path"),
        ({"file": None}, "file is not as"),
        (
            {
                "storages": [
                    {
                        "id": "0",
                        "device": None,
                        "bytes": True,
                        "used_bytes": 1,
                        "kind": "own",
                        "tensors": [],
                    }
                ]
            },
            "storages[].bytes is not as",
        ),
        (
            {"schema": {"name": "ckpt.inspect", "version": 9}},
            "unknown version of ckpt.inspect: 9",
        ),
        (
            {"schema": {"name": "ckpt.sum", "version": 1}},
            "not a document that a page draws",
        ),
        ({"schema": "ckpt.inspect"}, "not a document that a page draws"),
    ],
)
def test_a_document_of_another_form_is_named(
    folder: Path, change: dict[str, Any], says: str
) -> None:
    document = {
        **json.loads(ckpt("inspect", "--json", "legacy.pth", cwd=folder).out),
        **change,
    }
    (folder / "x.json").write_text(json.dumps(document))
    done = ckpt("report", "x.json", "train_cuda.pth", "-o", "out.html", cwd=folder)

    assert (
        done.code == 2
        and says in done.complaints[0]
        and done.complaints[0].startswith("ckpt: x.json: ")
    )
    page = drawn(folder / "out.html")
    assert says in page["unreadable"][0]["message"] and len(page["views"]) == 1


def test_a_number_that_is_infinite_as_a_float_is_named(folder: Path) -> None:
    """Python reads `1e400` as infinity, and a page has no word for that."""
    stored = ckpt("stats", "--json", "legacy.pth", cwd=folder).out.decode()
    document = json.loads(stored)
    document["tensors"][0]["rms"] = "LARGE"
    (folder / "x.json").write_text(json.dumps(document).replace('"LARGE"', "1e400"))
    done = ckpt("report", "x.json", "-o", "out.html", cwd=folder)
    assert done.code == 2 and b"a number is too large" in done.err, done


def test_a_name_of_a_schema_that_is_no_text_is_named(folder: Path) -> None:
    listed = ckpt("ls", "--json", "legacy.pth", "train_cuda.pth", cwd=folder)
    stored = listed.out.decode()
    for name in ('{"a": 1}', "[]"):
        text = stored.replace('"name": "ckpt.ls"', f'"name": {name}', 1)
        assert text != stored
        (folder / "x.json").write_text(text)
        done = ckpt("report", "x.json", "-o", "out.html", "--force", cwd=folder)
        assert done.code == 2 and b"bug in ckpt" not in done.err, done


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": {"name": "ckpt.ls"',
        "[1]\n",
        "5",
        '{"a": NaN}',
        '{"a": 1, "a": 2}',
    ],
)
def test_a_document_that_is_no_json_is_named(folder: Path, text: str) -> None:
    first = ckpt("ls", "--json", "legacy.pth", cwd=folder).out.decode()
    (folder / "x.json").write_text(first + text)
    done = ckpt("report", "x.json", "-o", "out.html", cwd=folder)
    assert (
        done.code == 2
        and done.complaints[0].startswith("ckpt: x.json: ")
        and len(done.complaints) == 2
    )
    assert drawn(folder / "out.html")["views"] == []


def test_the_page_is_refused_where_it_would_replace_something(folder: Path) -> None:
    (folder / "out.html").write_text("mine")
    check_error(
        ckpt("report", "legacy.pth", "-o", "out.html", cwd=folder),
        "already exists (--force to replace)",
    )
    assert (folder / "out.html").read_text() == "mine"
    assert (
        ckpt("report", "legacy.pth", "-o", "out.html", "--force", cwd=folder).code == 0
    )
    check_error(
        ckpt("report", "legacy.pth", cwd=folder), "where to write? (-o report.html)"
    )
    check_error(ckpt("report", "legacy.pth", "-o", ".", cwd=folder), "a directory")
    check_error(ckpt("report", "legacy.pth", "-o", "no/out.html", cwd=folder))
    check_error(ckpt("report", "-o", "x.html", cwd=folder), "nothing to look at")
    check_error(
        ckpt("report", "legacy.pth", "--stats", "--quick", "-o", "x.html", cwd=folder),
        "exclude each other",
    )
    check_error(
        ckpt("report", "legacy.pth", "--section", "no", "-o", "x.html", cwd=folder),
        "no section",
    )
    assert not (folder / "x.html").exists() and not list(folder.glob(".*"))


@pytest.mark.parametrize("name", ["legacy.pth", "d.json"])
def test_a_source_is_never_replaced(folder: Path, name: str) -> None:
    (folder / "d.json").write_bytes(
        ckpt("inspect", "--json", "legacy.pth", cwd=folder).out
    )
    before = (folder / name).read_bytes()
    os.link(folder / name, folder / "link")

    for out in (name, "link"):
        done = ckpt("report", "ddp_after.pth", name, "-o", out, "--force", cwd=folder)
        check_error(done, "out is a source of the page, which --force does not replace")
    assert (folder / name).read_bytes() == before


def test_a_page_on_stdout_is_the_same_page(folder: Path) -> None:
    assert (
        ckpt(
            "report", "legacy.pth", "-o", "out.html", cwd=folder, SOURCE_DATE_EPOCH="0"
        ).code
        == 0
    )
    done = ckpt("report", "legacy.pth", "-o", "-", cwd=folder, SOURCE_DATE_EPOCH="0")
    assert (done.code, done.err, done.out) == (
        0,
        b"",
        (folder / "out.html").read_bytes(),
    )


def test_a_page_has_the_mode_of_any_new_file(folder: Path) -> None:
    os.chmod(folder / "legacy.pth", 0o600)
    (folder / "d.json").write_bytes(
        ckpt("inspect", "--json", "legacy.pth", cwd=folder).out
    )
    os.chmod(folder / "d.json", 0o600)
    plain = folder / "plain"
    plain.write_text("")
    for name, out in (("legacy.pth", "a.html"), ("d.json", "b.html")):
        assert (
            ckpt("report", "ddp_after.pth", name, "--quick", "-o", out, cwd=folder).code
            == 0
        )
        assert (folder / out).stat().st_mode == plain.stat().st_mode
    os.chmod(folder / "a.html", 0o640)
    assert (
        ckpt("report", "ddp_after.pth", "-o", "a.html", "--force", cwd=folder).code == 0
    )
    assert stat.S_IMODE((folder / "a.html").stat().st_mode) == 0o640


# --- diff --html ----------------------------------------------------------------------


def test_a_comparison_is_drawn_beside_its_text(folder: Path) -> None:
    plain = ckpt("diff", "ddp_before.pth", "ddp_after.pth", cwd=folder)
    done = ckpt(
        "diff", "ddp_before.pth", "ddp_after.pth", "--html", "out.html", cwd=folder
    )

    assert (done.code, done.out) == (1, plain.out)
    assert done.complaints == [
        f"wrote out.html, 2 checkpoints, {weight(folder / 'out.html')}"
    ]
    (view,) = drawn(folder / "out.html")["views"]
    assert view["kind"] == "diff" and view["tensors"]["count"] == 48
    stored = json.loads(
        ckpt("diff", "ddp_before.pth", "ddp_after.pth", "--json", cwd=folder).out
    )
    assert (view["totals"], view["findings"]) == (stored["totals"], stored["findings"])
    quiet = ckpt(
        "diff",
        "ddp_before.pth",
        "ddp_before.pth",
        "-q",
        "--html",
        "same.html",
        cwd=folder,
    )
    assert (quiet.code, quiet.out, quiet.err) == (0, b"", b"") and drawn(
        folder / "same.html"
    )["views"][0]["same"]


def test_html_to_stdout_is_the_page_alone(folder: Path) -> None:
    done = ckpt("diff", "ddp_before.pth", "ddp_after.pth", "--html", "-", cwd=folder)
    assert done.code == 1 and done.err == b""
    assert [view["kind"] for view in payload_of(done.out)["views"]] == ["diff"]
    assert done.out.startswith(b"<!DOCTYPE html>") and done.out.endswith(b"</html>\n")
    for option in ("--json", "--tsv", "--name-only"):
        done = ckpt(
            "diff", "ddp_before.pth", "ddp_after.pth", "--html", "-", option, cwd=folder
        )
        check_error(done, "writes to stdout")
    done = ckpt(
        "diff",
        "ddp_before.pth",
        "ddp_after.pth",
        "--html",
        "x.html",
        "--json",
        cwd=folder,
    )
    assert done.code == 1 and json.loads(done.out)["schema"]["name"] == "ckpt.diff"


def test_a_comparison_that_cannot_be_made_stands_in_its_page(folder: Path) -> None:
    done = ckpt(
        "diff", "ddp_before.pth", "truncated.pth", "--html", "out.html", cwd=folder
    )
    check_error(done, "cut off")
    page = drawn(folder / "out.html")
    assert page["views"] == [] and [row["path"] for row in page["unreadable"]] == [
        "truncated.pth"
    ]


def test_html_refuses_what_report_refuses(folder: Path) -> None:
    (folder / "out.html").write_text("mine")
    before = (folder / "ddp_after.pth").read_bytes()
    check_error(
        ckpt(
            "diff", "ddp_before.pth", "ddp_after.pth", "--html", "out.html", cwd=folder
        ),
        "already exists",
    )
    done = ckpt(
        "diff",
        "ddp_before.pth",
        "ddp_after.pth",
        "--html",
        "ddp_after.pth",
        "--force",
        cwd=folder,
    )
    check_error(done, "out is a source")
    check_error(
        ckpt("diff", "ddp_before.pth", "ddp_after.pth", "--force", cwd=folder),
        "--force goes with --html",
    )
    assert (folder / "out.html").read_text() == "mine" and (
        folder / "ddp_after.pth"
    ).read_bytes() == before
    done = ckpt(
        "diff",
        "ddp_before.pth",
        "ddp_after.pth",
        "--html",
        "out.html",
        "--force",
        cwd=folder,
    )
    assert done.code == 1 and kinds(folder / "out.html") == ["diff"]


def saves(folder: Path, count: int = 3) -> Path:
    """The saves of one run."""
    folder.mkdir(exist_ok=True)
    for epoch in range(1, count + 1):
        model = {"fc.weight": torch.ones(4, 4) * epoch, "stem.weight": torch.ones(2, 2)}
        optimizer = {
            "state": {},
            "param_groups": [{"lr": 0.1**epoch, "params": [0, 1]}],
        }
        run = {
            "model": model,
            "optimizer": optimizer,
            "epoch": epoch,
            "loss": 1 / epoch,
            "best": 0.5,
        }
        torch.save(
            run | {"val_loss": torch.tensor(2.0 / epoch), "rng": {"pos": epoch}},
            folder / f"epoch_{epoch}.pth",
        )
    return folder


def test_a_folder_that_is_a_series_is_drawn_as_one(folder: Path) -> None:
    saves(folder / "runs", 11)
    done = ckpt("report", "runs", "-o", "a.html", cwd=folder)
    assert done.code == 0 and kinds(folder / "a.html") == ["series"]
    (view,) = drawn(folder / "a.html")["views"]
    names = [f"runs/epoch_{epoch}.pth" for epoch in range(1, 12)]
    assert [each["file"]["path"] for each in view["stats"]] == names
    done = ckpt("report", *names, "-o", "b.html", cwd=folder)
    assert drawn(folder / "b.html") == drawn(folder / "a.html")
    done = ckpt("report", "runs", "--quick", "-o", "c.html", cwd=folder)
    assert done.code == 0 and kinds(folder / "c.html") == ["folder"]
    shutil.copy(folder / "legacy.pth", folder / "runs")
    done = ckpt("report", "runs", "-o", "d.html", cwd=folder)
    assert done.code == 0 and kinds(folder / "d.html") == ["folder"], "another model"


def test_two_saves_of_a_folder_are_compared(folder: Path) -> None:
    saves(folder / "runs", 2)
    assert ckpt("report", "runs", "-o", "a.html", cwd=folder).code == 0
    assert kinds(folder / "a.html") == ["diff"]


def test_what_all_files_record_is_drawn(folder: Path) -> None:
    saves(folder / "runs", 3)
    ckpt("report", "runs", "-o", "a.html", cwd=folder)
    (view,) = drawn(folder / "a.html")["views"]

    curves = {tuple(curve["names"]): curve["values"] for curve in view["curves"]}
    assert list(curves)[:3] == [
        ("loss",),
        ("val_loss",),
        ("optimizer.param_groups.0.lr",),
    ]
    assert curves[("epoch",)] == [1, 2, 3] and curves[("loss",)] == [1, 0.5, 1 / 3]
    assert (
        curves[("val_loss",)] == [2, 1, pytest.approx(2 / 3)]
        and curves[("best",)] == [0.5] * 3
    )
    assert not any("rng" in name for names in curves for name in names)

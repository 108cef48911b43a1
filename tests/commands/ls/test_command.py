"""`ckpt ls`: rows on a screen and in a pipe, folders, exit codes, interrupts."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from process import TIMEOUT, Run, environment, terminal
from safetensors.torch import save_file

from ckpt.model.errors import UsageError
from ckpt.surface.api.walk import FEW, found
from ckpt.surface.cli.inputs import named_paths


@pytest.fixture
def runs(samples: Path, tmp_path: Path) -> Path:
    """A folder with what folders of runs hold."""
    for name, target in (
        ("ddp_after.pth", "epoch_10.pth"),
        ("ddp_before.pth", "epoch_9.pth"),
        ("weights.safetensors", "export/model.safetensors"),
        ("train_cuda.pth", "old/best.pth.tar"),
        ("hostile.pth", "stranger.pt"),
    ):
        (tmp_path / target).parent.mkdir(exist_ok=True)
        shutil.copy(samples / name, tmp_path / target)
    (tmp_path / "notes.txt").write_text("no checkpoint")
    (tmp_path / "tokens.bin").write_bytes(b"\x07\x99" * 500)
    (tmp_path / "data.pkl").write_bytes(b"no pickle")
    (tmp_path / "again").symlink_to(tmp_path / "export")
    return tmp_path


def test_a_folder(ckpt: Run, runs: Path) -> None:
    done = ckpt("ls", str(runs))

    assert (done.returncode, done.stderr) == (
        0,
        f"ckpt: {runs}/again: skipped: a link to a folder\n"
        "5 checkpoints, 215 KiB · 1 runs code · 3 with unused parameters: DDP stops "
        f"unless they are frozen · 3 not looked at (--others) (code: ckpt lint {runs} "
        "--level error)\n",
    )
    assert done.stdout == (
        f"{runs}/   float32\n"
        "NAME                      EPOCH  FORMAT           SIZE  PARAMS  DEVICE  LOADS "
        "              FINDINGS\n"
        "epoch_9.pth                   0  torch-zip    60.2 KiB  4.16 K  cpu     "
        "weights_only        prefix unused\n"
        "epoch_10.pth                  1  torch-zip    60.1 KiB  4.16 K  cpu     "
        "weights_only        prefix unused\n"
        "export/model.safetensors         safetensors  12.9 KiB  3.13 K          "
        "safetensors\n"
        "old/best.pth.tar             12  torch-zip    80.3 KiB  3.96 K  cuda:0  "
        "weights_only=False  prefix unused cuda\n"
        "stranger.pt                      torch-zip    1.67 KiB          cpu     RUNS "
        "CODE           called-on-load\n"
    )


SERIES = [
    f"RFB-Epoch-{epoch}-Loss-{2.9 - epoch / 1000 + 0.000068074816749:.15f}.pth"
    for epoch in range(100, 230, 5)
]


@pytest.fixture
def series(samples: Path, tmp_path: Path) -> Path:
    """A folder with the saves of one training, whose names are long."""
    (tmp_path / "run").mkdir()
    for name in SERIES:
        shutil.copy(samples / "legacy.pth", tmp_path / "run" / name)
    return tmp_path


@pytest.mark.parametrize("columns", [30, 40, 44, 80, 200])
def test_names_of_a_series_keep_what_tells_them_apart(
    columns: int, series: Path
) -> None:
    seen = terminal("ls", "run", columns=columns, cwd=series, NO_COLOR="1", TERM="dumb")

    lines = [line.rstrip() for line in seen.splitlines()]
    is_whole = columns >= len(SERIES[0])
    expected = (
        SERIES if is_whole else [f"Epoch-{epoch}" for epoch in range(100, 230, 5)]
    )
    assert lines[lines.index("NAME") + 1 :][:26] == expected
    assert " ".join(lines[: lines.index("NAME")]).replace("·", " ").split() == [
        "run/RFB-Epoch-*-Loss-*.pth",
        "torch-legacy",
        "13.8",
        "KiB",
        "each",
        "3.13",
        "K",
        "parameters",
        "float32",
        "cuda:0",
        "weights_only",
        "each",
        "with",
        "cuda",
    ]


def test_a_pipe_has_the_whole_names_of_a_series(ckpt: Run, series: Path) -> None:
    done = ckpt("ls", str(series / "run"))

    assert done.stdout.splitlines() == [
        f"{series}/run/RFB-Epoch-*-Loss-*.pth   torch-legacy · 13.8 KiB each · 3.13 K "
        "parameters · float32 · cuda:0 · weights_only · each with cuda",
        "NAME",
        *SERIES,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, 60, 200])
@pytest.mark.parametrize("count", [3, 30, 300])
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_names_of_any_length_stay_apart_on_any_screen(
    size: int, count: int, columns: int, samples: Path, tmp_path: Path
) -> None:
    names = [
        f"{'a_long_word_' * 20}"[: size - 8] + f"-{number:03d}.pt"
        for number in range(count)
    ]
    for name in names:
        os.symlink(
            samples / ("legacy.pth" if name.endswith("1.pt") else "ddp_after.pth"),
            tmp_path / name,
        )
    seen = terminal("ls", ".", columns=columns, cwd=tmp_path, NO_COLOR="1", TERM="dumb")

    lines = seen.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("NAME"))
    assert max(map(len, lines[first:-1])) <= columns
    shown = [line.split()[0] for line in lines[first + 1 : first + 1 + count]]
    assert len(set(shown)) == count
    assert all(f"{number:03d}" in text for number, text in enumerate(shown))
    assert not any("…" in text for text in shown)


def test_best_and_last_stand_where_their_values_put_them(
    ckpt: Run, tmp_path: Path
) -> None:
    import torch

    for name, epoch in (
        ("epoch_1", 1),
        ("epoch_2", 2),
        ("epoch_10", 10),
        ("best", 2),
        ("last", 10),
    ):
        torch.save(
            {"epoch": epoch, "model": {"w.weight": torch.zeros(2)}},
            tmp_path / f"{name}.pth",
        )
    rows = ckpt("ls", str(tmp_path), "--tsv", "--no-header").stdout.splitlines()
    documents = map(json.loads, ckpt("ls", str(tmp_path), "--json").stdout.splitlines())

    expected = ["epoch_1", "epoch_2", "best", "epoch_10", "last"]
    assert [Path(row.split("\t")[0]).stem for row in rows] == expected
    assert [document["counters"] for document in documents] == [
        {"epoch": n} for n in (1, 2, 2, 10, 10)
    ]

    torch.save(
        {"model": {"w.weight": torch.zeros(2)}}, tmp_path / "epoch_3.pth"
    )  # which epoch it is of, nothing says
    rows = ckpt("ls", str(tmp_path), "--tsv", "--no-header").stdout.splitlines()
    assert [Path(row.split("\t")[0]).stem for row in rows] == [
        "best", "epoch_1", "epoch_2", "epoch_3", "epoch_10", "last",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_screen_breaks_no_word_and_keeps_its_width(columns: int) -> None:
    seen = terminal("ls", ".", columns=columns, code=2, NO_COLOR="1")

    assert max(map(len, seen.splitlines())) <= columns
    words = set(seen.replace("…", " … ").split())
    for name in (
        "branch.rank0.pth",
        "weights_only",
        "unused",
        "called-on-load",
        "list-modules",
        "RUNS",
    ):
        assert name in words
    assert "a Git LFS pointer, not the file" in " ".join(seen.split())
    assert ("EPOCH" in words) == (columns >= 80)
    assert ("FORMAT" in words) == (columns > 100)


def test_colour_tells_what_runs_code_and_what_is_unreadable() -> None:
    seen = terminal("ls", "hostile.pth", "lfs_pointer.pth", code=2, columns=120)

    assert "\x1b[1;31mRUNS CODE" in seen and "\x1b[33munreadable" in seen


def test_what_cannot_be_read(ckpt: Run, samples: Path) -> None:
    names = ("lfs_pointer.pth", "html_page.pth", "truncated.pth", "missing.pth")
    done = ckpt("ls", *names)
    skipped = ckpt("ls", *names, "--skip-unreadable", "--no-summary")

    assert (done.returncode, skipped.returncode, skipped.stderr) == (2, 0, "")
    assert (
        done.stderr
        == "0 checkpoints, 0 B · 4 unreadable (unreadable: ckpt lint PATH... --level error)\n"
    )
    assert done.stdout == skipped.stdout
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert set(rows) == set(names)
    assert (
        "unreadable  a Git LFS pointer, not the file (git lfs pull)"
        in rows["lfs_pointer.pth"]
    )
    assert "no such file" in rows["missing.pth"]


@pytest.mark.parametrize("kind", ["empty", "nothing but text"])
def test_no_checkpoint_is_trouble(kind: str, ckpt: Run, tmp_path: Path) -> None:
    if kind != "empty":
        (tmp_path / "notes.txt").write_text("x")
        (tmp_path / "vocab.bin").write_bytes(b"\x07\x99" * 99)
    done = ckpt("ls", str(tmp_path))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"ckpt: no checkpoint in {tmp_path}\n"


@pytest.mark.parametrize(
    ("name", "concern"),
    [("a.pth", True), ("a.bin", False), ("a.pkl", False), ("lfs.bin", True), ("cut.bin", True), ("empty.pt", True)],
)  # fmt: skip
def test_files_of_a_folder_that_are_no_checkpoints(
    name: str, concern: bool, ckpt: Run, samples: Path, tmp_path: Path
) -> None:
    data = b"\x07\x99" * 99
    if name == "lfs.bin":
        data = (samples / "lfs_pointer.pth").read_bytes()
    if name == "cut.bin":
        data = (samples / "truncated.pth").read_bytes()
    (tmp_path / name).write_bytes(b"" if name == "empty.pt" else data)
    shutil.copy(samples / "llama_bf16.pth", tmp_path)
    done = ckpt("ls", str(tmp_path))

    assert done.returncode == (2 if concern else 0)
    assert (name in done.stdout) == concern


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("name", "epoch_9.pth"),
        ("size", "best.pth.tar"),
        ("params", "epoch_9.pth"),
        ("findings", "stranger.pt"),
    ],
)
def test_sort(order: str, first: str, ckpt: Run, runs: Path) -> None:
    rows = ckpt(
        "ls", str(runs), "--sort", order, "--tsv", "--no-header"
    ).stdout.splitlines()

    assert Path(rows[0].split("\t")[0]).name == first
    assert len(rows) == 5


def test_an_unknown_order_is_named(ckpt: Run) -> None:
    done = ckpt("ls", ".", "--sort", "date")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ckpt: --sort date: not one of name size params findings\n"


def test_json_and_tsv_agree_with_inspect(ckpt: Run, samples: Path) -> None:
    names = ["train_cuda.pth", "llama_bf16.pth", "lfs_pointer.pth", "hostile.pth"]
    done = ckpt("ls", *names, "--json")
    documents = {row["path"]: row for row in map(json.loads, done.stdout.splitlines())}
    table = [
        line.split("\t") for line in ckpt("ls", *names, "--tsv").stdout.splitlines()
    ]

    assert table[0] == [
        "file",
        "format",
        "bytes",
        "parameters",
        "dtypes",
        "devices",
        "loads",
        "findings",
        "error",
        "epoch",
        "step",
        "unknown",
    ]
    for row in (dict(zip(table[0], cells, strict=True)) for cells in table[1:]):
        document = documents[row["file"]]
        error = document["error"]
        assert row["error"] == (
            "" if error is None else f"{error['message']} ({error['hint']})"
        )
        if document["error"] is None:
            shown = json.loads(ckpt("inspect", row["file"], "--json").stdout)
            assert document["findings"] == shown["findings"]
            assert (document["bytes"], document["format"]) == (
                shown["file"]["bytes"],
                shown["file"]["format"],
            )
            assert row["bytes"] == str(document["bytes"]) and row["parameters"] == str(
                document["parameters"]
            )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("cuda", 1),
        ("bloat", 0),
        ("error", 1),
        ("warning", 1),
        ("any", 1),
        ("bloat,cuda", 1),
    ],
)
def test_fail_on(code: str, expected: int, ckpt: Run) -> None:
    assert (
        ckpt("ls", "train_cuda.pth", "hostile.pth", "--fail-on", code).returncode
        == expected
    )
    assert ckpt("ls", "llama_bf16.pth", "--fail-on", "warning").returncode == 0


@pytest.mark.parametrize("mark", ["\n", "\0"])
def test_paths_from_a_list(mark: str, ckpt: Run, tmp_path: Path) -> None:
    text = mark.join(("llama_bf16.pth", "legacy.pth", ""))
    (tmp_path / "list").write_text(text)

    from_stdin = ckpt(
        "ls", "--files-from", "-", "tied_and_bloated.pth", "--tsv", input=text
    )
    from_file = ckpt(
        "ls", "tied_and_bloated.pth", "--files-from", str(tmp_path / "list"), "--tsv"
    )

    assert from_stdin.stdout == from_file.stdout
    names = [line.split("\t")[0] for line in from_stdin.stdout.splitlines()[1:]]
    assert names == ["legacy.pth", "llama_bf16.pth", "tied_and_bloated.pth"]


def test_a_list_on_stdin_is_read_whole_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"weights.safetensors\n" * 900_000))
    monkeypatch.setattr("sys.stdin", text)
    with pytest.raises(
        UsageError, match=r'files_from="-": the list has over 16,777,216 bytes'
    ):
        named_paths([], ["-"])


def test_nothing_to_look_at(ckpt: Run) -> None:
    done = ckpt("verify")  # ls alone lists the folder

    assert (done.returncode, done.stderr) == (
        2,
        "ckpt: nothing to look at (PATH..., or --files-from FILE)\n",
    )


def test_many_files_are_read_by_several_processes_and_are_the_same(
    ckpt: Run, samples: Path, tmp_path: Path
) -> None:
    names = [
        name
        for name in ("ddp_after.pth", "hostile.pth", "truncated.pth")
        for _ in range(FEW)
    ]
    for number, name in enumerate(names):
        shutil.copy(samples / name, tmp_path / f"{number}.pth")
    together = ckpt("ls", str(tmp_path), "--tsv")
    alone = [
        ckpt("ls", str(tmp_path / f"{n}.pth"), "--tsv", "--no-header").stdout
        for n in (0, FEW, 2 * FEW)
    ]

    rows = together.stdout.splitlines(keepends=True)[1:]
    assert len(rows) == 3 * FEW and together.returncode == 2
    assert [rows[0], rows[FEW], rows[2 * FEW]] == alone


def test_an_interrupt_prints_the_rows_so_far(samples: Path, tmp_path: Path) -> None:
    for number in range(2 * FEW):
        shutil.copy(samples / "ddp_after.pth", tmp_path / f"{number}.pth")
    os.mkfifo(tmp_path / "list")
    code = (
        "import sys; from ckpt.bytes import executor; from ckpt.surface.cli import "
        "start, app\n"
        "each, flag = executor.Forks.each, open(sys.argv.pop(), 'a')\n"
        "def slow(self, tasks):\n"
        "    for number, row in enumerate(each(self, tasks)):\n"
        "        if number == 3: print(file=flag, flush=True); import time; "
        "time.sleep(600)\n"
        "        yield row\n"
        "executor.Forks.each = slow\n"
        "start.run(app.run)"
    )
    (tmp_path / "list").unlink()
    flag = tmp_path / "flag"
    flag.touch()
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            "ls",
            str(tmp_path),
            "--tsv",
            "--no-header",
            str(flag),
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + TIMEOUT
    while not flag.stat().st_size and child.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=TIMEOUT)

    assert (child.returncode, err) == (130, "ckpt: interrupted\n")
    assert [Path(line.split("\t")[0]).name for line in out.splitlines()] == [
        "0.pth",
        "1.pth",
        "2.pth",
    ]


@pytest.mark.slow
def test_inspect_of_a_folder_of_checkpoints_is_the_list(ckpt: Run, runs: Path) -> None:
    shutil.rmtree(runs / "export")
    done = ckpt("inspect", str(runs))

    assert done.returncode == 0
    assert (done.stdout, done.stderr) == (
        ckpt("ls", str(runs)).stdout,
        ckpt("ls", str(runs)).stderr,
    )
    documents = ckpt("inspect", str(runs), "--json").stdout
    assert documents == ckpt("ls", str(runs), "--json").stdout
    refused = ckpt("inspect", str(runs), "--tsv")
    assert (
        refused.returncode == 2
        and f"name one, such as {runs / 'epoch_10.pth'}" in refused.stderr
    )


@pytest.mark.needs("folders")
def test_first_bytes_say_what_a_folder_holds(runs: Path, samples: Path) -> None:
    (runs / ".cache").mkdir()
    for name in (".cache/hidden", "BEST.PTH", "epoch_9.pth.bak", "best"):
        shutil.copy(runs / "epoch_9.pth", runs / name)
    items = [item for item in found([str(runs)]) if item.skipped is None]
    names = {os.path.relpath(item.path, runs) for item in items if not item.is_other}
    assert {os.path.relpath(item.path, runs) for item in items if item.is_other} == {
        "notes.txt",
        "data.pkl",
    }
    shards = [item.path for item in found([str(samples / "sharded")])]

    assert names == {
        "epoch_9.pth",
        "epoch_10.pth",
        "export/model.safetensors",
        "old/best.pth.tar",
        "stranger.pt",
        ".cache/hidden",
        "BEST.PTH",
        "epoch_9.pth.bak",
        "best",
        "tokens.bin",
    }
    assert [Path(path).name for path in shards] == ["sharded"]  # one checkpoint


def test_long_paths_of_several_folders_leave_the_sizes(tmp_path: Path) -> None:
    import torch

    runs = [f"{kind}-2026-11-29-learning-rate-3e-4" for kind in ("base", "wide")]
    for top in ("a", "bb"):
        for run in runs:
            folder = tmp_path / top / run / "checkpoints"
            folder.mkdir(parents=True)
            for name in ("epoch_1.pth", "best.pth"):
                state = {f"module.w{i}": torch.zeros(2) for i in range(3)}
                torch.save({"epoch": 1, "model": state}, folder / name)
    (tmp_path / "bb/one.pth").write_bytes((folder / name).read_bytes())
    seen = terminal("ls", "a", "bb", cwd=tmp_path, NO_COLOR="1", TERM="dumb")
    rows = [line for line in seen.splitlines() if "KiB" in line][:9]
    assert "SIZE" in seen and max(map(len, seen.splitlines())) <= 80, seen
    assert len({row.split()[0] for row in rows}) == 9, seen


def test_one_number_in_a_name_is_no_series(ckpt: Run, tmp_path: Path) -> None:
    import torch

    for name, epoch in (("resnet50", 90), ("mine", 2), ("yours", 100)):
        torch.save({"epoch": epoch, "w": torch.zeros(2)}, tmp_path / f"{name}.pth")
    rows = ckpt("ls", str(tmp_path), "--tsv", "--no-header").stdout.splitlines()

    names = [Path(row.split("\t")[0]).stem for row in rows]
    assert names == ["mine", "resnet50", "yours"]


def test_files_whose_numbers_are_no_order_of_saves_stay_in_the_order_of_their_names(
    ckpt: Run, tmp_path: Path
) -> None:
    import torch

    for name, epoch in (("fold_1", 9), ("fold_2", 4), ("best", 5)):
        torch.save(
            {"epoch": epoch, "model": {"w.weight": torch.zeros(2)}},
            tmp_path / f"{name}.pth",
        )
    rows = ckpt("ls", str(tmp_path), "--tsv", "--no-header").stdout.splitlines()

    assert [Path(row.split("\t")[0]).stem for row in rows] == [
        "best",
        "fold_1",
        "fold_2",
    ]


def test_an_epoch_below_0_is_none(ckpt: Run, samples: Path) -> None:
    lines = ckpt(
        "ls", "yolo_style.pt", "ddp_after.pth", "ddp_before.pth"
    ).stdout.splitlines()
    document = json.loads(ckpt("ls", "yolo_style.pt", "--json").stdout)

    assert lines[1].split()[:2] == ["NAME", "EPOCH"]
    assert not any("-1" in line for line in lines)
    assert document["counters"] == {"epoch": -1}


def test_one_file_and_danger_stay_rows(
    ckpt: Run, samples: Path, tmp_path: Path
) -> None:
    one = ckpt("ls", "train_cuda.pth").stdout.splitlines()
    for name in ("a.pth", "b.pth", "c.pth"):
        shutil.copy(samples / "hostile.pth", tmp_path / name)
    several = ckpt("ls", "a.pth", "b.pth", "c.pth", cwd=tmp_path).stdout.splitlines()

    assert one[0].split() == [
        "NAME",
        "EPOCH",
        "FORMAT",
        "SIZE",
        "PARAMS",
        "DTYPE",
        "DEVICE",
        "LOADS",
        "FINDINGS",
    ]
    assert len(one) == 2
    assert several[0].startswith("*.pth   torch-zip · ")
    assert [line.split() for line in several[1:]] == [
        ["NAME", "LOADS"],
        *([f"{name}.pth", "RUNS", "CODE"] for name in "abc"),
    ]


def test_short_labels_leave_room_for_columns(samples: Path, tmp_path: Path) -> None:
    for number, name in enumerate(
        ("train_cuda.pth", "weights.safetensors", "ddp_after.pth", "legacy.pth")
    ):
        os.symlink(samples / name, tmp_path / f"{'a_long_word_' * 5}-{number}.pth")
    lines = terminal(
        "ls", ".", columns=88, cwd=tmp_path, NO_COLOR="1", TERM="dumb"
    ).splitlines()

    first = next(number for number, line in enumerate(lines) if line.startswith("NAME"))
    assert lines[first].split() == [
        "NAME",
        "EPOCH",
        "SIZE",
        "PARAMS",
        "DEVICE",
        "LOADS",
        "FINDINGS",
    ]
    assert [line.split()[0] for line in lines[first + 1 : first + 5]] == [
        f"word_-{number}" for number in range(4)
    ]


def test_two_long_names_are_named_in_a_headline(samples: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("train_cuda.pth", "weights.safetensors")):
        os.symlink(samples / name, tmp_path / f"{'a_long_word_' * 5}-{number}.pth")
    lines = terminal(
        "ls", ".", columns=80, cwd=tmp_path, NO_COLOR="1", TERM="dumb"
    ).splitlines()

    assert lines[0] == "./a_long_word_a_long_word_a_l…a_long_word_a_long_word_-*.pth"
    assert len(lines[0]) == 60 and lines[1].startswith("NAME ")


def test_a_pipe_cuts_no_name(ckpt: Run, samples: Path, tmp_path: Path) -> None:
    names = [f"{'a_long_word_' * 16}-{number}.pth" for number in range(3)]
    for name, sample in zip(
        names, ("train_cuda.pth", "weights.safetensors", "legacy.pth"), strict=True
    ):
        os.symlink(samples / sample, tmp_path / name)
    lines = ckpt("ls", str(tmp_path)).stdout.splitlines()

    assert [line.split()[0] for line in lines[-3:]] == names
    head = next(line for line in lines if line.startswith("NAME "))
    assert len({line.index(unit) for line in lines[-3:] for unit in (" KiB",)}) == 1
    assert head.index("SIZE") + 4 == lines[-1].index(" KiB") + 4


def test_what_only_looks_alike_stays_a_column(ckpt: Run, tmp_path: Path) -> None:
    import torch

    for number in range(3):
        torch.save(
            {"w.weight": torch.zeros(100_000 + number)}, tmp_path / f"m{number}.pth"
        )
    lines = ckpt("ls", str(tmp_path)).stdout.splitlines()

    assert lines[1].split() == ["NAME", "SIZE", "PARAMS"]
    assert not any("parameters" in line for line in lines)


def test_an_epoch_deep_inside_is_no_counter(ckpt: Run, tmp_path: Path) -> None:
    import torch

    deep = {"args": {"train": {"epoch": 7}}, "state": {"epoch": 3}}
    torch.save({"model": {"w.weight": torch.zeros(2)}, **deep}, tmp_path / "a.pth")
    document = json.loads(ckpt("ls", str(tmp_path / "a.pth"), "--json").stdout)

    assert document["counters"] == {"state.epoch": 3}


@pytest.mark.parametrize("columns", [None, 80, 200])
def test_names_that_differ_by_their_unicode_form_are_shown_apart(
    columns: int | None, ckpt: Run, samples: Path, tmp_path: Path
) -> None:
    for name in ("caf\u00e9.pth", "cafe\u0301.pth", "the.pth"):
        os.symlink(samples / "legacy.pth", tmp_path / name)
    if columns is None:
        lines = ckpt("ls", str(tmp_path)).stdout.splitlines()
    else:
        lines = terminal(
            "ls", ".", columns=columns, cwd=tmp_path, NO_COLOR="1", TERM="dumb"
        ).splitlines()

    names = [line.split()[0] for line in lines[lines.index("NAME") + 1 :][:3]]
    assert sorted(names) == sorted(["caf\u00e9.pth", "cafe\\u0301.pth", "the.pth"])


def test_the_number_of_checkpoints_is_said_once(samples: Path, tmp_path: Path) -> None:
    for number in range(3):
        os.symlink(samples / "legacy.pth", tmp_path / f"checkpoint-{number}.bin")
    seen = terminal("ls", ".", columns=80, cwd=tmp_path, NO_COLOR="1", TERM="dumb")

    assert seen.count("3 checkpoints") == 1
    assert seen.startswith("./checkpoint-*.bin   torch-legacy · ")


def test_tsv_has_the_counters(ckpt: Run, tmp_path: Path) -> None:
    import torch

    torch.save(
        {"epoch": 3, "global_step": 1_500_000, "model": {"w.weight": torch.zeros(2)}},
        tmp_path / "a.pth",
    )
    torch.save({"w.weight": torch.zeros(2)}, tmp_path / "b.pth")
    (tmp_path / "c.pth").write_bytes(b"")
    head, *rows = (
        line.split("\t")
        for line in ckpt("ls", str(tmp_path), "--tsv").stdout.splitlines()
    )

    assert head[-4:] == ["error", "epoch", "step", "unknown"]
    assert [row[-3:-1] for row in rows] == [["3", "1500000"], ["", ""], ["", ""]]


def test_the_option_that_lists_other_files_is_not_named_where_it_is_given(
    ckpt: Run, tmp_path: Path
) -> None:
    torch.save({"w.weight": torch.zeros(2)}, tmp_path / "a.pth")
    (tmp_path / "notes.txt").write_text("text")
    done = ckpt("ls", str(tmp_path))
    assert done.stderr.endswith(" · 1 not looked at (--others)\n")
    done = ckpt("ls", str(tmp_path), "--others")
    assert done.stderr.endswith(" · 1 not looked at\n")


def test_parameters_that_may_be_buffers_are_marked(ckpt: Run, tmp_path: Path) -> None:
    """A scalar such as the logit scale of CLIP may be a buffer. The table says so, and
    its exact form has both numbers.
    """
    torch.save({"w.weight": torch.zeros(6), "scale": torch.ones(())}, tmp_path / "a.pt")
    torch.save({"w.weight": torch.zeros(2), "p": torch.ones(4)}, tmp_path / "b.pt")
    large = {"w.weight": torch.zeros(2000), "scale": torch.ones(())}
    torch.save(large, tmp_path / "c.pt")  # 2,001 is shown as 2,000 is
    torch.save({"w.weight": torch.zeros(6)}, tmp_path / "d.pt")
    (tmp_path / "e.pt").write_bytes(b"")
    text = ckpt("ls", str(tmp_path)).stdout
    for name, cell in (("a", "7?"), ("b", "6?"), ("c", "2.00 K"), ("d", "6")):
        assert re.search(rf"^{name}\.pt .*B +{re.escape(cell)}$", text, re.M)
    rows = [
        line.split("\t")
        for line in ckpt("ls", str(tmp_path), "--tsv").stdout.splitlines()
    ]
    numbers = [(row[3], row[-1]) for row in rows]
    assert numbers == [
        ("parameters", "unknown"),
        ("6", "1"), ("2", "4"), ("2000", "1"), ("6", "0"), ("", ""),
    ]  # fmt: skip


def test_a_line_about_an_unreadable_file_reads_alike_in_ls_and_lint(
    ckpt: Run, tmp_path: Path
) -> None:
    (tmp_path / "a\n.pth").write_bytes(b"")
    lines = {
        ckpt(*command, str(tmp_path)).stderr.splitlines()[0]
        for command in (("ls", "-q"), ("lint", "-q"))
    }

    assert lines == {
        (
            f"ckpt: {tmp_path}/a\\n.pth: an empty file (an unfinished save, or a full "
            "disk? use an earlier save)"
        )
    }


@pytest.mark.needs("folders")
@pytest.mark.parametrize("end", ["", "/"])
def test_a_folder_that_is_a_checkpoint_has_its_own_name(
    ckpt: Run, samples: Path, tmp_path: Path, end: str
) -> None:
    shutil.copytree(samples / "sharded", tmp_path / "tiny")
    printed = ckpt("ls", f"{tmp_path / 'tiny'}{end}").stdout.splitlines()
    assert printed[1].split()[0] == str(tmp_path / "tiny")


def test_a_reason_that_does_not_fit_beside_a_name_stands_below_it(
    tmp_path: Path,
) -> None:
    """Beside a long name it was a column of single words."""
    name = f"{'a-long-description-of-a-run-' * 2}last.ckpt"
    torch.save({"w": torch.ones(2)}, tmp_path / name)
    (tmp_path / "best.ckpt").write_bytes((tmp_path / name).read_bytes()[:700])

    seen = terminal("ls", ".", columns=80, code=2, cwd=tmp_path, NO_COLOR="1")
    text = str(seen).replace("\r", "")

    lines = text.split("\n")
    row = next(i for i, line in enumerate(lines) if line.startswith("best.ckpt"))
    assert lines[row].endswith("unreadable")
    assert lines[row + 1].startswith(
        "    cut off: the zip archive has no directory, the file ends"
    )


def test_an_empty_folder_beside_others_is_named(ckpt: Run, runs: Path) -> None:
    (runs / "empty").mkdir()
    done = ckpt("ls", "export", "empty", cwd=runs)
    assert done.returncode == 2
    assert "model.safetensors" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("empty"))
    assert row.split() == [
        "empty",
        "unreadable",
        "no",
        "checkpoint",
        "in",
        "this",
        "folder",
    ]
    assert "lint" not in done.stderr
    assert ckpt("ls", "empty", "export", cwd=runs).stdout == done.stdout
    lines = ckpt("ls", "export", "empty", "--json", cwd=runs).stdout.splitlines()
    assert {json.loads(line)["path"] for line in lines} >= {"empty"}
    alone = ckpt("ls", "empty", cwd=runs)
    assert (alone.returncode, alone.stderr) == (2, "ckpt: no checkpoint in empty\n")


def test_lint_is_no_way_on_where_nothing_is(ckpt: Run, runs: Path) -> None:
    assert "lint" not in ckpt("ls", "nothere", cwd=runs).stderr
    assert "lint" in ckpt("ls", "stranger.pt", cwd=runs).stderr


def test_the_epoch_stays_longer_than_the_parameters(
    samples: Path, tmp_path: Path
) -> None:
    names = ("ddp_after.pth", "train_cuda.pth", "legacy.pth")
    for name in names:
        shutil.copy(samples / name, tmp_path / name)
    seen = terminal("ls", str(tmp_path), columns=80, NO_COLOR="1")
    head = next(line for line in seen.splitlines() if line.startswith("NAME"))
    assert head.split() == ["NAME", "EPOCH", "SIZE", "PARAMS", "LOADS", "FINDINGS"]
    narrow = terminal("ls", str(tmp_path), columns=72, NO_COLOR="1")
    head = next(line for line in narrow.splitlines() if line.startswith("NAME"))
    assert head.split() == ["NAME", "EPOCH", "SIZE", "LOADS", "FINDINGS"]


@pytest.mark.parametrize("command", ["inspect", "stats", "sum", "get"])
def test_a_set_without_a_shard_names_the_way_on(
    command: str, ckpt: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    files = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    save_file({"a.weight": torch.ones(2, 2)}, folder / files[0])
    index = {"a.weight": files[0], "b.weight": files[1]}
    text = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    done = ckpt(command, "llm", cwd=tmp_path)
    assert done.returncode == 2
    assert "ckpt verify llm names what is lost" in done.stderr + done.stdout
    assert "lost: b.weight" in ckpt("verify", "llm", cwd=tmp_path).stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_an_unreadable_file_has_no_epoch(columns: int, tmp_path: Path) -> None:
    torch.save(
        {"model": {"fc.weight": torch.ones(2, 2)}, "epoch": 3}, tmp_path / "a.pth"
    )
    (tmp_path / "b.pth").touch()

    text = terminal(
        "ls", "a.pth", "b.pth", columns=columns, code=2, cwd=tmp_path, NO_COLOR="1"
    )
    head, _, broken = text.splitlines()[:3]

    assert broken.index("unreadable") > head.index("EPOCH") + len("EPOCH")

"""`ckpt average` on the command line: what it takes, what it says, what stops it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import rewriting
import torch
from inside import inside
from process import check_error, ckpt
from safetensors.torch import load_file, save_file
from torch import nn

from ckpt.formats import save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints of a training, from 1 to 3, each with values equal to its
    number.
    """
    for number in (1, 2, 3):
        state = {
            "w": torch.full((4, 4), float(number)),
            "b": torch.full((2,), -float(number)),
            "n": torch.tensor(number),
        }
        rewriting.saved(
            {"model": state, "epoch": number}, tmp_path / f"epoch_{number}.pth"
        )
    return tmp_path


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def test_the_report(folder: Path) -> None:
    done = inside(
        "average",
        "epoch_1.pth",
        "epoch_2.pth",
        "epoch_3.pth",
        "--ratios",
        "1,1,2",
        "-o",
        "m.pth",
        cwd=folder,
    )

    assert done.out.decode().splitlines()[:-1] == [
        "averaged         2 tensors, 72 B",
        "as in the last   1 tensor, 8 B",
        "0.25 × epoch_1.pth",
        "0.25 × epoch_2.pth",
        "0.5 × epoch_3.pth   gives names, order and dtypes",
        "left out: epoch = 3",
        "left alone: n: int64, differs in epoch_1.pth, epoch_2.pth, 8 B",
    ]
    assert done.code == 0 and not done.err
    found = loaded(folder / "m.pth")
    assert list(found) == ["w", "b", "n"]
    assert found["w"][0, 0] == 2.25 and found["b"][0] == -2.25 and found["n"] == 3


def test_the_document(folder: Path) -> None:
    done = inside(
        "average", "epoch_1.pth", "epoch_3.pth", "-o", "m.pth", "--json", cwd=folder
    )

    document = json.loads(done.out)
    sizes = [os.path.getsize(folder / f"epoch_{number}.pth") for number in (1, 3)]
    assert (
        document["command"] == "average" and document["input"]["path"] == "epoch_3.pth"
    )
    assert document["sources"] == [
        {
            "path": f"epoch_{number}.pth",
            "format": "torch-zip",
            "bytes": size,
            "ratio": 0.5,
            "aligned": ["", ""],
            "rules": [],
        }
        for number, size in zip((1, 3), sizes, strict=True)
    ]
    assert document["left_alone"] == [
        {"name": "n", "what": "int64, differs in epoch_1.pth", "bytes": 8}
    ]


def test_what_is_wrong_is_one_line(folder: Path) -> None:
    for words, says in (
        ((), "nothing to average (path path..., or --last n folder)"),
        (("epoch_1.pth",), "epoch_1.pth: a mean takes two checkpoints or more"),
        (("epoch_*.pth",), "epoch_*.pth: no such file"),
        (("epoch_1.pth", "epoch_2.pth"), "where to write? (-o epoch_2.average.pth)"),
        (("epoch_1.pth", "epoch_9.pth"), "epoch_9.pth: no such file"),
        (("epoch_9.pth", "epoch_1.pth"), "epoch_9.pth: no such file"),
        ((".", "epoch_1.pth"), "a directory without an index"),
        (("epoch_1.pth", "epoch_2.pth", "--ratios", "1"), "1 number for 2 checkpoints"),
        (
            ("epoch_1.pth", "epoch_2.pth", "--ratios", "1,"),
            "an empty text is not a number",
        ),
        (("epoch_1.pth", "epoch_2.pth", "--ratios", "1;2"), "1;2 is not a number"),
        (("epoch_1.pth", "https://x.org/a.pth"), "ckpt average takes local files only"),
        (("--last", "2", ".", "epoch_1.pth"), "--last takes one folder"),
        (("--last", "2", "epoch_1.pth"), "not a folder, which --last takes"),
        (("--last", "1", "."), "1 is not in the range"),
    ):
        check_error(inside("average", *words, cwd=folder), says)
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("to", ["epoch_1.pth", "epoch_2.pth", "link.pth", "hard.pth"])
def test_no_input_is_replaced(to: str, folder: Path) -> None:
    (folder / "link.pth").symlink_to("epoch_1.pth")
    os.link(folder / "epoch_1.pth", folder / "hard.pth")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    for ratios in ("1,1", "0,1"):  # one that adds nothing is an input too
        done = inside(
            "average",
            "epoch_1.pth",
            "epoch_2.pth",
            "--ratios",
            ratios,
            "-o",
            to,
            "--force",
            cwd=folder,
        )

        check_error(
            done,
            "out is the source"
            if to == "epoch_2.pth"
            else "out is one of the checkpoints",
        )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def damage(path: Path, what: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(what) + 1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("out", ["m.pth", "m.safetensors", "m.dcp"])
def test_damage_in_any_checkpoint_stops_it(number: int, out: str, folder: Path) -> None:
    damage(
        folder / f"epoch_{number}.pth",
        torch.full((4, 4), float(number)).numpy().tobytes(),
    )
    words = ("average", "epoch_1.pth", "epoch_2.pth", "epoch_3.pth", "-o", out)

    check_error(inside(*words, cwd=folder), f"epoch_{number}.pth: w is damaged")
    assert not (folder / out).exists()
    done = inside(*words, "--keep-damaged", cwd=folder)
    assert done.code == 1 and b"w is damaged" in done.err and (folder / out).exists()


def test_a_large_damaged_record_is_found_while_it_is_added(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rewriting.saved(
            {"w": torch.randn(600, 1000), "v": torch.randn(3)}, tmp_path / f"{name}.pth"
        )
    assert (
        inside(
            "average", "a.pth", "b.pth", "-o", "ok.pth", "--verify", "crc", cwd=tmp_path
        ).code
        == 0
    )
    found, one, two = (loaded(tmp_path / f"{name}.pth") for name in ("ok", "a", "b"))
    assert torch.equal(
        found["w"], ((one["w"].double() + two["w"].double()) / 2).float()
    )
    damage(tmp_path / "a.pth", one["w"][-1, -9:].numpy().tobytes())

    check_error(
        inside("average", "a.pth", "b.pth", "-o", "m.pth", cwd=tmp_path),
        "a.pth: w is damaged",
    )


def test_the_torch_check_and_the_crc_check_pass(folder: Path) -> None:
    for how in ("crc", "torch"):
        done = inside(
            "average",
            "epoch_1.pth",
            "epoch_2.pth",
            "-o",
            f"{how}.pth",
            "--verify",
            how,
            cwd=folder,
        )

        assert done.code == 0 and f"{how} verified" in done.out.decode()


def test_a_checkpoint_that_changes_while_it_is_read_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = save.save_checkpoint

    def changing(*arguments: Any, **options: Any) -> Any:
        (folder / "epoch_1.pth").touch()
        os.utime(folder / "epoch_1.pth", (1, 1))
        return plain(*arguments, **options)

    monkeypatch.setattr(save, "save_checkpoint", changing)

    check_error(
        inside("average", "epoch_1.pth", "epoch_2.pth", "-o", "m.pth", cwd=folder),
        "epoch_1.pth",
    )
    assert not (folder / "m.pth").exists()


def test_a_checkpoint_that_is_given_twice_counts_twice(folder: Path) -> None:
    done = inside(
        "average",
        "epoch_1.pth",
        "./epoch_1.pth",
        "epoch_3.pth",
        "-o",
        "m.pth",
        cwd=folder,
    )

    assert done.err == b"ckpt: epoch_1.pth: given 2 times, and counts so often\n"
    assert torch.allclose(loaded(folder / "m.pth")["w"], torch.tensor(5 / 3))


def test_numbers_beyond_the_range_of_the_last_are_counted(folder: Path) -> None:
    rewriting.saved({"w": torch.full((4, 4), 1e6)}, folder / "a.pth")
    rewriting.saved({"w": torch.ones(4, 4).half()}, folder / "b.pth")

    done = inside("average", "a.pth", "b.pth", "-o", "m.pth", cwd=folder)

    assert "16 means beyond the range of float16" in done.out.decode()
    assert (
        json.loads(
            inside("average", "a.pth", "b.pth", "-o", "n.pth", "--json", cwd=folder).out
        )["overflowed"]
        == 16
    )


def series(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        rewriting.saved({"w": torch.full((2,), float(number))}, path)


def test_the_last_of_a_folder_are_the_last_in_natural_order(tmp_path: Path) -> None:
    series(
        tmp_path,
        "runs/epoch_1.pth",
        "runs/epoch_2.pth",
        "runs/epoch_10.pth",
        "runs/best.pth",
        "runs/last.ckpt",
    )
    (tmp_path / "runs/.epoch_11.pth.a1b2.ckpt-tmp").write_bytes(b"PK\3\4")
    (tmp_path / "runs/log_1.txt").write_text("1")
    (tmp_path / "runs/log_2.txt").write_text("2")

    done = inside(
        "average", "--last", "2", "runs", "-o", "runs/epoch_99.pth", cwd=tmp_path
    )

    says = (
        "ckpt: runs: the last 2 of 3 epoch_*.pth; not of this series: best.pth, "
        "last.ckpt"
    )
    assert says in done.err.decode() and done.code == 0
    assert torch.equal(
        loaded(tmp_path / "runs/epoch_99.pth")["w"], torch.tensor([1.5, 1.5])
    )
    again = inside(
        "average",
        "--last",
        "2",
        "runs",
        "-o",
        "runs/epoch_99.pth",
        "--force",
        cwd=tmp_path,
    )
    assert says in again.err.decode() and again.code == 0, (
        "an earlier result is no checkpoint of the series"
    )


def test_a_series_of_folders_is_one_too(tmp_path: Path) -> None:
    series(
        tmp_path,
        *(f"run/checkpoint-{number}/pytorch_model.bin" for number in (900, 1000, 1100)),
    )

    done = inside(
        "average", "--last", "2", "run", "-o", "m.pth", "--json", cwd=tmp_path
    )

    found = [
        os.path.normpath(row["path"]).split(os.sep)[1]
        for row in json.loads(done.out)["sources"]
    ]
    assert found == ["checkpoint-1000", "checkpoint-1100"]


def test_a_folder_that_does_not_decide_is_refused(tmp_path: Path) -> None:
    series(tmp_path, "a_1.pth", "a_2.pth", "b_1.pth", "b_2.pth", "c.pth")

    says = (
        "has 2 series of 2 checkpoints or more: a_*.pth (2), b_*.pth (2) (name the "
        "checkpoints)"
    )
    check_error(
        inside("average", "--last", "2", ".", "-o", "m.pth", cwd=tmp_path), says
    )
    says = "has 2 numbered checkpoints (a_*.pth), and --last asks for 3"
    check_error(
        inside("average", "--last", "3", ".", "-o", "m.pth", cwd=tmp_path), says
    )
    (tmp_path / "none").mkdir()
    check_error(
        inside("average", "--last", "3", "none", "-o", "m.pth", cwd=tmp_path),
        "has 0 numbered checkpoints",
    )


def test_a_hint_works_when_it_is_pasted(tmp_path: Path) -> None:
    rewriting.saved(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)).state_dict(), tmp_path / "a.pth"
    )
    rewriting.saved(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4)).state_dict(), tmp_path / "b.pth"
    )
    words = ("average", "a.pth", "b.pth", "-o", "m.pth")

    done = inside(*words, cwd=tmp_path)

    check_error(
        done,
        "a.pth: does not fit b.pth: 1.weight is [3, 2], there [4, 2] and 1 more tensor",
    )
    assert "(--exclude 1.weight --exclude 1.bias)" in done.err.decode()
    assert (
        inside(
            *words, "--exclude", "1.weight", "--exclude", "1.bias", cwd=tmp_path
        ).code
        == 0
    )
    assert list(loaded(tmp_path / "m.pth")) == ["0.weight", "0.bias"]


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    name = "w\x1b[31m\n::error::"
    rewriting.saved({name: torch.tensor(1), "v": torch.ones(1)}, tmp_path / "a\nb.pth")
    rewriting.saved({name: torch.tensor(2), "v": torch.ones(1)}, tmp_path / "c.pth")

    done = ckpt("average", "a\nb.pth", "c.pth", "--dry-run", cwd=tmp_path)

    assert (
        done.code == 0 and b"\x1b" not in done.out and len(done.out.splitlines()) == 6
    )


def test_a_plan_reads_no_floats(folder: Path) -> None:
    damage(folder / "epoch_1.pth", torch.full((4, 4), 1.0).numpy().tobytes())

    assert (
        inside("average", "epoch_1.pth", "epoch_2.pth", "--dry-run", cwd=folder).code
        == 0
    )


def a_model(folder: Path, value: float) -> Path:
    """A folder as transformers saves it."""
    folder.mkdir()
    save_file({"w": torch.full((4, 4), value)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"hidden_size": value}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_config_and_tokenizer_of_the_last_one_go_along(tmp_path: Path) -> None:
    for value in (1, 2):
        a_model(tmp_path / f"checkpoint-{value}", float(value))
    words = ("average", "checkpoint-1", "checkpoint-2")

    done = inside(*words, "-o", "mean", "--with-config", cwd=tmp_path)

    assert done.code == 0 and not done.err, done.err
    assert b"carried along: config.json, tokenizer.json" in done.out
    mean = tmp_path / "mean"
    assert torch.equal(
        load_file(mean / "model.safetensors")["w"], torch.full((4, 4), 1.5)
    )
    assert json.loads((mean / "config.json").read_text()) == {"hidden_size": 2.0}
    assert {path.name for path in mean.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    done = inside(*words, "-o", "mean.safetensors", cwd=tmp_path)
    assert b"(-o FOLDER --with-config keeps config.json" in done.out
    done = inside(*words, "-o", "other", cwd=tmp_path)
    assert done.code == 2 and b"-o other/ --with-config" in done.err
    done = inside(*words, "-o", "x", "--last", "1", "--with-config", cwd=tmp_path)
    assert done.code == 2


@pytest.mark.parametrize("out", ["checkpoint-1", "checkpoint-2"])
def test_no_folder_of_an_input_gets_the_mean(out: str, tmp_path: Path) -> None:
    for value in (1, 2):
        a_model(tmp_path / f"checkpoint-{value}", float(value))
    words = ("average", "checkpoint-1", "checkpoint-2", "-o", out, "--with-config")

    done = inside(*words, "--force", cwd=tmp_path)

    assert done.code == 2 and done.err.count(b"\n") == 1, done.err
    for value in (1, 2):
        weights = load_file(tmp_path / f"checkpoint-{value}" / "model.safetensors")
        assert torch.equal(weights["w"], torch.full((4, 4), float(value)))

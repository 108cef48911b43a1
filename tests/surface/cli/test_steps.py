"""A folder of steps: commands that write take the newest whole one, and say which one
that is.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import deepspeeds
import folders
import frameworks_dcp as written
import oracle
import pytest
import torch
from deepspeeds import TAG
from inside import inside

import ckpt

pytestmark = oracle.QUIET


def titan(folder: Path) -> None:
    for step in (9, 10, 100):
        written.save(
            folder / f"step-{step}", {"model": {"w": torch.full((3,), float(step))}}
        )


def trainer(folder: Path) -> None:
    for step in (9, 10, 100):
        at = folder / f"checkpoint-{step}"
        folders.trainer(at, step=2)
        folders.save(at / "model.safetensors", {"w": torch.full((3,), float(step))})


def epochs(folder: Path) -> None:
    folder.mkdir()
    for step in (9, 10, 100):
        torch.save({"w": torch.full((3,), float(step))}, folder / f"epoch_{step}.pth")


def broken_titan(folder: Path) -> None:
    for path in (folder / "step-100").glob("*.distcp"):
        path.unlink()


def without_metadata(folder: Path) -> None:
    (folder / "step-100/.metadata").unlink()


def unfinished(folder: Path) -> None:
    (folder / "checkpoint-100/trainer_state.json").unlink()


def cut(folder: Path) -> None:
    path = folder / "epoch_100.pth"
    path.write_bytes(path.read_bytes()[:200])


def weight(path: Path) -> float:
    with ckpt.open(path) as checkpoint:
        (name,) = [name for name in checkpoint if name.endswith("w")]
        return float(checkpoint[name].torch()[0])


@pytest.mark.parametrize("command", ["convert", "slim", "rehome"])
@pytest.mark.parametrize(
    ("make", "damage", "says"),
    [
        (titan, broken_titan, "step-100 is passed over: 1 of 1 data file missing"),
        (titan, without_metadata, "step-100 is passed over: an interrupted save"),
        (
            trainer,
            unfinished,
            "checkpoint-100 is passed over: it has no trainer_state.json",
        ),
        (epochs, cut, "epoch_100.pth is passed over: cut off"),
    ],
)
def test_the_newest_whole_step_is_taken(
    make, damage, says, command: str, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "run")
    kept = {titan: "a.dcp", trainer: "a.safetensors"}.get(make, "a.pth")
    out = kept if command == "rehome" else "a.pth"
    done = inside(command, "run", "-o", out, cwd=tmp_path)
    assert done.code == 0 and b"passed over" not in done.err, done
    assert b"100" in done.err and b" is the newest whole step of 3 steps" in done.err
    assert weight(tmp_path / out) == 100
    damage(tmp_path / "run")
    done = inside(command, "run", "-o", out, "--force", cwd=tmp_path)
    assert done.code == 0 and says in done.err.decode(), done
    assert weight(tmp_path / out) == 10


@pytest.mark.parametrize("make", [titan, trainer, epochs])
@pytest.mark.parametrize(
    "words",
    [
        ("rehome", "run", "--in-place"),
        ("diff", "run", "run"),
        ("stats", "run"),
        ("verify", "run"),
    ],
)
def test_every_other_command_takes_no_step_by_itself(
    words: tuple[str, ...], make, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "run")
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    done = inside(*words, cwd=tmp_path)
    assert b"newest whole" not in done.err
    assert words[0] in ("verify", "stats") or done.code == 2
    assert before == {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }


def test_steps_of_two_kinds_or_beside_others_are_a_question(tmp_path: Path) -> None:
    titan(tmp_path / "run")
    shutil.copytree(tmp_path / "run/step-9", tmp_path / "run/epoch_9")
    assert inside("convert", "run", "-o", "o.pth", cwd=tmp_path).code == 2
    epochs(tmp_path / "files")
    torch.save({"w": torch.ones(3)}, tmp_path / "files/best.pth")
    done = inside("convert", "files", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 2 and b"4 checkpoint files" in done.err, done


def test_no_step_is_whole(tmp_path: Path) -> None:
    titan(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.distcp"):
        path.unlink()
    done = inside("convert", "run", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 2 and not (tmp_path / "o.pth").exists(), done


def test_the_step_that_latest_names_decides(tmp_path: Path) -> None:
    """A newer one may have been given up. Where the named one is not whole, an older
    one is taken.
    """
    folder = deepspeeds.write(tmp_path / "run", 1)
    for tag in ("global_step2", "global_step20"):
        shutil.copytree(folder / TAG, folder / tag)
    done = inside("convert", "run", "-o", "a.safetensors", cwd=tmp_path)
    assert (done.code, done.err) == (0, b""), done
    latest = (folder / "latest").read_text()
    for named, said in (
        (b"global_step99", b"names global_step99, which is not here"),
        (b"", b"names nothing, which is not here"),
        (b"9" * 5_000, b"names " + b"9" * 20),
        (b"\xff", b"cannot be read"),
    ):
        (folder / "latest").write_bytes(named)
        done = inside(
            "convert", "run", "-o", "d.safetensors", "--dry-run", cwd=tmp_path
        )
        assert done.code == 0, done
        assert done.err.startswith(b"ckpt: run: latest %s" % said), done
        assert b"global_step20 is the newest whole step of 3 steps" in done.err
    (folder / "latest").write_text(latest)
    (folder / TAG / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    done = inside("convert", "run", "-o", "b.safetensors", cwd=tmp_path)
    assert (
        done.code == 0
        and b"global_step2 is the newest whole step of 2 steps" in done.err
    ), done
    assert (
        b"global_step3 is passed over: the optimizer states of rank 1 of 2 are missing"
        in done.err
    )
    done = inside("convert", "run", "-o", "c.safetensors", "--partial", cwd=tmp_path)
    assert done.code == 1 and b"newest" not in done.err, (
        "the named one, as it was asked for"
    )


def test_megatron_without_its_newest_iteration(tmp_path: Path) -> None:
    written.megatron(tmp_path / "run")
    shutil.copytree(tmp_path / "run/iter_0000010", tmp_path / "run/iter_0000009")
    for path in (tmp_path / "run/iter_0000010").glob("*.distcp"):
        path.unlink()
    done = inside("convert", "run", "-o", "o.pth", cwd=tmp_path)
    assert done.code == 0 and b"iter_0000009 is the newest whole step" in done.err, done

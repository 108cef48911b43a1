"""`ckpt prune`: which saves of a run may go, and why the others stay. Whatever is in
doubt stays.

Removal itself is tested in test_removal.py.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from process import Done, ckpt
from process import terminal as on_terminal
from runs import OLD, epochs, lightning, save, trainer, written_at
from safetensors.torch import save_file

import ckpt as library
from ckpt.ext.prune.naming import parse_name
from ckpt.model.errors import UsageError


def may_go(run: Path, *options: str) -> list[str]:
    """The names of what may go."""
    done = ckpt("prune", run, *options)
    assert done.code == 0, done.err
    return [os.path.relpath(line, run) for line in done.lines]


def reasons(run: Path, *options: str) -> dict[str, str]:
    """The name of each row -> its reasons."""
    done = ckpt("prune", run, "--json", *options)
    assert done.code == 0, done.err
    return {
        os.path.basename(row["path"]): "; ".join(row["why"])
        for row in json.loads(done.out)["checkpoints"]
    }


def refused(run: Path | str, *options: str, cwd: Path | None = None) -> str:
    """The error of a command that refuses, on one line."""
    done: Done = ckpt("prune", run, *options, cwd=cwd)
    assert (done.code, done.out) == (2, b""), done
    (line,) = done.complaints
    return line


# --- the newest -----------------------------------------------------------------------


def test_the_newest_stays(tmp_path: Path) -> None:
    assert may_go(epochs(tmp_path)) == [
        "epoch_0.pth",
        "epoch_1.pth",
        "epoch_2.pth",
        "epoch_3.pth",
    ]
    assert may_go(tmp_path, "--keep-last", "2") == [
        "epoch_0.pth",
        "epoch_1.pth",
        "epoch_2.pth",
    ]
    assert may_go(tmp_path, "--keep-last", "5") == []
    assert may_go(tmp_path, "--keep-last", "100") == []


def test_counts_are_numbers_and_not_texts(tmp_path: Path) -> None:
    trainer(tmp_path, [9_000, 9_900, 10_000], [3.0, 2.0, 1.0])

    assert may_go(tmp_path, "--keep-last", "2") == ["checkpoint-9000"]


@pytest.mark.parametrize(
    ("word", "content", "kind"),
    [
        ("checkpoint", {"epoch": 1, "global_step": 250}, "epoch"),
        ("ckpt", {"epoch": 1}, "epoch"),
        ("checkpoint", {"epoch": 250, "global_step": 1}, "step"),
        ("checkpoint", {"epoch": 1, "step": 1}, "step"),
        ("checkpoint", {}, "step"),
    ],
)
def test_a_number_is_what_the_files_record_under_it(
    word: str, content: dict[str, int], kind: str, tmp_path: Path
) -> None:
    for number in (0, 5, 10, 15):
        counts = {name: count * number for name, count in content.items()}
        torch.save({"w": torch.ones(2), **counts}, tmp_path / f"{word}_{number}.pt")

    rows = json.loads(ckpt("prune", tmp_path, "--json").out)["checkpoints"]
    assert [row["counts"] for row in rows] == [{kind: n} for n in (0, 5, 10, 15)]
    header = ckpt("prune", tmp_path, "--why").lines[0].split()
    assert header[1] == kind.upper()
    assert may_go(tmp_path, "--keep-every", "10") == [f"{word}_5.pt"]


def test_what_is_not_looked_at_has_no_bytes(tmp_path: Path) -> None:
    """Zero is a size, and the file has another one."""
    torch.save({"w": torch.ones(2)}, tmp_path / "best.pt")
    save(tmp_path / "step_1.pth", global_step=1)

    rows = json.loads(ckpt("prune", tmp_path, "--json").out)["checkpoints"]

    assert {Path(row["path"]).name: row["bytes"] for row in rows} == {
        "best.pt": None,
        "step_1.pth": (tmp_path / "step_1.pth").stat().st_size,
    }


def test_every_nth_stays(tmp_path: Path) -> None:
    for step in (500, 1000, 1500, 2000, 2500):
        save(tmp_path / f"step_{step}.pth", global_step=step, at=OLD + step)

    assert may_go(tmp_path, "--keep-every", "1000") == ["step_500.pth", "step_1500.pth"]
    done = ckpt("prune", tmp_path, "--keep-every", "999")
    assert b"no count is a multiple of 999" in done.err


def test_steps_begin_anew_with_each_epoch(tmp_path: Path) -> None:
    for index, (epoch, step) in enumerate([(0, 100), (0, 900), (1, 100), (1, 200)]):
        save(
            tmp_path / f"epoch_{epoch}_step_{step}.pth",
            epoch=epoch,
            step=step,
            at=OLD + index,
        )

    assert may_go(tmp_path) == [
        "epoch_0_step_100.pth",
        "epoch_0_step_900.pth",
        "epoch_1_step_100.pth",
    ]


def test_parts_of_an_epoch_may_be_counted_on(tmp_path: Path) -> None:
    for number in ("0.9", "1.1", "1.9", "1.10", "1.11"):
        save(tmp_path / f"epoch_{number}.pth")

    assert sorted(may_go(tmp_path)) == [
        "epoch_0.9.pth",
        "epoch_1.1.pth",
        "epoch_1.10.pth",
    ]


def test_equal_steps_stay_together(tmp_path: Path) -> None:
    for epoch, loss in [(1, 0.5), (2, 0.25), (2, 0.75)]:
        save(tmp_path / f"epoch={epoch}-val_loss={loss}.ckpt", epoch=epoch)

    assert may_go(tmp_path) == ["epoch=1-val_loss=0.5.ckpt"]


# --- the best -------------------------------------------------------------------------


def test_the_best_stays(tmp_path: Path) -> None:
    epochs(tmp_path, 4, [0.5, 0.25, 0.3, 0.4])

    assert may_go(tmp_path, "--keep-best", "val_loss") == ["epoch_0.pth", "epoch_2.pth"]
    assert may_go(tmp_path, "--keep-best", "val_loss:max") == [
        "epoch_1.pth",
        "epoch_2.pth",
    ]
    assert (
        reasons(tmp_path, "--keep-best", "val_loss")["epoch_1.pth"]
        == "lowest val_loss: 0.25"
    )


def test_all_that_are_equally_good_stay(tmp_path: Path) -> None:
    epochs(tmp_path, 4, [0.5, 0.25, 0.25, 0.4])

    assert may_go(tmp_path, "--keep-best", "val_loss") == ["epoch_0.pth"]


@pytest.mark.parametrize("model", ["w2v", "res2net", "conv2d"])
def test_a_digit_in_the_word_of_a_model_hides_no_series(
    model: str, tmp_path: Path
) -> None:
    for number in range(1, 4):
        content = {"w": torch.ones(2), "step": number}
        torch.save(content, tmp_path / f"{model}_{number}.pt")

    may = may_go(tmp_path, "--keep-last", "1")

    assert may == [f"{model}_1.pt", f"{model}_2.pt"]


@pytest.mark.parametrize(
    "number",
    [float("nan"), torch.tensor(float("nan")), np.float64("nan"), np.float32("nan")],
)
def test_nan_is_never_the_best(tmp_path: Path, number: Any) -> None:
    epochs(tmp_path, 4, [number, 0.5, 0.75, 1.0])

    assert may_go(tmp_path, "--keep-best", "val_loss") == ["epoch_0.pth", "epoch_2.pth"]


@pytest.mark.parametrize("way", ["min", "max"])
def test_beside_infinity_the_best_number_stays(tmp_path: Path, way: str) -> None:
    sign = -1 if way == "max" else 1
    epochs(
        tmp_path,
        5,
        [sign * number for number in (0.5, float("-inf"), 0.3, float("inf"), 0.4)],
    )
    best = f"val_loss:{way}"

    assert may_go(tmp_path, "--keep-best", best) == ["epoch_0.pth", "epoch_3.pth"]
    assert "finite val_loss: " in reasons(tmp_path, "--keep-best", best)["epoch_2.pth"]


def test_nothing_goes_where_every_metric_is_nan(tmp_path: Path) -> None:
    epochs(tmp_path, 3, [float("nan")] * 3)

    assert may_go(tmp_path, "--keep-best", "val_loss") == []


@pytest.mark.parametrize(
    "number", [0.25, 1, torch.tensor(0.25), np.float64(0.25), torch.tensor([0.25])]
)
def test_metrics_of_many_types(tmp_path: Path, number: Any) -> None:
    epochs(tmp_path, 3, [2.0, number, 1.5])

    assert may_go(tmp_path, "--keep-best", "val_loss") == ["epoch_0.pth"]


def test_what_records_no_metric_may_be_the_best(tmp_path: Path) -> None:
    epochs(tmp_path, 4, [0.5, 0.25, 0.3, 0.4])
    save(tmp_path / "epoch_0.pth", epoch=0)
    save(tmp_path / "epoch_2.pth", epoch=2, val_loss="0.1", at=OLD + 2)

    assert may_go(tmp_path, "--keep-best", "val_loss") == []
    assert (
        "records no val_loss"
        in reasons(tmp_path, "--keep-best", "val_loss")["epoch_0.pth"]
    )


def test_a_metric_that_nothing_records(tmp_path: Path) -> None:
    epochs(tmp_path, 3, [1.0, 2.0, 3.0])

    line = refused(tmp_path, "--keep-best", "val_los:min")
    assert line.endswith(
        "none of 3 saves records one number under val_los (did you mean val_loss?)"
    )


@pytest.mark.parametrize("name", ["score", "x", "loss_acc"])
def test_the_direction_is_never_guessed(tmp_path: Path, name: str) -> None:
    line = refused(epochs(tmp_path), "--keep-best", name)
    assert line == (
        f"ckpt: --keep-best {name}: is the lowest or the highest the best? "
        f"({name}:min or {name}:max)"
    )


def test_the_metric_of_a_name(tmp_path: Path) -> None:
    for index, (epoch, loss) in enumerate(
        [(0, "1e-3"), (1, "0.0005"), (2, "-0.1"), (3, "0.2")]
    ):
        save(
            tmp_path / f"epoch={epoch}-val_loss={loss}.ckpt",
            epoch=epoch,
            at=OLD + index,
        )

    assert may_go(tmp_path, "--keep-best", "val_loss") == [
        "epoch=0-val_loss=1e-3.ckpt",
        "epoch=1-val_loss=0.0005.ckpt",
    ]


def test_a_metric_inside_counts_before_a_rounded_one(tmp_path: Path) -> None:
    for epoch, loss in enumerate([0.124, 0.116, 0.2]):
        save(
            tmp_path / f"epoch={epoch}-val_loss={loss:.2f}.ckpt",
            epoch=epoch,
            val_loss=loss,
            at=OLD + epoch,
        )

    assert may_go(tmp_path, "--keep-best", "val_loss") == ["epoch=0-val_loss=0.12.ckpt"]


def test_two_values_of_one_name_are_no_metric(tmp_path: Path) -> None:
    for epoch in range(3):
        save(
            tmp_path / f"epoch_{epoch}.pth",
            epoch=epoch,
            a={"acc": 1.0 - epoch},
            b={"acc": epoch},
            at=OLD + epoch,
        )

    assert "records one number under acc" in refused(tmp_path, "--keep-best", "acc")
    assert may_go(tmp_path, "--keep-best", "a.acc") == ["epoch_1.pth"]


# --- what real programs write ---------------------------------------------------------


def test_lightning(tmp_path: Path) -> None:
    lightning(tmp_path, [0.5, 0.3, 0.4, 0.2, 0.6, 0.7])
    (tmp_path / "last.ckpt").symlink_to("epoch=4-step=500.ckpt")
    shutil.copy(tmp_path / "epoch=5-step=600.ckpt", tmp_path / "last-v1.ckpt")

    found = reasons(tmp_path, "--keep-best", "val_loss")
    assert (
        found["epoch=3-step=400.ckpt"]
        == "lowest val_loss: 0.2; epoch=5-step=600.ckpt calls it the best"
    )
    assert found["epoch=4-step=500.ckpt"] == "last.ckpt links to it"
    assert found["epoch=5-step=600.ckpt"] == "the newest"
    assert may_go(tmp_path) == [
        f"epoch={n}-step={100 * n + 100}.ckpt" for n in range(3)
    ]


def test_the_trainer(tmp_path: Path) -> None:
    trainer(tmp_path, [500, 1000, 1500, 2000], [1.5, 1.1, 1.2, 1.3])
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")

    found = reasons(tmp_path)
    assert found["checkpoint-1000"] == "checkpoint-2000 calls it the best"
    assert may_go(tmp_path) == ["checkpoint-500", "checkpoint-1500"]
    assert found["model.safetensors"] == "no epoch or step in its name"
    best = reasons(tmp_path, "--keep-best", "eval_loss")
    assert (
        best["checkpoint-1000"]
        == "lowest eval_loss: 1.1; checkpoint-2000 calls it the best"
    )


@pytest.mark.parametrize(
    "number", [10**400, float("nan"), float("inf"), -1, True, "3", [3]]
)
def test_numbers_of_the_trainer_that_count_nothing(tmp_path: Path, number: Any) -> None:
    trainer(tmp_path, [500, 1000, 1500], [0.5, 0.7, 0.9])
    path = tmp_path / "checkpoint-500" / "trainer_state.json"
    state = json.loads(path.read_text())
    row = {"step": number, "eval_loss": number}
    path.write_text(
        json.dumps(
            state | {"global_step": number, "epoch": number, "log_history": [row]}
        )
    )
    written_at(path.parent, OLD)

    assert may_go(tmp_path, "--keep-last", "2") == []  # the newest calls it the best
    assert "checkpoint-500" not in may_go(tmp_path, "--keep-best", "eval_loss")


def test_the_trainer_was_killed_while_it_saved(tmp_path: Path) -> None:
    """The newest folder is there, and lacks the file that is written last."""
    trainer(tmp_path, [500, 1000, 1500], [1.5, 1.1, 1.2])
    os.unlink(tmp_path / "checkpoint-1500" / "trainer_state.json")

    found = reasons(tmp_path, "--keep-last", "1")
    assert found["checkpoint-1500"].startswith("unfinished: no trainer_state.json")
    assert found["checkpoint-1000"].startswith("the newest")
    assert may_go(tmp_path) == ["checkpoint-500"]


def test_a_cut_optimizer_makes_a_folder_damaged(tmp_path: Path) -> None:
    trainer(tmp_path, [500, 1000], [1.5, 1.1])
    cut(tmp_path / "checkpoint-1000" / "optimizer.pt")

    assert may_go(tmp_path) == []
    assert reasons(tmp_path)["checkpoint-1000"].startswith(
        "damaged: optimizer.pt was not read: cut off"
    )


def test_deepspeed_and_its_latest(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(
            tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt",
            global_steps=step,
            module={"w": torch.ones(2)},
        )
        written_at(tmp_path / f"global_step{step}", OLD + step)
    (tmp_path / "latest").write_text("global_step20")

    assert may_go(tmp_path) == ["global_step10"]
    assert reasons(tmp_path)["global_step20"] == "latest names it"


def test_megatron_and_detectron(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(
            tmp_path / f"iter_{step:07}" / "mp_rank_00" / "model_optim_rng.pt",
            iteration=step,
        )
        written_at(tmp_path / f"iter_{step:07}", OLD + step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20\n")
    assert may_go(tmp_path) == ["iter_0000010"]

    other = tmp_path / "detectron"
    for step in (4999, 9999, 14999):
        save(other / f"model_{step:07}.pth", iteration=step, at=OLD + step)
    save(other / "model_final.pth", iteration=14999)
    (other / "last_checkpoint").write_text("model_0009999.pth")
    assert may_go(other) == ["model_0004999.pth"]


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("epoch {}.pth", "best.txt", "epoch 1.pth\n"),
        ("epoch_{}.pth", "best.txt", "epoch_1\n"),
        ("epoch={},loss=0.5.ckpt", "best", "epoch=1,loss=0.5.ckpt"),
        ("epoch_{}.pth", "best_model.json", r'{"path": "runs\\a\\epoch_1.pth"}'),
        ("model-{}.pth", "checkpoint", 'model_checkpoint_path: "model-1"'),
    ],
)
def test_what_a_text_names_stays_however_it_spells_it(
    tmp_path: Path, name: str, file: str, text: str
) -> None:
    epochs(tmp_path, 4, name=name)
    (tmp_path / file).write_text(text)

    assert may_go(tmp_path) == [name.format(0), name.format(2)]
    assert reasons(tmp_path)[name.format(1)] == f"{file} names it"


@pytest.mark.needs("dcp")
@pytest.mark.filterwarnings("ignore")
def test_distributed_checkpoints(tmp_path: Path, samples: Path) -> None:
    for step in (1, 2, 3):
        dcp.save(
            {"model": {"w": torch.ones(3)}, "step": step},
            checkpoint_id=tmp_path / f"step-{step}",
            no_dist=True,
        )
        written_at(tmp_path / f"step-{step}", OLD + step)
    shutil.copytree(samples / "dcp_interrupted", tmp_path / "step-4")
    written_at(tmp_path / "step-4", OLD + 4)

    assert may_go(tmp_path) == ["step-1", "step-2"]
    found = reasons(tmp_path)
    assert (
        found["step-3"] == "the newest" and "nothing newer is whole" in found["step-4"]
    )


def test_folders_of_several_files(tmp_path: Path) -> None:
    """Diffusers and many own scripts: a folder for each step that no reader takes for
    one checkpoint.
    """
    for step in (100, 200, 300):
        folder = tmp_path / f"checkpoint-{step}"
        save(folder / "model.pth")
        save(folder / "optimizer.pth")
        (folder / "notes.txt").write_text("x")
        written_at(folder, OLD + step)
    assert may_go(tmp_path) == ["checkpoint-100", "checkpoint-200"]
    assert reasons(tmp_path)["checkpoint-100"] == "not needed; with 1 other file in it"

    cut(tmp_path / "checkpoint-300" / "optimizer.pth")
    assert may_go(tmp_path) == ["checkpoint-100"]
    assert reasons(tmp_path)["checkpoint-300"].startswith(
        "damaged: optimizer.pth: cut off"
    )


def test_folders_of_results_are_no_saves(tmp_path: Path) -> None:
    """Programs put pictures and predictions of an epoch into folders that are called as
    the saves are.
    """
    for epoch in (1, 2, 3):
        folder = tmp_path / f"epoch_{epoch}"
        folder.mkdir()
        (folder / "a.png").write_bytes(b"\x89PNG")
        (folder / "predictions.pkl").write_bytes(pickle.dumps([1, 2, 3]))
        save(tmp_path / f"epoch_{epoch}.pth", at=OLD + epoch)
        written_at(folder, OLD + epoch)

    assert may_go(tmp_path) == ["epoch_1.pth", "epoch_2.pth"]
    assert reasons(tmp_path)["epoch_1"] == "no file of weights lies in this folder"


def test_folders_that_are_runs_of_their_own_stay(tmp_path: Path) -> None:
    for number in (1, 2):
        epochs(tmp_path / f"round_{number}" / "checkpoints", 2)
        epochs(tmp_path / f"iter_{number}", 2)
        save(tmp_path / f"step_{number}.pth", at=OLD + number)

    assert may_go(tmp_path) == ["step_1.pth"]
    assert reasons(tmp_path)["round_1"] == "it holds several saves, as a run of its own"


def test_a_step_of_deepspeed_in_one_of_the_trainer(tmp_path: Path) -> None:
    trainer(tmp_path, [500, 1000], [2.0, 1.0])
    for step in (500, 1000):
        folder = tmp_path / f"checkpoint-{step}"
        save(
            folder / f"global_step{step}" / "mp_rank_00_model_states.pt",
            module={"w": torch.ones(2)},
        )
        (folder / "latest").write_text(f"global_step{step}")
        written_at(folder, OLD + step)

    assert may_go(tmp_path) == ["checkpoint-500"]


def test_a_generator_and_its_discriminator_stay_together(tmp_path: Path) -> None:
    for step in (1000, 2000, 3000):
        save(tmp_path / f"G_step_{step}.pth", at=OLD + step, loss=step % 1999)
        save(tmp_path / f"D_step_{step}.pth", at=OLD + step)
    assert may_go(tmp_path) == [
        "D_step_1000.pth",
        "D_step_2000.pth",
        "G_step_1000.pth",
        "G_step_2000.pth",
    ]

    found = reasons(tmp_path, "--keep-best", "loss")
    assert found["D_step_2000.pth"] == "saved with G_step_2000.pth, which stays"
    assert may_go(tmp_path, "--keep-best", "loss") == [
        "D_step_1000.pth",
        "G_step_1000.pth",
    ]

    cut(tmp_path / "G_step_3000.pth")  # the last pair that is whole is needed
    assert may_go(tmp_path) == ["D_step_1000.pth", "G_step_1000.pth"]


def test_weights_and_optimizer_beside(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_file({"w": torch.ones(2)}, tmp_path / f"step_{step}.safetensors")
        save(tmp_path / f"step_{step}_optimizer.pt")
        (tmp_path / f"step_{step}.json").write_text("{}")
        for path in tmp_path.iterdir():
            os.utime(path, (OLD, OLD))

    assert may_go(tmp_path) == [
        "step_1.safetensors",
        "step_2.safetensors",
        "step_1_optimizer.pt",
        "step_2_optimizer.pt",
    ]


# --- damage ---------------------------------------------------------------------------


def cut(path: Path, at: int = OLD + 9_000_000) -> None:
    """Cut a file in half, as a full disk does."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    os.utime(path, (at, at))


def flip(path: Path) -> None:
    """Change one byte of the values, which only a checksum shows."""
    data = bytearray(path.read_bytes())
    place = data.index(np.float32(7.0).tobytes())
    data[place] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_cut_newest_is_not_counted(tmp_path: Path) -> None:
    epochs(tmp_path)
    cut(tmp_path / "epoch_4.pth")

    assert may_go(tmp_path) == ["epoch_0.pth", "epoch_1.pth", "epoch_2.pth"]
    assert may_go(tmp_path, "--keep-last", "2") == ["epoch_0.pth", "epoch_1.pth"]
    assert "nothing newer is whole" in reasons(tmp_path)["epoch_4.pth"]


def test_an_empty_newest_is_not_counted(tmp_path: Path) -> None:
    epochs(tmp_path, 3)
    (tmp_path / "epoch_3.pth").touch()

    assert may_go(tmp_path) == ["epoch_0.pth", "epoch_1.pth"]


def test_a_changed_byte_of_what_stays_is_seen(tmp_path: Path) -> None:
    epochs(tmp_path)
    flip(tmp_path / "epoch_4.pth")

    assert may_go(tmp_path) == ["epoch_0.pth", "epoch_1.pth", "epoch_2.pth"]
    assert may_go(tmp_path, "--quick") == [
        "epoch_0.pth",
        "epoch_1.pth",
        "epoch_2.pth",
        "epoch_3.pth",
    ]


def test_a_damaged_best_makes_room_for_the_next(tmp_path: Path) -> None:
    epochs(tmp_path, 4, [0.1, 0.2, 0.3, 0.4])
    flip(tmp_path / "epoch_0.pth")

    found = reasons(tmp_path, "--keep-best", "val_loss")
    assert found["epoch_1.pth"] == "lowest val_loss: 0.2"
    assert (
        found["epoch_0.pth"].startswith("damaged:")
        and "a newer one is whole" in found["epoch_0.pth"]
    )


def test_a_damaged_one_of_the_newest_count_stays(tmp_path: Path) -> None:
    """The whole one beside it is not newer."""
    epochs(tmp_path, 4)
    shutil.copy2(tmp_path / "epoch_3.pth", tmp_path / "epoch_03.pth")
    cut(tmp_path / "epoch_03.pth", OLD + 3)

    assert "epoch_03.pth" not in may_go(tmp_path)
    assert reasons(tmp_path)["epoch_03.pth"].endswith("nothing newer is whole")


def test_a_callback_of_another_metric_is_not_asked(tmp_path: Path) -> None:
    """Each callback of Lightning has a score, of the metric that it monitors."""
    other = {"monitor": "val_loss", "current_score": torch.tensor(0.5)}
    for epoch, score in enumerate([0.9, 0.7, 0.8]):
        stopping = {"monitor": "acc", "current_score": torch.tensor(score)}
        save(
            tmp_path / f"epoch={epoch}.ckpt",
            at=OLD + epoch,
            epoch=epoch,
            callbacks={"ModelCheckpoint": other, "EarlyStopping": stopping},
        )

    found = reasons(tmp_path, "--keep-best", "acc:max")
    assert found["epoch=0.ckpt"] == "highest acc: 0.9"
    assert may_go(tmp_path, "--keep-best", "acc:max") == ["epoch=1.ckpt"]


def test_an_old_damaged_one_may_go(tmp_path: Path) -> None:
    epochs(tmp_path, 4)
    cut(tmp_path / "epoch_1.pth", OLD + 1)

    assert may_go(tmp_path, "--keep-last", "3") == ["epoch_1.pth"]


def test_one_that_is_being_written_stays(tmp_path: Path) -> None:
    """A slot may be written anew while its name is old."""
    epochs(tmp_path, 4)
    path = tmp_path / "epoch_1.pth"
    path.write_bytes(path.read_bytes()[:300])

    assert may_go(tmp_path, "--keep-last", "2") == ["epoch_0.pth"]
    assert "written in the last 10 minutes" in reasons(tmp_path)["epoch_1.pth"]


def test_nothing_goes_where_nothing_is_whole(tmp_path: Path) -> None:
    epochs(tmp_path, 3)
    for path in tmp_path.iterdir():
        cut(path, OLD)

    assert may_go(tmp_path) == []


def test_the_only_whole_one_stays(tmp_path: Path) -> None:
    epochs(tmp_path, 3)
    for number in (1, 2):
        cut(tmp_path / f"epoch_{number}.pth", OLD)

    assert may_go(tmp_path) == []
    assert reasons(tmp_path)["epoch_0.pth"] == "the newest"


def test_what_cannot_be_read_is_no_damage(tmp_path: Path) -> None:
    epochs(tmp_path, 4)
    stand_in = (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:"
        + b"0" * 64
        + b"\nsize 12345\n"
    )
    (tmp_path / "epoch_1.pth").write_bytes(stand_in)
    (tmp_path / "epoch_9.pth").write_bytes(stand_in)
    for path in tmp_path.iterdir():
        os.utime(path, (OLD, OLD))

    assert may_go(tmp_path) == ["epoch_0.pth", "epoch_2.pth"]
    assert reasons(tmp_path)["epoch_1.pth"].startswith("not read:")
    assert may_go(tmp_path, "--limit", "pickle-bytes=10") == []


# --- what is no series ----------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ["resnet18.pth", "resnet34.pth", "resnet50.pth"],
        ["fold_0.pth", "fold_1.pth", "fold_2.pth"],
        ["ckpt_1b.pth", "ckpt_7b.pth", "ckpt_13b.pth"],
        ["checkpoint-1-of-2.pt", "checkpoint-2-of-2.pt"],
        ["step_5-00001-of-00002.bin", "step_5-00002-of-00002.bin"],
        ["best_epoch_3.pth", "best_epoch_9.pth"],
        ["best.pth", "last.pth", "final.pth"],
        ["mp_rank_00.pt", "mp_rank_01.pt"],
        ["tmp-epoch_1.pth", "tmp-epoch_2.pth"],
        ["model_1000.pth", "model_2000.pth"],
        ["0.pth", "1.pth", "2.pth"],
        ["step10k.pth", "step20k.pth"],
    ],
)
def test_other_numbers_are_no_series(tmp_path: Path, names: list[str]) -> None:
    """They record nothing, and one of them does not replace another."""
    for name in names:
        save(tmp_path / name)
    epochs(tmp_path, 2)

    assert may_go(tmp_path) == ["epoch_0.pth"]
    found = reasons(tmp_path)
    assert all(found[name] for name in names)


def test_folds_are_series_of_their_own(tmp_path: Path) -> None:
    for fold in (1, 2):
        for epoch in (1, 2, 3):
            loss = abs(epoch - fold)
            save(
                tmp_path / f"fold={fold}-epoch={epoch}.ckpt",
                epoch=epoch,
                val_loss=loss,
                at=OLD + epoch,
            )

    assert may_go(tmp_path, "--keep-best", "val_loss") == [
        "fold=1-epoch=2.ckpt",
        "fold=2-epoch=1.ckpt",
    ]


def test_files_of_ranks_are_no_series(tmp_path: Path) -> None:
    for rank in range(4):
        save(tmp_path / f"checkpoint_{rank}.pt", step=1000, epoch=1)

    assert may_go(tmp_path) == []
    assert b"names and recorded counts disagree" in ckpt("prune", tmp_path).err


def test_slots_in_turn_are_no_series(tmp_path: Path) -> None:
    for slot, step in enumerate((300, 400, 200)):
        save(tmp_path / f"ckpt_{slot}.pt", step=step)

    assert may_go(tmp_path) == []


def test_numbers_without_a_word_count_when_the_files_say_so(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path / f"{step}.pth", global_step=step, at=OLD + step)

    assert may_go(tmp_path) == ["100.pth", "200.pth"]


def test_an_old_run_in_the_same_folder(tmp_path: Path) -> None:
    """A new run counts from 0 again, beside saves of an old one with higher counts."""
    for step in (1000, 2000, 3000):
        save(tmp_path / f"step_{step}.pth", step=step, at=OLD + step)
    for step in (10, 20, 30):
        save(tmp_path / f"step_{step}.pth", step=step, at=OLD + 10_000 + step)

    assert may_go(tmp_path, "--keep-last", "2") == ["step_10.pth", "step_1000.pth"]
    assert b"Are two runs in one folder?" in ckpt("prune", tmp_path).err


def test_links_stay(tmp_path: Path) -> None:
    epochs(tmp_path / "run")
    store = save(tmp_path / "store" / "x.pth", epoch=1)
    os.unlink(tmp_path / "run" / "epoch_1.pth")
    (tmp_path / "run" / "epoch_1.pth").symlink_to(store)
    (tmp_path / "good").symlink_to("run/epoch_2.pth")

    assert may_go(tmp_path / "run") == ["epoch_0.pth", "epoch_3.pth"]
    found = reasons(tmp_path / "run")
    assert found["epoch_1.pth"] == "a link, which stays"
    assert found["epoch_2.pth"] == "../good links to it"


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ("epoch_1.pth", True),
        ("run/epoch_1.pth\n", True),
        ("/data/run/epoch_1", True),
        ("gone/epoch_1.pth", True),  # the folder may have been renamed
        ("also/epoch_1.pth", True),
        ("other/epoch_1.pth", False),
        ("./epoch_1.pth", False),
        ("other/epoch_1.pth run/epoch_1.pth", True),
        ("epoch_10.pth", False),
    ],
)
def test_a_text_beside_the_folder_names_a_save(
    tmp_path: Path, text: str, is_named: bool
) -> None:
    epochs(tmp_path / "run", 4)
    (tmp_path / "other").mkdir()
    (tmp_path / "also").symlink_to("run")
    (tmp_path / "latest").write_text(text)

    named = {"epoch_1.pth"} if is_named else set()
    assert (
        set(may_go(tmp_path / "run"))
        == {"epoch_0.pth", "epoch_1.pth", "epoch_2.pth"} - named
    )
    assert (
        reasons(tmp_path / "run")["epoch_1.pth"] == "../latest names it"
    ) is is_named


def test_a_text_of_another_name_beside_the_folder_says_nothing(tmp_path: Path) -> None:
    epochs(tmp_path / "run", 4)
    (tmp_path / "notes.txt").write_text("epoch_1.pth")

    assert "epoch_1.pth" in may_go(tmp_path / "run")


def test_hard_links_are_said(tmp_path: Path) -> None:
    epochs(tmp_path, 2)
    os.link(tmp_path / "epoch_0.pth", tmp_path / "last.pth")

    assert (
        reasons(tmp_path)["epoch_0.pth"]
        == "not needed; has 2 hard links, so its bytes stay on the disk"
    )


# --- the folder -----------------------------------------------------------------------


def test_a_folder_that_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = epochs(tmp_path / "out" / "version_3" / "checkpoints")

    assert refused(tmp_path / "nothing").endswith("no such file")
    assert "not the folder of a run" in refused(run / "epoch_1.pth")
    assert "not the folder of a run" in refused("/")
    assert "(name out/version_3/checkpoints)" in refused("out", cwd=tmp_path)
    epochs(tmp_path / "out" / "version_4" / "checkpoints")
    assert "name one of out/version_3/checkpoints, out/version_4" in refused(
        "out", cwd=tmp_path
    )
    assert "folders of this machine" in refused("https://example.org/run/")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no save with an epoch or step" in refused(empty)
    done = ckpt("prune", run, HOME=str(run))
    assert done.code == 2 and b"not the folder of a run" in done.err


def test_this_folder(tmp_path: Path) -> None:
    epochs(tmp_path, 2)

    assert ckpt("prune", ".", cwd=tmp_path).lines == ["./epoch_0.pth"]


def test_a_cache_of_the_hub_is_refused(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    epochs(snapshot)

    assert "Hugging Face cache" in refused(snapshot)
    assert "Hugging Face cache" in refused(tmp_path / "models--org--name")


@pytest.mark.needs("dcp")
def test_a_checkpoint_is_no_run(samples: Path) -> None:
    assert "no save with an epoch or step" in refused(samples / "dcp")


# --- what is printed ------------------------------------------------------------------


def test_a_terminal_shows_why(tmp_path: Path) -> None:
    lightning(tmp_path, [0.5, 0.3, 0.4])

    text = on_terminal(
        "prune", tmp_path, "--keep-best", "val_loss", columns=80, NO_COLOR="1"
    )
    lines = text.replace("\r", "").split("\n")
    assert lines[:7] == [
        "NAME                   EPOCH  STEP          WHY",
        "epoch=0-step=100.ckpt      0   100  may go  not needed",
        "epoch=1-step=200.ckpt      1   200  stays   lowest val_loss: 0.3;",
        (
            "                                            epoch=2-step=300.ckpt calls "
            "it the"
        ),
        "                                            best",
        "epoch=2-step=300.ckpt      2   300  stays   the newest",
        "… no room for SIZE (--json, or a wider screen)",
    ]
    assert "1 of 3 checkpoints may go, 2.36 KiB (--delete removes them)" in text
    assert all(len(line) <= 80 for line in lines)


def test_names_that_no_line_can_hold(tmp_path: Path) -> None:
    epochs(tmp_path, 2)
    (tmp_path / "epoch_0.pth").rename(tmp_path / "a\nb_epoch_0.pth")
    (tmp_path / "epoch_1.pth").rename(tmp_path / "a\nb_epoch_1.pth")
    odd = os.fsencode(tmp_path) + b"/\xff_epoch_"
    for epoch in (0, 1):
        os.rename(
            save(tmp_path / "x", epoch=epoch, at=OLD + epoch),
            odd + str(epoch).encode() + b".pth",
        )

    assert "-0 prints any name" in refused(tmp_path)
    done = ckpt("prune", tmp_path, "-0")
    assert sorted(done.out.split(b"\0")) == sorted(
        [b"", os.fsencode(tmp_path) + b"/a\nb_epoch_0.pth", odd + b"0.pth"]
    )
    assert ckpt("prune", tmp_path, "--delete", "--yes").code == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    assert ckpt("prune", epochs(tmp_path), "-q") == Done(0, b"", b"")


def test_the_document(tmp_path: Path) -> None:
    epochs(tmp_path, 2, [float("nan"), 1.0])
    document = json.loads(
        ckpt("prune", tmp_path, "--keep-best", "val_loss", "--json").out
    )

    assert document["may_go"] == [str(tmp_path / "epoch_0.pth")]
    row = document["checkpoints"][0]
    assert row["series"] == "epoch_*.pth" and row["counts"] == {"epoch": 0}
    assert (
        row["metrics"] == [{"name": "val_loss", "value": None}]
        and row["state"] == "whole"
    )
    assert (
        document["bytes"] == row["bytes"] == (tmp_path / "epoch_0.pth").stat().st_size
    )


def test_python(tmp_path: Path) -> None:
    epochs(tmp_path, 3)
    report = library.prune(tmp_path, keep_last=2)

    assert [os.path.basename(row.path) for row in report.may_go] == ["epoch_0.pth"]
    assert [row.stays for row in report] == [
        False,
        True,
        True,
    ] and report.exit_code == 0
    assert repr(report[0]).endswith("epoch_0.pth: may go>")
    with pytest.raises(UsageError, match="not a number from 1"):
        library.prune(tmp_path, keep_last=0)
    assert library.prune(tmp_path, keep_last=2, delete=True)[0].is_deleted
    assert sorted(os.listdir(tmp_path)) == ["epoch_1.pth", "epoch_2.pth"]


def test_many_saves(tmp_path: Path) -> None:
    """As many as processes read."""
    epochs(tmp_path, 64)

    assert len(may_go(tmp_path, "--keep-last", "3")) == 61


# --- names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "series", "place"),
    [
        ("epoch=3-step=100.ckpt", "epoch=*-step=*.ckpt", (("epoch", 3), ("step", 100))),
        ("step=100-epoch=3.ckpt", "step=*-epoch=*.ckpt", (("epoch", 3), ("step", 100))),
        ("checkpoint-500", "checkpoint-*", (("step", 500),)),
        ("resnet50_epoch_3.pth.tar", "resnet50_epoch_*.pth.tar", (("epoch", 3),)),
        ("RFB-Epoch-100-Loss-2.71.pth", "RFB-Epoch-*-Loss-#.pth", (("epoch", 100),)),
        ("lr0.05_step100.pt", "lr0.05_step*.pt", (("step", 100),)),
        ("v1.5-step=7.ckpt", "v1.5-step=*.ckpt", (("step", 7),)),
        ("global_step100", "global_step*", (("step", 100),)),
        ("epoch_1.10.pt", "epoch_*.**.pt", (("epoch", 1.1),)),
        ("epoch10.pt", "epoch*.pt", (("epoch", 10),)),
        ("epoch3step7.pt", "epoch*step*.pt", (("epoch", 3), ("step", 7))),
        (
            "epoch=3-step=100-v1.ckpt",
            "epoch=*-step=*-v1.ckpt",
            (("epoch", 3), ("step", 100)),
        ),
        ("step_1700000000123.pt", "step_1700000000123.pt", ()),
        ("epoch_1e5.pt", "epoch_1e5.pt", ()),
        ("best.pth", "best.pth", ()),
        ("", "", ()),
    ],
)
def test_names_are_taken_apart(
    name: str, series: str, place: tuple[tuple[str, float], ...]
) -> None:
    parsed = parse_name(name)

    assert (parsed.series, parsed.place) == (series, place)


def test_many_that_stay_for_one_reason_are_a_few_rows_and_a_pipe_has_a_hint(
    tmp_path: Path,
) -> None:
    for number in range(1, 31):
        torch.save({"update": number}, tmp_path / f"ppo_{number:06}.pt")

    text = on_terminal("prune", tmp_path, columns=100, NO_COLOR="1")
    done = ckpt("prune", tmp_path)

    assert "… 24 more stay for the same reason (--json)" in text
    assert "ppo_000003.pt" in text and "ppo_000004.pt" not in text
    assert "none of 30 checkpoints may go (--why says why)" in done.err.decode()


def test_what_may_go_is_always_named(tmp_path: Path) -> None:
    epochs(tmp_path, 30)

    text = on_terminal("prune", tmp_path, columns=100, NO_COLOR="1")

    assert all(f"epoch_{number}.pth" in text for number in range(30))


def test_values_with_commas_are_told_to_be_named_one_by_one(tmp_path: Path) -> None:
    for step in (1, 2):
        torch.save({"w": torch.ones(2), "loss": 1.0}, tmp_path / f"step_{step}.pth")
    done = ckpt("prune", ".", "--keep-best", "loss:min,loss:max", cwd=tmp_path)
    assert done.code == 2
    assert done.complaints[-1].endswith(
        "(one value at a time: --keep-best is repeatable)"
    )

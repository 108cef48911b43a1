"""A folder with one save in parts, the counters of a run, and averages that a file does
not have.
"""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered
from inside import folder_of
from torch import Tensor, nn

pytestmark = oracle.QUIET

STEP = 120_000


def weights() -> dict[str, Tensor]:
    return {
        "pos_embed": torch.randn(1, 5, 8),
        "in_blocks.0.attn.qkv.weight": torch.randn(24, 8),
        "in_blocks.0.attn.proj.weight": torch.randn(8, 8),
        "out.weight": torch.randn(4, 8),
    }


def optimizer_state(state: dict[str, Tensor]) -> dict[str, object]:
    """The state of an Adam that took 120,000 steps."""
    parameters = [nn.Parameter(value.clone()) for value in state.values()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = optimizer.state_dict()
    for row in saved["state"].values():
        row["step"] = torch.tensor(float(STEP))
    return saved


def write_parts(folder: Path) -> Path:
    """Write a folder as U-ViT and DiM save it: a file for each object."""
    folder.mkdir()
    state = weights()
    torch.save(state, folder / "nnet.pth")
    torch.save(
        {name: row * 0.9 for name, row in state.items()}, folder / "nnet_ema.pth"
    )
    torch.save(optimizer_state(state), folder / "optimizer.pth")
    torch.save(
        {"last_epoch": STEP, "_step_count": STEP + 1}, folder / "lr_scheduler.pth"
    )
    torch.save(STEP, folder / "step.pth")
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "IsADirectoryError: [Errno 21] Is a directory: '120000.ckpt'",
        "KeyError: 'state_dict'",
        "which file has the ema weights?",
        "how do I resume from this folder?",
    ],
)
def test_each_file_of_a_folder_is_named(text: str, tmp_path: Path) -> None:
    found = Answered(text, write_parts(tmp_path / "120000.ckpt"))
    assert found.code == 0 and "one save in 5 parts" in found.said
    assert "nnet_ema.pth: by its name the running averages (EMA)" in found.said
    assert "optimizer.pth: the state of an optimizer after 120,000 steps" in found.said
    assert "lr_scheduler.pth: the state of a schedule" in found.said
    assert "step.pth: the number 120,000" in found.said
    assert "nnet_ema.pth is for samples and evaluation" in found.said
    assert "nnet.pth for training on. Both have the same names" in found.said
    (line,) = [line for line in found.commands if '/nnet.pth"' in line]
    with folder_of(tmp_path):
        assert set(eval(line)) == set(weights())


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (
            "No such file or directory: '/home/me/120000.ckpt/nnet_ema.pth'",
            "nnet_ema.pth",
        ),
        (
            (
                "ValueError: loaded state dict contains a parameter group that doesn't "
                "match the size of optimizer's group"
            ),
            "optimizer.pth",
        ),
        (
            (
                "RuntimeError: Error(s) in loading state_dict for UViT:\n\t"
                'Missing key(s) in state_dict: "head.weight". \n\t'
                'Unexpected key(s) in state_dict: "out.weight". '
            ),
            "nnet.pth",
        ),
    ],
)
def test_a_message_is_about_one_of_the_files(
    text: str, file: str, tmp_path: Path
) -> None:
    found = Answered(text, write_parts(tmp_path / "120000.ckpt"))
    assert f"The message is about {file}:" in found.said
    assert found.page.startswith(f"120000.ckpt/{file}:")


def test_a_file_that_the_folder_lacks(tmp_path: Path) -> None:
    text = "FileNotFoundError: No such file or directory: 'run/120000.ckpt/ema.pth'"
    found = Answered(text, write_parts(tmp_path / "120000.ckpt"))
    assert "ema.pth is not in this folder" in found.said
    assert "nnet_ema.pth: by its name the running averages" in found.said


def test_averages_with_names_of_their_own(tmp_path: Path) -> None:
    folder = write_parts(tmp_path / "120000.ckpt")
    other = {f"module.{name}": row for name, row in weights().items()}
    torch.save(other, folder / "nnet_ema.pth")
    found = Answered("which file has the ema weights?", folder)
    assert "nnet.pth for training on." in found.said
    assert "same names" not in found.said


def test_numbers_that_python_does_not_write_out(tmp_path: Path) -> None:
    folder = write_parts(tmp_path / "120000.ckpt")
    torch.save({"last_epoch": 10**5_000}, folder / "lr_scheduler.pth")
    torch.save(10**5_000, folder / "step.pth")
    torch.save(True, folder / "flag.pth")
    found = Answered("how do I resume from this folder?", folder)
    assert "lr_scheduler.pth: the state of a schedule." in found.said
    assert "step.pth: other" in found.said and "flag.pth: other" in found.said


def test_saves_of_a_run_are_no_parts(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for epoch in (1, 2):
        torch.save(weights(), tmp_path / "runs" / f"epoch_{epoch}.pth")
    found = Answered("KeyError: 'state_dict'", tmp_path / "runs")
    assert "one save" not in found.said


# --- counters -------------------------------------------------------------------------


def write_state_of_kohya(folder: Path) -> Path:
    folder.mkdir()
    state = {"lora_unet_mid.lora_down.weight": torch.randn(4, 8)}
    torch.save(state, folder / "pytorch_model.bin")
    torch.save(optimizer_state(state), folder / "optimizer.bin")
    counts = {"current_epoch": 4, "current_step": 1200}
    (folder / "train_state.json").write_text(json.dumps(counts))
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "which step was this and how do I go on from it?",
        "how to resume lora training from the state folder?",
        "why does training start at epoch 1 again after --resume ?",
    ],
)
def test_kohya_records_its_step(text: str, tmp_path: Path) -> None:
    found = Answered(text, write_state_of_kohya(tmp_path / "last-000004-state"))
    assert "train_state.current_epoch is 4" in found.said
    assert "--resume last-000004-state" in found.said


def test_a_file_without_counters_says_so(tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "a.pth")
    found = Answered("which epoch is this checkpoint from?", tmp_path / "a.pth")
    assert "records no epoch, iteration or step" in found.said


# --- averages -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "where are the EMA weights in this checkpoint?",
        "FileNotFoundError: No such file or directory: 'ckpts/step000050000_ema.pth'",
    ],
)
def test_averages_that_were_not_saved(text: str, tmp_path: Path) -> None:
    state = {"state_dict": weights(), "global_step": 50_000}
    torch.save(state, tmp_path / "checkpoint_step000050000.pth")
    found = Answered(text, tmp_path / "checkpoint_step000050000.pth")
    assert "no running averages (EMA): state_dict has the weights" in found.said
    assert "kept in memory alone" in found.said


def test_averages_that_are_there(tmp_path: Path) -> None:
    torch.save({"model": weights(), "ema": weights()}, tmp_path / "a.pth")
    found = Answered("does this file have the EMA weights?", tmp_path / "a.pth")
    assert "running averages (EMA), in ema" in found.said
    assert set(torch.load(found.run("ckpt slim"))) == set(weights())

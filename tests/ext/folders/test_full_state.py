"""The folders of FULL_STATE_DICT: accelerate's and the Trainer's whole state dicts
under FSDP, one checkpoint each.
"""

from __future__ import annotations

from pathlib import Path

import folders
import oracle
import pytest
import torch
from inside import inside

import ckpt
from ckpt import formats

pytestmark = oracle.QUIET

MODEL = "pytorch_model_fsdp.bin"


def of_trainer(folder: Path) -> Path:
    """`checkpoint-2` of the Trainer: its own small files beside what accelerate
    saves.
    """
    folders.trainer(folder)
    (folder / "optimizer.pt").unlink()
    (folder / "model.safetensors").unlink()
    folders.full_state(folder)
    for name in ("scheduler.bin", "random_states_0.pkl", "random_states_1.pkl"):
        (folder / name).unlink()
    return folder


def lines(folder: Path) -> list[str]:
    return inside("inspect", folder.name, cwd=folder.parent).out.decode().splitlines()


def test_a_state_of_accelerate_is_one_checkpoint(tmp_path: Path) -> None:
    folder = folders.full_state(tmp_path / "c")
    net = torch.load(folder / MODEL)
    moments = torch.load(folder / "optimizer.bin")["state"]
    with ckpt.open(folder) as checkpoint:
        assert checkpoint.checkpoint.layout == "accelerate checkpoint"
        for name, tensor in net.items():
            assert torch.equal(checkpoint[name].torch(), tensor)
        for name, row in moments.items():
            for key, tensor in row.items():
                assert torch.equal(
                    checkpoint[f"optimizer.state.{name}.{key}"].torch(), tensor
                )
        assert set(checkpoint.checkpoint.parts) == {
            path.name for path in folder.iterdir()
        }
    assert any("6 of 6 parameters have state" in line for line in lines(folder))
    also = next(line for line in lines(folder) if line.strip().startswith("also"))
    assert also.endswith("scheduler, random_states_0, random_states_1 (no tensors)")


def test_a_checkpoint_of_the_trainer_has_its_step(tmp_path: Path) -> None:
    report = ckpt.inspect(of_trainer(tmp_path / "c"))
    assert report.to_json()["file"]["layout"] == "Hugging Face Trainer checkpoint"  # type: ignore[index]
    with ckpt.open(tmp_path / "c") as checkpoint:
        assert dict(checkpoint.checkpoint.facts)["step"] == 2


def test_two_models_have_keys_of_their_own(tmp_path: Path) -> None:
    folder = folders.full_state(tmp_path / "c", models=2)
    with ckpt.open(folder) as checkpoint:
        for number, key in enumerate(("model", "model_1")):
            mark = f"_{number}" if number else ""
            for name, tensor in torch.load(
                folder / f"pytorch_model_fsdp{mark}.bin"
            ).items():
                assert torch.equal(checkpoint[f"{key}.{name}"].torch(), tensor)
        assert "optimizer_1.state.0.weight.exp_avg" in checkpoint


@pytest.mark.parametrize("make", [folders.full_state, of_trainer])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("inspect", "c"), "Adam-like"),
        (("ls", "."), "folder"),
        (("verify", "c"), "all checksums match"),
        (("stats", "c"), "0.weight"),
        (("convert", "c", "-o", "o.safetensors"), "wrote o.safetensors"),
        (("convert", "c", "-o", "o.pth"), "wrote o.pth"),
        (("slim", "c", "-o", "o.pth"), "wrote o.pth"),
        (("diff", "c", f"c/{MODEL}"), "same: 9 tensors"),
    ],
)
def test_every_command_sees_one_checkpoint(make, words, says, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "c")
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0 and says in done.out.decode(), done
    if words[0] == "ls":
        assert done.out.count(b"\n") == 2, "one row"
    for path in tmp_path.glob("o.*"):
        state = ckpt.open(path)
        for name, tensor in torch.load(tmp_path / "c" / MODEL).items():
            assert torch.equal(state[name].torch(), tensor)


def test_what_is_written_has_the_tables_of_documents(tmp_path: Path) -> None:
    """A folder shows no `log_history`, which has a row for each step; the file has all
    of it.
    """
    of_trainer(tmp_path / "c")
    assert (
        inside(
            "convert", "c", "-o", "o.pth", "--plain", "--drop-other", cwd=tmp_path
        ).code
        == 0
    )
    state = torch.load(tmp_path / "o.pth", weights_only=True)
    assert [row["step"] for row in state["trainer_state"]["log_history"]] == [0, 1]


def test_the_model_that_is_loaded_comes_first(tmp_path: Path) -> None:
    folders.save(of_trainer(tmp_path / "c") / "model.safetensors", {"w": torch.ones(2)})
    with formats.open(str(tmp_path / "c")) as checkpoint:
        assert "w" in {entry.name for entry in checkpoint.tensors}
        (notice,) = [
            row for row in checkpoint.account.notices if row.code == "unread-file"
        ]
        assert MODEL in notice.message


def test_files_of_ranks_stay_a_set(tmp_path: Path) -> None:
    """`pytorch_model_fsdp_rank0.bin` is the part of a rank."""
    for rank in range(2):
        folders.save(
            tmp_path / f"c/pytorch_model_fsdp_rank{rank}.bin", {"w": torch.ones(2)}
        )
    done = inside("inspect", "c", "--tsv", cwd=tmp_path)
    assert done.code == 2, "no part in them, and no FULL_STATE_DICT either"

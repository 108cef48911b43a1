"""A file of a folder that is read in part: its lost tensors make the tensors of the
whole lost, and nothing else.

The reader of one file says what it lacks with the notice `incomplete`. It is played
here, over files that are whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import deepspeeds
import folders
import oracle
import pytest
import torch
from pipelines import Pipeline

import ckpt
from ckpt import formats
from ckpt.commands.rewriting.sets import whole_part
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.limits import Limits
from ckpt.model.rows import replace

pytestmark = oracle.QUIET


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Let the reader say of the files whose name ends so that they lack the tensors
    whose names end so.
    """

    def set(file: str, tensor: str) -> None:
        real = formats._open_location

        def played(
            location: object, *rest: object, partial: bool = False, **more: object
        ) -> Checkpoint:
            found = real(location, *rest, partial=partial, **more)  # type: ignore[arg-type]
            gone = tuple(
                entry.name for entry in found.tensors if entry.name.endswith(tensor)
            )
            if not partial or not str(location.name).endswith(file) or not gone:  # type: ignore[attr-defined]
                return found
            return replace(
                found,
                account=found.account.with_notices(
                    Notice("incomplete", "cut off", gone)
                ),
            )

        monkeypatch.setattr(formats, "_open_location", played)

    return set


def split(folder: Path) -> tuple[set[str], set[str]]:
    """Return (the names that are whole, the names that are listed as lost)."""
    with formats.open(str(folder), partial=True) as checkpoint:
        whole, lost = whole_part(checkpoint, Limits())
        return {entry.name for entry in whole.tensors}, {row.name for row in lost}


def names_of(folder: Path) -> set[str]:
    with ckpt.open(folder) as checkpoint:
        return set(checkpoint)


@pytest.mark.needs("fsdp")
@pytest.mark.parametrize("rank", [0, 3])
def test_a_part_of_a_rank(
    rank: int, ranks: Path, tmp_path: Path, lacking: Callable[[str, str], None]
) -> None:
    shutil.copytree(ranks / "fsdp2", tmp_path / "c")
    every = names_of(tmp_path / "c")
    lacking(f"rank_{rank}.pt", "model.up.weight")
    assert split(tmp_path / "c") == (every - {"model.up.weight"}, {"model.up.weight"})


@pytest.mark.needs("fsdp")
def test_a_copy_of_a_rank_loses_nothing(
    ranks: Path, tmp_path: Path, lacking: Callable[[str, str], None]
) -> None:
    shutil.copytree(ranks / "fsdp2", tmp_path / "c")
    with ckpt.open(tmp_path / "c") as checkpoint:
        mean = checkpoint["model.bn.running_mean"].torch()
    lacking("rank_0.pt", "bn.running_mean")
    whole, lost = split(tmp_path / "c")
    assert "model.bn.running_mean" in whole and not lost
    with formats.open(str(tmp_path / "c"), partial=True) as checkpoint:
        (entry,) = [
            row for row in checkpoint.tensors if row.name == "model.bn.running_mean"
        ]
        sources = {source.name for source in checkpoint.sources}
        assert str(entry.tensor.storage.place.source.name).endswith("rank_1.pt"), (
            sources
        )  # type: ignore[union-attr]
    assert mean.numel()


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_partition_of_deepspeed(
    rank: int, stage: int, tmp_path: Path, lacking: Callable[[str, str], None]
) -> None:
    """The second group is cut: `up.bias` and `scale`."""
    folder = deepspeeds.write(tmp_path / "c", stage)
    every = names_of(folder)
    field = "fp32_flat_groups.1" if stage == 3 else "single_partition_of_fp32_groups.1"
    lacking(f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", field)
    whole, lost = split(folder)
    assert {
        "model.emb.weight",
        "model.up.weight",
        "optimizer.state.emb.weight.exp_avg",
    } <= whole
    assert {name for name in every - whole if name.startswith("model.")} == {
        f"model.{name}" for name in lost if name in ("up.bias", "scale")
    }
    for name in every - whole:
        assert {name, name.removeprefix("model."), name.rpartition(".")[0]} & lost, name


def test_a_moment_of_deepspeed(
    tmp_path: Path, lacking: Callable[[str, str], None]
) -> None:
    folder = deepspeeds.write(tmp_path / "c", 2)
    every = names_of(folder)
    lacking("zero_pp_rank_1_mp_rank_00_optim_states.pt", "state.0.exp_avg")
    whole, lost = split(folder)
    assert every - whole and every - whole == {
        name for name in lost if name.endswith(".exp_avg")
    }
    assert all(name.startswith("optimizer.state.") for name in every - whole)


@pytest.mark.parametrize("stage", [1, 3])
def test_model_states_of_deepspeed(
    stage: int, tmp_path: Path, lacking: Callable[[str, str], None]
) -> None:
    folder = deepspeeds.write(tmp_path / "c", stage)
    every = names_of(folder)
    lacking(
        ("zero_pp_rank_0_" if stage == 3 else "") + "mp_rank_00_model_states.pt",
        "running_mean",
    )
    whole, lost = split(folder)
    if stage == 3:  # the file of the other rank has all buffers too
        assert every == whole and not lost
        return
    gone = every - whole
    assert {name for name in gone if name.startswith("model.")} == {
        "model.bn.running_mean"
    }
    assert {"module", "model.bn.running_mean"} <= lost


def test_a_layer_of_a_pipeline(
    tmp_path: Path, lacking: Callable[[str, str], None]
) -> None:
    folder = Pipeline(1, 2, torch.bfloat16).write(tmp_path / "c")
    every = names_of(folder)
    lacking("layer_03-model_states.pt", "mean")
    whole, lost = split(folder)
    assert {name for name in every - whole if name.startswith("model.")} == {
        "model.3.mean"
    }
    assert {"3.mean", "module"} <= lost


def test_a_file_of_a_folder(
    tmp_path: Path, lacking: Callable[[str, str], None]
) -> None:
    folder = folders.full_state(tmp_path / "c")
    every = names_of(folder)
    lacking("optimizer.bin", "0.weight.exp_avg")
    whole, lost = split(folder)
    assert every - whole == lost == {"optimizer.state.0.weight.exp_avg"}


def test_weights_of_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    folder = folders.full_state(tmp_path / "c", models=2)
    every = names_of(folder)
    (folder / "pytorch_model_fsdp_1.bin").write_bytes(b"PK")
    with formats.open(str(folder), partial=True) as checkpoint:
        names = {entry.name for entry in checkpoint.tensors}
        (notice,) = checkpoint.account.notices
    assert names == {name for name in every if not name.startswith("model_1.")}
    assert "pytorch_model_fsdp_1.bin was not read" in notice.message


@pytest.mark.needs("dcp")
def test_a_shard_of_dcp_in_safetensors(ranks: Path, tmp_path: Path) -> None:
    """Its names and its parts are known by its header; the reader of one file says what
    is beyond its end.
    """
    shutil.copytree(ranks / "hf", tmp_path / "c")
    path = tmp_path / "c/shard-00002-model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    whole, lost = split(tmp_path / "c")
    assert whole and lost and not whole & lost

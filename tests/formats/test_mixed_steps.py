"""Files of two steps in one folder: refused where they contradict each other, said
where they seem to.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import deepspeeds
import frameworks_dcp
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from deepspeeds import TAG, Saved
from frameworks_dcp import in_two_files
from inside import inside

import ckpt
from ckpt import formats
from ckpt.formats.common.mixed_steps import find_difference
from ckpt.model.nodes import Node
from ckpt.tree.view import look

pytestmark = oracle.QUIET

COMMANDS = (
    ("inspect", "c"),
    ("convert", "c", "-o", "o.pth"),
    ("diff", "c", "c"),
    ("get", "c", "step"),
)


def refused(folder: Path, says: str) -> None:
    """Assert that each command refuses the folder `c` with the code, and that `verify`
    says damaged.
    """
    for words in COMMANDS:
        done = inside(*words, cwd=folder.parent)
        assert done.code == 2 and says in done.err.decode(), done
    assert not (folder.parent / "o.pth").exists()
    done = inside("verify", "c", cwd=folder.parent)
    assert done.code == 1 and says in done.out.decode(), done
    assert (
        json.loads(inside("inspect", "c", "--json", cwd=folder.parent).out)["error"][
            "code"
        ]
        == "mixed-steps"
    )


def said(folder: Path, says: str) -> None:
    """Assert that the folder `c` is read, and that each command says what is
    doubtful.
    """
    (found,) = (
        row for row in ckpt.inspect(folder).findings if row.code == "mixed-steps"
    )
    assert says in found.message and found.level == "info", found
    assert "sometimes-unused" not in {row.code for row in ckpt.inspect(folder).findings}
    for words in COMMANDS[1:3]:
        done = inside(*words, cwd=folder.parent)
        assert done.code == 0 and says in done.err.decode(), done
    done = inside("verify", "c", "--json", cwd=folder.parent)
    assert done.code == 0 and says in json.loads(done.out)["doubts"][0], done
    done = inside("verify", "c", cwd=folder.parent)
    assert done.code == 0 and b"doubtful: " in done.out, done


def silent(folder: Path) -> None:
    assert "mixed-steps" not in {row.code for row in ckpt.inspect(folder).findings}
    done = inside("verify", "c", cwd=folder.parent)
    assert done.code == 0 and b"doubtful" not in done.out, done


# --- DeepSpeed ------------------------------------------------------------------------


def at(made: Saved, step: int, fused: bool = False) -> Saved:
    """A checkpoint as it is saved after another step."""
    for model in made.models.values():
        model |= {"global_steps": step, "global_samples": 8 * step}
    for state in made.states:
        base = state.get("base_optimizer_state") or state["optimizer_state_dict"]
        for number, row in base["state"].items():
            row["step"] = torch.tensor(float(step))
            if fused:  # DeepSpeed's FusedAdam keeps its counter in the group
                del row["step"]
                base["param_groups"][number]["step"] = step
    return made


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_deepspeed(stage: int, rank: int, fused: bool, tmp_path: Path) -> None:
    at(deepspeeds.saved(stage), 3, fused).write(tmp_path / "c")
    at(deepspeeds.saved(stage, seed=1), 2, fused).write(tmp_path / "old")
    silent(tmp_path / "c")
    for path in (tmp_path / "old" / TAG).glob(f"zero_pp_rank_{rank}*"):
        shutil.copy(path, tmp_path / "c" / TAG)
    refused(tmp_path / "c", "global_steps is" if stage == 3 else "step of group 0 is")


def test_model_states_of_deepspeed_that_are_newer(tmp_path: Path) -> None:
    made = at(deepspeeds.saved(2), 2)
    made.models = at(deepspeeds.saved(2, seed=1), 3).models
    made.write(tmp_path / "c")
    said(
        tmp_path / "c", "the model states are of step 3, and the optimizer took 2 steps"
    )


def test_steps_that_were_skipped_are_no_doubt(tmp_path: Path) -> None:
    made = at(deepspeeds.saved(2), 3)
    for model in made.models.values():
        model |= {"global_steps": 5, "skipped_steps": 2}
    made.write(tmp_path / "c")
    silent(tmp_path / "c")


def test_tensor_parallel_ranks_of_deepspeed(tmp_path: Path) -> None:
    for step, name in ((3, "c"), (2, "old")):
        made = at(deepspeeds.saved(0), step)
        for model in made.models.values():
            model["mp_world_size"] = 2
        made.write(tmp_path / name)
    where = tmp_path / "c" / TAG
    shutil.copy(
        where / "mp_rank_00_model_states.pt", where / "mp_rank_01_model_states.pt"
    )
    silent(tmp_path / "c")
    shutil.copy(
        tmp_path / "old" / TAG / "mp_rank_00_model_states.pt",
        where / "mp_rank_01_model_states.pt",
    )
    refused(
        tmp_path / "c",
        (
            "global_steps is 3 in mp_rank_00_model_states.pt, 2 in "
            "mp_rank_01_model_states.pt"
        ),
    )


# --- Megatron, accelerate -------------------------------------------------------------


def test_ranks_of_megatron(tmp_path: Path) -> None:
    folder = frameworks_dcp.classic(tmp_path / "c", 2, 2)
    silent(tmp_path / "c")
    path = folder / "mp_rank_01_001" / "model_optim_rng.pt"
    state = torch.load(path, weights_only=False)
    torch.save(state | {"iteration": 11}, path)
    refused(
        tmp_path / "c",
        "iteration is 10 in iter_0000010/mp_rank_00_000/model_optim_rng.pt, 11 in ",
    )


@pytest.mark.needs("folders")
def test_random_states_of_accelerate(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    folder = tmp_path / "c"
    folder.mkdir()
    torch.save(net.state_dict(), folder / "pytorch_model.bin")
    for rank in range(2):
        torch.save(
            {"step": 3, "torch_manual_seed": torch.zeros(3)},
            folder / f"random_states_{rank}.pkl",
        )
    silent(folder)
    torch.save(
        {"step": 4, "torch_manual_seed": torch.zeros(3)}, folder / "random_states_1.pkl"
    )
    said(folder, "step is 3 in random_states_0.pkl, 4 in random_states_1.pkl")


# --- distributed checkpoints ----------------------------------------------------------


@pytest.mark.parametrize("file", ["__0_0.distcp", "__0_1.distcp"])
@pytest.mark.parametrize("root", [-1, None])
def test_a_file_of_the_next_save(file: str, root: int | None, tmp_path: Path) -> None:
    in_two_files(tmp_path / "c", 3, root)
    in_two_files(tmp_path / "new", 4, root)
    silent(tmp_path / "c")
    shutil.copy(tmp_path / "new" / file, tmp_path / "c" / file)
    said(tmp_path / "c", "all counters of the optimizer in __0_")


def test_parameters_that_lag_are_no_files_of_another_step(tmp_path: Path) -> None:
    in_two_files(
        tmp_path / "c",
        5,
        lag=lambda name: name in ("0.weight", "0.bias", "7.weight", "7.bias"),
    )
    silent(tmp_path / "c")
    assert "sometimes-unused" in {
        row.code for row in ckpt.inspect(tmp_path / "c").findings
    }


def test_a_checkpoint_that_counts_otherwise_says_nothing(tmp_path: Path) -> None:
    """Neither side has the step of the checkpoint itself: the optimizer was started
    later.
    """
    in_two_files(tmp_path / "c", 3, 1003)
    in_two_files(tmp_path / "new", 4, 1003)
    shutil.copy(tmp_path / "new" / "__0_1.distcp", tmp_path / "c")
    silent(tmp_path / "c")


@pytest.mark.parametrize("key", ["step", "state"])
def test_metadata_of_each_rank(key: str, tmp_path: Path) -> None:
    """Counters that both ranks wrote: the step of the run, or those of parameters."""

    def write(folder: Path, step: int) -> None:
        state = (
            {"step": step}
            if key == "step"
            else {"state": {"w": {"step": torch.tensor(float(step))}}}
        )
        for rank in range(2):
            alone = folder.with_name(f"{folder.name}-{rank}")
            dcp.save(
                {**state, "w": torch.arange(6.0)},
                checkpoint_id=str(alone),
                no_dist=True,
            )
            folder.mkdir(exist_ok=True)
            data = (alone / "__0_0.distcp").read_bytes()
            (folder / f"__{rank}_0.distcp").write_bytes(data)
            text = (
                (alone / ".metadata")
                .read_bytes()
                .replace(b"__0_0.distcp", b"__%d_0.distcp" % rank)
            )
            (folder / f"__{rank}.metadata").write_bytes(text)

    write(tmp_path / "c", 3)
    write(tmp_path / "new", 4)
    silent(tmp_path / "c")
    shutil.copy(tmp_path / "new" / "__1_0.distcp", tmp_path / "c" / "__1_0.distcp")
    refused(tmp_path / "c", "3 in __0_0.distcp, 4 in __1_0.distcp")


# --- counters -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "is_new", [False, True], ids=["without checksums", "with checksums"]
)
def test_counters_that_are_tensors_are_compared_by_their_values(
    is_new: bool, tmp_path: Path
) -> None:
    """Equal checksums say that they are equal; where a file records none, that says
    nothing.
    """
    for name, step in (("a", 5), ("b", 5), ("c", 6)):
        torch.save(
            {"step": torch.tensor(step)},
            tmp_path / name,
            _use_new_zipfile_serialization=is_new,
        )
    with ExitStack() as stack:
        headers: list[tuple[str, dict[str, Node]]] = []
        for name in "abc":
            checkpoint = stack.enter_context(formats.open(str(tmp_path / name)))
            headers.append((name, {"step": look(checkpoint.root).children[0]}))
        assert find_difference(headers[:2]) is None
        assert (
            find_difference(headers)
            == "the files were saved at several steps: step is 5 in a, 6 in c"
        )

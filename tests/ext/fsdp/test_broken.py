"""Files of ranks that are missing, mixed or hostile: nothing is merged that was not one
tensor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from folders import change, findings, refused
from inside import inside
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import ckpt
from ckpt import formats
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET


def file(rank: int) -> str:
    return f"model_world_size_4_rank_{rank}.pt"


@pytest.fixture
def copy(ranks: Path, tmp_path: Path) -> Path:
    shutil.copytree(ranks / "accelerate", tmp_path / "c")
    for path in (tmp_path / "c").iterdir():
        path.rename(path.with_name(file(int(path.stem[-1]))))
    return tmp_path / "c"


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_missing_rank_is_named_with_what_is_lost(rank: int, copy: Path) -> None:
    (copy / file(rank)).unlink()
    text, names = findings(copy)["incomplete"]
    lost = {
        0: "scale lacks [0:1]",
        2: "up.weight lacks [8:12, :]",
        3: "up.weight lacks [12:16, :]",
    }[rank]
    assert text.startswith(f"the file of rank {rank} is missing: {lost}"), text
    assert text.endswith(f"and {len(names) - 1} more tensors lack parts too"), text
    assert "up.weight" in names and "bn.running_mean" not in names
    done = inside("verify", "c", cwd=copy.parent)
    assert done.code == 1 and "bn.running_mean" not in done.out.decode(), done
    done = inside("convert", "c", "-o", "o.pth", cwd=copy.parent)
    assert done.code == 2 and not (copy.parent / "o.pth").exists(), done
    with ckpt.open(copy) as checkpoint:
        assert checkpoint["bn.running_mean"].numpy().shape == (16,)


def test_a_missing_copy_loses_nothing(ranks: Path, tmp_path: Path) -> None:
    shutil.copytree(ranks / "hsdp", tmp_path / "c")
    (tmp_path / "c" / file(2)).unlink()
    text, names = findings(tmp_path / "c")["incomplete"]
    assert (
        text
        == "the file of rank 2 is missing: the other ranks hold all of every tensor"
        and not names
    )
    assert inside("convert", "c", "-o", "o.pth", cwd=tmp_path).code == 2
    assert inside("convert", "c", "-o", "o.pth", "--partial", cwd=tmp_path).code == 1
    found = torch.load(tmp_path / "o.pth", weights_only=True)["model"]["up.weight"]
    full = torch.load(ranks / "hsdp.full.pt", weights_only=False)["model"]["up.weight"]
    assert torch.equal(found, full)


def test_without_a_world_in_the_name_the_mesh_tells_it(
    ranks: Path, tmp_path: Path
) -> None:
    shutil.copytree(ranks / "accelerate", tmp_path / "c")
    (tmp_path / "c/pytorch_model_fsdp_rank3.bin").unlink()
    assert findings(tmp_path / "c")["incomplete"][0].startswith(
        "the file of rank 3 is missing"
    )


def test_two_files_of_one_rank_are_refused(copy: Path) -> None:
    shutil.copy(copy / file(1), copy / "model_world_size_4_rank_01.pt")
    refused(copy, "two files are of one rank")


def test_a_file_of_another_rank_is_refused(copy: Path) -> None:
    shutil.copy(copy / file(0), copy / file(1))
    refused(copy, "was saved by rank 0")


def test_a_rank_beyond_the_world_is_refused(copy: Path) -> None:
    (copy / file(3)).rename(copy / file(4))
    refused(copy, "its name says that there are 4 ranks")


def test_a_file_of_another_run_is_refused(ranks: Path, copy: Path) -> None:
    state = torch.load(
        ranks / "fsdp2_of_two/model_world_size_2_rank_1.pt", weights_only=False
    )
    torch.save(state["model"], copy / file(1))
    refused(copy, "disagree on the mesh or the placements of scale")


def test_other_tensors_are_refused(copy: Path) -> None:
    change(copy / file(2), lambda state: state.pop("up.bias"))
    refused(copy, "rank 0 has up.bias, rank 2 lacks it")


def test_another_kind_of_tensor_is_refused(copy: Path) -> None:
    """Eight equal parts are no copies, and copies are no parts: placements tell, never
    values.
    """
    change(copy / file(2), lambda state: state.update({"up.bias": torch.zeros(4)}))
    refused(copy, "the ranks disagree on the dtype, the size or the kind of up.bias")


def local(
    edit: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[dict[str, Any]], None]:
    def run(state: dict[str, Any]) -> None:
        state["up.bias"]._local_tensor = edit(state["up.bias"]._local_tensor)

    return run


def spec(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Other fields of the spec of `up.bias`."""

    def run(state: dict[str, Any]) -> None:
        for name, value in fields.items():
            object.__setattr__(state["up.bias"]._spec, name, value)

    return run


def mesh(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Other fields of the mesh, which all tensors share."""

    def run(state: dict[str, Any]) -> None:
        for name, value in fields.items():
            setattr(state["up.bias"]._spec.mesh, name, value)

    return run


def raw(cls: Any, **fields: Any) -> Any:
    """A placement that its class would refuse to make."""

    class Made:
        def __reduce__(self) -> Any:
            return _new, (cls,), fields

    return Made()


def _new(cls: Any) -> Any:
    return cls.__new__(cls)


PLACE = "that ckpt cannot place"
HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "shape": (
        local(lambda one: one[:3].clone()),
        "has the shape [3], its placements say [4]",
    ),
    "longer": (
        local(lambda one: torch.cat([one, one])),
        "has the shape [8], its placements say [4]",
    ),
    "dtype": (local(lambda one: one.double()), "is float64, the tensor is float32"),
    "coordinate": (
        mesh(_coordinate_on_dim=(2,)),
        "its place in the mesh is not that of its rank",
    ),
    "negative": (mesh(_coordinate_on_dim=(-1,)), PLACE),
    "far": (mesh(_coordinate_on_dim=(4,)), PLACE),
    "huge": (mesh(_coordinate_on_dim=(2**70,)), PLACE),
    "rank": (mesh(_rank=3), "was saved by rank 3"),
    "ranks": (mesh(_flatten_rank_map=(0, 0, 2, 3)), PLACE),
    "no rank": (mesh(_flatten_rank_map=(4, 5, 6, 7)), "its mesh has no rank 1"),
    "placements": (spec(placements=()), PLACE),
    "more": (spec(placements=(Shard(0), Shard(0))), PLACE),
    "dimension": (spec(placements=(Shard(1),)), PLACE),
    "replicate": (
        spec(placements=(Replicate(),)),
        "disagree on the mesh or the placements",
    ),
    "strided": (
        spec(placements=(_StridedShard(0, split_factor=2),)),
        "disagree on the mesh or the placements",
    ),
    "order": (
        spec(shard_order=((0, (1, 0)),)),
        "is cut in an order that ckpt does not know",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_rank_is_one_line(kind: str, copy: Path) -> None:
    edit, says = HOSTILE[kind]
    change(copy / file(1), edit)
    refused(copy, says)


def test_two_ranks_at_one_place_are_refused(copy: Path) -> None:
    """Without the ranks of the mesh, the places that the files record decide."""
    for rank in range(4):
        change(
            copy / file(rank),
            mesh(_flatten_rank_map=(), _coordinate_on_dim=(min(rank, 2),)),
        )
    refused(copy, "ranks 2 and 3 are at one place of the mesh")


@pytest.mark.parametrize("named", [True, False])
def test_older_files_do_not_record_the_place(named: bool, copy: Path) -> None:
    """torch before 2.13 records no rank; where the place is missing too, the name of
    the file gives it.
    """
    for rank in range(4):
        change(
            copy / file(rank),
            mesh(_rank=None, **({"_coordinate_on_dim": None} if named else {})),
        )
    with ckpt.open(copy) as checkpoint:
        assert checkpoint["up.weight"].numpy().shape == (16, 8)
    full = torch.load(copy / file(0), weights_only=False)["up.weight"]._local_tensor
    with ckpt.open(copy) as checkpoint:
        assert torch.equal(checkpoint["up.weight"].torch()[:4], full)


class Layout:
    """The layout of a mesh in torch 2.9 to 2.12."""

    def __init__(self) -> None:
        self.shape, self.stride = 4, 1


def older(state: dict[str, Any], *, layout: bool) -> None:
    """The mesh as torch before 2.13 saves it: with a layout of one shape, or with the
    ranks in a tensor.
    """
    fields = state["up.bias"]._spec.mesh.__dict__
    for name in ("_layout", "_rank_map", "_rank", "_flatten_rank_map"):
        fields.pop(name, None)
    fields["_flatten_mesh_list"] = (0, 1, 2, 3)
    fields.update({"_layout": Layout()} if layout else {"mesh": torch.arange(4)})


@pytest.mark.parametrize("layout", [True, False])
def test_older_meshes_are_read(layout: bool, ranks: Path, copy: Path) -> None:
    for rank in range(4):
        change(copy / file(rank), partial(older, layout=layout))
    full = torch.load(ranks / "accelerate.full.pt", weights_only=False)
    with ckpt.open(copy) as checkpoint:
        assert all(
            torch.equal(checkpoint[name].torch(), tensor)
            for name, tensor in full.items()
        )


# --- what should be equal -------------------------------------------------------------


def shifted(name: str) -> Callable[[dict[str, Any]], None]:
    def run(state: dict[str, Any]) -> None:
        tensor = state[name]
        getattr(tensor, "_local_tensor", tensor).flatten()[0] += 1

    return run


@pytest.mark.parametrize("zipped", [True, False])
def test_whole_tensors_that_differ_are_told(zipped: bool, copy: Path) -> None:
    """By the checksums of the archives, or by `verify` alone where a file has none.
    They are never put together.
    """
    for rank in range(4):
        edit = shifted("bn.running_mean") if rank == 2 else len
        change(copy / file(rank), edit, _use_new_zipfile_serialization=zipped)
    text = "bn.running_mean differs between rank 0 and rank 2"
    if zipped:
        assert findings(copy)["ranks-differ"] == (
            f"{text}: rank 0 is read",
            ("bn.running_mean",),
        )
        done = inside("convert", "c", "-o", "o.pth", cwd=copy.parent)
        assert done.code == 0 and f"{text}: rank 0 is read" in done.out.decode(), done
    else:
        assert "ranks-differ" not in findings(copy)
    done = inside("verify", "c", cwd=copy.parent)
    assert done.code == 1 and text in done.out.decode(), done
    assert done.out.decode().count(text) == 1
    with ckpt.open(copy) as checkpoint:
        assert checkpoint["bn.running_mean"].shape == (16,)


def test_replicas_that_differ_are_told(ranks: Path, tmp_path: Path) -> None:
    shutil.copytree(ranks / "hsdp", tmp_path / "c")
    change(tmp_path / "c" / file(3), lambda state: shifted("up.weight")(state["model"]))
    text, names = findings(tmp_path / "c")["ranks-differ"]
    assert (
        text == "model.up.weight differs between rank 1 and rank 3: rank 1 is read"
    ), text
    assert names == ("model.up.weight",)


def test_parts_of_other_tensors_should_be_equal(copy: Path) -> None:
    for rank in range(4):
        change(
            copy / file(rank),
            lambda state: state.update(
                q=torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True)
            ),
        )
    assert "ranks-differ" not in findings(copy)
    change(
        copy / file(3),
        lambda state: state.update(
            q=torch.sparse_coo_tensor([[0]], [2.0], (2,), check_invariants=True)
        ),
    )
    assert findings(copy)["ranks-differ"][0].startswith(
        "q differs between rank 0 and rank 3"
    )


def test_a_flipped_bit_is_found(copy: Path) -> None:
    data = bytearray((copy / file(2)).read_bytes())
    part = torch.load(copy / file(2), weights_only=False)["up.weight"]._local_tensor
    data[data.index(part.numpy().tobytes()) + 5] ^= 1
    (copy / file(2)).write_bytes(data)
    done = inside("verify", "c", "--json", cwd=copy.parent)
    assert done.code == 1 and '"tensors": ["up.weight"]' in done.out.decode().replace(
        '":["', '": ["'
    ), done
    assert file(2) in done.out.decode()


# --- hostile files --------------------------------------------------------------------


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_call_in_the_file_of_any_rank_is_told(copy: Path) -> None:
    change(copy / file(3), lambda state: state.update(args=Runs(copy / "ran")))
    (copy / "ran").unlink(missing_ok=True)
    (finding,) = [
        row for row in ckpt.inspect(copy).findings if row.code == "called-on-load"
    ]
    assert "posix.system" in finding.message
    with formats.open(str(copy)) as checkpoint:
        (row,) = [row for row in checkpoint.imports if row.group == "called"]
    assert row.file == file(3)
    done = inside("convert", "c", "-o", "o.pth", cwd=copy.parent)
    assert done.code in (0, 2) and not (copy / "ran").exists()
    if done.code == 0:
        assert b"posix" not in (copy.parent / "o.pth").read_bytes()


@pytest.mark.parametrize("rank", [0, 3])
def test_damaged_files_are_refused(rank: int, copy: Path) -> None:
    (copy / file(rank)).write_bytes((copy / file(rank)).read_bytes()[:-200])
    done = inside("inspect", "c", cwd=copy.parent)
    assert (
        done.code == 2
        and file(rank) in done.err.decode()
        and done.err.count(b"\n") == 1
    ), done


def test_links_and_fifos_are_refused(copy: Path) -> None:
    shutil.move(copy / file(2), copy.parent / "elsewhere")
    os.symlink(copy.parent / "elsewhere", copy / file(2))
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and b" is a link: " in done.err, done
    (copy / file(2)).unlink()
    os.mkfifo(copy / file(2))
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and b"FIFO" in done.err, done


@pytest.mark.parametrize("split", [0, -1, 2**40])
def test_a_strided_shard_of_no_number_is_refused(split: int, copy: Path) -> None:
    change(
        copy / file(1),
        spec(placements=(raw(_StridedShard, dim=0, split_factor=split),)),
    )
    done = inside("inspect", "c", cwd=copy.parent)
    assert done.code == 2 and b"Traceback" not in done.err, done


@pytest.mark.parametrize(
    "of", ["the run", "a parameter", "a parameter, without checksums"]
)
def test_files_of_two_steps(of: str, ranks: Path, tmp_path: Path) -> None:
    """What every rank counts is equal in all files of one save; nothing is merged where
    it is not.
    """
    shutil.copytree(ranks / "fsdp2", tmp_path / "c")

    def later(state: dict[str, Any]) -> None:
        if of == "the run":
            state["step"] = 2
        else:
            state["optim"]["state"]["up.weight"]["step"] += 1

    with_crc = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(not of.endswith("checksums"))
    try:
        for rank in (0, 2):
            change(tmp_path / "c" / file(rank), later if rank else lambda state: None)
    finally:
        torch.serialization.set_crc32_options(with_crc)
    name = "step" if of == "the run" else "optim.state.up.weight.step"
    refused(
        tmp_path / "c",
        (
            f"the files were saved at several steps: {name} is 1 in {file(0)}, 2 in "
            f"{file(2)}"
        ),
    )
    done = inside("verify", "c", cwd=tmp_path)
    assert done.code == 1 and b"several steps" in done.out, done


def test_a_stray_file_of_another_world_is_named_and_the_whole_set_is_read(
    copy: Path,
) -> None:
    whole = inside("inspect", "c", "--tsv", cwd=copy.parent).out
    shutil.copy(copy / file(1), copy / "model_world_size_8_rank_5.pt")

    text, _ = findings(copy)["unread-file"]
    assert (
        text
        == "model_world_size_8_rank_5.pt is of another number of ranks and was not read"
    )
    assert inside("inspect", "c", "--tsv", cwd=copy.parent).out == whole
    assert inside("verify", "c", cwd=copy.parent).code == 0
    shutil.copy(copy / file(1), copy / "model_world_size_2_rank_1.pt")
    shutil.copy(copy / file(1), copy / "model_world_size_8_rank_6.pt")
    assert inside("inspect", "c", "--tsv", cwd=copy.parent).out == whole


def test_two_whole_sets_are_two_checkpoints(copy: Path) -> None:
    for rank in (0, 1):
        shutil.copy(copy / file(rank), copy / f"model_world_size_2_rank_{rank}.pt")

    with pytest.raises(CkptError):
        formats.open(str(copy))


def test_two_parts_of_sets_are_no_checkpoint(copy: Path) -> None:
    """Which of them is meant, nothing says."""
    (copy / file(3)).unlink()
    shutil.copy(copy / file(1), copy / "model_world_size_8_rank_5.pt")

    with pytest.raises(CkptError):
        formats.open(str(copy))

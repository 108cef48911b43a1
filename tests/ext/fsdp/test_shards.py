"""ShardedTensors of the ranks of FSDP 1, missing, mixed or hostile: nothing is merged
that was not one tensor.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import oracle
import pytest
import torch
from folders import Edit, change, findings
from inside import inside
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import (
    Shard,
    ShardedTensor,
    TensorProperties,
)

import ckpt

pytestmark = oracle.QUIET


def file(rank: int) -> str:
    return f"model_0000007.rank_{rank}.pth"


@pytest.fixture
def copy(ranks: Path, tmp_path: Path) -> Path:
    shutil.copytree(ranks / "fsdp1_of_four", tmp_path / "c")
    return tmp_path / "c"


@pytest.fixture
def full(ranks: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(
        ranks / "fsdp1_of_four.full.pt", weights_only=False
    )["model"]
    return found


@pytest.fixture(autouse=True)
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch load and save a ShardedTensor with the state that its file has, outside
    of a process group.
    """
    monkeypatch.setattr(
        ShardedTensor, "__setstate__", lambda self, state: setattr(self, "raw", state)
    )
    monkeypatch.setattr(ShardedTensor, "__getstate__", lambda self: self.raw)
    monkeypatch.setattr(ShardedTensor, "__del__", lambda self: None)
    disabled = torch._C._disabled_torch_function_impl
    monkeypatch.setattr(ShardedTensor, "__torch_function__", disabled)


def refused(folder: Path, says: str) -> None:
    folders.refused(folder, says)
    done = inside("verify", "c", cwd=folder.parent)
    assert done.code == 1 and says in done.out.decode(), done


# --- files ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_missing_rank_is_named_with_what_is_lost(
    rank: int, copy: Path, full: dict[str, torch.Tensor]
) -> None:
    (copy / file(rank)).unlink()
    text, names = findings(copy)["incomplete"]
    first = {0: "model.scale lacks [0:1]", 1: "model.scale lacks [1:2]"}.get(
        rank, "model.up.weight lacks [12:16, :]"
    )
    assert text.startswith(f"the file of rank {rank} is missing: {first}"), text
    assert "model.up.weight" in names and "model.bn.running_mean" not in names
    assert ("model.unused.weight" in names) is (
        rank < 3
    )  # three rows: rank 3 holds none
    assert inside("verify", "c", cwd=copy.parent).code == 1
    done = inside("convert", "c", "-o", "o.pth", cwd=copy.parent)
    assert done.code == 2 and not (copy.parent / "o.pth").exists(), done
    with ckpt.open(copy) as checkpoint:
        assert torch.equal(
            checkpoint["model.bn.running_mean"].torch(), full["bn.running_mean"]
        )
        with pytest.raises(ckpt.CkptError, match="lacks"):
            checkpoint["model.up.weight"].numpy()


def test_the_group_of_a_missing_file_has_a_replica(ranks: Path, tmp_path: Path) -> None:
    shutil.copytree(ranks / "fsdp1_hybrid", tmp_path / "c")
    (tmp_path / "c/model.rank_1.pth").unlink()
    text, names = findings(tmp_path / "c")["incomplete"]
    assert (
        text
        == "the file of rank 1 is missing: the other ranks hold all of every tensor"
        and not names
    )


@pytest.mark.slow
def test_two_files_of_one_rank_are_refused(copy: Path) -> None:
    shutil.copy(copy / file(1), copy / "model_0000007.rank_01.pth")
    refused(copy, "two files are of one rank")


@pytest.mark.slow
def test_a_file_of_another_rank_is_refused(copy: Path) -> None:
    shutil.copy(copy / file(0), copy / file(1))
    refused(copy, f"{file(1)}: model.scale was saved by rank 0")


@pytest.mark.slow
def test_a_rank_beyond_the_world_is_refused(copy: Path) -> None:
    shutil.copy(copy / file(3), copy / file(4))
    for rank in range(5):
        change(copy / file(rank), lambda state: state.pop("optimizer"))
    change(
        copy / file(4), every(lambda one: one.raw[2].__dict__.update(global_rank=None))
    )
    refused(copy, f"{file(4)}: the files say that there are 4 ranks")


@pytest.mark.slow
def test_files_of_two_runs_are_refused(ranks: Path, copy: Path) -> None:
    """Of two ranks, and of four."""
    shutil.copy(ranks / "fsdp1/model_world_size_2_rank_1.pt", copy / file(1))
    refused(
        copy,
        "rank 0 was one of 4 ranks, rank 1 one of 2: the files are of different runs",
    )


@pytest.mark.slow
def test_another_number_of_ranks_in_the_names_is_refused(copy: Path) -> None:
    for rank in range(4):
        (copy / file(rank)).rename(copy / f"model_world_size_5_rank_{rank}.pth")
    refused(
        copy,
        "model_world_size_5_rank_0.pth was saved by one of 4 ranks, its name says 5",
    )


@pytest.mark.slow
def test_other_tensors_are_refused(copy: Path) -> None:
    change(copy / file(2), lambda state: state["model"].pop("up.bias"))
    refused(copy, "rank 0 has model.up.bias, rank 2 lacks it")


@pytest.mark.slow
def test_another_kind_of_tensor_is_refused(copy: Path) -> None:
    change(
        copy / file(2),
        lambda state: state["model"].update({"up.bias": torch.zeros(16)}),
    )
    refused(
        copy, "the ranks disagree on the dtype, the size or the kind of model.up.bias"
    )


# --- one tensor of one rank -----------------------------------------------------------


def every(edit: Callable[[Any], Any]) -> Edit:
    """The edit of each ShardedTensor of the model."""

    def run(state: dict[str, Any]) -> None:
        for tensor in state["model"].values():
            if isinstance(tensor, ShardedTensor):
                edit(tensor)

    return run


def up(edit: Callable[[Any], Any]) -> Edit:
    """The edit of `up.weight`: 16 rows of 8, four on each of four ranks."""
    return lambda state: edit(state["model"]["up.weight"])


def local(tensor: Any) -> Shard:
    found: Shard = tensor.raw[0][0]
    return found


def listed(tensor: Any) -> list[ShardMetadata]:
    found: list[ShardMetadata] = tensor.raw[1].shards_metadata
    return found


def place(offsets: list[Any], sizes: list[Any] | None = None) -> Callable[[Any], None]:
    """Say that the shard of rank 1 lies elsewhere, in its own words and in its list."""

    def run(tensor: Any) -> None:
        for row in (local(tensor).metadata, listed(tensor)[1]):
            row.shard_offsets = offsets
            row.shard_sizes = sizes or row.shard_sizes

    return run


def resized(rows: int, *, said: bool = True) -> Callable[[Any], None]:
    def run(tensor: Any) -> None:
        local(tensor).tensor = torch.zeros(rows, 8)
        local(tensor).metadata.shard_sizes = [rows, 8]
        if said:
            listed(tensor)[1].shard_sizes = [rows, 8]

    return run


def retyped(tensor: Any) -> None:
    local(tensor).tensor = local(tensor).tensor.to(torch.int32)


def twice(tensor: Any) -> None:
    listed(tensor).append(listed(tensor)[1])


def swapped(tensor: Any) -> None:
    """The shards of ranks 1 and 2 change their owners, in the list alone."""
    one, two = listed(tensor)[1:3]
    one.placement, two.placement = two.placement, one.placement


def two_rows_more(tensor: Any) -> None:
    """A further shard, of which the list knows nothing."""
    metadata = ShardMetadata([0, 0], [2, 8], local(tensor).metadata.placement)
    tensor.raw[0].append(Shard(torch.zeros(2, 8), metadata))


def again(tensor: Any) -> None:
    tensor.raw[0].append(local(tensor))


def empty(tensor: Any) -> None:
    tensor.raw[0].clear()


def empty_row(tensor: Any) -> ShardMetadata:
    return ShardMetadata([16, 0], [0, 8], "rank:0/cpu")


def owner(rank: int) -> Callable[[Any], None]:
    return lambda tensor: setattr(listed(tensor)[3].placement, "_rank", rank)


def group(**fields: Any) -> Callable[[Any], None]:
    return lambda tensor: tensor.raw[2].__dict__.update(fields)


def size(*shape: int) -> Callable[[Any], None]:
    return lambda tensor: setattr(tensor.raw[1], "size", torch.Size(shape))


def properties(tensor: Any) -> None:
    tensor.raw[1].tensor_properties = TensorProperties(dtype=torch.float64)


def without(number: int) -> Callable[[Any], None]:
    def run(tensor: Any) -> None:
        fields = list(tensor.raw)
        fields[number] = None
        tensor.raw = tuple(fields)

    return run


CANNOT = "model.up.weight of rank 1 is a ShardedTensor that ckpt cannot place"
SHARDS = "the ranks disagree on the shards of model.up.weight"
HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "moved in both": (place([3, 0]), SHARDS),
    "moved": (
        lambda tensor: setattr(local(tensor).metadata, "shard_offsets", [3, 0]),
        "model.up.weight of rank 1: [3:7, :] is not in its list of shards",
    ),
    "the place of another": (
        lambda tensor: setattr(local(tensor).metadata, "shard_offsets", [8, 0]),
        "model.up.weight of rank 1: [8:12, :] belongs to rank 2",
    ),
    "beyond": (place([13, 0]), "lies outside of its tensor"),
    "huge": (place([2**62, 0]), "lies outside of its tensor"),
    "larger than numbers": (place([2**70, 0]), "invalid size or stride"),
    "negative": (place([-4, 0]), "invalid size or stride"),
    "fewer dimensions": (place([4], [32]), "not that of its tensor"),
    "larger than the tensor": (resized(17), "lies outside of its tensor"),
    "longer": (resized(5), SHARDS),
    "shorter": (resized(3, said=False), "[4:7, :] is not in its list of shards"),
    "another dtype": (
        retyped,
        "model.up.weight of rank 1 is int32, the tensor is float32",
    ),
    "another dtype in the list": (properties, CANNOT),
    "another size in the list": (size(17, 8), CANNOT),
    "a size of other dimensions": (size(16), CANNOT),
    "no list": (without(1), CANNOT),
    "a list that is none": (
        lambda tensor: setattr(tensor.raw[1], "shards_metadata", 7),
        CANNOT,
    ),
    "a row that is none": (lambda tensor: listed(tensor).append(5), CANNOT),
    "a row outside": (
        lambda tensor: listed(tensor).append(
            ShardMetadata([16, 0], [1, 8], "rank:0/cpu")
        ),
        CANNOT,
    ),
    "a row more": (
        lambda tensor: listed(tensor).append(
            ShardMetadata([0, 0], [16, 8], "rank:0/cpu")
        ),
        SHARDS,
    ),
    "a row less": (lambda tensor: listed(tensor).pop(), SHARDS),
    "a row twice": (twice, SHARDS),
    "other owners": (swapped, "model.up.weight of rank 1: [4:8, :] belongs to rank 2"),
    "a shard that is not listed": (
        two_rows_more,
        "[0:2, :] is not in its list of shards",
    ),
    "a shard twice": (again, "two shards begin at one place"),
    "no shard": (
        empty,
        (
            "model.up.weight of rank 1 lacks [4:8, :], its list of shards says that it "
            "holds it"
        ),
    ),
    "an owner that is no rank": (
        owner(9),
        "model.up.weight of rank 1 lists a shard of rank 9, there are 4 ranks",
    ),
    "another rank": (group(global_rank=3), "model.up.weight was saved by rank 3"),
    "a rank beyond": (group(global_rank=4), CANNOT),
    "a group beyond": (group(local_world_size=5), CANNOT),
    "another world": (
        group(global_world_size=8),
        "one of 8: the files are of different runs",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_rank_is_one_line(kind: str, copy: Path) -> None:
    edit, says = HOSTILE[kind]
    change(copy / file(1), up(edit))
    refused(copy, says)


def test_what_the_ranks_agree_on_must_still_cover_the_tensor(copy: Path) -> None:
    """All say that a row lies in two shards, or in none: they agree, and it is
    wrong.
    """

    def overlapping(tensor: Any) -> None:
        listed(tensor)[1].shard_offsets = [3, 0]

    for rank in range(4):
        change(copy / file(rank), up(overlapping))
    change(
        copy / file(1),
        up(lambda tensor: setattr(local(tensor).metadata, "shard_offsets", [3, 0])),
    )
    refused(copy, "two ranks hold [3:4, :] of model.up.weight")


def test_a_hole_that_all_agree_on_is_incomplete(copy: Path) -> None:
    for rank in range(4):
        change(copy / file(rank), up(lambda tensor: listed(tensor).pop(1)))
    change(copy / file(1), up(empty))
    text, names = findings(copy)["incomplete"]
    assert (text, names) == ("model.up.weight lacks [4:8, :]", ("model.up.weight",))
    assert inside("verify", "c", cwd=copy.parent).code == 1
    assert inside("convert", "c", "-o", "o.pth", cwd=copy.parent).code == 2
    assert not (copy.parent / "o.pth").exists()


def test_a_list_with_a_shard_twice_is_refused(copy: Path) -> None:
    for rank in range(4):
        change(copy / file(rank), up(twice))
    refused(copy, "model.up.weight of rank 0 lists [4:8, :] twice")


@pytest.mark.slow
def test_two_ranks_with_one_shard_are_no_replicas(copy: Path) -> None:
    """All ranks are in one group: what two of them hold is no copy. Nothing tells whose
    it is.
    """

    def of_nobody(tensor: Any) -> None:
        for row in listed(tensor):
            row.placement = None

    for rank in range(4):
        change(copy / file(rank), up(of_nobody))
    with ckpt.open(copy) as checkpoint:  # where each shard lies is enough
        assert checkpoint["model.up.weight"].numpy().shape == (16, 8)
    change(
        copy / file(2),
        up(lambda tensor: setattr(local(tensor).metadata, "shard_offsets", [4, 0])),
    )
    refused(copy, "ranks 1 and 2 hold [4:8, :] of model.up.weight")
    change(
        copy / file(2), up(group(local_rank=1))
    )  # nor does one that claims the place of another
    refused(copy, "ranks 1 and 2 hold [4:8, :] of model.up.weight")


def test_ranks_of_one_group_are_no_replicas(ranks: Path, tmp_path: Path) -> None:
    """Two groups of two ranks, of which one says that it is at the place of the
    other.
    """
    shutil.copytree(ranks / "fsdp1_hybrid", tmp_path / "c")
    change(tmp_path / "c/model.rank_3.pth", up(group(local_rank=0)))
    refused(tmp_path / "c", "ranks 1 and 3 hold [8:16, :] of model.up.weight")


def test_files_without_a_group_are_put_together(
    copy: Path, full: dict[str, torch.Tensor]
) -> None:
    """The lists say which ranks there are."""
    for rank in range(4):
        change(copy / file(rank), every(without(2)))
        change(copy / file(rank), lambda state: state.pop("optimizer"))
    with ckpt.open(copy) as checkpoint:
        assert torch.equal(checkpoint["model.up.weight"].torch(), full["up.weight"])
    (copy / file(3)).unlink()
    assert findings(copy)["incomplete"][0].startswith(
        "the file of rank 3 is missing: model.up.weight lacks"
    )


def test_tied_tensors_stay_tied(copy: Path, tmp_path: Path) -> None:
    for rank in range(4):
        change(
            copy / file(rank),
            lambda state: state["model"].update(tied=state["model"]["up.weight"]),
        )
    assert inside("convert", "c", "-o", "o.pth", cwd=tmp_path).code == 0
    found = torch.load(tmp_path / "o.pth", weights_only=True)["model"]
    assert found["tied"].data_ptr() == found["up.weight"].data_ptr()


def test_replicas_that_differ_are_told(ranks: Path, tmp_path: Path) -> None:
    shutil.copytree(ranks / "fsdp1_hybrid", tmp_path / "c")
    change(
        tmp_path / "c/model.rank_3.pth",
        up(lambda tensor: local(tensor).tensor.flatten()[0].add_(1)),
    )
    text, names = findings(tmp_path / "c")["ranks-differ"]
    assert (
        text == "model.up.weight differs between rank 1 and rank 3: rank 1 is read"
    ), text
    assert names == ("model.up.weight",)
    done = inside("verify", "c", cwd=tmp_path)
    assert done.code == 1 and text.partition(":")[0] in done.out.decode(), done


@pytest.mark.parametrize("zipped", [True, False])
def test_whole_tensors_that_differ_are_told(zipped: bool, copy: Path) -> None:
    for rank in range(4):
        edit = (
            (lambda state: state["model"]["bn.running_mean"][:1].add_(1))
            if rank == 2
            else len
        )
        change(copy / file(rank), edit, _use_new_zipfile_serialization=zipped)
    text = "model.bn.running_mean differs between rank 0 and rank 2"
    assert ("ranks-differ" in findings(copy)) is zipped
    done = inside("verify", "c", cwd=copy.parent)
    assert done.code == 1 and text in done.out.decode(), done


def test_a_flipped_bit_is_found(copy: Path) -> None:
    part = local(
        torch.load(copy / file(2), weights_only=False)["model"]["up.weight"]
    ).tensor
    data = bytearray((copy / file(2)).read_bytes())
    data[data.index(part.numpy().tobytes()) + 5] ^= 1
    (copy / file(2)).write_bytes(data)
    done = inside("verify", "c", "--json", cwd=copy.parent)
    assert (
        done.code == 1
        and '"model.up.weight"' in done.out.decode()
        and file(2) in done.out.decode()
    ), done


@pytest.mark.slow
def test_a_list_that_many_tensors_share_meets_the_limit(copy: Path) -> None:
    """A few bytes of pickle for each tensor, and a million shards."""

    def sharing(state: dict[str, Any]) -> None:
        rows = listed(state["model"]["up.weight"])
        rows += [rows[0]] * 100_000
        for value in state["optimizer"]["state"]["up.weight"].values():
            if isinstance(value, ShardedTensor):
                value.raw[1].shards_metadata = rows

    change(copy / file(0), sharing)
    done = inside("inspect", file(0), "--limit", "memory=100MB", cwd=copy)
    assert done.code == 2 and b"memory" in done.err, done


def test_the_lists_of_further_ranks_take_no_memory(copy: Path) -> None:
    """They are as long as there are ranks, in each file: what is not needed any more is
    given back.
    """
    for rank in range(4):
        change(
            copy / file(rank),
            up(lambda tensor: listed(tensor).extend([empty_row(tensor)] * 5000)),
        )
    for path, setting, code in ((file(0), "memory=2MB", 2), (".", "memory=7MB", 0)):
        done = inside("inspect", path, "--limit", setting, cwd=copy)
        assert done.code == code, done

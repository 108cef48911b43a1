"""The files of the ranks of a run as torch writes them: each whole tensor is the one
that torch gathers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import train_ranks
from inside import inside

import ckpt
from ckpt import formats
from ckpt.model.places import Range
from ckpt.surface.api.checkpoint import Ref

pytestmark = oracle.QUIET


def leaves(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, torch.Tensor):
        yield path, value


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return (one.dtype, one.shape) == (two.dtype, two.shape) and torch.equal(
        one, two.detach()
    )


def got(ref: Ref) -> torch.Tensor:
    return ref.torch()


@pytest.fixture
def copy(ranks: Path, tmp_path: Path) -> Path:
    shutil.copytree(ranks / "fsdp2", tmp_path / "c")
    return tmp_path / "c"


def file(rank: int, world: int = 4) -> str:
    return f"model_world_size_{world}_rank_{rank}.pt"


@pytest.mark.parametrize("name", train_ranks.RANKS)
@pytest.mark.parametrize("blocks", ["usual", "small"])
def test_every_tensor_is_that_of_torch(
    name: str, blocks: str, ranks: Path, request: pytest.FixtureRequest
) -> None:
    if blocks == "small":
        request.getfixturevalue("small_blocks")
    full = dict(leaves(torch.load(ranks / f"{name}.full.pt", weights_only=False)))
    with ckpt.open(ranks / name) as checkpoint:
        assert checkpoint.checkpoint.format == "fsdp-ranks"
        names = {entry.path: entry.name for entry in checkpoint.checkpoint.tensors}
        assert set(names) == set(full)
        for path, tensor in full.items():
            assert same(got(checkpoint[names[path]]), tensor), path
        ids = [storage.id for storage in checkpoint.checkpoint.storages]
        assert len(set(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fsdp2", "hsdp", "tensor_parallel", "grids", "fsdp1_of_four", "fsdp1"]
)
@pytest.mark.parametrize("out", ["o.pth", "o.safetensors"])
def test_convert_writes_what_torch_gathers(
    name: str, out: str, ranks: Path, tmp_path: Path
) -> None:
    drop = ["--drop-other"] if out != "o.pth" else []
    exclude = ["--exclude", "complex64"] if name == "grids" and drop else []
    done = inside(
        "convert", str(ranks / name), "-o", out, *drop, *exclude, cwd=tmp_path
    )
    assert done.code == 0, done
    full = dict(leaves(torch.load(ranks / f"{name}.full.pt", weights_only=False)))
    if out == "o.pth":
        found = dict(leaves(torch.load(tmp_path / out, weights_only=True)))
        assert set(found) == set(full)
        assert all(same(found[path], tensor) for path, tensor in full.items())
        return
    with ckpt.open(tmp_path / out) as checkpoint:
        assert len(checkpoint) >= 4
        for key in checkpoint:
            path = (key,) if (key,) in full else ("model", key)
            assert same(got(checkpoint[key]), full[path]), key


def test_values_are_those_of_the_first_rank(ranks: Path) -> None:
    with ckpt.open(ranks / "fsdp2") as checkpoint:
        assert checkpoint.value("step") == 1
        assert checkpoint.value("optim.param_groups.0.lr") == 1e-3
        assert [row.name for row in checkpoint.sections if row.kind == "optimizer"] == [
            "optim"
        ]


def test_tied_tensors_stay_tied(ranks: Path, tmp_path: Path) -> None:
    with formats.open(str(ranks / "grids")) as checkpoint:
        tensors = {entry.name: entry.tensor for entry in checkpoint.tensors}
    assert tensors["tied"] is tensors["uneven"]
    assert (
        inside("convert", str(ranks / "grids"), "-o", "o.pth", cwd=tmp_path).code == 0
    )
    found = torch.load(tmp_path / "o.pth", weights_only=True)
    assert found["tied"].data_ptr() == found["uneven"].data_ptr()
    assert isinstance(found["parameter"], torch.nn.Parameter)


def test_no_tensor_data_is_read(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Range, "read_blocks", refuse)
    monkeypatch.setattr("ckpt.elements.fill._gather", refuse)
    with ckpt.open(ranks / "grids") as checkpoint, pytest.raises(AssertionError):
        checkpoint["columns"].numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ("verify", "fsdp2"),
            0,
            "intact: 35 tensors, 4 files of ranks, all checksums match",
        ),
        (("verify", "hsdp"), 0, "intact"),
        (
            ("verify", "fsdp1_of_four"),
            0,
            "intact: 35 tensors, 4 files of ranks, all checksums match",
        ),
        (("verify", "fsdp1_hybrid"), 0, "intact"),
        (("diff", "fsdp1_of_four", "fsdp1_of_four.full.pt"), 0, "same: 35 tensors"),
        (("diff", "fsdp1_of_four", "fsdp1"), 0, "same: 35 tensors"),
        (("diff", "fsdp1_hybrid", "fsdp1"), 0, "same: 35 tensors"),
        (
            ("inspect", "fsdp1_of_four"),
            0,
            "25 of 35 tensors along dimension 0, in up to 4 parts",
        ),
        (
            ("inspect", "fsdp1_of_four"),
            0,
            "unused.{weight,bias} (2 parameters) never had a gradient",
        ),
        (("get", "fsdp1_of_four", "iteration"), 0, "7"),
        (("slim", "fsdp1_of_four", "-o", "OUT/d.pth"), 0, "14 tensors"),
        (("diff", "fsdp2", "fsdp2.full.pt"), 0, "same: 35 tensors"),
        (("diff", "fsdp2", "fsdp2_of_two"), 0, "same: 35 tensors"),
        (("diff", "fsdp2", "hsdp"), 0, "same: 35 tensors"),
        (("sum", "accelerate"), 0, "up.weight"),
        (("stats", "accelerate"), 0, "up.weight"),
        (("get", "fsdp2", "model.scale"), 0, "shape [2]"),
        (
            ("inspect", "fsdp2"),
            0,
            (
                "torch.load opens the file of one rank; ckpt convert puts all of them "
                "together"
            ),
        ),
        (("slim", "fsdp2", "-o", "OUT/s.pth"), 0, "14 tensors"),
        (
            ("warmstart", "fsdp2", "--into", "accelerate.full.pt", "-o", "OUT/w.pth"),
            0,
            "loads 14 of 14",
        ),
        (
            ("inspect", "partial"),
            2,
            "sum of rank 0 is one summand of each rank (Partial)",
        ),
    ],
)
def test_commands(
    words: tuple[str, ...], code: int, says: str, ranks: Path, tmp_path: Path
) -> None:
    done = inside(*(word.replace("OUT", str(tmp_path)) for word in words), cwd=ranks)
    assert (done.code, says in " ".join((done.out + done.err).decode().split())) == (
        code,
        True,
    ), done


def test_ls_shows_one_row(ranks: Path) -> None:
    done = inside("ls", "fsdp2", "accelerate", "--tsv", cwd=ranks)
    rows = [line.split("\t")[:2] for line in done.out.decode().splitlines()[1:]]
    assert sorted(rows) == [["accelerate", "fsdp-ranks"], ["fsdp2", "fsdp-ranks"]], done


def test_verls_sets_are_one_checkpoint(ranks: Path, tmp_path: Path) -> None:
    """Files of the model, of the optimizer, and of what each rank keeps for itself."""
    for rank in range(2):
        name = file(rank, 2)
        state = torch.load(ranks / "fsdp2_of_two" / name, weights_only=False)
        torch.save(state["model"], tmp_path / name)
        torch.save(state["optim"], tmp_path / name.replace("model", "optim"))
        torch.save(
            {"rng": torch.tensor([rank])},
            tmp_path / name.replace("model", "extra_state"),
        )
    full = torch.load(ranks / "fsdp2_of_two.full.pt", weights_only=False)
    report = ckpt.inspect(tmp_path)
    (finding,) = [row for row in report.findings if row.code == "unread-file"]
    assert finding.message.startswith(
        "extra_state_world_size_2_rank_0.pt and 1 more file hold no parts"
    )
    with ckpt.open(tmp_path) as checkpoint:
        assert same(got(checkpoint["model.up.weight"]), full["model"]["up.weight"])
        moment = full["optim"]["state"]["up.weight"]["exp_avg"]
        assert same(got(checkpoint["optim.state.up.weight.exp_avg"]), moment)
        assert [row.kind for row in checkpoint.sections if row.name == "optim"] == [
            "optimizer"
        ]


def test_two_steps_in_one_folder_are_not_one_checkpoint(
    ranks: Path, tmp_path: Path
) -> None:
    for rank in range(2):
        for step in (1, 2):
            shutil.copy(
                ranks / "fsdp2_of_two" / file(rank, 2),
                tmp_path / f"model_{step}.rank_{rank}.pth",
            )
    done = inside("ls", ".", "--tsv", cwd=tmp_path)
    assert len(done.out.decode().splitlines()) == 5, done


def test_files_without_pieces_are_no_set(tmp_path: Path) -> None:
    """As DDP's ranks, each of which may save all."""
    for rank in range(2):
        torch.save({"w": torch.ones(2)}, tmp_path / f"model.rank{rank}.pth")
    done = inside("ls", ".", "--tsv", cwd=tmp_path)
    assert len(done.out.decode().splitlines()) == 3, done


# --- one file -------------------------------------------------------------------------


def test_a_file_alone_is_shown_as_the_part_that_it_is(ranks: Path) -> None:
    done = inside("inspect", file(3), "--all", cwd=ranks / "fsdp2")
    text = done.out.decode()
    assert (
        "3 of a mesh of 4 ranks; parts of 25 tensors by Shard(0); 10 tensors whole"
        in text
    ), text
    assert "[4, 8] of [16, 8] DTensor" in text
    done = inside("inspect", file(3), "--json", cwd=ranks / "fsdp2")
    rows = {row["name"]: row for row in json.loads(done.out)["tensors"]}
    row = rows["model.up.weight"]
    assert (row["shape"], row["numel"], row["parts"][0]["shape"]) == (
        [16, 8],
        32,
        [4, 8],
    )
    assert row["piece"] == {
        "rank": 3,
        "mesh": [4],
        "coordinate": [3],
        "placements": ["Shard(0)"],
    }
    assert "piece" not in rows["model.bn.running_mean"]


def test_a_strided_part_is_named(ranks: Path) -> None:
    done = inside("inspect", file(2), cwd=ranks / "tensor_parallel")
    text = " ".join(done.out.decode().split())
    assert (
        "2 of a mesh of 2 × 2 ranks; parts of 6 tensors by _StridedShard(0, 2), "
        "Shard(0)"
    ) in text, text


def test_two_files_are_not_compared_as_if_they_were_whole(ranks: Path) -> None:
    done = inside("diff", file(0), file(1), cwd=ranks / "fsdp2")
    text = done.out.decode()
    assert (
        "not compared: 25 tensors of which each file holds another part (rank 0 "
        "and rank 1 of one mesh)"
    ) in text
    assert "same: 10 tensors" in text and "frozen" not in text
    assert done.code == 2 and "25 tensors cannot be compared" in done.err.decode(), done
    done = inside("diff", file(0), file(1), "--json", cwd=ranks / "fsdp2")
    found = json.loads(done.out)
    assert found["same"] is False and found["totals"]["unchecked"] == 25
    assert {row["after"] for row in found["tensors"] if row.get("apart")} >= {
        "model.up.weight"
    }


def test_a_file_and_the_whole_are_not_compared(ranks: Path) -> None:
    for other in (ranks / "fsdp2", ranks / "fsdp2.full.pt"):
        done = inside("diff", file(0), str(other), cwd=ranks / "fsdp2")
        assert (
            done.code == 2 and "25 tensors cannot be compared" in done.err.decode()
        ), done


def shards_of(rank: int) -> str:
    return f"model_0000007.rank_{rank}.pth"


def test_sharded_tensors_of_two_ranks_are_not_compared(ranks: Path) -> None:
    """Those of FSDP 1. Two shards of equal bytes are not the same part, and two ranks
    without one have nothing equal.
    """
    done = inside("diff", shards_of(0), shards_of(1), cwd=ranks / "fsdp1_of_four")
    text = done.out.decode() + done.err.decode()
    assert (
        done.code == 2
        and "25 tensors cannot be compared" in text
        and "damaged" not in text
    ), done
    assert "same: 10 tensors" in text
    assert (
        "of which each file holds another part (rank 0 and rank 1 of one mesh)" in text
    )
    assert (
        inside("diff", shards_of(0), shards_of(0), cwd=ranks / "fsdp1_of_four").code
        == 0
    )
    done = inside(
        "diff",
        shards_of(2),
        shards_of(3),
        "--json",
        "--show",
        "all",
        cwd=ranks / "fsdp1_of_four",
    )
    rows = {row["after"]: row for row in json.loads(done.out)["tensors"]}
    assert rows["model.scale"].get("apart"), done  # two rows, on ranks 0 and 1


def test_replicas_of_shards_are_compared(ranks: Path, tmp_path: Path) -> None:
    """Ranks 1 and 3 of two groups of two."""
    names = [f"model.rank_{rank}.pth" for rank in range(4)]
    done = inside("diff", names[1], names[3], cwd=ranks / "fsdp1_hybrid")
    assert done.code == 0 and "same: 35 tensors" in done.out.decode(), done
    assert inside("diff", names[1], names[2], cwd=ranks / "fsdp1_hybrid").code == 2


def test_a_file_of_shards_is_shown_as_the_part_that_it_is(ranks: Path) -> None:
    """The rank is that of the run; the shards of a hybrid run name that of the
    group.
    """
    done = inside("inspect", "model.rank_3.pth", "--all", cwd=ranks / "fsdp1_hybrid")
    text = done.out.decode()
    assert "rank       3 of 4 ranks; shards of 25 tensors; 10 tensors whole" in text, (
        text
    )
    assert "[16, 8] ShardedTensor [8:16, 0:8] of rank 3" in text


@pytest.mark.parametrize(
    ("name", "file"),
    [("fsdp1_flat", "model.rank_3.pth"), ("dinov2", "model_0000007.rank_3.pth")],
)
def test_flat_parameters_are_shown_and_not_put_together(
    name: str, file: str, ranks: Path, tmp_path: Path
) -> None:
    """Nor are the plain slices that dinov2 saves beside them, which look like whole
    tensors.
    """
    done = inside("inspect", file, "--all", cwd=ranks / name)
    assert "[56] ShardedTensor [42:56] of rank 3" in done.out.decode(), done
    for words in (("inspect", name), ("convert", name, "-o", str(tmp_path / "o.pth"))):
        done = inside(*words, cwd=ranks)
        assert (done.code, done.out, done.err.count(b"\n")) == (2, b"", 1), done
        said = done.err.decode()
        assert (
            "_flat_param is all parameters of a module in one (LOCAL_STATE_DICT of "
            "FSDP 1)"
        ) in said
        assert (
            "neither their names nor their shapes" in said and "FULL_STATE_DICT" in said
        )
    assert not list(tmp_path.iterdir())


def test_slices_beside_flat_parameters_should_not_be_equal(ranks: Path) -> None:
    names = [f"model_0000007.rank_{rank}.pth" for rank in (0, 3)]
    done = inside("diff", *names, cwd=ranks / "dinov2")
    assert (
        done.code in (1, 2)
        and b"ranks-differ" not in done.out
        and b"each file holds another part" in done.out
    ), done


def test_what_is_replicated_is_no_part(ranks: Path) -> None:
    done = inside("diff", file(0), str(ranks / "grids"), cwd=ranks / "grids")
    assert "not compared: 18 tensors" in done.out.decode(), done


def test_the_same_rank_is_compared(ranks: Path, tmp_path: Path) -> None:
    state = torch.load(ranks / "fsdp2" / file(1), weights_only=False)
    state["model"]["up.weight"]._local_tensor[0, 0] += 1
    torch.save(state, tmp_path / file(1))
    done = inside("diff", str(ranks / "fsdp2" / file(1)), file(1), cwd=tmp_path)
    assert done.code == 1 and "1 changed, 34 same" in done.out.decode(), done


def test_replicas_are_compared(ranks: Path, tmp_path: Path) -> None:
    """Ranks 0 and 2 of a mesh of 2 × 2 hold the same parts."""
    folder = ranks / "hsdp"
    assert inside("diff", file(0), file(2), cwd=folder).code == 0
    state = torch.load(folder / file(2), weights_only=False)
    state["model"]["up.weight"]._local_tensor[0, 0] += 1
    torch.save(state, tmp_path / file(2))
    done = inside("diff", str(folder / file(0)), file(2), cwd=tmp_path)
    assert done.code == 1, done
    assert (
        "ranks-differ  up.weight (1 tensor) differs between rank 0 and rank 2."
        in done.out.decode()
    )


def test_whole_tensors_of_two_files_are_compared(ranks: Path, tmp_path: Path) -> None:
    state = torch.load(ranks / "fsdp2" / file(2), weights_only=False)
    state["model"]["bn.running_mean"][0] += 1
    torch.save(state, tmp_path / file(2))
    done = inside(
        "diff",
        str(ranks / "fsdp2" / file(0)),
        file(2),
        "--fail-on",
        "ranks-differ",
        cwd=tmp_path,
    )
    assert done.code == 1, done
    assert (
        "ranks-differ  bn.running_mean (1 tensor) differs between rank 0 and rank 2."
        in done.out.decode()
    )


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("command", ["convert", "slim"])
def test_one_rank_alone_names_the_folder(command: str, ending: str, copy: Path) -> None:
    """The weights of a model are tensors, and no option may drop them."""
    plain = ["--plain"] if (command, ending) == ("convert", "pth") else []
    done = inside(command, file(0), *plain, "-o", f"out.{ending}", cwd=copy)
    (error,) = done.complaints
    assert "those of rank 0 (the folder with the files of all ranks" in error
    assert "not a tensor" not in error and "--drop-other" not in error
    assert done.code == 2 and not (copy / f"out.{ending}").exists()
    shown = inside("inspect", file(0), cwd=copy).out.decode()
    assert "the folder with the files of all ranks is one checkpoint" in shown


def test_no_loader_reads_the_files_of_ranks(copy: Path) -> None:
    """Only ckpt puts them together, so no loader lacks the result."""
    done = inside("slim", ".", "-o", "../out.pth", cwd=copy)
    assert done.code == 0 and done.complaints == []

"""The ranks of tensor parallelism: several files with the same names, of which none is
a model by itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import frameworks_dcp as written
import oracle
import pytest
import safetensors.torch
import torch
from inside import inside

import ckpt
from ckpt.model.errors import CkptError
from ckpt.model.findings import Finding

pytestmark = oracle.QUIET
DIM, HIDDEN, WORDS, LAYERS = 16, 40, 24, 2
COLUMNS = ("tok_embeddings.weight", "attention.wo.weight", "feed_forward.w2.weight")


def llama(folder: Path, ranks: int = 2, *, params: bool = True, **kwargs: bool) -> Path:
    """The files that Meta publishes of a model on several GPUs."""
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    state = {
        "tok_embeddings.weight": torch.randn(WORDS, DIM),
        "norm.weight": torch.randn(DIM),
        "output.weight": torch.randn(WORDS, DIM),
        "rope.freqs": torch.randn(DIM // 4),
    }
    for layer in range(LAYERS):
        for name in ("wq", "wk", "wv", "wo"):
            state[f"layers.{layer}.attention.{name}.weight"] = torch.randn(DIM, DIM)
        for name, shape in (
            ("w1", (HIDDEN, DIM)),
            ("w2", (DIM, HIDDEN)),
            ("w3", (HIDDEN, DIM)),
        ):
            state[f"layers.{layer}.feed_forward.{name}.weight"] = torch.randn(*shape)
        for name in ("attention_norm", "ffn_norm"):
            state[f"layers.{layer}.{name}.weight"] = torch.randn(DIM)
    for rank in range(ranks):
        part = {
            name: tensor
            if tensor.dim() == 1
            else tensor.chunk(ranks, int(name.endswith(COLUMNS)))[rank].clone()
            for name, tensor in state.items()
        }
        torch.save(part, folder / f"consolidated.{rank:02}.pth", **kwargs)
    if params:
        (folder / "params.json").write_text(
            json.dumps({"dim": DIM, "n_layers": LAYERS})
        )
    return folder


def said(path: Path) -> str:
    """The message of the finding about ranks, or an empty text."""
    rows: list[Finding] = [
        row for row in ckpt.inspect(path).findings if row.code == "tensor-parallel"
    ]
    assert len(rows) < 2 and all(row.level == "warning" for row in rows)
    return rows[0].message if rows else ""


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("params", [True, False])
def test_the_ranks_of_llama_are_one_set(
    params: bool, ranks: int, tmp_path: Path
) -> None:
    folder = llama(tmp_path / "13B", ranks, params=params)
    divided = (
        "16 of 22 tensors are divided (11 along dimension 0, 5 along dimension 1), the "
        "others are copies"
    )
    assert said(folder) == (
        f"{ranks} ranks of tensor parallelism: {divided}; no file is a model by itself"
    )
    one = (
        f"rank 1 of {ranks} of tensor parallelism: {divided}; no file is a model by "
        "itself"
    )
    assert said(folder / "consolidated.01.pth") == one
    with ckpt.open(folder) as found:
        assert len(found) == 22 * ranks and "rank_01.norm.weight" in found
    assert ckpt.verify(folder).verdict == "intact"
    done = inside("ls", "13B", cwd=tmp_path)
    assert b"1 checkpoint," in done.err and b"tensor-parallel" in done.out
    done = inside("convert", "13B", "-o", "x.safetensors", cwd=tmp_path)
    assert (
        done.code == 2
        and f"{ranks} files of ranks".encode() in done.err
        and b"params" not in done.err
    )


def test_two_ranks_are_never_called_frozen(tmp_path: Path) -> None:
    folder = llama(tmp_path / "13B")
    report = ckpt.diff(folder / "consolidated.00.pth", folder / "consolidated.01.pth")
    assert [row.code for row in report.findings] == [
        "tensor-parallel"
    ] and not report.frozen
    (row,) = report.findings
    assert (
        "ranks 0 and 1 of 2 of tensor parallelism: 16 tensors differ, 6 are equal"
        in row.message
    )
    done = inside(
        "diff", "13B/consolidated.00.pth", "13B/consolidated.01.pth", cwd=tmp_path
    )
    assert done.code == 1 and b"did not change" not in done.out


def test_one_rank_of_two_steps_is_compared_as_before(tmp_path: Path) -> None:
    before, after = llama(tmp_path / "a"), llama(tmp_path / "b")
    state = torch.load(after / "consolidated.00.pth")
    state["output.weight"] += 1
    torch.save(state, after / "consolidated.00.pth")
    report = ckpt.diff(before / "consolidated.00.pth", after / "consolidated.00.pth")
    assert "frozen" in [row.code for row in report.findings]


def test_a_rank_alone_is_known_by_the_sizes_beside_it(tmp_path: Path) -> None:
    folder = llama(tmp_path / "13B", 4)
    for path in folder.glob("consolidated.0[123].pth"):
        path.unlink()
    message = said(folder / "consolidated.00.pth")
    assert (
        message.startswith("one of 4 ranks of tensor parallelism")
        and "params.json says dim 16" in message
    )
    assert "attention.wq.weight has 4 rows" in message
    (folder / "params.json").unlink()
    assert said(folder / "consolidated.00.pth") == ""


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"dim": "16"}', '{"dim": 17}', '{"dim": 0}']
)
def test_sizes_that_say_nothing_are_no_evidence(text: str, tmp_path: Path) -> None:
    folder = llama(tmp_path / "m", 1)
    (folder / "params.json").write_text(text)
    assert said(folder / "consolidated.00.pth") == ""


def test_a_whole_model_is_no_rank(tmp_path: Path) -> None:
    assert said(llama(tmp_path / "7B", 1) / "consolidated.00.pth") == ""


def test_a_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = llama(tmp_path / "70B", 4)
    (folder / "consolidated.02.pth").unlink()
    (row,) = [row for row in ckpt.inspect(folder).findings if row.code == "incomplete"]
    assert "1 of 4 ranks are missing: consolidated.02" in row.message
    assert said(folder / "consolidated.00.pth").startswith("rank 0 of 4 ")


def test_files_without_checksums_are_ranks_by_their_names(tmp_path: Path) -> None:
    folder = llama(tmp_path / "old", _use_new_zipfile_serialization=False)
    assert said(folder) == (
        "2 ranks of tensor parallelism: their names are equal; no file is a model "
        "by itself"
    )
    report = ckpt.diff(folder / "consolidated.00.pth", folder / "consolidated.01.pth")
    assert [row.code for row in report.findings] == ["tensor-parallel"]


def test_copies_and_files_of_other_names_are_no_ranks(tmp_path: Path) -> None:
    folder = llama(tmp_path / "m")
    shutil.copy(folder / "consolidated.00.pth", folder / "consolidated.01.pth")
    (folder / "params.json").unlink()
    assert said(folder / "consolidated.00.pth") == "" == said(folder)
    torch.save({"other": torch.ones(1)}, folder / "consolidated.01.pth")
    assert said(folder / "consolidated.00.pth") == ""


def test_a_damaged_file_beside_a_rank_says_nothing_of_it(tmp_path: Path) -> None:
    folder = llama(tmp_path / "m")
    (folder / "consolidated.01.pth").write_bytes(b"PK\x03\x04 cut")
    assert said(folder / "consolidated.00.pth").startswith(
        "rank 0 of 2 of tensor parallelism; "
    )
    with pytest.raises(CkptError):
        ckpt.open(folder / "consolidated.01.pth")


def test_the_ranks_of_megatron_say_so_too(tmp_path: Path) -> None:
    root = written.classic(tmp_path, 2, 2)
    folder = tmp_path / "iter_0000010"
    first, second = (
        folder / f"mp_rank_0{rank}_000/model_optim_rng.pt" for rank in (0, 1)
    )
    assert root and said(first).startswith("rank 0 of 2 of tensor parallelism: ")
    assert said(tmp_path).startswith("2 ranks of tensor parallelism: ")
    report = ckpt.diff(first, second)
    assert (
        "tensor-parallel" in [row.code for row in report.findings] and not report.frozen
    )


@pytest.mark.parametrize(
    "name", ["mp_rank_0{}_model_states.pt", "model-rank-{}-part-0.safetensors"]
)
def test_the_files_of_other_programs(name: str, tmp_path: Path) -> None:
    for rank in (0, 1):
        state = {
            "fc.weight": torch.full((4, 8), float(rank)),
            "norm.weight": torch.ones(8),
        }
        if name.endswith(".pt"):
            torch.save({"module": state}, tmp_path / name.format(rank))
        else:
            safetensors.torch.save_file(state, tmp_path / name.format(rank))
    assert said(tmp_path / name.format(1)).startswith(
        "rank 1 of 2 of tensor parallelism"
    )
    report = ckpt.diff(tmp_path / name.format(0), tmp_path / name.format(1))
    assert [row.code for row in report.findings] == ["tensor-parallel"]


def test_one_tensor_that_ranks_share_is_equal(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for rank in range(2):
        state = {
            "tok_embeddings.weight": torch.randn(WORDS, DIM // 2),
            "layers.0.attention.wq.weight": torch.randn(DIM // 2, DIM),
            "norm.weight": torch.ones(DIM),
        }
        torch.save(state, folder / f"consolidated.{rank:02}.pth")
    (folder / "params.json").write_text(json.dumps({"dim": DIM, "n_layers": 1}))

    report = ckpt.diff(folder / "consolidated.00.pth", folder / "consolidated.01.pth")
    (finding,) = [row for row in report.findings if row.code == "tensor-parallel"]
    assert finding.message.endswith(": 2 tensors differ, 1 is equal.")


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_folder_says_stands_once_among_the_values(
    ranks: int, tmp_path: Path
) -> None:
    """The iteration of one rank, and the name of each of several."""
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    for rank in range(ranks):
        folder = tmp_path / "iter_0000010" / f"mp_rank_{rank:02d}"
        folder.mkdir(parents=True)
        state = {
            "args": argparse.Namespace(tensor_model_parallel_size=ranks, num_layers=1),
            "iteration": 10,
            "model": {"decoder.layers.0.mlp.linear_fc1.weight": torch.randn(8, 4)},
        }
        torch.save(state, folder / "model_optim_rng.pt")

    done = inside("inspect", ".", cwd=tmp_path)

    assert done.code == 0, done.err
    (line,) = (line for line in done.lines if line.lstrip().startswith("values "))
    pieces = line.split("values", 1)[1].strip().split(" · ")
    assert pieces[0] == "iteration 10"
    names = [piece.split()[0] for piece in pieces]
    assert len(names) == len(set(names))
    if ranks > 1:
        assert "mp_rank_01 'tensor 1', 4 values (iteration 10)" in pieces

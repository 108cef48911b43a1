"""`--like`: names and shapes beside those of another save, where no file records how
large a tensor is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from inside import inside
from safetensors.torch import save_file

import ckpt

pytestmark = oracle.QUIET

HF = "shard-0000{}-model-00001-of-00001.safetensors"


def shards(folder: Path, count: int = 2) -> None:
    """What HuggingFaceStorageWriter(save_distributed=True) writes: rows of `w`, and `b`
    in the last file alone.
    """
    folder.mkdir()
    for rank in range(count):
        tensors = {"w": torch.full((2, 3), float(rank))}
        info = {"w": {"saved_offsets": [2 * rank, 0]}}
        if rank == 1:
            tensors["b"] = torch.ones(3)
            info["b"] = {"saved_offsets": [0]}
        metadata = {
            "DCP_SHARDING_INFO": json.dumps(info),
            "DCP_VERSION": "1.0",
            "format": "pt",
        }
        save_file(tensors, folder / HF.format(rank + 1), metadata)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    shards(tmp_path / "whole")
    shards(tmp_path / "cut", 1)
    state = {"w": torch.zeros(4, 3), "b": torch.zeros(3)}
    torch.save(state, tmp_path / "other.pth")
    torch.save(
        {"model": {f"module.{name}": value for name, value in state.items()}},
        tmp_path / "train.pth",
    )
    (tmp_path / "sums").write_bytes(inside("sum", "other.pth", cwd=tmp_path).out)
    return tmp_path


OTHERS = ("whole", "other.pth", "train.pth", "sums")


@pytest.mark.needs("dcp")
@pytest.mark.parametrize("other", OTHERS)
def test_verify(other: str, here: Path) -> None:
    done = inside("verify", "whole", "--like", other, "--json", cwd=here)
    report = json.loads(done.out)
    what = "names" if other == "sums" else "names and shapes"
    assert done.code == 0 and f"{what} as in {other}" in report["checked"], done
    assert any("would not be missed" in row for row in report["not_checked"]) == (
        other == "sums"
    )
    done = inside("verify", "cut", "--like", other, "--json", cwd=here)
    problems = {row["what"]: row["tensors"] for row in json.loads(done.out)["problems"]}
    assert done.code == 1 and problems[f"lacks 1 tensor of {other}"] == ["b"], done
    if other != "sums":
        text = f"1 tensor with another shape than in {other}: w is [2, 3], there [4, 3]"
        assert problems[text] == ["w"]


@pytest.mark.needs("dcp")
@pytest.mark.parametrize("command", ["convert", "slim"])
@pytest.mark.parametrize("other", OTHERS)
def test_writers_refuse(other: str, command: str, here: Path) -> None:
    out = "o.safetensors" if command == "convert" else "o.pth"
    done = inside(command, "cut", "--like", other, "-o", out, cwd=here)
    assert done.code == 2 and f"lacks 1 tensor of {other}: b" in done.err.decode(), done
    assert not (here / out).exists()
    assert (b"--partial" in done.err) == (other == "sums"), (
        "with another shape nothing is left to write"
    )
    done = inside(
        command, "cut", "--like", other, "--partial", "-o", out, "--json", cwd=here
    )
    if other != "sums":
        assert done.code == 2 and not (here / out).exists(), done
    else:
        assert done.code == 1, done
        assert {"name": "b", "what": "only in sums", "bytes": None} in json.loads(
            done.out
        )["left_out"]
    done = inside(command, "whole", "--like", other, "-o", f"whole-{out}", cwd=here)
    assert done.code == 0, done


@pytest.mark.needs("dcp")
def test_what_the_other_lacks(here: Path) -> None:
    done = inside("verify", "whole", "--like", "cut", cwd=here)
    assert done.code == 1 and b"1 tensor not in cut (b)" in done.out, done
    done = inside("convert", "other.pth", "--like", "whole", "-o", "o.pth", cwd=here)
    assert done.code == 0, done


def test_files_with_the_same_sections_are_compared_whole(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    state: dict[str, Any] = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, tmp_path / "a.pth")
    del state["optimizer"]["state"][1]["exp_avg"]
    torch.save(state, tmp_path / "b.pth")
    assert inside("verify", "a.pth", "--like", "a.pth", cwd=tmp_path).code == 0
    done = inside("verify", "b.pth", "--like", "a.pth", cwd=tmp_path)
    assert done.code == 1 and b"optimizer.state.1.exp_avg" in done.out, done


@pytest.mark.parametrize("words", [("verify",), ("convert", "-o", "o.safetensors")])
def test_an_other_that_is_neither(words: tuple[str, ...], here: Path) -> None:
    (here / "note.txt").write_text("hello")
    done = inside(words[0], "whole", *words[1:], "--like", "note.txt", cwd=here)
    assert done.code == 2 and b"note.txt" in done.err and done.err.count(b"\n") == 1, (
        done
    )


@pytest.mark.needs("dcp")
@pytest.mark.parametrize(
    "words",
    [
        ("convert", "cut", "-o", "o.safetensors"),
        ("slim", "cut", "-o", "o.pth"),
        ("rehome", "cut", "-o", "o.safetensors"),
        ("diff", "cut", "whole"),
        ("sum", "cut"),
        ("stats", "cut"),
    ],
)
def test_each_command_says_that_nothing_records_the_sizes(
    words: tuple[str, ...], here: Path
) -> None:
    done = inside(*words, cwd=here)
    assert b"files after shard-00001 would not be missed" in done.err, done


def test_the_section_of_like(here: Path) -> None:
    done = inside(
        "verify", "train.pth", "--like", "other.pth", "--section", "model", cwd=here
    )
    assert done.code == 0, done
    assert inside("verify", "train.pth", "--section", "model", cwd=here).code == 2
    assert ckpt.inspect(here / "train.pth").findings is not None

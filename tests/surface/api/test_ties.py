"""Tied weights: safetensors hold them once, and note the other name in the metadata, as
`safetensors.torch.save_model` does.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from inside import inside
from torch import nn


class Net(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(layers))
        self.head.weight = self.embed.weight


@pytest.fixture(params=[1, 40])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    net = Net(request.param)
    torch.save(net.state_dict(), tmp_path / "a.pth")
    safetensors.torch.save_model(net, str(tmp_path / "a.safetensors"))
    assert inside("convert", "a.pth", "-o", "b.safetensors", cwd=tmp_path).code == 0
    (tmp_path / "shards").mkdir()
    words = ("convert", "a.pth", "-o", "shards/a.safetensors", "--shard-size", "360")
    assert inside(*words, cwd=tmp_path).code == 0
    return tmp_path


CONVERTED = ("a.safetensors", "b.safetensors", "shards")


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_file_holds_the_same_weights(name: str, files: Path) -> None:
    """head.weight was called removed, and the sums of the source damaged."""
    number = len(torch.load(files / "a.pth"))
    for sides in (("a.pth", name), (name, "a.pth"), (name, "b.safetensors")):
        done = inside("diff", *sides, cwd=files)
        assert done.code == 0 and done.lines[-1] == f"same: {number} tensors", done
    sums = [{*inside("sum", each, cwd=files).lines} for each in ("a.pth", name)]
    assert (
        sums[0] == sums[1]
        and len([line for line in sums[0] if line[0] != "#"]) == number
    )
    for source, checked in (("a.pth", name), (name, "a.pth")):
        (files / "sums").write_bytes(inside("sum", source, cwd=files).out)
        assert inside("verify", checked, "--sums", "sums", cwd=files).code == 0
        assert inside("verify", checked, "--like", source, cwd=files).code == 0
        assert (
            inside(
                "convert",
                checked,
                "--like",
                source,
                "-o",
                "c.pth",
                "--dry-run",
                cwd=files,
            ).code
            == 0
        )


@pytest.mark.parametrize("name", CONVERTED)
def test_weights_that_are_tied_no_more_differ(name: str, files: Path) -> None:
    state = {key: tensor.clone() for key, tensor in torch.load(files / "a.pth").items()}
    state["head.weight"] = state["head.weight"] + 1
    torch.save(state, files / "b.pth")

    done = inside("diff", "b.pth", name, "--json", cwd=files)

    rows = {
        row["after"]: row["status"]
        for row in json.loads(done.out)["tensors"]
        if row["status"] != "same"
    }
    assert done.code == 1 and rows == {"head.weight": "changed"}


# --- a name that one side has, and the other does not save ----------------------------


@pytest.fixture
def dropped(files: Path) -> Path:
    """The same weights as transformers saves them: the tied name is not in the file,
    nor in its metadata.
    """
    state = torch.load(files / "a.pth")
    del state["head.weight"]
    safetensors.torch.save_file(
        state, files / "dropped.safetensors", metadata={"format": "pt"}
    )
    return files


SIDES = ("a.pth", "a.safetensors", "b.safetensors", "shards")


@pytest.mark.parametrize("name", SIDES)
def test_a_name_that_is_not_saved_is_no_difference(name: str, dropped: Path) -> None:
    number = len(torch.load(dropped / "a.pth")) - 1
    for sides in ((name, "dropped.safetensors"), ("dropped.safetensors", name)):
        done = inside("diff", *sides, cwd=dropped)
        assert done.code == 0 and done.lines[-1] == f"same: {number} tensors", done
        lines = [line for line in done.lines if "head.weight" in line]
        assert len(lines) == 1 and lines[0].startswith("tied: "), done
        document = json.loads(inside("diff", *sides, "--json", cwd=dropped).out)
        where = "after" if sides[1] == name else "before"
        assert [row[where] for row in document["tied"]] == [
            "head.weight"
        ] and not document["totals"]["removed"]
        strict = inside("diff", *sides, "--strict", cwd=dropped)
        assert strict.code == 1 and any(
            line.startswith("only on one side: ") for line in strict.lines
        )


@pytest.mark.parametrize("name", SIDES)
def test_sums_and_names_of_a_tie_fit_both_ways(name: str, dropped: Path) -> None:
    for source, checked in (
        (name, "dropped.safetensors"),
        ("dropped.safetensors", name),
    ):
        (dropped / "sums").write_bytes(inside("sum", source, cwd=dropped).out)
        for option, other in (
            ("--sums", "sums"),
            ("--like", source),
            ("--like", "sums"),
        ):
            done = inside("verify", checked, option, other, cwd=dropped)
            assert done.code == 0 and " intact: " in done.lines[0], done
            assert "do not name" not in done.lines[0]


def test_a_lost_tensor_of_equal_values_is_missing(tmp_path: Path) -> None:
    """Equal sums are no tie: two biases of zeros have one sum, too."""
    torch.save({"a": torch.zeros(3), "b": torch.zeros(3)}, tmp_path / "a.pth")
    torch.save({"a": torch.zeros(3)}, tmp_path / "b.pth")
    (tmp_path / "sums").write_bytes(inside("sum", "a.pth", cwd=tmp_path).out)
    assert inside("verify", "b.pth", "--sums", "sums", cwd=tmp_path).code == 1
    assert inside("verify", "b.pth", "--like", "a.pth", cwd=tmp_path).code == 1
    done = inside("diff", "a.pth", "b.pth", cwd=tmp_path)
    assert done.code == 1 and "1 removed" in done.lines[-1]


@pytest.mark.parametrize("command", ["slim", "convert"])
@pytest.mark.parametrize("source", ["a.pth", "a.safetensors"])
def test_what_lies_in_the_file_is_counted(
    command: str, source: str, files: Path
) -> None:
    number = len(torch.load(files / "a.pth")) - 1
    if command == "convert" and source == "a.safetensors":
        words: tuple[str, ...] = ("--dtype", "float16")
    else:
        words = ()
    done = inside(command, source, *words, "-o", "out.safetensors", cwd=files)
    assert done.code == 0 and any(
        line.endswith(f"   {number} tensors") or f" {number} tensors" in line
        for line in done.lines
    )
    assert any(line.startswith("tied, held once: ") for line in done.lines), done
    assert len(safetensors.torch.load_file(files / "out.safetensors")) == number
    done = inside(
        command, source, *words, "-o", "out.safetensors", "--force", "--json", cwd=files
    )
    assert json.loads(done.out)["tensors"] == number


@pytest.mark.parametrize("words", [(), ("--shard-size", "100kB")])
def test_a_name_without_a_dot_is_a_copy(words: tuple[str, ...], tmp_path: Path) -> None:
    """Such a name could be any text of the metadata, so the file holds both tensors."""
    shared = torch.randn(5)
    torch.save({"embed": shared, "head": shared, "net.a": shared}, tmp_path / "a.pth")
    done = inside("convert", "a.pth", "-o", "b.safetensors", *words, cwd=tmp_path)
    assert done.code == 0 and "   2 tensors" in done.lines[0]
    assert "tied, held once: net.a is embed" in done.lines
    [file] = tmp_path.glob("*.safetensors")
    assert set(safetensors.torch.load_file(file)) == {"embed", "head"}
    assert inside("diff", "a.pth", file.name, cwd=tmp_path).code == 0

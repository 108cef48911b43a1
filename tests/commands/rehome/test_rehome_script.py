"""`ckpt rehome` of TorchScript: the tags in its pickles change and nothing else does;
devices in its code are named.
"""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import exported
import oracle
import pytest
import scripted
import torch
from inside import inside
from process import check_error, ckpt
from torch import nn

from ckpt import formats

pytestmark = [*oracle.QUIET, pytest.mark.usefixtures("fresh_torch")]


def load(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(path))


def tags(path: Path) -> set[str | None]:
    with formats.open(str(path)) as checkpoint:
        return {storage.device for storage in checkpoint.storages}


def moved(source: Path, *options: str) -> Path:
    out = source.with_name("out.pt")
    done = ckpt("rehome", source, "-o", out, "--force", *options)
    assert done.code == 0, done.err
    return out


@pytest.mark.parametrize("kind", scripted.KINDS)
def test_a_program_runs_where_its_device_is_not(kind: str, tmp_path: Path) -> None:
    source = scripted.KINDS[kind](tmp_path / "a.pt")
    expected = load(source)
    scripted.tagged(source)
    with pytest.raises(RuntimeError):
        load(source)

    out = moved(source)

    assert tags(source) == {"cuda:0"} and tags(out) == {"cpu"}
    made = load(out)
    assert torch.equal(made(scripted.INPUT), expected(scripted.INPUT))
    assert made.state_dict().keys() == expected.state_dict().keys()
    before, after = scripted.records(source), scripted.records(out)
    assert list(before) == list(after)
    assert {name for name in before if before[name] != after[name]} <= set(
        scripted.PICKLES
    )


@pytest.mark.parametrize("kind", scripted.ONE_DEVICE)
def test_there_and_back_is_the_same_file(kind: str, tmp_path: Path) -> None:
    """Layout, padding, checksums and deflated code too."""
    source = scripted.KINDS[kind](tmp_path / "a.pt")
    there = moved(source, "--to", "cuda:1")

    assert tags(there) == {"cuda:1"} and there.read_bytes() != source.read_bytes()
    done = ckpt("rehome", there, "-o", tmp_path / "back.pt")
    assert done.code == 0 and (tmp_path / "back.pt").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("kind", ["lite", "frozen lite"])
def test_the_mobile_interpreter_loads_it(kind: str, tmp_path: Path) -> None:
    from torch.jit.mobile import _load_for_lite_interpreter

    source = scripted.KINDS[kind](tmp_path / "a.ptl")
    expected = load(source)(scripted.INPUT)
    scripted.tagged(source)
    with zipfile.ZipFile(moved(source)) as archive:
        left = archive.read("a/bytecode.pkl")

    assert torch.equal(
        _load_for_lite_interpreter(str(tmp_path / "out.pt"))(scripted.INPUT), expected
    )
    assert b"cuda" not in left


def test_the_bytecode_of_torch_1_7_has_storages_of_its_own(tmp_path: Path) -> None:
    source = scripted.tagged(scripted.KINDS["frozen lite"](tmp_path / "a.ptl"))
    with zipfile.ZipFile(source, "a") as archive:
        for name in [
            name for name in archive.namelist() if name.startswith("a/constants/")
        ]:
            archive.writestr(
                name.replace("/constants/", "/bytecode/"), archive.read(name)
            )

    with formats.open(str(source)) as checkpoint:
        assert sum(row.id.startswith("bytecode:") for row in checkpoint.storages) == 3
    out = moved(source)
    assert tags(out) == {"cpu"} and load(out)(scripted.INPUT).shape == (1, 3)
    with zipfile.ZipFile(out) as archive:
        assert b"cuda" not in archive.read("a/bytecode.pkl")


def test_texts_and_devices_beside_a_storage_stay(tmp_path: Path) -> None:
    """All three share one text in the pickle."""
    source = scripted.tagged(scripted.KINDS["script"](tmp_path / "a.pt"))

    out = moved(source)
    made = load(out)
    assert (made.name, str(made.device), made.large) == ("cuda:0", "cuda:0", 2**40)
    assert {str(tensor.device) for tensor in (made.weight, *made.more)} == {"cpu"}

    made = load(moved(source, "--objects"))
    assert (made.name, str(made.device)) == ("cuda:0", "cpu")
    said = ckpt("rehome", source, "-o", tmp_path / "b.pt", "--json")
    rows = {row["name"]: row["what"] for row in json.loads(said.out)["left_alone"]}
    assert rows == {"name": "'cuda:0'", "device": "device('cuda:0')"}
    text = ckpt("rehome", source, "--dry-run", "-o", tmp_path / "c.pt").out.decode()
    assert (
        "device('cuda:0')  (--objects to change it)" in text
        and "'cuda:0'  (" not in text
    )


class Many(nn.Module):
    """More texts than one byte numbers, and then a tensor."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(300):
            setattr(self, f"text{i}", f"text number {i}")
        self.dev = torch.device("cpu")
        self.register_buffer("late", torch.ones(2))
        self.register_buffer("later", torch.ones(3))

    def forward(self) -> torch.Tensor:
        return self.late


def test_many_texts(tmp_path: Path) -> None:
    torch.jit.script(Many()).save(str(tmp_path / "a.pt"))
    made = load(moved(scripted.tagged(tmp_path / "a.pt")))

    assert torch.equal(made(), torch.ones(2)) and str(made.dev) == "cuda:0"
    assert made.text299 == "text number 299" and str(made.later.device) == "cpu"


def test_one_device_of_two(tmp_path: Path) -> None:
    source = scripted.KINDS["lite"](tmp_path / "a.pt")
    source = scripted.KINDS["trace"](tmp_path / "b.pt")
    scripted.tagged(source, "cuda:0", ("data.pkl",))
    scripted.tagged(source, "cuda:1", ("constants.pkl",))
    assert tags(source) in ({"cuda:0"}, {"cuda:0", "cuda:1"})

    assert "cuda:7" in tags(moved(source, "--map", "cuda:0=cuda:7"))
    done = ckpt("rehome", source, "--map", "cuda:5=cpu", "-o", tmp_path / "c.pt")
    assert done.code == 0 and b"nothing to move" in done.out
    assert (tmp_path / "c.pt").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("kind", scripted.KINDS)
@pytest.mark.parametrize("copy", [False, True])
def test_in_place_and_back(kind: str, copy: bool, tmp_path: Path) -> None:
    source = scripted.KINDS[kind](tmp_path / "a.pt")
    expected = load(source)(scripted.INPUT)
    scripted.tagged(source)
    before = source.read_bytes()

    done = ckpt("rehome", "--in-place", source, *["--copy"] * copy)
    assert done.code == 0 and tags(source) == {"cpu"}, done.err
    assert torch.equal(load(source)(scripted.INPUT), expected)
    assert ckpt("verify", source).code == 0
    assert source.read_bytes().startswith(before) != copy
    assert source.read_bytes().count(b"CK\x08\0") == (not copy), (
        "one mark of where the old archive ends"
    )

    undone = ckpt("rehome", "--undo", source)
    assert undone.code == (2 if copy else 0)
    assert copy or source.read_bytes() == before


def test_an_interrupted_rewrite_is_taken_back(tmp_path: Path) -> None:
    source = scripted.tagged(scripted.KINDS["frozen lite"](tmp_path / "a.pt"))
    before = source.read_bytes()
    assert ckpt("rehome", "--in-place", source).code == 0
    whole = source.read_bytes()

    for cut in (len(before) + 40, (len(before) + len(whole)) // 2, len(whole) - 1):
        source.write_bytes(whole[:cut])
        assert ckpt("rehome", "--undo", source).code == 0
        assert source.read_bytes() == before


# --- devices in the code --------------------------------------------------------------


def test_devices_in_the_code_are_named_with_their_lines(tmp_path: Path) -> None:
    source = scripted.away(tmp_path / "a.pt")
    with zipfile.ZipFile(source) as archive:
        code = archive.read("a/code/__torch__/scripted.py").decode()
    lines = [i for i, line in enumerate(code.splitlines(), 1) if '"cuda:0"' in line]
    assert len(lines) == 2

    done = ckpt("rehome", source, "--to", "cuda:3", "-o", tmp_path / "b.pt")
    first = (
        f"left alone: code/__torch__/scripted.py:{lines[0]}: the code names cuda:0, 2 "
        f"times (lines {lines[0]}, {lines[1]})"
    )
    assert done.code == 0 and first.encode() in done.out
    assert b"names cuda:1, which map_location leaves too" in done.out

    said = ckpt("rehome", source, "-o", tmp_path / "c.pt", "--json")
    document = json.loads(said.out)
    assert [row["name"].rpartition(":")[0] for row in document["left_alone"]] == [
        "code/__torch__/scripted.py"
    ] * 3
    assert {row["what"].split(",")[0] for row in document["left_alone"]} == {
        "the code names cuda:0",
        "the code names cuda:1",
        "the code names cuda",
    }


class Both(nn.Module):
    """A device as an attribute, and the same one in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda:0")

    def forward(self) -> torch.Tensor:
        return torch.zeros(3, device=torch.device("cuda:0")) + torch.ones(
            3, device=self.device
        )


def test_objects_does_not_change_the_code(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Both())._save_for_lite_interpreter(str(tmp_path / "a.ptl"))
    before = scripted.records(tmp_path / "a.ptl")

    after = scripted.records(moved(tmp_path / "a.ptl", "--objects"))
    assert {name for name in before if before[name] != after[name]} == {"data.pkl"}


def test_devices_in_the_code_are_a_finding(tmp_path: Path) -> None:
    source = scripted.away(tmp_path / "a.ptl", lite=True)

    document = json.loads(ckpt("inspect", source, "--json").out)
    found = [row for row in document["findings"] if row["code"] == "device-in-code"]
    assert len(found) == 1 and found[0]["level"] == "info"
    assert len(found[0]["where"]) >= 5 and "bytecode.pkl" in found[0]["where"]
    assert ckpt("inspect", source, "--fail-on", "device-in-code").code == 1
    here = scripted.KINDS["script"](tmp_path / "b.pt")
    assert ckpt("inspect", here, "--fail-on", "device-in-code").code == 0


class Recurrent(nn.Module):
    """A trace of it names the device of the trace, in its own code and in that of
    torch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0] + torch.randn(1).to(x.device)  # type: ignore[no-any-return]


class Chosen(nn.Module):
    """A script, whose author names the CPU on purpose."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cpu() + torch.zeros(4, device=torch.device("cpu"))


@pytest.mark.needs("torchscript")
@pytest.mark.parametrize("frozen", [False, True])
def test_the_device_of_a_trace_is_a_finding_on_the_cpu_too(
    frozen: bool, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(
            Recurrent().eval(), torch.randn(2, 1, 4), check_trace=False
        )
        (torch.jit.freeze(traced) if frozen else traced).save(str(tmp_path / "a.pt"))

    document = json.loads(ckpt("inspect", tmp_path / "a.pt", "--json").out)
    (row,) = [row for row in document["findings"] if row["code"] == "device-in-code"]
    assert row["level"] == "info" and row["message"].startswith(
        "The code names cpu: code/__torch__"
    )
    assert len(row["where"]) == (3 if frozen else 4)
    # Where another LSTM was traced before, torch gives the file of this one another
    # name.
    lstm = re.compile(
        r"code/__torch__/torch/nn/modules/rnn(?:/___torch_mangle_\d+)?\.py:18"
    )
    assert frozen or any(lstm.fullmatch(place) for place in row["where"])
    assert "trace the model there, or script it" in row["consequence"]


def test_a_script_may_name_the_cpu(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Chosen()).save(str(tmp_path / "a.pt"))
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert [row.device for row in checkpoint.code_devices] == ["cpu"]
    assert b"device-in-code" not in ckpt("inspect", tmp_path / "a.pt").out


def test_a_device_in_a_text_of_the_code_is_none(tmp_path: Path) -> None:
    class Says(nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return 'use torch.device("cuda:0") and torch.cuda (x)'

    torch.jit.script(Says()).save(str(tmp_path / "a.pt"))
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert checkpoint.code_devices == ()


# --- what is refused ------------------------------------------------------------------


def test_an_exported_program_is_not_moved(tmp_path: Path) -> None:
    source = exported.written(tmp_path, "a.pt2", exported.pt2())
    check_error(
        ckpt("rehome", source, "-o", tmp_path / "b.pt2"),
        "is not moved: its program names devices beside",
    )
    assert not (tmp_path / "b.pt2").exists()


@pytest.mark.parametrize("command", ["strip", "rename"])
def test_names_stay(command: str, tmp_path: Path) -> None:
    source = scripted.KINDS["trace"](tmp_path / "a.pt")
    options = ["--sub", "s/fc/head/"] if command == "rename" else []
    done = ckpt(command, source, *options, "-o", tmp_path / "b.pt")

    check_error(done, "torchscript is not rewritten: its code uses the names")
    assert f"ckpt convert {source} -o" in done.err.decode()


def test_the_result_is_a_program_whatever_it_is_called(tmp_path: Path) -> None:
    source = scripted.tagged(scripted.KINDS["trace"](tmp_path / "a.pt"))

    done = ckpt("rehome", source, "-o", tmp_path / "b.safetensors")
    check_error(done, "this ending does not fit: the result stays torchscript")
    assert ckpt("rehome", source, "-o", tmp_path / "b.pth").code == 0
    load(tmp_path / "b.pth")
    assert ckpt("slim", source, "-o", tmp_path / "w.pth").code == 0
    assert set(
        torch.load(tmp_path / "w.pth", weights_only=True, map_location="cpu")
    ) == {
        "fc.weight",
        "fc.bias",
    }
    done = ckpt("convert", source, "-o", tmp_path / "c.pt", "--format", "torchscript")
    check_error(done, "does not write this format")


def test_torch_compiles_nothing(tmp_path: Path) -> None:
    source = scripted.tagged(scripted.KINDS["trace"](tmp_path / "a.pt"))
    done = inside("rehome", source, "-o", "b.pt", "--verify", "torch", cwd=tmp_path)

    assert (
        done.code == 0
        and b"that would compile its code; every byte was compared" in done.err
    )


def test_a_payload_is_not_passed_on(tmp_path: Path) -> None:
    source = scripted.tagged(scripted.KINDS["frozen"](tmp_path / "a.pt"))
    with zipfile.ZipFile(source) as archive:
        found = {row: archive.read(row) for row in archive.namelist()}
    evil = b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R0" + found["a/data.pkl"][2:]
    with zipfile.ZipFile(source, "w") as archive:
        for name, data in found.items():
            archive.writestr(name, evil if name == "a/data.pkl" else data)

    done = ckpt("rehome", source, "-o", tmp_path / "b.pt")
    assert done.code == 2 and not (tmp_path / "b.pt").exists()

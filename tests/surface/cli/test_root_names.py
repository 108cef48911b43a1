"""Files whose root is one call, one tensor or one value: messages name its place. And
which commands say an error in JSON alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside
from opcodes import call, glob, pickled, torch_zip
from process import check_error

pytestmark = oracle.QUIET


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "call.pth").write_bytes(
        torch_zip(pickled(call(glob("builtins", "print"), "hi")), {})
    )
    (tmp_path / "call.pkl").write_bytes(pickled(call(glob("builtins", "print"), "hi")))
    torch.save(torch.ones(2), tmp_path / "dense.pth")
    torch.save(torch.ones(2).to_sparse(), tmp_path / "sparse.pth")
    return tmp_path


@pytest.mark.parametrize("name", ["call.pth", "call.pkl"])
def test_a_call_at_the_root_has_a_place(name: str, folder: Path) -> None:
    done = inside("convert", name, "--plain", "-o", "out.pth", cwd=folder)
    check_error(done, "cannot be made plain: (the root) (builtins.print)")
    done = inside(
        "convert", name, "--plain", "--drop-other", "-o", "out.pth", cwd=folder
    )
    assert "left out: (the root): builtins.print" in done.lines
    assert (
        "cannot be made plain: (the root) (builtins.print)"
        in inside("inspect", name, cwd=folder).out.decode()
    )


@pytest.mark.parametrize(
    "command", [("convert",), ("convert", "--drop-other"), ("salvage",)], ids=" ".join
)
def test_a_tensor_at_the_root_has_a_place(
    command: tuple[str, ...], folder: Path
) -> None:
    done = inside(*command, "sparse.pth", "-o", "out.safetensors", cwd=folder)
    assert "(the root) " in check_error(done)


@pytest.mark.parametrize("name", ["call.pth", "call.pkl", "dense.pth", "sparse.pth"])
@pytest.mark.parametrize(
    "command",
    [
        ("slim",),
        ("convert", "--plain"),
        ("convert", "--plain", "--drop-other"),
        ("strip",),
        ("salvage",),
        ("rehome",),
    ],
    ids=" ".join,
)
def test_no_line_has_an_empty_place(
    command: tuple[str, ...], name: str, folder: Path
) -> None:
    for out in ("out.pth", "out.safetensors"):
        done = inside(*command, name, "-o", out, "--force", cwd=folder)
        text = (done.out + done.err).decode()
        assert ":  " not in text and ": :" not in text and ", so  (" not in text, text


@pytest.mark.parametrize("command", ["ls", "lint", "verify", "inspect", "stats", "sum"])
def test_the_line_of_an_error_beside_json(command: str, tmp_path: Path) -> None:
    done = inside(command, "missing.pth", "--json", cwd=tmp_path)
    assert done.code == 2 and json.loads(done.lines[0])

    is_in_document = command in ("ls", "lint", "verify")
    assert (b"no such file" in done.err) == (not is_in_document)

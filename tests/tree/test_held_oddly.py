"""Nodes that hold each other as nobody writes them: a command reads them in time, and
shows what is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import opcodes as op
import oracle
import pytest
import torch
from gadgets import made
from inside import inside
from opcodes import build, call, glob, newobj, pickled, torch_zip, value
from process import ckpt

from ckpt.formats import open
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET


def test_parameters_around_each_other_are_refused(tmp_path: Path) -> None:
    """A file of 30 KB with 400 of them took `inspect` 7 s, and one of 3,000 hours."""
    rebuild = glob("torch._utils", "_rebuild_parameter_with_state")
    program = op.tensor() + op.put(1)
    for _ in range(400):
        inner = call(rebuild, op.get(1), False, op.ordered_dict(), {"a": 1})
        program += op.pop() + inner + op.put(1)
    (tmp_path / "x.pth").write_bytes(torch_zip(pickled({"x": program})))
    with pytest.raises(CkptError, match="parameters lie around each other"):
        open(str(tmp_path / "x.pth"))


@pytest.mark.parametrize("levels", [1, 2_000])
def test_a_setting_that_is_tagged_with_a_type_is_read(
    levels: int, tmp_path: Path
) -> None:
    """A setting of OmegaConf in itself, with a tag between both, was a bug in ckpt."""
    tag = glob("torch.jit._pickle", "restore_type_tag")
    program = glob("omegaconf.dictconfig", "DictConfig") + value(()) + newobj()
    program += op.put(1) + value({"_content": call(tag, op.get(1), "int")}) + build()
    for _ in range(levels - 1):
        outer = made(
            "omegaconf.nodes", "AnyNode", {"_val": call(tag, op.get(1), "int")}
        )
        program += op.pop() + outer + op.put(1)
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"w.weight": op.tensor(), "x": program})))
    for command in ("inspect", "ls", "get"):
        names = ["w.weight"] if command == "get" else []
        done = ckpt(command, path, *names)
        assert done.code in (0, 2) and b"bug in ckpt" not in done.err


def test_a_setting_that_copyreg_makes_is_read(tmp_path: Path) -> None:
    """Without content it was looked for in itself, and that was a bug in ckpt."""
    cls = glob("omegaconf.base", "ContainerMetadata")
    path = tmp_path / "x.pth"
    program = call(glob("copyreg", "__newobj__"), cls)
    path.write_bytes(torch_zip(pickled({"w.weight": op.tensor(), "x": program})))
    done = ckpt("inspect", path)
    assert done.code == 0 and b"bug in ckpt" not in done.err


@pytest.mark.parametrize(
    ("name", "parts"),
    [("PosixPath", ("a", "/b")), ("PureWindowsPath", ("a", "c:b"))],
)
def test_a_path_that_begins_anew_shows_its_parts(
    name: str, parts: tuple[str, str], tmp_path: Path
) -> None:
    """Python drops what stands before a part from the root, and ckpt showed `a//b`."""
    path = tmp_path / "x.pth"
    path.write_bytes(
        torch_zip(pickled({"w": op.tensor(), "x": call(glob("pathlib", name), *parts)}))
    )
    done = ckpt("get", path, "x")
    assert done.code == 0 and b"2 fields" in done.out


def test_letters_beyond_unicode_are_no_text(tmp_path: Path) -> None:
    """numpy loads the array, and fails where it makes a text of it."""
    texts = np.array(["ab", "c"])
    codes = texts.view(np.uint32)
    codes[1] = 0x110000
    torch.save({"x": texts}, tmp_path / "x.pth")
    run = inside("get", "x.pth", "x", cwd=tmp_path)
    assert "\ufffd" not in run.out.decode()
    document = json.loads(inside("get", "x.pth", "x", "--json", cwd=tmp_path).out)
    assert "\ufffd" not in json.dumps(document, ensure_ascii=False)

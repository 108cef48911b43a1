"""Keys that Python cannot hash, in every dict that a command looks into: it answers in
one line, and nothing is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import opcodes as op
import process
import pytest
from opcodes import build, glob, mapping, newobj, pickled, torch_zip, value

ODD = {
    "a list": value([]),
    "a dict": op.empty_dict(),
    "a tuple that holds a list": value(([],)),
}
"""Keys that `hash` refuses. torch refuses the file, and ckpt shows it."""
COMMANDS = (
    ("inspect", "--values"),
    ("lint", "--no-config", "--read-values"),
    ("report", "-o", "-"),
    ("slim", "--dry-run"),
    ("strip", "--dry-run"),
    ("rename", "--sub", "/^/m./", "--dry-run"),
    ("rehome", "--to", "cuda:1", "--dry-run"),
    ("convert", "--plain", "-o", "out.pth", "--force"),
    ("convert", "--drop-other", "-o", "out.safetensors", "--force"),
    ("salvage", "-o", "out.pth", "--force"),
    ("set", "epoch=3", "--dry-run"),
    ("average", "weights.pth", "--dry-run"),
    ("warmstart", "--into", "weights.pth", "--dry-run"),
    ("diff", "weights.pth"),
)


def state_dict(key: bytes) -> bytes:
    """A state dict whose `_metadata` has an odd key."""
    versions = mapping([("", {"version": 1}), (key, {"version": 1})])
    weights = op.ordered_dict() + op.mark() + value("module.w") + op.tensor()
    return weights + op.setitems() + value({"_metadata": versions}) + build()


def module(key: bytes) -> bytes:
    """A module whose only child has an odd key."""
    tables = {"_parameters": {}, "_buffers": {}, "_modules": mapping([(key, None)])}
    made = glob("torch.nn.modules.container", "Sequential") + op.empty_tuple()
    return made + newobj() + value({"training": False, **tables}) + build()


def training(key: bytes) -> bytes:
    """Weights with dicts of odd keys beside them and above them."""
    beside = mapping([(key, 1), ("base_lrs", [0.1]), ("last_epoch", 3)])
    rows = [("state_dict", {"w": op.tensor()}), ("scheduler", beside), (key, 1)]
    return mapping([*rows, ("epoch", 3), ("loops", mapping([(key, 1)]))])


def optimizer(key: bytes) -> bytes:
    """The state of an optimizer with odd keys."""
    group = mapping([("params", [0]), ("lr", 0.1), (key, 1)])
    state = mapping([(0, mapping([("exp_avg", op.tensor()), (key, 1)])), (key, 1)])
    inner = mapping([("state", state), ("param_groups", [group])])
    return value({"model": {"w": op.tensor()}, "optimizer": inner})


MAKERS = (state_dict, module, training, optimizer)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_key_is_no_bug(
    maker: Callable[[bytes], bytes], odd: str, tmp_path: Path
) -> None:
    weights = torch_zip(pickled(value({"w": op.tensor()})))
    (tmp_path / "weights.pth").write_bytes(weights)
    program = maker(ODD[odd])
    (tmp_path / "x.pth").write_bytes(torch_zip(pickled(program)))
    for command, *options in COMMANDS:
        done = process.ckpt(command, "x.pth", *options, cwd=tmp_path)
        assert b"bug in ckpt" not in done.err, (command, *options)
        assert done.code in (0, 1, 2), (command, *options)
    into = ("warmstart", "weights.pth", "--into", "x.pth", "-o", "out.pth", "--force")
    assert b"bug in ckpt" not in process.ckpt(*into, cwd=tmp_path).err


def test_an_odd_key_in_a_folder_is_no_bug(tmp_path: Path) -> None:
    from folders import accelerate

    accelerate(tmp_path / "run")
    for name in ("random_states_0.pkl", "scheduler.bin", "optimizer.bin"):
        kept = (tmp_path / "run" / name).read_bytes()
        program = mapping([(value([]), 1), ("step", 0), ("last_epoch", 2)])
        (tmp_path / "run" / name).write_bytes(torch_zip(pickled(program)))
        for command in ("inspect", "ls", "lint", "verify"):
            done = process.ckpt(command, "run", cwd=tmp_path)
            assert b"bug in ckpt" not in done.err, (name, command)
        (tmp_path / "run" / name).write_bytes(kept)


@pytest.mark.needs("warmstart")
def test_parts_beside_an_odd_key_are_left_out(tmp_path: Path) -> None:
    """The result of warmstart holds no counter of the old weights, whatever keys stand
    beside it.
    """
    weights = torch_zip(pickled(value({"w": op.tensor()})))
    (tmp_path / "weights.pth").write_bytes(weights)
    target = mapping([("model", {"w": op.tensor()}), ("epoch", 3), (value([]), 1)])
    (tmp_path / "x.pth").write_bytes(torch_zip(pickled(target)))
    arguments = ("warmstart", "weights.pth", "--into", "x.pth", "--dry-run")
    done = process.ckpt(*arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    assert b"epoch" in done.out

"""Keys that a dict sets twice: the last value counts, at the place of the first, as in
Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import opcodes as op
import pytest
import torch
from inside import inside
from process import ckpt
from same import difference

from ckpt import formats

FLAT = op.tensor(size=(6,), stride=(1,))
DICTS: dict[str, tuple[bytes, list[tuple[str, Any]]]] = {
    "text": (
        op.mapping([("w", op.tensor()), ("v", FLAT), ("w", FLAT)]),
        [("w", (6,)), ("v", (6,))],
    ),
    "a tensor first": (
        op.mapping([("w", op.tensor()), ("n", FLAT), ("w", 2)]),
        [("n", (6,))],
    ),
    "a tensor last": (
        op.mapping([("w", 2), ("n", 1), ("w", op.tensor())]),
        [("w", (2, 3))],
    ),
    "equal numbers": (
        op.mapping([(1, 5), (True, 6), (1.0, op.tensor())]),
        [("1", (2, 3))],
    ),
    "tuples": (
        op.mapping([((1, "a"), 5), ((1, "a"), op.tensor())]),
        [("(1, 'a')", (2, 3))],
    ),
    "two opcodes": (
        op.mapping([("w", op.tensor())]) + op.text("w") + FLAT + op.setitem(),
        [("w", (6,))],
    ),
    "an OrderedDict": (
        op.ordered_dict()
        + op.mark()
        + op.text("w")
        + op.tensor()
        + op.text("w")
        + FLAT
        + op.setitems(),
        [("w", (6,))],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DICTS)
@pytest.mark.parametrize("more", [0, 64, 2_100])
def test_the_last_value_counts(kind: str, more: int, tmp_path: Path) -> None:
    program, tensors = DICTS[kind]
    if more:
        program += (
            op.mark()
            + b"".join(op.text(f"layer.{n}") + FLAT for n in range(more))
            + op.setitems()
        )
        tensors = [*tensors, *((f"layer.{n}", (6,)) for n in range(more))]
    path = tmp_path / "a.pt"
    path.write_bytes(op.torch_zip(op.pickled(program)))

    with formats.open(str(path)) as checkpoint:
        assert [
            (entry.name, entry.tensor.shape) for entry in checkpoint.tensors
        ] == tensors
        (notice,) = checkpoint.account.notices
        assert notice.code == "ambiguous-name"
        assert (
            "is set twice in one dict" in notice.message
            and "the last value counts" in notice.message
        )
    assert (
        inside("rehome", "--to", "cuda:0", "a.pt", "-o", "b.pt", cwd=tmp_path).code == 0
    )
    want = torch.load(path, weights_only=False)
    assert (
        difference(
            torch.load(tmp_path / "b.pt", weights_only=False, map_location="cpu"), want
        )
        is None
    )


def test_a_call_whose_result_is_lost_is_still_reported(tmp_path: Path) -> None:
    evil = op.call(op.glob("posix", "system"), "true")
    (tmp_path / "a.pt").write_bytes(
        op.torch_zip(op.pickled(op.mapping([("w", evil), ("w", op.tensor())])))
    )

    done = ckpt("inspect", "a.pt", cwd=tmp_path)

    assert done.code == 0 and b"DANGER" in done.out and b"posix.system" in done.out


def test_the_arguments_of_a_call_of_python_2_are_seen(tmp_path: Path) -> None:
    held = op.call(op.glob("shop", "Box"), op.tensor())
    for module in ("__builtin__", "builtins"):
        method = op.call(op.glob(module, "getattr"), held, "method")
        (tmp_path / "a.pt").write_bytes(
            op.torch_zip(op.pickled(op.mapping([("w", method)])))
        )

        checkpoint = formats.open(str(tmp_path / "a.pt"))
        assert len(checkpoint.tensors) == 1, module

"""Files that torch in C++ writes (`torch::pickle_save`): each list and dict lies in a
call that notes its type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import opcodes as op
import pytest
import torch
from inside import inside
from same import difference

from ckpt import formats
from ckpt.model.errors import UnreadableError

SIZES = (3, 64, 2_100)


def weights(count: int, prefix: str = "") -> dict[str, torch.Tensor]:
    return {
        f"{prefix}layer{index}.weight": torch.full((2, 3), float(index))
        for index in range(count)
    }


def written(path: Path, thing: Any) -> Path:
    path.write_bytes(torch._C._pickle_save(thing))
    return path


@pytest.mark.parametrize(
    "thing",
    [
        weights(3),
        {"model": weights(3)},
        [torch.ones(2), torch.zeros(3)],
        (
            [1, 2],
            [1.5],
            [True],
            ["x"],
            [[1], [2, 3]],
            {"k": 1},
            {1: torch.ones(2)},
            None,
            2 + 3j,
        ),
    ],
    ids=["state dict", "nested", "list", "lists of all types"],
)
def test_names_and_values_are_those_of_the_same_content_from_python(
    thing: Any, tmp_path: Path
) -> None:
    written(tmp_path / "cpp.pt", thing)
    torch.save(thing, tmp_path / "python.pt")
    found = []
    for name in ("cpp.pt", "python.pt"):
        with formats.open(str(tmp_path / name)) as checkpoint:
            found.append(
                (
                    [(entry.name, entry.path) for entry in checkpoint.tensors],
                    [(value.name, value.type) for value in checkpoint.values],
                    [(row.name, row.type, row.keys) for row in checkpoint.containers],
                )
            )

    assert found[0] == found[1]
    assert inside("diff", "cpp.pt", "python.pt", cwd=tmp_path).code == 0


@pytest.mark.parametrize("count", [3, 64, pytest.param(2_100, marks=pytest.mark.slow)])
def test_the_types_stay_for_torch_in_cpp(count: int, tmp_path: Path) -> None:
    written(tmp_path / "a.pt", {"model": weights(count, "module.")})

    assert inside("strip", "a.pt", "-o", "b.pt", cwd=tmp_path).code == 0

    assert torch._C._pickle_load_obj((tmp_path / "b.pt").read_bytes()).keys() == {
        "model"
    }
    assert b"Dict[str, Dict[str, Tensor]]" in (tmp_path / "b.pt").read_bytes()
    loaded = torch.load(tmp_path / "b.pt", weights_only=False)
    assert difference(loaded, {"model": weights(count)}) is None


@pytest.mark.slow
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("command", ["slim", "convert --plain"])
def test_what_weights_only_loads_has_no_types(
    command: str, count: int, tmp_path: Path
) -> None:
    written(tmp_path / "a.pt", weights(count))

    assert inside(*command.split(), "a.pt", "-o", "b.pt", cwd=tmp_path).code == 0

    assert (
        difference(torch.load(tmp_path / "b.pt", weights_only=True), weights(count))
        is None
    )


def tagged(value: bytes, name: str = "restore_type_tag") -> bytes:
    return op.call(op.glob("torch.jit._pickle", name), value, "Dict[str, Tensor]")


def test_tags_around_tags(tmp_path: Path) -> None:
    program = op.tensor()
    for _ in range(5_000):
        program = tagged(program)
    (tmp_path / "a.pt").write_bytes(op.torch_zip(op.pickled(op.value({"w": program}))))

    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert [entry.name for entry in checkpoint.tensors] == ["w"]


@pytest.mark.parametrize(
    "program",
    [
        tagged(op.empty_dict()) + op.text("later") + op.tensor() + op.setitem(),
        op.call(op.glob("torch.jit._pickle", "build_tensorlist"), [])
        + op.tensor()
        + op.append(),
        op.call(op.glob("torch.jit._pickle", "restore_type_tag"), op.empty_dict()),
        op.call(op.glob("torch.jit._pickle", "build_intlist"), [1], [2]),
    ],
    ids=["items set", "items appended", "no type", "two lists"],
)
def test_what_torch_does_not_write_is_refused(program: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(op.torch_zip(op.pickled(program)))

    with pytest.raises(
        UnreadableError,
        match=r"damaged pickle: (restore_type_tag|build_\w+list) at byte",
    ):
        formats.open(str(path))

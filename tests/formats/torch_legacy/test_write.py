"""The stream before 1.6: what torch makes from data that comes after the pickle is
refused, and told of files that have it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from same import difference
from saved import OBJECTS
from torch import nn

from ckpt import formats


def quantized_module() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.Linear(4, 3)), {nn.Linear}, torch.qint8
    )  # type: ignore[no-any-return]


NESTED = OBJECTS["nested"]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nested": (lambda: {"a": {"n": NESTED()}}, "a.n (a nested tensor)"),
    "a nested Parameter": (lambda: {"n": nn.Parameter(NESTED())}, "(a nested tensor)"),
    "Generator": (
        lambda: {"w": torch.ones(2), "rng": torch.Generator()},
        "rng (a torch.Generator)",
    ),
    "Generator alone": (torch.Generator, "the root (a torch.Generator)"),
    "packed": (quantized_module, "(packed parameters of a quantized module)"),
    "convolution": (
        lambda: torch.ao.nn.quantized.Conv2d(2, 3, 1),
        "(packed parameters of a quantized module)",
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", REFUSED)
def test_what_torch_makes_from_data_is_refused(kind: str, tmp_path: Path) -> None:
    thing, text = REFUSED[kind]
    torch.save(thing(), tmp_path / "a.pt")

    done = inside(
        "convert", "a.pt", "--format", "torch-legacy", "-o", "b.pt", cwd=tmp_path
    )

    assert done.code == 2 and not (tmp_path / "b.pt").exists()
    assert "ckpt: a.pt: torch-legacy cannot hold " in done.err.decode()
    assert f"{text} (ckpt convert --format torch-zip holds them)\n" in done.err.decode()


@pytest.mark.parametrize("kind", ["nested", "Generator", "packed"])
def test_a_legacy_file_of_torch_with_such_an_object_is_rescued(
    kind: str, tmp_path: Path
) -> None:
    """torch itself writes it, and then fails, or reads other numbers."""
    thing = REFUSED[kind][0]()
    torch.save(thing, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    with formats.open(str(tmp_path / "a.pt")) as checkpoint:
        assert str(checkpoint.not_loadable).endswith("from the legacy format")

    assert (
        inside(
            "convert", "a.pt", "--format", "torch-zip", "-o", "b.pt", cwd=tmp_path
        ).code
        == 0
    )

    torch.save(thing, tmp_path / "c.pt")
    found, want = (
        torch.load(tmp_path / name, weights_only=False) for name in ("b.pt", "c.pt")
    )
    if kind == "packed":
        found, want = found.state_dict(), want.state_dict()
    assert difference(found, want) is None


WITHOUT = {"wrapper subclass", "DTensor", "module of this file"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in OBJECTS if kind not in WITHOUT])
def test_every_other_object_loads_to_the_same_or_is_refused(
    kind: str, tmp_path: Path
) -> None:
    torch.save({"w": torch.ones(2), "it": OBJECTS[kind]()}, tmp_path / "a.pt")

    done = inside(
        "convert", "a.pt", "--format", "torch-legacy", "-o", "b.pt", cwd=tmp_path
    )

    if done.code:
        assert (
            done.code == 2
            and done.err.startswith(b"ckpt: a.pt: ")
            and b"a bug in ckpt" not in done.err
        )
        return
    found, want = (
        torch.load(tmp_path / name, weights_only=False) for name in ("b.pt", "a.pt")
    )
    assert difference(found, want) is None

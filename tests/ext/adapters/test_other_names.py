"""Adapters whose layers all have other names than those of the base: work that grows
with layers × layers would not end.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inside import inside

from ckpt.ext.adapters import base as names

LAYERS = 400
FORMS = ("{side}{row}.x{side}.proj", "{side}x{word}.proj", "{word}{side}.{word}.fc")


def word(row: int) -> str:
    """A word without numbers, another one for each row."""
    return "".join("abcdefghij"[int(digit)] for digit in f"{row:04}")


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_layers_that_all_have_other_names(
    form: str, flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [
        [form.format(side=side, row=row, word=word(row)) for row in range(LAYERS)]
        for side in "pq"
    ]
    adapter = {}
    for layer in sides[0]:
        if flat:
            begin = f"lora_unet_{layer.replace('.', '_')}"
            ends = (".lora_down.weight", ".lora_up.weight")
        else:
            begin = f"base_model.model.{layer}"
            ends = (".lora_A.weight", ".lora_B.weight")
        adapter[begin + ends[0]] = torch.ones(1, 2)
        adapter[begin + ends[1]] = torch.ones(2, 1)
    torch.save(adapter, tmp_path / "adapter.pth")
    base = {f"{layer}.weight": torch.ones(2, 2) for layer in sides[1]}
    torch.save(base, tmp_path / "base.pth")
    looked: list[str] = []

    def counted(text: str) -> list[str]:
        looked.append(text)
        return find_numbers(text)

    find_numbers = names._find_numbers
    monkeypatch.setattr(names, "_find_numbers", counted)
    monkeypatch.setattr(names, "_MOST", 20)
    done = inside("inspect", "adapter.pth", "--base", "base.pth", cwd=tmp_path)

    is_met = "{row}" in form and not flat
    assert done.code == (0 if is_met else 1), done
    assert len(looked) < 40 * LAYERS

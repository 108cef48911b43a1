"""A merge into a quantised base is refused, with the command that makes floats of it:
pasted, it works.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import quantised_layers as layers
import torch
from process import ckpt
from safetensors.torch import load_file, save_file

NAMES = [name for name in layers.LAYERS if len(layers.LAYERS[name][0]()[1].shape) == 2]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("name", NAMES)
def test_the_command_for_floats_works_when_it_is_pasted(
    name: str, ending: str, tmp_path: Path
) -> None:
    torch.manual_seed(len(name))
    tensors, weight = layers.LAYERS[name][0]()
    state = {f"model.fc.{key}": tensor.contiguous() for key, tensor in tensors.items()}
    base, lora = tmp_path / f"base.{ending}", tmp_path / "lora.safetensors"
    save_file(state, base) if ending == "safetensors" else torch.save(state, base)
    down, up = torch.randn(2, weight.shape[1]), torch.randn(weight.shape[0], 2)
    adapter = {"model.fc.lora_A.weight": down, "model.fc.lora_B.weight": up}
    save_file({**adapter, "model.fc.alpha": torch.tensor(2.0)}, lora)

    words = ["merge", str(base), str(lora), "-o", str(tmp_path / "out.safetensors")]
    done = ckpt(*words)
    assert done.code == 2 and not (tmp_path / "out.safetensors").exists()
    said = done.err.decode()
    assert "to which nothing can be added" in said and said.count("\n") == 1
    command = said[said.index("(ckpt convert ") + 1 : said.rindex(")")]
    questions = (
        ["inspect", str(lora), "--base", str(base)],
        ["diff", str(base), str(base), "--adapter", str(lora)],
    )
    for question in questions:
        asked = ckpt(*question)
        assert command in " ".join((asked.err + asked.out).decode().split()), question

    pasted = shlex.split(command)
    assert ckpt(*pasted[1:]).code == 0
    words[1] = pasted[-1]
    assert ckpt(*words).code == 0
    found = load_file(tmp_path / "out.safetensors")["model.fc.weight"]
    assert torch.equal(
        found, (weight.float() + up @ down).to(weight.dtype)
    ) or torch.allclose(
        found.float(),
        (weight.float() + up @ down).to(weight.dtype).float(),
        rtol=1e-2,
        atol=1e-2,
    )

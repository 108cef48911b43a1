"""The attributes of wrappers in names: which are taken off, and which a model may use
itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import folders
import oracle
import pytest
import torch
from inside import inside

from ckpt.evidence.wrappers import (
    adapted_layers,
    base_name,
    inner_wrappers,
    is_adapted,
    own_name,
    unwrapped_name,
    usual_prefix,
    wrapper_prefix,
)

pytestmark = oracle.QUIET


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("module.weight", "module."),
        ("_orig_mod.module.fc.weight", "_orig_mod.module."),
        ("module.module.fc.weight", "module.module."),
        ("module.module", "module."),
        ("module", ""),
        ("module.", ""),
        ("module.a", "module."),
        ("modules.weight", ""),
        ("fc.module.weight", ""),
    ],
)
def test_leading_wrappers_leave_a_name(name: str, prefix: str) -> None:
    assert wrapper_prefix(name) == prefix
    assert unwrapped_name(name) == name[len(prefix) :]


def test_inside_of_a_name_only_private_attributes_are_wrappers() -> None:
    assert own_name("a._orig_mod.b.module.weight") == "a.b.module.weight"
    assert unwrapped_name("module.a._orig_mod.b.weight") == "a.b.weight"
    assert unwrapped_name("a.module.b._orig_mod") == "a.module.b._orig_mod", (
        "the last part is a tensor's own"
    )


def test_of_an_attribute_that_comes_twice_inside_the_first_is_named() -> None:
    assert inner_wrappers("module.a._orig_mod.b._orig_mod.weight") == [
        ("_orig_mod", "module.a._orig_mod.")
    ]
    assert inner_wrappers("a.module.weight") == []


def test_the_usual_prefix_is_that_of_most_names_and_of_equally_many_the_first() -> None:
    assert usual_prefix(["module.a", "b", "module.c"]) == "module."
    assert usual_prefix(["a", "module.b"]) == ""
    assert usual_prefix(["module.a", "b"]) == "module."
    assert usual_prefix([]) == ""


# --- PEFT -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("base_model.model.h.0.attn.base_layer.weight", "h.0.attn.weight"),
        ("base_model.model.h.0.attn.lora_A.default.weight", "h.0.attn.lora_A.weight"),
        ("base_model.model.h.0.attn.lora_B.my_task.bias", "h.0.attn.lora_B.bias"),
        ("base_model.model.h.0.attn.lora_A.weight", "h.0.attn.lora_A.weight"),
        (
            "base_model.model.h.0.attn.lora_magnitude_vector.default.weight",
            "h.0.attn.lora_magnitude_vector.weight",
        ),
        ("base_model.model.wte.lora_embedding_A.default", "wte.lora_embedding_A"),
        ("base_model.model.wte.lora_embedding_A", "wte.lora_embedding_A"),
        ("base_model.model.head.modules_to_save.default.weight", "head.weight"),
        ("fc.weight", "fc.weight"),
        ("base_layer.weight", "base_layer.weight"),
        ("lora_A.weight", "lora_A.weight"),
    ],
)
def test_the_name_in_the_base_model(name: str, base: str) -> None:
    assert base_name(name) == base
    assert base_name(base) == base, "once is enough"


def test_layers_are_named_once() -> None:
    names = [
        "base_model.model.a.0.lora_A.weight",
        "base_model.model.a.0.lora_B.weight",
        "base_model.model.e.lora_embedding_B",
    ]
    assert adapted_layers([*names, "base_model.model.head.weight"]) == ["a.0", "e"]
    assert is_adapted(names) and not is_adapted(["lora.weight", "model.base.weight"])


def test_an_adapted_model_and_its_base(tmp_path: Path) -> None:
    net = folders.model()
    torch.save(folders.adapted(net), tmp_path / "peft.pth")
    torch.save(net.state_dict(), tmp_path / "base.pth")
    found: Any = json.loads(
        inside("diff", "peft.pth", "base.pth", "--json", cwd=tmp_path).out
    )
    assert found["totals"]["same"] == len(net.state_dict())
    assert {
        row["before"] for row in found["tensors"] if row["status"] == "removed"
    } == {
        "base_model.model.0.lora_A.default.weight",
        "base_model.model.0.lora_B.default.weight",
    }
    words = ("warmstart", "peft.pth", "--into", "base.pth", "-o", "out.pth")
    assert (
        inside(*words, cwd=tmp_path).code == 1
    )  # what the adapter has learnt would be left out
    done = inside(*words, "--min-coverage", "0", cwd=tmp_path)
    assert done.code == 0 and done.lines[0].startswith("loads 9 of 9 tensors, 100 %")
    for name, value in torch.load(tmp_path / "out.pth").items():
        assert torch.equal(value, net.state_dict()[name])


@pytest.mark.needs("folders")
def test_an_adapter_and_the_model_that_it_trained(tmp_path: Path) -> None:
    folders.adapter(tmp_path / "lora")
    torch.save(folders.adapted(folders.model()), tmp_path / "peft.pth")
    found: Any = json.loads(
        inside("diff", "lora", "peft.pth", "--json", cwd=tmp_path).out
    )
    assert (
        found["totals"]["same"] == 2
        and found["totals"]["changed"] == found["totals"]["removed"] == 0
    )


@pytest.mark.needs("folders", "adapters")
def test_inspect_names_the_layers(tmp_path: Path) -> None:
    folders.adapter(tmp_path / "lora")
    lines = inside("inspect", "lora", cwd=tmp_path).lines
    assert "          changes 1 layer of the base model: 0" in lines
    assert any("rank 8 · alpha 16 · base model 'org/base'" in line for line in lines)


def test_two_tensors_never_become_one(tmp_path: Path) -> None:
    """A copy of a layer and the layer itself would both be called `2.weight`: the names
    stay as they are.
    """
    state = folders.adapted(folders.model())
    state["base_model.model.2.weight"] = torch.ones(1)
    torch.save(state, tmp_path / "peft.pth")
    torch.save(folders.weights(folders.model()), tmp_path / "base.pth")
    done = inside("diff", "peft.pth", "base.pth", "--json", cwd=tmp_path)
    assert done.code == 1 and json.loads(done.out)["totals"]["changed"] == 0

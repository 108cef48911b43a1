"""Names of one place in a file and in a model: other words, other numbers, other norms.

Each command that is printed is run, and its result is loaded.
"""

from __future__ import annotations

from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered, raised
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = oracle.QUIET

# --- a word with its number -----------------------------------------------------------


def darknet(*, is_new: bool, norm: str = "BatchNorm2d") -> nn.Module:
    """The layers of a list, with the names of YOLOv3 before and after August 2019."""
    layers = nn.ModuleList()
    for number in range(12):
        layer = nn.Sequential()
        layer.add_module("Conv2d" if is_new else f"conv_{number}", nn.Conv2d(2, 2, 1))
        layer.add_module(norm if is_new else f"batch_norm_{number}", nn.BatchNorm2d(2))
        layers.append(layer)
    model = nn.Module()
    model.module_list = layers
    return model


def test_a_number_in_a_word_is_the_number_of_its_layer(tmp_path: Path) -> None:
    old, new = darknet(is_new=False), darknet(is_new=True)
    torch.save({"model": old.state_dict(), "epoch": 3}, tmp_path / "backup.pt")

    found = Answered(
        raised(lambda: new.load_state_dict(old.state_dict())), tmp_path / "backup.pt"
    )

    assert found.code == 0
    assert "BatchNorm2d for batch_norm_<n>" in found.said
    state = torch.load(found.run("ckpt rename"))["model"]
    new.load_state_dict(state)
    for value, other in zip(new.parameters(), old.parameters(), strict=True):
        assert torch.equal(value, other)


def test_another_word_in_one_place_is_not_renamed(tmp_path: Path) -> None:
    old, new = darknet(is_new=False), darknet(is_new=True, norm="Whitening")
    torch.save(old.state_dict(), tmp_path / "backup.pt")

    found = Answered(
        raised(lambda: new.load_state_dict(old.state_dict())), tmp_path / "backup.pt"
    )

    assert not any("Whitening" in command for command in found.commands)
    assert "Whitening for" not in found.said


def test_one_of_two_words_alike_is_no_pair(tmp_path: Path) -> None:
    torch.save(
        {"net.0.conv_0.weight": torch.ones(2), "net.0.conv.weight": torch.zeros(2)},
        tmp_path / "a.pth",
    )

    found = Answered(
        "RuntimeError: Error(s) in loading state_dict for Net:\n"
        '\tMissing key(s) in state_dict: "net.0.Conv2d.weight". \n'
        '\tUnexpected key(s) in state_dict: "net.0.conv_0.weight", '
        '"net.0.conv.weight". ',
        tmp_path / "a.pth",
    )

    assert not found.commands or not any(
        command.startswith("ckpt rename") for command in found.commands
    )


# --- layers in one order --------------------------------------------------------------


class Normed(nn.Linear):
    """A layer with its norm inside, as TD-MPC2 has it since its release."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.ln = nn.LayerNorm(outputs)


def flat_world(first: int = 6) -> nn.Module:
    model = nn.Module()
    for name in ("_encoder", "_reward"):
        layers = [nn.Linear(first, 8), nn.LayerNorm(8), nn.Mish()]
        layers += [nn.Linear(8, 5), nn.LayerNorm(5)]
        part = nn.Module()
        part.state = nn.Sequential(nn.Identity(), *layers)
        model.add_module(name, part)
    for value in model.parameters():
        nn.init.normal_(value)
    return model


def nested_world(hidden: int = 8) -> nn.Module:
    model = nn.Module()
    for name in ("_encoder", "_reward"):
        part = nn.Module()
        part.state = nn.Sequential(Normed(6, hidden), Normed(hidden, 5))
        model.add_module(name, part)
    return model


def test_layers_in_one_order_are_renumbered(tmp_path: Path) -> None:
    old, new = flat_world(), nested_world()
    torch.save({"model": old.state_dict()}, tmp_path / "dog.pt")

    found = Answered(
        raised(lambda: new.load_state_dict(old.state_dict())), tmp_path / "dog.pt"
    )

    assert "_encoder.state.2 is _encoder.state.0.ln" in found.said
    assert "by their places alone" in found.said
    new.load_state_dict(torch.load(found.run("ckpt rename"))["model"])
    ours, theirs = new.state_dict(), old.state_dict()
    for one, two in (("0", "1"), ("0.ln", "2"), ("1", "4"), ("1.ln", "5")):
        for part in ("weight", "bias"):
            assert torch.equal(
                ours[f"_reward.state.{one}.{part}"],
                theirs[f"_reward.state.{two}.{part}"],
            )


def test_a_shape_of_the_message_speaks_against_an_order(tmp_path: Path) -> None:
    old, new = flat_world(), nested_world(hidden=9)
    torch.save({"model": old.state_dict()}, tmp_path / "dog.pt")

    found = Answered(
        raised(lambda: new.load_state_dict(old.state_dict())), tmp_path / "dog.pt"
    )

    assert "size mismatch" in raised(lambda: new.load_state_dict(old.state_dict()))
    assert "In their order" not in found.said
    assert not any(command.startswith("ckpt rename") for command in found.commands)


# --- norms of two kinds ---------------------------------------------------------------


def normed(kind: str, *, names: str) -> nn.Module:
    model = nn.Module()
    for number in range(3):
        model.add_module(f"conv{number}", nn.Conv2d(4, 4, 1))
        norm = nn.GroupNorm(2, 4) if kind == "group" else nn.BatchNorm2d(4)
        model.add_module(f"{names}{number}", norm)
    return model


@pytest.mark.parametrize("kind", ["group", "batch"])
def test_norms_of_two_kinds_are_two_models(kind: str, tmp_path: Path) -> None:
    names = {"group": "gn", "batch": "bn"}
    other = "batch" if kind == "group" else "group"
    old = normed(kind, names=names[kind])
    new = normed(other, names=names[other])
    torch.save(old.state_dict(), tmp_path / "a.pth")

    found = Answered(
        raised(lambda: new.load_state_dict(old.state_dict())), tmp_path / "a.pth"
    )

    assert "These are two models" in found.said
    is_group = "the file has group or layer normalization" in found.said
    assert is_group is (kind == "group")
    assert not found.commands


# --- adapters, and what is built later ------------------------------------------------


def lora_names(end: str) -> list[str]:
    return [
        f"blocks.{number}.to_q.lora_{part}{end}.weight"
        for number in range(2)
        for part in "AB"
    ]


def unexpected_text(names: list[str]) -> str:
    return (
        "Loading adapter weights from state_dict led to unexpected keys found in the "
        f"model: {', '.join(names)}."
    )


def test_the_name_of_an_adapter_is_taken_out(tmp_path: Path) -> None:
    state = {name: torch.randn(2, 2) for name in lora_names(".default")}
    save_file(state, tmp_path / "a.safetensors")

    found = Answered(
        unexpected_text(lora_names(".default.default")), tmp_path / "a.safetensors"
    )

    assert found.kind == "keys" and "these have it twice" in found.said
    made = load_file(found.run("ckpt rename"))
    assert sorted(made) == sorted(lora_names(""))
    for name, value in state.items():
        assert torch.equal(made[name.replace(".default", "")], value)


def test_a_model_without_these_layers_of_lora(tmp_path: Path) -> None:
    save_file(
        {name: torch.randn(2, 2) for name in lora_names("")}, tmp_path / "a.safetensors"
    )

    found = Answered(
        unexpected_text(lora_names(".default")), tmp_path / "a.safetensors"
    )

    assert "the model has no layer of LoRA at blocks.0.to_q" in found.said
    assert "Is it the file" not in found.said
    assert not any(command.startswith("ckpt rename") for command in found.commands)


def test_fsdp_lacks_a_layer_of_lora(tmp_path: Path) -> None:
    begin = "_fsdp_wrapped_module.base_model.model."
    names = [begin + name for name in lora_names(".default")]
    torch.save({name: torch.ones(2, 2) for name in names}, tmp_path / "a.pt")
    lost = f"{begin}blocks.2.to_q.lora_B.default.weight"

    found = Answered(
        f"AssertionError: FSDP assumes {lost} is in the state_dict but the state_dict "
        f"only has odict_keys({names}).",
        tmp_path / "a.pt",
    )

    assert "none at _fsdp_wrapped_module.base_model.model.blocks.2.to_q" in found.said
    assert "with the depth, of that run" in found.said
    assert "loads as it was trained" not in found.said
    assert "puts its attribute in front" not in found.page


def test_a_model_that_has_no_layers_yet(tmp_path: Path) -> None:
    class Later(nn.Module):
        pass

    state = nn.Linear(3, 2).state_dict(prefix="layer.")
    torch.save({"state_dict": state, "epoch": 0}, tmp_path / "a.ckpt")

    found = Answered(
        raised(lambda: Later().load_state_dict(state)), tmp_path / "a.ckpt"
    )

    assert "no parameters at all when it was loaded" in found.said
    assert "configure_model" in found.said


# --- one key of many, and sizes of sound ----------------------------------------------


def test_torch_before_0_4_stops_at_the_first_key(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    state = {**model.state_dict(), "sub_mean.weight": torch.ones(1)}
    state["add_mean.weight"] = torch.ones(1)
    torch.save(state, tmp_path / "latest.pt")

    found = Answered(
        "KeyError: 'unexpected key \"sub_mean.weight\" in state_dict'",
        tmp_path / "latest.pt",
    )

    assert "others may follow" in found.said
    (line,) = found.commands
    exec(
        line.replace('"latest.pt"', repr(str(tmp_path / "latest.pt"))),
        {"model": model, "torch": torch},
    )


def test_outputs_are_the_bins_of_a_spectrum(tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 1025).state_dict(prefix="fc2."), tmp_path / "a.pt")

    found = Answered(
        "size mismatch for fc2.weight: copying a param with shape torch.Size([1025, "
        "4]) from checkpoint, the shape in current model is torch.Size([513, 4]).",
        tmp_path / "a.pt",
    )

    assert "set n_fft (filter_length) to 2,048" in found.said


def test_names_of_diffusers_are_not_converted_again(tmp_path: Path) -> None:
    names = ["time_embedding.linear_1.weight", "down_blocks.0.resnets.0.conv1.weight"]
    save_file({name: torch.ones(2) for name in names}, tmp_path / "a.safetensors")

    found = Answered("KeyError: 'time_embed.0.weight'", tmp_path / "a.safetensors")

    assert "has the names of diffusers already" in found.said
    assert "another architecture" not in found.said


def test_an_adapter_of_ia3_is_named(tmp_path: Path) -> None:
    name = "lora_unet_down_blocks_0_attentions_0_attn1_to_k"
    save_file(
        {f"{name}.weight": torch.ones(4), f"{name}.on_input": torch.tensor(False)},
        tmp_path / "a.safetensors",
    )

    found = Answered(
        f"lora key not loaded: {name}.on_input\nlora key not loaded: {name}.weight",
        tmp_path / "a.safetensors",
    )

    assert "IA3" in found.said and "no LoRA" in found.said

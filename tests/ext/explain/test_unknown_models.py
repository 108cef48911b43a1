"""Files and models of programs that no page knows: what is said of them by their names
and shapes alone.

Each row is a pair of models in the form of many public ones. A command that is printed
is run, and its result holds the tensors that the model asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered
from inside import folder_of
from process import ckpt
from torch import Tensor, nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]

Shapes = dict[str, tuple[int, ...]]


def linear(place: str, outputs: int, inputs: int, *, bias: bool = True) -> Shapes:
    weight: Shapes = {f"{place}.weight": (outputs, inputs)}
    return {**weight, f"{place}.bias": (outputs,)} if bias else weight


def conv(place: str, outputs: int, inputs: int, *, bias: bool = False) -> Shapes:
    weight: Shapes = {f"{place}.weight": (outputs, inputs, 3, 3)}
    return {**weight, f"{place}.bias": (outputs,)} if bias else weight


def norm(place: str, size: int) -> Shapes:
    return {f"{place}.weight": (size,), f"{place}.bias": (size,)}


def batch_norm(place: str, size: int) -> Shapes:
    return {
        **norm(place, size),
        f"{place}.running_mean": (size,),
        f"{place}.running_var": (size,),
        f"{place}.num_batches_tracked": (),
    }


def resnet(classes: int = 10, stages: int = 4) -> Shapes:
    shapes = {**conv("conv1", 4, 3), **batch_norm("bn1", 4)}
    for stage in range(1, stages + 1):
        for block in range(2):
            place = f"layer{stage}.{block}"
            shapes |= conv(f"{place}.conv1", 4, 4) | batch_norm(f"{place}.bn1", 4)
        if stage > 1:
            place = f"layer{stage}.0.downsample"
            shapes |= conv(f"{place}.0", 4, 4) | batch_norm(f"{place}.1", 4)
    return {**shapes, **linear("fc", classes, 4)} if classes else shapes


def vit(depth: int = 4, *, is_fused: bool = True) -> Shapes:
    shapes: Shapes = {"cls_token": (1, 1, 4), "pos_embed": (1, 17, 4)}
    for number in range(depth):
        place = f"blocks.{number}"
        shapes |= norm(f"{place}.norm1", 4)
        if is_fused:
            shapes |= linear(f"{place}.attn.qkv", 12, 4)
        else:
            for part in "qkv":
                shapes |= linear(f"{place}.attn.{part}", 4, 4)
        shapes |= linear(f"{place}.attn.proj", 4, 4) | norm(f"{place}.norm2", 4)
        shapes |= linear(f"{place}.mlp.fc1", 8, 4) | linear(f"{place}.mlp.fc2", 4, 8)
    return {**shapes, **norm("norm", 4), **linear("head", 10, 4)}


def lstm(place: str = "", *, layers: int = 2, gates: int = 4) -> Shapes:
    shapes: Shapes = {}
    for layer in range(layers):
        for side in ("ih", "hh"):
            shapes[f"{place}weight_{side}_l{layer}"] = (4 * gates, 4)
        for side in ("ih", "hh"):
            shapes[f"{place}bias_{side}_l{layer}"] = (4 * gates,)
    return shapes


def renamed(shapes: Shapes, *rules: tuple[str, str | Callable[..., str]]) -> Shapes:
    result: Shapes = {}
    for name, shape in shapes.items():
        for pattern, new in rules:
            name = re.sub(pattern, new, name)
        result[name] = shape
    return result


def state_of(shapes: Shapes) -> dict[str, Tensor]:
    return {
        name: torch.randn(*shape) if shape else torch.tensor(3)
        for name, shape in shapes.items()
    }


def error_text(state: Mapping[str, Tensor], model: Shapes) -> str:
    """The error of `load_state_dict` for a model of these names and shapes."""
    missing = [
        name
        for name in model
        if name not in state and not name.endswith("num_batches_tracked")
    ]
    unexpected = [name for name in state if name not in model]
    text = "RuntimeError: Error(s) in loading state_dict for Net:\n"
    for kind, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            listed = ", ".join(f'"{name}"' for name in names)
            text += f"\t{kind} key(s) in state_dict: {listed}. \n"
    for name, shape in model.items():
        if name in state and tuple(state[name].shape) != shape:
            text += (
                f"\tsize mismatch for {name}: copying a param with shape "
                f"{state[name].shape} from checkpoint, the shape in current model is "
                f"{torch.Size(shape)}.\n"
            )
    return text


def asked(state: Mapping[str, Tensor], model: Shapes, folder: Path) -> Answered:
    torch.save(dict(state), folder / "a.pth")
    return Answered(error_text(state, model), folder / "a.pth")


# --- names that a command gives -------------------------------------------------------

BACKBONE = resnet(classes=0)


def counted_on(found: re.Match[str]) -> str:
    return f"layers.{int(found[1]) - 1}"


def next_block(found: re.Match[str]) -> str:
    return f"blocks.{int(found[1]) + 1}"


def unet(words: tuple[str, str]) -> Shapes:
    shapes: Shapes = {}
    for number in range(1, 4):
        place = f"down{number}.{words[0]}.1.{words[1]}"
        shapes |= conv(f"{place}.0", 4, 4) | batch_norm(f"{place}.1", 4)
    return shapes


RENAMED = {
    "numbers that begin elsewhere": (
        renamed(resnet(), (r"^layer(\d)", counted_on)),
        resnet(),
        {"layers.0": "layer1", "layers.1": "layer2"}
        | {"layers.2": "layer3", "layers.3": "layer4"},
    ),
    "blocks that are counted from one": (
        vit(),
        renamed(vit(), (r"^blocks\.(\d)", next_block)),
        {f"blocks.{number}": f"blocks.{number + 1}" for number in range(4)},
    ),
    "a list with a layer more before it": (
        linear("net.0", 8, 4) | linear("net.2", 8, 8) | linear("net.4", 3, 8),
        linear("net.1", 8, 4) | linear("net.3", 8, 8) | linear("net.5", 3, 8),
        {"net.0": "net.1", "net.2": "net.3", "net.4": "net.5"},
    ),
    "numbers for named layers": (
        conv("0", 4, 3, bias=True)
        | batch_norm("1", 4)
        | conv("3", 8, 4, bias=True)
        | batch_norm("4", 8)
        | linear("7", 3, 8),
        conv("conv1", 4, 3, bias=True)
        | batch_norm("bn1", 4)
        | conv("conv2", 8, 4, bias=True)
        | batch_norm("bn2", 8)
        | linear("fc", 3, 8),
        {"0": "conv1", "1": "bn1", "3": "conv2", "4": "bn2", "7": "fc"},
    ),
    "a recurrent layer by another word": (
        lstm("lstm.") | {"log_std": (2,)},
        lstm("encoder.rnn.") | {"log_std": (2,)},
        {"lstm": "encoder.rnn"},
    ),
    "two layers alike, by their words": (
        lstm("encoder.") | lstm("decoder."),
        lstm("enc_rnn.") | lstm("dec_rnn."),
        {"encoder": "enc_rnn", "decoder": "dec_rnn"},
    ),
    "deeper words around the same layers": (
        unet(("mpconv", "conv")),
        unet(("maxpool_conv", "double_conv")),
        {
            f"down{number}.mpconv.1.conv": f"down{number}.maxpool_conv.1.double_conv"
            for number in range(1, 4)
        },
    ),
}


@pytest.mark.parametrize("kind", RENAMED)
def test_the_command_gives_the_names_of_the_model(kind: str, tmp_path: Path) -> None:
    shapes, model, modules = RENAMED[kind]
    state = state_of(shapes)

    found = asked(state, model, tmp_path)

    result = torch.load(found.run("ckpt rename"))
    assert result.keys() == model.keys()
    for old, value in state.items():
        place = next((word for word in modules if old.startswith(f"{word}.")), None)
        new = old if place is None else modules[place] + old[len(place) :]
        assert torch.equal(result[new], value), old


def test_what_words_and_kinds_give_is_renamed_with_the_rest(tmp_path: Path) -> None:
    words = (
        ("^layer", "encoder.stage"),
        ("^conv1", "stem.conv"),
        ("^bn1", "stem.norm"),
    )
    state = state_of(renamed(resnet(), *words))

    found = asked(state, resnet(), tmp_path)

    last = [command for command in found.commands if "stem" in command][-1]
    found.commands = [last]
    assert "by their places and kinds alone" in found.said
    assert torch.load(found.run("ckpt rename")).keys() == resnet().keys()


@pytest.mark.parametrize("old", ["", "encoder."])
def test_a_head_of_another_word_is_a_guess_with_its_shape(
    old: str, tmp_path: Path
) -> None:
    head = f"{old}classifier"
    state = state_of(renamed(BACKBONE, ("^", old)) | linear(head, 7, 4))

    found = asked(state, resnet(7), tmp_path)

    assert "both are the head" in found.said or "perhaps one layer" in found.said
    assert "[7, 4]" in found.said
    (last,) = [command for command in found.commands if "classifier" in command]
    found.commands = [last]
    assert torch.load(found.run("ckpt rename")).keys() == resnet().keys()


def test_the_state_of_one_part_is_loaded_there(tmp_path: Path) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 4, 2)
            self.fc = nn.Linear(4, 3)

    model = Tagger()
    state = state_of(lstm())
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}

    found = asked(state, shapes, tmp_path)

    (line,) = [text for text in found.commands if text.startswith("model.rnn.load")]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert torch.equal(model.rnn.weight_hh_l1, state["weight_hh_l1"])


# --- layers in another form -----------------------------------------------------------


@pytest.mark.parametrize("is_fused", [True, False])
def test_projections_together_and_apart_are_no_names(
    is_fused: bool, tmp_path: Path
) -> None:
    state = state_of(vit(is_fused=is_fused))
    model = nn.Module()
    theirs = vit(is_fused=not is_fused)

    found = asked(state, theirs, tmp_path)

    assert not any(command.startswith("ckpt rename") for command in found.commands)
    (line,) = found.commands
    loaded: dict[str, Tensor] = {}
    model.load_state_dict = loaded.update  # type: ignore[method-assign, assignment]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert {name: tuple(value.shape) for name, value in loaded.items()} == theirs
    whole, parts = (state, loaded) if is_fused else (loaded, state)
    joined = torch.cat([parts[f"blocks.3.attn.{part}.weight"] for part in "qkv"])
    assert torch.equal(whole["blocks.3.attn.qkv.weight"], joined)


def adapted(shapes: Shapes, layer: str) -> Shapes:
    result: Shapes = {}
    for name, shape in shapes.items():
        module, _, leaf = name.rpartition(".")
        if module.endswith(layer) and leaf == "weight":
            place = f"base_model.model.{module}"
            result[f"{place}.base_layer.weight"] = shape
            result[f"{place}.lora_A.default.weight"] = (2, shape[1])
            result[f"{place}.lora_B.default.weight"] = (shape[0], 2)
        else:
            middle = ".base_layer" if module.endswith(layer) else ""
            result[f"base_model.model.{module}{middle}.{leaf}"] = shape
    return result


MLP = linear("up.fc", 4, 4, bias=False) | linear("down.fc2", 4, 4, bias=False)
FOLDED = conv("stem.conv", 4, 3) | batch_norm("stem.bn", 4)
NORMED: Shapes = {"conv.weight_g": (4, 1, 1, 1), "conv.weight_v": (4, 4, 3, 3)}

FORMS = {
    "a model of PEFT that was not merged": (
        adapted(MLP, "fc"),
        MLP,
        "a whole model of PEFT that was not merged",
    ),
    "a model that PEFT has wrapped": (
        MLP,
        adapted(MLP, "fc"),
        "get_peft_model was called before the load",
    ),
    "norms that the model has folded": (
        FOLDED,
        conv("stem.conv", 4, 3, bias=True),
        "then load first, and fuse then",
    ),
    "norms that the file has folded": (
        conv("stem.conv", 4, 3, bias=True),
        FOLDED,
        "Fuse the model before the load",
    ),
    "weight norm in the file": (
        NORMED,
        conv("conv", 4, 4),
        "The file has weight norm in 1 layer",
    ),
    "weight norm in the model": (
        conv("conv", 4, 4),
        NORMED,
        "Call remove_weight_norm on the model",
    ),
    "the letters of Flax": (
        {"a.kernel": (4, 3), "a.bias": (4,), "n.scale": (4,), "n.bias": (4,)},
        linear("a", 3, 4) | norm("n", 4),
        "A kernel is the transpose of a weight",
    ),
}


@pytest.mark.parametrize("kind", FORMS)
def test_another_form_of_a_layer_is_named(kind: str, tmp_path: Path) -> None:
    shapes, model, text = FORMS[kind]

    found = asked(state_of(shapes), model, tmp_path)

    assert text in found.said
    assert not any(command.startswith("ckpt rename") for command in found.commands)


# --- models that are not the same -----------------------------------------------------

GAN = conv("main.0", 8, 3) | conv("main.2", 8, 8) | batch_norm("main.3", 8)
OTHER_GAN = (
    conv("main.0", 9, 7)
    | batch_norm("main.1", 9)
    | conv("main.3", 8, 9)
    | batch_norm("main.4", 8)
)

UNLIKE = {
    "another architecture": (vit(), resnet(), "this file is of another model"),
    "the other half of a GAN": (GAN, OTHER_GAN, "It is another network"),
    "a variant without norms": (
        conv("features.0", 4, 3, bias=True) | conv("features.2", 4, 4, bias=True),
        conv("features.0", 4, 3, bias=True)
        | batch_norm("features.1", 4)
        | conv("features.3", 4, 4, bias=True),
        "two variants of one network",
    ),
    "networks with as many layers": (
        linear("actor.0", 4, 4)
        | linear("actor.2", 2, 4)
        | linear("critic.0", 4, 4)
        | linear("critic.2", 1, 4),
        linear("policy_net.0", 4, 4)
        | linear("action_net", 2, 4)
        | linear("value_net.0", 4, 4)
        | linear("score_net", 1, 4),
        "ckpt does not guess which layer is which",
    ),
    "another recurrent layer": (
        lstm("rnn.", gates=3),
        lstm("rnn."),
        "is an nn.GRU in the checkpoint and an nn.LSTM in the model",
    ),
    "fewer recurrent layers": (
        lstm("rnn."),
        lstm("rnn.", layers=1),
        "rnn has 2 layers in the file and 1 in the model (num_layers)",
    ),
    "one direction": (
        lstm("rnn."),
        lstm("rnn.") | renamed(lstm("rnn."), ("$", "_reverse")),
        "one direction in the file and both directions in the model",
    ),
    "kernels of another dimension": (
        conv("a", 4, 3) | conv("b", 4, 4),
        {"a.weight": (4, 3, 3), "b.weight": (4, 4, 3)},
        "a layer of nn.Conv2d stands there in the file, and one of nn.Conv1d",
    ),
    "another depth behind a prefix": (
        renamed(vit(depth=6), ("^", "encoder.")),
        vit(depth=4),
        "6 blocks in the checkpoint and 4 in the model",
    ),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_another_model_is_said_and_never_renamed(kind: str, tmp_path: Path) -> None:
    shapes, model, text = UNLIKE[kind]

    found = asked(state_of(shapes), model, tmp_path)

    assert text in found.said
    renames = [command for command in found.commands if "ckpt rename" in command]
    assert all(r"s/^encoder\.//" in command for command in renames)


# --- what one side alone has ----------------------------------------------------------


@pytest.mark.parametrize("has_dots", [True, False])
def test_copies_of_the_weights_are_averages(has_dots: bool, tmp_path: Path) -> None:
    state = state_of(resnet())
    copies = {
        f"model_ema.{name if has_dots else name.replace('.', '')}": value
        for name, value in state.items()
    }

    found = asked(state | copies, resnet(), tmp_path)

    assert "running averages of the weights (EMA)" in found.said
    assert any("strict=False" in command for command in found.commands)


def test_a_module_of_its_own_is_no_copy(tmp_path: Path) -> None:
    state = state_of(resnet() | renamed(vit(), ("^", "model_ema.")))

    found = asked(state, resnet(), tmp_path)

    assert "running averages" not in found.said


def test_layers_that_the_model_adds_are_named(tmp_path: Path) -> None:
    model = resnet(0) | linear("classifier", 3, 4)
    for stage in range(1, 5):
        model |= linear(f"layer{stage}.0.adapter.down", 2, 4)

    found = asked(state_of(resnet()), model, tmp_path)

    assert "The model alone has layer1.0.adapter" in found.said
    assert "both are the head" in found.said


def test_another_head_is_named_on_both_sides(tmp_path: Path) -> None:
    state = state_of(BACKBONE | linear("classifier.1", 9, 4))
    model = BACKBONE | linear("classifier.0", 8, 4) | linear("classifier.3", 2, 8)

    found = asked(state, model, tmp_path)

    assert "the file has another one (classifier.1)" in found.said
    assert {"classifier.1.weight", "classifier.3.weight"} <= set(found.names)
    assert not any(command.startswith("ckpt rename") for command in found.commands)


# --- what threads brought -------------------------------------------------------------


def test_a_beginning_that_the_program_took_off_is_put_before_the_names(
    tmp_path: Path,
) -> None:
    old = renamed(resnet(0), ("^layer1", "net.cnn")) | linear("net.fc", 2, 2)
    new = renamed(resnet(0), ("^layer1", "net.visual.cnn")) | linear("net.fc", 2, 2)
    state = state_of(old)
    kept = {f"agent.{name}": value for name, value in state.items()}
    torch.save({"state_dict": kept}, tmp_path / "a.pth")

    found = Answered(error_text(state, new), tmp_path / "a.pth")

    assert "The program took agent. off the names" in found.said
    result = torch.load(found.run("ckpt rename"))["state_dict"]
    assert {name.removeprefix("agent.") for name in result} == new.keys()


def test_modules_that_the_model_has_twice_get_the_values_of_one(tmp_path: Path) -> None:
    shared = conv("features_extractor.cnn.0", 4, 3, bias=True)
    state = state_of(shared | linear("action_net", 2, 4))
    words = ("pi_features_extractor", "vf_features_extractor")
    theirs = {name: tuple(value.shape) for name, value in state.items()}
    for word in words:
        theirs |= renamed(shared, ("^features_extractor", word))

    found = asked(state, theirs, tmp_path)

    (line,) = found.commands
    model = nn.Module()
    loaded: dict[str, Tensor] = {}
    model.load_state_dict = loaded.update  # type: ignore[method-assign, assignment]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert loaded.keys() == theirs.keys()
    assert torch.equal(
        loaded[f"{words[1]}.cnn.0.bias"], loaded[f"{words[0]}.cnn.0.bias"]
    )


HIDDEN = linear("net.0", 8, 4) | linear("net.2", 8, 8) | linear("net.4", 3, 8)
DEEPER = (
    linear("net.0", 8, 4)
    | linear("net.2", 8, 8)
    | linear("net.4", 8, 8)
    | linear("net.6", 3, 8)
)


@pytest.mark.parametrize("is_deeper", [True, False])
def test_another_number_of_hidden_layers_is_no_head(
    is_deeper: bool, tmp_path: Path
) -> None:
    ours, theirs = (HIDDEN, DEEPER) if is_deeper else (DEEPER, HIDDEN)

    found = asked(state_of(ours), theirs, tmp_path)

    here, there = (3, 4) if is_deeper else (4, 3)
    assert (
        f"net has {here} layers with weights in the file and {there} in the model"
        in (found.said)
    )
    assert "outputs where" not in found.said and not found.commands


def bottlenecks(convolutions: int) -> Shapes:
    shapes: Shapes = {}
    for block in range(2):
        for number in range(convolutions):
            size = 1 if convolutions == 3 and number != 1 else 3
            place = f"layer1.{block}.convs.{3 * number}"
            shapes |= {f"{place}.weight": (4, 4, size, size)}
    return shapes


def test_blocks_of_another_kind_are_no_other_width(tmp_path: Path) -> None:
    found = asked(state_of(bottlenecks(2)), bottlenecks(3), tmp_path)

    assert "their blocks are of another kind" in found.said
    assert "the same architecture" not in found.said


def test_other_inputs_are_no_classes(tmp_path: Path) -> None:
    ours = linear("rnn.cell", 12, 105) | linear("mlp.0", 8, 29) | linear("out", 2, 8)
    theirs = linear("rnn.cell", 12, 101) | linear("mlp.0", 8, 25) | linear("out", 2, 8)

    found = asked(state_of(ours), theirs, tmp_path)

    assert "The model has 4 fewer each" in found.said


def test_the_weights_of_a_spectrum_tell_the_size_of_the_image(tmp_path: Path) -> None:
    ours: Shapes = {f"stages.{n}.filter": (14, 8, 4, 2) for n in range(3)}
    theirs: Shapes = {f"stages.{n}.filter": (24, 13, 4, 2) for n in range(3)}

    found = asked(state_of(ours), theirs, tmp_path)

    assert "a grid of 14 x 14 and of 24 x 24" in found.said


def test_counts_of_metrics_are_no_weights(tmp_path: Path) -> None:
    names = [f"punct_class_report.{word}" for word in ("tp", "fn", "fp")]
    theirs = resnet() | dict.fromkeys(names, (2,))

    found = asked(state_of(resnet()), theirs, tmp_path)

    assert "by the name of a metric or a loss" in found.said


def test_a_stage_that_is_new_is_no_wrong_file(tmp_path: Path) -> None:
    found = asked(state_of(resnet()), resnet() | linear("depth", 2, 4), tmp_path)

    assert any("strict=False" in command for command in found.commands)
    assert "tensors of the file have their place" in found.said


def test_the_layers_of_another_trainer_are_no_base_model(tmp_path: Path) -> None:
    state = {
        f"transformer.blocks.{number}.to_k.lora_{part}.weight": torch.ones(2, 2)
        for number in range(2)
        for part in "AB"
    }
    torch.save(state, tmp_path / "a.pth")
    text = (
        "RuntimeError: Error(s) in loading state_dict for DoubleStreamBlockLora:\n"
        '\tMissing key(s) in state_dict: "qkv_lora1.down.weight", '
        '"qkv_lora1.up.weight". '
    )

    found = Answered(text, tmp_path / "a.pth")

    assert "None of it was loaded" in found.said
    assert "of the base model" not in found.said


def test_a_warning_that_lists_nothing_but_new_layers_is_paired(tmp_path: Path) -> None:
    base = renamed(vit(), ("^", "bert."))
    torch.save(state_of(base), tmp_path / "a.pth")
    new = [*renamed(vit(), ("^", "transformer.")), "classifier.weight"]
    text = (
        "Some weights of DocClassifier were not initialized from the model checkpoint "
        f"at a and are newly initialized: {new}"
    )

    found = Answered(text, tmp_path / "a.pth")

    assert "bert is transformer" in found.said
    assert any(
        name.startswith("transformer.") for name in torch.load(found.run("ckpt"))
    )


def test_modules_that_a_log_names_one_by_one_are_found(tmp_path: Path) -> None:
    shapes = conv("model.model.0.conv", 4, 3) | batch_norm("model.model.0.bn", 4)
    shapes |= conv("model.model.19.conv", 4, 4)
    torch.save({"state_dict": state_of(shapes), "epoch": 1}, tmp_path / "a.ckpt")
    text = "".join(
        f"WARNING  Weight Not Found for key: {name}   yolo.py:152\n"
        for name in ("0.conv", "19.conv")
    )

    found = Answered(text, tmp_path / "a.ckpt")

    assert "model.model.* → *" in found.said
    found.run("ckpt rename")


def test_codes_without_the_order_of_their_groups_are_whole(tmp_path: Path) -> None:
    layers = [f"layers.{number}.q_proj" for number in range(3)]
    state = {
        f"{layer}.{part}": torch.ones(2, 4, dtype=torch.int32)
        for layer in layers
        for part in ("qweight", "qzeros", "scales")
    }
    missing = ", ".join(f'"{layer}.g_idx"' for layer in layers)
    torch.save(state, tmp_path / "a.pt")

    found = Answered(
        "RuntimeError: Error(s) in loading state_dict for Llama:\n"
        f"\tMissing key(s) in state_dict: {missing}. ",
        tmp_path / "a.pt",
    )

    assert "3 layers of it have no g_idx" in found.said and not found.commands


def test_the_end_of_a_pickle_says_nothing_of_a_whole_file(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    (tmp_path / "empty.pth").write_bytes(b"")

    assert (
        "This file has all of its own" in Answered("EOFError", tmp_path / "a.pth").said
    )
    done = ckpt("explain", "EOFError", "empty.pth", cwd=tmp_path)
    assert "An empty file" in done.out.decode()


def upscaler(trunk: str, ends: tuple[str, ...], inner: str) -> Shapes:
    shapes = conv(ends[0], 4, 3, bias=True)
    for block in range(3):
        for part in (1, 2):
            for number in (1, 2, 3):
                place = f"{trunk}.{block}.RDB{part}.conv{number}{inner}"
                shapes |= conv(place, 4, 4, bias=True)
    for end in ends[1:]:
        shapes |= conv(end, 4, 4, bias=True)
    return shapes


@pytest.mark.parametrize("is_old", [True, False])
def test_many_layers_in_one_order_are_few_rules(is_old: bool, tmp_path: Path) -> None:
    new = upscaler("trunk", ("conv_first", "trunk_conv", "conv_up", "conv_last"), "")
    ends = ("model.0", "model.1.sub.3", "model.3", "model.6")
    old = upscaler("model.1.sub", ends, ".0")
    ours, theirs = (old, new) if is_old else (new, old)
    state = state_of(ours)

    found = asked(state, theirs, tmp_path)

    (command,) = found.commands
    assert command.count("--sub") == 5 and "18 times" in found.said
    result = torch.load(found.run("ckpt rename"))
    assert result.keys() == theirs.keys()
    for old_name, new_name in zip(ours, theirs, strict=True):
        assert torch.equal(result[new_name], state[old_name])


def test_a_number_that_follows_no_rule_is_renamed_by_itself(tmp_path: Path) -> None:
    ours = conv("a.1", 4, 3) | batch_norm("a.2", 4) | conv("a.4", 4, 4)
    theirs = conv("a.0.c", 4, 3) | batch_norm("a.0.n", 4) | conv("a.7.c", 4, 4)
    state = state_of(ours)

    found = asked(state, theirs, tmp_path)

    result = torch.load(found.run("ckpt rename"))
    assert torch.equal(result["a.7.c.weight"], state["a.4.weight"])


@pytest.mark.parametrize("is_newer", [True, False])
def test_kernels_with_their_axes_in_another_order(
    is_newer: bool, tmp_path: Path
) -> None:
    sizes = ((4, 5), (5, 6))
    first: Shapes = {
        f"conv{number}.weight": (3, 3, 3, *size) for number, size in enumerate(sizes)
    }
    last: Shapes = {
        f"conv{number}.weight": (out, 3, 3, 3, size)
        for number, (size, out) in enumerate(sizes)
    }
    ours, theirs = (last, first) if is_newer else (first, last)
    state = state_of(ours)

    found = asked(state, theirs, tmp_path)

    assert "spconv" in found.said
    (line,) = found.commands
    model = nn.Module()
    loaded: dict[str, Tensor] = {}
    model.state_dict = lambda: state_of(theirs)  # type: ignore[method-assign, assignment]
    model.load_state_dict = loaded.update  # type: ignore[method-assign, assignment]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    order = (1, 2, 3, 4, 0) if is_newer else (4, 0, 1, 2, 3)
    expected = state["conv1.weight"].permute(order)
    assert torch.equal(loaded["conv1.weight"], expected)


def test_one_layer_is_no_stem_of_several(tmp_path: Path) -> None:
    body = resnet()
    stem = conv("embed.proj.0", 4, 3) | batch_norm("embed.proj.1", 4)

    found = asked(
        state_of(body | stem), body | conv("embed.proj", 4, 3, bias=True), tmp_path
    )

    assert (
        "embed.proj is one layer in the model, and a module of 2 layers" in found.said
    )
    assert not found.commands


def test_outputs_that_go_in_again_differ_on_both_sides(tmp_path: Path) -> None:
    ours = linear("rnn.cell", 12, 70) | linear("generator", 38, 32)
    theirs = linear("rnn.cell", 12, 69) | linear("generator", 37, 32)

    found = asked(state_of(ours), theirs, tmp_path)

    assert "these are outputs that go into the model again" in found.said


def test_modules_and_shapes_of_one_side_are_another_variant(tmp_path: Path) -> None:
    shared = linear("encoder.0", 4, 4) | linear("encoder.1", 4, 4)
    ours = shared | linear("edges", 4, 7) | linear("W_v", 4, 4)
    theirs = shared | linear("edges", 4, 9)

    found = asked(state_of(ours), theirs, tmp_path)

    assert "The file has W_v, which the model lacks" in found.said
    assert "both are variants of one program" in found.said


def test_fewer_blocks_are_not_all_that_is_asked_for(tmp_path: Path) -> None:
    found = asked(state_of(vit(depth=6)), vit(depth=4), tmp_path)

    assert "6 blocks in the checkpoint and 4 in the model" in found.said
    assert not any("strict=False" in command for command in found.commands)


def test_attention_that_was_saved_twice_is_one_layer(tmp_path: Path) -> None:
    ours: Shapes = {f"convs.{n}.lin_src.weight": (4, 4) for n in range(2)}
    ours |= {f"convs.{n}.lin_dst.weight": (4, 4) for n in range(2)}
    theirs: Shapes = {f"convs.{n}.lin.weight": (4, 4) for n in range(2)}
    state = state_of(ours | linear("out", 2, 4))
    theirs |= linear("out", 2, 4)

    found = asked(state, theirs, tmp_path)

    (line,) = found.commands
    model = nn.Module()
    loaded: dict[str, Tensor] = {}
    model.state_dict = lambda: state_of(theirs)  # type: ignore[method-assign, assignment]
    model.load_state_dict = loaded.update  # type: ignore[method-assign, assignment]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert loaded.keys() == theirs.keys()


def test_an_adapter_has_no_layer_of_its_base(tmp_path: Path) -> None:
    layer = "llm.layers.0.q_proj"
    state = {f"{layer}.lora_{part}.default.weight": torch.ones(2, 2) for part in "AB"}
    torch.save({"state_dict": state, "meta": {}}, tmp_path / "a.pth")

    found = Answered(f"KeyError: '{layer}.base_layer.weight'", tmp_path / "a.pth")

    assert "has the adapter of this layer" in found.said
    assert "another architecture" not in found.said


def test_the_backbone_is_not_the_file_of_the_head(tmp_path: Path) -> None:
    found = asked(state_of(BACKBONE), {"weight": (9, 4)}, tmp_path)

    assert "it is the file of another part" in found.said
    assert not found.commands


def test_lists_of_a_script_are_read(tmp_path: Path) -> None:
    state = state_of(renamed(BACKBONE, ("^", "module.feature.")))
    torch.save(state, tmp_path / "a.pth")
    wanted = [
        name
        for name in renamed(BACKBONE, ("^", "module.fnet."))
        if not name.endswith("num_batches_tracked")
    ]
    lists = (
        ("Missing keys", "in RAFT but not in checkpoint", wanted),
        ("Unexpected keys", "in checkpoint but not in RAFT", list(state)),
    )
    text = "".join(
        f"**{head} ({len(names)})   ({where}):**\n  " + "\n  ".join(names) + "\n"
        for head, where, names in lists
    )

    found = Answered(text, tmp_path / "a.pth")

    assert "module.feature.* → module.fnet.*" in found.said


def test_a_table_and_an_output_have_one_vocabulary(tmp_path: Path) -> None:
    ours = linear("generator_word.proj", 79, 4) | {"embedding_word.lut.weight": (79, 4)}
    theirs = linear("generator_word.proj", 23, 4) | {
        "embedding_word.lut.weight": (23, 4)
    }

    found = asked(state_of(ours), theirs, tmp_path)

    assert "have 79 entries in the checkpoint and 23 in the model alike" in found.said


def test_a_norm_without_weights_leaves_biases(tmp_path: Path) -> None:
    ours: Shapes = {}
    theirs: Shapes = {}
    for number in range(3):
        ours |= conv(f"model.{number}.1", 4, 4) | norm(f"model.{number}.2", 4)
        theirs |= conv(f"model.{number}.1", 4, 4, bias=True)

    found = asked(state_of(ours), theirs, tmp_path)

    assert "the model was built with another norm" in found.said


def test_a_layer_of_another_class_has_no_bias(tmp_path: Path) -> None:
    ours = linear("speaker_emb", 8, 32) | linear("fc", 2, 2)
    theirs = linear("speaker_emb", 1, 8, bias=False) | linear("fc", 2, 2)

    found = asked(state_of(ours), theirs, tmp_path)

    assert "speaker_emb has a bias in the file and none in the model" in found.said


def test_layers_inside_of_blocks_that_lack_are_named(tmp_path: Path) -> None:
    theirs = vit(depth=1) | linear("blocks.0.extra", 4, 4)

    found = asked(state_of(vit(depth=1)), theirs, tmp_path)

    assert "The model alone has blocks.0.extra" in found.said


# --- super-resolution -----------------------------------------------------------------

OF_BASICSR = {
    "trunk_conv": "conv_body",
    "upconv1": "conv_up1",
    "upconv2": "conv_up2",
    "HRconv": "conv_hr",
}


def rrdbnet(*, is_of_basicsr: bool) -> Shapes:
    shapes: Shapes = {"conv_first.weight": (4, 3, 3, 3), "conv_first.bias": (4,)}
    for block in range(2):
        for dense in (1, 2, 3):
            place = f"RRDB_trunk.{block}.RDB{dense}"
            if is_of_basicsr:
                place = f"body.{block}.rdb{dense}"
            for layer in range(1, 6):
                shapes |= conv(f"{place}.conv{layer}", 4, 4, bias=True)
                shapes[f"{place}.conv{layer}.bias"] = (4,)
    for old, new in OF_BASICSR.items():
        place = new if is_of_basicsr else old
        shapes |= {f"{place}.weight": (4, 4, 3, 3), f"{place}.bias": (4,)}
    return {**shapes, "conv_last.weight": (3, 4, 3, 3), "conv_last.bias": (3,)}


@pytest.mark.parametrize("is_of_basicsr", [False, True])
def test_esrgan_and_basicsr_have_other_names(
    is_of_basicsr: bool, tmp_path: Path
) -> None:
    state = state_of(rrdbnet(is_of_basicsr=is_of_basicsr))
    model = rrdbnet(is_of_basicsr=not is_of_basicsr)
    found = asked(state, model, tmp_path)
    assert "68 of the 68 missing keys are there by other names" in found.said
    (line,) = [line for line in found.commands if "load_into(model)" in line]
    built = nn.Module()
    for name, shape in model.items():
        add_parameter(built, name, shape)
    with folder_of(tmp_path):
        exec(line, {"model": built})
    body = "body.1.rdb2.conv3.weight", "RRDB_trunk.1.RDB2.conv3.weight"
    ours, theirs = body if is_of_basicsr else body[::-1]
    assert torch.equal(built.state_dict()[theirs], state[ours])


def add_parameter(model: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    *places, leaf = name.split(".")
    for place in places:
        if place not in model._modules:
            model.add_module(place, nn.Module())
        model = model._modules[place]  # type: ignore[assignment]
    model.register_parameter(leaf, nn.Parameter(torch.zeros(shape)))

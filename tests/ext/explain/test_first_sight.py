"""Situations of public threads that were rebuilt before anything was looked up: shapes,
names and parts that were read as something else.
"""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from answered import Answered, listed, weights
from inside import folder_of
from process import ckpt
from safetensors.torch import save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def refused(
    file: dict[str, torch.Tensor],
    model: dict[str, torch.Tensor],
    *,
    strict: bool = True,
) -> str:
    """The text of torch for a load of one state dict into the model of another one."""
    rows = ["RuntimeError: Error(s) in loading state_dict for Net:"]
    missing = [key for key in model if key not in file]
    unexpected = [key for key in file if key not in model]
    if missing and strict:
        rows.append(f"\tMissing key(s) in state_dict: {listed(missing)}")
    if unexpected and strict:
        rows.append(f"\tUnexpected key(s) in state_dict: {listed(unexpected)}")
    for key, value in file.items():
        if key in model and value.shape != model[key].shape:
            rows.append(
                f"\tsize mismatch for {key}: copying a param with shape {value.shape} "
                f"from checkpoint, the shape in current model is {model[key].shape}."
            )
    return "\n".join(rows)


class Taken:
    """A model that keeps what it is given."""

    def load_state_dict(self, state: Any, *, strict: bool = True) -> None:
        """Keep a state dict of tensors."""
        assert not strict and all(map(torch.is_tensor, state.values()))
        self.state = dict(state)


def taken(found: Answered, begin: str) -> dict[str, torch.Tensor]:
    """The tensors that a model gets by the only printed line that begins so."""
    (line,) = [row for row in found.commands if row.startswith(begin)]
    model = Taken()
    with folder_of(found.folder):
        exec(line, {"torch": torch, "model": model})
    return model.state


# --- sizes ----------------------------------------------------------------------------


def test_multiples_of_one_number_are_no_classes(tmp_path: Path) -> None:
    def grid(height: int) -> dict[str, torch.Tensor]:
        return weights(
            bev__inc__0__weight=(height,),
            bev__inc__0__running_mean=(height,),
            bev__inc__1__weight=(8, height, 3, 3),
            bev__outc__conv__weight=(16 * height, 8, 1, 1),
            bev__outc__conv__bias=(16 * height,),
        )

    for here, there in ((64, 32), (32, 64)):
        torch.save(grid(here), tmp_path / "a.pt")
        found = Answered(refused(grid(here), grid(there)), tmp_path / "a.pt")
        assert f"One number differs, and all these shapes follow from it: {here}" in (
            found.said
        )
        assert "16 times as many" in found.said and "no number of classes" in found.said
        assert "rank" not in found.said and "outputs" not in found.said


def points(inputs: int, classes: int) -> dict[str, torch.Tensor]:
    """A network of kernel points."""
    return weights(
        encoder_blocks__0__KPConv__weights=(15, inputs, 8),
        encoder_blocks__1__KPConv__weights=(15, 8, 8),
        head_softmax__mlp__weight=(classes, 8),
        head_softmax__batch_norm__bias=(classes,),
    )


def test_both_ends_are_of_other_data(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "model_state_dict": points(5, 13)}, tmp_path / "a.pth")
    found = Answered(refused(points(5, 13), points(2, 19)), tmp_path / "a.pth")
    assert "takes 5 channels in the checkpoint and 2 in the model" in found.said
    assert "The first and the last layer differ" in found.said
    classes = Answered(refused(points(5, 13), points(5, 19)), tmp_path / "a.pth")
    assert "13 outputs" in classes.said and "first and the last" not in classes.said


def test_several_vocabularies_are_named_each(tmp_path: Path) -> None:
    def tree(labels: int, motifs: int) -> dict[str, torch.Tensor]:
        return weights(
            encoder__E_c__0__weight=(labels, 4),
            encoder__E_i__0__weight=(motifs, 4),
            encoder__W_c__0__weight=(4, 8),
            decoder__cls__3__weight=(labels, 4),
            decoder__cls__3__bias=(labels,),
            decoder__icls__3__weight=(motifs, 4),
            decoder__icls__3__bias=(motifs,),
        )

    torch.save((tree(15, 56), {"lr": 0.1}), tmp_path / "model.ckpt")
    found = Answered(refused(tree(15, 56), tree(13, 57)), tmp_path / "model.ckpt")
    assert "2 numbers of entries differ" in found.said
    assert "15 and 13" in found.said and "56 and 57" in found.said
    assert "vocabularies, and no classes" in found.said


def head(*sizes: int) -> dict[str, torch.Tensor]:
    """A network with a head of linear layers in a list."""
    state = weights(layers__0__weight=(8, 3), layers__1__weight=(8, 8))
    for number, size in enumerate(sizes):
        state[f"mlp.{number}.weight"] = torch.randn(size, ([8, *sizes])[number])
        state[f"mlp.{number}.bias"] = torch.randn(size)
    return state


def test_a_hidden_layer_of_the_file_is_no_last_layer(tmp_path: Path) -> None:
    torch.save({"model": head(8, 5)}, tmp_path / "a.pth")
    text = refused(head(8, 5), head(1), strict=False)
    found = Answered(text, tmp_path / "a.pth")
    assert "mlp.0 is no last layer: it gives 8, and mlp.1 takes them" in found.said
    assert "number of classes" not in found.said
    torch.save({"model": head(8)}, tmp_path / "b.pth")
    last = Answered(refused(head(8), head(1)), tmp_path / "b.pth")
    assert "8 outputs where the model has 1" in last.said


def modalities(*widths: int) -> dict[str, torch.Tensor]:
    """A network that projects several inputs and joins them."""
    state = {}
    for number, width in enumerate(widths):
        state[f"projector.modalities.{number}.0.weight"] = torch.randn(6, width)
        state[f"projector.modalities.{number}.0.bias"] = torch.randn(6)
        state[f"projector.modalities.{number}.1.weight"] = torch.randn(6)
        state[f"projector.modalities.{number}.1.bias"] = torch.randn(6)
    total = 6 * len(widths)
    state["joined.weight"] = torch.randn(total, total)
    return state


@pytest.mark.parametrize("is_saved", [True, False])
def test_an_input_that_one_side_lacks_moves_the_others(
    is_saved: bool, tmp_path: Path
) -> None:
    more, fewer = modalities(4, 5, 300, 1448), modalities(4, 300, 1448)
    file, model = (more, fewer) if is_saved else (fewer, more)
    torch.save(file, tmp_path / "a.pt")
    found = Answered(refused(file, model), tmp_path / "a.pt")
    assert "has a layer for each of several inputs" in found.said
    assert "backbone" not in found.said and "The depth differs" not in found.said
    # The shape of a layer that lacks in the file is not in the message.
    side, other = ("file", "model") if is_saved else ("model", "file")
    assert f"the one that takes 5, which the {side} has and the {other}" in found.said


def test_biases_of_attention_are_interpolated(tmp_path: Path) -> None:
    def net(side: int) -> nn.Module:
        model = nn.Module()
        model.attention_biases = nn.Parameter(torch.randn(2, side * side))
        whole = nn.Module()
        whole.attn, whole.fc = model, nn.Linear(3, 3)
        return whole

    torch.save({"model": net(7).state_dict()}, tmp_path / "a.pth")
    model = net(12)
    text = refused(net(7).state_dict(), model.state_dict())
    found = Answered(text, tmp_path / "a.pth")
    assert "7 x 7 places in the checkpoint and 12 x 12 in the model" in found.said
    (line,) = [row for row in found.commands if "interpolate(" in row]
    code = line.replace('"a.pth"', repr(str(tmp_path / "a.pth")))
    exec(code, {"torch": torch, "model": model})
    held = torch.load(tmp_path / "a.pth")["model"]["attn.attention_biases"]
    grid = model.attn.attention_biases.detach().reshape(2, 12, 12)
    assert torch.allclose(grid.mean(), held.mean(), atol=0.2)


# --- keys -----------------------------------------------------------------------------


def test_parts_of_another_kind_of_adapter_are_not_passed_over(tmp_path: Path) -> None:
    state = {}
    for layer in ("attn1_to_q", "ff_net_0_proj"):
        name = f"lora_unet_input_blocks_4_1_{layer}"
        state[f"{name}.lora_down.weight"] = torch.randn(2, 4)
        state[f"{name}.lora_up.weight"] = torch.randn(4, 2)
        state[f"{name}.alpha"] = torch.tensor(2.0)
        state[f"{name}.dora_scale"] = torch.randn(1, 4)
    save_file(state, tmp_path / "a.safetensors")
    model = {name: value for name, value in state.items() if "dora" not in name}
    found = Answered(refused(state, model), tmp_path / "a.safetensors")
    assert "dora_scale, the sizes of a DoRA" in found.said
    assert not [row for row in found.commands if "strict=False" in row]


def test_a_key_is_said_to_lie_in_its_own_block(tmp_path: Path) -> None:
    state = weights(
        a__b__conv__weight=(4, 4),
        a__b__long_block_name__conv__weight=(4, 4),
        a__b__gate__weight=(4,),
        a__b__long_block_name__gate__weight=(4,),
        c__weight=(4, 4),
        d__weight=(4, 4),
    )
    torch.save(state, tmp_path / "a.pth")
    model = {name: value for name, value in state.items() if "gate" not in name}
    found = Answered(refused(state, model), tmp_path / "a.pth")
    assert "a.b.gate.weight lies in a.b.long_block_name" not in found.said
    assert "a.b.long_block_name.gate.weight lies in a.b.long_block_name" in found.said


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_layer_that_a_server_joins_is_in_the_file(
    is_shared: bool, tmp_path: Path
) -> None:
    state = {"model.embed_tokens.weight": torch.randn(9, 4)}
    own = {part: torch.randn(4, 4) for part in ("q_proj", "k_proj", "v_proj")}
    for number in (1, 3):
        for part, value in own.items():
            held = value if is_shared else value.clone()
            state[f"model.layers.{number}.shared.self_attn.{part}.weight"] = held
    folder = tmp_path / "sft"
    folder.mkdir()
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Z"]}))
    text = "KeyError: 'layers.3.shared.self_attn.qkv_proj.weight'"
    found = Answered(text, folder)
    assert "The file has what it takes" in found.said
    assert "another architecture" not in found.said
    if not is_shared:
        return
    assert "one memory with those of model.layers.1" in found.said
    written = found.run("ckpt slim")
    names = ckpt("inspect", str(written), "--tsv").out.decode()
    assert "layers.1.shared" in names and "layers.3.shared" not in names


def test_a_part_of_a_joined_layer_is_inside_of_it(tmp_path: Path) -> None:
    state = weights(model__layers__0__attn__qkv_proj__weight=(12, 4), norm__weight=(4,))
    torch.save(state, tmp_path / "a.pth")
    found = Answered("KeyError: 'layers.0.attn.q_proj.weight'", tmp_path / "a.pth")
    assert "inside of model.layers.0.attn.qkv_proj.weight" in found.said


def test_a_layer_without_its_statistics_is_named(tmp_path: Path) -> None:
    state = weights(
        Conv_Body__res1__conv1__weight=(4, 3, 7, 7),
        Conv_Body__res1__bn1__weight=(4,),
        Conv_Body__res1__bn1__bias=(4,),
        RPN__conv__weight=(4, 4, 3, 3),
        Box_Outs__cls_score__weight=(5, 4),
    )
    torch.save({"step": 9, "model": state}, tmp_path / "a.pth")
    found = Answered("KeyError: 'res1.bn1.running_mean'", tmp_path / "a.pth")
    assert "at model.Conv_Body.res1.bn1, with bias, weight and no running_mean" in (
        found.said
    )
    assert "this file is a whole model" in found.said


def test_a_bare_state_dict_gets_the_keys_of_nnunet(tmp_path: Path) -> None:
    state = weights(encoder__stages__0__conv__weight=(4, 1, 3, 3, 3))
    torch.save(state, tmp_path / "checkpoint_final.pth")
    found = Answered("KeyError: 'trainer_name'", tmp_path / "checkpoint_final.pth")
    assert "a key of a checkpoint of nnU-Net 2" in found.said
    (line,) = [row for row in found.commands if row.startswith("torch.save(")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        exec(line, {"torch": torch})
    held = torch.load(tmp_path / "checkpoint_final.nnunet.pth")
    assert held["network_weights"].keys() == state.keys()
    assert held["init_args"] == {"configuration": "3d_fullres"}


def test_detectron2_wants_an_author_beside_the_model(tmp_path: Path) -> None:
    state = {"stem.conv1.weight": np.zeros((4, 3, 7, 7), "float32")}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": state}))
    text = "ValueError: Unsupported type found in checkpoint! model: <class 'dict'>"
    found = Answered(text, tmp_path / "a.pkl")
    assert "__author__" in found.said and found.code == 0
    (line,) = [row for row in found.commands if row.startswith("import pickle")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        exec(line, {})
        held = pickle.loads(Path("weights.d2.pkl").read_bytes())
    assert held["model"].keys() == state.keys() and "__author__" in held
    torch.save({"net": weights(a__weight=(2, 2)), "epoch": 1}, tmp_path / "b.pth")
    other = Answered(text.replace("model:", "net:"), tmp_path / "b.pth")
    (line,) = [row for row in other.commands if row.startswith("torch.save(")]
    assert '{"model": torch.load("b.pth", map_location="cpu")["net"]}' in line


# --- tensors that are copied ----------------------------------------------------------


def persistent(path: Path) -> Path:
    """A pickle of StyleGAN with a first layer for colours."""
    names = ("torch_utils", "torch_utils.persistence", "dnnlib", "dnnlib.util")
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        sys.modules[name] = types.ModuleType(name)

    def _reconstruct_persistent_obj(meta: Any) -> None:
        raise AssertionError

    _reconstruct_persistent_obj.__module__ = "torch_utils.persistence"
    _reconstruct_persistent_obj.__qualname__ = "_reconstruct_persistent_obj"
    module = sys.modules["torch_utils.persistence"]
    vars(module)["_reconstruct_persistent_obj"] = _reconstruct_persistent_obj

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.img_resolution, self.img_channels = 256, 3
            self.fromrgb = nn.Conv2d(3, 8, 1)

        def __reduce__(self) -> Any:
            meta = {"type": "class", "version": 6, "module_src": "", "class_name": "D"}
            return _reconstruct_persistent_obj, ({**meta, "state": dict(vars(self))},)

    try:
        path.write_bytes(pickle.dumps({"D": Network(), "training_set_kwargs": {}}))
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return path


COPIES = (
    '  File "torch_utils/misc.py", line 162, in copy_params_and_buffers\n'
    "    tensor.copy_(src_tensors[name].detach()).requires_grad_(True)\n"
)


def test_a_tensor_that_is_copied_into_another_shape_is_named(tmp_path: Path) -> None:
    path = persistent(tmp_path / "network.pkl")
    text = (
        f"{COPIES}RuntimeError: output with shape [8, 1, 1, 1] doesn't match the "
        "broadcast shape [8, 3, 1, 1]"
    )
    found = Answered(text, path)
    assert "D.fromrgb.weight" in found.said and "grey ones" in found.said
    assert "img_resolution 256, img_channels 3" in found.said
    sizes = (
        f"{COPIES}RuntimeError: The size of tensor a (16) must match the size of "
        "tensor b (8) at non-singleton dimension 0"
    )
    other = Answered(sizes, path)
    assert "one has 8 in the file where the model has 16" in other.said
    pictures = (
        "output with shape [9, 1, 7, 7] doesn't match the broadcast shape [9, 3, 7, 7]"
    )
    assert "copies each tensor" not in Answered(f"RuntimeError: {pictures}", path).said


# --- questions ------------------------------------------------------------------------


def test_statistics_beside_an_agent_are_asked_for(tmp_path: Path) -> None:
    torch.save(
        {
            "actor": weights(net__0__weight=(4, 8)),
            "critic": weights(emb__0__weight=(4, 8)),
            "s_norm": np.zeros(5, "float32"),
            "s_std": np.ones(5, "float32"),
        },
        tmp_path / "a.pt",
    )
    for text in (
        "I trained policies for tasks. When I tried loading the pretrained weights, "
        "none of the tasks can be accomplished:\n sd = torch.load(path)\n"
        ' self.actor.load_state_dict(sd["actor"])',
        "The trained policy does not work after loading the actor, why?",
        "After I load the model the robot acts randomly",
    ):
        found = Answered(text, tmp_path / "a.pt")
        assert "s_norm, s_std stand beside the weights" in found.said, text
    plain = {"actor": weights(net__weight=(4, 8)), "norm": weights(weight=(4,))}
    torch.save(plain, tmp_path / "b.pt")
    found = Answered("The policy does not work after loading", tmp_path / "b.pt")
    assert "beside the weights" not in found.said


def test_results_that_change_from_run_to_run_are_not_of_the_file(
    tmp_path: Path,
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    torch.save(model.state_dict(), tmp_path / "best.pt")
    found = Answered(
        "I saved the best model parameters. The best accuracy was 97.65%. I loaded "
        "them with load_state_dict and model.eval(), but the accuracy differs now on "
        "3 different runs. What could be the issue?",
        tmp_path / "best.pt",
    )
    assert "differ from run to run with one file are not of the file" in found.said
    assert "records no metric" not in found.said
    best = Answered("Is this the best or the last checkpoint?", tmp_path / "best.pt")
    assert "run to run" not in best.said


def averaged_folder(folder: Path) -> dict[str, torch.Tensor]:
    """Write weights, and their averages as diffusers writes them."""
    state = weights(proj__weight=(4, 4), to_q__weight=(4, 4))
    for name, factor in (("model", 1.0), ("model_ema", 0.5)):
        (folder / name).mkdir(parents=True)
        file = folder / name / "diffusion_pytorch_model.safetensors"
        save_file({key: value * factor for key, value in state.items()}, file)
        config: dict[str, Any] = {"_class_name": "T"}
        if name == "model_ema":
            settings = {"decay": 0.9999, "optimization_step": 9, "update_after_step": 0}
            config.update(settings)
        (folder / name / "config.json").write_text(json.dumps(config))
    return state


def test_averages_are_told_by_their_name_and_config(tmp_path: Path) -> None:
    averaged_folder(tmp_path / "ck")
    text = "Is it okay to use this checkpoint for inference?"
    found = Answered(text, tmp_path / "ck" / "model_ema")
    assert "its name (model_ema) and its config.json (decay 0.9999" in found.said
    plain = Answered(text, tmp_path / "ck" / "model")
    assert "EMA" not in plain.said


def test_two_files_of_which_one_is_called_averages(tmp_path: Path) -> None:
    state = weights(a__weight=(4, 4), b__weight=(4,))
    torch.save({"state_dict": state, "epoch": 24}, tmp_path / "epoch_24.pth")
    other = {name: value * 0.9 for name, value in state.items()}
    torch.save({"state_dict": other, "epoch": 24}, tmp_path / "epoch_24_ema.pth")
    done = ckpt(
        "explain",
        "What is the difference between epoch_24.pth and epoch_24_ema.pth?",
        "epoch_24.pth",
        "epoch_24_ema.pth",
        cwd=tmp_path,
    )
    said = " ".join(done.out.decode().split())
    assert "By its name epoch_24_ema.pth has the running averages (EMA)" in said
    assert done.code == 0


def test_parts_of_a_folder_that_a_question_names(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5500"
    state = averaged_folder(folder)
    model = nn.Linear(4, 4)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(4)).sum().backward()
    adam.step()
    run = {"model": model.state_dict(), "optimizer": adam.state_dict(), "step": 9}
    torch.save(run, folder / "run.pth")
    found = Answered("Which may I use, model, model_ema or run?", folder)
    assert "model_ema: by its name the running averages" in found.said
    assert "run.pth: a checkpoint of the run" in found.said
    assert "a training goes on from run.pth" in found.said
    assert state


def test_an_adapter_of_the_end_of_its_run(tmp_path: Path) -> None:
    state = weights(lora_a__lora_down__weight=(2, 4), lora_a__lora_up__weight=(4, 2))
    settings = {"ss_epoch": "50", "ss_num_epochs": "50", "ss_lr_scheduler": "cosine"}
    for name in ("first", "resumed"):
        save_file(state, tmp_path / f"{name}.safetensors", metadata=settings)
    text = (
        "I resumed training from the saved state. The output of every epoch was "
        "identical to the first one. Why?"
    )
    found = Answered(text, tmp_path / "resumed.safetensors")
    assert "ss_epoch is 50 of ss_num_epochs 50" in found.said
    done = ckpt(
        "explain", text, "first.safetensors", "resumed.safetensors", cwd=tmp_path
    )
    said = " ".join(done.out.decode().split())
    assert "So both files hold the same model." in said
    assert "the run saved what it had loaded" in said and "end of its run" in said
    # A superscript is a digit for `str.isdigit`, and no number for `int`.
    settings["ss_epoch"] = "\u00b2"
    save_file(state, tmp_path / "odd.safetensors", metadata=settings)
    assert "ss_epoch" not in Answered(text, tmp_path / "odd.safetensors").said
    settings["ss_epoch"] = "10"
    save_file(state, tmp_path / "early.safetensors", metadata=settings)
    early = Answered(text, tmp_path / "early.safetensors")
    assert "end of its run" not in early.said


# --- layers by their kind -------------------------------------------------------------


def recurrent(place: str, units: int, *, both: bool) -> dict[str, torch.Tensor]:
    """The weights of a GRU below a name."""
    layer = nn.GRU(6, units, bidirectional=both)
    return {f"{place}.{name}": value for name, value in layer.state_dict().items()}


def test_a_recurrent_layer_by_another_name_and_with_another_direction(
    tmp_path: Path,
) -> None:
    file = {**recurrent("gru", 4, both=False), **weights(out__weight=(3, 4))}
    model = {**recurrent("rnn", 4, both=True), **weights(out__weight=(3, 8))}
    torch.save(file, tmp_path / "a.pt")
    found = Answered(refused(file, model), tmp_path / "a.pt")
    assert "calls its recurrent layer gru (nn.GRU of 4 units, 1 layer in one" in (
        found.said
    )
    assert "and the model rnn (1 layer in both directions)" in found.said


@pytest.mark.parametrize("is_saved", [True, False])
def test_weight_norm_of_a_parameter_of_any_name(is_saved: bool, tmp_path: Path) -> None:
    plain = weights(rnns__0__w_ih=(4, 4), rnns__0__w_hh=(4, 4), out__weight=(2, 2))
    normed = weights(
        rnns__0__w_ih_g=(4, 1),
        rnns__0__w_ih_v=(4, 4),
        rnns__0__w_hh_g=(4, 1),
        rnns__0__w_hh_v=(4, 4),
        out__weight=(2, 2),
    )
    file, model = (normed, plain) if is_saved else (plain, normed)
    torch.save(file, tmp_path / "a.pt")
    found = Answered(refused(file, model), tmp_path / "a.pt")
    assert "weight norm in 2 layers (rnns.0.w_" in found.said
    assert "layers by number" not in found.said


def test_convolutions_behind_another_layer_are_in_no_groups(tmp_path: Path) -> None:
    def text(width: int) -> dict[str, torch.Tensor]:
        return {f"convs.{n}.weight": torch.randn(10, width, n + 2) for n in range(3)}

    file = {**text(8), **weights(linear__weight=(5, 30))}
    model = {
        **text(16),
        **recurrent("rnn", 8, both=True),
        **weights(linear__weight=(5, 30)),
    }
    torch.save({"model_name": "TextCNN", "state_dict": file}, tmp_path / "a.pt")
    message = refused(file, model).replace("for Net:", "for TextRCNN:")
    found = Answered(message, tmp_path / "a.pt")
    assert "groups" not in found.said
    assert "records model_name = TextCNN, and the program built TextRCNN" in found.said


@pytest.mark.parametrize(("here", "there"), [(8, 64), (64, 8)])
def test_buffers_without_an_element_are_no_ranks(
    here: int, there: int, tmp_path: Path
) -> None:
    def net(batch: int) -> dict[str, torch.Tensor]:
        state = {
            f"decoder.net.{n}.aligned.paddings.{k}.pad": torch.zeros(batch, 4, 0)
            for n in range(3)
            for k in range(2)
        }
        return {**state, **weights(decoder__net__0__weight=(4, 4))}

    torch.save({"state_dict": net(here)}, tmp_path / "a.ckpt")
    found = Answered(refused(net(here), net(there)), tmp_path / "a.ckpt")
    assert "hold no element at all" in found.said and "rank" not in found.said
    assert "So all else loads:" in found.said


def test_a_table_that_feeds_a_recurrent_layer_is_no_head(tmp_path: Path) -> None:
    file = {**weights(encoder__weight=(54, 6)), **recurrent("rnn", 4, both=False)}
    torch.save(file, tmp_path / "a.pth")
    text = (
        "RuntimeError: Error(s) in loading state_dict for RNN_ENCODER:\n\tWhile copying "
        'the parameter named "encoder.weight", whose dimensions in the model are '
        "torch.Size([1, 6]) and whose dimensions in the checkpoint are "
        "torch.Size([54, 6])."
    )
    found = Answered(text, tmp_path / "a.pth")
    assert "encoder.weight has 54 rows" in found.said
    assert "an empty list: where a file has the dictionary" in found.said
    assert "outputs" not in found.said and "classes. The last" not in found.said


# --- folders --------------------------------------------------------------------------


def test_a_text_that_names_the_last_save(tmp_path: Path) -> None:
    (tmp_path / "last_checkpoint").write_text("model_final.pth")
    text = "_pickle.UnpicklingError: invalid load key, 'm'."
    alone = Answered(text, tmp_path / "last_checkpoint")
    assert "Not a checkpoint: a text file" in alone.said
    torch.save({"model": weights(a__weight=(2, 2))}, tmp_path / "model_final.pth")
    found = Answered(text, tmp_path / "last_checkpoint")
    assert "it holds the name model_final.pth" in found.said
    assert found.commands == ["ckpt inspect model_final.pth"]


def zero_run(folder: Path) -> None:
    """Write the state of a run of DeepSpeed with two ranks."""
    folder.mkdir(parents=True)
    state = weights(a__weight=(4, 4))
    torch.save(
        {
            "module": state,
            "buffer_names": [],
            "optimizer": None,
            "param_shapes": [{"a.weight": torch.Size([4, 4])}],
            "lr_scheduler": None,
            "global_steps": 2,
            "dp_world_size": 2,
            "mp_world_size": 1,
            "ds_version": "0.14.0",
            "ds_config": {},
        },
        folder / "mp_rank_00_model_states.pt",
    )
    for rank in range(2):
        part = {
            "zero_stage": 2,
            "partition_count": [2],
            "loss_scaler": None,
            "single_partition_of_fp32_groups": [torch.zeros(8)],
            "base_optimizer_state": [{"exp_avg": torch.zeros(8), "step": 2}],
            "group_paddings": [0],
        }
        held = {"optimizer_state_dict": part, "ds_config": {}, "ds_version": "0.14.0"}
        torch.save(
            held, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        )
    (folder.parent / "latest").write_text(folder.name)


def test_the_state_of_a_run_beside_an_adapter(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-2"
    zero_run(folder / "global_step2")
    text = "Which files do I need for inference, is global_step2 necessary?"
    # Without other weights it is all that the folder holds.
    alone = Answered(text, folder)
    assert "beside it" not in alone.said
    adapter = weights(
        base_model__model__a__lora_A__weight=(2, 4),
        base_model__model__a__lora_B__weight=(4, 2),
    )
    torch.save(adapter, folder / "adapter_model.bin")
    settings = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": "b"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    found = Answered(text, folder)
    assert "global_step2: a checkpoint of the run (DeepSpeed" in found.said
    assert "Only a training that goes on needs global_step2" in found.said


def test_a_run_of_deepspeed_beside_weights_and_averages(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5500"
    averaged_folder(folder)
    zero_run(folder / "pytorch_model")
    text = "Differences between model, model_ema, pytorch_model: which for inference?"
    found = Answered(text, folder)
    assert "model_ema is for samples and evaluation" in found.said
    assert "a training goes on from pytorch_model" in found.said


# --- rows for questions ---------------------------------------------------------------


def trained(folder: Path) -> Path:
    """A checkpoint of a training with averages."""
    model = nn.Sequential()
    model.add_module("body", nn.Conv2d(3, 8, 3))
    model.add_module("norm", nn.BatchNorm2d(8))
    model.add_module("fc", nn.Linear(8, 4))
    adam = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    adam.step()
    state = model.state_dict()
    torch.save(
        {
            "epoch": 12,
            "model": state,
            "optimizer": adam.state_dict(),
            "best_acc": 0.9,
            "args": {"img_size": 224},
        },
        folder / "ckpt.pth",
    )
    return folder / "ckpt.pth"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("What input size does the model expect?", "args.img_size is 224"),
        ("how many input channels does it take?", "takes 3 channels"),
        ("are there any nan in this?", "no element is NaN or infinite"),
        ("weights are all zero?", "The mean, the spread and the zeros"),
        ("how much memory will it need?", "of memory when they are loaded"),
        ("can I export it to onnx?", "An export (ONNX"),
        ("how can I remove the head?", "fc is the head of the model"),
        ("is it a resnet?", "Its names begin with body"),
        ("is the scheduler state saved?", "It has no state of a schedule"),
        ("Is this checkpoint enough to continue training?", "So a run can go on"),
        ("Do I need the optimizer state for inference?", "No prediction needs"),
        ("was early stopping triggered?", "best_acc is 0.9"),
        ("why are there two copies of the weights?", "Its tensors are in model"),
        ("how do I continue training from epoch 12?", "epoch is 12"),
        ("generated images are black after resuming", "This file records epoch 12"),
        ("my agent performs badly in evaluation", "call model.eval() after the load"),
        ("The model gives random predictions", "call model.eval() after the load"),
        (
            "I get different results in train and eval mode",
            "call model.eval() after the load",
        ),
        (
            "Why is validation accuracy 10% when I load the weights?",
            "call model.eval() after the load",
        ),
    ],
)
def test_a_question_has_its_row(text: str, said: str, tmp_path: Path) -> None:
    found = Answered(text, trained(tmp_path))
    assert said in found.said
    assert found.code == 0


def test_a_head_is_left_out(tmp_path: Path) -> None:
    found = Answered("how can I remove the head?", trained(tmp_path))
    written = found.run("ckpt slim")
    held = torch.load(written)
    state = held.get("model", held)
    assert "body.weight" in state and not [name for name in state if "fc" in name]


# --- counts of the data, and what lies beside a model ---------------------------------


def actors(count: int) -> dict[str, torch.Tensor]:
    """A model of moving objects keeps a row for each of them."""
    return weights(
        actors__positions=(9, count, 3),
        actors__poses_at_time=(9, count, 4, 4),
        actors__sizes=(count, 3),
        actors__to_id=(count,),
        field__hashgrid__static_table=(64, 4),
    )


def test_a_count_of_the_data_at_several_places_is_named(tmp_path: Path) -> None:
    torch.save(actors(34), tmp_path / "a.pt")
    found = Answered(refused(actors(34), actors(47)), tmp_path / "a.pt")
    assert "One number differs: 34 in the checkpoint and 47 in the model" in found.said
    assert "Build the model from the data that the run had" in found.said


def test_a_size_that_is_a_multiple_of_another_follows_it(tmp_path: Path) -> None:
    def features(inputs: int, width: int) -> dict[str, torch.Tensor]:
        return weights(
            nn__init__linear_out__weight=(24, inputs),
            nn__cond__embedding_C__weight=(6, width),
            nn__cond__embedding_A__weight=(44, width),
            nn__cond__linear_out__weight=(128, 4 * width),
        )

    file, model = features(200, 196), features(132, 256)
    torch.save(file, tmp_path / "a.pt")
    found = Answered(refused(file, model), tmp_path / "a.pt")
    assert "784 is 4 times 196, as 1,024 is of 256: one setting gives both" in (
        found.said
    )


def test_a_loss_that_counts_the_words_follows_the_vocabulary(tmp_path: Path) -> None:
    def words(count: int) -> dict[str, torch.Tensor]:
        return weights(
            encoder__0__emb_layers__3__weight=(count, 1),
            loss__out_layers_biases__3=(count,),
            loss_val__out_layers_biases__3=(count,),
        )

    torch.save(words(6738), tmp_path / "a.pt")
    found = Answered(refused(words(6738), words(6737)), tmp_path / "a.pt")
    assert "the vocabulary, or the alphabet, is another one" in found.said
    assert "which a model that only predicts does without" not in found.said


def test_a_type_of_transformers_is_no_other_class(tmp_path: Path) -> None:
    file = weights(
        embeddings__word_embeddings__weight=(30, 8),
        embeddings__position_embeddings__weight=(512, 8),
        encoder__layer__0__attention__self__query__weight=(8, 8),
    )
    model = {
        **file,
        **weights(embeddings__position_embeddings__weight=(128, 8)),
    }
    save_file(file, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "max_position_embeddings": 512})
    )
    message = refused(file, model).replace("for Net:", "for BertModel:")
    found = Answered(message, tmp_path)
    assert "Position embeddings differ: 512" in found.said
    assert "the program built BertModel" not in found.said


def test_values_beside_a_model_are_registered_by_the_training(tmp_path: Path) -> None:
    inner = weights(
        model__xyz_encoder__params=(64,),
        model__rgb_net__params=(16,),
        model__center=(1, 3),
        model__xyz_min=(1, 3),
    )
    file = {**inner, **weights(directions=(60, 3), poses=(4, 3, 4))}
    path = tmp_path / "epoch=4.ckpt"
    torch.save({"state_dict": file, "epoch": 5}, path)
    found = Answered(refused(file, inner), path)
    assert "directions, poses lie beside the model" in found.said
    assert "gives other results" not in found.said


def test_the_nearest_name_of_another_library_is_told(tmp_path: Path) -> None:
    state = weights(
        backbone__conv1__conv__weight=(8, 3, 7, 7),
        backbone__conv1__bn__weight=(8,),
        backbone__conv1__bn__bias=(8,),
        backbone__layer1__0__conv1__conv__weight=(8, 8, 3, 3),
    )
    torch.save({"meta": {}, "state_dict": state}, tmp_path / "r18.pth")
    message = (
        "Traceback (most recent call last):\n"
        '  File "mmaction/models/backbones/resnet.py", line 452, in _load_conv_params\n'
        "    conv.weight.data.copy_(state_dict_tv[weight_tv_name])\n"
        "KeyError: 'conv1.weight'"
    )
    found = Answered(message, tmp_path / "r18.pth")
    assert "The nearest name there is backbone.conv1.conv.weight" in found.said
    assert "ConvModule" in found.said and "prefix backbone." in found.said


def test_what_one_of_two_files_has_beside_the_model(tmp_path: Path) -> None:
    generator, other = weights(init__weight=(8, 4)), weights(down__weight=(4, 4))
    optimizer = {"state": {}, "param_groups": [{"lr": 2e-4, "params": [0]}]}
    torch.save({"g": generator, "d": other}, tmp_path / "50.pth")
    torch.save(
        {"g": generator, "d": other, "opt_g": optimizer, "opt_d": optimizer},
        tmp_path / "all_50.pth",
    )
    done = ckpt(
        "explain",
        "What is the difference between 50.pth and all_50.pth?",
        "50.pth",
        "all_50.pth",
        cwd=tmp_path,
    )
    said = " ".join(done.out.decode().split())
    assert "So both files hold the same model." in said
    assert "Beside that all_50.pth has opt_g, opt_d." in said
    assert "a training goes on from that file" in said


def test_plain_words_about_two_files_ask_how_they_differ(tmp_path: Path) -> None:
    for name in ("best.pt", "last.pt"):
        torch.save(
            {
                "epoch": -1,
                "best_fitness": 0.6,
                "model": weights(model__0__conv__weight=(8, 3, 6, 6)),
                "optimizer": None,
            },
            tmp_path / name,
        )
    done = ckpt(
        "explain",
        "last.pt and best.pt have the same epoch='-1' and the same best_fitness",
        "best.pt",
        "last.pt",
        cwd=tmp_path,
    )
    assert done.code == 0
    assert "This file is of a finished run: epoch is -1" in " ".join(
        done.out.decode().split()
    )


# --- inputs side by side, positions, body models --------------------------------------


def test_a_layer_takes_several_vectors_side_by_side(tmp_path: Path) -> None:
    def head(inputs: int) -> dict[str, torch.Tensor]:
        return weights(
            layer_norm1__weight=(inputs,),
            fc1__weight=(64, inputs),
            fc2__weight=(7, 64),
        )

    torch.save(head(448), tmp_path / "a.pt")
    found = Answered(refused(head(448), head(64)), tmp_path / "a.pt")
    assert "448 is 7 times 64: in the checkpoint fc1 takes 7 vectors" in found.said


@pytest.mark.parametrize(
    ("here", "there", "is_few"), [(130, 132, True), (512, 514, False), (77, 248, False)]
)
def test_a_few_positions_more_are_tokens(
    here: int, there: int, *, is_few: bool, tmp_path: Path
) -> None:
    file = weights(cond__position_embedding__weight=(here, 8), a__weight=(8, 8))
    model = {**file, **weights(cond__position_embedding__weight=(there, 8))}
    torch.save(file, tmp_path / "a.pt")
    found = Answered(refused(file, model), tmp_path / "a.pt")
    assert ("do not interpolate" in found.said) == is_few
    assert ("Position embeddings differ" in found.said) == (not is_few)


def test_a_body_model_of_another_file(tmp_path: Path) -> None:
    def body(count: int) -> dict[str, torch.Tensor]:
        return weights(
            layer__th_betas=(1, count),
            layer__th_shapedirs=(69, 3, count),
            conv1__weight=(8, 3, 3, 3),
        )

    torch.save(body(10), tmp_path / "a.pt")
    found = Answered(refused(body(10), body(300)), tmp_path / "a.pt")
    assert "layer is a body model" in found.said
    assert "Give the program the file of the run that saved" in found.said


def test_kernels_tell_the_blocks_of_a_resnet(tmp_path: Path) -> None:
    file = weights(
        layer1__0__conv1__weight=(8, 8, 3, 3),
        layer1__1__conv1__weight=(8, 8, 3, 3),
        layer2__0__downsample__0__weight=(16, 8, 1, 1),
    )
    model = weights(
        layer1__0__conv1__weight=(8, 8, 1, 1),
        layer1__1__conv1__weight=(8, 32, 1, 1),
        layer2__0__downsample__0__weight=(64, 32, 1, 1),
    )
    torch.save(file, tmp_path / "a.pt")
    found = Answered(refused(file, model, strict=False), tmp_path / "a.pt")
    assert "the checkpoint has basic blocks, and the model bottleneck" in found.said


# --- what is no tensor, no layer, or told by another program --------------------------


def test_a_table_of_the_model_itself_is_no_lost_layer(tmp_path: Path) -> None:
    model = weights(
        module__embedding__weight=(10, 8),
        module__interactions__0__lin__weight=(8, 8),
        module__lin1__weight=(8, 8),
        module__lin2__weight=(1, 8),
    )
    file = {**model, **weights(module__atomic_mass=(118,))}
    torch.save({"state_dict": file, "epoch": 3}, tmp_path / "a.pt")
    found = Answered(refused(file, model), tmp_path / "a.pt")
    assert "module.atomic_mass is of no layer" in found.said
    assert "gives other results" not in found.said
    state = taken(found, "model.load_state_dict(")
    assert any(name.endswith("lin1.weight") for name in state)


def test_keys_in_the_text_of_an_error_that_python_quotes(tmp_path: Path) -> None:
    file = weights(
        head__weight=(8, 3), tail__0__0__weight=(8, 8), tail__1__weight=(3, 8)
    )
    torch.save(file, tmp_path / "a.pt")
    message = (
        "KeyError: 'missing keys in state_dict: "
        "\"{\\'tail.0.2.bias\\', \\'tail.0.2.weight\\'}\"'"
    )
    found = Answered(message, tmp_path / "a.pt")
    assert {"tail.0.2.bias", "tail.0.2.weight"} <= set(found.names)
    assert "stops a load" not in found.said


def test_an_object_among_the_weights_is_left_out(tmp_path: Path) -> None:
    state = weights(query__weight=(4, 8), linear__weight=(8, 8))
    module = types.ModuleType("graphs")
    kind = type("Graph", (), {"__module__": "graphs"})
    module.Graph = kind  # type: ignore[attr-defined]
    sys.modules["graphs"] = module
    try:
        torch.save({"model": {**state, "graph": kind()}}, tmp_path / "a.pth")
    finally:
        del sys.modules["graphs"]
    message = (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tWhile copying the "
        'parameter named "graph", expected torch.Tensor or Tensor-like object from '
        "checkpoint but received <class 'graphs.Graph'>"
    )
    found = Answered(message, tmp_path / "a.pth")
    assert "graph is no tensor but of graphs.Graph" in found.said
    found.run("ckpt convert")
    loaded = taken(found, "state = torch.load(")
    assert set(loaded) == set(state)
    assert torch.equal(loaded["query.weight"], state["query.weight"])


def test_the_debugger_of_an_editor_has_the_error_below_its_words(
    tmp_path: Path,
) -> None:
    file = weights(net__convs__0__weight=(25, 8, 8), net__convs__0__root=(8, 8))
    torch.save(file, tmp_path / "a.pt")
    message = (
        "Exception has occurred: KeyError       (note: full exception trace is shown "
        "but execution is paused at: _run_module_as_main)\n"
        "'net.convs.0.lin.weight'\n"
        '  File "torch_geometric/nn/dense/linear.py", line 131, in _lazy_load_hook\n'
        "    weight = state_dict[prefix + 'weight']"
    )
    found = Answered(message, tmp_path / "a.pt")
    assert found.code == 0
    assert "net.convs.0.weight is one of them" in found.said

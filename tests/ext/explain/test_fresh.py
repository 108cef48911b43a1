"""Situations of public threads that were rebuilt before anything was looked up: what is
said is true of the file, and what is printed is run.
"""

from __future__ import annotations

import copyreg
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, listed, weights
from inside import folder_of
from process import ckpt
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def refused(
    file: dict[str, torch.Tensor], model: dict[str, torch.Tensor], name: str = "Net"
) -> str:
    """The text of torch for a load of one state dict into the model of another one."""
    rows = [f"RuntimeError: Error(s) in loading state_dict for {name}:"]
    missing = [key for key in model if key not in file]
    unexpected = [key for key in file if key not in model]
    if missing:
        rows.append(f"\tMissing key(s) in state_dict: {listed(missing)}")
    if unexpected:
        rows.append(f"\tUnexpected key(s) in state_dict: {listed(unexpected)}")
    return "\n".join(rows)


# --- heads and parts ------------------------------------------------------------------


def folding(*heads: str) -> dict[str, torch.Tensor]:
    """A network for proteins with some heads beside its own."""
    state = {f"evoformer.{n}.linear.weight": torch.randn(8, 8) for n in range(20)}
    for head in heads:
        state[f"aux_heads.{head}.linear.weight"] = torch.randn(4, 8)
        state[f"aux_heads.{head}.linear.bias"] = torch.randn(4)
    return state


def test_a_head_beside_other_heads_is_of_another_run(tmp_path: Path) -> None:
    state = folding("plddt", "distogram")
    lightning = {f"model.{name}": value for name, value in state.items()}
    torch.save(
        {"state_dict": lightning, "ema": {"params": state, "decay": 0.999}},
        tmp_path / "0-10000.ckpt",
    )
    text = refused(state, folding("plddt", "distogram", "tm"), "AlphaFold")
    found = Answered(text, tmp_path / "0-10000.ckpt")
    assert "aux_heads has plddt, distogram here, and no tm" in found.said
    assert "base model" not in found.said and "model alone has" not in found.said


def test_a_base_model_lacks_its_head_still(tmp_path: Path) -> None:
    state = {f"bert.{n}.linear.weight": torch.randn(4, 4) for n in range(20)}
    torch.save(state, tmp_path / "a.pth")
    model = {**state, **weights(classifier__weight=(2, 4), classifier__bias=(2,))}
    found = Answered(refused(state, model), tmp_path / "a.pth")
    assert "They are the head for a task" in found.said


# --- shapes without their names -------------------------------------------------------


def test_keys_and_shapes_of_coqui_are_both_answered(tmp_path: Path) -> None:
    state = weights(emb__weight=(16, 4), speaker__conv__weight=(4, 4, 3))
    config = {"model": "vits", "model_args": {"num_chars": 16}}
    torch.save({"config": config, "model": state}, tmp_path / "model_file.pth")
    text = (
        " | > Layer missing in the model definition: speaker.conv.weight\n"
        " | > Layer dimention missmatch between model definition and checkpoint: "
        "emb.weight\n | > 1 / 3 layers are restored.\n"
    )
    found = Answered(text, tmp_path / "model_file.pth")
    assert "no place for 1 key" in found.said
    assert "emb.weight [16, 4]" in found.said and "at config" in found.said


# --- agents ---------------------------------------------------------------------------


def agent(path: Path, policy: dict[str, torch.Tensor]) -> Path:
    """An archive of Stable-Baselines3."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"verbose": 1, "num_timesteps": 100}))
        for name, value in (("policy.pth", policy), ("pytorch_variables.pth", {})):
            stream = io.BytesIO()
            torch.save(value, stream)
            archive.writestr(name, stream.getvalue())
        archive.writestr("_stable_baselines3_version", "2.3.0")
    return path


PPO = weights(
    mlp_extractor__policy_net__0__weight=(8, 4),
    mlp_extractor__value_net__0__weight=(8, 4),
    action_net__weight=(2, 8),
    value_net__weight=(1, 8),
)
DQN = weights(q_net__q_net__0__weight=(8, 4), q_net_target__q_net__0__weight=(8, 4))


@pytest.mark.parametrize(
    ("file", "model", "said"),
    [
        (PPO, DQN, "an agent of PPO, A2C or their kin, and the program loads it as"),
        (DQN, PPO, "an agent of DQN, and the program loads it as one of PPO"),
    ],
)
def test_an_agent_of_another_algorithm(
    file: dict[str, torch.Tensor],
    model: dict[str, torch.Tensor],
    said: str,
    tmp_path: Path,
) -> None:
    found = Answered(refused(file, model), agent(tmp_path / "agent.zip", file))
    assert said in found.said and "other words" not in found.said


# --- adapters -------------------------------------------------------------------------


def adapted(prefix: str) -> dict[str, torch.Tensor]:
    """A layer that PEFT has wrapped."""
    return {
        f"{prefix}query.base_layer.weight": torch.randn(4, 4),
        f"{prefix}query.lora_A.default.weight": torch.randn(2, 4),
        f"{prefix}query.lora_B.default.weight": torch.randn(4, 2),
        f"{prefix}key.weight": torch.randn(4, 4),
    }


@pytest.mark.parametrize("prefix", ["0.bert.base_model.model.", "0.bert."])
def test_layers_of_lora_are_what_was_trained(prefix: str, tmp_path: Path) -> None:
    state = adapted(prefix)
    torch.save(state, tmp_path / "pytorch_model.bin")
    names = [f"0.bert.{name}.weight" for name in ("query", "key")]
    model = {name: torch.ones(4, 4) for name in names}
    found = Answered(refused(state, model), tmp_path / "pytorch_model.bin")
    assert "a whole model of PEFT that was not merged" in found.said
    words = ["merge", "pytorch_model.bin", "--scale", "2", "-o", "merged.bin"]
    assert ckpt(*words, cwd=tmp_path).code == 0
    out = "merged.bin"
    if "puts back" in found.said:
        assert "ckpt rename --sub 's/^/0.bert./'" in found.said
        words = ["rename", "merged.bin", "--sub", "s/^/0.bert./", "-o", "named.bin"]
        assert ckpt(*words, cwd=tmp_path).code == 0
        out = "named.bin"
    merged = torch.load(tmp_path / out)
    assert sorted(merged) == sorted(names)
    up, down = (state[f"{prefix}query.lora_{side}.default.weight"] for side in "BA")
    whole = state[f"{prefix}query.base_layer.weight"] + 2 * up @ down
    assert torch.allclose(merged["0.bert.query.weight"], whole, atol=1e-5)


def test_a_rename_leaves_what_was_trained(tmp_path: Path) -> None:
    state = {**adapted("net."), **weights(net__norm__weight=(4,))}
    torch.save(state, tmp_path / "pytorch_model.bin")
    model = weights(query__weight=(4, 4), other__weight=(4,), norm__weight=(4,))
    model["key.weight"] = torch.ones(4, 4)
    found = Answered(refused(state, model), tmp_path / "pytorch_model.bin")
    assert "add_adapter" in found.said and "without its training" in found.said
    assert found.said.index("LoRA") < found.said.index("by other names")


def test_torchtune_goes_on_from_its_own_adapter(tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    state = {name: torch.randn(2, 4), name.replace("_A", "_B"): torch.randn(4, 2)}
    save_file(state, tmp_path / "adapter_model.safetensors")
    text = (
        'raise AssertionError(f"Missing LoRA key {k} from adapter state dict")\n'
        "AssertionError: Missing LoRA key layers.0.attn.q_proj.lora_a.weight from "
        "adapter state dict"
    )
    found = Answered(text, tmp_path / "adapter_model.safetensors")
    assert found.kind == "adapter" and "adapter_model.pt" in found.said
    assert "layers.0.attn.q_proj.lora_a.weight" in found.said
    assert "It is here" not in found.said
    torch.save({}, tmp_path / "adapter_model.pt")
    assert "It is here" in Answered(text, tmp_path / "adapter_model.safetensors").said


def test_an_adapter_is_no_language_model(tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({name: torch.randn(2, 4)}, tmp_path / "adapter.safetensors")
    found = Answered("SomeError: nothing known", tmp_path / "adapter.safetensors")
    assert "an adapter of LoRA in the names of PEFT" in found.said
    assert "language model" not in found.said


# --- names of other libraries ---------------------------------------------------------


def test_one_key_of_a_graph_is_of_an_older_version(tmp_path: Path) -> None:
    state = weights(conv1__weight=(4, 6), conv1__bias=(6,), convs__0__weight=(6, 6))
    torch.save({"state_dict": state}, tmp_path / "GCN_best.ckpt")
    text = "    weight = state_dict[prefix + 'weight']\nKeyError: 'conv1.lin.weight'\n"
    found = Answered(text, tmp_path / "GCN_best.ckpt")
    assert "PyTorch Geometric" in found.said and "another library" not in found.said

    class Layer(nn.Module):
        def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
            super().__init__()
            self.lin = nn.Linear(inputs, outputs, bias=False)
            self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = Layer(4, 6, bias=True)
            self.convs = nn.ModuleList([Layer(6, 6, bias=False)])

    model = Net()
    (line,) = [row for row in found.commands if row.startswith("state = ")]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert torch.equal(model.conv1.lin.weight, state["conv1.weight"].T)


def whisper(side: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names of transformers for one side of Whisper, with those of OpenAI."""
    names = {
        f"{side}.layers.0.self_attn.q_proj.weight": f"{side}.blocks.0.attn.query.weight",
        f"{side}.layers.0.self_attn.out_proj.bias": f"{side}.blocks.0.attn.out.bias",
        f"{side}.layers.0.self_attn_layer_norm.weight": (
            f"{side}.blocks.0.attn_ln.weight"
        ),
        f"{side}.layers.0.fc1.weight": f"{side}.blocks.0.mlp.0.weight",
        f"{side}.layers.0.fc2.weight": f"{side}.blocks.0.mlp.2.weight",
        f"{side}.layers.0.final_layer_norm.weight": f"{side}.blocks.0.mlp_ln.weight",
        f"{side}.embed_positions.weight": f"{side}.positional_embedding",
        f"{side}.layer_norm.weight": (
            f"{side}.ln_post.weight" if side == "encoder" else f"{side}.ln.weight"
        ),
    }
    if side == "decoder":
        names[f"{side}.layers.0.encoder_attn.k_proj.weight"] = (
            f"{side}.blocks.0.cross_attn.key.weight"
        )
        names[f"{side}.embed_tokens.weight"] = f"{side}.token_embedding.weight"
    return {ours: (theirs, (4, 4)) for ours, theirs in names.items()}


def test_whisper_of_transformers_is_whisper_of_openai(tmp_path: Path) -> None:
    both = {**whisper("encoder"), **whisper("decoder")}
    state = {f"model.{name}": torch.randn(shape) for name, (_, shape) in both.items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    model = {theirs: torch.zeros(shape) for theirs, shape in both.values()}
    found = Answered(refused(state, model, "Whisper"), tmp_path / "pytorch_model.bin")
    assert f"{len(both)} of the {len(both)} missing keys" in found.said
    torch.save(model, tmp_path / "openai.pt")
    done = ckpt(
        "warmstart", "pytorch_model.bin", "--into", "openai.pt", "-o", "o.pt",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    written = torch.load(tmp_path / "o.pt")
    for name, (theirs, _) in both.items():
        assert torch.equal(written[theirs], state[f"model.{name}"]), name


# --- converters -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "ValueError: Key `optimizer` is invalid, expected torch.Tensor but "
            "received <class 'dict'>",
            "optimizer is a part",
        ),
        ("AttributeError: 'int' object has no attribute 'data_ptr'", "epoch is a"),
        ("AttributeError: 'NoneType' object has no attribute 'data_ptr'", "scaler is"),
    ],
)
def test_a_converter_takes_parts_for_tensors(
    text: str, part: str, tmp_path: Path
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": 3,
            "scaler": None,
        },
        tmp_path / "last.ckpt",
    )
    found = Answered(text, tmp_path / "last.ckpt")
    assert part in found.said and "no key" not in found.said.lower()
    written = load_file(found.run("ckpt slim"))
    assert sorted(written) == ["bias", "weight"]


def test_a_state_dict_in_a_state_dict(tmp_path: Path) -> None:
    state: dict[str, Any] = weights(a__weight=(3, 2), b__weight=(2, 2))
    state["state_dict"] = {"a.weight": state["a.weight"]}
    torch.save({"state_dict": state}, tmp_path / "nai.ckpt")
    text = (
        "Error: Key `state_dict` is invalid, expected torch.Tensor but received "
        "<class 'dict'>"
    )
    found = Answered(text, tmp_path / "nai.ckpt")
    assert "state_dict.state_dict" in found.said
    assert sorted(load_file(found.run("ckpt slim"))) == ["a.weight", "b.weight"]


def test_an_attribute_of_a_number_is_no_name_of_a_file(tmp_path: Path) -> None:
    torch.save(weights(a__weight=(2, 2)), tmp_path / "a.pth")
    text = "AttributeError: 'float' object has no attribute 'contiguous'"
    assert "has one of the names" not in Answered(text, tmp_path / "a.pth").said


# --- sizes ----------------------------------------------------------------------------


class Scheduler:
    """What torch before 1.12 kept of a CyclicLR: a method, with its optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __reduce__(self) -> tuple[Any, ...]:
        inner = {
            "defaults": self.optimizer.defaults,
            "param_groups": self.optimizer.param_groups,
            "state": dict(self.optimizer.state),
        }
        return (getattr, (Made("lr_scheduler.CyclicLR", optimizer=Made("Adam", **inner)), "_triangular_scale_fn"))  # fmt: skip


class Made:
    """An object of torch.optim, as protocol 2 writes it."""

    def __init__(self, name: str, **state: Any) -> None:
        self.cls = torch.optim
        for part in name.split("."):
            self.cls = getattr(self.cls, part)
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg._reconstructor, (self.cls, object, None), self.state  # type: ignore[attr-defined]


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """A checkpoint whose scheduler brought its optimizer along."""
    model = nn.Linear(50, 20)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 50)).sum().backward()
    optimizer.step()
    scheduler = {"base_lrs": [1e-7], "scale_fn": Scheduler(optimizer)}
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": {"state": {}, "param_groups": [{"params": [0, 1]}]},
            "scheduler": scheduler,
        },
        tmp_path / "steps.pth",
    )
    return tmp_path / "steps.pth"


def test_tensors_in_the_arguments_of_a_call_are_seen(doubled: Path) -> None:
    done = ckpt("inspect", doubled.name, cwd=doubled.parent)
    shown = done.out.decode()
    assert "scheduler.scale_fn.0.optimizer" in shown
    # A method of torch's own scheduler is a value, and calls nothing.
    assert "DANGER" not in shown and "weights_only refuses" in shown


@pytest.mark.parametrize(
    "text",
    [
        "Save file size doubled after loading scheduler checkpoint",
        "Why is my checkpoint 3 times larger than the model?",
        "Why is my .pth so big",
    ],
)
def test_a_size_is_explained_by_its_parts(text: str, doubled: Path) -> None:
    found = Answered(text, doubled)
    assert "scheduler has an optimizer with its tensors inside" in found.said
    written = torch.load(found.run("ckpt slim"))
    assert sorted(written) == ["bias", "weight"]
    (doubled.parent / "question.txt").write_text(f"{text} ?\n")
    done = ckpt("explain", "question.txt", doubled.name, cwd=doubled.parent)
    assert b"scheduler has an optimizer" in done.out


def test_a_size_of_weights_alone(tmp_path: Path) -> None:
    torch.save(weights(a__weight=(20, 20)), tmp_path / "a.pth")
    found = Answered("Why is my model file so large?", tmp_path / "a.pth")
    assert "nothing but weights, in float32" in found.said
    assert "optimizer" not in found.said
    written = torch.load(found.run("ckpt convert"))
    assert written["a.weight"].dtype == torch.bfloat16


# --- other places and turned axes -----------------------------------------------------


def attention(places: range, sizes: list[int]) -> dict[str, torch.Tensor]:
    """The layers that an adapter adds, by their places in a list."""
    state: dict[str, torch.Tensor] = {}
    for place, size in zip(places, sizes, strict=True):
        state[f"{place}.to_k.weight"] = torch.randn(size, 6)
        state[f"{place}.to_v.weight"] = torch.randn(size, 6)
    return state


def mismatched(
    file: dict[str, torch.Tensor], model: dict[str, torch.Tensor], name: str = "Net"
) -> str:
    """The text of torch with the shapes that differ, too."""
    rows = [refused(file, model, name)]
    rows += [
        f"\tsize mismatch for {key}: copying a param with shape "
        f"{value.shape} from checkpoint, the shape in current model is "
        f"{model[key].shape}."
        for key, value in file.items()
        if key in model and model[key].shape != value.shape
    ]
    return "\n".join(rows)


def test_other_places_in_a_list_are_no_ranks(tmp_path: Path) -> None:
    file = attention(range(1, 13, 2), [4, 4, 8, 8, 16, 16])
    model = attention(range(1, 7), [4, 4, 8, 8, 16, 16])
    torch.save({"image_proj": {}, "ip_adapter": file}, tmp_path / "ip.bin")
    found = Answered(mismatched(file, model, "ModuleList"), tmp_path / "ip.bin")
    assert "the file alone at 7, 9, 11, the model alone at 2, 4, 6" in found.said
    assert "parallelism" not in found.said and not found.commands


def test_ranks_of_one_model_are_still_ranks(tmp_path: Path) -> None:
    names = [f"layers.{n}.{part}.weight" for n in range(3) for part in ("wq", "w1")]
    file = {name: torch.randn(4, 8) for name in names}
    model = {name: torch.randn(8, 8) for name in names}
    torch.save(file, tmp_path / "consolidated.00.pth")
    found = Answered(mismatched(file, model), tmp_path / "consolidated.00.pth")
    assert "one rank of 2 of tensor parallelism" in found.said


class Conv1D(nn.Module):
    """The layer of GPT-2 in transformers: its weight is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))


def block(layer: Any) -> nn.Module:
    """One block of GPT-2."""
    model = nn.Module()
    model.attn = nn.Module()
    model.attn.c_attn, model.attn.c_proj = layer(4, 12), layer(4, 4)
    model.mlp = nn.Module()
    model.mlp.c_fc, model.mlp.c_proj = layer(4, 16), layer(16, 4)
    return model


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


@pytest.mark.parametrize("is_linear", [True, False])
def test_square_matrices_of_gpt_2_are_turned_too(
    is_linear: bool, tmp_path: Path
) -> None:
    saved, model = block(linear), block(Conv1D)
    if not is_linear:
        saved, model = model, saved
        for parameter in saved.parameters():
            nn.init.normal_(parameter)
    state = saved.state_dict()
    wrapped = {f"_orig_mod.{name}": value for name, value in state.items()}
    torch.save({"model": wrapped, "iter_num": 3}, tmp_path / "ckpt.pt")
    found = Answered(mismatched(state, model.state_dict()), tmp_path / "ckpt.pt")
    side = "The file" if is_linear else "The model"
    assert f"{side} has these layers as Linear" in found.said
    (line,) = found.commands
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name].T), name


def test_a_size_of_the_loss_is_no_number_of_classes(tmp_path: Path) -> None:
    file = weights(net__weight=(8, 4), CELoss__centroids=(28, 5))
    model = {**file, "CELoss.centroids": torch.zeros(27, 5)}
    torch.save(
        {"state_dict": file, "hyper_parameters": {"n_classes": 27}},
        tmp_path / "a.ckpt",
    )
    found = Answered(mismatched(file, model), tmp_path / "a.ckpt")
    assert "CELoss.centroids belongs to the loss" in found.said
    assert "number of classes" not in found.said


# --- averages, pipelines and parts of ranks -------------------------------------------


def test_averages_are_offered_by_the_names_of_the_model(tmp_path: Path) -> None:
    state = weights(net__0__weight=(4, 4), net__0__bias=(4,), net__1__weight=(4, 4))
    averages = {f"ema_model.{name}": value + 1 for name, value in state.items()}
    averages["initted"] = torch.tensor(True)
    torch.save(
        {"model_state_dict": state, "ema_model_state_dict": averages},
        tmp_path / "model_last.pt",
    )
    found = Answered(refused(averages, state), tmp_path / "model_last.pt")
    assert "are in model_state_dict" in found.said and "(EMA)" in found.said
    written = torch.load(found.run("ckpt slim"))
    assert sorted(written) == sorted(state)
    assert torch.equal(written["net.1.weight"], state["net.1.weight"] + 1)


def test_a_pipeline_of_deepspeed_has_its_weights_elsewhere(tmp_path: Path) -> None:
    state = {"module": None, "optimizer": None, "ds_version": "0.17.0", "step": 3}
    path = tmp_path / "mp_rank_00_model_states.pt"
    torch.save(state, path)
    text = "AttributeError: 'NoneType' object has no attribute 'data_ptr'"
    found = Answered(text, path)
    assert "no weights to convert: module, optimizer" in found.said
    assert "layer_00-model_00-model_states.pt" in found.said
    torch.save({}, tmp_path / "layer_01-model_00-model_states.pt")
    assert "Here layer_01-model_00-model_states.pt is" in Answered(text, path).said


@pytest.mark.parametrize(
    ("text", "held", "said"),
    [
        ("WARNING:root:Optimizer state has not been consolidated.", 2, "one rank"),
        (
            "RuntimeError: Optimizer state has not been consolidated on this rank. "
            "Please call `consolidate_state_dict(to=0)` on all ranks beforehand",
            4,
            "whole state",
        ),
    ],
)
def test_the_optimizer_of_one_rank(
    text: str, held: int, said: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1))  # fmt: skip
    optimizer = torch.optim.Adam(list(model.parameters())[:held])
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "last.pth")
    (tmp_path / "train.log").write_text(f"epoch 3\n{text}\nepoch 4\n")
    done = ckpt("explain", "train.log", "last.pth", cwd=tmp_path)
    shown = " ".join(done.out.decode().split())
    assert "consolidate_state_dict(to=0)" in shown and said in shown


# --- positions, masks and whole models ------------------------------------------------


def test_a_token_more_is_no_other_size_of_an_image(tmp_path: Path) -> None:
    file = weights(pos_embed=(1, 16, 8), norm__weight=(8,))
    file["patch_embed.proj.weight"] = torch.randn(8, 3, 4, 4)
    model = {**file, "pos_embed": torch.zeros(1, 17, 8), "cls_token": torch.zeros(1)}
    torch.save({"model": file}, tmp_path / "deit.pth")
    found = Answered(mismatched(file, model), tmp_path / "deit.pth")
    assert "4 x 4 patches" in found.said and "1 place more" in found.said
    assert "(cls_token)" in found.said and "images of" not in found.said
    assert not found.commands
    larger = {**file, "pos_embed": torch.zeros(1, 36, 8)}
    found = Answered(mismatched(file, larger), tmp_path / "deit.pth")
    assert "images of 16 x 16 and of 24 x 24" in found.said


def test_a_vector_for_masked_inputs_is_for_training(tmp_path: Path) -> None:
    file = {f"wav2vec2.layers.{n}.weight": torch.randn(4, 4) for n in range(8)}
    torch.save(file, tmp_path / "pytorch_model.bin")
    text = (
        "Some weights of Wav2Vec2Model were not initialized from the model checkpoint "
        "at base-960h and are newly initialized: ['wav2vec2.masked_spec_embed']"
    )
    found = Answered(text, tmp_path / "pytorch_model.bin")
    assert "random values there change nothing" in found.said
    assert "new head" not in found.said


def test_a_whole_model_in_the_place_of_an_adapter_is_named(tmp_path: Path) -> None:
    state = weights(model__diffusion_model__time_embed__0__weight=(4, 4))
    save_file(state, tmp_path / "dreambooth.safetensors")
    text = (
        "Failed to match keys when loading Lora dreambooth: "
        "['cond_stage_model.transformer.text_model.embeddings.position_ids']"
    )
    found = Answered(text, tmp_path / "dreambooth.safetensors")
    assert "This is a model of Stable Diffusion" in found.said


# --- folders of a Trainer -------------------------------------------------------------


def trainer_folder(folder: Path) -> Path:
    """A folder of a Trainer, with its weights and an optimizer of FSDP."""
    folder.mkdir()
    state = {"fc.weight": torch.randn(2, 3)}
    torch.save(state, folder / "pytorch_model.bin")
    moments = {"step": torch.tensor(5.0), "exp_avg": torch.ones(2, 3), "exp_avg_sq": torch.ones(2, 3)}  # fmt: skip
    group = {"lr": 4e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "params": ["fc.weight"]}  # fmt: skip
    torch.save(
        {"state": {"fc.weight": moments}, "param_groups": [group]},
        folder / "optimizer.bin",
    )
    torch.save({"last_epoch": 5}, folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 5, "log_history": []}')
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_the_optimizer_of_a_folder_is_a_file_of_its_own(tmp_path: Path) -> None:
    folder = trainer_folder(tmp_path / "checkpoint-5")
    text = (
        "When I resume with FSDP the loss jumps and the learning rate restarts. The "
        "optimizer states are not loaded?"
    )
    found = Answered(text, folder)
    assert "optimizer.bin" in found.said and "optimizer.pt alone" in found.said
    (line,) = [row for row in found.commands if row.startswith("optimizer.")]
    parameter = nn.Parameter(torch.zeros(2, 3))
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "optimizer": optimizer})
    assert optimizer.param_groups[0]["lr"] == 4e-5
    assert torch.equal(optimizer.state[parameter]["exp_avg"], torch.ones(2, 3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "AssertionError: Required universal_checkpoint_info state is missing in "
            "checkpoint. Verify that client creates this state.",
            "--inject_missing_state",
        ),
        (
            "ValueError: bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt is not a zero "
            "checkpoint",
            "the state of DeepSpeed in global_step5",
        ),
    ],
)
def test_deepspeed_is_inside_of_the_folder_of_a_trainer(
    text: str, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    save_file({"w": torch.ones(2, 2)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for step in (5, 3):
        (folder / f"global_step{step}").mkdir()
        torch.save(
            {"module": {"w": torch.ones(2, 2)}, "ds_version": "0.14.0"},
            folder / f"global_step{step}" / "mp_rank_00_model_states.pt",
        )
    found = Answered(text, folder)
    assert said in found.said and "global_step5" in found.said
    assert "DeepSpeed alone" not in found.said


def test_a_conversion_that_gives_nonsense_has_other_rows(tmp_path: Path) -> None:
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"]
    torch.save({name: torch.randn(4, 4) for name in names}, tmp_path / "hf.bin")
    text = "I converted DCP to HF, but the outputs are not human-readable. Why?"
    found = Answered(text, tmp_path / "hf.bin")
    assert "rotary halves, not pairs" in found.said and "eval()" not in found.said


# --- versions and variants ------------------------------------------------------------


def segmenter(**more: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """A network with an encoder and a decoder."""
    state = {f"encoder.blocks.{n}.weight": torch.randn(4, 4) for n in range(6)}
    return {**state, **weights(decoder__token__weight=(1, 4), **more)}


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"decoder__hf_token__weight": (1, 4)}, "lies in decoder, whose other layers"),
        ({"no_obj_embed": (1, 4), "ptr__weight": (4, 4)}, "lies at the root"),
    ],
)
def test_layers_of_a_newer_version_are_no_surplus(
    more: dict[str, tuple[int, ...]], where: str, tmp_path: Path
) -> None:
    file = segmenter(**more)
    torch.save(file, tmp_path / "sam.pth")
    found = Answered(refused(file, segmenter(), "Sam"), tmp_path / "sam.pth")
    assert where in found.said and "another version or variant" in found.said
    assert any("strict=False" in line for line in found.commands)


def test_another_head_is_no_newer_version(tmp_path: Path) -> None:
    file = segmenter(decoder__aux_head__weight=(2, 4))
    torch.save(file, tmp_path / "net.pth")
    found = Answered(refused(file, segmenter()), tmp_path / "net.pth")
    assert "version or variant" not in found.said


def test_lightning_restores_the_training_from_weights(tmp_path: Path) -> None:
    state = {"state_dict": weights(a__weight=(2, 2)), "epoch": 3, "global_step": 9}
    torch.save(state, tmp_path / "wo.ckpt")
    text = (
        "KeyError: 'Trying to restore training state but checkpoint contains only the "
        "model. This is probably due to `ModelCheckpoint.save_weights_only` being set "
        "to `True`.'"
    )
    found = Answered(text, tmp_path / "wo.ckpt")
    assert "A run cannot be resumed from it, but its weights load" in found.said
    assert "is called ModelCheckpoint" not in found.said


def test_sizes_that_other_numbers_explain_are_no_settings(tmp_path: Path) -> None:
    old = ["1", "2", "4", "5"]
    new = ["0", "0.ln", "1", "1.ln"]
    sizes = [(8, 3), (8,), (4, 8), (4,)]
    file, model = {}, {}
    for before, after, size in zip(old, new, sizes, strict=True):
        value = torch.randn(size)
        file[f"enc.state.{before}.weight"] = value
        file[f"enc.state.{before}.bias"] = torch.randn(size[0])
        model[f"enc.state.{after}.weight"] = torch.zeros(size)
        model[f"enc.state.{after}.bias"] = torch.zeros(size[0])
    torch.save({"model": file}, tmp_path / "dog.pt")
    found = Answered(mismatched(file, model), tmp_path / "dog.pt")
    assert "one for one" in found.said and "Settings of the program" not in found.said
    written = torch.load(found.run("ckpt rename"))["model"]
    assert {name: value.shape for name, value in written.items()} == {
        name: value.shape for name, value in model.items()
    }
    assert torch.equal(written["enc.state.0.ln.bias"], file["enc.state.2.bias"])


# --- outputs, backbones and embeddings ------------------------------------------------


def test_an_alphabet_is_no_table_of_words(tmp_path: Path) -> None:
    file = {f"wav2vec2.layers.{n}.weight": torch.randn(4, 4) for n in range(6)}
    file = {**file, **weights(lm_head__weight=(41, 4), lm_head__bias=(41,))}
    model = {**file, **weights(lm_head__weight=(45, 4), lm_head__bias=(45,))}
    torch.save(file, tmp_path / "pytorch_model.bin")
    found = Answered(mismatched(file, model), tmp_path / "pytorch_model.bin")
    assert "another alphabet" in found.said
    assert "resize_token_embeddings" not in found.said
    words = weights(model__embed_tokens__weight=(41, 4))
    torch.save({**file, **words}, tmp_path / "words.bin")
    model["model.embed_tokens.weight"] = torch.zeros(45, 4)
    text = mismatched({**file, **words}, model)
    found = Answered(text, tmp_path / "words.bin")
    assert "resize_token_embeddings(41)" in found.said


def test_outputs_of_fairseq_are_symbols(tmp_path: Path) -> None:
    file = {f"w2v_encoder.layers.{n}.weight": torch.randn(4, 4) for n in range(6)}
    file = {**file, **weights(w2v_encoder__proj__weight=(32, 4))}
    model = {**file, **weights(w2v_encoder__proj__weight=(512, 4))}
    state = {"model": file, "optimizer_history": [{}], "extra_state": {}}
    torch.save(state, tmp_path / "wav2vec.pt")
    found = Answered(mismatched(file, model), tmp_path / "wav2vec.pt")
    assert "symbols or classes, as the dictionary of the run has them" in found.said


def test_the_classifier_of_a_backbone_is_expected(tmp_path: Path) -> None:
    names = ("stem.conv1.weight", "stem.conv1.bias", "fc1000.weight", "fc1000.bias")
    arrays = {name: np.zeros((2, 2), "f") for name in names}
    state = {"model": arrays, "__author__": "torchvision", "matching_heuristics": True}
    (tmp_path / "R-50.pkl").write_bytes(pickle.dumps(state))
    text = (
        "[fvcore.common.checkpoint]: The checkpoint state_dict contains keys that are "
        "not used by the model:\n  fc1000.{bias, weight}\n  stem.conv1.bias\n"
    )
    found = Answered(text, tmp_path / "R-50.pkl")
    assert "expected, and nothing is lost" in found.said and "--resume" in found.said


def test_an_embedding_is_no_checkpoint_of_a_run(tmp_path: Path) -> None:
    state = {
        "string_to_token": {"*": torch.tensor(265)},
        "string_to_param": {"*": torch.randn(1, 8)},
    }
    torch.save(state, tmp_path / "embeddings.pt")
    found = Answered("KeyError: 'state_dict'", tmp_path / "embeddings.pt")
    assert "an embedding of textual inversion, and no model" in found.said


@pytest.mark.parametrize(
    "text",
    [
        "How can I convert my .ckpt to the safetensors format?",
        "Request: Script to convert trained .ckpt files to safetensors format",
    ],
)
def test_who_asks_for_another_format_gets_the_command(
    text: str, tmp_path: Path
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "a.ckpt")
    found = Answered(text, tmp_path / "a.ckpt")
    assert sorted(load_file(found.run("ckpt slim"))) == ["bias", "weight"]
    (tmp_path / "a.safetensors").unlink()
    assert "bias" in load_file(found.run("ckpt convert"))


def test_safetensors_become_another_format(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2, 2)}, tmp_path / "a.safetensors")
    text = "Which tool can convert .safetensors to .ckpt"
    found = Answered(text, tmp_path / "a.safetensors")
    assert torch.equal(torch.load(found.run("ckpt convert"))["w"], torch.ones(2, 2))


# --- folders of several ranks ---------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder of accelerate with a model and an optimizer, each of them a DCP."""
    folder = tmp_path / "checkpoint-100"
    folder.mkdir()
    state = weights(fc__weight=(4, 3), fc__bias=(4,))
    dcp.save({"model": state}, checkpoint_id=folder / "pytorch_model_fsdp_0")
    moments = {name: {"exp_avg": value * 0} for name, value in state.items()}
    optimizer = {"state": moments, "param_groups": [{"params": list(state)}]}
    dcp.save({"optimizer": optimizer}, checkpoint_id=folder / "optimizer_0")
    torch.save({"last_epoch": 3}, folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text(
        '{"global_step": 100, "log_history": []}'
    )
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "I do not know how to load the checkpoint to do inference",
        "How can I merge the FSDP shards into one file?",
        "ValueError: Tried to load from checkpoint-100 but couldn't find a valid "
        "metadata file. However, potential model and optimizer checkpoint directories "
        "exist.Please pass in either checkpoint-100/pytorch_model_fsdp_0 instead.",
    ],
)
def test_a_folder_of_ranks_becomes_one_file(text: str, sharded: Path) -> None:
    found = Answered(text, sharded)
    written = load_file(found.run("ckpt slim"))
    assert sorted(written) == ["fc.bias", "fc.weight"]
    if "metadata file" in text:
        assert "give it checkpoint-100/pytorch_model_fsdp_0" in found.said


def test_slim_says_who_does_not_read_what_it_wrote(sharded: Path) -> None:
    for name in ("m.safetensors", "m.pth"):
        done = ckpt("slim", sharded.name, "-o", name, cwd=sharded.parent)
        assert done.code == 0 and b"torch.load reads" not in done.err
        assert b"which the loader of a" in done.err


def test_the_metadata_of_a_dcp_is_on_the_node_of_rank_0(sharded: Path) -> None:
    folder = sharded / "pytorch_model_fsdp_0"
    (folder / ".metadata").unlink()
    text = (
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'pytorch_model_fsdp_0/.metadata'"
    )
    found = Answered(text, folder)
    assert "Rank 0 writes it last" in found.said and "published" not in found.said


# --- names of other versions and libraries --------------------------------------------


def test_numpy_has_one_core_under_two_names(tmp_path: Path) -> None:
    state = {"model": weights(a__weight=(2, 2)), "best": np.float64(3.5)}
    torch.save(state, tmp_path / "a.pth")
    for core in ("numpy.core", "numpy._core"):
        text = (
            "WeightsUnpickler error: Unsupported global: GLOBAL "
            f"{core}.multiarray.scalar was not an allowed global by default."
        )
        found = Answered(text, tmp_path / "a.pth")
        assert ".multiarray.scalar at best" in found.said
        assert "does not name" not in found.said


def test_averages_under_another_key_are_named(tmp_path: Path) -> None:
    state = weights(a__weight=(2, 2))
    state = {"epoch": 3, "state_dict": state, "state_dict_ema": state}
    torch.save(state, tmp_path / "last.pth.tar")
    text = "    model = checkpoint['model_ema']\nKeyError: 'model_ema'"
    found = Answered(text, tmp_path / "last.pth.tar")
    assert "averages under another key: state_dict_ema" in found.said


def test_a_few_names_by_rules_do_not_make_one_library(tmp_path: Path) -> None:
    file, model = weights(_conv_stem__weight=(4, 3)), weights(features__0__0__w=(4, 3))
    for word in ("weight", "bias", "running_mean", "running_var"):
        file[f"_bn0.{word}"] = torch.randn(4)
        model[f"features.0.1.{word}"] = torch.randn(4)
    for number in range(4):
        file[f"_blocks.{number}._depthwise_conv.weight"] = torch.randn(4, 1)
        file[f"_blocks.{number}._project_conv.weight"] = torch.randn(4, 4)
        model[f"features.{number + 1}.0.block.0.0.weight"] = torch.randn(4, 1)
        model[f"features.{number + 1}.0.block.2.0.weight"] = torch.randn(4, 4)
    torch.save(file, tmp_path / "b0.pth")
    found = Answered(refused(file, model), tmp_path / "b0.pth")
    assert "in the names of efficientnet_pytorch" in found.said
    assert not any("load_into" in line for line in found.commands)


# --- models that are taken apart, norms and directions ---------------------------------


def sizes(*rows: tuple[str, list[int], list[int]]) -> str:
    """The text of torch for tensors of other shapes."""
    said = ["RuntimeError: Error(s) in loading state_dict for Net:"]
    said += [
        f"\tsize mismatch for {name}: copying a param with shape torch.Size({here}) from "
        f"checkpoint, the shape in current model is torch.Size({there})."
        for name, here, there in rows
    ]
    return "\n".join(said)


def test_a_model_packed_in_four_bits_has_no_other_settings(tmp_path: Path) -> None:
    torch.save(weights(mm_projector__weight=(64, 32)), tmp_path / "a.bin")
    text = sizes(("mm_projector.weight", [64, 32], [1024, 1]))
    found = Answered(text, tmp_path / "a.bin")
    assert "in four bits: 1,024 bytes with two values each" in found.said
    assert "without load_in_4bit" in found.said
    # A column of another number of rows is another matrix.
    other = Answered(text.replace("1024", "1000"), tmp_path / "a.bin")
    assert "four bits" not in other.said


def test_a_model_that_zero_3_spread_is_gathered_for_the_load(tmp_path: Path) -> None:
    torch.save(weights(m__p__0__weight=(8, 4), m__p__0__bias=(8,)), tmp_path / "a.bin")
    text = sizes(("0.weight", [8, 4], [0]), ("0.bias", [8], [0]))
    found = Answered(text, tmp_path / "a.bin")
    assert "ZeRO-3" in found.said
    assert "outputs where the model" not in found.said
    assert any("GatheredParameters" in line for line in found.commands)


def test_norms_and_kernels_of_half_the_width_are_no_rank(tmp_path: Path) -> None:
    file, rows = {}, []
    for name in ("low", "high"):
        file[f"{name}.conv.weight"] = torch.randn(16, 2, 3, 3)
        file[f"{name}.norm.running_mean"] = torch.randn(16)
        rows.append((f"{name}.conv.weight", [16, 2, 3, 3], [32, 2, 3, 3]))
        rows.append((f"{name}.norm.running_mean", [16], [32]))
    torch.save(file, tmp_path / "a.pth")
    found = Answered(sizes(*rows), tmp_path / "a.pth")
    assert "tensor parallelism" not in found.said
    assert "16 in the checkpoint and 32 in the model" in found.said


def of_direction(place: int) -> nn.Sequential:
    """A generator whose second convolution stands at a place, behind dropout or not."""
    block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4))
    while len(block) < place:
        block.append(nn.Dropout(0.5))
    return block.append(nn.Conv2d(4, 4, 3)).append(nn.InstanceNorm2d(4))


def as_of_0_3(model: nn.Module) -> dict[str, torch.Tensor]:
    """A state dict with the statistics that torch saved before 0.4."""
    state = dict(model.state_dict())
    for name, part in model.named_modules():
        if isinstance(part, nn.InstanceNorm2d):
            state[f"{name}.running_mean"] = torch.zeros(part.num_features)
            state[f"{name}.running_var"] = torch.ones(part.num_features)
    return state


def refused_by_torch(model: nn.Module, state: dict[str, torch.Tensor]) -> str:
    """The error of torch for a load."""
    with pytest.raises(RuntimeError, match="Error\\(s\\) in loading") as error:
        model.load_state_dict(state)
    return f"RuntimeError: {error.value}"


def test_statistics_of_an_instance_norm_are_left_out(tmp_path: Path) -> None:
    model, path = of_direction(2), tmp_path / "latest_net_G.pth"
    state = as_of_0_3(of_direction(2))
    torch.save(state, path)
    found = Answered(refused_by_torch(model, state), path)
    assert "running statistics of 2 norms that track none in the model" in found.said
    (line,) = [line for line in found.commands if "load_state_dict" in line]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert torch.equal(model[0].weight, state["0.weight"])


def test_dropout_before_a_layer_is_no_other_network(tmp_path: Path) -> None:
    model, path = nn.Sequential(of_direction(2), of_direction(2)), tmp_path / "G.pth"
    state = as_of_0_3(nn.Sequential(of_direction(3), of_direction(3)))
    torch.save(state, path)
    found = Answered(refused_by_torch(model, state), path)
    assert "another network" not in found.said
    assert "The file counts 1 layer without weights more" in found.said
    # A load without the layers that moved would leave them untrained.
    assert not any("load_state_dict" in line for line in found.commands)


def test_a_generator_of_two_directions_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "horse2zebra"
    folder.mkdir()
    for name in ("G_A", "G_B", "D_A", "D_B"):
        torch.save(weights(a__weight=(2, 2)), folder / f"latest_net_{name}.pth")
    text = (
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'./checkpoints/horse2zebra/latest_net_G.pth'"
    )
    said = Answered(text, folder).said
    assert "several of this kind (latest_net_G_A.pth, latest_net_G_B.pth)" in said
    assert "where the model was published" not in said


@pytest.mark.parametrize("has_optimizer", (False, True))
def test_mmengine_resumes_from_its_own_runs(
    tmp_path: Path, *, has_optimizer: bool
) -> None:
    state: dict[str, Any] = {"meta": {"mmaction_version": "1.0", "epoch": 15}}
    state["state_dict"] = weights(backbone__a__weight=(4, 4))
    if has_optimizer:
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), momentum=0.9)
        state["optimizer"] = optimizer.state_dict()
    torch.save(state, tmp_path / "a.pth")
    text = (
        "    self.message_hub.load_state_dict(checkpoint['message_hub'])\n"
        "KeyError: 'message_hub'"
    )
    said = Answered(text, tmp_path / "a.pth").said
    assert "load_from set to this file and resume off" in said
    assert ("mmcv before mmengine" in said) is has_optimizer


def test_a_version_with_another_part_is_of_the_same_class(tmp_path: Path) -> None:
    file, model = {}, {}
    for number in range(12):
        file[f"layers.{number}.conv.weight"] = torch.randn(4, 4)
        file[f"layers.{number}.conv.bias"] = torch.randn(4)
    model.update(file)
    for number in range(4):
        file[f"layers.{number}.extra.bias"] = torch.randn(4)
        file[f"upsample_conv.{2 * number}.weight"] = torch.randn(3, 4)
        model[f"upsample_net.up.{2 * number + 1}.weight_v"] = torch.randn(5)
        model[f"upsample_net.up.{2 * number + 1}.weight_g"] = torch.randn(1)
    torch.save(file, tmp_path / "a.pth")
    said = Answered(refused(file, model), tmp_path / "a.pth").said
    assert "The model that was built is of another class" not in said
    assert "24 of 32 tensors of the file have their place" in said


def test_a_part_by_itself_lacks_what_lies_outside_of_it(tmp_path: Path) -> None:
    state = weights(
        model__mm_projector__0__weight=(4, 4), model__mm_projector__0__b=(4,)
    )
    torch.save(state, tmp_path / "mm_projector.bin")
    text = (
        "    weight = mm_projector_weights['model.embed_tokens.weight']\n"
        "KeyError: 'model.embed_tokens.weight'"
    )
    said = Answered(text, tmp_path / "mm_projector.bin").said
    assert "All 2 tensors of this file are of model.mm_projector" in said
    assert "another architecture" not in said

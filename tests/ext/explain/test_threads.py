"""Situations of a later search through public threads: a message, the file, and the
answer that helps. What is printed is run.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import deepspeeds
import numpy as np
import oracle
import pytest
import torch
from answered import Answered, raised
from inside import folder_of
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def ran(found: Answered, begin: str, **names: Any) -> dict[str, Any]:
    """Run the only printed line of Python that begins so, with some names, and return
    all names.
    """
    (line,) = [command for command in found.commands if command.startswith(begin)]
    scope = {"torch": torch, **names}
    with folder_of(found.folder):
        exec(line, scope)
    return scope


def write_model(folder: Path, state: dict[str, torch.Tensor], **config: Any) -> Path:
    """Write a folder of transformers with one file of weights."""
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# --- element types --------------------------------------------------------------------


def quantized_layer() -> dict[str, torch.Tensor]:
    """A layer as bitsandbytes saves it in 8 bits."""
    codes = torch.randint(-127, 128, (8, 16), dtype=torch.int8)
    codes[:, 0] = 127
    return {
        "model.layers.0.mlp.up_proj.weight": codes,
        "model.layers.0.mlp.up_proj.SCB": torch.rand(8) + 0.1,
        "model.layers.0.mlp.up_proj.weight_format": torch.tensor(0, dtype=torch.uint8),
        "model.norm.weight": torch.ones(16, dtype=torch.float16),
    }


def test_a_type_of_elements_is_no_key(tmp_path: Path) -> None:
    config = {"model_type": "phi", "quantization_config": {"load_in_8bit": True}}
    folder = write_model(tmp_path / "phi", quantized_layer(), **config)
    text = "    data_type = SAFETENSORS_DATA_TYPES[info['dtype']]\nKeyError: 'I8'"
    found = Answered(text, folder)
    assert found.kind == "unknown-type" and found.code == 0
    assert "I8 is an element type, and 1 tensor of this file is int8" in found.said
    assert "No key" not in found.said
    plain = load_file(found.run("ckpt convert") / "model.safetensors")
    assert plain["model.layers.0.mlp.up_proj.weight"].is_floating_point()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("TypeError: Got unsupported ScalarType BFloat16", "NumPy has no such type"),
        ("KeyError: torch.bfloat16", "a table of its own"),
        (
            (
                "Error while deserializing header: invalid JSON in header: unknown "
                "variant `BF16`, expected one of `BOOL`, `U8`"
            ),
            "pip install -U safetensors",
        ),
        (
            "AttributeError: module 'torch' has no attribute 'bfloat16'",
            "The torch that reads it is older",
        ),
    ],
)
def test_a_type_that_a_program_does_not_know(
    text: str, said: str, tmp_path: Path
) -> None:
    save_file({"w": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    found = Answered(text, tmp_path / "a.safetensors")
    assert "1 tensor of this file is bfloat16: w" in found.said and said in found.said
    assert load_file(found.run("ckpt convert"))["w"].dtype == torch.float32
    save_file({"w": torch.ones(3)}, tmp_path / "b.safetensors")
    other = Answered(text, tmp_path / "b.safetensors")
    assert "No tensor of this file is bfloat16: its tensors are float32" in other.said


def test_numpy_raises_what_the_page_answers(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    text = raised(lambda: torch.ones(2, dtype=torch.bfloat16).numpy())
    assert Answered(text, tmp_path / "a.safetensors").kind == "unknown-type"


# --- launchers ------------------------------------------------------------------------

_FAILED = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "train.py FAILED\nRoot Cause (first observed failure):\n[0]:\n"
    "  rank      : 1 (local_rank: 1)\n  exitcode  : {} (pid: 7)\n"
)


def test_a_launcher_names_no_cause(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 2).state_dict(), "epoch": 3}, tmp_path / "a.pt")
    found = Answered(_FAILED.format(1), tmp_path / "a.pt")
    assert found.kind == "launcher" and "stands above this report" in found.said
    found = Answered(_FAILED.format(-9), tmp_path / "a.pt")
    assert "Exit code -9: the system killed the process" in found.said
    found = Answered("KeyError: 'optimizer'\n" + _FAILED.format(1), tmp_path / "a.pt")
    assert found.kind == "key" and "No state of an optimizer" in found.said
    found = Answered("KeyError: 'prior'\n" + _FAILED.format(1), tmp_path / "a.pt")
    assert found.kind is None and "none is prior" in found.said


@pytest.mark.parametrize("below", ["", _FAILED.format(1)])
def test_a_variable_of_the_environment_is_no_key(below: str, tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "a.pt")
    found = Answered(f"KeyError: 'LOCAL_RANK'\n{below}", tmp_path / "a.pt")
    assert found.said.startswith("LOCAL_RANK is a variable of the environment")
    assert "No key" not in found.said and "stands above" not in found.said


# --- arguments of Lightning -----------------------------------------------------------


def lightning(path: Path, **more: Any) -> Path:
    state = {"net.weight": torch.ones(2, 2)}
    torch.save({"epoch": 1, "global_step": 2, "state_dict": state, **more}, path)
    return path


def test_an_argument_that_was_spread_is_handed_over_whole(tmp_path: Path) -> None:
    text = "TypeError: __init__() missing 1 required positional argument: 'cfg'"
    held = {"hparams_name": "cfg", "hyper_parameters": {"key": 1, "other": 2}}
    found = Answered(text, lightning(tmp_path / "a.ckpt", **held))
    assert "cfg is not among them, for they are its entries" in found.said
    assert 'cfg=torch.load(path)["hyper_parameters"]' in found.said
    found = Answered(
        text, lightning(tmp_path / "b.ckpt", hyper_parameters={"key": 1, "lr": 2})
    )
    assert "cfg is not among them." in found.said and "entries" not in found.said
    assert "load_from_checkpoint(path, cfg=…)" in found.said


def test_a_checkpoint_without_arguments_has_weights(tmp_path: Path) -> None:
    text = (
        "OSError: Checkpoint does not contain hyperparameters. Are your model "
        "hyperparameters storedin self.hparams?"
    )
    found = Answered(text, lightning(tmp_path / "a.ckpt"))
    assert found.kind == "arguments" and "holds no hyper_parameters" in found.said
    assert {*found.loaded()} == {"net.weight"}


# --- DeepSpeed, Megatron --------------------------------------------------------------


def test_a_folder_of_weights_has_no_states_of_an_optimizer(tmp_path: Path) -> None:
    step = tmp_path / "init" / "global_step1"
    step.mkdir(parents=True)
    (tmp_path / "init" / "latest").write_text("global_step1")
    for number in range(2):
        torch.save(
            {"weight": torch.ones(2, 2)},
            step / f"layer_{number:02d}-model_00-model_states.pt",
        )
        torch.save(
            {"dp_world_size": 1, "mp_world_size": 2, "module": None, "optimizer": None},
            step / f"mp_rank_{number:02d}_model_states.pt",
        )
    text = (
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'init/global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt'"
    )
    found = Answered(text, tmp_path / "init")
    assert "no *_optim_states.pt at all: it holds weights alone" in found.said
    assert found.run("ckpt convert").is_file()
    deepspeeds.write(tmp_path / "run", 2, 2)
    assert "at all" not in Answered(text, tmp_path / "run").said


def test_a_trainer_writes_no_universal_info(tmp_path: Path) -> None:
    text = (
        "AssertionError: Required universal_checkpoint_info state is missing in "
        "checkpoint. Verify that client creates this state."
    )
    (tmp_path / "run").mkdir()
    deepspeeds.write(tmp_path / "run", 2, 2)
    found = Answered(text, tmp_path / "run")
    assert found.kind == "zero" and "--inject_missing_state" in found.said
    assert "DeepSpeed ZeRO-2 checkpoint" in found.said
    assert load_file(found.run("ckpt convert"))
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "a.pt")
    assert "of DeepSpeed alone" in Answered(text, tmp_path / "a.pt").said


def test_released_weights_of_megatron_have_no_iteration(tmp_path: Path) -> None:
    model = {"language_model": {"w": torch.ones(2, 2)}}
    state = {"checkpoint_version": 3.0, "model": model}
    torch.save(state, tmp_path / "a.pt")
    found = Answered("KeyError: 'iteration'", tmp_path / "a.pt")
    assert "none is iteration" in found.said and "--finetune" in found.said
    torch.save({"model": model, "epoch": 3}, tmp_path / "b.pt")
    assert "Megatron" not in Answered("KeyError: 'iteration'", tmp_path / "b.pt").said


# --- parts of a pipeline, quantizers --------------------------------------------------


def test_a_component_that_is_not_in_a_file(tmp_path: Path) -> None:
    state = {
        f"double_blocks.{number}.img_attn.proj.weight": torch.ones(4, 4)
        for number in range(2)
    }
    save_file(state, tmp_path / "flux.safetensors")
    text = (
        "SingleFileComponentError: Failed to load {}. Weights for this component "
        "appear to be missing in the checkpoint.\nPlease load the component before "
        "passing it in as an argument to `from_single_file`."
    )
    found = Answered(text.format("T5EncoderModel"), tmp_path / "flux.safetensors")
    assert found.kind == "pipeline" and found.code == 0
    assert (
        "a diffusion model, and no name of a text encoder (T5EncoderModel)"
    ) in found.said
    found = Answered(text.format("AutoencoderKL"), tmp_path / "flux.safetensors")
    assert "no name of a VAE (AutoencoderKL)" in found.said
    found = Answered(
        text.format("FluxTransformer2DModel"), tmp_path / "flux.safetensors"
    )
    assert "holds a diffusion model, of other names" in found.said


def test_a_code_that_the_file_has_is_of_no_other_file(tmp_path: Path) -> None:
    layer = "transformer.h.0.attn.c_attn"
    state = {
        f"{layer}.qweight": torch.randint(0, 9, (8, 64), dtype=torch.int32),
        f"{layer}.qzeros": torch.full((1, 8), 0x77777777, dtype=torch.int32),
        f"{layer}.scales": torch.ones(1, 64, dtype=torch.float16),
        f"{layer}.g_idx": torch.zeros(64, dtype=torch.int32),
        "lm_head.weight": torch.ones(8, 64, dtype=torch.float16),
    }
    quantized = {"bits": 4, "group_size": 64, "quant_method": "gptq", "sym": True}
    folder = write_model(
        tmp_path / "m", state, model_type="qwen", quantization_config=quantized
    )
    found = Answered(f"KeyError: '{layer}.g_idx'", folder)
    assert "another file" not in found.said and "GPTQ" in found.said
    assert "vLLM want --quantization gptq" in found.said


# --- agents, programs -----------------------------------------------------------------


def agent(path: Path, **spaces: str) -> Path:
    """Write an archive of Stable-Baselines3 with the spaces of its environment."""
    value = base64.b64encode(pickle.dumps(np.random.default_rng(0))).decode()
    data: dict[str, Any] = {
        name: {":type:": "x", ":serialized:": value, "_shape": shape}
        for name, shape in spaces.items()
    }
    weights = io.BytesIO()
    torch.save(nn.Linear(3, 2).state_dict(), weights)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({**data, "num_timesteps": 3}))
        archive.writestr("policy.pth", weights.getvalue())
        archive.writestr("_stable_baselines3_version", "1.6.2")
        archive.writestr(
            "system_info.txt", "Python: 3.10\nNumpy: 1.24.1\nGym: 0.21.0\n"
        )
    return path


class Agent:
    @staticmethod
    def load(path: str, **options: Any) -> dict[str, Any]:
        assert Path(path).is_file()
        return options


@pytest.mark.parametrize(
    "text",
    [
        "Exception: __generator_ctor() takes from 0 to 1 positional arguments but 2",
        (
            "KeyError: \"The observation_space and action_space were not given, can't "
            'verify new environments"'
        ),
    ],
)
def test_spaces_that_another_numpy_pickled(text: str, tmp_path: Path) -> None:
    path = agent(tmp_path / "a.zip", observation_space="[4]", action_space="[]")
    found = Answered(text, path)
    assert "another file" not in found.said
    assert (
        "has observation_space, action_space, as pickles, by NumPy 1.24.1" in found.said
    )
    env = argparse.Namespace(observation_space=1, action_space=2)
    (line,) = [row for row in found.commands if row.startswith("PPO.load(")]
    with folder_of(found.folder):
        options = eval(line, {"PPO": Agent, "env": env})
    assert options["custom_objects"] == {"observation_space": 1, "action_space": 2}


def test_an_agent_saw_channels_first(tmp_path: Path) -> None:
    path = agent(tmp_path / "a.zip", observation_space="[4, 36, 36]")
    text = "ValueError: Observation spaces do not match: {} != {}"
    found = Answered(text.format("Box(4, 36, 36)", "Box(36, 36, 4)"), path)
    assert "channels of images first" in found.said
    assert any("VecTransposeImage" in command for command in found.commands)
    found = Answered(
        text.format("Box(-1.0, 1.0, (27,), float32)", "Box(-1.0, 1.0, (26,), float32)"),
        path,
    )
    assert "channels" not in found.said and "same wrappers" in found.said


@pytest.mark.filterwarnings("ignore:Lite Interpreter:DeprecationWarning")
def test_a_program_for_phones_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "m.ptl"
    torch.jit.script(nn.Linear(3, 2))._save_for_lite_interpreter(str(path))
    text = (
        "com.facebook.jni.CppException: Lite Interpreter verson number does not match. "
        "The model version must be between 3 and 5But the model version is 7 ()"
    )
    found = Answered(text, path)
    assert "bytecode of version 7, and the app reads 3 to 5" in found.said
    ran(found, "from torch.jit.mobile import")
    from torch.jit.mobile import _get_model_bytecode_version

    assert _get_model_bytecode_version(str(tmp_path / "model.v5.ptl")) == 5
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "a.pt")
    assert "no program of TorchScript" in Answered(text, tmp_path / "a.pt").said


def test_a_program_has_no_keys(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(3, 2)).save(str(tmp_path / "m.pt"))
    text = (
        '    return self.forward_magic_method("__getitem__", idx)\n'
        '  File "torch/jit/__init__.py", line 2099, in forward_magic_method\n'
        "    raise NotImplementedError()\nNotImplementedError\n"
    )
    found = Answered(text, tmp_path / "m.pt")
    assert "asked it for a key" in found.said and found.loaded() is not None


def test_a_checkpointer_for_other_names(tmp_path: Path) -> None:
    text = (
        "ValueError: Currently we only support reading from a single TorchTune "
        "checkpoint file. Got 4 files instead."
    )
    state = {"model.layers.0.self_attn.q_proj.weight": torch.ones(2, 2)}
    folder = write_model(tmp_path / "m", state, model_type="llama")
    assert "FullModelHFCheckpointer" in Answered(text, folder).said


# --- what a model computes, ties and renumbers ----------------------------------------


def test_a_mask_of_another_size_is_no_number_of_classes(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self, windows: int) -> None:
            super().__init__()
            self.qkv = nn.Linear(2, 6)
            self.register_buffer("attn_mask", torch.zeros(windows, 4, 4))

    saved, built = Block(4), Block(64)
    torch.save(saved.state_dict(), tmp_path / "a.pth")
    found = Answered(
        raised(lambda: built.load_state_dict(saved.state_dict())), tmp_path / "a.pth"
    )
    assert "classes" not in found.said
    assert "is no weight (attn_mask)" in found.said
    ran(found, "state = ", model=built)
    assert torch.equal(built.qkv.weight, saved.qkv.weight)
    assert len(built.state_dict()["attn_mask"]) == 64


def test_shared_embeddings_are_not_missing(tmp_path: Path) -> None:
    text = (
        "There were missing keys in the checkpoint model loaded: "
        "['model.encoder.embed_tokens.weight', 'model.decoder.embed_tokens.weight', "
        "'lm_head.weight']."
    )
    state = {"model.shared.weight": torch.ones(4, 2), "model.fc.weight": torch.ones(2)}
    folder = write_model(tmp_path / "a", state, model_type="bart")
    found = Answered(text, folder)
    assert "the same tensor as model.shared.weight" in found.said
    folder = write_model(
        tmp_path / "b", state, model_type="bart", tie_word_embeddings=False
    )
    assert "nothing is lost" not in Answered(text, folder).said


def test_names_below_nothing_want_a_prefix(tmp_path: Path) -> None:
    text = (
        "Some weights of RewardModel were not initialized from the model checkpoint at "
        "rwkv7 and are newly initialized: ['.embeddings.weight', "
        "'.layers.0.attn.weight']"
    )
    state = {
        "lm_head.weight": torch.ones(4, 2),
        "model.embeddings.weight": torch.ones(4, 2),
        "model.layers.0.attn.weight": torch.ones(2, 2),
    }
    folder = write_model(tmp_path / "rwkv7", state, model_type="rwkv7")
    found = Answered(text, folder)
    assert 'base_model_prefix = "model"' in found.said
    assert "No tensor of this file" not in found.said
    save_file({"head.w": torch.ones(2), "body.w": torch.ones(2)}, tmp_path / "b.st")
    other = Answered(text, tmp_path / "b.st")
    assert "is of :" not in other.said and "base_model_prefix" not in other.said


class Swin(nn.Module):
    """The names of a Swin Transformer, with each downsample at the beginning of a stage
    or at the end of the one before.
    """

    def __init__(self, *, at_the_beginning: bool) -> None:
        super().__init__()
        layers = []
        for number in range(3):
            block = nn.Module()
            block.attn = nn.Module()
            block.attn.relative_position_bias_table = nn.Parameter(torch.randn(9, 2))
            if not at_the_beginning:
                block.attn.register_buffer("relative_position_index", torch.zeros(4, 4))
            layer = nn.Module()
            layer.blocks = nn.ModuleList([block])
            stage = number - 1 if at_the_beginning else number
            if 0 <= stage < 2:
                width = 2 * 2**stage
                layer.downsample = nn.Module()
                layer.downsample.reduction = nn.Linear(4 * width, 2 * width, bias=False)
                layer.downsample.norm = nn.LayerNorm(4 * width)
            layers.append(layer)
        self.layers = nn.ModuleList(layers)


@pytest.mark.parametrize("at_the_beginning", [True, False])
def test_a_swin_has_its_downsamples_elsewhere(
    at_the_beginning: bool, tmp_path: Path
) -> None:
    saved = Swin(at_the_beginning=at_the_beginning)
    built = Swin(at_the_beginning=not at_the_beginning)
    torch.save(saved.state_dict(), tmp_path / "a.pth")
    found = Answered(
        raised(lambda: built.load_state_dict(saved.state_dict())), tmp_path / "a.pth"
    )
    assert "only the numbers differ" in found.said and "pooling" not in found.said
    state = torch.load(found.run("ckpt rename"))
    left = built.load_state_dict(state, strict=False)
    lacking = [*left.missing_keys, *left.unexpected_keys]
    assert all("relative_position_index" in name for name in lacking)
    older, newer = (built, saved) if at_the_beginning else (saved, built)
    assert torch.equal(
        older.layers[1].downsample.reduction.weight,
        newer.layers[2].downsample.reduction.weight,
    )

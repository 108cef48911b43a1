"""Situations as a search in issue trackers gives them: the message, the file, and the
answer of the thread.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import types
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import deepspeeds
import oracle
import pytest
import torch
from answered import Answered, raised
from safetensors.torch import save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]

WEIGHTS = nn.Linear(2, 2).state_dict()


def test_classes_of_a_program_are_in_the_program(tmp_path: Path) -> None:
    path = tmp_path / "IR_SE_100.pth"
    torch.jit.script(nn.Sequential(nn.Linear(2, 2))).save(str(path))
    found = Answered("ModuleNotFoundError: No module named '__torch__'", path)
    assert (
        "This file is a TorchScript program" in found.said
        and "pickled model" not in found.page
    )
    assert found.loaded()(torch.ones(1, 2)).shape == (1, 2)


class Emotic(nn.Module):
    """A model that is saved whole."""


def test_a_script_that_dill_looks_for_is_no_older_version(tmp_path: Path) -> None:
    torch.save(Emotic(), tmp_path / "whole.pth")
    text = (
        "AttributeError: Can't get attribute '__main__' on <module 'builtins' "
        "(built-in)>"
    )
    found = Answered(text, tmp_path / "whole.pth")
    assert (
        "dill writes such a name" in found.said and "another version" not in found.said
    )


@pytest.mark.parametrize("name", ["m.safetensors", "m.pth"])
def test_a_load_of_nothing_is_told_from_a_file(name: str, tmp_path: Path) -> None:
    if name.endswith(".pth"):
        torch.save(WEIGHTS, tmp_path / name)
    else:
        save_file(WEIGHTS, tmp_path / name)
    found = Answered(
        "TypeError: Expected state_dict to be dict-like, got <class 'NoneType'>.",
        tmp_path / name,
    )
    assert found.said.startswith(
        "load_state_dict got None: the program had read no file."
    )
    assert found.loaded().keys() == WEIGHTS.keys()
    module = Answered(
        "TypeError: Expected state_dict to be dict-like, got <class 'model.Net'>.",
        tmp_path / name,
    )
    assert "dict of :" not in module.said and "another file was loaded" in module.said


@pytest.mark.parametrize(
    "text",
    [
        (
            "CRITICAL ERROR: The following keys in ControlNet state_dict contain NaN "
            "values: ['conv1.bias']"
        ),
        "WARNING Skipping checkpoint save at epoch 3: EMA contains NaN/Inf",
        "FloatingPointError: Loss became infinite or NaN at iteration=7!",
    ],
)
def test_who_looks_for_nan_gets_the_command(text: str, tmp_path: Path) -> None:
    save_file({"w": torch.tensor([1.0, float("nan")])}, tmp_path / "m.safetensors")
    found = Answered(text, tmp_path / "m.safetensors")
    assert (
        found.commands[0] == "ckpt stats m.safetensors"
        and "finds nothing" not in found.said
    )


def test_a_reader_in_r_is_told_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    torch.save(WEIGHTS, tmp_path / "model.pt")
    text = (
        "Error in cpp_load_state_dict(path) :\n  Could not run 'aten::empty_strided' "
        "with arguments from the 'CUDA' backend. 'aten::empty_strided' is only "
        "available for these backends: [CPU, BackendSelect]."
    )
    found = Answered(text, tmp_path / "model.pt")
    assert found.kind == "device" and "saved on cuda:0" in found.said
    assert found.run("ckpt rehome").exists()


LIBTORCH = (
    (
        "terminating with uncaught exception of type c10::Error: istream reader "
        "failed: reading file. (validate at istream_adapter.cc:32)"
    ),
    (
        "what():  read_bytes == 8 ASSERT FAILED at inline_container.h:182. Expected to "
        "read 8 bytes but got %llu bytes0"
    ),
)


@pytest.mark.parametrize("text", LIBTORCH)
@pytest.mark.parametrize("is_program", [False, True])
def test_a_stream_of_libtorch_that_gave_nothing(
    text: str, is_program: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    if is_program:
        torch.jit.script(nn.Linear(2, 2)).save(str(path))
    else:
        torch.save(WEIGHTS, path)
    found = Answered(text, path)
    assert found.said.startswith("libtorch read no byte")
    assert ("It would not load in C++ then either" in found.said) is not is_program


def test_names_that_another_library_asks_for(tmp_path: Path) -> None:
    hada = {
        f"lora_te_layers_0_mlp_fc1.hada_w1_{part}": torch.ones(2, 2) for part in "ab"
    }
    save_file(
        {**hada, "lora_te_layers_0_mlp_fc1.alpha": torch.ones(1)},
        tmp_path / "loha.safetensors",
    )
    found = Answered(
        "KeyError: 'lora_te_layers_0_mlp_fc1.hada_w1_'", tmp_path / "loha.safetensors"
    )
    assert (
        "2 tensors of this file have lora_te_layers_0_mlp_fc1.hada_w1_ in the name"
        in found.said
    )
    other = Answered(
        "KeyError: 'transformer_layers_0_mlp_fc1'", tmp_path / "loha.safetensors"
    )
    assert "the program looks for another architecture" in other.said
    for answer in (found, other):
        assert "no epoch and no optimizer" not in answer.said


def test_layers_of_lora_that_were_not_trained(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    layer = "base_model.model.thinker.layers.0.q_proj"
    save_file(
        {f"{layer}.lora_{part}.weight": torch.ones(2, 2) for part in "AB"},
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj", "k_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    names = [
        f"base_model.model.audio_tower.layers.0.k_proj.lora_{part}.default.weight"
        for part in "AB"
    ]
    found = Answered(
        (
            "UserWarning: Found missing adapter keys while loading the checkpoint: "
            f"{names}."
        ),
        folder,
    )
    assert (
        "The adapter has 1 layer of LoRA, and none at "
        "base_model.model.audio_tower.layers.0.k_proj"
    ) in found.said
    assert not any("load_into" in command for command in found.commands)


@pytest.mark.parametrize(
    "text",
    [
        (
            "ValueError: Expected 1 of '*_optim_states.pt' under './global_step9' but "
            "found 2 files. Possibly due to an overwrite"
        ),
        "AssertionError: No ZeRO files found in run/global_step9/",
        "ValueError: consumed 255381772 numels out of 255381776 - something is wrong",
        (
            "FileNotFoundError: [Errno 2] No such file or directory: "
            "'run/zero_pp_rank_5_mp_rank_00_optim_states.pt'"
        ),
    ],
)
def test_deepspeed_is_put_together_by_ckpt(text: str, tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", 2)
    found = Answered(text, tmp_path / "run")
    assert found.kind in ("zero", "world") and "DeepSpeed" in found.said
    assert any(command.startswith("ckpt convert run -o ") for command in found.commands)


def test_an_unknown_ending_in_a_tar_archive_is_named(tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save(WEIGHTS, stream)
    with tarfile.open(tmp_path / "pretrained.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("pretrained/ssa.sav")
        member.size = stream.tell()
        archive.addfile(member, io.BytesIO(stream.getvalue()))
    found = Answered(
        "_pickle.UnpicklingError: invalid load key, '\\x1f'.",
        tmp_path / "pretrained.tar.gz",
    )
    assert "with pretrained/ssa.sav" in found.said and found.commands == [
        "tar -xf pretrained.tar.gz"
    ]


def test_weights_without_code_are_a_command_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command keeps stands in the sentence, and not before the command."""
    module: Any = types.ModuleType("losses")
    module.Focal = type("Focal", (nn.Module,), {"__module__": "losses"})
    monkeypatch.setitem(sys.modules, "losses", module)
    torch.save({"net": WEIGHTS, "criterion": module.Focal()}, tmp_path / "seg.pth")
    found = Answered(
        "ModuleNotFoundError: No module named 'losses'", tmp_path / "seg.pth"
    )
    assert (
        all(command.startswith(("ckpt ", "torch.")) for command in found.commands)
        and found.commands
    )


# --- settings beside the weights ------------------------------------------------------

NO_TASK = "AttributeError: 'NoneType' object has no attribute 'task'"
INFER = (
    "AssertionError: Could not infer task type from {'_name': 'language_modeling'}. "
    "Available tasks: dict_keys(['hubert'])"
)
FAIRSEQ: dict[str, tuple[dict[str, Any], str, str]] = {
    "newer": (
        {"args": None, "cfg": {"task": {"_name": "audio_pretraining"}}},
        NO_TASK,
        "install a newer one",
    ),
    "none": ({"args": None, "cfg": None}, NO_TASK, "This file records no task"),
    "older": (
        {"args": Namespace(task="translation")},
        NO_TASK,
        "under args (task translation)",
    ),
    "another": ({"epoch": 3}, NO_TASK, "This is no checkpoint of fairseq"),
    "infer": (
        {"args": None, "cfg": {"task": {"_name": "lm"}}},
        INFER,
        "The task of this file is lm.",
    ),
}


@pytest.mark.parametrize("kind", FAIRSEQ)
def test_fairseq_is_told_where_its_settings_are(kind: str, tmp_path: Path) -> None:
    state, text, said = FAIRSEQ[kind]
    torch.save({**state, "model": WEIGHTS}, tmp_path / "checkpoint_best.pt")
    found = Answered(text, tmp_path / "checkpoint_best.pt")
    assert found.kind == "fairseq" and said in found.said


def write_agent(path: Path) -> None:
    """Write an archive as Stable-Baselines3 writes it."""
    stream = io.BytesIO()
    torch.save(WEIGHTS, stream)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"n_steps": 2048}))
        archive.writestr("policy.pth", stream.getvalue())
        archive.writestr("_stable_baselines3_version", "1.6.0")
        archive.writestr("system_info.txt", "Python: 3.7.10\nPyTorch: 1.11")


def test_a_schedule_of_another_python_is_replaced(tmp_path: Path) -> None:
    write_agent(tmp_path / "policy.zip")
    text = (
        "UserWarning: Could not deserialize object {}. Consider using `custom_objects` "
        "argument to replace this object."
    )
    found = Answered(text.format("lr_schedule"), tmp_path / "policy.zip")
    assert "pickled code of Python 3.7.10" in found.said
    (line,) = found.commands
    assert line.startswith(
        'PPO.load("policy.zip", custom_objects={"learning_rate": 0.0, '
    )
    other = Answered(text.format("observation_space"), tmp_path / "policy.zip")
    assert "Make observation_space anew" in other.said and not other.commands
    torch.save(WEIGHTS, tmp_path / "weights.pth")
    assert (
        "no archive of Stable-Baselines3"
        in Answered(text.format("lr_schedule"), tmp_path / "weights.pth").said
    )


def test_torch_load_of_an_archive_of_agents(tmp_path: Path) -> None:
    write_agent(tmp_path / "policy.zip")
    with pytest.raises(RuntimeError) as caught:
        torch.load(tmp_path / "policy.zip")
    found = Answered(f"RuntimeError: {caught.value}", tmp_path / "policy.zip")
    assert "PPO.load, SAC.load" in found.said and "another one" not in found.said


@pytest.mark.parametrize("name", ["dict", "collections.OrderedDict"])
def test_a_dict_that_was_loaded_already(name: str, tmp_path: Path) -> None:
    torch.save({"state_dict": WEIGHTS}, tmp_path / "last.ckpt")
    text = (
        f"AttributeError: '{name}' object has no attribute 'seek'. You can only "
        "torch.load from a file that is seekable."
    )
    found = Answered(text, tmp_path / "last.ckpt")
    assert found.kind == "loaded" and "hand over the path" in found.said
    assert found.loaded().keys() == WEIGHTS.keys()


@pytest.mark.parametrize("values", [{}, {"lr": 0.1, "width": 3}])
def test_a_module_of_lightning_with_other_arguments(
    values: dict[str, float], tmp_path: Path
) -> None:
    torch.save(
        {"state_dict": WEIGHTS, "hyper_parameters": values}, tmp_path / "last.ckpt"
    )
    text = (
        "Checkpoint contains hyperparameters but Net's __init__ is missing the "
        "argument 'hparams'."
    )
    found = Answered(text, tmp_path / "last.ckpt")
    assert ("lr and width" in found.said or "lr, width" in found.said) is bool(values)
    assert found.loaded().keys() == WEIGHTS.keys()


def test_a_loss_beside_a_model_is_left_out(tmp_path: Path) -> None:
    state = {
        f"model.{name}": value for name, value in nn.Linear(2, 2).state_dict().items()
    }
    more = {f"criterion.{number}.class_weight": torch.ones(2) for number in range(2)}
    model = nn.ModuleDict(
        {"model": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))}
    )
    torch.save({"state_dict": {**model.state_dict(), **more}}, tmp_path / "best.ckpt")
    found = Answered(
        raised(lambda: model.load_state_dict({**model.state_dict(), **more})),
        tmp_path / "best.ckpt",
    )
    (line,) = [
        command
        for command in found.commands
        if command.startswith("model.load_state_dict(")
    ]
    assert "leaves these out, and nothing else" in found.said and line.endswith(
        "strict=False)"
    )
    torch.save(
        {f"module.{name}": value for name, value in state.items()}, tmp_path / "ddp.pth"
    )
    cut = (
        "Error(s) in loading state_dict for Net:\n\tUnexpected key(s) in state_dict: "
        '"module.model.weight", "module.model.bias".'
    )
    assert "nothing else" not in Answered(cut, tmp_path / "ddp.pth").said


def test_results_of_an_evaluation_are_no_model(tmp_path: Path) -> None:
    results = {
        "params": {"iouType": "bbox"},
        "precision": torch.ones(3),
        "recall": torch.ones(3),
    }
    torch.save(results, tmp_path / "latest.pth")
    found = Answered("KeyError: 'model'", tmp_path / "latest.pth")
    assert "the results of an evaluation, and no weights of a model" in found.said

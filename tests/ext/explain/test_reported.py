"""Situations of issue trackers, each with the message that the library raises: no
answer is that of another problem.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import rewriting
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, raised
from inside import folder_of
from process import SAMPLES
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

from ckpt.ext.explain.families import find_message

pytestmark = [*oracle.QUIET, pytest.mark.slow]


# --- distributed checkpoints ----------------------------------------------------------


def saved_parts(path: Path, inner: str) -> dict[str, torch.Tensor]:
    """Save layers whose names have the attribute of a wrapper inside, and
    return them.
    """
    parts = {
        f"layers.{number}{inner}.wq.weight": torch.ones(2, 2) for number in range(3)
    }
    dcp.save(
        {"embed.weight": torch.ones(3, 2), **parts},
        checkpoint_id=str(path),
        no_dist=True,
    )
    return parts


def traced(text: str) -> str:
    """A message below a traceback whose last line of source has the f-string of the
    message.
    """
    return (
        'Traceback (most recent call last):\n  File "default_planner.py", line 495, in '
        "create_default_local_load_plan\n"
        '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")\n'
        + text
    )


@pytest.mark.parametrize(
    "inner", ["._orig_mod", "._checkpoint_wrapped_module", "._fsdp_wrapped_module"]
)
def test_keys_under_a_wrapper_inside_are_found(inner: str, tmp_path: Path) -> None:
    parts = saved_parts(tmp_path / "step-9", inner)
    wanted = {name.replace(inner, ""): value for name, value in parts.items()}
    text = raised(
        lambda: dcp.load(
            dict(wanted), checkpoint_id=str(tmp_path / "step-9"), no_dist=True
        )
    )

    found = Answered(traced(text), tmp_path / "step-9")

    assert found.kind == "distributed" and "{fqn}" not in found.page
    assert found.said.startswith(
        "1 key is in this checkpoint under the attribute of a wrapper: layers."
    )
    assert "not in this checkpoint" not in found.page
    dcp.load(dict(wanted), checkpoint_id=str(found.run("ckpt strip")), no_dist=True)


def test_keys_of_a_wrapped_model_are_found(tmp_path: Path) -> None:
    saved_parts(tmp_path / "step-9", "")
    model = {"layers.0._orig_mod.wq.weight": torch.ones(2, 2)}
    text = raised(
        lambda: dcp.load(model, checkpoint_id=str(tmp_path / "step-9"), no_dist=True)
    )

    found = Answered(traced(text), tmp_path / "step-9")

    assert (
        "1 key is in this checkpoint without the attribute of a wrapper: "
        "layers.0.wq.weight."
    ) in found.said
    assert "not in this checkpoint" not in found.page and not found.commands


def test_a_flat_parameter_is_told_from_another_model(tmp_path: Path) -> None:
    path = tmp_path / "step-9"
    dcp.save(
        {"model": {"embed.weight": torch.ones(6, 4)}},
        checkpoint_id=str(path),
        no_dist=True,
    )
    for shape, is_flat in (
        ((12,), True),
        ((24,), True),
        ((6, 3), False),
        ((7,), False),
    ):
        state = {"model": {"embed.weight": torch.ones(shape)}}
        text = raised(
            lambda state=state: dcp.load(state, checkpoint_id=str(path), no_dist=True)
        )

        found = Answered(text, path)

        assert ("flat parameter of FSDP" in found.said) is is_flat, shape
        if is_flat:
            assert f"{shape[0]} of its 24 elements" in found.said


# --- shapes that differ ---------------------------------------------------------------


def mismatches(path: Path, model: nn.Module) -> Answered:
    """Load a file into a model of other shapes, and bring the message."""
    state = (
        load_file(path)
        if path.suffix == ".safetensors"
        else torch.load(path, weights_only=True)
    )
    return Answered(raised(lambda: model.load_state_dict(state)), path)


def quantized(
    columns: int, groups: int, *, turned: bool = False
) -> dict[str, torch.Tensor]:
    """Layers of GPTQ with so many groups of inputs."""
    scales = (columns, groups) if turned else (groups, columns)
    return {
        f"layers.{number}.{name}.{part}": value
        for number in range(2)
        for name in ("k_proj", "o_proj")
        for part, value in (
            ("qweight", torch.ones(4, columns, dtype=torch.int32)),
            ("qzeros", torch.ones(groups, columns // 8, dtype=torch.int32)),
            ("scales", torch.ones(scales, dtype=torch.float16)),
            ("g_idx", torch.zeros(32, dtype=torch.int32)),
        )
    }


def module_of(state: dict[str, torch.Tensor]) -> nn.Module:
    """A module with buffers of these names and shapes."""
    root = nn.Module()
    for name, value in state.items():
        *parents, last = name.split(".")
        node = root
        for parent in parents:
            if parent not in dict(node.named_children()):
                node.add_module(parent, nn.Module())
            node = node.get_submodule(parent)
        node.register_buffer(last, torch.zeros_like(value))
    return root


@pytest.mark.parametrize(
    ("groups", "turned", "words"),
    [
        (1, False, "1 in the checkpoint and 4 in the model"),
        (8, False, "8 in the checkpoint and 4 in the model"),
        (2, False, "2 in the checkpoint and 4 in the model"),
        (4, True, "an older layout of GPTQ"),
    ],
)
def test_groups_of_scales_are_no_ranks(
    groups: int, turned: bool, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_file(quantized(64, groups, turned=turned), path)

    found = mismatches(path, module_of(quantized(64, 4)))

    assert (
        words in found.said
        and "parallelism" not in found.page
        and "TensorFlow" not in found.page
    )
    assert "load_into" not in found.page


def test_ranks_of_weights_are_still_told(tmp_path: Path) -> None:
    names = ("q_proj", "k_proj", "up_proj")
    path = rewriting.saved(
        {f"l.{name}.weight": torch.ones(4, 8) for name in names}, tmp_path / "r.pth"
    )

    found = mismatches(
        path, module_of({f"l.{name}.weight": torch.ones(16, 8) for name in names})
    )

    assert "one rank of 4 of tensor parallelism" in found.said


@pytest.mark.parametrize(
    ("here", "there"),
    [((), (1,)), ((6, 4), (6, 4, 1, 1)), ((6, 4, 1, 1), (6, 4)), ((1, 5, 4), (5, 4))],
)
def test_the_same_elements_in_another_shape_are_kept(
    here: tuple[int, ...], there: tuple[int, ...], tmp_path: Path
) -> None:
    value = torch.arange(float(torch.Size(here).numel())).reshape(here)
    path = rewriting.saved(
        {"scale": value, "fc.weight": torch.ones(2, 2)}, tmp_path / "a.pth"
    )
    model = module_of({"scale": torch.zeros(there), "fc.weight": torch.ones(2, 2)})

    found = mismatches(path, model)

    assert "the same elements" in found.said
    (line,) = [command for command in found.commands if "reshape" in command]
    scope: dict[str, Any] = {"torch": torch, "model": model}
    with folder_of(tmp_path):
        exec(line, scope)
    assert torch.equal(model.get_buffer("scale"), value.reshape(there))


def test_the_width_of_the_text_tells_another_stable_diffusion(tmp_path: Path) -> None:
    state = {
        f"down.{number}.attn2.{part}.weight": torch.ones(8, 1024)
        for number in (0, 1)
        for part in ("to_k", "to_v")
    }
    path = tmp_path / "unet.safetensors"
    save_file(state, path)

    found = mismatches(path, module_of({name: torch.ones(8, 768) for name in state}))

    assert (
        "text of width 1,024 in the checkpoint (Stable Diffusion 2) and 768 in the "
        "model (Stable Diffusion 1)"
    ) in found.said
    assert "load_into" not in found.page


@pytest.mark.parametrize("is_deep", [True, False])
def test_bottlenecks_and_basic_blocks_are_two_architectures(
    is_deep: bool, tmp_path: Path
) -> None:
    basic = {
        "layer1.0.conv1.weight": torch.ones(8, 8, 3, 3),
        "layer1.0.conv2.weight": torch.ones(8, 8, 3, 3),
    }
    deep = {
        "layer1.0.conv1.weight": torch.ones(8, 8, 1, 1),
        "layer1.0.conv2.weight": torch.ones(8, 8, 3, 3),
        "layer1.0.conv3.weight": torch.ones(32, 8, 1, 1),
    }
    here, there = (deep, basic) if is_deep else (basic, deep)
    found = mismatches(rewriting.saved(here, tmp_path / "r.pth"), module_of(there))

    assert (
        f"the checkpoint has {'bottleneck' if is_deep else 'basic'} blocks"
        in found.said
    )
    assert "load_into" not in found.page


# --- saves, and files that are whole --------------------------------------------------


def test_a_folder_that_is_not_there_is_no_full_disk(tmp_path: Path) -> None:
    with folder_of(tmp_path):
        text = raised(lambda: torch.save({"a": 1}, "ckpts/run 1.ckpt"))
    path = rewriting.saved({"a": torch.ones(1)}, tmp_path / "a.pth")

    found = Answered(text, path)

    assert found.kind == "parent" and "full" not in found.page
    (line,) = [command for command in found.commands if "makedirs" in command]
    with folder_of(tmp_path):
        exec(line)
        torch.save({"a": 1}, "ckpts/run 1.ckpt")


@pytest.mark.parametrize("is_meta", [True, False])
def test_a_tensor_on_meta_is_named(is_meta: bool, tmp_path: Path) -> None:
    state = nn.Linear(3, 2).state_dict()
    if is_meta:
        state["bias"] = state["bias"].to("meta")
    path = rewriting.saved(state, tmp_path / "a.pth")
    loaded = torch.load(path, weights_only=True)
    text = raised(
        (lambda: nn.Linear(3, 2).load_state_dict(loaded))
        if is_meta
        else (lambda: nn.Linear(3, 2, device="meta").to("cpu"))
    )

    found = Answered(text, path)

    assert found.kind == "meta" and "finds nothing" not in found.page
    if is_meta:
        assert (
            found.names == ["bias"]
            and "saved without values" in found.said
            and not found.commands
        )
        return
    assert "No tensor of this file is on the device meta" in found.said
    model = nn.Linear(3, 2, device="meta")
    (line,) = found.commands
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert torch.equal(model.weight, loaded["weight"])


def test_an_unknown_error_is_told_of_tensors_on_meta(tmp_path: Path) -> None:
    path = rewriting.saved({"a": torch.ones(2, device="meta")}, tmp_path / "a.pth")

    found = Answered("RuntimeError: something odd about this model", path)

    assert (
        found.code == 0
        and "saved without values" in found.said
        and "finds nothing" not in found.page
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Unknown builtin op: torchvision::nms.", "import torchvision"),
        ("Unknown builtin op: my_ops::dcn_v2_forward.", "torch.ops.load_library"),
        ("Unknown builtin op: aten::reflection_pad3d.", "a newer torch"),
        ("Unknown type name 'NoneType':", "a newer torch"),
        (
            "Unknown type name '__torch__.torch.classes.tensorrt.Engine':",
            "import torch_tensorrt",
        ),
    ],
)
def test_an_operator_that_torch_lacks_is_not_said_to_load(
    words: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.pt"
    torch.jit.script(nn.Linear(2, 2)).save(path)

    found = Answered(
        (
            f"Traceback (most recent call last):\nRuntimeError: \n{words}\nCould not "
            "find any similar ops"
        ),
        path,
    )

    assert (
        found.kind == "operator"
        and said in found.said
        and "It loads so" not in found.page
    )


@pytest.mark.needs("archives")
def test_an_archive_of_another_program_is_no_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "ppo.zip"
    buffer = rewriting.in_memory(nn.Linear(2, 2).state_dict())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"n_steps": 8}))
        archive.writestr("pytorch_variables.pth", rewriting.in_memory({}))
        archive.writestr("policy.pth", buffer)
        archive.writestr("_stable_baselines3_version", "2.3.2")
    found = Answered(raised(lambda: torch.load(path)), path)

    assert (
        found.kind == "damaged"
        and "Stable-Baselines3" in found.said
        and "another one" not in found.page
    )
    (line,) = [command for command in found.commands if "torch.load" in command]
    with folder_of(tmp_path):
        state = eval(line, {"torch": torch, "zipfile": zipfile})
    assert set(state) == {"weight", "bias"}


def test_a_stream_that_was_read_to_its_end(tmp_path: Path) -> None:
    path = rewriting.saved({"a": torch.ones(1)}, tmp_path / "a.pth")
    with path.open("rb") as stream:
        stream.read()
        text = raised(lambda: torch.load(stream, weights_only=False))

    found = Answered(text, path)

    assert (
        "Ran out of input" in text
        and "seek(0)" in found.said
        and "another one" not in found.page
    )


def test_the_file_of_a_folder_that_is_refused_is_made_plain(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    save_file(
        {"fc.weight": torch.ones(2, 2)},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text('{"architectures": ["A"], "model_type": "a"}')
    (folder / "trainer_state.json").write_text(
        '{"global_step": 5, "epoch": 1.0, "log_history": []}'
    )
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    torch.save(state, folder / "rng_state.pth")

    found = Answered(raised(lambda: torch.load(folder / "rng_state.pth")), folder)

    assert found.kind == "globals" and "rng_state.pth" in found.said
    plain = torch.load(found.run("ckpt convert"), weights_only=True)
    np.random.set_state(plain["numpy"])
    random.setstate(plain["python"])


# --- keys of programs that change a model ---------------------------------------------


def refused(state: Any, model: nn.Module, path: Path) -> Answered:
    """Load a state dict into a model that has other names, and bring the message with
    the file of it.
    """
    rewriting.saved(state, path)
    return Answered(raised(lambda: model.load_state_dict(state)), path)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 2))


def test_masks_of_pruning_are_applied_by_the_printed_line(tmp_path: Path) -> None:
    pruned = two_layers()
    for layer in pruned:
        prune.l1_unstructured(layer, "weight", 0.5)

    found = refused(pruned.state_dict(), two_layers(), tmp_path / "p.pth")

    assert "torch.nn.utils.prune" in found.said and "has no place" not in found.said
    model = two_layers()
    (line,) = [command for command in found.commands if "load_state_dict" in command]
    with folder_of(tmp_path):
        exec(line, {"torch": torch, "model": model})
    assert torch.equal(model[1].weight, pruned[1].weight)


def test_a_model_that_is_pruned_before_the_load(tmp_path: Path) -> None:
    pruned = two_layers()
    for layer in pruned:
        prune.l1_unstructured(layer, "weight", 0.5)

    found = refused(two_layers().state_dict(), pruned, tmp_path / "p.pth")

    assert "was pruned before the load: load first, and prune then" in found.said


def test_a_quantized_model_is_named(tmp_path: Path) -> None:
    with pytest.deprecated_call():
        made = torch.ao.quantization.quantize_dynamic(
            two_layers(), {nn.Linear}, dtype=torch.qint8
        )

    found = refused(made.state_dict(), two_layers(), tmp_path / "q.pth")

    assert (
        "quantized by torch" in found.said
        and "Quantize the model in the same way before the load" in found.said
    )
    assert (
        "under a name that ckpt can match" not in found.said
        and "has no place" not in found.said
    )


def test_the_counter_of_an_average_is_no_weight(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(two_layers())

    found = refused(average.state_dict(), two_layers(), tmp_path / "a.pth")

    assert (
        "n_averaged counts the models of an average (AveragedModel: EMA, SWA), and "
        "is no weight"
    ) in found.said
    assert "has no place" not in found.said
    plain = torch.load(found.run("ckpt strip"), weights_only=True)
    two_layers().load_state_dict(plain, strict=False)
    assert set(plain) - set(two_layers().state_dict()) == {"n_averaged"}


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_all_keys_of_bitsandbytes_are_scales(kind: str, tmp_path: Path) -> None:
    state = {}
    for number in range(2):
        name = f"layers.{number}.q_proj.weight"
        state[name] = torch.zeros(8, 1, dtype=torch.uint8)
        state[f"{name}.absmax"] = torch.ones(1)
        state[f"{name}.quant_map"] = torch.ones(16)
        state[f"{name}.quant_state.bitsandbytes__{kind}"] = torch.zeros(
            80, dtype=torch.uint8
        )
    path = tmp_path / "model.safetensors"
    save_file(state, path)
    model = module_of(
        {name: value for name, value in state.items() if name.endswith("weight")}
    )

    found = Answered(raised(lambda: model.load_state_dict(state)), path)

    assert "itsandbytes 4-bit" in found.said and "has no place" not in found.said
    assert "from_pretrained" in found.said


@pytest.mark.parametrize(
    "mark",
    [
        "ERROR 12-05 20:24:46 engine.py:366] ",
        "(Worker_TP0 pid=2263963) ERROR 10-18 03:20:36 [multiproc_executor.py:628] ",
        "ERROR 04-19 16:21:20 [core/engine.py:857] ",
        "[rank0]: ",
    ],
)
def test_the_lines_of_a_server_are_read(mark: str, tmp_path: Path) -> None:
    (tmp_path / "w8a8").mkdir()
    state = {
        "model.layers.0.down_proj.weight": torch.zeros(8, 4, dtype=torch.int8),
        "model.layers.0.down_proj.weight_scale": torch.ones(8, 1, dtype=torch.bfloat16),
    }
    save_file(state, tmp_path / "w8a8" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "w8a8" / "config.json").write_text(
        '{"architectures": ["A"], "model_type": "a"}'
    )
    lines = [
        '  File "/x/qwen2.py", line 371, in load_weights',
        "    param = params_dict[name]",
        "KeyError: 'layers.0.down_proj.weight_scale'",
    ]

    found = Answered("".join(f"{mark}{line}\n" for line in lines), tmp_path / "w8a8")

    assert found.kind == "key" and "codes" in found.said
    assert "config.json has no quantization_config" in found.said


def test_names_without_the_name_of_their_model(tmp_path: Path) -> None:
    names = ("embed_tokens.weight", "layers.0.q_proj.weight", "norm.weight")
    (tmp_path / "llm").mkdir()
    save_file(
        {name: torch.ones(2) for name in names},
        tmp_path / "llm" / "model.safetensors",
        metadata={"format": "pt"},
    )
    (tmp_path / "llm" / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'
    )

    found = Answered(
        "ValueError: Can not map tensor 'embed_tokens.weight'", tmp_path / "llm"
    )

    assert "saved from the base model" in found.said and "model." in found.said
    made = found.run("ckpt rename")
    weights = (
        load_file(next(made.rglob("*.safetensors")))
        if made.is_dir()
        else load_file(made)
    )
    assert set(weights) == {f"model.{name}" for name in names}


# --- resumed runs ---------------------------------------------------------------------


def run_of(path: Path, *, scheduler: bool) -> dict[str, Any]:
    """Save a run of one step, with or without a scheduler, and return what was
    saved.
    """
    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    data: dict[str, Any] = {"model": net.state_dict(), "iteration": 120}
    made = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10) if scheduler else None
    )
    optimizer.step()
    data["optimizer"] = optimizer.state_dict()
    if made is not None:
        made.step()
        data["scheduler"] = made.state_dict()
    rewriting.saved(data, path)
    return data


@pytest.mark.parametrize("scheduler", [True, False])
def test_the_first_rate_of_a_scheduler_is_looked_for(
    scheduler: bool, tmp_path: Path
) -> None:
    data = run_of(tmp_path / "G_0.pth", scheduler=scheduler)
    optimizer = torch.optim.Adam(nn.Linear(3, 2).parameters())
    if not scheduler:
        optimizer.load_state_dict(data["optimizer"])
    text = raised(
        lambda: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9, last_epoch=118)
    )

    found = Answered(text, tmp_path / "G_0.pth")

    assert found.kind == "key" and "initial_lr" in found.said
    if scheduler:
        assert (
            "optimizer has initial_lr: load its state before the scheduler is built"
            in found.said
        )
        return
    assert "no scheduler had been built when optimizer was saved" in found.said
    (line,) = [command for command in found.commands if "setdefault" in command]
    exec(line, {"optimizer": optimizer})
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9, last_epoch=118)


@pytest.mark.parametrize(
    ("kept", "name"),
    [
        (lambda data: data, "scheduler"),
        (
            lambda data: {
                "state_dict": data["model"],
                "lr_schedulers": [data["scheduler"]],
            },
            "lr_schedulers.0",
        ),
        (lambda data: data["scheduler"], "This file"),
    ],
    ids=["key", "list", "root"],
)
def test_the_scheduler_of_a_file_is_named(
    kept: Callable[[Any], Any], name: str, tmp_path: Path
) -> None:
    data = run_of(tmp_path / "a.pth", scheduler=True)
    rewriting.saved(kept(data), tmp_path / "a.pth")
    optimizer = torch.optim.Adam(nn.Linear(3, 2).parameters())
    text = raised(
        lambda: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda epoch: 1.0
        ).load_state_dict(dict(data["scheduler"]))
    )

    found = Answered(text, tmp_path / "a.pth")

    assert "lr_lambdas" in text and found.kind == "key"
    assert f"{name} is the state of a CosineAnnealingLR (T_max)" in found.said
    assert "LambdaLR or MultiplicativeLR asks for lr_lambdas" in found.said
    assert not found.commands


def test_a_finished_run_of_ultralytics_is_told(tmp_path: Path) -> None:
    data = {
        "epoch": -1,
        "optimizer": None,
        "ema": None,
        "model": nn.Linear(3, 2).state_dict(),
    }
    text = (
        "AssertionError: w/last.pt training to 100 epochs is finished, nothing to "
        "resume.\nStart a new training"
    )
    found = Answered(text, rewriting.saved(data, tmp_path / "last.pt"))

    assert (
        found.kind == "finished" and "epoch is -1 and optimizer is None" in found.said
    )

    other = Answered(text, rewriting.saved({**data, "epoch": 7}, tmp_path / "other.pt"))
    assert "epoch is 7" in other.said and "finished run" not in other.said


# --- safetensors, adapters and pipelines ----------------------------------------------


def test_tensors_that_are_not_contiguous_are_written_by_the_command(
    tmp_path: Path,
) -> None:
    state = {"a": torch.ones(6, 4).t(), "b": torch.ones(4)}
    path = rewriting.saved(state, tmp_path / "a.bin")

    found = Answered(
        raised(lambda: save_file(state, tmp_path / "no.safetensors")), path
    )

    assert found.kind == "contiguous" and ".contiguous()" in found.said
    assert torch.equal(load_file(found.run("ckpt convert"))["a"], state["a"])


def adapter(folder: Path) -> Path:
    """The folder of an adapter of PEFT."""
    folder.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    save_file(
        {
            f"{name}.lora_A.weight": torch.ones(2, 8),
            f"{name}.lora_B.weight": torch.ones(8, 2),
        },
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    config = {
        "peft_type": "LORA",
        "r": 2,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "org/llama",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_the_layers_of_an_adapter_name_its_base(tmp_path: Path) -> None:
    text = (
        "ValueError: Target modules {'q_proj'} not found in the base model. Please "
        "check the target modules and try again."
    )
    found = Answered(text, adapter(tmp_path / "lora"))

    assert (
        found.kind == "adapter"
        and "It changes 1 layer: model.layers.0.self_attn.q_proj." in found.said
    )
    assert "adapter_config.json names org/llama as the base model" in found.said
    assert "convert the names" not in found.said


PARTS = {
    "model": (
        "double_blocks.0.img_attn.qkv.weight",
        "diffusion model alone",
        "Load Diffusion Model",
    ),
    "wrapped": (
        "model.diffusion_model.double_blocks.0.img_attn.qkv.weight",
        "diffusion model alone",
        "Load Diffusion Model",
    ),
    "vae": ("decoder.conv_in.weight", "VAE alone", "Load VAE"),
    "text": (
        "text_model.encoder.layers.0.mlp.fc1.weight",
        "text encoder alone",
        "Load CLIP",
    ),
    "lora": ("lora_unet_down_0.lora_down.weight", "LoRA", "Load LoRA"),
    "peft": ("down_blocks.0.attentions.0.to_q.lora_A.weight", "LoRA", "Load LoRA"),
    "diffusers-control": (
        "controlnet_down_blocks.0.weight",
        "ControlNet",
        "Load ControlNet Model",
    ),
    "control": (
        "control_model.input_blocks.0.0.weight",
        "ControlNet",
        "Load ControlNet Model",
    ),
    "other": ("fc.weight", "", ""),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_pipeline_names_its_loader(part: str, tmp_path: Path) -> None:
    name, said, loader = PARTS[part]
    save_file(
        {name: torch.ones(2, 2), name.replace("weight", "bias"): torch.ones(2)},
        tmp_path / "a.safetensors",
    )
    text = (
        "Error occurred when executing CheckpointLoaderSimple:\n\nERROR: Could not "
        "detect model type of: D:\\ComfyUI\\a.safetensors\n"
        '\nFile "D:\\comfy\\sd.py", line 513, in load\nraise RuntimeError("ERROR: '
        'Could not detect model type of: {}".format(path))\n'
    )

    found = Answered(text, tmp_path / "a.safetensors")

    assert found.kind == "pipeline" and said in found.said and loader in found.said
    assert found.code == 0 and (
        part != "other" or "no name of a model that pipelines know" in found.said
    )


def test_a_whole_pipeline_is_told_as_such(tmp_path: Path) -> None:
    names = (
        "model.diffusion_model.input_blocks.0.0.weight",
        "first_stage_model.decoder.conv_in.weight",
        "cond_stage_model.a.weight",
    )
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "a.safetensors")

    found = Answered(
        "ERROR: Could not detect model type of: a.safetensors",
        tmp_path / "a.safetensors",
    )

    assert (
        "alone" not in found.said
        and "a diffusion model, a text encoder and a VAE" in found.said
    )


def test_the_repository_of_a_class_is_named(tmp_path: Path) -> None:
    def written(module: str, path: Path) -> Path:
        kind = types.ModuleType(module)
        made = type("DetectionModel", (nn.Module,), {"__module__": module})
        kind.DetectionModel = made  # type: ignore[attr-defined]
        package = types.ModuleType(module.partition(".")[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, package.__name__, package)
            patch.setitem(sys.modules, module, kind)
            torch.save({"epoch": -1, "model": made()}, path)
        return path

    text = "ModuleNotFoundError: No module named 'models'"

    assert "YOLOv5" in Answered(text, written("models.yolo", tmp_path / "a.pt")).said
    assert (
        "YOLOv5" not in Answered(text, written("models.mine", tmp_path / "b.pt")).said
    )


# --- names that a program or a hand has changed ---------------------------------------


def named(**parts: nn.Module) -> nn.Module:
    """A module with these children."""
    made = nn.Module()
    for name, part in parts.items():
        made.add_module(name, part)
    return made


@pytest.mark.parametrize(
    ("count", "prefix"), [(7, "'module.'"), (6, "'model.'"), (3, "")]
)
def test_names_that_a_program_cuts_are_told(
    count: int, prefix: str, tmp_path: Path
) -> None:
    model = named(
        layer_list=nn.Linear(2, 2), union2=nn.Linear(2, 2), binary1=nn.Linear(2, 2)
    )
    path = tmp_path / "m.pth"
    torch.save({"model_state_dict": model.state_dict(), "epoch": 3}, path)
    cut = {name[count:]: value for name, value in model.state_dict().items()}

    found = Answered(raised(lambda: model.load_state_dict(cut)), path)

    assert f"without the first {count} letters" in found.said and prefix in found.said
    assert (
        "another dict" not in found.said
        and "All missing keys are among them" in found.said
    )
    with folder_of(tmp_path):
        exec(found.commands[0], {"torch": torch, "model": model})


def test_a_prefix_that_a_program_takes_off_is_no_cut(tmp_path: Path) -> None:
    state = {
        f"module.{name}": value for name, value in nn.Linear(2, 2).state_dict().items()
    }
    torch.save(state, tmp_path / "m.pth")
    bare = {name[7:]: value for name, value in state.items()}
    model = named(fc=nn.Linear(2, 2))

    found = Answered(raised(lambda: model.load_state_dict(bare)), tmp_path / "m.pth")

    assert "letters" not in found.said


def test_a_word_that_is_mistyped_is_renamed(tmp_path: Path) -> None:
    for number, (old, new) in enumerate(
        [
            ("postion_embedding", "position_embedding"),
            ("reisdual", "residual"),
            ("lin_ear", "linear"),
        ]
    ):
        path = tmp_path / f"{number}.pth"
        saved = named(body=named(**{old: nn.Linear(2, 2)}), head=nn.Linear(2, 2))
        torch.save({"model": saved.state_dict()}, path)
        model = named(body=named(**{new: nn.Linear(2, 2)}), head=nn.Linear(2, 2))

        found = Answered(
            raised(lambda m=model, s=saved: m.load_state_dict(s.state_dict())), path
        )

        assert (
            "under a name that ckpt can match" not in found.said
            and "has no place" not in found.said
        )
        model.load_state_dict(
            torch.load(found.run("ckpt rename"), weights_only=True)["model"]
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [("encoder", "decoder"), ("weights_ih", "weights_hh"), ("branch_a", "branch_b")],
)
def test_another_letter_is_no_mistake(old: str, new: str, tmp_path: Path) -> None:
    saved = named(**{old: nn.Linear(2, 2)}, x=nn.Linear(2, 2))
    model = named(**{new: nn.Linear(2, 2)}, x=nn.Linear(2, 2))

    assert "spelling" not in refused(saved.state_dict(), model, tmp_path / "m.pth").said


def test_flat_averages_are_told(tmp_path: Path) -> None:
    state = two_layers().state_dict()
    averages = {
        "ema_" + name.replace(".", "_"): value.clone() for name, value in state.items()
    }
    torch.save(
        {"state_dict": {**state, **averages}, "meta": {}}, tmp_path / "epoch_3.pth"
    )
    text = (
        "The model and loaded state dict do not match exactly\n\nunexpected key in "
        "source state_dict: "
    ) + ", ".join(averages)

    found = Answered(text, tmp_path / "epoch_3.pth")

    assert (
        "4 keys of this file are running averages" in found.said
        and "has no place for 4" not in found.said
    )


def test_shapes_alone_keep_what_fvcore_skips(tmp_path: Path) -> None:
    torch.save(
        {"model": named(cls_score=nn.Linear(4, 81)).state_dict()},
        tmp_path / "model_final.pth",
    )
    text = (
        "Skip loading parameter 'cls_score.weight' to the model due to incompatible "
        "shapes: (81, 4) in the checkpoint but (4, 4) in the model!\n"
        "Skip loading parameter 'cls_score.bias' to the model due to incompatible "
        "shapes: (81,) in the checkpoint but (4,) in the model!\n"
        "Some model parameters or buffers are not found in the checkpoint:\n"
        "cls_score.{bias, weight}\n"
    )

    found = Answered(text, tmp_path / "model_final.pth")

    assert (
        "81 outputs where the model has 4" in found.said
        and "another file" not in found.said
    )


def test_positions_and_words_are_no_classes(tmp_path: Path) -> None:
    def model(words: int, positions: int) -> nn.Module:
        parts = {
            "embed_tokens": nn.Embedding(words, 4),
            "embed_positions": nn.Embedding(positions, 4),
        }
        return named(
            encoder=named(**parts),
            decoder=named(output_projection=nn.Linear(4, words, bias=False)),
        )

    torch.save({"model": model(64, 302).state_dict()}, tmp_path / "checkpoint_best.pt")
    text = raised(lambda: model(14, 258).load_state_dict(model(64, 302).state_dict()))

    found = Answered(text, tmp_path / "checkpoint_best.pt")

    assert (
        "The vocabulary has 64 rows" in found.said
        and "Position embeddings differ: 302" in found.said
    )
    assert "classes" not in found.said


@pytest.mark.parametrize("said", [4, 8, None])
def test_the_rank_of_an_adapter_is_named(said: int | None, tmp_path: Path) -> None:
    folder = tmp_path / "lora"
    folder.mkdir()
    names = [f"base_model.model.layers.{number}.q_proj" for number in range(2)]
    state = {}
    for name in names:
        state[f"{name}.lora_A.weight"] = torch.ones(8, 16)
        state[f"{name}.lora_B.weight"] = torch.ones(16, 8)
    save_file(state, folder / "adapter_model.safetensors")
    if said is not None:
        (folder / "adapter_config.json").write_text(
            json.dumps({"peft_type": "LORA", "r": said})
        )
    rows = [
        f"size mismatch for {name}.lora_{part}.default.weight: copying a param with "
        f"shape torch.Size({here}) from checkpoint, the shape in current model is "
        f"torch.Size({there})."
        for name in names
        for part, here, there in (("A", [8, 16], [4, 16]), ("B", [16, 8], [16, 4]))
    ]

    found = Answered(
        "\n".join(rows),
        folder if said is not None else folder / "adapter_model.safetensors",
    )

    assert "has rank 8 (r)" in found.said and "of rank 4" in found.said
    assert ("it belongs to another adapter" in found.said) is (said == 4)


def test_a_module_of_a_server_stands_for_its_keys(tmp_path: Path) -> None:
    save_file({"lm_head.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")

    found = Answered(
        "ValueError: There is no module or parameter named 'lm_head' in LlamaModel",
        tmp_path / "model.safetensors",
    )

    assert (
        "The model has no place for 1 key" in found.said
        and "Is it the file" not in found.said
    )


def test_the_line_of_an_average_alone_goes_down_to_it(tmp_path: Path) -> None:
    torch.save({"params_ema": two_layers().state_dict()}, tmp_path / "x2.pth")

    found = Answered("KeyError: 'model.0.weight'", tmp_path / "x2.pth")

    two_layers().load_state_dict(found.loaded())


# --- states, devices and paths --------------------------------------------------------


def test_a_folder_that_holds_a_model_twice(tmp_path: Path) -> None:
    folder = tmp_path / "voxtral"
    folder.mkdir()
    save_file({"model.norm.weight": torch.ones(2)}, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["X"], "model_type": "voxtral"})
    )
    text = (
        "ValueError: There is no module or parameter named 'mm_whisper_embeddings' in "
        "LlamaForCausalLM"
    )

    assert "twice" not in Answered(text, folder).said
    save_file(
        {"mm_whisper_embeddings.tok.weight": torch.ones(2)},
        folder / "consolidated.safetensors",
    )
    found = Answered(text, folder)

    assert "The folder holds the model twice: consolidated.safetensors" in found.said
    assert "Is it the file that was loaded" not in found.said


def test_a_key_below_a_prefix_has_a_command(tmp_path: Path) -> None:
    state = {
        f"model.diffusion_model.{name}.weight": torch.ones(2)
        for name in ("img_in", "final_layer")
    }
    save_file(state, tmp_path / "flux.safetensors")

    found = Answered("KeyError: 'img_in.weight'", tmp_path / "flux.safetensors")

    assert "at another place" in found.said and "no optimizer" not in found.said
    assert set(load_file(found.run("ckpt rename"))) == {
        "img_in.weight",
        "final_layer.weight",
    }


def test_a_key_that_lies_twice_has_no_command(tmp_path: Path) -> None:
    torch.save(
        {"a.w.weight": torch.ones(2), "b.w.weight": torch.ones(2)}, tmp_path / "m.pth"
    )

    assert not any(
        row.startswith("ckpt rename")
        for row in Answered("KeyError: 'w.weight'", tmp_path / "m.pth").commands
    )


def test_the_optimizer_of_deepspeed_is_named(tmp_path: Path) -> None:
    zero = {
        "loss_scaler": None,
        "base_optimizer_state": {"state": {}, "param_groups": []},
        "zero_stage": 2,
    }
    torch.save(
        {"model": two_layers().state_dict(), "optimizer": zero}, tmp_path / "last.pth"
    )

    found = Answered("KeyError: 'param_groups'", tmp_path / "last.pth")

    assert "optimizer is the state of an optimizer of DeepSpeed ZeRO" in found.said
    two_layers().load_state_dict(found.loaded())


def test_an_attribute_that_is_a_key(tmp_path: Path) -> None:
    torch.save(
        {"model": {"a": torch.ones(1)}, "generator": {"b": torch.ones(1)}},
        tmp_path / "m.pt",
    )

    found = Answered(
        "AttributeError: 'dict' object has no attribute 'generator'", tmp_path / "m.pt"
    )
    other = Answered(
        "AttributeError: 'dict' object has no attribute 'stride'", tmp_path / "m.pt"
    )

    assert 'Ask for it as ["generator"]' in found.said and found.code == 0
    assert "a dict has no stride" in other.said and other.code == 0
    assert "attributes" not in other.said


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32])
def test_float64_is_found_for_a_device_without_it(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.save(
        {"w": torch.ones(2), "betas": torch.ones(2, dtype=dtype)}, tmp_path / "m.ckpt"
    )
    text = (
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework "
        "doesn't support float64. Please use float32 instead."
    )

    found = Answered(text, tmp_path / "m.ckpt")

    assert found.kind == "float64" and ("betas" in found.said) is (
        dtype is not torch.float32
    )
    if dtype is torch.float64:
        cast = torch.load(found.run("ckpt convert"), weights_only=True)
        assert {value.dtype for value in cast.values()} == {torch.float32}
    elif dtype is torch.complex128:
        assert not any("convert" in command for command in found.commands)


def test_the_state_of_a_generator_is_described(tmp_path: Path) -> None:
    text = "TypeError: RNG state must be a torch.ByteTensor"
    for name, value, said in (
        (
            "torch_rng_state",
            torch.get_rng_state(),
            "uint8, on the CPU. map_location has moved it",
        ),
        ("torch_rng_state", torch.ones(4), "is float32, and a generator takes uint8"),
        (
            "weight",
            torch.ones(4),
            "No tensor of this file has the name of a state of random numbers",
        ),
    ):
        torch.save({"model": two_layers().state_dict(), name: value}, tmp_path / "m.pt")

        assert said in Answered(text, tmp_path / "m.pt").said


def test_an_empty_scaler_is_named(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    text = raised(
        lambda: torch.amp.GradScaler("cpu").load_state_dict(scaler.state_dict())
    )
    torch.save(
        {"G": two_layers().state_dict(), "G_scaler": scaler.state_dict()},
        tmp_path / "a.pt",
    )
    torch.save(
        {"G": two_layers().state_dict(), "G_scaler": {"scale": 2.0}}, tmp_path / "b.pt"
    )

    assert "G_scaler is empty" in Answered(text, tmp_path / "a.pt").said
    assert "G_scaler is not empty" in Answered(text, tmp_path / "b.pt").said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./pretrained//best_04|18-23:10:14.pt", "no | and no :"),
        ("C:\\\\runs\\\\e1?.pt", "no ?"),
        ("D:\\\\Data\\x08est.pt", "(\\b)"),
        ("runs\\train\\\\last.pt", "(\\t)"),
    ],
)
def test_a_name_that_windows_refuses(name: str, said: str, tmp_path: Path) -> None:
    torch.save(two_layers().state_dict(), tmp_path / "m.pt")

    found = Answered(
        f"OSError: [Errno 22] Invalid argument: '{name}'", tmp_path / "m.pt"
    )

    assert (
        found.kind == "file-name" and said in found.said and "damaged" not in found.said
    )


@pytest.mark.parametrize("name", ["C:\\\\runs\\\\last.pt", "./runs/last.pt"])
def test_a_name_that_windows_takes_is_none_of_these(name: str) -> None:
    found = find_message(f"OSError: [Errno 22] Invalid argument: '{name}'")

    assert found is None or found.kind != "file-name"


def test_arguments_of_megatron_are_compared(tmp_path: Path) -> None:
    part = tmp_path / "gpt" / "iter_0000010" / "mp_rank_00"
    part.mkdir(parents=True)
    state = {
        "args": argparse.Namespace(tensor_model_parallel_size=1, num_layers=2),
        "checkpoint_version": 3.0,
        "iteration": 10,
        "model": {"language_model": {"encoder": {"layers.0.weight": torch.ones(2, 2)}}},
    }
    torch.save(state, part / "model_optim_rng.pt")
    (tmp_path / "gpt" / "latest_checkpointed_iteration.txt").write_text("10")
    text = (
        "AssertionError: {} value from checkpoint ({}) is not equal to the input "
        "argument value ({})."
    )

    found = Answered(text.format("tensor_model_parallel_size", 1, 2), tmp_path / "gpt")
    layers = Answered(text.format("num_layers", 2, 4), tmp_path / "gpt")
    other = Answered(text.format("num_layers", 8, 4), tmp_path / "gpt")

    assert (
        "--tensor-model-parallel-size 1" in found.said
        and "--target-tensor-parallel-size 2" in found.said
    )
    assert found.kind == "world" and "weights_only" not in found.said
    assert "give --num-layers 2" in layers.said and "convert" not in layers.said
    assert "has num_layers = 2, not 8. Is it the one" in other.said


def test_a_state_dict_that_lacks_the_prefix_of_its_class(tmp_path: Path) -> None:
    folder = tmp_path / "bloom"
    folder.mkdir()
    names = ("h.0.attention.weight", "word_embeddings.weight", "lm_head.weight")
    torch.save({name: torch.ones(2, 2) for name in names}, folder / "pytorch_model.bin")
    config = {"architectures": ["BloomForCausalLM"], "model_type": "bloom"}
    (folder / "config.json").write_text(json.dumps(config))
    text = (
        "ValueError: The state dictionary of the model you are trying to load is "
        "corrupted. Are you sure it was properly saved?"
    )

    found = Answered(text, folder)

    assert "The file is whole" in found.said and "the head is lm_head" in found.said
    named_so = torch.load(found.run("ckpt rename"), weights_only=True)
    assert set(named_so) == {
        "transformer.h.0.attention.weight",
        "transformer.word_embeddings.weight",
        "lm_head.weight",
    }


def test_a_shape_of_a_server_without_a_name_looks_for_codes(tmp_path: Path) -> None:
    state = {
        "layers.0.q.weight": torch.zeros(8, 1, dtype=torch.uint8),
        "layers.0.q.weight.absmax": torch.ones(1),
    }
    state["layers.0.q.weight.quant_map"] = torch.ones(16)
    state["layers.0.q.weight.quant_state.bitsandbytes__nf4"] = torch.zeros(
        80, dtype=torch.uint8
    )
    save_file(state, tmp_path / "a.safetensors")
    save_file({"layers.0.q.weight": torch.ones(2, 2)}, tmp_path / "b.safetensors")
    text = (
        "ERROR 06-09 19:41:51 [core.py:500]     assert param_data.shape == "
        "loaded_weight.shape\nERROR 06-09 19:41:51 [core.py:500] AssertionError"
    )

    assert "itsandbytes 4-bit" in Answered(text, tmp_path / "a.safetensors").said
    assert "itsandbytes" not in Answered(text, tmp_path / "b.safetensors").said


def test_a_value_head_that_is_not_there(tmp_path: Path) -> None:
    text = "Provided path (./checkpoint-1000) does not contain valuehead weights."
    save_file(
        {"v_head.summary.weight": torch.ones(1, 2)}, tmp_path / "value_head.safetensors"
    )

    found = Answered(text, adapter(tmp_path / "lora"))
    other = Answered(text, tmp_path / "value_head.safetensors")

    assert found.kind == "valuehead" and "an adapter of LoRA alone" in found.said
    assert "holds a value head: v_head.summary.weight" in other.said


def test_zero_to_fp32_has_nothing_to_put_together(tmp_path: Path) -> None:
    part = tmp_path / "checkpoint-60" / "global_step60"
    part.mkdir(parents=True)
    (part.parent / "latest").write_text("global_step60")
    state = {
        "module": two_layers().state_dict(),
        "buffer_names": [],
        "param_shapes": None,
        "ds_version": "0.15",
    }
    torch.save(
        {**state, "dp_world_size": 1, "mp_world_size": 1},
        part / "mp_rank_00_model_states.pt",
    )
    text = (
        'File "/x/zero_to_fp32.py", line 171, in parse_model_states\n    for s in '
        "param_shapes:\nTypeError: 'NoneType' object is not iterable"
    )

    found = Answered(text, part.parent)

    assert found.kind == "zero" and "the weights lie whole" in found.said
    two_layers().load_state_dict(load_file(found.run("ckpt convert")))


def test_a_file_by_another_name_is_passed_itself(tmp_path: Path) -> None:
    folder = tmp_path / "text_encoder"
    folder.mkdir()
    save_file({"weight": torch.ones(2)}, folder / "model.fp16.safetensors")
    text = (
        "ValueError: text_encoder is not a folder containing a `.index.json` file or a "
        "pytorch_model.bin or a model.safetensors file"
    )

    found = Answered(text, folder)

    assert found.kind == "no-file" and 'variant="fp16"' in found.said and found.loaded()


def test_a_path_that_libtorch_does_not_find(tmp_path: Path) -> None:
    torch.save(two_layers().state_dict(), tmp_path / "m.pt")
    text = (
        "what():  open file failed, file path: ./m.pt (FileAdapter at "
        "/pytorch/caffe2/serialize/file_adapter.cc:11)"
    )

    found = Answered(text, tmp_path / "m.pt")

    assert (
        found.kind == "path"
        and "no file at ./m.pt. It is looked for below the folder" in found.said
    )


def test_the_repository_of_stylegan_is_named(tmp_path: Path) -> None:
    (tmp_path / "n.pkl").write_bytes(
        b"cdnnlib.tflib.network\nNetwork\n)\x81}(X\x01\x00\x00\x00aK\x01ub."
    )

    found = Answered(
        "ModuleNotFoundError: No module named 'dnnlib'", tmp_path / "n.pkl"
    )

    assert "StyleGAN for TensorFlow" in found.said and "legacy.py" in found.said


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_file_without_its_buffers_keeps_the_key_of_its_weights(
    key: str, tmp_path: Path
) -> None:
    model = named(embeddings=nn.Linear(2, 2), h=nn.Linear(2, 2))
    state = {
        "embeddings.position_ids": torch.arange(16).expand(1, -1).clone(),
        **model.state_dict(),
    }
    torch.save({key: state, "epoch": 3}, tmp_path / "sd.ckpt")

    found = Answered(raised(lambda: model.load_state_dict(state)), tmp_path / "sd.ckpt")

    assert (
        "computed when the model is built" in found.said
        and f"below {key} as before" in found.said
    )
    model.load_state_dict(torch.load(found.run("ckpt slim"), weights_only=True)[key])


def test_what_decides_stands_before_lists_of_names(tmp_path: Path) -> None:
    basic = {
        f"layer1.{n}.conv{m}.weight": torch.ones(4, 4, 3, 3)
        for n in range(4)
        for m in (1, 2)
    }
    deep = {
        f"layer1.{n}.conv{m}.weight": torch.ones(4, 4, 1, 1)
        for n in range(4)
        for m in (1, 2, 3)
    }

    found = refused(deep, module_of(basic), tmp_path / "resnet50.pth")

    assert found.said.count("These are two ResNets") == 1
    assert found.page.index("These are two ResNets") < found.page.index(
        "layer1.0.conv3.weight"
    )


@pytest.mark.parametrize(
    "text",
    [
        "tarfile.ReadError: not a gzip file",
        "gzip.BadGzipFile: Not a gzipped file (b'PK')",
    ],
)
def test_a_reader_of_gzip_has_another_format(text: str, tmp_path: Path) -> None:
    torch.save({"state_dict": two_layers().state_dict()}, tmp_path / "model.nemo")

    found = Answered(text, tmp_path / "model.nemo")

    assert (
        "A reader of another format gives this message too. This one is PyTorch zip"
        in found.said
    )
    two_layers().load_state_dict(found.loaded())


def test_a_tied_head_is_no_new_one(tmp_path: Path) -> None:
    weights = {
        "model.embed_tokens.weight": torch.ones(8, 4),
        "model.norm.weight": torch.ones(4),
    }
    torch.save(weights, tmp_path / "a.pt")
    answer = Answered(
        'Missing key(s) in state_dict: "lm_head.weight".', tmp_path / "a.pt"
    )
    assert (
        "the same tensor as model.embed_tokens.weight" in answer.said
        and "random" not in answer.said
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "is_tied"),
    [
        ("cls.predictions.decoder.weight", True),
        ("lm_head.decoder.weight", True),
        ("output.weight", True),
        ("blocks.0.attn.out.weight", False),
        ("vae.decoder.weight", False),
        ("my_lm_head.weight", False),
    ],
)
def test_only_an_output_layer_is_tied(
    missing: str, is_tied: bool, tmp_path: Path
) -> None:
    words = "bert.embeddings.word_embeddings.weight"
    torch.save(
        {words: torch.ones(8, 4), "norm.weight": torch.ones(4)}, tmp_path / "a.pt"
    )
    answer = Answered(f'Missing key(s) in state_dict: "{missing}".', tmp_path / "a.pt")
    assert (f"the same tensor as {words}" in answer.said) == is_tied
    assert answer.names == [missing]


def test_a_cut_embedding_is_no_tied_one(tmp_path: Path) -> None:
    torch.save(
        {"pos_emb.weight": torch.ones(8, 4), "norm.weight": torch.ones(4)},
        tmp_path / "a.pt",
    )
    answer = Answered(
        'Missing key(s) in state_dict: "lm_head.weight".', tmp_path / "a.pt"
    )
    assert "the same tensor" not in answer.said and answer.names == ["lm_head.weight"]


def test_a_plain_pickle_is_no_broken_copy(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(
        pickle.dumps({"net": {"fc.weight": torch.ones(3)}, "epoch": 1})
    )
    for text in (
        "RuntimeError: Invalid magic number; corrupt file?",
        "_pickle.UnpicklingError: Weights only load failed. Unsupported operand 149",
    ):
        answer = Answered(text, tmp_path / "a.pkl")
        assert (
            "torch.load reads no plain pickle" in answer.said
            and "another one" not in answer.said
        ), text


def test_an_unknown_error_is_told_of_devices(tmp_path: Path) -> None:
    answer = Answered(
        "RuntimeError: Invalid device string: 'cuda1'", SAMPLES / "legacy.pth"
    )
    assert "cuda:0" in answer.said and "finds nothing" not in answer.said

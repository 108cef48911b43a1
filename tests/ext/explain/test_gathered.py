"""Situations that threads of trackers tell, with the file rebuilt: quantized, GGUF,
agents, optimizers, folders.
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from argparse import Namespace
from pathlib import Path

import ggufs
import oracle
import pytest
import torch
from answered import Answered
from process import ckpt
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]

# --- quantized weights ----------------------------------------------------------------

_LAYER = "model.layers.0.mlp.down_proj"


def fp8(path: Path) -> torch.Tensor:
    """Write a layer of FP8 with a scale for each block, and return the floats that it
    stands for.
    """
    codes = (torch.randn(256, 128) * 8).to(torch.float8_e4m3fn)
    scale = torch.tensor([[0.5], [2.0]])
    tensors = {f"{_LAYER}.weight": codes, f"{_LAYER}.weight_scale_inv": scale}
    save_file({**tensors, "model.norm.weight": torch.ones(128)}, path)
    return codes.float() * scale.repeat_interleave(128, 0)


def test_a_converter_to_gguf_gets_floats(tmp_path: Path) -> None:
    floats = fp8(tmp_path / "model.safetensors")
    text = f"ValueError: Can not map tensor '{_LAYER}.weight_scale_inv'"
    found = Answered(text, tmp_path / "model.safetensors")
    written = load_file(found.run("ckpt convert"))
    assert torch.equal(written[f"{_LAYER}.weight"].float(), floats.bfloat16().float())
    assert f"{_LAYER}.weight_scale_inv" not in written


def test_a_folder_is_written_with_a_config_that_names_no_quantizer(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    fp8(folder / "model.safetensors")
    config = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(config))
    text = f"ValueError: Can not map tensor '{_LAYER}.weight_scale_inv'"
    written = Answered(text, folder).run("ckpt convert")
    assert "quantization_config" not in json.loads(
        (written / "config.json").read_text()
    )
    assert (written / "model.safetensors").is_file()


_EIGHT_BITS = (
    "RuntimeError: Loading a quantized checkpoint into non-quantized Linear8bitLt is "
    "not supported. Please call module.cuda() before module.load_state_dict()"
)


def test_codes_that_a_layer_is_not_ready_for(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    codes = torch.randint(-127, 127, (16, 16), dtype=torch.int8)
    scale = torch.rand(16) + 1
    tensors = {f"{name}.weight": codes, f"{name}.SCB": scale}
    kind = {f"{name}.weight_format": torch.tensor(0, dtype=torch.uint8)}
    save_file({**tensors, **kind}, tmp_path / "model.safetensors")
    found = Answered(_EIGHT_BITS, tmp_path / "model.safetensors")
    assert (
        found.kind == "quantized"
        and "model.cuda() before load_state_dict" in found.said
    )
    written = load_file(found.run("ckpt convert"))
    assert torch.allclose(
        written[f"{name}.weight"].float(), codes * scale[:, None] / 127, rtol=1e-2
    )
    again = Answered(
        (
            "ValueError: Blockwise 4bit quantization only supports 16/32-bit floats, "
            "but got torch.uint8"
        ),
        tmp_path / "model.safetensors",
    )
    assert (
        "cannot quantize them again" in again.said and "model.cuda()" not in again.said
    )
    unknown = Answered(
        "RuntimeError: something of mine failed", tmp_path / "model.safetensors"
    )
    assert "finds nothing" not in unknown.said and unknown.code == 2


def test_plain_weights_are_no_codes(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(4, 4)}, tmp_path / "m.safetensors")
    found = Answered(_EIGHT_BITS, tmp_path / "m.safetensors")
    assert found.said.startswith("No weight of this file is quantized")
    assert found.loaded().keys() == {"a.weight"}


# --- GGUF -----------------------------------------------------------------------------


def gguf(path: Path, shapes: dict[str, tuple[int, ...]], **numbers: int) -> Path:
    """Write a GGUF of zeros in torch's shapes, with numbers of a llama in its
    metadata.
    """
    pairs: list[tuple[str, str, object]] = [("general.architecture", "str", "llama")]
    pairs += [
        (f"llama.{key.replace('__', '.')}", "u32", value)
        for key, value in numbers.items()
    ]
    tensors = [
        ggufs.Tensor(name, shape[::-1], ggufs.F32, bytes(4 * torch.Size(shape).numel()))
        for name, shape in shapes.items()
    ]
    path.write_bytes(ggufs.gguf(pairs, tensors))
    return path


_BEGIN = "llama_model_load: error loading model: "
_SIZES = {
    "embedding_length": 16,
    "feed_forward_length": 32,
    "attention__head_count": 4,
    "attention__head_count_kv": 2,
    "block_count": 1,
}


@pytest.mark.parametrize(
    ("name", "shape", "expected", "key"),
    [
        ("ffn_gate", (48, 16), "16, 32", "llama.feed_forward_length = 32"),
        ("ffn_down", (16, 48), "32, 16", "llama.feed_forward_length = 32"),
        ("attn_k", (16, 16), "16, 8", "llama.attention.head_count_kv = 2"),
        ("attn_q", (8, 16), "16, 16", "llama.attention.head_count = 4"),
    ],
)
def test_metadata_that_contradict_a_tensor(
    name: str, shape: tuple[int, int], expected: str, key: str, tmp_path: Path
) -> None:
    full = f"blk.0.{name}.weight"
    path = gguf(tmp_path / "m.gguf", {full: shape}, **_SIZES)
    got = ", ".join(map(str, (*shape[::-1], 1, 1)))
    found = Answered(
        (
            f"{_BEGIN}check_tensor_dims: tensor '{full}' has wrong shape; expected "
            f"{expected}, got {got}"
        ),
        path,
    )
    assert found.kind == "gguf" and found.code == 0
    assert f"{full} is {list(shape)} in this file" in found.said
    assert key in found.said and "they contradict each other" in found.said


def test_a_file_that_agrees_with_itself_has_an_old_reader(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", {"blk.0.attn_k.weight": (8, 16)}, **_SIZES)
    wrong = (
        "create_tensor: tensor 'blk.0.attn_k.weight' has wrong shape; expected 16, 16, "
        "got {}, 1, 1"
    )
    found = Answered(_BEGIN + wrong.format("16, 8"), path)
    assert (
        "the file agrees with itself" in found.said
        and "older than the file" in found.said
    )
    assert "contradict" not in found.said
    other = Answered(_BEGIN + wrong.format("16, 64"), path)
    assert "neither size of the message" in other.said


def test_sizes_that_no_metadata_give(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", {"blk.0.ssm_in.weight": (8, 16)}, **_SIZES)
    found = Answered(
        (
            f"{_BEGIN}tensor 'blk.0.ssm_in.weight' has wrong shape; expected 16, 9, "
            "got 16, 8, 1, 1"
        ),
        path,
    )
    assert (
        "with the config of its weights" in found.said
        and "The metadata give" not in found.said
    )


def test_tensors_that_a_model_has_no_place_for(tmp_path: Path) -> None:
    names = [
        "token_embd",
        "v.blk.0.attn_q",
        *(f"blk.{number}.attn_q" for number in range(3)),
    ]
    path = gguf(
        tmp_path / "m.gguf", {f"{name}.weight": (4, 4) for name in names}, block_count=2
    )
    text = _BEGIN + "done_getting_tensors: wrong number of tensors; expected {}, got 3"
    found = Answered(text.format(5), path)
    assert "This file has 5 tensors, as its header says. It is whole." in found.said
    assert "has no place for the other 2" in found.said
    assert (
        "block_count is 2 in the metadata, and the tensors are of 3 blocks"
        in found.said
    )
    assert "1 tensor below v. (the vision tower)" in found.said
    assert "another file was loaded" in Answered(text.format(292), path).said


def test_a_tensor_that_a_file_lacks(tmp_path: Path) -> None:
    shapes = {
        "token_embd.weight": (4, 4),
        "blk.0.attn_q.weight": (4, 4),
        "blk.0.attn_k.weight": (4, 4),
    }
    path = gguf(tmp_path / "m.gguf", shapes, block_count=1)
    old = Answered(
        f"{_BEGIN}create_tensor: tensor 'blk.0.attn_qkv.weight' not found", path
    )
    assert "blk.0 has attn_k.weight, attn_q.weight" in old.said
    tied = Answered(f"{_BEGIN}missing tensor 'output.weight'", path)
    assert "tied embeddings" in tied.said
    here = Answered(f"{_BEGIN}missing tensor 'blk.0.attn_q.weight'", path)
    assert "This file has the tensor blk.0.attn_q.weight" in here.said
    unknown = Answered(f"{_BEGIN}unknown model architecture: 'llama'", path)
    assert "the program does not know it" in unknown.said
    other = Answered(f"{_BEGIN}unknown model architecture: 'gemma4'", path)
    assert "another file was loaded" in other.said


def test_weights_of_torch_are_no_gguf(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pth")
    found = Answered(f"{_BEGIN}missing tensor 'output.weight'", tmp_path / "m.pth")
    assert "and no GGUF" in found.said and found.loaded().keys() == {"w"}


# --- agents ---------------------------------------------------------------------------


def agent(path: Path, module: str, name: str) -> Path:
    """Write an archive of Stable-Baselines3 whose JSON holds a pickle that names a
    class.
    """
    value = base64.b64encode(f"\x80\x02c{module}\n{name}\n.".encode("latin1")).decode()
    data = {"policy_class": {":type:": "x", ":serialized:": value}, "num_timesteps": 3}
    weights = io.BytesIO()
    torch.save({"actor.mu.weight": torch.ones(2, 2)}, weights)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", weights.getvalue())
        archive.writestr("_stable_baselines3_version", "1.1.0a6")
    return path


def test_a_name_inside_of_an_archive_is_named(tmp_path: Path) -> None:
    module = "stable_baselines3.common.type_aliases"
    path = agent(tmp_path / "sac.zip", module, "TrainFreq")
    found = Answered(
        (
            f"AttributeError: Can't get attribute 'TrainFreq' on <module '{module}' "
            "from 'x'>"
        ),
        path,
    )
    assert "does not name" not in found.said
    assert f"they name {module}.TrainFreq" in found.said
    assert (
        "_stable_baselines3_version = 1.1.0a6. Install the version of stable_baselines3"
        in found.said
    )
    assert "or a newer one." in found.said and "custom_objects" in found.said
    assert torch.load(found.run("ckpt slim")).keys() == {"actor.mu.weight"}


def test_the_version_of_one_package_is_not_that_of_another(tmp_path: Path) -> None:
    path = agent(tmp_path / "sac.zip", "cloudpickle.cloudpickle", "_make_function")
    text = (
        "AttributeError: Can't get attribute '_make_function' on <module "
        "'cloudpickle.cloudpickle' from 'x'>"
    )
    found = Answered(text, path)
    assert "The file does not say which version of cloudpickle" in found.said
    assert "Install the version of cloudpickle" not in found.said


# --- optimizers and schedulers --------------------------------------------------------

_TWO_DEVICES = (
    '  File "C:\\venv\\prodigyplus\\core_optimiser.py", line 570, in step\n'
    "RuntimeError: Expected all tensors to be on the same device, but found at least "
    "two devices, cuda:0 and cpu!"
)


def test_tensors_in_groups_are_moved_by_the_line(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    plain = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(plain, tmp_path / "plain.pt")
    without = Answered(_TWO_DEVICES, tmp_path / "plain.pt")
    assert (
        "hold tensors" not in without.said
        and "load_state_dict moves it" in without.said
    )
    optimizer.param_groups[0]["d"] = torch.tensor(1e-6)
    torch.save({**plain, "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    found = Answered(_TWO_DEVICES, tmp_path / "state.pt")
    assert "The groups of optimizer hold tensors: d." in found.said
    assert "lint" not in found.page and "load its state then" not in found.page
    moved = nn.Linear(2, 2).to("meta")
    built = torch.optim.Adam(moved.parameters())
    built.load_state_dict(torch.load(tmp_path / "state.pt")["optimizer"])
    assert built.param_groups[0]["d"].device.type == "cpu"
    exec(found.commands[0], {"optimizer": built, "torch": torch})
    assert built.param_groups[0]["d"].device.type == "meta"


def test_a_flat_parameter_whose_parts_have_no_state(tmp_path: Path) -> None:
    names = ["visual.norm.weight", "visual.qkv.weight", "mlp.weight"]
    state = {"mlp.weight": {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)}}
    group = {"lr": 0.1, "betas": (0.9, 0.99), "params": names}
    torch.save({"state": state, "param_groups": [group]}, tmp_path / "optim.pt")
    text = (
        "RuntimeError: The state of _OptimStateKey(unflat_param_names={}, "
        "is_fsdp_managed=True) is empty."
        " This should happen when use_orig_params=True."
    )
    found = Answered(text.format(tuple(names[:2])), tmp_path / "optim.pt")
    assert (
        found.names == names[:2] and "no state for 2 of its 3 parameters" in found.said
    )
    assert "use_orig_params=True" in found.said
    other = Answered(text.format(("mlp.weight",)), tmp_path / "optim.pt")
    assert (
        "another file was loaded" in other.said
        and "never had a gradient" not in other.said
    )


@pytest.mark.parametrize("unused", [False, True])
def test_a_key_that_some_states_lack(unused: bool, tmp_path: Path) -> None:
    """A parameter without a gradient has no moments, so code that reads them of each
    stops with this very file.
    """
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3)])
    optimizer = torch.optim.Adam(model.parameters())
    last = model[0] if unused else model[1]
    (model[0].weight.sum() + model[0].bias.sum() + last.weight.sum()).backward()
    if not unused:
        model[1].bias.grad = torch.ones(3)
    optimizer.step()
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(whole, tmp_path / "run.pth")

    said = Answered("KeyError: 'exp_avg'", tmp_path / "run.pth").said

    if unused:
        assert "2 of its 4 parameters have exp_avg. The other 2 never had a" in said
    else:
        assert said.endswith("has exp_avg: another file was loaded.")


def test_a_schedule_that_is_over(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    saved = {"scheduler": scheduler.state_dict()}
    torch.save(saved, tmp_path / "done.pth")
    longer = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=60)
    longer.load_state_dict(torch.load(tmp_path / "done.pth")["scheduler"])
    with pytest.raises(ValueError, match="Tried to step") as caught:
        for _ in range(3):
            longer.step()
    found = Answered(f"ValueError: {caught.value}", tmp_path / "done.pth")
    assert "a OneCycleLR of 6 steps, of which all are done" in found.said
    assert "build a new schedule" in found.said
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pth")
    bare = Answered(f"ValueError: {caught.value}", tmp_path / "weights.pth")
    assert bare.said.startswith("No state of a OneCycleLR is in this file")


def test_states_of_random_numbers_of_another_size(tmp_path: Path) -> None:
    states = {
        "rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.zeros(816, dtype=torch.uint8),
    }
    torch.save(states, tmp_path / "ck.pt")
    found = Answered("RuntimeError: RNG state is wrong size", tmp_path / "ck.pt")
    assert "rng_state has 5,056 bytes, as the CPU has it" in found.said
    assert "cuda_rng_state has 816 bytes, of a GPU in torch 1" in found.said


# --- files and folders ----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: read(): fd 78 failed with Input/output error",
        "OSError: [Errno 121] Remote I/O error",
        "OSError: [WinError 59] An unexpected network error occurred",
    ],
)
def test_a_drive_that_gave_no_bytes(text: str, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pth.tar")
    found = Answered(text, tmp_path / "m.pth.tar")
    assert found.kind == "mount" and "it is whole" in found.said and found.code == 0


def test_a_tensor_of_another_file_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mistral"
    folder.mkdir()
    save_file(
        {"model.layers.0.self_attn.k_proj.weight": torch.ones(2, 2)},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    wanted = "layers.0.attention.wk.weight"
    text = f"KeyError: '{wanted}'"
    alone = Answered(text, folder)
    assert "No key and no tensor of this file is called" in alone.said
    save_file({wanted: torch.ones(2, 2)}, folder / "consolidated.safetensors")
    found = Answered(text, folder)
    assert (
        f"{wanted} is a tensor of consolidated.safetensors, which lies in this folder"
        in found.said
    )
    assert (
        "(model.safetensors)" in found.said and "No key and no tensor" not in found.said
    )
    (folder / "consolidated.safetensors").rename(folder / "old.safetensors")
    other = Answered(text, folder)
    assert (
        "move old.safetensors out of the folder" in other.said
        and "vLLM" not in other.said
    )


def test_a_training_checkpoint_in_the_place_of_a_voice(tmp_path: Path) -> None:
    saved = {
        "model": {"dec.weight": torch.ones(2, 2)},
        "iteration": 9,
        "optimizer": None,
        "learning_rate": 0.1,
    }
    torch.save(saved, tmp_path / "G_9.pth")
    found = Answered("KeyError: 'config'", tmp_path / "G_9.pth")
    assert (
        "learning_rate, and none is config" in found.said
        and "exported from it" in found.said
    )


# --- keys -----------------------------------------------------------------------------


def test_tables_that_a_model_makes(tmp_path: Path) -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(2, 2)
            self.register_buffer("pe", torch.ones(3))

    model = Embedded()
    state = model.state_dict()
    del state["pe"]
    torch.save(state, tmp_path / "m.pth")
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(state)
    found = Answered(f"RuntimeError: {caught.value}", tmp_path / "m.pth")
    assert "tables that the model makes" not in found.said
    assert "by its name a table that the model makes" in found.said and found.names == [
        "pe"
    ]
    (line,) = found.commands
    path = str(tmp_path / "m.pth")
    exec(line.replace("m.pth", path), {"model": model, "torch": torch})


def test_a_part_that_an_export_left_out(tmp_path: Path) -> None:
    state = {"dec.conv.weight": torch.ones(2, 2), "enc_p.proj.weight": torch.ones(2, 2)}
    torch.save({"weight": state, "info": "8epoch"}, tmp_path / "voice.pth")
    lost = ["enc_q.pre.weight", "enc_q.pre.bias"]
    found = Answered(
        f"_IncompatibleKeys(missing_keys={lost}, unexpected_keys=[])",
        tmp_path / "voice.pth",
    )
    assert (
        "No tensor of this file is of enc_q: the whole part is not in it. It has "
        "dec, enc_p."
    ) in found.said
    assert "all 2 tensors of the file have their place" in found.said
    inside = Answered(
        "_IncompatibleKeys(missing_keys=['dec.other.weight'], unexpected_keys=[])",
        tmp_path / "voice.pth",
    )
    assert "the whole part" not in inside.said


def test_another_architecture_is_named(tmp_path: Path) -> None:
    args = Namespace(arch="wav2vec2", task="audio_pretraining")
    model = {
        "mask_emb": torch.ones(2),
        "encoder.layers.0.k_proj.weight": torch.ones(2, 2),
    }
    saved = {"args": args, "model": model, "optimizer_history": [{}], "extra_state": {}}
    torch.save(saved, tmp_path / "small.pt")
    text = (
        "RuntimeError: Error(s) in loading state_dict for Wav2VecModel:\n"
        '\tMissing key(s) in state_dict: "feature_aggregator.conv_layers.0.1.weight".\n'
        '\tUnexpected key(s) in state_dict: "mask_emb", '
        '"encoder.layers.0.k_proj.weight".'
    )
    found = Answered(text, tmp_path / "small.pt")
    assert (
        "a checkpoint of fairseq (task audio_pretraining, model wav2vec2)" in found.said
    )


def test_layers_of_an_adapter_that_another_model_lacks(tmp_path: Path) -> None:
    layer = "lora_unet_down_blocks_0_attentions_0_proj_in"
    tensors = {
        f"{layer}.lora_down.weight": torch.ones(4, 8),
        f"{layer}.lora_up.weight": torch.ones(8, 4),
    }
    save_file(
        tensors, tmp_path / "style.safetensors", {"ss_base_model_version": "sd_v1"}
    )
    text = "\n".join(f"lora key not loaded: {name}" for name in tensors)
    found = Answered(text, tmp_path / "style.safetensors")
    assert found.said.startswith(
        "Each name of the message is one of this file (all of them)."
    )
    assert "ss_base_model_version = sd_v1" in found.said
    assert "of other names finds no layer" not in found.page
    other = Answered(
        "lora key not loaded: transformer.blocks.0.lora_A.weight",
        tmp_path / "style.safetensors",
    )
    assert "ss_base_model_version" not in other.said and "names of kohya" in other.said


# --- memory, types, pipelines ---------------------------------------------------------


def test_a_load_that_the_memory_does_not_hold(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    path = tmp_path / "run.pth"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    text = (
        "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate "
        "{} bytes."
    )
    found = Answered(text.format(64 * 64 * 4), path)
    assert found.kind == "cpu-memory" and "are those of model.weight" in found.said
    assert (
        "are the state of an optimizer" in found.said
        and found.run("ckpt slim").is_file()
    )
    assert "mmap=True" in found.commands[-1] and found.loaded().keys() == {
        "weight",
        "bias",
    }
    other = Answered(text.format(12), path)
    assert "No tensor of this file has 12 bytes" in other.said
    mapped = (
        f"RuntimeError: unable to mmap {path.stat().st_size} bytes from file "
        "<run.pth>: Cannot allocate memory (12)"
    )
    refused = Answered(mapped, path)
    assert "The system refused to map the file" in refused.said
    assert not any("mmap=True" in command for command in refused.commands)
    windows = Answered(
        (
            "OSError: The paging file is too small for this operation to complete. (os "
            "error 1455)"
        ),
        path,
    )
    assert (
        "make the paging file larger" in windows.said and "ulimit" not in windows.said
    )


def test_a_size_of_another_file_is_not_this_one(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pth")
    text = (
        "RuntimeError: unable to mmap 16060617592 bytes from file <m.pth>: Cannot "
        "allocate memory (12)"
    )
    assert Answered(text, tmp_path / "m.pth").said.endswith("another file was loaded.")


def test_gradients_of_an_adapter_in_float16(tmp_path: Path) -> None:
    layer = "unet.down_blocks.0.to_k"
    tensors = {f"{layer}.lora_{part}.weight": torch.ones(2, 2).half() for part in "AB"}
    save_file(tensors, tmp_path / "lora.safetensors")
    text = "ValueError: Attempting to unscale FP16 gradients."
    found = Answered(text, tmp_path / "lora.safetensors")
    assert "2 tensors of this file are float16" in found.said
    written = load_file(found.run("ckpt convert"))
    assert {tensor.dtype for tensor in written.values()} == {torch.float32}
    save_file({"w": torch.ones(2)}, tmp_path / "full.safetensors")
    whole = Answered(text, tmp_path / "full.safetensors")
    assert "No weight of this file is float16" in whole.said and not whole.commands


_NO_PART = (
    "!!! Exception during processing !!! ERROR: {} is invalid: None\n\n"
    "If the {} is from a checkpoint loader node your checkpoint does not contain a "
    "valid {}."
)


def test_a_part_of_a_pipeline_that_is_elsewhere(tmp_path: Path) -> None:
    save_file(
        {"double_blocks.0.img_attn.qkv.weight": torch.ones(2, 2)},
        tmp_path / "flux.safetensors",
    )
    text = _NO_PART.format("clip input", "clip", "clip or text encoder model")
    found = Answered(text, tmp_path / "flux.safetensors")
    assert found.kind == "pipeline" and "holds a diffusion model alone" in found.said
    assert (
        "A text encoder comes from a file of its own, by the node Load CLIP"
        in found.said
    )
    names = (
        "model.diffusion_model.input_blocks.0.weight",
        "cond_stage_model.transformer.weight",
    )
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "sd.safetensors")
    vae = Answered(_NO_PART.format("VAE", "VAE", "VAE"), tmp_path / "sd.safetensors")
    assert "no name of a VAE: load a VAE from a file of its own" in vae.said
    clip = Answered(text, tmp_path / "sd.safetensors")
    assert "This file holds a text encoder: another file was loaded" in clip.said


# --- other forms of the same model ----------------------------------------------------

_BRANCHES = ("rbr_dense.conv.weight", "rbr_dense.bn.weight", "rbr_1x1.conv.weight")


@pytest.mark.parametrize("is_trained", [False, True])
def test_blocks_of_branches_and_of_one_layer(is_trained: bool, tmp_path: Path) -> None:
    branches = [f"stage0.{name}" for name in _BRANCHES]
    fused = ["stage0.rbr_reparam.weight", "stage0.rbr_reparam.bias"]
    here, lost = (branches, fused) if is_trained else (fused, branches)
    torch.save(
        {name: torch.ones(2, 2) for name in [*here, "linear.weight"]},
        tmp_path / "m.pth",
    )
    listed = [", ".join(f'"{name}"' for name in names) for names in (lost, here)]
    text = (
        "RuntimeError: Error(s) in loading state_dict for RepVGG:\n"
        f"\tMissing key(s) in state_dict: {listed[0]}.\n\tUnexpected key(s) in "
        f"state_dict: {listed[1]}."
    )
    found = Answered(text, tmp_path / "m.pth")
    assert ("The model was built for inference" in found.said) is is_trained
    assert ("This file was converted for inference" in found.said) is not is_trained


def test_layers_of_a_loss_are_no_weights(tmp_path: Path) -> None:
    state = {f"model.{number}.weight": torch.ones(2, 2) for number in range(6)}
    torch.save(
        {"state_dict": {**state, "criterion.dice.class_weight": torch.ones(2)}},
        tmp_path / "best.ckpt",
    )
    text = (
        "RuntimeError('Error(s) in loading state_dict for Lit:\\n\\tUnexpected key(s) "
        "in state_dict:"
        ' "criterion.dice.class_weight". \')'
    )
    found = Answered(text, tmp_path / "best.ckpt")
    assert (
        found.names == ["criterion.dice.class_weight"]
        and "belong to the loss" in found.said
    )


def test_a_row_of_a_table_with_braces(tmp_path: Path) -> None:
    state = {
        f"transformer.h.{number}.attn.gating_factor": torch.ones(2)
        for number in range(2)
    }
    torch.save({"model": state}, tmp_path / "lit.pth")
    found = Answered(
        "KeyError: 'transformer.h.{}.attn.gating_factor'", tmp_path / "lit.pth"
    )
    assert (
        "stands for 2 tensors of this file" in found.said
        and "none is" not in found.said
    )
    other = Answered("KeyError: 'transformer.h.{}.attn.nothing'", tmp_path / "lit.pth")
    assert "stands for" not in other.said


def test_names_of_meta_for_torchtune(tmp_path: Path) -> None:
    torch.save(
        {
            f"layers.{number}.attention.wq.weight": torch.ones(2, 2)
            for number in range(4)
        },
        tmp_path / "m.pt",
    )
    text = (
        "Exception: Error converting the state dict. Found unexpected key: "
        '"layers.0.attention.wq.weight".'
        " Please make sure you're loading a checkpoint with the right format."
    )
    found = Answered(text, tmp_path / "m.pt")
    assert "a Llama in the names of Meta. torchtune has a checkpointer" in found.said


def test_headers_are_heads(tmp_path: Path) -> None:
    state = {
        "base.weight": torch.ones(8, 8),
        "middle.weight": torch.ones(8, 8),
        "last.weight": torch.ones(8, 8),
    }
    state = {"classification_headers.0.weight": torch.ones(30, 8), **state}
    torch.save(state, tmp_path / "ssd.pth")
    text = (
        "RuntimeError: Error(s) in loading state_dict for SSD:\n\tsize mismatch for "
        "classification_headers.0.weight: copying a param with shape torch.Size([30, "
        "8]) from checkpoint, the shape in current model is torch.Size([24, 8])."
    )
    assert "another number of classes" in Answered(text, tmp_path / "ssd.pth").said


def _differing(rows: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> str:
    """The words of torch for tensors whose shapes differ."""
    texts = [
        f"\n\tsize mismatch for {name}: copying a param with shape "
        f"torch.Size({list(one)}) from checkpoint, the shape in current model is "
        f"torch.Size({list(two)})."
        for name, (one, two) in rows.items()
    ]
    return "RuntimeError: Error(s) in loading state_dict for Net:" + "".join(texts)


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (
            (64, 2, 3, 3),
            (64, 64, 3, 3),
            "in 32 times as many groups in the checkpoint as in the model",
        ),
        (
            (64, 64, 3, 3),
            (64, 16, 3, 3),
            "in 4 times as many groups in the model as in the checkpoint",
        ),
        ((16, 1, 3, 3), (16, 16, 3, 3), "depthwise in the checkpoint"),
        ((16, 16, 3), (16, 1, 3), "depthwise in the model"),
    ],
)
def test_convolutions_in_other_groups(
    here: tuple[int, ...], there: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    names = [
        f"blocks.{layer}.weight" for layer in ("0.mix", "0.last", "1.mix", "1.last")
    ]
    torch.save(
        {f"module.{name}": torch.ones(here) for name in names}, tmp_path / "m.pth"
    )
    found = Answered(
        _differing(dict.fromkeys(names, (here, there))), tmp_path / "m.pth"
    )
    assert said in found.said and "tensor parallelism" not in found.said
    assert not any("load_into" in command for command in found.commands)


def test_pictures_of_other_channels_are_no_groups(tmp_path: Path) -> None:
    shapes = {
        f"{stem}.weight": ((96, 3, 4, 4), (96, 1, 4, 4)) for stem in ("left", "right")
    }
    torch.save(
        {name: torch.ones(one) for name, (one, _) in shapes.items()}, tmp_path / "m.pth"
    )
    assert "groups" not in Answered(_differing(shapes), tmp_path / "m.pth").said


@pytest.mark.parametrize("has_pooling", [False, True])
def test_numbers_that_a_layer_without_weights_shifts(
    has_pooling: bool, tmp_path: Path
) -> None:
    def built(*, pooling: bool) -> nn.Module:
        layers = [nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)]
        return nn.ModuleDict(
            {
                "downsample": nn.Sequential(
                    *([nn.AvgPool2d(2)] if pooling else []), *layers
                )
            }
        )

    saved, model = built(pooling=has_pooling), built(pooling=not has_pooling)
    torch.save(saved.state_dict(), tmp_path / "m.pth")
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(saved.state_dict())
    found = Answered(f"RuntimeError: {caught.value}", tmp_path / "m.pth")
    assert (
        "Below downsample each layer has the number of the other side's plus 1"
        in found.said
    )
    side = "checkpoint" if has_pooling else "model"
    assert f"the {side} has a layer without weights before them" in found.said
    assert not any("load_into" in command for command in found.commands)


def test_groups_of_a_resnet_by_names_without_a_wrapper(tmp_path: Path) -> None:
    blocks = {
        f"layer1.{number}.conv2.weight": ((64, 2, 3, 3), (64, 64, 3, 3))
        for number in range(3)
    }
    state = {
        f"module.layer1.{number}.conv1.weight": torch.ones(64, 64, 1, 1)
        for number in range(3)
    }
    state.update(
        (f"module.{name}", torch.ones(one)) for name, (one, _) in blocks.items()
    )
    torch.save(state, tmp_path / "m.pth")
    found = Answered(_differing(blocks), tmp_path / "m.pth")
    assert (
        "are in 32 groups, a ResNeXt, in the checkpoint, and in 1 group, a ResNet, "
        "in the model"
    ) in found.said


def test_a_path_of_the_machine_that_trained(tmp_path: Path) -> None:
    path = "/data/cache/torch/transformers/0c370616.309f0c29"
    torch.save(
        {"state_dict": {"w": torch.ones(2)}, "tokenizer": {"vocab_file": path}},
        tmp_path / "m.pt",
    )
    found = Answered(
        f'OSError: Not found: "{path}": No such file or directory Error #2',
        tmp_path / "m.pt",
    )
    assert "This path stands in this file at tokenizer.vocab_file" in found.said


def test_a_module_that_became_a_package(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(
        b"\x80\x02cflair.embeddings.token\nFlairEmbeddings\n."
    )
    text = (
        "ModuleNotFoundError: No module named 'flair.embeddings.token'; "
        "'flair.embeddings' is not a package"
    )
    found = Answered(text, tmp_path / "m.pkl")
    assert "flair.embeddings is installed, as one module" in found.said
    assert (
        "another version of flair wrote the file" in found.said
        and "PYTHONPATH" not in found.said
    )


def test_embeddings_of_textual_inversion(tmp_path: Path) -> None:
    save_file(
        {"clip_g": torch.ones(2, 1280), "clip_l": torch.ones(2, 768)},
        tmp_path / "neg.safetensors",
    )
    text = (
        "ValueError: Loaded state dictionary is incorrect: {'clip_g': tensor([[0.1]])}."
    )
    found = Answered(text, tmp_path / "neg.safetensors")
    assert found.kind == "embedding" and "It is for SDXL" in found.said
    assert found.loaded().keys() == {"clip_g", "clip_l"}
    torch.save({"<cat>": torch.ones(768)}, tmp_path / "learned_embeds.bin")
    notice = (
        "Notice: learned_embeds.bin was trained on a model with an incompatible token "
        "dimension: 768 vs 1."
    )
    single = Answered(notice, tmp_path / "learned_embeds.bin")
    assert (
        "768 is the width of Stable Diffusion 1" in single.said
        and "[1, 768]" in single.said
    )
    save_file(
        {"text_model.embeddings.position_embedding.weight": torch.ones(2, 2)},
        tmp_path / "m.safetensors",
    )
    other = Answered(text, tmp_path / "m.safetensors")
    assert (
        other.said.startswith("This file has 1 tensor, and an embedding")
        and "It is for" not in other.said
    )


def test_a_name_below_another_first_word(tmp_path: Path) -> None:
    names = ("patch_embed.proj.weight", "layers1.0.norm1.weight")
    state = {f"swinViT.{name}": torch.ones(2, 2) for name in names}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "m.pt")
    found = Answered("KeyError: 'module.patch_embed.proj.weight'", tmp_path / "m.pt")
    assert (
        "This file has it as swinViT.patch_embed.proj.weight, below swinViT. in "
        "the place of module."
    ) in found.said
    assert "another architecture" not in found.said
    written = torch.load(found.run("ckpt rename"))
    assert written["state_dict"].keys() == {f"module.{name}" for name in names}
    other = Answered("KeyError: 'module.head.last.weight'", tmp_path / "m.pt")
    assert "This file has it as" not in other.said


def test_kernels_of_another_size(tmp_path: Path) -> None:
    shapes = {
        f"stage{number}.proj.weight": ((4, 4, 3, 3), (4, 4, 1, 1))
        for number in range(2)
    }
    torch.save(
        {name: torch.ones(one) for name, (one, _) in shapes.items()}, tmp_path / "m.pth"
    )
    found = Answered(_differing(shapes), tmp_path / "m.pth")
    assert (
        "2 convolutions have a kernel of 3 x 3 in the checkpoint and of 1 x 1 in "
        "the model"
    ) in found.said
    flat = dict.fromkeys(shapes, ((4, 4, 1, 1), (4, 4, 1)))
    torch.save({name: torch.ones(4, 4, 1, 1) for name in flat}, tmp_path / "flat.pth")
    assert "kernel of" not in Answered(_differing(flat), tmp_path / "flat.pth").said


def test_one_line_beside_a_file_is_a_question(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pth")
    found = Answered("Notice: it was made by another program.", tmp_path / "m.pth")
    assert found.code == 2 and found.loaded().keys() == {"w"}
    log = "step 1 of 3\nstep 2 of 3\nstep 3 of 3\n"
    done = ckpt("explain", "-", "m.pth", cwd=tmp_path, input=log.encode())
    assert (done.code, done.out) == (0, b"no error in this text\n")


@pytest.mark.parametrize("words", ["torch", "transformers"])
@pytest.mark.parametrize("lacks", ["lm_head.weight", "score.weight"])
def test_keys_without_a_place_are_said_beside_what_is_missing(
    lacks: str, words: str, tmp_path: Path
) -> None:
    """A Qwen2 that is loaded as a Llama loses its biases, whatever the head is."""
    names = [f"model.layers.0.self_attn.{side}_proj.bias" for side in "qk"]
    state = {"model.embed_tokens.weight": torch.ones(8, 4)}
    for name in names:
        state[name] = torch.ones(4)
        state[name.replace("bias", "weight")] = torch.ones(4, 4)
    torch.save(state, tmp_path / "m.pt")
    listed = ", ".join(f'"{name}"' for name in names)
    message = (
        "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tMissing "
        f'key(s) in state_dict: "{lacks}".\n\tUnexpected key(s) in state_dict: {listed}.'
    )
    if words == "transformers":
        message = (
            "Some weights of the model checkpoint at m were not used when initializing "
            f"LlamaForCausalLM: {names}\nSome weights of LlamaForCausalLM were not "
            f"initialized from the model checkpoint at m and are newly initialized: "
            f"['{lacks}']"
        )
    found = Answered(message, tmp_path / "m.pt")
    assert "The model has no place for 2 keys of this file." in found.said
    assert set(names) <= set(found.names)

"""Situations of later threads: a message, the file, and the answer that helps.

Where a command or a line of Python is printed, its result is loaded.
"""

from __future__ import annotations

import json
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered
from process import ckpt
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def keys_text(
    missing: list[str],
    unexpected: list[str],
    sizes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
) -> str:
    """The error of `load_state_dict`, with shapes of the file and of the model."""
    text = "RuntimeError: Error(s) in loading state_dict for Net:"
    for head, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            listed = ", ".join(f'"{name}"' for name in names)
            text += f"\n\t{head} key(s) in state_dict: {listed}. "
    for name, (here, there) in (sizes or {}).items():
        text += (
            f"\n\tsize mismatch for {name}: copying a param with shape torch.Size("
            f"{list(here)}) from checkpoint, the shape in current model is torch.Size("
            f"{list(there)})."
        )
    return text


def weights(*names: str, shape: tuple[int, ...] = (2, 2)) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape) for name in names}


# --- a dict in the place of a model ---------------------------------------------------


@pytest.mark.parametrize("name", ["load_state_dict", "training", "zero_grad"])
def test_a_state_dict_has_nothing_of_a_module(name: str, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "last.pt")

    found = Answered(
        f"AttributeError: 'collections.OrderedDict' object has no attribute '{name}'",
        tmp_path / "last.pt",
    )

    assert "the weights by their names, and no module" in found.said
    assert found.code == 0
    (line,) = found.commands
    exec(
        line.replace('"last.pt"', repr(str(tmp_path / "last.pt"))),
        {
            "model": nn.Linear(3, 2),
            "torch": torch,
        },
    )


def test_a_module_lies_under_a_key_of_the_dict(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "model": nn.Linear(3, 2)}, tmp_path / "best.pt")

    found = Answered(
        "AttributeError: 'dict' object has no attribute 'load_state_dict'",
        tmp_path / "best.pt",
    )

    assert "the pickled module is in model" in found.said
    assert 'torch.load(…)["model"]' in found.said


def test_a_dict_is_no_object_of_a_library(tmp_path: Path) -> None:
    torch.save(
        {"model": weights("0.weight"), "opt": {"hypers": []}}, tmp_path / "a.pth"
    )

    found = Answered(
        "AttributeError: 'dict' object has no attribute 'dls'", tmp_path / "a.pth"
    )

    assert "a dict, of model and opt, and a dict has no dls" in found.said
    assert found.code == 0


# --- words that an error and a file both have -----------------------------------------


def test_a_path_of_an_error_without_a_page_stands_in_the_file(tmp_path: Path) -> None:
    path = "/data/tokenizers/spe_1024/tokenizer.model"
    torch.save(
        {
            "state_dict": weights("encoder.weight"),
            "hyper_parameters": {"cfg": {"tokenizer": {"model_path": path}}},
        },
        tmp_path / "a.ckpt",
    )

    found = Answered(
        f"ValueError: src value I got was: {path}. Absolute: {path}",
        tmp_path / "a.ckpt",
    )

    assert (
        "This path stands in this file at hyper_parameters.cfg.tokenizer.model_path"
        in found.said
    )
    assert found.code == 0


def test_a_tensor_that_an_error_names_is_shown(tmp_path: Path) -> None:
    torch.save(weights("encoder.layers.0.weight", "head.weight"), tmp_path / "a.pth")

    found = Answered(
        "AssertionError: bad values in encoder.layers.0.weight", tmp_path / "a.pth"
    )

    assert "The file has encoder.layers.0.weight ([2, 2], float32)." in found.said
    assert found.code == 2, "that the file has it explains nothing"


def test_names_that_an_error_misses_are_looked_for(tmp_path: Path) -> None:
    torch.save({"model": weights("0.weight"), "args": {"lr": 1}}, tmp_path / "a.pth")
    text = "ValueError: Required keys are (`image_proj` and `{}`) missing"

    neither = Answered(text.format("ip_adapter"), tmp_path / "a.pth")
    one = Answered(text.format("args"), tmp_path / "a.pth")

    assert "has one of the names image_proj, ip_adapter" in neither.said
    assert neither.code == 0
    assert "misses a name that this file has: args." in one.said
    assert one.code == 2


# --- names ----------------------------------------------------------------------------


def test_a_part_of_a_file_is_renamed_and_said_to_be_a_part(tmp_path: Path) -> None:
    part = nn.ModuleDict({"lstm": nn.LSTM(3, 2)})
    whole = {f"encoder.{name}": value for name, value in part.state_dict().items()}
    whole |= weights("classifier.0.weight", "classifier.0.bias")
    torch.save(whole, tmp_path / "a.pth")

    found = Answered(
        keys_text(list(part.state_dict()), list(whole)), tmp_path / "a.pth"
    )

    assert "They are a part of this file. The command keeps its other 2 keys" in (
        found.said
    )
    result = torch.load(found.run("ckpt rename"), weights_only=True)
    left = part.load_state_dict(result, strict=False)
    assert not left.missing_keys
    assert left.unexpected_keys == ["classifier.0.weight", "classifier.0.bias"]


def test_a_terminal_that_breaks_words_loses_no_name(tmp_path: Path) -> None:
    part = nn.ModuleDict({"lstm": nn.LSTM(3, 2)})
    whole = {f"encoder.{name}": value for name, value in part.state_dict().items()}
    torch.save(whole, tmp_path / "a.pth")
    text = keys_text(list(part.state_dict()), list(whole))
    broken = "\n".join(
        line[start : start + 61]
        for line in text.splitlines()
        for start in range(0, len(line), 61)
    )

    assert "state_dict for Net" not in broken or broken != text
    assert Answered(broken, tmp_path / "a.pth").said == (
        Answered(text, tmp_path / "a.pth").said
    )


def test_lines_that_are_broken_at_words_stay_apart(tmp_path: Path) -> None:
    torch.save(weights("a.weight"), tmp_path / "a.pth")
    lines = ["x" * 50 + " shape", "y" * 56, "z" * 50, "w" * 45, "in the model"]

    done = ckpt("explain", "-", "a.pth", cwd=tmp_path, input="\n".join(lines).encode())

    assert b"x" * 50 + b" shapey" not in done.out


def test_layers_under_other_numbers_are_of_another_version(tmp_path: Path) -> None:
    here = weights("_pi.0.0.weight", "_pi.0.3.weight", "_pi.1.weight")
    torch.save(here, tmp_path / "a.pth")

    found = Answered(
        keys_text(
            ["_pi.0.weight", "_pi.0.ln.weight", "_pi.2.weight"],
            ["_pi.0.0.weight", "_pi.0.3.weight"],
            {"_pi.1.weight": ((2, 2), (5, 5))},
        ),
        tmp_path / "a.pth",
    )

    assert "layers by number in the same modules (_pi)" in found.said
    assert "outputs" not in found.said, "no last layer, for the numbers moved"


def test_two_classes_have_no_module_in_common(tmp_path: Path) -> None:
    here = [f"encoder.encoders.{i}.weight" for i in range(4)]
    torch.save(weights(*here), tmp_path / "a.pth")

    found = Answered(
        keys_text([f"enc.enc.{i}.birnn.weight" for i in range(4)], here),
        tmp_path / "a.pth",
    )

    assert "begin with encoder, those of the model with enc." in found.said


def test_whole_modules_without_a_place_are_options_of_the_run(tmp_path: Path) -> None:
    own = ["_curiosity.net.0.weight", "_curiosity.net.1.weight"]
    torch.save(weights("q_net.0.weight", *own), tmp_path / "a.pth")

    found = Answered(keys_text([], own), tmp_path / "a.pth")

    assert "They are a whole module of the program that saved (_curiosity)" in (
        found.said
    )


def test_names_of_another_library_are_said(tmp_path: Path) -> None:
    torch.save(
        {"model": weights("a2c_network.mu.weight"), "epoch": 3}, tmp_path / "a.pth"
    )

    found = Answered(
        keys_text(["net.0.weight"], ["model", "epoch"]), tmp_path / "a.pth"
    )

    assert "Its names begin with a2c_network" in found.said


def test_a_size_that_differs_alone_is_said_and_no_kernel(tmp_path: Path) -> None:
    name = "blocks.0.sort_net.linear"
    torch.save({name: torch.ones(1, 4, 16, 33)}, tmp_path / "a.pth")

    found = Answered(
        keys_text([], [], {name: ((1, 4, 16, 33), (1, 4, 16, 34))}), tmp_path / "a.pth"
    )

    assert "One size alone differs: 33 in the checkpoint and 34" in found.said
    assert "convolution" not in found.said


def test_an_embedding_of_an_adapter_is_in_its_file(tmp_path: Path) -> None:
    name = "base_model.model.embed_tokens.lora_embedding_A"
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file({name: torch.ones(4, 35)}, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))

    found = Answered(keys_text([], [], {f"{name}.default": ((4, 35), (4, 32))}), folder)

    assert "not in this file" not in found.said
    assert "not there" not in found.page


# --- keys that are no weights ---------------------------------------------------------


def test_ranges_of_quantizers_are_no_weights(tmp_path: Path) -> None:
    ranges = ["0.conv._input_quantizer._amax", "0.conv._weight_quantizer._amax"]
    torch.save(weights("0.conv.weight", *ranges), tmp_path / "a.pth")

    saved = Answered(keys_text([], ranges), tmp_path / "a.pth")
    asked = Answered(
        keys_text(["1.act._input_quantizer._amax"], []), tmp_path / "a.pth"
    )

    assert "2 keys of this file are ranges that quantizers of NVIDIA" in saved.said
    assert "strict=False leaves the ranges out" in saved.said
    assert "the file has no ranges for them" in asked.said


def test_statistics_of_data_are_not_passed_over(tmp_path: Path) -> None:
    torch.save(weights("model.action_in_proj.weight"), tmp_path / "a.pth")

    found = Answered(
        "Missing key(s) when loading model: ['normalize_inputs.buffer_state.mean', "
        "'normalize_inputs.buffer_state.std']",
        tmp_path / "a.pth",
    )

    assert "do not pass over them" in found.said
    assert "strict=False" not in found.said


def test_tied_and_quantized_names_that_a_server_misses(tmp_path: Path) -> None:
    save_file(weights("shared.weight"), tmp_path / "t5.safetensors")
    save_file(weights("h.0.attn.weight"), tmp_path / "plain.safetensors")
    text = "RuntimeError: weight {} does not exist"

    tied = Answered(
        text.format("encoder.embed_tokens.weight"), tmp_path / "t5.safetensors"
    )
    plain = Answered(text.format("h.0.attn.qweight"), tmp_path / "plain.safetensors")

    assert "is the same tensor as shared.weight" in tied.said
    assert "this file has the plain one, h.0.attn.weight" in plain.said


def test_a_file_of_stable_diffusion_without_its_vae(tmp_path: Path) -> None:
    save_file(
        weights("model.diffusion_model.out.2.weight", "cond_stage_model.a.weight"),
        tmp_path / "a.safetensors",
    )

    found = Answered("KeyError: 'encoder.conv_in.weight'", tmp_path / "a.safetensors")

    assert "encoder.conv_in.weight is of a VAE, and this file holds" in found.said
    assert "another architecture" not in found.said


def test_layers_of_mlx_that_were_not_fused(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.k_proj.linear.weight" for i in range(2)]
    save_file(weights(*names), tmp_path / "a.safetensors")

    found = Answered(
        f"ValueError: Received 2 parameters not in model: \n{names[0]},\n{names[1]}.",
        tmp_path / "a.safetensors",
    )

    assert "the adapter was not fused" in found.said
    assert set(load_file(found.run("ckpt rename"))) == {
        f"model.layers.{i}.k_proj.weight" for i in range(2)
    }


# --- counts of programs ---------------------------------------------------------------


def test_layers_of_another_shape_without_shapes(tmp_path: Path) -> None:
    torch.save(
        {"config": {"model_args": {"hidden": 24}}, "model": weights("enc.0.weight")},
        tmp_path / "a.pth",
    )
    text = (
        " > Partial model initialization...\n | > Layer dimention missmatch between "
        "model definition and checkpoint: enc.0.weight\n > Model restored\n"
    )

    found = Answered(text, tmp_path / "a.pth")

    assert "in the shape of the run that saved: enc.0.weight [2, 2]" in found.said
    assert "which this file has at config" in found.said


@pytest.mark.parametrize(
    ("taken", "left", "said"),
    [
        (0, 2, "took none of the 2 keys of this file"),
        (1, 1, "took 1 of the 2 keys of this file"),
        (0, 9, "counts 9 keys, and this file has 2: another file was loaded"),
    ],
)
def test_a_program_counts_the_keys_that_it_took(
    taken: int, left: int, said: str, tmp_path: Path
) -> None:
    torch.save(weights("stage1.0.weight", "stage2.0.weight"), tmp_path / "a.pth")

    found = Answered(
        f"Successful Load Key Num: {taken}\n\nFail To Load Key: [] ……\n"
        f"Fail To Load Key num: {left}\n",
        tmp_path / "a.pth",
    )

    assert said in found.said


# --- folders and files ----------------------------------------------------------------


def test_a_file_that_a_folder_of_several_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "XTTS-v2"
    folder.mkdir()
    for name in ("model.pth", "mel_stats.pth"):
        torch.save(weights("a.weight"), folder / name)

    found = Answered(
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'XTTS-v2/speakers_xtts.pth'",
        folder,
    )

    assert "speakers_xtts.pth is not in this folder, whose files are" in found.said


def rank_folder(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    torch.save({"model": weights("a.weight"), "iteration": 1}, folder / name)


def test_a_rank_that_is_not_here_and_one_with_another_name(tmp_path: Path) -> None:
    for count, name in ((1, "model_optim_rng.pt"), (2, "model_rng.pt")):
        for rank in range(count):
            rank_folder(tmp_path / str(count) / f"mp_rank_0{rank}", name)
    text = "FileNotFoundError: [Errno 2] No such file or directory: '/x/{}'"

    lost = Answered(text.format("1/mp_rank_01/model_optim_rng.pt"), tmp_path / "1")
    named = Answered(text.format("2/mp_rank_00/model_optim_rng.pt"), tmp_path / "2")

    assert "mp_rank_01 is not in 1, and mp_rank_00 is" in lost.said
    assert "writes model_rng.pt in its place" in named.said


def test_a_distributed_checkpoint_has_no_folders_of_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "iter_10"
    dcp.save(weights("a.weight"), checkpoint_id=folder, no_dist=True)
    torch.save({"iteration": 10}, folder / "common.pt")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')

    found = Answered(
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'ckpts/iter_10/mp_rank_00'",
        folder,
    )

    assert "has no folder of a rank such as mp_rank_00" in found.said


def test_each_node_must_see_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "epoch_0"
    folder.mkdir()
    torch.save(weights("a.weight"), folder / "pytorch_model_fsdp.bin")
    lost = "No such file or directory: '/mnt/epoch_0/pytorch_model_fsdp.bin'"

    ranks = Answered(f"in load_fsdp_model\n[rank9]: FileNotFoundError: {lost}", folder)
    alone = Answered(f"FileNotFoundError: {lost.replace('_fsdp', '')}", folder)

    assert "On several nodes each must see the folder" in ranks.said
    assert "nodes" not in alone.said


def test_the_state_of_an_optimizer_is_no_model(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "a.pth")

    found = Answered(
        keys_text(["weight", "bias"], ["state", "param_groups"]), tmp_path / "a.pth"
    )

    assert "it is the state of an optimizer" in found.said


def test_a_projector_is_no_adapter(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    torch.save(weights("model.mm_projector.0.weight"), folder / "mm_projector.bin")

    found = Answered("ValueError: Can't find 'adapter_config.json' at '/x/run'", folder)

    assert "a projector alone" in found.said and "whole model" not in found.said


def test_a_loader_that_knows_files_of_torch_alone(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    save_file(weights("a.weight"), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')

    found = Answered(
        "FileNotFoundError: No local weights found in /data/llama with extension .bin",
        folder,
    )

    assert "The loader looks for files of torch (.bin)" in found.said
    assert set(torch.load(found.run("ckpt convert"), weights_only=True)) == {"a.weight"}


def test_an_archive_of_nemo_without_compression(tmp_path: Path) -> None:
    data = BytesIO()
    torch.save(weights("encoder.weight"), data)
    with tarfile.open(tmp_path / "a.nemo", "w:") as archive:
        for name, content in (
            ("./model_config.yaml", b"name: x\n"),
            ("./model_weights.ckpt", data.getvalue()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, BytesIO(content))

    found = Answered("tarfile.ReadError: not a gzip file", tmp_path / "a.nemo")

    assert "a tar without compression" in found.said
    assert found.commands[0] == "gzip -c a.nemo > a.gz.nemo"


def test_a_cloud_of_points_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(
        b"ply\nformat binary_little_endian 1.0\n" + bytes(9)
    )

    found = Answered(
        "_pickle.UnpicklingError: invalid load key, 'p'.", tmp_path / "a.ply"
    )

    assert "a cloud of points (PLY)" in found.said


def test_a_record_that_an_archive_lacks(tmp_path: Path) -> None:
    torch.save(weights("a.weight", "b.weight"), tmp_path / "whole.pth")
    with (
        zipfile.ZipFile(tmp_path / "whole.pth") as whole,
        zipfile.ZipFile(tmp_path / "a.pth", "w") as archive,
    ):
        for info in whole.infolist():
            if not info.filename.endswith("data/1"):
                archive.writestr(info.filename, whole.read(info))

    found = Answered(
        "RuntimeError: [enforce fail at inline_container.cc:222] . file not found: "
        "archive/data/1",
        tmp_path / "a.pth",
    )

    assert "has no record whole/data/1" in found.said
    (command,) = [row for row in found.commands if row.startswith("ckpt salvage")]
    assert ckpt(*command.split()[1:], cwd=tmp_path).code == 1, "a tensor is lost"
    saved = torch.load(tmp_path / command.split()[-1], weights_only=True)
    assert set(saved) == {"a.weight"}


def test_a_model_of_fairseq_is_named_by_its_options(tmp_path: Path) -> None:
    torch.save(
        {
            "cfg": {
                "model": {"_name": "transformer_wmt_en_de_big"},
                "task": {"_name": "translation"},
            },
            "model": weights("encoder.layers.0.weight"),
            "task_state": {},
        },
        tmp_path / "a.pt",
    )

    found = Answered(
        "Exception: Cannot load model parameters from checkpoint a.pt; please ensure "
        "that the architectures match.",
        tmp_path / "a.pt",
    )

    assert "--arch transformer_wmt_en_de_big and --task translation" in found.said


def test_a_log_that_is_not_there_is_no_message(tmp_path: Path) -> None:
    torch.save(weights("a.weight"), tmp_path / "a.pth")

    lost = ckpt("explain", "train.log", "a.pth", cwd=tmp_path)
    file = ckpt("explain", "a.pth", cwd=tmp_path)

    assert lost.code == 2 and b"train.log: no such file" in lost.err
    assert b"ckpt inspect a.pth" in file.err and b"MESSAGE" not in file.err


def test_the_files_of_several_runs_are_counted(tmp_path: Path) -> None:
    shapes = {"w.weight": torch.Size([2, 2])}
    model = {
        "module": {"w.weight": torch.ones(2, 2).half()},
        "buffer_names": [],
        "param_shapes": [shapes],
        "optimizer": None,
        "ds_version": "0.5.10",
        "shared_params": {},
        "dp_world_size": 1,
    }
    folder = tmp_path / "global_step100"
    folder.mkdir()
    torch.save(model, folder / "mp_rank_00_model_states.pt")
    for rank in range(3):
        state = {
            "zero_stage": 2,
            "partition_count": 1,
            "base_optimizer_state": {
                "state": {0: {"step": 3, "exp_avg": torch.ones(4)}},
                "param_groups": [{"params": [0]}],
            },
            "single_partition_of_fp32_groups": [torch.ones(4)],
        }
        torch.save(
            {"optimizer_state_dict": state, "ds_version": "0.5.10"},
            folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )

    found = Answered(
        "ValueError: Expected 1 of '*_optim_states.pt' under './global_step100' but "
        "found 3 files. Possibly due to an overwrite of an old checkpoint",
        folder,
    )

    assert "each says 1 rank, as the first one does" in found.said
    assert "zero_to_fp32.py counts the files and refuses" in found.said
    assert load_file(found.run("ckpt convert"))["w.weight"].equal(torch.ones(2, 2))


# --- PyTorch Geometric, backbones, and parts of a folder ------------------------------


def test_attention_of_graphs_has_newer_names(tmp_path: Path) -> None:
    old = [f"gc{i}.{end}" for i in range(2) for end in ("att_l", "lin_l.weight")]
    new = [f"gc{i}.{end}" for i in range(2) for end in ("att_src", "lin_src.weight")]
    torch.save(weights(*old, "gc0.bias"), tmp_path / "a.pt")

    found = Answered(keys_text(new, old), tmp_path / "a.pt")

    result = torch.load(found.run("ckpt rename"), weights_only=True)
    assert set(result) == {*new, "gc0.bias"}


def test_a_weight_of_graphs_moves_and_turns(tmp_path: Path) -> None:
    torch.save(
        {"conv.weight": torch.ones(3, 2), "conv.bias": torch.ones(2)}, tmp_path / "a.pt"
    )
    model = nn.ModuleDict({"conv": nn.ModuleDict({"lin": nn.Linear(3, 2, bias=False)})})
    model["conv"].register_parameter("bias", nn.Parameter(torch.zeros(2)))

    found = Answered(keys_text(["conv.lin.weight"], ["conv.weight"]), tmp_path / "a.pt")

    (line,) = [row for row in found.commands if row.startswith("state = ")]
    exec(
        line.replace('"a.pt"', repr(str(tmp_path / "a.pt"))),
        {"torch": torch, "model": model},
    )
    assert model["conv"]["lin"].weight.equal(torch.ones(2, 3))


def test_attention_of_graphs_in_one_is_of_an_older_version(tmp_path: Path) -> None:
    torch.save(weights("gcn.weight", "gcn.att", "fc.weight"), tmp_path / "a.pt")

    found = Answered(
        keys_text(["gcn.att_l", "gcn.lin_l.weight"], ["gcn.weight", "gcn.att"]),
        tmp_path / "a.pt",
    )

    assert "this file is of the older one" in found.said


def test_a_backbone_of_a_classifier_has_no_norm_of_stages(tmp_path: Path) -> None:
    torch.save(weights("a.weight", "norm.weight", "b.attn_mask"), tmp_path / "a.pth")

    found = Answered(
        "unexpected key in source state_dict: norm.weight, b.attn_mask\n\nmissing "
        "keys in source state_dict: norm0.weight, norm1.weight\n",
        tmp_path / "a.pth",
    )

    assert "1 unexpected key is no weight (attn_mask)" in found.said
    assert "this file is of a classifier" in found.said


def test_a_whole_checkpoint_of_a_backbone_is_there_by_other_names(
    tmp_path: Path,
) -> None:
    names = [f"layers.{i}.attn.weight" for i in range(4)]
    torch.save({"model": weights(*names)}, tmp_path / "a.pth")

    found = Answered(
        "unexpected key in source state_dict: model\n\nmissing keys in source "
        f"state_dict: {', '.join('backbone.' + name for name in names)}\n",
        tmp_path / "a.pth",
    )

    assert "By other names 4 of them are there (* → backbone.*)" in found.said
    assert "another library" not in found.said


def test_a_part_of_a_folder_is_no_model(tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "2_Dense").mkdir()
    torch.save(weights("linear.weight"), folder / "2_Dense" / "pytorch_model.bin")
    (folder / "config.json").write_text('{"model_type": "distilbert"}')

    found = Answered(
        "OSError: Error no file named pytorch_model.bin, tf_model.h5 found in "
        "directory /x/tuned.",
        folder,
    )

    assert "None of the files that the loader names is in this folder itself" in (
        found.said
    )
    assert "2_Dense/pytorch_model.bin is of a part" in found.said
    assert "is here" not in found.said


def test_programs_of_openmmlab_ask_weights_for_their_classes(tmp_path: Path) -> None:
    torch.save(weights("block.0.weight", "norm.weight"), tmp_path / "a.pth")
    torch.save({"model": weights("block.0.weight")}, tmp_path / "b.pth")

    meta = Answered("KeyError: 'meta'", tmp_path / "a.pth")
    state = Answered(
        "RuntimeError: No state_dict found in checkpoint file b.pth", tmp_path / "b.pth"
    )

    assert "Weights without it are mostly those that a training begins with" in (
        meta.said
    )
    assert "The weights are in model." in state.said

"""Situations of people who train with PyTorch: runs that go on, optimizers, flat
parameters, and questions without an error.

Each says nothing that the file contradicts, and what it prints is run.
"""

from __future__ import annotations

import pickle
import random
import sys
import types
from pathlib import Path
from typing import Any

import deepspeeds
import numpy as np
import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered, raised, write_folder
from inside import folder_of
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


def network() -> nn.Sequential:
    """A convolution, a norm and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4)
    )


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make a step, so that the optimizer has a state."""
    model(torch.randn(2, 3, 3, 3)).sum().backward()
    optimizer.step()


def checkpoint(path: Path, optimizer: torch.optim.Optimizer, **more: Any) -> Path:
    """Save a checkpoint with the state of an optimizer."""
    torch.save({"epoch": 3, "optimizer": optimizer.state_dict(), **more}, path)
    return path


def weights(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Tensors of some shapes, with `__` for a dot in their names."""
    return {name.replace("__", "."): torch.ones(s) for name, s in shapes.items()}


def refused(file: dict[str, torch.Tensor], model: dict[str, torch.Tensor]) -> str:
    """The text of torch for a load of one state dict into the model of another one."""
    rows = []
    missing = [name for name in model if name not in file]
    unexpected = [name for name in file if name not in model]
    for head, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            listed = ", ".join(f'"{name}"' for name in names)
            rows.append(f"{head} key(s) in state_dict: {listed}. ")
    rows += [
        f"size mismatch for {name}: copying a param with shape {file[name].shape} from "
        f"checkpoint, the shape in current model is {model[name].shape}."
        for name in model
        if name in file and file[name].shape != model[name].shape
    ]
    text = "\n\t".join(["Error(s) in loading state_dict for Net:", *rows])
    return f"RuntimeError: {text}"


# --- learning rates -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "When I resumed the training, the learning rate has been reset",
        "resume loads the optimizer and ignores the lr of my config",
        "lr restarts from the initial learning rate after loading the checkpoint",
    ],
)
def test_a_question_about_a_learning_rate_gets_that_of_the_file(
    text: str, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    stepped(model, optimizer)
    scheduler.step()
    path = checkpoint(tmp_path / "a.pth.tar", optimizer, state_dict=model.state_dict())

    found = Answered(text, path)

    assert found.code == 0
    assert "optimizer has the learning rate 0.01 (initial_lr 0.1)" in found.said
    (line,) = [row for row in found.commands if row.startswith("optimizer.")]
    new = torch.optim.SGD(network().parameters(), lr=0.5, momentum=0.9)
    exec(line, {"optimizer": new, "checkpoint": torch.load(path)})
    assert new.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_file_without_an_optimizer_has_no_learning_rate(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "w.pth")
    found = Answered("the learning rate is reset when I resume", tmp_path / "w.pth")
    assert "holds no optimizer, so it has no learning rate" in found.said


def test_an_error_is_no_question_about_a_learning_rate(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "w.pth")
    found = Answered("OSError: cannot load lr of the checkpoint", tmp_path / "w.pth")
    assert "learning rate" not in found.said


# --- results that are worse after a load ----------------------------------------------


def test_worse_results_get_what_the_file_can_explain(tmp_path: Path) -> None:
    torch.save(nn.DataParallel(network()).state_dict(), tmp_path / "a.pth")
    found = Answered("accuracy drops to 0.1% after load_state_dict", tmp_path / "a.pth")
    assert found.code == 0 and "model.eval() after the load" in found.said
    assert "the running statistics of 1 norm (module.1)" in found.said
    assert "takes none of them" in found.said
    model = network()
    (line,) = [row for row in found.commands if row.startswith("import ckpt")]
    with folder_of(tmp_path):
        exec(line, {"model": model})
    kept = torch.load(tmp_path / "a.pth")["module.3.weight"]
    assert torch.equal(model[3].weight, kept)


def test_plain_names_are_no_wrapper_and_no_norm_has_no_statistics(
    tmp_path: Path,
) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "a.pth")
    found = Answered("the predictions differ after loading it", tmp_path / "a.pth")
    assert "no running statistics of norms" in found.said
    assert "prefix of a wrapper" not in found.said


@pytest.mark.parametrize("has_state", [True, False])
def test_a_loss_that_jumps_asks_for_the_optimizer(
    has_state: bool, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    parts = {"optimizer": optimizer.state_dict()} if has_state else {}
    torch.save({"model": model.state_dict(), **parts}, tmp_path / "a.pth")
    found = Answered("the loss jumps after I resume the training", tmp_path / "a.pth")
    assert ("has the state of an optimizer, in optimizer" in found.said) is has_state
    assert ("holds no optimizer" in found.said) is not has_state


def test_load_from_checkpoint_gives_a_new_model(tmp_path: Path) -> None:
    torch.save(
        {"state_dict": network().state_dict(), "pytorch-lightning_version": "1.9.0"},
        tmp_path / "last.ckpt",
    )
    found = Answered(
        "load_from_checkpoint: parameters are the same before and after loading",
        tmp_path / "last.ckpt",
    )
    assert "method of the class" in found.said and found.code == 0


# --- optimizers -----------------------------------------------------------------------


def test_an_empty_group_is_said(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model[0].parameters())
    optimizer.add_param_group({"params": filter(None, ())})
    stepped(model, optimizer)
    path = checkpoint(tmp_path / "a.pth", optimizer, model=model.state_dict())
    text = raised(
        lambda: torch.optim.Adam(
            [{"params": model[0].parameters()}, {"params": model[3].parameters()}]
        ).load_state_dict(torch.load(path)["optimizer"])
    )
    found = Answered(text, path)
    assert "2 groups of 2, 0 parameters" in found.said
    assert "Group 1, counted from 0, is empty" in found.said


class Buffered(torch.optim.SGD):
    """An optimizer with an option of its own in its groups."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.defaults["radam_buffer"] = [None] * 10
        for group in self.param_groups:
            group["radam_buffer"] = [None] * 10


def test_an_option_that_the_groups_of_a_file_lack(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stepped(model, optimizer)
    path = checkpoint(tmp_path / "a.ckpt", optimizer, state_dict=model.state_dict())

    found = Answered(
        '  File "optim.py", line 141, in step\n'
        '    buffered = group["radam_buffer"][int(state["step"] % 10)]\n'
        "KeyError: 'radam_buffer'",
        path,
    )

    assert "takes radam_buffer from the groups of its optimizer" in found.said
    assert "have none" in found.said and "momentum" in found.said
    new = Buffered(network().parameters())
    new.load_state_dict(torch.load(path)["optimizer"])
    assert "radam_buffer" not in new.param_groups[0]
    exec(found.commands[0], {"optimizer": new})
    assert new.param_groups[0]["radam_buffer"] == [None] * 10


def test_a_key_that_is_no_option_is_no_matter_of_groups(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = checkpoint(tmp_path / "a.ckpt", optimizer, state_dict=model.state_dict())
    found = Answered("x = checkpoint['radam_buffer']\nKeyError: 'radam_buffer'", path)
    assert "from the groups" not in found.said


def test_sizes_of_a_step_are_looked_up_in_the_states(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 48), nn.Linear(48, 24))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    path = checkpoint(tmp_path / "a.pth", optimizer, model=model.state_dict())
    text = (
        "    exp_avg.mul_(beta1)\nRuntimeError: The size of tensor a ({}) must match "
        "the size of tensor b ({}) at non-singleton dimension 0"
    )
    found = Answered(text.format(24, 7), path)
    assert "2 states of the optimizer in this file have a dimension of 24" in found.said
    assert "model.1.weight, model.1.bias" in found.said
    assert "dimension of 7" not in found.said
    found = Answered(text.format(5, 7), path)
    assert "No state of an optimizer in this file has a dimension of 5 or 7" in (
        found.said
    )
    assert "states fit the order" not in found.said


def test_states_without_a_model_fit_no_order(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 48), nn.Linear(48, 24))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optim.pt")
    found = Answered(
        "RuntimeError: The size of tensor a (48) must match the size of tensor b (24)",
        tmp_path / "optim.pt",
    )
    assert "have a dimension of 48" in found.said
    assert "fit the order of the model" not in found.said


def test_a_run_that_goes_on_with_tensors_on_two_devices(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    stepped(model, optimizer)
    path = checkpoint(tmp_path / "best.pt", optimizer, model=model.state_dict())
    error = (
        "RuntimeError: Expected all tensors to be on the same device, but found at "
        "least two devices, cuda:0 and cpu!"
    )
    found = Answered(f"When I resume, it appears\n{error}", path)
    assert "speaks of a run that goes on" in found.said
    assert "ckpt lint" not in " ".join(found.commands)
    assert "goes on" not in Answered(error, path).said


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1), "CyclicLR"),
        (
            lambda o: torch.optim.lr_scheduler.ChainedScheduler(
                [torch.optim.lr_scheduler.StepLR(o, 2)]
            ),
            "ChainedScheduler",
        ),
        (
            lambda o: torch.optim.lr_scheduler.SequentialLR(
                o,
                [
                    torch.optim.lr_scheduler.ConstantLR(o),
                    torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
                ],
                [3],
            ),
            "SequentialLR",
        ),
    ],
)
def test_a_scheduler_is_named_by_its_own_state(
    build: Any, name: str, tmp_path: Path
) -> None:
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1, momentum=0.9)
    torch.save({"scheduler": build(optimizer).state_dict()}, tmp_path / "s.pt")
    found = Answered("KeyError: 'lr_lambdas'", tmp_path / "s.pt")
    assert f"scheduler is the state of a {name} (" in found.said
    assert "LambdaLR or MultiplicativeLR asks for lr_lambdas" in found.said
    assert "StepLR" not in found.said


# --- parts of a checkpoint ------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "what"), [({}, "empty"), (None, "None"), ([], "empty")]
)
def test_a_part_that_the_program_takes_is_empty(
    value: Any, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "last.pth"
    model = network().state_dict()
    torch.save({"model_state_dict": model, "optimizer_state_dict": value}, path)
    frames = (
        "    optimizer.load_state_dict(checkpoint['optimizer_state_dict'])\n"
        '    saved_groups = deepcopy(state_dict["param_groups"])\n'
    )
    for error in (
        "KeyError: 'param_groups'",
        "AttributeError: 'NoneType' object has no attribute 'keys'",
    ):
        found = Answered(frames + error, path)
        assert f"optimizer_state_dict is {what} there" in found.said


def test_a_part_with_content_is_not_empty(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(network().parameters())
    path = checkpoint(tmp_path / "a.pth", optimizer, model=network().state_dict())
    found = Answered("torch.load(p)['optimizer']['x']\nKeyError: 'momentum'", path)
    assert "empty there" not in found.said


def test_a_scheduler_that_was_not_saved_begins_anew(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(network().parameters())
    path = checkpoint(tmp_path / "a.pth", optimizer, model=network().state_dict())
    found = Answered("KeyError: 'scheduler'", path)
    assert "none is scheduler. The run saved no such state" in found.said
    found = Answered("KeyError: 'best_acc'", path)
    assert "saved no such state" not in found.said


def test_weights_at_another_key_have_the_prefix_of_a_wrapper(tmp_path: Path) -> None:
    wrapped = nn.DataParallel(network()).state_dict()
    torch.save({"epoch": 1, "state_dict": wrapped}, tmp_path / "a.pth")
    found = Answered("KeyError: 'model'", tmp_path / "a.pth")
    assert "The weights are in state_dict. Their names begin with module." in found.said
    torch.save({"epoch": 1, "state_dict": network().state_dict()}, tmp_path / "b.pth")
    assert "prefix" not in Answered("KeyError: 'model'", tmp_path / "b.pth").said


def test_averages_stand_for_what_lacks(tmp_path: Path) -> None:
    torch.save({"g_ema": network().state_dict(), "lat": 1}, tmp_path / "a.pt")
    found = Answered("KeyError: 'g'", tmp_path / "a.pt")
    assert "g_ema has the running averages of g, by its name" in found.said


def test_weights_of_a_backbone_are_no_checkpoint_of_a_run(tmp_path: Path) -> None:
    shapes = weights(conv1__weight=(2, 2), layer1__0__weight=(2, 2), fc__bias=(2,))
    torch.save(shapes, tmp_path / "resnet.pth")
    found = Answered("KeyError: 'model'", tmp_path / "resnet.pth")
    assert "Its names begin with conv1, layer1, fc" in found.said
    assert torch.equal(found.loaded()["fc.bias"], torch.ones(2))


def test_the_step_of_accelerate_is_no_state_of_an_optimizer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "state", weights(a__weight=(2, 2)))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer)
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")
    states = {"random_state": random.getstate(), "seed": np.random.get_state()}
    (folder / "random_states_0.pkl").write_bytes(pickle.dumps(states))
    found = Answered(
        "    self.step = override_attributes[\"step\"]\nKeyError: 'step'", folder
    )
    assert "accelerate takes step from random_states_0.pkl" in found.said
    assert "another file was loaded" not in found.said


def test_the_hook_of_spectral_norm_asks_also_with_strict_off(tmp_path: Path) -> None:
    model = nn.Module()
    model.a = nn.utils.spectral_norm(nn.Conv2d(2, 4, 3))
    path = tmp_path / "sn.pth"
    torch.save(model.state_dict(), path)
    model.b = nn.utils.spectral_norm(nn.Conv2d(2, 4, 3))
    # Read what torch 1.1 says.
    found = Answered("KeyError: 'b.weight_orig'", path)
    assert "has no b.weight_orig: it has nothing of b" in found.said
    (line,) = [row for row in found.commands if row.startswith("model.")]
    with torch.no_grad():
        model.a.weight_orig.zero_()
    with folder_of(tmp_path):
        exec(line, {"model": model, "torch": torch})
    assert torch.equal(model.a.weight_orig, torch.load(path)["a.weight_orig"])


def test_averages_of_other_names_than_the_weights_are_said(tmp_path: Path) -> None:
    state = network().state_dict()
    torch.save(
        {
            "model": state,
            "ema": {"shadow_params": {f"net.{name}": v for name, v in state.items()}},
        },
        tmp_path / "a.pt",
    )
    found = Answered("AssertionError: EMA parameters do not match.", tmp_path / "a.pt")
    assert "9 names and the weights 9, of which 0 are the same" in found.said


# --- flat parameters ------------------------------------------------------------------


def test_flat_parameters_of_another_number_of_ranks(tmp_path: Path) -> None:
    file = weights(flat_param_0=(1000,), layers__0__flat_param_0=(500,))
    model = weights(flat_param_0=(4000,), layers__0__flat_param_0=(2000,))
    torch.save({"model": file, "shard_metadata": {}}, tmp_path / "shard8.pt")
    found = Answered(refused(file, model), tmp_path / "shard8.pt")
    assert "2 flat parameters of FSDP" in found.said
    assert "1/4 of the model's: 4 times as many ranks saved" in found.said
    assert "tensor parallelism" not in found.said
    torch.save({"model": model, "shard_metadata": {}}, tmp_path / "whole.pt")
    found = Answered(refused(model, file), tmp_path / "whole.pt")
    assert "4 times the model's: a run of 4 times as many ranks loads" in found.said


def test_the_state_of_a_flat_parameter(tmp_path: Path) -> None:
    name = "_forward_module._flat_param"
    moment = torch.zeros(5611)
    state = {"step": torch.tensor(1.0), "exp_avg": moment, "exp_avg_sq": moment}
    group = {"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}
    torch.save(
        {
            "state_dict": {name: torch.zeros(5611)},
            "optimizer_states": [{"state": {0: state}, "param_groups": [group]}],
        },
        tmp_path / "a.ckpt",
    )
    # The last of four parts is filled up by one element.
    found = Answered(
        "RuntimeError: The size of tensor a (5611) must match the size of tensor b "
        "(1403) at non-singleton dimension 0",
        tmp_path / "a.ckpt",
    )
    assert f"{name} is a flat parameter of FSDP" in found.said
    assert "a run of 4 times as many ranks" in found.said
    assert "another parameter" not in found.said


# --- shapes ---------------------------------------------------------------------------


def test_a_table_that_was_built_without_data(tmp_path: Path) -> None:
    name = "field.embedding_appearance.embedding.weight"
    file = {name: torch.ones(500, 32), "field.mlp.params": torch.ones(30)}
    torch.save({"pipeline": file}, tmp_path / "step.ckpt")
    found = Answered(
        refused(file, {**file, name: torch.ones(0, 32)}), tmp_path / "step.ckpt"
    )
    assert "The model has none: it was built without the data" in found.said
    found = Answered(
        refused(file, {**file, name: torch.ones(7, 32)}), tmp_path / "step.ckpt"
    )
    assert "The model has none" not in found.said


def test_tables_of_a_grid_are_no_outputs(tmp_path: Path) -> None:
    file = {f"embeddings.{i}.weight": torch.ones(n, 16) for i, n in enumerate((62, 90))}
    model = {name: torch.ones(len(v) + 1, 16) for name, v in file.items()}
    torch.save(file, tmp_path / "hash.tar")
    found = Answered(refused(file, model), tmp_path / "hash.tar")
    assert "2 tables have other numbers of rows" in found.said
    assert "outputs" not in found.said


def test_a_width_of_inner_layers_is_no_number_of_classes(tmp_path: Path) -> None:
    def state(width: int, kernel: int) -> dict[str, torch.Tensor]:
        return {
            f"2.{number}.{last}": torch.ones(shape)
            for number in (0, 2, 4)
            for last, shape in (("weight", (width, width, kernel)), ("bias", (width,)))
        }

    torch.save(state(25, 11), tmp_path / "w2l.pth")
    found = Answered(refused(state(25, 11), state(38, 13)), tmp_path / "w2l.pth")
    assert "outputs" not in found.said and "2 sizes differ" in found.said


def test_the_inner_width_of_blocks_are_no_words(tmp_path: Path) -> None:
    def state(width: int) -> dict[str, torch.Tensor]:
        return weights(
            layers__0__attn__weight=(32, 32),
            layers__0__fc1__weight=(width, 32),
            layers__0__fc1__bias=(width,),
            layers__0__fc2__weight=(32, width),
        )

    torch.save({"args": {"ffn": 256}, "model": state(256)}, tmp_path / "m.pt")
    found = Answered(refused(state(256), state(128)), tmp_path / "m.pt")
    assert "characters" not in found.said
    assert "args.ffn" in found.said


@pytest.mark.parametrize(
    ("rows", "said", "is_other"),
    [
        ((13, 169), "13 rows in the checkpoint (a window of 7 in one dimension)", True),
        ((169, 529), "(a window of 7 x 7) and 529 in the model (a window of 12", False),
    ],
)
def test_the_window_of_a_swin_is_that_of_its_table(
    rows: tuple[int, int], said: str, is_other: bool, tmp_path: Path
) -> None:
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    other = {"layers.0.blocks.0.attn.qkv.weight": torch.ones(48, 16)}
    file, model = ({name: torch.ones(count, 4), **other} for count in rows)
    torch.save({"model": file}, tmp_path / "swin.pth")
    found = Answered(refused(file, model), tmp_path / "swin.pth")
    assert said in found.said and "image size" not in found.said
    assert ("two kinds of networks" in found.said) is is_other
    assert bool(found.commands) is not is_other


def test_tables_of_a_window_follow_from_no_image(tmp_path: Path) -> None:
    name = "blocks.0.attn.relative_coords_table"
    file = {name: torch.ones(1, 15, 15, 2), "blocks.0.w": torch.ones(2)}
    torch.save(file, tmp_path / "a.pth")
    model = {**file, name: torch.ones(1, 31, 31, 2)}
    found = Answered(refused(file, model), tmp_path / "a.pth")
    assert "another size of window" in found.said and "image" not in found.said


def test_positions_and_patches_give_the_size_of_the_image(tmp_path: Path) -> None:
    patches = {"patch_embed.proj.weight": torch.ones(8, 3, 14, 14)}
    file = {"pos_embed": torch.ones(1, 1370, 8), **patches}
    torch.save(file, tmp_path / "dinov2.pth")
    model = {"pos_embed": torch.ones(1, 257, 8), **patches}
    found = Answered(refused(file, model), tmp_path / "dinov2.pth")
    assert "images of 518 x 518 and of 224 x 224" in found.said


def test_a_vocabulary_of_fairseq_has_languages(tmp_path: Path) -> None:
    def state(count: int) -> dict[str, torch.Tensor]:
        return weights(
            encoder__embed_tokens__weight=(count, 16),
            decoder__embed_tokens__weight=(count, 16),
            encoder__fc__weight=(16, 16),
        )

    args = {"arch": "mbart_large", "langs": "en_XX,ps_AF"}
    torch.save(
        {
            "args": args,
            "model": state(3202),
            "optimizer_history": [],
            "extra_state": {},
        },
        tmp_path / "best.pt",
    )
    found = Answered(refused(state(3202), state(3204)), tmp_path / "best.pt")
    assert "args.langs" in found.said and "resize_token" not in found.said
    torch.save(state(3202), tmp_path / "plain.pt")
    found = Answered(refused(state(3202), state(3204)), tmp_path / "plain.pt")
    assert "resize_token_embeddings(3202)" in found.said


# --- names ----------------------------------------------------------------------------


def test_the_norm_behind_the_mean_is_another_norm(tmp_path: Path) -> None:
    file = weights(
        cls_token=(1, 1, 8),
        blocks__0__norm1__weight=(8,),
        blocks__0__mlp__fc1__weight=(8, 8),
        norm__weight=(8,),
        norm__bias=(8,),
        mask_token=(1, 1, 4),
        decoder_embed__weight=(4, 8),
    )
    left = ("norm.weight", "norm.bias", "mask_token", "decoder_embed.weight")
    kept = {name: value for name, value in file.items() if name not in left}
    head = weights(
        fc_norm__weight=(8,), fc_norm__bias=(8,), head__weight=(5, 8), head__bias=(5,)
    )
    torch.save({"model": file}, tmp_path / "mae.pth")
    found = Answered(refused(file, {**kept, **head}), tmp_path / "mae.pth")
    assert not [row for row in found.commands if "rename" in row]
    assert "strict=False loads the rest" in found.said
    assert "mask_token shows that the file is of a pretraining by masks" in found.said


def test_torch_before_0_4_stops_at_the_first_key(tmp_path: Path) -> None:
    shapes = weights(conv1__weight=(2, 2), bn1__weight=(2,), layer1__0__weight=(2, 2))
    torch.save(shapes, tmp_path / "resnet.pth")
    found = Answered(
        "KeyError: 'unexpected key \"conv1.weight\" in state_dict'",
        tmp_path / "resnet.pth",
    )
    assert "the first of the 3 keys of this file" in found.said
    assert "whole module" not in found.said and not found.commands
    found = Answered(
        "KeyError: 'unexpected key \"bn1.weight\" in state_dict'",
        tmp_path / "resnet.pth",
    )
    assert "stops at the first such key" in found.said


def test_a_copy_that_failed_compares_no_other_layers(tmp_path: Path) -> None:
    file = weights(
        rpn__conv__weight=(16, 16, 3, 3),
        rpn__cls_score__weight=(24, 16, 1, 1),
        rpn__bbox_pred__weight=(48, 16, 1, 1),
    )
    torch.save({"model": file}, tmp_path / "frcnn.pth")
    row = (
        'While copying the parameter named "rpn.{}.weight", whose dimensions in the '
        "model are torch.Size([{}, 16, 1, 1]) and whose dimensions in the checkpoint "
        "are torch.Size([{}, 16, 1, 1])."
    )
    text = "RuntimeError: Error(s) in loading state_dict for vgg16:\n"
    rows = [row.format("cls_score", 18, 24), row.format("bbox_pred", 36, 48)]
    found = Answered(text + "\n".join(rows), tmp_path / "frcnn.pth")
    assert "about other layers" not in found.said
    assert "12 anchors" in found.said


@pytest.mark.parametrize("name", ["CFConvJittable_07e26a", "CFConvJittable_layers"])
def test_a_class_that_was_made_while_a_program_ran(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType(name)
    made = type(name, (nn.Linear,), {"__module__": name})
    setattr(module, name, made)
    monkeypatch.setitem(sys.modules, name, module)
    torch.save(nn.Sequential(made(2, 2)), tmp_path / "m.pt")
    found = Answered(
        f"ModuleNotFoundError: No module named '{name}'", tmp_path / "m.pt"
    )
    is_made = name.endswith("07e26a")
    assert ("made while the program ran" in found.said) is is_made
    assert ("PYTHONPATH" in found.said) is not is_made
    plain = torch.load(found.run("ckpt convert"))
    assert isinstance(plain, dict)


def test_a_deeper_model_is_no_new_head(tmp_path: Path) -> None:
    def state(count: int) -> dict[str, torch.Tensor]:
        return {
            f"convs.{number}.{last}": torch.ones(2, 2)
            for number in range(count)
            for last in ("conv.weight", "conv.mod", "noise.weight", "act.bias")
        }

    torch.save({"g": state(4)}, tmp_path / "g.pt")
    found = Answered(refused(state(4), state(6)), tmp_path / "g.pt")
    assert "4 blocks in the checkpoint and 6 in the model" in found.said
    assert "expected for a new head" not in found.said and not found.commands


# --- gradients ------------------------------------------------------------------------


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)
        self.unused = nn.Linear(4, 2)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(value))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("first.bias, first.weight", "so they had a gradient in an earlier step"),
        ("unused.bias, unused.weight", "Never a gradient"),
        ("first.bias, unused.weight", "has a state for 1 of them"),
        ("other.bias, unused.weight", "DDP names the parameters itself"),
    ],
)
def test_names_of_ddp_are_held_against_the_states(
    names: str, said: str, tmp_path: Path
) -> None:
    model = Layered()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    path = checkpoint(tmp_path / "a.pt", optimizer, model=model.state_dict())
    found = Answered(
        "RuntimeError: Expected to have finished reduction in the prior iteration.\n"
        f"Parameters which did not receive grad for rank 0: {names}",
        path,
    )
    assert said in found.said
    if "other" in names:
        assert "gradient" not in found.said


# --- distributed checkpoints ----------------------------------------------------------


def test_an_option_of_a_tuple_is_listed_once(tmp_path: Path) -> None:
    start = "optim.param_groups.fc.weight"
    state = {"fc.weight": torch.ones(2), f"{start}.lr": torch.ones(())}
    state |= {f"{start}.betas[{number}]": torch.ones(()) for number in range(2)}
    dcp.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    found = Answered(
        "RuntimeError: Missing key in checkpoint state_dict: "
        f"{start}.decoupled_weight_decay.",
        tmp_path / "a",
    )
    assert "betas" in found.said and "betas[" not in found.said


def test_files_of_ranks_that_are_on_another_machine(tmp_path: Path) -> None:
    run = deepspeeds.write(tmp_path / "run", 2)
    name = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    error = "The following zero checkpoints paths are missing: ['./{}', './{}']"

    for folder in (run, run / "global_step3"):
        found = Answered(error.format(name.format(2), name.format(3)), folder)
        assert "2 files of the message are not in this folder" in found.said
        assert "has 2 of their kind (the numbers 0 to 1)" in found.said
        assert "Each rank writes its own file" in found.said
        assert found.names == [name.format(2), name.format(3)]

        found = Answered(error.format(name.format(0), name.format(1)), folder)
        assert "The 2 files of the message are in this folder" in found.said

    found = Answered(error.format("a.bin", "b.bin"), run)
    assert "of the message" not in found.said


def test_shards_that_were_not_copied(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", weights(a__weight=(2, 2)))
    (folder / "model.safetensors").rename(folder / "model_part_0.safetensors")
    found = Answered(
        "these files were not found: "
        "['/x/model/model_part_1.safetensors', '/x/model/model_part_2.safetensors']",
        folder,
    )
    assert "2 files of the message are not in this folder" in found.said
    assert "Copy the others to it" in found.said and "rank" not in found.said


# --- two forms of one model -----------------------------------------------------------


def test_the_missing_keys_are_in_another_part(tmp_path: Path) -> None:
    deployed = weights(conv1__weight=(2, 2), conv1__bias=(2,))
    trained = weights(conv1__main_weight=(2, 2), conv1__align=(2,))
    path = tmp_path / "led.pth"
    torch.save({"params": trained, "params_deploy": deployed}, path)

    found = Answered(refused(trained, deployed), path)

    assert "All 2 missing keys are in params_deploy of this file" in found.said
    model = nn.Module()
    model.conv1 = nn.Linear(2, 2)
    (line,) = found.commands
    with folder_of(tmp_path):
        exec(line, {"model": model, "torch": torch})
    assert torch.equal(model.conv1.bias, torch.ones(2))

    # A name that many parts have proves nothing.
    one = {name: deployed[name] for name in ("conv1.bias",)}
    found = Answered(refused(trained, one), path)
    assert "in params_deploy of this file" not in found.said


@pytest.mark.parametrize("value", [None, {}])
def test_a_part_that_the_best_save_leaves_out(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "best.pth"
    torch.save({"state_dict": network().state_dict(), "optimizer": value}, path)
    found = Answered("Unable to load the optimizer from the checkpoint", path)
    assert "does not hold the state of an optimizer: optimizer is there" in found.said
    assert found.code == 0
    found = Answered(
        "    self.optimizer.load_state_dict(self.ckpt['optimizer'])\n"
        "    saved_groups = state_dict['param_groups']\n"
        "TypeError: 'NoneType' object is not subscriptable",
        path,
    )
    assert "The program takes optimizer from the file" in found.said
    assert found.loaded().keys() == network().state_dict().keys()


def test_an_optimizer_without_a_group(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(network().parameters())
    hollow = {"state": {}, "param_groups": []}
    path = checkpoint(tmp_path / "g.pt", optimizer, d_optim=hollow)
    found = Answered(
        "ValueError: loaded state dict contains a parameter group that doesn't match "
        "the size of optimizer's group",
        path,
    )
    assert "d_optim has no group of parameters." in found.said


def test_modules_of_another_kind_are_no_depth(tmp_path: Path) -> None:
    file = {f"loss.0.vgg.{number}.weight": torch.ones(2) for number in range(3)}
    more = {
        f"loss.1.dis.{number}.{last}": torch.ones(2)
        for number in range(3)
        for last in ("weight", "bias")
    }
    torch.save(file, tmp_path / "loss.pt")
    found = Answered(refused(file, {**file, **more}), tmp_path / "loss.pt")
    assert "depth differs" not in found.said

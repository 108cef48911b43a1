"""Errors of the first hours of new users: nothing is said that the file contradicts, and
what is printed is not what failed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered, raised
from inside import inside
from process import ROOT
from safetensors.torch import save_file
from torch import nn

import ckpt

pytestmark = [*oracle.QUIET, pytest.mark.slow]
GPU_FILES = ROOT / "tests" / "gpu_files"


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture
def two_models(tmp_path: Path) -> Path:
    """A checkpoint of reinforcement learning: a critic, and its target."""
    path = tmp_path / "sac.pt"
    critic, target = net().state_dict(), net().state_dict()
    torch.save({"critic": critic, "target": target, "alpha": torch.zeros(1)}, path)
    return path


def test_the_line_for_several_models_goes_down_to_the_one(two_models: Path) -> None:
    checkpoint = torch.load(two_models, weights_only=True)
    text = raised(lambda: net().load_state_dict(checkpoint))

    found = Answered(text, two_models)

    assert "The whole checkpoint was loaded into the model." in found.said
    assert found.commands == ['torch.load("sac.pt", map_location="cpu")["critic"]']
    net().load_state_dict(found.loaded())


def test_a_dict_of_several_models_names_them_all(two_models: Path) -> None:
    text = "AttributeError: 'dict' object has no attribute 'eval'"

    found = Answered(text, two_models)

    assert "the weights are in critic, target." in found.said
    assert found.commands == [
        'model.load_state_dict(torch.load("sac.pt", map_location="cpu")["critic"])'
    ]


def test_a_list_at_the_root_is_no_dict(tmp_path: Path) -> None:
    path = tmp_path / "list.pth"
    torch.save([net().state_dict(), {"lr": 0.1}], path)
    text = raised(lambda: net().load_state_dict(torch.load(path, weights_only=True)))

    found = Answered(text, path)

    assert "The root of this file is a list, and no dict" in found.said
    assert "another file" not in found.said
    net().load_state_dict(found.loaded())
    other = Answered("ValueError: of some program", path)
    assert "The weights are in 0." in other.said and "no names of" not in other.said


@pytest.mark.parametrize(
    "text",
    [
        "AttributeError: 'Parameter' object has no attribute 'keys'",
        "TypeError: Expected state_dict to be dict-like, got <class 'torch.Tensor'>.",
        "AttributeError: 'dict' object has no attribute 'eval'",
    ],
)
def test_a_tensor_at_the_root_is_no_state_dict(text: str, tmp_path: Path) -> None:
    path = tmp_path / "weight.pt"
    torch.save(net()[0].weight, path)

    found = Answered(text, path)

    assert "The root of this file is one tensor" in found.said
    assert "state dict of" not in found.said and "another file" not in found.said


@pytest.mark.parametrize(
    ("inputs", "weights", "move"),
    [
        ("torch.cuda.FloatTensor", "torch.FloatTensor", "model.to(input.device)"),
        ("torch.FloatTensor", "torch.cuda.FloatTensor", "input.to(next("),
    ],
)
def test_a_type_with_its_device_is_about_devices(
    inputs: str, weights: str, move: str, tmp_path: Path
) -> None:
    torch.save(net().state_dict(), tmp_path / "a.pth")
    text = (
        f"RuntimeError: Input type ({inputs}) and weight type ({weights}) should be "
        "the same"
    )

    found = Answered(text, tmp_path / "a.pth")

    assert "Both are FloatTensor, and the devices differ" in found.said
    assert move in found.said and "float32" not in found.page


def test_types_with_a_namespace_are_types(tmp_path: Path) -> None:
    half = {name: value.half() for name, value in net().state_dict().items()}
    torch.save(half, tmp_path / "a.pth")
    text = (
        "RuntimeError: Input type (float) and bias type (c10::Half) should be the same"
    )

    assert "4 tensors of float16" in Answered(text, tmp_path / "a.pth").said


def test_a_torch_without_cuda_is_asked_by_the_program(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "a.pth")
    text = "AssertionError: Torch not compiled with CUDA enabled"

    found = Answered(text, tmp_path / "a.pth")

    assert "This torch is built for the CPU alone" in found.said
    assert "The program did" in found.said


SIZES = (
    "RuntimeError: Error(s) in loading state_dict for PeftModel:\n\tsize mismatch for "
    "base_model.model.q_proj.lora_A.default.weight: copying a param with shape "
    "torch.Size([4, 8]) from checkpoint, the shape in current model is "
    "torch.Size([16, 8])."
)


def test_a_base_is_not_called_an_adapter(tmp_path: Path) -> None:
    save_file({"q_proj.weight": torch.randn(8, 8)}, tmp_path / "base.safetensors")

    said = Answered(SIZES, tmp_path / "base.safetensors").said

    assert "The adapter of this file" not in said
    assert "This file holds no adapter" in said


@pytest.mark.parametrize("rank", [4, 2])
def test_an_adapter_of_another_rank_is_another_one(rank: int, tmp_path: Path) -> None:
    name = "base_model.model.q_proj.lora_{}.weight"
    matrices = {
        name.format("A"): torch.randn(rank, 8),
        name.format("B"): torch.randn(8, rank),
    }
    save_file(matrices, tmp_path / "adapter.safetensors")

    said = Answered(SIZES, tmp_path / "adapter.safetensors").said

    assert ("The adapter of this file has rank 4" in said) is (rank == 4)


NO_FILE = (
    "OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, "
    "model.ckpt.index or flax_model.msgpack found in directory {}."
)


def test_an_index_of_shards_is_a_model_that_a_loader_finds(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    index: dict[str, str] = {}
    for number, (key, value) in enumerate(net().state_dict().items(), 1):
        name = f"model-{number:05}-of-00004.safetensors"
        save_file({key: value}, folder / name)
        index[key] = name
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    (folder / "config.json").write_text('{"architectures": ["A"], "model_type": "a"}')

    found = Answered(NO_FILE.format("model"), folder)

    assert "model.safetensors.index.json is here" in found.said
    assert not any(command.startswith("ckpt convert") for command in found.commands)


@pytest.mark.needs("dcp")
def test_one_file_is_not_what_every_loader_reads(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": net().state_dict()}, checkpoint_id=tmp_path / "step")

    found = Answered(NO_FILE.format("step"), tmp_path / "step")

    assert "every loader" not in found.said
    assert "by the name model.safetensors, beside config.json" in found.said
    found.run("ckpt convert")


@pytest.mark.needs("pt2")
@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        (
            "RuntimeError: Attempting to deserialize object on a CUDA device but "
            "torch.cuda.is_available() is False."
        ),
    ],
)
def test_a_program_of_a_gpu_gives_its_weights(text: str, tmp_path: Path) -> None:
    shutil.copy(GPU_FILES / "exported.pt2", tmp_path)

    found = Answered(text, tmp_path / "exported.pt2")

    assert "torch.export.load has no map_location" in found.said
    written = found.run("ckpt convert")
    state = torch.load(written, map_location="cpu", weights_only=True)
    assert len(state) == 13


@pytest.mark.parametrize("steps", [0, 1])
def test_a_save_before_the_first_step_asks_for_a_later_one(
    steps: int, tmp_path: Path
) -> None:
    model = nn.ModuleDict({"a": net(), "b": nn.Linear(3, 4), "c": nn.Linear(3, 4)})
    model["c"].requires_grad_(False)
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    optimizer = torch.optim.Adam(trained)
    for _ in range(steps):
        model["a"](torch.ones(2, 3)).sum().backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "step.pth")
    text = "Parameter indices which did not receive grad for rank 0: 4 5"

    found = Answered(text, tmp_path / "step.pth")

    asks = [line for line in found.commands if line.startswith("ckpt explain MESSAGE")]
    later, older = "MESSAGE step.pth LATER", "MESSAGE OLDER step.pth"
    assert asks == [f"ckpt explain {older if steps else later}"]


NEW_LAYERS = (
    "Some weights of PhiForSequenceClassification were not initialized from the model "
    "checkpoint at phi and are newly initialized: ['score.weight']"
)


@pytest.mark.parametrize("name", ["score", "iou", "accuracy", "map", "loss_head"])
def test_a_head_that_scores_is_no_metric(name: str, tmp_path: Path) -> None:
    """transformers calls the classifier of a decoder `score`, and it must be trained."""
    path = tmp_path / "model.safetensors"
    save_file({"model.layers.0.fc.weight": torch.ones(2, 3)}, path)

    found = Answered(NEW_LAYERS.replace("score.", f"{name}."), path)

    assert "metric" not in found.said and "nothing is lost" not in found.said


def test_weights_of_a_loss_are_no_weights_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save(net().state_dict(), path)
    model = net()
    model.add_module("criterion", nn.CrossEntropyLoss(torch.ones(2)))
    state = torch.load(path)

    found = Answered(raised(lambda: model.load_state_dict(state)), path)

    assert "by the name of a metric or a loss" in found.said


class Blocks(nn.Module):
    """An encoder whose last layers may be registered, or lie in a plain list."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.online = nn.ModuleDict({"stem": net(), "proj": net()})
        if registered:
            self.online["blocks"] = nn.ModuleList([nn.Linear(4, 4)])


def test_only_the_modules_that_lack_are_the_models_own(tmp_path: Path) -> None:
    path = tmp_path / "run.pth"
    torch.save(nn.DataParallel(Blocks(False)).state_dict(), path)
    state = {
        name.removeprefix("module."): tensor
        for name, tensor in torch.load(path).items()
    }

    found = Answered(raised(lambda: Blocks(True).load_state_dict(state)), path)

    assert "The model alone has online.blocks." in found.said


UNTARGETED = (
    "ValueError: Target modules {'q_proj', 'v_proj'} not found in the base model. "
    "Please check the target modules and try again."
)


def test_the_target_modules_of_peft_are_those_of_the_base(tmp_path: Path) -> None:
    """PEFT was given a model, and no adapter."""
    path = tmp_path / "model.safetensors"
    names = [
        f"transformer.h.{number}.self_attention.{name}.weight"
        for number in range(2)
        for name in ("query_key_value", "dense")
    ]
    save_file({name: torch.ones(4, 4) for name in names}, path)

    found = Answered(UNTARGETED, path)

    assert "No layer of this file is called q_proj, v_proj." in found.said
    assert "dense ×2, query_key_value ×2" in found.said
    assert "another file" not in found.said


def test_target_modules_that_are_there_mean_another_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"model.layers.0.self_attn.q_proj.weight": torch.ones(4, 4)}, path)

    found = Answered(UNTARGETED, path)

    assert "layers of that name: q_proj ×1" in found.said
    assert "another class or version" in found.said


def test_a_class_that_the_file_lacks_means_another_file(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save(net(), path)
    text = "AttributeError: Can't get attribute 'Net' on <module '__main__' (built-in)>"

    found = Answered(text, path)

    assert "The file does not name __main__.Net." in found.said
    assert "So another file was loaded" in found.said
    assert "Import it into the script" not in found.said


def test_a_page_says_where_another_one_is() -> None:
    """A terminal shows the words of a link, and not where it leads."""
    text = "RuntimeError: Missing key in checkpoint state_dict: model.fc.weight."

    done = inside("explain", text, "dcp", cwd=ROOT / "sample_checkpoints")

    assert "docs/distributed.md says" in " ".join(done.out.decode().split())


class Recognizer(nn.Module):
    """A model with a buffer that is called as a parameter could be, a layer that is
    frozen, and heads that are not used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.stem = nn.Linear(3, 5, bias=False)
        self.stem.weight.requires_grad_(False)
        self.body = nn.Linear(5, 4)
        self.spare = nn.Linear(4, 2)


@pytest.fixture
def recognizer(tmp_path: Path) -> Path:
    """The folder of two saves of a run, before and after a step."""
    model = Recognizer()
    optimizer = torch.optim.Adam(model.parameters())

    def save(name: str) -> None:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(content, tmp_path / name)

    def step() -> None:
        model.body(model.stem(torch.randn(2, 3))).sum().backward()
        optimizer.step()

    step()
    save("older.pt")
    step()
    save("newer.pt")
    return tmp_path


NOT_IN_LOSS = "Parameter indices which did not receive grad for rank 0: 2 3"


def test_a_tensor_that_may_be_a_buffer_is_not_counted_as_a_parameter(
    recognizer: Path,
) -> None:
    """The model has 5 parameters. The name `mean` does not say that it is none."""
    alone = inside("explain", NOT_IN_LOSS, "newer.pt", cwd=recognizer)
    both = inside("explain", NOT_IN_LOSS, "older.pt", "newer.pt", cwd=recognizer)
    said = " ".join(alone.out.decode().split())

    assert "holds 5 of 6 tensors of the model that may be parameters" in said
    assert "6 parameters" not in said
    said = " ".join(both.out.decode().split())
    assert "3 parameters and 1 tensor that may be one did not change" in said


def test_an_optimizer_is_not_said_to_lack_a_buffer(recognizer: Path) -> None:
    text = (
        "ValueError: loaded state dict contains a parameter group that doesn't match "
        "the size of optimizer's group"
    )

    found = Answered(text, recognizer / "newer.pt")

    assert "model has 5 parameters and 1 tensor that may be one." in found.said
    assert "1 of them is not in the optimizer." in found.said


def test_the_count_of_unused_names_leaves_out_what_has_no_name(
    recognizer: Path,
) -> None:
    done = inside("inspect", "newer.pt", cwd=recognizer)

    assert (
        "spare.{weight,bias} (2 parameters) and 1 unknown parameter (one of mean, "
        "stem.weight) never had a gradient" in done.out.decode()
    )


@pytest.mark.needs("live")
def test_snapshots_of_two_ranks_are_no_older_and_newer_save(tmp_path: Path) -> None:
    """Both are of one step: what is equal in them did not stand still."""
    for rank in range(2):
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        model[rank](torch.ones(1, 2)).sum().backward()
        ckpt.snapshot(model, tmp_path / f"step.rank{rank}.pth")
        _set_rank(tmp_path / f"step.rank{rank}.pth", rank)

    done = inside(
        "explain", NOT_IN_LOSS, "step.rank0.pth", "step.rank1.pth", cwd=tmp_path
    )

    assert done.code == 2
    assert (
        "of another rank than step.rank1.pth, so it is no older save of it (the "
        "difference of two ranks: ckpt diff step.rank0.pth step.rank1.pth)"
        in " ".join(done.err.decode().split())
    )


def _set_rank(path: Path, rank: int) -> None:
    """Make a snapshot that of one of two ranks."""
    content = torch.load(path, weights_only=True)
    content["ckpt"] |= {"rank": rank, "world_size": 2}
    torch.save(content, path)


def test_positions_of_a_larger_image_have_the_command_that_interpolates_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mae.pth"
    weights = {f"blocks.{number}.weight": torch.ones(12, 12) for number in range(8)}
    weights |= {"pos_embed": torch.ones(1, 17, 12), "norm.weight": torch.ones(12)}
    torch.save(weights, path)
    text = (
        "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for "
        "pos_embed: copying a param with shape torch.Size([1, 17, 12]) from "
        "checkpoint, the shape in current model is torch.Size([1, 37, 12])."
    )

    found = Answered(text, path)

    assert (
        "ckpt warmstart mae.pth --into-model FILE.py:FACTORY "
        "--on-mismatch interpolate -o start.pth"
    ) in found.commands


def test_an_optimizer_without_a_buffer_has_the_whole_state(recognizer: Path) -> None:
    text = (
        "Optimizer state has not been consolidated on this rank. Please call "
        "`consolidate_state_dict(to=0)` on all ranks beforehand"
    )

    found = Answered(text, recognizer / "newer.pt")

    assert "this file has the whole state" in found.said
    assert "5 parameters and 1 tensor that may be one" in found.said


def test_a_question_on_frozen_layers_calls_no_buffer_a_parameter(
    recognizer: Path,
) -> None:
    done = inside(
        "explain", "which layers are frozen? requires_grad", "newer.pt", cwd=recognizer
    )
    said = " ".join(done.out.decode().split())

    assert "6 parameters" not in said
    assert "has 5 of the 6 tensors of model that may be parameters" in said
    assert "The other one is frozen, or is a buffer" in said


def test_a_head_of_another_task_is_not_called_tied(tmp_path: Path) -> None:
    """A reward model has `score`, and no head of a language model to tie."""
    path = tmp_path / "model.safetensors"
    state = {"model.embed_tokens.weight": torch.ones(4, 3)}
    state["model.layers.0.fc.weight"] = torch.ones(3, 3)
    state["score.weight"] = torch.ones(1, 3)
    save_file(state, path)
    text = NEW_LAYERS.replace("PhiForSequenceClassification", "PhiForCausalLM")

    found = Answered(text.replace("score.weight", "lm_head.weight"), path)

    assert "the file has another one (score)" in found.said
    assert "ties both" not in found.said


def test_an_adapter_of_a_pipeline_has_the_names_of_diffusers(tmp_path: Path) -> None:
    """The answer says what `inspect` says of the same file."""
    layer = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    tensors = {
        f"{layer}.lora_A.weight": torch.zeros(4, 8),
        f"{layer}.lora_B.weight": torch.zeros(8, 4),
    }
    save_file(tensors, tmp_path / "unet.safetensors")
    asked = inside("explain", "KeyError: 'x'", "unet.safetensors", cwd=tmp_path)
    assert b"names of diffusers" in b" ".join(asked.out.split())
    shown = inside("inspect", "unet.safetensors", cwd=tmp_path)
    assert b"names of diffusers" in shown.out

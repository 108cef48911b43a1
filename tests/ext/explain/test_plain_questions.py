"""Questions in plain words about a file or about two: what people ask of a checkpoint,
in two wordings each.
"""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import torch
from answered import Answered, write_folder
from process import ckpt
from safetensors.torch import save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


class Network(nn.Module):
    """An encoder with a batch norm, and a head of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.fc = nn.Linear(8, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc(self.encoder(inputs))  # type: ignore[no-any-return]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Take some steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).sum().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints that are asked."""
    folder = tmp_path_factory.mktemp("asked")
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer, 20)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    args = {"lr": 1e-3, "batch_size": 64, "num_classes": 10}
    torch.save({"epoch": 11, **state, "best_acc1": 71.25, "args": args}, folder / "run")
    averages = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save({**state, "model_ema": averages}, folder / "both")
    torch.save({"model": model.state_dict(), "iteration": 500}, folder / "iter")
    torch.save(model.state_dict(), folder / "weights")
    best = {
        "monitor": "val_loss",
        "best_model_path": "/out/epoch=87-step=8800.ckpt",
        "best_model_score": torch.tensor(0.3),
    }
    torch.save(
        {
            "epoch": 119,
            "global_step": 12000,
            "pytorch-lightning_version": "1.9.5",
            "state_dict": model.state_dict(),
            "callbacks": {"ModelCheckpoint": best},
            "optimizer_states": [optimizer.state_dict()],
            "loops": {},
        },
        folder / "last.ckpt",
    )
    layers = {
        f"base_model.model.model.layers.{number}.self_attn.q_proj.lora_{part}.weight": (
            torch.ones((4, 16) if part == "A" else (16, 4))
        )
        for number in range(2)
        for part in "AB"
    }
    (folder / "lora").mkdir()
    save_file(layers, folder / "lora" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": "org/base-7b"}
    (folder / "lora" / "adapter_config.json").write_text(json.dumps(config))
    llama = {
        "model.embed_tokens.weight": torch.ones(50, 16, dtype=torch.bfloat16),
        "lm_head.weight": torch.ones(50, 16, dtype=torch.bfloat16),
    }
    for number in range(2):
        for part in ("self_attn.q_proj", "mlp.up_proj"):
            llama[f"model.layers.{number}.{part}.weight"] = torch.ones(
                16, 16, dtype=torch.bfloat16
            )
    write_folder(
        folder / "llama",
        llama,
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=16,
        num_hidden_layers=2,
        transformers_version="4.40.0",
        tie_word_embeddings=False,
    )
    return folder


ASKED = [
    ("run", "What is inside this checkpoint file?", "best_acc1 and args"),
    ("run", "I have a file and want to know what it contains", "It records epoch 11"),
    ("run", "what's in here", "The settings of the run are in args"),
    ("weights", "这个权重文件里面有什么", "a state dict of 9 tensors"),
    ("run", "Does the checkpoint contain the optimizer state?", "So a run can go on"),
    ("weights", "is the optimizer in it?", "has no state of an optimizer"),
    ("iter", "I would like to know if I can continue the training with it", "no state"),
    (
        "both",
        "the file is 1.2GB while the released one is 400MB, why?",
        "784 B in model_ema, av",
    ),
    ("both", "should I load model or model_ema for evaluation?", "averages (EMA), in"),
    ("both", "推理时应该用ema还是model？", "averages (EMA), in model_ema"),
    ("run", "How can I check whether the encoder was trained or kept fixed?", "All 6"),
    ("run", "how can I tell which layers were trained?", "All 6 parameters of model"),
    ("weights", "Are these two checkpoints the same model?", "ckpt diff compares"),
    (
        "weights",
        "how do I compare the weights of two checkpoints",
        "ckpt diff compares",
    ),
    ("llama", "What config do I need for this checkpoint?", "num_hidden_layers 2"),
    ("llama", "how many layers and what hidden size does it have", "hidden_size 16"),
    ("weights", "What architecture is this model?", "keeps names and shapes alone"),
    ("run", "Can I load this on a machine without GPU?", "were saved on the CPU"),
    ("llama", "will it work on CPU only?", "records no device"),
    (
        "llama",
        "What precision are the weights stored in, bf16 or fp32?",
        "bfloat16 (6)",
    ),
    ("weights", "how to store the weights in half precision", "float32 (8), int64 (1)"),
    ("weights", "will it load with PyTorch 1.4?", "which torch 1.6 and newer read"),
    ("last.ckpt", "What version of Lightning saved this?", "version 1.9.5"),
    ("weights", "I want to use just the encoder part", "7 of the 9 tensors"),
    ("run", "如何只加载encoder部分的权重？", "7 of the 9 tensors"),
    (
        "weights",
        "what is the output dimension of this network?",
        "by name: fc.weight 10",
    ),
    ("run", "what number of labels was it trained with", "args.num_classes is 10"),
    ("run", "What does encoder.1.num_batches_tracked mean?", "is a buffer. It counts"),
    ("last.ckpt", "What are optimizer_states and loops in a ckpt?", "loops has the"),
    ("run", "I resumed and now the loss went from 0.3 to 2.1", "that of new moments"),
    ("run", "续训之后loss突然变大是什么原因", "that of new moments"),
    (
        "llama",
        "Is the LoRA already merged into this model?",
        "leaves no trace in names",
    ),
    (
        "lora",
        "is this a full model or just LoRA weights?",
        "The base model is not in it",
    ),
    ("lora", "Which base model was this LoRA trained on?", "is org/base-7b"),
    ("lora", "What was this LoRA fine-tuned from?", "is org/base-7b"),
    ("run", "What is the best accuracy of this checkpoint?", "best_acc1 is 71.25"),
    (
        "last.ckpt",
        "is last.ckpt the best model or the last one?",
        "not of the best one",
    ),
    ("weights", "How many parameters does the model have?", "has 178 parameters in 9"),
    ("weights", "which layer has the most parameters", "are fc.weight (80)"),
    (
        "run",
        "what learning rate and batch size was it trained with?",
        "batch_size is 64",
    ),
    ("run", "What image size was used for training?", "No key of it names image size"),
    ("weights", "How can I load it into my model?", "this loads what fits"),
    ("run", "how do I run inference with this", "To predict, call model.eval()"),
    ("weights", "my download may be broken, can you check?", "finds no damage: all 9"),
    ("run", "Is it safe to load this file?", "Nothing in this file runs code"),
    ("llama", "could this file contain malware?", "holds numbers and texts"),
    ("lora", "what rank and target modules has this LoRA", "of rank 4, for 2 layers"),
    (
        "weights",
        "Was this model trained with DataParallel?",
        "No name in it begins with",
    ),
    ("llama", "is the embedding tied to the lm_head?", "No two weights of this file"),
    ("weights", "what activation function does the network use?", "leave no tensor"),
]


@pytest.mark.parametrize(("name", "text", "said"), ASKED)
def test_a_question_gets_what_the_file_says(
    name: str, text: str, said: str, files: Path
) -> None:
    found = Answered(text, files / name)
    assert found.code == 0
    assert said in found.said


@pytest.mark.parametrize(
    "text",
    [
        "You should probably TRAIN this model on a down-stream task.",
        "epoch 3 loss 0.21 lr 0.001 saved checkpoint",
        "Loading checkpoint shards: 100% done",
    ],
)
def test_a_line_of_a_log_is_no_question(text: str, files: Path) -> None:
    (files / "run.log").write_text(text)
    done = ckpt("explain", "run.log", "run", cwd=files)
    assert b"no error in this text" in done.out


def test_parts_of_a_question_are_run_and_loaded(files: Path) -> None:
    found = Answered("I want to use just the encoder part", files / "weights")
    (line,) = [row for row in found.commands if "removeprefix" in row]
    model = Network().encoder
    names = {"torch": torch, "model": model}
    before = Path.cwd()
    try:
        import os

        os.chdir(files)
        exec(line, names)
    finally:
        os.chdir(before)
    saved = torch.load(files / "weights")
    assert torch.equal(model[0].weight, saved["encoder.0.weight"])


def test_a_legacy_copy_is_printed_and_read(files: Path) -> None:
    found = Answered("will it load with PyTorch 1.4?", files / "weights")
    assert torch.load(found.run("ckpt convert")).keys() == Network().state_dict().keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Are these two checkpoints the same?", "So both files hold the same model."),
        ("why is one of them larger?", "Not compared: optimizer"),
    ],
)
def test_two_files_beside_a_question_are_compared(
    text: str, said: str, files: Path
) -> None:
    done = ckpt("explain", text, "run", "iter", "--json", cwd=files)
    rows = json.loads(done.out)["answer"]["statements"]
    assert done.code == 0
    assert said in " ".join(row["text"] for row in rows)
    assert "ckpt diff run iter" in [row["command"] for row in rows]


def test_what_was_frozen_stands_in_two_files(tmp_path: Path) -> None:
    model = Network()
    torch.save(model.state_dict(), tmp_path / "a.pth")
    model.encoder.requires_grad_(False)
    model.eval()
    optimizer = torch.optim.SGD(model.fc.parameters(), 0.1)
    trained(model, optimizer, 1)
    torch.save(model.state_dict(), tmp_path / "b.pth")
    text = "how do I verify that it froze the encoder?"
    done = ckpt("explain", text, "a.pth", "b.pth", cwd=tmp_path)
    said = " ".join(done.out.decode().split())
    assert "7 the same in both, 2 of other values" in said
    assert "These differ: fc.weight, fc.bias." in said


def test_one_file_given_twice_is_refused(files: Path) -> None:
    done = ckpt("explain", "are both the same?", "run", "run", cwd=files)
    assert done.code == 2 and b"both are one file" in done.err


@pytest.mark.parametrize(
    "text",
    [
        "Why is the saved checkpoint four times as large as yours?",
        "the size of my model is twice that of the pretrained one, is it wrong?",
    ],
)
@pytest.mark.parametrize("order", [("full", "small"), ("small", "full")])
def test_the_size_of_two_files_is_that_of_their_parts(
    text: str, order: tuple[str, str], tmp_path: Path
) -> None:
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer, 1)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "full")
    torch.save({"model": model.state_dict()}, tmp_path / "small")
    done = ckpt("explain", text, *order, cwd=tmp_path)
    said = " ".join(done.out.decode().split())
    assert "The tensors of full take" in said
    assert "times those of small" in said
    assert "in optimizer, the state of an optimizer" in said
    assert "ckpt slim full" in said
    assert "nothing but weights" not in said


@pytest.mark.parametrize(
    "text",
    [
        "Why would the training always start at epoch 4? How can I make it start at 0?",
        "it resumes from epoch 3 and not from the beginning, where is that set?",
    ],
)
def test_a_run_that_begins_late_goes_on_from_the_epoch_of_the_file(
    text: str, tmp_path: Path
) -> None:
    state = {"epoch": 3, "state_dict": Network().state_dict(), "optimizer": {}}
    torch.save(state, tmp_path / "a.ckpt")
    found = Answered(text, tmp_path / "a.ckpt")
    assert "epoch of this file is 3" in found.said
    assert "give the file as weights" in found.said
    # A number that the file does not have is of something else.
    found = Answered("why does it start at epoch 90?", tmp_path / "a.ckpt")
    assert "as a run to go on with" not in found.said


def test_models_beside_the_one_that_is_trained(tmp_path: Path) -> None:
    names = ("model.diffusion_model.x.weight", "conditioner.embedders.0.weight")
    names += ("first_stage_model.encoder.weight",)
    torch.save({"module": dict.fromkeys(names, torch.ones(64))}, tmp_path / "a.pt")
    text = (
        "why is the checkpoint so much larger than the original, 26G instead of 3.5G?"
    )
    found = Answered(text, tmp_path / "a.pt")
    assert "conditioner, first_stage_model (" in found.said
    assert "models beside the one that is trained" in found.said


@pytest.mark.parametrize("is_turned", [False, True])
def test_one_model_at_two_places(is_turned: bool, tmp_path: Path) -> None:
    state = Network().state_dict()
    torch.save({"epoch": 3, "model": state, "optimizer": {}}, tmp_path / "run.pth")
    torch.save(state, tmp_path / "weights.pth")
    paths = ("run.pth", "weights.pth")
    text = "how to use this one, is it the same as the pre-trained model?"
    done = ckpt("explain", text, *(paths[::-1] if is_turned else paths), cwd=tmp_path)
    said = " ".join(done.out.decode().split())
    assert "run.pth has it in model, one of its keys (epoch, model, optimizer)" in said
    assert "and weights.pth is the weights alone" in said
    assert 'torch.load("run.pth", map_location="cpu")["model"]' in said


def test_the_encoder_of_a_run_with_two_networks(tmp_path: Path) -> None:
    state = Network().state_dict()
    parts = ("online_backbone", "online_projector", "target_backbone")
    torch.save({"epoch": 3, **dict.fromkeys(parts, state)}, tmp_path / "a.pth")
    text = "I don't understand which part of the saved checkpoint is the encoder to use"
    found = Answered(text, tmp_path / "a.pth")
    assert "online_backbone of this file is that part" in found.said
    assert "target_backbone, with" in found.said and "follows the one" in found.said
    assert "online_projector of this file" not in found.said


@pytest.mark.parametrize(
    ("name", "said", "unsaid"),
    [
        ("scripted.pt", "It is a program (TorchScript)", "Nothing in this file"),
        ("dcp", "Nothing in this file runs code", "torch.load takes it"),
        ("zoo.pkl", "Nothing in this file runs code", "torch.load takes it"),
        ("legacy.pth", "torch.load takes it with weights_only=True", "refuses"),
        ("train_cuda.pth", "weights_only=True refuses argparse", "torch.load takes it"),
        ("hostile.pth", "DANGER: loading this file runs", "Nothing in this file"),
        ("llama_q8_0.gguf", "holds numbers and texts, and no code", "torch.load"),
    ],
)
def test_a_question_of_safety_gets_what_the_loader_does(
    name: str, said: str, unsaid: str, samples: Path
) -> None:
    found = Answered("Is it safe to load this file?", samples / name)

    assert said in found.said and unsaid not in found.said

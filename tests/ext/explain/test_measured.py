"""Messages of real programs that a measure brought, each with a file that the program
was given.
"""

from __future__ import annotations

import json
from pathlib import Path

import deepspeeds
import oracle
import pytest
import torch
from answered import Answered, raised
from inside import inside
from process import ckpt
from safetensors.torch import load_file, save_file

from ckpt import CkptError
from ckpt import open as opened

pytestmark = oracle.QUIET

# --- DeepSpeed ------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1])
def test_states_without_a_stage_are_put_together_by_ckpt(
    stage: int, tmp_path: Path
) -> None:
    made = deepspeeds.saved(1, dtype=torch.bfloat16)
    for state in made.states:
        del state["zero_stage"]
    for model in made.models.values():
        model["ds_config"] = {
            "zero_optimization": {"stage": stage},
            "bf16": {"enabled": True},
        }
    made.write(tmp_path / "run")
    shown = inside("inspect", "run", cwd=tmp_path).out.decode()
    assert "get_fp32_state_dict" not in shown and f"ZeRO-{stage} checkpoint" in shown
    assert "ckpt convert" in shown
    name = next(iter(made.optimizers))
    found = Answered(
        f"ValueError: run/{name} is not a zero checkpoint", tmp_path / "run"
    )
    assert found.kind == "zero" and "BF16_Optimizer" in found.said
    assert "get_fp32_state_dict" not in found.page
    weights = load_file(found.run("ckpt convert"))
    for name, value in made.live.trained.items():
        assert torch.equal(weights[name], value)


def test_the_call_that_raised_is_no_answer(tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", 2)
    text = (
        "ValueError: run/zero_pp_rank_0_mp_rank_00_optim_states.pt is not a zero "
        "checkpoint"
    )
    found = Answered(text, tmp_path / "run")
    assert (
        "another folder was given" in found.said
        and "get_fp32_state_dict" not in found.page
    )
    assert found.commands == ["ckpt convert run -o run.safetensors"]


# --- adapters -------------------------------------------------------------------------

_NO_CONFIG = "ValueError: Can't find 'adapter_config.json' at '/home/code/lora/'"
_NO_MODEL = (
    "OSError: Error no file named model.safetensors, or pytorch_model.bin, found in "
    "directory /data/llm."
)


def adapter(folder: Path, *, with_config: bool) -> Path:
    """A folder of PEFT."""
    folder.mkdir()
    layer = "base_model.model.layers.0.q_proj"
    state = {f"{layer}.lora_{part}.weight": torch.ones(2, 2) for part in "AB"}
    save_file(state, folder / "adapter_model.safetensors")
    if with_config:
        config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": "org/llama"}
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_a_config_that_is_here_was_looked_for_elsewhere(tmp_path: Path) -> None:
    found = Answered(_NO_CONFIG, adapter(tmp_path / "lora", with_config=True))
    assert found.said.startswith(
        "adapter_config.json is here, so the path of the message (/home/code/lora/) is "
        "not this folder"
    )
    assert (
        found.commands == ['peft.PeftModel.from_pretrained(model, "lora")']
        and "org/llama" in found.said
    )


def test_a_config_that_lacks_is_missing(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora", with_config=False)
    found = Answered(_NO_CONFIG, folder)
    assert "and no adapter_config.json" in found.said and "Copy it" in found.said
    assert not any("convert" in command for command in found.commands)
    alone = Answered(_NO_CONFIG, folder / "adapter_model.safetensors")
    assert (
        "no adapter_config.json" not in alone.said
        and "adapter_config.json beside them" in alone.said
    )


def test_an_adapter_is_no_model_without_names(tmp_path: Path) -> None:
    found = Answered(_NO_MODEL, adapter(tmp_path / "lora", with_config=True))
    assert found.said.startswith("This folder is an adapter of PEFT, and no model")
    assert found.commands == ['peft.PeftModel.from_pretrained(model, "lora")']


def test_a_model_is_no_adapter(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "m.safetensors")
    found = Answered(_NO_CONFIG, tmp_path / "m.safetensors")
    assert found.said.startswith(
        "This is a whole model (safetensors), and no adapter of PEFT"
    )


def test_weights_that_are_here_were_looked_for_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    save_file({"weight": torch.ones(2)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    found = Answered(_NO_MODEL, folder)
    assert found.said.startswith(
        "model.safetensors is here, so the path of the message (/data/llm) is not this "
        "folder"
    )
    text = (
        "OSError: org/llm does not appear to have a file named {}. Checkout the page "
        "for available files."
    )
    here = Answered(text.format("config.json"), folder)
    assert "the path of the message (org/llm) is not" in here.said
    lacking = Answered(text.format("preprocessor_config.json"), folder)
    assert "preprocessor_config.json is not among the files" in lacking.said
    assert not any("convert" in command for command in lacking.commands)


# --- classes of transformers ----------------------------------------------------------

_BUILT = (
    "You are using a model of type `camembert` to instantiate a model of type `bert`. "
    "This may be expected.\n"
)
_LAYER = "encoder.layer.0.output.dense.weight"


def camembert(folder: Path) -> Path:
    """A folder of transformers, whose class puts `roberta.` before its names."""
    folder.mkdir()
    save_file(
        {f"roberta.{_LAYER}": torch.ones(2, 2), "lm_head.bias": torch.ones(2)},
        folder / "model.safetensors",
    )
    config = {
        "model_type": "camembert",
        "architectures": ["CamembertForMaskedLM"],
        "transformers_version": "5.0",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("warning", [_BUILT, ""])
@pytest.mark.parametrize(
    "report",
    [
        "BertForSequenceClassification LOAD REPORT from: cam\n"
        f"bert.{_LAYER} | MISSING |\nclassifier.weight | MISSING |\nroberta.{_LAYER} | "
        "UNEXPECTED |\nlm_head.bias | UNEXPECTED |\n",
        "04/28/2020 00:56:31 - INFO - transformers.modeling_utils -   Weights of "
        "BertForSequenceClassification not initialized from pretrained model: "
        f"['bert.{_LAYER}', 'classifier.weight']\n"
        "04/28/2020 00:56:31 - INFO - transformers.modeling_utils -   Weights from "
        "pretrained model not used in BertForSequenceClassification: "
        f"['roberta.{_LAYER}', 'lm_head.bias']\n",
    ],
)
def test_another_architecture_is_never_renamed(
    warning: str, report: str, tmp_path: Path
) -> None:
    found = Answered(warning + report, camembert(tmp_path / "cam"))
    assert found.said.startswith(
        "The checkpoint is a model of type camembert, and the class"
    )
    assert found.commands == [
        'transformers.AutoModelForSequenceClassification.from_pretrained("cam")'
    ]


def test_a_file_alone_has_the_warning_alone(tmp_path: Path) -> None:
    path = camembert(tmp_path / "cam") / "model.safetensors"
    report = f"bert.{_LAYER} | MISSING |\nroberta.{_LAYER} | UNEXPECTED |\n"
    found = Answered(_BUILT + report, path)
    assert "another architecture" in found.said and not found.commands
    alone = ckpt(
        "explain", "-", cwd=tmp_path, input=(_BUILT + report).encode()
    ).out.decode()
    assert "another architecture" in alone and "rename FILE" not in alone


def test_the_same_architecture_is_renamed(tmp_path: Path) -> None:
    folder = tmp_path / "cam"
    camembert(folder)
    layers = [f"encoder.layer.{number}.output.dense.weight" for number in range(3)]
    save_file({name: torch.ones(2, 2) for name in layers}, folder / "model.safetensors")
    rows = [f"{name} | UNEXPECTED |\nroberta.{name} | MISSING |\n" for name in layers]
    found = Answered("".join(rows), folder)
    assert any(command.startswith("ckpt rename cam") for command in found.commands)


def test_a_log_of_older_transformers_has_keys(tmp_path: Path) -> None:
    save_file(
        {"bert.weight": torch.ones(2), "cls.bias": torch.ones(2)},
        tmp_path / "m.safetensors",
    )
    text = (
        "INFO:pytorch_pretrained_bert.modeling:Weights of BertForX not initialized "
        "from pretrained model: ['classifier.weight']\n"
        "INFO:pytorch_pretrained_bert.modeling:Weights from pretrained model not used "
        "in BertForX: ['cls.bias']\n"
    )
    found = Answered(text, tmp_path / "m.safetensors")
    assert found.kind == "keys" and "classifier.weight" in found.names
    assert "head for a task" in found.said


# --- folders --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [("pytorch_model.bin.3", "pytorch_opt.bin.3"), ("last.pth.bak", "best.pth-old")],
)
def test_a_folder_of_checkpoints_with_more_behind_their_ending_is_listed(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in names:
        torch.save({"weight": torch.ones(2)}, folder / name)
    done = inside("inspect", "run", cwd=tmp_path)
    assert done.code == 0 and all(name.encode() in done.out for name in names)
    shown = inside(
        "explain",
        "ValueError: No adapter loaded. Please load an adapter first.",
        "run",
        cwd=tmp_path,
    )
    assert shown.code == 0 and b"This folder is not one checkpoint" in shown.out
    assert b"Trainers name the layers" in shown.out and b"ckpt ls run" in shown.out


def test_the_only_checkpoint_of_a_folder_answers(tmp_path: Path) -> None:
    folder = tmp_path / "lora"
    folder.mkdir()
    layer = "transformer_blocks.0.to_q"
    state = {f"{layer}.lora_{part}.weight": torch.ones(2, 2) for part in "AB"}
    save_file(state, folder / "pytorch_lora_weights.safetensors")
    found = Answered(
        "ValueError: No adapter loaded. Please load an adapter and try again.", folder
    )
    assert found.kind == "adapter" and "prefix=None" in found.said


# --- readers of other formats ---------------------------------------------------------


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_a_message_of_another_reader_is_no_older_copy(
    name: str, tmp_path: Path
) -> None:
    if name == "m.pt":
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / name))
    else:
        save_file({"weight": torch.ones(2)}, tmp_path / name)
    text = (
        "RuntimeError: unexpected EOF, expected 129070 more bytes. The file might be "
        "corrupted."
    )
    found = Answered(text, tmp_path / name)
    assert (
        "was still being written" not in found.said
        and "a reader of another format" in found.said
    )
    assert found.loaded() is not None


def test_a_copy_that_torch_reads_now_was_another_one(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "m.pth")
    text = (
        "RuntimeError: unexpected EOF, expected 129070 more bytes. The file might be "
        "corrupted."
    )
    found = Answered(text, tmp_path / "m.pth")
    assert "the copy that failed was another one" in found.said


# --- keys and shapes ------------------------------------------------------------------


def wide(width: int) -> torch.nn.Module:
    return torch.nn.ModuleDict(
        {"a": torch.nn.Linear(4, width), "b": torch.nn.Linear(width, width)}
    )


def test_nothing_that_fits_is_not_loaded(tmp_path: Path) -> None:
    torch.save(wide(8).state_dict(), tmp_path / "m.pth")
    text = raised(lambda: wide(4).load_state_dict(torch.load(tmp_path / "m.pth")))
    found = Answered(text, tmp_path / "m.pth")
    assert found.kind == "sizes" and not any(
        "load_into" in command for command in found.commands
    )
    with pytest.raises(CkptError):
        opened(tmp_path / "m.pth").load_into(wide(4))
    head = torch.nn.ModuleDict(
        {"body": torch.nn.Linear(9, 9), "head": torch.nn.Linear(9, 2)}
    )
    torch.save(head.state_dict(), tmp_path / "m.pth")
    other = torch.nn.ModuleDict(
        {"body": torch.nn.Linear(9, 9), "head": torch.nn.Linear(9, 3)}
    )
    text = raised(lambda: other.load_state_dict(torch.load(tmp_path / "m.pth")))
    assert any(
        "load_into" in command
        for command in Answered(text, tmp_path / "m.pth").commands
    )
    opened(tmp_path / "m.pth").load_into(other)


@pytest.mark.parametrize("word", ["weight", "bias"])
def test_a_part_by_the_last_word_of_tensors_is_no_place(
    word: str, tmp_path: Path
) -> None:
    torch.save(wide(4).state_dict(), tmp_path / "m.pth")
    found = Answered(f"KeyError: '{word}'", tmp_path / "m.pth")
    assert (
        "the whole file is the state dict, and the program asked for a part "
        f"called {word}"
    ) in found.said
    assert (
        "at another place" not in found.said
        and found.loaded().keys() == wide(4).state_dict().keys()
    )


def test_a_method_of_the_class_is_called_on_the_class(tmp_path: Path) -> None:
    torch.save(
        {"state_dict": wide(4).state_dict(), "pytorch-lightning_version": "2.5"},
        tmp_path / "last.ckpt",
    )
    text = (
        "TypeError: The classmethod `Net.load_from_checkpoint` cannot be called on an "
        "instance. Please call it on the class type and make sure the return value is "
        "used."
    )
    found = Answered(text, tmp_path / "last.ckpt")
    assert found.commands[0] == 'model = Net.load_from_checkpoint("last.ckpt")'
    assert found.loaded().keys() == wide(4).state_dict().keys()


def test_shapes_of_nnunet_are_of_other_plans(tmp_path: Path) -> None:
    state = {
        "decoder.up.weight": torch.ones(3, 3, 2, 2, 2),
        "encoder.weight": torch.ones(90),
    }
    torch.save({"network_weights": state}, tmp_path / "checkpoint_final.pth")
    text = (
        "AssertionError: The shape of the parameters of key decoder.up.weight is not "
        "the same. Pretrained model: torch.Size([3, 3, 2, 2, 2]); your network: "
        "torch.Size([3, 3, 2, 2, 1]). The pretrained model does not seem to be "
        "compatible with your network."
    )
    found = Answered(text, tmp_path / "checkpoint_final.pth")
    assert found.kind == "sizes" and "by the plans of its dataset" in found.said
    assert "[3, 3, 2, 2, 1]" in found.page


# --- what a mutated answer showed -----------------------------------------------------

_MISSING = (
    "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in "
    'state_dict: "layer.weight". '
)


def test_without_a_file_the_types_of_a_warning_answer() -> None:
    done = ckpt("explain", f"{_BUILT}{_MISSING}")
    said = " ".join(done.out.decode().split())
    assert done.code == 0
    assert (
        "is a model of type camembert, and the class that was built is of type bert"
        in (said)
    )
    assert "ckpt strip" not in said


@pytest.mark.parametrize(
    ("text", "is_wrapped"),
    [
        (_MISSING, False),
        ('Unexpected key(s) in state_dict: "module.layer.weight".', True),
        ('Unexpected key(s) in state_dict: "layer.weight".', False),
    ],
)
def test_a_command_is_shown_with_the_sentence_that_introduces_it(
    text: str, is_wrapped: bool
) -> None:
    said = ckpt("explain", text).out.decode()
    assert ("A wrapper" in said) is is_wrapped
    assert ("ckpt strip FILE -o OUT" in said) is is_wrapped


def test_scales_are_no_answer_to_an_error_without_names(tmp_path: Path) -> None:
    """Only vLLM's assertions, which name no tensor, are about them."""
    codes = torch.zeros(256, 256).to(torch.float8_e4m3fn)
    torch.save(
        {"layer.weight": codes, "layer.weight_scale_inv": torch.ones(2, 2)},
        tmp_path / "a.pth",
    )
    built = "Layers of the quantizer take scales"
    vllm = Answered(
        "AssertionError: Attempted to load weight (torch.Size([2, 2])) into parameter "
        "(torch.Size([4, 4]))",
        tmp_path / "a.pth",
    )
    other = Answered(
        "RuntimeError: Error(s) in loading state_dict for Net:", tmp_path / "a.pth"
    )
    assert built in vllm.said and built not in other.said

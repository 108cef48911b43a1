"""Questions for another form of a file: for transformers, for a merge of an adapter
that was trained on a base in 4 bits, for a training that goes on with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered, weights
from inside import folder_of
from process import ckpt
from torch import Tensor

pytestmark = [*oracle.QUIET, pytest.mark.slow]

State = dict[str, Tensor]


def llama() -> State:
    """A small Llama by the names of Meta."""
    state = weights(tok_embeddings__weight=(32, 16), norm__weight=(16,))
    for number in range(2):
        block = f"layers.{number}"
        for name in ("wq", "wk", "wv", "wo"):
            state[f"{block}.attention.{name}.weight"] = torch.randn(16, 16)
        for name, shape in (("w1", (48, 16)), ("w2", (16, 48)), ("w3", (48, 16))):
            state[f"{block}.feed_forward.{name}.weight"] = torch.randn(shape)
        state[f"{block}.attention_norm.weight"] = torch.randn(16)
        state[f"{block}.ffn_norm.weight"] = torch.randn(16)
    return state | {"output.weight": state["tok_embeddings.weight"]}


def test_a_file_for_transformers(tmp_path: Path) -> None:
    arguments = {"dim": 16, "n_layers": 2, "n_heads": 4, "vocab_size": 32}
    run = {"model": llama(), "model_args": arguments, "iter_num": 2000}
    torch.save(run, tmp_path / "ckpt.pt")
    text = (
        "I have a question that after training, can I convert ckpt.pt to hugging face "
        "model? And can I use the LlamaForCausalLM to inference?"
    )
    found = Answered(text, tmp_path / "ckpt.pt")
    # The name of the file is no format that is asked for.
    assert not any(".ckpt" in command for command in found.commands)
    assert "a folder with config.json" in found.said
    assert "Llama in the words of Meta" in found.said
    assert "keeps its values otherwise" in found.said
    assert "ckpt get ckpt.pt model_args" in found.commands


def test_a_conversion_to_a_format_is_printed_as_before(tmp_path: Path) -> None:
    torch.save({"model": llama(), "epoch": 1}, tmp_path / "a.ckpt")
    found = Answered("how to convert a.ckpt to .safetensors?", tmp_path / "a.ckpt")
    assert any(row.endswith("-o a.safetensors") for row in found.commands)


def test_a_scaler_that_is_none_is_no_statistic(tmp_path: Path) -> None:
    encoder = {f"module.backbone.{name}": row for name, row in llama().items()}
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(4))])
    run: dict[str, Any] = {
        "encoder": encoder,
        "target_encoder": encoder,
        "predictor": weights(module__embed__weight=(4, 4)),
        "scaler": None,
        "opt": optimizer.state_dict(),
        "epoch": 40,
        "loss": 0.45,
    }
    torch.save(run, tmp_path / "latest.pt")
    text = (
        "Is there a way for me to convert this trained checkpoint into a huggingface "
        "model? It seems like the keys of both models are very different."
    )
    found = Answered(text, tmp_path / "latest.pt")
    assert "a folder with config.json" in found.said
    # The optimizer is no settings of the run, although it is called so.
    assert "ckpt get latest.pt opt" not in found.commands
    for text in ("", "the results are different after I load the model, why?"):
        found = Answered(text or "is scaler needed?", tmp_path / "latest.pt")
        assert "by which the run scaled what the model gets" not in found.said


# --- adapters of a base in 4 bits -----------------------------------------------------


def adapter(folder: Path) -> Path:
    state = {}
    for number in range(2):
        layer = f"base_model.model.model.layers.{number}.self_attn.q_proj"
        state[f"{layer}.lora_A.weight"] = torch.randn(4, 16)
        state[f"{layer}.lora_B.weight"] = torch.randn(16, 4)
    folder.mkdir()
    torch.save(state, folder / "adapter_model.bin")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": "decapoda-research/llama-30b-hf",
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: Cannot merge LORA layers when the model is loaded in 8-bit mode",
        "ValueError: Cannot merge LORA layers when the model is gptq quantized",
        "What is the correct way to merge the adapters after training a 4-bit model?",
        "how do I merge my QLoRA adapter into the base?",
    ],
)
def test_a_merge_wants_the_base_in_floats(text: str, tmp_path: Path) -> None:
    found = Answered(text, adapter(tmp_path / "guanaco"))
    assert "The adapter itself is in float32, and not in 4 or 8 bits" in found.said
    assert "without load_in_4bit" in found.said
    assert "ckpt merge BASE guanaco -o MERGED/ --with-config" in found.commands


def test_an_adapter_is_trained_further(tmp_path: Path) -> None:
    text = (
        "Is there a way to load the model adapter as an adapter, just like it was in "
        "the training time, into the 4bit base model to continue fine tuning?"
    )
    found = Answered(text, adapter(tmp_path / "guanaco"))
    (line,) = [row for row in found.commands if "is_trainable=True" in row]
    assert 'from_pretrained(base, "guanaco", is_trainable=True)' in line
    assert "ckpt convert" not in " ".join(found.commands)


# --- runs that begin at 0, and counters ------------------------------------------------


def test_an_epoch_that_is_initialized_anew(tmp_path: Path) -> None:
    run = {"model": weights(fc__weight=(4, 4)), "step": 41_000, "epoch": 12}
    torch.save(run, tmp_path / "checkpoint_41000.pth.tar")
    text = (
        "whenever i tried to resume the last checkpoint (due to power failure), why is "
        "the epoch re-initialized to 0 again but not the last epoch that it stop? Does "
        "it mean that the model start to train all over again?"
    )
    found = Answered(text, tmp_path / "checkpoint_41000.pth.tar")
    assert "records where its run stood: step is 41000, epoch is 12" in found.said


def test_an_epoch_that_the_file_does_not_record(tmp_path: Path) -> None:
    path = tmp_path / "efficientdet-d2_10_90000.pth"
    torch.save(weights(conv__weight=(4, 4), classifier__weight=(9, 4)), path)
    text = (
        "I'm trying to load checkpoint of epoch 10, step 90000, but after reloading it "
        "starts from epoch 5, step 90000. This makes me confusing. Which of them are "
        "correct?"
    )
    found = Answered(text, path)
    assert "This file records no epoch, iteration or step" in found.said
    assert "Its name has 10, 90,000" in found.said
    assert "the model that it began with" not in found.said


# --- two files ------------------------------------------------------------------------


def said_of(text: str, folder: Path, *names: str) -> str:
    done = ckpt("explain", text, *names, cwd=folder)
    assert done.code == 0, done.err
    return " ".join(done.out.decode().split())


def test_a_head_that_one_file_alone_has(tmp_path: Path) -> None:
    body = weights(blocks__0__weight=(4, 4), cls_token=(1, 1, 4))
    published = body | weights(mask_token=(1, 1, 4), decoder_embed__weight=(4, 4))
    torch.save({"model": published}, tmp_path / "weights.pth")
    tuned = {name: value + 0.1 for name, value in body.items()}
    tuned |= weights(head__weight=(5, 4), head__bias=(5,))
    torch.save({"model": tuned, "epoch": 31}, tmp_path / "best.pth")
    text = "the results of weights.pth differ from those of best.pth, why?"
    said = said_of(text, tmp_path, "weights.pth", "best.pth")
    assert "best.pth alone has a head (model.head, 5 rows)" in said
    assert "a program that evaluates weights.pth makes one of random numbers" in said


def test_one_result_of_two_files_that_differ(tmp_path: Path) -> None:
    for name in ("best.pt", "last.pt"):
        torch.save({"model": weights(fc__weight=(4, 4))}, tmp_path / name)
    text = (
        "I tested with best and last and found that the result on the test set is "
        "exactly the same for both models. Are they the same?"
    )
    said = said_of(text, tmp_path, "best.pt", "last.pt")
    assert "So they are not the same" in said
    assert "an evaluation that gives both one result" in said


# --- one list at several places, a projection -----------------------------------------


def refusal(state: State, model: State) -> str:
    text = "RuntimeError: Error(s) in loading state_dict for Net:\n"
    for name, value in model.items():
        if state[name].shape != value.shape:
            text += (
                f"\tsize mismatch for {name}: copying a param with shape "
                f"{state[name].shape} from checkpoint, the shape in current model is "
                f"{value.shape}.\n"
            )
    return text


def test_one_list_at_several_places_is_one_difference(tmp_path: Path) -> None:
    def graph(count: int) -> State:
        state = weights(gnn__w_n2l__weight=(16, count), gnn__w_n2l__bias=(16,))
        for number in (3, 4):
            place = f"ops.{number}.node_type"
            state[f"{place}_pred.main.2.weight"] = torch.randn(count, 16)
            state[f"{place}_pred.main.2.bias"] = torch.randn(count)
            state[f"{place}_embedding.weight"] = torch.randn(count, 16)
        return state

    torch.save(graph(533), tmp_path / "epoch-best.ckpt")
    found = Answered(refusal(graph(533), graph(292)), tmp_path / "epoch-best.ckpt")
    assert "their list or number differs" in found.said
    assert "more than a list differs" not in found.said


def test_a_square_last_layer_has_no_classes(tmp_path: Path) -> None:
    def extractor(outputs: int) -> State:
        return weights(
            feature_extractor__conv1__weight=(8, 3, 7, 7),
            fc__weight=(outputs, 512),
            fc__bias=(outputs,),
        )

    torch.save(extractor(512), tmp_path / "model.pth")
    found = Answered(refusal(extractor(512), extractor(2)), tmp_path / "model.pth")
    assert "another number of classes" not in found.said
    assert "as many outputs as inputs" in found.said
    assert any(".load_into(model)" in command for command in found.commands)


# --- a program's own keys, parts of a run ---------------------------------------------


def test_a_gpt2_for_nanogpt(tmp_path: Path) -> None:
    state = weights(transformer__wte__weight=(50, 16), transformer__wpe__weight=(8, 16))
    state |= weights(
        transformer__h__0__attn__c_attn__weight=(16, 48),
        transformer__h__0__attn__c_attn__bias=(48,),
        transformer__h__0__ln_1__weight=(16,),
    )
    torch.save(state, tmp_path / "ckpt.pt")
    text = (
        'Traceback (most recent call last):\n  File "sample.py", line 41, in <module>\n'
        "    gptconf = GPTConfig(**checkpoint['model_args'])\nKeyError: 'model_args'\n"
    )
    found = Answered(text, tmp_path / "ckpt.pt")
    assert "model_args is a key of a checkpoint of nanoGPT" in found.said
    assert "init_from" in found.said


def test_the_files_of_deepspeed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder = run / "global_step5"
    folder.mkdir(parents=True)
    (run / "latest").write_text("global_step5")
    state = weights(fc__weight=(4, 4))
    model = {
        "module": state,
        "param_shapes": [{"fc.weight": torch.Size([4, 4])}],
        "buffer_names": [],
        "shared_params": {},
        "dp_world_size": 2,
        "ds_version": "0.15.4",
    }
    torch.save(model, folder / "mp_rank_00_model_states.pt")
    for rank in (0, 1):
        part = state["fc.weight"].flatten()[8 * rank : 8 * rank + 8]
        optimizer = {
            "single_partition_of_fp32_groups": [part],
            "base_optimizer_state": {"state": {}, "param_groups": []},
            "zero_stage": 2,
            "group_paddings": [0],
            "partition_count": [2],
        }
        torch.save(
            {"optimizer_state_dict": optimizer, "ds_version": "0.15.4"},
            folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
    text = (
        "it saves mp_rank_00_model_states.pt, which is very big (31GB). Is it useful? "
        "Can I remove it? There are bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt and "
        "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt. Which is the final one?"
    )
    found = Answered(text, run)
    assert "None of them is the final one" in found.said
    assert any(command.startswith("ckpt slim run") for command in found.commands)


def test_averages_alone_are_no_run(tmp_path: Path) -> None:
    state = weights(proj__weight=(4, 4), proj__bias=(4,))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(4, 4))])
    run = {
        "model_state_dict": state,
        "optimizer_state_dict": optimizer.state_dict(),
        "ema_model_state_dict": {f"ema_model.{name}": state[name] for name in state},
        "step": 12_000,
    }
    torch.save(run, tmp_path / "model_12000.pt")
    text = (
        "it saves as 5GB. Do you have any ideas on how to make these checkpoints "
        "smaller? is it safe to keep only the ema_model_state_dict 1.3GB?"
    )
    found = Answered(text, tmp_path / "model_12000.pt")
    assert "no run goes on from that part alone" in found.said


def test_a_gan_without_its_discriminator(tmp_path: Path) -> None:
    torch.save(weights(generator__conv__weight=(4, 4)), tmp_path / "train.model")
    text = "Is there a simple way to continue train? Is it possible without saving and "
    found = Answered(
        f"{text}loading the discriminator state?", tmp_path / "train.model"
    )
    assert "No key and no name of this file has the word discriminator" in found.said
    assert "begins with a new one" in found.said


def test_ten_times_the_file_size(tmp_path: Path) -> None:
    state = weights(encoder__weight=(4, 4))
    torch.save({"state": state}, tmp_path / "SCNet.th")
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(4, 4))])
    run = {"state": state, "best": {"encoder.weight": torch.randn(4, 4)}}
    torch.save(run | {"optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.th")
    text = (
        "I get checkpoint save-sizes almost 10-times the filesize of the sample. Is "
        "there anything to check in the config to mitigate this issue?"
    )
    said = said_of(text, tmp_path, "SCNet.th", "checkpoint.th")
    assert "The tensors of checkpoint.th take" in said


# --- logs of loaders, and channels -----------------------------------------------------


def test_the_list_of_an_older_fvcore(tmp_path: Path) -> None:
    state = weights(backbone__stem__conv1__weight=(8, 3, 7, 7))
    state |= weights(backbone__res2__conv1__weight=(8, 8, 1, 1))
    torch.save({"model": state, "__author__": "NPID"}, tmp_path / "npid.pth")
    text = (
        "Does that mean that all parameters not mentioned below are loaded?\n\n"
        "[03/05 20:00:13] fvcore.common.checkpoint INFO: Some model parameters are not "
        "in the checkpoint:\n  proposal_generator.rpn_head.conv.{weight, bias}\n"
        "  roi_heads.box_predictor.cls_score.{weight, bias}\n"
    )
    found = Answered(text, tmp_path / "npid.pth")
    assert found.kind == "keys"
    assert any("roi_heads.box_predictor.cls_score.weight" in row for row in found.names)


def test_a_name_before_a_sentence_without_a_space(tmp_path: Path) -> None:
    state = weights(transformer__decoder__layers__0__norm1__weight=(4,))
    torch.save({"model": state}, tmp_path / "r50.pth")
    text = "".join(
        f"No param transformer.decoder.layers.0.{name}.If you see this, your model does "
        "not fully load the pre-trained weight.\n"
        for name in ("update_attn.out_proj.weight", "norm4.bias")
    )
    found = Answered(text, tmp_path / "r50.pth")
    assert "transformer.decoder.layers.0.norm4.bias" in found.names


@pytest.mark.parametrize(
    ("size", "got", "said"),
    [
        ("1, 1, 150, 150", 1, "x.expand(-1, 3, -1, -1)"),
        ("1, 4, 150, 150", 4, "x[:, :3]"),
        ("1, 150, 150, 3", 150, "x.permute(0, 3, 1, 2)"),
    ],
)
def test_pictures_of_other_channels(
    size: str, got: int, said: str, tmp_path: Path
) -> None:
    state = weights(conv1__weight=(64, 3, 7, 7), fc__weight=(10, 64))
    torch.save(state, tmp_path / "resnet.pth")
    text = (
        "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input"
        f"[{size}] to have 3 channels, but got {got} channels instead\n"
    )
    found = Answered(text, tmp_path / "resnet.pth")
    assert "conv1.weight of this file" in found.said
    assert any(said in command for command in found.commands)
    if got == 1:
        (line,) = [command for command in found.commands if ".sum(1" in command]
        names: dict[str, Any] = {"torch": torch}
        with folder_of(tmp_path):
            exec(line, names)
        assert names["state"]["conv1.weight"].shape == (64, 1, 7, 7)

"""Questions in plain words about a run and what is around its weights: how it went, how
long it goes on, why it ended, its groups, its adapter, its files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from answered import Answered, weights
from process import ckpt
from safetensors.torch import save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]

MODEL = weights(
    stem__weight=(8, 3, 3, 3), stem__bias=(8,), fc__weight=(5, 8), fc__bias=(5,)
)


def saved(state: Any, folder: Path, name: str = "run.pt") -> Path:
    torch.save(state, folder / name)
    return folder / name


def with_history(folder: Path, **history: list[float]) -> Path:
    return saved({"model": MODEL, "history": history, "epoch": 5}, folder)


def write_trainer_folder(folder: Path, **state: Any) -> Path:
    """A checkpoint of the Trainer: weights, its config, and what it recorded."""
    folder = folder / "checkpoint-300"
    folder.mkdir()
    save_file(MODEL, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    state = {"global_step": 300, "epoch": 1.5, **state}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


# --- how it went ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        "did it overfit?",
        "is the model converged",
        "at which epoch was the validation loss lowest?",
        "val loss went up at the end, right?",
    ],
)
def test_a_history_says_how_the_run_went(question: str, tmp_path: Path) -> None:
    path = with_history(
        tmp_path, train_loss=[4, 3, 2.5, 2, 1.5], val_loss=[4, 3, 2.75, 3, 3.5]
    )

    answer = Answered(question, path)

    assert answer.code == 0
    assert (
        "history.val_loss has 5 numbers, from 4 to 3.5. The lowest is 2.75, at number 3 "
        "of 5; the last is at number 5 of 5."
    ) in answer.said
    assert (
        "history.train_loss has 5 numbers, from 4 to 1.5. The last is the lowest"
        in (answer.said)
    )
    assert "was no better after number 3 of 5, while history.train_loss still fell" in (
        answer.said
    )
    assert "may be chance" not in answer.said


def test_an_accuracy_is_best_where_it_is_highest(tmp_path: Path) -> None:
    path = with_history(tmp_path, val_acc=[0.25, 0.5, 0.75], loss=[3, 2, 1])

    answer = Answered("is it overfitting?", path)

    assert "The last is the highest (number 3 of 3)" in answer.said
    assert "nothing here speaks of overfitting" in answer.said


def test_a_training_loss_that_rose_is_no_sign_of_overfitting(tmp_path: Path) -> None:
    path = with_history(tmp_path, train_loss=[1, 2, 3], valid_loss=[1, 2, 3])

    answer = Answered("did it overfit?", path)

    assert "history.valid_loss was no better after number 1 of 3." in answer.said
    assert "which is overfitting" not in answer.said


def test_a_log_of_steps_is_read_by_its_steps(tmp_path: Path) -> None:
    rows = [
        {"step": 100, "epoch": 0.5, "loss": 2.0, "grad_norm": 1.0},
        {"step": 200, "epoch": 1.0, "loss": 1.5, "grad_norm": 64.0},
        {"step": 200, "epoch": 1.0, "eval_loss": 1.25},
        {"step": 300, "epoch": 1.5, "loss": 1.0, "grad_norm": 2.0},
        {"step": 300, "epoch": 1.5, "eval_loss": 1.5},
    ]
    path = write_trainer_folder(tmp_path, log_history=rows)

    answer = Answered("why did the eval loss increase?", path)
    of_gradients = Answered("did the gradients explode?", path)

    assert "The lowest is 1.25, at step 200; the last is at step 300." in answer.said
    assert "while loss still fell" in answer.said
    assert "One number after the best may be chance." in answer.said
    assert "The highest is 64, at step 200, and the middle one 2." in of_gradients.said


def test_a_file_without_a_history_says_so(tmp_path: Path) -> None:
    path = saved({"model": MODEL, "betas": [0.1, 0.2, 0.3], "epoch": 3}, tmp_path)

    answer = Answered("did it overfit?", path)

    assert answer.code == 0
    assert "This file has no list of losses or metrics and no log" in answer.said
    assert "numbers" not in answer.said


def test_a_loss_that_rose_again_is_compared_with_the_best_step(tmp_path: Path) -> None:
    rows = [
        {"step": 100, "loss": 2.0},
        {"step": 200, "loss": 1.0, "eval_loss": 1.0},
        {"step": 300, "loss": 1.5, "eval_loss": 2.0},
    ]

    answer = Answered(
        "did it overfit?", write_trainer_folder(tmp_path, log_history=rows)
    )

    assert "eval_loss was no better after step 200." in answer.said
    assert "which is overfitting" not in answer.said
    # The training's own numbers come second, although the log has them first.
    assert answer.said.index("eval_loss has") < answer.said.index(" loss has")


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ({"acc_loss": [3, 2, 1]}, "The last is the lowest (number 3 of 3)"),
        ({"loss_acc": [1, 2, 3]}, "The last is the highest (number 3 of 3)"),
        ({"loss": [2, 1]}, "This file has no list of losses or metrics"),
        ({"widths": [2, 1, 3]}, "This file has no list of losses or metrics"),
    ],
)
def test_the_last_word_of_a_name_says_which_numbers_are_better(
    history: dict[str, list[float]], said: str, tmp_path: Path
) -> None:
    answer = Answered("did it overfit?", with_history(tmp_path, **history))

    assert said in answer.said


def test_a_history_behind_many_tensors_is_found(tmp_path: Path) -> None:
    many = {f"w{number}": torch.zeros(1) for number in range(25_000)}
    path = saved({"model": many, "history": {"loss": [3.0, 2.0, 1.0]}}, tmp_path)

    assert "history.loss has 3 numbers" in Answered("did it converge?", path).said


def test_the_best_value_of_a_callback_is_told(tmp_path: Path) -> None:
    callback = {
        "monitor": "val_loss",
        "best_model_path": "/runs/best.ckpt",
        "best_model_score": torch.tensor(0.5),
    }
    state = {
        "state_dict": MODEL,
        "epoch": 3,
        "callbacks": {"ModelCheckpoint": callback},
    }

    answer = Answered("which metric was best?", saved(state, tmp_path))

    assert "recorded best.ckpt as the best, by val_loss (0.5)" in answer.said


# --- how long, and why it ended -------------------------------------------------------


def test_a_plan_says_what_is_left(tmp_path: Path) -> None:
    path = write_trainer_folder(tmp_path, max_steps=900, num_train_epochs=3)

    answer = Answered("how much longer will the training take?", path)

    assert "trainer_state.max_steps is 900" in answer.said
    assert "So it is at 300 of 900 steps: 600 steps are left." in answer.said


def test_a_run_at_its_end_has_nothing_left(tmp_path: Path) -> None:
    path = saved({"model": MODEL, "epoch": 90, "args": {"epochs": 90}}, tmp_path)

    answer = Answered("is the training finished?", path)

    assert "So it is at its end: 90 of 90 epochs." in answer.said


def test_warmup_is_no_length_of_a_run(tmp_path: Path) -> None:
    settings = {"num_warmup_epochs": 5, "max_eval_steps": 10}
    path = saved({"model": MODEL, "epoch": 2, "args": settings}, tmp_path)

    answer = Answered("how many epochs are left?", path)

    assert "No setting in this file says how many epochs or steps" in answer.said


@pytest.mark.parametrize(
    ("count", "end"),
    [(5, ": that ended the run."), (3, ": at this save it had not ended the run.")],
)
def test_early_stopping_says_whether_it_ended_a_run(
    count: int, end: str, tmp_path: Path
) -> None:
    callback = {"wait_count": count, "patience": 5, "best_score": 0.5}
    state = {"state_dict": MODEL, "callbacks": {"EarlyStopping{}": callback}}

    answer = Answered("why did the training stop?", saved(state, tmp_path))

    assert (
        f"counted {count} checks in a row without a better value, and its patience is "
        f"5{end}"
    ) in answer.said


def test_a_counter_of_another_part_is_no_early_stopping(tmp_path: Path) -> None:
    state = {"model": MODEL, "plateau": {"counter": 5, "patience": 5}, "epoch": 1}

    answer = Answered("why did the training stop?", saved(state, tmp_path))

    assert "counted 5 checks" not in answer.said
    assert "records no early stopping" in answer.said


def test_a_part_of_an_epoch_is_counted(tmp_path: Path) -> None:
    answer = Answered("how many epochs was it trained?", write_trainer_folder(tmp_path))

    assert "trainer_state.epoch is 1.5" in answer.said


# --- groups, scalers, averages --------------------------------------------------------


def test_the_groups_of_an_optimizer_say_what_decays(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    matrices = [row for row in net.parameters() if row.dim() > 1]
    vectors = [row for row in net.parameters() if row.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.5,
        weight_decay=0.25,
    )
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    answer = Answered("is weight decay applied to the norms?", saved(state, tmp_path))

    assert "optimizer has 2 groups of parameters." in answer.said
    assert (
        "Group 0 has lr 0.5, weight_decay 0.25, for 2 matrices or kernels."
    ) in answer.said
    assert "Group 1 has lr 0.5, weight_decay 0, for " in answer.said
    assert "weight_decay 0, for 2 biases, 2 vectors." in answer.said


def test_groups_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    net = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(9)))
    optimizer = torch.optim.AdamW([{"params": [row]} for row in net.parameters()])
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    answer = Answered("which param groups are there?", saved(state, tmp_path))

    assert "optimizer has 9 groups of parameters." in answer.said
    assert "1 further group is not listed here." in answer.said


def test_a_scaler_shows_mixed_precision(tmp_path: Path) -> None:
    scaler = {"scale": 512.0, "growth_factor": 2.0, "_growth_tracker": 4}
    state = {"model": MODEL, "scaler": scaler, "args": {"amp": True}}

    answer = Answered("was mixed precision used?", saved(state, tmp_path))

    assert "This file records: args.amp is True." in answer.said
    assert "the state of a GradScaler (scaler.scale is 512)" in answer.said


def test_averages_are_compared_by_two_commands(tmp_path: Path) -> None:
    ema = {name: tensor + 1 for name, tensor in MODEL.items()}
    path = saved({"model": MODEL, "ema": ema}, tmp_path)

    answer = Answered("how far is the EMA from the model?", path)

    write, compare = (row for row in answer.commands if row.startswith("ckpt "))
    assert answer.run("ckpt slim").is_file(), write
    done = ckpt(*compare.split()[1:], cwd=tmp_path)
    assert done.code == 1 and b"4 tensors" in done.out


def test_optimizers_before_their_first_step_begin_anew(tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    state = {
        "model": net.state_dict(),
        "optimizer": torch.optim.Adam(net.parameters()).state_dict(),
    }

    answer = Answered("can I resume from this?", saved(state, tmp_path))

    assert "begins with new moments" in answer.said
    assert "So a run can go on from it" not in answer.said


def test_one_optimizer_with_state_is_enough_to_go_on(tmp_path: Path) -> None:
    one, two = nn.Linear(4, 2), nn.Linear(4, 3)
    used = torch.optim.Adam(one.parameters())
    one(torch.ones(1, 4)).sum().backward()
    used.step()
    state = {
        "one": one.state_dict(),
        "two": two.state_dict(),
        "used": used.state_dict(),
        "unused": torch.optim.Adam(two.parameters()).state_dict(),
    }

    answer = Answered("can I resume from this?", saved(state, tmp_path))

    assert "So a run can go on from it" in answer.said


# --- adapters -------------------------------------------------------------------------


def write_adapter(folder: Path, *, trained: tuple[int, ...]) -> Path:
    """A folder of PEFT with two layers, of which some were trained."""
    folder = folder / "lora"
    folder.mkdir()
    state = {}
    for layer in range(2):
        begin = f"base_model.model.layers.{layer}.q_proj"
        b = torch.eye(8, 4) if layer in trained else torch.zeros(8, 4)
        state[f"{begin}.lora_A.weight"] = torch.randn(4, 8)
        state[f"{begin}.lora_B.weight"] = b
    save_file(state, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": "org/base",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        ((), "this adapter adds nothing, and the model with it is the base model."),
        ((1,), "B of 1 of 2 layers (lora_B, lora_up, with which an adapter adds its "),
        ((0, 1), "B of none of its 2 layers"),
    ],
)
def test_an_adapter_says_which_layers_it_changes(
    trained: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    path = write_adapter(tmp_path, trained=trained)

    answer = Answered("did the LoRA learn anything?", path)

    assert answer.code == 0 and said in answer.said
    if len(trained) == 1:
        assert answer.names == ["base_model.model.layers.0.q_proj.lora_B.weight"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("what rank and alpha?", "of rank 4, for 2 layers"),
        ("which layers does it change?", "q_proj ×2"),
        ("how do I set the strength of it?", "lora_alpha 8, and so the factor 2."),
        ("can I use it without the base model?", "The base model is not in it"),
    ],
)
def test_an_adapter_says_what_it_is(question: str, said: str, tmp_path: Path) -> None:
    answer = Answered(question, write_adapter(tmp_path, trained=(0, 1)))

    assert answer.code == 0 and said in answer.said


# --- around the weights ---------------------------------------------------------------


def test_a_folder_sorts_its_files(tmp_path: Path) -> None:
    path = write_trainer_folder(tmp_path)
    torch.save({"base_lrs": [0.1], "last_epoch": 3}, path / "scheduler.pt")

    answer = Answered("which files do I need for inference?", path)
    (path / "tokenizer.json").write_text("{}")
    again = Answered("does it have a tokenizer?", path)

    assert "For the model, or about it: config.json, model.safetensors." in answer.said
    assert "No tokenizer and no processor is in this folder" in answer.said
    assert "Only a run that goes on needs scheduler.pt, trainer_state.json." in (
        answer.said
    )
    assert "(a tokenizer, a processor): tokenizer.json." in again.said


def test_paths_of_the_author_are_named_with_a_copy_without_them(tmp_path: Path) -> None:
    args = {"data": "/home/ada/data", "lr": 0.1, "arch": "resnet"}
    path = saved({"model": MODEL, "args": args}, tmp_path)

    answer = Answered("can I share this without leaking my paths?", path)
    copy = answer.run("ckpt slim")

    assert "args.data is /home/ada/data." in answer.said
    assert b"ada" in path.read_bytes()
    assert b"ada" not in copy.read_bytes()


def test_no_time_is_in_a_file_of_torch(tmp_path: Path) -> None:
    answer = Answered("when was this saved?", saved({"model": MODEL}, tmp_path))
    dated = saved({"model": MODEL, "date": "2026-11-02"}, tmp_path, "dated.pt")

    assert "write no time into a file" in answer.said
    assert "date is 2026-11-02" in Answered("when was it made?", dated).said


def test_layers_are_counted_by_the_shapes_of_weights(tmp_path: Path) -> None:
    norm = {"bn.running_mean": torch.zeros(8), "bn.running_var": torch.ones(8)}
    path = saved({**MODEL, **norm}, tmp_path)

    answer = Answered("how many conv layers are there?", path)

    assert "1 of 4 (convolutions over pictures)" in answer.said
    assert "1 of 2 dimensions (linear layers, tables)" in answer.said
    assert "Beside them: 1 norm with running statistics." in answer.said


def test_experts_are_told_by_names(tmp_path: Path) -> None:
    experts = {
        f"layers.0.mlp.experts.{number}.w.weight": torch.zeros(2, 2)
        for number in range(3)
    }

    answer = Answered("is it a MoE?", saved(experts, tmp_path))
    other = Answered("is it a MoE?", saved(MODEL, tmp_path, "other.pt"))

    assert "3 experts in a layer" in answer.said
    assert "no mixture of experts" in other.said


# --- ranks and formats ----------------------------------------------------------------


def write_dcp(folder: Path) -> Path:
    source = saved({"model": MODEL}, folder)
    assert ckpt("convert", source.name, "-o", "run.dcp", cwd=folder).code == 0
    source.unlink()
    return folder / "run.dcp"


@pytest.mark.parametrize(
    "question", ["how many ranks wrote this?", "can I load it on a single GPU?"]
)
def test_a_dcp_says_which_ranks_may_read_it(question: str, tmp_path: Path) -> None:
    answer = Answered(question, write_dcp(tmp_path))

    assert "The names of its files have 1 rank: 0." in answer.said
    assert "with any number of ranks, one included" in answer.said
    whole = torch.load(answer.run("ckpt convert run.dcp -o run.dcp.pth"))["model"]
    assert torch.equal(whole["fc.weight"], MODEL["fc.weight"])


def test_a_folder_becomes_one_file(tmp_path: Path) -> None:
    answer = Answered("how do I get one .pth file from this?", write_dcp(tmp_path))

    assert (
        torch.load(answer.run("ckpt convert run.dcp -o run.dcp.pth"))["model"].keys()
        == MODEL.keys()
    )


def test_a_rank_that_lacks_is_named(tmp_path: Path) -> None:
    path = write_trainer_folder(tmp_path)
    for rank in (0, 2):
        torch.save({"cpu": torch.get_rng_state()}, path / f"rng_state_{rank}.pth")

    answer = Answered("is a rank missing?", path)

    assert "No file is of rank 1, which others have a number above." in answer.said


def test_a_plain_file_is_whole_for_any_number_of_ranks(tmp_path: Path) -> None:
    state = {f"module.{name}": tensor for name, tensor in MODEL.items()}

    answer = Answered("can I use it on one GPU?", saved(state, tmp_path))

    assert "All 4 names begin with module." in answer.said
    assert "It is whole: no rank has a part of it alone." in answer.said


@pytest.mark.parametrize("name", ["mp_rank_00.pt", "model-00001-of-00002.pt"])
def test_a_part_is_not_called_whole(name: str, tmp_path: Path) -> None:
    answer = Answered("can I load it on one GPU?", saved(MODEL, tmp_path, name))

    assert "By its name it is one part of several" in answer.said
    assert "It is whole" not in answer.said


def test_a_format_that_sorts_names_says_nothing_of_a_first_layer(
    tmp_path: Path,
) -> None:
    state = weights(
        blk__attn__weight=(8, 8),
        lm_head__weight=(9, 8),
        model__embed_tokens__weight=(9, 8),
    )
    save_file(state, tmp_path / "model.safetensors")
    other = {"blk.attn.weight": torch.zeros(8, 8)}
    save_file(other, tmp_path / "other.safetensors")

    answer = Answered("what input size does it take?", tmp_path / "model.safetensors")
    none = Answered("what input size does it take?", tmp_path / "other.safetensors")

    assert "Its first weight is a table, model.embed_tokens.weight" in answer.said
    assert "first weight" not in none.said


# --- any question ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("how many attention heads and kv heads?", "num_key_value_heads is 2"),
        ("how big is the vocab", "vocab_size is 1,000"),
        ("what are the betas", "opt.betas is [0.9, 0.99]"),
        ("is rope scaling used", "by names that are near: config.rope_theta is 10000"),
    ],
)
def test_words_of_a_question_find_values(
    question: str, said: str, tmp_path: Path
) -> None:
    config = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "rope_theta": 10000.0,
    }
    state = {"model": MODEL, "config": config, "opt": {"betas": (0.9, 0.99)}}

    answer = Answered(question, saved(state, tmp_path))

    assert answer.code == 0 and said in answer.said


def test_a_question_that_nothing_answers_gets_what_the_file_records(
    tmp_path: Path,
) -> None:
    path = saved({"model": MODEL, "epoch": 3, "args": {"lr": 0.1}}, tmp_path)

    answer = Answered("should I paint it blue?", path)

    assert answer.code == 2
    assert "It records epoch 3." in answer.said
    assert "ckpt get run.pt args" in answer.commands
    assert "ckpt finds nothing" not in answer.said


def test_the_generator_and_the_discriminator_are_known_by_letters(
    tmp_path: Path,
) -> None:
    state = {"G": weights(a__weight=(3, 2)), "D": weights(b__weight=(1, 3))}
    path = saved(state, tmp_path)

    assert (
        "G is a part of this file" in Answered("which one is the generator", path).said
    )
    assert "D has 1 parameter." in Answered("was the discriminator trained?", path).said


@pytest.mark.parametrize(
    "text", ["why is my loss nan?", "the model outputs nan in eval mode only"]
)
def test_nan_of_a_file_is_named_for_any_words_of_it(text: str, tmp_path: Path) -> None:
    state = {**MODEL, "bn.running_var": torch.tensor([1.0, float("nan")])}

    answer = Answered(text, saved(state, tmp_path))

    assert answer.code == 0
    assert "1 element is NaN in bn.running_var" in answer.said


def test_a_model_that_no_name_has_is_said_to_be_absent(tmp_path: Path) -> None:
    path = saved({"model": MODEL, "netD": {"w": torch.ones(2, 2)}}, tmp_path)

    absent = Answered("does this checkpoint include the decoder weights?", path)
    short = Answered("is there a discriminator in it", path)

    assert absent.code == 0
    assert "No key and no name of this file has the word decoder" in absent.said
    assert "no name of this file" not in short.said


def test_a_question_about_two_parts_asks_for_their_difference(tmp_path: Path) -> None:
    ema = {name: tensor + 1 for name, tensor in MODEL.items()}
    path = saved({"model": MODEL, "ema": ema, "G": {"w": torch.ones(2, 2)}}, tmp_path)

    one = Answered("what is G", path)
    two = Answered("what is the difference between model and ema?", path)

    assert "G is a part of this file, with 1 tensor." in one.said
    assert "is a part of this file" not in two.said


# --- complaints without a question mark -----------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "My LORA doesn't seem to do anything",
        "LoRA is created successfully, but there is no learning effect",
        "Lora does not appear to be training.",
    ],
)
def test_a_complaint_about_an_adapter_is_answered(text: str, tmp_path: Path) -> None:
    answer = Answered(text, write_adapter(tmp_path, trained=()))

    assert answer.code == 0 and "this adapter adds nothing" in answer.said


def test_a_complaint_about_a_loss_is_answered_by_its_course(tmp_path: Path) -> None:
    path = with_history(tmp_path, train_loss=[2, 2.25, 2.5])

    answer = Answered("the training loss does not go down", path)

    assert answer.code == 0
    assert "The lowest is 2, at number 1 of 3" in answer.said


def test_a_loss_after_a_resume_is_no_matter_of_the_course(tmp_path: Path) -> None:
    path = with_history(tmp_path, train_loss=[3, 2, 1])

    answer = Answered("the training loss jumps after I resume", path)

    assert "numbers, from" not in answer.said


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("学习率是多少", "args.lr is 0.25"),
        ("怎么继续训练", "This file has no state of an optimizer"),
        ("训练了多少轮", "epoch is 3"),
    ],
)
def test_questions_in_chinese_have_the_same_answers(
    question: str, said: str, tmp_path: Path
) -> None:
    state = {"model": MODEL, "epoch": 3, "args": {"lr": 0.25}}

    answer = Answered(question, saved(state, tmp_path))

    assert answer.code == 0 and said in answer.said

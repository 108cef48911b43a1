"""Keys and tensors that a question asks about by name: what they are, and whether a
model needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import children_of

_MEANINGS = {
    "num_batches_tracked": "counts the batches that a batch norm has seen. Only a norm "
    "with momentum=None computes with it, and torch before 0.4.1 had none",
    "running_mean": "is the running mean of a norm: train() changes it, and eval() "
    "computes with it",
    "running_var": "is the running variance of a norm: train() changes it, and eval() "
    "computes with it",
    "position_ids": "holds the numbers 0, 1, 2 … and no weights. transformers before "
    "4.31 saved it, and newer ones do not",
    "inv_freq": "holds the frequencies of rotary positions, which a program computes",
    "relative_position_index": "is a table that a program computes from the size of "
    "the window",
    "relative_position_bias_table": "is a trained table with a row for each distance "
    "in a window, so it depends on the window's size",
    "logit_scale": "is the logarithm of a trained factor, by which similarities are "
    "multiplied (CLIP)",
    "weight_g": "is the length of the rows of a weight under weight_norm; weight_v has "
    "their direction, and the weight is the product",
    "weight_v": "is the direction of the rows of a weight under weight_norm; weight_g "
    "has their length, and the weight is the product",
    "original0": "is the length of the rows of a weight under the newer weight_norm",
    "original1": "is the direction of the rows of a weight under the newer weight_norm",
    "weight_orig": "is the weight before pruning or spectral norm. The layer computes "
    "with its product with the mask, or divides it by its norm",
    "weight_mask": "is a mask of pruning: the layer computes with weight_orig times it",
    "weight_u": "is the vector with which spectral_norm estimates the largest singular "
    "value of a weight",
    "qweight": "has the packed whole numbers of a quantized weight (GPTQ, AWQ); scales "
    "and qzeros belong to it",
    "qzeros": "has the zero points of a quantized weight (GPTQ, AWQ)",
    "g_idx": "gives the group of each input of a quantized weight (GPTQ)",
    "absmax": "has the scales of the blocks of a weight that bitsandbytes quantized",
    "SCB": "has the scale of each row of a weight that bitsandbytes keeps in 8 bits",
    "weight_scale": "has the scales of a weight in FP8 or in whole numbers",
    "weight_scale_inv": "has the scales of the blocks of a weight in FP8",
    "_extra_state": "holds what a module keeps besides tensors, as Transformer Engine "
    "its scales for FP8",
    "total_ops": "counts operations for the profiler thop, and is no weight",
    "total_params": "counts parameters for the profiler thop, and is no weight",
    "exp_avg": "is the running mean of the gradients of a parameter (Adam)",
    "exp_avg_sq": "is the running mean of the squares of the gradients of a parameter "
    "(Adam)",
    "momentum_buffer": "is the momentum of a parameter (SGD)",
    "param_groups": "has the settings of an optimizer, and the numbers of its "
    "parameters",
    "last_epoch": "counts the calls of a schedule's step(), be they epochs or steps",
    "cls_token": "is a trained vector that stands before the pieces of a picture",
    "mask_token": "is a trained vector in the place of what a pretraining masks",
    "gamma": "is the weight of a norm in the names of TensorFlow and older programs",
    "beta": "is the bias of a norm in the names of TensorFlow and older programs",
    "optimizer_states": "has the states of the optimizers of a run of Lightning",
    "lr_schedulers": "has the states of the schedules of a run of Lightning",
    "loops": "has the counters of the loops of a run of Lightning",
    "callbacks": "has the states of the callbacks of Lightning: the best save, the "
    "patience of early stopping",
    "hyper_parameters": "has the arguments of a LightningModule (save_hyperparameters)",
    "hparams_name": "names the argument under which a LightningModule got its settings",
    "updates": "counts the updates of the averages",
    "scaler": "is the state of a GradScaler, for a run in float16",
    "amp": "is the state of the mixed precision of apex or of a GradScaler",
    "message_hub": "holds values of a run of mmengine (losses, rates), and no weights",
    "meta": "has facts about the run and its classes (OpenMMLab)",
    "train_args": "has the settings of the training (ultralytics)",
    "rng_state": "is the state of random numbers, for a run that goes on",
}
"""The last word of a name -> what a tensor or a key of that name is."""
_WORD = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_ASKS_WHAT = re.compile(
    r"(?i)\bwhat(?:'s| is| are| does| do)\b|\bmean(?:s|ing)?\b|\bpurpose\b|\bwhy (?:is"
    r"|are|does|do) (?:there|it|the|my)\b|\bneed(?:ed)?\b|\brefers? to\b"
    r"|\bstands? for\b|\b(?:explain|clarify|understand) what\b|什么意思|是什么|作用"
)
_MOST = 3


def of_meaning(text: str, case: Case) -> Iterator[Statement]:
    """Say what the keys and the tensors are that a question names."""
    if _ASKS_WHAT.search(text) is None:
        return
    told = 0
    words = [word.rstrip(".") for word in dict.fromkeys(_WORD.findall(text))]
    # A question that names two parts asks for their difference.
    if sum(part.name in words for part in case.survey.sections) > 1:
        return
    found = _ASKED.search(text)
    asked = None if found is None else found[1]
    for word in words:
        row = _meaning_of(word, case, is_asked=word == asked)
        if row is not None and told < _MOST:
            told += 1
            yield row


_ASKED = re.compile(
    r"(?i)\bwhat (?:is|are|does) (?:the )?[`'\"]?(\w+)[`'\"]?(?: for| mean)?\s*\??$"
)
"""A question for one word: `what is z`."""


def _meaning_of(word: str, case: Case, *, is_asked: bool) -> Statement | None:
    """The sentence on one name, or None where neither the file nor the table has it.
    `is_asked` is true where the question asks for this word and nothing else.
    """
    last = word.rpartition(".")[2]
    meaning = _MEANINGS.get(last)
    root = dict(children_of(case.survey.checkpoint.root))
    # A plain word of the language is no name: `model`, `beta`.
    is_plain = "." not in word and "_" not in word and meaning is None
    if is_plain and not (is_asked and word in root):
        return None
    found = [
        (index, entry)
        for index, entry in enumerate(case.survey.tensors)
        if entry.name == word or entry.name.endswith(f".{word}")
    ]
    # The tensor of the file comes first: its shape says more than the word.
    if found:
        index, entry = found[0]
        role = case.survey.roles[index].role
        kind = {"parameter": "a parameter", "buffer": "a buffer"}.get(role, "a tensor")
        count = (
            f", as {len(found):,} tensors of this file are" if len(found) > 1 else ""
        )
        said = f" It {meaning}." if meaning is not None else ""
        return Statement(
            f"{show(entry.name, 120)} ({list(entry.tensor.shape)}, "
            f"{entry.tensor.dtype.name}) is {kind}{count}.{said}"
        )
    if word in root and meaning is not None:
        return Statement(f"{show(word, 60)} {meaning}.")
    parts = [part for part in case.survey.sections if part.name == word]
    if parts and parts[0].entries:
        count = counted_noun(len(parts[0].entries), "tensor")
        return Statement(f"{show(word, 60)} is a part of this file, with {count}.")
    return _module_statement(word, case)


_PREDICTS = re.compile(
    r"(?i)(?:^|_)(?:head|heads|classifier|predictor|decoder|proj|projector|projection)s?"
    r"(?:_|$)"
)
"""Words in the name of a module behind the body of a model."""


def _module_statement(word: str, case: Case) -> Statement | None:
    """Say how many tensors are below a module, and what else stands beside it, or
    return None.
    """
    for part in case.survey.candidates:
        names = part.names()
        below = [name for name in names if name.startswith(f"{word}.")]
        if not below or len(below) == len(names):
            continue
        size = sum(
            entry.tensor.numel
            for name, entry in zip(names, part.entries, strict=True)
            if name.startswith(f"{word}.")
        )
        inner = dict.fromkeys(name[len(word) + 1 :].partition(".")[0] for name in below)
        beside = dict.fromkeys(
            name.partition(".")[0] for name in names if not name.startswith(f"{word}.")
        )
        what = (
            " By its name it stands behind the body, and predicts what the training of "
            "this file asked for: a model of the body alone, or for another task, "
            "leaves it out, and loses nothing of the body."
            if _PREDICTS.search(word)
            else ""
        )
        return Statement(
            f"{show(word, 60)} is a module of the model of this file, with "
            f"{counted_noun(len(below), 'tensor')} and "
            f"{100 * size / max(part.numel, 1):.0f} % of the parameters, below "
            f"{and_more([show(row, 40) for row in inner], 4)}. Beside it stand "
            f"{and_more([show(row, 40) for row in beside], 6)}.{what}"
        )
    return None

"""Questions for what is around the weights: the files of a folder, the time of a save,
what a file tells of its author's machine.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from ckpt.bytes.far import is_url
from ckpt.ext.explain.case import Case, Statement, command_statements
from ckpt.model.text import and_more, counted_noun, show

# --- the files of a folder ------------------------------------------------------------

ASKS_OF_FILES = (
    r"(?:model|optim)_states\.pt|zero_pp_rank_\d"
    r"|\b(?:which|what) (?:other )?files\b"
    r"|\b(?:has|have|there|contain\w{0,3}|need\w{0,2}|includ\w{1,3}|where|without)\b"
    r"[^\n]{0,30}\b(?:tokeni[sz]er|processor)\b"
    r"|\bwhich of (?:these|the) files\b"
    r"|\bfiles? (?:do i|are|is) need\w*\b|\b(?:delete|remove|keep)\b[^\n]{0,40}"
    r"\b\w+\.(?:pt|pth|bin|json|safetensors)\b"
)
"""Words of a question for the files beside the weights."""
_OF_RUN = re.compile(
    r"(?i)^(?:optimizer|scheduler|scaler|rng_state|random_states|trainer_state"
    r"|training_args|global_step|zero_|latest$|lr_sched)"
)
"""Names of files that only a run which goes on needs."""
_TOKENIZER = re.compile(
    r"(?i)^(?:tokenizer|vocab|merges|spiece|sentencepiece|special_tokens|added_tokens"
    r"|chat_template|preprocessor_config|processor_config)|\.(?:model|spm|tiktoken)$"
)
"""Names of files that turn texts or pictures into what a model takes."""
_SHOWN = 8


def of_files(text: str, case: Case) -> Iterator[Statement]:
    """Sort the files of a folder: for the model, for its inputs, for a run that goes
    on.
    """
    path = case.survey.path
    if is_url(path):
        return
    if _OF_DEEPSPEED.search(text) is not None and os.path.isdir(path):
        yield from _of_deepspeed(case)
        return
    if not os.path.isdir(path):
        yield Statement(
            "This is one file, with all that its program saved in it. A tokenizer, a "
            "vocabulary or a config that the model needs is a file of its own, and "
            "lies where its author keeps it."
        )
        return
    names = sorted(os.listdir(path))
    of_run = [name for name in names if _OF_RUN.search(name)]
    of_inputs = [name for name in names if _TOKENIZER.search(name)]
    others = [name for name in names if name not in {*of_run, *of_inputs}]
    if others:
        yield Statement(f"For the model, or about it: {_list_text(others)}.")
    if of_inputs:
        yield Statement(
            f"For its inputs (a tokenizer, a processor): {_list_text(of_inputs)}."
        )
    else:
        yield Statement(
            "No tokenizer and no processor is in this folder: a program takes that of "
            "the base model, or stops."
        )
    if of_run:
        yield Statement(
            f"Only a run that goes on needs {_list_text(of_run)}. Without them the "
            "model loads and predicts the same, and no training can be resumed."
        )


_OF_DEEPSPEED = re.compile(r"(?:model|optim)_states\.pt|zero_pp_rank_\d")
"""The names that DeepSpeed gives its files."""


def _of_deepspeed(case: Case) -> Iterator[Statement]:
    """Say what the files of a folder of DeepSpeed are for."""
    yield Statement(
        "mp_rank_NN_model_states.pt has the model as the GPUs computed with it, in the "
        "type of the training, and also the weights that were not trained. Each "
        "zero_pp_rank_N_…_optim_states.pt has the part of GPU N: its share of the "
        "weights in float32, and the moments of the optimizer. None of them is the "
        "final one: together they are one state. A run that goes on needs all of them, "
        "and a use of the model needs none, once its weights are in a file of their "
        "own."
    )
    yield from command_statements(
        "That file, beside which only a resume needs the folder:",
        case.written(("slim",), "", ".pth"),
    )


def _list_text(names: list[str]) -> str:
    """Names of files in one line."""
    return and_more([show(name, 60) for name in names], _SHOWN)


# --- when -----------------------------------------------------------------------------

ASKS_WHEN = (
    r"\bwhen (?:was|were|is|did)\b[^\n]{0,40}\b(?:saved?|written|made|created|trained"
    r"|uploaded|exported)\b|\b(?:which|what) (?:date|day|time|year)\b|\bhow old\b"
    r"|什么时候|何时"
)
"""Words of a question for the time of a save."""
_OF_TIME = (
    "date",
    "time",
    "timestamp",
    "created",
    "created_at",
    "saved_at",
    "datetime",
    "modelspec.date",
    "ss_training_started_at",
    "ss_training_finished_at",
)


def of_time(text: str, case: Case) -> Iterator[Statement]:
    """Say which times a file records, and what its own time is worth."""
    del text
    told = [
        f"{show(name, 80)} is {show(str(node), 60)}"
        for name, node in case.finds_value(_OF_TIME)
    ]
    if told:
        yield Statement(f"This file records: {and_more(told, 4)}.")
    else:
        yield Statement(
            "torch.save and safetensors write no time into a file, and no key of this "
            "one names any."
        )
    path = case.survey.path
    if not is_url(path) and os.path.exists(path):
        moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(path)))
        yield Statement(
            f"On this disk it was last written at {moment}. A copy or a download has a "
            "time of its own."
        )


# --- what it tells --------------------------------------------------------------------

ASKS_OF_PRIVACY = (
    r"\b(?:leak\w{0,3}|privacy|private|personal|confidential|anonymi[sz]\w{1,4}|secrets?"
    r"|sensitive|identif\w{1,6})\b|\b(?:share|publish|release|upload)\b"
)
"""Words of a question for what a file tells of its author."""
_PATH = re.compile(r"^(?:[A-Za-z]:)?[\\/~][^\n]{2,}|^\w+://|@[\w-]+\.\w")
"""A value that is a path, an address on the network, or an address of mail."""


def of_privacy(text: str, case: Case) -> Iterator[Statement]:
    """Name the values of a file that say where it was made, and the copy without
    them.
    """
    del text
    found = [
        f"{show(value.name, 60)} is {show(value.node, 60)}"
        for value in case.survey.checkpoint.values
        if isinstance(value.node, str) and _PATH.search(value.node)
    ]
    texts = sum(isinstance(value.node, str) for value in case.survey.checkpoint.values)
    if found:
        yield Statement(
            f"Values of this file that are a path or an address: {and_more(found, 4)}."
        )
    elif texts:
        yield Statement(
            f"None of the {counted_noun(texts, 'text')} of this file is a path or an "
            "address. They may say other things of its author: ckpt inspect lists "
            "them."
        )
    else:
        yield Statement("This file has no texts beside the names of its tensors.")
    yield from command_statements(
        "A copy with the tensors of the model and nothing else:", case.plan(("slim",))
    )

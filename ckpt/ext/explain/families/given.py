"""Loaders that were given another thing than they take: a file in the place of a
folder, weights in the place of settings, a class that asks for more than a file has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.bytes.far import is_url
from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.origins import config_of
from ckpt.model.text import and_more, counted_noun, show

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5")
"""Endings of files of weights."""


# --- a file in the place of a folder --------------------------------------------------


CHECKED_LIST = re.compile(
    r"assert len\(self\.ckpt_list\) > 0|in check_ckpt_list\b"
    r"|Empty ckpt_list\b"
)
"""The words of DeepSpeed where its load_checkpoint finds no file of its own."""


def of_checked_list(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer load_checkpoint of DeepSpeed, which takes the folder that its own
    save_checkpoint wrote, and found nothing of it.
    """
    del found
    held = " It holds no optimizer." if not case.optimizers else ""
    if case.is_folder:
        names = and_more([show(name, 80) for name in case.survey.checkpoint.parts], 4)
        if "mp_rank_" in names:
            return
        yield Statement(
            "load_checkpoint of DeepSpeed takes a folder with "
            "mp_rank_…_model_states.pt of its own save_checkpoint, and this one has "
            f"none: its files are {names}."
        )
    else:
        yield Statement(
            "load_checkpoint of DeepSpeed takes the folder that its save_checkpoint "
            "wrote (mp_rank_…_model_states.pt and the parts of the optimizer), and "
            f"this is one file: no run of DeepSpeed resumes from it.{held} Load the "
            "weights alone, before deepspeed.initialize, and begin the optimizer "
            "anew; or resume from the folder, where the run kept one (programs with "
            "mmengine do with save_optimizer=True)."
        )
    yield from load_statements(case)


# --- weights in the place of settings -------------------------------------------------


NOT_JSON = re.compile(
    r"config file at '([^'\n]{1,2000})' is not a valid JSON file"
    r"|It looks like the config file at '([^'\n]{1,2000})'"
)
"""The words of transformers and diffusers where they read settings, and got none."""


def of_settings(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a loader that read a file of weights as if it were config.json."""
    path = next(text for text in found.groups() if text is not None)
    name = re.split(r"[\\/]+", path)[-1]
    if not name.endswith(_WEIGHTS):
        return
    own = os.path.basename(os.path.abspath(case.survey.path))
    which = "this file" if own == name else "a file of weights"
    yield Statement(
        f"{show(name, 80)} is {which}, and the loader read it as its settings: "
        "from_pretrained takes the folder, with the weights and config.json in it, "
        "and was given the path of the weights alone."
    )
    yield from _settings_beside(case)
    yield from load_statements(case, "The weights alone load so:")


def _settings_beside(case: Case) -> Iterator[Statement]:
    """Say whether config.json lies beside the weights."""
    path = case.survey.path
    if is_url(path):
        return
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    if os.path.isfile(os.path.join(folder, "config.json")):
        yield Statement("config.json lies beside it: give the folder of both.")
    else:
        yield Statement(
            "No config.json lies beside it: copy it from where the model was "
            "published, or give the file to a loader of single files."
        )


UNRECOGNIZED = re.compile(
    r"Unrecognized model in ['\"]?[^\s'\"]{1,2000}?['\"]?\. Should have a "
    r"[`'\"]?model_type"
)
"""The words of Auto classes of transformers where config.json names no model."""


def of_unrecognized(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer an Auto class that finds no model_type in the settings of a folder."""
    del found
    config = config_of(case.survey)
    kind = config.get("model_type")
    model = case.survey.load.model
    if model is not None and "PeftModel" in model:
        yield Statement(
            "This is an adapter of PEFT, which has no config.json of a model: load "
            "the base model first, and the adapter into it:",
            (),
            model,
        )
    elif isinstance(kind, str):
        yield Statement(
            f"config.json of this folder says model_type = {show(kind, 80)}: another "
            "folder was loaded, or this transformers does not know the model, and a "
            "newer one (or trust_remote_code=True) does."
        )
    elif config:
        keys = and_more([show(str(key), 40) for key in config], 6)
        yield Statement(
            f"config.json of this folder has no model_type (its keys are {keys}): "
            "another library wrote it, or it was written by hand. Auto classes need "
            "it: load with the library that saved, or with the class of the model."
        )
    else:
        yield Statement(
            "No config.json with settings of a model lies in this folder: copy it "
            "from the model that the training began with."
        )
    if model is None or "PeftModel" not in model:
        yield from load_statements(case)


# --- a class that asks for more -------------------------------------------------------


TIED_ABSENT = re.compile(
    r"specifies to tie (\S{1,1000}) to (\S{1,1000}), but both are absent from the "
    r"checkpoint"
)
"""The words of transformers 5 where neither of two tied tensors is in a file."""


def of_tied_absent(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a class of transformers that ties two tensors of which a file has none."""
    names = [entry.name for entry in case.survey.tensors]
    wanted = [found[1].strip("'\"`"), found[2].strip("'\"`,")]
    held = [
        name
        for name in wanted
        if any(f".{other}".endswith(f".{name}") for other in names)
    ]
    if held:
        yield Statement(
            f"This file has {and_more([show(name, 120) for name in held], 2)}: another "
            "file was loaded, or its names begin otherwise than the class expects."
        )
        yield from load_statements(case)
        return
    ends = {name.rpartition(".")[0].rpartition(".")[2] for name in wanted}
    alike = [
        name
        for name in names
        if name.rpartition(".")[0].rpartition(".")[2] in {*ends, *_EMBEDDINGS}
    ]
    text = (
        f"Neither {show(wanted[0], 120)} nor {show(wanted[1], 120)} is in this file, "
        "as the message says, and no tensor is lost by that:"
    )
    if alike:
        there = and_more([show(row, 120) for row in alike], 3)
        text += f" the embedding is there as {there}."
    else:
        first = sorted({name.partition(".")[0] for name in names})
        text = text.replace(", and no tensor is lost by that:", ".") + (
            f" Its {counted_noun(len(names), 'tensor')} begin with "
            f"{and_more([show(word, 60) for word in first], 4)}."
        )
    architectures = config_of(case.survey).get("architectures")
    if isinstance(architectures, list) and architectures:
        cls = show(str(architectures[0]), 80)
        text += (
            f" The class that was built asks for parts that the file does not have. "
            f"config.json says that {cls} wrote it: load it with that class "
            f"(transformers.{cls}.from_pretrained)."
        )
    else:
        text += (
            " The class that was built asks for more than the file has: load it with "
            "the class that saved it."
        )
    yield Statement(text)


_EMBEDDINGS = ("shared", "embed_tokens", "wte", "word_embeddings")
"""The last words of embeddings that models of transformers tie."""

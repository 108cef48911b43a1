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
        parts = case.survey.checkpoint.parts
        # A folder with the files of DeepSpeed has another fault.
        if any("mp_rank_" in name for name in parts):
            return
        names = and_more([show(name, 80) for name in parts], 4)
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


def of_message_hub(name: str, case: Case) -> Statement | None:
    """Answer mmengine, which looks for the values of its own run in a file that no such
    run wrote, or whose weights alone were published.
    """
    if name != "message_hub":
        return None
    what = (
        "an optimizer, but not this key, as those of mmcv before mmengine"
        if case.optimizers
        else "no state of a run, as weights that were published"
    )
    return Statement(
        "mmengine looks for message_hub where it resumes a run, and writes it into the "
        f"checkpoints of its own runs alone. This file has {what}. So nothing resumes "
        "from it: begin a run from its weights, with load_from set to this file and "
        "resume off (train.py: --cfg-options load_from=…, without --resume)."
    )


# --- weights in the place of settings -------------------------------------------------


_NOT_JSON = re.compile(
    r"config file at '([^'\n]{1,2000})' is not a valid JSON file"
    r"|It looks like the config file at '([^'\n]{1,2000})'"
)
"""The words of transformers and diffusers where they read settings, and got none."""


def path_of_settings(text: str) -> str | None:
    """Return the path of the file that a loader read as settings and that are none, or
    None where an error has another cause.
    """
    found = _NOT_JSON.search(text)
    if found is None:
        return None
    return found[1] if found[1] is not None else found[2]


def of_settings(path: str, case: Case) -> Iterator[Statement]:
    """Say that a loader read the file of weights at `path` as if it were
    config.json.
    """
    # The message may come from Windows, with other separators.
    name = re.split(r"[\\/]+", path)[-1]
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
    # A URL has no folder here that could be looked into.
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
    # The line for an adapter stands above already.
    if model is None or "PeftModel" not in model:
        yield from load_statements(case)


STRUCT = re.compile(
    r"Key '([\w.-]{1,200})' is not in struct"
    r"|Missing key ([\w.-]{1,200})\s{1,40}full_key:"
)
"""The words of OmegaConf for a setting that a config lacks."""


def of_struct(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a class that reads a setting which the config of a checkpoint does not
    have.
    """
    # Each wording of the pattern has a group of its own.
    name = next(text for text in found.groups() if text is not None)
    configs = [
        row
        for row in case.survey.checkpoint.containers
        if row.path and _CONFIG.search(str(row.path[-1])) and len(row.keys) > 0
    ]
    # A config may also be one text of YAML.
    texts = [
        (value.name, value.node)
        for value in case.survey.checkpoint.values
        if value.path
        and isinstance(value.node, str)
        and "\n" in value.node
        and _CONFIG.search(str(value.path[-1]))
    ]
    if not configs and not texts:
        return
    places = [
        row.name
        for row in case.survey.checkpoint.containers
        if row.path and name in map(str, row.keys)
    ]
    if configs:
        place, held = configs[0].name, [str(key) for key in configs[0].keys]
    else:
        place, yaml = texts[0]
        held = list(dict.fromkeys(_YAML_KEY.findall(yaml)))
        if name in held:
            places.append(place)
    keys = and_more([show(key, 40) for key in held], 8)
    if places:
        yield Statement(
            f"{show(name, 80)} is a setting in this file, below "
            f"{and_more([show(place, 80) for place in places], 3)}: the program looks "
            "in another part, or read another file."
        )
        yield from load_statements(case, "The weights load so:")
        return
    yield Statement(
        f"The settings of this file ({show(place, 80)}) have no "
        f"{show(name, 80)}: their keys are {keys}. The class reads a setting that the "
        "version which saved did not write. Take the version of the program that "
        f"saved it{_version_text(case)}, or add {show(name, 80)} to the settings, as "
        "the config of the training has it, before the model is built."
    )
    yield from load_statements(case, "The weights load so:")


_CONFIG = re.compile(r"(?i)config|cfg|hparams|hyper_parameters|args")
_YAML_KEY = re.compile(r"^([\w.-]{1,100}):", re.MULTILINE)
"""A key of YAML that is not inside of another one."""
_VERSIONS = ("nemo_version", "version", "pytorch-lightning_version")


def _version_text(case: Case) -> str:
    """The version that a file records, in brackets, or an empty text."""
    # A text of several lines is a config, and no version.
    rows = [row for row in case.finds_value(_VERSIONS) if "\n" not in str(row[1])]
    if not rows:
        return ""
    place, node = rows[0]
    return f" ({show(place.rpartition('.')[2], 40)} {show(str(node), 40)})"


# --- a folder in the place of a name --------------------------------------------------


NOT_A_FOLDER = re.compile(
    r"Repo id must (?:be in the form 'repo_name' or 'namespace/repo_name'"
    r"|use alphanumeric chars)[^:\n]{0,200}:\s'([^'\n]{1,1000})'"
    r"|(?:OSError|ValueError|EnvironmentError): '?([^\s']{1,1000})'? is not a local "
    r"folder and is not a valid model identifier"
    r"|Incorrect path_or_model_id: '([^'\n]{1,1000})'"
)
"""The words of huggingface_hub and transformers for a path that they take for the name
of a model on the hub.
"""


def of_no_folder(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a path that was taken for the name of a model on the hub."""
    path = next(text for text in found.groups() if text is not None)
    name = re.split(r"[\\/]+", path.rstrip("/\\"))[-1]
    own = os.path.basename(os.path.abspath(case.survey.path))
    is_same = own == name and case.is_folder
    where = (
        "A folder of this name is here"
        if is_same
        else "This is a folder"
        if case.is_folder
        else "This is a file"
    )
    # C:… is an absolute path, too.
    relative = (
        ""
        if path.startswith(("/", "~")) or path[1:2] == ":"
        else " A relative path begins in the folder in which the program runs."
    )
    home = " Python does not expand ~: write the whole path." if path[:1] == "~" else ""
    yield Statement(
        f"A loader takes a path for the name of a model on the hub where the machine "
        f"has no folder at it, and for the program {show(path, 120)} is none.{relative}"
        f"{home} {where}: give its whole path, as the machine or the container sees "
        "it."
        + (
            ""
            if case.is_folder
            else " from_pretrained takes the folder, with config.json in it."
        )
    )
    if is_same:
        yield Statement(
            "Where the path is right, the loader did not find a file by the name that "
            "it looks for in the folder, and asked the hub for it: its files are "
            f"{and_more([show(part, 80) for part in case.survey.checkpoint.parts], 8)}."
        )
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
    # The message may have quotes around the names, or a comma behind one.
    wanted = [found[1].strip("'\"`"), found[2].strip("'\"`,")]
    # The dots in front keep a name from fitting the end of a longer word.
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
    # The last module of each name: lm_head of lm_head.weight.
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
        # A config may name code, or a class that opens other files of the folder.
        line = case.survey.load.model
        named = f" ({line.partition('(')[0]})" if line is not None else ""
        text += (
            f" The class that was built asks for parts that the file does not have. "
            f"config.json says that {cls} wrote it: load it with that class{named}."
        )
    else:
        text += (
            " The class that was built asks for more than the file has: load it with "
            "the class that saved it."
        )
    yield Statement(text)


_EMBEDDINGS = ("shared", "embed_tokens", "wte", "word_embeddings")
"""The last words of embeddings that models of transformers tie."""

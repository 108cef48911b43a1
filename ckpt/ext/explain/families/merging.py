"""Checkpoints in folders that are to become one file, or to be loaded without the ranks
that saved them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.bytes.far import is_url
from ckpt.ext.explain.case import Case, Statement
from ckpt.model.names import natural_sort_key
from ckpt.model.text import and_more, pasted_path, show
from ckpt.tree.find import children_of

NO_METADATA_FILE = re.compile(r"couldn't find a valid metadata file")
"""accelerate merge-weights, for a folder that has the folders of a model and of an
optimizer.
"""
_ASKS_TO_MERGE = re.compile(
    r"(?i)\b(?:merg\w{1,4}|consolidat\w{1,4}|combin\w{1,4}|gather)\b"
    r"|\b(?:one|single) (?:\w{1,20} )?(?:file|GPU)\b|\bload\b[^\n]{0,80}\binference\b"
)


def of_no_metadata_file(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer accelerate, which wants the folder of the model itself."""
    del found
    folders = _folders_of_dcp(case)
    if not folders:
        return
    yield Statement(
        "accelerate merge-weights takes the folder of one distributed checkpoint, and "
        f"this folder has {and_more([show(name, 60) for name in folders], 4)} in it: "
        f"give it {show(os.path.join(case.survey.path, folders[0]), 120)}."
    )
    yield from _as_one_file(case)


_OF_MEANS = re.compile(
    r"(?i)\baverag(?:e|ing)\b[^\n]{0,60}\b(?:checkpoints?|ckpts?|weights)\b"
    r"|\b(?:checkpoints?|ckpts?|weights) averaging\b"
)
_SEVERAL = re.compile(r"(?i)\b(?:n|several|last|multiple|some|two|\d+|checkpoints)\b")


def asks_of_means(text: str) -> bool:
    """Tell whether a question is about the mean of several checkpoints."""
    return _OF_MEANS.search(text) is not None and _SEVERAL.search(text) is not None


def of_means(text: str, case: Case) -> Iterator[Statement]:
    """Print the command that averages checkpoints, where a question asks for it."""
    if not asks_of_means(text):
        return
    saves = [pasted_path(path) for path in _saves_beside(case)]
    stem, ending = os.path.splitext(case.survey.path)
    out = pasted_path(os.path.join(os.path.dirname(stem), f"mean{ending}"))
    command = None
    if len(saves) > 1 and out is not None and None not in saves:
        command = f"ckpt average {' '.join(filter(None, saves))} -o {out}"
    yield Statement(
        "ckpt average writes the mean of the models of several saves of one training, "
        "tensor by tensor, and with --last N that of the last N of a folder. The "
        "optimizers are left out."
        + (" Those beside this file, for example:" if command else ""),
        (),
        command,
    )


_MOST_SAVES = 5


def _saves_beside(case: Case) -> list[str]:
    """The last files of the folder with the ending of the one that a user named."""
    path = case.survey.path
    folder, ending = os.path.dirname(path), os.path.splitext(path)[1]
    if is_url(path) or case.is_folder or not ending:
        return []
    try:
        names = sorted(os.listdir(folder or "."), key=natural_sort_key)
    except OSError:
        return []
    alike = [name for name in names if name.endswith(ending)]
    return [os.path.join(folder, name) for name in alike[-_MOST_SAVES:]]


def of_merging(text: str, case: Case) -> Iterator[Statement]:
    """Print the command that makes one file of a folder, where a question asks for
    it.
    """
    if _ASKS_TO_MERGE.search(text) is None or not case.is_folder:
        return
    if ADAPTER in case.survey.checkpoint.parts:
        yield from of_adapter_of_codes(text, case)
        yield from of_adapter_alone(case)
        return
    yield from _as_one_file(case)


_IN_BITS = re.compile(
    r"(?i)\b[48][ -]?bits?\b|\b(?:qlora|gptq|awq)\b|\bquanti[sz]\w{1,4}\b"
    r"|\b(?:nf4|int[48])\b"
)
"""Words of a base that is loaded in codes."""


def of_adapter_of_codes(text: str, case: Case) -> Iterator[Statement]:
    """Say that an adapter which was trained on a base in codes is merged into the base
    in floats, where a text names such a base.
    """
    if _IN_BITS.search(text) is None:
        return
    types = list(dict.fromkeys(row.tensor.dtype.name for row in case.survey.tensors))
    if not types:
        return
    yield Statement(
        f"The adapter itself is in {and_more(types, 3)}, and not in 4 or 8 bits: a "
        "QLoRA quantizes the base alone. A merge adds it to weights in floats, so load "
        "the base without load_in_4bit, load_in_8bit and quantization_config, merge, "
        "and quantize the result, if it has to be. The adapter was trained beside the "
        "rounded base, so the merged model computes a little otherwise than the "
        "training did; an adapter on the base in 4 bits computes as before."
    )


ADAPTER = "adapter_config.json"
"""The file of PEFT that makes a folder an adapter."""
_FILES_OF_ADAPTERS = re.compile(r"\badapter_(?:config|model)\b")


_LOADED_LORA = re.compile(
    r"(?i)\bload\w{0,3}\b[^\n]{0,80}\blora\b|\blora\b[^\n]{0,80}\bload\w{0,3}\b"
)


def asks_to_load_adapter(text: str) -> bool:
    """Tell whether a question is about loading what a LoRA training wrote."""
    return asks_of_adapter(text) or _LOADED_LORA.search(text) is not None


def asks_of_adapter(text: str) -> bool:
    """Tell whether a text names the files that PEFT writes for an adapter."""
    return _FILES_OF_ADAPTERS.search(text) is not None


def of_adapter_alone(case: Case) -> Iterator[Statement]:
    """Say what the folder of an adapter is without its base model, and how both become
    one model.
    """
    if ADAPTER not in case.survey.checkpoint.parts:
        return
    beside = of_model_with_adapter(case.survey.path)
    if beside is not None:
        yield beside
        return
    root = dict(children_of(case.survey.checkpoint.root))
    config = dict(children_of(root.get("adapter_config")))
    base = config.get("base_model_name_or_path")
    named = f" It was trained for {show(base, 120)}." if isinstance(base, str) else ""
    path = pasted_path(case.survey.path)
    more = _further_weights(case)
    whole = "" if more else ", and all that such a training writes"
    if more:
        yield Statement(
            f"{and_more([show(name, 80) for name in more], 3)} of this folder holds "
            "parts that the training trained whole (LLaVA: mm_projector in "
            "non_lora_trainables.bin). PeftModel does not read such a file, and a "
            "merge of the adapter alone lacks it: the program that trained loads both, "
            "with this folder and the base model (LLaVA: --model-path and "
            "--model-base; scripts/merge_lora_weights.py makes one model of all)."
        )
    yield Statement(
        "This folder is an adapter of PEFT: the weights that were trained and their "
        f"settings{whole}. The base model is not in it, "
        f"and was not changed.{named} PeftModel.from_pretrained(base, FOLDER) puts it "
        "on the base model. One model of both, with the folder of the base model in "
        "the place of BASE:",
        (),
        None if path is None else f"ckpt merge BASE {path} -o MERGED/ --with-config",
    )


_NO_PARTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")


def _further_weights(case: Case) -> list[str]:
    """The files of weights beside an adapter that are no part of it."""
    path = case.survey.path
    if is_url(path) or not os.path.isdir(path):
        return []
    return [
        name
        for name in sorted(os.listdir(path))
        if name.endswith((".bin", ".safetensors"))
        and name not in case.survey.checkpoint.parts
        and name not in _NO_PARTS
        and case.names_in(os.path.join(path, name))
    ]


_OF_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


def of_model_with_adapter(folder: str) -> Statement | None:
    """Say that a folder of a whole model has the files of an adapter beside it, or
    return None.
    """
    if is_url(folder) or not os.path.isdir(folder):
        return None
    names = set(os.listdir(folder))
    adapters = [name for name in _OF_ADAPTERS if name in names]
    is_whole = any(
        name.startswith(("model.safetensors", "model-00001", "pytorch_model"))
        for name in names
    )
    if ADAPTER not in names or not adapters or not is_whole:
        return None
    kept = os.path.join(folder, "adapter")
    paths = [pasted_path(path) for path in (kept, os.path.join(folder, "adapter_"))]
    command = (
        None if None in paths else f"mkdir {paths[0]} && mv {paths[1]}* {paths[0]}/"
    )
    return Statement(
        f"This folder has a whole model and the files of an adapter ({ADAPTER}, "
        f"{adapters[0]}). from_pretrained of transformers takes such a folder for the "
        f"adapter: it loads the base model that {ADAPTER} names, and puts the adapter "
        "on it. The model of this folder is not read. Where the adapter is merged into "
        "it, move the files of the adapter out, so that the merged model loads:",
        (),
        command,
    )


def _as_one_file(case: Case) -> Iterator[Statement]:
    """The commands that write one file of a folder."""
    for words, said in (
        (("slim",), "The weights alone, as one file:"),
        (("convert",), "All of it, as one file:"),
    ):
        way = case.written(words, "", ".safetensors")
        if way.command is not None:
            yield Statement(said, (), way.command)
            return


def _folders_of_dcp(case: Case) -> list[str]:
    """The folders below a folder that are distributed checkpoints, and models first."""
    path = case.survey.path
    if is_url(path) or not os.path.isdir(path):
        return []
    names = [
        name
        for name in sorted(os.listdir(path))
        if os.path.isfile(os.path.join(path, name, ".metadata"))
    ]
    return sorted(names, key=lambda name: "optim" in name)

"""Errors about the file itself: damaged, cut off, of another format, a folder, or not
there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.bytes.location import path_beside
from ckpt.evidence.pretrained import (
    base_of_adapter,
    foreign_code,
    merged_parts,
    pipeline_class,
    pipeline_line,
    pipeline_parts,
)
from ckpt.ext.explain.case import (
    Answer,
    Case,
    Statement,
    command_statements,
    finding_statements,
    load_statements,
    looked_at,
)
from ckpt.ext.explain.families.mapped import NOT_MAPPED, of_no_maps
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, counted_noun, pasted_path, show

# The findings on files of a set that are cut, unread or absent. They come before the
# sentence that the file is whole.
_SETS = (
    "shards",
    "incomplete",
    "unfinished",
    "damaged-file",
    "dead-files",
    "unread-file",
    "container",
    "trailing-data",
)


def _answer_damaged(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a reader that calls a file damaged: is it, or does the reader expect
    another format?
    """
    # If ckpt verify finds damage, the reader is right, and nothing else is said.
    if case.damage:
        yield from case.damage
        return
    report = case.verified
    yield from finding_statements(case.found(*_SETS))
    checkpoint = case.survey.checkpoint
    path = pasted_path(case.survey.path)
    verify = None if path is None else f"ckpt verify {path}"
    label = checkpoint.traits.label
    if report is None:
        yield Statement(
            (
                "ckpt reads the structure of this file to its end, and not its bytes, "
                "which are far away:"
            ),
            (),
            verify,
        )
    else:
        checked = and_more(list(report.checked), 4)
        unchecked = (
            f" Not checked: {and_more(list(report.not_checked), 3)}."
            if report.not_checked
            else ""
        )
        empty = (
            ""
            if case.survey.tensors
            else " It holds no tensor: the run saved an empty dict, as a rank of "
            "DeepSpeed ZeRO-3 has it that gathered no parameters, or other objects "
            "alone. Its weights are elsewhere."
        )
        yield Statement(f"This file is whole ({label}; {checked}).{unchecked}{empty}")
    # pickle says so where its first read gives no byte.
    if "Ran out of input" in message.text and report is not None:
        yield Statement(
            "The reader found no byte, and this file has some: it was still empty "
            "then, or the open file had been read to its end (by torch.jit.load, or by "
            "another attempt). Pass the path, or call f.seek(0) before."
        )
        return
    if _BARE_END.search(message.text) and report is not None:
        yield Statement(
            "Python says no more than EOFError where a pickle has no bytes. This file "
            "has all of its own, so it was still empty when it was read, another file "
            "was read, or a process of the program ended and its pipe with it: look "
            "at the lines above the error."
        )
        return
    traits = case.survey.checkpoint.traits
    reader = next(
        (text for name, text in _READERS.items() if label.startswith(name)), None
    )
    if label.startswith("NeMo") and "gzip" in message.text:
        packed = path_beside(case.survey.path, ".gz", (".nemo",))
        out = None if packed is None else pasted_path(packed)
        yield Statement(
            "This archive is a tar without compression, as newer versions of NeMo "
            "write it. A version that opens every .nemo as a compressed one says so: "
            "update NeMo, or compress the archive for it:",
            (),
            None if path is None or out is None else f"gzip -c {path} > {out}",
        )
        yield from load_statements(case, "The weights alone load so:")
        return
    if reader is not None and traits.is_archive:
        yield Statement(
            "torch.load reads no such archive, which holds several files of torch "
            f"beside others: {reader} does."
        )
        yield from load_statements(case)
        return
    is_plain_pickle = traits.is_foreign and traits.is_pickle and not traits.is_archive
    # If pickle.load itself stopped, the advice to call it would not help.
    if is_plain_pickle and "pickle.load(" not in message.text:
        yield Statement(
            "torch.load reads no plain pickle; pickle.load does, with the code of its "
            "classes."
        )
        yield from load_statements(case)
        yield from command_statements(
            "A copy that torch.load reads:", case.plan(("plain",))
        )
        return
    load = case.survey.load.expression or ""
    is_of_torch = load.startswith(f"torch.load({case.path_literal}")
    # A damaged file and a file of another format give these words, so the sentence
    # leaves both open.
    if any(words in message.text for words in _OF_OTHER_FORMATS):
        yield from load_statements(
            case,
            (
                "A reader of another format gives this message too. This one is "
                f"{label}, and loads so:"
            ),
        )
    elif load and not is_of_torch:
        yield from load_statements(
            case,
            (
                "The message is of a reader of another format, or of another file. "
                f"This one is {label}, and loads so:"
            ),
        )
    if "without the record" in (case.survey.checkpoint.not_loadable or ""):
        yield Statement(
            "torch.save writes that record, so another program packed the archive "
            "anew, or left it out. A copy that ckpt writes has it, with the values as "
            "they are."
        )
    if is_of_torch and case.survey.checkpoint.not_loadable is None:
        yield Statement(
            "If its loader reads it now, the copy that failed was another one, or was "
            "still being written."
        )


_READERS = {
    "Stable-Baselines": "load of the algorithm that saved (PPO.load, SAC.load …)",
    "NeMo": "restore_from of its class in NeMo",
}
"""The libraries that keep an archive of their own -> what reads it."""
_OF_OTHER_FORMATS = (
    "load key",
    "magic number",
    "ZIP archive",
    "central directory",
    "not in a subdirectory",
    "not a gzip",
    "Not a gzip",
    "locating file data.pkl",
    "a tar archive",
    "in gzip format",
    "End-of-central-directory",
    "tarfile.ReadError",
)
"""Words of readers that were given a file of another format, whole or not."""


def _answer_persistent_id(message: Message, case: Case) -> Iterator[Statement]:
    """Answer pickle.load, which was given a file of torch."""
    del message
    label = case.survey.checkpoint.traits.label
    # An archive that was unpacked leaves a data.pkl, which pickle.load cannot read
    # alone.
    unpacked = case.found("unpacked")
    if unpacked:
        yield from finding_statements(unpacked)
        return
    yield Statement(
        f"pickle.load does not read this file: it is {label}, whose tensors lie "
        "outside of its pickle."
    )
    yield from load_statements(case)


def _answer_header(message: Message, case: Case) -> Iterator[Statement]:
    """Answer safetensors, which refuses a header."""
    checkpoint = case.survey.checkpoint
    if case.damage:
        yield from case.damage
        return
    if checkpoint.traits.is_pickle:
        yield Statement(
            f"This file is no safetensors: its format is {checkpoint.traits.label}, "
            "whatever its name says."
        )
        yield from load_statements(case)
        # Prefer convert, which keeps all tensors of the file.
        for words in (("convert",), ("slim",)):
            way = case.written(words, ".converted", ".safetensors")
            if way.command is not None:
                yield Statement("As safetensors:", (), way.command)
                return
        return
    del message
    report = case.verified
    checked = "" if report is None else f" ({and_more(list(report.checked), 4)})"
    yield Statement(
        f"ckpt reads this file to its end{checked}. The copy that failed was another "
        "one, or was still being written."
    )
    yield from load_statements(case)


def _answer_unlabelled(message: Message, case: Case) -> Iterator[Statement]:
    """Answer transformers, which wants to know the framework from the metadata of a
    file.
    """
    del message
    formats = case.survey.checkpoint.traits.label
    held = [
        value
        for value in case.survey.checkpoint.values
        if value.path and str(value.path[-1]) == "format"
    ]
    if held:
        yield Statement(
            "The metadata of this file names a format. Is it the file that was loaded?"
        )
        return
    path = case.path_literal
    yield Statement(
        (
            f"The metadata of this file ({formats}) has no format, which transformers "
            "asks for. This writes it:"
        ),
        (),
        (
            "from safetensors.torch import load_file, save_file; "
            f'save_file(load_file({path}), {path}, {{"format": "pt"}})'
        ),
    )


def _answer_folder(message: Message, case: Case) -> Iterator[Statement]:
    """Answer torch.load of a folder, or a folder that lacks a file."""
    checkpoint = case.survey.checkpoint
    unpacked = case.found("unpacked")
    if unpacked:
        yield from finding_statements(unpacked)
        return
    if not checkpoint.parts and not checkpoint.members:
        yield from finding_statements(case.at_least("warning"))
        yield Statement(f"This is a file ({checkpoint.traits.label}), and no folder.")
        yield from load_statements(case)
        return
    label = checkpoint.layout or checkpoint.traits.label
    count = counted_noun(len(checkpoint.parts), "file")
    yield Statement(
        f"This is a checkpoint of {count} in a folder ({label}). torch.load reads one "
        "file, and not a folder."
    )
    yield from finding_statements(case.at_least("warning"))
    yield from load_statements(case, "It loads so:")
    yield from command_statements("As one file:", case.plan(("convert",)))


_NO_FILE = re.compile(r"no file named ([\w.-]{1,200})", re.IGNORECASE)
_FILE = re.compile(
    r"(?<![\w./\\-])[\w-]{1,100}(?:\.[\w-]{1,40}){0,3}\.(?:json|bin|safetensors|pt"
    r"|pth)(?![\w/\\])"
)
"""The name of a file that a loader looks for. What a folder is before is a path, and no
name.
"""
_PLACES = (
    # Read `no file named model.safetensors found in directory llm.` and `Can't find a
    # valid checkpoint at out/checkpoint-500`.
    re.compile(r"(?: at| in directory) '?([^'\n]{1,2000}?)'?[.\s]*$"),
    re.compile(
        # Read `OSError: ./out does not appear to have a file named config.json.`
        r"(?:^|Error: )'?([^'\s:]{1,2000})'? does not appear to have a file named"
    ),
)
"""The folder in which a loader looked."""


def _no_file(message: Message, case: Case) -> Answer:
    """Answer a loader that finds no file by the names that it knows: is it here, is it
    no weights, or by another name?
    """
    checkpoint = case.survey.checkpoint
    names = dict.fromkeys(_FILE.findall(message.text))
    # Ask from the narrow case to the broad: a file that is here, an adapter, a run to
    # resume, a pipeline, settings, other names.
    files = _file_names(case)
    here = [name for name in names if name in files]
    # A loader that takes one of these names takes the index of its shards too.
    indexes = [f"{name}.index.json" for name in _WITH_INDEX if name in names]
    here += [index for index in indexes if index in files]
    if here:
        return Answer(
            case.survey.path, tuple(_elsewhere_statements(message, case, here[0]))
        )
    if (
        "adapter_model" in message.text
        or "adapter_config" in message.text
        or base_of_adapter(checkpoint) is not None
    ):
        return Answer(case.survey.path, tuple(_no_adapter(message, case)))
    # Read Trainer's `Can't find a valid checkpoint at out/checkpoint-500`.
    if "valid checkpoint" in message.text:
        return Answer(case.survey.path, tuple(_no_resumable(case)))
    # A pipeline of diffusers has model_index.json at its root, and a config.json in
    # each part.
    if names == {"config.json": None} and pipeline_class(checkpoint) is not None:
        rows = tuple(_of_pipeline(message, case))
        if rows:
            return Answer(case.survey.path, rows)
    # An index of shards is a .json too, and stands for weights.
    if names and all(
        name.endswith(".json") and not name.endswith(".index.json") for name in names
    ):
        return Answer(case.survey.path, tuple(_no_settings(case, list(names))))
    return _by_other_names(message, case)


_WITH_INDEX = ("model.safetensors", "pytorch_model.bin")
"""The names of transformers for a whole model, which may be an index of shards."""


def _file_names(case: Case) -> set[str]:
    """The names of the files that lie in the folder itself, or the name of the file."""
    return {
        *case.survey.checkpoint.parts,
        *(member.file for member in case.survey.checkpoint.members),
        case.survey.path.replace("\\", "/").rpartition("/")[2],
    }


def _elsewhere_statements(
    message: Message, case: Case, name: str
) -> Iterator[Statement]:
    """Say that a folder has the file that a loader did not find: it looked in another
    place.
    """
    place = next(
        (found for pattern in _PLACES if (found := pattern.search(message.text))), None
    )
    where = f" ({show(place[1], 120)})" if place is not None else ""
    yield Statement(
        f"{show(name, 80)} is here, so the path of the message{where} is not this "
        "folder: nothing lies there, as in a container that does not mount it, or the "
        "loader took it for a name on the Hugging Face Hub. Give the whole path of "
        "this folder."
    )
    yield from _adapter_load_statements(case)


def _adapter_load_statements(case: Case) -> Iterator[Statement]:
    """The line that puts an adapter of PEFT into its base model, or the one that loads
    any other file.
    """
    base = base_of_adapter(case.survey.checkpoint)
    shapes = {entry.name: entry.tensor.shape for entry in case.survey.tensors}
    # PEFT 0.2 wrote merged layers with tensors of other shapes, so a file with them
    # gets the plain line.
    is_odd = merged_parts(shapes) or foreign_code(case.survey.checkpoint) is not None
    if base is None or is_odd:
        yield from load_statements(case)
        return
    named = f" ({show(base, 80)})" if base else ""
    yield Statement(
        f"It loads so, into the base model{named} that the program has built:",
        (),
        f"peft.PeftModel.from_pretrained(model, {case.path_literal})",
    )


def _no_adapter(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a loader of adapters, or a loader of models that was given an adapter."""
    checkpoint = case.survey.checkpoint
    if base_of_adapter(checkpoint) is not None:
        yield Statement(
            (
                "This folder is an adapter of PEFT, and no model: the loader looked "
                "for the weights of a whole model. Load the base model first."
            )
            if "valid checkpoint" not in message.text
            else "This folder holds an adapter of PEFT, and no whole model. This "
            "Trainer looks for whole weights: it is an older transformers, or its "
            "model was not wrapped by PEFT when the training began. Wrap it first "
            "(get_peft_model) in a version that resumes adapters, or go on from the "
            "adapter."
        )
        yield from _adapter_load_statements(case)
        return
    # The first stage of LLaVA writes a projector alone, beside no base model.
    names = [entry.name for entry in case.survey.tensors]
    if names and all(_PROJECTOR.search(name) for name in names):
        yield Statement(
            "This file is a projector alone, which the first stage of LLaVA and its "
            "kin trains: it is no adapter, and nothing can be merged. The second stage "
            "takes it (--pretrain_mm_mlp_adapter)."
        )
        yield from load_statements(case)
        return
    layers = [entry.name for entry in case.survey.tensors if _LORA.search(entry.name)]
    label = checkpoint.layout or checkpoint.traits.label
    if not layers:
        yield Statement(
            f"This is a whole model ({label}), and no adapter of PEFT: no tensor of it "
            "is of LoRA. Load it as a model."
        )
        yield from load_statements(case)
        return
    lacks = (
        "and no adapter_config.json"
        if case.is_folder
        else "and PEFT takes adapter_config.json beside them"
    )
    yield Statement(
        f"The weights of an adapter are here ({counted_noun(len(layers), 'tensor')} of "
        f"LoRA), {lacks}, which names the layers, the rank and alpha. Copy it from "
        "where the adapter was trained: no command makes it from the weights alone, "
        "which do not have alpha."
    )
    yield from load_statements(case, "The tensors alone load so:")


_PROJECTOR = re.compile(r"(?:^|\.)(?:mm_projector|multi_modal_projector)\.")
# Take lora_A of PEFT, lora_down of kohya, and the hada_ and lokr_ of LyCORIS.
_LORA = re.compile(r"(?:^|\.)lora_(?:[AB]|down|up|embedding_[AB])\b|\.(?:hada|lokr)_")


def names_in(case: Case) -> list[str]:
    """The names of what lies in the folder that a user named, here."""
    try:
        return sorted(os.listdir(case.survey.path))
    except OSError:
        return []


def _no_resumable(case: Case) -> Iterator[Statement]:
    """Answer Trainer, which finds no checkpoint to resume from at a path."""
    if not case.is_folder:
        yield Statement(
            f"This is a file ({case.survey.checkpoint.traits.label}). Trainer resumes "
            "from a folder with the weights, the optimizer and trainer_state.json."
        )
        yield from load_statements(case)
        return
    if any(
        # The beginnings are the same for one file and for shards.
        name.startswith(("model", "pytorch_model", "adapter_model"))
        for name in case.survey.checkpoint.parts
    ):
        # DeepSpeed says the same words of a folder without its own.
        if not any(name.startswith("global_step") for name in names_in(case)):
            yield Statement(
                "The weights are here by names that Trainer knows, and no "
                "global_step… folder. With DeepSpeed the same message means that "
                "folder: a run goes on from it alone, and a save without it has "
                "neither the optimizer nor the ranks (save_only_model=True, or the "
                "end of a training). Take an earlier save that has it, or begin a run "
                "from these weights (model_name_or_path). Without DeepSpeed the path "
                "of the message is another folder, or that version of transformers "
                "is older and looks for pytorch_model.bin alone."
            )
            yield from load_statements(case)
            return
        yield Statement(
            "The weights are here by names that Trainer knows. So the path of the "
            "message is not this folder, or that version of transformers knows other "
            "names: older ones look for pytorch_model.bin alone."
        )
        yield from load_statements(case)
        return
    shown = and_more([show(name, 80) for name in case.survey.checkpoint.parts], 8)
    yield Statement(
        "Trainer looks for model.safetensors, pytorch_model.bin or "
        f"adapter_model.safetensors, and the files here are {shown}."
    )
    yield from load_statements(case)


def _no_settings(case: Case, names: list[str]) -> Iterator[Statement]:
    """Answer a loader that lacks a file of settings beside the weights."""
    checkpoint = case.survey.checkpoint
    label = checkpoint.layout or checkpoint.traits.label
    yield Statement(
        f"The weights are here ({label}), and "
        f"{and_more([show(name, 80) for name in names], 3)} is not among the files "
        "that ckpt reads beside them: settings, which no command makes from weights. "
        "Copy it from the model that the training began with."
    )
    yield from load_statements(case, "Without it the weights load so:")


def _of_pipeline(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a loader of one model that was given a whole pipeline of diffusers, or
    nothing where it looked in a part.
    """
    checkpoint = case.survey.checkpoint
    parts = pipeline_parts(checkpoint)
    place = next(
        (found for pattern in _PLACES if (found := pattern.search(message.text))), None
    )
    folder = (
        ""
        if place is None
        else place[1].rstrip("./\\").replace("\\", "/").rpartition("/")[2]
    )
    # If the loader looked inside of a part, that part lacks the file, and the
    # pipeline explains nothing.
    if folder in {member.key for member in checkpoint.members}:
        return
    yield Statement(
        "Nothing is missing: this folder is a whole pipeline of diffusers "
        f"({pipeline_class(checkpoint)}), whose settings are in model_index.json, "
        "which is here. A config.json belongs to each of its parts. The program asked "
        "for one model."
    )
    line = pipeline_line(checkpoint, case.path_literal)
    if line is not None:
        yield Statement("As a pipeline it loads so:", (), line)
    if parts:
        shown = and_more(
            [
                f'subfolder="{show(key, 60)}" ({show(name, 80)})'
                for key, name in parts.items()
            ],
            4,
        )
        yield Statement(f"A class of one model takes a part of it: {shown}.")


_ENDING = re.compile(
    r"with extension \.(\w{1,20})|No \.(\w{1,20}) weights found for model"
)
"""The ending of the files that a loader looks for alone."""


def _by_other_names(message: Message, case: Case) -> Answer:
    """Answer a loader that knows other names of weights than a folder has."""
    checkpoint = case.survey.checkpoint
    rows = list(
        finding_statements([*case.at_least("warning"), *case.found("unread-file")])
    )
    label = checkpoint.layout or checkpoint.traits.label
    wanted = _NO_FILE.search(message.text)
    name = f" {wanted[1]}" if wanted is not None else " a name that the loader knows"
    count = (
        f", in {counted_noun(len(checkpoint.parts), 'file')}"
        if checkpoint.parts
        else ""
    )
    rows.append(
        Statement(
            f"The weights are here{count} ({label}), and none of the files has{name}. "
            "ckpt reads them."
        )
    )
    if (
        not checkpoint.parts
        and not checkpoint.members
        and case.survey.path.endswith(".safetensors")
    ):
        # Publishers put the type before the ending, as `model.fp16.safetensors`, and
        # loaders want the plain name.
        variant = re.search(r"\.(fp16|bf16|fp32|non_ema)\.", case.survey.path)
        text = (
            "Pass the path of this file itself, or give it the name that the loader "
            "knows, model.safetensors"
        )
        more = (
            f' (transformers and diffusers take it with variant="{variant[1]}")'
            if variant is not None
            else ""
        )
        rows.append(Statement(f"{text}{more}."))
        return Answer(case.survey.path, (*rows, *load_statements(case)))
    ending = _ENDING.search(message.text)
    # Read `No local weights found in llm with extension .bin`. Each of the two wordings
    # has a group of its own.
    if ending is not None and f".{ending[1] or ending[2]}" == ".bin":
        rows.append(
            Statement(
                "The loader looks for files of torch (.bin), and these are "
                "safetensors, which newer versions of it read. For this one, beside "
                "config.json and the tokenizer:"
            )
        )
        way = case.written(("convert",), "", ".bin")
        text = ""
    else:
        way = case.written(("convert",), "", ".safetensors")
        text = (
            "As one file. A loader of folders takes it by the name model.safetensors, "
            "beside config.json:"
        )
    if way.command is None:
        way = case.plan(("weights",))
    if way.command is not None:
        rows.append(Statement(text, (), way.command))
    rows += load_statements(case)
    return Answer(case.survey.path, tuple(rows))


# Read Python's `can't decode byte 0xcf in position 0`, and PyYAML's `#xcf` with the
# position in another line.
_BYTE = re.compile(
    r"can't decode byte (?:0x|#x)([0-9a-f]{2})[\s\S]{0,300}?position (\d{1,12})"
)


def _is_at(message: Message, case: Case) -> bool:
    """Tell whether the byte that a reader of text stopped at stands in the file at the
    same position.
    """
    found = _BYTE.search(message.text)
    source = case.survey.checkpoint.source
    if found is None or source is None or int(found[2]) >= source.size:
        return False
    return source.read(int(found[2]), 1) == bytes.fromhex(found[1])


def _answer_text_reader(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a reader of text: of what Python 2 wrote, or of a whole file that is no
    text.
    """
    encoding = case.survey.checkpoint.encoding
    # The same byte at the same position shows that this file was read as text, and no
    # config beside it.
    if encoding is None and _is_at(message, case):
        found = _BYTE.search(message.text)
        place = (
            f"byte {found[2]} of this file is 0x{found[1]}"
            if found is not None
            else "the byte is here"
        )
        yield Statement(
            "The program read this file as text, and it is none "
            f"({case.survey.checkpoint.traits.label}): {place}. It was opened without "
            '"rb", or handed over'
            " in the place of a file of text: a config, a vocabulary, a list of "
            "labels. Its bytes are not at fault."
        )
        yield from load_statements(case)
        return
    if encoding is None:
        yield Statement(
            "No text of this file needs another encoding, and the byte of the message "
            "is not at its position: another file was read."
        )
        return
    yield Statement(
        f"Python 2 wrote this file. Its texts load with encoding={encoding!r}.",
        (),
        case.survey.load.expression,
    )
    yield from command_statements(
        "This file then loads without it:",
        case.plan(("convert", "--encoding", encoding)),
    )


# Read `inline_container.cc:157] . archive does not contain any files` and
# `inline_container.cc:222] . file not found: module/version`.
_MEMBERS = re.compile(
    r"archive does not contain any files"
    r"|inline_container\.cc:\d{1,6}\] ?\. ?file not found"
)


_WANTED_MEMBER = re.compile(
    r"file not found: [\w./-]{0,400}?(constants\.pkl|code/[\w./]{1,200})"
)
"""A member that TorchScript programs alone have."""


def _answer_missing_member(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a reader of torch that finds no member in an archive: which are there?"""
    if case.damage:
        yield from case.damage
        return
    label = case.survey.checkpoint.traits.label
    wanted = _WANTED_MEMBER.search(message.text)
    if wanted is not None and not case.survey.checkpoint.traits.names_are_code:
        yield Statement(
            f"The reader looks for {show(wanted[1], 60)}, which programs of "
            f"TorchScript have, and this file is none: {label}. torch.jit.load, "
            "libtorch and what is built on it take what torch.jit.save wrote."
        )
        yield from load_statements(case, "It loads in Python so:")
        return
    if "zip" not in label.lower() and not case.survey.checkpoint.traits.names_are_code:
        yield Statement(
            f"This file is {label}, and no archive of torch: the reader looks for "
            "members of one."
        )
        yield from load_statements(case)
        return
    count = (
        f" of {counted_noun(len(case.survey.tensors), 'tensor')}"
        if case.survey.tensors
        else ""
    )
    checked = (
        ""
        if case.verified is None
        else f", and it is whole ({and_more(list(case.verified.checked), 4)})"
    )
    what = "any file" if "any files" in message.text else "the member that it looks for"
    yield Statement(
        f"The message is about reading: the program did not find {what} in an archive. "
        f"This file is an archive{count}{checked}. So the reader of that program is at "
        "fault, or it read another path: a second zip library in the same program "
        "(miniz, minizip) whose functions have the same names, a libtorch that is "
        "older than the file, or a stream that was not opened as binary or had been "
        "read to its end."
    )
    yield from load_statements(case, "In Python it loads so:")


def _look_at_file(message: Message, case: Case) -> Answer:
    """Look at the file: whatever is wrong with it is the answer, and where nothing is,
    that it is whole.
    """
    found = looked_at(case)
    # For a whole file the words about readers and other copies say more than the
    # general answer.
    if case.verified is not None and not case.damage and not found.explains:
        return Answer(case.survey.path, tuple(_answer_damaged(message, case)))
    return found


# Read libtorch's `open file failed, file path: ./model.pt (FileAdapter at …`. The path
# ends before the bracket.
_PATH = re.compile(r"file path: ?([^\n(]{0,2000})")


def _answer_path(message: Message, case: Case) -> Iterator[Statement]:
    """Answer libtorch, which finds nothing at a path, or reads nothing from a
    stream.
    """
    found = _PATH.search(message.text)
    # Read `istream reader failed: reading file.`: a stream has no path to name.
    if found is None:
        yield Statement(
            "libtorch read no byte: the stream was not open, for no file is at the "
            "path, or it had been read to its end. Give the whole path of this file, "
            "which is here."
        )
        if not case.survey.checkpoint.traits.names_are_code:
            yield Statement(
                "It would not load in C++ then either: torch::jit::load takes what "
                "torch.jit.save wrote, and this is a "
                f"{case.survey.checkpoint.traits.label}. Load it in Python, and write "
                "torch.jit.script(model).save(…)."
            )
        yield from finding_statements(case.at_least("error"))
        return
    path = "" if found is None else found[1].strip()
    # A root or a drive such as `C:` makes a path independent of the folder of the
    # program.
    is_relative = bool(path) and not path.startswith(("/", "\\")) and path[1:2] != ":"
    where = (
        (
            " It is looked for below the folder in which the program runs, which an "
            "IDE sets."
        )
        if is_relative
        else ""
    )
    yield Statement(
        f"The program found no file at {show(path, 200) or 'an empty path'}.{where} "
        "Give the whole path of this file, which is here."
    )
    yield from finding_statements(case.at_least("error"))


def _answer_mount(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a file system that gives no bytes, or that maps no files."""
    not_mapped = NOT_MAPPED.search(message.text)
    if not_mapped is not None:
        yield from of_no_maps(not_mapped, case)
        return
    state = ""
    if case.verified is not None and not case.damage:
        state = " ckpt reads all bytes of this file now, and it is whole."
    yield Statement(
        "The file system gave no bytes, and the file is not the cause: a network "
        f"drive, a cloud mount or its quota.{state} Copy the file to a local disk, and "
        "load that."
    )
    yield from case.damage


_BARE_END = re.compile(r"\bEOFError:?\s*$")
"""The error of a pickle without a byte, which says nothing."""
FAMILIES = (
    Family(
        "damaged",
        (
            # Take the bare word alone: input() of Python raises `EOFError: EOF when
            # reading a line`.
            r"(?:^|\n)EOFError:?[ \t\r]*(?:\n|$)",
            # A missing constants.pkl or code/ is of TorchScript, and `readers` answers
            # it.
            r"PytorchStreamReader failed(?! locating file (?:constants\.pkl|code/))",
            r"unexpected EOF, expected \d{1,20} more bytes",
            r"invalid load key, '",
            r"Invalid magic number; corrupt file",
            r"Unsupported operand \d{1,4}",
            r"Ran out of input",
            # torch.load takes what it does not know for a tar, its oldest format, and
            # seeks storages in it.
            r"filename 'storages' not found",
            r"pickle data was truncated",
            # With a path behind the words, the system refused the name of a file:
            # `Invalid argument: 'best|18.pt'`.
            r"\[Errno \d{1,4}\] Invalid argument(?!:? ?['\"\w])",
            r"not a ZIP archive",
            r"(?:ReadError|BadGzipFile): [Nn]ot a gzip(?:ped)? file",
            r"file in archive is not in a subdirectory",
            # tar and gzip say so of a .pth.tar, which seldom is an archive.
            r"This does not look like a tar archive",
            r"gzip: [^\n]{1,500}: not in gzip format",
            r"End-of-central-directory signature not found",
            (
                r"tarfile\.ReadError: (?:file could not be opened|not a gzip"
                r"|invalid header|bad checksum|truncated header)"
            ),
            r"Expected hasRecord\(\"version\"\) to be true",
            r"storage has wrong (?:byte )?size: expected",
            r"Corrupted (?:file|checkpoint|archive)",
            r"File is not a zip file",
            r"Bad CRC-32 for file",
            r"setStorage: sizes .{1,200} out of bounds for storage of size",
        ),
        answer_from_statements(_answer_damaged),
    ),
    Family(
        "unarchived",
        (_MEMBERS.pattern,),
        answer_from_statements(_answer_missing_member),
    ),
    Family(
        "unreadable",
        (
            # The words hide the cause: they are the same for whatever stopped the load.
            r"Unable to load weights from (?:pytorch )?checkpoint file for",
            r"You seem to have cloned a repository without having git-lfs installed",
        ),
        _look_at_file,
    ),
    Family(
        "header",
        (
            (
                r"HeaderTooLarge|HeaderTooSmall|InvalidHeader(?:Start|Length"
                r"|Deserialization|)\b"
            ),
            # Newer versions of safetensors write words in place of the names of errors.
            r"header too (?:large|small)",
            r"Error while deserializing(?: header)?:",
            r"MetadataIncompleteBuffer|incomplete metadata, file not fully covered",
            r"invalid (?:UTF-8|JSON) in header",
            r"TensorInvalidInfo|InvalidOffset|invalid offset for tensor",
        ),
        answer_from_statements(_answer_header),
    ),
    Family(
        "unlabelled",
        (
            r"does not contain the valid metadata",
            # A file without any metadata gives None, which is asked for the format. The
            # traceback names safetensors.
            r"'NoneType' object has no attribute 'get'(?=[\s\S]{0,300}safetensors)",
        ),
        answer_from_statements(_answer_unlabelled),
    ),
    Family(
        "persistent",
        (
            r"persistent id instruction was encountered",
            r"no persistent_load function was specified",
        ),
        answer_from_statements(_answer_persistent_id),
    ),
    Family(
        "folder",
        (
            r"Is a directory: ",
            r"No such file or directory: '[^'\n]{0,2000}\.metadata'",
            # Windows refuses to open a folder with this. A path without a dot is most
            # likely a folder.
            r"Permission denied: '[^'\n.]{1,2000}'",
            r"metadata is None",
        ),
        answer_from_statements(_answer_folder),
    ),
    Family(
        "no-file",
        (
            r"[Ee]rror no file named ",
            r"Can't find a checkpoint index \(",
            r"Could not find (?:a )?model in \S",
            # A lack of value_head.bin has words of its own.
            r"does not appear to have a file named (?!value_head\.)",
            r"no checkpoint (?:was )?found (?:in|at|under) ",
            r"Can't find '?(?:adapter_config\.json|adapter_model)",
            r"Can't find a valid checkpoint at ",
            r"No valid checkpoint found in (?:output directory|\S)",
            # DeepSpeed reads the name of the step from a file called latest.
            r"[Uu]nable to find 'latest' file at",
            r"No local weights found in \S{1,2000} with extension \.\w{1,20}",
            r"No \.\w{1,20} weights found for model \S",
            (
                r"is not a folder containing a `?\.index\.json`? file or a "
                r"pytorch_model\.bin"
            ),
            (
                r"`?checkpoint`? should be the path to a file containing a whole state "
                r"dict"
            ),
        ),
        _no_file,
    ),
    Family(
        "path",
        (
            r"istream reader failed: ",
            r"read_bytes == 8 ASSERT FAILED",
            (
                r"open file failed(?: because of errno \d{1,4} on fopen: [\w "
                r"]{1,80})?,? file path: "
            ),
        ),
        answer_from_statements(_answer_path),
    ),
    Family(
        "absent",
        (
            (
                r"No such file or directory: (?:Posix|Windows)?(?:Path\()?"
                r"['\"]?[^'\"\n]{1,2000}\."
                # With another ending the file may be anything that a program reads.
                r"(?:pth|pt|bin|ckpt|safetensors|gguf|pkl|json|distcp)\b"
            ),
        ),
        of_any=True,
        is_weak=True,
    ),
    Family(
        "mount",
        (
            # Rust, in which safetensors is written, says `(os error 19)` for Python's
            # `[Errno 19]`.
            r"No such device \(os error \d{1,4}\)",
            r"\[Errno \d{1,4}\] No such device",
            r"\[Errno \d{1,4}\] Input/output error",
            r"\[Errno 107\] Transport endpoint is not connected",
            r"\[Errno 116\] Stale file handle",
            (
                r"\[Errno \d{1,4}\] (?:Remote I/O error|Resource deadlock avoided"
                r"|Software caused connection abort)"
            ),
            # torch reads files of its old format by itself
            # (torch/csrc/serialization.cpp)
            r"read\(\): fd \d{1,6} failed with ",
            r"\[WinError (?:59|64|1117|1450)\]",
        ),
        answer_from_statements(_answer_mount),
    ),
    Family(
        "python2",
        (
            r"codec can't decode byte 0x[0-9a-f]{2}",
            # PyYAML, which gives the position in a line of its own
            r"codec can't decode byte #x[0-9a-f]{2}[\s\S]{0,300}?position \d{1,12}",
        ),
        answer_from_statements(_answer_text_reader),
    ),
)

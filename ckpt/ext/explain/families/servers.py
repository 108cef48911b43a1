"""Programs that run or convert whole models (ollama, vLLM, TensorRT-LLM, accelerate),
and refuse a model by its settings, its format, or a name of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.families.quantized import SCALE
from ckpt.ext.explain.families.tied import tied_name
from ckpt.ext.explain.origins import config_of
from ckpt.model.text import and_more, counted_noun, show

_GGUF = "GGUF"


# --- an architecture ------------------------------------------------------------------


NOT_KNOWN = re.compile(
    r"unsupported architecture \\?[\"']([\w-]{2,200})\\?[\"']"
    r"|Model architectures \['([\w-]{2,200})'\] (?:are not supported|failed)"
    r"|\bModel (\w{2,200}For\w{2,100}|\w{2,200}Model) is not supported\b"
    r"|[Aa]rchitecture ['\"]?(\w{2,200}For\w{2,100})['\"]? (?:is )?not supported"
)
"""The words of ollama, vLLM, SGLang and the converters of llama.cpp for a class of
models that they do not know.
"""


def of_architecture_name(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that knows no model of a class, by what config.json says."""
    name = next(text for text in found.groups() if text is not None)
    architectures = config_of(case.survey).get("architectures")
    held = (
        [str(text) for text in architectures] if isinstance(architectures, list) else []
    )
    # The config shows that the program read another folder.
    if held and name not in held:
        shown = and_more([show(text, 80) for text in held], 2)
        yield Statement(
            f"config.json of this folder says {shown}, and no {show(name, 80)}: "
            "another folder was loaded."
        )
        yield from load_statements(case)
        return
    told = f"config.json says {show(name, 80)}: " if held else ""
    yield Statement(
        f"{told}the program has no code for this architecture, and nothing is wrong "
        "with the file. A newer version of the program may have it; ollama imports "
        "fewer from safetensors than it runs: convert with convert_hf_to_gguf.py of a "
        "new llama.cpp, and import the GGUF."
    )
    yield from load_statements(case)


# --- a format -------------------------------------------------------------------------


NO_GGUF = re.compile(
    r"\binvalid file magic\b|\bunsupported content type\b"
    r"|\binvalid magic (?:characters?|number)?:? ?['\"]"
)
"""The words of ollama and llama.cpp for a file that is no GGUF."""


def of_no_gguf(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that reads GGUF and was given something else."""
    del found
    label = case.survey.checkpoint.traits.label
    if label == _GGUF:
        return
    path = case.survey.path
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    has_config = os.path.isfile(os.path.join(folder, "config.json"))
    beside = (
        "config.json lies beside it"
        if has_config
        else "no config.json lies beside it: copy it and the tokenizer from where the "
        "model was published"
    )
    what = "folder" if case.is_folder else "file"
    yield Statement(
        f"This {what} is {label}, and the program reads GGUF. ollama imports "
        "safetensors from a folder (FROM ./folder in the Modelfile, not the path of "
        f"one file), with config.json and the tokenizer in it; {beside}. Or make a "
        "GGUF of the folder with convert_hf_to_gguf.py of llama.cpp."
    )
    yield from load_statements(case)


MAGIC = re.compile(
    r"\binvalid magic number ([0-9a-f]{8})\b"
    r"|unknown \(magic, version\) combination: ([0-9a-f]{8})\b"
)
"""The words of llama.cpp of 2023 for the first four bytes of a file."""
_OLD_MAGICS = frozenset(("67676d6c", "67676d66", "67676a74", "67676c61"))
"""ggml, ggmf, ggjt and ggla: what llama.cpp wrote before GGUF."""


def of_magic(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that did not know the first bytes of a file."""
    magic = found[1] or found[2]
    is_gguf = case.survey.checkpoint.traits.label == _GGUF
    # llama.cpp prints the bytes as one number, so the last letter stands first.
    letters = bytes.fromhex(magic)[::-1]
    if letters == b"GGUF":
        whole = "" if not is_gguf else " This file is GGUF, as it should be."
        yield Statement(
            f"{magic} are the letters GGUF.{whole} The program is older than this "
            "format (August 2023) and reads ggml alone: update llama.cpp, or "
            "llama-cpp-python, or the image that it runs in."
        )
        yield from load_statements(case)
        return
    text = magic_text(magic)
    if is_gguf:
        text += " This file is GGUF: another file was loaded."
    yield Statement(text)
    yield from load_statements(case)


def magic_text(magic: str) -> str:
    """Say what the first four bytes of a file are, which llama.cpp printed as one
    number.
    """
    letters = bytes.fromhex(magic)[::-1].decode("latin-1")
    begins = f"The file that the program read begins with {show(letters, 20)}"
    if magic in _OLD_MAGICS:
        return (
            f"{begins}: the format of llama.cpp before August 2023. A newer llama.cpp "
            "reads GGUF alone: take the model as GGUF, or convert the file with "
            "convert_llama_ggml_to_gguf.py of llama.cpp."
        )
    if letters == "vers":
        return f"{begins}: a pointer of Git LFS in place of the file (git lfs pull)."
    if letters.startswith("<"):
        return (
            f"{begins}: a page, as of a download that got the page of a file. On "
            "huggingface.co the file is at /resolve/ where its page is at /blob/."
        )
    return f"{begins}, and no GGUF does."


# --- settings -------------------------------------------------------------------------


ROTARY = re.compile(r"invalid n_rot: (\d{1,6}), expected (\d{1,6})")
"""The words of llama.cpp for the length of the rotated part of a head."""


def of_rotary(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a length of heads that a converter took for the width divided by their
    number.
    """
    config = config_of(case.survey)
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    length = config.get("head_dim")
    sizes = {int(found[1]), int(found[2])}
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        return
    # Both numbers of the message must come out, whichever of them the program computed.
    if isinstance(length, int) and {length, width // heads} == sizes:
        yield Statement(
            f"config.json has head_dim = {length:,}, and {width:,} (hidden_size) / "
            f"{heads:,} heads is {width // heads:,}: the converter or the program did "
            "not read head_dim and divided. Nothing is wrong with the weights: "
            "convert again with a newer version, which reads it "
            "(convert_hf_to_gguf.py of llama.cpp does)."
        )
        yield from load_statements(case)


# --- names of a program's own ---------------------------------------------------------


REQUIRED = re.compile(r"Required but not provided tensors:\s{0,8}\{([^}]{1,100000})")
"""The words of TensorRT-LLM for tensors that its converter did not make."""
_QUOTED = re.compile(r"'([\w.-]{1,1000})'")


def of_required(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a converter that did not make all tensors of its own model."""
    wanted = _QUOTED.findall(found[1])
    names = {entry.name for entry in case.survey.tensors}
    # A name that is in the file is no name of the program's own.
    if not wanted or names.intersection(wanted):
        return
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in wanted))
    shown = and_more([show(end, 60) for end in ends], 3)
    text = (
        f"{counted_noun(len(wanted), 'name')} of the message (they end with {shown}) "
        "are those of the program's own model, which its converter makes of this "
        "checkpoint: no file of transformers has them."
    )
    if all(SCALE.search(end) or "scale" in end for end in ends):
        text += " They are scales of a quantizer. " + (
            "This file has quantized weights: name its method to the converter."
            if case.scaled_findings
            else "The weights of this file are plain, so the converter has to "
            "quantize them itself: its options for quantization and for what it "
            "writes do not go together, or this version does not make them for "
            "this model."
        )
    yield Statement(text)
    yield from load_statements(case)


NO_DEVICE = re.compile(
    r"device_map provided does not give any device for the following parameters: "
    r"([\w., -]{1,10000})"
)
"""The words of accelerate for parameters that a device_map leaves out."""


def of_device_map(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a device_map that leaves out parameters of the model."""
    wanted = [name.strip(" .") for name in found[1].split(",") if name.strip(" .")]
    names = [entry.name for entry in case.survey.tensors]
    shown = and_more([show(name, 120) for name in wanted], 3)
    here = [name for name in wanted if name in names]
    some = "it" if len(here) == len(wanted) == 1 else f"{len(here):,} of them"
    held = (
        f"This file has {some}."
        if here
        else "This file does not have it, as where the model ties it to another one."
        if len(wanted) == 1
        else "This file has none of them."
    )
    module = wanted[0].rpartition(".")[0] if wanted else ""
    yield Statement(
        f"The map of devices is the cause, and no file: it names none for {shown}. "
        f'{held} Add its module, as device_map["{show(module, 80)}"] = 0; device_map='
        '"auto" needs a version of the model that tells accelerate of its tied '
        "parameters (_tied_weights_keys)."
    )
    yield from load_statements(case)


NEEDS_VALUE = re.compile(
    r"(\w{1,100}) is on the meta device, we need a `value` to put in on"
)
"""The words of accelerate for a parameter that no file gave a value."""


def of_needed_value(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a model whose parameters got no values, by the names of the file."""
    del found
    # Tensors that were saved without values are the cause themselves.
    if case.valueless:
        return
    names = [entry.name for entry in case.survey.tensors]
    yield Statement(
        "The model was built without values (init_empty_weights), and the load gave "
        "none to at least one parameter: its name is not one of this file, in which "
        "all tensors have values."
    )
    firsts = list(dict.fromkeys(name.partition(".")[0] for name in names))
    if len(names) > len(firsts):
        shown = and_more([show(word, 40) for word in firsts], 4)
        yield Statement(
            f"The names of this file begin with {shown}. A model of another class than "
            "the one that saved has other names (AutoModel has no model. before them, "
            "AutoModelForCausalLM has): build the class of the file."
        )
    tied = tied_name(["lm_head.weight"], names, case)
    if tied is not None and "lm_head.weight" not in names:
        yield Statement(
            f"It has no lm_head.weight, which is tied to {show(tied, 80)}: call "
            "model.tie_weights() before load_checkpoint_and_dispatch."
        )
    yield from load_statements(case)


SEEKS = re.compile(
    r"'([\w.]{1,200})' object has no attribute '(?:seek|read|tell|readinto)'[.\s]{1,4}"
    r"You can only torch\.load from a file that is seekable"
)
"""The words of torch.load for an object in the place of a path."""


def of_object_for_path(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a torch.load that got an object, and not the path of a file."""
    kind = found[1].rpartition(".")[2]
    if kind in ("dict", "OrderedDict"):
        return
    yield Statement(
        f"The first argument of torch.load is the path, and the call gave it an object "
        f"of {show(kind, 80)}: torch.save takes the object first, torch.load takes "
        "no object. Nothing is wrong with the file."
    )
    yield from load_statements(case)

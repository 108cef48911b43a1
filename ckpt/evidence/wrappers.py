"""The prefixes of wrappers on names (`module.`, `_orig_mod.`, `base_model.model.`), and their writers."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence

WRAPPERS = {
    "module": "DataParallel or DDP",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning or DeepSpeed",
}
"""The attributes under which wrappers keep their model -> who writes them."""


AVERAGE_COUNTERS = ("n_averaged", "steps")
"""The counters that AveragedModel of torch and the averages of MMEngine keep beside `module`."""

_WRAPPED = tuple(f"{part}." for part in WRAPPERS)


def wrapper_prefix(name: str) -> str:
    """The attributes of wrappers at the start of `name`, with the last dot: `_orig_mod.module.`, or ``."""
    if not name.startswith(_WRAPPED):
        return ""
    end = 0
    for part in name.split("."):
        if part not in WRAPPERS or end + len(part) + 1 > len(name) - 1:
            break
        end += len(part) + 1
    return name[:end]


def wrapped_names(names: Sequence[str]) -> list[str]:
    """Those that begin with an attribute of a wrapper."""
    text = "\n".join(["", *names])
    if not any(f"\n{begin}" in text for begin in _WRAPPED):
        return []
    return [name for name in names if name.startswith(_WRAPPED)]


def inner_wrappers(name: str) -> list[tuple[str, str]]:
    """The attributes of wrappers inside `name`, after the leading ones, each with the name up to its dot.

    Only attributes that models hardly use themselves: `model._orig_mod.fc.weight` -> `_orig_mod`,
    `model._orig_mod.`. An attribute that comes twice is listed once, where it comes first.
    """
    inner: dict[str, str] = {}
    end = len(wrapper_prefix(name))
    for part in name[end:].split(".")[:-1]:
        end += len(part) + 1
        if part in WRAPPERS and part.startswith("_"):
            inner.setdefault(part, name[:end])
    return list(inner.items())


def own_name(name: str) -> str:
    """`name` without the attributes of wrappers that models do not use themselves: `a._orig_mod.b` -> `a.b`."""
    if "_" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in WRAPPERS or not part.startswith("_"))


def unwrapped_name(name: str) -> str:
    """`name` without the attributes of wrappers: all leading ones, and inner ones that models do not use."""
    rest = name[len(wrapper_prefix(name)) :]
    if "._" not in rest:
        return rest
    parent, _, last = rest.rpartition(".")
    return f"{own_name(parent)}.{last}" if own_name(parent) else last


def usual_prefix(names: Iterable[str], rule: Callable[[str], str] = unwrapped_name) -> str:
    """The prefix that a rule removes from most names; on a tie, the one seen first."""
    gone: dict[str, int] = {}
    for name in names:
        plain = rule(name)
        if name.endswith(plain):
            prefix = name[: len(name) - len(plain)]
            gone[prefix] = gone.get(prefix, 0) + 1
    return max(gone, key=lambda prefix: gone[prefix]) if gone else ""


def writers(prefix: str, *, counters: Container[str] = (), is_average: bool = False) -> str:
    """Name the writers of a prefix of wrappers: `torch.compile around DataParallel or DDP`.

    `counters` are the names of an average's counters. One that stands beside `module.` tells AveragedModel: DDP would
    have put its prefix before the counter too. Without one, an average may have the prefix from either.
    """
    names = []
    base = ""
    for part in prefix.rstrip(".").split("."):
        name = WRAPPERS[part]
        if part == "module" and any(f"{base}{counter}" in counters for counter in AVERAGE_COUNTERS):
            name = "AveragedModel"
        elif part == "module" and is_average:
            name = f"the average, {name}"
        names.append(name)
        is_average = is_average and part != "module"
        base += f"{part}."
    return " around ".join(names)


def strips(names: Sequence[str]) -> bool:
    """Tell whether some names change without the prefixes of wrappers, and all stay different."""
    new = [unwrapped_name(name) for name in names]
    return new != list(names) and len(set(new)) == len(new)


# --- PEFT -------------------------------------------------------------------------------------------------------------

# PEFT puts a model below `base_model.model`. A layer that an adapter changes keeps its own tensors below `base_layer`,
# and those of the adapter below `lora_A.NAME`; the file of an adapter leaves NAME out. A layer that is trained as a
# whole has its copy below `modules_to_save.NAME`.
_PEFT = "base_model.model."
_PEFT_MARKS = ("base_model.model.", ".base_layer.", ".lora_", ".modules_to_save.")
_NAMED = r"\.(lora_(?:A|B|magnitude_vector))\.[^.]+\.(weight|bias)$"
_EMBEDDING = r"\.(lora_embedding_[AB])\.[^.]+$"
_SAVED = r"\.modules_to_save\.[^.]+\."
_LAYER = r"(.+)\.lora_(?:A|B|embedding_A|embedding_B)(?:\.|$)"


def is_adapted(names: Iterable[str]) -> bool:
    """Tell whether PEFT makes any of the names."""
    text = "\n".join(names)
    return any(mark in text for mark in _PEFT_MARKS)


def base_name(name: str) -> str:
    """The name without what PEFT adds: `base_model.model.fc.base_layer.weight` -> `fc.weight`."""
    name = name.removeprefix(_PEFT).replace(".base_layer.", ".")
    if ".lora_" in name:
        return re.sub(_EMBEDDING, r".\1", re.sub(_NAMED, r".\1.\2", name))
    return re.sub(_SAVED, ".", name)


def adapted_layers(names: Iterable[str]) -> list[str]:
    """The layers of the base model that LoRA changes, by their names in the base model, each once."""
    matches = [re.match(_LAYER, base_name(name)) for name in names if "lora_" in name]
    return list(dict.fromkeys(match[1] for match in matches if match is not None))

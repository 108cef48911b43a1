"""Tensors that a program asks for by name, and that a file does not have: what stands
where the name leads to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.families.tied import tied_name
from ckpt.ext.explain.origins import config_of
from ckpt.model.names import natural_sort_key
from ckpt.model.text import and_more, show

LACKED = re.compile(
    r"Tensor ['\"]?([\w-]{1,200}(?:\.[\w-]{1,200}){1,40})['\"]? required but not "
    r"present"
    r"|File does not contain tensor ['\"]?([\w.-]{1,1000})"
    r"|\bMissing key in (?:safetensors )?checkpoint: ([\w.-]{2,1000})"
    r"|Could not find ['\"]?([\w.-]{2,1000}?)(?:\.\*)?['\"]? in model\b"
)
"""The words of mergekit, safetensors, OpenNMT, eole and ExLlama for a tensor that a
file lacks.
"""
_SHOWN = 8


def of_lacked(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that asks for one tensor by its name."""
    # A full stop behind the name ends the sentence of the program.
    name = next(text for text in found.groups() if text is not None).rstrip(".,;:")
    names = [entry.name for entry in case.survey.tensors]
    below = [other for other in names if other.startswith(f"{name}.")]
    tied = _tied_to(name, names, case)
    inside = _in_another_dict(name, case)
    if inside is not None:
        yield inside
    elif name in names:
        yield Statement(
            f"This file has a tensor called {show(name, 120)}: another file was loaded."
        )
    elif tied is not None:
        yield tied
    elif below:
        shown = and_more([show(other, 120) for other in below], 3)
        yield Statement(
            f"No tensor of this file is called {show(name, 120)} alone: it is the "
            f"beginning of {shown}. The program looks for a file of another kind."
            f"{_class_text(case)}"
        )
    else:
        yield Statement(absent_text(name, names) + _class_text(case))
    yield from load_statements(case)


def _in_another_dict(name: str, case: Case) -> Statement | None:
    """Say that a tensor lies in a dict of its own beside the model's, or return None:
    ["generator"]["linear.weight"] for generator.linear.weight.
    """
    place = next(
        (
            entry.path
            for entry in case.survey.tensors
            if entry.name == name and len(entry.path) > 1
        ),
        None,
    )
    if place is None:
        return None
    roots = {str(entry.path[0]) for entry in case.survey.tensors if entry.path}
    # A single dict around all names is a wrapper, and no part beside others.
    if len(roots) < 2:
        return None
    written = "".join(f'["{show(str(key), 80)}"]' for key in place)
    others = and_more([show(root, 60) for root in sorted(roots - {str(place[0])})], 4)
    return Statement(
        f"This file has it at {written}: {show(str(place[0]), 60)} is a dict of its "
        f"own in it, beside {others}. Nothing is lost: the program looked for another "
        "name below it, as where it was built with other options, or is of another "
        "version than the one that saved."
    )


def _tied_to(name: str, names: Sequence[str], case: Case) -> Statement | None:
    """Say that the output layer is tied to the embedding, or return None."""
    wanted = name if name.endswith(".weight") else f"{name}.weight"
    # A file that has the output layer itself ties nothing.
    if any(other == wanted or other.startswith(f"{name}.") for other in names):
        return None
    tied = tied_name([wanted], names, case) or _by_setting(wanted, names, case)
    if tied is None:
        return None
    return Statement(
        f"{show(wanted, 80)} is the same tensor as {show(tied, 80)} where a model ties "
        "both, and such a file holds it once: nothing is lost. A program that does not "
        "tie them itself needs the tensor twice: a newer version of it, or both names "
        "in the file:",
        (),
        _twice_line(wanted, tied, case),
    )


def _by_setting(wanted: str, names: Sequence[str], case: Case) -> str | None:
    """The embedding of the decoder that the output layer of eole shares by its
    settings, or None.
    """
    if wanted != "generator.weight":
        return None
    if config_of(case.survey).get("share_decoder_embeddings") is not True:
        return None
    own = "tgt_emb.embeddings.weight"
    return own if own in names else None


def _twice_line(wanted: str, tied: str, case: Case) -> str | None:
    """The line of Python that writes the embedding under both names, or None."""
    load = case.survey.load.expression
    # The line writes safetensors, so it is for such a file alone.
    if load is None or not load.startswith("safetensors.torch.load_file("):
        return None
    return (
        f'state = {load}; state["{wanted}"] = state["{tied}"].clone(); '
        'safetensors.torch.save_file(state, "model.untied.safetensors", '
        'metadata={"format": "pt"})'
    )


def absent_text(name: str, names: Sequence[str]) -> str:
    """Say that no tensor has a name, and what the last module on its way has in place
    of it.
    """
    parts = name.split(".")
    text = f"No tensor of this file is called {show(name, 120)}."
    # Go up from the tensor to the last module that the file has.
    for count in range(len(parts) - 1, 0, -1):
        begin = ".".join(parts[:count]) + "."
        below = [other[len(begin) :] for other in names if other.startswith(begin)]
        if not below:
            continue
        held = sorted(
            {other.partition(".")[0] for other in below}, key=natural_sort_key
        )
        word = parts[count]
        shown = and_more([show(part, 60) for part in held], _SHOWN)
        text += f" {show(begin[:-1], 120)} has {shown}, and no {show(word, 60)}"
        # A number names a layer of a list, and other layers would be no help.
        if word.isdigit():
            return f"{text}: the file has other layers."
        others = [other for other in names if f".{word}." in f".{other}."]
        if others:
            return f"{text}, which other layers have ({show(others[0], 120)})."
        return f"{text}: no layer of the file has one."
    first = sorted({other.partition(".")[0] for other in names}, key=natural_sort_key)
    return f"{text} The names begin with {and_more([show(w, 60) for w in first], 6)}."


def _class_text(case: Case) -> str:
    """Say which class wrote the file, where its config names it."""
    architectures = config_of(case.survey).get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return (
            " The program asks for another architecture, or for a part that this model "
            "does not have."
        )
    return (
        f" config.json says {show(str(architectures[0]), 80)}: the program asks for "
        "another architecture (that of another model beside it, or of its own table), "
        "or for an optional part that this model does not have; a newer version may "
        "know that."
    )

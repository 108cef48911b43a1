"""Names in a question that a file does not have, or has as a value or a key alone: a
part that was not saved, a setting, a tensor beside the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, root_keys
from ckpt.ext.explain.families.parts import beginnings_of
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import children_of

_ANY_NAME = r"[`'\"]?(?P<{}>[A-Za-z]\w{{0,60}}(?:[._]\w{{1,60}}){{1,12}})(?![\w/\\(-])"
LACKS = (
    r"\b(?:(?:does|do|did|has|have|is|was)(?:n'?t| not) (?:have|contain|include|hold"
    r"|find|see)|(?:has|have|is|there's|there is) no|missing|lacks?|lacking|without"
    r"|where (?:is|are|can i find))(?: (?:the|an?|any|key|keys|named|called)){0,3} "
    + _ANY_NAME.format("one")
    + r"|(?<![\w./\\-])"
    + _ANY_NAME.format("two")
    + r"[`'\"]?(?: \w{1,20}){0,2} (?:(?:is|are|was|were)(?:n'?t| not) (?:in|there|found"
    r"|saved|included|part|present)|(?:is|are) (?:missing|absent)"
    r"|(?:does|do|did)(?:n'?t| not) exist)\b"
)
"""Words of a question about something that is not there, with its name."""
_LACKS = re.compile(f"(?i){LACKS}")
_NO_PARTS = re.compile(
    r"(?i)\.(?:pth?|ckpt|bin|safetensors|py|sh|json|ya?ml|zip|tar|gz|ipynb|txt|com|io"
    r"|org)$|^(?:torch|nn|np|numpy|model|self|os)\.|state_dict|^(?:load|save|from|to|is"
    r"|has|use|with|num|map|requires|weights_only|strict)_|_pretrained$|version"
)
"""Words with a dot or an underscore that name no part of a model: files, calls, options
and settings.
"""
_OF_TASKS = re.compile(
    r"(?i)(?:^|_)(?:cls|class\w*|head|heads|decoder|fc|logits?|score|predict\w*)(?:_|$)"
)
_MOST = 2
_SHOWN = 6


def of_absent_names(text: str, case: Case) -> Iterator[Statement]:
    """Say that no key and no tensor of a file has a name that a question asks for."""
    asked = dict.fromkeys(
        word
        for found in _LACKS.finditer(text)
        if not _NO_PARTS.search(word := found["one"] or found["two"])
    )
    if not asked or not case.survey.candidates:
        return
    known = [entry.name.casefold() for entry in case.survey.tensors]
    known += [value.name.casefold() for value in case.survey.checkpoint.values]
    known += [key.casefold() for key in root_keys(case)]
    lacking = [
        word for word in asked if not any(word.casefold() in name for name in known)
    ]
    section = case.survey.candidates[0]
    begins = list(beginnings_of(section)) or section.names()
    label = show(section.name, 60) or "this file"
    for word in lacking[:_MOST]:
        told = (
            " By its name it is for a task: a training that had not this task has no "
            "such part, and a model that has one builds it anew, to be trained. A load "
            "with strict=False leaves it as it was built."
            if _OF_TASKS.search(word)
            else ""
        )
        yield Statement(
            f"No key and no tensor of this file has {show(word, 60)} in its name. The "
            f"names in {label} begin with "
            f"{and_more([show(row, 40) for row in begins], _SHOWN)}.{told}"
        )


_OF_PARTS = re.compile(
    r"(?i)\b(upstream|downstream|teacher|student|text|language|vision|visual|image"
    r"|audio|speech|reward|reference|draft|draught|critic|generator|discriminator)"
    r" (?:model|network|encoder|backbone)s?\b"
)
"""Parts of a larger model. Other words before `model`, as pretrained, name no part."""


def of_recorded_parts(text: str, case: Case) -> Iterator[Statement]:
    """Say that a part which a question asks for is in the settings of a file alone."""
    words = dict.fromkeys(word.casefold() for word in _OF_PARTS.findall(text))
    known = {
        word.casefold()
        for entry in case.survey.tensors
        for word in re.split(r"[._]", entry.name)
    }
    known.update(key.casefold() for key in root_keys(case))
    for word in words:
        if word in known:
            continue
        rows = [
            f"{show(value.name, 80)} = {show(str(value.node), 60)}"
            for value in case.survey.checkpoint.values
            if isinstance(value.node, str | bool | int | float)
            and _is_of(value.name.rpartition(".")[2].casefold(), word)
        ]
        if not rows or len(rows) > _SHOWN:
            continue
        parts = [
            show(part.name, 60)
            for part in case.survey.sections
            if part.name and part.kind != "optimizer"
        ]
        yield Statement(
            f"No key and no tensor of this file is called {show(word, 40)}: its "
            f"weights are in {and_more(parts, _SHOWN)}. Its settings record "
            f"{and_more(rows, _SHOWN)}. So that part is not in this file: where the "
            "training left it as it was, it is the model that it began with, and "
            "where it was trained, another file or another option of the program "
            "saves it."
        )
        return


def _is_of(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}_")


ASKS_OF_USE = (
    r"\b(?:useful|needed|necessary|important|required|matters?|ignored?"
    r"|should i (?:also )?(?:load|use|keep|consider))\b"
)
"""Words of a question whether something in a file is needed."""
_OF_OTHERS = re.compile(
    r"(?i)optim|sched|scaler|epoch|step|iter|state|model|net|weight|param|ema|config"
    r"|args|hyper|version|callback|loop|rng|best|class|label|name|vocab|char|symbol"
)
"""Keys that other answers know."""


def of_other_keys(text: str, case: Case) -> Iterator[Statement]:
    """Say what a key at the root of a file is that a question names, where it is
    neither the model nor a known part of a run.
    """
    words = {word.casefold() for word in re.findall(r"\w{3,60}", text)}
    models = [show(part.name, 60) for part in case.survey.candidates if part.name]
    if not models:
        return
    # A key below which weights lie is one of them, whatever its name.
    weights = {
        part.path[0]
        for part in case.survey.sections
        if part.path and part.kind in ("model", "ema")
    }
    for key, node in children_of(case.survey.checkpoint.root):
        name = str(key)
        if name.casefold() not in words or _OF_OTHERS.search(name) or key in weights:
            continue
        yield Statement(
            f"{show(name, 60)} is {_kind_of(node)} at the root of this file, beside "
            f"the weights, which are in {and_more(models, 3)}. A load of these does "
            "not take it: only a program that asks for this key uses it. For another "
            "task the weights are enough, unless it scales what goes in, or names what "
            "comes out (statistics, lists of words or classes)."
        )


def _kind_of(node: Node) -> str:
    """The words for a value: `a tensor of [500, 4]`."""
    tensor = tensor_of(node)
    if tensor is not None:
        return f"a tensor of {list(tensor.shape)}"
    count = len(list(children_of(node)))
    return f"a part with {counted_noun(count, 'item')}" if count else "a value"

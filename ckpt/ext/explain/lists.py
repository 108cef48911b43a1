"""The lists of keys and shapes in the messages of loaders: torch, transformers,
diffusers, timm, mmcv, fvcore, peft, vLLM.

Terminals wrap them, and logs put them on one line: a list ends where its last comma is
missing, not where the line does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

from ckpt.ext.explain.message import MOST_NAMES, Mismatch
from ckpt.ext.explain.pasted import spaced_pattern
from ckpt.model.rows import NamedTuple

_MOST_FOLDED = 4_096
"""Names that one folded name is unfolded to."""


class Keys(NamedTuple):
    """The keys that a load names: those that a model lacks, those that it has no place
    for, and shapes that differ.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[Mismatch, ...]
    compared: tuple[str, ...] = ()
    """Names of other layers whose shapes a loader compared: one of the file, one of the
    model, and so on.
    """


_ITEM = re.compile(
    r"\s*(?:\"([^\"]{0,4000})\"|'([^']{0,4000})'|([\w.*{}\[\]-]{1,4000}))\s*(,|)"
)
_BREAK = re.compile(r"\s*\n\s*")
_OPENING = re.compile(r"\s*(?:[\[({]|odict_keys\(|set\(|frozenset\(|dict_keys\(){0,3}")


def _compile_pattern(text: str) -> re.Pattern[str]:
    return re.compile(spaced_pattern(text))


_HEADS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("missing", _compile_pattern(r"Miss(?:ing)? key\(s\) in state_dict:")),
    ("unexpected", _compile_pattern(r"Unexpected key\(s\) in state_dict:")),
    # torch before 0.4
    (
        "unexpected",
        _compile_pattern(r"unexpected key (?=\"[^\"\n]{1,2000}\" in state_dict)"),
    ),
    ("missing", _compile_pattern(r"missing keys in state_dict: \"?")),
    # mmcv, mmengine
    ("unexpected", _compile_pattern(r"unexpected keys? in source state_dict:")),
    ("missing", _compile_pattern(r"missing keys? in source state_dict:")),
    # _IncompatibleKeys of torch, and programs that print its lists
    (
        "missing",
        _compile_pattern(
            r"\b[Mm]issing[ _](?:adapter )?keys?(?: while loading the checkpoint)? "
            r"?[:=] ?(?=[\[({])"
        ),
    ),
    ("unexpected", _compile_pattern(r"\b[Uu]nexpected[ _]keys? ?[:=] ?(?=[\[({])")),
    # lerobot
    (
        "missing",
        _compile_pattern(r"Missing key\(s\) when loading (?:the )?model: (?=\[)"),
    ),
    (
        "unexpected",
        _compile_pattern(r"Unexpected key\(s\) when loading (?:the )?model: (?=\[)"),
    ),
    # timm
    (
        "missing",
        _compile_pattern(r"Missing keys (?=\([^)]{1,100000}\) discovered while)"),
    ),
    (
        "unexpected",
        _compile_pattern(r"Unexpected keys (?=\([^)]{1,100000}\) found while)"),
    ),
    # MLX
    ("unexpected", _compile_pattern(r"Received \d{1,9} parameters not in model:")),
    ("missing", _compile_pattern(r"Missing \d{1,9} parameters:")),
    # torchtune
    ("unexpected", _compile_pattern(r"Found unexpected key:")),
    # transformers before 5, diffusers
    ("unexpected", _compile_pattern(r"were not used when initializing \w{1,200}:")),
    ("missing", _compile_pattern(r"are newly initialized:")),
    ("missing", _compile_pattern(r"because the following keys are missing:")),
    # ESMFold
    (
        "missing",
        _compile_pattern(
            r"\bKeys? '(?=[\w.]{3,2000}(?:,[\w., \n]{1,20000})?' (?:are|is) missing\b)"
        ),
    ),
    # Trainer of transformers
    (
        "missing",
        _compile_pattern(r"missing keys in the checkpoint model loaded:"),
    ),
    (
        "unexpected",
        _compile_pattern(r"unexpected keys in the checkpoint model loaded:"),
    ),
    # transformers 2 and pytorch-pretrained-bert, in logs
    (
        "missing",
        _compile_pattern(
            r"Weights of \w{1,200} not initialized from pretrained model:"
        ),
    ),
    (
        "unexpected",
        _compile_pattern(r"Weights from pretrained model not used in \w{1,200}:"),
    ),
    # peft
    (
        "missing",
        _compile_pattern(
            r"[Ff]ound missing adapter keys while loading the checkpoint:"
        ),
    ),
    (
        "unexpected",
        _compile_pattern(
            r"led to unexpected keys(?: found in| not found in)? the model:"
        ),
    ),
    (
        "missing",
        _compile_pattern(
            r"led to missing keys(?: found in| not found in| in)? the model:"
        ),
    ),
    # vLLM, llama.cpp
    ("unexpected", _compile_pattern(r"Can not map tensor (?=')")),
    ("unexpected", _compile_pattern(r"There is no module or parameter named (?=')")),
)
_NAMED: tuple[tuple[str, re.Pattern[str]], ...] = (
    # YOLOX and ByteTrack, VITS and RVC, CenterNet, Coqui TTS
    (
        "missing",
        _compile_pattern(
            r"(?<![\w.])(\w{1,200}\.[\w.]{1,2000}) is not in the (?:ckpt|checkpoint)\b"
        ),
    ),
    (
        "missing",
        _compile_pattern(
            r"(?:^|\n)[\t ]*No param (\w{1,200}\.[\w.]{1,2000}?)\.(?=\s|$|If you see)"
        ),
    ),
    (
        "unexpected",
        _compile_pattern(
            r"(?:^|\n)[\t ]*Drop parameter (\w{1,200}\.[\w.]{1,2000}?)\.(?=\s|$)"
        ),
    ),
    ("missing", _compile_pattern(r"Layer missing in the checkpoint: ([\w.]{3,2000})")),
    # MultimediaTechLab YOLO
    (
        "missing",
        _compile_pattern(r"Weight Not Found for key: ([\w.]{3,2000})"),
    ),
    # FSDP of torch
    (
        "missing",
        _compile_pattern(
            r"FSDP assumes ([\w.]{3,2000}) is in the state_dict but the state_dict "
            r"only has"
        ),
    ),
    (
        "unexpected",
        _compile_pattern(r"Layer missing in the model definition: ([\w.]{3,2000})"),
    ),
)
"""Lines that name one key each, with the name in the middle or at the end."""
_SPACED = _compile_pattern(
    r"Received parameters not in model:"
    r"((?:\s+[\w-]{1,200}(?:\.[\w-]{1,200}){1,40}\.?)+)"
)
"""The list of older versions of MLX, with nothing but spaces between its names."""
_BARE_LINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "missing",
        _compile_pattern(
            r"Some model parameters (?:or buffers )?are not (?:found )?in the "
            r"checkpoint:\s*\n"
        ),
    ),
    (
        "unexpected",
        _compile_pattern(
            r"The checkpoint state_dict contains keys that are not used by the "
            r"model:\s*\n"
        ),
    ),
    # Scripts that print both lists, one name in a line
    (
        "missing",
        _compile_pattern(
            r"Missing keys \(\d{1,9}\)(?: {1,8}\([^()\n]{1,100}\))?:[*]{0,2}\s*\n"
        ),
    ),
    (
        "unexpected",
        _compile_pattern(
            r"(?:Unexpected|Extra) keys \(\d{1,9}\)(?: {1,8}\([^()\n]{1,100}\))?:"
            r"[*]{0,2}\s*\n"
        ),
    ),
)
"""Heads behind which each line has one name, or with fvcore a module with its names in
braces.
"""
_BARE_LINE = re.compile(
    r"[ \t]*([\w.-]{0,2000}(?:\{[\w., -]{1,2000}\})?)[ \t]*(?:\n|$)"
)
_TABLE = re.compile(
    (
        r"^[ \t|]*([^\s|][^|\n]{0,2000}?)[ \t]*\|[ \t]*(UNEXPECTED|MISSING"
        r"|MISMATCH)[ \t]*\|?([^\n]*)"
    ),
    re.MULTILINE,
)
"""A row of the table that transformers 5 prints."""
_SIZE = (
    # A shape that was read off a picture may have a mark too many or too few.
    r"(?:(?:torch\.\s{0,2}[Ss]ize\s*\(\s*|tensor\([^()\n]{0,200}size=)[\[(]?"
    r"|\(?[\[(])([\d,\s]{0,400})[\])]\)?"
)
"""A shape, as torch, numpy and Python write it, alone or in the text of a tensor on the
device meta.
"""
_SHAPES: tuple[tuple[re.Pattern[str], bool], ...] = (
    # torch before 0.4, and where a copy fails; the shape of the model stands first
    (
        _compile_pattern(
            rf"[Ww]hile copying the parameter named \"?'?([^\s\"',]{{1,2000}})\"?'?, "
            rf"whose dimensions in the model are {_SIZE} and whose dimensions in the "
            rf"checkpoint are {_SIZE}"
        ),
        False,
    ),
    (
        _compile_pattern(
            r"size mismatch for "
            rf"((?:\w{{1,60}}\.\s){{0,4}}[^\s:]{{1,2000}}):\s+copying\s*a\s*param\s+"
            r"(?:w\w{2,5}\s+shape"
            # mmcv writes the name a second time, as an item of a tuple
            rf"|of)\s+(?:\('[^'\n]{{1,2000}}',\s+)?{_SIZE}"
            # somebody has typed the line, or read it off a picture
            r"\s*\)?\s*\w?rom\s+check\w{3,6},\s*"
            r"(?:the\s+shape\s+in\s+current\s+model\s+is"
            rf"|where\s+the\s+shape\s+is)\s+{_SIZE}"
        ),
        True,
    ),
    (
        _compile_pattern(
            rf"- ([^\s:]{{1,2000}}): found shape {_SIZE} in the checkpoint and {_SIZE} "
            r"in the model instantiated"
        ),
        True,
    ),
    (
        _compile_pattern(
            rf"(?:Skip loading parameter|Unable to load) '([^'\n]{{1,2000}})' to the "
            rf"model due to "
            rf"incompatible shapes: {_SIZE} in the checkpoint"
            rf" but {_SIZE} in the model"
        ),
        True,
    ),
    (
        _compile_pattern(
            rf"Cannot load (?:\S{{1,2000}} )?(\S{{1,2000}}) because it has shape "
            rf"{_SIZE} in the checkpoint but shape {_SIZE} in"
        ),
        True,
    ),
    (
        _compile_pattern(
            rf"because (\S{{1,2000}}) expected shape {_SIZE}\)?, but got {_SIZE}"
        ),
        False,
    ),
    # mmcv before 1.0, in a table whose model stands first
    (
        _compile_pattern(
            r"\| *([\w.-]{1,2000}) *\| *torch\.Size\(\[([\d, ]{0,200})\]\) *\| "
            r"*torch\.Size\(\[([\d, ]{0,200})\]\) *\|"
        ),
        False,
    ),
    # fvcore before 0.1.2, and programs that took its line over
    (
        _compile_pattern(
            rf"'([^'\n]{{1,2000}})' has shape {_SIZE} in the checkpoint but {_SIZE} in "
            r"the model! Skipped"
        ),
        True,
    ),
    # YOLOX
    (
        _compile_pattern(
            rf"Shape of (\S{{1,2000}}) in checkpoint is {_SIZE}, while shape of "
            rf"\S{{1,2000}} in model is {_SIZE}"
        ),
        True,
    ),
    # CenterNet and its kin; the shape of the model stands first
    (
        _compile_pattern(
            rf"Skip loading parameter ([^\s',]{{1,2000}}), required shape "
            rf"{{0,2}}{_SIZE}, loaded shape {{0,2}}{_SIZE}"
        ),
        False,
    ),
    (
        _compile_pattern(
            rf"mismatching shape for param (\S{{1,2000}}): ckpt {_SIZE} != model "
            rf"{_SIZE}"
        ),
        True,
    ),
    # RVC; the shape of the model stands first
    (
        _compile_pattern(
            rf"shape-(\S{{1,2000}})-mismatch[.|] ?need[:-] ?{_SIZE}[,"
            rf"|] ?get[:-] ?{_SIZE}"
        ),
        False,
    ),
    # Megatron
    (
        _compile_pattern(
            rf"Global shape mismatch for loaded \({_SIZE}\)? and expected \({_SIZE}\)? "
            rf"tensor for key (\S{{1,2000}})"
        ),
        True,
    ),
    (
        _compile_pattern(
            rf"Trying to set a tensor of shape {_SIZE} in \"([^\"\n]{{1,2000}})\" "
            rf"\(which has shape {_SIZE}\)"
        ),
        True,
    ),
    (
        _compile_pattern(
            rf"Size mismatch between saved {_SIZE} and current: {_SIZE} for "
            rf"(\S{{1,2000}})"
        ),
        True,
    ),
    # a chunk of a distributed checkpoint; the shape of the model stands first
    (
        _compile_pattern(
            rf"req MetadataIndex\(fqn=['\"]([^'\"\n]{{1,2000}})['\"][^\n]{{0,200}}"
            rf"mismatch sizes {_SIZE} vs {_SIZE}"
        ),
        False,
    ),
    (
        _compile_pattern(
            rf"The shape of the parameters of key (\S{{1,2000}}) is not the same\. "
            rf"Pretrained model: {_SIZE}; your network: {_SIZE}"
        ),
        True,
    ),
    (
        _compile_pattern(
            rf"shape mismatch for ([^\s:,]{{1,2000}}):? {{1,3}}(?:checkpoint"
            rf"|ckpt)[^\[(\n]{{0,40}}{_SIZE}[^\[(\n]{{0,40}}{_SIZE}"
        ),
        True,
    ),
)
"""Patterns of shapes that differ, with True where the shape of the checkpoint comes
first.
"""
_COMPARED = _compile_pattern(
    rf"Shape of (\S{{1,2000}}) in checkpoint is {_SIZE}, while shape of "
    rf"(\S{{1,2000}}) in model is {_SIZE}"
)
"""The line of detectron2 and YOLOX. In detectron2 the second name may be another one
that ends like the first.
"""
_DETAILS = re.compile(rf"ckpt: {_SIZE} vs model: ?{_SIZE}")


def keys_of(text: str) -> Keys:
    """The keys and shapes that loads name in a text."""
    # A KeyError shows the sentence of a program as Python writes a string.
    text = text.replace("\\'", "'")
    keys: dict[str, dict[str, None]] = {"missing": {}, "unexpected": {}}
    mismatched: dict[str, Mismatch] = {}
    for side, head in _HEADS:
        for match in head.finditer(text):
            keys[side].update(dict.fromkeys(_list_items(text, match.end())))
    for side, line in _NAMED:
        for match in line.finditer(text):
            keys[side][match[1].rstrip(".")] = None
    for match in _SPACED.finditer(text):
        spaced = [name.rstrip(".") for name in match[1].split()]
        keys["unexpected"].update(dict.fromkeys(spaced))
    for side, head in _BARE_LINES:
        for match in head.finditer(text):
            keys[side].update(dict.fromkeys(_line_names(text, match.end())))
    for match in _TABLE.finditer(text):
        names = list(_unfold_name(match[1]))
        if match[2] == "MISMATCH":
            details = _DETAILS.search(match[3])
            if details is not None:
                mismatched.update(
                    (
                        name,
                        Mismatch(
                            name, _parse_shape(details[1]), _parse_shape(details[2])
                        ),
                    )
                    for name in names
                )
            continue
        keys["missing" if match[2] == "MISSING" else "unexpected"].update(
            dict.fromkeys(names)
        )
    for pattern, is_first in _SHAPES:
        for match in pattern.finditer(text):
            row = _parse_mismatch(match.groups(), is_first)
            if row.checkpoint != row.model:
                mismatched[row.name] = row
    compared: list[str] = []
    for match in _COMPARED.finditer(text):
        if match[1] != match[3]:
            compared += (match[1], match[3])
            mismatched.pop(match[1], None)
    return Keys(
        tuple(keys["missing"])[:MOST_NAMES],
        tuple(keys["unexpected"])[:MOST_NAMES],
        tuple(mismatched.values())[:MOST_NAMES],
        tuple(compared)[:MOST_NAMES],
    )


def _parse_mismatch(groups: tuple[str, ...], is_first: bool) -> Mismatch:
    """A row of a name and two shapes, in whatever order a message has them."""
    name = next(text for text in groups if not re.fullmatch(r"[\d,\s]*", text))
    shapes = [_parse_shape(text) for text in groups if text is not name]
    one, two = shapes if is_first else reversed(shapes)
    return Mismatch(name.replace(". ", ".").rstrip(".'\""), one, two)


def _parse_shape(text: str) -> tuple[int, ...]:
    # A number that a line breaks in two has no comma there.
    text = re.sub(r"(?<=\d)\s+(?=\d)", "", text)
    return tuple(int(size[:18]) for size in re.findall(r"\d+", text))


def _list_items(text: str, start: int) -> Iterator[str]:
    """The items of a list that begins at `start`: quoted or bare, with or without
    brackets, over several lines.
    """
    opening = _OPENING.match(text, start)
    position = opening.end() if opening is not None else start
    is_quoted: bool | None = None
    for _ in range(MOST_NAMES):
        item = _ITEM.match(text, position)
        if item is None:
            return
        quoted = item[1] if item[1] is not None else item[2]
        if is_quoted is None:
            is_quoted = quoted is not None
        if is_quoted is not (quoted is not None):
            return
        # A dotted name behind a comma is an item of the list on the next line.
        is_next = position > start and text[position - 1] == "," and "." in item[0]
        is_broken = not is_quoted and "\n" in text[position : item.start(3)]
        if is_broken and not item[4] and not is_next:
            return  # the list ended with the line before, and this is another sentence
        yield from _split_names(quoted) if quoted is not None else _bare_name(item[3])
        position = item.end()
        if not item[4]:
            return


def _split_names(quoted: str) -> Iterator[str]:
    """The names between two quotes. diffusers puts all names of a list into one
    text.
    """
    name = _BREAK.sub("", quoted)
    yield from (part.strip() for part in name.split(", "))


def _bare_name(word: str) -> Iterator[str]:
    name = word.rstrip(".])}") if not word.endswith("}") or "{" not in word else word
    if name:
        yield name


def _line_names(text: str, start: int) -> Iterator[str]:
    """The names of fvcore's lines: `res2.conv.{bias, weight}`."""
    position = start
    while (line := _BARE_LINE.match(text, position)) is not None and line[1]:
        yield from _unfold_name(line[1])
        position = line.end()


def _unfold_name(name: str) -> Iterable[str]:
    """The names that a folded one stands for: `layers.{0, 1}.weight`, and
    `layers.{0...31}.weight`.
    """
    parts = re.split(r"\{([^{}]*)\}", name)
    if len(parts) == 1:
        return (name,)
    choices = [
        [part] if index % 2 == 0 else list(_folded_choices(part))
        for index, part in enumerate(parts)
    ]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_FOLDED:
        return (name,)
    return ("".join(row) for row in product(*choices))


def _folded_choices(text: str) -> Iterator[str]:
    bounds = re.fullmatch(r"(\d{1,6})\.\.\.(\d{1,6})", text)
    if bounds is not None and int(bounds[2]) - int(bounds[1]) < _MOST_FOLDED:
        yield from map(str, range(int(bounds[1]), int(bounds[2]) + 1))
        return
    yield from (part.strip() for part in text.split(","))

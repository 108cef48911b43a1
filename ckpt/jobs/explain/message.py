"""An error of PyTorch in the output of a program: the last one counts, with its numbers, names and shapes.

The text is a stranger's. It may be a traceback of several ranks, whose lines are mixed and begin with the rank, with
colours and the bars of a progress meter. Every pattern takes time that grows with the length of the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from ckpt.evidence.numbering import Numbers, pasted_numbers
from ckpt.rows import NamedTuple
from ckpt.text import Json

Kind = Literal[
    "ddp",
    "twice",
    "keys",
    "sizes",
    "device",
    "memory",
    "globals",
    "code",
    "optimizer",
    "distributed",
    "damaged",
    "python2",
    "replicas",
]

LONGEST = 16 << 20
"""Bytes of a text that count, from its end."""
_LINE = 4_000
"""Characters of an error that are kept to be shown and to find its page."""
_NAMES = 1_000_000
"""Names that are taken from one message."""


class Mismatch(NamedTuple):
    """A tensor that has one shape in the checkpoint and another one in the model."""

    name: str
    checkpoint: tuple[int, ...]
    model: tuple[int, ...]


class Message(NamedTuple):
    """An error of PyTorch. `text` is its line. What it names depends on its kind.

    `names` are parameters without a gradient (`ddp`, where DDP prints names too), names that loading imports
    (`globals`), or keys that a distributed checkpoint lacks (`distributed`).
    """

    kind: Kind
    text: str
    numbers: Numbers | None = None
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()
    device: str | None = None

    @property
    def fields(self) -> dict[str, str]:
        """The words of the error that the commands of a page take."""
        numbers = self.numbers.all if self.numbers is not None else []
        return {"numbers": ",".join(map(str, numbers)) or "N,N"}

    def to_json(self) -> dict[str, Json]:
        """The object `message` of the document `ckpt.explain`."""
        numbers = self.numbers
        return {
            "kind": self.kind,
            "text": self.text,
            "numbers": [
                {"rank": rank, "indices": list(indices)}
                for rank, indices in (numbers.ranks if numbers else ())
            ],
            "names": list(self.names),
            "missing": list(self.missing),
            "unexpected": list(self.unexpected),
            "mismatched": [
                {"name": row.name, "checkpoint": list(row.checkpoint), "model": list(row.model)}
                for row in self.mismatched
            ],
            "device": self.device,
        }


_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])")
_RANK = re.compile(
    r"\s*(?:\[(?:rank|default)?\d{1,6}\](?:\[\w{1,12}\])?:|\[\d{1,6},\d{1,6}\]<std\w{3}>:|\d{1,6}: "
    r"|\([\w.]{1,80} pid=\d{1,9}[^)\n]{0,80}\))\s?"
)
"""The marks that torchrun, mpirun, srun and Ray put before each line of a rank."""


def plain(text: str) -> str:
    """Return a text without colours, without the marks of ranks, and with each turn of a progress bar on its own line."""
    text = _ESCAPE.sub("", text[-LONGEST:])
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line[mark.end() :] if (mark := _RANK.match(line)) else line for line in lines)


_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("ddp", r"Expected to have finished reduction"),
    ("ddp", r"indices which did not receive grad for rank \d"),
    ("ddp", r"Parameters which did not receive grad for rank \d"),
    ("twice", r"Parameter at index \d{1,12}(?: with name \S{1,2000})? has been marked as ready twice"),
    ("twice", r"Expected to mark a variable ready only once"),
    ("keys", r"Error\(s\) in loading state_dict for "),
    ("keys", r"Missing key\(s\) in state_dict:|Unexpected key\(s\) in state_dict:"),
    ("keys", r"size mismatch for [^\s:]{1,2000}: copying a param"),
    ("keys", r"unexpected key \"[^\"\n]{1,2000}\" in state_dict|missing keys in state_dict: "),
    ("device", r"Attempting to deserialize object on "),
    ("device", r"invalid device ordinal"),
    ("device", r"don't know how to restore data location of "),
    ("memory", r"(?:CUDA|HIP|MPS backend) out of memory|OutOfMemoryError"),
    ("globals", r"Unsupported (?:global: GLOBAL|class) [\w.]{1,500}"),
    ("globals", r"Trying to (?:load unsupported GLOBAL|call reduce for unrecognized function) [\w.]{1,500}"),
    ("globals", r"Weights only load failed"),
    ("code", r"No module named '[\w.]{1,500}'"),
    ("code", r"Can't get attribute '[\w.]{1,500}' on <module '[\w.]{1,500}'"),
    ("optimizer", r"loaded state dict (?:has a different number of|contains a) parameter group"),
    ("distributed", r"Missing key in checkpoint state_dict: "),
    ("damaged", r"PytorchStreamReader failed"),
    ("damaged", r"unexpected EOF, expected \d{1,20} more bytes|unexpected pos \d{1,20} vs \d{1,20}"),
    ("damaged", r"invalid load key, '|Invalid magic number; corrupt file|Unsupported operand \d{1,4}"),
    (
        "damaged",
        r"Ran out of input|pickle data was truncated|not a ZIP archive|file in archive is not in a subdirectory",
    ),
    (
        "replicas",
        r"Expected all tensors to be on the same device|to have the same device as tensor for argument",
    ),
    ("python2", r"codec can't decode byte 0x[0-9a-f]{2}"),
)
"""The errors that a file answers. `make test` holds them against torch 1.4 to 2.13 (tests/jobs/explain)."""
_HEAD = re.compile(r"Error\(s\) in loading state_dict for ")
_KEYS = re.compile(r"(Missing|Unexpected) key\(s\) in state_dict:([^\n]*)")
_OLD_KEYS = re.compile(r"(unexpected key|missing keys) (\"[^\"\n]*\"|in state_dict: \"?\{[^\n]*)")
_QUOTED = re.compile(r"\"([^\"\n]{0,4000})\"")
_QUOTED_OLD = re.compile(r"'([^'\n]{0,4000})'")
_SIZES = re.compile(
    r"size mismatch for ([^\s:]{1,2000}): copying a param (?:with shape|of) torch\.Size\(\[([\d, ]{0,400})\]\) "
    r"from checkpoint, (?:the shape in current model is|where the shape is) torch\.Size\(\[([\d, ]{0,400})\]\)"
)
_GLOBAL = re.compile(
    r"(?:Unsupported (?:global: GLOBAL|class)|load unsupported GLOBAL|unrecognized function) ([\w.]{1,500})"
    r"|No module named '([\w.]{1,500})'|Can't get attribute '([\w.]{1,500})' on <module '([\w.]{1,500})'"
)
_DDP_NAMES = re.compile(r"Parameters which did not receive grad for rank (\d{1,9}): ([^\n]+)")
_TWICE_NAME = re.compile(r"Parameter at index \d{1,12} with name (\S{1,2000}) has been marked as ready twice")
_DCP_KEY = re.compile(r"Missing key in checkpoint state_dict: ([^\n]{1,4000})")
_DEVICE = re.compile(r"(?:on (?:a )?(CUDA|\w{2,12}) device(?: (\d{1,4}))?|tagged with ([\w:]{1,40}))")


def find_message(text: str) -> Message | None:
    """The last error of PyTorch in a text that a file answers, or None."""
    text = plain(text)
    last: tuple[int, Kind] | None = None
    for kind, pattern in _PATTERNS:
        start = -1
        for match in re.finditer(pattern, text):
            start = match.start()
        if start >= 0 and (last is None or start > last[0]):
            last = start, kind
    if last is None:
        return None
    start, kind = last
    begin, end = text.rfind("\n", 0, start) + 1, text.find("\n", start)
    line = text[begin : end if end >= 0 else None].strip()
    if start - begin > _LINE // 2:
        line = text[start : start + _LINE]
    return _filled(kind, text, line[:_LINE], start)


def _filled(kind: Kind, text: str, line: str, start: int) -> Message:
    """Take from a text what an error of this kind names; `start` is where the last of its patterns begins."""
    message = Message(kind, line)
    if kind in ("ddp", "twice"):
        names = dict.fromkeys(name for row in _DDP_NAMES.finditer(text) for name in row[2].split(", "))
        names.update(dict.fromkeys(row[1] for row in _TWICE_NAME.finditer(text)))
        return message._replace(numbers=pasted_numbers(text), names=tuple(names)[:_NAMES])
    if kind == "keys":
        return _keys(message, text)
    if kind in ("globals", "code"):
        near = text[max(0, start - _LINE) : start + _LINE]
        return message._replace(names=tuple(dict.fromkeys(_globals(near))))
    if kind == "distributed":
        names = dict.fromkeys(row[1].strip().rstrip(".'\"") for row in _DCP_KEY.finditer(text))
        return message._replace(names=tuple(names)[:_NAMES])
    device = _DEVICE.search(text, start) if kind == "device" else None
    if device is None:
        return message
    number = f":{device[2]}" if device[2] else ""
    return message._replace(device=device[3] or f"{device[1].lower()}{number}")


def _globals(text: str) -> Iterator[str]:
    for match in _GLOBAL.finditer(text):
        if match[3]:
            yield f"{match[4]}.{match[3]}"
        else:
            yield match[1].rstrip(".") if match[1] else match[2]


def _keys(message: Message, text: str) -> Message:
    """The keys and shapes of the last load."""
    first = 0
    for head in _HEAD.finditer(text):
        first = head.start()
    end = text.find("\n", first)
    if text.startswith("Error", first):
        begin = text.rfind("\n", 0, first) + 1
        message = message._replace(text=text[begin : end if end >= 0 else None].strip()[:_LINE])
    keys: dict[str, dict[str, None]] = {"missing": {}, "unexpected": {}}
    for match in _KEYS.finditer(text, first):
        keys[match[1].lower()].update(dict.fromkeys(_QUOTED.findall(match[2])))
    for match in _OLD_KEYS.finditer(text, first):
        quoted = _QUOTED if match[1] == "unexpected key" else _QUOTED_OLD
        keys[match[1].partition(" ")[0]].update(dict.fromkeys(quoted.findall(match[2])))
    sizes = {
        match[1]: Mismatch(match[1], _shape(match[2]), _shape(match[3]))
        for match in _SIZES.finditer(text, first)
    }
    is_sizes = bool(sizes) and not keys["missing"] and not keys["unexpected"]
    return message._replace(
        kind="sizes" if is_sizes else "keys",
        missing=tuple(keys["missing"])[:_NAMES],
        unexpected=tuple(keys["unexpected"])[:_NAMES],
        mismatched=tuple(sizes.values())[:_NAMES],
    )


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(size[:18]) for size in re.findall(r"\d+", text))

"""The tables beside the code of TorchScript that say which line of the author each part
of it came from (`.debug_pkl`).

torch reads one where a `__setstate__` fails while it is loaded, for the text of the
error, and follows the numbers in it without a look at their bounds. Layout:
torch/csrc/jit/serialization/source_range_serialization.cpp.
"""

from __future__ import annotations

from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import fold_case
from ckpt.formats.common.pickled import run
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.nodes import Global, Node, Opaque, is_tuple
from ckpt.model.text import show
from ckpt.pickle.machine import Pickle

_FORMAT = "FORMAT_WITH_STRING_TABLE"
"""The first entry since torch 1.11. Older tables have their texts in their rows."""
_NUMBERS = ("torch.jit._pickle", "build_intlist")
_MOST_LETTERS = 100_000_000
"""The most letters of all texts, each as often as a place names it: torch looks for the
ends of their lines.
"""


def check_places(archive: Archive, limits: Limits, folder: str) -> None:
    """Refuse a table that torch does not write. Raises UnreadableError, LimitError."""
    start = fold_case(f"{archive.root}/{folder}/")
    for name, record in archive.records.items():
        folded = fold_case(name)
        # torch finds records in letters of any case.
        if not folded.startswith(start) or not folded.endswith(".debug_pkl"):
            continue
        # An account of its own, for nothing of it is kept.
        budget = Budget(limits)
        data = archive.read_pickle(record, limits, budget)
        if not _Table(run(data, limits, budget)).is_whole():
            raise UnreadableError(
                f"record {show(name, 80)} is no table of places as torch writes it, "
                "and torch.jit.load follows it where a __setstate__ fails"
            )


class _Table:
    """A table, whose texts and sources many rows share."""

    def __init__(self, pickle: Pickle) -> None:
        self._pickle = pickle
        self._texts: tuple[Node, ...] | None = None
        self._sources: dict[int, bool] = {}
        self._letters = 0

    def is_whole(self) -> bool:
        """Tell whether everything is as torch writes it."""
        root, pickle = self._pickle.root, self._pickle
        if not set(pickle.globals) <= {_NUMBERS} or pickle.persistent or pickle.left:
            return False
        rows = root
        if is_tuple(root) and root and root[0] == _FORMAT:
            if len(root) != 3 or not is_tuple(root[1]):
                return False
            self._texts, rows = root[1], root[2]
            if not all(type(text) is str for text in self._texts):
                return False
        return is_tuple(rows) and all(map(self._is_row, rows))

    def _is_row(self, row: Node) -> bool:
        """Tell whether a row is `(offset, (source, first letter, end), tag)`. Old torch
        writes no tag.
        """
        if not is_tuple(row) or len(row) not in (2, 3):
            return False
        place = row[1]
        if not is_tuple(place) or len(place) != 3:
            return False
        numbers = (row[0], *row[2:], *place[1:])
        return all(map(_is_number, numbers)) and self._is_source(place[0])

    def _is_source(self, source: Node) -> bool:
        if id(source) not in self._sources:
            self._sources[id(source)] = self._is_new_source(source)
        return self._sources[id(source)]

    def _is_new_source(self, source: Node) -> bool:
        """Tell whether a source is `(text, name of its file, first line)`. In newer
        tables both texts are numbers.
        """
        if not is_tuple(source) or len(source) != 3 or not _is_number(source[2]):
            return False
        text, file = source[:2]
        pieces: list[Node] = [text]
        is_file = file is None or type(file) is str
        if self._texts is not None:
            # A place of no code has no text.
            numbers = _numbers_in(text)
            if numbers is None:
                return False
            pieces = list(map(self._text_of, numbers))
            is_file = self._text_of(file) is not None
        for piece in pieces:
            if type(piece) is not str:
                return False
            self._letters += 1 + len(piece)
        return is_file and self._letters <= _MOST_LETTERS

    def _text_of(self, number: Node) -> Node:
        """Return a text of the table, or None for a number that leads out of it."""
        texts = self._texts or ()
        if type(number) is not int or not 0 <= number < len(texts):
            return None
        return texts[number]


def _is_number(node: Node) -> bool:
    return type(node) is int and 0 <= node < 2**63


def _numbers_in(call: Node) -> list[Node] | None:
    """The numbers that `build_intlist` is given, or None for anything else."""
    if type(call) is not Opaque or type(call.func) is not Global:
        return None
    is_changed = call.kwargs is not None or call.states or call.items or call.keys
    if is_changed or call.how != "reduce" or len(call.args) != 1:
        return None
    numbers = call.args[0]
    return numbers if type(numbers) is list else None

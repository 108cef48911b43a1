"""The abilities that all reports share: as HTML for a notebook, as a JSON document, as
bytes that hold no file.

A `Source` pickles as its address, because a task in another process reads the file. A
report has been read, so here each source becomes a `Closed` one: unpickling opens
nothing, and works when the file is gone.
"""

from __future__ import annotations

import copyreg
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

from ckpt.bytes.source import BaseSource, Source
from ckpt.model.checkpoint import Origin
from ckpt.model.columns import Chain, Column
from ckpt.model.errors import CkptError, NotOpenedError
from ckpt.model.nodes import Dict, Opaque, Set
from ckpt.model.text import Json

Report = TypeVar("Report")


def shown_as_html(module: str, function: str) -> Callable[[type[Report]], type[Report]]:
    """Give a class of reports the HTML that notebooks show: what a function makes of a
    report, in the room of its command.
    """

    def _repr_html_(self: Report) -> str:
        # Named as text: only a notebook loads what it shows.
        html: str = getattr(import_module(module), function)(self)
        return html

    def decorate(kind: type[Report]) -> type[Report]:
        kind._repr_html_ = _repr_html_  # type: ignore[attr-defined]
        return kind

    return decorate


def document_head(schema: str, version: int) -> dict[str, Json]:
    """Return the first fields of a JSON document: the name and the version of its
    schema, and the version of ckpt.
    """
    from ckpt import __version__

    return {"schema": {"name": schema, "version": version}, "ckpt": __version__}


_CLOSED = "the checkpoint is closed"
_PROTOCOL = 5
"""All Pythons that ckpt runs on have it."""
_DEEP = (Dict, Opaque, Set)
"""The nodes that lie inside of each other."""


class Closed(BaseSource):
    """The source of a report that was unpickled: its name and its size, and no
    bytes.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def read(self, offset: int, count: int) -> bytes:
        raise self._closed_error()

    def check_unchanged(self) -> None:
        raise self._closed_error()

    def _closed_error(self) -> NotOpenedError:
        # Memory has no path: `about` adds the path of the checkpoint.
        return NotOpenedError(
            _CLOSED, path=None if self.name == BaseSource.name else self.name
        )


def _closed_boxes() -> NoReturn:
    raise NotOpenedError(_CLOSED)


def reduce_report(
    path: str, make: Callable[..., object], *parts: object
) -> tuple[object, ...]:
    """Return what `__reduce__` of a report returns: `make(*parts)` gives it again,
    without its files.

    What the parts share is shared again. Raises CkptError where they are nested too
    deep.
    """
    from io import BytesIO
    from pickle import Pickler  # here: no command pickles a report

    data = BytesIO()
    pickler = Pickler(data, _PROTOCOL)
    pickler.dispatch_table = _Reducers()
    try:
        with _no_collector():
            pickler.dump(parts)
    except RecursionError:
        raise CkptError(
            "the checkpoint is nested too deep to pickle a report on it", path=path
        ) from None
    return _unpickle_report, (make, data.getvalue())


def _unpickle_report(make: Callable[..., object], data: bytes) -> object:
    from pickle import loads

    with _no_collector():
        return make(*loads(data))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep the collector away for the block: a million rows have no garbage, and it
    would triple the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# --- how each class pickles -----------------------------------------------------------

_Reduced: TypeAlias = str | tuple[Any, ...]
_Reducer: TypeAlias = Callable[..., _Reduced]
_NEW = copyreg.__newobj__  # type: ignore[attr-defined]  # pickle has an opcode for it


class _Reducers(dict[type, _Reducer]):
    """The table of a pickler, which is filled as it meets classes."""

    def __missing__(self, kind: type) -> _Reducer:
        reducer = self[kind] = _reducer_of(kind)
        return reducer


def _reducer_of(kind: Any) -> _Reducer:
    """The function that reduces the objects of a class."""
    if issubclass(kind, type):  # classes of ours have classes of their own
        return _reduce_name
    if issubclass(kind, (Column, Chain)):
        return _reduce_rows
    # A row, whose class may have a `__reduce__` that comes here.
    if issubclass(kind, tuple):
        return _reduce_row
    if hasattr(kind, "read_many"):
        return _reduce_source
    if issubclass(kind, Origin):  # only a writer asks for it
        return _reduce_to_none
    if kind in _DEEP:
        return _Slots(kind.__slots__)
    if hasattr(kind, "reduce_with"):
        return _reduce_boxes
    return _reduce_usual


def _reduce_name(kind: type) -> _Reduced:
    return kind.__qualname__


def _reduce_usual(thing: object) -> _Reduced:
    return thing.__reduce_ex__(_PROTOCOL)


def _reduce_rows(rows: Iterable[object]) -> _Reduced:
    """A list of the rows that a column or a chain holds or can make: what makes them is
    a closure over the file.
    """
    return list, (), None, iter(rows)


def _reduce_row(row: tuple[object, ...]) -> _Reduced:
    return _NEW, (type(row), *row)


def _reduce_source(source: Source) -> _Reduced:
    return Closed, (source.name, source.size)


def _reduce_to_none(thing: object) -> _Reduced:
    return _return_none, ()


def _return_none() -> None:
    return None


class _Cut(Protocol):
    """A place that is cut into boxes, which are opened when they are needed."""

    def reduce_with(self, cut: Callable[[], NoReturn]) -> _Reduced: ...


def _reduce_boxes(place: _Cut) -> _Reduced:
    return place.reduce_with(_closed_boxes)


class _Slots:
    """Reduces objects to the values of their slots, without a dict of them: the tree
    may be deep.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, thing: object) -> _Reduced:
        values = tuple([getattr(thing, name) for name in self._names])
        return _NEW, (type(thing),), values, None, None, _fill_slots


def _fill_slots(thing: Any, values: Sequence[object]) -> None:
    """Give an object the values of its slots."""
    for name, value in zip(thing.__slots__, values, strict=True):
        setattr(thing, name, value)

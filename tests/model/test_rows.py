"""`ckpt.model.rows.NamedTuple` does what that of `typing` does, and `dataclass` what
frozen ones do.
"""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import typing
from pathlib import Path

import pytest

import ckpt
from ckpt.model.checkpoint import Origin
from ckpt.model.rows import NamedTuple, dataclass, replace


class Ours(NamedTuple):
    """A row."""

    path: str
    size: int
    kind: str | None = None
    """With a text below it."""
    parts: tuple[str, ...] = ()

    @property
    def double(self) -> int:
        return 2 * self.size


class Theirs(typing.NamedTuple):
    """A row."""

    path: str
    size: int
    kind: str | None = None
    parts: tuple[str, ...] = ()


BOTH = pytest.mark.parametrize("row", [Ours, Theirs])


@BOTH
def test_every_way_of_making_one(row: type[Ours]) -> None:
    whole = ("a", 1, None, ())
    assert (
        row("a", 1)
        == row("a", 1, None)
        == row(path="a", size=1)
        == row("a", size=1, parts=())
        == whole
    )
    assert (
        row("a", 1, "b", ("c",))
        == row._make(["a", 1, "b", ("c",)])
        == ("a", 1, "b", ("c",))
    )
    assert row("a", 1, parts=("c",)) == ("a", 1, None, ("c",))


@BOTH
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((), {}),
        (("a",), {}),
        (("a",), {"kind": "b"}),
        (("a", 1, None, (), 5), {}),
        (("a", 1), {"other": 2}),
        (("a", 1), {"path": "b"}),
        (("a", 1, None, (), 5), {"other": 2}),
        ((), {"path": "a", "size": 1, "other": 2}),
        ((), {"path": "a", "other": 2}),
    ],
)
def test_what_cannot_be_one(
    row: type, values: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        row(*values, **named)


@BOTH
def test_a_row_is_a_tuple_with_names(row: type[Ours]) -> None:
    made = row("a", 1, "b")
    assert (made.path, made.size, made.kind, made.parts) == ("a", 1, "b", ())
    assert made._fields == row.__match_args__ == ("path", "size", "kind", "parts")
    assert made._asdict() == {"path": "a", "size": 1, "kind": "b", "parts": ()}
    assert row._field_defaults == {"kind": None, "parts": ()}
    assert repr(made) == f"{row.__name__}(path='a', size=1, kind='b', parts=())"
    assert isinstance(made, tuple) and hash(made) == hash(("a", 1, "b", ()))
    assert not hasattr(made, "__dict__")
    with pytest.raises(AttributeError):
        made.size = 2  # type: ignore[misc]


@BOTH
def test_a_row_with_changes(row: type[Ours]) -> None:
    assert row("a", 1)._replace(size=2, parts=("c",)) == ("a", 2, None, ("c",))
    assert type(row("a", 1)._replace()) is row
    with pytest.raises((TypeError, ValueError)):  # Python 3.13 raises the former
        row("a", 1)._replace(other=2)  # type: ignore[call-arg]
    for values in (("a",), ("a", 1, None, (), 5)):
        with pytest.raises(TypeError):
            row._make(values)


@BOTH
def test_a_row_goes_to_another_process(row: type[Ours]) -> None:
    made = row("a", 1, "b")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(made, protocol))
        assert (type(other), other) == (row, made)
    assert type(copy.copy(made)) is type(copy.deepcopy(made)) is row


@BOTH
def test_the_signature_names_the_fields(row: type[Ours]) -> None:
    found = inspect.signature(row).parameters.values()
    assert [(each.name, each.default) for each in found] == [
        ("path", inspect.Parameter.empty),
        ("size", inspect.Parameter.empty),
        ("kind", None),
        ("parts", ()),
    ]


def test_methods_and_texts_stay() -> None:
    assert (Ours("a", 2).double, Ours.__doc__) == (4, "A row.")


def test_a_default_before_a_field_without_one() -> None:
    with pytest.raises(TypeError, match="without a default"):

        class Wrong(NamedTuple):
            first: int = 1
            second: int  # type: ignore[misc]


@dataclass(frozen=True, slots=True, eq=False)
class Record(Origin):
    """A record."""

    path: str
    size: int = 0
    """With a text below it."""

    @property
    def double(self) -> int:
        return 2 * self.size


def test_every_way_of_making_a_record() -> None:
    for made in (Record("a", 2), Record("a", size=2), Record(size=2, path="a")):
        assert (made.path, made.size, made.double, isinstance(made, Origin)) == (
            "a",
            2,
            4,
            True,
        )
    assert Record("a").size == 0
    of: type = Record
    for values, named in (
        ((), {}),
        (("a", 1, 2), {}),
        (("a",), {"path": "b"}),
        (("a",), {"other": 1}),
    ):
        with pytest.raises(TypeError):
            of(*values, **named)


def test_a_record_is_frozen_and_equal_to_itself_alone() -> None:
    made = Record("a")
    with pytest.raises(AttributeError, match=r"Record\.size cannot be changed"):
        made.size = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del made.size
    with pytest.raises(AttributeError):
        made.other = 1  # type: ignore[attr-defined]
    assert made == made and made != Record("a") and len({made, Record("a")}) == 2


def test_a_record_with_changes() -> None:
    made = Record("a", 1)
    other = replace(made, size=2)
    assert (type(other), other.path, other.size, made.size) == (Record, "a", 2, 1)
    with pytest.raises(TypeError, match="no field other"):
        replace(made, other=2)  # type: ignore[call-arg]


def test_a_record_goes_to_another_process() -> None:
    for other in (
        pickle.loads(pickle.dumps(Record("a", 1))),
        copy.copy(Record("a", 1)),
    ):
        assert (type(other), other.path, other.size) == (Record, "a", 1)


def test_the_signature_of_a_record() -> None:
    assert str(inspect.signature(Record)) == "(path: 'str', size: 'int' = 0)"


@pytest.mark.slow
def test_all_classes_of_rows_are_these() -> None:
    """Those of Python are slow to import, and one of them brings all that it costs."""
    for path in Path(ckpt.__file__).parent.rglob("*.py"):
        if path.name == "rows.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert "dataclasses" not in {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom) and node.module != "ckpt.model.rows":
                assert node.module != "dataclasses" and "NamedTuple" not in {
                    a.name for a in node.names
                }, path

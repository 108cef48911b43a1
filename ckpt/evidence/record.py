"""The record of a live model, which `ckpt.snapshot` leaves in a file and `--model`
makes.

A record is columns of plain values under the key `ckpt`, so that `weights_only=True`
loads it. Reading it trusts nothing: data with another layout is not a record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeVar

from ckpt.model.checkpoint import Checkpoint
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json
from ckpt.tree.find import children_of
from ckpt.tree.view import SCALARS, look

KEY = "ckpt"
"""The key of the record at the root of the file."""
STATE_DICT = "state_dict"
"""The key of the tensors beside the record."""
VERSION = 1


class TensorRecord(NamedTuple):
    """One tensor of a model. `gradient` is the norm of its gradient, None without a
    gradient.
    """

    role: Literal["parameter", "buffer"]
    device: str
    requires_grad: bool
    gradient: float | None = None
    is_sharded: bool = False
    """True for the part of one rank: other ranks hold other values."""


class OptimizerRecord(NamedTuple):
    """One optimizer: the names of its parameters in its order (None for a parameter of
    another model), which of them have state, and their step counters.

    `fields` are the names of the state that it keeps per parameter.
    """

    cls: str
    names: tuple[str | None, ...]
    has_state: tuple[bool, ...]
    steps: tuple[float | None, ...]
    fields: tuple[str, ...]
    keeps_state: tuple[bool, ...] = ()
    """True when its group keeps state at all. SGD without momentum keeps no state."""


class LooseModule(NamedTuple):
    """A module or a Parameter in a plain list, tuple, dict or set of a module, at
    `place` (`blocks[0]`).

    `registered` is the name under which it is registered elsewhere, or None.
    """

    place: str
    kind: str
    """`module` or `parameter`. In a snapshot it is whatever the file says."""
    cls: str
    parameters: int
    registered: str | None


class ModelRecord(NamedTuple):
    """The record of a model: its tensors under unwrapped state-dict names, its
    parameters in the order of `model.parameters()`, its modules with their classes. A
    snapshot also records the gradients.
    """

    source: Literal["snapshot", "model"]
    tensors: dict[str, TensorRecord]
    parameters: tuple[str, ...]
    modules: dict[str, str]
    ignored: frozenset[str] = frozenset()
    """Parameters that DDP ignores. It does not number them."""
    wrappers: tuple[str, ...] = ()
    optimizers: tuple[OptimizerRecord, ...] = ()
    loose: tuple[LooseModule, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """The parts of the state dict that the file lacks, each with the reason."""
    rank: int = 0
    world_size: int = 1
    training: bool = True
    torch: str = ""
    shapes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012  # never written to
    """The shapes of the tensors. Only for a live model."""
    plain_tensors: tuple[str, ...] = ()
    """Tensors that are plain attributes of modules. Only for a live model."""
    twice: tuple[tuple[str, str], ...] = ()
    """(a name, the other name) of modules that are registered under two names. Only for
    a live model.
    """

    @property
    def has_gradients(self) -> bool:
        """Tell whether any parameter had a gradient.

        Before backward no parameter has one, which says nothing.
        """
        return any(tensor.gradient is not None for tensor in self.tensors.values())

    @property
    def numbered(self) -> tuple[str, ...]:
        """The parameters that DDP numbers, in its order: those that require a
        gradient.
        """
        return tuple(
            name
            for name in self.parameters
            if name not in self.ignored
            and name in self.tensors
            and self.tensors[name].requires_grad
        )


# --- to and from the plain values of a file -------------------------------------------


def record_columns(record: ModelRecord) -> dict[str, Json]:
    """A record as dicts and lists of scalars."""
    return {
        "snapshot": VERSION,
        "torch": record.torch,
        "rank": record.rank,
        "world_size": record.world_size,
        "training": record.training,
        "wrappers": list(record.wrappers),
        "tensors": {
            "name": list(record.tensors),
            **_columns_of_rows(TensorRecord._fields, record.tensors.values()),
        },
        "parameters": list(record.parameters),
        "ignored": sorted(record.ignored),
        "modules": {
            "name": list(record.modules),
            "class": list(record.modules.values()),
        },
        "optimizers": [
            {
                "class": handed.cls,
                "name": list(handed.names),
                "has_state": list(handed.has_state),
                "step": list(handed.steps),
                "fields": list(handed.fields),
                "keeps_state": list(handed.keeps_state),
            }
            for handed in record.optimizers
        ],
        "loose": _columns_of_rows(_LOOSE, record.loose),
        "left_out": _columns_of_rows(("name", "why"), record.left_out),
    }


def _columns_of_rows(
    fields: Sequence[str], rows: Collection[tuple[Json, ...]]
) -> dict[str, list[Json]]:
    """One list of values per field of the rows."""
    return {field: [row[place] for row in rows] for place, field in enumerate(fields)}


def record_of(checkpoint: Checkpoint) -> ModelRecord | None:
    """Return the record of a snapshot, or None for any other file."""
    container = next((row for row in checkpoint.containers if row.path == (KEY,)), None)
    # A record has no tensors.
    if container is None or container.first != container.last:
        return None
    node = container.node
    if look(node).kind != "mapping":
        return None
    try:
        return _parse_record(dict(children_of(node)))
    # A column that is shorter than its neighbours is a ValueError of `zip`.
    except (_NotOursError, ValueError):
        return None


_LOOSE = ("place", "kind", "class", "parameters", "registered")


class _NotOursError(Exception):
    """A value that `record_columns` does not write."""


def _parse_record(fields: dict[str | int, Node]) -> ModelRecord:
    # The version is not compared: another one with these columns reads the same.
    if type(fields.get("snapshot")) is not int:
        raise _NotOursError
    modules = dict(children_of(fields.get("modules")))
    class_names = zip(
        _parse_column(modules.get("name"), str),
        _parse_column(modules.get("class"), str),
        strict=True,
    )
    left_out = dict(children_of(fields.get("left_out")))
    reasons = zip(
        _parse_column(left_out.get("name"), str),
        _parse_column(left_out.get("why"), str),
        strict=True,
    )
    optimizers = [
        _parse_optimizer(dict(children_of(node)))
        for node in _parse_items(fields.get("optimizers"))
    ]
    return ModelRecord(
        source="snapshot",
        tensors=_parse_tensors(dict(children_of(fields.get("tensors")))),
        parameters=tuple(_parse_column(fields.get("parameters"), str)),
        modules=dict(class_names),
        ignored=frozenset(_parse_column(fields.get("ignored"), str)),
        wrappers=tuple(_parse_column(fields.get("wrappers"), str)),
        optimizers=tuple(optimizers),
        loose=_parse_loose_modules(dict(children_of(fields.get("loose")))),
        left_out=tuple(reasons),
        rank=_parse_scalar(fields.get("rank"), int),
        world_size=_parse_scalar(fields.get("world_size"), int),
        training=_parse_scalar(fields.get("training"), bool),
        torch=_parse_scalar(fields.get("torch"), str),
    )


def _parse_tensors(columns: dict[str | int, Node]) -> dict[str, TensorRecord]:
    rows = zip(
        _parse_column(columns.get("name"), str),
        map(_parse_role, _parse_column(columns.get("role"), str)),
        _parse_column(columns.get("device"), str),
        _parse_column(columns.get("requires_grad"), bool),
        _column_or_none(columns.get("gradient"), float),
        _parse_column(columns.get("is_sharded"), bool),
        strict=True,
    )
    return {name: TensorRecord(*rest) for name, *rest in rows}


def _parse_loose_modules(columns: dict[str | int, Node]) -> tuple[LooseModule, ...]:
    rows = zip(
        _parse_column(columns.get("place"), str),
        _parse_column(columns.get("kind"), str),
        _parse_column(columns.get("class"), str),
        _parse_column(columns.get("parameters"), int),
        _column_or_none(columns.get("registered"), str),
        strict=True,
    )
    modules = tuple(LooseModule(*row) for row in rows)
    # A stranger's file may claim any number, and texts add these up.
    if any(module.parameters < 0 for module in modules):
        raise _NotOursError
    return modules


def _parse_role(text: str) -> Literal["parameter", "buffer"]:
    if text == "parameter":
        return "parameter"
    if text == "buffer":
        return "buffer"
    raise _NotOursError


def _parse_optimizer(fields: dict[str | int, Node]) -> OptimizerRecord:
    names = tuple(_column_or_none(fields.get("name"), str))
    has_state = tuple(_parse_column(fields.get("has_state"), bool))
    steps = tuple(_column_or_none(fields.get("step"), float))
    keeps_state = tuple(_parse_column(fields.get("keeps_state"), bool))
    if not len(names) == len(has_state) == len(steps) == len(keeps_state):
        raise _NotOursError
    cls = _parse_scalar(fields.get("class"), str)
    return OptimizerRecord(
        cls,
        names,
        has_state,
        steps,
        tuple(_parse_column(fields.get("fields"), str)),
        keeps_state,
    )


_T = TypeVar("_T")


def _parse_column(node: Node, kind: type[_T]) -> list[_T]:
    return [_parse_scalar(item, kind) for item in _parse_items(node)]


def _column_or_none(node: Node, kind: type[_T]) -> list[_T | None]:
    return [
        None if item is None else _parse_scalar(item, kind)
        for item in _parse_items(node)
    ]


def _parse_items(node: Node) -> list[Node]:
    if type(node) is not list:
        raise _NotOursError
    return node


def _parse_scalar(value: Node, kind: type[_T]) -> _T:
    if type(value) not in SCALARS or not isinstance(value, kind):
        raise _NotOursError
    return value

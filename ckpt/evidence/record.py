"""What a live model says of itself: the record that `ckpt.snapshot` leaves in a file, and that `--model` makes.

A record is columns of plain values under the key `ckpt`, so that `weights_only=True` loads it. Reading it trusts
nothing: what is not laid out as written here is no record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from ckpt.checkpoint import Checkpoint
from ckpt.nodes import Node
from ckpt.tree.find import children
from ckpt.tree.view import SCALARS, look

KEY = "ckpt"
"""The key of the record at the root of the file."""
STATE_DICT = "state_dict"
"""The key of the tensors beside it."""
VERSION = 1


class TensorRecord(NamedTuple):
    """One tensor of a model. `gradient` is the norm of its gradient, None where there was none."""

    role: Literal["parameter", "buffer"]
    device: str
    requires_grad: bool
    gradient: float | None = None
    is_sharded: bool = False
    """Whether it is one rank's part of a larger one: other ranks hold other values."""


class OptimizerRecord(NamedTuple):
    """One optimizer: the names of its parameters in its order (None: not the model's), who has state, its counters.

    `fields` are the names of what it keeps for a parameter.
    """

    cls: str
    names: tuple[str | None, ...]
    has_state: tuple[bool, ...]
    steps: tuple[float | None, ...]
    fields: tuple[str, ...]
    keeps_state: tuple[bool, ...] = ()
    """Whether its group keeps state at all: SGD keeps none for a group without momentum."""


class LooseModule(NamedTuple):
    """A module or a Parameter in a plain list, tuple, dict or set of a module, at `place` (`blocks[0]`).

    `registered` is the name under which the module knows it nevertheless; None when nothing does.
    """

    place: str
    kind: Literal["module", "parameter"]
    cls: str
    parameters: int
    registered: str | None


class ModelRecord(NamedTuple):
    """What a model says: its tensors under unwrapped state-dict names, its parameters in the order of
    `model.parameters()`, its modules with their classes; of a snapshot also who had a gradient.
    """

    source: Literal["snapshot", "model"]
    tensors: dict[str, TensorRecord]
    parameters: tuple[str, ...]
    modules: dict[str, str]
    ignored: frozenset[str] = frozenset()
    """Parameters that DDP was told to leave alone: it does not number them."""
    wrappers: tuple[str, ...] = ()
    optimizers: tuple[OptimizerRecord, ...] = ()
    loose: tuple[LooseModule, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """What the file does not hold of the state dict, and why."""
    rank: int = 0
    world_size: int = 1
    training: bool = True
    torch: str = ""
    shapes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012  # never written to
    """The shapes of the tensors, of a live model."""
    plain_tensors: tuple[str, ...] = ()
    """Tensors that are plain attributes of the modules of a live model."""
    twice: tuple[tuple[str, str], ...] = ()
    """(a name, the other name) of the modules of a live model that are registered under two."""

    @property
    def has_gradients(self) -> bool:
        """Whether any parameter had a gradient: before backward none has, and that says nothing."""
        return any(known.gradient is not None for known in self.tensors.values())

    @property
    def numbered(self) -> tuple[str, ...]:
        """The parameters that DDP numbers, in its order: those that require a gradient."""
        return tuple(
            name
            for name in self.parameters
            if name not in self.ignored and name in self.tensors and self.tensors[name].requires_grad
        )


# --- to and from the plain values of a file ---------------------------------------------------------------------------


def columns(record: ModelRecord) -> dict[str, Any]:
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
            **_columns(TensorRecord._fields, record.tensors.values()),
        },
        "parameters": list(record.parameters),
        "ignored": sorted(record.ignored),
        "modules": {"name": list(record.modules), "class": list(record.modules.values())},
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
        "loose": _columns(_LOOSE, record.loose),
        "left_out": _columns(("name", "why"), record.left_out),
    }


def _columns(fields: Sequence[str], rows: Collection[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """A list of values for each field of rows."""
    return {field: [row[place] for row in rows] for place, field in enumerate(fields)}


def record_of(checkpoint: Checkpoint) -> ModelRecord | None:
    """The record of a snapshot; None for any other file."""
    found = next((row for row in checkpoint.containers if row.path == (KEY,)), None)
    if found is None or found.first != found.last or look(found.node).kind != "mapping":
        return None
    node = found.node
    try:
        return _record(dict(children(node)))
    except (_NotOursError, ValueError):
        return None


_LOOSE = ("place", "kind", "class", "parameters", "registered")


class _NotOursError(Exception):
    """A value that `columns` would not have written."""


def _record(fields: dict[Any, Node]) -> ModelRecord:
    if type(fields.get("snapshot")) is not int:
        raise _NotOursError
    tensors = _table(
        fields.get("tensors"), ("name", *TensorRecord._fields), (str, str, str, bool, _NUMBER, bool)
    )
    modules = _table(fields.get("modules"), ("name", "class"), (str, str))
    loose = _table(fields.get("loose"), _LOOSE, (str, str, str, int, _TEXT))
    left_out = _table(fields.get("left_out"), ("name", "why"), (str, str))
    if not {row[1] for row in tensors} <= {"parameter", "buffer"} or any(row[3] < 0 for row in loose):
        raise _NotOursError
    return ModelRecord(
        "snapshot",
        {row[0]: TensorRecord(*row[1:]) for row in tensors},
        tuple(_column(fields.get("parameters"), str)),
        dict(modules),
        frozenset(_column(fields.get("ignored"), str)),
        tuple(_column(fields.get("wrappers"), str)),
        tuple(_handed(dict(children(node))) for node in _items(fields.get("optimizers"))),
        tuple(LooseModule(*row) for row in loose),
        tuple(left_out),
        _scalar(fields.get("rank"), int),
        _scalar(fields.get("world_size"), int),
        _scalar(fields.get("training"), bool),
        _scalar(fields.get("torch"), str),
    )


def _handed(fields: dict[Any, Node]) -> OptimizerRecord:
    names, has_state, steps = (
        tuple(_column(fields.get(key), kinds))
        for key, kinds in (("name", _TEXT), ("has_state", bool), ("step", _NUMBER))
    )
    keeps_state = tuple(_column(fields.get("keeps_state"), bool))
    if not len(names) == len(has_state) == len(steps) == len(keeps_state):
        raise _NotOursError
    cls = _scalar(fields.get("class"), str)
    return OptimizerRecord(
        cls, names, has_state, steps, tuple(_column(fields.get("fields"), str)), keeps_state
    )


_Kinds = type | tuple[type, ...]
_NUMBER: _Kinds = (float, type(None))
_TEXT: _Kinds = (str, type(None))


def _table(node: Node, names: Iterable[str], kinds: tuple[_Kinds, ...]) -> list[tuple[Any, ...]]:
    """The rows of columns of one length."""
    fields = dict(children(node))
    parts = [_column(fields.get(name), kind) for name, kind in zip(names, kinds, strict=True)]
    return list(zip(*parts, strict=True))


def _column(node: Node, kinds: _Kinds) -> list[Any]:
    return [_scalar(item, kinds) for item in _items(node)]


def _items(node: Node) -> list[Node]:
    if type(node) is not list:
        raise _NotOursError
    return node


def _scalar(value: Node, kinds: _Kinds) -> Any:
    if type(value) not in SCALARS or not isinstance(value, kinds):
        raise _NotOursError
    return value

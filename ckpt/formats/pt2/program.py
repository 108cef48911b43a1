"""The graph of an exported program: which tensors it calls parameters and buffers, and a few facts. It is never run.

Layout: torch/_export/serde/schema.py, `ExportedProgram`.
"""

from __future__ import annotations

from ckpt.checkpoint import Role
from ckpt.errors import UnreadableError
from ckpt.limits import Budget
from ckpt.nodes import Dict, Node
from ckpt.parse import parse_json
from ckpt.rows import NamedTuple
from ckpt.text import Json, show


class Kind(NamedTuple):
    """What the signature of a program says of a tensor. `role` is None for a constant of the graph."""

    role: Role | None
    persistent: bool = True


class Program(NamedTuple):
    """The kind of each tensor by its name in the module, and what is shown of the graph."""

    kinds: dict[str, Kind]
    facts: Dict


_NAMES = ("parameter_name", "buffer_name", "tensor_constant_name")


def program_of(data: bytes, what: str, budget: Budget) -> Program:
    """The program in a JSON document. Raises UnreadableError, LimitError."""
    document = parse_json(data, show(what, 80), budget, constants=True)
    try:
        return _program(_object(document))
    except (KeyError, TypeError, ValueError):
        raise UnreadableError(f"damaged {show(what, 80)}: it is not an exported program") from None


def _program(document: dict[str, Json]) -> Program:
    module = _object(document["graph_module"])
    graph = _object(module["graph"])
    kinds: dict[str, Kind] = {}
    inputs: list[Node] = []
    for spec in _list(_object(module["signature"])["input_specs"]):
        for kind, fields in _object(spec).items():
            if kind == "user_input":
                inputs += _names(fields)
                continue
            fields = _object(fields)
            name = next((fields[key] for key in _NAMES if key in fields), None)
            if not isinstance(name, str):
                continue
            if kind == "parameter":
                kinds[name] = Kind("parameter")
            elif kind == "buffer":
                kinds[name] = Kind("buffer", fields.get("persistent") is not False)
            elif kind == "tensor_constant":
                kinds[name] = Kind(None)
    facts = Dict()
    version = document.get("schema_version")
    if isinstance(version, dict):
        facts.set(["schema"], [f"{version.get('major')}.{version.get('minor')}"])
    torch = document.get("torch_version")
    if isinstance(torch, str):
        facts.set(["torch_version"], [torch])
    facts.set(["nodes", "inputs"], [len(_list(graph["nodes"])), inputs])
    return Program(kinds, facts)


def _names(fields: Json) -> list[Node]:
    """The name of a user's input: `{"arg": {"as_tensor": {"name": "x"}}}`. A constant input has none."""
    argument = _object(fields).get("arg")
    each = argument.values() if isinstance(argument, dict) else ()
    return [row["name"] for row in each if isinstance(row, dict) and isinstance(row.get("name"), str)]


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError
    return value

"""`ckpt get`: values of a checkpoint by their dotted names."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.commands.inspect.document import tensor_json
from ckpt.commands.inspect.inspect import Row
from ckpt.evidence.loading import look_at
from ckpt.evidence.roles import Role
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, looks_of, names_of, paths_of
from ckpt.model.errors import CkptError, UnreadableError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import ROOT, Path, nearest_names
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, TensorRef, tensor_ref, unwrap_dtensor
from ckpt.model.text import Json, show
from ckpt.tree.find import find_nodes, named_children, node_at
from ckpt.tree.json import path_json, plain, scalar_json
from ckpt.tree.view import look

SCHEMA: dict[str, Json] = {"name": "ckpt.get", "version": 1}


class Lookup(NamedTuple):
    """A node of the tree, or the row of a tensor, that goes by a name."""

    name: str
    path: Path
    node: Node
    row: Row | None = None
    role: Role | None = None
    in_optimizer: bool | None = None

    def to_json(self) -> dict[str, Json]:
        """`{name, path, type, value}`; of a tensor the entry of `tensors[]` of
        `ckpt.inspect`.
        """
        if self.row is not None and self.role is not None:
            return {
                "schema": SCHEMA,
                **tensor_json(self.row, self.role, self.in_optimizer),
            }
        view = look(self.node)
        document: dict[str, Json] = {
            "schema": SCHEMA,
            "name": self.name,
            "path": path_json(self.path),
            "type": view.type,
        }
        if view.kind == "scalar":
            document["value"], otherwise = scalar_json(view)
            if otherwise is not None:
                document["value_is"] = otherwise
        else:
            document["value"] = plain(self.node)
        return document


def get(survey: Survey, names: list[str], limits: Limits) -> list[Lookup]:
    """Look the names up, in their order. Raises UsageError with the nearest names."""
    checkpoint = survey.checkpoint
    lookups: list[Lookup] = []
    for name in names:
        matches = find_nodes(checkpoint.root, name, limits)
        if not matches and name == ROOT:
            lookups.append(lookup_whole(survey))
            continue
        if not matches and checkpoint.beside is not None:
            matches = find_nodes(checkpoint.beside, name, limits)
        if not matches and "#" in name:  # the mark of a second path with one name
            paths = [value.path for value in checkpoint.values if value.name == name]
            matches = [(path, node_at(checkpoint.root, path)) for path in paths]
        # Two paths that read alike and lead to one node are no contradiction.
        if len(matches) > 1 and len({id(node) for _, node in matches}) > 1:
            raise UsageError(
                f"{len(matches)} places are called {name}",
                path=checkpoint.path,
                hint=_look_hint(checkpoint, "for their paths", "--json"),
            )
        if (
            matches
            and tensor_of(matches[0][1]) is None
            and look(matches[0][1]).kind != "storage"
        ):
            lookups.append(Lookup(name, *matches[0]))
            continue
        row = _find_row(survey, name)
        if row is None:
            raise _unknown_name_error(checkpoint, name)
        role, held = survey.role_of(row.position)
        lookups.append(
            Lookup(row.entry.name, row.entry.path, row.tensor, row, role, held)
        )
    return lookups


def _find_row(survey: Survey, name: str) -> Row | None:
    """The tensor with this name, or the first one that has it inside of its section."""
    # Full names first: a name inside of a section may be another tensor's full name.
    names = names_of(survey.tensors)
    if name in names:
        index = names.index(name)
        part = next((part for part in survey.sections if index in part.indices), None)
        return Row(survey.tensors[index], part, index)
    for part in survey.sections:
        inside = part.names()
        if name in inside:
            index = inside.index(name)
            return Row(part.entries[index], part, part.first + index)
    return None


def lookup_whole(survey: Survey) -> Lookup:
    """All of a checkpoint: its tree, or the row of the tensor that it is."""
    root = survey.checkpoint.root
    if tensor_of(root) is None:
        return Lookup("", (), root)
    row = Row(survey.tensors[0], next(iter(survey.sections), None), 0)
    role = survey.roles[0]
    return Lookup(
        row.entry.name, row.entry.path, row.tensor, row, role, survey.in_optimizer[0]
    )


class Item(NamedTuple):
    """A name at the top of a checkpoint, how many tensors lie below it, and their
    bytes.
    """

    name: str
    node: Node
    tensors: int
    nbytes: int


_SORTED = 10_000
"""Names at the top whose kinds are looked at: more would all be made for it."""


def _first_children(children: Sequence[Node], most: int) -> list[int]:
    """Return the indices of the children that are listed. Where there is no room for
    all, the few values come before the many tensors.
    """
    indices = range(len(children))
    if not most < len(children) <= _SORTED:
        return list(indices[:most])
    return sorted(indices, key=lambda index: look(children[index]).kind == "tensor")[
        :most
    ]


def top_items(
    checkpoint: Checkpoint, most: int | None = None
) -> tuple[list[Item], int]:
    """Return the first names at the top of a checkpoint, in file order, and how many
    there are.

    Without `most` all of them are returned. A file that is one tensor or one value has
    none.
    """
    if tensor_of(checkpoint.root) is not None:
        return [], 0
    view = look(checkpoint.root)
    count = len(view.children)
    if view.kind == "mapping" and most is not None:  # the others are not made
        shown = _first_children(view.children, most)
        view = view._replace(
            keys=[view.keys[index] for index in shown],
            children=[view.children[index] for index in shown],
        )
    children = list(named_children(view))
    if view.kind != "mapping":
        count = len(children)
    sums = {path: [0, 0] for path, _, _ in children[:most]}
    tensors = checkpoint.tensors
    for path, tensor in zip(paths_of(tensors), looks_of(tensors), strict=True):
        # A module has its names one step below.
        total = sums.get(path[:1]) or sums.get(path[:2])
        if total is not None:
            total[0] += 1
            total[1] += tensor.nbytes
    return [
        Item(name, node, *sums[path]) for path, name, node in children[:most]
    ], count


def first_values(
    tensor: Tensor, count: int
) -> list[bool | int | float | complex] | None:
    """Return the first elements of a tensor in the order of its shape, at most `count`.

    Return None if numpy has no numbers for it, or it has no data. Raises
    UnreadableError.
    """
    from ckpt.elements import cast  # here: a value needs none of them
    from ckpt.elements.blocks import elements
    from ckpt.elements.unpacked import can_unpack, unpacked

    tensor = unwrap_dtensor(tensor)
    if isinstance(tensor, TensorRef) and can_unpack(tensor):
        tensor = unpacked(tensor)
    if (
        not isinstance(tensor, TensorRef)
        or tensor.storage.place is None
        or not cast.has_numbers(tensor.dtype)
    ):
        return None
    width = tensor.dtype.bits // 8
    data = b""
    # Block by block, so that a large tensor is not read to its end.
    for block in elements(_head_of(tensor, count)):
        data += block[: count * width - len(data)]
        if len(data) == count * width:
            break
    return cast.few(data, tensor.dtype)


def _head_of(tensor: TensorRef, count: int) -> TensorRef:
    """A part of a tensor with its first elements, at least `count` where it has so
    many.

    A view of four bytes may expand to more elements than numpy can count.
    """
    shape = list(tensor.shape)
    for axis, size in enumerate(shape):
        inner = prod(shape[axis + 1 :])
        if inner:
            shape[axis] = min(size, -(-count // inner))
    head = tensor_ref(
        tensor.storage, tensor.dtype, tuple(shape), tensor.stride, tensor.offset
    )
    return head._replace(conj=tensor.conj, neg=tensor.neg)


def _look_hint(checkpoint: Checkpoint, why: str, option: str) -> str | None:
    command = look_at(checkpoint.path, option)
    return None if command is None else f"{why}: {command}"


def _unknown_name_error(checkpoint: Checkpoint, name: str) -> CkptError:
    for lost, why in checkpoint.account.left_out:
        if name == lost or name.startswith(f"{lost}."):
            return UnreadableError(
                f"{show(name, 80)} is lost: {why}", path=checkpoint.path
            )
    names = [value.name for value in checkpoint.values] + [
        entry.name for entry in checkpoint.tensors
    ]
    alike = nearest_names(name, names)
    hint = _look_hint(checkpoint, "for all names", "--values")
    if alike:
        hint = f"did you mean {', '.join(alike)}?"
    return UsageError(f"no value called {name}", path=checkpoint.path, hint=hint)

"""The content of the ranks' files, checked: shapes by name, flat partitions, the place
of each fragment.

Layout: deepspeed/runtime/engine.py `_save_checkpoint`, zero/stage_1_and_2.py and
zero/stage3.py `state_dict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.elements.blocks import is_dense
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnreadableError, UnsupportedError
from ckpt.model.nodes import Node, dict_of, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import DIMENSIONS, TensorRef
from ckpt.model.text import show
from ckpt.tree.find import children_of
from ckpt.tree.view import look

Shape = tuple[int, ...]
_STRUCTURE = frozenset(
    (
        "module",
        "buffer_names",
        "param_shapes",
        "frozen_param_shapes",
        "frozen_param_fragments",
        "shared_params",
    )
)
_UNNEEDED = frozenset(("optimizer", "lr_scheduler", "data_sampler", "random_ltd"))
"""Fields that are None where a run has no such thing."""
# The first is of ZeRO 1 and 2, the second of ZeRO 3.
_FLAT = ("single_partition_of_fp32_groups", "fp32_flat_groups")
PARTITIONS = frozenset(
    (
        *_FLAT,
        "base_optimizer_state",
        "optimizer_state_dict",
        "zero_stage",
        "group_paddings",
        "param_alignment_paddings",
        "partition_count",
        "param_slice_mappings",
        "ds_version",
    )
)
"""Fields of an optimizer's file that are read, or that only DeepSpeed needs."""


class ModelState(NamedTuple):
    """A file of model states. `shapes` has one dict for each flat group, in flattening
    order; None without ZeRO.
    """

    node: Node
    """The module as it was saved."""
    module: dict[str, TensorRef] | None
    extra: dict[str, Node]
    """The values in the module beside its tensors."""
    buffers: frozenset[str] | None
    shapes: tuple[dict[str, Shape], ...] | None
    frozen_shapes: dict[str, Shape]
    frozen: dict[str, TensorRef]
    shared: dict[str, str]
    version: str | None
    rest: dict[str, Node]
    """All other fields: the scheduler, the configuration, what the client saved."""


class OptimizerState(NamedTuple):
    """A file of optimizer states: the flat fp32 partition of each group, and state of
    the same elements.
    """

    stage: int | None
    counts: tuple[int, ...]
    """Partitions of each group; one number in ZeRO-3."""
    is_whole: bool
    """A flag: partitions are parts of a whole group (ZeRO 1 and 2), not of each
    parameter (ZeRO-3).
    """
    groups: tuple[TensorRef, ...]
    paddings: tuple[int, ...] | None
    alignments: tuple[tuple[int, ...], ...] | None
    state: tuple[dict[str, Node], ...]
    param_groups: tuple[Node, ...]
    slices: tuple[dict[str, tuple[int, int]], ...] | None
    """For each group name -> (elements, first element of the partition)."""
    version: str | None
    rest: dict[str, Node]

    @property
    def steps(self) -> dict[str, Node]:
        """The counter of each flat group: in its state, or in its group, where
        DeepSpeed's FusedAdam keeps it.
        """
        groups = [node_fields(node) for node in self.param_groups]
        groups += [{}] * (len(self.state) - len(groups))
        rows = [
            state.get("step", group.get("step"))
            for state, group in zip(self.state, groups, strict=False)
        ]
        return {
            f"step of group {number}": node
            for number, node in enumerate(rows)
            if node is not None
        }


def rank_counters(state: dict[str, Node]) -> dict[str, Node]:
    """Return the counters that every rank has, from the fields of a file of model
    states.
    """
    return {
        key: state[key] for key in ("global_steps", "global_samples") if key in state
    }


def node_fields(node: Node) -> dict[str, Node]:
    """The children of a dict or an object with string keys."""
    return {str(key): child for key, child in children_of(node) if isinstance(key, str)}


def model_state(root: Node, file: str) -> ModelState:
    """A file of model states. Raises UnreadableError."""
    state = node_fields(root)
    if "module" not in state:
        raise UnreadableError(f"{file} has no module: not a file of model states")
    module, extra = _split_module(state["module"])
    shapes = state.get("param_shapes")
    groups = None
    if shapes is not None:
        groups = tuple(
            _parse_shapes(row, file)
            for row in _list_items(shapes, f"{file}: param_shapes")
        )
        _refuse_twice([name for group in groups for name in group], file)
    names = state.get("buffer_names")
    buffers = None
    if look(names).kind == "sequence":
        buffers = frozenset(
            str(name) for name in look(names).children if isinstance(name, str)
        )
    shared = {
        name: str(owner)
        for name, owner in node_fields(state.get("shared_params")).items()
        if isinstance(owner, str)
    }
    rest = {name: node for name, node in state.items() if name not in _STRUCTURE}
    # None is kept where it may mean something: in a field of the client.
    rest = {
        name: node
        for name, node in rest.items()
        if node is not None or name not in _UNNEEDED
    }
    return ModelState(
        state["module"],
        module,
        extra,
        buffers,
        groups,
        _parse_shapes(state.get("frozen_param_shapes"), file),
        _tensors_by_name(state.get("frozen_param_fragments")),
        shared,
        _parse_text(state.get("ds_version")),
        rest,
    )


def optimizer_state(root: Node, file: str) -> OptimizerState:
    """A file of optimizer states. Raises UnreadableError, UnsupportedError."""
    outer = node_fields(root)
    inner = node_fields(outer.get("optimizer_state_dict"))
    # A save of ZeRO has the flat weights below one of two names, which tells how they
    # were cut.
    flat = next((key for key in _FLAT if key in inner), None)
    if flat is None:
        raise UnreadableError(
            f"{file} has no flat fp32 weights: not a file of ZeRO's optimizer states"
        )
    is_whole = flat == _FLAT[0]
    groups = tuple(
        _flat_tensor(node, f"{file}: {flat}")
        for node in _list_items(inner[flat], f"{file}: {flat}")
    )
    stage = look(inner.get("zero_stage")).value
    # ZeRO-3 calls the optimizer inside by the name that ZeRO 1 and 2 have outside.
    base = inner.get("base_optimizer_state" if is_whole else "optimizer_state_dict")
    state, param_groups = _base_optimizer(base, len(groups))
    counts = _parse_counts(inner.get("partition_count"), file)
    # A single number counts for all groups.
    if is_whole and len(counts) == 1:
        counts *= len(groups)
    slices = inner.get("param_slice_mappings")
    slice_rows = None
    if slices is not None:
        slice_rows = tuple(
            _parse_slices(row, file) for row in _list_items(slices, file)
        )
    return OptimizerState(
        stage if type(stage) is int else None,
        counts,
        is_whole,
        groups,
        _parse_numbers(inner.get("group_paddings")),
        _parse_alignments(inner.get("param_alignment_paddings")),
        state,
        param_groups,
        slice_rows,
        _parse_text(outer.get("ds_version")),
        {name: node for name, node in inner.items() if name not in PARTITIONS},
    )


# --- values, checked ------------------------------------------------------------------


def is_count(value: object) -> bool:
    """Tell whether a value is a whole number that no product of counts makes
    overflow.
    """
    return type(value) is int and 0 <= value < 2**62


def _list_items(node: Node, what: str) -> Sequence[Node]:
    view = look(node)
    if view.kind != "sequence":
        raise UnreadableError(f"{what} is not a list")
    return view.children


def _split_module(node: Node) -> tuple[dict[str, TensorRef] | None, dict[str, Node]]:
    if node is None:
        return None, {}
    tensors: dict[str, TensorRef] = {}
    extra: dict[str, Node] = {}
    for name, child in node_fields(node).items():
        tensor = tensor_of(child)
        if type(tensor) is TensorRef:
            tensors[name] = tensor
        else:
            extra[name] = child
    return tensors, extra


def _parse_shapes(node: Node, file: str) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name, child in node_fields(node).items():
        sizes = look(child).children
        if look(child).kind == "scalar" and is_count(child):
            sizes = (child,)  # an old torch.Size of one dimension
        if not all(map(is_count, sizes)) or len(sizes) > DIMENSIONS:
            raise UnreadableError(f"{file}: the shape of {show(name, 80)} is invalid")
        shape = tuple(size for size in sizes if type(size) is int)
        # A zero would hide sizes whose product is too large to compute with.
        if prod(size or 1 for size in shape) >= 2**62:
            raise UnreadableError(f"{file}: the shape of {show(name, 80)} is too large")
        shapes[name] = shape
    return shapes


def _refuse_twice(names: Sequence[str], file: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UnreadableError(
                f"{file}: param_shapes has {show(name, 80)} in two groups"
            )
        seen.add(name)


def _tensors_by_name(node: Node) -> dict[str, TensorRef]:
    rows = {name: tensor_of(child) for name, child in node_fields(node).items()}
    return {name: tensor for name, tensor in rows.items() if type(tensor) is TensorRef}


def _flat_tensor(node: Node, what: str) -> TensorRef:
    """A flat partition: one dimension, its elements side by side."""
    tensor = tensor_of(node)
    if type(tensor) is not TensorRef or not is_flat(tensor):
        raise UnreadableError(f"{what} holds something else than flat tensors")
    # The pieces of partitions are ranges of bytes, which must be there and be as they
    # are in memory.
    if tensor.storage.place is None:
        raise UnsupportedError(f"{what} is on meta, without data")
    if tensor.storage.place.big:
        raise UnsupportedError(f"{what} is big-endian")
    return tensor


def is_flat(tensor: TensorRef) -> bool:
    """Tell whether a tensor has one dimension and its elements side by side."""
    return len(tensor.shape) == 1 and is_dense(tensor) and tensor.dtype.bits >= 8


def _base_optimizer(
    node: Node, groups: int
) -> tuple[tuple[dict[str, Node], ...], tuple[Node, ...]]:
    """Return (the state of each flat group, the groups of parameters) of the optimizer
    inside.
    """
    view = look(node)
    if view.kind == "sequence":  # elastic checkpoints: a list of states
        rows = [node_fields(child) for child in view.children]
        return (tuple(rows) if len(rows) == groups else ({},) * groups), ()
    parts = node_fields(node)
    by_number = {
        key: node_fields(child)
        for key, child in children_of(parts.get("state"))
        if type(key) is int
    }
    # A parameter group without state has an empty row: rows are taken by number.
    state = tuple(by_number.get(number, {}) for number in range(groups))
    held = look(parts.get("param_groups"))
    return state, tuple(held.children) if held.kind == "sequence" else ()


def _parse_counts(node: Node, file: str) -> tuple[int, ...]:
    values = [node] if type(node) is int else look(node).children
    if not values or not all(is_count(value) and value for value in values):
        raise UnreadableError(f"{file}: partition_count is not a number of ranks")
    return tuple(value for value in values if type(value) is int)


def _parse_numbers(node: Node) -> tuple[int, ...] | None:
    values = look(node).children
    if look(node).kind != "sequence" or not all(map(is_count, values)):
        return None
    return tuple(value for value in values if type(value) is int)


def _parse_alignments(node: Node) -> tuple[tuple[int, ...], ...] | None:
    if look(node).kind != "sequence":
        return None
    rows = [_parse_numbers(child) for child in look(node).children]
    # If one row is invalid, the others say nothing: then nothing is known of alignment.
    alignments = tuple(row for row in rows if row is not None)
    return alignments if len(alignments) == len(rows) else None


def _parse_slices(node: Node, file: str) -> dict[str, tuple[int, int]]:
    rows: dict[str, tuple[int, int]] = {}
    for name, child in node_fields(node).items():
        address = node_fields(child)
        numel, start = address.get("numel"), address.get("start")
        if (
            type(numel) is not int
            or type(start) is not int
            or not (is_count(numel) and is_count(start))
        ):
            raise UnreadableError(
                f"{file}: param_slice_mappings of {show(name, 80)} is invalid"
            )
        rows[name] = (numel, start)
    return rows


def _parse_text(node: Node) -> str | None:
    return str(node) if isinstance(node, str) else None


def plain_fields(node: Node) -> Node:
    """An object of DeepSpeed as a dict of its fields; anything else as it is."""
    view = look(node)
    if view.kind != "object":
        return node
    return dict_of(zip(view.keys, view.children, strict=True))


def same_dtype(tensors: Sequence[TensorRef]) -> DType:
    """The dtype of all. Raises UnreadableError when there are several."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        names = " and ".join(sorted(dtype.name for dtype in dtypes))
        raise UnreadableError(
            f"the partitions of one group have several dtypes: {names}"
        )
    return dtypes.pop()

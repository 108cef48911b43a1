"""The stages of a pipeline as one model and one optimizer.

The names of the model are those that the states have: `3.weight` is `weight` in the
file of layer 3, and `tied_modules.KEY.weight` belongs to the layers that share a
module. No file says which layers these are, so their own files keep the numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import prod

from ckpt.ext.deepspeed.partitions import Partitions
from ckpt.ext.deepspeed.states import ModelState, OptimizerState, Shape, node_fields
from ckpt.model.account import Notice
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import Dict, Node, dict_of, tensor_of
from ckpt.model.tensors import TensorRef
from ckpt.model.text import and_more, be_verb, counted_noun, show
from ckpt.tree.view import look

_PARALLEL = "checkpoint_parallel_dimensions"
_OPTIMIZER = "optimizer"
_PARAMS = "params"
_TIED = "tied_modules."
_MOMENTS = ("exp_avg", "momentum_buffer")
_LISTED = 3


class Stages:
    """The partitions of the stages, each of its own parameters. A tied one is in
    several, and the first is taken.

    `lost` names the weights of stages whose states are missing.
    """

    is_shared = False

    def __init__(self, stages: dict[int, Partitions], lost: Iterable[str]) -> None:
        self._stages = tuple(stages.values())
        # The order of the stages is the order of the layers.
        own: list[str] = []
        whole: set[str] = set()
        for stage in self._stages:
            own += stage.names
            # A tied weight is whole where one of its stages has it.
            whole.update(name for name in stage.names if name not in stage.lost)
        self.names = tuple(dict.fromkeys((*own, *lost)))
        self.lost = frozenset(name for name in self.names if name not in whole)
        self.saved_by = self._stages[0].saved_by if self._stages else None
        self.has_optimizer = any(stage.has_optimizer for stage in self._stages)

    @property
    def stage(self) -> int:
        return self._stages[0].stage if self._stages else 1

    @property
    def has_stage(self) -> bool:
        return all(stage.has_stage for stage in self._stages)

    @property
    def rest(self) -> dict[str, Node]:
        """The other fields of the first rank of the first stage."""
        return self._stages[0].rest if self._stages else {}

    @property
    def lost_state(self) -> list[str]:
        names: list[str] = []
        for stage in self._stages:
            names += stage.lost_state
        return names

    @property
    def unplaced(self) -> dict[str, None]:
        names: dict[str, None] = {}
        for stage in self._stages:
            names |= stage.unplaced
        return names

    def weights(self, prefix: str) -> dict[str, Node]:
        """The whole parameters by name."""
        weights: dict[str, Node] = {}
        for stage in self._stages:
            # Earlier stages stand behind, so that their tied weights win.
            weights = {**stage.weights(prefix), **weights}
        return {name: weights[name] for name in self.names if name in weights}

    def optimizer(self, prefix: str) -> Dict:
        """The optimizer of all stages as one: groups with equal options are one
        group.
        """
        state: dict[str, Node] = {}
        groups: list[Node] = []
        for stage in self._stages:
            if not stage.has_optimizer:
                continue
            parts = node_fields(stage.optimizer(prefix))
            state = {**node_fields(parts["state"]), **state}
            rows = look(parts["param_groups"]).children
            # Stages have the same groups, each with its own parameters in them. Groups
            # of other options stay apart.
            if len(rows) == len(groups) and all(map(_is_alike, groups, rows)):
                groups = [*map(_join_groups, groups, rows)]
            else:
                groups += rows
        return _dict_node({"state": _dict_node(state), "param_groups": groups})


def _is_alike(one: Node, two: Node) -> bool:
    """Tell whether two groups of an optimizer have the same options."""
    first, second = node_fields(one), node_fields(two)
    options = [key for key in first if key != _PARAMS]
    return first.keys() == second.keys() and all(
        is_same(first[key], second[key]) for key in options
    )


def _join_groups(one: Node, two: Node) -> Node:
    """A group with the parameters of both, each once."""
    names = [
        *look(node_fields(one).get(_PARAMS)).children,
        *look(node_fields(two).get(_PARAMS)).children,
    ]
    return _dict_node(
        {**node_fields(one), _PARAMS: [*dict.fromkeys(str(name) for name in names)]}
    )


def is_same(one: Node, two: Node) -> bool:
    """Tell whether two nodes hold the same values. Two tensors count as different:
    their bytes are not read.
    """
    # Learning rates of capturable optimizers are tensors, and are not compared either.
    if tensor_of(one) is not None or tensor_of(two) is not None:
        return False
    first, second = look(one), look(two)
    if (first.kind, first.type, len(first.children)) != (
        second.kind,
        second.type,
        len(second.children),
    ):
        return False
    if first.kind == "scalar":
        return first.value == second.value
    if list(map(str, first.keys)) != list(map(str, second.keys)):
        return False
    return all(map(is_same, first.children, second.children))


def tensors_of(layers: dict[int, Node]) -> tuple[dict[str, TensorRef], dict[str, Node]]:
    """Return (the tensors, the other values) in the files of layers, by their names in
    the model.
    """
    weights: dict[str, TensorRef] = {}
    extra: dict[str, Node] = {}
    for number, root in layers.items():
        for key, node in node_fields(root).items():
            tensor = tensor_of(node)
            if type(tensor) is TensorRef:
                weights[f"{number}.{key}"] = tensor
            else:
                extra[f"{number}.{key}"] = node
    return weights, extra


def lost_layers(
    states: Iterable[ModelState], weights: dict[str, TensorRef]
) -> Iterator[Notice]:
    """Yield a notice about weights that the states of a stage list, and that no file of
    a layer holds.

    What the optimizer has in fp32 is in the model all the same.
    """
    trained: set[str] = set()
    names: list[str] = []
    for state in states:
        trained |= {name for rows in state.shapes or () for name in rows}
        names += sorted(claimed_names(state), key=natural_sort_key)
    # The file of a layer keeps its own number for a tied module, under which no state
    # lists it.
    gone = [
        name
        for name in dict.fromkeys(names)
        if name not in weights and not name.startswith(_TIED)
    ]
    numbers = dict.fromkeys(name.partition(".")[0] for name in gone)
    if numbers:
        lost = [name for name in gone if name not in trained]
        files = and_more([f"layer {show(number, 20)}" for number in numbers], _LISTED)
        what = f"{counted_noun(len(lost), 'tensor')} of the model {be_verb(lost)} lost"
        names_text = and_more([show(name, 60) for name in lost], _LISTED)
        text = "the optimizer has all of its weights in fp32"
        if lost:
            text = f"{what}: {names_text}"
        yield Notice(
            "incomplete", f"the weights of {files} are missing: {text}", tuple(lost)
        )


def cut_layers(
    held: Iterable[str],
    weights: dict[str, TensorRef],
    states: Iterable[ModelState],
    are_rebuilt: bool,
) -> Iterator[Notice]:
    """Yield a notice about the tensors of layers whose files are cut off, of which
    `weights` are whole.

    Those that no state lists are lost to the model, as are all of ZeRO 0.
    """
    # `held` has the names of all tensors, `weights` only those that are whole.
    gone = [name for name in held if name not in weights]
    if gone:
        known = {name for state in states for name in claimed_names(state)}
        names = [name for name in gone if name not in known]
        names += [f"module.{name}" for name in gone] if are_rebuilt else []
        listed = and_more([show(name, 60) for name in gone], _LISTED)
        yield Notice(
            "incomplete", f"the files of layers are cut off: {listed}", tuple(names)
        )


def lost_unseen(
    states: Iterable[ModelState], weights: dict[str, TensorRef]
) -> Iterator[Notice]:
    """Yield a notice if the optimizers of ZeRO 0 have parameters that no layer has.

    Nothing else tells that a layer without buffers is missing. Parameters have the
    shapes of their moments.
    """
    count = 0
    shapes: Counter[Shape] = Counter()
    buffers: set[str] = set()
    for state in states:
        optimizer = node_fields(state.rest.get(_OPTIMIZER))
        for group in look(optimizer.get("param_groups")).children:
            count += len(look(node_fields(group).get(_PARAMS)).children)
        for row in look(optimizer.get("state")).children:
            moments = (
                tensor_of(node)
                for key, node in node_fields(row).items()
                if key in _MOMENTS
            )
            # One moment of each row has the shape of the parameter.
            shapes.update(islice((ref.shape for ref in moments if ref is not None), 1))
        buffers |= state.buffers or frozenset()
    held = [ref.shape for name, ref in weights.items() if name not in buffers]
    # By their number, or by shapes of which the layers have too few.
    gone = max(count - len(held), (shapes - Counter(held)).total())
    if gone > 0:
        text = (
            f"{counted_noun(gone, 'parameter')} of the optimizers "
            f"{be_verb(gone)} in no file of a layer"
        )
        yield Notice("incomplete", f"{text}: the file of a layer is missing")


def lost_stages(
    gone: Sequence[int], count: int, lost: Sequence[str], are_rebuilt: bool
) -> Iterator[Notice]:
    """Yield a notice about the stages of which no model states were read."""
    if gone:
        listed = and_more([key_of(number) for number in gone], _LISTED)
        text = (
            f"the model states of {len(gone):,} of {counted_noun(count, 'stage')} are "
            f"missing: {listed}"
        )
        names = and_more([show(name, 60) for name in lost], _LISTED)
        if are_rebuilt:
            text += (
                f": the fp32 weights of {counted_noun(len(lost), 'tensor')} are lost: "
                f"{names}"
            )
        else:
            text += (
                ": the weights are whole, the optimizer and the counters of these "
                "stages are lost"
            )
            lost = [f"{_OPTIMIZER}.{key_of(number)}" for number in gone]
        yield Notice("incomplete", text, tuple(lost))


def stages_of(state: ModelState, others: Sequence[ModelState]) -> int | None:
    """Return the number of stages, or None where tensor-parallel ranks cut the layers.

    Newer versions record both. Before them, two such ranks have states of one layer.
    """
    degrees = node_fields(state.rest.get(_PARALLEL))
    tensor = degrees.get("tp_degree")
    pipeline = degrees.get("pp_degree")
    world = state.rest.get("mp_world_size")
    if type(tensor) is int and tensor > 1:
        return None
    seen: set[str] = set()
    for other in others:
        numbers = {name.partition(".")[0] for name in claimed_names(other)}
        # Tied modules belong to several stages.
        numbers.discard(_TIED.removesuffix("."))
        if not seen.isdisjoint(numbers):
            return None
        seen |= numbers
    counts = [count for count in (pipeline, world, len(others)) if type(count) is int]
    # A claim below the number of files is wrong; the files are there.
    return max(counts[0], len(others))


def shapes_by(
    optimizers: dict[int, OptimizerState], weights: dict[str, TensorRef]
) -> tuple[dict[str, Shape], ...] | None:
    """Return the shapes of each flat group, in its order, by the slices that the ranks
    record and by the layers.

    The optimizer of bf16 with ZeRO 0 is saved without `param_shapes`. Return None where
    a rank, a slice or the shape of a tied parameter is unknown.
    """
    first = optimizers[min(optimizers)]
    every = [optimizers[rank].slices for rank in sorted(optimizers)]
    # A missing rank would leave elements out of the sums below.
    if sorted(optimizers) != [*range(max(first.counts))]:
        return None
    if any(len(rows or ()) != len(first.groups) for rows in every):
        return None
    # Elements of each parameter by group, summed over the ranks, in the order in which
    # they lie in the flat tensor.
    numels: list[dict[str, int]] = [{} for _ in first.groups]
    for slices in every:
        for group, rows in zip(numels, slices or (), strict=True):
            for name, (numel, _) in sorted(rows.items(), key=lambda row: row[1][1]):
                group[name] = group.get(name, 0) + numel
    # The layer of a tied module has no number in the slices: `tied_modules.KEY.weight`
    # is sought by its ending among the layers that no slice names.
    numbers = {name.partition(".")[0] for group in numels for name in group}
    free = {
        name: ref.shape
        for name, ref in weights.items()
        if name.partition(".")[0] not in numbers
    }
    groups: list[dict[str, Shape]] = []
    for group in numels:
        shapes: dict[str, Shape] = {}
        for name, numel in group.items():
            if name in weights:
                fitting = {weights[name].shape}
            else:
                fitting = {
                    shape
                    for other, shape in free.items()
                    if name.endswith(other[other.index(".") :])
                }
            fitting = {shape for shape in fitting if prod(shape) == numel}
            # Several shapes of one size leave the parameter ambiguous.
            if len(fitting) != 1:
                return None
            shapes[name] = fitting.pop()
        groups.append(shapes)
    return tuple(groups)


def claimed_names(state: ModelState) -> set[str]:
    """The names of the parameters and the buffers that the states of a stage list."""
    names = {*state.frozen_shapes, *(state.buffers or ())}
    for rows in state.shapes or ():
        names.update(rows)
    return names


def unclaimed_names(names: Iterable[str], states: Iterable[ModelState]) -> list[str]:
    """The names in layers of which no stage lists anything."""
    numbers = {
        name.partition(".")[0] for state in states for name in claimed_names(state)
    }
    return [name for name in names if name.partition(".")[0] not in numbers]


def combine_stages(
    states: dict[int, ModelState],
    weights: dict[str, TensorRef],
    extra: dict[str, Node],
    count: int,
) -> ModelState:
    """The model states of all stages as one: the fields of the first, and below
    `mp_rank_TT` what others have besides.

    Where all `count` stages are there, what is no buffer is a parameter.
    """
    module = dict_of([*weights.items(), *extra.items()])
    if not states:
        return ModelState(module, weights, extra, None, None, {}, {}, {}, None, {})
    first = states[min(states)]
    # Each stage has its own parameters, so no name occurs twice but for tied ones.
    buffers: set[str] = set()
    frozen: dict[str, TensorRef] = {}
    shared: dict[str, str] = {}
    for state in states.values():
        buffers.update(state.buffers or ())
        frozen.update(state.frozen)
        shared.update(state.shared)
    rest = dict(first.rest)
    # ZeRO 0: each stage numbers its own parameters.
    if _OPTIMIZER in rest and count > 1:
        rest[_OPTIMIZER] = _by_stage(
            {number: state.rest.get(_OPTIMIZER) for number, state in states.items()}
        )
    for number, state in states.items():
        if state is first:
            continue
        own = {
            name: node
            for name, node in state.rest.items()
            if name != _OPTIMIZER and not is_same(node, first.rest.get(name))
        }
        if own:
            rest[key_of(number)] = _dict_node(own)
    return first._replace(
        node=module,
        module=weights,
        extra=extra,
        # With a stage missing, a name that no list has may be a buffer of that stage.
        buffers=frozenset(buffers) if len(states) == count else None,
        frozen=frozen,
        shared=shared,
        rest=rest,
    )


def key_of(number: int) -> str:
    return f"mp_rank_{number:02d}"


def _by_stage(nodes: dict[int, Node]) -> Dict:
    return _dict_node(
        {key_of(number): node for number, node in nodes.items() if node is not None}
    )


def _dict_node(nodes: dict[str, Node]) -> Dict:
    return dict_of(nodes.items())

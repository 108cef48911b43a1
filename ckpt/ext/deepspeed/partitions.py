"""The partitions of all ranks, compared with each other and with the shapes, and the
parameters that they make.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from math import prod

from ckpt.ext.deepspeed.states import (
    ModelState,
    OptimizerState,
    is_flat,
    node_fields,
    rank_counters,
    same_dtype,
)
from ckpt.formats.common.mixed_steps import refuse_mixed
from ckpt.model.account import Notice
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import LimitError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node, dict_of, tensor_of
from ckpt.model.places import Patched, Place
from ckpt.model.tensors import Storage, TensorRef, tensor_ref
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.view import look

_LISTED = 8


class Partitions:
    """The flat weights of all ranks. Raises UnreadableError where files contradict each
    other or the shapes.

    `names` are the parameters that are rebuilt, `lost` the ones that lack the elements
    of a rank. `cut` has the ids of storages that a file lacks bytes of.
    """

    def __init__(
        self,
        models: dict[int, ModelState],
        optimizers: dict[int, OptimizerState],
        limits: Limits,
        cut: Set[int] = frozenset(),
    ) -> None:
        self._cut = cut
        self._models = models
        self._optimizers = optimizers
        self._main = models[min(models)]
        self._first = optimizers[min(optimizers)] if optimizers else None
        shapes = self._main.shapes or ()
        # ZeRO-3 shares each parameter among the ranks, ZeRO 1 and 2 each flat group.
        self.is_shared = self._first is not None and not self._first.is_whole
        if self._first is None:
            # Without optimizer files, ZeRO-3 is known by the empty parameters of the
            # module.
            module = self._main.module or {}
            self.is_shared = any(
                name in module and not module[name].numel and prod(shape)
                for rows in shapes
                for name, shape in rows.items()
            )
        self.world = len(models)
        if self._first is not None and self._first.counts:
            self.world = self._first.counts[0]
        self.saved_by: int | None = self.world
        """Ranks of the save."""
        # Files of several saves would give wrong weights without a word: all checks
        # come before anything is rebuilt.
        self._compare_ranks()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._home: dict[str, int] = {}
        """Name of a parameter -> the number of its group of shapes."""
        for group, group_shapes in enumerate(shapes):
            self._shapes.update(group_shapes)
            self._home.update(dict.fromkeys(group_shapes, group))
        self._cuts: dict[str, Cut]
        if self.is_shared:
            self._cuts, self._need = shared_cuts(shapes, self.world)
        else:
            alignments = None if self._first is None else self._first.alignments
            self._cuts, self._ends = whole_cuts(shapes, alignments)
        self._sizes = self._partition_sizes()
        self._compare_shapes()
        # [group][rank] is the flat tensor of a rank.
        self._vectors = self._vectors_of(
            [
                {rank: row.groups[group] for rank, row in optimizers.items()}
                for group in self._groups
            ]
        )
        self.names = tuple(self._shapes)
        whole = {
            name
            for name, cut in self._cuts.items()
            if self._pieces_of_cut(self._vectors, cut).is_whole()
        }
        self.lost = frozenset(name for name in self.names if name not in whole)
        self._lost_frozen: set[str] = set()
        self._frozen = self._frozen_weights()
        self.notices = self._missing_notices()
        self.lost_state: list[str] = []
        """State of whole parameters that a rank lacks elements of: `NAME.exp_avg`."""
        self.unplaced: dict[str, None] = {}
        """Names of state that has no element for each element of a partition."""

    @staticmethod
    def stale(optimizers: dict[int, OptimizerState], limits: Limits) -> list[int]:
        """The ranks of an older save with more ranks. Raises UnreadableError for a
        claim that cannot be true.
        """
        if not optimizers:
            return []
        first = optimizers[min(optimizers)]
        world = max(first.counts, default=0)
        if world > limits.shards:
            raise LimitError(
                "partition_count claims too many ranks", "shards", limits.shards
            )
        # A rank of this number cannot be among `world` ranks.
        return [rank for rank in sorted(optimizers) if rank >= world]

    @property
    def stage(self) -> int:
        if (
            self._first is not None
            and self._first.stage is not None
            and 0 <= self._first.stage <= 3
        ):
            return self._first.stage
        if self.is_shared:
            return 3
        # BF16_Optimizer writes no stage, and divides the weights among the ranks
        # without ZeRO too.
        config = node_fields(self._main.rest.get("ds_config"))
        stage = look(node_fields(config.get("zero_optimization")).get("stage")).value
        return stage if type(stage) is int and 0 <= stage <= 2 else 1

    @property
    def has_stage(self) -> bool:
        """Tell whether the optimizer states name their stage: `zero_to_fp32.py` refuses
        those that do not.
        """
        return self._first is None or self._first.stage is not None

    @property
    def has_optimizer(self) -> bool:
        return self._first is not None and any(self._first.state)

    @property
    def rest(self) -> dict[str, Node]:
        """The other fields of the first rank."""
        return {} if self._first is None else self._first.rest

    @property
    def _groups(self) -> range:
        return range(len(self._first.groups) if self._first is not None else 0)

    # --- the checks -------------------------------------------------------------------

    def _compare_ranks(self) -> None:
        """The files of the ranks against each other."""
        first = self._first
        # These fields are the same for all ranks of one save.
        for rank, row in self._optimizers.items():
            assert first is not None
            for what, expected, value in (
                ("partition_count", first.counts, row.counts),
                ("ZeRO stage", first.stage, row.stage),
                ("layout", first.is_whole, row.is_whole),
                ("groups of weights", len(first.groups), len(row.groups)),
                ("ds_version", first.version, row.version),
            ):
                if expected != value:
                    here, there = show(str(expected), 40), show(str(value), 40)
                    raise UnreadableError(
                        f"the files are of several saves: {what} is {here} for rank "
                        f"{min(self._optimizers)}, {there} for rank {rank}"
                    )
        for rank, model in self._models.items():
            if (model.shapes, model.frozen_shapes) != (
                self._main.shapes,
                self._main.frozen_shapes,
            ):
                raise UnreadableError(
                    f"the files are of several saves: rank {rank} has other parameters "
                    f"than rank {min(self._models)}"
                )
        # ZeRO-3 may split a group of parameters into several flat ones
        # (`sub_group_size`), so its number of groups says nothing.
        groups = len(self._main.shapes or ())
        if (
            first is not None
            and len(first.groups) != groups
            and (first.is_whole or not groups)
        ):
            raise UnreadableError(
                f"the optimizer has {counted_noun(len(first.groups), 'group')} of "
                f"weights, param_shapes has {groups}"
            )
        versions = {
            self._main.version,
            first.version if first is not None else self._main.version,
        }
        if len(versions) > 1:
            listed = " and ".join(
                sorted(show(str(version), 40) for version in versions)
            )
            raise UnreadableError(f"the files are of several saves: DeepSpeed {listed}")
        refuse_mixed(
            (f"the model states of rank {rank}", rank_counters(model.rest))
            for rank, model in self._models.items()
        )
        refuse_mixed(
            (f"the optimizer states of rank {rank}", row.steps)
            for rank, row in self._optimizers.items()
        )

    def _partition_sizes(self) -> list[int]:
        """Elements of a partition of each group. Files leave the padding of the last
        ranks out.
        """
        sizes: list[int] = []
        for group in self._groups:
            rows = self._optimizers.values()
            largest = max(row.groups[group].numel for row in rows)
            padded = {
                row.groups[group].numel + row.paddings[group]
                for row in rows
                if row.paddings is not None and group < len(row.paddings)
            }
            # All partitions of a group are equal with their padding. If the recorded
            # paddings say otherwise, the largest partition is taken as one without.
            if len(padded) == 1 and largest <= min(padded):
                sizes.append(padded.pop())
            else:
                sizes.append(largest)
        return sizes

    def _compare_shapes(self) -> None:
        """The flat weights against the shapes, and where the ranks say that each
        fragment lies.
        """
        is_complete = len(self._optimizers) == self.world
        for group, size in enumerate(self._sizes):
            if self.is_shared:
                continue
            have = sum(row.groups[group].numel for row in self._optimizers.values())
            # DeepSpeed pads a group to a multiple of twice the number of ranks.
            need, align = self._ends[group], 2 * self.world
            if is_complete and -(-have // align) != -(-need // align):
                raise UnreadableError(
                    f"group {group} holds {have:,} elements, its parameters need "
                    f"{need:,}"
                )
            # Files of ranks may be missing, but those that are there show the size of
            # all.
            if size * self.world < need:
                raise UnreadableError(
                    f"{counted_noun(self.world, 'partition')} of {size:,} elements are "
                    f"too few for the {need:,} of group {group}"
                )
        for rank, row in self._optimizers.items():
            have = sum(ref.numel for ref in row.groups)
            if self.is_shared and have != self._need:
                raise UnreadableError(
                    f"rank {rank} holds {have:,} elements, its parts of the parameters "
                    f"need {self._need:,}"
                )
            for group, rows in enumerate(row.slices or ()):
                self._compare_slices(rank, group, rows)
        # In ZeRO-3 the parameters of the module are empty.
        for name, tensor in (self._main.module or {}).items():
            shape = self._shapes.get(name)
            if not self.is_shared and shape is not None and shape != tensor.shape:
                raise UnreadableError(
                    f"{show(name, 80)} has shape {list(shape)} in param_shapes, "
                    f"{list(tensor.shape)} in the module"
                )

    def _compare_slices(
        self, rank: int, group: int, rows: dict[str, tuple[int, int]]
    ) -> None:
        if group >= len(self._sizes) or self.is_shared:
            return
        # `param_slice_mappings` is a second, independent record of where fragments lie.
        begin, size = rank * self._sizes[group], self._sizes[group]
        computed: dict[str, tuple[int, int]] = {}
        for name, cut in self._cuts.items():
            low, high = max(cut.first, begin), min(cut.first + cut.numel, begin + size)
            # (elements, first element within the partition), as the files record it.
            if cut.group == group and low < high:
                computed[name] = (high - low, low - begin)
        if rows != computed:
            name = next(
                name
                for name in (*rows, *computed)
                if rows.get(name) != computed.get(name)
            )
            recorded, needed = (
                _slice_text(rows.get(name)),
                _slice_text(computed.get(name)),
            )
            raise UnreadableError(
                f"rank {rank} puts {show(name, 80)} at {recorded}, by the shapes it "
                f"lies at {needed}"
            )

    # --- the weights ------------------------------------------------------------------

    def _vectors_of(self, groups: Sequence[dict[int, TensorRef]]) -> list[Vector]:
        """The vectors over flat tensors by rank: one for each group, or one for each
        rank in ZeRO-3.
        """
        for rows in groups:
            if rows:
                same_dtype(list(rows.values()))
        # Elements of a cut file count as missing, those of the other ranks are kept.
        groups = [
            {
                rank: ref
                for rank, ref in rows.items()
                if id(ref.storage) not in self._cut
            }
            for rows in groups
        ]
        if not self.is_shared:
            return [
                Vector([(rank * size, ref) for rank, ref in sorted(rows.items())])
                for rows, size in zip(groups, self._sizes, strict=True)
            ]
        # ZeRO-3: the flat groups of a rank lie behind each other, without gaps.
        vectors = []
        for rank in range(self.world):
            begin, parts = 0, []
            for group, rows in enumerate(groups):
                if rank in rows:
                    parts.append((begin, rows[rank]))
                begin += self._numel_of(rank, group)
            vectors.append(Vector(parts))
        return vectors

    def _numel_of(self, rank: int, group: int) -> int:
        row = self._optimizers.get(rank)
        return 0 if row is None else row.groups[group].numel

    def _pieces_of_cut(self, vectors: Sequence[Vector], cut: Cut) -> Pieces:
        # A cut of ZeRO-3 goes through the vectors of all ranks, one step in each. A cut
        # of ZeRO 1 and 2 lies in the vector of its group.
        if self.is_shared:
            chosen = vectors
        else:
            chosen = vectors[cut.group : cut.group + 1]
        return Pieces(chosen, cut.first, cut.step, cut.numel)

    def weights(self, prefix: str) -> dict[str, Node]:
        """The whole parameters by name, and frozen ones that the ranks share."""
        weights: dict[str, Node] = {}
        first = self._first
        for name, cut in self._cuts.items():
            if name not in self.lost and first is not None:
                ref = first.groups[0 if self.is_shared else cut.group]
                pieces = self._pieces_of_cut(self._vectors, cut)
                # Trained weights come from the flat fp32 tensors, which are no
                # Parameters.
                weights[name] = rebuild_parameter(
                    f"{prefix}{name}", ref.device, ref.dtype, self._shapes[name], pieces
                )._replace(is_parameter=False)
        for name, (ref, pieces) in self._frozen.items():
            shape = self._main.frozen_shapes[name]
            weights[name] = rebuild_parameter(
                f"{prefix}{name}", ref.device, ref.dtype, shape, pieces
            )
        return weights

    def _frozen_weights(self) -> dict[str, tuple[TensorRef, Pieces]]:
        """Frozen parameters of ZeRO-3: each rank's file of model states has a
        fragment.
        """
        fragments: dict[str, tuple[TensorRef, Pieces]] = {}
        if not self.is_shared:
            return fragments
        for name, shape in self._main.frozen_shapes.items():
            numel = prod(shape)
            # Each rank has as many elements, rounded up; the last one is padded.
            step = max(-(-numel // self.world), 1)
            rows = {
                rank: row.frozen[name]
                for rank, row in self._models.items()
                if name in row.frozen
            }
            rows = {
                rank: ref
                for rank, ref in rows.items()
                if is_flat(ref)
                and ref.storage.place is not None
                and id(ref.storage) not in self._cut
            }
            if rows:
                same_dtype(list(rows.values()))
            vectors = [
                Vector([(0, rows[rank])] if rank in rows else [])
                for rank in range(self.world)
            ]
            pieces = Pieces(vectors, 0, step, numel)
            if rows and pieces.is_whole():
                fragments[name] = (rows[min(rows)], pieces)
            else:
                self._lost_frozen.add(name)
        self.lost |= self._lost_frozen
        return fragments

    def _missing_notices(self) -> list[Notice]:
        """Return notices about the weights that are lost with the files of missing
        ranks.
        """
        gone = [rank for rank in range(self.world) if rank not in self._optimizers]
        notices = []
        if gone:
            lost = [name for name in self.names if name in self.lost]
            of = (
                f"the optimizer states of {ranks_text(gone)} of {self.world} are "
                "missing"
            )
            if self._first is None:
                of = "all files of optimizer states are missing"
            what = (
                f"the fp32 weights of {len(lost):,} of "
                f"{counted_noun(len(self.names), 'parameter')} are lost"
            )
            names = and_more([show(name, 60) for name in lost], 3)
            notices.append(Notice("incomplete", f"{of}: {what}: {names}", tuple(lost)))
        elif self.lost - self._lost_frozen:
            lost = [name for name in self.names if name in self.lost]
            names = and_more([show(name, 60) for name in lost], 3)
            text = (
                f"the fp32 weights of {len(lost):,} of "
                f"{counted_noun(len(self.names), 'parameter')} are cut off: {names}"
            )
            notices.append(Notice("incomplete", text, tuple(lost)))
        if self._lost_frozen:
            names = and_more([show(name, 60) for name in sorted(self._lost_frozen)], 3)
            text = f"fragments of frozen parameters are missing: {names}"
            notices.append(Notice("incomplete", text, tuple(sorted(self._lost_frozen))))
        return notices

    # --- the optimizer ----------------------------------------------------------------

    def optimizer(self, prefix: str) -> Dict:
        """The optimizer as torch keeps it, with the names of the parameters in place of
        numbers.
        """
        rows = self._state_rows(prefix)
        state = dict_of((name, dict_of(row.items())) for name, row in rows.items())
        # A parameter without state is one that never had a gradient, and no file of
        # ZeRO says that.
        named = [name for name in self.names if not rows or name in rows]
        return dict_of(
            [("state", state), ("param_groups", self._param_groups(frozenset(named)))]
        )

    def _state_rows(self, prefix: str) -> dict[str, dict[str, Node]]:
        """The state of each parameter that has any."""
        assert self._first is not None
        states: dict[str, dict[str, Node]] = {
            name: {} for name in self.names if name not in self.lost
        }
        # The keys of all groups, in the order in which the groups name them.
        keys: dict[str, None] = {}
        for row in self._first.state:
            keys.update(dict.fromkeys(row))
        for key in keys:
            self._add_state(key, prefix, states)
        return {name: row for name, row in states.items() if row}

    def _base_groups(self) -> tuple[Node, ...]:
        return () if self._first is None else self._first.param_groups

    def _add_state(
        self, key: str, prefix: str, states: dict[str, dict[str, Node]]
    ) -> None:
        # First the flat state of each group: [group][rank] is a tensor with one element
        # for each element of the partition.
        groups: list[dict[int, TensorRef]] = []
        for group in self._groups:
            rows: dict[int, TensorRef] = {}
            for rank, row in self._optimizers.items():
                ref = tensor_of(row.state[group].get(key))
                if type(ref) is TensorRef and self._is_elementwise(
                    ref, row.groups[group], group
                ):
                    rows[rank] = ref
                elif ref is not None and ref.shape:
                    self.unplaced[key] = None
            groups.append(rows)
        # The state is cut as the weights are, by the same places.
        vectors = self._vectors_of(groups)
        for name, held in states.items():
            cut = self._cuts[name]
            pieces = self._pieces_of_cut(vectors, cut)
            refs = groups[self._group_of(name)]
            if cut.numel and refs and pieces.is_whole():
                ref = refs[min(refs)]
                whole = rebuild_parameter(
                    f"{prefix}{name}.{key}",
                    ref.device,
                    ref.dtype,
                    self._shapes[name],
                    pieces,
                )
                held[key] = whole
                continue
            # Some rank's state is missing: the parameter keeps its weights.
            if cut.numel and refs:
                self.lost_state.append(f"{name}.{key}")
                continue
            node = self._group_counter(self._group_of(name), key)
            tensor = tensor_of(node)
            if type(tensor) is TensorRef and not tensor.shape:
                # A counter of the group. Each parameter gets its own, as torch's
                # optimizers count in place.
                own = tensor.storage._replace(id=f"{prefix}{name}.{key}")
                held[key] = tensor._replace(storage=own)
            elif tensor is None and look(node).kind == "scalar" and node is not None:
                held[key] = node

    def _group_counter(self, group: int, key: str) -> Node:
        """The counter of a flat group, of the first rank that has it whole."""
        nodes = [
            row.state[group].get(key) for _, row in sorted(self._optimizers.items())
        ]
        tensors = map(tensor_of, nodes)
        whole = (
            node
            for node, tensor in zip(nodes, tensors, strict=True)
            # A plain number cannot be cut off, a tensor can.
            if type(tensor) is not TensorRef or id(tensor.storage) not in self._cut
        )
        return next(whole, None)

    def _is_elementwise(self, ref: TensorRef, flat: TensorRef, group: int) -> bool:
        """Tell whether a state has an element for each element of its partition. It may
        keep the padding.
        """
        if not is_flat(ref) or ref.storage.place is None:
            return False
        if self.is_shared:
            return ref.numel == flat.numel
        return flat.numel <= ref.numel <= self._sizes[group]

    def _group_of(self, name: str) -> int:
        """The group of a parameter, by the shapes."""
        # ZeRO-3 may have fewer flat groups than there are groups of shapes.
        return min(self._home[name], len(self._groups) - 1)

    def _param_groups(self, named: frozenset[str]) -> list[Node]:
        """The groups with names for the numbers of the flat tensors, of these
        parameters.
        """
        shapes = self._main.shapes or ()
        groups: list[Node] = []
        for node in self._base_groups():
            view = look(node)
            if view.kind != "mapping":
                groups.append(node)
                continue
            group = Dict()
            for key, child in zip(view.keys, view.children, strict=True):
                # In the files `params` are numbers of flat tensors, one for each group.
                if key == "params":
                    numbers = [
                        number for number in look(child).children if type(number) is int
                    ]
                    rows = [
                        shapes[number]
                        for number in numbers
                        if 0 <= number < len(shapes)
                    ]
                    child = [name for row in rows for name in row if name in named]
                group.set([key], [child])
            groups.append(group)
        if not groups:  # elastic checkpoints keep none
            every: list[Node] = [name for name in self.names if name in named]
            groups.append(dict_of([("params", every)]))
        return groups


def _slice_text(row: tuple[int, int] | None) -> str:
    return "no place" if row is None else f"elements {row[1]:,} to {row[1] + row[0]:,}"


def ranks_text(numbers: Sequence[int], most: int = _LISTED) -> str:
    """Return `rank 2`, or `ranks 2 and 3`, of which `most` are listed."""
    noun = "rank" if len(numbers) == 1 else "ranks"
    return f"{noun} {and_more([str(number) for number in numbers], most)}"


class Vector:
    """Elements that lie in several flat tensors, each from its own element `starts` on.
    There may be gaps.
    """

    __slots__ = ("ends", "places", "starts", "width")

    def __init__(self, parts: Sequence[tuple[int, TensorRef]]) -> None:
        rows = [(start, ref) for start, ref in parts if ref.numel]
        self.starts = [start for start, _ in rows]
        self.ends = [start + ref.numel for start, ref in rows]
        self.places = [_place_of_tensor(ref) for _, ref in rows]
        self.width = rows[0][1].dtype.bits // 8 if rows else 0

    @property
    def numel(self) -> int:
        return self.ends[-1] if self.ends else 0

    def cut(self, first: int, count: int) -> Iterator[tuple[int, int, Place]]:
        """Yield (element within the cut, elements, place) of what is there of a cut.

        The cut has `count` elements from `first` on.
        """
        index = max(bisect_right(self.starts, first) - 1, 0)
        last = first + count
        while index < len(self.starts) and self.starts[index] < last:
            low = max(first, self.starts[index])
            high = min(last, self.ends[index])
            # Nothing is yielded for a gap between two tensors.
            if low < high:
                begin = (low - self.starts[index]) * self.width
                end = begin + (high - low) * self.width
                place = self.places[index].part(begin, end)
                yield low - first, high - low, place
            index += 1

    def holds(self, first: int, count: int) -> bool:
        """Tell whether all of `count` elements from `first` on are there."""
        return sum(elements for _, elements, _ in self.cut(first, count)) == count


def _place_of_tensor(ref: TensorRef) -> Place:
    # `noted`, not `place`: it carries the checksum of the record.
    place = ref.storage.noted
    assert place is not None
    return place.part(*ref.extent)


class Pieces:
    """The pieces of one parameter, as `Patched` takes them: `step` elements from
    `first` on of each vector.

    They are made when they are asked for, because a thousand ranks have a thousand
    pieces of each parameter.
    """

    __slots__ = ("_first", "_numel", "_step", "_vectors")

    def __init__(
        self, vectors: Sequence[Vector], first: int, step: int, numel: int
    ) -> None:
        self._vectors = vectors
        self._first = first
        self._step = step
        self._numel = numel

    def _list_places(self) -> list[tuple[int, Place]]:
        return [
            (first * vector.width, place)
            for first, vector, place in self._vector_spans()
        ]

    def _vector_spans(self) -> Iterator[tuple[int, Vector, Place]]:
        for rank, vector in enumerate(self._vectors):
            begin = rank * self._step
            count = min(self._step, self._numel - begin)
            if count <= 0:
                return
            for first, _, place in vector.cut(self._first, count):
                yield begin + first, vector, place

    def is_whole(self) -> bool:
        """Tell whether every element is there."""
        # The places are not kept: this runs for every parameter before any is read.
        held = 0
        for rank, vector in enumerate(self._vectors):
            count = min(self._step, self._numel - rank * self._step)
            if count <= 0:
                break
            held += sum(elements for _, elements, _ in vector.cut(self._first, count))
        return held == self._numel

    def __iter__(self) -> Iterator[tuple[int, Place]]:
        return iter(self._list_places())

    def __reversed__(self) -> Iterator[tuple[int, Place]]:
        return reversed(self._list_places())


def rebuild_parameter(
    storage_id: str,
    device: str | None,
    dtype: DType,
    shape: tuple[int, ...],
    pieces: Pieces,
) -> TensorRef:
    """A parameter of its own storage, whose bytes are the pieces."""
    numel = prod(shape)
    size = dtype.nbytes(numel)
    places = list(pieces) if numel else []
    only = places[0][1] if len(places) == 1 else None
    place: Place
    # One run of bytes in one file is that place itself, so that it can be copied by the
    # kernel.
    if only is not None and only.run is not None:
        place = only
    else:
        place = Patched(None, size, pieces if numel else ())
    storage = Storage(storage_id, device, dtype, size, place)
    return tensor_ref(storage, dtype, shape, contiguous(shape), 0)


class Cut:
    """The place of a parameter: the first element in its vectors, and the elements of
    one step.
    """

    __slots__ = ("first", "group", "numel", "step")

    def __init__(self, group: int, first: int, step: int, numel: int) -> None:
        self.group = group
        self.first = first
        self.step = step
        self.numel = numel


def whole_cuts(
    shapes: Sequence[dict[str, tuple[int, ...]]],
    alignments: Sequence[Sequence[int]] | None,
) -> tuple[dict[str, Cut], list[int]]:
    """The cuts of ZeRO 1 and 2, and the elements that each group needs. Raises
    UnreadableError.
    """
    cuts: dict[str, Cut] = {}
    ends: list[int] = []
    for group, rows in enumerate(shapes):
        paddings: Sequence[int] = ()
        if alignments is not None and group < len(alignments):
            paddings = alignments[group]
        if paddings and len(paddings) != len(rows):
            raise UnreadableError(
                f"group {group} has {len(rows):,} parameters and {len(paddings):,} "
                "alignment paddings"
            )
        position = 0
        for number, (name, shape) in enumerate(rows.items()):
            numel = prod(shape)
            cuts[name] = Cut(group, position, max(numel, 1), numel)
            position += numel + (paddings[number] if paddings else 0)
        ends.append(position)
    return cuts, ends


def shared_cuts(
    shapes: Sequence[dict[str, tuple[int, ...]]], ranks: int
) -> tuple[dict[str, Cut], int]:
    """The cuts of ZeRO-3, and the elements that each rank needs."""
    cuts: dict[str, Cut] = {}
    position = 0
    for rows in shapes:
        for name, shape in rows.items():
            numel = prod(shape)
            # Each rank holds a part of each parameter, rounded up; the last parts are
            # padded.
            step = -(-numel // ranks)
            cuts[name] = Cut(0, position, max(step, 1), numel)
            position += step
    return cuts, position

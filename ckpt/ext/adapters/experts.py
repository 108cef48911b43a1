"""Layers that change a parameter of several experts at once, as PEFT's
`target_parameters` make them.

A has rank rows for each expert, one expert after the other. B has rank columns for each
expert, in turn: column k * E + e is the k-th of expert e. The base may hold all experts
in one tensor, or each in its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

from ckpt.ext.adapters.base import EXPERT_PARTS, Base, Names
from ckpt.ext.adapters.packing import SIDES, Packing, UnnamedPackingError, found_in
from ckpt.ext.adapters.products import Factor, Span, Term
from ckpt.ext.adapters.reader import Adapter, Layer
from ckpt.model.errors import UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show


class Parameter(NamedTuple):
    """A parameter of experts: `rows` by `columns` for each of `experts`.

    `pieces` are the tensors of the base that hold it: the name, the expert, the first
    of its rows there, and their number.
    """

    name: str
    experts: int
    rows: int
    columns: int
    rank: int
    is_in_out: bool
    pieces: tuple[tuple[str, int, int, int], ...]
    is_stack: bool
    """A flag: one tensor of the base holds all experts."""


class Experts:
    """The parameters of experts in a base, for the layers of one adapter."""

    def __init__(self, base: Base, adapter: Adapter, met: Names) -> None:
        self._base = base
        self._adapter = adapter
        self._met = met
        self._is_in_out: dict[str, bool] = {}
        settings = adapter.settings
        targets = [] if settings is None else settings.targets
        # By their last part: modules have other beginnings in the base.
        self._targets = {target.rpartition(".")[2] for target in targets}
        """The parameters that the settings name, without their modules."""

    @cached_property
    def _layers_of(self) -> dict[str, list[Layer]]:
        """Module of the base -> the layers of the adapter that meet it."""
        found: dict[str, list[Layer]] = {}
        for layer in self._adapter.layers:
            module = self._met.get(layer.key)
            if module is not None:
                found.setdefault(module, []).append(layer)
        return found

    def is_parameter(self, layer: Layer) -> bool:
        """Tell whether a layer changes parameters of its module, and not a weight."""
        return bool(self._candidate_parameters(self._met[layer.key]))

    def _candidate_parameters(self, module: str) -> list[Parameter]:
        """The parameters of a module: its own, or those that its experts make up. Their
        ranks are not known yet.

        `--sub` may name a parameter itself, of which the settings say that it is one.
        """
        found = []
        names = [f"{module}.{leaf}" for leaf in self._base.children.get(module, ())]
        if self._targets and module in self._base.indices:
            names.append(module)
        for name in names:
            shape = self._base.entry(name).tensor.shape
            # [experts, rows, columns]: a tensor of two dimensions is a plain weight.
            if len(shape) != 3 or not self._is_target(name):
                continue
            count, rows, columns = shape
            pieces = tuple((name, expert, 0, rows) for expert in range(count))
            found.append(
                Parameter(
                    name=name,
                    experts=count,
                    rows=rows,
                    columns=columns,
                    rank=0,
                    is_in_out=False,
                    pieces=pieces,
                    is_stack=True,
                )
            )
        if not found:
            for parameter in self._split_parameters(module):
                if self._is_target(parameter.name):
                    found.append(parameter)
        return found

    def _is_target(self, name: str) -> bool:
        """Tell whether the settings name a parameter, or none at all."""
        return not self._targets or name.rpartition(".")[2] in self._targets

    def _split_parameters(self, module: str) -> Iterator[Parameter]:
        """Yield the parameters that a base holds as one tensor for each expert."""
        # Experts are numbered from 0 without gaps.
        count = 0
        while self._has_module(f"{module}.{count}"):
            count += 1
        if not count:
            return
        leaves = [
            leaf
            for leaf in EXPERT_PARTS
            if f"{module}.0.{leaf}.weight" in self._base.indices
        ]
        for parameter in dict.fromkeys(EXPERT_PARTS[leaf][0] for leaf in leaves):
            parts = [leaf for leaf in leaves if EXPERT_PARTS[leaf][0] == parameter]
            yield from self._join_parts(module, count, parameter, parts)

    def _has_module(self, module: str) -> bool:
        """Tell whether the base has a module, or one that holds modules alone."""
        return module in self._base.children or module in self._base.places

    def _join_parts(
        self,
        module: str,
        count: int,
        parameter: str,
        parts: list[str],
    ) -> Iterator[Parameter]:
        """Yield a parameter of which each expert has these parts, one below the
        other.
        """
        pieces: list[tuple[str, int, int, int]] = []
        sizes: set[tuple[int, int]] = set()
        for expert in range(count):
            first = 0
            columns = 0
            for leaf in parts:
                name = f"{module}.{expert}.{leaf}.weight"
                if name not in self._base.indices:
                    return
                shape = self._base.entry(name).tensor.shape
                pieces.append((name, expert, first, shape[0]))
                first += shape[0]
                columns = prod(shape[1:])
            sizes.add((first, columns))
        # Experts of several sizes are no parameter of all of them.
        if len(sizes) != 1:
            return
        rows, columns = sizes.pop()
        yield Parameter(
            name=f"{module}.{parameter}",
            experts=count,
            rows=rows,
            columns=columns,
            rank=0,
            is_in_out=False,
            pieces=tuple(pieces),
            is_stack=False,
        )

    def parameter_of(self, layer: Layer, named: Sequence[Packing]) -> Parameter:
        """The parameter that a layer changes. Raises UsageError where none fits, and
        where two do.
        """
        module = self._met[layer.key]
        fitting: list[Parameter] = []
        for one in self._candidate_parameters(module):
            fitting += self._fitting(layer, one)
        fitting = self._decide_way(module, fitting, named)
        if len(fitting) != 1:
            self._refuse_layer(layer, module, fitting)
        return fitting[0]

    def _fitting(self, layer: Layer, one: Parameter) -> list[Parameter]:
        """The ways in which a layer fits a parameter: as (out, in), or as (in, out)."""
        outer, inner = layer.up.shape[0], layer.down.shape[1]
        total = layer.down.shape[0]
        # The ranks of all experts together: as many rows of A as columns of B.
        rank, rest = divmod(total, one.experts)
        if rest or not rank:
            return []
        if layer.up.shape[1] != total or len(layer.down.shape) > 2:
            return []
        ways = []
        if (outer, inner) == (one.rows, one.columns):
            ways.append(one._replace(rank=rank))
        if (inner, outer) == (one.rows, one.columns):
            ways.append(one._replace(rank=rank, is_in_out=True))
        return ways

    def _decide_way(
        self,
        module: str,
        fitting: list[Parameter],
        named: Sequence[Packing],
    ) -> list[Parameter]:
        """The ways that are left: of a square matrix the one that was named, or that
        another layer of the module shows.
        """
        if len(fitting) < 2:
            self._note_way(module, fitting)
            return fitting
        side = found_in(named, SIDES)
        # A square matrix: by its name, by a layer seen before, or by one that follows.
        wanted = self._is_in_out.get(module) if side is None else side == "in-out"
        if wanted is None:
            wanted = self._shown(module)
        if wanted is None:
            return fitting
        return [one for one in fitting if one.is_in_out == wanted]

    def _note_way(self, module: str, fitting: list[Parameter]) -> None:
        if fitting:
            self._is_in_out.setdefault(module, fitting[0].is_in_out)

    def _shown(self, module: str) -> bool | None:
        """The way that another layer of the same module fits, which is not square."""
        for other in self._layers_of.get(module, ()):
            ways: set[bool] = set()
            for one in self._candidate_parameters(module):
                ways.update(way.is_in_out for way in self._fitting(other, one))
            if len(ways) == 1:
                return ways.pop()
        return None

    def _refuse_layer(
        self,
        layer: Layer,
        module: str,
        fitting: list[Parameter],
    ) -> None:
        path = self._base.path
        names = list(dict.fromkeys(one.name for one in fitting))
        if len(names) > 1:
            listed = and_more([show(name, 80) for name in names], 3)
            raise UsageError(
                f"{show(layer.module, 80)} may be {listed}: all fit",
                path=path,
                hint=_naming_option(layer, names[0]),
            )
        if fitting:
            problem = f"{show(names[0], 80)} may hold its experts in-out or out-in"
            raise UnnamedPackingError(problem, SIDES, path=path)
        shapes = f"{list(layer.up.shape)} and {list(layer.down.shape)}"
        there = [
            f"{show(one.name, 80)} {[one.experts, one.rows, one.columns]}"
            for one in self._candidate_parameters(module)
        ]
        raise UsageError(
            (
                f"{show(layer.module, 80)} has {shapes}, which fits none of "
                f"{and_more(there, 3)}"
            ),
            path=path,
        )


def _naming_option(layer: Layer, parameter: str) -> str:
    """The option that says which parameter a layer of experts changes."""
    experts = layer.name.rpartition(".")[2]
    own = parameter.rpartition(".")[2]
    tail = experts + layer.module[len(layer.name) :]
    is_plain = re.fullmatch(r"[\w.]+", tail + own) is not None
    if not is_plain or not layer.module.startswith(layer.name):
        return "--sub S/A/B/ says which"
    return f"--sub 's/{re.escape(tail)}$/{experts}.{own}/'"


def refuse_square(layer: Layer, path: str) -> None:
    """Raise UsageError for a layer of experts of which nothing says that PEFT wrote it:
    the ranks may be packed otherwise.
    """
    problem = (
        f"{show(layer.module, 80)} holds the ranks of all experts, and nothing says in "
        "which order"
    )
    raise UsageError(
        problem,
        path=path,
        hint="adapter_config.json beside it says that PEFT wrote it",
    )


def expert_terms(
    layer: Layer,
    found: Parameter,
    scale: float,
) -> Iterator[tuple[str, Term]]:
    """Yield what is added to each tensor of the base, with the name of that."""
    up, down = layer.up, layer.down
    total, inner, outer = down.shape[0], down.shape[1], up.shape[0]
    for name, expert, first, rows in found.pieces:
        # B has the columns of all experts in turn, A the rows one expert after the
        # other.
        left = Factor(up, (outer, found.rank), (total, found.experts), expert)
        first_row = expert * found.rank
        right = Factor(down, (found.rank, inner), (inner, 1), first_row * inner)
        if found.is_in_out:
            left, right = right.turned, left.turned
        start = expert * found.rows if found.is_stack else 0
        term = Term(
            Span(start, rows),
            Span(0, found.columns),
            left.cut_rows(first, rows),
            right,
            scale,
        )
        yield name, term

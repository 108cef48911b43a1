"""The plan of a merge: for each tensor of the base what is added to it, and for each
tensor of the adapters where it goes.

Each tensor of an adapter has one place, or nothing is planned. Two places that fit
equally well are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Literal

from ckpt.elements.cast import AVERAGED
from ckpt.ext.adapters.base import Base, Names, Shift, met_flat_names, met_names
from ckpt.ext.adapters.experts import Experts, expert_terms, refuse_square
from ckpt.ext.adapters.packing import (
    ORDERS,
    SIDES,
    Packing,
    UnnamedPackingError,
    found_in,
)
from ckpt.ext.adapters.pipelines import Part, aliased_part, flat_aliases, rows_of_part
from ckpt.ext.adapters.products import (
    Factor,
    Magnitude,
    Rows,
    Span,
    Step,
    Term,
    Work,
    factor_of,
    span_of,
)
from ckpt.ext.adapters.reader import (
    Adapter,
    Layer,
    Scale,
    refuse_unscaled,
    scale_of,
    tensor_of_entry,
)
from ckpt.model.checkpoint import Entry
from ckpt.model.errors import UnsupportedError, UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef, unwrap_dtensor
from ckpt.model.text import counted_noun, show, show_folded_names

Method = Literal["LoRA", "DoRA"]
_LISTED = 3
_PIPELINE_PARTS = ("text_encoder", "transformer", "unet")
"""The words with which the names of a pipeline's adapter begin, in diffusers."""
_OF_PICTURES = ("kohya", "diffusers", "ComfyUI")
"""The programs whose adapters name the layers of a pipeline of diffusers."""


class Options(NamedTuple):
    """The choices of a merge that adapters do not record. `rules` rename their
    layers.
    """

    weights: Sequence[float] | None = None
    scale: float | None = None
    packing: tuple[Packing, ...] = ()
    is_exact: bool = False
    rules: Sequence[Callable[[str], str]] = ()


class Pair(NamedTuple):
    """A layer of an adapter, and the tensors of the base that it changes."""

    adapter: int
    layer: Layer
    targets: tuple[str, ...]
    rank: int
    scale: Scale
    method: Method


class Target(NamedTuple):
    """A tensor of the base that changes, or one that is new. `entry` is None for a new
    one.

    `whole` takes its place before anything is added.
    """

    name: str
    entry: Entry | None
    whole: Entry | None
    work: Work | None


class Plan(NamedTuple):
    """The plan of a merge. `shifts` are the beginnings of names that differ, for each
    adapter.
    """

    adapters: tuple[Adapter, ...]
    pairs: tuple[Pair, ...]
    targets: tuple[Target, ...]
    shifts: tuple[tuple[Shift, ...], ...]
    untied: Mapping[str, str] = MappingProxyType({})
    """Weights that are new, because the base shares them with an embedding ->
    its name.
    """
    apart: Mapping[str, str] = MappingProxyType({})
    """Heads that the adapter holds as a whole, and that the base shares with an
    embedding -> its name.
    """
    copies: tuple[tuple[int, str, Entry], ...] = ()
    """Tensors of a checkpoint of training that the base may have too: the number of
    the adapter, the name in the base, and the tensor.
    """


HEAD = "lm_head"
"""The layer that a base without a tensor of its own shares with the embedding."""
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
_OTHER_TABLES = ("embed_in.weight", "tok_embeddings.weight", "shared.weight")
"""The ends of the names of embeddings that no head shares."""
_HEADS = (HEAD, "embed_out")
"""The ends of the names of layers with an output for each token."""


class _Change:
    """The changes of one tensor of the base, as they are gathered."""

    __slots__ = ("magnitudes", "replaced", "terms", "whole")

    def __init__(self) -> None:
        self.terms: dict[int, list[Term]] = {}
        self.magnitudes: dict[int, Magnitude] = {}
        self.replaced: list[Rows] = []
        self.whole: Entry | None = None


class Planner:
    """Finds the place of each tensor of some adapters in a base. Raises UsageError,
    UnsupportedError.
    """

    def __init__(
        self,
        base: Base,
        adapters: Sequence[Adapter],
        options: Options,
    ) -> None:
        self._base = base
        self._adapters = tuple(adapters)
        self._options = options
        self._changes: dict[str, _Change] = {}
        self._pairs: list[Pair] = []
        self._shifts: list[tuple[Shift, ...]] = []
        self._copies: list[tuple[int, str, Entry]] = []
        self._met_by: Names = {}
        self._shown_ways: set[bool] | None = None
        self._names: dict[int, tuple[str, str]] = {}
        self._untied: dict[str, str] = {}
        self._apart: dict[str, str] = {}
        self._parts: dict[str, Part] = {}

    def plan(self) -> Plan:
        """The plan for all adapters, each after the other."""
        for index, adapter in enumerate(self._adapters):
            self._add_adapter(index, adapter)
        # Each is let go at once: there may be a hundred thousand.
        targets = [
            self._make_target(name, self._changes.pop(name))
            for name in list(self._changes)
        ]
        return Plan(
            self._adapters,
            tuple(self._pairs),
            tuple(targets),
            tuple(self._shifts),
            self._untied,
            self._apart,
            tuple(self._copies),
        )

    def _weight(self, index: int) -> float:
        return 1.0 if self._options.weights is None else self._options.weights[index]

    def _tensor_change(self, name: str) -> _Change:
        return self._changes.setdefault(name, _Change())

    # --- names ------------------------------------------------------------------------

    def _add_adapter(self, index: int, adapter: Adapter) -> None:
        self._parts = {}
        renamed: Names = {}
        for layer in adapter.layers:
            renamed[layer.module] = self._rename_module(layer.module)
        met, shifts = self._meet_layers(adapter, renamed)
        self._shifts.append(tuple(shifts))
        # The whole tensors first: an embedding with more rows decides the shape that a
        # layer of the same adapter must have.
        self._add_wholes(index, adapter, shifts)
        for layer in adapter.layers:
            if layer.key not in met and self._untie_head(layer, renamed[layer.module]):
                met[layer.key] = renamed[layer.module]
        unmet = [layer for layer in adapter.layers if layer.key not in met]
        self._refuse_unmet(adapter, unmet)
        _refuse_lengthless(adapter)
        self._met_by = met
        self._shown_ways = None
        # By the id of the tensor: an error while the bytes are read names file and
        # name.
        for layer in adapter.layers:
            for entry in layer.parts.values():
                shown = show(entry.name, 80)
                self._names[id(unwrap_dtensor(entry.tensor))] = (adapter.path, shown)
        unscaled: list[Layer] = []
        experts = Experts(self._base, adapter, met)
        # All layers without a scale are named in one error.
        for layer in adapter.layers:
            if self._add_layer(index, adapter, layer, met[layer.key], experts) is None:
                unscaled.append(layer)
        refuse_unscaled(adapter, unscaled)
        self._add_tokens(adapter, shifts)

    def _rename_module(self, module: str) -> str:
        """The name of a layer after the rules, without what PEFT puts between."""
        for rule in self._options.rules:
            module = rule(module)
        return module.replace(".base_layer", "")

    def _meet_layers(
        self,
        adapter: Adapter,
        renamed: dict[str, str],
    ) -> tuple[Names, list[Shift]]:
        """The layers of an adapter by their names in the base. Those of one part of a
        pipeline share a beginning.
        """
        met: Names = {}
        shifts: list[Shift] = []
        groups: dict[tuple[str, bool], list[Layer]] = {}
        for layer in adapter.layers:
            # The layers of one part of a pipeline share a beginning, those of another
            # do not.
            groups.setdefault((layer.component, layer.is_flat), []).append(layer)
        for (component, is_flat), layers in groups.items():
            # Adapters of pictures have names of their own for layers: these are looked
            # up first.
            if adapter.style in _OF_PICTURES:
                layers = self._place_layers(layers, renamed, component)
            names = list(dict.fromkeys(renamed[layer.module] for layer in layers))
            if is_flat:
                found, moved = met_flat_names(names, self._base)
            else:
                found, moved = met_names(
                    names,
                    self._base,
                    self._make_fit_test(layers, renamed),
                )
            for layer in layers:
                if renamed[layer.module] in found:
                    met[layer.key] = found[renamed[layer.module]]
            shifts += moved
            # For all other programs such names are what is left at last.
            if adapter.style not in _OF_PICTURES:
                rest = [layer for layer in layers if layer.key not in met]
                self._place_layers(rest, renamed, component)
        met |= {key: part.module for key, part in self._parts.items()}
        return met, shifts

    def _place_layers(
        self,
        layers: Sequence[Layer],
        renamed: Names,
        component: str,
    ) -> list[Layer]:
        """Find the layers that a whole checkpoint of a pipeline has by other names.

        Returns those that are not found.
        """
        aliases = self._base.aliases if layers else {}
        if not aliases:
            return list(layers)
        flat = flat_aliases(aliases, component)
        rest: list[Layer] = []
        for layer in layers:
            name = renamed[layer.module]
            part = flat.get(name) if layer.is_flat else aliased_part(aliases, name)
            if part is None:
                rest.append(layer)
            else:
                self._parts[layer.key] = part
        return rest

    def _make_fit_test(
        self,
        layers: Sequence[Layer],
        renamed: Names,
    ) -> Callable[[str, str], bool]:
        """Return what tells whether a layer, by its name, has the shape of one of the
        base.
        """
        by_name = {renamed[layer.module]: layer for layer in layers}
        return lambda name, module: self._is_fitting_layer(by_name[name], module)

    def _is_fitting_layer(self, layer: Layer, module: str) -> bool:
        """Tell whether a layer has the shape of one of the base."""
        weight = self._base.weight_of(module)
        if weight is None:
            return True
        shape = self._base.entry(weight).tensor.shape
        outer, inner = layer.up.shape[0], layer.down.shape[1]
        # A Conv1D of GPT-2 lies as (in, out). Convolutions and experts are checked
        # later.
        return len(shape) > 2 or shape in ((outer, inner), (inner, outer))

    def _refuse_unmet(self, adapter: Adapter, layers: Sequence[Layer]) -> None:
        """Raise UsageError for layers that the base lacks, with the nearest names."""
        if not layers:
            return
        names = [layer.name for layer in layers]
        near = self._base.near(f"{names[0]}.weight") or self._base.near(names[0])
        what = (
            f"{counted_noun(len(names), 'layer')} of {show(adapter.path, 80)}: "
            f"{show_folded_names(names, _LISTED)}"
        )
        # If all lost layers are of one part of a pipeline, BASE is the other part
        # alone.
        components = {layer.component for layer in layers}
        others = {layer.component for layer in adapter.layers} - components
        hint = f"near: {near}" if near else None
        if others and all(components):
            words = " ".join(
                f"--exclude '{component}_*'" for component in sorted(components)
            )
            hint = f"{words} leaves them out"
        # In dotted names the part of the pipeline is the first word.
        parts = {name.partition(".")[0] for name in names}
        kept = {layer.name.partition(".")[0] for layer in adapter.layers} - parts
        if kept and all(part.startswith(_PIPELINE_PARTS) for part in parts | kept):
            words = " ".join(f"--exclude '{part}.*'" for part in sorted(parts))
            hint = f"{words} leaves them out"
        raise UsageError(f"lacks {what}", path=self._base.path, hint=hint)

    def _untie_head(self, layer: Layer, module: str) -> bool:
        """Give a head that the base shares with its embedding a tensor of its own.

        Returns False for any other layer. What the adapter learned is about the head
        alone: added to the embedding, it would change the input too.
        """
        name = f"{module}.weight"
        if module.rpartition(".")[2] != HEAD or layer.is_embedding:
            return False
        # The embedding may have been resized by the same adapter.
        shape = (layer.up.shape[0], layer.down.shape[1])
        found = [own for own in self._base.names if is_embedding(own)]
        if len(found) != 1:
            return False
        other = self._changes.get(found[0])
        resized = None if other is None else other.whole
        own = resized or self._base.entry(found[0])
        if own.tensor.shape != shape:
            return False
        change = self._tensor_change(name)
        if change.whole is None:
            change.whole = own
            self._untied[name] = found[0]
        return True

    # --- one layer --------------------------------------------------------------------

    def _add_layer(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        module: str,
        experts: Experts,
    ) -> Pair | None:
        """Plan one layer. Returns None where nothing says its scale."""
        rank = layer.up.shape[1]
        part = self._parts.get(layer.key)
        weight = self._base.weight_of(module)
        # A weight that the merge makes itself: a head that was tied to the embedding.
        if weight is None and self._is_new_weight(module):
            weight = f"{module}.weight"
        # A module of experts has no weight: the layer changes one of its parameters.
        if weight in (None, module) and experts.is_parameter(layer):
            return self._add_experts(index, adapter, layer, experts)
        scale = scale_of(adapter, layer, rank, self._options.scale)
        if scale.value is None:
            return None
        factor = scale.value * self._weight(index)
        self._refuse_ranks(adapter, layer)
        # From the plainest to the rarest: rows that names say, one tensor, and one of
        # several.
        if weight is not None and part is not None and part.slot is not None:
            targets = [self._add_rows(index, adapter, layer, weight, part, factor)]
        elif weight is not None:
            targets = [self._add_plain(index, adapter, layer, weight, factor)]
        else:
            targets = self._add_fused(index, adapter, layer, module, factor)
        if "magnitude" in layer.parts:
            self._add_magnitude(index, adapter, layer, targets)
        if "up bias" in layer.parts:
            targets.append(self._add_bias(index, adapter, layer, module, factor))
        pair = Pair(
            index,
            layer,
            tuple(targets),
            rank,
            scale,
            "DoRA" if "magnitude" in layer.parts else "LoRA",
        )
        self._pairs.append(pair)
        return pair

    def _is_new_weight(self, module: str) -> bool:
        """Tell whether a layer has no weight in the base, and gets one."""
        change = self._changes.get(f"{module}.weight")
        return change is not None and change.whole is not None

    def _refuse_ranks(self, adapter: Adapter, layer: Layer) -> None:
        """Raise UsageError for two matrices that have no product."""
        down, up = layer.down, layer.up
        inner = up.shape[1]
        # `mid` of a convolution in three parts (LoCon) is [rank, rank, kernel…].
        mid = layer.ref("mid")
        if mid is None:
            fits = inner == down.shape[0]
        else:
            fits = mid.shape[:2] == (inner, down.shape[0])
        if not fits or prod(up.shape[2:]) != 1:
            shapes = f"{list(up.shape)} and {list(down.shape)}"
            raise UsageError(
                f"{show(layer.name, 80)} has matrices without a product: {shapes}",
                path=adapter.path,
            )

    def _add_plain(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        weight: str,
        factor: float,
    ) -> str:
        """Plan a layer that is one tensor of the base."""
        shape = self._target_shape(weight, adapter)
        left, right = factors_of(layer)
        rows = shape[0]
        columns = prod(shape[1:])
        product = left.shape[0], right.columns
        is_straight = product == (rows, columns) and _is_kernel(layer, shape)
        is_turned = len(shape) == 2 and product == (columns, rows) and right.mid is None
        # A square weight fits both ways: its shape does not say how it lies.
        if is_straight and is_turned:
            is_turned = self._is_turned(adapter, layer)
        elif not is_straight and not is_turned:
            self._refuse_shape(adapter, layer, weight, shape)
        if is_turned:
            # (B @ A) turned is A turned @ B turned.
            left, right = right.turned, left.turned
        term = Term(span_of(rows), span_of(columns), left, right, factor)
        self._put_term(index, weight, term)
        return weight

    def _add_rows(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        weight: str,
        part: Part,
        factor: float,
    ) -> str:
        """Plan a layer that is some rows of a tensor of the base, as its names say."""
        shape = self._target_shape(weight, adapter)
        left, right = factors_of(layer)
        rows = rows_of_part(part, shape)
        product = left.shape[0], right.columns
        if rows is None or product != (rows[1], shape[1]):
            self._refuse_shape(adapter, layer, weight, shape)
        assert rows is not None
        if "magnitude" in layer.parts:
            name = show(layer.name, 80)
            raise UnsupportedError(
                f"{name} is DoRA on a fused weight, which is not merged",
                path=self._base.path,
            )
        term = Term(Span(*rows), span_of(shape[1]), left, right, factor)
        self._put_term(index, weight, term)
        return weight

    def _is_turned(self, adapter: Adapter, layer: Layer) -> bool:
        """Tell whether a square weight lies as (in, out): an embedding, and a Conv1D of
        GPT-2. Raises UsageError.

        Layers of other shapes of the same adapter show whether its Conv1D are what the
        settings say.
        """
        if layer.is_embedding:
            return True
        named = found_in(self._options.packing, SIDES)
        if named is not None:
            return named == "in-out"
        # The settings say it of all layers at once, Linear ones included.
        settings = adapter.settings_of(layer)
        is_turned = settings is not None and settings.flag("fan_in_fan_out")
        if self._shown_ways is None:
            self._shown_ways = self._find_shown_ways(adapter)
        shown = self._shown_ways
        if shown == {False}:
            # All other layers lie as (out, in): PEFT takes the flag back for a Linear.
            return False
        # The layers contradict the settings, or each other.
        if True in shown and (not is_turned or False in shown):
            problem = (
                f"{show(layer.name, 80)} is square, and may lie as (in, out) or (out, "
                "in)"
            )
            raise UnnamedPackingError(problem, SIDES, path=self._base.path)
        return is_turned

    def _find_shown_ways(self, adapter: Adapter) -> set[bool]:
        """The ways in which the weights lie that are not square: True for (in, out)."""
        shown: set[bool] = set()
        for layer in adapter.layers:
            name = self._base.weight_of(self._met_by.get(layer.key, ""))
            product = layer.up.shape[0], layer.down.shape[1]
            shape = () if name is None else self._base.entry(name).tensor.shape
            if len(shape) == 2 and product[0] != product[1] and not layer.is_embedding:
                shown.add(shape == product[::-1])
        return shown

    def _target_shape(self, weight: str, adapter: Adapter) -> tuple[int, ...]:
        """The shape of a tensor of the base, or of the one that the adapter has
        for it.
        """
        change = self._changes.get(weight)
        whole = None if change is None else change.whole
        entry = whole or self._base.entry(weight)
        return entry.tensor.shape

    def _refuse_shape(
        self,
        adapter: Adapter,
        layer: Layer,
        weight: str,
        shape: tuple[int, ...],
    ) -> None:
        """Raise UsageError for a layer that does not have the shape of the base."""
        up, down = layer.up.shape, layer.down.shape
        product = [up[0], *down[1:]]
        why = (
            f"{show(weight, 80)} is {list(shape)}, and {show(layer.name, 80)} of "
            f"{show(adapter.path, 80)} {product}"
        )
        # A convolution in groups has fewer inputs in its weight than in its layer.
        if (
            len(shape) > 2
            and len(down) == len(shape)
            and down[1] % max(1, shape[1]) == 0
            and down[1] != shape[1]
        ):
            raise UnsupportedError(
                f"{why}: a convolution in groups is not merged", path=self._base.path
            )
        raise UsageError(why, path=self._base.path)

    def _put_term(self, index: int, weight: str, term: Term) -> None:
        # The pair of this layer comes next: it gets this number.
        own = term._replace(owner=len(self._pairs))
        self._tensor_change(weight).terms.setdefault(index, []).append(own)

    def _add_magnitude(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        targets: Sequence[str],
    ) -> None:
        """Plan the lengths of DoRA."""
        ref = layer.ref("magnitude")
        assert ref is not None
        # After a weight, the lengths would no more be those that were trained.
        if self._weight(index) != 1:
            problem = "is DoRA, whose lengths have no weight but 1"
            raise UsageError(problem, path=adapter.path, hint="without --weights")
        if len(targets) != 1:
            problem = f"{show(layer.name, 80)} is DoRA on a fused weight"
            raise UnsupportedError(
                f"{problem}, which is not merged", path=self._base.path
            )
        name = targets[0]
        shape = self._target_shape(name, adapter)
        rows, columns = shape[0], prod(shape[1:])
        # Lengths of the shape [1, in] belong to the inputs, as kohya may write them.
        # PEFT has one for each output, whatever the shape.
        is_turned = self._lies_turned(layer, shape, adapter)
        by_input = len(ref.shape) > 1 and ref.shape[0] == 1 and ref.shape[1] == columns
        if adapter.style == "PEFT":
            by_input = False
        axis: Literal["rows", "columns"] = "rows"
        if is_turned or by_input:
            axis = "columns"
        if ref.numel != (rows if axis == "rows" else columns):
            problem = f"{show(layer.parts['magnitude'].name, 80)} is {list(ref.shape)}"
            raise UsageError(
                f"{problem}, which is no length of {list(shape)}", path=adapter.path
            )
        self._tensor_change(name).magnitudes[index] = Magnitude(ref, axis)

    def _lies_turned(
        self,
        layer: Layer,
        shape: tuple[int, ...],
        adapter: Adapter,
    ) -> bool:
        outer = layer.up.shape[0]
        inner = prod(layer.down.shape[1:])
        if outer == inner:
            return len(shape) == 2 and self._is_turned(adapter, layer)
        return len(shape) == 2 and shape == (inner, outer)

    def _add_bias(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        module: str,
        factor: float,
    ) -> str:
        """Plan the bias of B, which is added to the bias of the layer."""
        ref = layer.ref("up bias")
        assert ref is not None
        name = f"{module}.bias"
        if name not in self._base.indices:
            raise UsageError(
                f"lacks {show(name, 80)}, to which lora_B.bias is added",
                path=self._base.path,
            )
        # A bias is a matrix of one column, to which B's bias is added without a
        # product.
        left = Factor(ref, (ref.numel, 1), (1, 1))
        if self._target_shape(name, adapter) != (ref.numel,):
            raise UsageError(
                f"{show(name, 80)} has another shape than lora_B.bias",
                path=self._base.path,
            )
        rows, column = Span(0, ref.numel), Span(0, 1)
        self._put_term(index, name, Term(rows, column, left, None, factor))
        return name

    # --- layers that one side holds in one tensor -------------------------------------

    def _add_fused(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        module: str,
        factor: float,
    ) -> list[str]:
        """Plan a layer that is a part of a tensor of the base, or that the base holds
        in several.
        """
        # One expert of a tensor of all; a part of a fused one; a fused one that is
        # apart.
        expert = self._base.expert_of(module)
        if expert is not None:
            return [self._add_one_expert(index, adapter, layer, expert, factor)]
        fused = self._base.fused_with(module)
        if fused is not None:
            return [self._add_in_fused(index, adapter, layer, module, fused, factor)]
        parts = self._base.parts_of(module)
        if parts:
            return self._add_split(index, adapter, layer, parts, factor)
        self._refuse_unmet(adapter, [layer])
        raise AssertionError

    def _named_packing(
        self,
        layer: Layer,
        weight: str,
        ways: tuple[Packing, Packing],
        parts: Sequence[str] = (),
    ) -> Packing:
        """The packing that was named. Raises UnnamedPackingError where none was.

        The tensor `weight` of the base holds the layer, or the layer holds the `parts`.
        """
        named = found_in(self._options.packing, ways)
        if named is not None:
            return named
        holder, held = show(weight, 80), show(layer.name, 80)
        if parts:
            holder, held = held, show_folded_names(parts, 3)
        problem = f"{holder} may hold {held} {ways[0]} or {ways[1]}"
        raise UnnamedPackingError(problem, ways, path=self._base.path)

    def _add_in_fused(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        module: str,
        fused: tuple[str, tuple[str, ...]],
        factor: float,
    ) -> str:
        """Plan a layer that the base holds with its siblings: query, key and value, or
        gate and up.
        """
        weight, siblings = fused
        shape = self._target_shape(weight, adapter)
        left, right = factors_of(layer)
        place, count = siblings.index(module), len(siblings)
        packing = self._named_packing(layer, weight, ORDERS)
        # Head by head needs the number of heads, which no weight says.
        if packing == "interleaved" and count > 2:
            raise UnsupportedError(
                (
                    f"{show(weight, 80)} holds query, key and value head by head, "
                    "which is not merged"
                ),
                path=self._base.path,
            )
        own = left.shape[0]
        sizes = self._sizes(adapter, siblings, module, own, shape[0])
        if len(shape) != 2 or right.shape[1] != shape[1] or sizes is None:
            self._refuse_shape(adapter, layer, weight, shape)
        assert sizes is not None
        # In turn: each `count`-th row from the one of its place on.
        if packing == "interleaved":
            rows = Span(place, own, count)
        else:
            rows = Span(sum(sizes[:place]), own)
        term = Term(rows, span_of(shape[1]), left, right, factor)
        self._put_term(index, weight, term)
        return weight

    def _sizes(
        self,
        adapter: Adapter,
        siblings: Sequence[str],
        module: str,
        own: int,
        whole: int,
    ) -> list[int] | None:
        """The rows of each sibling in a fused tensor, or None where they do not make it
        up.

        Key and value have as many rows as each other, and the first one of two as many
        as the second.
        """
        known = {name.rpartition(".")[2]: 0 for name in siblings}
        module_above = module.rpartition(".")[0]
        # The adapter may have only some of the siblings: 0 rows are not known yet.
        for layer in adapter.layers:
            above, _, leaf = layer.name.rpartition(".")
            end = above.rpartition(".")[2] or above
            if leaf in known and module_above.endswith(end):
                known[leaf] = layer.up.shape[0]
        known[module.rpartition(".")[2]] = own
        rows = list(known.values())
        if len(rows) == 2:
            rows = [rows[0] or rows[1], rows[1] or rows[0]]
        else:
            # With grouped queries, key and value are smaller than the query.
            rows[1] = rows[1] or rows[2] or (whole - rows[0]) // 2
            rows[2] = rows[2] or rows[1]
            rows[0] = rows[0] or whole - rows[1] - rows[2]
        if sum(rows) != whole or any(size <= 0 for size in rows):
            return None
        return rows

    def _add_split(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        parts: Sequence[str],
        factor: float,
    ) -> list[str]:
        """Plan a fused layer that the base holds in several tensors."""
        left, right = factors_of(layer)
        shapes = [self._target_shape(name, adapter) for name in parts]
        packing = self._named_packing(layer, parts[0], ORDERS, parts)
        total = sum(shape[0] for shape in shapes)
        is_alike = all(shape[1:] == (right.shape[1],) for shape in shapes)
        if total != left.shape[0] or not is_alike:
            self._refuse_shape(adapter, layer, parts[0], shapes[0])
        if packing == "interleaved" and len(parts) > 2:
            problem = f"{show(layer.name, 80)} holds query, key and value head by head"
            raise UnsupportedError(f"{problem}, which is not merged", path=adapter.path)
        first = 0
        for place, (name, shape) in enumerate(zip(parts, shapes, strict=True)):
            part = left.cut_rows(first, shape[0])
            if packing == "interleaved":
                # A step of several rows takes each `count`-th one.
                count = len(parts)
                step = (left.stride[0] * count, left.stride[1])
                part = left.cut_rows(place, shape[0])._replace(stride=step)
            term = Term(span_of(shape[0]), span_of(shape[1]), part, right, factor)
            self._put_term(index, name, term)
            first += shape[0]
        return list(parts)

    # --- experts ----------------------------------------------------------------------

    def _add_one_expert(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        expert: tuple[str, int, int, int],
        factor: float,
    ) -> str:
        """Plan a layer of one expert, of which the base holds all in one tensor."""
        weight, number, place, count = expert
        # [experts, out, in] or [experts, in, out]; gate and up share `out`.
        shape = self._target_shape(weight, adapter)
        left, right = factors_of(layer)
        outer, inner = left.shape[0], right.shape[1]
        is_out_in = len(shape) == 3 and shape[1:] == (outer * count, inner)
        is_in_out = len(shape) == 3 and shape[1:] == (inner, outer * count)
        if not (is_out_in or is_in_out) or number >= shape[0]:
            self._refuse_shape(adapter, layer, weight, shape)
        if is_out_in and is_in_out:
            is_in_out = self._named_packing(layer, weight, SIDES) == "in-out"
        is_in_turn = False
        if count > 1:
            is_in_turn = self._named_packing(layer, weight, ORDERS) == "interleaved"
        own = Span(place * outer, outer)
        if is_in_turn:
            own = Span(place, outer, count)
        # The tensor as a matrix: the rows of all experts one below the other.
        first = number * shape[1]
        if is_in_out:
            term = Term(Span(first, inner), own, right.turned, left.turned, factor)
        else:
            rows = own._replace(first=first + own.first)
            term = Term(rows, Span(0, inner), left, right, factor)
        self._put_term(index, weight, term)
        return weight

    def _add_experts(
        self,
        index: int,
        adapter: Adapter,
        layer: Layer,
        experts: Experts,
    ) -> Pair | None:
        """Plan a layer that changes a parameter of several experts."""
        found = experts.parameter_of(layer, self._options.packing)
        settings = adapter.settings_of(layer)
        is_from_peft = settings is not None and settings.is_from_peft
        # Other programs may pack the ranks of experts in another order.
        if not is_from_peft and not self._options.packing:
            refuse_square(layer, self._base.path)
        scale = scale_of(adapter, layer, found.rank, self._options.scale)
        if scale.value is None:
            return None
        factor = scale.value * self._weight(index)
        targets: list[str] = []
        for name, term in expert_terms(layer, found, factor):
            self._put_term(index, name, term)
            targets.append(name)
        # A tensor of all experts is changed once for each of them, and named once.
        names = tuple(dict.fromkeys(targets))
        pair = Pair(index, layer, names, found.rank, scale, "LoRA")
        self._pairs.append(pair)
        return pair

    # --- tensors that were trained themselves -----------------------------------------

    def _add_wholes(
        self,
        index: int,
        adapter: Adapter,
        shifts: Sequence[Shift],
    ) -> None:
        """Plan the tensors that take the place of tensors of the base."""
        for name, entry in adapter.wholes.items():
            found = self._name_of(name, shifts)
            # A name that the settings list is new: the base need not have it.
            if found is None:
                self._refuse_unknown(adapter, name)
            target = found or self._rename_module(name)
            embedding = self._shared_embedding(target)
            if embedding is not None:
                self._apart[target] = embedding
            change = self._tensor_change(target)
            if change.whole is not None:
                twice = f"{show(change.whole.name, 80)} and {show(entry.name, 80)}"
                raise UsageError(
                    f"{twice} both take the place of one tensor", path=adapter.path
                )
            change.whole = entry
        for name, entry in adapter.copies.items():
            own = self._name_of(name, shifts) or self._rename_module(name)
            self._copies.append((index, own, entry))

    def _shared_embedding(self, name: str) -> str | None:
        """The embedding that gives a head its weight in the base, or None for a head
        with a tensor of its own, and for any other tensor.
        """
        module, _, part = name.rpartition(".")
        is_head = part == "weight" and module.rpartition(".")[2] == HEAD
        if not is_head or name in self._base.indices:
            return None
        found = [own for own in self._base.names if is_embedding(own)]
        return found[0] if len(found) == 1 else None

    def _name_of(self, name: str, shifts: Sequence[Shift]) -> str | None:
        """The name in the base of a tensor of an adapter, or None."""
        own = self._rename_module(name)
        for candidate in (own, *(shift.apply(own) for shift in shifts)):
            if candidate is not None and candidate in self._base.indices:
                return candidate
        return None

    def _refuse_unknown(self, adapter: Adapter, name: str) -> None:
        """Raise UsageError for a whole tensor that the base lacks, unless the settings
        say that it is new.
        """
        settings = adapter.settings
        saved = None if settings is None else settings.saved_modules
        # `modules_to_save` has ends of modules: any run of words may be one of them.
        words = name.split(".")[:-1]
        for end in range(len(words), 0, -1):
            for first in range(end):
                if saved and ".".join(words[first:end]) in saved:
                    return
        near = self._base.near(name)
        raise UsageError(
            f"lacks {show(name, 80)} of {show(adapter.path, 80)}",
            path=self._base.path,
            hint=f"near: {near}" if near else None,
        )

    def _add_tokens(self, adapter: Adapter, shifts: Sequence[Shift]) -> None:
        """Plan the rows of embeddings that take the place of rows of the base."""
        for module, entry in adapter.tokens.items():
            name = self._name_of(f"{module}.weight", shifts)
            name = name or self._tokens_name(module)
            ref = tensor_of_entry(entry)
            if name is None:
                self._refuse_unknown(adapter, f"{module}.weight")
                raise AssertionError
            settings = adapter.settings
            indices = None if settings is None else settings.token_indices(module)
            shape = self._target_shape(name, adapter)
            if (
                indices is None
                or len(indices) != ref.shape[0]
                or ref.shape[1:] != shape[1:]
            ):
                problem = (
                    f"nothing says which rows of {show(name, 80)} are "
                    f"{show(entry.name, 80)}"
                )
                raise UsageError(problem, path=adapter.path)
            if any(not 0 <= row < shape[0] for row in indices):
                problem = (
                    f"{show(name, 80)} has {shape[0]:,} rows, and "
                    f"{show(entry.name, 80)} is of later ones"
                )
                raise UsageError(problem, path=self._base.path)
            self._tensor_change(name).replaced.append(Rows(tuple(indices), ref))

    def _tokens_name(self, module: str) -> str | None:
        ends = [name for name in self._base.names if name.endswith(f".{module}.weight")]
        return ends[0] if len(ends) == 1 else None

    # --- the tensors of the base ------------------------------------------------------

    def _make_target(self, name: str, change: _Change) -> Target:
        entry = self._base.entry(name) if name in self._base.indices else None
        base = change.whole or entry
        assert base is not None
        if change.terms or change.replaced:
            _refuse_numberless(entry or base, self._base.path)
        steps = [
            Step(index, tuple(terms), change.magnitudes.get(index))
            for index, terms in change.terms.items()
        ]
        for step in steps:
            self._refuse_twice(name, step)
        if not steps and not change.replaced:
            return Target(name, entry, change.whole, None)
        shape = base.tensor.shape
        # Experts are matrices that follow each other, and a list is one column.
        columns = prod(shape[1:])
        if len(shape) == 3 and _is_stack(steps, shape):
            columns = shape[2]
        rows = base.tensor.numel // max(1, columns)
        work = Work(
            rows,
            columns,
            tuple(steps),
            tuple(change.replaced),
            self._options.is_exact,
            self._names,
        )
        return Target(name, entry, change.whole, work)

    def _refuse_twice(self, name: str, step: Step) -> None:
        """Raise UsageError where two layers of one adapter change the same rows: one
        layer by two names, or a part and the whole.
        """
        # Only neighbours in this order can share rows, so each is compared with one
        # other.
        for one, two in pairwise(sorted(step.terms, key=_order_of_term)):
            if not _share_rows(one, two):
                continue
            names = [
                show(self._pairs[term.owner].layer.names[0], 80) for term in (one, two)
            ]
            raise UsageError(
                f"{' and '.join(names)} change the same rows of {show(name, 80)}",
                path=self._adapters[step.origin].path,
                hint="--exclude GLOB leaves one out",
            )


def _order_of_term(term: Term) -> tuple[Span, int, int, int]:
    """The place of a term in an order in which terms that share rows are neighbours."""
    rows = term.rows
    return term.columns, rows.step, rows.first % rows.step, rows.first


def _share_rows(one: Term, two: Term) -> bool:
    """Tell whether two terms for the same columns change the same rows."""
    rows, others = one.rows, two.rows
    if one.columns != two.columns:
        return False
    if rows.step == others.step and (rows.first - others.first) % rows.step:
        return False  # they take turns, as gate and up do
    return rows.first < others.end and others.first < rows.end


def _refuse_lengthless(adapter: Adapter) -> None:
    """Raise UsageError for layers of DoRA, as the settings say, without lengths."""
    lost: list[str] = []
    for layer in adapter.layers:
        settings = adapter.settings_of(layer)
        is_dora = settings is not None and settings.flag("use_dora")
        if is_dora and "magnitude" not in layer.parts:
            lost.append(layer.name)
    if lost:
        problem = (
            f"use_dora is set, and no lora_magnitude_vector is there for "
            f"{counted_noun(len(lost), 'layer')}: {show_folded_names(lost, _LISTED)}"
        )
        raise UsageError(problem, path=adapter.path)


def is_embedding(name: str) -> bool:
    """Tell whether a name belongs to the embedding of a language model."""
    return _ends_as(name, _EMBEDDINGS)


def has_tokens(name: str) -> bool:
    """Tell whether a tensor has a row for each token: an embedding, or a head."""
    if is_embedding(name) or _ends_as(name, _OTHER_TABLES):
        return True
    return name.rpartition(".")[0].endswith(_HEADS)


def _ends_as(name: str, ends: Sequence[str]) -> bool:
    return any(name == end or name.endswith(f".{end}") for end in ends)


def _is_stack(steps: Iterable[Step], shape: tuple[int, ...]) -> bool:
    """Tell whether terms see a tensor of three dimensions as matrices one below the
    other.
    """
    terms = [term for step in steps for term in step.terms]
    for term in terms:
        if term.rows.end > shape[0] * shape[1] or term.columns.end > shape[2]:
            return False
    return True


def _is_kernel(layer: Layer, shape: tuple[int, ...]) -> bool:
    """Tell whether a layer and a weight have the same kernels. A kernel of one element
    may be left out.
    """
    down = layer.down.shape
    mid = layer.ref("mid")
    kernel = down[2:] if mid is None else mid.shape[2:]
    is_one = prod(kernel) == 1 and prod(shape[2:]) == 1
    return down[1] == shape[1] and (is_one or tuple(kernel) == tuple(shape[2:]))


def factors_of(layer: Layer) -> tuple[Factor, Factor]:
    """The matrices whose product is added: out by rank, and rank by in."""
    return factor_of(layer.up), factor_of(layer.down)._replace(mid=layer.ref("mid"))


def _refuse_numberless(entry: Entry, path: str) -> None:
    """Raise UnsupportedError for a tensor of the base to which nothing can be added."""
    tensor = unwrap_dtensor(entry.tensor)
    if not isinstance(tensor, TensorRef) or tensor.dtype.name not in AVERAGED:
        what = tensor.dtype.name if isinstance(tensor, TensorRef) else tensor.layout
        raise UnsupportedError(
            f"{show(entry.name, 80)} is {what}, to which nothing can be added",
            path=path,
        )
    if tensor.numel and tensor.storage.place is None:
        raise UnsupportedError(
            f"{show(entry.name, 80)} is on meta, without data", path=path
        )

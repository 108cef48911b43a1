"""The description of an adapter: its method, ranks, scales and layers, and if it fits a
base.
"""

from __future__ import annotations

from collections import Counter

from ckpt.evidence.survey import Survey
from ckpt.ext.adapters.account import names_text
from ckpt.ext.adapters.config import listed_texts
from ckpt.ext.adapters.merge import possible_plans, say_of_merge
from ckpt.ext.adapters.plan import Options
from ckpt.ext.adapters.reader import Adapter, has_free_scale, scale_of
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, counted_noun, show, show_folded_names
from ckpt.surface.api.advice import add_way_out


class Fit(NamedTuple):
    """The fit of an adapter to a base: `why` it does not fit, or None. Where the base
    may hold layers in several ways, `merge` needs one of the `packings`.
    """

    base: str
    why: str | None
    tensors: int
    packings: tuple[tuple[str, ...], ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The field `fits` of an adapter in the document `ckpt.inspect`."""
        return {
            "base": self.base,
            "fits": self.why is None,
            "why": self.why,
            "tensors": self.tensors,
            "packings": [list(ways) for ways in self.packings],
        }


class Description(NamedTuple):
    """The facts about an adapter. `kinds` are the last parts of the names of its
    layers, with how many have it.
    """

    method: str
    style: str
    layers: tuple[str, ...]
    kinds: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    alpha: float | None
    has_rooted_ranks: bool
    replaced: tuple[str, ...]
    base_model: str | None
    task: str | None
    fit: Fit | None

    @property
    def exit_code(self) -> int:
        """The exit code: 1 where it does not fit the base."""
        return int(self.fit is not None and self.fit.why is not None)

    @property
    def texts(self) -> tuple[str, ...]:
        """The lines about it."""
        parts = [self.method.removeprefix("LoRA in "), _range_text("rank", self.ranks)]
        if self.alpha is not None:
            parts.append(f"alpha {self.alpha:g}")
        parts.append(
            _range_text("scale", self.scales) if self.scales else "no alpha recorded"
        )
        if self.has_rooted_ranks:
            parts.append("rsLoRA")
        if self.base_model:
            parts.append(f"base {show(self.base_model, 80)}")
        if self.task:
            parts.append(f"task {show(self.task, 40)}")
        lines = [", ".join(part for part in parts if part)]
        lines.append(
            f"changes {counted_noun(len(self.layers), 'layer')} of the base model: "
            f"{show_folded_names(self.layers, 6)}"
        )
        if self.replaced:
            lines.append(
                f"replaces {counted_noun(len(self.replaced), 'tensor')}: "
                f"{show_folded_names(self.replaced, 4)}"
            )
        return tuple(lines)

    @property
    def fit_text(self) -> str:
        """The line about the base, or `` where none is given."""
        return "" if self.fit is None else _fit_text(self.fit)

    def to_json(self) -> dict[str, Json]:
        """The fields of `adapter` in the document `ckpt.inspect` that this adds."""
        return {
            "scales": list(self.scales),
            "alpha": self.alpha,
            "kinds": dict(self.kinds),
            "replaced": list(self.replaced),
            "base_model": self.base_model,
            "task": self.task,
            "fits": None if self.fit is None else self.fit.to_json(),
        }

    def plain_json(self) -> dict[str, Json]:
        """The fields of `adapter` that the names of most adapters tell alone."""
        return {
            "names": self.style,
            "methods": ["LoRA"],
            "layers": len(self.layers),
            "parts": {"": len(self.layers)},
            "ranks": list(self.ranks),
            "alphas": [],
            "base": None,
        }


def _range_text(word: str, numbers: tuple[int, ...] | tuple[float, ...]) -> str:
    """`rank 8`, or `ranks 4 to 16`."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]:g}"
    return f"{word}s {min(numbers):g} to {max(numbers):g}" if numbers else ""


def _fit_text(fit: Fit) -> str:
    if fit.why is not None:
        return f"does not fit: {fit.why}"
    text = (
        f"fits {show(fit.base, None)}: {counted_noun(fit.tensors, 'tensor')} would "
        "change"
    )
    if not fit.packings:
        return text
    ways = [" ".join(f"--packing {way}" for way in ways) for ways in fit.packings]
    return f"{text}, with {' or '.join(ways)}"


def describe_adapter(
    adapter: Adapter,
    base: Survey | None,
    limits: Limits,
) -> Description:
    """Describe an adapter, and with a base, its fit to that."""
    settings = adapter.settings
    names = [layer.name for layer in adapter.layers]
    kinds = Counter(
        _layer_kind(layer.name, is_flat=layer.is_flat) for layer in adapter.layers
    )
    return Description(
        names_text(adapter),
        adapter.style,
        tuple(names),
        tuple(kinds.most_common()),
        tuple(sorted(adapter.ranks())),
        _layer_scales(adapter),
        None if settings is None else settings.alpha,
        settings is not None and settings.flag("use_rslora"),
        (*adapter.wholes, *adapter.tokens),
        None if settings is None else settings.text("base_model_name_or_path"),
        None
        if settings is None
        else next(iter(listed_texts(settings.values.get("task_type"))), None),
        None if base is None else _fit_to_base(adapter, base, limits),
    )


def _layer_kind(name: str, *, is_flat: bool) -> str:
    """The kind of a layer: the last part of its name that is no number. Without dots,
    the last two words.
    """
    # `q_proj` is two words of a name whose dots are `_` too.
    if is_flat:
        return "_".join(name.split("_")[-2:])
    # `to_out.0` and `ff.net.2` end in a number that says nothing.
    words = [word for word in name.split(".") if not word.isdigit()]
    return words[-1] if words else name


def _layer_scales(adapter: Adapter) -> tuple[float, ...]:
    """The scales of all layers, each once. Of a layer of experts its settings say the
    rank.
    """
    found: set[float] = set()
    for layer in adapter.layers:
        settings = adapter.settings_of(layer)
        # A layer of experts has the ranks of all of them in one matrix.
        said = None if settings is None else settings.rank_of(layer.name)
        try:
            scale = scale_of(adapter, layer, int(said) if said else layer.up.shape[1])
        # A layer without a scale is described all the same: `merge` refuses it.
        except CkptError:
            continue
        if scale.value is not None:
            found.add(scale.value)
    return tuple(sorted(found))


def _fit_to_base(adapter: Adapter, base: Survey, limits: Limits) -> Fit:
    """Return the fit of an adapter to a base: each of its tensors has a place there, or
    why not. Reads no weights.
    """
    # The fit does not depend on a scale that nothing records.
    options = Options(scale=1.0 if has_free_scale(adapter) else None)
    try:
        plans = possible_plans(
            base.checkpoint,
            base.only_model(None).entries,
            [adapter],
            options,
        )
    except CkptError as error:
        say_of_merge(error)
        add_way_out(error, base, limits)
        return Fit(base.path, error.said_of(base.path), 0)
    packings = [packing for packing, _ in plans if packing]
    return Fit(base.path, None, len(plans[0][1].targets), tuple(packings))

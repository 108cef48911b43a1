"""An adapter as it is read: its layers with their parts, the tensors that were trained
as a whole, and its settings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from ckpt.bytes.executor import current_executor
from ckpt.elements.audit import are_damaged
from ckpt.elements.blocks import elements
from ckpt.elements.cast import AVERAGED, few, has_numbers
from ckpt.evidence.survey import Survey
from ckpt.ext.adapters.config import (
    CONFIG,
    Settings,
    noted_settings,
    refuse_settings,
    settings_at,
)
from ckpt.ext.adapters.names import Kind, Part, Style, layer_of, method_of, part_of
from ckpt.model.checkpoint import Entry
from ckpt.model.errors import (
    DamagedDataError,
    UnsupportedError,
    UsageError,
    about,
)
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef, unwrap_dtensor
from ckpt.model.text import and_more, be_verb, counted_noun, show, show_folded_names
from ckpt.tree.find import metadata_of

_LAYER_KINDS: tuple[Kind, ...] = (
    "down",
    "up",
    "mid",
    "alpha",
    "magnitude",
    "up bias",
    "embedding down",
    "embedding up",
)
_FREE: tuple[Style, ...] = ("kohya", "ComfyUI", "diffusers")
"""Programs that take a scale of 1 where no alpha is recorded."""


class Layer(NamedTuple):
    """A layer of an adapter: the tensors of its parts. `module` is the name of the
    layer as the adapter has it.
    """

    module: str
    is_flat: bool
    component: str
    parts: dict[Kind, Entry]

    @property
    def name(self) -> str:
        """The name of the layer in the base, as far as the adapter knows it."""
        return layer_of(self.module)

    @property
    def key(self) -> str:
        """The module with its part of a pipeline: two text encoders have layers of one
        name.
        """
        return f"{self.component}_{self.module}" if self.component else self.module

    @property
    def is_embedding(self) -> bool:
        """Tell whether it changes an embedding."""
        return "embedding up" in self.parts

    def ref(self, *kinds: Kind) -> TensorRef | None:
        """The tensor of the first of some parts that is there."""
        for kind in kinds:
            entry = self.parts.get(kind)
            if entry is not None:
                return tensor_of_entry(entry)
        return None

    @property
    def down(self) -> TensorRef:
        """The matrix that is multiplied first: rank rows."""
        ref = self.ref("down", "embedding down")
        assert ref is not None
        return ref

    @property
    def up(self) -> TensorRef:
        """The matrix that is multiplied last: rank columns."""
        ref = self.ref("up", "embedding up")
        assert ref is not None
        return ref

    @property
    def names(self) -> list[str]:
        """The names of its tensors."""
        return [entry.name for entry in self.parts.values()]


class Adapter(NamedTuple):
    """An adapter. `wholes` are tensors of the base that were trained themselves, by
    their names in the base.

    `tokens` are rows of embeddings by the name of the module, `copies` what lies in a
    checkpoint of training beside it, as it was in the base. `total` is the number of
    its tensors.
    """

    path: str
    style: Style
    settings: Settings | None
    components: dict[str, Settings]
    layers: tuple[Layer, ...]
    wholes: dict[str, Entry]
    tokens: dict[str, Entry]
    copies: dict[str, Entry]
    passed: tuple[str, ...]
    total: int
    left: tuple[Entry, ...] = ()
    """The tensors that were not selected."""

    def settings_of(self, layer: Layer) -> Settings | None:
        """The settings that hold for a layer."""
        if self.components:
            return self.components.get(
                layer.component or layer.module.partition(".")[0], self.settings
            )
        return self.settings

    def ranks(self) -> list[int]:
        """The ranks of its layers, the most frequent first."""
        counts = Counter(layer.down.shape[0] for layer in self.layers)
        return [rank for rank, _ in counts.most_common()]

    @property
    def has_magnitudes(self) -> bool:
        """Tell whether it is DoRA."""
        return any("magnitude" in layer.parts for layer in self.layers)


def tensor_of_entry(entry: Entry) -> TensorRef:
    """The strided tensor of an entry. Raises UnsupportedError for another one, and for
    one without numbers.
    """
    tensor = stored_tensor(entry)
    if tensor.dtype.name not in AVERAGED:
        raise UnsupportedError(
            f"{show(entry.name, 80)} is {tensor.dtype.name}, and has no numbers to add"
        )
    return tensor


def stored_tensor(entry: Entry) -> TensorRef:
    """The strided tensor of an entry, whatever its dtype. Raises UnsupportedError for
    another one, and for one without data.
    """
    tensor = unwrap_dtensor(entry.tensor)
    if not isinstance(tensor, TensorRef):
        raise UnsupportedError(
            f"{show(entry.name, 80)} is {entry.tensor.layout}, and has no numbers to "
            "add"
        )
    if tensor.numel and tensor.storage.place is None:
        raise UnsupportedError(f"{show(entry.name, 80)} is on meta, without data")
    return tensor


def read_adapter(
    survey: Survey,
    limits: Limits,
    *,
    section: str | None = None,
    select: Globs | None = None,
    is_alone: bool = False,
) -> Adapter:
    """Read an adapter: its layers and its settings. No values are read but alphas.
    Raises UsageError, UnsupportedError.

    With `is_alone` nothing beside its file is read.
    """
    path = survey.path
    part = survey.only_model(section)
    chosen = set(map(id, part.selected(select, path))) if select else None
    entries = [(part.relative(entry.name), entry) for entry in part.entries]
    left: list[Entry] = []
    if chosen is not None:
        left = [entry for _, entry in entries if id(entry) not in chosen]
        entries = [row for row in entries if id(row[1]) in chosen]
    named = [(name, part_of(name), entry) for name, entry in entries]
    # Before layers are grouped: tensors of another method look like half of one.
    _refuse_foreign(named, path)
    _refuse_several(named, path)
    layers, loose = _group_layers(named, path)
    # PEFT takes the name of the adapter out of the names when it saves one by itself.
    is_training = any(row.adapter for _, row, _ in named)
    # `alpha` may be a parameter of a model, and no part of a layer.
    others = [row for row in named if row[1].kind not in _LAYER_KINDS]
    wholes, copies = _whole_tensors(others + loose, is_training=is_training)
    tokens = {row.module: entry for _, row, entry in named if row.kind == "tokens"}
    passed = tuple(name for name, row, _ in named if row.kind == "passed")
    if not layers and not tokens:
        _refuse_bare(named, path)
        is_noted = wholes and not is_alone and settings_at(path, limits) is not None
        hint = f"{CONFIG} beside it names what was trained" if is_noted else None
        raise UsageError(
            "holds no adapter: no tensor is called lora_A, lora_B or their like",
            path=path,
            hint=hint,
        )
    settings, components = _read_settings(survey, limits, is_alone=is_alone)
    styles = Counter(row.style for _, row, _ in named if row.style)
    style: Style = styles.most_common(1)[0][0] or "PEFT"
    # Names of kohya beside those of ComfyUI: `lora_down` is in both.
    if style == "ComfyUI" and any(row.is_flat for _, row, _ in named):
        style = "kohya"
    return Adapter(
        path,
        _refine_style(style, layers, settings),
        settings,
        components,
        tuple(layers),
        wholes,
        tokens,
        copies,
        passed,
        len(entries),
        tuple(left),
    )


def _refuse_bare(named: Sequence[_Named], path: str) -> None:
    """Raise UsageError for matrices that are parameters of the layer itself.

    loralib adds them to the weight in eval mode, and the file does not say in which
    mode it was saved. Adding them again would be wrong.
    """
    bare = [entry.name for name, _, entry in named if name.endswith(_BARE)]
    if bare:
        raise UsageError(
            f"holds {show_folded_names(bare, 3)} as loralib names them: whether the "
            "weights have them in already is not recorded",
            path=path,
            hint="model.eval() of loralib adds them, model.train() takes them out",
        )


def refuse_damage(adapter: Adapter) -> None:
    """Raise DamagedDataError for tensors of an adapter whose bytes do not match the
    checksums of its file. Reads a file that has checksums.
    """
    entries = [
        *(entry for layer in adapter.layers for entry in layer.parts.values()),
        *adapter.wholes.values(),
        *adapter.tokens.values(),
    ]
    answers = are_damaged([entry.tensor for entry in entries], current_executor())
    bad = [entry.name for entry, is_bad in zip(entries, answers, strict=True) if is_bad]
    if bad:
        verb = be_verb(bad)
        raise DamagedDataError(
            f"{show_folded_names(bad, 3)} {verb} damaged: the bytes do not match the "
            "recorded checksum",
            path=adapter.path,
        )


_BARE = (".lora_A", ".lora_B")
"""The ends of the matrices of loralib, which have no `.weight` behind."""
_COMPONENTS = (
    "unet",
    "transformer",
    "text_encoder",
    "text_encoder_2",
    "text_encoder_3",
    "prior",
)
"""The parts of a pipeline of diffusers, with which it begins the names of an
adapter.
"""


def _refine_style(
    style: Style,
    layers: Sequence[Layer],
    settings: Settings | None,
) -> Style:
    """The program that wrote an adapter: diffusers has the names of PEFT below the
    parts of a pipeline.
    """
    if style != "PEFT" or settings is not None or not layers:
        return style
    first_parts = [layer.module.partition(".")[0] for layer in layers]
    is_pipeline = all(part in _COMPONENTS for part in first_parts)
    return "diffusers" if is_pipeline else style


def _read_settings(
    survey: Survey,
    limits: Limits,
    *,
    is_alone: bool,
) -> tuple[Settings | None, dict[str, Settings]]:
    """The settings of an adapter, and the settings for each part of a pipeline."""
    path = survey.path
    settings = None if is_alone else settings_at(path, limits)
    # A file of PEFT beside it comes first; diffusers notes settings in the metadata.
    components: dict[str, Settings] = {}
    if not settings:
        components = noted_settings(metadata_of(survey.checkpoint.root), limits)
    for noted in components.values():
        refuse_settings(noted, path)
    # The settings of a model that was saved by itself hold for all of it.
    if list(components) == [""]:
        return components[""], {}
    return settings, components


_Named = tuple[str, Part, Entry]


def _refuse_foreign(named: Sequence[_Named], path: str) -> None:
    """Raise UnsupportedError for the tensors of another method than LoRA."""
    foreign = [name for name, row, _ in named if row.kind == "foreign"]
    if foreign:
        methods = sorted({method for name in foreign if (method := method_of(name))})
        what = f", of {' and '.join(methods)}" if methods else ""
        raise UnsupportedError(
            (
                f"holds {show_folded_names(foreign, 2)}{what}: only LoRA and DoRA are "
                "merged"
            ),
            path=path,
        )


def _refuse_several(named: Sequence[_Named], path: str) -> None:
    """Raise UsageError for a checkpoint of training with several adapters."""
    adapters = list(dict.fromkeys(row.adapter for _, row, _ in named if row.adapter))
    if len(adapters) > 1:
        listed = and_more([show(adapter, 40) for adapter in adapters], 4)
        # A name that needs no quotes in a shell becomes a command that works.
        hint = "--include GLOB"
        if adapters[0].isidentifier():
            hint = f"--include '*.{adapters[0]}*'"
        raise UsageError(
            f"holds {len(adapters)} adapters: {listed}",
            path=path,
            hint=hint,
        )


def _group_layers(
    named: Sequence[_Named], path: str
) -> tuple[list[Layer], list[_Named]]:
    """The layers, and the tensors that only look like a part of one: `alpha` may be a
    parameter of a model.

    Raises UsageError for a layer of which a half is missing.
    """
    found: dict[tuple[str, str], Layer] = {}
    names: dict[tuple[str, str], list[_Named]] = {}
    for row in named:
        _, part, entry = row
        if part.kind not in _LAYER_KINDS:
            continue
        key = part.component, part.module
        layer = found.setdefault(
            key, Layer(part.module, part.is_flat, part.component, {})
        )
        if part.kind in layer.parts:
            first = show(layer.parts[part.kind].name, 80)
            twice = f"{first} and {show(entry.name, 80)}"
            raise UsageError(f"{twice} are the same part of one layer", path=path)
        layer.parts[part.kind] = entry
        names.setdefault(key, []).append(row)
    layers: list[Layer] = []
    loose: list[_Named] = []
    for key, layer in found.items():
        # An `alpha` or a `magnitude` without matrices belongs to the model itself.
        if not {"down", "up", "embedding down", "embedding up"} & layer.parts.keys():
            loose += names[key]
            continue
        _refuse_half(layer, path)
        layers.append(layer)
    return layers, loose


def _refuse_half(layer: Layer, path: str) -> None:
    """Raise UsageError for a layer that lacks one of its two matrices, or has matrices
    of two ranks.
    """
    pairs: tuple[tuple[Kind, Kind], ...] = (
        ("down", "up"),
        ("embedding down", "embedding up"),
    )
    whole = [
        pair for pair in pairs if pair[0] in layer.parts and pair[1] in layer.parts
    ]
    if len(whole) != 1:
        # An alpha and a length are no half: the tensor without a partner is named.
        halves = [
            entry.name
            for kind, entry in layer.parts.items()
            if kind not in ("alpha", "magnitude")
        ]
        have = halves[0]
        raise UsageError(
            f"{show(have, 80)} has no partner, and is nothing alone", path=path
        )
    for kind in whole[0]:
        tensor = tensor_of_entry(layer.parts[kind])
        if len(tensor.shape) < 2 or not tensor.numel:
            # ZeRO-3 and FSDP hold flat shards, and empty ones where a rank has none.
            why = "it has no elements"
            if len(tensor.shape) < 2:
                why = "a shard of ZeRO-3 or FSDP that was never gathered"
            problem = f"{show(layer.parts[kind].name, 80)} is {list(tensor.shape)}"
            raise UsageError(f"{problem}: {why}", path=path)


def _whole_tensors(
    named: Iterable[_Named], *, is_training: bool
) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The tensors that were trained as a whole, and the copies of the base beside them.

    In a checkpoint of training nothing tells them apart but their values.
    """
    wholes: dict[str, Entry] = {}
    copies: dict[str, Entry] = {}
    for _, part, entry in named:
        if part.kind in ("alpha", "magnitude"):
            wholes[f"{part.module}.{entry.name.rpartition('.')[2]}"] = entry
        elif part.kind in ("whole", "base"):
            is_trained = bool(part.adapter) or not is_training
            found = wholes if is_trained else copies
            found[part.module] = entry
    # `modules_to_save` has a copy of the tensor as it was beside the trained one.
    kept = {name: entry for name, entry in copies.items() if name not in wholes}
    return wholes, kept


# --- the scale ------------------------------------------------------------------------


GIVEN = "--scale"
"""The source of a scale that was given, because none is recorded."""


class Scale(NamedTuple):
    """The factor of B @ A, and where it comes from. `value` is None where nothing says
    it.
    """

    value: float | None
    source: str


def scale_of(
    adapter: Adapter,
    layer: Layer,
    rank: int,
    given: float | None = None,
) -> Scale:
    """The scale of a layer of this rank: the recorded one, else the given one.

    Raises UsageError where none is given and its settings are of another rank.
    """
    # A tensor of the layer says more than settings for all layers.
    alpha = layer.parts.get("alpha")
    if alpha is not None:
        value = _read_number(alpha)
        if value is None or not math.isfinite(value):
            raise UsageError(
                f"{show(alpha.name, 80)} is not a number", path=adapter.path
            )
        return Scale(value / rank, "alpha")
    settings = adapter.settings_of(layer)
    with about(adapter.path):
        return _scale_of(settings, adapter, layer, rank, given)


def _scale_of(
    settings: Settings | None,
    adapter: Adapter,
    layer: Layer,
    rank: int,
    given: float | None,
) -> Scale:
    """The scale of a layer by its settings, or by the custom of the program that wrote
    it.
    """
    if settings is not None:
        said = settings.rank_of(layer.name)
        # Settings of another rank are those of another file: their alpha is not this
        # one's.
        is_of_another = said is not None and said != rank
        if is_of_another and given is None:
            problem = (
                f"{CONFIG} says rank {said:g} for {show(layer.name, 80)}, whose "
                f"tensors have {rank}"
            )
            raise UsageError(
                problem,
                path=adapter.path,
                hint="--scale X, which is alpha / rank",
            )
        value = settings.scale_of(layer.name, rank)
        if value is not None and not is_of_another:
            return Scale(value, CONFIG)
    if given is not None:
        return Scale(given, GIVEN)
    if adapter.style in _FREE:
        return Scale(1.0, f"none recorded, 1 as {adapter.style} takes it")
    return Scale(None, "")


def has_free_scale(adapter: Adapter) -> bool:
    """Tell whether nothing says the scale of an adapter."""
    has_alphas = any("alpha" in layer.parts for layer in adapter.layers)
    has_settings = adapter.settings is not None and adapter.settings.alpha is not None
    is_recorded = has_alphas or has_settings or bool(adapter.components)
    return not is_recorded and adapter.style not in _FREE


def _read_number(entry: Entry) -> float | None:
    """The only number of a tensor, or None for another one. Reads it."""
    ref = unwrap_dtensor(entry.tensor)
    if not isinstance(ref, TensorRef) or ref.numel != 1 or not has_numbers(ref.dtype):
        return None
    value = few(b"".join(elements(ref)), ref.dtype)[0]
    return None if isinstance(value, complex) else float(value)


def refuse_unscaled(adapter: Adapter, layers: Sequence[Layer]) -> None:
    """Raise UsageError for layers of which nothing says the scale."""
    if layers:
        what = f"nothing says the alpha of {counted_noun(len(layers), 'layer')}"
        beside = f"{CONFIG} has none"
        if adapter.settings is None:
            beside = f"there is no {CONFIG} beside it"
        problem = f"{what}: {beside}, and no alpha is in it"
        raise UsageError(
            problem,
            path=adapter.path,
            hint="--scale X, which is alpha / rank",
        )

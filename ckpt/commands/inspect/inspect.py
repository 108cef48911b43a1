"""`ckpt inspect`: what a checkpoint says about itself, as a report. Reads no tensor
data.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal, Protocol

from ckpt.bytes.location import path_beside
from ckpt.evidence.adapters import Adapter, Scales, adapter_of, scales_of
from ckpt.evidence.devices import HiddenDevice, hidden_devices, is_accelerator
from ckpt.evidence.extras import (
    exclude_patterns,
    extras_consequence,
    extras_sentence,
    find_extras,
)
from ckpt.evidence.loading import Load, look_at, refusals_text
from ckpt.evidence.roles import Role
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.weights import emptied_findings, scaled_findings
from ckpt.evidence.wrappers import (
    AVERAGE_COUNTERS,
    WRAPPERS,
    inner_modules,
    inner_wrappers,
    names_below,
    wrapped_names,
    wrapper_prefix,
    writers_of_prefix,
)
from ckpt.hooks import has_command
from ckpt.model.checkpoint import (
    Checkpoint,
    CodeDevice,
    Entries,
    Entry,
    Import,
    Refusal,
    Value,
    looks_of,
    names_of,
)
from ckpt.model.columns import Column, row_looks, row_parts
from ckpt.model.findings import Finding, Level, Plan, Way, order
from ckpt.model.names import Globs, LazyPattern
from ckpt.model.nodes import Opaque
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import (
    Storage,
    Tensor,
    TensorRef,
    overlapping_groups,
    parts_of,
    unexpanded_view,
)
from ckpt.model.text import (
    Json,
    and_more,
    counted_noun,
    pasted_path,
    shell_word,
    show,
    show_folded_names,
    show_names,
    size_text,
)
from ckpt.pickle.judge.names import SHARED_CHANGE, is_own, passes_module
from ckpt.surface.reports import reduce_report
from ckpt.tree.view import RECONSTRUCT, SOURCE, persistent_parts

if TYPE_CHECKING:
    from ckpt.commands.inspect.card import Card


def _resume_stops(survey: Survey, plan: Plan) -> Iterable[Finding]:
    """Parameters without state: `get_state_dict` makes state for each that is trained,
    and a strict load looks for it.

    Source: torch/distributed/checkpoint/state_dict.py `_init_optim_state`,
    default_planner.py `DefaultLoadPlanner`.
    """
    if not survey.checkpoint.traits.fills_a_state:
        return
    # Here: few formats fill a state.
    from ckpt.evidence.optimizers import first_field

    for use in survey.uses:
        slots = [use.match.slots[number] for number in use.never]
        names = [
            slot.name for slot in slots if slot.name is not None and not slot.has_state
        ]
        section = use.match.optimizer.name
        field = first_field(use.match.optimizer)
        if not names or field is None:
            continue
        key = show(f"{section}{'.' if section else ''}state.{names[0]}.{field}", 120)
        indices = [use.match.indices[number] for number in use.never]
        yield Finding(
            "resume-stops",
            (
                f"Unless {show_folded_names(names)} are frozen, a strict load stops: "
                f'"Missing key in checkpoint state_dict: {key}".'
            ),
            tuple(survey.tensors[index].name for index in indices if index is not None),
            plan(("completed",)).command,
            consequence=(
                "Load with planner=DefaultLoadPlanner(allow_partial_load=True)."
            ),
        )


# Fewer bytes that no tensor uses are not worth a finding.
_BLOAT_BYTES = 1024
# An optimizer of more than so many times the model is heavy. Adam's two moments are
# twice as large as the model.
_HEAVY = 1.0
_ALONE = "For the weights alone:"


class Row(NamedTuple):
    """A tensor, the section that it lies in, and its index in `Checkpoint.tensors`."""

    entry: Entry
    section: Section | None
    position: int

    @property
    def tensor(self) -> Tensor:
        return self.entry.tensor

    @property
    def relative(self) -> str:
        """Its name inside its section."""
        return (
            self.section.relative(self.entry.name) if self.section else self.entry.name
        )


class Prefix(NamedTuple):
    """A wrapper's prefix on `tensors` of the `of` tensors of a section."""

    prefix: str
    writer: str
    part: Section
    tensors: int

    @property
    def section(self) -> str:
        return self.part.name

    @property
    def of(self) -> int:
        return self.part.tensors


class AdapterFound(NamedTuple):
    """The adapter that the file is. `base` is the base model that kohya's metadata
    names.
    """

    adapter: Adapter
    scales: Scales
    base: str = ""

    @property
    def text(self) -> str:
        """`names of kohya (…), rank 4, alpha 2 (scale 0.5); changes 9 layers: 8 of the
        UNet, 1 of the text encoder`.
        """
        found = self.adapter
        ranks = found.ranks
        rank = ""
        if len(ranks) == 1:
            rank = f"rank {ranks[0]}"
        elif ranks:
            rank = f"ranks {ranks[0]} to {ranks[-1]}"
        extra = "DoRA" if found.has_magnitude else ""
        base = f"base {show(self.base, 60)}" if self.base else ""
        texts = [
            text for text in (found.format, rank, self.scales.text, extra, base) if text
        ]
        places = f": {found.places}" if found.places else ""
        return (
            f"{', '.join(texts)}; changes "
            f"{counted_noun(len(found.layers), 'layer')}{places}"
        )

    def to_json(self) -> dict[str, Json]:
        """Return the object `adapter` of the document."""
        found = self.adapter
        counts = Counter(found.layers.values())
        return {
            "names": found.style,
            "methods": list(found.methods),
            "layers": len(found.layers),
            "parts": dict(counts.items()),
            "ranks": list(found.ranks),
            "alphas": list(self.scales.alphas),
            "base": self.base or None,
        }


def _find_adapter(survey: Survey) -> AdapterFound | None:
    """The adapter that the only model of a file is. Reads the scales of its layers, a
    number each.
    """
    if len(survey.candidates) != 1:
        return None
    part = survey.candidates[0]
    found = adapter_of(part.names(), looks_of(part.entries))
    if found is None:
        return None
    # kohya's trainers write the base model into the metadata of safetensors.
    bases = [
        value.node
        for value in survey.checkpoint.values
        if value.path[-1:] == ("ss_base_model_version",)
    ]
    base = bases[0] if bases and isinstance(bases[0], str) else ""
    # Behind a URL each number would be a request of its own.
    is_far = any(source.far is not None for source in survey.checkpoint.all_sources())
    alphas = [] if is_far else [part.entries[number].tensor for number in found.alphas]
    return AdapterFound(found, scales_of(alphas, found.ranks), str(base))


class Described(Protocol):
    """The facts about an adapter: their lines, and their fields in the document."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The lines about it."""
        ...

    @property
    def fit_text(self) -> str:
        """The line about the base that was given, or ``."""
        ...

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return further fields of the object `adapter` of the document."""
        ...

    def plain_json(self) -> dict[str, Json]:
        """Return the usual fields of that object, where names alone do not tell an
        adapter.
        """
        ...


class Quantised(Protocol):
    """The weights of a file that consist of several tensors, and the report in which
    each is one.
    """

    @property
    def shown(self) -> Inspection | None:
        """The report for people, or None where only parts of such weights are
        selected.
        """
        ...

    @property
    def text(self) -> str:
        """The bits that a weight takes."""
        ...

    def to_json(self) -> list[Json]:
        """Return the field `quantised` of the document."""
        ...


class Whole(NamedTuple):
    """A folder that is a checkpoint, of which a file was looked at. `files` is how many
    it has.
    """

    path: str
    files: int


class Inspection(NamedTuple):
    """The report of `ckpt inspect`. `rows` are the selected tensors; everything else is
    about the whole file.

    `entries` are the same tensors: what looks at their names alone does not make a row
    of each.
    """

    survey: Survey
    entries: Sequence[Entry]
    rows: Sequence[Row]
    prefixes: tuple[Prefix, ...]
    hidden_devices: tuple[HiddenDevice, ...]
    findings: tuple[Finding, ...]
    selected: bool = False
    values: tuple[Value, ...] = ()
    way: Way | None = None
    """The command that makes a file for weights_only, where this one needs it."""
    adapter: AdapterFound | None = None
    described: Described | None = None
    """Further facts about the adapter."""
    card: Card | None = None
    """The model card beside the weights."""
    quantised: Quantised | None = None
    """Weights that consist of several tensors."""
    whole: Whole | None = None
    """The checkpoint that this file is a part of."""

    @property
    def checkpoint(self) -> Checkpoint:
        return self.survey.checkpoint

    @property
    def storages(self) -> tuple[StorageUse, ...]:
        """Every storage with the tensors over it. Each call looks at all of them."""
        return storage_uses(self.checkpoint)

    @property
    def sections(self) -> tuple[Section, ...]:
        return self.survey.sections

    @property
    def load(self) -> Load:
        return self.survey.load

    def roles(self) -> list[Role]:
        """The role of each of `rows`; text does not show them."""
        roles = self.survey.roles
        return [roles[row.position] for row in self.rows] if self.selected else roles

    def __reduce__(self) -> tuple[object, ...]:
        return reduce_report(self.checkpoint.path, Inspection, *self)

    def __copy__(self) -> Inspection:
        return self

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.inspect`; docs/json.md is its contract."""
        from ckpt.commands.inspect.document import document

        return document(self)


def inspect(
    survey: Survey,
    select: Globs | None = None,
    section: str | None = None,
    plan: Plan | None = None,
) -> Inspection:
    """The report on a checkpoint, over all tensors or those that are selected. Raises
    UsageError.

    `plan` finds the commands of the hints; without it findings have none.
    """
    checkpoint, parts = survey.checkpoint, survey.sections
    entries, values = checkpoint.tensors, checkpoint.values
    # The indices of the selected tensors in `Checkpoint.tensors`.
    indices: Sequence[int] = range(len(entries))
    if section is not None:
        name = survey.section(section).name
        chosen = [part for part in parts if part.name == name]
        indices = list(chain.from_iterable(part.indices for part in chosen))
        values = tuple(
            value
            for value in values
            if any(value.path[: len(part.path)] == part.path for part in chosen)
        )
    if select:
        names = names_of(entries)
        # A glob matches the full name of a tensor or its name inside of its section.
        relative = [*names]
        for part in parts:
            relative[part.first : part.first + part.tensors] = part.names()
        candidates = [relative[index] for index in indices]
        indices = [
            index for index in indices if select.match(names[index], relative[index])
        ]
        if not indices:
            raise select.refusal(candidates, checkpoint.path)
    prefixes = _find_prefixes(parts)
    hidden = hidden_devices(checkpoint.values)
    # The column of entries itself where all are selected: no entry is made.
    chosen_entries = entries
    if len(indices) < len(entries):
        every = list(entries)
        chosen_entries = [every[index] for index in indices]

    # Rows are made on demand: text folds most of them, and reads their names alone.
    def make(first: int, last: int) -> list[Row]:
        owner: list[Section | None] = [None] * len(entries)
        for part in parts:
            owner[part.first : part.first + part.tensors] = [part] * part.tensors
        return [
            Row(entry, owner[index], index)
            for entry, index in zip(
                chosen_entries[first:last], indices[first:last], strict=True
            )
        ]

    report = Inspection(
        survey,
        chosen_entries,
        Column(len(indices), make, ()),
        prefixes,
        hidden,
        (),
        selected=bool(select) or section is not None,
        values=values,
        adapter=None if select or section is not None else _find_adapter(survey),
    )
    # The findings look at the report itself, so it is completed afterwards.
    plan = plan or _no_plan
    report = report._replace(findings=order(list(_list_findings(report, plan))))
    return report._replace(way=_way_out(report, plan))


def _no_plan(words: tuple[str, ...]) -> Way:
    return Way(None)


def _way_out(report: Inspection, plan: Plan) -> Way | None:
    """The command for a file that torch loads only with trust in it, or not at all."""
    checkpoint = report.checkpoint
    if checkpoint.not_loadable or checkpoint.traits.names_are_code:
        return None
    # A file of one rank is no model.
    if checkpoint.traits.is_set and checkpoint.members:
        return None
    # Objects that loading calls are not made plain: only the weights come out.
    if any(row.group == "called" for row in checkpoint.imports):
        return plan(("weights",))
    # A document beside the weights that is refused leaves the weights loadable.
    refused = any(
        checkpoint.is_of_weights(row.file) for row in checkpoint.weights_only or ()
    )
    return plan(("plain",)) if refused or report.load.expression is None else None


def _find_prefixes(parts: tuple[Section, ...]) -> tuple[Prefix, ...]:
    """The prefixes of wrappers on the names of models and averages."""
    prefixes: list[Prefix] = []
    for part in parts:
        if part.kind not in ("model", "ema"):
            continue
        names = part.names()
        # The number of names that begin with each prefix.
        leading = Counter(filter(None, map(wrapper_prefix, wrapped_names(names))))
        counters = _average_counters(part)
        for prefix, count in leading.items():
            writers = writers_of_prefix(
                prefix, counters=counters, is_average=part.kind == "ema"
            )
            prefixes.append(Prefix(prefix, writers, part, count))
        inner: dict[str, list[str]] = {}
        # One search in all names: most models have no such attribute.
        if "._" in "\n".join(names):
            for name in names:
                for wrapper, place in inner_wrappers(name):
                    inner.setdefault(wrapper, []).append(place)
        for wrapper, places in inner.items():
            # One place is shown by its name, several by what they end with.
            place = places[0] if len(set(places)) == 1 else f"*.{wrapper}."
            writers = writers_of_prefix(wrapper)
            prefixes.append(Prefix(place, writers, part, len(places)))
        prefixes += _inner_prefixes(part)
    return tuple(prefixes)


def _average_counters(part: Section) -> set[str]:
    """The names that a counter of AveragedModel can have: of tensors without
    dimensions.
    """
    tensors = looks_of(part.entries)
    # Most tensors share one object for dtype and shape, so few are looked at.
    single = {tensor for tensor in set(tensors) if not tensor.shape}
    if not single:
        return set()
    return {
        name
        for name, tensor in zip(part.names(), tensors, strict=True)
        if tensor in single and name.endswith(AVERAGE_COUNTERS)
    }


def _inner_prefixes(part: Section) -> Iterator[Prefix]:
    """Yield the places inside of names where DataParallel or DDP is around a part of
    the model.
    """
    # The classes of a pickled module say what it is.
    if not part.is_module:
        yield from _prefixes_at(part, inner_modules(part.names()).sure)


def _prefixes_at(part: Section, places: Iterable[str]) -> Iterator[Prefix]:
    for place, count in names_below(part.names(), places).items():
        yield Prefix(place, writers_of_prefix("module"), part, count)


# --- findings -------------------------------------------------------------------------


def _list_findings(report: Inspection, plan: Plan) -> Iterable[Finding]:
    checkpoint = report.checkpoint
    yield from _import_findings(report.survey, plan)
    yield from _attribute_findings(report.survey, plan)
    yield from _refused_findings(checkpoint, plan)
    yield from _device_findings(report, plan)
    yield from _wrapper_findings(report, plan)
    yield from _sharing_findings(report, plan)
    survey = report.survey
    yield from _extra_findings(survey, plan)
    yield from _adapter_names(report)
    yield from _averages(survey, plan)
    yield from emptied_findings(survey)
    yield from scaled_findings(survey, plan)
    if survey.knows_gradients:
        # Here: a file without an optimizer or a record says nothing of gradients.
        from ckpt.commands.inspect.unused import loose_findings, unused_findings

        yield from unused_findings(survey)
        if survey.record is not None:
            yield from loose_findings(survey.record.record.loose)
        yield from _resume_stops(survey, plan)
        yield from _reordered_findings(survey)
    if survey.record is None and any(part.is_module for part in checkpoint.containers):
        # Here: few files hold modules.
        from ckpt.commands.inspect.unused import loose_findings

        yield from loose_findings(survey.unseen.loose)
    heavy = sum(part.nbytes for part in report.sections if part.kind == "optimizer")
    model = sum(part.nbytes for part in report.sections if part.kind == "model")
    if model and heavy > _HEAVY * model:
        text = f"The optimizer holds {size_text(heavy)}, the model {size_text(model)}."
        yield Finding("optimizer-heavy", text, (), plan(("smaller",)).command)
    for notice in checkpoint.account.notices:
        hint = plan(("indexed",)).command if notice.code in _WRITTEN_ANEW else None
        # It is written anew in any case.
        if notice.code == "container" and checkpoint.is_edited:
            hint = _as_it_is(checkpoint, plan)
        hint = hint or notice.hint
        yield Finding(notice.code, notice.message, notice.tensors, hint)


def _as_it_is(checkpoint: Checkpoint, plan: Plan) -> str | None:
    """The command that writes the same checkpoint, in its format, into another file."""
    to = path_beside(checkpoint.path, ".converted", ())
    return None if to is None else plan(("convert", "-o", to)).command


_WRITTEN_ANEW = ("no-index", "stale-index", "unpacked")
"""Codes that one file with the same content, or shards with an index, mend."""


def _refused_findings(checkpoint: Checkpoint, plan: Plan) -> Iterable[Finding]:
    """Report what weights_only refuses: one finding, or one for each file of a
    folder.
    """
    # The rows of each file: torch loads the files of a folder one by one.
    files: dict[str, list[Refusal]] = {}
    for row in checkpoint.weights_only or ():
        files.setdefault(row.file, []).append(row)
    for file, rows in files.items():
        words = ("plain", file) if file else ("plain",)
        way = Way(None) if checkpoint.traits.names_are_code else plan(words)
        places = dict.fromkeys(chain.from_iterable(row.where for row in rows))
        follows = _ALONE if way.command is not None and way.keeps == "weights" else None
        of = f" {show(file, 80)}:" if file else ""
        text = f"weights_only=True refuses{of} {refusals_text(tuple(rows))}."
        yield Finding(
            "weights-only", text, (), way.command, tuple(places), consequence=follows
        )


def _wrapper_findings(report: Inspection, plan: Plan) -> Iterable[Finding]:
    for prefix in report.prefixes:
        if not prefix.prefix.startswith(("*", *_LEADING)) and prefix.prefix.endswith(
            ".module."
        ):
            yield _wrapped_part(report, prefix, plan, is_sure=True)
            continue
        where = f" of {prefix.section}" if prefix.section else ""
        if prefix.tensors == prefix.of:
            count = f"all {prefix.of:,}"
        else:
            count = f"{prefix.tensors:,} of {prefix.of:,}"
        begin = "contain" if prefix.prefix.startswith("*") else "begin with"
        text = (
            f"{count} names{where} {begin} {prefix.prefix.removeprefix('*')} "
            f"({prefix.writer})."
        )
        names = _prefixed_names(report, prefix)
        hint = plan(("stripped", prefix.section)).command
        yield Finding("prefix", text, names, hint)
    for section in report.sections:
        if section.kind in ("model", "ema") and not section.is_module:
            for prefix in _prefixes_at(
                section, inner_modules(section.names()).possible
            ):
                yield _wrapped_part(report, prefix, plan, is_sure=False)


_LEADING = tuple(f"{part}." for part in WRAPPERS)


def _wrapped_part(
    report: Inspection, prefix: Prefix, plan: Plan, *, is_sure: bool
) -> Finding:
    """The finding on a part of a model with a wrapper around it, or with a child of its
    own that is called `module`.
    """
    part = prefix.prefix.removesuffix("module.")
    where = f" of {prefix.section}" if prefix.section else ""
    names = _prefixed_names(report, prefix)
    if prefix.tensors < prefix.of:
        count = f"{prefix.tensors:,} of {prefix.of:,}"
    else:
        count = f"all {prefix.of:,}"
    if is_sure:
        text = (
            f"{count} names{where} begin with {show(prefix.prefix, 80)} "
            f"({prefix.writer} around {show(part[:-1], 60)})."
        )
        follows = f"Nothing else is below {show(part[:-1], 60)}."
        return Finding(
            "prefix",
            text,
            names,
            plan(("stripped", prefix.section)).command,
            consequence=follows,
        )
    text = (
        f"{count} names{where} begin with {show(prefix.prefix, 80)}: {prefix.writer} "
        f"may be around {show(part[:-1], 60)}."
    )
    # `strip` takes off only what is a wrapper's for sure.
    words = ["rename", "--sub", f"s/^{re.escape(prefix.prefix)}/{part}/"]
    if len(report.survey.candidates) > 1:
        words += ["--section", prefix.section]
    follows = "Or its author called a module so; then the name is right."
    way = plan(tuple(words)) if _PLAIN.fullmatch(prefix.prefix) else Way(None)
    return Finding(
        "prefix", text, names, way.command, raised="info", consequence=follows
    )


_PLAIN = LazyPattern(r"[A-Za-z0-9_.-]+")


def _prefixed_names(report: Inspection, prefix: Prefix) -> tuple[str, ...]:
    """The tensors of a section whose names carry a prefix."""
    mark = prefix.prefix.removeprefix("*")
    part = prefix.part
    # The prefix is looked for in the name inside of the section.
    names = ((entry.name, part.relative(entry.name)) for entry in part.entries)
    return tuple(
        full
        for full, name in names
        if (mark in name if mark != prefix.prefix else name.startswith(mark))
    )


def _import_findings(survey: Survey, plan: Plan) -> Iterable[Finding]:
    """Names that ckpt does not know: one finding for each that loading calls, one for
    all others.
    """
    checkpoint = survey.checkpoint
    # One command mends all of them, so that it is planned once.
    called = [row for row in checkpoint.imports if row.group == "called"]
    way = plan(("weights",)) if called else Way(None)
    follows = _ALONE if way.command is not None and way.keeps == "weights" else None
    for row in called:
        level: Level | None = "warning" if row.is_enum else None
        what = "It looks like a member of an enum." if row.is_enum else follows
        yield Finding(
            "called-on-load", _call_text(row), (), way.command, row.where, level, what
        )
    if any(row.name == RECONSTRUCT for row in called):
        yield from _source_findings(checkpoint)
    files: dict[str, list[Import]] = {}
    for row in checkpoint.imports:
        if row.group == "unknown" and not row.is_script:
            files.setdefault(row.file, []).append(row)
    for file, rows in files.items():
        where = tuple(dict.fromkeys(chain.from_iterable(row.where for row in rows)))
        unknown = [f"{row.module}.{row.name}" for row in rows]
        text = (
            f"Loading {_file_text(file)} imports {and_more(unknown, 3)}, which ckpt "
            "does not know."
        )
        yield Finding(
            "unknown-import", text, (), look_at(checkpoint.path, "--imports"), where
        )


def _source_findings(checkpoint: Checkpoint) -> Iterable[Finding]:
    """Report the source texts of classes that the objects of a file bring along, in one
    finding.
    """
    places: dict[str, str] = {}
    for row in checkpoint.containers:
        kept = persistent_parts(row.node) if type(row.node) is Opaque else None
        if kept is not None:
            places.setdefault(kept.type, row.name)
    if not places:
        return
    classes = and_more([show(name, 60) for name in places], 5)
    text = (
        "DANGER: loading this file runs the Python source that it holds, for "
        f"{classes}."
    )
    first = next(iter(places.values()))
    source = shell_word(f"{first}.{SOURCE}" if first else SOURCE)
    path = pasted_path(checkpoint.path)
    hint = None if source is None or path is None else f"ckpt get {path} {source}"
    yield Finding("code-inside", text, (), hint, tuple(places.values()))


def _attribute_findings(survey: Survey, plan: Plan) -> Iterable[Finding]:
    """Attributes that a known class does not write: one finding for each class."""
    checkpoint = survey.checkpoint
    odd = [row for row in checkpoint.imports if row.group == "odd"]
    way = plan(("plain",)) if odd else Way(None)
    for row in odd:
        names = and_more([show(name, 60) for name in row.attributes], 3)
        text = (
            f"Loading {_file_text(row.file)} sets {names} on {row.module}.{row.name}, "
            "which its class does not write."
        )
        follows = "Do not load it as it is, unless you know who set it."
        yield Finding(
            "unknown-attribute", text, (), way.command, row.where, consequence=follows
        )


def _file_text(name: str) -> str:
    """A file of a folder, or the only one, in a sentence."""
    return show(name, 80) if name else "this file"


def _call_text(row: Import) -> str:
    where = f" (stored at {row.where[0]})" if row.where and row.where[0] else ""
    # A name that is never called in the pickle, but that torch may call later.
    if not row.calls and passes_module(row.name):
        return (
            f"DANGER: loading {_file_text(row.file)} can run anything: {row.module}."
            f"{row.name} leads through what is no class{where}."
        )
    if not row.calls:
        return (
            f"DANGER: loading {_file_text(row.file)} can run anything: it holds "
            f"{row.module}.{row.name} as a value{where}."
        )
    more = ""
    if row.times > 1:
        more = f" and makes {counted_noun(row.times - 1, 'more such call')}"
    if row.attributes == (SHARED_CHANGE,):
        return (
            f"DANGER: loading {_file_text(row.file)} makes {row.module}.{row.name}"
            f"{where}, which changes a value that another place holds{more}."
        )
    if row.attributes:
        names = and_more([show(name, 60) for name in row.attributes], 3)
        return (
            f"DANGER: loading {_file_text(row.file)} sets {names} on "
            f"{row.module}.{row.name}{where}, which torch calls or reads{more}."
        )
    # Of the standard library it is known what it does.
    if is_own(row.module):
        return (
            f"DANGER: loading {_file_text(row.file)} runs {row.calls[0]}{where}{more}."
        )
    return (
        f"Loading {_file_text(row.file)} calls {row.calls[0]}{where}, which ckpt does "
        f"not know{more}."
    )


_GPU = LazyPattern(r"cuda:([0-9]{1,3})")


def _cuda_number(tag: str) -> int:
    """The number of a GPU in the tag of a device, or 0 for any other tag."""
    match = _GPU.fullmatch(tag)
    return 0 if match is None else int(match[1])


def _device_findings(report: Inspection, plan: Plan) -> Iterable[Finding]:
    checkpoint = report.checkpoint
    placed = storage_devices(report)
    # Storages on the CPU and on meta need no device.
    away = {tag: nbytes for tag, nbytes in placed.items() if is_accelerator(tag)}
    if away:
        held = " and ".join(
            f"{size_text(nbytes)} on {tag}" for tag, nbytes in away.items()
        )
        loader = "torch.load"
        if checkpoint.traits.names_are_code:
            loader = checkpoint.traits.load.partition("(")[0]
        follows = None
        if any(tag.partition(":")[0] == "cuda" for tag in away):
            follows = "Each process opens a CUDA context (some hundred MiB)."
            # `cuda:3` needs four GPUs, for their numbers begin at 0.
            last = max(_cuda_number(tag) for tag in away)
            if last > 0:
                follows += f" It needs {last + 1} GPUs."
        way = plan(("rehome",))
        # Nothing moves a program that names a device beside each tensor, and its loader
        # has no map_location.
        if checkpoint.traits.names_are_code and not checkpoint.traits.tags_are_apart:
            way = plan(("extracted",))
            follows = (
                f"{loader} has no map_location, and stops without that device. "
                "convert takes the weights out."
            )
        pairs = zip(names_of(report.entries), looks_of(report.entries), strict=True)
        names = tuple([name for name, look in pairs if look.device in away])
        yield Finding(
            "cuda",
            f"A bare {loader} puts {held}.",
            names,
            way.command,
            consequence=follows,
        )
    named = [row for row in checkpoint.code_devices if is_accelerator(row.device)]
    yield from _in_code(
        named,
        (
            "map_location does not change it: the program runs only where there is "
            "such a device."
        ),
    )
    if any(row.is_traced for row in checkpoint.code_devices):
        others = [row for row in checkpoint.code_devices if row.device == "cpu"]
        yield from _in_code(
            others,
            "Tracing wrote the device of the trace, which neither map_location nor "
            ".to() changes. To run on another device, trace the model there, or script "
            "it.",
        )
    for part in report.sections if len(placed) > 1 else ():
        # Counters stay where the optimizer made them; on meta there is nothing.
        counted = [
            entry
            for entry in part.entries
            if entry.tensor.shape and entry.tensor.device not in (None, "meta")
        ]
        number = Counter(str(entry.tensor.device) for entry in counted)
        if len(number) > 1:
            devices_text = ", ".join(
                f"{count:,} on {tag}" for tag, count in number.items()
            )
            text = (
                f"The tensors of {part.name or 'the file'} are saved on several "
                f"devices: {devices_text}."
            )
            yield Finding("device-mixed", text, tuple(entry.name for entry in counted))


def _reordered_findings(survey: Survey) -> Iterable[Finding]:
    """Optimizers whose state stands in another order than the parameters of their
    model.
    """
    if all(match.models or match.by_name for match in survey.matches):
        return
    from ckpt.evidence.reordered import reordered  # here: few optimizers fit no model

    for row in reordered(survey):
        name = row.match.optimizer.name
        which = "The optimizer" if name in ("", "optimizer") else show(name, 60)
        mine, other = (list(shape) for shape in row.shapes)
        text = (
            f"{which} got the parameters in another order than the model's: its state "
            f"{row.differs} has shape {mine}, parameter {row.differs} of the model "
            f"({show(row.name, 60)}) {other}."
        )
        names = tuple(survey.tensors[index].name for index in row.order)
        if names:
            order = and_more([show(row.model.relative(each), 60) for each in names], 8)
            follows = (
                f"The shapes fit one order: {order}. Build the new optimizer in it."
            )
        elif row.parts:
            order = and_more([show(part, 60) for part in row.parts], 8)
            follows = (
                f"The shapes fit if the parts came so: {order}. Build the new "
                "optimizer in that order."
            )
        else:
            follows = (
                "A new optimizer of model.parameters() loads it without a word, and "
                "gives it to other parameters."
            )
        yield Finding("optimizer-order", text, names, consequence=follows)


def _adapter_names(report: Inspection) -> Iterable[Finding]:
    """Report an adapter in other names than PEFT's."""
    if report.adapter is not None and report.adapter.adapter.style != "PEFT":
        found = report.adapter
        # The format of another method than LoRA begins with that method.
        methods = " and ".join(found.adapter.methods)
        form = found.adapter.format
        said = form if form.startswith(methods) else f"{methods} with {form}"
        text = f"{said}, not those of PEFT (lora_A, lora_B)."
        follows = "A loader of other names finds no layer in it."
        if has_command("warmstart"):
            follows += " ckpt warmstart pairs both."
        if "LoRA" not in found.adapter.methods:
            follows = "A loader of LoRA alone finds no layer in it."
        yield Finding("adapter-names", text, consequence=follows)


_AVERAGES = "model_ema."
"""The attribute of LitEma, which keeps averages in the state dict of the model that
they are averages of.
"""


def _averages(survey: Survey, plan: Plan) -> Iterable[Finding]:
    """Report the averages that a model has among its weights."""
    for part in survey.models:
        every = names_of(part.entries)
        indices = [index for index, name in enumerate(every) if _AVERAGES in name]
        # A model of averages alone is no model with averages.
        if indices and len(indices) < len(every):
            where = show(part.name or "the model", 60)
            text = (
                f"{counted_noun(len(indices), 'tensor')} of {where} are running "
                f"averages (EMA) of others: {_AVERAGES}…"
            )
            follows = (
                "Programs use them for inference, and a strict load without EMA calls "
                "them unexpected."
            )
            names = tuple(every[index] for index in indices)
            yield Finding(
                "averages",
                text,
                names,
                plan(("slim", "--ema")).command,
                consequence=follows,
            )


def _extra_findings(survey: Survey, plan: Plan) -> Iterable[Finding]:
    """Tensors of models that carry no weights, and for which other versions of the code
    have no place.
    """
    if survey.checkpoint.traits.names_are_code:
        return
    for part in survey.sections:
        if part.kind not in ("model", "ema") or part.is_module:
            continue
        names = part.names()
        for kind, chosen in find_extras(names, looks_of(part.entries)).items():
            way = _way_without(survey, part, chosen, names, plan)
            alone = ""
            if way.command is not None and way.keeps == "weights":
                alone = f" {_ALONE}"
            full = tuple(
                f"{part.name}.{name}" if part.path else name for name in chosen
            )
            yield Finding(
                "extra-buffers",
                extras_sentence(kind, full),
                full,
                way.command,
                consequence=extras_consequence(kind)
                + alone.replace("weights alone", "weights without them"),
            )


def _way_without(
    survey: Survey,
    part: Section,
    chosen: Sequence[str],
    names: Sequence[str],
    plan: Plan,
) -> Way:
    """The command that writes the weights without some tensors."""
    globs = exclude_patterns(chosen, names)
    if not globs or len(chosen) == len(names):
        return Way(None)
    words = ["slim"]
    for glob in globs:
        words += ["--exclude", glob]
    # The only model needs no name.
    if len(survey.candidates) > 1 or part not in survey.candidates:
        words += ["--section", part.name]
    return plan(tuple(words))


def _in_code(rows: Sequence[CodeDevice], follows: str) -> Iterable[Finding]:
    """Report the constants of code that are devices."""
    if rows:
        # Bytecode has no lines.
        places = [
            row.file if row.line is None else f"{row.file}:{row.line}" for row in rows
        ]
        tags = show_names(list(dict.fromkeys(row.device for row in rows)))
        text = f"The code names {tags}: {show_names(places)}."
        yield Finding("device-in-code", text, where=tuple(places), consequence=follows)


def _sharing_findings(report: Inspection, plan: Plan) -> Iterable[Finding]:
    ties = tied_weights(report.survey)
    if ties:
        more = ""
        if len(ties) > 1:
            more = f", and {counted_noun(len(ties) - 1, 'more group')} too"
        tied = tuple(chain.from_iterable(ties))
        yield Finding(
            "tied", f"{and_more(ties[0], 4, ' = ')} share their memory{more}.", tied
        )
    # Storages of which a view was saved: torch.save writes the whole storage.
    held = list(holding_storages(report.checkpoint))
    total = sum(row.held for row in held)
    if total >= _BLOAT_BYTES:
        worst = max(held, key=lambda row: row.held)
        more = ""
        if len(held) > 1:
            more = f", and {counted_noun(len(held) - 1, 'more storage')}"
        views = (
            f"{and_more(worst.tensors, 2)} in a storage of "
            f"{size_text(worst.storage.nbytes)}{more}"
        )
        least = "At least " if any(row.is_bound for row in held) else ""
        text = f"{least}{size_text(total)} are stored that no tensor uses: {views}."
        names = tuple(chain.from_iterable(row.tensors for row in held))
        yield Finding("bloat", text, names, plan(("smaller",)).command)


def storage_devices(report: Inspection) -> dict[str, int]:
    """Bytes of the storages on each device: what a bare load puts where."""
    placed: dict[str, int] = {}
    # Storages of one column share their looks, so that few are counted.
    for storage, count in Counter(row_looks(report.checkpoint.storages)).items():
        if storage.device is not None:
            placed[storage.device] = (
                placed.get(storage.device, 0) + count * storage.nbytes
            )
    return placed


Kind = Literal["own", "tied", "packed", "overlapping"]


class StorageUse(NamedTuple):
    """A storage and the tensors over it, in file order.

    `kind`: own (one tensor, or none), tied (all see equal ranges), packed (disjoint
    slices, as cuDNN keeps LSTM weights; some may be tied), overlapping (anything else).
    `used` counts the bytes that tensors see. Where different views overlap it counts
    those from the first to the last, which `slim` keeps: a bound.
    """

    storage: Storage
    tensors: tuple[str, ...]
    kind: Kind
    used: int
    is_bound: bool = False
    """A flag: less than `used` is seen for sure."""

    @property
    def held(self) -> int:
        """Bytes that the storage keeps alive and no tensor sees."""
        return self.storage.nbytes - self.used if self.tensors else 0


def storage_uses(checkpoint: Checkpoint) -> tuple[StorageUse, ...]:
    """Every storage of a checkpoint, in the order in which the file names them."""
    users = _storage_users(checkpoint)
    return tuple(
        [
            _storage_use(storage, users.get(id(storage), []))
            for storage in checkpoint.storages
        ]
    )


def holding_storages(checkpoint: Checkpoint) -> Iterator[StorageUse]:
    """The storages with bytes that no tensor sees, in the order in which the file names
    them.
    """
    # The usual file ends here: each tensor has a storage of its own, and sees all of
    # it.
    if not _is_apart(checkpoint.tensors) or not all(
        map(_is_whole, set(looks_of(checkpoint.tensors)))
    ):
        yield from (row for row in storage_uses(checkpoint) if row.held > 0)


def _is_whole(tensor: Tensor) -> bool:
    """Tell whether a tensor sees all of its storage."""
    if type(tensor) is not TensorRef or 0 in tensor.stride:
        return False
    return tensor.extent[1] - tensor.extent[0] == tensor.storage.nbytes <= tensor.nbytes


def _is_apart(entries: Sequence[Entry]) -> bool:
    """Tell whether each tensor, and each part of one, has a storage of its own.

    The tensors of a column do, unless another tensor has asked for one of their
    storages, which makes it. They do not if the dict of the column has a second place
    in the tree.
    """
    used: list[Storage] = []
    columns: set[int] = set()
    for part in row_parts(entries):
        if isinstance(part, Entries):
            if id(part.tensors) in columns:
                return False
            columns.add(id(part.tensors))
            storages = part.tensors.storages
            used += storages.made if isinstance(storages, Column) else storages
        else:
            for entry in part:
                used += [part_ref.storage for part_ref in parts_of(entry.tensor)]
    return len(set(used)) == len(used)


def _storage_users(checkpoint: Checkpoint) -> dict[int, list[tuple[str, TensorRef]]]:
    """The id of each storage that tensors look into -> their names, and the tensors or
    their parts.
    """
    users: dict[int, list[tuple[str, TensorRef]]] = {}
    for entry in checkpoint.tensors:
        tensor = entry.tensor
        if type(tensor) is TensorRef:
            users.setdefault(id(tensor.storage), []).append((entry.name, tensor))
        else:
            for label, part in tensor.parts:
                users.setdefault(id(part.storage), []).append(
                    (f"{entry.name}[{label}]", part)
                )
    return users


def _storage_use(storage: Storage, users: list[tuple[str, TensorRef]]) -> StorageUse:
    # The names at each range of bytes of the storage, first and one past the last.
    ranges: dict[tuple[int, int], list[str]] = {}
    for name, ref in users:
        ranges.setdefault(ref.extent, []).append(name)
    used, is_bound, overlaps = 0, False, False
    for group in overlapping_groups([ref for _, ref in users]):
        # Views of one group overlap. Equal ones are counted exactly, others by their
        # span.
        span = max(ref.extent[1] for ref in group) - group[0].extent[0]
        seen = {ref.geometry[:4]: _count_seen_bytes(ref) for ref in group}
        used += min(*seen.values(), span) if len(seen) == 1 else span
        is_bound |= len(seen) > 1 and sum(seen.values()) < span
        overlaps |= len({ref.extent for ref in group}) > 1
    kind: Kind = "own"
    if overlaps:
        kind = "overlapping"
    elif len(ranges) > 1:
        kind = "packed"
    else:
        for (first, last), names in ranges.items():
            # Tensors without elements share nothing.
            if len(names) > 1 and last > first:
                kind = "tied"
    return StorageUse(storage, tuple(name for name, _ in users), kind, used, is_bound)


def _count_seen_bytes(ref: TensorRef) -> int:
    """Count the bytes of the elements that a view sees, each once, at most the bytes of
    its extent.
    """
    first, last = ref.extent
    extent = last - first
    # Elements of less than a byte share their bytes.
    if ref.dtype.bits < 8:
        return extent
    return min(unexpanded_view(ref).nbytes, extent)


def tied_weights(survey: Survey) -> list[tuple[str, ...]]:
    """The names of weights that are one and the same memory, a group each.

    Averages may share buffers with their model and are compared on their own. What
    other sections share, the parts of one tensor, what a quantized layer packs and
    single numbers that are no parameters are no weights.
    """
    # Each group of sections is searched on its own.
    averages = [[section] for section in survey.sections if section.kind == "ema"]
    ties: list[tuple[str, ...]] = []
    if _is_apart(survey.tensors):
        return ties
    ids: list[int] = []
    for entry in survey.tensors:
        ids += [id(part.storage) for part in parts_of(entry.tensor)]
    # Most storages have one user, and are passed by without a key.
    uses = Counter(ids)
    for sections in (survey.candidates, *averages):
        groups: dict[tuple[tuple[Storage, tuple[int, int]], ...], list[str]] = {}
        for index, entry in _named_entries(sections):
            parts = parts_of(entry.tensor)
            if all(uses[id(part.storage)] < 2 for part in parts):
                continue
            if entry.tensor.shape or survey.roles[index].role == "parameter":
                memory = tuple((part.storage, part.extent) for part in parts)
                groups.setdefault(memory, []).append(entry.name)
        for memory, names in groups.items():
            # Empty tensors share nothing, wherever they are.
            has_bytes = any(last > first for _, (first, last) in memory)
            if len(names) > 1 and has_bytes:
                ties.append(tuple(names))
    return list(dict.fromkeys(ties))


def _named_entries(sections: Iterable[Section]) -> Iterator[tuple[int, Entry]]:
    """The tensors that state_dict() lists by a name of their own, not within the tuple
    of a packed layer.
    """
    for section in sections:
        depth = len(section.path)
        for index, entry in zip(section.indices, section.entries, strict=True):
            if entry.registered and not any(
                isinstance(step, int) for step in entry.path[depth:]
            ):
                yield index, entry

"""`ckpt stats`: the numbers inside of tensors, in one pass over their bytes; which
channels are dead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import isfinite, isnan, prod, sqrt
from typing import Literal

from ckpt.bytes.executor import Executor, Failed, Local, Task, run_each
from ckpt.elements.audit import DAMAGED, are_damaged
from ckpt.elements.cast import has_numbers
from ckpt.elements.computed import place_of
from ckpt.elements.measure import (
    ChannelLayout,
    Channels,
    Measurement,
    Summary,
    measure_tasks,
    merge_measurements,
)
from ckpt.elements.spans import drop_repeats, refuse_overlaps
from ckpt.elements.unpacked import can_unpack, unpacked
from ckpt.evidence.record import record_of
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.unread import unread_parts
from ckpt.evidence.weights import codes_finding, codes_of
from ckpt.model.account import Absence
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import UnsupportedError, UsageError, about
from ckpt.model.findings import Finding, Gate, order
from ckpt.model.names import Globs, natural_sort_key
from ckpt.model.places import Checksum
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef, unwrap_dtensor
from ckpt.model.text import (
    LONG_NAME,
    Json,
    and_more,
    be_verb,
    counted_noun,
    show,
    show_name,
    show_names,
)
from ckpt.surface.reports import document_head, reduce_report, shown_as_html
from ckpt.tree.find import node_at
from ckpt.tree.json import number_json
from ckpt.tree.view import look

_TRANSPOSED = re.compile(
    (
        r"(?:^|[._])(?:deconv|conv_?transpose|transposed?|up_?conv|up_?sample|up"
        r"|decoder|gen(?:erator)?)\d*(?=[._]|$)"
    ),
    re.I,
)
_CONVOLUTION = re.compile(r"conv|features|layer|block|stem|down|encoder|backbone", re.I)
_LOOKED_UP = re.compile(
    (
        r"(?:^|[._])(?:\w*emb(?:ed(?:ding)?)?s?|wte|wpe|\w*position\w*"
        r"|relative\w*)\d*(?=[._]|$)"
    ),
    re.I,
)
"""Embedding tables: a row of zeros there is an unused word, not a dead channel."""


class Axis(NamedTuple):
    """The dimension of a weight along which its output channels lie, and how that is
    known.
    """

    dim: int
    why: str


def axis_of(
    name: str, ref: TensorRef, siblings: Mapping[str, tuple[int, ...]], cls: str | None
) -> Axis | Literal["ambiguous"] | None:
    """Return the axis of the output channels of a weight, or None if a tensor has no
    channels.

    `siblings` are the shapes of the tensors of the same module by the last part of
    their name, `cls` the class of that module where a file says it.
    """
    parent, _, leaf = name.rpartition(".")
    shape = ref.shape
    # `weight_orig` is the weight that torch.nn.utils.prune keeps beside its mask.
    if leaf not in ("weight", "weight_orig"):
        return None
    if ref.dtype.kind not in ("float", "complex") or not ref.numel:
        return None
    kind = (cls or "").rpartition(".")[2]
    if not shape:
        return None
    # Without statistics beside it a vector may be anything, such as a gate.
    if len(shape) == 1:
        if "running_mean" not in siblings:
            return None
        return Axis(0, "the scale of a normalization layer")
    # `[out, in]`, as torch.nn.Linear has it.
    if len(shape) == 2:
        if "Embedding" in kind or (not kind and _LOOKED_UP.search(name)):
            return None
        return Axis(0, kind or "the rows of a linear weight")
    # Convolutions are `[out, in, …]`, transposed ones `[in, out, …]`: the bias has
    # `out`.
    bias = siblings.get("bias")
    if kind.startswith(("ConvTranspose", "LazyConvTranspose")):
        # With groups there are more channels than the second dimension has, so the bias
        # decides.
        return Axis(1, kind) if bias == (shape[1],) else "ambiguous"
    if kind.startswith(("Conv", "LazyConv")):
        return Axis(0, kind)
    if bias is not None and bias != (shape[0],):
        if bias != (shape[1],):
            return "ambiguous"
        return Axis(1, "as many as the bias, a transposed convolution")
    # A square weight fits its bias in both directions.
    if bias is not None and shape[0] != shape[1]:
        return Axis(0, "as many as the bias")
    if _TRANSPOSED.search(parent):
        return "ambiguous"
    if shape[0] == shape[1] and not _CONVOLUTION.search(parent):
        # It could be either, and nothing says that it is the common one.
        return "ambiguous"
    return Axis(0, "the first dimension of a convolution")


def inner_numel(ref: TensorRef, axis: Axis) -> int:
    """Elements that lie side by side in one channel."""
    return prod(ref.shape[axis.dim + 1 :])


KEYS = ("name", "min", "max", "mean", "std", "rms", "zeros", "nan", "inf", "numel")
"""The words of `--sort`. Names are sorted in natural order, numbers with the largest
first.
"""


class DeadChannels(NamedTuple):
    """The channels of one weight: how many, and those below the threshold."""

    axis: Axis | None
    total: int
    dead: tuple[int, ...]


class Row(NamedTuple):
    """A tensor and its numbers. `label` is its name inside of its section; `why` says
    why it has no numbers, or of which values they are.
    """

    entry: Entry
    label: str
    found: Summary | None
    channels: DeadChannels | None = None
    why: str = ""
    unread: bool = False
    """A flag: its bytes could not be read. `why` says the reason then."""

    def __repr__(self) -> str:
        numbers = self.why
        if self.found is not None:
            numbers = (
                f"min {_short_number(self.min)}, max {_short_number(self.max)}, "
                f"mean {_short_number(self.mean)}"
            )
        tensor = self.entry.tensor
        return (
            f"<Row {show(self.name)} {tensor.dtype.name} {list(tensor.shape)}: "
            f"{show(numbers, 120)}>"
        )

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.entry.name

    @property
    def min(self) -> float | None:
        """The least finite element; None without any."""
        return None if self.found is None else self.found.low

    @property
    def max(self) -> float | None:
        """The greatest finite element; None without any."""
        return None if self.found is None else self.found.high

    @property
    def zeros(self) -> int:
        """The elements that are zero."""
        return 0 if self.found is None else self.found.zeros

    @property
    def nan(self) -> int:
        """The elements that are NaN."""
        return 0 if self.found is None else self.found.nan

    @property
    def inf(self) -> int:
        """The elements that are infinite."""
        return 0 if self.found is None else self.found.inf

    @property
    def std(self) -> float | None:
        """The standard deviation of the finite elements, with n − 1 as torch has it;
        None below two.
        """
        # NaN and Inf are counted apart, and are in no other number.
        if self.found is None or self.found.finite < 2:
            return None
        return sqrt(self.found.spread / (self.found.finite - 1))

    @property
    def rms(self) -> float | None:
        """The root of the mean square of the finite elements."""
        if self.found is None or not self.found.finite:
            return None
        return sqrt(self.found.squares / self.found.finite)

    @property
    def mean(self) -> float | None:
        return self.found.mean if self.found and self.found.finite else None

    def value(self, key: str) -> float | None:
        """One of its numbers by the word of `--sort`."""
        summary = self.found
        if summary is None:
            return None
        return {
            "min": summary.low,
            "max": summary.high,
            "mean": self.mean,
            "std": self.std,
            "rms": self.rms,
            "zeros": summary.zeros / summary.numel if summary.numel else 0.0,
            "nan": float(summary.nan),
            "inf": float(summary.inf),
            "numel": float(summary.numel),
        }[key]


def _short_number(value: float | None) -> str:
    return "None" if value is None else f"{value:.4g}"


@shown_as_html("ckpt.commands.stats.text", "html_stats")
class StatsReport(NamedTuple):
    """The numbers of the tensors of one section."""

    checkpoint: Checkpoint
    section: Section
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    threshold: float | None = None
    histogram: bool = False
    """A flag: the elements of each tensor were counted in bins."""
    gate: Gate = Gate()
    missing: tuple[Absence, ...] = ()
    """The tensors that are lost, and where all was asked for the parts of a folder that
    could not be read; and why.
    """

    @property
    def path(self) -> str:
        """The path of the checkpoint."""
        return self.checkpoint.path

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 2 where something could not be read, 1 where
        the gate closes.
        """
        return 2 if self.unread or self.missing else self.gate.code(self.findings)

    def __repr__(self) -> str:
        tensors = counted_noun(len(self.rows), "tensor")
        findings = counted_noun(len(self.findings), "finding")
        return f"<ckpt.StatsReport {show(self.path)}: {tensors}, {findings}>"

    @property
    def unread(self) -> tuple[Row, ...]:
        """The tensors that were not measured, because their bytes could not be read."""
        return tuple(row for row in self.rows if row.unread)

    @property
    def sparsity(self) -> tuple[int, int]:
        """(elements that are zero, elements)."""
        summaries = [row.found for row in self.rows if row.found is not None]
        zeros = sum(summary.zeros for summary in summaries)
        numel = sum(summary.numel for summary in summaries)
        return zeros, numel

    def modules(self) -> list[tuple[str, int, int]]:
        """For each module that holds tensors: its name, elements that are zero,
        elements.
        """
        zeros: dict[str, int] = {}
        numel: dict[str, int] = {}
        for row in self.rows:
            if row.found is not None:
                module, _, _ = row.label.rpartition(".")
                zeros[module] = zeros.get(module, 0) + row.found.zeros
                numel[module] = numel.get(module, 0) + row.found.numel
        return [(module, zeros[module], numel[module]) for module in zeros]

    def __reduce__(self) -> tuple[object, ...]:
        return reduce_report(self.checkpoint.path, StatsReport, *self)

    def __copy__(self) -> StatsReport:
        return self

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.stats`; docs/json.md is its contract."""
        zeros, numel = self.sparsity
        unread = [row.entry.name for row in self.unread]
        unread += [name for name, _ in self.missing]
        return {
            **document_head("ckpt.stats", 1),
            "file": {"path": self.checkpoint.path, "format": self.checkpoint.format},
            "section": self.section.name,
            "totals": {"tensors": len(self.rows), "numel": numel, "zeros": zeros},
            "tensors": [_row_json(row, self.histogram) for row in self.rows],
            "modules": [
                {"name": name, "zeros": zeros_inside, "numel": numel_inside}
                for name, zeros_inside, numel_inside in self.modules()
            ],
            "threshold": self.threshold,
            "findings": [finding.to_json() for finding in self.findings],
            **({"unread": unread} if unread else {}),
        }


def _row_json(row: Row, histogram: bool) -> dict[str, Json]:
    document: dict[str, Json] = {
        "name": row.entry.name,
        "dtype": row.entry.tensor.dtype.name,
        "shape": list(row.entry.tensor.shape),
        "why_not": row.why or None,
    }
    summary = row.found
    if summary is not None:
        numbers = {
            "min": summary.low,
            "max": summary.high,
            "mean": row.mean,
            "std": row.std,
            "rms": row.rms,
        }
        for key, value in numbers.items():
            document |= number_json(key, value)
        document |= {
            "numel": summary.numel,
            "zeros": summary.zeros,
            "nan": summary.nan,
            "inf": summary.inf,
        }
        if histogram:
            bins = summary.histogram
            document["histogram"] = None if bins is None else bins.to_json()
    if row.channels is not None:
        axis = row.channels.axis
        document["channels"] = {
            "dim": None if axis is None else axis.dim,
            "why": "ambiguous" if axis is None else axis.why,
            "count": row.channels.total,
            "dead": list(row.channels.dead),
        }
    return document


def stats(
    survey: Survey,
    select: Globs | None = None,
    section: str | None = None,
    *,
    threshold: float | None = None,
    sort: str = "name",
    everything: bool = False,
    histogram: bool = False,
    progress: Callable[[int], None] | None = None,
    executor: Executor | None = None,
    checksums: bool = True,
) -> StatsReport:
    """The numbers of the tensors of the only model, or of a section; of `everything`
    when asked, or without a model.

    With a `threshold` channels are looked at: one is dead whose mean magnitude is less
    than that share of the largest one's. With `histogram` the finite elements of each
    tensor are counted in bins. What cannot be read is a row without numbers, one of
    `unread`, and with `checksums` also what does not match its recorded checksum.
    Raises UsageError.
    """
    if sort not in KEYS:
        raise UsageError(f"--sort {show(sort, 40)}: not one of {' '.join(KEYS)}")
    checkpoint = survey.checkpoint
    chosen = survey.everything if everything else survey.model_or_all(section)
    inside = chosen.selected(select, survey.path)
    # Channels are looked at only with a threshold.
    layers = _Layers(checkpoint, chosen) if threshold is not None else None
    codes = codes_of(survey)
    plans = []
    for entry in inside:
        # The codes of a packing have no channels of the layer.
        layers_of_entry = None if entry.name in codes else layers
        label = chosen.relative(entry.name)
        plans.append(_plan_entry(entry, label, layers_of_entry, histogram, checksums))
    nbytes = sum(task.nbytes for plan in plans for task in plan.tasks)
    with about(survey.path):
        refuse_overlaps([entry.tensor for entry in inside], nbytes)
    measurements = _measure_plans(
        plans, executor or Local(), progress, checksums=checksums
    )
    rows = [
        _stats_row(plan, measured, threshold)
        for plan, measured in zip(plans, measurements, strict=True)
    ]
    rows = _sort_rows(rows, sort)
    named = rows
    if len(survey.models) > 1:  # then a name inside of one does not say which
        named = [row._replace(label=row.entry.name) for row in rows]
    findings = [
        *_stats_findings(named),
        *codes_finding([row.name for row in rows if row.name in codes]),
    ]
    return StatsReport(
        checkpoint,
        chosen,
        tuple(rows),
        order(findings),
        threshold,
        histogram,
        missing=unread_parts(checkpoint, chosen),
    )


def _sort_rows(rows: list[Row], key: str) -> list[Row]:
    if key == "name":
        return sorted(rows, key=lambda row: natural_sort_key(row.label))
    pairs: list[tuple[float, Row]] = []
    rest: list[Row] = []
    for row in rows:
        value = row.value(key)
        if value is None or isnan(value):
            rest.append(row)
        else:
            pairs.append((value, row))
    # Not `reverse`, which would turn the rows of one number around.
    pairs.sort(key=lambda pair: -pair[0])
    return [row for _, row in pairs] + rest


class _Plan(NamedTuple):
    """The work on a tensor: `tasks` make its numbers, and each number counts
    `times`.
    """

    entry: Entry
    label: str
    tasks: list[Task[Measurement]]
    times: int = 1
    axis: Axis | Literal["ambiguous"] | None = None
    why: str = ""
    has_numbers: bool = True
    checksum: Checksum | None = None
    """The recorded checksum of the bytes that the tasks read, if it is to be compared
    and they read them as they are.
    """


class _Layers:
    """The known facts of the layers of a section: the shapes in each, and its class if
    a file says it.
    """

    def __init__(self, checkpoint: Checkpoint, section: Section) -> None:
        self._siblings: dict[str, dict[str, tuple[int, ...]]] = {}
        for entry in section.entries:
            parent, _, leaf = section.relative(entry.name).rpartition(".")
            self._siblings.setdefault(parent, {})[leaf] = entry.tensor.shape
        record = record_of(checkpoint)
        if record is not None:
            self._classes = record.modules
        else:
            self._classes = _module_classes(checkpoint, section)

    def axis_of(self, label: str, ref: TensorRef) -> Axis | Literal["ambiguous"] | None:
        parent = label.rpartition(".")[0]
        return axis_of(label, ref, self._siblings[parent], self._classes.get(parent))


def _plan_entry(
    entry: Entry, label: str, layers: _Layers | None, histogram: bool, checksums: bool
) -> _Plan:
    # The local part of a DTensor.
    ref = unwrap_dtensor(entry.tensor)
    if not isinstance(ref, TensorRef):
        # The zeros of a sparse tensor are not stored, so they are not counted.
        values = [part for name, part in ref.parts if name == "values"]
        if ref.layout.startswith("sparse") and values:
            plan = _Plan(entry, label, [], why="the values that are stored")
            return _plan_measuring(plan, values[0], histogram, crc=False)
        return _Plan(entry, label, [], why=ref.layout, has_numbers=False)
    if ref.numel and ref.storage.place is None:
        return _Plan(entry, label, [], why="on meta, without data", has_numbers=False)
    if can_unpack(ref):
        ref = unpacked(ref)
    if not has_numbers(ref.dtype):
        why = f"no numbers are read of {ref.dtype.name}"
        return _Plan(entry, label, [], why=why, has_numbers=False)
    axis = None if layers is None else layers.axis_of(label, ref)
    plan = _Plan(entry, label, [], axis=axis)
    return _plan_measuring(plan, ref, histogram, crc=checksums)


def _plan_measuring(
    plan: _Plan, ref: TensorRef, histogram: bool, *, crc: bool
) -> _Plan:
    """The plan with the tasks that measure a tensor."""
    axis = plan.axis
    # Channels need all elements in order; repeated elements are read once otherwise.
    layout = None
    times = 1
    if isinstance(axis, Axis):
        layout = ChannelLayout(ref.shape[axis.dim], inner_numel(ref, axis))
    elif ref.numel:
        ref, times = drop_repeats(ref)
    # The CRC is made of the blocks as they are measured: no byte is read twice.
    checksum = None
    place = ref.storage.place
    if crc and ref.numel and place is not None and place.run is not None:
        checksum = place_of(ref).checksum_of(0, ref.nbytes)
    try:
        tasks = measure_tasks(
            ref, layout, histogram=histogram, crc=checksum is not None
        )
        return plan._replace(tasks=tasks, times=times, checksum=checksum)
    except UnsupportedError as error:
        return plan._replace(why=error.problem, axis=None, has_numbers=False)


def _measure_plans(
    plans: Sequence[_Plan],
    executor: Executor,
    progress: Callable[[int], None] | None,
    *,
    checksums: bool,
) -> list[Measurement | Failed]:
    """Return the numbers of each tensor, put together from the numbers of its spans."""
    tasks = list(chain.from_iterable(plan.tasks for plan in plans))
    results = iter(run_each(executor, tasks, progress))
    measurements: list[Measurement | Failed] = []
    for plan in plans:
        # Results come in the order of the tasks.
        spans = [next(results) for _ in plan.tasks]
        measurements.append(_merge_spans(plan, spans))
    if not checksums:
        return measurements
    # Of the rest all bytes were read, and compared on the way.
    others = [number for number, plan in enumerate(plans) if plan.checksum is None]
    damaged = are_damaged([plans[number].entry.tensor for number in others], executor)
    for number, is_damaged in zip(others, damaged, strict=True):
        if is_damaged:
            measurements[number] = Failed(DAMAGED)
    return measurements


def _merge_spans(
    plan: _Plan, parts: Sequence[Measurement | Failed]
) -> Measurement | Failed:
    measurements: list[Measurement] = []
    for part in parts:
        if isinstance(part, Failed):
            return part
        measurements.append(part)
    whole = merge_measurements(measurements)
    if whole.crc is not None and plan.checksum is not None:
        crc, _ = whole.crc
        if crc != plan.checksum.crc:
            return Failed(DAMAGED)
    return whole


def _stats_row(
    plan: _Plan, measurement: Measurement | Failed, threshold: float | None
) -> Row:
    if not plan.has_numbers:
        return Row(plan.entry, plan.label, None, why=plan.why)
    if isinstance(measurement, Failed):
        why = f"unreadable: {measurement.problem}"
        return Row(plan.entry, plan.label, None, why=why, unread=True)
    measurement.summary.repeated(plan.times)
    row = Row(plan.entry, plan.label, measurement.summary, why=plan.why)
    if plan.axis == "ambiguous":
        return row._replace(channels=DeadChannels(None, 0, ()))
    if plan.axis is None or measurement.channels is None or threshold is None:
        return row
    numel = plan.entry.tensor.numel
    channels = _dead_channels(numel, plan.axis, measurement.channels, threshold)
    return row._replace(channels=channels)


def _dead_channels(
    numel: int, axis: Axis, channels: Channels, threshold: float
) -> DeadChannels:
    """The channels whose mean magnitude is below a share of the largest one's, among
    channels with finite sums.
    """
    # Each channel has `numel / len(sums)` elements.
    means = [total * len(channels.sums) / numel for total in channels.sums.tolist()]
    largest = max((mean for mean in means if isfinite(mean)), default=0.0)
    dead: list[int] = []
    for number, mean in enumerate(means):
        # Where all are zero none is below the largest one, and all are dead.
        if mean < threshold * largest or (mean == 0 and largest == 0):
            dead.append(number)
    return DeadChannels(axis, len(means), tuple(dead))


def _module_classes(checkpoint: Checkpoint, section: Section) -> dict[str, str]:
    """The classes of the modules of a pickled model, by their names."""
    if not section.is_module:
        return {}
    classes: dict[str, str] = {}
    for row in checkpoint.containers:
        if row.is_module and row.path[: len(section.path)] == section.path:
            is_root = row.name == section.name
            classes["" if is_root else section.relative(row.name)] = row.type
    for entry in section.entries:
        parent, _, _ = section.relative(entry.name).rpartition(".")
        if parent not in classes and "_parameters" in entry.path:
            # The key of a parameter stands behind this one, and ends the path.
            # `…, module, "_parameters", key`: the path up to the module.
            end = entry.path.index("_parameters", len(entry.path) - 2)
            node = node_at(checkpoint.root, entry.path[:end])
            classes[parent] = look(node).type
    return classes


def _stats_findings(rows: Sequence[Row]) -> list[Finding]:
    findings = []
    # One finding for each code, with all tensors that have it.
    for code, label, counts in (
        ("nan", "NaN", [row.nan for row in rows]),
        ("inf", "infinite", [row.inf for row in rows]),
    ):
        bad = [row for row, count in zip(rows, counts, strict=True) if count]
        if bad:
            total = sum(counts)
            verb = be_verb(total)
            names = show_names([row.label for row in bad], limit=LONG_NAME)
            text = f"{counted_noun(total, 'element')} {verb} {label} in {names}."
            findings.append(Finding(code, text, tuple(row.entry.name for row in bad)))
    dead = [
        (row, row.channels)
        for row in rows
        if row.channels is not None and row.channels.dead
    ]
    if dead:
        total = sum(len(channels.dead) for _, channels in dead)
        layers = and_more([_dead_text(*pair) for pair in dead], 4, "; ")
        verb = be_verb(total)
        text = f"{counted_noun(total, 'output channel')} {verb} almost zero: {layers}."
        findings.append(
            Finding("dead-channels", text, tuple(row.entry.name for row, _ in dead))
        )
    return findings


def _dead_text(row: Row, channels: DeadChannels) -> str:
    """`conv.weight 3, 17 (2 of 64)`."""
    if len(channels.dead) == channels.total:
        return f"{show_name(row.label, LONG_NAME)} (all {channels.total:,})"
    numbers = and_more([str(number) for number in channels.dead], 8)
    count = f"{len(channels.dead):,} of {channels.total:,}"
    return f"{show_name(row.label, LONG_NAME)} {numbers} ({count})"

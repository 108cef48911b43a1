"""`ckpt inspect` as text: what the file is, its parts, its tensors folded, the findings, how to load it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpt.checkpoint import Value
from ckpt.evidence.optimizers import optimizer
from ckpt.evidence.record import ModelRecord, record_of
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import adapted_layers
from ckpt.findings import Way
from ckpt.jobs.inspect.inspect import InspectReport, Prefix, Row
from ckpt.nodes import Node
from ckpt.render.findings import finding_lines, safe
from ckpt.render.folding import Fold, Leaf, fold, lines
from ckpt.render.tables import value_text
from ckpt.render.text import Line, cells, columns, cut, wrapped
from ckpt.tensors import Composite, Tensor
from ckpt.text import and_more, count_text, folded, plural, show, size_text
from ckpt.tree.literals import scalar_text
from ckpt.tree.steps import REGISTERED
from ckpt.tree.view import UNINITIALIZED, look

if TYPE_CHECKING:
    from ckpt.jobs.inspect.index import ParameterIndex

_VALUES = 8
_SECTIONS = 20
_FINDINGS = 10
"""Lines for one code; the calls that loading would make are never left out."""
_WIDTH = 100
"""Columns that lines of values fill in a pipe."""


def inspect_lines(
    report: InspectReport, *, width: int | None = None, depth: int | None = None, everything: bool = False
) -> list[Line]:
    """The report as a person reads it."""
    out = headline(report, width)
    out += calls(report, width)
    out += _parts(report, width)
    if report.rows:
        out.append([])
        out += _tensors(report, width, depth, everything)
    out += closing(report, width)
    return out


def closing(report: InspectReport, width: int | None = None) -> list[Line]:
    """The findings, broken to fit `width`, and how to load the file: that line stays whole, to be pasted."""
    out: list[Line] = [[]]
    counts: dict[str, int] = {}
    for finding in report.findings:
        # Said above; or said by the line that tells how to load the file, which is about the weights of a folder.
        said = ("called-on-load",) if report.checkpoint.members else ("called-on-load", "weights-only")
        if finding.code in said:
            continue
        count = counts[finding.code] = counts.get(finding.code, 0) + 1
        if count <= _FINDINGS:
            out += finding_lines(finding, width)
    for code, count in counts.items():
        if count > _FINDINGS:
            out.append([(f"… {count - _FINDINGS:,} more {code} (--json)", "dim")])
    return out + _loading(report)


def calls(report: InspectReport, width: int | None = None) -> list[Line]:
    """What loading would run, broken to fit `width`; it stands above everything else."""
    out: list[Line] = []
    for finding in report.findings:
        if finding.code == "called-on-load":
            text = safe(finding.message)
            text = text if text.startswith("DANGER") else f"! {finding.code}: {text}"
            first, *more = wrapped(text, width)
            out.append([(first, "error")])
            out += [[(f"  {line}", "error")] for line in more]
    return out


# --- the first lines ------------------------------------------------------------------------------------------


def headline(report: InspectReport, width: int | None = None) -> list[Line]:
    """The first line: what the file is; broken to fit `width`."""
    checkpoint = report.checkpoint
    rows = report.rows
    text = checkpoint.layout or checkpoint.traits.label
    if checkpoint.parts:
        text += f", {plural(len(checkpoint.parts), 'member' if checkpoint.traits.is_archive else 'file')}"
    if checkpoint.byteorder == "big":
        text += ", big-endian"
    text += f", {plural(len(rows), 'tensor')}" + (" selected" if report.selected else "")
    if rows:
        tensors = [row.entry.tensor for row in rows]
        numel, nbytes = sum(tensor.numel for tensor in tensors), sum(tensor.nbytes for tensor in tensors)
        text += f", {count_text(numel)} {'element' if numel == 1 else 'elements'}, {size_text(nbytes)}"
        # A wrapper shows a dtype that none of its parts may have: no word about all is true then.
        wrapped_parts = [part for tensor in tensors if tensor.layout == "wrapper" for _, part in tensor.parts]
        dtypes = {tensor.dtype.name for tensor in [*tensors, *wrapped_parts]}
        if len(dtypes) == 1:
            text += f", all {dtypes.pop()}"
        text += _places(report)
    path = show(checkpoint.path, None)
    first, *more = wrapped(f"{path}  {text}", width)
    if not first.startswith(path):  # a path with blanks that is longer than a line
        return [[(path, "name")], [(f"  {text}", "")]]
    return [[(path, "name"), (first[len(path) :], "")], *([(f"  {line}", "")] for line in more)]


def _places(report: InspectReport) -> str:
    """Where the tensors are saved: one device, or the bytes on each device."""
    tags = {row.entry.tensor.device for row in report.rows}
    if len(tags) < 2:
        return "".join(f" on {show(tag, 40)}" for tag in tags if tag is not None)
    found: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.tensor.device is not None:
            found.setdefault(row.tensor.device, []).append(row)
    if len(found) < 2:  # and tensors of no known place
        return ""
    texts = []
    for tag, rows in sorted(found.items(), key=lambda item: -sum(row.tensor.nbytes for row in item[1])):
        text = f"{size_text(sum(row.tensor.nbytes for row in rows))} on {show(tag, 40)}"
        if all(not row.tensor.shape for row in rows):
            steps = all(row.entry.path and row.entry.path[-1] == "step" for row in rows)
            text += " (step counters)" if steps else " (0-dim counters)"
        texts.append(text)
    return ": " + ", ".join(texts)


def _parts(report: InspectReport, width: int | None) -> list[Line]:
    """One line per section, when there is more than the weights; then the values."""
    out: list[Line] = []
    groups: dict[tuple[str, str], list[Section]] = {}  # loose tensors under one key are one line
    for part in report.sections:
        if part.path or part.kind == "optimizer":
            groups.setdefault((part.name if part.path else part.kind, part.kind), []).append(part)
    if groups and not report.selected:
        prefixes: dict[str, list[Prefix]] = {}
        for prefix in report.prefixes:
            prefixes.setdefault(prefix.section, []).append(prefix)
        shown = list(groups.items())[:_SECTIONS]
        size = max(cells(show(name, 40)) for (name, _), _ in shown)
        for (name, kind), parts in shown:
            label = "" if kind in (name, "other") else f"{kind}, "
            record = record_of(report.checkpoint) if kind == "snapshot" else None
            text = label + (_part(parts, prefixes.get(name, [])) if record is None else _snapshot(record))
            label = f"  {show(name, 40).ljust(size)}  "
            first, *more = wrapped(text, None if width is None else max(width - len(label), 20), 0)
            out.append([(label, "name"), (first, "")])
            out += [[(f"{' ' * len(label)}{line}", "")] for line in more]
        if len(groups) > _SECTIONS:
            out.append([(f"  … {plural(len(groups) - _SECTIONS, 'more section')} (--json)", "dim")])
    for text in _side_by_side(_values(report), width or _WIDTH):
        out.append([(f"  {text}", "")])
    layers = adapted_layers(row.relative for row in report.rows)
    if layers and not report.selected:
        text = f"LoRA changes {plural(len(layers), 'layer')} of the base model: {folded(layers, 6)}"
        out += [[(f"  {line}", "")] for line in wrapped(text, width)]
    lazy = [value.name for value in report.values if value.type in UNINITIALIZED]
    if lazy:
        text = f"uninitialized, for their lazy modules have not run: {folded(lazy, 6)}"
        out += [[(f"  {line}", "")] for line in wrapped(text, width)]
    return out


def _side_by_side(pieces: Sequence[str], width: int) -> list[str]:
    """Pieces side by side, in lines of at most `width` cells."""
    out: list[str] = []
    for piece in pieces:
        piece = cut(piece, width - 2)
        if out and cells(out[-1]) + 3 + cells(piece) <= width - 2:
            out[-1] += f" · {piece}"
        else:
            out.append(piece)
    return out


def _part(parts: Sequence[Section], prefixes: Sequence[Prefix]) -> str:
    part = parts[0]
    tensors = sum(each.tensors for each in parts)
    numel = sum(each.numel for each in parts)
    nbytes = sum(each.nbytes for each in parts)
    if part.kind == "optimizer":
        facts = optimizer(part)
        if facts is None:
            return f"{plural(tensors, 'tensor')}  {size_text(nbytes)}"
        kind = "no state yet" if not facts.with_state else facts.family or "with state"
        verb = "has" if facts.parameters == 1 else "have"
        text = f"{kind}, {facts.with_state:,} of {plural(facts.parameters, 'parameter')} {verb} state"
        if facts.family == "LBFGS":  # keeps all of it under its first parameter
            text = f"LBFGS, one state for {plural(facts.parameters, 'parameter')}"
        text += f"  {size_text(nbytes)}" if nbytes else ""
        rates = ", ".join(f"{rate:g}" for rate in facts.rates[:4])
        return text + (f"   lr {rates}" if rates else "")
    if not tensors:
        return "no tensors"
    prefix_text = f"module {show(look(part.node).type, 80)}, " if part.is_module else ""
    text = f"{prefix_text}{plural(tensors, 'tensor')}  {count_text(numel)} el.  {size_text(nbytes)}"
    if part.kind in ("model", "ema"):
        for prefix in prefixes[:3]:
            text += f"   prefix {prefix.prefix} ({prefix.writer})"
    return text


def _snapshot(record: ModelRecord) -> str:
    """What a snapshot was taken of, and when."""
    text = show(record.modules.get("", "a module").rpartition(".")[2], 60)
    if record.wrappers:
        text += f" in {show(', '.join(wrapper.rpartition('.')[2] for wrapper in record.wrappers), 80)}"
    devices = dict.fromkeys(known.device for known in record.tensors.values())
    text += f" on {show(', '.join(devices), 60)}" if devices else ""
    if record.world_size > 1:
        text += f", rank {record.rank} of {record.world_size}"
    numbered = record.numbered
    had = sum(record.tensors[name].gradient is not None for name in numbered)
    text += f", {had:,} of {plural(len(numbered), 'parameter')} had a gradient"
    return text + (
        f", left out: {', '.join(show(name, 40) for name, _ in record.left_out[:4])}"
        if record.left_out
        else ""
    )


def _fact(node: Node) -> str:
    """A value that a document of a folder says of all of it."""
    return f"{node:g}" if isinstance(node, float) else cut(scalar_text(look(node)), 60)


def _values(report: InspectReport) -> list[str]:
    """The values outside of the sections, one piece a top-level key."""
    if report.selected:
        return []
    containers = report.checkpoint.containers
    is_module = bool(containers) and containers[0].is_module and not containers[0].path
    covered = {part.path for part in report.sections if part.path}
    depths = {len(path) for path in covered}
    groups: dict[object, list[Value]] = {}
    facts = [f"{label} {_fact(node)}" for label, node in report.checkpoint.facts]
    pieces: list[str] = []
    for value in report.checkpoint.values:
        if not value.path:
            if value.fields is not None:
                pieces.append(("module " if is_module else "") + show(value.type, 80))
            elif value.same_as is None:
                pieces.append(value_text(value))
            continue
        inner = value.path[0] in REGISTERED or value.type in UNINITIALIZED
        if not inner and not any(value.path[:depth] in covered for depth in depths):
            groups.setdefault(value.path[0], []).append(value)
    for key, values in groups.items():
        if str(key).startswith("_") and value_text(values[0]) == "None":
            continue  # what a module has beside its tensors, unset
        name = show(str(key), 40)
        text = value_text(values[0]) if len(values[0].path) == 1 else plural(len(values), "value")
        pieces.append(f"{name} {text}")
    if len(pieces) > _VALUES:
        pieces = [*pieces[:_VALUES], f"{len(pieces) - _VALUES} more (--values)"]
    return [*facts, *pieces]


# --- the tensors ----------------------------------------------------------------------------------------------


def _tensors(report: InspectReport, width: int | None, depth: int | None, everything: bool) -> list[Line]:
    rows = report.rows
    # Tensors that look alike get one number: folding compares numbers.
    numbers: dict[tuple[object, ...], int] = {}
    looks: list[tuple[str, str, str]] = []
    leaves = []
    for row in rows:
        entry, tensor = row.entry, row.entry.tensor
        key = (tensor.shape, tensor.dtype.name, tensor.device, tensor.layout)
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(numbers)
            looks.append((shape_text(tensor), tensor.dtype.name, tensor.device or ""))
        name = show(entry.name, None) if entry.path else "(the root)"
        if not entry.registered:
            name += " (unregistered)"
        elif not entry.persistent:
            name += " (not persistent)"
        leaves.append(Leaf(name, number, tensor.numel, tensor.nbytes))
    mixed_dtype = len({dtype for _, dtype, _ in looks}) > 1
    mixed_device = len({device for *_, device in looks} - {""}) > 1
    table: list[list[str]] = [
        [
            "NAME",
            "SHAPE",
            *(["DTYPE"] if mixed_dtype else []),
            *(["DEVICE"] if mixed_device else []),
            "NUMEL",
            "SIZE",
        ]
    ]

    def row_of(label: str, fold_: Fold, shut: bool) -> list[str]:
        leaf = not fold_.children
        shape, dtype, device = looks[fold_.look] if isinstance(fold_.look, int) else ("", "", "")
        if not leaf:
            shape = plural(fold_.tensors, "tensor") if shut else ""
            dtype, device = ("", "") if not shut else (dtype, device)
        middle = [dtype] if mixed_dtype else []
        middle += [show(device, 20)] if mixed_device else []
        return [label, shape, *middle, count_text(fold_.numel), size_text(fold_.nbytes)]

    left = 0
    if everything:
        for leaf, row in zip(leaves, rows, strict=True):
            one = Fold(leaf.name, leaf.look, 1, row.tensor.numel, row.tensor.nbytes)
            table.append(row_of(leaf.name, one, False))
    else:
        opened = lines(fold(leaves), depth)
        most = len(opened) if depth is not None else 60
        left = max(0, len(opened) - most)
        for line in opened[:most]:
            label = "  " * line.level + line.fold.label
            if line.fold.times > 1 and line.fold.children:
                label += f"  ×{line.fold.times}"
            table.append(row_of(label, line.fold, line.shut))
    last = len(table[0]) - 1
    out = columns(table, right=frozenset((last - 1, last)), styles={1: "dim"}, width=width)
    if left:
        out.append([(f"… {left:,} more lines (--all, --tsv, --include GLOB)", "dim")])
    return out


def shape_text(tensor: Tensor) -> str:
    """The shape in brackets, with what is unusual about the tensor."""
    text = f"[{', '.join(map(str, tensor.shape))}]"
    if isinstance(tensor, Composite) and tensor.layout == "wrapper" and tensor.detail:
        text += f" {show(tensor.detail.rpartition('.')[2], 40)}"  # the class that wraps
    elif tensor.layout != "strided":
        text += f" {tensor.layout}"
    return text


# --- the last lines -------------------------------------------------------------------------------------------


def _loading(report: InspectReport) -> list[Line]:
    found = report.load
    out: list[Line] = []
    for name, device, kind in report.hidden_devices[:3]:
        text = f"torch.device {device}" if kind == "torch.device" else f"'{device}'"
        out.append(
            [
                ("device in a value: ", "dim"),
                (f"{show(name)} = {show(text)}, which map_location does not change", ""),
            ]
        )
    if len(report.hidden_devices) > 3:
        left = len(report.hidden_devices) - 3
        out.append([(f"… {plural(left, 'more such value')} (--json)", "dim")])
    if found.expression is None:
        out.append([("load: ", "head"), (safe(found.reason or ""), "")])
        return out + _instead(report.way)
    note = f"   # {safe(found.note)}" if found.note else ""
    out.append([("load: ", "head"), (found.expression, ""), (note, "dim")])
    return out + _instead(report.way, "for weights_only=True: ")


def _instead(way: Way | None, why: str = "") -> list[Line]:
    """The command whose result loads without trust, or why no command makes one."""
    if way is None:
        return []
    if way.command is not None:
        why = why if way.keeps == "all" else ""
        return [[(f"      ({why}{way.text})", "dim")]]
    return [[(f"      ({safe(way.reason)})", "dim")]] if way.reason else []


def index_lines(found: ParameterIndex) -> list[Line]:
    """Parameters by DDP's numbers, then how sure the numbers are."""
    rows = []
    for number, entries in found.rows:
        names = and_more([show(entry.name, None) for entry in entries], 8, " or ")
        shapes = {show_shape(entry.tensor): None for entry in entries}
        dtypes = {entry.tensor.dtype.name: None for entry in entries}
        rows.append([str(number), names, and_more(list(shapes), 2, " or "), " or ".join(dtypes)])
    out = columns([["INDEX", "NAME", "SHAPE", "DTYPE"], *rows], right=frozenset((0,)), give=1)
    assumes = f"; assumes that {found.assumes}" if found.assumes else ""
    counted = plural(found.parameters, "parameter")
    counted = counted if found.least == found.parameters else f"{found.least:,} to {counted}"
    text = f"of {counted}; {found.trust}: {found.why}{assumes}"
    return [*out, [(text, "dim")]]


def show_shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))

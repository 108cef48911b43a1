"""`ckpt inspect`: everything one checkpoint says about itself, as a report. Reads no tensor data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ckpt.checkpoint import Checkpoint, Entry, Tensor, Value
from ckpt.errors import UsageError
from ckpt.findings import Finding, order
from ckpt.jobs.storages import Shared, shared
from ckpt.loading import Load, load
from ckpt.names import Globs, inner_wrappers, nearest, wrapper_prefix, writers
from ckpt.objects import look
from ckpt.roles import Role, roles
from ckpt.sections import Section, sections
from ckpt.units import size_text

_DEVICE = re.compile(r"(cuda|mps|xpu|npu|hpu|mlu|musa|xla|mtia|privateuseone)(:\d{1,3})?")
_BLOAT_BYTES = 1024
_HEAVY = 1.0


class Row(NamedTuple):
    """A tensor, the section that it lies in, and its `place` in `Checkpoint.tensors`."""

    entry: Entry
    section: Section | None
    place: int

    @property
    def tensor(self) -> Tensor:
        return self.entry.tensor

    @property
    def relative(self) -> str:
        """Its name inside its section."""
        return self.section.relative(self.entry.name) if self.section else self.entry.name


class Prefix(NamedTuple):
    """A wrapper's prefix on `tensors` of the `of` tensors of a section."""

    prefix: str
    writer: str
    section: str
    tensors: int
    of: int


class InspectReport(NamedTuple):
    """What `ckpt inspect` found. `rows` are the tensors that were selected, all else is of the whole file."""

    checkpoint: Checkpoint
    sections: tuple[Section, ...]
    rows: tuple[Row, ...]
    storages: tuple[Shared, ...]
    prefixes: tuple[Prefix, ...]
    hidden_devices: tuple[tuple[str, str, str], ...]
    """Devices in values: name, device, type of the value."""
    load: Load
    findings: tuple[Finding, ...]
    selected: bool = False
    values: tuple[Value, ...] = ()

    def roles(self) -> list[Role]:
        """The role of each of `rows`. Drawn when it is asked for: text does not show roles."""
        known = roles(self.checkpoint, self.sections)
        return [known[row.place] for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """The document `ckpt.inspect`; docs/json.md is its contract."""
        from ckpt.jobs.inspect_json import document

        return document(self)


def inspect(checkpoint: Checkpoint, select: Globs | None = None, section: str | None = None) -> InspectReport:
    """The report on a checkpoint, over all tensors or those that are selected. Raises UsageError."""
    parts = sections(checkpoint)
    owner: list[Section | None] = [None] * len(checkpoint.tensors)
    for part in parts:
        owner[part.first : part.last] = [part] * part.tensors
    rows = [
        Row(entry, part, place)
        for place, (entry, part) in enumerate(zip(_marked(checkpoint.tensors), owner, strict=True))
    ]
    values = checkpoint.values
    if section is not None:
        chosen = [part for part in parts if part.name == section]
        if not chosen:
            names = [part.name for part in parts]
            listed = ", ".join(name or "(the root)" for name in nearest(section, names) or names[:8])
            raise UsageError(
                f"no section {section}", path=checkpoint.path, hint=f"sections: {listed or 'none'}"
            )
        rows = [row for row in rows if row.section in chosen]
        values = tuple(
            value for value in values if any(value.path[: len(part.path)] == part.path for part in chosen)
        )
    if select:
        rows = [row for row in rows if select.match(row.entry.name, row.relative)]
    everything = shared(checkpoint)
    prefixes = _prefixes(checkpoint, parts)
    hidden = _hidden_devices(checkpoint.values)
    opened = load(checkpoint, parts)
    report = InspectReport(
        checkpoint,
        parts,
        tuple(rows),
        everything,
        prefixes,
        hidden,
        opened,
        (),
        selected=bool(select) or section is not None,
        values=values,
    )
    return report._replace(findings=order(list(_findings(report))))


def _marked(entries: tuple[Entry, ...]) -> list[Entry]:
    """The entries with `#2`-like marks on names that more than one path reads as."""
    seen: dict[str, int] = {}
    marked = []
    for entry in entries:
        count = seen[entry.name] = seen.get(entry.name, 0) + 1
        marked.append(entry if count == 1 else entry._replace(name=f"{entry.name}#{count}"))
    return marked


def _prefixes(checkpoint: Checkpoint, parts: tuple[Section, ...]) -> tuple[Prefix, ...]:
    found: list[Prefix] = []
    for part in parts:
        if part.kind not in ("model", "ema"):
            continue
        leading: dict[str, int] = {}
        inner: dict[str, list[str]] = {}
        for entry in checkpoint.tensors[part.first : part.last]:
            name = part.relative(entry.name)
            prefix = wrapper_prefix(name)
            if prefix:
                leading[prefix] = leading.get(prefix, 0) + 1
            if "._" in name:
                for wrapper, place in inner_wrappers(name):
                    inner.setdefault(wrapper, []).append(place)
        found += [
            Prefix(prefix, writers(prefix), part.name, count, part.tensors)
            for prefix, count in leading.items()
        ]
        found += [
            Prefix(
                places[0] if len(set(places)) == 1 else f"*.{wrapper}.",
                writers(wrapper),
                part.name,
                len(places),
                part.tensors,
            )
            for wrapper, places in inner.items()
        ]
    return tuple(found)


def _hidden_devices(values: Iterable[Value]) -> tuple[tuple[str, str, str], ...]:
    """Devices that sit in values, where map_location does not reach them."""
    found = []
    for value in values:
        if value.type == "torch.device":
            found.append((value.name, str(look(value.node).value), "torch.device"))
        elif value.type == "str" and isinstance(value.node, str) and _DEVICE.fullmatch(value.node):
            found.append((value.name, str(value.node), "str"))
    return tuple(found)


# --- findings -------------------------------------------------------------------------------------------------


def _findings(report: InspectReport) -> Iterable[Finding]:
    checkpoint = report.checkpoint
    yield from _imports(checkpoint)
    if checkpoint.weights_only:
        reasons = [refusal.reason for refusal in checkpoint.weights_only]
        places = [place for refusal in checkpoint.weights_only for place in refusal.where[:1]]
        at = f" at {places[0] or 'the root'}" if places else ""
        more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        yield Finding(
            "weights-only",
            f"torch.load(weights_only=True) refuses {reasons[0]}{at}{more}",
            tuple(places),
            None if checkpoint.format == "torchscript" else "ckpt convert FILE --plain -o OUT",
        )
    yield from _devices(report)
    for prefix in report.prefixes:
        where = f" of {prefix.section}" if prefix.section else ""
        count = (
            f"all {prefix.of:,}" if prefix.tensors == prefix.of else f"{prefix.tensors:,} of {prefix.of:,}"
        )
        tensors = "tensor" if prefix.of == 1 else "tensors"
        yield Finding(
            "prefix",
            f"{prefix.prefix}* on {count} {tensors}{where}: {prefix.writer}",
            (),
            "ckpt strip FILE -o OUT",
        )
    yield from _sharing(report)
    heavy = sum(part.nbytes for part in report.sections if part.kind == "optimizer")
    model = sum(part.nbytes for part in report.sections if part.kind == "model")
    if model and heavy > _HEAVY * model:
        text = f"the optimizer holds {size_text(heavy)}, the model {size_text(model)}"
        yield Finding("optimizer-heavy", text, (), "ckpt slim FILE -o OUT")
    twice = tuple(row.entry.name for row in report.rows if "#" in row.entry.name)
    twice = tuple(name for name in twice if name.rpartition("#")[2].isdigit() and _is_mark(name, checkpoint))
    if twice:
        more = f" and {len(twice) - 1:,} more" if len(twice) > 1 else ""
        yield Finding("ambiguous-name", f"another path reads as {twice[0].rpartition('#')[0]}{more}", twice)
    for notice in checkpoint.notices:
        yield Finding(notice.code, notice.message, notice.tensors)


def _is_mark(name: str, checkpoint: Checkpoint) -> bool:
    return all(entry.name != name for entry in checkpoint.tensors)


def _imports(checkpoint: Checkpoint) -> Iterable[Finding]:
    """Names that are not known: those that loading calls one by one, the others together."""
    for row in checkpoint.imports:
        if row.group == "called":
            more = f" and {len(row.calls) - 1} more such calls" if len(row.calls) > 1 else ""
            at = f" at {row.where[0]}" if row.where and row.where[0] else ""
            yield Finding("called-on-load", f"loading would call {row.calls[0]}{at}{more}", row.where)
    unknown = [f"{row.module}.{row.name}" for row in checkpoint.imports if row.group == "unknown"]
    if unknown and checkpoint.format != "torchscript":
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        yield Finding(
            "unknown-import", f"loading would import {', '.join(unknown[:3])}{more}", (), "--imports"
        )


def _devices(report: InspectReport) -> Iterable[Finding]:
    checkpoint = report.checkpoint
    placed = storage_devices(report)
    away = {tag: nbytes for tag, nbytes in placed.items() if tag not in ("cpu", "meta")}
    if away:
        listed = " and ".join(f"{size_text(nbytes)} on {tag}" for tag, nbytes in away.items())
        text = f"a bare torch.load puts {listed}"
        if checkpoint.format == "torchscript":
            text = text.replace("torch.load", "torch.jit.load")
        gpus = [
            int(tag[5:])
            for tag in away
            if tag.startswith("cuda:") and tag[5:].isascii() and tag[5:].isdigit() and len(tag) < 9
        ]
        if any(tag.partition(":")[0] == "cuda" for tag in away):
            text += ", and a CUDA context of some hundred MiB, in every process"
        if max(gpus, default=0):
            text += f"; it needs {max(gpus) + 1} GPUs"
        names = tuple(row.entry.name for row in report.rows if row.tensor.device in away)
        hint = None if checkpoint.format == "torchscript" else "ckpt rehome FILE -o OUT"
        yield Finding("cuda", text, names, hint)
    for part in report.sections:
        tags: dict[str, int] = {}
        for entry in checkpoint.tensors[part.first : part.last]:
            # Counters stay where the optimizer made them; on meta there is nothing.
            device = entry.tensor.device
            if entry.tensor.shape and device not in (None, "meta"):
                tags[str(device)] = tags.get(str(device), 0) + 1
        if len(tags) > 1:
            listed = ", ".join(f"{count:,} on {tag}" for tag, count in tags.items())
            yield Finding(
                "device-mixed",
                f"the tensors of {part.name or 'the file'} are saved on several devices: {listed}",
            )


def _sharing(report: InspectReport) -> Iterable[Finding]:
    ties = [names for row in report.storages for names in row.ties]
    if ties:
        more = f", and {len(ties) - 1:,} more groups" if len(ties) > 1 else ""
        tied = tuple(name for names in ties for name in names)
        yield Finding("tied", f"{' = '.join(ties[0][:4])}{' = …' if len(ties[0]) > 4 else ''}{more}", tied)
    held = [row for row in report.storages if row.held > 0]
    total = sum(row.held for row in held)
    if total >= _BLOAT_BYTES:
        worst = max(held, key=lambda row: row.held)
        seen = ", ".join(worst.tensors[:2])
        more = f" and {len(held) - 1:,} more" if len(held) > 1 else ""
        text = (
            f"{size_text(total)} are kept alive by views: {seen} of {size_text(worst.storage.nbytes)}{more}"
        )
        names = tuple(name for row in held for name in row.tensors)
        yield Finding("bloat", text, names, "ckpt slim FILE -o OUT")


def storage_devices(report: InspectReport) -> dict[str, int]:
    """Bytes of the storages on each device: what a bare load puts where."""
    placed: dict[str, int] = {}
    for row in report.storages:
        if row.storage.device is not None:
            placed[row.storage.device] = placed.get(row.storage.device, 0) + row.storage.nbytes
    return placed


def devices(report: InspectReport) -> dict[str, dict[str, int]]:
    """Device -> tensors and their logical bytes, of the selected tensors, the heaviest first."""
    found: dict[str, dict[str, int]] = {}
    for row in report.rows:
        if row.tensor.device is not None:
            totals = found.setdefault(row.tensor.device, {"tensors": 0, "bytes": 0})
            totals["tensors"] += 1
            totals["bytes"] += row.tensor.nbytes
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))

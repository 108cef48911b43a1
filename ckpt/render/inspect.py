"""`ckpt inspect` as text: what the file is, how it loads, its parts, the findings, and last its tensors folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpt.checkpoint import looks_of
from ckpt.findings import Finding
from ckpt.jobs.inspect.inspect import InspectReport, Row
from ckpt.render.findings import findings_lines, follow_lines, safe
from ckpt.render.parts import part_lines
from ckpt.render.tables import import_table, value_table
from ckpt.render.tensors import ROWS, tensor_lines
from ckpt.render.text import Line, columns, flowed, height_of, hung
from ckpt.tensors import Composite, Tensor
from ckpt.text import and_more, count_text, plural, show, show_literal, size_text

if TYPE_CHECKING:
    from ckpt.jobs.inspect.index import ParameterIndex


_POINTER = rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n?"
_DIGITS = 16
"""Hexadecimal digits of a SHA-256 that are shown: enough to see that a tensor changed."""


def textconv_lines(report: InspectReport, digests: Sequence[str | None]) -> list[str]:
    """The format, the findings, the values, the imports and the tensors of a file; no path, which is git's own."""
    lines = [f"format {report.checkpoint.format}"]
    lines += [f"finding {row.code}: {show_literal(row.message)}" for row in report.findings]
    lines += [f"value {name} = {value or kind}" for name, kind, value in value_table(report)[1:]]
    lines += [f"import {row[0]} {row[1]}" for row in import_table(report)[1:]]
    for row, digest in zip(report.rows, digests, strict=True):
        tensor = row.tensor
        shape = ", ".join(map(str, tensor.shape))
        what = f"{tensor.dtype.name} [{shape}] {show(tensor.device or '', None)}".rstrip()
        lines.append(f"tensor {show(row.entry.name, None)} {what} {(digest or 'no data')[:_DIGITS]}")
    return lines


def unread_line(head: bytes, problem: str) -> str:
    """The line for what cannot be read: what a Git LFS pointer points to, else the problem."""
    pointer = re.match(_POINTER, head)
    if pointer:
        return f"Git LFS pointer to {int(pointer[2]):,} bytes, sha256 {pointer[1].decode()}"
    return f"not read: {show_literal(problem)}"


_FINDINGS = 10
"""Findings of one code that are shown; the calls that loading would make are never left out."""


def inspect_lines(
    report: InspectReport,
    *,
    width: int | None = None,
    height: int | None = None,
    depth: int | None = None,
    everything: bool = False,
) -> list[Line]:
    """The report as a person reads it. The table is cut to the rows left on a screen of `height` rows."""
    out = [*calls(report, width), *headline(report, width), *part_lines(report, width)]
    findings = _findings(report, width)
    if findings:
        out += [[], *findings]
    if report.entries:
        room = ROWS if height is None else height - height_of(out, width) - 2  # a blank row, and the prompt
        table = tensor_lines(report, width=width, rows=room, depth=depth, everything=everything)
        out += table if len(table) == 1 else [[], *table]
    return out


def _findings(report: InspectReport, width: int | None) -> list[Line]:
    counts: dict[str, int] = {}
    shown: list[Finding] = []
    ways = {finding.hint for finding in report.findings if finding.code == "called-on-load"}
    said = None if report.load.expression is None or report.way is None else report.way.command
    for finding in report.findings:
        if finding.code == "called-on-load":
            continue  # said above
        if said is not None and (finding.code, finding.hint) == ("weights-only", said):
            continue
        count = counts[finding.code] = counts.get(finding.code, 0) + 1
        if finding.hint in ways:
            finding = finding._replace(hint=None, consequence=None)  # said above
        if count <= _FINDINGS:
            shown.append(finding)
    out = findings_lines(shown, width)
    for code, count in counts.items():
        if count > _FINDINGS:
            out.append([(f"… {count - _FINDINGS:,} more {code} (--json)", "dim")])
    return out


def calls(report: InspectReport, width: int | None = None) -> list[Line]:
    """What loading would run, and the command that gets the weights out; it stands above everything else."""
    out: list[Line] = []
    found = [finding for finding in report.findings if finding.code == "called-on-load"]
    for number, finding in enumerate(found, 1):
        text = safe(finding.message)
        danger, text = text.startswith("DANGER: "), text.removeprefix("DANGER: ")
        word = "DANGER" if danger else f"! {finding.code}"
        out += hung([(f"{word}  ", "error")], text, width, 8, "error")
        if number < len(found):
            finding = finding._replace(hint=None)
            if danger:
                continue
        out += follow_lines(finding, width, 8)
    return out


def headline(report: InspectReport, width: int | None = None) -> list[Line]:
    """The first line: what the file is; broken to fit `width`."""
    checkpoint, rows = report.checkpoint, report.entries
    text = checkpoint.layout or checkpoint.traits.label
    if checkpoint.parts:
        text += f", {plural(len(checkpoint.parts), 'member' if checkpoint.traits.is_archive else 'file')}"
    pieces = [text]
    if checkpoint.byteorder == "big":
        pieces.append("big-endian")
    tensors = looks_of(rows)
    if report.selected:
        pieces.append(f"{plural(len(rows), 'tensor')} selected")
        numel, nbytes = sum([tensor.numel for tensor in tensors]), sum([tensor.nbytes for tensor in tensors])
        pieces += [plural(numel, "element"), size_text(nbytes)] if rows else []
        dtypes = {tensor.dtype.name: None for tensor in dict.fromkeys(tensors)}
    else:
        pieces.append(size_text(checkpoint.nbytes))
        if not any(part.path for part in report.sections) or not rows:
            pieces.append(plural(len(rows), "tensor"))
        dtypes = {}
        every = looks_of(report.survey.tensors)
        chosen = [every[index] for index in report.survey.parameters]
        if chosen:
            count = sum([tensor.numel for tensor in chosen])
            pieces.append(f"{count_text(count)} {'parameter' if count == 1 else 'parameters'}")
        elif rows:
            count = sum([tensor.numel for tensor in tensors])
            pieces.append(f"{count_text(count)} {'element' if count == 1 else 'elements'}")
        for tensor in dict.fromkeys(chosen or tensors):
            dtypes[tensor.dtype.name] = None
            # A wrapper shows a dtype that none of its parts may have.
            if type(tensor) is Composite and tensor.layout == "wrapper":
                dtypes.update((part.dtype.name, None) for _, part in tensor.parts)
    if dtypes:
        pieces.append(and_more(list(dtypes), 3))
    pieces += _places(report)
    return flowed([(show(checkpoint.path, None), "name"), ("   ", "")], pieces, width, 2)


def _places(report: InspectReport) -> list[str]:
    """Where the tensors are saved: the devices, the one with the most bytes first."""
    if report.checkpoint.traits.fills_a_state:  # it is loaded where the state is
        return []
    devices = [tensor.device for tensor in dict.fromkeys(looks_of(report.entries))]
    found: dict[str, list[Row]] = {device: [] for device in devices if device is not None}
    for row in report.rows if len(found) > 1 else ():
        device = row.tensor.device
        if device is not None:
            found[device].append(row)
    texts = []
    for tag, rows in sorted(found.items(), key=lambda item: -sum(row.tensor.nbytes for row in item[1])):
        text = show(tag, 40)
        if len(found) > 1 and all(not row.tensor.shape for row in rows):
            steps = all(row.entry.path and row.entry.path[-1] == "step" for row in rows)
            text += " (step counters)" if steps else " (0-dim counters)"
        texts.append(text)
    return [f"saved on {and_more(texts, 4)}"] if texts else []


def index_lines(found: ParameterIndex, width: int | None = None) -> list[Line]:
    """Parameters by DDP's numbers, then how sure the numbers are."""
    rows = []
    for number, entries in found.rows:
        names = and_more([show(entry.name, None) for entry in entries], 8, " or ")
        shapes = {show_shape(entry.tensor): None for entry in entries}
        dtypes = {entry.tensor.dtype.name: None for entry in entries}
        rows.append([str(number), names, and_more(list(shapes), 2, " or "), " or ".join(dtypes)])
    out = columns([["INDEX", "NAME", "SHAPE", "DTYPE"], *rows], right=frozenset((0,)), width=width, give=(1,))
    assumes = f"; assumes that {found.assumes}" if found.assumes else ""
    counted = plural(found.parameters, "parameter")
    counted = counted if found.least == found.parameters else f"{found.least:,} to {counted}"
    text = f"of {counted}; {found.trust}: {found.why}{assumes}"
    return [*out, *hung([], text, width, 2, "dim")]


def show_shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))

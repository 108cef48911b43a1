"""`ckpt inspect` as text: what the file is, how it loads, its parts, the findings, and
last its tensors folded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ckpt.commands.inspect.inspect import Inspection, Prefix, Row, Whole
from ckpt.commands.inspect.logical import counted_parameters, with_whole_weights
from ckpt.commands.inspect.tables import (
    ROWS,
    import_table,
    tensor_lines,
    value_table,
    value_text,
)
from ckpt.evidence.loading import NEEDED, refusals_text
from ckpt.evidence.record import ModelRecord, record_of
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import adapted_layers
from ckpt.model.checkpoint import Value, looks_of, names_of
from ckpt.model.columns import row_looks
from ckpt.model.findings import Finding
from ckpt.model.nodes import Node
from ckpt.model.tensors import Composite, Tensor, blocks_in, sharding_of
from ckpt.model.text import (
    and_more,
    count_text,
    counted_noun,
    pasted_path,
    percent_text,
    show,
    show_folded_names,
    show_literal,
    show_names,
    size_text,
)
from ckpt.pickle.judge.names import is_own
from ckpt.surface.text.lines import (
    Line,
    break_line,
    cells,
    cut,
    expression_lines,
    findings_lines,
    flowing_lines,
    follow_lines,
    hanging_lines,
    height_of,
    pasted_line,
    safe_sentence,
    shorten_apart,
    whole,
)
from ckpt.tree.find import REGISTERED, is_metadata
from ckpt.tree.literals import scalar_text
from ckpt.tree.view import UNINITIALIZED, look

if TYPE_CHECKING:
    from ckpt.evidence.gradients import GradientUse
    from ckpt.evidence.optimizers import Optimizer

_POINTER = (
    rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n?"
)
_DIGITS = 16
"""Hexadecimal digits of a SHA-256 that are shown: enough to see that a tensor
changed.
"""


def textconv_lines(report: Inspection, digests: Sequence[str | None]) -> list[str]:
    """The format, the findings, the values, the imports and the tensors of a file; no
    path, which is git's own.
    """
    # One fact per line, in an order that does not change: git compares the lines.
    lines = [f"format {report.checkpoint.format}"]
    lines += [
        f"finding {row.code}: {show_literal(row.message)}" for row in report.findings
    ]
    lines += [
        f"value {name} = {value or kind}"
        for name, kind, value in value_table(report)[1:]
    ]
    lines += [f"import {row[0]} {row[1]}" for row in import_table(report)[1:]]
    for row, digest in zip(report.rows, digests, strict=True):
        tensor = row.tensor
        shape = ", ".join(map(str, tensor.shape))
        what = (
            f"{tensor.dtype.name} [{shape}] {show(tensor.device or '', None)}".rstrip()
        )
        lines.append(
            f"tensor {show(row.entry.name, None)} {what} "
            f"{(digest or 'no data')[:_DIGITS]}"
        )
    return lines


def unread_line(head: bytes, problem: str) -> str:
    """The line for what cannot be read: what a Git LFS pointer points to, else the
    problem.
    """
    pointer = re.match(_POINTER, head)
    if pointer:
        return (
            f"Git LFS pointer to {int(pointer[2]):,} bytes, sha256 "
            f"{pointer[1].decode()}"
        )
    return f"not read: {show_literal(problem)}"


_FINDINGS = 10
"""Findings of one code that are shown; the calls that loading would make are never left
out.
"""


def inspect_lines(
    report: Inspection,
    *,
    width: int | None = None,
    height: int | None = None,
    depth: int | None = None,
    everything: bool = False,
    by_size: bool = False,
) -> list[Line]:
    """The report as a person reads it. The table is cut to the rows left on a screen of
    `height` rows.
    """
    shown = report if everything else with_whole_weights(report)
    out = [
        *call_lines(report, width),
        *headline_lines(report, width, shown),
        *part_lines(report, width),
    ]
    findings = _finding_lines(report, width)
    if findings:
        out += [[], *findings]
    if shown.entries:
        # A blank row, and the prompt.
        room = ROWS if height is None else height - height_of(out, width) - 2
        table = tensor_lines(
            shown,
            width=width,
            rows=room,
            depth=depth,
            everything=everything,
            by_size=by_size,
        )
        out += table if len(table) == 1 else [[], *table]
    return out


def _finding_lines(report: Inspection, width: int | None) -> list[Line]:
    counts: dict[str, int] = {}
    shown: list[Finding] = []
    # The commands that the lines above everything else have given already.
    ways = {
        finding.hint
        for finding in report.findings
        if finding.code in _RUNS and finding.hint is not None
    }
    # The lines about loading give this command with the reasons of weights_only.
    if report.load.expression is None or report.way is None:
        command = None
    else:
        command = report.way.command
    for finding in report.findings:
        if finding.code in _RUNS:
            continue  # said above
        if command is not None and (finding.code, finding.hint) == (
            "weights-only",
            command,
        ):
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


_RUNS = ("called-on-load", "code-inside", "out-of-bounds")
"""Findings that stand above everything else."""


def call_lines(report: Inspection, width: int | None = None) -> list[Line]:
    """Return what loading would run, and the command that gets the weights out.

    These lines stand above everything else.
    """
    out: list[Line] = []
    dangers = [finding for finding in report.findings if finding.code in _RUNS]
    for number, finding in enumerate(dangers, 1):
        text = safe_sentence(finding.message)
        danger, text = text.startswith("DANGER: "), text.removeprefix("DANGER: ")
        word = "DANGER" if danger else f"! {finding.code}"
        out += hanging_lines([(f"{word}  ", "error")], text, width, 8, "error")
        # One command mends all of them: it stands below the last.
        if number < len(dangers):
            finding = finding._replace(hint=None)
            if danger:
                continue
        out += follow_lines(finding, width, 8)
    return out


def headline_lines(
    report: Inspection, width: int | None = None, listed: Inspection | None = None
) -> list[Line]:
    """The first line: what the file is; broken to fit `width`.

    It counts the parameters and dtypes of whole weights, where some are quantised.
    `listed` has the tensors of the table: where it takes codes and their scales
    together, their number is told too.
    """
    quantised = report.quantised
    number = len(report.entries)
    held = counted_noun(number, "tensor")
    report = with_whole_weights(report)
    checkpoint, rows = report.checkpoint, report.entries
    entries = rows if listed is None else listed.entries
    # All other commands count the codes and their scales apart.
    apart = f", {len(entries):,} when dequantised" if len(entries) != number else ""
    text = checkpoint.layout or checkpoint.traits.label
    if checkpoint.parts:
        part = "member" if checkpoint.traits.is_archive else "file"
        text += f", {counted_noun(len(checkpoint.parts), part)}"
    pieces = [text]
    if checkpoint.byteorder == "big":
        pieces.append("big-endian")
    tensors = looks_of(rows)
    every = looks_of(report.survey.tensors)
    chosen, unknown = counted_parameters(report)
    if report.selected:
        pieces.append(f"{held} selected{apart}")
    else:
        pieces.append(size_text(checkpoint.nbytes))
        if not any(part.path for part in report.sections) or not rows:
            pieces.append(f"{held}{apart}")
    if chosen:
        pieces.append(_counted_noun(report.survey.count_elements(chosen), "parameter"))
        count = report.survey.count_elements(unknown)
        pieces += [f"perhaps {count_text(count)} more"] if count else []
    elif rows:
        pieces.append(
            _counted_noun(sum([tensor.numel for tensor in tensors]), "element")
        )
    if report.selected and rows:
        pieces.append(size_text(sum([tensor.nbytes for tensor in tensors])))
    if report.selected or not chosen:
        counted = tensors
    else:
        counted = [every[i] for i in report.survey.weight_indices]
    dtypes = _dtype_names(counted, with_parts=not report.selected)
    if blocks_in(dict.fromkeys(counted)):
        pieces += _shares(counted)
    elif dtypes:
        pieces.append(and_more(dtypes, 3))
    if quantised is not None:
        pieces.append(quantised.text)
    pieces += _device_texts(report)
    return flowing_lines(
        [(show(checkpoint.path, None), "name"), ("   ", "")], pieces, width, 2
    )


def _dtype_names(tensors: Sequence[Tensor], *, with_parts: bool) -> list[str]:
    """Return the names of the dtypes of some tensors, the one with the most bytes
    first.
    """
    nbytes: Counter[str] = Counter()
    inner: dict[str, None] = {}
    # Of 100,000 tensors few look different.
    for tensor, count in Counter(tensors).items():
        nbytes[tensor.dtype.name] += count * tensor.nbytes
        # A wrapper shows a dtype that none of its parts may have.
        if with_parts and type(tensor) is Composite and tensor.layout == "wrapper":
            inner.update((part.dtype.name, None) for _, part in tensor.parts)
    return list(dict.fromkeys((*(name for name, _ in nbytes.most_common()), *inner)))


def _shares(tensors: Sequence[Tensor]) -> list[str]:
    """Return the share of each dtype in all elements, the largest first, and the bits
    that an element takes.
    """
    numels: Counter[str] = Counter()
    nbytes = 0
    for tensor, count in Counter(tensors).items():
        numels[tensor.dtype.name] += count * tensor.numel
        nbytes += count * tensor.nbytes
    whole = sum(numels.values())
    if not whole:
        return []
    shares = [
        f"{name} {percent_text(numel, whole)}" for name, numel in numels.most_common()
    ]
    return [and_more(shares, 3), f"{8 * nbytes / whole:.3g} bits per weight"]


def _counted_noun(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun if count == 1 else noun + 's'}"


def _device_texts(report: Inspection) -> list[str]:
    """Return the devices on which the tensors are saved, the one with the most bytes
    first.
    """
    if report.checkpoint.traits.fills_a_state:  # it is loaded where the state is
        return []
    devices = [tensor.device for tensor in dict.fromkeys(looks_of(report.entries))]
    by_device: dict[str, list[Row]] = {
        device: [] for device in devices if device is not None
    }
    for row in report.rows if len(by_device) > 1 else ():
        device = row.tensor.device
        if device is not None:
            by_device[device].append(row)
    texts = []
    for tag, rows in sorted(
        by_device.items(), key=lambda item: -sum(row.tensor.nbytes for row in item[1])
    ):
        text = show(tag, 40)
        if len(by_device) > 1 and all(not row.tensor.shape for row in rows):
            steps = all(row.entry.path and row.entry.path[-1] == "step" for row in rows)
            text += " (step counters)" if steps else " (0-dim counters)"
        texts.append(text)
    return [f"saved on {and_more(texts, 4)}"] if texts else []


_VALUES = 8
_SECTIONS = 20
_STATES = frozenset(("scheduler", "scaler", "rng", "other"))
_LABEL = 24
"""Cells for the name of a part."""


def _whole_text(whole: Whole) -> str:
    """Return what a file is a part of, with the command that shows all of it."""
    name = "this folder" if whole.path == "." else show(whole.path, 80)
    text = f"{name}, {counted_noun(whole.files, 'file')}"
    path = pasted_path(whole.path)
    return text if path is None else f"{text} (ckpt inspect {path})"


def _section_labels(names: Sequence[str]) -> list[str]:
    """Return short labels of sections that tell them apart. Where no short one does,
    they are longer.
    """
    texts = [show(name, None) for name in names]
    short = shorten_apart(texts, _LABEL)
    if len(set(short)) == len(set(texts)):
        return short
    longer = shorten_apart(texts, 2 * _LABEL)
    # A label that begins in the middle of a word says less than the whole name.
    torn = [
        label
        for label, text in zip(longer, texts, strict=True)
        if label != text and not re.search(rf"[._]{re.escape(label[1:])}$", text)
    ]
    return texts if torn or len(set(longer)) < len(set(texts)) else longer


def part_lines(report: Inspection, width: int | None) -> list[Line]:
    """Return how the file loads, then a line for each part, then its values.

    The parts have lines only where there is more than the weights.
    """
    sections = [] if report.selected else _section_rows(report)
    # All labels are known before the first line, so that their texts begin in one
    # column.
    labels = _section_labels([name for name, _ in sections[:_SECTIONS]])
    sharded = _sharding_text(report)
    metadata = _metadata_texts(report)
    rows = [
        "loads",
        "values",
        *(["part of"] if report.whole else []),
        *(["sharded"] if sharded else []),
        *(["metadata"] if metadata else []),
    ]
    widths = map(cells, (*rows, *labels))
    size = max(count for count in widths if count <= 2 * _LABEL)

    def head(label: str) -> Line:
        return [(f"  {label}{' ' * (size - cells(label))}  ", "name")]

    out = _loading_lines(report, head("loads"), width)
    if report.whole:
        out += hanging_lines(head("part of"), _whole_text(report.whole), width)
    for label, (_, text) in zip(labels, sections, strict=False):
        # A label that only its whole length tells apart has a line of its own.
        if cells(label) > size:
            out += break_line([(f"  {label}", "name")], width)
            label = ""
        out += hanging_lines(head(label), text, width)
    if len(sections) > _SECTIONS:
        out.append([(f"  … {len(sections) - _SECTIONS:,} more (--json)", "dim")])
    if sharded:
        out += hanging_lines(head("sharded"), sharded, width)
    pieces = _pieces_text(report)
    if pieces:
        out += hanging_lines(head("rank"), pieces, width)
    values = _value_texts(report)
    if values:
        out += flowing_lines(head("values"), values, width)
    if metadata:
        # Here: few files have more than a format.
        from ckpt.commands.inspect.card_text import metadata_pieces

        out += flowing_lines(head("metadata"), metadata_pieces(metadata), width)
    if report.card is not None and not report.selected:
        from ckpt.commands.inspect.card_text import card_pieces

        out += flowing_lines(head("card"), card_pieces(report.card), width)
    for name, device, kind in report.hidden_devices[:3]:
        text = f"torch.device {device}" if kind == "torch.device" else f"'{device}'"
        out += hanging_lines(
            head(""),
            f"{show(name)} = {show(text)}: map_location does not change it",
            width,
        )
    if len(report.hidden_devices) > 3:
        rest = counted_noun(len(report.hidden_devices) - 3, "more device")
        out += hanging_lines(
            head(""), f"… {rest} in values (--json)", width, style="dim"
        )
    names = [] if report.selected else names_of(report.entries)
    if "lora_" in "\n".join(names):
        layers = adapted_layers([row.relative for row in report.rows])
    else:
        layers = []
    texts: tuple[str, ...] = ()
    if report.adapter is not None and report.adapter.adapter.style != "PEFT":
        texts = (report.adapter.text,)
    elif report.described is not None:
        texts = report.described.texts
    elif layers:
        texts = (
            (
                f"changes {counted_noun(len(layers), 'layer')} of the base model: "
                f"{show_folded_names(layers, 6)}"
            ),
        )
    if report.described is not None and report.described.fit_text:
        texts = (*texts, report.described.fit_text)
    for row, text in enumerate(texts):
        out += hanging_lines(head("" if row else "LoRA"), text, width)
    lazy = [value.name for value in report.values if value.type in UNINITIALIZED]
    if lazy:
        text = (
            "uninitialized, for their lazy modules have not run: "
            f"{show_folded_names(lazy, 6)}"
        )
        out += hanging_lines(head("lazy"), text, width)
    return out


def _pieces_text(report: Inspection) -> str:
    """Return the rank and mesh that wrote a file of parts of tensors, and how they are
    cut.
    """
    pieces = [
        tensor.piece
        for tensor in dict.fromkeys(looks_of(report.entries))
        if isinstance(tensor, Composite) and tensor.piece is not None
    ]
    if not pieces:
        return _shards_text(report)
    ranks = {piece.rank for piece in pieces}
    # `2 × 4`: the sizes of the dimensions of the mesh, as DTensor writes them.
    meshes = list(dict.fromkeys(" × ".join(map(str, piece.mesh)) for piece in pieces))
    rank = next(iter(ranks)) if len(ranks) == 1 else None
    whose = f"{rank} of a mesh" if rank is not None else "not recorded; a mesh"
    mesh = f"{and_more(meshes, 3)} {'rank' if meshes == ['1'] else 'ranks'}"
    # The count of each way to cut, such as Shard(0).
    cut: dict[str, int] = {}
    for piece in pieces:
        if piece.is_cut:
            text = ", ".join(placement.text for placement in piece.placements)
            cut[text] = cut.get(text, 0) + 1
    how = and_more(
        [f"{counted_noun(count, 'tensor')} by {text}" for text, count in cut.items()], 3
    )
    whole = f"; {counted_noun(len(report.entries) - sum(cut.values()), 'tensor')} whole"
    if cut:
        return f"{whose} of {mesh}; parts of {how}{whole}"
    return f"{whose} of {mesh}{whole}"


def _shards_text(report: Inspection) -> str:
    """Return the rank that wrote a file of tensors that are shards of FSDP 1."""
    shards = [
        tensor.shards
        for tensor in dict.fromkeys(looks_of(report.entries))
        if isinstance(tensor, Composite) and tensor.shards is not None
    ]
    if not shards:
        return ""
    # Shards of several ranks in one file name no rank that wrote it.
    ranks = {(shard.rank, shard.world) for shard in shards}
    rank, world = next(iter(ranks)) if len(ranks) == 1 else (None, None)
    if rank is None:
        whose = "not recorded"
    else:
        whose = f"{rank} of {world} ranks" if world else str(rank)
    whole = len(report.entries) - len(shards)
    return (
        f"{whose}; shards of {counted_noun(len(shards), 'tensor')}; "
        f"{counted_noun(whole, 'tensor')} whole"
    )


def _sharding_text(report: Inspection) -> str:
    """Return how many tensors are cut, along which dimensions, and into how
    many parts.
    """
    # Few files are cut, and only places that several parts make have a grid.
    places = [storage.place for storage in set(row_looks(report.checkpoint.storages))]
    if not any(place.grid for place in places if place is not None):
        return ""
    shardings = [sharding_of(row.tensor) for row in report.rows]
    every = [sharding for sharding in shardings if sharding is not None]
    if not every:
        return ""
    dims = sorted(set(chain.from_iterable(sharding.dims for sharding in every)))
    along = f"dimensions {and_more([str(dim) for dim in dims], 8)}"
    if len(dims) == 1:
        along = f"dimension {dims[0]}"
    most = max(sharding.parts for sharding in every)
    parts = f"{most:,} parts"
    if any(sharding.parts != most for sharding in every):
        parts = f"up to {parts}"
    return (
        f"{len(every):,} of {counted_noun(len(report.entries), 'tensor')} along "
        f"{along}, in {parts}"
    )


def _loading_lines(report: Inspection, head: Line, width: int | None) -> list[Line]:
    """Return whether loading is safe, and the expression that does it on a line of its
    own, to paste.

    Where torch must trust the file, the command that makes a file without code comes
    first.
    """
    # The lines below the label are indented as far.
    load, indent = report.load, sum(cells(text) for text, _ in head)
    way = report.way
    if load.expression is not None and way is not None and way.command is not None:
        reasons = refusals_text(report.checkpoint.weights_only or ())
        advice = "Take the weights alone" if way.keeps == "weights" else "Make it plain"
        note, needed = load.note or "", NEEDED.format(reasons)
        is_flag = note.startswith(needed)
        if is_flag:
            how = f", with weights_only=False{note.removeprefix(needed)}"
        else:
            how = f" ({note})"
        trust = f"or, only if you trust its author{safe_sentence(how)}:"
        # The weights of a folder may lie in a file of their own, which holds no code.
        if not note:
            trust = "or its tensors alone:"
        said = f"weights_only refuses {safe_sentence(reasons)}. " if reasons else ""
        return [
            *hanging_lines(head, f"{said}{advice}:", width),
            pasted_line(way.command, width, indent),
            *hanging_lines([(" " * indent, "")], trust, width),
            *expression_lines(load.expression, width, indent),
        ]
    if load.expression is None:
        runs = any(row.code == "code-inside" for row in report.findings)
        runs = runs or any(
            row.group == "called" and is_own(row.module)
            for row in report.checkpoint.imports
        )
        reason = safe_sentence(load.reason or "")
        if runs and reason.startswith(("loading this file runs ", "loading it runs ")):
            reason = "do not load it"  # DANGER stands above, with the call
        out = hanging_lines(head, reason, width, style="error" if runs else "warning")
    else:
        verdict = _verdict_text(report)
        out = hanging_lines(
            head, verdict, width, style="good" if verdict.startswith("safe") else ""
        )
        if load.model is not None:
            out += expression_lines(load.model, width, indent)
            out.append([(" " * indent + "or its tensors alone:", "")])
        out += expression_lines(load.expression, width, indent)
    if way is None:
        return out
    if way.command is None:
        return out + (
            hanging_lines([(" " * indent, "")], safe_sentence(way.reason), width)
            if way.reason
            else []
        )
    if any(finding.hint == way.command for finding in report.findings):
        return out  # said by the finding
    if way.keeps == "weights":
        out.append([(" " * indent + "for the weights alone:", "")])
    return [*out, pasted_line(way.command, width, indent)]


def _verdict_text(report: Inspection) -> str:
    """Return how the expression loads the file: what it needs, or why nothing can
    happen.
    """
    checkpoint, note = report.checkpoint, safe_sentence(report.load.note or "")
    if note:
        is_told = any(finding.code == "weights-only" for finding in report.findings)
        if is_told and note == NEEDED.format(
            refusals_text(checkpoint.weights_only or ())
        ):
            note = "weights_only=False"
        return note
    if checkpoint.traits.names_are_code:
        return (
            f"a {checkpoint.traits.label} program, which "
            f"{checkpoint.traits.load.partition('(')[0]} reads"
        )
    # Documents beside the weights do not decide how the weights load.
    opened = [
        member.checkpoint for member in checkpoint.members if member.is_model
    ] or [checkpoint]
    if not any(part.traits.is_pickle for part in opened):
        return "safe: a format without code"
    if all(part.weights_only == () for part in opened):
        return "safe: weights_only=True loads it"
    return "with"


def _section_rows(report: Inspection) -> list[tuple[str, str]]:
    """The name of each section below the root, and what it holds; loose tensors under
    one key are one.
    """
    # Loose tensors below one key are sections of one name and kind.
    groups: dict[tuple[str, str], list[Section]] = {}
    loose = any(part.path for part in report.sections) and not report.checkpoint.members
    for part in report.sections:
        if part.path or part.kind == "optimizer" or (loose and part.kind == "model"):
            groups.setdefault(
                (part.name if part.path else part.kind, part.kind), []
            ).append(part)
    prefixes: dict[str, list[Prefix]] = {}
    for prefix in report.prefixes:
        prefixes.setdefault(prefix.section, []).append(prefix)
    lost = [name for name, _ in report.checkpoint.account.left_out]
    out: list[tuple[str, str]] = []
    empty = []
    for (name, kind), parts in groups.items():
        if kind in _STATES and not any(part.tensors for part in parts):
            empty.append(name)
            continue
        label = "" if kind in (name, "other") else f"{kind}, "
        record = record_of(report.checkpoint) if kind == "snapshot" else None
        uses = [
            use
            for use in report.survey.uses
            if use.match.optimizer.path == parts[0].path
        ]
        use = uses[0] if uses and uses[0].steps else None
        if record is not None:
            text = _snapshot_text(record)
        else:
            text = _part_text(parts, prefixes.get(name, []), use, lost)
        out.append((name, label + text))
    if empty:
        also = f"{show_names(empty, 6, 40)} (no tensors)"
        out.append(("also", also))
    return out


def _part_text(
    parts: Sequence[Section],
    prefixes: Sequence[Prefix],
    use: GradientUse | None,
    lost: Sequence[str] = (),
) -> str:
    """A part in one line. `lost` are the names of values that the checkpoint lacks."""
    part = parts[0]
    tensors = sum(section.tensors for section in parts)
    nbytes = sum(section.nbytes for section in parts)
    sizes = f"{counted_noun(tensors, 'tensor')}, {size_text(nbytes)}"
    if part.kind == "optimizer":
        # Here: many files hold no optimizer.
        from ckpt.evidence.optimizers import optimizer_facts

        facts = optimizer_facts(part)
        if facts is None:
            return sizes
        return _optimizer_text(part, facts, nbytes, use, lost)
    text = sizes
    if part.is_module:
        text = f"module {show(look(part.node).type, 80)}, {sizes}"
    if part.kind in ("model", "ema"):
        text += "" if part.path else ", at the root"
        for prefix in prefixes[:3]:
            if prefix.tensors == prefix.of:
                count = ""
            else:
                count = f"{prefix.tensors:,} of {prefix.of:,} "
            text += f", {count}names {begin_text(prefix.prefix)}"
    return text


def _optimizer_text(
    part: Section,
    facts: Optimizer,
    nbytes: int,
    use: GradientUse | None,
    lost: Sequence[str],
) -> str:
    """An optimizer in one line: its family, its state, its steps and learning rates."""
    # The fields of param_groups that a damaged file lacks.
    below = f"{part.name}.param_groups." if part.name else "param_groups."
    gone = {name.rpartition(".")[2] for name in lost if name.startswith(below)}
    text = _state_text(facts, are_counted="params" not in gone)
    if nbytes:
        text += f", {size_text(nbytes)}"
    if use is not None and not use.is_before:
        steps = f"{use.steps:,.0f} step{'' if use.steps == 1 else 's'}"
        text += f", {whole(steps)}"
    rates = and_more([f"{rate:g}" for rate in facts.rates], 4)
    if "lr" in gone:
        rates = f"{rates} and others, which are lost" if rates else "lost"
    if rates:
        text += f", {whole(f'lr {rates}')}"
    has_begun = facts.with_state or facts.is_plain_sgd
    if facts.rates == (0,) and "lr" not in gone and has_begun:
        text += " in every group, as at the end of a schedule: a step changes no weight"
    if use is not None and use.is_before:
        text += ", 1 step with zero moments, as before the first"
    return text


def _state_text(facts: Optimizer, *, are_counted: bool) -> str:
    """The family of an optimizer, and how many of its parameters have state.

    Without `are_counted` the list of its parameters is lost, and more may be there.
    """
    count = counted_noun(facts.parameters, "parameter")
    if not are_counted:
        least = max(facts.parameters, facts.with_state)
        count = f"at least {counted_noun(least, 'parameter')}"
    if facts.is_plain_sgd:
        text = f"SGD without momentum, which keeps no state, {count}"
    elif facts.family == "LBFGS":
        # It keeps all of its state under its first parameter.
        text = f"LBFGS, one state for {counted_noun(facts.parameters, 'parameter')}"
    else:
        kind = facts.family or "with state"
        if not facts.with_state and not facts.lost:
            kind = "no state yet" if facts.has_begun else "no step taken yet"
        if not facts.parameters and facts.with_state and are_counted:
            # Megatron keeps the parameters' states elsewhere.
            text = f"{kind}, of no parameters"
        else:
            verb = "has" if facts.parameters == 1 else "have"
            text = f"{kind}, {facts.with_state:,} of {count} {verb} state"
            if facts.lost:
                text += f", that of {facts.lost:,} is lost"
    return text


def _snapshot_text(record: ModelRecord) -> str:
    """Return the module, devices, rank and gradients of a snapshot, and the names that
    it left out.
    """
    text = show(record.modules.get("", "a module").rpartition(".")[2], 60)
    if record.wrappers:
        wrappers = [wrapper.rpartition(".")[2] for wrapper in record.wrappers]
        text += f" in {show(', '.join(wrappers), 80)}"
    # In the order of the model, each once.
    devices = dict.fromkeys(tensor.device for tensor in record.tensors.values())
    text += f" on {show(', '.join(devices), 60)}" if devices else ""
    if record.world_size > 1:
        text += f", rank {record.rank} of {record.world_size}"
    numbered = record.numbered
    had = sum(record.tensors[name].gradient is not None for name in numbered)
    text += f", {had:,} of {counted_noun(len(numbered), 'parameter')} had a gradient"
    # An optimizer that has stepped had gradients, and none is left of them.
    stepped = any(any(handed.has_state) for handed in record.optimizers)
    if stepped and not had:
        text += " (taken after zero_grad()? take it before)"
    if record.left_out:
        names = [show(name, 40) for name, _ in record.left_out[:4]]
        text += f", left out: {', '.join(names)}"
    return text


def begin_text(prefix: str) -> str:
    """`begin with module.`, or `contain` what stands further inside."""
    if prefix.startswith("*"):
        return f"contain {prefix.removeprefix('*')}"
    return f"begin with {prefix}"


def _fact_text(node: Node) -> str:
    """A value that a document of a folder says of all of it."""
    return f"{node:g}" if isinstance(node, float) else cut(scalar_text(look(node)), 100)


def _counters_text(values: list[Value]) -> str:
    """The counters of epochs and steps among values below one key."""
    # Here: few files have values below a key.
    from ckpt.commands.inspect.card_text import counters_below

    return counters_below(values)


def _metadata_texts(report: Inspection) -> list[Value]:
    """The texts in the metadata of safetensors, which have a line of their own.

    What a format of another program says of itself, such as GGUF, is among the values.
    """
    if report.selected or report.checkpoint.traits.has_own_metadata:
        return []
    texts = [value for value in report.values if is_metadata(value.path[:-1])]
    is_told = any(value.path[-1] != "format" for value in texts)  # every writer says pt
    return texts if is_told else []


def _value_texts(report: Inspection) -> list[str]:
    """The values outside of the sections, one piece a top-level key."""
    if report.selected:
        return []
    containers = report.checkpoint.containers
    is_module = bool(containers) and containers[0].is_module and not containers[0].path
    # A value below a section belongs to it; few depths occur, so that few slices are
    # made.
    covered = {part.path for part in report.sections if part.path}
    depths = {len(path) for path in covered}
    groups: dict[object, list[Value]] = {}
    has_own = report.checkpoint.traits.has_own_metadata
    facts: dict[str, str] = {}
    for label, node in report.checkpoint.facts:
        _add_fact(facts, label, _fact_text(node))
    pieces: list[str] = []
    for value in report.checkpoint.values:
        if not value.path:
            if value.fields is not None:
                pieces.append(("module " if is_module else "") + show(value.type, 80))
            elif value.same_as is None:
                pieces.append(value_text(value))
            continue
        if value.path[0] in REGISTERED or value.type in UNINITIALIZED:
            continue
        is_covered = depths and any(value.path[:depth] in covered for depth in depths)
        if not is_covered:
            groups.setdefault(value.path[0], []).append(value)
    # A file may have values by the hundred thousand: only those that are shown are
    # written as text.
    shown = [values for values in groups.values() if _is_shown(values, has_own)]
    count = len(pieces) + len(shown)
    for values in shown[: max(_VALUES - len(pieces), 0)]:
        name, text = _group_text(values)
        # A fact of the whole folder, or of this part of it, has the name already.
        if name in facts:
            _add_fact(facts, name, text)
        else:
            pieces.append(f"{name} {text}")
    if count > _VALUES:
        pieces = [*pieces[:_VALUES], f"{count - _VALUES} more (--values)"]
    return [*(f"{label} {text}" for label, text in facts.items()), *pieces]


def _add_fact(facts: dict[str, str], label: str, text: str) -> None:
    """Add what is said of a label, once."""
    if label not in facts:
        facts[label] = text
    elif facts[label] != text:
        facts[label] += f", {text}"


def _is_shown(values: list[Value], has_own_metadata: bool) -> bool:
    """Tell whether the values below one key of the root are shown among the values."""
    first = values[0]
    # The values that a module has beside its tensors, unset.
    if str(first.path[0]).startswith("_") and value_text(first) == "None":
        return False
    # The metadata of safetensors has a line of its own.
    return has_own_metadata or len(first.path) == 1 or not is_metadata(first.path)


def _group_text(values: list[Value]) -> tuple[str, str]:
    """The key of the root above some values, with the value itself, or how many there
    are.
    """
    first = values[0]
    name = show(str(first.path[0]), 40)
    if len(first.path) == 1:
        return name, value_text(first)
    counters = _counters_text(values)
    text = counted_noun(len(values), "value")
    return name, f"{text} ({counters})" if counters else text

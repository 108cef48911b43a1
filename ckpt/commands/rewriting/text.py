"""The report of a written result, as text: the changes, what was left out or left
alone, where it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from ckpt.commands.rewriting.report import (
    AverageSource,
    Change,
    Coverage,
    Leftover,
    Pairing,
    RewriteReport,
    Share,
    Status,
)
from ckpt.evidence.extras import ExtraKind, what_they_are
from ckpt.formats.save import SavedFile
from ckpt.model.names import LazyPattern
from ckpt.model.text import (
    LONG_NAME,
    and_more,
    be_verb,
    counted_noun,
    merge_alike_rows,
    pasted_path,
    percent_text,
    show,
    show_folded_names,
    show_literal,
    show_name,
    show_names,
    size_text,
)
from ckpt.surface.text.lines import (
    NAME,
    Column,
    Line,
    break_line,
    cells,
    column_lines,
    hanging_lines,
    pasted_line,
    shorten_name,
    whole,
    wrap_text,
)

DRY_RUN = "nothing was written (--dry-run)"
_CHANGES = 12
_LEFT = 20
_ROOM = 70
"""Columns of a folded name, with room for how many it stands for."""
_ALIKE = 8
"""So many parts that are left out for one reason are one line."""
_FOLDED = 5_000
"""The names that are compared for what they have in common."""


def rewrite_lines(report: RewriteReport, width: int | None = None) -> list[Line]:
    """The report as a person reads it, broken to fit `width`."""
    out: list[Line] = []
    for row in _report_lines(report, width):
        out += break_line(row, width)
    return out


def _report_lines(report: RewriteReport, width: int | None) -> list[Line]:
    saved = report.saved
    out: list[Line] = []
    if report.share is not None:
        out.append([(_share_text(report.share), "head")])
        for reason in report.share.reasons:
            # The lines of what is lost name the tensors, with their bytes.
            text = _LOST_NAMES.sub("", reason) if report.lost else reason
            if text:
                out.append([(f"  {show_literal(text)}", "")])
    # The first words of all rows are known before the first line: they are one column.
    is_refused = report.coverage is not None and bool(report.coverage.refusal)
    # The plan above says what would be loaded: of a refusal nothing is.
    changes = [] if is_refused else _folded_changes(report.changes)
    rows = [
        (_arrow_text(change), _change_text(change)) for change in changes[:_CHANGES]
    ]
    size = max((cells(head) for head, _ in rows if cells(head) <= NAME), default=0)
    for head, what in rows:
        out.append(
            [(head + " " * (max(size - cells(head), 0) + 3), "name"), (what, "")]
        )
    if len(changes) > _CHANGES:
        # Folded renames stand for many tensors, other changes for one row each.
        further = sum(change.number for change in changes[_CHANGES:])
        if all(change.kind != "name" for change in changes):
            further = len(changes) - _CHANGES
        out.append([(f"… {further:,} more (--json)", "dim")])
    if not report.changes and report.nothing:
        out.append([(f"{whole(show(report.source.path, None))}: {report.nothing}", "")])
    for fill in report.filled:
        out.append([(f"filled: {show_names(fill.names, _LEFT)}", "")])
    # Only what safetensors hold once; a pickle holds both names.
    tied = [
        f"{show(name, 80)} is {show(first, 80)}" for name, first in report.tied.items()
    ]
    if tied and report.changes:
        out.append([(f"tied, held once: {and_more(tied, 3)}", "")])
    if report.carried and not is_refused:
        out.append([(f"carried along: {show_names(report.carried, _LEFT)}", "")])
    out += _leftover_lines("lost", _fold_leftovers(report.lost))
    out += _source_lines(report.sources, width)
    if report.account is not None:
        out += report.account.lines(width)
    absent = () if report.coverage is None else report.coverage.absent
    if absent:  # the plan has said why of each
        names = show_folded_names(absent, _LISTED)
        out += hanging_lines([("left out: ", "")], names, width, 2)
    rest = tuple(row for row in report.left_out if row.name not in absent)
    out += _leftover_lines("left out", _fold_leftovers(rest, least=_ALIKE))
    alone = tuple(row for row in report.left_alone if not row.is_changed)
    out += _leftover_lines(
        "left alone", _merge_leftovers(alone) if report.sources else alone
    )
    changed = tuple(row for row in report.left_alone if row.is_changed)
    out += _leftover_lines("in the result", changed)
    # Counted while the file was written: a dry run does not know them.
    overflowed = 0 if saved is None else saved.overflowed
    if overflowed:
        names = " and ".join(
            dict.fromkeys(str(c.after) for c in report.changes if c.kind == "dtype")
        )
        names = names or _only_float(report) or "the dtype of their tensors"
        text = (
            f"{counted_noun(overflowed, 'element')} became infinite, because {names} "
            "cannot represent them"
        )
        if report.sources:  # some types of 8 bits have no infinity
            text = f"{counted_noun(overflowed, 'mean')} beyond the range of {names}"
        out.append([(text, "warning")])
    if saved is not None and saved.vanished:
        names = " and ".join(
            dict.fromkeys(str(c.after) for c in report.changes if c.kind == "dtype")
        )
        text = (
            f"{counted_noun(saved.vanished, 'element')} became 0, because "
            f"{names or 'the new dtype'} has no number so small"
        )
        out.append([(text, "warning")])
    if saved is not None:
        out += _saved_lines(report, saved, width)
    elif report.is_dry_run:
        out.append([(DRY_RUN, "dim")])
    return out


_LOST_NAMES = re.compile(
    r"(?:; )?(?:[\d,]+ tensors? (?:is|are) not whole|"
    r"parts of [\d,]+ tensors? are missing): .*",
    re.DOTALL,
)
"""The end of a reason that names tensors which are not whole."""


def _share_text(share: Share) -> str:
    """`57 of 60 tensors are whole, 98 % of 12.3 MiB`."""
    verb = be_verb(share.tensors)
    text = f"{share.tensors:,} of {counted_noun(share.of, 'tensor')} {verb} whole"
    if share.of_bytes is None:  # the sizes of lost tensors are lost too
        return f"{text}, {size_text(share.nbytes)}"
    return (
        f"{text}, {percent_text(share.nbytes, share.of_bytes)} of "
        f"{size_text(share.of_bytes)}"
    )


def _source_lines(sources: Sequence[AverageSource], width: int | None) -> list[Line]:
    """The shares of the checkpoints in a mean, and how their names were aligned."""
    out: list[Line] = []
    for index, row in enumerate(sources[:_CHANGES]):
        notes = [f"{one}* → {two}*" for one, two in [row.aligned] if one or two]
        notes = [f"aligned: {note}" for note in notes]
        notes += [
            f"renamed: {rename.label}, {counted_noun(rename.met, 'tensor')}"
            for rename in row.renames
            if rename.kind != "start"
        ]
        if index == len(sources) - 1:
            notes = ["gives names, order and dtypes"]
        note = f"   {'; '.join(notes)}" if notes else ""
        out += hanging_lines(
            [(f"{row.share:.4g} × ", "")],
            f"{whole(show(row.path, None))}{note}",
            width,
            2,
        )
    if len(sources) > _CHANGES:
        out.append([(f"… {len(sources) - _CHANGES:,} more (--json)", "dim")])
    return out


def _folded_changes(changes: Sequence[Change]) -> Sequence[Change]:
    """The changes, where many names changed in one way as one: `model.* → *`."""
    if len(changes) <= _CHANGES or any(change.kind != "name" for change in changes):
        return changes
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        before, after = _changed_part(change.before or "", change.after or "")
        groups.setdefault((before, after, change.section), []).append(change)
    folded = []
    for (before, after, section), group in groups.items():
        count = len(group)
        if count == 1:
            folded.append(group[0])
        else:
            folded.append(
                Change("name", before, after, count, "tensor", section=section)
            )
    return folded


def _changed_part(before: str, after: str) -> tuple[str, str]:
    """Two names with `*` for the parts that both end and begin with."""
    # The common end first: `model.layer.weight` and `layer.weight` end alike.
    old, new = before.split("."), after.split(".")
    end = _common_length(old[::-1], new[::-1])
    start = _common_length(old[: len(old) - end], new[: len(new) - end])
    texts = [
        [*["*"][:start], *parts[start : len(parts) - end], *["*"][:end]]
        for parts in (old, new)
    ]
    return ".".join(texts[0]), ".".join(texts[1])


def _common_length(one: Sequence[str], two: Sequence[str]) -> int:
    """The number of items that two lists begin with alike."""
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return index
    return min(len(one), len(two))


def _fold_leftovers(
    rows: tuple[Leftover, ...], *, least: int = 2
) -> tuple[Leftover, ...]:
    """Return the rows, as one row where texts are equal and names are alike, if these
    are as many as `least`.
    """
    # Beyond this number the rows stand one by one.
    looks = [(row.name, (row.what, row.hint, row.is_value)) for row in rows[:_FOLDED]]
    folded: list[Leftover] = []
    for name, indices in merge_alike_rows(looks):
        first = rows[indices[0]]
        if len(indices) < least or first.is_value:
            folded += [rows[index] for index in indices]
            continue
        sizes = [rows[index].nbytes or 0 for index in indices]
        text = f"{shorten_name(name, _ROOM)} ×{len(indices):,}"
        folded.append(first._replace(name=text, nbytes=sum(sizes)))
    return (*folded, *rows[_FOLDED:])


def _merge_leftovers(rows: Sequence[Leftover]) -> tuple[Leftover, ...]:
    """The rows, those with the same text in one."""
    groups: dict[str, list[Leftover]] = {}
    for row in rows:
        groups.setdefault(row.what, []).append(row)
    merged: list[Leftover] = []
    for what, group in groups.items():
        if len(group) == 1:
            merged += group
            continue
        name = show_folded_names([row.name for row in group], 2)
        nbytes = sum(row.nbytes or 0 for row in group)
        merged.append(Leftover(name, what, nbytes))
    return tuple(merged)


def _arrow_text(change: Change) -> str:
    names = [
        whole(show(text, 80))
        for text in (change.before, change.after)
        if text is not None
    ]
    arrow = " → ".join(names)
    if not change.name:
        return arrow
    name = whole(show_name(change.name))
    if change.before is None:
        return f"{name}: {arrow}, added"
    return f"{name}: {arrow}, deleted" if change.after is None else f"{name}: {arrow}"


def _change_text(change: Change) -> str:
    text = counted_noun(change.number, change.unit) if change.unit else ""
    if change.nbytes:
        text += f", {size_text(change.nbytes)}" if text else size_text(change.nbytes)
    return f"{text} of {show(change.section, 60)}" if change.section and text else text


def _only_float(report: RewriteReport) -> str:
    """The name of the one floating dtype of the result, or `` where it has several."""
    found = {
        entry.tensor.dtype.name
        for entry in report.result.tensors
        if entry.tensor.dtype.kind == "float"
    }
    return found.pop() if len(found) == 1 else ""


def _leftover_lines(title: str, rows: tuple[Leftover, ...]) -> list[Line]:
    out: list[Line] = []
    unset = [
        row for row in rows if row.is_value and row.what == "None" and not row.hint
    ]
    if len(unset) > 1:  # nothing that anybody misses: one line
        rows = tuple(row for row in rows if row not in unset)
        out.append(
            [(f"{title}: {show_names([row.name for row in unset], 6)} = None", "")]
        )
    for row in rows[:_LEFT]:
        # Values have no size of their own.
        size = f", {size_text(row.nbytes)}" if row.nbytes else ""
        hint = f"  ({row.hint})" if row.hint else ""
        what = show_literal(row.what)
        if row.is_value:
            what = f" = {what}"
        elif what:
            what = f": {what}"
        out.append(
            [(f"{title}: {whole(show_name(row.name))}{what}{size}", ""), (hint, "dim")]
        )
    if len(rows) > _LEFT:
        out.append([(f"{title}: {len(rows) - _LEFT:,} more (--json)", "dim")])
    return out


def _saved_lines(
    report: RewriteReport, saved: SavedFile, width: int | None
) -> list[Line]:
    path = whole(show(saved.path, None))
    same = ", every tensor byte unchanged" if report.unchanged_bytes else ""
    checks = "".join(
        f", {name} verified in {seconds:.2f} s"
        for name, seconds in saved.checks
        if name in ("crc", "torch")
    )
    if saved.relisted:
        # The list of the items comes first, then the files of changed items.
        list_of_items, *new = saved.relisted
        text = f"rewrote {list_of_items} of {path} in place"
        if new:
            names = and_more([show(name, 80) for name in new], 3)
            text += f", changed items are in {names}"
        text += f"; its data files are as they were{checks}"
        return [[(text, "")]]
    if saved.appended is not None:
        name = pasted_path(saved.path)
        # The file only grew: the old bytes stay in front.
        before = saved.nbytes - saved.appended
        text = (
            f"rewrote {path} in place: {size_text(saved.appended)} added to "
            f"{size_text(before)}{same}{checks}"
        )
        kept = "  the old pickle stays in the file as dead bytes"
        undo = f"ckpt rehome --undo {name}"
        line = kept if name is None else f"{kept} (to take it back: {undo})"
        if name is None or width is None or cells(line) <= width:
            return [[(text, "")], [(line, "dim")]]
        return [
            [(text, "")],
            [(f"{kept}; to take it back:", "dim")],
            pasted_line(whole(undo), width),
        ]
    if saved.shards is not None:
        path += f" and {saved.shards} shards"
        out_of_shards = _opened_by(saved.path, report.carried)
    else:
        out_of_shards = []
    if saved.files is not None:
        path += f" with {counted_noun(saved.files, 'file')}"
    # Other commands have another aim than a smaller file.
    won = report.source.nbytes - saved.nbytes if report.command == "slim" else 0
    less = f", {size_text(won)} less" if won > 0 else ""
    return [
        [(f"wrote {path}, {size_text(saved.nbytes)}{less}{same}{checks}", "")],
        *out_of_shards,
    ]


def _opened_by(index: str, carried: Sequence[str]) -> list[Line]:
    """Return the line that says how `from_pretrained` opens shards, which it finds by
    the name of their index alone.
    """
    folder, slash, name = index.rpartition("/")
    match = _INDEX.fullmatch(name)
    if match is None:
        return [
            [
                (
                    (
                        "  from_pretrained looks for model.safetensors.index.json in "
                        "a folder (-o FOLDER/model.safetensors)"
                    ),
                    "dim",
                )
            ]
        ]
    text = (
        "  from_pretrained opens the folder "
        f"{whole(show(folder or slash or '.', None))}"
    )
    if match["variant"]:
        text += f' with variant="{match["variant"]}"'
    is_whole = any(file.endswith("config.json") for file in carried)
    return [
        [
            (
                text
                if is_whole
                else f"{text} once config.json of the model lies in it (--with-config)",
                "dim",
            )
        ]
    ]


_INDEX = LazyPattern(
    r"(?:model|diffusion_pytorch_model)\.safetensors\.index(?:\.(?P<variant>\w{1,40}))?"
    r"\.json"
)
"""The indexes that transformers and diffusers look for."""
_LISTED = 6
_MODULES = 40
_RULES = 12


def coverage_lines(coverage: Coverage, *, width: int | None = None) -> list[Line]:
    """The report as a person reads it."""
    # A model on the meta device has nothing to keep.
    kept = "left out" if coverage.absent else "kept"
    # Counters of profilers, and what is computed when the model is built.
    statuses: tuple[Status, ...] = ("missing", "unexpected")
    light = {status: coverage.without_weights(status) for status in statuses}
    rest = {
        status: _pairings_without(coverage.of(status), light[status])
        for status in light
    }
    pieces, listed = _partly_loaded(coverage, width)
    if coverage.of("kept"):
        pieces.append(f"{len(coverage.of('kept')):,} {kept}")
    pieces += [f"{len(rows):,} {status}" for status, rows in rest.items()]
    number = sum(sum(map(len, kinds.values())) for kinds in light.values())
    if number:
        pieces.append(f"{number:,} without weights")
    first, *more = wrap_text("; ".join(pieces), width)
    out: list[Line] = [[(first, "head")], *([(f"  {line}", "head")] for line in more)]
    out += listed
    out += _alignment_lines(coverage, width)
    tensors, of = coverage.tensors
    # If all is loaded, its parts say nothing more.
    if tensors < of:
        out += _halves_lines(coverage, width)
        out += _module_lines(coverage, kept, width)
    where = "left out" if coverage.absent else "kept as they were"
    out += _list_lines(f"not in PRETRAINED, {where}", rest["missing"], width)
    out += _list_lines("not in the target, ignored", rest["unexpected"], width)
    for status, what in zip(statuses, (kept, "ignored"), strict=True):
        for kind, rows in light[status].items():
            out += _list_lines(f"{what}, {what_they_are(kind)}", rows, width)
    for note in coverage.notes:
        out += hanging_lines([("! ", "")], note, width, 2, "warning")
    return out


def _partly_loaded(
    coverage: Coverage, width: int | None
) -> tuple[list[str], list[Line]]:
    """The first pieces of the headline, with the tensors that are loaded and not as
    they are; and their lines, where several reasons need one each.
    """
    tensors, of = coverage.tensors
    share = percent_text(*coverage.elements)
    pieces = [
        f"loads {tensors:,} of {counted_noun(of, 'tensor')}, {share} of the model"
    ]
    # Tensors that are loaded, but not as they are.
    in_part = (
        ("cast", coverage.of("cast")),
        ("in part", coverage.of("sliced")),
        ("tied", coverage.of("tied")),
    )
    listed: list[Line] = []
    for label, rows in in_part:
        reasons = _by_reason(rows)
        if len(reasons) == 1:
            pieces.append(f"{label}: {reasons[0]}")
            continue
        if not reasons:
            continue
        pieces.append(f"{len(rows):,} {label}")
        for reason in reasons[:_LISTED]:
            listed += hanging_lines([(f"{label}: ", "")], reason, width, 2)
        if len(reasons) > _LISTED:
            further = len(reasons) - _LISTED
            listed.append([(f"{label}: {further:,} more (--json)", "dim")])
    return pieces, listed


def _alignment_lines(coverage: Coverage, width: int | None) -> list[Line]:
    """The lines on how the names of the two models were made to meet."""
    out: list[Line] = []
    aligned: list[str] = []
    sides = ("pretrained", "target")
    for prefix, side in zip(coverage.aligned, sides, strict=True):
        if prefix:
            aligned.append(f"{prefix}* → * ({side})")
    if aligned:
        met = coverage.component
        count = f", {counted_noun(met.met, 'tensor')}" if met is not None else ""
        text = f"aligned: {', '.join(aligned)}{count}"
        out += hanging_lines([], text, width, 2, "dim")
    # A renamed start of the names stands in the line above.
    rules = [rename for rename in coverage.renames if rename.kind != "start"]
    for rename in rules[:_RULES]:
        evidence = ", by shape and order" if rename.kind == "shape" else ""
        text = (
            f"renamed: {rename.label}, {counted_noun(rename.met, 'tensor')}{evidence}"
        )
        out += hanging_lines([], text, width, 2, "dim")
    if len(rules) > _RULES:
        out.append([(f"… {len(rules) - _RULES:,} more renames (--json)", "dim")])
    for rename in coverage.suggested:
        text = f"{rename.advice} {rename.option}"
        out += hanging_lines([], text, width, 2, "warning")
    return out


def _halves_lines(coverage: Coverage, width: int | None) -> list[Line]:
    """The line on the body and the head: a head for another task is expected not to
    fit, and a body is not.
    """
    if not coverage.head:
        return []
    body, head = coverage.halves()
    head_names = [row.name for row in coverage.pairings if row.name in coverage.head]
    names = show_folded_names(head_names, 2)
    text = f"body {percent_text(*body)} · head {percent_text(*head)} ({names})"
    return hanging_lines([], text, width, 2)


def _module_lines(coverage: Coverage, kept: str, width: int | None) -> list[Line]:
    """The table of the modules, with the first reason why some of each is not loaded.
    `kept` is the word for what stays as it is.
    """
    modules = coverage.modules()
    # A table that says the same on every row says nothing.
    if len(modules) < 2:
        return []
    heads = (
        Column("MODULE", gives_way=True),
        Column("TENSORS", right=True),
        Column("SHARE", right=True),
        Column(""),
    )
    table: list[list[str]] = []
    for module in modules[:_MODULES]:
        some, all_ = module.tensors
        reasons: dict[str, None] = {}
        for row in module.rows:
            if row.status in ("kept", "missing"):
                reasons[_kept_reason(row, kept)] = None
        cells_of_module = [
            show(module.name, 60) or "(the root)",
            f"{some:,} of {all_:,}",
            percent_text(*module.elements),
        ]
        table.append([*cells_of_module, and_more(list(reasons), 1)])
    out: list[Line] = [[], *column_lines(heads, table, width=width)]
    if len(modules) > _MODULES:
        out.append([(f"… {len(modules) - _MODULES:,} more (--json)", "dim")])
    return out


def _pairings_without(
    rows: Sequence[Pairing], kinds: Mapping[ExtraKind, Sequence[Pairing]]
) -> list[Pairing]:
    """The pairings that are of none of these kinds."""
    names = {row.name for row in chain.from_iterable(kinds.values())}
    return [row for row in rows if row.name not in names]


def _kept_reason(row: Pairing, kept: str) -> str:
    """The reason why a tensor keeps its values, or is left out."""
    return f"{kept}: {row.why}" if row.status == "kept" else "not in PRETRAINED"


def _by_reason(rows: Sequence[Pairing]) -> list[str]:
    """`fc.{weight,bias} [1000] → [10]`, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(_pairing_reason(row), []).append(row.name)
    texts = []
    for why, names in reasons.items():
        texts.append(f"{show_folded_names(names, _LISTED)} {why}".rstrip())
    return texts


def _pairing_reason(row: Pairing) -> str:
    if row.status == "cast" and row.source is not None and row.target is not None:
        return f"{row.source.tensor.dtype.name} → {row.target.tensor.dtype.name}"
    if row.status == "sliced" and row.target is not None:
        return f"{row.why} ({percent_text(row.copied, row.target.tensor.numel)})"
    return row.why


def _list_lines(title: str, rows: Sequence[Pairing], width: int | None) -> list[Line]:
    if not rows:
        return []
    # Folded first: of long names the ends alone would look like other siblings.
    folded = merge_alike_rows([(row.name, None) for row in rows])
    names = [show_name(name, LONG_NAME) for name, _ in folded]
    if width is not None:
        # The indent, and a comma.
        names = [shorten_name(name, max(width - 3, 16)) for name in names]
    return hanging_lines(
        [], f"{title}: {and_more(list(map(whole, names)), _LISTED)}", width, 2
    )


def html_coverage(coverage: Coverage) -> str:
    """Return the lines of `ckpt warmstart` on what is loaded into a model."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    return html_of(coverage_lines(coverage, width=WIDTH))


def html_rewrite(report: RewriteReport) -> str:
    """Return the lines of a command that writes."""
    # Here: only a notebook pays for it.
    from ckpt.surface.text.notebook import WIDTH, html_of

    return html_of(rewrite_lines(report, WIDTH))

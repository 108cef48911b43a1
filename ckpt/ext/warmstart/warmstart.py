"""`ckpt warmstart`: the values of a pretrained model in another one: planned by name,
reported, written as bytes.

What is written keeps the target's structure, order, dtypes, devices and `_metadata`.
Nothing is guessed by shape, and what belongs to the old weights is left out: the
optimizer, the scheduler, the average, the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from copy import copy
from math import prod
from typing import Literal

from ckpt.commands.rewriting.edited import edited_checkpoint, with_ties
from ckpt.commands.rewriting.filling import Filling, lies_close
from ckpt.commands.rewriting.report import (
    LOADED,
    Change,
    Coverage,
    Leftover,
    Pairing,
    RewriteReport,
    head_of,
    refuse_script,
    rest_of,
)
from ckpt.commands.rewriting.sets import refuse_incomplete
from ckpt.elements.blocks import elements, memory_order, permute_dims, same_bytes
from ckpt.elements.cast import can_cast
from ckpt.elements.computed import Overlaid, place_of
from ckpt.evidence.adapters import piece_of, scales_of
from ckpt.evidence.alignment import Alignment, Paired, in_turn, pair_tensors
from ckpt.evidence.mapping import Shift, shift_of
from ckpt.evidence.sections import Section, kind_of_key
from ckpt.evidence.survey import Survey
from ckpt.evidence.weights import refuse_emptied
from ckpt.hooks import find_hook, load_hook
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Path, dotted_name
from ckpt.model.nodes import Dict, Node, Opaque, tensor_of
from ckpt.model.places import Place
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, Tensor, TensorRef, tensor_ref, unwrap_dtensor
from ckpt.model.text import (
    and_more,
    be_verb,
    counted_noun,
    percent_text,
    show,
    show_folded_names,
)
from ckpt.tree.find import children_of, node_at
from ckpt.tree.literals import brief_text

LEAST = 0.1
"""The share of the target's elements below which a warm start is refused, unless it was
asked for.
"""
_NOTES = 20
"""Lines about tensors that share memory."""
HALF = 0.5
"""The share below which it is refused where more is known to fit."""


class Options(NamedTuple):
    """The options of a warm start. `mismatch` says what becomes of a tensor that has
    another shape.

    `rules` rename the tensors of the pretrained model. Without `align` names are
    compared as they are; with `by_shape` tensors are paired by shapes and order too.
    `fuse` and `split` put query, key and value together or apart.
    """

    mismatch: Literal["keep", "slice", "error"] = "keep"
    rules: Sequence[Callable[[str], str]] = ()
    section: str | None = None
    into_section: str | None = None
    align: bool = True
    by_shape: bool = False
    fuse: bool = False
    split: bool = False
    count_sliced: bool = False
    """A flag: what is sliced of the last layer counts as loaded."""
    ignore_layout: bool = False
    keep_optimizer: bool = False
    min_coverage: float | None = None
    """The share of the model that must be loaded. None refuses less than a tenth, and
    less than a half where more is known to fit.
    """


def warmstart(
    given: Survey, wanted: Survey, limits: Limits, options: Options | None = None
) -> RewriteReport:
    """The target with the values of the pretrained model where names and shapes agree,
    and the report of it.

    Raises UsageError when a section is not there, when two names would become one, or
    for a tensor of another shape where that is an error.
    """
    options = options or Options()
    source = wanted.checkpoint
    given, wanted, coverage = _plan_sides(given, wanted, limits, options)
    target = wanted.checkpoint
    mine = wanted.only_model(options.into_section, "--into-section")
    taken = coverage.of("loaded", "cast", "sliced")
    # A live model has no optimizer in its state, and loses nothing.
    old: list[OldState] = []
    if not (options.keep_optimizer or target.traits.is_live):
        old = old_state(wanted, mine)
    result = target
    if taken or target.traits.is_live:
        result = _fill_target(target, taken, [row.path for row in old], limits)
    changes: list[Change] = []
    labels: tuple[tuple[Literal["loaded", "cast", "sliced"], str], ...] = (
        ("loaded", "loaded"),
        ("cast", "cast"),
        ("sliced", "in part"),
    )
    for kind, label in labels:
        rows = coverage.of(kind)
        if rows:
            nbytes = sum(row.target.tensor.nbytes for row in rows if row.target)
            changes.append(Change(kind, label, None, len(rows), "tensor", nbytes))
    # A model that was built on meta has values for what was loaded, and no others.
    lost: list[Entry] = []
    if target.traits.is_live:
        here = {entry.name for entry in result.tensors}
        lost = [entry for entry in target.tensors if entry.name not in here]
    if lost:
        text = (
            f"{len(lost):,} of {counted_noun(len(target.tensors), 'tensor')} of the "
            f"model {be_verb(lost)} not in the result: "
            "load_state_dict takes it with strict=False only (--init writes all)"
        )
        absent = tuple(entry.name for entry in lost)
        coverage = coverage._replace(absent=absent, notes=(*coverage.notes, text))
    odd = [Leftover(name, why) for name, why in target.account.left_out]
    # One hint is enough: the option keeps all of them.
    hints = ["--keep-optimizer", *[None] * len(old)]
    dropped = [
        Leftover(row.name, row.what, None, hint)
        for row, hint in zip(old, hints, strict=False)
    ]
    gone = tuple(f"{row.name}." for row in old)
    rest = [] if target.traits.is_live else rest_of(wanted, mine)
    stays = [row for row in rest if not f"{row.name}.".startswith(gone)]
    absent_rows = [
        Leftover(entry.name, "the model has no value for it") for entry in lost
    ]
    return RewriteReport(
        "warmstart",
        source,
        result,
        tuple(changes),
        (*absent_rows, *odd, *dropped),
        tuple(stays),
        unchanged_bytes=False,
        nothing="nothing to load",
        coverage=coverage,
    )


def coverage_of(
    given: Survey, wanted: Survey, limits: Limits, options: Options
) -> Coverage:
    """The plan of a warm start. Raises UsageError as `warmstart` does."""
    return _plan_sides(given, wanted, limits, options)[2]


def _plan_sides(
    given: Survey, wanted: Survey, limits: Limits, options: Options
) -> tuple[Survey, Survey, Coverage]:
    """Both sides, with the tensors that are tied, and the plan. Raises UsageError for
    tensors that may not differ in shape.
    """
    # Each refusal comes before the plan, which would speak of tensors that are not
    # there.
    refuse_script(wanted.checkpoint)
    given, wanted = with_ties(given, limits), with_ties(wanted, limits)
    theirs = given.only_model(options.section)
    mine = wanted.only_model(options.into_section, "--into-section")
    refuse_incomplete(given.checkpoint, theirs.name, "--section")
    refuse_incomplete(wanted.checkpoint)
    refuse_emptied(given, theirs)
    refuse_emptied(wanted, mine)
    plan = _plan_coverage(given, theirs, wanted, mine, options)
    coverage = _with_refusal(plan, options)
    # A tensor that is kept although it has a namesake differs in shape, dtype or kind.
    wrong = [row for row in coverage.of("kept") if row.source is not None]
    if options.mismatch == "error" and wrong:
        rows = and_more([f"{show(row.name, 60)}: {row.why}" for row in wrong], 5, "; ")
        raise UsageError(
            f"does not fit: {rows}", path=given.path, hint="--on-mismatch keep or slice"
        )
    return given, wanted, coverage


# --- the plan -------------------------------------------------------------------------


def _plan_coverage(
    source: Survey, theirs: Section, wished: Survey, mine: Section, options: Options
) -> Coverage:
    pretrained, target = source.checkpoint, wished.checkpoint
    # Rules rename the pretrained side; the names of the target are what they are.
    sides = (
        Alignment(theirs, pretrained.path, in_turn(options.rules), _is_saved),
        Alignment(mine, target.path, keep=_is_saved),
    )
    # Whoever gives rules has decided: no others are suggested.
    suggest = not options.rules
    names = pair_tensors(
        *sides,
        align=options.align,
        suggest=suggest,
        by_shape=options.by_shape,
        layouts=True,
    )
    given = _entries_by_name(pretrained, names.one)
    wanted = _entries_by_name(target, names.two)
    # Name of the target -> the names of its query, key and value; or the name of the
    # whole, and which third of it.
    joins = names.match.joins if options.fuse else {}
    cuts = names.match.cuts if options.split else {}
    rows: list[Pairing] = []
    is_live = target.traits.is_live
    for name, entry in wanted.items():
        partner = names.partners.get(name)
        if name in joins:
            parts = [given[part] for part in joins[name]]
            rows += _fused_rows(name, entry, parts, options, is_live)
        elif name in cuts:
            whole, third = cuts[name]
            rows += _split_rows(name, entry, given[whole], third, options, is_live)
        elif partner is None:
            rows.append(Pairing("missing", name, entry, None))
        else:
            rows.append(_pair_tensor(name, entry, given[partner], options, is_live))
    taken = set(names.partners.values())
    for names_of_parts in joins.values():
        taken.update(names_of_parts)
    taken.update(whole for whole, _ in cuts.values())
    rows += [
        Pairing("unexpected", name, None, entry)
        for name, entry in given.items()
        if name not in taken
    ]
    # The order matters: scales decide what is loaded, and ties look at what is loaded.
    rows, unscaled = _with_scales(rows, source, wished)
    rows = _with_ties(rows)
    notes = [
        *_shared_memory_notes(rows),
        *_adapter_strength_notes(rows),
        *(rename.note for rename in names.renames if rename.note),
        *_idle_option_notes(options, has_joins=bool(joins), has_cuts=bool(cuts)),
    ]
    head = head_of([row for row in rows if row.target is not None])
    # A class of the new task that gets a row of the old one knows nothing.
    if not options.count_sliced:
        grown = _resized_vocabularies(rows, head)
        sliced = {
            row.name
            for row in rows
            if row.name in head
            and _has_other_outputs(row)
            and _outputs(row) not in grown
        }
        rows = [row._replace(copied=0) if row.name in sliced else row for row in rows]
        if sliced:
            names_of_sliced = [row.name for row in rows if row.name in sliced]
            notes.append(
                f"{show_folded_names(names_of_sliced, 4)} is sliced from the last "
                "layer of another task and does not count as loaded (--count-sliced "
                "counts it)."
            )
    # A GGUF has a layout of its own, for which there is an option that helps.
    reason, way = ("", ()) if options.ignore_layout else _gguf_reason(source, wanted)
    coverage = Coverage(
        tuple(rows),
        pretrained.path,
        names.prefixes,
        tuple(notes),
        names.renames,
        names.suggested,
        head,
        way=way or None,
        layout=reason or _layout_reason(pretrained, names, rows),
        unscaled=unscaled,
        shift=_find_shift(names, sides) if options.align else None,
    )
    # Further ways are planned last, for each pairs all names once more.
    return coverage._replace(ways=tuple(_better_ways(coverage, names, sides, options)))


def _idle_option_notes(
    options: Options, *, has_joins: bool, has_cuts: bool
) -> Iterator[str]:
    """Say that --fuse or --split had nothing to do, for query, key and value are put
    together where names are known alone.
    """
    other = "a layout of other names is learnt from a pair by ckpt recipe."
    if options.fuse and not has_joins:
        yield (
            "--fuse joined nothing: ckpt knows no tensor of TARGET that holds query, "
            f"key and value of PRETRAINED; {other}"
        )
    if options.split and not has_cuts:
        yield (
            "--split cut nothing: ckpt knows no tensor of PRETRAINED that holds query, "
            f"key and value of TARGET; {other}"
        )


def _outputs(row: Pairing) -> tuple[int, ...]:
    """Return the number of outputs in the pretrained model and in the target."""
    if row.source is None or row.target is None:
        return ()
    return row.source.tensor.shape[:1] + row.target.tensor.shape[:1]


def _resized_vocabularies(
    rows: Sequence[Pairing], head: Set[str]
) -> set[tuple[int, ...]]:
    """Return the numbers of rows of vocabularies in both models.

    A language model has one row for each token in its embedding and in its last layer.
    Where both have the same two shapes, the last layer answers the same task for more
    tokens or for fewer.
    """
    # Pairs of shapes, (pretrained, target), of the last layer and of all else.
    shapes = {name: set[tuple[tuple[int, ...], ...]]() for name in ("head", "body")}
    for row in rows:
        if not _has_other_outputs(row) or row.source is None or row.target is None:
            continue
        both = (row.source.tensor.shape, row.target.tensor.shape)
        if len(both[0]) == len(both[1]) == 2:
            shapes["head" if row.name in head else "body"].add(both)
    return {before[:1] + after[:1] for before, after in shapes["head"] & shapes["body"]}


def _has_other_outputs(row: Pairing) -> bool:
    """Say whether a sliced tensor has another number of outputs in the pretrained
    model. With as many outputs the task may be the same: only the inputs are fewer.
    """
    if row.status != "sliced" or row.source is None or row.target is None:
        return False
    return row.source.tensor.shape[:1] != row.target.tensor.shape[:1]


def _better_ways(
    coverage: Coverage,
    names: Paired,
    sides: tuple[Alignment, Alignment],
    options: Options,
) -> Iterator[tuple[str, ...]]:
    """Yield the options by which more would be loaded, the best first. Each was
    planned.
    """
    if options.align and names.match.joins and not options.fuse:
        yield ("--fuse",)
    if options.align and names.match.cuts and not options.split:
        yield ("--split",)
    # A tensor of another dtype meets and is not loaded.
    loaded = max(coverage.elements[0], _count_met(names, sides))
    # (elements that would meet, options) of each other way.
    found: list[tuple[int, tuple[str, ...]]] = []
    if not options.align:
        other = pair_tensors(*sides, suggest=False, layouts=True)
        found.append((_count_met(other, sides), ()))
    for rename in coverage.suggested:
        renamed = sides[0].then(rename.rule)
        other = pair_tensors(renamed, sides[1], suggest=False)
        met = _count_met(other, (renamed, sides[1]))
        found.append((met, ("--sub", rename.substitution)))
    # Shapes are a weak reason: they are tried only where names leave most of the model.
    loaded_elements, all_elements = coverage.elements
    has_few = 2 * loaded_elements < all_elements
    if options.align and not options.by_shape and has_few:
        other = pair_tensors(*sides, suggest=False, by_shape=True, layouts=True)
        found.append((_count_met(other, sides), ("--by-shape",)))
    found.sort(key=lambda row: -row[0])
    # A way that is refused in its turn, for it loads next to nothing, is none.
    least = all_elements * LEAST if options.min_coverage is None else 0
    yield from (way for met, way in found if met > loaded and met >= least)


def _find_shift(names: Paired, sides: tuple[Alignment, Alignment]) -> Shift | None:
    """The modules that are probably counted from another number on."""
    return shift_of(
        sides[0].shapes_of(names.one), sides[1].shapes_of(names.two), names.partners
    )


def _count_met(names: Paired, sides: tuple[Alignment, Alignment]) -> int:
    """The elements that meet, with equal shapes."""
    one, two = sides[0].shapes_of(names.one), sides[1].shapes_of(names.two)
    return sum(
        prod(two[name])
        for name, other in names.partners.items()
        if one[other] == two[name]
    )


def _with_refusal(coverage: Coverage, options: Options) -> Coverage:
    """The plan with the reason why nothing should be written, if there is one."""
    # The first reason counts: wrong values come before few values.
    way = coverage.ways[0] if coverage.ways else None
    least = options.min_coverage
    halves = any(way in (("--fuse",), ("--split",)) for way in coverage.ways)
    # A GGUF names its own way, a recipe for example.
    if coverage.way and not options.ignore_layout:
        return coverage._replace(refusal=coverage.layout)
    if coverage.layout and not options.ignore_layout:
        return coverage._replace(
            refusal=(
                f"same shapes, other layout: {coverage.layout}; --recipe RECIPE lays "
                "it out, as ckpt recipe finds it"
            ),
            way=("--ignore-layout",),
        )
    if coverage.shift is not None and not options.ignore_layout:
        subs: list[str] = []
        for text in coverage.shift.substitutions:
            subs += ["--sub", text]
        return coverage._replace(
            refusal=coverage.shift.reason, way=tuple(subs) or ("--ignore-layout",)
        )
    # From here on a share that was asked for is enough.
    if coverage.unscaled and least is None:
        way = ("--min-coverage", "0") if coverage.of(*LOADED) else None
        return coverage._replace(refusal=coverage.unscaled, way=way)
    lost = _left_layers(coverage)
    if lost and least is None:
        why = (
            f"has no place for the adapter of {counted_noun(lost, 'layer')} in "
            f"{show(coverage.source, 80)}: what was trained would be left out; ckpt "
            "merge adds an adapter to its base"
        )
        if coverage.fills_adapter:
            why += ", and the target is an adapter itself"
        return coverage._replace(
            refusal=why,
            way=("--min-coverage", "0") if coverage.of(*LOADED) else None,
            adapter_layers=lost,
        )
    if not coverage.of(*LOADED):
        return coverage._replace(refusal="no pretrained tensor fits", way=way)
    if least is not None:
        few = coverage.share < least
        why = (
            f"{percent_text(*coverage.elements)} would be loaded, less than "
            f"--min-coverage {least:g} of the model"
        )
        return coverage._replace(refusal=why, way=way) if few else coverage
    if halves:
        why = "query, key and value are one tensor on one side, three on the other"
        return coverage._replace(refusal=why, way=way)
    if way is not None and coverage.share < HALF:
        return coverage._replace(
            refusal="less than half of the model, and more would fit", way=way
        )
    if coverage.share < LEAST:
        why = (
            f"{percent_text(*coverage.elements)} would be loaded, less than "
            f"{100 * LEAST:g} % of the model"
        )
        return coverage._replace(refusal=why, way=("--min-coverage", "0"))
    return coverage


def _left_layers(coverage: Coverage) -> int:
    """The number of layers whose adapter (LoRA, LoHa, LoKr) finds no place in the
    target.
    """
    modules: set[str] = set()
    for row in coverage.of("unexpected"):
        piece = None if row.source is None else piece_of(row.source.name)
        # These two are no weights of the adapter: a scale and a norm.
        if piece is not None and piece.part not in ("alpha", "magnitude"):
            modules.add(piece.module)
    return len(modules)


def _adapter_strength_notes(rows: Sequence[Pairing]) -> Iterator[str]:
    """Yield the scale of an adapter that only one side keeps: the same tensors act
    stronger or weaker without it.
    """
    # The rank of each adapter is the number of rows of its `down` matrix.
    ranks: dict[str, int] = {}
    theirs: set[str] = set()
    """The same modules by their names in the target."""
    for row in rows:
        if row.status not in LOADED or row.source is None:
            continue
        piece = piece_of(row.source.name)
        if piece is None or piece.part != "down" or not row.source.tensor.shape:
            continue
        ranks[piece.module] = row.source.tensor.shape[0]
        other = piece_of(row.target.name) if row.target is not None else None
        if other is not None:
            theirs.add(other.module)
    if not ranks:
        return
    sides = (("unexpected", ranks.keys()), ("missing", theirs))
    for status, modules in sides:
        alphas: list[Tensor] = []
        for row in rows:
            entry = row.source or row.target
            if row.status != status or entry is None:
                continue
            piece = piece_of(entry.name)
            if piece is None or piece.part != "alpha":
                continue
            if piece.module in modules:
                alphas.append(entry.tensor)
        if not alphas:
            continue
        text = scales_of(alphas, tuple(sorted(set(ranks.values())))).text or "alpha"
        if status == "unexpected":
            yield (
                f"PRETRAINED scales its layers by alpha / rank: {text}. The target has "
                "no alpha, so its strength differs unless its configuration has this "
                "lora_alpha."
            )
        else:
            yield (
                f"The target keeps its own {text}. PRETRAINED has no alpha: its scale "
                "is in its configuration (lora_alpha), and the strength differs where "
                "that is another one."
            )


# --- the layout of values -------------------------------------------------------------


def _gguf_reason(source: Survey, wanted: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The reason why a GGUF file does not fit a model of transformers as it is, or ``,
    and the option that helps.
    """
    # Only a GGUF has metadata of its own.
    if not source.checkpoint.traits.has_own_metadata:
        return "", ()
    found: tuple[str, tuple[str, ...]] = load_hook("gguf").layout_reason(
        source, set(wanted)
    )
    return found


def _layout_reason(
    pretrained: Checkpoint, names: Paired, rows: Sequence[Pairing]
) -> str:
    """The reason why tensors of equal names and shapes hold other values than the
    target's code expects, or ``.
    """
    if names.match.layout:
        return names.match.layout
    return _caffe_reason(pretrained, rows) or _transposed_reason(rows)


def _caffe_reason(pretrained: Checkpoint, rows: Sequence[Pairing]) -> str:
    """The reason why the first convolution sees the channels of its image in reverse,
    or ``.

    Files of detectron2 say that Caffe2 wrote them; model zoos have `caffe` in the name
    of the file.
    """
    first = next(
        (
            row
            for row in rows
            if row.source is not None and len(row.source.tensor.shape) == 4
        ),
        None,
    )
    if first is None or first.status not in LOADED or first.source is None:
        return ""
    # The first convolution of an image model is [outputs, 3, height, width].
    if first.source.tensor.shape[1] != 3:
        return ""
    keys = {str(key): child for key, child in children_of(pretrained.root)}
    author = keys.get("__author__")
    name = pretrained.path.replace("\\", "/").rpartition("/")[2].lower()
    is_of_caffe = "caffe" in str(author).lower() or "caffe" in name
    if is_of_caffe or "matching_heuristics" in keys:
        return (
            "a model of Caffe reads images as BGR, so the channels of "
            f"{show(first.name, 60)} are reversed"
        )
    return ""


def _transposed_reason(rows: Sequence[Pairing]) -> str:
    """The reason why square matrices are probably transposed, or ``: their neighbours
    are, as Conv1D of GPT-2 keeps them.
    """
    # Module -> a matrix in it whose shape is the reverse of the target's.
    turned: dict[str, str] = {}
    for row in rows:
        if row.status != "kept" or row.source is None or row.target is None:
            continue
        shape = row.target.tensor.shape
        is_oblong = len(shape) == 2 and shape[0] != shape[1]
        if is_oblong and row.source.tensor.shape == shape[::-1]:
            for module in _inner_modules(row.name):
                turned.setdefault(module, row.name)
    # A square matrix has the same shape in both layouts: its neighbours tell.
    for row in rows:
        shape = row.target.tensor.shape if row.target is not None else ()
        if row.status in LOADED and len(shape) == 2 and shape[0] == shape[1]:
            names = (
                turned[part] for part in _inner_modules(row.name) if part in turned
            )
            other = next(names, None)
            if other is not None:
                return (
                    f"{show(other, 60)} is transposed, as Conv1D of transformers keeps "
                    f"it, so {show(row.name, 60)} is too"
                )
    return ""


def _inner_modules(name: str) -> list[str]:
    """Return the last two modules in a name: `attn` and `c_attn` of
    `h.0.attn.c_attn.weight`.
    """
    return name.rsplit(".", 3)[:-1][1:]


# --- query, key and value -------------------------------------------------------------


def _fused_rows(
    name: str,
    target: Entry,
    parts: Sequence[Entry],
    options: Options,
    is_live: bool,
) -> list[Pairing]:
    """The rows of a tensor that holds query, key and value one after the other."""
    rows = [len_of(part) for part in parts]
    if not _is_made_of_parts(target, sum(rows), parts):
        shapes = " + ".join(str(list(part.tensor.shape)) for part in parts)
        why = f"{shapes} → {list(target.tensor.shape)}"
        return [Pairing("kept", name, target, parts[0], why=why)]
    starts = [0, rows[0], rows[0] + rows[1]]
    fused: list[Pairing] = []
    for part, start, count in zip(parts, starts, rows, strict=True):
        # Some rows of the target are a tensor of their own, that the part is loaded
        # into.
        own = _rows_of(target, start, count)
        row = _pair_tensor(name, own, part, options, is_live)
        fused.append(_with_rows(row, "target", start, count))
    return fused


def _split_rows(
    name: str,
    target: Entry,
    whole: Entry,
    third: int,
    options: Options,
    is_live: bool,
) -> list[Pairing]:
    """The row of a tensor that is a third of another one."""
    count = len_of(target)
    if not _is_made_of_parts(whole, 3 * count, [target] * 3):
        why = f"a third of {list(whole.tensor.shape)} → {list(target.tensor.shape)}"
        return [Pairing("kept", name, target, whole, why=why)]
    part = _rows_of(whole, third * count, count)
    row = _pair_tensor(name, target, part, options, is_live)
    return [_with_rows(row, "pretrained", third * count, count)]


def _with_rows(
    row: Pairing, side: Literal["target", "pretrained"], start: int, count: int
) -> Pairing:
    return row._replace(rows=(side, start, start + count))


def len_of(entry: Entry) -> int:
    """The rows of a tensor; 0 for a number."""
    return entry.tensor.shape[0] if entry.tensor.shape else 0


def _is_made_of_parts(whole: Entry, rows: int, parts: Sequence[Entry]) -> bool:
    """Tell whether the parts, one below the other, have the shape of the whole."""
    shapes = {part.tensor.shape[1:] for part in parts}
    strided = all(isinstance(entry.tensor, TensorRef) for entry in (whole, *parts))
    return strided and len_of(whole) == rows > 0 and shapes == {whole.tensor.shape[1:]}


def _rows_of(entry: Entry, start: int, count: int) -> Entry:
    """Some rows of a tensor."""
    ref = entry.tensor
    # A view of the same storage: the offset counts elements.
    assert isinstance(ref, TensorRef)
    shape = (count, *ref.shape[1:])
    view = tensor_ref(
        ref.storage, ref.dtype, shape, ref.stride, ref.offset + start * ref.stride[0]
    )
    return entry._replace(tensor=view._replace(conj=ref.conj, neg=ref.neg))


# --- the rows -------------------------------------------------------------------------


def _is_saved(entry: Entry) -> bool:
    """Tell whether a state dict holds the tensor."""
    return entry.registered and entry.persistent


def _entries_by_name(
    checkpoint: Checkpoint, indices: dict[str, int]
) -> dict[str, Entry]:
    found = {name: checkpoint.tensors[index] for name, index in indices.items()}
    for name, entry in found.items():
        tensor = unwrap_dtensor(entry.tensor)
        # A DTensor of which its rank holds all is the tensor inside of it.
        if tensor is not entry.tensor:
            found[name] = entry._replace(tensor=tensor)
    return found


def _pair_tensor(
    name: str, target: Entry, source: Entry, options: Options, is_live: bool
) -> Pairing:
    """Decide what becomes of a tensor of the target that has a namesake."""
    mine, other = target.tensor, source.tensor
    if not isinstance(other, TensorRef):
        why = f"the pretrained tensor is {other.layout}"
        return Pairing("kept", name, target, source, why=why)
    if not isinstance(mine, TensorRef):
        why = f"the target's tensor is {mine.layout}"
        return Pairing("kept", name, target, source, why=why)
    reason = _unfit_reason(mine, other, is_live)
    if reason is not None:
        return Pairing("kept", name, target, source, why=reason)
    if mine.shape == other.shape:
        status: Literal["loaded", "cast"] = "cast"
        if mine.dtype == other.dtype:
            status = "loaded"
        return Pairing(status, name, target, source, mine.numel)
    shapes = f"{list(other.shape)} → {list(mine.shape)}"
    # A slice leaves the rest of the target as it is, so the target needs values.
    may_slice = options.mismatch == "slice" and mine.storage.place is not None
    if may_slice and len(mine.shape) == len(other.shape):
        sizes = zip(mine.shape, other.shape, strict=True)
        copied = prod(min(pair) for pair in sizes)
        # Two elements in one byte cannot be written apart.
        if copied and mine.dtype.bits >= 8:
            return Pairing("sliced", name, target, source, copied, shapes)
    return Pairing("kept", name, target, source, why=shapes)


def _unfit_reason(mine: TensorRef, other: TensorRef, is_live: bool) -> str | None:
    """Return why no value of a pretrained tensor can be written into the target's, or
    None. Shapes are not compared.
    """
    if other.numel and other.storage.place is None:
        return "the pretrained tensor is on meta, without data"
    # A live model may be built on meta: what is loaded gets memory.
    if mine.numel and mine.storage.place is None and not is_live:
        return "the target's tensor is on meta, without data"
    if mine.numel and (mine.conj or mine.neg):
        return "the target's tensor is a conjugate or negative view"
    if mine.numel and not lies_close(mine):
        return "the target's tensor is not contiguous"
    if mine.dtype != other.dtype and not can_cast(other.dtype, mine.dtype):
        return f"ckpt does not cast {other.dtype.name} to {mine.dtype.name}"
    return None


def _with_ties(rows: list[Pairing]) -> list[Pairing]:
    """The rows, those tied that get their values under another name: they look at the
    same memory.
    """
    # The memory of the target -> the first row that loads it.
    loaded: dict[tuple[object, ...], Pairing] = {}
    for row in rows:
        if row.status in ("loaded", "cast", "sliced"):
            loaded.setdefault(_target_memory(row), row)
    out = []
    for row in rows:
        twin = None
        if row.status in ("missing", "kept"):
            twin = loaded.get(_target_memory(row))
        # An empty tensor has no memory to share.
        if twin is not None and row.target is not None and _target_memory(row):
            why = f"tied to {twin.name}"
            row = row._replace(
                status="tied", copied=min(twin.copied, row.target.tensor.numel), why=why
            )
        out.append(row)
    return out


def _with_scales(
    rows: Sequence[Pairing], given: Survey, wanted: Survey
) -> tuple[list[Pairing], str]:
    """The rows, where codes come with the scales beside them or stay; and why codes of
    one side meet values of the other.

    A cast of codes gives other weights, and so do the codes of one model with the
    scales of another.
    """
    sides = [(survey.scaled, survey) for survey in (given, wanted)]
    # Most checkpoints have no codes: their rows stay as they are.
    if not any(scaled.codes or scaled.unpaired or scaled.beside for scaled, _ in sides):
        return list(rows), ""
    places = [
        {entry.name: index for index, entry in enumerate(survey.tensors)}
        for _, survey in sides
    ]
    # [row][side] is the word for a tensor of codes or scales, or None.
    whats: list[list[str | None]] = []
    # (side, owner) -> the rows of a tensor of codes and of what belongs to it.
    groups: dict[tuple[int, int], list[int]] = {}
    for number, row in enumerate(rows):
        labels: list[str | None] = []
        for side, entry in enumerate((row.source, row.target)):
            index = places[side].get(entry.name) if entry is not None else None
            scaled = sides[side][0]
            labels.append(None if index is None else scaled.what(index))
            owner = None if index is None else scaled.group_of(index)
            if owner is not None:
                groups.setdefault((side, owner), []).append(number)
        whats.append(labels)
    # Row -> why it is kept; reason -> the names it is about.
    stays: dict[int, str] = {}
    met: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        theirs, mine = whats[number]
        meets = row.status in LOADED or (row.status == "kept" and _has_one_shape(row))
        if meets and (theirs is None) != (mine is None):
            holder = "PRETRAINED" if mine is None else "the target"
            stays[number] = f"{theirs or mine} in {holder}, values in the other"
            met.setdefault(stays[number], []).append(row.name)
        elif row.status in LOADED and theirs is not None and row.status != "loaded":
            stays[number] = f"{theirs}, which are not cast or cut"
    # From each tensor that stays, all that belongs to it stays too, and so on.
    todo = [*stays]
    for numbers in groups.values():
        todo += [number for number in numbers if rows[number].status not in LOADED]
    of_row: dict[int, list[list[int]]] = {}
    for numbers in groups.values():
        for number in numbers:
            of_row.setdefault(number, []).append(numbers)
    while todo:  # what belongs to a tensor that stays does so too
        for numbers in of_row.pop(todo.pop(), ()):
            for other in numbers:
                if other not in stays and rows[other].status in LOADED:
                    stays[other] = "codes and scales are loaded together or not at all"
                    todo.append(other)
    kept: list[Pairing] = []
    for number, row in enumerate(rows):
        if number in stays:
            row = row._replace(status="kept", copied=0, why=stays[number])
        kept.append(row)
    labels = [
        what[0]
        for row, what in zip(rows, whats, strict=True)
        if row.status == "unexpected" and what[0]
    ]
    is_ours = labels or any(" in PRETRAINED, " in why for why in met)
    decoded = _decoded_names(given) if is_ours else []
    ends = {_end_of(name) for name in decoded}
    absent = [
        row.name
        for row in rows
        if row.status == "missing" and _end_of(row.name) in ends
    ]
    if absent and labels:  # the weight of the target is the qweight of PRETRAINED
        met.setdefault(f"{labels[0]} in PRETRAINED, values in the other", absent)
    texts = [f"{why}: {show_folded_names(names)}" for why, names in met.items()]
    if not texts:
        return kept, ""
    # Only what ckpt decodes has a command that helps.
    way = ""
    if decoded:
        way = "; ckpt convert --dequantize makes values of PRETRAINED first"
    return kept, texts[0] + way


def _decoded_names(given: Survey) -> list[str]:
    """The names of the weights that ckpt decodes from codes."""
    quantised = find_hook("quantised")
    if quantised is None:
        return []
    found = quantised.find_logical(given.checkpoint, Limits(), for_values=True)
    return [row.name for row in found.logical]


def _end_of(name: str) -> str:
    """The last four steps of a name: the classes around a model put others
    before them.
    """
    return ".".join(name.split(".")[-4:])


def _has_one_shape(row: Pairing) -> bool:
    """Tell whether the tensors of both sides have the same shape."""
    shapes = {
        entry.tensor.shape if entry is not None else None
        for entry in (row.source, row.target)
    }
    return len(shapes) == 1


def _target_memory(row: Pairing) -> tuple[object, ...]:
    """The memory that a tensor of the target looks at: equal of those that are tied."""
    ref = row.target.tensor if row.target is not None else None
    return (ref.storage, ref.extent) if isinstance(ref, TensorRef) and ref.numel else ()


def _shared_memory_notes(rows: Sequence[Pairing]) -> list[str]:
    """Tensors that share memory in the target and get values of their own: the last one
    wins, as in load_state_dict.
    """
    # Storage -> ((first byte, end), row) of each view that is loaded.
    by_storage: dict[Storage, list[tuple[tuple[int, int], int]]] = {}
    for number, row in enumerate(rows):
        ref = row.target.tensor if row.target is not None else None
        if (
            row.status in ("loaded", "cast", "sliced")
            and isinstance(ref, TensorRef)
            and ref.numel
        ):
            by_storage.setdefault(ref.storage, []).append((ref.extent, number))
    notes = []
    for views in by_storage.values():
        # Sorted by their first byte, so that one pass finds all that overlap.
        views.sort()
        far, last = views[0]  # the view that reaches farthest so far
        for extent, number in views[1:]:
            if extent[0] < far[1]:
                # The order of the rows is the order of load_state_dict: the later one
                # wins.
                first, second = (rows[index] for index in sorted((last, number)))
                if not _same_values(first, second):
                    what = "are tied" if extent == far else "share memory in part"
                    notes.append(
                        f"{show(first.name, 60)} and {show(second.name, 60)} {what} in "
                        "the target; the second one wins."
                    )
            if extent[1] >= far[1]:
                far, last = extent, number
    more = (
        f"{len(notes) - _NOTES:,} more tensors share memory in the target; the last "
        "one wins."
    )
    return notes if len(notes) <= _NOTES else [*notes[:_NOTES], more]


def _same_values(one: Pairing, two: Pairing) -> bool:
    """Tell whether two tensors of one memory get the same bytes."""
    if (
        one.source is None
        or two.source is None
        or "sliced" in (one.status, two.status)
        or _target_memory(one) != _target_memory(two)
    ):
        return False
    first, second = one.source.tensor, two.source.tensor
    assert isinstance(first, TensorRef) and isinstance(second, TensorRef)
    alike = first.shape == second.shape and first.dtype == second.dtype
    # The bytes are read only here, for two names of one memory.
    return alike and same_bytes(elements(first), elements(second))


# --- the result -----------------------------------------------------------------------


def _target_bytes(row: Pairing, mine: TensorRef, other: TensorRef) -> Place:
    """The bytes that a tensor of the target gets, in the order in which they
    lie there.
    """
    order = memory_order(mine)
    if row.status == "sliced":
        return Overlaid(permute_dims(mine, order), permute_dims(other, order))
    return place_of(permute_dims(other, order), mine.dtype)


def _make_filling(taken: Sequence[Pairing]) -> Filling:
    """The storages of the target that change."""
    filling = Filling()
    for row in taken:
        assert row.target is not None and row.source is not None
        mine, other = row.target.tensor, row.source.tensor
        # Both sides of a row that is loaded are strided: `_pair_tensor` keeps all
        # others.
        assert isinstance(mine, TensorRef) and isinstance(other, TensorRef)
        # A slice is put over what other rows have written to the same memory before.
        if mine.numel:  # a block is put over what is there by then
            base = filling.current(mine) if row.status == "sliced" else mine
            filling.put(mine, _target_bytes(row, base, other))
    return filling


def _fill_target(
    target: Checkpoint, taken: Sequence[Pairing], gone: Sequence[Path], limits: Limits
) -> Checkpoint:
    filling = _make_filling(taken)
    if target.traits.is_live:
        return _from_live(target, filling, limits)
    return edited_checkpoint(
        target, without_paths(filling.root_of(target), gone), limits
    )


# --- what belongs to the old weights --------------------------------------------------


class OldState(NamedTuple):
    """A part of the target that was made with its old weights, and its place in the
    tree.
    """

    name: str
    what: str
    path: Path


_OLD_KINDS = ("optimizer", "scheduler", "scaler", "ema")
_COUNTERS = frozenset(
    [
        "epoch",
        "epochs",
        "step",
        "steps",
        "global_step",
        "iteration",
        "iterations",
        "iter",
        "iters",
        "last_epoch",
        "current_epoch",
        "cur_epoch",
        "start_epoch",
        "global_epoch",
        "train_steps",
        "num_updates",
        "loops",
        "best",
    ]
)
"""Keys whose numbers count the training of the old weights; `loops` is where Lightning
counts.
"""
_STATES = {
    "scheduler": frozenset(("last_epoch", "_step_count")),
    "scaler": frozenset(("scale", "growth_factor", "backoff_factor")),
}
"""Keys that the state of a scheduler and of a scaler have, whatever it is called."""


def old_state(wanted: Survey, mine: Section) -> list[OldState]:
    """List what of the target belongs to its old weights: optimizers, schedulers,
    scalers, averages, counters, the best result.
    """
    rows: list[OldState] = []
    root = wanted.checkpoint.root
    parts = [
        part
        for part in wanted.sections
        if part is not mine and part.kind in _OLD_KINDS and part.path
    ]
    # The levels of the tree above the model, and above each optimizer: what lies beside
    # it goes with it.
    levels = [mine.path[:depth] for depth in range(max(len(mine.path), 1))]
    for part in parts:
        # Averages lie inside of models too, whose counters they are not.
        if part.kind != "ema":
            levels += [part.path[:depth] for depth in range(len(part.path))]
    for above in dict.fromkeys(levels):
        if any(row.path == above[: len(row.path)] for row in rows):
            continue
        for key, child in children_of(node_at(root, above)):
            path = (*above, key)
            # The way down to the model itself.
            if mine.path and path == mine.path[: len(path)]:
                continue
            name = str(key).lower()
            # A counter beside tensors of the model at the root may be a buffer of it.
            is_number = type(child) in (int, float) or name == "loops"
            is_number = is_number or (tensor_of(child) is not None and bool(mine.path))
            kind = _kind_of(key, child)
            if (name in _COUNTERS or name.startswith("best_")) and is_number:
                text = f"{brief_text(child, 40)}, of the old weights"
                rows.append(OldState(dotted_name(path), text, path))
            elif kind is not None:
                inside = sum(
                    part.tensors for part in parts if part.path[: len(path)] == path
                )
                text = _kind_text(kind, name, inside)
                rows.append(OldState(dotted_name(path), text, path))
    # Sections that no level has met, such as one deep inside of another part.
    covered = [row.path for row in rows]
    rest = [
        part
        for part in parts
        if not any(part.path[: len(path)] == path for path in covered)
    ]
    deep = [
        OldState(part.name, _kind_text(part.kind, part.name, part.tensors), part.path)
        for part in rest
    ]
    return deep + rows


def _kind_of(key: object, node: Node) -> str | None:
    """The kind of a part that belongs to the old weights, by its key or by the keys of
    a state in it, or None.
    """
    if type(node) not in (list, Dict, Opaque):
        return None
    if isinstance(key, (str, int)) and kind_of_key((key,)) in _OLD_KINDS:
        return kind_of_key((key,))
    # Several schedulers stand in a list: the first one is looked at.
    first = node[0] if type(node) is list and node else node
    # A file may hold keys that Python cannot hash.
    keys = (
        {key for key in first.keys if isinstance(key, str)}
        if isinstance(first, Dict)
        else set()
    )
    return next((kind for kind, words in _STATES.items() if words <= keys), None)


def _kind_text(kind: str, name: str, tensors: int) -> str:
    what = "of the old weights" if kind == name else f"{kind} of the old weights"
    return f"{what}, {counted_noun(tensors, 'tensor')}" if tensors else what


def without_paths(root: Node, gone: Sequence[Path]) -> Node:
    """The tree without the nodes at some paths."""
    # The keys that go at this level; the paths of the others, one step shorter, by
    # their first step.
    here = {path[0] for path in gone if len(path) == 1}
    below: dict[object, list[Path]] = {}
    for path in gone:
        if len(path) > 1:
            below.setdefault(path[0], []).append(path[1:])
    if not gone or type(root) not in (list, Dict, Opaque):
        return root
    if type(root) is list:
        return [
            without_paths(item, below.get(index, []))
            for index, item in enumerate(root)
            if index not in here
        ]
    assert isinstance(root, (Dict, Opaque))
    # A copy: the tree of the target stays whole for the report.
    tree = copy(root)
    tree.keys = []
    values: list[Node] = []
    for key, value in zip(root.keys, root.values, strict=True):
        # A path has no other keys, and a file may hold some that Python cannot hash.
        is_step = isinstance(key, (str, int))
        if not is_step or key not in here:
            tree.keys.append(key)
            inner = below.get(key, []) if is_step else []
            values.append(without_paths(value, inner))
    tree.values = values
    return tree


# --- bytes ----------------------------------------------------------------------------


def _from_live(target: Checkpoint, filling: Filling, limits: Limits) -> Checkpoint:
    """The state dict of a live model: of one without memory (on meta) only what was
    loaded.
    """
    old = target.root
    assert type(old) is Opaque
    state = Opaque(old.how, old.func, old.args, None, old.offset)
    for key, node in zip(old.keys, old.values, strict=True):
        ref = tensor_of(node)
        if isinstance(ref, TensorRef):
            new = filling.current(ref)
            if new.storage.place is None and ref.numel:
                # A model on meta has no values: what was not loaded is left out.
                continue
            node = new._replace(storage=new.storage)
        state.set([key], [node])
    for each in old.states:
        state.build(each)
    return edited_checkpoint(
        target, state, limits, traits=target.traits._replace(is_live=False)
    )

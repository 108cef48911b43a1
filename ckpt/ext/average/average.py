"""`ckpt average`: the weighted mean of models, in the names, the order and the dtypes
of the last.

Floating tensors are averaged block by block while they are written. All others are the
ones of the last model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Literal

from ckpt.commands.rewriting.filling import Filling, lies_close
from ckpt.commands.rewriting.report import (
    AverageSource,
    Change,
    Leftover,
    RewriteReport,
    with_own_option,
)
from ckpt.commands.slim.slim import slim
from ckpt.elements.blocks import elements, memory_order, permute_dims, same_bytes
from ckpt.elements.cast import AVERAGED
from ckpt.elements.spans import without_repeats
from ckpt.evidence.adapters import piece_of
from ckpt.evidence.alignment import Alignment, Paired, pair_tensors
from ckpt.evidence.scaled import find_scaled
from ckpt.evidence.sections import Section, section_of
from ckpt.evidence.survey import Survey
from ckpt.ext.average.mean import Mean
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import CkptError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef, is_same_view, overlapping_groups
from ckpt.model.text import and_more, counted_noun, shell_word, show, show_folded_names

_WEIGHTS = ("weight", "qweight", "weight_packed")
"""The last words of names under which integers are quantized weights. What scales them
would be averaged without them.
"""
_EXCLUDED = 4
"""The most names that a hint leaves out one by one."""
_TRIES = 4
"""The most plans that are tried for such a hint."""


class Options(NamedTuple):
    """The options of a mean. Without `ratios` all models count alike; others are
    divided by their sum.

    `include` and `exclude` select tensors by name. Without `align` names are compared
    as they are.
    """

    ratios: Sequence[float] | None = None
    section: str | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    align: bool = True
    drop_other: bool = False


class _Model(NamedTuple):
    """One of the models, as `slim` leaves it, and its tensors by the names of the last
    model.
    """

    path: str
    section: str
    entries: Sequence[Entry]
    tensors: dict[str, Entry]
    names: Paired | None
    """The pairs of its names and the names of the last model, which has None."""


def average(
    others: Sequence[Survey],
    last: Survey,
    limits: Limits,
    options: Options | None = None,
) -> RewriteReport:
    """The mean of some models and the last one, and the report of it.

    Raises UsageError where they do not fit together or have no mean, LossError.
    """
    options = options or Options()
    surveys = [*others, last]
    shares = shares_of(options.ratios, len(surveys))
    # As `slim` leaves them: the weights alone, in the names of a state dict.
    plain: list[RewriteReport] = []
    for survey in surveys:
        report = slim(
            survey,
            limits,
            section=options.section,
            drop_other=options.drop_other,
        )
        plain.append(report)
    sections = [survey.only_model(options.section).name for survey in surveys]
    mine = _whole_section(plain[-1].result)
    wholes: list[_Model] = []
    for survey, report, section in zip(others, plain[:-1], sections, strict=False):
        theirs = _whole_section(report.result)
        names = pair_tensors(
            Alignment(theirs, survey.path),
            Alignment(mine, last.path),
            align=options.align,
            suggest=False,
        )
        tensors: dict[str, Entry] = {}
        for name, index in names.two.items():
            if name in names.partners:
                partner = names.one[names.partners[name]]
                tensors[mine.entries[index].name] = theirs.entries[partner]
        _tie(tensors, mine.entries)
        wholes.append(_Model(survey.path, section, theirs.entries, tensors, names))
    own = {row.name: row for row in mine.entries}
    wholes.append(_Model(last.path, sections[-1], mine.entries, own, None))

    def plan(options: Options) -> tuple[RewriteReport, _Plan]:
        globs = Globs(options.include, options.exclude)
        chosen = plain[-1]
        # Selected anew: tensors that are left out are in no other checkpoint either.
        if globs:
            chosen = slim(
                last,
                limits,
                section=options.section,
                select=globs,
                drop_other=options.drop_other,
            )
        for model in wholes[:-1]:
            _refuse_misfits(model, wholes[-1], chosen.result, globs)
        _refuse_adapters(wholes, chosen.result)
        codes = _code_tensors(wholes, chosen.result)
        return chosen, _Plan(wholes, shares, chosen.result, codes)

    chosen, planned = _plan_with_advice(plan, options)
    result = planned.filling.checkpoint(chosen.result, limits)
    sources: list[AverageSource] = []
    for survey, share, model in zip(surveys, shares, wholes, strict=True):
        checkpoint = survey.checkpoint
        source = AverageSource(survey.path, checkpoint.format, checkpoint.nbytes, share)
        if model.names is not None:
            source = source._replace(
                aligned=model.names.prefixes, renames=model.names.renames
            )
        sources.append(source)
    # The last one's leftovers are listed without its path, once for all.
    listed = {row.name for row in chosen.left_out}
    theirs_too: list[Leftover] = []
    for survey, report in zip(others, plain[:-1], strict=False):
        for row in report.left_out:
            if row.name not in listed:
                theirs_too.append(row._replace(name=f"{row.name} of {survey.path}"))
    for model in wholes[:-1]:
        theirs_too += _further_names(model)
    return chosen._replace(
        command="average",
        result=result,
        changes=(
            *planned.changes(),
            *(change for change in chosen.changes if change.kind != "kept"),
        ),
        left_out=(*with_own_option(chosen.left_out), *theirs_too),
        left_alone=(*chosen.left_alone, *planned.kept),
        unchanged_bytes=False,
        sources=tuple(sources),
    )


def _tie(tensors: dict[str, Entry], mine: Sequence[Entry]) -> None:
    """Give the names of the last model that are tied there to a tensor that a model has
    that tensor.

    A file of safetensors, or transformers when it saves, writes a tied tensor once,
    under one of its names.
    """
    # From last to first: of several names the first one counts.
    held: dict[object, str] = {}
    for entry in reversed(mine):
        if entry.name in tensors:
            held[_memory(entry)] = entry.name
    for entry in mine:
        if entry.name in tensors or not isinstance(entry.tensor, TensorRef):
            continue
        other = held.get(_memory(entry))
        if other is not None:
            tensors[entry.name] = tensors[other]


def _further_names(model: _Model) -> Iterator[Leftover]:
    """Yield the names of a model that the last one lacks, and that are tied to a tensor
    that is averaged.
    """
    # By memory: a tied tensor has further names, which are not lost.
    taken = {id(entry) for entry in model.tensors.values()}
    held = {_memory(entry): entry.name for entry in model.tensors.values()}
    for entry in model.entries:
        other = held.get(_memory(entry))
        if id(entry) not in taken and other is not None:
            yield Leftover(
                f"{entry.name} of {model.path}",
                f"tied to {show(other, 60)}, which is averaged",
                0,
            )


def _memory(entry: Entry) -> object:
    """Return the same for all names of one memory, read alike."""
    return entry.tensor.view if isinstance(entry.tensor, TensorRef) else id(entry)


def shares_of(ratios: Sequence[float] | None, count: int) -> list[float]:
    """The share of each of `count` models: equal ones, or the ratios divided by their
    sum. Raises UsageError.
    """
    if ratios is None:
        return [1 / count] * count
    if len(ratios) != count:
        raise UsageError(
            f"--ratios has {counted_noun(len(ratios), 'number')} for "
            f"{counted_noun(count, 'checkpoint')}"
        )
    for ratio in ratios:
        if not math.isfinite(ratio) or ratio < 0:
            raise UsageError(f"--ratios {ratio:g}: not a finite number of 0 or more")
    try:
        whole = math.fsum(ratios)
    except OverflowError:
        whole = math.inf
    if not whole:
        raise UsageError("--ratios: their sum is 0")
    if not math.isfinite(whole):
        raise UsageError("--ratios: their sum is infinite")
    return [ratio / whole for ratio in ratios]


def _whole_section(checkpoint: Checkpoint) -> Section:
    """All tensors of a state dict, as one section."""
    return section_of(checkpoint, (), "", "model", 0, len(checkpoint.tensors))


# --- what does not fit ----------------------------------------------------------------


class _MisfitError(UsageError):
    """Tensors that do not fit together, or have no mean, by `names` that --exclude
    takes.
    """

    def __init__(self, problem: str, path: str, names: Sequence[str]) -> None:
        super().__init__(problem, path=path)
        self.names = names


def _plan_with_advice(
    plan: Callable[[Options], tuple[RewriteReport, _Plan]], options: Options
) -> tuple[RewriteReport, _Plan]:
    """The plan. Its error names the --exclude with which it succeeds, where a few
    patterns are enough.
    """
    try:
        return plan(options)
    except _MisfitError as error:
        # Each plan may find further misfits, which only the patterns before let it see.
        names = list(error.names)
        for _ in range(_TRIES):
            patterns = _exclude_patterns(names)
            if not patterns:
                break
            try:
                plan(options._replace(exclude=(*options.exclude, *patterns)))
            except _MisfitError as further:
                names += [name for name in further.names if name not in names]
            except CkptError:
                break
            else:
                words = [shell_word(pattern) for pattern in patterns]
                hints = [f"--exclude {word}" for word in words if word is not None]
                error.hint = " ".join(hints)
                break
        # A caller in Python meets the class that docs/python.md names.
        raise UsageError(error.problem, path=error.path, hint=error.hint) from None


def _exclude_patterns(names: Sequence[str]) -> list[str]:
    """Patterns of --exclude for some tensors: their names, or the module that all of
    them are in. None where neither is short.
    """
    # A name with a star or a bracket is another pattern than itself.
    if any(shell_word(name) is None or set(name) & set("*?[") for name in names):
        return []
    if len(names) <= _EXCLUDED:
        return list(names)
    modules = zip(*(name.split(".")[:-1] for name in names), strict=False)
    common = [row[0] for row in takewhile(lambda row: len(set(row)) == 1, modules)]
    return [f"{'.'.join(common)}.*"] if common else []


def _refuse_misfits(
    model: _Model,
    last: _Model,
    chosen: Checkpoint,
    globs: Globs,
) -> None:
    """Raise _MisfitError where a model lacks chosen tensors, has others, or has them in
    other shapes.
    """
    assert model.names is not None
    names = [entry.name for entry in chosen.tensors]
    missing = [name for name in names if name not in model.tensors]
    # A further name of what is averaged needs no place of its own.
    taken = {_memory(entry) for entry in model.tensors.values()}
    extra: list[str] = []
    for label, entry in zip(model.names.one, model.entries, strict=True):
        if _memory(entry) in taken:
            continue
        full_name = _full_name(model.section, entry.name)
        if globs.match(entry.name, label, full_name):
            extra.append(entry.name)
    reshaped: list[tuple[str, Entry, Entry]] = []
    for name in names:
        if name not in model.tensors:
            continue
        theirs, mine = model.tensors[name], last.tensors[name]
        if theirs.tensor.shape != mine.tensor.shape:
            reshaped.append((name, theirs, mine))
    problems = [f"lacks {show_folded_names(missing)}"] if missing else []
    problems += [f"has {show_folded_names(extra)}, which that lacks"] if extra else []
    if reshaped:
        name, theirs, mine = reshaped[0]
        more = ""
        if len(reshaped) > 1:
            more = f" and {counted_noun(len(reshaped) - 1, 'more tensor')}"
        shape = f"{list(theirs.tensor.shape)}, there {list(mine.tensor.shape)}"
        problems.append(f"{show(name, 80)} is {shape}{more}")
    if problems:
        wrong = [*missing, *extra, *(name for name, _, _ in reshaped)]
        raise _MisfitError(
            f"does not fit {show(last.path, 80)}: {'; '.join(problems)}",
            model.path,
            wrong,
        )


def _refuse_adapters(models: Sequence[_Model], chosen: Checkpoint) -> None:
    """Raise UsageError for adapters: a layer gets B × A, and the mean of products is
    not the product of means.
    """
    names = [entry.name for entry in chosen.tensors]
    factors: list[str] = []
    for name in names:
        piece = piece_of(name)
        if piece is not None and piece.part in _FACTORS:
            factors.append(name)
    if not factors:
        return
    what = (
        "holds an adapter (LoRA): a layer gets B × A, and the mean of A times the mean "
        "of B is another matrix"
    )
    # If only some tensors are factors, --exclude leaves them out.
    if len(factors) == len(names):
        raise UsageError(
            what,
            path=models[-1].path,
            hint="ckpt merge adds each to its base; then the results can be averaged",
        )
    raise _MisfitError(what, models[-1].path, factors)


_FACTORS = ("down", "up", "mid")
"""Parts of an adapter that are factors of a product."""


def _code_tensors(models: Sequence[_Model], chosen: Checkpoint) -> frozenset[str]:
    """The chosen tensors that hold codes, which have a mean only where all models scale
    them alike. Raises _MisfitError.
    """
    scaled = [find_scaled(model.entries) for model in models]
    if not any(found.codes or found.unpaired for found in scaled):
        return frozenset()
    labels: list[dict[str, str]] = []
    groups: list[dict[str, list[str]]] = []
    for model, found in zip(models, scaled, strict=True):
        names = {id(entry): name for name, entry in model.tensors.items()}
        places: dict[int, str | None] = {}
        for index, entry in enumerate(model.entries):
            places[index] = names.get(id(entry))
        # Codes and what scales them, by the names of the last model.
        own: dict[str, str] = {}
        for index in (*found.codes, *found.unpaired):
            name = places[index]
            if name:
                own[name] = str(found.what(index))
        labels.append(own)
        beside: dict[str, list[str]] = {}
        for index in found.beside:
            codes = found.group_of(index)
            owner = None if codes is None else places[codes]
            name = places[index]
            if owner is not None and name is not None:
                beside.setdefault(owner, []).append(name)
        groups.append(beside)
    wanted = {entry.name for entry in chosen.tensors}
    mine = labels[-1]
    # The same name may be codes in one model, and numbers in another.
    for model, theirs in zip(models[:-1], labels[:-1], strict=True):
        for name in (*mine, *theirs):
            if (name in mine) == (name in theirs) or name not in wanted:
                continue
            has, lacks = model, models[-1]
            if name in mine:
                has, lacks = models[-1], model
            label = {**theirs, **mine}[name]
            problem = (
                f"{show(name, 80)} is {label}, and holds values in "
                f"{show(lacks.path, 80)}: they have no mean"
            )
            raise _MisfitError(problem, has.path, [name])
    # Codes that are the same everywhere are kept: only their scales must be alike.
    for name in mine:
        scales = {other for beside in groups for other in beside.get(name, ())}
        if not wanted.isdisjoint((name, *scales)):
            _refuse_rescaled(models, name, sorted(scales))
    return frozenset(mine)


def _refuse_rescaled(
    models: Sequence[_Model],
    name: str,
    scales: Sequence[str],
) -> None:
    """Raise _MisfitError for codes that the models do not scale by the same numbers."""
    for scale in scales:
        refs = [
            model.tensors[scale].tensor if scale in model.tensors else None
            for model in models
        ]
        for model, other in zip(models, refs, strict=True):
            last = refs[-1]
            same = isinstance(other, TensorRef) and isinstance(last, TensorRef)
            if not same or not _is_same(other, last, model.path):  # type: ignore[arg-type]
                what = (
                    f"{show(scale, 80)}, which scales {show(name, 80)}, differs: the "
                    "weights have no mean"
                )
                raise _MisfitError(what, model.path, [name, scale])


def _full_name(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


# --- the plan -------------------------------------------------------------------------


class _Plan:
    """The bytes of the result: `kept` are the tensors of the last model that differ and
    have no mean.

    Raises _MisfitError for tensors that have no mean and differ, or may not be averaged
    apart.
    """

    def __init__(
        self,
        models: Sequence[_Model],
        shares: Sequence[float],
        result: Checkpoint,
        codes: frozenset[str],
    ) -> None:
        self._codes = codes
        self.filling = Filling()
        self.kept: list[Leftover] = []
        self._models = models
        self._shares = shares
        self._firsts: dict[object, str] = {}
        # For tensors that are averaged, and for those that are not: count and bytes.
        self._sizes = {True: [0, 0], False: [0, 0]}
        self._casts: Counter[tuple[str, str]] = Counter()
        for entry in result.tensors:
            self._add_tensor(entry)
        if not self._sizes[True][0]:
            raise UsageError(
                "holds no floating tensors to average", path=models[-1].path
            )
        self._refuse_overlaps(result)

    def changes(self) -> Iterator[Change]:
        """Yield the counts of tensors that are averaged, cast, and taken as
        they are.
        """
        averaged, taken = self._sizes[True], self._sizes[False]
        yield Change("averaged", "averaged", None, averaged[0], "tensor", averaged[1])
        # The most frequent cast comes first.
        casts = sorted(self._casts.items(), key=lambda row: (-row[1], row[0]))
        for (before, after), count in casts:
            yield Change("dtype", before, after, count, "tensor")
        if taken[0]:
            yield Change("taken", "as in the last", None, taken[0], "tensor", taken[1])

    def _rows(self, name: str) -> list[TensorRef]:
        """The tensors of a name in all models. Raises _MisfitError for one without
        elements that can be read.
        """
        refs = []
        for model in self._models:
            tensor = model.tensors[name].tensor
            problem = None
            if not isinstance(tensor, TensorRef):
                problem = tensor.layout
            elif tensor.dtype.kind == "quantized":
                problem = tensor.dtype.name
            elif tensor.numel and tensor.storage.place is None:
                problem = "on meta, without data"
            if problem is not None:
                what = f"{show(name, 80)} is {problem}, and has no mean"
                raise _MisfitError(what, model.path, [name])
            assert isinstance(tensor, TensorRef)
            refs.append(tensor)
        return refs

    def _add_tensor(self, entry: Entry) -> None:
        """Plan one tensor of the result."""
        name, ref = entry.name, entry.tensor
        refs = self._rows(name)
        assert isinstance(ref, TensorRef)
        kind = _mean_kind(ref)
        is_averaged = kind != "kept"
        for model, other in zip(self._models, refs, strict=True):
            if _mean_kind(other) != kind:
                here = f"{show(name, 80)} is {other.dtype.name}"
                raise _MisfitError(
                    f"{here}, in the last {ref.dtype.name}",
                    model.path,
                    [name],
                )
        sizes = self._sizes[is_averaged]
        sizes[0] += 1
        sizes[1] += ref.nbytes
        if not is_averaged:
            self._keep_tensor(name, refs)
            return
        casts: set[tuple[str, str]] = set()
        for other in refs:
            if other.dtype != ref.dtype:
                casts.add((other.dtype.name, ref.dtype.name))
        self._casts.update(casts)
        # Tied tensors are one memory: the mean is put there once, for the first name.
        first = self._firsts.setdefault(ref.view, name)
        if first != name:
            self._refuse_untied(first, name)
        else:
            self._fill_mean(name, ref, refs[:-1])

    def _fill_mean(
        self,
        name: str,
        ref: TensorRef,
        others: Sequence[TensorRef],
    ) -> None:
        """Put the mean in the place of a tensor. Elements that a view repeats are
        averaged once.
        """
        once, _, _ = without_repeats(ref, ref)
        of: list[TensorRef] = []
        for model, other in zip(self._models, (*others, ref), strict=True):
            theirs, mine, _ = without_repeats(other, ref)
            if mine.shape != once.shape:
                raise _MisfitError(
                    f"{show(name, 80)} is expanded in the last only",
                    model.path,
                    [name],
                )
            of.append(theirs)
        # The mean takes the place of the storage: gaps would have no values. A tensor
        # without elements has none, whatever its strides.
        has_gaps = ref.numel > 0 and not lies_close(once)
        if ref.neg or ref.conj or has_gaps:
            raise _MisfitError(
                f"{show(name, 80)} is a view with gaps",
                self._models[-1].path,
                [name],
            )
        # In the order of the memory: the storage gets one run of bytes. A share of 0
        # reads nothing.
        order = memory_order(once)
        rows: list[TensorRef] = []
        shares: list[float] = []
        for row, share in zip(of, self._shares, strict=True):
            if share:
                rows.append(permute_dims(row, order))
                shares.append(share)
        self.filling.put(once, Mean(rows, shares, ref.dtype))

    def _keep_tensor(self, name: str, refs: Sequence[TensorRef]) -> None:
        """Take a tensor from the last model, and note the models in which it
        differs.
        """
        mine = refs[-1]
        differ = [
            model.path
            for model, other in zip(self._models, refs, strict=True)
            if not _is_same(other, mine, model.path)
        ]
        if not differ:
            return
        is_codes = name in self._codes or name.rpartition(".")[2] in _WEIGHTS
        # Counters and masks may differ; codes that differ are other weights.
        if mine.dtype.kind not in ("int", "bool", "bits") or is_codes:
            what = (
                f"{show(name, 80)} is {mine.dtype.name}, a part of quantized weights, "
                "and differs"
            )
            raise _MisfitError(f"{what}: it has no mean", differ[0], [name])
        where = and_more(differ, 3)
        self.kept.append(
            Leftover(name, f"{mine.dtype.name}, differs in {where}", mine.nbytes)
        )

    def _refuse_untied(self, first: str, name: str) -> None:
        """Raise _MisfitError where tensors that are tied in the last model have
        different values in another one.
        """
        one, two = self._rows(first), self._rows(name)
        for model, other, twin in zip(self._models, one, two, strict=True):
            if not _is_same(other, twin, model.path):
                names = f"{show(first, 80)} and {show(name, 80)}"
                raise _MisfitError(
                    f"{names} are tied in the last, and differ",
                    model.path,
                    [name],
                )

    def _refuse_overlaps(self, result: Checkpoint) -> None:
        """Raise _MisfitError for tensors of the last model that share a part of their
        memory.
        """
        by_storage: dict[Storage, dict[object, Entry]] = {}
        for entry in result.tensors:
            ref = entry.tensor
            if isinstance(ref, TensorRef):
                by_storage.setdefault(ref.storage, {}).setdefault(ref.view, entry)
        for views in by_storage.values():
            names = {id(entry.tensor): entry.name for entry in views.values()}
            refs: list[TensorRef] = []
            for entry in views.values():
                if isinstance(entry.tensor, TensorRef):
                    refs.append(entry.tensor)
            groups = overlapping_groups(refs) if len(refs) > 1 else ()
            for group in groups:
                if len(group) > 1 and any(_mean_kind(ref) != "kept" for ref in group):
                    rows = [names[id(ref)] for ref in group]
                    what = (
                        f"{show_folded_names(rows)} share a part of their memory, and "
                        "have no mean apart"
                    )
                    raise _MisfitError(what, self._models[-1].path, rows[1:])


def _mean_kind(ref: TensorRef) -> Literal["real", "complex", "kept"]:
    """The kind of the mean of a tensor; `kept` is taken from the last model."""
    if ref.dtype.name in AVERAGED:
        return "real"
    return "complex" if ref.dtype.kind == "complex" else "kept"


def _is_same(one: TensorRef, two: TensorRef, path: str) -> bool:
    """Tell whether two tensors have the same elements. Raises UnreadableError."""
    if is_same_view(one, two):
        return True
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    with about(path):
        return same_bytes(elements(one), elements(two))

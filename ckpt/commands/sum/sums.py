"""`ckpt sum`: SHA-256 of each tensor, equal across formats for equal dtype, shape and
elements.

`--like` compares names and shapes with another checkpoint, or names with such sums.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ckpt.bytes.executor import Executor, Failed, Local, Task, run_bundled, run_each
from ckpt.elements.audit import DAMAGED, are_damaged, unguarded_bytes
from ckpt.elements.blocks import elements
from ckpt.elements.spans import refuse_overlaps, refuse_unfolded
from ckpt.elements.unpacked import packed_blocks
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import unwrapping_rule
from ckpt.model.checkpoint import Entry
from ckpt.model.errors import UnreadableError, UnsupportedError, about
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, TensorRef, parts_of, unwrap_dtensor
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import tied_names


class Sum(NamedTuple):
    """A tensor by its name and the SHA-256 of what it is, in hexadecimal."""

    name: str
    digest: str
    file: str | None = None
    """The file of the tensor, where a list holds the sums of several."""
    unread: str | None = None
    """The reason why its bytes could not be read. `digest` is empty then."""
    tied: str | None = None
    """The name of the tensor that it is another name of, if it shares the memory of an
    earlier one.
    """
    unguarded: int = 0
    """The bytes of it that no recorded checksum covers."""


def sums(
    survey: Survey,
    section: str | None = None,
    select: Globs | None = None,
    *,
    everything: bool = False,
    progress: Callable[[int], None] | None = None,
    executor: Executor | None = None,
) -> list[Sum]:
    """The sums of the tensors of the only model, or of a section, by their names in it;
    of everything by full names.

    Of a file without a model it is everything. What cannot be read, or does not match
    its recorded checksum, has the reason in place of a sum. Raises UsageError,
    UnsupportedError for what has no bytes.
    """
    chosen = survey.everything if everything else survey.model_or_all(section)
    rows = [
        (chosen.relative(entry.name), entry)
        for entry in chosen.selected(select, survey.path)
    ]
    records = _sum_rows(survey, rows, progress, executor)
    entries = [entry for _, entry in rows]
    # A tensor with two names has its sum twice, and says which is the first.
    first_names = tied_names(entries)
    name_of = {entry.name: name for name, entry in rows}
    damaged = are_damaged([entry.tensor for entry in entries], executor or Local())
    out: list[Sum] = []
    for row, entry, is_damaged in zip(records, entries, damaged, strict=True):
        if entry.name in first_names:
            row = row._replace(tied=name_of[first_names[entry.name]])
        if is_damaged and row.unread is None:
            row = row._replace(digest="", unread=DAMAGED)
        out.append(row)
    return out


def sums_now(
    survey: Survey,
    expected: Sequence[Sum],
    section: str | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    executor: Executor | None = None,
) -> dict[str, Sum]:
    """The sums that the tensors with the names of `expected` have now.

    Stored sums do not say of which part they are. It is the part that has the most of
    the names: the model, another section or the whole file. Where several have as many,
    one that agrees is preferred. Raises as `sums`.
    """
    wanted = {row.name: row.digest for row in expected}
    # Models come first, for sums are usually of a model.
    others = [part for part in survey.sections if part.kind != "model"]
    parts = [*survey.models, *others, survey.everything]
    if section is not None:
        parts = [survey.section(section)]
    named: list[dict[str, Entry]] = []
    for part in parts:
        pairs = zip(part.names(), part.entries, strict=True)
        named.append({name: entry for name, entry in pairs if name in wanted})
    most = max(map(len, named))
    best: dict[str, Sum] = {}
    best_count = -1
    for names in named:
        # A part with fewer of the names is not the one that was summed.
        if len(names) < most:
            continue
        rows = _sum_rows(survey, names.items(), progress, executor)
        count = sum(row.digest == wanted[row.name] for row in rows)
        # The first of those that agree most, and no further part where all agree.
        if count > best_count:
            best = {row.name: row for row in rows}
            best_count = count
        if count == len(rows):
            break
    return best


def digests(survey: Survey, *, executor: Executor | None = None) -> list[str | None]:
    """Return the sum of each tensor in file order, None if it has no data. Raises
    UnreadableError.
    """
    tasks = [
        Task(_digest_or_none, (entry.tensor,), entry.tensor.nbytes)
        for entry in survey.checkpoint.tensors
    ]
    return run_bundled(executor or Local(), tasks)


def _digest_or_none(tensor: Tensor) -> str | None:
    try:
        return digest(tensor)
    except UnsupportedError:
        return None


def _sum_rows(
    survey: Survey,
    rows: Iterable[tuple[str, Entry]],
    progress: Callable[[int], None] | None,
    executor: Executor | None,
) -> list[Sum]:
    named = list(rows)
    tasks = [
        Task(_sum_tensor, (name, entry.tensor, survey.path), entry.tensor.nbytes)
        for name, entry in named
    ]
    tensors = [entry.tensor for _, entry in named]
    with about(survey.path):
        refuse_overlaps(tensors, sum(task.nbytes for task in tasks))
    results = run_each(executor or Local(), tasks, progress)
    bare = unguarded_bytes(tensors)
    sums: list[Sum] = []
    for (name, _), result, count in zip(named, results, bare, strict=True):
        if isinstance(result, Failed):
            sums.append(Sum(name, "", unread=result.problem))
        else:
            sums.append(Sum(name, result, unguarded=count))
    return sums


def _sum_tensor(name: str, tensor: Tensor, path: str) -> str:
    """The sum of a tensor: one task, for SHA-256 takes one byte after the other."""
    try:
        return digest(tensor)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{show(name, 80)}: {error.problem}", path=path
        ) from None


def digest(tensor: Tensor) -> str:
    """SHA-256 of the dtype, the shape and the elements in the order of the shape,
    little-endian.

    For a composite tensor its layout and each of its parts are included.
    """
    checksum = hashlib.sha256()
    # A DTensor and its plain copy have the same sum.
    tensor = unwrap_dtensor(tensor)
    if not isinstance(tensor, TensorRef):
        kind = f"{tensor.layout} {tensor.dtype.name}"
        checksum.update(f"{kind} {list(tensor.shape)} {tensor.detail}\n".encode())
    for part in parts_of(tensor):
        checksum.update(f"{part.dtype.name} {list(part.shape)}\n".encode())
        if not part.numel:
            continue
        if part.storage.place is None:
            raise UnsupportedError("on meta, without data")
        refuse_unfolded(part)
        # Blocks are hashed as they are stored, not as the numbers they stand for.
        if part.dtype.block is not None:
            stream = packed_blocks(part)
        elif part.dtype.bits < 8:
            # Elements of less than a byte cannot be put into another order.
            first, last = part.extent
            stream = part.storage.place.read_blocks(first, last - first)
        else:
            stream = elements(part)
        for block in stream:
            checksum.update(block)
    return checksum.hexdigest()


_LINE = re.compile(r"([0-9a-f]{64}) [ *](.*)")
_ESCAPE = re.compile(r"\\(n|r|t|\\|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}


FILE = "# file: "
"""The text before the name of a file, above its sums."""
TIED = "# tied to: "
"""The text before the first name of a tensor, below the sum of its other name."""


def lines(records: Sequence[Sum], file: str | None = None) -> list[str]:
    """The sums as text, a line each, as `sha256sum` has them, below the name of their
    `file`; names escaped.
    """
    head = [] if file is None else [f"{FILE}{show(file, None)}"]
    for row in records:
        if row.unread is None:
            head.append(f"{row.digest}  {show(row.name, None)}")
            if row.tied is not None:
                head.append(f"{TIED}{show(row.tied, None)}")
    return head


def unescape_text(text: str) -> str:
    """The text that `show` has escaped."""
    return _ESCAPE.sub(_unescape_match, text)


def _unescape_match(match: re.Match[str]) -> str:
    """The character of an escape of `show`; other text stays unchanged."""
    if match[1] in _PLAIN:
        return _PLAIN[match[1]]
    code = int(match[1][1:], 16)
    return chr(code) if code < 0x110000 else match[0]


def parse(text: str) -> list[Sum]:
    """The sums of a text as `lines` makes it. Raises UnreadableError."""
    rows: list[Sum] = []
    file = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(FILE):
            file = unescape_text(line.removeprefix(FILE))
        if line.startswith(TIED) and rows:
            rows[-1] = rows[-1]._replace(tied=unescape_text(line.removeprefix(TIED)))
        if not line.strip() or line.startswith("#"):
            continue
        # `sha256sum` writes ` *` before the name of a file that it read in binary mode.
        match = _LINE.fullmatch(line)
        if match is None:
            raise UnreadableError(
                f"line {number:,} is no SHA-256 and a name",
                hint="expected the lines of ckpt sum",
            )
        rows.append(Sum(unescape_text(match[2]), match[1], file))
    if not rows:
        raise UnreadableError("holds no sums", hint="expected the lines of ckpt sum")
    return rows


def listed_path(path: str, listed: Sequence[str]) -> str | None:
    """The path of a list that a checkpoint at `path` has there: the same one, else the
    one that ends most alike.

    A copy lies elsewhere, so the last steps of its path decide. Where several end as
    much alike, it is None.
    """
    own_steps = _steps_of(path)
    # The same path wins over any that ends alike.
    best = [other for other in listed if _steps_of(other) == own_steps]
    if not best:
        common = [_count_common_steps(own_steps, _steps_of(other)) for other in listed]
        most = max(common, default=0)
        for other, count in zip(listed, common, strict=True):
            if count == most > 0:
                best.append(other)
    return best[0] if len(best) == 1 else None


def _steps_of(path: str) -> list[str]:
    return os.path.normpath(path).split(os.sep)


def _count_common_steps(first: Sequence[str], second: Sequence[str]) -> int:
    """The number of last steps that two paths share."""
    count = 0
    for step, other in zip(reversed(first), reversed(second), strict=False):
        if step != other:
            break
        count += 1
    return count


Shape = tuple[int, ...]
_LISTED = 3


class Like(NamedTuple):
    """The tensors of another save and of its model, by name. Sums record no shapes, so
    these are None.

    `sections` are the names of its sections; empty for sums.
    """

    path: str
    every: Mapping[str, Shape | None]
    model: Mapping[str, Shape | None]
    sections: frozenset[str] = frozenset()
    tied: Mapping[str, str] = {}
    """The names that are other names of a tensor, and its first name."""


class Likeness(NamedTuple):
    """The differences of a checkpoint from another save. Names of the checkpoint are
    full ones.
    """

    path: str
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    reshaped: Mapping[str, tuple[Shape, Shape]]
    has_shapes: bool

    @property
    def rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each difference in one line, and its tensors."""
        other = show(self.path, 80)
        out: list[tuple[str, tuple[str, ...]]] = []
        if self.missing:
            lacking = counted_noun(len(self.missing), "tensor")
            out.append((f"lacks {lacking} of {other}", self.missing))
        if self.reshaped:
            reshaped = counted_noun(len(self.reshaped), "tensor")
            name, (own, theirs) = next(iter(self.reshaped.items()))
            text = f"{reshaped} with another shape than in {other}"
            text += f": {show(name, 60)} is {list(own)}, there {list(theirs)}"
            out.append((text, tuple(self.reshaped)))
        if self.extra:
            extra = counted_noun(len(self.extra), "tensor")
            out.append((f"{extra} not in {other}", self.extra))
        return out

    @property
    def text(self) -> str:
        """The differences in one line; empty without any."""
        # Each line names its tensors, or gives the shapes of one as an example.
        texts = []
        for text, names in self.rows:
            if ":" not in text:  # else it names an example already
                listed = and_more([show(name, 60) for name in names], _LISTED)
                text = f"{text}: {listed}"
            texts.append(text)
        return "; ".join(texts)

    @property
    def checked(self) -> str:
        """Return the text for a checkpoint that differs in nothing."""
        what = "names and shapes" if self.has_shapes else "names"
        return f"{what} as in {show(self.path, 80)}"


def like_of(survey: Survey, section: str | None = None) -> Like:
    """Return the tensors of another save. Raises UsageError if it has no such
    section.
    """
    if section is not None:
        chosen = survey.section(section)
    else:
        chosen = _only_model_or_all(survey)
    every = survey.everything
    return Like(
        path=survey.path,
        every=_tensor_shapes(every),
        model=_tensor_shapes(chosen),
        sections=_section_names(survey),
        tied=_tied_names(every) | _tied_names(chosen),
    )


def like_of_sums(path: str, rows: Iterable[Sum]) -> Like:
    """Return the tensors that a file of sums names."""
    stored = list(rows)
    own = [row.name for row in stored]
    # `module.fc.weight` and `fc.weight` are one tensor where the names show a wrapper.
    plain = unwrapping_rule(own)
    names: dict[str, Shape | None] = dict.fromkeys(map(plain, own))
    tied = {plain(row.name): plain(row.tied) for row in stored if row.tied is not None}
    return Like(path, names, names, tied=tied)


def likeness(survey: Survey, like: Like, section: str | None = None) -> Likeness:
    """Compare a checkpoint with another save by names and shapes.

    All tensors are compared if both have the same sections, else the tensors of the
    model, or of `section`. A file of sums is compared with the part that has the most
    of its names. Wrappers in names do not count.
    """
    whole = survey.everything
    if section is not None:
        part, theirs = survey.section(section), like.model
    elif not like.sections:
        # A file of sums does not say of which part they are: the part with the most
        # names.
        parts = [whole, *survey.models, *survey.sections]
        common = [len(_tensor_shapes(row).keys() & like.every.keys()) for row in parts]
        part, theirs = parts[common.index(max(common))], like.every
    elif like.sections == _section_names(survey):
        part, theirs = whole, like.every
    else:
        part, theirs = _only_model_or_all(survey), like.model
    own = _tensor_shapes(part)
    names = part.names()
    unwrapped_names = map(unwrapping_rule(names), names)
    full_names = (entry.name for entry in part.entries)
    full = dict(zip(unwrapped_names, full_names, strict=True))
    reshaped: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for name, shape in own.items():
        other = theirs.get(name)
        if shape is not None and other is not None and shape != other:
            reshaped[full[name]] = (shape, other)
    # A name of one memory stands for all of its names, for many writers save it once.
    tied = _tied_names(part)
    ours = {like.tied.get(name, name) for name in own}
    others = {tied.get(name, name) for name in theirs}
    return Likeness(
        like.path,
        tuple(
            name
            for name in theirs
            if name not in own and like.tied.get(name, name) not in ours
        ),
        tuple(
            full[name]
            for name in own
            if name not in theirs and tied.get(name, name) not in others
        ),
        reshaped,
        bool(like.sections),
    )


def _only_model_or_all(survey: Survey) -> Section:
    return survey.candidates[0] if len(survey.candidates) == 1 else survey.everything


def _section_names(survey: Survey) -> frozenset[str]:
    return frozenset(section.name for section in survey.sections if section.tensors)


def _tied_names(part: Section) -> dict[str, str]:
    """The tensors of a section that are other names of an earlier one, by their names
    in it, and the first name.
    """
    others = tied_names(part.entries)
    if not others:
        return others
    names = part.names()
    plain = unwrapping_rule(names)
    short = {
        entry.name: plain(name) for entry, name in zip(part.entries, names, strict=True)
    }
    return {short[name]: short[first] for name, first in others.items()}


def _tensor_shapes(part: Section) -> dict[str, Shape | None]:
    """The shape of each tensor of a section, by its name in it."""
    names = part.names()
    plain = unwrapping_rule(names)
    shapes: dict[str, Shape | None] = {}
    for name, entry in zip(names, part.entries, strict=True):
        shapes[plain(name)] = entry.tensor.shape
    return shapes

"""The logical tensors among the tensors of a checkpoint: those whose parts are there,
and fit each other by one scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ckpt.ext.quantised.facts import Facts, facts_of
from ckpt.ext.quantised.place import decoded_tensor
from ckpt.ext.quantised.schemes import (
    Given,
    MisfitError,
    Planned,
    Scheme,
    refuse_strange_parts,
)
from ckpt.ext.quantised.table import SCHEMES
from ckpt.ext.quantised.wrappers import plan_wrapper
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.dtypes import DType
from ckpt.model.errors import UnreadableError, UnsupportedError
from ckpt.model.limits import Limits
from ckpt.model.names import Path
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, TensorRef
from ckpt.model.text import Json


class Part(NamedTuple):
    """A tensor that a logical tensor consists of: the name that its scheme gives it,
    and its entry.
    """

    role: str
    entry: Entry


class Logical(NamedTuple):
    """A weight that its scheme keeps in several tensors. `path` and `name` belong to
    the weight.

    The first of `parts` holds the codes. `aside` are tensors that go with them and say
    nothing about the weight.
    """

    name: str
    path: Path
    scheme: str
    planned: Planned
    parts: tuple[Part, ...]
    aside: tuple[Part, ...] = ()

    @property
    def refs(self) -> list[TensorRef]:
        """The tensors that are read for it."""
        refs: list[TensorRef] = []
        for part in self.parts:
            tensor = part.entry.tensor
            if isinstance(tensor, TensorRef):
                refs.append(tensor)
            else:
                refs += [ref for _, ref in tensor.parts]
        return refs

    @property
    def shape(self) -> tuple[int, ...]:
        return self.planned.shape

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its parts."""
        return sum(ref.nbytes for ref in self.refs)

    def decoded(self, dtype: DType | None = None) -> TensorRef:
        """Return the weight as a plain tensor, which is decoded when it is read."""
        return decoded_tensor(
            self.name,
            self.shape,
            self.planned.matrix,
            self.refs,
            dtype or self.planned.own,
        )

    def to_json(self) -> dict[str, Json]:
        """Return the row of the field `quantised`."""
        return {
            "name": self.name,
            "scheme": self.scheme,
            "text": self.planned.text,
            "bits": self.planned.bits,
            "group": list(self.planned.group),
            "shape": list(self.shape),
            "dtype": self.planned.own.name,
            "numel": self.numel,
            "bytes": self.nbytes,
            "bits_per_weight": round(8 * self.nbytes / max(1, self.numel), 4),
            "parts": [
                {"role": part.role, "name": part.entry.name} for part in self.parts
            ],
        }


class NearMiss(NamedTuple):
    """Codes that have the parts of a scheme, and contradict it: why they stay what they
    are.
    """

    name: str
    scheme: str
    why: str


class Found(NamedTuple):
    """The logical tensors of a checkpoint, and what nearly is one."""

    logical: tuple[Logical, ...]
    misses: tuple[NearMiss, ...]


def find_logical(
    checkpoint: Checkpoint,
    limits: Limits,
    *,
    can_read: bool = True,
    for_values: bool = False,
) -> Found:
    """Return the logical tensors of a checkpoint. With `can_read` the small parts that
    say a shape are read.

    With `for_values` those are left out whose values nothing is sure about.
    """
    facts = facts_of(checkpoint, limits)
    return match_entries(
        checkpoint.tensors,
        facts,
        can_read=can_read,
        for_values=for_values,
    )


def match_entries(
    entries: Sequence[Entry],
    facts: Facts,
    *,
    can_read: bool = True,
    for_values: bool = False,
) -> Found:
    """Return the logical tensors among some tensors. Those of one weight lie in one
    dict.
    """
    places = {entry.path: entry for entry in entries}
    taken = {entry.path for entry in entries}
    logical: list[Logical] = []
    misses: list[NearMiss] = []
    used: set[Path] = set()
    for entry in entries:
        if entry.path in used or not entry.path or not isinstance(entry.path[-1], str):
            continue
        if isinstance(entry.tensor, Composite):
            _match_wrapper(entry, facts, logical, misses, can_read=can_read)
            continue
        rows = list(_candidates(entry, places))
        if not rows:
            continue
        found, problems = _planned(
            rows,
            facts,
            can_read=can_read,
            for_values=for_values,
        )
        # A weight that is there already would stand twice under its name.
        if found is not None and found.path != entry.path and found.path in taken:
            why = f"{found.name} is there already"
            problems = [NearMiss(entry.name, found.scheme, why)]
            found = None
        if found is not None:
            logical.append(found)
            used.update(part.entry.path for part in (*found.parts, *found.aside))
        elif problems:
            # The scheme that the config names has the reason that helps.
            problems.sort(key=lambda miss: miss.scheme.lower() != facts.method)
            misses.append(problems[0])
    return Found(tuple(_name_blocks_alike(logical)), tuple(misses))


_BLOCKS = "float8 blocks of "


def _name_blocks_alike(logical: Sequence[Logical]) -> Iterator[Logical]:
    """Call small matrices as the large ones beside them: where those are cut into
    blocks, one block covers a small matrix, and its one scale is of that.
    """
    large = {row.planned.group: row for row in logical if _has_blocks(row)}
    block = next(iter(large)) if len(large) == 1 else None
    for row in logical:
        if block is None or _has_blocks(row) or not _is_within(row, block):
            yield row
            continue
        text = large[block].planned.text
        yield row._replace(planned=row.planned._replace(text=text, group=block))


def _has_blocks(row: Logical) -> bool:
    return row.planned.text.startswith(_BLOCKS)


def _is_within(row: Logical, block: tuple[int, ...]) -> bool:
    """Tell whether a matrix of 8-bit floats has one scale, which is written as a grid
    of one block, and is no larger than a block.
    """
    scale = next(
        (part.entry.tensor for part in row.parts if part.role == "scale"), None
    )
    return (
        row.planned.text == "float8 with one scale"
        and scale is not None
        and len(row.shape) == 2
        and scale.shape == (1, 1)
        and row.shape[0] <= block[0]
        and row.shape[1] <= block[1]
    )


def _match_wrapper(
    entry: Entry,
    facts: Facts,
    logical: list[Logical],
    misses: list[NearMiss],
    *,
    can_read: bool,
) -> None:
    """Add a tensor of a class of torchao to the logical tensors, or why it is none."""
    assert isinstance(entry.tensor, Composite)
    try:
        planned = plan_wrapper(entry.tensor, facts, can_read=can_read)
    except (MisfitError, UnsupportedError) as error:
        misses.append(NearMiss(entry.name, "torchao", error.problem))
        return
    if planned is not None:
        part = Part("tensor", entry)
        row = Logical(entry.name, entry.path, "torchao", planned, (part,))
        logical.append(row)


class _Candidate(NamedTuple):
    """Tensors that have the names of the parts of a scheme."""

    scheme: Scheme
    stem: str
    parts: Mapping[str, Entry]
    aside: tuple[Part, ...]


def _candidates(entry: Entry, places: Mapping[Path, Entry]) -> Iterator[_Candidate]:
    """Yield the schemes whose required parts stand beside a tensor of codes."""
    key = str(entry.path[-1])
    for scheme in SCHEMES:
        if entry.tensor.dtype.name not in scheme.types:
            continue
        stem = _stem(key, scheme.codes)
        if stem is None:
            continue
        parts = {scheme_codes(scheme): entry}
        for name, ends in scheme.parts.items():
            # A part has several spellings; the first one that is there counts.
            for end in ends:
                other = places.get((*entry.path[:-1], stem + end))
                if other is None or other is entry:
                    continue
                if isinstance(other.tensor, TensorRef):
                    parts[name] = other
                    break
        if all(name in parts for name in scheme.required):
            beside = [(end, (*entry.path[:-1], stem + end)) for end in scheme.aside]
            aside = tuple(
                [Part(end, places[path]) for end, path in beside if path in places]
            )
            yield _Candidate(scheme, stem, parts, aside)


def scheme_codes(scheme: Scheme) -> str:
    """Return the name that a scheme gives the tensor of its codes."""
    return "qweight" if scheme.codes == "qweight" else "codes"


def _stem(key: str, ending: str) -> str | None:
    """Return the name without the end of the name of codes, or None where it has
    another one.
    """
    if not key.endswith(ending):
        return None
    stem = key[: len(key) - len(ending)]
    # `weight` must not be the end of `myweight`: a word begins at a dot or an
    # underline.
    is_word = not ending or ending[0] in "._" or not stem or stem[-1] in "._"
    return stem if is_word else None


def _planned(
    rows: Sequence[_Candidate],
    facts: Facts,
    *,
    can_read: bool,
    for_values: bool,
) -> tuple[Logical | None, list[NearMiss]]:
    """Return the weight that one scheme plans of some tensors, or why none does. Raises
    UnreadableError.
    """
    found: list[Logical] = []
    problems: list[NearMiss] = []
    for row in rows:
        refs = {name: entry.tensor for name, entry in row.parts.items()}
        given = Given(
            {name: ref for name, ref in refs.items() if isinstance(ref, TensorRef)},
            facts,
            can_read,
            for_values,
        )
        # The codes were put in before the other parts.
        codes = next(iter(row.parts.values()))
        # The weight has the beginning of the name of its codes, up to their own part.
        above = codes.name[: len(codes.name) - len(str(codes.path[-1]))]
        name = above + row.stem + row.scheme.weight
        try:
            refuse_strange_parts(given)
            planned = row.scheme.plan(given)
        except (MisfitError, UnsupportedError) as error:
            problems.append(NearMiss(codes.name, row.scheme.name, error.problem))
            continue
        except UnreadableError as error:
            why = f"unreadable: {error.problem}"
            problems.append(NearMiss(codes.name, row.scheme.name, why))
            continue
        parts = tuple([Part(role, entry) for role, entry in row.parts.items()])
        # Two spellings of one scheme meet the same tensors.
        if any(other.parts == parts for other in found):
            continue
        path = (*codes.path[:-1], row.stem + row.scheme.weight)
        found.append(Logical(name, path, row.scheme.name, planned, parts, row.aside))
    # Codes that two schemes fit could be decoded to two weights: they stay codes.
    if len(found) > 1:
        listed = " and ".join(row.scheme for row in found)
        first = found[0]
        miss = NearMiss(first.parts[0].entry.name, first.scheme, f"fits {listed}")
        return None, [miss]
    return (found[0] if found else None), problems

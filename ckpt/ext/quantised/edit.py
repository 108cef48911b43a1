"""Logical tensors as plain weights: the tree of a checkpoint with each of them in the
place of its codes, without the other parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.ext.quantised.facts import facts_of
from ckpt.ext.quantised.find import Found, Logical, find_logical
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.dtypes import DType
from ckpt.model.limits import Limits
from ckpt.model.names import Globs, Path
from ckpt.model.nodes import Dict, Node, Opaque, inside, key_of
from ckpt.model.text import counted_noun, show
from ckpt.pickle.edit import Edit
from ckpt.tree.find import node_at

CONFIG = "config.json"
_NOT_A_DICT = "lies in an object, and not in a state dict"


class Swap(Edit):
    """Puts weights in the place of codes, and takes the other parts out."""

    def __init__(self) -> None:
        super().__init__()
        self._swaps: dict[int, dict[int, tuple[Node, Node] | None]] = {}
        self._places: dict[tuple[int, Path], dict[str | int, tuple[int, int]]] = {}

    def swap(self, root: Node, logical: Logical, node: Node) -> bool:
        """Note a weight in the place of its parts. False where they do not lie in
        dicts.
        """
        rows: list[tuple[int, int]] = []
        for part in (*logical.parts, *logical.aside):
            above = (id(root), part.entry.path[:-1])
            # Of 100,000 names in one dict each is looked up once.
            if above not in self._places:
                self._places[above] = _places_in(root, part.entry.path[:-1])
            place = self._places[above].get(part.entry.path[-1])
            if place is None:
                return False
            rows.append(place)
        # The weight takes the place of the first part, the codes; all others go.
        for holder, position in rows[1:]:
            self._swaps.setdefault(holder, {})[position] = None
        holder, position = rows[0]
        self._swaps.setdefault(holder, {})[position] = (logical.path[-1], node)
        return True

    def instead(self, node: Node) -> Node | None:
        swaps = self._swaps.get(id(node))
        if swaps is None or type(node) not in (Dict, Opaque):
            return None
        assert isinstance(node, (Dict, Opaque))
        keys: list[Node] = []
        # Shell and order stay: an Opaque is an OrderedDict, or a class that is one.
        values: list[Node] = []
        for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            swap = swaps.get(index, (key, value))
            if swap is not None:
                keys.append(swap[0])
                values.append(swap[1])
        if type(node) is Dict:
            other = Dict()
            other.set(keys, values)
            return self.shell_of(other)
        assert isinstance(node, Opaque)
        call = Opaque(node.how, node.func, node.args, node.kwargs, node.offset)
        call.meaning, call.states, call.items = node.meaning, node.states, node.items
        call.keys, call.values = keys, values
        return self.shell_of(call)


def _places_in(root: Node, path: Path) -> dict[str | int, tuple[int, int]]:
    """Return the keys of the dict at a path -> its id, and the position of each;
    nothing for what is no dict.
    """
    holder = inside(node_at(root, path) if path else root)
    if type(holder) is not Dict and not (type(holder) is Opaque and holder.keys):
        return {}
    assert isinstance(holder, (Dict, Opaque))
    places: dict[str | int, tuple[int, int]] = {}
    for index, key in enumerate(holder.keys):
        places.setdefault(key_of(key, index), (id(holder), index))
    return places


def dequantised(
    survey: Survey,
    limits: Limits,
    dtype: DType | None = None,
    *,
    section: str | None = None,
    select: Globs | None = None,
) -> RewriteReport:
    """Return the checkpoint with its logical tensors as weights of `dtype`, or of the
    dtype of their schemes.

    What stays quantised is listed. Raises CkptError.
    """
    checkpoint = survey.checkpoint
    found = find_logical(checkpoint, limits, for_values=True)
    chosen = _chosen(survey, found.logical, section, select)
    edit = Swap()
    counts: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    left = [
        Leftover(row.name, f"stays quantised: nearly {row.scheme}, but {row.why}")
        for row in found.misses
    ]
    gone: list[Leftover] = []
    for row in chosen:
        tensor = row.decoded(dtype)
        if not edit.swap(checkpoint.root, row, tensor):
            left.append(Leftover(row.name, f"stays quantised: it {_NOT_A_DICT}"))
            continue
        key = (row.planned.text, tensor.dtype.name)
        counts[key] += 1
        nbytes[key] += tensor.nbytes
        for part in row.aside:
            nbytes_aside = part.entry.tensor.nbytes
            gone.append(Leftover(part.entry.name, "about activations", nbytes_aside))
    left += _others(survey, found)
    changes = [
        Change("dequantised", before, after, count, "weight", nbytes[before, after])
        for (before, after), count in counts.most_common()
    ]
    if not changes:
        if not left:
            why = "no weight is quantised in a way that ckpt reads"
            left.append(Leftover("--dequantize", why))
        return RewriteReport("convert", checkpoint, checkpoint, left_alone=tuple(left))
    result = edited_checkpoint(
        checkpoint,
        edit.copy(checkpoint.root),
        limits,
        origin=None,
    )
    method = facts_of(checkpoint, limits).method
    # transformers asks config.json how to read the weights, not the weights.
    if method is not None:
        why = (
            f"its quantization_config still says {show(method, 40)}, so "
            "transformers would look for quantised weights"
        )
        hint = "--with-config writes it without"
        left.append(Leftover(CONFIG, why, hint=hint))
    return RewriteReport(
        "convert",
        checkpoint,
        result,
        tuple(changes),
        left_out=tuple(gone),
        left_alone=tuple(left),
        unchanged_bytes=False,
    )


def _chosen(
    survey: Survey,
    rows: Sequence[Logical],
    section: str | None,
    select: Globs | None,
) -> list[Logical]:
    """Return the logical tensors of a section, and those whose names are selected."""
    if section is not None:
        path = survey.only_model(section).path
        rows = [row for row in rows if row.path[: len(path)] == path]
    if select:
        rows = [row for row in rows if select.match(row.name, row.name)]
    return list(rows)


def _others(survey: Survey, found: Found) -> list[Leftover]:
    """List codes that no scheme of this extension knows, by their layouts."""
    known = {part.entry.name for row in found.logical for part in row.parts}
    known |= {row.name for row in found.misses}
    rows: Counter[str] = Counter()
    for index in (*survey.scaled.codes, *survey.scaled.unpaired):
        if survey.tensors[index].name not in known:
            rows[survey.scaled.what(index) or ""] += 1
    return [
        Leftover(counted_noun(count, "tensor"), f"stays quantised: {label}")
        for label, count in rows.most_common()
    ]


def plain_checkpoint(
    checkpoint: Checkpoint, limits: Limits
) -> tuple[Checkpoint, Found]:
    """Return a checkpoint with its logical tensors as weights of their schemes, and
    what was found. Writes nothing.
    """
    found = find_logical(checkpoint, limits, for_values=True)
    edit = Swap()
    swapped: list[Logical] = []
    for row in found.logical:
        if edit.swap(checkpoint.root, row, row.decoded()):
            swapped.append(row)
    if not swapped:
        return checkpoint, found._replace(logical=())
    result = edited_checkpoint(
        checkpoint,
        edit.copy(checkpoint.root),
        limits,
        origin=None,
    )
    return result, found._replace(logical=tuple(swapped))

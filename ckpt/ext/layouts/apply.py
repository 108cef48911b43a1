"""A recipe applied: the tensors of a checkpoint in the other layout, of which nothing
is read before it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ckpt.bytes.source import Source
from ckpt.commands.rewriting.edited import storages_of
from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport, rest_of
from ckpt.elements import cast
from ckpt.elements.boxes import Box, Boxes
from ckpt.elements.cast import can_cast
from ckpt.elements.computed import Computed, place_of
from ckpt.evidence.survey import Survey
from ckpt.ext.layouts.account import problems_of, refuse_problems
from ckpt.ext.layouts.gathered import Calculated, Gathered, Repeated
from ckpt.ext.layouts.pieces import Cell, Grid, Piece, grids_of
from ckpt.ext.layouts.proof import Leaf, is_proved, leaf_of, strided_view
from ckpt.ext.layouts.reverse import Copy, Reversed, reversed_recipe
from ckpt.ext.layouts.rules import Expanded, Recipe, Target, expand_recipe
from ckpt.ext.layouts.sides import Side, entries_of, side_of
from ckpt.model.checkpoint import Checkpoint, Entry, Traits
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import LossError, UnreadableError
from ckpt.model.nodes import Dict
from ckpt.model.places import Place, Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef, tensor_ref
from ckpt.model.text import and_more, counted_noun, show_name


class Applied(NamedTuple):
    """The tensors that a recipe makes of a checkpoint, by their names, and the tensors
    that are left out.
    """

    tensors: dict[str, TensorRef]
    left_out: tuple[Leftover, ...]


def convert_layout(
    survey: Survey,
    recipe: Recipe,
    name: str,
    format: str,
    traits: Traits,
    *,
    reverse: bool = False,
    section: str | None = None,
) -> RewriteReport:
    """The checkpoint in the other layout of a recipe called `name`. Raises LossError
    where the account does not add up.
    """
    side = side_of(survey, section)
    applied = applied_recipe(recipe, side, reverse=reverse)
    # Nothing is read here: the tensors are places that the writer reads.
    checkpoint = survey.checkpoint
    entries = tuple([Entry((key,), key, ref) for key, ref in applied.tensors.items()])
    root = Dict()
    root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
    result = Checkpoint(
        path=checkpoint.path,
        format=format,
        traits=traits,
        nbytes=checkpoint.nbytes,
        root=root,
        tensors=entries,
        storages=storages_of(entries),
        is_edited=True,
    )
    taken = len(entries_of(survey, section))
    change = Change(
        "layout",
        str(len(side.leaves)),
        str(len(entries)),
        len(entries),
        "tensor",
        section=name,
    )
    left = [*applied.left_out, *_list_leftovers(survey, section, taken)]
    return RewriteReport(
        "convert",
        checkpoint,
        result,
        (change,),
        tuple(left),
        unchanged_bytes=False,
    )


def _list_leftovers(survey: Survey, section: str | None, taken: int) -> list[Leftover]:
    """List the sections and values beside the tensors that the recipe is about."""
    chosen = [survey.section(section)] if section is not None else survey.candidates
    if len(chosen) == 1:
        return rest_of(survey, chosen[0])
    # Several models became one layout: what lies beside them is counted.
    rest = len(survey.tensors) - taken
    if not rest:
        return []
    return [Leftover("(beside the models)", counted_noun(rest, "tensor"))]


def plan_of(recipe: Recipe, *, reverse: bool) -> Expanded:
    """The tensors of a recipe, or of its way back. Raises UnreadableError,
    LossError.
    """
    whole = expand_recipe(recipe)
    return reversed_recipe(whole).expanded if reverse else whole


def applied_recipe(recipe: Recipe, side: Side, *, reverse: bool = False) -> Applied:
    """The tensors that a recipe makes of a side. Raises LossError, UnreadableError."""
    whole = expand_recipe(recipe, side.nbytes)
    turned = reversed_recipe(whole) if reverse else None
    plan = whole if turned is None else turned.expanded
    sources = {leaf.name: leaf for leaf in side.leaves}
    # Shapes, names and dtypes first: no tensor is made of a recipe that does not fit.
    refuse_problems(problems_of(plan, sources), side.path)
    # Sparse and quantised tensors have no elements in an order.
    if side.passed:
        texts = [f"{show_name(row.name)} ({row.why})" for row in side.passed]
        listed = and_more(texts, 3)
        raise LossError(
            f"a recipe is about dense tensors, so {listed} would be lost",
            path=side.path,
        )
    tensors = {
        target.name: made_tensor(target, plan, sources) for target in plan.targets
    }
    compared = {} if turned is None else _compared_names(turned)
    left_out: list[Leftover] = []
    for row in plan.wanted.values():
        if not row.dropped:
            continue
        numel = sources[row.name].ref.numel
        equal_to = row.equal_to or compared.get(row.name)
        left_out.append(Leftover(row.name, _dropped_text(row.dropped, numel, equal_to)))
    # The way back drops copies: each is compared with what stands in its place.
    if turned is not None:
        _refuse_unequal(turned, tensors, sources, side.path)
        left_out += [
            Leftover(name, "the recipe drops it, so nothing makes it")
            for name in turned.not_made
        ]
    return Applied(tensors, tuple(left_out))


def _compared_names(turned: Reversed) -> dict[str, str]:
    """The tensors that the way back drops because another one makes all of what they
    have, each with what that is.
    """
    rows: dict[str, list[Copy]] = {}
    for copy in turned.copies:
        rows.setdefault(copy.target, []).append(copy)
    wanted = turned.expanded.wanted
    return {
        name: copies[0].piece.source or ""
        for name, copies in rows.items()
        if wanted[name].dropped == prod(wanted[name].shape) and len(copies) == 1
    }


def _dropped_text(elements: int, of: int, equal_to: str | None) -> str:
    """The text on the rest of a tensor of A that a recipe leaves."""
    if equal_to is not None:
        return f"a copy of {show_name(equal_to)}, compared with it"
    if elements == of:
        return "the recipe drops it"
    return f"the recipe drops {elements:,} of {of:,} elements"


def _refuse_unequal(
    turned: Reversed,
    tensors: Mapping[str, TensorRef],
    sources: Mapping[str, Leaf],
    path: str,
) -> None:
    """Raise LossError where parts that become one on the way back have different
    values.
    """
    made = {name: leaf_of(name, ref) for name, ref in tensors.items()}
    unequal = [copy for copy in turned.copies if not _is_equal(copy, made, sources)]
    if unequal:
        pairs: list[str] = []
        for copy in unequal:
            other = show_name(copy.piece.source or "")
            pairs.append(f"{show_name(copy.target)} and {other}")
        listed = and_more(pairs, 3)
        raise LossError(f"would become one, and differ: {listed}", path=path)


def _is_equal(
    copy: Copy,
    made: Mapping[str, Leaf],
    sources: Mapping[str, Leaf],
) -> bool:
    """Tell whether a piece that is dropped is what the result has in its place."""
    if copy.piece.source not in made:
        return True
    return is_proved(copy.piece, sources[copy.target], made)


# --- tensors --------------------------------------------------------------------------


def made_tensor(
    target: Target,
    plan: Expanded,
    sources: Mapping[str, Leaf],
) -> TensorRef:
    """A tensor of the result over the bytes of its sources. Raises UnreadableError."""
    given = {
        sources[piece.source].dtype
        for piece in target.pieces
        if piece.source is not None
    }
    # One place has one dtype: two would have to be cast one by one.
    if len(given) > 1:
        listed = " and ".join(sorted(dtype.name for dtype in given))
        raise UnreadableError(f"{show_name(target.name)} would be made of {listed}")
    dtype = given.pop() if given else target.dtype
    out = _dtype_out(target, plan, dtype)
    place = _target_place(target, sources, dtype)
    numel = prod(target.shape)
    # The bytes are in the dtype of the sources; a cast is made while they are read.
    if out != dtype and numel:
        whole = Storage("", None, dtype, dtype.nbytes(numel), place)
        place = Computed(tensor_ref(whole, dtype, (numel,), (1,), 0), out)
    device = _first_device(target, sources)
    storage = Storage(target.name, device, out, out.nbytes(numel), place)
    return tensor_ref(storage, out, target.shape, contiguous(target.shape), 0)


def _dtype_out(target: Target, plan: Expanded, given: DType) -> DType:
    """The dtype of a tensor of the result: the dtype of its sources, unless the recipe
    casts.
    """
    # The recipe casts where its example did. Otherwise a bfloat16 of today stays one.
    wanted = [
        plan.wanted[piece.source].dtype
        for piece in target.pieces
        if piece.source is not None
    ]
    is_cast = any(dtype != target.dtype for dtype in wanted)
    if not is_cast:
        return given
    if not can_cast(given, target.dtype):
        raise UnreadableError(
            f"{show_name(target.name)}: {given.name} is not cast to {target.dtype.name}"
        )
    return target.dtype


def _first_device(target: Target, sources: Mapping[str, Leaf]) -> str | None:
    """The device of the first source that has one."""
    devices = [
        sources[piece.source].ref.device
        for piece in target.pieces
        if piece.source is not None
    ]
    return next((device for device in devices if device is not None), None)


def _target_place(target: Target, sources: Mapping[str, Leaf], dtype: DType) -> Place:
    """The bytes of a tensor of the result, in the dtype of its sources."""
    numel = prod(target.shape)
    if not numel:
        return Range(Repeated(b"\0", 0), 0, 0)
    # The recipe has constants in the dtype of the example, which may be another one.
    fills = [_constant_bits(piece, target.dtype, dtype) for piece in target.pieces]
    pieces = [
        piece._replace(constant=bits)
        for piece, bits in zip(target.pieces, fills, strict=True)
    ]
    grids = grids_of(pieces, numel)
    if len(grids) == 1:
        return _grid_place(grids[0], sources, dtype)
    boxes = [_grid_box(grid, sources, dtype) for grid in grids]
    return _make_boxes(dtype, (numel,), boxes)


def _constant_bits(piece: Piece, given: DType, to: DType) -> int:
    """The bits of a constant in another dtype."""
    if piece.source is not None or given == to:
        return piece.constant
    element = piece.constant.to_bytes(given.bits // 8, "little")
    data, _, _ = cast.cast_and_count(element, given, to)
    return int.from_bytes(data, "little")


def _grid_box(grid: Grid, sources: Mapping[str, Leaf], dtype: DType) -> Box:
    """A grid as a box of the flat tensor."""
    numel = grid.numel
    place = _grid_place(grid, sources, dtype)
    storage = Storage("", None, dtype, dtype.nbytes(numel), place)
    part = tensor_ref(storage, dtype, (numel,), (1,), 0)
    return Box((grid.first,), (numel,), part)


def _grid_place(grid: Grid, sources: Mapping[str, Leaf], dtype: DType) -> Place:
    """The bytes of a grid: a range if one run of bytes is all of it, else boxes."""
    parts = [_cell_part(cell, sources, dtype) for cell in grid.cells]
    # One cell is its own place: a range of a file stays one, which is copied as it is.
    if len(parts) == 1:
        return place_of(parts[0])
    boxes = [
        Box(cell.offsets, cell.sizes, part)
        for cell, part in zip(grid.cells, parts, strict=True)
    ]
    return _make_boxes(dtype, grid.shape, boxes)


def _make_boxes(dtype: DType, shape: tuple[int, ...], boxes: Sequence[Box]) -> Boxes:
    """The boxes, with the sources of their parts."""
    parts = [box.part for box in boxes if isinstance(box.part, TensorRef)]
    # By their ids: thousands of parts lie in a few files.
    sources: dict[int, Source] = {}
    for part in parts:
        sources |= {id(source): source for source in part.storage.list_sources()}
    return Boxes(dtype, shape, lambda: boxes, tuple(sources.values()))


def _cell_part(cell: Cell, sources: Mapping[str, Leaf], dtype: DType) -> TensorRef:
    """The elements of a cell as a dense tensor: bytes of the source if they lie there
    in this order, else gathered ones.
    """
    piece = cell.piece
    numel = piece.numel
    if piece.source is None:
        element = piece.constant.to_bytes(dtype.bits // 8, "little")
        return _dense_tensor(Repeated(element, numel), cell.sizes, dtype)
    flat = sources[piece.source].flat
    loops: list[tuple[int, int]] = []
    for size, step in zip(cell.sizes, cell.steps, strict=True):
        if size > 1:
            loops.append((size, step))
    # Elements that follow each other in the source are a range of bytes.
    run_step = 1
    is_run = True
    for size, step in reversed(loops):
        is_run = is_run and step == run_step
        run_step *= size
    if piece.formula:
        gathered = Gathered(flat, piece.at, tuple(loops))
        made = Calculated(gathered, 0, dtype, piece.formula, numel)
        return _dense_tensor(made, cell.sizes, dtype)
    if is_run:
        ref = strided_view(flat, piece.at, ((numel, 1),))
        storage = Storage("", None, dtype, ref.nbytes, place_of(ref))
        return tensor_ref(storage, dtype, cell.sizes, contiguous(cell.sizes), 0)
    return _dense_tensor(Gathered(flat, piece.at, tuple(loops)), cell.sizes, dtype)


def _dense_tensor(source: Source, shape: tuple[int, ...], dtype: DType) -> TensorRef:
    """A dense tensor whose bytes are all of a source."""
    storage = Storage("", None, dtype, source.size, Range(source, 0, source.size))
    return tensor_ref(storage, dtype, shape, contiguous(shape), 0)

"""Proving a recipe on a pair of checkpoints: nothing is searched, every byte is
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckpt.bytes.executor import Executor, Failed, Task, run_each
from ckpt.ext.layouts.account import problems_of
from ckpt.ext.layouts.findings import BEYOND, Findings, Made, Unused
from ckpt.ext.layouts.proof import Leaf, are_proved
from ckpt.ext.layouts.rules import Expanded, Recipe, Target, expand_recipe
from ckpt.ext.layouts.sides import Side


def check_recipe(
    recipe: Recipe,
    before: Side,
    after: Side,
    executor: Executor,
    progress: Callable[[int], None] | None = None,
) -> Findings:
    """The findings of a recipe on a pair: each tensor of B with its pieces, or the
    reason why it is another one.
    """
    whole = expand_recipe(recipe, max(before.nbytes, after.nbytes))
    sources = {leaf.name: leaf for leaf in before.leaves}
    made, ready = _compared_names(whole, sources, after)
    tasks = [
        Task(
            _is_made,
            (target, leaf, _target_sources(target, sources)),
            leaf.ref.nbytes,
        )
        for target, leaf in ready
    ]
    # In the order of the tasks, whichever of them ends first.
    for (target, _), result in zip(
        ready,
        run_each(executor, tasks, progress),
        strict=True,
    ):
        if isinstance(result, Failed):
            made[target.name] = Made(target.name, None, why=result.problem)
        elif result:
            made[target.name] = Made(target.name, target.pieces)
        else:
            made[target.name] = Made(
                target.name,
                None,
                why="its bytes are not what the recipe makes",
            )
    rows = [made[leaf.name] for leaf in after.leaves]
    rows += [row for row in made.values() if row.why == BEYOND]
    unused = [
        Unused(row.name, 0, 0, None)
        for row in problems_of(whole, sources)
        if not row.is_target
    ]
    # A tensor that does not fit is counted as not used at all.
    sized = [
        row._replace(
            elements=_source_numel(sources, row.name),
            of=_source_numel(sources, row.name),
        )
        for row in unused
    ]
    return Findings(tuple(rows), tuple(sized))


def _source_numel(sources: Mapping[str, Leaf], name: str) -> int:
    """The number of elements of a tensor of A, 0 for one that is not there."""
    return sources[name].ref.numel if name in sources else 0


def _compared_names(
    whole: Expanded,
    sources: Mapping[str, Leaf],
    after: Side,
) -> tuple[dict[str, Made], list[tuple[Target, Leaf]]]:
    """The tensors of B that are not what the recipe says by name, shape or account, and
    those whose bytes are to be compared.
    """
    wrong = {row.name: row.text for row in problems_of(whole, sources) if row.is_target}
    lacking = {row.name for row in problems_of(whole, sources) if not row.is_target}
    leaves = {leaf.name: leaf for leaf in after.leaves}
    made: dict[str, Made] = {}
    ready: list[tuple[Target, Leaf]] = []
    targets = {target.name: target for target in whole.targets}
    for leaf in after.leaves:
        target = targets.get(leaf.name)
        if target is None:
            made[leaf.name] = Made(leaf.name, None, why="the recipe does not make it")
        elif target.shape != leaf.shape or target.dtype != leaf.dtype:
            why = (
                f"it is {leaf.dtype.name} {list(leaf.shape)}, the recipe makes "
                f"{target.dtype.name} {list(target.shape)}"
            )
            made[leaf.name] = Made(leaf.name, None, why=why)
        elif leaf.name in wrong:
            made[leaf.name] = Made(
                leaf.name,
                None,
                why=f"the recipe {wrong[leaf.name]}",
            )
        elif lacking & {piece.source for piece in target.pieces} and not _are_there(
            target, sources
        ):
            made[leaf.name] = Made(
                leaf.name,
                None,
                why="A has not what the recipe takes",
            )
        else:
            ready.append((target, leaf))
    # The tensors that the recipe makes beside those that are there.
    for name in targets:
        if name not in leaves:
            made[name] = Made(name, None, why=BEYOND)
    return made, ready


def _are_there(target: Target, sources: Mapping[str, Leaf]) -> bool:
    """Tell whether A has all tensors that one of B is made of."""
    return all(
        piece.source is None or piece.source in sources for piece in target.pieces
    )


def _target_sources(target: Target, sources: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """The tensors of A that one of B is made of."""
    return {
        piece.source: sources[piece.source]
        for piece in target.pieces
        if piece.source is not None
    }


def _is_made(target: Target, leaf: Leaf, sources: Mapping[str, Leaf]) -> bool:
    """Tell whether all pieces of a tensor are what is there. Raises UnreadableError."""
    return are_proved(target.pieces, leaf, sources)

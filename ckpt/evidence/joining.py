"""The names that torch gives to the parameters of an optimizer, and how sure it is
which parameter has which.

`get_state_dict` of torch keeps an optimizer by the names of the model's parameters,
without the attributes of wrappers (torch/distributed/checkpoint/state_dict.py
`_get_fqns`). A plain `state_dict()` numbers them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt.evidence.matching import Match, by_order
from ckpt.evidence.wrappers import own_name, wrapper_prefix
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, show


class Joined(NamedTuple):
    """The name of each parameter of an optimizer, in the order of the optimizer; none
    where some are unknown.

    `reason` says why the names are not sure. With `in_order` they follow if the
    optimizer got them in the order of the model.
    """

    match: Match
    names: tuple[str, ...] = ()
    reason: str | None = None
    in_order: bool = False

    @property
    def is_sure(self) -> bool:
        """Tell whether each name is certain or strong."""
        return self.reason is None


def names_in_torch(names: Sequence[str]) -> Callable[[str], str]:
    """Return a rule: a name of the model -> the name that `get_state_dict` gives it.

    The attributes of wrappers go from the beginning only where all names have them: a
    model may have a part `module`.
    """
    # None until the first name is seen: an empty text says that nothing is common.
    common: str | None = None
    for name in names:
        prefix = wrapper_prefix(name)
        while common is not None and not prefix.startswith(common):
            # A beginning is cut at a dot: half of a word is no attribute of a wrapper.
            common = common[: common.rstrip(".").rfind(".") + 1]
        common = prefix if common is None else common
        if not common:
            break
    start = common or ""

    def rule(name: str) -> str:
        rest = name.removeprefix(start)
        parent, _, last = rest.rpartition(".")
        # All attributes that `own_name` takes away begin with an underscore.
        parent = own_name(parent) if "_" in parent else parent
        return f"{parent}.{last}" if parent else last

    return rule


def join_names(
    checkpoint: Checkpoint, match: Match, *, knows_order: bool | None = None
) -> Joined:
    """Return the names of the parameters of one optimizer. Reads no tensor data.

    With `knows_order` the tensors of the model are in its order; by default the format
    of the file decides it.
    """
    # An optimizer alone in its file names its parameters: no model is there to match.
    if match.by_name or (
        match.slots and not match.models and all(slot.name for slot in match.slots)
    ):
        return _by_name(checkpoint, match)
    if match.is_flat:
        return Joined(match, reason="one state stands for all of its parameters")
    if len(match.models) > 1:
        models = and_more(
            [show(model.name or "the root", 60) for model in match.models], 4, " and "
        )
        return Joined(
            match,
            reason=(
                f"it holds parameters of {models}, and torch names those of one model"
            ),
        )
    if knows_order is None:
        knows_order = checkpoint.traits.keeps_order
    unordered = "" if knows_order else f", and {checkpoint.traits.label} keeps none"
    if match.model is None:
        return Joined(
            match, reason=f"its parameters fit the order of no model here{unordered}"
        )
    unknown = [number for number, index in enumerate(match.indices) if index is None]
    if unknown:
        numbers = and_more([str(number) for number in unknown], 4)
        noun = "parameter" if len(unknown) == 1 else "parameters"
        return Joined(match, reason=f"several tensors fit its {noun} {numbers}")
    model = match.model
    rule = names_in_torch(model.names())
    names = tuple(
        rule(model.relative(checkpoint.tensors[index].name))
        for index in match.indices
        if index is not None
    )
    # Under one key torch would keep the state of the last one alone.
    if len(set(names)) < len(names):
        return Joined(match, reason="two of its parameters would get one name")
    doubtful = _by_order(checkpoint, match)
    if not doubtful:
        return Joined(match, names)
    every = counted_noun(len(names), "parameter")
    reason = f"only the order says which is which of {len(doubtful):,} of its {every}"
    if unordered:
        return Joined(match, reason=f"{reason}{unordered}")
    return Joined(match, names, reason, in_order=True)


def _by_name(checkpoint: Checkpoint, match: Match) -> Joined:
    """The names by those that the optimizer has. A parameter that the model lacks keeps
    its own.
    """
    model = match.model
    own_names = [str(slot.name) for slot in match.slots]
    own_in_torch = names_in_torch(own_names)
    names = [own_in_torch(name) for name in own_names]
    if model is not None:
        in_torch = names_in_torch(model.names())
        for number, index in enumerate(match.indices):
            if index is not None:
                name = model.relative(checkpoint.tensors[index].name)
                names[number] = in_torch(name)
    if len(set(names)) < len(names):
        return Joined(match, reason="two of its parameters would get one name")
    return Joined(match, tuple(names))


def _by_order(checkpoint: Checkpoint, match: Match) -> set[int]:
    """The numbers of the parameters that would be others if the optimizer had got them
    in another order.

    A tensor whose shape no other has is known by its state. Parameters without state
    are what is left: in one group it does not matter which is which.
    """
    doubtful = set(by_order(checkpoint, match))
    shapeless = [
        number for number, slot in enumerate(match.slots) if slot.shape is None
    ]
    has_state = any(match.slots[number].has_state for number in shapeless)
    if match.exact and match.groups == 1 and not has_state:
        shapes = {
            number: checkpoint.tensors[index].tensor.shape
            for number, index in enumerate(match.indices)
            if index is not None
        }
        shapes_with_state = {
            shapes.get(number)
            for number, slot in enumerate(match.slots)
            if slot.shape is not None
        }
        for number in shapeless:
            # A shape that a state has too leaves open which tensor has none.
            if shapes.get(number) not in shapes_with_state:
                doubtful.discard(number)
        return doubtful
    # A single one without a shape is the one that is left.
    if len(shapeless) > 1 or not match.exact:
        doubtful.update(shapeless)
    return doubtful

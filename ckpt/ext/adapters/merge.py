"""`ckpt merge`: a base with what adapters add to it. Everything is planned and checked
before a byte is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.filling import Filling
from ckpt.commands.rewriting.report import (
    Change,
    ConfigValue,
    Leftover,
    RewriteReport,
    with_own_option,
)
from ckpt.commands.slim.slim import slim
from ckpt.elements.blocks import elements, in_whole_elements, is_dense, same_bytes
from ckpt.elements.cast import AVERAGED, CASTS, as_numbers, can_cast
from ckpt.elements.computed import Computed, place_of
from ckpt.evidence.scaled import config_of, find_scaled, groups_of
from ckpt.evidence.survey import Survey
from ckpt.ext.adapters.account import account_of
from ckpt.ext.adapters.base import Base
from ckpt.ext.adapters.names import part_of
from ckpt.ext.adapters.packing import Packing, UnnamedPackingError
from ckpt.ext.adapters.plan import (
    Options,
    Plan,
    Planner,
    Target,
    has_tokens,
)
from ckpt.ext.adapters.products import derived_place
from ckpt.ext.adapters.reader import (
    GIVEN,
    Adapter,
    read_adapter,
    stored_tensor,
)
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.dtypes import DType, contiguous
from ckpt.model.errors import CkptError, UnsupportedError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node
from ckpt.model.places import Place
from ckpt.model.rows import replace
from ckpt.model.tensors import Storage, TensorRef, tensor_ref, unwrap_dtensor
from ckpt.model.text import counted_noun, pasted_path, show, show_folded_names
from ckpt.tree.find import METADATA, metadata_node, metadata_of

_LISTED = 3
_OF_A_PRODUCT = {"down", "up", "embedding down", "embedding up", "alpha"}
"""The parts of a layer that adds B @ A alone."""


def merge(
    base: Survey,
    adapters: Sequence[Adapter],
    limits: Limits,
    options: Options,
    *,
    section: str | None = None,
    drop_other: bool = False,
) -> RewriteReport:
    """The model of a base with what adapters add to it, and the account of it.

    Without adapters, the base is a checkpoint of training that holds its own. Raises
    UsageError where a tensor of an adapter has no place, UnsupportedError for a base
    that is quantised.
    """
    refuse_weights(options.weights, max(1, len(adapters)))
    chosen = slim(base, limits, section=section, drop_other=drop_other)
    source = chosen.result
    if not adapters:
        inner = read_adapter(Survey(source), limits)
        _refuse_lone_adapter(inner)
        source = without_adapter(source, inner, limits)
        # Its whole tensors are in the base already, by their names there.
        adapters = [inner._replace(copies={}, wholes={})]
    plan = plan_merge(source, source.tensors, adapters, options)
    _refuse_unused_scale(plan, options)
    for adapter in adapters:
        _refuse_lost_numbers(adapter)
    plan, copies = _with_copies(plan, Base(source.tensors, source.path))
    result, ties, wanted = _merged_checkpoint(source, plan, limits)
    return chosen._replace(
        command="merge",
        result=result,
        # The weights that slim would take along are those of the base.
        left_out=with_own_option(chosen.left_out),
        changes=(
            *_count_changes(plan, source),
            *(row for row in chosen.changes if row.kind != "kept"),
        ),
        left_alone=(*chosen.left_alone, *ties),
        unchanged_bytes=False,
        account=account_of(plan, options.weights, copies),
        config=wanted,
    )


_WITH_A_SIGN = frozenset((*CASTS, "float64"))
"""The dtypes that have a zero with a sign, which is the upper bit."""
_WITHOUT_A_SIGN = bytes(code & 0x7F for code in range(256))
"""The upper byte of a float -> the same without its sign."""


def adds_nothing(adapter: Adapter) -> bool:
    """Tell whether all that an adapter adds is a product with zeros, as PEFT begins. Of
    one that was trained one tensor is read.
    """
    if adapter.wholes or adapter.tokens or not adapter.layers:
        return False
    # DoRA and biases change a tensor even where the product is zero.
    if any(not set(layer.parts) <= _OF_A_PRODUCT for layer in adapter.layers):
        return False
    # PEFT begins with B as zeros: one tensor that was trained answers for all.
    return all(_is_zero(layer.up) for layer in adapter.layers)


def _is_zero(ref: TensorRef) -> bool:
    """Tell whether all elements are zeros of either sign. Stops at the first other."""
    width = ref.dtype.nbytes(1)
    for block in in_whole_elements(elements(ref), width):
        if not block.strip(b"\0"):
            continue
        if ref.dtype.name not in _WITH_A_SIGN:
            return False
        # The sign of a zero is not zero: it is taken from the upper byte of each
        # element.
        rest = bytearray(block)
        upper = rest[width - 1 :: width]
        rest[width - 1 :: width] = upper.translate(_WITHOUT_A_SIGN)
        if rest.strip(b"\0"):
            return False
    return True


def _refuse_lost_numbers(adapter: Adapter) -> None:
    """Raise UnsupportedError for NaN and Inf in tensors that would take the place of
    tensors of the base. Reads them.
    """
    import numpy as np

    # Products are checked while they are computed; what replaces a tensor is not.
    for entry in (*adapter.wholes.values(), *adapter.tokens.values()):
        with about(adapter.path):
            ref = stored_tensor(entry)
            if ref.dtype.name not in AVERAGED:
                continue
            blocks = in_whole_elements(elements(ref), ref.dtype.nbytes(1))
            is_whole = all(
                np.isfinite(as_numbers(block, ref.dtype)).all() for block in blocks
            )
        if not is_whole:
            raise UnsupportedError(
                f"{show(entry.name, 80)} holds NaN or Inf",
                path=adapter.path,
                hint="--exclude GLOB leaves it out",
            )


def refuse_weights(weights: Sequence[float] | None, count: int) -> None:
    """Raise UsageError for weights that are not one for each adapter."""
    if weights is not None and len(weights) != count:
        raise UsageError(
            f"--weights has {counted_noun(len(weights), 'number')} for "
            f"{counted_noun(count, 'adapter')}"
        )
    if weights is None:
        return
    if any(weight != weight or abs(weight) == float("inf") for weight in weights):
        raise UsageError("--weights: not a finite number")


def _refuse_lone_adapter(adapter: Adapter) -> None:
    """Raise UsageError where a checkpoint has nothing beside its adapter."""
    if adapter.copies or adapter.wholes:
        return
    noted = adapter.settings and adapter.settings.text("base_model_name_or_path")
    base = f" {show(noted, 80)}" if noted else ""
    raise UsageError(
        f"an adapter alone, without the weights of its base{base}",
        path=adapter.path,
        hint=f"ckpt merge BASE {pasted_path(adapter.path) or 'ADAPTER'}",
    )


def _refuse_unused_scale(plan: Plan, options: Options) -> None:
    """Raise UsageError for a scale that no layer takes, because all record their
    alpha.
    """
    if options.scale is None or not plan.pairs:
        return
    if all(pair.scale.source != GIVEN for pair in plan.pairs):
        raise UsageError(
            f"{GIVEN}: all layers record their alpha",
            hint="--weights X multiplies what is added",
        )


def without_adapter(
    checkpoint: Checkpoint,
    adapter: Adapter,
    limits: Limits,
) -> Checkpoint:
    """The base inside of a checkpoint of training: its own tensors, by the names that
    they have without the adapter.
    """
    # By identity: wrappers and PEFT's own parts change the names.
    names: dict[int, str] = {}
    for name, entry in (adapter.copies | adapter.wholes).items():
        names[id(entry)] = name
    kept = [entry for entry in checkpoint.tensors if id(entry) in names]
    root = Dict()
    root.set([names[id(entry)] for entry in kept], [entry.tensor for entry in kept])
    return edited_checkpoint(checkpoint, root, limits)


# --- the plan -------------------------------------------------------------------------


def plan_merge(
    checkpoint: Checkpoint,
    entries: Sequence[Entry],
    adapters: Sequence[Adapter],
    options: Options,
) -> Plan:
    """The plan of a merge into some tensors of a checkpoint. Raises UsageError,
    UnsupportedError.
    """
    base = Base(entries, checkpoint.path)
    scaled = find_scaled(entries, config_of(checkpoint))
    codes = {base.names[index] for index in scaled.codes}
    labels = [group.text for group in groups_of(scaled, entries)] if codes else []
    try:
        plan = Planner(base, adapters, options).plan()
    except CkptError:
        # Both are better answers than a layer without a place: neither has weights.
        if codes:
            raise _quantised_error(checkpoint.path, labels[0]) from None
        _refuse_adapter(base)
        raise
    changed = [plan.untied.get(target.name, target.name) for target in plan.targets]
    if any(name in codes for name in changed):
        raise _quantised_error(checkpoint.path, labels[0])
    return plan


def _refuse_adapter(base: Base) -> None:
    """Raise UsageError for a base that holds nothing but an adapter."""
    kinds = {part_of(name).kind for name in base.names}
    has_layers = bool(kinds & {"down", "embedding down"})
    if has_layers and not kinds & {"whole", "base"}:
        raise UsageError(
            "is an adapter itself: BASE is the model that was trained with it",
            path=base.path,
        )


def possible_plans(
    checkpoint: Checkpoint,
    entries: Sequence[Entry],
    adapters: Sequence[Adapter],
    options: Options,
) -> list[tuple[tuple[Packing, ...], Plan]]:
    """The plan of a merge, or where two packings fit and none was named, one for each,
    with the packings that it takes. Raises UsageError, UnsupportedError.
    """
    try:
        return [(options.packing, plan_merge(checkpoint, entries, adapters, options))]
    except UnnamedPackingError as error:
        ways = error.ways
    # Each choice may leave another one open: query, key and value, and then a square.
    plans: list[tuple[tuple[Packing, ...], Plan]] = []
    refused: list[CkptError] = []
    for way in ways:
        named = options._replace(packing=(*options.packing, way))
        try:
            plans += possible_plans(checkpoint, entries, adapters, named)
        except CkptError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    return plans


_OPTIONS = ("--sub ", "--scale ", "--include ", "--exclude ")
"""The beginnings of hints that name an option of `ckpt merge`, of which other commands
have none for an adapter.
"""


def say_of_merge(error: CkptError) -> None:
    """Say of the option in a hint that `ckpt merge` has it, where another command meets
    the same problem.
    """
    if error.hint is not None and error.hint.startswith(_OPTIONS):
        error.hint = f"in ckpt merge: {error.hint}"


def _quantised_error(path: str, label: str) -> UnsupportedError:
    """The error for a base whose tensors hold codes: a sum of codes and weights is
    nothing.
    """
    return UnsupportedError(
        f"holds {label}, to which nothing can be added: merge into the weights that it "
        "was quantised from, or into floats made of it",
        path=path,
        way=("convert", "--dequantize"),
    )


def _with_copies(plan: Plan, base: Base) -> tuple[Plan, list[int]]:
    """The plan after the tensors beside an adapter in a checkpoint of training are
    compared with the base.

    One that differs was trained as a whole, unless an adapter changes it: then it
    belongs to another base. Returns the number of those that are equal too, for each
    adapter. Raises UsageError.
    """
    equal = [0] * len(plan.adapters)
    if not plan.copies:
        return plan, equal
    # A copy that differs replaces the tensor of the base, unless that changes too.
    targets = {target.name: target for target in plan.targets}
    for index, name, entry in plan.copies:
        path = show(plan.adapters[index].path, 80)
        if name not in base.indices:
            near = base.near(name)
            raise UsageError(
                f"lacks {show(name, 80)} of {path}",
                path=base.path,
                hint=f"near: {near}" if near else None,
            )
        own = base.entry(name)
        with about(base.path):
            if _is_equal(own, entry):
                equal[index] += 1
                continue
        if name in targets:
            problem = (
                f"{show(name, 80)} is another one in {path}: its adapter belongs to "
                "another base"
            )
            raise UsageError(
                problem,
                path=base.path,
                hint="without BASE, the weights in it are taken",
            )
        targets[name] = Target(name, own, entry, None)
    return plan._replace(targets=tuple(targets.values())), equal


def _is_equal(own: Entry, entry: Entry) -> bool:
    """Tell whether a tensor has the elements of another one, as the dtype of that."""
    one = unwrap_dtensor(own.tensor)
    two = unwrap_dtensor(entry.tensor)
    if not isinstance(one, TensorRef) or not isinstance(two, TensorRef):
        return False
    if one.shape != two.shape:
        return False
    if one.dtype == two.dtype:
        return same_bytes(elements(one), elements(two))
    if not can_cast(two.dtype, one.dtype):
        return False
    cast = new_tensor(Computed(two, one.dtype), one.dtype, one.shape, None)
    return same_bytes(elements(one), elements(cast))


def _count_changes(plan: Plan, source: Checkpoint) -> list[Change]:
    """The counts of tensors that are merged, replaced, added and taken as they are."""
    merged = [target for target in plan.targets if target.work is not None]
    replaced = [
        target
        for target in plan.targets
        if target.work is None and target.entry is not None
    ]
    added = [target for target in plan.targets if target.entry is None]
    rows = []
    for kind, targets in (("merged", merged), ("replaced", replaced), ("added", added)):
        if not targets:
            continue
        nbytes = sum(map(_nbytes_after, targets))
        rows.append(Change(kind, kind, None, len(targets), "tensor", nbytes))
    names = {id(target.entry) for target in plan.targets}
    rest = [entry.tensor.nbytes for entry in source.tensors if id(entry) not in names]
    if rest:
        rows.append(Change("taken", "as in BASE", None, len(rest), "tensor", sum(rest)))
    return rows


def _nbytes_after(target: Target) -> int:
    """The bytes of a tensor after the merge, where an embedding may have grown."""
    ref, dtype = _ref_after(target)
    return dtype.nbytes(ref.numel)


# --- the result -----------------------------------------------------------------------


def new_tensor(
    place: Place,
    dtype: DType,
    shape: tuple[int, ...],
    device: str | None,
) -> TensorRef:
    """A contiguous tensor over a place, in a storage of its own."""
    strides = contiguous(shape)
    nbytes = dtype.nbytes(1)
    for size in shape:
        nbytes *= size
    storage = Storage("", device, dtype, nbytes, place)
    return tensor_ref(storage, dtype, shape, strides, 0)


def _ref_after(target: Target) -> tuple[TensorRef, DType]:
    """Return the tensor with the shape of a target after the merge, and the dtype that
    it has then: the base's.
    """
    whole = None if target.whole is None else stored_tensor(target.whole)
    base = None if target.entry is None else unwrap_dtensor(target.entry.tensor)
    # A tensor of the adapter takes the place of the base's; what is added comes on top.
    ref = whole if whole is not None else base
    assert isinstance(ref, TensorRef)
    return ref, base.dtype if isinstance(base, TensorRef) else ref.dtype


def place_after(target: Target) -> tuple[Place, DType, tuple[int, ...]]:
    """The place of a tensor after the merge, with its dtype and its shape."""
    ref, dtype = _ref_after(target)
    if ref.dtype != dtype and not can_cast(ref.dtype, dtype):
        assert target.whole is not None
        raise UnsupportedError(
            f"{show(target.whole.name, 80)} is {ref.dtype.name}, which does not become "
            f"{dtype.name}, as in the base"
        )
    if target.work is not None:
        return derived_place(ref, target.work, dtype), dtype, ref.shape
    return place_of(ref, dtype), dtype, ref.shape


def _merged_checkpoint(
    source: Checkpoint,
    plan: Plan,
    limits: Limits,
) -> tuple[Checkpoint, list[Leftover], tuple[ConfigValue, ...]]:
    """The checkpoint after the merge, and what else is to be known: tied tensors, and
    tensors of another shape. With the values that config.json must have for these.
    """
    filling = Filling()
    fresh: dict[str, TensorRef] = {}
    ties: list[Leftover] = []
    wanted: dict[ConfigValue, None] = {}
    sharing = _shared_entries(source)
    changed = {id(target.entry) for target in plan.targets}
    for target in plan.targets:
        place, dtype, shape = place_after(target)
        entry = target.entry
        # A head that was tied to its embedding gets a tensor of its own.
        if target.name in plan.untied:
            ties.append(_changed(target.name, _untied_text(plan.untied[target.name])))
            wanted[_UNTIED] = None
        # So does one that the adapter holds as a whole, unless it is the embedding
        # still.
        embedding = plan.apart.get(target.name)
        if embedding is not None and not _equals_embedding(target, plan, embedding):
            ties.append(_changed(target.name, _apart_text(embedding)))
            wanted[_UNTIED] = None
        if entry is None:
            fresh[target.name] = new_tensor(place, dtype, shape, _first_device(source))
            continue
        ref = unwrap_dtensor(entry.tensor)
        assert isinstance(ref, TensorRef)
        # More tokens than the base has: config.json must say so.
        if ref.shape != shape:
            value = _config_size(target.name, ref.shape, shape)
            text = f"is {list(shape)}, and was {list(ref.shape)}"
            if value is not None:
                text = f"{text}: {value.text}"
                wanted[value] = None
            ties.append(_changed(entry.name, text))
        # Storages may be shared by parts of a fused tensor, which do not overlap.
        tied: list[Entry] = []
        for other in sharing.get(ref.storage, ()):
            if other is not entry and _overlap(other, entry):
                tied.append(other)
        others = [other.name for other in tied]
        # The bytes may be put into the storage where they lie there in this order.
        is_kept = (
            ref is entry.tensor
            and ref.shape == shape
            and is_dense(ref)
            and not (ref.neg or ref.conj)
        )
        rivals = [other for other in tied if id(other) in changed]
        if rivals:
            # Two changes of one memory: each gets its own, and the rest stays.
            ties.append(_changed(entry.name, _parted_text(rivals[0].name)))
            stays = f"shared the memory of {entry.name}, and stays as in BASE"
            for other in tied:
                if other not in rivals:
                    ties.append(Leftover(other.name, stays))
            if has_tokens(target.name):
                wanted[_UNTIED] = None
            fresh[entry.name] = new_tensor(place, dtype, shape, ref.device)
        elif is_kept:
            # Tied tensors stay tied: the storage changes once, for all of them.
            filling.put(ref, place)
            changes = f"shares the memory of {entry.name}, and changes with it"
            ties += [_changed(name, changes) for name in others]
        elif others:
            problem = (
                f"{show(entry.name, 80)} shares its memory with "
                f"{show_folded_names(others, _LISTED)}, and cannot change alone"
            )
            raise UnsupportedError(problem, path=source.path)
        else:
            fresh[entry.name] = new_tensor(place, dtype, shape, ref.device)
    # Without new tensors the checkpoint keeps its shape: objects, ties and order.
    if not fresh:
        return filling.checkpoint(source, limits), ties, tuple(wanted)
    edited = edited_checkpoint(source, _root_of(source, filling, fresh), limits)
    return replace(edited, is_edited=True), ties, tuple(wanted)


def _changed(name: str, what: str) -> Leftover:
    """A row about a tensor that is not as it was in the base."""
    return Leftover(name, what, is_changed=True)


_CLASSIFIERS = (
    "score.weight",
    "classifier.weight",
    "classifier.out_proj.weight",
    "qa_outputs.weight",
)
"""The ends of the names of layers with an output for each label, in transformers."""
_UNTIED = ConfigValue("tie_word_embeddings", None, False)
"""The value of config.json where a head is no more the embedding."""


def _equals_embedding(head: Target, plan: Plan, embedding: str) -> bool:
    """Tell whether an adapter gives a head and its embedding the same values, so that
    both stay tied. Reads both.
    """
    target = next((row for row in plan.targets if row.name == embedding), None)
    if target is None or target.whole is None or head.whole is None:
        return False
    if target.work is not None or head.work is not None:
        return False
    first = stored_tensor(head.whole)
    second = stored_tensor(target.whole)
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    return same_bytes(elements(first), elements(second))


def _apart_text(embedding: str) -> str:
    """The words for a head of the adapter that the base shares with an embedding."""
    return (
        f"is new: the adapter has it apart from {embedding}, which it was tied to: "
        f"{_UNTIED.text}"
    )


def _parted_text(other: str) -> str:
    """The words for a tensor that shared its memory with one that changes too."""
    text = f"shared the memory of {other}, which changes too, and has its own now"
    return f"{text}: {_UNTIED.text}" if has_tokens(other) else text


def _untied_text(embedding: str) -> str:
    """The words for a head that shared the tensor of an embedding."""
    return (
        f"is new: the adapter changes it, and {embedding}, which it was tied to, "
        f"stays: {_UNTIED.text}"
    )


def _config_size(
    name: str,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> ConfigValue | None:
    """The value of config.json for an embedding or a head with another number of
    tokens, or a classifier with another number of labels, or None for any other tensor.
    """
    if before[1:] != after[1:] or not before:
        return None
    if has_tokens(name):
        return ConfigValue("vocab_size", before[0], after[0])
    if name.endswith(_CLASSIFIERS):
        return ConfigValue("num_labels", before[0], after[0])
    return None


def _shared_entries(source: Checkpoint) -> dict[Storage, list[Entry]]:
    """The tensors of each storage that several share."""
    found: dict[Storage, list[Entry]] = {}
    for entry in source.tensors:
        if isinstance(entry.tensor, TensorRef):
            found.setdefault(entry.tensor.storage, []).append(entry)
    return {storage: row for storage, row in found.items() if len(row) > 1}


def _overlap(one: Entry, two: Entry) -> bool:
    """Tell whether two tensors of one storage share bytes of it: parts of a fused
    tensor do not.
    """
    first = unwrap_dtensor(one.tensor)
    second = unwrap_dtensor(two.tensor)
    assert isinstance(first, TensorRef) and isinstance(second, TensorRef)
    begin, end = first.extent
    return begin < second.extent[1] and second.extent[0] < end


def _first_device(source: Checkpoint) -> str | None:
    """The device of the first tensor, for those that are new."""
    return source.tensors[0].tensor.device if len(source.tensors) else None


def _root_of(source: Checkpoint, filling: Filling, fresh: dict[str, TensorRef]) -> Dict:
    """A plain state dict: the tensors of the base with their new bytes, and those that
    have another shape or are new.
    """
    root = Dict()
    names: list[str] = []
    tensors: list[Node] = []
    for entry in source.tensors:
        ref = entry.tensor
        names.append(entry.name)
        if entry.name in fresh:
            tensors.append(fresh[entry.name])
        else:
            tensors.append(filling.current(ref) if isinstance(ref, TensorRef) else ref)
    known = set(names)
    added = [name for name in fresh if name not in known]
    root.set([*names, *added], [*tensors, *(fresh[name] for name in added)])
    metadata = metadata_of(source.root)
    if metadata:
        root.set([METADATA], [metadata_node(metadata)])
    return root

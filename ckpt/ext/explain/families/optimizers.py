"""Errors of optimizers: state of other parameters, in another order, on another
device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpt.evidence.matching import groups_of
from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import (
    STATISTICS,
    Answer,
    Case,
    Statement,
    counted_parameters,
    finding_statements,
    looked_at,
)
from ckpt.ext.explain.families.copied import is_copying, of_copied_sizes
from ckpt.ext.explain.families.distributed import ways_to_other_ranks
from ckpt.ext.explain.families.flat import flat_state_statement, part_ratio
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, be_verb, counted_noun, show
from ckpt.tree.find import children_of

_ORDER = "optimizer-order"
"""The finding of an optimizer whose states have the shapes of other parameters."""
_SIZES = re.compile(
    r"size of tensor a \((\d{1,12})\) must match the size of tensor b \((\d{1,12})\)"
    r"(?: at non-singleton dimension (\d{1,3}))?"
)


def _answer_optimizer(message: Message, case: Case) -> Iterator[Statement]:
    del message
    survey = case.survey
    held = {use.optimizer.name: use for use in survey.matches}
    for section in survey.sections:
        kind = optimizer_facts(section) if section.kind == "optimizer" else None
        if kind is None:
            continue
        match = held.get(section.name)
        yield Statement(_groups_text(section))
        if match is not None and match.model is not None:
            model = match.model
            # Buffers are never in an optimizer, so they are not counted.
            roles = Counter(survey.roles[index].role for index in model.indices)
            yield Statement(
                _model_text(
                    show(model.name, 80) or "The model",
                    roles["parameter"],
                    roles["unknown"],
                    len(match.slots),
                )
            )
        else:
            yield from _with_statistics(section, case)
    if not case.optimizers:
        yield Statement("This file holds no optimizer.")
        return
    # --model gives the parameters that its code trains, to compare with.
    if survey.record is not None:
        built = survey.record.record
        trained = counted_noun(len(built.numbered), "parameter")
        yield Statement(
            f"The model of --model has {len(built.parameters):,}, and trains {trained}."
        )
    yield Statement(
        "The new optimizer must get the same parameters, in the same groups, in the "
        "same order. Or load the model alone: the optimizer then begins anew."
    )


def _model_text(model: str, sure: int, unsure: int, held: int) -> str:
    """Say how many parameters a model has, and how many of them the optimizer, which
    has `held`, lacks. `unsure` tensors may be parameters or buffers.
    """
    count = sure + unsure
    text = f"{model} has {counted_parameters(count, unsure)}."
    lacking = count - held
    if lacking > 0:
        verb = be_verb(lacking)
        text += f" {lacking:,} of them {verb} not in the optimizer."
    return text


def _with_statistics(section: Section, case: Case) -> Iterator[Statement]:
    """Say that an optimizer has as many parameters as the model has parameters and
    statistics of norms.
    """
    survey = case.survey
    models = [row for row in survey.models if row.kind == "model"]
    if len(models) != 1:
        return
    (model,) = models
    names = model.names()
    statistics = sum(name.endswith(STATISTICS) for name in names)
    count = len(names) - statistics
    count -= sum(name.endswith("num_batches_tracked") for name in names)
    held = sum(len(group.slots) for group in groups_of(section))
    if not statistics or held != count + statistics:
        return
    yield Statement(
        f"{show(model.name, 80) or 'The model'} has "
        f"{counted_noun(count, 'parameter')} and {statistics:,} running statistics of "
        f"norms, {held:,} together: the run gave both to its optimizer, as where a "
        "class of its own keeps the statistics as parameters without a gradient. A "
        "newer version of the code gives the parameters alone. The weights are not "
        "concerned: load the model, and begin the optimizer anew."
    )


def _groups_text(section: Section) -> str:
    sizes = [len(group.slots) for group in groups_of(section)]
    name = show(section.name, 80) or "The optimizer"
    if not sizes:
        return f"{name} has no group of parameters."
    if len(sizes) == 1:
        return f"{name} has one group of {counted_noun(sizes[0], 'parameter')}."
    listed_sizes = and_more([f"{size:,}" for size in sizes], 12)
    text = (
        f"{name} has {len(sizes):,} groups of {listed_sizes} parameters, "
        f"{sum(sizes):,} in all."
    )
    empty = [f"{number:,}" for number, size in enumerate(sizes) if not size]
    if empty:
        one = len(empty) == 1
        text += (
            f" Group{'' if one else 's'} {and_more(empty, 12)}, counted from 0, "
            f"{'is' if one else 'are'} empty: the run gave no parameter there. A "
            "generator that was used up gives none (filter, model.parameters() kept "
            "in a variable), and neither does a filter of layers that are all frozen."
        )
    return text


def _answer_tensor_sizes(message: Message, case: Case) -> Answer:
    """Answer two tensors whose shapes do not fit, in a step of an optimizer, in an
    average, or in a forward.
    """
    path = case.survey.path
    # The finding names the parameters already, so no sizes are compared.
    ordered = case.found(_ORDER)
    if ordered:
        return Answer(path, tuple(finding_statements(ordered)))
    sizes = _SIZES.search(message.text)
    if sizes is not None and message.names and case.survey.candidates:
        rows = list(of_copied_sizes(case, (int(sizes[1]), int(sizes[2]))))
        return Answer(path, tuple(rows))
    # Any sum of two tensors may raise this, so without an optimizer it says nothing.
    if sizes is None or not case.optimizers:
        return looked_at(case)
    pair = (int(sizes[1]), int(sizes[2]))
    place = None if sizes[3] is None else int(sizes[3])
    held = _states_of_sizes(case, pair, place)
    for here, there in (pair, pair[::-1]):
        flat = flat_state_statement(case, (here, there), held[here])
        if flat is not None:
            return Answer(path, (flat,))
    rows = [] if any(held.values()) else list(_of_zero(case, pair))
    if rows:
        return Answer(path, tuple(rows))
    rows = list(_size_statements(pair, held, place))
    for section in case.optimizers:
        rows.append(Statement(_groups_text(section)))
    # Without a model in the file nothing says in which order its parameters stand.
    has_model = any(match.models for match in case.survey.matches)
    if not all(held.values()) or not has_model:
        return Answer(path, tuple(rows))
    rows.append(
        Statement(
            "In this file the states fit the order of the model's parameters. Compare "
            "with the order in which the new run hands its parameters over, and with "
            "their shapes there."
        )
    )
    return Answer(path, tuple(rows))


def _take_copy(message: Message, text: str, start: int) -> Message:
    """The message, with a name where a program copies tensors by their names."""
    return message._replace(names=("copy_",) if is_copying(text, start) else ())


def _of_zero(case: Case, pair: tuple[int, int]) -> Iterator[Statement]:
    """Say that DeepSpeed ZeRO divides the optimizer by the number of ranks, where a
    file is of several.
    """
    ranks = [
        node for name, node in case.finds_value(("ranks",)) if name == "zero.ranks"
    ]
    if not ranks or type(ranks[0]) is not int or ranks[0] < 2:
        return
    ratio = part_ratio(*pair)
    times = (
        ""
        if ratio is None
        else f" ({max(pair):,} is {max(ratio):,} times {min(pair):,})"
    )
    yield Statement(
        f"{counted_noun(ranks[0], 'rank')} of DeepSpeed ZeRO saved this, and each has "
        "an equal part of the optimizer, in one row that has the shape of no "
        "parameter. Two such rows differ in length where the run that loads has "
        f"another number of ranks, or trains other parameters{times}. Go on with "
        f"{ranks[0]:,} ranks and the same parameters."
    )
    yield from ways_to_other_ranks(case)


def _states_of_sizes(
    case: Case, sizes: Sequence[int], place: int | None = None
) -> dict[int, list[str]]:
    """The parameters whose states have a dimension of each size, by their names or
    numbers. `place` is the dimension that a message names.
    """
    names: dict[str, list[str]] = {}
    for match in case.survey.matches:
        tensors = case.survey.checkpoint.tensors
        names[match.optimizer.name] = [
            f"parameter {number:,}" if index is None else tensors[index].name
            for number, index in enumerate(match.indices)
        ]
    held: dict[int, list[str]] = {size: [] for size in sizes}
    for section in case.optimizers:
        slots = [slot for group in groups_of(section) for slot in group.slots]
        known = names.get(section.name, [])
        for number, slot in enumerate(slots):
            own = slot.name or f"parameter {number:,}"
            label = known[number] if number < len(known) else own
            for size in held:
                if slot.shape is None or size not in slot.shape:
                    continue
                if place is None or slot.shape[place : place + 1] == (size,):
                    held[size].append(label)
    return held


def _size_statements(
    pair: tuple[int, int], held: dict[int, list[str]], place: int | None
) -> Iterator[Statement]:
    """Say which states of a file have the two sizes of an error. `place` is the
    dimension that the message names.
    """
    where = "" if place is None else f" (dimension {place})"
    found = [size for size in dict.fromkeys(pair) if held[size]]
    if not found:
        yield Statement(
            f"No state of an optimizer in this file has a dimension of {pair[0]:,} or "
            f"{pair[1]:,}{where}. If the step of an optimizer stopped, it had the "
            "state of another file. Otherwise the forward or the loss stopped, and no "
            "state of an optimizer is the cause."
        )
        return
    if len(found) == 1:
        yield from _layer_of_size(pair, found[0], held[found[0]], where)
        return
    for size in found:
        names = held[size]
        yield Statement(
            f"{counted_noun(len(names), 'state')} of the optimizer in this file "
            f"{'has' if len(names) == 1 else 'have'} a dimension of {size:,}{where}: "
            f"those of {and_more([show(name, 100) for name in names], 3)}."
        )
    yield Statement(
        "If the step of an optimizer stopped, it got the state of another parameter: "
        "the new run hands its parameters over in another order, or a layer has "
        "another size there. load_state_dict compares counts alone, and no shapes."
    )


def _layer_of_size(
    pair: tuple[int, int], size: int, names: Sequence[str], where: str
) -> Iterator[Statement]:
    """Say that a layer has another size in the new run than in the state of a file, and
    how the run goes on.
    """
    (other,) = [number for number in pair if number != size] or [size]
    yield Statement(
        f"{counted_noun(len(names), 'state')} of the optimizer in this file "
        f"{'has' if len(names) == 1 else 'have'} a dimension of {size:,}{where}: "
        f"those of {and_more([show(name, 100) for name in names], 3)}. None has one "
        f"of {other:,}. If the step of the optimizer stopped, a parameter of the new "
        f"run with {other:,} got this state: the layer has another size there, or a "
        "layer was added before it. load_state_dict compares counts alone, and no "
        "shapes. Load the model, leave out load_state_dict of the optimizer, and let "
        "it begin anew."
    )


def _answer_capturable(message: Message, case: Case) -> Iterator[Statement]:
    del message
    yield Statement(
        "torch 1.12.0 moves the step of Adam and AdamW to the GPU when it loads their "
        "state, and then refuses it. torch 1.12.1 and newer do not: this file is not "
        "the cause."
    )
    for name, node in case.finds_value(("capturable",)):
        if node is True:
            yield Statement(
                f"{show(name, 80)} is True in this file: the run used CUDA graphs, and "
                "wants its steps on the GPU."
            )


def _answer_scaler(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a GradScaler that gets an empty state."""
    del message
    rows: dict[str, int] = {}
    # A scaler lies at the root of the dict, or one level below.
    for key, child in children_of(case.survey.checkpoint.root):
        inner = [(f"{key}.{name}", part) for name, part in children_of(child)]
        for name, part in ((str(key), child), *inner):
            # A number or a text is no state, whatever its name is.
            if "scaler" in name.rpartition(".")[2].lower() and not isinstance(
                part, (int, float, str)
            ):
                rows[name] = len(children_of(part))
    empty = [name for name, count in rows.items() if not count]
    if empty:
        shown = and_more([show(name, 80) for name in empty], 4)
        yield Statement(
            f"{shown} {be_verb(empty)} empty: the run that saved had no mixed "
            "precision in float16 (GradScaler(enabled=False)). Nothing is lost: leave "
            "the load of the scaler out, or build it with enabled=False as that run "
            "did."
        )
    elif rows:
        shown = and_more([show(name, 80) for name in rows], 4)
        yield Statement(
            f"{shown} {be_verb(list(rows))} not empty in this file. Is it the file "
            "that was loaded?"
        )
    else:
        yield Statement(
            "This file holds no state of a GradScaler by that name: leave its load out."
        )


# FSDP: _OptimStateKey(unflat_param_names=('norm.weight', 'qkv.weight'), …) is empty.
_UNFLAT = re.compile(r"unflat_param_names=\(([^()]{1,20000})\)")
_QUOTED = re.compile(r"'([^'\n]{1,2000})'")


def _take_stateless(message: Message, text: str, start: int) -> Message:
    found = _UNFLAT.search(text, start)
    names = () if found is None else tuple(_QUOTED.findall(found[1]))
    return message._replace(names=names)


def _answer_stateless(message: Message, case: Case) -> Iterator[Statement]:
    """Answer FSDP, which finds no state for any part of one of its flat parameters.

    Source: torch/distributed/fsdp/_optim_utils.py `_flatten_optim_state_dict`.
    """
    wanted = set(message.names)
    if not case.optimizers:
        yield Statement("This file holds no optimizer.")
        return
    for section in case.optimizers:
        slots = [slot for group in groups_of(section) for slot in group.slots]
        label = show(section.name, 80) or "The optimizer"
        own = [slot for slot in slots if slot.name in wanted]
        # A parameter of the message without a state explains it.
        empty = [
            slot.name for slot in own if slot.name is not None and not slot.has_state
        ]
        without = sum(not slot.has_state for slot in slots)
        # With all these states the message must be of another file.
        if own and not empty:
            yield Statement(
                f"{label} has a state for each of these parameters: another file was "
                "loaded."
            )
            continue
        yield Statement(
            (
                f"{label} has no state for {without:,} of its "
                f"{counted_noun(len(slots), 'parameter')}"
            )
            + (
                f", these {len(empty):,} among them: they never had a gradient."
                if empty
                else ", and none of them by the names of the message."
            ),
            tuple(empty),
        )
        if empty:
            yield Statement(
                "The batches of that run never used this part of the model (a vision "
                "tower that saw no picture), or it was frozen. FSDP makes one "
                "parameter of all of them, and wants a state for it. Freeze them in "
                "the new run, too, or wrap the model with use_orig_params=True, which "
                "needs no state for them."
            )


FAMILIES = (
    Family(
        "stateless",
        (r"The state of _OptimStateKey\(.{1,20000}? is empty\.",),
        answer_from_statements(_answer_stateless),
        _take_stateless,
        needs_open=True,
    ),
    Family(
        "scaler",
        (
            (
                r"state dict is empty, possibly because it was saved from a disabled "
                r"instance of GradScaler"
            ),
        ),
        answer_from_statements(_answer_scaler),
        needs_open=True,
    ),
    Family(
        "optimizer",
        (
            (
                # torch: … a parameter group that doesn't match the size of …
                r"loaded state dict (?:has a different number of"
                r"|contains a) parameter group"
            ),
        ),
        answer_from_statements(_answer_optimizer),
        needs_open=True,
    ),
    Family(
        "elements",
        (
            (
                r"[Tt]he size of tensor a \(\d{1,12}\) must match the size of tensor b "
                r"\(\d{1,12}\)"
            ),
        ),
        _answer_tensor_sizes,
        _take_copy,
        needs_open=True,
    ),
    Family(
        "capturable",
        (
            (
                r"If capturable=(?:False"
                r"|True), (?:params and )?state_steps should (?:not )?be CUDA tensors"
            ),
            r"`?state_steps`? argument must contain a list of singleton tensors",
            (
                r"If capturable=(?:False"
                r"|True), (?:params and )?state_steps must be on supported devices"
            ),
        ),
        answer_from_statements(_answer_capturable),
        needs_open=True,
    ),
)

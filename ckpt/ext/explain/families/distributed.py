"""Errors of distributed checkpoints: keys and shapes that a load looks for, and another
number of ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ckpt.bytes.far import is_url
from ckpt.evidence.wrappers import WRAPPERS
from ckpt.ext.explain.case import (
    Answer,
    Case,
    Shapes,
    Statement,
    finding_statements,
    load_statements,
    looked_at,
)
from ckpt.ext.explain.families.computed import computed_buffers
from ckpt.ext.explain.families.recorded import settings_of
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.lists import keys_of
from ckpt.ext.explain.message import MOST_NAMES, Message
from ckpt.model.text import and_more, be_verb, counted_noun, pasted_path, show

_KEY = re.compile(r"Missing key in checkpoint state_dict: (?!\{)([^\n]{1,4000})")
"""A key that is missing. A brace begins the f-string of torch, in the source that a
traceback shows.
"""
# An option of a group of parameters: `optim.param_groups.fc.weight.lr`.
_OF_GROUP = re.compile(r"(?:^|\.)param_groups\.")
_NUMBERED = re.compile(r"\d+")
_EXTRA = "_extra_state"
_PARTIAL = "planner=DefaultLoadPlanner(allow_partial_load=True)"
_STATE = re.compile(r"(?:^|\.)state\.")
# The state of one rank, as `rank_3`, `dp_0` and `dataloader` name it.
_OF_RANK = re.compile(r"rank[_.]?\d|dp_\d|loader")
# Read Megatron's `shard_3_32`: group 2 is the shard, group 3 their number.
_OLD_SHARDS = re.compile(r"(.*\D)(\d+)_(\d+)$")


def _take_keys(message: Message, text: str, start: int) -> Message:
    del start
    # torch ends the message with a full stop, and a source line in a traceback with a
    # quote.
    names = dict.fromkeys(row[1].strip().rstrip(".'\"") for row in _KEY.finditer(text))
    return message._replace(
        names=tuple(names)[:MOST_NAMES], mismatched=keys_of(text).mismatched
    )


def _answer_keys(message: Message, case: Case) -> Answer:
    path = case.survey.path
    entries = {entry.name: entry.tensor.shape for entry in case.survey.tensors}
    values = {value.name for value in case.survey.checkpoint.values}
    # Keys of another shape are there, so nothing is said of keys that lack.
    if message.mismatched:
        shapes = tuple(
            Shapes(row.name, _shape_of(row.name, entries), row.model)
            for row in message.mismatched
        )
        text = (
            "torch.distributed.checkpoint fills tensors of the shapes that were saved: "
            "build the model as the run had it, or load a part."
        )
        settings = list(settings_of(message.mismatched, case))
        rows = [
            *finding_statements(case.at_least("error")),
            *_flat_statements(message),
            Statement(text),
            *settings,
        ]
        return Answer(path, tuple(rows), shapes=shapes)
    rows = list(_key_statements(message, case, [*entries, *values]))
    return Answer(path, tuple(rows)) if rows else looked_at(case)


def _shape_of(
    name: str, entries: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The shape of a tensor, also where the program names it without the part of the
    checkpoint in front, or None.
    """
    if name in entries:
        return entries[name]
    below = [shape for other, shape in entries.items() if other.endswith(f".{name}")]
    return below[0] if len(below) == 1 else None


def _flat_statements(message: Message) -> Iterator[Statement]:
    """Name the parameters that FSDP 1 hands over flat: in one dimension, of one
    rank.
    """
    flat = [
        row
        for row in message.mismatched
        if len(row.model) == 1
        and len(row.checkpoint) > 1
        and row.model[0]
        # Readers before torch 2.6 cut the flat one to the rows of the chunk.
        and (
            prod(row.checkpoint) % row.model[0] == 0
            or row.model[0] == row.checkpoint[0]
        )
    ]
    # FSDP hands all parameters over in one way, so one example is enough.
    for row in flat[:1]:
        is_part = row.model[0] != row.checkpoint[0]
        count = (
            f", with {row.model[0]:,} of its {prod(row.checkpoint):,} elements"
            if is_part
            else ""
        )
        yield Statement(
            f"The model hands {show(row.name, 120)} over in one dimension{count}: a "
            "flat parameter of FSDP 1. Take the state dict that saved: torch's "
            "get_model_state_dict, or FSDP.set_state_dict_type(model, "
            "StateDictType.SHARDED_STATE_DICT)."
        )


def _key_statements(
    message: Message, case: Case, names: Sequence[str]
) -> Iterator[Statement]:
    known = set(names)
    for name in list(known):
        # A key of the message may be a dict, and the checkpoint has its items by longer
        # names.
        known.update(name[: match.start()] for match in re.finditer(r"\.", name))
    here = [name for name in message.names if name in known]
    lost = [name for name in message.names if name not in known]
    if here:
        yield Statement(
            f"{counted_noun(len(here), 'key')} {be_verb(here)} in this checkpoint.",
            tuple(here),
        )
    # Look for wrappers first, else each of these keys counts as lost.
    wrapped = _wrapped_keys(lost, names)
    if wrapped:
        yield from _under_wrappers(wrapped, case)
        lost = [name for name in lost if name not in wrapped]
    if not lost:
        return
    yield Statement(
        f"{counted_noun(len(lost), 'key')} {be_verb(lost)} not in this checkpoint.",
        tuple(lost),
    )
    # Two keys are of one kind where nothing but numbers differs: `layers.3.w` and
    # `layers.7.w`.
    shapes = {_NUMBERED.sub("#", name) for name in names}
    options = [name for name in lost if _OF_GROUP.search(name)]
    extra = [name for name in lost if _EXTRA in name]
    ranked = [
        name
        for name in lost
        if not _OF_GROUP.search(name)
        and _EXTRA not in name
        and _NUMBERED.search(name)
        and _NUMBERED.sub("#", name) in shapes
    ]
    special = {*options, *ranked}
    stateless = [name for name in lost if name not in special and _STATE.search(name)]
    if options:
        yield from _option_statements(options, names)
    if extra:
        yield from _extra_state_statements(extra, names)
    # States are explained below by their parameters, which says more than a number.
    if ranked and not stateless:
        yield _ranked_statement(ranked[0], names)
    special.update(extra, stateless)
    others = [name for name in lost if name not in special]
    elsewhere = _differently_prefixed(others, names)
    for name, other in list(elsewhere.items())[:4]:
        yield Statement(f"It has {show(other, 120)} in place of {show(name, 120)}.")
    if stateless:
        yield from _stateless_statements(stateless, names, case)
    elif not elsewhere:
        yield from _in_part([*ranked, *others], names, case)


def _wrapped_keys(lost: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The keys that are there with or without the attributes of wrappers, each with its
    name in the checkpoint.
    """
    plain = {_strip_wrappers(name): name for name in names}
    return {
        name: plain[_strip_wrappers(name)]
        for name in lost
        if _strip_wrappers(name) in plain
    }


def _strip_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _under_wrappers(wrapped: dict[str, str], case: Case) -> Iterator[Statement]:
    """Say on which side the attribute of a wrapper is, and print the command that takes
    it out of the checkpoint.
    """
    # A longer name in the checkpoint has the wrapper itself. A shorter one means that
    # the model is wrapped.
    for side, has_more in (("under", True), ("without", False)):
        found = [
            other
            for name, other in wrapped.items()
            if (len(other) > len(name)) is has_more
        ]
        if not found:
            continue
        text = (
            f"{counted_noun(len(found), 'key')} {be_verb(found)} in this checkpoint "
            f"{side} the attribute of a wrapper: "
            f"{and_more([show(other, 120) for other in found], 3)}."
        )
        if has_more:
            section = case.survey.candidates[0].name if case.survey.candidates else ""
            yield Statement(text, (), case.plan(("stripped", section)).command)
        else:
            yield Statement(
                f"{text} The model is wrapped (torch.compile, DDP): torch's "
                "get_model_state_dict gives its names without."
            )


def _in_part(
    lost: Sequence[str], names: Sequence[str], case: Case
) -> Iterator[Statement]:
    """Print the load that leaves out what lacks, for keys of a part that the checkpoint
    has.
    """
    roots = {name.partition(".")[0] for name in names}
    shapes = {_NUMBERED.sub("#", name) for name in names}
    # A buffer that the model computes is no new layer, and is told apart first.
    computed = computed_buffers(lost)
    if computed and len(computed) == len(lost):
        yield Statement(
            f"{and_more([show(name, 80) for name in computed], 3)} "
            f"{'is no weight' if len(computed) == 1 else 'are no weights'}: the model "
            "computes such a buffer when it is built, and this checkpoint was saved or "
            "converted without it."
        )
        yield from _partial_load(
            "Leave it out of the state dict (persistent=False where it is registered), "
            "or keep the one that was computed with this load:",
            case,
        )
        return
    new = [
        name
        for name in lost
        if not _OF_RANK.search(name)
        and (
            ("." in name and name.partition(".")[0] in roots)
            or _NUMBERED.sub("#", name) in shapes
        )
    ]
    # The load below is silent about what lacks, so it is printed only where each key
    # looks new.
    if new and len(new) == len(lost):
        yield from _partial_load(
            "If the model is meant to have more than was saved (a new layer, a new "
            "head), this load fills the rest. What the checkpoint lacks keeps the "
            "values of the state dict, without a word:",
            case,
        )


def _partial_load(text: str, case: Case) -> Iterator[Statement]:
    """Print the load that keeps what the checkpoint lacks, where it fills a state
    dict.
    """
    load = case.survey.load.expression
    if load is not None and case.survey.checkpoint.traits.fills_a_state:
        planner = "torch.distributed.checkpoint.DefaultLoadPlanner"
        yield Statement(
            text,
            (),
            f"{load.removesuffix(')')}, planner={planner}(allow_partial_load=True))",
        )


def _stateless_statements(
    lost: Sequence[str], names: Sequence[str], case: Case
) -> Iterator[Statement]:
    """Name the parameters without state: by other keys, without a gradient, or of
    another model.
    """
    # Any end of another name may be a parameter, for the place of the model is not
    # known.
    held = [name for name in names if not _STATE.search(name)]
    ends = {end for name in held for end in _name_endings(name)}
    states = _keys_by_optimizer(names)
    for name in lost:
        # Compare numbers with names first: where the keys are of another kind, every
        # state seems to lack.
        keys = states.get(_optimizer_path(name), set())
        if (
            keys
            and _is_by_name(_parameter_name(name), ends)
            and any(key.isdigit() for key in keys)
        ):
            yield from _by_numbers(name, names, case)
            return
        if (
            keys
            and _parameter_name(name).isdigit()
            and not any(key.isdigit() for key in keys)
        ):
            yield _by_names(name, names)
            return
    here = [name for name in lost if _optimizer_path(name) in states]
    # A parameter of the model without state had no gradient. Any other one is not of
    # this model.
    known = [name for name in here if _parameter_name(name) in ends]
    other = [name for name in here if _parameter_name(name) not in ends]
    if known:
        yield Statement(
            (
                "The optimizer saved no state for these parameters: they never had a "
                "gradient."
            ),
            tuple(known),
        )
        yield from finding_statements(case.found("resume-stops"))
    if other and held:
        yield Statement(
            (
                "The checkpoint has no parameters of these names either: it is of "
                "another model."
            ),
            tuple(other),
        )
    if len(here) < len(lost):
        places = [show(f"{name}.state" if name else "state", 80) for name in states]
        yield Statement(
            (
                f"The states of this checkpoint are in {and_more(places, 4)}: the load "
                "asks for them at another place."
            )
            if places
            else (
                "This checkpoint has no state of an optimizer at all: it was saved "
                "without one, before its first step, or beside this folder."
            )
        )


def _by_numbers(lost: str, names: Sequence[str], case: Case) -> Iterator[Statement]:
    """Say that the state has numbers where the load asks for names, and print the
    command that gives it names.
    """
    example = _example_state(lost, names)
    yield Statement(
        "The optimizer's state is here by the numbers of the parameters "
        f"({show(example, 120)}), as optimizer.state_dict() gives it. The load asks "
        "for names, as get_optimizer_state_dict gives them. Hand dcp.load what "
        "optimizer.state_dict() gives, and its result to optimizer.load_state_dict. A "
        "new optimizer has no state, and then dcp.load fills none, without a word: "
        "get_optimizer_state_dict(model, optimizer), called once before, makes it."
    )
    words = ("convert", "--optimizer-keys", "names", "--format", "dcp")
    way = case.written(words, ".names", "")
    if way.command is not None:
        yield Statement(
            "Or give the state the names that this load asks for:", (), way.command
        )


def _by_names(lost: str, names: Sequence[str]) -> Statement:
    """Say that the state has names where the load asks for numbers."""
    return Statement(
        "The optimizer's state is here by the names of the parameters "
        f"({show(_example_state(lost, names), 120)}), as get_optimizer_state_dict "
        "gives it. The load asks for numbers, as optimizer.state_dict() gives them. "
        "Hand dcp.load what get_optimizer_state_dict(model, optimizer) of "
        "torch.distributed.checkpoint.state_dict gives, and its result to "
        "set_optimizer_state_dict(model, optimizer, state)."
    )


def _example_state(lost: str, names: Sequence[str]) -> str:
    """A state of the same optimizer, with the same last word where there is one."""
    states = [
        name
        for name in names
        if _STATE.search(name) and _optimizer_path(name) == _optimizer_path(lost)
    ]
    word = lost.rpartition(".")[2]
    return next((name for name in states if name.endswith(f".{word}")), states[0])


def _keys_by_optimizer(names: Sequence[str]) -> dict[str, set[str]]:
    """The places of optimizers -> the keys of the parameters that have a state
    there.
    """
    found: dict[str, set[str]] = {}
    for name in names:
        if _STATE.search(name) and _parameter_name(name):
            found.setdefault(_optimizer_path(name), set()).add(_parameter_name(name))
    return found


def _is_by_name(key: str, ends: set[str]) -> bool:
    """Tell whether the key of a state is a name. A number and a word may be nested
    state of a numbered one.
    """
    return not key.partition(".")[0].isdigit() or key in ends


def _optimizer_path(name: str) -> str:
    """The place of the optimizer of a state: `app.optim.state.fc.weight.step` is of
    `app.optim`.
    """
    found = _STATE.search(name)
    return "" if found is None else name[: found.start()]


def _parameter_name(name: str) -> str:
    """The parameter of an entry of a state: `optim.state.fc.weight.exp_avg` is of
    `fc.weight`.
    """
    found = _STATE.search(name)
    return "" if found is None else name[found.end() :].rpartition(".")[0]


def _name_endings(name: str) -> Iterator[str]:
    """A name, and what is left of it behind each dot."""
    while name:
        yield name
        name = name.partition(".")[2]


def _option_statements(
    lost: Sequence[str], names: Sequence[str]
) -> Iterator[Statement]:
    """Options of a group of parameters that the torch that saved did not have: no state
    at all.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        if _OF_GROUP.search(name):
            groups.setdefault(name.rpartition(".")[2], []).append(name)
    # An option that another group has is known to the torch that saved.
    of_others = {
        name: min(groups[field])
        for name in lost
        if (field := name.rpartition(".")[2]) in groups
    }
    for name, other in list(of_others.items())[:4]:
        yield Statement(
            f"It has {show(other, 120)}, and not {show(name, 120)}: the optimizer that "
            "saved had other groups of parameters, or its state dict was flattened in "
            "another way (flatten_optimizer_state_dict)."
        )
    lost = [name for name in lost if name not in of_others]
    if not lost:
        return
    fields = list(dict.fromkeys(name.rpartition(".")[2] for name in lost))
    # A tuple is flattened to its items, as betas[0]: the option is betas.
    held = sorted(
        {
            name.rpartition(".")[2].rstrip("]0123456789[")
            for name in names
            if _OF_GROUP.search(name)
        }
    )
    held = [
        field for field in held if field and not field.isdigit() and field != "params"
    ]
    text = (
        f"{and_more([show(field, 60) for field in fields], 4)} "
        f"{'is an option' if len(fields) == 1 else 'are options'} of a group of "
        "parameters, and no state: a newer torch asks for it, and the one that saved "
        "did not have it."
    )
    if held:
        text += (
            " The groups of this checkpoint have "
            f"{and_more([show(field, 60) for field in held], 12)}."
        )
    yield Statement(text)
    yield Statement(
        f"Load with {_PARTIAL}: the new optimizer keeps its own value, and all that "
        "was saved is loaded."
    )


def _extra_state_statements(
    lost: Sequence[str], names: Sequence[str]
) -> Iterator[Statement]:
    # Prefer entries whose names say how many shards there are.
    held = [name for name in names if _EXTRA in name and _OLD_SHARDS.match(name)]
    held = held or [name for name in names if name.endswith(_EXTRA)]
    text = (
        f"{_EXTRA} of Transformer Engine is no weight: it holds the scales of FP8, or "
        "nothing."
    )
    counts = _shard_counts(lost, held)
    if counts is not None:
        asked, saved = counts
        text += (
            f" The model asks for {asked:,} of them, and {saved:,} were saved: it has "
            "another number of layers, or another split into pipelines."
        )
    elif not held:
        text += (
            " This checkpoint has none: it was saved without FP8, or by another "
            "version."
        )
    yield Statement(text)
    if held:
        yield Statement("It has these:", tuple(held[:8]))


def _shard_counts(lost: Sequence[str], held: Sequence[str]) -> tuple[int, int] | None:
    """The numbers of shards that a message asks for and that were saved: Megatron
    writes `shard_0_32`.
    """
    asked = {int(match[3]) for name in lost if (match := _OLD_SHARDS.match(name))}
    saved = {int(match[3]) for name in held if (match := _OLD_SHARDS.match(name))}
    return (
        (asked.pop(), saved.pop())
        if len(asked) == len(saved) == 1 and asked != saved
        else None
    )


def _ranked_statement(name: str, names: Sequence[str]) -> Statement:
    """A key that exists for other numbers: of ranks, of layers, of groups."""
    shape = _NUMBERED.sub("#", name)
    others = [other for other in names if _NUMBERED.sub("#", other) == shape]
    text = (
        f"It has {counted_noun(len(others), 'key')} of this kind, with other numbers: "
        f"{and_more([show(other, 120) for other in others], 3)}."
    )
    if _OF_RANK.search(name):
        text += (
            " The run that saved had another number of ranks, and such a key is the "
            "state of one rank (a data loader, a random generator): begin it anew, or "
            "resume with as many ranks."
        )
    return Statement(text)


def _differently_prefixed(lost: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The keys that are there with more or fewer words in front, each with its name in
    the checkpoint.
    """
    ends: dict[str, str] = {}
    # Each key is compared with all names of the checkpoint, so a long list would take
    # long.
    for name in lost[:100]:
        for other in names:
            if other.endswith(f".{name}") or name.endswith(f".{other}"):
                ends[name] = other
                break
    return ends


# Read `tensor_model_parallel_size value from checkpoint (1) is not equal to the input
# argument value (2).`
_ARGUMENT = re.compile(
    r"(?<!\w)(\w{1,100}) value from checkpoint \(([^()\n]{0,200})\) is not equal to "
    r"the input argument value \(([^()\n]{0,200})\)"
)


def _of_megatron(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer Megatron, which compares its arguments with those that the checkpoint
    records.
    """
    name, said, given = found[1], show(found[2], 60), show(found[3], 60)
    held = [node for _, node in case.finds_value((name,))]
    flag = "--" + name.replace("_", "-")
    # A file that contradicts the message is not the one that was loaded.
    if held and all(show(str(node), 60) != said for node in held):
        yield Statement(
            f"This checkpoint has {show(name, 80)} = {show(str(held[0]), 60)}, not "
            f"{said}. Is it the one that was loaded?"
        )
        return
    text = (
        f"The run that saved had {show(name, 80)} = {said}, and yours has {given}: "
        f"give {flag} {said}."
    )
    if name.endswith("model_parallel_size"):
        # The converter has options of its own: `--tensor-model-parallel-size` is
        # `--target-tensor-parallel-size` there.
        target = flag.replace("-model-parallel", "-parallel").replace(
            "--", "--target-", 1
        )
        text += (
            " For another number of ranks convert the checkpoint first (Megatron's "
            f"tools/checkpoint/convert.py {target} {given})."
        )
    yield Statement(text)


_FP32 = "get_fp32_state_dict_from_zero_checkpoint"
"""The function that has raised: its call is no answer."""


_UNIVERSAL = "universal_checkpoint_info"
"""The key under which Megatron-DeepSpeed says how its tensors are divided."""


def _folder_of_deepspeed(case: Case) -> str | None:
    """The folder of a step that DeepSpeed has written into a folder of a Trainer, or
    None. The newest one is last in the order of numbers.
    """
    path = case.survey.path
    if is_url(path) or not os.path.isdir(path):
        return None
    steps = [
        name
        for name in os.listdir(path)
        if re.fullmatch(r"global_step\d{1,9}", name)
        and os.path.isdir(os.path.join(path, name))
    ]
    return max(steps, key=lambda name: int(name[11:]), default=None)


def _not_universal(label: str, case: Case) -> Iterator[Statement]:
    """Answer ds_to_universal of DeepSpeed, which finds no universal_checkpoint_info."""
    checkpoint = case.survey.checkpoint
    paths = [row.path for row in checkpoint.containers]
    paths += [value.path for value in checkpoint.values]
    if any(_UNIVERSAL in map(str, path) for path in paths):
        yield Statement(
            f"This checkpoint ({label}) has {_UNIVERSAL}: another folder was given."
        )
        return
    inner = _folder_of_deepspeed(case)
    if "DeepSpeed" not in label and inner is not None:
        yield Statement(
            f"The state of DeepSpeed is in {show(inner, 80)} of this folder, beside "
            f"the model for use. A Trainer or Accelerate writes no {_UNIVERSAL}, which "
            "Megatron-DeepSpeed does: nothing is lost. Where tensors are divided among "
            "data-parallel ranks alone, give ds_to_universal.py --inject_missing_state "
            f"(DeepSpeed 0.14.4 or newer), and {show(inner, 80)} as --input_folder."
        )
        return
    if "DeepSpeed" not in label:
        yield Statement(
            f"This is a {label}, and ds_to_universal.py reads folders of DeepSpeed "
            "alone."
        )
        return
    yield Statement(
        f"This is a {label}, and its model states have no {_UNIVERSAL}. "
        "Megatron-DeepSpeed writes it, and a Trainer, Accelerate or a loop of your own "
        "does not: nothing is lost. Where tensors are divided among data-parallel "
        "ranks alone, give ds_to_universal.py --inject_missing_state (DeepSpeed 0.14.4 "
        "or newer), and the folder of the step as --input_folder."
    )
    way = case.written(("convert",), "", ".safetensors")
    if way.command is not None:
        yield Statement(
            "To take the weights to another number of ranks, without the optimizer:",
            (),
            way.command,
        )


def _answer_zero(message: Message, case: Case) -> Iterator[Statement]:
    """Answer zero_to_fp32 of DeepSpeed, which finds no divided parameters."""
    label = _label(case)
    # ds_to_universal.py reads the same folders as zero_to_fp32.py, so both are one
    # family.
    if _UNIVERSAL in message.text:
        yield from _not_universal(label, case)
        return
    inner = _folder_of_deepspeed(case)
    if "DeepSpeed" not in label and inner is not None:
        path = pasted_path(os.path.join(case.survey.path, inner))
        yield Statement(
            f"This folder has a model for use, and the state of DeepSpeed in "
            f"{show(inner, 80)}. Ask that folder:",
            (),
            None if path is None else f"ckpt inspect {path}",
        )
    elif "DeepSpeed" not in label:
        yield Statement(
            f"This is a {label}, and zero_to_fp32.py reads folders of DeepSpeed "
            "ZeRO-1, 2 and 3 alone."
        )
    elif case.survey.checkpoint.traits.no_load:
        yield Statement(
            f"This is a {label}, and its optimizer states name no stage of ZeRO, as "
            "BF16_Optimizer of DeepSpeed writes them (bf16 without ZeRO, or with "
            "gradients in fp32). zero_to_fp32.py refuses such a folder, and nothing is "
            "missing: ckpt puts the fp32 weights together."
        )
    elif "ZeRO-0" in label:
        yield Statement(
            f"This is a {label}: without ZeRO the weights lie whole in the file of the "
            "model, and zero_to_fp32.py has nothing to put together."
        )
    # zero_to_fp32.py says so of states that name no stage, and the states of this
    # folder do.
    elif "is not a zero checkpoint" in message.text:
        yield Statement(
            f"This is a {label} whose states name their stage: another folder was "
            "given."
        )
    else:
        yield Statement(f"This is a {label}.")
    yield from _counted_files(message, case)
    if _FP32 not in (case.survey.load.expression or _FP32):
        yield from load_statements(case)
    way = case.written(("convert",), "", ".safetensors")
    if way.command is not None:
        yield Statement("The weights as one file:", (), way.command)


# Read `Expected 8 of '*_optim_states.pt' under out/global_step5 but found 4 files`.
_COUNTED_FILES = re.compile(
    r"Expected (\d{1,9}) of '\*_optim_states\.pt' under [\s\S]{0,2000}? but found "
    r"(\d{1,9}) files"
)


def _counted_files(message: Message, case: Case) -> Iterator[Statement]:
    """Answer zero_to_fp32, which finds more or fewer files of ranks than their save
    had.
    """
    counted = _COUNTED_FILES.search(message.text)
    if counted is None:
        return
    rows = list(finding_statements(case.found("unread-file", "incomplete")))
    yield from rows
    # A save with fewer ranks into the same folder leaves files of the others.
    if rows and int(counted[2]) > int(counted[1]):
        yield Statement(
            "zero_to_fp32.py counts the files and refuses. Move those of the other "
            "ranks to another folder, and it takes the rest."
        )


def _lacks_optimizers(case: Case) -> bool:
    """Tell whether a checkpoint of DeepSpeed has no file of the states of an
    optimizer.
    """
    return (
        "DeepSpeed" in _label(case)
        and not case.optimizers
        and not any("_optim_states.pt" in file for file in case.survey.checkpoint.parts)
    )


def _without_optimizers(case: Case) -> Iterator[Statement]:
    """Answer DeepSpeed, which looks for the states of an optimizer in a folder of
    weights alone.
    """
    yield Statement(
        "This folder has no *_optim_states.pt at all: it holds weights alone, as a "
        "conversion or a published model does. The number of ranks is not the cause. "
        "An engine with ZeRO looks for these files at each load_checkpoint: give the "
        "model its weights before deepspeed.initialize, or load them into an engine "
        "without ZeRO."
    )
    way = case.plan(("convert",))
    if way.command is not None:
        yield Statement(
            "The weights as one file, which torch.load takes:", (), way.command
        )


def _label(case: Case) -> str:
    return case.survey.checkpoint.layout or case.survey.checkpoint.traits.label


def _answer_world_size(message: Message, case: Case) -> Iterator[Statement]:
    """Answer another number of ranks than the one that saved."""
    argument = _ARGUMENT.search(message.text)
    if argument is not None:
        yield from _of_megatron(argument, case)
        return
    # A folder without any file of states is weights alone, and no question of ranks.
    if "_optim_states.pt" in message.text and _lacks_optimizers(case):
        yield from _without_optimizers(case)
        return
    yield from finding_statements(case.at_least("warning"))
    facts = [
        f"{label}: {show(str(node), 60)}"
        for label, node in case.survey.checkpoint.facts
    ]
    if facts:
        yield Statement(f"This checkpoint says {and_more(facts, 6, '; ')}.")
    # A file of one rank holds parts of tensors, and no load makes them whole.
    if not case.found("tensor-parallel"):
        yield from ways_to_other_ranks(case)


def ways_to_other_ranks(case: Case) -> Iterator[Statement]:
    """The command after which the parts of all ranks load on another number of them."""
    # Prefer all parts together. Where that is not possible, take the weights.
    for words, text in (
        (
            ("convert",),
            (
                "ckpt puts the parts of all ranks together into a file, which "
                "torch.load takes anywhere:"
            ),
        ),
        (("weights",), "The weights alone, which load on any number of ranks:"),
    ):
        way = case.plan(words)
        if way.command is not None:
            yield Statement(text, (), way.command)
            if "DeepSpeed" in _label(case):
                yield Statement(
                    "DeepSpeed itself resumes from folders: make a universal "
                    "checkpoint with its ds_to_universal.py to resume on another "
                    "number of ranks."
                )
            return


FAMILIES = (
    Family(
        "distributed",
        (
            r"Missing key in checkpoint state_dict: ",
            r"Size mismatch between saved torch\.Size",
            r"req MetadataIndex\(fqn=[^\n]{1,2000} mismatch sizes torch\.Size",
            r"Invalid checkpoint metadata for ",
            # torch raises it with the errors of all ranks in it.
            r"CheckpointException",
            r"Global shape mismatch for loaded ",
        ),
        _answer_keys,
        _take_keys,
    ),
    Family(
        "zero",
        (
            r"unknown zero stage \d",
            (
                r"(?:_optim_states\.pt|_model_states\.pt) is not a (?:zero"
                r"|model state) checkpoint"
            ),
            r"No ZeRO files found in ",
            r"Required universal_checkpoint_info state is missing in checkpoint",
            r"Expected \d{1,9} of '\*_optim_states\.pt' under",
            r"consumed \d{1,20} numels out of \d{1,20} - something is wrong",
            r"zero_to_fp32\.py[\s\S]{0,3000}'NoneType' object is not iterable",
            r"can't find \S{0,40}_optim_states\.pt files in directory",
        ),
        answer_from_statements(_answer_zero),
    ),
    Family(
        "world",
        (
            (
                r"(?<!\w)\w{1,100} value from checkpoint \([^()\n]{0,200}\) is not "
                r"equal to the input argument value"
            ),
            (
                r"No such file or directory: "
                r"'[^'\n]{0,2000}zero_pp_rank_\d{1,6}_mp_rank_\d{1,6}_optim_states\.pt'"
            ),
            # The code of Meta's Llama counts the files of weights, one for each rank.
            r"Loading a checkpoint for MP=\d{1,6} but world size is \d{1,6}",
            r"checkpoint being loaded used a DP world size of \d{1,6}",
            (
                r"(?:world size|number of ranks"
                r"|tensor.model.parallel size)[^\n]{0,60}(?:does not match"
                r"|different from|mismatch)[^\n]{0,60}checkpoint"
            ),
        ),
        answer_from_statements(_answer_world_size),
    ),
)

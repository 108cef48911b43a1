"""A file by what it says of itself, for questions that ask no more: its parts, the kind
and the number of its weights, the versions it names, and how it is loaded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from math import prod

from ckpt.commands.inspect.inspect import tied_weights
from ckpt.evidence.adapters import adapter_of
from ckpt.evidence.optimizers import optimizer_facts, parts_of
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import wrapped_names
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    describe_checkpoint,
    finding_statements,
    trust_text,
)
from ckpt.ext.explain.families.averages import of_own_averages
from ckpt.ext.explain.families.beginnings import load_into_statement
from ckpt.ext.explain.families.heads import HEAD_WORDS
from ckpt.ext.explain.families.labels import classes_statements
from ckpt.ext.explain.families.merging import (
    of_adapter_alone,
    of_adapter_of_codes,
    of_model_with_adapter,
)
from ckpt.ext.explain.families.recorded import settings_command, settings_places
from ckpt.ext.explain.families.runs import counted_schedules, recorded_counters
from ckpt.ext.explain.origins import config_of, name_origin, origin_opening
from ckpt.ext.explain.questions.measures import best_of_callbacks
from ckpt.model.checkpoint import looks_of
from ckpt.model.text import (
    and_more,
    counted_noun,
    pasted_path,
    shell_word,
    show,
    size_text,
)
from ckpt.tree.find import children_of
from ckpt.tree.view import look

_SHOWN = 6

# --- contents -------------------------------------------------------------------------


def of_contents(text: str, case: Case) -> Iterator[Statement]:
    """Say which parts a file has, and how far its run was."""
    del text
    yield from describe_checkpoint(case, "")
    parts = [
        f"{show(part.name, 60) or 'its root'} ({_kind_text(part.kind)}"
        f"{counted_noun(len(part.entries), 'tensor')}, {size_text(part.nbytes)})"
        for part in case.survey.sections
        if part.entries
    ]
    if parts:
        yield Statement(f"Its tensors are in {and_more(parts, _SHOWN)}.")
    counters = [
        f"{show(name, 60)} {count:,}" for name, count in recorded_counters(case)
    ]
    if counters:
        yield Statement(f"It records {and_more(counters, 4)}.")
    yield from _settings_statements(case)
    path = pasted_path(case.survey.path)
    if path is not None:
        yield Statement("Each tensor and each value:", (), f"ckpt inspect {path}")


def _kind_text(kind: str) -> str:
    words = {"optimizer": "the state of an optimizer, ", "ema": "averages, "}
    return words.get(kind, "")


def _settings_statements(case: Case) -> Iterator[Statement]:
    """Name the place of the settings of a run, with the command that shows them."""
    found = settings_command(case)
    if found is not None:
        place, command = found
        yield Statement(
            f"The settings of the run are in {show(place, 60)}:", (), command
        )


# --- the state of a run ---------------------------------------------------------------


_PREDICTS = re.compile(r"(?i)\b(?:inference|predict\w{0,4}|deploy\w{0,4}|evaluat\w*)\b")


def of_state(text: str, case: Case) -> Iterator[Statement]:
    """Say whether a file has what a run needs to go on."""
    if _PREDICTS.search(text) is not None and case.optimizers:
        yield Statement(
            "No prediction needs an optimizer or a schedule: a program that only uses "
            "the model takes the weights alone."
        )
        yield from command_statements(
            "In a file without the rest:", case.plan(("slim",))
        )
    told = []
    families = set()
    stateless = 0
    # A GAN saves two optimizers, and one of them may have lost its state.
    for section in case.optimizers:
        facts = optimizer_facts(section)
        if facts is not None and not facts.with_state:
            stateless += _keeps_state(section)
        kind = "" if facts is None or facts.family is None else f", {facts.family}"
        family = "" if facts is None else facts.family or ""
        is_plain = facts is not None and facts.is_plain_sgd
        families.add("with momentum" if is_plain else family)
        count = (
            ""
            if facts is None
            else f", {facts.with_state:,} of {facts.parameters:,} parameters have state"
        )
        told.append(f"{show(section.name, 60) or 'the root'}{kind}{count}")
    if not told:
        yield Statement(
            "This file has no state of an optimizer: its weights load, and a run that "
            "begins from them has new moments and its own learning rate. To go on as "
            "if nothing had stopped takes another save of the run, with the optimizer "
            "in it or beside it."
        )
        return
    counters = [
        f"{show(name, 60)} {count:,}" for name, count in recorded_counters(case)
    ]
    counters += [
        f"{show(place, 60)}.last_epoch {count:,}"
        for place, count in counted_schedules(case)
    ]
    beside = f" It counts {and_more(counters, 4)}." if counters else ""
    kinds = {section.kind for section in case.survey.sections}
    lacks = (
        ""
        if "scheduler" in kinds or counted_schedules(case)
        else " It has no state of a schedule, so the learning rate counts from 0 again "
        "unless the program sets the step."
    )
    can = (
        "Without such state a run that goes on begins with new moments: the optimizer "
        "was saved before its first step, or its state was lost."
        if stateless == len(told)
        else "So a run can go on from it, if the program loads both."
    )
    asked = {
        name: kept for words, name, kept in _NAMED_OPTIMIZERS if words.search(text)
    }
    # Of a change from one to another nothing tells which of them is the new one.
    if len(asked) == 1 and "" not in families and families.isdisjoint(asked.values()):
        (other,) = asked
        can = (
            "A run with an optimizer of that kind can go on from it. "
            f"{other} is another kind: it does not take this state, and an error such "
            "as KeyError follows at its load, or in the first step. Load the model "
            "alone there: the optimizer begins anew."
        )
    yield Statement(
        f"This file has the state of an optimizer, in {and_more(told, 3)}.{beside} "
        f"{can}{lacks}"
    )


def _named_optimizer(
    words: str, name: str, family: str
) -> tuple[re.Pattern[str], str, str]:
    return re.compile(rf"(?i)\b(?:{words})\b"), name, family


_NAMED_OPTIMIZERS = (
    _named_optimizer("sgd", "SGD", "with momentum"),
    _named_optimizer("adamw?", "Adam", "Adam-like"),
    _named_optimizer("rmsprop", "RMSprop", "RMSprop"),
    _named_optimizer("adagrad", "Adagrad", "Adagrad"),
    _named_optimizer("adafactor", "Adafactor", "Adafactor"),
    _named_optimizer("l-?bfgs", "LBFGS", "LBFGS"),
)
"""Words of a question for an optimizer, its name, and the family of its state."""


def _keeps_state(section: Section) -> bool:
    """Tell whether an optimizer has state after its first step. Plain SGD has none."""
    for _, group in children_of(parts_of(section.node).get("param_groups")):
        fields = dict(children_of(group))
        if not _OF_STATE.isdisjoint(fields):
            return True
        momentum = look(fields.get("momentum")).value
        if isinstance(momentum, (int, float)) and momentum:
            return True
    return False


_OF_STATE = frozenset(("betas", "rho", "etas", "lambd", "beta1"))
"""Fields of groups whose optimizer keeps state for each parameter."""


# --- weights --------------------------------------------------------------------------


def of_numbers(text: str, case: Case) -> Iterator[Statement]:
    """Say how many parameters the models of a file have, and of which type."""
    del text
    for section in case.survey.candidates[:_SHOWN]:
        yield _number_statement(section, case)
        yield from _depth_statements(section.names())
        sizes = [prod(entry.tensor.shape) for entry in section.entries]
        largest = sorted(
            zip(sizes, section.names(), strict=True), key=lambda row: -row[0]
        )
        shown = [f"{show(name, 80)} ({size:,})" for size, name in largest[:3]]
        yield Statement(f"The largest tensors are {and_more(shown, 3)}.")


def _number_statement(section: Section, case: Case) -> Statement:
    """Say how many parameters and buffers a model has, and of which type."""
    roles = [case.survey.roles[index].role for index in section.indices]
    sizes = [prod(entry.tensor.shape) for entry in section.entries]
    # People ask for what is trained: the statistics of norms are counted apart.
    buffers = sum(
        size for size, role in zip(sizes, roles, strict=True) if role == "buffer"
    )
    types = Counter(entry.tensor.dtype.name for entry in section.entries)
    kinds = [f"{name} ({count})" for name, count in types.items()]
    besides = f", and {buffers:,} elements of buffers" if buffers else ""
    label = show(section.name, 60) or "The file"
    return Statement(
        f"{label} has {sum(sizes) - buffers:,} parameters in "
        f"{counted_noun(len(section.entries), 'tensor')}{besides}, in "
        f"{and_more(kinds, 4)}, {size_text(section.nbytes)}."
    )


def of_types(text: str, case: Case) -> Iterator[Statement]:
    """Say in which types the weights of a file are, and how others are written."""
    del text
    for section in case.survey.candidates[:_SHOWN]:
        yield _number_statement(section, case)
    yield from finding_statements(case.found("scaled"))
    types = {
        entry.tensor.dtype.name
        for section in case.survey.candidates
        for entry in section.entries
    }
    for name, said in (
        ("float16", "In float16, which ends at 65,504, so some values may overflow:"),
        ("bfloat16", "In bfloat16, which has the range of float32 and fewer digits:"),
        ("float32", "In float32, which gives back no digit that was lost before:"),
    ):
        # A file that has the type already needs no copy.
        if types != {name}:
            yield from command_statements(said, case.plan(("convert", "--dtype", name)))
    yield Statement(
        "model.half() and model.to(dtype) after the load do the same in memory. A "
        "program that trains keeps its weights in float32."
    )


def of_devices(text: str, case: Case) -> Iterator[Statement]:
    """Say on which devices the tensors of a file were saved, and how it is loaded
    without them.
    """
    del text
    if not case.survey.checkpoint.traits.keeps_devices:
        label = case.survey.checkpoint.traits.label
        yield Statement(
            f"This file ({label}) records no device: it loads on any machine, and the "
            "program says where its tensors go."
        )
        return
    found = list(finding_statements(case.found("cuda")))
    if found:
        yield from found
        yield Statement(
            "With map_location it loads on a machine without a GPU, as the line below "
            "does. The model itself is moved by model.to(device)."
        )
        return
    yield Statement(
        "All its tensors were saved on the CPU, so it loads on a machine without a "
        "GPU. The program moves the model by model.to(device)."
    )


# --- versions, safety, damage ---------------------------------------------------------

_OF_VERSIONS = re.compile(r"(?i)(?:^|[_-]|__)version(?:__)?$|^\w{1,40}_version$")


def of_versions(text: str, case: Case) -> Iterator[Statement]:
    """Say which versions a file names, and which torch reads it."""
    del text
    named = [
        f"{show(value.name, 80)} {show(str(value.node), 40)}"
        for value in case.survey.checkpoint.values
        if value.path
        and _OF_VERSIONS.search(str(value.path[-1]))
        and isinstance(value.node, (str, int, float))
        and len(str(value.node)) < _LONGEST_VERSION
    ]
    traits = case.survey.checkpoint.traits
    own = f"This file names {and_more(named, 4)}. " if named else ""
    if not traits.is_pickle:
        yield Statement(
            f"{own}It is {traits.label}, which is read by a library of its own, and "
            "not by a version of torch."
        )
        return
    yield Statement(
        f"{own}torch.save writes no version of torch into a file, so nothing but what "
        "a program adds can tell it."
    )
    # Of the formats of torch.save the legacy one alone has views of storages.
    if traits.has_views:
        yield Statement(
            f"The format is {traits.label}, which every version of torch reads."
        )
        return
    yield Statement(
        f"The format is {traits.label}, which torch 1.6 and newer read. Types such as "
        "float8 and classes of other packages need a version that has them."
    )
    way = case.written(("convert", "--format", "torch-legacy"), ".legacy", ".pth")
    yield from command_statements("A copy that torch before 1.6 reads:", way)


_LONGEST_VERSION = 60
_OF_CODE = (
    "called-on-load",
    "code-inside",
    "unknown-operator",
    "unknown-import",
    "unknown-attribute",
    "file-code",
    "pickles-inside",
)
"""Findings about code that a load may run."""


def of_safety(text: str, case: Case) -> Iterator[Statement]:
    """Say whether a load of a file runs code that it names."""
    del text
    refusals = list(finding_statements(case.found("weights-only")))
    found = list(finding_statements(case.found(*_OF_CODE)))
    if found:
        yield from [*found, *refusals]
        return
    traits = case.survey.checkpoint.traits
    if not traits.is_pickle:
        yield Statement(
            f"{traits.label} holds numbers and texts, and no code: a load of it runs "
            "nothing."
        )
        return
    if traits.names_are_code:
        yield Statement(
            f"It is a program ({traits.label}), whose code runs when the model is "
            "called. ckpt finds nothing in it that acts when it is loaded."
        )
        yield from refusals
        return
    yield Statement(
        "Nothing in this file runs code: it names no functions and classes but those "
        "that ckpt knows to be harmless."
    )
    yield from refusals
    if not refusals and "torch.load(" in (case.survey.load.expression or ""):
        yield Statement(
            "torch.load takes it with weights_only=True, the default since torch 2.6."
        )


def of_intactness(text: str, case: Case) -> Iterator[Statement]:
    """Say whether the bytes of a file are whole, by `ckpt verify`."""
    del text
    # Damage says all: a finding about what is left would hide it.
    if case.damage:
        yield from case.damage
        return
    yield from finding_statements(case.at_least("error"))
    path = pasted_path(case.survey.path)
    if case.verified is None:
        command = None if path is None else f"ckpt verify {path}"
        yield Statement("Its bytes are far away. This reads them all:", (), command)
        return
    sums = (
        "and every checksum in it matches"
        if case.survey.checkpoint.traits.has_checksums
        else "and its format has no checksums, so a changed byte would not show"
    )
    yield Statement(
        f"ckpt verify finds no damage: all {len(case.survey.tensors):,} tensors are "
        f"there, {sums}. It says nothing of their values; this finds NaN, zeros and "
        "layers that died:",
        (),
        None if path is None else f"ckpt stats {path}",
    )


# --- the model ------------------------------------------------------------------------

_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "n_layer",
    "n_embd",
    "n_head",
    "d_model",
    "num_layers",
    "image_size",
    "patch_size",
    "num_labels",
)
"""Settings of config.json that give the size of a model."""
_CLASSES = (
    "arch",
    "architecture",
    "model_name",
    "model_type",
    "model_class",
    "backbone",
    "encoder_name",
    "network",
    "net",
    "name_or_path",
    "_name_or_path",
    "trainer_name",
)
"""Keys under which programs keep the name of their model."""
_NUMBERED = re.compile(r"^(.*?)\.(\d{1,4})\.")


def of_model(text: str, case: Case) -> Iterator[Statement]:
    """Say which model a file is of, and which settings it records."""
    del text
    config = config_of(case.survey)
    origin = name_origin(case.survey)
    if origin is not None:
        yield Statement(f"{origin_opening(origin)} {origin}.")
    sizes = [
        f"{key} {size}"
        for key in _SIZES
        if isinstance(size := config.get(key), int) and type(size) is not bool
    ]
    if sizes:
        yield Statement(f"Its config says {and_more(sizes, 12)}.")
    named = [
        f"{show(name, 80)} is {show(str(node), 80)}"
        for name, node in case.finds_value(_CLASSES)
        if isinstance(node, str)
    ]
    if named:
        yield Statement(f"It records: {and_more(named, 4)}.")
    yield from _settings_statements(case)
    # Said only where nothing above answered: a class in a key is an answer.
    if origin is None and not named and not settings_places(case):
        yield Statement(
            "Nothing in it names its class or its settings: torch.save of a state dict "
            "keeps names and shapes alone. The program that saved it has the class, "
            "and these names say which of its models it is."
        )
    # A teacher has the names of its student: one of them shows the model.
    for section in case.survey.candidates[:1]:
        names = section.names()
        words = Counter(name.partition(".")[0] for name in names)
        shown = [f"{show(word, 40)} ({count})" for word, count in words.items()]
        yield Statement(f"Its names begin with {and_more(shown, 8)}.")
        yield from _depth_statements(names)
        yield from _ends_statements(case)
    path = pasted_path(case.survey.path)
    if path is not None:
        yield Statement(
            "Each layer with its shape, in the order in which the model has them:"
            if case.survey.checkpoint.traits.keeps_order
            else "Each layer with its shape:",
            (),
            f"ckpt inspect {path}",
        )


def _depth_statements(names: tuple[str, ...] | list[str]) -> Iterator[Statement]:
    """Say how many blocks the lists of layers have, the largest ones."""
    blocks: dict[str, set[int]] = {}
    weights: Counter[str] = Counter()
    for name in names:
        # Up to the first number: `layer1.0.conv1` counts the blocks, not their layers.
        found = _NUMBERED.match(name)
        if found is not None:
            blocks.setdefault(found[1], set()).add(int(found[2]))
            weights[found[1]] += 1
    deep = [
        f"{show(place, 60)} has {len(blocks[place])}"
        for place, _ in weights.most_common(3)
        if len(blocks[place]) > 1
    ]
    if deep:
        yield Statement(f"Lists of layers: {and_more(deep, 3)}.")


def _ends_statements(case: Case) -> Iterator[Statement]:
    """Name the first and the last weight with their shapes."""
    for section in case.survey.candidates[:1]:
        # In the order of the alphabet the ends of the list say nothing.
        if not case.survey.checkpoint.traits.keeps_order:
            continue
        rows = [
            (name, entry.tensor.shape)
            for name, entry in zip(section.names(), section.entries, strict=True)
            if len(entry.tensor.shape) > 1
        ]
        if len(rows) < 2:
            continue
        first, last = rows[0], rows[-1]
        yield Statement(
            f"The first weight is {show(first[0], 80)} {list(first[1])}, the last one "
            f"{show(last[0], 80)} {list(last[1])}: in linear layers and convolutions "
            "the outputs stand first, and the inputs second."
        )


_OF_CLASSES = re.compile(r"(?i)class|categor|label|类")


def of_outputs(text: str, case: Case) -> Iterator[Statement]:
    """Say how many outputs the heads of a model have, or its last layer."""
    recorded = list(classes_statements(case)) if _OF_CLASSES.search(text) else []
    if recorded:
        yield from recorded
        return
    for section in case.survey.candidates[:1]:
        heads = {
            name: entry.tensor.shape[0]
            for name, entry in zip(section.names(), section.entries, strict=True)
            if name.endswith(".weight")
            and len(entry.tensor.shape) > 1
            and HEAD_WORDS.search(name.rpartition(".")[0])
        }
        # A word such as `fc` in each block is no head of the model.
        if 0 < len(heads) <= _SHOWN:
            shown = [f"{show(name, 80)} {count:,}" for name, count in heads.items()]
            yield Statement(
                f"Outputs, as rows of the layers that are heads by name: "
                f"{and_more(shown, _SHOWN)}."
            )
        yield from _ends_statements(case)


def of_loading(text: str, case: Case) -> Iterator[Statement]:
    """Print the lines that load the weights of a file into a model."""
    del text
    yield from case.damage
    yield from finding_statements(case.at_least("warning"))
    load = case.survey.load
    # With several models the line below the answer names each of them.
    if len(case.survey.candidates) != 1:
        return
    if load.model is not None:
        yield Statement("As a model it loads so:", (), load.model)
        return
    if load.expression is None:
        return
    place = case.survey.candidates[0].name
    inside = f", which are in {show(place, 60)}" if place else ""
    yield Statement(
        "The class of the model comes from the program that saved; the file has its "
        f"weights{inside}. Build it with the same settings, and then"
        f"{trust_text(load)}:",
        (),
        f"model.load_state_dict({load.expression})",
    )
    yield load_into_statement(
        case.survey, "Where names or shapes differ, this loads what fits, and says so:"
    )
    # A model has no place for averages among its weights, unless it keeps them too.
    yield from of_own_averages(case)
    yield Statement("To predict, call model.eval() after the load.")


def of_functions(text: str, case: Case) -> Iterator[Statement]:
    """Say that functions without weights are in no file of weights."""
    del text
    if case.has_module:
        path = pasted_path(case.survey.path)
        yield Statement(
            "This file holds a pickled module, with the objects of its layers: the "
            "classes of those without weights stand in it too:",
            (),
            None if path is None else f"ckpt inspect {path} --imports",
        )
        return
    yield Statement(
        "No file of weights has it: activations, dropout, pooling, the order of the "
        "layers, the loss and what is done to the inputs are in the code and the "
        "settings of the program, and leave no tensor."
    )
    yield from _settings_statements(case)


def of_ties(text: str, case: Case) -> Iterator[Statement]:
    """Say which weights of a file are one memory, and whether its config ties them."""
    del text
    config = config_of(case.survey).get("tie_word_embeddings")
    if isinstance(config, bool):
        yield Statement(f"config.json says tie_word_embeddings {config}.")
    ties = tied_weights(case.survey)
    if ties:
        shown = and_more(
            [" = ".join(show(name, 80) for name in row) for row in ties], 4
        )
        yield Statement(f"These are one memory under several names: {shown}.")
    else:
        yield Statement(
            "No two weights of this file share memory: each name has bytes of its own, "
            "or the file holds a tied weight once, under one of its names."
        )


# --- adapters and wrappers ------------------------------------------------------------

_OF_LORA = re.compile(r"(?i)(?:^|[._])lora_?|lokr|loha|hada_w|\.lora\.")


def of_merged(text: str, case: Case) -> Iterator[Statement]:
    """Say whether the weights of a file have an adapter beside them, or none."""
    beside = of_model_with_adapter(case.survey.path)
    if beside is not None:
        yield beside
        return
    names = [name for part in case.survey.candidates for name in part.names()]
    marked = [name for name in names if _OF_LORA.search(name)]
    path = pasted_path(case.survey.path)
    # A file of an adapter alone, and a base with its adapter in one file, read alike.
    if marked and len(marked) == len(names):
        whole = list(of_adapter_alone(case))
        if whole:
            yield from of_adapter_of_codes(text, case)
            yield from whole
            return
        yield Statement(
            f"Each of its {counted_noun(len(names), 'tensor')} is of an adapter "
            f"({show(marked[0], 100)}): no base model is in this file, and nothing is "
            "merged."
        )
        return
    if marked:
        yield Statement(
            f"{len(marked):,} of its {len(names):,} tensors are of an adapter "
            f"({show(marked[0], 100)}), beside the weights of the base model: they are "
            "not merged. A merge leaves no such name."
        )
        return
    if not names:
        return
    yield Statement(
        "No name in it is of an adapter, and all weights are whole. So it is a base "
        "model, or one into which an adapter was merged: a merge adds the product to "
        "the weights and leaves no trace in names or shapes. A comparison with the "
        "base model tells: where nothing differs, nothing was merged, and after a "
        "merge the matrices that the adapter has differ, and no others:",
        (),
        None if path is None else f"ckpt diff BASE {path}",
    )


_BASES = (
    "base_model_name_or_path",
    "ss_base_model_version",
    "ss_sd_model_name",
    "ss_sd_model_hash",
    "modelspec.architecture",
    "base_model",
    "_name_or_path",
    "pretrained",
    "init_checkpoint",
    "pretrained_model_name_or_path",
    "load_from",
    "finetune",
)
"""Keys under which trainers keep the model that they began with."""


def of_base(text: str, case: Case) -> Iterator[Statement]:
    """Name the model with which a training began, where a file records it."""
    del text
    named = [
        f"{show(name.rpartition('__metadata__.')[2], 80)} is {show(str(node), 100)}"
        for key in _BASES
        for name, node in case.finds_value((key,))
        if isinstance(node, str) and node
    ]
    if named:
        yield Statement(f"This file records: {and_more(named, 4)}.")
        return
    # The family of a model is no base, but it narrows the search for one.
    origin = name_origin(case.survey)
    named_origin = "" if origin is None else f" {origin_opening(origin)} {origin}."
    yield Statement(
        f"Nothing in this file names the model that it began with.{named_origin} Names "
        "and shapes tell the family alone: ckpt diff with each of the models that it "
        "may be shows which has the most weights in common."
    )


def of_adapter(text: str, case: Case) -> Iterator[Statement]:
    """Say the rank, the scale and the layers of an adapter."""
    del text
    for section in case.survey.candidates[:1]:
        found = adapter_of(section.names(), looks_of(section.entries))
        if found is None:
            return
        ranks = and_more([str(rank) for rank in found.ranks], 6)
        layers = Counter(layer.rpartition(".")[2] or layer for layer in found.layers)
        shown = [f"{show(word, 60)} ×{count}" for word, count in layers.most_common()]
        where = f" ({found.places})" if found.places else ""
        settings = [
            f"{show(name.rpartition('.')[2], 60)} {show(str(node), 60)}"
            for name, node in case.finds_value(
                (
                    "lora_alpha",
                    "r",
                    "ss_network_alpha",
                    "ss_network_dim",
                    "lora_dropout",
                )
            )
        ]
        own = f" Its settings say {and_more(settings, 6)}." if settings else ""
        yield Statement(
            f"It is an adapter in the {found.format}, of rank {ranks}, for "
            f"{counted_noun(len(found.layers), 'layer')}{where}: {and_more(shown, 8)}."
            f"{own}"
        )


def of_wrapper(text: str, case: Case) -> Iterator[Statement]:
    """Say whether the names of a file have the prefix of a wrapper."""
    del text
    found = list(finding_statements(case.found("prefix")))
    if found:
        yield from found
        return
    names = [name for part in case.survey.candidates for name in part.names()]
    if names and not wrapped_names(names):
        yield Statement(
            "No name in it begins with module. or the attribute of another wrapper: it "
            "was saved from the model itself, or from model.module of DataParallel or "
            "DDP, which leaves no trace. So it loads into a model that is not wrapped."
        )


def _of_models_inside(text: str, case: Case) -> list[Statement]:
    """Say that models which a question names are in one file, and print the commands
    that compare them.
    """
    words = {word.casefold() for word in re.findall(r"\w{2,60}", text)}
    asked = [
        section
        for section in case.survey.candidates
        if section.path and str(section.path[0]).casefold() in words
    ]
    if len(asked) < 2:
        return []
    shapes = [
        {
            name: entry.tensor.shape
            for name, entry in zip(section.names(), section.entries, strict=True)
        }
        for section in asked
    ]
    labels = [show(str(section.path[0]), 40) for section in asked]
    told = (
        "have the same names and shapes, so each loads into one class of model"
        if all(row == shapes[0] for row in shapes)
        else "have not the same names and shapes"
    )
    rows = [
        Statement(
            f"{and_more(labels, _SHOWN)} are {len(asked):,} models of this file, and "
            f"they {told}. Their values are those of one state only if a comparison "
            "says so. ckpt diff compares two files, so each goes into one of its own "
            "first:"
        )
    ]
    path = pasted_path(case.survey.path)
    if path is None:
        return rows
    files = []
    for section in asked[:_MOST_COMPARED]:
        name, word = str(section.path[0]), shell_word(section.name)
        if word is None or not name.isidentifier():
            return rows
        files.append(f"{name}.pth")
        rows.append(
            Statement(
                f"{show(name, 40)} by itself:",
                (),
                f"ckpt slim {path} --section {word} -o {name}.pth",
            )
        )
    pairs = combinations(files, 2)
    rows += [
        Statement(
            f"How far {one} and {two} differ:", (), f"ckpt diff {one} {two} --stat"
        )
        for one, two in pairs
    ]
    return rows


_MOST_COMPARED = 3


def of_comparing(text: str, case: Case) -> Iterator[Statement]:
    """Print the command that compares a file with another one."""
    inside = _of_models_inside(text, case)
    if inside:
        yield from inside
        return
    best = best_of_callbacks(case)
    if best is not None:
        yield best
    path = pasted_path(case.survey.path)
    if path is None:
        return
    yield Statement(
        "ckpt diff compares two files tensor by tensor, also where one has them under "
        "a key or in another format: which are the same, which differ and by how much, "
        "and which only one has. With the other file in the place of OTHER:",
        (),
        f"ckpt diff OTHER {path}",
    )


ASKS_FOR_PLAIN = (
    r"\b(?:plain|pure|vanilla|raw|native|normal|regular|standard) (?:py)?torch\b"
    r"|\b(?:extract|get|separate|export|convert)\b[^\n]{0,60}\b(?:model|weights"
    r"|state[_ ]?dict)\b[^\n]{0,40}\b(?:out of|from)\b"
    r"|\b(?:only|just) the (?:model|weights|network)\b"
)
"""Words of a question for the weights without what is around them."""


def of_plain_weights(text: str, case: Case) -> Iterator[Statement]:
    """Print the commands that write the weights of a model without what is around
    them.
    """
    del text
    if case.has_module:
        return
    yield from command_statements(
        "The weights without optimizer, counters and settings, under the names that "
        "they have:",
        case.plan(("slim",)),
    )
    if case.found("prefix"):
        yield from command_statements(
            "And under the names of the model itself, without the prefix:",
            case.plan(("slim", "--strip")),
        )


ASKS_OF_ORDER = r"\border of (?:the |its )?(?:keys|tensors|weights|names|parameters)\b"
"""Words of a question for the order in which a file has its tensors."""


def of_order(text: str, case: Case) -> Iterator[Statement]:
    """Say for what the order of tensors matters."""
    del text
    held = (
        "this file has one, so its model must keep the order"
        if case.optimizers
        else "this file has none"
    )
    yield Statement(
        "load_state_dict of a model goes by names, so the order of its keys does not "
        "matter. The state of an optimizer numbers its parameters in the order in "
        f"which it got them, and {held}."
    )


# --- symbols --------------------------------------------------------------------------

_LISTS_OF_SYMBOLS = (
    "labels",
    "character",
    "characters",
    "charset",
    "alphabet",
    "symbols",
    "vocab",
    "vocabulary",
    "tokens",
    "chars",
)
"""The keys under which programs keep the symbols that a model reads or writes."""


def of_symbols(text: str, case: Case) -> Iterator[Statement]:
    """Say which symbols a file records, and how many its last layer has."""
    told = [
        f"{show(name, 60)} is {show(str(node), 200)} "
        f"({counted_noun(len(node), 'symbol')}{_space_text(text, node)})"
        for name, node in case.finds_value(_LISTS_OF_SYMBOLS)
        if isinstance(node, (str, list, tuple)) and len(node) > 1
    ]
    for row in told[:2]:
        yield Statement(f"This file records its symbols: {row}.")
    if told or not case.survey.candidates:
        return
    section = case.survey.candidates[0]
    last = [
        (name, entry.tensor.shape)
        for name, entry in zip(section.names(), section.entries, strict=True)
        if name.endswith("weight") and len(entry.tensor.shape) > 1
    ][-1:]
    rows = "".join(
        f" Its last weight is {show(name, 80)} {list(shape)}: {shape[0]:,} outputs, "
        "which may count ones for no symbol, for a beginning or an end."
        for name, shape in last
    )
    yield Statement(
        "This file has no list of symbols: a model has numbers alone, and the list of "
        f"the run that saved says which symbol each is.{rows} Take the list that was "
        "published with it (an option of the program, a dictionary beside the file): "
        "one more or fewer of them changes the number of outputs."
    )


def _space_text(text: str, node: str | list[object] | tuple[object, ...]) -> str:
    """The words on a space among the symbols, where a question asks for it."""
    if "space" not in text.lower():
        return ""
    return ", a space among them" if " " in node else ", and no space among them"

"""Errors of programs that take what torch.load gave for something else: a dict for a
model, a checkpoint for its weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate
from ckpt.evidence.loading import string_literal
from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import wrapped_names
from ckpt.ext.explain.case import (
    Answer,
    Case,
    Statement,
    command_statements,
    finding_statements,
    keys_text,
    load_statements,
    looked_at,
    root_keys,
)
from ckpt.ext.explain.families.beginnings import taken_part
from ckpt.ext.explain.families.computed import computed_buffers, tied_to_shared
from ckpt.ext.explain.families.frames import (
    empty_part,
    is_of_optimizer,
    is_option,
    option_statements,
    owner_of,
    taken_keys,
)
from ckpt.ext.explain.families.given import of_message_hub
from ckpt.ext.explain.families.graphs import of_graph_layer
from ckpt.ext.explain.families.launchers import UNSET
from ckpt.ext.explain.families.libraries import of_gguf_name
from ckpt.ext.explain.families.loras import of_cut_name, of_older_names
from ckpt.ext.explain.families.pipelines import part_of_name, parts_in
from ckpt.ext.explain.families.quantized import SCALE, built_by_quantizers
from ckpt.ext.explain.families.servers import SEEKS, of_object_for_path
from ckpt.ext.explain.families.tied import tied_name
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.origins import first_words, name_origin, origin_opening
from ckpt.model.nodes import Node, Opaque, tensor_of
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import REGISTERED, children_of
from ckpt.tree.view import attributes, look

# Read `'collections.OrderedDict' object has no attribute 'eval'`: group 1 is the class,
# group 2 the attribute.
_ATTRIBUTE = re.compile(r"'([\w.]{1,200})' object has no attribute '(\w{1,200})'")
# Python quotes a key with either mark, and a program that quotes it itself adds a
# second one: `KeyError: "'step'"`.
_KEY = re.compile(r"KeyError: ['\"]{1,2}([^'\"\n]{1,2000})['\"]{1,2}")
# The attributes that programs ask of a model. A dict that lacks one of them stands in
# the place of a module.
_OF_MODULES = (
    "eval",
    "train",
    "to",
    "cuda",
    "cpu",
    "forward",
    "parameters",
    "named_parameters",
    "state_dict",
    "modules",
    "module",
    "half",
    "float",
    "predict",
    "fuse",
    "children",
    "load_state_dict",
    "training",
    "zero_grad",
    "requires_grad_",
    "apply",
    "named_modules",
    "named_children",
    "named_buffers",
    "buffers",
    "add_module",
    "register_buffer",
    "register_forward_hook",
    "register_module",
    "get_submodule",
    "double",
    "bfloat16",
    "compile",
    "save_pretrained",
    "generate",
)
_OF_STATE_DICTS = ("_metadata",)
"""The attributes that only state dicts have."""
# Read the call of a dict as a model: `TypeError: 'dict' object is not callable`.
_FORWARD = re.compile(
    r"'(?:collections\.)?(?:Ordered[Dd]ict|dict)' object is not callable"
)


def _answer_attribute(message: Message, case: Case) -> Iterator[Statement]:
    """Answer an object that lacks an attribute: a dict in the place of a model, or a
    module that an older version pickled.
    """
    # An object that is no dict and has no seek was handed to torch.load in the place of
    # a path.
    seeks = SEEKS.search(message.text)
    if seeks is not None and not seeks[1].endswith(("dict", "OrderedDict")):
        yield from of_object_for_path(seeks, case)
        return
    found = _ATTRIBUTE.search(message.text)
    # Other classes come from the family `older-module`, which shares this answer.
    if found is not None and found[1].rpartition(".")[2] not in ("dict", "OrderedDict"):
        cls, name = found[1].rpartition(".")[2], found[2]
        # A program that took a module for its state dict asks it for a method of dicts:
        # `'Segmenter' object has no attribute 'keys'`.
        if hasattr(dict, name) or name in _OF_STATE_DICTS:
            yield from _module_as_dict(cls, name, case)
        else:
            yield from _older_module(cls, name, case)
        return
    # The dict around a pickled module was asked for the methods of the module.
    if case.has_module:
        yield from _module_in_dict(case)
        return
    models = case.survey.candidates
    # A training checkpoint has its weights below a key, or an optimizer beside them.
    # Else the whole file is the state dict.
    path = models[0].name if models else ""
    if path or case.optimizers:
        where = f", and the weights are in {show(path, 80)}" if path else ""
        yield Statement(
            f"This file is a training checkpoint, a dict of {keys_text(case)}{where}. "
            "It holds no module."
        )
    else:
        count = counted_noun(len(case.survey.tensors), "tensor")
        yield Statement(
            f"This file is a state dict of {count}: the weights by their names, and no "
            "module."
        )
    yield from _build_statements(case)


def _module_as_dict(cls: str, name: str, case: Case) -> Iterator[Statement]:
    """Answer a program that took a pickled object for a state dict."""
    objects = list(_objects_of_class(case, cls))
    if not objects:
        return
    places = [show(place, 120) or "the root" for place, _ in objects]
    path = objects[0][0]
    text = (
        f"The file holds an object of {show(cls, 80)} at {and_more(places, 3)}, and "
        f"the program took it for a dict: {show(name, 80)} is a method of dicts."
    )
    # A dot in the place means several keys, which one subscript does not reach.
    if "." not in path:
        where = f"torch.load(…){literal_key(path)}" if path else "torch.load(…)"
        text += (
            f" With the code of the class its state dict is {where}.state_dict(), on a "
            "file whose author you trust."
        )
    yield Statement(text)
    yield from command_statements(
        "Without the code, this takes the weights out as a state dict:",
        case.plan(("slim",)),
    )


def _module_in_dict(case: Case) -> Iterator[Statement]:
    """Say where the pickled modules of a file are: at its root, or under keys."""
    modules = [section for section in case.survey.sections if section.is_module]
    places = [show(section.name, 80) for section in modules if section.path]
    # A section without a path is a module at the root: torch.load gives the module
    # itself then, and no dict.
    if not places or len(places) < len(modules):
        yield Statement(
            "This file holds a whole pickled module. Is it the file that was loaded?"
        )
        yield from load_statements(case)
        return
    keys = "".join(literal_key(str(key)) for key in modules[0].path)
    yield Statement(
        f"torch.load of this file gives a dict of {keys_text(case)}, and no module: "
        f"the pickled {'module is' if len(places) == 1 else 'modules are'} in "
        f"{and_more(places, 3)}. Take torch.load(…){keys} before it is used as one."
    )
    yield from load_statements(case)


def _build_statements(case: Case) -> Iterator[Statement]:
    load = case.survey.load
    if load.expression is None:
        yield from load_statements(case)
        return
    yield Statement(
        "Build the model with the code that trained it, and load the weights into it:",
        (),
        f"model.load_state_dict({load.expression})",
    )


def _older_module(cls: str, attribute: str, case: Case) -> Iterator[Statement]:
    """Answer a module that lacks an attribute, which its class got after the file was
    saved.
    """
    objects = list(_objects_of_class(case, cls))
    if not objects:
        return
    # Unpickling runs no __init__, so an attribute that the class has got since is
    # missing in the file too, as `approximate` of GELU.
    lacking = [name for name, node in objects if attribute not in attributes(node)]
    if not lacking:
        yield Statement(
            f"Each {show(cls, 80)} of this file has {show(attribute, 80)}. Is it the "
            "file that was loaded?"
        )
        return
    yield Statement(
        f"This file holds pickled objects of {show(cls, 80)} without "
        f"{show(attribute, 80)}: "
        f"{and_more([show(name, 120) or '(the root)' for name in lacking], 4)}. Its "
        "class got the attribute in a later version than the one that wrote the file."
    )
    way = case.plan(("weights",))
    if way.command is not None:
        yield Statement(
            (
                "Build the model anew with your version, and load the weights alone, "
                "which do not change:"
            ),
            (),
            way.command,
        )


def _objects_of_class(case: Case, cls: str) -> Iterator[tuple[str, Opaque]]:
    """The objects of a class in the pickle, with their places."""
    seen: set[int] = set()
    left: list[tuple[str, Node]] = [("", case.survey.checkpoint.root)]
    while left:
        name, node = left.pop()
        # Objects may refer to each other in a circle, and below a tensor is nothing to
        # find.
        if id(node) in seen or tensor_of(node) is not None:
            continue
        seen.add(id(node))
        if isinstance(node, Opaque) and look(node).type.rpartition(".")[2] == cls:
            yield name, node
        for key, child in children_of(node):
            if not isinstance(child, (str, int, float, bool, type(None))):
                # A name in torch has no `_modules` in it: the tables of a module are
                # left out of the place.
                is_table = str(key) in REGISTERED
                left.append(
                    (name if is_table else f"{name}.{key}" if name else str(key), child)
                )


def _answer_key(message: Message, case: Case) -> Answer:
    """Answer a key that the checkpoint does not have, or that its optimizer
    does not.
    """
    # The text of this KeyError is a sentence of torch: `param 'initial_lr' is not
    # specified in param_groups[0] when resuming an optimizer`.
    if "initial_lr" in message.text and "is not specified" in message.text:
        rows = list(_first_rates(case))
        return Answer(case.survey.path, tuple(rows)) if rows else looked_at(case)
    found = _KEY.search(message.text)
    # Words without a KeyError name no key: only the state of an optimizer is known to
    # lack.
    if found is None and _NO_STATES.search(message.text):
        return Answer(case.survey.path, tuple(_no_states(case)))
    if found is None:
        return looked_at(case)
    name = asked_name(found[1])
    # Lightning puts a sentence into its KeyError: `Trying to restore optimizer state
    # but checkpoint contains only the model.`
    if "contains only the model" in message.text:
        return Answer(case.survey.path, tuple(_no_optimizer(case)))
    rows = list(empty_part(message.names, case)) or list(
        _of_root(name, case)
        if message.owner is None
        else _of_other_owner(name, message.owner, case)
    )
    return Answer(case.survey.path, tuple(rows)) if rows else looked_at(case)


def _take_frames(message: Message, text: str, start: int) -> Message:
    """The message, with the keys that its program takes before it, and the variable
    from which it takes the one that lacks.
    """
    found = _KEY.search(text, start)
    owner = None if found is None else owner_of(found[1], text[:start])
    return message._replace(
        names=taken_keys(text, start),
        owner=None if owner is None or is_of_optimizer(owner) else owner,
    )


_OF_OPTIMIZERS = (
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "exp_inf",
    "step",
    "betas",
    "momentum",
    "eps",
    "lr",
    "weight_decay",
    "initial_lr",
    "amsgrad",
    "foreach",
    "maximize",
    "capturable",
    "differentiable",
    "nesterov",
    "dampening",
    "fused",
    "decoupled_weight_decay",
)
"""Keys that torch's optimizers ask for in a state or in a group."""
# The keys under which programs put the weights of a model.
_MODEL_KEYS = (
    "state_dict",
    "model",
    "model_state_dict",
    "net",
    "network",
    "weights",
    "module",
    "params",
    "params_ema",
    "ema",
    "generator",
    "G_ema",
    "g_ema",
    "encoder",
    "model_state",
    "teacher",
    "student",
)


ASKED_FOR = re.compile(
    rf"{_KEY.pattern}"
    # The `form` is the program's own slip: `Failed loading checkpoint form m.pth:
    # 'backbone.layer.weight'`.
    r"|Failed loading checkpoint form? \S{1,2000}: '([\w.]{3,1000})'"
    r"|(?i:required|mandatory"
    r"|expected) key:? ['\"]?([\w.-]{1,200})['\"]? (?:is )?(?:missing|not (?:found"
    r"|present|in))\b"
    r"|(?i:no|missing"
    r"|without(?: the)?) key ['\"]([\w.-]{1,200})['\"] (?:was )?(?:found )?"
    r"in (?:the )?(?:checkpoint"
    r"|state[_ ]dict|file)"
    r"|['\"]([\w.-]{1,200})['\"] (?:is )?not (?:found )?in (?:the )?(?:checkpoint"
    r"|loaded state)\b"
    # SpeechBrain has a file for each object: `Loading checkpoint from save/CKPT+2021,
    # but missing a load path for wav2vec_opt`.
    r"|missing a load path for ([\w-]{1,200})"
    # Programs of OpenMMLab say `No state_dict found in checkpoint file b.pth`.
    r"|No (\w{1,100}) found in checkpoint(?: file)?\b"
    r"|\b[Ww]eights? ['\"]?([\w-]{1,200}(?:\.[\w-]{1,200}){1,40})['\"]? does not exist"
    r"|[Cc]heckpoint (?:file )?(?:does not|doesn't|must|should) (?:contain|have"
    r"|include) (?:an? |the )?(?:key )?['\"]([\w.-]{1,200})['\"]"
)
"""The words of programs that lack a key, with the key in one of the groups."""


def of_key(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a key that a program lacks, and that the checkpoint may not have."""
    # A KeyError with a variable of the launcher, such as 'RANK', is about no file.
    if UNSET.search(found[0]):
        return
    name = asked_name(next(text for text in found.groups() if text is not None))
    row = of_gguf_name(name, found.string, case)
    if row is not None:
        yield row
        yield from load_statements(case)
        return
    if is_option(name, found.string[: found.end()]) and case.optimizers:
        yield from option_statements(name, case)
        return
    empty = list(empty_part(taken_keys(found.string, found.start()), case))
    if empty:
        yield from empty
        yield from load_statements(case)
        return
    yield from _of_root(name, case)


# A name with dots among words. The looks around it keep out the parts of a path, as
# `out/model.pth`.
_IN_SENTENCE = re.compile(
    r"(?<![\w./\\-])[\w-]{1,200}(?:\.[\w-]{1,200}){1,40}(?![\w/\\])"
)
_QUOTED_NAME = re.compile(r"['\"`]([\w.-]{2,1000})['\"`]")


def asked_name(text: str) -> str:
    """The name that the text of a KeyError asks for: programs write a sentence around
    it.
    """
    if " " not in text.strip():
        return text
    # A name in quotes is surer than a word with a dot in it.
    found = _QUOTED_NAME.search(text) or _IN_SENTENCE.search(text)
    if found is None:
        return text
    return found[1] if found.re is _QUOTED_NAME else found[0]


NOT_LOADED = re.compile(
    r"failed to load ['\"]?(\w{1,80})['\"]? from checkpoint", re.IGNORECASE
)
"""The words of programs that go on without a part of a checkpoint."""


_LEAST_PARTS = 2
"""Parts that a program names: one alone may be a word for the whole."""


def of_parts(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that names each part that it did not load."""
    asked = list(dict.fromkeys(row[1] for row in NOT_LOADED.finditer(found.string)))
    keys = root_keys(case)
    held = [name for name in asked if name in keys]
    lacking = [name for name in asked if name not in keys]
    if not lacking or len(asked) < _LEAST_PARTS:
        return
    shown = and_more([show(name, 60) for name in lacking], 6)
    is_flat = bool(case.survey.candidates) and not any(
        section.path for section in case.survey.candidates
    )
    # A file with some of the parts is a checkpoint that lacks the others. A file with
    # none of them was never one of a run.
    if is_flat and not held:
        yield Statement(
            f"The program looks for {shown} at the root of this file, and it is one "
            f"state dict of {counted_noun(len(case.survey.tensors), 'tensor')}: the "
            "weights of one model alone, as they are published to be used. A run goes "
            "on from the whole checkpoint that a training saved, with all of these "
            "parts. To begin a training with these weights, give them by the option "
            "for pretrained weights, and not as the checkpoint of the run."
        )
    else:
        yield Statement(
            f"{shown} {'is' if len(lacking) == 1 else 'are'} no key of this file, "
            f"whose keys are {keys_text(case)}."
        )
    yield from load_statements(case)


def _first_rates(case: Case) -> Iterator[Statement]:
    """Answer a scheduler that goes on, and finds no first learning rate in the groups
    of its optimizer.
    """
    for section in case.optimizers:
        label = show(section.name, 80) or "The optimizer"
        # A scheduler writes initial_lr into the groups when it is built, so a save
        # without a scheduler has none.
        if "initial_lr" in _optimizer_fields(section):
            yield Statement(
                f"{label} has initial_lr: load its state before the scheduler is "
                "built, for last_epoch of a scheduler asks for it."
            )
            continue
        yield Statement(
            (
                f"The groups of {label} have no initial_lr: no scheduler had been "
                f"built when {label} was saved. This gives each its own rate:"
            ),
            (),
            (
                'for group in optimizer.param_groups: group.setdefault("initial_lr", '
                'group["lr"])'
            ),
        )
    if not case.optimizers:
        yield Statement(
            "This file holds no optimizer, and a scheduler cannot go on from it: build "
            "it with last_epoch=-1."
        )


_ASKED = {
    "lr_lambdas": "LambdaLR or MultiplicativeLR",
    "_schedulers": "SequentialLR or ChainedScheduler",
}
"""Keys that load_state_dict of a scheduler asks for -> the class."""
_SCHEDULERS = {
    "T_max": "CosineAnnealingLR",
    "T_0": "CosineAnnealingWarmRestarts",
    "step_size": "StepLR",
    "total_steps": "OneCycleLR",
    "patience": "ReduceLROnPlateau",
    "max_lrs": "CyclicLR",
    "lr_lambdas": "LambdaLR or MultiplicativeLR",
    "_milestones": "SequentialLR",
    "_schedulers": "ChainedScheduler",
    "milestones": "MultiStepLR",
    "total_iters": "LinearLR, ConstantLR or PolynomialLR",
    # Keep it last: StepLR and MultiStepLR have a gamma too.
    "gamma": "ExponentialLR",
}
"""Keys of the states of schedulers -> their classes; the first that is there
decides.
"""


def _scheduler_statements(name: str, case: Case) -> Iterator[Statement]:
    """Say of which class a scheduler of the file is, where another one asks for its
    keys.
    """
    for place, keys in _states_of_schedulers(case):
        kind = next((key for key in _SCHEDULERS if key in keys), None)
        if kind is None:
            continue
        label = show(place, 80) or "This file"
        if name in keys:
            yield Statement(
                f"{label} has {name}: another file, or another part of it, was loaded."
            )
            continue
        yield Statement(
            f"{label} is the state of a {_SCHEDULERS[kind]} ({kind}), and "
            f"{_ASKED[name]} asks for {name}. Build the scheduler of the run that "
            "saved, or begin it anew."
        )


def _states_of_schedulers(case: Case) -> Iterator[tuple[str, set[str]]]:
    """The place of each scheduler's state, and its keys."""
    checkpoint = case.survey.checkpoint
    # The keys of one state are in two lists of a checkpoint: scalars such as
    # last_epoch, and containers such as base_lrs.
    keys: dict[tuple[object, ...], set[str]] = {}
    for value in checkpoint.values:
        if value.path:
            keys.setdefault(tuple(value.path[:-1]), set()).add(str(value.path[-1]))
    for row in checkpoint.containers:
        keys.setdefault(tuple(row.path), set()).update(str(key) for key in row.keys)
    for path, held in keys.items():
        # Every scheduler of torch but ChainedScheduler keeps last_epoch in its state.
        # The states inside of another scheduler are parts of it.
        is_state = "last_epoch" in held or "_schedulers" in held
        if is_state and "_schedulers" not in path:
            yield ".".join(map(str, path)), held


def _of_other_owner(name: str, owner: str, case: Case) -> Iterator[Statement]:
    """Say why a program does not find a name in a variable that is no state of an
    optimizer.
    """
    # accelerate gathers there what it found in the file of random states.
    if owner == "override_attributes" and case.is_folder:
        yield Statement(
            f"accelerate takes {show(name, 60)} from random_states_0.pkl of this "
            "folder, and leaves it out without an error where that file has none, or "
            'where it could not load the file ("Could not load random states" stands '
            "above then). Another version of accelerate saved it: load with that one. "
            "The weights and the optimizer are in files of their own, and load without "
            "it."
        )
        yield from load_statements(case)
        return
    # The names of optimizers' fields tell nothing of another dict.
    if name in _OF_OPTIMIZERS and name not in root_keys(case):
        yield from _of_keys(name, case, has_places=False)
        yield from load_statements(case)
        return
    yield from _of_root(name, case)


def _of_root(name: str, case: Case) -> Iterator[Statement]:
    """Say why a program does not find a name at the root of the file."""
    yield from finding_statements(case.found("adapter-names"))
    if case.survey.checkpoint.layout == _SPEECHBRAIN:
        yield from _of_recoverables(name, case)
        return
    # Ask first what the file says of this very name, then where else it stands, and
    # last what is known of names like it.
    rows = _first_that_answers(_BEFORE_PLACES, name, case)
    if rows:
        yield from rows
        return
    layer = _of_adapted_layer(name, case)
    if layer is not None:
        yield layer
        return
    newer = _of_newer_names(case)
    if newer is not None:
        yield newer
        return
    places = _places_of(name, case)
    if places:
        shown = and_more([show(place, 120) for place in places], 4)
        yield Statement(f"This file has {show(name, 80)} at another place: {shown}.")
        # A prefix before all names explains the other place by itself.
        renaming = _without_prefix(places, name, case)
        if renaming is not None:
            yield renaming
            return
    # These two speak also where a place was found: param_groups lies below
    # base_optimizer_state, or in a part that the program did not take.
    rows = list(_of_zero(name, case)) or list(_of_taken_part(name, case))
    if not rows and not places:
        rows = _first_that_answers(_WITHOUT_PLACES, name, case)
    if rows:
        yield from rows
        return
    yield from _of_known_names(name, case, has_places=bool(places))


def _of_adapted_layer(name: str, case: Case) -> Statement | None:
    """Say that a file has the adapter of a layer, and not the layer, or return None."""
    # PEFT calls the layer that it wraps base_layer. Where the file has such names, its
    # base was saved too.
    module, _, rest = name.partition(".base_layer.")
    names = [entry.name for entry in case.survey.tensors]
    held = [other for other in names if f".{module}.lora_" in f".{other}"]
    if not rest or not held or any(".base_layer." in other for other in names):
        return None
    return Statement(
        f"The file has the adapter of this layer ({show(held[0], 120)}) and not the "
        "layer itself: an adapter is saved without the weights of its base. They come "
        "from the base model, so the program has to load that first; a layer that "
        "bitsandbytes has quantized takes its weight from a state dict, and none is in "
        "this one. Load the base without quantization, or let PEFT load the adapter."
    )


_NEWER_PARTS = re.compile(r"^model\.(language_model|visual|vision_tower)\.")


def _of_newer_names(case: Case) -> Statement | None:
    """Say that a model of pictures and text has the names that transformers gives since
    4.52, or return None.
    """
    names = [entry.name for entry in case.survey.tensors]
    parts = {found[1] for name in names if (found := _NEWER_PARTS.match(name))}
    # The text model alone is no model of pictures and text.
    if "language_model" not in parts or len(parts) < 2:
        return None
    rest = [name for name in names if not _NEWER_PARTS.match(name)]
    # The older names have the layers of the text model at model.layers.
    if any(name.startswith("model.layers.") for name in rest):
        return None
    shown = and_more([f"model.{part}." for part in sorted(parts)], 3)
    text = (
        f"The names of this file are those of transformers 4.52 and newer ({shown}). "
        "A program that was made before looks for older ones, and names a key that "
        "neither has, for it had changed the beginning first. Take a newer version of "
        "the program."
    )
    # Only Qwen's older names are the same for all: others differ by the model.
    if parts != {"language_model", "visual"}:
        return Statement(text)
    way = case.plan(
        (
            "rename",
            "--sub",
            r"s/^model\.language_model\./model./",
            "--sub",
            r"s/^model\.visual\./visual./",
        )
    )
    if way.command is None:
        return Statement(text)
    return Statement(f"{text} Or write the older ones:", (), way.command)


_Step = Callable[[str, Case], Iterator[Statement]]
"""Says what it knows of a name that a program asks for, or nothing."""


def _first_that_answers(
    steps: Iterable[_Step], name: str, case: Case
) -> list[Statement]:
    """The statements of the first step that has some."""
    for step in steps:
        rows = list(step(name, case))
        if rows:
            return rows
    return []


def _of_asked_scheduler(name: str, case: Case) -> Iterator[Statement]:
    if name in _ASKED:
        yield from _scheduler_statements(name, case)


def _of_asked_optimizer(name: str, case: Case) -> Iterator[Statement]:
    if name in _OF_OPTIMIZERS and name not in root_keys(case):
        yield from _of_optimizer(name, case)


def _files_of_keys(case: Case) -> dict[str, str]:
    """The files of a folder, by the key under which each stands."""
    return {
        member.key: member.file
        for member in case.survey.checkpoint.members
        if member.key
    }


def _of_own_file(name: str, case: Case) -> Iterator[Statement]:
    """Say that a name is a file of its own in the folder."""
    files = _files_of_keys(case)
    if case.is_folder and name in files:
        yield Statement(
            f"{show(name, 80)} is a file of its own in this folder, "
            f"{show(files[name], 80)}, and no key of another one: the program read one "
            "file of the folder as if it had all in it."
        )
        yield from load_statements(case, "The weights load so:")


def _of_present_key(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file has the name at its root."""
    if name in root_keys(case):
        yield Statement(
            f"This file has the key {show(name, 80)} at its root: another file, or "
            "another part of it, was asked."
        )
        yield from load_statements(case)


def _then_load(statement: Callable[[str, Case], Statement | None]) -> _Step:
    """A step that says a statement, with the line that loads the file after it."""

    def step(name: str, case: Case) -> Iterator[Statement]:
        row = statement(name, case)
        if row is not None:
            yield row
            yield from load_statements(case)

    return step


def _tensors_called(name: str, case: Case) -> list[str]:
    """The tensors whose names end with a name."""
    return [
        entry.name
        for entry in case.survey.tensors
        if entry.name == name or entry.name.endswith(f".{name}")
    ]


def _is_last_word(name: str, case: Case) -> bool:
    """Tell whether a name is the last word of many tensors, such as weight: no part
    that a program asks for.
    """
    return "." not in name and len(_tensors_called(name, case)) > 1


def _places_of(name: str, case: Case) -> list[str]:
    """The places of the file, below its root, where a name stands."""
    places = [
        row.name
        for row in case.survey.checkpoint.containers
        if row.path and str(row.path[-1]) == name
    ]
    # A word such as weight ends many names, so the places of tensors tell nothing.
    if _is_last_word(name, case):
        return places
    return places + _tensors_called(name, case)[:4]


def _without_prefix(places: list[str], name: str, case: Case) -> Statement | None:
    """The command that takes off what stands before a name, or None."""
    prefix = _common_prefix(places, name, case)
    if prefix is None:
        return None
    way = case.plan(("rename", "--sub", f"s/^{re.escape(prefix)}//"))
    if way.command is None:
        return None
    return Statement(
        (
            f"Names of this file begin with {show(prefix, 80)}, and the "
            "program asks for them without it:"
        ),
        (),
        way.command,
    )


def _of_zero(name: str, case: Case) -> Iterator[Statement]:
    """Say that the optimizer is one of DeepSpeed ZeRO."""
    # load_state_dict of torch's optimizers asks for these two keys.
    if name not in ("param_groups", "state"):
        return
    zero = next(
        (
            row
            for row in case.survey.checkpoint.containers
            if _ZERO.issubset(map(str, row.keys))
        ),
        None,
    )
    if zero is not None:
        label = ".".join(map(str, zero.path))
        yield Statement(
            f"{show(label, 80) or 'This file'} is the state of an optimizer of "
            "DeepSpeed ZeRO (base_optimizer_state holds that of the optimizer below "
            "it), and no optimizer of torch takes it: resume in DeepSpeed with as many "
            "ranks, or begin the optimizer anew from the weights."
        )
        yield from load_statements(case)


def _of_taken_part(name: str, case: Case) -> Iterator[Statement]:
    """Say where the state of the optimizer is, for which a program took another part of
    the file.
    """
    held = [
        section
        for section in case.optimizers
        if "param_groups" in dict(children_of(section.node))
    ]
    # With two optimizers it is not known which of them was meant.
    if name != "param_groups" or len(held) != 1:
        return
    (section,) = held
    if not section.path:
        return
    # A save that mixes up its arguments leaves the state of the scheduler in optimizer,
    # and the other way round.
    swapped = next(
        (place for place, _ in _states_of_schedulers(case) if "optim" in place.lower()),
        None,
    )
    if swapped is not None and "sched" in section.name.lower():
        yield Statement(
            f"{show(swapped, 80)} of this file is the state of a scheduler (it has "
            f"last_epoch), and {show(section.name, 80)} is that of the optimizer: the "
            "save put each under the name of the other, as where two arguments are "
            "given in the wrong order. Both are whole. So they load, and the call that "
            "saves has to be mended:",
            (),
            f'optimizer.load_state_dict(checkpoint["{show(section.name, 80)}"]); '
            f'scheduler.load_state_dict(checkpoint["{show(swapped, 80)}"])',
        )
        return
    keys = "".join(f'["{show(str(key), 80)}"]' for key in section.path)
    yield Statement(
        "param_groups is a key of an optimizer's state, and the program took another "
        f"part of the file. The state is in {show(section.name, 80)}:",
        (),
        f"optimizer.load_state_dict(checkpoint{keys})",
    )


def _of_scales(name: str, case: Case) -> Iterator[Statement]:
    """Say that the name is the scale of a weight, and what builds such a model."""
    is_scale = SCALE.search(name.rpartition(".")[2])
    scaled = case.scaled_findings if is_scale else []
    if scaled:
        yield from finding_statements(scaled)
        yield from built_by_quantizers(case)


def _of_beginning(name: str, case: Case) -> Iterator[Statement]:
    moved = _under_another_beginning(name, case)
    if moved is not None:
        yield moved


def _of_known_names(name: str, case: Case, *, has_places: bool) -> Iterator[Statement]:
    """Say what the file has instead of a name that is at no other place, or whose place
    tells nothing.
    """
    keys = root_keys(case)
    if not has_places:
        yield from _of_another_program(name, case)
        # sentence-transformers reads __version__ from its own config.json, and a plain
        # model of transformers has none.
        if name == "__version__" and case.is_folder:
            yield from _of_sentences(case)
            return
    if _NAME_OF_A_TENSOR.search(name):
        yield from _name_of_a_tensor(name, case)
        yield from load_statements(case)
        return
    kinds = {section.kind for section in case.survey.sections}
    # Sentences and names such as __version__ are no names of files.
    is_of_files = not name.startswith("__") and " " not in name
    if case.is_folder and _files_of_keys(case) and not has_places and is_of_files:
        yield from _of_missing_file(name, case)
    elif case.has_module and not keys:
        yield Statement("This file holds a whole pickled module, and no dict of parts.")
    elif (
        kinds
        # The file holds weights alone where no section is anything else, and each model
        # begins at the root.
        and kinds.isdisjoint(("optimizer", "other"))
        and all(not section.path for section in case.survey.candidates)
        and case.survey.candidates
    ):
        yield from _of_weights_alone(name, case)
    elif keys:
        yield from _of_keys(name, case, has_places=has_places)
    # Lightning looks for these keys in a checkpoint of its own.
    if name in ("pytorch-lightning_version", "hyper_parameters", "callbacks", "loops"):
        yield Statement(
            "Lightning did not write this file, or its weights alone were kept. Load "
            "the weights by load_state_dict, not by ckpt_path."
        )
    yield from load_statements(case)


def _of_sentences(case: Case) -> Iterator[Statement]:
    """Say how sentence-transformers takes a plain model of transformers."""
    path = string_literal(case.survey.path)
    yield Statement(
        "sentence-transformers takes a plain model of transformers as its first "
        "module, and needs a pooling behind it:",
        (),
        "from sentence_transformers import SentenceTransformer, models; first = "
        f"models.Transformer({path}); model = SentenceTransformer(modules=[first, "
        "models.Pooling(first.get_word_embedding_dimension())])",
    )


def _of_missing_file(name: str, case: Case) -> Iterator[Statement]:
    """Say that no file of the folder has the name, and which files it has."""
    listed = and_more([show(file, 80) for file in case.survey.checkpoint.parts], 8)
    yield Statement(
        f"No file of this folder is called {show(name, 80)}, and no key has this name: "
        f"its files are {listed}."
    )
    if _OPTIMIZER_WORD.search(name):
        yield from _where_optimizers_are(case)


def _of_weights_alone(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file holds nothing but weights."""
    is_last_word = _is_last_word(name, case)
    what = (
        "no epoch and no optimizer is in it"
        # A key for a model asks for no epoch and no optimizer, so the sentence leaves
        # them out.
        if name not in (*_MODEL_KEYS, "state") and not is_last_word
        else (
            "the whole file is the state dict, and the program asked for a part "
            f"called {show(name, 80)}"
        )
        if is_last_word
        else "the whole file is the state dict"
    )
    if _HOOKED.search(name):
        yield from _of_hook(name, case)
        return
    words = first_words(case.survey)
    begins = (
        f" Its names begin with {and_more([show(word, 40) for word in words], 5)}. "
        "Are they those of the whole model that the program builds? Weights of a part, "
        "as a backbone, belong to the option for that part, and not to the one for a "
        "checkpoint of the run."
        if name in _MODEL_KEYS and len(words) > 1
        else ""
    )
    yield Statement(
        f"This file holds weights alone, by their names at its root: {what}.{begins}"
    )
    if name in ("params", "params_ema", "params-ema"):
        yield Statement(
            "BasicSR and what was made with it take the weights from the key that "
            "param_key_g of their settings names: ~ (null) there stands for a file "
            "that has none, as this one."
        )
    if name in ("meta", "dataset_meta"):
        yield Statement(
            "Programs of OpenMMLab find the classes in meta, which their own training "
            "writes. Weights without it are mostly those that a training begins with "
            "(a backbone: init_cfg), and no trained model: take the checkpoint of one."
        )


_HOOKED = re.compile(r"\.\w{1,40}_(?:orig|u|v|g)$")
"""The names that spectral_norm and weight_norm of torch keep for a weight."""


def _of_hook(name: str, case: Case) -> Iterator[Statement]:
    """Answer the hook of spectral_norm, which asks for its names also with
    strict=False.
    """
    layer = name.rpartition(".")[0]
    held = [
        other
        for section in case.survey.candidates
        for other in section.names()
        if other.startswith(f"{layer}.")
    ]
    has = (
        f"it has {and_more([show(other, 80) for other in held], 3)} of that layer"
        if held
        else f"it has nothing of {show(layer, 80)}"
    )
    text = (
        f"This file has no {show(name, 100)}: {has}. In older versions of torch the "
        "hook of spectral_norm asks for it whenever a state dict is loaded, with "
        "strict=False too."
    )
    load = case.survey.load.expression
    if load is None or len(case.survey.candidates) != 1:
        yield Statement(text)
        return
    yield Statement(
        f"{text} What the file lacks can come from the model itself:",
        (),
        f"model.load_state_dict({{**model.state_dict(), **{load}}}, strict=False)",
    )


def _of_keys(name: str, case: Case, *, has_places: bool) -> Iterator[Statement]:
    """Say which keys the file has at its root, and where its weights are."""
    keys = root_keys(case)
    if _OPTIMIZER_WORD.search(name):
        yield from _where_optimizers_are(case)
    none = "" if has_places or name in keys else f", and none is {show(name, 80)}"
    averages = [key for key in keys if key in (f"{name}_ema", f"ema_{name}")]
    # model_ema of one program is state_dict_ema of another one.
    others = [key for key in keys if _AVERAGES.search(key)]
    if not averages and none and others and _AVERAGES.search(name):
        yield Statement(
            f"This file has its averages under another key: {and_more(others, 3)}. "
            "Give the program that name (timm: state_dict_ema, by --use-ema)."
        )
    part = (
        f" {show(averages[0], 60)} has the running averages of {show(name, 60)}, by "
        "its name: to use the model take these. A training that goes on wants both, "
        "with the state of its optimizers."
        if averages
        else " The run saved no such state: leave its load out, and let it begin anew."
        if none and _PART_WORD.search(name)
        else ""
    )
    yield Statement(f"The keys of this file are {keys_text(case)}{none}.{part}")
    if _VITS.issubset(keys) and name in ("config", "weight", "f0", "version"):
        yield Statement(
            "A run of VITS, RVC or so-vits-svc goes on from such a file (the G_ and D_ "
            "files of logs). The program wants the voice that is exported from it: in "
            "RVC the file of weights/ without a number, with config and weight."
        )
    # Other programs have an iteration too: checkpoint_version is Megatron's.
    if name in _OF_MEGATRON and "checkpoint_version" in keys:
        yield Statement(
            "Megatron asks for the iteration at which a run goes on, and released "
            "weights have none. With --finetune it begins at 0, and takes the "
            "weights alone."
        )
    models = [section.name for section in case.survey.candidates if section.name]
    if models:
        begins = ""
        # If a container such as net was asked for, the place of the weights is the
        # answer. Any other key may be of another model.
        if len(models) == 1 and _CONTAINER.fullmatch(name) is None:
            words = dict.fromkeys(
                row.partition(".")[0]
                for section in case.survey.candidates[:1]
                for row in section.names()
            )
            shown = and_more([show(word, 40) for word in words], 3)
            begins = (
                f", and their names begin with {shown}. Are they of the model that the "
                "program builds?"
            )
        held = and_more([show(model, 80) for model in models], 3)
        wrapped = len(models) == 1 and wrapped_names(case.survey.candidates[0].names())
        prefix = wrapped[0].partition(".")[0] if wrapped else ""
        wrapper = (
            f" Their names begin with {show(prefix, 40)}., the prefix of a wrapper, "
            "which a model without it does not have: ckpt strip takes it off."
            if wrapped and not begins
            else ""
        )
        yield Statement(f"The weights are in {held}{begins or '.'}{wrapper}")
    elif _OF_RESULTS.issubset(keys):
        yield Statement(
            "These are the results of an evaluation, and no weights of a model: "
            "take the checkpoint that was evaluated."
        )


_AVERAGES = re.compile(r"(?i)(?:^|_)ema(?:_|$)")
"""The word for averages in a key."""
_PART_WORD = re.compile(r"(?i)sched|(?:^|_)(?:grad_?)?scaler|(?:^|_)amp$|(?:^|_)rng")
"""The names under which programs look for parts of a run that may begin anew."""
_CONTAINER = re.compile(
    r"\w{0,40}(?:state|dict|model|weights?|params?|net|network|ema|module)\w{0,20}",
    re.IGNORECASE,
)
"""Keys that say nothing but that weights are below them."""
_OF_MEGATRON = ("iteration", "total_iters")
"""The keys under which Megatron has its step, in newer and in older versions."""
_SPEECHBRAIN = "SpeechBrain checkpoint"


def _of_recoverables(name: str, case: Case) -> Iterator[Statement]:
    """Answer SpeechBrain, which has a file for each object, and finds none for one of
    them.
    """
    files = {
        member.key: member.file
        for member in case.survey.checkpoint.members
        if member.file.endswith(".ckpt")
    }
    shown = show(name, 80)
    if name in files:
        yield Statement(
            f"{shown} is in this folder ({show(files[name], 80)}): the folder of the "
            "message is another one."
        )
        yield from load_statements(case)
        return
    yield Statement(
        f"{shown} is not among the objects of this folder, which are "
        f"{and_more([show(key, 60) for key in files], 8)}, in a file each: the run "
        "that saved had no such object, or its file was left out when the folder was "
        "published."
    )
    yield Statement(
        (
            f"To use the model alone, build the program without {shown} among its "
            "recoverables, or give the Checkpointer allow_partial_load=True."
        )
        + (
            " A training that goes on begins its optimizer anew."
            if _OPTIMIZER_WORD.search(name)
            else ""
        )
    )
    yield from load_statements(case)


_WANTED = {
    "dims": "a Whisper of OpenAI (dims and model_state_dict)",
    "task_cfg": (
        "a checkpoint of fairseq that s3prl has converted (task_cfg, model_cfg and "
        "model_weight)"
    ),
    "model_cfg": (
        "a checkpoint of fairseq that s3prl has converted (task_cfg, model_cfg and "
        "model_weight)"
    ),
    "model_weight": (
        "a checkpoint of fairseq that s3prl has converted (task_cfg, model_cfg and "
        "model_weight)"
    ),
    "policy_class": "an agent of Stable-Baselines3",
    "params_ema": "weights of BasicSR",
    "train_args": "a checkpoint of ultralytics",
    "network_weights": "a checkpoint of nnU-Net",
    "pytorch-lightning_version": "a checkpoint of Lightning",
    "blobs": "weights of Detectron, by the names of Caffe2",
    "__version__": "a model of sentence-transformers before 2 (in its config.json)",
}
"""Keys that one program writes -> what it writes them in."""
_DETECTION = ("rpn", "bbox", "cls_score", "fast_rcnn", "mask_fcn", "kps_score")
"""Parts of the blobs that a detector has, and the backbone of one has not."""


def _of_another_program(name: str, case: Case) -> Iterator[Statement]:
    """Say of which program a key is, and of which one the file is."""
    origin = name_origin(case.survey)
    wanted = _WANTED.get(name)
    text = f"No key and no tensor of this file is called {show(name, 120)}."
    # If the name is of a buffer, such as freqs_cis, no weight lacks.
    if computed_buffers([name]):
        text += (
            " It is no weight: a model computes it when it is built, and only some "
            "programs save it. The program reads the files of one of them: name the "
            "kind of this one to it."
        )
    if wanted is not None and wanted != origin:
        text = (
            f"{show(name, 80)} is a key of {wanted}, and this file has none of this "
            "name."
        )
    if origin is not None:
        text += f" {origin_opening(origin)} {origin}"
        text += "." if wanted is None else ", which the program does not take as it is."
    if wanted is not None or origin is not None:
        yield Statement(text)
    if (
        wanted is not None
        and "s3prl" in wanted
        and origin is not None
        and "fairseq" in origin
    ):
        yield Statement(
            "s3prl converts such a file: convert.py beside its upstream "
            "(load_and_convert_fairseq_ckpt) takes the settings and the weights of it."
        )
    # Detectron keeps the weights in blobs, under the names of Caffe2: `conv_rpn_w`.
    blobs = next(
        (row for row in case.survey.checkpoint.containers if row.name == "blobs"), None
    )
    keys = [] if blobs is None else [str(key) for key in blobs.keys]
    if blobs is not None and not any(
        word in key for key in keys for word in _DETECTION
    ):
        # The layer of the classes of ImageNet shows that the backbone is as its own
        # training left it.
        classes = next(
            (key for key in keys if key.startswith(("fc1000", "pred_"))), None
        )
        last = (
            (
                f" that was trained on ImageNet ({show(classes, 40)} is its layer of "
                "classes)"
            )
            if classes is not None
            else ""
        )
        yield Statement(
            f"Its {counted_noun(len(keys), 'blob')} are of a backbone{last}, and none "
            "is of a detector: take the file of a trained detector, or give this one "
            "as the weights that a training begins with."
        )


_LEAST_TAIL = 3
"""Parts at the end of a name that two names must share to be one tensor under two
beginnings.
"""


def _under_another_beginning(name: str, case: Case) -> Statement | None:
    """Say that a file has a tensor below another first word, with the command that
    gives it the one asked for.
    """
    first, _, tail = name.partition(".")
    if tail.count(".") + 1 < _LEAST_TAIL or len(case.survey.candidates) != 1:
        return None
    names = case.survey.candidates[0].names()
    found = [other for other in names if other == tail or other.endswith(f".{tail}")]
    # Two tensors with this tail may be of two models.
    if len(found) != 1:
        return None
    beginning = found[0].removesuffix(tail)
    text = (
        f"This file has it as {show(found[0], 120)}"
        + (
            f", below {show(beginning, 80)} in the place of {show(first, 80)}.:"
            if beginning
            else f", without {show(first, 80)}. before it:"
        )
        + " the program looks for the names of another run, or of another wrapper."
    )
    sub = f"s/^{re.escape(beginning)}/{first}./"
    # A word with other characters could break the rule of the rename.
    way = case.plan(("rename", "--sub", sub)) if first.isidentifier() else None
    if way is None or way.command is None:
        return Statement(text)
    return Statement(f"{text} With the name that it asks for:", (), way.command)


def _with_numbers(name: str, case: Case) -> Statement | None:
    """Say which tensors a name with {} in the place of numbers stands for, or return
    None.
    """
    # Programs show a row of their table of names, with a hole for the number:
    # `transformer.h.{}.attn.gating_factor`.
    if "{}" not in name and "{bid}" not in name:
        return None
    pattern = re.escape(name)
    for hole in ("{}", "{bid}"):
        pattern = pattern.replace(re.escape(hole), r"\d{1,6}")
    whole = re.compile(pattern)
    found = [
        other
        for section in case.survey.candidates
        for other in section.names()
        if whole.fullmatch(other)
    ]
    if not found:
        return None
    return Statement(
        f"{show(name, 120)} stands for {counted_noun(len(found), 'tensor')} of this "
        "file, with a number in the braces: "
        f"{and_more([show(other, 120) for other in found], 3)}. The program looks it "
        "up in a table of names and has no row for it: it does not know these layers, "
        "which an adapter or another version of the model adds."
    )


_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Endings of files that loaders take for weights."""
_STRAYS = 8
"""Files of a folder beside the checkpoint that are looked into."""


def _file_with(name: str, case: Case) -> Statement | None:
    """Say that another file of the folder has a tensor of a name, or return None where
    none has.
    """
    path = case.survey.path
    if not case.is_folder or "." not in name or is_url(path):
        return None
    folder = locate(path)
    parts = set(case.survey.checkpoint.parts)
    others = [
        file for file in folder.names() if file.endswith(_WEIGHTS) and file not in parts
    ]
    for file in sorted(others)[:_STRAYS]:
        has_name = name in case.names_in(os.path.join(path, file))
        if has_name:
            shown = show(file, 80)
            own = sorted(part for part in parts if part.endswith(_WEIGHTS))
            held = and_more([show(part, 80) for part in own], 3)
            text = (
                f"{show(name, 120)} is a tensor of {shown}, which lies in this folder "
                f"beside the files of the model ({held}). A loader that takes every "
                f"file meets both: move {shown} out of the folder."
            )
            # A folder of Mistral may have the model twice: under the names of
            # transformers, and under its author's in consolidated.safetensors.
            if file == _CONSOLIDATED:
                text += (
                    " It is the model in the names of its author: in vLLM --load-format"
                    " mistral with --config-format mistral takes that one alone."
                )
            return Statement(text)
    return None


_CONSOLIDATED = "consolidated.safetensors"


def _of_equal_tensor(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file has a tensor of exactly the name that lacks, so that the model
    is what lacks it.
    """
    # Leave a scale to the step behind this one, which says what builds a quantized
    # model.
    if SCALE.search(name.rpartition(".")[2]):
        return
    for section in case.survey.candidates[:4]:
        names = section.names()
        if "." not in name or name not in names:
            continue
        place = f", in {show(section.name, 80)}" if section.path else ""
        tied = _tied_by_config(name, names, case)
        if tied is not None:
            yield tied
            yield from load_statements(case)
            return
        yield Statement(
            f"This file has a tensor of exactly this name{place}, so the dict that "
            "lacks it is not of this file: it is that of the model which was built "
            "(model.state_dict()[name]), or another file was loaded."
        )
        words = first_words(case.survey)
        first, _, inner = name.partition(".")
        load = case.survey.load.expression
        if (
            # A program may have built the part that the first word names, such as
            # backbone. A head is no part that is built alone.
            len(words) > 1
            and not _OUTPUTS.search(first)
            and inner
            and load is not None
            and len(case.survey.candidates) == 1
        ):
            shown = and_more([show(word, 40) for word in words], 6)
            yield Statement(
                f"Its names begin with {shown}: it holds a whole model. Where the "
                f"program builds {show(first, 40)} alone, its names begin without "
                f"{show(first, 40)}., and that part loads so:",
                (),
                taken_part(load, f"{first}."),
            )
        else:
            yield from load_statements(case)
        return


def _of_recorded_word(name: str, case: Case) -> Iterator[Statement]:
    """Say that a key is no key of the file, but the value of a setting: a program looks
    it up in its own list of tasks, models or classes.
    """
    # A setting is one plain word: `KeyError: 'speech_pretraining'`.
    if "." in name or len(name) < _LEAST_WORD:
        return
    held = [
        value.name
        for value in case.survey.checkpoint.values
        if value.path and value.node == name
    ]
    if not held:
        return
    shown = and_more([show(place, 80) for place in held], 3)
    origin = name_origin(case.survey)
    said = "" if origin is None else f" {origin_opening(origin)} {origin}."
    yield Statement(
        f"{show(name, 80)} is no key of this file, and is a value of it, at {shown}. "
        "Where the program takes it from there, it looks it up in a list of its own, "
        "which lacks it: the file was written by another version of the program, or "
        f"with code that is not imported here.{said} Take the version that wrote it, "
        "or change the setting in the file to the name that yours has for it (ckpt "
        "set), if it means the same there."
    )
    yield from load_statements(case)


_LEAST_WORD = 4
"""Letters of a setting that is looked up: a shorter one stands in files by chance."""


_OUTPUTS = re.compile(r"(?:head|classifier|score|logits|output)$")
"""The first word of an output layer, which is no model of its own."""


def _tied_by_config(name: str, names: list[str], case: Case) -> Statement | None:
    """Say that a file has the output layer of a model whose config ties it to the
    embedding, so that the model has no such parameter, or return None.
    """
    others = [other for other in names if other != name]
    embedding = tied_name([name], others, case)
    ties = [node for _, node in case.survey_flags("tie_word_embeddings")]
    if embedding is None or True not in ties:
        return None
    text = (
        f"This file has {show(name, 80)} beside {show(embedding, 80)}, and config.json "
        "says tie_word_embeddings = true: the model that the program builds has the "
        "embedding alone, and no place for the other. Quantizers and trainers write "
        "both. Where both are equal, leave it out; where the training changed one, "
        "set tie_word_embeddings to false."
    )
    way = case.plan(("slim", "--exclude", name, "--with-config"))
    if way.command is None:
        return Statement(text)
    return Statement(f"{text} Without it:", (), way.command)


def _not_averaged(name: str, case: Case) -> Statement | None:
    """Say that a program asks for the average of a tensor, and the file has the tensor
    itself alone.
    """
    # Programs swap each weight with its average, and ask for both names:
    # `ema_pts_bbox_head_shared_conv_conv_weight`.
    for beginning in ("ema_", "ema.", "ema_model.", "model_ema.", "module.ema_"):
        if not name.startswith(beginning):
            continue
        # A buffer of torch may have no dot in its name, so a hook writes underscores.
        wanted = name.removeprefix(beginning).replace(".", "_")
        found = [
            other
            for section in case.survey.candidates
            for other in section.names()
            if other.replace(".", "_") == wanted
        ]
        if found and not any(
            other.startswith(beginning)
            for section in case.survey.candidates
            for other in section.names()
        ):
            other = found[0]
            return Statement(
                f"{show(other, 120)} is in this file, and no average of it is: no name "
                f"begins with {show(beginning, 40)}. The run had no EMA hook, or the "
                "averages are in their places already. There is nothing to swap: take "
                "the weights as they are."
            )
    return None


def _of_tied_tensor(name: str, case: Case) -> Statement | None:
    """Say that a program asks for a tensor that the file has under another name, for
    the model ties both.
    """
    names = [other for row in case.survey.candidates for other in row.names()]
    shared = tied_to_shared([name], names, case)
    if shared is not None:
        return shared
    tied = tied_name([name], names, case)
    if tied is None:
        return None
    return Statement(
        f"{show(name, 80)} is the same tensor as {show(tied, 80)} where a model ties "
        "both, and such a file holds it once: nothing is lost. A newer version of the "
        "program ties them itself; from_pretrained of transformers does."
    )


def _of_part_of_diffusion(name: str, case: Case) -> Statement | None:
    """Say that a program asks for a part of Stable Diffusion or its kin, and that the
    file has other parts.
    """
    asked = part_of_name(name)
    held = parts_in(case)
    if asked is None or not held or asked in held:
        return None
    return Statement(
        f"{show(name, 80)} is of {asked}, and this file holds {and_more(held, 3)} "
        f"alone: take a file with all parts, or load {asked} from another one."
    )


_PACKED = re.compile(r"\.(?:qweight|qzeros|scales|g_idx)$")


def _of_plain_weight(name: str, case: Case) -> Iterator[Statement]:
    """Say that a program asks for the parts of a quantized weight, and that the file
    has the plain one.
    """
    # GPTQ and AWQ keep a weight in several tensors: qweight, qzeros, scales and, in
    # GPTQ, g_idx.
    layer = _PACKED.sub("", name)
    if layer == name:
        return
    places = _tensors_called(f"{layer}.weight", case)
    if not places:
        return
    yield Statement(
        f"{show(name, 120)} is a part of a quantized weight, and this file has the "
        f"plain one, {show(places[0], 120)}: start the program without its option "
        "for quantized weights, or give it weights that were quantized so."
    )
    yield from load_statements(case)


_VITS = frozenset(("model", "iteration", "optimizer", "learning_rate"))
"""Keys of the checkpoints that VITS and what was made from it write while they
train.
"""
_OF_RESULTS = frozenset(("precision", "recall"))
"""Keys of the results that the evaluation of COCO saves."""
_OF_AUTHORS = re.compile(
    r"(?:time_embed\.|label_emb\.|input_blocks\.|middle_block\.|output_blocks\."
    r"|zero_convs\.|middle_block_out\.|input_hint_block\.)"
)
"""The beginning of a name of the UNet and the ControlNet of their authors."""
_OF_DIFFUSERS = re.compile(
    r"(?:time_embedding\.linear_\d|down_blocks\.\d+\.|controlnet_down_blocks\.)"
)
"""The beginning of a name of the same in diffusers."""
_NAME_OF_A_TENSOR = re.compile(r"\w[._]\d+[._]\w|\.\w+\.(?:weight|bias)$")
"""A name with a number between its parts, as layers have it."""


def _name_of_a_tensor(name: str, case: Case) -> Iterator[Statement]:
    """Say which tensors have a name like the one that a program asks for, with dots or
    underscores between its parts.
    """
    # Trainers of adapters write underscores for dots, so both are compared as one.
    asked = name.replace(".", "_")
    alike = [
        entry.name
        for entry in case.survey.tensors
        if asked in entry.name.replace(".", "_")
    ]
    if alike:
        count = (
            f"{counted_noun(len(alike), 'tensor')} of this file "
            f"{'has' if len(alike) == 1 else 'have'}"
        )
        yield Statement(
            f"{count} {show(name, 120)} in the name, with dots or underscores between "
            f"its parts: {and_more([show(row, 120) for row in alike], 4)}. The program "
            "asks for it by a part of the name, so it does not know these names as "
            "they are."
        )
        return
    if _OF_AUTHORS.match(name) and any(
        _OF_DIFFUSERS.match(entry.name) for entry in case.survey.tensors
    ):
        yield Statement(
            f"{show(name, 120)} is a name of the authors of Stable Diffusion and "
            "ControlNet, which a program converts to those of diffusers. This file "
            "has the names of diffusers already, so nothing is to convert: load it "
            "with from_pretrained from a folder that holds it with its config.json, "
            "and not with from_single_file or a script that converts."
        )
        return
    part = _sole_part(case)
    if part and not name.startswith(f"{part}."):
        yield Statement(
            f"All {counted_noun(len(case.survey.tensors), 'tensor')} of this file are "
            f"of {show(part, 80)}: it is a part of a model that was trained or saved "
            f"by itself, and {show(name, 120)} is outside of it. Take that tensor from "
            "the file of the whole model, or start the program with the options of "
            "the run that saved (those that say which parts are trained and saved), "
            "so that it asks for no other part."
        )
        return
    names = [show(entry.name, 120) for entry in case.survey.tensors[:3]]
    yield Statement(
        f"No tensor of this file has {show(name, 120)} in its name, with dots or "
        "underscores: the program looks for another architecture, or for the names of "
        f"another library. The names here are {and_more(names, 3)} and so on."
    )


_MOST_OF_A_PART = 16
"""Tensors that a part of a model by itself has at most here: a whole model in one more
module has more.
"""
_A_MODEL = re.compile(r"(?:^|\.)(?:model|module|state_dict|net|network)$")


def _sole_part(case: Case) -> str:
    """The part that all tensors of a small file are of, as `model.mm_projector`, or an
    empty text.
    """
    names = [entry.name for entry in case.survey.tensors]
    if not 1 < len(names) <= _MOST_OF_A_PART:
        return ""
    parents = [name.split(".")[:-1] for name in names]
    words: list[str] = []
    for level in zip(*parents, strict=False):
        if len(set(level)) > 1:
            break
        words.append(level[0])
    # A number is the place of a layer in a part, and no part.
    while words and words[-1].isdigit():
        words.pop()
    part = ".".join(words)
    # A prefix of all models alone is no part.
    return "" if "." not in part or _A_MODEL.search(part) else part


_OPTIMIZER_WORD = re.compile(
    r"(?i)(?:^|_)(?:opt|optim\w*)(?:_|\d|$)|^(?:optim|adam|sgd)"
)
"""The names under which programs look for the state of an optimizer."""


def _where_optimizers_are(case: Case) -> Iterator[Statement]:
    """Say under which keys the states of optimizers are, or that the file has none."""
    names = [show(section.name, 80) or "the root" for section in case.optimizers]
    if names:
        shown = and_more(names, 4)
        yield Statement(
            f"By another name the file has one: {shown} is the state of an optimizer."
            if len(names) == 1
            else (
                f"By other names the file has them: {shown} are the states of "
                "optimizers."
            )
        )
        return
    yield Statement(
        "No state of an optimizer is in this file. A run goes on from its weights "
        "alone, with an optimizer that begins anew: leave the load of its state out, "
        "or take a checkpoint that has one."
    )


_ZERO = frozenset(("base_optimizer_state", "loss_scaler"))
"""Keys of the state of an optimizer of DeepSpeed ZeRO."""


def _common_prefix(places: list[str], name: str, case: Case) -> str | None:
    """The prefix under which a file of weights has a name, where the file has that
    tensor once, or None.
    """
    # A name that lies twice has no single prefix, and a model below a key is not
    # renamed by its root.
    tensors = [place for place in places if place.endswith(f".{name}")]
    if (
        len(places) != 1
        or len(tensors) != 1
        or any(section.path for section in case.survey.candidates)
    ):
        return None
    prefix = tensors[0].removesuffix(name)
    count = sum(entry.name.startswith(prefix) for entry in case.survey.tensors)
    # A prefix of one tensor alone is the name of its module.
    return prefix if count > 1 else None


ATTRIBUTE = _ATTRIBUTE


def of_attribute(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer an object that lacks an attribute: a dict with a key of that name, or
    None, which the file holds.
    """
    # Read `'NoneType' object has no attribute 'bpe'`: the None may be a value of the
    # file.
    if found[1] == "NoneType":
        empty = list(empty_part(taken_keys(found.string, found.start()), case))
        yield from empty or _of_nothing(found[2], case)
        return
    if found[1].rpartition(".")[2].lower() not in ("dict", "ordereddict"):
        return
    name = found[2]
    places = [
        row for row in case.survey.checkpoint.containers if name in map(str, row.keys)
    ]
    if not places:
        yield from _of_no_class(name, case)
        return
    path = ".".join(map(str, (*places[0].path, name)))
    yield Statement(
        f"This file holds dicts, which have keys and no attributes: {show(name, 80)} "
        f"is one of them, at {show(path, 120)}. Ask for it as {literal_key(name)}, or "
        "build the module and load its weights into it."
    )
    yield from load_statements(case, "The file loads so:")


def _of_no_class(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file gives a dict, where a program took it for an object of a
    class.
    """
    load = case.survey.load.expression or ""
    keys = root_keys(case)
    if not load.startswith("torch.load(") or not keys or hasattr(dict, name):
        return
    weights = (
        "the weights by their names"
        if all(not section.path for section in case.survey.candidates)
        and case.survey.candidates
        else f"of {keys_text(case)}"
    )
    yield Statement(
        f"torch.load of this file gives a dict, {weights}, and a dict has no "
        f"{show(name, 80)}: the program takes it for an object of a class, which it "
        "must build first."
    )
    yield from load_statements(case)


def _of_nothing(name: str, case: Case) -> Iterator[Statement]:
    """Answer None that was asked for an attribute, where the file holds None and has
    that setting elsewhere.
    """
    empty = [
        value.name
        for value in case.survey.checkpoint.values
        if len(value.path) == 1 and value.type == "None" and value.same_as is None
    ]
    places = [
        value.name
        for value in case.survey.checkpoint.values
        if len(value.path) > 1 and str(value.path[-1]) == name and value.type != "None"
    ]
    if not empty or not places:
        return
    origin = name_origin(case.survey) or ""
    shown = and_more([show(word, 60) for word in empty], 3)
    stands = (
        f"{show(name, 60)} stands at "
        f"{and_more([show(place, 80) for place in places], 2)}"
    )
    yield Statement(
        f"{shown} {'is' if len(empty) == 1 else 'are'} None in this file, and "
        f"{stands}. A program that reads it from what is None has another form of the "
        "file in mind."
    )
    if "args" in empty and "fairseq" in origin:
        yield Statement(
            f"{origin_opening(origin)} {origin}. Newer versions of fairseq write their "
            "settings under cfg and leave args None, and an older one reads args "
            "alone: install the version that wrote it or a newer one, or build the "
            "model yourself and load the weights alone."
        )
    yield from load_statements(case)


def literal_key(name: str) -> str:
    """A key as a subscript of Python."""
    return f'["{name}"]'


def _of_optimizer(name: str, case: Case) -> Iterator[Statement]:
    """Say what the optimizer of the file is, where another one asks for its keys."""
    for section in case.optimizers:
        held = optimizer_facts(section)
        label = show(section.name, 80) or "The optimizer"
        if held is None:
            continue
        family = (
            f" is {held.family}"
            if held.family
            else " has state of an unknown kind"
            if held.with_state
            else " has no state"
        )
        fields = _optimizer_fields(section)
        if name in fields:
            yield Statement(
                f"{label}{family}, and has {show(name, 60)}: another file was loaded."
            )
            continue
        yield Statement(
            f"{label}{family}: its groups and states have "
            f"{and_more(sorted(fields), 12)}, and no {show(name, 60)}. The new run "
            "built another kind of optimizer, or another version of it. Build the same "
            "one, or begin its state anew."
        )


_BEFORE_PLACES: tuple[_Step, ...] = (
    _of_asked_scheduler,
    _of_asked_optimizer,
    _of_own_file,
    _of_equal_tensor,
    _of_scales,
    _of_present_key,
    _then_load(_not_averaged),
)
"""The steps before the places of a name are looked for. The first that answers ends."""
_WITHOUT_PLACES: tuple[_Step, ...] = (
    of_cut_name,
    _then_load(of_graph_layer),
    of_older_names,
    _of_recorded_word,
    _then_load(_with_numbers),
    _then_load(_file_with),
    _then_load(_of_tied_tensor),
    _then_load(of_message_hub),
    _of_plain_weight,
    _then_load(_of_part_of_diffusion),
    _of_beginning,
)
"""The steps after these for a name that has no place."""


def _optimizer_fields(section: Section) -> set[str]:
    """The keys of the first group and of the first states of an optimizer."""
    parts = dict(children_of(section.node))
    fields: set[str] = set()
    for part in ("param_groups", "state"):
        # Groups are alike, and so are states: two of each show the keys.
        for _, child in children_of(parts.get(part))[:2]:
            fields.update(str(key) for key, _ in children_of(child))
    # Every optimizer has params, so it tells nothing about the kind.
    return fields - {"params"}


_NO_STATES_TEXT = (
    r"(?i:\bno|without|could not find|unable to find|not find) (?:an? |any "
    r"|the )?optimizer(?:'s)? states?\b"
)
_NO_STATES = re.compile(_NO_STATES_TEXT)


def _no_states(case: Case) -> Iterator[Statement]:
    """Answer a program that finds no state of an optimizer."""
    yield from _where_optimizers_are(case)
    yield Statement(f"The keys of this file are {keys_text(case)}.")
    yield from load_statements(case)


def _no_optimizer(case: Case) -> Iterator[Statement]:
    if case.optimizers:
        names = and_more([show(section.name, 60) for section in case.optimizers], 3)
        yield Statement(
            f"This file holds an optimizer, in {names}. Is it the file that was loaded?"
        )
    else:
        yield Statement(
            f"This file holds no optimizer. Its keys are {keys_text(case)}."
            # A state dict has a key for each tensor, and its list would say nothing.
            if len(root_keys(case)) < _MANY
            else "This file holds weights alone, and no optimizer."
        )
        yield Statement("A run cannot be resumed from it, but its weights load.")
    yield from load_statements(case)


_MANY = 16


def _dict_like(message: Message, case: Case) -> Iterator[Statement]:
    """Answer load_state_dict, which got a module, or nothing at all."""
    # Read `Expected state_dict to be dict-like, got <class 'NoneType'>.`
    if "NoneType" in message.text:
        yield Statement(
            "load_state_dict got None: the program had read no file. Its own reader "
            "gives None where the file is refused or not there, and says why above "
            "this error. This file is there."
        )
        yield from case.damage or finding_statements(case.at_least("warning"))
        yield from load_statements(case)
        return
    if not case.has_module and not root_keys(case):
        yield Statement(
            "This file holds weights by their names, which is a dict: another file was "
            "loaded."
        )
        yield from load_statements(case)
        return
    if not case.has_module:
        yield Statement(
            f"This file holds a dict of {keys_text(case)}: another file was loaded."
        )
        yield from load_statements(case)
        return
    yield Statement(
        "This file holds a whole pickled module, and load_state_dict takes a state "
        "dict: pass module.state_dict()."
    )
    way = case.plan(("weights",))
    if way.command is not None:
        yield Statement(
            "Or take the weights out of it, without its class:", (), way.command
        )


_ARGUMENTS = ("hyper_parameters", "hparams", "module_arguments")
"""The keys under which versions of Lightning keep the arguments of a model."""
_QUOTED = re.compile(r"'(\w{1,100})'")


def _answer_arguments(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a class that Lightning could not build, for the checkpoint lacks its
    arguments.
    """
    asked = _asked_arguments(message.text)
    passed = ", ".join(f"{name}=…" for name in asked[:_LISTED]) or "name=…"
    call = f"load_from_checkpoint(path, {passed})"
    place = next((key for key in _ARGUMENTS if key in root_keys(case)), None)
    if place is None:
        yield Statement(
            "This file holds no hyper_parameters: self.save_hyperparameters() was not "
            f"called when it was saved. Pass the arguments by name: {call}."
        )
        yield from load_statements(case, "The weights alone, for a model of yours:")
        return
    values = [
        value
        for value in case.survey.checkpoint.values
        if len(value.path) > 1 and str(value.path[0]) == place
    ]
    names = list(dict.fromkeys(str(value.path[1]) for value in values))
    yield Statement(
        f"The file records {counted_noun(len(names), 'argument')} under "
        f"{place}: {and_more([show(name, 60) for name in names], 12)}."
        f"{_spread_text(asked, names, place, case)}"
        f" Pass the others by name: {call}."
    )


def _asked_arguments(text: str) -> list[str]:
    """The arguments that an error of Python or of Lightning quotes as missing."""
    # An apostrophe may stand before the word: `IntrospectorModule's __init__ is missing
    # the argument 'hparams'`.
    _, found, end = text.partition(" missing ")
    return _QUOTED.findall(end) if found else []


def _spread_text(asked: list[str], names: list[str], place: str, case: Case) -> str:
    """A sentence on the one argument that lacks, where the file has its entries in its
    place, or an empty text.
    """
    if len(asked) != 1 or asked[0] in names or not names:
        return ""
    wanted = asked[0]
    # Lightning records the name of the argument whose entries it kept as hparams_name.
    whole = [node for name, node in case.finds_value(("hparams_name",))]
    if wanted not in ("hparams", *whole):
        return f" {wanted} is not among them."
    return (
        f" {wanted} is not among them, for they are its entries: Lightning keeps an "
        "argument that is a dict or a Namespace as what it holds. Hand it over whole: "
        f'{wanted}=torch.load(path)["{place}"].'
    )


_LISTED = 6
"""Arguments of a call that are written out."""


def _answer_finished_run(message: Message, case: Case) -> Iterator[Statement]:
    """Answer ultralytics, which finds nothing to resume, or no settings to
    resume with.
    """
    epochs = [node for name, node in case.finds_value(("epoch",)) if name == "epoch"]
    planned = [
        node
        for name, node in case.finds_value(("epochs",))
        if name == "train_args.epochs"
    ]
    has_none = "optimizer" in root_keys(case) and not case.optimizers
    anew = (
        "Begin a new training from its weights, with as many epochs as are to be added "
        "(yolo train model=… epochs=…, or train.py --weights …)."
    )
    if epochs == [-1]:
        more = " and optimizer is None" if has_none else ""
        yield Statement(
            f"This file is of a finished run: epoch is -1{more}, for ultralytics takes "
            f"them out at the end. {anew}"
        )
    # Read `'epochs=-1' is an invalid value`: a resumed run has that value from its
    # file.
    elif planned and isinstance(planned[0], (int, float)) and planned[0] < 1:
        yield Statement(
            f"In this file train_args.epochs is {planned[0]}, and a resumed run takes "
            f"the number of its epochs from there: no option changes it. {anew}"
        )
    elif (
        "train_args" not in root_keys(case) and "nothing to resume" not in message.text
    ):
        yield Statement(
            "This file has no train_args, from which a resumed run of ultralytics "
            f"takes its settings: its keys are {keys_text(case)}. {anew}"
        )
    elif epochs and "not found" in message.text:
        yield Statement(
            f"This file has train_args, and epoch is {epochs[0]}: it is not what "
            "lacks. ultralytics found no file at the path, or could not load it, and "
            "says so with the same words. The line that loads it shows the cause:"
        )
        yield from load_statements(case)
    elif epochs:
        of = f" of {planned[0]}" if planned else ""
        held = "an" if case.optimizers else "no"
        yield Statement(
            f"In this file epoch is {epochs[0]}{of}, and it holds {held} optimizer: "
            "the run reached the epochs that were asked for, or another file was "
            "loaded."
        )


FAMILIES = (
    Family(
        "finished",
        (
            # Read `last.pt training to 100 epochs is finished, nothing to resume`.
            r"epochs? is finished, nothing to resume",
            r"'epochs=-?\d{1,9}' is an invalid value",
            (
                r"Resume checkpoint not found\. Please pass a valid checkpoint to "
                r"resume from"
            ),
        ),
        answer_from_statements(_answer_finished_run),
        needs_open=True,
    ),
    Family(
        "attribute",
        (
            r"'(?:collections\.)?(?:Ordered[Dd]ict|dict)' object has no attribute '(?:"
            + "|".join(_OF_MODULES)
            + r")'",
            _FORWARD.pattern,
        ),
        answer_from_statements(_answer_attribute),
    ),
    Family(
        "older-module",
        (
            (
                # Objects of these classes lack attributes in any program, and no
                # pickled module is the cause.
                r"'(?!NoneType|Namespace|Tensor|DataFrame|Series|Response"
                r"|Dataset)[A-Z]\w{1,100}' object has no attribute '\w{1,200}'"
            ),
        ),
        answer_from_statements(_answer_attribute),
        is_weak=True,
    ),
    Family(
        "key",
        (
            # Any program raises a KeyError: only the keys of checkpoints and names of
            # tensors count.
            r"KeyError: ['\"](?:"
            + "|".join(
                map(
                    re.escape,
                    (
                        *_MODEL_KEYS,
                        "epoch",
                        "optimizer",
                        "optimizer_state_dict",
                        "state",
                        "param_groups",
                        "pytorch-lightning_version",
                        "hyper_parameters",
                        "global_step",
                        "callbacks",
                        "loops",
                        "scheduler",
                        "lr_scheduler",
                        "scaler",
                        "amp",
                        "meta",
                        "args",
                        "cfg",
                        "config",
                        "best_acc",
                        "best_acc1",
                        "iteration",
                        "ds_version",
                        *_OF_OPTIMIZERS,
                        *_ASKED,
                    ),
                )
            )
            + r")['\"]",
            (
                # Read the name of a tensor, as `layers.0.mlp.gate_up_proj.weight`.
                r"KeyError: ['\"][\w.-]{1,1000}\.(?:weight|bias|running_mean|weight_g"
                r"|qweight|lora_A\.weight|weight_scale(?:_inv)?|weight_packed"
                r"|weight_zero_point|input_scale|scales|qzeros|g_idx)['\"]"
            ),
            # Read what programs call their optimizers: `KeyError: 'g_optim'`.
            r"KeyError: ['\"]\w{0,100}_?optim(?:izers?)?(?:_\w{0,100})?['\"]",
            r"param 'initial_lr' is not specified in param_groups",
            _NO_STATES_TEXT,
            (
                r"Trying to restore (?:optimizer|learning rate scheduler|training) "
                r"state but checkpoint contains only the model"
            ),
        ),
        _answer_key,
        _take_frames,
    ),
    Family(
        "not-a-state-dict",
        (r"Expected state_dict to be dict-like, got",),
        answer_from_statements(_dict_like),
    ),
    Family(
        "arguments",
        (
            (
                # Read Python's `Net.__init__() missing 1 required positional argument:
                # 'hidden'`. Any class may cause it, so the family is weak.
                r"__init__\(\) missing \d{1,3} required (?:positional"
                r"|keyword-only) arguments?:"
            ),
            r"Checkpoint does not contain hyperparameters",
        ),
        answer_from_statements(_answer_arguments),
        is_weak=True,
    ),
)

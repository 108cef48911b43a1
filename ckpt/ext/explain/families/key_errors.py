"""Errors of programs that ask a dict of a checkpoint for a key that it lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ckpt.ext.explain.case import (
    Answer,
    Case,
    Statement,
    finding_statements,
    keys_text,
    load_statements,
    looked_at,
    root_keys,
)
from ckpt.ext.explain.families.asked_names import (
    MODEL_KEYS,
    of_empty_optimizer,
    of_keys,
    of_known_names,
    of_newer_names,
    of_own_file,
    of_present_key,
    of_recoverables,
    of_taken_part,
    of_tensor_dict,
    of_unsaved_buffer,
    of_zero,
)
from ckpt.ext.explain.families.asked_optimizers import (
    ASKED,
    NO_STATES,
    NO_STATES_TEXT,
    OF_OPTIMIZERS,
    first_rates,
    no_optimizer,
    no_states,
    of_asked_optimizer,
    of_asked_scheduler,
)
from ckpt.ext.explain.families.asked_tensors import (
    file_with,
    not_averaged,
    of_adapted_layer,
    of_beginning,
    of_equal_tensor,
    of_part_of_diffusion,
    of_plain_weight,
    of_recorded_word,
    of_scales,
    of_tied_tensor,
    places_of,
    with_numbers,
    without_prefix,
)
from ckpt.ext.explain.families.frames import (
    asked_of_part,
    empty_part,
    is_of_optimizer,
    is_option,
    of_own_object,
    option_statements,
    owner_of,
    table_of,
    taken_keys,
)
from ckpt.ext.explain.families.given import of_message_hub
from ckpt.ext.explain.families.graphs import of_graph_layer
from ckpt.ext.explain.families.joined import of_joined_layer, of_layer_without_part
from ckpt.ext.explain.families.launchers import UNSET
from ckpt.ext.explain.families.libraries import of_gguf_name
from ckpt.ext.explain.families.loras import of_cut_name, of_older_names
from ckpt.ext.explain.families.parts import of_part_under_key
from ckpt.ext.explain.families.tables import of_table
from ckpt.ext.explain.families.unsharded import of_unsharded_part
from ckpt.ext.explain.family import Family
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, be_verb, counted_noun, show

# Python quotes a key with either mark, and a program that quotes it itself adds a
# second one: `KeyError: "'step'"`.
_KEY = re.compile(
    r"KeyError: (?:['\"]key \\?['\"]{1,2}([^'\"\\\n]{1,2000})\\?['\"]{1,2} not found"
    r"|['\"]{1,2}([^'\"\n]{1,2000})['\"]{1,2})"
)
"""The name of a KeyError. A TensorDict puts a sentence around it, with marks of its
own: `KeyError: 'key "a" not found in TensorDict with keys [...]'`.
"""


def _answer_key(message: Message, case: Case) -> Answer:
    """Answer a key that the checkpoint does not have, or that its optimizer
    does not.
    """
    # The text of this KeyError is a sentence of torch: `param 'initial_lr' is not
    # specified in param_groups[0] when resuming an optimizer`.
    if "initial_lr" in message.text and "is not specified" in message.text:
        rows = list(first_rates(case))
        return Answer(case.survey.path, tuple(rows)) if rows else looked_at(case)
    found = _KEY.search(message.text)
    # Words without a KeyError name no key: only the state of an optimizer is known to
    # lack.
    if found is None and NO_STATES.search(message.text):
        return Answer(case.survey.path, tuple(no_states(case)))
    if found is None:
        return looked_at(case)
    name = asked_name(found[1] or found[2])
    # Lightning puts a sentence into its KeyError: `Trying to restore optimizer state
    # but checkpoint contains only the model.`
    if "contains only the model" in message.text:
        return Answer(case.survey.path, tuple(no_optimizer(case)))
    rows = list(empty_part(message.names, case)) or list(of_empty_optimizer(name, case))
    rows = rows or list(
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
    key = None if found is None else found[1] or found[2]
    owner = None if key is None else owner_of(key, text[:start])
    if key is not None and owner is None:
        owner = table_of(text[:start])
    return message._replace(
        names=taken_keys(text, start),
        owner=None if owner is None or is_of_optimizer(owner) else owner,
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
    # timm says `Failed to find state_dict_ema, starting from loaded model weights`.
    r"|Failed to find (\w{3,80}), starting from loaded"
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
    before = found.string[: found.start()]
    owner = owner_of(name, before) or table_of(before)
    lacking = [] if owner is None else list(of_table(name, owner, case))
    if lacking:
        yield from lacking
        return
    empty = list(empty_part(taken_keys(found.string, found.start()), case))
    if empty:
        yield from empty
        yield from load_statements(case)
        return
    own = of_own_object(name, found.string, found.start(), case)
    if own is not None:
        yield own
        yield from load_statements(case)
        return
    inside = asked_of_part(name, found.string, found.start(), case)
    if inside is not None:
        yield inside
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
            f"{shown} {be_verb(lacking)} no key of this file, "
            f"whose keys are {keys_text(case)}."
        )
    yield from load_statements(case)


def _of_other_owner(name: str, owner: str, case: Case) -> Iterator[Statement]:
    """Say why a program does not find a name in a variable that is no state of an
    optimizer.
    """
    lacking = list(of_table(name, owner, case))
    if lacking:
        yield from lacking
        return
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
    if name in OF_OPTIMIZERS and name not in root_keys(case):
        yield from of_keys(name, case, has_places=False)
        yield from load_statements(case)
        return
    yield from _of_root(name, case)


def _of_root(name: str, case: Case) -> Iterator[Statement]:
    """Say why a program does not find a name at the root of the file."""
    yield from finding_statements(case.found("adapter-names"))
    if case.survey.checkpoint.layout == _SPEECHBRAIN:
        yield from of_recoverables(name, case)
        return
    # Ask first what the file says of this very name, then where else it stands, and
    # last what is known of names like it.
    rows = _first_that_answers(_BEFORE_PLACES, name, case)
    if rows:
        yield from rows
        return
    layer = of_adapted_layer(name, case)
    if layer is not None:
        yield layer
        return
    newer = of_newer_names(case)
    if newer is not None:
        yield newer
        return
    places = places_of(name, case)
    unsaved = of_unsaved_buffer(name)
    if unsaved is not None:
        yield unsaved
    if places:
        shown = and_more([show(place, 120) for place in places], 4)
        yield Statement(f"This file has {show(name, 80)} at another place: {shown}.")
        # A prefix before all names explains the other place by itself.
        renaming = without_prefix(places, name, case)
        if renaming is not None:
            yield renaming
            return
    # These two speak also where a place was found: param_groups lies below
    # base_optimizer_state, or in a part that the program did not take.
    rows = list(of_zero(name, case)) or list(of_taken_part(name, case))
    if not rows and not places:
        rows = _first_that_answers(_WITHOUT_PLACES, name, case)
    if rows:
        yield from rows
        return
    yield from of_known_names(name, case, has_places=bool(places))


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


def _then_load(statement: Callable[[str, Case], Statement | None]) -> _Step:
    """A step that says a statement, with the line that loads the file after it."""

    def answer_and_load(name: str, case: Case) -> Iterator[Statement]:
        row = statement(name, case)
        if row is not None:
            yield row
            yield from load_statements(case)

    return answer_and_load


_SPEECHBRAIN = "SpeechBrain checkpoint"


_BEFORE_PLACES: tuple[_Step, ...] = (
    of_asked_scheduler,
    of_asked_optimizer,
    of_own_file,
    of_equal_tensor,
    of_scales,
    of_unsharded_part,
    of_present_key,
    _then_load(not_averaged),
)
"""The steps before the places of a name are looked for. The first that answers ends."""
_WITHOUT_PLACES: tuple[_Step, ...] = (
    of_tensor_dict,
    of_cut_name,
    _then_load(of_graph_layer),
    of_older_names,
    of_recorded_word,
    _then_load(of_part_under_key),
    _then_load(with_numbers),
    _then_load(file_with),
    _then_load(of_tied_tensor),
    _then_load(of_message_hub),
    of_plain_weight,
    _then_load(of_part_of_diffusion),
    of_beginning,
    of_joined_layer,
    of_layer_without_part,
)
"""The steps after these for a name that has no place."""


FAMILIES = (
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
                        *MODEL_KEYS,
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
                        *OF_OPTIMIZERS,
                        *ASKED,
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
            NO_STATES_TEXT,
            (
                r"Trying to restore (?:optimizer|learning rate scheduler|training) "
                r"state but checkpoint contains only the model"
            ),
        ),
        _answer_key,
        _take_frames,
    ),
)

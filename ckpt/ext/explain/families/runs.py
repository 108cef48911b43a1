"""Questions about a run that began anew although it had a checkpoint, and about
averages that are worse than the weights.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

from ckpt.evidence.gradients import GradientUse
from ckpt.evidence.matching import Match
from ckpt.evidence.optimizers import parts_of
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import (
    BUFFERS_OF_NORMS,
    STATISTICS,
    Case,
    Statement,
    command_statements,
    counted_parameters,
    finding_statements,
)
from ckpt.ext.explain.origins import name_origin
from ckpt.model.text import and_more, counted_noun, pasted_path, show
from ckpt.tree.find import children_of, counter
from ckpt.tree.view import look

# --- counters -------------------------------------------------------------------------

_ZERO = (
    r"(?:\b0(?:th)?\b(?!\.\d)|\bzero\b|\b1st\b|\bfirst\b|\bscratch\b|\bthe (?:very )?"
    r"(?:start|beginning)\b|\b(?:epoch|iter|iteration|step)\b[ =:]{0,2}[01]\b)"
)
_BEGAN_ANEW = re.compile(
    r"(?i)\b(?:re-?)?(?:start|beg[aiu]n|resum|reset|train)\w{0,5}\b[^\n.]{0,60}?"
    rf"\b(?:from|at|to|with)\b[^\n.]{{0,25}}?{_ZERO}"
    r"|\b(?:epochs?|iter(?:ation)?s?|steps?|counters?|progress|training)\b"
    # Read `interrupt training and restart it` as no complaint.
    r"(?:(?!\band\b)[^\n.]){0,40}"
    r"\b(?:reset\w{0,4}|re-?initiali[sz]\w{1,3}|restart\w{0,3}"
    r"|start\w{0,3} (?:over|again|anew))\b"
    # Read `training restarts at a much higher loss` as another complaint.
    r"(?! (?:at|with) (?:an? )?(?:\w+ ){0,2}(?:high|low|large|loss|big)\w*)"
    r"|\bas if\b[^\n.]{0,40}\b(?:first time|never (?:been )?trained|untrained)\b"
    r"|\b(?:not|n'?t|forg[eo]t\w{0,4}) (?:know|remember)?[^\n.]{0,20}"
    r"\b(?:previous|earlier|last) (?:training|run)\b"
)
_GOES_ON = re.compile(
    r"(?i)\b(?:resum\w{1,4}|re-?start\w{0,3}|re-?load\w{0,3}|load(?:s|ed|ing)?"
    r"|checkpoints?|continu\w{1,4})\b"
)
_RATE = re.compile(r"(?i)\blearning[ _-]?rates?\b|\blrs?\b")
_AVOIDED = re.compile(
    r"(?i)\b(?:not want(?:ing)? to|don'?t want to|want to avoid|without (?:having to )?"
    r"|instead of|rather than|avoid)\s*(?:re-?)?$"
)
_BEFORE = 40
"""Characters before the words of a new start in which its subject stands."""
_COUNTERS = (
    "epoch",
    "current_epoch",
    "current_step",
    "last_epoch",
    "iter",
    "iteration",
    "global_step",
    "step",
    "steps",
    "num_updates",
    "updates",
    "start_epoch",
)
_DEEPEST = 2
"""Keys to a counter of a run: `epoch`, `meta.epoch`."""
_SETTINGS = frozenset(
    ("args", "opt", "options", "config", "cfg", "hparams", "hyper_parameters", "params")
)
"""The keys below which programs keep their settings: `args.iter`."""
_OTHER_PART = re.compile(r"(?i)optim|sched|scaler|ema|^lr_")


def asks_of_new_start(text: str) -> bool:
    """Tell whether a text says that a run began anew although it had a checkpoint."""
    found = _BEGAN_ANEW.search(text)
    if found is None or _GOES_ON.search(text) is None:
        return False
    before = max(0, found.start() - _BEFORE)
    # Read `I do not want to retrain it from the start` as no complaint.
    if _AVOIDED.search(text, before, found.start()) is not None:
        return False
    # A learning rate that begins anew has its own answer.
    return _RATE.search(text, before, found.end()) is None


def of_new_starts(text: str, case: Case) -> Iterator[Statement]:
    """Say which epoch or step a file records, where a question is about a run that
    began anew.
    """
    if not asks_of_new_start(text):
        return
    counters = recorded_counters(case)
    done = [count for _, count in counted_schedules(case)]
    if not counters and done:
        yield Statement(
            "No file here records the epoch or the step of the program, and its "
            f"schedule counted {max(done):,} (last_epoch). So a program that takes "
            "this state goes on with its weights, its optimizer and its learning rate, "
            "and counts its own epochs from 0 again: nothing is lost. "
            "Ask it for the epochs that are left alone, or give it the epoch by "
            "its own option (kohya: --initial_epoch or --skip_until_initial_step)."
        )
        return
    steps = max((_steps_of(section) for section in case.optimizers), default=0)
    if not counters and steps:
        yield Statement(
            "This file records no epoch or step of the program, but its optimizer has "
            f"made {counted_noun(steps, 'step')}. So it holds the state of a run, and "
            "a program that takes it goes on with these weights and moments. The "
            "counter comes from elsewhere: the name of the file, which must be kept "
            "then, or an option of the program. Where the samples begin anew too, the "
            "program took no weights of it, as with a prefix and strict=False, or with "
            "another path."
        )
        return
    if not counters:
        yield Statement(
            "This file records no epoch, iteration or step, so a program that goes on "
            "from it begins at 0: it holds the weights of a run, and not where the run "
            "stood. Take a checkpoint that the training itself saved to go on from, or "
            "give the program the epoch by its own option."
        )
        return
    shown = and_more([f"{show(name, 60)} is {number}" for name, number in counters], 4)
    yield Statement(
        f"This file records where its run stood: {shown}. A program that begins at 0 "
        "all the same did not read it: it took the file as weights to begin a new "
        "training with (options such as pretrained, weights, load_from, finetune), and "
        "not as the run to go on with (resume), or its own code sets the counter anew "
        "after the load."
        f"{_of_parts(case)}{_of_program(case)}"
    )


def of_place(case: Case) -> Iterator[Statement]:
    """Say which epoch a file records, at which the log of a run that goes on has to
    begin.
    """
    counters = recorded_counters(case)
    if not counters:
        return
    shown = and_more([f"{show(name, 60)} {number:,}" for name, number in counters], 3)
    yield Statement(
        f"This file records {shown}. A run that goes on from it says so in its first "
        "lines, and counts on from there. Where its log begins at 0, the program took "
        "the file as weights for a new training, or found no file at the path."
    )


BEGINS_AT = (
    r"\b(?:start|beg[aiu]n|resum|continu)\w{0,5}\b[^\n.?]{0,30}\b(?:epoch|step"
    r"|iteration)s?\b[ :=#]{0,3}"
)
"""The words before the number at which a run begins."""
_LATER = re.compile(rf"(?i){BEGINS_AT}(\d{{1,9}})\b")


def of_later_starts(text: str, case: Case) -> Iterator[Statement]:
    """Say that a run which begins at a late epoch goes on from the one that the file
    records.
    """
    counters = recorded_counters(case)
    for found in _LATER.finditer(text):
        number = int(found[1])
        near = [(name, count) for name, count in counters if 0 <= number - count <= 1]
        if number < 2 or not near:
            continue
        name, count = near[0]
        yield Statement(
            f"{show(name, 60)} of this file is {count:,}: the program took the file as "
            "a run to go on with, and goes on from there, with the optimizer and the "
            "schedule if it has them. To begin anew at 0 with these weights, give the "
            "file as weights (pretrained, load_from, finetune; in Lightning load its "
            "state_dict, and give fit no ckpt_path)."
        )
        yield from command_statements(
            "The weights without the state of the run:", case.plan(("slim",))
        )
        return


_WHICH_COUNT = re.compile(
    r"(?i)\b(?:which|what|how many|at what) (?:training )?"
    r"(?:epochs?|steps?|iter(?:ation)?s?)\b|\bhow (?:long|far) (?:was|is|has|did)\b"
    r"|\bhow (?:to|do i|can i|should i|do you)\b[^\n.?]{0,40}"
    r"\b(?:resume|continue|go on)\b"
)
"""Words that ask how far a run was, or how to go on with it."""


def asks_of_count(text: str) -> bool:
    """Tell whether a text asks which epoch or step a file is of."""
    return _WHICH_COUNT.search(text) is not None


def of_counts(text: str, case: Case) -> Iterator[Statement]:
    """Say which epoch or step a file records, where a question asks for it, and how a
    run goes on from it.
    """
    if asks_of_count(text):
        yield from counts_statements(case)


def counts_statements(case: Case) -> Iterator[Statement]:
    """Say which epoch or step a file records, and how a run goes on from it."""
    counters = recorded_counters(case)
    steps = sorted({use.steps for use in case.survey.uses if use.steps})
    told = [f"{show(name, 60)} is {number:,}" for name, number in counters]
    # transformers counts parts of an epoch.
    told += [
        f"{show(name, 60)} is {node:g}"
        for name, node in case.finds_value(("epoch",))
        if isinstance(node, float) and name.count(".") < _DEEPEST and 0 < node < 1e15
    ]
    told += [
        f"{show(place, 60)}.last_epoch is {count:,} (a schedule counts its own calls)"
        for place, count in counted_schedules(case)
    ]
    if steps:
        told.append(f"the optimizer took {counted_noun(int(steps[-1]), 'step')}")
    alike = _named_like_counters(case)
    if not told and alike:
        yield Statement(
            "No counter of a run by a usual name is in this file. These values have "
            f"the word in theirs: {and_more(alike, 4)}. Those of settings say what "
            "the run was asked for, and not how far it came."
        )
        return
    batches = 0 if told else _counted_batches(case)
    if batches:
        yield Statement(
            "This file records no epoch, iteration or step, and holds no optimizer "
            f"that counted. Its batch norms counted {batches:,} batches in training "
            "(num_batches_tracked): that is the number of steps, where each step put "
            "one batch through them and the count began at 0. Weights that were "
            "fine-tuned bring the count of what they began with. Times the batch of "
            "one process, and divided by the samples that it gets in an epoch, it "
            "gives the epochs."
        )
        return
    if not told:
        yield Statement(
            "This file records no epoch, iteration or step, and holds no optimizer "
            f"that counted: only its name or the log of its run can say."
            f"{_name_text(case)}"
        )
        return
    yield Statement(
        f"This file records where its run stood: {and_more(told, 6)}."
        f"{_of_parts(case)}{_of_program(case)}"
    )


_IN_NAME = re.compile(r"(?<![A-Za-z\d.])\d{1,12}(?![A-Za-z\d]|\.\d)")


def _name_text(case: Case) -> str:
    """The sentence on the numbers in the name of a file, or an empty text."""
    name = os.path.basename(case.survey.path.rstrip("/"))
    found = [f"{int(number):,}" for number in _IN_NAME.findall(name)]
    if not found:
        return ""
    return (
        f" Its name has {and_more(found, 4)}, as the program that saved counted: one "
        "that goes on and shows another number has counted it anew, from the steps "
        "and the batches of its own run."
    )


_MOST_NORMS = 8


def _counted_batches(case: Case) -> int:
    """The largest number of batches that the first batch norms counted, or 0."""
    held = [
        entry.tensor
        for entry in case.survey.tensors
        if entry.name.endswith("num_batches_tracked")
    ]
    counts = [counter(tensor) or 0 for tensor in held[:_MOST_NORMS]]
    return int(max(counts, default=0))


_LIKE_COUNTERS = re.compile(r"(?i)(?:^|_)(?:epochs?|steps?|iters?|iterations?)(?:_|$)")


def _named_like_counters(case: Case) -> list[str]:
    """The numbers of a file with the word of a counter among others in their names, as
    `meta.epochs_trained`.
    """
    return [
        f"{show(value.name, 80)} = {int(value.node):,}"
        for value in case.survey.checkpoint.values
        if value.path
        and _LIKE_COUNTERS.search(str(value.path[-1]))
        and type(value.node) is int
        and abs(value.node) < 2**53
        and not any(_OTHER_PART.search(str(key)) for key in value.path[:-1])
    ]


def counted_schedules(case: Case) -> list[tuple[str, int]]:
    """The states of schedules that were stepped, with what each counted."""
    return [
        (name.rpartition(".")[0], node)
        for name, node in case.finds_value(("last_epoch",))
        if type(node) is int
        and node > 0
        and any(
            name.startswith(f"{section.name}.")
            for section in case.survey.sections
            if section.kind == "scheduler" and section.name
        )
    ]


def recorded_counters(case: Case) -> list[tuple[str, int]]:
    """The counters of a run that stand near the root, with their places."""
    return [
        (value.name, int(value.node))
        for value in case.survey.checkpoint.values
        if 0 < len(value.path) <= _DEEPEST
        and str(value.path[-1]) in _COUNTERS
        # True and False are ints for isinstance.
        and type(value.node) is int
        # Python refuses to write out an int of more than 4,300 digits.
        and abs(value.node) < 2**53
        # The settings of a run hold what it was asked for, and not what it did.
        and str(value.path[0]) not in _SETTINGS
        # An optimizer, a scheduler and averages count for themselves.
        and not any(_OTHER_PART.search(str(key)) for key in value.path[:-1])
    ]


def _of_parts(case: Case) -> str:
    """A sentence on the optimizer, which a run that goes on needs as well."""
    if case.optimizers:
        return " It has the optimizer too, so a run can go on from it."
    return (
        " It has no optimizer: a run that goes on from it begins the state of its "
        "optimizer anew."
    )


def _of_program(case: Case) -> str:
    """A sentence on the way in which the program of a file finds its last save."""
    origin = name_origin(case.survey) or ""
    if "Lightning" in origin:
        return (
            " In Lightning load_from_checkpoint and load_state_dict take the weights "
            "alone; trainer.fit(model, ckpt_path=…) goes on with the run."
        )
    if "train_state.json" in case.survey.checkpoint.parts:
        path = pasted_path(case.survey.path) or "FOLDER"
        return (
            f" kohya's sd-scripts go on from this folder with --resume {path}, and "
            "read the step in train_state.json. --initial_step or --initial_epoch "
            "would replace it."
        )
    if "detectron2" not in origin:
        return ""
    return (
        " detectron2 goes on only from the file that last_checkpoint names, a text "
        "file in OUTPUT_DIR: without it, --resume loads MODEL.WEIGHTS as weights "
        "alone."
    )


# --- averages -------------------------------------------------------------------------

_AVERAGES = r"\b(?:\w{0,40}_)?ema(?:_\w{0,40})?\b|\bmoving averages?\b"
_WORSE = (
    r"\b(?:worse|low(?:er)?|bad|poor|random|nan|zero|drop\w{0,5}|differ\w{0,8}"
    r"|(?:not|n't)[^\n]{0,30} work\w{0,4}|wrong|garbage|noise|no better)\b"
)
_WORSE_AVERAGES = re.compile(
    rf"(?i)(?:{_AVERAGES})[^\n]{{0,200}}?(?:{_WORSE})"
    rf"|(?:{_WORSE})[^\n]{{0,200}}?(?:{_AVERAGES})"
)


def of_worse_averages(text: str, case: Case) -> Iterator[Statement]:
    """Say when averages are worse than the weights beside them."""
    averages = [row for row in case.survey.sections if row.kind == "ema" and row.name]
    models = [row for row in case.survey.models if row.kind == "model"]
    if len(averages) != 1 or len(models) != 1 or not _WORSE_AVERAGES.search(text):
        return
    ours, theirs = models[0], averages[0]
    steps = max((_steps_of(section) for section in case.optimizers), default=0)
    made = f" (the optimizer of this file has made {steps:,})" if steps else ""
    label = show(ours.name, 60) or "the weights"
    yield Statement(
        f"{show(theirs.name, 60)} holds running averages of {label}. With a decay of "
        "0.999 they follow the weights of about 1,000 steps, with 0.9999 of 10,000. "
        f"Before a run has made several times as many{made} they still hold much of "
        f"the untrained start, and are worse: take {label} then, train longer, or "
        "lower the decay."
    )
    lacking = [
        name
        for name in ours.names()
        if name.endswith(STATISTICS) and name not in set(theirs.names())
    ]
    if lacking:
        yield Statement(
            "The averages have no running statistics of the norms "
            f"({show(lacking[0], 80)}), so a model that loads them alone keeps those "
            "of its start, and its results are wrong. Load the weights first, and the "
            "averages after them:",
            tuple(lacking),
        )


# --- scalers --------------------------------------------------------------------------

NO_SCALE = re.compile(
    r"Attempted \w{1,40} but _scale is None|_growth_tracker initialized before _scale"
)
"""The words of GradScaler where nothing was scaled yet."""
_OF_FP16 = re.compile(
    r"(?i)\b(?:fp16|float16|half precision|amp|grad_?scaler|scaler)\b"
)


def has_scaler(case: Case) -> bool:
    """Tell whether a file holds the state of a GradScaler."""
    checkpoint = case.survey.checkpoint
    names = [str(key) for row in checkpoint.containers for key in row.keys]
    names += [str(part) for part in checkpoint.parts]
    return any("scaler" in name.lower() for name in names)


def of_no_scale(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a GradScaler that was asked to unscale before it had scaled anything."""
    del found
    own = (
        "This file has the state of a GradScaler. "
        if has_scaler(case)
        else "This file has no state of a GradScaler. "
    )
    yield Statement(
        f"{own}No file gives a scaler its scale: it makes one at the first "
        "scaler.scale(loss), also after load_state_dict. The program called unscale_ "
        "(to clip gradients) or step before that, as where the first batch after the "
        "resume was skipped (out of memory, no loss). Skip unscale_ and step for such "
        "a batch too."
    )


ASKS_OF_MIXED_PRECISION = (
    r"\bmixed[ -]?precision\b|\bamp\b|\bautocast\b|\bgrad_?scaler\b"
    r"|\bloss scal\w{1,3}\b"
)
"""Words of a question for a training in two precisions."""
_SETTINGS_OF_AMP = (
    "amp",
    "use_amp",
    "fp16",
    "bf16",
    "mixed_precision",
    "precision",
    "use_fp16",
    "half",
    "autocast",
)


def of_mixed_precision(text: str, case: Case) -> Iterator[Statement]:
    """Say what of a file shows whether its run was in mixed precision."""
    del text
    told = [
        f"{show(name, 80)} is {show(str(node), 40)}"
        for name, node in case.finds_value(_SETTINGS_OF_AMP)
    ]
    if told:
        yield Statement(f"This file records: {and_more(told, 6)}.")
    if has_scaler(case):
        scales = [
            f"{show(name, 60)} is {node:g}"
            for name, node in case.finds_value(("scale", "_scale"))
            if "scaler" in name.lower() and isinstance(node, (int, float))
        ]
        own = f" ({and_more(scales, 2)})" if scales else ""
        yield Statement(
            f"It has the state of a GradScaler{own}. A run that scales its loss "
            "computes in float16 by autocast, and keeps its weights in float32. The "
            "state of a scaler that was switched off is empty."
        )
        return
    yield Statement(
        "It has no state of a GradScaler. So the run was not in float16 by autocast, "
        "or did not save its scaler; bfloat16 needs none and leaves no trace, for "
        "autocast keeps the weights in float32."
    )


def of_lacking_scaler(text: str, case: Case) -> Iterator[Statement]:
    """Say that a file has no scaler, where a question is about a run in float16."""
    if not _OF_FP16.search(text) or not case.optimizers or has_scaler(case):
        return
    yield Statement(
        "This checkpoint has no state of a GradScaler (scaler.pt, scaler). A run in "
        "float16 that goes on without it begins with a scale of 65,536, whose first "
        "steps overflow: they are skipped, the scheduler too, so the loss and the "
        "learning rate lag by these steps. Save scaler.state_dict() with the "
        "optimizer, and load it; bfloat16 needs none."
    )


SHADOWS = re.compile(
    r"[Mm]ismatch in number of shadow parameters: expected (\d{1,9}), but found "
    r"(\d{1,9})"
)
"""The words of programs whose averages are of other parameters."""


def of_shadows(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer averages without names, of which a program expects more or fewer."""
    lists = [
        (name, len(children))
        for name, children in _lists_at_root(case)
        if name == "shadow_params"
    ]
    own = f"{lists[0][0]} of this file has {lists[0][1]:,} averages. " if lists else ""
    yield Statement(
        f"{own}Such averages (EMA) are a list without names, one for each parameter "
        "that the run trained, in its order. The program trains "
        f"{int(found[1]):,} parameters now, and the run that saved had "
        f"{int(found[2]):,}: it was built with other layers, another adapter or other "
        "frozen ones, or the save was of another model (a UNet, a text encoder). Its "
        "optimizer does not fit either then. Go on with the settings of that run, or "
        "begin the averages and the optimizer anew from the weights."
    )


def _lists_at_root(case: Case) -> Iterator[tuple[str, tuple[object, ...]]]:
    """The lists at the root of a file, with their names."""
    for key, child in children_of(case.survey.checkpoint.root):
        seen = look(child)
        if seen.kind == "sequence":
            yield str(key), tuple(seen.children)


def _steps_of(section: Section) -> int:
    """The most steps that an optimizer has counted for a parameter."""
    states = children_of(parts_of(section.node).get("state"))
    steps = [counter(dict(children_of(state)).get("step")) for _, state in states]
    return int(max((step for step in steps if step is not None), default=0))


# --- frozen layers --------------------------------------------------------------------

_FROZEN = re.compile(
    r"(?i)\b(?:un)?(?:fr[eo]e?z(?:e|ed|en|ing|es)|freezed)\b|\brequires_grad\b"
)
_OF_LAYERS = re.compile(
    r"(?i)\b(?:layers?|weights?|parameters?|params|backbone|encoder|model|modules?"
    r"|batch ?norms?)\b"
)


ASKS_OF_UNTRAINED = (
    r"\b(?:layers?|weights?|param\w{0,7}|modules?|tensors?)\b[^\n]{0,60}\b(?:gradients?"
    r"|grads?|unused|untrained)\b|\b(?:gradients?|grads?|unused|untrained)\b[^\n]{0,60}"
    r"\b(?:layers?|weights?|param\w{0,7}|modules?|tensors?)\b"
    r"|\b(?:what|which) (?:is|are|was|were) (?:unused|untrained)\b"
    r"|\b(?:layers?|weights?|param\w{0,7}|modules?|parts?)\b[^\n]{0,40}(?:\b(?:not"
    r"|never)|n't) (?:\w+ )?(?:train\w{0,4}|updat\w{1,3}|learn\w{0,4}|used)\b"
    r"|没有?梯度|未使用的?(?:参数|层)"
)
"""Words of a question for the parameters that had no gradient."""
_UNTRAINED = re.compile(f"(?i){ASKS_OF_UNTRAINED}")
_SHORT = 100
"""Letters of words that ask by themselves: `unused parameters`."""


def asks_of_frozen(text: str) -> bool:
    """Tell whether a text is about layers that were frozen, or is a few words about
    parameters without a gradient.
    """
    if len(text) <= _SHORT and _UNTRAINED.search(text) is not None:
        return True
    return _FROZEN.search(text) is not None and _OF_LAYERS.search(text) is not None


def of_frozen(text: str, case: Case) -> Iterator[Statement]:
    """Say which parameters an optimizer does not have, where a question is about frozen
    layers.
    """
    if asks_of_frozen(text):
        yield from frozen_statements(case)


def frozen_statements(case: Case) -> Iterator[Statement]:
    """Say which parameters an optimizer does not have, and what no step changes."""
    if not case.survey.candidates:
        return
    for match in case.survey.matches:
        model = match.model
        if model is None:
            continue
        if any(index is None for index in match.indices):
            yield from _of_count(match, model, case)
            continue
        roles = case.survey.roles
        entries = [
            (index, name)
            for index, name in zip(model.indices, model.names(), strict=True)
            if roles[index].role in ("parameter", "unknown")
            and not name.endswith(BUFFERS_OF_NORMS)
        ]
        left = tuple(name for index, name in entries if index not in match.indices)
        label = show(model.name, 60) or "the model"
        optimizer = show(match.optimizer.name, 60) or "the optimizer"
        if not left:
            text = f"All {len(entries):,} parameters of {label} are in {optimizer}."
            yield Statement(text, left)
            continue
        unsure = sum(roles[index].role == "unknown" for index, _ in entries)
        verb, them = ("is", "it") if len(left) == 1 else ("are", "them")
        text = f"{len(left):,} of the {len(entries):,} parameters of {label}"
        if unsure:
            counted = counted_parameters(len(entries), unsure)
            text = f"{label} has {counted}. {len(left):,} of them"
        yield Statement(
            f"{text} {verb} not in {optimizer}: no step of it changes {them}. A "
            "parameter that is in it, and has requires_grad=False, has no state there.",
            left,
        )
    yield from finding_statements(case.found("unused"))
    for use in case.survey.uses:
        yield from _of_gradients(use)
    norms = [
        name.rpartition(".")[0]
        for section in case.survey.candidates[:1]
        for name in section.names()
        if name.endswith("running_mean")
    ]
    if norms:
        yield Statement(
            f"The running statistics of {and_more([show(n, 60) for n in norms], 3)} "
            "are buffers: no gradient and no requires_grad concerns them, and each "
            "forward in train() changes them. Call eval() on frozen norms after each "
            "model.train()."
        )
    name = pasted_path(case.survey.path)
    yield Statement(
        "A comparison with an older save of the run, or with the weights that it began "
        "with, names each parameter that did not change, apart from buffers:",
        (),
        None if name is None else f"ckpt diff OLDER {name}",
    )


def _of_gradients(use: GradientUse) -> Iterator[Statement]:
    """Say what an optimizer tells of gradients where no finding does: that each
    parameter had one, or nothing at all.
    """
    slots = use.match.slots
    optimizer = show(use.match.optimizer.name, 60) or "the optimizer"
    if slots and not any(slot.keeps_state for slot in slots):
        yield Statement(
            f"{optimizer} is of a kind that keeps no state (SGD without momentum): it "
            "does not say which parameters had a gradient."
        )
    counters = use.counters.values()
    is_whole = len(counters) == len(slots) and not use.is_shared
    if slots and is_whole and min(counters) > 0 and not (use.zero or use.is_before):
        yield Statement(
            f"Each of the {len(slots):,} parameters in {optimizer} has state there, so "
            "each of them had a gradient."
        )


def _of_count(match: Match, model: Section, case: Case) -> Iterator[Statement]:
    """Say how many parameters of a model an optimizer has, where the shapes of its
    state do not tell which, and which of them it surely has.
    """
    roles = case.survey.roles
    held = set(match.indices)
    counts = Counter(
        roles[index].role
        for index, name in zip(model.indices, model.names(), strict=True)
        if not name.endswith(BUFFERS_OF_NORMS)
    )
    count = counts["parameter"] + counts["unknown"]
    sure = tuple(
        name
        for index, name in zip(model.indices, model.names(), strict=True)
        if index in held
    )
    lacking = count - len(match.indices)
    if lacking <= 0:
        return
    end = " These are surely in it:" if sure else ""
    rest = f"The other {lacking:,} are frozen, or are buffers that only look like "
    rest += "parameters."
    if lacking == 1:
        rest = "The other one is frozen, or is a buffer that only looks like one."
    label = show(model.name, 60) or "the model"
    held_of = f"{count:,} parameters of {label}"
    if counts["unknown"]:
        held_of = f"{count:,} tensors of {label} that may be parameters"
    yield Statement(
        f"{show(match.optimizer.name, 60) or 'The optimizer'} has "
        f"{len(match.indices):,} of the {held_of}. {rest} The shapes of its state do "
        f"not tell all of them apart.{end}",
        sure,
    )

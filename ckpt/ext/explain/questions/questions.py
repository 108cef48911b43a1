"""Questions without an error: a learning rate that a run lost when it went on, a model
that is worse after a load.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator

from ckpt.evidence.loading import path_subscripts, string_literal
from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import wrapped_names
from ckpt.ext.explain.asking import separate_scripts
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    keys_text,
    trust_text,
)
from ckpt.ext.explain.families.averages import asks_of_averages, of_averages
from ckpt.ext.explain.families.beginnings import load_into_statement
from ckpt.ext.explain.families.content import of_finished
from ckpt.ext.explain.families.labels import asks_of_classes, of_classes
from ckpt.ext.explain.families.merging import (
    asks_of_adapter,
    asks_of_means,
    asks_to_load_adapter,
    of_adapter_alone,
    of_means,
    of_merging,
)
from ckpt.ext.explain.families.normalizers import of_normalizers
from ckpt.ext.explain.families.parts import (
    asks_of_part,
    asks_of_part_alone,
    of_asked_part,
)
from ckpt.ext.explain.families.runs import (
    asks_of_count,
    asks_of_frozen,
    asks_of_new_start,
    counted_schedules,
    of_counts,
    of_frozen,
    of_lacking_scaler,
    of_new_starts,
    of_place,
    of_worse_averages,
)
from ckpt.ext.explain.families.sizes import of_sizes
from ckpt.ext.explain.families.tied import of_tied_head
from ckpt.ext.explain.families.types import not_finite_statements
from ckpt.ext.explain.families.uses import asks_of_use, of_use
from ckpt.ext.explain.questions.adapters import (
    complains_of_adapter,
    of_learnt_adapter,
)
from ckpt.ext.explain.questions.cards import of_state
from ckpt.ext.explain.questions.curves import complains_of_course, of_course
from ckpt.ext.explain.questions.topics import asks_of_topic, of_topics
from ckpt.model.text import and_more, counted_noun, pasted_path, shell_word, show

_RATE = re.compile(r"(?i)\blearning[ _-]?rates?\b|\blrs?\b")
_GOES_ON = re.compile(
    r"(?i)\b(?:resum\w{1,4}|re-?start\w{0,3}|re-?load\w{0,3}|load(?:s|ed|ing)?"
    r"|checkpoints?|continu\w{1,4}|re-?set\w{0,4})\b"
)
_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b|Traceback")
_LONGEST = 2_000
"""Letters of a question. A log has more, and names learning rates everywhere."""


_MINUS_ONE = re.compile(r"(?i)\bepochs?\b[^\n]{0,60}?(?<![\w.])-1\b")
_MORE_EPOCHS = re.compile(
    r"(?i)\b(?:more|additional|extra|further|adding|add)\b[^\n.?]{0,30}\bepochs?\b"
    r"|\bepochs?\b[^\n.?]{0,30}\b(?:more|additional|further)\b"
    r"|\b(?:complet\w{1,4}|finish\w{0,3}|ended)\b[^\n]{0,200}?\bresum\w{1,4}"
    r"|\bresum\w{1,4}[^\n]{0,200}?\b(?:complet\w{1,4}|finish\w{0,3}|ended)\b"
)
"""Words that ask for a longer run than the one that ended."""
_HOW_TO_GO_ON = "how to continue"
_OF_OPTIMIZER = re.compile(
    r"(?i)\boptimi[sz]ers?\b[^\n.]{0,80}?\b(?:sav(?:e|ed|ing)|restor\w{1,4}|reset\w{0,4}"
    r"|lost|stored?)\b(?=[\s\S]{0,400}?\bresum)"
    r"|\bresum[\s\S]{0,400}?\boptimi[sz]ers?\b[^\n.]{0,80}?\b(?:sav(?:e|ed|ing)"
    r"|restor\w{1,4}|reset\w{0,4}|lost|stored?)\b"
)
"""Words of a run that goes on, and of an optimizer that is saved or lost."""
_OF_SCHEDULE = re.compile(r"(?i)schedulers?\b")
_NAN = re.compile(r"(?i)\bnans?\b")


def is_question(text: str) -> bool:
    """Tell whether a short text without an error describes what a file may answer,
    also where it has no question mark.
    """
    if len(text) > _LONGEST or _ERROR.search(text) is not None:
        return False
    text = separate_scripts(text)
    return (
        asks_of_topic(text)
        or asks_of_new_start(text)
        or asks_of_count(text)
        or (asks_of_averages(text) and "?" in text)
        or _MINUS_ONE.search(text) is not None
        or _OF_OPTIMIZER.search(text) is not None
        or _complains_of_nan(text)
        or complains_of_adapter(text)
        or complains_of_course(text)
        or asks_of_frozen(text)
        or asks_of_means(text)
        or asks_of_adapter(text)
        or asks_of_part(text)
        or asks_of_classes(text)
        or _MORE_EPOCHS.search(text) is not None
        or asks_of_use(text)
        or _complains(text)
        or (_RATE.search(text) is not None and _RESUMES.search(text) is not None)
        or (_OF_FORMATS.search(text) is not None and _ASKS_HOW.search(text) is not None)
    )


def _complains_of_nan(text: str) -> bool:
    """Tell whether a text is about NaN after a load, or is short and about NaN."""
    if _NAN.search(text) is None:
        return False
    return _GOES_ON.search(text) is not None or len(text) <= _SHORT


def _complains(text: str) -> bool:
    """Tell whether a text says that a model is worse, or does nothing, after a load."""
    # Words of a model that fails are said of one that was loaded.
    if _FAILS.search(text) is not None:
        return _LOADED.search(text) is not None or len(text) <= _SHORT
    is_worse = _RESULTS.search(text) or _LOW.search(text)
    is_again = _LOADED.search(text) or _EACH_RUN.search(text)
    return is_worse is not None and is_again is not None


_SHORT = 300
"""Letters of a text that is a complaint about a file, and no story around one."""


def of_questions(text: str, case: Case) -> Iterator[Statement]:
    """Answer a question without an error: about a learning rate, or about a model that
    is worse after a load.
    """
    # With an error the question is another one.
    if len(text) > _LONGEST or _ERROR.search(text) is not None:
        return
    text = separate_scripts(text)
    if _complains_of_nan(text) and case.not_finite:
        yield from not_finite_statements(case)
        return
    rows = []
    # `best` and `last` in a story of two results ask for neither.
    is_measured = _DIFFERS.search(text) or _LOW.search(text)
    if is_measured is not None and _LOADED.search(text) is not None:
        rows = list(_of_results(text, case))
    if _IDENTICAL.search(text) is not None and _RESUMES.search(text) is not None:
        rows = rows or list(of_finished(case))
    if not rows and asks_of_part_alone(text):
        rows = list(of_asked_part(text, case))
    rows = rows or list(of_topics(text, case, first=True))
    rows = rows or list(_of_formats(text, case)) or list(of_merging(text, case))
    if not rows and _MINUS_ONE.search(text) is not None:
        rows = list(of_finished(case))
    if not rows and _MORE_EPOCHS.search(text) is not None:
        rows = list(of_finished(case)) or list(_of_longer_run(case))
    rows = rows or list(of_classes(text, case))
    rows = rows or list(of_means(text, case)) or list(of_tied_head(text, case))
    rows = rows or list(of_new_starts(text, case)) or list(_of_rates(text, case))
    rows = rows or list(of_worse_averages(text, case)) or list(of_frozen(text, case))
    rows = rows or list(of_averages(text, case)) or list(_of_counted(text, case))
    if not rows and _complains_of_nan(text) and _GOES_ON.search(text):
        rows = list(not_finite_statements(case))
    if not rows and _OF_OPTIMIZER.search(text) is not None:
        rows = [of_resumed_state(case)]
    if not rows and complains_of_adapter(text):
        rows = list(of_learnt_adapter(text, case))
    if not rows and complains_of_course(text):
        rows = list(of_course(text, case))
    if not rows and _OF_SCHEDULE.search(text) and _GOES_ON.search(text):
        rows = list(_of_schedules(case))
    rows = rows or list(of_asked_part(text, case)) or list(_of_results(text, case))
    if not rows and _RESUMES.search(text) is not None:
        rows = list(of_finished(case))
    if rows and _RESUMES.search(text) is not None:
        yield from of_lacking_scaler(text, case)
        if case.is_folder:
            yield from _of_trainer(case)
    if not rows and asks_to_load_adapter(text):
        rows = list(of_adapter_alone(case))
    rows = rows or list(_of_settings(text, case)) or list(of_sizes(text, case))
    rows = rows or list(of_use(text, case))
    yield from rows or of_topics(text, case)


_OF_GOING_ON = re.compile(
    r"(?i)\b(?:continu\w{1,4}|resum\w{1,4}|fine-?tun\w{1,4}|train\w{0,4} (?:from|on"
    r"|further))\b"
)


def _of_counted(text: str, case: Case) -> Iterator[Statement]:
    """Say what a file counts, and how a run goes on from one without an optimizer."""
    rows = list(of_counts(text, case))
    yield from rows
    if rows and not case.optimizers and _OF_GOING_ON.search(text):
        yield from of_state(text, case)


_SETTING = re.compile(r"\b[a-z]{1,40}(?:_[a-z0-9]{1,40}){1,8}\b")
_ASKS_FOR = re.compile(
    r"(?i)\b(?:find|which|what|where|see|know|get|look ?up|settings?"
    r"|hyper-?param\w{0,6})\b"
)
_MOST_SETTINGS = 12


def _of_longer_run(case: Case) -> Iterator[Statement]:
    """Say whether a run that has ended can go on from a file, with more epochs."""
    rows = list(of_counts(_HOW_TO_GO_ON, case))
    yield from rows
    if not rows or not case.optimizers:
        return
    yield Statement(
        "So a program that resumes from it can go on for longer: give it a total of "
        "epochs above the one that this file records, and not the epochs to add. Its "
        "learning rate is that of the end of the run, and a schedule that was made for "
        "the old total is at its end too: with a new total most programs compute it "
        "anew, so the rate may jump."
    )


def _of_settings(text: str, case: Case) -> Iterator[Statement]:
    """Give the values of a file whose names stand in a question."""
    if _ASKS_FOR.search(text) is None or "?" not in text:
        return
    asked = set(_SETTING.findall(text))
    found = [row for row in case.finds_value(asked) if type(row[1]) is not bool]
    if not found or len(found) > _MOST_SETTINGS:
        return
    shown = [f"{show(name, 80)} is {show(str(node), 60)}" for name, node in found]
    path = pasted_path(case.survey.path)
    places = Counter(name.rpartition(".")[0] for name, _ in found)
    place = places.most_common(1)[0][0]
    # A name that begins with a dash would be an option.
    word = None if not place or place.startswith("-") else shell_word(place)
    yield Statement(
        f"This file records what is asked for: {and_more(shown, _MOST_SETTINGS)}. All "
        "that stands beside it:",
        (),
        None if path is None or word is None else f"ckpt get {path} {word}",
    )


def _of_rates(text: str, case: Case) -> Iterator[Statement]:
    """Say which learning rates a file has, and what a load does with them, where a
    question is about the learning rate of a run that goes on.
    """
    if _RATE.search(text) is None or _GOES_ON.search(text) is None:
        return
    inner = [row for row in case.optimizers if _lies_in_schedule(row)]
    for section in case.optimizers:
        facts = optimizer_facts(section)
        if facts is None or not facts.rates or section in inner:
            continue
        line = _loading_line(section, case)
        label = show(section.name, 80) or "The root of this file"
        rates = and_more([f"{rate:g}" for rate in facts.rates], 4)
        first = {
            f"{node:g}"
            for name, node in case.finds_value(("initial_lr",))
            if isinstance(node, (int, float))
            and (not section.name or name.startswith(f"{section.name}."))
        }
        begun = f" (initial_lr {and_more(sorted(first), 4)})" if first else ""
        yield Statement(
            f"{label} has the learning rate {rates}{begun}. Only load_state_dict of "
            "the optimizer brings it into a new run, and it replaces the rate that the "
            "run was started with. A run that should keep its own rate sets it behind "
            "that load, or loads the model alone. A scheduler that is built behind it "
            "may set the rate anew: build it first, and load its state too. What the "
            "program has to call, once, before the training goes on:",
            (),
            line,
        )
        if set(facts.rates) == {0.0} and first:
            yield Statement(
                "Its rate is 0, as at the end of a schedule. A run that loads it and "
                "the schedule goes on at 0, and learns nothing: to train longer, build "
                "a new schedule for all steps and load the model alone, or leave the "
                "load of both out."
            )
    for section in inner:
        place = show(section.name, 80)
        holder = section.name.rpartition(".")[0]
        yield Statement(
            f"{place} is a whole optimizer inside of the state of a schedule: a "
            "schedule around another one, as a warm-up, saved that one as it was. "
            "load_state_dict puts it in the place of the new one, and it goes on to "
            "change the rate of that old optimizer, so the rate of the run stays as "
            f"it is. Give {show(holder, 60)} the optimizer of the run after the load:",
            (),
            f"scheduler.{holder.partition('.')[2] or holder}.optimizer = optimizer",
        )
    held = {row.name.rpartition(".")[0] for row in inner}
    has_schedule = any(row.kind == "scheduler" for row in case.survey.sections)
    if case.optimizers and not has_schedule and not case.finds_value(("last_epoch",)):
        yield Statement(
            "It holds no state of a schedule: a run that goes on builds one anew, "
            "which counts from 0 and sets its first rate, unless the program tells it "
            "the step (last_epoch=…, or so many calls of step())."
        )
    yield from _of_schedules(case, held)
    if not case.optimizers:
        numbers = [
            f"{show(name, 60)} {node:g}"
            for name, node in case.finds_value(("lr", "learning_rate", "current_lr"))
            if isinstance(node, (int, float))
        ]
        kept = (
            f"no learning rate but a number ({and_more(numbers, 3)}), which the "
            "program has to hand to the optimizer when it builds it, or to set in its "
            "param_groups: no load does"
            if numbers
            else "no learning rate: a run that goes on from it begins with the rate of "
            "its own settings"
        )
        yield Statement(f"This file holds no optimizer, so it has {kept}.")
        yield from _of_lost_moments(text)
    yield from _of_warm_up(text, case)


_NAMES_OPTIMIZER = re.compile(r"(?i)\boptimi[sz]ers?\b|优化器")
_WARM_UP = re.compile(r"(?i)\bwarm(?:s|ed|ing)?[ _-]?ups?\b|预热")


def _of_lost_moments(text: str) -> Iterator[Statement]:
    """Say how the state of an optimizer is kept, where a question names it and the file
    has none.
    """
    if _NAMES_OPTIMIZER.search(text) is None:
        return
    yield Statement(
        "So its moments begin anew too, and no load can give them back. The next saves "
        "have both where the program writes them, and a run that goes on loads both:",
        (),
        'torch.save({"model": model.state_dict(), "optimizer": '
        'optimizer.state_dict(), "step": step}, "last.pth")',
    )


def _of_warm_up(text: str, case: Case) -> Iterator[Statement]:
    """Say whether a run that goes on from a file needs a warm-up, where a question
    names one.
    """
    if _WARM_UP.search(text) is None:
        return
    facts = [optimizer_facts(section) for section in case.optimizers]
    if any(row is not None and row.with_state for row in facts):
        yield Statement(
            "A run that loads this optimizer and goes on at its rate needs no warm-up: "
            "a warm-up bridges the first steps, in which the moments are estimates "
            "from a few gradients, and here they are those of the run. A loss that "
            "rises sharply after such a load says that the optimizer was not loaded, "
            "or that the rate is another one than before."
        )
    elif not case.optimizers:
        yield Statement(
            "Without the moments of the run a short warm-up is right: the first steps "
            "of Adam are as long as its rate, whatever the gradients are, so a rate at "
            "which the run was stable throws the weights about. Begin below it, for "
            "some hundred steps, or save the optimizer with the model."
        )


def _of_schedules(case: Case, besides: Collection[str] = ()) -> Iterator[Statement]:
    """Say what the schedules of a file counted, and how a new run gets it. `besides`
    are places that were told.
    """
    for place, count in counted_schedules(case):
        if any(one == place or one.startswith(f"{place}.") for one in besides):
            continue
        yield Statement(
            f"{show(place, 80)} is the state of a schedule that counted {count:,} "
            "(last_epoch). Only load_state_dict of the schedule brings that into a new "
            "run: without it the schedule counts from 0, and each change of the rate "
            "comes that much later."
        )


def _lies_in_schedule(section: Section) -> bool:
    """Tell whether an optimizer is a part of the state of a schedule."""
    return any("sched" in str(key).lower() for key in section.path[:-1])


_ASKS_HOW = re.compile(
    r"(?i)\bhow\b|\bcan (?:i|you|we)\b|\b(?:which|what|a) (?:tool|script|command)"
    r"|\bscript to\b|\bis there\b|\bwant to\b|\bneed to\b|\brequest\b"
)
_OF_FORMATS = re.compile(
    r"(?i)\b(?:conver\w{1,5}|export\w{0,3}|sav(?:e|ing)|turn)\b[^\n]{0,200}?"
    r"(?<![\w.])\.?(?P<to>safe-?tensors?|pth?|ckpt|bin)\b"
    # The name of a file is no form of it: `convert ckpt.pt to …`.
    r"(?!\.\w)(?! (?:files? )?(?:to|into) )"
)


def _of_formats(text: str, case: Case) -> Iterator[Statement]:
    """Print the command that writes another format, where a question asks for it."""
    found = list(_OF_FORMATS.finditer(text))
    if not found or _ASKS_HOW.search(text) is None or not case.survey.tensors:
        return
    # The last one is the aim: `from .ckpt to .safetensors`.
    to = found[-1]["to"].lower()
    ending = ".safetensors" if to.startswith("safe") else f".{to}"
    if case.survey.path.endswith(ending):
        return
    others = any(section.kind != "model" for section in case.survey.sections)
    weights = case.written(("slim",), "", ending) if others else None
    if weights is not None:
        yield from command_statements(f"In {ending}:", weights)
    whole = case.written(("convert",), "", ending)
    if whole.command is not None:
        said = "All that the file has:" if weights is not None else f"In {ending}:"
        yield Statement(said, (), whole.command)


def _loading_line(section: Section, case: Case) -> str | None:
    """The line that loads the state of an optimizer, from a file of its own where it
    has one, or None.
    """
    members = case.survey.checkpoint.members
    file = next(
        (row.file for row in members if (row.key,) == section.path[:1] and row.key),
        None,
    )
    steps = path_subscripts(section.path if file is None else section.path[1:])
    if steps is None:
        return None
    if file is None:
        return f"optimizer.load_state_dict(checkpoint{steps})"
    path = string_literal(os.path.join(case.survey.path, file))
    return f'optimizer.load_state_dict(torch.load({path}, map_location="cpu"){steps})'


def _of_trainer(case: Case) -> Iterator[Statement]:
    """Say which file of an optimizer the Trainer of transformers looks for."""
    files = set(case.survey.checkpoint.parts)
    is_of_trainer = not files.isdisjoint(("trainer_state.json", "training_args.bin"))
    path = pasted_path(case.survey.path)
    if is_of_trainer and path is not None:
        yield Statement(
            "The Trainer of transformers goes on with a run only where train() gets "
            "this folder. A path for the model or for the adapter (model_name_or_path, "
            "adapter_name_or_path, checkpoint_dir) takes the weights alone, and the "
            "learning rate, its warm-up and the moments begin anew:",
            (),
            f"trainer.train(resume_from_checkpoint={case.path_literal})",
        )
    if is_of_trainer and "optimizer.bin" in files and "optimizer.pt" not in files:
        yield Statement(
            "The state of the optimizer is in optimizer.bin, as accelerate names it "
            "with FSDP. Older versions of transformers look for optimizer.pt alone, "
            "and go on without it and without a word: take a newer version."
        )


_FAILS = re.compile(
    r"(?i)\b(?:none|no) of (?:the |my |these )?\w+ (?:can|could|are|is|was|were) "
    r"|\b(?:does|do|did|can|could|is|are|was)(?: not|n'?t) (?:\w+ ){0,3}(?:work|learn"
    r"|complete|accomplish|solve|detect|generate|perform|succeed|recogni[sz]e|predict"
    r"|reach|able|move|walk|play)\w{0,4}\b"
    r"|\b(?:detects?|predicts?|finds?|returns?|gives?|generates?|outputs?) (?:\w+ )?"
    r"(?:nothing|zeros?|noise|garbage|the same (?:class|value|output|thing))\b"
    r"|\bsuccess rate\b[^\n]{0,40}\b(?:low|0|zero|drop\w{0,4}|worse)\b"
    r"|\b(?:acts?|behav\w{1,4}|looks?|performs?|moves?) (?:\w+ ){0,3}(?:random\w{0,2}"
    r"|poorly|badly|strange\w{0,2}|wrong\w{0,2}|untrained)\b|\bfails? to \w+"
    r"|\b(?:black|blank|noisy|blurry|garbage) (?:images?|outputs?|results?)\b"
    r"|\bimages? (?:are|is|look|become|come out) (?:all |just |only )?(?:black|blank"
    r"|noisy?|blurry|garbage)\b|\brandom (?:predictions?|outputs?|results?|guess\w*)\b"
    r"|\bdifferent\b[^\n]{0,30}\btrain\w{0,3} and eval\w{0,6}\b"
)
"""Words of a model that does not do after a load what it did."""
_DIFFERS = re.compile(
    r"(?i)\b(?:accurac(?:y|ies)|results?|predictions?|outputs?|scores?|metrics?|mAP"
    r"|loss)\b[^\n.?]{0,60}?\b(?:differ(?:s|ed)?\b(?! between)"
    r"|(?:is|are|was|were|becomes?) (?:now )?(?:\w+ )?(?:different|worse|lower"
    r"|not the same)\b|changes? (?:each|every)|dropp?(?:s|ed)\b)"
)
"""Words of a model that was measured twice, with another result."""
_LOW = re.compile(
    r"(?i)\bwhy\b[^\n]{0,60}\b(?:accurac(?:y|ies)|mAP|scores?|metrics?|loss|reward"
    r"|dice|iou|miou|f1|bleu|psnr|wer)\b[^\n?]{0,40}(?:\b\d+(?:\.\d+)?%?|\blow\b|\bzero\b"
    r"|\bhigh\b)"
)
"""Words that ask for the reason of a number that was measured."""
_EACH_RUN = re.compile(
    r"(?i)\b(?:each|every) (?:time|run|call|evaluation)\b|\b(?:\d+|two|three|several"
    r"|different) (?:different |separate )?(?:runs|times|calls)\b"
    r"|\bfrom run to run\b|每次"
)
"""Words of results that change from run to run with one file."""
_RANDOM = (
    "Results that differ from run to run with one file are not of the file: a load "
    "gives the same values each time. Something is random behind it. The usual reasons "
    "are data that come in another order or are augmented, dropout that goes on in "
    "eval() (F.dropout without training=self.training), and layers that the load did "
    "not fill (strict=False and other names), which each start makes anew."
)
_IDENTICAL = re.compile(
    r"(?i)\b(?:identical|exactly the same|unchanged|no (?:change|difference)s?)\b"
)

_RESULTS = re.compile(
    r"(?i)\b(?:different|other|worse|inconsistent|random) (?:results?|outputs?|values"
    r"|predictions?|accurac(?:y|ies)|scores?|metrics?)\b"
    r"|\b(?:accurac(?:y|ies)|results?|predictions?|outputs?|performances?|metrics?"
    r"|scores?|loss(?:es)?|mAP|weights?|parameters?|model|it)\b[^\n]{0,200}?"
    r"\b(?:drop\w{0,5}|differ\w{0,8}|worse|bad|poor|random|lower|initial|untrained"
    r"|degrad\w{0,6}|decreas\w{0,4}|inconsisten\w{0,5}|changed?|(?:not |un)changed"
    r"|(?:not )?(?:the )?same|not work\w{0,4}|not match\w{0,4}|jump\w{0,3}"
    r"|not converg\w{0,4}|n'?t converg\w{0,4}|diverg\w{0,4}|stuck|plateau\w{0,2}"
    r"|increas\w{1,4}|greater|larger|rises?|rising|higher|spik\w{1,4}|explod\w{1,4}|nan"
    r"|went (?:from|up|down|back)|goes (?:from|up|back)"
    r"|(?:not |un)(?:human[- ])?readable|gibberish|garbled?|nonsense|meaningless)\b"
    r"|(?:loss|损失|精度|准确率|效果|结果|指标|性能|奖励|输出)[^\n]{0,80}?(?:变[差高大低]"
    r"|[升降]高?低?|下降|上升|很[差高大]|不一[致样]|不同|异常|突增|随机|会高|高出|nan)"
)
_LOADED = re.compile(
    r"(?i)加载|载入|恢复|续训|断点|中断后|继续训|"
    r"\b(?:re-?)?load(?:s|ed|ing)?\b|load_(?:state_dict|from_checkpoint|model)"
    r"|\bresum\w{1,4}|\bconver(?:t|ted|ting|sion)\b"
)
_CONVERTED = re.compile(r"(?i)\bconver(?:t|ted|ting|sion)\b")
_ROTARY = re.compile(
    r"(?:^|\.)layers\.\d+\.(?:self_attn\.q_proj|attention\.wq)\.weight$"
)
"""Layers whose rows Meta and transformers keep in two orders."""
_RESUMES = re.compile(
    r"(?i)恢复训|续训|断点|中断后|继续训|重新加载|"
    r"\bresum\w{1,4}|\bcontinu\w{1,4} (?:the |to |my )?train"
    r"|\btrain (?:it |my model )?further\b"
    r"|\b(?:re-?)?load\w{0,3}\b[^\n.]{0,120}\bto (?:re-?train"
    r"|train (?:again|on|more|for))\b"
    r"|\b(?:keep|go(?:ing)? on|carry(?:ing)? on) (?:with )?(?:the )?training\b"
    r"|\bre-?start\w{0,3} (?:the |my )?training\b"
)
_CLASS_METHOD = "load_from_checkpoint"
_OF_CLASS = re.compile(
    r"=\s{0,4}(?:\w{1,60}\.){0,4}[A-Z]\w{0,60}\.load_from_checkpoint"
)


def of_resumed_state(case: Case) -> Statement:
    """Say whether a file has the state of an optimizer, without which a run that goes
    on gets worse for some steps.
    """
    labels = [show(section.name, 60) or "the root" for section in case.optimizers]
    if not labels:
        return Statement(
            "This file holds no optimizer. A run that goes on from it begins its "
            "moments and its learning rate anew, and its loss rises for some steps."
        )
    return Statement(
        f"This file has the state of an optimizer, in {and_more(labels, 3)}. A run "
        "that goes on without it, as where the program loads the model alone, begins "
        "its moments and its learning rate anew, and its loss rises for some steps."
    )


_GIVEN = re.compile(
    r"\b(?P<name>[A-Za-z_]\w{0,60})[ \t]{0,4}=[ \t]{0,4}torch\.load\("
    r"[^\n]{0,300}\)[ \t]{0,4}(?:\n|;|$)"
)
"""A line of a question that loads a file, without going down to a part of it."""
_TAKES = re.compile(r"load_state_dict\(\s{0,4}(?P<name>[A-Za-z_]\w{0,60})\s{0,4}[,)]")
_TAKES_LOAD = re.compile(
    r"load_state_dict\(torch\.load\([^()\n]{0,300}\)[ \t]{0,4}[,)]"
)
"""A call that takes what torch.load gives, without going down to a part of it."""


def _whole_in_code(text: str, case: Case) -> Statement | None:
    """Say that the code of a question gives load_state_dict all of a file, of which the
    weights are a part, or return None.
    """
    loaded = {found["name"] for found in _GIVEN.finditer(text)}
    taken = {found["name"] for found in _TAKES.finditer(text)}
    is_whole = bool(loaded & taken) or _TAKES_LOAD.search(text) is not None
    chosen = case.survey.candidates[0]
    load = case.survey.load
    # A file with several models has no line, and one without a key is the weights.
    if not is_whole or not chosen.path or load.expression is None:
        return None
    silent = (
        " strict=False hides it: no name fits, so nothing was loaded, and each start "
        "of the program has other random weights."
        if "strict" in text and "False" in text
        else ""
    )
    return Statement(
        "The code gives load_state_dict the whole file, a dict of "
        f"{keys_text(case)}, and the weights are in {show(chosen.name, 80)}.{silent} "
        f"So they load{trust_text(load)}:",
        (),
        f"model.load_state_dict({load.expression})",
    )


_OF_TRAINING = re.compile(r"(?i)\bloss(?:es)?\b|\bperplexity\b|损失")
_MEASURED = re.compile(
    r"(?i)\b(?:eval\w{0,7}|valid\w{0,5}|val|test\w{0,3}|accurac\w{1,3}|mAP|predict\w{0,4}"
    r"|inference|metrics?|scores?|results?|outputs?)\b|准确|精度|验证|测试|指标|结果"
)
"""Words of a model that is measured, and not trained."""


def _of_going_on(case: Case) -> Iterator[Statement]:
    """Say what else a run needs so that its loss goes on as it was."""
    kinds = {section.kind for section in case.survey.sections}
    lacking = []
    if case.optimizers and "scheduler" not in kinds and not counted_schedules(case):
        lacking.append("a schedule, so the learning rate begins anew")
    if "rng" not in kinds:
        lacking.append("random numbers, so the data may come in another order")
    lacks = f" This file has no state of {and_more(lacking, 3)}." if lacking else ""
    yield Statement(
        "A loss that jumps and comes down again within some hundred steps is that of "
        f"new moments or of another learning rate.{lacks} One that stays high is of "
        "weights that were not loaded: look for keys that the program left out "
        "(strict=False, a prefix, a part under another key)."
    )
    line = _line_of_optimizer(case)
    if line is not None:
        yield Statement(
            "The optimizer is loaded after the model is on its device, and before the "
            "first step:",
            (),
            line,
        )


_OPTIMIZER_CLASS = re.compile(r"(?i)optim")


def _inside_optimizer(case: Case) -> Statement | None:
    """Say that the state of an optimizer has an optimizer itself inside of it, which a
    load puts in the place of the new one, or return None.
    """
    begins = [f"{section.name}." for section in case.optimizers if section.name]
    for row in case.survey.checkpoint.weights_only or ():
        inside = [name for name in row.where if name.startswith(tuple(begins))]
        if not inside or not _OPTIMIZER_CLASS.search(row.reason):
            continue
        (name, *_) = inside
        return Statement(
            f"{show(name, 80)} is no state but an optimizer itself "
            f"({show(row.reason, 60)}), pickled with the parameters of the run that "
            "saved. A load of this state puts it in the place of the one that the "
            "program has made, and each step then moves those old parameters: the ones "
            "of the model stay as they were loaded, without an error. Keep the inner "
            "optimizer out of state, as an attribute of its own. Save its state_dict() "
            "beside, and load both by themselves. From this file take the weights, "
            "and begin the optimizer anew."
        )
    return None


def _line_of_optimizer(case: Case) -> str | None:
    """The line that loads the state of the only optimizer, or None."""
    if len(case.optimizers) != 1:
        return None
    return _loading_line(case.optimizers[0], case)


def _of_results(text: str, case: Case) -> Iterator[Statement]:
    """Say what of a file can make a model worse after a load that raised nothing."""
    if not _complains(text) or not case.survey.candidates:
        return
    yield from case.damage
    whole = _whole_in_code(text, case)
    if whole is not None:
        yield whole
        return
    # The class itself is called so: `model = Net.load_from_checkpoint(path)`.
    if _CLASS_METHOD in text and _OF_CLASS.search(text) is None:
        yield Statement(
            "load_from_checkpoint of Lightning is a method of the class. It builds a "
            "new model with the weights and returns it, and the object on which it is "
            "called keeps its own: model = Net.load_from_checkpoint(path)."
        )
    if _EACH_RUN.search(text) is not None:
        yield Statement(_RANDOM)
    scaled = list(of_normalizers(case))
    yield from scaled
    if _RESUMES.search(text) is not None:
        yield from of_place(case)
        inner = _inside_optimizer(case)
        if inner is not None:
            yield inner
            return
        yield of_resumed_state(case)
        # The loss of a training is computed in train(), so eval() is no matter of it.
        if _OF_TRAINING.search(text) and not _MEASURED.search(text) and not scaled:
            yield from _of_going_on(case)
            return
    chosen = case.survey.candidates[0]
    names = chosen.names()
    if _CONVERTED.search(text) and any(_ROTARY.search(name) for name in names):
        yield Statement(
            "Llama and its kin have two layouts: transformers keeps the rows of q_proj "
            "and k_proj in another order than Meta, torchtitan and torchtune (rotary "
            "halves, not pairs). A conversion that gives new names alone loads without "
            "an error, and the model writes nonsense. Where q_proj and k_proj of both "
            "files have the same bytes, that is the cause. ckpt diff BEFORE AFTER says "
            "so, and ckpt recipe A B finds the right order from any correct pair."
        )
        return
    norms = [name for name in names if name.endswith("running_mean")]
    if norms:
        layers = [show(name.rpartition(".")[0], 60) for name in norms]
        yield Statement(
            "This file has the running statistics of "
            f"{counted_noun(len(norms), 'norm')} ({and_more(layers, 3)}). Only a model "
            "in eval() uses them: call model.eval() after the load, on the very model "
            "that was loaded. In train() the results follow from the batch, and each "
            "batch changes the statistics."
        )
    elif not scaled:
        yield Statement(
            "This file has no running statistics of norms. Dropout has no weights, so "
            "no file shows it: call model.eval() after the load, on the very model "
            "that was loaded."
        )
    if wrapped_names(names):
        yield Statement(
            "Its names have the prefix of a wrapper. With strict=False a model without "
            "it takes none of them, and torch says so in its result alone."
        )
    averages = [
        show(section.name, 80)
        for section in case.survey.sections
        if section.kind == "ema" and section.name
    ]
    if averages and chosen.name not in averages:
        yield Statement(
            f"It has averaged weights beside the others, in {and_more(averages, 3)}. A "
            "run that validates with them gets its good results from these."
        )
    yield load_into_statement(
        case.survey,
        "This load pairs the names and says what it leaves out. Where it takes all, "
        "the weights are not the cause, and the data are next: the order of the "
        "classes or of the vocabulary, and how the inputs are scaled.",
    )

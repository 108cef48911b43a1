"""Parts of the weights of a file that a question or a program asks for by a word: a
backbone, a teacher, the actor of an agent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ckpt.evidence.loading import load_of, string_literal
from ckpt.evidence.sections import Section
from ckpt.ext.explain.asking import is_asking
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    trust_text,
)
from ckpt.ext.explain.families.beginnings import taken_part
from ckpt.model.text import and_more, counted_noun, show

_PART = (
    r"(?:backbone|encoder|decoder|teacher|student|ema|generator|discriminator|actor"
    r"|critic|policy|trunk|head|classifier|projector|predictor|text[ _]?encoder"
    r"|image[ _]?encoder|vision[ _]?(?:tower|encoder|model)|language[ _]?model|unet|vae"
    r"|target[ _]?(?:encoder|network)|momentum[ _]?encoder|online[ _]?(?:encoder"
    r"|network)|feature[ _]?extractor)"
)
"""The words for a part of a model that people take out of a file."""
_TAKES = (
    r"(?:load(?:s|ed|ing)?|us(?:e|es|ed|ing)|extract(?:s|ed|ing)?|tak(?:e|en|ing)"
    r"|initiali[sz]\w{1,5}|get(?:ting)?|sav(?:e|ed|ing)|export\w{0,3}|fine-?tun\w{1,4}"
    r"|transfer\w{0,4}|keep(?:ing)?|separat\w{1,4}|need(?:s|ed)?|want(?:s|ed)?)"
)
_TAKES_PART = rf"(?:\b{_TAKES}\b|加载|提取|使用|只用|只要)"
_ASKS_FOR_PART = re.compile(
    rf"(?i){_TAKES_PART}[^\n]{{0,160}}?\b{_PART}s?\b"
    rf"|\b{_PART}s?\b[^\n]{{0,160}}?{_TAKES_PART}"
)
_ASKS_HOW = re.compile(
    r"(?i)\bhow\b|\bcan (?:i|you|we|one)\b|\b(?:is|are) (?:there|it)\b|\bwork-?around\b"
    r"|\b(?:want|need|would like|wish|try|trying|possible|way) to\b|\bpossible\b"
    r"|\bonly\b|\balone\b|\bwhich\b|\bwhat\b|如何|怎么|怎样|只"
)
_WORD = re.compile(r"[a-z][a-z0-9_]{2,60}")
_FOLLOWS = re.compile(r"(?i)(?:target|teacher|momentum|ema|key)_")
"""The first word of a network that follows the one that is trained."""
_KIN = {"encoder": "backbone", "backbone": "encoder", "trunk": "backbone"}
"""A word for a part -> the word that other programs have for the same part."""
_DEEPEST = 3
"""Parts of a name among which the word of a part is looked for."""
_LEAST = 2
"""Tensors below a beginning that are a part of a model, and no single layer."""
_SHOWN = 6


def asks_of_part(text: str) -> bool:
    """Tell whether a text asks how to take a part out of a file."""
    return is_asking(text) and bool(
        _ASKS_FOR_PART.search(text) and _ASKS_HOW.search(text)
    )


_ALONE = re.compile(
    rf"(?i)\b(?:only|just|alone|extract\w{{0,3}}|separat\w{{1,3}})\b[^\n.?]{{0,60}}?"
    rf"\b{_PART}s?\b|\b{_PART}s?(?: (?:part|weights?))? (?:only|alone)\b"
    rf"|只[^\n]{{0,10}}{_PART}"
)
"""Words of a question for one part and nothing else."""


def asks_of_part_alone(text: str) -> bool:
    """Tell whether a text asks for one part of a file alone, whatever it names
    beside.
    """
    return asks_of_part(text) and _ALONE.search(text) is not None


def of_asked_part(text: str, case: Case) -> Iterator[Statement]:
    """Print the line that loads the part of a file that a question names."""
    rows = list(_of_part(text, case))
    yield from rows
    if rows and case.optimizers and _KEEPS_ONLY.search(text) is not None:
        yield Statement(
            "To predict, that part is all that is needed, where the program that uses "
            "it finds it under this key. But no run goes on from that part alone: keep "
            "the whole of the last save for that, and the part of the others."
        )
    if rows and _WITHOUT_RUN.search(text) is not None:
        yield Statement(
            "It takes nothing else of the file: the optimizer, the schedule, the "
            "scaler and the sampler are for the run that saved to go on. A training "
            "that only begins from these weights makes its own, for its own "
            "parameters, and loses nothing."
        )


_KEEPS_ONLY = re.compile(
    r"(?i)\b(?:keep|sav|stor|leav)\w{0,3} (?:only|just)\b"
    r"|\bonly (?:keep|sav|stor)\w{0,3}\b"
)
"""Words of a question for saves of one part."""
_WITHOUT_RUN = re.compile(
    r"(?i)\b(?:without|not|no|besides?)\b[^\n.?]{0,60}\b(?:optimi[sz]er|schedul\w{2,3}"
    r"|(?:grad_?)?scaler|sampler)s?\b"
)
"""Words of a question for a load without the state of a run."""


def _of_part(text: str, case: Case) -> Iterator[Statement]:
    """Print the line of each part that has a key, or of what lies below a word."""
    words = _asked_words(text) if asks_of_part(text) else []
    parts = [
        (str(section.path[-1]).lower(), section)
        for section in case.survey.sections
        if section.kind in ("model", "ema", "other") and section.path
    ]
    words += _words_of_keys(text, [key for key, _ in parts])
    sections = [section for key, section in parts if key in words]
    if not sections:
        # Runs with two networks put a word before: online_backbone, target_backbone.
        ends = tuple(f"_{word}" for word in words)
        sections = [section for key, section in parts if ends and key.endswith(ends)]
    if sections:
        yield from _of_sections(sections[:_SHOWN], words, case)
        if len(sections) == 1 and _WRITES.search(text) is not None:
            (section,) = sections
            yield from command_statements(
                "As a file of its own:", case.plan(("slim", "--section", section.name))
            )
        return
    told = 0
    for section in case.survey.candidates[:_SHOWN]:
        for word in _by_role(text, words, section):
            rows = list(_below_word(word, section, case))
            yield from rows
            told += bool(rows)
            if rows:
                break
        # A second model is told only where it is the copy that follows the first.
        if told and not _has_follower(case):
            return


_WRITES = re.compile(r"(?i)\b(?:extract|separat|sav|export|convert|get|split)\w{0,3}\b")
"""Words of a question for a file of a part."""
_OF_ANY_FILE = frozenset(
    ("model", "models", "state", "state_dict", "weights", "network", "net", "module")
)
"""Keys that are words of any question."""


def _words_of_keys(text: str, keys: Sequence[str]) -> list[str]:
    """The keys of a file that a text asks to take by name: `the Upstream model`."""
    if re.search(f"(?i){_TAKES_PART}", text) is None or not _ASKS_HOW.search(text):
        return []
    words = set(_WORD.findall(text.lower()))
    return [key for key in keys if key in words and key not in _OF_ANY_FILE]


def _has_follower(case: Case) -> bool:
    """Tell whether a model of a file follows another one by its key."""
    return any(
        section.path and _FOLLOWS.match(str(section.path[-1]))
        for section in case.survey.candidates
    )


_ASKS_WHICH = re.compile(r"(?i)\bwhich\b|\bshould i\b|\bor (?:the )?\w{1,30}\?|哪")
_ROLES = (("student", "teacher"),)
"""Pairs of networks of a self-supervised training: the one that the optimizer trains,
and the one that follows it by averages and that programs publish.
"""


def _by_role(text: str, words: list[str], section: Section) -> list[str]:
    """The words of a question with the network first that is meant for use, where it
    asks which of two to take.
    """
    if _ASKS_WHICH.search(text) is None:
        return words
    for trained, used in _ROLES:
        both = [_beginning_with(word, section) for word in (trained, used)]
        if trained in words and None not in both:
            return [used, *(word for word in words if word != used)]
    return words


def _roles_text(word: str, section: Section) -> str:
    """The sentence on the network beside the one that is asked for, or an empty
    text.
    """
    for trained, used in _ROLES:
        begins = [_beginning_with(row, section) for row in (trained, used)]
        if word != used or None in begins:
            continue
        one, two = (show(str(begin).rstrip("."), 60) for begin in begins)
        return _text_of_roles(one, two)
    return ""


def _text_of_roles(trained: str, used: str) -> str:
    """The sentence on two networks of a self-supervised training."""
    return (
        f" By their names the optimizer trained {trained}, and {used} followed it by "
        "averages: DINO, iBOT and their kin publish that one, and use it."
    )


def _asked_words(text: str) -> list[str]:
    """Words of a question that may name a part of a file, and their synonyms."""
    found: dict[str, None] = {}
    for match in re.finditer(rf"(?i)\b{_PART}", text):
        word = re.sub(r"[ _]", "_", match[0].lower())
        found[word] = None
    # A program may call its part by a word that is no English one: `net_g`.
    for word in _WORD.findall(text.lower()):
        if "_" in word:
            found[word] = None
    for word in list(found):
        if word in _KIN:
            found[_KIN[word]] = None
    return list(found)


def _of_sections(
    sections: Sequence[Section], words: Sequence[str], case: Case
) -> Iterator[Statement]:
    """Print the line of each part that has a key of its own."""
    keys = {str(section.path[-1]).lower(): section for section in sections}
    for section in sections:
        load = load_of(case.survey.checkpoint, [section])
        held = counted_noun(len(section.entries), "tensor")
        begins = beginnings_of(section)
        text = f"{show(section.name, 80)} of this file is that part, with {held}."
        if len(sections) > 1 and _FOLLOWS.match(str(section.path[-1])):
            text = (
                f"{show(section.name, 80)}, with {held}, is by its name the copy that "
                "follows the one that is trained, by averages."
            )
        for trained, used in _ROLES:
            if trained in keys and keys.get(used) is section:
                one, two = (show(keys[key].name, 60) for key in (trained, used))
                text += _text_of_roles(one, two)
        if len(begins) > 1:
            shown = [f"{show(word, 40)} ({count:,})" for word, count in begins.items()]
            text += f" Its names begin with {and_more(shown, _SHOWN)}."
        if load.expression is None:
            yield Statement(text)
            continue
        yield Statement(f"{text} It loads so{trust_text(load)}:", (), load.expression)
        # A word of the question may name a part of the part: the teacher's backbone.
        for word in words:
            begin = _beginning_with(word, section)
            if begin is not None:
                yield Statement(
                    f"Those of its {show(begin, 60)} alone, without this beginning, "
                    "into the module that is this part (model here):",
                    (),
                    taken_part(load.expression, begin),
                )
                break


def _below_word(word: str, section: Section, case: Case) -> Iterator[Statement]:
    """Print the line that takes the tensors below the beginning that has a word."""
    begin = _beginning_with(word, section)
    if begin is None:
        return
    names = section.names()
    count = sum(name.startswith(begin) for name in names)
    others = [
        f"{show(other, 40)} ({held:,})"
        for other, held in beginnings_of(section).items()
        if not begin.startswith(other)
    ]
    beside = f", beside {and_more(others, _SHOWN)}" if others else ""
    label = show(section.name, 60) or "this file"
    text = (
        f"{count:,} of the {len(names):,} tensors of {label} are below "
        f"{show(begin.rstrip('.'), 80)}{beside}.{_roles_text(word, section)}"
        f"{_kin_text(begin, section)}"
    )
    is_one = len(case.survey.candidates) == 1
    load = case.survey.load if is_one else load_of(case.survey.checkpoint, [section])
    if section.path and _FOLLOWS.match(str(section.path[-1])):
        text += (
            f" By its name {label} is the copy that follows the one that is trained, "
            "by averages."
        )
    if load.expression is None:
        yield Statement(text)
        return
    yield Statement(
        f"{text} They load without this beginning so, where model is the module that "
        f"is this part, as model.encoder of a larger one{trust_text(load)}:",
        (),
        taken_part(load.expression, begin),
    )
    inner = [
        f"{begin}{part}."
        for part in ("backbone", "encoder")
        if any(name.startswith(f"{begin}{part}.") for name in names)
        and not all(
            name.startswith(f"{begin}{part}.")
            for name in names
            if name.startswith(begin)
        )
    ]
    if len(inner) == 1:
        around = dict.fromkeys(
            name[len(begin) :].partition(".")[0]
            for name in names
            if name.startswith(begin) and not name.startswith(inner[0])
        )
        heads = and_more([show(word, 40) for word in around], _SHOWN)
        yield Statement(
            f"Its {show(inner[0].rstrip('.').rpartition('.')[2], 40)} alone, without "
            f"{heads}:",
            (),
            taken_part(load.expression, inner[0]),
        )


def _kin_text(begin: str, section: Section) -> str:
    """The sentence on a part beside the wanted one that begins with the same word:
    `encoder_embed` beside `encoder`.
    """
    kin = [
        show(other, 40)
        for other in beginnings_of(section)
        if other.startswith(f"{begin.rstrip('.')}_")
    ]
    if len(kin) != 1:
        return ""
    return f" {kin[0]} begins with the word too, and may be the first layer of it."


def _beginning_with(word: str, section: Section) -> str | None:
    """The beginning of names that ends with a word, as `module.backbone.`, where at
    least two tensors and not all of them have it, or all do.
    """
    found: Counter[str] = Counter()
    for name in section.names():
        parts = name.split(".")
        for count in range(1, min(len(parts), _DEEPEST + 1)):
            if parts[count - 1].lower() in (word, f"{word}s"):
                found[".".join(parts[:count]) + "."] += 1
                break
    # With several such beginnings it is not known which was meant.
    if len(found) != 1:
        return None
    ((begin, count),) = found.items()
    return begin if count >= _LEAST else None


def beginnings_of(section: Section) -> dict[str, int]:
    """The first words of the names of a section, with the counts of their tensors."""
    words = (name.partition(".")[0] + "." for name in section.names() if "." in name)
    return dict(Counter(words))


_OF_DICT = re.compile(
    r"_?(?:model_)?(?:state_?dict|state|weights|params|model|dict)$|^(?:state_?dict"
    r"|model)_"
)
"""The ends of a key that say what it holds, and not of which part."""


def of_part_under_key(name: str, case: Case) -> Statement | None:
    """Say that a file has the weights of a part among others in one dict, where a
    program asks for a key of that part alone, or return None: `actor_state_dict`.
    """
    word = _OF_DICT.sub("", name)
    if word == name or len(word) < _SHORTEST or len(case.survey.candidates) != 1:
        return None
    section = case.survey.candidates[0]
    begin = f"{word}."
    names = [other for other in section.names() if other.startswith(begin)]
    if len(names) < _LEAST or len(names) == len(section.entries):
        return None
    others = [
        f"{show(other, 40)} ({held:,})"
        for other, held in beginnings_of(section).items()
        if other != begin
    ]
    label = show(section.name, 60) or "its root"
    beside = f" beside {and_more(others, _SHOWN)}" if others else ""
    text = (
        f"The weights of {show(word, 60)} are in this file, in {label}, where "
        f"{counted_noun(len(names), 'name')} begin with {show(begin, 60)}{beside}: it "
        "keeps the parts in one dict, and the program looks for a dict of each, as "
        "another version of it saves them. Take the version of the program that saved, "
        "or a conversion of the program."
    )
    if word in ("actor", "critic"):
        text += (
            " rsl_rl saves one dict before version 5, and newer ones of Isaac Lab "
            "convert it."
        )
    load = case.survey.load.expression
    if load is None:
        return Statement(text)
    return Statement(
        f"{text} That part by itself, which may need the new names of its layers too:",
        (),
        f"state = {load}; {_variable(word)} = "
        f"{{name.removeprefix({string_literal(begin)}): value for name, value in "
        f"state.items() if name.startswith({string_literal(begin)})}}",
    )


_SHORTEST = 3


def _variable(word: str) -> str:
    """A name of Python for a part."""
    return word if word.isidentifier() else "part"


# --- a part that a program does not find ----------------------------------------------

LOST_PART = re.compile(
    r"(?i)\b(?:can ?not|can't|could not|couldn't|did not|unable to|failed to) find "
    r"(?:an? |the |any )?['\"`]?(\w{3,60})['\"`]? (?:modules?|parts?|weights?"
    r"|parameters?|layers?|prefix) in (?:the |this )?(?:checkpoint|state[ _]?dict"
    r"|weights|file)"
)
"""The words of programs that take a part out of a file, and do not find it."""


def of_lost_part(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Say whether any name of a file has the word of a part, and what its names begin
    with.
    """
    word = found[1]
    if len(case.survey.candidates) != 1:
        return
    section = case.survey.candidates[0]
    names = section.names()
    begin = _beginning_with(word.lower(), section)
    load = case.survey.load.expression
    if begin is not None:
        line = None if load is None else taken_part(load, begin)
        count = sum(name.startswith(begin) for name in names)
        yield Statement(
            f"{count:,} names of this file begin with {show(begin, 60)}, and the "
            f"program looks for {show(word, 40)} at another place. That part loads "
            "so, into the module that is this part (model here):",
            (),
            line,
        )
        return
    begins = list(beginnings_of(section)) or list(names)
    label = show(section.name, 60) or "this file"
    yield Statement(
        f"None of the {len(names):,} names in {label} begins with {show(word, 40)}.: "
        f"they begin with {and_more([show(row, 40) for row in begins], _SHOWN)}. Where "
        f"these are the layers of the {show(word, 40)} itself, the part was taken out "
        "already, as published files often are, and no extraction is needed: give the "
        "program that uses it this file. Else the file is of another program, which "
        "calls the part otherwise."
    )
    if load is not None:
        yield Statement("It loads so:", (), load)

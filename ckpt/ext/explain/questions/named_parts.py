"""Questions about a module of the file by its name: was it trained, how is it given
another name, is it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ckpt.evidence.matching import by_order
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import Case, Statement, root_keys
from ckpt.ext.explain.families.renaming import SAFE_NAME, give_names, rename_line
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, pasted_path, show

ASKS_OF_TRAINING = (
    r"\b(?:did|does|do|is|are|was|were|has|have)\b[^\n]{0,80}\b(?:train\w{0,4}"
    r"|learn\w{0,4}|learnt|updat\w{1,3}|gradients?|grads?|frozen|freez\w{1,3}|froze"
    r"|random|randomly|untrained|initiali[sz]ed|chang\w{1,3}|moved)\b"
)
"""Words of a question whether something was trained."""
ASKS_TO_RENAME = r"\brenam\w{1,3}\b|\bgive\w*\b[^\n]{0,40}\bnames?\b"
ASKS_WHETHER_THERE = (
    r"\b(?:contain\w*|has|have|hav\w+|includ\w{1,3}|hold\w*|sav\w{1,3}|stor\w{1,3}"
    r"|is there|are there|lacks?|missing|(?:which|what) (?:one|part|key) is)\b"
)
"""Words of a question whether a file has something."""
_WORD = re.compile(r"[A-Za-z_]\w{0,80}(?:\.\w{1,80}){0,20}")
_OF_ANY_QUESTION = """
a all an and any are as at be been by can did do does for from get gradient gradients
had has have how i if in init is it its layer layers learn load loaded me model models
module modules my name names net network new no not of on or our out part parts rename
save saved should so state state_dict that the then there these this to train trained
training up use was we weight weights were what when where whether which why will with
you
"""
_OF_QUESTIONS = frozenset(_OF_ANY_QUESTION.split())
"""Words of any question: a module of such a name has to be named with the one around
it.
"""
_MOST_PLACES = 3


class _Part(NamedTuple):
    """The tensors of a model below the modules that a question names."""

    begins: tuple[str, ...]
    indices: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def modules_text(self) -> str:
        """The modules in words."""
        shown = [show(begin, 60) for begin in self.begins]
        return and_more(shown, _MOST_PLACES)


def _find_part(text: str, section: Section) -> _Part | None:
    """Find what a question names: the outermost modules that are called so."""
    words = {word.casefold() for word in _WORD.findall(text)}
    dotted = [word for word in words if "." in word]
    words -= _OF_QUESTIONS
    begins: dict[str, None] = {}
    indices: list[int] = []
    names: list[str] = []
    for index, name in zip(section.indices, section.names(), strict=True):
        begin = _begin_of(name, words, dotted)
        if begin is not None:
            begins[begin] = None
            indices.append(index)
            names.append(name)
    if not names:
        return None
    return _Part(tuple(begins), tuple(indices), tuple(names))


def _find_in_models(text: str, case: Case) -> tuple[Section, _Part] | None:
    """Find what a question names in the first model of the file that has it."""
    words = {word.casefold() for word in _WORD.findall(text)}
    for word in list(words):
        words.update(_SHORT_NAMES.get(word, ()))
    for section in case.survey.candidates:
        key = section.name.rpartition(".")[2].casefold()
        # The word of a whole model is said of each of them.
        if key in words - _OF_QUESTIONS:
            names = tuple(section.names())
            return section, _Part((section.name,), tuple(section.indices), names)
        part = _find_part(text, section)
        if part is not None:
            return section, part
    return None


_SHORT_NAMES = {
    "discriminator": ("d", "netd", "net_d", "dis", "disc", "critic"),
    "generator": ("g", "netg", "net_g", "gen"),
    "critic": ("d", "netd", "qf", "q"),
    "actor": ("policy", "pi"),
    "student": ("model_s", "net_s"),
    "teacher": ("model_t", "net_t"),
}
"""Words of a question -> the keys under which programs keep such a model."""


def _begin_of(name: str, words: set[str], dotted: Sequence[str]) -> str | None:
    """The beginning of a name up to a module that a question names, or None."""
    lower = name.casefold()
    for word in dotted:
        at = f".{lower}.".find(f".{word}.")
        if at >= 0:
            return name[: at + len(word)]
    modules = name.split(".")[:-1]
    for depth, module in enumerate(modules, 1):
        if module.casefold() in words:
            return ".".join(modules[:depth])
    return None


# --- was it trained -------------------------------------------------------------------


class _Standing(NamedTuple):
    """The parameters of a part by what the optimizers of its model say of them."""

    stepped: list[str]
    stateless: list[str]
    zero: list[str]
    """Those whose state is zero, as a resume makes it."""
    left_out: list[str]
    unknown: list[str]
    optimizer: str
    others: int
    """Further parameters that have state."""
    is_by_order: bool
    """True where the order of the model alone says which tensor a parameter is."""


def of_trained_part(text: str, case: Case) -> Iterator[Statement]:
    """Say of the parameters of a module whether they ever had a gradient, by the state
    of the optimizer.
    """
    if _ASKS_HOW.search(text):
        return
    found = _find_in_models(text, case)
    if found is None:
        return
    section, part = found
    roles = case.survey.roles
    parameters = {
        index: name
        for index, name in zip(part.indices, part.names, strict=True)
        if roles[index].role in ("parameter", "unknown")
    }
    if not parameters:
        yield Statement(
            f"{part.modules_text} holds {counted_noun(len(part.names), 'buffer')} and "
            "no parameter: no gradient concerns it."
        )
        return
    standing = _standing_of(part, parameters, section, case)
    yield from _trained_statements(part, standing, len(parameters))
    yield from _statistics_statement(part)
    name = pasted_path(case.survey.path)
    yield Statement(
        "A comparison with an older save of the run, or with the weights that it "
        "began with, says what changed:",
        (),
        None if name is None else f"ckpt diff OLDER {name}",
    )


_ASKS_HOW = re.compile(r"(?i)\bhow\b|\b(?:load|extract)\w*\b|\bus(?:e|ing)\b")
"""Words of a question that asks for a way, and not whether something was trained."""


def _standing_of(
    part: _Part, parameters: Mapping[int, str], section: Section, case: Case
) -> _Standing:
    """Sort the parameters of a part by the state that the optimizers have of them."""
    found = _Standing([], [], [], [], [], "", 0, False)
    left = dict(parameters)
    tensors = case.survey.checkpoint.tensors
    inside = frozenset(part.indices)
    # Two tensors of one shape inside of the part may change places: it says the same.
    outside = {
        entry.tensor.shape
        for index, entry in zip(section.indices, section.entries, strict=True)
        if index not in inside
    }
    optimizer = ""
    others = 0
    is_by_order = False
    is_whole = True
    for use in case.survey.uses:
        match = use.match
        if section not in match.models:
            continue
        optimizer = optimizer or show(match.optimizer.name, 60) or "the optimizer"
        # A parameter without a place may be any of those that are left.
        is_whole = is_whole and None not in match.indices
        ordered = by_order(case.survey.checkpoint, match)
        never = frozenset(use.never)
        for number, index in enumerate(match.indices):
            slot = match.slots[number]
            if index is None or index not in left:
                others += slot.has_state and number not in never
                continue
            name = left.pop(index)
            shape = tensors[index].tensor.shape
            is_by_order = is_by_order or (number in ordered and shape in outside)
            if number in never and slot.keeps_state:
                found.stateless.append(name)
            elif number in use.zero or use.is_before:
                found.zero.append(name)
            elif slot.has_state:
                found.stepped.append(name)
            else:
                found.unknown.append(name)
    (found.left_out if optimizer and is_whole else found.unknown).extend(left.values())
    return found._replace(optimizer=optimizer, others=others, is_by_order=is_by_order)


def _trained_statements(
    part: _Part, standing: _Standing, count: int
) -> Iterator[Statement]:
    """Say what the optimizer tells of the parameters of a part."""
    optimizer = standing.optimizer
    whole = f"{part.modules_text} has {counted_noun(count, 'parameter')}."
    # Names by the model's order alone hold only if the optimizer got that order.
    order = f" If {optimizer} got model.parameters()," if standing.is_by_order else ""

    def begin_about(names: Sequence[str], one: str, many: str) -> str:
        words = f"{_amount_text(names, count)} {one if len(names) == 1 else many}"
        return f"{whole}{order} {words[0].lower() + words[1:] if order else words}"

    if standing.stepped:
        begin = begin_about(standing.stepped, "has", "have")
        yield Statement(
            f"{begin} state in {optimizer}: each had a gradient, and the steps changed "
            "it, unless its learning rate or all of its gradients were zero."
        )
    others = standing.others + len(standing.stepped)
    if standing.stateless:
        begin = begin_about(standing.stateless, "has", "have")
        yield Statement(
            f"{begin} no state in {optimizer}, where {counted_noun(others, 'other')} "
            f"{'has' if others == 1 else 'have'} some: no step of it ever saw a "
            "gradient there, so the values are those that the model was built with, or "
            "that were loaded into it.",
            tuple(standing.stateless),
        )
    if standing.zero:
        begin = begin_about(standing.zero, "has", "have")
        yield Statement(
            f"{begin} nothing but zeros in {optimizer}: no gradient, or none but zero. "
            "A resume makes such state too.",
            tuple(standing.zero),
        )
    if standing.left_out:
        begin = begin_about(standing.left_out, "is", "are")
        them = "it" if len(standing.left_out) == 1 else "them"
        yield Statement(
            f"{begin} not in {optimizer}, so no step of it changes {them}.",
            tuple(standing.left_out),
        )
    if standing.unknown:
        them = "it" if len(standing.unknown) == 1 else "them"
        why = "this file has no optimizer that fits it"
        if optimizer:
            why = f"{optimizer} has no state that would say it"
        yield Statement(
            f"{whole} Nothing in the file says whether a training changed {them}: "
            f"{why}."
        )


def _amount_text(names: Sequence[str], count: int) -> str:
    """The words for some of the parameters of a part, or all of them."""
    if len(names) < count:
        return f"{len(names):,} of them"
    return "It" if count == 1 else "All of them"


def _statistics_statement(part: _Part) -> Iterator[Statement]:
    """Say that running statistics follow the batches, also of a frozen part."""
    norms = [
        name.rpartition(".")[0] for name in part.names if name.endswith("running_mean")
    ]
    if norms:
        yield Statement(
            f"The running statistics of {and_more([show(n, 60) for n in norms], 3)} "
            "are buffers: each forward in train() changes them, also where no "
            "parameter is trained."
        )


# --- another name ---------------------------------------------------------------------

_TO = re.compile(
    r"(?i)[`'\"]?(?P<old>[A-Za-z_][\w.]{0,120})[`'\"]?\s*(?:\bto\b|\binto\b|\bas\b|->"
    r"|→|=>)\s*[`'\"]?(?P<new>[A-Za-z_][\w.]{0,120})"
)


def of_renaming(text: str, case: Case) -> Iterator[Statement]:
    """Print the command that gives the modules of a word another one."""
    for found in _TO.finditer(text):
        old, new = found["old"].strip("."), found["new"].strip(".")
        if not (SAFE_NAME.fullmatch(old) and SAFE_NAME.fullmatch(new)):
            continue
        for section in case.survey.candidates:
            rows = list(_renamed(old, new, section, case))
            if rows:
                yield from rows
                return


def _renamed(old: str, new: str, section: Section, case: Case) -> Iterator[Statement]:
    """Print the command that puts one word, or several, in the place of others."""
    names = section.names()
    pattern = re.compile(rf"(^|\.){re.escape(old)}(\.|$)")
    wanted = {
        name: pattern.sub(rf"\g<1>{new}\g<2>", name)
        for name in names
        if pattern.search(name)
    }
    held = list(wanted)
    if not held:
        return
    begin = f"{counted_noun(len(held), 'name')} of this file"
    escaped = old.replace(".", r"\.")
    rule = rf"s/(^|\.){escaped}(\.|$)/\1{new}\2/g"
    if not give_names([rule], wanted, names, others_stay=True):
        yield Statement(
            f"{begin} {'has' if len(held) == 1 else 'have'} {show(old, 60)}, and "
            f"{show(new, 60)} is taken: two tensors would have one name."
        )
        return
    where = section.name if len(case.survey.candidates) > 1 else None
    yield Statement(
        f"{begin} {'has' if len(held) == 1 else 'have'} {show(old, 60)}. With "
        f"{show(new, 60)} in its place:",
        tuple(held) if len(held) <= _LISTED else (),
        rename_line([rule], case, where),
    )


_LISTED = 12

# --- is it there ----------------------------------------------------------------------

_KINDS = (
    (
        r"\bbatch[ _-]?norm\w{0,3}|\bbn\b|\brunning (?:statistics|stats|means?|var\w*)",
        ("running_mean", "running_var"),
        "running statistics of a batch norm (running_mean, running_var)",
    ),
    (r"\b(?:biases|bias)\b", ("bias",), "bias"),
    (
        r"\bpos(?:ition|itional)?[ _-]?embed\w*",
        ("pos_embed", "position_embeddings", "positional_embedding", "wpe"),
        "table of positions by a usual name (pos_embed, position_embeddings, wpe)",
    ),
    (
        r"\b(?:word|token|input|vocab\w*)?[ _-]?embeddings?\b",
        ("embed_tokens", "word_embeddings", "wte", "embedding", "embeddings", "embed"),
        "table of embeddings by a usual name (embed_tokens, wte, embedding)",
    ),
    (
        r"\blm[ _-]?head\b",
        ("lm_head", "embed_out", "output_projection"),
        "output layer of a language model by a usual name (lm_head, embed_out)",
    ),
)
"""Words of a question, the parts of names that answer it, and what that is called."""


def of_presence(text: str, case: Case) -> Iterator[Statement]:
    """Say which tensors of a file have the name or are of the kind that a question asks
    for.
    """
    found = _find_in_models(text, case)
    if found is not None:
        section, part = found
        where = show(section.name, 60) or "this file"
        is_whole = part.begins == (section.name,)
        place = "a part of this file" if is_whole else f"in {where}"
        yield Statement(
            f"{part.modules_text} is {place}, with "
            f"{counted_noun(len(part.names), 'tensor')}.",
            part.names if len(part.names) <= _LISTED else (),
        )
        return
    for words, parts, what in _KINDS:
        if re.search(f"(?i){words}", text) is not None:
            for section in case.survey.candidates[:_MOST_PLACES]:
                yield _presence_statement(parts, what, section)
            return
    yield from _absent_models(text, case)


_GOES_ON = re.compile(
    r"(?i)\b(?:continu|resum|fine-?tun)\w{0,4}\b|\btrain\w{0,3} (?:further|on|more)\b"
)
_MODELS = (
    "discriminator",
    "generator",
    "critic",
    "actor",
    "encoder",
    "decoder",
    "teacher",
    "student",
    "projector",
    "vocoder",
)
"""Words for models, or for large parts of one, that programs write into names."""


def _absent_models(text: str, case: Case) -> Iterator[Statement]:
    """Say that no name of a file has the word of a model that a question asks for, nor
    a short form of it.
    """
    asked = {word.casefold() for word in _WORD.findall(text)}
    held = {str(key).casefold() for key in root_keys(case)}
    for section in case.survey.candidates:
        for name in section.names():
            held.update(name.casefold().split("."))
    for word in _MODELS:
        if word not in asked and f"{word}s" not in asked:
            continue
        short = _SHORT_NAMES.get(word, ())
        # Three letters are a short form too: `enc`, `dis_A`.
        if not any(word[:3] in part or part in short for part in held):
            yield Statement(
                f"No key and no name of this file has the word {word}, or a short form "
                "of it. So it is not in this file, or by a name that says nothing of "
                "it: programs often save it in a file of its own beside this one."
            )
            if word == "discriminator" and _GOES_ON.search(text):
                yield Statement(
                    "A run that goes on without it begins with a new one. That is "
                    "possible, and a new one judges by chance at first, so it pulls "
                    "the generator away from what it had learned: train it alone for a "
                    "while, with the generator frozen, or begin with a small rate."
                )


def _presence_statement(parts: Sequence[str], what: str, section: Section) -> Statement:
    """Say which tensors of a model have one of some words in their names, or that none
    has.
    """
    names = section.names()
    held = [name for name in names if not set(parts).isdisjoint(name.split("."))]
    where = show(section.name, 60) or "This file"
    if not held:
        return Statement(f"{where} has no {what} among its {len(names):,} tensors.")
    count = counted_noun(len(held), "tensor")
    return Statement(
        f"{where} has {count} of that kind: {what}.", tuple(held[:_LISTED])
    )

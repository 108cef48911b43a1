"""The mapping of names in a file to names of a model, and the sentences about it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from ckpt.evidence.mapping import Match, match
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import (
    WRAPPERS,
    inner_wrappers,
    unwrapped_name,
    wrapper_prefix,
)
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.beginnings import load_into_statement, taken_part
from ckpt.ext.explain.families.forms import Form
from ckpt.ext.explain.families.renaming import module_rules, rename_line
from ckpt.model.text import and_more, be_verb, counted_noun, show

LEAST_TAKEN = 4
"""Names that must have lost the same beginning."""


def without_forms(
    forms: Sequence[Form], missing: Sequence[str], held: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Both lists without the names that another form of a layer explains."""
    asked = frozenset().union(*(form.missing for form in forms))
    had = frozenset().union(*(form.held for form in forms))
    return (
        [name for name in missing if name not in asked],
        [name for name in held if name not in had],
    )


def match_names(
    here: Sequence[str], missing: Sequence[str], keep: Sequence[str] = ()
) -> Match:
    """The mapping of names in a file to names of a model: the shapes of the model are
    unknown, so names alone decide.

    No rule changes a name of `keep`, which has its place already.
    """
    # All shapes are equal here, so that they speak for no pair.
    return match(
        dict.fromkeys(here, ()), dict.fromkeys(missing, ()), layouts=False, keep=keep
    )


def renames_text(rules: Match, missing: int) -> str:
    met = len(rules.partners)
    texts = [rule.label for rule in rules.renames]
    text = "The missing key is there by another name"
    if missing > 1:
        text = (
            f"{met:,} of the {counted_noun(missing, 'missing key')} "
            f"{be_verb(met)} there by other names"
        )
    return f"{text}: {and_more(texts, 4)}." if texts else f"{text}."


def are_beginnings(rules: Match) -> bool:
    """Tell whether the rules take something away from the beginning of names, or put
    something before them.
    """
    return all(
        old.endswith(f".{new}") or new.endswith(f".{old}")
        for new, old in rules.partners.items()
        if new != old
    )


def rename_statement(
    case: Case, chosen: Section, rules: Match, missing: int, others: Sequence[str]
) -> Statement:
    """The command after which the missing keys are there. `others` have no place in the
    model, and keep their names.
    """
    survey, plan = case.survey, case.plan
    text = renames_text(rules, missing)
    # ckpt strip needs no substitution for the prefix of a wrapper.
    stripped = plan(("stripped", chosen.name)) if is_wrapper(rules) else None
    if stripped is not None and stripped.command is not None:
        return Statement(text, (), stripped.command)
    if rules.renames and all(rule.is_plain for rule in rules.renames):
        words = [
            word for rule in rules.renames for word in ("--sub", rule.substitution)
        ]
        # Names of another section would be renamed, too.
        if len(survey.candidates) > 1:
            words += ["--section", chosen.name]
        way = plan(("rename", *words))
        if way.command is not None:
            if others and are_beginnings(rules):
                text += (
                    " They are a part of this file. The command keeps its other "
                    f"{counted_noun(len(others), 'key')}, so load its result with "
                    "strict=False:"
                )
            return Statement(text, (), way.command)
    # No substitution says these rules, but load_into pairs names by itself.
    return Statement(text, (), load_into_statement(survey, "").command)


def without_beginning(
    case: Case, rules: Match, here: Sequence[str]
) -> Iterator[Statement]:
    """Print the line that takes one part of a larger model, whose names begin with the
    place of the part.
    """
    # The part lies at one place in its model, so all names lose one beginning.
    beginnings = {old.removesuffix(new) for new, old in rules.partners.items()}
    load = case.survey.load.expression
    if (
        len(beginnings) != 1
        or load is None
        or len(case.survey.candidates) > 1
        or is_wrapper(rules)
    ):
        return
    (beginning,) = beginnings
    others = [name for name in here if not name.startswith(beginning)]
    if not beginning.endswith(".") or not others:
        return
    yield Statement(
        (
            f"The other {counted_noun(len(others), 'key')} of this file "
            f"{'belongs' if len(others) == 1 else 'belong'} to the rest of its model. "
            "To load the whole, give it to the whole model, and not to this part "
            "(OpenMMLab: load_from, and not pretrained or init_cfg). The part loads "
            "alone so:"
        ),
        (),
        taken_part(load, beginning),
    )


def match_wrapped(here: Iterable[str], missing: Sequence[str]) -> Match:
    """The mapping that takes the prefix of a wrapper off the names of a file, or an
    empty one where that makes none of the missing keys.

    One key is enough: what stands behind the prefix is the whole name.
    """
    wrapped = {unwrapped_name(name): name for name in here}
    wrapped = {plain: name for plain, name in wrapped.items() if plain != name}
    met = {name: wrapped[name] for name in missing if name in wrapped}
    if not met:
        return Match({})
    every = match_names(list(wrapped.values()), list(wrapped))
    return every._replace(partners=met) if is_wrapper(every) else Match({})


def is_wrapper(rules: Match) -> bool:
    """Tell whether the only rule takes the prefix of a wrapper away."""
    return all(unwrapped_name(old) == new for new, old in rules.partners.items())


def one_module_deeper(
    missing: Sequence[str], names: Collection[str], case: Case
) -> Statement | None:
    """Say that the layers of a model lie in a module of their own, by which each name
    has one word more before its last, or return None where the file does not have all
    of them without.

    This is for a message that lists the missing keys alone.
    """
    modules: dict[str, str] = {}
    for name in missing:
        module, _, leaf = name.rpartition(".")
        outer = module.rpartition(".")[0]
        if not outer or f"{outer}.{leaf}" not in names:
            return None
        modules[outer] = module
    words = dict.fromkeys(module.rpartition(".")[2] for module in modules.values())
    # A module that has such a layer and weights of its own is another one.
    if len(words) != 1 or any(
        name.startswith(f"{module}.") for name in names for module in modules.values()
    ):
        return None
    old, new = next(iter(modules.items()))
    (word,) = words
    return Statement(
        f"{_all_missing(missing)} in this file without "
        f"{show(word, 60)}.: {show(old, 160)} of the file is {show(new, 160)} in the "
        "model. The class of that layer has it as a part in the version of the "
        "program that loads, and has its weights itself in the one that saved. "
        "Nothing is lost: install the version that goes with the file, or give its "
        "names the new form:",
        (),
        rename_line(module_rules(modules), case),
    )


def one_word_more(
    missing: Sequence[str], names: Collection[str], case: Case
) -> Statement | None:
    """Say that each missing name is in the file without one of its words, the same one
    at one place, or return None.

    This is for a message that lists the missing keys alone, perhaps not all of them.
    """
    places: set[tuple[str, str]] | None = None
    for name in missing:
        words = name.split(".")
        found = {
            (".".join(words[:at]), words[at])
            for at in range(1, len(words) - 1)
            if ".".join(words[:at] + words[at + 1 :]) in names
        }
        places = found if places is None else places & found
    # A word that stands twice gives two places with the same names.
    free = [
        (begin, word)
        for begin, word in sorted(places or ())
        if not any(name.startswith(f"{begin}.{word}.") for name in names)
    ]
    if not free:
        return None
    (begin, word) = free[0]
    old, new = f"{begin}.", f"{begin}.{word}."
    held = [name for name in names if name.startswith(old)]
    example = next(name for name in held if f"{new}{name[len(old) :]}" in missing)
    listed = (
        ""
        if len(held) == len(missing)
        else f", and so are perhaps the other names "
        f"below {show(begin, 60)}, of which the message may list a part alone"
    )
    return Statement(
        f"{_all_missing(missing)} in this file without one word, {show(word, 40)}"
        f"{listed}: {show(example, 120)} of the file is "
        f"{show(new + example[len(old) :], 120)} in the model. So the code that loads "
        "has these layers in one module more than the code that saved: it is of "
        "another version. Take the version that goes with the file, or give the "
        "names the new form, and load with strict=True, which says what else differs:",
        (),
        rename_line([f"s/^{re.escape(old)}/{new}/"], case),
    )


def _all_missing(missing: Sequence[str]) -> str:
    """The beginning of a sentence on all missing keys."""
    if len(missing) == 1:
        return "The missing key is"
    return f"All {len(missing):,} missing keys are"


def wrapped_model(missing: Sequence[str], names: Collection[str]) -> Statement | None:
    """Say that a model was wrapped before the load, inside of its names, or return None
    where the file does not have all of them without.
    """
    if not any(inner_wrappers(name) for name in missing):
        return None
    if any(unwrapped_name(name) not in names for name in missing):
        return None
    parts = dict.fromkeys(
        part for name in missing for part in _wrapper_parts(name) if part != "module"
    )
    writers = list(dict.fromkeys(WRAPPERS[part] for part in parts))
    shown = and_more([f"{part}." for part in parts], 4)
    text = (
        f"{_all_missing(missing)} in this file, without "
        f"{shown}: the model was wrapped ({' and '.join(writers)}) before the load, "
        "and the file is of a model without it. Load the file into the model first, "
        "and wrap it then."
    )
    if any("FSDP" in writer for writer in writers):
        text += (
            " A wrapped model of FSDP has its parameters flat and divided, so new "
            "names alone would not fit its shapes."
        )
    return Statement(text)


def _wrapper_parts(name: str) -> list[str]:
    """The attributes of wrappers in a name, in their order."""
    leading = wrapper_prefix(name).rstrip(".")
    return [
        *(leading.split(".") if leading else []),
        *(part for part, _ in inner_wrappers(name)),
    ]

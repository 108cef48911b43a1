"""The lines of a program in a traceback: the keys that it takes from a checkpoint, and
the options that it takes from the groups of an optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.evidence.optimizers import optimizer_facts
from ckpt.evidence.sections import Section
from ckpt.ext.explain.case import Case, Statement, is_hollow
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import children_of

_NEAR = 6_000
"""Characters before an error in which its traceback stands."""
# checkpoint["optimizer"], ckpt.get('ema', None)
_TAKEN = re.compile(r"(?:\[|\.get\(|\.pop\()['\"]([\w.-]{1,200})['\"]")
_MOST = 24
# group["radam_buffer"], self.param_groups[0]['lr']
_OPTION = (
    r"\b(?:param_)?groups?(?:\[\d{{1,4}}\])?"
    r"(?:\[|\.get\()['\"]{name}['\"]"
)


def taken_keys(text: str, end: int) -> tuple[str, ...]:
    """The keys that the lines of a program take before an error, the last ones first,
    each once.
    """
    near = text[max(0, end - _NEAR) : end]
    keys = [match[1] for match in _TAKEN.finditer(near)]
    return tuple(dict.fromkeys(reversed(keys)))[:_MOST]


def empty_part(keys: Sequence[str], case: Case) -> Iterator[Statement]:
    """Say that a part which a program takes from the file is there and has nothing in
    it. The first of the keys that says something ends.
    """
    held = {str(key): child for key, child in children_of(case.survey.checkpoint.root)}
    for key in keys:
        if key not in held:
            continue
        node = held[key]
        if not is_hollow(node):
            continue
        what = "None" if node is None else "empty"
        yield Statement(
            f"The program takes {show(key, 80)} from the file, and {show(key, 80)} is "
            f"{what} there: the run that saved had nothing to put into it, or it was "
            "taken out before the file was handed on. Leave its load out, and let that "
            "part begin anew, or take a save that has it. Options that load the "
            "weights alone (load_from, --finetune, in the place of --resume) do so."
        )
        return


def asked_of_part(name: str, text: str, end: int, case: Case) -> Statement | None:
    """Say that a program handed one part of a file to a class, which asked that part
    for a name, or return None.
    """
    near = text[max(0, end - _NEAR) : end]
    owner = owner_of(name, near)
    parts = {
        str(section.path[0]): section
        for section in case.survey.candidates
        if len(section.path) == 1
    }
    key = next((key for key in taken_keys(near, len(near)) if key in parts), None)
    # A program that takes both names from one variable asks the root of the file.
    if owner is None or key is None or owner_of(key, near) in (None, owner):
        return None
    names = parts[key].names()
    if name in names:
        return None
    words = list(dict.fromkeys(row.partition(".")[0] for row in names))
    return Statement(
        f"The program took {show(key, 60)} from this file, and asked it for "
        f"{show(name, 80)}, which is none of its {counted_noun(len(names), 'name')} "
        f"(they begin with {and_more([show(word, 40) for word in words], 5)}). The "
        "class that loads saves that name with its own weights, so this file is of "
        "another class: of the plain model inside of it, or of another method of the "
        "program. Take the file that this very class saved."
    )


# self.optimizers[k].load_state_dict(v): the name comes from the file.
_EACH = re.compile(r"\b([\w.]{1,80})\[(\w{1,40})\]\.load_state_dict\(")


def of_own_object(name: str, text: str, end: int, case: Case) -> Statement | None:
    """Say that a program which goes through a part of the file has no object of a name
    that the part has, or return None.
    """
    found = list(_EACH.finditer(text, max(0, end - _NEAR), end))
    # The line that failed is the last one, and its variable is no text.
    if not found or "\n" in text[found[-1].end() : end].strip():
        return None
    owner = found[-1][1]
    for key, child in children_of(case.survey.checkpoint.root):
        names = [str(row) for row, _ in children_of(child)]
        if name not in names:
            continue
        part = show(str(key), 60)
        listed = and_more([show(row, 40) for row in names], 10)
        return Statement(
            f"{part} of this file has a state for {show(name, 60)}, and {owner} of the "
            "program, which takes each by its name, has no such object. The names of "
            f"{part} in the file are {listed}: another version or another "
            "configuration of the program saved it, with other names or more of them. "
            "A run goes on with that one. With a program of other names begin this "
            "part anew, and load the weights alone, which may have other names too."
        )
    return None


def is_option(name: str, text: str) -> bool:
    """Tell whether a line of a program takes a name from the groups of an optimizer."""
    return (
        re.search(_OPTION.format(name=re.escape(name)), text[-2 * _NEAR :]) is not None
    )


_STATES = re.compile(r"(?:^|_)(?:state|states|group|groups|optim\w{0,10}|dict)$")
"""The names of variables in which programs have the states of an optimizer."""


def owner_of(name: str, text: str) -> str | None:
    """The variable from which the last line of a program takes a name by a subscript,
    or None.
    """
    pattern = rf"\b(\w{{1,80}})\[['\"]{re.escape(name)}['\"]\]"
    found = re.findall(pattern, text[-_NEAR:])
    return found[-1] if found else None


_SUBSCRIPT = re.compile(r"([A-Za-z_][\w.]{0,80}(?:\(\))?\[\w{1,80}\])")


def table_of(text: str) -> str | None:
    """The expression by which the last line of a program takes a name that is in a
    variable (`cp_args[k]`), or None.
    """
    # The last line that has a letter is the one that failed.
    lines = [line for line in text[-_NEAR:].splitlines() if line.strip(" ^~\t")]
    found = _SUBSCRIPT.findall(lines[-1]) if lines else []
    return found[-1] if found else None


def is_of_optimizer(owner: str) -> bool:
    """Tell whether a variable may be the state of an optimizer, by its name."""
    return _STATES.search(owner) is not None


def option_statements(name: str, case: Case) -> Iterator[Statement]:
    """Say that the groups of an optimizer lack an option which the optimizer of the new
    run asks for.
    """
    for section in case.optimizers:
        fields = _group_fields(section)
        facts = optimizer_facts(section)
        if not fields or facts is None:
            continue
        label = show(section.name, 80) or "The optimizer"
        shown = show(name, 60)
        if name in fields:
            yield Statement(
                f"The groups of {label} have {shown}: another file was loaded."
            )
            continue
        family = f" ({facts.family})" if facts.family else ""
        is_plain = name.isidentifier()
        yield Statement(
            f"The program takes {shown} from the groups of its optimizer. The groups "
            f"of {label} in this file{family} have none: theirs are "
            f"{and_more(sorted(fields), 14)}. load_state_dict puts the groups of the "
            "file in the place of the new ones, so what the file lacks is gone then. "
            "Another optimizer saved it, or another version of it. Begin the optimizer "
            "anew, and load the model alone."
            + (
                f" Or, where {shown} is an option of the same optimizer, put it back "
                "after that load:"
                if is_plain
                else ""
            ),
            (),
            "for group in optimizer.param_groups: "
            f'group.setdefault("{name}", optimizer.defaults["{name}"])'
            if is_plain
            else None,
        )


def _group_fields(section: Section) -> set[str]:
    """The options of the first groups of an optimizer."""
    groups = dict(children_of(section.node)).get("param_groups")
    fields = {
        str(key)
        for _, group in children_of(groups)[:2]
        for key, _ in children_of(group)
    }
    return fields - {"params"}

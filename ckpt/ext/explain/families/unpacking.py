"""Programs that take what torch.load gave apart, and expected something of another
form: a pair, a dict, a module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, keys_text, load_statements, root_keys
from ckpt.ext.explain.families.frames import empty_part, taken_keys
from ckpt.model.text import counted_noun, show
from ckpt.tree.view import look

UNPACKED = re.compile(
    r"(?:too many|not enough) values to unpack "
    r"\(expected (?:at least )?(\d{1,3})(?:, got (\d{1,6}))?"
)
"""Words of Python for a line such as `model, step = torch.load(path)`."""
_LOADS = re.compile(r"=\s{0,4}[\w.]{0,100}load\w{0,60}\(")
_NEAR = 600
"""Letters before an error in which its line of code stands."""


def of_unpacking(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a line that takes several things from what it loads, by the number of
    things that the file holds.
    """
    expected = int(found[1])
    # Only the line of code above the error makes sure that a load was unpacked.
    is_of_load = (
        _LOADS.search(found.string, max(0, found.start() - _NEAR), found.start())
        is not None
    )
    begin = (
        "The line unpacks what torch.load gave"
        if is_of_load
        else "If the line unpacks what torch.load gave"
    )
    so = f"{begin}, and this" if is_of_load else f"{begin}: this"
    root = look(case.survey.checkpoint.root)
    if root.kind == "sequence":
        held = len(root.children)
        # A tuple of the right length is no reason for the error.
        if held and held != expected:
            yield Statement(
                f"The root of this file is a {show(root.type, 40)} of {held:,} things, "
                f"and the program unpacks {expected:,}: another version of it wrote "
                "the file."
            )
            yield from load_statements(case)
        return
    keys = root_keys(case)
    # Unpacking a dict gives its keys, so their number is the one that Python counted.
    count = len(keys) or len(case.survey.tensors)
    if case.has_module and not keys:
        yield Statement(
            f"{so} file holds one pickled module, and not {expected:,} things. Take it "
            "whole."
        )
        yield from load_statements(case)
        return
    if (
        not count
        or count == expected
        # Python says how many it got, and another number is of another value.
        or (found[2] is not None and int(found[2]) != count)
    ):
        return
    # Weights at the root have no section around them.
    is_state_dict = all(
        not section.path for section in case.survey.candidates
    ) and bool(case.survey.candidates)
    what = (
        (
            f"one state dict of {counted_noun(len(case.survey.tensors), 'tensor')}, "
            "the weights by their names"
        )
        if is_state_dict and count >= len(case.survey.tensors)
        else f"one dict of {keys_text(case)}"
    )
    text = (
        f"{so} file holds {what}, and not {expected:,} things. Another version of the "
        "program wrote it, or it saved the weights alone."
    )
    load = case.survey.load.expression
    if load is None or not case.survey.candidates:
        yield Statement(text)
        yield from load_statements(case)
        return
    yield Statement(
        f"{text} Take it whole:" if is_state_dict else f"{text} The weights load so:",
        (),
        f"model.load_state_dict({load})",
    )


SUBSCRIPTED = re.compile(
    r"'([A-Z]\w{1,100})' object is not subscriptable|\b(tuple"
    r"|list) indices must be integers or slices, not str"
    r"|'(tuple|list)' object has no attribute '(?:keys|items|get|copy|pop|values"
    r"|update)'"
)
"""Words of Python for a key that is asked of no dict."""


def of_subscript(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that asks a module or a tuple for a key, where the file holds
    one.
    """
    root = look(case.survey.checkpoint.root)
    if found[1] == "NoneType":
        empty = list(empty_part(taken_keys(found.string, found.start()), case))
        yield from empty
        if empty:
            yield from load_statements(case)
        return
    if found[1] is not None:
        if (
            case.has_module
            and not root_keys(case)
            # Another class in the message is of another object of the program.
            and root.type.rpartition(".")[2] == found[1]
        ):
            yield Statement(
                f"This file holds a whole pickled module ({show(root.type, 80)}), and "
                "no dict of parts: the program asks it for a key. Its state_dict() has "
                "the weights by their names."
            )
            way = case.plan(("weights",))
            if way.command is not None:
                yield Statement("The weights alone, as a dict:", (), way.command)
            else:
                yield from load_statements(case)
        return
    kind = found[2] or found[3]
    if root.kind == "sequence" and root.type.rpartition(".")[2] == kind:
        yield Statement(
            f"The root of this file is a {kind}, and no dict: the program asks it for "
            "a key. What it holds is asked for by its position ([0], [1] …)."
        )
        yield from load_statements(case)

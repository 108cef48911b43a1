"""What loading a rewritten file would call or import, so that no code of a stranger is passed on in silence."""

from __future__ import annotations

from ckpt.checkpoint import Checkpoint
from ckpt.pickles.imports import judge, reached
from ckpt.pickles.known import is_own
from ckpt.rows import NamedTuple
from ckpt.tree.literals import call_text


class Code(NamedTuple):
    """What loading a file does beyond what ckpt knows, as text.

    `runs`: calls of Python itself, or of functions that run what they are given. `calls`: other unknown calls.
    `imports`: unknown names.
    """

    runs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


def code_of(source: Checkpoint, result: Checkpoint) -> Code:
    """What loading the pickle of `result` does. It was made from `source`, and an edit adds no names of its own."""
    strange = [row for row in source.imports if row.group != "known"]
    if not strange:
        return Code()
    if not result.is_edited:
        rows = [(row.module, row.name, row.group, row.calls) for row in strange]
    else:
        names, calls = reached(result.root)
        judged = judge(names, calls, [result.root]).items()
        rows = [
            (name.module, name.name, found.group, tuple(map(call_text, found.calls[:1])))
            for name, found in judged
        ]
    kinds: dict[str, dict[str, None]] = {"runs": {}, "calls": {}, "imports": {}}  # each an ordered set
    for module, name, group, texts in rows:
        text = texts[0] if texts else f"{module}.{name}"
        if group == "called":
            kinds["runs" if is_own(module) else "calls"][text] = None
        elif group == "unknown" and not result.traits.names_are_code:  # a program of its own imports nothing
            kinds["imports"][text] = None
    return Code(*map(tuple, kinds.values()))

"""Pickles in the JSON of an archive: no value of it is read from them, but the library of the archive unpickles each."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.checkpoint import Import, Notice
from ckpt.errors import CkptError
from ckpt.formats import plain_pickle
from ckpt.formats.contained.member import Member
from ckpt.formats.probe import Probe
from ckpt.io.source import Memory
from ckpt.pickles.known import is_own
from ckpt.text import and_more, plural, show

_MAKERS = ("cloudpickle.cloudpickle", "cloudpickle", "functools")
"""Modules that honest files call to make a function of code in the file: a schedule of the learning rate."""


def pickles_inside(probe: Probe, what: str, pickles: Sequence[bytes]) -> list[Notice]:
    """What unpickling the objects of a member does beyond making values of known kinds."""
    strange: dict[tuple[str, str], Import] = {}
    for number, data in enumerate(pickles):
        name = f"pickle {number + 1:,} in {what}"
        try:
            with probe.open(Member(Memory(data), name, 0, len(data)), f"{probe.mark}{name}:") as opened:
                if opened.format != plain_pickle.NAME:
                    return [Notice("code-inside", f"DANGER: {show(name, 80)} is none.")]
                strange.update(
                    ((row.module, row.name), row) for row in opened.imports if row.group != "known"
                )
        except CkptError as error:
            return [Notice("code-inside", f"DANGER: {show(name, 80)} cannot be judged: {error.problem}.")]
    if not strange:
        return []
    runs = [row for row in strange.values() if row.group == "called" and is_own(row.module)]
    runs = [row for row in runs if row.module not in _MAKERS]
    if runs:
        calls = and_more([row.calls[0] if row.calls else f"{row.module}.{row.name}" for row in runs], 3)
        return [
            Notice("code-inside", f"DANGER: who unpickles the objects in {show(what, 80)} calls {calls}.")
        ]
    names = and_more([show(f"{module}.{name}", 80) for module, name in strange], 3)
    text = f"{show(what, 80)} holds {plural(len(pickles), 'pickle')}, which its library unpickles: {names}."
    return [Notice("pickles-inside", text)]

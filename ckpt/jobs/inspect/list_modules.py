"""`list-modules`: modules and Parameters in plain lists, tuples, dicts and sets, where torch does not look."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckpt.evidence.record import LooseModule
from ckpt.findings import Finding
from ckpt.text import plural, show

_LISTED = 4


def findings(rows: Sequence[LooseModule]) -> Iterable[Finding]:
    """The findings of what was found: what nothing registers, and what is registered elsewhere, apart."""
    lost = [row for row in rows if row.registered is None]
    if lost:
        kinds = {row.kind for row in lost}
        noun = "module" if kinds == {"module"} else "Parameter" if kinds == {"parameter"} else "object"
        count = plural(sum(row.parameters for row in lost), "parameter")
        instead = "nn.ParameterList" if kinds == {"parameter"} else "nn.ModuleList or nn.ModuleDict"
        yield Finding(
            "list-modules",
            f"{_text(lost)}: {plural(len(lost), noun)}, {count}, registered nowhere: state_dict, .to(), the optimizer"
            f" and DataParallel miss {'it' if len(lost) == 1 else 'them'}; write {instead}",
            where=tuple(row.place for row in lost),
        )
    again = [row for row in rows if row.registered is not None]
    if again:
        yield Finding(
            "list-modules",
            f"{_text(again)}: {plural(len(again), 'module')} registered as {_known(again)} too: under DataParallel the"
            " list of a replica still holds the originals (input on device 1, weight on device 0); write nn.ModuleList,"
            " or look the names up in forward",
            where=tuple(row.place for row in again),
        )


def _known(rows: Sequence[LooseModule]) -> str:
    names = [show(str(row.registered), 60) for row in rows]
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")


def _text(rows: Sequence[LooseModule]) -> str:
    """`cells[0..3] (Linear)`: places, numbered runs in one, with the classes."""
    runs: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        match = re.fullmatch(r"(.*)\[(\d+)\]", row.place)
        cls = row.cls.rpartition(".")[2]
        if match is None:
            runs[row.place, cls] = []
        else:
            runs.setdefault((match[1], cls), []).append(int(match[2]))
    texts = []
    for (place, cls), numbers in runs.items():
        run = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
        inside = f"{numbers[0]}..{numbers[-1]}" if run else ",".join(map(str, numbers))
        texts.append(f"{show(place, 80)}{f'[{inside}]' if numbers else ''} ({show(cls, 40)})")
    return ", ".join(texts[:_LISTED]) + (", …" if len(texts) > _LISTED else "")

"""`list-modules`: modules and Parameters in plain lists, tuples, dicts and sets, where torch does not see them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ckpt.evidence.record import LooseModule
from ckpt.findings import Finding
from ckpt.text import and_more, listed, plural, show


def findings(rows: Sequence[LooseModule]) -> Iterable[Finding]:
    """One finding for what nothing registers, one for what is registered elsewhere."""
    lost = [row for row in rows if row.registered is None]
    if lost:
        kinds = {row.kind for row in lost}
        noun = "module" if kinds == {"module"} else "Parameter" if kinds == {"parameter"} else "object"
        count = plural(sum(row.parameters for row in lost), "parameter")
        instead = "nn.ParameterList" if kinds == {"parameter"} else "nn.ModuleList or nn.ModuleDict"
        yield Finding(
            "list-modules",
            f"{_text(lost)} are not registered ({plural(len(lost), noun)}, {count}).",
            where=tuple(row.place for row in lost),
            consequence="state_dict, .to(), the optimizer and DataParallel miss"
            f" {'it' if len(lost) == 1 else 'them'}. Use {instead}.",
        )
    again = [row for row in rows if row.registered is not None]
    if again:
        yield Finding(
            "list-modules",
            f"{_text(again)} are registered as {_known(again)} too.",
            where=tuple(row.place for row in again),
            consequence="Replicas of DataParallel fail: the list holds the modules of device 0.",
        )


def _known(rows: Sequence[LooseModule]) -> str:
    return listed([str(row.registered) for row in rows], limit=60)


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
    return and_more(texts, 4)

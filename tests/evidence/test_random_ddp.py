"""Random models with unused, frozen, tied and sometimes used layers, fifteen ways to
hand over their parameters.

Where the answer assumes nothing, every name is the one that DDP means. Where it assumes
something that is true, too.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from paths import many
from torch import nn

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.numbering import (
    _EXACT,
    _IN_OPTIMIZER,
    _IN_ORDER,
    _NEVER,
    _NO_FIRST,
    _NONE_FROZEN,
    Numbering,
    Numbers,
    numbered_parameters,
)
from ckpt.evidence.survey import Survey

pytestmark = oracle.QUIET

_MODELS = many(120, 3_000)
_PARTS = many(2, 4)

Named = list[tuple[str, nn.Parameter]]


class Net(nn.Module):
    """Blocks of layers of one width, so that many shapes repeat; some modules and
    weights are tied.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        width = rng.choice((3, 4))
        kinds = (
            lambda: nn.Linear(width, width),
            lambda: nn.Linear(width, width, bias=False),
            lambda: nn.LayerNorm(width),
            lambda: nn.BatchNorm1d(width),
        )
        self.stem = nn.Linear(2, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(rng.choice(kinds)() for _ in range(rng.randint(1, 3))))
            for _ in range(rng.randint(1, 6))
        )
        self.head, self.aux = (
            nn.Linear(width, rng.choice((2, width))),
            nn.Linear(width, rng.choice((2, 5))),
        )
        if rng.random() < 0.15 and len(self.blocks) > 1:
            self.blocks[-1] = self.blocks[0]
        if rng.random() < 0.15 and self.aux.weight.shape == self.head.weight.shape:
            self.aux.weight = self.head.weight


def handed(way: int, named: Named) -> Any:
    """What the optimizer gets: the parameters in groups, by name, or in an order of
    their own.
    """
    rows = [parameter for _, parameter in named]
    heads = [parameter for name, parameter in named if name.startswith(("head", "aux"))]
    rest = [
        parameter for name, parameter in named if not name.startswith(("head", "aux"))
    ]
    matrices = {"params": [row for row in rows if row.ndim > 1], "weight_decay": 0.1}
    vectors = {"params": [row for row in rows if row.ndim < 2], "weight_decay": 0.0}
    ways: dict[int, Any] = {
        6: [matrices, vectors],
        7: [vectors, matrices],
        8: [{"params": [row]} for row in rows],
        9: named,
        10: heads + rest,
        11: rows[::-1],
        12: [{"params": heads}, {"params": rest}],
        13: [row for _, row in sorted(named)],
        14: rows[: max(1, len(rows) - 2)],
    }
    groups = ways.get(way, rows)
    return [group for group in groups if not isinstance(group, dict) or group["params"]]


_OWN_ORDER = (7, 8, 10, 11, 12, 13)
_NOT_ALL = 14


class Run:
    """A training run that DDP stops: what it saved, the parameters that DDP counts, and
    the numbers that it prints.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        net = Net(rng)
        modules = [
            module for module in net.modules() if list(module.parameters(recurse=False))
        ]
        for module in modules:
            if rng.random() < rng.choice((0, 0, 0.2)):
                module.requires_grad_(False)
        if rng.random() < 0.2:
            net.stem.requires_grad_(False)
        uses = {
            module: rng.choices(("always", "never", "sometimes"), (0.75, 0.17, 0.08))[0]
            for module in modules
        }
        owner = {
            id(row): module
            for module in modules
            for row in module.parameters(recurse=False)
        }
        self.live = [name for name, row in net.named_parameters() if row.requires_grad]
        self.way = rng.randrange(15)
        whole = rng.random() < 0.5
        groups = handed(
            self.way,
            [pair for pair in net.named_parameters() if whole or pair[1].requires_grad],
        )
        kinds = (torch.optim.Adam, torch.optim.RAdam, torch.optim.SGD)
        optimizer = rng.choice(kinds)(groups, lr=0.1) if groups else None
        self.gradient: set[str] = set()
        last: set[str] = set()
        steps = rng.randint(2, 5)
        for step in range(steps + 1):
            skipped = {
                module
                for module in modules
                if uses[module] == "sometimes" and rng.random() < 0.5
            }
            last = set()
            for name, row in net.named_parameters():
                row.grad = None
                module = owner[id(row)]
                if (
                    row.requires_grad
                    and uses[module] != "never"
                    and module not in skipped
                ):
                    row.grad = torch.ones_like(row)
                    last.add(name)
            if step < steps and optimizer is not None:
                optimizer.step()
                self.gradient |= last
        self.numbers = tuple(
            number for number, name in enumerate(self.live) if name not in last
        )
        self.is_first = any(
            name in last and name not in self.gradient for name in self.live
        )
        self.is_branch = any(
            self.live[number] in self.gradient for number in self.numbers
        )
        self.is_frozen = len(self.live) < len(list(net.parameters()))
        state = net.state_dict()
        self.thing = (
            {"model": state, "optimizer": optimizer.state_dict()}
            if optimizer and rng.random() < 0.85
            else state
        )
        self.names = {
            name: id(row) for name, row in net.named_parameters(remove_duplicate=False)
        }

    def holds(self, assumes: str) -> bool:
        """Tell whether what an answer assumes is true of this run."""
        return not (
            (_NEVER in assumes and self.is_branch)
            or (_NO_FIRST in assumes and self.is_first)
            or (_EXACT in assumes and (self.is_first or self.is_branch))
            or (_NONE_FROZEN in assumes and self.is_frozen)
            or (_IN_ORDER in assumes and self.way in _OWN_ORDER)
            or (_IN_OPTIMIZER in assumes and self.way == _NOT_ALL)
        )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_name_is_wrong_but_by_what_is_assumed(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part, _MODELS, _PARTS):
        run = Run(seed)
        if not run.numbers:
            continue
        kind: Any = ("without", "line", "some")[seed % 3]
        with formats.open(
            str(rewriting.saved(run.thing, tmp_path / "a.pt"))
        ) as checkpoint:
            survey = Survey(checkpoint)
            found: Numbering = numbered_parameters(
                survey, Numbers(((1, run.numbers),), kind)
            )
            unused = [row for row in inspect(survey).findings if row.code == "unused"]
        if run.holds(found.assumes or ""):
            for row in found.rows:
                names = [found.section.relative(entry.name) for entry in row.entries]
                assert run.live[row.number] in names or not names, (
                    seed,
                    row.number,
                    names,
                    found.assumes,
                )
                counts["name" if len(names) == 1 else "candidates"] += 1
                counts["assumed"] += found.assumes is not None
        for finding in unused:
            if not finding.message.startswith("If "):
                trained = {run.names[name] for name in run.gradient}
                assert all(
                    run.names[name.removeprefix("model.")] not in trained
                    for name in finding.tensors
                ), seed
                counts["unused"] += len(finding.tensors)
    assert (
        counts["name"] > counts["candidates"] > 0
        and counts["assumed"]
        and counts["unused"]
    )

"""Random checkpoints of real shapes: dozens of tensors, names of any length, up to
three keys deep, views, ties, copies.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

KEYS = (
    "model",
    "state_dict",
    "state",
    "net",
    "generator",
    "params_ema",
    "weights",
    "a.b",
    "größe",
)
LEAVES = (
    "weight",
    "bias",
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "scale",
    "attn.in_proj_weight",
)
COUNTS = (1, 3, 8, 40, 63, 64, 65, 70, 90, 130)
DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int8,
    torch.bool,
    torch.complex64,
)
ODD = (torch.float8_e4m3fn, torch.uint16, torch.uint32)
SHAPES = ((2, 3), (4,), (), (0,), (1, 2, 1, 3), (5, 1), (3, 3))


class Random:
    """Makes the parts of one checkpoint. The same number gives the same checkpoint.
    `dtypes` are rare ones.
    """

    def __init__(self, number: int, dtypes: tuple[torch.dtype, ...] = ODD) -> None:
        self.pick = random.Random(number)
        self._dtypes = dtypes
        self._bits = torch.Generator().manual_seed(number)
        self._bases: list[torch.Tensor] = []
        self._made: list[torch.Tensor] = []
        self._odd = self.pick.choice((0.0, 0.0, 0.03, 0.3))

    def checkpoint(self) -> Any:
        """A checkpoint: sections below up to three keys, with values beside them."""
        pick = self.pick
        sections: list[Any] = [
            self.section() for _ in range(pick.choice((1, 1, 1, 2, 3)))
        ]
        if pick.random() < 0.3:
            sections.append(sections[0])  # the same dict once more
        if pick.random() < 0.2:
            sections.append({**sections[0]})  # its tensors once more
        if pick.random() < 0.25:
            sections.append(self.optimizer())
        if len(sections) == 1 and pick.random() < 0.4:
            return sections[0]
        whole: Any = {}
        for number, section in enumerate(sections):
            key: Any = pick.choice((*KEYS, number))
            for _ in range(pick.choice((0, 0, 1, 2))):
                section = self.wrapped(section)
            whole[key if key not in whole else f"{key}{number}"] = section
        if pick.random() < 0.6:
            whole |= {
                "epoch": number,
                "args": {"lr": 0.1, "name": "x" * pick.choice((1, 400))},
                "note": None,
            }
        if pick.random() < 0.1:
            return [whole]
        return whole

    def wrapped(self, section: Any) -> Any:
        pick = self.pick
        if pick.random() < 0.2:
            return [section]
        beside = {} if pick.random() < 0.6 else {"step": 3, "loss": torch.tensor(0.5)}
        return {pick.choice(KEYS): section, **beside}

    def section(self) -> dict[Any, Any]:
        """A state dict, as module.state_dict() gives it or as a plain dict."""
        pick = self.pick
        count, name = pick.choice(COUNTS), self.names()
        pairs = {name(number): self.tensor() for number in range(count)}
        if self._odd and pick.random() < 0.3:
            pairs[pick.choice(("extra", 7, "_extra_state", "a.0"))] = pick.choice(
                (None, 3, [1, 2], {"x": self.tensor()})
            )
        if pick.random() < 0.5:
            return pairs
        made = OrderedDict(pairs)
        if pick.random() < 0.7:
            made._metadata = OrderedDict({"": {"version": 1}, "layers": {"version": 2}})  # type: ignore[attr-defined]
        if pick.random() < 0.1:
            made.attached = self.tensor()  # type: ignore[attr-defined]
        return made

    def names(self) -> Callable[[int], str]:
        prefix = self.pick.choice(
            ("", "", "module.", "_orig_mod.", "x" * 110 + ".", "重み.")
        )
        leaves = self.pick.sample(LEAVES, self.pick.choice((1, 2, 4)))
        return lambda number: (
            f"{prefix}layers.{number // len(leaves)}.{leaves[number % len(leaves)]}"
        )

    def optimizer(self) -> dict[str, Any]:
        count = self.pick.choice((2, 20, 70))
        state = {
            n: {
                "step": torch.tensor(1.0),
                "exp_avg": self.usual(),
                "exp_avg_sq": self.usual(),
            }
            for n in range(count)
        }
        return {
            "state": state,
            "param_groups": [{"lr": 1e-3, "params": list(range(count))}],
        }

    def tensor(self) -> torch.Tensor:
        """Nearly always a usual one, or anything that a state dict may hold."""
        made = self.odd() if self.pick.random() < self._odd else self.usual()
        self._made.append(made)
        return made

    def usual(self) -> torch.Tensor:
        return self._filled(
            self.pick.choice(SHAPES),
            torch.float32 if self.pick.random() < 0.7 else self.pick.choice(DTYPES),
        )

    def odd(self) -> torch.Tensor:
        pick = self.pick
        kind = pick.randrange(9)
        if kind == 0 and self._made:
            return pick.choice(self._made)  # a tie
        if kind == 1 and self._made:
            return pick.choice(self._made).detach()  # a tie of two tensors
        if kind in (2, 3, 4):
            if not self._bases or pick.random() < 0.2:
                self._bases.append(self._filled((60,), torch.float32))
            base, first = pick.choice(self._bases), pick.randrange(40)
            return pick.choice(
                (
                    base[first : first + 6],
                    base[first::7][:3],
                    base.view(12, 5).t()[:, :4],
                    base[:0],
                    base.view(6, 10),
                )
            )
        if kind == 5:
            return torch.nn.Parameter(
                self._filled((2, 2), torch.float32), requires_grad=pick.random() < 0.5
            )
        if kind == 6:
            return self._filled((3,), torch.float32).requires_grad_()
        if kind == 7:
            return self._filled((4,), pick.choice(self._dtypes))
        return (
            torch.ones(2, 2).to_sparse()
            if pick.random() < 0.3
            else self._filled((2,), torch.complex64).conj()
        )

    def _filled(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        if dtype is torch.bool or (
            not dtype.is_floating_point and not dtype.is_complex
        ):
            return (
                torch.randint(0, 2, (count,), generator=self._bits)
                .to(dtype)
                .view(shape)
            )
        return torch.randn(count, generator=self._bits).to(dtype).view(shape)


def changed(thing: Any, pick: random.Random) -> Any:
    """A copy of a checkpoint in which some tensors have other values, another shape, or
    are missing.
    """
    if isinstance(thing, torch.Tensor):
        if (
            thing.layout is not torch.strided
            or pick.random() < 0.8
            or not thing.is_floating_point()
        ):
            return thing
        return (
            (thing.detach().float() + 0.25).to(thing.dtype)
            if pick.random() < 0.8
            else thing.detach().clone()
        )
    if isinstance(thing, dict):
        made = {
            key: changed(part, pick)
            for key, part in thing.items()
            if pick.random() < 0.99
        }
        if isinstance(thing, OrderedDict):
            made = OrderedDict(made)
            made.__dict__.update(thing.__dict__)
        return made
    return [changed(part, pick) for part in thing] if isinstance(thing, list) else thing

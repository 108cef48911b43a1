"""State dicts of many kinds, large enough that their pickles are read in columns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch


def blocks(
    count: int, make: Callable[[str], torch.Tensor]
) -> OrderedDict[str, torch.Tensor]:
    leaves = (
        "attn.weight",
        "attn.bias",
        "norm.weight",
        "norm.running_mean",
        "norm.num_batches_tracked",
    )
    return OrderedDict(
        (f"blocks.{n}.{leaf}", make(leaf)) for n in range(count) for leaf in leaves
    )


def usual(leaf: str) -> torch.Tensor:
    if leaf.endswith("tracked"):
        return torch.tensor(7)
    return (
        torch.zeros(3, 5)
        if leaf == "attn.weight"
        else torch.ones(5, dtype=torch.float16)
    )


SIZES = (1, 7, 255, 256, 65_535, 65_536)
"""Numbers that pickles write in one, two and four bytes."""


def shaped(number: int) -> torch.Tensor:
    """Tensors of one to three dimensions. Opcodes of some have the same length in
    another order.
    """
    sizes = [SIZES[(number // 6**at + at) % 6] for at in range(1 + number % 3)]
    dtype = (torch.float32, torch.float16, torch.int64)[number // 5 % 3]
    return torch.zeros(3, dtype=dtype)[number % 2].expand(sizes)


def states() -> dict[str, object]:
    base, weight = torch.arange(600.0), torch.nn.Parameter(torch.zeros(2, 3))
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(40)))
    model(torch.zeros(1, 3)).sum().backward()
    adam, sgd = (
        torch.optim.AdamW(model.parameters()),
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    )
    adam.step()
    sgd.step()
    tied = usual("attn.weight")
    odd = [
        "a" * 254,
        "b" * 255,
        "c" * 256,
        "d" * 300,
        "ключ.weight",
        "键.weight",
        "x\0y",
        "rrrr.r",
        "h\x03((h\x04",
        "",
        "\ud800",
    ]
    return {
        "blocks": blocks(60, usual),
        "shapes": {f"layer.{n}.w": shaped(n) for n in range(2_300)},
        "two thousand": {f"layer.{n}.weight": torch.zeros(1) for n in range(2_100)},
        "adam": {
            "model": model.state_dict(),
            "optimizer": adam.state_dict(),
            "epoch": 3,
        },
        "sgd": sgd.state_dict(),
        "views": {f"v{n}": base[n : n + 4] for n in range(100)},
        "tied": {f"t{n}": tied if n % 7 == 0 else usual("x") for n in range(120)},
        "same storage": {
            f"t{n}": (tied if n % 7 == 0 else usual("attn.weight")).detach()
            for n in range(120)
        },
        "strided": {f"t{n}": base.view(20, 30).t()[n % 5 :, :2] for n in range(80)},
        "dims": {f"t{n}": torch.zeros((1,) * (n % 9)) for n in range(120)},
        "large": {f"t{n}": torch.empty(70_000 + n, 1)[:3] for n in range(60)},
        "names": {
            **blocks(10, usual),
            **{name: usual("x") for name in odd},
            **{f"z.{n}": usual("x") for n in range(60)},
        },
        "numbers": {n: usual("x") for n in range(90)},
        "mixed": {
            f"t{n}": (usual("x"), n, None, [usual("x")], weight, {"a": 1})[n % 6]
            for n in range(200)
        },
        "grad": {f"t{n}": torch.zeros(2, requires_grad=n % 3 == 0) for n in range(90)},
        "dtypes": {
            f"t{n}": torch.zeros(4).to(dtype)
            for n in range(9)
            for dtype in [
                torch.bfloat16,
                torch.int8,
                torch.bool,
                torch.float8_e4m3fn,
                torch.complex64,
                torch.uint16,
            ]
        },
        "empty": {f"t{n}": torch.zeros(0, n) for n in range(90)},
        "parameters": dict(model.named_parameters()),
        "list": [usual("x") for _ in range(100)],
        "nested": {
            "a": {
                "b": {f"t{n}": usual("x") for n in range(90)},
                "c": {f"t{n}": usual("x") for n in range(90)},
            }
        },
        "negative": {-n: {name: usual("x") for name in "abc"} for n in range(90)},
        "wide": {n: {f"t{m}": usual("x") for m in range(1_100)} for n in range(3)},
        "sections": {"model": blocks(30, usual), "ema": blocks(30, usual), "lr": 0.1},
    }

"""Numbers of thousands of digits, which Python refuses to write out, in keys, names and
optimizers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside

LONG = 10**5_000
WEIGHTS = {"l.weight": torch.ones(3, 2), "l.bias": torch.ones(3)}


def group(*keys: Any) -> dict[str, Any]:
    return {"lr": 0.1, "params": list(keys)}


STATE = {
    "step": torch.tensor(1.0),
    "exp_avg": torch.ones(3, 2),
    "exp_avg_sq": torch.ones(3, 2),
}
PLACES: dict[str, Any] = {
    "a parameter of a group": {
        "model": WEIGHTS,
        "optimizer": {"state": {0: STATE}, "param_groups": [group(0, LONG)]},
    },
    "a key of the state": {
        "model": WEIGHTS,
        "optimizer": {"state": {LONG: STATE}, "param_groups": [group(0, 1)]},
    },
    "a key of the model": {LONG: WEIGHTS["l.bias"], **WEIGHTS},
    "the name of a layer": {
        f"layers.{'1' * 5_000}.weight": torch.ones(3, 3),
        **WEIGHTS,
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_a_number_of_thousands_of_digits_is_no_bug(place: str, tmp_path: Path) -> None:
    torch.save(PLACES[place], tmp_path / "a.pth")
    layers = {
        f"z.layers.{number}.weight": torch.zeros(3, 3) for number in ("2", "3" * 5_000)
    }
    torch.save({**layers, **WEIGHTS}, tmp_path / "b.pth")
    for words in (
        ["inspect", "a.pth"],
        ["lint", "a.pth"],
        ["diff", "a.pth", "b.pth"],
        ["strip", "a.pth", "-o", "c.pth"],
        ["slim", "a.pth", "-o", "d.pth"],
        ["warmstart", "a.pth", "--into", "b.pth", "-o", "e.pth"],
        ["warmstart", "b.pth", "--into", "a.pth", "-o", "f.pth"],
    ):
        done = inside(*words, cwd=tmp_path)
        assert b"bug in ckpt" not in done.err and b"Traceback" not in done.err, (
            words,
            done.err[-300:],
        )

"""Expressions and numbers in the adapter_config.json of a stranger."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from process import ckpt
from safetensors.numpy import save_file

from ckpt.ext.adapters.config import is_end, is_known, number_in

PARTS = (
    *("a", "b", ".", r"\.", r"\d", "[a-b]", "a*", ".*", ".+", "b?", r"\d+", "0"),
    *("(", "(?:", ")", "|", "^", "$", ":"),
)


def test_expressions_match_as_those_of_python() -> None:
    """PEFT asks `re.match` whether one is the end of a name."""
    pick = Random(7)
    matched = 0
    for _ in range(20_000):
        pattern = "".join(pick.choices(PARTS, k=pick.randint(1, 8)))
        if not is_known(pattern):
            continue
        name = "".join(pick.choices("ab.0:", k=pick.randint(0, 9)))
        is_text = name == pattern or name.endswith(f".{pattern}")
        is_plain = re.fullmatch(r"[\w.]*", pattern) is not None
        expected = is_text or (
            not is_plain and re.match(rf"(.*\.)?({pattern})$", name) is not None
        )
        assert is_end(pattern, name) == expected, (pattern, name)
        matched += expected
    assert matched > 500


def test_an_expression_that_takes_hours_takes_none() -> None:
    name = "a." * 3_000 + "c"
    assert not is_end(".*.*.*.*.*b", name)
    assert is_end(".*.*.*.*.*c", name)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(?P<x>a)", r"(a)\1", "a{9}", "[z-a]"])
def test_other_expressions_are_not_evaluated(pattern: str) -> None:
    assert not is_known(pattern)


LARGE = 10**400


@pytest.mark.parametrize(
    "settings",
    [
        {"r": LARGE},
        {"lora_alpha": LARGE},
        {"rank_pattern": {"q_proj": LARGE}, "alpha_pattern": {"q_proj": LARGE}},
    ],
    ids=["rank", "alpha", "patterns"],
)
def test_a_number_that_no_float_holds_is_none(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    usual = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    layer = "base_model.model.q_proj"
    factors = {
        f"{layer}.lora_A.weight": np.ones((2, 4), "f4"),
        f"{layer}.lora_B.weight": np.ones((4, 2), "f4"),
    }
    save_file(factors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({**usual, **settings}))
    assert number_in(LARGE) is None and number_in(-LARGE) is None
    assert number_in(float("inf")) is None and number_in(True) is None
    done = ckpt("inspect", str(tmp_path))
    assert b"bug in ckpt" not in done.err and b"Traceback" not in done.err
    assert done.code in (0, 1)

"""The names that torch gives: without the attributes of wrappers, which models may have
themselves.
"""

from __future__ import annotations

import pytest

from ckpt.evidence.joining import names_in_torch

LONG = "deep." * 24 + "weight"


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["fc.weight", "fc.bias"], ["fc.weight", "fc.bias"]),
        (["module.fc.weight", "module.fc.bias"], ["fc.weight", "fc.bias"]),
        (["_orig_mod.module.a.b", "_orig_mod.module.c"], ["a.b", "c"]),
        (["module._orig_mod.a", "module._orig_mod.b"], ["a", "b"]),
        (
            ["module.module.a", "module.b"],
            ["module.a", "b"],
        ),  # the model has a part `module`
        (["module.a", "head.weight"], ["module.a", "head.weight"]),
        (
            ["module.a", "n_averaged"],
            ["module.a", "n_averaged"],
        ),  # AveragedModel keeps it
        (["a._orig_mod.w", "b._checkpoint_wrapped_module.w"], ["a.w", "b.w"]),
        (
            ["_fsdp_wrapped_module.a._fsdp_wrapped_module.w", "_fsdp_wrapped_module.b"],
            ["a.w", "b"],
        ),
        ([f"module.{LONG}"], [LONG]),
        (["weight"], ["weight"]),
        ([], []),
    ],
)
def test_names_lose_their_wrappers(names: list[str], wanted: list[str]) -> None:
    rule = names_in_torch(names)
    assert [rule(name) for name in names] == wanted

"""The attributes of wrappers in names: which are taken off, and which a model may use itself."""

from __future__ import annotations

import pytest

from ckpt.evidence.wrappers import inner_wrappers, own_name, unwrapped_name, usual_prefix, wrapper_prefix


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("module.weight", "module."),
        ("_orig_mod.module.fc.weight", "_orig_mod.module."),
        ("module.module.fc.weight", "module.module."),
        ("module.module", "module."),
        ("module", ""),
        ("module.", ""),
        ("module.a", "module."),
        ("modules.weight", ""),
        ("fc.module.weight", ""),
    ],
)
def test_leading_wrappers_leave_a_name(name: str, prefix: str) -> None:
    assert wrapper_prefix(name) == prefix
    assert unwrapped_name(name) == name[len(prefix) :]


def test_inside_of_a_name_only_private_attributes_are_wrappers() -> None:
    assert own_name("a._orig_mod.b.module.weight") == "a.b.module.weight"
    assert unwrapped_name("module.a._orig_mod.b.weight") == "a.b.weight"
    assert unwrapped_name("a.module.b._orig_mod") == "a.module.b._orig_mod", "the last part is a tensor's own"


def test_of_an_attribute_that_comes_twice_inside_the_first_is_named() -> None:
    assert inner_wrappers("module.a._orig_mod.b._orig_mod.weight") == [("_orig_mod", "module.a._orig_mod.")]
    assert inner_wrappers("a.module.weight") == []


def test_the_usual_prefix_is_that_of_most_names_and_of_equally_many_the_first() -> None:
    assert usual_prefix(["module.a", "b", "module.c"]) == "module."
    assert usual_prefix(["a", "module.b"]) == ""
    assert usual_prefix(["module.a", "b"]) == "module."
    assert usual_prefix([]) == ""

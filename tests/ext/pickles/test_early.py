"""Pickles without PROTO are known by what they do: end where the file ends, call, or
name something of Python.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ckpt.formats import is_checkpoint_file
from ckpt.model.limits import Limits


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (pickle.dumps({"a": [1, 2.5, "x"]}, 0), True),
        (pickle.dumps({"a": [1, 2.5, "x"]}, 1), True),
        (b"(lp0\n.", True),
        (b"cshop\nrun\n(S'x'\ntR.more", True),  # a call
        (b"cos\nsystem\n.more", True),  # a name of Python's
        (b"cshop\nrun\n.more", True),
        (b"I1\n.more", False),
        (b"cos\nsystem\n(S'x'\ntR", True),  # runs before it breaks
        (b"(some words in brackets)", False),
        (b"] a list of words", False),
        # PROTO may name a protocol that needs none; tables of bytes begin so as well.
        (b"\x80\x00" + pickle.dumps({"a": 1}, 0), True),
        (b"\x80\x01" + pickle.dumps({"a": 1}, 1), True),
        (b"\x80\x01cos\nsystem\n(S'x'\ntR", True),
        (b"\x80\x00\x00\x00#\x00\x00\x00base" + bytes(40), False),
    ],
)
def test_by_what_it_does(data: bytes, is_one: bool, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    assert is_checkpoint_file(str(tmp_path / "x"), Limits()) is is_one

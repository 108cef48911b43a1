"""Plain pickles of arrays and tensors, and what joblib writes without compression."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "pickle"
SUFFIXES: tuple[str, ...] = (".pkl", ".pickle", ".joblib")
TRAITS = Traits("plain pickle", 'pickle.load(open({path}, "rb"){options})', is_pickle=True, is_foreign=True)
WRITER = VERIFIER = ""

"""Plain pickles, and what joblib writes."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "pickle"
SUFFIXES: tuple[str, ...] = (".pkl", ".pickle", ".joblib")
TRAITS = Traits("plain pickle", 'pickle.load(open({path}, "rb"){options})', is_pickle=True, is_foreign=True)
WRITER = VERIFIER = ""


def is_pickle(head: bytes) -> bool:
    """Whether these first bytes are those of a pickle of a dict, a list or an object."""
    return (
        (head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5)
        or head[:3] in (b"(dp", b"(lp")
        or head[:2] in (b"}q", b"]q")
        or head.startswith(b"ccollections\nOrderedDict\n")
    )

"""What stands before the ending of a result that ckpt names: `run.pth` slimmed is `run.slim.pth`."""

from __future__ import annotations

SUFFIXES = {
    "rehome": ".cpu",
    "strip": ".stripped",
    "rename": ".renamed",
    "slim": ".slim",
    "convert": ".converted",
    "convert --plain": ".plain",
    "warmstart": ".warm",
}
"""Command -> the suffix, in what a command suggests and in commands that others suggest."""

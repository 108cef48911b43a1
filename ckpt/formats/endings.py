"""The endings that files of checkpoints have: the only list. Content decides what a file is; an ending never does.

An ending names the format that is written, and tells a broken checkpoint from a file of another kind.
"""

from __future__ import annotations

TORCH = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl")
SAFETENSORS = (".safetensors", ".sft")
PICKLE = (".pkl", ".pickle", ".joblib")
INDEXES = (".safetensors.index.json", ".bin.index.json")
"""Endings of an index of shards."""

WEIGHTS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors")
"""Endings of files that a folder is searched for."""
CHECKPOINTS = (*WEIGHTS, ".index.json", ".pth.tar", ".th")
"""A file with one of these that is no checkpoint is an error."""
PERHAPS = (".pkl", ".zip", ".nemo", ".joblib", ".tar", ".pt2", ".ptl")
"""Files with these are often something else."""

"""Distributed checkpoints for the tests of this folder: of several ranks, and small
ones to be broken.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from once import once, script


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the checkpoints of train_dcp.py. Nothing may be changed there."""
    return once(tmp_path_factory, "dcp", script("train_dcp.py"))

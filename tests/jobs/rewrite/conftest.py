"""What the ranks of sharded runs save, for the commands that write."""

from __future__ import annotations

from pathlib import Path

import pytest
from once import once, script


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what train_ranks.py writes. Nothing may be changed there."""
    return once(tmp_path_factory, "ranks", script("train_ranks.py"))

"""How much a test tries: little every day, much in `make test-thorough`, which sets `CKPT_TEST_THOROUGH`."""

from __future__ import annotations

import os

IS_THOROUGH = bool(os.environ.get("CKPT_TEST_THOROUGH"))


def many(daily: int, thorough: int) -> int:
    """How many examples a test tries."""
    return thorough if IS_THOROUGH else daily

"""Folders for results: those that are not there yet are made."""

from __future__ import annotations

import os

from ckpt.errors import WriteError
from ckpt.io.commit import Target, why


def make_folder(to: Target) -> None:
    """Make the folders above a target that are not there yet. Raises WriteError."""
    try:
        os.makedirs(os.path.dirname(to.real), exist_ok=True)
    except OSError as error:
        raise WriteError(f"the folder cannot be made: {why(error)}", path=os.path.dirname(to.path)) from None

"""`python -m ckpt`, which is the command `ckpt` too. Nothing is imported before signals are handled."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    if sys.platform == "win32":
        os.write(2, b"ckpt: Windows is not supported (use WSL)\n")
        os._exit(2)
    try:
        from ckpt.cli.start import run
    except KeyboardInterrupt:
        os.write(2, b"ckpt: interrupted\n")
        os._exit(130)
    run(_program)


def _program() -> int:
    from ckpt.cli.app import run

    return run()


if __name__ == "__main__":
    main()

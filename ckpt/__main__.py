"""`python -m ckpt`, which is the command `ckpt` too. Nothing is imported before signals
are handled.
"""

from __future__ import annotations

import os
import sys

# That of `typing`, whose import takes as long as all of `--version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    if sys.platform == "win32":
        os.write(2, b"ckpt: Windows is not supported (use WSL)\n")
        os._exit(2)
    try:
        from ckpt.surface.cli.start import run
    except KeyboardInterrupt:
        os.write(2, b"ckpt: interrupted\n")
        os._exit(130)
    run(_program)


def _program() -> int:
    if sys.argv[1:] in (["--version"], ["-V"]) and sys.stdout is not None and _told():
        return 0
    from ckpt.surface.cli.app import run

    return run()


def _told() -> bool:
    """Print the version before anything else is imported. Where that fails, the program
    does it, and says why not.
    """
    from ckpt import __version__

    try:
        # Past the buffer: what fails leaves nothing behind.
        os.write(1, f"ckpt {__version__}\n".encode())
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()

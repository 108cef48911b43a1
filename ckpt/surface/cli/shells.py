"""`ckpt completion SHELL`: the script that makes a shell complete commands, options and
values of ckpt.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.model.errors import UsageError
from ckpt.model.names import nearest_names
from ckpt.model.text import show
from ckpt.surface.cli.completion import VARIABLE

SHELLS = ("bash", "zsh", "fish")
_HELP = """\
Usage: ckpt completion bash|zsh|fish

  Print the script that completes commands, options, and names inside of a checkpoint.

  bash   source <(ckpt completion bash)          in ~/.bashrc
  zsh    source <(ckpt completion zsh)           in ~/.zshrc, behind compinit
  fish   ckpt completion fish | source           in ~/.config/fish/config.fish

  ckpt --install-completion writes these lines for the shell that runs.
"""


def completion_text(words: Sequence[str]) -> str:
    """Return the script of the shell that the words name, or the help. Raises
    UsageError.
    """
    if words and words[0] in ("-h", "--help", "--help-all"):
        return _HELP
    # A second word is a mistake, and not ignored: its author expects something of it.
    if len(words) != 1:
        problem = f"{show(words[1], 40)} is too much" if words else "SHELL is missing"
        raise UsageError(
            f"completion: {problem}", hint=f"ckpt completion {'|'.join(SHELLS)}"
        )
    shell = words[0].lower()
    if shell not in SHELLS:
        alike = nearest_names(shell, SHELLS, 1)
        hint = f"did you mean {alike[0]}?" if alike else None
        raise UsageError(
            f"completion {show(words[0], 40)}: not one of {' '.join(SHELLS)}", hint=hint
        )
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="ckpt", complete_var=VARIABLE, shell=shell)
    return f"{script.rstrip()}\n"

"""The hooks of extensions: modules that the core asks for by name, so that it works
without any of them, and the commands of extensions.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from ckpt.model.errors import UsageError

HOOKS = {
    "adapters": "ckpt.ext.adapters.hooks",
    "ema": "ckpt.ext.ema.hooks",
    "cluster": "ckpt.ext.cluster.connect",
    "distributed items": "ckpt.ext.dcp.items",
    "gguf": "ckpt.ext.gguf.hooks",
    "layouts": "ckpt.ext.layouts.hooks",
    "live check": "ckpt.ext.live.check",
    "live memory": "ckpt.ext.live.memory",
    "live model": "ckpt.ext.live.model",
    "live state": "ckpt.ext.live.state",
    "live warm start": "ckpt.ext.live.warmstart",
    "page": "ckpt.ext.page.command",
    "published files": "ckpt.ext.remote.published",
    "quantised": "ckpt.ext.quantised.hooks",
    "reading ahead": "ckpt.ext.remote.ahead",
    "resizing": "ckpt.ext.resizing.hooks",
    "salvage": "ckpt.ext.salvage.salvage",
    "torch": "ckpt.ext.live",
    "url": "ckpt.ext.remote.url",
    "url location": "ckpt.ext.remote.location",
    "url target": "ckpt.ext.remote.target",
}
"""The names by which the core asks for modules of extensions. No other module of the
core names one.
"""

COMMANDS = {
    "average": "ckpt.ext.average.command",
    "explain": "ckpt.ext.explain.command",
    "lint": "ckpt.ext.lint.command",
    "merge": "ckpt.ext.adapters.command",
    "prune": "ckpt.ext.prune.command",
    "recipe": "ckpt.ext.layouts.command",
    "report": "ckpt.ext.page.command",
    "salvage": "ckpt.ext.salvage.command",
    "set": "ckpt.ext.values.command",
    "warmstart": "ckpt.ext.warmstart.command",
}
"""The commands of extensions, and their modules. The others are in `ckpt.commands`."""
NEEDS = {
    "archives": ("torchscript",),  # the code in a torch.package is the same language
    "cluster": ("remote",),  # a worker opens URLs by itself
    "deepspeed": ("dcp",),  # a universal checkpoint names its folders alike
    "folders": (
        "dcp",
    ),  # a folder holds a distributed checkpoint, whose tensors get names of its own
    "live": ("warmstart",),  # `load_into` carries out its plan
    "resizing": ("warmstart",),  # the tensors that a warm start needs in other shapes
}
"""Extensions, and the others without which they do not work."""


def is_installed(module: str) -> bool:
    """Tell whether the folder of the extension that a module lies in is there, and of
    those that it needs.

    Nothing of them is imported.
    """
    names = module.split(".")
    if names[:2] != ["ckpt", "ext"] or len(names) < 3:
        return True
    if find_spec(".".join(names[:3])) is None:
        return False
    return all(is_installed(f"ckpt.ext.{other}") for other in NEEDS.get(names[2], ()))


def has_command(name: str) -> bool:
    """Tell whether there is a command, before one is printed. Where the folder of an
    extension was deleted, its command is gone.
    """
    return is_installed(COMMANDS.get(name, "ckpt"))


def absence_text(module: str) -> str:
    """Say that the extension which a module lies in was taken out."""
    extension = ".".join(module.split(".")[:3])
    return f"this needs {extension}, which is not installed here"


def load_hook(name: str) -> ModuleType:
    """Return the module of a row of `HOOKS`. Raises UsageError where its extension was
    taken out.

    For what a user asks for: `find_hook` is for what an extension adds to any answer.
    """
    hook = find_hook(name)
    if hook is None:
        raise UsageError(absence_text(HOOKS[name]))
    return hook


def find_hook(name: str) -> ModuleType | None:
    """Return the module of a row of `HOOKS`, or None where its extension was
    taken out.
    """
    module = HOOKS[name]
    return import_module(module) if is_installed(module) else None

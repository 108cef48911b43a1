"""`ckpt merge`: a base with adapters."""

from __future__ import annotations

from typing import Any

from ckpt.commands.rewriting.report import RewriteReport
from ckpt.ext.adapters.api import merge
from ckpt.model.errors import UsageError
from ckpt.model.text import show
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(
    base: str,
    adapters: list[str],
    *,
    weights: str | None,
    **keywords: Any,
) -> int:
    """Merge adapters (LoRA, DoRA) into the weights of a base, and list what was added
    to which tensor.

    Each tensor of an ADAPTER has one place in BASE, or nothing is written. The result
    has the names, the order and the dtypes of BASE; a product is float32, and the sum
    is rounded once. Without ADAPTER, BASE is a checkpoint of training that holds its
    own. Neither torch nor the code of the model is needed.

    \b
    ckpt merge base/ adapter/ -o merged/ --with-config
    ckpt merge base.safetensors style.safetensors detail.safetensors --weights 0.7,0.3 -o out.safetensors
    ckpt merge last.ckpt -o merged.safetensors
    """
    options, own = split_options("merge", [base, *adapters], keywords)
    numbers = _parse_weights(weights)

    def write(path: str, **written: Any) -> RewriteReport:
        return merge(path, adapters, weights=numbers, **own, **written)

    return rewrite_paths([base], write, options)


def _parse_weights(text: str | None) -> list[float] | None:
    """The numbers of --weights. Raises UsageError."""
    if text is None:
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--weights {show(text, 80)}: not numbers", hint="as in 0.7,0.3"
        ) from None

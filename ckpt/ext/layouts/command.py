"""`ckpt recipe`: two checkpoints, one call, one form; 0 all is explained, 1 something
is left, 2 trouble.
"""

from __future__ import annotations

from typing import Any

from ckpt.ext.layouts.recipe import recipe
from ckpt.ext.layouts.text import beside_text, recipe_lines
from ckpt.model.limits import Limits
from ckpt.model.text import pasted_path, show
from ckpt.surface.api.checkpoint import Checkpoint
from ckpt.surface.cli import output as shown
from ckpt.surface.cli.inputs import documenting_errors, opened


def command(
    before: str,
    after: str,
    *,
    json: bool,
    output: str | None,
    limits: Limits,
    **keywords: Any,
) -> int:
    """Find how B is made of A, and prove it byte by byte. Exit code 0 all of both, 1
    something is left, 2 trouble.

    A and B hold the same weights in two layouts, such as the base of Hugging Face and
    step 0 of a trainer. Fingerprints propose, bytes prove. The recipe, which -o writes,
    turns any other checkpoint of A's shapes into B's layout, and back.

    \b
    ckpt recipe hf.safetensors meta.pth
    ckpt recipe hf/ step_0/ -o to_megatron.json
    ckpt recipe hf/ 'step_0/tp*.pt' -o to_ranks.json
    ckpt recipe --check to_megatron.json hf_other/ other_step_0/
    """
    schema = "ckpt.recipe" if json else None

    def side(path: str) -> Checkpoint:
        with documenting_errors(path, schema):
            return opened(path, limits, in_ranks=True)

    with (
        side(before) as first,
        side(after) as second,
        documenting_errors(before, schema),
        shown.progress_meter("looking for layouts") as progress,
    ):
        report = recipe(
            first,
            second,
            out=output,
            progress=progress,
            limits=limits,
            **keywords,
        )
    if json:
        shown.write_json(report.to_json())
    elif not shown.is_silent():
        shown.write_lines(recipe_lines(report, shown.screen_width()))
    beside = beside_text(report)
    if beside is not None:
        shown.write_talk(f"ckpt: {beside}")
    if report.path is not None:
        command = f"ckpt convert A --recipe {pasted_path(report.path)} -o OUT"
        shown.write_talk(f"ckpt: wrote {show(report.path, None)}", command)
    return report.exit_code

"""`ckpt convert`: another format, plain classes, another dtype."""

from __future__ import annotations

from functools import partial
from typing import Any

from ckpt.commands.convert.api import convert
from ckpt.surface.api.config_files import with_folder_hint
from ckpt.surface.api.keywords import model_of
from ckpt.surface.api.writing import refuse_format, with_recipe
from ckpt.surface.cli.results import rewrite_paths, split_options


def command(paths: list[str], **keywords: Any) -> int:
    """Write a checkpoint in another format, or with --plain, without the classes of its
    author.

    safetensors get the model's tensors under their own names, and what is left out is
    listed. A tensor that does not fit is refused.

    A DCP, which torch.distributed.checkpoint.load reads with any mesh, is a folder: -o
    NAME.dcp, or --format dcp. With --section, --include or --exclude it gets the
    tensors of that part, under their own names.

    A plain file loads with weights_only=True of torch 2.13 (older ones:
    docs/commands/convert.md).

    \b
    ckpt convert model.pth -o model.safetensors
    ckpt convert train.pth --plain -o train.plain.pth
    """
    options, own = split_options("convert", paths, keywords)
    # Before the format is looked for, which such a word names in the wrong place.
    refuse_format(own["to"])
    with with_folder_hint(paths[0] if paths else None, options.places.out):
        places = with_recipe(
            options.places,
            own["recipe"],
            own["format"],
            own["shard_size"],
            reverse=own["reverse"],
            plain=own["plain"],
            optimizer=own["optimizer"],
            with_config=own["with_config"],
        )
    own["model"] = model_of(own["model"], own.pop("arg"))
    return rewrite_paths(
        paths, partial(convert, **own), options._replace(places=places)
    )

"""`ckpt strip`: names without prefixes."""

from __future__ import annotations

from functools import partial

from ckpt.api.writing import strip
from ckpt.cli.options import Exclude, Include, Link, Paths, Prefix, SectionOption
from ckpt.cli.results import ResultOptions, rewrite, writing


@writing
def command(
    paths: Paths = None,
    prefix: Prefix = None,
    include: Include = None,
    exclude: Exclude = None,
    section: SectionOption = None,
    link: Link = False,
    *,
    options: ResultOptions,
) -> int:
    """Strip the prefixes of wrappers from the names of tensors: module., _orig_mod., also nested.

    Module versions and the names in an optimizer change with them. Two names never become one.

    \b
    ckpt strip ddp.pth -o model.pth
    ckpt strip lightning.ckpt --prefix model. --in-place
    """
    return rewrite(
        paths,
        partial(
            strip,
            prefix=prefix,
            include=include,
            exclude=exclude,
            section=section,
            link=link,
        ),
        options,
    )

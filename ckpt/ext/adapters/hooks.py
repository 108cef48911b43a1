"""The answers that the core asks of this extension: about a comparison, about a file,
and for another name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from ckpt.commands.diff.diff import DiffReport
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.ext.adapters.checks import check_merge
from ckpt.ext.adapters.config import settings_at
from ckpt.ext.adapters.conversion import check_place, rename_adapter, write_settings
from ckpt.ext.adapters.description import Description, describe_adapter
from ckpt.ext.adapters.merge import say_of_merge
from ckpt.ext.adapters.reader import read_adapter, refuse_damage
from ckpt.model.errors import CkptError, about
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.surface.api.advice import add_way_out
from ckpt.surface.api.opening import Input, at_hand, path_of


def explained_by(
    report: DiffReport,
    adapter: Input,
    limits: Limits | None,
    *,
    exclude: Sequence[str] = (),
    plugins: bool = False,
) -> DiffReport:
    """The report of a comparison with what an adapter explains of it, without its
    tensors that `exclude` matches. Raises CkptError.
    """
    limits = limits or Limits()
    with at_hand(adapter, limits, plugins=plugins) as opened:
        with about(opened.path):
            try:
                select = Globs((), exclude) if exclude else None
                found = read_adapter(opened.survey, limits, select=select)
            except CkptError as error:
                say_of_merge(error)
                raise
            # A flipped bit of the adapter would make all pairs look wrong.
            refuse_damage(found)
        try:
            return check_merge(report, found)
        except CkptError as error:
            # diff leaves tensors of the adapter out too.
            if not (error.hint or "").startswith("--exclude "):
                say_of_merge(error)
            add_way_out(error, Survey(report.before), limits)
            raise


def description_of(
    survey: Survey,
    limits: Limits | None,
    base: Input | None,
    *,
    plugins: bool = False,
) -> Description | None:
    """Return what an adapter is, and whether it fits a base where one is given; or None
    for what is no adapter.

    Beside a file nothing is read; a folder has its settings. Raises CkptError where a
    base is given and nothing is known of the adapter.
    """
    try:
        with about(survey.path):
            adapter = read_adapter(
                survey,
                limits or Limits(),
                is_alone=base is None and not os.path.isdir(survey.path),
            )
    except CkptError as error:
        if base is not None:
            say_of_merge(error)
            raise
        return None
    if base is None:
        return describe_adapter(adapter, None, limits or Limits())
    with at_hand(base, limits, plugins=plugins) as opened:
        return describe_adapter(adapter, opened.survey, limits or Limits())


class Conversion:
    """An adapter that gets the names of another program while it is converted: a stage,
    and what is written after it.
    """

    def __init__(
        self,
        source: Input,
        names: str,
        base: Input | None,
        limits: Limits,
        *,
        plugins: bool,
        out: str | None,
        force: bool,
    ) -> None:
        self._names = names
        self._base = base
        self._limits = limits
        self._plugins = plugins
        self._force = force
        self._settings: str | None = None
        # PEFT reads adapter_config.json beside the weights: its place comes first.
        if names == "peft":
            check_place(out, force=force)
        # Opening doubts damaged settings, and this refuses them: one of both is said.
        path = path_of(source)
        if os.path.exists(path):
            with about(path):
                settings_at(path, limits)

    def __call__(self, survey: Survey) -> RewriteReport:
        """Return the adapter in its new names. Raises UsageError, UnsupportedError."""
        with ExitStack() as stack:
            base = None
            if self._base is not None:
                base = stack.enter_context(
                    at_hand(self._base, self._limits, plugins=self._plugins)
                ).survey
            try:
                done = rename_adapter(survey, self._limits, self._names, base)
            except CkptError as error:
                say_of_merge(error)
                raise
        self._settings = done.settings
        return done.report

    def finish(self, report: RewriteReport) -> RewriteReport:
        """Write what belongs beside the result. Raises WriteError."""
        return (
            report
            if self._settings is None
            else write_settings(report, self._settings, force=self._force)
        )

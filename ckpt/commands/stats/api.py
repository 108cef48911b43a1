"""The function `ckpt.stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.bytes.executor import current_executor
from ckpt.model.limits import Limits
from ckpt.surface.api.keywords import Texts, gate_of, globs_of, text_only
from ckpt.surface.api.opening import Input, at_hand, weights_of
from ckpt.surface.api.progress import Progress, metered_reading

if TYPE_CHECKING:
    from ckpt.commands.stats.stats import StatsReport


def stats(
    source: Input,
    *,
    include: Texts = (),
    exclude: Texts = (),
    section: str | None = None,
    all: bool = False,
    channels: bool = False,
    threshold: float = 1e-3,
    histogram: bool = False,
    dequantize: bool = False,
    sort: str = "name",
    select: Texts = (),
    ignore: Texts = (),
    level: str | None = None,
    fail_on: Texts = (),
    progress: Progress | None = None,
    limits: Limits | None = None,
    plugins: bool = False,
) -> StatsReport:
    """Measure the tensors of the only model, of a `section`, or `all`, and return the
    report of `ckpt stats`.

    `report.rows` are the tensors with their numbers, `report.unread` those that could
    not be read. With `dequantize` quantised weights are measured as the floats that
    they stand for. Raises CkptError.
    """
    from ckpt.commands.stats.stats import stats as job

    text_only(section=section, sort=sort)
    gate = gate_of("stats", select, ignore, level, fail_on)
    globs = globs_of(include, exclude)
    # A finding on dead channels needs them measured, with `channels` or without.
    wants_channels = channels or "dead-channels" in gate.fails | gate.rules.select
    with (
        at_hand(source, limits, plugins=plugins) as opened,
        metered_reading(progress, opened) as meter,
    ):
        report = job(
            weights_of(opened, dequantize=dequantize),
            globs,
            section,
            threshold=threshold if wants_channels else None,
            sort=sort,
            everything=all and section is None,
            histogram=histogram,
            progress=meter,
            executor=current_executor(),
        )
        # Numbers of a file that was saved over meanwhile would be of two saves.
        opened.check_unchanged()
    return report._replace(findings=gate.rules.kept(report.findings), gate=gate)

"""`ckpt verify`: one line per file; 0 intact, 1 damaged, 2 unreadable."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.commands.sum.sums import listed_path
from ckpt.commands.verify.api import verify
from ckpt.commands.verify.text import verify_lines
from ckpt.commands.verify.verify import (
    EXIT_CODES,
    Problem,
    unreadable_report,
    with_recorded,
)
from ckpt.model.errors import CkptError, UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.model.text import Json as JsonValue
from ckpt.model.text import and_more, counted_noun, show
from ckpt.surface.api.stored import Stored, checked_with, piped_sums
from ckpt.surface.api.walk import Found, find_items_to_open, is_concern
from ckpt.surface.cli import output
from ckpt.surface.cli.answers import Answer, write_answers
from ckpt.surface.cli.fencing import fence_in
from ckpt.surface.cli.inputs import (
    STDIN,
    TROUBLE,
    named_paths,
    plugins_allowed,
    run_for_each,
    stdin_bytes,
    using_cluster,
    worst_code,
)
from ckpt.surface.text.lines import plain_text


def command(
    paths: list[str],
    *,
    quick: bool,
    sums: str | None,
    like: str | None,
    root: str | None,
    against: str | None,
    include: list[str] | None,
    exclude: list[str] | None,
    section: str | None,
    json: bool,
    hide_intact: bool,
    files_from: list[str] | None,
    require: bool,
    jobs: int | None,
    cluster: str | None,
    limits: Limits,
) -> int:
    """Check whether files are intact: structure, checksums, shards. Exit code 0 intact,
    1 damaged, 2 unreadable.

    Every recorded checksum is compared with the bytes. Where a format records none, the
    report says so. For a file that is cut off, it names the tensors that are lost. With
    a list of `ckpt sum --recorded`, --sums also compares item by item, file by file and
    step by step; --quick then reads directories only.

    \b
    ckpt verify runs/
    ckpt sum model.pth > model.sums; ckpt verify copy.safetensors --sums model.sums
    ckpt verify models/llama --against hf://ORG/MODEL@REVISION
    """
    is_piped = sums == STDIN
    if is_piped and STDIN in (files_from or ()):
        raise UsageError(
            "--sums - reads stdin, and so does another -", hint="--sums FILE"
        )
    names = named_paths(paths, files_from, require=require)
    fence_in(
        [*names, None if is_piped else sums, like, against],
        workers=True,
        cluster=cluster,
    )
    if against is not None:
        return _verified_against(
            against, names, as_json=json, hides_intact=hide_intact, limits=limits
        )
    plugins = plugins_allowed()
    globs = Globs(include or (), exclude or ())
    stored: str | Stored | None = sums
    if is_piped:
        stored = piped_sums(stdin_bytes("--sums", limits.index_bytes), globs)
    expected, other = checked_with(
        stored, like, globs, section, limits, quick=quick, plugins=plugins
    )

    def answer(item: Found) -> Answer:
        # A file in a folder that the list does not name is a problem, and not an error.
        files = [] if item.named or expected is None else expected.files()
        wanted = None if files and listed_path(item.path, files) is None else expected
        if item.error is not None:
            report = unreadable_report(item.path, item.error.failure(item.path))
        else:
            with output.progress_meter("checking") as progress:
                report = verify(
                    item.path,
                    quick=quick,
                    sums=wanted,
                    like=other,
                    root=root,
                    section=section,
                    progress=progress,
                    limits=limits,
                    plugins=plugins,
                )
        if report.error is not None and not is_concern(item, report.error.code):
            raise UnsupportedError(report.error.message)
        if expected is not None and wanted is None and report.format is not None:
            problem = Problem(f"not in {show(expected.path, 80)}")
            report = with_recorded(report, (problem,), "", quick=quick)
        if json:
            return Answer(report.exit_code, document=report.to_json())
        if output.is_silent() and report.exit_code:  # on stderr, as other errors
            text = f"ckpt: {plain_text(verify_lines(report)).rstrip()}"
            # Damage, without the command that saves the rest.
            if report.exit_code != TROUBLE:
                text = text.partition("\n")[0]
            return Answer(report.exit_code, talk=[text], is_loud=True)
        if hide_intact and not report.exit_code:
            shown = []
        else:
            shown = verify_lines(report, output.screen_width())
        return Answer(report.exit_code, lines=shown)

    items = find_items_to_open(names, limits, plugins=plugins)
    failed = _failure_document if json else None
    with using_cluster(cluster, names) as is_cluster:
        # A process that talks to a cluster is not copied.
        count = 1 if is_cluster else jobs
        codes = write_answers(
            names, items, answer, json=failed, jobs=count, doing="checking"
        )
    gone = [] if expected is None else _unmatched_paths(expected, items)
    if gone and sums is not None:
        listed_paths = and_more([show(path, 80) for path in gone], 3)
        output.write_talk(
            f"ckpt: {show(sums, None)}: not compared, no such checkpoint here: "
            f"{listed_paths}"
        )
        if all(item.named for item in items):
            gone = []  # only a folder should hold them all
    if len(codes) + len(gone) > 1 and not json:
        output.write_conclusion(_summary_text(codes, len(gone)))
    return worst_code([*codes, EXIT_CODES["damaged"]] if gone else codes)


def _verified_against(
    against: str, names: list[str], *, as_json: bool, hides_intact: bool, limits: Limits
) -> int:
    """Compare each PATH with what Hugging Face publishes at a URL; the exit code."""
    # Here: few command lines ask for it.
    from ckpt.commands.verify.copies import listing_at

    listing = listing_at(against)
    codes: list[int] = []

    def one(path: str) -> int:
        with output.progress_meter("checking") as progress:
            report = verify(path, against=listing, progress=progress, limits=limits)
        codes.append(report.exit_code)
        if as_json:
            output.write_json(report.to_json())
        elif output.is_silent() and report.exit_code:
            output.write_complaint(f"ckpt: {plain_text(verify_lines(report)).rstrip()}")
        elif report.exit_code or not hides_intact:
            output.write_lines(verify_lines(report, output.screen_width()))
        return report.exit_code

    code = run_for_each(names, one, json="ckpt.verify" if as_json else None)
    if len(codes) > 1 and not as_json:
        output.write_conclusion(_summary_text(codes, 0))
    return code


def _unmatched_paths(stored: Stored, items: Sequence[Found]) -> list[str]:
    """The checkpoints that the file of sums lists and that are not among those to be
    checked.
    """
    files = stored.files()
    matches = {listed_path(item.path, files) for item in items}
    return [path for path in files if path not in matches]


def _failure_document(path: str, error: CkptError) -> dict[str, JsonValue]:
    """The document of a folder without a checkpoint."""
    return unreadable_report(path, error.failure(path)).to_json()


def _summary_text(codes: Sequence[int], missing: int) -> str:
    """`5 files: 3 intact, 1 damaged, 1 unreadable`; the checkpoints that a list has and
    a folder lacks count too.
    """
    counts = [(codes.count(code), verdict) for verdict, code in EXIT_CODES.items()]
    parts = ", ".join(f"{count:,} {verdict}" for count, verdict in counts if count)
    parts += f", {missing:,} missing" if missing else ""
    return f"{counted_noun(len(codes) + missing, 'file')}: {parts}"

"""`ckpt rename`: names of tensors changed by substitutions, as `sed` writes them."""

from __future__ import annotations

import re
import warnings

from ckpt.commands.rewriting.edited import with_ties
from ckpt.commands.rewriting.names import in_scope, with_new_names
from ckpt.commands.rewriting.report import Change, RewriteReport, refuse_script
from ckpt.commands.rewriting.sets import refuse_incomplete
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show


class Substitution(NamedTuple):
    """`s/PATTERN/REPLACEMENT/`: a regular expression of Python, the first match or with
    `g` every one.
    """

    text: str
    pattern: re.Pattern[str]
    replacement: str
    times: int

    def apply(self, name: str) -> str:
        return self.pattern.sub(self.replacement, name, count=self.times)


def substitution(text: str) -> Substitution:
    """Parse the text of `--sub`. Any character may stand for the slash; a backslash
    before it makes it plain.

    Raises UsageError.
    """
    hint = "as in 's/^encoder\\./enc./'"
    if len(text) < 4 or text[0] != "s" or text[1].isalnum() or text[1] in "\\ ":
        raise UsageError(f"--sub {show(text, 80)}: not a substitution", hint=hint)
    mark = text[1]
    parts = re.split(rf"(?<!\\){re.escape(mark)}", text[2:])
    if len(parts) != 3 or parts[2] not in ("", "g"):
        raise UsageError(
            f"--sub {show(text, 80)}: not s{mark}PATTERN{mark}REPLACEMENT{mark}",
            hint=hint,
        )
    pattern = parts[0].replace(f"\\{mark}", re.escape(mark))
    replacement = parts[1].replace(f"\\{mark}", mark)
    try:
        with warnings.catch_warnings():
            # Of a set that another syntax may nest one day.
            warnings.simplefilter("ignore", FutureWarning)
            compiled = re.compile(pattern)
        # Refuses a group that the pattern lacks, though nothing matches.
        compiled.sub(replacement, "")
    except RecursionError:
        raise UsageError(
            f"--sub {show(text, 80)}: it is nested too deep", hint=hint
        ) from None
    except (re.error, IndexError, OverflowError) as error:
        raise UsageError(f"--sub {show(text, 80)}: {error}", hint=hint) from None
    return Substitution(text, compiled, replacement, 0 if parts[2] else 1)


def rename(
    survey: Survey,
    subs: list[Substitution],
    limits: Limits,
    *,
    section: str | None = None,
    select: Globs | None = None,
) -> RewriteReport:
    """The checkpoint with the names of its models' tensors changed, each substitution
    after the other.

    Names are those inside their section. Raises UsageError when nothing matches,
    LossError when two names would become one.
    """
    source = survey.checkpoint
    refuse_script(source)
    refuse_incomplete(source)
    survey = with_ties(survey, limits)

    def new_name(name: str) -> str:
        for sub in subs:
            name = sub.apply(name)
        return name

    chosen, renamed = in_scope(survey, section, select, new_name)
    result, names = with_new_names(survey, chosen, renamed, limits)
    if not names:
        listed = ", ".join(show(name, 60) for name in chosen[0].names()[:3])
        raise UsageError(
            "no name matches", path=source.path, hint=f"names are like {listed}"
        )
    changes: list[Change] = []
    for where, pairs in names.items():
        for old, new in pairs.items():
            changes.append(Change("name", old, new, 1, "", section=where))
    return RewriteReport("rename", source, result, tuple(changes))

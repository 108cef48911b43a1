"""From the parts of a job to the results of all its tasks. Parts that are missing, double or of another job are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpt.errors import CkptError, UnreadableError, UsageError
from ckpt.io.executor import Task
from ckpt.jobs.parts.document import Part
from ckpt.jobs.parts.results import decoded
from ckpt.jobs.parts.share import Input, Share, cut, plan_of
from ckpt.text import plural, show

_NAMED = 20
"""Missing parts that are named, each on its line."""


def refusals(parts: Sequence[Part], version: str) -> list[CkptError]:
    """Why parts are not the whole of one job: one error for each part that differs, is there twice or is missing."""
    found: list[CkptError] = []
    first = parts[0]
    if first.version != version:
        text = f"{first.share} is of ckpt {show(first.version, 40)}, this is {version}"
        return [UsageError(text, path=first.file, hint="merge with the version that made the parts")]
    seen: dict[int, str] = {}
    for part in parts:
        other = _difference(first, part)
        if other is not None:
            text = f"{part.share} differs from {first.share} in {other}"
            found.append(UsageError(text, path=part.file))
        elif part.share.number in seen:
            text = f"{part.share} is there twice, also as {show(seen[part.share.number], 80)}"
            found.append(UsageError(text, path=part.file))
        else:
            seen[part.share.number] = part.file
    count = first.share.of
    missing = count - len(seen)
    named = 0
    for index in range(count):
        if named == min(missing, _NAMED):
            break
        if index not in seen:
            found.append(UsageError(f"{Share(index, count)} is missing"))
            named += 1
    if missing > named:
        found.append(UsageError(f"{plural(missing - named, 'further part')} of {count:,} are missing"))
    return found


def _difference(one: Part, two: Part) -> str | None:
    """What tells two parts apart that should be of one job."""
    pairs: list[tuple[str, object, object]] = [
        ("the version of ckpt", one.version, two.version),
        ("the command", one.command, two.command),
        ("the number of parts", one.share.of, two.share.of),
        ("the number of inputs", len(one.inputs), len(two.inputs)),
    ]
    pairs += [
        (f"the files of {show(ours.path, 80)}", ours.digest, theirs.digest)
        for ours, theirs in zip(one.inputs, two.inputs, strict=False)
    ]
    pairs += [(f"--{name}", one.options.get(name), value) for name, value in two.options.items()]
    pairs += [("the options", one.options, two.options), ("the tasks", one[4:6], two[4:6])]
    return next((what for what, ours, theirs in pairs if ours != theirs), None)


def check_inputs(parts: Sequence[Part], inputs: Sequence[Input], tasks: Sequence[Task[object]]) -> None:
    """Raise UnreadableError where the files are not those that the parts were made of."""
    for told, now in zip(parts[0].inputs, inputs, strict=True):
        if told.digest != now.digest:
            text = "not the files that the parts were made of, or changed since"
            raise UnreadableError(text, path=now.path)
    if (parts[0].tasks, parts[0].plan) != (len(tasks), plan_of(tasks)):
        raise UnreadableError("the parts are of other tasks than this file has", path=parts[0].file)


def results_of_all(parts: Sequence[Part], tasks: Sequence[Task[object]]) -> list[object]:
    """The results of all tasks in their order. Raises UnreadableError where a part holds others."""
    found: list[object] = []
    for part in sorted(parts, key=lambda part: part.share.number):
        first, last = cut(tasks, part.share)
        if (part.first, len(part.results)) != (first, last - first):
            text = f"{part.share} holds {plural(len(part.results), 'result')}, it has {plural(last - first, 'task')}"
            raise UnreadableError(text, path=part.file)
        for result, task in zip(part.results, tasks[first:last], strict=True):
            try:
                found.append(decoded(result, task))
            except UnreadableError as error:
                raise UnreadableError(f"{part.share} {error.problem}", path=part.file) from None
    return found


def checked_options(part: Part, types: Mapping[str, str]) -> dict[str, object]:
    """The options of a part as arguments. `types` are those of the command. Raises UnreadableError."""
    made: dict[str, object] = {}
    for name, value in part.options.items():
        if name not in types or not _fits(value, types[name]):
            raise UnreadableError(f"is not a part: it has an option {show(name, 40)}", path=part.file)
        made[name] = value
    if made.keys() != types.keys():
        raise UnreadableError("is not a part: an option is missing", path=part.file)
    return made


def _fits(value: object, kind: str) -> bool:
    if kind == "texts":
        return value is None or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    if kind == "text":
        return value is None or isinstance(value, str)
    if kind == "number":
        return value is None or (type(value) in (int, float) and abs(float(str(value))) <= 1e300)
    return isinstance(value, bool)

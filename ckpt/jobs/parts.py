"""Parts of a job: what one machine of several measures, as a document `ckpt.part`, and how the parts become the whole.

Their results write and read themselves as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import inf, isnan
from struct import pack, unpack
from typing import TYPE_CHECKING, TypeVar, cast

from ckpt import __version__
from ckpt.checkpoint import Entry
from ckpt.elements.cast import has_numbers
from ckpt.elements.histogram import Histogram
from ckpt.elements.measure import Channels, Difference, Measurement, Summary
from ckpt.errors import CkptError, LimitError, NotOpenedError, UnreadableError, UsageError
from ckpt.io.executor import Bundle, Executor, Failed, Task, run_each
from ckpt.io.source import Source
from ckpt.limits import Budget, Limits, parse_json
from ckpt.rows import NamedTuple
from ckpt.text import Json, plural, show

if TYPE_CHECKING:
    from ckpt.elements.measure import ChannelLayout

_MOST = 1 << 64
"""More than any count, and than any integer in a tensor."""
_CRC = (1 << 32) - 1
"""The largest CRC-32."""
_TEXT = 1 << 16
"""The longest text of an error."""
_SUM, _BYTES = re.compile(r"[0-9a-f]{64}"), re.compile(r"(?:[0-9a-f]{16})*")
_SIDES = 2


class WrongResultError(Exception):
    """The error for a result that its task cannot have."""


def is_known(task: Task[object]) -> bool:
    """Tell whether the result of a task can be written. Its function says so by the type that it returns."""
    return getattr(task.function, "__annotations__", {}).get("return") in _KINDS


def encoded(result: object) -> Json:
    """A result as JSON."""
    if isinstance(result, Failed):
        return {"failed": result.problem}
    if isinstance(result, Measurement):
        return {
            **_summary(result.summary),
            "channels": _channels(result.channels),
            "crc": result.crc and result.crc[0],
        }
    if isinstance(result, Difference):
        return _difference(result)
    if isinstance(result, tuple) and len(result) == _SIDES:
        return {"crc": result[0], "problem": result[1]}
    if isinstance(result, tuple):
        nbytes, damage, unchecked = result
        return {"nbytes": nbytes, "damage": [[*row] for row in damage], "unchecked": unchecked}
    assert result is None or isinstance(result, (str, bool)), result
    return result


def decoded(document: Json, task: Task[object]) -> object:
    """The result of a task from its JSON. Raises UnreadableError where it cannot be one."""
    try:
        if isinstance(document, dict) and document.keys() == {"failed"}:
            return Failed(_text(document["failed"]))
        return _KINDS[str(task.function.__annotations__["return"])](document, task)
    except (WrongResultError, KeyError):
        raise UnreadableError("holds a result that is not one of its task") from None


# --- numbers ----------------------------------------------------------------------------------------------------------


def _count(value: Json, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise WrongResultError
    return value


def _counts(value: Json, most: int) -> list[int]:
    if not isinstance(value, list) or len(value) != _SIDES:
        raise WrongResultError
    return [_count(item, most) for item in value]


def _float(value: Json, *, least: float = -inf) -> float:
    if not isinstance(value, str) or len(value) > 40:
        raise WrongResultError
    try:
        number = float.fromhex(value)
    except (ValueError, OverflowError):
        raise WrongResultError from None
    if number < least:
        raise WrongResultError
    return number


def _text(value: Json) -> str:
    if not isinstance(value, str) or len(value) > _TEXT:
        raise WrongResultError
    return value


def _fields(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise WrongResultError
    return value


def _number(value: float | int | None) -> Json:
    return value.hex() if isinstance(value, float) else value


def _number_back(value: Json) -> float | int | None:
    if value is None or isinstance(value, str):
        number = None if value is None else _float(value)
        if number is not None and (isnan(number) or number in (inf, -inf)):
            raise WrongResultError
        return number
    if type(value) is not int or abs(value) > _MOST:
        raise WrongResultError
    return value


# --- statistics -------------------------------------------------------------------------------------------------------


def _summary(summary: Summary) -> dict[str, Json]:
    return {
        "numel": summary.numel,
        "finite": summary.finite,
        "low": _number(summary.low),
        "high": _number(summary.high),
        "mean": summary.mean.hex(),
        "spread": summary.spread.hex(),
        "squares": summary.squares.hex(),
        "zeros": summary.zeros,
        "nan": summary.nan,
        "inf": summary.inf,
        "histogram": _histogram(summary.histogram),
    }


def _histogram(histogram: Histogram | None) -> Json:
    if histogram is None:
        return None
    low, high = _number(histogram.low), _number(histogram.high)
    return {"low": low, "high": high, "counts": [*histogram.counts]}


def _histogram_back(value: Json, most: int, *, is_asked: bool) -> Histogram | None:
    """The histogram of at most so many numbers."""
    if not is_asked:
        if value is not None:
            raise WrongResultError
        return None
    fields = _fields(value)
    counts = fields["counts"]
    if not isinstance(counts, list):
        raise WrongResultError
    numbers = [_count(count, most) for count in counts]
    low, high = _number_back(fields["low"]), _number_back(fields["high"])
    if low is None or high is None or sum(numbers) > most:
        raise WrongResultError
    try:
        return Histogram.of(low, high, numbers)
    except ValueError:
        raise WrongResultError from None


def _measurement(value: Json, task: Task[object]) -> Measurement:
    fields = _fields(value)
    ref, layout, first, histogram, crc = task.arguments
    summary = Summary()
    summary.numel = _count(fields["numel"])
    if summary.numel != ref.numel:
        raise WrongResultError
    summary.finite, summary.zeros = (_count(fields[name], summary.numel) for name in ("finite", "zeros"))
    summary.nan, summary.inf = (_count(fields[name], summary.numel) for name in ("nan", "inf"))
    summary.low, summary.high = _number_back(fields["low"]), _number_back(fields["high"])
    if (summary.low is None, summary.high is None) != (not summary.finite, not summary.finite):
        raise WrongResultError
    summary.mean = _float(fields["mean"])
    summary.spread, summary.squares = (_float(fields[name], least=0.0) for name in ("spread", "squares"))
    summary.histogram = _histogram_back(fields["histogram"], summary.finite, is_asked=histogram)
    if summary.histogram is not None and sum(summary.histogram.counts) != summary.finite:
        raise WrongResultError
    if (fields["crc"] is not None) != crc:
        raise WrongResultError
    checksum = (_count(fields["crc"], _CRC), ref.nbytes) if crc else None
    return Measurement(summary, _channels_back(fields["channels"], layout, first), checksum)


def _channels(channels: Channels | None) -> Json:
    if channels is None:
        return None
    first, sums = channels.window()
    return {"first": first, "sums": pack(f"<{len(sums)}d", *sums).hex()}


def _channels_back(value: Json, layout: ChannelLayout | None, first: int) -> Channels | None:
    if layout is None:
        if value is not None:
            raise WrongResultError
        return None
    fields = _fields(value)
    text = fields["sums"]
    begin = _count(fields["first"], layout.channels)
    if not isinstance(text, str) or len(text) > 16 * (layout.channels - begin) or not _BYTES.fullmatch(text):
        raise WrongResultError
    sums = unpack(f"<{len(text) // 16}d", bytes.fromhex(text))
    channels = Channels(layout.channels, layout.inner, first)
    channels.sums[begin : begin + len(sums)] = sums
    return channels


# --- differences ------------------------------------------------------------------------------------------------------


def _difference(difference: Difference) -> dict[str, Json]:
    return {
        "numel": difference.numel,
        "differing": difference.differing,
        "other_bytes": difference.other_bytes,
        "largest": difference.largest.hex(),
        "at": difference.at,
        "squares": difference.squares.hex(),
        "reference": difference.reference.hex(),
        "nan": [*difference.nan],
        "inf": [*difference.inf],
        "close": difference.close,
        "histogram": _histogram(difference.histogram),
    }


def _difference_back(value: Json, task: Task[object]) -> Difference | None:
    if value is None:
        return None
    fields = _fields(value)
    before, after, _, _, histogram = task.arguments
    is_measured = has_numbers(before.dtype) and has_numbers(after.dtype)
    difference = Difference()
    difference.numel = _count(fields["numel"])
    if difference.numel != (before.numel if is_measured else 0):
        raise WrongResultError
    difference.differing, difference.other_bytes = (
        _count(fields[name], difference.numel) for name in ("differing", "other_bytes")
    )
    difference.largest = _float(fields["largest"], least=0.0)
    difference.at = None if fields["at"] is None else _count(fields["at"], difference.numel - 1)
    difference.squares, difference.reference = (
        _float(fields[name], least=0.0) for name in ("squares", "reference")
    )
    difference.nan, difference.inf = (_counts(fields[name], difference.numel) for name in ("nan", "inf"))
    if not isinstance(fields["close"], bool):
        raise WrongResultError
    difference.close = fields["close"]
    difference.histogram = _histogram_back(
        fields["histogram"], difference.numel, is_asked=histogram and is_measured
    )
    return difference


# --- sums -------------------------------------------------------------------------------------------------------------


def _sum(value: Json, task: Task[object]) -> str:
    if not isinstance(value, str) or not _SUM.fullmatch(value):
        raise WrongResultError
    return value


def _crc(value: Json, task: Task[object]) -> tuple[int, str | None]:
    fields = _fields(value)
    problem = fields["problem"]
    return _count(fields["crc"], _CRC), None if problem is None else _text(problem)


def _report(value: Json, task: Task[object]) -> tuple[int, list[tuple[str, str]], int]:
    fields = _fields(value)
    rows = fields["damage"]
    if not isinstance(rows, list):
        raise WrongResultError
    return _count(fields["nbytes"]), [_damage(row) for row in rows], _count(fields["unchecked"])


def _damage(row: Json) -> tuple[str, str]:
    if not isinstance(row, list) or len(row) != _SIDES:
        raise WrongResultError
    return _text(row[0]), _text(row[1])


def _equality(value: Json, task: Task[object]) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise WrongResultError
    return value


_KINDS: dict[str, Callable[[Json, Task[object]], object]] = {
    "Measurement": _measurement,
    "Difference | None": _difference_back,
    "str": _sum,
    "tuple[int, str | None]": _crc,
    "tuple[int, list[tuple[str, str]], int]": _report,
    "bool | None": _equality,
}
"""The type that a task returns, as written in the definition of its function -> the reader of its JSON."""


_EDGE = 16 << 10
"""Bytes at each end of a file that are read: headers, and the directory of a zip archive with its checksums."""
_PIECES, _PIECE = 64, 4 << 10
"""The pieces of all files together that tell a copy from other content of the same ends, and the bytes of each."""


class Input(NamedTuple):
    """A checkpoint as a part has read it. `digest` is the SHA-256 of what tells its files from others.

    `content` is the SHA-256 of what a copy has in common with them, or None where only ETags tell.
    """

    path: str
    files: int
    nbytes: int
    digest: str
    content: str | None = None


def input_of(path: str, sources: Sequence[Source], tensors: Iterable[Entry] = ()) -> Input:
    """Return what tells the files of the checkpoint at a path from others: names, sizes, times or ETags, and both ends.

    A copy has other times. It is told by pieces of its bytes, and by the names, dtypes and shapes of its tensors.
    Devices, inodes and the folder above are left out, because they differ where a file system is mounted twice, and so
    is the name of a file that is the whole checkpoint. Raises NotOpenedError.
    """
    rows = [(_name(source, path, len(sources)), source, _edges(source)) for source in sources]
    rows.sort(key=lambda row: (row[0], row[2]))
    digest = _sha256(f"{name}\0{source.identity[-2:]}\0{edges}\n" for name, source, edges in rows)
    content = None
    if all(source.far is None for source in sources):
        common = [f"{name}\0{source.size}\0{edges}\n" for name, source, edges in rows]
        common += _pieces([source for _, source, _ in rows])
        shapes = (f"{entry.name}\0{entry.tensor.dtype.name}\0{entry.tensor.shape}\n" for entry in tensors)
        content = _sha256(chain(common, shapes))
    return Input(path, len(sources), sum(source.size for source in sources), digest, content)


def _sha256(texts: Iterable[str]) -> str:
    checksum = hashlib.sha256()
    for text in texts:
        checksum.update(text.encode("utf-8", "surrogatepass"))
    return checksum.hexdigest()


def _name(source: Source, path: str, count: int) -> str:
    """The name of a file inside of its checkpoint, which has so many."""
    start = "" if path == os.curdir else f"{path.rstrip('/')}/"
    if source.name.startswith(start):
        return source.name.removeprefix(start)
    return source.name.rpartition("/")[2] if count > 1 else ""


def _edges(source: Source) -> str:
    """SHA-256 of the ends of a file, in hexadecimal. An object has an ETag instead, which costs no request."""
    if source.far is not None:
        return ""
    checksum = hashlib.sha256(source.read(0, min(_EDGE, source.size)))
    if source.size > _EDGE:
        checksum.update(source.read(source.size - _EDGE, _EDGE))
    return checksum.hexdigest()


def _pieces(sources: Sequence[Source]) -> Iterator[str]:
    """Pieces at even distances in the bytes of all files, in hexadecimal. A disk that fails there is not named here."""
    total = sum(source.size for source in sources)
    places = [total * (2 * number + 1) // (2 * _PIECES) for number in range(_PIECES if total else 0)]
    begin = 0
    for source in sources:
        for place in places:
            if begin <= place < begin + source.size:
                with suppress(NotOpenedError):
                    yield source.read(place - begin, min(_PIECE, begin + source.size - place)).hex()
        begin += source.size


R = TypeVar("R")
_EACH = 1 << 16
"""Bytes that a task counts beside its own: opening and computing take time, too."""


class Share(NamedTuple):
    """One part of a job: `number` of `of`, from 0."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"part {self.number:,} of {self.of:,}"


class Notes:
    """An executor that runs nothing and notes the tasks.

    A job sees each of them fail, and ends with a report that says nothing. The tasks of a format of another
    distribution are run: they have no part in the cut.
    """

    def __init__(self) -> None:
        self.tasks: list[Task[object]] = []

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        return [cast("R", self._noted(task)) if _is_cut(task) else task() for task in tasks]

    def _noted(self, task: Task[object]) -> list[Failed]:
        assert isinstance(task, Bundle)
        self.tasks += task.tasks
        return [Failed("noted")] * len(task.tasks)


class Mine:
    """An executor that runs the tasks `first` to `last` of a job while its files are open.

    It writes down their results. The other tasks fail, as in `Notes`. `failed` are the reasons of the tasks
    that could not be read.
    """

    def __init__(
        self, executor: Executor, first: int, last: int, progress: Callable[[int], None] | None = None
    ) -> None:
        self.results: list[Json] = []
        self.failed: list[str] = []
        self._executor = executor
        self._range = range(first, last)
        self._progress = progress
        self._at = 0

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        mine: list[Task[object]] = []
        places: list[range] = []
        for task in tasks:
            inside = task.tasks if isinstance(task, Bundle) and _is_cut(task) else ()
            places.append(range(self._at, self._at + len(inside)))
            mine += [
                part_task for place, part_task in zip(places[-1], inside, strict=True) if place in self._range
            ]
            self._at = places[-1].stop
        done = run_each(self._executor, mine, self._progress)
        self.results += map(encoded, done)  # now, for the job goes on with them
        self.failed += [outcome.problem for outcome in done if isinstance(outcome, Failed)]
        outcomes = iter(done)
        return [
            cast("R", [next(outcomes) if place in self._range else Failed("noted") for place in row])
            if _is_cut(task)
            else task()
            for task, row in zip(tasks, places, strict=True)
        ]


class Known:
    """An executor that runs nothing, and hands in the results of the tasks in their order."""

    def __init__(self, results: Sequence[object]) -> None:
        self._left = iter(results)

    def run(self, tasks: Sequence[Task[R]], progress: Callable[[int], None] | None = None) -> list[R]:
        return [cast("R", self._handed(task)) if _is_cut(task) else task() for task in tasks]

    def _handed(self, task: Task[object]) -> list[object]:
        assert isinstance(task, Bundle)
        return [next(self._left) for _ in task.tasks]


def _is_cut(task: Task[object]) -> bool:
    return isinstance(task, Bundle) and all(map(is_known, task.tasks))


def plan_of(tasks: Sequence[Task[object]]) -> str:
    """SHA-256 of what the tasks are, in hexadecimal: equal on all machines that note the same ones."""
    checksum = hashlib.sha256()
    for task in tasks:
        checksum.update(f"{task.function.__module__}.{task.function.__qualname__} {task.nbytes}\n".encode())
    return checksum.hexdigest()


def cut(tasks: Sequence[Task[object]], share: Share) -> tuple[int, int]:
    """The first task of a part, and the first one behind it. Parts have about as many bytes each, neighbours together."""
    total = sum(task.nbytes + _EACH for task in tasks)
    first = last = done = 0
    for number, task in enumerate(tasks, 1):
        middle = 2 * done + task.nbytes + _EACH  # twice where its middle lies, so that all are whole numbers
        part = middle * share.of // (2 * total)
        first += part < share.number
        last = number if part <= share.number else last
        done += task.nbytes + _EACH
    return first, max(first, last)


_NAMED = 20
"""Missing parts that are named, each on its line."""


def refusals(parts: Sequence[Part]) -> list[CkptError]:
    """Return an error for each part that differs, is there twice or is missing from the job."""
    errors: list[CkptError] = []
    first = parts[0]
    seen: dict[int, str] = {}
    for part in parts:
        other = _unlike(first, part)
        if other is not None:
            text = f"{part.share} differs from {first.share} in {other}"
            errors.append(UsageError(text, path=part.file))
        elif part.share.number in seen:
            text = f"{part.share} is there twice, also as {show(seen[part.share.number], None)}"
            errors.append(UsageError(text, path=part.file))
        else:
            seen[part.share.number] = part.file
    count = first.share.of
    missing = count - len(seen)
    named = 0
    for index in range(count):
        if named == min(missing, _NAMED):
            break
        if index not in seen:
            errors.append(UsageError(f"{Share(index, count)} is missing"))
            named += 1
    if missing > named:
        errors.append(UsageError(f"{plural(missing - named, 'further part')} of {count:,} are missing"))
    return errors


def _unlike(part: Part, other: Part) -> str | None:
    """Name the first difference between two parts that should be of one job, or return None."""
    pairs: list[tuple[str, object, object]] = [
        ("the command", part.command, other.command),
        ("the number of parts", part.share.of, other.share.of),
        ("the number of inputs", len(part.inputs), len(other.inputs)),
    ]
    pairs += [
        (f"the files of {show(ours.path, 80)}", ours.digest, theirs.digest)
        for ours, theirs in zip(part.inputs, other.inputs, strict=False)
    ]
    pairs += [(f"--{name}", part.options.get(name), value) for name, value in other.options.items()]
    pairs += [
        ("the options", part.options, other.options),
        ("whether the file opens", part.problem is None, other.problem is None),
        ("the tasks", (part.tasks, part.plan), (other.tasks, other.plan)),
    ]
    return next((what for what, ours, theirs in pairs if ours != theirs), None)


def check_inputs(parts: Sequence[Part], inputs: Sequence[Input], *, is_copy: bool) -> list[tuple[str, str]]:
    """Raise UnreadableError where the files are not those that the parts were made of; with `is_copy`, nor copies.

    Return the paths of the copies, each with the path of its original.
    """
    first = parts[0]
    copies: list[tuple[str, str]] = []
    if len(first.inputs) != len(inputs):
        raise UnreadableError("is not a part: an input is missing", path=first.file)
    for recorded, now in zip(first.inputs, inputs, strict=True):
        if recorded.digest == now.digest:
            continue
        is_alike = recorded.content is not None and recorded.content == now.content
        if is_copy and is_alike:
            copies.append((now.path, recorded.path))
            continue
        what = f"the files that {show(first.file, None)} was made of"
        if is_copy:
            hint = None if recorded.content else "an object is known by its ETag, which a copy lacks"
            raise UnreadableError(f"neither {what} nor a copy of them", path=now.path, hint=hint)
        hint = "only the times differ: --at PATH takes a copy" if is_alike else None
        raise UnreadableError(f"not {what}, or changed since", path=now.path, hint=hint)
    return copies


def check_tasks(parts: Sequence[Part], tasks: Sequence[Task[object]], problem: str | None) -> None:
    """Raise UnreadableError where the files have other tasks now. `problem` is the reason why they do not open now."""
    first = parts[0]
    if (first.problem is None) != (problem is None):
        before, now = ("did not open: ", "opens") if first.problem else ("opened", "does not: ")
        text = f"is of a file that {before}{show(first.problem or '', 200)}; here it {now}{show(problem or '', 200)}"
        raise UnreadableError(text, path=first.file)
    if (first.tasks, first.plan) != (len(tasks), plan_of(tasks)):
        raise UnreadableError("is of other tasks than the file has", path=first.file)


def results_of_all(parts: Sequence[Part], tasks: Sequence[Task[object]]) -> list[object]:
    """The results of all tasks in their order. Raises UnreadableError where a part holds others."""
    results: list[object] = []
    for part in sorted(parts, key=lambda part: part.share.number):
        first, last = cut(tasks, part.share)
        if (part.first, len(part.results)) != (first, last - first):
            text = f"{part.share} holds {plural(len(part.results), 'result')}, it has {plural(last - first, 'task')}"
            raise UnreadableError(text, path=part.file)
        for result, task in zip(part.results, tasks[first:last], strict=True):
            try:
                results.append(decoded(result, task))
            except UnreadableError as error:
                raise UnreadableError(f"{part.share} {error.problem}", path=part.file) from None
    return results


def checked_options(part: Part, types: Mapping[str, str]) -> dict[str, object]:
    """Return the options of a part as arguments. `types` come from the command. Raises UnreadableError."""
    options: dict[str, object] = {}
    for name, value in part.options.items():
        if name not in types or not _fits(value, types[name]):
            raise UnreadableError(f"is not a part: it has an option {show(name, 40)}", path=part.file)
        options[name] = value
    if options.keys() != types.keys():
        raise UnreadableError("is not a part: an option is missing", path=part.file)
    return options


def _fits(value: object, kind: str) -> bool:
    if kind == "texts":
        return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    if kind == "text":
        return value is None or isinstance(value, str)
    if kind == "number":
        return value is None or (type(value) in (int, float) and abs(float(str(value))) <= 1e300)
    return isinstance(value, bool)


MOST = 1_000_000
"""The most parts of a job."""
_SCHEMA: Json = {"name": "ckpt.part", "version": 1}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INPUTS = 2


class Part(NamedTuple):
    """The results of one machine, for the tasks from `first` on, of `tasks` that the job has.

    `command` and `options` come from the command line that cut it. `plan` is equal if the tasks are.
    """

    share: Share
    command: str
    inputs: tuple[Input, ...]
    options: Mapping[str, Json]
    tasks: int
    plan: str
    first: int
    results: Sequence[Json]
    problem: str | None = None
    """The reason why the file does not open; then there are no tasks."""
    file: str = ""
    """The file that it was read from, with its number there if the file holds several."""

    def to_json(self) -> dict[str, Json]:
        """The document."""
        document: dict[str, Json] = {
            "schema": _SCHEMA,
            "ckpt": __version__,
            "part": self.share.number,
            "of": self.share.of,
            "command": self.command,
            "inputs": [
                {
                    "path": row.path,
                    "files": row.files,
                    "bytes": row.nbytes,
                    "digest": row.digest,
                    "content": row.content,
                }
                for row in self.inputs
            ],
            "options": self.options,
            "problem": self.problem,
            "tasks": self.tasks,
            "plan": self.plan,
            "first": self.first,
            "results": self.results,
        }
        return {**document, "digest": digest_of(document)}


def digest_of(document: Mapping[str, Json]) -> str:
    """SHA-256 of the fields of a document but its `digest`, in hexadecimal: as JSON in ASCII, without spaces, keys sorted."""
    fields = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def documents_of(chunks: Iterable[bytes], file: str, limits: Limits) -> Iterator[tuple[str, bytes]]:
    """Split parts that stand one after another, each on one line, or from the line `{` to the line `}`.

    Each comes behind its name in errors: the file, with its number there if the file holds several. One that is longer
    than the limit ends the split; `part_of` refuses it.
    """
    number, pending = 0, b""
    for document in _split(chunks, limits.index_bytes):
        if number:
            yield f"{file} (document {number:,})", pending
        number, pending = number + 1, document
    if number:
        yield f"{file} (document {number:,})" if number > 1 else file, pending


def _split(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
    document = bytearray()
    for line in _lines(chunks, most):
        end = line.rstrip()
        if not document and not end and len(line) <= most:
            continue
        is_end = end == b"}" if document else end.endswith(b"}") or not end.lstrip().startswith(b"{")
        document += line
        if is_end or len(document) > most:
            yield bytes(document)
            document.clear()
            if not is_end:
                return
    if document:
        yield bytes(document)


def _lines(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The lines with their ends. One that is longer than `most` is the last, and need not be whole."""
    rest = bytearray()
    for chunk in chunks:
        begin = 0
        while (end := chunk.find(b"\n", begin) + 1) > 0:
            yield bytes(rest) + chunk[begin:end]
            rest.clear()
            begin = end
        rest += chunk[begin:]
        if len(rest) > most:
            break
    yield bytes(rest)


def part_of(data: bytes, file: str, limits: Limits) -> Part:
    """The part in a document. Raises UnreadableError for anything else, also if a field was changed, and LimitError.

    Raises UsageError for a part of another version.
    """
    if len(data) > limits.index_bytes:
        error = LimitError(f"the part has {len(data):,} bytes or more", "index-bytes", limits.index_bytes)
        error.path = file
        raise error
    # Each result of statistics stands for a tensor or a span of one.
    document = parse_json(data, "part", Budget(limits), b'"numel"', constants=True)
    fields = _Fields(document, file)
    if fields.value("schema") != _SCHEMA:
        name = fields.value("schema")
        other = name.get("name") if isinstance(name, Mapping) else None
        what = f"a document {show(other, 40)}" if isinstance(other, str) else "another document"
        raise UnreadableError(f"is not a part: {what}", path=file, hint="--part I/N writes parts")
    version = fields.text("ckpt")
    if version != __version__:
        raise UsageError(
            f"is of ckpt {show(version, 40)}, this is {__version__}",
            path=file,
            hint="merge with the version that made the parts",
        )
    if fields.digest("digest") != fields.digest_now():
        raise UnreadableError(
            "was changed after it was written: its SHA-256 is another", path=file, hint="run the part again"
        )
    share = Share(fields.count("part"), fields.count("of"))
    if not share.number < share.of <= MOST:
        raise UnreadableError("is not a part: its number is not below that of all parts", path=file)
    rows = fields.rows("inputs")
    inputs = tuple(
        Input(
            row.text("path"),
            row.count("files"),
            row.count("bytes"),
            row.digest("digest"),
            None if row.value("content") is None else row.digest("content"),
        )
        for row in (_Fields(row, file) for row in rows)
    )
    if not 0 < len(inputs) <= _INPUTS:
        raise fields.wrong("inputs")
    options = fields.value("options")
    if not isinstance(options, Mapping):
        raise fields.wrong("options")
    return Part(
        share,
        fields.text("command"),
        inputs,
        options,
        fields.count("tasks"),
        fields.digest("plan"),
        fields.count("first"),
        fields.rows("results"),
        None if fields.value("problem") is None else fields.text("problem"),
        file,
    )


class _Fields:
    """The fields of an object of the document, each of which must have its type."""

    def __init__(self, value: Json, file: str) -> None:
        if not isinstance(value, Mapping):
            raise UnreadableError("is not a part: not a JSON object", path=file)
        self._fields = value
        self._file = file

    def wrong(self, name: str) -> UnreadableError:
        return UnreadableError(f"is not a part: {name} is missing, or not what ckpt writes", path=self._file)

    def digest_now(self) -> str:
        try:
            return digest_of(self._fields)
        except RecursionError:
            raise UnreadableError("is not a part: it is nested too deep", path=self._file) from None

    def value(self, name: str) -> Json:
        return self._fields.get(name)

    def text(self, name: str) -> str:
        value = self.value(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name)
        return value

    def digest(self, name: str) -> str:
        value = self.text(name)
        if not _DIGEST.fullmatch(value):
            raise self.wrong(name)
        return value

    def count(self, name: str) -> int:
        value = self.value(name)
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise self.wrong(name)
        return value

    def rows(self, name: str) -> Sequence[Json]:
        value = self.value(name)
        if not isinstance(value, list):
            raise self.wrong(name)
        return value

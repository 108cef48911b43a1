"""`ckpt sum --recorded`: the items of a checkpoint with the sizes and the CRC-32 that
its files record, as text.

`ckpt verify --sums` compares such a list with another copy. A list is of one format: it
has the items of its files.

    # file: runs/step_100
    # recorded: dcp
    # part: __0_0.distcp
    # size: 41203
    # step: epoch 3, global_step 1200
    crc32:8f1a02cc  16384  model.fc.weight
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from ckpt.commands.sum.sums import FILE, Sum, listed_path, unescape_text
from ckpt.commands.sum.sums import lines as sum_lines
from ckpt.commands.verify.verify import Problem
from ckpt.model.account import Absence
from ckpt.model.checkpoint import RecordedFile, RecordedItem
from ckpt.model.errors import UnreadableError, UsageError
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, and_more, counted_noun, show
from ckpt.surface.reports import document_head, shown_as_html

_FORMAT, _PART, _SIZE, _STEP = "# recorded: ", "# part: ", "# size: ", "# step: "
_NONE = "--------"
"""The text in place of a CRC-32 that is not recorded."""
_LINE = re.compile(r"crc32:([0-9a-f]{8}|-{8}) +(\d{1,19})  (.*)", re.ASCII)
_LISTED = 3


class ListedFile(NamedTuple):
    """A file of a list. `steps` are its counters as text."""

    name: str
    size: int
    items: Sequence[RecordedItem]
    steps: str


class RecordedList(NamedTuple):
    """The files of one checkpoint and the name of its format. `path` is its own, where
    a list has several.
    """

    path: str | None
    format: str
    files: Sequence[ListedFile]


def listed(
    format: str, files: Sequence[RecordedFile], path: str | None = None
) -> RecordedList:
    """The list of a checkpoint. Files and items that could not be read are not
    in it.
    """
    rows = []
    for file in files:
        if file.problem is not None:
            continue
        items = [item for item in file.items if item.problem is None]
        steps = [f"{show(name, None)} {value:.15g}" for name, value in file.steps]
        rows.append(ListedFile(file.name, file.size, items, ", ".join(steps)))
    return RecordedList(path, format, rows)


def unread_in(files: Sequence[RecordedFile]) -> Iterator[Absence]:
    """The files and items that could not be read, and why."""
    for file in files:
        if file.problem is not None:
            yield Absence(file.name, file.problem)
        for item in file.items:
            if item.problem is not None:
                yield Absence(item.name, item.problem)


def lines(record: RecordedList) -> Iterator[str]:
    """Yield the list as text: a line for each item below the lines of its file."""
    if record.path is not None:
        yield f"{FILE}{show(record.path, None)}"
    yield f"{_FORMAT}{record.format}"
    # The sizes stand in one column over all files.
    items = chain.from_iterable(file.items for file in record.files)
    width = len(str(max((item.size for item in items), default=0)))
    for file in record.files:
        if file.name:
            yield f"{_PART}{show(file.name, None)}"
        yield f"{_SIZE}{file.size}"
        if file.steps:
            yield f"{_STEP}{file.steps}"
        for item in file.items:
            crc = _NONE if item.crc is None else f"{item.crc:08x}"
            yield f"crc32:{crc}  {item.size:{width}}  {show(item.name, None)}"


def is_recorded(text: str) -> bool:
    """Tell whether a text is such a list, and not the SHA-256 of tensors."""
    return any(line.startswith(_FORMAT) for line in text.splitlines())


def parse(text: str) -> list[RecordedList]:
    """The lists of a text as `lines` makes it. Raises UnreadableError."""
    lists: list[RecordedList] = []
    # The state of the parser: the list, the file and the items that lines belong to.
    path = None
    files: list[ListedFile] = []
    items: list[RecordedItem] = []
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(FILE):
            path = unescape_text(line.removeprefix(FILE))
        elif line.startswith(_FORMAT):
            # The list holds these files, which later lines add.
            files, name = [], ""
            lists.append(RecordedList(path, line.removeprefix(_FORMAT), files))
        elif line.startswith(_PART):
            name = unescape_text(line.removeprefix(_PART))
        elif line.startswith(_SIZE) and lists:
            items = []
            size = line.removeprefix(_SIZE)
            # 19 digits hold any size of 64 bits; `int` of thousands would take long.
            if not re.fullmatch(r"\d{1,19}", size, re.ASCII):
                raise _line_error(number)
            files.append(ListedFile(name, int(size), items, ""))
        elif line.startswith(_STEP) and files:
            files[-1] = files[-1]._replace(steps=line.removeprefix(_STEP))
        elif line.strip() and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None or not files:
                raise _line_error(number)
            crc = None if match[1] == _NONE else int(match[1], 16)
            items.append(RecordedItem(unescape_text(match[3]), int(match[2]), crc))
    return lists


def _line_error(number: int) -> UnreadableError:
    return UnreadableError(
        f"line {number:,} is no recorded checksum",
        hint="expected the lines of ckpt sum --recorded",
    )


def list_of(path: str, lists: Sequence[RecordedList]) -> RecordedList | None:
    """The list of the checkpoint at a path: the only one that names none, else one with
    this path.

    Else it is the one whose path ends as this one does, where no other ends as much
    alike: a copy lies elsewhere.
    """
    alone = [record for record in lists if record.path is None]
    if alone:
        return alone[0]
    matching = listed_path(path, [record.path or "" for record in lists])
    return next((record for record in lists if record.path == matching), None)


class Comparison(NamedTuple):
    """The differences of a checkpoint from a list, and what was compared, as text."""

    problems: tuple[Problem, ...]
    checked: str


def compare_recorded(
    expected: RecordedList, format: str, files: Sequence[RecordedFile], stored: str
) -> Comparison:
    """Compare the files of a checkpoint with a list in the file `stored`, item by item.

    Raises UsageError for a list of another format, whose items are others.
    """
    if expected.format != format:
        theirs = show(expected.format, 40)
        raise UsageError(
            f"{show(stored, 80)} has what a {theirs} records, this is {format}",
            hint="ckpt sum without --recorded compares across formats",
        )
    # `here` is the copy that lies there now, `there` what the list says.
    here = {file.name: file for file in files}
    there = {file.name: file for file in expected.files}
    source = show(stored, 80)
    problems: list[Problem] = []
    missing = [name for name in there if name not in here]
    extra = [name for name in here if name not in there]
    unread = [name for name, file in here.items() if name in there and file.problem]
    for names, what in (
        (missing, "missing"),
        (extra, f"not in {source}: of another save?"),
        (unread, "not read"),
    ):
        if names:
            count = counted_noun(len(names), "file")
            texts = [_file_text(name, here.get(name)) for name in names]
            problems.append(Problem(f"{count} {what} ({and_more(texts, _LISTED)})"))
    for file in listed(format, files).files:
        if file.name in there:
            broken = [
                item for item in here[file.name].items if item.problem is not None
            ]
            problems += _file_differences(there[file.name], file, broken, source)
    items = counted_noun(sum(len(file.items) for file in expected.files), "item")
    return Comparison(tuple(problems), f"{items} as {source} lists them")


def _file_text(name: str, file: RecordedFile | None) -> str:
    """The name of a file, and why it could not be read."""
    why = "" if file is None or file.problem is None else f": {file.problem}"
    return f"{show(name, 80)}{why}"


def _file_differences(
    there: ListedFile, here: ListedFile, broken: Sequence[RecordedItem], source: str
) -> Iterator[Problem]:
    """Yield the differences of one file. The directories of the items in `broken` could
    not be read.
    """
    of = f" of {show(here.name, 80)}" if here.name else ""
    # Only counters that both record can differ.
    before_steps = _parse_counters(there.steps)
    after_steps = _parse_counters(here.steps)
    common = before_steps.keys() & after_steps.keys()
    if any(before_steps[name] != after_steps[name] for name in common):
        own = show(here.name, 80) if here.name else "it"
        yield Problem(f"{own} is of {here.steps}, {source} lists {there.steps}")
    unread = {item.name for item in broken}
    before = _items_by_name(there.items)
    after = _items_by_name(here.items)
    # Items by (name, number among the items of that name).
    changed: list[tuple[str, int]] = []
    resized: list[tuple[str, int]] = []
    missing: list[tuple[str, int]] = []
    for numbered_name, old in before.items():
        new = after.get(numbered_name)
        if new is None:
            name, _ = numbered_name
            if name not in unread:
                missing.append(numbered_name)
        elif old.size != new.size:
            resized.append(numbered_name)
        elif old.crc != new.crc:
            changed.append(numbered_name)
    extra = [numbered_name for numbered_name in after if numbered_name not in before]
    if broken:
        # The first reason stands for all.
        count = counted_noun(len(broken), "item")
        yield Problem(
            f"{count}{of} cannot be read: {broken[0].problem}",
            tuple(item.name for item in broken),
        )
    for numbered_names, what in (
        (changed, "with another recorded checksum"),
        (resized, "with another size"),
        (missing, "missing"),
        (extra, f"not in {source}"),
    ):
        if numbered_names:
            names = [name for name, _ in numbered_names]
            count = counted_noun(len(names), "item")
            yield Problem(f"{count}{of} {what}", tuple(names))
    # Other items explain another size.
    if there.size != here.size and not (changed or resized or missing or extra):
        own = show(here.name, 80) if here.name else "the file"
        yield Problem(f"{own} has {here.size:,} bytes, {source} lists {there.size:,}")


def _parse_counters(text: str) -> dict[str, str]:
    """The value of each counter in the text of the steps of a file."""
    # `epoch 3, global_step 1200`: names may hold blanks, numbers do not.
    rows = (row.rpartition(" ") for row in text.split(", ") if row)
    return {name: value for name, _, value in rows}


def _items_by_name(
    items: Sequence[RecordedItem],
) -> Mapping[tuple[str, int], RecordedItem]:
    """The items by their names. Of several with one name each has a number: ranks hold
    copies.
    """
    counts: dict[str, int] = {}
    rows: dict[tuple[str, int], RecordedItem] = {}
    for item in items:
        counts[item.name] = counts.get(item.name, 0) + 1
        rows[item.name, counts[item.name]] = item
    return rows


@shown_as_html("ckpt.commands.sum.text", "html_sum")
class SumReport(NamedTuple):
    """The report of `ckpt sum`: the SHA-256 of each tensor, or what the files record of
    their items.
    """

    path: str
    format: str
    section: str
    """The section whose tensors were read; empty for the root."""
    sums: tuple[Sum, ...] = ()
    recorded: RecordedList | None = None
    missing: tuple[Absence, ...] = ()
    """The files and items whose records could not be read, tensors that are lost, parts
    of a folder; and why.
    """
    whole: tuple[str, str] | None = None
    """The kind of the hash of all tensors together, `root` or `values`, and the
    hash.
    """

    @property
    def unread(self) -> tuple[Absence, ...]:
        """The tensors, files and items that have no sum, and why."""
        rows = [
            Absence(row.name, row.unread) for row in self.sums if row.unread is not None
        ]
        return (*rows, *self.missing)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 2 where something could not be read."""
        return 2 if self.unread else 0

    def __repr__(self) -> str:
        what = counted_noun(len(self.sums), "sum")
        if self.recorded is not None:
            what = counted_noun(len(self.recorded.files), "file")
        return f"<ckpt.SumReport {show(self.path)}: {what}>"

    def lines(self, *, several: bool = False) -> list[str]:
        """The lines that the command prints; where it prints `several` files, below the
        name of this one.
        """
        if self.whole is not None:
            _, digest = self.whole
            return [f"{digest}  {show(self.path, None)}"]
        if self.recorded is None:
            return sum_lines(self.sums, self.path if several else None)
        return list(lines(self.recorded._replace(path=self.path if several else None)))

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.sum`; docs/json.md is its contract."""
        sums: Json = None
        recorded: Json = None
        if self.recorded is None:
            sums = [_sum_json(row) for row in self.sums if row.unread is None]
        else:
            recorded = [_file_json(file) for file in self.recorded.files]
        # `sums` or `recorded` is null, by what was asked for.
        document: dict[str, Json] = {
            **document_head("ckpt.sum", 1),
            "file": {"path": self.path, "format": self.format},
            "section": self.section,
            "sums": sums,
            "recorded": recorded,
            "unread": [{"name": name, "why": why} for name, why in self.unread],
        }
        if self.whole is not None:
            kind, digest = self.whole
            document[kind] = digest
        return document


def _sum_json(row: Sum) -> dict[str, Json]:
    fields: dict[str, Json] = {"name": row.name, "sha256": row.digest}
    if row.tied is not None:
        fields["tied"] = row.tied
    return fields


def _file_json(file: ListedFile) -> dict[str, Json]:
    return {
        "name": file.name,
        "bytes": file.size,
        "steps": file.steps,
        "items": [
            {
                "name": item.name,
                "bytes": item.size,
                "crc32": None if item.crc is None else f"{item.crc:08x}",
            }
            for item in file.items
        ],
    }

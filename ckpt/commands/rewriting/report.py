"""The common parts of the commands that write: the edited checkpoint, and the report of
what was changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.evidence.extras import ExtraKind, find_extras, lone_counters
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.account import UNREAD
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import CkptError, LossError, UnsupportedError
from ckpt.model.limits import Limits
from ckpt.model.names import Path, dotted_name
from ckpt.model.nodes import Dict, Node, dict_of, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, is_cut, rank_of
from ckpt.model.text import Json, and_more, counted_noun, show, show_name
from ckpt.pickle.state_dict import state_dict, without_gradient
from ckpt.surface.reports import document_head, reduce_report, shown_as_html
from ckpt.tree.find import (
    aliases_to_note,
    children_of,
    is_metadata,
    metadata_of,
    node_at,
    places_of,
    with_metadata,
    without_keys,
)
from ckpt.tree.literals import brief_text
from ckpt.tree.view import UNINITIALIZED, look

if TYPE_CHECKING:
    from ckpt.commands.convert.plain import Plain
    from ckpt.evidence.mapping import Rename, Shift
    from ckpt.formats.save import SavedFile


class Change(NamedTuple):
    """One kind of change: what was, what is, on how many of what, and how many
    bytes.
    """

    kind: str
    before: str | None
    after: str | None
    number: int
    unit: str
    nbytes: int | None = None
    section: str = ""
    name: str = ""
    """The name of the one value that changes, where the change is not about many."""

    def __repr__(self) -> str:
        words = [text for text in (self.before, self.after) if text]
        said = " → ".join(show(word, 60) for word in words)
        text = " ".join(filter(None, (self.kind, show(self.name, 60))))
        if said:
            text += f": {said}" if self.name else f" {said}"
        # A single name or value has no unit.
        if self.unit:
            text += f": {counted_noun(self.number, self.unit)}"
        return f"<Change {text}>"


class Leftover(NamedTuple):
    """Something that is left out of the result, or left unchanged in it although one
    might expect otherwise.

    `what` is its value when `is_value`, else a description. `is_changed`: it is not as
    it was, and `what` says how.
    """

    name: str
    what: str
    nbytes: int | None = None
    hint: str | None = None
    is_value: bool = False
    is_changed: bool = False

    def __repr__(self) -> str:
        return f"<Leftover {show(self.name) or '(the root)'}: {show(self.what, 80)}>"


class ConfigValue(NamedTuple):
    """A value that config.json must have for the result: where `before` is given, in
    place of that one alone.
    """

    key: str
    before: Json
    after: Json

    @property
    def text(self) -> str:
        """The words of a row of what is left alone, behind a colon at its end."""
        return f"{self.key} in config.json must say {json.dumps(self.after)}"


class Share(NamedTuple):
    """The tensors of a damaged checkpoint that are whole, of how many, and their bytes.
    `reasons` say what happened to it.

    `of_bytes` is None where the sizes of lost tensors are not known.
    """

    tensors: int
    of: int
    nbytes: int
    of_bytes: int | None
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The field `salvaged` of the document `ckpt.rewrite`."""
        return {
            "salvaged": {
                "tensors": [self.tensors, self.of],
                "bytes": [self.nbytes, self.of_bytes],
                "reasons": list(self.reasons),
            }
        }


class Filled(NamedTuple):
    """The tensors and values that were taken from another save, by their names."""

    path: str
    names: tuple[str, ...]
    nbytes: int
    has_values: bool = False

    @property
    def unit(self) -> str:
        """`item` where values are among them, else `tensor`."""
        return "item" if self.has_values else "tensor"


class AverageSource(NamedTuple):
    """A checkpoint that a mean is made of, and its share of the sum.

    `aligned` are the prefixes that were taken off its names and the names of the last
    one; `renames` are further rules.
    """

    path: str
    format: str
    nbytes: int
    share: float
    aligned: tuple[str, str] = ("", "")
    renames: tuple[Rename, ...] = ()

    def __repr__(self) -> str:
        return f"<AverageSource {show(self.path)}: {self.share:.4g}>"

    def to_json(self) -> dict[str, Json]:
        """An object of `sources` of the document `ckpt.rewrite`."""
        return {
            "path": self.path,
            "format": self.format,
            "bytes": self.nbytes,
            "ratio": self.share,
            "aligned": list(self.aligned),
            "rules": [
                rename.to_json() | {"kind": rename.kind} for rename in self.renames
            ],
        }


class InputAccount(Protocol):
    """An account of the input of a command beside the changes, in its own words."""

    def to_json(self) -> dict[str, Json]:
        """Return its fields of the document `ckpt.rewrite`."""
        ...

    def lines(self, width: int | None) -> list[list[tuple[str, str]]]:
        """Return its lines of styled text."""
        ...


@shown_as_html("ckpt.commands.rewriting.text", "html_rewrite")
class RewriteReport(NamedTuple):
    """The changes of a command to a checkpoint. `source` was read, `result` will be
    written.
    """

    command: str
    source: Checkpoint
    result: Checkpoint
    changes: tuple[Change, ...] = ()
    left_out: tuple[Leftover, ...] = ()
    left_alone: tuple[Leftover, ...] = ()
    unchanged_bytes: bool = True
    """A flag: every byte of a tensor is the byte that was read."""
    nothing: str = "nothing to change"
    """The text for a report without changes."""
    coverage: Coverage | None = None
    """The tensors that a warm start loads."""
    is_partial: bool = False
    """A flag: parts of the source are missing, and the result lacks them."""
    share: Share | None = None
    """The tensors and bytes that were salvaged, of how many."""
    lost: tuple[Leftover, ...] = ()
    """The parts of a damaged checkpoint that are not whole, and not in the result."""
    filled: tuple[Filled, ...] = ()
    """The tensors and values that came from another save."""
    sources: tuple[AverageSource, ...] = ()
    """The checkpoints of which the result is the mean; `source` is the last."""
    saved: SavedFile | None = None
    """The file that was written, if any."""
    is_dry_run: bool = False
    """A flag: nothing was to be written."""
    warnings: tuple[str, ...] = ()
    """The lines that the command writes to stderr."""
    carried: tuple[str, ...] = ()
    """The names of the files that go along with the weights."""
    config: tuple[ConfigValue, ...] = ()
    """The values that config.json must have for the result, where it goes along."""
    code: tuple[str, ...] = ()
    """The lines of Python that load the same into a model, where they were
    asked for.
    """
    account: InputAccount | None = None
    """An account of the input beside the changes."""

    def __reduce__(self) -> tuple[object, ...]:
        return reduce_report(self.source.path, RewriteReport, *self)

    def __copy__(self) -> RewriteReport:
        return self

    @property
    def tied(self) -> dict[str, str]:
        """The tensors that the result holds under another name alone, and that name:
        safetensors hold one once.
        """
        if self.result.traits.is_pickle:
            return {}
        return aliases_to_note(self.result.tensors)

    @property
    def path(self) -> str | None:
        """The path of the file that was written, or None."""
        return None if self.saved is None else self.saved.path

    def __repr__(self) -> str:
        to = "nothing written" if self.saved is None else show(self.saved.path)
        tensors = counted_noun(len(self.result.tensors) - len(self.tied), "tensor")
        given = show(self.source.path)
        if self.coverage is not None:
            given = f"{show(self.coverage.source)} into {given}"
        if len(self.sources) > 1:
            given = and_more([show(row.path) for row in self.sources], 3)
        return f"<ckpt.RewriteReport {self.command} {given} → {to}: {tensors}>"

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 where the result lacks something, is damaged,
        or was not written.
        """
        # Three ways in which a written file may not be what was asked for.
        is_refused = self.coverage is not None and bool(self.coverage.refusal)
        is_damaged = self.saved is not None and bool(self.saved.damaged)
        return int(is_refused or self.is_partial or is_damaged)

    def to_json(self) -> dict[str, Json]:
        """The document `ckpt.rewrite`; docs/json.md is its contract."""
        saved = self.saved
        verified: Json = None
        if saved is not None:
            verified = {name: round(seconds, 6) for name, seconds in saved.checks}
        document: dict[str, Json] = {
            **document_head("ckpt.rewrite", 1),
            "command": self.command,
            "input": {
                "path": self.source.path,
                "format": self.source.format,
                "bytes": self.source.nbytes,
            },
            "output": None if saved is None else _saved_json(saved),
            "dry_run": self.is_dry_run,
            "tensors": len(self.result.tensors) - len(self.tied),
            "changes": [_change_json(change) for change in self.changes],
            "left_out": [_left_json(row) for row in self.left_out],
            "left_alone": [_left_json(row) for row in self.left_alone],
            "carried": list(self.carried),
            "tied": [{"name": name, "of": first} for name, first in self.tied.items()],
            "damaged": [] if saved is None else list(saved.damaged),
            "overflowed": 0 if saved is None else saved.overflowed,
            "vanished": 0 if saved is None else saved.vanished,
            "verified": verified,
        }
        if self.coverage is not None:
            document["coverage"] = self.coverage.to_json()
        if self.share is not None:
            document |= self.share.to_json()
            document["lost"] = [_left_json(row) for row in self.lost]
            document["filled_from"] = [
                {"path": row.path, "names": list(row.names)} for row in self.filled
            ]
        if self.sources:
            document["sources"] = [row.to_json() for row in self.sources]
        if self.account is not None:
            document |= self.account.to_json()
        return document


def _change_json(change: Change) -> dict[str, Json]:
    # docs/json.md is the contract of these names.
    fields: dict[str, Json] = {
        "kind": change.kind,
        "from": change.before,
        "to": change.after,
        "count": change.number,
        "unit": change.unit,
        "bytes": change.nbytes,
        "section": change.section,
    }
    if change.name:
        fields["name"] = change.name
    return fields


def _saved_json(saved: SavedFile) -> dict[str, Json]:
    return {
        "path": saved.path,
        "format": saved.format,
        "bytes": saved.nbytes,
        "appended": saved.appended,
        "shards": saved.shards,
        "ranks": saved.files,
        "relisted": list(saved.relisted),
        "seconds": round(saved.seconds, 6),
    }


def _left_json(row: Leftover) -> dict[str, Json]:
    return {"name": row.name, "what": row.what, "bytes": row.nbytes}


def keys_beside(survey: Survey, section: Section) -> set[str | int]:
    """Return the keys of the root beside a section at the root: other sections, and
    what is with them.

    A folder has its weights at the root, and an optimizer of another file beside them.
    Empty for a section of its own key, and for one that has the root for itself.
    """
    alone = all(part is section or not part.path for part in survey.sections)
    alone = alone and not any(member.key for member in survey.checkpoint.members)
    # A script's tensors are named one by one.
    if alone or section.path or survey.checkpoint.traits.names_are_code:
        return set()
    # Everything else below the root is beside the section.
    own: set[str | int] = {entry.path[0] for entry in section.entries if entry.path}
    return {key for key, _ in children_of(survey.checkpoint.root)} - own


def weights_of(survey: Survey, section: Section) -> Node:
    """The state dict of a section: the mapping itself, or what `state_dict()` of a
    pickled module would give.
    """
    checkpoint = survey.checkpoint
    node = section.node if section.node is not None else checkpoint.root
    beside = keys_beside(survey, section)
    if beside:
        return without_keys(checkpoint.root, beside)
    if checkpoint.traits.names_are_code:
        return dict_of(
            (
                section.relative(entry.name),
                without_gradient(node_at(checkpoint.root, entry.path)),
            )
            for entry in section.entries
            if entry.kind and entry.persistent
        )
    # Tensors beside other sections, below one key.
    if section.node is None and section.path:
        return dict_of(
            (
                section.relative(entry.name) or section.name,
                node_at(checkpoint.root, entry.path),
            )
            for entry in section.entries
        )
    # `state_dict()` of a pickled module, made without its class.
    view = look(node)
    if view.kind == "module":
        return state_dict(view)
    # The texts of safetensors are no tensors of the state dict.
    if section.path == () and not checkpoint.traits.is_pickle and metadata_of(node):
        return with_metadata(node, {})
    return node


def rest_of(survey: Survey, chosen: Section) -> list[Leftover]:
    """List what lies beside a section: other sections by their kind and size, values by
    what they are.
    """
    rows: list[Leftover] = []
    for part in survey.sections:
        if part is not chosen:
            kind = f"{part.kind}, " if part.kind != part.name else ""
            rows.append(
                Leftover(
                    part.name or "(the root)",
                    f"{kind}{counted_noun(part.tensors, 'tensor')}",
                    part.nbytes,
                )
            )
    # Below a key that leads to a section only what lies beside it is left out.
    covered = [part.path for part in survey.sections]
    beside = keys_beside(survey, chosen)
    # Tensors directly below the root, each a key of it.
    loose: set[str | int] = set()
    for part in survey.sections:
        if not part.path:
            loose.update(entry.path[0] for entry in part.entries if entry.path)
    if not chosen.path and not beside:
        return rows
    for key, child in children_of(survey.checkpoint.root):
        inside = any(path[:1] == (key,) for path in covered) or key in loose
        if not inside and (chosen.path or key in beside) and not is_metadata((key,)):
            rows.append(_document_leftover(survey.checkpoint, str(key), child))
        elif inside:
            rows += _leftovers_beside(child, (key,), covered)
    return rows


def documents_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the documents beside the weights of a folder, their keys and their files.

    Empty where other files of tensors or of a training have keys too: such a folder is
    a whole, and its documents belong to it.
    """
    # The weights lie at the root, the other files below keys.
    keyed = [member for member in checkpoint.members if member.key]
    if any(member.checkpoint.sources for member in keyed):
        return {}
    return {member.key: member.file for member in keyed}


def without_documents(
    checkpoint: Checkpoint, limits: Limits
) -> tuple[Checkpoint, list[Leftover]]:
    """Return the weights of a folder without the documents beside them, such as
    config.json, and list these.

    Who loads the result expects the tensors of the model, and nothing among them.
    """
    # Their keys would stand among the names of the tensors.
    documents = documents_of(checkpoint)
    if not documents:
        return checkpoint, []
    rows = [
        _document_leftover(checkpoint, str(key), child)
        for key, child in children_of(checkpoint.root)
        if key in documents
    ]
    return edited_checkpoint(
        checkpoint, without_keys(checkpoint.root, documents), limits
    ), rows


def _document_leftover(checkpoint: Checkpoint, key: str, node: Node) -> Leftover:
    """The row of a document that does not go along, and what a loader needs of it."""
    file = documents_of(checkpoint).get(key, "")
    is_config = file.endswith("config.json")
    hint = f"{_OTHER_HINT} {show(file, 80)}" if is_config else None
    return Leftover(key, brief_text(node, 60), hint=hint, is_value=True)


_OTHER_HINT = "transformers also needs"
"""The hint of commands that carry no document along."""
_OWN_HINT = "-o FOLDER --with-config keeps"
"""The hint of commands that carry documents along into a folder."""


def with_own_option(rows: Iterable[Leftover]) -> tuple[Leftover, ...]:
    """The rows for a command that takes --with-config itself."""
    return tuple(
        row._replace(hint=row.hint.replace(_OTHER_HINT, _OWN_HINT)) if row.hint else row
        for row in rows
    )


def _leftovers_beside(
    node: Node, path: Path, covered: Sequence[Path]
) -> Iterator[Leftover]:
    """Yield the values in a part that holds sections and is none itself."""
    # The values of a section are its own.
    if path in covered or type(node) not in (list, Dict):
        return
    for key, child in children_of(node):
        inner = (*path, key)
        if any(other[: len(inner)] == inner for other in covered):
            yield from _leftovers_beside(child, inner, covered)
        elif tensor_of(child) is None:
            yield Leftover(dotted_name(inner), brief_text(child, 60), is_value=True)


def weightless_leftovers(checkpoint: Checkpoint, section: Section) -> list[Leftover]:
    """List what a module holds beside its state dict: unregistered tensors, unsaved
    buffers, attributes.
    """
    if checkpoint.traits.names_are_code:
        what = (
            "neither parameter nor buffer of the program",
            "a buffer that is not saved",
        )
        rows = [
            Leftover(entry.name, what[entry.kind is not None], entry.tensor.nbytes)
            for entry in section.entries
            if not entry.kind or not entry.persistent
        ]
        loader = checkpoint.traits.load.partition("(")[0]
        rows.append(Leftover("(the program)", f"the code that {loader} runs"))
        return rows
    if not section.is_module:
        return []
    return [
        Leftover(entry.name, "not in the state dict of its module", entry.tensor.nbytes)
        for entry in section.entries
        if not entry.registered or not entry.persistent
    ] + [
        *uninitialized_leftovers(checkpoint, section),
        Leftover(
            section.name or "(the root)", f"the attributes of {look(section.node).type}"
        ),
    ]


def uninitialized_leftovers(checkpoint: Checkpoint, section: Section) -> list[Leftover]:
    """The parameters and buffers of a section that have no shape yet, because their
    lazy modules have not run.
    """
    # Here and below: `rehome` and `set` ask none of these.
    from ckpt.commands.convert.plain import LAZY

    depth = len(section.path)
    return [
        Leftover(value.name, LAZY)
        for value in checkpoint.values
        if value.type in UNINITIALIZED and value.path[:depth] == section.path
    ]


def refuse_pieces(tensors: Sequence[Tensor | None], path: str) -> None:
    """Raise LossError where parts of tensors are lost: the file is one rank's, and
    dropping them leaves next to nothing.
    """
    pieces = [tensor for tensor in tensors if tensor is not None and is_cut(tensor)]
    if not pieces:
        return
    ranks = {rank_of(tensor) for tensor in pieces} - {None}
    whose = f", those of rank {ranks.pop()}" if len(ranks) == 1 else ""
    raise LossError(
        f"holds parts of {counted_noun(len(pieces), 'tensor')}{whose}",
        path=path,
        hint="the folder with the files of all ranks is one checkpoint",
    )


def losses_of(
    checkpoint: Checkpoint,
    edit: Plain,
    lost: dict[int, tuple[Node, str]],
    drop_other: bool,
) -> list[Leftover]:
    """List the `lost` nodes that could not be made plain, with their places.

    Raises LossError unless they may be dropped.
    """
    if not lost:
        return []
    # A node inside of a tensor that was taken apart has no place of its own in the
    # tree.
    within = {marker: edit.within[marker] for marker in lost if marker in edit.within}
    names = places_of(
        checkpoint.root, {*lost, *(tensor for tensor, _ in within.values())}
    )
    for marker, (tensor, part) in within.items():
        names.setdefault(marker, f"{names.get(tensor, '(inside)')}.{part}")
    rows = [
        Leftover(names.get(marker, "(inside)"), what)
        for marker, (_, what) in lost.items()
    ]
    if not drop_other:
        refuse_pieces([tensor_of(node) for node, _ in lost.values()], checkpoint.path)
        listed = and_more(
            [f"{show_name(row.name, 60)} ({show(row.what, 80)})" for row in rows],
            5,
            "; ",
        )
        raise LossError(
            f"cannot be made plain: {listed}",
            path=checkpoint.path,
            hint="--drop-other replaces them with None",
        )
    return rows


def made_plain(edit: Plain) -> list[Change]:
    """List what became plain: each class and its number of objects, and the tensors
    taken apart by parts.
    """
    changes = []
    # Classes first, then tensors by their parts, such as `indices` and `values`.
    for kind, count in edit.made.items():
        changes.append(Change("plain", kind, "plain", count, "object"))
    for (what, parts), count in edit.taken.items():
        # A DTensor becomes the one tensor inside of it.
        shown_parts = and_more([f".{name}" for name in parts], 8) or "a plain tensor"
        changes.append(Change("apart", what, shown_parts, count, "tensor"))
    return changes


def make_with_drop_hint(
    make: Callable[[bool], RewriteReport], drop_other: bool
) -> RewriteReport:
    """Make a report with or without what cannot be kept. Its error names --drop-other
    only if that works.
    """
    try:
        return make(drop_other)
    except LossError as error:
        if error.hint is not None and error.hint.startswith("--drop-other"):
            try:
                make(True)
            except CkptError:
                error.hint = None
        raise


_LEFT_BEHIND = ("trailing-data", "damaged-file", "incomplete", "ranks-differ")
"""Codes of notices about what no new file has. A file that is written anew lacks the
records that torch does not read, too.
"""


def with_unread(report: RewriteReport, *, is_whole: bool = False) -> RewriteReport:
    """The report with what was not read of the source, and a new file therefore lacks:
    bytes behind the end, damage.

    With `is_whole` the new file stands for all of the source, so that it is only a part
    of it where a file was not read.
    """
    source = report.source
    is_copy = (
        report.result is source and not source.traits.is_set and not source.is_edited
    )
    if report.share is not None or is_copy:
        return report  # it says what is lost, or nothing changes, so the file is copied
    # A reason that stands with a lost tensor is not said a second time.
    named = {absence.why for absence in source.account.left_out}
    codes = (*_LEFT_BEHIND, "unread-file") if source.is_edited else _LEFT_BEHIND
    messages = source.account.messages(codes)
    rows = [Leftover(UNREAD, message) for message in messages if message not in named]
    # What is missing stands before the long list of what is lost with it.
    if report.is_partial:
        return report._replace(left_out=(*rows, *report.left_out))
    rows += [Leftover(name, why) for name, why in source.account.left_out]
    is_part = is_whole and source.account.is_damaged
    return report._replace(left_out=(*report.left_out, *rows), is_partial=is_part)


def refuse_empty(report: RewriteReport) -> RewriteReport:
    """The report. Raises LossError where no tensor of the source would be left."""
    number = len(report.source.tensors)
    if number and not report.result.tensors:
        # A tensor says more than an attribute, which has no bytes.
        first = next(
            (row for row in report.left_out if row.nbytes),
            report.left_out[0] if report.left_out else None,
        )
        why = ""
        if first is not None:
            why = f": {show_name(first.name, 60)} is {show(first.what, 80)}"
        raise LossError(
            f"nothing would be left of {counted_noun(number, 'tensor')}{why}",
            path=report.source.path,
            hint="save the state_dict() of the module in torch"
            if report.source.traits.is_pickle
            else None,
        )
    return report


def refuse_script(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedError for a program, whose code goes with its names."""
    if checkpoint.traits.names_are_code:
        raise UnsupportedError(
            (
                f"{checkpoint.traits.label} is not rewritten: its code uses the names "
                "of its tensors too"
            ),
            path=checkpoint.path,
            way=("extracted",),
        )


Status = Literal["loaded", "cast", "sliced", "tied", "kept", "missing", "unexpected"]
"""`tied`: it shares the memory of a loaded tensor. `kept`: the pretrained tensor of
that name does not fit. `missing`: the pretrained model has no such tensor.
`unexpected`: the target has no such tensor.
"""
STATUSES: tuple[Status, ...] = (
    "loaded",
    "cast",
    "sliced",
    "tied",
    "kept",
    "missing",
    "unexpected",
)
LOADED: tuple[Status, ...] = ("loaded", "cast", "sliced", "tied")


class Pairing(NamedTuple):
    """A tensor of the target, of the pretrained model, or both. `copied` elements of it
    come from the pretrained one.
    """

    status: Status
    name: str
    target: Entry | None
    source: Entry | None
    copied: int = 0
    why: str = ""
    rows: tuple[Literal["target", "pretrained"], int, int] | None = None
    """The rows of the tensor of that side that are meant, first and one past the last;
    the entry is a view of them.
    """

    def __repr__(self) -> str:
        return (
            f"<Pairing {self.status} "
            f"{show(self.name)}{f': {show(self.why)}' if self.why else ''}>"
        )


class Module(NamedTuple):
    """A module of the target, with its tensors."""

    name: str
    rows: tuple[Pairing, ...]

    @property
    def tensors(self) -> tuple[int, int]:
        """(tensors that are loaded, tensors of the module)."""
        # A tensor has several rows where its rows come from several tensors.
        whole = {row.name for row in self.rows}
        return len(
            whole - {row.name for row in self.rows if row.status not in LOADED}
        ), len(whole)

    @property
    def elements(self) -> tuple[int, int]:
        """(elements that are loaded, elements of the module)."""
        return _count_elements(self.rows)


def _count_elements(rows: Iterable[Pairing]) -> tuple[int, int]:
    """(elements that are loaded, elements of the target)."""
    rows = list(rows)
    return (
        sum(row.copied for row in rows),
        sum(row.target.tensor.numel for row in rows if row.target is not None),
    )


_MOST = 80
"""Percent of the tensors that make a module worth being shown by its parts."""


def _by_module(rows: Sequence[Pairing], start: int) -> dict[str, list[Pairing]]:
    """The rows by the component that begins at a place of their names."""
    found: dict[str, list[Pairing]] = {}
    for row in rows:
        end = row.name.find(".", start)
        if end <= 0:  # the name ends here: its module is the one above
            end = max(start - 1, 0)
        found.setdefault(row.name[:end], []).append(row)
    return found


_EMBEDDING = re.compile(r"emb(?:d|ed|edding|eddings)?(?:$|_)|^embed|^wte$|^wpe$")
"""The names of embeddings."""
_BLOCK_NUMBER = re.compile(r"\.\d+\.")
"""The number of a block, with layers below it."""


def head_of(rows: Sequence[Pairing]) -> frozenset[str]:
    """The names of the last layer: modules that are called like one, else the last
    module where it does not fit and has a matrix. A norm has none: a model whose head
    is tied to its embedding ends with one.
    """
    from ckpt.evidence.dialects import HEADS
    from ckpt.evidence.mapping import common_component

    names = [row.name for row in rows]
    # `model.head.weight` is a head as `head.weight` is one.
    first = len(common_component(names))
    head = frozenset(
        name
        for name in names
        if name[first:].partition(".")[0] in HEADS and "." in name[first:]
    )
    if head or not rows:
        return head
    # A model of several parts has the head in one of them.
    inner = frozenset(name for name in names if ".lm_head." in name)
    if inner:
        return inner
    last = names[-1].rpartition(".")[0]
    if any(_EMBEDDING.search(word) for word in last.split(".")):
        return frozenset()  # a table of tokens or of patches answers no task
    # A layer that each block has is of the body: names in the order of the alphabet end
    # with one.
    modules = {name.rpartition(".")[0] for name in names}
    blocks = [_BLOCK_NUMBER.sub(".#.", module) for module in modules]
    if blocks.count(_BLOCK_NUMBER.sub(".#.", last)) > 1:
        return frozenset()
    # The module of the last tensor, if it is not all of the model.
    own = [row for row in rows if row.name.rpartition(".")[0] == last]
    if not last or len(own) == len(rows):
        return frozenset()
    # A last layer that fits was made for the same task.
    if any(row.status not in ("kept", "sliced", "missing") for row in own):
        return frozenset()
    axes = [len(row.target.tensor.shape) for row in own if row.target is not None]
    has_matrix = any(count > 1 for count in axes)
    return frozenset(row.name for row in own) if has_matrix else frozenset()


@shown_as_html("ckpt.commands.rewriting.text", "html_coverage")
class Coverage(NamedTuple):
    """The tensors that a warm start loads, one pairing each. `source` is the path of
    the pretrained model.
    """

    pairings: tuple[Pairing, ...]
    source: str
    aligned: tuple[str, str]
    """The prefixes that were taken off the names of the pretrained model and the target
    to align them.
    """
    notes: tuple[str, ...] = ()
    renames: tuple[Rename, ...] = ()
    """The rules that made names meet."""
    suggested: tuple[Rename, ...] = ()
    """The renames that `--sub` would make."""
    head: frozenset[str] = frozenset()
    """The names of the target's last layer, which often answers another task."""
    layout: str = ""
    """The reason why tensors of equal shapes hold other values than the target
    expects.
    """
    shift: Shift | None = None
    """The modules that are probably counted from another number on."""
    ways: tuple[tuple[str, ...], ...] = ()
    """Options by which more would be loaded, the best first."""
    refusal: str = ""
    """The reason why nothing is written, or ``."""
    way: tuple[str, ...] | None = None
    """The options with which the command works."""
    absent: tuple[str, ...] = ()
    """The names of the tensors of a model without values that the result lacks."""
    unscaled: str = ""
    """The reason why tensors are not loaded that hold codes on one side and values on
    the other.
    """
    adapter_layers: int = 0
    """The layers of a refused adapter, which the target has no place for."""

    def __reduce__(self) -> tuple[object, ...]:
        return reduce_report(self.source, Coverage, *self)

    def __copy__(self) -> Coverage:
        return self

    def __repr__(self) -> str:
        loaded, whole = self.tensors
        return (
            f"<ckpt.Coverage of {show(self.source)}: {loaded:,} of "
            f"{counted_noun(whole, 'tensor')}>"
        )

    @property
    def component(self) -> Rename | None:
        """The first component that was aligned."""
        return next((rename for rename in self.renames if rename.kind == "start"), None)

    @property
    def fills_adapter(self) -> bool:
        """True where the target is an adapter itself, and no base of one."""
        from ckpt.evidence.adapters import piece_of  # here: few targets are asked

        names = [row.target.name for row in self.pairings if row.target is not None]
        return bool(names) and all(piece_of(name) is not None for name in names)

    def of(self, *statuses: Status) -> list[Pairing]:
        """The pairings of some statuses."""
        return [row for row in self.pairings if row.status in statuses]

    def without_weights(self, status: Status) -> dict[ExtraKind, list[Pairing]]:
        """The pairings of a status whose tensors carry no weights, by what they are."""
        rows = {row.name: row for row in self.of(status)}
        if not rows:
            return {}
        entries = [row.target or row.source for row in rows.values()]
        found = find_extras(
            list(rows), [entry.tensor for entry in entries if entry is not None]
        )
        loaded = {row.name for row in self.of(*LOADED)}
        # A BatchNorm whose counter lacks computes the same.
        counters = lone_counters(list(rows), loaded)
        if counters:
            found["counter"] = counters
        return {kind: [rows[name] for name in names] for kind, names in found.items()}

    @property
    def tensors(self) -> tuple[int, int]:
        """(tensors that are loaded, tensors of the target)."""
        whole = {row.name for row in self.pairings if row.target is not None}
        # A tensor counts as loaded only where all of its rows are.
        rest = {
            row.name
            for row in self.pairings
            if row.status not in (*LOADED, "unexpected")
        }
        return len(whole - rest), len(whole)

    @property
    def elements(self) -> tuple[int, int]:
        """(elements that are loaded, elements of the target)."""
        return _count_elements(self.pairings)

    @property
    def share(self) -> float:
        """The share of the target's elements that are loaded: 1.0 if the target is
        empty.
        """
        loaded, whole = self.elements
        return loaded / whole if whole else 1.0

    def halves(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(elements loaded, elements) of the body and of the head of the target."""
        body = [row for row in self.pairings if row.name not in self.head]
        head = [row for row in self.pairings if row.name in self.head]
        return _count_elements(body), _count_elements(head)

    def modules(self) -> list[Module]:
        """The top-level modules of the target, below the beginning that all its names
        have.
        """
        from ckpt.evidence.mapping import common_component

        rows = [row for row in self.pairings if row.target is not None]
        modules = _by_module(rows, len(common_component([row.name for row in rows])))
        out: list[Module] = []
        for name, inner in modules.items():
            # Almost all tensors lie in one module: its parts say more.
            is_model = (
                name and 100 * len(inner) > _MOST * len(rows) and len(modules) > 1
            )
            below = _by_module(inner, len(name) + 1) if is_model else {name: inner}
            out += [Module(part, tuple(own)) for part, own in below.items()]
        return out

    def to_json(self) -> dict[str, Json]:
        """The object `coverage` of the document `ckpt.rewrite`."""
        loaded, whole = self.elements
        body, head = self.halves()
        return {
            "pretrained": self.source,
            "tensors": list(self.tensors),
            "elements": [loaded, whole],
            "share": self.share,
            "aligned": list(self.aligned),
            "component": None if self.component is None else self.component.to_json(),
            "rules": [
                rename.to_json() | {"kind": rename.kind} for rename in self.renames
            ],
            "suggested": [rename.suggestion() for rename in self.suggested],
            "body": list(body),
            "head": list(head),
            "layout": self.layout or None,
            "refused": self.refusal or None,
            "totals": {status: len(self.of(status)) for status in STATUSES},
            "modules": [
                {
                    "name": module.name,
                    "tensors": list(module.tensors),
                    "elements": list(module.elements),
                }
                for module in self.modules()
            ],
            "pairs": [_pairing_json(row) for row in self.pairings],
            "notes": list(self.notes),
        }


def _pairing_json(row: Pairing) -> dict[str, Json]:
    rows: Json = None
    if row.rows is not None:
        rows = dict(zip(("of", "first", "end"), row.rows, strict=True))
    sides = (row.source, row.target)
    return {
        "status": row.status,
        "name": row.name,
        "target": row.target.name if row.target else None,
        "pretrained": row.source.name if row.source else None,
        "shape": [list(entry.tensor.shape) if entry else None for entry in sides],
        "dtype": [entry.tensor.dtype.name if entry else None for entry in sides],
        "copied": row.copied,
        "rows": rows,
        "why": row.why or None,
    }

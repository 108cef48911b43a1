"""A folder as one checkpoint. Only files in it are opened, and those in folders right
below.

A damaged file of weights makes the folder unreadable. Any other damaged file is a
notice, and the rest is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import prod

from ckpt.bytes.executor import Executor
from ckpt.bytes.location import Location, read_file
from ckpt.ext.dcp import reader as dcp
from ckpt.ext.folders import FORMAT, distributed
from ckpt.ext.folders.config import vocabulary_notice
from ckpt.ext.folders.layouts import Fact, Part, Plan
from ckpt.ext.folders.plan import plan_of
from ckpt.formats.common.file_set import FileSet, is_damage, not_read
from ckpt.formats.common.merge import merge_members
from ckpt.formats.common.mixed_steps import find_difference, refuse_mixed
from ckpt.formats.common.parallel import llama_in, notice_of
from ckpt.formats.format import Check, ChecksumReport, List, Probe
from ckpt.model.account import Absence, Notice
from ckpt.model.checkpoint import Checkpoint, Member, RecordedFile, Traits
from ckpt.model.errors import CkptError, LimitError, NotOpenedError, UnreadableError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import is_index
from ckpt.model.nodes import Node, dict_of
from ckpt.model.rows import replace
from ckpt.model.text import Json, and_more, show
from ckpt.tree.find import node_at
from ckpt.tree.view import SCALARS, look
from ckpt.tree.walk import flatten_tree

_SHOWN = 8


def read(probe: Probe, limits: Limits) -> Checkpoint:
    plan = plan_of(probe)
    assert plan is not None
    parts = {part.file: part for part in plan.parts}
    # Files are opened where the plan meets them: another file may be damaged.
    files = FileSet(
        probe.location,
        lambda file: _open_part(parts[file], plan, probe, limits),
        is_damage,
    )
    members: list[Member] = []
    lost: list[Absence] = []
    notices = [
        Notice(
            "unread-file",
            f"{show(name, 80)} is beside {show(chosen, 80)} and was not read",
            file=name,
        )
        for name, chosen in plan.unread
    ]
    with files.closing_on_errors():
        for part in plan.parts:
            checkpoint = files.open(part.file)
            if checkpoint is not None:
                # The key may depend on the content of this file and of those before it.
                key = _key_of(part, plan, checkpoint, members)
                members.append(Member(part.file, key, checkpoint, part.is_model))
                continue
            error = files.unread[part.file]
            # A folder whose weights are damaged is no checkpoint without them.
            if part.is_model and not probe.partial:
                raise error
            notice = not_read(part.file, error)
            if part.is_model:
                text = f"{notice.message}: all of its tensors are lost"
                notices.append(Notice("incomplete", text))
                continue
            notices.append(notice)
            lost.append(Absence(part.key or part.file, notice.message))
        whole = _join_members(probe, plan, members, notices)
        if plan.settings:
            whole = replace(whole, beside=_read_settings(plan, probe, limits))
        if not lost:
            return whole
        return replace(whole, account=whole.account.without_values(lost))


def _open_part(part: Part, plan: Plan, probe: Probe, limits: Limits) -> Checkpoint:
    """Open one file. Raises CkptError."""
    # A folder stands where a layout expects a file.
    if part.kind == "folder":
        raise UnreadableError("a folder, not a file")
    if part.kind == "dcp":
        checkpoint = dcp.read(_part_probe(part, plan, probe), limits, plan.tree)
        if plan.tree is not None:
            checkpoint = replace(
                checkpoint,
                not_loadable="only the loader of Megatron puts it into a model",
            )
        return checkpoint
    if part.shards is not None:
        from ckpt.formats.sharded.reader import (
            read_set,
        )  # here: few folders hold shards without an index

        return read_set(_part_probe(part, plan, probe), part.shards, limits)
    if part.kind == "json":
        return read_json(part.at, part.file, limits, probe.budget)
    # SpeechBrain gives checkpoints and small texts one ending: text is tried first, for
    # it is known by a few bytes.
    text = None
    if part.kind in ("text", "any"):
        text = read_text(part.at, part.file, limits, probe.budget)
    if part.kind == "text" and text is None:
        raise UnreadableError("not a small text")
    return probe.open(part.at, plan.mark(part)) if text is None else text


def _key_of(
    part: Part, plan: Plan, checkpoint: Checkpoint, before: Sequence[Member]
) -> str:
    """The key of a file, after the files `before` it."""
    if part.kind != "dcp":
        if checkpoint.traits in (_JSON, _TEXT):
            return part.key
        return _free_key(part, plan, checkpoint)
    # The keys of a distributed checkpoint stand at the root, if no other file has them.
    held: set[str] = set()
    for member in before:
        if not member.key:
            held |= set(map(str, look(member.checkpoint.root).keys))
    held |= {other.key for other in plan.parts if other.kind != "dcp"}
    view = look(checkpoint.root)
    own = set(map(str, view.keys))
    if view.kind == "mapping" and held.isdisjoint(own):
        return ""
    return part.key


def _read_settings(plan: Plan, probe: Probe, limits: Limits) -> Node:
    """The documents of the parts by their files. One that cannot be read is None."""
    documents: dict[str, Node] = {}
    for part in plan.settings:
        try:
            document = read_json(part.at, part.file, limits, probe.budget)
            documents[part.file] = document.root
        except (UnreadableError, NotOpenedError):
            documents[part.file] = None
    return dict_of(documents.items())


def _part_probe(part: Part, plan: Plan, probe: Probe) -> Probe:
    """The probe of a part that is a folder."""
    return Probe(
        part.at, probe.limits, probe.open, plan.mark(part), probe.budget, probe.partial
    )


def _free_key(part: Part, plan: Plan, checkpoint: Checkpoint) -> str:
    """The key of a file: none where its own keys stand at the root, and no other file
    has one of them.
    """
    if part.key:
        return part.key
    view = look(checkpoint.root)
    taken = {other.key for other in plan.parts}
    if len(plan.parts) == 1:
        return ""
    # A pickled module, or a dict with keys that other files have.
    if view.kind != "mapping" or not taken.isdisjoint(map(str, view.keys)):
        return "model"
    return ""


def _join_members(
    probe: Probe, plan: Plan, members: Sequence[Member], notices: Sequence[Notice]
) -> Checkpoint:
    # Documents alone (`config.json`) are no checkpoint.
    if not any(member.checkpoint.sources for member in members):
        problem = notices[0].message if notices else "no checkpoint in this folder"
        raise UnreadableError(problem)
    if len(members) == 1 and not members[0].key:
        only = members[0].checkpoint
        # A folder with one file is that file; an index stands for its folder.
        is_folder = is_index(members[0].file) or plan.parts[0].shards
        path = probe.path if is_folder else only.path
        result = replace(only, path=path, account=only.account.with_notices(*notices))
        if not plan.path:
            return result
        own_facts = tuple(_read_facts(only.root, plan.facts))
        return replace(result, layout=plan.layout, facts=own_facts)
    whole = merge_members(plan.path or probe.path, FORMAT.name, members)
    facts = [*_read_facts(whole.root, plan.facts)]
    # Only the states of random numbers are told apart here: those of a run with more
    # ranks may have been left.
    states = [row for row in members if row.key.startswith("random_states")]
    difference = find_difference(_member_counters(states, "step"))
    if difference is not None:
        notices = [*notices, Notice("mixed-steps", difference)]
    odd = vocabulary_notice(whole.root, whole.tensors)
    if odd is not None:
        notices = [*notices, odd]
    if plan.is_ranks:
        # Files of two iterations are no model.
        refuse_mixed(_member_counters(members, "iteration"))
        notices = [
            *notices,
            *_missing_ranks(members),
            *_parallel_notices(plan, members, probe),
        ]
        facts += _rank_facts(members)
    return replace(
        whole,
        traits=whole.traits._replace(is_set=whole.traits.is_set or plan.is_ranks),
        layout=_layout_name(plan, whole.root),
        parts=tuple(_list_files(members)),
        facts=tuple(facts),
        account=whole.account.after(notices),
    )


def _layout_name(plan: Plan, root: Node) -> str:
    """The name of the layout. Other programs than Lightning may have a `meta.pt`."""
    is_lightning = isinstance(node_at(root, ("meta", "pytorch-lightning_version")), str)
    return "Lightning checkpoint, DCP" if is_lightning else plan.layout


def _rank_facts(members: Sequence[Member]) -> Iterator[tuple[str, Node]]:
    """Yield the rank of each file."""
    for member in members[:_SHOWN]:
        # A distributed optimizer has a file of its own beside the rank's weights. The
        # rank is told once.
        if _folder_of_member(member) == member.key:
            experts = node_at(member.checkpoint.root, ("args", distributed.SIZES[2]))
            pipeline = node_at(member.checkpoint.root, ("args", distributed.SIZES[1]))
            # The second number of a folder is the pipeline rank, or the expert rank
            # where there is one pipeline stage.
            is_of_experts = isinstance(experts, int) and experts > 1 and pipeline == 1
            yield member.key, distributed.rank_of(member.key, is_of_experts)


def _member_counters(
    members: Sequence[Member], key: str
) -> Iterator[tuple[str, dict[str, Node]]]:
    """The counter of each file that has one."""
    for member in members:
        node = node_at(member.checkpoint.root, (key,))
        if node is not None:
            yield show(member.file, 80), {key: node}


def _missing_ranks(members: Sequence[Member]) -> list[Notice]:
    """Return a notice about missing ranks, by the sizes in the arguments of the first
    rank.
    """
    # `args` are the arguments of the run, which Megatron saves on each rank.
    sizes = [
        node_at(members[0].checkpoint.root, ("args", name))
        for name in distributed.SIZES[:2]
    ]
    counts = [size for size in sizes if type(size) is int and size > 0]
    if len(counts) < len(sizes):
        return []
    lost = distributed.missing_ranks(
        [_folder_of_member(member) for member in members], counts
    )
    if not lost:
        return []
    listed = and_more(lost, _SHOWN)
    return [
        Notice(
            "incomplete",
            f"files of {len(lost):,} of {prod(counts):,} ranks are missing: {listed}",
        )
    ]


def _parallel_notices(
    plan: Plan, members: Sequence[Member], probe: Probe
) -> Iterator[Notice]:
    """Yield a notice about ranks of tensor parallelism, and one about the files of
    Llama that are not there.
    """
    # Ranks of other pipeline stages hold other tensors, so one stage is compared.
    files = distributed.parallel_of([member.file for member in members])
    ranks = [
        (member.file, member.checkpoint) for member in members if member.file in files
    ]
    if len(ranks) > 1:
        notice = notice_of(ranks, plan.parts[0].at.parent(), probe.limits)
        if notice is not None:
            yield notice
    # Meta numbers the files from 0 on: a number that is not there is a lost file.
    numbers = list(llama_in(files))
    lost = [
        number
        for number in range(max(numbers, default=-1) + 1)
        if number not in numbers
    ]
    if lost:
        listed = and_more([f"consolidated.{number:02d}" for number in lost], _SHOWN)
        yield Notice(
            "incomplete",
            (
                f"files of {len(lost):,} of {numbers[-1] + 1:,} ranks are missing: "
                f"{listed}"
            ),
        )


def _folder_of_member(member: Member) -> str:
    """The folder that a file lies in, without those above it."""
    return member.file.rpartition("/")[0].rpartition("/")[2]


def _list_files(members: Sequence[Member]) -> Iterator[str]:
    """The files that were read: of an index its shards."""
    for member in members:
        folder, slash, _ = member.file.rpartition("/")
        yield from (f"{folder}{slash}{part}" for part in member.checkpoint.parts)
        if not member.checkpoint.parts:
            yield member.file


def _read_facts(root: Node, facts: Sequence[Fact]) -> Iterator[tuple[str, Node]]:
    for fact in facts:
        node = node_at(root, fact.path)
        if type(node) not in SCALARS or node is None:
            continue
        # A default says nothing about tensors for which another field has a value:
        # PEFT's `r` beside `rank_pattern`.
        exceptions: Sequence[object] = ()
        if fact.unless:
            exceptions = look(node_at(root, (fact.path[0], fact.unless))).keys
        yield f"{fact.label} by default" if exceptions else fact.label, node


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    plan = plan_of(probe)
    assert plan is not None
    reports: list[ChecksumReport] = []
    for part in plan.parts:
        # Texts have no checksums of their own.
        if part.kind in ("json", "text"):
            continue
        if part.kind == "any":
            text = read_text(part.at, part.file, limits, probe.budget)
            if text is not None:
                continue
        try:
            if part.shards is not None:
                # here: as in `_open_part`
                from ckpt.formats.sharded.index import unindexed
                from ckpt.formats.sharded.reader import checksums_of

                inner = _part_probe(part, plan, probe)
                index = unindexed(inner, part.shards, limits)
                report = checksums_of(inner, index, check)
            elif part.kind == "dcp":
                inner = _part_probe(part, plan, probe)
                from ckpt.ext.dcp.verifier import (
                    checksums as checked,
                )  # here: only who checks pays for it

                report = checked(inner, limits, executor, progress, check)
            else:
                report = check(part.at, plan.mark(part))
        except (LimitError, NotOpenedError):
            raise
        except CkptError:
            if part.is_model:
                raise
            continue  # the reader has said that it is damaged
        # With one file its name is the path that the user gave.
        reports.append(report.about(part.file) if len(plan.parts) > 1 else report)
    return ChecksumReport.together(reports)


def recorded(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    from ckpt.formats.common.recorded import (
        of_text,
    )  # here: who reads the tensors pays nothing for it

    plan = plan_of(probe)
    assert plan is not None
    files: list[RecordedFile] = []
    for part in plan.parts:
        is_text = part.kind in ("json", "text")
        if part.kind == "any":
            text = read_text(part.at, part.file, limits, probe.budget)
            is_text = text is not None
        try:
            if is_text:
                files.append(of_text(part.at, part.file, limits))
            elif part.shards is not None:
                before = part.file.removesuffix(part.shards.label)
                for name in part.shards.files.values():
                    files += inner(part.at.child(name), before + name)
            elif part.kind == "dcp":
                from ckpt.ext.dcp.verifier import (
                    recorded as listed,
                )  # here: as in `checksums`

                own = Probe(part.at, limits, probe.open, plan.mark(part), probe.budget)
                rows = listed(own, limits, executor, inner)
                files += [row._replace(name=f"{part.file}/{row.name}") for row in rows]
            else:
                name = part.file
                # The rows of an index are the shards beside it.
                if is_index(name):
                    name = name.rpartition("/")[0]
                files += inner(part.at, name)
        except LimitError:
            raise
        except CkptError as error:
            files.append(RecordedFile(part.file, 0, problem=error.problem))
    return files


TEXT_BYTES = 1 << 16
"""A text beside checkpoints is smaller: `counter.ckpt` has one number."""

_JSON = Traits("JSON")
_TEXT = Traits("text")


def read_json(
    location: Location, name: str, limits: Limits, budget: Budget
) -> Checkpoint:
    """A JSON document as values. Python's own writer puts NaN and Infinity into it, so
    these are read too.

    Raises UnreadableError, LimitError.
    """
    data = read_file(location, limits, name)
    return _document_checkpoint(
        location,
        len(data),
        _JSON,
        parse_json(data, "JSON", budget, constants=True),
        limits,
        budget,
    )


def read_text(
    location: Location, name: str, limits: Limits, budget: Budget
) -> Checkpoint | None:
    """A small text as a value; None when the file is not one.

    A number is a number. Lines of `name: value` are a mapping, as SpeechBrain writes
    them with YAML. Any other text stays one text: no YAML is interpreted.
    """
    source = location.open()
    try:
        # The size is asked before anything is read: a checkpoint may have any ending.
        if source.size > TEXT_BYTES:
            return None
        data = source.read(0, source.size)
    finally:
        source.close()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text.strip():
        return None
    # Control characters stand in binary files, not in texts for people.
    if any(ord(letter) < 0x20 and letter not in "\t\r\n" for letter in text):
        return None
    budget.charge(10 * len(data), name)
    return _document_checkpoint(
        location, len(data), _TEXT, _parse_lines(text), limits, budget
    )


def _document_checkpoint(
    location: Location,
    nbytes: int,
    traits: Traits,
    value: Json,
    limits: Limits,
    budget: Budget,
) -> Checkpoint:
    root = _json_node(value, limits, 0)
    # `values` are the rows of `inspect`; the whole document stays in the tree.
    # Without containers: a document is never a section, whatever its keys are.
    values = tuple(
        flatten_tree(
            _json_node(_without_tables(value), limits, 0), limits, budget
        ).values
    )
    return Checkpoint(location.name, traits.label, traits, nbytes, root, (), (), values)


def _json_node(value: Json, limits: Limits, depth: int) -> Node:
    if depth > limits.depth:
        raise LimitError("the document is nested too deep", "depth", limits.depth)
    if isinstance(value, dict):
        return dict_of(
            (key, _json_node(child, limits, depth + 1)) for key, child in value.items()
        )
    if isinstance(value, list):
        return [_json_node(child, limits, depth + 1) for child in value]
    # Nothing else is in JSON.
    assert value is None or isinstance(value, (str, int, float))
    return value


def _without_tables(value: Json) -> Json:
    """A document without its tables: `log_history` has a row for each step. `ckpt get`
    finds them in the tree.
    """
    if not isinstance(value, dict):
        return value
    return {
        key: child
        for key, child in value.items()
        if not isinstance(child, list)
        or not any(isinstance(row, (dict, list)) for row in child)
    }


# The patterns are narrow: a line that YAML could read in another way stays text.
_LINE = re.compile(r"([A-Za-z_][\w.-]{0,99}): +(\S.*)")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_FRACTION = re.compile(r"-?(?:0|[1-9]\d{0,30})\.\d{0,30}(?:[eE][-+]?\d{1,3})?")
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}


def _parse_lines(text: str) -> Json:
    lines = [
        line for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    rows = [_LINE.fullmatch(line.rstrip()) for line in lines]
    pairs = {
        row[1]: _parse_scalar(row[2])
        for row in rows
        if row is not None and _is_plain(row[2])
    }
    if lines and len(pairs) == len(lines):
        return pairs
    if len(lines) == 1:
        return _parse_scalar(lines[0].strip())
    return text


def _is_plain(text: str) -> bool:
    """Tell whether YAML reads a text as it stands: no quotes, no brackets, no
    comment.
    """
    if isinstance(_parse_scalar(text), (int, float)):
        return True  # a negative number begins like an item of a list
    return text[0] not in "'\"[]{}&*!|>%@`,?#-" and " #" not in text


def _parse_scalar(text: str) -> Json:
    if _WHOLE.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    return _WORDS.get(text, text)

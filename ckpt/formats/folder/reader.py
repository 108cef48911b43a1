"""A folder as one checkpoint. Only files in it are opened, and those in folders right below.

A damaged file of weights makes the folder unreadable. Any other damaged file is a notice, and the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ckpt.checkpoint import Checkpoint, Member, Notice
from ckpt.errors import CkptError, LimitError, NotOpenedError, UnreadableError
from ckpt.formats.common.merge import merged
from ckpt.formats.common.pickled import mixed, refuse_mixed
from ckpt.formats.dcp import reader as dcp
from ckpt.formats.endings import INDEXES
from ckpt.formats.folder import FORMAT, distributed, documents
from ckpt.formats.folder.layouts import Fact
from ckpt.formats.folder.parts import Part, Plan
from ckpt.formats.folder.plan import plan_of
from ckpt.formats.probe import Probe
from ckpt.limits import Limits
from ckpt.names import Path
from ckpt.nodes import Node
from ckpt.rows import replace
from ckpt.text import and_more, show
from ckpt.tree.view import SCALARS, look

_SHOWN = 8


def read(probe: Probe, limits: Limits) -> Checkpoint:
    plan = plan_of(probe)
    assert plan is not None
    members: list[Member] = []
    notices = [
        Notice("unread-file", f"{show(name, 80)} is beside {show(chosen, 80)} and was not read")
        for name, chosen in plan.unread
    ]
    try:
        for part in plan.parts:
            try:
                members.append(_member(part, plan, probe, limits, members))
            except (LimitError, NotOpenedError):
                raise
            except CkptError as error:
                if part.is_model:
                    raise
                notices.append(Notice("damaged-file", f"{show(part.file, 80)} was not read: {error.advice}"))
        return _whole(probe, plan, members, notices)
    except BaseException:
        for member in members:
            member.checkpoint.close()
        raise


def _member(part: Part, plan: Plan, probe: Probe, limits: Limits, before: Sequence[Member]) -> Member:
    """One file, opened, after those `before` it. Raises CkptError."""
    if part.kind == "dcp":
        inner = Probe(part.at, limits, probe.open, plan.mark(part), probe.budget)
        found = dcp.read(inner, limits, plan.tree)
        if plan.tree is not None:
            found = replace(found, not_loadable="only the loader of Megatron puts it into a model")
        held = {str(key) for member in before if not member.key for key in look(member.checkpoint.root).keys}
        held |= {other.key for other in plan.parts if other.kind != "dcp"}
        own = set(map(str, look(found.root).keys))
        key = "" if look(found.root).kind == "mapping" and held.isdisjoint(own) else part.key
        return Member(part.file, key, found, part.is_model)
    if part.kind == "json":
        found = documents.read_json(part.at, part.file, limits, probe.budget)
        return Member(part.file, part.key, found)
    text = None
    if part.kind in ("text", "any"):
        text = documents.read_text(part.at, part.file, limits, probe.budget)
    if part.kind == "text" and text is None:
        raise UnreadableError("not a small text")
    if text is not None:
        return Member(part.file, part.key, text)
    key = part.key
    found = probe.open(part.at, plan.mark(part))
    if not key:
        view = look(found.root)
        taken = {other.key for other in plan.parts}
        if len(plan.parts) > 1 and (view.kind != "mapping" or not taken.isdisjoint(map(str, view.keys))):
            key = "model"  # a pickled module, or a dict with keys that other files have
    return Member(part.file, key, found, part.is_model)


def _whole(probe: Probe, plan: Plan, members: Sequence[Member], notices: Sequence[Notice]) -> Checkpoint:
    if not any(member.checkpoint.sources for member in members):
        problem = notices[0].message if notices else "no checkpoint in this folder"
        raise UnreadableError(problem)
    if len(members) == 1 and not members[0].key:
        only = members[0].checkpoint
        # A folder with one file is that file; an index stands for its folder.
        path = probe.path if members[0].file.endswith(INDEXES) else only.path
        made = replace(only, path=path, notices=(*only.notices, *notices))
        if plan.path:
            made = replace(made, layout=plan.layout, facts=tuple(_facts(only.root, plan.facts)))
        return made
    whole = merged(plan.path or probe.path, FORMAT.name, members)
    facts = [*_facts(whole.root, plan.facts)]
    # Only the states of random numbers are told apart here: those of a run with more ranks may have been left.
    said = mixed(_headers([row for row in members if row.key.startswith("random_states")], "step"))
    if said is not None:
        notices = [*notices, Notice("mixed-steps", said)]
    if plan.is_ranks:
        refuse_mixed(_headers(members, "iteration"))
        notices = [*notices, *_missing_ranks(members)]
        facts += _ranks(members)
    return replace(
        whole,
        traits=whole.traits._replace(is_set=whole.traits.is_set or plan.is_ranks),
        layout=_layout(plan, whole.root),
        parts=tuple(_files(members)),
        facts=tuple(facts),
        notices=(*notices, *whole.notices),
    )


def _layout(plan: Plan, root: Node) -> str:
    """The name of the layout. Other programs than Lightning may have a `meta.pt`."""
    is_lightning = isinstance(_at(root, ("meta", "pytorch-lightning_version")), str)
    return "Lightning checkpoint, DCP" if is_lightning else plan.layout


def _ranks(members: Sequence[Member]) -> Iterator[tuple[str, Node]]:
    """Which rank each file is of."""
    for member in members[:_SHOWN]:
        if _folder(member) == member.key:
            experts = _at(member.checkpoint.root, ("args", distributed.SIZES[2]))
            pipeline = _at(member.checkpoint.root, ("args", distributed.SIZES[1]))
            is_of_experts = isinstance(experts, int) and experts > 1 and pipeline == 1
            yield member.key, distributed.rank_of(member.key, is_of_experts)


def _headers(members: Sequence[Member], key: str) -> Iterator[tuple[str, dict[str, Node]]]:
    """The counter of each file that has one."""
    for member in members:
        node = _at(member.checkpoint.root, (key,))
        if node is not None:
            yield show(member.file, 80), {key: node}


def _missing_ranks(members: Sequence[Member]) -> list[Notice]:
    """What is missing of the ranks that the arguments of the first one count."""
    sizes = [_at(members[0].checkpoint.root, ("args", name)) for name in distributed.SIZES[:2]]
    counts = [size for size in sizes if type(size) is int and size > 0]
    if len(counts) < len(sizes):
        return []
    lost = distributed.missing([_folder(member) for member in members], counts)
    if not lost:
        return []
    listed = and_more(lost, _SHOWN)
    return [Notice("incomplete", f"files of {len(lost):,} of {prod(counts):,} ranks are missing: {listed}")]


def _folder(member: Member) -> str:
    """The folder that a file lies in, without those above it."""
    return member.file.rpartition("/")[0].rpartition("/")[2]


def _files(members: Sequence[Member]) -> Iterator[str]:
    """The files that were read: of an index its shards."""
    for member in members:
        folder, slash, _ = member.file.rpartition("/")
        yield from (f"{folder}{slash}{part}" for part in member.checkpoint.parts)
        if not member.checkpoint.parts:
            yield member.file


def _facts(root: Node, facts: Sequence[Fact]) -> Iterator[tuple[str, Node]]:
    for fact in facts:
        node = _at(root, fact.path)
        if type(node) not in SCALARS or node is None:
            continue
        default = look(_at(root, (fact.path[0], fact.unless))).keys if fact.unless else ()
        yield f"{fact.label} by default" if default else fact.label, node


def _at(root: Node, path: Path) -> Node:
    """The node at a path below dicts, lists and objects; None where there is none."""
    for key in path:
        view = look(root)
        if view.kind not in ("mapping", "sequence", "object"):
            return None
        named = view.kind in ("mapping", "object")
        below = dict(zip(view.keys, view.children, strict=True)) if named else None
        if below is not None:
            root = below.get(key)
        else:
            root = view.children[key] if isinstance(key, int) and key < len(view.children) else None
    return root

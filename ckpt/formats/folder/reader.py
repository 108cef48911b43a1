"""A folder as one checkpoint. Only files in it are opened, and those in folders right below.

A damaged file of weights makes the folder unreadable. Any other damaged file is a notice, and the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckpt.checkpoint import Checkpoint, Member, Notice
from ckpt.errors import CkptError, LimitError, NotOpenedError, UnreadableError
from ckpt.formats.folder import NAME, documents
from ckpt.formats.folder.layouts import Fact
from ckpt.formats.folder.merge import merged
from ckpt.formats.folder.plan import Part, Plan, plan_of
from ckpt.formats.probe import Probe
from ckpt.formats.sharded.read import INDEXES
from ckpt.limits import Limits
from ckpt.names import Path
from ckpt.nodes import Node
from ckpt.text import show
from ckpt.tree.view import SCALARS, look


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
                members.append(_member(part, plan, probe, limits))
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


def _member(part: Part, plan: Plan, probe: Probe, limits: Limits) -> Member:
    """One file, opened. Raises CkptError."""
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
        return replace(only, path=path, notices=(*only.notices, *notices))
    whole = merged(probe.path, NAME, members)
    return replace(
        whole,
        layout=plan.layout,
        parts=tuple(_files(members)),
        facts=tuple(_facts(whole.root, plan.facts)),
        notices=(*notices, *whole.notices),
    )


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
    """The node at a path below dicts and lists; None where there is none."""
    for key in path:
        view = look(root)
        if view.kind not in ("mapping", "sequence"):
            return None
        below = dict(zip(view.keys, view.children, strict=True)) if view.kind == "mapping" else None
        if below is not None:
            root = below.get(key)
        else:
            root = view.children[key] if isinstance(key, int) and key < len(view.children) else None
    return root

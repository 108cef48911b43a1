"""`ckpt strip`: names without the prefixes that wrappers leave (`module.`, `_orig_mod.`), or without a given one."""

from __future__ import annotations

from collections import Counter

from ckpt.errors import CkptError, UsageError
from ckpt.evidence.mapping import common_component
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import WRAPPERS, unwrapped_name, wrapper_prefix
from ckpt.jobs.rewrite.names import NewName, in_scope, with_new_names
from ckpt.jobs.rewrite.report import Change, RewriteReport, refuse_script, with_ties
from ckpt.jobs.rewrite.sets import refuse_incomplete
from ckpt.limits import Limits
from ckpt.names import Globs
from ckpt.nodes import Node
from ckpt.tree.view import View, look


def strip(
    survey: Survey,
    limits: Limits,
    *,
    prefix: str | None = None,
    section: str | None = None,
    select: Globs | None = None,
) -> RewriteReport:
    """Take the prefix of the wrappers, found section by section, or a given prefix off the names.

    Modules that were pickled inside of a wrapper come out of it. Raises UsageError when no tensor has a given
    prefix, LossError when two names would become one.
    """
    source = survey.checkpoint
    refuse_script(source)
    refuse_incomplete(source)
    survey = with_ties(survey, limits)
    new_name: NewName
    if prefix is None:
        new_name = unwrapped_name
    else:
        given = prefix if prefix.endswith(".") else f"{prefix}."

        def new_name(name: str) -> str:
            return name.removeprefix(given) if len(name) > len(given) else name

    chosen, new_name = in_scope(survey, section, select, new_name)
    unwrapped = _wrapped_modules(chosen) if prefix is None and not select else {}
    dicts = [part for part in chosen if not part.is_module]
    result, names = with_new_names(survey, dicts, new_name, limits, unwrapped)
    changes: list[Change] = []
    for part in dicts:
        for before, count in removed_prefixes(names.get(part.name, {})).items():
            changes.append(Change("prefix", f"{before}*", "*", count, "tensor", section=part.name))
    for part in chosen:
        if part.is_module and unwrapped:
            before = str(look(part.node).type)
            after = str(look(unwrapped.get(id(part.node), part.node)).type)
            if before != after:
                changes.append(Change("unwrapped", before, after, part.tensors, "tensor", section=part.name))
    if prefix is not None and not changes:
        raise UsageError(f"no tensor's name begins with {prefix}", path=source.path, hint=_hint(chosen))
    nothing = "nothing to strip: no name has the prefix of a wrapper"
    if not changes:
        result = source
        nothing += _offer(survey, dicts, limits, section)
    return RewriteReport("strip", source, result, tuple(changes), nothing=nothing)


def _offer(survey: Survey, dicts: list[Section], limits: Limits, section: str | None) -> str:
    """The option that strips the first component that all names of a section share, when that works."""
    for part in dicts:
        component = common_component(part.names())
        if not component:
            continue
        try:
            strip(survey, limits, prefix=component, section=section)
        except CkptError:
            continue
        return f"; all {part.tensors:,} begin with {component} (--prefix {component})"
    return ""


def removed_prefixes(names: dict[str, str]) -> dict[str, int]:
    """Count the names that lost each prefix: `module.`, or `*._orig_mod.` from their middle."""
    counts: Counter[str] = Counter()
    for old, new in names.items():
        if old.endswith(new):
            counts[old[: len(old) - len(new)]] += 1
        else:
            gone = [part for part in old.split(".")[:-1] if part in WRAPPERS and part not in new.split(".")]
            counts[f"*.{'.'.join(dict.fromkeys(gone))}."] += 1
    return dict(counts)


def _wrapped_modules(chosen: list[Section]) -> dict[int, Node]:
    """Modules that do nothing but wrap another one -> the innermost that they wrap."""
    modules: dict[int, Node] = {}
    for part in chosen:
        if not part.is_module:
            continue
        node = part.node
        while (inner := _inner(look(node))) is not None:
            node = inner
        if node is not part.node:
            modules[id(part.node)] = node
    return modules


def _inner(view: View) -> Node | None:
    """The module that a wrapper keeps under its attribute, when it has nothing of its own."""
    if view.kind != "module":
        return None
    attributes = dict(zip(view.keys, view.children, strict=True))
    modules = look(attributes.get("_modules"))
    own = [look(attributes.get(name)).children for name in ("_parameters", "_buffers")]
    tensors = any(look(child).kind in ("tensor", "module") for child in attributes.values())
    if len(modules.keys) != 1 or modules.keys[0] not in WRAPPERS or any(own) or tensors:
        return None
    return modules.children[0] if look(modules.children[0]).kind == "module" else None


def _hint(chosen: list[Section]) -> str:
    """Tell which prefixes the names begin with."""
    first: Counter[str] = Counter()
    for part in chosen:
        for name in part.names():
            first[wrapper_prefix(name) or f"{name.partition('.')[0]}."] += 1
    return f"they begin with {', '.join(text for text, _ in first.most_common(5)) or 'nothing'}"

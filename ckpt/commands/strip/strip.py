"""`ckpt strip`: names without the prefixes that wrappers leave (`module.`,
`_orig_mod.`), or without a given one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ckpt.commands.rewriting.edited import with_ties
from ckpt.commands.rewriting.names import NewName, in_scope, with_new_names
from ckpt.commands.rewriting.report import Change, RewriteReport, refuse_script
from ckpt.commands.rewriting.sets import refuse_incomplete
from ckpt.evidence.mapping import common_component
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import (
    WRAPPERS,
    inner_modules,
    without_modules,
    wrapper_prefix,
)
from ckpt.model.errors import CkptError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs
from ckpt.model.nodes import Node
from ckpt.model.text import show
from ckpt.tree.view import View, look


def strip(
    survey: Survey,
    limits: Limits,
    *,
    prefix: str | None = None,
    section: str | None = None,
    select: Globs | None = None,
) -> RewriteReport:
    """Take the prefix of the wrappers, found section by section, or a given prefix off
    the names.

    Modules that were pickled inside of a wrapper come out of it. Raises UsageError when
    no tensor has a given prefix, LossError when two names would become one.
    """
    source = survey.checkpoint
    refuse_script(source)
    refuse_incomplete(source)
    survey = with_ties(survey, limits)
    new_name: NewName
    if prefix is None:
        new_name = without_modules(sure_places(survey.weights(section)))
    else:
        # A prefix is whole parts of names: `mod` does not begin `module`.
        given = prefix if prefix.endswith(".") else f"{prefix}."

        def new_name(name: str) -> str:
            return name.removeprefix(given) if len(name) > len(given) else name

    chosen, new_name = in_scope(survey, section, select, new_name)
    unwrapped = _wrapped_modules(chosen) if prefix is None and not select else {}
    # Pickled modules lose a wrapper as objects, not by the keys of a dict.
    dicts = [part for part in chosen if not part.is_module]
    result, names = with_new_names(survey, dicts, new_name, limits, unwrapped)
    changes: list[Change] = []
    for part in dicts:
        removed = removed_prefixes(names.get(part.name, {}))
        for (before, after), count in removed.items():
            changes.append(_change_in(part, "prefix", f"{before}*", f"{after}*", count))
    for part in chosen:
        if part.is_module and unwrapped:
            before = str(look(part.node).type)
            after = str(look(unwrapped.get(id(part.node), part.node)).type)
            if before != after:
                changes.append(
                    _change_in(part, "unwrapped", before, after, part.tensors)
                )
    if prefix is not None and not changes:
        raise UsageError(
            f"no tensor's name begins with {prefix}",
            path=source.path,
            hint=_prefixes_hint(chosen),
        )
    nothing = "nothing to strip: no name has the prefix of a wrapper"
    if not changes:
        # The file itself, so that nothing is written anew.
        result = source
        nothing += _offer_prefix(survey, dicts, limits, section) or _doubts_text(dicts)
    return RewriteReport("strip", source, result, tuple(changes), nothing=nothing)


def _change_in(part: Section, kind: str, before: str, after: str, count: int) -> Change:
    return Change(kind, before, after, count, "tensor", section=part.name)


def _offer_prefix(
    survey: Survey, dicts: list[Section], limits: Limits, section: str | None
) -> str:
    """The option that strips the first component that all names of a section share,
    when that works.
    """
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


def removed_prefixes(names: dict[str, str]) -> dict[tuple[str, str], int]:
    """Count the names that lost each prefix: `module.`, `*._orig_mod.` from their
    middle, `features.module.` for `features.`.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for old, new in names.items():
        if old.endswith(new):
            counts[old[: len(old) - len(new)], ""] += 1
            continue
        # The last part is the name of the tensor.
        parents = old.split(".")[:-1]
        new_parts = new.split(".")
        gone = [part for part in parents if part in WRAPPERS and part not in new_parts]
        if all(part.startswith("_") for part in gone):
            # A word of a wrapper alone, wherever it stood: one row for all layers.
            counts[f"{_pattern_of(parents, gone)}.", "*."] += 1
            continue
        # `module` may be a layer of the user too, so its place is shown.
        same = _common_end_length(old, new)
        counts[old[: len(old) - same + 1], new[: len(new) - same + 1]] += 1
    return dict(counts)


def _pattern_of(parents: list[str], gone: list[str]) -> str:
    """The words of wrappers in a name, with a star for what stands before and between
    them: `*._orig_mod`, `_fsdp_wrapped_module.*._checkpoint_wrapped_module`.
    """
    words = list(dict.fromkeys(gone))
    if len(words) == 1:
        return f"*.{words[0]}"
    places = [parents.index(word) for word in words]
    text = words[0] if places[0] == 0 else f"*.{words[0]}"
    for (before, place), word in zip(pairwise(places), words[1:], strict=True):
        text += f".{word}" if place == before + 1 else f".*.{word}"
    return text


def _common_end_length(one: str, two: str) -> int:
    """The length of the parts that two names end with alike, each with its dot."""
    length = 0
    pairs = zip(reversed(one.split(".")), reversed(two.split(".")), strict=False)
    for part, other in pairs:
        if part != other:
            break
        length += len(part) + 1
    return length


def sure_places(parts: Sequence[Section]) -> list[str]:
    """The places where DataParallel is around a part of each of these models that has
    it, and that a key can lose.

    A dict of dicts has its own key `module`: its tensors would have to move into
    another dict.
    """
    found: dict[str, bool] = {}
    for part in parts:
        if part.is_module:
            continue
        inner = inner_modules(part.names())
        keys: set[str] = set()
        if inner.sure:
            for entry in part.entries:
                keys.update(map(str, entry.path[len(part.path) : -1]))
        for place in inner.every:
            is_sure = place in inner.sure and "module" not in keys
            found[place] = found.get(place, True) and is_sure
    return [place for place, is_sure in found.items() if is_sure]


def _doubts_text(parts: Sequence[Section]) -> str:
    """The place where a wrapper may be around a part of a model, if there is one."""
    for part in parts:
        for place in inner_modules(part.names()).possible:
            of = show(place.removesuffix(".module."), 60)
            return (
                f"; all names below {of} begin with module., perhaps a wrapper's (ckpt "
                "inspect has the rename)"
            )
    return ""


def _wrapped_modules(chosen: list[Section]) -> dict[int, Node]:
    """Modules that do nothing but wrap another one -> the innermost that they wrap."""
    modules: dict[int, Node] = {}
    for part in chosen:
        if not part.is_module:
            continue
        node = part.node
        inner = _inner_module(look(node))
        while inner is not None:
            node = inner
            inner = _inner_module(look(node))
        if node is not part.node:
            modules[id(part.node)] = node
    return modules


def _inner_module(view: View) -> Node | None:
    """The module that a wrapper keeps under its attribute, when it has nothing of its
    own.
    """
    if view.kind != "module":
        return None
    attributes = dict(zip(view.keys, view.children, strict=True))
    modules = look(attributes.get("_modules"))
    names = [key for key in modules.keys if isinstance(key, str)]
    if len(modules.keys) != 1 or not names or names[0] not in WRAPPERS:
        return None
    # All else that the wrapper holds beside its module would be lost with it.
    for name in ("_parameters", "_buffers"):
        if look(attributes.get(name)).children:
            return None
    if any(look(child).kind in ("tensor", "module") for child in attributes.values()):
        return None
    inner = modules.children[0]
    return inner if look(inner).kind == "module" else None


def _prefixes_hint(chosen: list[Section]) -> str:
    """Tell which prefixes the names begin with."""
    counts: Counter[str] = Counter()
    for part in chosen:
        for name in part.names():
            counts[wrapper_prefix(name) or f"{name.partition('.')[0]}."] += 1
    listed = ", ".join(text for text, _ in counts.most_common(5))
    return f"they begin with {listed or 'nothing'}"

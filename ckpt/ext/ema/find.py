"""The averages of weights in a checkpoint, and which tensor of the model each is the
average of.

Writers keep them in four ways: under the names of the model, maybe behind the attribute
of a wrapper (`module.`), in a part of their own or beside the model; under names
without dots (LitEma of latent diffusion); in a list in the order of the parameters
(diffusers, torch_ema); or in the place of the weights, so that there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby

from ckpt.commands.rewriting.report import weights_of
from ckpt.evidence.sections import Section, is_average
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Entry
from ckpt.model.names import Path, dotted_name
from ckpt.model.nodes import Node, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, parts_of, unwrap_dtensor
from ckpt.model.text import counted_noun, show
from ckpt.tree.find import node_at, tied_names
from ckpt.tree.view import look

_WRAPPED = (
    "",
    "module.",
    "ema_model.module.",
    "ema_model.",
    "averaged_model.",
    "_orig_mod.",
    "module._orig_mod.",
)
"""Beginnings of the names of averages, before the names of the model."""
_OF_MODEL = ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")
"""Beginnings that the names of a model have from its own wrappers, and its averages
need not have.
"""
_COPIES = ("online_model.", "model.")
"""Beginnings of the names of the model itself, which ema_pytorch keeps beside its
averages.
"""
_LIT = "model_ema."
_MMCV = "ema_"


class Average(NamedTuple):
    """Averages of the weights of a model: the node of each by the name of its tensor in
    the model.

    `problem` says why they cannot be given under those names.
    """

    name: str
    """The place, as a section is called."""
    how: str
    """The way in which the names are told, for people."""
    model: Section | None = None
    """The model whose names these are, or None where the averages have all names
    themselves.
    """
    nodes: Mapping[str, Node] = {}
    section: Section | None = None
    """The section that holds the averages and nothing else."""
    drops: tuple[str, ...] = ()
    """Names in the model's section that belong to the averages, and are no tensors of
    the model.
    """
    problem: str | None = None


def find_averages(survey: Survey) -> list[Average]:
    """Return the averages in a checkpoint, in the order of the file."""
    found: list[Average] = []
    # Lists first: a section that consists of such a list is not looked at again.
    lists = list(_lists_in(survey))
    for row in lists:
        found.append(_of_list(survey, row))
    for section in survey.sections:
        if section.kind == "ema" and not any(_is_in(row, section) for row in lists):
            found.append(_of_section(survey, section))
        elif section.kind == "model":
            found += _inside_model(survey, section)
    # Averages in the place of the weights are mentioned only if the file has no others.
    return [_with_data(row) for row in found] or list(_in_their_places(survey))


def _with_data(average: Average) -> Average:
    """Return averages with a problem where one has no data, which the model's tensor
    has.
    """
    for name, node in average.nodes.items():
        tensor = tensor_of(node)
        assert tensor is not None
        if any(part.storage.place is None for part in parts_of(tensor)):
            return average._replace(
                problem=f"{show(name, 80)} is on meta, without data"
            )
    return average


def _is_in(row: TensorList, section: Section) -> bool:
    return row.path[: len(section.path)] == section.path


# --- nodes by their names -------------------------------------------------------------


def tensors_by_name(node: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the tensors of a state dict by their dotted names."""
    view = look(node)
    for key, child in zip(view.keys, view.children, strict=True):
        name = f"{prefix}{key!s}"
        if tensor_of(child) is not None:
            yield name, child
        elif look(child).kind == "mapping":
            yield from tensors_by_name(child, f"{name}.")


def _shape(node: Node) -> tuple[int, ...]:
    tensor = tensor_of(node)
    assert tensor is not None
    return tuple(unwrap_dtensor(tensor).shape)


def _size(tensor: Tensor) -> int:
    return unwrap_dtensor(tensor).numel


# --- under the names of the model -----------------------------------------------------


def _of_section(survey: Survey, section: Section) -> Average:
    """The averages of a section of their own."""
    nodes = dict(tensors_by_name(weights_of(survey, section)))
    # `AveragedModel` of mmengine counts in `steps`.
    if "steps" in nodes and any(name.startswith("module.") for name in nodes):
        # mmengine swaps both when it saves, so that the usual key loads the averages.
        problem = (
            "the EMA hook of mmengine puts the averages in the place of the weights "
            "when it saves"
        )
        hint = f"{problem}: slim without --ema takes them"
        return Average(section.name, "swapped", section=section, problem=hint)
    models = _models_for(survey, section)
    matches: list[tuple[Section, dict[str, Node]]] = []
    for model in models:
        pairs = _by_names(survey, model, nodes)
        if pairs is not None:
            matches.append((model, pairs))
    if len(matches) == 1:
        model, pairs = matches[0]
        return Average(section.name, "by the names of the model", model, pairs, section)
    if len(matches) > 1:
        names = " and ".join(show(model.name, 60) for model, _ in matches[:2])
        return Average(
            section.name, "", section=section, problem=f"its names are those of {names}"
        )
    # A model with other names, or other shapes, was trained in another way.
    if models:
        problem = _why_not(survey, models[0], nodes)
        return Average(section.name, "", section=section, problem=problem)
    # Without a model in the file the averages are the only weights.
    own = _without_wrapper(nodes)
    return Average(section.name, "by their own names", None, own, section)


def _models_for(survey: Survey, section: Section) -> Sequence[Section]:
    """The models that a section of averages may belong to: the one of the same key
    first, as `G` of `G_ema`.
    """
    models = survey.models
    own = str(section.path[-1]).lower() if section.path else ""
    for mark in ("_ema", "ema_", "_averaged", "averaged_", "_avg", "swa_", "_swa"):
        bare = own.replace(mark, "")
        if bare == own:
            continue
        # The path's last key as text in quotes, so that `g` is not found in `gan`.
        same = [
            model
            for model in models
            if f"'{bare}'" in str(model.path[-1:] or "").lower()
        ]
        if len(same) == 1:
            return same
    return models


def _by_names(
    survey: Survey, model: Section, averages: Mapping[str, Node]
) -> dict[str, Node] | None:
    """The averages by the names of the model, or None where other names or shapes are
    among them.
    """
    names = dict(tensors_by_name(weights_of(survey, model)))
    # Each beginning is tried on all averages: what is beside them must be counters, or
    # the model itself.
    for begin in _WRAPPED:
        inner = {
            name[len(begin) :]: node
            for name, node in averages.items()
            if name.startswith(begin)
        }
        rest = [
            (name, node)
            for name, node in averages.items()
            if not name.startswith(begin)
        ]
        if not inner or not all(_is_beside(name, node) for name, node in rest):
            continue
        for own in _OF_MODEL:
            pairs = {f"{own}{name}": node for name, node in inner.items()}
            # A counter of the average itself has no name in the model.
            counters = [
                name
                for name in pairs
                if name not in names and _size_of(pairs[name]) == 1 and not begin
            ]
            pairs = {name: node for name, node in pairs.items() if name not in counters}
            if pairs and all(
                name in names and _shape(names[name]) == _shape(node)
                for name, node in pairs.items()
            ):
                return pairs
    return None


def _size_of(node: Node) -> int:
    tensor = tensor_of(node)
    assert tensor is not None
    return _size(tensor)


def _is_beside(name: str, node: Node) -> bool:
    """Tell whether a tensor beside averages is none: a counter, or the model itself."""
    return _size_of(node) == 1 or name.startswith(_COPIES)


def _why_not(survey: Survey, model: Section, averages: Mapping[str, Node]) -> str:
    """Say in which name or shape averages and a model differ."""
    names = dict(tensors_by_name(weights_of(survey, model)))
    for name, node in averages.items():
        if name in names and _shape(names[name]) != _shape(node):
            return (
                f"{show(name, 80)} has the shape {list(_shape(node))}, and "
                f"{list(_shape(names[name]))} in the model"
            )
    other = next((name for name in averages if name not in names), "")
    return f"{show(other, 80)} is no name of {show(model.name or 'the model', 60)}"


def _without_wrapper(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """The averages without the attribute of their wrapper, and without its counters."""
    for begin in _WRAPPED[1:]:
        inner = {
            name[len(begin) :]: node
            for name, node in nodes.items()
            if name.startswith(begin)
        }
        rest = [
            (name, node) for name, node in nodes.items() if not name.startswith(begin)
        ]
        if inner and all(_is_beside(name, node) for name, node in rest):
            return inner
    return dict(nodes)


# --- inside of the model's own state dict ---------------------------------------------


def _inside_model(survey: Survey, section: Section) -> Iterator[Average]:
    """Yield the averages that a model keeps in its own state dict."""
    names = section.names()
    # A quick look at the names: most models have none of these.
    firsts = [
        word
        for word in dict.fromkeys(name.partition(".")[0] for name in names)
        if is_average((word,))
    ]
    if not firsts and not any(
        _LIT in name or name.startswith((_MMCV, "ema_model.")) or name == "n_averaged"
        for name in names
    ):
        return
    nodes = dict(tensors_by_name(weights_of(survey, section)))
    # `AveragedModel` of torch counts in `n_averaged`; ema_pytorch has `ema_model`.
    if "n_averaged" in nodes or any(name.startswith("ema_model.") for name in nodes):
        own = _without_wrapper(nodes)
        if len(own) < len(nodes):
            how = "without the attribute of its wrapper"
            yield Average(section.name or "the root", how, None, own, section)
            return
    beside = [
        found
        for first in firsts
        if (found := _of_beside(section, nodes, f"{first}.")) is not None
    ]
    if beside:
        yield from beside
        return
    # One LitEma per model: `model_ema.`, or `first.model_ema.`.
    begins = dict.fromkeys(
        name[: name.index(_LIT)]
        for name in nodes
        if name.startswith(_LIT) or f".{_LIT}" in name
    )
    for begin in begins:
        yield _of_lit(section, nodes, begin)
    flat = {
        name: node
        for name, node in nodes.items()
        if name.startswith(_MMCV) and "." not in name
    }
    # mmcv replaces the dots of a name by underscores.
    table = {_MMCV + name.replace(".", "_") for name in nodes if name not in flat}
    if flat and all(name in table for name in flat):
        problem = (
            "the EMA hook of mmcv swaps them with the weights when it saves, so "
            "neither is known to be the average"
        )
        yield Average(
            f"{section.name}.{_MMCV}*".lstrip("."),
            "",
            section,
            drops=tuple(flat),
            problem=problem,
        )


def _of_beside(
    section: Section, nodes: Mapping[str, Node], first: str
) -> Average | None:
    """The averages below a module beside the model, whose names behind it are names of
    the model: `ema.model.x` beside `model.x`, `net_ema.x` beside `x`.
    """
    below = {
        name[len(first) :]: node
        for name, node in nodes.items()
        if name.startswith(first)
    }
    others = {name: node for name, node in nodes.items() if not name.startswith(first)}
    for begin in ("", *_WRAPPED[1:], *_COPIES):
        # All beside the wrapped ones must be counters.
        rest = [node for name, node in below.items() if not name.startswith(begin)]
        inner = {
            name[len(begin) :]: node
            for name, node in below.items()
            if name.startswith(begin)
        }
        if not inner or any(_size_of(node) != 1 for node in rest):
            continue
        renamed = (
            {f"{head}{name}": node for name, node in inner.items()}
            for head in _heads_of(next(iter(inner)), others)
        )
        matches = [
            pairs
            for pairs in renamed
            if all(
                name in others and _shape(others[name]) == _shape(node)
                for name, node in pairs.items()
            )
        ]
        # With two models of these names it is not known whose averages they are.
        if len(matches) == 1 and len(inner) >= _LEAST:
            label = f"{section.name}.{first}".strip(".")
            drops = tuple(name for name in nodes if name.startswith(first))
            how = "by the names beside them"
            return Average(label, how, section, matches[0], drops=drops)
    return None


def _heads_of(name: str, others: Iterable[str]) -> list[str]:
    """The beginnings that some names have before a name that they end with."""
    heads = [other.removesuffix(name) for other in others if other.endswith(name)]
    return [head for head in heads if not head or head.endswith(".")]


_LEAST = 2
"""Averages that make a model: one tensor may have the word in its name by chance."""


def _of_lit(section: Section, nodes: Mapping[str, Node], begin: str) -> Average:
    """The averages of LitEma, whose names are the names of the parameters
    without dots.
    """
    first = f"{begin}{_LIT}"
    averages = {
        name[len(first) :]: node
        for name, node in nodes.items()
        if name.startswith(first)
    }
    # LitEma's own settings lie beside the averages as buffers.
    averages = {
        name: node
        for name, node in averages.items()
        if name not in ("decay", "num_updates")
    }
    models = {
        name[len(begin) :]: node
        for name, node in nodes.items()
        if name.startswith(begin) and not name.startswith(first)
    }
    label = f"{section.name}.{first}".strip(".")
    drops = tuple(name for name in nodes if name.startswith(first))
    # The averages leave out the attribute of the model that LitEma was given: `model.`
    # in latent diffusion; then every other first step of a name.
    heads = dict.fromkeys(
        chain(("model.", ""), (f"{name.partition('.')[0]}." for name in models))
    )
    problem = "it holds no averages"
    for head in heads:
        # Several names may be equal without their dots: `a.bc` and `ab.c`. The shapes
        # tell them apart, or nothing does.
        table: dict[str, list[str]] = {}
        for name in models:
            if name.startswith(head):
                table.setdefault(name[len(head) :].replace(".", ""), []).append(name)
        pairs: dict[str, Node] = {}
        lacking = ""
        for flat, node in averages.items():
            fitting = [
                name
                for name in table.get(flat, ())
                if _shape(models[name]) == _shape(node)
            ]
            if len(fitting) != 1:
                lacking = flat
                break
            pairs[f"{begin}{fitting[0]}"] = node
        if pairs and not lacking:
            return Average(label, "by names without dots", section, pairs, drops=drops)
        problem = (
            f"{show(lacking, 80)} is not the name of one tensor of the model without "
            "its dots"
        )
    return Average(label, "", section, drops=drops, problem=problem)


# --- in a list ------------------------------------------------------------------------


class TensorList(NamedTuple):
    """A list of tensors in the tree: its path, and its tensors in the order of the
    file.
    """

    path: Path
    entries: Sequence[Entry]

    @property
    def name(self) -> str:
        """Its path as text."""
        return dotted_name(self.path)


def _lists_in(survey: Survey) -> Iterator[TensorList]:
    """Yield the lists of tensors below a key that says average, also inside of an
    optimizer.
    """
    # The tensors of one list follow each other in the order of the file.
    for path, entries in groupby(survey.tensors, key=lambda entry: entry.path[:-1]):
        rows = list(entries)
        named = any(is_average(path[:count]) for count in range(1, len(path) + 1))
        if named and [row.path[-1] for row in rows] == list(range(len(rows))):
            yield TensorList(path, rows)


def _of_list(survey: Survey, row: TensorList) -> Average:
    """The averages of a list in the order of the parameters of the only model."""
    view = look(node_at(survey.checkpoint.root, row.path))
    nodes = [child for child in view.children if tensor_of(child) is not None]
    holder = next((part for part in survey.sections if _is_all_of(row, part)), None)
    # A number among the tensors would move all names behind it.
    if len(nodes) != len(view.children) or len(nodes) != len(row.entries):
        return Average(
            row.name,
            "",
            section=holder,
            problem="the list holds something else than tensors",
        )
    fitting: list[tuple[Section, dict[str, Node]]] = []
    problem = "no model is in this file, so its tensors have no names"
    for model in survey.models:
        parameters = _parameters_like(survey, model, nodes)
        if parameters is None:
            count = len(_parameters_of(survey, model, only_certain=True))
            problem = (
                f"{counted_noun(len(nodes), 'tensor')} of other shapes than the "
                f"{counted_noun(count, 'parameter')} of "
                f"{show(model.name or 'the model', 60)}, so no order tells their names"
            )
        else:
            names = [model.relative(entry.name) for entry in parameters]
            fitting.append((model, dict(zip(names, nodes, strict=True))))
    if len(fitting) == 1:
        model, pairs = fitting[0]
        return Average(row.name, "by the order of the parameters", model, pairs, holder)
    # The shapes alone choose the model.
    if len(fitting) > 1:
        problem = f"{len(fitting)} models have parameters of these shapes"
    return Average(row.name, "", section=holder, problem=problem)


def _is_all_of(row: TensorList, section: Section) -> bool:
    """Tell whether a section has the tensors of a list and no others. An optimizer is
    more than that.
    """
    return (
        section.kind != "optimizer"
        and len(section.entries) == len(row.entries)
        and section.entries[0] is row.entries[0]
    )


def _parameters_like(
    survey: Survey, model: Section, nodes: Sequence[Node]
) -> list[Entry] | None:
    """The parameters of a model, if they have the shapes of these tensors in their
    order; else None.
    """
    # First the certain parameters; a file without evidence has unknown ones only.
    for only_certain in (True, False):
        parameters = _parameters_of(survey, model, only_certain=only_certain)
        shapes = [tuple(unwrap_dtensor(entry.tensor).shape) for entry in parameters]
        if shapes == list(map(_shape, nodes)):
            return parameters
    return None


def _parameters_of(
    survey: Survey, model: Section, *, only_certain: bool
) -> list[Entry]:
    """The parameters of a model in its order, a tied one once; without `only_certain`
    with what may be one.
    """
    roles = ("parameter",) if only_certain else ("parameter", "unknown")
    tied = tied_names(model.entries)
    return [
        entry
        for index, entry in zip(model.indices, model.entries, strict=True)
        if survey.roles[index].role in roles and entry.name not in tied
    ]


# --- in the place of the weights ------------------------------------------------------


def _in_their_places(survey: Survey) -> Iterator[Average]:
    """Yield the averages that Lightning has put in the place of the weights when it
    saved.
    """
    root = next((row for row in survey.checkpoint.containers if not row.path), None)
    # The keys of Lightning's callback WeightAveraging.
    keys = {"averaging_state", "current_model_state", "state_dict"}
    if root is not None and keys <= set(root.keys):
        problem = (
            "Lightning has put the averages in the place of the weights: slim "
            "--section state_dict takes them"
        )
        yield Average("state_dict", "swapped", problem=problem)

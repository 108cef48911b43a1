"""The work of averages for functions of the core: `slim --ema`."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt.commands.rewriting.edited import edited_checkpoint, with_ties
from ckpt.commands.rewriting.report import (
    Change,
    Leftover,
    RewriteReport,
    refuse_script,
    rest_of,
    weights_of,
)
from ckpt.commands.rewriting.sets import refuse_incomplete
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.ext.ema.find import Average, find_averages, tensors_by_name
from ckpt.model.errors import UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node, Opaque, tensor_of
from ckpt.model.rows import replace
from ckpt.model.tensors import unwrap_dtensor
from ckpt.model.text import and_more, counted_noun, shell_word, show
from ckpt.pickle.edit import Edit
from ckpt.pickle.state_dict import without_tensors
from ckpt.tree.find import tied_names
from ckpt.tree.view import look


def averaged_weights(
    survey: Survey, limits: Limits, *, section: str | None
) -> RewriteReport:
    """Return a checkpoint of the averages alone, under the names of the model they are
    averages of.

    What a model has and no average, such as buffers, is the model's. `section` names
    the averages or their model. Raises UsageError where there are none or several,
    UnsupportedError where their names cannot be told.
    """
    refuse_script(survey.checkpoint)
    source = survey.checkpoint
    survey = with_ties(survey, limits)
    average = _chosen(survey, section)
    if average.problem is not None:
        raise UnsupportedError(
            f"{show(average.name, 80)}: {average.problem}", path=survey.path
        )
    model = average.model
    # A part that is missing would be filled with nothing in silence.
    for part in (model, average.section):
        if part is not None:
            refuse_incomplete(survey.checkpoint, part.name, "--section")
    kept: list[str] = []
    if model is None:
        node: Node = _dict_of(average.nodes)
    else:
        # Averages inside of the model's own state dict leave no trace in the result.
        base = without_tensors(weights_of(survey, model), set(average.drops))
        averages = _with_tied(model, average.nodes)
        kept = [name for name, _ in tensors_by_name(base) if name not in averages]
        node = _averaged(base, averages)
    result = edited_checkpoint(
        survey.checkpoint, Edit().copy(node), limits, origin=None
    )
    left_alone: list[Leftover] = []
    if kept and model is not None:
        names = and_more([show(name, 60) for name in kept], 3)
        what = (
            f"{counted_noun(len(kept), 'tensor')} without an average, as the model has "
            f"them: {names}"
        )
        left_alone.append(Leftover(model.name or "(the root)", what))
    return RewriteReport(
        "slim",
        source,
        replace(result, copies=()),
        (_change_of(average),),
        tuple(_left_out(survey, average)),
        tuple(left_alone),
    )


def _change_of(average: Average) -> Change:
    nbytes = 0
    for node in average.nodes.values():
        tensor = tensor_of(node)
        if tensor is not None:
            nbytes += unwrap_dtensor(tensor).nbytes
    text = f"averages of {show(average.name, 60)}, {average.how}"
    return Change("averaged", text, None, len(average.nodes), "tensor", nbytes)


def _chosen(survey: Survey, section: str | None) -> Average:
    """Return the averages that are asked for. Raises UsageError where there are none,
    or several.
    """
    found = find_averages(survey)
    if not found:
        hint = "ckpt inspect lists the sections"
        raise UsageError(
            "ckpt finds no averages (EMA) in this file", path=survey.path, hint=hint
        )
    if section is not None:
        # Averages inside of a model are no section: they have the name that is listed.
        wanted = section
        if any(section == part.name for part in survey.sections):
            wanted = survey.section(section).name
        of_section = [
            row
            for row in found
            if row.name == wanted
            or (row.section is not None and row.section.name == wanted)
            or (row.model is not None and row.model.name == wanted)
        ]
        if not of_section:
            names = and_more([show(row.name, 60) for row in found], 4)
            raise UsageError(
                f"--ema: no averages in {show(section, 60)}",
                path=survey.path,
                hint=f"there are {names}",
            )
        found = of_section
    if len(found) > 1:
        words: list[str] = []
        for row in found:
            # A name that no shell takes is left out of the advice.
            word = shell_word(row.name)
            if word is not None:
                words.append(f"--section {word}")
        raise UsageError(
            f"holds {len(found)} sets of averages",
            path=survey.path,
            hint=and_more(words, 4, ", or "),
        )
    return found[0]


def _dict_of(nodes: Mapping[str, Node]) -> Dict:
    state = Dict()
    state.set(list(nodes), list(nodes.values()))
    return state


def _left_out(survey: Survey, average: Average) -> list[Leftover]:
    """List what is not in the result: the weights that averages replace, counters, and
    all beside the model.
    """
    model = average.model
    whole = model or average.section
    assert whole is not None
    rows: list[Leftover] = []
    if model is not None:
        text = f"{counted_noun(len(average.nodes), 'tensor')}, replaced by averages"
        rows.append(
            Leftover(model.name or "(the root)", text, _replaced_bytes(model, average))
        )
    counters = _counters_of(survey, average)
    if counters:
        names = and_more([show(name, 40) for name in counters], 3)
        rows.append(Leftover(show(average.name, 60), f"no averages: {names}"))
    for row in rest_of(survey, whole):
        # The section of averages has moved into the model: only its counters are left
        # out, which stand above.
        is_own = average.section is not None and row.name == average.section.name
        if not is_own or model is None:
            rows.append(row)
    return rows


def _replaced_bytes(model: Section, average: Average) -> int:
    return sum(
        entry.tensor.nbytes
        for entry in model.entries
        if model.relative(entry.name) in average.nodes
    )


def _counters_of(survey: Survey, average: Average) -> list[str]:
    """The names of what lies beside averages and is none: counters, settings, and
    copies of the model.
    """
    # The nodes themselves, not their names: a copy of the model may have equal ones.
    held = {id(node) for node in average.nodes.values()}
    section = average.section
    if section is None and average.model is None:
        return []
    if section is None:
        assert average.model is not None
        every = tensors_by_name(weights_of(survey, average.model))
        drops = set(average.drops)
        return [name for name, node in every if name in drops and id(node) not in held]
    names = [
        name
        for name, node in tensors_by_name(weights_of(survey, section))
        if id(node) not in held
    ]
    # The attributes of a pickled module are no settings of the averages.
    if section.is_module:
        return names
    depth = len(section.path)
    return names + [
        section.relative(value.name)
        for value in survey.checkpoint.values
        if depth and value.path[:depth] == section.path and value.fields is None
    ]


def _with_tied(model: Section, averages: Mapping[str, Node]) -> dict[str, Node]:
    """The averages, under the other names of tied weights too: writers average a tied
    weight once.
    """
    nodes = dict(averages)
    # Either name may be the one that was averaged.
    for other, first in tied_names(model.entries).items():
        names = (model.relative(other), model.relative(first))
        for name, source in (names, names[::-1]):
            if name not in nodes and source in nodes:
                nodes[name] = nodes[source]
    return nodes


def _averaged(node: Node, averages: Mapping[str, Node], prefix: str = "") -> Node:
    """Return a state dict with averages in the place of the tensors of their names.
    What is beside tensors stays.
    """
    view = look(node)
    state: Dict | Opaque = Dict()
    # An OrderedDict stays one, with its `_metadata`.
    if type(node) is Opaque:
        state = Opaque(node.how, node.func, (), None, node.offset)
        state.states = node.states
    values: list[Node] = []
    for key, child in zip(view.keys, view.children, strict=True):
        name = f"{prefix}{key!s}"
        if tensor_of(child) is None and look(child).kind == "mapping":
            child = _averaged(child, averages, f"{name}.")
        values.append(averages.get(name, child))
    state.set(list(view.keys), values)
    return state

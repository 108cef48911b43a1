"""A DeepSpeed checkpoint as one tree: the fp32 weights rebuilt, the optimizer's state
by parameter, and the rest.

`model` holds the fp32 weights, `module` what the file of model states has, in the
precision of training. No tensor data is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from ckpt.bytes.executor import Executor
from ckpt.bytes.location import names_opened_ahead
from ckpt.ext.deepspeed import FORMAT, pipeline
from ckpt.ext.deepspeed.partitions import Partitions, ranks_text
from ckpt.ext.deepspeed.plan import Plan, plan_of
from ckpt.ext.deepspeed.states import (
    ModelState,
    OptimizerState,
    is_flat,
    model_state,
    node_fields,
    optimizer_state,
    plain_fields,
    rank_counters,
)
from ckpt.formats.common.file_set import CheckpointFiles, check_files
from ckpt.formats.common.merge import merge_members
from ckpt.formats.common.mixed_steps import find_strays, refuse_mixed
from ckpt.formats.common.pickled import Contents, make_checkpoint
from ckpt.formats.format import Check, ChecksumReport, List, Probe
from ckpt.model.account import Absence, Notice
from ckpt.model.checkpoint import (
    Checkpoint,
    Entry,
    Import,
    Member,
    RecordedFile,
    Refusal,
    Traits,
)
from ckpt.model.dtypes import contiguous
from ckpt.model.errors import CkptError, LimitError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node, dict_of, tensor_of
from ckpt.model.rows import replace
from ckpt.model.tensors import TensorRef, parts_of, tensor_ref
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import counter
from ckpt.tree.view import look

MODEL, MODULE, OPTIMIZER = "model", "module", "optimizer"
# After one of these notices the weights are not all there: `loads` is not shown.
_LOSSES = ("incomplete", "damaged-file")
_LIGHTNING = "pytorch-lightning_version"
_REBUILT = 1_500
"""Bytes of memory of a tensor that is made of pieces."""


def file_mark(probe: Probe, name: str) -> str:
    """The prefix of the ids of the storages of a file."""
    return f"{probe.mark}{name.removesuffix('.pt')}:"


def read(probe: Probe, limits: Limits) -> Checkpoint:
    plan = plan_of(probe, limits)
    # A file of the folder that is open keeps a descriptor: an error closes them all.
    files = Files(probe, plan)
    with files.closing_on_errors():
        # A universal checkpoint has a file for each state of each parameter, already
        # whole, so there is nothing to put together from ranks.
        if plan.universal is not None:
            models = models_of(files)
            return assemble_checkpoint(
                files, models[min(models)], Universal(files, models, limits), limits
            )
        if plan.layers:
            return _merge_pipeline(files, limits)
        # Ranks of tensor or expert parallelism each have a part of the model. Only the
        # model's code knows along which dimension their parts are joined.
        if plan.others:
            return side_by_side(files, "tensor, pipeline or expert parallel")
        return _merge_ranks(files, limits)


class Files(CheckpointFiles):
    """The opened files of the ranks. A damaged one of the optimizer is a notice."""

    def __init__(self, probe: Probe, plan: Plan) -> None:
        super().__init__(
            plan.at,
            lambda name: probe.open(plan.file(name), file_mark(probe, name)),
            partial=True,
        )
        self.probe = probe
        self.plan = plan
        self.is_module_whole = True
        """A flag: no tensor of the module is missing."""
        self.cut: set[int] = set()
        """The ids of the storages that a file lacks bytes of."""

    def open(self, name: str) -> Checkpoint | None:
        """Open a file. The storages of the tensors that it lacks bytes of are among
        `cut`.
        """
        file = super().open(name)
        # A cut file is read with `partial`: its other tensors are whole.
        gone = frozenset(() if file is None else self.cut_in(name))
        if file is not None and gone:
            for entry in file.tensors:
                if entry.name in gone:
                    self.cut.update(id(part.storage) for part in parts_of(entry.tensor))
            text = (
                f"{show(name, 80)} is cut off: {counted_noun(len(gone), 'tensor')} of "
                "it were not read"
            )
            self.notices.append(Notice("damaged-file", text))
        return file

    def each(self, names: Mapping[int, str]) -> Iterator[tuple[int, str, Checkpoint]]:
        """Open files in the order of their numbers: (number, name, file) of each that
        is not damaged.
        """
        # Files are opened ahead in this order, which is the order of the ranks.
        numbers = {name: number for number, name in sorted(names.items())}
        for name, file in self.open_each(numbers):
            yield numbers[name], name, file

    def whole(self, tensors: dict[str, TensorRef]) -> dict[str, TensorRef]:
        """Return the tensors without those that were cut off."""
        return {
            name: ref
            for name, ref in tensors.items()
            # The same storage may hold several parameters: they are lost together.
            if id(ref.storage) not in self.cut
        }


# --- files of other kinds -------------------------------------------------------------


def side_by_side(files: Files, why: str) -> Checkpoint:
    """Every file under its own name: ckpt does not know how these parts make a
    whole.
    """
    plan = files.plan
    # Files that were opened on the way here are not opened again.
    files.open_all(
        [name for name in plan.names if name not in {**files.files, **files.unread}]
    )
    members = [
        Member(name, name.removesuffix(".pt"), file)
        for name, file in files.files.items()
    ]
    if not members:
        # Notices begin with the first file that could not be read.
        raise UnreadableError(files.notices[0].message)
    refuse_mixed(
        (show(name, 80), rank_counters(node_fields(file.root)))
        for name, file in files.files.items()
    )
    whole = merge_members(plan.path, FORMAT.name, members)
    return replace(
        whole,
        traits=FORMAT.traits._replace(load=""),
        parts=tuple(f"{plan.prefix}{member.file}" for member in members),
        layout=f"DeepSpeed checkpoint ({why} ranks, side by side)",
        members=(),
        account=whole.account.after(files.notices),
        imports=_list_imports(files),
        weights_only=_list_refusals(files),
    )


# --- one model ------------------------------------------------------------------------


def _merge_ranks(files: Files, limits: Limits) -> Checkpoint:
    models = models_of(files)
    optimizers = _read_optimizers(files, files.plan.optimizers)
    main = models[min(models)]
    parallel = main.rest.get("mp_world_size")
    # The files of the other ranks have numbers of their own. The states say how many
    # there should be, so one file alone is not taken for the whole model.
    if type(parallel) is int and parallel > 1:
        text = (
            f"the files of {parallel - 1:,} of {parallel:,} model-parallel ranks are "
            "missing"
        )
        files.notices.append(Notice("incomplete", text))
        return side_by_side(files, "tensor or pipeline parallel")
    # Experts are partitioned among fewer ranks than other parameters.
    if optimizers and _is_mixed(optimizers):
        return side_by_side(files, "expert parallel")
    # Without ZeRO the module is the whole model, in the precision of training.
    if not optimizers and main.shapes is None:
        return assemble_checkpoint(files, main, None, limits)
    # With `--partial` what belongs together is chosen by its step. Without it ranks of
    # two steps are refused in `Partitions`.
    if files.probe.partial:
        _drop_strays(
            files, models, optimizers, files.plan.models, files.plan.optimizers
        )
        main = models[min(models)]
    partitions = _make_partitions(
        files, models, optimizers, files.plan.optimizers, limits
    )
    if files.probe.partial and any(_mixed_step_notices(main, optimizers)):
        files.notices += _of_another_step(main, partitions)
    return assemble_checkpoint(files, main, partitions, limits)


_Key = TypeVar("_Key")


def _drop_strays(
    files: Files,
    models: dict[int, ModelState],
    optimizers: dict[_Key, OptimizerState],
    model_names: Mapping[int, str],
    optimizer_names: Mapping[_Key, str],
) -> None:
    """Leave out the files of another step than most of their kind, or than all of the
    other kind.

    Where that does not tell which step is meant, all stay, and are refused.
    """
    # Each kind is judged by the other one too: two model files of two steps have no
    # majority of their own.
    taken = {number: _steps_taken(state) for number, state in models.items()}
    steps = {key: _optimizer_steps(row) for key, row in optimizers.items()}
    odd_models = _stray_files(taken, [*steps.values()])
    odd_optimizers = _stray_files(steps, [*taken.values()])
    for number in odd_models:
        del models[number]
    for key in odd_optimizers:
        del optimizers[key]
    strays = [model_names[number] for number in odd_models]
    strays += [optimizer_names[key] for key in odd_optimizers]
    for name in strays:
        files.leave_out(name, "the others")


def _stray_files(
    values: Mapping[_Key, float | None], others: Iterable[float | None]
) -> list[_Key]:
    """The files of another step than most; without a majority, than the step of all
    `others`.
    """
    counts = {key: value for key, value in values.items() if value is not None}
    odd = find_strays({key: {"step": value} for key, value in counts.items()})
    # Without a majority the other kind decides, if all of it is of one step, and if at
    # least one file here is of that step.
    said = {value for value in others if value is not None}
    if not odd and len(said) == 1 and said <= {*counts.values()}:
        odd = {key for key, value in counts.items() if value not in said}
    return [key for key in counts if key in odd]


def _steps_taken(state: ModelState) -> float | None:
    """The steps that the optimizer has taken, by the model states."""
    count = counter(state.rest.get("global_steps"))
    skipped = counter(state.rest.get("skipped_steps"))
    if count is None:
        return None
    # fp16 training skips a step whose gradients overflow: the optimizer does not count
    # it.
    return count - (skipped or 0)


def _optimizer_steps(row: OptimizerState) -> float | None:
    """The steps of an optimizer: the most of any group."""
    steps = [counter(node) for node in row.steps.values()]
    return max((step for step in steps if step is not None), default=None)


def _text_of_stale(stale: list[int], optimizers: dict[int, OptimizerState]) -> str:
    """The reason why files of more ranks than the first file counts are not read: they
    are of an older save, or each process saved as if it were alone.
    """
    counts = optimizers[min(optimizers)].counts
    ranks = ranks_text(stale, 4)
    # Another save has other counts. Equal counts that are too small come from processes
    # that each believed to be alone.
    if any(optimizers[rank].counts != counts for rank in stale):
        return (
            f"files of {ranks} are left from a save with more ranks and were not read"
        )
    own = counted_noun(max(counts, default=0), "rank")
    return (
        f"files of {ranks} were not read: each says {own}, as the first one does, so "
        "the processes saved without knowing of each other"
    )


def _make_partitions(
    files: Files,
    models: dict[int, ModelState],
    optimizers: dict[int, OptimizerState],
    names: dict[int, str],
    limits: Limits,
) -> Partitions:
    """The partitions of the ranks, of which `names` are the files. Adds what is missing
    to the notices.
    """
    stale = Partitions.stale(optimizers, limits)
    if stale:
        text = _text_of_stale(stale, optimizers)
        files.notices.append(Notice("unread-file", text))
    for rank in stale:
        del optimizers[rank]
        files.drop(names[rank])
    partitions = Partitions(models, optimizers, limits, files.cut)
    files.notices += [
        *partitions.notices,
        *_mixed_step_notices(models[min(models)], optimizers),
    ]
    return partitions


def _merge_pipeline(files: Files, limits: Limits) -> Checkpoint:
    """The layers of a pipeline with the states of its stages, or all side by side where
    they are cut otherwise.
    """
    plan = files.plan
    roots: dict[int, Node] = {}
    for number, _, opened in files.each(plan.layers):
        roots[number] = opened.root
    states: dict[int, ModelState] = {}
    optimizers: dict[int, dict[int, OptimizerState]] = {}
    for number, stage in sorted(plan.stages.items()):
        for _, name, opened in files.each(stage.models):
            states[number] = _model_state(files, opened, name)
        optimizers[number] = _read_optimizers(files, stage.optimizers)
    if files.probe.partial:
        # Files of all stages are compared at once, so they are numbered by (stage,
        # rank).
        flat: dict[tuple[int, int], OptimizerState] = {}
        for number, by_rank in optimizers.items():
            for rank, row in by_rank.items():
                flat[number, rank] = row
        names: dict[tuple[int, int], str] = {}
        model_names: dict[int, str] = {}
        for number, stage in plan.stages.items():
            for rank, name in stage.optimizers.items():
                names[number, rank] = name
            for name in stage.models.values():
                model_names[number] = name
        _drop_strays(files, states, flat, model_names, names)
        # `_drop_strays` has removed rows of `flat`: they go from the stages too.
        for number, by_rank in optimizers.items():
            optimizers[number] = {
                rank: row for rank, row in by_rank.items() if (number, rank) in flat
            }
    refuse_mixed(
        (pipeline.key_of(number), rank_counters(state.rest))
        for number, state in states.items()
    )
    refuse_mixed(
        (f"rank {rank} of {pipeline.key_of(number)}", row.steps)
        for number, rows in optimizers.items()
        for rank, row in rows.items()
    )
    # The number of stages is None where tensor-parallel ranks cut the layers.
    every = [*states.values()]
    count = pipeline.stages_of(every[0], every) if every else max(len(plan.stages), 1)
    if count is None or any(map(_is_mixed, optimizers.values())):
        return side_by_side(files, "tensor parallel or expert parallel, of a pipeline")
    # The layers hold the weights in the precision of training; the stages hold
    # partitions of their fp32 weights.
    held, extra = pipeline.tensors_of(roots)
    weights = files.whole(held)
    for number, state in states.items():
        rows = optimizers.get(number)
        if not rows or state.shapes is not None:
            continue
        shapes = pipeline.shapes_by(rows, weights)
        if shapes is None:
            return side_by_side(
                files, "pipeline parallel, without the shapes of their fp32 weights:"
            )
        # The optimizer of bf16 with ZeRO 0 is saved without `param_shapes`. The
        # optimizer in the model states is then the part of the first rank alone.
        rest = {name: node for name, node in state.rest.items() if name != OPTIMIZER}
        states[number] = state._replace(shapes=shapes, rest=rest)
    every = [*states.values()]
    # The tree over the files has them in the model and in the module.
    files.probe.budget.claim(2 * len(weights))
    gone = [number for number in range(count) if number not in states]
    are_rebuilt = any(state.shapes is not None for state in every) or any(
        optimizers.values()
    )
    # A parameter of a stage whose states are missing has weights in its layer, and no
    # fp32 weights.
    lost = pipeline.unclaimed_names(weights, every) if gone and are_rebuilt else []
    missing = [
        *pipeline.lost_layers(every, weights),
        *pipeline.lost_unseen(every, weights),
    ]
    missing += pipeline.cut_layers(held, weights, every, are_rebuilt)
    unclaimed = pipeline.unclaimed_names(map(str, plan.layers), every)
    for number in map(int, unclaimed):
        name = plan.layers[number]
        # No state lists the tensors of such a layer: `lost_layers` does not name it.
        if name in files.unread:
            text = f"{show(name, 80)} was not read: its tensors are lost"
            missing.append(Notice("incomplete", text))
    files.is_module_whole &= not missing
    files.notices += [*pipeline.lost_stages(gone, count, lost, are_rebuilt), *missing]
    main = pipeline.combine_stages(states, weights, extra, count)
    if not are_rebuilt:
        return assemble_checkpoint(files, main, None, limits)
    # Each stage is a ZeRO run of its own, with its own ranks and shapes.
    parts = {
        number: _make_partitions(
            files,
            {0: state._replace(module=weights)},
            optimizers[number],
            plan.stages[number].optimizers,
            limits,
        )
        for number, state in states.items()
        if state.shapes is not None
    }
    return assemble_checkpoint(files, main, pipeline.Stages(parts, lost), limits)


def _mixed_step_notices(
    main: ModelState, optimizers: dict[int, OptimizerState]
) -> Iterator[Notice]:
    """Yield a notice if the model states and the optimizer states count different
    steps.

    They may be of two saves, which no field says for sure.
    """
    count = counter(main.rest.get("global_steps"))
    # The least rank speaks for all: `Partitions` has refused ranks of several steps.
    ranks = sorted(optimizers)
    taken = next((_optimizer_steps(optimizers[rank]) for rank in ranks), None)
    if taken is not None and count is not None and taken != _steps_taken(main):
        text = (
            f"the model states are of step {count:,.0f}, and the optimizer took "
            f"{taken:,.0f} steps"
        )
        yield Notice(
            "mixed-steps", f"{text}: of two saves, or the optimizer was started anew"
        )


def _of_another_step(main: ModelState, partitions: Partitions) -> Iterator[Notice]:
    """Yield a notice that leaves out what the model states alone hold, which may be of
    another step.
    """
    module = main.module or {}
    rebuilt = {*partitions.names} - partitions.lost
    # A shared parameter is rebuilt under the name of its owner.
    alone = [name for name in module if main.shared.get(name, name) not in rebuilt]
    names = [f"{MODEL}.{name}" for name in alone]
    names += [] if partitions.is_shared else [f"{MODULE}.{name}" for name in module]
    text = (
        f"the model states are of another step: {counted_noun(len(alone), 'tensor')} "
        "that only they hold"
    )
    yield Notice("incomplete", text, tuple(names))


def models_of(files: Files) -> dict[int, ModelState]:
    names = files.plan.models
    if not names:
        raise UnreadableError(
            "no file of model states, which names the parameters",
            hint=(
                "mp_rank_00_model_states.pt, or "
                "zero_pp_rank_0_mp_rank_00_model_states.pt"
            ),
        )
    models = {}
    for rank, name, opened in files.each(names):
        models[rank] = _model_state(files, opened, name)
    if not models:
        raise UnreadableError(files.notices[0].message)
    # A rank whose file was cut off may lack buffers that all ranks hold.
    _mend_module(files, models)
    return models


def _model_state(files: Files, opened: Checkpoint, name: str) -> ModelState:
    """The model states in a file, without the tensors that were cut off."""
    state = model_state(opened.root, show(name, 80))
    if not files.cut:
        return state
    module = None if state.module is None else files.whole(state.module)
    return state._replace(module=module, frozen=files.whole(state.frozen))


def _mend_module(files: Files, models: dict[int, ModelState]) -> None:
    """Take what the module of the first rank lacks from other ranks, which hold the
    same buffers, and name the rest.
    """
    main = models[min(models)]
    whole = main.module
    if whole is None or not files.cut:
        return
    gone = [
        name
        for name, node in node_fields(main.node).items()
        if tensor_of(node) is not None and name not in whole
    ]
    # ZeRO-3 leaves parameters empty in the module; buffers are full on every rank.
    others = [state.module or {} for state in models.values()]
    found: dict[str, TensorRef] = {}
    for name in gone:
        for other in others:
            if name in other:
                found[name] = other[name]
    models[min(models)] = main._replace(module={**whole, **found})
    lost = [name for name in gone if name not in found]
    if lost:
        files.is_module_whole = False
        # Trained parameters are rebuilt from the optimizer's partitions: only their
        # copy in the module is lost.
        trained = _trained_names(main)
        names = [f"{MODULE}.{name}" for name in lost]
        for name in lost:
            # A shared parameter is rebuilt under the name of its owner.
            if main.shared.get(name, name) not in trained:
                names.append(f"{MODEL}.{name}")
        text = (
            f"the module is cut off: {and_more([show(name, 60) for name in lost], 3)}"
        )
        files.notices.append(Notice("incomplete", text, tuple(names)))


def _trained_names(state: ModelState) -> set[str]:
    """The names of the parameters that the optimizer has."""
    names: set[str] = set()
    for rows in state.shapes or ():
        names.update(rows)
    return names


def _read_optimizers(files: Files, names: dict[int, str]) -> dict[int, OptimizerState]:
    optimizers = {}
    for rank, name, opened in files.each(names):
        optimizers[rank] = optimizer_state(opened.root, show(name, 80))
    return optimizers


def _is_mixed(optimizers: dict[int, OptimizerState]) -> bool:
    """Tell whether groups have several numbers of partitions, as experts make them."""
    return any(
        len(set(row.counts)) > 1 or "ds_zero_partition_groups" in row.rest
        for row in optimizers.values()
    )


def assemble_checkpoint(
    files: Files,
    main: ModelState,
    partitions: Partitions | pipeline.Stages | None,
    limits: Limits,
) -> Checkpoint:
    """The checkpoint over the model states of the first rank, and what the partitions
    make.
    """
    probe, plan = files.probe, files.plan
    root = Dict()
    weights = _model_weights(main, partitions, probe)
    nameless = _nameless_parameters(main, partitions)
    if nameless:
        listed = and_more([show(name, 60) for name in nameless], 3)
        text = (
            "no file says which parameters these share, as that of rank 0 does: "
            f"{listed}"
        )
        files.notices.append(
            Notice("incomplete", text, tuple(f"{MODEL}.{name}" for name in nameless))
        )
    model = dict_of([*weights.items(), *main.extra.items()])
    root.set([MODEL], [model])
    rest = dict(main.rest)
    # Without partitions (ZeRO 0) the weights are the module itself, which is not shown
    # twice.
    if partitions is not None:
        # A module with gaps is shown only if fp32 weights are lost that it may replace.
        is_shown = files.is_module_whole or bool(partitions.lost)
        # In ZeRO-3 the parameters of the module are empty.
        has_weights = main.module is not None and not partitions.is_shared
        if has_weights and not plan.others and is_shown:
            root.set([MODULE], [main.node])
        if partitions.has_optimizer:
            root.set([OPTIMIZER], [partitions.optimizer(f"{probe.mark}optimizer.")])
        files.notices += [
            Notice(
                "unread-file",
                f"state {show(name, 80)} is not kept by parameter and was not read",
            )
            for name in partitions.unplaced
        ]
        root.set(["zero"], [_zero_fields(partitions)])
    _put_rest(root, rest)
    contents = Contents(files.notices, None, probe.mark, probe.budget)
    stage = 0 if partitions is None else partitions.stage
    kind = f"ZeRO-{stage} checkpoint"
    if plan.universal is not None:
        kind = "universal checkpoint"
    if plan.layers:
        kind += " of a pipeline"
    is_whole = not any(row.code in _LOSSES for row in files.notices)
    traits = _folder_traits(
        plan, stage, main, has_stage=partitions is None or partitions.has_stage
    )
    whole = make_checkpoint(plan.path, FORMAT.name, traits, root, contents, limits)
    # The data-parallel size that the file claims, or the partitions that were counted.
    if partitions is None:
        ranks = main.rest.get("dp_world_size")
    else:
        ranks = partitions.saved_by
    facts: list[tuple[str, Node]] = [
        ("step", main.rest.get("global_steps")),
        ("ranks", ranks),
    ]
    is_lightning = isinstance(main.rest.get(_LIGHTNING), str)
    if is_lightning:  # its client state
        facts.insert(0, ("epoch", main.rest.get("epoch")))
    if plan.layers:
        facts += [("layers", len(plan.layers)), ("stages", len(plan.stages))]
    facts.append(("DeepSpeed", main.version))
    return replace(
        whole,
        nbytes=files.nbytes,
        tensors=tuple(_with_role(entry, main) for entry in whole.tensors),
        account=whole.account.without_values(
            [
                *_further_losses(main, partitions),
                *_without_module(files, root, partitions),
            ]
        ),
        parts=tuple(f"{plan.prefix}{name}" for name in files.files),
        layout=f"{'Lightning checkpoint, ' if is_lightning else ''}DeepSpeed {kind}",
        copies=(MODULE,) if MODULE in root.keys and files.is_module_whole else (),
        not_loadable=None if is_whole else "files of ranks are missing or damaged",
        # ZeRO steps a whole group, also where a part of it had no gradient.
        shares_states=partitions is not None,
        is_edited=True,  # no file holds this tree
        facts=tuple(
            (label, node) for label, node in facts if isinstance(node, (int, str))
        ),
        sources=files.sources,
        imports=_list_imports(files),
        weights_only=_list_refusals(files),
    )


def _model_weights(
    main: ModelState, partitions: Partitions | pipeline.Stages | None, probe: Probe
) -> dict[str, Node]:
    """The model: rebuilt parameters, and what the module alone has; in the order of the
    module.
    """
    module: dict[str, Node] = dict(main.module or {})
    if partitions is None:
        return module
    probe.budget.claim(len(partitions.names))
    probe.budget.charge(_REBUILT * len(partitions.names), "the rebuilt weights")
    rebuilt = partitions.weights(f"{probe.mark}fp32.")
    for name in main.frozen:
        if name not in rebuilt and name not in module and not partitions.is_shared:
            rebuilt[name] = main.frozen[name]
    nameless = _nameless_parameters(main, partitions)
    weights: dict[str, Node] = {}
    # The order of the module is the order of `state_dict()`; after it come the names
    # that only the other files know.
    for name in dict.fromkeys((*module, *partitions.names, *rebuilt, *main.shared)):
        owner = main.shared.get(name, name)
        if owner in rebuilt:
            weights[name] = rebuilt[owner]
        elif name in nameless:
            continue
        elif (
            name in module
            and owner not in partitions.names
            and owner not in partitions.lost
        ):
            weights[name] = module[name]
    return weights


def _nameless_parameters(
    main: ModelState, partitions: Partitions | pipeline.Stages | None
) -> tuple[str, ...]:
    """Return the parameters of ZeRO-3 that are empty in the module, and that no file
    gives a shape or an owner.

    The first rank alone records which parameters are shared.
    """
    if partitions is None or not partitions.is_shared:
        return ()
    known = {
        *partitions.names,
        *main.shared,
        *main.frozen_shapes,
        *(main.buffers or ()),
    }
    # A parameter that has no elements in the model either is in `param_shapes`.
    return tuple(
        name
        for name, ref in (main.module or {}).items()
        if not ref.numel and 0 in ref.shape and name not in known
    )


def _further_losses(
    main: ModelState, partitions: Partitions | pipeline.Stages | None
) -> tuple[Absence, ...]:
    """Return the losses that follow from the weights in the notices: their other names,
    and their state.
    """
    if partitions is None:
        return ()
    rows = [
        Absence(f"{MODEL}.{alias}", f"lost with {owner}")
        for alias, owner in main.shared.items()
        if owner in partitions.lost and alias not in partitions.lost
    ]
    if partitions.has_optimizer:
        trained = [name for name in partitions.names if name in partitions.lost]
        rows += [
            Absence(f"{OPTIMIZER}.state.{name}", f"lost with {name}")
            for name in trained
        ]
    rows += [
        Absence(f"{OPTIMIZER}.state.{name}", "not whole")
        for name in partitions.lost_state
    ]
    return tuple(rows)


def _without_module(
    files: Files, root: Dict, partitions: Partitions | pipeline.Stages | None
) -> tuple[Absence, ...]:
    """Return the module as a loss if it is not shown, because tensors of it are
    missing.
    """
    is_gone = (
        partitions is not None
        and not partitions.is_shared
        and not files.is_module_whole
    )
    if not is_gone or MODULE in root.keys:
        return ()
    return (Absence(MODULE, "some of its tensors are missing"),)


def _zero_fields(partitions: Partitions | pipeline.Stages) -> Dict:
    """Return the fields beside the partitions: the stage, the ranks, and the state of
    the loss scaler.
    """
    node = Dict()
    node.set(["stage", "ranks"], [partitions.stage, partitions.saved_by])
    for name, child in partitions.rest.items():
        node.set([name], [plain_fields(child)])
    return node


def _put_rest(root: Dict, rest: dict[str, Node]) -> None:
    """Put the other fields at the root. One whose name is taken goes below
    `client_state`.
    """
    taken = {key for key in root.keys if isinstance(key, str)}
    moved = Dict()
    for name, node in rest.items():
        # The client may save a field `model` or `optimizer` of its own.
        if name in taken:
            moved.set([name], [node])
        else:
            root.set([name], [node])
    if moved.keys:
        place = "client_state"
        while place in rest:
            place += "_"
        root.set([place], [moved])


def _with_role(entry: Entry, main: ModelState) -> Entry:
    """A tensor of the model with its role: `buffer_names` lists all buffers."""
    if main.buffers is None or len(entry.path) != 2 or entry.path[0] != MODEL:
        return entry
    kind = "buffer" if entry.path[1] in main.buffers else "parameter"
    return entry._replace(kind=kind, source=FORMAT.name)  # type: ignore[arg-type]


_NO_STAGE = (
    "DeepSpeed's zero_to_fp32.py refuses states that name no ZeRO stage (of "
    "BF16_Optimizer); ckpt convert puts them together"
)


def _folder_traits(
    plan: Plan, stage: int, main: ModelState, *, has_stage: bool
) -> Traits:
    """The traits with the expression that loads this folder.

    DeepSpeed's own function leaves the frozen parameters of ZeRO 1 out, which the
    module has.
    """
    # An expression is shown only where DeepSpeed or torch really loads the folder.
    if plan.layers:
        return FORMAT.traits._replace(load="")  # zero_to_fp32.py takes no pipelines
    tag = plan.prefix.rstrip("/") or "."  # the folder of the tag itself
    name = next(iter(plan.models.values()))
    # Braces in a name would be taken for the places of `{path}` in the expression.
    if any(letter in f"{tag}{name}" for letter in "{}"):
        return FORMAT.traits._replace(load="")
    if not has_stage and plan.universal is None:
        return FORMAT.traits._replace(load="", no_load=_NO_STAGE)
    inside = f" + {json.dumps('/' + plan.prefix + name)}"
    if stage == 0:
        return FORMAT.traits._replace(
            load=f'torch.load({{path}}{inside}, {{options}})["module"]'
        )
    if plan.universal is not None:
        return FORMAT.traits._replace(load="")
    call = f"get_fp32_state_dict_from_zero_checkpoint({{path}}, tag={json.dumps(tag)})"
    trained = _trained_names(main)
    frozen = (
        (main.module or {}).keys()
        - trained
        - main.shared.keys()
        - (main.buffers or set())
    )
    # They are put in front, so that rebuilt weights of the same name win.
    if frozen and not main.frozen:
        module = f'torch.load({{path}}{inside}, map_location="cpu")["module"]'
        call = f"{{{{**{module}, **{call}}}}}"
    return FORMAT.traits._replace(load=call)


def _list_imports(files: Files) -> tuple[Import, ...]:
    """Return the imports of all files, each once though every rank repeats it."""
    rows: dict[tuple[object, ...], Import] = {}
    for name, file in files.files.items():
        for row in file.imports:
            rows.setdefault(
                (row.module, row.name, row.group, row.calls), row._replace(file=name)
            )
    return tuple(rows.values())


def _list_refusals(files: Files) -> tuple[Refusal, ...]:
    """Return the refusals of weights_only, each reason once, with the file in front of
    its places.
    """
    rows: dict[str, Refusal] = {}
    for name, file in files.files.items():
        for row in file.weights_only or ():
            where = tuple(f"{name}: {place}" for place in row.where)
            rows.setdefault(row.reason, row._replace(where=where))
    return tuple(rows.values())


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    plan = plan_of(probe, limits)

    # `verify` reads each file on its own, so a damaged one does not end it.
    def check_file(name: str) -> ChecksumReport:
        return check(plan.file(name), file_mark(probe, name))

    return check_files(plan.names, check_file, partial=True, prefix=plan.prefix)


def recorded(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    plan = plan_of(probe, limits)
    files: list[RecordedFile] = []
    for name in plan.names:
        try:
            files += inner(plan.file(name), f"{plan.prefix}{name}")
        except LimitError:
            raise
        except CkptError as error:
            files.append(RecordedFile(f"{plan.prefix}{name}", 0, problem=error.problem))
    return files


WEIGHTS = "fp32"
_OPTIMIZER = "zero/optimizer_state.pt"


class Universal(Partitions):
    """The states of all parameters, whole already. Raises UnreadableError where a shape
    contradicts its tensor.
    """

    def __init__(
        self, files: Files, models: dict[int, ModelState], limits: Limits
    ) -> None:
        super().__init__(models, {}, limits)
        ranks = self._main.rest.get("dp_world_size")
        self.saved_by = ranks if type(ranks) is int else None
        self._states: dict[str, dict[str, Node]] = {}
        """Parameter -> state -> tensor or number."""
        self._common: dict[str, Node] = {}
        # A universal checkpoint has thousands of small files: they are opened ahead.
        for file in names_opened_ahead(files.plan.at, files.plan.universal or ()):
            opened = files.open(file)
            parts = file.removesuffix(".pt").split("/")
            if opened is None or files.cut_in(file):
                if len(parts) == 3 and parts[2] != WEIGHTS:
                    self.lost_state.append(f"{parts[1]}.{parts[2]}")
                continue
            if file == _OPTIMIZER:
                self._common = node_fields(opened.root)
                continue
            if len(parts) == 3:
                # A file may wrap the tensor: {"param": tensor, "cat_dim": 0}.
                node = opened.root
                if look(node).kind == "mapping":
                    node = node_fields(node).get("param", node)
                states = self._states.setdefault(parts[1], {})
                states[parts[2]] = self._shape_tensor(node, parts[1], file)
        held = {
            name
            for name, states in self._states.items()
            if tensor_of(states.get(WEIGHTS)) is not None
        }
        lost = [name for name in self.names if name not in held]
        self.lost = frozenset({*lost, *self._lost_frozen})
        further = [
            name
            for name in self._states
            if name in held and not self._is_whole_buffer(name)
        ]
        self.names = tuple(dict.fromkeys((*self.names, *further)))
        # `Partitions` was given no optimizer files, so all its weights seem lost. Only
        # its notices about frozen fragments are true here.
        self.notices = [
            row for row in self.notices if not set(row.tensors) - self._lost_frozen
        ]
        if lost:
            names = and_more([show(name, 60) for name in lost], 3)
            text = (
                f"{counted_noun(len(lost), 'parameter')} of {len(self.names):,} have "
                f"no fp32 weights: {names}"
            )
            self.notices.append(Notice("incomplete", text, tuple(lost)))
        files.notices += self.notices

    def _shape_tensor(self, node: Node, name: str, file: str) -> Node:
        """A flat tensor in the shape of its parameter; any other tensor, or a number,
        as it is.
        """
        tensor = tensor_of(node)
        shape = self._shapes.get(name)
        if (
            type(tensor) is not TensorRef
            or shape is None
            or not tensor.shape
            or tensor.shape == shape
        ):
            return node if tensor is None else tensor
        numel = self._cuts[name].numel
        if not is_flat(tensor):
            # tensor parallel ranks were merged, and the shapes are those of one rank
            return tensor
        if tensor.numel != numel:
            raise UnreadableError(
                f"{show(file, 120)} holds {tensor.numel:,} elements, its parameter has "
                f"{numel:,}"
            )
        return tensor_ref(
            tensor.storage, tensor.dtype, shape, contiguous(shape), tensor.offset
        )

    @property
    def stage(self) -> int:
        stage = look(self._common.get("zero_stage")).value
        # `zero_stage` may be missing: then the configuration in the model states
        # counts.
        return stage if type(stage) is int and 0 <= stage <= 3 else super().stage

    @property
    def has_optimizer(self) -> bool:
        return any(set(states) - {WEIGHTS} for states in self._states.values())

    @property
    def rest(self) -> dict[str, Node]:
        gone = (
            "param_groups",
            "zero_stage",
            "optimizer_state_dict",
            "fp32_flat_groups",
            "base_optimizer_state",
        )
        return {name: node for name, node in self._common.items() if name not in gone}

    def weights(self, prefix: str) -> dict[str, Node]:
        weights = super().weights(prefix)
        for name, states in self._states.items():
            # The folder has buffers too, all as fp32: the module has them as they were.
            if tensor_of(states.get(WEIGHTS)) is not None and not self._is_whole_buffer(
                name
            ):
                weights[name] = states[WEIGHTS]
        return weights

    def _is_whole_buffer(self, name: str) -> bool:
        return name in (self._main.buffers or ()) and name in (self._main.module or {})

    def _state_rows(self, prefix: str) -> dict[str, dict[str, Node]]:
        rows = {
            name: {key: node for key, node in states.items() if key != WEIGHTS}
            for name, states in self._states.items()
        }
        return {name: row for name, row in rows.items() if row}

    def _base_groups(self) -> tuple[Node, ...]:
        held = look(self._common.get("param_groups"))
        return tuple(held.children) if held.kind == "sequence" else ()

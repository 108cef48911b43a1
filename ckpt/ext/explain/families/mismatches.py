"""Tensors whose shapes differ between a file and a model, and the reasons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ckpt.evidence.pretrained import base_of_adapter as pretrained_base
from ckpt.ext.explain.case import Case, Shapes, Statement, command_statements
from ckpt.ext.explain.families.architectures import (
    groups_statement,
    kernel_statement,
    name_architectures,
    shifted_statement,
)
from ckpt.ext.explain.families.beginnings import load_into_statement
from ckpt.ext.explain.families.computed import (
    computed_buffers,
    computed_shapes,
    swin_downsample,
)
from ckpt.ext.explain.families.divided import is_empty, is_of_a_rank, shape_numel
from ckpt.ext.explain.families.flat import flat_statement
from ckpt.ext.explain.families.items import left_out_statement
from ckpt.ext.explain.families.layers import (
    MIXED,
    differing_sizes,
    heads_statement,
    one_size_statement,
    place_text,
)
from ckpt.ext.explain.families.places import find_in_order
from ckpt.ext.explain.families.positions import (
    are_other_grids,
    has_equal_grids,
    is_other_attention,
)
from ckpt.ext.explain.families.quantized import SCALE
from ckpt.ext.explain.families.recorded import (
    settings_command,
    settings_of,
    settings_places,
)
from ckpt.ext.explain.families.recurrent import (
    axes_statements,
    dimensions_statement,
    gates_statement,
    of_recurrent,
    projection_statement,
)
from ckpt.ext.explain.families.replaced import (
    anchors_statement,
)
from ckpt.ext.explain.families.shape_reasons import (
    VOCABULARY,
    is_fed_table,
    is_own_table,
    replaced_in,
    shape_reasons,
)
from ckpt.ext.explain.families.spellings import (
    ADDED,
    adapter_rank,
    is_adapter,
    merged_layers,
)
from ckpt.ext.explain.families.taken_apart import taken_apart
from ckpt.ext.explain.families.turned import (
    are_turned,
    places_statement,
)
from ckpt.ext.explain.families.verdicts import (
    inputs_statement,
    longer_lists,
    variant_statement,
    vocabularies_statement,
    vocabulary_statement,
)
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, pasted_path, show

CONVERTED = "input_blocks.0.0.weight"
"""The first convolution of a UNet in the names of its authors."""


def is_converted(name: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether a name is the one that diffusers gives the first convolution of a
    file in the names of the authors.
    """
    is_first = name in ("conv_in.weight", "unet.conv_in.weight")
    return (
        is_first
        and name not in shapes
        and any(other.endswith(CONVERTED) for other in shapes)
    )


class _Asked(NamedTuple):
    """The message about tensors of other shapes, and the file to hold against it.
    `shapes` has the shape of every tensor of the file.
    """

    message: Message
    case: Case
    shapes: dict[str, tuple[int, ...]]


class _Told(NamedTuple):
    """The answer of a step. `left` are the tensors that it does not explain, and with
    `is_last` no other step has anything to add.
    """

    statements: Sequence[Statement]
    left: Sequence[Mismatch]
    is_last: bool = False


_Step: TypeAlias = Callable[[Sequence[Mismatch], _Asked], _Told]


def mismatch_statements(
    message: Message,
    case: Case,
    rows: Sequence[Shapes],
    shapes: dict[str, tuple[int, ...]],
) -> Iterator[Statement]:
    """Explain the tensors that have another shape in the model, and print the load of
    all others where it gives a model that is worth something.
    """
    said = {row.name: row.checkpoint for row in message.mismatched}
    other = [
        row.name for row in rows if row.file is not None and row.file != said[row.name]
    ]
    lost = [row.name for row in rows if row.file is None]
    before = _of_file_before(message, shapes)
    if before is not None:
        yield before
        return
    turned = _turned_by_loader(message, rows)
    if turned and len(turned) == len(other):
        yield load_into_statement(case.survey, _turned_text(turned))
        return
    if other:
        yield Statement(
            f"{counted_noun(len(other), 'tensor')} "
            f"{'has' if len(other) == 1 else 'have'} another shape in this file than "
            "in the message. Is it the file that was loaded?",
            tuple(other),
        )
    if lost:
        yield Statement(
            f"{counted_noun(len(lost), 'tensor')} {be_verb(lost)} not in this file.",
            tuple(lost),
        )
    # No shape of the message is of this file, so a reason would be of another one.
    is_of_another = bool(other) and len(other) + len(lost) == len(rows)
    if case.is_useless or is_of_another:
        return
    asked = _Asked(message, case, shapes)
    left: Sequence[Mismatch] = [
        row for row in message.mismatched if row.name not in other
    ]
    is_warned = False
    for step in (*_STEPS_OF_NAMES, *(_STEPS_OF_SHAPES if left else ())):
        told = step(left, asked)
        yield from told.statements
        if told.is_last or any(MIXED in row.text for row in told.statements):
            return
        is_warned = is_warned or any(_WARNS.search(row.text) for row in told.statements)
        left = told.left
    if not is_warned and _is_worth_a_load([row.name for row in rows], left, asked):
        if any(map(are_other_grids, left)):
            yield from _interpolated_statements(case.survey.path)
        yield load_into_statement(
            case.survey, "Load what fits, and keep the model's own values elsewhere:"
        )


_WARNS = re.compile(
    r"(?i)\ba load of what fits leaves (?:these layers|the whole table) untrained\b"
)
"""The words of a warning, below which no such load is printed."""
_LEAST_BEFORE = 4
"""Tensors that a message names at least, to say that it is of another file."""


def _of_file_before(
    message: Message, shapes: dict[str, tuple[int, ...]]
) -> Statement | None:
    """Say that a message is about another file, as the weights that a backbone begins
    with: this one has the shapes of the model, or return None.
    """
    rows = message.mismatched
    # A loader turns kernels of the right file, which has the same sizes then.
    if len(rows) < _LEAST_BEFORE or any(
        sorted(row.checkpoint) == sorted(row.model) for row in rows
    ):
        return None
    begins = {""} | {
        name.removesuffix(rows[0].name)
        for name in shapes
        if name.endswith(f".{rows[0].name}")
    }
    found = [
        begin
        for begin in begins
        if all(shapes.get(f"{begin}{row.name}") == row.model for row in rows)
    ]
    if len(found) != 1:
        return None
    (begin,) = found
    below = f", below {show(begin.rstrip('.'), 80)}" if begin else ""
    part = (
        f" The message names the tensors without {show(begin, 80)}, so it comes from a "
        "load into that part of the model alone, which the program makes before this "
        "file is loaded: of the weights that this part begins with (pretrained, "
        "init_cfg, a download of torchvision or timm)."
        if begin
        else ""
    )
    return Statement(
        f"The {counted_noun(len(rows), 'tensor')} of the message "
        f"{be_verb(rows)} in this file{below}, in the shapes of the model, and not in "
        "those that the message gives for its checkpoint. So it is about another "
        f"file, and these tensors of this one fit.{part} Look for the line of the log "
        "that names the file which was loaded there; where this file has that part, it "
        "is loaded over it, and the earlier load may be left out.",
        refutes=True,
    )


def _interpolated_statements(path: str) -> Iterator[Statement]:
    """The command that interpolates positions to the grid of the model."""
    words = pasted_path(path)
    if words is not None:
        yield Statement(
            "With the code of the model, the grid of positions is interpolated:",
            (),
            f"ckpt warmstart {words} --into-model FILE.py:FACTORY "
            "--on-mismatch interpolate -o start.pth",
        )


def _turned_by_loader(message: Message, rows: Sequence[Shapes]) -> list[Mismatch]:
    """The tensors that have in the file the shape that the model asks for, and whose
    sizes the program put into another order while it loaded.
    """
    held = {row.name: row.file for row in rows}
    return [
        row
        for row in message.mismatched
        if held.get(row.name) == row.model
        and row.checkpoint != row.model
        and sorted(row.checkpoint) == sorted(row.model)
    ]


_AXES_OF_KERNELS = 5


def _turned_text(turned: Sequence[Mismatch]) -> str:
    """The sentence on tensors that a program turned while it loaded them."""
    kernels = (
        " mmdetection3d and its kin do so to kernels of spconv 1 for spconv 2, and "
        "take a file for an older one where its state dict records no version of the "
        "layers, as one that was converted or written again."
        if all(len(row.model) == _AXES_OF_KERNELS for row in turned)
        else " Some layers do so to files of an older version of their library."
    )
    has, those = ("has", "it") if len(turned) == 1 else ("have", "them")
    return (
        f"{counted_noun(len(turned), 'tensor')} {has} in this file the shape that the "
        "model asks for, and the message has the same sizes in another order: the "
        f"program turned {those} while it loaded.{kernels} The file fits as it is. So "
        "it is copied without a turn:"
    )


def _step_of_bitsandbytes(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Explain codes of four bits, which bitsandbytes writes beside absmax and
    quant_map, below the name of the weight.
    """
    packed = [
        row
        for row in left
        if any(f"{row.name}.{part}" in asked.shapes for part in ("absmax", "quant_map"))
    ]
    if not packed:
        return _Told((), left)
    statements = [
        Statement(
            f"{counted_noun(len(packed), 'weight')} of this file "
            f"{be_verb(packed)} packed by bitsandbytes: "
            f"{show(packed[0].name, 100)} is a row of codes, "
            "beside its absmax and quant_map, and the program built plain layers. It "
            "takes a loader that knows them (ComfyUI: the node of "
            "ComfyUI_bitsandbytes_NF4 in place of Load Checkpoint or Load Diffusion "
            "Model), or a file that is not packed."
        ),
        *command_statements(
            "The floats that the codes stand for, for plain layers:",
            asked.case.plan(("dequantized",)),
        ),
    ]
    return _Told(statements, left, is_last=True)


def _step_of_other_places(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """End where the keys have explained all shapes: equal names are other layers."""
    message = asked.message
    # Other places in a list were said with the keys.
    are_places = places_statement(message.missing, message.unexpected) is not None
    # Layers that a list counts otherwise have the shapes of others by their old names.
    is_last = are_places or _are_renumbered(message, asked.shapes)
    return _Told((), left, is_last)


def _step_of_sole_reasons(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Give the reasons that explain all shapes at once."""
    message, case, shapes = asked
    sole = (flat_statement(left), left_out_statement(message, shapes))
    told = [
        *(row for row in sole if row is not None),
        *taken_apart(left),
        *_of_quantizers(left, shapes),
        *merged_layers(message, shapes, case),
        *name_architectures(message, shapes),
        *adapter_rank(message, case),
    ]
    return _Told(told, left, is_last=bool(told))


def _step_of_plans(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Explain the networks that nnU-Net builds by plans."""
    # It prints "Pretrained model: [..]; your network: [..]" in one line.
    if "your network:" not in asked.message.text:
        return _Told((), left)
    statement = Statement(
        "nnU-Net builds a network by the plans of its dataset, and these were made "
        "from other plans (patch size, spacing): kernels and strides differ. Give both "
        "the same plans: nnUNetv2_move_plans_between_datasets copies those of the "
        "target to the dataset of the pretraining, which is then preprocessed and "
        "trained with them."
    )
    return _Told((statement,), left)


def _step_of_what_is_no_weight(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Take off what a model computes anew, and what belongs to a loss."""
    message, case, shapes = asked
    statements = list(computed_shapes(left, message, case))
    moved = swin_downsample(message, shapes, case)
    renumbered = frozenset() if moved is None else moved[0]
    buffers = set(computed_buffers([row.name for row in left]))
    left = [
        row for row in left if row.name not in buffers and row.name not in renumbered
    ]
    hollow = [row for row in left if _holds_nothing(row)]
    if hollow:
        statements.append(_hollow_statement(hollow))
        left = [row for row in left if row not in hollow]
    losses = [row for row in left if _OF_LOSS.match(row.name)]
    if losses:
        left = [row for row in left if row not in losses]
        # A loss that counts the words or the classes of the model follows it.
        if not differing_sizes(losses) <= differing_sizes(left):
            statements.append(_loss_statement(losses))
        fed = _fed_statement(losses)
        if not left and fed is not None:
            statements = [fed, *_compared_settings(case)]
            return _Told(statements, left, is_last=True)
    if not left:
        statements.append(load_into_statement(case.survey, "So all else loads:"))
    return _Told(statements, left, is_last=not left)


def _step_of_gates(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Explain a recurrent layer of another kind, and its own tensors alone."""
    gates = gates_statement(left) or projection_statement(
        left, asked.message.missing, asked.shapes
    )
    if gates is None:
        return _Told((), left)
    left = [row for row in left if not of_recurrent(row.name)]
    return _Told((gates,), left, is_last=not left)


def _step_of_axes(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Explain axes in another order, where the model lacks nothing."""
    survey = asked.case.survey
    is_sole = len(survey.candidates) == 1
    turned = list(axes_statements(left, survey.load.expression if is_sole else None))
    if not turned or asked.message.missing:
        return _Told((), left)
    return _Told(turned, left, is_last=True)


def _step_of_dimensions(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Explain layers of another number of dimensions."""
    # Dimensions of 1 alone change no value, and have their answer at the end.
    if all(_is_reshaped(row) for row in left):
        return _Told((), left)
    dimensions = dimensions_statement(left)
    if dimensions is None:
        return _Told((), left)
    return _Told((dimensions,), left, is_last=True)


def _step_of_settings(left: Sequence[Mismatch], asked: _Asked) -> _Told:
    """Give the reasons in the shapes and in the settings of the run, several at
    once.
    """
    message, case, shapes = asked
    # A list that is longer on one side is a reason by itself, said with its keys.
    is_longer = longer_lists(message, message.missing, message.unexpected, shapes)
    are_reshaped = all(_is_reshaped(row) for row in left)
    kernels = None if is_longer or are_reshaped else kernel_statement(left)
    inputs = inputs_statement(message)
    variant = variant_statement(message, shapes)
    # A table whose name says vocabulary has its sentence in shape_reasons; the sizes
    # alone tell the others.
    is_named = any(VOCABULARY.search(row.name) for row in left)
    words = None
    if not is_named:
        words = vocabulary_statement(left) or vocabularies_statement(left, shapes)
    is_whole = inputs is not None or words is not None
    heads = heads_statement(left, shapes)
    by_settings = [
        *([] if heads is None else [heads]),
        *settings_of(left, case),
    ]
    named = _recorded_class(message, case)
    recorded = list(_recorded_settings(message, case))
    statements = [
        *(row for row in (named, kernels, variant, inputs, words) if row is not None),
        *([] if is_whole else shape_reasons(left, shapes, message, case)),
        *by_settings,
        *recorded,
    ]
    # Layers that one side has alone do not say which sizes differ.
    is_told = statements != ([variant] if variant is not None else [])
    if not is_told and not is_longer and not are_reshaped:
        statements += one_size_statement(left)
    if is_told and not are_reshaped:
        statements += _beside_tables(left, shapes, statements)
    if are_reshaped:
        statements += _reshape_statements(left, case)
    if not by_settings and not recorded and not are_reshaped:
        statements += _compared_settings(case)
    # A model that is built by other settings takes the file as a whole.
    is_built_otherwise = bool(by_settings) and not message.missing
    return _Told(statements, left, is_last=are_reshaped or is_built_otherwise)


def _beside_tables(
    left: Sequence[Mismatch],
    shapes: dict[str, tuple[int, ...]],
    statements: Sequence[Statement],
) -> Iterator[Statement]:
    """Say which sizes differ beside tables of rows, where no sentence has named their
    layers.
    """
    if not any(is_own_table(row, shapes) for row in left):
        return
    said = " ".join(row.text for row in statements)
    rest = [
        row
        for row in left
        if not is_own_table(row, shapes)
        and not is_fed_table(row, shapes)
        and not VOCABULARY.search(row.name)
        and show(row.name.rpartition(".")[0] or row.name, 80) not in said
    ]
    # One list may give the sizes of layers that no sentence has named.
    listed_sizes = differing_sizes([row for row in left if row not in rest])
    sizes = sorted(differing_sizes(rest) - listed_sizes, reverse=True)
    if not 0 < len(sizes) <= _MOST_BESIDE:
        return
    listed = [
        f"{place_text(rest, here, there)} {here:,} in the checkpoint and {there:,} in "
        "the model"
        for here, there in sizes
    ]
    yield Statement(
        f"Beside that {and_more(listed, _MOST_BESIDE)}. So more than a list differs: "
        "the model was built by other settings, or by another version of the program, "
        "and the list goes with it."
    )


_MOST_BESIDE = 3
_STEPS_OF_NAMES: tuple[_Step, ...] = (_step_of_bitsandbytes, _step_of_other_places)
"""The steps that the names of the file or of the message decide, in this order."""
_STEPS_OF_SHAPES: tuple[_Step, ...] = (
    _step_of_sole_reasons,
    _step_of_plans,
    _step_of_what_is_no_weight,
    _step_of_gates,
    _step_of_axes,
    _step_of_dimensions,
    _step_of_settings,
)
"""The steps behind them, for shapes that are in the file as the message says."""


def _is_worth_a_load(
    names: Sequence[str], left: Sequence[Mismatch], asked: _Asked
) -> bool:
    """Tell whether a load of what fits gives a model that is worth something. `names`
    has the name of every tensor of the message.
    """
    message, case, shapes = asked
    if case.found("tensor-parallel") or any(ADDED.search(name) for name in names):
        return False
    # diffusers gave this layer another name, so the names of the file do not fit.
    if any(is_converted(name, shapes) for name in names):
        return False
    # An adapter is less than a tenth of its model, which load_into refuses.
    if is_adapter(shapes) or pretrained_base(case.survey.checkpoint) is not None:
        return False
    if not _is_enough(message, shapes):
        return False
    # A load of what fits would leave the whole table untrained.
    if left and all(
        is_own_table(row, shapes) or is_fed_table(row, shapes) for row in left
    ):
        return False
    # img_in of Flux differs between its variants, and each is another model.
    if len(left) == 1 and left[0].name.endswith("img_in.weight"):
        return False
    if longer_lists(message, message.missing, message.unexpected, shapes):
        return False
    # Another network at one place, or other anchors, has to be built first.
    if replaced_in(message, shapes) or anchors_statement(left) is not None:
        return False
    if any(is_other_attention(row) for row in left):
        return False
    if shifted_statement(message) is not None or groups_statement(left) is not None:
        return False
    # Square matrices would be taken as they are, and positions be left untrained.
    if are_turned(left) or any(has_equal_grids(row) for row in left):
        return False
    return not is_of_a_rank(left) and not any(is_empty(row) for row in left)


def _are_renumbered(message: Message, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether layers that pair in their order explain every shape."""
    rest = [name for name in message.unexpected if name in shapes]
    absent = [name for name in message.missing if name not in shapes]
    found = find_in_order(absent, rest, shapes, message)
    return bool(found.rules) and all(
        row.name in found.partners for row in message.mismatched
    )


_OF_CACHE = re.compile(
    r"(?:^|\.)(?:paddings?\.\d{1,3}\.|cache\.|\w{0,40}_cache\.)?pad$"
)
"""The buffers of convolutions that keep the end of the last block of a sound."""


def _holds_nothing(row: Mismatch) -> bool:
    """Tell whether a tensor is a buffer for the samples of a batch, which holds no
    trained values, or none at all.
    """
    # Of one side alone it would be a weight that was emptied.
    is_empty_here = 0 in row.checkpoint and 0 in row.model
    is_batched = (
        _OF_CACHE.search(row.name) is not None
        and row.checkpoint[1:] == row.model[1:]
        and row.checkpoint != row.model
    )
    return is_empty_here or is_batched


def _hollow_statement(rows: Sequence[Mismatch]) -> Statement:
    """Say that tensors of other shapes hold no trained values."""
    one = len(rows) == 1
    name = show(rows[0].name, 80)
    nothing = all(0 in row.checkpoint for row in rows)
    what = "the end of the last block, and no weights"
    if nothing:
        what = "no element at all"
    return Statement(
        f"{name} {'holds' if one else 'and its kin hold'} {what}: a buffer whose first "
        "size is the batch that went through the model when it was saved, as in "
        f"convolutions that keep a cache ({list(rows[0].checkpoint)} in the checkpoint "
        f"and {list(rows[0].model)} in the model). Nothing that was trained is in it, "
        "and a program that runs a batch of its own builds it anew. A version that "
        "keeps these out of the state dict, or another batch size, makes the "
        "difference."
    )


_OF_LOSS = re.compile(
    r"(?:\w{1,60}\.){0,2}\w{0,60}(?:[Cc]riterion|[Ll]oss(?:es|_fn|_func)?)\."
)
"""The beginning of the names of parameters that a loss has."""


def _loss_statement(rows: Sequence[Mismatch]) -> Statement:
    """Say that tensors of other shapes belong to the loss of a training."""
    names = and_more([show(row.name, 80) for row in rows], 3)
    text = (
        f"By its name {names} belongs"
        if len(rows) == 1
        else f"By their names {names} belong"
    )
    return Statement(
        f"{text} to the loss of the training, which a model that only predicts does "
        "without. The code that saved built it in another size, by its version or its "
        "settings."
    )


def _fed_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that a loss takes another width, which the model gives to it, or return
    None.
    """
    sizes = {
        (row.checkpoint[1], row.model[1])
        for row in rows
        if len(row.checkpoint) == len(row.model) == 2
        and row.checkpoint[0] == row.model[0]
    }
    if len(sizes) != 1 or len(rows) != 1:
        return None
    ((here, there),) = sizes
    more, fewer = max(here, there), min(here, there)
    joined = (
        f", {more // fewer} times as much: as of a pooling that joins several values"
        if more % fewer == 0
        else ""
    )
    return Statement(
        f"{show(rows[0].name, 80)} belongs to the loss by its name, and takes {here:,} "
        f"in the checkpoint and {there:,} in the model{joined}. That is the width of "
        "what the model gives to its loss, its embedding. All its layers fit, but what "
        "it computes of their outputs behind them is another thing than in the run "
        "that saved: without this tensor all else would load, and the embedding "
        "would not be the one that was trained. Build the model with the option that "
        f"gives {here:,} (the pooling, the layers that it takes)."
    )


def _is_enough(message: Message, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether more fits than what load_into refuses: a tenth of the parameters of
    the model.
    """
    # Tensors of other shapes are not loaded, so they count for the model alone.
    differing = {row.name for row in message.mismatched}
    left_over = differing.union(message.unexpected)
    fitting = sum(
        shape_numel(shape) for name, shape in shapes.items() if name not in left_over
    )
    others = sum(shape_numel(row.model) for row in message.mismatched)
    return 0 < fitting + others <= 10 * fitting


def _recorded_settings(message: Message, case: Case) -> Iterator[Statement]:
    """Say where the settings of the run are in the file, for a model that lacks whole
    layers of it and has other sizes.
    """
    if not message.unexpected:
        yield from _recorded_variant(message, case)
        return
    places = [show(place, 80) for place in settings_places(case)]
    if places:
        yield Statement(
            "Layers that the model lacks, beside other sizes, are of another version "
            "or config of it. The settings of the run that saved are in this "
            f"checkpoint, at {and_more(places, 3)}: build the model from them, with a "
            "version of its code that knows them."
        )


def _compared_settings(case: Case) -> Iterator[Statement]:
    """Print the command that shows the settings of the run, where none of them has the
    value of a size that differs.
    """
    found = settings_command(case)
    if found is not None:
        place, command = found
        yield Statement(
            "The settings of the run that saved are in this file, at "
            f"{show(place, 80)}. Compare them with those that the model was built "
            "with:",
            (),
            command,
        )


_CLASS = re.compile(r"loading state_dict for (\w{3,80})")
_NAMES = ("model_name", "model_type", "model_class", "arch", "architecture", "network")
_LEAST_SHARED = 3


def _recorded_class(message: Message, case: Case) -> Statement | None:
    """Say that a file records another class than the one that was built, where both
    begin alike, or return None: TextCNN and TextRCNN.
    """
    found = _CLASS.search(message.text)
    if found is None:
        return None
    built = found[1]
    for name, node in case.finds_value(_NAMES):
        if not isinstance(node, str) or not node.isidentifier() or node == built:
            continue
        # A type of transformers and a function of timm are no classes, by their small
        # letters: bert is the type of BertModel.
        if node == node.lower():
            continue
        one, two = node.lower(), built.lower()
        if one.startswith(two) or two.startswith(one):
            continue
        if one[:_LEAST_SHARED] != two[:_LEAST_SHARED]:
            continue
        return Statement(
            f"This file records {show(name, 60)} = {show(node, 60)}, and the program "
            f"built {show(built, 60)}: give it the name of the model in the file, or "
            f"take a file of {show(built, 60)}."
        )
    return None


_VARIANTS = ("version", "variant", "arch", "model_name", "model_size", "model_type")
"""The last keys of settings that name a variant of a model."""
_LEAST_SIZES = 2


def _recorded_variant(message: Message, case: Case) -> Iterator[Statement]:
    """Name the variant that the settings of a file record, where sizes of several kinds
    differ.
    """
    sizes = differing_sizes(message.mismatched)
    if len(sizes) < _LEAST_SIZES:
        return
    places = settings_places(case)
    named = [
        f"{show(name, 80)} = {show(str(node), 60)}"
        for name, node in case.finds_value(_VARIANTS)
        if isinstance(node, str)
        and "\n" not in node
        and any(name.startswith(f"{place}.") for place in places)
    ]
    if 0 < len(named) <= _LEAST_SIZES:
        yield Statement(
            f"Among the settings of this checkpoint stands {and_more(named, 2)}: build "
            "the model of that variant, for several of its sizes differ."
        )


def _of_quantizers(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]
) -> Iterator[Statement]:
    """Say that scales and zero points differ, which a quantizer writes beside its codes
    for each group of inputs.
    """
    parts = [row.name.rpartition(".") for row in rows]
    # A quantizer that packs codes writes them as qweight beside its scales.
    if not all(
        SCALE.search(last) and f"{layer}.qweight" in shapes for layer, _, last in parts
    ):
        return
    groups = {
        (row.checkpoint[0], row.model[0])
        for row in rows
        if len(row.checkpoint) == len(row.model) == 2
    }
    if all(row.checkpoint == row.model[::-1] for row in rows):
        yield Statement(
            "Each is the transpose of the model's: an older layout of GPTQ. Take the "
            "program of the time, or quantize anew."
        )
    elif len(groups) == 1:
        ((here, there),) = groups
        yield Statement(
            "They are scales of a quantizer, and the groups of inputs that share one "
            f"differ: {here:,} in the checkpoint and {there:,} in the model. Build the "
            "model with the group size of the checkpoint (1 group: group_size=-1)."
        )
    else:
        yield Statement(
            "They are scales of a quantizer: build the model with the settings that "
            "the checkpoint was quantized with."
        )


def _is_reshaped(row: Mismatch) -> bool:
    """Tell whether two shapes hold the same elements in the same order, but for
    dimensions of 1.
    """
    return [size for size in row.checkpoint if size != 1] == [
        size for size in row.model if size != 1
    ]


def _reshape_statements(rows: Sequence[Mismatch], case: Case) -> Iterator[Statement]:
    """Print the line that gives each tensor the shape of the model's."""
    text = (
        f"{counted_noun(len(rows), 'tensor')} {'has' if len(rows) == 1 else 'have'} "
        "the same elements in another shape: dimensions of 1 alone differ."
    )
    # With several models in a file the line would have to choose one.
    load = case.survey.load.expression
    if load is None or len(case.survey.candidates) > 1:
        yield Statement(text)
        return
    shaped = (
        "state.update((name, state[name].reshape(value.shape)) for name, value in "
        "model.state_dict().items() if name in state)"
    )
    yield Statement(
        f"{text} So they load with their values:",
        (),
        f"state = {load}; {shaped}; model.load_state_dict(state)",
    )

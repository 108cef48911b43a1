"""Layers by their names: numbers that moved, modules that stand by themselves, what was
measured by a quantizer or on data, and sizes that differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.families.recorded import settings_places
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, show

_SHOWN = 3


# --- numbers that moved ---------------------------------------------------------------


def renumbered_blocks(missing: Sequence[str], unexpected: Sequence[str]) -> list[str]:
    """The modules in which each list has layers by number, where all of both lists lie
    in such modules: the same layers are numbered otherwise.
    """
    ours = [_before_number(name) for name in missing]
    theirs = [_before_number(name) for name in unexpected]
    # None stands for a name outside of any list, which no number explains.
    if not ours or not theirs or None in ours or None in theirs:
        return []
    if set(ours) != set(theirs):
        return []
    return list(dict.fromkeys(name for name in ours if name is not None))


def renumbered_statement(
    absent: Sequence[str], rest: Sequence[str]
) -> Statement | None:
    """Say that layers stand under other numbers, or return None."""
    blocks = renumbered_blocks(absent, rest)
    if not blocks:
        return None
    shown = and_more([show(block, 60) for block in blocks], 4)
    weights = [name for name in rest if not _OF_STATISTIC.search(name)]
    shifts = _shifts_of(absent, weights)
    if len(shifts) == 1 and shifts != {0}:
        (more,) = shifts
        side, other = ("file", "model") if more > 0 else ("model", "file")
        count = counted_noun(abs(more), "layer")
        return Statement(
            f"Both lists are of layers by number in the same modules ({shown}): "
            f"{show(weights[0], 80)} of the file is {show(absent[0], 80)} in the "
            f"model. The {side} counts {count} without weights more before it, as of "
            f"dropout, of padding or of an activation, than the {other}: build the "
            "model with the options of the run that saved (CycleGAN and pix2pix: "
            "--no_dropout, or without it), or take its version of the program."
        )
    return Statement(
        f"Both lists are of layers by number in the same modules ({shown}): there the "
        f"file has {show(rest[0], 80)}, and the model {show(absent[0], 80)}. The "
        "program that saved put its layers together otherwise: it was built with other "
        "options, or is of another version. Give the program the options of the run "
        "that saved, as its README lists them for this file, or take its version."
    )


def _shifts_of(absent: Sequence[str], weights: Sequence[str]) -> set[int]:
    """The differences between the last numbers of two lists of names, paired in their
    order, or nothing where anything else in the names differs.
    """
    if len(weights) != len(absent):
        return set()
    shifts: set[int] = set()
    for old, new in zip(weights, absent, strict=True):
        here, there = _LAST_NUMBER.match(old), _LAST_NUMBER.match(new)
        if here is None or there is None:
            return set()
        if (here[1], here[3]) != (there[1], there[3]):
            return set()
        shifts.add(int(here[2]) - int(there[2]))
    return shifts


_LAST_NUMBER = re.compile(r"^(.*\.)(\d{1,5})(\.[^.]*)$")
_OF_STATISTIC = re.compile(r"\.(?:running_mean|running_var|num_batches_tracked)$")
_NUMBERED = re.compile(r"^(.+?)\.\d{1,5}\.")


def _before_number(name: str) -> str | None:
    """The name of the module whose layers a name counts, or None."""
    found = _NUMBERED.match(name)
    return None if found is None else found[1]


def unlike_statement(
    absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> Statement | None:
    """Say that the names of a file and of a model have no module in common, or return
    None.

    `names` are all names of the file.
    """
    ours = dict.fromkeys(name.partition(".")[0] for name in absent)
    theirs = dict.fromkeys(name.partition(".")[0] for name in rest)
    # Classes that share one module may be the same class with other parts.
    if not ours or not theirs or set(ours) & set(theirs):
        return None
    # Bare names, as of a single layer, tell no class.
    has_modules = all("." in name for name in (*absent, *rest))
    if not has_modules or min(len(absent), len(rest)) < _LEAST:
        return None
    # If most of the model has its place, the class is the same.
    placed = len(names) - len(rest)
    if placed > len(absent) and placed > len(rest):
        left = and_more([show(word, 40) for word in theirs], 5)
        lacking = and_more([show(word, 40) for word in ours], 5)
        return Statement(
            f"{placed:,} of {counted_noun(len(names), 'tensor')} of the file have "
            f"their place. The others are of {left}, and those that the model lacks of "
            f"{lacking}: the class is the same, and another version of the program, or "
            "other options, built it. Take the version and the options of the run that "
            f"saved.{_more_blocks_text(rest, names)}"
        )
    return Statement(
        "No module of both lists has one name: those of the file are "
        f"{and_more([show(word, 40) for word in theirs], 5)}, those of the model "
        f"{and_more([show(word, 40) for word in ours], 5)}. The model that was built "
        "is of another class than the one that was saved: build the class of the file."
    )


_BLOCK = re.compile(r"(?<![^.])(\d{1,4})\.")


def _more_blocks_text(rest: Sequence[str], names: Collection[str]) -> str:
    """The sentence on a list that has whole blocks more in a file than in a model, or
    an empty text.
    """
    left = set(rest)
    ours: dict[str, set[int]] = {}
    theirs: dict[str, set[int]] = {}
    for name in names:
        for found in _BLOCK.finditer(name):
            place = name[: found.start()].rstrip(".")
            number = int(found[1])
            ours.setdefault(place, set()).add(number)
            if name not in left:
                theirs.setdefault(place, set()).add(number)
    told = [
        f"{show(place, 80)} has {len(numbers):,} blocks in the file and "
        f"{len(theirs[place]):,} in the model"
        for place, numbers in ours.items()
        if place
        and 0 < len(theirs.get(place, ())) < len(numbers)
        and min(numbers - theirs[place]) > max(theirs[place])
    ]
    if not told:
        return ""
    return f" {and_more(told, 3)}: the model is a variant of another depth."


_LEAST = 4
"""Names on each side from which on two lists tell two classes."""


# --- parts of their own ---------------------------------------------------------------


def own_parts(rest: Sequence[str], names: Collection[str]) -> list[str]:
    """The first words of keys without a place, where no key with a place has one of
    them: whole modules that a model was built without. Empty otherwise.
    """
    left = set(rest)
    # A module with one key in its place was built, so no option left it out.
    placed = {name.partition(".")[0] for name in names if name not in left}
    words = dict.fromkeys(name.partition(".")[0] for name in rest if "." in name)
    if (
        not placed
        or placed.intersection(words)
        or not all("." in name for name in rest)
    ):
        return []
    return list(words)


def own_parts_statement(words: Sequence[str]) -> Statement:
    """Say that whole modules have no place in a model."""
    shown = and_more([show(word, 60) for word in words], 6)
    one = len(words) == 1
    return Statement(
        f"They are {'a whole module' if one else 'whole modules'} of the program that "
        f"saved ({shown}), and this model was built without {'it' if one else 'them'}. "
        "A model that is only used may do without; a training that goes on wants the "
        "options, and the version of the program, with which it began."
    )


# --- a size that differs --------------------------------------------------------------


_OF_BODIES = re.compile(r"(?:^|[._])(?:betas|shapedirs|shape_dirs)$")
"""Tensors of a layer of SMPL or MANO, which have a place for each coefficient."""


def _body_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that a body model was read from another file of it, or return None."""
    if not rows or not all(_OF_BODIES.search(row.name) for row in rows):
        return None
    pairs = {(row.checkpoint[-1], row.model[-1]) for row in rows if row.checkpoint}
    if len(pairs) != 1:
        return None
    ((here, there),) = pairs
    layer = show(rows[0].name.rpartition(".")[0], 80)
    return Statement(
        f"{layer} is a body model (SMPL, SMPL-X, MANO), with {here:,} coefficients of "
        f"shape in the checkpoint and {there:,} in the model. They are read from the "
        ".pkl or .npz of the body model, and no training changes them: files of SMPL "
        "before 1.1.0 have 10, those of 1.1.0 have 300. Give the program the file of "
        f"the run that saved, or cut its shapedirs to {here:,}."
    )


def differing_sizes(rows: Sequence[Mismatch]) -> set[tuple[int, int]]:
    """The sizes that differ, each in the checkpoint and in the model."""
    return {
        pair
        for row in rows
        for pair in zip(row.checkpoint, row.model, strict=False)
        if pair[0] != pair[1]
    }


def one_size_statement(rows: Sequence[Mismatch]) -> Iterator[Statement]:
    """Say that one size alone differs in all shapes, where one does."""
    body = _body_statement(rows)
    if body is not None:
        yield body
        return
    sizes = differing_sizes(rows)
    # zip stops at the shorter shape, so another number of dimensions is refused.
    is_alike = all(len(row.checkpoint) == len(row.model) for row in rows)
    if not is_alike or not sizes:
        return
    if len(sizes) > _SHOWN:
        yield _many_sizes_statement(rows, sizes)
        return
    if len(sizes) == 1:
        ((here, there),) = sizes
        yield Statement(
            f"One size alone differs: {here:,} in the checkpoint and {there:,} in the "
            f"model.{_joined_text(rows, here, there)} A setting of the program gives "
            "it, or its version: build the model as the run that saved did, with its "
            "options and its version."
        )
        return
    listed = and_more(
        [
            f"{place_text(rows, here, there)} {here:,} in the checkpoint and "
            f"{there:,} in the model"
            for here, there in sorted(sizes, reverse=True)
        ],
        _SHOWN,
    )
    grid = _grid_text(rows) or _times_text(sizes)
    # A convolution takes channels, and a linear layer what encodes a point.
    if not grid and all(len(row.model) < _AXES_OF_KERNELS for row in rows):
        grid = _encoded_text(sizes)
    yield Statement(
        f"{len(sizes)} sizes differ: {listed}.{grid} Settings of the program give them "
        "(the size of its input, of its layers), or its version: build the model as "
        "the run that saved did."
    )


def place_text(rows: Sequence[Mismatch], here: int, there: int) -> str:
    """The first layer with a size that differs, and what the size is to it: `fc.0
    takes`.
    """
    verbs = {0: "gives", 1: "takes"}
    for row in rows:
        pairs = list(zip(row.checkpoint, row.model, strict=False))
        if (here, there) not in pairs:
            continue
        layer, _, last = row.name.rpartition(".")
        is_weight = last.startswith("weight") and len(pairs) > 1
        verb = verbs.get(pairs.index((here, there)), "has") if is_weight else "has"
        # A transposed convolution has its outputs at index 1, and its bias tells.
        if is_weight and any(
            other.name == f"{layer}.bias"
            and (other.checkpoint, other.model) == ((here,), (there,))
            for other in rows
        ):
            verb = "gives"
        return f"{show(layer if layer and is_weight else row.name, 80)} {verb}"
    return ""


def _many_sizes_statement(
    rows: Sequence[Mismatch], sizes: Collection[tuple[int, int]]
) -> Statement:
    """Say that many sizes differ, of which no one gives the others."""
    modules = dict.fromkeys(row.name.partition(".")[0] for row in rows)
    shown = and_more([show(module, 60) for module in modules], 4)
    # The largest ones are the widths, by which people know the variants of a network.
    listed = and_more(
        [f"{here:,} and {there:,}" for here, there in sorted(sizes, reverse=True)], 4
    )
    factors = {Fraction(there, here) for here, there in sizes if here}
    factor = "" if len(factors) == 1 else ", and no one factor gives them all"
    return Statement(
        f"{len(sizes)} sizes differ, in {counted_noun(len(rows), 'tensor')} of "
        f"{shown} (in the checkpoint and in the model {listed}){factor}. So the model "
        "was built by another config than the checkpoint: several settings differ, or "
        "the variant of the network, or the version of its code. Give the program the "
        "config that goes with this file (the one beside it where it was published), "
        f"or the file that goes with the config. {MIXED}"
    )


MIXED = "A load of what fits would mix two models."
"""The sentence behind which no load of what fits is printed."""


_LEAST_JOINED = 3
"""Vectors side by side. Twice a width is a wider layer as well."""


def _joined_text(rows: Sequence[Mismatch], here: int, there: int) -> str:
    """Say that a layer takes several vectors side by side on one side and one of them
    on the other, or return an empty text.
    """
    more, less = max(here, there), min(here, there)
    times, rest = divmod(more, max(less, 1))
    inputs = [row for row in rows if len(row.checkpoint) > 1]
    # Only what goes in differs: a wider layer gives more as well.
    is_input = bool(inputs) and all(row.checkpoint[0] == row.model[0] for row in inputs)
    if rest or times < _LEAST_JOINED or less < _LEAST_SIZE or not is_input:
        return ""
    side = "checkpoint" if here > there else "model"
    layer = show(inputs[0].name.rpartition(".")[0], 80)
    return (
        f" {more:,} is {times:,} times {less:,}: in the {side} {layer} takes "
        f"{times:,} vectors side by side (steps, frames, tokens, the parts of an "
        "action), where the other one takes one."
    )


def _times_text(sizes: Collection[tuple[int, int]]) -> str:
    """Say which of the sizes that differ is a multiple of another on both sides, or
    return an empty text: one setting gives both.
    """
    for here, there in sorted(sizes):
        if min(here, there) < _LEAST_SIZE:
            continue
        for more, others in sorted(sizes):
            times, rest = divmod(more, here)
            if times > 1 and not rest and others == times * there:
                return (
                    f" {more:,} is {times:,} times {here:,}, as {others:,} is of "
                    f"{there:,}: one setting gives both."
                )
    return _products_text(sizes)


def _products_text(sizes: Collection[tuple[int, int]]) -> str:
    """Say that one of two sizes is a multiple of the other on each side, by another
    factor, or return an empty text: a second setting gives the factor.
    """
    if len(sizes) != _PAIR:
        return ""
    (here, there), (most, others) = sorted(sizes)
    if min(here, there) < _LEAST_SIZE or most % here or others % there:
        return ""
    return (
        f" {most:,} is {most // here:,} times {here:,}, and {others:,} is "
        f"{others // there:,} times {there:,}: so perhaps two settings differ, the "
        f"size itself ({here:,} and {there:,}) and how many of it stand side by side "
        f"({most // here:,} and {others // there:,}: frames, steps, heads or groups)."
    )


_PAIR = 2
_POINTS = (3, 2)
"""The numbers of a place or of a direction that a network of a scene takes."""
_LEAST_BANDS, _MOST_BANDS = 4, 16
_AXES_OF_KERNELS = 3


def _encoded_text(sizes: Collection[tuple[int, int]]) -> str:
    """Say that one side takes points as they are, and the other one sines and cosines
    of them as well, or return an empty text.
    """
    for here, there in sorted(sizes):
        less, more = min(here, there), max(here, there)
        bands, rest = divmod(more - less, 2 * less)
        # 63 is 3 with sines and cosines at 10 frequencies.
        if less not in _POINTS or rest or not _LEAST_BANDS <= bands <= _MOST_BANDS:
            continue
        side, other = (
            ("checkpoint", "model") if here > there else ("model", "checkpoint")
        )
        return (
            f" {more:,} is {less:,} and the sines and cosines of {less:,} at {bands:,} "
            f"frequencies: so, most likely, the {side} has a positional encoding of "
            f"its points and the {other} has none, by an option."
        )
    return ""


_LEAST_SIZE = 5
"""A size that is no factor of another one by chance."""


def _grid_text(rows: Sequence[Mismatch]) -> str:
    """The sentence on weights for each frequency of a picture, which are as many as its
    height and one more than half of its width, or an empty text.
    """
    sides = [(row.checkpoint[:2], row.model[:2]) for row in rows]
    halves = all(
        len(shape) == 2 and shape[1] == shape[0] // 2 + 1
        for pair in sides
        for shape in pair
    )
    if not halves:
        return ""
    here, there = rows[0].checkpoint[0], rows[0].model[0]
    return (
        f" By their numbers they are weights for the frequencies of a grid of {here} x "
        f"{here} and of {there} x {there}: the model was built for another size of "
        "image. Weights of a spectrum can be interpolated to it, and a load leaves "
        "them out."
    )


# --- heads of keys and values ---------------------------------------------------------


# Meta names them wk and wv, transformers k_proj and v_proj.
_OF_KEYS_AND_VALUES = re.compile(r"(?:^|\.)(?:w[kv]|[kv]_proj)\.(?:weight|bias)$")
_QUERIES_OF = (
    ("wk.", "wq."),
    ("wv.", "wq."),
    ("k_proj.", "q_proj."),
    ("v_proj.", "q_proj."),
)


def heads_statement(
    rows: Sequence[Mismatch], shapes: Mapping[str, tuple[int, ...]]
) -> Statement | None:
    """Say that the number of heads of keys and values differs, where their projections
    alone do, and in rows alone, or return None.
    """
    if not rows or not all(_OF_KEYS_AND_VALUES.search(row.name) for row in rows):
        return None
    sizes = {(row.checkpoint[0], row.model[0]) for row in rows}
    if len(sizes) != 1 or any(row.checkpoint[1:] != row.model[1:] for row in rows):
        return None
    ((here, there),) = sizes
    # The projection of queries has the same name but for one word.
    name = next((row.name for row in rows if "k_proj." in row.name), rows[0].name)
    for old, new in _QUERIES_OF:
        name = name.replace(old, new)
    queries = shapes.get(name, (0,))[0]
    setting = "num_key_value_heads (n_kv_heads in files of Meta)"
    if here == queries:
        why = (
            f"this file has as many rows for them as for queries ({here:,}): no heads "
            f"share them, and the model was built with {setting} of another model. "
            "Leave it out, or give it the number of all heads."
        )
    elif there == queries:
        why = (
            f"this file has {here:,} rows for them and {queries:,} for queries, so "
            "that heads share them, and the model was built without: its settings or "
            f"its version lack {setting}."
        )
    else:
        why = f"{here:,} rows in the checkpoint and {there:,} in the model: {setting}."
    return Statement(f"The projections of keys and values alone differ: {why}")


# --- what was measured ----------------------------------------------------------------


class _Measured(NamedTuple):
    """A kind of keys that are no weights: what they are, and what to do where the file
    alone has them, or the model alone.
    """

    pattern: re.Pattern[str]
    what: str
    if_saved: str
    if_asked: str


_KINDS = (
    _Measured(
        re.compile(r"\._(?:tmp_running_(?:mean|var)|running_iter)$"),
        "sums that SynchronizedBatchNorm keeps between its steps, and no weights",
        "A BatchNorm of torch has no place for them and needs none: its weights and "
        "statistics lie beside them. strict=False leaves them out.",
        "The model was built with a SynchronizedBatchNorm of a package "
        "(convert_model, convert_syncbn_model), and the file is of a BatchNorm of "
        "torch, or was converted back. Its weights and statistics are the same: they "
        "load with strict=False, or before the model is converted.",
    ),
    _Measured(
        # NVIDIA: conv._input_quantizer._amax, conv._weight_quantizer._amax.
        re.compile(r"(?:^|[._])\w{0,60}_quantizer\._\w{1,60}$"),
        "ranges that quantizers of NVIDIA measured (pytorch-quantization, ModelOpt)",
        "The model was saved with quantizers in its layers: put them in before the "
        "load, as the training did (quant_modules.initialize(), or "
        "modelopt.torch.opt.restore). A model of floats needs none of them: the "
        "weights beside them are floats and whole, and strict=False leaves the ranges "
        "out.",
        "The model was built with quantizers, and the file has no ranges for them: "
        "load first, then put them in and calibrate.",
    ),
    _Measured(
        re.compile(
            r"\.(?:act_quant|weight_quant|bias_quant|input_quant|output_quant)\."
        ),
        "of the quantizers of Brevitas",
        "Build the model with the layers of brevitas.nn, as the training did.",
        "The model was built with the layers of brevitas.nn, and the file was saved "
        "from another one.",
    ),
    _Measured(
        # lerobot: normalize_inputs.buffer_state.mean.
        re.compile(
            r"^(?:un)?normalize_(?:inputs|targets|outputs)\.buffer_\w{1,100}\."
            r"(?:mean|std|min|max)$"
        ),
        "statistics of the data that a policy of lerobot scales by",
        "Newer versions of lerobot keep them in files of processors beside the model, "
        "and not in it: take the version that saved, or convert the policy "
        "(lerobot.processor.migrate_policy_normalization).",
        "Newer versions of lerobot keep them in files of processors beside the model, "
        "and older ones take them from the data set (dataset_stats=). Without them the "
        "policy scales by nothing, and acts wrongly: do not pass over them.",
    ),
)


def measured_statement(names: Sequence[str], *, is_saved: bool) -> Statement | None:
    """Say that all of some keys were measured, or return None."""
    # One key of another kind may be a weight, and then the sentence would be false.
    for kind in _KINDS:
        if names and all(kind.pattern.search(name) for name in names):
            follows = kind.if_saved if is_saved else kind.if_asked
            side = "of this file" if is_saved else "that the model asks for"
            return Statement(
                f"{counted_noun(len(names), 'key')} {side} {be_verb(names)} "
                f"{kind.what}. {follows}",
                tuple(names),
            )
    return None


_WRAPPED = re.compile(r"\.linear\.(?=\w{1,20}$)")


def wrapped_layers(
    rest: Sequence[str], message: Message, case: Case
) -> Iterator[Statement]:
    """Say that layers of MLX still have the name that LoRA put around them."""
    # MLX says "Received … parameters not in model".
    if "parameters not in model" not in message.text:
        return
    if not rest or not all(_WRAPPED.search(name) for name in rest):
        return
    text = (
        "These names have .linear. in them, which the layers of LoRA in MLX put around "
        "a layer: the adapter was not fused before the save. Fuse it (mlx_lm.fuse), "
        "and save then."
    )
    way = case.plan(("rename", "--sub", r"s/\.linear\.(\w+)$/.\1/"))
    if way.command is None:
        yield Statement(text)
    else:
        yield Statement(f"{text} The base layers by their own names:", (), way.command)


# --- buffers and norms that one side alone has ----------------------------------------


def left_over_buffers(names: Sequence[str]) -> Statement:
    """Say that keys of a file are buffers that a model computes itself."""
    words = dict.fromkeys(name.rpartition(".")[2] for name in names)
    return Statement(
        f"{counted_noun(len(names), 'unexpected key')} {be_verb(names)} no "
        f"weight{'' if len(names) == 1 else 's'} "
        f"({and_more([show(word, 60) for word in words], 3)}): the model computes them "
        "when it is built, and loses nothing without them."
    )


_NORM_OF_STAGE = re.compile(r"(?:^|\.)norm\d\.(?:weight|bias)$")


def norms_of_stages(absent: Sequence[str], rest: Sequence[str]) -> Statement | None:
    """Say that a backbone in a detector has a norm for each stage, and a classifier one
    at its end, or return None.
    """
    if not absent or not all(_NORM_OF_STAGE.search(name) for name in absent):
        return None
    if not rest or not all(re.search(r"(?:^|\.)norm\.\w+$", name) for name in rest):
        return None
    return Statement(
        "In a detector or a segmenter the backbone has a norm behind each stage that "
        "it hands on, and a classifier has one norm at its end: this file is of a "
        "classifier. So these differ as they should: the norms of the stages are "
        "trained anew, and all else is loaded.",
        tuple(absent),
    )


# --- counts of what was loaded --------------------------------------------------------

LOADED = re.compile(
    r"Successful Load Key Num: (\d{1,9})[\s\S]{0,100000}?"
    r"Fail To Load Key num: (\d{1,9})"
)
"""The report of the programs of bubbliiing, which lists keys of the file."""


def of_loaded(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that counts which keys of a file it took, and lists the
    others.
    """
    taken, left = int(found[1]), int(found[2])
    whole = sum(len(section.names()) for section in case.survey.candidates[:1])
    if not whole:
        return
    if taken + left != whole:
        yield Statement(
            f"The message counts {taken + left:,} keys, and this file has {whole:,}: "
            "another file was loaded."
        )
    elif not taken:
        yield Statement(
            f"The program took none of the {whole:,} keys of this file, and lists "
            "those of the file as failed: the model that it built has none of these "
            "names in these shapes. Choose the model (backbone, phi, version) that "
            "the file is of. As it is, all weights are random."
        )
    else:
        yield Statement(
            f"The program took {taken:,} of the {whole:,} keys of this file. Those "
            "that it lists are of the file, and have no place of this name and shape "
            "in the model: expected for the last layers of another number of classes, "
            "and for nothing else."
        )
    yield from load_statements(case)


# --- shapes that are not printed ------------------------------------------------------

OF_OTHER_SHAPES = re.compile(
    r"(?:Layer (?:dimention|dimension) miss?match between model definition and "
    r"checkpoint|[Ss]hape mismatch, (?:skip|drop)\w{0,6}(?: \w{1,20}){0,3}): "
    r"([\w.]{1,1000}\w)"
)
"""Lines of Coqui TTS and others that name a layer of another shape, and no shapes."""


def of_other_shapes(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that skips layers of another shape, and does not say which one
    they have.
    """
    # A log names one layer per line, and the match is only the first of them.
    said = dict.fromkeys(match[1] for match in OF_OTHER_SHAPES.finditer(found.string))
    held = {
        name: entry.tensor.shape
        for section in case.survey.candidates
        for name, entry in zip(section.names(), section.entries, strict=True)
    }
    here = [name for name in said if name in held]
    if not here:
        return
    shown = and_more([f"{show(name, 120)} {list(held[name])}" for name in here], _SHOWN)
    yield Statement(
        f"{counted_noun(len(here), 'layer')} of the message {be_verb(here)} in this "
        f"file, in the shape of the run that saved: {shown}. The program builds them "
        "in another one, so it loads none of them, and they stay untrained.",
        tuple(here),
    )
    places = settings_places(case)
    if places:
        yield Statement(
            "Build the model with the settings of that run, which this file has at "
            f"{and_more([show(place, 60) for place in places], 3)}."
        )
    yield from load_statements(case)

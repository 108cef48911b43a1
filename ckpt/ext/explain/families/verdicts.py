"""Keys without a place that are copies of the weights, and models that are not the same
by the kinds of their layers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ckpt.ext.explain.case import BUFFERS_OF_NORMS, Case, Statement
from ckpt.ext.explain.families.leftovers import modules_around
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, show

Shape = tuple[int, ...]
_COUNTER = "num_batches_tracked"

# --- copies of the weights ------------------------------------------------------------

_LEAST_COPIED = 0.8
"""The share of the weights that a copy has: a head may lack."""
_LEAST = 4
_AVERAGES = re.compile(r"(?:^|[._])(?:ema|avg|average|averaged|shadow)(?:$|[._])")


class Copy(NamedTuple):
    """The module of a copy, and the keys of it."""

    begin: str
    names: tuple[str, ...]


def find_copies(rest: Sequence[str], shapes: Mapping[str, Shape]) -> list[Copy]:
    """Find the modules among the keys without a place that have the names and the
    shapes of the weights that have one, also with dots taken out as LitEma does.
    """
    left = set(rest)
    placed = [name for name in shapes if name not in left]
    if len(placed) < _LEAST:
        return []
    known = dict.fromkeys(placed, "")
    # LitEma registers its averages as buffers, whose names take no dots.
    flat = {name.replace(".", ""): name for name in placed}
    found: list[Copy] = []
    for begin, names in _by_module(rest).items():
        same = [
            name
            for name in names
            if (other := _copied_name(name[len(begin) + 1 :], known, flat))
            and shapes[other] == shapes.get(name)
        ]
        # Both shares count: the copy has most of the weights, and hardly anything that
        # is no copy of one.
        many = len(same) >= _LEAST_COPIED * len(placed)
        if many and len(same) >= _LEAST_COPIED * len(names):
            found.append(Copy(begin, tuple(names)))
    return found


def _copied_name(
    name: str, names: Collection[str], flat: Mapping[str, str]
) -> str | None:
    """The weight that a key below a module is a copy of."""
    return name if name in names else flat.get(name)


def _by_module(names: Sequence[str]) -> dict[str, list[str]]:
    """The first words of keys, or the first two of them, with the keys below."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        # A copy may lie one module deeper, as in `ema.module.conv.weight`.
        for depth in (1, 2):
            if len(parts) > depth:
                found.setdefault(".".join(parts[:depth]), []).append(name)
    return found


def copies_statement(copies: Sequence[Copy]) -> Statement:
    """Say which keys are copies of the weights."""
    count = sum(len(copy.names) for copy in copies)
    shown = and_more([f"{show(copy.begin, 60)}.*" for copy in copies], 3)
    averaged = any(_AVERAGES.search(copy.begin) for copy in copies)
    what = (
        "running averages of the weights (EMA)"
        if averaged
        else "another copy of the weights, as of an average, a teacher or a target"
    )
    text = (
        f"{counted_noun(count, 'unexpected key')} ({shown}) are {what}: they have the "
        "names and the shapes of those that have their place. The model loses no "
        "weight without them"
    )
    return Statement(
        f"{text}; programs use the averages for inference." if averaged else f"{text}."
    )


# --- kinds of layers ------------------------------------------------------------------


class Kinds(NamedTuple):
    """The layers of some names by their kinds."""

    norms: int
    recurrent: int
    layers: int

    @property
    def text(self) -> str:
        """The counts in words."""
        rows = [counted_noun(self.layers, "layer")]
        if self.norms:
            rows.append(f"{self.norms:,} of them batch norms")
        if self.recurrent:
            rows.append(f"{self.recurrent:,} recurrent")
        return ", ".join(rows)


def count_kinds(names: Collection[str]) -> Kinds:
    """Count the layers of some names: those with running statistics, recurrent ones,
    and all.
    """
    layers: dict[str, set[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        layers.setdefault(module, set()).add(leaf)
    return Kinds(
        sum("running_mean" in leaves for leaves in layers.values()),
        sum(any("weight_hh" in leaf for leaf in leaves) for leaves in layers.values()),
        len(layers),
    )


def _kinds_of_layers(names: Collection[str]) -> list[tuple[str, ...]]:
    layers: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf != _COUNTER:
            layers.setdefault(module, []).append(leaf)
    return sorted(tuple(sorted(leaves)) for leaves in layers.values())


_NUMBERED = re.compile(r"^(.*?)(?:^|\.)\d{1,5}\.")


def other_kinds(
    message: Message, absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> Iterator[Statement]:
    """Say that layers by number in one module are of other kinds in a file and in a
    model: one has batch norms there, and the other none, or fewer.
    """
    places = {_place_of(name) for name in (*absent, *rest)}
    if None in places or not absent or not rest:
        return
    left = set(rest)
    ours = [name for name in names if _place_of(name) in places]
    theirs = [name for name in ours if name not in left] + list(absent)
    # The name that both have may be of another kind of layer: its shape says so.
    turned = [
        row for row in message.mismatched if len(row.checkpoint) != len(row.model)
    ]
    here, there = (count_kinds(names_with_weights(side)) for side in (ours, theirs))
    shown = and_more(
        [show(place or "the root", 60) for place in sorted(places, key=str)], 3
    )
    # Norms on one side only turn every number behind them into another layer.
    if bool(here.norms) != bool(there.norms):
        side, other = ("model", "file") if there.norms else ("file", "model")
        many = there.norms or here.norms
        yield Statement(
            f"In {shown} the {side} has {counted_noun(many, 'batch norm')}, and the "
            f"{other} has none: two variants of one network (as vgg16_bn and vgg16). "
            "So the same numbers are other layers, and no renaming makes one of the "
            "other: build the variant of the file."
        )
        return
    if here.norms != there.norms or turned:
        what = (
            f" {show(turned[0].name, 100)} has {len(turned[0].checkpoint)} dimensions "
            f"in the file and {len(turned[0].model)} in the model."
            if turned
            else ""
        )
        yield Statement(
            f"In {shown} the file has {here.text}, and the model {there.text}: the "
            f"same numbers are other layers.{what} It is another network, so no "
            "renaming makes one of the other: build the one of the file, or take the "
            f"file of this one{_half_text(places)}.{_alone_text(absent, rest, names)}"
        )


def _half_text(places: Collection[str | None]) -> str:
    """The words on the two networks of a GAN, whose layers stand in one list."""
    is_list = len(places) == 1 and not any("." in (place or "") for place in places)
    return " (of a GAN perhaps the other half)" if is_list else ""


def _alone_text(
    absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> str:
    """The sentence on the outermost modules that one side alone has."""
    left = set(rest)
    shared = {_first_word(name) for name in names if name not in left}
    ours = {_first_word(name): None for name in rest}
    theirs = {_first_word(name): None for name in absent}
    here = [word for word in ours if word not in shared and word not in theirs]
    there = [word for word in theirs if word not in shared and word not in ours]
    if not here or not there:
        return ""
    return (
        f" The file alone has {and_more(here, 4)}, and the model alone "
        f"{and_more(there, 4)}: give the program the config that goes with the file."
    )


def names_with_weights(names: Collection[str]) -> list[str]:
    """Leave out the names of layers with running statistics alone: an InstanceNorm has
    no weight, and a model of today no statistics of it.
    """
    leaves: dict[str, set[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        leaves.setdefault(module, set()).add(leaf)
    return [
        name
        for name in names
        if not leaves[name.rpartition(".")[0]].issubset(BUFFERS_OF_NORMS)
    ]


def _place_of(name: str) -> str | None:
    found = _NUMBERED.match(name)
    return None if found is None else found[1]


_FEW = 0.1
"""The share of a model that may have its place by chance."""


def another_model(
    absent: Sequence[str], rest: Sequence[str], names: Collection[str], case: Case
) -> Iterator[Statement]:
    """Say that a file is of another model, or that its layers are as many and of the
    same kinds, where no name meets. Nothing where most of the model has its place.
    """
    left = set(rest)
    placed = [name for name in names if name not in left]
    if min(len(absent), len(rest)) < _LEAST:
        return
    # A few names, such as `fc.weight`, are in two models by chance.
    if len(placed) > _FEW * (len(placed) + len(absent)):
        return
    here, there = count_kinds(names), count_kinds([*absent, *placed])
    origin = name_origin(case.survey)
    said = f" {origin_opening(origin)} {origin}." if origin is not None else ""
    ours = and_more(list(dict.fromkeys(_first_word(name) for name in rest)), 5)
    theirs = and_more(list(dict.fromkeys(_first_word(name) for name in absent)), 5)
    apart = (
        f"the names of the file begin with {ours}, those of the model with {theirs}"
        if ours != theirs
        else f"the names of both begin with {ours}, and go on otherwise"
    )
    begin = (
        f"No name of the model is in this file, also by no rule: {apart}."
        if not placed
        else f"But for {counted_noun(len(placed), 'name')} no name of the model is in "
        f"this file: the others begin with {ours} there, and with {theirs} in the "
        "model."
    )
    # The same layers under other words may be the same model, but names alone do not
    # pair them.
    of_diffusers = _diffusers_text(absent, rest)
    if of_diffusers:
        yield Statement(f"{begin} {of_diffusers}")
        return
    if _kinds_of_layers(rest) == _kinds_of_layers(absent):
        yield Statement(
            f"{begin} Both have {here.text}, so it may be the same model in other "
            "words, but the message has no shapes, and ckpt does not guess which layer "
            f"is which.{said} Build the class that saved the file, or give ckpt the "
            "rules (ckpt rename --sub)."
        )
        return
    yield Statement(
        f"{begin} The file has {here.text}; the model {there.text}. So this file is of "
        f"another model, and no renaming makes it one of this: build the class that "
        f"saved it, or take the file of the model that was built.{said}"
    )


_DIALECTS = (
    (re.compile(r"(?:^|\.)(?:down|up|mid)_blocks?\."), "diffusers"),
    (re.compile(r"(?:^|\.)(?:input|output|middle)_blocks?\."), "the authors (ldm)"),
)
"""The two namings of a UNet of diffusion and of its ControlNet."""


def _diffusers_text(absent: Sequence[str], rest: Sequence[str]) -> str:
    """The sentence on a network of diffusion that is named by diffusers on one side and
    by its authors on the other, or an empty text.
    """
    sides = []
    for names in (rest, absent):
        sides += [
            word
            for pattern, word in _DIALECTS
            if any(pattern.search(name) for name in names)
        ]
    if len(sides) != len(_DIALECTS) or sides[0] == sides[1]:
        return ""
    control = (
        " (a ControlNet)"
        if any(name.startswith("controlnet_") for name in rest)
        else ""
    )
    return (
        f"The names of the file are those of {sides[0]}{control}, and the program asks "
        f"for those of {sides[1]}: one network in two namings, where it is of the same "
        "version. Take a newer version of the program, which may read both, or convert "
        "the file (diffusers keeps its converters in the folder scripts of its "
        "repository)."
    )


def _first_word(name: str) -> str:
    return show(name.partition(".")[0], 40)


# --- what one side alone has ----------------------------------------------------------

_SHOWN = 4


def apart_statement(
    absent: Sequence[str],
    rest: Sequence[str],
    names: Collection[str],
    met: Mapping[str, str],
) -> Statement | None:
    """Say in which modules one side has more than the other, where most of the file has
    its place, or return None.

    `met` maps each such name of the model to the name in the file.
    """
    left = set(rest)
    placed = [name for name in names if name not in left]
    if not absent or len(placed) < len(absent) or 2 * len(placed) < len(names):
        return None
    moved = {old: new for new, old in met.items()}
    around = modules_around(moved.get(name, name) for name in placed)
    around |= modules_around(_without_beginning(placed, absent))
    new = _own_modules(absent, around | {""})
    old = _own_modules(rest, modules_around(placed) | {""})
    text = (
        f"The other {counted_noun(len(placed), 'tensor')} of the file have their "
        f"place. The model alone has {_listed(new)}"
    )
    text += f", and the file alone {_listed(old)}." if old else "."
    if old and _kinds_of_layers(rest) == _kinds_of_layers(absent):
        return Statement(
            f"{text} These are as many layers of the same kinds, so they may be the "
            "same in other words: ckpt pairs none where neither their names nor shapes "
            "say which is which."
        )
    # Layers that lack inside of trained blocks change what reaches the trained ones,
    # unlike a new head.
    if not old and all(is_inside_blocks(row, placed) for row in new.values()):
        return Statement(
            f"{text} These lie inside of blocks whose other layers have their place, "
            "and which were trained without them. Where you added them, to train on, "
            "load what fits. Else the program that saved is of another version, or "
            "built its blocks by another option: take that, for untrained layers "
            "change what the trained ones around them get."
        )
    longer = _longer_text(absent, names) if not old else ""
    if longer:
        return Statement(
            f"{text} {longer}: the model was built by another config, with more "
            "layers. Build it by the config of the run that saved. A load of what "
            "fits would leave the others untrained, and what comes before them was "
            "not trained for them."
        )
    return Statement(
        f"{text} What lacks stays as it was built: expected for a new head, for an "
        "adapter, or for a part with weights of its own. Else build the model as the "
        "run that saved did."
    )


_IN_LIST = re.compile(r"^(.{0,300}?[A-Za-z_]\w{0,100})\.(\d{1,3})\.")


def _longer_text(absent: Sequence[str], names: Collection[str]) -> str:
    """The words on lists of layers that go on in the model behind the last one of the
    file, or an empty text.
    """
    here, there = _items_of(names), _items_of(absent)
    longer = []
    for place, numbers in there.items():
        held = here.get(place, set())
        # The numbers that lack must follow those of the file without a gap.
        if held == set(range(len(held))) and numbers == set(
            range(len(held), max(numbers) + 1)
        ):
            if held:
                longer.append((place, len(held), max(numbers) + 1))
    if len(longer) < _LEAST_LONGER:
        return ""
    listed = [
        f"{show(place, 60)} has {one:,} layers in the file and {two:,} in the model"
        for place, one, two in longer
    ]
    return and_more(listed, 3)


_LEAST_LONGER = 2
"""Lists that are longer: one alone may be a head of more layers."""


def _items_of(names: Collection[str]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for name in names:
        row = _IN_LIST.match(name)
        if row is not None:
            found.setdefault(row[1], set()).add(int(row[2]))
    return found


def _without_beginning(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the names without the first words that they share, and no other name has.

    A program may take the prefix of a wrapper off before it loads, so the modules that
    its message names are the ones below it.
    """
    left = list(names)
    while left and all("." in name for name in left):
        first = f"{left[0].partition('.')[0]}."
        if not all(name.startswith(first) for name in left):
            break
        if any(name.startswith(first) for name in others):
            break
        left = [name.removeprefix(first) for name in left]
    return left


def is_inside_blocks(modules: Sequence[str], placed: Collection[str]) -> bool:
    """Tell whether modules by plain names lie beside layers of one block, and not at
    the root of a model.
    """
    return all(_is_inside(module, placed) for module in modules)


_ADDED_LATER = re.compile(
    r"(?i)adapt|lora|prompt|gate|head|prefix|control|temporal|ema"
)
"""Words of layers that people add to a trained model, to train them alone."""


def _is_inside(module: str, placed: Collection[str]) -> bool:
    block, _, last = module.rpartition(".")
    # A block has a number or lies in another module: what lies at the root is no part
    # of one.
    if "." not in block and not any(map(str.isdigit, block.split("."))):
        return False
    return not _ADDED_LATER.search(last) and any(
        name.startswith(f"{block}.") for name in placed
    )


def _own_modules(names: Sequence[str], shared: Collection[str]) -> dict[str, list[str]]:
    """The outermost modules or tensors that lie in none of the others, by their words
    without numbers: `blocks.<n>.adapter` -> the modules.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        depth = 1
        while depth < len(parts) and ".".join(parts[:depth]) in shared:
            depth += 1
        # The outermost module stands for all tensors below it.
        own = ".".join(parts[:depth])
        key = re.sub(r"(?<![^.])\d+(?![^.])", "<n>", own)
        rows = found.setdefault(key, [])
        if own not in rows[-1:]:
            rows.append(own)
    return found


def _listed(modules: Mapping[str, Sequence[str]]) -> str:
    rows = [
        show(rows[0], 80)
        if len(rows) == 1
        else f"{show(key, 80)} ({len(dict.fromkeys(rows)):,} times)"
        for key, rows in modules.items()
    ]
    return and_more(rows, _SHOWN)


# --- what measures a training ---------------------------------------------------------

_OF_MEASURES = re.compile(
    r"(?:^|[._])(?:metrics?|reports?|acc|accuracy|wer|cer|bleu|perplexity|f1|auroc|auc"
    r"|confmat|confusion|recall|precision|map|iou|miou|loss|losses|criterion|score)"
    r"(?:[._]\w{1,60})?\.(?:tp|fp|tn|fn|total|correct|count|sum|scores|words|confmat"
    r"|measure|sum_\w{1,40}|num_\w{1,40}|total_\w{1,40})$"
    r"|(?:^|[._])(?:loss|losses|criterion)"
    r"(?:[._](?!\w{0,60}(?:head|proj|fc|linear|classifier))\w{1,60})?"
    r"\.(?:weight|pos_weight)$"
)
"""Names of what the metrics and the losses of a training count.

Only a loss has a `weight` that is none of the model: `score.weight` is a classifier of
transformers, and `iou.weight` a head that predicts it.
"""


def measures_statement(absent: Sequence[str]) -> Statement | None:
    """Say that all missing keys are counts of metrics or weights of a loss, or return
    None.
    """
    if not absent or not all(map(_OF_MEASURES.search, absent)):
        return None
    return Statement(
        f"{counted_noun(len(absent), 'missing key')} "
        f"{be_verb(absent)} by the name of a metric or a loss, "
        "which counts or weighs while a model is trained, and no weight of the model: "
        "newer versions of a program save them, or older ones did. strict=False leaves "
        "the model's own, and nothing is lost.",
        tuple(absent),
    )


# --- lists of layers that end elsewhere -----------------------------------------------

_LAYER = re.compile(r"^(.+)\.(\d{1,4})\.(?:weight|bias)$")


def longer_lists(
    message: Message, absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> list[Statement]:
    """Say in which lists of layers by number one side has more at the end, where the
    shapes differ too.
    """
    if not message.mismatched:
        return []
    lost, left, held = _numbers(absent), _numbers(rest), _numbers(names)
    told: dict[tuple[str, int, int], list[str]] = {}
    for place in {**lost, **left}:
        ours = held.get(place, set())
        theirs = (ours - left.get(place, set())) | lost.get(place, set())
        shared = ours & theirs
        if not shared or len(ours) == len(theirs):
            continue
        # Numbers between the shared ones are no list that ends elsewhere.
        if min(ours ^ theirs) > max(shared):
            key = (_without_numbers(place), len(ours), len(theirs))
            told.setdefault(key, []).append(place)
    if not told:
        return []
    listed = and_more(
        [
            f"{show(places[0] if len(places) == 1 else template, 80)} has "
            f"{counted_noun(here, 'layer')} with weights in the file and {there} in "
            "the model"
            for (template, here, there), places in told.items()
        ],
        3,
    )
    # A list inside of a numbered block is the form of the block.
    if all("<n>" in template for template, _, _ in told):
        return [
            Statement(
                f"{listed}: their blocks are of another kind (as the basic blocks of "
                "a ResNet-18 and the bottlenecks of a ResNet-50). Build the model with "
                "the blocks and the depth of the file, for little of it fits another."
            )
        ]
    return [
        Statement(
            f"{listed}: the model was built with other hidden layers. So what is the "
            "last layer in one of them is a hidden layer in the other. Build it with "
            "those of the file: the number of layers and their sizes (hidden units, "
            "net_arch)."
        )
    ]


def _without_numbers(place: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])|\d+(?=\.)", "<n>", place)


def _numbers(names: Collection[str]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for name in names:
        row = _LAYER.match(name)
        if row is not None:
            found.setdefault(row[1], set()).add(int(row[2]))
    return found


# --- variants by their first layer ----------------------------------------------------

_FLUX = {
    64: "Flux itself",
    128: "Flux Canny or Depth, which takes a control picture beside",
    384: "Flux Fill, which paints into a picture and takes it with a mask",
}
"""The inputs of img_in, the first layer of a Flux."""


def _variant_of_flux(row: Mismatch) -> Statement | None:
    """Name the two models that differ by the first layer of a Flux, or return None."""
    here, there = row.checkpoint[-1:], row.model[-1:]
    if row.name.rpartition("img_in.")[2] != "weight" or len(row.model) != 2:
        return None
    if here == there or here[0] not in _FLUX or there[0] not in _FLUX:
        return None
    return Statement(
        f"{show(row.name, 80)} takes {here[0]:,} in the checkpoint and {there[0]:,} in "
        f"the model. By these numbers the checkpoint is one of {_FLUX[here[0]]}, and "
        f"the model was built as {_FLUX[there[0]]}. A program that knows the variant "
        "builds it by the file: take a newer version of it, and the nodes or the "
        "class for the variant."
    )


# --- other inputs ---------------------------------------------------------------------


def inputs_statement(message: Message) -> Statement | None:
    """Say that layers take more or fewer inputs, by the same number in each, and have
    the same outputs, or give these outputs themselves. Return None where more differs.
    """
    steps: set[int] = set()
    inner: list[Mismatch] = []
    outer: list[Mismatch] = []
    scaled = _of_normalizers(message.mismatched)
    for row in message.mismatched:
        if row in scaled:
            continue
        sizes = [
            (one, two)
            for one, two in zip(row.checkpoint, row.model, strict=False)
            if one != two
        ]
        if len(row.checkpoint) != len(row.model) or len(sizes) != 1:
            return None
        if any(size > 1 for size in row.model[2:]):
            return None
        steps.add(sizes[0][0] - sizes[0][1])
        is_outer = row.checkpoint[0] != row.model[0]
        (outer if is_outer else inner).append(row)
    # Features that were added make the same difference in every layer.
    if len(steps) != 1 or not inner:
        return None
    # A matrix that is no weight of a layer takes no inputs: one column a video, a word.
    if not all("weight" in row.name.rpartition(".")[2] for row in inner):
        return None
    # The columns of a table are its width, and no inputs.
    if any(_OF_TABLES.search(row.name) for row in inner):
        return None
    (step,) = steps
    if len(message.mismatched) == 1 and not message.unexpected:
        variant = _variant_of_flux(message.mismatched[0])
        if variant is not None:
            return variant
    shown = and_more([_sizes_text(row, 1, "takes") for row in inner], 2)
    # Two layers of one block have its inner width between them.
    if outer and _is_inner(message.mismatched, outer):
        return None
    if outer:
        weights = [row for row in outer if len(row.model) == 2] or outer
        gives = and_more([_sizes_text(row, 0, "gives") for row in weights], 2)
        widths = {(row.checkpoint[0], row.model[0]) for row in outer}
        taken = {(row.checkpoint[1], row.model[1]) for row in inner}
        if widths == taken and _are_before(message.mismatched, outer):
            return Statement(
                f"{gives}, and {shown}: what the first gives the next one takes, so "
                "the width between these layers differs. A setting of the program "
                "gives it, or its version: build the model as the run that saved did."
            )
        return Statement(
            f"{gives}, and {shown}: the same {abs(step):,} more or fewer on both "
            "sides. So these are outputs that go into the model again (characters, "
            "words, classes, actions): their list or number differs. Build the model "
            "with that of the run that saved."
        )
    if scaled:
        place = show(scaled[0].name.rpartition(".")[0], 60)
        shown += f", and {place} has the statistics of as many"
    more = "fewer" if step > 0 else "more"
    each = " each" if len(inner) > 1 else ""
    alone = _branches(message, is_saved=step > 0)
    if alone:
        side, other = ("file", "model") if step > 0 else ("model", "file")
        return Statement(
            f"In the shapes nothing but inputs differs: {shown}. The {side} has "
            f"layers that the {other} lacks ({and_more(alone, 3)}), and what these "
            f"give goes in there too: the {side} has further branches, as networks "
            "that look at several scales have. Build the model by the class and with "
            "the options of the run that saved."
        )
    fewer = min(inner[0].checkpoint[1], inner[0].model[1])
    is_of_points = _OF_POINTS.search(inner[0].name) and abs(step) == _OF_A_POINT
    if is_of_points and fewer in (_OF_A_POINT, 2 * _OF_A_POINT):
        return Statement(
            f"In the shapes nothing but inputs differs: {shown}. The model takes "
            f"{abs(step):,} numbers {more} for each point: a point has three for its "
            "place, and three more are its normal or its colour. Build the model with "
            "those of the run that saved (options such as --normal, --use_normals, "
            "use_color), and give it points that have them."
        )
    most = max(inner[0].checkpoint[1], inner[0].model[1])
    is_multiple = len(inner) == 1 and fewer > 1 and most % fewer == 0
    times = (
        f" ({most:,} is {most // fewer} x {fewer:,})"
        if is_multiple and most // fewer <= _MOST_TIMES
        else ""
    )
    return Statement(
        f"In the shapes nothing but inputs differs: {shown}. The model has "
        f"{abs(step):,} {more}{each}{times}: other features go in (observations, "
        "columns, conditions, the size of an embedding or of a picture). Build the "
        "model with the settings and the version of the run that saved; a load of what "
        "fits leaves these layers untrained."
    )


_MOST_TIMES = 4
"""A factor up to which a size is called a multiple of another one."""


_OF_POINTS = re.compile(
    r"(?:^|[._])(?:sa\d?|SA_modules|stn|pointnet\w{0,10}|point_\w{1,20}|feat\.conv1)\."
)
"""Names of the first layers of networks of points."""
_OF_A_POINT = 3


def _branches(message: Message, *, is_saved: bool) -> list[str]:
    """The items of lists of layers that one side has beside others of both, as
    `SA_modules.0.mlps.1`, where the other side has no name alone.
    """
    alone, none = message.missing, message.unexpected
    if is_saved:
        alone, none = none, alone
    if none:
        return []
    items: dict[str, None] = {}
    for name in alone:
        found = re.match(r"(.*\D\.\d{1,2}\.[A-Za-z_]\w{0,40}\.[1-9])\.", name)
        if found is None:
            return []
        items[show(found[1], 80)] = None
    return list(items)


_OF_NORMALIZER = re.compile(
    r"(?i)(?:^|[._])\w*(?:norm|rms|scaler|standardi)\w*\.(?:.*\.)?_?(?:running_)?"
    r"(?:mean|var|std|variance)$|(?:^|[._])running_mean_std\."
)
"""The mean and the spread of inputs, which a program keeps to scale them by."""


def _of_normalizers(rows: Sequence[Mismatch]) -> list[Mismatch]:
    """The statistics of inputs among tensors of other shapes, where a layer takes as
    many inputs.
    """
    taken = {
        (row.checkpoint[1], row.model[1])
        for row in rows
        if len(row.checkpoint) == len(row.model) == 2 and row.name.endswith("weight")
    }
    return [
        row
        for row in rows
        if _OF_NORMALIZER.search(row.name)
        and row.checkpoint
        and row.model
        and (row.checkpoint[-1], row.model[-1]) in taken
        and all(size == 1 for size in (*row.checkpoint[:-1], *row.model[:-1]))
    ]


def _are_before(rows: Sequence[Mismatch], outer: Sequence[Mismatch]) -> bool:
    """Tell whether the layers that give other outputs stand before all that take other
    inputs, in one module: a width between two layers. Outputs that go into a model
    again leave its last layer, and enter its first one.
    """
    places = {row.name: number for number, row in enumerate(rows)}
    given = max(places[row.name] for row in outer)
    taken = min(places[row.name] for row in rows if row not in outer)
    modules = {row.name.partition(".")[0] for row in rows}
    return given < taken and len(modules) == 1


def _is_inner(rows: Sequence[Mismatch], outer: Sequence[Mismatch]) -> bool:
    """Tell whether each layer that gives other outputs stands in one module with a
    later one that takes other inputs: fc1 and fc2 of a block.
    """
    given: dict[str, int] = {}
    taken: dict[str, int] = {}
    for number, row in enumerate(rows):
        module = ".".join(row.name.split(".")[:-2])
        (given if row in outer else taken).setdefault(module, number)
    # Outputs that go into a model again leave its last layer and enter its first one.
    return given.keys() == taken.keys() and all(
        number < taken[module] for module, number in given.items()
    )


_OF_TABLES = re.compile(
    r"(?:^|[._])(?:word_|token_|position_)?embeddings?(?:\.base_layer)?\.weight$"
    r"|\bembed_tokens\b|\blora_embedding_[AB]\b|(?:^|\.)wte\."
)
"""The name of a table of rows, whose second size is a width."""


def _sizes_text(row: Mismatch, axis: int, verb: str) -> str:
    return (
        f"{show(row.name, 80)} {verb} {row.checkpoint[axis]:,} in the checkpoint and "
        f"{row.model[axis]:,} in the model"
    )


_MOST_MODULES = 12


def variant_statement(message: Message, names: Collection[str]) -> Statement | None:
    """Say that one side has whole modules more, beside other shapes, where nothing
    lacks on the other side: another variant of one model. None otherwise.
    """
    is_saved = bool(message.unexpected)
    differing = {row.name for row in message.mismatched}
    # fvcore lists a tensor of another shape among those that it does not find, too.
    missing = [name for name in message.missing if name not in differing]
    if bool(missing) is is_saved or not message.mismatched:
        return None
    alone = message.unexpected or missing
    side, other = ("file", "model") if is_saved else ("model", "file")
    layers = {name.removesuffix("bias") for name in alone if name.endswith(".bias")}
    if len(layers) == len(alone) and all(f"{row}weight" in differing for row in layers):
        return Statement(
            f"{and_more([show(row.rstrip('.'), 80) for row in layers], 3)} "
            f"{'has' if len(layers) == 1 else 'have'} a bias in the {side} and none in "
            f"the {other}, and another shape: a layer of another class stands there "
            "(a linear layer, a table of rows), by an option of the program. Build the "
            "model with the options of the run that saved."
        )
    left = set(alone)
    shared = modules_around(name for name in names if name not in left) | {""}
    own = _own_modules(alone, shared)
    if len(own) > _MOST_MODULES or any(key.endswith("<n>") for key in own):
        return None
    if any(name in own for name in names):  # a tensor of a module that both have
        return None
    if is_saved and all(_HEADS.search(key) for key in own):
        return None
    return Statement(
        f"The {side} has {_listed(own)}, which the {other} lacks, and other shapes "
        "beside. So both are variants of one program, by an option of it or by another "
        "version of its code: build the model with the options and the version of the "
        "run that saved, or take the file of the variant that was built."
    )


_HEADS = re.compile(r"^(?:head|fc|classifier|heads)(?:\.|$)")
"""The head of a backbone, which a program that takes the backbone alone leaves out."""


# --- one layer in the place of several ------------------------------------------------


def several_layers(absent: Sequence[str], rest: Sequence[str]) -> Statement | None:
    """Say that one side has one layer where the other has a module of several, and that
    all that differs is there. Return None otherwise.
    """
    # Either side may have the one layer; `is_saved` says that the module of several is
    # the file's.
    for ours, theirs, is_saved in ((absent, rest, True), (rest, absent, False)):
        layers = {name.rpartition(".")[0] for name in ours}
        if len(layers) != 1:
            continue
        (layer,) = layers
        inner = [
            name.rpartition(".")[0]
            for name in theirs
            if layer and name.startswith(f"{layer}.")
        ]
        below = [name for name in dict.fromkeys(inner) if name != layer]
        if len(inner) != len(theirs) or len(below) < _LEAST_BELOW:
            continue
        side, other = ("file", "model") if is_saved else ("model", "file")
        ends = and_more([show(name[len(layer) + 1 :], 40) for name in below], 6)
        return Statement(
            f"{show(layer, 80)} is one layer in the {other}, and a module of "
            f"{counted_noun(len(below), 'layer')} in the {side} ({ends}); all else "
            "has its place. So this part was built by another class, or by a changed "
            "version of the library. Build the model with that of the run that saved: "
            "no rename makes one layer of several."
        )
    return None


_LEAST_BELOW = 2


# --- a part of a model ----------------------------------------------------------------

_MOST_BARE = 3


def whole_for_part(missing: Sequence[str], names: Collection[str]) -> Statement | None:
    """Say that a whole model was loaded into one layer, whose names have no module, or
    return None.
    """
    is_bare = all("." not in name for name in missing)
    if not missing or not is_bare or len(missing) > _MOST_BARE:
        return None
    modules = {name.rpartition(".")[0] for name in names}
    if "" in modules or len(modules) < _LEAST:
        return None
    words = list(dict.fromkeys(_first_word(name) for name in names))
    listed = and_more([show(name, 60) for name in missing], 3)
    return Statement(
        f"What was loaded into is one layer or a small part, which asks for {listed} "
        f"alone, and this file is a model of {len(modules):,} layers ("
        f"{and_more(words, 4)}): it is the file of another part, as of the backbone in "
        "the place of the head. Give each part its own file. One that was not saved "
        "is trained anew."
    )


# --- a vocabulary ---------------------------------------------------------------------

_OF_WORDS = re.compile(
    r"(?:^|[._])(?:\w{0,20}emb\w{0,20}|lut|wte|tokens?|words?)(?:$|[._])"
)


def vocabulary_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that a table of rows and an output have the same other number of entries, one
    for each word of a vocabulary, or return None.
    """
    sizes = {(row.checkpoint[:1], row.model[:1]) for row in rows}
    is_alike = all(row.checkpoint[1:] == row.model[1:] for row in rows)
    modules = list(dict.fromkeys(row.name.rpartition(".")[0] for row in rows))
    tables = [
        row.name.rpartition(".")[0]
        for row in rows
        if _OF_WORDS.search(row.name.rpartition(".")[0]) and len(row.model) == 2
    ]
    if len(sizes) != 1 or not is_alike or len(modules) < 2 or not tables:
        return None
    ((here, there),) = sizes
    if not here or not there:
        return None
    return Statement(
        f"{and_more([show(module, 80) for module in modules], 3)} have {here[0]:,} "
        f"entries in the checkpoint and {there[0]:,} in the model alike: the "
        "vocabulary, or the alphabet, is another one. Build the model with the "
        "dictionary (the tokenizer, the list of characters) of the run that saved."
    )


def vocabularies_statement(
    rows: Sequence[Mismatch], shapes: Mapping[str, Sequence[int]]
) -> Statement | None:
    """Say that several vocabularies differ, each with a table of rows and an output of
    its own, or return None.
    """
    entries: dict[tuple[int, int], list[str]] = {}
    for row in rows:
        if not row.checkpoint or row.checkpoint[1:] != row.model[1:]:
            return None
        sizes = (row.checkpoint[0], row.model[0])
        entries.setdefault(sizes, []).append(row.name)
    if len(entries) < 2 or not all(_is_vocabulary(n, shapes) for n in entries.values()):
        return None
    listed = [
        f"{here:,} and {there:,} ("
        + and_more([show(name, 80) for name in names if name.endswith("weight")], 3)
        + ")"
        for (here, there), names in entries.items()
    ]
    return Statement(
        f"{counted_noun(len(entries), 'number')} of entries differ, in the checkpoint "
        f"and in the model: {and_more(listed, 3)}. Each is that of a table and of an "
        "output alike, so they are vocabularies, and no classes: they were made from "
        "other data, or by another version of the program or of a library. Take the "
        "lists that go with the checkpoint: the rows of another one mean other things."
    )


def _is_vocabulary(names: Sequence[str], shapes: Mapping[str, Sequence[int]]) -> bool:
    """Tell whether some tensors are a table of rows, which has no bias, and an output
    with as many.
    """
    layers = [name.rpartition(".")[0] for name in names if name.endswith("weight")]
    with_bias = [layer for layer in layers if f"{layer}.bias" in shapes]
    return 0 < len(with_bias) < len(layers)

"""Parts of a model that are another network in a file: another backbone below the same
name, another layout of anchors, and names that a program compared by their ends alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ckpt.ext.explain.case import Statement
from ckpt.ext.explain.families.verdicts import count_kinds
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, show

_LEAST = 8
"""Tensors that a part must have on each side: two small layers of other names are an
edit of a model, and no other network.
"""
_DEEPEST = 4
"""Words of a name that the place of a part may have."""
_LEAST_PLACED = 2
"""Tensors of the file outside of the part that have their place, or another shape: they
show that both are of one program.
"""


class Replaced(NamedTuple):
    """A part of a model, by its place, that a file and a model fill with other
    networks: the names of both below it.
    """

    place: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


def replaced_parts(
    absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> list[Replaced]:
    """Find the parts of which no tensor of the file has its place, and none of the
    model is in the file.

    `absent` are the missing keys, `rest` the keys of the file without a place.
    """
    left = set(rest)
    placed = [name for name in names if name not in left]
    if len(placed) < _LEAST_PLACED:
        return []
    # A module in which one tensor has its place is the same network, perhaps in part.
    taken = {place for name in placed for place in _places_above(name)}
    ours, theirs = _names_below(rest, taken), _names_below(absent, taken)
    return [
        Replaced(place, tuple(ours[place]), tuple(theirs[place]))
        for place in ours
        if len(ours[place]) >= _LEAST
        and len(theirs.get(place, ())) >= _LEAST
        # As many layers of the same kinds may be the same network in other words.
        and count_kinds(ours[place]) != count_kinds(theirs[place])
    ]


def _names_below(names: Sequence[str], taken: Collection[str]) -> dict[str, list[str]]:
    """The names below the first place of each that no placed tensor has."""
    found: dict[str, list[str]] = {}
    for name in names:
        place = next((row for row in _places_above(name) if row not in taken), None)
        if place is not None:
            found.setdefault(place, []).append(name)
    return found


def _places_above(name: str) -> list[str]:
    """The modules that a name lies in, from the root on."""
    parts = name.split(".")[:-1]
    return [
        ".".join(parts[:count]) for count in range(1, min(len(parts), _DEEPEST) + 1)
    ]


_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a ResNet", re.compile(r"^layer[1-4]\.\d+\.(?:conv|bn)\d\.|^res[2-5]\.\d+\.conv")),
    ("a MobileNet", re.compile(r"^(?:features\.)?\d+\.(?:block|conv)\.\d+\.\d+\.")),
    ("a Swin Transformer", re.compile(r"^layers\.\d+\.blocks\.\d+\.attn\.")),
    ("a ViT", re.compile(r"^blocks\.\d+\.attn\.(?:qkv|proj)\.")),
    ("a ConvNeXt", re.compile(r"^stages\.\d+\.(?:blocks\.)?\d+\.dwconv\.")),
    (
        "an EfficientNet",
        re.compile(r"^_?blocks\.\d+\.(?:\d+\.)?_?(?:conv_dw|depthwise)"),
    ),
    ("an HRNet", re.compile(r"^stage[2-4]\.\d+\.(?:branches|fuse_layers)\.")),
)
"""Names of architectures below the place of a backbone."""


def _side_text(part: Replaced, names: Sequence[str]) -> str:
    """The names of one side without the place of the part, with the architecture that
    they are of: `conv1, layer1 and layer2 (a ResNet)`.
    """
    below = [name[len(part.place) + 1 :] for name in names]
    words = list(dict.fromkeys(name.partition(".")[0] for name in below))
    # Numbers alone say nothing of a network, so the whole first name is shown.
    if all(word.isdigit() for word in words):
        words = below[:1]
    # Names that fit two architectures tell neither.
    kinds = [kind for kind, form in _KINDS if any(map(form.search, below))]
    said = f", by its names {kinds[0]}" if len(kinds) == 1 else ""
    shown = and_more([show(word, 40) for word in words], 4)
    return f"{counted_noun(len(names), 'tensor')} there ({shown}{said})"


def replaced_statement(parts: Sequence[Replaced]) -> Statement:
    """Say at which place a file and a model have other networks."""
    part = parts[0]
    more = [show(row.place, 80) for row in parts[1:]]
    also = f" So it is at {and_more(more, 3)}." if more else ""
    return Statement(
        f"{show(part.place, 80)} is another network in the file than in the model: the "
        f"file has {_side_text(part, part.ours)}, and the model "
        f"{_side_text(part, part.theirs)}, and none of the names meet.{also} No "
        "renaming makes the one of the other, and what takes its outputs may have "
        "other sizes too: build the model with the part that the file has (the "
        "argument or the config for the backbone), or take the file of the model that "
        "was built."
    )


# --- anchors of detectors -------------------------------------------------------------

_BOXES = re.compile(
    r"(?:anchor_deltas|bbox_pred|bbox_reg|rpn_reg|RPN_bbox_pred)\.(?:weight|bias)$"
)
_OF_PYRAMIDS = 256
"""Channels of the feature pyramids of most detectors."""
_CELLS = re.compile(r"(?:^|\.)cell_anchors\.\d+$")


def anchors_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that a network of region proposals has other numbers of anchors at each place
    in the file and in the model: its boxes have four outputs for each.
    """
    boxes = [row for row in rows if _BOXES.search(row.name) and _is_of_proposals(row)]
    counts = {
        (row.checkpoint[0] // 4, row.model[0] // 4)
        for row in boxes
        # A box has four numbers.
        if row.checkpoint[0] % 4 == row.model[0] % 4 == 0
    }
    counts = {pair for pair in counts if pair[0] != pair[1]}
    cells = {
        (row.checkpoint[0], row.model[0])
        for row in rows
        if _CELLS.search(row.name) and row.checkpoint and row.model
    }
    # Some files hold the anchors themselves too, and these must agree.
    if len(counts) != 1 or (cells and cells != counts):
        return None
    ((here, there),) = counts
    inner = {
        (row.checkpoint[1], row.model[1])
        for row in boxes
        if len(row.checkpoint) == len(row.model) == 4
        and row.checkpoint[1] != row.model[1]
    }
    text = (
        f"The network of region proposals has {counted_noun(here, 'anchor')} at each "
        f"place in the file and {there:,} in the model (four outputs of "
        f"{show(boxes[0].name.rpartition('.')[0], 100)} for each)"
    )
    if len(inner) == 1:
        ((ours, theirs),) = inner
        text += (
            f", over {ours:,} channels in the file and {theirs:,} in the model: "
            "another architecture, and not another number of classes alone."
        )
        # Channels far from those of a pyramid are of the backbone itself (C4).
        if min(ours, theirs) == _OF_PYRAMIDS and max(ours, theirs) > 2 * _OF_PYRAMIDS:
            text += (
                " A feature pyramid (FPN) has a few anchors for each of its levels, "
                f"mostly over {_OF_PYRAMIDS} channels, and a backbone without one (C4) "
                "has all of them over its own channels."
            )
        text += (
            " Build the model by the config that goes with the file, or take the file "
            "that goes with the config."
        )
    else:
        text += (
            ": other sizes and aspect ratios of anchors, which the settings of the "
            "model give. Build it with those of the file."
        )
    return Statement(text)


def _is_of_proposals(row: Mismatch) -> bool:
    return bool(
        row.checkpoint
        and row.model
        and re.search(r"(?i)(?:^|[._])rpn|proposal|anchor", row.name)
    )


def is_of_anchors(row: Mismatch) -> bool:
    """Tell whether a tensor is of the anchors of a network of region proposals."""
    return bool(_is_of_proposals(row) or _CELLS.search(row.name))


# --- agents ---------------------------------------------------------------------------

_OF_AGENTS = re.compile(
    r"(?:^|[._])(?:actor|critic|policy|a2c_network|actor_mlp|mu|log_std|q_net"
    r"|obs_normalizer|running_mean_std)(?:[._]|$)"
)
"""Names of layers of an agent that learns by rewards."""
_OF_ACTIONS = re.compile(
    r"(?:^|\.)(?:mu|sigma|log_std\w{0,12}|std|action_net|actor_mean|actor_logstd"
    r"|mean_layer)(?:\.|$)"
)
"""Names of the layers and parameters that have an entry for each action."""


def agent_statement(rows: Sequence[Mismatch]) -> Statement | None:
    """Say that an agent was trained with other numbers of observations and of actions,
    where both differ and nothing else does, or return None.
    """
    if not any(_OF_AGENTS.search(row.name) for row in rows):
        return None
    seen: set[tuple[int, int]] = set()
    done: set[tuple[int, int]] = set()
    for row in rows:
        if len(row.checkpoint) != len(row.model):
            return None
        sizes = [
            pair
            for pair in zip(row.checkpoint, row.model, strict=True)
            if pair[0] != pair[1]
        ]
        # If two sizes differ, or a convolution does, it is another network.
        if len(sizes) != 1 or len(row.model) > 2:
            return None
        # The inputs of a layer are no actions, also in a network that is called mu.
        is_taken = (
            len(row.model) == 2
            and row.checkpoint[0] == row.model[0]
            and row.name.endswith("weight")
        )
        is_action = _OF_ACTIONS.search(row.name) is not None and not is_taken
        (done if is_action else seen).add(sizes[0])
    if len(seen) != 1 or len(done) != 1:
        return None
    ((ours, theirs),) = seen
    ((here, there),) = done
    return Statement(
        f"The agent of this file was trained on {counted_noun(ours, 'observation')} "
        f"and {counted_noun(here, 'action')}, by the sizes of its first and its last "
        f"layers, and the model was built for {theirs:,} and {there:,}: another "
        "environment, or another version of its task. Build the model with the spaces "
        "of the environment that the agent was trained in."
    )


# --- names that were compared by their ends -------------------------------------------


def ends_statement(
    message: Message, shapes: Mapping[str, object]
) -> Iterator[Statement]:
    """Answer detectron2, which holds a tensor of the file against each tensor of the
    model that ends with its name.

    `names` of the message are pairs, the name in the file and the one in the model.
    """
    pairs = list(zip(message.names[::2], message.names[1::2], strict=False))
    ours = list(dict.fromkeys(name for name, _ in pairs))
    theirs = list(dict.fromkeys(name for _, name in pairs))
    if not pairs:
        return
    held = [name for name in ours if name in shapes]
    what = and_more([show(name, 80) for name in ours], 3)
    verb = be_verb(ours)
    where = f", which {verb} in this file," if len(held) == len(ours) else ""
    yield Statement(
        f"These lines are about other layers. The loader looks for the name of the "
        f"file that has the longest end in common with each name of the model, so "
        f"{what}{where} {'was' if len(ours) == 1 else 'were'} held against "
        f"{counted_noun(len(theirs), 'tensor')} of the model "
        f"({and_more([show(name, 80) for name in theirs], 2)}) of another shape, and "
        "left out there. They say nothing against the file: the model has layers that "
        "it does not hold, and these begin untrained. The list of the parameters that "
        "are not found, which stands below such lines, is the one to look at: a layer "
        "of the backbone in it was not loaded."
    )

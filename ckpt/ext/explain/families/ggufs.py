"""Errors of llama.cpp and of what is built on it, for a GGUF file: sizes and names that
its metadata do not expect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import cast

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import Json, and_more, counted_noun, show

# tensor 'blk.0.attn_k.weight' has wrong shape; expected 16, 16, got 16, 8, 1, 1.
_WRONG_SHAPE = re.compile(
    r"tensor '([^'\n]{1,200})' has (?:the )?wrong shape(?: in model file)?"
    r"[;:] expected\s+\[?([\d, ]{1,200}?)\]?,? got\s+\[?([\d, ]{1,200})"
)
_LACKING = re.compile(
    r"missing tensor '([^'\n]{1,200})'"
    r"|tensor '([^'\n]{1,200})' (?:not found|is missing from model)"
)
# done_getting_tensors: wrong number of tensors; expected 292, got 291.
_COUNTED = re.compile(r"wrong number of tensors; expected (\d{1,9}), got (\d{1,9})")
_UNKNOWN = re.compile(r"unknown (?:model )?architecture: '([^'\n]{0,200})'")
_BLOCK = re.compile(r"^blk\.(\d{1,6})\.")
_GGUF = "GGUF"
_OLDER = (
    "A program that is older than the file reads it by other rules: take a newer one."
)


def _metadata(case: Case) -> dict[str, Json]:
    """The plain values of the metadata by their keys, without the name of the
    architecture before them.
    """
    values = {
        str(value.path[-1]): cast(Json, value.node)
        for value in case.survey.checkpoint.values
        if value.path and isinstance(value.node, (str, int, float))
    }
    # llama.block_count of a llama becomes block_count, as in any other architecture.
    begin = f"{values.get('general.architecture')}."
    return {key.removeprefix(begin): node for key, node in values.items()}


def _number(values: Mapping[str, Json], *keys: str) -> int | None:
    """The first of some keys that is a positive number."""
    for key in keys:
        node = values.get(key)
        # A bool is an int for isinstance, and no number of heads.
        if type(node) is int and node > 0:
            return node
    return None


class _Size:
    """A size of a tensor, as the metadata give it: the number, and the keys that it
    comes from.
    """

    def __init__(self, size: int, keys: tuple[str, ...], dimension: int) -> None:
        self.size = size
        self.keys = keys
        self.dimension = dimension
        """0 for the rows of torch's shape, 1 for the columns."""


def _expected_size(name: str, values: Mapping[str, Json]) -> _Size | None:
    """The size that the metadata give a weight of a usual block, or None where they are
    silent.

    Expert layers and their own widths are left out: their metadata differ from model to
    model.
    """
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    if leaf in ("ffn_gate", "ffn_up", "ffn_down"):
        size = _number(values, "feed_forward_length")
        if size is None:
            return None
        # ffn_down leads back to the width of the model: its columns have the length.
        dimension = 1 if leaf == "ffn_down" else 0
        return _Size(size, ("feed_forward_length",), dimension)
    if leaf not in ("attn_q", "attn_k", "attn_v", "attn_output"):
        return None
    heads = _number(values, "attention.head_count")
    width = _number(values, "embedding_length")
    if heads is None or width is None:
        return None
    # attn_output takes what the values give, so their length counts.
    kind = "value" if leaf in ("attn_v", "attn_output") else "key"
    length_key = f"attention.{kind}_length"
    length = _number(values, length_key)
    keys = (
        ("embedding_length", "attention.head_count")
        if length is None
        else (length_key,)
    )
    if leaf in ("attn_k", "attn_v"):
        # Without head_count_kv each head has keys and values of its own.
        held = _number(values, "attention.head_count_kv") or heads
        keys = ("attention.head_count_kv", *keys)
    else:
        held = heads
        keys = tuple(dict.fromkeys(("attention.head_count", *keys)))
    # Without a length of its own each head has its part of the width.
    size = held * (width // heads if length is None else length)
    return _Size(size, keys, 1 if leaf == "attn_output" else 0)


def _answer_gguf(message: Message, case: Case) -> Iterator[Statement]:
    """Answer llama.cpp, which refuses a model after it has read its header."""
    checkpoint = case.survey.checkpoint
    if checkpoint.traits.label != _GGUF:
        yield Statement(
            f"This file is {checkpoint.layout or checkpoint.traits.label}, and no "
            "GGUF: another file was loaded."
        )
        yield from load_statements(case)
        return
    yield from case.damage
    text = message.text
    if (found := _WRONG_SHAPE.search(text)) is not None:
        yield from _of_shape(found, case)
    elif (found := _COUNTED.search(text)) is not None:
        yield from _of_count(int(found[1]), int(found[2]), case)
    elif (found := _LACKING.search(text)) is not None:
        yield from _of_lacking(found[1] or found[2], case)
    elif (found := _UNKNOWN.search(text)) is not None:
        yield from _of_architecture(found[1], case)


def _sizes_in(text: str) -> tuple[int, ...]:
    """The sizes of a message in torch's order, without the ones that llama.cpp fills up
    with.
    """
    # llama.cpp fills sizes up to four, the innermost first: [8, 16] is 16, 8, 1, 1.
    sizes = [int(size) for size in re.findall(r"\d{1,18}", text)]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return tuple(reversed(sizes))


def _shapes(case: Case) -> dict[str, tuple[int, ...]]:
    return {entry.name: entry.tensor.shape for entry in case.survey.tensors}


def _of_shape(found: re.Match[str], case: Case) -> Iterator[Statement]:
    name = found[1]
    expected, got = _sizes_in(found[2]), _sizes_in(found[3])
    shape = _shapes(case).get(name)
    shown = show(name, 120)
    if shape is None:
        yield Statement(f"This file has no tensor {shown}: another file was loaded.")
        return
    # The file and the message may differ in sizes of 1 alone.
    plain = tuple(size for size in shape if size != 1)
    if plain not in (
        tuple(size for size in row if size != 1) for row in (expected, got)
    ):
        yield Statement(
            f"{shown} is {list(shape)} in this file, which is neither size of the "
            "message: another file was loaded."
        )
        return
    values = _metadata(case)
    architecture = show(str(values.get("general.architecture")), 60)
    size = _expected_size(name, values)
    begin = (
        f"{shown} is {list(shape)} in this file, and the program expects "
        f"{list(expected)} for a model of its metadata (architecture {architecture})."
    )
    # The metadata give no size for such a tensor, as ssm_in.
    if size is None or size.dimension >= len(shape):
        yield Statement(
            f"{begin} The metadata of a GGUF are made from config.json: convert the "
            f"model again with the config of its weights. {_OLDER}"
        )
        return
    held = and_more(
        [f"{architecture}.{key} = {values[key]}" for key in size.keys if key in values],
        4,
    )
    # Both sizes of the file agree, so the program is the one that differs.
    if shape[size.dimension] == size.size:
        yield Statement(
            f"{begin} The metadata of this file give {size.size:,}, as the tensor has "
            f"it ({held}): the file agrees with itself. {_OLDER}"
        )
        return
    yield Statement(
        f"{begin} The metadata give {size.size:,} ({held}), and the tensor has "
        f"{shape[size.dimension]:,}: they contradict each other. The metadata are made "
        "from config.json, and this one is of another model, or the converter set a "
        "number of its own. Convert again with the config of the weights, by a newer "
        "converter."
    )


def _of_count(expected: int, got: int, case: Case) -> Iterator[Statement]:
    names = [entry.name for entry in case.survey.tensors]
    # llama.cpp expects the number that the header of the file gives.
    if len(names) != expected:
        yield Statement(
            f"This file has {counted_noun(len(names), 'tensor')}, and the message "
            f"counts {expected:,}: another file was loaded."
        )
        return
    whole = "" if case.verified is None or case.damage else " It is whole."
    yield Statement(
        f"This file has {expected:,} tensors, as its header says.{whole} The program "
        f"made a model of {got:,} of them, and has no place for the other "
        f"{expected - got:,}."
    )
    values = _metadata(case)
    blocks = {int(match[1]) for name in names if (match := _BLOCK.match(name))}
    count = _number(values, "block_count")
    if blocks and count is not None and max(blocks) >= count:
        yield Statement(
            f"block_count is {count:,} in the metadata, and the tensors are of "
            f"{counted_noun(max(blocks) + 1, 'block')}: the blocks from {count} on "
            "have no place. They are of another config.json, or blocks for multi-token "
            "prediction that a newer program counts apart."
        )
    groups = Counter(name.partition(".")[0] for name in names)
    others = [word for word in groups if word in _PARTS]
    if others:
        listed = and_more(
            [
                f"{counted_noun(groups[word], 'tensor')} below {word}. ({_PARTS[word]})"
                for word in others
            ],
            4,
        )
        yield Statement(
            f"It holds {listed} beside the language model. llama.cpp takes such a part "
            "as a file of its own (--mmproj), and other programs keep both in one file."
        )
    yield Statement(_OLDER)


_PARTS = {
    "v": "the vision tower",
    "mm": "the projector of images",
    "a": "the audio tower",
    "mmproj": "the projector of images",
}
"""The first words of tensors that llama.cpp keeps in a file beside the language
model.
"""


def _vocabulary_text(case: Case) -> str:
    """Say what a GGUF without a tensor holds."""
    paths = [row.path for row in case.survey.checkpoint.containers]
    paths += [value.path for value in case.survey.checkpoint.values]
    has_words = any("tokenizer.ggml.tokens" in map(str, path) for path in paths)
    held = "settings and a vocabulary" if has_words else "settings"
    return (
        f"This file holds {held}, and not one tensor: no program gets a model from it. "
        "llama.cpp keeps such files (ggml-vocab-….gguf) to test its tokenizers. Take "
        "the GGUF of the model itself."
    )


def _of_lacking(name: str, case: Case) -> Iterator[Statement]:
    shapes = _shapes(case)
    shown = show(name, 120)
    if not shapes:
        yield Statement(_vocabulary_text(case))
        return
    if name in shapes:
        yield Statement(
            f"This file has the tensor {shown}: another file was loaded, or an older "
            f"program looks for it elsewhere. {_OLDER}"
        )
        return
    values = _metadata(case)
    architecture = show(str(values.get("general.architecture")), 60)
    text = f"{shown} is not in this file, whose architecture is {architecture}."
    kind = values.get("general.type")
    if kind in ("adapter", "mmproj", "vocab"):
        yield Statement(
            f"{text} general.type is {kind}: it is no model. Give the program the "
            "model, and this file by the option for it (--lora, --mmproj)."
        )
        return
    # blk.0 of blk.0.attn_qkv.weight: the file may have its other tensors.
    block = name.rpartition(".")[0].rpartition(".")[0]
    held = [
        other[len(block) + 1 :]
        for other in shapes
        if block and other.startswith(f"{block}.")
    ]
    if name == "output.weight" and "token_embd.weight" in shapes:
        text += (
            " A model with tied embeddings has none, and newer programs take "
            "token_embd.weight in its place."
        )
    elif held:
        text += (
            f" {show(block, 60)} has {and_more([show(word, 60) for word in held], 8)}."
        )
    else:
        first = [show(other, 80) for other in list(shapes)[:3]]
        text += f" Its tensors are {and_more(first, 3, total=len(shapes))}."
    yield Statement(
        f"{text} The converter and the program have other layouts of this architecture "
        f"in mind: take both of one version. {_OLDER}"
    )


def _of_architecture(name: str, case: Case) -> Iterator[Statement]:
    values = _metadata(case)
    own = values.get("general.architecture")
    if own != name:
        yield Statement(
            f"The architecture of this file is {show(str(own), 60)}: another file was "
            "loaded."
        )
        return
    yield Statement(
        f"The architecture of this file is {show(name, 60)}, and the program does not "
        f"know it. {_OLDER} Programs that are built on llama.cpp get it later."
    )


FAMILIES = (
    Family(
        "gguf",
        (
            r"tensor '[^'\n]{1,200}' has (?:the )?wrong shape",
            r"wrong number of tensors; expected \d{1,9}, got \d{1,9}",
            r"missing tensor '[^'\n]{1,200}'",
            r"(?:create_tensor|check_tensor_dims): tensor '[^'\n]{1,200}' not found",
            r"tensor '[^'\n]{1,200}' is missing from model",
            r"unknown (?:model )?architecture: '[^'\n]{0,200}'",
        ),
        answer_from_statements(_answer_gguf),
    ),
)

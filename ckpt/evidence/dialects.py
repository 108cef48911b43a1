"""The names that packages give the tensors of one architecture, as tables: a row is one
module or tensor.

Rows come from the packages themselves: timm 1.0, torchvision 0.28, transformers 5.23
and 4.57 (whose names its files keep), torchtune 0.6, the model code of Llama and of
Whisper, of ESRGAN and of BasicSR, detectron2 0.6. `#` is one number. A cell that ends with a dot is a module,
whose leaves keep their names. Braces hold query, key and value, which other dialects
keep in one tensor, in this order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ckpt.model.rows import NamedTuple

_DEPTH = 8
"""Parts of a name before the ones of the tables: wrappers and the attributes of a
larger model.
"""
_LONG = 300
"""Characters of a name beyond which it is in no table."""


class Family(NamedTuple):
    """One architecture. `dialects` name the columns of `rows`. `layouts` say which two
    dialects lay values out otherwise.
    """

    name: str
    dialects: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    layouts: Mapping[frozenset[str], str]


def _parse_table(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split()) for line in text.strip().splitlines())


_VIT = _parse_table("""
cls_token                 class_token                                                 embeddings.cls_token                      embeddings.cls_token
pos_embed                 encoder.pos_embedding                                       embeddings.position_embeddings            embeddings.position_embeddings
patch_embed.proj.         conv_proj.                                                  embeddings.patch_embeddings.projection.   embeddings.patch_embeddings.projection.
blocks.#.norm1.           encoder.layers.encoder_layer_#.ln_1.                        layers.#.layernorm_before.                encoder.layer.#.layernorm_before.
blocks.#.attn.qkv.weight  encoder.layers.encoder_layer_#.self_attention.in_proj_weight  layers.#.attention.{q,k,v}_proj.weight  encoder.layer.#.attention.attention.{query,key,value}.weight
blocks.#.attn.qkv.bias    encoder.layers.encoder_layer_#.self_attention.in_proj_bias  layers.#.attention.{q,k,v}_proj.bias      encoder.layer.#.attention.attention.{query,key,value}.bias
blocks.#.attn.proj.       encoder.layers.encoder_layer_#.self_attention.out_proj.     layers.#.attention.o_proj.                encoder.layer.#.attention.output.dense.
blocks.#.norm2.           encoder.layers.encoder_layer_#.ln_2.                        layers.#.layernorm_after.                 encoder.layer.#.layernorm_after.
blocks.#.mlp.fc1.         encoder.layers.encoder_layer_#.mlp.0.                       layers.#.mlp.fc1.                         encoder.layer.#.intermediate.dense.
blocks.#.mlp.fc2.         encoder.layers.encoder_layer_#.mlp.3.                       layers.#.mlp.fc2.                         encoder.layer.#.output.dense.
norm.                     encoder.ln.                                                 layernorm.                                layernorm.
head.                     heads.head.                                                 classifier.                               classifier.
""")  # fmt: skip

_LLAMA = _parse_table("""
embed_tokens.                       tok_embeddings.               tok_embeddings.
layers.#.self_attn.q_proj.          layers.#.attention.wq.        layers.#.attn.q_proj.
layers.#.self_attn.k_proj.          layers.#.attention.wk.        layers.#.attn.k_proj.
layers.#.self_attn.v_proj.          layers.#.attention.wv.        layers.#.attn.v_proj.
layers.#.self_attn.o_proj.          layers.#.attention.wo.        layers.#.attn.output_proj.
layers.#.mlp.gate_proj.             layers.#.feed_forward.w1.     layers.#.mlp.w1.
layers.#.mlp.down_proj.             layers.#.feed_forward.w2.     layers.#.mlp.w2.
layers.#.mlp.up_proj.               layers.#.feed_forward.w3.     layers.#.mlp.w3.
layers.#.input_layernorm.weight     layers.#.attention_norm.weight  layers.#.sa_norm.scale
layers.#.post_attention_layernorm.weight  layers.#.ffn_norm.weight  layers.#.mlp_norm.scale
norm.weight                         norm.weight                   norm.scale
lm_head.                            output.                       output.
""")  # fmt: skip

_ROTARY = (
    "transformers keeps the rows of q_proj and k_proj in another order (rotary halves, "
    "not pairs)"
)
_BGR = (
    "detectron2 reads images as BGR, so the channels of the first convolution are "
    "reversed"
)

_RESNET = (
    ("conv1.", "stem.conv1."),
    ("bn1.", "stem.conv1.norm."),
    # detectron2 counts the stem as the first stage, so layer1 is its res2.
    *((f"layer{stage}.#.conv{n}.", f"res{stage + 1}.#.conv{n}.") for stage in range(1, 5) for n in (1, 2, 3)),
    *((f"layer{stage}.#.bn{n}.", f"res{stage + 1}.#.conv{n}.norm.") for stage in range(1, 5) for n in (1, 2, 3)),
    *((f"layer{stage}.#.downsample.0.", f"res{stage + 1}.#.shortcut.") for stage in range(1, 5)),
    *((f"layer{stage}.#.downsample.1.", f"res{stage + 1}.#.shortcut.norm.") for stage in range(1, 5)),
)  # fmt: skip

_WHISPER_BLOCK = (
    ("attn.query.", "self_attn.q_proj."),
    ("attn.key.", "self_attn.k_proj."),
    ("attn.value.", "self_attn.v_proj."),
    ("attn.out.", "self_attn.out_proj."),
    ("attn_ln.", "self_attn_layer_norm."),
    ("mlp.0.", "fc1."),
    ("mlp.2.", "fc2."),
    ("mlp_ln.", "final_layer_norm."),
)
_WHISPER_CROSS = (
    ("cross_attn.query.", "encoder_attn.q_proj."),
    ("cross_attn.key.", "encoder_attn.k_proj."),
    ("cross_attn.value.", "encoder_attn.v_proj."),
    ("cross_attn.out.", "encoder_attn.out_proj."),
    ("cross_attn_ln.", "encoder_attn_layer_norm."),
)
_WHISPER = (
    ("encoder.conv1.", "encoder.conv1."),
    ("encoder.conv2.", "encoder.conv2."),
    ("encoder.positional_embedding", "encoder.embed_positions.weight"),
    *((f"encoder.blocks.#.{ours}", f"encoder.layers.#.{theirs}") for ours, theirs in _WHISPER_BLOCK),
    ("encoder.ln_post.", "encoder.layer_norm."),
    ("decoder.token_embedding.", "decoder.embed_tokens."),
    ("decoder.positional_embedding", "decoder.embed_positions.weight"),
    *((f"decoder.blocks.#.{ours}", f"decoder.layers.#.{theirs}") for ours, theirs in (*_WHISPER_BLOCK, *_WHISPER_CROSS)),
    ("decoder.ln.", "decoder.layer_norm."),
)  # fmt: skip

_RRDBNET = (
    *((f"RRDB_trunk.#.RDB{block}.conv{n}.", f"body.#.rdb{block}.conv{n}.") for block in (1, 2, 3) for n in range(1, 6)),
    ("trunk_conv.", "conv_body."),
    ("upconv1.", "conv_up1."),
    ("upconv2.", "conv_up2."),
    ("HRconv.", "conv_hr."),
)  # fmt: skip

FAMILIES = (
    Family("ViT", ("timm", "torchvision", "transformers", "transformers 4"), _VIT, {}),
    Family(
        "Llama",
        ("transformers", "Meta", "torchtune"),
        _LLAMA,
        {
            frozenset(("transformers", other)): _ROTARY
            for other in ("Meta", "torchtune")
        },
    ),
    Family(
        "ResNet",
        ("torchvision", "detectron2"),
        _RESNET,
        {frozenset(("torchvision", "detectron2")): _BGR},
    ),
    Family("Whisper", ("OpenAI", "transformers"), _WHISPER, {}),
    Family("RRDBNet", ("ESRGAN", "BasicSR"), _RRDBNET, {}),
)

COPIES = (
    ("encoder_q", "encoder_k"),
    ("base_encoder", "momentum_encoder"),
    ("student", "teacher"),
    ("online_network", "target_network"),
    ("online_encoder", "target_encoder"),
)
"""Two copies of one model that self-supervised training keeps: the one that the
optimizer trains, and its moving average.
"""

LEAVES = (("gamma", "weight"), ("beta", "bias"))
"""Old names of the leaves of a norm, as TensorFlow has them, and the names of torch."""

REPARAMETRIZED = (
    (("_g", "parametrizations.{}.original0"), ("_v", "parametrizations.{}.original1")),
    (
        ("_orig", "parametrizations.{}.original"),
        ("_u", "parametrizations.{}.0._u"),
        ("_v", "parametrizations.{}.0._v"),
    ),
)
"""Ends of the names that torch.nn.utils.weight_norm and spectral_norm give the tensors
of a parameter, and their names as parametrizations.

`{}` is the parameter. Source: torch/nn/utils/parametrizations.py.
"""

SYNONYMS = (
    frozenset(
        (
            "attn",
            "attention",
            "selfattn",
            "selfattention",
            "self_attn",
            "self_attention",
            "mha",
        )
    ),
    frozenset(
        (
            "norm",
            "ln",
            "bn",
            "layernorm",
            "layer_norm",
            "batchnorm",
            "batch_norm",
            "ln_",
            "norm_",
        )
    ),
    frozenset(
        ("layer", "layers", "block", "blocks", "h", "stage", "stages", "resblocks")
    ),
    frozenset(("downsample", "shortcut", "down")),
    frozenset(("mlp", "ffn", "feed_forward", "feedforward")),
    frozenset(("q", "query", "q_proj", "q_lin")),
    frozenset(("k", "key", "k_proj", "k_lin")),
    frozenset(("v", "value", "v_proj", "v_lin")),
    frozenset(("head", "fc", "classifier", "heads", "linear")),
    frozenset(
        ("pos_embed", "position_embeddings", "pos_embedding", "positional_embedding")
    ),
    frozenset(("cls_token", "class_token", "class_embedding")),
)
"""Words that name one thing in the code of several packages."""

LAID_OUT = (
    frozenset(
        (
            "qkv",
            "in_proj",
            "in_proj_weight",
            "in_proj_bias",
            "query_key_value",
            "c_attn",
            "wqkv",
            "qkv_proj",
        )
    ),
    frozenset(("wq", "q_proj")),
    frozenset(("wk", "k_proj")),
)
"""Words whose tensors different code lays out in different ways: a new word is no proof
that the values fit.
"""

OPPOSITES = (
    ({"q", "query", "wq"}, {"k", "key", "wk"}, {"v", "value", "wv"}),
    ({"encoder", "enc"}, {"decoder", "dec"}),
    ({"generator"}, {"discriminator", "critic"}),
    ({"actor", "policy"}, {"critic", "value"}),
    ({"src", "source"}, {"tgt", "target"}),
    ({"text", "txt"}, {"image", "img", "visual", "vision"}),
    ({"gate"}, {"up"}, {"down"}),
    ({"forward", "fwd", "fw"}, {"backward", "bwd", "bw"}),
    ({"left"}, {"right"}),
    ({"ih"}, {"hh"}),
)
"""Words of two tensors with equal shapes that answer different questions, in groups: a
word of one side is none of another.
"""

ONE_SIDED = frozenset(("cross", "ema", "reverse"))
"""Words that make a module another one than its namesake without them."""

HEADS = frozenset(
    [
        "head",
        "heads",
        "fc",
        "classifier",
        "cls",
        "lm_head",
        "score",
        "logits",
        "last_linear",
        "output_layer",
        "predictions",
        "linear",
        "class_head",
        "cls_head",
        "bbox_head",
        "fc_cls",
        "prediction",
        "head_dist",
        "qa_outputs",
    ]
)
"""The first components of the last layer of a model, which answers another task after a
warm start.
"""


class Dialect(NamedTuple):
    """A family and the column of one model's names. `prefix` stands before the numbered
    rows.
    """

    family: Family
    column: int
    prefix: str

    @property
    def name(self) -> str:
        """The package that writes it."""
        return self.family.dialects[self.column]

    @property
    def text(self) -> str:
        """The architecture and the package."""
        return f"{self.family.name} of {self.name}"


_Place = tuple[Family, int, int, int]
"""A family, its column, the row and the part of a row in braces (-1 for all of it)."""


def _places_by_cell() -> dict[str, list[_Place]]:
    """Every cell of the tables -> its places."""
    places: dict[str, list[_Place]] = {}
    for family in FAMILIES:
        for number, row in enumerate(family.rows):
            for column, cell in enumerate(row):
                names = parts_of(cell)
                for part, name in enumerate(names):
                    place = (family, column, number, part if len(names) > 1 else -1)
                    places.setdefault(name, []).append(place)
    return places


def parts_of(cell: str) -> list[str]:
    """The names of a cell: one, or those that its braces hold."""
    start, brace, rest = cell.partition("{")
    if not brace:
        return [cell]
    inner, _, end = rest.partition("}")
    return [f"{start}{word}{end}" for word in inner.split(",")]


_PLACES = _places_by_cell()
_ENDS = {cell.rstrip(".").rpartition(".")[2] for cell in _PLACES}
"""The last words of all cells: a name without one of them is in no table."""


def _name_readings(name: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield how a name can be read: (prefix, cell, number, leaf)."""
    if len(name) > _LONG:
        return
    module, _, leaf = name.rpartition(".")
    if leaf in _ENDS:
        yield from _cell_readings(name, "")
    # A cell of a module ends with a dot: its last word stands before the leaf.
    if _without_numbers(module.rpartition(".")[2]) in _ENDS:
        yield from _cell_readings(module + ".", leaf)


def _without_numbers(word: str) -> str:
    # A number in a word is `#` in the cells: `encoder_layer_3`.
    return word if word in _ENDS else "#".join(re.split("[0-9]+", word))


def _cell_readings(text: str, leaf: str) -> Iterator[tuple[str, str, str, str]]:
    numbers = [found.span() for found in re.finditer("[0-9]+", text)]
    start = 0
    # Parts of the name in front of a cell are the prefix of the model.
    for _ in range(_DEPTH):
        if text[start:] in _PLACES:
            yield text[:start], text[start:], "", leaf
        for first, last in numbers:
            cell = f"{text[start:first]}#{text[last:]}"
            # A number in front of the cell belongs to the prefix.
            if first >= start and cell in _PLACES:
                yield text[:start], cell, text[first:last], leaf
        start = text.find(".", start) + 1
        if not start:
            return


def dialects_of(names: Iterable[str]) -> list[Dialect]:
    """The dialects that names are written in: at least half of the numbered rows of the
    table are there, below one prefix.
    """
    seen: dict[_Candidate, set[tuple[int, int]]] = {}
    for name in names:
        for prefix, cell, number, _ in _name_readings(name):
            # Cells without a number (`norm.`, `head.`) are words of many models.
            if not number:
                continue
            for family, column, row, part in _PLACES[cell]:
                candidate = _Candidate(FAMILIES.index(family), column, prefix)
                seen.setdefault(candidate, set()).add((row, part))
    counts: Counter[_Candidate] = Counter()
    for key, rows in seen.items():
        numbered = 0
        for cells in FAMILIES[key.family].rows:
            text = cells[key.column]
            if "#" in text:
                numbered += len(parts_of(text))
        if 2 * len(rows) >= numbered:
            counts[key] = len(rows)
    # Of each family the dialect of most names: a few rows are the same in several.
    best: dict[int, _Candidate] = {}
    for key, _ in counts.most_common():
        best.setdefault(key.family, key)
    return [
        Dialect(FAMILIES[key.family], key.column, key.prefix) for key in best.values()
    ]


class _Candidate(NamedTuple):
    """A dialect that names may be in: the number of its family, its column in the table
    of it, and the prefix of all names.
    """

    family: int
    column: int
    prefix: str


class Translation(NamedTuple):
    """Names of one dialect in the words of another one. `names` maps a name to the
    other's name.

    `joins` maps a name of the other dialect to the names (query, key, value) that it
    holds, `cuts` maps the names of query, key and value of the other dialect to the
    name that holds them, with their place in it.
    """

    names: dict[str, str]
    joins: dict[str, list[str]]
    cuts: dict[str, tuple[str, int]]
    one: Dialect
    two: Dialect

    @property
    def layout(self) -> str:
        """The reason why tensors of equal shapes hold other values, or ``."""
        return self.one.family.layouts.get(
            frozenset((self.one.name, self.two.name)), ""
        )


def dialect_translations(one: Iterable[str], two: Iterable[str]) -> list[Translation]:
    """The names of `one` as the package of `two` writes them, for each family that both
    are written in.
    """
    one, two = list(one), set(two)
    others = {dialect.family.name: dialect for dialect in dialects_of(two)}
    out = []
    for dialect in dialects_of(one):
        other = others.get(dialect.family.name)
        # Names of one column are the same on both sides: there is nothing to translate.
        if other is not None and other.column != dialect.column:
            out.append(_dialect_translation(one, two, dialect, other))
    return out


def _dialect_translation(
    names: list[str], theirs: set[str], mine: Dialect, other: Dialect
) -> Translation:
    translated = Translation({}, {}, {}, mine, other)
    for name in names:
        for prefix, cell, number, leaf in _name_readings(name):
            # A head has no number, and may lie beside what the prefix holds.
            is_beside = not number and not prefix
            if prefix != mine.prefix and not is_beside:
                continue
            place = _place_of_cell(cell, mine)
            if place is None:
                continue
            row, part = place
            cells = [
                text.replace("#", number) + leaf
                for text in parts_of(mine.family.rows[row][other.column])
            ]
            # A head stands beside the model, or in it.
            if number or theirs.isdisjoint(cells):
                cells = [other.prefix + text for text in cells]
            if part >= 0 and len(cells) == 1:
                translated.joins.setdefault(cells[0], ["", "", ""])[part] = name
            elif part < 0 and len(cells) > 1:
                for index, text in enumerate(cells):
                    translated.cuts[text] = (name, index)
            else:
                translated.names[name] = cells[max(part, 0)]
            break
    # Two of query, key and value make no tensor.
    incomplete = [text for text, parts in translated.joins.items() if not all(parts)]
    for text in incomplete:
        del translated.joins[text]
    return translated


def _place_of_cell(cell: str, dialect: Dialect) -> tuple[int, int] | None:
    """Return the row and the part of a cell in the table of a dialect, or None where
    the dialect has no such cell.
    """
    for family, column, row, part in _PLACES[cell]:
        if family is dialect.family and column == dialect.column:
            return row, part
    return None

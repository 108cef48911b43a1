"""Layers that a file and a model hold in two forms: projections together or apart,
norms folded into convolutions, weight norm, the layers of PEFT, the letters of Flax.

No renaming makes the one form of the other, so these names are taken off the lists
before names are paired: `qkv` is no `q`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ckpt.evidence.wrappers import adapted_layers, base_name, is_adapted
from ckpt.ext.explain.case import STATISTICS, Case, Statement
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, show

Shape = tuple[int, ...]


class Form(NamedTuple):
    """Layers of another form: the missing keys and the keys of the file that it
    explains, the sentence, and the line of Python that makes the model's form, where
    one does.
    """

    missing: frozenset[str]
    held: frozenset[str]
    text: str
    code: str | None = None
    ends: bool = False
    """A flag: there is nothing else to say of the lists."""

    def statement(self, case: Case, *, is_all: bool) -> Statement:
        """The sentence, with the whole line where the form explains all names."""
        load = case.survey.load.expression
        if self.code is None or load is None or len(case.survey.candidates) != 1:
            return Statement(self.text)
        if not is_all:
            return Statement(self.text)
        return Statement(
            f"{self.text} So it loads:",
            (),
            f"state = {load}; {self.code}; model.load_state_dict(state)",
        )


def find_forms(
    missing: Sequence[str], here: Sequence[str], shapes: Mapping[str, Shape]
) -> list[Form]:
    """Find the layers that the file has in another form than the model."""
    found: list[Form] = []
    # The order decides: a form is dropped where an earlier one explains the same
    # missing keys.
    for form in (
        _layers_of_peft(missing, here, shapes),
        *_joined_projections(missing, here, shapes),
        _weight_norm(missing, here),
        _folded_norms(missing, here, shapes),
        _norms_for_biases(missing, here, shapes),
        _letters_of_flax(missing, here),
    ):
        if form is not None:
            taken = frozenset().union(*(row.missing for row in found))
            if not form.missing & taken:
                found.append(form)
    return found


# --- projections together or apart ----------------------------------------------------


class _Joined(NamedTuple):
    """Words of one layer in which a program keeps several, and the words of these."""

    whole: re.Pattern[str]
    parts: tuple[re.Pattern[str], ...]
    noun: str


def _word_pattern(words: str) -> re.Pattern[str]:
    """The pattern of the last word of a module before the last word of a tensor."""
    # Group 1 is the module around the layer, 2 its word, 3 the end: `.weight`, or
    # `_weight` behind the in_proj of nn.MultiheadAttention.
    return re.compile(rf"^(|.*\.)({words})((?:\.(?:[^.]*))|_(?:weight|bias))$")


_JOINED = (
    _Joined(
        _word_pattern(r"\w{0,20}qkv\w{0,20}|in_proj|query_key_value|Wqkv|c_attn"),
        tuple(
            _word_pattern(
                rf"(?:to_|w|linear_|fc_|lin_|W_?|proj_)?{letter}"
                rf"(?:_proj|_lin|_linear|_layer|_?s)?|{word}(?:_proj|_layer)?"
            )
            for letter, word in (("q", "query"), ("k", "key"), ("v", "value"))
        ),
        "query, key and value",
    ),
    _Joined(
        _word_pattern(r"(?:to_)?kv(?:_proj|_linear|_lin)?|key_value"),
        tuple(
            _word_pattern(
                rf"(?:to_|w|linear_)?{letter}(?:_proj|_lin|_linear)?|{word}(?:_proj)?"
            )
            for letter, word in (("k", "key"), ("v", "value"))
        ),
        "key and value",
    ),
    _Joined(
        _word_pattern(r"gate_up_proj|gate_up|up_gate_proj|gate_and_up_proj"),
        (_word_pattern(r"gate_proj|gate|w1"), _word_pattern(r"up_proj|up|w3")),
        "gate and up",
    ),
)


def _joined_projections(
    missing: Sequence[str], here: Sequence[str], shapes: Mapping[str, Shape]
) -> Iterator[Form]:
    for kind in _JOINED:
        # Look for the whole in the file first, and then in the model.
        for ours, theirs, is_saved in ((here, missing, True), (missing, here, False)):
            form = _joined_form(kind, ours, theirs, shapes, is_saved=is_saved)
            if form is not None:
                yield form
                break


def _joined_form(
    kind: _Joined,
    joined: Sequence[str],
    apart: Sequence[str],
    shapes: Mapping[str, Shape],
    *,
    is_saved: bool,
) -> Form | None:
    """The layers that are one tensor on the one side and several on the other."""
    whole = {name: row for name in joined if (row := kind.whole.match(name))}
    # A whole layer on both sides is one layer under two names, and no other form.
    if not whole or any(kind.whole.match(name) for name in apart):
        return None
    parts: list[dict[str, re.Match[str]]] = [
        {name: row for name in apart if (row := pattern.match(name))}
        for pattern in kind.parts
    ]
    places = [{row[1] for row in rows.values()} for rows in parts]
    count = len({row[1] for row in whole.values()})
    # Each place that has one projection of its own has all of them.
    if len(set(map(frozenset, places))) != 1 or len(places[0]) != count:
        return None
    # A file that has the parts too lacks nothing but the whole.
    if any(pattern.match(name) for pattern in kind.parts for name in joined):
        return None
    names = frozenset(whole)
    others = frozenset(name for rows in parts for name in rows)
    first = next(iter(whole.values()))
    words = [next(iter(rows.values()))[2] for rows in parts]
    place = next(iter(parts[0].values()))[1]
    listed = f"{show(place, 80)}{{{', '.join(words)}}}"
    module = show(f"{first[1]}{first[2]}", 100)
    layers = counted_noun(count, "layer")
    text = (
        f"{layers} {'have' if count > 1 else 'has'} {kind.noun} together in the file "
        f"({module}), and apart in the model ({listed})."
        if is_saved
        else f"{layers} {'have' if count > 1 else 'has'} {kind.noun} apart in the file "
        f"({listed}), and together in the model ({module})."
    )
    text += " That is another code of the same layer, and no other spelling: a rename "
    text += "cannot do it."
    code = None
    if _are_places_equal(whole, places[0]):
        code = _code_of_joined(whole, parts, words, shapes, is_saved=is_saved)
    if code is not None:
        text += (
            " Most programs lay them one behind the other, in this order; some mix "
            "them by head, so compare one output with the program that saved."
        )
    return Form(
        others if is_saved else names, names if is_saved else others, text, code
    )


def _are_places_equal(
    whole: Mapping[str, re.Match[str]], places: Collection[str]
) -> bool:
    return {row[1] for row in whole.values()} == set(places)


_MIXED = re.compile(r"query_key_value|c_attn")
"""Words of programs that mix query, key and value by head, or transpose them."""


def _code_of_joined(
    whole: Mapping[str, re.Match[str]],
    parts: Sequence[Mapping[str, re.Match[str]]],
    words: Sequence[str],
    shapes: Mapping[str, Shape],
    *,
    is_saved: bool,
) -> str | None:
    """The line that cuts the whole, or puts the parts together, where each place has
    the same words and all parts are alike.
    """
    rows = [*whole.values(), *(row for group in parts for row in group.values())]
    tails = [{row[3] for row in whole.values()}]
    tails += [{row[3] for row in group.values()} for group in parts]
    is_alike = (
        len({row[2] for row in whole.values()}) == 1
        and all(len({row[2] for row in group.values()}) == 1 for group in parts)
        and all(tail == tails[0] for tail in tails)
        and all(row[3].startswith(".") for row in rows)
    )
    word = next(iter(whole.values()))[2]
    if not is_alike or _MIXED.fullmatch(word):
        return None
    count = len(parts)
    if is_saved:
        # The line cuts the whole by chunk, which makes equal parts of its rows.
        sizes = [shapes.get(name, ()) for name in whole]
        has_rows = all(shape and shape[0] % count == 0 for shape in sizes)
        # Query has more rows than key where heads share a key.
        is_square = all(
            shape[0] == count * shape[1] for shape in sizes if len(shape) == 2
        )
        if not has_rows or (count == 3 and not is_square):
            return None
    named = ", ".join(f'"{word}"' for word in words)
    if is_saved:
        return (
            f'whole = [name for name in state if ".{word}." in f".{{name}}"]; '
            "state.update((part.join(name.rsplit("
            f'"{word}", 1)), piece) for name in whole for part, piece in '
            f"zip(({named}), state.pop(name).chunk({count})))"
        )
    return (
        f'first = [name for name in state if ".{words[0]}." in f".{{name}}"]; '
        f'state.update(("{word}".join(name.rsplit("{words[0]}", 1)), '
        f'torch.cat([state.pop(part.join(name.rsplit("{words[0]}", 1))) for part in '
        f"({named})])) for name in first)"
    )


# --- weight norm, and norms that were folded ------------------------------------------

# torch.nn.utils.weight_norm writes the first pair, and
# torch.nn.utils.parametrizations.weight_norm the second.
_NORMED = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)
_NORMED_BY_OTHERS = ("_g", "_v")
"""The ends that weight norm gives a parameter of any name, as of a recurrent layer."""


def _weight_norm(missing: Sequence[str], here: Sequence[str]) -> Form | None:
    """Layers with weight norm on one side, and plain ones on the other."""
    for names, others, is_saved in ((here, missing, True), (missing, here, False)):
        given, plain = set(names), set(others)
        for pair in (*_NORMED, _NORMED_BY_OTHERS):
            whole = "" if pair == _NORMED_BY_OTHERS else "weight"
            layers = [
                name.removesuffix(pair[0])
                for name in names
                if name.endswith(pair[0])
                and name.removesuffix(pair[0]) + pair[1] in given
                and name.removesuffix(pair[0]) + whole in plain
            ]
            if not layers:
                continue
            normed = frozenset(f"{layer}{part}" for layer in layers for part in pair)
            weights = frozenset(f"{layer}{whole}" for layer in layers)
            shown = show(layers[0] + pair[0], 100)
            count = counted_noun(len(layers), "layer")
            if is_saved:
                text = (
                    f"The file has weight norm in {count} ({shown}), and the model has "
                    "plain weights there. Apply torch.nn.utils.weight_norm to the same "
                    "layers before the load (or leave out remove_weight_norm, which "
                    "was called too early), load, and remove it then."
                )
                return Form(weights, normed, text)
            text = (
                f"The model has weight norm in {count} ({shown}), and the file has "
                "plain weights there: it was saved after remove_weight_norm, as for "
                "inference, or without it. Call remove_weight_norm on the model before "
                "the load, or build it without (an option such as no_weight_norm)."
            )
            return Form(normed, weights, text)
    return None


def normed_elsewhere(missing: Sequence[str], here: Sequence[str]) -> dict[str, str]:
    """The names of the one layer with weight norm that a model has at another place
    than the file, and by the other of the two namings: missing name -> name held.
    """
    for asked, held in (_NORMED, _NORMED[::-1]):
        theirs = [name for name in missing if name.endswith(asked[0])]
        ours = [name for name in here if name.endswith(held[0])]
        if len(theirs) != 1 or len(ours) != 1:
            continue
        places = theirs[0].removesuffix(asked[0]), ours[0].removesuffix(held[0])
        pairs = {
            places[0] + new: places[1] + old
            for new, old in zip(asked, held, strict=True)
        }
        if pairs.keys() <= set(missing) and set(pairs.values()) <= set(here):
            return pairs
    return {}


def _folded_norms(
    missing: Sequence[str], here: Sequence[str], shapes: Mapping[str, Shape]
) -> Form | None:
    """Norms that one side has folded into the biases of convolutions."""
    for names, others, is_saved in ((here, missing, True), (missing, here, False)):
        norms = _norms_of(names)
        biases = [name for name in others if name.endswith(".bias")]
        if not norms or len(norms) != len(biases) or len(biases) != len(others):
            continue
        layers = {name.removesuffix(".bias") for name in biases}
        ours = frozenset(
            name for name in names if name.rpartition(".")[0] in set(norms)
        )
        # Other keys in the list mean that more differs than the norms.
        if len(ours) != len(names):
            continue
        # The convolution itself is on both sides.
        if not all(f"{layer}.weight" in shapes for layer in layers):
            continue
        count = counted_noun(len(norms), "batch norm")
        shown = f"{show(norms[0], 80)}, {show(biases[0], 80)}"
        if is_saved:
            text = (
                f"The file has {count}, and the model has a bias in as many layers "
                f"instead ({shown}). Either its norms were folded into the layers "
                "before the load (fuse(), for inference): then load first, and fuse "
                "then. Or it was built with a norm that has no weights, as "
                "InstanceNorm, beside layers with a bias: then build it with batch "
                "norm (norm=batch)."
            )
            return Form(frozenset(biases), ours, text, ends=True)
        text = (
            f"The model has {count}, and the file has a bias in as many layers instead "
            f"({shown}): it was saved after its norms were folded into the layers "
            "(fuse(), for inference). Fuse the model before the load; to train, take "
            "the checkpoint from before it."
        )
        return Form(ours, frozenset(biases), text, ends=True)
    return None


def _norms_for_biases(
    missing: Sequence[str], here: Sequence[str], shapes: Mapping[str, Shape]
) -> Form | None:
    """Norms with weights in the file, where the model has biases in the layers beside
    them: its norm has no weights.
    """
    layers = [name.removesuffix("bias") for name in missing if name.endswith(".bias")]
    norms = {name.rpartition(".")[0] for name in here}
    leaves = {name.rpartition(".")[2] for name in here}
    is_alike = leaves == {"weight", "bias"} and len(here) == 2 * len(norms)
    if not is_alike or not layers or len(layers) != len(missing):
        return None
    if not len(norms) <= len(layers) <= 2 * len(norms):
        return None
    if not all(f"{layer}weight" in shapes for layer in layers):
        return None
    # The weight of a norm has one dimension, and that of a layer more.
    if not all(len(shapes.get(name, ())) == 1 for name in here):
        return None
    return Form(
        frozenset(missing),
        frozenset(here),
        f"The file has norms with weights ({counted_noun(len(norms), 'layer')}, "
        f"{show(min(norms, key=len), 80)}) and none of the biases that the model asks "
        f"for ({show(missing[0], 80)}). So the model was built with another norm: one "
        "without weights, as InstanceNorm, beside layers that have a bias. Build it "
        "with the norm of the run that saved (norm=batch).",
        ends=True,
    )


def _norms_of(names: Sequence[str]) -> list[str]:
    """The modules that have running statistics among some names."""
    given = set(names)
    return [
        name.rpartition(".")[0]
        for name in names
        if name.endswith(f".{STATISTICS[0]}")
        and f"{name.rpartition('.')[0]}.{STATISTICS[1]}" in given
    ]


# --- PEFT -----------------------------------------------------------------------------

_OF_LORA = re.compile(r"\.lora_(?:[AB]|embedding_[AB]|magnitude_vector)(?:\.|$)")


def _layers_of_peft(
    missing: Sequence[str], here: Sequence[str], shapes: Mapping[str, Shape]
) -> Form | None:
    """A model that was saved, or built, with the layers of an adapter around its
    own.
    """
    wanted = set(missing)
    if is_adapted(here) and not is_adapted(missing):
        return _saved_with_peft(wanted, here, shapes)
    if not is_adapted(missing) or is_adapted(here):
        return None
    if not any(".base_layer." in name for name in missing):
        return None
    # Every tensor that LoRA wraps must be in the file under its plain name.
    bare = {name: base_name(name) for name in missing if not _OF_LORA.search(name)}
    layers = adapted_layers(missing)
    given = set(here)
    if not layers or not all(name in given for name in bare.values()):
        return None
    return Form(
        frozenset(missing),
        frozenset(bare.values()),
        f"The model has the layers of LoRA around {counted_noun(len(layers), 'layer')} "
        f"of its own ({show(layers[0], 100)}), and the file is of the model without "
        "them: get_peft_model was called before the load. Load first, and add the "
        "adapter then.",
        ends=True,
    )


def _saved_with_peft(
    wanted: set[str], here: Sequence[str], shapes: Mapping[str, Shape]
) -> Form | None:
    """A whole model of PEFT, with its base and its adapter."""
    adapter = [name for name in here if _OF_LORA.search(name)]
    bases = [name for name in here if ".base_layer." in name]
    if not adapter or not bases:
        return None
    # sentence-transformers and others wrap a part of their model: 0.auto_model. stands
    # before base_model.model. then.
    outer = here[0].partition(_PEFT)[0] if _PEFT in here[0] else ""
    if not all(name.startswith(outer) for name in here):
        return None
    held = set(adapter)
    bare = {
        outer + base_name(name.removeprefix(outer)) for name in here if name not in held
    }
    if not wanted <= bare:
        return None
    layers = adapted_layers(here)
    # Index 0 of the shape of lora_A is the rank.
    ranks = {
        shapes[name][0] for name in adapter if ".lora_A." in name and shapes.get(name)
    }
    rank = f" (r is {min(ranks)} here)" if len(ranks) == 1 else ""
    are_there = (
        f"all {len(wanted):,} missing keys are there"
        if len(wanted) > 1
        else "the missing key is there"
    )
    back = (
        f", without {show(outer, 60)}, which ckpt rename --sub 's/^/{outer}/' puts back"
        if outer
        else ""
    )
    return Form(
        frozenset(wanted),
        frozenset(here),
        f"The file is a whole model of PEFT that was not merged: {are_there} with what "
        "PEFT puts into names (base_model.model., base_layer), and LoRA in "
        f"{counted_noun(len(layers), 'layer')} ({show(layers[0], 100)}). ckpt merge "
        "with this file alone adds the adapter to the weights, and writes them by the "
        f"names of the model{back}; --scale is lora_alpha / r of the training{rank}. "
        "The base without the adapter is not the model that was trained.",
        ends=True,
    )


_PEFT = "base_model.model."


# --- the letters of Flax --------------------------------------------------------------

_LETTERS = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def _letters_of_flax(missing: Sequence[str], here: Sequence[str]) -> Form | None:
    """Tell of names that end with the words of Flax."""
    wanted = set(missing)
    found: dict[str, str] = {}
    for name in here:
        module, _, leaf = name.rpartition(".")
        new = f"{module}.{_LETTERS.get(leaf, leaf)}"
        if new in wanted:
            found[name] = new
    kernels = [name for name in found if name.rpartition(".")[2] == "kernel"]
    # Words such as scale are in many libraries: kernel speaks for Flax and TensorFlow.
    if not kernels or len(found) != len(here):
        return None
    words = dict.fromkeys(name.rpartition(".")[2] for name in found)
    old = [word for word in words if word in _LETTERS]
    return Form(
        frozenset(found.values()),
        frozenset(found),
        f"{counted_noun(len(found), 'key')} of the file are the missing ones in the "
        f"words of Flax and TensorFlow ({and_more(old, 3)} for weight; "
        f"{show(kernels[0], 100)}). A kernel is the transpose of a weight: [in, out] "
        "for a linear layer, [height, width, in, out] for a convolution. So a rename "
        "alone would load wrong values where both sizes are equal: convert it with its "
        "library (from_flax=True or from_tf=True in transformers 4).",
        ends=True,
    )

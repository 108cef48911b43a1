"""Names that a program or a hand has changed: cut, mistyped, flattened for an average,
or shortened to a module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ckpt.bytes.far import is_url
from ckpt.evidence.adapters import piece_of
from ckpt.evidence.dialects import LEAVES
from ckpt.evidence.loading import string_literal
from ckpt.evidence.pretrained import merged_parts
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Message
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, show

_MOST_COMPARED = 20_000
"""Pairs of words that are compared letter by letter."""
_LEAST_LETTERS = 6
_AVERAGED = "ema_"
"""The prefix that mmdet and mmcv give to averages, whose names have underscores in
place of dots.
"""

ADDED = re.compile(
    r"\.(?:modules_to_save\.[^.]+|base_layer)(?=\.)|(?<=lora_[AB])\.[^.]+(?=\.weight$)"
    r"|(?<=lora_embedding_[AB])\.[^.]+$|(?<=lora_magnitude_vector)\.[^.]+(?=\.|$)"
)
"""Parts that PEFT puts into the names of a model, and leaves out of the file of an
adapter.
"""


def cut_names(unexpected: Sequence[str], names: Collection[str]) -> int:
    """Count the letters that a program has cut off the beginning of every name of a
    file, or return 0.

    A cut between the parts of a name is none of these: a prefix was there.
    """
    longest = max(unexpected, key=len, default="")
    if not longest:
        return 0
    # The longest key fits the fewest names, so it leaves few counts to try.
    counts = {len(name) - len(longest) for name in names if name.endswith(longest)} - {
        0
    }
    for count in sorted(counts):
        whole: dict[str, list[str]] = {}
        for name in names:
            whole.setdefault(name[count:], []).append(name)
        # A cut at a dot took a whole prefix off, which other answers strip.
        if all(short in whole for short in unexpected) and any(
            name[count - 1 : count] != "."
            for short in unexpected
            for name in whole[short]
        ):
            return count
    return 0


def cut_statement(
    count: int, missing: Sequence[str], names: Collection[str], case: Case
) -> Statement:
    """Say that a program cuts names that have no prefix."""
    prefix = next(
        (
            word
            for word in ("module.", "_orig_mod.", "model.", "net.")
            if len(word) == count
        ),
        None,
    )
    cut = f"the first {counted_noun(count, 'letter')}"
    reason = f", as if each began with {prefix!r}" if prefix is not None else ""
    # The missing keys prove it: the model asks for the names as the file has them.
    met = sum(name in names for name in missing)
    text = (
        f"Each unexpected key is a name of this file without {cut}: the program cuts "
        f"them off{reason}. The names of this file have no such prefix: load them as "
        "they are."
    )
    if missing and met == len(missing):
        text += " All missing keys are among them."
    load = case.survey.load.expression
    return Statement(
        text, (), None if load is None else f"model.load_state_dict({load})"
    )


class Spelled(NamedTuple):
    """Names of a model -> the same names in a file, where one word is spelled in
    another way; and the rules of `rename`.
    """

    partners: Mapping[str, str]
    rules: tuple[str, ...]


def find_misspelled(
    absent: Sequence[str], here: Sequence[str], names: Collection[str]
) -> Spelled:
    """Find missing keys that differ from an unexpected one by some letters of
    one word.
    """
    words: dict[str, str] = {}
    partners: dict[str, str] = {}
    shapes: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    # A key is filed once per word, with that word left out, so names that differ in one
    # word meet.
    for name in here:
        parts = name.split(".")
        for index in range(len(parts)):
            shapes.setdefault(
                (index, (*parts[:index], "", *parts[index + 1 :])), []
            ).append(name)
    left = _MOST_COMPARED
    for name in absent:
        parts = name.split(".")
        found: list[tuple[str, str, str]] = []
        for index, word in enumerate(parts):
            for other in shapes.get(
                (index, (*parts[:index], "", *parts[index + 1 :])), ()
            ):
                # Names of one form are compared pair by pair, so a hostile file would
                # take quadratic time.
                left -= 1
                if left < 0:
                    return Spelled({}, ())
                there = other.split(".")[index]
                if _are_alike(word, there):
                    found.append((other, there, word))
        # Two candidates are a guess, and no pair is made of them.
        if len(found) == 1:
            other, there, word = found[0]
            # A word with two spellings in the model could not be renamed by one rule.
            if words.setdefault(there, word) == word:
                partners[name] = other
    changed = set(partners.values())
    rules = tuple(
        rf"s/(^|\.){re.escape(old)}(?=\.|$)/\g<1>{new}/g"
        for old, new in words.items()
        # A rule changes every name with the word, so it may be in no name that is right
        # already.
        if all(name in changed for name in names if old in name.split("."))
        and re.fullmatch(r"\w{1,200}", old)
        and re.fullmatch(r"\w{1,200}", new)
    )
    return Spelled(partners, rules if len(rules) == len(words) else ())


def _are_alike(one: str, other: str) -> bool:
    """Tell whether two words are two spellings of one: a letter is missing or two have
    changed places.

    Another letter in the same place is no mistake: encoder and decoder, weight_ih and
    weight_hh.
    """
    if (
        min(len(one), len(other)) < _LEAST_LETTERS
        or max(len(one), len(other)) > _LONGEST
    ):
        return False
    # Other numbers are other layers, and no mistake.
    if re.findall(r"\d+", one) != re.findall(r"\d+", other):
        return False
    # The spellings `batchNorm` and `batch_norm` are one word.
    if one.lower().replace("_", "") == other.lower().replace("_", ""):
        return True
    pairs = enumerate(zip(one, other, strict=False))
    start = next(
        (index for index, (ours, theirs) in pairs if ours != theirs),
        min(len(one), len(other)),
    )
    if not start or abs(len(one) - len(other)) > 1:
        return False
    # Two neighbours that have changed places: `bacbkone` and `backbone`.
    if len(one) == len(other):
        return (
            one[start : start + 2] == other[start : start + 2][::-1]
            and one[start + 2 :] == other[start + 2 :]
        )
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    # One letter is missing: `backbon` and `backbone`.
    return longer[start + 1 :] == shorter[start:] and longer[start].isalpha()


_LONGEST = 100
"""Letters of a word that is compared."""


def spelled_statement(found: Spelled, missing: int, case: Case) -> Statement:
    """Say which keys are spelled in another way, with the command that gives them the
    names of the model.
    """
    pairs = [
        f"{show(old, 120)} for {show(new, 120)}" for new, old in found.partners.items()
    ]
    text = (
        (
            f"{len(found.partners):,} of the {counted_noun(missing, 'missing key')} "
            f"{be_verb(list(found.partners))} there"
        )
        if missing > 1
        else "The missing key is there"
    )
    text += f" in another spelling: {and_more(pairs, 2)}."
    way = case.plan(
        ("rename", *(word for rule in found.rules for word in ("--sub", rule)))
    )
    return Statement(text, (), way.command if found.rules else None)


def averaged_keys(rest: Sequence[str], names: Collection[str]) -> list[str]:
    """The keys that are averages of the weights of a file, in the names of mmdet:
    `ema_backbone_conv1_weight`.
    """
    flat = {_AVERAGED + name.replace(".", "_") for name in names}
    return [name for name in rest if name in flat]


def averages_statement(found: Sequence[str]) -> Statement:
    """Say what keys of averages are for."""
    return Statement(
        f"{counted_noun(len(found), 'key')} of this file {be_verb(found)} running "
        f"averages of its weights ({_AVERAGED}…, of the EMA hook of mmcv and mmdet). A "
        "model without that hook has no place for them and loses nothing else: the "
        "load has the weights, and not their averages. A run that goes on with the "
        "hook gives this file to the hook, too: its option resume_from "
        "(custom_hooks.N.resume_from, N being its place in that list)."
    )


def of_modules(unexpected: Sequence[str], names: Collection[str]) -> list[str]:
    """The keys of an error, with the keys below a module in the place of its name, as
    vLLM gives it.
    """
    below: dict[str, list[str]] = {name: [] for name in unexpected if name not in names}
    for other in names if below else ():
        end = other.find(".")
        # Each beginning of a name up to a dot is a module that vLLM may name.
        while end >= 0:
            if other[:end] in below:
                below[other[:end]].append(other)
            end = other.find(".", end + 1)
    return [each for name in unexpected for each in below.get(name) or [name]]


def with_leaves(missing: Sequence[str], names: Collection[str]) -> list[str]:
    """The keys of an error, with the keys below a module in the place of its name,
    where the file has them behind one beginning.
    """
    modules, whole = _parts_named(frozenset(missing), names)
    found: list[str] = []
    for name in missing:
        below = modules.get(name, {})
        begins = {begin for begin, _ in below.values()}
        # Several beginnings are several modules, and none is the one that is meant.
        if len(begins) == 1 and name not in whole:
            found += [f"{name}.{leaf}" for _, leaf in below.values()]
        else:
            found.append(name)
    return found


def _parts_named(
    wanted: Collection[str], names: Collection[str]
) -> tuple[dict[str, dict[str, tuple[str, str]]], set[str]]:
    """The wanted names that are modules -> the names of a file below each, with what
    stands before and behind the module; and the wanted names that end a name.
    """
    modules: dict[str, dict[str, tuple[str, str]]] = {}
    whole: set[str] = set()
    # Only parts as long as a wanted name are made: a name of many steps has many parts.
    lengths = sorted({len(name) for name in wanted})
    for other in names:
        stops = {place for place, letter in enumerate(other) if letter == "."}
        for start in (0, *(stop + 1 for stop in sorted(stops))):
            for length in lengths:
                stop = start + length
                part = other[start:stop]
                if part not in wanted:
                    continue
                if stop == len(other):
                    whole.add(part)
                # A module with one word in its name may be any.
                elif stop in stops and "." in part:
                    place = (other[:start], other[stop + 1 :])
                    modules.setdefault(part, {}).setdefault(other, place)
    return modules, whole


def adapter_rank(message: Message, case: Case) -> Iterator[Statement]:
    """Say that an adapter has another rank than the model was built for, and what its
    config says.
    """
    ranks = {
        (row.checkpoint[axis], row.model[axis])
        for row in message.mismatched
        # The rank is the first size of lora_A and the second one of lora_B.
        for axis, part in ((0, ".lora_A."), (1, ".lora_B."))
        if part in row.name and len(row.checkpoint) > axis < len(row.model)
    }
    is_adapter = all(
        ".lora_A." in row.name or ".lora_B." in row.name for row in message.mismatched
    )
    # The other size is that of the base layer.
    others = {
        (row.checkpoint[1 - axis : 2 - axis], row.model[1 - axis : 2 - axis])
        for row in message.mismatched
        for axis, part in ((0, ".lora_A."), (1, ".lora_B."))
        if part in row.name and len(row.checkpoint) == len(row.model) == 2
    }
    if (
        not is_adapter
        or len(ranks) != 1
        or any(here != there for here, there in others)
    ):
        yield from _other_base(message, case)
        return
    ((here, there),) = ranks
    if here == there or not here:
        return
    # The message has the sizes of the file that was loaded, and the file that is named
    # may be another one, as the base.
    entries = case.survey.tensors
    held = {
        entry.tensor.shape[0]
        for entry in entries
        if ".lora_A." in entry.name and entry.tensor.shape
    }
    is_adapter = any(piece_of(entry.name) is not None for entry in entries)
    if not is_adapter or (held and here not in held):
        shown = and_more([f"{rank:,}" for rank in sorted(held)], 3)
        other = f"has an adapter of rank {shown}" if held else "holds no adapter"
        yield Statement(
            f"The adapter that was loaded has rank {here}, and the model was built for "
            f"an adapter of rank {there}. This file {other}: name the one that was "
            "loaded."
        )
        return
    text = (
        f"The adapter of this file has rank {here} (r), and the model was built for an "
        f"adapter of rank {there}."
    )
    said = [node for name, node in case.finds_value(("r",)) if isinstance(node, int)]
    if said and here not in said:
        text += (
            f" adapter_config.json says r = {said[0]}: it belongs to another adapter. "
            f"Set r to {here} there, or take the config that was saved with it."
        )
    elif said:
        text += (
            f" adapter_config.json says r = {here} too: let PeftModel.from_pretrained "
            "build the adapter from it, in place of a LoraConfig of your own."
        )
    else:
        text += f" Build it with r = {here}."
    yield Statement(text)


def _other_base(message: Message, case: Case) -> Iterator[Statement]:
    """Say that an adapter was trained on a base model of another size, where nothing
    but the sizes of its base differ.
    """
    inner: set[tuple[int, int]] = set()
    outer: set[tuple[int, int]] = set()
    for row in message.mismatched:
        is_a = ".lora_A." in row.name
        if not (is_a or ".lora_B." in row.name):
            return
        if not len(row.checkpoint) == len(row.model) == 2:
            return
        rank, side = (0, 1) if is_a else (1, 0)
        if row.checkpoint[rank] != row.model[rank]:
            return
        sizes = row.checkpoint[side], row.model[side]
        (inner if is_a else outer).add(sizes)
    if not inner and not outer:
        return
    words = []
    for pairs, what in ((inner, "inputs"), (outer, "outputs")):
        shown = [f"{here:,} {what}, and not {there:,}" for here, there in sorted(pairs)]
        words += [and_more(shown, 3)] if shown else []
    text = (
        "The rank of the adapter is that of the model, and its layers are those of "
        f"another base model: they are for layers with {' and '.join(words)}. Load "
        "the base model that the adapter was trained on, or an adapter of this one."
    )
    named = [str(node) for _, node in case.finds_value(("base_model_name_or_path",))]
    if named:
        text += (
            f" adapter_config.json names {show(named[0], 120)}: where that is the one "
            "that was loaded, weights and config are of two adapters."
        )
    yield Statement(text)


def merged_layers(
    message: Message, shapes: Mapping[str, tuple[int, ...]], case: Case
) -> Iterator[Statement]:
    """Say that an adapter has the merged layers of PEFT 0.2, whose lora_B is a grouped
    convolution and whose lora_A is stacked.
    """
    parts = merged_parts(shapes)
    plain = [
        row
        for row in message.mismatched
        if ".lora_B." in row.name and len(row.model) == 2
    ]
    if not parts or not plain:
        return
    said = [node for name, node in case.finds_value(("r",)) if isinstance(node, int)]
    rows = sorted({shapes[name][0] for name in parts.values()})
    stacked = (
        f" r is {said[0]} in adapter_config.json, and lora_A has {rows[0]} rows: the "
        f"layers of {rows[0] // said[0]} projections, one behind the other."
    )
    # The rows say how many projections are stacked only where r divides them.
    is_stacked = (
        len(rows) == 1
        and len(said) == 1
        and said[0] > 0
        and rows[0] % said[0] == 0
        and rows[0] > said[0]
    )
    yield Statement(
        f"{counted_noun(len(parts), 'tensor')} lora_B of this adapter "
        f"{'has' if len(parts) == 1 else 'have'} three axes beside a lora_A of two: "
        f"the merged layers of PEFT 0.2 (enable_lora).{stacked if is_stacked else ''} "
        "PEFT 0.3 and newer have no such layer, so no value of r fits. Load it with "
        "peft 0.2.0, or train the adapter anew."
    )


_LORA = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)\b")


def not_trained(absent: Sequence[str], shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether all that lacks are layers of LoRA, and the file is an adapter."""
    return all(_LORA.search(name) for name in absent) and any(
        _LORA.search(name) for name in shapes
    )


def not_trained_statement(
    absent: Sequence[str], shapes: dict[str, tuple[int, ...]], message: Message
) -> Statement:
    """Say that an adapter has no layers at places where PEFT built some."""
    here = {_LORA.split(name)[0] for name in shapes if _LORA.search(name)}
    there = list(dict.fromkeys(_LORA.split(name)[0] for name in absent))
    return Statement(
        f"The adapter has {counted_noun(len(here), 'layer')} of LoRA, and none at "
        f"{and_more([show(name, 120) for name in there], 4)}. PEFT builds layers where "
        "target_modules of adapter_config.json match, and that is at more places than "
        f"the run that saved had trained. {_after_not_trained(message)}"
    )


def _after_not_trained(message: Message) -> str:
    """The consequence of layers of LoRA that a file lacks: FSDP stops at the first one,
    and other loaders go on without them.
    """
    if "FSDP assumes " in message.text:
        return (
            "FSDP takes no state dict that lacks a key of its model: build the model "
            "with the target_modules, and with the depth, of that run."
        )
    return (
        "The new ones begin without effect (lora_B is zero), so the adapter loads as "
        "it was trained. Narrow target_modules to be rid of the warning."
    )


def is_adapter(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether a file is an adapter of PEFT alone, without the layers that it
    changes.
    """
    layers = [name for name in shapes if _LORA.search(name)]
    return 2 * len(layers) >= len(shapes) > 0 and not any(
        ".base_layer." in name for name in shapes
    )


def trained_adapter(
    rest: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> Statement | None:
    """Say that a file has the base and its trained layers of LoRA, and that a model
    takes the base alone, or return None.
    """
    has_base = any(".base_layer." in name for name in shapes)
    layers = [name for name in rest if _LORA.search(name)]
    others = [name for name in rest if name not in layers]
    if not layers or not has_base or not all(".base_layer." in row for row in others):
        return None
    # A PeftModel puts base_model.model. around the model that it gets.
    way = "get_peft_model" if "base_model.model." in layers[0] else "add_adapter"
    return Statement(
        f"{counted_noun(len(layers), 'key')} without a place are layers of LoRA "
        f"({show(layers[0], 120)}), and these are what the run trained: it saved a "
        "model that PEFT had wrapped, and this model is not wrapped. Wrap the same "
        f"part of it before the load, as the run did ({way} with the same config): "
        "then the file loads as it is. With other names alone the base loads without "
        "its training."
    )


_NEW = re.compile(r"were not initialized from the model checkpoint at (\S{1,1000})")
"""The words of transformers, with the model whose file lacks the keys."""


def _beside_adapter(base: Sequence[str], case: Case) -> Statement | None:
    """Say that another file of the folder of an adapter has the missing keys, or return
    None.
    """
    path = case.survey.path
    if not base or is_url(path) or not os.path.isdir(path):
        return None
    read = set(case.survey.checkpoint.parts)
    for file in sorted(os.listdir(path)):
        if file in read or not file.endswith((".bin", ".pt", ".safetensors")):
            continue
        names = case.names_in(os.path.join(path, file))
        # PEFT puts two words before the names of the model.
        ends = {end for name in names for end in _ends_of(name)}
        if names and ends.issuperset(base):
            return Statement(
                f"{and_more([show(key, 80) for key in base], 4)} {be_verb(base)} in "
                f"{show(file, 80)} of this folder: parts that the training trained "
                "whole, beside the adapter. The base model lacks them, so they stay "
                "random until that file is loaded, too. PeftModel does not read it: "
                "load this folder with the program that trained it, and give it the "
                "base model as such (LLaVA: --model-path this folder, whose name has "
                "lora and llava in it, and --model-base), or load the file yourself:",
                (),
                _line_of_parts(os.path.join(path, file), base, names),
            )
    return None


def _ends_of(name: str) -> Iterator[str]:
    """Yield a name, and what is left of it behind each of its dots."""
    while name:
        yield name
        name = name.partition(".")[2]


def _line_of_parts(path: str, base: Sequence[str], names: Collection[str]) -> str:
    """The line that loads the tensors of a file under the names of a model."""
    ends = (name.removesuffix(base[0]) for name in names if name.endswith(base[0]))
    begin = min(ends, key=len)
    load = f'torch.load({string_literal(path)}, map_location="cpu")'
    if path.endswith(".safetensors"):
        load = f"safetensors.torch.load_file({string_literal(path)})"
    return (
        "model.load_state_dict({name.removeprefix("
        f"{string_literal(begin)}): value for name, value in {load}.items()}}, "
        "strict=False)"
    )


def base_of_adapter(
    absent: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    case: Case,
    text: str = "",
) -> Iterator[Statement]:
    """Say that an adapter has no weights of its base model, and whether its own found
    their places.
    """
    # Names such as `lora_down.weight` are of other trainers than PEFT.
    foreign = [name for name in absent if _OTHER_LORA.search(name)]
    if foreign and len(foreign) == len(absent):
        yield Statement(
            f"The program asks for layers of LoRA in names of its own "
            f"({show(foreign[0], 100)}), and this adapter has those of another trainer "
            f"({show(next(iter(shapes)), 120)}). None of it was loaded. Load it with a "
            "loader of its own kind, as the usual one for LoRA of that program, or "
            "take an adapter that was made for this one: the layers are other ones, "
            "and no rename makes one of the other."
        )
        return
    others = [name for name in absent if _LORA.search(name)]
    base = [name for name in absent if not _LORA.search(name)]
    beside = _beside_adapter(base, case)
    if beside is not None:
        yield beside
        return
    if base and (named := _NEW.search(text)) is not None:
        yield Statement(
            f"The message is about {show(named[1], 120)}, and not about this adapter: "
            f"{counted_noun(len(base), 'key')} of the class {be_verb(base)} not there, "
            "and this adapter has none of them either. So they are random. They come "
            "from another file: one that the training wrote beside the adapter for "
            "parts that it trained whole, or the checkpoint from which it began.",
            tuple(base),
        )
    elif base:
        yield Statement(
            f"{counted_noun(len(base), 'missing key')} {be_verb(base)} of the base "
            "model. The file of an adapter has none of its weights: expected, for they "
            "stay as the base model was loaded.",
        )
    layers = {_LORA.split(name)[0] for name in shapes if _LORA.search(name)}
    same = [name for name in others if _LORA.split(name)[0] in layers]
    if same:
        yield Statement(
            f"{counted_noun(len(same), 'missing key')} {be_verb(same)} of an adapter "
            "at layers that this file has: the load gave this file to an adapter of "
            "another name, and that one is complete, or it gave no tensor of it to the "
            "model.",
            tuple(same),
        )
    elif not others:
        yield Statement(
            "The message names no unexpected key and no missing key of the adapter: "
            "all of this file has its place."
        )
    if case.survey.load.model is not None:
        yield Statement(
            "PEFT loads it so, without such a list:", (), case.survey.load.model
        )


_OTHER_LORA = re.compile(
    r"lora(?![._](?:A|B|embedding|magnitude))\w{0,20}\.(?:up|down|weight)|loras?\.\d"
)
"""Names of layers of LoRA that PEFT does not give."""

_FLAT = re.compile(r"((?:.+\.)?)(weight|bias)_(ih|hh)_(l\d{1,4}(?:_reverse)?)")
"""The name of a weight of nn.RNN, nn.LSTM or nn.GRU, which cuDNN keeps in one
memory.
"""


def lost_of_recurrent(names: Collection[str], case: Case) -> dict[str, str]:
    """The weights that a recurrent layer must have beside one that is there: the name
    that lacks -> the one that is there.

    A save as a pickle keeps all names of one memory, and loses none.
    """
    lost: dict[str, str] = {}
    if case.survey.checkpoint.traits.is_pickle:
        return lost
    for name in names:
        found = _FLAT.fullmatch(name)
        if found is None:
            continue
        # A layer with bias=False has no bias, so weights alone ask for none.
        kinds = ("weight",) if found[2] == "weight" else ("weight", "bias")
        for kind in kinds:
            for side in ("ih", "hh"):
                other = f"{found[1]}{kind}_{side}_{found[4]}"
                if other not in names:
                    lost[other] = name
    return lost


def recurrent_statement(lost: Mapping[str, str]) -> Statement:
    """Say that a save kept one name of the memory of a recurrent layer, and lost the
    other weights.
    """
    held = list(dict.fromkeys(lost.values()))
    return Statement(
        "A recurrent layer (nn.GRU, nn.LSTM, nn.RNN) keeps its weights in one memory "
        f"on a GPU. The save kept {and_more([show(name, 120) for name in held], 3)} of "
        "it and left the others out: their values are not in this file "
        f"({and_more([show(name, 120) for name in lost], 3)}). Take another save, or "
        "train these layers anew. For the next save, clone them (value.clone() for "
        "each value of the state dict), or write no safetensors "
        "(safe_serialization=False in accelerate)."
    )


def older_leaves(rest: Sequence[str], shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """The keys without a place that have the old names of the leaves of a norm: gamma
    and beta beside one another.
    """
    found = []
    for name in rest:
        layer, _, leaf = name.rpartition(".")
        pair = {old: f"{layer}.{old}" in shapes for old, _ in LEAVES}
        if (
            leaf in pair
            and all(pair.values())
            # A module with both spellings is no norm in its old form.
            and not any(f"{layer}.{new}" in shapes for _, new in LEAVES)
        ):
            found.append(name)
    return found


def older_leaves_statement(older: Sequence[str], case: Case) -> Statement:
    """Say that a file has the old spelling of norms, with the command that gives it the
    new one.
    """
    olds = [old for old, _ in LEAVES]
    count = sum(entry.name.rpartition(".")[2] in olds for entry in case.survey.tensors)
    text = (
        f"{show(older[0], 120)} is a norm in its old spelling, of TensorFlow: gamma is "
        f"weight, and beta is bias, and {counted_noun(count, 'tensor')} of this file "
        f"{'has' if count == 1 else 'have'} it. from_pretrained of transformers takes "
        "both; other programs take the new one."
    )
    rules = [word for old, new in LEAVES for word in ("--sub", rf"s/\.{old}$/.{new}/")]
    way = case.plan(("rename", *rules))
    place = (
        ", to be put in the place of the weights of this folder"
        if case.is_folder
        else ""
    )
    return Statement(
        f"{text} In the new one{place}:" if way.command is not None else text,
        (),
        way.command,
    )

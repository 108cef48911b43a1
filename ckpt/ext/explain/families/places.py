"""Names of one place in two models: a word with its number and one without, layers in
one order under other numbers, and norms of two kinds.

The shapes of the model are unknown here. So a pair needs the same last words in the
same place, and a command is printed only where its substitutions, one after the other,
give each tensor of the file the name that it is paired with, and no two of them one
name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from ckpt.ext.explain.case import STATISTICS, Case, Statement
from ckpt.ext.explain.families.layers import renumbered_blocks
from ckpt.ext.explain.families.renaming import MOST_RULES, give_names, rename_line
from ckpt.ext.explain.message import Message
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, be_verb, counted_noun, show


class Placed(NamedTuple):
    """Names of a model -> the names of the same tensors in a file, and the
    substitutions of `rename` that give them; none where no list gives all.
    """

    partners: Mapping[str, str]
    rules: tuple[str, ...]
    words: Mapping[str, str] = {}
    """Words of the file -> words of the model, with <n> for a number."""


# --- a word with its number -----------------------------------------------------------


def find_numbered_words(
    absent: Sequence[str], here: Sequence[str], names: Collection[str]
) -> Placed:
    """Find missing keys that differ from an unexpected one by one word, which is the
    same word but for the number of its layer: `conv_0` in `module_list.0`, and Conv2d.

    Empty where it does not explain every missing key.
    """
    places: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name in here:
        for place, word in _places_of(name):
            places.setdefault(place, []).append((name, word))
    partners: dict[str, str] = {}
    words: dict[str, str] = {}
    for name in absent:
        found = {
            other: (theirs, word)
            for place, word in _places_of(name)
            for other, theirs in places.get(place, ())
            if theirs != word
        }
        # Two candidates are a guess, and a guess for one key spoils the rules for all.
        if len(found) != 1:
            return Placed({}, ())
        ((other, (theirs, word)),) = found.items()
        partners[name] = other
        words[_without_number(theirs, other)] = word
    # Two keys of the model cannot take one tensor.
    if len(set(partners.values())) < len(partners):
        return Placed({}, ())
    rules = tuple(
        # One substitution stands for all numbers of a word.
        rf"s/(^|\.){re.escape(old).replace('<n>', '[0-9]+')}(?=\.|$)/\g<1>{new}/g"
        for old, new in words.items()
    )
    return Placed(partners, checked_rules(rules, partners, names), words)


def _places_of(name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each place of a name with the stem of its word in it, and the word."""
    parts = name.split(".")
    # The last word is the kind of a tensor: weight is no bias.
    for index, word in enumerate(parts[:-1]):
        stem = _stem(_without_number(word, name))
        if stem:
            yield (*parts[:index], f"<{stem}>", *parts[index + 1 :]), word


def _without_number(word: str, name: str) -> str:
    """The word with <n> for a number at its end that is a part of the name, too."""
    found = re.fullmatch(r"(\D{1,100})(\d{1,6})", word)
    if found is None or found[2] not in name.split("."):
        return word
    return f"{found[1]}<n>"


def _stem(word: str) -> str:
    """The letters of a word, without the number of its dimensions (`Conv2d`, `conv`),
    or an empty text for a word with other numbers.
    """
    bare = re.sub(r"(?<=[A-Za-z])[123]d$", "", word.removesuffix("<n>"))
    letters = bare.replace("_", "").lower()
    return letters if letters.isalpha() and len(letters) >= _LEAST_LETTERS else ""


_LEAST_LETTERS = 3


def numbered_statement(found: Placed, missing: int, case: Case) -> Statement:
    """Say which words differ, with the command that gives the names of the model."""
    pairs = [f"{show(new, 60)} for {show(old, 60)}" for old, new in found.words.items()]
    text = (
        f"{len(found.partners):,} of the {counted_noun(missing, 'missing key')} "
        f"{be_verb(list(found.partners))} there in the same places, by another word: "
        f"the model has {and_more(pairs, 4)}."
    )
    return Statement(text, (), rename_line(found.rules, case))


def checked_rules(
    rules: Sequence[str], partners: Mapping[str, str], names: Collection[str]
) -> tuple[str, ...]:
    """Return the rules where they give all names of a file these partners and leave the
    others as they are, and none where they do not.
    """
    if not 0 < len(rules) <= MOST_RULES:
        return ()
    wanted = {old: new for new, old in partners.items()}
    # torch lists no counter as missing where the module has another name.
    for new, old in partners.items():
        if new.endswith(".running_mean") and old.endswith(".running_mean"):
            beside = f"{old.rpartition('.')[0]}.{_COUNTER}"
            wanted.setdefault(beside, f"{new.rpartition('.')[0]}.{_COUNTER}")
    given = give_names(rules, wanted, names, others_stay=True)
    return tuple(rules) if given else ()


_COUNTER = "num_batches_tracked"


# --- the same layers in one order -----------------------------------------------------


def find_in_order(
    absent: Sequence[str],
    rest: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    message: Message,
) -> Placed:
    """Pair the layers of lists that a model numbers otherwise, in their order.

    Each list must have as many layers in both, with the same tensors in each. Empty
    where a layer speaks against it: a norm in the place of a matrix, or a shape of
    the message.
    """
    sizes = {row.name: row.model for row in message.mismatched}
    partners: dict[str, str] = {}
    rules: list[str] = []
    for block in renumbered_blocks(absent, rest):
        begin = f"{block}."
        ours = [name for name in shapes if name.startswith(begin)]
        lost = set(rest)
        theirs = [name for name in ours if name not in lost]
        theirs += [name for name in absent if name.startswith(begin)]
        pairs = list(_pair_layers(ours, theirs))
        if not pairs:
            return Placed({}, ())
        for old, new, leaves in pairs:
            for leaf in leaves:
                name, partner = f"{new}.{leaf}", f"{old}.{leaf}"
                # The message has the shape of the model only where it differs.
                if sizes.get(name, shapes[partner]) != shapes[partner]:
                    return Placed({}, ())
                # The weight of a norm has one axis: a matrix is another layer.
                if leaf == "weight" and _is_norm(new) and len(shapes[partner]) != 1:
                    return Placed({}, ())
                partners[name] = partner
            if old != new:
                # The counter moves with its norm, although no list of keys names it.
                if "running_mean" in leaves:
                    leaves = [*leaves, _COUNTER]
                rules.append(
                    rf"s/^{re.escape(old)}\.(?=(?:{'|'.join(leaves)})$)/{new}./"
                )
    return Placed(partners, checked_rules(rules, partners, list(shapes)))


def _pair_layers(
    ours: Sequence[str], theirs: Sequence[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the modules of a file and of a model one by one in their order, with the
    last words of their tensors; nothing where the lists are unlike.
    """
    mine, other = _modules_of(ours), _modules_of(theirs)
    if [leaves for _, leaves in mine] != [leaves for _, leaves in other]:
        return
    for (old, leaves), (new, _) in zip(mine, other, strict=True):
        yield old, new, leaves


def _modules_of(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The modules of some tensors in the order of their numbers, each with the last
    words of its tensors.
    """
    modules: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf != _COUNTER:
            modules.setdefault(module, []).append(leaf)
    return [
        (module, sorted(leaves))
        for module, leaves in sorted(
            modules.items(), key=lambda row: _number_key(row[0])
        )
    ]


def _number_key(module: str) -> list[tuple[int, str]]:
    """The key by which 2 comes before 10, and a module before those inside of it."""
    return [
        (int(part[:18]), "") if part.isdecimal() else (-1, part)
        for part in module.split(".")
    ]


_NORM = re.compile(r"(?:^|[._])(?:\w{0,20}norm|ln|bn|gn)_?\d{0,3}$", re.IGNORECASE)


def _is_norm(module: str) -> bool:
    return _NORM.search(module) is not None


def order_statement(found: Placed, case: Case) -> Statement:
    """Say which layers stand in one order, with the command that renumbers them."""
    moved = dict.fromkeys(
        (old.rpartition(".")[0], new.rpartition(".")[0])
        for new, old in found.partners.items()
        if old != new
    )
    pairs = [f"{show(old, 60)} is {show(new, 60)}" for old, new in moved]
    text = (
        "In their order the layers of both are one for one, with the same tensors in "
        f"each: {and_more(pairs, 3)}. That is by their places alone. So load the "
        "result with strict=True, which compares the shapes, and then compare one "
        "output with the program that saved:"
    )
    return Statement(text, (), rename_line(found.rules, case))


# --- norms of two kinds ---------------------------------------------------------------


def other_norms(
    absent: Sequence[str], rest: Sequence[str], names: Collection[str]
) -> Statement | None:
    """Say that a model has norms with running statistics where a file has norms without
    them, or the other way round. Return None if something else lacks too.
    """
    asked, held = _leaves_of(absent), _leaves_of(rest)
    if not asked or not held:
        return None
    has_asked = [_has_statistics(leaves) for leaves in asked.values()]
    has_held = [_has_statistics(leaves) for leaves in held.values()]
    is_asked = all(has_asked) and not any(has_held)
    if not is_asked and not (all(has_held) and not any(has_asked)):
        return None
    # Norms at other places say that more than the norms differs.
    if _counts_by_parent(asked) != _counts_by_parent(held):
        return None
    here, there = show(next(iter(held)), 80), show(next(iter(asked)), 80)
    without, with_them = "without running statistics", "with them"
    sides = (without, with_them) if is_asked else ("with running statistics", "without")
    kinds = (
        "group or layer normalization, and the model has batch normalization"
        if is_asked
        else "batch normalization, and the model has group or layer normalization"
    )
    return Statement(
        f"Both lists are the norms of the same {counted_noun(len(held), 'layer')}: "
        f"the file has {here}, a norm {sides[0]}, and the model {there}, a norm "
        f"{sides[1]}. So the file has {kinds}. These are two models, and other names "
        "would not make them one: build the model with the norm of the file "
        "(norm_cfg in the programs of OpenMMLab, norm_layer in torchvision and timm)."
    )


def _leaves_of(names: Sequence[str]) -> dict[str, set[str]]:
    """The modules of some tensors, each with the last words; none where a tensor is not
    one of a norm.
    """
    found: dict[str, set[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        found.setdefault(module, set()).add(leaf)
    of_norms = {"weight", "bias", _COUNTER, *STATISTICS}
    is_right = all(
        module and {"weight", "bias"} <= leaves <= of_norms
        for module, leaves in found.items()
    )
    return found if is_right else {}


def _has_statistics(leaves: Collection[str]) -> bool:
    return all(word in leaves for word in STATISTICS)


def _counts_by_parent(modules: Collection[str]) -> dict[str, int]:
    """The number of modules directly below each module."""
    counts: dict[str, int] = {}
    for module in modules:
        parent = module.rpartition(".")[0]
        counts[parent] = counts.get(parent, 0) + 1
    return counts


# --- a model without parameters, and the name of an adapter ---------------------------


def nothing_built(
    rest: Sequence[str], names: Collection[str], message: Message
) -> Statement | None:
    """Say that a model had no layers when it was loaded: all keys of a file are left
    over, and none is missing.
    """
    # A model whose shapes differ has parameters.
    is_whole = "loading state_dict" in message.text and not message.mismatched
    if message.missing or not is_whole or set(rest) != set(names):
        return None
    return Statement(
        "Every key of the file is without a place, and the message names no missing "
        "key: so the model had no parameters at all when it was loaded. Its layers "
        "are made later, as in configure_model or setup of Lightning, or in the first "
        "forward. The file is whole: let the model make its layers, and load then."
    )


_OF_ADAPTER = re.compile(
    r"(?<=\.lora_[AB])((?:\.[^.]{1,200}){1,2})(?=\.weight$)"
    r"|(?<=\.lora_embedding_[AB])((?:\.[^.]{1,200}){1,2})$"
)


def adapter_statements(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a loader of adapters that lists layers of LoRA by the names of PEFT, which
    has the name of the adapter in them, and a file that may have it too.
    """
    names = [entry.name for entry in case.survey.tensors]
    bare = {_OF_ADAPTER.sub("", name): name for name in names}
    said = [name for name in message.unexpected if _OF_ADAPTER.search(name)]
    # A key of another kind, or a missing one, is more than the name of an adapter.
    if not said or len(said) < len(message.unexpected) or message.missing:
        return
    # A loader may have taken the part of a pipeline off: transformer., unet.
    ends = {*bare, *(name.partition(".")[2] for name in bare)}
    theirs = [_OF_ADAPTER.sub("", name) for name in said]
    met = [name for name in theirs if name in ends]
    if len(met) < len(theirs):
        return
    named = [name for name in names if _OF_ADAPTER.search(name)]
    if named:
        found = _OF_ADAPTER.search(named[0])
        word = "" if found is None else (found[1] or found[2]).strip(".")
        way = case.plan(
            ("rename", "--sub", r"s/(\.lora_(?:A|B))\.[^.]+\.weight$/\g<1>.weight/")
        )
        yield Statement(
            f"{counted_noun(len(named), 'name')} of this file {be_verb(named)} those "
            f"inside of a model: they have the name of the adapter ({show(word, 60)}) "
            "behind lora_A and lora_B. save_pretrained of PEFT leaves it out, and a "
            "loader puts its own in, so these have it twice. Without it:",
            (),
            way.command,
        )
        return
    layers = list(dict.fromkeys(_before_lora(name) for name in met))
    shown = and_more([show(layer, 100) for layer in layers], 3)
    yield Statement(
        f"{counted_noun(len(said), 'unexpected key')} {be_verb(said)} in this file, "
        "without the name of the adapter that PEFT puts in at the load. The file is "
        f"read rightly, and the model has no layer of LoRA at {shown}: it was given "
        "other target_modules than the training had, or it is another model."
    )


def _before_lora(name: str) -> str:
    return re.split(r"\.lora_", name, maxsplit=1)[0]

"""Errors about names and shapes: a file has other keys than a model."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isqrt

from ckpt.evidence.mapping import Match, match
from ckpt.evidence.pretrained import base_of_adapter as pretrained_base
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import AVERAGE_COUNTERS, unwrapped_name
from ckpt.ext.explain.case import (
    Answer,
    Case,
    Shapes,
    Statement,
    be_verb,
    finding_statements,
    looked_at,
)
from ckpt.ext.explain.families.architectures import (
    compare_depths,
    groups_statement,
    input_statements,
    kernel_statement,
    likely_pair,
    name_architectures,
    scaled_rows,
    shifted_statement,
    width_statement,
)
from ckpt.ext.explain.families.beginnings import (
    NOTHING_LOADED,
    each_beginning,
    load_into_statement,
    nothing_loaded,
    taken_part,
    whole_beginnings,
)
from ckpt.ext.explain.families.classes import (
    BASES,
    TYPES,
    another_class,
    of_another_class,
    task_of,
)
from ckpt.ext.explain.families.computed import (
    below_nothing,
    computed_buffers,
    computed_shapes,
    computed_statement,
    swin_downsample,
    tied_to_shared,
)
from ckpt.ext.explain.families.fairseq import NOT_BUILT, of_architecture
from ckpt.ext.explain.families.forms import Form, find_forms
from ckpt.ext.explain.families.graphs import graph_statement
from ckpt.ext.explain.families.layers import (
    left_over_buffers,
    measured_statement,
    norms_of_stages,
    one_size_statement,
    own_parts,
    own_parts_statement,
    renumbered_blocks,
    renumbered_statement,
    unlike_statement,
    wrapped_layers,
)
from ckpt.ext.explain.families.leftovers import (
    added_layers,
    form_of_blocks,
    layout_of_experts,
    parts_left_out,
    parts_statement,
    tables_alone,
    tables_statements,
    trained_scales,
    trained_scales_statement,
)
from ckpt.ext.explain.families.pairing import (
    Placed,
    counted_elsewhere,
    find_repeated,
    head_statement,
    pair_modules,
    pair_unsaid,
    part_alone,
    placed_statement,
    settle_rules,
)
from ckpt.ext.explain.families.places import (
    adapter_statements,
    find_in_order,
    find_numbered_words,
    nothing_built,
    numbered_statement,
    order_statement,
    other_norms,
)
from ckpt.ext.explain.families.quantized import (
    before_converters,
    built_by_quantizers,
    packed_and_plain,
    without_order,
)
from ckpt.ext.explain.families.recorded import settings_of, settings_places
from ckpt.ext.explain.families.recurrent import (
    axes_statements,
    dimensions_statement,
    gates_statement,
    layers_statement,
    of_recurrent,
)
from ckpt.ext.explain.families.renaming import combined_rules, rename_line
from ckpt.ext.explain.families.spellings import (
    Spelled,
    adapter_rank,
    averaged_keys,
    averages_statement,
    base_of_adapter,
    cut_names,
    cut_statement,
    find_misspelled,
    is_adapter,
    lost_of_recurrent,
    merged_layers,
    not_trained,
    not_trained_statement,
    of_modules,
    older_leaves,
    older_leaves_statement,
    recurrent_statement,
    spelled_statement,
    with_leaves,
)
from ckpt.ext.explain.families.verdicts import (
    another_model,
    apart_statement,
    copies_statement,
    find_copies,
    inputs_statement,
    longer_lists,
    measures_statement,
    other_kinds,
    several_layers,
    variant_statement,
    vocabulary_statement,
    whole_for_part,
)
from ckpt.ext.explain.family import Family
from ckpt.ext.explain.lists import keys_of
from ckpt.ext.explain.message import LONGEST_LINE, Message, Mismatch
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.findings import Finding
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, counted_noun, shell_word, show
from ckpt.tree.find import tied_aliases

_HEAD = re.compile(r"Error\(s\) in loading state_dict for ")
_VOCABULARY = re.compile(
    r"(?:^|\.)(?:embed_tokens|word_embeddings|tok_embeddings|token_embedding|wte"
    r"|lm_head|shared|embed_out)(?:\.|$)"
)
_TABLE = re.compile(
    r"(?:^|[._])(?:embeddings?|embed|emb|codebook)\d{0,3}\.weight$"
    r"|_emb(?:edding)?\.weight$"
)
"""The name of a table of rows that a number chooses: of words, codes or classes."""
_POSITIONS = re.compile(
    r"(?:^|[._])(?:pos_embed|embed_positions|position_embeddings?|positional_embedding"
    r"|wpe|relative_position)"
)
_MOST_RANKS = 64


def _take_keys(message: Message, text: str, start: int) -> Message:
    """The keys and shapes of the last load."""
    first = 0
    for head in _HEAD.finditer(text):
        first = head.start()
    begin = text.rfind("\n", 0, first) + 1
    if text.startswith("Error", first):
        end = text.find("\n", first)
        line = text[begin : end if end >= 0 else None].strip()
        message = message._replace(text=line[:LONGEST_LINE])
    else:
        begin = 0
    types = [(match[1], match[2]) for match in TYPES.finditer(text)]
    found = keys_of(text[begin:])
    is_sizes = bool(found.mismatched) and not found.missing and not found.unexpected
    return message._replace(
        kind="sizes" if is_sizes else "keys",
        missing=found.missing,
        unexpected=found.unexpected,
        mismatched=found.mismatched,
        types=types[-1] if types else None,
        task=task_of(text),
    )


def answer_of_names(message: Message) -> Answer | None:
    """Return the answer that the names of an error give without a file: the rule that
    makes missing and unexpected keys the same.
    """
    if not message.missing or not message.unexpected:
        return None
    if message.types:
        return Answer("", (another_class(*message.types),))
    forms = find_forms(message.missing, message.unexpected, {})
    asked, held = _without_forms(forms, message.missing, message.unexpected)
    rules = settle_rules(_by_names(held, asked), held, asked).rules
    if not rules.partners and forms:
        return Answer("", tuple(Statement(form.text) for form in forms))
    if not rules.partners:
        return None
    command = "ckpt strip FILE -o OUT" if _is_wrapper(rules) else None
    subs = " ".join(f"--sub {shlex.quote(rule.substitution)}" for rule in rules.renames)
    if (
        command is None
        and rules.renames
        and all(rule.is_plain for rule in rules.renames)
    ):
        command = f"ckpt rename FILE {subs} -o OUT"
    return Answer(
        "", (Statement(_renames_text(rules, len(message.missing)), (), command),)
    )


def _without_forms(
    forms: Sequence[Form], missing: Sequence[str], held: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Both lists without the names that another form of a layer explains."""
    asked = frozenset().union(*(form.missing for form in forms))
    had = frozenset().union(*(form.held for form in forms))
    return (
        [name for name in missing if name not in asked],
        [name for name in held if name not in had],
    )


def _share_text(met: int, whole: int, noun: str) -> str:
    """`3 of the 7 missing keys`, `the missing key`, `none of the 7 missing keys`."""
    if whole == 1:
        return f"the {noun}" if met else f"no {noun}"
    return (
        f"{met:,} of the {counted_noun(whole, noun)}"
        if met
        else f"none of the {counted_noun(whole, noun)}"
    )


def _none_of_text(unexpected: Sequence[str]) -> str:
    """The beginning of a sentence: `None of the 7 unexpected keys is`, `The unexpected
    key is not`.
    """
    if len(unexpected) == 1:
        return f"The unexpected key {show(unexpected[0], 120)} is not"
    return f"None of the {counted_noun(len(unexpected), 'unexpected key')} is"


_OUTPUT = re.compile(
    r"(?:.+\.)?(?:lm_head(?:\.decoder)?|predictions\.decoder)\.weight|(?:output|out"
    r"|decoder)\.weight"
)
"""The name of the output layer of a language model. The short ones mean it only where
they are the whole name.
"""
_EMBEDDING = re.compile(
    r"(?:.+\.)?(?:embed_tokens|wte|word_embeddings|tok_embeddings|shared|emb)\.weight"
)
"""The name of the embedding that the output layer is tied to."""


def tied_name(absent: Sequence[str], here: Sequence[str], case: Case) -> str | None:
    """Return the tensor that the only missing key is tied to: by the metadata of the
    file, or by their usual names.
    """
    if len(absent) != 1:
        return None
    noted = tied_aliases(case.survey.checkpoint).get(absent[0])
    if noted is not None:
        return noted
    if not _OUTPUT.fullmatch(absent[0]):
        return None
    embeddings = [name for name in here if _EMBEDDING.fullmatch(name)]
    return embeddings[0] if len(embeddings) == 1 else None


def _by_names(
    here: Sequence[str], missing: Sequence[str], keep: Sequence[str] = ()
) -> Match:
    """The mapping of names in a file to names of a model: the shapes of the model are
    unknown, so names alone decide.

    No rule changes a name of `keep`, which has its place already.
    """
    return match(
        dict.fromkeys(here, ()), dict.fromkeys(missing, ()), layouts=False, keep=keep
    )


def _renames_text(rules: Match, missing: int) -> str:
    met = len(rules.partners)
    texts = [rule.label for rule in rules.renames]
    text = "The missing key is there by another name"
    if missing > 1:
        text = (
            f"{met:,} of the {counted_noun(missing, 'missing key')} "
            f"{'is' if met == 1 else 'are'} there by other names"
        )
    return f"{text}: {and_more(texts, 4)}." if texts else f"{text}."


# --- the answer of a file -------------------------------------------------------------


def _answer_keys(message: Message, case: Case) -> Answer:
    path = case.survey.path
    if not (message.missing or message.unexpected or message.mismatched):
        unnamed = tuple(_unnamed_statements(message, case))
        return Answer(path, unnamed) if unnamed else looked_at(case)
    chosen = _choose_section(message, case)
    if chosen is None:
        return Answer(
            path,
            (
                _without_model(case),
                *finding_statements(case.at_least("warning")),
            ),
        )
    serious = list(finding_statements(case.at_least("error")))
    other = of_another_class(message, case)
    if other is not None:
        return Answer(path, (*serious, other))
    shapes_in_file = {
        name: entry.tensor.shape
        for name, entry in zip(chosen.names(), chosen.entries, strict=True)
    }
    as_stripped = _as_stripped(message, shapes_in_file)
    taken = _taken_beginning(message, shapes_in_file)
    before: list[Statement] = []
    if taken and as_stripped is shapes_in_file:
        # With it the names are those of the file, and a program that takes it off
        # again gets what it asked for.
        message = _with_beginning(message, taken)
        before.append(
            Statement(
                f"The program took {show(taken, 80)} off the names before it loaded "
                "them. Here they have it, as in the file:"
            )
        )
    shifted = shifted_statement(message)
    # The architecture decides, so it stands before long lists of names.
    deciding = (
        []
        if case.is_useless
        else [
            *name_architectures(message, as_stripped),
            *compare_depths(message, as_stripped),
            *([] if shifted is None else [shifted]),
        ]
    )
    rows = [
        *before,
        *finding_statements(case.found("tensor-parallel")),
        *deciding,
        *_missing_statements(message, case, chosen, shapes_in_file),
    ]
    differing = tuple(
        Shapes(row.name, _shape_in_file(row.name, shapes_in_file), row.model)
        for row in message.mismatched
    )
    if differing:
        rows += [
            row
            for row in _shape_statements(message, case, differing, shapes_in_file)
            if row not in deciding
        ]
    return Answer(path, (*serious, *rows), shapes=differing)


def _without_model(case: Case) -> Statement:
    """Say what a file without a model holds."""
    if case.optimizers and not case.survey.models:
        names = [show(section.name, 60) or "the root" for section in case.optimizers]
        return Statement(
            f"The file holds no model: it is the state of an optimizer (at "
            f"{and_more(names, 3)}). The program wants the file of the weights, which "
            "was saved beside it."
        )
    return Statement("The file holds no model.")


def _as_stripped(
    message: Message, shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shapes of a file by the names of an error, where the program had stripped the
    prefix of a wrapper.
    """
    said = [*message.unexpected, *(row.name for row in message.mismatched)]
    bare = {unwrapped_name(name): shape for name, shape in shapes.items()}
    is_stripped = (
        bool(said)
        and len(bare) == len(shapes)
        and not any(name in shapes for name in said)
        and all(name in bare for name in said)
    )
    return bare if is_stripped else shapes


def _taken_beginning(message: Message, shapes: dict[str, tuple[int, ...]]) -> str:
    """The beginning that a program has taken off all names of a file that it names, or
    an empty text.
    """
    said = [*message.unexpected, *(row.name for row in message.mismatched)]
    if not said or any(name in shapes for name in said):
        return ""
    # One name alone may end like another one.
    if len(said) < min(len(shapes), _LEAST_TAKEN):
        return ""
    begins = [
        name.removesuffix(said[0]) for name in shapes if name.endswith(f".{said[0]}")
    ]
    whole = [
        begin for begin in begins if all(f"{begin}{name}" in shapes for name in said)
    ]
    if len(whole) != 1:
        return ""
    is_same = all(
        shapes[f"{whole[0]}{row.name}"] == row.checkpoint for row in message.mismatched
    )
    return whole[0] if is_same else ""


_LEAST_TAKEN = 4
"""Names that must have lost the same beginning."""


def _with_beginning(message: Message, begin: str) -> Message:
    return message._replace(
        missing=tuple(f"{begin}{name}" for name in message.missing),
        unexpected=tuple(f"{begin}{name}" for name in message.unexpected),
        mismatched=tuple(
            row._replace(name=f"{begin}{row.name}") for row in message.mismatched
        ),
    )


_OF_HEADS = (
    "lm_head",
    "classifier",
    "cls",
    "qa_outputs",
    "score",
    "embed_out",
    "final_logits_bias",
)


def _unnamed_statements(message: Message, case: Case) -> Iterator[Statement]:
    """Answer an error that names no key: of transformers about a prefix, of vLLM about
    a shape, of a load that found nothing.
    """
    if NOTHING_LOADED.search(message.text):
        yield from nothing_loaded(case)
        return
    not_built = NOT_BUILT.search(message.text)
    if not_built is not None:
        yield from of_architecture(not_built, case)
        return
    if "is corrupted" in message.text and not case.damage:
        yield from _without_prefix(case)
        return
    if "loaded_weight" in message.text or "Attempted to load weight" in message.text:
        scaled = [*case.scaled_findings, *case.found("tensor-parallel")]
        yield from finding_statements(scaled)
        if any(row.code == "scaled" for row in scaled):
            yield from built_by_quantizers(case)


def _without_prefix(case: Case) -> Iterator[Statement]:
    """Say that the base model's names lack their prefix beside the names of a head."""
    roots = list(
        dict.fromkeys(entry.name.partition(".")[0] for entry in case.survey.tensors)
    )
    heads = [root for root in roots if root in _OF_HEADS]
    base = [root for root in roots if root not in _OF_HEADS]
    types = {str(node) for _, node in case.finds_value(("model_type",))}
    prefix = next(
        (word for word, kinds in BASES.items() if types.intersection(kinds)), None
    )
    if not heads or not base or prefix in base:
        return
    yield Statement(
        "The file is whole. transformers calls a state dict corrupted where it has the "
        "names of a base model without the prefix of the class,"
        " beside the names of a head. Here they begin with "
        f"{and_more([show(root, 40) for root in base], 4)}, and the head is"
        f" {and_more([show(root, 40) for root in heads], 2)}."
    )
    if prefix is None:
        return
    way = case.plan(
        ("rename", "--sub", f"s/^(?!(?:{'|'.join(heads)})(?:\\.|$))/{prefix}./")
    )
    if way.command is not None:
        yield Statement(
            (
                f"With {prefix}. before them, as this type of model has it, and to be "
                "put in the place of this file:"
            ),
            (),
            way.command,
        )


_ADDED = re.compile(
    r"\.(?:modules_to_save\.[^.]+|base_layer)(?=\.)|(?<=lora_[AB])\.[^.]+(?=\.weight$)"
    r"|(?<=lora_embedding_[AB])\.[^.]+$|(?<=lora_magnitude_vector)\.[^.]+(?=\.|$)"
)
"""Parts that PEFT puts into the names of a model, and leaves out of the file of an
adapter.
"""


def _shape_in_file(
    name: str, shapes: dict[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The shape of a tensor by its name, or by the end of it where a message has left
    out what is in front.
    """
    for other in (name, _ADDED.sub("", name)):
        if other in shapes:
            return shapes[other]
    end = _CONVERTED if _is_converted(name, shapes) else f".{name}"
    ends = [shape for other, shape in shapes.items() if other.endswith(end)]
    return ends[0] if len(set(ends)) == 1 else None


_CONVERTED = "input_blocks.0.0.weight"
"""The first convolution of a UNet in the names of its authors."""


def _is_converted(name: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether a name is the one that diffusers gives the first convolution of a
    file in the names of the authors.
    """
    is_first = name in ("conv_in.weight", "unet.conv_in.weight")
    return (
        is_first
        and name not in shapes
        and any(other.endswith(_CONVERTED) for other in shapes)
    )


def _choose_section(message: Message, case: Case) -> Section | None:
    """The section whose names the error has, else the only model."""
    survey = case.survey
    if case.section is not None:
        return survey.section(case.section)
    wanted = {*message.unexpected, *(row.name for row in message.mismatched)}
    candidates = [
        part
        for part in survey.sections
        if part.kind in ("model", "ema", "other") and part.entries
    ]
    scored = [
        (sum(name in wanted for name in part.names()), -number, part)
        for number, part in enumerate(candidates)
    ]
    best = max(scored, default=None, key=lambda row: row[:2])
    if best is not None and best[0]:
        return best[2]
    models = survey.candidates
    return models[0] if models else None


def _missing_statements(
    message: Message, case: Case, chosen: Section, shapes: dict[str, tuple[int, ...]]
) -> Iterator[Statement]:
    """Say why keys are missing, and why others have no place."""
    lists = _Lists(message, case, chosen, shapes)
    if not lists.missing and not lists.unexpected:
        return
    for step in (lists.told_numbers, lists.told_without_pairs):
        yield from step()
        if lists.is_told:
            return
    lists.pair_names()
    rows: list[Statement] = []
    for step in (
        lists.told_forms,
        lists.told_renames,
        lists.told_modules,
        lists.told_present,
        lists.told_depths,
        lists.told_changes,
        lists.told_absent,
        lists.told_additions,
        lists.told_rest,
        lists.told_origin,
        lists.told_loading,
    ):
        rows += step()
        if lists.is_told:
            break
    # The likeness of the models decides, so it stands before long lists of names.
    yield from lists.verdict
    yield from rows


class _Lists:
    """The missing and the unexpected keys of an error, and what is known of them.

    The steps below run in their order. Each takes what it explains off the lists, and
    says by `is_told` where nothing is left to say.
    """

    def __init__(
        self,
        message: Message,
        case: Case,
        chosen: Section,
        shapes: dict[str, tuple[int, ...]],
    ) -> None:
        self.message = message
        self.case = case
        self.chosen = chosen
        self.shapes = shapes
        self.survey = case.survey
        # fvcore lists a tensor of another shape among those that it does not find, too.
        differing = {row.name for row in message.mismatched}
        self.missing = with_leaves(
            [name for name in message.missing if name not in differing], shapes
        )
        self.unexpected = of_modules(message.unexpected, shapes)
        self.here = [name for name in self.unexpected if name in shapes]
        """The unexpected keys that are in this file."""
        self.total = len(self.missing)
        self.forms: list[Form] = []
        """The layers that the file has in another form."""
        self.rules = Match({})
        self.heads: Mapping[str, str] = {}
        """The layer of the file that may be the head of the model."""
        self.more = Placed()
        """The modules that pair by what is below them, or by their order."""
        self.verdict: list[Statement] = []
        """The sentence that says whether it is the same model."""
        self.met: dict[str, str] = {}
        """The missing keys, with the key of this file that each is."""
        self.present: list[str] = []
        """The missing keys that are in this file."""
        self.absent: list[str] = []
        """The missing keys that nothing has explained."""
        self.changed = Changed(frozenset())
        self.respelled = Spelled({}, ())
        self.met_here: set[str] = set()
        """The keys of this file that have a place in the model."""
        self.is_alone = False
        """A flag: the message says nothing but what is missing."""
        self.rest: list[str] = []
        """The keys of this file that have no place in the model."""
        self.is_other_size = False
        """A flag: the model is deeper or flatter, which was said."""
        self.has_copies = False
        """A flag: some keys without a place are copies of the weights."""
        self.is_renumbered = False
        """A flag: some names count the layers otherwise, which was said."""
        self.is_told = False

    def told_numbers(self) -> Iterator[Statement]:
        """Say that every name stands below nothing, or that layers are counted
        otherwise.
        """
        below = below_nothing(self.missing, self.shapes)
        if below is not None:
            yield below
            self.is_told = True
            return
        renumbered = swin_downsample(self.message, self.shapes, self.case)
        if renumbered is None:
            return
        moved, statement = renumbered
        yield statement
        self.is_renumbered = True
        self.missing = [name for name in self.missing if name not in moved]
        self.unexpected = [name for name in self.unexpected if name not in moved]
        self.here = [name for name in self.here if name not in moved]

    def told_without_pairs(self) -> Iterator[Statement]:
        """Say that none of the names are of this file, or that it was loaded whole."""
        top = {
            str(path[0]) for section in self.survey.sections if (path := section.path)
        }
        if self.unexpected and not self.here and top.intersection(self.unexpected):
            yield _loaded_whole(self.message, self.survey, self.chosen, self.shapes)
            self.is_told = True
            return
        part = (
            whole_for_part(self.missing, self.shapes)
            if self.here and len(self.here) == len(self.shapes)
            else None
        )
        if part is not None:
            yield part
            self.is_told = True
            return
        of_adapter = list(adapter_statements(self.message, self.case))
        if of_adapter:
            yield from of_adapter
            self.is_told = True
            return
        if not self.here and (count := cut_names(self.unexpected, self.shapes)):
            yield cut_statement(count, self.missing, self.shapes, self.case)
            self.is_told = True
            return
        if (
            self.unexpected
            and not self.here
            and (beside := _consolidated_file(self.case))
        ):
            yield Statement(
                f"{_none_of_text(self.unexpected)} in the files that ckpt reads here. "
                "The "
                "folder holds the model"
                f" twice: {show(beside, 80)} has it in the names of its author too, "
                "and a "
                "loader that takes every file meets both. In vLLM"
                " --load-format mistral with --config-format mistral takes the one; "
                "for "
                "the other move it out of the folder."
            )
            self.is_told = True
            return
        if (
            self.unexpected
            and not self.here
            and not any(name in self.shapes for name in self.missing)
        ):
            yield Statement(
                f"{_none_of_text(self.unexpected)} in this file. Is it the file that "
                "was loaded?"
            )

    def pair_names(self) -> None:
        """Pair the names that the file has with those that the model lacks."""
        wanted = set(self.missing)
        left = self.here or [name for name in self.shapes if name not in wanted]
        # torch is silent about counters of batch normalization, so one that no message
        # names may lack its place too.
        self.forms = find_forms(self.missing, self.here, self.shapes)
        self.missing, left = _without_forms(self.forms, self.missing, left)
        self.here = _without_forms(self.forms, (), self.here)[1]
        known = set(left)
        fitting = (
            [
                name
                for name in self.shapes
                if name not in known
                and not name.endswith(_COUNTER)
                and not any(name in form.held for form in self.forms)
            ]
            if self.here
            else []
        )
        self.rules = (
            _by_names(left, self.missing, fitting)
            if left and self.missing
            else Match({})
        )
        if (
            self.here
            and len(self.rules.partners) < len(self.missing)
            and _is_wrapper(self.rules)
        ):
            # People paste a part of the list. No model has the prefix of a wrapper
            # beside the name without it, so what the text leaves out is unexpected too.
            every = _by_names(
                [name for name in self.shapes if name not in wanted], self.missing
            )
            if _is_wrapper(every):
                self.rules = every
        if not self.here and not _are_beginnings(self.rules):
            self.rules = Match(
                {}
                # nothing but equal ends of names speaks for it: torch would have listed
                # them as unexpected
            )
        settled = settle_rules(self.rules, left, self.missing)
        self.rules, self.heads = settled.rules, settled.heads
        if self.here and not all(rule.is_plain for rule in self.rules.renames):
            self._prefer_modules(left)
        if not self.rules.partners and (self.here or not self.unexpected):
            self.rules = _by_wrapper(self.shapes, self.missing)
        self.met = self.rules.partners

    def _prefer_modules(self, left: Sequence[str]) -> None:
        """Drop rules that no command can follow where modules pair as many names by
        what is below them.
        """
        rest = _unplaced_keys(left, set())
        placed = pair_modules(
            self.missing,
            rest,
            self.shapes,
            self.message,
            keeps_order=self.survey.checkpoint.traits.keeps_order,
        )
        is_less = len(placed.partners) < len(self.rules.partners)
        if is_less or placed.is_guess:
            return
        names = list(self.shapes)
        if combined_rules((), placed.modules, placed.partners, names):
            self.rules = Match({})

    def told_forms(self) -> Iterator[Statement]:
        """Say which layers the file has in another form."""
        is_all = not self.missing and not _unplaced_keys(self.here, set())
        for form in self.forms:
            yield form.statement(self.case, is_all=is_all)
            self.is_told = self.is_told or (form.ends and not self.missing)

    def told_modules(self) -> Iterator[Statement]:
        """Say which modules pair by what is below them, and which layer may be the
        head.
        """
        absent = [
            name
            for name in self.missing
            if name not in self.met and name not in self.shapes
        ]
        if absent and not self.unexpected and not self.met and self._is_warning:
            self.more = pair_unsaid(absent, self.shapes)
            if self.more.partners:
                line = self._renaming(self.more.modules, self.more.partners)
                yield placed_statement(self.more, self.total, line, is_more=False)
                self.met = {**self.more.partners}
            return
        rest = _unplaced_keys(self.here, set(self.met.values()))
        placed = len(self.shapes) - len(rest)
        heads = self.heads if 2 * placed > len(self.shapes) else {}
        if not absent or not rest:
            return
        counted = counted_elsewhere(absent, rest, self.shapes)
        if counted is not None and not self.met and not self.message.mismatched:
            line = self._renaming(counted.modules, counted.partners)
            yield counted.statement(line)
            self.is_told = True
            return
        spelled = find_misspelled(absent, rest, self.shapes)
        numbered = find_numbered_words(absent, rest, self.shapes)
        if not spelled.partners and not numbered.partners and not heads:
            self.more = pair_modules(
                absent,
                rest,
                self.shapes,
                self.message,
                keeps_order=self.survey.checkpoint.traits.keeps_order,
            )
        partners = {**self.met, **self.more.partners}
        if self.more.partners:
            line = self._renaming(self.more.modules, partners)
            alone = part_alone(self.more, self.case) if not self.met else None
            if alone is not None:
                yield alone
            yield placed_statement(self.more, self.total, line, is_more=bool(self.met))
            self.met = partners
        elif heads:
            ((old, new),) = heads.items()
            more = {
                f"{new}.{name.rpartition('.')[2]}": name
                for name in rest
                if name.rpartition(".")[0] == old
            }
            line = self._renaming(heads, {**self.met, **more})
            yield head_statement(heads, self.shapes, line)
            self.met = {**self.met, **more}

    @property
    def _is_warning(self) -> bool:
        """Tell whether the message is one of transformers, which says in another line
        which keys of the file were not used.
        """
        text = self.message.text
        return "initialized" in text and "loading state_dict" not in text

    def _renaming(
        self, modules: Mapping[str, str], partners: Mapping[str, str]
    ) -> str | None:
        """The command that renames by the rules and then some modules."""
        rules = combined_rules(self.rules.renames, modules, partners, list(self.shapes))
        several = len(self.survey.candidates) > 1
        return rename_line(rules, self.case, self.chosen.name if several else None)

    def told_renames(self) -> Iterator[Statement]:
        """Say how the names become the ones that the model has."""
        graph = graph_statement(self.missing, self.here, self.case)
        if graph is not None:
            yield graph
            self.is_told = True
            return
        if not self.met and (beginnings := whole_beginnings(self.here, self.missing)):
            yield from each_beginning(beginnings, self.here, self.missing, self.case)
            self.is_told = True
            return
        if self.met:
            renamed = set(self.rules.partners.values())
            others = _unplaced_keys(self.here, renamed)
            yield _rename_statement(
                self.case, self.chosen, self.rules, self.total, others
            )
            yield from _without_beginning(self.case, self.rules, self.here)

    def told_present(self) -> Iterator[Statement]:
        """Say which missing keys are in this file, and what a profiler counted."""
        self.present = [
            name
            for name in self.missing
            if name not in self.met and name in self.shapes
        ]
        self.absent = [
            name
            for name in self.missing
            if name not in self.met and name not in self.shapes
        ]
        if self.present:
            text = (
                f"{counted_noun(len(self.present), 'missing key')} "
                f"{be_verb(self.present)} in this "
                "file: another file, or another dict of it, was loaded."
            )
            yield Statement(text, tuple(self.present))
        counters = [
            name for name in self.absent if name.rpartition(".")[2] in _COUNTERS
        ]
        if counters and len(counters) == len(self.absent):
            yield Statement(
                f"The model asks for {counted_noun(len(counters), 'counter')} of a "
                "profiler (thop), which the file does not hold: it was profiled"
                " before the load. Load first, and profile then.",
                tuple(counters),
            )
            self.is_told = True

    def told_depths(self) -> Iterator[Statement]:
        """Say that lists of blocks, or recurrent layers, are deeper on one side, where
        names were paired or lack no beginning.
        """
        rest = _unplaced_keys(self.here, set(self.met.values()))
        longer = longer_lists(self.message, self.absent, rest, self.shapes)
        if longer and not self.present and not self.met:
            yield from longer
            self.is_other_size = True
        recurrent = layers_statement(self.absent, rest, self.shapes)
        if recurrent is not None and not self.present:
            yield recurrent
            self.is_other_size = True
        if not self.met or not rest or self.case.is_useless:
            return
        moved = {old: new for new, old in self.met.items()}
        named = {name: moved.get(name) or self._renamed(name) for name in self.shapes}
        shapes = {named[name]: shape for name, shape in self.shapes.items()}
        said = self.message._replace(
            missing=tuple(self.absent),
            unexpected=tuple(named[name] for name in rest),
        )
        depths = list(compare_depths(said, shapes))
        yield from depths
        self.is_other_size = self.is_other_size or bool(depths)

    def _renamed(self, name: str) -> str:
        for rule in self.rules.renames:
            name = rule.rule(name)
        return name

    def told_changes(self) -> Iterator[Statement]:
        """Say what changed in the model, and which names are spelled otherwise."""
        self.changed = _find_change(self.message, self.absent, set(self.here))
        self.absent = [name for name in self.absent if name not in self.changed.names]
        if self.changed.text:
            yield Statement(self.changed.text, (), self.changed.line(self.case))
        taken = set(self.met.values())
        numbered = find_numbered_words(
            self.absent,
            [name for name in self.here if name not in taken],
            self.shapes,
        )
        if numbered.partners and not self.met and not self.present:
            yield numbered_statement(numbered, len(self.missing), self.case)
            self.absent = []
            taken.update(numbered.partners.values())
        self.respelled = find_misspelled(
            self.absent, [name for name in self.here if name not in taken], self.shapes
        )
        if self.respelled.partners:
            yield spelled_statement(self.respelled, len(self.missing), self.case)
            self.absent = [
                name for name in self.absent if name not in self.respelled.partners
            ]
        self.met_here = taken.union(self.respelled.partners.values())
        pair = likely_pair(
            self.absent,
            [
                name
                for name in _unplaced_keys(self.here, self.met_here)
                if name not in self.changed.names
            ],
            self.shapes,
        )
        if pair is not None and not self.present:
            partners = {
                f"{pair.new}.{name.rpartition('.')[2]}": name
                for name in self.shapes
                if name.rpartition(".")[0] == pair.old
            }
            yield pair.statement(
                self._renaming(
                    {**self.more.modules, pair.old: pair.new}, {**self.met, **partners}
                ),
                is_alone=not self.met,
            )
            self.is_told = True

    def told_absent(self) -> Iterator[Statement]:
        """Say why the file lacks what is left of the missing keys."""
        measured = measured_statement(
            self.absent, is_saved=False
        ) or measures_statement(self.absent)
        if measured is not None and not self.present:
            yield measured
            self.is_told = not self.here
            self.absent = []
        if self.absent and not self.here and not_trained(self.absent, self.shapes):
            yield not_trained_statement(self.absent, self.shapes, self.message)
            self.is_told = True
            return
        if (
            self.absent
            and not self.unexpected
            and not self.message.mismatched
            and is_adapter(self.shapes)
        ):
            yield from base_of_adapter(self.absent, self.shapes, self.case)
            self.is_told = True
            return
        yield from self._told_computed()
        if self.is_told:
            return
        self.is_alone = not (
            self.present or self.met or self.unexpected or self.message.mismatched
        )
        unordered = without_order(self.absent, self.shapes)
        if unordered is not None and self.is_alone:
            yield Statement(unordered, tuple(self.absent))
            self.is_told = True
            return
        if self.is_alone and tables_alone(self.absent):
            yield from tables_statements(self.absent, self.survey)
            self.is_told = True
            return
        norms = other_norms(
            self.absent, _unplaced_keys(self.here, self.met_here), self.shapes
        )
        if norms is not None and not self.present:
            yield norms
            self.is_told = True
            return
        if self.absent:
            yield Statement(
                (
                    f"{counted_noun(len(self.absent), 'missing key')} "
                    f"{be_verb(self.absent)} not in "
                    "this file under a name that ckpt can match."
                ),
                tuple(self.absent),
            )

    def _told_computed(self) -> Iterator[Statement]:
        """Say which missing keys a model computes, or shares with one of the file."""
        computed = [] if self.present else computed_buffers(self.absent)
        if computed:
            self.absent = [name for name in self.absent if name not in computed]
            is_all = not (
                self.absent
                or self.unexpected
                or self.message.mismatched
                or self.met
                or self.is_renumbered
            )
            yield computed_statement(computed, is_all=is_all, case=self.case)
            if not self.absent and not self.unexpected:
                self.is_told = True
                return
        if self.present:
            return
        shared = tied_to_shared(self.absent, self.shapes, self.case)
        if shared is not None:
            yield shared
            self.is_told = True

    def told_additions(self) -> Iterator[Statement]:
        """Say which layers, ties or heads the model has beyond the file."""
        unkept = {} if self.present else lost_of_recurrent(self.shapes, self.case)
        if unkept and set(unkept) <= set(self.absent):
            yield recurrent_statement(unkept)
            self.is_told = True
            return
        tied = tied_name(self.absent, list(self.shapes), self.case)
        if tied is not None and not self.present:
            yield Statement(
                f"{show(self.absent[0], 80)} is the same tensor as {show(tied, 80)} "
                "where a "
                "model ties both, and such a file holds it once."
                " Load with strict=False, and tie them then (model.tie_weights() of "
                "transformers); from_pretrained does both."
            )
            self.is_told = True
            return
        if (
            self.absent
            and not self.present
            and _are_new_heads(self.absent, self.message, self.shapes)
        ):
            heads = _heads_among(_unplaced_keys(self.here, self.met_here))
            yield Statement(
                "They are the head for a task, which the checkpoint of a base model "
                "does "
                "not have: expected, where the model is to be"
                " trained for a new task. Without training its answers are random."
                if not heads
                else "They are the head of this model, and the file has another one "
                f"({and_more([show(name, 80) for name in heads], 3)}): expected, where "
                "the model is to be trained for other classes or another task. "
                "Without training its answers are random."
            )
            if not heads:
                self.is_told = True
            self.absent = []
            return
        repeated = find_repeated(self.absent, self.shapes) if self.is_alone else None
        if repeated is not None:
            is_sole = len(self.survey.candidates) == 1
            yield repeated.statement(self.survey.load.expression if is_sole else None)
            self.is_told = True
            return
        parts = parts_left_out(self.absent, self.shapes) if self.is_alone else []
        if parts:
            yield parts_statement(parts, self.shapes, self.message)
            load = self.survey.load.expression
            is_sole = len(self.survey.candidates) == 1 and load is not None
            if is_sole and "loading state_dict" in self.message.text:
                yield Statement(
                    f"All {len(self.shapes):,} tensors of the file have their place, "
                    "for the message names no unexpected key. So they load, and that "
                    "part begins untrained:",
                    (),
                    f"model.load_state_dict({load}, strict=False)",
                )
            self.is_told = True
            return
        if self.absent and not (
            self.present
            or self.met
            or self.unexpected
            or self.message.mismatched
            or self.respelled.partners
        ):
            added = added_layers(self.absent, self.shapes)
            if added is not None:
                yield added
                yield load_into_statement(
                    self.survey,
                    (
                        "To go on without them, load what fits. The others stay as "
                        "they "
                        "were built:"
                    ),
                )
                self.is_told = True
                return

    def told_rest(self) -> Iterator[Statement]:
        """Say what the unexpected keys are that have no place in the model."""
        self.rest = [
            name
            for name in _unplaced_keys(self.here, self.met_here)
            if name not in self.changed.names
        ]
        averaged = averaged_keys(self.rest, self.shapes)
        if averaged:
            yield averages_statement(averaged)
            spoken_of = set(averaged)
            self.rest = [name for name in self.rest if name not in spoken_of]
        copies = find_copies(self.rest, self.shapes) if not self.missing else []
        if copies:
            yield copies_statement(copies)
            copied = {name for copy in copies for name in copy.names}
            self.rest = [name for name in self.rest if name not in copied]
            self.has_copies = True
        counted = [name for name in self.rest if name in AVERAGE_COUNTERS]
        if counted and self.met and _is_wrapper(self.rules):
            yield Statement(
                f"{counted[0]} counts the models of an average (AveragedModel: EMA, "
                "SWA), "
                "and is no weight. Without the prefix, strict=False"
                " leaves it out, and nothing else."
            )
            self.rest = [name for name in self.rest if name not in counted]
        yield from wrapped_layers(self.rest, self.message, self.case)
        for finding in [
            *self.case.found("extra-buffers", "flat-parameters"),
            *self.case.scaled_findings,
        ]:
            theirs = set(finding.tensors)
            spoken = [
                name
                for name in self.rest
                if _full_name(self.chosen, name) in theirs
                or _is_scale(name, finding.code)
                or _is_bias_of_codes(name, theirs)
            ]
            if spoken:
                yield from finding_statements(
                    [_with_key(finding, self.case, self.chosen)]
                )
                if finding.code == "scaled":
                    if "Can not map tensor" not in self.message.text:
                        yield from built_by_quantizers(self.case)
                    else:
                        yield from before_converters(self.case)
                self.rest = [name for name in self.rest if name not in spoken]
        computed = computed_buffers(self.rest)
        if computed:
            yield left_over_buffers(computed)
            self.rest = [name for name in self.rest if name not in computed]
        stages = norms_of_stages(self.absent, self.rest)
        if stages is not None:
            yield stages
            self.is_told = True
            return
        measured = measured_statement(self.rest, is_saved=True)
        if measured is not None:
            yield measured
            self.is_told = True
            return
        if self.rest and not self.missing and _has_base_names(self.rest, self.shapes):
            yield from _base_names(self.case, self.shapes)
            self.is_told = True
            return
        older = [] if self.missing else older_leaves(self.rest, self.shapes)
        if older:
            yield older_leaves_statement(older, self.case)
            self.rest = [name for name in self.rest if name not in older]
            if not self.rest:
                self.is_told = True
                return
        unbuilt = nothing_built(self.rest, self.shapes, self.message)
        if unbuilt is not None and not self.case.is_useless:
            yield unbuilt
            self.is_told = True
            return
        if self.rest:
            yield Statement(
                (
                    f"The model has no place for {counted_noun(len(self.rest), 'key')} "
                    "of this "
                    "file."
                ),
                tuple(self.rest),
            )

    def told_origin(self) -> Iterator[Statement]:
        """Say which program the names are of, or which form of a layer."""
        origin = None
        if (
            self.absent
            and self.rest
            and not self.met
            and not self.respelled.partners
            and not self.present
            and not self.forms
            and not form_of_blocks(self.absent, self.rest)
            and not layout_of_experts(self.absent, self.rest, self.case)
        ):
            self.verdict = list(
                other_kinds(self.message, self.absent, self.rest, self.shapes)
            )
            if not self.verdict and "right format" not in self.message.text:
                self.verdict = list(
                    another_model(self.absent, self.rest, self.shapes, self.case)
                )
            if self.verdict:
                self.is_told = True
                return
        if (
            (self.absent or "right format" in self.message.text)
            and self.rest
            and not self.met
            and not self.respelled.partners
        ):
            origin = name_origin(self.survey)
            if origin is not None:
                follows = (
                    "torchtune has a checkpointer for each set of names: "
                    "FullModelMetaCheckpointer"
                    " for those of Meta, FullModelHFCheckpointer for those of "
                    "transformers."
                    if "right format" in self.message.text
                    else "Is it of the class that was built?"
                )
                yield Statement(f"{origin_opening(origin)} {origin}. {follows}")
        other_form = (
            several_layers(self.absent, self.rest)
            or form_of_blocks(self.absent, self.rest)
            or layout_of_experts(self.absent, self.rest, self.case)
            or renumbered_statement(self.absent, self.rest)
            or (
                unlike_statement(self.absent, self.rest)
                if not self.met and origin is None and not self.message.mismatched
                else None
            )
        )
        if other_form is not None:
            yield other_form
            in_order = find_in_order(self.absent, self.rest, self.shapes, self.message)
            if in_order.rules:
                yield order_statement(in_order, self.case)
            self.is_told = True

    def told_loading(self) -> Iterator[Statement]:
        """Say how to load what fits."""
        load = self.survey.load.expression
        apart = None
        if (
            not self.present
            and not self.changed.text
            and not self.message.mismatched
            and not self.forms
            and not self.is_other_size
        ):
            apart = apart_statement(self.absent, self.rest, self.shapes, self.met)
        if apart is not None:
            yield apart
        # Half of a list that was cut off would say the same, so most of the file must
        # have a place.
        is_complete = (
            not self.missing
            and not self.message.mismatched
            and "loading state_dict" in self.message.text
        )
        is_complete = (
            is_complete and load is not None and 2 * len(self.rest) < len(self.shapes)
        )
        # A model with fewer blocks loads so, and is another one.
        is_complete = is_complete and not any(
            True for _ in compare_depths(self.message, self.shapes)
        )
        scales = [] if self.missing else trained_scales(self.rest, self.shapes)
        needed = trained_scales_statement(scales, self.case) if scales else None
        if needed is not None:
            yield needed
            self.is_told = True
            return
        if (
            self.rest
            and not self.absent
            and all(_OF_LOSS.match(name) for name in self.rest)
        ):
            yield Statement(
                "By their names they belong to the loss or the metrics of the "
                "training, "
                "and are no"
                " weights of the model: a program that only predicts has no place for "
                "them, and"
                " loses nothing. strict=False leaves them out."
            )
        own = (
            []
            if self.missing or self.message.mismatched
            else own_parts(self.rest, self.shapes)
        )
        if own and not all(_OF_LOSS.match(name) for name in self.rest):
            yield own_parts_statement(own)
        if self.rest and load is not None and _OLD_LOAD.search(self.message.text):
            yield Statement(
                "torch before 0.4 stops at the first such key, so others may follow. "
                "strict=False leaves out all for which the model has no place, and "
                "says nothing of keys that the file lacks:",
                (),
                f"model.load_state_dict({load}, strict=False)",
            )
        if (
            (self.rest or self.has_copies)
            and is_complete
            and not self.is_other_size
            and not self.case.is_useless
            and len(self.survey.candidates) == 1
        ):
            yield Statement(
                (
                    "The message names no missing key, so the model gets all that it "
                    "asks "
                    "for. strict=False leaves these out, and nothing else:"
                ),
                (),
                f"model.load_state_dict({load}, strict=False)",
            )
        if (
            (self.absent or self.rest)
            and (self.met or apart is not None or not self.unexpected)
            and not self.changed.text
            and not self.respelled.partners
            and not self.message.mismatched
            and not self.case.is_useless
        ):
            yield load_into_statement(
                self.survey, "Load what fits, and see what does not:"
            )


_COUNTERS = ("total_ops", "total_params")
_OLD_LOAD = re.compile(r"KeyError: ['\"]unexpected key \"")
"""The error of torch before 0.4, which names one key."""
_OF_LOSS = re.compile(
    r"(?:\w{1,60}[._])?(?:criterion|criteria|loss|losses|loss_fn|loss_func"
    r"|metrics?)(?:_\w{1,60})?\."
)
"""The beginning of names of what a training measures its model by."""
SCALE = re.compile(
    r"(?:^|[._])(?:scales?|scale_inv|qzeros|g_idx|absmax|quant_map|SCB|zero_point"
    r"|quant_state|bitsandbytes__)"
)


class Changed(NamedTuple):
    """The names that a change of the model explains: pruning, quantization, a norm.
    `code` loads them, where it can.
    """

    names: frozenset[str]
    text: str = ""
    code: str | None = None

    def line(self, case: Case) -> str | None:
        """The line of Python that loads the file into the model, where one does."""
        load = case.survey.load.expression
        if self.code is None or load is None or len(case.survey.candidates) > 1:
            return None
        return f"state = {load}; {self.code}"


_MASKED = (
    'state.update((name[:-5], state[name] * state[name[:-5] + "_mask"]) for name in '
    'list(state) if name.endswith("_orig"));'
    " model.load_state_dict({name: value for name, value in state.items() if not "
    'name.endswith(("_orig", "_mask"))})'
)
_OBSERVED = re.compile(
    r"(?:^|\.)(?:activation_post_process|weight_fake_quant)\.|(?:^|\.)(?:fake_quant"
    r"|observer)_enabled$"
)


def _find_change(message: Message, absent: Sequence[str], here: set[str]) -> Changed:
    """Find a change of the model, before the save or the load, that gave its tensors
    other names.
    """
    masked = [
        name for name in absent if f"{name}_orig" in here and f"{name}_mask" in here
    ]
    if masked:
        ours = [f"{name}{end}" for name in masked for end in ("", "_orig", "_mask")]
        text = (
            f"{counted_noun(len(masked), 'parameter')} {be_verb(masked)} kept by "
            "torch.nn.utils.prune as weight_orig and weight_mask, and the weight"
            " is their product. So they load into a model that is not pruned:"
        )
        return Changed(frozenset(ours), text, _MASKED)
    lost = set(absent)
    bare = [name for name in here if f"{name}_orig" in lost and f"{name}_mask" in lost]
    if bare:
        ours = [f"{name}{end}" for name in bare for end in ("", "_orig", "_mask")]
        return Changed(
            frozenset(ours),
            (
                "The model was pruned before the load: load first, and prune then "
                "(torch.nn.utils.prune)."
            ),
        )
    normed = [name for name in absent if f"{name}_orig" in here and f"{name}_u" in here]
    if normed:
        ours = [f"{name}{end}" for name in normed for end in ("", "_orig", "_u", "_v")]
        return Changed(
            frozenset(ours),
            "The file has spectral norm: weight_orig, weight_u and weight_v. Apply "
            "torch.nn.utils.spectral_norm to the same layers of"
            " the model before the load.",
        )
    return _find_quantization(message, absent, here)


def _find_quantization(
    message: Message, absent: Sequence[str], here: set[str]
) -> Changed:
    """As `_find_change`, for the quantization of torch."""
    theirs = set(message.unexpected)
    layers = {
        name.removesuffix(".zero_point")
        for name in theirs
        if name.endswith(".zero_point")
        and f"{name.removesuffix('zero_point')}scale" in theirs
    }
    if layers and any("._packed_params" in name for name in theirs):
        ours = {
            name
            for name in (*absent, *here)
            if name.rpartition(".")[0].partition("._packed")[0] in layers
        }
        return Changed(
            frozenset(ours),
            "The model was quantized by torch when it was saved: its weights are "
            "packed integers with a scale and a zero_point. Quantize the"
            " model in the same way before the load (quantize_dynamic, or prepare and "
            "convert).",
        )
    packed = packed_and_plain(absent, here) or packed_and_plain(
        here, absent, is_saved=True
    )
    if packed is not None:
        return Changed(*packed)
    saved = {name for name in here if _OBSERVED.search(name)}
    asked = {name for name in absent if _OBSERVED.search(name)}
    if saved:
        return Changed(
            frozenset(saved),
            (
                "The model was prepared for quantization when it was saved, and has "
                "observers: prepare the model in the same way before the load."
            ),
        )
    if asked:
        return Changed(
            frozenset(asked),
            (
                "The model was prepared for quantization before the load, and the file "
                "has no observers: load first, and prepare then."
            ),
        )
    return Changed(frozenset())


def _has_base_names(rest: Sequence[str], shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether all names belong to a base model of transformers, without the name
    that a head puts in front.
    """
    roots = {name.partition(".")[0] for name in shapes}
    return {"embed_tokens", "layers"} <= roots and all(name in shapes for name in rest)


def _base_names(case: Case, shapes: dict[str, tuple[int, ...]]) -> Iterator[Statement]:
    text = (
        "The names begin without model.: the file was saved from the base model, "
        "without its head."
    )
    if not any(name.startswith("lm_head.") for name in shapes):
        text += (
            " It has no lm_head: with tied embeddings none is needed, and without them "
            "it is lost."
        )
    way = case.plan(("rename", "--sub", "s/^(?!lm_head)/model./"))
    if way.command is None:
        yield Statement(text)
        return
    yield Statement(
        (
            f"{text} With the names that converters look for, beside config.json and "
            "the tokenizer:"
        ),
        (),
        way.command,
    )


def _consolidated_file(case: Case) -> str | None:
    """The file of a model in the names of its author, beside the files that ckpt reads,
    or None.
    """
    folder = case.survey.path
    if not os.path.isdir(folder) or any(
        "consolidated" in part for part in case.survey.checkpoint.parts
    ):
        return None
    return (
        "consolidated.safetensors"
        if os.path.isfile(os.path.join(folder, "consolidated.safetensors"))
        else None
    )


def _with_key(finding: Finding, case: Case, chosen: Section) -> Finding:
    """The finding with a command that leaves the weights below the key where the
    program asked for them.
    """
    key = shell_word(chosen.name)
    if (
        finding.code != "extra-buffers"
        or finding.hint is None
        or not chosen.path
        or key is None
    ):
        return finding
    words = shlex.split(finding.hint)  # ckpt slim PATH … -o OUT
    way = case.plan((words[1], *words[3:-2], "--keep", key))
    if way.command is None:
        return finding
    alone = "For the weights without them:"
    follows = finding.consequence
    if follows is not None:
        follows = follows.replace(
            alone,
            f"For the weights without them, below {show(chosen.name, 80)} as before:",
        )
    return finding._replace(hint=way.command, consequence=follows)


def _full_name(chosen: Section, name: str) -> str:
    return f"{chosen.name}.{name}" if chosen.path else name


def _is_scale(name: str, code: str) -> bool:
    """Tell whether a key has the name of a scale, for the finding of weights with
    scales.
    """
    return code == "scaled" and bool(SCALE.search(name.rpartition(".")[2]))


def _is_bias_of_codes(name: str, codes: set[str]) -> bool:
    """Tell whether a key is what MLX adds to the values of codes."""
    layer, _, last = name.rpartition(".")
    return last == "biases" and any(
        code == f"{layer}.weight" or code.endswith(f".{layer}.weight") for code in codes
    )


def _are_beginnings(rules: Match) -> bool:
    """Tell whether the rules take something away from the beginning of names, or put
    something before them.
    """
    return all(
        old.endswith(f".{new}") or new.endswith(f".{old}")
        for new, old in rules.partners.items()
        if new != old
    )


def _are_new_heads(
    absent: Sequence[str], message: Message, shapes: dict[str, tuple[int, ...]]
) -> bool:
    """Tell whether all that is missing is the head of a task, of layers that the file
    has none of.
    """
    layers = {name.rpartition(".")[0] for name in absent}
    return (
        not message.mismatched
        and all(
            _HEAD_WORDS.search(layer) or _TASK_WORDS.search(layer) for layer in layers
        )
        and len(layers) <= _MOST_HEADS
        and len(absent) < len(shapes)
    )


def _heads_among(names: Sequence[str]) -> list[str]:
    """The layers among some names that have the word of a head."""
    layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
    return [layer for layer in layers if _HEAD_WORDS.search(layer)]


def _unplaced_keys(here: Sequence[str], met: set[str]) -> list[str]:
    """The keys of a file for which a model has no place.

    torch counts a BatchNorm's counter as missing only where the file has the version of
    the module (torch/nn/modules/ batchnorm.py `_load_from_state_dict`), so one beside
    statistics that fit has a place.
    """
    return [
        name
        for name in here
        if name not in met
        and not (
            name.endswith(_COUNTER)
            and f"{name.removesuffix(_COUNTER)}running_mean" in met
        )
    ]


_COUNTER = "num_batches_tracked"


def _loaded_whole(
    message: Message,
    survey: Survey,
    chosen: Section,
    shapes: dict[str, tuple[int, ...]],
) -> Statement:
    """The whole checkpoint went into load_state_dict, and not its model."""
    load = survey.load.expression
    met = sum(name in shapes for name in message.missing)
    text = (
        "The whole checkpoint was loaded into the model. The weights are in "
        f"{show(chosen.name, 80)}"
    )
    if message.missing:
        text += f", which has {_share_text(met, len(message.missing), 'missing key')}"
    text += "."
    rules = _by_names(list(shapes), message.missing) if not met else Match({})
    if rules.partners:
        labels = and_more([rule.label for rule in rules.renames], 3)
        text += (
            f" By other names {len(rules.partners):,} of them are there ({labels}): "
            "this gives the weights, and ckpt.open(…).load_into(model) pairs the names."
        )
    elif message.missing and not met:
        words = dict.fromkeys(name.partition(".")[0] for name in shapes)
        shown = and_more([show(word, 60) for word in words], 4)
        text += (
            f" Its names begin with {shown}: another library or another class wrote "
            "them, and the model takes them by other names alone, if its layers are "
            "the same."
        )
    return Statement(text, (), load)


def _rename_statement(
    case: Case, chosen: Section, rules: Match, missing: int, others: Sequence[str]
) -> Statement:
    """The command after which the missing keys are there. `others` have no place in the
    model, and keep their names.
    """
    survey, plan = case.survey, case.plan
    text = _renames_text(rules, missing)
    stripped = plan(("stripped", chosen.name)) if _is_wrapper(rules) else None
    if stripped is not None and stripped.command is not None:
        return Statement(text, (), stripped.command)
    if rules.renames and all(rule.is_plain for rule in rules.renames):
        words = [
            word for rule in rules.renames for word in ("--sub", rule.substitution)
        ]
        if len(survey.candidates) > 1:
            words += ["--section", chosen.name]
        way = plan(("rename", *words))
        if way.command is not None:
            if others and _are_beginnings(rules):
                text += (
                    " They are a part of this file. The command keeps its other "
                    f"{counted_noun(len(others), 'key')}, so load its result with "
                    "strict=False:"
                )
            return Statement(text, (), way.command)
    return Statement(text, (), load_into_statement(survey, "").command)


def _without_beginning(
    case: Case, rules: Match, here: Sequence[str]
) -> Iterator[Statement]:
    """Print the line that takes one part of a larger model, whose names begin with the
    place of the part.
    """
    beginnings = {old.removesuffix(new) for new, old in rules.partners.items()}
    load = case.survey.load.expression
    if (
        len(beginnings) != 1
        or load is None
        or len(case.survey.candidates) > 1
        or _is_wrapper(rules)
    ):
        return
    (beginning,) = beginnings
    others = [name for name in here if not name.startswith(beginning)]
    if not beginning.endswith(".") or not others:
        return
    yield Statement(
        (
            f"The other {counted_noun(len(others), 'key')} of this file "
            f"{'belongs' if len(others) == 1 else 'belong'} to the rest of its model. "
            "So the part loads alone:"
        ),
        (),
        taken_part(load, beginning),
    )


def _by_wrapper(here: Iterable[str], missing: Sequence[str]) -> Match:
    """The mapping that takes the prefix of a wrapper off the names of a file, or an
    empty one where that makes none of the missing keys.

    One key is enough: what stands behind the prefix is the whole name.
    """
    wrapped = {unwrapped_name(name): name for name in here}
    wrapped = {plain: name for plain, name in wrapped.items() if plain != name}
    met = {name: wrapped[name] for name in missing if name in wrapped}
    if not met:
        return Match({})
    every = _by_names(list(wrapped.values()), list(wrapped))
    return every._replace(partners=met) if _is_wrapper(every) else Match({})


def _is_wrapper(rules: Match) -> bool:
    """Tell whether the only rule takes the prefix of a wrapper away."""
    return all(unwrapped_name(old) == new for new, old in rules.partners.items())


# --- shapes ---------------------------------------------------------------------------


def _shape_statements(
    message: Message,
    case: Case,
    rows: Sequence[Shapes],
    shapes: dict[str, tuple[int, ...]],
) -> Iterator[Statement]:
    said = {row.name: row.checkpoint for row in message.mismatched}
    other = [
        row.name for row in rows if row.file is not None and row.file != said[row.name]
    ]
    lost = [row.name for row in rows if row.file is None]
    if other:
        yield Statement(
            f"{counted_noun(len(other), 'tensor')} "
            f"{'has' if len(other) == 1 else 'have'} another shape in this file than "
            "in the"
            " message. Is it the file that was loaded?",
            tuple(other),
        )
    if lost:
        yield Statement(
            f"{counted_noun(len(lost), 'tensor')} {be_verb(lost)} not in this file.",
            tuple(lost),
        )
    same = [row for row in message.mismatched if row.name not in other]
    if same and not case.is_useless:
        told = [
            *_of_quantizers(same, shapes),
            *merged_layers(message, shapes, case),
            *name_architectures(message, shapes),
            *adapter_rank(message, case),
        ]
        if told:
            yield from told
            return
        if "your network:" in message.text:
            yield Statement(
                "nnU-Net builds a network by the plans of its dataset, and these were "
                "made from other plans (patch size, spacing): kernels and"
                " strides differ. Give both the same plans: "
                "nnUNetv2_move_plans_between_datasets copies those of the target to "
                "the dataset of the"
                " pretraining, which is then preprocessed and trained with them."
            )
        yield from computed_shapes(same, message, case)
        moved = swin_downsample(message, shapes, case)
        renumbered = frozenset() if moved is None else moved[0]
        buffers = set(computed_buffers([row.name for row in same]))
        same = [
            row
            for row in same
            if row.name not in buffers and row.name not in renumbered
        ]
        if not same:
            return
        gates = gates_statement(same)
        if gates is not None:
            yield gates
            same = [row for row in same if not of_recurrent(row.name)]
        if not same:
            return
        is_sole = len(case.survey.candidates) == 1
        turned = list(
            axes_statements(same, case.survey.load.expression if is_sole else None)
        )
        if turned and not message.missing:
            yield from turned
            return
        dimensions = dimensions_statement(same)
        if dimensions is not None and not all(_is_reshaped(row) for row in same):
            yield dimensions
            return
        is_longer = longer_lists(message, message.missing, message.unexpected, shapes)
        kernels = (
            None
            if is_longer or all(_is_reshaped(row) for row in same)
            else kernel_statement(same)
        )
        if kernels is not None:
            yield kernels
        inputs = inputs_statement(message)
        variant = variant_statement(message, shapes)
        is_named = any(_VOCABULARY.search(row.name) for row in same)
        words = None if is_named else vocabulary_statement(same)
        told_first = [row for row in (variant, inputs, words) if row is not None]
        is_whole = inputs is not None or words is not None
        reasons = [
            *told_first,
            *([] if is_whole else _shape_reasons(same, shapes, message)),
            *settings_of(same, case),
            *_recorded_settings(message, case),
        ]
        yield from reasons
        is_told = kernels is not None or reasons or is_longer
        if not is_told and not all(map(_is_reshaped, same)):
            yield from one_size_statement(same)
        if all(_is_reshaped(row) for row in same):
            yield from _reshape_statements(same, case)
            return
    if case.found("tensor-parallel") or any(_ADDED.search(row.name) for row in rows):
        return
    if any(_is_converted(row.name, shapes) for row in rows):
        return
    # An adapter is less than a tenth of its model, which load_into refuses.
    if is_adapter(shapes) or pretrained_base(case.survey.checkpoint) is not None:
        return
    if not _is_enough(message, shapes):
        return
    if longer_lists(message, message.missing, message.unexpected, shapes):
        return
    if shifted_statement(message) is not None or groups_statement(same) is not None:
        return
    if (
        not case.is_useless
        and not _is_of_a_rank(same)
        and not any(_is_empty(row) for row in same)
    ):
        yield load_into_statement(
            case.survey, "Load what fits, and keep the model's own values elsewhere:"
        )


def _is_enough(message: Message, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether more fits than what load_into refuses: a tenth of the parameters of
    the model.
    """
    differing = {row.name for row in message.mismatched}
    left_over = differing.union(message.unexpected)
    fitting = sum(
        _shape_numel(shape) for name, shape in shapes.items() if name not in left_over
    )
    others = sum(_shape_numel(row.model) for row in message.mismatched)
    return 0 < fitting + others <= 10 * fitting


def _recorded_settings(message: Message, case: Case) -> Iterator[Statement]:
    """Say where the settings of the run are in the file, for a model that lacks whole
    layers of it and has other sizes.
    """
    if not message.unexpected:
        return
    places = [show(place, 80) for place in settings_places(case)]
    if places:
        yield Statement(
            "Layers that the model lacks, beside other sizes, are of another version "
            "or config of it. The settings of the run that saved are in"
            f" this checkpoint, at {and_more(places, 3)}: build the model from them, "
            "with a version of its code that knows them."
        )


def _shape_reasons(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]], message: Message
) -> Iterator[Statement]:
    """The reasons that the shapes themselves show."""
    empty = [
        row
        for row in rows
        if _shape_numel(row.checkpoint) < _shape_numel(row.model)
        and row.checkpoint in ((0,), (1,))
    ]
    if empty:
        yield Statement(
            f"{counted_noun(len(empty), 'tensor')} of the checkpoint "
            f"{'is' if len(empty) == 1 else 'are'} empty, as DeepSpeed ZeRO-3"
            " leaves parameters whose values lie with all ranks. The weights are "
            "elsewhere."
        )
        return
    groups = groups_statement(rows)
    if groups is not None:
        yield groups
        return
    if _is_of_a_rank(rows):
        yield Statement(
            f"Each has one dimension that is 1/{_rank_count(rows[0])} of the model's: "
            "this is the file of one rank of"
            f" {_rank_count(rows[0])} of tensor parallelism, and no model by itself."
        )
        return
    wide = scaled_rows(rows)
    if wide:
        yield width_statement(wide)
    rows = [row for row in rows if row not in wide]
    words = [
        row
        for row in rows
        if _VOCABULARY.search(row.name) and row.checkpoint[1:] == row.model[1:]
    ]
    if words and len({(row.checkpoint[:1], row.model[:1]) for row in words}) == 1:
        row = words[0]
        yield Statement(
            f"The vocabulary has {row.checkpoint[0]:,} rows in the checkpoint and "
            f"{row.model[0]:,} in the model: another"
            " tokenizer, dictionary or config.json, or tokens that were added. In "
            "transformers model.resize_token_embeddings"
            f"({row.checkpoint[0]}) before the load makes room."
        )
    vocabularies = {(row.checkpoint[:1], row.model[:1]) for row in words}
    tabled = [
        row
        for row in rows
        if not _VOCABULARY.search(row.name) and _TABLE.search(row.name)
    ]
    tables = {
        (row.checkpoint[:1], row.model[:1])
        for row in tabled
        if row.checkpoint[1:] == row.model[1:]
    }
    others = [
        row
        for row in rows
        if (row.checkpoint[:1], row.model[:1]) not in vocabularies
        and not _POSITIONS.search(row.name)
    ]
    heads = [
        row
        for row in others
        if (row.checkpoint[:1], row.model[:1]) not in tables
        and _is_head(row, rows, shapes)
    ]
    if wide:  # the outputs of inner layers are another width too
        heads = [
            row for row in heads if _HEAD_WORDS.search(row.name.rpartition(".")[0])
        ]
    is_longer = longer_lists(message, message.missing, message.unexpected, shapes)
    is_moved = renumbered_blocks(message.missing, message.unexpected)
    if heads and not is_moved and not is_longer:
        row = heads[0]
        # With other layers that differ, lack or are left over, the models are not one
        # but for the last layer.
        is_alone = (
            len(heads) == len(others) and not message.missing and not message.unexpected
        )
        is_deeper = not is_alone and any(True for _ in compare_depths(message, shapes))
        layers = {head.name.rpartition(".")[0] for head in heads}
        which = (
            "The last layer" if len(layers) == 1 else f"These {len(layers):,} layers"
        )
        alone = (
            f": another number of classes. {which} cannot be loaded, and the others "
            "can."
            if is_alone
            else ": another number of classes, too."
            if is_deeper
            else f" ({show(row.name, 120)})."
        )
        yield Statement(
            _bins_text(row)
            or f"The checkpoint has {row.checkpoint[0]:,} outputs where the model has "
            f"{row.model[0]:,}{alone}"
        )
    for here, there in sorted(tables):
        same = [
            row.name
            for row in others
            if (row.checkpoint[:1], row.model[:1]) == (here, there)
        ]
        named = and_more([show(name, 120) for name in same], 3)
        yield Statement(
            f"{named} {'has' if len(same) == 1 else 'have'} {here[0]:,} rows in the "
            f"checkpoint and {there[0]:,} in the model: a size that the settings of a"
            " model give."
        )
    turned = [
        row
        for row in rows
        if len(row.checkpoint) == 2 and row.checkpoint == row.model[::-1]
    ]
    if turned and len(turned) == len(rows):
        yield Statement(
            "Each is the transpose of the model's. Another library wrote it "
            "(TensorFlow, JAX), or a Conv1D of GPT-2"
            " stands where the model has a Linear."
        )
    for row in [row for row in rows if _POSITIONS.search(row.name)][:1]:
        counts = " and ".join(
            f"{_positions_text(shape)} in the {side}"
            for side, shape in (("checkpoint", row.checkpoint), ("model", row.model))
        )
        yield Statement(
            f"Position embeddings differ: {counts}. Build the model with the image "
            "size, or the greatest length, of the checkpoint,"
            " or interpolate them. A load of what fits leaves them untrained."
        )
    yield from input_statements(rows, shapes)


def _of_quantizers(
    rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]
) -> Iterator[Statement]:
    """Say that scales and zero points differ, which a quantizer writes beside its codes
    for each group of inputs.
    """
    parts = [row.name.rpartition(".") for row in rows]
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
            f"differ: {here:,} in the checkpoint and {there:,} in"
            " the model. Build the model with the group size of the checkpoint (1 "
            "group: group_size=-1)."
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
        "the same elements in another shape: dimensions of 1 alone"
        " differ."
    )
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


def _is_empty(row: Mismatch) -> bool:
    """Tell whether a tensor has nothing, as ZeRO-3 leaves it: shape [0], or [1] in
    older releases.
    """
    return row.checkpoint in ((0,), (1,)) and _shape_numel(
        row.checkpoint
    ) < _shape_numel(row.model)


def _positions_text(shape: Sequence[int]) -> str:
    """The number of positions of an embedding, and the square of patches that it is:
    `257 (16 x 16 and 1 more)`.
    """
    count = shape[-2] if len(shape) > 1 else 0
    for more in (0, 1, 2, 5):
        side = isqrt(max(0, count - more))
        if side > 2 and side * side == count - more:
            return f"{count:,} ({side} x {side}{f' and {more} more' if more else ''})"
    return f"{count:,}"


def _shape_numel(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _rank_count(row: Mismatch) -> int:
    """The number of ranks among which the only dimension that differs is
    divided, or 0.
    """
    pairs = [
        (one, two)
        for one, two in zip(row.checkpoint, row.model, strict=False)
        if one != two
    ]
    if len(row.checkpoint) != len(row.model) or len(pairs) != 1:
        return 0
    one, two = pairs[0]
    return two // one if one and two % one == 0 and two > one else 0


def _is_of_a_rank(rows: Sequence[Mismatch]) -> bool:
    """Tell whether all differ by the same number of ranks, along more than one
    dimension or in many layers.
    """
    counts = {_rank_count(row) for row in rows}
    if (
        len(counts) != 1
        or not 1 < max(counts) <= _MOST_RANKS
        or len(rows) < _LEAST_DIVIDED
    ):
        return False
    return len({row.name.rpartition(".")[0].rpartition(".")[2] for row in rows}) > 1


_LEAST_DIVIDED = 3
"""Tensors that must all be divided alike: a model of half the width has the same shapes
in a few.
"""


def _is_head(
    row: Mismatch, rows: Sequence[Mismatch], shapes: dict[str, tuple[int, ...]]
) -> bool:
    """Tell whether a tensor is one of the last layers, of which only the outputs
    differ.
    """
    if (
        len(rows) > _MOST_HEADS
        or not row.checkpoint
        or not row.model
        or row.checkpoint[1:] != row.model[1:]
    ):
        return False
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in shapes))
    layer = row.name.rpartition(".")[0]
    return layer in layers[-_LAST:] or bool(_HEAD_WORDS.search(layer))


def _bins_text(row: Mismatch) -> str:
    """The sentence for outputs that are the bins of a spectrum on both sides, one more
    than half of a transform, or an empty text.
    """
    here, there = (2 * (shape[0] - 1) for shape in (row.checkpoint, row.model))
    if here not in _TRANSFORMS or there not in _TRANSFORMS:
        return ""
    return (
        f"The checkpoint has {row.checkpoint[0]:,} outputs where the model has "
        f"{row.model[0]:,} ({show(row.name, 120)}): by their numbers the bins of a "
        f"spectrum, of a transform of {here:,} and of {there:,} samples. Where the "
        f"model is one of sound, set n_fft (filter_length) to {here:,}, as the run "
        "that saved had it."
    )


_TRANSFORMS = (256, 512, 1024, 2048, 4096)
"""Lengths of a Fourier transform that programs for sound use."""
_LAST = 2
_MOST_HEADS = 16
_HEAD_WORDS = re.compile(
    r"(?:^|[._])(?:head|heads|headers?|fc|classifier|classification|cls_score"
    r"|class_embed|bbox_pred|logits"
    r"|score|predictor|detect)(?:$|[._])"
)

_TASK_WORDS = re.compile(
    r"(?:^|[._])(?:pooler|qa_outputs|cls|lm_head|pre_classifier|out_proj|classification"
    r"|projector)(?:$|[._])"
)

_PATTERNS = (
    r"Error\(s\) in loading state_dict for ",
    r"Missing key\(s\) in state_dict",
    r"Unexpected key\(s\) in state_dict",
    r"size mismatch for [^\s:]{1,2000}: copying a param",
    r"unexpected key \"[^\"\n]{1,2000}\" in state_dict",
    r"missing keys in state_dict: ",
    r"(?:unexpected|missing) keys? in source state_dict:",
    r"The model and loaded state dict do not match exactly",
    r"_IncompatibleKeys\((?!missing_keys=\[\], unexpected_keys=\[\]\))",
    r"\b(?:[Mm]issing|[Uu]nexpected)[ _]keys?: ?[\[{]['\"]",
    r"Missing keys \([^)]{1,200}",
    r"Unexpected keys \([^)]{1,200}",
    (
        r"Some weights of (?:the model checkpoint at )?\S{1,2000} were not (?:used"
        r"|initialized)"
    ),
    r"There were (?:missing|unexpected) keys in the checkpoint model loaded:",
    r"Weights of \w{1,200} not initialized from pretrained model:",
    r"Weights from pretrained model not used in \w{1,200}:",
    r"The shape of the parameters of key \S{1,2000} is not the same",
    r"LOAD REPORT",
    r"Weight Not Found for key: ",
    r"\| (?:UNEXPECTED|MISSING|MISMATCH) *\|",
    r"because the following keys are missing:",
    r"[Ff]ound missing adapter keys while loading the checkpoint",
    r"Skip loading parameter '",
    r"Some model parameters or buffers are not found in the checkpoint",
    r"The checkpoint state_dict contains keys that are not used by the model",
    (
        r"expected shape (?:torch\.Size"
        r"|tensor)\([^()]{1,200}(?:\([^()]{1,200}\))?\), but got"
    ),
    r"because it has shape \([\d, ]{0,200}\) in the checkpoint",
    (
        r"has shape \([\d, ]{0,200}\) in the checkpoint but \([\d, ]{0,200}\) in the "
        r"model! Skipped"
    ),
    r"Shape of \S{1,2000} in checkpoint is torch\.Size",
    r"Skip loading parameter [^\s',]{1,2000}, required shape",
    r"(?<![\w.])\w{1,200}\.[\w.]{1,2000} is not in the ckpt\b",
    r"(?<![\w.])\w{1,200}\.[\w.]{1,2000} is not in the checkpoint\b",
    r"(?:Drop parameter|No param) \w{1,200}\.[\w.]{1,2000}\.",
    r"Layer missing in the (?:checkpoint|model definition): ",
    r"Received \d{1,9} parameters not in model:",
    r"Missing \d{1,9} parameters:",
    r"(?:Missing|Unexpected) key\(s\) when loading (?:the )?model: \[",
    r"shape-\S{1,2000}-mismatch[.|] ?need[:-]",
    r"mismatching shape for param \S{1,2000}: ckpt",
    r"Trying to set a tensor of shape ",
    r"You set `ignore_mismatched_sizes` to `False`",
    r"There is no module or parameter named '",
    r": found shape torch\.Size\([^()]{1,200}\) in the checkpoint and ",
    r"please ensure that the architectures match",
    r"Can not map tensor '",
    r"Found unexpected key: \"",
    r"The state dictionary of the model you are trying to load is corrupted",
    r"assert (?:param_data|self\.data|param)\.shape == loaded_weight\.shape",
    r"Attempted to load weight \(torch\.Size\([^()\n]{0,200}\)\) into parameter",
    r"Loading adapter weights from \S{1,2000} led to (?:unexpected|missing) keys",
    r"FSDP assumes \S{1,2000} is in the state_dict but the state_dict only has",
    NOTHING_LOADED.pattern,
)

FAMILIES = (
    Family("keys", _PATTERNS, _answer_keys, _take_keys),
    Family("sizes", (), _answer_keys, _take_keys),
)

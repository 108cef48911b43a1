"""The missing and the unexpected keys of an error: steps that explain them in
their order, each for what the one before it has left.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ckpt.evidence.loading import load_of, path_subscripts
from ckpt.evidence.mapping import Match
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import AVERAGE_COUNTERS
from ckpt.ext.explain.case import (
    Case,
    Statement,
    finding_statements,
    root_keys,
)
from ckpt.ext.explain.families.architectures import compare_depths, likely_pair
from ckpt.ext.explain.families.beginnings import (
    each_beginning,
    load_into_statement,
    whole_beginnings,
)
from ckpt.ext.explain.families.changed import Changed, find_change
from ckpt.ext.explain.families.chunked import chunked_statement, find_chunked
from ckpt.ext.explain.families.computed import (
    below_nothing,
    computed_buffers,
    computed_statement,
    input_scales,
    input_scales_statement,
    masks_statement,
    swin_downsample,
    tied_to_shared,
    unused_statement,
)
from ckpt.ext.explain.families.conversions import (
    adapter_into_base,
    converted_statements,
)
from ckpt.ext.explain.families.dicts_of_parts import dict_of_parts
from ckpt.ext.explain.families.forms import Form, find_forms, normed_elsewhere
from ckpt.ext.explain.families.graphs import graph_statement
from ckpt.ext.explain.families.heads import are_new_heads, heads_among
from ckpt.ext.explain.families.layers import (
    left_over_buffers,
    measured_statement,
    norms_of_stages,
    own_parts,
    own_parts_statement,
    renumbered_statement,
    unlike_statement,
    wrapped_layers,
)
from ckpt.ext.explain.families.leftovers import (
    added_layers,
    classifier_of_backbone,
    form_of_blocks,
    further_head,
    layout_of_experts,
    parts_left_out,
    parts_statement,
    tables_alone,
    tables_statements,
    trained_scales,
    trained_scales_statement,
    variant_of_file,
)
from ckpt.ext.explain.families.libraries import none_has_place
from ckpt.ext.explain.families.loras import parts_of_adapter
from ckpt.ext.explain.families.name_rules import (
    LEAST_TAKEN,
    are_beginnings,
    is_wrapper,
    match_names,
    match_wrapped,
    one_module_deeper,
    one_word_more,
    rename_statement,
    without_beginning,
    without_forms,
    wrapped_model,
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
    SCALE,
    before_converters,
    built_by_quantizers,
    without_order,
)
from ckpt.ext.explain.families.recurrent import (
    deeper_layers_statement,
    layers_statement,
)
from ckpt.ext.explain.families.renaming import combined_rules, rename_line
from ckpt.ext.explain.families.replaced import replaced_parts, replaced_statement
from ckpt.ext.explain.families.speakers import of_speakers
from ckpt.ext.explain.families.spellings import (
    Spelled,
    averaged_keys,
    averages_statement,
    base_of_adapter,
    cut_names,
    cut_statement,
    find_misspelled,
    is_adapter,
    lost_of_recurrent,
    not_trained,
    not_trained_statement,
    of_modules,
    older_leaves,
    older_leaves_statement,
    recurrent_statement,
    spelled_statement,
    trained_adapter,
    with_leaves,
)
from ckpt.ext.explain.families.tied import heads_of_other_tasks, tied_name
from ckpt.ext.explain.families.tracked import untracked_statement
from ckpt.ext.explain.families.turned import places_statement
from ckpt.ext.explain.families.verdicts import (
    another_model,
    apart_statement,
    copies_statement,
    find_copies,
    longer_lists,
    measures_statement,
    other_kinds,
    several_layers,
    whole_for_part,
)
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.findings import Finding
from ckpt.model.text import and_more, be_verb, counted_noun, shell_word, show


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


class KeyLists:
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
        # A key at the root of a checkpoint may be the name of a module too: `model`.
        is_whole = bool(chosen.path) and set(message.unexpected) <= set(root_keys(case))
        self.unexpected = (
            list(message.unexpected)
            if is_whole
            else of_modules(message.unexpected, shapes)
        )
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
        self.is_loaded = False
        """True where the line that loads what fits was printed."""

    def told_parts(self) -> Iterator[Statement]:
        """Say that a dict of state dicts was loaded as one."""
        for row in dict_of_parts(self.message, self.case):
            yield row
            self.is_told = True

    def told_numbers(self) -> Iterator[Statement]:
        """Say that every name stands below nothing, or that layers are counted
        otherwise.
        """
        below = below_nothing(self.missing, self.shapes)
        if below is not None:
            yield below
            self.is_told = True
            return
        wrapped = wrapped_model(self.missing, self.shapes)
        if wrapped is not None:
            yield wrapped
            self.is_told = True
            return
        deeper = (
            None
            if self.unexpected
            else one_module_deeper(self.missing, self.shapes, self.case)
            or one_word_more(self.missing, self.shapes, self.case)
        )
        if deeper is not None:
            yield deeper
            self.is_told = True
            return
        places = places_statement(self.missing, self.here)
        if places is not None:
            yield places
            self.is_told = True
            return
        chunked = find_chunked(self.missing, list(self.shapes))
        if chunked is not None:
            yield chunked_statement(chunked, self.missing, self.case, self._section)
            if self.chosen.path and not self.here and self.unexpected:
                yield Statement(
                    "The whole checkpoint was loaded into the model: hand its "
                    f"{show(self.chosen.name, 80)} to load_state_dict."
                )
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
        # load_state_dict got the whole checkpoint where the unexpected keys are the
        # keys at its root, such as epoch.
        if self.unexpected and not self.here and top.intersection(self.unexpected):
            yield _loaded_whole(self.message, self.survey, self.chosen, self.shapes)
            self.is_told = True
            return
        # Every key is unexpected where a whole model was loaded into one layer.
        part = (
            whole_for_part(self.missing, self.shapes)
            if self.here and len(self.here) == len(self.shapes)
            else None
        )
        if part is not None:
            yield part
            self.is_told = True
            return
        elsewhere = self._in_another_part()
        if elsewhere is not None:
            yield elsewhere
            self.is_told = True
            return
        into_base = adapter_into_base(self.missing, self.here, self.survey)
        if into_base is not None:
            yield into_base
            self.is_told = True
            return
        of_adapter = list(adapter_statements(self.message, self.case))
        if of_adapter:
            yield from of_adapter
            self.is_told = True
            return
        # Cut names come before the question for another file, which lacks them too.
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
                f"The folder holds the model twice: {show(beside, 80)} has it in the "
                "names of its author too, and a loader that takes every file meets "
                "both. In vLLM --load-format mistral with --config-format mistral "
                "takes the one; for the other move it out of the folder."
            )
            self.is_told = True
            return
        converted = converted_statements(self.message, self.shapes, self.case)
        if converted and not self.here:
            yield from converted
            self.is_told = True
            return
        # This does not end the answer, for other names may still explain the keys.
        if (
            self.unexpected
            and not self.here
            and not any(name in self.shapes for name in self.missing)
        ):
            renamed = _renamed_by_program(self.message, self.unexpected, self.shapes)
            if renamed is not None:
                yield renamed
                self.is_told = True
                return
            yield Statement(
                f"{_none_of_text(self.unexpected)} in this file. Is it the file that "
                "was loaded?"
            )

    def _in_another_part(self) -> Statement | None:
        """Say that another part of the file has all missing keys, or return None."""
        wanted = set(self.missing)
        # A file has a few names, such as weight, in many parts.
        if not self.here or len(wanted) < _LEAST_ELSEWHERE or wanted & set(self.shapes):
            return None
        parts = [
            section
            for section in self.survey.sections
            if section.path != self.chosen.path
            and section.kind in ("model", "ema", "other")
            and wanted <= set(section.names())
        ]
        if len(parts) != 1:
            return None
        (part,) = parts
        text = (
            f"All {len(wanted):,} missing keys are in {show(part.name, 80)} of this "
            f"file, and the program loaded {show(self.chosen.name, 80) or 'the root'}. "
            "The file has the model in two forms: name that part to the program"
        )
        # The averages have a prefix that the program may not take off.
        averages = (
            self.case.plan(("slim", "--ema")) if self.chosen.kind == "ema" else None
        )
        if averages is not None and averages.command is not None:
            return Statement(
                f"{text}. {show(self.chosen.name, 80)} has its averages (EMA), which "
                "programs take to predict. By the names of the model:",
                (),
                averages.command,
            )
        load, steps = self.survey.load.expression, path_subscripts(part.path)
        # With several models in a file the line goes down to none of them.
        if load is None or steps is None or len(self.survey.candidates) < _LEAST_PARTS:
            return Statement(f"{text}.")
        line = f"model.load_state_dict({load}{steps})"
        return Statement(f"{text}, or load it so:", (), line)

    def pair_names(self) -> None:
        """Pair the names that the file has with those that the model lacks."""
        wanted = set(self.missing)
        # If no unexpected key is of this file, each key that is not asked for may be
        # the partner of a missing one.
        left = self.here or [name for name in self.shapes if name not in wanted]
        # torch is silent about counters of batch normalization, so one that no message
        # names may lack its place too.
        self.forms = find_forms(self.missing, self.here, self.shapes)
        self.missing, left = without_forms(self.forms, self.missing, left)
        self.here = without_forms(self.forms, (), self.here)[1]
        known = set(left)
        # Names that have their place are handed on, so that no rule changes them.
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
            match_names(left, self.missing, fitting)
            if left and self.missing
            else Match({})
        )
        if (
            self.here
            and len(self.rules.partners) < len(self.missing)
            and is_wrapper(self.rules)
        ):
            # People paste a part of the list. No model has the prefix of a wrapper
            # beside the name without it, so what the text leaves out is unexpected too.
            every = match_names(
                [name for name in self.shapes if name not in wanted], self.missing
            )
            if is_wrapper(every):
                self.rules = every
        if not self.here and not are_beginnings(self.rules):
            self.rules = Match(
                {}
                # nothing but equal ends of names speaks for it: torch would have listed
                # them as unexpected
            )
        settled = settle_rules(self.rules, left, self.missing)
        self.rules, self.heads = settled.rules, settled.heads
        # A rule that is not plain gives no command of ckpt rename. Modules may.
        if self.here and not all(rule.is_plain for rule in self.rules.renames):
            self._prefer_modules(left)
        if not self.rules.partners and (self.here or not self.unexpected):
            self.rules = match_wrapped(self.shapes, self.missing)
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
        # Modules that pair fewer names, or by order alone, do not replace rules.
        is_less = len(placed.partners) < len(self.rules.partners)
        if is_less or placed.is_guess:
            return
        names = list(self.shapes)
        # The modules are taken only where substitutions give each partner its name.
        if combined_rules((), placed.modules, placed.partners, names):
            self.rules = Match({})

    def told_forms(self) -> Iterator[Statement]:
        """Say which layers the file has in another form."""
        is_all = not self.missing and not _unplaced_keys(self.here, set())
        for form in self.forms:
            yield form.statement(self.case, is_all=is_all)
            # A form with nothing else to say ends the answer, if no key is missing.
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
        # A warning of transformers lists the new layers alone, and its keys that were
        # not used stand in another line.
        if absent and not self.unexpected and not self.met and self._is_warning:
            self.more = pair_unsaid(absent, self.shapes)
            if self.more.partners:
                line = self._renaming(self.more.modules, self.more.partners)
                yield placed_statement(self.more, self.total, line, is_more=False)
                self.met = {**self.more.partners}
            return
        rest = _unplaced_keys(self.here, set(self.met.values()))
        # A head is told only where more than half of the file has its place.
        placed = len(self.shapes) - len(rest)
        heads = self.heads if 2 * placed > len(self.shapes) else {}
        if not absent or not rest:
            return
        normed = normed_elsewhere(absent, rest)
        if normed and not self.met and len(normed) == len(absent) == len(rest):
            rules = [f"s/^{re.escape(old)}$/{new}/" for new, old in normed.items()]
            names = [
                f"{show(old, 80)} is {show(new, 100)}" for new, old in normed.items()
            ]
            yield Statement(
                "The keys that are left of both lists are the two tensors of one layer "
                f"with weight norm, in its two namings: {and_more(names, 2)}. "
                "torch.nn.utils.weight_norm writes weight_g and weight_v, and that of "
                "torch.nn.utils.parametrizations original0 and original1. Where a "
                "program renames the other names itself, its table lacks these:",
                (),
                rename_line(rules, self.case, self._section),
            )
            self.is_told = True
            return
        counted = counted_elsewhere(absent, rest, self.shapes)
        if counted is not None and not self.met and not self.message.mismatched:
            line = self._renaming(counted.modules, counted.partners)
            yield counted.statement(line)
            self.is_told = True
            return
        spelled = find_misspelled(absent, rest, self.shapes)
        numbered = find_numbered_words(absent, rest, self.shapes)
        # Names that are spelled otherwise, or have their number in a word, have a later
        # step (told_changes), and a head was settled before.
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
            yield placed_statement(
                self.more,
                self.total,
                line,
                is_more=bool(self.met),
                is_choice=alone is not None,
            )
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

    def told_replaced(self) -> Iterator[Statement]:
        """Say at which places the file has another network than the model."""
        # Another network has no name in common, so one pair of names rules it out.
        if self.met:
            return
        absent = [name for name in self.missing if name not in self.shapes]
        rest = _unplaced_keys(self.here, set())
        parts = replaced_parts(absent, rest, self.shapes)
        if not parts:
            return
        yield replaced_statement(parts)
        ours = {name for part in parts for name in part.ours}
        theirs = {name for part in parts for name in part.theirs}
        self.missing = [name for name in self.missing if name not in theirs]
        self.here = [name for name in self.here if name not in ours]
        self.unexpected = [name for name in self.unexpected if name not in ours]
        self.is_other_size = True
        self.is_told = True

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
        return rename_line(rules, self.case, self._section)

    @property
    def _section(self) -> str | None:
        """The section that a command has to name, where there are several."""
        return self.chosen.name if len(self.survey.candidates) > 1 else None

    def told_renames(self) -> Iterator[Statement]:
        """Say how the names become the ones that the model has."""
        # A plain renaming of PyTorch Geometric could leave its weights transposed.
        graph = graph_statement(self.missing, self.here, self.case)
        if graph is not None:
            yield graph
            self.is_told = True
            return
        if not self.met and (beginnings := whole_beginnings(self.here, self.missing)):
            yield from each_beginning(beginnings, self.here, self.missing, self.case)
            self.is_told = True
            return
        # Rules that give a few of many names are no way to load the others.
        if self.met and self._is_other_version:
            return
        if self.met:
            renamed = set(self.rules.partners.values())
            others = _unplaced_keys(self.here, renamed)
            row = rename_statement(
                self.case, self.chosen, self.rules, self.total, others
            )
            yield row
            self.is_loaded = ".load_into(model)" in (row.command or "")
            yield from without_beginning(self.case, self.rules, self.here)

    @property
    def _is_other_version(self) -> bool:
        """Tell whether rules give a few of many names of a known library, of which the
        model has other names at their places.
        """
        few = _FEW * len(self.met) < len(self.missing)
        placed = len(self.shapes) - len(self.here)
        is_left = len(_unplaced_keys(self.here, set(self.met.values()))) > 0
        return few and is_left and placed > 0 and name_origin(self.survey) is not None

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
                f"{be_verb(self.present)} in this file: another file, or another dict "
                "of it, was loaded."
            )
            # Some programs filter the names, and load what is left with strict=False.
            is_all = not self.absent and not self.message.unexpected
            if is_all and len(self.present) >= LEAST_TAKEN:
                text += (
                    " Or the program takes names with a beginning alone that these do "
                    "not have, and its load with strict=False got nothing (SAM 3: "
                    "detector.): compare with the names that it looks for."
                )
            yield Statement(text, tuple(self.present))
        # thop registers these counters in every module when it profiles a model.
        counters = [
            name for name in self.absent if name.rpartition(".")[2] in _COUNTERS
        ]
        if counters and len(counters) == len(self.absent):
            yield Statement(
                f"The model asks for {counted_noun(len(counters), 'counter')} of a "
                "profiler (thop), which the file does not hold: it was profiled before "
                "the load. Load first, and profile then.",
                tuple(counters),
            )
            self.is_told = True

    def told_depths(self) -> Iterator[Statement]:
        """Say that lists of blocks, or recurrent layers, are deeper on one side, where
        names were paired or lack no beginning.
        """
        # Depths are compared by the names of the file, and then by the renamed ones.
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
        # The blocks of both sides can be counted only under the names of the model.
        moved = {old: new for new, old in self.met.items()}
        named = {name: moved.get(name) or self._renamed(name) for name in self.shapes}
        shapes = {named[name]: shape for name, shape in self.shapes.items()}
        said = self.message._replace(
            missing=tuple(self.absent), unexpected=tuple(named[name] for name in rest)
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
        self.changed = find_change(
            self.message, self.absent, set(self.here), self.shapes
        )
        self.absent = [name for name in self.absent if name not in self.changed.names]
        if self.changed.text:
            yield Statement(self.changed.text, (), self.changed.loading_line(self.case))
        taken = set(self.met.values())
        numbered = find_numbered_words(
            self.absent, [name for name in self.here if name not in taken], self.shapes
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
        # A list that somebody cut names more layers than one.
        if pair is not None and not self.present and not self.message.is_cut:
            # The message may list a part of the layer, and the command moves all of it.
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

    def _told_loss(self) -> Iterator[Statement]:
        """Say that all that lacks belongs to the loss of the training."""
        is_all = not (self.present or self.met or self.here or self.message.mismatched)
        load = self.survey.load.expression
        line = (
            f"model.load_state_dict({load}, strict=False)"
            if is_all and load is not None and len(self.survey.candidates) == 1
            else None
        )
        belongs = (
            "By its name the missing key belongs"
            if len(self.absent) == 1
            else f"By their names the {len(self.absent):,} missing keys belong"
        )
        yield Statement(
            f"{belongs} to the loss or the metrics of the training, as weights of "
            "classes that a newer version of a library keeps as buffers, or a loss "
            "with other options. The model predicts the same without them, and the "
            "loss keeps what it is built with"
            f"{'. strict=False loads all else:' if line is not None else '.'}",
            (),
            line,
        )
        self.is_told = is_all
        self.absent = []

    def told_absent(self) -> Iterator[Statement]:
        """Say why the file lacks what is left of the missing keys."""
        # Statistics that a quantizer or a metric gathers are no weights, so they come
        # before all that speaks of lost weights.
        measured = measured_statement(
            self.absent, is_saved=False
        ) or measures_statement(self.absent)
        if measured is not None and not self.present:
            load = self.survey.load.expression
            is_sole = len(self.survey.candidates) == 1 and not self.here
            if "strict=False" in measured.text and is_sole and load is not None:
                line = f"model.load_state_dict({load}, strict=False)"
                measured = measured._replace(command=line)
            yield measured
            self.is_told = not self.here
            self.absent = []
        # PEFT may build layers of LoRA at more places than the run had trained, so such
        # keys are no loss of the file.
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
            yield from base_of_adapter(
                self.absent, self.shapes, self.case, self.message.text
            )
            self.is_told = True
            return
        yield from self._told_computed()
        if self.is_told:
            return
        if self.absent and all(_OF_LOSS.match(name) for name in self.absent):
            yield from self._told_loss()
            if self.is_told:
                return
        # The steps that read this need a message in which the whole file has its place.
        self.is_alone = not (
            self.present or self.met or self.unexpected or self.message.mismatched
        )
        masks = masks_statement(self.absent) if self.is_alone else None
        if masks is None and self.is_alone:
            masks = unused_statement(self.absent, self.case)
        if masks is not None:
            yield masks
            self.is_told = True
            return
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
        # The next steps may still explain these keys, so the answer does not end.
        if self.absent:
            yield Statement(
                (
                    f"{counted_noun(len(self.absent), 'missing key')} "
                    f"{be_verb(self.absent)} not in this file under a name that ckpt "
                    "can match."
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
        # Formats that are no pickle save one name of each memory, and a recurrent layer
        # of cuDNN has all its weights in one.
        unkept = {} if self.present else lost_of_recurrent(self.shapes, self.case)
        if unkept and set(unkept) <= set(self.absent):
            yield recurrent_statement(unkept)
            self.is_told = True
            return
        tied = tied_name(self.absent, list(self.shapes), self.case)
        if tied is not None and not self.present:
            yield Statement(
                f"{show(self.absent[0], 80)} is the same tensor as {show(tied, 80)} "
                "where a model ties both, and such a file holds it once. Load with "
                "strict=False, and tie them then (model.tie_weights() of "
                "transformers); from_pretrained does both."
            )
            # The keys that the model has no place for are said below.
            self.is_told = not _unplaced_keys(self.here, self.met_here)
            self.absent = []
            return
        # A file without a head is a base model, and one with another head is of another
        # task. Each has its sentence.
        if (
            self.absent
            and not self.present
            and are_new_heads(self.absent, self.message, self.shapes)
        ):
            unplaced = _unplaced_keys(self.here, self.met_here)
            own = heads_of_other_tasks(list(self.shapes))
            heads = heads_among(unplaced) or heads_among(own)
            yield Statement(
                "They are the head for a task, which the checkpoint of a base model "
                "does not have: expected, where the model is to be trained for a new "
                "task. Without training its answers are random. strict=False loads the "
                f"rest.{_pretraining_text(self.here)}"
                if not heads
                else "They are the head of this model, and the file has another one "
                f"({and_more([show(name, 80) for name in heads], 3)}): expected, where "
                "the model is to be trained for other classes or another task. "
                "Without training its answers are random."
            )
            if not unplaced:
                self.is_told = True
            self.absent = []
            return
        # A program may share one module under several names: an agent, its target.
        repeated = find_repeated(self.absent, self.shapes) if self.is_alone else None
        if repeated is not None:
            is_sole = len(self.survey.candidates) == 1
            yield repeated.statement(self.survey.load.expression if is_sole else None)
            self.is_told = True
            return
        origin = name_origin(self.survey) if self.is_alone else None
        if self.absent and origin is not None and origin.startswith("an adapter"):
            # These layers of LoRA have names of another trainer, and are no base model.
            if any(_OF_LORA.search(name) for name in self.absent):
                yield Statement(
                    f"This is {origin} ({show(next(iter(self.shapes)), 100)}), and the "
                    "program asks for layers of LoRA in names of its own "
                    f"({show(self.absent[0], 100)}): it takes the adapters of one "
                    "trainer alone. None of it was loaded. Load it with the usual "
                    "loader for LoRA (ComfyUI: Load LoRA), which knows these names."
                )
                self.is_told = True
                return
            yield Statement(
                f"This is {origin}, and the program wants a whole model of it: an "
                "adapter holds none of the layers of its base. Give the program the "
                "base model here, and this file where it takes an adapter (sd-scripts: "
                "--network_weights, and --control_net_lllite_models for LLLite)."
            )
            self.is_told = True
            return
        parts = parts_left_out(self.absent, self.shapes) if self.is_alone else []
        if parts:
            yield parts_statement(parts, self.shapes, self.message)
            load = self.survey.load.expression
            is_sole = len(self.survey.candidates) == 1 and load is not None
            # Only load_state_dict lists all keys, and so tells that the rest fits.
            if is_sole and "loading state_dict" in self.message.text:
                yield Statement(
                    "If the program loaded the whole file, and no part of it, all "
                    f"{len(self.shapes):,} tensors of the file have their place, for "
                    "the message names no unexpected key. Then they load so, and that "
                    "part stays as the model has it: untrained, if its code loads no "
                    "weights of its own into it:",
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
                        "they were built:"
                    ),
                )
                self.is_told = True
                return

    def _told_copies(self) -> Iterator[Statement]:
        """Say of averages and copies beside the weights what they are, and take them
        from the rest.
        """
        averaged = averaged_keys(self.rest, self.shapes)
        if averaged:
            yield averages_statement(averaged)
            spoken_of = set(averaged)
            self.rest = [name for name in self.rest if name not in spoken_of]
        # Copies beside the weights are surplus only where the model lacks nothing.
        copies = find_copies(self.rest, self.shapes) if not self.missing else []
        if copies:
            yield copies_statement(copies)
            copied = {name for copy in copies for name in copy.names}
            self.rest = [name for name in self.rest if name not in copied]
            self.has_copies = True
        counted = [name for name in self.rest if name in AVERAGE_COUNTERS]
        if counted and self.met and is_wrapper(self.rules):
            yield Statement(
                f"{counted[0]} counts the models of an average (AveragedModel: EMA, "
                "SWA), and is no weight. Without the prefix, strict=False leaves it "
                "out, and nothing else."
            )
            self.rest = [name for name in self.rest if name not in counted]

    def told_rest(self) -> Iterator[Statement]:
        """Say what the unexpected keys are that have no place in the model."""
        self.rest = [
            name
            for name in _unplaced_keys(self.here, self.met_here)
            if name not in self.changed.names
        ]
        yield from self._told_copies()
        classifier = (
            None
            if self.missing
            else classifier_of_backbone(self.rest, name_origin(self.survey) or "")
        )
        if classifier is not None:
            yield classifier
            self.is_told = True
            return
        trained = trained_adapter(self.rest, self.shapes) if self.met else None
        if trained is not None:
            # It decides, so it stands before the command that renames.
            self.verdict.append(trained)
            self.is_told = True
            return
        yield from wrapped_layers(self.rest, self.message, self.case)
        for finding in [
            *self.case.found("extra-buffers", "flat-parameters"),
            *self.case.scaled_findings,
        ]:
            theirs = set(finding.tensors)
            # A finding names its tensors from the root, and a message does not.
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
                    # Converters to GGUF say "Can not map tensor", and take floats.
                    if "Can not map tensor" not in self.message.text:
                        yield from built_by_quantizers(self.case)
                    else:
                        yield from before_converters(self.case)
                self.rest = [name for name in self.rest if name not in spoken]
        scaling = input_scales(self.rest, self.shapes)
        if scaling:
            yield input_scales_statement(scaling)
            self.rest = [name for name in self.rest if name not in scaling]
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
        # Only a list of all names of the file tells that the model has none of them.
        if (
            not self.message.missing
            and len(self.rest) >= LEAST_TAKEN
            and set(self.shapes) <= set(self.rest)
        ):
            yield none_has_place(self.rest, self.case)
            self.is_told = True
            return
        untracked = (
            None
            if self.missing or self.message.mismatched
            else untracked_statement(self.rest, self.shapes, self.case)
        )
        if untracked is not None:
            yield untracked
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
                    "of this file."
                ),
                tuple(self.rest),
            )

    def told_origin(self) -> Iterator[Statement]:
        """Say which program the names are of, or which form of a layer."""
        origin = None
        # Rules that give a few of many names do not make it the same library.
        few = _FEW * len(self.met) < len(self.missing)
        if self.met and few and self.rest and not self.present:
            named = name_origin(self.survey)
            if named is not None and self._is_other_version:
                yield _other_version(
                    named, len(self.shapes) - len(self.here), self.case
                )
                self.is_told = True
                return
            if named is not None:
                yield Statement(
                    f"{origin_opening(named)} {named}, and most names of the model are "
                    "not here under any rule: the model is of another library. Build "
                    "it with that of the file, or take weights of its own library."
                )
                self.is_told = True
                return
        # The likeness of two models is judged only where no step before has found a
        # relation between their names.
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
            # The error of torchtune ("… with the right format") is about the set of
            # names, which the origin below tells.
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
                    "FullModelMetaCheckpointer for those of Meta, "
                    "FullModelHFCheckpointer for those of transformers."
                    if "right format" in self.message.text
                    else "Is it of the class that was built?"
                )
                yield Statement(f"{origin_opening(origin)} {origin}. {follows}")
        # The exact reasons come first. The last says only that no module is shared.
        other_form = (
            several_layers(self.absent, self.rest)
            or form_of_blocks(self.absent, self.rest)
            or layout_of_experts(self.absent, self.rest, self.case)
            or renumbered_statement(self.absent, self.rest)
            or (
                unlike_statement(self.absent, self.rest, self.shapes)
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
        # A model with other blocks is another one, which was said before.
        is_deeper = any(True for _ in compare_depths(self.message, self.shapes))
        # Names that are not of the file say nothing of what has its place.
        is_of_file = bool(self.here) or not self.unexpected
        if (
            is_of_file
            and not self.present
            and not is_deeper
            and not self.changed.text
            and not self.message.mismatched
            and not self.forms
            and not self.is_other_size
            # The names that the message leaves out may have no place either.
            and not self.message.is_cut
        ):
            apart = of_speakers(self.absent, self.shapes, self.case) or apart_statement(
                self.absent, self.rest, self.shapes, self.met
            )
        if apart is not None:
            yield apart
        elif self.message.is_cut and (self.absent or self.rest):
            yield Statement(
                "The lists of the message have dots, so names are left out. With all "
                "of them this says which layers have their place: paste the whole "
                "message, or give its log."
            )
        # Half of a list that was cut off would say the same, so most of the file must
        # have a place.
        is_complete = (
            not self.missing
            and not self.message.mismatched
            and (
                "loading state_dict" in self.message.text
                # mmcv lists all keys of a kind too.
                or "do not match exactly" in self.message.text
                or "in source state_dict" in self.message.text
            )
        )
        is_complete = (
            is_complete and load is not None and 2 * len(self.rest) < len(self.shapes)
        )
        # A model with fewer blocks loads so, and is another one.
        is_complete = is_complete and not is_deeper and not self.message.is_cut
        # Without a trained scale the model would load, and give other results.
        parts = None if self.absent else parts_of_adapter(self.rest)
        if parts is not None:
            yield parts
            self.is_told = True
            return
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
                "training, and are no weights of the model: a program that only "
                "predicts has no place for them, and loses nothing. strict=False "
                "leaves them out."
            )
        # torch before 0.4 names one key, so nothing is known of the others.
        is_old = _OLD_LOAD.search(self.message.text) is not None
        # A whole module without a place is an option of the run, if all else fits.
        own = (
            []
            if self.missing or self.message.mismatched or is_old
            else own_parts(self.rest, self.shapes)
        )
        if "right format" in self.message.text:
            own = []
        if own and not all(_OF_LOSS.match(name) for name in self.rest):
            yield own_parts_statement(own)
        # The one key of torch before 0.4 may be of a deeper model, or a layer that is
        # counted otherwise.
        counted = (
            (
                _deeper_than_model(self.rest, self.shapes)
                or _counted_otherwise(self.rest, self.shapes)
            )
            if is_old
            else None
        )
        if counted is not None:
            yield counted
        elif self.rest and is_old and self.rest[0] == next(iter(self.shapes), None):
            yield _first_statement(self.rest[0], self.shapes)
        elif self.rest and load is not None and _OLD_LOAD.search(self.message.text):
            yield Statement(
                "torch before 0.4 stops at the first such key, so others may follow. "
                "strict=False leaves out all for which the model has no place, and "
                "says nothing of keys that the file lacks:",
                (),
                f"model.load_state_dict({load}, strict=False)",
            )
        variant = (
            variant_of_file(self.rest, self.shapes)
            if is_complete and not own and not self.has_copies
            else None
        )
        if is_complete and not own and not self.has_copies and not self.is_other_size:
            variant = variant or further_head(self.rest)
        if variant is not None and not all(_OF_LOSS.match(name) for name in self.rest):
            yield variant
        # strict=False is offered only where the message is known to list all keys.
        if (
            (self.rest or self.has_copies)
            and is_complete
            and not self.is_other_size
            and not self.case.is_useless
            and len(self.survey.candidates) == 1
        ):
            yield Statement(
                "The message names no missing key, so the model gets all that it asks "
                "for. strict=False leaves these out, and nothing else:",
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
            and not is_deeper
            and not self.is_loaded
        ):
            yield load_into_statement(
                self.survey, "Load what fits, and see what does not:"
            )


def _renamed_by_program(
    message: Message, unexpected: Sequence[str], shapes: Mapping[str, object]
) -> Statement | None:
    """Say that a program gave the names of the file another beginning before it loaded
    them, where the ends of all unexpected keys are in the file, or return None.
    """
    if message.missing or message.mismatched:
        return None
    ends = [name.partition(".")[2] for name in unexpected]
    begins = {name.partition(".")[0] for name in unexpected}
    held = [[name for name in shapes if name.endswith(f".{end}")] for end in ends]
    if len(begins) != 1 or not all("." in end for end in ends) or not all(held):
        return None
    (begin,) = begins
    ours = list(dict.fromkeys(row for rows in held for row in rows))
    shown = and_more([show(name, 80) for name in ours], 4)
    layers = dict.fromkeys(end.rpartition(".")[0] for end in ends)
    named = and_more([show(layer, 60) for layer in layers], 3)
    said = (
        "The message names no missing key, so the model gets all that it asks for: "
        f"it was built without {named}, as a newer version of the library or another "
        "option builds it. In the program's own load, strict=False leaves these out, "
        "and nothing else."
        if "loading state_dict" in message.text
        else f"The model that was built has no place for {named}."
    )
    return Statement(
        f"The file has them by another beginning: {shown}. So the program gave the "
        f"names {show(begin, 40)}. at their beginning itself, before it loaded them. "
        f"{said}"
    )


_OF_VERSIONS = re.compile(r"(?i)(?:^|_)version$")


def _other_version(origin: str, placed: int, case: Case) -> Statement:
    """Say that a part of a file has its place, and that a library gives the others new
    names in another version.
    """
    rows = [
        f"{show(value.name, 60)} = {show(value.node, 40)}"
        for value in case.survey.checkpoint.values
        if value.path
        and _OF_VERSIONS.search(str(value.path[-1]))
        and isinstance(value.node, str)
    ]
    recorded = f" This file records {and_more(rows, 3)}." if rows else ""
    return Statement(
        f"{origin_opening(origin)} {origin}. {counted_noun(placed, 'tensor')} of it "
        f"{'has its' if placed == 1 else 'have their'} place, and the others have "
        "other names than the model asks for: most likely the program that loads is "
        f"of another version than the one that saved.{recorded} Take that version, or "
        "the file that was published for the newer one."
    )


def _pretraining_text(here: Sequence[str]) -> str:
    """The sentence on a file of a pretraining by masks, or an empty text."""
    masks = [name for name in here if name.rpartition(".")[2] == "mask_token"]
    if not masks:
        return ""
    return (
        f" {show(masks[0], 80)} shows that the file is of a pretraining by masks: a "
        "script takes it as weights to begin with (--finetune), and not as a run to "
        "resume or to evaluate."
    )


def _first_statement(first: str, shapes: Mapping[str, object]) -> Statement:
    """Say that the first key of a file has no place in a model, of which torch before
    0.4 tells no more.
    """
    words = dict.fromkeys(name.partition(".")[0] for name in shapes)
    return Statement(
        f"{show(first, 100)} is the first of the {len(shapes):,} keys of this file, "
        "and torch before 0.4 stops at the first key without a place: so none has "
        "found one, and the model may have none of these names. They begin with "
        f"{and_more([show(word, 40) for word in words], 8)}. Compare them with those "
        "that the model asks for, as list(model.state_dict())[:8] shows them: where "
        "the layers are the same, ckpt rename gives each its name, and strict=False "
        "would load nothing of them, in silence."
    )


_FEW = 2
"""Missing keys for each one that a rule gives, beyond which two libraries differ."""
_LEAST_ELSEWHERE = 2
"""Missing keys that another part must have: one alone may be there by chance."""
_LEAST_PARTS = 2
_IN_SEQUENCE = re.compile(r"^(.+)\.(\d{1,3})\.(?:weight|bias)$")


_IN_BLOCK = re.compile(r"^(.*?)\.(\d{1,3})\.(.+)$")
"""A name below a number: the list, the number and what stands below it."""


def _deeper_than_model(
    rest: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> Statement | None:
    """Say that the one key without a place begins layers that the model has fewer of,
    or return None. torch before 0.4 stops there, so those behind it are not named.
    """
    if len(rest) != 1:
        return None
    recurrent = deeper_layers_statement(rest[0], shapes)
    if recurrent is not None:
        return recurrent
    found = _IN_BLOCK.match(rest[0])
    if found is None or found[2] == "0":
        return None
    place, number = found[1], int(found[2])
    blocks: dict[int, list[str]] = {}
    for name in shapes:
        row = _IN_BLOCK.match(name)
        if row is not None and row[1] == place:
            blocks.setdefault(int(row[2]), []).append(row[3])
    own, before = blocks[number], blocks.get(number - 1, [])
    # A block of other layers is no further one, and one that has begun is there.
    if own[0] != found[3] or set(own) != set(before):
        return None
    return Statement(
        f"{show(place, 80)} has {len(blocks)} blocks in this file, and block "
        f"{number} is the first without a place. torch before 0.4 stops there, and "
        "names none of those behind it. Either the model was built with "
        f"{number}: build it with the depth of the file. Or its code names the layers "
        "otherwise from there on: then the file and the code are of two versions, and "
        "one goes with the other. With strict=False the rest loads, and is a model "
        "that was not trained so."
    )


def _counted_otherwise(
    rest: Sequence[str], shapes: Mapping[str, object]
) -> Statement | None:
    """Say that a layer by number has no place in the model, which counts the layers of
    a list otherwise, or return None.
    """
    found = _IN_SEQUENCE.match(rest[0]) if len(rest) == 1 else None
    if found is None:
        return None
    place = found[1]
    numbers = sorted(
        {
            int(row[2])
            for name in shapes
            if (row := _IN_SEQUENCE.match(name)) is not None and row[1] == place
        }
    )
    if len(numbers) < 2:
        return None
    held = and_more([str(number) for number in numbers], 8)
    return Statement(
        f"{show(place, 80)} has layers with weights at {held} in this file, and the "
        f"model has none at {found[2]}. Where it has this list, it counts the layers "
        "otherwise, as where a version of the code has a Dropout or an activation more "
        "or less before them (the VGG of torchvision had its classifier so). torch "
        "before 0.4 stops at the first such key, so others may follow. Take the "
        "version of the code that the file was saved with; strict=False would leave "
        "these layers untrained."
    )


_COUNTERS = ("total_ops", "total_params")

_OLD_LOAD = re.compile(r"KeyError: ['\"]unexpected key \"")
"""The error of torch before 0.4, which names one key."""

_OF_LOSS = re.compile(
    r"(?:\w{1,60}[._])?(?:criterion|criteria|loss|losses|loss_fn|loss_func"
    r"|metrics?)(?:_(?!\w{0,60}(?:head|proj|fc|linear|classifier))\w{1,60})?\."
)
"""The beginning of names of what a training measures its model by. A head that predicts
a loss is a layer.
"""

_OF_LORA = re.compile(r"lora", re.IGNORECASE)


def _has_base_names(rest: Sequence[str], shapes: dict[str, tuple[int, ...]]) -> bool:
    """Tell whether all names belong to a base model of transformers, without the name
    that a head puts in front.
    """
    # A base model of transformers has both at its root, and not below model.
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
    # The lookahead passes over lm_head, which stands beside model. in a whole model.
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
    # A file that ckpt reads itself is no second copy of the model.
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
    # The hint is ckpt slim PATH … -o OUT.
    words = shlex.split(finding.hint)
    # The program asked for weights below this key, so the command must keep it.
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
    # A finding names weights from the root, and the message below the section.
    return last == "biases" and any(
        code == f"{layer}.weight" or code.endswith(f".{layer}.weight") for code in codes
    )


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


def _lost_text(names: Sequence[str], *, is_whole: bool) -> str:
    """Say of the names that no rule finds in a file that they are not in it. `is_whole`
    means that all of the file is taken.
    """
    if not names:
        return ""
    words = dict.fromkeys(name.partition(".")[0] for name in names)
    shown = and_more([show(word, 60) for word in words], 4)
    part = ", so the file seems to be of a part of that model" if is_whole else ""
    return (
        f" The other {counted_noun(len(names), 'key')} ({shown}) "
        f"{be_verb(names)} not in it{part}: after a load of what fits they are as the "
        "model was built."
    )


def _loaded_whole(
    message: Message,
    survey: Survey,
    chosen: Section,
    shapes: dict[str, tuple[int, ...]],
) -> Statement:
    """The whole checkpoint went into load_state_dict, and not its model."""
    # With several models in a file the line of the file goes down to none of them.
    load = load_of(survey.checkpoint, [chosen]).expression
    met = sum(name in shapes for name in message.missing)
    text = (
        "The whole checkpoint was loaded into the model. The weights are in "
        f"{show(chosen.name, 80)}"
    )
    if message.missing:
        text += f", which has {_share_text(met, len(message.missing), 'missing key')}"
    text += "."
    absent = [name for name in message.missing if name not in shapes]
    # The line gives the weights, though perhaps not by the names of the model.
    rules = match_names(list(shapes), absent) if absent else Match({})
    if rules.partners:
        labels = and_more([rule.label for rule in rules.renames], 3)
        text += (
            f" By other names {len(rules.partners):,} of them are there ({labels}): "
            "this gives the weights, and ckpt.open(…).load_into(model) pairs the names."
        )
        text += _lost_text(
            [name for name in absent if name not in rules.partners],
            is_whole=not met,
        )
    elif absent and 2 * met < len(message.missing):
        words = dict.fromkeys(name.partition(".")[0] for name in shapes)
        shown = and_more([show(word, 60) for word in words], 4)
        text += (
            f" Its names begin with {shown}: another library or another class wrote "
            "them, and the model takes them by other names alone, if its layers are "
            "the same."
        )
        origin = name_origin(survey)
        if origin is not None:
            text += f" {origin_opening(origin)} {origin}."
    return Statement(text, (), load)

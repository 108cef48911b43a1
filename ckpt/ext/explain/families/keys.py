"""Errors about names and shapes: a file has other keys than a model."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ckpt.evidence.loading import string_literal
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.ext.explain.case import (
    Answer,
    Case,
    Shapes,
    Statement,
    finding_statements,
    looked_at,
)
from ckpt.ext.explain.families.architectures import (
    compare_depths,
    name_architectures,
    shifted_statement,
)
from ckpt.ext.explain.families.beginnings import NOTHING_LOADED, nothing_loaded
from ckpt.ext.explain.families.classes import (
    BASES,
    TYPES,
    another_class,
    of_another_class,
    task_of,
)
from ckpt.ext.explain.families.copies import (
    COPIED,
    NO_TENSOR,
    names_of_copies,
    names_without_tensors,
    of_copies,
    of_no_tensors,
)
from ckpt.ext.explain.families.fairseq import NOT_BUILT, of_architecture
from ckpt.ext.explain.families.forms import find_forms
from ckpt.ext.explain.families.key_lists import KeyLists
from ckpt.ext.explain.families.mismatches import (
    CONVERTED,
    is_converted,
    mismatch_statements,
)
from ckpt.ext.explain.families.name_rules import (
    LEAST_TAKEN,
    is_wrapper,
    match_names,
    renames_text,
    without_forms,
)
from ckpt.ext.explain.families.pairing import settle_rules
from ckpt.ext.explain.families.programs import of_another_agent
from ckpt.ext.explain.families.quantized import built_by_quantizers
from ckpt.ext.explain.families.replaced import ends_statement
from ckpt.ext.explain.families.spellings import ADDED
from ckpt.ext.explain.families.tracked import TRACKED, of_statistics, statistics_in
from ckpt.ext.explain.family import Family
from ckpt.ext.explain.lists import keys_of
from ckpt.ext.explain.message import LONGEST_LINE, MOST_NAMES, Message, Mismatch
from ckpt.model.text import and_more, show

_HEAD = re.compile(r"Error\(s\) in loading state_dict for ")


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
    names = found.compared
    # A copy that failed lists no keys: "While copying the parameter named …".
    copied = COPIED.search(text, begin)
    if copied is not None and not (found.missing or found.unexpected):
        message = message._replace(text=" ".join(copied[0].split())[:LONGEST_LINE])
        names = names_of_copies(text[begin:])[:MOST_NAMES]
    bare = NO_TENSOR.search(text, begin)
    if bare is not None and not (found.missing or found.unexpected):
        message = message._replace(text=" ".join(bare[0].split())[:LONGEST_LINE])
        names = names_without_tensors(text[begin:])[:MOST_NAMES]
    # torch names the statistics of a norm in lines of their own.
    tracked = TRACKED.search(text, begin)
    if tracked is not None:
        both = " ".join(f"{message.text} {tracked[0]}".split())
        message = message._replace(text=both[:LONGEST_LINE])
        names = statistics_in(text[begin:])[:MOST_NAMES]
    is_sizes = bool(found.mismatched) and not found.missing and not found.unexpected
    return message._replace(
        kind="sizes" if is_sizes else "keys",
        missing=found.missing,
        unexpected=found.unexpected,
        mismatched=found.mismatched,
        names=names,
        types=types[-1] if types else None,
        task=task_of(text),
        is_cut=_is_cut(text, (found.missing, found.unexpected)),
    )


_DOTS = re.compile(r"['\"`]?\s*,?\s*(?:\.{2,}|…|\[\.{2,}|etc\b)")


_DOTS_BETWEEN = re.compile(r"\w['\"],? ?(?:\.{3,12}|…) ?,? ?['\"]\w")


def _is_cut(text: str, lists: tuple[tuple[str, ...], ...]) -> bool:
    """Tell whether dots stand between two names, or behind the last name of a list."""
    if any(lists) and _DOTS_BETWEEN.search(text):
        return True
    for names in lists:
        at = text.rfind(names[-1]) if names else -1
        if at >= 0 and _DOTS.match(text, at + len(names[-1])):
            return True
    return False


def answer_of_names(message: Message) -> Answer | None:
    """Return the answer that the names of an error give without a file: the rule that
    makes missing and unexpected keys the same.
    """
    if message.types:
        return Answer("", (another_class(*message.types),))
    if not message.missing or not message.unexpected:
        return None
    # Another form of a layer is no rename, so its names are taken off before.
    forms = find_forms(message.missing, message.unexpected, {})
    asked, held = without_forms(forms, message.missing, message.unexpected)
    rules = settle_rules(match_names(held, asked), held, asked).rules
    if not rules.partners and forms:
        return Answer("", tuple(Statement(form.text) for form in forms))
    if not rules.partners:
        return None
    command = "ckpt strip FILE -o OUT" if is_wrapper(rules) else None
    subs = " ".join(f"--sub {shlex.quote(rule.substitution)}" for rule in rules.renames)
    if (
        command is None
        and rules.renames
        and all(rule.is_plain for rule in rules.renames)
    ):
        command = f"ckpt rename FILE {subs} -o OUT"
    return Answer(
        "", (Statement(renames_text(rules, len(message.missing)), (), command),)
    )


def _answer_keys(message: Message, case: Case) -> Answer:
    path = case.survey.path
    # Lines of detectron2 may compare two layers whose names only end alike.
    names = {name: () for part in case.survey.candidates for name in part.names()}
    # The names of a copy that failed are no pairs.
    is_copy = any(row.search(message.text) for row in (COPIED, NO_TENSOR))
    is_other = is_copy or TRACKED.search(message.text) is not None
    compared = [] if is_other else list(ends_statement(message, names))
    if compared and not (message.missing or message.mismatched):
        return Answer(path, tuple(compared))
    if not (message.missing or message.unexpected or message.mismatched):
        unnamed = tuple(_unnamed_statements(message, case))
        return Answer(path, unnamed) if unnamed else looked_at(case)
    chosen = _choose_section(message, case)
    if chosen is None:
        return Answer(
            path, (_without_model(case), *finding_statements(case.at_least("warning")))
        )
    serious = list(finding_statements(case.at_least("error")))
    if TRACKED.search(message.text):
        serious += of_statistics(message, case)
    other = of_another_class(message, case) or of_another_agent(message, chosen.names())
    if other is not None:
        return Answer(path, (*serious, other))
    shapes_in_file = {
        name: entry.tensor.shape
        for name, entry in zip(chosen.names(), chosen.entries, strict=True)
    }
    message = _with_names_of(message, shapes_in_file)
    # A program may strip the prefix of a wrapper, and name keys without it.
    as_stripped = _as_stripped(message, shapes_in_file)
    taken = _taken_beginning(message, shapes_in_file)
    before: list[Statement] = compared
    if taken:
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
    # Ranks of tensor parallelism explain other shapes, so they stand before these.
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
            for row in mismatch_statements(message, case, differing, shapes_in_file)
            if row not in deciding
        ]
    if taken:
        rows = [_without_beginning(row, taken, case) for row in rows]
    return Answer(path, (*serious, *rows), shapes=differing)


_NO_LETTER = re.compile(r"[^A-Za-z0-9]")


def _with_names_of(message: Message, shapes: dict[str, tuple[int, ...]]) -> Message:
    """A message about shapes with the names of the file, where it was typed or read off
    a picture: dots, dashes and underscores are taken for one another.
    """
    if all(row.name in shapes for row in message.mismatched):
        return message
    letters: dict[str, list[str]] = {}
    for name in shapes:
        letters.setdefault(_NO_LETTER.sub("", name), []).append(name)
    rows: list[Mismatch] = []
    is_retyped = False
    for row in message.mismatched:
        names = letters.get(_NO_LETTER.sub("", row.name), [])
        if row.name in shapes or len(names) != 1:
            rows.append(row)
            continue
        is_retyped = True
        # A shape that the file does not have was read wrongly, too.
        if shapes[names[0]] == row.checkpoint:
            rows.append(row._replace(name=names[0]))
    return message._replace(mismatched=tuple(rows)) if is_retyped else message


def _without_beginning(row: Statement, begin: str, case: Case) -> Statement:
    """A statement whose line takes the beginning off the names, as the program does: a
    load with strict=False would else take no tensor, and say nothing.
    """
    load = case.survey.load.expression
    line = f"model.load_state_dict({load}, strict=False)"
    if load is None or row.command != line:
        return row
    return row._replace(
        command=(
            f"model.load_state_dict({{name.removeprefix({string_literal(begin)}): "
            f"value for name, value in {load}.items()}}, strict=False)"
        )
    )


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
    begins = [
        name.removesuffix(said[0]) for name in shapes if name.endswith(f".{said[0]}")
    ]
    whole = [
        begin for begin in begins if all(f"{begin}{name}" in shapes for name in said)
    ]
    # A file may hold one module twice, and then a copy that is meant for use counts.
    if len(whole) > 1 and len(said) >= LEAST_TAKEN and not message.mismatched:
        used = [begin for begin in whole if _OF_USE.search(begin)]
        whole = used if len(used) == 1 else whole
    if len(whole) != 1:
        return ""
    # A few names may end like others, where not all names begin so.
    is_shared = not message.mismatched and all(
        name.startswith(whole[0]) for name in shapes
    )
    if len(said) < min(len(shapes), LEAST_TAKEN) and not is_shared:
        return ""
    is_same = all(
        shapes[f"{whole[0]}{row.name}"] == row.checkpoint for row in message.mismatched
    )
    return whole[0] if is_same else ""


_OF_USE = re.compile(r"(?:^|[._])(?:teacher|ema|target|momentum)(?:$|[._])")
"""Words for the copy of a network that self-supervised training keeps for use."""


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
    if TRACKED.search(message.text):
        yield from of_statistics(message, case)
        return
    if COPIED.search(message.text):
        yield from of_copies(message, case)
        return
    if NO_TENSOR.search(message.text):
        yield from of_no_tensors(message, case)
        return
    not_built = NOT_BUILT.search(message.text)
    if not_built is not None:
        yield from of_architecture(not_built, case)
        return
    # transformers says "is corrupted" of whole files whose names lack a prefix.
    if "is corrupted" in message.text and not case.damage:
        yield from _without_prefix(case)
        return
    # loaded_weight is a variable of vLLM, whose assertion names no tensor.
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
        "names of a base model without the prefix of the class, beside the names of a "
        f"head. Here they begin with {and_more([show(root, 40) for root in base], 4)}, "
        f"and the head is {and_more([show(root, 40) for root in heads], 2)}."
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


def _shape_in_file(
    name: str, shapes: dict[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The shape of a tensor by its name, or by the end of it where a message has left
    out what is in front.
    """
    for other in (name, ADDED.sub("", name)):
        if other in shapes:
            return shapes[other]
    end = CONVERTED if is_converted(name, shapes) else f".{name}"
    ends = [shape for other, shape in shapes.items() if other.endswith(end)]
    return ends[0] if len(set(ends)) == 1 else None


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
    counts = [sum(name in wanted for name in part.names()) for part in candidates]
    most = max(counts, default=0)
    if most:
        return candidates[counts.index(most)]
    models = survey.candidates
    if not models:
        return None
    # The names around the missing keys tell weights and averages apart, where one of
    # them has a prefix: model.encoder.weight beside encoder.weight.
    roots = {name.partition(".")[0] for name in message.missing if "." in name}
    parts = [models[0], *candidates]
    shares = [
        sum(name.partition(".")[0] in roots for name in part.names()) for part in parts
    ]
    return parts[shares.index(max(shares))]


def _missing_statements(
    message: Message, case: Case, chosen: Section, shapes: dict[str, tuple[int, ...]]
) -> Iterator[Statement]:
    """Say why keys are missing, and why others have no place."""
    lists = KeyLists(message, case, chosen, shapes)
    if not lists.missing and not lists.unexpected:
        return
    # These steps need no pairs of names, and may end the answer before the pairing.
    for step in (lists.told_parts, lists.told_numbers, lists.told_without_pairs):
        yield from step()
        if lists.is_told:
            return
    lists.pair_names()
    # A later step sets the verdict, which is printed before these rows.
    rows: list[Statement] = []
    for step in (
        lists.told_forms,
        lists.told_renames,
        lists.told_modules,
        lists.told_replaced,
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


_PATTERNS = (
    # torch: Error(s) in loading state_dict for Net, and its two lists of keys.
    r"Error\(s\) in loading state_dict for ",
    r"Miss(?:ing)? key\(s\) in state_dict",
    r"Unexpected key\(s\) in state_dict",
    r"size mismatch for [^\s:]{1,2000}:\s{1,40}copying\s{0,40}a\s{0,40}param",
    # torch before 0.4, which names one key and stops.
    r"unexpected key \"[^\"\n]{1,2000}\" in state_dict",
    r"missing keys in state_dict: ",
    # mmcv: unexpected key in source state_dict: fc.weight, fc.bias.
    r"(?:unexpected|missing) keys? in source state_dict:",
    r"The model and loaded state dict do not match exactly",
    # The result of strict=False. The lookahead passes over a load without a lack.
    r"_IncompatibleKeys\((?!missing_keys=\[\], unexpected_keys=\[\]\))",
    r"\b(?:[Mm]issing|[Uu]nexpected)[ _]keys? ?[:=] ?[\[{]['\"]",
    # timm: Unexpected keys (head.weight, head.bias) found while loading …
    r"Missing keys \([^)]{1,200}",
    r"Unexpected keys \([^)]{1,200}",
    # transformers before 5, and diffusers.
    (
        r"Some weights of (?:the model checkpoint at )?\S{1,2000} were not (?:used"
        r"|initialized)"
    ),
    # The Trainer of transformers, when it resumes.
    r"There were (?:missing|unexpected) keys in the checkpoint model loaded:",
    # transformers 2 and pytorch-pretrained-bert, in logs.
    r"Weights of \w{1,200} not initialized from pretrained model:",
    r"Weights from pretrained model not used in \w{1,200}:",
    # nnU-Net, with both shapes behind it.
    r"The shape of the parameters of key \S{1,2000} is not the same",
    r"LOAD REPORT",
    # YOLO of MultimediaTechLab, one line per key.
    r"Weight Not Found for key: ",
    # The table of transformers 5, and then diffusers.
    r"\| (?:UNEXPECTED|MISSING|MISMATCH) *\|",
    r"because the following keys are missing:",
    # ESMFold.
    r"\bKeys? '[\w.]{3,2000}(?:,[\w., \n]{1,20000})?' (?:are|is) missing\b",
    # PEFT.
    r"[Ff]ound missing adapter keys while loading the checkpoint",
    # fvcore, in the logs of detectron2 and its kin.
    r"Skip loading parameter '",
    r"Unable to load '[^'\n]{1,2000}' to the model due to incompatible shapes",
    r"Some model parameters (?:or buffers )?are not (?:found )?in the checkpoint",
    r"The checkpoint state_dict contains keys that are not used by the model",
    # diffusers: conv_in.weight expected shape torch.Size([320, 4, 3, 3]), but got …
    (
        r"expected shape (?:torch\.Size"
        r"|tensor)\([^()]{1,200}(?:\([^()]{1,200}\))?\), but got"
    ),
    TRACKED.pattern,
    r"because it has shape \([\d, ]{0,200}\) in the checkpoint",
    (
        r"has shape \([\d, ]{0,200}\) in the checkpoint but \([\d, ]{0,200}\) in the "
        r"model! Skipped"
    ),
    # YOLOX and CenterNet, which skip a tensor of another shape.
    r"Shape of \S{1,2000} in checkpoint is torch\.Size",
    r"Skip loading parameter [^\s',]{1,2000}, required shape",
    # YOLOX, ByteTrack, VITS, RVC, CenterNet and Coqui TTS name one key per line.
    r"(?<![\w.])\w{1,200}\.[\w.]{1,2000} is not in the ckpt\b",
    r"(?<![\w.])\w{1,200}\.[\w.]{1,2000} is not in the checkpoint\b",
    r"(?:Drop parameter|No param) \w{1,200}\.[\w.]{1,2000}\.",
    r"Layer missing in the (?:checkpoint|model definition): ",
    # MLX, whose older versions give no number.
    r"Received (?:\d{1,9} )?parameters not in model:",
    r"Missing \d{1,9} parameters:",
    # lerobot.
    r"(?:Missing|Unexpected) key\(s\) when loading (?:the )?model: \[",
    # RVC, which gives the shape of the model first.
    r"shape-\S{1,2000}-mismatch[.|] ?need[:-]",
    r"mismatching shape for param \S{1,2000}: ckpt",
    r"Trying to set a tensor of shape ",
    r"You set `ignore_mismatched_sizes` to `False`",
    r"There is no module or parameter named '",
    r": found shape torch\.Size\([^()]{1,200}\) in the checkpoint and ",
    # fairseq: Cannot load model parameters from checkpoint x.pt; please ensure …
    r"please ensure that the architectures match",
    r"[Ww]hile copying the parameter named",
    # The converter of llama.cpp, and torchtune.
    r"Can not map tensor '",
    r"Found unexpected key: \"",
    # transformers, where names lack the prefix of their class.
    r"The state dictionary of the model you are trying to load is corrupted",
    # vLLM, by the line of its source or by the message of its assertion.
    r"assert (?:param_data|self\.data|param)\.shape == loaded_weight\.shape",
    r"Attempted to load weight \(torch\.Size\([^()\n]{0,200}\)\) into parameter",
    r"Loading adapter weights from \S{1,2000} led to (?:unexpected|missing) keys",
    # FSDP of torch.
    r"FSDP assumes \S{1,2000} is in the state_dict but the state_dict only has",
    NOTHING_LOADED.pattern,
)

FAMILIES = (
    Family("keys", _PATTERNS, _answer_keys, _take_keys),
    # A text with shapes and no keys gets this kind, which has no patterns of its own.
    Family("sizes", (), _answer_keys, _take_keys),
)

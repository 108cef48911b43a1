"""Weights that are no values as they stand, for several jobs: codes with scales, and
parameters without elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ckpt.evidence.emptied import Emptied, emptied_of, emptied_parts
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.columns import row_looks
from ckpt.model.errors import UsageError
from ckpt.model.findings import Finding, Plan
from ckpt.model.tensors import parts_of
from ckpt.model.text import be_verb, counted_noun, show, show_folded_names, show_names

_GATHER = (
    "DeepSpeed ZeRO-3 saves such a file and keeps them elsewhere: gather them with "
    "stage3_gather_16bit_weights_on_model_save, or let ckpt convert take them from the "
    "folder of the run, which holds global_step."
)
_UNFLATTEN = (
    "Load it into the same FSDP model on as many ranks, and save with FULL_STATE_DICT."
)
_NAMED = (
    "adapter_model",
    "pytorch_model",
    "model",
    "diffusion_pytorch_model",
    "consolidated",
)
"""The names of files that hold weights, without their ending."""


# --- codes and scales -----------------------------------------------------------------


def scaled_findings(survey: Survey, plan: Plan) -> Iterator[Finding]:
    """Yield a finding for each layout of quantized weights: what the tensors beside
    them are for. The last has the command that makes floats of all.
    """
    scaled = survey.scaled
    config = (
        ""
        if scaled.config is None
        else f" (config.json: {show(scaled.config.method, 40)})"
    )
    # Here and below: few files hold codes.
    from ckpt.evidence.scaled import groups_of, is_shard

    groups = groups_of(scaled, survey.tensors)
    for number, group in enumerate(groups, 1):
        names = [survey.tensors[index].name for index in group.indices]
        text = f"{group.text}{config}: {show_folded_names(names)}."
        follows = (
            "These tensors hold codes: each is a value only with its scale, and "
            "--dtype does not cast it."
        )
        hint = plan(("dequantized",)).command if number == len(groups) else None
        yield Finding("scaled", text, tuple(names), hint, consequence=follows)
    if scaled.unpaired:
        names = [survey.tensors[index].name for index in scaled.unpaired]
        text = f"FP8 without a scale in this file{config}: {show_folded_names(names)}."
        follows = "Others have one, so theirs may be in another file."
        if not scaled.codes and scaled.config is not None:
            follows = "The config says that there are scales, and ckpt finds none."
        elif not scaled.codes and is_shard(survey.checkpoint):
            follows = (
                "This is one file of several, so a scale may be in another: ckpt reads "
                "them by their folder."
            )
        yield Finding("scaled", text, tuple(names), consequence=follows)
    yield from _lone_scales(survey)


def _lone_scales(survey: Survey) -> Iterator[Finding]:
    """Yield findings about scales whose weights are no codes, or are not there."""
    lone = [index for index, row in survey.scaled.beside.items() if row.codes is None]
    if not lone:
        return
    from ckpt.evidence.scaled import LONE

    types = {entry.name: entry.tensor.dtype.name for entry in survey.tensors}
    cast: list[str] = []
    absent: list[str] = []
    for name in (survey.tensors[index].name for index in lone):
        (cast if name.removesuffix(LONE) in types else absent).append(name)
    if cast:
        held = show_names(
            list(dict.fromkeys(types[name.removesuffix(LONE)] for name in cast))
        )
        text = f"The weights beside {show_folded_names(cast)} are {held}, not codes."
        follows = (
            "Either they are multiplied by these scales already, or they were cast "
            "without them and are wrong."
        )
        yield Finding(
            "scaled", text, tuple(cast), raised="warning", consequence=follows
        )
    if absent:
        text = f"The weights of {show_folded_names(absent)} are not in this file."
        yield Finding("scaled", text, tuple(absent))


def codes_finding(names: Sequence[str]) -> Iterator[Finding]:
    """Yield the finding that numbers belong to codes."""
    if names:
        text = (
            f"The numbers of {show_folded_names(names)} are of codes, before scaling."
        )
        yield Finding("scaled", text, tuple(names))


def codes_of(survey: Survey) -> dict[str, str]:
    """The name of each tensor that holds codes -> its layout."""
    scaled = survey.scaled
    # An 8-bit float whose scale lies in another file is no value either.
    indices = (*scaled.codes, *scaled.unpaired)
    return {survey.tensors[index].name: scaled.what(index) or "" for index in indices}


def refuse_scaled(survey: Survey, names: Iterable[str], option: str) -> None:
    """Raise UsageError where a cast would take codes for values."""
    codes = codes_of(survey)
    wrong = [name for name in names if name in codes] if codes else []
    if wrong:
        labels = dict.fromkeys(codes[name] for name in wrong)
        count = counted_noun(len(wrong), "tensor")
        what = (
            f"{count} {'holds' if len(wrong) == 1 else 'hold'} codes, which are values "
            f"only with their scales, and {option} casts neither: "
            f"{show_folded_names(wrong)} ({', '.join(labels)})"
        )
        hint = f"without {option} they are written as they are, with their scales"
        raise UsageError(what, path=survey.path, hint=hint)


# --- no weights -----------------------------------------------------------------------


def emptied_findings(survey: Survey) -> Iterator[Finding]:
    """Yield what says that a file holds no weights, or not as parameters."""
    if not survey.tensors:
        yield from _no_weights_finding(survey.checkpoint)
        return
    yield from _without_values(survey)
    for row in emptied_parts(survey.candidates):
        text = (
            f"{_sentence_subject(row, survey.checkpoint)} {_sentence_predicate(row)}."
        )
        if row.kind in ("flat", "pieces"):
            yield Finding("flat-parameters", text, row.names, consequence=_UNFLATTEN)
        elif _is_of_rank(survey.checkpoint):
            follows = "The files of all ranks hold them together: convert their folder."
            yield Finding(
                "no-weights", text, row.names, raised="info", consequence=follows
            )
        else:
            yield Finding("no-weights", text, row.names, consequence=_GATHER)


def refuse_emptied(survey: Survey, section: Section) -> None:
    """Raise UsageError for a model without weights."""
    row = emptied_of(section)
    if row is None or (row.kind == "empty" and not _is_most(row)):
        return
    follows = _UNFLATTEN if row.kind in ("flat", "pieces") else _GATHER
    raise UsageError(
        _sentence_predicate(row), path=survey.path, hint=follows.rstrip(".")
    )


def _sentence_subject(row: Emptied, checkpoint: Checkpoint) -> str:
    if row.section:
        return show(row.section, 60)
    return "The folder" if checkpoint.parts else "The file"


def _is_most(row: Emptied) -> bool:
    """Tell whether what is left is no model."""
    # `emptied_of` asks a whole model for a majority, and an adapter for one tensor.
    return not row.is_adapter or 2 * len(row.names) > row.total


def _sentence_predicate(row: Emptied) -> str:
    """The predicate of a sentence about a section."""
    count, names = len(row.names), show_folded_names(row.names)
    some = f"{count:,} of {row.total:,}"
    if row.kind == "empty":
        if not _is_most(row):
            return f"lacks the values of {some} parameters, which are empty: {names}"
        return f"holds no weights: {some} parameters are empty"
    if row.kind == "single":
        return f"holds no weights: {some} parameters have one element, matrices too"
    if row.kind == "flat":
        return (
            "holds all parameters of a module in one tensor, without their names and "
            f"shapes: {names}"
        )
    return (
        f"holds matrices as lists, as a rank of FSDP 1 keeps its part of them: {names}"
    )


def _is_of_rank(checkpoint: Checkpoint) -> bool:
    """Tell whether a file is one that DeepSpeed writes for each rank, with the shapes
    of what others hold.
    """
    # zero_to_fp32.py of DeepSpeed takes the shapes of the flat partitions from it.
    return any(
        not row.path and "param_shapes" in row.keys for row in checkpoint.containers
    )


def valueless(checkpoint: Checkpoint) -> list[str]:
    """The tensors on the device meta, which have a shape and no values."""
    if not any(storage.device == "meta" for storage in row_looks(checkpoint.storages)):
        return []
    return [
        entry.name
        for entry in checkpoint.tensors
        if any(part.storage.device == "meta" for part in parts_of(entry.tensor))
    ]


def _without_values(survey: Survey) -> Iterator[Finding]:
    """Yield the finding about tensors on the device meta: an error where a whole model
    is of them.
    """
    # A live model may be on meta on purpose: nobody saved it so.
    names = [] if survey.checkpoint.traits.is_live else valueless(survey.checkpoint)
    if not names:
        return
    held = set(names)
    is_whole = any(
        all(entry.name in held for entry in part.entries)
        for part in survey.candidates
        if part.entries
    )
    text = (
        f"{counted_noun(len(names), 'tensor')} {be_verb(names)} on "
        f"the device meta, saved without values: {show_folded_names(names)}."
    )
    follows = (
        "The run had not loaded them, or kept them elsewhere, when it saved. Take "
        "another save."
    )
    yield Finding(
        "no-weights",
        text,
        tuple(names),
        raised=None if is_whole else "warning",
        consequence=follows,
    )


def _no_weights_finding(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield the finding about a file of weights without a tensor."""
    members = [row for row in checkpoint.members if row.is_model]
    files = [row.file for row in members] or [checkpoint.path]
    stems = {
        file.replace("\\", "/").rpartition("/")[2].partition(".")[0] for file in files
    }
    is_named = not stems.isdisjoint(_NAMED)
    traits = checkpoint.traits
    # A pickle without tensors may be anything; safetensors and GGUF are for tensors.
    is_plain = not (
        traits.is_pickle or traits.is_set or traits.is_folder or traits.is_foreign
    )
    if not (members or is_named or is_plain) or traits.names_are_code or traits.is_live:
        return
    follows = (
        "Whoever saved it passed an empty state dict, or it has settings alone, such "
        "as a vocabulary."
    )
    if "adapter_model" in stems:
        follows = (
            "PEFT writes one under DeepSpeed ZeRO-3, and where a script replaced "
            "state_dict."
        )
    yield Finding(
        "no-weights", "The file holds no weights: not one tensor.", consequence=follows
    )

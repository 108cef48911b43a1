"""Adapters of diffusion models where programs merge them: ranks and bases that differ,
and whole models in the place of an adapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.architectures import TEXT_WIDTHS
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.text import and_more, be_verb, counted_noun, show

_DOWN = re.compile(r"\.(?:lora_down|lora_A)(?:\.\w{1,100})?\.weight$")
"""The matrix of a layer of LoRA whose rows are the rank."""
_OF_TEXT = re.compile(r"attn2[._]to_[kv]\.lora")
"""The layers of a diffusion model that take the text."""
# hada is a LoHa of LyCORIS, lokr a LoKr, and oft a rotation.
_LORA = re.compile(r"[._]lora[._]|^lora_|\.(?:hada_w|lokr_w|oft_|boft_)")


def ranks_and_widths(case: Case) -> tuple[list[int], list[int]]:
    """The ranks of an adapter, and the widths of text that its layers take."""
    ranks: set[int] = set()
    widths: set[int] = set()
    for entry in case.survey.tensors:
        shape = entry.tensor.shape
        if not _DOWN.search(entry.name) or len(shape) < 2:
            continue
        # A linear layer and a convolution both have their rank in the rows.
        ranks.add(shape[0])
        if _OF_TEXT.search(entry.name):
            # The columns take the text, so they are as many as its width.
            widths.add(shape[1])
    return sorted(ranks), sorted(widths)


def _answer_merge(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a program that merges adapters tensor by tensor, where two shapes
    differ.
    """
    del message
    ranks, widths = ranks_and_widths(case)
    if not ranks:
        origin = name_origin(case.survey)
        said = "" if origin is None else f" {origin_opening(origin)} {origin}."
        yield Statement(
            f"No tensor of this file is of an adapter of LoRA, and the program merges "
            f"adapters.{said}"
        )
        return
    shown = and_more([f"{rank:,}" for rank in ranks], 4)
    text = f"This adapter has rank {shown} (the rows of its lora_down or lora_A)"
    bases = [
        f"{width:,} ({TEXT_WIDTHS[width]})" for width in widths if width in TEXT_WIDTHS
    ]
    if bases:
        text += f", and its cross-attention takes text of width {and_more(bases, 2)}"
    yield Statement(
        f"{text}. The program adds the tensors of one name, and some have another "
        "shape in the other file: it has another rank, or was trained on another base "
        "model. ckpt diff of both lists the shapes that differ."
    )
    yield Statement(
        "Where the ranks alone do, svd_merge_lora.py of sd-scripts merges them, and "
        "merge_lora.py with --concat does. Adapters of different base models cannot be "
        "merged: they change layers of other sizes."
    )


def of_cut_name(name: str, case: Case) -> Iterator[Statement]:
    """Answer a key that is the name of a tensor without its last letter: so a program
    cuts names whose end it does not find, and an adapter has such ends.
    """
    names = [entry.name for entry in case.survey.tensors]
    whole = next((other for other in names if other[:-1] == name), None)
    # An adapter has the ends that the program looks for, so its fault is another one.
    if whole is None or any(map(_LORA.search, names)):
        return
    origin = name_origin(case.survey)
    said = (
        f"{counted_noun(len(names), 'tensor')} of weights" if origin is None else origin
    )
    yield Statement(
        f"This is {show(whole, 120)} of this file without its last letter: the program "
        "cuts the names of an adapter before .lora_, and this one has no such end. So "
        "it takes the file for an adapter of LoRA, and it is none: it holds "
        f"{said}. Give it adapters; whole models are merged by another tool, and an "
        "adapter is made of one by the difference from its base "
        "(extract_lora_from_models.py of sd-scripts)."
    )


_OLDER_NAMES = re.compile(r"(?:^|[._])lora\.(?:down|up)\.weight$")
"""Keys of layers of LoRA in diffusers before 0.22."""


def of_older_names(name: str, case: Case) -> Iterator[Statement]:
    """Answer a loader that asks for a layer of LoRA by the older names of diffusers."""
    names = [entry.name for entry in case.survey.tensors]
    # The names of the file must be the newer ones.
    if not _OLDER_NAMES.search(name) or any(map(_OLDER_NAMES.search, names)):
        return
    held = next((other for other in names if _LORA.search(other)), None)
    if held is None:
        return
    yield Statement(
        f"{show(name, 80)} is how diffusers before 0.22 named a layer of LoRA, and "
        f"this file has other names ({show(held, 120)}): "
        f"{name_origin(case.survey) or 'an adapter of another trainer'}. "
        "unet.load_attn_procs of that time takes its own names alone. "
        "load_lora_weights of the pipeline takes these too, in a diffusers that is not "
        "older than the file."
    )


_NOT_RENAMED = re.compile(
    r"keys have not been correctly renamed:\s{0,20}([\w.]{3,2000})"
)
_MADE_OF = (
    (
        re.compile(r"\.lora_mid\."),
        "lora_mid, the core of a convolution that LyCORIS has taken apart (LoCon with "
        "use_tucker)",
        "algo=locon use_tucker=True of LyCORIS",
    ),
    (
        re.compile(r"\.(?:hada_w|hada_t)"),
        "hada, the factors of a LoHa of LyCORIS",
        "algo=loha of LyCORIS",
    ),
    (
        re.compile(r"\.lokr_"),
        "lokr, the factors of a LoKr of LyCORIS",
        "algo=lokr of LyCORIS",
    ),
    (
        re.compile(r"\.(?:oft_|boft_)"),
        "the rotations of an OFT",
        "networks.oft of sd-scripts, algo=diag-oft or boft of LyCORIS",
    ),
    (
        re.compile(r"\.dora_scale$"),
        "dora_scale, the sizes of a DoRA",
        "dora_wd=True of LyCORIS",
    ),
    (
        re.compile(r"\.lora_magnitude_vector(?:\.|$)"),
        "lora_magnitude_vector, the sizes of a DoRA of PEFT",
        "use_dora=True in its LoraConfig",
    ),
)
"""Parts of adapters that simple loaders of LoRA do not know: their names, what they
are, and the setting of a training that has them.
"""


def parts_of_adapter(names: Sequence[str]) -> Statement | None:
    """Say that keys without a place are parts of another kind of adapter than the one
    that was built, or return None.
    """
    for pattern, what, setting in _MADE_OF:
        if names and all(pattern.search(name) for name in names):
            return Statement(
                f"{counted_noun(len(names), 'key')} of this adapter "
                f"{be_verb(names)} {what}, and the network that "
                "the program built is a plain LoRA, which has none. Do not pass over "
                "them with strict=False: without them each layer changes its base by "
                "another amount. Build the network as the run that saved did "
                f"({setting}); where the program has no such kind, it cannot go on "
                "with this adapter, and can begin a new one."
            )
    return None


def _answer_not_renamed(message: Message, case: Case) -> Iterator[Statement]:
    """Answer diffusers, which had no names for some tensors of an adapter."""
    names = [entry.name for entry in case.survey.tensors]
    # An adapter may have several of these parts, and the first row is named.
    kinds = [
        (what, sum(bool(pattern.search(name)) for name in names))
        for pattern, what, _ in _MADE_OF
    ]
    held = [(what, count) for what, count in kinds if count]
    if held:
        what, count = held[0]
        yield Statement(
            f"{counted_noun(count, 'tensor')} of this adapter "
            f"{be_verb(count)} {what}, and the loader of diffusers has "
            "no place for them: it knows lora_down, lora_up and alpha. Loaded without "
            "them the layers are others. Use the adapter in the programs of its "
            "trainer (ComfyUI, the web UI, sd-scripts with LyCORIS), or merge it into "
            "its base model there and load the result."
        )
        return
    found = _NOT_RENAMED.search(message.text)
    # A full stop or a comma may follow the name.
    name = None if found is None else found[1].rstrip(".,")
    if name in names:
        yield Statement(
            f"The file has {show(name, 120)}, and the loader has no name for that "
            "layer: the adapter is of another model than the pipeline, or a newer "
            "diffusers knows it."
        )


def _take_not_renamed(message: Message, text: str, start: int) -> Message:
    """The message with the first of the names behind it, which stand in lines of their
    own.
    """
    return message._replace(text=" ".join(text[start : start + 2_000].split()))


FAMILIES = (
    Family(
        "not-renamed",
        (r"The following keys have not been correctly renamed:",),
        answer_from_statements(_answer_not_renamed),
        _take_not_renamed,
        needs_open=True,
    ),
    Family(
        "merged-adapters",
        (r"weights shape mismatch merging v1 and v2, different dims\?",),
        answer_from_statements(_answer_merge),
        needs_open=True,
    ),
)

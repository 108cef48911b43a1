"""Questions about what a model takes and needs: its inputs, its memory, its values, a
head that is taken off, an export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    finding_statements,
    load_statements,
)
from ckpt.ext.explain.families.heads import HEAD_WORDS
from ckpt.ext.explain.families.positions import POSITIONS
from ckpt.ext.explain.families.types import all_read_text
from ckpt.model.text import and_more, counted_noun, pasted_path, show, size_text

_SIZES = (
    "img_size",
    "image_size",
    "imgsz",
    "input_size",
    "crop_size",
    "img_resolution",
    "resolution",
    "in_chans",
    "in_channels",
    "input_channels",
    "num_channels",
    "input_nc",
    "input_dim",
    "obs_dim",
    "state_dim",
    "seq_len",
    "max_seq_len",
    "block_size",
    "max_position_embeddings",
    "context_length",
    "n_positions",
    "sample_rate",
    "n_mels",
)
"""Keys of settings for what goes into a model."""
_TABLE = re.compile(r"(?:^|[._])(?:\w*embed\w*|wte|wpe|emb)(?:[._]|$)")
_FIRST = re.compile(
    r"(?:^|[._])(?:embed_tokens|token_embd|wte|word_embeddings|tok_embeddings|embed_in"
    r"|patch_embed\w*|stem|conv1|conv_in|conv_first|input_proj\w*|input_blocks\.0)[._]"
)
"""Names of layers that come first in a model."""
_SHOWN = 6


def of_inputs(text: str, case: Case) -> Iterator[Statement]:
    """Say what the first layer of a file takes, and which settings of the inputs it
    records.
    """
    named = [
        f"{show(name, 80)} is {show(str(node), 40)}"
        for name, node in case.finds_value(_SIZES)
        if isinstance(node, (int, str)) and not isinstance(node, bool)
    ]
    # A setting of the run that the file does not record is told as such elsewhere.
    if not named and re.search(r"(?i)\bused\b[^\n]{0,20}\btrain", text):
        return
    if named:
        yield Statement(f"This file records {and_more(named, _SHOWN)}.")
    for section in case.survey.candidates[:1]:
        rows = list(zip(section.names(), section.entries, strict=True))
        # Formats that sort their tensors have any layer first.
        keeps_order = case.survey.checkpoint.traits.keeps_order
        first = next(
            (
                (name, entry.tensor.shape)
                for name, entry in rows
                if name.endswith("weight")
                and len(entry.tensor.shape) > 1
                and (keeps_order or _FIRST.search(name))
            ),
            None,
        )
        if first is not None:
            yield Statement(_first_text(*first))
        for name, entry in rows:
            if POSITIONS.search(name) and len(entry.tensor.shape) > 1:
                yield Statement(
                    f"{show(name, 80)} has the shape {list(entry.tensor.shape)}: the "
                    "number of places in it is that of the patches or words that the "
                    "model was built for."
                )
                break


def _first_text(name: str, shape: tuple[int, ...]) -> str:
    """The sentence on the first weight of a model."""
    if _TABLE.search(name) and len(shape) == 2:
        return (
            f"Its first weight is a table, {show(name, 80)}, with {shape[0]:,} rows: "
            "the model takes numbers below that, as of words."
        )
    if len(shape) == 2:
        return (
            f"Its first weight is {show(name, 80)} {list(shape)}, a linear layer: it "
            f"takes {shape[1]:,} numbers."
        )
    kernel = " x ".join(f"{size:,}" for size in shape[2:])
    return (
        f"Its first weight is {show(name, 80)} {list(shape)}, a convolution that takes "
        f"{counted_noun(shape[1], 'channel')} (for each group, if it has groups), with "
        f"a kernel of {kernel}. A network of convolutions alone has no size of "
        "picture: its settings and the preprocessing of the program have it."
    )


def of_values(text: str, case: Case) -> Iterator[Statement]:
    """Say whether a file has NaN or infinite elements, and what measures its values."""
    del text
    found = case.not_finite
    if found:
        yield from finding_statements(found)
    elif found is not None:
        yield Statement(f"{all_read_text(case)}, and no element is NaN or infinite.")
    path = pasted_path(case.survey.path)
    yield Statement(
        "The mean, the spread and the zeros of each tensor, and channels that died:",
        (),
        None if path is None else f"ckpt stats {path}",
    )


def of_memory(text: str, case: Case) -> Iterator[Statement]:
    """Say how many bytes the tensors of a file take when it is loaded."""
    del text
    total = sum(section.nbytes for section in case.survey.sections)
    models = sum(section.nbytes for section in case.survey.candidates)
    if not total:
        return
    of = f", of which {size_text(models)} are weights" if models < total else ""
    training = (
        " A training with Adam needs four times the weights in float32 for weights, "
        "gradients and moments, and the activations beside."
    )
    yield Statement(
        f"Its tensors take {size_text(total)} of memory when they are loaded{of}; a "
        "model that is built first and filled after takes the weights once more "
        "(torch.load(…, mmap=True) leaves them in the file until they are used). What "
        f"a model computes with, its activations, comes on top.{training}"
    )


def of_exports(text: str, case: Case) -> Iterator[Statement]:
    """Say what an export to another runtime needs beside a file."""
    del text
    if case.survey.checkpoint.traits.names_are_code:
        return
    yield Statement(
        "An export (ONNX, TensorRT, TorchScript, Core ML) runs the model, and this "
        "file has its weights without its code: build the model by its class, load "
        "the weights, call eval(), and export that (torch.onnx.export(model, inputs, "
        '"model.onnx"), torch.export.export).'
    )
    yield from load_statements(case, "The weights load so:")


def of_head(text: str, case: Case) -> Iterator[Statement]:
    """Name the head of a model, with the command that leaves it out."""
    del text
    for section in case.survey.candidates[:1]:
        heads = list(
            dict.fromkeys(
                name.rpartition(".")[0]
                for name in section.names()
                if HEAD_WORDS.search(f"{name.rpartition('.')[0]}.")
            )
        )
        if not heads:
            last = section.names()[-1]
            yield Statement(
                "No layer of it has the word of a head in its name. The last tensor is "
                f"{show(last, 80)}: what is behind the features has to be known from "
                "the class of the model."
            )
            return
        top = list(dict.fromkeys(_outermost(layer) for layer in heads))
        words: list[str] = []
        for layer in top[:_SHOWN]:
            words += ["--exclude", f"*{layer}.*" if section.path else f"{layer}.*"]
        yield Statement(
            f"By their names {and_more([show(layer, 60) for layer in top], _SHOWN)} "
            f"{'is the head' if len(top) == 1 else 'are heads'} of the model."
        )
        yield from command_statements(
            "Without it:" if len(top) == 1 else "Without them:",
            case.plan(("slim", *words)),
        )


def _outermost(layer: str) -> str:
    """The module of a head, down to the word that names it so."""
    parts = layer.split(".")
    for count in range(1, len(parts) + 1):
        if HEAD_WORDS.search(f"{'.'.join(parts[:count])}."):
            return ".".join(parts[:count])
    return layer

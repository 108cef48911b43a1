"""Errors about element types in a product: weights of one type, and an input of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ckpt.jobs.explain.case import Case, Statement
from ckpt.jobs.explain.family import Family, stating
from ckpt.jobs.explain.message import Message
from ckpt.text import and_more, pasted_path, plural, show


def _answer(message: Message, case: Case) -> Iterator[Statement]:
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for section in case.survey.main or case.survey.candidates:
        for entry in section.entries:
            if entry.tensor.dtype.kind == "float":
                counts[entry.tensor.dtype.name] += 1
                examples.setdefault(entry.tensor.dtype.name, entry.name)
    if not counts:
        return
    texts = [f"{plural(count, 'tensor')} of {name}" for name, count in counts.most_common()]
    yield Statement(f"The weights of this file are {and_more(texts, 6)}.")
    if len(counts) > 1:
        names = [f"{show(examples[name], 120)} ({name})" for name in counts]
        yield Statement(
            f"They are mixed: {and_more(names, 4)}. Where two of them meet in a product, cast one, or the whole model."
        )
    elif "float32" in counts:
        yield Statement(
            "They are all float32: the input, or a cast in the program (model.half(), autocast), has the other type."
        )
    else:
        (only,) = counts
        yield Statement(
            f"A model that was built in float32 stays float32 when load_state_dict copies into it. One that is {only} needs inputs"
            f" of {only}: model.float(), or input.to(torch.{only})."
        )
    if "Half" in message.text and "not implemented" in message.text:
        yield Statement("The CPU lacks this operation for float16: use float32 or bfloat16 there.")
    if set(counts) != {"float32"}:
        way = case.plan(("convert", "--dtype", "float32"))
        if way.command is not None:
            yield Statement("The same weights in float32:", (), way.command)


def _not_finite(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a sampler that gets NaN: are there any in the weights?"""
    del message
    path = pasted_path(case.survey.path)
    text = "NaN or Inf in the weights give this, and so do activations that leave the range of float16. This reads all weights, and names both:"
    yield Statement(text, (), None if path is None else f"ckpt stats {path}")
    counts = Counter(entry.tensor.dtype.name for section in case.survey.main for entry in section.entries)
    if counts["float16"]:
        yield Statement(
            "The weights are float16. A model that was trained in bfloat16 leaves its range: use bfloat16 or float32."
        )


FAMILIES = (
    Family(
        "not-finite",
        (r"probability tensor contains either `inf`, `nan` or element < 0",),
        stating(_not_finite),
        needs_open=True,
    ),
    Family(
        "types",
        (
            r"expected scalar type \w{3,20} but found \w{3,20}",
            r"mat1 and mat2 must have the same dtype",
            r"expected m1 and m2 to have the same dtype",
            r"Input type \([\w.]{1,60}\) and (?:weight|bias) type \([\w.]{1,60}\) should be the same",
            r"not implemented for '(?:Half|BFloat16)'",
            r"Expected (?:object|tensor) (?:of|to have) scalar type \w{3,20}",
            r"self and mat2 must have the same dtype",
            r"Found dtype \w{3,20} but expected \w{3,20}",
        ),
        stating(_answer),
        needs_open=True,
    ),
)

"""Errors about element types in a product: weights of one type, and an input of
another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.tensors import parts_of
from ckpt.model.text import and_more, be_verb, counted_noun, pasted_path, show


def _answer_types(message: Message, case: Case) -> Iterator[Statement]:
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    # Optimizers and averages have types of their own, and no input of a layer meets
    # them.
    for section in case.survey.main or case.survey.candidates:
        for entry in section.entries:
            # Whole numbers, as counters of batch norms, are in no product.
            if entry.tensor.dtype.kind == "float":
                counts[entry.tensor.dtype.name] += 1
                examples.setdefault(entry.tensor.dtype.name, entry.name)
    if not counts:
        return
    texts = [
        f"{counted_noun(count, 'tensor')} of {name}"
        for name, count in counts.most_common()
    ]
    yield Statement(f"The weights of this file are {and_more(texts, 6)}.")
    if len(counts) > 1:
        names = [f"{show(examples[name], 120)} ({name})" for name in counts]
        yield Statement(
            f"They are mixed: {and_more(names, 4)}. Where two of them meet in a "
            "product, cast one, or the whole model."
        )
    # torch builds models in float32, so such weights are not what differs.
    elif "float32" in counts:
        yield Statement(
            "They are all float32: the input, or a cast in the program (model.half(), "
            "autocast), has the other type."
        )
    else:
        (only,) = counts
        yield Statement(
            "A model that was built in float32 stays float32 when load_state_dict "
            f"copies into it. One that is {only} needs inputs of {only}: "
            f"model.float(), or input.to(torch.{only})."
        )
    # torch writes `"addmm_impl_cpu_" not implemented for 'Half'`.
    if "Half" in message.text and "not implemented" in message.text:
        yield Statement(
            "The CPU lacks this operation for float16: use float32 or bfloat16 there."
        )
    if set(counts) != {"float32"}:
        way = case.plan(("convert", "--dtype", "float32"))
        if way.command is not None:
            yield Statement("The same weights in float32:", (), way.command)


def _answer_unscaled(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a GradScaler that finds gradients in float16: the parameters that are
    trained have it.
    """
    del message
    halves = [
        entry.name
        for section in case.survey.main or case.survey.candidates
        for entry in section.entries
        # GradScaler refuses float16 alone: bfloat16 needs no scaling.
        if entry.tensor.dtype.name == "float16"
    ]
    text = (
        "GradScaler wants the parameters that are trained in float32, and casts in the "
        "forward pass alone."
    )
    if not halves:
        yield Statement(
            f"{text} No weight of this file is float16: the program cast the model "
            "(torch_dtype=float16, model.half()). Load it in float32, or train in "
            "bfloat16, which needs no GradScaler."
        )
        return
    yield Statement(
        f"{text} {counted_noun(len(halves), 'tensor')} of this file {be_verb(halves)} "
        "float16, and a loader that keeps their type makes such parameters, as the "
        "adapters of a run that goes on are. Cast those that are trained after the "
        "load (param.data = param.data.float())."
    )
    way = case.plan(("convert", "--dtype", "float32"))
    if way.command is not None:
        yield Statement("The same weights in float32:", (), way.command)


def _not_finite(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a sampler that gets NaN: are there any in the weights?"""
    del message
    yield from not_finite_statements(case)


OF_STATISTICS = re.compile(
    r"`?\b(?:mean|std|min|max)\b`? is infinity|No stats? (?:were )?(?:found|provided)"
)
"""The words of lerobot for a policy whose statistics were never set."""


def of_statistics_unset(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Say which statistics of a file are infinite, as a policy is built that gets none
    of its data.
    """
    del found
    unset = [row for row in case.not_finite or () if row.code == "inf"]
    for finding in unset:
        yield Statement(finding.message)
    if unset:
        yield Statement(
            "lerobot fills the mean and the std of the data with infinity until it is "
            "given them. So this file was saved, or its weights were loaded, without "
            "the statistics of its data set: give them when the policy is built "
            "(dataset_stats=dataset.meta.stats), and save it anew."
        )
    elif case.not_finite is not None:
        yield Statement(
            f"{all_read_text(case)}, and none is infinite. Where it holds no "
            "statistics of the data either (buffer_…mean), newer versions of lerobot "
            "keep them in files of their own beside it (policy_preprocessor): load "
            "them too, or give the policy dataset_stats."
        )
    yield from load_statements(case)


def all_read_text(case: Case) -> str:
    """The beginning of a sentence on the tensors of a file that were read."""
    count = len(case.survey.tensors)
    if count == 1:
        return "The only tensor of this file was read"
    return f"All {count:,} tensors of this file were read"


def not_finite_statements(case: Case) -> Iterator[Statement]:
    """Say whether a file has elements that are NaN or infinite, where they can be read,
    and what else gives NaN.
    """
    path = pasted_path(case.survey.path)
    if case.not_finite is None:
        text = (
            "NaN or Inf in the weights give this, and so do activations that leave the "
            "range of float16. This reads all weights, and names both:"
        )
        yield Statement(text, (), None if path is None else f"ckpt stats {path}")
    elif case.not_finite:
        for finding in case.not_finite:
            yield Statement(finding.message)
        yield Statement(
            "NaN in the weights or in the state of an optimizer stays there, and "
            "spreads: whatever goes on from this file is NaN too. Take an earlier save "
            "of the run, and look there first:",
            (),
            None if path is None else f"ckpt stats {path}",
        )
    else:
        yield Statement(
            f"{all_read_text(case)}, and no element is NaN or infinite. So NaN comes "
            "of the computation: of activations or gradients that leave the range of "
            "float16, of a learning rate that is too high, or of the data."
        )
    counts = Counter(
        entry.tensor.dtype.name
        for section in case.survey.main
        for entry in section.entries
    )
    # float16 ends at 65504, and bfloat16 has the range of float32.
    if counts["float16"]:
        yield Statement(
            "The weights are float16. A model that was trained in bfloat16 leaves its "
            "range: use bfloat16 or float32."
        )


def _answer_float64(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a device without float64: which tensors have it?"""
    del message
    wide = {entry.name: entry.tensor.dtype.name for entry in case.survey.tensors}
    wide = {
        name: dtype
        for name, dtype in wide.items()
        if dtype in ("float64", "complex128")
    }
    names = list(wide)
    if not names:
        yield Statement(
            "No tensor of this file is float64: the program makes one, of a number or "
            "of an array of NumPy. Give it dtype=torch.float32."
        )
        return
    yield Statement(
        f"{counted_noun(len(names), 'tensor')} of this file {be_verb(names)} "
        f"{' or '.join(sorted(set(wide.values())))}, which the GPUs of Apple do not "
        f"have: {and_more([show(name, 120) for name in names], 4)}."
    )
    way = case.plan(("convert", "--dtype", "float32"))
    # A copy in float32 keeps complex128, which these GPUs lack too.
    if way.command is not None and "complex128" not in wide.values():
        yield Statement("The same file in float32:", (), way.command)


_OF_RANDOM = re.compile(
    r"(?:^|[._])(?:rng|random|generator)(?:[._]|$)|rng_?state", re.IGNORECASE
)


_OTHER_SIZE = re.compile(r"RNG state is wrong size|input RNG state size")
_OF_CPU = (5048, 5056)
_OF_GPU = {
    8: "a GPU in newer versions of torch",
    16: "a GPU in newer versions of torch",
    808: "a GPU in torch 1",
    816: "a GPU in torch 1",
}
"""Bytes of the state of a generator on a GPU -> who writes so many."""


def _sizes_of_states(states: dict[str, int]) -> Iterator[Statement]:
    """Say of which generators the states of a file are, by their bytes."""
    rows = []
    for name, nbytes in list(states.items())[:_STATES]:
        kind = "the CPU" if nbytes in _OF_CPU else _OF_GPU.get(nbytes)
        of = (
            ""
            if kind is None
            else f", as {kind} has it"
            if kind == "the CPU"
            else f", of {kind}"
        )
        rows.append(f"{show(name, 120)} has {nbytes:,} bytes{of}")
    yield Statement(
        f"In this file {and_more(rows, _STATES, '; ', total=len(states))}. A generator "
        "takes the state of its own kind and version alone: that of the CPU goes to "
        "torch.set_rng_state, that of a GPU to torch.cuda.set_rng_state of a torch "
        "that writes as many bytes."
    )
    yield Statement(
        "Weights and optimizer do not need it: leave the load of the random states "
        "out, and the run goes on with other random numbers."
    )


_STATES = 4


def _answer_random_state(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a generator of random numbers that gets no bytes on the CPU, or too many
    of them.
    """
    states = [entry for entry in case.survey.tensors if _OF_RANDOM.search(entry.name)]
    # Another size is a state of another kind of generator, and neither its type nor its
    # device.
    if states and _OTHER_SIZE.search(message.text):
        yield from _sizes_of_states(
            {entry.name: entry.tensor.numel for entry in states}
        )
        return
    for entry in states[:4]:
        device = parts_of(entry.tensor)[0].storage.device or "cpu"
        name = entry.tensor.dtype.name
        label = show(entry.name, 120)
        # If the file is right, something behind the load has changed the state.
        if name == "uint8" and device == "cpu":
            yield Statement(
                f"In this file {label} is as a generator takes it: uint8, on the CPU. "
                "map_location has moved it to another device, or"
                ' the program has cast it. Load with map_location="cpu" and move the '
                "model, or hand over state.cpu()."
            )
        elif name == "uint8":
            yield Statement(
                f"In this file {label} lies on {show(device, 40)}, and a generator "
                "takes it from the CPU: state.cpu()."
            )
        else:
            yield Statement(
                f"In this file {label} is {name}, and a generator takes uint8: "
                "state.cpu().byte()."
            )
    if not states:
        yield Statement(
            "No tensor of this file has the name of a state of random numbers: the "
            "program keeps it in another file, or under another name."
        )


FAMILIES = (
    Family(
        "float64",
        (
            r"MPS framework doesn't support float64",
            r"Cannot convert a (?:float64|MPS) Tensor to (?:MPS|float64)",
        ),
        answer_from_statements(_answer_float64),
        needs_open=True,
    ),
    Family(
        "random",
        (
            r"RNG state must be a torch\.ByteTensor",
            r"expected a torch\.ByteTensor, but got ",
            r"RNG state is wrong size",
            r"but found the input RNG state size to be ",
        ),
        answer_from_statements(_answer_random_state),
        needs_open=True,
    ),
    Family(
        "unscaled",
        (r"Attempting to unscale FP16 gradients",),
        answer_from_statements(_answer_unscaled),
        needs_open=True,
    ),
    Family(
        "not-finite",
        (
            r"probability tensor contains either `inf`, `nan` or element < 0",
            (
                r"(?i:\b(?:weights?|state[_ ]dict|checkpoint|model|parameters?|EMA"
                r"|tensors?) contains? (?:an? )?(?:NaN|inf))"
            ),
            r"[Ll]oss (?:became|is) (?:infinite or )?(?:NaN|nan)\b",
        ),
        answer_from_statements(_not_finite),
        needs_open=True,
    ),
    Family(
        "types",
        (
            r"expected scalar type \w{3,20} but found \w{3,20}",
            r"mat1 and mat2 must have the same dtype",
            r"expected m1 and m2 to have the same dtype",
            (
                r"Input type \([\w.:]{1,60}\) and (?:weight"
                r"|bias) type \([\w.:]{1,60}\) should be the same"
            ),
            r"not implemented for '(?:Half|BFloat16)'",
            r"Expected (?:object|tensor) (?:of|to have) scalar type \w{3,20}",
            r"self and mat2 must have the same dtype",
            r"dtype mismatch between source and target",
            r"Found dtype \w{3,20} but expected \w{3,20}",
        ),
        answer_from_statements(_answer_types),
        needs_open=True,
    ),
)

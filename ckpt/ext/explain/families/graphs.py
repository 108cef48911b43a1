"""Layers of PyTorch Geometric, whose parameters have other names in its versions."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.ext.explain.case import Case, Statement
from ckpt.model.text import counted_noun

_SPLIT = {
    "att_src": "att_l",
    "att_dst": "att_r",
    "lin_src.weight": "lin_l.weight",
    "lin_dst.weight": "lin_r.weight",
}
"""The names of the parts of GATConv since version 2 -> their names in version 1.7."""
_JOINED = ("att_l", "att_r", "att_src", "att_dst", "lin_l.weight", "lin_src.weight")
# The slice takes lin.weight off: ten letters.
_IN_LINEAR = (
    "state.update((name, state.pop(name[:-10] + 'weight').T) for name in "
    "list(model.state_dict()) if name.endswith('lin.weight') and name[:-10] + "
    "'weight' in state); model.load_state_dict(state)"
)


def graph_statement(
    missing: Sequence[str], here: Sequence[str], case: Case
) -> Statement | None:
    """Say that a file is of another version of PyTorch Geometric, with what gives it
    the names of the one at hand, or return None.
    """
    if not missing or not here:
        return None
    # The exact changes come first. The last one is known only by an end, .att.
    return (
        _renamed_attention(missing, here, case)
        or _moved_weight(missing, here, case)
        or _one_layer(missing, here, case)
        or _joined_attention(missing, here)
    )


_MOVED = (
    ("lin.weight", ("weight",)),
    ("lin.weight", ("lin_src.weight", "lin_dst.weight")),
    ("lin_src.weight", ("lin_l.weight",)),
    ("lin_dst.weight", ("lin_r.weight",)),
)
"""The end of a name that a newer version asks for -> the ends in older files."""


def of_graph_layer(name: str, case: Case) -> Statement | None:
    """Answer the lazy layers of PyTorch Geometric, which stop at the first name that a
    state dict lacks, also with strict=False.
    """
    held = {row for section in case.survey.candidates for row in section.names()}
    for new, old in _MOVED:
        layer = name.removesuffix(new)
        here = [f"{layer}{end}" for end in old]
        if not name.endswith(f".{new}") or not all(row in held for row in here):
            continue
        found = graph_statement([name], here, case)
        if found is not None:
            return found
    return None


def _renamed_attention(
    missing: Sequence[str], here: Sequence[str], case: Case
) -> Statement | None:
    left = set(here)
    subs: list[str] = []
    for name in missing:
        # A missing key without its old name in the file is of another change.
        end = next((end for end in _SPLIT if name.endswith(f".{end}")), None)
        if end is None or f"{name.removesuffix(end)}{_SPLIT[end]}" not in left:
            return None
        old, new = _SPLIT[end].partition(".")[0], end.partition(".")[0]
        subs.append(f"s/\\.{old}(\\.weight)?$/.{new}\\1/")
    if len(missing) != len(left):
        return None
    words = [word for sub in dict.fromkeys(subs) for word in ("--sub", sub)]
    text = (
        "GATConv of PyTorch Geometric has att_src, att_dst and lin_src since version "
        "2, and this file was saved by an older one (att_l, att_r, lin_l). The values "
        "are the same."
    )
    # The substitution is for all names, so no other layer may have a lin_l.
    others = [entry.name for entry in case.survey.tensors]
    is_alone = sum(".lin_l." in f".{name}" for name in others) == sum(
        ".lin_l." in f".{name}" for name in here
    )
    way = case.plan(("rename", *words)) if is_alone else None
    if way is None or way.command is None:
        return Statement(text)
    return Statement(f"{text} With the newer names:", (), way.command)


def _with_code(text: str, code: str, case: Case) -> Statement:
    """The statement with the code that makes the state, where one model is loaded."""
    load = case.survey.load.expression
    if load is None or len(case.survey.candidates) > 1:
        return Statement(text)
    return Statement(f"{text} So it loads:", (), f"state = {load}; {code}")


def _moved_weight(
    missing: Sequence[str], here: Sequence[str], case: Case
) -> Statement | None:
    wanted = {name.removesuffix("lin.weight") for name in missing}
    if not all(name.endswith(".lin.weight") for name in missing):
        return None
    shapes = [
        entry.tensor.shape
        for entry in case.survey.tensors
        if any(entry.name.endswith(name) for name in here)
    ]
    # The line transposes with .T, so each weight must be a matrix.
    is_flat = all(len(shape) == 2 for shape in shapes)
    if {f"{layer}weight" for layer in wanted} != set(here) or not is_flat:
        return None
    these = (
        f"By their names these are {len(wanted):,} layers"
        if len(wanted) > 1
        else "By its name this is a layer"
    )
    text = (
        f"{these} of PyTorch Geometric: since version 2 a GCNConv and its kin keep "
        "their weight in lin, as [outputs, inputs], and this file has it as [inputs, "
        "outputs]. So a new name alone is not enough: it is transposed, too."
    )
    return _with_code(text, _IN_LINEAR, case)


# lin_dst was the same tensor as lin_src, so it is left out.
_ONE = (
    "state.update((name, state.pop(name[:-10] + 'lin_src.weight')) for name in "
    "list(model.state_dict()) if name.endswith('lin.weight') and name[:-10] + "
    "'lin_src.weight' in state); model.load_state_dict({name: value for name, value "
    "in state.items() if not name.endswith('lin_dst.weight')})"
)


def _one_layer(
    missing: Sequence[str], here: Sequence[str], case: Case
) -> Statement | None:
    wanted = {name.removesuffix("lin.weight") for name in missing}
    parts = ("lin_src.weight", "lin_dst.weight")
    held = {f"{layer}{part}" for layer in wanted for part in parts}
    is_all = all(name.endswith(".lin.weight") for name in missing)
    if not is_all or held != set(here):
        return None
    text = (
        f"These are {counted_noun(len(wanted), 'layer')} of GATConv in PyTorch "
        "Geometric: before version 2.6 a layer with one number of inputs kept its "
        "weight twice, as lin_src and lin_dst, which were one tensor, and now it is "
        "lin."
    )
    return _with_code(text, _ONE, case)


def _joined_attention(missing: Sequence[str], here: Sequence[str]) -> Statement | None:
    layers = {name.removesuffix("att") for name in here if name.endswith(".att")}
    if not layers or not any(name.endswith(_JOINED) for name in missing):
        return None
    if not all(
        any(name.startswith(layer) for layer in layers) for name in (*missing, *here)
    ):
        return None
    return Statement(
        "GATConv of PyTorch Geometric had one att and one weight before version 1.6, "
        "and newer ones have them in two halves: this file is of the older one. Take "
        "that version, or one that converts its files."
    )

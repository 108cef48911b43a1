"""Programs that take each value of a file for a tensor: converters to safetensors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ckpt.bytes.far import is_url
from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    keys_text,
    load_statements,
    root_keys,
    trust_text,
)
from ckpt.model.text import and_more, be_verb, show
from ckpt.tree.find import children_of
from ckpt.tree.view import look

NO_TENSOR = re.compile(
    r"Unsupported type found in checkpoint! (?P<part>[^\n:]{1,200}): "
    r"<class '(?P<kind>[\w.]{1,200})'>"
    r"|Key [`'\"](?P<key>[^`'\"\n]{1,1000})[`'\"] is invalid, expected torch\.Tensor "
    r"but received <class '(?P<type>[\w.]{1,200})'>"
    r"|'(?P<owner>NoneType|dict|OrderedDict|list|tuple|int|float|str|bool)' object has "
    r"no attribute '(?:data_ptr|untyped_storage|storage|contiguous|numel|element_size"
    r"|is_floating_point|is_contiguous)'"
)
"""safetensors, and scripts that ask each value of a dict for its memory."""

_KINDS = {"NoneType": ("None",), "dict": ("dict", "OrderedDict")}
"""Names of Python's types -> the types of nodes that they are."""


_MOST_PLACES = 2
"""Places of one key that are named: Stable Diffusion had state_dict in state_dict."""


def of_no_tensor(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that takes each value of a dict for a tensor."""
    parts = _parts_of_other_types(found, case)
    if not parts:
        return
    if not case.survey.candidates:
        yield from _without_weights(parts, case)
        return
    one = len(parts) == 1
    yield Statement(
        "The program takes each value of a dict for a tensor, and in this file "
        f"{and_more([show(part, 80) for part in parts], 4)} {be_verb(parts)} "
        f"{'a part of a checkpoint' if one else 'parts of a checkpoint'} and no "
        f"tensor{'' if one else 's'}.{_where_weights_are(case)}"
    )
    if found["part"] is not None:
        yield from _of_detectron(case)
        return
    yield from command_statements(
        "safetensors takes this:",
        case.written(("slim",), "", ".safetensors"),
    )
    yield from load_statements(case)


def _of_detectron(case: Case) -> Iterator[Statement]:
    """Say under which keys the checkpointer of detectron2 takes weights, and print the
    line that writes such a file.
    """
    load = case.survey.load.expression
    keys = root_keys(case)
    is_pickle = load is not None and load.startswith("pickle.load(")
    if is_pickle and "model" in keys and "__author__" not in keys:
        yield Statement(
            "detectron2 takes model out of a .pkl only where __author__ stands beside "
            "it, and else takes all keys for tensors. matching_heuristics lets it pair "
            "names by their ends, as those without backbone.bottom_up. before them. "
            f"Both are added so{trust_text(case.survey.load)}:",
            (),
            "import pickle, pathlib; data = pickle.loads(pathlib.Path("
            f"{case.path_literal}).read_bytes()); "
            'data.update(__author__="me", matching_heuristics=True); '
            'pathlib.Path("weights.d2.pkl").write_bytes(pickle.dumps(data))',
        )
        return
    if load is None or len(case.survey.candidates) != 1:
        yield from load_statements(case)
        return
    yield Statement(
        "fvcore and detectron2 take the weights from the key model, or a bare state "
        f"dict. So they are written under that key{trust_text(case.survey.load)}:",
        (),
        f'torch.save({{"model": {load}}}, "weights.d2.pth")',
    )


def _without_weights(parts: Sequence[str], case: Case) -> Iterator[Statement]:
    """Say that a file has no weights, and where a pipeline of DeepSpeed has its own."""
    shown = and_more([show(part, 60) for part in parts], 4)
    yield Statement(
        f"This file holds no weights to convert: {shown} {be_verb(parts)} there with "
        "nothing that is a tensor."
    )
    if not {"module", "ds_version"}.issubset(root_keys(case)):
        return
    beside = ""
    if not is_url(case.survey.path):
        folder = os.path.dirname(os.path.abspath(case.survey.path))
        layers = [name for name in sorted(os.listdir(folder)) if _LAYER.match(name)]
        beside = f" Here {layers[0]} is the first of {len(layers):,}." if layers else ""
    yield Statement(
        "It is the state of a run of DeepSpeed, and its module is empty: a pipeline "
        "has the weights of each layer in a file of its own beside this one "
        f"(layer_00-model_00-model_states.pt).{beside} Programs that train an adapter "
        "so write it into a folder of its own for use (adapter_model.safetensors)."
    )


_LAYER = re.compile(r"layer_\d+-")


def _where_weights_are(case: Case) -> str:
    """The sentence on the place of the weights, or an empty text at the root."""
    places = [section.name for section in case.survey.candidates if section.name]
    if not places:
        return ""
    is_dict = len(root_keys(case)) > 1
    keys = f" The keys of the file are {keys_text(case)}." if is_dict else ""
    return (
        f"{keys} The weights are in {and_more([show(row, 80) for row in places], 3)}."
    )


def _parts_of_other_types(found: re.Match[str], case: Case) -> list[str]:
    """The names of the parts that a program cannot have taken for tensors: the one that
    it names, or all of the type that it names.
    """
    containers = case.survey.checkpoint.containers
    key = found["key"] or found["part"]
    if key is not None:
        rows = [row for row in containers if key in map(str, row.keys)]
        return [".".join(map(str, (*row.path, key))) for row in rows[:_MOST_PLACES]]
    # A script walks through the dict that it loaded.
    kinds = _KINDS.get(found["owner"], (found["owner"],))
    return [
        str(name)
        for name, child in children_of(case.survey.checkpoint.root)
        if look(child).type in kinds
    ]

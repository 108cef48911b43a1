"""Modules of torch's quantization: what their pickles hold, and what their state_dict() gives of it.

Sources: torch/ao/nn/quantized (`_save_to_state_dict` and `__getstate__`, as torch 1.13 to 2.13 write them), and
`torch.ScriptObject`, which pickles as its content and the name of its class.
"""

from __future__ import annotations

from ckpt.nodes import Node, Opaque, is_tuple, tensor_of
from ckpt.tree.scalars import class_of

SCRIPT_OBJECT = "torch.ScriptObject"
_CLASSES = "__torch__."
_CONV_FIELDS = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "transposed",
    "output_padding",
    "groups",
    "padding_mode",
    "weight",
    "bias",
    "scale",
    "zero_point",
    "training",
)
"""What `__getstate__` of a quantized convolution gives, in its order."""


def packed(node: Node) -> tuple[str, Node] | None:
    """The class and the content of packed parameters (`torch.ScriptObject`); None for anything else."""
    if type(node) is not Opaque or len(node.states) != 1 or class_of(node) != SCRIPT_OBJECT:
        return None
    state = node.states[0]
    if node.items or node.keys or not is_tuple(state) or len(state) != 2 or not isinstance(state[1], str):
        return None
    return str(state[1]).removeprefix(_CLASSES), state[0]


def convolution(call: Opaque, name: str) -> dict[str, Node] | None:
    """The attributes of a quantized convolution, whose pickle has only their values; None for anything else."""
    state = call.states[0] if len(call.states) == 1 else None
    if not (is_quantized(name) and "Conv" in name.rpartition(".")[2] and is_tuple(state)):
        return None
    if len(state) != len(_CONV_FIELDS) or tensor_of(state[_CONV_FIELDS.index("weight")]) is None:
        return None
    return dict(zip(_CONV_FIELDS, state, strict=True))


def is_quantized(name: str) -> bool:
    """Whether a class belongs to torch's quantized modules: `torch.ao.nn.quantized.…`, `torch.nn.quantized.…`."""
    return name.startswith("torch.") and ".quantized." in name


def saved_attributes(name: str, state: dict[str, Node]) -> list[str]:
    """The attributes of a module of the class `name` that its state_dict() gives beside what it registers."""
    if not is_quantized(name):
        return []
    keys = [
        key for key in ("_packed_params", "_packed_weight", "param") if packed(state.get(key)) is not None
    ]
    if any(key.startswith("_") for key in keys) and "dtype" in state:
        keys.append("dtype")
    if "scale" in state and "zero_point" in state:
        keys += ["scale", "zero_point"]
    if tensor_of(state.get("weight")) is not None:  # of a convolution: others register theirs
        keys += [key for key in ("weight", "bias") if tensor_of(state.get(key)) is not None]
    return [key for key in state if key in keys]


def state_version(name: str) -> int | None:
    """The version of the state dict of a quantized module of the class `name`; None for any other.

    Source: `_version` of the classes in torch/ao/nn/quantized, and what they save at each version.
    """
    if not is_quantized(name):
        return None
    module, _, short = name.rpartition(".")
    if ".sparse." in name or not ("Linear" in short or short in ("LSTM", "GRU")):
        return 1
    if "Linear" not in short:
        return 2 if module.endswith(".dynamic.modules.rnn") else 1
    return 4 if ".dynamic." in name else 3


def unpacked(key: str, content: Node) -> Node:
    """What state_dict() gives under `key` for packed parameters of this content."""
    if key == "_packed_weight" and is_tuple(content) and len(content) > 1:  # (version, [weight], ...)
        tensors = content[1]
        if type(tensors) is list and len(tensors) == 1 and tensor_of(tensors[0]) is not None:
            return tensors[0]
    return content

"""Device tags: which ones torch knows, and which ones are in values, where map_location
does not reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpt.model.checkpoint import Value
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import UsageError
from ckpt.model.nodes import is_tuple
from ckpt.model.rows import NamedTuple
from ckpt.tree.view import look

KINDS = (
    "cuda",
    "mps",
    "xpu",
    "npu",
    "hpu",
    "mlu",
    "musa",
    "xla",
    "mtia",
    "privateuseone",
)
"""Devices besides the CPU to which torch, or one of its backends, restores tensors."""
_ACCELERATOR = rf"(?:{'|'.join(KINDS)})(?::\d{{1,3}})?"
_LISTED = 64
"""The longest lists that are searched for devices: lists of GPUs, not of data."""


class HiddenDevice(NamedTuple):
    """A device in a value: the name of the value, the device, the type of the value."""

    name: str
    device: str
    type: str


def is_accelerator(tag: str) -> bool:
    """Tell whether a text names a device besides the CPU: `cuda`, `cuda:1`, `mps`."""
    return tag.startswith(KINDS) and re.fullmatch(_ACCELERATOR, tag) is not None


def check_device(tag: str) -> str:
    """A tag to which torch.load restores tensors. Raises UsageError for any other."""
    if tag == "cpu" or is_accelerator(tag):
        return tag
    kind, colon, number = tag.lower().partition(":")
    hint = "known: cpu cuda:N mps xpu:N npu:N hpu:N mtia:N mlu:N"
    # Other programs say gpu:0, or the number alone.
    if kind in ("gpu", "cuda") or (kind.isdigit() and not colon):
        index = number or (kind if kind.isdigit() else "0")
        hint = f"did you mean cuda:{index}?" if index.isdigit() else hint
    elif tag.removeprefix("torch.") in BY_NAME:
        hint = f"a dtype: ckpt convert --dtype {tag.removeprefix('torch.')}"
    elif kind == "cpu":
        hint = "cpu has no number" if colon else "did you mean cpu?"
    raise UsageError(f"{tag or '(empty)'}: not a device that torch knows", hint=hint)


def hidden_devices(values: Iterable[Value]) -> tuple[HiddenDevice, ...]:
    """Devices besides the CPU in values: torch.device objects, and strings that name
    only a device.
    """
    devices: list[HiddenDevice] = []
    for value in values:
        node = value.node
        if value.type == "torch.device":
            devices.append(
                HiddenDevice(value.name, str(look(node).value), "torch.device")
            )
        elif isinstance(node, str):
            devices.append(HiddenDevice(value.name, str(node), "str"))
        elif (type(node) is list or is_tuple(node)) and len(node) <= _LISTED:
            texts = ((i, item) for i, item in enumerate(node) if isinstance(item, str))
            devices += [
                HiddenDevice(f"{value.name}.{i}", str(item), "str") for i, item in texts
            ]
    return tuple(row for row in devices if is_accelerator(row.device))

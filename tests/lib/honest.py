"""What training saves beside tensors, and no file of it raises an alarm."""

from __future__ import annotations

import collections
import datetime
import functools
import itertools
import re
import signal
import typing
import zoneinfo
from argparse import Namespace
from http import HTTPStatus
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.metadata import MEM_FORMAT_ENCODING
from torch.nn import functional


def module_with(activation: Any) -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2))
    made.activation = activation
    return made


HONEST: dict[str, Any] = {
    "torch.tanh": torch.tanh,
    "a module with torch.relu": module_with(torch.relu),
    "gelu": functional.gelu,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "a method of Tensor": torch.Tensor.relu,
    "an initializer": nn.init.xavier_uniform_,
    "Optional": typing.Optional[torch.Tensor],  # noqa: UP045
    "Union": typing.Union[int, str, None],  # noqa: UP007
    "List": typing.List[int],  # noqa: UP006
    "Callable": typing.Callable[[int], int],
    "Dict of List": dict[str, list[int]],
    "int or None": int | None,
    "NoneType": type(None),
    "type as a value": type,
    "partial": functools.partial(functional.relu, inplace=True),
    "partial of a class": functools.partial(nn.LayerNorm, eps=1e-6),
    "partial of tanh": functools.partial(torch.clamp, min=0),
    "a pattern": re.compile("a|b", re.IGNORECASE),
    "a flag": re.IGNORECASE,
    "a signal": signal.Signals.SIGTERM,
    "a status": HTTPStatus.OK,
    "a memory format": MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST,
    "a counter": itertools.count(3),
    "a zone": datetime.datetime(2024, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")),
    "a fixed zone": datetime.datetime(
        2024, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3))
    ),
    "the generator of torch": torch.Generator(),
    "a generator of numpy": np.random.default_rng(3),
    "an old generator": np.random.RandomState(3),
    "another bit generator": np.random.Generator(np.random.Philox(3)),
    "a masked array": np.ma.masked_array([1, 2], mask=[True, False]),
    "bytes": b"\x00\xffabc",
    "a bytearray": bytearray(b"\x00\xff"),
    "a namespace": Namespace(a=1, b=Namespace(c=None)),
    "a counter of words": collections.Counter("abca"),
    "a deque": collections.deque([1, 2], maxlen=3),
    "a type": torch.float32,
    "a module": nn.TransformerEncoderLayer(4, 2, 8),
    "an optimizer": torch.optim.AdamW(nn.Linear(2, 2).parameters()),
    "an old storage": torch.FloatStorage([1.0, 2.0]),
}

"""What people save: an object of every kind that a checkpoint may hold, by a name for
it.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import io
import itertools
import pathlib
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.testing._internal.two_tensor import TwoTensor


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = 1


@dataclass
class Config:
    lr: float = 0.1


@dataclass(frozen=True, slots=True)
class Slotted:
    lr: float = 0.1


class Point(NamedTuple):
    x: int
    y: int


class Tagged(torch.Tensor):
    """A subclass that pickles as a tensor with a type."""


class Words(str):
    pass


class Registry(dict):  # type: ignore[type-arg]
    pass


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


def with_attribute() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.note = "x"  # type: ignore[attr-defined]
    return tensor


def state_dict() -> Any:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()


def optimizer() -> Any:
    model = nn.Linear(2, 2)
    made = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    made.step()
    return made


def conjugate() -> torch.Tensor:
    return torch.tensor([1 + 2j]).conj()


def loop() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def quantized(dtype: torch.dtype) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2, 4), 0.5, 0, dtype)


def channels() -> torch.Tensor:
    return torch.quantize_per_channel(
        torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.qint8
    )


def float_channels() -> torch.Tensor:
    return torch.quantize_per_channel(
        torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.quint4x2
    )


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    )


def dtensor() -> Any:
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh  # type: ignore[attr-defined]

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        return distribute_tensor(
            torch.ones(4), init_device_mesh("cpu", (1,)), [Replicate()]
        )
    finally:
        dist.destroy_process_group()


def piece(rank: int) -> Any:
    """What one of two ranks holds of a DTensor."""
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh  # type: ignore[attr-defined]
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    try:
        return DTensor.from_local(
            torch.ones(2, 2), init_device_mesh("cpu", (2,)), [Shard(0)]
        )
    finally:
        dist.destroy_process_group()


Make = Callable[[], Any]
OBJECTS: dict[str, Make] = {
    # plain values
    "none": lambda: None,
    "bools": lambda: [True, False],
    "int": lambda: 5,
    "ints": lambda: [0, 255, 256, 65_535, 65_536, -1, 2**31, -(2**31) - 1, 2**64],
    "int of 255 bytes": lambda: 2**2038,
    "int of 256 bytes": lambda: 2**2040,
    "floats": lambda: [0.5, float("nan"), float("inf")],
    "text": lambda: ["", "é", "\ud800", "x" * 300],
    "complex": lambda: 1 + 2j,
    "bytes": lambda: b"\0\xff",
    "no bytes": lambda: b"",
    "many bytes": lambda: bytes(300),
    "bytearray": lambda: bytearray(b"ab"),
    "no bytearray": lambda: bytearray(),
    "list": lambda: [1, [2, [3]]],
    "long list": lambda: list(range(2500)),
    "tuples": lambda: [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "dict": lambda: {"a": {"b": 1}, 2: None, (1, 2): 3},
    "long dict": lambda: {index: index for index in range(2500)},
    "set": lambda: {1, 2},
    "no set": set,
    "frozenset": lambda: frozenset([1]),
    "no frozenset": frozenset,
    "range": lambda: range(3),
    "slice": lambda: slice(1, 2),
    "ellipsis": lambda: ...,
    "not implemented": lambda: NotImplemented,
    "loop": loop,
    # collections
    "OrderedDict": lambda: collections.OrderedDict(a=1),
    "defaultdict": lambda: collections.defaultdict(int, a=1),
    "defaultdict of lists": lambda: collections.defaultdict(list, a=[1]),
    "Counter": lambda: collections.Counter("aab"),
    "no Counter": collections.Counter,
    "deque": lambda: collections.deque([1, 2], 5),
    "ChainMap": lambda: collections.ChainMap({"a": 1}),
    "UserDict": lambda: collections.UserDict(a=1),
    "count": lambda: itertools.count(3),
    # the standard library
    "Namespace": lambda: argparse.Namespace(lr=0.1),
    "SimpleNamespace": lambda: types.SimpleNamespace(lr=0.1),
    "Path": lambda: pathlib.Path("a/b"),
    "PurePosixPath": lambda: pathlib.PurePosixPath("a"),
    "PureWindowsPath": lambda: pathlib.PureWindowsPath("a"),
    "datetime": lambda: datetime.datetime(2024, 1, 2, 3, 4, 5),
    "date": lambda: datetime.date(2024, 1, 2),
    "timedelta": lambda: datetime.timedelta(days=1),
    "timezone": lambda: datetime.timezone.utc,
    "Decimal": lambda: decimal.Decimal("1.5"),
    "Fraction": lambda: fractions.Fraction(1, 2),
    "UUID": lambda: uuid.UUID(int=1),
    "BytesIO": lambda: io.BytesIO(b"abc"),
    "builtin class": lambda: int,
    "builtin function": lambda: len,
    "exception": lambda: ValueError("x"),
    # classes of this file
    "Enum": lambda: Colour.RED,
    "IntEnum": lambda: Level.LOW,
    "Flag": lambda: Flags.A,
    "dataclass": Config,
    "slotted dataclass": Slotted,
    "namedtuple": lambda: Point(1, 2),
    "str subclass": lambda: Words("x"),
    "dict subclass": lambda: Registry(a=1),
    "class": lambda: Config,
    "function": lambda: state_dict,
    # numpy
    "array": lambda: np.ones((2, 3), np.float32),
    "empty array": lambda: np.ones((0,)),
    "Fortran array": lambda: np.asfortranarray(np.ones((2, 3))),
    "object array": lambda: np.array([None, "x"], dtype=object),
    "text array": lambda: np.array(["x"]),
    "structured array": lambda: np.zeros(1, [("a", "f4")]),
    "float64": lambda: np.float64(1),
    "int64": lambda: np.int64(1),
    "bool_": lambda: np.bool_(True),
    "numpy dtype": lambda: np.dtype("f4"),
    "numpy scalar class": lambda: np.float32,
    "random state": lambda: np.random.RandomState(0),
    "generator": lambda: np.random.default_rng(0),
    "array inside": lambda: {"model": torch.ones(1), "deep": [{"x": np.float64(1)}]},
    # torch
    "tensor": lambda: torch.ones(2),
    "empty tensor": lambda: torch.ones(0, 5),
    "scalar tensor": lambda: torch.tensor(5),
    **{
        str(dtype): lambda d=dtype: torch.ones(4).to(d)
        for dtype in (torch.bfloat16, torch.bool, torch.complex64)
    },
    **{
        name: lambda n=name: torch.arange(8, dtype=torch.uint8).view(getattr(torch, n))
        for name in (
            "uint16",
            "uint64",
            "float8_e4m3fn",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
            "bits8",
            "bits16",
        )
    },
    "complex32": lambda: torch.arange(8, dtype=torch.uint8).view(torch.complex32),
    "requires_grad": lambda: torch.ones(2, requires_grad=True),
    "Parameter": lambda: nn.Parameter(torch.ones(2)),
    "frozen Parameter": lambda: nn.Parameter(torch.ones(2), requires_grad=False),
    "Buffer": lambda: nn.Buffer(torch.ones(2)),
    "UninitializedParameter": lambda: nn.UninitializedParameter(),
    "UninitializedBuffer": lambda: nn.UninitializedBuffer(),
    "ParameterDict": lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}),
    "conjugate": conjugate,
    "negative": lambda: conjugate().imag,
    "meta": lambda: torch.empty(2, device="meta"),
    "shared": lambda: (lambda base: [base, base[1:], base])(torch.arange(5.0)),
    "attribute": with_attribute,
    "subclass": lambda: torch.ones(2).as_subclass(Tagged),
    "wrapper subclass": lambda: TwoTensor(torch.ones(2), torch.zeros(2)),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse csr": lambda: torch.eye(2).to_sparse_csr(),
    "sparse bsc": lambda: torch.eye(2).to_sparse_bsc((1, 1)),
    "qint8": lambda: quantized(torch.qint8),
    "quint8": lambda: quantized(torch.quint8),
    "qint32": lambda: quantized(torch.qint32),
    "quint4x2": lambda: quantized(torch.quint4x2),
    "per channel": channels,
    "float qparams": float_channels,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": jagged,
    "DTensor": dtensor,
    "typed storage": lambda: torch.ones(2).storage(),
    "untyped storage": lambda: torch.ones(2).untyped_storage(),
    "Size": lambda: torch.Size([2, 3]),
    "dtype": lambda: torch.float32,
    "all dtypes": lambda: [
        torch.float8_e5m2,
        torch.uint16,
        torch.bool,
        torch.quint8,
        torch.bits8,
        torch.complex32,
    ],
    "int4 dtype": lambda: torch.int4,
    "device": lambda: torch.device("cuda", 1),
    "strided": lambda: torch.strided,
    "sparse_coo": lambda: torch.sparse_coo,
    "qscheme": lambda: torch.per_channel_affine,
    "Generator": torch.Generator,
    "rng state": torch.get_rng_state,
    "tensor class": lambda: torch.Tensor,
    "legacy tensor class": lambda: torch.FloatTensor,
    "storage class": lambda: torch.FloatStorage,
    "torch function": lambda: torch.relu,
    # models and training
    "state dict": state_dict,
    "plain state dict": lambda: dict(state_dict()),
    "Linear": lambda: nn.Linear(2, 2),
    "Sequential": lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
    "module of this file": Net,
    "optimizer state": lambda: optimizer().state_dict(),
    "optimizer": optimizer,
    "scheduler state": lambda: torch.optim.lr_scheduler.StepLR(
        optimizer(), 3
    ).state_dict(),
    "cosine state": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer(), 3
    ).state_dict(),
    "lambda state": lambda: torch.optim.lr_scheduler.LambdaLR(
        optimizer(), lambda epoch: 1.0
    ).state_dict(),
    "scaler state": lambda: torch.amp.GradScaler("cpu").state_dict(),
    "swa": lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2)).state_dict(),
    "training": lambda: {
        "model": state_dict(),
        "opt": optimizer().state_dict(),
        "args": argparse.Namespace(lr=0.1),
    },
    "extra state": lambda: {"a": torch.ones(1), "_extra_state": io.BytesIO(b"x")},
}

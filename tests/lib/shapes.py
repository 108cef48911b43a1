"""Checkpoints in the shapes that frameworks write, by a name for each: small, and
without the frameworks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from saved import Colour, Tagged, dtensor, piece
from scaled import deepseek, gptq, model
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after one step, whose state is larger than the
    model.
    """
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def state() -> dict[str, torch.Tensor]:
    return net().state_dict()


def wrapped(prefix: str = "module.") -> dict[str, torch.Tensor]:
    return OrderedDict((f"{prefix}{name}", value) for name, value in state().items())


@contextlib.contextmanager
def classes(module: str, *made: type) -> Iterator[None]:
    """Classes that a pickle finds in a module that is not installed."""
    fake = types.ModuleType(module)
    for cls in made:
        cls.__module__ = module
        for function in vars(cls).values():
            if isinstance(function, types.FunctionType):
                function.__module__ = module
        setattr(fake, cls.__name__, cls)
    before = dict(sys.modules)
    parts = module.split(".")
    for depth in range(1, len(parts)):
        sys.modules.setdefault(
            ".".join(parts[:depth]), types.ModuleType(".".join(parts[:depth]))
        )
    sys.modules[module] = fake
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]


def mmengine(**more: Any) -> dict[str, Any]:
    """What MMEngine's CheckpointHook writes: the hub holds numpy arrays and the
    functions of a class.
    """
    model, optimizer = trained()
    buffer = HistoryBuffer()
    return {
        "meta": {"epoch": 1, "iter": 5, "cfg": "a = 1", "mmengine_version": "0.10.7"},
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "param_schedulers": [{"step_size": 3, "last_step": 1}],
        "message_hub": {
            "log_scalars": OrderedDict({"train/loss": buffer}),
            "runtime_info": OrderedDict(epoch=1),
            "resumed_keys": OrderedDict({"train/loss": True}),
        },
        **more,
    }


class HistoryBuffer:
    def __init__(self) -> None:
        self._max_length = 1_000_000
        self._log_history = np.ones(5)
        self._count_history = np.ones(5, np.int64)
        self._statistics_methods = OrderedDict(min=HistoryBuffer.minimum)

    def minimum(self) -> float:
        return 0.0


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)


def _mmengine(path: Path, **more: Any) -> None:
    with classes("mmengine.logging.history_buffer", HistoryBuffer):
        torch.save(mmengine(**more), path)


def _module_of_others(path: Path) -> None:
    with classes("their_project.nets", Backbone):
        torch.save({"model": Backbone(), "epoch": 3}, path)


def _quiet(make: Callable[[], Any]) -> Callable[[], Any]:
    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return quiet


def _packed(*, whole: bool) -> Any:
    model = torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.Linear(4, 4)), {nn.Linear}
    )
    return model if whole else model.state_dict()


def _static(*, whole: bool) -> Any:
    model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Conv2d(1, 2, 3)).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
    prepared = torch.ao.quantization.prepare(model)
    prepared(torch.randn(2, 1, 8, 8))
    model = torch.ao.quantization.convert(prepared)
    return model if whole else model.state_dict()


def _meta_tensor() -> Any:
    """MONAI's MetaTensor: a tensor of a subclass whose attributes hold a dict with
    members of an enum.
    """
    image = torch.ones(2, 2).as_subclass(Tagged)
    image._meta = {Colour.RED: torch.eye(4)}
    image._applied_operations = []
    return {**state(), "image": image}


def _shards(folder: Path, *, pickles: bool) -> None:
    folder.mkdir()
    parts = [dict(list(wrapped().items())[:3]), dict(list(wrapped().items())[3:])]
    ending, stem = ("bin", "pytorch_model") if pickles else ("safetensors", "model")
    listed = {}
    for number, part in enumerate(parts, 1):
        name = f"{stem}-{number:05}-of-00002.{ending}"
        torch.save(part, folder / name) if pickles else save_file(part, folder / name)
        listed |= dict.fromkeys(part, name)
    (folder / f"{stem}.{ending}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": listed})
    )


def _scripted(path: Path) -> None:
    torch.jit.trace(net().eval(), torch.randn(2, 4)).save(path)


def _gan() -> Any:
    """Two models, of which one cannot be made plain, beside an object."""
    return {
        "G": {"w": TwoTensor(torch.ones(2), torch.zeros(2)), "n.weight": torch.ones(2)},
        "D": state(),
        "args": argparse.Namespace(a=1),
    }


def _saved(make: Callable[[], Any], **options: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(make(), path, **options)


SHAPES: dict[str, Callable[[Path], None]] = {
    "fsdp_rank0.pth": _saved(lambda: {"0.weight": piece(0), "0.bias": piece(0)}),
    "fsdp_alone.pth": _saved(lambda: {"0.weight": dtensor(), "0.bias": dtensor()}),
    "fsdp_train_rank0.pth": _saved(
        lambda: {"model": {"0.weight": dtensor(), "n": torch.ones(2)}, "epoch": 1}
    ),
    "torchao.pth": _saved(
        lambda: {**state(), "q.weight": TwoTensor(torch.ones(2), torch.zeros(2))}
    ),
    "torchao_only.pth": _saved(
        lambda: {"q.weight": TwoTensor(torch.ones(2), torch.zeros(2))}
    ),
    "meta_tensor.pth": _saved(_meta_tensor),
    "compiled_state.pth": _saved(lambda: wrapped("_orig_mod.")),
    "compiled_whole.pth": _saved(lambda: torch.compile(net())),
    "mmengine.pth": _mmengine,
    "mmengine_ema.pth": lambda path: _mmengine(
        path, ema_state_dict={**wrapped(), "steps": torch.tensor(5)}
    ),
    "mmengine_wrapped_optimizer.pth": lambda path: _mmengine(
        path, optimizer={"main": trained()[1].state_dict(), "base_param_settings": None}
    ),
    "dynamic_whole.pth": _saved(_quiet(lambda: _packed(whole=True))),
    "dynamic_state.pth": _saved(_quiet(lambda: _packed(whole=False))),
    "dynamic_inside.pth": _saved(
        _quiet(lambda: {"model": _packed(whole=True), "epoch": 1})
    ),
    "static_whole.pth": _saved(_quiet(lambda: _static(whole=True))),
    "static_state.pth": _saved(_quiet(lambda: _static(whole=False))),
    "lazy_state.pth": _saved(
        lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)).state_dict()
    ),
    "lazy_only.pth": _saved(lambda: nn.LazyLinear(4).state_dict()),
    "lazy_whole.pth": _saved(lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))),
    "whole_model.pth": _saved(net),
    "whole_of_others.pth": _module_of_others,
    "gan.pth": _saved(
        lambda: {
            "G": wrapped(),
            "D": state(),
            "opt_G": trained()[1].state_dict(),
            "opt_D": trained()[1].state_dict(),
        }
    ),
    "gan_with_foreign.pth": _saved(_gan),
    "ema_only.pth": _saved(lambda: {"ema": wrapped(), "epoch": 3}),
    "optimizer_only.pth": _saved(lambda: trained()[1].state_dict()),
    "training.pth.tar": _saved(
        lambda: {
            "state_dict": wrapped(),
            "optimizer": trained()[1].state_dict(),
            "args": argparse.Namespace(a=1),
        }
    ),
    "legacy.pth": _saved(wrapped, _use_new_zipfile_serialization=False),
    "no_ending": _saved(lambda: {"model": wrapped(), "args": argparse.Namespace(a=1)}),
    "odd.ending": _saved(lambda: {"model": wrapped(), "args": argparse.Namespace(a=1)}),
    "zip.safetensors": _saved(
        lambda: {"model": wrapped(), "args": argparse.Namespace(a=1)}
    ),
    "scripted.pt": _scripted,
    "shards": lambda path: _shards(path, pickles=False),
    "shards_of_pickles": lambda path: _shards(path, pickles=True),
    "ddp.safetensors": lambda path: save_file(wrapped(), path),
    "bloat.pth": _saved(lambda: {"a.weight": torch.ones(10_000)[:2]}),
    "numpy.pth": _saved(lambda: {"model": state(), "best": np.float64(0.5)}),
    "clash.pth": _saved(lambda: {"model": {**state(), **wrapped()}, "epoch": 1}),
    "scaled.pth": _saved(
        lambda: {f"module.{name}": value for name, value in model(deepseek()).items()}
    ),
    "scaled.safetensors": lambda path: save_file(model(gptq()), path),
    "emptied.pth": _saved(
        lambda: {
            "model": {f"module.{name}": torch.empty(0) for name in state()},
            "args": argparse.Namespace(a=1),
        }
    ),
    "adapter_model.safetensors": lambda path: save_file({}, path),
}
"""Name of the file, or of the folder -> what writes it there."""


def make(name: str, folder: Path, called: str | None = None) -> Path:
    """The checkpoint of this name in a folder, or under another name."""
    path = folder / (called or name)
    SHAPES[name](path)
    return path

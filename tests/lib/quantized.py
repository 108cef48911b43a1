"""Quantized modules of torch, and what their state dicts hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

quantization = torch.ao.quantization


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.lstm = nn.LSTM(4, 3)
        self.norm = nn.LayerNorm(3)


class Static(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = quantization.QuantStub()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv(self.q(x)).mean((2, 3)))  # type: ignore[no-any-return]


def static(backend: str) -> nn.Module:
    model = Static().eval()
    model.qconfig = quantization.get_default_qconfig(backend)  # type: ignore[assignment]
    prepared = quantization.prepare(model)
    prepared(torch.randn(2, 3, 5, 5))
    return quantization.convert(prepared)  # type: ignore[no-any-return]


def embedding() -> nn.Module:
    model = nn.Sequential(nn.EmbeddingBag(10, 4, mode="sum"))
    model.qconfig = quantization.float_qparams_weight_only_qconfig  # type: ignore[assignment]
    return quantization.convert(quantization.prepare(model))  # type: ignore[no-any-return]


def dynamic() -> nn.Module:
    return quantization.quantize_dynamic(Recurrent(), {nn.Linear, nn.LSTM}, torch.qint8)  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dynamic": dynamic,
    "float16": lambda: quantization.quantize_dynamic(
        nn.Sequential(nn.Linear(8, 4)), {nn.Linear}, torch.float16
    ),
    "per channel": lambda: static("fbgemm"),
    "per tensor": lambda: static("qnnpack"),
    "embedding": embedding,
}


def contents(value: Any) -> Any:
    """A value of a state dict: what packed parameters hold instead of them, tensors as
    numbers with all that they are.
    """
    if isinstance(value, torch.ScriptObject):
        return contents(value.__getstate__()[0])
    if isinstance(value, (list, tuple)):
        return [contents(item) for item in value]
    if isinstance(value, torch.Tensor):
        what = str(value.dtype), tuple(value.shape)
        if not value.is_quantized:
            return *what, value.tolist()
        return (
            *what,
            str(value.qscheme()),
            value.int_repr().tolist(),
            value.dequantize().tolist(),
        )
    return value

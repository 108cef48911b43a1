"""Snapshots of quantized modules hold the same quantized values; wrapper subclasses
come in parts.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from quantized import MODELS, contents, static
from torch import nn

import ckpt
from ckpt import formats
from ckpt.ext.live import state

pytestmark = pytest.mark.filterwarnings("ignore:.*(deprecated|storage class).*")

TAKES_SCHEMES = not torch.__version__.startswith("2.0.")
"""False for a torch whose `weights_only=True` refuses the schemes of quantized
tensors.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_quantized_values_come_back(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*left out")
        ckpt.snapshot(model, tmp_path / "a.pth")

    found = torch.load(tmp_path / "a.pth", weights_only=TAKES_SCHEMES)["state_dict"]
    expected = model.state_dict()
    assert list(found) == list(expected)
    assert contents(list(found.values())) == contents(list(expected.values()))
    if name != "dynamic":  # an LSTM loads only the packed objects of torch itself
        again = MODELS[name]()
        again.load_state_dict(found)
        assert contents(list(again.state_dict().values())) == contents(
            list(expected.values())
        )


@pytest.mark.parametrize("name", MODELS)
def test_packed_weights_are_no_list_that_torch_misses(
    name: str, tmp_path: Path
) -> None:
    """The state dict of a quantized layer has what its packed parameters hold."""
    model = MODELS[name]()
    torch.save(model, tmp_path / "whole.pth")
    ckpt.snapshot(model, tmp_path / "snapshot.pth")

    for path in ("whole.pth", "snapshot.pth"):
        codes = {finding.code for finding in ckpt.inspect(tmp_path / path).findings}
        assert not codes & {"list-modules", "plain-tensor"}
    # Without a class of an author the file needs torch alone.
    if name in ("float16", "embedding"):
        done = inside("inspect", "whole.pth", cwd=tmp_path)
        assert b"author's code" not in done.out
        assert b"which ckpt does not know" in done.out


def test_views_of_quantized_tensors_keep_their_place(tmp_path: Path) -> None:
    whole = torch.quantize_per_tensor(
        torch.arange(12.0).reshape(3, 4), 0.5, 3, torch.quint8
    )

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("all", whole)
            self.register_buffer("row", whole[1])

    ckpt.snapshot(Holder(), tmp_path / "a.pth")

    found = torch.load(tmp_path / "a.pth", weights_only=TAKES_SCHEMES)["state_dict"]
    assert torch.equal(found["row"].dequantize(), whole[1].dequantize())
    assert found["row"].q_zero_point() == 3 and found["row"].q_scale() == 0.5
    assert (
        found["all"].untyped_storage().data_ptr()
        == found["row"].untyped_storage().data_ptr()
    )


def test_narrow_quantized_tensors_are_left_out_and_said(tmp_path: Path) -> None:
    narrow = torch.quantize_per_channel(
        torch.ones(2, 4), torch.ones(2), torch.zeros(2), 0, torch.quint4x2
    )
    model = nn.Linear(2, 2)
    model.register_buffer("narrow", narrow)

    with pytest.warns(UserWarning, match=r"left out: narrow \(quantized\)"):
        ckpt.snapshot(model, tmp_path / "a.pth")

    assert list(torch.load(tmp_path / "a.pth", weights_only=True)["state_dict"]) == [
        "weight",
        "bias",
    ]


class Wrapped(torch.Tensor):
    """A wrapper as torchao has them: data, scales, and what describes them."""

    @staticmethod
    def __new__(cls, qdata: torch.Tensor, scale: torch.Tensor, kind: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, qdata.shape, dtype=torch.bfloat16
        )  # type: ignore[attr-defined]

    def __init__(
        self, qdata: torch.Tensor, scale: torch.Tensor, kind: Any = None
    ) -> None:
        self.qdata, self.scale, self.block_size, self.kind = qdata, scale, [1, 4], kind

    def __tensor_flatten__(self) -> Any:
        return ["qdata", "scale"], None

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0]


QDATA, SCALE = (
    torch.arange(-4, 4, dtype=torch.int8).reshape(2, 4),
    torch.tensor([[0.5], [0.25]]),
)


def wrapped(kind: Any = None) -> nn.Module:
    model = nn.Linear(4, 2)
    del model.weight
    model.register_buffer("weight", Wrapped(QDATA, SCALE, kind))
    return model


def test_wrappers_come_in_parts(tmp_path: Path) -> None:
    ckpt.snapshot(wrapped(), tmp_path / "a.pth")

    found = torch.load(tmp_path / "a.pth", weights_only=TAKES_SCHEMES)["state_dict"]
    parts = ["dtype", "shape", "qdata", "scale", "block_size"]
    assert list(found) == ["bias", *(f"weight.{part}" for part in parts)]
    assert torch.equal(found["weight.qdata"], QDATA) and torch.equal(
        found["weight.scale"], SCALE
    )
    assert found["weight.dtype"] == "torch.bfloat16" and found["weight.shape"] == (2, 4)


def test_a_part_that_is_not_plain_is_left_out_and_said(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning,
        match=r"left out: weight\.kind \(its type object is not a plain value\)",
    ):
        ckpt.snapshot(wrapped(object()), tmp_path / "a.pth")

    found = torch.load(tmp_path / "a.pth", weights_only=TAKES_SCHEMES)["state_dict"]
    assert "weight.qdata" in found and "weight.kind" not in found


def test_parts_with_a_name_that_is_taken_are_left_out(tmp_path: Path) -> None:
    model = wrapped()
    state_dict = model.state_dict()
    state_dict["weight.scale"] = torch.zeros(1)
    model.state_dict = lambda **_: state_dict  # type: ignore[method-assign, assignment]

    with pytest.warns(UserWarning, match=r"left out: weight \(Wrapped"):
        ckpt.snapshot(model, tmp_path / "a.pth")

    found = torch.load(tmp_path / "a.pth", weights_only=TAKES_SCHEMES)["state_dict"]
    assert found["weight.scale"].tolist() == [0] and "weight.qdata" not in found


def test_a_live_model_compares_whole_wrappers(tmp_path: Path) -> None:
    """Its tensors have the names that a file of its state dict has."""
    live = state.state_checkpoint(wrapped(), "live")

    assert [entry.name for entry in live.tensors] == ["bias"]
    assert [name for name, _ in live.account.left_out] == ["weight"]


def test_a_snapshot_and_a_file_have_the_same_quantized_tensors(tmp_path: Path) -> None:
    model = static("fbgemm")
    ckpt.snapshot(model, tmp_path / "a.pth")
    torch.save(model.state_dict(), tmp_path / "b.pth")

    with (
        formats.open(str(tmp_path / "a.pth")) as one,
        formats.open(str(tmp_path / "b.pth")) as two,
    ):
        ours = {
            entry.name: entry.tensor
            for entry in one.tensors
            if entry.name.startswith("state_dict.")
        }
        for entry in two.tensors:
            mine = ours[f"state_dict.{entry.name}"]
            assert (mine.layout, mine.dtype, mine.shape) == (
                entry.tensor.layout,
                entry.tensor.dtype,
                entry.tensor.shape,
            )
            assert [name for name, _ in mine.parts] == [
                name for name, _ in entry.tensor.parts
            ]
            assert mine.nbytes == entry.tensor.nbytes

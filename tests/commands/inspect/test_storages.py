"""What counts as tied weights. Other tensors share memory too, and are no tie."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from refs import ref_of
from torch import nn

from ckpt import formats
from ckpt.commands.inspect.inspect import _is_apart as storages_apart
from ckpt.commands.inspect.inspect import holding_storages, inspect, storage_uses
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Entries, Tensors
from ckpt.model.columns import Chain, Column


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.emb.weight


def ties(tmp_path: Path, saved: object) -> list[tuple[str, tuple[str, ...]]]:
    torch.save(saved, tmp_path / "saved.pth")
    with formats.open(str(tmp_path / "saved.pth")) as checkpoint:
        found = inspect(Survey(checkpoint)).findings
    return [(row.message, row.tensors) for row in found if row.code == "tied"]


def test_weights_of_a_state_dict_and_of_a_module_are_tied(tmp_path: Path) -> None:
    names = ("emb.weight", "head.weight")
    text = "emb.weight = head.weight share their memory."
    assert ties(tmp_path, Tied().state_dict()) == [(text, names)]
    assert ties(tmp_path, Tied()) == [(text, names)]


def test_an_average_that_shares_buffers_with_its_model_is_no_tie(
    tmp_path: Path,
) -> None:
    # ignite's EMAHandler with handle_buffers="copy" or "update" keeps the tensors; its
    # state dict then shares them.
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    state, average = model.state_dict(), copy.deepcopy(model).state_dict()
    shared = [name for name, _ in model.named_buffers()]
    average.update((name, state[name]) for name in shared)
    assert ties(tmp_path, {"model": state, "ema_model": average}) == []


def test_an_average_has_ties_of_its_own(tmp_path: Path) -> None:
    model = Tied()
    saved = {
        "model": model.state_dict(),
        "ema_model": copy.deepcopy(model).state_dict(),
    }
    names = (
        "model.emb.weight",
        "model.head.weight",
        "ema_model.emb.weight",
        "ema_model.head.weight",
    )
    text = (
        "model.emb.weight = model.head.weight share their memory, and 1 more group too."
    )
    assert ties(tmp_path, saved) == [(text, names)]


def test_two_models_may_share_an_encoder(tmp_path: Path) -> None:
    encoder = nn.Linear(3, 3)
    saved = {
        "actor_model": nn.Sequential(encoder, nn.Linear(3, 1)).state_dict(),
        "critic_model": nn.Sequential(encoder, nn.Linear(3, 2)).state_dict(),
    }
    names = (
        "actor_model.0.weight",
        "critic_model.0.weight",
        "actor_model.0.bias",
        "critic_model.0.bias",
    )
    assert [found for _, found in ties(tmp_path, saved)] == [names]


def test_models_in_a_list(tmp_path: Path) -> None:
    names = (
        "models.0.emb.weight",
        "models.0.head.weight",
        "models.1.emb.weight",
        "models.1.head.weight",
    )
    found = ties(tmp_path, {"models": [Tied().state_dict(), Tied().state_dict()]})
    assert [group for _, group in found] == [names]


def test_counters_of_callbacks_are_no_tie(tmp_path: Path) -> None:
    best = torch.tensor(0.5)
    saved: dict[str, Any] = {
        "state_dict": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).state_dict(),
        "pytorch-lightning_version": "2.6.6",
        "callbacks": {
            "ModelCheckpoint{}": {
                "best_model_score": best,
                "current_score": best,
                "best_k": {"a": best},
            }
        },
    }
    assert ties(tmp_path, saved) == []


def test_only_single_numbers_that_are_parameters_are_tied(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    seen, scale = torch.tensor(0), nn.Parameter(torch.tensor(1.0))
    for name in ("seen", "total"):
        model.register_buffer(name, seen)
    assert ties(tmp_path, model) == []
    for name in ("scale", "temperature"):
        model.register_parameter(name, scale)
    assert [names for _, names in ties(tmp_path, model)] == [("scale", "temperature")]


def test_the_state_of_an_optimizer_is_no_tie(tmp_path: Path) -> None:
    step, moment = torch.tensor(1.0), torch.ones(3)
    state = {
        0: {"step": step, "exp_avg": moment, "max_exp_avg": moment},
        1: {"step": step},
    }
    saved = {
        "model": nn.Linear(3, 1).state_dict(),
        "optimizer": {"state": state, "param_groups": [{"params": [0, 1]}]},
    }
    assert ties(tmp_path, saved) == []


def test_the_parts_of_a_jagged_tensor_are_no_tie(tmp_path: Path) -> None:
    rows = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged
    )
    saved = {
        "rows.weight": rows,
        "twice.weight": rows * 2,
        "weight": torch.ones(2),
    }  # they share their offsets
    assert ties(tmp_path, saved) == []


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_what_quantized_layers_pack_is_no_tie(tmp_path: Path, whole: bool) -> None:
    if not {"fbgemm", "x86", "qnnpack"} & set(
        torch.backends.quantized.supported_engines
    ):
        pytest.skip("this torch has no engine for quantized layers")
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 4), "head": nn.Linear(4, 4)})
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM})
    assert ties(tmp_path, quantized if whole else quantized.state_dict()) == []


def test_a_column_at_two_places_is_not_apart() -> None:
    ref = ref_of(torch.zeros(3))
    storages = [ref.storage._replace(id=str(number)) for number in range(4)]
    column = Tensors(Column(4, lambda first, last: storages[first:last]), [ref] * 4)
    keys = ["k", "l", "m", "n"]
    once, again = (
        Entries((at,), keys, [f"{at}.{key}" for key in keys], column)
        for at in ("a", "b")
    )
    assert storages_apart(Chain(once)) and not storages_apart(Chain(once, again))


def _base(count: int = 4096) -> torch.Tensor:
    return torch.arange(float(count))


def _both(first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"a.weight": first, "b.weight": second}


BASE = _base()
VIEWS: dict[str, tuple[dict[str, torch.Tensor], int, bool]] = {
    "every 1,000th": ({"a.weight": _base(1_000_000)[::1000]}, 3_996_000, False),
    "every second": ({"a.weight": BASE[::2]}, 8192, False),
    "every other second": ({"a.weight": BASE[1::2]}, 8192, False),
    "to the last element": ({"a.weight": _base(4097)[::2]}, 8192, False),
    "columns": ({"a.weight": BASE.view(64, 64)[:, 3:5]}, 16384 - 512, False),
    "turned": ({"a.weight": BASE.view(64, 64)[:32].t()}, 8192, False),
    "one element many times": ({"a.weight": BASE[5].expand(100, 40)}, 16380, False),
    "a row many times": ({"a.weight": BASE[::4].expand(3, 1024)}, 12288, False),
    "more often than the storage is long": (
        {"a.weight": BASE[::4].expand(9, 1024)},
        12288,
        False,
    ),
    "windows": ({"a.weight": BASE.unfold(0, 8, 2)[:100]}, 16384 - 4 * 206, False),
    "windows with gaps": ({"a.weight": BASE.unfold(0, 2, 8)}, 12288, False),
    "the same twice": (_both(BASE[::2], BASE[::2]), 8192, False),
    "both halves": (_both(BASE[:1000], BASE[2000:]), 4000, False),
    "even and odd": (_both(BASE[::2], BASE[1::2]), 0, False),
    "gaps of two views": (_both(BASE[:2000:2], BASE[2000::2]), 8192, False),
    "one within the gaps of another": (
        _both(BASE[:3000:4], BASE[::8][:100]),
        16384 - 4 * 2997,
        True,
    ),
    "all, and every second": (_both(BASE, BASE[::2]), 0, False),
    "nothing": ({"a.weight": BASE[:0], "b.weight": BASE[:1024]}, 12288, False),
}


@pytest.mark.parametrize(("state", "unused", "is_bound"), VIEWS.values(), ids=VIEWS)
def test_what_no_tensor_uses_is_what_slim_leaves_out(
    state: dict[str, torch.Tensor], unused: int, is_bound: bool, tmp_path: Path
) -> None:
    torch.save(state, tmp_path / "a.pth")
    with formats.open(str(tmp_path / "a.pth")) as checkpoint:
        held = list(holding_storages(checkpoint))
        before = sum(storage.nbytes for storage in checkpoint.storages)
        uses = storage_uses(checkpoint)
    done = inside("slim", "a.pth", "-o", "b.pth", cwd=tmp_path)
    assert done.code == 0, done.err.decode()
    with formats.open(str(tmp_path / "b.pth")) as checkpoint:
        after = sum(storage.nbytes for storage in checkpoint.storages)

    assert (
        sum(row.held for row in held)
        == sum(row.held for row in uses)
        == before - after
        == unused
    )
    assert any(row.is_bound for row in uses) == is_bound
    said = inside("inspect", "a.pth", cwd=tmp_path).out.decode()
    assert ("that no tensor uses" in said, "At least" in said) == (
        unused >= 1024,
        is_bound,
    )
    slimmed = torch.load(tmp_path / "b.pth")
    assert all(torch.equal(slimmed[name], tensor) for name, tensor in state.items())

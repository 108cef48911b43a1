"""DeepSpeed checkpoints as DeepSpeed 0.19.8 writes them, without it: the same files,
keys and classes.

`tests/frameworks/write_deepspeed.py` compares ckpt with the real thing.
"""

from __future__ import annotations

import enum
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from needs import skip_without

TAG = "global_step3"
Params = dict[str, torch.Tensor]


@dataclass
class fragment_address:
    numel: int
    start: int


class ZeroStageEnum(int, enum.Enum):
    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


class LossScaler:
    def __init__(self) -> None:
        self.cur_scale = 1.0
        self.dynamic = False


_CLASSES = {
    fragment_address: "deepspeed.utils.tensor_fragment",
    ZeroStageEnum: "deepspeed.runtime.zero.config",
    LossScaler: "deepspeed.runtime.fp16.loss_scaler",
}


@contextmanager
def standing_in() -> Iterator[None]:
    """DeepSpeed's classes can be pickled, by the names that they have there."""
    modules: dict[str, ModuleType] = {}
    for cls, name in _CLASSES.items():
        cls.__module__ = name
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            modules.setdefault(
                ".".join(parts[:depth]), ModuleType(".".join(parts[:depth]))
            )
        setattr(modules[name], cls.__name__, cls)
    with mock.patch.dict(sys.modules, modules):
        yield


class Live:
    """What a model and its optimizer hold when they are saved: trainable parameters in
    groups, frozen ones, buffers.
    """

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        shapes = {
            "emb.weight": (7, 5),
            "up.weight": (9, 5),
            "up.bias": (9,),
            "scale": (1,),
            "unused.weight": (7, 3),
        }
        self.groups: list[Params] = [{}, {}]
        for name, shape in shapes.items():
            self.groups[len(shape) < 2][name] = torch.randn(shape)
        self.frozen: Params = {
            "frozen.weight": torch.randn(5, 9),
            "frozen.bias": torch.randn(5),
        }
        self.buffers: Params = {
            "bn.running_mean": torch.randn(9),
            "bn.num_batches_tracked": torch.tensor(3),
        }
        self.shared = {"head.weight": "emb.weight"}
        self.exp_avg = {
            name: torch.randn_like(value) for name, value in self.trained.items()
        }
        self.exp_avg_sq = {
            name: torch.rand_like(value) for name, value in self.trained.items()
        }
        self.exp_avg_sq["unused.weight"].zero_()

    @property
    def trained(self) -> Params:
        return {name: value for group in self.groups for name, value in group.items()}

    @property
    def order(self) -> list[str]:
        """The names of the state dict."""
        names = [
            "emb.weight",
            "up.weight",
            "up.bias",
            "bn.running_mean",
            "bn.num_batches_tracked",
            "frozen.weight",
        ]
        return [*names, "frozen.bias", "scale", "unused.weight", "head.weight"]

    def weights(self) -> Params:
        """The weights in fp32 by all names, and the buffers."""
        every = {**self.trained, **self.frozen, **self.buffers}
        return {name: every[self.shared.get(name, name)] for name in self.order}


class Saved:
    """The files of a checkpoint before they are written, by name; tests change them."""

    def __init__(self, live: Live, stage: int, ranks: int, dtype: torch.dtype) -> None:
        self.live = live
        self.stage = stage
        self.ranks = ranks
        self.dtype = dtype
        self.latest = TAG
        prefix = "bf16_" if dtype == torch.bfloat16 else ""
        with standing_in():
            if stage == 3:
                self.models = {
                    f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt": self._model(rank)
                    for rank in range(ranks)
                }
            else:
                self.models = {"mp_rank_00_model_states.pt": self._model(0)}
            optimizer = self._shared if stage == 3 else self._whole
            self.optimizers = {
                f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": self._file(
                    optimizer(rank)
                )
                for rank in range(ranks if stage else 0)
            }

    # --- model states -----------------------------------------------------------------

    def _module(self) -> OrderedDict[str, torch.Tensor]:
        """The parameters of a group look into one flat storage; in ZeRO-3 they are
        empty.
        """
        live, made = self.live, {}
        for group in live.groups:
            flat = torch.cat([value.flatten() for value in group.values()]).to(
                self.dtype
            )
            flat = torch.nn.functional.pad(flat, (0, -flat.numel() % (2 * self.ranks)))
            at = 0
            for name, value in group.items():
                made[name] = flat[at : at + value.numel()].view(value.shape)
                at += value.numel()
        made |= {name: value.to(self.dtype) for name, value in live.frozen.items()}
        if self.stage == 3:
            made = {name: torch.empty(0, dtype=self.dtype) for name in made}
        made |= live.buffers
        return OrderedDict(
            (name, made[live.shared.get(name, name)]) for name in live.order
        )

    def _model(self, rank: int) -> dict[str, Any]:
        live, stage = self.live, self.stage
        frozen = {name: value.to(self.dtype) for name, value in live.frozen.items()}
        shapes = [
            OrderedDict((name, value.shape) for name, value in group.items())
            for group in live.groups
        ]
        fragments: dict[str, torch.Tensor] | None = None
        if stage == 2:
            fragments = OrderedDict(frozen)
        if stage == 3:
            fragments = OrderedDict(
                (name, self._fragment(value, rank)) for name, value in frozen.items()
            )
        optimizer = None
        if not stage:
            state = {
                number: {
                    "step": torch.tensor(3.0),
                    "exp_avg": live.exp_avg[name],
                    "exp_avg_sq": live.exp_avg_sq[name],
                }
                for number, name in enumerate(live.trained)
            }
            optimizer = {
                "state": state,
                "param_groups": [{"lr": 0.01, "params": list(range(len(state)))}],
            }
        return {
            "module": self._module(),
            "buffer_names": list(live.buffers),
            "optimizer": optimizer,
            "param_shapes": shapes if stage else None,
            "frozen_param_shapes": OrderedDict((n, v.shape) for n, v in frozen.items())
            if stage > 1
            else None,
            "shared_params": (live.shared if not rank else {}) if stage else None,
            "frozen_param_fragments": fragments,
            "lr_scheduler": {"base_lrs": [0.01], "last_epoch": 3},
            "data_sampler": None,
            "random_ltd": None,
            "skipped_steps": 0,
            "global_steps": 3,
            "global_samples": 24,
            "dp_world_size": self.ranks,
            "mp_world_size": 1,
            "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
            "ds_config": {"zero_optimization": {"stage": stage}},
            "ds_version": "0.19.8",
            "epoch": 2,
        }

    def _fragment(self, value: torch.Tensor, rank: int) -> torch.Tensor:
        """The part of a parameter that a rank of ZeRO-3 holds, with padding."""
        step = -(-value.numel() // self.ranks)
        flat = value.flatten()[rank * step : (rank + 1) * step]
        return torch.nn.functional.pad(flat, (0, step - flat.numel())).clone()

    # --- optimizer states -------------------------------------------------------------

    def _file(self, state: dict[str, Any]) -> dict[str, Any]:
        return {
            "optimizer_state_dict": state,
            "ds_config": {"zero_optimization": {"stage": self.stage}},
            "ds_version": "0.19.8",
        }

    def _base(self, states: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
        return {
            "state": {
                number: {"step": torch.tensor(3.0), "exp_avg": one, "exp_avg_sq": two}
                for number, (one, two) in enumerate(states)
            },
            "param_groups": [
                {"lr": 0.01, "weight_decay": (0.1, 0.0)[number], "params": [number]}
                for number in range(len(self.live.groups))
            ],
        }

    def _whole(self, rank: int) -> dict[str, Any]:
        """ZeRO 1 and 2: a part of each group, without the padding at its end; the
        moments keep it.
        """
        live = self.live
        weights: list[torch.Tensor] = []
        moments: list[tuple[torch.Tensor, torch.Tensor]] = []
        paddings: list[int] = []
        slices: list[OrderedDict[str, fragment_address]] = []
        for group in live.groups:
            numel = sum(value.numel() for value in group.values())
            size = (numel + -numel % (2 * self.ranks)) // self.ranks
            begin = rank * size

            def part(
                values: Params,
                group: Params = group,
                begin: int = begin,
                size: int = size,
            ) -> torch.Tensor:
                flat = torch.cat([values[name].flatten() for name in group])
                flat = torch.nn.functional.pad(
                    flat, (0, size * self.ranks - flat.numel())
                )
                return flat[begin : begin + size].clone()

            padding = min(size, max(0, begin + size - numel))
            weights.append(part(group)[: size - padding])
            moments.append((part(live.exp_avg), part(live.exp_avg_sq)))
            paddings.append(padding)
            rows: OrderedDict[str, fragment_address] = OrderedDict()
            at = 0
            for name, value in group.items():
                low, high = max(at, begin), min(at + value.numel(), begin + size)
                if low < high:
                    rows[name] = fragment_address(high - low, low - begin)
                at += value.numel()
            slices.append(rows)
        return {
            "loss_scaler": LossScaler(),
            "dynamic_loss_scale": False,
            "overflow": False,
            "clip_grad": 1.0,
            "base_optimizer_state": self._base(moments),
            "single_partition_of_fp32_groups": weights,
            "zero_stage": ZeroStageEnum(self.stage),
            "group_paddings": paddings,
            "param_alignment_paddings": [[0] * len(group) for group in live.groups],
            "partition_count": [self.ranks] * len(live.groups),
            "ds_version": "0.19.8",
            "param_slice_mappings": slices,
        }

    def _shared(self, rank: int) -> dict[str, Any]:
        """ZeRO-3: a part of each parameter."""
        live = self.live

        def flat(values: Params, group: Params) -> torch.Tensor:
            return torch.cat([self._fragment(values[name], rank) for name in group])

        moments = [
            (flat(live.exp_avg, group), flat(live.exp_avg_sq, group))
            for group in live.groups
        ]
        return {
            "zero_stage": ZeroStageEnum(self.stage),
            "loss_scaler": LossScaler(),
            "dynamic_loss_scale": False,
            "overflow": False,
            "partition_count": self.ranks,
            "optimizer_state_dict": self._base(moments),
            "fp32_flat_groups": [flat(group, group) for group in live.groups],
        }

    # --- writing ----------------------------------------------------------------------

    @property
    def states(self) -> list[dict[str, Any]]:
        """`optimizer_state_dict` of each rank."""
        return [file["optimizer_state_dict"] for file in self.optimizers.values()]

    def write(self, folder: Path, tag: str = TAG) -> Path:
        """The folder with `latest`. The scripts in it would leave a file behind if
        anything ran them.
        """
        skip_without("deepspeed")
        (folder / tag).mkdir(parents=True)
        with standing_in():
            for name, state in {**self.models, **self.optimizers}.items():
                torch.save(state, folder / tag / name)
        (folder / "latest").write_text(self.latest if tag == TAG else tag)
        if self.stage:
            script = f"open({str(folder / 'RAN')!r}, 'w')\n"
            for name in ("zero_to_fp32.py", "zero_to_torch.py"):
                (folder / name).write_text(script)
        return folder


def saved(
    stage: int, ranks: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Saved:
    """A checkpoint of ZeRO `stage`, to be changed and written."""
    return Saved(Live(seed), stage, ranks, dtype)


def write(
    folder: Path,
    stage: int,
    ranks: int = 2,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Path:
    return saved(stage, ranks, dtype, seed).write(folder)


def universal(made: Saved, folder: Path) -> Path:
    """What `ds_to_universal.py` makes of a checkpoint: flat tensors from ZeRO-3, else
    `{"param": tensor}`.
    """
    live, at = made.live, folder / f"{TAG}_universal"
    wrap: Callable[[torch.Tensor], Any] = (
        (lambda value: value.flatten())
        if made.stage == 3
        else (lambda value: {"param": value, "cat_dim": 0})
    )
    fp32 = dict(live.trained)
    if made.stage < 3:
        fp32 |= {
            name: value.to(made.dtype).float() for name, value in live.frozen.items()
        }
        fp32 |= {name: value.float() for name, value in live.buffers.items()}
        fp32 |= {name: live.trained[owner] for name, owner in live.shared.items()}
    at.mkdir(parents=True)
    with standing_in():
        for name, state in made.models.items():
            torch.save(state, at / name)
        for name, value in fp32.items():
            (at / "zero" / name).mkdir(parents=True)
            torch.save(wrap(value.clone()), at / "zero" / name / "fp32.pt")
            if name in live.trained:
                torch.save(wrap(live.exp_avg[name]), at / "zero" / name / "exp_avg.pt")
                torch.save(
                    wrap(live.exp_avg_sq[name]), at / "zero" / name / "exp_avg_sq.pt"
                )
                if made.stage < 3:
                    torch.save(torch.tensor(3.0), at / "zero" / name / "step.pt")
        common = {"zero_stage": ZeroStageEnum(made.stage), "loss_scaler": LossScaler()}
        groups = (
            made.states[0].get("base_optimizer_state")
            or made.states[0]["optimizer_state_dict"]
        )
        torch.save(
            {**common, "param_groups": groups["param_groups"]},
            at / "zero" / "optimizer_state.pt",
        )
    (folder / "latest_universal").write_text(at.name)
    return folder

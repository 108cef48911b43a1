"""DeepSpeed pipelines as DeepSpeed 0.19.8 writes them, without it: a file for each
layer, and the states of each stage.

Two stages: a tied embedding (layers 0 and 5), two blocks with a buffer (1 and 3), a
function without a file (2), and a linear layer (4) whose bias is frozen. Recorded from
`PipelineModule` on two and four processes.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from deepspeeds import TAG, Live, Params, Saved, standing_in
from needs import skip_without

TIED = "tied_modules.embed.weight"
STAGES = ((0, 1), (3, 4, 5))
FROZEN = "4.bias"


class StageLive(Live):
    """The parameters of one stage in fp32: matrices in the first group, vectors in the
    second.
    """

    def __init__(self, every: Params, names: list[str]) -> None:
        super().__init__()
        self.groups = [{}, {}]
        for name in names:
            self.groups[every[name].dim() < 2][name] = every[name]
        self.frozen, self.buffers, self.shared = {}, {}, {}
        self.exp_avg = {name: value * 0.5 for name, value in self.trained.items()}
        self.exp_avg_sq = {name: value.square() for name, value in self.trained.items()}

    @property
    def order(self) -> list[str]:
        return list(self.trained)


class Pipeline:
    """The files of a pipeline before they are written; tests change them."""

    def __init__(
        self,
        stage: int = 1,
        ranks: int = 2,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        step: int = 3,
    ) -> None:
        torch.manual_seed(seed)
        self.stage = stage
        self.weights: Params = {TIED: torch.randn(6, 4)}
        for number in (1, 3):
            self.weights |= {
                f"{number}.w.weight": torch.randn(4, 4),
                f"{number}.w.bias": torch.randn(4),
            }
        self.weights |= {"4.weight": torch.randn(4, 4), FROZEN: torch.randn(4)}
        self.buffers: Params = {f"{number}.mean": torch.randn(4) for number in (1, 3)}
        self.trained = {
            name: value for name, value in self.weights.items() if name != FROZEN
        }
        self.layers = {
            number: self._layer(number, dtype)
            for numbers in STAGES
            for number in numbers
        }
        self.names = {
            number: f"layer_{number:02d}-model_states.pt" for number in self.layers
        }
        self.states: dict[str, Any] = {}
        for rank, numbers in enumerate(STAGES):
            own = [
                TIED,
                *(name for name in self.trained if name[0] in map(str, numbers)),
            ]
            saved = Saved(StageLive(self.weights, own), stage, ranks, dtype)
            buffers = [name for name in self.buffers if name[0] in map(str, numbers)]
            for name, state in {**saved.models, **saved.optimizers}.items():
                self.states[name.replace("mp_rank_00", f"mp_rank_{rank:02d}")] = state
            for state in saved.models.values():
                state |= {"module": None, "buffer_names": buffers, "mp_world_size": 2}
                state |= {
                    "global_steps": step,
                    "global_samples": 8 * step,
                    "frozen_param_shapes": None,
                }
                state["checkpoint_parallel_dimensions"] = {
                    "pp_degree": 2,
                    "tp_degree": 1,
                }
                for row in ((state["optimizer"] or {}).get("state") or {}).values():
                    row["step"] = torch.tensor(float(step))
            for state in saved.states:
                for row in state["base_optimizer_state"]["state"].values():
                    row["step"] = torch.tensor(float(step))

    def _layer(self, number: int, dtype: torch.dtype) -> Params:
        if number in (0, 5):
            return OrderedDict(weight=self.weights[TIED].to(dtype))
        start = f"{number}."
        held = {
            name: value.to(dtype)
            for name, value in self.weights.items()
            if name.startswith(start)
        }
        held |= {
            name: value
            for name, value in self.buffers.items()
            if name.startswith(start)
        }
        return OrderedDict(
            (name[len(start) :], value.clone()) for name, value in held.items()
        )

    @property
    def model(self) -> Params:
        """What `model` holds when all files are there: fp32 where the optimizer
        has it.
        """
        layers = {
            f"{number}.{key}": value
            for number, row in self.layers.items()
            for key, value in row.items()
        }
        return {**layers, **(self.trained if self.stage else {})}

    def write(self, folder: Path, tag: str = TAG) -> Path:
        skip_without("deepspeed")
        (folder / tag).mkdir(parents=True)
        with standing_in():
            for number, state in self.layers.items():
                torch.save(state, folder / tag / self.names[number])
            for name, state in self.states.items():
                torch.save(state, folder / tag / name)
        (folder / "latest").write_text(tag)
        return folder

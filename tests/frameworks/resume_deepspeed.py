"""Training that begins in DeepSpeed on two or four ranks, and goes on in FSDP2 on
others. Run by `make test-frameworks`; `ARGS=-s` prints the differences.

Each case trains three steps, saves, and trains two more in DeepSpeed. `ckpt convert`
makes a DCP of the save, torch loads it strictly, and FSDP2 trains the same two steps.
The losses must be the same, and others where the optimizer begins anew. Each training
is a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib")]

import pytest  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from train_dcp import main  # noqa: E402
from train_resume import BATCH, MORE, OPTIMIZERS, STEPS, WORDS, built, groups, trained  # noqa: E402

AFTER = (4, 1)
"""The ranks of FSDP2."""
PER_CASE = 400
"""Seconds that the processes of one case may take: they wait for each other, and hang
where one fails. FusedAdam is compiled first.
"""
FUSED = ("params", "lr", "betas", "eps", "weight_decay")
"""The options of a group that DeepSpeed's FusedAdam shares with AdamW of torch."""
WIDTH = 12


class Case(NamedTuple):
    stage: int
    dtype: str
    kind: str

    @property
    def name(self) -> str:
        return "-".join(map(str, self))

    @property
    def ranks(self) -> int:
        """Two, or two for each of the two stages of a pipeline."""
        return 4 if is_pipeline(self.kind) else 2

    @property
    def bound(self) -> float:
        """The relative difference of a loss that is allowed.

        In bf16 gradients are summed in another order on other ranks, and ZeRO-3 adds
        the bias of a layer apart (`memory_efficient_linear`): without that the first
        loss is the same bit by bit.
        """
        return 1e-5 if self.dtype == "fp32" else 1e-3


CASES = [
    *(Case(0, "fp32", kind) for kind in OPTIMIZERS),
    *(
        Case(stage, dtype, kind)
        for stage in (1, 2, 3)
        for dtype in ("fp32", "bf16")
        for kind in OPTIMIZERS
    ),
    Case(1, "fp32", "fused"),
    *(Case(1, dtype, kind) for dtype in ("fp32", "bf16") for kind in ("pipe", "tied")),
]


# --- models ---------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.mix(self.norm(x)))


class Table(nn.Module):
    """Takes words into vectors, and vectors into words."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            x @ self.weight.t()
            if x.is_floating_point()
            else nn.functional.embedding(x, self.weight)
        )


class Tied(nn.Sequential):
    """The layers of a pipeline, of which the first and the last are one: under the name
    that DeepSpeed gives it.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.tied_modules = nn.ModuleDict({"embed": Table()})
        for number, layer in enumerate(layers, 1):
            self.add_module(str(number), layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = [
            layer for name, layer in self.named_children() if name != "tied_modules"
        ]
        for layer in (self.tied_modules["embed"], *layers, self.tied_modules["embed"]):
            x = layer(x)
        return x


def layers_of(kind: str) -> nn.Module:
    if kind == "pipe":
        return nn.Sequential(Table(), Block(), Block(), nn.Linear(WIDTH, WORDS))
    return Tied(Block(), Block())


def is_pipeline(kind: str) -> bool:
    return kind in ("pipe", "tied")


def net_of(kind: str) -> nn.Module:
    return built("adam" if kind == "fused" else kind)


def optimizer_of(net: nn.Module, kind: str) -> torch.optim.Optimizer:
    return OPTIMIZERS.get(kind, OPTIMIZERS["adam"])(net)


# --- in DeepSpeed ---------------------------------------------------------------------


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), words.flatten())


def words_of(step: int, rank: int, world: int) -> torch.Tensor:
    words = torch.randint(
        0, WORDS, (BATCH, 6), generator=torch.Generator().manual_seed(step)
    )
    return words[rank * BATCH // world : (rank + 1) * BATCH // world]


def steps(engine: Any, first: int, count: int) -> list[float]:
    """The losses of some steps, of the whole batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in range(first, first + count):
        mine = words_of(step, rank, world)
        loss = loss_of(engine(mine[:, :-1]), mine[:, 1:])
        engine.backward(loss)
        engine.step()
        whole = loss.detach().float().clone()
        dist.all_reduce(whole)
        losses.append(float(whole) / world)
    return losses


def pipeline_steps(engine: Any, first: int, count: int) -> list[float]:
    """The losses of some steps. Each of two pipelines takes half of the batch."""
    number = engine.grid.get_data_parallel_rank()
    losses = []
    for step in range(first, first + count):
        mine = words_of(step, number, 2)
        losses.append(float(engine.train_batch(iter([(mine[:, :-1], mine[:, 1:])]))))
    return losses


def pipeline(kind: str) -> nn.Module:
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    if kind == "pipe":
        layers = [
            LayerSpec(Table),
            LayerSpec(Block),
            LayerSpec(Block),
            LayerSpec(nn.Linear, WIDTH, WORDS),
        ]
    else:
        ends = TiedLayerSpec("embed", Table)
        layers = [ends, LayerSpec(Block), LayerSpec(Block), ends]
    return PipelineModule(
        layers,
        num_stages=2,
        loss_fn=loss_of,
        partition_method="uniform",
        seed_layers=True,
    )


def rank(folder: str, case: Case) -> None:
    """One rank of DeepSpeed: trains, saves, and trains on."""
    import deepspeed

    # Its own sums in shared memory would be compiled for each case.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    net = pipeline(case.kind) if is_pipeline(case.kind) else net_of(case.kind)
    optimizer = optimizer_of(net, case.kind)
    if case.kind == "fused":
        from deepspeed.ops.adam import FusedAdam

        optimizer = FusedAdam(groups(net), lr=1e-2)
    config = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // 2,
        "zero_optimization": {
            "stage": case.stage,
            "stage3_param_persistence_threshold": 0,
        },
        # the norm is 1.0 without it: a loop that goes on elsewhere would clip too
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **({"bf16": {"enabled": True}} if case.dtype == "bf16" else {}),
    }
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=optimizer,
        model_parameters=[p for p in net.parameters() if p.requires_grad],
        config=config,
    )
    go = pipeline_steps if is_pipeline(case.kind) else steps
    go(engine, 0, STEPS)
    engine.save_checkpoint(folder)
    losses = go(engine, STEPS, MORE)
    if dist.get_rank() == 0:
        Path(f"{folder}.json").write_text(json.dumps(losses), encoding="utf-8")
    dist.barrier()


# --- in FSDP2 -------------------------------------------------------------------------


def sharded(case: Case) -> nn.Module:
    """The model with other values than those that are loaded."""
    net = layers_of(case.kind) if is_pipeline(case.kind) else net_of(case.kind)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    dtype = torch.bfloat16 if case.dtype == "bf16" else None
    for module in net.modules():
        if isinstance(module, Block) or (
            isinstance(module, nn.Sequential) and module is not net
        ):
            fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(dtype))
    fully_shard(
        net,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(dtype, output_dtype=torch.float32),
    )
    return net


def go_on(path: Path, case: Case, *, anew: bool = False) -> None:
    """The strict load of torch, and two more steps. With `anew` the optimizer stays as
    it began.
    """
    net = sharded(case)
    optimizer = optimizer_of(net, case.kind)
    model, state = get_state_dict(net, optimizer)
    whole: dict[str, Any] = {"model": model, "optimizer": state, "global_steps": 0}
    own = state["param_groups"]
    if case.kind == "fused":  # the other options of AdamW are in no file
        state["param_groups"] = [{key: group[key] for key in FUSED} for group in own]
    dcp.load(whole, checkpoint_id=str(path.parent / f"{case.name}.dcp"))
    assert whole["global_steps"] == STEPS
    state["param_groups"] = [
        {**mine, **loaded}
        for mine, loaded in zip(own, state["param_groups"], strict=True)
    ]
    set_state_dict(
        net,
        optimizer,
        model_state_dict=whole["model"],
        optim_state_dict=whole["optimizer"],
    )
    if anew:
        optimizer = optimizer_of(net, case.kind)
    losses = trained(net, optimizer, STEPS, MORE)
    if dist.get_rank() == 0:
        Path(f"{path}.json").write_text(json.dumps(losses), encoding="utf-8")


# --- the cases ------------------------------------------------------------------------


def ended(
    arguments: Sequence[str], environments: Sequence[dict[str, str]], log: Path
) -> None:
    """Wait for processes of these environments. All end when one fails or the time is
    over.
    """
    with log.open("ab") as out:
        children = [
            subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **environment},
                stdout=out,
                stderr=out,
            )
            for environment in environments
        ]
        try:
            codes = [child.wait(PER_CASE) for child in children]
        finally:
            for child in children:
                child.kill()
    assert not any(codes), (
        f"{arguments}: {codes}: {log.read_text(encoding='utf-8')[-3000:]}"
    )


def begin(folder: Path, case: Case) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(case.ranks),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": os.environ.get(
            "TORCH_EXTENSIONS_DIR", str(folder / "extensions")
        ),
        # ninja, which came with DeepSpeed
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ended(
        [__file__, "rank", str(folder / case.name), case.name],
        [
            {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
            for number in range(case.ranks)
        ],
        folder / f"{case.name}.log",
    )


def difference(folder: Path, case: Case, run: str) -> float:
    """The largest relative difference of a loss from the original."""
    values = [
        json.loads((folder / f"{name}.json").read_text("utf-8"))
        for name in (case.name, run)
    ]
    return max(
        abs(before - after) / abs(before) for before, after in zip(*values, strict=True)
    )


def resumed(folder: Path, case: Case) -> list[float]:
    """Train in both, and return the difference of each run: on the ranks of AFTER, and
    with an optimizer that begins anew.
    """
    begin(folder, case)
    log = folder / f"{case.name}.log"
    target = f"{case.name}.dcp"
    command = [
        "-m",
        "ckpt",
        "convert",
        str(folder / case.name),
        "-o",
        str(folder / target),
    ]
    command += (
        [] if case.stage else ["--optimizer-keys", "order"]
    )  # the optimizer of torch, by numbers
    ended(command, [{}], log)
    ended([__file__, "go-on", str(folder), case.name], [{}], log)
    runs = [f"{case.name} on {world}" for world in AFTER] + [f"{case.name} anew"]
    return [difference(folder, case, run) for run in runs]


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def worlds(case: Case) -> dict[int, dict[str, Callable[[Path], None]]]:
    runs: dict[int, dict[str, Callable[[Path], None]]] = {
        world: {f"{case.name} on {world}": partial(go_on, case=case)} for world in AFTER
    }
    runs[1][f"{case.name} anew"] = partial(go_on, case=case, anew=True)
    return runs


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.filterwarnings("ignore")
def test_two_more_steps_have_the_losses_of_deepspeed(
    case: Case, tmp_path: Path
) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    if case.kind == "fused" and shutil.which("c++") is None:
        pytest.skip("there is no compiler for FusedAdam")
    on_four, on_one, anew = resumed(tmp_path, case)
    print(
        f"\n{case.name}: {on_four:.1g} on 4 ranks, {on_one:.1g} on 1, {anew:.1g} "
        "without its moments"
    )
    assert max(on_four, on_one) <= case.bound < anew


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(sys.argv[2], case_of(sys.argv[3]))
    else:
        main(Path(sys.argv[2]), worlds(case_of(sys.argv[3])))

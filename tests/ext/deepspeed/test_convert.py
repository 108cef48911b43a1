"""Writing what DeepSpeed saved in other formats: by byte ranges, whole, with the
weights that were asked for.
"""

from __future__ import annotations

from pathlib import Path

import deepspeeds
import pytest
import safetensors.torch
import shapes
import torch
from deepspeeds import Live, Params, saved
from inside import inside

from ckpt import formats
from ckpt.bytes import target
from ckpt.bytes.source import File
from ckpt.commands.convert.convert import convert
from ckpt.evidence.survey import Survey
from ckpt.formats import save, writer_of
from ckpt.model.limits import Limits

STAGES = [0, 1, 2, 3]


def same(found: Params, expected: Params) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), (
            name
        )


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", [(), ("--shard-size", "400")])
def test_to_safetensors(stage: int, how: tuple[str, ...], tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "run", stage, 3)
    assert inside("convert", "run", *how, "-o", "x.safetensors", cwd=tmp_path).code == 0
    found = {}
    for path in sorted(tmp_path.glob("*.safetensors")):
        found |= safetensors.torch.load_file(path)
    expected = Live().weights()
    del expected["head.weight"]  # tied: stored once
    same(found, expected)


@pytest.mark.parametrize("stage", STAGES)
def test_to_torch(stage: int, tmp_path: Path) -> None:
    made = saved(stage)
    for file in made.optimizers.values():
        file["ds_config"] = (
            shapes.Colour
        )  # a name that ckpt does not know, in what the result does not have
    made.write(tmp_path / "run")
    done = inside("convert", "run", "-o", "x.pth", cwd=tmp_path)
    assert done.code == 0 and not done.complaints, (
        "nothing of DeepSpeed is in the result"
    )
    state = torch.load(tmp_path / "x.pth", weights_only=True)
    same(state["model"], made.live.weights())
    assert ("left out: module" in done.out.decode()) == (
        stage in (1, 2)
    ) and "module" not in state
    assert state["epoch"] == 2 and state["lr_scheduler"]["last_epoch"] == 3
    assert (
        state["model"]["head.weight"].data_ptr()
        == state["model"]["emb.weight"].data_ptr()
    ) is True
    moments = state["optimizer"]["state"]
    if stage:
        assert torch.equal(
            moments["up.weight"]["exp_avg"], made.live.exp_avg["up.weight"]
        )
        moments["up.bias"]["step"] += 1
        assert moments["scale"]["step"] == 3, "each parameter has its own counter"


@pytest.mark.parametrize("stage", STAGES)
def test_slim(stage: int, tmp_path: Path) -> None:
    made = saved(stage)
    made.write(tmp_path / "run")
    assert inside("slim", "run", "-o", "x.pth", cwd=tmp_path).code == 0
    same(torch.load(tmp_path / "x.pth", weights_only=True), made.live.weights())


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_the_format_of_the_result_is_said(ending: str, tmp_path: Path) -> None:
    """torch.load reads no safetensors, so one sentence for all formats names none."""
    deepspeeds.write(tmp_path / "run", 2, 2)
    done = inside("slim", "run", "-o", f"x.{ending}", cwd=tmp_path)
    kind = {"pth": "torch-zip", "safetensors": "safetensors"}[ending]
    assert done.complaints == [
        f"ckpt: x.{ending}: its format is {kind}, which the loader of a DeepSpeed "
        "checkpoint does not read"
    ]


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_the_weights_of_the_module(ending: str, tmp_path: Path) -> None:
    made = saved(2, 2, torch.bfloat16)
    made.write(tmp_path / "run")
    for name, weights in (
        ("fp32", made.live.weights()),
        ("module", made.models["mp_rank_00_model_states.pt"]["module"]),
    ):
        out = tmp_path / f"{name}.{ending}"
        assert (
            inside(
                "convert", "run", "--weights", name, "-o", out.name, cwd=tmp_path
            ).code
            == 0
        )
        loaded = (
            safetensors.torch.load_file(out)
            if ending != "pth"
            else torch.load(out)["model"]
        )
        assert torch.equal(loaded["up.weight"], weights["up.weight"])
        assert loaded["up.weight"].dtype == weights["up.weight"].dtype
        assert loaded["frozen.weight"].dtype == torch.bfloat16
    assert inside("inspect", f"module.{ending}", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("stage", "options", "says"),
    [
        (
            3,
            ("--weights", "module"),
            "holds no weights of its module beside those in fp32",
        ),
        (2, ("--weights", "bf16"), "--weights bf16: not one of fp32 module"),
        (
            2,
            ("--weights", "module", "--section", "model"),
            "--weights and --section exclude each other",
        ),
    ],
)
def test_weights_that_are_not_there(
    stage: int, options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    deepspeeds.write(tmp_path / "run", stage)
    done = inside("convert", "run", *options, "-o", "x.pth", cwd=tmp_path)
    assert done.code == 2 and says in done.complaints[0]


@pytest.mark.parametrize("stage", [2, 3])
def test_large_pieces_are_copied_by_the_kernel(stage: int, tmp_path: Path) -> None:
    live = Live()
    live.groups[0] = {name: torch.randn(400, 401) for name in live.groups[0]}
    live.exp_avg |= live.groups[0]
    live.exp_avg_sq |= live.groups[0]
    folder = deepspeeds.Saved(live, stage, 2, torch.float32).write(tmp_path / "run")
    limits = Limits()
    with formats.open(str(folder)) as checkpoint:
        writer = writer_of("safetensors")
        report = convert(
            Survey(checkpoint),
            "safetensors",
            save.traits_of("safetensors"),
            limits,
            writer.unfit,
        )
        drafted = writer.draft(report.result, limits)
        before = [
            source.bytes_read
            for source in checkpoint.sources
            if isinstance(source, File)
        ]
        with target.writing_file(
            target.target(str(tmp_path / "x.safetensors"), force=False), drafted.size
        ) as sink:
            drafted.write(sink)
        after = [
            source.bytes_read
            for source in checkpoint.sources
            if isinstance(source, File)
        ]
    assert sum(after) - sum(before) < 5_000, "only the small tensors are read"
    found = safetensors.torch.load_file(tmp_path / "x.safetensors")
    for name, value in live.groups[0].items():
        assert torch.equal(found[name], value)


def test_diff_and_sums(tmp_path: Path) -> None:
    """The same weights in other partitions are the same weights."""
    deepspeeds.write(tmp_path / "a", 2, 2)
    deepspeeds.write(tmp_path / "b", 3, 5)
    deepspeeds.write(tmp_path / "c", 3, 5, seed=1)
    one, two = (inside("sum", name, cwd=tmp_path).out for name in "ab")
    assert one == two and b"emb.weight" in one
    assert inside("diff", "a", "b", "--section", "model", cwd=tmp_path).code in (0, 2)
    done = inside("diff", "a", "c", "--name-only", cwd=tmp_path)
    assert done.code == 1 and "emb.weight" in done.out.decode()
    assert (
        inside("stats", "a", "--tsv", cwd=tmp_path).out
        == inside("stats", "b", "--tsv", cwd=tmp_path).out
    )


def test_nothing_of_the_folder_is_run(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 2)
    for command in (
        ("inspect",),
        ("verify",),
        ("stats",),
        ("sum",),
        ("lint",),
        ("ls",),
        ("convert", "-o", "x.pth"),
    ):
        inside(command[0], "run", *command[1:], cwd=tmp_path)
    assert not (folder / "RAN").exists()

"""The report of `ckpt inspect`: sections, roles with evidence, storages, prefixes,
findings, values.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from torch import nn

from ckpt import formats
from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError
from ckpt.model.names import Globs

Inspect = Callable[..., Inspection]


@pytest.fixture
def report(tmp_path: Path) -> Inspect:
    """Saves an object with torch and inspects it."""

    def run(
        saved: Any,
        select: Globs | None = None,
        section: str | None = None,
        **options: Any,
    ) -> Inspection:
        torch.save(saved, tmp_path / "saved.pth", **options)
        with formats.open(str(tmp_path / "saved.pth")) as checkpoint:
            return inspect(Survey(checkpoint), select, section)

    return run


def sample(samples: Path, name: str) -> Inspection:
    with formats.open(str(samples / name)) as checkpoint:
        return inspect(Survey(checkpoint))


def codes(found: Inspection) -> list[str]:
    return [finding.code for finding in found.findings]


def kinds(found: Inspection) -> dict[str, str]:
    return {part.name: part.kind for part in found.sections}


def roles(found: Inspection) -> dict[str, tuple[str, str]]:
    return {
        row.entry.name: (role.role, role.trust)
        for row, role in zip(found.rows, found.roles(), strict=True)
    }


# --- sections -------------------------------------------------------------------------


def stepped(
    model: nn.Module, kind: type[torch.optim.Optimizer] = torch.optim.Adam
) -> dict[str, Any]:
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    return optimizer.state_dict()


def test_a_bare_state_dict_is_one_section_at_the_root(report: Inspect) -> None:
    assert kinds(report(nn.Linear(3, 2).state_dict())) == {"": "model"}
    assert kinds(report({"weight": torch.ones(2), "bias": torch.ones(2)})) == {
        "": "model"
    }


def test_a_training_checkpoint(report: Inspect) -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20))
    found = report(
        {
            "net": model.state_dict(),
            "model_ema": model.state_dict(),
            "optim": stepped(model),
            "optimizer_d": {"state": {}, "param_groups": [{"params": [0], "lr": 0.1}]},
            "lr_scheduler": {"last_epoch": 3},
            "scaler": {"scale": 65536.0},
            "rng_state": torch.get_rng_state(),
            "norm": {"mean": torch.zeros(3), "std": torch.ones(3)},
            "epoch": 3,
        }
    )

    assert kinds(found) == {
        "net": "model",
        "model_ema": "ema",
        "optim": "optimizer",
        "optimizer_d": "optimizer",
        "lr_scheduler": "scheduler",
        "scaler": "scaler",
        "rng_state": "rng",
        "norm": "other",
    }
    assert sum(part.tensors for part in found.sections) == len(found.rows)


def test_lists_of_optimizers_and_models_below_lists(report: Inspect) -> None:
    model = nn.Linear(3, 2)
    found = report(
        {
            "optimizer_states": [stepped(model), stepped(model)],
            "nets": [{"state_dict": model.state_dict()}],
        }
    )

    assert kinds(found) == {
        "optimizer_states.0": "optimizer",
        "optimizer_states.1": "optimizer",
        "nets.0.state_dict": "model",
    }


def test_basicsr_and_yolo_styles(report: Inspect, samples: Path) -> None:
    state = nn.Conv2d(3, 8, 3).state_dict()

    assert kinds(report({"params": state, "params_ema": state})) == {
        "params": "model",
        "params_ema": "ema",
    }
    assert kinds(sample(samples, "yolo_style.pt")) == {"model": "model"}
    assert kinds(sample(samples, "lightning.ckpt")) == {
        "state_dict": "model",
        "callbacks": "other",
        "optimizer_states.0": "optimizer",
        "lr_schedulers": "scheduler",
    }


def test_sections_select(report: Inspect) -> None:
    model = nn.Linear(3, 2)
    saved = {"model": model.state_dict(), "optimizer": stepped(model), "epoch": 1}

    assert [row.relative for row in report(saved, None, "model").rows] == [
        "weight",
        "bias",
    ]
    assert [row.entry.name for row in report(saved, Globs(["weight"])).rows] == [
        "model.weight"
    ]
    with pytest.raises(UsageError, match=r"no section models \(did you mean model\?\)"):
        report(saved, None, "models")
    with pytest.raises(UsageError, match=r"no section q \(sections: "):
        report(saved, None, "q")


# --- roles ----------------------------------------------------------------------------


def test_a_whole_module_tells_for_certain(samples: Path) -> None:
    found = sample(samples, "whole_model.pth")
    told = roles(found)

    assert told["scale"] == ("parameter", "certain")
    assert told["mean"] == ("buffer", "certain")
    assert told["stem.1.num_batches_tracked"] == ("buffer", "certain")
    by_name = {row.entry.name: row.entry for row in found.rows}
    assert [name for name, entry in by_name.items() if not entry.registered] == [
        f"cells.{i}.{leaf}" for i in (0, 1) for leaf in ("weight", "bias")
    ]
    assert [name for name, entry in by_name.items() if not entry.persistent] == ["grid"]
    assert by_name["stem.0.weight"].path == (
        "_modules",
        "stem",
        "_modules",
        "0",
        "_parameters",
        "weight",
    )


def test_names_of_a_module_are_those_of_its_state_dict(report: Inspect) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.MultiheadAttention(4, 2),
        nn.LSTM(3, 4),
    )

    assert [row.entry.name for row in report({"m": model}).rows] == [
        f"m.{name}" for name in model.state_dict()
    ]


def test_parameters_and_buffers_saved_as_such(report: Inspect) -> None:
    model = nn.BatchNorm1d(3)
    told = roles(report(model.state_dict(keep_vars=True)))

    assert told["weight"] == ("parameter", "certain")
    assert told["running_mean"] == ("buffer", "strong")


def test_siblings_and_dtypes(report: Inspect) -> None:
    plain = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    with pytest.warns(FutureWarning):
        normed = nn.utils.weight_norm(nn.Linear(4, 4))
    told = roles(
        report(
            nn.ModuleDict(
                {"bn": nn.BatchNorm1d(3), "sn": plain, "wn": normed}
            ).state_dict()
        )
    )

    assert (
        told["bn.running_var"] == told["bn.num_batches_tracked"] == ("buffer", "strong")
    )
    assert told["bn.weight"] == ("parameter", "strong")
    assert told["sn.parametrizations.weight.original"] == ("parameter", "strong")
    assert told["sn.parametrizations.weight.0._u"] == ("buffer", "strong")
    assert told["wn.weight_v"] == ("parameter", "strong")
    assert told["wn.bias"] == ("parameter", "likely")
    assert roles(
        report({"m.weight": torch.ones(2), "m.position_ids": torch.arange(3)})
    )["m.position_ids"] == (
        "buffer",
        "strong",
    )
    assert roles(report({"rope.inv_freq": torch.ones(3), "w.w": torch.ones(2)}))[
        "rope.inv_freq"
    ] == (
        "buffer",
        "likely",
    )


def test_names_in_the_optimizer(report: Inspect) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    told = roles(
        report({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    )

    assert set(told.values()) == {("parameter", "certain")}


# --- storages -------------------------------------------------------------------------


def test_only_equal_ranges_are_ties(report: Inspect) -> None:
    flat = torch.arange(24.0)
    emb = torch.ones(4, 3)
    found = report(
        {
            "own": torch.ones(2),
            "emb": emb,
            "head": emb,
            "turned": emb.T,
            "a": flat[:12],
            "b": flat[12:],
            "whole": torch.zeros(10)[:10],
        }
    )
    rows = {row.tensors: (row.kind, row.held) for row in found.storages}

    assert rows == {
        ("own",): ("own", 0),
        ("emb", "head", "turned"): ("tied", 0),
        ("a", "b"): ("packed", 0),
        ("whole",): ("own", 0),
    }
    assert codes(found) == ["tied"]
    assert found.findings[0].tensors == ("emb", "head", "turned")


def test_overlap_and_bytes_kept_alive(report: Inspect) -> None:
    wide = torch.zeros(1000)
    base = torch.zeros(10)
    found = report({"slice": wide[10:20], "left": base[:6], "right": base[4:]})

    assert [(row.kind, row.held) for row in found.storages] == [
        ("own", 3960),
        ("overlapping", 0),
    ]
    assert codes(found) == ["bloat"]
    assert (
        found.findings[0].message
        == "3.87 KiB are stored that no tensor uses: slice in a storage of 3.91 KiB."
    )


# --- findings -------------------------------------------------------------------------


def test_devices_are_told_with_what_a_bare_load_needs(samples: Path) -> None:
    found = {
        finding.code: finding for finding in sample(samples, "train_cuda.pth").findings
    }

    assert (
        found["cuda"].message
        == "A bare torch.load puts 46.2 KiB on cuda:0 and 92 B on cuda:1."
    )
    assert (
        found["cuda"].consequence
        == "Each process opens a CUDA context (some hundred MiB). It needs 2 GPUs."
    )
    assert found["cuda"].to_json()["consequence"] == found["cuda"].consequence
    assert len(found["cuda"].tensors) == 115
    assert "device-mixed" not in found  # counters do not count


def test_devices_hide_in_values(report: Inspect) -> None:
    args = argparse.Namespace(
        device=torch.device("cuda", 1), gpu="cuda:0", name="cuda-model", cpu="cpu"
    )
    found = report({"args": args, "w": torch.ones(1)})

    assert found.hidden_devices == (
        ("args.device", "cuda:1", "torch.device"),
        ("args.gpu", "cuda:0", "str"),
    )


@pytest.mark.parametrize(
    ("names", "prefixes"),
    [
        (["module.a.w", "module.b.w"], [("module.", 2, 2)]),
        (["module.a.w", "b.w"], [("module.", 1, 2)]),
        (["_orig_mod.module.a.w"], [("_orig_mod.module.", 1, 1)]),
        (["a.w", "b.module.w"], []),
        (
            ["model._orig_mod.a.w", "model._orig_mod.b", "c.w"],
            [("model._orig_mod.", 2, 3)],
        ),
        (
            ["module.0._fsdp_wrapped_module.w", "module.1._fsdp_wrapped_module.w"],
            [("module.", 2, 2), ("*._fsdp_wrapped_module.", 2, 2)],
        ),
        (["_orig_mod", "a._orig_mod"], []),
    ],
)
def test_prefixes(
    report: Inspect, names: list[str], prefixes: list[tuple[str, int, int]]
) -> None:
    found = report({name: torch.ones(2) for name in names})

    assert [(row.prefix, row.tensors, row.of) for row in found.prefixes] == prefixes
    sure = [
        row for row in found.findings if row.code == "prefix" and row.level == "warning"
    ]
    assert len(sure) == len(prefixes)
    assert ("prefix" in codes(found)) == bool(prefixes or "b.module.w" in names), (
        "one layer: perhaps"
    )


def test_two_paths_with_one_name_are_marked_and_kept(report: Inspect) -> None:
    found = report(
        {
            "a.b": torch.ones(1),
            "a": {"b": torch.ones(2)},
            1: torch.ones(3),
            "1": torch.ones(4),
        }
    )

    assert [(row.entry.name, row.tensor.shape) for row in found.rows] == [
        ("a.b", (1,)),
        ("a.b#2", (2,)),
        ("1", (3,)),
        ("1#2", (4,)),
    ]
    assert [list(row.entry.path) for row in found.rows] == [
        ["a.b"],
        ["a", "b"],
        [1],
        ["1"],
    ]
    assert codes(found) == ["ambiguous-name"]


@pytest.mark.parametrize("late", [True, False])
def test_a_name_that_a_large_dict_has_too_is_marked(
    report: Inspect, late: bool
) -> None:
    """Names of one large dict are known to differ, those beside it are not."""
    large, other = (
        {"a": {f"w{n}": torch.ones(1) for n in range(100)}},
        {"a.w7": torch.ones(2)},
    )
    found = report({**large, **other} if late else {**other, **large})

    assert [row.tensor.shape for row in found.rows if row.entry.name == "a.w7#2"] == [
        (2,) if late else (1,)
    ]
    assert codes(found) == ["ambiguous-name"]


def test_a_name_of_two_large_dicts_is_marked(report: Inspect) -> None:
    found = report(
        {
            "a": {f"b.{n}": torch.ones(1) for n in range(100)},
            "a.b": {f"{n}": torch.ones(2) for n in range(100)},
        }
    )

    assert [row.entry.name for row in found.rows if row.tensor.shape == (2,)] == [
        f"a.b.{n}#2" for n in range(100)
    ]


def test_clean_files_have_no_findings(report: Inspect, samples: Path) -> None:
    assert (
        codes(report(nn.Transformer(8, 2, 1, 1, 8, batch_first=True).state_dict()))
        == []
    )
    assert codes(sample(samples, "weights.safetensors")) == []
    assert codes(sample(samples, "sharded")) == []


def test_what_loading_would_call_comes_first(samples: Path) -> None:
    found = sample(samples, "hostile.pth")

    assert codes(found) == ["called-on-load", "weights-only"]
    assert found.findings[0].message == (
        "DANGER: loading this file runs posix.system('echo ckpt-sample') (stored at "
        "version)."
    )
    groups = {(row.module, row.name): row.group for row in found.checkpoint.imports}
    assert groups["posix", "system"] == "called"
    assert set(groups.values()) == {"called", "known"}


# --- values ---------------------------------------------------------------------------


def test_values_are_read_through_objects(samples: Path) -> None:
    found = sample(samples, "objects.pth")
    document = {row["name"]: row for row in found.to_json()["values"]}

    assert document["path"]["value"] == "runs/demo/last.pth"
    assert document["precision"]["value"] == "fp16"
    assert document["train"]["fields"] == 4
    assert document["datetime"]["value"] == "2024-02-19T10:21:07.412345"
    assert document["device"]["value"] == "cuda:1"


def test_repeats_and_cycles_are_named_once(report: Inspect) -> None:
    shared = {"words": ["x" * 400], "deep": {"er": [1, {"a": 2}]}}
    loop: list[Any] = [1, {"k": 2}]
    loop.append(loop)
    found = report({"first": shared, "second": shared, "loop": loop})
    values = {value.name: value for value in found.values}

    assert values["second"].same_as == "first"
    assert values["loop.2"].type == "cycle"


def test_the_document_is_strict_json(report: Inspect) -> None:
    found = report(
        {
            "w": torch.ones(2),
            "loss": float("nan"),
            "best": float("-inf"),
            "big": 2**62,
            "huge": 1 << 20_000,
            "raw": b"\x00\xff",
            "list": [1, float("inf")],
            ("a", 1): 2,
        }
    )
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    values = {row["name"]: row for row in document["values"]}

    assert (values["loss"]["value"], values["loss"]["value_is"]) == (None, "nan")
    assert (values["best"]["value"], values["best"]["value_is"]) == (None, "-inf")
    assert values["big"]["value"] == 2**62
    assert values["huge"]["value_is"] == "int of 20001 bits"
    assert values["raw"]["value_is"] == "bytes 00ff"
    assert values["list"]["value"] == [1, "inf"]
    assert values["('a', 1)"]["path"] == [{"type": "tuple", "text": "('a', 1)"}]


# --- what was wrong once --------------------------------------------------------------


def test_a_model_that_is_a_dict_of_parts_is_one_section(report: Inspect) -> None:
    parts = {
        "enc": nn.Linear(3, 2).state_dict(),
        "head": {"weight": torch.ones(4), "bias": torch.ones(4)},
    }

    found = report({"model": parts, "epoch": 1})

    assert kinds(found) == {"model": "model"}
    assert (found.load.expression or "").endswith('["model"]')
    assert kinds(
        report({"model": {"state_dict": parts["enc"], "ema": parts["enc"]}})
    ) == {
        "model.state_dict": "model",
        "model.ema": "ema",
    }


def test_kinds_go_by_whole_words(report: Inspect) -> None:
    state = nn.Linear(3, 2).state_dict()
    found = report(
        {
            "semantic_model": state,
            "samples": [torch.ones(2)],
            "sampler": {"seed": 1},
            "optim_args": {"lr": 1},
            "lr_scheduler_states": [{"last_epoch": 1}],
            "noise_scheduler": {"betas": torch.ones(3)},
            "cuda_rng_state": [torch.ones(3)],
        }
    )

    assert kinds(found) == {
        "semantic_model": "model",
        "samples": "other",
        "lr_scheduler_states": "scheduler",
        "noise_scheduler": "other",
        "cuda_rng_state": "rng",
    }


def test_data_is_no_model(report: Inspect) -> None:
    assert kinds(report({"features": torch.ones(2), "labels": torch.arange(3)})) == {
        "": "other"
    }
    assert kinds(report(torch.arange(3))) == {"": "other"}


def test_trust_is_no_more_than_the_names_can_carry(report: Inspect) -> None:
    frozen = {
        f"bn.{name}": torch.ones(2)
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    packed = {
        "blocks": torch.zeros(2, dtype=torch.uint8),
        "ids": torch.zeros(2, dtype=torch.int64),
    }

    found = roles(
        report({**frozen, **{f"mlp.{name}": value for name, value in packed.items()}})
    )

    assert found["bn.weight"] == ("unknown", "none")
    assert found["bn.running_mean"] == ("buffer", "strong")
    assert found["mlp.blocks"] == ("buffer", "likely")
    assert found["mlp.ids"] == ("buffer", "strong")


def test_a_whole_optimizer_beside_its_model(report: Inspect) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)

    found = report({"model": model, "optimizer": optimizer, "scheduler": scheduler})

    assert kinds(found) == {
        "model": "model",
        "optimizer": "optimizer",
        "scheduler": "scheduler",
    }
    assert [part.tensors for part in found.sections] == [4, 12, 0]
    assert "tied" not in codes(found)
    assert not [
        name
        for name in (row.entry.name for row in found.rows)
        if "param_groups" in name
    ]
    alone = report(optimizer)
    handed = [
        role for name, role in roles(alone).items() if name.startswith("param_groups")
    ]
    assert handed == [("parameter", "certain")] * 4


def test_modules_and_their_tensors_are_shown_once(report: Inspect) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.twice = self.first
            self.listed = [self.first, nn.Linear(1, 1)]
            self.kept = [self.first.weight]

    Net.__module__, Net.__qualname__ = __name__, "Net"
    globals()["Net"] = Net
    found = report({"net": Net()})
    places = {(row.entry.name, row.entry.registered) for row in found.rows}

    assert {name for name, registered in places if registered} == {
        f"net.{name}" for name in Net().state_dict()
    }
    assert {name for name, registered in places if not registered} == {
        "net.listed.1.weight",
        "net.listed.1.bias",
    }
    same = {value.name: value.same_as for value in found.values if value.same_as}
    assert same == {"net.listed.0": "net.first", "net.kept.0": "net.first.weight"}


def test_attributes_of_tensors_are_seen(report: Inspect) -> None:
    tensor = torch.ones(2)
    tensor.extra = torch.ones(7)  # type: ignore[attr-defined]

    assert [
        (row.entry.name, row.entry.registered) for row in report({"t": tensor}).rows
    ] == [
        ("t", True),
        ("t.extra", False),
    ]


def test_marks_never_meet_a_name(report: Inspect) -> None:
    found = report(
        {
            "a.b": torch.ones(1),
            "a": {"b": torch.ones(2)},
            "a.b#2": torch.ones(3),
            "v.w": 1,
            "v": {"w": 2},
        }
    )

    assert [row.entry.name for row in found.rows] == ["a.b", "a.b#3", "a.b#2"]
    assert [value.name for value in found.values] == ["v.w", "v.w#2"]
    assert codes(found).count("ambiguous-name") == 2
    assert [name for row in found.storages for name in row.tensors] == [
        "a.b",
        "a.b#3",
        "a.b#2",
    ]


def test_devices_in_lists_are_found_and_the_cpu_is_none(report: Inspect) -> None:
    found = report(
        {"gpus": ["cuda:1", 5], "map": ("cpu",), "device": torch.device("cpu")}
    )

    assert found.hidden_devices == (("gpus.0", "cuda:1", "str"),)


def test_averaged_models_are_named(report: Inspect) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))

    assert [row.writer for row in report(averaged.state_dict()).prefixes] == [
        "AveragedModel"
    ]


@pytest.mark.parametrize(
    ("prefix", "beside", "key", "writer"),
    [
        # MMEngine
        ("module.", {"steps": torch.tensor(3)}, "ema_state_dict", "AveragedModel"),
        ("module.", {"n_averaged": torch.tensor(3)}, "model", "AveragedModel"),
        ("module.module.", {"n_averaged": torch.tensor(3)}, "ema", (
            "AveragedModel around DataParallel or DDP"
        )),
        ("_orig_mod.module.", {"_orig_mod.n_averaged": torch.tensor(3)}, "model", "torch.compile around AveragedModel"),
        ("module.module.", {"module.n_averaged": torch.tensor(3)}, "model", (
            "DataParallel or DDP around AveragedModel"
        )),
        ("module.module.", {}, "ema", (
            "the average, DataParallel or DDP around DataParallel or DDP"
        )),
        ("module.", {}, "ema", "the average, DataParallel or DDP"),
        ("_orig_mod.", {}, "ema", "torch.compile"),
        ("module.", {}, "model", "DataParallel or DDP"),
        # a buffer of the model
        ("module.", {"module.steps": torch.tensor(3)}, "model", "DataParallel or DDP"),
        ("module.", {"steps": torch.ones(3)}, "model", "DataParallel or DDP"),
    ],
)  # fmt: skip
def test_the_writer_of_module_is_named_truly(
    report: Inspect, prefix: str, beside: dict[str, torch.Tensor], key: str, writer: str
) -> None:
    weights = {
        f"{prefix}fc.weight": torch.ones(2, 2),
        f"{prefix}fc.bias": torch.ones(2),
    }
    assert [row.writer for row in report({key: weights | beside, "epoch": 1}).prefixes][
        :1
    ] == [writer]


def test_the_reason_stands_with_its_own_place(report: Inspect) -> None:
    found = report({"args": argparse.Namespace(a=1)}, pickle_protocol=5)

    assert "FRAME at byte 2 (protocol 5) and" in found.findings[0].message
    assert found.findings[0].where == ("args",)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda p: torch.optim.SGD(p, 0.1),
            "SGD without momentum, which keeps no state, 2 parameters, lr 0.1",
        ),
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            "no step taken yet, 0 of 2 parameters have state, lr 0.1",
        ),
        (
            lambda p: torch.optim.RMSprop(p, 0.1),
            "no state yet, 0 of 2 parameters have state, lr 0.1",
        ),
        (
            lambda p: torch.optim.Adam(p, 0.1),
            "no step taken yet, 0 of 2 parameters have state, lr 0.1",
        ),
    ],
)
def test_an_optimizer_that_never_has_state_is_told(
    make: Any, said: str, tmp_path: Path
) -> None:
    net = torch.nn.Linear(2, 2)
    torch.save(
        {"model": net.state_dict(), "optimizer": make(net.parameters()).state_dict()},
        tmp_path / "a.pt",
    )
    done = inside("inspect", "a.pt", cwd=tmp_path)
    assert [
        line.split(None, 1)[1] for line in done.lines if line.startswith("  optimizer")
    ] == [said]

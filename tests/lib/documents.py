"""What every command prints with --json, about the samples, odd files and
hostile ones.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import json_schemas
import saved
import shapes
import torch
from inside import inside
from process import SAMPLES
from safetensors.torch import save_file

from ckpt.model.findings import CATALOGUE

Documents = dict[str, list[dict[str, Any]]]
"""The name of a schema -> documents of that command."""

WRITERS = (
    "rehome",
    "strip",
    "rename",
    "set",
    "slim",
    "convert",
    "warmstart",
    "salvage",
    "average",
    "merge",
)
FILES = sorted(
    path.name for path in SAMPLES.iterdir() if path.suffix not in (".md", ".py")
)


def odd_files(folder: Path) -> Iterator[str]:
    """Files with what the samples do not have, made in a folder: their names."""
    numbers = {
        "nan": torch.tensor([1.0, float("nan"), float("inf")]),
        "huge": torch.full((10,), -1.7e308, dtype=torch.float64),
        "large": torch.full((10,), 1e300, dtype=torch.float64),
        "grown": torch.ones(10, dtype=torch.float64),
        "changed": torch.tensor([1.0, 2.0]),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(1),
        "conj": torch.ones(2, dtype=torch.complex64).conj(),
        "neg": torch.ones(2, dtype=torch.complex64).conj().imag,
        "sparse": torch.eye(3).to_sparse(),
        "quantized": saved.quantized(torch.qint8),
        "jagged": saved.jagged(),
        "piece": saved.dtensor(),
        "meta": torch.empty(3, device="meta"),
        "view": torch.arange(6.0)[2:4],
        "storage": torch.ones(2).untyped_storage(),
        ("a", 1): torch.ones(1),
    }
    torch.save(numbers, folder / "numbers.pth")
    other = {
        "changed": torch.tensor([1.0, float("nan")]),
        "large": -numbers["large"],
        "grown": numbers["large"],
        "scalar": torch.tensor(1, dtype=torch.int16),
    }
    torch.save({**numbers, **other}, folder / "after.pth")
    layers = [f"lora_unet_block_{number}_proj" for number in range(2)]
    lora = {
        f"{layer}.lora_{side}.weight": torch.ones(4, 4)
        for layer in layers
        for side in ("down", "up")
    }
    lora |= {f"{layer}.alpha": torch.tensor(2.0) for layer in layers}
    save_file(lora, folder / "lora.safetensors", {"ss_base_model_version": "sd_v1"})
    yield "lora.safetensors"
    (folder / "adapter").mkdir()
    pair = {
        "base_model.model.w.lora_A.weight": torch.ones(2, 4),
        "base_model.model.w.lora_B.weight": torch.ones(4, 2),
    }
    save_file(
        {**pair, "base_model.model.h.weight": torch.ones(2)},
        folder / "adapter" / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    state = {
        "w.weight": torch.ones(4, 4),
        "h.weight": torch.zeros(2),
        "n.weight": torch.zeros(2),
    }
    torch.save(state, folder / "unmerged.pth")
    torch.save({**state, "n.weight": torch.ones(2)}, folder / "remerged.pth")
    yield "adapter"
    floats = {name: torch.randn(32, 64) for name in ("a", "b", "c", "d")}
    save_file(
        {f"{name}.weight": weight for name, weight in floats.items()}
        | {"norm": torch.ones(2)},
        folder / "floats.safetensors",
    )
    codes: dict[str, torch.Tensor] = {"norm": torch.zeros(2)}
    for name, other, factor in (
        ("a", "a", 1.0),
        ("b", "c", 1.0),
        ("c", "c", 1.5),
        ("d", "d", float("inf")),
    ):
        scale = floats[other].abs().amax(1, keepdim=True) / 448
        codes[f"{name}.weight"] = (floats[other] / scale).to(torch.float8_e4m3fn)
        codes[f"{name}.weight_scale"] = scale * factor
    save_file(codes, folder / "codes.safetensors")
    yield "codes.safetensors"
    values: dict[str, Any] = {"low": float("-inf")}
    values |= {
        name: make()
        for name, make in saved.OBJECTS.items()
        if not name.startswith("long")
    }
    torch.save(
        {"values": values, "more": values, "model": shapes.state()},
        folder / "values.pth",
    )
    (folder / "cut.pth").write_bytes((SAMPLES / "ddp_after.pth").read_bytes()[:9_000])
    (folder / "empty.pth").write_bytes(b"")
    (folder / "pretrained").mkdir()
    save_file({"fc.weight": torch.ones(2)}, folder / "pretrained" / "model.safetensors")
    config = {"architectures": ["BertModel"], "transformers_version": "4.57.0"}
    (folder / "pretrained" / "config.json").write_text(json.dumps(config))
    (folder / "pretrained" / "README.md").write_text(
        "---\nlicense: mit\nbase_model: org/base\nbase_model_relation: finetune\n"
        "library_name: timm\n"
        "pipeline_tag: image-classification\ntags:\n- timm\n---\n"
    )
    (folder / "adapter" / "README.md").write_text("---\ntags: [x]\n---\n")
    yield "pretrained"
    (folder / "run").mkdir()
    for epoch, loss in enumerate((0.5, float("nan"), 0.25, 0.75)):
        torch.save(
            {"epoch": epoch, "loss": loss}, folder / "run" / f"epoch_{epoch}.pth"
        )
    torch.save({"epoch": 2}, folder / "run" / "best.pth")
    (folder / "folder").mkdir()
    (folder / "folder" / "a.bin").write_text("hello\n")
    (folder / "missing").mkdir()
    torch.save({"a": torch.ones(2)}, folder / "missing" / "m-00001-of-00002.bin")
    files = {"a": "m-00001-of-00002.bin", "b": "m-00002-of-00002.bin"}
    (folder / "missing" / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": files})
    )
    damaged = bytearray((SAMPLES / "ddp_before.pth").read_bytes())
    damaged[damaged.index(b"data/0FB") + 200] ^= 1
    (folder / "damaged.pth").write_bytes(damaged)
    (folder / "hostile").mkdir()
    for case in hostile.CASES:
        if (
            isinstance(case.data, bytes)
            and len(case.data) < 50_000
            and not case.name.startswith(hostile.BOMBS)
        ):
            (folder / "hostile" / case.name.replace("/", "_")).write_bytes(case.data)
    for rank in (0, 1):
        torch.save(
            {"weight": saved.piece(rank), "bias": torch.ones(2)},
            folder / f"piece{rank}.pth",
        )
    for name in shapes.SHAPES:
        shapes.make(name, folder)
    yield from (
        "numbers.pth",
        "after.pth",
        "values.pth",
        "cut.pth",
        "empty.pth",
        "folder",
        "damaged.pth",
    )
    yield from (name for name in shapes.SHAPES if "/" not in name)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def printed(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The documents that a command prints, one of each line."""
    done = inside(*arguments, "--json", cwd=folder)
    assert b"Traceback" not in done.err, (arguments, done.err)
    return [json.loads(line, parse_constant=_refuse) for line in done.lines]


def commands(names: list[str]) -> Iterator[tuple[str, ...]]:
    """Commands over files of all kinds, those that cannot be read too."""
    yield "inspect", *names, "nothing.pth", "hostile"
    hidden = [
        f"hostile/{path}"
        for path in sorted(case.name.replace("/", "_") for case in hostile.CASES)
    ]
    yield "inspect", *hidden
    for command in ("ls", "lint", "verify"):
        yield command, *names, "nothing.pth", "folder", "hostile", "-j", "1"
    yield "lint", *names, "--read-values", "--level", "info", "-j", "1"
    yield (
        "stats",
        *names,
        "nothing.pth",
        "folder",
        "hostile",
        "--channels",
        "0.5",
        "-j",
        "1",
    )
    yield "stats", "numbers.pth", "--histogram"
    yield "recipe", "layout_a.pth", "layout_b.pth", "-o", "recipe.json"
    yield (
        "recipe",
        "layout_a.pth",
        "layout_b.pth",
        "--assume",
        "l.0.y.weight=h.0.one.weight",
    )
    yield "recipe", "layout_a.pth", "layout_b.pth", "--check", "recipe.json"
    yield "recipe", "compiled.pth", "legacy.pth"
    yield "recipe", "numbers.pth", "after.pth"
    yield "recipe", "nothing.pth", "legacy.pth"
    ranks = "branch.rank*.pth"
    yield "recipe", ranks, ranks, "-o", "ranks.json"
    yield "convert", ranks, "--recipe", "ranks.json", "-o", "ranks"
    yield "prune", "run", "--keep-best", "loss"
    yield "prune", "nothing.pth"
    for how in ((), ("--all",), ("--recorded",), ("--root",), ("--values",)):
        yield "sum", *names, "nothing.pth", "hostile", *how
    for name in (*names, "nothing.pth"):
        yield "get", name
        yield "get", name, "no such name"
        for writer in ("rehome", "strip", "slim"):
            yield writer, name, "--dry-run"
        yield "rename", name, "--sub", "s/weight/w/", "--dry-run"
        yield "set", name, "added:=[1, 2.5]", "--dry-run"
        yield "convert", name, "--plain", "--dry-run"
        yield (
            "convert",
            name,
            "--format",
            "safetensors",
            "--dtype",
            "float16",
            "--dry-run",
        )
        yield "diff", name, name, "--structure"
    yield (
        "salvage",
        "dcp_interrupted",
        "--names-from",
        "dcp",
        "--fill-from",
        "dcp",
        "--dry-run",
    )
    yield "salvage", "truncated.pth", "--dry-run"
    yield "convert", "sharded", "--with-config", "-o", "release", "--dry-run"
    yield "salvage", "missing", "--dry-run"
    yield "inspect", "ddp_after.pth", "--index", "10,11"
    yield "inspect", "whole_model.pth", "--index", "0-3"
    yield "inspect", "sharded/model-00001-of-00002.safetensors"
    yield "inspect", "llama_bf16.pth", "--include", "*nothing*"
    yield "get", "train_cuda.pth", "epoch", "model.module.conv1.weight", "model", "args"
    for name in (
        "values.values.floats",
        "values.values.bytes",
        "values.values.int of 256 bytes",
        "values.values",
    ):
        yield "get", "values.pth", name.removeprefix("values.")
    yield "get", "dcp", "model.embed.weight"
    yield (
        "get",
        "numbers.pth",
        "('a', 1)",
        "sparse",
        "conj",
        "neg",
        "quantized",
        "piece",
        "jagged",
        "nan",
    )
    for pair in (
        ("ddp_before.pth", "ddp_after.pth"),
        ("numbers.pth", "after.pth"),
        ("numbers.pth", "ddp_after.pth"),
        ("compiled.pth", "whole_model.pth"),
        ("train_cuda.pth", "weights.safetensors"),
        ("snapshot_before.pth", "snapshot_after.pth"),
        ("branch.rank0.pth", "branch.rank1.pth"),
        ("damaged.pth", "ddp_before.pth"),
        ("piece0.pth", "piece1.pth"),
        ("dcp", "ddp_before.pth"),
        ("nothing.pth", "ddp_before.pth"),
        ("ddp_before.pth", "lfs_pointer.pth"),
        ("ddp_before.pth", "prefixed.pth"),
        ("tied.pth", "untied.pth"),
        ("untied.pth", "tied.pth"),
    ):
        for form in ((), ("--stat",), ("--quick",), ("--histogram",)):
            yield "diff", *pair, *form
    for at, (pretrained, target) in enumerate(
        [
            ("ddp_before.pth", "ddp_after.pth"),
            ("prefixed.pth", "ddp_after.pth"),
            ("train_cuda.pth", "ddp_after.pth"),
            ("weights.safetensors", "ddp_after.pth"),
            ("nothing.pth", "ddp_after.pth"),
        ]
    ):
        yield "warmstart", pretrained, "--into", target, "-o", f"start{at}.pth"
        yield (
            "warmstart",
            pretrained,
            "--into",
            target,
            "--dry-run",
            "--on-mismatch",
            "slice",
        )
    yield "warmstart", "vit_three.pth", "--into", "vit_one.pth", "--dry-run", "--fuse"
    yield "warmstart", "resnet_caffe.pth", "--into", "resnet.pth", "--dry-run"
    for first, second in (
        ("ddp_before.pth", "ddp_after.pth"),
        ("prefixed.pth", "ddp_after.pth"),
        ("nothing.pth", "ddp_after.pth"),
        ("damaged.pth", "ddp_before.pth"),
    ):
        yield "average", first, second, "-o", f"mean.{first}"
        yield "average", first, second, "--ratios", "1,3", "--dry-run"
    yield "merge", "llama_bf16.pth", "lora", "-o", "merged.pth"
    yield "merge", "llama_bf16.pth", "lora", "--weights", "0.5", "--dry-run"
    yield "diff", "llama_bf16.pth", "merged.pth", "--adapter", "lora"
    yield "diff", "llama_bf16.pth", "llama_bf16.pth", "--adapter", "lora"
    yield "diff", "llama_base.safetensors", "llama_q8_0.gguf"
    yield "inspect", "lora", "--base", "llama_bf16.pth"
    yield "inspect", "lora", "--base", "unmerged.pth"
    yield "diff", "unmerged.pth", "remerged.pth", "--adapter", "adapter"
    yield "diff", "floats.safetensors", "codes.safetensors"
    yield "merge", "unmerged.pth", "adapter", "-o", "merged2.pth"
    yield "rehome", "train_cuda.pth", "-o", "moved.pth", "--verify", "crc"
    yield "convert", "ddp_after.pth", "-o", "model.safetensors"
    yield "convert", "tied.pth", "-o", "tied.safetensors"
    yield "sum", "tied.pth"
    yield (
        "convert",
        "llama_bf16.pth",
        "-o",
        "float16.pth",
        "--dtype",
        "float16",
        "--verify",
        "torch",
    )
    yield (
        "convert",
        "llama_bf16.pth",
        "-o",
        "shards.safetensors",
        "--shard-size",
        "20KB",
    )
    yield "rehome", "in_place.pth", "--in-place"
    yield ("explain",)
    for code in (
        *CATALOGUE,
        "Attempting to deserialize object on a CUDA device",
        "no such finding at all",
    ):
        yield "explain", code
    missing = (
        'Missing key(s) in state_dict: "fc1.weight", "x.y".\nUnexpected key(s) in '
        'state_dict: "module.fc1.weight"'
    )
    shapes = (
        "size mismatch for {}: copying a param with shape torch.Size([2]) from "
        "checkpoint, the shape in current model is torch.Size([3])"
    )
    for text in (
        "Parameter indices which did not receive grad for rank 1: 10",
        "Parameter indices which did not receive grad for rank 1: 99",
        "Parameter at index 3 with name conv1.weight has been marked as ready twice.",
        missing,
        shapes.format("module.fc1.bias"),
        shapes.format("gone"),
        "Attempting to deserialize object on CUDA device 1 but",
        "No module named 'models'",
        "unused",
    ):
        yield "explain", text, "ddp_after.pth"
    yield (
        "explain",
        "failed finding central directory PytorchStreamReader failed",
        "truncated.pth",
    )
    yield "explain", "CUDA out of memory.", "truncated.pth"
    yield (
        "explain",
        "Parameter indices which did not receive grad for rank 1: 0",
        "tied_and_bloated.pth",
    )
    yield "explain", missing


def _layouts() -> dict[str, dict[str, torch.Tensor]]:
    """A pair of layouts with all that a recipe may say."""
    numbers = torch.Generator().manual_seed(0)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=numbers)

    a = {f"h.{number}.w": made(8, 16) for number in range(4)}
    a |= {
        f"h.{number}.e.{expert}": made(4, 8)
        for number in range(2)
        for expert in range(4)
    }
    a |= {
        "embed": made(10, 8),
        "scaled": made(8, 8),
        "gone": made(3),
        "padded": made(12, 8),
        "cast": made(4, 8),
    }
    a["padded"][10:] = 0
    a["repeated"] = made(12, 8)
    a["repeated"][10:] = a["repeated"][9]
    a |= {"copy": a["embed"].clone(), "zeros": torch.zeros(5), "split": made(8, 8)}
    a |= {f"lost.{number}": made(6) for number in range(3)}
    a |= {"h.0.one.weight": torch.ones(16), "h.0.two.weight": torch.ones(16)}
    b = {f"l.{number}.w": a[f"h.{number}.w"].t().contiguous() for number in range(4)}
    b |= {
        f"l.{number}.e": torch.stack(
            [a[f"h.{number}.e.{expert}"] for expert in range(4)]
        )
        for number in range(2)
    }
    b |= {
        "wte": torch.cat([a["embed"], torch.zeros(2, 8)]),
        "scaled": a["scaled"] * 0.5,
        "new": made(7),
    }
    b |= {
        "unpadded": a["padded"][:10].clone(),
        "unrepeated": a["repeated"][:10].clone(),
        "half": a["cast"].half(),
        "two": torch.full((3,), 2.0),
    }
    b |= {
        f"part.{number}": a["split"][4 * number : 4 * number + 4].clone()
        for number in range(2)
    }
    b |= {
        "l.0.x.weight": torch.ones(16),
        "l.0.y.weight": torch.ones(16),
        "sparse": torch.eye(3).to_sparse(),
    }
    return {"layout_a.pth": a, "layout_b.pth": b}


def _pairs() -> dict[str, dict[str, torch.Tensor]]:
    """Files for warm starts: a ViT under the names of two packages, and a model that
    reads BGR.
    """
    one: dict[str, torch.Tensor] = {}
    three: dict[str, torch.Tensor] = {}
    for leaf, shape in (("weight", (2, 2)), ("bias", (2,))):
        one[f"blocks.0.attn.qkv.{leaf}"] = torch.ones(6, *shape[1:])
        three |= {
            f"vit.layers.0.attention.{part}_proj.{leaf}": torch.ones(shape)
            for part in "qkv"
        }
        for mine, other in (
            ("norm1", "layernorm_before"),
            ("norm2", "layernorm_after"),
            ("attn.proj", "attention.o_proj"),
            ("mlp.fc1", "mlp.fc1"),
            ("mlp.fc2", "mlp.fc2"),
        ):
            one[f"blocks.0.{mine}.{leaf}"] = torch.ones(shape)
            three[f"vit.layers.0.{other}.{leaf}"] = torch.ones(shape)
    resnet = {"conv1.weight": torch.ones(2, 3, 3, 3)}
    return {
        "vit_one.pth": one,
        "vit_three.pth": three,
        "resnet.pth": resnet,
        "resnet_caffe.pth": resnet,
    }


def documents(folder: Path) -> Documents:
    """The documents, from files that are made in an empty folder."""
    for name in FILES:
        path = SAMPLES / name
        shutil.copytree(path, folder / name) if path.is_dir() else shutil.copy(
            path, folder
        )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch, about what it no longer wants us to make
        names = [*FILES, *odd_files(folder)]
    shutil.copy(folder / "train_cuda.pth", folder / "in_place.pth")
    (folder / "model.sums").write_bytes(inside("sum", "legacy.pth", cwd=folder).out)
    state = torch.load(
        folder / "ddp_before.pth", map_location="cpu", weights_only=True
    )["model"]
    weight = torch.ones(3)
    torch.save({"embed.weight": weight, "head.weight": weight}, folder / "tied.pth")
    torch.save({"embed.weight": weight}, folder / "untied.pth")
    torch.save(
        {f"backbone.{name.removeprefix('module.')}": state[name] for name in state},
        folder / "prefixed.pth",
    )
    for name, state in {**_pairs(), **_layouts()}.items():
        torch.save(state, folder / name)
    found: Documents = {name: [] for name in json_schemas.NAMES}
    for arguments in commands(names):
        schema = "rewrite" if arguments[0] in WRITERS else arguments[0]
        for document in printed(folder, *arguments):
            name = document["schema"]["name"].removeprefix("ckpt.")
            is_list = (schema, name) == ("inspect", "ls")  # of a folder of checkpoints
            assert name == schema or is_list, arguments
            found[name].append(document)
            if document.keys() == {"schema", "ckpt", "file", "error"}:
                found["error"].append(document)
    assert not hostile.CANARY.exists()
    return found

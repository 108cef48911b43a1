"""`ckpt get`: bare values for a shell, exact ones for a program."""

from __future__ import annotations

import json

import pytest
from process import Run


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["train_cuda.pth", "epoch"], "12\n"),
        (["train_cuda.pth", "args.lr", "args.device"], "0.001\ncuda:0\n"),
        (["lightning.ckpt", "global_step"], "500\n"),
        (["objects.pth", "path"], "runs/demo/last.pth\n"),
        (["objects.pth", "precision"], "fp16\n"),
        (["yolo_style.pt", "ema"], "None\n"),
        (["legacy_python2.pth", "author"], "Jäger\n"),
        (["weights.safetensors", "__metadata__.format"], "pt\n"),
        (
            ["llama_bf16.pth", "lm_head.weight"],
            "lm_head.weight\tbfloat16\t64x16\tcuda:0\t2048\tparameter\t56\n",
        ),
        (["train_cuda.pth", "scaler"], None),
    ],
)
def test_text(ckpt: Run, arguments: list[str], printed: str | None) -> None:
    done = ckpt("get", *arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("{'scale': ") if printed is None else done.stdout == printed


def test_json(ckpt: Run) -> None:
    document = json.loads(ckpt("get", "train_cuda.pth", "args", "--json").stdout)

    assert document["schema"] == {"name": "ckpt.get", "version": 1}
    assert document["type"] == "argparse.Namespace"
    assert document["value"]["device"] == "cuda:0"
    row = json.loads(ckpt("get", "train_cuda.pth", "model.module.fc.weight", "--json").stdout)
    assert (row["shape"], row["device"], row["role"]) == ([10, 8], "cuda:0", "parameter")


def test_several_names_are_a_line_each(ckpt: Run) -> None:
    lines = ckpt("get", "train_cuda.pth", "epoch", "best_acc", "--json").stdout.splitlines()

    assert [json.loads(line)["value"] for line in lines] == [12, 0.7615]


def test_no_such_name_offers_the_nearest(ckpt: Run) -> None:
    done = ckpt("get", "train_cuda.pth", "args.lrr")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ckpt: train_cuda.pth: no value called args.lrr (did you mean args.lr?)\n"


def test_an_ambiguous_name_is_refused(ckpt: Run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    import torch

    torch.save({"a.b": 1, "a": {"b": 2}}, tmp_path / "two.pth")

    done = ckpt("get", "two.pth", "a.b", cwd=tmp_path)

    assert done.returncode == 2
    assert "2 places are called a.b" in done.stderr

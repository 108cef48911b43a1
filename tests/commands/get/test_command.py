"""`ckpt get`: bare values for a shell, exact ones for a program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from inside import inside
from process import Run, check_error

from ckpt import open as opened


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
            ["lightning.ckpt", "hyper_parameters.classes"],
            "['cat', 'cow', 'dog', 'hen']\n",
        ),
        (["train_cuda.pth", "model.module.none_of_these"], None),
        (
            ["llama_bf16.pth", "lm_head.weight"],
            """lm_head.weight
  dtype    bfloat16
  shape    [64, 16]  (1,024 elements, 2.00 KiB)
  device   cuda:0
  role     parameter (likely: weight is usually a parameter)
  storage  56
  values   0.2002, -0.1816, -0.03906, -0.2412, -0.1416, 0.1992, -0.1416, …
""",
        ),
        (
            ["lightning.ckpt", "hyper_parameters", "epoch"],
            """hyper_parameters  dict, 4 fields
  lr       0.0003
  hidden   32
  dropout  0.0
  classes  ['cat', 'cow', 'dog', 'hen']
4
""",
        ),
        (
            ["objects.pth", "config"],
            """config  omegaconf.dictconfig.DictConfig, 2 fields
  model  omegaconf.dictconfig.DictConfig, 2 fields
    name       'convnext_tiny'
    drop_path  0.1
  optim  omegaconf.dictconfig.DictConfig, 2 fields
    lr      0.004
    warmup  5
""",
        ),
        (
            ["train_cuda.pth"],
            """train_cuda.pth  PyTorch zip, 7 names at the top
  model      OrderedDict, 46 fields, 46 tensors, 16.0 KiB
  optimizer  dict, 2 fields, 69 tensors, 30.4 KiB
  scaler     dict, 5 fields
  scheduler  dict, 8 fields
  epoch      12
  best_acc   0.7615
  args       argparse.Namespace, 12 fields
""",
        ),
    ],
)
def test_text(ckpt: Run, arguments: list[str], printed: str | None) -> None:
    done = ckpt("get", *arguments)

    if printed is None:
        assert (done.returncode, done.stdout) == (2, "")
        return
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


def test_everything_as_json(ckpt: Run) -> None:
    document = json.loads(ckpt("get", "lightning.ckpt", "--json").stdout)

    assert (document["name"], document["path"], document["type"]) == ("", [], "dict")
    assert document["value"]["hyper_parameters"]["lr"] == 0.0003


def test_a_module_shows_the_names_that_get_knows(ckpt: Run) -> None:
    lines = ckpt("get", "whole_model.pth").stdout.splitlines()[1:]
    names = [line.split()[0] for line in lines]

    assert lines[3].endswith("Sequential, 4 fields, 7 tensors, 1.01 KiB")
    assert names == ["scale", "mean", "grid", "stem", "head", "training", "cells"]
    for name in names:
        assert ckpt("get", "whole_model.pth", name).returncode == 0


def test_a_file_without_names(ckpt: Run, tmp_path: Path) -> None:
    torch.save(torch.tensor([True, False, True]), tmp_path / "one.pt")
    torch.save(17, tmp_path / "number.pt")
    torch.save({}, tmp_path / "empty.pt")

    assert (
        ckpt("get", "one.pt", cwd=tmp_path).stdout.splitlines()[-1]
        == "  values   True, False, True"
    )
    assert ckpt("get", "number.pt", cwd=tmp_path).stdout == "17\n"
    assert ckpt("get", "empty.pt", cwd=tmp_path).stdout == "{}\n"


def test_a_tree_is_bounded(ckpt: Run, tmp_path: Path) -> None:
    """In its lines, its levels and its texts; an object may hold itself."""
    ring: dict[str, object] = {"x": 1}
    ring["ring"] = ring
    wide = {
        f"k{number}": {f"j{inner}": inner for inner in range(100)}
        for number in range(100)
    }
    torch.save(
        {"ring": ring, "wide": wide, "long": {"text": "a" * 100_000}}, tmp_path / "a.pt"
    )

    deep = ckpt("get", "a.pt", "ring", cwd=tmp_path).stdout.splitlines()
    assert deep[-1] == "        ring  dict, 2 fields" and len(deep) == 9
    lines = ckpt("get", "a.pt", "wide", cwd=tmp_path).stdout.splitlines()
    assert lines[41:43] == ["    j39  39", "    … 60 more (--json prints all)"]
    assert len(lines) < 210 and lines[-1] == "  … (--json prints all)"
    assert len(ckpt("get", "a.pt", "long", cwd=tmp_path).stdout) < 300


def test_tensors_without_plain_values_have_their_row(ckpt: Run) -> None:
    text = ckpt(
        "get", "dtypes.pth", "sparse_coo", "bits8", "float8_e4m3fn", "complex64"
    ).stdout

    assert "  layout   sparse_coo\n" in text and text.count("  values ") == 2
    assert text.count("  storage  ") == 4


def test_json(ckpt: Run) -> None:
    document = json.loads(ckpt("get", "train_cuda.pth", "args", "--json").stdout)

    assert document["schema"] == {"name": "ckpt.get", "version": 1}
    assert document["type"] == "argparse.Namespace"
    assert document["value"]["device"] == "cuda:0"
    row = json.loads(
        ckpt("get", "train_cuda.pth", "model.module.fc.weight", "--json").stdout
    )
    assert (row["shape"], row["device"], row["role"]) == (
        [10, 8],
        "cuda:0",
        "parameter",
    )


def test_several_names_are_a_line_each(ckpt: Run) -> None:
    lines = ckpt(
        "get", "train_cuda.pth", "epoch", "best_acc", "--json"
    ).stdout.splitlines()

    assert [json.loads(line)["value"] for line in lines] == [12, 0.7615]


def test_no_such_name_offers_the_nearest(ckpt: Run) -> None:
    done = ckpt("get", "train_cuda.pth", "args.lrr")

    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "ckpt: train_cuda.pth: no value called args.lrr (did you mean args.lr?)\n"
    )


def test_an_ambiguous_name_is_refused(ckpt: Run, tmp_path: Path) -> None:
    torch.save({"a.b": 1, "a": {"b": 2}}, tmp_path / "two.pth")

    done = ckpt("get", "two.pth", "a.b", cwd=tmp_path)

    assert done.returncode == 2
    assert "2 places are called a.b" in done.stderr


def test_several_files_get_the_loop_that_asks_each(tmp_path: Path) -> None:
    """`ckpt get run/*.pth epoch`, as other commands take it: the second file would be a
    name.
    """
    for number in (1, 2):
        torch.save({"epoch": number}, tmp_path / f"e {number}.pth")
    done = inside("get", "e 1.pth", "e 2.pth", "epoch", cwd=tmp_path)
    loop = "for file in 'e 1.pth' 'e 2.pth'; do ckpt get \"$file\" epoch; done"
    check_error(done, f"ckpt: e 2.pth: a second file, and ckpt get takes one ({loop})")
    many = [f"{number}.pth" for number in range(40)]
    for name in many:
        (tmp_path / name).write_bytes((tmp_path / "e 1.pth").read_bytes())
    done = inside("get", *many, "epoch", cwd=tmp_path)
    assert check_error(done, "takes one").endswith(
        "1.pth: a second file, and ckpt get takes one"
    )
    torch.save({"epoch": 3, "e 2.pth": "x"}, tmp_path / "named.pth")
    assert inside("get", "named.pth", "e 2.pth", cwd=tmp_path).lines == ["x"]


class _Called:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo hi",)


def test_a_call_is_no_value_of_the_file(ckpt: Run, tmp_path: Path) -> None:
    """An enum is its value; what a function would be called with is no value."""
    path = tmp_path / "called.pth"
    torch.save({"x": _Called(), "all": [_Called()], "w": torch.ones(1)}, path)
    call = f"{os.system.__module__}.system('echo hi')"

    assert ckpt("get", path, "x").stdout == f"{call}\n"
    assert json.loads(ckpt("get", path, "x", "--json").stdout)["value"] == call
    assert call in ckpt("get", path, "all").stdout
    values = opened(path).values
    assert (values["x"], values["all"]) == (call, [call])
    assert ckpt("get", "objects.pth", "precision").stdout == "fp16\n"


def test_a_view_of_more_elements_than_numpy_counts(ckpt: Run, tmp_path: Path) -> None:
    """A view repeats four bytes as often as it says."""
    path = tmp_path / "wide.pth"
    rows = torch.arange(3.0)
    torch.save({"one": rows[:1].expand(2**63 - 1), "two": rows.expand(2**60, 3)}, path)
    for name, values in (("one", "0, 0, 0, 0"), ("two", "0, 1, 2, 0, 1")):
        done = ckpt("get", str(path), name)
        assert done.returncode == 0, done.stderr
        assert f"values   {values}" in done.stdout

"""The recipes of docs/python.md: each is a whole script, run here as a reader would run
it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch
from process import ROOT, SAMPLES, Done, environment, python
from safetensors.torch import load_file

import ckpt

PAGE = (
    (ROOT / "docs" / "python.md")
    .read_text(encoding="utf-8")
    .partition("\n## Recipes\n")[2]
)
RECIPES = dict(
    re.findall(
        r"^### ([^\n]+)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
)
"""Heading -> the script below it."""
NEEDS_TORCH = re.compile(r"^(?:import|from) torch\b", re.MULTILINE)

LOAD = "Load a checkpoint on CPU and put it into a model"
SHARDS = "Read one tensor of a 70 GB set of shards"
LOOP = "Compare checkpoints in a training loop"
FROZEN = "Stop training when parameters freeze"
PYTEST = "Forbid unsafe files in pytest"
CONVERT = "Convert all .pth files of a folder to safetensors"
AVERAGE = "Average the last five checkpoints"
MERGE = "Merge a LoRA, and check a merge"
NOTEBOOK = "Look at a checkpoint in a notebook"
NAN = "Find which checkpoints hold NaN"
TABLE = "Collect the epoch and learning rate of many runs as CSV"
ALL = [
    LOAD,
    SHARDS,
    LOOP,
    FROZEN,
    PYTEST,
    CONVERT,
    AVERAGE,
    MERGE,
    NOTEBOOK,
    NAN,
    TABLE,
]
WITH_TORCH = [LOAD, LOOP, FROZEN, PYTEST]


@pytest.fixture
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a child that has no torch."""
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "torch.py").write_text(
        "raise ImportError('this environment has no torch')\n"
    )
    return environment(PYTHONPATH=f"{folder}{os.pathsep}{ROOT}")


def run(
    name: str,
    folder: Path,
    without_torch: dict[str, str],
    code: int = 0,
    last: str = "",
) -> Done:
    """Run a recipe in a folder: where it does not import torch, in an environment that
    has none.

    `last` is a further line of `main`.
    """
    text = RECIPES[name].replace(
        "\n\n\nif __name__ ==", f"\n    {last or 'pass'}\n\n\nif __name__ =="
    )
    (folder / "recipe.py").write_text(text, encoding="utf-8")
    env = environment() if NEEDS_TORCH.search(text) else without_torch
    done = python("recipe.py", env=env, cwd=folder)
    assert done.code == code, done.err.decode()
    return done


def test_the_page_has_these_recipes() -> None:
    assert list(RECIPES) == ALL and PAGE.count("```python") == len(ALL)
    assert [name for name in ALL if NEEDS_TORCH.search(RECIPES[name])] == WITH_TORCH
    assert all(len(text.splitlines()) <= 75 for text in RECIPES.values())


def test_an_environment_without_torch(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    done = python("-c", "import torch", env=variables, cwd=tmp_path)
    assert done.code == 1 and b"this environment has no torch" in done.err


@pytest.mark.slow
def test_mypy_accepts_every_script(tmp_path: Path) -> None:
    names = []
    for number, text in enumerate(RECIPES.values()):
        names.append(f"recipe_{number}.py")
        (tmp_path / names[-1]).write_text(text, encoding="utf-8")
    words = [
        "--strict",
        "--follow-imports=silent",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]

    done = python(
        "-m", "mypy", *words, *names, env=environment(MYPYPATH=str(ROOT)), cwd=tmp_path
    )

    assert done.code == 0 and f"{len(ALL)} source files" in done.out.decode(), (
        done.out.decode()
    )


# --- with torch -----------------------------------------------------------------------


@pytest.mark.slow
def test_load_into_a_model(tmp_path: Path, variables: dict[str, str]) -> None:
    """The file is of a GPU that is not here, and its names begin with the prefix of
    DataParallel.
    """
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    torch.save(
        {"model": torch.nn.DataParallel(model).state_dict(), "epoch": 3},
        tmp_path / "cpu.pth",
    )
    ckpt.rehome(tmp_path / "cpu.pth", to="cuda:7", out=tmp_path / "last.pth")
    done = run(
        LOAD, tmp_path, variables, last="torch.save(model.state_dict(), 'loaded.pth')"
    )

    assert done.lines == ["4 of 4 tensors of the model are loaded"]
    loaded = torch.load(tmp_path / "loaded.pth", map_location="cpu")
    assert all(
        torch.equal(loaded[name], value) for name, value in model.state_dict().items()
    )


@pytest.mark.slow
def test_compare_in_a_loop(tmp_path: Path, variables: dict[str, str]) -> None:
    done = run(LOOP, tmp_path, variables)

    states = [
        torch.load(tmp_path / f"epoch_{epoch}.pth")["model"] for epoch in range(3)
    ]
    for epoch, line in zip((1, 2), done.lines, strict=True):
        before, after = states[epoch - 1 : epoch + 1]
        moved = {
            name: (value - before[name]).abs().max().item()
            for name, value in after.items()
        }
        most = max(moved, key=lambda name: moved[name])
        assert len(set(moved.values())) == 4
        assert (
            line
            == f"epoch_{epoch}.pth: 4 of 4 tensors changed, {most} by {moved[most]:.2g}"
        )


@pytest.mark.slow
def test_stop_when_frozen(tmp_path: Path, variables: dict[str, str]) -> None:
    """The branch is left out of the loss from epoch 3 on. What is frozen on purpose
    does not stop the training.
    """
    done = run(FROZEN, tmp_path, variables)
    assert done.lines == [
        "stopped after epoch 3: extra.weight, extra.bias did not change"
    ]

    space: dict[str, object] = {"__name__": "recipe"}
    exec(RECIPES[FROZEN], space)
    model, callback = space["Net"](), space["StopWhenFrozen"]()  # type: ignore[operator]
    trainer = type("Trainer", (), {"should_stop": False})()
    model.body.requires_grad_(False)
    for epoch in range(3):
        callback.on_train_epoch_end(trainer, model)
        assert trainer.should_stop == (epoch == 2)
        with torch.no_grad():
            for parameter in [*model.head.parameters(), *model.extra.parameters()][
                : None if epoch == 0 else 2
            ]:
                parameter.add_(1)


@pytest.mark.slow
def test_forbid_unsafe_files(tmp_path: Path, variables: dict[str, str]) -> None:
    (tmp_path / "conftest.py").write_text(RECIPES[PYTEST], encoding="utf-8")
    (tmp_path / "test_it.py").write_text(
        "import torch\n"
        "def test_safe():\n"
        "    assert torch.load('legacy.pth', map_location='cpu')\n"
        "    with open('legacy.pth', 'rb') as file:\n"
        "        assert torch.load(file, map_location='cpu')\n"
        "def test_unsafe():\n"
        "    torch.load('hostile.pth', weights_only=False)\n"
        "def test_unsafe_file():\n"
        "    with open('hostile.pth', 'rb') as file:\n"
        "        torch.load(file, weights_only=False)\n"
    )
    for name in ("legacy.pth", "hostile.pth"):
        shutil.copy(SAMPLES / name, tmp_path)

    done = python(
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--rootdir=.",
        cwd=tmp_path,
    )

    said = done.out.decode()
    assert done.code == 1 and "2 failed, 1 passed" in said
    danger = (
        "E +Failed: hostile.pth: DANGER: loading this file runs posix.system\\('echo "
        "ckpt-sample'\\)"
    )
    assert len(re.findall(danger, said)) == 2
    assert "\nckpt-sample\n" not in said  # what loading it would have printed


# --- without torch --------------------------------------------------------------------


def test_one_tensor_of_70_gb(tmp_path: Path, variables: dict[str, str]) -> None:
    """Two shards of 35 GB, of which the disk has the headers and ten rows. All that is
    read is Python and these rows.
    """
    folder = tmp_path / "llama-70b"
    folder.mkdir()
    rows, width = 128_256, 8_192
    values = torch.randn(10, width).to(torch.bfloat16)
    shards = {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    for name, file in shards.items():
        table = 2 * rows * width
        entries = {
            name: {"dtype": "BF16", "shape": [rows, width], "data_offsets": [0, table]},
            f"{name}.rest": {
                "dtype": "U8",
                "shape": [35 * 10**9 - table],
                "data_offsets": [table, 35 * 10**9],
            },
        }
        header = json.dumps(entries).encode()
        with (folder / file).open("wb") as shard:
            shard.write(struct.pack("<Q", len(header)) + header)
            shard.seek(2 * width * 1_000, os.SEEK_CUR)
            shard.write(values.view(torch.uint8).numpy().tobytes())
            shard.truncate(8 + len(header) + 35 * 10**9)
    index = {
        "metadata": {},
        "weight_map": {n + end: f for n, f in shards.items() for end in ("", ".rest")},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    counted = (
        "print(open('/proc/self/io').readline())"
        if Path("/proc/self/io").exists()
        else "print('rchar: 0')"
    )
    table_line, rows_line, count, *_ = run(
        SHARDS, tmp_path, variables, last=counted
    ).lines

    assert table_line == "<model.embed_tokens.weight: bfloat16 [128256, 8192]>"
    dtype, shape, mean = re.fullmatch(r"(\w+) (\(.*\)) (\S+)", rows_line).groups()  # type: ignore[union-attr]
    assert (dtype, shape) == ("float32", "(10, 8192)")
    assert float(mean) == pytest.approx(values.float().mean().item(), abs=1e-6)
    assert int(count.removeprefix("rchar: ")) < 50_000_000


def test_convert_a_folder(tmp_path: Path, variables: dict[str, str]) -> None:
    models = tmp_path / "models"
    (models / "old").mkdir(parents=True)
    weights = {"a.weight": torch.randn(3, 4), "a.bias": torch.randn(3)}
    torch.save(weights, models / "a.pth")
    torch.save(
        {"model": {"b.weight": torch.ones(2)}, "epoch": 7}, models / "old" / "b.pth"
    )
    for name in ("truncated.pth", "hostile.pth"):
        shutil.copy(SAMPLES / name, models)

    lines = run(CONVERT, tmp_path, variables).lines

    assert lines[0] == "models/a.safetensors: 2 tensors"
    assert lines[1:3] == [
        "models/hostile.safetensors: 1 tensors",
        "  left out: version (not a tensor)",
    ]
    assert lines[3:5] == [
        "models/old/b.safetensors: 1 tensors",
        "  left out: epoch (7)",
    ]
    assert (
        lines[5].startswith("not converted: models/truncated.pth: cut off: ")
        and len(lines) == 6
    )
    written = load_file(models / "a.safetensors")
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[name], value) for name, value in weights.items())
    assert load_file(models / "old" / "b.safetensors")["b.weight"].tolist() == [1, 1]
    assert not (models / "truncated.safetensors").exists()

    (models / "a.safetensors").write_bytes(b"mine")
    assert (
        run(CONVERT, tmp_path, variables)
        .lines[0]
        .startswith("not converted: models/a.safetensors: ")
    )
    assert (models / "a.safetensors").read_bytes() == b"mine"


def test_merge_and_check(tmp_path: Path, variables: dict[str, str]) -> None:
    for name in ("llama_bf16.pth", "lora"):
        (tmp_path / name).symlink_to(SAMPLES / name)

    lines = run(MERGE, tmp_path, variables).lines

    assert lines == [
        "merged: 18 tensors",
        "as in BASE: 39 tensors",
        "torch-zip: 57 tensors",
        "the adapter is in it",
    ]


def test_average_the_last_five(tmp_path: Path, variables: dict[str, str]) -> None:
    (tmp_path / "runs").mkdir()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    states = []
    for epoch in range(1, 12):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        states.append(
            {name: value.clone() for name, value in model.state_dict().items()}
        )
        whole = {
            "model": states[-1],
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        torch.save(whole, tmp_path / "runs" / f"epoch_{epoch}.pth")

    lines = run(AVERAGE, tmp_path, variables).lines

    assert lines[:-1] == [f"0.20 × runs/epoch_{epoch}.pth" for epoch in range(7, 12)]
    assert lines[-1] == "wrote mean.pth: 7 tensors"
    mean = torch.load(tmp_path / "mean.pth", weights_only=True)
    assert mean.keys() == states[-1].keys()
    for name, value in mean.items():
        if value.is_floating_point():
            rows = torch.stack([state[name] for state in states[-5:]]).double()
            torch.testing.assert_close(
                value, rows.mean(0).to(value.dtype), rtol=0, atol=0
            )
        else:
            assert torch.equal(value, states[-1][name])


def test_a_notebook(tmp_path: Path, variables: dict[str, str]) -> None:
    """A notebook shows the last expression of a cell, as `_repr_html_` draws it."""
    shutil.copy(SAMPLES / "train_cuda.pth", tmp_path)
    cell = (
        "import ast, sys\n"
        "*lines, last = ast.parse(open('cell.py').read()).body\n"
        "assert isinstance(last, ast.Expr)\n"
        "space = {}\n"
        "exec(compile(ast.Module(lines, []), 'cell.py', 'exec'), space)\n"
        "print(eval(compile(ast.Expression(last.value), 'cell.py', 'eval'), "
        "space)._repr_html_())\n"
    )
    (tmp_path / "cell.py").write_text(RECIPES[NOTEBOOK], encoding="utf-8")

    done = python("-c", cell, env=variables, cwd=tmp_path)

    assert done.code == 0, done.err.decode()
    assert done.lines[:3] == [(
        f"model.module.layers.{name}.weight float32 (8, 8, 3, 3)"
    ) for name in
                              ("0.conv1", "0.conv2", "1.conv1")]  # fmt: skip
    html = "\n".join(done.lines[3:])
    assert (
        html.startswith("<")
        and "train_cuda.pth" in html
        and "ckpt strip train_cuda.pth" in html
    )


def test_find_nan(tmp_path: Path, variables: dict[str, str]) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    weight = torch.ones(3, 4)
    torch.save({"a.weight": weight}, runs / "good.pth")
    assert run(NAN, tmp_path, variables).lines == []
    weight[1, 2] = float("nan")
    torch.save(
        {"a.weight": weight, "b.bias": torch.tensor([1.0, float("inf")])}, runs / "bad"
    )
    assert run(NAN, tmp_path, variables, 1).lines == [
        "runs/bad: nan in a.weight",
        "runs/bad: inf in b.bias",
    ]
    shutil.copy(SAMPLES / "lfs_pointer.pth", runs)
    assert run(NAN, tmp_path, variables, 2).lines[2:] == [
        (
            "runs/lfs_pointer.pth: unreadable: a Git LFS pointer, not the file (git "
            "lfs pull)"
        )
    ]


def test_a_table_of_runs(tmp_path: Path, variables: dict[str, str]) -> None:
    for number in (1, 2):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * number)
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        whole = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": 10 * number,
        }
        torch.save(whole, folder / "last.pth")
    shutil.copy(SAMPLES / "train_cuda.pth", tmp_path / "runs")
    shutil.copy(SAMPLES / "truncated.pth", tmp_path / "runs")

    done = run(TABLE, tmp_path, variables)

    assert list(csv.reader(io.StringIO(done.out.decode()))) == [
        ["path", "epoch", "lr", "seed"],
        ["runs/1/last.pth", "10", "0.1", ""],
        ["runs/2/last.pth", "20", "0.2", ""],
        ["runs/train_cuda.pth", "12", "0.001", "0"],
    ]
    assert (
        done.complaints[0].startswith("runs/truncated.pth: cut off: ")
        and len(done.complaints) == 1
    )


SCRIPT = re.compile(
    r"# /// script\n# requires-python = \"(.*)\"\n# dependencies = (\[.*\])\n# ///\n"
)
"""The head of a script of PEP 723, as uv and pipx read it."""


@pytest.mark.parametrize("name", ALL)
def test_a_script_says_what_it_needs(name: str) -> None:
    text = RECIPES[name]
    if "__name__" not in text:  # a conftest.py, a cell of a notebook
        assert "# ///" not in text
        return
    head = SCRIPT.match(text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    assert head is not None and f'requires-python = "{head[1]}"' in project
    assert head[2] == (
        '["torch-ckpt[torch]"]' if NEEDS_TORCH.search(text) else '["torch-ckpt"]'
    )
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported <= {"ckpt", "torch", *sys.stdlib_module_names}

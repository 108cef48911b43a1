"""`--include`, `--exclude` and `--section`: a subset where tensors are written or
measured, else the scope of the change.
"""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside
from process import SAMPLES, check_error
from safetensors.torch import load_file
from torch import nn

pytestmark = oracle.QUIET


@pytest.fixture
def file(tmp_path: Path) -> Path:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = nn.DataParallel(net).state_dict()
    torch.save({"model": state, "epoch": 3}, tmp_path / "a.pth")
    return tmp_path / "a.pth"


def saved(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return found


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("--include", "*.0.*"), ["module.0.weight", "module.0.bias"]),
        (("--include", "model.module.0.bias"), ["module.0.bias"]),  # by its full name
        (("--include", "*.bias", "--exclude", "*.1.*"), ["module.0.bias"]),
        (
            ("--exclude", "*.1.*", "--section", "model"),
            ["module.0.weight", "module.0.bias"],
        ),
    ],
)
@pytest.mark.parametrize("command", ["slim", "convert"])
def test_a_subset_is_written(
    command: str, words: tuple[str, ...], kept: list[str], file: Path
) -> None:
    out = file.with_name("out.safetensors" if command == "convert" else "out.pth")

    done = inside(command, file, *words, "-o", out, cwd=file.parent)

    assert done.code == 0, done
    made = load_file(out) if command == "convert" else saved(out)
    whole = torch.load(file, weights_only=True)["model"]
    assert sorted(made) == sorted(kept)
    assert all(torch.equal(made[name], whole[name]) for name in kept)
    assert f"left out: (not selected): {7 - len(kept)} tensors" in done.out.decode()


def test_nested_dicts_are_selected_by_dotted_names(tmp_path: Path) -> None:
    inner = {
        "enc": {"w": torch.ones(2), "b": torch.zeros(2)},
        "dec": {"w": torch.ones(3)},
    }
    torch.save(inner, tmp_path / "a.pth")

    assert (
        inside("slim", "a.pth", "--include", "enc.w", "-o", "b.pth", cwd=tmp_path).code
        == 0
    )
    made = saved(tmp_path / "b.pth")
    assert list(made) == ["enc"] and list(made["enc"]) == ["w"]


@pytest.mark.parametrize(
    ("command", "words"),
    [("strip", ()), ("rename", ("--sub", "s/^module\\.//"))],
)
def test_the_scope_of_a_change(
    command: str, words: tuple[str, ...], file: Path
) -> None:
    out = file.with_name("out.pth")

    done = inside(
        command, file, *words, "--include", "*.0.*", "-o", out, cwd=file.parent
    )

    assert done.code == 0, done
    names = list(torch.load(out, weights_only=True)["model"])
    assert names[:2] == ["0.weight", "0.bias"] and all(
        name.startswith("module.1.") for name in names[2:]
    )
    assert len(names) == 7


def test_a_scope_is_of_one_model(tmp_path: Path) -> None:
    torch.save(
        {name: nn.Linear(2, 2).state_dict() for name in ("gen", "disc")},
        tmp_path / "a.pth",
    )

    rename = (
        "rename",
        "a.pth",
        "--sub",
        "s/weight/w/",
        "-o",
        "b.pth",
        "--include",
        "*weight",
    )
    check_error(
        inside(*rename, cwd=tmp_path),
        "holds 2 models (--section gen, or --section disc)",
    )
    assert inside(*rename, "--section", "disc", cwd=tmp_path).code == 0
    made = torch.load(tmp_path / "b.pth", weights_only=True)
    assert list(made["gen"]) == ["weight", "bias"] and list(made["disc"]) == [
        "w",
        "bias",
    ]


def test_sums_of_a_subset(file: Path) -> None:
    folder = file.parent
    whole = inside("sum", file, cwd=folder).lines
    some = inside("sum", file, "--include", "*.bias", cwd=folder).lines
    assert some == [line for line in whole if line.endswith(".bias")] and len(some) == 2

    (folder / "all.sums").write_text("\n".join(whole) + "\n")
    (folder / "bad.sums").write_text(
        "\n".join(whole).replace(whole[0][:64], "0" * 64) + "\n"
    )
    name = whole[0][66:]
    check = ("verify", file, "--sums", "bad.sums")
    assert inside(*check, cwd=folder).code == 1
    assert inside(*check, "--exclude", name, cwd=folder).code == 0
    assert inside(*check, "--include", name, cwd=folder).code == 1
    assert (
        inside(
            "verify", file, "--sums", "all.sums", "--section", "model", cwd=folder
        ).code
        == 0
    )
    check_error(
        inside("verify", file, "--include", "*", cwd=folder),
        "--include and --exclude go with --sums, --section with --sums or --like",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "FILE"),
        ("stats", "FILE"),
        ("sum", "FILE"),
        ("diff", "FILE", "FILE"),
        ("slim", "FILE", "-o", "OUT.pth"),
        ("convert", "FILE", "-o", "OUT.safetensors"),
        ("strip", "FILE", "-o", "OUT.pth"),
        ("rename", "FILE", "--sub", "s/a/b/", "-o", "OUT.pth"),
    ],
)
def test_a_selection_that_matches_nothing(words: tuple[str, ...], file: Path) -> None:
    arguments = [str(file) if word == "FILE" else word for word in words]

    done = inside(*arguments, "--include", "bn", cwd=file.parent)
    check_error(done, "no tensor matches")
    done = inside(*arguments, "--include", "weight", cwd=file.parent)
    check_error(done, "no tensor matches")
    if words[0] != "diff":
        assert done.err.endswith(b"(--include '*weight*')\n")
    assert [path.name for path in file.parent.iterdir()] == ["a.pth"]


def test_a_subset_is_not_a_whole_pickle(file: Path) -> None:
    done = inside(
        "convert", file, "--include", "*.bias", "-o", "b.pth", cwd=file.parent
    )

    check_error(done, "--include and --exclude go with tensors alone")
    assert not file.with_name("b.pth").exists()


def test_the_json_of_a_subset(file: Path) -> None:
    done = inside(
        "slim", file, "--include", "*.0.*", "--dry-run", "--json", cwd=SAMPLES
    )

    report = json.loads(done.out)
    assert report["tensors"] == 2
    (row,) = [row for row in report["left_out"] if row["name"] == "(not selected)"]
    assert row["what"] == "5 tensors"


@pytest.mark.parametrize("command", ["inspect", "stats", "sum"])
def test_a_tensor_at_the_root_has_no_name_to_select(
    command: str, tmp_path: Path
) -> None:
    torch.save(torch.ones(3), tmp_path / "tensor.pth")
    done = inside(command, "tensor.pth", "--include", "*weight", cwd=tmp_path)
    check_error(
        done,
        "tensor.pth: no tensor matches (its tensor is the root, which has no name)",
    )
    torch.save({"epoch": 1}, tmp_path / "none.pth")
    done = inside(command, "none.pth", "--include", "*weight", cwd=tmp_path)
    assert done.code == 2 and "its tensor is the root" not in done.err.decode()

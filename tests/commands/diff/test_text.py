"""`ckpt diff` on a screen: the serious first, parameters before the rest, nothing cut
and nothing said twice.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from inside import inside
from process import SAMPLES, ckpt, terminal

from ckpt import diff as ckpt_diff
from ckpt import open as ckpt_open
from ckpt.commands.diff.text import diff_lines
from ckpt.surface.text.lines import plain_text

Tensors = dict[str, torch.Tensor]
BLOCKS = 300


def saved(folder: Path, before: object, after: object) -> Path:
    torch.save(before, folder / "a.pth")
    torch.save(after, folder / "b.pth")
    return folder


def lines_of(folder: Path, *options: str, code: int = 1) -> list[str]:
    done = ckpt("diff", "a.pth", "b.pth", *options, cwd=folder)
    assert done.code == code, done
    return list(done.lines)


def seen(folder: Path, *options: str, columns: int = 100, rows: int = 40) -> list[str]:
    text = terminal(
        "diff", "a.pth", "b.pth", *options, columns=columns, rows=rows, code=1, cwd=folder, NO_COLOR="1", TERM="dumb"
    )  # fmt: skip
    return text.splitlines()


def optimizer(count: int) -> dict[str, object]:
    state = {
        number: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}
        for number in range(count)
    }
    return {"state": state, "param_groups": [{"lr": 0.1, "params": list(range(count))}]}


def blocks(value: float) -> Tensors:
    return {
        f"layers.{number}.mlp.fc.weight": torch.full((2,), value)
        for number in range(BLOCKS)
    }


def test_counters_stand_above_the_rows_and_nowhere_else(tmp_path: Path) -> None:
    saved(
        tmp_path,
        {
            "epoch": 0,
            "global_step": 10,
            "lr": 0.1,
            "model": {"w.weight": torch.zeros(2)},
        },
        {
            "epoch": 1,
            "global_step": 20,
            "lr": 0.2,
            "model": {"w.weight": torch.ones(2)},
        },
    )
    lines = lines_of(tmp_path)

    assert lines[1] == "epoch 0 → 1 · global_step 10 → 20"
    assert "M lr  0.1 → 0.2" in lines
    assert sum("epoch" in line for line in lines) == 1
    assert lines[-1] == "differ: 1 changed, 0 same, 3 values"


def test_an_epoch_that_is_no_number_is_a_value(tmp_path: Path) -> None:
    saved(
        tmp_path,
        {"epoch": "first", "model": {"w.weight": torch.zeros(2)}},
        {"epoch": 1, "model": {"w.weight": torch.ones(2)}},
    )

    assert "M epoch  'first' → 1" in lines_of(tmp_path)


@pytest.mark.parametrize("options", [(), ("--show", "changed"), ("--show", "all")])
def test_parameters_come_first_then_buffers_then_the_optimizer(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    def saves(value: float) -> dict[str, object]:
        state = {0: {"exp_avg": torch.full((2,), value), "step": torch.tensor(value)}}
        return {
            "an_optimizer": {
                "state": state,
                "param_groups": [{"lr": 0.1, "params": [0]}],
            },
            "model": {
                "bn.running_mean": torch.full((2,), value),
                "fc.weight": torch.full((2,), value),
            },
        }

    saved(tmp_path, saves(1.0), saves(2.0))
    names = [
        line.split()[1]
        for line in lines_of(tmp_path, *options)
        if line.startswith("M ")
    ]

    assert names == [
        "fc.weight",
        "bn.running_mean",
        "an_optimizer.state.0.exp_avg",
        "an_optimizer.state.0.step",
    ]


@pytest.mark.parametrize("side", ["added", "removed"])
def test_an_optimizer_that_one_file_alone_has_is_one_row(
    side: str, tmp_path: Path
) -> None:
    model = {
        f"fc{number}.weight": torch.full((2,), 1.0 + number) for number in range(9)
    }
    fresh = {**optimizer(9), "state": {}}
    moved = {name: tensor + 1 for name, tensor in model.items()}
    both = [
        {"model": model, "optimizer": fresh},
        {"model": moved, "optimizer": optimizer(9)},
    ]
    saved(tmp_path, *(both if side == "added" else both[::-1]))
    lines = lines_of(tmp_path)

    rows = [line for line in lines if re.match("[AD] ", line)]
    letter = "A" if side == "added" else "D"
    assert f"{letter} optimizer  18 tensors, 108 B" in rows
    assert not any(".state." in row for row in rows)
    assert sum(line.startswith("M fc") for line in lines) == 9
    assert (
        sum(".state." in line for line in lines_of(tmp_path, "--show", "changed")) == 18
    )


def test_an_optimizer_that_grew_is_listed(tmp_path: Path) -> None:
    model = {"fc.weight": torch.ones(2)}
    saved(
        tmp_path,
        {"model": model, "optimizer": optimizer(1)},
        {"model": model, "optimizer": optimizer(3)},
    )

    assert not any(line.startswith("A optimizer  ") for line in lines_of(tmp_path))


@pytest.mark.parametrize("size", [20, 60, 200])
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_parameters_that_did_not_change_are_all_named(
    size: int, columns: int, tmp_path: Path
) -> None:
    names = [
        f"block{number:02d}.{'long_name_' * 20}"[: size - 7] + ".weight"
        for number in range(13)
    ]
    before = {name: torch.ones(2) for name in (*names, "moved.weight")}
    saved(tmp_path, before, before | {"moved.weight": torch.zeros(2)})
    done = seen(tmp_path, "--show", "frozen", columns=columns)

    begin = done.index("unchanged parameters")
    block = done[begin : done.index("", begin)]
    words = " ".join(block).replace(",", " ").split()
    assert [name for name in names if name not in words] == []
    assert all(len(line) <= columns or len(line.split()) == 1 for line in block)
    assert block[1].endswith("(13):")


def test_the_same_is_not_said_twice(tmp_path: Path) -> None:
    lines = list(ckpt("diff", "ddp_before.pth", "ddp_after.pth", cwd=SAMPLES).lines)

    assert sum("fc3" in line for line in lines) == 1
    assert sum("never had a gradient" in line for line in lines) == 1
    silent = ckpt(
        "diff", "ddp_before.pth", "ddp_after.pth", "--ignore", "frozen", cwd=SAMPLES
    ).lines
    assert "    module.fc3.{weight,bias}" in silent  # where no finding says it


@pytest.mark.parametrize("columns", [None, 80, 100, 200])
def test_where_more_changed_than_fits_the_modules_are_drawn(
    columns: int | None, tmp_path: Path
) -> None:
    after = blocks(1.0)
    for number, name in enumerate(after):
        after[name] = after[name] + 0.001 * number
    saved(
        tmp_path,
        blocks(1.0) | {"head.weight": torch.ones(2)},
        after | {"head.weight": torch.ones(2)},
    )
    lines = lines_of(tmp_path) if columns is None else seen(tmp_path, columns=columns)

    head = next(
        number for number, line in enumerate(lines) if line.startswith("MODULE")
    )
    assert lines[head].split() == [
        "MODULE",
        "TENSORS",
        "CHANGED",
        "THEIR",
        "REL.",
        "L2",
    ]
    assert not any(line.startswith("M layers") for line in lines)
    assert "… 299 parameters (--show changed)" in lines
    assert len(lines) <= 60
    assert (
        sum(
            line.startswith("M layers")
            for line in lines_of(tmp_path, "--show", "changed")
        )
        == BLOCKS - 1
    )


def test_the_bars_of_what_changed_are_of_what_changed(tmp_path: Path) -> None:
    names = [
        f"{part}.{number}.weight" for part in ("one", "two") for number in range(40)
    ]
    before = {name: torch.ones(4) for name in names}
    after = {
        name: tensor * (3 if name.startswith("two") else 2)
        for name, tensor in before.items()
    }
    after["one.0.weight"] = torch.ones(4)
    saved(tmp_path, before, after)
    rows = [
        line.split()
        for line in lines_of(tmp_path)
        if re.match(r"(one|two)\.[0-9]", line)
    ]

    for part, count, change in (("one", 39, "1"), ("two", 40, "2")):
        inside = [row for row in rows if row[0].startswith(part)]
        assert sum(int(row[1]) for row in inside) == count and {
            row[2] for row in inside
        } == {change}


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_new_nan_is_an_error_and_comes_first(bad: str, tmp_path: Path) -> None:
    before = blocks(1.0) | {"z.bias": torch.ones(3)}
    after = blocks(2.0) | {"z.bias": torch.tensor([1.0, float(bad), 1.0])}
    saved(tmp_path, before, after)
    lines = lines_of(tmp_path)

    findings = [line for line in lines if line.startswith("! ")]
    assert findings[0].split()[1] == bad
    rows = [line for line in lines if re.match("M |MODULE", line)]
    assert rows[0].startswith("M z.bias") and rows[1].startswith("MODULE")
    listed = [
        line
        for line in lines_of(tmp_path, "--show", "changed")
        if line.startswith("M ")
    ]
    assert listed[0].startswith("M z.bias") and len(listed) == BLOCKS + 1
    assert (
        ckpt("diff", "a.pth", "b.pth", "--fail-on", "error", "-q", cwd=tmp_path).code
        == 1
    )


def test_nan_that_was_there_before_is_no_error(tmp_path: Path) -> None:
    mask = torch.tensor([0.0, float("-inf"), float("nan")])
    saved(
        tmp_path,
        {"mask": mask, "w.weight": torch.ones(2)},
        {"mask": mask + 1, "w.weight": torch.zeros(2)},
    )

    assert (
        ckpt("diff", "a.pth", "b.pth", "--fail-on", "error", "-q", cwd=tmp_path).code
        == 0
    )
    assert (
        ckpt("diff", "a.pth", "b.pth", "--fail-on", "nan", "-q", cwd=tmp_path).code == 1
    )
    assert "! nan  1 element is NaN in mask, as before." in lines_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, 60, 200])
@pytest.mark.parametrize("count", [3, 30, 300])
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_no_name_loses_its_begin(
    size: int, count: int, columns: int, tmp_path: Path
) -> None:
    names = [
        f"n{number:03d}.{'a_long_name.' * 20}"[: size - 7] + ".weight"
        for number in range(count)
    ]
    saved(
        tmp_path,
        dict.fromkeys(names, torch.ones(2)),
        dict.fromkeys(names, torch.zeros(2)),
    )
    shown = seen(tmp_path, "--show", "changed", columns=columns)

    assert sum(line.startswith("M n") for line in shown) == count
    for number, line in enumerate(line for line in shown if line.startswith("M n")):
        assert names[number] in line
    piped = lines_of(tmp_path, "--show", "changed")
    assert all(any(name in line for line in piped) for name in names)


@pytest.mark.parametrize("count", [64, 2100])
def test_names_of_one_shape_are_folded(count: int, tmp_path: Path) -> None:
    new = {
        f"layers.{number}.fc.{end}": torch.ones(2)
        for number in range(count // 2)
        for end in ("weight", "bias")
    }
    saved(tmp_path, {"w.weight": torch.ones(2)}, {"w.weight": torch.ones(2)} | new)
    rows = [line for line in lines_of(tmp_path) if line.startswith("A ")]

    assert rows == [
        f"A layers.0-{count // 2 - 1}.fc.{{weight,bias}}  [2] float32  ×{count}"
    ]


def test_tensors_of_many_shapes_are_counted_where_they_do_not_fit(
    tmp_path: Path,
) -> None:
    new = {f"fc{number}.weight": torch.ones(number + 1) for number in range(100)}
    saved(tmp_path, {"w.weight": torch.ones(2)}, {"w.weight": torch.ones(2)} | new)
    lines = lines_of(tmp_path)

    rows = [line for line in lines if line.startswith("A ")]
    assert 12 <= len(rows) <= 20
    assert f"… {100 - len(rows)} more (--show changed)" in lines


def test_bars_count_tensors_that_became_nan(tmp_path: Path) -> None:
    after = {
        name: torch.tensor([1.0, float("nan")]) if "layers.7." in name else tensor
        for name, tensor in blocks(1.0).items()
    }
    saved(tmp_path, blocks(1.0), after)
    rows = [
        line.split()
        for line in lines_of(tmp_path, "--stat", "--depth", "2")
        if line.startswith("layers.7 ")
    ]

    assert rows == [["layers.7", "1", "1", "nan"]]


def test_where_the_optimizer_alone_changed_its_tensors_are_shown(
    tmp_path: Path,
) -> None:
    model = {"fc.weight": torch.ones(2)}
    later = optimizer(30)
    later["state"] = {
        number: {"step": torch.tensor(4.0), "exp_avg": torch.ones(2)}
        for number in range(30)
    }
    saved(
        tmp_path,
        {"model": model, "optimizer": optimizer(30)},
        {"model": model, "optimizer": later},
    )
    rows = [line for line in lines_of(tmp_path) if line.startswith("M ")]

    assert rows == [
        "M optimizer.state.0-29.step  all elements, max |Δ| 1, relative L2 0.333  ×30"
    ]


def test_an_optimizer_that_appeared_stands_below_the_parameters(tmp_path: Path) -> None:
    model = {"fc.weight": torch.ones(2)}
    fresh = {**optimizer(9), "state": {}}
    saved(
        tmp_path,
        {"model": model, "optimizer": fresh},
        {"model": {"fc.weight": torch.zeros(2)}, "optimizer": optimizer(9)},
    )
    rows = [line.split()[1] for line in lines_of(tmp_path) if re.match("[AM] ", line)]

    assert rows == ["fc.weight", "optimizer"]


def test_names_and_shapes_come_before_dtypes(tmp_path: Path) -> None:
    before = {f"a{number}.weight": torch.ones(number + 1) for number in range(60)}
    after = {name: tensor.half() for name, tensor in before.items()} | {
        "z.weight": torch.ones(3)
    }
    saved(
        tmp_path,
        before | {"y.weight": torch.ones(2)},
        after | {"y.weight": torch.ones(4)},
    )
    rows = [line for line in lines_of(tmp_path) if re.match("[AM] ", line)]

    assert {row.split()[1] for row in rows[:2]} == {"y.weight", "z.weight"}


def test_long_names_of_modules_stay_apart(tmp_path: Path) -> None:
    names = [f"block{number:02d}.{'a_long_name_' * 12}.weight" for number in range(40)]
    saved(
        tmp_path,
        dict.fromkeys(names, torch.ones(2)),
        dict.fromkeys(names, torch.zeros(2)),
    )
    for lines in (seen(tmp_path, "--stat", columns=80), lines_of(tmp_path, "--stat")):
        rows = [line.split()[0] for line in lines if "█" in line]
        assert len(rows) == len(set(rows)) >= 4


def test_the_bars_count_what_they_leave_out() -> None:
    lines = list(
        ckpt("diff", "ddp_before.pth", "ddp_after.pth", "--stat", cwd=SAMPLES).lines
    )
    every = list(
        ckpt(
            "diff",
            "ddp_before.pth",
            "ddp_after.pth",
            "--stat",
            "--show",
            "all",
            cwd=SAMPLES,
        ).lines
    )

    assert "… 6 buffers, 30 tensors of the optimizer changed too (--show all)" in lines
    assert not any("changed too" in line for line in every)


def test_rows_that_are_not_compared_for_folding_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = {f"layers.{number}.weight": torch.ones(2) for number in range(30)}
    saved(tmp_path, {"w.weight": torch.ones(2)}, {"w.weight": torch.ones(2)} | new)
    monkeypatch.setattr("ckpt.commands.diff.text._MERGED", 10)
    with (
        ckpt_open(tmp_path / "a.pth") as before,
        ckpt_open(tmp_path / "b.pth") as after,
    ):
        lines = plain_text(
            diff_lines(ckpt_diff(before, after, check=False))
        ).splitlines()

    assert "A layers.0-9.weight  [2] float32  ×10" in lines
    assert "… 20 more (--show changed)" in lines


def layers(count: int, value: float, dtype: torch.dtype = torch.float32) -> Tensors:
    names = [
        f"model.layers.{number}.{part}.weight"
        for number in range(count)
        for part in ("attn", "mlp", "norm")
    ]
    return {
        name: torch.full((2,), value * (1 + index / 64)).to(dtype)
        for index, name in enumerate(names)
    }


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 21, 80, 700])
@pytest.mark.parametrize("columns", [None, 80, 100, 200])
def test_bars_are_never_one_where_there_are_many_modules(
    count: int, columns: int | None, tmp_path: Path
) -> None:
    before = layers(count, 1.0)
    saved(tmp_path, before, {name: tensor * 1.5 for name, tensor in before.items()})
    lines = (
        lines_of(tmp_path)
        if columns is None
        else seen(tmp_path, columns=columns, rows=24)
    )
    bars = [line for line in lines if "█" in line]

    if count == 1:
        assert not bars and sum(line.startswith("M ") for line in lines) == 3
        return
    assert 4 <= len(bars) <= 16
    assert columns is None or len(lines) < 24
    assert [bar.split()[0].startswith("model.layers.") for bar in bars] == [True] * len(
        bars
    )
    assert sum(int(bar.split()[1].replace(",", "")) for bar in bars) == 3 * count
    command = next(line for line in lines if " modules in " in line)
    every = lines_of(tmp_path, *command.partition("(")[2].rstrip(")").split())
    assert sum("█" in line for line in every) == int(
        command.split()[1].replace(",", "")
    )


@pytest.mark.parametrize("rows", [24, 30])
def test_bars_leave_room_for_what_was_added_and_removed(
    rows: int, tmp_path: Path
) -> None:
    before = layers(80, 1.0)
    new = {f"new{number}.weight": torch.ones(number + 1) for number in range(30)}
    saved(
        tmp_path, before, {name: tensor * 1.5 for name, tensor in before.items()} | new
    )
    lines = seen(tmp_path, rows=rows)

    listed = [line for line in lines if line.startswith("A ")]
    assert len(listed) >= 6 and f"… {30 - len(listed)} more (--show changed)" in lines
    assert sum("█" in line for line in lines) >= 4
    assert len(lines) < rows + 2


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 21, 700])
def test_a_dtype_that_all_parameters_change_is_one_row(
    count: int, tmp_path: Path
) -> None:
    before = layers(count, 1.0) | {"bn.num_batches_tracked": torch.tensor(3)}
    saved(
        tmp_path,
        before,
        layers(count, 1.0, torch.bfloat16)
        | {"bn.num_batches_tracked": torch.tensor(3)},
    )
    rows = [line for line in lines_of(tmp_path) if line.startswith("M ")]

    (row,) = rows
    assert row.startswith(f"M {3 * count:,} parameters  float32 → bfloat16, ")
    narrow = " ".join(seen(tmp_path, columns=40)).split()
    assert " ".join(row.split()[:7]) in " ".join(narrow) and "more" not in narrow
    assert (
        lines_of(tmp_path, "--structure")[-2]
        == f"M {3 * count:,} parameters  float32 → bfloat16"
    )
    assert (
        sum(line.startswith("M ") for line in lines_of(tmp_path, "--show", "changed"))
        == 3 * count
    )


def test_a_dtype_that_some_parameters_keep_is_no_single_row(tmp_path: Path) -> None:
    after = layers(21, 1.0, torch.bfloat16)
    after["model.layers.0.norm.weight"] = after["model.layers.0.norm.weight"].float()
    saved(tmp_path, layers(21, 1.0), after)

    assert not any(" parameters  float32" in line for line in lines_of(tmp_path))


def test_a_device_that_all_tensors_leave_is_one_note(tmp_path: Path) -> None:
    state = torch.load(
        SAMPLES / "train_cuda.pth", map_location="cpu", weights_only=False
    )
    torch.save(state, tmp_path / "b.pth")
    (tmp_path / "a.pth").symlink_to(SAMPLES / "train_cuda.pth")
    moved = [line for line in lines_of(tmp_path, "--strict") if ", then on " in line]

    assert [re.sub(r"\d+ ", "", line, count=1) for line in moved] == [
        f"tensors: on cuda:{number}, then on cpu" for number in (0, 1)
    ]


def test_equal_values_of_another_dtype_are_said_in_words(tmp_path: Path) -> None:
    saved(tmp_path, {"w.weight": torch.ones(2)}, {"w.weight": torch.ones(2).half()})

    assert "M w.weight  float32 → float16, values are equal" in lines_of(tmp_path)


@pytest.mark.parametrize("columns", [None, 80, 100, 200])
def test_folded_rows_stand_in_columns(columns: int | None, tmp_path: Path) -> None:
    new = {
        f"layers.{number}.attention.{part}.weight": torch.ones(2)
        for number in range(40)
        for part in "qkv"
    }
    new |= {"a.weight": torch.ones(3), "b.c.weight": torch.ones(4)}
    saved(tmp_path, {"w.weight": torch.ones(2)}, {"w.weight": torch.ones(2)} | new)
    lines = lines_of(tmp_path) if columns is None else seen(tmp_path, columns=columns)
    rows = [line for line in lines if line.startswith("A ")]

    assert len(rows) == 3 and len({row.index(" [") for row in rows}) == 1


@pytest.mark.parametrize("size", [20, 60, 200])
@pytest.mark.parametrize("columns", [None, 80, 100, 200])
def test_quick_has_names_alone_and_breaks_no_braces(
    size: int, columns: int | None, tmp_path: Path
) -> None:
    parts = [f"part_{letter * 8}" for letter in "abcdefgh"]
    long = f"{'a_long_name.' * 20}"[: max(size - 40, 0)]
    before = {
        f"layers.{number}.{long}{part}.weight": torch.ones(2)
        for number in range(9)
        for part in parts
    }
    saved(tmp_path, before, dict.fromkeys(before, torch.zeros(2)))
    lines = (
        lines_of(tmp_path, "--quick")
        if columns is None
        else seen(tmp_path, "--quick", columns=columns)
    )
    begin = next(number for number, line in enumerate(lines) if line.startswith("M "))

    rows = lines[begin:-1]
    assert "" not in rows and all(row == row.rstrip() for row in rows)
    assert all(row.count("{") == row.count("}") for row in rows)
    assert any("×72" in row for row in rows)


@pytest.mark.parametrize("bad", ["frozen", "nan"])
def test_names_in_findings_fold_across_layers(bad: str, tmp_path: Path) -> None:
    before = {f"layers.{number}.attn.bias": torch.ones(2) for number in range(12)} | {
        "fc.weight": torch.ones(2)
    }
    after = dict(before) | {"fc.weight": torch.zeros(2)}
    if bad == "nan":
        after |= {
            name: torch.full((2,), float("nan"))
            for name in before
            if name != "fc.weight"
        }
    saved(tmp_path, before, after)
    (line,) = [line for line in lines_of(tmp_path) if line.startswith(f"! {bad} ")]

    assert "layers.0-11.attn.bias ×12" in line and "layers.1." not in line


def test_a_skipped_step_is_said_once(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters(), lr=0.0)
    for path in ("a.pth", "b.pth"):
        model(torch.ones(1, 2)).sum().backward()
        adam.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": adam.state_dict()},
            tmp_path / path,
        )
    lines = lines_of(tmp_path)

    assert sum("no parameter changed" in line for line in lines) == 1
    assert "unchanged parameters" not in lines
    assert "unchanged parameters" in lines_of(tmp_path, "--show", "unchanged")


def test_a_sparse_tensor_is_no_nan(tmp_path: Path) -> None:
    before = {"w.weight": torch.ones(2, 2).to_sparse(), "v.weight": torch.ones(2)}
    saved(tmp_path, before, before | {"w.weight": torch.eye(2).to_sparse()})
    rows = [
        line.split() for line in lines_of(tmp_path, "--stat") if line.startswith("w ")
    ]

    assert rows == [["w", "1", "1", "-"]]


@pytest.mark.parametrize("order", [1, -1])
def test_the_file_without_tensors_is_named(order: int, tmp_path: Path) -> None:
    saved(tmp_path, {}, {"w.weight": torch.ones(2)})
    done = ckpt("diff", *["a.pth", "b.pth"][::order], cwd=tmp_path)

    assert done.code == 2
    text = (
        "a.pth: no tensors, so there is nothing to compare with b.pth (what it holds: "
        "ckpt inspect a.pth)"
    )
    assert done.complaints == [f"ckpt: {text}"]


def test_a_small_screen_shows_what_was_added_before_bars(tmp_path: Path) -> None:
    (tmp_path / "a.pth").symlink_to(SAMPLES / "ddp_before.pth")
    (tmp_path / "b.pth").symlink_to(SAMPLES / "train_cuda.pth")
    lines = seen(tmp_path, columns=80, rows=24)

    assert sum(line.startswith("A module.") for line in lines) >= 4 and not any(
        "█" in line for line in lines
    )
    assert (
        "… 3 parameters, 3 buffers, 16 tensors of the optimizer (--show changed)"
        in lines
    )


def test_a_small_screen_has_bars_where_values_alone_changed(tmp_path: Path) -> None:
    before = layers(80, 1.0)
    saved(tmp_path, before, {name: tensor * 1.5 for name, tensor in before.items()})

    assert sum("█" in line for line in seen(tmp_path, rows=10)) == 4


MODULE = "base_model.model.vision_tower_with_projection.encoder.transformer.layers"
"""The begin of names of 120 characters."""


def long_names(count: int) -> list[str]:
    ends = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")
    return [
        f"{MODULE}.{i // 4}.self_attention_block_of_the_encoder.{ends[i % 4]}".ljust(
            120, "_"
        )
        for i in range(count)
    ]


def deep(tensors: Tensors) -> dict[str, object]:
    return {"state": {"trainer": {"model": tensors}}, "epoch": 1}


def rows_of(lines: list[str]) -> list[str]:
    return [line for line in lines if re.match("[MADR=] ", line)]


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize("kind", ["short", "long"])
@pytest.mark.parametrize("options", [(), ("--histogram",)])
def test_a_row_is_one_line(
    options: tuple[str, ...], kind: str, columns: int, tmp_path: Path
) -> None:
    names = (
        long_names(7)
        if kind == "long"
        else [f"layers.{i}.k_proj.weight" for i in range(7)]
    )
    before = {name: torch.arange(512.0).reshape(16, 32) + 1 for name in names}
    after = {
        name: tensor * (1.001 + i / 999)
        for i, (name, tensor) in enumerate(before.items())
    }
    after[names[1]] = after[names[1]].half()
    after[names[2]] = torch.ones(5, 4)
    saved(tmp_path, deep(before), deep(after))
    shown = seen(tmp_path, *options, columns=columns)

    begin = shown.index("", 2)
    rows = shown[begin + 1 : -1]
    cut = [row for row in rows if row.startswith("… stands for ")]
    rows = [row for row in rows if row not in cut]
    assert len(rows) == 7 and all(
        row.startswith("M ") and len(row) <= columns for row in rows
    )
    # The text in the place of … is said, once for rows below each other.
    assert any(" …" in row for row in rows) == bool(cut) and len(set(cut)) == len(cut)
    for row in cut:
        assert len(row) <= columns and row.startswith("… stands for base_model.model.")
    assert len({row.split()[1] for row in rows}) == 7, "names stay apart"
    assert kind == "long" or {row.split()[1] for row in rows} == set(names)
    assert sum("Δ" in row for row in rows) == 6
    assert (
        not options
        or sum(
            re.search("Δ -?[0-9.e-]+ [▁-█ ]+ [0-9]", row) is not None for row in rows
        )
        == 6
    )


@pytest.mark.parametrize(
    ("columns", "has_place", "has_all"),
    [(70, False, False), (80, False, True), (100, True, True)],
)
def test_the_place_goes_first_then_all_elements(
    columns: int, has_place: bool, has_all: bool, tmp_path: Path
) -> None:
    names = [f"layers.{i}.q_proj.weight" for i in range(4)]
    before = {name: torch.rand(16, 32) + 1 for name in names}
    saved(tmp_path, before, {name: tensor * 1.0123 for name, tensor in before.items()})
    rows = rows_of(seen(tmp_path, columns=columns))

    assert len(rows) == 4
    for row in rows:
        assert (" at [" in row, "all elements" in row) == (has_place, has_all), row
        assert "max |Δ| " in row and "relative L2 0.0123" in row


def test_a_share_and_new_nan_are_never_left_out(tmp_path: Path) -> None:
    before = {
        "block.layers.0.attention.q_proj.weight": torch.ones(16, 32),
        "other.weight": torch.ones(512),
    }
    after = {name: tensor.clone() for name, tensor in before.items()}
    after["block.layers.0.attention.q_proj.weight"][3, :3] = float("nan")
    after["other.weight"][5] = 2
    saved(tmp_path, before, after)
    rows = rows_of(seen(tmp_path, columns=80))

    assert (
        "3 of 512 elements, NaN 0 → 3" in rows[0]
        and "1 of 512 elements, max |Δ| 1" in rows[1]
    )


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_a_value_is_one_line(columns: int, tmp_path: Path) -> None:
    model: Tensors = {}
    texts = [f"/data/runs/{'a_long_folder/' * 4}{name}" for name in ("one", "two")]
    before = {
        "model": model,
        "the_name_of_a_setting_" * 6: 1.25,
        "list": [*range(30)],
        "path": texts[0],
    }
    after = {
        "model": model,
        "the_name_of_a_setting_" * 6: 2.5,
        "list": [*range(32)],
        "path": texts[1],
    }
    before["model"], after["model"] = (
        {"w.weight": torch.ones(2)},
        {"w.weight": torch.ones(2) * 2},
    )
    saved(tmp_path, before, after)
    shown = seen(tmp_path, columns=columns)
    rows = shown[
        shown.index("M w.weight  all elements, max |Δ| 1 at [0], relative L2 1")
        + 2 : -1
    ]

    assert len(rows) == 3 and all(
        row.startswith("M ") and len(row) <= columns for row in rows
    )
    assert re.fullmatch(r"M the_name_of.*setting_  1\.25 → 2\.5", rows[0])
    assert rows[1] == "M list  list, 30 items → list, 32 items"
    assert re.fullmatch(r"M path  '/.*one' → '/.*two'", rows[2])


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_bars_shrink_before_names_do(columns: int, tmp_path: Path) -> None:
    names = [f"encoder.blocks.{i}.attention_of_the_block" for i in range(6)]
    before = {f"{name}.weight": torch.ones(4) for name in names}
    saved(
        tmp_path,
        before,
        {name: tensor * (2 + i) for i, (name, tensor) in enumerate(before.items())},
    )
    shown = seen(tmp_path, "--stat", "--depth", "4", columns=columns)
    rows = [line for line in shown if "█" in line]

    assert len(rows) == 6 and all(len(row) <= columns for row in rows)
    assert [row.split()[0] for row in rows] == names or columns == 60
    longest = max(row.count("█") for row in rows)
    assert longest == {60: 10, 80: 12, 100: 30, 120: 30}[columns]


@pytest.mark.parametrize("columns", [None, 80, 100, 120])
def test_what_did_not_change_is_unchanged_and_frozen_means_no_gradient(
    columns: int | None, tmp_path: Path
) -> None:
    names = [f"fc{i}.weight" for i in range(4)]
    before = {name: torch.ones(4) for name in names}
    saved(
        tmp_path,
        before,
        {name: tensor * (1 + i) for i, (name, tensor) in enumerate(before.items())},
    )
    lines = lines_of(tmp_path) if columns is None else seen(tmp_path, columns=columns)

    assert (
        "! frozen  fc0.weight stayed unchanged while 3 other parameters changed."
        in lines
    )
    snapshots = ckpt_diff(
        SAMPLES / "snapshot_before.pth", SAMPLES / "snapshot_after.pth"
    )
    for row in snapshots.rows:
        assert row.reason is None or ("frozen" in row.reason) == (row.cause == "frozen")
    assert {finding.code for finding in snapshots.findings} >= {"frozen"}


@pytest.mark.parametrize(
    ("which", "letters"),
    [
        ("auto", "M=M=M"),
        ("changed", "MMM"),
        ("unchanged", "=="),
        ("buffers", "M="),
        ("all", "M=M=M"),
    ],
)
def test_a_table_has_the_rows_that_are_asked_for(
    which: str, letters: str, tmp_path: Path
) -> None:
    for number in range(2):
        move = torch.full((2,), float(number))
        state = {
            "w": move,
            "b": torch.ones(2),
            "n.running_mean": move,
            "n.running_var": torch.ones(2),
        }
        torch.save({"model": state, "epoch": number}, tmp_path / f"{number}.pth")
    words = ("diff", "0.pth", "1.pth", "--tsv", "--no-header")
    done = ckpt(*words, *(() if which == "auto" else ("--show", which)), cwd=tmp_path)
    assert "".join(line[0] for line in done.lines) == letters


@pytest.mark.needs("adapters")
def test_an_adapter_beside_its_base_is_named(tmp_path: Path) -> None:
    base = {"layer.q.weight": torch.ones(4, 4)}
    lora = {
        "base_model.model.layer.q.lora_A.weight": torch.ones(2, 4),
        "base_model.model.layer.q.lora_B.weight": torch.ones(4, 2),
    }
    torch.save(base, tmp_path / "base.pt")
    torch.save(lora, tmp_path / "lora.pt")
    for names in (("base.pt", "lora.pt"), ("lora.pt", "base.pt")):
        done = inside("diff", *names, cwd=tmp_path)
        assert done.code == 1
        at = done.lines.index("lora.pt is an adapter: its weights are added to a base")
        assert done.lines[at + 1] == "  ckpt merge base.pt lora.pt -o OUT"
    torch.save({"other.weight": torch.ones(2, 2)}, tmp_path / "other.pt")
    done = inside("diff", "base.pt", "other.pt", cwd=tmp_path)
    assert "adapter" not in done.out.decode()


def test_what_one_file_alone_has_is_one_line(tmp_path: Path) -> None:
    model = {"a.weight": torch.ones(3, 2), "a.bias": torch.ones(3)}
    other = {"b.weight": torch.ones(3, 2), "b.bias": torch.ones(3)}
    torch.save({"net": model, "d": other, "epoch": 3, "lr": 0.1}, tmp_path / "x.pt")
    torch.save({"net": model, "args": {"seed": 1}}, tmp_path / "y.pt")
    done = inside("diff", "x.pt", "y.pt", cwd=tmp_path)
    said = [line for line in done.lines if line.startswith("not compared")]
    assert said == [
        "not compared: d, epoch, lr of x.pt (not in the other file)",
        "not compared: args of y.pt (not in the other file)",
    ]


def test_a_bar_of_several_modules_says_which_on_a_narrow_screen(tmp_path: Path) -> None:
    """`block_0000` is no name of the blocks from 0 to 99."""
    stem = "encoder.stage_of_a_very_long_name_for_a_layer.block_{:04}.weight"
    names = [stem.format(number) for number in range(700)]
    saved(
        tmp_path,
        {name: torch.ones(2) for name in names},
        {name: torch.full((2,), 2.0) for name in names},
    )

    bars = [line for line in seen(tmp_path, columns=80, rows=30) if "█" in line]

    assert "block_0000-" in bars[0]
    assert bars[-1].split()[0].endswith("-0699")


def test_show_chooses_the_names_of_name_only(tmp_path: Path) -> None:
    """The names that are listed under `unchanged` did not change."""
    still, moved = (
        torch.zeros(2),
        {"b.weight": torch.ones(2), "a.weight": torch.ones(2)},
    )
    before = {"epoch": 0, "model": {**moved, "a.weight": still}}
    after = {"epoch": 1, "model": {"a.weight": still, "b.weight": torch.zeros(2)}}
    saved(tmp_path, before, after)

    assert lines_of(tmp_path, "--name-only") == ["model.b.weight", "epoch"]
    assert lines_of(tmp_path, "--name-only", "--show", "unchanged") == [
        "model.a.weight"
    ]
    shown = lines_of(tmp_path, "--name-only", "--show", "all")
    assert sorted(shown) == ["epoch", "model.a.weight", "model.b.weight"]


def test_one_element_differs_in_bytes(tmp_path: Path) -> None:
    saved(tmp_path, {"a": torch.tensor([-0.0, 1.0])}, {"a": torch.tensor([0.0, 1.0])})

    assert "1 element differs in bytes only" in "\n".join(lines_of(tmp_path))


def test_one_buffer_is_no_buffers(tmp_path: Path) -> None:
    norm = torch.nn.BatchNorm1d(2).state_dict(prefix="bn.")
    for name in ("a.pth", "b.pth"):
        torch.save({"fc.weight": torch.ones(2), **norm}, tmp_path / name)
        norm["bn.running_mean"] = torch.ones(2)
        norm["bn.weight"] = torch.zeros(2)
    done = inside("diff", "a.pth", "b.pth", "--stat", cwd=tmp_path)
    assert "… 1 buffer changed too (--show all)" in done.lines

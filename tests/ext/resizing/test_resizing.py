"""`ckpt warmstart --on-mismatch pad|interpolate`: rows of a vocabulary that grew, and
grids of positions as torch's `interpolate` makes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from process import Done, ckpt
from torch.nn.functional import interpolate

import ckpt as library

State = dict[str, torch.Tensor]
REST: State = {"blocks.0.norm.weight": torch.ones(3000)}
"""What both models have alike."""


def warmstart(
    folder: Path, given: State, wanted: State, *options: str
) -> tuple[State, str]:
    """The target with the pretrained values, and what the command says."""
    torch.save({**REST, **given}, folder / "a.pth")
    torch.save({**REST, **wanted}, folder / "b.pth")
    done = run(folder, *options)
    assert done.code == 0, done
    return torch.load(folder / "out.pth"), done.out.decode()


def run(folder: Path, *options: str) -> Done:
    return ckpt(
        "warmstart",
        "a.pth",
        "--into",
        "b.pth",
        "-o",
        "out.pth",
        "--force",
        *options,
        cwd=folder,
    )


def random(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape)


# --- vocabularies ---------------------------------------------------------------------


def test_new_rows_are_those_of_the_target(tmp_path: Path) -> None:
    given = {
        "embed.weight": random(10, 4),
        "head.weight": random(10, 4),
        "head.bias": random(10),
    }
    wanted = {
        "embed.weight": random(13, 4),
        "head.weight": random(13, 4),
        "head.bias": random(13),
    }
    state, text = warmstart(tmp_path, given, wanted, "--on-mismatch", "pad")

    for name, old in given.items():
        assert torch.equal(state[name], torch.cat([old, wanted[name][10:]])), name
        assert f"{name}: 3 rows of 13 are the values of TARGET." in text


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
def test_new_rows_are_the_mean(tmp_path: Path, dtype: torch.dtype) -> None:
    old = random(1000, 8).to(dtype)
    given, wanted = (
        {"embed.weight": old},
        {"embed.weight": torch.zeros(1024, 8, dtype=dtype)},
    )
    state, text = warmstart(
        tmp_path, given, wanted, "--on-mismatch", "pad", "--fill", "mean"
    )

    mean = old.double().mean(0).to(dtype)
    assert torch.equal(state["embed.weight"][:1000], old)
    assert torch.equal(state["embed.weight"][1000:], mean.expand(24, 8))
    assert "24 rows of 1,024 are the mean of the others" in text


def test_the_dtype_is_that_of_the_target(tmp_path: Path) -> None:
    old, new = random(5, 3).bfloat16(), random(7, 3)
    state, _ = warmstart(
        tmp_path, {"embed.weight": old}, {"embed.weight": new}, "--on-mismatch", "pad"
    )
    assert torch.equal(state["embed.weight"], torch.cat([old.float(), new[5:]]))

    state, _ = warmstart(
        tmp_path,
        {"embed.weight": new},
        {"embed.weight": torch.zeros(9, 3).half()},
        "--on-mismatch",
        "pad",
    )
    assert torch.equal(
        state["embed.weight"], torch.cat([new.half(), torch.zeros(2, 3).half()])
    )


def test_a_view_of_the_target_gets_its_rows(tmp_path: Path) -> None:
    whole = random(3, 8)
    state, _ = warmstart(
        tmp_path,
        {"embed.weight": random(5, 3)},
        {"embed.weight": whole.T},
        "--on-mismatch",
        "pad",
    )

    assert torch.equal(state["embed.weight"], torch.cat([random(5, 3), whole.T[5:]]))


def test_tied_vocabularies(tmp_path: Path) -> None:
    old, new = random(5, 3), random(7, 3)
    given, wanted = (
        {"embed.weight": old, "head.weight": old},
        {"embed.weight": new, "head.weight": new},
    )
    state, _ = warmstart(tmp_path, given, wanted, "--on-mismatch", "pad")

    assert torch.equal(state["head.weight"], torch.cat([old, new[5:]]))
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()


def test_what_pad_leaves(tmp_path: Path) -> None:
    given = {
        "embed.weight": random(9, 4),
        "conv.weight": random(4, 3, 3, 3),
        "fc.weight": random(4, 4),
    }
    wanted = {
        "embed.weight": random(7, 4),
        "conv.weight": random(8, 3, 3, 3),
        "fc.weight": random(6, 5),
    }
    state, text = warmstart(tmp_path, given, wanted, "--on-mismatch", "pad")

    for name, tensor in wanted.items():
        assert torch.equal(state[name], tensor), name
    assert (
        "embed.weight is not resized: PRETRAINED has 2 rows more, which pad does "
        "not cut."
    ) in text


def test_nothing_is_resized_without_the_option(tmp_path: Path) -> None:
    given = {"embed.weight": random(5, 3), "pos_embed": random(1, 16, 4)}
    wanted = {"embed.weight": random(7, 3), "pos_embed": random(1, 25, 4)}
    state, _ = warmstart(tmp_path, given, wanted)

    for name, tensor in wanted.items():
        assert torch.equal(state[name], tensor)


# --- positions ------------------------------------------------------------------------


def on_grid(
    old: torch.Tensor, new: int, first: int = 0, *, antialias: bool = True
) -> torch.Tensor:
    """The rows of a square grid as torch interpolates them, with the first rows as they
    are.
    """
    rows = old.reshape(-1, old.shape[-1])
    side = int((len(rows) - first) ** 0.5)
    planes = rows[first:].float().T.reshape(1, -1, side, side)
    planes = interpolate(
        planes,
        size=(new, new),
        mode="bicubic",
        antialias=antialias,
        align_corners=False,
    )
    return torch.cat([rows[:first].float(), planes.reshape(planes.shape[1], -1).T])


@pytest.mark.slow
@pytest.mark.parametrize(
    "old, new",
    [(14, 24), (24, 14), (14, 16), (7, 37), (37, 7), (16, 48), (2, 3), (1, 4)],
)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_absolute_positions(tmp_path: Path, old: int, new: int, first: int) -> None:
    tokens: State = {} if not first else {"cls_token": random(1, 1, 6)}
    if first == 2:
        tokens["dist_token"] = random(1, 1, 6)
    table = random(1, old * old + first, 6)
    wanted = {**tokens, "pos_embed": torch.zeros(1, new * new + first, 6)}
    state, text = warmstart(
        tmp_path, {**tokens, "pos_embed": table}, wanted, "--on-mismatch", "interpolate"
    )

    torch.testing.assert_close(
        state["pos_embed"][0], on_grid(table, new, first), rtol=1e-5, atol=1e-5
    )
    assert torch.equal(state["pos_embed"][0, :first], table[0, :first])
    assert (
        f"pos_embed: interpolated {old} x {old} → {new} x {new}, bicubic with antialias"
        in text
    )


def test_registers_are_kept(tmp_path: Path) -> None:
    tokens = {"cls_token": random(1, 1, 6), "reg_token": random(1, 4, 6)}
    table = random(1, 49 + 5, 6)
    wanted = {**tokens, "pos_embed": torch.zeros(1, 64 + 5, 6)}
    state, text = warmstart(
        tmp_path, {**tokens, "pos_embed": table}, wanted, "--on-mismatch", "interpolate"
    )

    torch.testing.assert_close(
        state["pos_embed"][0], on_grid(table, 8, 5), rtol=1e-5, atol=1e-5
    )
    assert "5 other tokens as they are" in text


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("old, new", [(7, 12), (12, 7), (7, 8)])
def test_tables_of_relative_positions(
    tmp_path: Path, old: int, new: int, extra: int
) -> None:
    name = "layers.0.attn.relative_position_bias_table"
    table = random((2 * old - 1) ** 2 + extra, 4)
    index = {"layers.0.attn.relative_position_index": torch.arange(old**4)}
    given = {name: table, **index}
    count = (2 * new - 1) ** 2
    wanted = {
        name: torch.zeros(count + extra, 4),
        "layers.0.attn.relative_position_index": torch.arange(new**4),
    }
    state, _ = warmstart(tmp_path, given, wanted, "--on-mismatch", "interpolate")

    rows = len(table) - extra
    torch.testing.assert_close(
        state[name][:count],
        on_grid(table[:rows], 2 * new - 1, antialias=False),
        rtol=1e-5,
        atol=2e-5,
    )
    assert torch.equal(state[name][count:], table[rows:])
    assert torch.equal(
        state["layers.0.attn.relative_position_index"], torch.arange(new**4)
    )


def test_grids_with_dimensions_of_their_own(tmp_path: Path) -> None:
    last, first = random(1, 7, 9, 5), random(1, 5, 7, 9)
    name = "blocks.1.relative_position_bias_table"
    table = random(4, 13, 13)
    given = {"a.pos_embed": last, "b.pos_embed": first, name: table}
    wanted = {
        "a.pos_embed": torch.zeros(1, 14, 11, 5),
        "b.pos_embed": torch.zeros(1, 5, 6, 20),
        name: torch.zeros(4, 15, 15),
    }
    state, _ = warmstart(tmp_path, given, wanted, "--on-mismatch", "interpolate")

    def bicubic(
        planes: torch.Tensor, *size: int, antialias: bool = True
    ) -> torch.Tensor:
        return interpolate(planes, size=size, mode="bicubic", antialias=antialias)

    expected = bicubic(last.permute(0, 3, 1, 2), 14, 11).permute(0, 2, 3, 1)
    torch.testing.assert_close(state["a.pos_embed"], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        state["b.pos_embed"], bicubic(first, 6, 20), rtol=1e-5, atol=1e-5
    )
    expected = bicubic(table[None], 15, 15, antialias=False)[0]
    torch.testing.assert_close(state[name], expected, rtol=1e-5, atol=2e-5)


def rectangle(
    old: torch.Tensor, old_grid: tuple[int, int], grid: tuple[int, int], first: int
) -> torch.Tensor:
    """The rows of a grid as torch interpolates them, with the first rows as they are."""
    rows = old.reshape(-1, old.shape[-1])
    planes = rows[first:].T.reshape(1, -1, *old_grid)
    planes = interpolate(planes, size=grid, mode="bicubic", antialias=True)
    return torch.cat([rows[:first], planes.reshape(planes.shape[1], -1).T])


@pytest.mark.parametrize(
    ("old_grid", "grid", "words"),
    [
        ((14, 14), (14, 21), "14x21"),
        ((14, 14), (21, 14), "21x14"),
        ((12, 101), (12, 50), "12x101:12x50"),
        ((4, 9), (5, 6), "4x9:5x6"),
        ((6, 6), (4, 16), "6x6:4x16"),
    ],
)
@pytest.mark.parametrize("first", [0, 2])
def test_grids_that_are_named(
    tmp_path: Path,
    old_grid: tuple[int, int],
    grid: tuple[int, int],
    words: str,
    first: int,
) -> None:
    """Images that are not square, and spectrograms (AST has 12 x 101 positions)."""
    tokens: State = {}
    if first:
        tokens = {"cls_token": random(1, 1, 6), "dist_token": random(1, 1, 6)}
    table = random(1, old_grid[0] * old_grid[1] + first, 6)
    wanted = {**tokens, "pos_embed": torch.zeros(1, grid[0] * grid[1] + first, 6)}
    options = ("--on-mismatch", "interpolate", "--grid", words)
    state, text = warmstart(tmp_path, {**tokens, "pos_embed": table}, wanted, *options)

    expected = rectangle(table, old_grid, grid, first)
    torch.testing.assert_close(state["pos_embed"][0], expected, rtol=1e-5, atol=1e-5)
    sides = f"{old_grid[0]} x {old_grid[1]} → {grid[0]} x {grid[1]}"
    assert f"pos_embed: interpolated {sides}, bicubic" in text


def test_a_named_grid_is_for_lists_of_any_name(tmp_path: Path) -> None:
    """A list of positions of a text is none of an image, unless a person says so."""
    name = "embeddings.position_embeddings.weight"
    given, wanted = {name: random(16, 6)}, {name: torch.zeros(24, 6)}
    options = ("--on-mismatch", "interpolate", "--grid", "4x6")
    state, _ = warmstart(tmp_path, given, wanted, *options)

    expected = rectangle(given[name], (4, 4), (4, 6), 0)
    torch.testing.assert_close(state[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("14x22", "pos_embed is not resized: 196 and 294 positions are not those of"),
        ("12x12:14x21", "no position embedding of another shape has so many positions"),
        ("14", "--grid 14: not a grid (HxW as 14x21"),
        ("0x7", "--grid 0x7: not a grid"),
        ("9999x1", "--grid 9999x1: not a grid"),
        ("14x21:", "--grid 14x21:: not a grid"),
        ("1x2:3x4:5x6", "not a grid"),
    ],
)
def test_a_grid_that_nothing_has(tmp_path: Path, words: str, why: str) -> None:
    torch.save({**REST, "pos_embed": random(1, 196, 4)}, tmp_path / "a.pth")
    torch.save({**REST, "pos_embed": random(1, 294, 4)}, tmp_path / "b.pth")
    done = run(tmp_path, "--on-mismatch", "interpolate", "--grid", words)

    assert done.code == 2 and why in done.err.decode()
    assert not (tmp_path / "out.pth").exists()


def test_a_grid_that_is_not_square_names_the_option(tmp_path: Path) -> None:
    given, wanted = {"pos_embed": random(1, 196, 4)}, {"pos_embed": random(1, 294, 4)}
    _, text = warmstart(tmp_path, given, wanted, "--on-mismatch", "interpolate")

    assert "two square grids (--grid HxW names them)" in text


RESULTS_OF_TIMM = json.loads(
    (Path(__file__).parent / "timm_positions.json").read_text()
)["rows"]
"""The results of timm 1.0.31 for tables of `sawtooth`: of `resample_abs_pos_embed` for
a kind `abs`, of `resize_rel_pos_bias_table_simple` for a kind `rel`.
"""


def sawtooth(rows: int) -> torch.Tensor:
    """The table that timm was given, of a width of 2."""
    return ((torch.arange(rows * 2).reshape(rows, 2) * 7 % 11 - 5) / 4).float()


@pytest.mark.parametrize("row", RESULTS_OF_TIMM)
def test_the_results_of_timm(tmp_path: Path, row: dict[str, Any]) -> None:
    old, new, first = row["old"], row["new"], row.get("first", 0)
    is_absolute = row["kind"] == "abs"
    name = "pos_embed" if is_absolute else "attn.relative_position_bias_table"
    tokens: State = {"cls_token": random(1, first, 2)} if first else {}
    table = sawtooth(old[0] * old[1] + first)
    expected = torch.tensor(row["values"]).reshape(-1, 2)
    wanted = torch.zeros_like(expected)
    if is_absolute:
        table, wanted = table[None], wanted[None]
    options = ["--on-mismatch", "interpolate"]
    if new[0] != new[1]:
        options += ["--grid", f"{new[0]}x{new[1]}"]
    given = {**tokens, name: table}
    state, _ = warmstart(tmp_path, given, {**tokens, name: wanted}, *options)

    made = state[name].reshape(-1, 2)
    torch.testing.assert_close(made, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    table = random(1, 196, 6).to(dtype)
    wanted = {"pos_embed": torch.zeros(1, 576, 6, dtype=dtype)}
    state, _ = warmstart(
        tmp_path, {"pos_embed": table}, wanted, "--on-mismatch", "interpolate"
    )

    expected = on_grid(table, 24).to(dtype)
    torch.testing.assert_close(
        state["pos_embed"][0],
        expected,
        rtol=1e-2 if dtype != torch.float64 else 1e-5,
        atol=1e-5,
    )


def test_elements_beyond_the_dtype_are_counted(tmp_path: Path) -> None:
    """A cubic curve runs above its points, so it leaves the range of float16."""
    table = torch.full((1, 16, 4), 65504.0).half()
    table[:, ::2] = -65504
    wanted = {"pos_embed": torch.zeros(1, 64, 4).half()}
    state, text = warmstart(
        tmp_path, {"pos_embed": table}, wanted, "--on-mismatch", "interpolate"
    )

    infinite = int(state["pos_embed"].isinf().sum())
    assert infinite and f"{infinite} elements became infinite" in text


def test_two_dimensions(tmp_path: Path) -> None:
    """CLIP of OpenAI and of transformers keep a list of positions."""
    name = "visual.positional_embedding"
    tokens = {"visual.class_embedding": random(6)}
    given, wanted = (
        {name: random(50, 6), **tokens},
        {name: torch.zeros(197, 6), **tokens},
    )
    state, _ = warmstart(tmp_path, given, wanted, "--on-mismatch", "interpolate")

    torch.testing.assert_close(
        state[name], on_grid(given[name], 14, 1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("transformer.wpe.weight", (1024, 4), (4096, 4)),
        ("embeddings.position_embeddings.weight", (1024, 4), (4096, 4)),
        ("positional_embedding", (77, 4), (248, 4)),
        ("pos_embed", (1, 197, 4), (1, 198, 4)),
        ("pos_embed", (1, 196, 4), (1, 196, 5)),
        ("pos_embed", (2, 16, 4), (2, 25, 4)),
        ("fc.weight", (16, 4), (25, 4)),
        ("a.relative_position_bias_table", (169, 4), (529, 5)),
        ("a.relative_position_bias_table", (170, 4), (529, 4)),
        # A window of n points has 2n - 1 distances on each side, so no even number.
        ("a.relative_position_bias_table", (256, 4), (529, 4)),
        ("a.relative_position_bias_table", (169, 4), (576, 4)),
    ],
)
def test_what_has_no_square_grid_stays(
    tmp_path: Path, name: str, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    """The positions of a text have square lengths too, and are no image."""
    wanted = random(*new)
    state, _ = warmstart(
        tmp_path, {name: random(*old)}, {name: wanted}, "--on-mismatch", "interpolate"
    )

    assert torch.equal(state[name], wanted)


# --- the command ----------------------------------------------------------------------


@pytest.mark.parametrize("is_given", [True, False])
def test_a_view_that_expands_is_not_interpolated(
    tmp_path: Path, *, is_given: bool
) -> None:
    """It would be in memory whole: two KiB of file are 256 MiB, and with wider rows as
    much as one likes.
    """
    wide, small = torch.zeros(1).expand(1, 4096 * 4096 + 1, 4), random(1, 17, 4)
    torch.save({**REST, "pos_embed": wide if is_given else small}, tmp_path / "a.pth")
    torch.save({**REST, "pos_embed": small if is_given else wide}, tmp_path / "b.pth")

    done = run(
        tmp_path, "--on-mismatch", "interpolate", "--min-coverage", "0", "--dry-run"
    )
    assert (
        "pos_embed is not resized: a view of 4 bytes expands to 268,435,472"
        in done.out.decode()
    )


def test_the_report_says_what_is_copied(tmp_path: Path) -> None:
    warmstart(
        tmp_path, {"embed.weight": random(10, 4)}, {"embed.weight": random(13, 4)}
    )
    document = json.loads(run(tmp_path, "--on-mismatch", "pad", "--json").out)

    (row,) = [
        row for row in document["coverage"]["pairs"] if row["name"] == "embed.weight"
    ]
    assert (row["status"], row["copied"]) == ("loaded", 40)
    assert row["why"] == "3 rows of 13 are the values of TARGET"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--fill", "mean"), "--fill goes with --on-mismatch pad"),
        (
            ("--on-mismatch", "interpolate", "--fill", "mean"),
            "--fill goes with --on-mismatch pad",
        ),
        (
            ("--on-mismatch", "pad", "--fill", "zero"),
            "--fill zero: not one of target mean",
        ),
        (("--on-mismatch", "pad", "--print-code"), "--print-code does not print"),
        (("--grid", "2x2"), "--grid goes with --on-mismatch interpolate"),
        (
            ("--on-mismatch", "pad", "--grid", "2x2"),
            "--grid goes with --on-mismatch interpolate",
        ),
        (("--on-mismatch", "stretch"), "not one of keep slice error pad interpolate"),
    ],
)
def test_what_does_not_go_together(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    warmstart(tmp_path, {}, {})
    done = run(tmp_path, *options)

    assert done.code == 2 and why in done.err.decode()


def test_python(tmp_path: Path) -> None:
    warmstart(
        tmp_path, {"embed.weight": random(10, 4)}, {"embed.weight": random(13, 4)}
    )
    out = tmp_path / "c.pth"
    library.warmstart(
        tmp_path / "a.pth",
        into=tmp_path / "b.pth",
        on_mismatch="pad",
        fill="mean",
        out=out,
    )

    embed = torch.load(out)["embed.weight"]
    torch.testing.assert_close(embed[12], random(10, 4).mean(0))

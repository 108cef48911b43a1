"""Views of `ckpt inspect` and `ckpt stats` for people: rows that are alike are one, and
`--all` parts them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import rewriting
import torch
from inside import inside
from opcodes import torch_zip
from process import SAMPLES

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.tables import folded_imports, folded_storages, import_table
from ckpt.evidence.survey import Survey


def below_header(lines: list[str]) -> list[str]:
    """The rows of a table, which ends with an empty line."""
    first = (
        next(number for number, line in enumerate(lines) if line.startswith("NAME "))
        + 1
    )
    return lines[first : lines.index("", first)]


def test_storages_that_are_alike_are_one_row_with_the_sum_of_their_bytes() -> None:
    lines = inside("inspect", "llama_bf16.pth", "--storages", cwd=SAMPLES).lines

    assert [" ".join(line.split()) for line in lines[-6:]] == [
        "0 cuda:0 2048 2048 own model.embed_tokens.weight",
        "×24 cuda:0 12288 12288 own model.layers.0-5.self_attn.{q,k,v,o}_proj.weight",
        "×18 cuda:0 25344 25344 own model.layers.0-5.mlp.{gate,up,down}_proj.weight",
        (
            "×12 cuda:0 384 384 own "
            "model.layers.0-5.{input,post_attention}_layernorm.weight"
        ),
        "55 cuda:0 32 32 own model.norm.weight",
        "56 cuda:0 2048 2048 own lm_head.weight",
    ]
    for exact in ("--all", "--tsv"):
        whole = inside(
            "inspect", "llama_bf16.pth", "--storages", exact, cwd=SAMPLES
        ).out.decode()
        assert "layers.3.self_attn.q_proj.weight" in whole and "×" not in whole


def test_storages_of_another_device_size_or_use_are_apart(tmp_path: Path) -> None:
    spare = torch.zeros(8)[:4]
    tensors = {
        "a.0.w": torch.ones(4),
        "a.1.w": torch.ones(4),
        "a.2.w": torch.ones(5),
        "a.3.w": spare,
    }
    tensors |= {"a.4.w": torch.zeros(4), "a.5.w": torch.zeros(4, dtype=torch.int32)}
    tensors["a.6.w"] = tensors["a.4.w"]
    tensors |= {"p.0": torch.ones(3), "p.1": torch.zeros(3)}
    tensors |= {"q": tensors["p.0"], "r": tensors["p.1"]}
    path = rewriting.saved(tensors, tmp_path / "a.pt")
    with formats.open(str(path)) as checkpoint:
        rows = folded_storages(inspect(Survey(checkpoint)))[1:]

    assert [(row[0], row[2], row[3], row[5]) for row in rows] == [
        ("×3", "48", "48", "a.{0-1,5}.w"),
        ("2", "20", "20", "a.2.w"),
        ("3", "32", "16", "a.3.w"),
        ("4", "16", "16", "a.4.w a.6.w"),
        ("6", "12", "12", "p.0 q"),
        ("7", "12", "12", "p.1 r"),
    ]


def test_stats_folds_what_is_equal_and_nothing_else(tmp_path: Path) -> None:
    tensors = {
        f"h.{i}.{name}.w": torch.ones(4) for i in range(3) for name in ("q", "k")
    }
    tensors |= {f"h.{i}.v.w": torch.arange(4.0) + i for i in range(3)}
    tensors["h.1.k.w"] = torch.full((4,), 1.001)
    tensors["h.3.q.w"] = torch.ones(2, 2)
    tensors["h.01.q.w"] = torch.ones(4)
    rewriting.saved(tensors, tmp_path / "a.pt")
    lines = inside("stats", "a.pt", "--sort", "name", cwd=tmp_path).lines
    names = sorted(line.split()[0] for line in below_header(lines))

    # 1.001 is shown as 1, but its mean as 1: what is shown is equal.
    assert names == ["0-2.{k,q}.w", "0.v.w", "01.q.w", "1.v.w", "2.v.w", "3.q.w"]
    assert any(line.endswith("11 tensors · names begin with h.") for line in lines)
    every = inside("stats", "a.pt", "--all", cwd=tmp_path).lines
    assert len(below_header(every)) == 11 and not any("{" in line for line in every)


def test_stats_counts_the_tensors_that_are_not_shown(tmp_path: Path) -> None:
    tensors = {f"h.{i}.w": torch.arange(4.0) + i for i in range(70)}
    tensors |= {f"n.{i}.w": torch.ones(2) for i in range(5)}
    rewriting.saved(tensors, tmp_path / "a.pt")
    lines = inside("stats", "a.pt", "--sort", "name", cwd=tmp_path).lines

    assert "… 15 more (--all, --tsv, --json)" in lines


@pytest.mark.parametrize("first", ["__builtin__", "builtins"])
def test_names_of_python_2_and_3_of_one_thing_are_one_row(
    first: str, tmp_path: Path
) -> None:
    second = "builtins" if first == "__builtin__" else "__builtin__"
    path = tmp_path / "a.pt"
    stream = (
        f"(c{first}\neval\n(V1\ntRc{second}\neval\n(V2\ntRcposix\nsystem\n(Vx\ntRt."
    ).encode()
    path.write_bytes(torch_zip(stream, {}))
    with formats.open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    rows = folded_imports(report)

    assert [row[1] for row in import_table(report)[1:4]] == [
        f"{first}.eval",
        f"{second}.eval",
        "posix.system",
    ]
    assert [row[:3] for row in rows[1:3]] == [
        ["called", f"{first}.eval (also stored as {second}.eval)", "refused"],
        ["called", "posix.system", "refused"],
    ]
    assert rows[1][4] == f"{first}.eval('1'), {second}.eval('2')"
    assert (
        "also stored as"
        in inside("inspect", path, "--imports", cwd=tmp_path).out.decode()
    )
    assert (
        "also stored as"
        not in inside("inspect", path, "--imports", "--all", cwd=tmp_path).out.decode()
    )


def test_a_row_of_many_siblings_says_how_many(tmp_path: Path) -> None:
    """Their numbers are in the middle of a name, which a column of names cuts off."""
    word = "cross_attention_block_of_the_perceiver_with_a_very_long_name_number"
    torch.save(
        {f"{word}_{i:04}.latent_layer.weight": torch.ones(4) for i in range(700)},
        tmp_path / "a.pth",
    )

    (row,) = below_header([*inside("inspect", "a.pth", cwd=tmp_path).lines, ""])

    assert "×700" in row.split()

"""The model card beside weights: what its head says, and that it is read as YAML reads
it, or not at all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from process import SAMPLES
from safetensors.torch import save_file

import ckpt
from ckpt.commands.inspect.card import BYTES, Card, card_of

CARD = """---
language:
- en
license: other  # see below
license_name: llama3.1
base_model:
  - meta-llama/Llama-3.1-8B
  - "org/second"
base_model_relation: merge
tags: [llama, 'text generation', "a, b"]
pipeline_tag: text-generation
library_name: transformers
widget:
- text: "license: mit"
extra: |
  tags: evil
---
# A model
license: gpl
"""


def test_what_a_card_says() -> None:
    assert card_of(CARD.encode()) == Card(
        "other (llama3.1)",
        ("meta-llama/Llama-3.1-8B", "org/second"),
        "merge",
        "text-generation",
        "transformers",
        ("llama", "text generation", "a, b"),
    )
    assert (
        card_of(CARD.replace("\n", "\r\n").encode())
        == card_of(("\ufeff" + CARD).encode())
        == card_of(CARD.encode())
    )


@pytest.mark.parametrize(
    "head",
    [
        "license: &a mit",
        "license: *a",
        "license: !!str mit",
        "license: |\n  mit",
        "license: >\n  mit",
        "license: {a: b}",
        "license: mit\nlicense: gpl",
        "license: mit\n  and more",
        "license: null",
        "license: ~",
        "license:",
        "license: a: b",
        'license: "a\\nb"',
        "license: 'it''s'",
        "tags: [a, [b]]",
        "tags:\n- - a",
        "tags:\n- a\n  - b",
        "tags:\n- a: b",
        " license: mit",
        "other: mit",
    ],
)  # fmt: skip
def test_what_is_more_than_a_text_or_a_list_is_passed_over(head: str) -> None:
    assert card_of(f"---\n{head}\n---\n".encode()) is None


@pytest.mark.parametrize(
    "text", ["", "# Title", "---\nlicense: mit\n", "\n---\nlicense: mit\n---\n", "---"]
)
def test_a_readme_without_a_head(text: str) -> None:
    assert card_of(text.encode()) is None


def test_a_card_is_bounded() -> None:
    tags = "\n".join(f"- {'x' * 1000}{number}" for number in range(5000))
    card = card_of(f"---\ntags:\n{tags}\n---\n".encode())

    assert (
        card is not None
        and len(card.tags) == 200
        and {len(tag) for tag in card.tags} == {200}
    )
    assert card_of(b"---\n" + b"[" * BYTES) is card_of(b"\xff" * 1000) is None


PIECES = st.lists(
    st.sampled_from(
        ["license: ", "tags:", "base_model: ", "mit", "a b", "'x'", '"y"', "[", "]", ", ", "\n", "\n- ", "\n  - ", " # c", ":", "  ", "-", "#"]
    ),
    max_size=14,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=500)
@given(PIECES)
def test_what_is_read_is_what_yaml_reads(pieces: list[str]) -> None:
    """Whatever the head is: a text that is shown is one that PyYAML finds under that
    key.
    """
    yaml = pytest.importorskip("yaml")
    head = "".join(pieces)
    card = card_of(f"---\n{head}\n---\n".encode())
    if card is None or "\n---" in f"\n{head}":
        return
    try:
        document = yaml.safe_load(head)
    except yaml.YAMLError:
        return  # no reader of the card reads it
    for texts, key in (
        (card.tags, "tags"),
        (card.base_models, "base_model"),
        ((card.license,), "license"),
    ):
        found = document.get(key)
        wanted = (
            [str(text) for text in found if text]
            if isinstance(found, list)
            else [str(found)]
        )
        assert not any(texts) or set(texts) <= set(wanted), (head, texts, found)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as it is published."""
    save_file(
        {"a.weight": torch.ones(2, 2)},
        tmp_path / "model.safetensors",
        {"format": "pt", "license": "mit"},
    )
    (tmp_path / "README.md").write_text(CARD)
    return tmp_path


SHOWN = (
    "  card      license other (llama3.1) · base models meta-llama/Llama-3.1-8B, "
    "org/second (merge)"
)


@pytest.mark.parametrize("name", [".", "model.safetensors"])
def test_inspect_shows_the_card(name: str, model: Path) -> None:
    lines = inside("inspect", name, cwd=model).lines

    assert [line for line in lines if line.startswith(SHOWN)]
    assert "  metadata  license 'mit' · format 'pt'" in lines
    card = json.loads(inside("inspect", name, "--json", cwd=model).out)["card"]
    assert card["license"] == "other (llama3.1)" and card["tags"] == [
        "llama",
        "text generation",
        "a, b",
    ]
    report = ckpt.inspect(model / name)
    assert report.report.card is not None and report.report.card.relation == "merge"


def test_a_readme_beside_any_file_is_not_its_card(model: Path) -> None:
    shutil.copy(SAMPLES / "legacy.pth", model / "other.pth")

    assert b"card" not in inside("inspect", "other.pth", cwd=model).out
    assert b"card" not in inside("inspect", ".", "--include", "*", cwd=model).out


def test_signs_of_a_terminal_in_a_card_are_escaped(model: Path) -> None:
    (model / "README.md").write_text(
        "---\nlicense: a\x1b[31mb\u202e\ntags:\n- \x9bx\n---\n"
    )

    out = inside("inspect", "model.safetensors", cwd=model).out.decode()

    assert (
        "\x1b" not in out
        and "\u202e" not in out
        and "\x9b" not in out
        and "license a\\x1b[31mb" in out
    )


def test_a_card_that_cannot_be_read_is_none(model: Path) -> None:
    (model / "README.md").unlink()
    (model / "README.md").mkdir()
    assert inside("inspect", "model.safetensors", cwd=model).code == 0


def test_many_texts_of_metadata_are_counted(tmp_path: Path) -> None:
    texts = {f"ss_{number}": str(number) for number in range(80)} | {"license": "mit"}
    save_file({"a.weight": torch.ones(1)}, tmp_path / "a.safetensors", texts)

    (line,) = [
        line
        for line in inside("inspect", "a.safetensors", cwd=tmp_path).lines
        if "metadata" in line
    ]

    assert line.startswith("  metadata  license 'mit' · ") and line.endswith(
        "75 more (--values)"
    )


def test_counters_below_a_key(tmp_path: Path) -> None:
    meta = {"epoch": 12, "iter": 1000, "config": "x", "best": {"epoch": 3}}
    torch.save(
        {"state_dict": {"a.weight": torch.ones(1)}, "meta": meta}, tmp_path / "a.pth"
    )

    assert (
        "  values      meta 4 values (epoch 12, iter 1000)"
        in inside("inspect", "a.pth", cwd=tmp_path).lines
    )


@pytest.mark.parametrize(
    ("rates", "is_said"), [([0.0, 0.0], True), ([0.0, 0.1], False), ([0.1, 0.1], False)]
)
def test_a_learning_rate_of_zero_is_said(
    rates: list[float], is_said: bool, tmp_path: Path
) -> None:
    net = torch.nn.Linear(2, 2)
    groups = [
        {"params": [row], "lr": rate}
        for row, rate in zip(net.parameters(), rates, strict=True)
    ]
    adam = torch.optim.AdamW(groups)
    net(torch.ones(2)).sum().backward()
    adam.step()
    torch.save(
        {"model": net.state_dict(), "optimizer": adam.state_dict()}, tmp_path / "a.pth"
    )

    out = inside("inspect", "a.pth", cwd=tmp_path).out.decode()

    assert ("lr 0 in every group, as at the end of a schedule" in out) == is_said


def test_a_learning_rate_of_zero_before_the_first_step_is_warming_up(
    tmp_path: Path,
) -> None:
    net = torch.nn.Linear(2, 2)
    adam = torch.optim.AdamW(net.parameters(), lr=0.0)
    torch.save(
        {"model": net.state_dict(), "optimizer": adam.state_dict()}, tmp_path / "a.pth"
    )

    assert "in every group" not in inside("inspect", "a.pth", cwd=tmp_path).out.decode()

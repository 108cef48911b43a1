"""A config.json that says another vocabulary than the weights beside it have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import inside
from needs import skip_without
from safetensors.torch import save_file

import ckpt

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4,
    "vocab_size": 10,
}


def messages(
    folder: Path,
    config: dict[str, Any],
    *,
    rows: int = 8,
    name: str = "model.embed_tokens.weight",
    **others: tuple[int, ...],
) -> list[str]:
    """The findings about the config of a folder with an embedding of so many rows."""
    state = {name: torch.zeros(rows, 4), "model.norm.weight": torch.ones(4)}
    state |= {each: torch.zeros(shape) for each, shape in others.items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report = ckpt.inspect(folder)
    return [row.message for row in report.findings if row.code == "config-differs"]


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("model.embed_tokens.weight", "hidden_size"),
        ("transformer.wte.weight", "n_embd"),
        ("shared.weight", "d_model"),
        ("bert.embeddings.word_embeddings.weight", "hidden_size"),
    ],
)
def test_another_number_of_rows(name: str, width: str, tmp_path: Path) -> None:
    config = {**CONFIG, "hidden_size": None, width: 4}
    assert messages(tmp_path, config, name=name) == [
        f"config.json says vocab_size 10, and {name} has 8 rows: from_pretrained does "
        "not load it as it is"
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 2**64},
        {"vocab_size": 8},
        {"vocab_size": None},
        {"vocab_size": "10"},
        {"architectures": None},
        # A table of another kind, and models that pad on purpose.
        {"hidden_size": 5},
        {"hidden_size": [4, {"a": 1}]},
        {"padded_vocab_size": 16},
        {"pad_vocab_size_multiple": 8},
        {"decoder_vocab_size": 12},
        {"text_config": {"vocab_size": 8}},
        {"quantization_config": {"bits": 4}},
    ],
    ids=str,
)
def test_a_doubt_is_no_finding(change: dict[str, Any], tmp_path: Path) -> None:
    config = {key: v for key, v in {**CONFIG, **change}.items() if v is not None}
    assert messages(tmp_path, config) == []


def test_two_sizes_and_a_head_of_the_size_of_the_config(tmp_path: Path) -> None:
    assert messages(tmp_path, CONFIG, **{"lm_head.weight": (10, 4)}) == []
    assert messages(tmp_path, CONFIG, **{"decoder.embed_tokens.weight": (9, 4)}) == []
    assert messages(tmp_path, CONFIG, **{"lm_head.weight": (8, 4)}) != []


def test_explain_says_that_it_is_the_config(tmp_path: Path) -> None:
    skip_without("explain")
    messages(tmp_path, CONFIG)
    error = (
        "size mismatch for model.embed_tokens.weight: copying a param with shape "
        "torch.Size([8, 4]) from checkpoint, the shape in current model is "
        "torch.Size([10, 4])."
    )
    done = inside("explain", error, ".", cwd=tmp_path)
    assert "config.json says vocab_size 10, and model.embed" in " ".join(done.lines)


def test_a_vector_with_such_a_name_is_no_embedding(tmp_path: Path) -> None:
    assert len(messages(tmp_path, CONFIG, **{"shared.weight": (8,)})) == 1

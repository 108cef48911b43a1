"""`diff BASE X.gguf` of files as llama.cpp's quantiser mixes their types: honest ones
are the base, and what is wrong with others is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ggufs
import pytest
import torch
from gguf_packers import PACKERS
from process import Run
from safetensors.torch import save_file

State = dict[str, torch.Tensor]
HEADS, KEYS, BLOCKS, WORDS, EXPERTS = 8, 4, 2, 96, 4
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    "mlp.gate.": "ffn_gate_inp.",
    **{
        f"mlp.experts.{part}_proj": f"ffn_{part}_exps"
        for part in ("gate", "up", "down")
    },
    "model.layers.": "blk.",
}


def model(
    width: int = 256, inner: int = 512, *, biases: bool = False, experts: bool = False
) -> State:
    """A small model with the names of transformers, in bfloat16."""
    rows = width * KEYS // HEADS
    state: State = {"model.embed_tokens.weight": torch.randn(WORDS, width) * 0.3}
    for number in range(BLOCKS):
        block = f"model.layers.{number}."
        for part, height in (("q", width), ("k", rows), ("v", rows), ("o", width)):
            weight = torch.randn(height, width) * 0.05
            state[f"{block}self_attn.{part}_proj.weight"] = weight
            if biases and part != "o":
                state[f"{block}self_attn.{part}_proj.bias"] = torch.randn(height)
        stems = [f"{block}mlp."]
        if experts:
            stems = [f"{block}mlp.experts.{expert}." for expert in range(EXPERTS)]
            state[f"{block}mlp.gate.weight"] = torch.randn(EXPERTS, width)
        for stem in stems:
            state[f"{stem}gate_proj.weight"] = torch.randn(inner, width) * 0.05
            state[f"{stem}up_proj.weight"] = torch.randn(inner, width) * 0.05
            state[f"{stem}down_proj.weight"] = torch.randn(width, inner) * 0.05
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"{block}{name}.weight"] = torch.rand(width) + 0.5
    state["model.norm.weight"] = torch.rand(width) + 0.5
    state["lm_head.weight"] = torch.randn(WORDS, width) * 0.05
    return {name: row.bfloat16().float() for name, row in state.items()}


def mixed_type(name: str) -> str:
    """The type of a tensor in a file of Q4_K_M."""
    if name.endswith("norm.weight") or name.endswith(".bias") or "mlp.gate." in name:
        return "F32"
    is_first = ".layers.0." in name
    is_better = "lm_head" in name or ("v_proj" in name or "down_proj" in name)
    return "Q6_K" if is_better and (is_first or "lm_head" in name) else "Q4_K"


def stacked(state: State) -> State:
    """The experts of a block in one tensor."""
    made: State = {}
    for name, row in state.items():
        if ".experts." not in name:
            made[name] = row
        elif ".experts.0." in name:
            rows = [
                state[name.replace("experts.0", f"experts.{expert}")]
                for expert in range(EXPERTS)
            ]
            made[name.replace("experts.0", "experts")] = torch.stack(rows)
    return made


def permuted(row: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of q or k in llama.cpp's order."""
    shape = (heads, 2, row.shape[0] // heads // 2, *row.shape[1:])
    return row.reshape(shape).transpose(1, 2).reshape(row.shape)


def quantised(
    state: State,
    architecture: str = "llama",
    type_of: Callable[[str], str] = mixed_type,
    *,
    unpermuted: str = "",
) -> bytes:
    """A GGUF of a model. `unpermuted` is the name whose rows stay as they were."""
    tensors: list[ggufs.Tensor] = []
    for name, row in stacked(state).items():
        number, block, pack = PACKERS[type_of(name)]
        if row.shape[-1] % block:
            number, block, pack = PACKERS["Q5_0"]  # as llama-quantize falls back
        if architecture == "llama" and "q_proj" in name and name != unpermuted:
            row = permuted(row, HEADS)
        if architecture == "llama" and "k_proj" in name:
            row = permuted(row, KEYS)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        sizes = tuple(reversed(row.shape))
        tensors.append(ggufs.Tensor(name, sizes, number, pack(row.numpy())))
    pairs = [
        ("general.architecture", "str", architecture),
        (f"{architecture}.attention.head_count", "u32", HEADS),
        (f"{architecture}.attention.head_count_kv", "u32", KEYS),
    ]
    return ggufs.gguf(pairs, tensors)


def written(folder: Path, state: State, data: bytes) -> tuple[Path, Path]:
    base, path = folder / "base.safetensors", folder / "x.gguf"
    save_file({name: row.bfloat16().contiguous() for name, row in state.items()}, base)
    path.write_bytes(data)
    return base, path


def said_of(ckpt: Run, pair: tuple[Path, Path], code: int) -> str:
    done = ckpt("diff", *pair)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def without_head(state: State) -> State:
    return {name: row for name, row in state.items() if name != "lm_head.weight"}


def with_flat_tensors(state: State) -> State:
    """Tensors of one number, of zeros, and with rows of zeros."""
    state["model.norm.weight"] = torch.ones(256)
    state["model.layers.0.mlp.up_proj.weight"] = torch.zeros(512, 256)
    state["model.layers.1.mlp.up_proj.weight"] = torch.full((512, 256), 0.25)
    state["model.layers.0.self_attn.v_proj.weight"][::3] = 0
    state["model.embed_tokens.weight"][-7:] = 0  # words that nobody trained
    return state


def all_of(kind: str) -> Callable[[str], str]:
    """Matrices of one type, as llama-quantize --pure makes them."""
    return lambda name: "F32" if mixed_type(name) == "F32" else kind


HONEST: dict[str, Callable[[], tuple[State, bytes]]] = {
    "Q4_K_M": lambda: _pair(model()),
    "biases": lambda: _pair(model(biases=True), "qwen2"),
    "experts": lambda: _pair(model(experts=True), "qwen3moe"),
    "no multiple of a block": lambda: _pair(model(160, 416)),
    "tensors of one number": lambda: _pair(with_flat_tensors(model())),
    "all Q6_K": lambda: _pair(model(), type_of=all_of("Q6_K")),
    "float16 beside": lambda: _pair(
        model(), type_of=lambda name: "F16" if "embed" in name else mixed_type(name)
    ),
}


def _pair(
    state: State,
    architecture: str = "llama",
    type_of: Callable[[str], str] = mixed_type,
) -> tuple[State, bytes]:
    return state, quantised(state, architecture, type_of)


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_mixture_is_the_base(ckpt: Run, tmp_path: Path, name: str) -> None:
    torch.manual_seed(len(name))
    state, data = HONEST[name]()
    text = said_of(ckpt, written(tmp_path, state, data), 0)
    assert f"all {len(state)} tensors are within what their types make" in text


@pytest.mark.parametrize("has_base_a_head", [False, True])
def test_a_tied_head_is_not_missed(
    ckpt: Run, tmp_path: Path, *, has_base_a_head: bool
) -> None:
    torch.manual_seed(4)
    state = model()
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    small = without_head(state)
    base = state if has_base_a_head else small
    said_of(ckpt, written(tmp_path, base, quantised(small)), 0)
    other = {**state, "lm_head.weight": state["lm_head.weight"] + 1}
    text = said_of(ckpt, written(tmp_path, other, quantised(small)), 1)
    assert "only in" in text and "lm_head.weight" in text


def changed(state: State, name: str, row: torch.Tensor) -> State:
    return {**state, name: row}


def test_swapped_layers_are_named(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(5)
    state = model()
    one, two = (f"model.layers.{number}.self_attn.v_proj.weight" for number in (0, 1))
    other = {**state, one: state[two], two: state[one]}
    text = said_of(ckpt, written(tmp_path, state, quantised(other)), 1)
    assert f"It is {one} of the base." in text and f"It is {two} of the base." in text
    assert "but for 2 of" in text


def test_q_that_nobody_permuted_is_named(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(6)
    state = model()
    name = "model.layers.1.self_attn.q_proj.weight"
    data = quantised(state, unpermuted=name)
    text = said_of(ckpt, written(tmp_path, state, data), 1)
    assert "but for 1 of" in text and "in transformers' own order" in text


def test_one_exchanged_expert_is_named(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(7)
    state = model(experts=True)
    names = [f"model.layers.1.mlp.experts.{number}.up_proj.weight" for number in (1, 3)]
    other = changed(state, names[0], state[names[1]])
    text = said_of(ckpt, written(tmp_path, state, quantised(other, "qwen3moe")), 1)
    assert f"blk.1.ffn_up_exps.weight[1] is not {names[0]}" in text
    assert f"It is {names[1]} of the base." in text


def test_one_row_of_other_values_is_named(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(8)
    state = model()
    name = "model.layers.0.mlp.gate_proj.weight"
    row = state[name].clone()
    row[300] = torch.randn(256) * 0.05
    data = quantised(changed(state, name, row))
    text = said_of(ckpt, written(tmp_path, state, data), 1)
    assert "Of it 1 of 512 rows is another one: 300." in text


@pytest.mark.parametrize("factor", [0.5, 2, 4])
def test_one_stale_scale_is_named(ckpt: Run, tmp_path: Path, factor: float) -> None:
    """It is of one block of 256, and the norm of 65,536 hardly sees it."""
    torch.manual_seed(9)
    state = model()
    name = "model.layers.1.self_attn.q_proj.weight"
    row = permuted(state[name], HEADS)
    row[77] *= factor
    turned = state[name].clone()
    half = 256 // HEADS // 2
    turned[:] = row.reshape(HEADS, half, 2, 256).transpose(1, 2).reshape(256, 256)
    data = quantised(changed(state, name, turned))
    text = said_of(ckpt, written(tmp_path, state, data), 1)
    assert f"blk.1.attn_q.weight is not {name}" in text
    assert "Of it 1 of 256 rows has another scale:" in text


def test_another_model_is_said_once(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(10)
    state, other = model(), model()
    text = said_of(ckpt, written(tmp_path, state, quantised(other)), 1)
    assert "x.gguf is not" in text and "It is model" not in text


def test_a_bias_of_another_layer_is_named(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(11)
    state = model(biases=True)
    names = [f"model.layers.{number}.self_attn.q_proj.bias" for number in (0, 1)]
    data = quantised(changed(state, names[0], state[names[1]]), "qwen2")
    text = said_of(ckpt, written(tmp_path, state, data), 1)
    assert f"blk.0.attn_q.bias is not {names[0]}" in text
    assert f"It is {names[1]} of the base." in text


def test_a_tensor_of_zeros_is_not_the_base(ckpt: Run, tmp_path: Path) -> None:
    torch.manual_seed(12)
    state = model()
    name = "model.layers.0.self_attn.o_proj.weight"
    data = quantised(changed(state, name, torch.zeros(256, 256)))
    text = said_of(ckpt, written(tmp_path, state, data), 1)
    assert f"blk.0.attn_output.weight is not {name}" in text

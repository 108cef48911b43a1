"""`diff BASE X.gguf`: the names of llama.cpp and of transformers meet, and each tensor
is judged by the error that its type makes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import ggufs
import numpy as np
import pytest
import torch
from process import Run
from safetensors.torch import load_file, save_file

from ckpt import open as ckpt_open
from ckpt.model.errors import LossError

State = dict[str, torch.Tensor]
WIDTH, INNER, WORDS, HEADS, KEYS = 64, 96, 40, 4, 2
ROWS = WIDTH // HEADS * KEYS
BLOCKS = 3


def q8_0(values: np.ndarray) -> bytes:
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
    codes = np.rint(
        np.divide(
            blocks, scales.astype("f4"), where=scales > 0, out=np.zeros_like(blocks)
        )
    )
    return np.concatenate(
        [scales.view("u1"), codes.astype("i1").view("u1")], axis=1
    ).tobytes()


def q4_0(values: np.ndarray) -> bytes:
    blocks = values.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    scales = (largest / -8).astype("<f2")
    codes = (
        np.divide(
            blocks, scales.astype("f4"), where=scales != 0, out=np.zeros_like(blocks)
        )
        + 8.5
    )
    codes = np.clip(codes, 0, 15).astype("u1")
    return np.concatenate(
        [scales.view("u1"), codes[:, :16] | codes[:, 16:] << 4], axis=1
    ).tobytes()


PACKED = {"F32": (ggufs.F32, np.ndarray.tobytes), "Q8_0": (8, q8_0), "Q4_0": (2, q4_0)}


def decoder(
    *, norms: int = 2, biases: bool = False, heads_norm: bool = False, seed: int = 0
) -> State:
    """A model with the names of transformers' decoders."""
    torch.manual_seed(seed)
    state: State = {"model.embed_tokens.weight": torch.randn(WORDS, WIDTH)}
    for n in range(BLOCKS):
        block = f"model.layers.{n}."
        for part, rows in (("q", WIDTH), ("k", ROWS), ("v", ROWS), ("o", WIDTH)):
            state[f"{block}self_attn.{part}_proj.weight"] = (
                torch.randn(rows, WIDTH) * 0.05
            )
            if biases and part in "qkv":
                state[f"{block}self_attn.{part}_proj.bias"] = torch.randn(rows)
        if heads_norm:
            for part in "qk":
                state[f"{block}self_attn.{part}_norm.weight"] = torch.rand(
                    WIDTH // HEADS
                )
        state[f"{block}mlp.gate_proj.weight"] = torch.randn(INNER, WIDTH) * 0.05
        state[f"{block}mlp.up_proj.weight"] = torch.randn(INNER, WIDTH) * 0.05
        state[f"{block}mlp.down_proj.weight"] = torch.randn(WIDTH, INNER) * 0.05
        names = ["input_layernorm", "post_attention_layernorm"]
        if norms == 4:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in names:
            state[f"{block}{name}.weight"] = torch.rand(WIDTH)
    state["model.norm.weight"] = torch.rand(WIDTH)
    state["lm_head.weight"] = torch.randn(WORDS, WIDTH)
    return state


_DECODER = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("model.layers.", "blk."),
    ("lm_head", "output"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
)
_TWO = (("post_attention_layernorm", "ffn_norm"),)
_FOUR = (
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
)
_GPT2 = (
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("transformer.h.", "blk."),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
)
_BERT = (
    ("bert.embeddings.word_embeddings", "token_embd"),
    ("bert.embeddings.position_embeddings", "position_embd"),
    ("bert.embeddings.token_type_embeddings", "token_types"),
    ("bert.embeddings.LayerNorm", "token_embd_norm"),
    ("bert.encoder.layer.", "blk."),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
)


def gpt2() -> State:
    torch.manual_seed(1)
    state: State = {
        "transformer.wte.weight": torch.randn(WORDS, WIDTH),
        "transformer.wpe.weight": torch.randn(32, WIDTH),
    }
    for n in range(BLOCKS):
        for name, rows, columns in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, INNER),
            ("mlp.c_proj", INNER, WIDTH),
        ):
            state[f"transformer.h.{n}.{name}.weight"] = (
                torch.randn(rows, columns) * 0.05
            )
            state[f"transformer.h.{n}.{name}.bias"] = torch.randn(columns)
        for name in ("ln_1", "ln_2"):
            state[f"transformer.h.{n}.{name}.weight"] = torch.rand(WIDTH)
            state[f"transformer.h.{n}.{name}.bias"] = torch.rand(WIDTH)
    state["transformer.ln_f.weight"] = torch.rand(WIDTH)
    state["transformer.ln_f.bias"] = torch.rand(WIDTH)
    return state


def bert() -> State:
    torch.manual_seed(2)
    state: State = {
        "bert.embeddings.word_embeddings.weight": torch.randn(WORDS, WIDTH),
        "bert.embeddings.position_embeddings.weight": torch.randn(32, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": torch.randn(2, WIDTH),
        "bert.embeddings.LayerNorm.weight": torch.rand(WIDTH),
    }
    for n in range(BLOCKS):
        block = f"bert.encoder.layer.{n}."
        for name, rows, columns in (
            ("attention.self.query", WIDTH, WIDTH),
            ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", INNER, WIDTH),
            ("output.dense", WIDTH, INNER),
        ):
            state[f"{block}{name}.weight"] = torch.randn(rows, columns) * 0.05
            state[f"{block}{name}.bias"] = torch.randn(rows)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            state[f"{block}{name}.weight"] = torch.rand(WIDTH)
    return state


def phi3() -> State:
    state = decoder()
    for n in range(BLOCKS):
        block = f"model.layers.{n}."
        parts = [state.pop(f"{block}self_attn.{part}_proj.weight") for part in "qkv"]
        state[f"{block}self_attn.qkv_proj.weight"] = torch.cat(parts)
        parts = [state.pop(f"{block}mlp.{part}_proj.weight") for part in ("gate", "up")]
        state[f"{block}mlp.gate_up_proj.weight"] = torch.cat(parts)
    return state


EXPERTS = 4


def with_experts(
    state: State, form: str, parts: tuple[str, str, str], router: str, first: int = 0
) -> State:
    """The model with experts in the place of dense layers. `form` is the name of one,
    without the block.
    """
    for n in range(first, BLOCKS):
        block = f"model.layers.{n}."
        for part in ("gate", "up", "down"):
            del state[f"{block}mlp.{part}_proj.weight"]
        for expert in range(EXPERTS):
            for part, shape in zip(
                parts, ((32, WIDTH), (32, WIDTH), (WIDTH, 32)), strict=True
            ):
                state[f"{block}{form}.{expert}.{part}.weight"] = (
                    torch.randn(shape) * 0.05
                )
        state[f"{block}{router}.weight"] = torch.randn(EXPERTS, WIDTH)
    return state


_PARTS = ("gate_proj", "up_proj", "down_proj")


def mixtral() -> State:
    return with_experts(
        decoder(),
        "block_sparse_moe.experts",
        ("w1", "w3", "w2"),
        "block_sparse_moe.gate",
    )


def qwen2_moe() -> State:
    state = with_experts(decoder(biases=True), "mlp.experts", _PARTS, "mlp.gate")
    for n in range(BLOCKS):
        block = f"model.layers.{n}.mlp.shared_expert"
        for part, shape in zip(
            _PARTS, ((32, WIDTH), (32, WIDTH), (WIDTH, 32)), strict=True
        ):
            state[f"{block}.{part}.weight"] = torch.randn(shape) * 0.05
        state[f"{block}_gate.weight"] = torch.randn(1, WIDTH)
    return state


def qwen3_moe() -> State:
    return with_experts(decoder(heads_norm=True), "mlp.experts", _PARTS, "mlp.gate")


def deepseek(*, is_latent: bool = True) -> State:
    """Blocks of shared and other experts behind a dense one. kv_b has 16 rows of keys
    and 32 of values in each head.
    """
    state = with_experts(decoder(), "mlp.experts", _PARTS, "mlp.gate", first=1)
    for n in range(BLOCKS):
        block = f"model.layers.{n}."
        for part, shape in zip(
            _PARTS, ((32, WIDTH), (32, WIDTH), (WIDTH, 32)), strict=True
        ):
            if n:
                state[f"{block}mlp.shared_experts.{part}.weight"] = (
                    torch.randn(shape) * 0.05
                )
        if not is_latent:
            continue
        if n:
            state[f"{block}mlp.gate.e_score_correction_bias"] = torch.randn(EXPERTS)
        for part in "qkv":
            del state[f"{block}self_attn.{part}_proj.weight"]
        for part, rows, columns in (
            ("q_a_proj", 32, WIDTH),
            ("q_b_proj", WIDTH, 32),
            ("kv_a_proj_with_mqa", 40, WIDTH),
            ("kv_b_proj", HEADS * (32 + 16), 32),
        ):
            state[f"{block}self_attn.{part}.weight"] = torch.randn(rows, columns) * 0.05
        for part in ("q_a_layernorm", "kv_a_layernorm"):
            state[f"{block}self_attn.{part}.weight"] = torch.rand(32)
    return state


_STACKED = (
    ("block_sparse_moe.experts.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.w2", "ffn_down_exps"),
    ("block_sparse_moe.experts.w3", "ffn_up_exps"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    *(
        (f"mlp.shared_expert{many}.{part}_proj", f"ffn_{part}_shexp")
        for many in ("", "s")
        for part in ("gate", "up", "down")
    ),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("self_attn.k_b_proj", "attn_k_b"),
    ("self_attn.v_b_proj", "attn_v_b"),
)
_MIXTURE = _DECODER + _TWO + _STACKED


def stacked(state: State) -> State:
    """The model with the experts of a block in one tensor, as llama.cpp has them, and
    its vectors of one row.
    """
    made: State = {}
    for name, row in state.items():
        parts = name.split(".")
        if "experts" not in parts:
            made[name] = row[0] if name.endswith("shared_expert_gate.weight") else row
            continue
        place = parts.index("experts") + 1
        if parts[place] == "0":
            names = [
                ".".join([*parts[:place], str(expert), *parts[place + 1 :]])
                for expert in range(EXPERTS)
            ]
            made[".".join(parts[:place] + parts[place + 1 :])] = torch.stack(
                [state[each] for each in names]
            )
    return made


def with_latents(state: State) -> State:
    """The model of DeepSeek with kv_b in two parts, as newer converters write it."""
    made: State = {}
    for name, row in state.items():
        if "kv_b_proj" not in name:
            made[name] = row
            continue
        heads = row.view(HEADS, 48, 32)
        made[name.replace("kv_b", "k_b")] = heads[:, :16].transpose(1, 2).contiguous()
        made[name.replace("kv_b", "v_b")] = heads[:, 16:].contiguous()
    return made


MODELS: dict[str, tuple[Callable[[], State], tuple[tuple[str, str], ...]]] = {
    "llama": (decoder, _DECODER + _TWO),
    "qwen2": (lambda: decoder(biases=True), _DECODER + _TWO),
    "qwen3": (lambda: decoder(heads_norm=True), _DECODER + _TWO),
    "gemma": (decoder, _DECODER + _TWO),
    "gemma2": (lambda: decoder(norms=4), _DECODER + _FOUR),
    "gemma3": (lambda: decoder(norms=4, heads_norm=True), _DECODER + _FOUR),
    "phi3": (phi3, _DECODER + _TWO),
    "gpt2": (gpt2, _GPT2),
    "bert": (bert, _BERT),
    "qwen2moe": (qwen2_moe, _MIXTURE),
    "qwen3moe": (qwen3_moe, _MIXTURE),
    "deepseek": (lambda: deepseek(is_latent=False), _MIXTURE),
    "deepseek2": (deepseek, _MIXTURE),
    "llama of experts": (mixtral, _MIXTURE),
}


def permuted(row: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of q or k in llama.cpp's order: the two of a rotary pair beside each
    other.
    """
    half = row.shape[0] // heads // 2
    return (
        row.reshape(heads, 2, half, *row.shape[1:]).transpose(1, 2).reshape(row.shape)
    )


def convert(
    state: State,
    architecture: str,
    kind: str = "Q8_0",
    *,
    permute: bool = True,
    more: Sequence[ggufs.Tensor] = (),
) -> bytes:
    """What llama.cpp's converter and quantiser make of a model."""
    words = sorted(MODELS[architecture][1], key=lambda pair: -len(pair[0]))
    architecture = architecture.partition(" ")[0]
    is_rotary = permute and architecture in ("llama", "deepseek")
    tensors = []
    for name, row in stacked(state).items():
        row = row.float()
        if is_rotary and "q_proj" in name:
            row = permuted(row, HEADS)
        if is_rotary and "k_proj" in name:
            row = permuted(row, KEYS)
        if architecture == "gpt2" and ".c_" in name and name.endswith("weight"):
            row = row.T.contiguous()
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            row = row + 1
        for theirs, ours in words:
            if theirs in name:
                name = name.replace(theirs, ours)
        values = row.numpy()
        is_packed = row.dim() > 1 and row.shape[-1] % 32 == 0
        number, pack = PACKED[kind] if is_packed else (ggufs.F32, np.ndarray.tobytes)
        tensors.append(
            ggufs.Tensor(name, tuple(reversed(row.shape)), number, pack(values))
        )
    pairs = [
        ("general.architecture", "str", architecture),
        (f"{architecture}.attention.head_count", "u32", HEADS),
        (f"{architecture}.attention.head_count_kv", "u32", KEYS),
    ]
    return ggufs.gguf(pairs, [*tensors, *more])


def written(folder: Path, state: State, data: bytes) -> tuple[Path, Path]:
    base, quantised = folder / "base.safetensors", folder / "x.gguf"
    save_file(
        {name: row.to(torch.bfloat16).contiguous() for name, row in state.items()}, base
    )
    quantised.write_bytes(data)
    return base, quantised


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", MODELS)
def test_an_honest_quantisation_is_the_base(
    ckpt: Run, tmp_path: Path, architecture: str, kind: str
) -> None:
    state = {
        name: row.to(torch.bfloat16) for name, row in MODELS[architecture][0]().items()
    }
    base, quantised = written(tmp_path, state, convert(state, architecture, kind))
    for pair in ((base, quantised), (quantised, base)):
        done = ckpt("diff", *pair)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (
            f"is {base}: all {len(state)} tensors are within what their types make"
            in done.stdout.replace("\n  ", " ")
        )
        assert f"within {kind} of the base" in done.stdout


@pytest.mark.parametrize("architecture", MODELS)
def test_convert_takes_it_back_to_transformers(
    ckpt: Run, tmp_path: Path, architecture: str
) -> None:
    state = MODELS[architecture][0]()
    _, quantised = written(tmp_path, state, convert(state, architecture))
    out = tmp_path / "out.safetensors"
    done = ckpt(
        "convert",
        quantised,
        "--recipe",
        "transformers",
        "--dtype",
        "float32",
        "-o",
        out,
    )
    assert done.returncode == 0, done.stderr
    assert f"{architecture.partition(' ')[0]} → transformers" in done.stdout
    back = load_file(out)
    assert {name: row.shape for name, row in back.items()} == {
        name: row.shape for name, row in state.items()
    }
    for name, row in state.items():
        assert (back[name] - row).norm() <= 0.01 * row.norm(), name


def test_keys_and_values_of_deepseek_in_two_tensors_are_joined(
    ckpt: Run, tmp_path: Path
) -> None:
    state = deepseek()
    base, quantised = written(
        tmp_path, state, convert(with_latents(state), "deepseek2")
    )
    assert b"blk.1.attn_k_b.weight" in quantised.read_bytes()
    done = ckpt("diff", base, quantised)
    assert done.returncode == 0, done.stdout
    assert f"all {len(state)} tensors are within" in " ".join(done.stdout.split())
    out = tmp_path / "out.safetensors"
    done = ckpt(
        "convert",
        quantised,
        "--recipe",
        "transformers",
        "--dtype",
        "float32",
        "-o",
        out,
    )
    assert done.returncode == 0, done.stderr
    back = load_file(out)
    for name, row in state.items():
        assert (back[name] - row).norm() <= 0.01 * row.norm(), name
    other = {
        **state,
        "model.layers.1.self_attn.kv_b_proj.weight": torch.randn(HEADS * 48, 32),
    }
    base, quantised = written(
        tmp_path, state, convert(with_latents(other), "deepseek2")
    )
    done = ckpt("diff", base, quantised)
    assert done.returncode == 1
    assert "is not model.layers.1.self_attn.kv_b_proj.weight" in " ".join(
        done.stdout.split()
    )


def test_keys_and_values_are_judged_by_the_type_that_rounds_more(
    ckpt: Run, tmp_path: Path
) -> None:
    """The keys are float32, because their rows are shorter than a block."""
    state = deepseek()
    data = convert(with_latents(state), "deepseek2", "Q4_0")
    done = ckpt("diff", *written(tmp_path, state, data))
    assert done.returncode == 0, done.stdout


def test_experts_in_tensors_of_their_own_are_read(ckpt: Run, tmp_path: Path) -> None:
    """Files of Mixtral from the winter of 2023."""
    state = mixtral()
    data = convert(decoder(), "llama", more=[])
    dense = {name: row for name, row in state.items() if "experts" not in name}
    tensors = []
    for name, row in state.items():
        if "experts" in name:
            block, expert, part = (
                name.split(".")[2],
                name.split(".")[5],
                name.split(".")[6],
            )
            short = {"w1": "gate", "w2": "down", "w3": "up"}[part]
            own = f"blk.{block}.ffn_{short}.{expert}.weight"
            tensors.append(
                ggufs.Tensor(own, tuple(reversed(row.shape)), 8, q8_0(row.numpy()))
            )
    data = convert(dense, "llama of experts", more=tensors)
    base, quantised = written(tmp_path, state, data)
    done = ckpt("diff", base, quantised)
    assert done.returncode == 0, done.stdout


def test_one_weight_in_two_ways_is_refused(ckpt: Run, tmp_path: Path) -> None:
    """Neither of two tensors of one name is lost without a word."""
    state = mixtral()
    row = torch.ones(32, WIDTH)
    more = [
        ggufs.Tensor(
            "blk.0.ffn_up.2.weight", (WIDTH, 32), ggufs.F32, row.numpy().tobytes()
        )
    ]
    _, quantised = written(
        tmp_path, state, convert(state, "llama of experts", more=more)
    )
    out = tmp_path / "out.safetensors"
    done = ckpt(
        "convert",
        quantised,
        "--recipe",
        "transformers",
        "--dtype",
        "float32",
        "-o",
        out,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no table has a name in transformers for blk.0.ffn_up" in done.stderr


def test_swapped_experts_are_named(ckpt: Run, tmp_path: Path) -> None:
    state = qwen3_moe()
    one, two = (
        f"model.layers.1.mlp.experts.{expert}.up_proj.weight" for expert in (0, 3)
    )
    other = {**state, one: state[two], two: state[one]}
    base, quantised = written(tmp_path, state, convert(other, "qwen3moe"))
    done = ckpt("diff", base, quantised)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert f"blk.1.ffn_up_exps.weight[0] is not {one}" in text
    assert f"It is {two} of the base." in text


@pytest.mark.parametrize("shape", [(70_000, 1, 32), (4, 0, 32), (4, 32)])
def test_a_strange_stack_is_no_model_of_transformers(
    ckpt: Run, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    row = torch.zeros(shape)
    odd = ggufs.Tensor(
        "blk.0.ffn_up_exps.weight",
        tuple(reversed(shape)),
        ggufs.F32,
        row.numpy().tobytes(),
    )
    path = tmp_path / "x.gguf"
    path.write_bytes(convert(decoder(), "qwen3moe", more=[odd]))
    out = tmp_path / "out.safetensors"
    done = ckpt(
        "convert", path, "--recipe", "transformers", "--dtype", "float32", "-o", out
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert (
        "no table has a name in transformers for blk.0.ffn_up_exps.weight"
        in done.stderr
    )


@pytest.mark.parametrize("options", [[], ["--by-shape"]])
def test_warmstart_takes_no_rows_in_the_order_of_llama_cpp(
    ckpt: Run, tmp_path: Path, options: list[str]
) -> None:
    """Names that meet by shape would load q and k permuted, without a word."""
    state = decoder()
    base, quantised = written(tmp_path, state, convert(state, "llama"))
    out = tmp_path / "start.safetensors"
    asked = ["warmstart", quantised, "--into", base, *options, "-o", out]
    done = ckpt(*asked)
    assert done.returncode == 1
    assert "the names and the order of rows of llama.cpp" in done.stderr
    assert "--recipe transformers" in done.stderr
    assert not out.exists()
    done = ckpt(*asked, "--recipe", "transformers")
    assert done.returncode == 0, done.stderr
    assert ckpt("diff", base, quantised).returncode == 0
    back = load_file(out)
    for name, row in state.items():
        assert (back[name].float() - row).norm() <= 0.01 * row.norm(), name


def test_load_into_names_the_way_from_gguf_to_transformers(tmp_path: Path) -> None:
    state = decoder()
    _, quantised = written(tmp_path, state, convert(state, "llama", "F32"))
    model = torch.nn.Module()
    for name, row in state.items():
        *steps, leaf = name.split(".")
        at = model
        for step in steps:
            if step not in dict(at.named_children()):
                at.add_module(step, torch.nn.Module())
            at = at.get_submodule(step)
        at.register_parameter(leaf, torch.nn.Parameter(row.clone()))
    with pytest.raises(LossError) as caught:
        ckpt_open(quantised).load_into(model, by_shape=True)
    assert "--recipe transformers --dtype" in str(caught.value.hint)


def test_convert_leaves_out_what_the_converter_made(ckpt: Run, tmp_path: Path) -> None:
    data = convert(
        decoder(),
        "llama",
        more=[ggufs.Tensor("rope_freqs.weight", (8,), ggufs.F32, bytes(32))],
    )
    path, out = tmp_path / "x.gguf", tmp_path / "out.safetensors"
    path.write_bytes(data)
    done = ckpt(
        "convert", path, "--recipe", "transformers", "--dtype", "bfloat16", "-o", out
    )
    assert done.returncode == 0
    assert "left out: rope_freqs.weight" in done.stdout
    assert len(load_file(out)) == len(decoder())


def test_convert_refuses_a_tensor_that_no_table_knows(
    ckpt: Run, tmp_path: Path
) -> None:
    data = convert(
        decoder(),
        "llama",
        more=[ggufs.Tensor("blk.0.ssm_a", (8,), ggufs.F32, bytes(32))],
    )
    path, out = tmp_path / "x.gguf", tmp_path / "out.safetensors"
    path.write_bytes(data)
    done = ckpt(
        "convert", path, "--recipe", "transformers", "--dtype", "bfloat16", "-o", out
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no table has a name in transformers for blk.0.ssm_a" in done.stderr
    assert not out.exists()


def test_json_says_each_tensor(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    base, quantised = written(tmp_path, state, convert(state, "llama"))
    account = json.loads(ckpt("diff", "--json", base, quantised).stdout)["gguf"]
    assert (account["architecture"], account["within"], account["other_model"]) == (
        "llama",
        True,
        False,
    )
    row = next(
        row for row in account["tensors"] if row["stored"] == "blk.1.attn_k.weight"
    )
    assert (row["name"], row["type"]) == (
        "model.layers.1.self_attn.k_proj.weight",
        "Q8_0",
    )
    assert 0.002 < row["relative_error"] < 0.01


def test_q_and_k_that_nobody_permuted_are_named(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    base, quantised = written(tmp_path, state, convert(state, "llama", permute=False))
    done = ckpt("diff", base, quantised)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert f"but for {2 * BLOCKS} of {len(state)} tensors" in text
    assert text.count("in transformers' own order") == 2 * BLOCKS
    assert "blk.0.attn_v.weight is not" not in text


def test_swapped_layers_are_named(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    other = dict(state)
    one, two = (f"model.layers.{n}.mlp.up_proj.weight" for n in (0, 2))
    other[one], other[two] = state[two], state[one]
    base, quantised = written(tmp_path, state, convert(other, "llama", "Q4_0"))
    done = ckpt("diff", base, quantised)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert f"blk.0.ffn_up.weight is not {one}" in text
    assert f"It is {two} of the base." in text
    assert f"but for 2 of {len(state)} tensors" in text


def test_another_model_is_said_once(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    base, quantised = written(tmp_path, state, convert(decoder(seed=5), "llama"))
    done = ckpt("diff", base, quantised)
    assert done.returncode == 1
    assert f"is not {base}" in done.stdout.replace("\n  ", " ")
    assert "It is model" not in done.stdout


def test_a_stale_scale_of_a_tensor_is_named(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    other = dict(state)
    other["model.layers.1.mlp.down_proj.weight"] = (
        state["model.layers.1.mlp.down_proj.weight"] * 1.1
    )
    base, quantised = written(tmp_path, state, convert(other, "llama"))
    done = ckpt("diff", base, quantised)
    assert done.returncode == 1
    assert "blk.1.ffn_down.weight is not" in done.stdout


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("what", ["row", "column"])
def test_a_line_that_no_norm_sees_is_named(
    ckpt: Run, tmp_path: Path, kind: str, what: str
) -> None:
    """A row of thousands with another sign is within the error of Q8_0."""
    state = decoder()
    name = "model.embed_tokens.weight"
    state[name] = torch.randn(4096, WIDTH)
    other = {**state, name: state[name].clone()}
    if what == "row":
        other[name][1234] *= -1
        said = "Of it 1 of 4,096 rows is another one: 1234."
    else:
        other[name][:, 21] = 0
        said = "Of it 1 of 64 columns is another one: 21."
    base, quantised = written(tmp_path, state, convert(other, "llama", kind))
    done = ckpt("diff", base, quantised)
    text = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert f"token_embd.weight is not {name}" in text
    assert said in text
    assert f"but for 1 of {len(state)} tensors" in text


@pytest.mark.parametrize("is_base", [True, False])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_on_one_side_are_no_error_of_rounding(
    ckpt: Run, tmp_path: Path, number: float, *, is_base: bool
) -> None:
    state = decoder()
    odd = dict(state)
    odd["model.norm.weight"] = state["model.norm.weight"].clone()
    odd["model.norm.weight"][3] = number
    base, quantised = (odd, state) if is_base else (state, odd)
    pair = written(tmp_path, base, convert(quantised, "llama"))
    for paths in (pair, pair[::-1]):
        done = ckpt("diff", *paths)
        assert done.returncode == 1
        said = (
            "0 elements of it and 1 of the base"
            if is_base
            else "1 element of it and 0 of the base"
        )
        assert f"{said} are NaN or infinite" in " ".join(done.stdout.split())


def test_another_shape_is_said(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    other = dict(state)
    other["model.norm.weight"] = torch.ones(WIDTH // 2)
    base, quantised = written(tmp_path, state, convert(other, "llama"))
    done = ckpt("diff", base, quantised)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "is not model.norm.weight. Its shape is another one." in said
    assert "zero" not in said


def test_tensors_of_one_side_are_listed(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    lacking = {name: row for name, row in state.items() if "layers.2" not in name}
    base, quantised = written(tmp_path, state, convert(lacking, "llama"))
    done = ckpt("diff", base, quantised)
    assert done.returncode == 1
    assert "only in" in done.stdout
    account = json.loads(ckpt("diff", "--json", base, quantised).stdout)["gguf"]
    assert len(account["lacking"]) == len(state) - len(lacking)


def test_a_head_that_is_the_embedding_is_not_missed(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    tied = {name: row for name, row in state.items() if name != "lm_head.weight"}
    base, quantised = written(tmp_path, state, convert(tied, "llama"))
    done = ckpt("diff", base, quantised)
    assert done.returncode == 0, done.stdout


def test_an_architecture_without_a_table_keeps_its_names(
    ckpt: Run, tmp_path: Path
) -> None:
    state = decoder()
    data = convert(state, "llama").replace(
        b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0other", 1
    )
    base, quantised = written(tmp_path, state, data)
    done = ckpt("diff", base, quantised)
    assert done.returncode == 1
    assert f"{len(state)} added" in done.stdout


def test_no_finding_of_a_training_is_made(ckpt: Run, tmp_path: Path) -> None:
    state = {name: row.to(torch.bfloat16) for name, row in decoder().items()}
    base, quantised = written(tmp_path, state, convert(state, "llama"))
    assert json.loads(ckpt("diff", "--json", base, quantised).stdout)["findings"] == []
    assert ckpt("diff", base, quantised, "--fail-on", "frozen").returncode == 0


def test_bars_and_tolerances_are_those_of_any_diff(ckpt: Run, tmp_path: Path) -> None:
    state = decoder()
    base, quantised = written(tmp_path, state, convert(state, "llama"))
    bars = ckpt("diff", base, quantised, "--stat")
    assert "within what their types make" not in bars.stdout
    assert "mlp" in bars.stdout
    assert ckpt("diff", base, quantised, "--atol", "1e-9").returncode == 1
    assert (
        ckpt("diff", base, quantised, "--atol", "1", "--ignore-dtype").returncode == 0
    )


def test_two_ggufs_are_compared_under_their_own_names(
    ckpt: Run, tmp_path: Path
) -> None:
    state = decoder()
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.write_bytes(convert(state, "llama"))
    two.write_bytes(convert(state, "llama", "Q4_0"))
    done = ckpt("diff", one, two)
    assert done.returncode == 1
    assert "Q8_0 → Q4_0" in done.stdout


def test_rows_of_heads_are_read_in_any_span(tmp_path: Path) -> None:
    from ckpt.bytes.source import Memory
    from ckpt.ext.gguf.changes import HeadRows
    from ckpt.model.places import Range

    data = bytes(range(96))
    place = HeadRows(Range(Memory(data), 0, 96), 4, 32)
    expected = b"".join(
        data[32 * head + 8 * pair + 4 * half : 32 * head + 8 * pair + 4 * half + 4]
        for head in range(3)
        for half in range(2)
        for pair in range(4)
    )
    assert b"".join(place.read_blocks()) == expected
    for first, last in ((0, 1), (5, 40), (31, 33), (64, 96)):
        assert b"".join(place.read_blocks(first, last - first)) == expected[first:last]
    assert struct.unpack("<I", b"".join(place.read_blocks(16, 4))) == struct.unpack(
        "<I", data[4:8]
    )


def test_settings_of_two_files_are_compared(ckpt: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    data = ggufs.small()
    one.write_bytes(data)
    two.write_bytes(data.replace(b"mit", b"gpl"))
    assert ckpt("diff", one, one).returncode == 0

    done = ckpt("diff", one, two)

    assert done.returncode == 1
    assert (
        "general.license" in done.stdout
        and "'mit'" in done.stdout
        and "'gpl'" in done.stdout
    )


def test_merge_prints_no_recipe_that_has_no_table(ckpt: Run, tmp_path: Path) -> None:
    """The command to paste stopped at an architecture that no table knows."""
    said: dict[str, str] = {}
    lora = tmp_path / "lora.safetensors"
    halves = {
        "q.lora_A.weight": torch.ones(2, 4),
        "q.lora_B.weight": torch.ones(4, 2),
    }
    save_file(halves, lora)
    tensor = ggufs.Tensor("blk.0.attn_qkv.weight", (2, 2), ggufs.F32, bytes(16))
    pairs = [("general.architecture", "str", "starcoder")]
    files = {
        "llama": convert(decoder(), "llama", "F32"),
        "starcoder": ggufs.gguf(pairs, [tensor]),
    }
    for architecture, data in files.items():
        path = tmp_path / f"{architecture}.gguf"
        path.write_bytes(data)
        done = ckpt("merge", path, lora, "-o", tmp_path / "out.safetensors")
        assert done.returncode == 2
        said[architecture] = done.stderr
    assert f"ckpt convert {tmp_path}/llama.gguf --recipe transformers" in said["llama"]
    assert "(merge into the model that it was made of)" in said["starcoder"]

"""Pairs of checkpoints with the same weights in two layouts, as the documented layouts
of frameworks have them; numpy only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Array = np.ndarray[Any, Any]
State = dict[str, Array]
Rng = np.random.Generator

LAYERS, HIDDEN, HEADS, GROUPS, WIDTH, INNER, WORDS = 4, 32, 4, 2, 8, 48, 50


def randoms(rng: Rng) -> Callable[..., Array]:
    """A maker of random float32 arrays of a shape."""
    return lambda *shape: rng.standard_normal(shape, dtype=np.float32)


def saved(state: State, path: Path, dtype: torch.dtype | None = None) -> str:
    """The path of a file with these tensors, by its ending."""
    tensors = {
        name: torch.from_numpy(np.array(array, order="C"))
        for name, array in state.items()
    }
    if dtype is not None:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return str(path)


def llama(rng: Rng, norms: bool = True) -> State:
    """A Llama as transformers names and lays it out. Without `norms`, they are ones, as
    before a training.
    """
    made = randoms(rng)
    norm = made if norms else (lambda size: np.ones(size, np.float32))
    state = {
        "model.embed_tokens.weight": made(WORDS, HIDDEN),
        "model.norm.weight": made(HIDDEN),
        "lm_head.weight": made(WORDS, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        state |= {
            f"{at}.self_attn.q_proj.weight": made(HEADS * WIDTH, HIDDEN),
            f"{at}.self_attn.k_proj.weight": made(GROUPS * WIDTH, HIDDEN),
            f"{at}.self_attn.v_proj.weight": made(GROUPS * WIDTH, HIDDEN),
            f"{at}.self_attn.o_proj.weight": made(HIDDEN, HEADS * WIDTH),
            f"{at}.mlp.gate_proj.weight": made(INNER, HIDDEN),
            f"{at}.mlp.up_proj.weight": made(INNER, HIDDEN),
            f"{at}.mlp.down_proj.weight": made(HIDDEN, INNER),
            f"{at}.input_layernorm.weight": norm(HIDDEN),
            f"{at}.post_attention_layernorm.weight": norm(HIDDEN),
        }
    return state


def paired_rows(weight: Array, heads: int) -> Array:
    """Rows in halves of each head as pairs: what the converters of Llama undo."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.swapaxes(halves, 1, 2).reshape(weight.shape)


def meta(state: State) -> State:
    """The same Llama as its authors save it."""
    out = {
        "tok_embeddings.weight": state["model.embed_tokens.weight"],
        "norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for layer in range(LAYERS):
        at, to = f"model.layers.{layer}", f"layers.{layer}"
        out |= {
            f"{to}.attention.wq.weight": paired_rows(
                state[f"{at}.self_attn.q_proj.weight"], HEADS
            ),
            f"{to}.attention.wk.weight": paired_rows(
                state[f"{at}.self_attn.k_proj.weight"], GROUPS
            ),
            f"{to}.attention.wv.weight": state[f"{at}.self_attn.v_proj.weight"],
            f"{to}.attention.wo.weight": state[f"{at}.self_attn.o_proj.weight"],
            f"{to}.feed_forward.w1.weight": state[f"{at}.mlp.gate_proj.weight"],
            f"{to}.feed_forward.w3.weight": state[f"{at}.mlp.up_proj.weight"],
            f"{to}.feed_forward.w2.weight": state[f"{at}.mlp.down_proj.weight"],
            f"{to}.attention_norm.weight": state[f"{at}.input_layernorm.weight"],
            f"{to}.ffn_norm.weight": state[f"{at}.post_attention_layernorm.weight"],
        }
    return out


def grouped(state: State, at: str) -> Array:
    """Query, key and value of a layer as Megatron interleaves them: per group
    of heads.
    """
    parts = [
        state[f"{at}.self_attn.{name}_proj.weight"].reshape(GROUPS, -1, HIDDEN)
        for name in ("q", "k", "v")
    ]
    return np.concatenate(parts, axis=1)


def padded(weight: Array, rows: int) -> Array:
    """A weight with rows of zeros below."""
    return np.concatenate(
        [weight, np.zeros((rows - len(weight), weight.shape[1]), weight.dtype)]
    )


def megatron(state: State, tensor: int = 2, pipeline: int = 2) -> dict[str, State]:
    """The same Llama in the files of ranks of Megatron-core, by the names of their
    folders.
    """
    per_stage = LAYERS // pipeline
    ranks: dict[str, State] = {}
    for rank in range(tensor):
        for stage in range(pipeline):
            own: State = {}
            if stage == 0:
                own["embedding.word_embeddings.weight"] = np.split(
                    padded(state["model.embed_tokens.weight"], 64), tensor
                )[rank]
            for number in range(per_stage):
                at, to = (
                    f"model.layers.{stage * per_stage + number}",
                    f"decoder.layers.{number}",
                )
                mlp = [
                    np.split(state[f"{at}.mlp.{name}_proj.weight"], tensor)[rank]
                    for name in ("gate", "up")
                ]
                own |= {
                    f"{to}.self_attention.linear_qkv.weight": np.split(
                        grouped(state, at), tensor
                    )[rank].reshape(-1, HIDDEN),
                    f"{to}.self_attention.linear_proj.weight": np.split(
                        state[f"{at}.self_attn.o_proj.weight"], tensor, 1
                    )[rank],
                    f"{to}.mlp.linear_fc1.weight": np.concatenate(mlp),
                    f"{to}.mlp.linear_fc2.weight": np.split(
                        state[f"{at}.mlp.down_proj.weight"], tensor, 1
                    )[rank],
                    f"{to}.self_attention.linear_qkv.layer_norm_weight": state[
                        f"{at}.input_layernorm.weight"
                    ],
                    f"{to}.mlp.linear_fc1.layer_norm_weight": state[
                        f"{at}.post_attention_layernorm.weight"
                    ],
                }
            if stage == pipeline - 1:
                own["decoder.final_layernorm.weight"] = state["model.norm.weight"]
                own["output_layer.weight"] = np.split(
                    padded(state["lm_head.weight"], 64), tensor
                )[rank]
            ranks[f"mp_rank_{rank:02}_{stage:03}"] = own
    return ranks


def saved_ranks(ranks: dict[str, State], folder: Path) -> str:
    """The path of a folder with the files of ranks."""
    for name, state in ranks.items():
        tensors = {
            key: torch.from_numpy(np.array(array, order="C"))
            for key, array in state.items()
        }
        (folder / name).mkdir(parents=True)
        torch.save(
            {"model": tensors, "iteration": 0}, folder / name / "model_optim_rng.pt"
        )
    return str(folder)


def meta_ranks(state: State, ranks: int = 2) -> dict[str, State]:
    """The same Llama in the files of ranks that Meta publishes, by their names."""
    columns = ("tok_embeddings", "wo", "w2")
    out: dict[str, State] = {}
    for rank in range(ranks):
        own: State = {}
        for name, array in meta(state).items():
            along = int(name.split(".")[-2] in columns)
            is_cut = array.ndim > 1
            own[name] = np.split(array, ranks, along)[rank] if is_cut else array
        out[f"consolidated.{rank:02}.pth"] = own
    return out


def tensors_of(state: State) -> dict[str, torch.Tensor]:
    """The arrays as tensors with memory of their own."""
    return {
        name: torch.from_numpy(np.array(array, order="C"))
        for name, array in state.items()
    }


def rank_files(kind: str, state: State) -> dict[str, Any]:
    """The objects in the files of ranks of one framework, by the paths of the files."""
    if kind == "megatron":
        values = {"iteration": 0, "checkpoint_version": 3.0}
        return {
            f"{name}/model_optim_rng.pt": {"model": tensors_of(own), **values}
            for name, own in megatron(state).items()
        }
    if kind == "deepspeed":
        values = {"ds_version": "0.19.8", "mp_world_size": 2, "optimizer": None}
        return {
            f"{name[:10]}_model_states.pt": {"module": tensors_of(own), **values}
            for name, own in megatron(state, pipeline=1).items()
        }
    if kind == "nested":  # as Megatron before its core
        return {
            f"mp_rank_0{rank}/model_optim_rng.pt": {
                "model": {
                    "language_model": {
                        "embedding": {"word_embeddings": {"weight": own.pop(words)}},
                        "encoder": own,
                    }
                },
                "checkpoint_version": 3.0,
            }
            for rank in range(2)
            for words in ["embedding.word_embeddings.weight"]
            for own in [tensors_of(megatron(state, pipeline=1)[f"mp_rank_0{rank}_000"])]
        }
    if kind == "pattern":
        return {
            f"part.{number}.pt": {"model": tensors_of(own)}
            for number, own in enumerate(megatron(state).values())
        }
    return {name: tensors_of(own) for name, own in meta_ranks(state).items()}


RANKED = ("megatron", "deepspeed", "nested", "meta", "pattern")
"""The frameworks of `rank_files`; `pattern` is none of them."""


def saved_files(files: dict[str, Any], folder: Path) -> str:
    """The path of a folder with objects in files."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, folder / name)
    return str(folder)


def holds(path: str | None, state: State) -> bool:
    """Tell whether a file has exactly these tensors, byte for byte."""
    assert path is not None
    found = load_file(path) if path.endswith(".safetensors") else torch.load(path)
    same = {
        name: found[name].shape == array.shape
        and bool((found[name].numpy() == array).all())
        for name, array in state.items()
        if name in found
    }
    return found.keys() == state.keys() and all(same.values())


# --- one change of layout each --------------------------------------------------------


def _experts(rng: Rng) -> State:
    made = randoms(rng)
    return {
        f"layers.{layer}.experts.{expert}.{name}.weight": made(*shape)
        for layer in range(2)
        for expert in range(4)
        for name, shape in (("gate", (24, 32)), ("up", (24, 32)), ("down", (32, 24)))
    }


def _stacked(state: State, turned: bool, interleaved: bool = False) -> State:
    out: State = {}
    for layer in range(2):
        experts = [
            [
                state[f"layers.{layer}.experts.{expert}.{name}.weight"]
                for expert in range(4)
            ]
            for name in ("gate", "up", "down")
        ]
        gates, ups, downs = map(np.stack, experts)
        both = (
            np.stack([gates, ups], 2).reshape(4, 48, 32)
            if interleaved
            else np.concatenate([gates, ups], 1)
        )
        out[f"h.{layer}.moe.gate_up"] = both.swapaxes(1, 2) if turned else both
        out[f"h.{layer}.moe.down"] = downs.swapaxes(1, 2) if turned else downs
    return out


def _attention(rng: Rng, bias: bool = True) -> State:
    made = randoms(rng)
    state: State = {}
    for layer in range(3):
        for name in ("q", "k", "v"):
            state[f"h.{layer}.{name}.weight"] = made(32, 32)
            if bias:
                state[f"h.{layer}.{name}.bias"] = made(32)
    return state


def _fused(state: State, heads: int | None = None, turned: bool = False) -> State:
    out: State = {}
    for layer in range(3):
        for leaf in sorted({name.rpartition(".")[2] for name in state}):
            parts = [state[f"h.{layer}.{name}.{leaf}"] for name in ("q", "k", "v")]
            if heads is not None:
                parts = [part.reshape(heads, -1, *part.shape[1:]) for part in parts]
                joined = np.stack(parts, 1).reshape(-1, *parts[0].shape[2:])
            else:
                joined = np.concatenate(parts)
            out[f"blocks.{layer}.qkv.{leaf}"] = (
                joined.T if turned and joined.ndim == 2 else joined
            )
    return out


def _matrices(rng: Rng, *shape: int) -> State:
    made = randoms(rng)
    return {f"layers.{layer}.fc.weight": made(*shape) for layer in range(3)}


def _each(state: State, change: Callable[[Array], Array]) -> State:
    return {
        name.replace("layers", "blocks"): change(array) for name, array in state.items()
    }


def _scaled(rng: Rng) -> State:
    made = randoms(rng)
    shapes = (("q", (32, 24)), ("k", (32, 24)), ("v", (24, 24)), ("norm", (64,)))
    return {
        f"layers.{layer}.{name}.weight": made(*shape)
        for layer in range(3)
        for name, shape in shapes
    }


def _folded_scales(state: State) -> State:
    changes: dict[str, Callable[[Array], Array]] = {
        "q": lambda array: array * np.float32(8**-0.5),
        "k": lambda array: array * np.float32(0.25),
        "v": lambda array: array / np.float32(24**0.5),
        "norm": lambda array: array + np.float32(1),
    }
    return {
        name.replace("layers", "h"): changes[name.split(".")[2]](array)
        for name, array in state.items()
    }


def _with_biases(rng: Rng) -> State:
    state = _experts(rng)
    biases = {
        name.replace("weight", "bias"): randoms(rng)(len(array))
        for name, array in state.items()
    }
    return state | biases


def _stacked_biases(state: State) -> State:
    out = _stacked(state, turned=True, interleaved=True)
    for layer in range(2):
        gates, ups, downs = (
            np.stack(
                [
                    state[f"layers.{layer}.experts.{expert}.{name}.bias"]
                    for expert in range(4)
                ]
            )
            for name in ("gate", "up", "down")
        )
        out[f"h.{layer}.moe.gate_up_bias"] = np.stack([gates, ups], 2).reshape(4, 48)
        out[f"h.{layer}.moe.down_bias"] = downs
    return out


def _by_heads(state: State) -> State:
    """As Flax keeps attention: kernels from the input to heads, biases by heads."""
    out: State = {}
    for name, array in state.items():
        parts = name.replace(".", "/").replace("weight", "kernel")
        out[parts] = (
            array.T.reshape(32, 4, 8) if array.ndim == 2 else array.reshape(4, 8)
        )
    return out


def _split_by_heads(state: State) -> State:
    return _by_heads(_unfused(state))


def _unfused(state: State) -> State:
    return {
        name.replace("qkv", part): piece
        for name, array in state.items()
        for part, piece in zip("qkv", np.split(array, 3), strict=True)
    }


def _heads_repeated(state: State) -> State:
    """As attention without groups keeps key and value: each head as often as there are
    queries for it.
    """
    each = HEADS // GROUPS
    return _each(
        state, lambda a: np.repeat(a.reshape(GROUPS, -1, a.shape[1]), each, axis=0)
    )


def _parameters(rng: Rng) -> State:
    """Tensors of several dimensions, some too small and some too equal to say much."""
    made = randoms(rng)
    state: State = {}
    for layer in range(3):
        state |= {
            f"layers.{layer}.a_weight": made(33, 17),
            f"layers.{layer}.b_bias": made(33),
            f"layers.{layer}.c_few": made(7),
            f"layers.{layer}.d_norm": np.ones(19, np.float32),
            f"layers.{layer}.e_conv": made(16, 4, 3),
        }
        state[f"layers.{layer}.e_conv"][0, 0, 0] = 0  # as the padding before it
    return state


def _flat_buffers(state: State) -> State:
    """As ZeRO keeps parameters: one behind the other, padded, and cut over two ranks in
    the middle of a tensor.
    """
    flat = np.concatenate([array.ravel() for array in state.values()])
    flat = np.pad(flat, (0, -len(flat) % 16))
    first, last = np.split(flat, 2)
    return {"rank.0.flat": first, "rank.1.flat": last}


def _aligned_buffer(state: State) -> State:
    """As FSDP keeps parameters: each begins at a multiple of 16 elements."""
    rows = [array.ravel() for array in state.values()]
    padded_rows = [np.pad(row, (0, -len(row) % 16)) for row in rows]
    return {"model._flat_param": np.concatenate(padded_rows)}


def _scanned(state: State, factor: float = 1.0) -> State:
    """As JAX scans over layers: kernels of all layers in one tensor, the layers on its
    second axis, heads apart; the queries times a factor.
    """

    def stack_kernels(name: str, heads: int) -> Array:
        rows = [
            state[f"model.layers.{layer}.self_attn.{name}.weight"].T.reshape(
                HIDDEN, heads, -1
            )
            for layer in range(LAYERS)
        ]
        return np.stack(rows, axis=1)

    return {
        "layers.query": stack_kernels("q_proj", HEADS) * np.float32(factor),
        "layers.key": stack_kernels("k_proj", GROUPS),
        "layers.value": stack_kernels("v_proj", GROUPS),
    }


def _attention_of_llama(rng: Rng) -> State:
    """The queries, keys and values of a Llama alone."""
    return {
        name: array
        for name, array in llama(rng).items()
        if any(word in name for word in ("q_proj", "k_proj", "v_proj"))
    }


def _fused_and_scaled(state: State, factor: float = 0.125) -> State:
    """Query, key and value in one tensor, the queries and their biases times a
    factor.
    """
    scaled = {
        name: array * np.float32(factor if ".q." in name else 1)
        for name, array in state.items()
    }
    return _fused(scaled)


def _gpt2_before_a_training(rng: Rng) -> State:
    """A GPT-2 as transformers names it, all of whose norms are ones and whose biases
    are zeros.
    """
    made = randoms(rng)
    state = {"transformer.wte.weight": made(WORDS, HIDDEN)}
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}"
        for name, rows in (
            ("attn.c_attn", 3 * HIDDEN),
            ("attn.c_proj", HIDDEN),
            ("mlp.c_fc", 4 * HIDDEN),
        ):
            state[f"{at}.{name}.weight"] = made(HIDDEN, rows)
            state[f"{at}.{name}.bias"] = np.zeros(rows, np.float32)
        for norm in ("ln_1", "ln_2"):
            state[f"{at}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
            state[f"{at}.{norm}.bias"] = np.zeros(HIDDEN, np.float32)
    state["transformer.ln_f.weight"] = np.ones(HIDDEN, np.float32)
    state["transformer.ln_f.bias"] = np.zeros(HIDDEN, np.float32)
    return state


_NAMES_OF_MEGATRON = (
    ("transformer.wte.", "embedding.word_embeddings."),
    ("transformer.h.", "decoder.layers."),
    ("transformer.ln_f.", "decoder.final_layernorm."),
    ("attn.c_attn.", "self_attention.linear_qkv."),
    ("attn.c_proj.", "self_attention.linear_proj."),
    ("mlp.c_fc.", "mlp.linear_fc1."),
    ("ln_1.", "self_attention.linear_qkv.layer_norm_"),
    ("ln_2.", "mlp.linear_fc1.layer_norm_"),
)


def _gpt2_as_megatron(state: State) -> State:
    """The same GPT-2 as Megatron-core lays it out, each norm beside the layer that
    comes after it.
    """
    made: State = {}
    for name, array in state.items():
        for old, new in _NAMES_OF_MEGATRON:
            name = name.replace(old, new)
        is_kernel = name.endswith("weight") and ".linear_" in name and array.ndim == 2
        made[name] = np.ascontiguousarray(array.T) if is_kernel else array
    return made


Make = Callable[[Rng], State]
Change = Callable[[State], State]

_SHUFFLE = np.random.default_rng(7).permutation(32)

SCALED: tuple[Make, Change] = (_scaled, _folded_scales)
SCALED_AND_TURNED: dict[str, tuple[Make, Change]] = {
    "scanned": (
        _attention_of_llama,
        lambda state: _scanned(state, factor=WIDTH**-0.5),
    ),
    "fused": (
        _attention,
        lambda state: _fused_and_scaled(state, factor=WIDTH**-0.5),
    ),
    "norms": (
        lambda rng: {f"norm.{n}.weight": randoms(rng)(HIDDEN) for n in range(4)},
        lambda state: {"norms": np.stack([*state.values()], axis=1) + np.float32(1)},
    ),
}
"""Layouts with a number that is rounded away."""
LAYOUTS: dict[str, tuple[Make, Change]] = {
    "renamed": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: _each(state, np.copy),
    ),
    "transposed": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: _each(state, np.transpose),
    ),
    "reshaped": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: _each(state, lambda a: a.reshape(4, 6, 32)),
    ),
    "axes": (
        lambda rng: _matrices(rng, 6, 5, 8, 4),
        lambda state: _each(state, lambda a: a.transpose(2, 3, 1, 0)),
    ),
    "heads first": (
        lambda rng: _matrices(rng, 32, 24),
        lambda state: _each(state, lambda a: a.T.reshape(24, 4, 8)),
    ),
    "flattened": (
        lambda rng: _matrices(rng, 6, 5, 4, 4),
        lambda state: _each(state, lambda a: a.reshape(6, -1)),
    ),
    "bgr": (
        lambda rng: _matrices(rng, 8, 3, 5, 5),
        lambda state: _each(state, lambda a: a[:, ::-1]),
    ),
    "rows in reverse": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: _each(state, lambda a: a[::-1]),
    ),
    "rows shuffled": (
        lambda rng: _matrices(rng, 32, 24),
        lambda state: _each(state, lambda a: a[_SHUFFLE]),
    ),
    "columns in pairs": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: _each(
            state, lambda a: a.reshape(24, 2, 16).swapaxes(1, 2).reshape(24, 32)
        ),
    ),
    "rows and columns": (
        lambda rng: _matrices(rng, 32, 32),
        lambda state: _each(state, lambda a: paired_rows(a, 4)[:, _SHUFFLE]),
    ),
    "padded": (
        lambda rng: _matrices(rng, 50, 24),
        lambda state: _each(state, lambda a: padded(a, 64)),
    ),
    "padded columns": (
        lambda rng: _matrices(rng, 50, 24),
        lambda state: _each(state, lambda a: padded(a, 64).T),
    ),
    "padded by the last row": (
        lambda rng: _matrices(rng, 50, 24),
        lambda state: _each(state, lambda a: np.pad(a, ((0, 14), (0, 0)), "edge")),
    ),
    "padded by the first rows": (
        lambda rng: _matrices(rng, 50, 24),
        lambda state: _each(state, lambda a: np.concatenate([a, a[:14]])),
    ),
    "padded by the last row, transposed": (
        lambda rng: _matrices(rng, 50, 24),
        lambda state: _each(state, lambda a: np.pad(a, ((0, 14), (0, 0)), "edge").T),
    ),
    "rotary": (
        lambda rng: _matrices(rng, 32, 24),
        lambda state: _each(state, lambda a: paired_rows(a, 4)),
    ),
    "qkv": (_attention, _fused),
    "qkv by heads": (_attention, lambda state: _fused(state, heads=4)),
    "qkv as Conv1D": (_attention, lambda state: _fused(state, turned=True)),
    "experts": (_experts, lambda state: _stacked(state, turned=False)),
    "experts turned": (_experts, lambda state: _stacked(state, turned=True)),
    "experts interleaved": (
        _experts,
        lambda state: _stacked(state, turned=False, interleaved=True),
    ),
    "stacked": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: {"fc.kernel": np.stack([array.T for array in state.values()])},
    ),
    "split rows": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: {
            f"part.{number}.{name}": part
            for name, array in state.items()
            for number, part in enumerate(np.split(array, 3))
        },
    ),
    "split columns": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: {
            f"part.{number}.{name}": part
            for name, array in state.items()
            for number, part in enumerate(np.split(array, 4, axis=1))
        },
    ),
    "heads repeated": (
        lambda rng: _matrices(rng, GROUPS * WIDTH, HIDDEN),
        _heads_repeated,
    ),
    "rows twice": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: _each(state, lambda a: np.repeat(a, 2, axis=0)),
    ),
    "padded in front": (
        lambda rng: _matrices(rng, 24, 32),
        lambda state: _each(state, lambda a: np.concatenate([a[3:], a])),
    ),
    "flat buffers": (_parameters, _flat_buffers),
    "flat buffer, aligned": (_parameters, _aligned_buffer),
    "scanned": (_attention_of_llama, _scanned),
    "scanned and scaled": (
        _attention_of_llama,
        lambda state: _scanned(state, factor=0.25),
    ),
    "qkv, one of them scaled": (_attention, _fused_and_scaled),
    "gpt2 before a training": (_gpt2_before_a_training, _gpt2_as_megatron),
    "experts with biases": (_with_biases, _stacked_biases),
    "flax": (lambda rng: _fused(_attention(rng)), _split_by_heads),
    "meta": (llama, meta),
    "meta before a training": (lambda rng: llama(rng, norms=False), meta),
}
"""A name -> what makes a checkpoint, and what lays it out anew."""

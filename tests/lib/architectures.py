"""Names and shapes of well-known models, as their state dicts have them: what folding is for."""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]


def llama(layers: int = 32, width: int = 4096, hidden: int = 11008, words: int = 32000) -> Shapes:
    """Llama-7B: 291 tensors."""
    found: Shapes = {"model.embed_tokens.weight": (words, width)}
    for i in range(layers):
        at = f"model.layers.{i}"
        found |= {f"{at}.self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
        found |= {f"{at}.mlp.{name}_proj.weight": (hidden, width) for name in ("gate", "up")}
        found[f"{at}.mlp.down_proj.weight"] = (width, hidden)
        found |= {f"{at}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    return found | {"model.norm.weight": (width,), "lm_head.weight": (words, width)}


def mixtral() -> Shapes:
    """Mixtral-8x7B: 995 tensors."""
    found: Shapes = {"model.embed_tokens.weight": (32000, 4096)}
    for i in range(32):
        at = f"model.layers.{i}"
        found |= {
            f"{at}.self_attn.{n}_proj.weight": (4096, 4096) if n in "qo" else (1024, 4096) for n in "qkvo"
        }
        found[f"{at}.block_sparse_moe.gate.weight"] = (8, 4096)
        for j in range(8):
            expert = f"{at}.block_sparse_moe.experts.{j}"
            found |= {f"{expert}.w1.weight": (14336, 4096), f"{expert}.w2.weight": (4096, 14336)}
            found[f"{expert}.w3.weight"] = (14336, 4096)
        found |= {f"{at}.{name}_layernorm.weight": (4096,) for name in ("input", "post_attention")}
    return found | {"model.norm.weight": (4096,), "lm_head.weight": (32000, 4096)}


def resnet50() -> Shapes:
    """ResNet-50 as torchvision writes it: 320 tensors, 161 of them parameters."""
    found: Shapes = {"conv1.weight": (64, 3, 7, 7)} | _norm("bn1", 64)
    inside = 64
    for layer, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            at = f"layer{layer}.{block}"
            found |= {f"{at}.conv1.weight": (width, inside, 1, 1)} | _norm(f"{at}.bn1", width)
            found |= {f"{at}.conv2.weight": (width, width, 3, 3)} | _norm(f"{at}.bn2", width)
            found |= {f"{at}.conv3.weight": (4 * width, width, 1, 1)} | _norm(f"{at}.bn3", 4 * width)
            if not block:
                found[f"{at}.downsample.0.weight"] = (4 * width, inside, 1, 1)
                found |= _norm(f"{at}.downsample.1", 4 * width)
            inside = 4 * width
    return found | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def adam(model: Shapes) -> Shapes:
    """A training checkpoint: the model, and Adam's state of its parameters."""
    parameters = [
        shape
        for name, shape in model.items()
        if not name.endswith(("running_mean", "running_var", "tracked"))
    ]
    found: Shapes = {f"model.{name}": shape for name, shape in model.items()}
    for i, shape in enumerate(parameters):
        found |= {f"optimizer.state.{i}.step": (), f"optimizer.state.{i}.exp_avg": shape}
        found[f"optimizer.state.{i}.exp_avg_sq"] = shape
    return found


def _norm(name: str, width: int) -> Shapes:
    found: Shapes = {f"{name}.{leaf}": (width,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    return found | {f"{name}.num_batches_tracked": ()}

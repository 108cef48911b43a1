"""The names of adapters of all programs, and what is refused: with the reason, the
nearest name, and nothing written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import loras
import oracle
import process
import pytest
import torch
from inside import folder_of, inside
from loras import PREFIX, State, noise
from safetensors.torch import load_file, save_file

import ckpt
from ckpt.ext.adapters.config import is_end
from ckpt.ext.adapters.names import part_of

pytestmark = oracle.QUIET


@pytest.mark.parametrize(
    ("name", "module", "kind", "style"),
    [
        ("base_model.model.a.b.lora_A.weight", "a.b", "down", "PEFT"),
        ("base_model.model.a.b.lora_B.default.weight", "a.b", "up", "PEFT"),
        ("base_model.model.base_model.model.a.lora_A.weight", "a", "down", "PEFT"),
        ("base_model.model.a.lora_B.bias", "a", "up bias", "PEFT"),
        ("base_model.model.e.lora_embedding_A", "e", "embedding down", "PEFT"),
        ("base_model.model.e.lora_embedding_B.default", "e", "embedding up", "PEFT"),
        ("base_model.model.a.lora_magnitude_vector", "a", "magnitude", "PEFT"),
        ("base_model.model.a.lora_magnitude_vector.weight", "a", "magnitude", "PEFT"),
        (
            "base_model.model.a.lora_magnitude_vector.default.weight",
            "a",
            "magnitude",
            "PEFT",
        ),
        (
            "base_model.model.e.token_adapter.trainable_tokens_delta",
            "e",
            "tokens",
            "PEFT",
        ),
        ("base_model.model.e.trainable_tokens_delta.default", "e", "tokens", "PEFT"),
        (
            "base_model.model.h.modules_to_save.default.weight",
            "h.weight",
            "whole",
            "PEFT",
        ),
        ("base_model.model.h.original_module.weight", "h.weight", "base", "PEFT"),
        ("base_model.model.a.base_layer.weight", "a.weight", "base", "PEFT"),
        ("base_model.model.a.base_layer.lora_A.weight", "a.base_layer", "down", "PEFT"),
        ("base_model.model.norm.weight", "norm.weight", "whole", ""),
        ("lora_unet_a_b.lora_down.weight", "a_b", "down", "kohya"),
        ("lora_te1_a.alpha", "a", "alpha", "kohya"),
        ("lora_unet_a.lora_mid.weight", "a", "mid", "kohya"),
        ("lora_unet_a.dora_scale", "a", "magnitude", "kohya"),
        ("lycoris_a_b.lora_up.weight", "a_b", "up", "kohya"),
        ("lora_unet_a.hada_w1_a", "a", "foreign", "kohya"),
        ("unet.a.lora_up.weight", "unet.a", "up", "ComfyUI"),
        (
            "unet.a.processor.to_out_lora.down.weight",
            "unet.a.to_out.0",
            "down",
            "diffusers",
        ),
        (
            "text_encoder.q_proj.lora_linear_layer.up.weight",
            "text_encoder.q_proj",
            "up",
            "diffusers",
        ),
        (
            "layers.0.attn.q_proj.lora_a.weight",
            "layers.0.attn.q_proj",
            "down",
            "torchtune",
        ),
        (
            "layers.0.attn.q_proj.magnitude",
            "layers.0.attn.q_proj",
            "magnitude",
            "torchtune",
        ),
        ("base_model.model.a.ia3_l", "a.ia3_l", "foreign", ""),
        ("a.lora_E", "a.lora_E", "whole", ""),
    ],
)
def test_what_a_name_says(name: str, module: str, kind: str, style: str) -> None:
    found = part_of(name)
    if name.endswith("lora_E"):
        assert found.kind == "foreign"
    else:
        assert (found.module, found.kind, found.style) == (module, kind, style)


def test_patterns_of_peft_match_the_end_of_a_name() -> None:
    assert (
        is_end("q_proj", "a.b.q_proj")
        and is_end("q_proj", "q_proj")
        and not is_end("q_proj", "a.xq_proj")
    )
    assert is_end(r"layers\.1\.q_proj", "model.layers.1.q_proj") and not is_end(
        r"layers\.1\.q", "m.layers.11.q"
    )
    assert (
        is_end(r"layers\.[0-3]\.q", "m.layers.2.q")
        and is_end(r"^m\.q", "m.q")
        and not is_end(r"^m\.q", "a.m.q")
    )
    assert is_end("q|k", "a.k") and is_end(r".*\.q", "m.a.q")
    assert not is_end(r"(a+)+b", "a" * 40) and not is_end("[", "a[")


# --- programs -------------------------------------------------------------------------

UNET = {
    "down_blocks.0.attentions.0.to_q.weight": noise(8, 6, seed=1),
    "down_blocks.0.attentions.0.to_out.0.weight": noise(6, 8, seed=2),
    "down_blocks.0.resnets.0.conv1.weight": noise(5, 4, 3, 3, seed=3),
    "mid_block.proj_in.weight": noise(5, 4, 1, 1, seed=4),
}


def parts() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The two matrices for each layer of the UNet."""
    found = {}
    for number, (name, weight) in enumerate(UNET.items()):
        down = noise(2, *weight.shape[1:], seed=20 + number)
        up = noise(weight.shape[0], 2, *[1] * (weight.dim() - 2), seed=40 + number)
        found[name.removesuffix(".weight")] = down, up
    return found


def expected(scale: float) -> State:
    """The UNet after a merge."""
    found = {}
    for name, weight in UNET.items():
        down, up = parts()[name.removesuffix(".weight")]
        product = (up.flatten(1) @ down.flatten(1)).reshape(weight.shape)
        found[name] = weight + scale * product
    return found


def kohya(begin: str = "lora_unet_") -> State:
    state: State = {}
    for name, (down, up) in parts().items():
        flat = begin + name.replace(".", "_")
        state |= {
            f"{flat}.lora_down.weight": down,
            f"{flat}.lora_up.weight": up,
            f"{flat}.alpha": torch.tensor(3.0),
        }
    return state


def dotted(begin: str, down_word: str, up_word: str, alpha: bool) -> State:
    state: State = {}
    for name, (down, up) in parts().items():
        state |= {
            f"{begin}{name}.{down_word}.weight": down,
            f"{begin}{name}.{up_word}.weight": up,
        }
        if alpha:
            state[f"{begin}{name}.alpha"] = torch.tensor(3.0)
    return state


PROGRAMS: dict[str, tuple[State, float]] = {
    "kohya": (kohya(), 1.5),
    "kohya in bfloat16 alphas": (
        {name: t.bfloat16() if "alpha" in name else t for name, t in kohya().items()},
        1.5,
    ),
    "LyCORIS": (kohya("lycoris_"), 1.5),
    "ComfyUI": (dotted("diffusion_model.", "lora_down", "lora_up", True), 1.5),
    "diffusers": (dotted("unet.", "lora_A", "lora_B", False), 1.0),
    "without alpha": (
        {name: tensor for name, tensor in kohya().items() if "alpha" not in name},
        1.0,
    ),
}


@pytest.mark.parametrize("begin", ["", "model.diffusion_model."])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_names_of_programs_that_make_pictures(
    program: str, begin: str, tmp_path: Path
) -> None:
    adapter, scale = PROGRAMS[program]
    base = loras.save_base(
        {begin + name: tensor for name, tensor in UNET.items()},
        tmp_path / "unet.safetensors",
    )
    save_file(adapter, tmp_path / "lora.safetensors")

    ckpt.merge(base, tmp_path / "lora.safetensors", out=tmp_path / "out.safetensors")

    wanted = {begin + name: tensor for name, tensor in expected(scale).items()}
    loras.check_same(tmp_path / "out.safetensors", wanted, 2)


@pytest.mark.parametrize("begin", ["unet.", ""])
def test_the_settings_of_diffusers_in_the_metadata(begin: str, tmp_path: Path) -> None:
    """A model that is saved by itself has no part of a pipeline before them."""
    base = loras.save_base(UNET, tmp_path / "unet.safetensors")
    settings = {"r": 2, "lora_alpha": 5, "alpha_pattern": {"to_q": 1}}
    noted = {f"{begin}{key}": value for key, value in settings.items()}
    metadata = {"lora_adapter_metadata": json.dumps(noted)}
    save_file(
        dotted(begin, "lora_A", "lora_B", False),
        tmp_path / "lora.safetensors",
        metadata=metadata,
    )

    ckpt.merge(base, tmp_path / "lora.safetensors", out=tmp_path / "out.safetensors")

    wanted = expected(2.5)
    wanted["down_blocks.0.attentions.0.to_q.weight"] = expected(0.5)[
        "down_blocks.0.attentions.0.to_q.weight"
    ]
    loras.check_same(tmp_path / "out.safetensors", wanted, 2)


def test_a_flat_name_is_not_that_of_a_module_without_a_weight(tmp_path: Path) -> None:
    state = {"c.to_q.weight": noise(8, 6), "c_to_q.scale": noise(6)}
    base = loras.save_base(state, tmp_path / "base.safetensors")
    down, up = noise(2, 6), noise(8, 2)
    adapter = {
        "lora_unet_c_to_q.lora_down.weight": down,
        "lora_unet_c_to_q.lora_up.weight": up,
    }
    save_file(adapter, tmp_path / "lora.safetensors")

    ckpt.merge(base, tmp_path / "lora.safetensors", out=tmp_path / "out.safetensors")

    wanted = {**state, "c.to_q.weight": state["c.to_q.weight"] + up @ down}
    loras.check_same(tmp_path / "out.safetensors", wanted, 2)


def test_the_middle_of_a_convolution(tmp_path: Path) -> None:
    weight, down, mid, up = (
        noise(5, 4, 3, 3),
        noise(2, 4, 1, 1, seed=1),
        noise(3, 2, 3, 3, seed=2),
        noise(5, 3, 1, 1, seed=3),
    )
    product = torch.einsum("oa,abkl,bi->oikl", up[:, :, 0, 0], mid, down[:, :, 0, 0])
    base = loras.save_base({"c.conv.weight": weight}, tmp_path / "a.safetensors")
    adapter = {
        "lora_unet_c_conv.lora_down.weight": down,
        "lora_unet_c_conv.lora_mid.weight": mid,
        "lora_unet_c_conv.lora_up.weight": up,
    }
    save_file(adapter, tmp_path / "lora.safetensors")
    ckpt.merge(base, tmp_path / "lora.safetensors", out=tmp_path / "out.safetensors")
    loras.check_same(
        tmp_path / "out.safetensors", {"c.conv.weight": weight + product}, 2
    )


def test_lengths_of_kohya_are_those_of_inputs_or_of_outputs(tmp_path: Path) -> None:
    weight, down, up = noise(5, 4), noise(2, 4, seed=1), noise(5, 2, seed=2)
    base = loras.save_base({"c.l.weight": weight}, tmp_path / "a.safetensors")
    for lengths, dim in ((noise(5, 1).abs() + 1, 1), (noise(1, 4).abs() + 1, 0)):
        names = {"lora_down.weight": down, "lora_up.weight": up, "dora_scale": lengths}
        save_file(
            {f"lora_unet_c_l.{name}": tensor for name, tensor in names.items()},
            tmp_path / "lora.safetensors",
        )
        ckpt.merge(
            base,
            tmp_path / "lora.safetensors",
            out=tmp_path / "out.safetensors",
            force=True,
        )
        whole = weight + up @ down
        wanted = whole * lengths / torch.linalg.norm(whole, dim=dim, keepdim=True)
        loras.check_same(tmp_path / "out.safetensors", {"c.l.weight": wanted}, 4)


@pytest.mark.parametrize(
    ("begin", "of_adapter"),
    [
        ("model.", "model."),
        ("", "model."),
        ("model.language_model.", "language_model.model."),
        ("transformer.", ""),
        ("module._orig_mod.model.", "model."),
    ],
)
def test_other_beginnings_of_names(begin: str, of_adapter: str, tmp_path: Path) -> None:
    state = loras.base(begin=begin)
    adapter = loras.pairs(
        {
            name.replace(begin, of_adapter, 1): tensor
            for name, tensor in loras.linear(state).items()
        }
    )
    plain = loras.merged(
        {
            name.replace(begin, of_adapter, 1): tensor
            for name, tensor in loras.linear(state).items()
        },
        adapter,
    )
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")

    ckpt.merge(base, folder, out=tmp_path / "out.safetensors")

    wanted = {
        **state,
        **{
            name.replace(of_adapter, begin, 1) if of_adapter else begin + name: t
            for name, t in plain.items()
        },
    }
    loras.check_same(tmp_path / "out.safetensors", wanted, 2)


def test_torchtune_and_substitutions(tmp_path: Path) -> None:
    state = {"layers.0.attn.q_proj.weight": noise(8, 6)}
    down, up = noise(2, 6, seed=1), noise(8, 2, seed=2)
    torch.save(
        {
            "layers.0.attn.q_proj.lora_a.weight": down,
            "layers.0.attn.q_proj.lora_b.weight": up,
        },
        tmp_path / "adapter_0.pt",
    )
    base = loras.save_base(state, tmp_path / "base.safetensors")
    ckpt.merge(
        base, tmp_path / "adapter_0.pt", scale=2, out=tmp_path / "out.safetensors"
    )
    loras.check_same(
        tmp_path / "out.safetensors",
        {"layers.0.attn.q_proj.weight": noise(8, 6) + 2 * up @ down},
        2,
    )
    other = loras.save_base(
        {"blocks.0.mixer.q.weight": noise(8, 6)}, tmp_path / "other.safetensors"
    )
    subs = [r"s/layers\.(\d+)\.attn/blocks.\1.mixer/", "s/q_proj/q/"]
    ckpt.merge(
        other,
        tmp_path / "adapter_0.pt",
        scale=2,
        sub=subs,
        out=tmp_path / "b.safetensors",
    )
    loras.check_same(
        tmp_path / "b.safetensors",
        {"blocks.0.mixer.q.weight": noise(8, 6) + 2 * up @ down},
        2,
    )


# --- what is refused ------------------------------------------------------------------


def refused(
    folder: Path,
    state: State,
    adapter: State,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> str:
    """The line of a merge that is refused. Nothing is written."""
    loras.save_base(state, folder / "base.safetensors")
    loras.save_adapter(adapter, folder / "adapter", **(config or {}))
    # Long paths are cut in the middle of the line.
    with folder_of(folder), pytest.raises(ckpt.CkptError) as caught:
        ckpt.merge("base.safetensors", "adapter", out="out.safetensors", **options)
    assert not (folder / "out.safetensors").exists()
    return str(caught.value)


def test_a_layer_that_the_base_lacks_is_named_with_the_nearest(tmp_path: Path) -> None:
    state = loras.base()
    adapter = loras.pairs(loras.linear(state))
    del state["model.layers.1.self_attn.v_proj.weight"]
    assert refused(tmp_path, state, adapter) == (
        "base.safetensors: lacks 1 layer of adapter: model.layers.1.self_attn.v_proj "
        "(near: model.layers.2.self_attn.v_proj.weight, "
        "model.layers.1.self_attn.q_proj.weight, "
        "model.layers.1.self_attn.o_proj.weight)"
    )


ADVISED = {
    "--sub": (
        {f"{begin}.q.weight": noise(8, 12) for begin in ("x.a", "y.a")},
        loras.pairs({"z.a.q.weight": noise(8, 12)}),
        {},
    ),
    "--exclude": (
        {"a.q.weight": noise(8, 12)},
        {
            f"lora_{part}.lora_{side}.weight": noise(*shape)
            for part in ("unet_a_q", "te_a_k")
            for side, shape in (("down", (4, 12)), ("up", (8, 4)))
        },
        {},
    ),
    "--include": (
        {"a.q.weight": noise(8, 12)},
        {
            f"{PREFIX}a.q.lora_{letter}.{name}.weight": noise(*shape)
            for name in ("one", "two")
            for letter, shape in (("A", (4, 12)), ("B", (8, 4)))
        },
        {},
    ),
    "--scale": (
        {"a.q.weight": noise(8, 12)},
        loras.pairs({"a.q.weight": noise(8, 12)}),
        {"r": 8},
    ),
}
"""An option of merge -> a base and an adapter for which it is advised."""


@pytest.mark.parametrize("option", ADVISED)
def test_other_commands_say_whose_option_they_advise(
    option: str, tmp_path: Path
) -> None:
    """`diff`, `inspect` and `convert` have none for the layers of an adapter, but
    `diff` leaves layers out too.
    """
    state, adapter, config = ADVISED[option]
    loras.save_base(state, tmp_path / "base.safetensors")
    loras.save_adapter(adapter, tmp_path / "adapter", **config)
    base = ("base.safetensors",)
    commands = {
        "merge": (*base, "adapter", "-o", "out.pth"),
        "diff": (*base, *base, "--adapter", "adapter"),
        "inspect": ("adapter", "--base", *base),
    }
    if option == "--include":
        commands["convert"] = ("adapter", "--adapter-names", "kohya", "-o", "out.pth")
    for command, words in commands.items():
        done = inside(command, *words, cwd=tmp_path)
        said = (done.out + done.err).decode()
        assert done.code == (1 if b"does not fit" in done.out else 2), said
        is_own = command == "merge" or (command, option) == ("diff", "--exclude")
        begin = "" if is_own else "in ckpt merge: "
        assert f"({begin}{option} " in said, said


def test_a_part_of_a_pipeline_may_be_left_out(tmp_path: Path) -> None:
    base = loras.save_base(UNET, tmp_path / "unet.safetensors")
    more = {
        "lora_te_text_q.lora_down.weight": noise(2, 4),
        "lora_te_text_q.lora_up.weight": noise(4, 2),
    }
    save_file({**kohya(), **more}, tmp_path / "lora.safetensors")
    with pytest.raises(
        ckpt.UsageError, match=r"lacks 1 layer.*exclude='lora_te_\*' leaves them out"
    ):
        ckpt.merge(base, tmp_path / "lora.safetensors", dry_run=True)
    report = ckpt.merge(
        base,
        tmp_path / "lora.safetensors",
        exclude="lora_te_*",
        out=tmp_path / "out.safetensors",
    )
    loras.check_same(tmp_path / "out.safetensors", expected(1.5), 2)
    assert report.account is not None
    assert set(report.account.to_json()["adapters"][0]["left_out"]) == set(more)  # type: ignore[index, call-overload, arg-type]


LAYER = f"{PREFIX}model.layers.0.self_attn.q_proj"
PAIR = {f"{LAYER}.lora_A.weight": noise(4, 12), f"{LAYER}.lora_B.weight": noise(8, 4)}


@pytest.mark.parametrize(
    ("adapter", "config", "says"),
    [
        ({f"{LAYER}.lora_A.weight": noise(4, 12)}, {}, "lora_A.weight has no partner"),
        (
            {**PAIR, f"{LAYER}.lora_B.weight": noise(8, 4).flatten()},
            {},
            "never gathered",
        ),
        (
            {
                f"{LAYER}.lora_A.weight": torch.zeros(0, 12),
                f"{LAYER}.lora_B.weight": torch.zeros(8, 0),
            },
            {},
            "lora_A.weight is [0, 12]: it has no elements",
        ),
        *(
            (
                {
                    **PAIR,
                    **{
                        name.replace(*change): tensor.clone()
                        for name, tensor in PAIR.items()
                    },
                },
                {},
                " change the same rows of model.layers.0.self_attn.q_proj.weight",
            )
            for change in (
                (PREFIX, f"{PREFIX}module."),
                (".lora_", ".base_layer.lora_"),
            )
        ),
        (
            {
                **PAIR,
                "lora_unet_model_layers_0_self_attn_q_proj.lora_down.weight": noise(
                    4, 12
                ),
                "lora_unet_model_layers_0_self_attn_q_proj.lora_up.weight": noise(8, 4),
            },
            {},
            " change the same rows of model.layers.0.self_attn.q_proj.weight",
        ),
        (
            PAIR,
            {"use_dora": True},
            "no lora_magnitude_vector is there for 1 layer: model.layers.0",
        ),
        (
            {**PAIR, f"{LAYER}.lora_B.weight": noise(8, 3)},
            {},
            "config.json says rank 4 for",
        ),
        (
            {**PAIR, f"{LAYER}.lora_A.weight": noise(3, 12)},
            {},
            "matrices without a product",
        ),
        (
            {**PAIR, f"{LAYER}.lora_A.weight": noise(4, 13)},
            {},
            "is [8, 12], and model.layers.0.self_attn.q_proj of",
        ),
        (
            {**PAIR, f"{LAYER}.hada_w1_a": noise(2, 2)},
            {},
            "of LoHa: only LoRA and DoRA are merged",
        ),
        ({**PAIR, f"{PREFIX}model.x.weight": noise(2, 2)}, {}, "lacks model.x.weight"),
        (
            {**PAIR, f"{LAYER}.lora_magnitude_vector": noise(7)},
            {},
            "which is no length of",
        ),
        ({"a.weight": noise(2, 2)}, {}, "holds no adapter"),
        (PAIR, {"peft_type": "IA3"}, "says peft_type IA3, and only LoRA is merged"),
        (
            PAIR,
            {"init_lora_weights": "pissa_niter_16"},
            "which changed the weights of the base before training",
        ),
        (PAIR, {"use_qalora": True}, "QALoRA is not merged"),
        (
            PAIR,
            {"lora_alpha": None},
            "nothing says the alpha of 1 layer: adapter_config.json has none",
        ),
        (
            PAIR,
            {"alpha_pattern": {"(a+)+b": 2}},
            "alpha_pattern of adapter_config.json has (a+)+b, an expression",
        ),
        (
            PAIR,
            {"rank_pattern": {"(.*)*": 4}},
            "an expression that is not evaluated",
        ),
        (
            {**PAIR, f"{LAYER}.lora_A.weight": noise(4, 12) * float("nan")},
            {},
            "q_proj.lora_A.weight holds NaN or Inf",
        ),
        (
            {**PAIR, f"{LAYER}.lora_B.weight": noise(8, 4) / 0.0},
            {},
            "q_proj.lora_B.weight holds NaN or Inf",
        ),
        (
            PAIR,
            {"r": 8},
            "says rank 8 for model.layers.0.self_attn.q_proj, whose tensors have 4",
        ),
        (
            {**PAIR, f"{LAYER}.lora_A.weight": noise(4, 12).to(torch.int8)},
            {},
            "is int8, and has no numbers to add",
        ),
        (
            PAIR,
            {"use_rslora": "false"},
            "adapter_config.json says use_rslora: false, which is not true or false",
        ),
        (PAIR, {"use_dora": [1]}, "use_dora: [1], which is not true or false"),
        (PAIR, {"fan_in_fan_out": 2}, "fan_in_fan_out: 2, which is not true or false"),
    ],
)
def test_what_has_no_place_is_refused(
    adapter: State, config: dict[str, Any], says: str, tmp_path: Path
) -> None:
    assert says in refused(tmp_path, loras.base(), adapter, config)


@pytest.mark.parametrize("begin", ["lora_unet_a_q.", "diffusion_model.a.q."])
@pytest.mark.parametrize(
    ("ends", "method"),
    [
        (("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"), "LoHa"),
        (("hada_t1", "hada_t2"), "LoHa"),
        (("lokr_w1", "lokr_w2"), "LoKr"),
        (("lokr_w1_a", "lokr_w1_b", "lokr_t2"), "LoKr"),
        (("oft_blocks",), "OFT"),
        (("weight", "on_input"), "IA3"),
        (("diff", "diff_b"), "full differences"),
    ],
)
def test_methods_of_lycoris_are_refused_by_their_names(
    begin: str, ends: tuple[str, ...], method: str, tmp_path: Path
) -> None:
    line = refused_beside_a_pair(begin, ends, tmp_path)
    assert ends[-1] in line or "{" in line
    assert f", of {method}: only LoRA and DoRA are merged" in line


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (("a1.weight", "a2.weight", "b1.weight"), ", of GLoRA: only"),
        (("w_norm", "b_norm"), ", of trained norms: only"),
        (("w_norm",), ", of trained norms: only"),
        (("b_norm",), ", of trained norms: only"),
        (("reshape_weight",), "q.reshape_weight: only LoRA"),
    ],
)
def test_flat_names_that_are_no_part_of_lora_are_refused(
    ends: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    assert says in refused_beside_a_pair("lora_unet_a_q.", ends, tmp_path)


def refused_beside_a_pair(begin: str, ends: tuple[str, ...], folder: Path) -> str:
    """The error for tensors beside a pair of kohya that fits."""
    pair = {
        "lora_unet_b_q.lora_down.weight": noise(4, 12),
        "lora_unet_b_q.lora_up.weight": noise(8, 4),
    }
    state = {"a.q.weight": noise(8, 12), "b.q.weight": noise(8, 12)}
    others = {begin + end: noise(2, 2) for end in ends}
    return refused(folder, state, {**pair, **others})


def test_a_flag_may_be_one_or_zero(tmp_path: Path) -> None:
    base = loras.save_base(loras.base(), tmp_path / "base.safetensors")
    scales = []
    for value in (True, 1, 1.0, False, 0, None):
        folder = loras.save_adapter(PAIR, tmp_path / "adapter", use_rslora=value)
        account = ckpt.merge(base, folder, dry_run=True).account
        assert account is not None
        scales.append(account.merged[0].scale)
    assert scales == [4, 4, 4, 2, 2, 2]


def test_a_scale_is_taken_where_no_alpha_is_recorded(tmp_path: Path) -> None:
    base = loras.save_base(loras.base(), tmp_path / "base.safetensors")
    other = "lora_unet_model_layers_1_self_attn_q_proj"
    with_alpha = {
        f"{other}.lora_down.weight": noise(4, 12),
        f"{other}.lora_up.weight": noise(8, 4),
        f"{other}.alpha": torch.tensor(8.0),
    }
    loras.save_base(with_alpha, tmp_path / "alpha.safetensors")
    said = loras.save_adapter(PAIR, tmp_path / "said")
    unsaid = loras.save_adapter(PAIR, tmp_path / "unsaid", lora_alpha=None)
    of_another = loras.save_adapter(PAIR, tmp_path / "of_another", r=8)

    for recorded in (said, tmp_path / "alpha.safetensors"):
        with pytest.raises(ckpt.UsageError, match="scale=: all layers record their"):
            ckpt.merge(base, recorded, scale=5, dry_run=True)
        account = ckpt.merge(base, [recorded, unsaid], scale=5, dry_run=True).account
        assert account is not None
        assert [row.scale for row in account.merged] == [2, 5]
    account = ckpt.merge(base, of_another, scale=5, dry_run=True).account
    assert account is not None and account.merged[0].scale == 5


def test_damaged_settings_are_one_line(tmp_path: Path) -> None:
    base = loras.save_base(loras.base(), tmp_path / "base.safetensors")
    folder = loras.save_adapter(PAIR, tmp_path / "adapter")
    (folder / "adapter_config.json").write_text('{"r": 4, "lora_alpha": }')

    done = process.ckpt("merge", base, folder, "-o", tmp_path / "out.safetensors")

    assert done.code == 2 and not done.out
    assert done.err.count(b"\n") == 1
    assert b"damaged adapter_config.json: expecting value" in done.err


def test_a_layer_that_may_be_two_is_refused_until_one_is_named(tmp_path: Path) -> None:
    state = {
        f"{tower}.layers.0.fc.weight": noise(6, 6, seed=seed)
        for seed, tower in enumerate(("text", "vision"))
    }
    adapter = loras.pairs({"layers.0.fc.weight": noise(6, 6)})
    line = refused(tmp_path, state, adapter)
    assert "layers.0.fc may be " in line and "sub='s/^/" in line
    base = tmp_path / "base.safetensors"
    ckpt.merge(
        base, tmp_path / "adapter", sub="s/^/vision./", out=tmp_path / "out.safetensors"
    )
    found = load_file(tmp_path / "out.safetensors")
    assert torch.equal(
        found["text.layers.0.fc.weight"], state["text.layers.0.fc.weight"]
    )
    assert not torch.equal(
        found["vision.layers.0.fc.weight"], state["vision.layers.0.fc.weight"]
    )


def test_a_quantised_base_is_refused_with_the_way(tmp_path: Path) -> None:
    begin = "model.layers.0.self_attn.q_proj"
    gptq = {
        f"{begin}.qweight": torch.zeros(2, 8, dtype=torch.int32),
        f"{begin}.qzeros": torch.zeros(1, 1, dtype=torch.int32),
        f"{begin}.scales": torch.ones(1, 8, dtype=torch.float16),
        f"{begin}.g_idx": torch.zeros(12, dtype=torch.int32),
    }
    nf4 = {
        f"{begin}.weight": torch.zeros(48, 1, dtype=torch.uint8),
        f"{begin}.weight.absmax": torch.ones(2),
        f"{begin}.weight.quant_map": torch.ones(16),
        f"{begin}.weight.quant_state.bitsandbytes__nf4": torch.zeros(
            20, dtype=torch.uint8
        ),
    }
    fp8 = {
        f"{begin}.weight": torch.zeros(8, 12).to(torch.float8_e4m3fn),
        f"{begin}.weight_scale_inv": torch.ones(1, 1),
    }
    for state, word in ((gptq, "GPTQ"), (nf4, "bitsandbytes"), (fp8, "FP8")):
        line = refused(tmp_path, state, PAIR)
        assert word in line and "to which nothing can be added" in line
        assert "merge into the weights that it was quantised from" in line


def test_the_halves_of_several_adapters_are_not_mixed(tmp_path: Path) -> None:
    state = {
        f"{LAYER}.lora_{letter}.{name}.weight": PAIR[f"{LAYER}.lora_{letter}.weight"]
        for letter in "AB"
        for name in ("one", "two")
    }
    torch.save(state, tmp_path / "last.ckpt")
    base = loras.save_base(loras.base(), tmp_path / "base.safetensors")
    with pytest.raises(
        ckpt.UsageError, match=r"holds 2 adapters: one, two .include='\*\.one\*'"
    ):
        ckpt.merge(base, tmp_path / "last.ckpt", dry_run=True)
    ckpt.merge(
        base,
        tmp_path / "last.ckpt",
        include="*.one.*",
        scale=2,
        out=tmp_path / "out.safetensors",
    )
    loras.check_same(tmp_path / "out.safetensors", loras.merged(loras.base(), PAIR), 2)


# --- the command ----------------------------------------------------------------------


def test_the_command_lists_each_layer(tmp_path: Path) -> None:
    state = loras.base()
    loras.save_base(state, tmp_path / "base.safetensors")
    loras.save_adapter(loras.pairs(loras.linear(state)), tmp_path / "adapter")
    words = ("merge", "base.safetensors", "adapter", "-o", "out.safetensors")
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0 and done.out.decode().splitlines()[:-1] == [
        "merged       12 tensors, 6.47 KiB",
        "as in BASE   8 tensors, 3.05 KiB",
        "adapter: adapter: LoRA in names of PEFT, 12 layers, 24 of 24 tensors used",
        (
            "  LoRA of rank 4, scale 2: "
            "model.layers.0-2.self_attn.{o,q,up,v}_proj.weight ×12"
        ),
    ]
    document = json.loads(inside(*words, "--force", "--json", cwd=tmp_path).out)
    assert document["command"] == "merge" and len(document["merged"]) == 12
    assert document["merged"][0]["rank"] == 4 and document["merged"][0]["scale"] == 2
    assert document["adapters"][0]["tensors"] == 24
    done = inside(
        "merge",
        "base.safetensors",
        "adapter",
        "--weights",
        "0.5",
        "--dry-run",
        cwd=tmp_path,
    )
    assert (
        b"weight 0.5, 24 of 24" in done.out
        and b"scale 1:" in done.out
        and b"nothing was written" in done.out
    )
    done = inside(
        "merge",
        "base.safetensors",
        "adapter",
        "--weights",
        "a",
        "--dry-run",
        cwd=tmp_path,
    )
    assert done.code == 2 and b"not numbers (as in 0.7,0.3)" in done.err
    done = inside(
        "merge",
        "base.safetensors",
        "adapter",
        "-o",
        "base.safetensors",
        "--force",
        cwd=tmp_path,
    )
    assert done.code == 2 and b"OUT is the source" in done.err
    done = inside(
        "merge",
        "base.safetensors",
        "adapter",
        "-o",
        "adapter/adapter_model.safetensors",
        "--force",
        cwd=tmp_path,
    )
    assert done.code == 2 and b"OUT is one of the checkpoints" in done.err


def test_config_goes_along_into_a_folder(tmp_path: Path) -> None:
    state = loras.base()
    (tmp_path / "base").mkdir()
    loras.save_base(state, tmp_path / "base" / "model.safetensors")
    (tmp_path / "base" / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 30})
    )
    adapter = loras.pairs(loras.linear(state))
    loras.save_adapter(adapter, tmp_path / "adapter")
    done = inside(
        "merge", "base", "adapter", "-o", "merged", "--with-config", cwd=tmp_path
    )
    assert done.code == 0, done.err
    assert (tmp_path / "merged" / "config.json").is_file()
    loras.check_same(
        tmp_path / "merged" / "model.safetensors", loras.merged(state, adapter), 2
    )


@pytest.mark.parametrize(("alpha", "scale"), [(-3.0, -1.5), (0.0, 0.0)])
def test_a_recorded_alpha_may_be_negative(
    alpha: float, scale: float, tmp_path: Path
) -> None:
    adapter = {
        name: torch.tensor(alpha) if name.endswith(".alpha") else tensor
        for name, tensor in kohya().items()
    }
    base = loras.save_base(UNET, tmp_path / "unet.safetensors")
    save_file(adapter, tmp_path / "lora.safetensors")

    ckpt.merge(base, tmp_path / "lora.safetensors", out=tmp_path / "out.safetensors")

    loras.check_same(tmp_path / "out.safetensors", expected(scale), 2)


def test_an_alpha_that_is_no_number_is_refused(tmp_path: Path) -> None:
    for alpha in (torch.tensor(3j), torch.ones(2), torch.tensor(float("nan"))):
        adapter = {
            name: alpha.clone() if name.endswith(".alpha") else tensor
            for name, tensor in kohya().items()
        }
        assert ".alpha is not a number" in refused(tmp_path, UNET, adapter)


def test_lengths_of_inputs_of_a_layer_with_one_output(tmp_path: Path) -> None:
    weight, down, up = noise(1, 6), noise(2, 6, seed=1), noise(1, 2, seed=2)
    lengths = noise(1, 6, seed=3).abs() + 1
    base = loras.save_base({"a.q.weight": weight}, tmp_path / "base.safetensors")
    layer = {"lora_down.weight": down, "lora_up.weight": up, "dora_scale": lengths}
    state = {f"lora_unet_a_q.{part}": tensor for part, tensor in layer.items()}
    save_file(state, tmp_path / "lora.safetensors")

    ckpt.merge(base, tmp_path / "lora.safetensors", out=tmp_path / "out.safetensors")

    changed = weight + up @ down
    wanted = changed * lengths / changed.norm(dim=0, keepdim=True)
    loras.check_same(tmp_path / "out.safetensors", {"a.q.weight": wanted}, 2)


@pytest.mark.parametrize("other", ["module.{}", "_orig_mod.{}", "base_model.model.{}"])
def test_a_base_that_has_one_tensor_by_two_names_is_refused(
    other: str, tmp_path: Path
) -> None:
    name = f"{LAYER.removeprefix(PREFIX)}.weight"
    state = {name: noise(8, 12), other.format(name): noise(8, 12, seed=1)}
    assert "two tensors have one name without wrappers" in refused(
        tmp_path, state, PAIR
    )


@pytest.mark.parametrize("part", ["small", "large"])
def test_the_shape_chooses_among_beginnings(part: str, tmp_path: Path) -> None:
    state = {
        "small.layers.0.q_proj.weight": noise(8, 8),
        "large.layers.0.q_proj.weight": noise(16, 16),
    }
    loras.save_base(state, tmp_path / "base.safetensors")
    name = f"{part}.layers.0.q_proj.weight"
    adapter = loras.pairs({"layers.0.q_proj.weight": state[name]})
    loras.save_adapter(adapter, tmp_path / "adapter")

    words = ("merge", "base.safetensors", "adapter", "-o", "out.safetensors")
    done = inside(*words, cwd=tmp_path)

    assert done.code == 0, done.err
    merged = load_file(tmp_path / "out.safetensors")
    changed = {key for key in state if not torch.equal(merged[key], state[key])}
    assert changed == {name}

"""`ckpt warmstart` by a mapping: whole models give the same output, what is doubtful
writes nothing, old state goes.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections import OrderedDict
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
import torch.distributed.checkpoint
from inside import folder_of, inside
from torch import nn

from ckpt.model.errors import CkptError, LossError, UsageError

pytestmark = oracle.QUIET


class Attention(nn.Module):
    """Attention with one tensor for query, key and value, or with three, as `names`
    say.
    """

    def __init__(self, width: int, names: dict[str, str]) -> None:
        super().__init__()
        self.width, self.names = width, names
        whole = names["qkv"]
        parts = [whole] if "," not in whole else whole.split(",")
        for part in parts:
            self.add_module(part, nn.Linear(width, width * 3 // len(parts)))
        self.add_module(names["out"], nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.names["qkv"].split(",")
        qkv = torch.cat([getattr(self, part)(x) for part in parts], -1)
        q, k, v = qkv.chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / self.width**0.5, -1)
        return getattr(self, self.names["out"])(weights @ v)


class Vit(nn.Module):
    """A ViT with the names of timm, of transformers or of its older files."""

    def __init__(self, names: dict[str, str], classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.names = names
        state: dict[str, nn.Module | nn.Parameter] = {
            names["cls"]: nn.Parameter(torch.randn(1, 1, width)),
            names["pos"]: nn.Parameter(torch.randn(1, 5, width)),
            names["patch"]: nn.Conv2d(3, width, 4, 4),
            names["norm"]: nn.LayerNorm(width),
            names["head"]: nn.Linear(width, classes),
        }
        for n in range(2):
            state[names["norm1"].replace("#", str(n))] = nn.LayerNorm(width)
            state[names["attn"].replace("#", str(n))] = Attention(width, names)
            state[names["norm2"].replace("#", str(n))] = nn.LayerNorm(width)
            state[names["fc1"].replace("#", str(n))] = nn.Linear(width, 2 * width)
            state[names["fc2"].replace("#", str(n))] = nn.Linear(2 * width, width)
        for name, value in state.items():
            *path, last = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module._modules[part]  # type: ignore[assignment]
            if isinstance(value, nn.Parameter):
                module.register_parameter(last, value)
            else:
                module.add_module(last, value)

    def at(self, key: str, number: int = 0) -> Any:
        found: Any = self
        for part in self.names[key].replace("#", str(number)).split("."):
            found = getattr(found, part)
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.at("patch")(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.at("cls").expand(len(x), -1, -1), x], 1) + self.at("pos")
        for n in range(2):
            x = x + self.at("attn", n)(self.at("norm1", n)(x))
            x = x + self.at("fc2", n)(
                torch.relu(self.at("fc1", n)(self.at("norm2", n)(x)))
            )
        return self.at("head")(self.at("norm")(x)[:, 0])  # type: ignore[no-any-return]


TIMM = {
    "cls": "cls_token", "pos": "pos_embed", "patch": "patch_embed.proj", "norm": "norm", "head": "head",
    "norm1": "blocks.#.norm1", "attn": "blocks.#.attn", "norm2": "blocks.#.norm2", "fc1": "blocks.#.mlp.fc1",
    "fc2": "blocks.#.mlp.fc2", "qkv": "qkv", "out": "proj",
}  # fmt: skip
HF = {
    "cls": "vit.embeddings.cls_token", "pos": "vit.embeddings.position_embeddings",
    "patch": "vit.embeddings.patch_embeddings.projection", "norm": "vit.layernorm", "head": "classifier",
    "norm1": "vit.layers.#.layernorm_before", "attn": "vit.layers.#.attention",
    "norm2": "vit.layers.#.layernorm_after", "fc1": "vit.layers.#.mlp.fc1", "fc2": "vit.layers.#.mlp.fc2",
    "qkv": "q_proj,k_proj,v_proj", "out": "o_proj",
}  # fmt: skip
IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def vit(names: dict[str, str], seed: int, classes: int = 3) -> Vit:
    torch.manual_seed(seed)
    return Vit(names, classes)


def loaded(model: nn.Module, path: Path) -> nn.Module:
    model.load_state_dict(torch.load(path, weights_only=True))
    return model


def close(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Tell whether two outputs are equal but for the order of sums."""
    return torch.allclose(one, two, atol=1e-6)


def planned(done: Any) -> Any:
    return json.loads(done.out)["coverage"]


def again(done: Any) -> list[str]:
    """The options of the command that a refusal proposes."""
    text = " ".join(done.complaints)
    command = re.search(r"\((ckpt warmstart .*)\)", text)
    assert command is not None, text
    return shlex.split(command[1])[1:]


# --- whole models ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "option"),
    [(HF, TIMM, "--fuse"), (TIMM, HF, "--split"), (TIMM, TIMM, None)],
)
def test_a_vit_of_another_package_gives_the_same_output(
    one: dict[str, str], two: dict[str, str], option: str | None, tmp_path: Path
) -> None:
    given, mine = vit(one, 0), vit(two, 1)
    rewriting.saved(given.state_dict(), tmp_path / "a.pth")
    rewriting.saved(mine.state_dict(), tmp_path / "b.pth")
    words = ["warmstart", "a.pth", "--into", "b.pth", "-o", "c.pth"]
    if option is not None:
        done = inside(*words, cwd=tmp_path)
        assert done.code == 1 and not (tmp_path / "c.pth").exists()
        assert "query, key and value" in done.complaints[
            0
        ] and "nothing was written" in " ".join(done.complaints)
        words = again(done)
        assert option in words
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0, done
    with torch.no_grad():
        assert close(loaded(mine, tmp_path / "c.pth")(IMAGE), given(IMAGE))

    lines = inside(*words[:-2], "--print-code", cwd=tmp_path).out.decode()
    assert close(by_code(lines, vit(two, 2), tmp_path)(IMAGE), given(IMAGE))
    live = vit(two, 3)
    options = {} if option is None else {option[2:]: True}
    coverage = rewriting.filled(live, tmp_path / "a.pth", **options)
    assert coverage.share == 1 and close(live(IMAGE), given(IMAGE))
    if option is not None:
        with pytest.raises(LossError) as caught:
            rewriting.filled(vit(two, 4), tmp_path / "a.pth")
        assert caught.value.hint == f"{option[2:]}=True"


def by_code(lines: str, model: nn.Module, folder: Path) -> nn.Module:
    """The model after the lines of `--print-code`, run where they are meant to
    be run.
    """
    with folder_of(folder), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(lines, "code", "exec"), {"model": model})
    return model


def net(seed: int, classes: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    parts = [
        (f"layer{n}", nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)))
        for n in range(1, 4)
    ]
    return nn.Sequential(OrderedDict([*parts, ("fc", nn.Linear(6, classes))])).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.{name}",
        lambda name: f"model.{name}",
        lambda name: f"module.encoder_q.{name}",
        lambda name: f"student.backbone.{name}",
        lambda name: name if name.startswith("fc") else f"backbone.{name}",
        lambda name: name.replace("layer", "stages."),
        lambda name: f"net.encoder.{name}".replace("layer", "block"),
    ],
)
@pytest.mark.parametrize("classes", [5, 9])
def test_names_alone_are_no_obstacle(wrap: Any, classes: int, tmp_path: Path) -> None:
    given, mine = net(0), net(1, classes)
    rewriting.saved(
        {
            "state_dict": {
                wrap(name): value for name, value in given.state_dict().items()
            }
        },
        tmp_path / "a.pth",
    )
    rewriting.saved(mine.state_dict(), tmp_path / "b.pth")
    words = ("warmstart", "a.pth", "--into", "b.pth")
    done = inside(*words, "-o", "c.pth", cwd=tmp_path)
    assert done.code == 0, done
    x = torch.randn(4, 6)
    body = slice(0, None if classes == 5 else -1)
    result = loaded(mine, tmp_path / "c.pth")
    assert torch.equal(result[body](x), given[body](x))  # type: ignore[index, operator]
    coverage = planned(inside(*words, "--dry-run", "--json", cwd=tmp_path))
    assert coverage["body"][0] == coverage["body"][1]
    assert coverage["head"][0] == (coverage["head"][1] if classes == 5 else 0)
    lines = inside(*words, "--print-code", cwd=tmp_path).out.decode()
    assert torch.equal(
        by_code(lines, net(2, classes), tmp_path)[body](x), given[body](x)
    )  # type: ignore[index, operator]
    live = net(3, classes)
    rewriting.filled(live, tmp_path / "a.pth")
    assert torch.equal(live[body](x), given[body](x))  # type: ignore[index, operator]


# --- what writes nothing --------------------------------------------------------------


def refused(
    one: dict[str, Any],
    two: dict[str, Any],
    folder: Path,
    *options: str,
    name: str = "a.pth",
) -> Any:
    rewriting.saved(one, folder / name)
    rewriting.saved(two, folder / "b.pth")
    done = inside(
        "warmstart", name, "--into", "b.pth", "-o", "c.pth", *options, cwd=folder
    )
    assert done.code == 1 and not (folder / "c.pth").exists(), done
    report = json.loads(
        inside(
            "warmstart",
            name,
            "--into",
            "b.pth",
            "-o",
            "c.pth",
            "--json",
            *options,
            cwd=folder,
        ).out
    )
    assert report["output"] is None and report["coverage"]["refused"]
    return done


def test_less_than_a_tenth_is_refused_and_a_number_accepts_it(tmp_path: Path) -> None:
    one = {"stem.weight": torch.ones(3, 3), "other.weight": torch.ones(7)}
    two = {"stem.weight": torch.zeros(3, 3), "body.weight": torch.zeros(300)}
    done = refused(one, two, tmp_path)
    assert re.search(
        r"loaded, less than 10 % of the model: nothing was written", done.complaints[0]
    )
    assert "loads 1 of 2 tensors" in done.lines[0]
    assert not [line for line in done.lines if line.startswith("loaded")]
    words = again(done)
    assert words[words.index("--min-coverage") + 1] == "0"
    assert inside(*words, cwd=tmp_path).code == 0
    assert torch.load(tmp_path / "c.pth")["stem.weight"].eq(1).all()


def test_less_than_a_half_is_refused_where_more_would_fit(tmp_path: Path) -> None:
    given = net(0).state_dict()
    one = {f"rgb.{name}": value for name, value in given.items()} | {
        f"flow.{name}": value for name, value in given.items()
    }
    two = net(1).state_dict() | {"extra.weight": torch.zeros(40)}
    one["extra.weight"] = torch.ones(40)
    done = refused(one, two, tmp_path)
    assert "less than half of the model, and more would fit" in done.complaints[0]
    assert inside(*again(done), cwd=tmp_path).code == 0
    assert torch.equal(torch.load(tmp_path / "c.pth")["fc.weight"], given["fc.weight"])


def test_shapes_alone_are_a_proposal(tmp_path: Path) -> None:
    given = net(0).state_dict()
    one = {f"features.{index}.t": value for index, value in enumerate(given.values())}
    done = refused(one, net(1).state_dict(), tmp_path)
    words = again(done)
    assert "--by-shape" in words
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0 and "by shape and order" in done.out.decode()
    result = torch.load(tmp_path / "c.pth")
    assert all(torch.equal(result[name], value) for name, value in given.items())


def blocks(
    begin: str, first: int, *parts: str, number: int = 3
) -> dict[str, torch.Tensor]:
    """The state of some blocks, each tensor with values of its own."""
    torch.manual_seed(len(begin) + first)
    names = [
        f"{begin}{n}.{part}.weight"
        for n in range(first, first + number)
        for part in parts
    ]
    return {name: torch.randn(4, 4) for name in names}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("encoder.", "decoder."),
        ("net.discriminator.", "net.generator."),
        ("text_model.", "vision_model."),
    ],
)
def test_twins_are_not_loaded_into_one_another(
    one: str, two: str, tmp_path: Path
) -> None:
    given = blocks(f"{one}layers.", 0, "fc1", "fc2")
    done = refused(given, blocks(f"{two}layers.", 0, "fc1", "fc2"), tmp_path)
    words = again(done)
    assert (
        words[words.index("--sub") + 1] == "s/^" + one.replace(".", "\\.") + f"/{two}/"
    )
    assert inside(*words, cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("one", "two"), [("attn", "cross_attn"), ("norm_cross", "norm"), ("q_lin", "k_lin")]
)
def test_words_of_another_part_are_only_a_proposal(
    one: str, two: str, tmp_path: Path
) -> None:
    given = blocks("h.", 0, one, "fc1", "fc2")
    rewriting.saved(given, tmp_path / "a.pth")
    rewriting.saved(blocks("h.", 0, two, "fc1", "fc2"), tmp_path / "b.pth")
    coverage = planned(
        inside(
            "warmstart", "a.pth", "--into", "b.pth", "--dry-run", "--json", cwd=tmp_path
        )
    )
    assert coverage["tensors"] == [6, 9]
    assert len(coverage["suggested"]) == 1


def test_shapes_do_not_pair_keys_with_queries(tmp_path: Path) -> None:
    given, mine = (
        blocks("h.", 0, "wk", "wq", "wv"),
        blocks("h.", 0, "q_proj", "k_proj", "v_proj"),
    )
    rewriting.saved(given, tmp_path / "a.pth")
    rewriting.saved(mine, tmp_path / "b.pth")
    done = inside(
        "warmstart",
        "a.pth",
        "--into",
        "b.pth",
        "--dry-run",
        "--by-shape",
        "--json",
        cwd=tmp_path,
    )
    rows = [row for row in planned(done)["pairs"] if row["status"] == "loaded"]
    assert {(row["pretrained"][4:], row["name"][4:]) for row in rows} == {
        ("wv.weight", "v_proj.weight")
    }


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("layer", "block"),
        ("layers.", "layers."),
        ("module.net.layer", "backbone.layer"),
    ],
)
@pytest.mark.parametrize(("firsts", "number"), [((1, 0), 4), ((1, 0), 12), ((0, 2), 4)])
def test_numbers_that_begin_elsewhere_are_refused(
    one: str, two: str, firsts: tuple[int, int], number: int, tmp_path: Path
) -> None:
    given = blocks(one, firsts[0], "fc1", "fc2", number=number)
    mine = blocks(two, firsts[1], "fc1", "fc2", number=4)
    done = refused(given, mine, tmp_path)
    assert "the numbers are probably shifted: nothing was written" in done.complaints[0]
    model = nn.Module()
    for name in mine:
        *path, last = name.split(".")
        at = model
        for part in path:
            at.add_module(part, at._modules.get(part) or nn.Module())
            at = at._modules[part]  # type: ignore[assignment]
        at.register_buffer(last, torch.zeros(4, 4))
    with pytest.raises(LossError) as caught:
        rewriting.filled(model, tmp_path / "a.pth")
    assert caught.value.hint is not None and caught.value.hint.startswith("sub=[")
    coverage = rewriting.filled(
        model, tmp_path / "a.pth", **eval(f"dict({caught.value.hint})")
    )
    assert coverage.share == 1
    assert inside(*again(done), cwd=tmp_path).code == 0
    result = torch.load(tmp_path / "c.pth")
    wanted = dict(zip(mine, given.values(), strict=False))
    assert all(torch.equal(result[name], value) for name, value in wanted.items())
    assert all(
        torch.equal(value, wanted[name]) for name, value in model.state_dict().items()
    )


def test_a_window_of_the_layers_is_not_shifted(tmp_path: Path) -> None:
    whole, part = (
        blocks("h.", 0, "fc1", "fc2", number=9),
        blocks("h.", 3, "fc1", "fc2", number=4),
    )
    for one, two in ((whole, part), (part, whole), (part, part)):
        rewriting.saved(one, tmp_path / "a.pth")
        rewriting.saved(two, tmp_path / "b.pth")
        done = inside(
            "warmstart", "a.pth", "--into", "b.pth", "--dry-run", "--json", cwd=tmp_path
        )
        assert done.code == 0 and planned(done)["tensors"][0] == 8


def test_no_option_is_proposed_that_loads_as_little(tmp_path: Path) -> None:
    integers = {name: value.int() for name, value in blocks("h.", 0, "fc1").items()}
    done = refused(blocks("h.", 0, "fc1"), integers, tmp_path)
    assert "(" not in done.complaints[0]


def llama(names: dict[str, str]) -> dict[str, torch.Tensor]:
    state = {
        names["embed"]: torch.ones(9, 4),
        names["norm"]: torch.ones(4),
        names["head"]: torch.ones(9, 4),
    }
    for layer in range(2):
        for part in names["parts"].split():
            state[f"{names['layer']}{layer}.{part}.weight"] = torch.ones(4, 4)
    return state


META = {
    "embed": "tok_embeddings.weight", "norm": "norm.weight", "head": "output.weight", "layer": "layers.",
    "parts": (
        "attention.wq attention.wk attention.wv attention.wo feed_forward.w1 "
        "feed_forward.w2 feed_forward.w3 attention_norm ffn_norm"
    ),
}  # fmt: skip
LLAMA = {
    "embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight",
    "layer": "model.layers.", "parts": "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
    "mlp.gate_proj mlp.down_proj mlp.up_proj input_layernorm post_attention_layernorm",
}  # fmt: skip


def gpt2(turned: bool) -> dict[str, torch.Tensor]:
    state = {"transformer.wte.weight": torch.ones(9, 4)}
    for part, shape in (
        ("attn.c_attn", (4, 12)),
        ("attn.c_proj", (4, 4)),
        ("mlp.c_fc", (4, 16)),
        ("mlp.c_proj", (16, 4)),
    ):
        value = torch.ones(shape)
        state[f"transformer.h.0.{part}.weight"] = (
            value.t().contiguous() if turned else value
        )
    return state


CONV = {"conv1.weight": torch.ones(4, 3, 7, 7), "fc.weight": torch.ones(3, 4)}


@pytest.mark.parametrize(
    ("one", "two", "name", "why"),
    [
        (llama(META), llama(LLAMA), "a.pth", "rotary"),
        (llama(LLAMA), llama(META), "a.pth", "rotary"),
        (gpt2(False), gpt2(True), "a.pth", "Conv1D"),
        (gpt2(True), gpt2(False), "a.pth", "Conv1D"),
        (CONV, CONV, "resnet50_caffe.pth", "BGR"),
        ({"model": CONV, "__author__": "Caffe2"}, CONV, "a.pth", "BGR"),
        ({"model": CONV, "matching_heuristics": True}, CONV, "a.pth", "BGR"),
    ],
)
def test_equal_shapes_in_another_layout_are_refused(
    one: dict[str, Any], two: dict[str, Any], name: str, why: str, tmp_path: Path
) -> None:
    done = refused(one, two, tmp_path, "--min-coverage", "0", name=name)
    text = " ".join(done.complaints)
    assert "same shapes, other layout" in text and why in text
    done = inside(*again(done), "--min-coverage", "0", cwd=tmp_path)
    assert done.code == 0, done


def test_the_same_layout_on_both_sides_is_no_obstacle(tmp_path: Path) -> None:
    for state in (llama(META), gpt2(False), CONV):
        rewriting.saved(state, tmp_path / "a.pth")
        rewriting.saved(state, tmp_path / "b.pth")
        assert (
            inside(
                "warmstart", "a.pth", "--into", "b.pth", "--dry-run", cwd=tmp_path
            ).code
            == 0
        )
    head = {"a.weight": torch.ones(3, 4), "b.weight": torch.ones(4, 4)}
    other = {
        "a.weight": torch.ones(4, 3),
        "b.weight": torch.ones(4, 4),
    }  # transposed, and not beside the square
    rewriting.saved(head, tmp_path / "a.pth")
    rewriting.saved(other, tmp_path / "b.pth")
    assert (
        inside("warmstart", "a.pth", "--into", "b.pth", "--dry-run", cwd=tmp_path).code
        == 0
    )


@pytest.mark.parametrize("option", ["--fuse", "--split"])
def test_parts_of_other_shapes_are_kept(option: str, tmp_path: Path) -> None:
    sides = (HF, TIMM) if option == "--fuse" else (TIMM, HF)
    one, two = vit(sides[0], 0).state_dict(), vit(sides[1], 1).state_dict()
    odd = "vit.layers.1.attention.k_proj.weight"
    (one if option == "--fuse" else two)[odd] = torch.ones(5, 8)
    rewriting.saved(one, tmp_path / "a.pth")
    rewriting.saved(two, tmp_path / "b.pth")
    words = ("warmstart", "a.pth", "--into", "b.pth", option)
    coverage = planned(inside(*words, "--dry-run", "--json", cwd=tmp_path))
    kept = [row for row in coverage["pairs"] if row["status"] == "kept"]
    assert [row["name"] for row in kept] == [
        "blocks.1.attn.qkv.weight" if option == "--fuse" else odd
    ]
    assert "[24, 8]" in kept[0]["why"]
    assert sum(row["rows"] is not None for row in coverage["pairs"]) == (
        9 if option == "--fuse" else 11
    )


@pytest.mark.parametrize("option", ["--fuse", "--split"])
def test_parts_of_a_target_without_memory_are_kept(option: str, tmp_path: Path) -> None:
    sides = (HF, TIMM) if option == "--fuse" else (TIMM, HF)
    one, two = vit(sides[0], 0).state_dict(), vit(sides[1], 1).state_dict()
    empty = (
        "blocks.1.attn.qkv.weight"
        if option == "--fuse"
        else "vit.layers.1.attention.k_proj.weight"
    )
    two[empty] = two[empty].to("meta")
    rewriting.saved(one, tmp_path / "a.pth")
    rewriting.saved(two, tmp_path / "b.pth")

    words = ("warmstart", "a.pth", "--into", "b.pth", option)
    coverage = planned(inside(*words, "--dry-run", "--json", cwd=tmp_path))

    kept = [row for row in coverage["pairs"] if row["status"] == "kept"]
    assert {row["name"] for row in kept} == {empty}
    assert {row["why"] for row in kept} == {
        "the target's tensor is on meta, without data"
    }


# --- what belongs to the old weights --------------------------------------------------


def training(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return {
        "model": state,
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3).state_dict(),
        "epoch": 7,
        "global_step": 900,
        "best_acc": 0.5,
        "args": {"lr": 0.1},
        "note": "x",
    }


@pytest.mark.parametrize("keep", [False, True])
def test_the_optimizer_and_the_counters_of_the_old_weights_go(
    keep: bool, tmp_path: Path
) -> None:
    model = net(1)
    rewriting.saved(net(0).state_dict(), tmp_path / "a.pth")
    rewriting.saved(training(model.state_dict(), model), tmp_path / "b.pth")
    words = [
        "warmstart",
        "a.pth",
        "--into",
        "b.pth",
        "-o",
        "c.pth",
        *(["--keep-optimizer"] if keep else []),
    ]
    report = json.loads(inside(*words, "--json", cwd=tmp_path).out)
    result = torch.load(tmp_path / "c.pth", weights_only=True)
    gone = ["optimizer", "scheduler", "epoch", "global_step", "best_acc"]
    stays = ["args", "note"]
    assert sorted(result) == sorted(["model", *stays, *(gone if keep else [])])
    assert [row["name"] for row in report["left_out"]] == ([] if keep else gone)
    assert sorted(row["name"] for row in report["left_alone"]) == sorted(
        [*stays, *(gone if keep else [])]
    )
    if not keep:
        done = inside(*words, "--force", cwd=tmp_path).out.decode()
        assert (
            "left out: optimizer: of the old weights" in done
            and "(--keep-optimizer)" in done
        )
        assert (
            "left out: epoch: 7, of the old weights" in done
            and "left alone: args" in done
        )


def test_old_state_beside_a_nested_model_goes_too(tmp_path: Path) -> None:
    model = net(1)
    nested = {"run": training(model.state_dict(), model), "epoch": 3}
    rewriting.saved(net(0).state_dict(), tmp_path / "a.pth")
    rewriting.saved(nested, tmp_path / "b.pth")
    assert (
        inside(
            "warmstart", "a.pth", "--into", "b.pth", "-o", "c.pth", cwd=tmp_path
        ).code
        == 0
    )
    result = torch.load(tmp_path / "c.pth", weights_only=True)
    assert list(result) == ["run"] and sorted(result["run"]) == [
        "args",
        "model",
        "note",
    ]
    assert torch.equal(
        result["run"]["model"]["fc.weight"], net(0).state_dict()["fc.weight"]
    )


def test_the_states_of_lightning_go_whole(tmp_path: Path) -> None:
    model = net(1)
    old = training(model.state_dict(), model)
    target = {
        "epoch": 3,
        "state_dict": {
            f"model.{name}": value for name, value in model.state_dict().items()
        },
        "optimizer_states": [old["optimizer"]],
        "lr_schedulers": [old["scheduler"]],
        "loops": {"fit_loop": {"epoch": 3}},
        "callbacks": {"x": 1},
    }
    rewriting.saved(net(0).state_dict(), tmp_path / "a.pth")
    rewriting.saved(target, tmp_path / "b.pth")
    done = inside(
        "warmstart", "a.pth", "--into", "b.pth", "-o", "c.pth", "--json", cwd=tmp_path
    )
    assert done.code == 0, done
    assert list(torch.load(tmp_path / "c.pth", weights_only=True)) == [
        "state_dict",
        "callbacks",
    ]
    names = [row["name"] for row in json.loads(done.out)["left_out"]]
    assert sorted(names) == ["epoch", "loops", "lr_schedulers", "optimizer_states"]


def test_old_state_under_any_name_and_the_average_go(tmp_path: Path) -> None:
    model = net(1)
    old = training(model.state_dict(), model)
    scaler = {
        "scale": 2.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 9,
        "_growth_tracker": 0,
    }
    target = {
        "state_dict": model.state_dict(),
        "state_dict_ema": net(2).state_dict(),
        "param_schedulers": [old["scheduler"]],
        "warmup": old["scheduler"],
        "MixedPrecision": scaler,
        "num_updates": 9,
        "training": {
            "optimizer": old["optimizer"],
            "scheduler": old["scheduler"],
            "epoch": 3,
            "seed": 4,
        },
        "optimizers": [old["optimizer"]],
        "args": {"epoch": 3},
    }
    rewriting.saved(net(0).state_dict(), tmp_path / "a.pth")
    rewriting.saved(target, tmp_path / "b.pth")
    words = ("warmstart", "a.pth", "--into", "b.pth", "-o", "c.pth", "--json")
    report = json.loads(inside(*words, cwd=tmp_path).out)
    result = torch.load(tmp_path / "c.pth", weights_only=True)
    assert list(result) == ["state_dict", "training", "args"] and result[
        "training"
    ] == {"seed": 4}
    assert [row["name"] for row in report["left_alone"]] == ["training.seed", "args"]
    report = json.loads(inside(*words, "--force", "--keep-optimizer", cwd=tmp_path).out)
    assert list(torch.load(tmp_path / "c.pth", weights_only=True)) == list(target)
    names = [row["name"] for row in report["left_alone"]]
    assert {
        "training.epoch",
        "training.scheduler",
        "training.seed",
        "training.optimizer",
    } <= set(names)


def test_a_tensor_called_step_in_the_model_stays(tmp_path: Path) -> None:
    state = {**net(0).state_dict(), "step": torch.tensor(3)}
    rewriting.saved(state, tmp_path / "a.pth")
    rewriting.saved(
        {**net(1).state_dict(), "step": torch.tensor(9)}, tmp_path / "b.pth"
    )
    assert (
        inside(
            "warmstart", "a.pth", "--into", "b.pth", "-o", "c.pth", cwd=tmp_path
        ).code
        == 0
    )
    assert torch.load(tmp_path / "c.pth")["step"] == 3


# --- slices ---------------------------------------------------------------------------


def test_a_slice_of_the_last_layer_does_not_count(tmp_path: Path) -> None:
    rewriting.saved(net(0, 50).state_dict(), tmp_path / "a.pth")
    rewriting.saved(net(1, 5).state_dict(), tmp_path / "b.pth")
    words = (
        "warmstart",
        "a.pth",
        "--into",
        "b.pth",
        "--on-mismatch",
        "slice",
        "-o",
        "c.pth",
        "--force",
    )
    coverage = planned(inside(*words, "--json", cwd=tmp_path))
    assert (
        coverage["head"] == [0, 35]
        and "sliced from the last layer" in coverage["notes"][0]
    )
    result = torch.load(tmp_path / "c.pth")
    assert torch.equal(result["fc.weight"], net(0, 50).state_dict()["fc.weight"][:5])
    coverage = planned(inside(*words, "--count-sliced", "--json", cwd=tmp_path))
    assert coverage["head"] == [35, 35] and coverage["notes"] == []


# --- the live function ----------------------------------------------------------------


def test_a_live_model_is_whole_or_untouched(tmp_path: Path) -> None:
    rewriting.saved({"other.weight": torch.ones(3)}, tmp_path / "a.pth")
    model = net(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(LossError, match="no pretrained tensor fits"):
        rewriting.filled(model, tmp_path / "a.pth")
    rewriting.saved(net(0, 9).state_dict(), tmp_path / "b.pth")
    with pytest.raises(
        LossError,
        match=r"% would be loaded, less than min_coverage=0\.99 of the model; not loaded: ",
    ):
        rewriting.filled(model, tmp_path / "b.pth", min_coverage=0.99)
    with pytest.raises(UsageError, match="does not fit"):
        rewriting.filled(model, tmp_path / "b.pth", on_mismatch="error")
    assert all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    with pytest.raises(UsageError, match="on meta"):
        rewriting.filled(net(1).to("meta"), tmp_path / "b.pth")
    coverage = rewriting.filled(
        model, tmp_path / "b.pth", on_mismatch="slice", sub=["s/^/x./", "s/^x[.]//"]
    )
    assert coverage.tensors == (23, 23)
    assert torch.equal(model.fc.weight, net(0, 9).fc.weight[:5])  # type: ignore[union-attr, index]


def test_what_is_no_model_and_no_keyword_is_an_error(tmp_path: Path) -> None:
    rewriting.saved({"x.weight": torch.ones(4, 4)}, tmp_path / "a.pth")
    model = nn.ModuleDict({"y": nn.Linear(4, 4, bias=False)})
    with pytest.raises(UsageError, match="dict is no torch"):
        rewriting.filled({"y": 1}, tmp_path / "a.pth")
    with pytest.raises(UsageError, match="on_mismatch='slices': not one of"):
        rewriting.filled(model, tmp_path / "a.pth", on_mismatch="slices")
    assert rewriting.filled(model, tmp_path / "a.pth", sub="s/^x/y/").share == 1


def test_a_live_model_in_another_dtype_and_a_wrapper(tmp_path: Path) -> None:
    rewriting.saved(net(0).state_dict(), tmp_path / "a.pth")
    model = nn.DataParallel(net(1).to(torch.float64))
    assert rewriting.filled(model, tmp_path / "a.pth").share == 1
    assert torch.equal(model.module.fc.weight, net(0).fc.weight.double())  # type: ignore[union-attr, operator]


def test_code_for_a_file_that_no_line_loads_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(b"not a checkpoint")
    rewriting.saved(net(1).state_dict(), tmp_path / "b.pth")
    done = inside("warmstart", "a.pth", "--into", "b.pth", "--print-code", cwd=tmp_path)
    assert done.code == 2 and not done.out
    with pytest.raises(CkptError):
        rewriting.filled(net(0), tmp_path / "a.pth")


# --- the lines of --print-code --------------------------------------------------------


@pytest.mark.parametrize("prefix", ["a\\1.", "\\g<0>.", "a\\", '"q".'])
def test_code_puts_any_beginning_in_front(prefix: str, tmp_path: Path) -> None:
    given = net(0).state_dict()
    names = {name: f"{prefix.rstrip('.')}.{name}" for name in given}
    rewriting.saved(given, tmp_path / "a.pth")
    rewriting.saved(
        {names[name]: value for name, value in net(1).state_dict().items()},
        tmp_path / "b.pth",
    )
    done = inside("warmstart", "a.pth", "--into", "b.pth", "--print-code", cwd=tmp_path)
    assert done.code == 0, done
    chosen: dict[str, torch.Tensor] = {}

    class Model:
        def state_dict(self) -> dict[str, torch.Tensor]:
            return {names[name]: value for name, value in net(1).state_dict().items()}

        def load_state_dict(self, state: dict[str, torch.Tensor], strict: bool) -> None:
            chosen.update(state)

    by_code(done.out.decode(), Model(), tmp_path)  # type: ignore[arg-type]
    assert chosen.keys() == set(names.values())
    assert all(torch.equal(chosen[names[name]], value) for name, value in given.items())


def test_code_takes_the_state_of_a_module(tmp_path: Path) -> None:
    given = net(0)
    torch.save(given, tmp_path / "whole.pth")
    torch.jit.script(given).save(str(tmp_path / "script.pt"))
    rewriting.saved(net(1).state_dict(), tmp_path / "b.pth")
    for name in ("whole.pth", "script.pt"):
        done = inside(
            "warmstart", name, "--into", "b.pth", "--print-code", cwd=tmp_path
        )
        assert done.code == 0, done
        model = by_code(done.out.decode(), net(2), tmp_path)
        assert all(
            torch.equal(value, given.state_dict()[key])
            for key, value in model.state_dict().items()
        )


def test_code_for_a_distributed_checkpoint_is_an_error_with_a_way(
    tmp_path: Path,
) -> None:
    torch.distributed.checkpoint.save(
        {"model": net(0).state_dict()}, checkpoint_id=tmp_path / "a", no_dist=True
    )
    rewriting.saved(net(1).state_dict(), tmp_path / "b.pth")
    done = inside("warmstart", "a", "--into", "b.pth", "--print-code", cwd=tmp_path)
    assert done.code == 2 and not done.out
    command = re.search(r"(ckpt slim .*)\)", done.complaints[0])
    assert command is not None and "no line of Python loads it" in done.complaints[0], (
        done
    )
    words = shlex.split(command[1])[1:]
    assert inside(*words, cwd=tmp_path).code == 0
    done = inside(
        "warmstart", words[-1], "--into", "b.pth", "--print-code", cwd=tmp_path
    )
    assert done.code == 0, done
    assert torch.equal(
        by_code(done.out.decode(), net(2), tmp_path).state_dict()["fc.bias"],
        net(0).state_dict()["fc.bias"],
    )

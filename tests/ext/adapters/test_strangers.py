"""Adapters and bases of strangers: many expressions, tied tensors, damage, NaN, and
files that are given for one another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import loras
import oracle
import pytest
import torch
from inside import inside
from loras import PREFIX, State, noise
from safetensors.torch import load_file

import ckpt
from ckpt.ext.adapters.config import Patterns
from ckpt.ext.adapters.verdicts import MergeCheck

pytestmark = oracle.QUIET
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def head_and_embedding() -> State:
    """LoRA on the head and on the embedding of `loras.base`."""
    embedding = f"{PREFIX}model.embed_tokens.lora_embedding_"
    return {
        **loras.pairs({HEAD: noise(30, 12)}),
        f"{embedding}A": noise(4, 30),
        f"{embedding}B": noise(12, 4),
    }


def expected_of_both(state: State, adapter: State) -> State:
    """The head and the embedding, each with what was learned of it."""
    up, down = (
        adapter[f"{PREFIX}model.embed_tokens.lora_embedding_{part}"] for part in "BA"
    )
    return {
        HEAD: state[HEAD] + loras.delta(adapter, "lm_head", 2.0),
        EMBEDDING: state[EMBEDDING] + 2.0 * (up @ down).T,
    }


def tied_base(path: Path, **more: torch.Tensor) -> State:
    state = loras.base()
    state[HEAD] = state[EMBEDDING]
    state |= more
    torch.save(state, path)
    return state


@pytest.mark.parametrize("out", ["out.pth", "out.safetensors"])
def test_what_was_learned_of_both_tied_tensors_stays(out: str, tmp_path: Path) -> None:
    state = tied_base(tmp_path / "base.pth")
    adapter = head_and_embedding()
    loras.save_adapter(adapter, tmp_path / "adapter")

    done = inside("merge", "base.pth", "adapter", "-o", out, cwd=tmp_path)

    assert done.code == 0, done.err
    path = tmp_path / out
    found = load_file(path) if path.suffix == ".safetensors" else torch.load(path)
    for name, expected in expected_of_both(state, adapter).items():
        assert loras.units(found[name], expected) <= 2, name
    said = done.out.decode()
    line = f"{HEAD}: shared the memory of {EMBEDDING}, which changes too, and has its"
    assert line in said
    assert "tie_word_embeddings in config.json must say false" in said
    words = ("diff", "base.pth", out, "--adapter", "adapter")
    assert inside(*words, cwd=tmp_path).code == 0


def test_a_third_name_of_tied_tensors_stays_as_in_the_base(tmp_path: Path) -> None:
    state = loras.base()
    state[HEAD] = state["other.weight"] = state[EMBEDDING]
    torch.save(state, tmp_path / "base.pth")
    adapter = head_and_embedding()
    folder = loras.save_adapter(adapter, tmp_path / "adapter")

    report = ckpt.merge(tmp_path / "base.pth", folder, out=tmp_path / "out.pth")

    found = torch.load(tmp_path / "out.pth")
    for name, expected in expected_of_both(state, adapter).items():
        assert loras.units(found[name], expected) <= 2, name
    assert torch.equal(found["other.weight"], state["other.weight"])
    rows = [row.what for row in report.left_alone if row.name == "other.weight"]
    assert rows and all(row.endswith("and stays as in BASE") for row in rows)


def test_a_tied_tensor_that_changes_along_is_part_of_the_merge(tmp_path: Path) -> None:
    tied_base(tmp_path / "base.pth")
    loras.save_adapter(loras.pairs({HEAD: noise(30, 12)}), tmp_path / "adapter")
    assert inside("merge", "base.pth", "adapter", "-o", "m.pth", cwd=tmp_path).code == 0

    words = ("diff", "base.pth", "m.pth", "--adapter", "adapter")
    done = inside(*words, cwd=tmp_path)
    assert done.code == 0 and done.out == b"1 of 1 pair is merged: adapter\n"

    found = torch.load(tmp_path / "m.pth")
    found[EMBEDDING] = found[EMBEDDING] * 2
    torch.save(found, tmp_path / "m.pth")
    done = inside(*words, cwd=tmp_path)
    assert (
        done.code == 1 and f"also changed: 1 tensor: {EMBEDDING}".encode() in done.out
    )


def test_parts_of_one_memory_are_not_tied(tmp_path: Path) -> None:
    whole = noise(14, 12, seed=3)
    state = {"m.q_proj.weight": whole[:8], "m.v_proj.weight": whole[8:]}
    torch.save(state, tmp_path / "base.pth")
    adapter = loras.pairs(state)
    folder = loras.save_adapter(adapter, tmp_path / "adapter")

    report = ckpt.merge(tmp_path / "base.pth", folder, out=tmp_path / "out.pth")

    assert report.left_alone == ()
    found = torch.load(tmp_path / "out.pth")
    for name, expected in loras.merged(state, adapter).items():
        assert loras.units(found[name], expected) <= 2, name


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["whole", "tokens"])
def test_nothing_that_is_no_number_takes_the_place_of_the_base(
    part: str, value: float, tmp_path: Path
) -> None:
    state = loras.base()
    base = loras.save_base(state, tmp_path / "base.safetensors")
    adapter = loras.pairs(loras.linear(state))
    name = f"{PREFIX}{HEAD}"
    rows = 30
    if part == "tokens":
        name, rows = (
            f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta",
            2,
        )
    adapter[name] = noise(rows, 12)
    adapter[name][1, 3] = value
    config = {"trainable_token_indices": {"embed_tokens": [3, 29]}}
    folder = loras.save_adapter(adapter, tmp_path / "adapter", **config)

    with pytest.raises(ckpt.UnsupportedError, match=r"holds NaN or Inf .exclude=GLOB"):
        ckpt.merge(base, folder, out=tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
    ckpt.merge(base, folder, exclude=name, out=tmp_path / "out.safetensors")


def test_a_count_that_was_trained_along_takes_the_place_of_the_base(
    tmp_path: Path,
) -> None:
    """modules_to_save may be a BatchNorm, which counts batches in int64."""
    count = "norm.num_batches_tracked"
    state = {**loras.base(), count: torch.tensor(3)}
    adapter = loras.pairs(loras.linear(state))
    adapter[f"{PREFIX}{count}"] = torch.tensor(8)
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")
    out = tmp_path / "out.safetensors"

    ckpt.merge(base, folder, out=out)

    assert load_file(out)[count] == 8
    report = ckpt.diff(base, out, adapter=folder)
    assert isinstance(report.account, MergeCheck)
    assert not report.account.differs and report.account.wholes == ((count, True),)
    report = ckpt.diff(base, base, adapter=folder)
    assert isinstance(report.account, MergeCheck)
    assert report.account.wholes == ((count, False),)
    adapter[f"{PREFIX}{count}"] = torch.tensor(8.5)
    folder = loras.save_adapter(adapter, tmp_path / "adapter")
    with pytest.raises(ckpt.UnsupportedError, match="float32, which does not become"):
        ckpt.merge(base, folder, out=out, force=True)


def test_a_damaged_byte_of_the_adapter_is_no_verdict(tmp_path: Path) -> None:
    state = loras.base()
    adapter = loras.pairs(loras.linear(state))
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(adapter, tmp_path / "adapter")
    (folder / "adapter_model.safetensors").unlink()
    file = folder / "adapter_model.bin"
    torch.save(adapter, file)
    ckpt.merge(base, folder, out=tmp_path / "good.safetensors")
    name = f"{PREFIX}model.layers.1.self_attn.up_proj.lora_B.weight"
    data = bytearray(file.read_bytes())
    data[bytes(data).index(adapter[name].numpy().tobytes()) + 7] ^= 1
    file.write_bytes(data)

    with pytest.raises(ckpt.DamagedDataError, match=r"1\.self_attn\.up_proj"):
        ckpt.diff(base, tmp_path / "good.safetensors", adapter=folder)
    with pytest.raises(ckpt.DamagedDataError, match=r"1\.self_attn\.up_proj"):
        ckpt.merge(base, folder, out=tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_an_adapter_in_the_place_of_its_base_is_told(tmp_path: Path) -> None:
    state = loras.base()
    adapter = loras.pairs(loras.linear(state))
    loras.save_adapter(adapter, tmp_path / "one")
    loras.save_adapter(adapter, tmp_path / "two")
    loras.save_base(state, tmp_path / "base.safetensors")
    for words, says in (
        (("one", "two"), "one: is an adapter itself: BASE is the model"),
        (
            ("one",),
            "one: an adapter alone, without the weights of its base (ckpt merge BASE",
        ),
        (("one", "base.safetensors"), "base.safetensors: holds no adapter"),
    ):
        done = inside("merge", *words, "-o", "out.safetensors", cwd=tmp_path)
        assert done.code == 2 and says in done.err.decode(), done.err
        assert done.err.count(b"\n") == 1


# --- settings -------------------------------------------------------------------------


def test_the_first_of_many_patterns_counts() -> None:
    names = [f"layers.{number}.q" for number in range(50_000)]
    found = Patterns("alpha_pattern", [*names, "q"])
    for number in range(0, 60_000, 7):
        expected = f"layers.{number}.q" if number < 50_000 else "q"
        assert found.first_at_end(f"m.layers.{number}.q") == expected
    assert found.first_at_end("m.layers.7.k") is None
    assert Patterns("r", ["b.c|x", "c", "b.c"]).first_at_end("a.b.c") == "b.c|x"
    assert Patterns("r", ["c", "b.c|x"]).first_at_end("a.b.c") == "c"
    assert Patterns("r", ["c", "(a+)+"]).first_at_end("a.b.c") == "c"


def test_many_expressions_are_refused_and_not_tried_for_hours(tmp_path: Path) -> None:
    state = loras.base()
    base = loras.save_base(state, tmp_path / "base.safetensors")
    patterns = {f"x{number}.*y": 3 for number in range(3_000)}
    folder = loras.save_adapter(
        loras.pairs(loras.linear(state)), tmp_path / "adapter", alpha_pattern=patterns
    )
    found = Patterns("alpha_pattern", patterns)
    found._left = 3_010
    assert found.first_at_end("a") is None
    with pytest.raises(ckpt.UnsupportedError, match="has 3,000 expressions, too many"):
        found.first_at_end("a")
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["alpha_pattern"] = {"(a+)+b": 1, **patterns}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ckpt.UnsupportedError, match="is not evaluated"):
        ckpt.merge(base, folder, dry_run=True)


@pytest.mark.parametrize("said", [["LORA"], {"LORA": 1}, 7, "IA3"])
def test_a_method_that_is_not_lora_is_refused(said: Any, tmp_path: Path) -> None:
    state = loras.base()
    base = loras.save_base(state, tmp_path / "base.safetensors")
    folder = loras.save_adapter(
        loras.pairs(loras.linear(state)), tmp_path / "adapter", peft_type=said
    )
    with pytest.raises(ckpt.UnsupportedError, match="and only LoRA is merged"):
        ckpt.merge(base, folder, dry_run=True)

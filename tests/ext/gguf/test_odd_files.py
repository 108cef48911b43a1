"""GGUF files that lie, are damaged or belong to no set: one line says it, and what can
be read is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import ggufs
import numpy as np
import pytest
import torch
from gguf_packers import PACKERS
from process import Run
from safetensors.torch import load_file, save_file

from ckpt import formats
from ckpt.model.errors import LimitError

ARCH = ("general.architecture", "str", "llama")
Pair = tuple[str, str, object]


def plain(name: str, rows: int = 2, value: float = 1.0) -> ggufs.Tensor:
    return ggufs.Tensor(name, (rows,), ggufs.F32, struct.pack("<f", value) * rows)


def one_line(done: object, *words: str) -> str:
    """The one line of a refusal, which has these words."""
    assert done.returncode == 2, done.stdout + done.stderr  # type: ignore[attr-defined]
    text: str = done.stderr  # type: ignore[attr-defined]
    assert text.count("\n") == 1, text
    assert all(word in text for word in words), text
    return text


# --- sets -----------------------------------------------------------------------------


def part(
    number: int,
    tensors: Sequence[ggufs.Tensor],
    count: int = 3,
    pairs: Sequence[Pair] = (ARCH,),
    **options: object,
) -> bytes:
    rows = [*pairs, ("split.count", "u16", count), ("split.no", "u16", number)]
    return ggufs.gguf(rows, tensors, **options)


def set_of(folder: Path, parts: Sequence[bytes | None]) -> Path:
    """Files of a set, of which those that are None are missing."""
    for number, data in enumerate(parts, 1):
        path = folder / f"m-{number:05d}-of-{len(parts):05d}.gguf"
        if data is not None:
            path.write_bytes(data)
    return min(folder.glob("m-*.gguf"))


WHOLE = [part(number, [plain(name)]) for number, name in enumerate("abc")]
SETS = {
    "one of two tensors of a name": (
        [WHOLE[0], part(1, [plain("a")]), WHOLE[2]],
        "tensor a is in m-00001-of-00003.gguf and in m-00002-of-00003.gguf",
    ),
    "the same file twice": ([WHOLE[0], WHOLE[0], WHOLE[2]], "number 1 of 3"),
    "a file of a larger set": (
        [WHOLE[0], part(1, [plain("b")], 4), WHOLE[2]],
        "number 2 of 4",
    ),
    "a file of no set": (
        [WHOLE[0], ggufs.gguf([ARCH], [plain("b")]), WHOLE[2]],
        "no part of a set",
    ),
    "no first file": ([None, *WHOLE[1:]], "1 of 3 files missing: m-00001-of-00003"),
    "a file that is cut off": ([WHOLE[0], WHOLE[1][:-33], WHOLE[2]], "cut off"),
    "a file that is none": ([WHOLE[0], b"garbage", WHOLE[2]], "m-00002-of-00003.gguf"),
}


@pytest.mark.parametrize("name", SETS)
def test_files_that_are_no_set_are_refused(
    ckpt: Run, tmp_path: Path, name: str
) -> None:
    parts, said = SETS[name]
    path = set_of(tmp_path, parts)
    for words in (["inspect", path], ["stats", path], ["diff", path, path]):
        one_line(ckpt(*words), said)


def test_a_set_of_more_files_than_the_limit_is_refused(
    ckpt: Run, tmp_path: Path
) -> None:
    path = tmp_path / "m-00001-of-60000.gguf"
    path.write_bytes(part(0, [plain("a")], 60_000))
    one_line(ckpt("inspect", path), "one of 60,000 files")


def test_a_part_alone_under_another_name_is_refused(ckpt: Run, tmp_path: Path) -> None:
    path = tmp_path / "alone.gguf"
    path.write_bytes(WHOLE[0])
    one_line(ckpt("inspect", path), "one of 3 files", "its name does not say which")


def test_metadata_of_the_first_file_counts(ckpt: Run, tmp_path: Path) -> None:
    other = part(1, [plain("b")], pairs=[("general.architecture", "str", "qwen2")])
    path = set_of(tmp_path, [WHOLE[0], other, WHOLE[2]])
    assert ckpt("get", path, "general.architecture").stdout == "llama\n"


# --- headers --------------------------------------------------------------------------


@pytest.mark.parametrize("kind, number", [("u64", 2**63), ("i32", -32), ("u32", 24)])
def test_an_alignment_that_is_none(
    ckpt: Run, tmp_path: Path, kind: str, number: int
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(
        ggufs.gguf([ARCH, ("general.alignment", kind, number)], [plain("a")])
    )
    one_line(ckpt("inspect", path), "damaged GGUF" if number < 2**62 else "cut off")


PLACES = {
    "past the end": (plain("b")._replace(offset=32_000_000), "cut off: tensor b"),
    "over another": (plain("b")._replace(offset=0), "overlap another tensor"),
    "between two places": (plain("b")._replace(offset=17), "not a multiple of 32"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_tensor_at_a_place_that_is_none(ckpt: Run, tmp_path: Path, name: str) -> None:
    odd, said = PLACES[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(ggufs.gguf([ARCH], [plain("a"), odd]))
    for words in (["inspect", path], ["sum", path]):
        one_line(ckpt(*words), said)


def test_a_gap_and_bytes_behind_the_end_are_told(ckpt: Run, tmp_path: Path) -> None:
    body = struct.pack("<2f", 1, 2) + bytes(24 + 64) + struct.pack("<2f", 3, 4)
    rows = [
        plain("a")._replace(data=body),
        plain("b")._replace(data=b"", offset=96),
    ]
    path = tmp_path / "x.gguf"
    path.write_bytes(ggufs.gguf([ARCH], rows, tail=bytes(100)))
    said = " ".join(ckpt("inspect", path).stdout.split())
    assert "tensor b begins at byte" in said and "and refuses the file" in said
    assert "100 bytes after the last tensor, which no loader reads" in said


def test_long_names_are_whole(ckpt: Run, tmp_path: Path) -> None:
    names = [f"{'n' * 115}.{number}" for number in range(20)]
    path, out = tmp_path / "x.gguf", tmp_path / "out.safetensors"
    path.write_bytes(ggufs.gguf([ARCH], [plain(name) for name in names]))
    assert ckpt("convert", path, "-o", out).returncode == 0
    assert sorted(load_file(out)) == sorted(names)


@pytest.mark.slow
def test_very_many_tensors_are_read(ckpt: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    rows = [
        ggufs.text(f"blk.{number}.attn_q.weight")
        + struct.pack("<IQIQ", 1, 1, ggufs.F32, 32 * number)
        for number in range(100_000)
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), 0) + b"".join(rows)
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(32 * len(rows)))
    assert "100,000 tensors" in ckpt("inspect", path).stdout
    one_line(ckpt("inspect", path, "--limit", "entries=99999"), "100,000", "entries")


# --- names and heads ------------------------------------------------------------------

HEADS: dict[str, Pair] = {
    "none": ("llama.attention.head_count", "u32", 0),
    "more than rows": ("llama.attention.head_count", "u64", 2**62),
    "no divisor of the rows": ("llama.attention.head_count", "u32", 3),
    "one for each block": ("llama.attention.head_count", "array", ("u32", [2, 2])),
    "a text": ("llama.attention.head_count", "str", "2"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_do_not_fit_are_refused(
    ckpt: Run, tmp_path: Path, name: str
) -> None:
    """Rows of q in an order that nobody knows are not written as if they were right."""
    path, out = tmp_path / "x.gguf", tmp_path / "out.safetensors"
    odd = ggufs.Tensor("blk.0.attn_q.weight", (2, 4), ggufs.F32, bytes(32))
    path.write_bytes(ggufs.gguf([ARCH, HEADS[name]], [odd]))
    done = ckpt("convert", path, "--recipe", "transformers", "-o", out)
    one_line(done, "no table has a name in transformers for blk.0.attn_q.weight")
    assert not out.exists()


def test_no_align_keeps_the_names(ckpt: Run, tmp_path: Path) -> None:
    path, base = tmp_path / "x.gguf", tmp_path / "b.safetensors"
    path.write_bytes(ggufs.gguf([ARCH], [plain("output_norm.weight")]))
    save_file({"model.norm.weight": torch.ones(2)}, base)
    assert "is within" in said_of_diff(ckpt, base, path)
    assert "renamed" in said_of_diff(ckpt, base, path, "--no-align")


def said_of_diff(ckpt: Run, *words: str | Path) -> str:
    done = ckpt("diff", *words)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_warmstart_names_the_way_that_helps(ckpt: Run, tmp_path: Path) -> None:
    """A recipe does not help where a table lacks a name."""
    base, path = tmp_path / "b.safetensors", tmp_path / "x.gguf"
    out = tmp_path / "out.safetensors"
    save_file({"model.norm.weight": torch.ones(2)}, base)
    for more, said in (
        ([], "--recipe transformers"),
        ([plain("blk.0.ssm_a")], "--ignore-layout"),
    ):
        path.write_bytes(ggufs.gguf([ARCH], [plain("output_norm.weight"), *more]))
        done = ckpt("warmstart", path, "--into", base, "-o", out)
        assert done.returncode == 1 and said in done.stderr, done.stderr
        assert not out.exists()


# --- writing commands -----------------------------------------------------------------

WRITING = (
    ["merge", "FILE", "ADAPTER", "-o", "OUT.safetensors"],
    ["slim", "FILE", "-o", "OUT.safetensors"],
    ["set", "FILE", "general.name=x", "-o", "OUT.gguf"],
    ["rename", "FILE", "--sub", "s/blk/b/", "-o", "OUT.gguf"],
)


@pytest.mark.parametrize("words", WRITING, ids=lambda words: words[0])
def test_what_writes_says_the_way_in_one_line(
    ckpt: Run, tmp_path: Path, words: list[str]
) -> None:
    path, adapter = tmp_path / "x.gguf", tmp_path / "adapter.safetensors"
    path.write_bytes(ggufs.small())
    save_file(
        {"a.lora_A.weight": torch.ones(2, 4), "a.lora_B.weight": torch.ones(4, 2)},
        adapter,
    )
    places = {"FILE": path, "ADAPTER": adapter}
    done = ckpt(
        *[
            str(places.get(word, word.replace("OUT", str(tmp_path / "out"))))
            for word in words
        ]
    )
    one_line(done, "keeps the format, and ckpt does not write GGUF", "ckpt convert")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_way_to_what_is_whole_works(
    ckpt: Run, tmp_path: Path, *, is_packed: bool
) -> None:
    kind, data = (ggufs.Q4_0, ggufs.q4_0(1.0)) if is_packed else (ggufs.F32, bytes(128))
    rows = [ggufs.Tensor(name, (32,), kind, data) for name in "ab"]
    path = tmp_path / "x.gguf"
    path.write_bytes(ggufs.gguf([ARCH], rows)[:-40])
    verified = ckpt("verify", path)
    assert verified.returncode == 1 and "lost: b" in verified.stdout
    refused = one_line(ckpt("salvage", path, "-o", tmp_path / "o.safetensors"))
    command = verified.stdout.splitlines()[1].split()
    assert command[:2] == ["ckpt", "convert"] and " ".join(command) in refused
    done = ckpt(*command[1:])
    assert done.returncode == 1, done.stderr
    assert list(load_file(command[-1])) == ["a"]


def test_recipe_takes_a_gguf_as_a_side(ckpt: Run, tmp_path: Path) -> None:
    values = np.arange(64, dtype="<f4").reshape(8, 8)
    path, other = tmp_path / "x.gguf", tmp_path / "b.safetensors"
    row = ggufs.Tensor("token_embd.weight", (8, 8), ggufs.F32, values.tobytes())
    path.write_bytes(ggufs.gguf([ARCH], [row]))
    save_file({"model.embed_tokens.weight": torch.from_numpy(values.copy())}, other)
    done = ckpt("recipe", path, other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "token_embd.weight" in done.stdout


# --- limits of types ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("F32", 1.001), ("F16", 1.01), ("Q8_0", 1.1), ("Q6_K", 1.15), ("Q5_0", 1.3)],
)
def test_a_tensor_that_is_larger_than_its_type_rounds_is_not_within(
    ckpt: Run, tmp_path: Path, kind: str, factor: float
) -> None:
    torch.manual_seed(3)
    weight = torch.randn(40, 256)
    base, path = tmp_path / "b.safetensors", tmp_path / "x.gguf"
    save_file({"model.embed_tokens.weight": weight}, base)
    number, _, pack = PACKERS[kind]
    for times, code in ((1.0, 0), (factor, 1)):
        data = pack((weight * times).numpy())
        row = ggufs.Tensor("token_embd.weight", (256, 40), number, data)
        path.write_bytes(ggufs.gguf([ARCH], [row]))
        done = ckpt("diff", base, path)
        assert done.returncode == code, done.stdout


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text", b"\xff" * 60_000_000),
        ("numbers", bytes(20_000_000)),
        ("texts", (struct.pack("<Q", 1) + b"a") * 4_000_000),
    ],
)
def test_values_are_counted_before_they_are_made(
    kind: str, content: bytes, tmp_path: Path
) -> None:
    if kind == "text":
        body = struct.pack("<IQ", 8, len(content)) + content
    else:
        item, size = (3, 2) if kind == "numbers" else (8, 9)
        body = struct.pack("<IIQ", 9, item, len(content) // size) + content
    path = tmp_path / "a.gguf"
    path.write_bytes(ggufs.gguf([ggufs.text("key") + body]))

    with pytest.raises(LimitError, match="the GGUF header needs too much memory"):
        formats.open(str(path))

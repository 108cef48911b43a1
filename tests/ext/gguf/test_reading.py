"""GGUF through the command line and `ckpt.open`: what is read of it, what is written of
it, and what is refused.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import ggufs
import numpy as np
import pytest
import torch
from process import Run
from safetensors.torch import load_file

import ckpt as library

DATA = Path(__file__).parent / "data"
SPLIT = [f"split-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(ggufs.small())
    return path


def test_inspect_says_what_it_is_and_how_many_bits_a_weight_takes(
    ckpt: Run, small: Path
) -> None:
    done = ckpt("inspect", small)
    assert done.returncode == 0
    assert "GGUF" in done.stdout
    assert "Q4_0 96.0 %, float32 4.0 %" in done.stdout
    assert "5.6 bits per weight" in done.stdout
    assert "architecture 'llama'" in done.stdout
    assert "license 'mit'" in done.stdout
    assert "llama_cpp.Llama(" in done.stdout


def test_shapes_are_torch_s_and_sizes_those_of_the_blocks(
    ckpt: Run, small: Path
) -> None:
    document = json.loads(ckpt("inspect", "--json", small).stdout)
    rows = {row["name"]: row for row in document["tensors"]}
    embedding = rows["token_embd.weight"]
    assert (embedding["shape"], embedding["dtype"], embedding["bytes"]) == (
        [3, 32],
        "Q4_0",
        54,
    )
    assert document["file"]["format"] == "gguf"
    assert document["totals"]["bytes"] == 54 + 16


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("general.architecture", "llama"),
        ("llama.block_count", "1"),
        ("llama.rope.freq_base", "10000.0"),
        ("tokenizer.ggml.add_bos_token", "True"),
        ("tokenizer.chat_template", "{{ messages }}"),
    ],
)
def test_get_takes_the_keys_of_the_metadata(
    ckpt: Run, small: Path, name: str, text: str
) -> None:
    done = ckpt("get", small, name)
    assert (done.returncode, done.stdout.strip()) == (0, text)


def test_get_takes_arrays(ckpt: Run, small: Path) -> None:
    document = json.loads(ckpt("get", "--json", small, "tokenizer.ggml.tokens").stdout)
    assert document["value"] == ["a", "b", "\u00e9"]


def test_a_long_array_is_told_by_its_length_and_read_when_asked(ckpt: Run) -> None:
    document = json.loads(ckpt("inspect", "--json", DATA / "tiny.gguf").stdout)
    tokens = next(
        row for row in document["values"] if row["name"] == "tokenizer.ggml.tokens"
    )
    assert (tokens["type"], tokens["fields"], tokens["value"]) == (
        "list of str",
        300,
        None,
    )
    whole = json.loads(
        ckpt("get", "--json", DATA / "tiny.gguf", "tokenizer.ggml.tokens").stdout
    )
    assert whole["value"] == [f"token {number}" for number in range(300)]
    scores = json.loads(
        ckpt("get", "--json", DATA / "tiny.gguf", "tokenizer.ggml.scores").stdout
    )
    assert scores["value"][-1] == 299 / 8


def test_after_very_many_short_arrays_the_others_are_told_by_their_length(
    ckpt: Run, tmp_path: Path
) -> None:
    """A byte becomes an int of 36 bytes: 100 MB of them would take 4 GB."""
    array = struct.pack("<IIQ", 9, 1, 256) + b"\x9c" * 256
    path = tmp_path / "x.gguf"
    path.write_bytes(
        ggufs.gguf([ggufs.text(f"key{number}") + array for number in range(300)])
    )
    rows = {row.name: row for row in library.inspect(path).checkpoint.values}
    assert rows["key255"].node == [-100] * 256
    assert (rows["key256"].type, rows["key256"].fields) == ("list of int", 256)
    assert (
        json.loads(ckpt("get", "--json", path, "key299").stdout)["value"]
        == [-100] * 256
    )


def test_bytes_in_a_vocabulary_that_are_no_text_stay_visible(
    tmp_path: Path, ckpt: Run
) -> None:
    array = ggufs.text("t") + struct.pack("<IIQ", 9, 8, 1) + ggufs.text(b"a\xff")
    path = tmp_path / "x.gguf"
    path.write_bytes(ggufs.gguf([array]))
    assert json.loads(ckpt("get", "--json", path, "t").stdout)["value"] == ["a\\xff"]


def test_numpy_gives_the_decoded_elements(small: Path) -> None:
    with library.open(small) as file:
        values = file["token_embd.weight"].numpy()
    codes = np.arange(32) % 16 - 8
    assert np.array_equal(values, np.outer([1.0, 0.5, -2.0], codes).astype("f4"))


def test_stats_count_the_decoded_elements(ckpt: Run, small: Path) -> None:
    rows = json.loads(ckpt("stats", "--json", small).stdout)["tensors"]
    row = next(row for row in rows if row["name"] == "token_embd.weight")
    assert (row["min"], row["max"], row["zeros"]) == (-14.0, 16.0, 6)


def test_blocks_that_were_taken_back_are_said_to_be_equal(
    ckpt: Run, small: Path
) -> None:
    """The row of a tensor in blocks says of the values what that of float16 says."""
    out = small.with_name("s.safetensors")
    ckpt("convert", small, "--dequantize", "-o", out)
    lines = ckpt("diff", small, out).stdout.splitlines()
    rows = [line for line in lines if line.endswith("→ float32, values are equal")]
    assert rows and len(rows) == sum(" → float32" in line for line in lines)


@pytest.mark.parametrize("name", SPLIT)
def test_any_file_of_a_set_opens_all(ckpt: Run, name: str) -> None:
    done = ckpt("diff", DATA / name, DATA / "tiny.gguf")
    assert done.returncode == 0, done.stdout
    assert "same: 6 tensors" in done.stdout
    text = ckpt("inspect", DATA / name).stdout
    assert "GGUF, 3 files" in text
    assert f'llama_cpp.Llama("{DATA / SPLIT[0]}")' in text
    # It is whole, so that it is no part of its folder.
    assert "part of" not in text


def test_a_set_lacks_a_file(ckpt: Run, tmp_path: Path) -> None:
    for name in SPLIT[:2]:
        shutil.copy(DATA / name, tmp_path)
    done = ckpt("inspect", tmp_path / SPLIT[0])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"1 of 3 files missing: {SPLIT[2]}" in done.stderr
    out = tmp_path / "out.safetensors"
    partial = ckpt(
        "convert", tmp_path / SPLIT[1], "-o", out, "--dtype", "float32", "--partial"
    )
    assert partial.returncode == 1
    assert 0 < len(load_file(out)) < 6


def test_a_file_of_another_set_is_refused(ckpt: Run, tmp_path: Path) -> None:
    for name in SPLIT:
        shutil.copy(DATA / name, tmp_path)
    shutil.copy(DATA / SPLIT[1], tmp_path / SPLIT[2])
    done = ckpt("inspect", tmp_path / SPLIT[0])
    assert done.returncode == 2
    assert "says that it is number 2 of 3" in done.stderr


def names_listed(lines: str) -> list[str]:
    return [Path(json.loads(line)["file"]["path"]).name for line in lines.splitlines()]


def test_a_folder_lists_a_set_once(ckpt: Run, tmp_path: Path) -> None:
    for name in (*SPLIT, "tiny.gguf"):
        shutil.copy(DATA / name, tmp_path)
    assert names_listed(ckpt("ls", "--json", tmp_path).stdout) == [
        SPLIT[0],
        "tiny.gguf",
    ]
    os.remove(tmp_path / SPLIT[0])
    assert names_listed(ckpt("ls", "--json", tmp_path).stdout) == [
        *SPLIT[1:],
        "tiny.gguf",
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_convert_decodes_as_torch_casts(ckpt: Run, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "out.safetensors"
    done = ckpt("convert", DATA / "blocks.gguf", "-o", out, "--dtype", dtype)
    assert done.returncode == 0, done.stderr
    assert "left out: __metadata__" in done.stdout
    kind = getattr(torch, dtype)
    with library.open(DATA / "blocks.gguf") as file:
        for name, tensor in load_file(out).items():
            assert tensor.dtype == kind
            expected = torch.from_numpy(file[name].numpy()).to(kind)
            assert torch.equal(tensor.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_dequantize_without_a_dtype_gives_the_numbers_that_llama_cpp_computes_with(
    ckpt: Run, tmp_path: Path
) -> None:
    for number, options in enumerate((("--dequantize",), ("--dtype", "float32"))):
        done = ckpt(
            "convert",
            DATA / "tiny.gguf",
            *options,
            "-o",
            tmp_path / f"{number}.safetensors",
        )
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / f"{number}.safetensors") for number in range(2))

    assert {tensor.dtype for tensor in one.values()} == {torch.float32}
    assert one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) for name in one
    )


def test_convert_to_a_pickle_decodes_too(ckpt: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.pth"
    assert (
        ckpt("convert", DATA / "tiny.gguf", "-o", out, "--dtype", "float32").returncode
        == 0
    )
    state = torch.load(out)
    with library.open(DATA / "tiny.gguf") as file:
        assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
            name: file[name].shape for name in file
        }
        name = "blk.0.attn_q.weight"
        assert np.array_equal(state[name].numpy(), file[name].numpy())


@pytest.mark.parametrize("out", ["out.safetensors", "out.pth"])
@pytest.mark.parametrize("command", ["convert", "slim"])
def test_the_command_that_works_instead_writes_where_it_was_asked(
    ckpt: Run, tmp_path: Path, command: str, out: str
) -> None:
    place = tmp_path / out
    done = ckpt(command, DATA / "tiny.gguf", "-o", place)
    assert done.returncode == 2
    words = shlex.split(done.stderr.partition("(ckpt ")[2].rstrip(")\n"))
    assert words[0] == "convert" and words[-2:] == ["-o", str(place)]
    assert ckpt(*words).returncode == 0
    assert place.exists()


@pytest.mark.parametrize("out", ["out.safetensors", "out.pth", "out"])
def test_blocks_are_not_written(ckpt: Run, tmp_path: Path, out: str) -> None:
    words = ["--format", "dcp"] if out == "out" else []
    done = ckpt("convert", DATA / "tiny.gguf", "-o", tmp_path / out, *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "holds no blocks of Q4_0, Q8_0 (ckpt convert " in done.stderr
    assert "--dtype bfloat16 -o " in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["rehome", "FILE"],
        ["rehome", "FILE", "--in-place"],
        ["rehome", "FILE", "-o", "OUT.gguf"],
        ["strip", "FILE", "-o", "OUT.safetensors"],
        ["rename", "FILE", "--sub", "s/attn/a/", "--in-place"],
        ["slim", "FILE", "-o", "OUT.pth"],
        ["set", "FILE", "general.name=x", "--in-place"],
        ["convert", "FILE", "-o", "OUT.gguf"],
        ["salvage", "FILE", "-o", "OUT.safetensors"],
        ["warmstart", "FILE", "--into", "FILE", "-o", "OUT.safetensors"],
    ],
)
def test_no_command_changes_or_writes_gguf(
    ckpt: Run, tmp_path: Path, words: list[str]
) -> None:
    path = tmp_path / "tiny.gguf"
    shutil.copy(DATA / "tiny.gguf", path)
    before = path.read_bytes()
    done = ckpt(
        *[
            word.replace("FILE", str(path)).replace("OUT", str(tmp_path / "out"))
            for word in words
        ]
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(r"ckpt (does not write GGUF|reads GGUF and does not)", done.stderr)
    assert path.read_bytes() == before
    assert [row.name for row in tmp_path.iterdir()] == ["tiny.gguf"]


def test_warmstart_takes_the_weights(ckpt: Run, tmp_path: Path) -> None:
    target, out = tmp_path / "target.safetensors", tmp_path / "out.safetensors"
    ckpt("convert", DATA / "tiny.gguf", "-o", target, "--dtype", "bfloat16")
    done = ckpt("warmstart", DATA / "tiny.gguf", "--into", target, "-o", out)
    assert done.returncode == 0, done.stderr
    assert {name: row.tolist() for name, row in load_file(out).items()} == {
        name: row.tolist() for name, row in load_file(target).items()
    }


def test_sums_are_of_the_blocks_and_alike_in_both_orders_of_bytes(ckpt: Run) -> None:
    assert (
        ckpt("sum", DATA / "big.gguf").stdout
        == ckpt("sum", DATA / "little.gguf").stdout
    )
    changed = ckpt("sum", DATA / "tiny.gguf").stdout
    assert changed != ckpt("sum", DATA / "little.gguf").stdout


def test_diff_compares_numbers_of_blocks(ckpt: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    data = bytearray((DATA / "little.gguf").read_bytes())
    with library.open(DATA / "little.gguf") as file:
        place = file.checkpoint.tensors[0].tensor.storage.place
    data[place.offset + 5] ^= 0x0F  # a code of the first block
    path.write_bytes(data)
    document = json.loads(ckpt("diff", "--json", DATA / "little.gguf", path).stdout)
    changed = [row for row in document["tensors"] if row["status"] == "changed"]
    assert [row["change"]["differing"] for row in changed] == [1]
    assert ckpt("diff", DATA / "little.gguf", DATA / "big.gguf").returncode == 0


def test_a_listing_of_blocks_is_read_back(ckpt: Run, tmp_path: Path) -> None:
    listing = tmp_path / "listing.json"
    listing.write_text(ckpt("inspect", "--json", DATA / "tiny.gguf").stdout)
    done = ckpt("diff", "--structure", listing, DATA / "tiny.gguf")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tensor_that_cannot_be_read_is_not_within(ckpt: Run, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes((DATA / "tiny.gguf").read_bytes()[:-300])
    done = ckpt("diff", path, DATA / "tiny.gguf")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_verify_says_that_there_are_no_checksums(ckpt: Run) -> None:
    done = ckpt("verify", DATA / SPLIT[0])
    assert done.returncode == 0
    assert "intact: 6 tensors" in done.stdout
    assert "no checksums" in done.stdout


def test_a_file_that_is_cut_off_gives_what_is_whole(ckpt: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "cut.gguf", tmp_path / "out.safetensors"
    path.write_bytes((DATA / "tiny.gguf").read_bytes()[:-300])
    done = ckpt("inspect", path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cut off: tensor" in done.stderr
    partial = ckpt("convert", path, "-o", out, "--dtype", "float32", "--partial")
    assert partial.returncode == 1
    # The names are those of a whole file.
    assert "values of GGUF: general.architecture" in partial.stdout
    whole = load_file(out)
    with library.open(DATA / "tiny.gguf") as file:
        assert 0 < len(whole) < len(file)
        for name, tensor in whole.items():
            assert np.array_equal(tensor.numpy(), file[name].numpy())


def test_the_core_works_without_the_extension(tmp_path: Path, small: Path) -> None:
    """Whoever deletes the folder has a program that names the files it does not
    read.
    """
    root = Path(library.__file__).parent
    shutil.copytree(
        root, tmp_path / "ckpt", ignore=shutil.ignore_patterns("__pycache__", "gguf")
    )
    words = [sys.executable, "-m", "ckpt", "inspect"]
    done = subprocess.run([*words, small], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "GGUF (llama.cpp)" in done.stderr
    other = tmp_path / "w.pth"
    torch.save({"w": torch.ones(2)}, other)
    assert (
        subprocess.run([*words, other], cwd=tmp_path, capture_output=True).returncode
        == 0
    )

"""The laws of account: for every format and size, what goes into a command is in its
result or in a list that it prints.

The result has the dtype, the device and the names that were asked for. A changed byte
is found, or refused, by every command that reads it.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import accounts
import oracle
import pytest
import torch
from accounts import KEYS, RANKS, SIZES, SOURCES, Size, weights
from inside import inside
from once import once, script
from paths import IS_THOROUGH
from process import Done
from safetensors.torch import save_file

pytestmark = [*oracle.QUIET, pytest.mark.slow]

DAILY = {Size(3, True, 1), Size(64, False, 2), Size(2_100, False, 2)}
"""The sizes of every day. Of 2,100 tensors only what is in MANY, and most sizes go the
ways of OFTEN.
"""
MANY = {
    ("optimizer", "slim"),
    ("torch-zip", "to dcp"),
    ("dcp of two ranks", "to safetensors"),
    ("safetensors", "to zip"),
}
OFTEN = {"slim", "to safetensors", "bfloat16 zip", "float32 dcp"}
CASES = [
    (name, size)
    for name in (*(source.name for source in SOURCES), *RANKS)
    for size in SIZES
    if IS_THOROUGH or size in DAILY
]
FLAT = {source.name for source in SOURCES if source.is_flat} | {"dcp-hf"}
MOST = {source.name: source.most for source in SOURCES}


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What several ranks have written. Nothing may be changed there."""
    chosen = {size._replace(depth=0) for _, size in CASES} | {size for _, size in CASES}
    run = script("accounts.py", *sorted(size.text for size in chosen))
    return once(tmp_path_factory, "accounts", run)


class Row(NamedTuple):
    """A tensor: its dtype, its shape, its device, and the hash of its elements."""

    dtype: str
    shape: tuple[int, ...]
    device: str | None
    digest: str


def run(*words: str, cwd: Path, code: int | None = 0) -> Done:
    done = inside(*words, cwd=cwd)
    assert code is None or done.code == code, (words, done)
    return done


def tensors(path: str, cwd: Path) -> dict[str, Row]:
    """Every tensor of a checkpoint by its full name."""
    document = json.loads(run("inspect", path, "--json", cwd=cwd).out)
    digests = dict(
        line.split("  ", 1)[::-1] for line in run("sum", path, "--all", cwd=cwd).lines
    )
    rows = {
        row["name"]: Row(
            row["dtype"], tuple(row["shape"]), row["device"], digests[row["name"]]
        )
        for row in document["tensors"]
    }
    assert (
        len(rows)
        == len(document["tensors"])
        == document["totals"]["tensors"]
        == len(digests)
    )
    return rows


def made(name: str, size: Size, folder: Path, ranks: Path) -> str:
    """The path of a checkpoint in a folder."""
    if name in RANKS:
        shutil.copytree(accounts.of_ranks(ranks, name, size), folder / "d")
        return "d"
    (source,) = [source for source in SOURCES if source.name == name]
    return str(source.make(folder, size).relative_to(folder))


def inner(name: str) -> str:
    """The name of a weight without the keys above it."""
    return name[name.index("layers.") :] if "layers." in name else name


def listed(report: dict[str, Any], names: Collection[str]) -> int:
    """How many tensors a report lists as left out: by name, or a section with its
    count.
    """
    found = 0
    for row in report["left_out"]:
        count = re.search(r"([\d,]+) tensors?\b", row["what"])
        is_tensor = row["name"] in names
        found += int(count[1].replace(",", "")) if count else is_tensor
    return found


NUMBERS = ("--optimizer-keys", "numbers")
"""The layers have one shape, so the optimizer has no names that are sure."""


class Way(NamedTuple):
    """A command that writes: what it is asked for. A `model` alone is written under the
    names in it.
    """

    words: tuple[str, ...]
    out: str
    is_model: bool = False
    dtype: str = ""
    rename: tuple[str, str] = ("\0", "\0")
    device: str | None = None
    has_adapter: bool = False


def adapters_of(asked: Way, size: Size, folder: Path) -> list[str]:
    """The path of an adapter of every weight, which adds nothing: B is zeros. A command
    that takes none has no path.
    """
    if not asked.has_adapter:
        return []
    state: dict[str, torch.Tensor] = {}
    for name, weight in weights(size).items():
        if weight.dim() == 2:
            module = name.removesuffix(".weight")
            state[f"{module}.lora_A.weight"] = torch.ones(2, weight.shape[1])
            state[f"{module}.lora_B.weight"] = torch.zeros(weight.shape[0], 2)
            state[f"{module}.alpha"] = torch.tensor(2.0)
    save_file(state, folder / "adapter.safetensors")
    return ["adapter.safetensors"]


WAYS = {
    "rehome": Way(("rehome", "--to", "cuda:1"), "", device="cuda:1"),
    "rename": Way(
        ("rename", "--sub", "s/^layers/blocks/"), "", rename=("layers.", "blocks.")
    ),
    "slim": Way(("slim",), "", is_model=True),
    "salvage": Way(("salvage",), ""),
    "merge": Way(("merge",), "", is_model=True, has_adapter=True),
    "plain": Way(("convert", "--plain"), "o.pth"),
    "to zip": Way(("convert",), "o.pth"),
    "to legacy": Way(("convert", "--format", "torch-legacy"), "o.pth"),
    "to safetensors": Way(("convert",), "o.safetensors", is_model=True),
    "to shards": Way(("convert", "--shard-size", "2K"), "o.safetensors", is_model=True),
    "to dcp": Way(("convert", *NUMBERS), "o.dcp"),
    "part to dcp": Way(("convert", "--include", "*"), "o.dcp", is_model=True),
    "to dcp of ranks": Way(("convert", *NUMBERS, "--ranks", "3"), "o.dcp"),
    "bfloat16 zip": Way(("convert", "--dtype", "bfloat16"), "o.pth", dtype="bfloat16"),
    "bfloat16 safetensors": Way(
        ("convert", "--dtype", "bfloat16"),
        "o.safetensors",
        is_model=True,
        dtype="bfloat16",
    ),
    "float32 dcp": Way(
        ("convert", *NUMBERS, "--dtype", "float32"), "o.dcp", dtype="float32"
    ),
}
REFUSED = {
    "rehome": {
        "safetensors",
        "sharded",
        "no index",
        "dcp",
        "dcp of two ranks",
        "dcp-hf",
        "trainer",
        "gguf",
    },
    "rename": {"torchscript", "gguf"},
    "slim": {"gguf"},
    "salvage": {"gguf"},
    "merge": {"gguf"},
}
"""What a format has no place for: devices, names that are not code."""
STAY = {"safetensors", "sharded", "no index", "trainer", "dcp-hf"}
"""What stays safetensors in all commands but convert."""


def cases() -> Iterator[Any]:
    seen: set[tuple[str, Size, str]] = set()
    for name, size in CASES:
        flat = size._replace(depth=0) if name in FLAT else size
        for way in WAYS:
            daily = (
                (name, way) in MANY
                if size.count > 1_000
                else size == Size(64, False, 2) or way in OFTEN
            )
            if (
                size.count > MOST.get(name, 2_100)
                or (name, flat, way) in seen
                or not (IS_THOROUGH or daily)
            ):
                continue
            seen.add((name, flat, way))
            yield pytest.param(name, flat, way, id=f"{name}-{flat.text}-{way}")


@pytest.mark.parametrize("name, size, way", list(cases()))
def test_what_goes_in_comes_out_or_is_listed(
    name: str, size: Size, way: str, tmp_path: Path, ranks: Path
) -> None:
    source = made(name, size, tmp_path, ranks)
    before = tensors(source, tmp_path)
    asked = WAYS[way]
    out = asked.out or ("o.safetensors" if name in STAY else "o.pth")
    words = (*asked.words, source, *adapters_of(asked, size, tmp_path))
    done = run(*words, "-o", out, "--json", cwd=tmp_path, code=None)
    if done.code:
        check_refusal(done, out, tmp_path, name in REFUSED.get(way, ()))
        return
    report = json.loads(done.out)
    if not report["changes"] and not (tmp_path / out).exists():
        return  # it is so already, and says so
    result = str(
        next(tmp_path.glob("o*.index.json"), tmp_path / out).relative_to(tmp_path)
    )
    after = tensors(result, tmp_path)
    assert len(before) == len(after) + listed(report, before), (
        "a tensor is neither in the result nor in the list"
    )
    by_name = {
        inner(key) if asked.is_model else key: row for key, row in before.items()
    }
    kept = {row["name"] for row in report["left_alone"]}
    for key, row in after.items():
        old = by_name[key.replace(*reversed(asked.rename))]
        is_cast = asked.dtype and row.dtype != old.dtype
        assert row.shape == old.shape
        if is_cast:
            assert row.dtype == asked.dtype and old.dtype.startswith(
                ("float", "bfloat")
            ), key
        else:
            assert (row.dtype, row.digest) == (old.dtype, old.digest), key
            floats = (
                row.dtype.startswith(("float", "bfloat")) and row.dtype != asked.dtype
            )
            is_model = "layers." in key
            assert not (asked.dtype and floats and is_model) or key in kept, (
                f"{key} is not cast, and not listed"
            )
        if asked.device:
            assert row.device == asked.device
    loaded = (
        None
        if name == "torchscript" and way in ("rehome", "salvage")
        else load(tmp_path / out)
    )
    if loaded is not None:
        expected = {inner(key): tensor for key, tensor in weights(size).items()}
        for path, tensor in loaded:
            key = ".".join(map(str, path)).replace(*reversed(asked.rename))
            own = expected.get(inner(key))
            if own is not None and "optim" not in str(path):
                assert torch.equal(tensor, own.to(tensor.dtype))


def check_refusal(done: Done, out: str, cwd: Path, is_known: bool) -> None:
    """Assert that a refusal is one line, that nothing was written, and that it is one
    that we know.
    """
    assert done.code == 2 and done.out.count(b"\n") <= 1 and not list(cwd.glob("o*")), (
        done
    )
    assert is_known, done


def load(path: Path) -> list[Any] | None:
    """The tensors that torch or safetensors find; None for what neither loads without a
    model.
    """
    if path.suffix == ".pth" and path.is_file():
        return list(
            oracle.leaves(torch.load(path, weights_only=False, map_location="cpu"))
        )
    if path.suffix == ".safetensors" and path.is_file():
        from safetensors.torch import load_file

        return [((key,), tensor) for key, tensor in load_file(path).items()]
    return None


HAS_SUMS = {source.name for source in SOURCES if source.has_sums} | {
    "dcp of two ranks",
    "fsdp ranks",
}


def damage(folder: Path, name: str, size: Size) -> None:
    """Change one bit of the elements of a weight in the middle."""
    weight = list(weights(size).values())[size.count // 2 // 4 * 4]
    if name == "deflated":
        with zipfile.ZipFile(folder / "a.pth") as archive:
            (info,) = [
                each
                for each in archive.infolist()
                if each.file_size == weight.nbytes
                and archive.read(each.filename) == oracle.raw(weight)
            ]
        at, path = (
            info.header_offset + 30 + len(info.filename) + info.compress_size // 2,
            folder / "a.pth",
        )
    else:
        row = oracle.raw(weight)[:24]  # the first rank has it
        held = [
            (path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()
        ]
        ((path, at),) = [
            (path, data.index(row) + 9) for path, data in held if row in data
        ]
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


DAMAGED = [
    pytest.param(
        name, size._replace(depth=0) if name in FLAT else size, id=f"{name}-{size.text}"
    )
    for name in (*(source.name for source in SOURCES), *RANKS)
    for size in (
        Size(64, False, 2),
        *([Size(3, False, 1), Size(2_100, True, 2)] if IS_THOROUGH else ()),
    )
    if size.count <= MOST.get(name, 2_100)
]


@pytest.mark.parametrize("name, size", DAMAGED)
def test_a_changed_byte_is_found_or_refused(
    name: str, size: Size, tmp_path: Path, ranks: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    source = made(name, size, whole, ranks)
    shutil.copytree(whole, broken)
    damage(broken, name, size)
    found = run("diff", f"whole/{source}", f"broken/{source}", cwd=tmp_path, code=None)
    assert found.code in (1, 2), "two files that differ are not the same"
    if name not in HAS_SUMS:
        return  # nothing records what the bytes were
    assert run("verify", source, cwd=broken, code=1).out
    for words in (("stats", source), ("sum", source, "--all")):
        done = run(*words, cwd=broken, code=2)
        assert b"damaged" in done.err or b" match " in done.err, done
    for way, asked in WAYS.items():
        if not IS_THOROUGH and way not in {*OFTEN, "rename", "merge", "to dcp"}:
            continue
        out = asked.out or ("o.safetensors" if name in STAY else "o.pth")
        words = (*asked.words, source, *adapters_of(asked, size, broken))
        done = run(*words, "-o", out, cwd=broken, code=None)
        written = sorted(broken.glob("o*"))
        if way == "salvage":
            assert done.code == 1 and b"not match its recorded checksum" in done.out, (
                done
            )
            assert run("verify", out, cwd=broken, code=None).code == 0, (
                "what is whole alone"
            )
        elif done.code == 0 and written:
            result = next(iter(broken.glob("o*.index.json")), broken / out)
            assert run("verify", str(result), cwd=broken, code=None).code == 1, (
                f"{way} launders the damage"
            )
        else:
            assert done.code == 2 and not written, (way, done)
        for path in written:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "size", [Size(64, False, 2), Size(3, True, 1)], ids=lambda size: size.text
)
@pytest.mark.parametrize("name", [*(source.name for source in SOURCES), *RANKS])
def test_a_list_of_what_is_recorded_tells_copies_apart(
    name: str, size: Size, tmp_path: Path, ranks: Path
) -> None:
    """The same files are the same; a copy with another item, or one less, is not, in
    every format and without its bytes.
    """
    flat = size._replace(depth=0) if name in FLAT else size
    source = made(name, flat, tmp_path, ranks)
    (tmp_path / "it.list").write_bytes(
        run("sum", "--recorded", source, cwd=tmp_path).out
    )
    for more in ((), ("--quick",)):
        done = run("verify", source, "--sums", "it.list", *more, cwd=tmp_path)
        assert re.search(r"[\d,]+ items as it\.list lists them", done.out.decode()), (
            done
        )
    listed = (tmp_path / "it.list").read_text().splitlines()
    items = [line for line in listed if line.startswith("crc32:")]
    assert len(items) >= size.count
    assert (name in HAS_SUMS) == any(
        not line.startswith("crc32:-") and ".json" not in line for line in items
    )
    for number, change in enumerate(
        (lambda line: [], lambda line: [line + "x"], _other_size)
    ):
        row = items[len(items) // 2]
        other = [
            new for line in listed for new in (change(line) if line == row else [line])
        ]
        (tmp_path / "other.list").write_text("\n".join(other))
        done = run(
            "verify", source, "--sums", "other.list", "--quick", cwd=tmp_path, code=1
        )
        expected = ("not in other.list", "1 item", "with another size")[number]
        assert expected in done.out.decode(), done


def _other_size(line: str) -> list[str]:
    crc, size, name = line.split(maxsplit=2)
    return [f"{crc}  {int(size) + 1}  {name}"]


def test_the_names_of_the_cases_are_what_they_say() -> None:
    assert all(len(name) > 110 for name in weights(Size(3, True, 0)))
    assert len(weights(Size(2_100, False, 0))) == 2_100
    assert KEYS[-1] == "model"

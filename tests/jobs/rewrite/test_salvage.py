"""What `ckpt salvage` writes of files that are cut off or damaged, held against the tensors of the whole file."""

from __future__ import annotations

import json
import random
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from inside import inside
from safetensors.torch import save_file

import ckpt
from ckpt import formats
from ckpt.formats.verify import remainder
from ckpt.limits import Limits
from ckpt.tensors import Range, parts_of

pytestmark = oracle.QUIET
SAMPLES = Path(__file__).parents[3] / "sample_checkpoints"


def train(path: Path, **options: Any) -> Path:
    """A training checkpoint: tied weights, views of one storage, an empty tensor, the optimizer, values."""
    torch.manual_seed(0)
    flat = torch.randn(60)
    model = {f"layers.{n}.{key}": torch.randn(5, 7) for n in range(3) for key in ("weight", "proj")}
    model |= {"head.weight": model["layers.0.weight"], "a": flat[:20], "b": flat[20:50], "c": flat[50:].view(2, 5)}
    model |= {"none": torch.empty(0, 3), "count": torch.tensor(7), "half": torch.randn(3, 3).half().T}
    state = {n: {"step": torch.tensor(3.0), "exp_avg": torch.randn(5, 7), "exp_avg_sq": torch.rand(5, 7)} for n in range(6)}
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(6))}]
    whole = {"model": model, "optimizer": {"state": state, "param_groups": groups}, "epoch": 3, "list": [torch.ones(2), 5]}
    torch.save(whole, path, **options)
    return path


def deflated(path: Path, *, streamed: bool = False) -> Path:
    """The same archive with deflated records; `streamed` ones have their sizes behind them."""
    out = path.with_suffix(".deflated.pth")
    with zipfile.ZipFile(path) as old, out.open("wb") as raw:
        sink: Any = _Pipe(raw) if streamed else raw
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
    return out


class _Pipe:
    """A file that cannot seek: zipfile then writes sizes after the data."""

    def __init__(self, raw: Any) -> None:
        self.write, self.flush = raw.write, raw.flush


def ends_of(path: Path) -> dict[str, int]:
    """The offset behind the last byte of each tensor of a whole file."""
    ends: dict[str, int] = {}
    with formats.open(str(path)) as checkpoint:
        for entry in checkpoint.tensors:
            ends[entry.name] = 0
            for part in parts_of(entry.tensor):
                place = part.storage.place
                if part.numel and isinstance(place, Range):
                    last = place.size if place.inflated is not None else part.extent[1]
                    ends[entry.name] = max(ends[entry.name], place.offset + last)
    return ends


def values_of(path: Path) -> dict[str, Any]:
    with ckpt.open(path) as checkpoint:
        return {name: checkpoint[name].numpy() for name in checkpoint}


def same(one: Any, two: Any) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


def check(cut: Path, expected: set[str], whole: dict[str, Any], out: Path, *more: str) -> dict[str, Any]:
    """Salvage a file, and hold the result against the whole tensors that are expected."""
    out.unlink(missing_ok=True)
    done = inside("salvage", cut, "-o", out, "--json", *more, cwd=cut.parent)
    report: dict[str, Any] = json.loads(done.out)
    if not expected:
        assert done.code == 2 and not out.exists()
        return report
    assert done.code == int(len(expected) < len(whole)), done
    found = values_of(out)
    assert found.keys() == expected
    assert all(same(found[name], whole[name]) for name in expected)
    lost = {row["name"] for row in report["lost"]}
    assert lost == whole.keys() - expected and report["salvaged"]["tensors"] == [len(expected), len(whole)]
    return report


def cuts(size: int, edges: set[int], seed: int, number: int = 24) -> Iterator[int]:
    chance = random.Random(seed)
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    yield from sorted({cut for cut in near if 0 < cut < size} | {chance.randrange(1, size) for _ in range(number)})


def edges_of(path: Path) -> set[int]:
    """The first and last byte of each record, and of the parts of the directory."""
    if not zipfile.is_zipfile(path):
        return set(ends_of(path).values())
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        edges = {archive.start_dir}
        for row in archive.infolist():
            file.seek(row.header_offset)
            names, extras = struct.unpack("<26x2H", file.read(30))
            begin = row.header_offset + 30 + names + extras
            edges |= {row.header_offset, begin, begin + row.compress_size, begin + row.compress_size + 16}
    return edges


CASES = ("zip", "legacy", "deflated", "streamed", "scripted", "module", "lightning", "safetensors")


def made(case: str, folder: Path) -> Path:
    if case == "legacy":
        return train(folder / "whole.pth", _use_new_zipfile_serialization=False)
    if case in ("deflated", "streamed"):
        return deflated(train(folder / "whole.pth"), streamed=case == "streamed")
    if case == "safetensors":
        save_file({f"layers.{n}.w": torch.randn(n, 5) for n in range(7)}, folder / "whole.safetensors")
        return folder / "whole.safetensors"
    samples = {"scripted": "scripted.pt", "module": "whole_model.pth", "lightning": "lightning.ckpt"}
    if case in samples:
        path = folder / samples[case]
        path.write_bytes((SAMPLES / samples[case]).read_bytes())
        return path
    return train(folder / "whole.pth")


@pytest.mark.parametrize("case", CASES)
def test_a_file_cut_anywhere(case: str, tmp_path: Path) -> None:
    path = made(case, tmp_path)
    data, ends, whole = path.read_bytes(), ends_of(path), values_of(path)
    header = 8 + int.from_bytes(data[:8], "little")
    cut = tmp_path / f"cut{path.suffix}"
    counts = set()
    for size in cuts(len(data), edges_of(path), len(case)):
        cut.write_bytes(data[:size])
        rest = remainder(str(cut), Limits())
        if rest is None:  # its names are lost
            assert size <= (header if case == "safetensors" else min(end for end in ends.values() if end)) or case == "scripted"
            check(cut, set(), whole, tmp_path / f"out{path.suffix}")
            continue
        expected = {name for name, end in ends.items() if end <= size}
        assert set(rest.whole or ()) == expected and set(rest.lost or ()) == ends.keys() - expected
        if size % 3 == 0 or len(expected) not in counts:  # not each of many that are alike
            check(cut, expected, whole, tmp_path / f"out{path.suffix}")
        counts.add(len(expected))
    assert len(counts) > 2 or counts == {len(whole)} and case == "scripted"  # whose names come last

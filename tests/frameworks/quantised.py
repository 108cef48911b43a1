"""`make test-frameworks`: weights that libraries quantise anew, against the weights that
the same libraries take back, bit for bit; and blocks of GGUF against gguf-py.

`tests/quantised_files/write.py` makes the layers, here of other numbers than those of
the samples. The usual suite does not collect this file. Without a package its cases are
skipped with a reason.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "quantised_files"))

import write

sys.path.insert(0, str(Path(__file__).resolve().parent))
import optional  # noqa: F401 - makes torchvision importable

import ckpt
from ckpt.ext.gguf.decode import decode
from ckpt.ext.gguf.types import BY_NUMBER

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = (1, 2, 3)
STUBS = {
    "gptqmodel": ("gptqmodel", "gptqmodel.models", "gptqmodel.nn_modules"),
    "awq": ("awq",),
}
"""Packages that import all of their models, of which only the layers are needed."""
HALVES = (0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 1, 0x83FF, 0x7BFF, 0xFBFF, 0x0400)
"""Zeros, infinities, a NaN, subnormals and the largest numbers of float16."""


def pass_over_models(package: str) -> None:
    """Let the layers of a package be imported without its models."""
    root = find_spec(package)
    assert root is not None
    assert root.submodule_search_locations is not None
    for name in STUBS[package]:
        module = types.ModuleType(name)
        below = name.split(".")[1:]
        module.__path__ = [
            str(Path(place, *below)) for place in root.submodule_search_locations
        ]
        module.__dict__["DEBUG_ON"] = False  # a flag of gptqmodel
        sys.modules[name] = module


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("library", write.LIBRARIES, ids=lambda row: row.__name__)
def test_weights_are_those_of_the_library(
    library: object, seed: int, tmp_path: Path
) -> None:
    package = library.__name__.replace("_", "-")
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    module = package.removeprefix("auto")
    if module in STUBS and module not in sys.modules:
        pass_over_models(module)
    torch.manual_seed(seed)
    wrong: list[str] = []
    count = 0
    for row in library():
        folder = tmp_path / row.name
        folder.mkdir()
        path = folder / f"a{'.pth' if row.is_pickle else '.safetensors'}"
        if row.is_pickle:
            torch.save(row.tensors, path)
        else:
            parts = {name: part.contiguous() for name, part in row.tensors.items()}
            save_file(parts, path)
        if row.config is not None:
            (folder / "config.json").write_text(json.dumps(row.config))
        ckpt.convert(path, out=folder / "out.safetensors", dequantize=True)
        (weight,) = load_file(folder / "out.safetensors").values()
        is_same = weight.dtype == row.weight.dtype and (
            write.digest(weight) == write.digest(row.weight)
        )
        if not is_same:
            wrong.append(row.name)
        count += 1
    assert not wrong
    assert count


def blocks_of(nbytes: int) -> object:
    """Blocks of random bytes, of one byte throughout, and with each number of `HALVES`
    at each place.
    """
    import numpy as np

    random = np.random.default_rng(7)
    even = np.repeat(np.arange(256, dtype="u1")[:, None], nbytes, 1)
    odd = random.integers(0, 256, (nbytes * len(HALVES), nbytes), dtype="u1")
    for place in range(nbytes - 1):
        for number, half in enumerate(HALVES):
            block = odd[place * len(HALVES) + number]
            block[place : place + 2] = half & 255, half >> 8
    return np.concatenate(
        [random.integers(0, 256, (20_000, nbytes), dtype="u1"), even, odd]
    )


NAMES = [row.name for row in BY_NUMBER.values() if row.block is not None]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_those_of_gguf_py(name: str) -> None:
    import numpy as np

    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.__members__.get(name)
    if kind is None:
        pytest.skip(f"gguf-py does not know {name}")
    blocks = blocks_of(gguf.GGML_QUANT_SIZES[kind][1])
    with np.errstate(all="ignore"):
        try:
            expected = gguf.quants.dequantize(blocks, kind)
        except NotImplementedError:
            pytest.skip(f"gguf-py does not decode {name}")
        found = decode(name, blocks, False)
    words = []
    for values in (expected, found):
        whole = np.ascontiguousarray(values, "<f4").reshape(len(blocks), -1)
        numbers = whole.view("<u4").copy()
        numbers[np.isnan(whole)] = 0x7FC00000  # processors differ in its sign
        words.append(numbers)
    differing = np.flatnonzero((words[0] != words[1]).any(1))
    assert not len(differing), blocks[differing[0]].tobytes().hex()

"""`ckpt recipe` and `ckpt convert --recipe`, beside `ckpt diff` of as many bytes and
beside a copy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from benchmarks.setting import Case, Setting, ckpt
from benchmarks.timing import Job

if TYPE_CHECKING:
    import numpy as np

    State = dict[str, np.ndarray[Any, Any]]

HIDDEN, INNER, WORDS, HEADS, EXPERTS = 2048, 5632, 32_000, 16, 256
LAYER_BYTES = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
SIDES = ("given", "rows", "columns", "experts", "stacked", "foreign")


def write_pairs(folder: Path, size_gb: float, experts: int) -> None:
    """Save one model of bfloat16 in three layouts, and experts in two and with other
    values. Imports numpy.

    `given` is the layout of transformers. In `rows` the rows of two matrices of a layer
    are in another order, in `columns` all matrices are fused and transposed.
    """
    import numpy as np

    folder.mkdir()
    rng = np.random.default_rng(0)
    layers = max(2, round((size_gb * 1e9 - 4 * WORDS * HIDDEN) / LAYER_BYTES))
    given = {
        "embed": _numbers(rng, WORDS, HIDDEN),
        "head": _numbers(rng, WORDS, HIDDEN),
    }
    rows, columns = dict(given), dict(given)
    for layer in range(layers):
        own = {name: _numbers(rng, HIDDEN, HIDDEN) for name in ("q", "k", "v", "o")}
        own |= {name: _numbers(rng, INNER, HIDDEN) for name in ("gate", "up")}
        own["down"] = _numbers(rng, HIDDEN, INNER)
        given |= {f"layers.{layer}.{name}.weight": array for name, array in own.items()}
        paired = {name: _paired_rows(own[name]) for name in ("q", "k")}
        rows |= {f"h.{layer}.{name}": array for name, array in (own | paired).items()}
        by_heads = [own[name].reshape(HEADS, -1, HIDDEN) for name in ("q", "k", "v")]
        columns |= {
            f"h.{layer}.qkv": np.concatenate(by_heads, 1).reshape(-1, HIDDEN).T,
            f"h.{layer}.o": own["o"].T,
            f"h.{layer}.fc": np.concatenate([own["gate"], own["up"]]).T,
            f"h.{layer}.down": own["down"].T,
        }
    for name, state in (("given", given), ("rows", rows), ("columns", columns)):
        _save(state, folder / f"{name}.safetensors")
    one: State = {}
    several: State = {}
    for layer in range(max(2, experts // (3 * EXPERTS))):
        for name, shape in (("gate", (16, 64)), ("up", (16, 64)), ("down", (64, 16))):
            arrays = _numbers(rng, EXPERTS, *shape)
            one[f"h.{layer}.experts.{name}"] = arrays
            for number, array in enumerate(arrays):
                several[f"layers.{layer}.experts.{number}.{name}.weight"] = array
    _save(several, folder / "experts.safetensors")
    _save(one, folder / "stacked.safetensors")
    foreign = {
        name.replace("layers", "h"): _numbers(rng, *array.shape)
        for name, array in several.items()
    }
    _save(foreign, folder / "foreign.safetensors")


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """The bits of random finite numbers of bfloat16."""
    import numpy as np

    bits: np.ndarray[Any, Any] = rng.integers(0, 1 << 16, shape, np.uint16) & 0xBFFF
    return bits


def _paired_rows(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The rows of halves of each head as pairs."""
    halves = weight.reshape(HEADS, 2, -1, HIDDEN)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _save(state: State, path: Path) -> None:
    """Write bits of bfloat16 as safetensors."""
    import numpy as np

    header: dict[str, object] = {}
    end = 0
    for name, array in state.items():
        place = [end, end + array.nbytes]
        header[name] = {
            "dtype": "BF16",
            "shape": list(array.shape),
            "data_offsets": place,
        }
        end += array.nbytes
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)
    with path.open("wb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        for array in state.values():
            file.write(np.ascontiguousarray(array).data)


def cases(setting: Setting) -> Iterator[list[Case]]:
    """A group for what searches, and one for what writes."""
    size_gb = setting.sizes.size_gb
    count = 6 * setting.sizes.items
    folder = setting.made(
        setting.folder / f"layouts_{size_gb:g}GB", write_pairs, size_gb, count
    )
    paths = {name: folder / f"{name}.safetensors" for name in SIDES}
    copy, recipe = folder / "copy.safetensors", folder / "recipe.json"
    again = ("cp", str(paths["given"]), str(copy))
    diff = ckpt(
        "`ckpt diff` of two equal files", "diff", paths["given"], copy, prepare=again
    )
    searches = [
        Case(
            f"recipe/{kind}",
            _search(f"{size_gb:g} GB, {kind}", paths["given"], paths[kind]),
            diff,
        )
        for kind in ("rows", "columns")
    ]
    if count:
        job = _search(f"{count:,} experts", paths["experts"], paths["stacked"])
        searches.append(Case("recipe/experts", job, None))
        name = "`ckpt recipe`, as many with other weights"
        sides = paths["experts"], paths["foreign"]
        job = ckpt(name, "recipe", *sides, "-q", differs=True)
        searches.append(Case("recipe/foreign", job, None))
    yield searches
    out = folder / "out.safetensors"
    for kind in ("rows", "columns"):
        learn = join(
            _search("", paths["given"], paths[kind], "-o", recipe, "--force").command
        )
        remove = ("sh", "-c", f"rm -f {join([str(out)])}; {learn}")
        line = (
            f"{join(['cp', str(paths['given']), str(out)])} && sync {join([str(out)])}"
        )
        if sys.platform == "linux":
            line = line.replace("cp ", "cp --reflink=never ", 1)
        peer = Job("`cp` + `sync`", ("sh", "-c", line), prepare=("rm", "-f", str(out)))
        name = f"`ckpt convert --recipe`, {size_gb:g} GB, {kind}"
        ours = ckpt(
            name,
            "convert",
            paths["given"],
            "--recipe",
            recipe,
            "-o",
            out,
            prepare=remove,
        )
        yield [Case(f"layout/{kind}", ours, peer)]
    setting.forget(folder)


def _search(what: str, *arguments: str | Path) -> Job:
    """A search for a layout, which prints nothing."""
    return ckpt(f"`ckpt recipe`, {what}", "recipe", *arguments, "-q")

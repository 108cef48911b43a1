"""Documents and pages that several tests of reports share; each is made once."""

from __future__ import annotations

import base64
import itertools
import json
import re
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
from process import SAMPLES

from ckpt import formats
from ckpt.commands.diff.diff import Options, diff
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.ls.ls import ls
from ckpt.commands.stats.stats import stats
from ckpt.evidence.survey import Survey
from ckpt.surface.api.advice import planning

EVIL = (
    "</script><script>window.pwned=1</script>",
    '<img src=x onerror="window.pwned=1">',
    "<!--<script>",
    "\u202eevil\u2066",
    "{a|styled}",
    "{b} {c} %s ${1}",
    "__proto__",
    "constructor",
    "a\u2028b",
    '"><svg onload=window.pwned=1>',
    "&lt;b&gt;",
    "javascript:window.pwned=1",
    "tab\there\nline",
    "back\\slash",
    "שלום.weight",
    "<b>.<i>.w",
    "#0",
    "a..b",
)
"""Names that are markup, code or formats to careless pages."""


def inspected(path: Path = SAMPLES / "train_cuda.pth") -> dict[str, Any]:
    with formats.open(str(path)) as checkpoint:
        survey = Survey(checkpoint)
        return inspect(survey, plan=planning(survey)).to_json()


def measured(path: Path) -> dict[str, Any]:
    with formats.open(str(path)) as checkpoint:
        return stats(Survey(checkpoint), threshold=1e-3).to_json()


def listed(path: Path) -> dict[str, Any]:
    with formats.open(str(path)) as checkpoint:
        return ls(Survey(checkpoint)).to_json()


def compared(before: Path, after: Path, **options: Any) -> dict[str, Any]:
    with formats.open(str(before)) as first, formats.open(str(after)) as second:
        return diff(Survey(first), Survey(second), Options(**options)).to_json()


_folders: list[tempfile.TemporaryDirectory[str]] = []


@cache
def folder() -> Path:
    """A folder of files that no sample shows: hostile names, dead channels, a
    series.
    """
    _folders.append(tempfile.TemporaryDirectory(prefix="ckpt-reports-"))
    path = Path(_folders[0].name)
    evil = {
        "model": {name: torch.ones(2, 3) for name in EVIL},
        "note": EVIL[0],
        EVIL[1]: EVIL[2],
        "lr": EVIL[3],
        EVIL[0]: {EVIL[0]: [EVIL[0]]},
    }
    torch.save(evil, path / "evil <img src=x onerror=window.pwned=1>.pth")
    evil["model"] = {
        name: torch.ones(2, 3) * (1 + at % 2) for at, name in enumerate(EVIL)
    }
    torch.save(evil, path / "evil2 <b>.pth")
    weight = torch.arange(64.0 * 16 * 9).reshape(64, 16, 3, 3).sin()
    weight[[3, 9, 10, 40]] = 0
    state = {
        "conv.weight": weight,
        "conv.bias": torch.ones(64),
        "bn.weight": torch.ones(64),
        "bn.bias": torch.zeros(64),
        "bn.running_mean": torch.zeros(64),
        "bn.running_var": torch.ones(64) * 5000,
        "bn.num_batches_tracked": torch.tensor(7),
        "fc.weight": torch.full((4, 4), float("inf")),
    }
    torch.save(state, path / "dead.pth")
    steps = {
        f"blocks.{at}.fc.weight": torch.arange(1.0, 13).reshape(3, 4) for at in range(4)
    }
    steps["aux.weight"] = torch.ones(3)
    for epoch in range(12):
        for name, tensor in steps.items():
            if name != "aux.weight" and not (name.startswith("blocks.0") and epoch > 4):
                tensor += 0.01
        if epoch == 6:
            steps["blocks.1.fc.weight"] *= 100
        if epoch == 8:
            steps["blocks.2.fc.weight"].zero_()
        if epoch == 10:
            steps["blocks.3.fc.weight"][0, 0] = float("nan")
        model = {name: tensor.clone() for name, tensor in steps.items()}
        if epoch == 8:
            model["blocks.2.fc.weight"].zero_()
        torch.save(model, path / f"epoch_{epoch}.pth")
    return path


@cache
def large() -> dict[str, Any]:
    """The document of a checkpoint with 100,000 tensors, as `inspect` would make it."""
    document = inspected(SAMPLES / "llama_bf16.pth")
    tensor, storage = document["tensors"][0], document["storages"][0]
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
        for layer in range(100)
        for expert in range(250)
        for part in ("gate", "up", "down", "scale")
    ]
    document["tensors"] = [
        {
            **tensor,
            "name": name,
            "path": [name],
            "storage": str(at),
            "shape": [4096, at % 7 + 1],
        }
        for at, name in enumerate(names)
    ]
    document["storages"] = [
        {**storage, "id": str(at), "tensors": [name]} for at, name in enumerate(names)
    ]
    document["totals"]["tensors"] = len(names)
    return document


def documents(name: str) -> list[dict[str, Any]]:
    """The documents of a page."""
    there = folder()
    if name == "checkpoint":
        return [inspected()]
    if name == "diff":
        return [
            compared(SAMPLES / "ddp_before.pth", SAMPLES / "ddp_after.pth", norms=True)
        ]
    if name == "stats":
        return [measured(there / "dead.pth")]
    if name == "series":
        files = [there / f"epoch_{epoch}.pth" for epoch in range(12)]
        changes = [
            compared(one, two, norms=True) for one, two in itertools.pairwise(files)
        ]
        return [*map(listed, files), *map(measured, files), *changes]
    if name == "folder":
        return [listed(path) for path in sorted(SAMPLES.glob("*.pth")) if opens(path)]
    if name == "evil":
        one, two = (
            there / "evil <img src=x onerror=window.pwned=1>.pth",
            there / "evil2 <b>.pth",
        )
        return [inspected(one), measured(one), compared(one, two)]
    assert name == "large"
    return [large()]


def opens(path: Path) -> bool:
    """Whether it is a checkpoint."""
    return path.stem not in ("html_page", "lfs_pointer", "truncated")


@cache
def pages(name: str) -> bytes:
    """The page of `documents`."""
    from ckpt.ext.page.html import html_page

    return html_page(documents(name))


def payload_of(data: bytes) -> dict[str, Any]:
    """The documents of a page, as its script reads them."""
    found = re.search(
        r'<script type="([^"]+)" id="data">(.*?)</script>', data.decode(), re.DOTALL
    )
    assert found is not None
    if found[1] == "application/json":
        return dict(json.loads(found[2]))
    return dict(json.loads(zlib.decompress(base64.b64decode(found[2]))))

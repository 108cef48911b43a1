"""`ckpt warmstart` against a careful script of torch: the plan, the report, and every
value of OUT.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from itertools import product
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from paths import many
from process import SAMPLES, check_error, ckpt
from torch import nn

from ckpt import formats
from ckpt.bytes import target as io_target
from ckpt.bytes.source import Memory
from ckpt.evidence.survey import Survey
from ckpt.ext.warmstart.warmstart import Options, warmstart
from ckpt.formats import save
from ckpt.model.limits import Limits
from ckpt.model.places import Patched, Range

pytestmark = oracle.QUIET


class Net(nn.Module):
    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, classes)


def net(seed: int, **shape: int) -> Net:
    torch.manual_seed(seed)
    return Net(**shape)


def by_torch(
    pretrained: dict[str, torch.Tensor],
    target: dict[str, torch.Tensor],
    *,
    slices: bool,
) -> tuple[dict[str, torch.Tensor], int]:
    """(the state dict as a careful script makes it, elements that it copied)."""
    out = OrderedDict((name, value.clone()) for name, value in target.items())
    copied = 0
    for name, value in out.items():
        if name not in pretrained:
            continue
        other = pretrained[name]
        if other.shape == value.shape:
            value.copy_(other)
            copied += value.numel()
        elif slices and other.dim() == value.dim():
            block = tuple(
                slice(0, min(a, b))
                for a, b in zip(value.shape, other.shape, strict=True)
            )
            value[block] = other[block].to(value.dtype)
            copied += value[block].numel()
    return out, copied


def assert_same(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert (
            found[name].dtype == value.dtype and found[name].stride() == value.stride()
        ), name
        assert torch.equal(found[name], value), name


def run(*arguments: str | Path, code: int = 0) -> Any:
    done = ckpt("warmstart", *arguments, "--json")
    assert done.code == code, done
    return json.loads(done.out)


def made(pretrained: Path, target: Path, out: Path, mismatch: Any = "keep") -> Any:
    """What the command does, in this process; the object `coverage` of its document."""
    options = Options(mismatch, count_sliced=True, keep_optimizer=True)
    with formats.open(str(pretrained)) as given, formats.open(str(target)) as mine:
        report = warmstart(Survey(given), Survey(mine), Limits(), options)
        save.save_checkpoint(
            report.result, io_target.target(str(out), force=True), mine.format, Limits()
        )
    return report.to_json()["coverage"]


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "same": ({}, {}),
    "head": ({"classes": 1000}, {"classes": 10}),
    "smaller": ({"classes": 4}, {"classes": 10}),
    "stem": ({"channels": 3}, {"channels": 4}),
    "both": ({"channels": 4, "classes": 7}, {"channels": 1, "classes": 9}),
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("wrapped", ["neither", "pretrained", "target"])
@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64]
)
def test_a_careful_script(
    pair: str, wrapped: str, slices: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    one, two = net(0, **PAIRS[pair][0]), net(1, **PAIRS[pair][1]).to(dtype)
    expected, copied = by_torch(one.state_dict(), two.state_dict(), slices=slices)
    given = (nn.DataParallel(one) if wrapped == "pretrained" else one).state_dict()
    mine = (nn.DataParallel(two) if wrapped == "target" else two).state_dict()
    optimizer = torch.optim.Adam(two.parameters())
    rewriting.saved({"model": given, "epoch": 1}, tmp_path / "a.pth")
    rewriting.saved(
        {"net": mine, "optim": optimizer.state_dict(), "step": 5}, tmp_path / "b.pth"
    )

    report = made(
        tmp_path / "a.pth",
        tmp_path / "b.pth",
        tmp_path / "c.pth",
        "slice" if slices else "keep",
    )

    out = torch.load(tmp_path / "c.pth", weights_only=True)
    prefix = "module." if wrapped == "target" else ""
    assert list(out) == ["net", "optim", "step"] and out["step"] == 5
    assert out["net"]._metadata == mine._metadata  # type: ignore[attr-defined]
    assert_same(out["net"], {prefix + name: value for name, value in expected.items()})
    assert report["elements"] == [
        copied,
        sum(value.numel() for value in expected.values()),
    ]
    assert report["totals"]["missing"] == report["totals"]["unexpected"] == 0
    differ = sum(
        one.state_dict()[name].shape != value.shape for name, value in expected.items()
    )
    assert report["totals"]["sliced" if slices else "kept"] == differ
    if pair == "same":
        assert report["share"] == 1 and report["tensors"] == [15, 15]
        assert report["totals"]["cast"] == (0 if dtype == torch.float32 else 14)
        fresh = net(2, **PAIRS[pair][1]).to(dtype)
        fresh.load_state_dict(
            {name.removeprefix(prefix): value for name, value in out["net"].items()},
            strict=True,
        )


_KINDS = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "int64",
    "int32",
    "uint8",
    "bool",
]


@pytest.mark.parametrize("source", _KINDS)
@pytest.mark.parametrize("to", _KINDS)
def test_casts_are_torchs(source: str, to: str, tmp_path: Path) -> None:
    values = (torch.randn(1000) * 300).to(getattr(torch, source))
    mine = torch.zeros(1000).to(getattr(torch, to))
    rewriting.saved({"a.weight": values, "b.weight": torch.ones(1)}, tmp_path / "a.pth")
    rewriting.saved({"a.weight": mine, "b.weight": torch.zeros(1)}, tmp_path / "b.pth")

    report = made(tmp_path / "a.pth", tmp_path / "b.pth", tmp_path / "c.pth")

    out = torch.load(tmp_path / "c.pth")["a.weight"]
    (pair,) = (row for row in report["pairs"] if row["name"] == "a.weight")
    if pair["status"] == "kept":
        assert (
            f"does not cast {source} to {to}" in pair["why"] and not out.float().any()
        )
        assert to.startswith("float8") or to == "bool" or "float" in source
    else:
        assert pair["status"] == ("loaded" if source == to else "cast")
        expected = mine.clone().copy_(values)
        assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))


# --- what the target's tensors look like ----------------------------------------------


def test_ties_views_and_strides(tmp_path: Path) -> None:
    base = torch.zeros(40)
    turned = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    target = {
        "low.weight": base[3:9],
        "high.weight": base[20:26].view(2, 3),
        "turned.weight": turned,
        "across.weight": torch.zeros(5, 7).t(),
        "tied.weight": base[3:9],
        "gaps.weight": torch.zeros(8)[::2],
        "other.weight": torch.ones(3),
    }
    pretrained = {
        name: torch.randn(value.shape)
        for name, value in target.items()
        if name != "other.weight"
    }
    pretrained["tied.weight"] = pretrained["low.weight"].clone()
    rewriting.saved(pretrained, tmp_path / "a.pth")
    rewriting.saved(target, tmp_path / "b.pth")

    report = run(
        tmp_path / "a.pth",
        "--into",
        tmp_path / "b.pth",
        "-o",
        tmp_path / "c.pth",
        "--verify",
        "crc",
    )

    out = torch.load(tmp_path / "c.pth")
    for name in (
        "low.weight",
        "high.weight",
        "turned.weight",
        "across.weight",
        "tied.weight",
    ):
        assert (
            torch.equal(out[name], pretrained[name])
            and out[name].stride() == target[name].stride()
        ), name
    assert out["low.weight"].data_ptr() == out["tied.weight"].data_ptr()
    assert out["low.weight"].untyped_storage().nbytes() == 160
    assert torch.equal(out["gaps.weight"], torch.zeros(4)) and torch.equal(
        out["other.weight"], torch.ones(3)
    )
    kept = {
        row["name"]: row["why"]
        for row in report["coverage"]["pairs"]
        if row["status"] == "kept"
    }
    assert kept == {"gaps.weight": "the target's tensor is not contiguous"}
    assert not report["coverage"]["notes"]


def test_a_tie_that_gets_two_values(tmp_path: Path) -> None:
    shared = torch.zeros(4)
    rewriting.saved(
        {"a.weight": torch.ones(4), "b.weight": torch.ones(4) * 2}, tmp_path / "a.pth"
    )
    rewriting.saved({"a.weight": shared, "b.weight": shared}, tmp_path / "b.pth")

    report = run(
        tmp_path / "a.pth", "--into", tmp_path / "b.pth", "-o", tmp_path / "c.pth"
    )

    assert torch.equal(torch.load(tmp_path / "c.pth")["a.weight"], torch.ones(4) * 2)
    assert (
        "are tied in the target; the second one wins" in report["coverage"]["notes"][0]
    )


@given(
    st.integers(1, 40),
    st.lists(
        st.tuples(st.integers(0, 39), st.integers(1, 12), st.integers(1, 200)),
        max_size=6,
    ),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_patches(
    size: int, pieces: list[tuple[int, int, int]], start: int, count: int
) -> None:
    """The later piece counts, wherever a read begins and ends."""
    expected = bytearray(range(size))
    placed = []
    for first, length, value in pieces:
        if first + length <= size:
            expected[first : first + length] = bytes((value,)) * length
            placed.append((first, Range(Memory(bytes((value,)) * length), 0, length)))
    place = Patched(Range(Memory(bytes(range(size))), 0, size), size, placed)

    assert b"".join(place.read_blocks()) == expected
    start = min(start, size)
    count = min(count, size - start)
    assert b"".join(place.read_blocks(start, count)) == expected[start : start + count]


@given(st.data())
@settings(max_examples=many(10, 40))
def test_slices_of_any_shape(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("slices")
    ndim = data.draw(st.integers(1, 4))
    shapes = [
        tuple(data.draw(st.integers(0, 4)) for _ in range(ndim)) for _ in range(2)
    ]
    order = data.draw(st.permutations(range(ndim)))
    one, two = torch.randn(shapes[0]), torch.randn(shapes[1])
    two = two.permute(order).contiguous().permute([order.index(i) for i in range(ndim)])
    rewriting.saved({"a.weight": one, "b.weight": torch.ones(2)}, folder / "a.pth")
    rewriting.saved({"a.weight": two, "b.weight": torch.zeros(2)}, folder / "b.pth")
    expected, copied = by_torch({"a.weight": one}, {"a.weight": two}, slices=True)

    made(folder / "a.pth", folder / "b.pth", folder / "c.pth", "slice")

    out = torch.load(folder / "c.pth")["a.weight"]
    assert (
        torch.equal(out, expected["a.weight"])
        and out.stride() == two.stride()
        and copied >= 0
    )


# --- other targets and sources --------------------------------------------------------


PER_DAY = (
    ("zip", "zip"),
    ("legacy", "safetensors"),
    ("safetensors", "legacy"),
    ("module", "zip"),
)


@pytest.mark.parametrize(
    ("pretrained", "target"),
    [
        pair if pair in PER_DAY else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in product(
            ("zip", "legacy", "safetensors", "module"), ("zip", "legacy", "safetensors")
        )
    ],
)
def test_formats(pretrained: str, target: str, tmp_path: Path) -> None:
    one, two = net(0, classes=5), net(1)
    expected, _ = by_torch(one.state_dict(), two.state_dict(), slices=False)

    def written(model: Net, kind: str, name: str) -> Path:
        state = model.state_dict()
        if kind == "safetensors":
            safetensors.torch.save_file(state, tmp_path / f"{name}.safetensors")
            return tmp_path / f"{name}.safetensors"
        options = {"_use_new_zipfile_serialization": False} if kind == "legacy" else {}
        return rewriting.saved(
            model if kind == "module" else state, tmp_path / f"{name}.pth", **options
        )

    paths = written(one, pretrained, "a"), written(two, target, "b")
    out = tmp_path / f"c{paths[1].suffix}"
    done = inside(
        "warmstart",
        paths[0],
        "--into",
        paths[1],
        "-o",
        out,
        "--verify",
        "torch",
        cwd=tmp_path,
    )
    assert done.code == 0, done

    found = (
        safetensors.torch.load_file(out) if target == "safetensors" else torch.load(out)
    )
    with formats.open(str(out)) as checkpoint, formats.open(str(paths[1])) as before:
        assert checkpoint.format == before.format
    assert_same({name: found[name] for name in expected}, expected)


def test_ties_that_safetensors_note(tmp_path: Path) -> None:
    one = nn.Module()
    one.a, one.b = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
    one.b.weight = one.a.weight
    safetensors.torch.save_model(one, str(tmp_path / "a.safetensors"))
    rewriting.saved(
        {"a.weight": torch.zeros(4, 3), "b.weight": torch.zeros(4, 3)},
        tmp_path / "b.pth",
    )

    report = run(
        tmp_path / "a.safetensors",
        "--into",
        tmp_path / "b.pth",
        "-o",
        tmp_path / "c.pth",
    )

    assert report["coverage"]["share"] == 1
    assert torch.equal(
        torch.load(tmp_path / "c.pth")["b.weight"], one.a.weight.detach()
    )


def test_the_device_of_the_target_stays(tmp_path: Path) -> None:
    assert (
        ckpt(
            "warmstart",
            SAMPLES / "train_cuda.pth",
            "--into",
            SAMPLES / "train_cuda.pth",
            "-o",
            tmp_path / "c.pth",
            "--keep-optimizer",
        ).code
        == 0
    )

    with (
        formats.open(str(tmp_path / "c.pth")) as found,
        formats.open(str(SAMPLES / "train_cuda.pth")) as before,
    ):
        assert [e.tensor.device for e in found.tensors] == [
            e.tensor.device for e in before.tensors
        ]
    assert (
        ckpt("diff", "--strict", SAMPLES / "train_cuda.pth", tmp_path / "c.pth").code
        == 0
    )


# --- rules, gates, trouble ------------------------------------------------------------


def test_rules_and_sections(tmp_path: Path) -> None:
    one = net(0)
    given = {f"backbone.{name}": value for name, value in one.state_dict().items()}
    rewriting.saved(
        {
            "model": given,
            "ema": {n: v + 1 for n, v in given.items() if v.is_floating_point()},
        },
        tmp_path / "a.pth",
    )
    rewriting.saved(net(1).state_dict(), tmp_path / "b.pth")
    into = (tmp_path / "a.pth", "--into", tmp_path / "b.pth")

    assert run(*into, "--dry-run", "--no-align", code=1)["coverage"]["tensors"][0] == 0
    report = run(*into, "--sub", "s/^backbone\\.//", "-o", tmp_path / "c.pth")
    assert report["coverage"]["share"] == 1
    report = run(
        *into, "--sub", "s/^backbone\\.//", "--section", "ema", "-o", tmp_path / "d.pth"
    )
    assert report["coverage"]["totals"]["missing"] == 1
    assert torch.equal(
        torch.load(tmp_path / "d.pth")["head.bias"], one.head.bias.detach() + 1
    )
    check_error(
        ckpt("warmstart", *into, "--sub", "s/weight/bias/", "--dry-run"),
        "would both be called",
    )


def test_dry_run_and_the_gate(tmp_path: Path) -> None:
    rewriting.saved(net(0, classes=7).state_dict(), tmp_path / "a.pth")
    rewriting.saved(net(1).state_dict(), tmp_path / "b.pth")
    into = (tmp_path / "a.pth", "--into", tmp_path / "b.pth")

    report = run(*into, "--dry-run")
    assert report["dry_run"] and report["output"] is None
    share = report["coverage"]["share"]
    assert run(*into, "--dry-run", "--min-coverage", f"{share - 0.01}")
    assert run(*into, "--dry-run", "--min-coverage", f"{share + 0.01}", code=1)
    done = ckpt("warmstart", *into, "-o", tmp_path / "c.pth", "--min-coverage", "0.99")
    assert (
        done.code == 1
        and "nothing was written" in done.complaints[0]
        and not (tmp_path / "c.pth").exists()
    )
    check_error(
        ckpt("warmstart", *into, "--on-mismatch", "error", "--dry-run"),
        "does not fit: head.weight: [7, 8] → [10, 8]",
    )
    check_error(
        ckpt("warmstart", *into, "--on-mismatch", "guess", "--dry-run"),
        "not one of keep slice error",
    )
    check_error(ckpt("warmstart", *into), "where to write?")
    check_error(
        ckpt("warmstart", *into, "--arg", "a=1", "--dry-run"), "--arg goes with --into"
    )


def test_it_never_goes_by_shape(tmp_path: Path) -> None:
    rewriting.saved(
        {"x.weight": torch.ones(3), "x.bias": torch.ones(2)}, tmp_path / "a.pth"
    )
    rewriting.saved(
        {"y.weight": torch.zeros(3), "y.bias": torch.zeros(2)}, tmp_path / "b.pth"
    )

    for options in (
        ("-o", "c.pth"),
        ("--dry-run",),
        ("-o", "c.pth", "--min-coverage", "0"),
    ):
        before = (tmp_path / "b.pth").read_bytes()
        done = inside("warmstart", "a.pth", "--into", "b.pth", *options, cwd=tmp_path)

        assert done.code == 1
        assert (
            "loads 0 of 2 tensors, 0 % of the model; 2 missing; 2 unexpected"
            in done.lines[0]
        )
        (line,) = done.complaints
        assert line.startswith(
            "ckpt: b.pth: no pretrained tensor fits: nothing was written (ckpt "
            "warmstart a.pth"
        )
        assert "--sub 's/^x\\./y./'" in line
        assert (tmp_path / "b.pth").read_bytes() == before and not (
            tmp_path / "c.pth"
        ).exists()


def test_screen(tmp_path: Path) -> None:
    rewriting.saved(
        nn.DataParallel(net(0, classes=1000)).state_dict(), tmp_path / "a.pth"
    )
    rewriting.saved(
        {**net(1).state_dict(), "new.weight": torch.ones(2)}, tmp_path / "b.pth"
    )

    done = ckpt(
        "warmstart", tmp_path / "a.pth", "--into", tmp_path / "b.pth", "--dry-run"
    )

    assert done.lines == [
        "loads 13 of 16 tensors, 83.7 % of the model; 2 kept; 1 missing; 0 unexpected",
        "aligned: module.* → * (pretrained)",
        "body 99.6 % · head 0 % (head.{weight,bias})",
        "",
        "MODULE  TENSORS  SHARE",
        "stem     2 of 2  100 %",
        "norm     5 of 5  100 %",
        "blocks   6 of 6  100 %",
        "head     0 of 2    0 %  kept: [1000, 8] → [10, 8] and 1 more",
        "new      0 of 1    0 %  not in PRETRAINED",
        "not in PRETRAINED, kept as they were: new.weight",
        "loaded   13 tensors, 1.85 KiB",
        "nothing was written (--dry-run)",
    ]


# --- factories ------------------------------------------------------------------------

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes=10, channels=3):
        super().__init__()
        torch.manual_seed(7)
        self.stem, self.norm = nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, classes)
        self.twin = nn.Linear(8, classes)
        self.twin.weight = self.head.weight
"""


@pytest.mark.slow
@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_factory(init: bool, suffix: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(CODE)
    one = net(0, classes=7)
    rewriting.saved(one.state_dict(), tmp_path / "a.pth")
    more = ["--init"] if init else []

    done = ckpt(
        "warmstart", tmp_path / "a.pth", "--into-model", f"{tmp_path / 'nets.py'}:Net", "--arg", "classes=4",
        "-o", tmp_path / f"c{suffix}", *more,
    )  # fmt: skip

    assert done.code == 0, done
    with formats.open(str(tmp_path / f"c{suffix}")) as checkpoint:
        names = {entry.name for entry in checkpoint.tensors}
        assert all(entry.tensor.device in ("cpu", None) for entry in checkpoint.tensors)
    kept = {"head.weight", "head.bias", "twin.bias"}
    assert not any("the loader of" in line for line in done.complaints), done
    text = done.out.decode()
    assert ("; 2 left out; 2 missing; " in text) == (not init)
    assert (
        "load_state_dict takes it with strict=False only (--init writes all)" in text
    ) == (not init)
    assert not re.search("kept" if not init else "left out", text), (
        "one tensor is not both"
    )
    assert kept.isdisjoint(names) != init
    if suffix == ".pth":
        out = torch.load(tmp_path / "c.pth", weights_only=True)
        assert all(
            torch.equal(out[n], v)
            for n, v in one.state_dict().items()
            if not n.startswith("head")
        )
        if init:
            torch.manual_seed(7)
            scope: dict[str, Any] = {"__name__": "nets"}
            exec(CODE, scope)
            fresh = scope["Net"](classes=4)
            assert torch.equal(out["head.weight"], fresh.head.weight)
            assert out["head.weight"].data_ptr() == out["twin.weight"].data_ptr()
            fresh.load_state_dict(out, strict=True)


@pytest.mark.slow
def test_a_full_cover_from_a_factory_loads_strictly(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        CODE.replace("self.twin", "twin").replace(
            "twin.weight = self", "twin.weight = self"
        )
    )
    one = net(0)
    rewriting.saved({"state_dict": one.state_dict()}, tmp_path / "a.pth")

    report = run(
        tmp_path / "a.pth",
        "--into-model",
        f"{tmp_path / 'nets.py'}:Net",
        "-o",
        tmp_path / "c.pth",
    )

    assert report["coverage"]["share"] == 1 and not report["left_out"]
    net(5).load_state_dict(
        torch.load(tmp_path / "c.pth", weights_only=True), strict=True
    )


def test_the_library_call(tmp_path: Path) -> None:
    one = rewriting.saved(net(0).state_dict(), tmp_path / "a.pth")
    with formats.open(str(one)) as given, formats.open(str(one)) as mine:
        report = warmstart(Survey(given), Survey(mine), Limits(), Options())

    assert report.coverage is not None and report.coverage.share == 1
    assert [change.number for change in report.changes] == [15]


# --- memory that is shared ------------------------------------------------------------


def test_a_tie_is_loaded_once_and_counted_under_both_names(tmp_path: Path) -> None:
    """The language model whose head is its embedding, from a file that has one of the
    two.
    """
    shared = torch.zeros(6, 4)
    rewriting.saved(
        {"wte.weight": torch.randn(6, 4), "ln.weight": torch.ones(4)},
        tmp_path / "a.pth",
    )
    rewriting.saved(
        {"wte.weight": shared, "ln.weight": torch.zeros(4), "head.weight": shared},
        tmp_path / "b.pth",
    )

    report = run(
        tmp_path / "a.pth",
        "--into",
        tmp_path / "b.pth",
        "-o",
        tmp_path / "c.pth",
        "--min-coverage",
        "1",
    )

    coverage = report["coverage"]
    assert (
        coverage["share"] == 1
        and coverage["totals"]["tied"] == 1
        and coverage["totals"]["missing"] == 0
    )
    out = torch.load(tmp_path / "c.pth")
    assert torch.equal(out["head.weight"], torch.load(tmp_path / "a.pth")["wte.weight"])


def test_blocks_go_over_what_was_copied_before(tmp_path: Path) -> None:
    shared = torch.full((4, 3), 7.0)
    pretrained = {"a.weight": torch.ones(4, 3), "b.weight": torch.full((3, 2), 2.0)}
    rewriting.saved(pretrained, tmp_path / "a.pth")
    rewriting.saved({"a.weight": shared, "b.weight": shared}, tmp_path / "b.pth")

    run(
        tmp_path / "a.pth",
        "--into",
        tmp_path / "b.pth",
        "-o",
        tmp_path / "c.pth",
        "--on-mismatch",
        "slice",
    )

    expected = torch.ones(4, 3)
    expected[:3, :2] = 2
    assert torch.equal(torch.load(tmp_path / "c.pth")["b.weight"], expected)


def test_views_that_overlap_are_noted(tmp_path: Path) -> None:
    base = torch.zeros(10)
    rewriting.saved(
        {"a.weight": torch.ones(6), "b.weight": torch.ones(6) * 2}, tmp_path / "a.pth"
    )
    rewriting.saved({"a.weight": base[:6], "b.weight": base[4:]}, tmp_path / "b.pth")

    report = run(
        tmp_path / "a.pth", "--into", tmp_path / "b.pth", "-o", tmp_path / "c.pth"
    )

    assert "share memory in part" in report["coverage"]["notes"][0]
    assert torch.load(tmp_path / "c.pth")["a.weight"].tolist() == [1, 1, 1, 1, 2, 2]


@pytest.mark.slow
def test_a_factory_that_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\nmake = lambda: nn.Sequential(nn.LazyLinear(2), "
        "nn.Linear(1, 1))\n"
    )
    rewriting.saved({"x.weight": torch.ones(1)}, tmp_path / "a.pth")
    rewriting.saved(
        {"1.weight": torch.ones(1, 1), "0.weight": torch.ones(2, 3)}, tmp_path / "b.pth"
    )
    into = f"{tmp_path / 'nets.py'}:make"

    for options in ((), ("--init",)):
        done = ckpt(
            "warmstart",
            tmp_path / "a.pth",
            "--into-model",
            into,
            "-o",
            tmp_path / "c.pth",
            *options,
        )
        assert done.code == 1 and not (tmp_path / "c.pth").exists()
        assert done.complaints[-1].endswith(
            "no pretrained tensor fits: nothing was written"
        )
    done = ckpt(
        "warmstart", tmp_path / "b.pth", "--into-model", into, "-o", tmp_path / "c.pth"
    )
    assert "left out: 0.weight: uninitialized: its lazy module" in done.out.decode()


def test_what_lies_beside_a_loaded_tensor_in_its_storage_stays(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    target = rewriting.saved(
        {"a.weight": base[:4], "b.weight": base[4:]}, tmp_path / "target.pt"
    )
    given = rewriting.saved({"a.weight": torch.full((4,), -1.0)}, tmp_path / "given.pt")
    made(given, target, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(found["a.weight"], torch.full((4,), -1.0))
    assert torch.equal(found["b.weight"], base[4:])


def test_a_target_that_is_a_conjugate_view_keeps_its_values(tmp_path: Path) -> None:
    value = torch.tensor([1 + 2j, 3 - 4j])
    target = rewriting.saved(
        {"a.weight": value.conj(), "b.weight": torch.ones(1)}, tmp_path / "target.pt"
    )
    given = rewriting.saved(
        {"a.weight": torch.tensor([5 + 6j, 7j]), "b.weight": torch.zeros(1)},
        tmp_path / "given.pt",
    )
    coverage = made(given, target, tmp_path / "out.pt")
    assert (coverage["totals"]["kept"], coverage["totals"]["loaded"]) == (1, 1)
    why = {row["name"]: row.get("why") for row in coverage["pairs"]}["a.weight"]
    assert why == "the target's tensor is a conjugate or negative view"
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(found["a.weight"].resolve_conj(), value.conj().resolve_conj())


def test_a_head_with_as_many_outputs_answers_the_same_task(tmp_path: Path) -> None:
    """Only its inputs are fewer, as those of the layers before it."""
    rewriting.saved(
        {"body.weight": torch.ones(6, 6), "head.weight": torch.ones(7, 6)},
        tmp_path / "wide.pth",
    )
    rewriting.saved(
        {"body.weight": torch.zeros(4, 4), "head.weight": torch.zeros(7, 4)},
        tmp_path / "mine.pth",
    )
    done = inside(
        "warmstart", "wide.pth", "--into", "mine.pth", "--on-mismatch", "slice",
        "--dry-run", cwd=tmp_path,
    )  # fmt: skip
    assert "another task" not in done.out.decode(), done
    assert done.lines[0] == (
        "loads 2 of 2 tensors, 100 % of the model; 2 in part; 0 missing; 0 unexpected"
    )
    assert done.lines[1:3] == [
        "in part: body.weight [6, 6] → [4, 4] (100 %)",
        "in part: head.weight [7, 6] → [7, 4] (100 %)",
    ]


@pytest.mark.parametrize("embedding", ["embed.weight", None])
@pytest.mark.parametrize("rows", [12, 7])
def test_the_last_layer_of_a_resized_vocabulary_is_of_the_same_task(
    rows: int, embedding: str | None, tmp_path: Path
) -> None:
    def save(name: str, count: int) -> None:
        content = {
            "body.weight": torch.ones(4, 4),
            "lm_head.weight": torch.ones(count, 4),
        }
        if embedding is not None:
            content = {embedding: torch.ones(count, 4), **content}
        content["lm_head.bias"] = torch.ones(count)
        rewriting.saved(content, tmp_path / name)

    save("base.pth", 10)
    save("mine.pth", rows)
    done = inside(
        "warmstart", "base.pth", "--into", "mine.pth", "--on-mismatch", "slice",
        "--dry-run", cwd=tmp_path,
    )  # fmt: skip
    text = done.out.decode()
    assert ("another task" in text) == (embedding is None), text
    if embedding is not None and rows == 7:
        assert text.startswith("loads 4 of 4 tensors, 100 % of the model")


@pytest.mark.parametrize("name", ["wte", "embed_tokens", "word_embeddings"])
def test_a_table_of_tokens_is_no_last_layer(name: str, tmp_path: Path) -> None:
    """A model whose head is tied to its embedding may end with the embedding."""
    for path, rows in (("base.pth", 10), ("mine.pth", 12)):
        content = {
            "h.0.weight": torch.ones(4, 4),
            f"{name}.weight": torch.ones(rows, 4),
        }
        rewriting.saved(content, tmp_path / path)
    done = inside(
        "warmstart", "base.pth", "--into", "mine.pth", "--on-mismatch", "slice",
        "--dry-run", cwd=tmp_path,
    )  # fmt: skip
    text = done.out.decode()
    assert "another task" not in text and "(83.3 %)" in text, text


@pytest.mark.parametrize("more", [["-o", "z.pth"], ["--dry-run"]])
def test_an_adapter_is_refused_with_the_command_that_merges(
    more: list[str], tmp_path: Path
) -> None:
    """No table of layers that load 0 %, and the path as it was typed."""
    rewriting.saved(
        {"q_proj.weight": torch.ones(4, 4), "norm.weight": torch.ones(4)},
        tmp_path / "base.pth",
    )
    rewriting.saved(
        {
            "base_model.model.q_proj.lora_A.weight": torch.ones(2, 4),
            "base_model.model.q_proj.lora_B.weight": torch.ones(4, 2),
        },
        tmp_path / "lora.pth",
    )
    done = inside("warmstart", "lora.pth", "--into", "base.pth", *more, cwd=tmp_path)
    assert (done.code, done.out) == (1, b""), done
    assert done.complaints[0].startswith("ckpt: base.pth: has no place for the adapter")
    out = more[1] if len(more) > 1 else "OUT"
    assert done.complaints[-1].endswith(f"(ckpt merge base.pth lora.pth -o {out})")
    report = inside(
        "warmstart", "lora.pth", "--into", "base.pth", "--json", *more, cwd=tmp_path
    )
    assert json.loads(report.out)["coverage"]["share"] == 0


def test_a_tied_model_ends_with_a_norm_that_is_no_head(tmp_path: Path) -> None:
    rewriting.saved(
        {"embed.weight": torch.ones(4, 4), "up.weight": torch.ones(4, 3)},
        tmp_path / "a.pth",
    )
    rewriting.saved(
        {
            "embed.weight": torch.ones(4, 4),
            "up.weight": torch.ones(4, 3),
            "final_norm.weight": torch.ones(4),
        },
        tmp_path / "b.pth",
    )
    done = inside("warmstart", "a.pth", "--into", "b.pth", "--dry-run", cwd=tmp_path)
    assert "1 missing" in done.lines[0]
    assert "head" not in done.out.decode(), done


def test_no_option_is_named_that_is_refused_in_its_turn(tmp_path: Path) -> None:
    # One norm of a language model has the name and the shape of one in the target.
    base = {f"model.layers.{i}.up.weight": torch.ones(64, 8) for i in range(6)}
    base |= {"model.norm.weight": torch.ones(8)}
    model = {f"lstm.weight_ih_l{i}": torch.ones(32, 8) for i in range(6)}
    model |= {"norm.weight": torch.ones(8)}
    torch.save(base, tmp_path / "base.pth")
    torch.save(model, tmp_path / "model.pth")

    done = ckpt(
        "warmstart", "base.pth", "--into", "model.pth", "--dry-run", cwd=tmp_path
    )

    assert done.code == 1
    assert done.complaints == [
        "ckpt: model.pth: no pretrained tensor fits: nothing was written"
    ]


@pytest.mark.parametrize("option", ["--fuse", "--split"])
def test_an_option_that_joins_and_cuts_nothing_says_so(
    option: str, tmp_path: Path
) -> None:
    """No table knows `qkv_proj`, so a user would take the attention for loaded."""
    parts = {f"attn.{name}_proj.weight": torch.randn(4, 4) for name in "qkv"}
    whole = {"attn.qkv_proj.weight": torch.zeros(12, 4)}
    rest = {"embed.weight": torch.randn(40, 4)}
    one, two = (parts, whole) if option == "--fuse" else (whole, parts)
    torch.save(rest | one, tmp_path / "one.pth")
    torch.save(rest | two, tmp_path / "two.pth")

    done = inside(
        "warmstart", "one.pth", "--into", "two.pth", option, "--dry-run", cwd=tmp_path
    )

    assert f"! {option} " in "\n".join(done.lines)
    assert "ckpt recipe" in "\n".join(done.lines)


def test_an_adapter_gets_no_command_that_merges_into_it(tmp_path: Path) -> None:
    """The target is an adapter itself: `ckpt merge` refuses such a base."""
    for file, ends in (("kohya", ("down", "up")), ("peft", ("A", "B"))):
        module = "lora_unet_q" if file == "kohya" else "base_model.model.p"
        state = {
            f"{module}.lora_{ends[0]}.weight": torch.ones(2, 4),
            f"{module}.lora_{ends[1]}.weight": torch.ones(6, 2),
        }
        safetensors.torch.save_file(state, tmp_path / f"{file}.safetensors")
    words = ("kohya.safetensors", "--into", "peft.safetensors", "-o", "o.safetensors")

    done = inside("warmstart", *words, cwd=tmp_path)

    assert done.code == 1
    said = "\n".join(done.complaints)
    assert "the target is an adapter itself" in said
    assert "ckpt merge peft.safetensors" not in said


def test_a_table_of_patches_is_no_head(tmp_path: Path) -> None:
    """The alphabet puts the tower of pictures behind the head of the text."""
    text = {"lm_head.weight": torch.ones(5, 3), "model.a.weight": torch.ones(3, 3)}
    torch.save(text, tmp_path / "text.pth")
    both = {f"language_model.{name}": value for name, value in text.items()}
    both["visual.blocks.0.weight"] = torch.ones(3, 3)
    both["visual.patch_embed.proj.weight"] = torch.ones(3, 2)
    torch.save(both, tmp_path / "both.pth")
    words = ("text.pth", "--into", "both.pth", "-o", "o.pth")

    done = inside("warmstart", *words, cwd=tmp_path)

    said = "\n".join(done.lines)
    assert "head 100 % (language_model.lm_head.weight)" in said
    assert "patch_embed.proj.weight)" not in said


def test_a_folder_is_not_written_as_a_file_without_an_ending(tmp_path: Path) -> None:
    """A person who types -o out for a folder gets no nameless file, as elsewhere."""
    state = {"head.weight": torch.ones(2, 3)}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    safetensors.torch.save_file(state, tmp_path / "model/model.safetensors")
    torch.save(state, tmp_path / "base.pth")

    for words in (
        ("warmstart", "base.pth", "--into", "model"),
        ("rename", "model", "--sub", "s/head/fc/"),
        ("strip", "model"),
    ):
        done = inside(*words, "-o", "out", cwd=tmp_path)

        assert done.code == 2, words
        folder = "-o out/ --with-config, or " if words[0] == "warmstart" else ""
        assert done.complaints[-1].endswith(f"({folder}-o out.safetensors)"), words
        assert not (tmp_path / "out").exists()


def test_long_names_that_are_listed_are_folded_before_they_are_cut(
    tmp_path: Path,
) -> None:
    """Names that differ in their middle would else be many equal siblings."""
    begin = "student_network." + "a_really_long_name_" * 5 + "blocks"
    layers = range(6)
    mine = {f"{begin}.{i}.norm.weight": torch.ones(2) for i in layers}
    wanted = mine | {f"{begin}.{i}.gate.bias": torch.ones(3) for i in layers}
    torch.save(mine, tmp_path / "a.pth")
    torch.save(wanted, tmp_path / "b.pth")

    done = inside("warmstart", "a.pth", "--into", "b.pth", "-o", "c.pth", cwd=tmp_path)

    (line,) = (line for line in done.lines if line.startswith("not in PRETRAINED"))
    assert line.endswith(f"kept as they were: {begin}.0-5.gate.bias")


def test_a_layer_that_each_block_has_is_no_head(tmp_path: Path) -> None:
    """Names in the order of the alphabet end with some layer of the last block."""
    names = [
        f"model.layers.{number}.{layer}.weight"
        for number in range(2)
        for layer in ("mlp.down_proj", "self_attn.q_proj")
    ]
    for path, width in (("a.safetensors", 4), ("b.safetensors", 8)):
        tensors = {name: torch.zeros(width, 4) for name in names}
        tensors["model.embed_tokens.weight"] = torch.zeros(9, 4)
        safetensors.torch.save_file(tensors, tmp_path / path)
    arguments = ("a.safetensors", "--into", "b.safetensors", "-o", "out.safetensors")
    shown = inside("warmstart", *arguments, "--min-coverage", "0", cwd=tmp_path)
    assert b"loads 1 of 5 tensors" in shown.out
    assert b"head" not in shown.out


def in_folder(state: dict[str, torch.Tensor], folder: Path, *, tied: bool) -> Path:
    """A model as a hub has it: weights, config.json, and a tokenizer."""
    folder.mkdir()
    if tied:
        state["lm_head.weight"] = state["embed_tokens.weight"]
        torch.save(state, folder / "pytorch_model.bin")
    else:
        safetensors.torch.save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_the_config_of_the_target_goes_along(tied: bool, tmp_path: Path) -> None:
    one = {"embed_tokens.weight": torch.randn(6, 4), "norm.weight": torch.randn(4)}
    two = {name: torch.zeros_like(tensor) for name, tensor in one.items()}
    in_folder(dict(one), tmp_path / "a", tied=False)
    in_folder(two, tmp_path / "b", tied=tied)
    words = ("warmstart", "a", "--into", "b", "-o", "out")

    done = inside(*words, cwd=tmp_path)
    assert done.code == 2
    assert "(-o out/ --with-config, or -o out." in " ".join(done.complaints)

    done = inside(*words, "--with-config", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "carried along: config.json, tokenizer.json" in done.lines
    found = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == one.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in one.items())
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "model_type": "llama"
    }


def test_a_refused_plan_carries_nothing_along(tmp_path: Path) -> None:
    in_folder({"a.weight": torch.ones(3)}, tmp_path / "a", tied=False)
    in_folder({"b.weight": torch.ones(4)}, tmp_path / "b", tied=False)
    words = ("warmstart", "a", "--into", "b", "-o", "out", "--with-config")
    done = inside(*words, cwd=tmp_path)
    assert done.code == 1 and "nothing was written" in done.complaints[0]
    assert "carried along" not in done.out.decode()
    assert not (tmp_path / "out").exists()


def test_a_built_model_has_no_config_beside_it(tmp_path: Path) -> None:
    rewriting.saved(net(0).state_dict(), tmp_path / "a.pth")
    words = ("warmstart", "a.pth", "--into-model", "a.py:f", "-o", "o", "--with-config")
    check_error(inside(*words, cwd=tmp_path), "--with-config goes with --into target")

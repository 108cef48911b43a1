"""`ckpt diff` where it would be easy to say "same", or to give a reason that is not
true: every trap that was met.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import rewriting
import torch
from process import SAMPLES, check_error, ckpt, raw_controls
from torch import nn

from ckpt import formats
from ckpt.commands.diff.diff import DiffReport, Options, diff
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey

pytestmark = oracle.QUIET
W = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(4)}


def moved(by: float) -> dict[str, torch.Tensor]:
    return {name: value + by for name, value in W.items()}


def of(before: Any, after: Any, folder: Path, **options: Any) -> DiffReport:
    paths = [
        rewriting.saved(thing, folder / name)
        for thing, name in ((before, "a.pt"), (after, "b.pt"))
    ]
    with formats.open(str(paths[0])) as one, formats.open(str(paths[1])) as two:
        return diff(Survey(one), Survey(two), Options(**options))


def run(before: Any, after: Any, folder: Path, *arguments: str) -> Any:
    paths = [
        rewriting.saved(thing, folder / name)
        for thing, name in ((before, "a.pt"), (after, "b.pt"))
    ]
    return ckpt("diff", *paths, *arguments)


# --- nothing compared is not the same -------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"netG": W, "netD": W}, {"G": moved(5), "D": moved(6)}),
        ({}, W),
        (W, {}),
        ({"state_dict": {}}, {"state_dict": W}),
        ({"epoch": 1}, W),
    ],
)
def test_nothing_compared_is_trouble(before: Any, after: Any, tmp_path: Path) -> None:
    check_error(run(before, after, tmp_path), "to compare")


def test_a_selection_of_nothing_is_trouble(tmp_path: Path) -> None:
    check_error(run(W, W, tmp_path, "--include", "nonexist*"), "no tensor matches")


def test_a_section_that_only_one_file_has(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    done = run(
        {"model": W},
        {"model": W, "optimizer": optimizer.state_dict()},
        tmp_path,
        "--section",
        "optimizer",
    )
    assert done.code == 2 or "values" in done.out.decode()


def test_empty_files_are_the_same(tmp_path: Path) -> None:
    assert of({}, {}, tmp_path).same


# --- values ---------------------------------------------------------------------------

_SHARED = {"a": 1, "b": 2}
_DIFFER: list[tuple[Any, Any]] = [
    ({"p": _SHARED, "q": _SHARED}, {"p": dict(_SHARED), "q": {"a": 1, "b": 3}}),
    (np.arange(5000), np.arange(1, 5001)),
    (np.arange(5, dtype="i8"), np.arange(5, dtype="f4")),
    ({}, {"a": 1}),
    ({"b": 1}, {"b": 1, "c": 2}),
    ([{"a": 1}], [{"a": 1}, {"a": 2}]),
    ([float("nan")], ["nan"]),
    ([b"ab"], ["bytes 6162"]),
    ([2**5000], [2**5000 + 1]),
    ({1: 2}, {"1": 2}),
    (True, 1),
    (1, 1.0),
    (0.0, -0.0),
    ([1, 2], (1, 2)),
    (argparse.Namespace(x=1), {"x": 1}),
    ({1, 2}, {1, 3}),
    ("a", "b"),
    (None, 0),
]


@pytest.mark.parametrize("number", range(len(_DIFFER)))
def test_values_that_differ(number: int, tmp_path: Path) -> None:
    one, two = _DIFFER[number]
    there = of({"model": W, "x": one}, {"model": W, "x": two}, tmp_path)

    assert not there.same and there.values
    assert of(
        {"model": W, "x": one}, {"model": W, "x": copy.deepcopy(one)}, tmp_path
    ).same
    assert not of({"model": W, "x": two}, {"model": W, "x": one}, tmp_path).same
    assert not of(
        {**W, "x": one}, {**W, "x": two}, tmp_path
    ).same  # beside tensors, at the root


def test_keys_of_one_side(tmp_path: Path) -> None:
    """A whole key is not part of anything that is compared; inside of a compared
    section it is.
    """
    report = of({"model": W, "epoch": 1}, {"model": W}, tmp_path)
    assert report.same and any(
        name.startswith("epoch of") for name in report.not_compared
    )
    assert run({"model": W, "epoch": 1}, {"model": W}, tmp_path, "--strict").code == 1
    extra = OrderedDict(W, _extra_state={"a": 1})
    assert not of(extra, OrderedDict(W), tmp_path).same
    assert not of({"state_dict": extra}, {"state_dict": OrderedDict(W)}, tmp_path).same
    assert of(
        {"model": W, "d": {"b": 1, "a": 2}},
        {"model": W, "d": {"a": 2, "b": 1}},
        tmp_path,
    ).same


def test_an_optimizer_before_and_after_its_first_step(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    first = copy.deepcopy(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    )
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    report = of(
        first,
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path,
    )

    assert report.values == () and report.count("added") == 6


def test_a_key_called_ckpt_is_compared(tmp_path: Path) -> None:
    assert not of(
        {"ckpt": {"snapshot": W}}, {"ckpt": {"snapshot": moved(5)}}, tmp_path
    ).same
    assert not of(
        {"ckpt": {"snapshot": 5, "model": W}},
        {"ckpt": {"snapshot": 5, "model": moved(5)}},
        tmp_path,
    ).same


def test_a_tensor_at_the_root_has_a_name(tmp_path: Path) -> None:
    """An empty line is no name: a script would pass over it."""
    pair = W["a.weight"], moved(5)["a.weight"]
    assert run(*pair, tmp_path, "--name-only").lines == ["(the root)"]
    assert "M (the root)  " in run(*pair, tmp_path).out.decode()


def test_names_of_values_in_the_forms(tmp_path: Path) -> None:
    pair = {"model": W, "epoch": 1}, {"model": W, "epoch": 2}
    assert run(*pair, tmp_path, "--name-only").lines == ["epoch"]
    assert run(*pair, tmp_path, "--tsv").lines[-1].split("\t") == [
        "M",
        "epoch",
        "epoch",
        "value",
        "",
        "",
    ]


# --- tensors --------------------------------------------------------------------------


def quantized(scale: float, zero: int = 0) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(
            torch.tensor([1.0, 2.0, 3.0]) * scale * 10, scale, zero, torch.qint8
        )


def test_other_scales_are_a_change(tmp_path: Path) -> None:
    one, two = quantized(0.1), quantized(0.2)
    assert torch.equal(one.int_repr(), two.int_repr())

    assert of({"w.weight": one}, {"w.weight": two}, tmp_path).count("changed") == 1
    assert (
        of(
            {"w.weight": one}, {"v.weight": two, "u.weight": torch.ones(1)}, tmp_path
        ).count("renamed")
        == 0
    )
    assert of({"w.weight": one}, {"w.weight": one}, tmp_path).same


def test_large_integers(tmp_path: Path) -> None:
    for one, two, distance in ((2**60, 2**60 + 1, 1.0), (-(2**63), 2**63 - 1, 2.0**64)):
        pair = (
            {"w.weight": torch.tensor([0, one])},
            {"w.weight": torch.tensor([0, two])},
        )
        report = of(*pair, tmp_path)
        assert report.rows[0].change is not None
        assert (report.rows[0].change.max_abs, report.rows[0].change.at) == (
            distance,
            (1,),
        )
        for option in ("--close", "--atol=0", "--rtol=0"):
            assert run(*pair, tmp_path, option).code == 1


def test_a_tensor_on_meta_is_not_the_same_as_values(tmp_path: Path) -> None:
    meta, real = (
        {"w.weight": torch.empty(3, device="meta")},
        {"w.weight": torch.ones(3)},
    )
    assert not of(meta, real, tmp_path).same and not of(real, meta, tmp_path).same
    assert of(meta, meta, tmp_path).same


@pytest.mark.parametrize("after", [float("nan"), float("inf"), float("-inf")])
def test_no_number_for_a_change_that_is_not_finite(
    after: float, tmp_path: Path
) -> None:
    report = of(
        {"w.weight": torch.tensor([1.0, 2.0])},
        {"w.weight": torch.tensor([1.0, after])},
        tmp_path,
    )

    change = report.rows[0].change
    assert change is not None and (
        change.differing,
        change.max_abs,
        change.at,
        change.rms,
    ) == (
        1,
        None,
        None,
        None,
    )
    text = ckpt("diff", tmp_path / "a.pt", tmp_path / "b.pt").out.decode()
    assert "max |Δ|" not in text and ("NaN 0 → 1" in text or "inf 0 → 1" in text)
    assert json.loads(ckpt("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json").out)[
        "tensors"
    ][0]["change"]


def test_sparse_values(tmp_path: Path) -> None:
    one = torch.sparse_coo_tensor(
        [[0, 1]], [1.0, 2.0], (6,), check_invariants=False
    ).coalesce()
    indices = torch.sparse_coo_tensor(
        [[3, 4]], [1.0, float("nan")], (6,), check_invariants=False
    ).coalesce()
    values = torch.sparse_coo_tensor(
        [[0, 1]], [1.0, 5.0], (6,), check_invariants=False
    ).coalesce()
    moved_ = of({"w.weight": one}, {"w.weight": indices}, tmp_path)
    changed = of({"w.weight": one}, {"w.weight": values}, tmp_path).rows[0].change

    assert moved_.rows[0].change is not None and moved_.rows[0].change.max_abs is None
    assert [finding.code for finding in moved_.findings] == ["nan"]
    assert changed is not None and (changed.differing, changed.max_abs) == (1, 3.0)
    assert (
        "[6] sparse_coo → [6] strided"
        in run({"w.weight": one}, {"w.weight": one.to_dense()}, tmp_path).out.decode()
    )


def test_a_name_that_a_wrapper_could_have_made(tmp_path: Path) -> None:
    more = {**W, "module.a.weight": torch.ones(2)}
    report = of(more, {**more, "new.weight": torch.ones(1)}, tmp_path)

    assert (report.count("same"), report.count("added")) == (3, 1)


# --- reasons --------------------------------------------------------------------------


def step(net: nn.Module, optimizers: Any, *parts: int) -> dict[str, Any]:
    many = optimizers if isinstance(optimizers, list) else [optimizers]
    for optimizer in many:
        optimizer.zero_grad()
    sum(
        part(torch.randn(3, part.in_features)).square().sum()
        for part in (net[i] for i in parts)
    ).backward()
    for optimizer in many:
        optimizer.step()
    return copy.deepcopy(
        {"model": net.state_dict(), "optimizers": [o.state_dict() for o in many]}
    )


def test_a_group_without_momentum(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 5))
    groups = [
        {"params": net[0].parameters(), "momentum": 0.9},
        {"params": net[1].parameters(), "momentum": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, 0.1)
    first, second = step(net, optimizer, 0, 1), step(net, optimizer, 0, 1)

    path = rewriting.saved(first, tmp_path / "c.pt")
    with formats.open(str(path)) as checkpoint:
        assert not [
            row for row in inspect(Survey(checkpoint)).findings if row.code == "unused"
        ]
    assert of(first, second, tmp_path).findings == ()


def test_two_runs_at_one_step_say_nothing_of_the_order(tmp_path: Path) -> None:
    """No step lies between them, so a parameter without a gradient may differ."""
    saves = []
    for _ in range(2):
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = torch.optim.Adam(net.parameters())
        saves.append(step(net, optimizer, 0))

    report = of(*saves, tmp_path)

    assert "changed-without-state" not in [row.code for row in report.findings]


def test_parameters_handed_over_in_another_order(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.Adam([*net[1].parameters(), *net[0].parameters()])
    first, second = step(net, optimizer, 1), step(net, optimizer, 1)

    report = of(first, second, tmp_path)

    assert [(row.code, row.level) for row in report.findings] == [
        ("frozen", "info"),
        ("changed-without-state", "info"),
    ]
    assert {
        row.cause
        for row in report.rows
        if row.status == "same" and row.role.role == "parameter"
    } == {"unknown"}
    with formats.open(str(rewriting.saved(second, tmp_path / "c.pt"))) as checkpoint:
        (finding,) = (
            row for row in inspect(Survey(checkpoint)).findings if row.code == "unused"
        )
    assert finding.message.startswith("If optimizers.0 got model.parameters(), ")


def test_a_parameter_of_an_optimizer_that_tells_nothing(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 6))
    both = [
        torch.optim.Adam(net[0].parameters()),
        torch.optim.SGD(net[1].parameters(), 0.1),
    ]
    report = of(step(net, both, 0), step(net, both, 0), tmp_path)

    assert {
        row.cause
        for row in report.rows
        if row.status == "same" and row.role.role != "optimizer"
    } == {"unknown"}
    assert [(row.code, row.level) for row in report.findings] == [("frozen", "info")]


def test_moved_within_the_tolerance_is_not_frozen(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4))
    optimizer = torch.optim.Adam(net.parameters())
    report = of(
        step(net, optimizer, 0),
        step(net, optimizer, 0),
        tmp_path,
        tolerance=lambda dtype: (1.0, 0.0),
    )

    assert all(
        row.reason is None for row in report.rows if row.name.startswith("model")
    )
    assert report.findings == ()


def test_a_selection_is_not_the_whole(tmp_path: Path) -> None:
    files = SAMPLES / "ddp_before.pth", SAMPLES / "ddp_after.pth"
    document = json.loads(
        ckpt(
            "diff", *files, "--include", "*fc3*", "--include", "optimizer*", "--json"
        ).out
    )
    assert [row["code"] for row in document["findings"]] == []


def test_structure_makes_no_findings() -> None:
    name = SAMPLES / "legacy.pth"
    check_error(
        ckpt("diff", "--structure", "--fail-on", "frozen", name, name),
        "exclude each other",
    )


# --- listings that lie ----------------------------------------------------------------


def listing(**changes: Any) -> dict[str, Any]:
    document = json.loads(ckpt("inspect", SAMPLES / "ddp_after.pth", "--json").out)
    for path, value in changes.items():
        *steps, last = path.split("__")
        at = document
        for key in steps:
            at = at[int(key)] if key.isdigit() else at[key]
        at[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors__0__evidence__trust": "foo"},
        {"tensors__0__role": "\x1b[31mX\n"},
        {"tensors__0__offset": float("1e400")},
        {"tensors__0__shape": [-1]},
        {"tensors__0__shape": [True]},
        {"tensors__0__stride": [1]},
        {"tensors__0__path": "abc"},
        {"tensors__0__name": None},
        {"tensors__0__device": {}},
        {"tensors__0__section": None},
        {"tensors__0__dtype": "float999"},
        {"sections__0__kind": "snapshot"},
        {"sections__0__kind": "none"},
        {"file__bytes": float("1e400")},
        {"tensors": 5},
        {"sections": {}},
    ],
)
def test_listings_that_lie_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(listing(**changes)))

    done = ckpt(
        "diff", tmp_path / "m.json", SAMPLES / "ddp_after.pth", "--structure", "--tsv"
    )

    check_error(done)
    assert raw_controls(done.err) == []


@pytest.mark.parametrize("name", ["lightning.ckpt", "train_cuda.pth"])
def test_sections_without_tensors_are_kept_in_listings(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "m.json").write_bytes(ckpt("inspect", SAMPLES / name, "--json").out)
    assert (
        ckpt(
            "diff", "--structure", "--strict", tmp_path / "m.json", SAMPLES / name
        ).code
        == 0
    )


def test_bytes_that_a_view_does_not_see_are_no_difference(tmp_path: Path) -> None:
    """An overlapping view can span its storage and skip bytes of it, so checksums of
    the storage say nothing.
    """
    one, two = torch.arange(27.0), torch.arange(27.0)
    two[3:6] = -1.0
    files = [
        rewriting.saved({"a": whole.as_strided((3, 3, 3), (1, 6, 6))}, tmp_path / name)
        for whole, name in ((one, "a.pt"), (two, "b.pt"))
    ]
    with formats.open(str(files[0])) as before, formats.open(str(files[1])) as after:
        report = diff(Survey(before), Survey(after))
        quick = diff(Survey(before), Survey(after), Options(quick=True))
    assert report.same and not report.damaged
    assert not quick.differs and quick.count("unchecked") == 1

"""`ckpt.open`, `ckpt.inspect` and `ckpt.diff`: what programs get, against torch."""

from __future__ import annotations

import argparse
import json
import os
import pickle
from pathlib import Path

import numpy as np
import oracle
import pytest
import rewriting
import torch
from process import SAMPLES
from process import ckpt as command

import ckpt
from ckpt.model.errors import CkptError, LimitError, UnsupportedError
from ckpt.model.findings import Finding
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "int64", "int8", "uint16",
    "bool", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_values(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    made = (torch.randn(shape) * 3).to(getattr(torch, dtype))
    path = rewriting.saved(
        {"a.weight": made, "t": made.t() if made.dim() == 2 else made},
        tmp_path / "a.pt",
    )

    with ckpt.open(path) as opened:
        assert (
            list(opened) == ["a.weight", "t"]
            and len(opened) == 2
            and "a.weight" in opened
        )
        ref = opened["a.weight"]
        assert (ref.name, ref.shape, ref.dtype, ref.numel) == (
            "a.weight",
            shape,
            dtype,
            made.numel(),
        )
        assert (
            ref.nbytes == made.nbytes
            and ref.device == "cpu"
            and ref.layout == "strided"
        )
        found = ref.torch()
        assert found.dtype == made.dtype and found.shape == made.shape
        assert (
            found.flatten()
            .view(torch.uint8)
            .equal(made.contiguous().flatten().view(torch.uint8))
        )
        array = ref.numpy()
        wide = (
            made.to(torch.float32) if "float8" in dtype or dtype == "bfloat16" else made
        )
        np.testing.assert_array_equal(array, wide.numpy())
        assert (
            array.dtype == wide.numpy().dtype
            and array.flags.writeable
            and array.shape == shape
        )
        np.testing.assert_array_equal(
            opened["t"].numpy(), wide.t().numpy() if made.dim() == 2 else wide.numpy()
        )


def test_conjugated_and_negated(tmp_path: Path) -> None:
    made = torch.randn(4, dtype=torch.complex64).conj()
    negated = torch.randn(4, dtype=torch.complex64).conj().imag
    path = rewriting.saved({"a": made, "b": negated}, tmp_path / "a.pt")

    with ckpt.open(path) as opened:
        assert torch.equal(opened["a"].torch(), made) and torch.equal(
            opened["b"].torch(), negated
        )


def test_a_tensor_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"a.weight": torch.ones(1000), "b.weight": torch.ones(1000)}, tmp_path / "a.pt"
    )

    with ckpt.open(path) as opened:
        source = opened.checkpoint.source
        assert source is not None
        before = source.bytes_read
        assert (
            "float32 [1000] on cpu" in repr(opened["a.weight"])
            and source.bytes_read == before
        )
        opened["b.weight"].numpy()
        assert source.bytes_read == before + 4000


def test_values_and_names() -> None:
    with ckpt.open(SAMPLES / "train_cuda.pth") as opened:
        assert opened.value("epoch") == 12 and opened.value("args.lr") == 0.001
        assert opened.format == "torch-zip" and opened.path.endswith("/train_cuda.pth")
        assert repr(opened) == "<ckpt.Checkpoint train_cuda.pth: 115 tensors, 46.3 KiB>"
        with pytest.raises(CkptError, match=r"no value args\.l"):
            opened.value("args.l")
        with pytest.raises(CkptError) as hinted:
            opened.value("epohc")
        assert (
            str(hinted.value)
            == f"{opened.path}: no value epohc (did you mean epoch, args.epochs?)"
        )
        with pytest.raises(KeyError) as near:
            opened.values["epohc"]
        assert (
            str(near.value) == "no value 'epohc' (did you mean epoch, args.epochs?)"
            and near.value.args == ("epohc",)
        )
        with pytest.raises(KeyError):
            opened["none"]
        assert {ref.device for ref in opened.values()} == {"cuda:0", "cuda:1"}


def test_a_name_that_is_not_there(samples: Path) -> None:
    with ckpt.open(samples / "llama_bf16.pth") as opened:
        with pytest.raises(KeyError) as tensor:
            opened["lm_haed.weight"]
        with pytest.raises(KeyError) as value:
            opened.values["none\x1b"]
        assert "lm_haed.weight" not in opened and opened.get("lm_haed.weight") is None
    assert str(tensor.value).startswith(
        "no tensor 'lm_haed.weight' (did you mean lm_head.weight"
    )
    assert str(value.value) == "no value 'none\\x1b'"
    assert str(pickle.loads(pickle.dumps(tensor.value))) == str(tensor.value)


def test_plain_values(tmp_path: Path) -> None:
    made = {
        "best": float("inf"),
        "big": 10**400,
        "args": argparse.Namespace(lr=0.5, betas=(0.9, 0.99)),
        "a": {"b": 1},
        "a.b": 2,
        "w": torch.ones(2),
    }
    path = rewriting.saved(made, tmp_path / "a.pt")

    with ckpt.open(path) as opened:
        values = opened.values
        assert list(values) == [
            "best",
            "big",
            "args",
            "args.lr",
            "args.betas",
            "a.b",
            "a.b#2",
        ]
        assert (
            values["best"] == opened.value("best") == float("inf")
            and values["big"] == 10**400
        )
        assert (
            values["args"] == {"lr": 0.5, "betas": [0.9, 0.99]} and values["a.b#2"] == 2
        )
        assert len(values) == 7 and "none" not in values
        assert [ref.name for ref in values()] == ["w"]
        assert repr(values) == "<7 values: best, big, args, args.lr and 3 more>"
        assert [(part.kind, part.tensor_count) for part in opened.sections] == [
            (part.kind, part.tensor_count) for part in ckpt.inspect(opened).sections
        ]


def test_a_folder(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")

    with ckpt.open(tmp_path) as opened:
        assert list(opened) == ["w"] and opened["w"].numpy().tolist() == [1, 1]
    assert (
        repr(ckpt.inspect(tmp_path))
        == "<ckpt.InspectReport pytorch_model.bin: 1 tensor, 8 B>"
    )


def test_inspect_is_the_report_of_the_command() -> None:
    report = ckpt.inspect(SAMPLES / "train_cuda.pth")
    document = json.loads(command("inspect", SAMPLES / "train_cuda.pth", "--json").out)

    assert json.loads(json.dumps(report.to_json())) == document
    assert [finding.code for finding in report.findings] == [
        row["code"] for row in document["findings"]
    ]
    assert [
        (row.name, row.role, row.evidence, row.section) for row in report.tensors
    ] == [
        (row["name"], row["role"], row["evidence"]["trust"], row["section"])
        for row in document["tensors"]
    ]
    assert (list(report), len(report)) == ([row.name for row in report.tensors], 115)
    assert (
        report["model.module.fc.weight"].shape == (10, 8)
        and report.load == document["load"]
    )
    assert report.values["epoch"] == 12 and report.path.endswith("train_cuda.pth")
    assert [part.name for part in report.sections] == [
        row["name"] for row in document["sections"]
    ]
    with pytest.raises(KeyError, match="did you mean"):
        report["fc.wieght"]


def of_kind(kind: str) -> torch.Tensor:
    """A tensor that has no plain values."""
    if kind == "sparse_coo":
        return torch.eye(2).to_sparse()
    if kind == "meta":
        return torch.ones(2, device="meta")
    return torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("sparse_coo", "a is sparse_coo, not strided"),
        ("quantized", "a is quantized, not strided"),
        ("meta", "a is on meta, without data"),
    ],
)
def test_what_has_no_plain_values(kind: str, problem: str, tmp_path: Path) -> None:
    path = rewriting.saved({"a": of_kind(kind)}, tmp_path / "a.pt")

    with ckpt.open(path) as opened:
        for read in (opened["a"].numpy, opened["a"].torch):
            with pytest.raises(UnsupportedError) as error:
                read()
            assert str(error.value) == f"{path}: {problem}"


def test_an_element_type_that_numpy_does_not_have(tmp_path: Path) -> None:
    made = torch.arange(4, dtype=torch.uint8).view(torch.bits8)
    path = rewriting.saved({"a": made}, tmp_path / "a.pt")

    with ckpt.open(path) as opened:
        with pytest.raises(UnsupportedError) as error:
            opened["a"].numpy()
        assert opened["a"].torch().view(torch.uint8).tolist() == [0, 1, 2, 3]
    assert str(error.value) == f"{path}: a: numpy has no bits8"


def test_a_tensor_without_elements_needs_no_data(tmp_path: Path) -> None:
    path = rewriting.saved({"a": torch.ones(0, 3, device="meta")}, tmp_path / "a.pt")

    with ckpt.open(path) as opened:
        assert opened["a"].numpy().shape == opened["a"].torch().shape == (0, 3)


def test_trouble(tmp_path: Path) -> None:
    with pytest.raises(CkptError, match="no such file"):
        ckpt.open(tmp_path / "none.pth")


def test_limits_hold_for_a_path(samples: Path) -> None:
    limits = Limits(pickle_bytes=10)
    for look in (ckpt.open, ckpt.inspect):
        with pytest.raises(LimitError):
            look(samples / "train_cuda.pth", limits=limits)  # type: ignore[operator]


def test_a_file_that_changes_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = rewriting.saved({"a": torch.ones(3)}, tmp_path / "a.pt")
    other = rewriting.saved({"a": torch.ones(3)}, tmp_path / "b.pt")
    with ckpt.open(path) as opened:
        assert ckpt.inspect(opened).findings == () and ckpt.diff(other, opened).same
        os.utime(path, (1, 1))
        for look in (
            lambda: ckpt.inspect(opened),
            lambda: ckpt.diff(opened, other),
            lambda: ckpt.diff(other, opened),
        ):
            with pytest.raises(CkptError, match="changed while it was read"):
                look()


def test_diff(tmp_path: Path) -> None:
    one = rewriting.saved(
        {"a.weight": torch.ones(3), "b.weight": torch.ones(3)}, tmp_path / "a.pt"
    )
    two = rewriting.saved(
        {"a.weight": torch.zeros(3), "b.weight": torch.ones(3)}, tmp_path / "b.pt"
    )

    assert ckpt.diff(one, str(one)).same
    with ckpt.open(two) as opened:
        report = ckpt.diff(one, opened)
        assert report.changed == ("a.weight",) and report.frozen == ("b.weight",)
        more = report._replace(
            findings=(Finding("prefix", "", ("a.weight",)), *report.findings)
        )
        assert more.frozen == ("b.weight",)
        assert repr(report) == f"<ckpt.DiffReport {one} → {two}: 1 changed, 1 same>"
        assert not report.same and [row.status for row in report.rows] == [
            "changed",
            "same",
        ]
        assert opened["a.weight"].numpy().sum() == 0  # still open
    assert report.to_json()["schema"] == {"name": "ckpt.diff", "version": 1}
    assert ckpt.diff(one, two, structure=True).same


def test_the_public_names() -> None:
    assert dir(ckpt) == list(ckpt.__all__)
    assert {"inspect", "open", "diff", "snapshot", "CkptError", "Limits"} < set(
        dir(ckpt)
    )
    for name in dir(ckpt):
        assert getattr(ckpt, name).__doc__
    assert ckpt.CkptError is CkptError


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("epoch", "no tensor 'epoch' (a value: c.values[\"epoch\"])"),
        ("optimizer.param_groups.0.lr", 'c.values["optimizer.param_groups.0.lr"])'),
        ("model", "no tensor 'model' (a section: c.section(\"model\"))"),
        ("module.conv1.weigth", "did you mean model.module.conv1.weight"),
    ],
)
def test_a_name_that_is_no_tensor_says_what_it_is(
    name: str, says: str, samples: Path
) -> None:
    with ckpt.open(samples / "train_cuda.pth") as opened:
        inspected = ckpt.inspect(opened)
        for mapping in (opened, inspected):
            with pytest.raises(KeyError) as caught:
                mapping[name]
            assert says in str(caught.value)
            again = pickle.loads(pickle.dumps(caught.value))
            assert (
                str(again)
                == str(caught.value)
                == str(pickle.loads(pickle.dumps(again)))
            )


def test_a_tensor_that_is_looked_for_elsewhere(samples: Path) -> None:
    with ckpt.open(samples / "train_cuda.pth") as opened:
        with pytest.raises(
            KeyError, match=r"of the whole file: c\[.model.module.conv1.weight.\]"
        ):
            opened.section("model")["model.module.conv1.weight"]
        with pytest.raises(KeyError) as value:
            opened.values["model.module.conv1.wieght"]
    assert str(value.value).startswith("no value")
    with pytest.raises(KeyError) as late:
        ckpt.inspect(samples / "train_cuda.pth")["epoch"]
    assert str(late.value).endswith('(a value: c.values["epoch"])')


def test_rows_for_tables_are_plain_and_named_alike(samples: Path) -> None:
    before, after = samples / "ddp_before.pth", samples / "ddp_after.pth"
    for rows in (
        ckpt.diff(before, after).to_json()["tensors"],
        ckpt.inspect(before).to_json()["tensors"],
        ckpt.stats(before).to_json()["tensors"],
        ckpt.ls([before, after]).to_json(),
    ):
        assert isinstance(rows, list) and rows
        keys = {"path", "name", "status"}
        assert all(
            isinstance(row, dict) and row.keys() & keys == rows[0].keys() & keys
            for row in rows
        )


def test_a_tensor_is_no_value(tmp_path: Path) -> None:
    """Its text, `tensor float32 []`, would be taken for a loss."""
    path = tmp_path / "a.pt"
    torch.save({"loss": torch.tensor(0.5), "at": {"best": torch.ones(2), "n": 3}}, path)
    with ckpt.open(path) as checkpoint:
        for name in ("loss", "at.best"):
            with pytest.raises(KeyError, match=rf'a tensor: c\["{name}"\]'):
                checkpoint.values[name]
            assert checkpoint.values.get(name) is None and name not in checkpoint.values
        assert checkpoint.values["at.n"] == 3
        assert checkpoint.values["at"] == {"best": "tensor float32 [2]", "n": 3}
        assert dict(checkpoint.values) == {"at.n": 3}


def test_what_an_array_has_and_a_reference_has_not_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {"module.w": torch.ones(2)}}, path)
    with ckpt.open(path) as checkpoint:
        ref = checkpoint["model.module.w"]
        with pytest.raises(AttributeError, match=r"'mean' \(\.numpy\(\) and \.torch"):
            ref.mean()
        assert not hasattr(ref, "_repr_png_") and not hasattr(ref, "tolist")
        with pytest.raises(KeyError, match=r"module\.w behind the prefix of a wrapper"):
            checkpoint.section("model")["w"]
        assert list(checkpoint.state_dict(strip=True)) == ["w"]


def test_rows_have_short_reprs(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.tensor([0.1, 1 / 3])}, path)
    (row,) = ckpt.stats(path).rows
    assert repr(row) == "<Row w float32 [2]: min 0.1, max 0.3333, mean 0.2167>"
    (tmp_path / "b.pt").write_bytes(b"")
    one, two = ckpt.lint(tmp_path).files
    assert repr(one) == f"<ckpt.FileReport {path}: 0 findings>"
    assert repr(two).startswith(f"<ckpt.FileReport {tmp_path}/b.pt: an empty file")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("nan", "(ckpt diff, ckpt stats, ckpt lint find it)"),
        ("prefx", "(did you mean prefix?)"),
        ("xyzzy", "more, which ckpt explain lists)"),
    ],
)
def test_a_code_of_no_finding_is_answered_in_a_line(code: str, hint: str) -> None:
    with pytest.raises(ckpt.UsageError) as caught:
        ckpt.inspect(SAMPLES / "legacy.pth", fail_on=code)
    assert str(caught.value).endswith(hint) and len(str(caught.value)) < 420

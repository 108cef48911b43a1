"""The `load:` line: each expression is run, and gives what the report says of the
model.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import process
import pytest
import real_files
import safetensors.torch
import saved
import torch
from inside import inside
from opcodes import build, call, glob, newobj, pickled, tensor, torch_zip, value
from saved import OBJECTS
from torch import nn

from ckpt import formats
from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.evidence.survey import Survey

pytestmark = [*oracle.QUIET, pytest.mark.usefixtures("fresh_torch")]
SAMPLES = Path(__file__).resolve().parents[2] / "sample_checkpoints"
STRANGE = ["hostile.pth", "objects.pth", "whole_model.pth", "yolo_style.pt"]
"""Samples with names that are not known: for them there is no expression."""


def look(path: str) -> Inspection:
    with formats.open(path) as checkpoint:
        return inspect(Survey(checkpoint))


def run(expression: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(expression, {"torch": torch, "safetensors": safetensors})


def tensors(report: Inspection) -> dict[str, tuple[list[int], str]]:
    """Name inside the model -> shape and dtype, of the tensors that
    state_dict() gives.
    """
    return {
        row.relative: (list(row.tensor.shape), row.tensor.dtype.name)
        for row in report.rows
        if row.section is not None
        and row.section.kind == "model"
        and row.entry.registered
    }


def shapes(state: Any) -> dict[str, tuple[list[int], str]]:
    return {
        name: (
            list(value.shape) if not value.is_nested else [value.size(0)],
            str(value.dtype).removeprefix("torch."),
        )
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def agrees(report: Inspection) -> None:
    """Run the expression; compare what it gives with the model, when there is
    just one.
    """
    assert report.load.expression is not None
    loaded = run(report.load.expression)
    if len(report.survey.models) == 1:
        state = loaded.state_dict() if hasattr(loaded, "state_dict") else loaded
        assert shapes(state) == tensors(report)
    if "weights_only=False" in report.load.expression:
        with pytest.raises(Exception):  # noqa: B017  # any: it must not be said without need
            run(
                report.load.expression.replace(
                    "weights_only=False", "weights_only=True"
                )
            )


READABLE = [
    str(path.relative_to(SAMPLES))
    for path in sorted(SAMPLES.rglob("*"))
    if (
        path.suffix in (".pth", ".pt", ".ckpt", ".safetensors", ".json")
        or path.name == "sharded"
    )
    and path.name
    not in (
        "config.json",
        "adapter_config.json",
        "html_page.pth",
        "lfs_pointer.pth",
        "truncated.pth",
    )
]


@pytest.mark.parametrize("name", READABLE)
def test_sample(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLES)
    report = look(name)

    if name in STRANGE:
        assert report.load.expression is None
        assert report.load.reason
    else:
        agrees(report)


@pytest.mark.needs("archives")
def test_the_model_of_an_archive_is_opened_inside_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(SAMPLES)
    report = look("agent.zip")
    load = report.load
    assert load.note == "import zipfile"
    assert load.expression is not None and load.expression.endswith(
        '.open("policy.pth"), map_location="cpu")'
    )
    found = eval(load.expression, {"torch": torch, "zipfile": zipfile})
    assert shapes(found) == tensors(report)


@pytest.mark.parametrize("file", real_files.FILES)
def test_real_file(file: str) -> None:
    report = look(str(real_files.path(file)))

    if "pesto/mir-1k_g7" in file and find_spec("omegaconf") is None:
        assert report.load.note is not None
        assert report.load.note.endswith("; needs omegaconf")
        with pytest.raises(ModuleNotFoundError, match="omegaconf"):
            run(report.load.expression or "")
    else:
        agrees(report)


@pytest.mark.parametrize("name", OBJECTS)
def test_object(name: str, tmp_path: Path) -> None:
    """With an expression the file loads by it; without one a name in it is not
    known.
    """
    torch.save(
        {"state_dict": {"a.weight": torch.ones(2)}, "it": OBJECTS[name]()},
        tmp_path / "saved.pth",
    )

    report = look(str(tmp_path / "saved.pth"))

    strange = [row for row in report.checkpoint.imports if row.group != "known"]
    assert (report.load.expression is None) == bool(strange)
    if not strange:
        agrees(report)


@pytest.mark.parametrize(
    "folder", ["plain", "it's", 'say "x"', "new\nline", "back\\slash", "é\u202e"]
)
def test_any_path_can_be_pasted(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "saved.pth"
    torch.save({"model": {"a.weight": torch.ones(2)}}, path)

    report = look(str(path))

    assert report.load.expression is not None
    assert "\n" not in report.load.expression
    agrees(report)


def test_a_key_that_no_dict_takes_is_told(tmp_path: Path) -> None:
    import opcodes as op

    path = tmp_path / "saved.pth"
    path.write_bytes(
        op.torch_zip(
            op.pickled({"a": op.tensor()})[:-1]
            + op.value([1])
            + op.value(2)
            + op.setitem()
            + op.stop()
        )
    )

    report = look(str(path))

    assert report.load.expression is None
    assert "unhashable" in (report.load.reason or "")
    with pytest.raises(TypeError, match="unhashable"):
        torch.load(path, weights_only=False)


class Caller:
    """Loading it asks the system for the folder."""

    def __reduce__(self) -> Any:
        return os.getcwd, ()


def test_what_is_called_is_the_reason_rather_than_what_is_only_imported(
    tmp_path: Path,
) -> None:
    torch.save(
        {"first": Path, "a.weight": torch.ones(2), "kind": Caller, "it": Caller()},
        tmp_path / "saved.pth",
    )

    report = look(str(tmp_path / "saved.pth"))

    groups = [row.group for row in report.checkpoint.imports if row.group != "known"]
    assert "called" in groups and groups[0] == "unknown"
    assert report.load.expression is None and "getcwd" in (report.load.reason or "")


# --- packages -------------------------------------------------------------------------


def strange(tmp_path: Path, **values: bytes) -> Inspection:
    path = tmp_path / "x.pth"
    path.write_bytes(torch_zip(pickled({"model": {"w.weight": tensor()}, **values})))
    return look(str(path))


def made(module: str, name: str) -> bytes:
    """An object of a class that is built without a call."""
    return glob(module, name) + value(()) + newobj() + value({"a": 1}) + build()


def test_a_class_of_a_package_needs_the_package(tmp_path: Path) -> None:
    report = strange(
        tmp_path,
        x=made("torchvision.models.resnet", "ResNet"),
        y=made("timm.models.vit", "Vit"),
    )
    assert report.load.expression is not None and report.load.expression.endswith(
        'weights_only=False)["model"]'
    )
    assert report.load.note is not None and report.load.note.endswith(
        "; needs torchvision, timm"
    )
    assert [row.code for row in report.findings if row.code.endswith("import")] == [
        "unknown-import"
    ]


def test_an_enum_of_a_package_needs_the_package(tmp_path: Path) -> None:
    report = strange(
        tmp_path,
        x=call(glob("transformers.trainer_utils", "IntervalStrategy"), "steps"),
    )
    assert report.load.expression is not None and str(report.load.note).endswith(
        "; needs transformers"
    )
    assert [row.code for row in report.findings] == ["weights-only"]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (made("mynet.models", "Net"), "needs mynet.models.Net from the author's code"),
        (call(glob("shop", "Mode"), "a"), "needs shop.Mode from the author's code"),
        (call(glob("timm.models", "create_model"), "x"), (
            "loading this file calls the unknown timm.models.create_model"
        )),
        (call(glob("transformers.trainer_utils", "IntervalStrategy"), "a", "b"),
         (
             "loading this file calls the unknown "
             "transformers.trainer_utils.IntervalStrategy"
         )),
        (call(glob("timm.data", "Mode"), "a"), (
            "loading this file calls the unknown timm.data.Mode"
        )),
        (call(glob("os", "listdir"), "."), "loading this file runs os.listdir"),
        (value([glob("torch.storage", "_load_from_bytes")]), (
            "loading this file runs torch.storage._load_from_bytes"
        )),
    ],
)  # fmt: skip
def test_one_odd_name_beside_a_package_decides(
    odd: bytes, reason: str, tmp_path: Path
) -> None:
    report = strange(tmp_path, x=made("timm.models.vit", "Vit"), y=odd)
    assert (report.load.expression, report.load.reason) == (None, reason)


def test_code_is_named_before_a_call_that_is_only_unknown(tmp_path: Path) -> None:
    report = strange(
        tmp_path, x=call(glob("shop", "run"), 1), y=call(glob("os", "listdir"), ".")
    )
    assert report.load.reason == "loading this file runs os.listdir"


@pytest.mark.parametrize(
    ("values", "until"),
    [
        (
            {"x": made("torchao.quantization", "Tensor")},
            " until torchao is imported; needs torchao",
        ),
        (
            {
                "x": made("torchao.quantization", "Tensor"),
                "y": made("argparse", "Namespace"),
            },
            "; needs torchao",
        ),
    ],
)
def test_a_package_that_registers_its_classes(
    values: dict[str, bytes], until: str, tmp_path: Path
) -> None:
    note = strange(tmp_path, **values).load.note
    assert note is not None and note.endswith(until)
    assert ("until" in note) == ("until" in until)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "package"),
    [(saved.dtensor, "torch.distributed.tensor"), (saved.jagged, "torch._dynamo")],
)
def test_tensors_that_load_once_a_part_of_torch_is_imported(
    made: Any, package: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pth"
    torch.save({"w": made()}, path)
    assert f" until {package} is imported" in str(look(str(path)).load.note)
    load = f"import torch, {package}; torch.load({str(path)!r}, weights_only=True)"
    assert process.python("-c", load).code == 0


def _without(*names: str) -> Any:
    return lambda self: {
        key: value for key, value in self.__dict__.items() if key not in names
    }


def _without_all_but(*names: str) -> Any:
    return lambda self: {name: self.__dict__[name] for name in names}


@pytest.mark.filterwarnings("ignore")
def test_what_todays_torch_cannot_load_gets_the_way_through_plain(
    tmp_path: Path,
) -> None:
    """As torch 1.0 to 1.13 pickled them: each fails in torch 2 with another error, and
    none is a `load:` line.
    """
    gru, linear = nn.GRU(2, 2), nn.Linear(2, 2)
    adam = torch.optim.Adam(linear.parameters())
    things = {"gru": gru, "adam": {"opt": adam, "model": linear.state_dict()}}
    things["csr"] = {"a.weight": torch.eye(2).to_sparse_csr()}
    for name, thing in things.items():
        torch.save(thing, tmp_path / f"new_{name}.pth")
    gone = _without("_flat_weights", "_flat_weights_names", "_flat_weight_refs")
    with (
        mock.patch.object(nn.GRU, "__getstate__", gone, create=True),
        mock.patch.object(
            torch.optim.Adam,
            "__getstate__",
            _without_all_but("state", "param_groups"),
            create=True,
        ),
    ):
        for name in ("gru", "adam"):
            torch.save(things[name], tmp_path / f"{name}.pth")
    with (
        zipfile.ZipFile(tmp_path / "new_csr.pth") as new,
        zipfile.ZipFile(tmp_path / "csr.pth", "w") as old,
    ):
        for name in new.namelist():
            data = new.read(name)
            old.writestr(
                name,
                data.replace(b"_rebuild_sparse_tensor", b"_rebuild_sparse_csr_tensor"),
            )

    for name, says in (
        ("gru", "_flat_weights"),
        ("adam", "defaults"),
        ("csr", "_rebuild_sparse_csr_tensor"),
    ):
        with pytest.raises(AttributeError, match=says):
            torch.load(tmp_path / f"{name}.pth", weights_only=False)
        with formats.open(str(tmp_path / f"{name}.pth")) as checkpoint:
            load = Survey(checkpoint).load
            assert (
                load.expression is None
                and load.reason is not None
                and says in load.reason
            )
        with formats.open(str(tmp_path / f"new_{name}.pth")) as checkpoint:
            assert Survey(checkpoint).load.expression is not None
        made = inside(
            "convert",
            f"{name}.pth",
            "--plain",
            "-o",
            "plain.pth",
            "--force",
            cwd=tmp_path,
        )
        assert made.code == 0 and torch.load(tmp_path / "plain.pth") is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "sûr2.pth",
        "模型.pth",
        "a…b→c.pth",
        'it\'s "so".pth',
        "n\nl\\.pth",
        "e\u202ee.pth",
        "s\udcff.pth",
    ],
)
def test_the_path_is_readable_and_the_expression_loads_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "plain.pth")
    os.rename(tmp_path / "plain.pth", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    expression = look(name).load.expression

    assert expression is not None and expression.isprintable()
    assert torch.equal(run(expression)["w"], torch.ones(2))
    assert ("û" in name) == ("û" in expression) and ("模型" in name) == (
        "模型" in expression
    )
    for encoding in ("utf-8", "ascii", "latin-1"):
        done = process.ckpt("inspect", name, PYTHONIOENCODING=encoding, cwd=tmp_path)
        line = next(
            line
            for line in done.out.decode(encoding).splitlines()
            if "torch.load(" in line
        )
        assert torch.equal(run(line.strip())["w"], torch.ones(2)), encoding
    assert (
        json.loads(inside("inspect", name, "--json", cwd=tmp_path).out)["load"]
        == expression
    )


@pytest.mark.parametrize(
    ("count", "odd"), [(2, False), (8, False), (9, False), (130, False), (12, True)]
)
def test_many_shards_are_counted_rather_than_listed(
    count: int, odd: bool, tmp_path: Path
) -> None:
    names = [
        f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)
    ]
    if odd:  # one has no number of the series
        names[5] = "model-extra.safetensors"
    weight_map = {f"layers.{number}.weight": name for number, name in enumerate(names)}
    for number, (name, file) in enumerate(weight_map.items()):
        safetensors.torch.save_file(
            {name: torch.full((2,), float(number))}, tmp_path / file, {"format": "pt"}
        )
    index = {"metadata": {"total_size": 8 * count}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    load = look(str(tmp_path)).load
    assert load.expression is not None
    assert load.expression.count('"model-') == (count if count <= 8 or odd else 1)
    loaded = eval(load.expression, {"safetensors": safetensors})
    assert {name: float(tensor[0]) for name, tensor in loaded.items()} == {
        f"layers.{number}.weight": float(number) for number in range(count)
    }

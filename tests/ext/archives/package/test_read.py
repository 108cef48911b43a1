"""torch.package archives: torch writes them, and nothing of their code runs."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import exported
import numpy as np
import opcodes as op
import pytest
import torch
from process import check_error, ckpt

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError

FACTS = {
    ".data/extern_modules": b"torch\n",
    ".data/python_version": b"3.11.7",
    ".data/version": b"6\n",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return exported.written(tmp_path, "net.pkg", exported.package())


def built(tmp_path: Path, **records: bytes) -> Checkpoint:
    rows = {**FACTS, **records}
    data = op.zip_file({f"p/{name}": content for name, content in rows.items()})
    return formats.open(str(exported.written(tmp_path, "x.pkg", data)))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a\\x"])
def test_a_name_that_leads_out_of_its_folder_is_refused(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(CkptError, match="leads out of the archive"):
        built(tmp_path, **{name: b"text"})


def codes(checkpoint: Checkpoint) -> dict[str, str]:
    return {row.code: row.message for row in inspect(Survey(checkpoint)).findings}


def test_each_pickle_stands_under_its_name(file: Path) -> None:
    with formats.open(str(file)) as checkpoint:
        rows = {entry.name: entry.tensor for entry in checkpoint.tensors}
        values = {value.name: value.node for value in checkpoint.values}
        assert checkpoint.parts == ("models/net.pkl", "models/rest.pkl")
        assert "code-inside" not in codes(
            checkpoint
        )  # no pickle imports what lies in it
    assert {name.removeprefix("models/net.") for name in rows} - {
        "models/rest.same"
    } == set(exported.Net().state_dict())
    assert rows["models/rest.same"].storage is rows["models/net.fc.weight"].storage
    assert (
        values["files.notes/read.txt"] == "hello"
        and values["files.notes/blob"] == "3 B"
    )
    assert "code.my_code.py" in values and values["models/rest.lr"] == 0.1


def test_the_commands_take_it(file: Path, tmp_path: Path) -> None:
    assert (
        ckpt("verify", file).code
        == ckpt("ls", file).code
        == ckpt("sum", file).code
        == 0
    )
    assert 'PackageImporter("' in ckpt("inspect", file).out.decode()
    assert 'load_pickle("models", "net.pkl")' in ckpt("inspect", file).out.decode()
    assert ckpt("get", file, "models/rest.lr").out == b"0.1\n"
    assert ckpt("diff", file, file).code == 0
    done = ckpt("slim", file, "--section", "models/net", "-o", tmp_path / "slim.pth")
    assert done.code == 0, done.err

    loaded = torch.load(tmp_path / "slim.pth", weights_only=True)

    expected = exported.Net().state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_damage_names_its_tensor(file: Path) -> None:
    data = file.read_bytes()
    weight = exported.Net().state_dict()["fc.weight"].numpy().tobytes()
    at = data.index(weight)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    done = ckpt("verify", file)

    assert done.code == 1 and b"models/net.fc.weight" in done.out


@pytest.mark.parametrize(
    ("module", "record"),
    [
        ("my_code", "my_code.py"),
        ("my.code", "my/code.py"),
        ("my.code", "my/__init__.py"),
        ("collections", "collections.py"),
    ],
)
def test_code_that_a_pickle_imports_is_a_danger(
    module: str, record: str, tmp_path: Path
) -> None:
    thing = op.pickled(op.call(op.glob(module, "OrderedDict")), protocol=3)
    with built(tmp_path, **{"m/x.pkl": thing, "other.py": b"1/0"}) as checkpoint:
        assert "code-inside" not in codes(checkpoint)
    with built(tmp_path, **{"m/x.pkl": thing, record: b"1/0"}) as checkpoint:
        text = codes(checkpoint)["code-inside"]
        assert (
            "DANGER: loading this file runs Python code in it, for "
            f"{module}.OrderedDict"
        ) in text
        assert "runs the code that it holds" in str(Survey(checkpoint).load.reason)


@pytest.mark.parametrize(
    ("named", "record"),
    [
        (("__builtin__", "set"), "builtins.py"),
        (("copy_reg", "_reconstructor"), "copyreg.py"),
        (("UserDict", "IterableUserDict"), "collections/__init__.py"),
        (("__builtin__", "reduce"), "functools.py"),
    ],
)
def test_code_behind_a_name_of_python_2_is_a_danger(
    named: tuple[str, str], record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An importer translates the name, and finds the module in the package."""
    monkeypatch.chdir(tmp_path)
    thing = op.pickled({"x": op.glob(*named)}, protocol=2)
    name = named[1] if named[0] == "copy_reg" else "set"
    code = f"open('rung', 'w').close()\n{name} = UserDict = reduce = 1\n"
    path = tmp_path / "p.pt"
    records = {"m/x.pkl": thing, record: code.encode(), "version": b"6\n"}
    records[".data/extern_modules"] = b""
    path.write_bytes(op.zip_file({f"p/{key}": data for key, data in records.items()}))
    torch.package.PackageImporter(str(path)).load_pickle("m", "x.pkl")
    assert (tmp_path / "rung").exists()
    assert ckpt("lint", "--level", "error", path).code == 1


@pytest.mark.parametrize("name", ["x.npy", ".data/x.npy", "m/x", "code.py"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_records_that_another_loader_unpickles_are_judged(
    name: str, method: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = op.pickled(op.call(op.glob("os", "mkdir"), "rung"))
    objects = io.BytesIO()
    np.save(objects, np.array([None], dtype=object), allow_pickle=True)
    header = objects.getvalue().partition(b"\x80")[0]
    path = tmp_path / "p.pt"
    path.write_bytes(exported.package())
    assert ckpt("lint", "--level", "error", path).code == 0
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{name}", header + call, method)
    with np.load(path, allow_pickle=True) as arrays, contextlib.suppress(Exception):
        arrays[next(row for row in arrays.files if row in f"{root}/{name}")]
    assert (tmp_path / "rung").exists()
    assert ckpt("lint", "--level", "error", path).code == 1


def test_a_call_behind_a_persistent_id_is_named(tmp_path: Path) -> None:
    pid = ("reduce_package", op.glob("posix", "system"), ("touch x",))
    with built(
        tmp_path, **{"m/x.pkl": op.pickled(pid, op.binpersid(), protocol=3)}
    ) as checkpoint:
        assert (
            "DANGER: loading this file runs posix.system('touch x')"
            in codes(checkpoint)["called-on-load"]
        )


def test_a_pickle_under_another_name_is_seen(tmp_path: Path) -> None:
    evil = op.pickled(op.call(op.glob("posix", "system"), "touch x"), protocol=3)
    with built(
        tmp_path, **{"m/weights": evil, "m/noise": b"\x80\x03not a pickle"}
    ) as checkpoint:
        assert "called-on-load" in codes(checkpoint)
        assert {value.name for value in checkpoint.values} >= {"files.m/noise"}


STORAGE = ("storage", op.glob("torch", "FloatStorage"), 0, "cpu", 6)
TENSOR = op.call(
    op.glob("torch._utils", "_rebuild_tensor_v2"),
    op.value(STORAGE) + op.binpersid(),
    0,
    (2, 3),
    (3, 1),
    False,
    op.ordered_dict(),
)
BAD = {
    "a storage that is cut": (
        {"m/x.pkl": op.pickled(TENSOR), ".data/0.storage": op.SIX[:20]},
        "20 bytes",
    ),
    "no storage": ({"m/x.pkl": op.pickled(TENSOR)}, "has no record"),
    "two of one name": ({"m/x.pkl": op.pickled(1), "m/x": op.pickled(2)}, "twice"),
    "a name that is no pickle": ({"m/x.pkl": b"hello"}, "damaged pickle"),
    "a call without arguments": (
        {
            "m/x.pkl": op.pickled(
                ("reduce_package", op.glob("a", "b"), 1), op.binpersid()
            )
        },
        "is no call",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_one_is_refused(name: str, tmp_path: Path) -> None:
    records, problem = BAD[name]

    with pytest.raises(CkptError, match=problem):
        built(tmp_path, **records)


# --- programs of TorchScript in it ----------------------------------------------------


class Scripted(torch.nn.Module):
    """A module that sets its own state."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.w, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.w = state[0]
        self.training = state[1]
        torch.save(state[0], "CANARY")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def packaged(
    module: torch.nn.Module, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    from torch.package import package_exporter

    monkeypatch.setattr(package_exporter, "_gate_torchscript_serialization", False)
    with torch.package.PackageExporter(str(path)) as exporter:
        exporter.save_pickle("m", "m.pkl", torch.jit.script(module))
    return path


def test_a_program_without_python_is_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packaged(
        torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()),
        tmp_path / "p.pt",
        monkeypatch,
    )
    with formats.open(str(path)) as checkpoint:
        assert inspect(Survey(checkpoint)).findings == ()
    assert ckpt("lint", "--level", "error", path).code == 0


def test_the_code_of_a_program_that_loading_runs_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packaged(Scripted(), tmp_path / "p.pt", monkeypatch)
    monkeypatch.chdir(tmp_path)
    torch.package.PackageImporter(str(path)).load_pickle("m", "m.pkl")
    assert (tmp_path / "CANARY").exists()
    with formats.open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert [row.code for row in report.findings] == ["code-inside"]
    assert "torch.save at .data/ts_code/code/__torch__" in report.findings[0].message
    assert report.load.expression is None


def test_big_endian_bytes_that_torch_does_not_turn_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "a.pt", tmp_path / "b.pt"
    with torch.package.PackageExporter(path) as exporter:
        exporter.save_pickle("m", "x.pkl", {"w": torch.tensor([1.5, 2.5])})
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(other, "w") as after:
        for name in before.namelist():
            after.writestr(
                name, b"big" if name.endswith("/byteorder") else before.read(name)
            )

    read = torch.package.PackageImporter(other).load_pickle("m", "x.pkl")

    assert read["w"].tolist() == [1.5, 2.5]
    check_error(
        ckpt("inspect", other), "big-endian, and packageimporter does not turn them"
    )

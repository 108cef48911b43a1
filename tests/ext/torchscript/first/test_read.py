"""TorchScript of torch 1.0 to 1.2: files that these releases wrote are the reference,
and their documents are broken.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exported
import opcodes as op
import pytest
import scripted
import torch
from process import check_error, ckpt
from safetensors.torch import load_file

from ckpt import formats
from ckpt.model.errors import CkptError, LimitError
from ckpt.model.limits import Limits

WEIGHTS = {
    "head": torch.arange(4.0).view(2, 2),
    "hf": torch.arange(6.0).half()[2:5],
    "sub.w": torch.arange(6.0).view(2, 3).t(),
    "sub.n": torch.tensor(7),
}
OF_1_2 = {**WEIGHTS, "bl": torch.tensor([True, False])}


def changed(
    change: Callable[[dict[str, bytes]], object], version: str = "1.2"
) -> bytes:
    """The file with changed records, below `net`."""
    with zipfile.ZipFile(io.BytesIO(scripted.written_by(version))) as archive:
        rows = {name: archive.read(name) for name in archive.namelist()}
    change(rows)
    return op.zip_file(rows)


def modelled(change: Callable[[dict[str, Any]], object], version: str = "1.2") -> bytes:
    """The file with a changed `model.json`."""

    def edit(rows: dict[str, bytes]) -> None:
        document = json.loads(rows["net/model.json"])
        change(document)
        rows["net/model.json"] = json.dumps(document).encode()

    return changed(edit, version)


def opened(folder: Path, data: bytes, limits: Limits | None = None) -> Any:
    return formats.open(str(exported.written(folder, "a.pt", data)), limits)


@pytest.mark.parametrize(("version", "weights"), [("1.0", WEIGHTS), ("1.2", OF_1_2)])
def test_the_weights_come_out(
    version: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    source = exported.written(tmp_path, "net.pt", scripted.written_by(version))

    for out in ("a.safetensors", "b.pth"):
        done = ckpt("convert", source, "-o", tmp_path / out)
        assert done.code == 0, done.err
    made = torch.load(tmp_path / "b.pth", weights_only=True)
    for found in (load_file(tmp_path / "a.safetensors"), made):
        assert found.keys() == weights.keys()
        for name, value in weights.items():
            assert torch.equal(found[name], value) and found[name].dtype == value.dtype
    assert made["sub.w"].stride() == weights["sub.w"].stride() == (1, 3)


def test_roles_values_and_devices(tmp_path: Path) -> None:
    with opened(tmp_path, scripted.written_by("1.2")) as checkpoint:
        assert checkpoint.format == "torchscript-1.0"
        kinds = {entry.name: entry.kind for entry in checkpoint.tensors}
        values = {value.name: value.node for value in checkpoint.values}
        assert [entry.tensor.device for entry in checkpoint.tensors] == ["cpu"] * len(
            kinds
        )
        assert checkpoint.not_loadable is not None

    assert kinds == {
        "head": "parameter",
        "hf": "buffer",
        "bl": "buffer",
        "lst.0": None,
        "lst.1": None,
        "sub.w": "parameter",
        "sub.n": "buffer",
    }
    assert values["names.a"] == 1


def test_tensors_of_the_code_are_constants(tmp_path: Path) -> None:
    data = modelled(
        lambda document: document["mainModule"]["submodules"][0].pop("parameters"),
        "1.0",
    )
    with opened(tmp_path, data) as checkpoint:
        names = [entry.name for entry in checkpoint.tensors]

    assert names == ["head", "hf", "constants.0", "constants.1"]


def test_devices_are_read_and_those_in_the_code_are_named(tmp_path: Path) -> None:
    def move(document: dict[str, Any]) -> None:
        for row in document["tensors"]:
            row["device"] = "cuda:1"

    with opened(tmp_path, modelled(move, "1.0")) as checkpoint:
        assert {storage.device for storage in checkpoint.storages} == {"cuda:1"}
        assert {row.file for row in checkpoint.code_devices} == {
            "code/net.py",
            "code/net_sub.py",
        }
        assert {(row.line, row.device) for row in checkpoint.code_devices} == {
            (4, "cpu")
        }


def test_what_is_tied_stays_tied(tmp_path: Path) -> None:
    def tie(document: dict[str, Any]) -> None:
        row = {"isBuffer": False, "tensorId": "0", "name": "again"}
        document["mainModule"]["parameters"].append(row)

    with opened(tmp_path, modelled(tie)) as checkpoint:
        found = {entry.name: entry.tensor for entry in checkpoint.tensors}
        assert found["again"].storage is found["head"].storage


def test_every_command(tmp_path: Path) -> None:
    source = exported.written(tmp_path, "net.pt", scripted.written_by("1.2"))

    assert (
        ckpt("verify", source).code == 0 and b"weights-only" in ckpt("lint", source).out
    )
    assert b"7" in ckpt("get", source, "sub.n").out and ckpt("sum", source).code == 0
    assert (
        b"torchscript-1.0" in ckpt("ls", source).out and ckpt("stats", source).code == 0
    )
    assert ckpt("slim", source, "-o", tmp_path / "s.pth").code == 0
    assert b"0 changed, 2 added, 5 same" in ckpt("diff", tmp_path / "s.pth", source).out
    for command, options in (
        ("strip", []),
        ("rename", ["--sub", "s/sub/x/"]),
        ("rehome", []),
    ):
        line = check_error(
            ckpt(command, source, *options, "-o", tmp_path / "b.pt"),
            "torchscript 1.0 is not",
        )
        assert f"(ckpt convert {source} -o" in line
    assert not (tmp_path / "b.pt").exists()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    data = bytearray(scripted.written_by("1.0"))
    data[data.index(torch.arange(4.0).numpy().tobytes())] ^= 1
    source = exported.written(tmp_path, "net.pt", bytes(data))

    done = ckpt("verify", source)
    assert done.code == 1 and b"tensors/0" in done.out + done.err


# --- hostile documents ----------------------------------------------------------------


def tensor(**fields: Any) -> bytes:
    return modelled(lambda document: document["tensors"][0].update(fields))


def main(**fields: Any) -> bytes:
    return modelled(lambda document: document["mainModule"].update(fields))


def pickled(body: bytes) -> bytes:
    return changed(
        lambda rows: rows.update({"net/attributes.pkl": b"\x80\x02" + body + b"."})
    )


NAMED = [{"name": "x", "tensorId": "0"}]
BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "path up": (lambda: tensor(data={"key": "../../etc/passwd"}), "not tensors/n"),
    "path inside": (
        lambda: tensor(data={"key": "tensors/../version"}),
        "not tensors/n",
    ),
    "absolute path": (lambda: tensor(data={"key": "/etc/passwd"}), "not tensors/n"),
    "no record": (lambda: tensor(data={"key": "tensors/99"}), "no record tensors/99"),
    "huge dims": (lambda: tensor(dims=["9223372036854775807"] * 2), "do not fit"),
    "more than 64 bits before a size of 0": (
        lambda: tensor(dims=["4611686018427387904", "8", "0"], strides=["1"] * 3),
        "more elements than torch counts",
    ),
    "large dims": (lambda: tensor(dims=["1000000", "2"]), "its record has 16"),
    "offset": (lambda: tensor(offset="1"), "needs 20 bytes, its record has 16"),
    "largest offset": (
        lambda: tensor(offset="9223372036854775807"),
        "its record has 16",
    ),
    "negative": (lambda: tensor(offset="-1"), "does not describe"),
    "many digits": (lambda: tensor(offset="1" * 5000), "does not describe"),
    "strides": (lambda: tensor(strides=["1"]), "do not fit"),
    "dims are a text": (lambda: tensor(dims="22"), "does not describe"),
    "unknown dtype": (lambda: tensor(dataType="UNDEFINED"), "unknown dtype undefined"),
    "dtype is a list": (lambda: tensor(dataType=["FLOAT"]), "unknown dtype"),
    "quantized": (lambda: tensor(isQuantized=True), "is quantized"),
    "two dtypes": (
        lambda: tensor(data={"key": "tensors/2"}, dims=["1"], strides=["1"]),
        "used with two dtypes",
    ),
    "long device": (lambda: tensor(device="c" * 100), "does not describe"),
    "tensor number": (
        lambda: main(parameters=[{"name": "x", "tensorId": "99"}]),
        "names tensor 99",
    ),
    "one name twice": (
        lambda: main(parameters=NAMED * 2),
        "names x twice in one module",
    ),
    "a module by the name of a tensor": (
        lambda: main(parameters=[{"name": "sub"}]),
        "names sub twice",
    ),
    "no name": (lambda: main(parameters=[{"tensorId": "0"}]), "does not describe"),
    "attribute number": (
        lambda: main(attributes=[{"name": "x", "id": "99"}]),
        "attribute x is number 99",
    ),
    "no module": (
        lambda: modelled(lambda document: document.pop("mainModule")),
        "does not describe",
    ),
    "a list": (
        lambda: changed(lambda rows: rows.update({"net/model.json": b"[]"})),
        "does not describe",
    ),
    "not JSON": (
        lambda: changed(lambda rows: rows.update({"net/model.json": b"{"})),
        "model.json",
    ),
    "two keys": (
        lambda: changed(
            lambda rows: rows.update(
                {"net/model.json": b'{"mainModule":{},"mainModule":{}}'}
            )
        ),
        "duplicate key",
    ),
    "no attributes.pkl": (
        lambda: changed(lambda rows: rows.pop("net/attributes.pkl")),
        "holds 0",
    ),
    "attributes are a dict": (lambda: pickled(b"}"), "does not hold a list"),
    "an attribute without its tensor": (
        lambda: pickled(b"(ctorch.jit._pickle\nbuild_tensor_from_id\n(K\x63tRt"),
        "names tensor 99",
    ),
    "an attribute with a text": (
        lambda: pickled(b"(ctorch.jit._pickle\nbuild_tensor_from_id\n(X\x01\0\0\0atRt"),
        "has no number",
    ),
    "an attribute with a storage": (lambda: pickled(b"(K\x00Qt"), "names a storage"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(name: str, tmp_path: Path) -> None:
    make, says = BROKEN[name]
    source = exported.written(tmp_path, "a.pt", make())

    check_error(ckpt("inspect", source), says)


def test_modules_in_each_other(tmp_path: Path) -> None:
    """Deep ones are read, and those that exhaust the stack are an error."""

    def nest(depth: int) -> bytes:
        text = b'{"name":"m","submodules":[' * depth + b'{"name":"m"}' + b"]}" * depth
        whole = b'{"mainModule":' + text + b',"tensors":[]}'
        return changed(lambda rows: rows.update({"net/model.json": whole}), "1.0")

    with opened(tmp_path, nest(20)) as checkpoint:
        assert checkpoint.containers
    with pytest.raises(CkptError, match=r"model\.json"):
        opened(tmp_path, nest(200_000))


def test_limits(tmp_path: Path) -> None:
    with pytest.raises(LimitError):
        opened(tmp_path, scripted.written_by("1.2"), Limits(index_bytes=100))
    with pytest.raises(LimitError):
        opened(tmp_path, scripted.written_by("1.2"), Limits(entries=3))


def test_nothing_of_it_runs(tmp_path: Path) -> None:
    source = exported.written(
        tmp_path, "a.pt", pickled(b"cposix\nsystem\n(X\x07\0\0\0touch xtRp0\n0(t")
    )
    done = ckpt("inspect", source, cwd=tmp_path)

    assert not (tmp_path / "x").exists() and done.code == 2

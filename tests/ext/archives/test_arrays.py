"""The agents of Stable-Baselines 2: arrays of numpy in an archive of their own, beside
JSON.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from inside import inside

import ckpt
from ckpt.model.errors import CkptError, UnreadableError


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "model/pi_fc0/w:0": rng.standard_normal((4, 8)).astype("f4"),
        "model/pi_fc0/b:0": np.zeros(8, "f4"),
        "model/of Fortran": np.asfortranarray(rng.standard_normal((3, 5))),
        "model/scalar:0": np.array(2.5, "f4"),
        "model/big:0": np.arange(4, dtype=">f4"),
        "model/empty:0": np.zeros((0, 3), "f4"),
        "model/steps": np.array([7], "i8"),
    }


def agent(path: Path, parameters: bytes | None = None, **more: str) -> Path:
    """An agent as `BaseRLModel.save` writes it."""
    held = io.BytesIO()
    np.savez(held, **arrays())
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"gamma": 0.99, "n_envs": 1}))
        archive.writestr(
            "parameters", held.getvalue() if parameters is None else parameters
        )
        archive.writestr("parameter_list", json.dumps(list(arrays())))
        for name, text in more.items():
            archive.writestr(name, text)
    return path


def npz(save: Callable[..., None], **content: Any) -> bytes:
    held = io.BytesIO()
    save(held, **content)
    return held.getvalue()


def test_the_arrays_are_tensors(tmp_path: Path) -> None:
    path = agent(tmp_path / "ppo2.zip")
    with ckpt.open(path) as found:
        assert list(found) == [f"parameters.{name}" for name in arrays()]
        for name, array in arrays().items():
            tensor = found[f"parameters.{name}"].torch()
            assert torch.equal(
                tensor, torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
            ), name
        assert (
            found.value("data.gamma") == 0.99
            and found.checkpoint.traits.label == "Stable-Baselines 2"
        )
    assert ckpt.verify(path).verdict == "intact"
    done = inside("inspect", path, cwd=tmp_path)
    assert done.code == 0 and b"only Stable-Baselines 2 loads it" in done.out
    done = inside("convert", path, "--drop-other", "-o", "w.safetensors", cwd=tmp_path)
    assert done.code == 0, done.err
    written = safetensors.torch.load_file(tmp_path / "w.safetensors")
    assert {name.removeprefix("parameters.") for name in written} == set(arrays())


def test_other_members_are_named(tmp_path: Path) -> None:
    (row,) = [
        row
        for row in ckpt.inspect(agent(tmp_path / "a.zip", more="x")).findings
        if row.code == "unread-file"
    ]
    assert "1 member of the archive that nobody reads: more" in row.message


def test_damaged_bytes_are_seen(tmp_path: Path) -> None:
    path = agent(tmp_path / "a.zip")
    data = bytearray(path.read_bytes())
    data[data.index(arrays()["model/pi_fc0/w:0"].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    report = ckpt.verify(path)
    assert report.verdict == "damaged" and "parameters" in report.problems[0].what


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


def one(
    header: bytes, data: bytes = bytes(8), magic: bytes = b"\x93NUMPY\x01\x00"
) -> bytes:
    """An archive of one array with this header."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(
            "a.npy", magic + len(header).to_bytes(2, "little") + header + data
        )
    return held.getvalue()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (npz(np.savez_compressed, a=np.zeros(99)), "is compressed"),
        (
            npz(np.savez, a=np.array([{}], object)),
            "holds elements that torch does not have",
        ),
        (
            npz(np.savez, a=np.array(["text"])),
            "holds elements that torch does not have",
        ),
        (
            npz(np.savez, a=np.zeros(2, [("x", "f4")])),
            "holds elements that torch does not have",
        ),
        (one(HEADER, bytes(7)), "has 7 bytes, its shape needs 8"),
        (one(HEADER, bytes(9)), "has 9 bytes, its shape needs 8"),
        (one(HEADER.replace(b"(2,)", b"(2, 999999999999999999)")), "its shape needs"),
        (
            one(HEADER.replace(b"(2,)", b"(-2,)")),
            "holds elements that torch does not have",
        ),
        (
            one(HEADER.replace(b"False", b"exit()")),
            "holds elements that torch does not have",
        ),
        (one(HEADER, magic=b"\x93NUMPY\x09\x00"), "does not begin as numpy writes it"),
        (one(HEADER, magic=b"\x93NUMPX\x01\x00"), "does not begin as numpy writes it"),
        (one(HEADER + b" " * 20_000), "needs 20,0"),
        (b"", "zip archive"),
        (b"{}", "zip archive"),
    ],
)
def test_what_is_no_plain_array_is_refused(
    parameters: bytes, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UnreadableError, match=says.replace(",", "[,]")):
        ckpt.open(agent(tmp_path / "a.zip", parameters))


def test_a_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("a.pkl", b"\x80\x02}.")
    with pytest.raises(CkptError, match="is no array of numpy"):
        ckpt.open(agent(tmp_path / "a.zip", held.getvalue()))

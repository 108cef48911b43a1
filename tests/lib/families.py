"""A program of opcodes in the pickle of every family of checkpoints, and the loader of
the family, which runs it.

The program comes before what an honest pickle does, and what it makes is popped.
"""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import deepspeeds
import exported
import folders
import opcodes as op
import torch
import torch.distributed.checkpoint as dcp
from opcodes import pickled
from saved import dtensor

STATE = {"l.weight": torch.ones(2, 2), "l.bias": torch.ones(2)}


class Family(NamedTuple):
    """`write` makes the files in a folder and gives the path for `ckpt`; `load` opens
    what the family's library opens.
    """

    write: Callable[[Path, bytes], Path]
    load: Callable[[Path], Any]


def before(data: bytes, program: bytes) -> bytes:
    """A pickle that runs a program first."""
    assert data[0] == 0x80
    return data[:2] + program + op.pop() + data[2:]


def inside(data: bytes, program: bytes, name: str = "/data.pkl") -> bytes:
    """A zip archive of torch in which a pickle runs a program first."""
    rows = exported.records(data)
    (at,) = (row for row in rows if row.endswith(name))
    return op.zip_file({**rows, at: before(rows[at], program)})


def saved(program: bytes) -> bytes:
    """A state dict whose pickle runs a program first."""
    return inside(exported.saved(STATE), program)


def _file(name: str, make: Callable[[bytes], bytes]) -> Callable[[Path, bytes], Path]:
    return lambda folder, program: exported.written(folder, name, make(program))


def _torch(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def _each(pattern: str) -> Callable[[Path], Any]:
    return lambda path: [_torch(file) for file in sorted(path.rglob(pattern))]


def _bare(program: bytes) -> bytes:
    return before(pickle.dumps({"lr": 0.1}, 2), program)


def _shards(folder: Path, program: bytes) -> Path:
    shard = "pytorch_model-00001-of-00001.bin"
    (folder / shard).write_bytes(saved(program))
    index = {"metadata": {"total_size": 24}, "weight_map": dict.fromkeys(STATE, shard)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def _package(program: bytes) -> bytes:
    rows = exported.records(exported.package())
    (at,) = (row for row in rows if row.endswith("models/rest.pkl"))
    (extern,) = (row for row in rows if row.endswith("/extern_modules"))
    names = (
        b"torch\ntorch._utils\ncollections\nargparse\nbuiltins\nfunctools\npathlib\n"
    )
    return op.zip_file({**rows, at: before(rows[at], program), extern: names})


def _distributed(folder: Path, program: bytes) -> Path:
    dcp.save({"model": STATE}, checkpoint_id=folder, no_dist=True)
    metadata = folder / ".metadata"
    metadata.write_bytes(before(metadata.read_bytes(), program))
    return folder


def _ranks(folder: Path, program: bytes) -> Path:
    state = inside(
        exported.saved({"l.weight": dtensor(), "l.bias": dtensor()}), program
    )
    (folder / "model_world_size_1_rank_0.pt").write_bytes(state)
    return folder


def _deepspeed(folder: Path, program: bytes) -> Path:
    deepspeeds.write(folder, 1)
    for path in folder.rglob("*_model_states.pt"):
        path.write_bytes(inside(path.read_bytes(), program))
    return folder


def _agent(policy: bytes, data: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", policy)
        archive.writestr("_stable_baselines3_version", "2.9.2")
    return out.getvalue()


def _agent_with_object(program: bytes) -> bytes:
    text = b64encode(_bare(program)).decode()
    return _agent(
        exported.saved(STATE),
        {"schedule": {":type:": "<class 'function'>", ":serialized:": text}},
    )


def _load_agent_data(path: Path) -> Any:
    """As stable_baselines3.common.save_util.json_to_data does; cloudpickle's loads is
    pickle's.
    """
    data = json.loads(zipfile.ZipFile(path).read("data"))
    return pickle.loads(b64decode(data["schedule"][":serialized:"]))


def _nemo(program: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:") as archive:
        for name, data in (
            ("./model_config.yaml", b"target: asr\n"),
            ("./model_weights.ckpt", saved(program)),
        ):
            row = tarfile.TarInfo(name)
            row.size = len(data)
            archive.addfile(row, io.BytesIO(data))
    return out.getvalue()


def _load_nemo(path: Path) -> Any:
    with tarfile.open(path) as archive:
        member = archive.extractfile("./model_weights.ckpt")
        assert member is not None
        return torch.load(io.BytesIO(member.read()), weights_only=False)


def _exported(layout: Callable[[], bytes], name: str) -> Callable[[bytes], bytes]:
    def make(program: bytes) -> bytes:
        rows = exported.records(layout())
        (at,) = (row for row in rows if row.endswith(name))
        return op.zip_file({**rows, at: inside(rows[at], program)})

    return make


def _adapter(folder: Path, program: bytes) -> Path:
    folders.adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    state = {
        "base_model.model.0.lora_A.weight": torch.ones(8, 3),
        "base_model.model.0.lora_B.weight": torch.ones(4, 8),
    }
    (folder / "adapter_model.bin").write_bytes(inside(exported.saved(state), program))
    return folder


def _legacy(program: bytes) -> bytes:
    return op.legacy(before(pickled({"l.weight": op.tensor()}), program))


FAMILIES: dict[str, Family] = {
    "zip": Family(_file("x.pth", saved), _torch),
    "legacy": Family(_file("x.pth", _legacy), _torch),
    "shards": Family(_shards, _each("*.bin")),
    "pickle": Family(
        _file("x.pkl", _bare), lambda path: pickle.loads(path.read_bytes())
    ),
    "joblib": Family(
        _file("x.joblib", lambda program: zlib.compress(_bare(program))),
        lambda path: pickle.loads(zlib.decompress(path.read_bytes())),
    ),
    "package": Family(
        _file("x.pt", _package),
        lambda path: torch.package.PackageImporter(path).load_pickle(
            "models", "rest.pkl"
        ),
    ),
    "dcp": Family(
        _distributed, lambda path: dcp.FileSystemReader(path).read_metadata()
    ),
    "fsdp ranks": Family(_ranks, _each("*.pt")),
    "deepspeed": Family(_deepspeed, _each("*_model_states.pt")),
    "sb3": Family(
        _file("x.zip", lambda program: _agent(saved(program), {"gamma": 0.9})),
        lambda path: torch.load(
            io.BytesIO(zipfile.ZipFile(path).read("policy.pth")), weights_only=False
        ),
    ),
    "sb3's json": Family(_file("x.zip", _agent_with_object), _load_agent_data),
    "nemo": Family(_file("x.nemo", _nemo), _load_nemo),
    "pt2 of 2.13": Family(
        _file("x.pt2", _exported(exported.pt2, "sample_inputs/model.pt")),
        torch.export.load,
    ),
    "pt2 of 2.8": Family(
        _file("x.pt2", _exported(exported.pt2_of_2_8, "weights/model.pt")),
        torch.export.load,
    ),
    "pt2 of 2.5": Family(
        _file("x.pt2", _exported(exported.pt2_of_2_5, "serialized_state_dict.pt")),
        lambda path: torch.load(
            io.BytesIO(zipfile.ZipFile(path).read("serialized_state_dict.pt")),
            weights_only=False,
        ),
    ),
    "peft": Family(_adapter, _each("*.bin")),
}

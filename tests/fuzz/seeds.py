"""What fuzzing starts from, made of the samples, the hostile files and saved objects:
nothing binary is kept for it.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from harness import opened
from hostile import BOMBS, CASES
from process import SAMPLES

from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.record import record_columns, record_of
from ckpt.evidence.survey import Survey
from ckpt.formats.common.stream import is_legacy
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.pickle import machine
from ckpt.pickle.judge.weights_only import pickle_refusals

MOST = 20_000
"""Bytes of one seed: more of them are tried in a second when they are small."""


@cache
def samples() -> dict[str, bytes]:
    """The sample checkpoints, by their names."""
    found = {
        path.name: path.read_bytes()
        for path in sorted(SAMPLES.iterdir())
        if path.is_file()
    }
    return {
        name: data for name, data in found.items() if not name.endswith((".py", ".md"))
    }


@cache
def distributed() -> dict[str, bytes]:
    """The data files of the distributed checkpoint among the samples."""
    return {
        path.name: path.read_bytes()
        for path in sorted((SAMPLES / "dcp").glob("*.distcp"))
    }


@cache
def hostile() -> tuple[bytes, ...]:
    """The hostile files that are bytes, but for the bombs."""
    found = [
        case.data
        for case in CASES
        if isinstance(case.data, bytes) and not case.name.startswith(BOMBS)
    ]
    return tuple(data for data in found if len(data) <= MOST)


@cache
def saved() -> tuple[bytes, ...]:
    """An object of every kind that people save, by torch; nothing without torch."""
    try:
        import torch
        from saved import OBJECTS
    except ImportError:
        return ()
    torch.manual_seed(0)
    found: list[bytes] = []
    for make in OBJECTS.values():
        for modern in (True, False):
            out = io.BytesIO()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    torch.save(
                        {"it": make()}, out, _use_new_zipfile_serialization=modern
                    )
            except Exception:  # what this torch does not save, or not in this form
                continue
            if out.tell() <= MOST:
                found.append(out.getvalue())
    return tuple(found)


@cache
def _files() -> tuple[bytes, ...]:
    small = [data for data in samples().values() if len(data) <= MOST]
    return tuple(dict.fromkeys((*small, *hostile(), *saved())))


def zips() -> Iterator[bytes]:
    """Zip archives, whole ones and broken ones."""
    return (data for data in _files() if data.startswith(b"PK"))


def legacy() -> Iterator[bytes]:
    """Files of torch before 1.6."""
    return (data for data in _files() if is_legacy(data))


QUANTISED = Path(__file__).resolve().parents[1] / "quantised_files"


def quantised() -> Iterator[bytes]:
    """Layers of each scheme, as their libraries write them."""
    for path in sorted(QUANTISED.glob("*.safetensors")):
        data = path.read_bytes()
        if len(data) <= MOST:
            yield data


def safetensors() -> Iterator[bytes]:
    """Files with a header in JSON."""
    return (data for data in _files() if data[8:9] in (b"{", b" ", b"["))


def ggufs() -> Iterator[bytes]:
    """Files of llama.cpp: small ones, the hostile ones, and those that its own package
    wrote.
    """
    yield from (data for data in _files() if data.startswith(b"GGUF"))
    for path in sorted(
        (SAMPLES.parent / "tests" / "ext" / "gguf" / "data").glob("*.gguf")
    ):
        if path.stat().st_size <= MOST:
            yield path.read_bytes()


def _record(data: bytes, name: str) -> bytes | None:
    """The record of this name in an archive; None for an archive that is broken, or
    lacks it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return next(
                (
                    archive.read(info)
                    for info in archive.infolist()
                    if info.orig_filename.endswith(name)
                ),
                None,
            )
    except Exception:
        return None


def pickles() -> Iterator[bytes]:
    """The pickles of archives, and the one with the object of legacy files."""
    for data in (*_files(), *samples().values()):
        if data.startswith(b"PK"):
            found = _record(data, "/data.pkl")
            if found is not None and len(found) <= MOST:
                yield found
        elif is_legacy(data):
            try:
                at = 0
                for _ in range(3):
                    at = machine.run_machine(data, Limits(), at).end
                yield data[at : machine.run_machine(data, Limits(), at).end]
            except Exception:
                continue


def indexes() -> Iterator[bytes]:
    """Indexes of shards: of the sample, and of the hostile ones those that are text."""
    from targets import SHARDS

    yield (SAMPLES / "sharded" / "model.safetensors.index.json").read_bytes()
    names = {
        name: [row.name for row in opened(name, data).tensors]
        for name, data in SHARDS.items()
        if not name.startswith(("bad", "nested"))
    }
    for choice in (
        ("a.safetensors", "b.safetensors"),
        ("a.safetensors",),
        ("c.bin", "b.safetensors"),
        ("bad.bin",),
    ):
        shards = {name: shard for shard in choice for name in names.get(shard, ["w"])}
        yield json.dumps(
            {"metadata": {"total_size": 48}, "weight_map": shards}
        ).encode()
        yield json.dumps(
            {"metadata": {"total_size": 48}, "weight_map": shards, "more": [{}]}
        ).encode()
    for text in (
        '{"weight_map": {}}',
        '{"weight_map": {"a": "../x"}}',
        '{"weight_map": {"a": 1}}',
        "[]",
        '{"a": 1, "a": 2}',
    ):
        yield text.encode()


def listings() -> Iterator[bytes]:
    """What `inspect --json` prints of the samples and of saved objects."""
    for data in (
        *(data for data in samples().values() if len(data) < 30_000),
        *saved()[::6],
    ):
        try:
            with opened("x.pt", data) as checkpoint:
                yield json.dumps(inspect(Survey(checkpoint)).to_json()).encode()
        except Exception:  # the samples that are refused
            continue


def scripts() -> Iterator[bytes]:
    """TorchScript: a pickle, its length before it, and code."""
    data = samples()["scripted.pt"]
    pickle = _record(data, "/data.pkl") or b""
    codes = [
        _record(data, name) or b""
        for name in ("my_project/nets.py", "modules/conv.py", "modules/batchnorm.py")
    ]
    odd = (
        b'class Net(Module):\n  __parameters__ = ["weight", ]\n  __buffers__ = []\n'
        * 3,
        b"class A(",
        b"",
        b"\xff" * 9,
    )
    for code in (*codes, *odd):
        yield len(pickle).to_bytes(2, "big") + pickle + code
    for other in list(pickles())[:60]:
        if len(other) < 0xFFFF:
            yield len(other).to_bytes(2, "big") + other + codes[0]


def snapshots() -> Iterator[bytes]:
    """Records that `ckpt.snapshot` left in the samples, as JSON, with the shapes of the
    tensors beside them.
    """
    for name, data in samples().items():
        if not name.startswith("snapshot"):
            continue
        with opened("x.pt", data) as checkpoint:
            record = record_of(checkpoint)
            assert record is not None
            shapes = {
                entry.name.partition(".")[2]: entry.tensor.shape
                for entry in checkpoint.tensors
            }
        made = record_columns(record)
        yield json.dumps({"ckpt": made, "state_dict": shapes}).encode()
        yield json.dumps(
            {"ckpt": {**made, "world_size": 2, "rank": 1}, "state_dict": shapes}
        ).encode()
        row = {
            "place": ["a[0]"],
            "kind": ["module"],
            "class": ["Linear"],
            "parameters": [4],
            "registered": [None],
        }
        left = {"name": ["x"], "why": ["a list"]}
        yield json.dumps(
            {"ckpt": {**made, "loose": row, "left_out": left}, "state_dict": shapes}
        ).encode()


def phrases() -> Iterator[bytes]:
    """What people type: a byte for the language, and the words."""
    from targets import LANGUAGES

    for number, (_, words) in enumerate(LANGUAGES.values()):
        for text in words:
            yield bytes((number,)) + text.encode()


def allowed() -> Iterator[bytes]:
    """Pickles that `torch.load(weights_only=True)` takes."""
    for data in dict.fromkeys(pickles()):
        try:
            if not pickle_refusals(machine.run_machine(data, Limits())):
                yield data
        except CkptError:
            continue


def metadata() -> Iterator[bytes]:
    """`.metadata` of distributed checkpoints: that of the sample, and others whose
    files are not there.
    """
    import metadata as made

    yield (SAMPLES / "dcp/.metadata").read_bytes()
    for seed in range(60):
        for protocol in (2, 4):
            yield pickle.dumps(made.made(seed, 2 + seed % 9), protocol)


def entries() -> Iterator[bytes]:
    """`.metadata` with more entries, most of which are read in columns."""
    import metadata as made

    for seed in range(60):
        yield pickle.dumps(made.made(seed, 8 + seed % 16), 4)


def tensors() -> Iterator[bytes]:
    """Pickles of state dicts and optimizers with up to eighty tensors of sixty bytes,
    of which half are read in columns.
    """
    import torch
    from states import shaped

    base = torch.arange(15.0)
    kinds = (
        lambda number: torch.zeros(3, 5),
        lambda number: torch.zeros(3, 5) if number % 5 else base,
        lambda number: base[number % 7 : number % 7 + 4],
        lambda number: shaped(number)[..., :1],
        lambda number: torch.nn.Parameter(
            torch.zeros(5, 3).T, requires_grad=number % 3 == 0
        ),
    )
    for count in (50, 70, 80):
        for make in kinds:
            flat = {f"w{number}": make(number).detach() for number in range(count)}
            steps = {
                number: {"step": make(number), "exp_avg": make(number)}
                for number in range(count // 2)
            }
            for state in (flat, {"model": flat, "epoch": 3}, {"state": steps}):
                file = io.BytesIO()
                torch.save(state, file)
                data = _record(file.getvalue(), "data.pkl")
                assert data is not None
                yield data

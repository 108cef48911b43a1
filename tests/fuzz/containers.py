"""Targets of containers around tensors: the lists of a PT2 archive, and the members of
a tar archive of torch 0.1.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterator
from random import Random
from typing import Any

import mutate
import opcodes as op

MEMBERS = ("storages", "tensors", "pickle")


def pt2(data: bytes) -> bytes:
    """A PT2 archive with this document: the list of weights, of constants, and the
    graph.
    """
    try:
        document = json.loads(data)
        parts = [
            json.dumps(document.get(name)).encode()
            for name in ("weights", "constants", "graph")
        ]
    except (ValueError, AttributeError, RecursionError):
        parts = [data] * 3
    records = {
        "archive_format": b"pt2",
        "data/weights/model_weights_config.json": parts[0],
        "data/constants/model_constants_config.json": parts[1],
        "models/model.json": parts[2],
        "data/weights/weight_0": op.SIX,
        "data/weights/weight_1": op.torch_zip(op.pickled(op.tensor())),
        "data/constants/tensor_0": op.SIX[:8],
        "data/constants/opaque_obj_0": op.pickled({"a": 1}),
    }
    return op.zip_file({f"p/{name}": content for name, content in records.items()})


def _row(record: str, *sizes: int, **changes: Any) -> dict[str, Any]:
    steps = [1, *sizes[:0:-1]]
    meta = {
        "dtype": 7,
        "sizes": [{"as_int": size} for size in sizes],
        "strides": [{"as_int": step} for step in steps[: len(sizes)][::-1]],
        "storage_offset": {"as_int": 0},
        "layout": 7,
        "device": {"type": "cuda", "index": 1},
        "requires_grad": False,
    }
    pickled = changes.pop("use_pickle", False)
    meta.update(changes)
    return {
        "path_name": record,
        "is_param": True,
        "use_pickle": pickled,
        "tensor_meta": meta,
    }


def lists() -> Iterator[bytes]:
    """Documents of `pt2`."""
    specs = [
        {"parameter": {"arg": {"name": "p"}, "parameter_name": "w"}},
        {"buffer": {"arg": {"name": "b"}, "buffer_name": "b", "persistent": False}},
        {"tensor_constant": {"arg": {"name": "c"}, "tensor_constant_name": "c"}},
        {"user_input": {"arg": {"as_tensor": {"name": "x"}}}},
    ]
    graph = {
        "graph_module": {"graph": {"nodes": [{}]}, "signature": {"input_specs": specs}},
        "torch_version": "2.13",
    }
    thing = {
        "path_name": "opaque_obj_0",
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }
    weights: list[dict[str, Any]] = [
        {"w": _row("weight_0", 2, 3), "b": _row("weight_0", 6)},
        {"w": _row("weight_0", 3, storage_offset={"as_int": 3})},
        {"w": _row("weight_0", 3, dtype=5), "h": _row("weight_0", 2, dtype=12)},
        {"w": _row("weight_1", 2, 3, use_pickle=True)},
        {"w": _row("weight_0"), "e": _row("weight_0", 0, 4)},
        {},
        {"w": _row("weight_0", 7)},
    ]
    for rows in weights:
        document = {
            "weights": {"config": rows},
            "constants": {"config": {"c": _row("tensor_0", 2), "o": thing}},
        }
        yield json.dumps({**document, "graph": graph}).encode()


def tar(data: bytes) -> bytes:
    """A tar archive of three members, each after its length in two bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in MEMBERS:
            length = int.from_bytes(data[:2], "big")
            content, data = data[2 : 2 + length], data[2 + length :]
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _joined(parts: list[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def members() -> Iterator[bytes]:
    """Members of `tar`."""
    floats = op.glob("torch", "FloatStorage")
    storages = op.pickled(2)
    for key, numel in ((1, 6), (2, 2)):
        storages += (
            op.pickled((key, "cpu", floats))
            + struct.pack("<Q", numel)
            + op.SIX[: numel * 4]
        )
    views = (op.pickled([]), op.pickled([(3, 1, 2, 4)]), op.pickled([(3, 1, 2, 5)]))
    head = op.pickled(1) + op.pickled((9, 1, floats))
    shapes = (
        struct.pack("<2i5q", 2, 0, 2, 3, 3, 1, 0),
        struct.pack("<2i3q", 1, 0, 6, 1, 0),
        struct.pack("<2iq", 0, 0, 5),
        struct.pack("<2i3q", 1, 0, 7, 1, 0),
    )
    named = op.value(9) + op.binpersid()
    parameter = op.call(op.glob("torch.nn.parameter", "Parameter"), named, True)
    mains = (
        op.pickled({"w": named, "n": 1}),
        op.pickled({"p": parameter, "s": op.value(2) + op.binpersid()}),
    )
    for view in views:
        for shape in shapes:
            for main in mains:
                yield _joined([storages + view, head + shape, main])


def member_parts(data: bytes, random: Random) -> bytes:
    """One member changed, and its length after it."""
    parts: list[bytes] = []
    while len(parts) < len(MEMBERS):
        length = int.from_bytes(data[:2], "big")
        parts.append(data[2 : 2 + length])
        data = data[2 + length :]
    at = random.choice((0, 1, 2, 2))
    if (
        at < 2 and parts[at] and random.random() < 0.6
    ):  # one byte, which most often still reads
        place = random.randrange(len(parts[at]))
        parts[at] = (
            parts[at][:place] + bytes([random.randrange(256)]) + parts[at][place + 1 :]
        )
    else:
        change = mutate.pickles if at == 2 else mutate.plain
        parts[at] = change(parts[at], random)[:0xFFFF]
    return _joined(parts)

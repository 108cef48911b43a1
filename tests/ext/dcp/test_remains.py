"""What an interrupted save holds: the items that its lost `.metadata` would have named,
and no others.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zipfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import opcodes as op
import oracle
import pytest
import torch
import train_dcp
from inside import inside
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from ckpt.bytes.location import locate
from ckpt.ext.dcp.remains import Remains, remains
from ckpt.model.limits import Limits
from ckpt.model.names import natural_sort_key

pytestmark = oracle.QUIET


def found_in(
    folder: Path, most: int | None = None, **limits: int
) -> dict[str, Remains]:
    rows = list(remains(locate(str(folder)), Limits()._replace(**limits), most))
    assert [row.file for row in rows] == sorted(
        (row.file for row in rows), key=natural_sort_key
    )
    return {row.file: row for row in rows}


def item(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", train_dcp.NAMES)
def test_the_items_are_those_of_the_lost_metadata(
    name: str, trained: Path, tmp_path: Path
) -> None:
    """torch's own `.metadata` is the oracle: how many items lie in each file, and the
    dtypes and shapes of the tensors.
    """
    shutil.copytree(trained / name, tmp_path / "c")
    items: Counter[str] = Counter()
    tensors: dict[str, Counter[str]] = {}
    for path in sorted((tmp_path / "c").glob("*.metadata")):
        metadata: Metadata = pickle.loads(path.read_bytes())
        for index, place in metadata.storage_data.items():
            items[place.relative_path] += 1
            row = metadata.state_dict_metadata[index.fqn]
            if isinstance(row, BytesStorageMetadata):
                continue
            sizes = next(
                list(chunk.sizes)
                for chunk in row.chunks
                if chunk.offsets == index.offset
            )
            dtype = str(row.properties.dtype).removeprefix("torch.")
            tensors.setdefault(place.relative_path, Counter())[f"{dtype} {sizes}"] += 1
        path.unlink()
    found = found_in(tmp_path / "c")
    found.pop("__9_0.distcp", None)  # of another save
    assert {file: row.items for file, row in found.items()} == dict(items)
    assert {
        file: Counter(row.tensors) for file, row in found.items() if row.tensors
    } == tensors
    assert all(row.rest == 0 for row in found.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "c").mkdir()
    return tmp_path / "c"


ITEMS = [
    torch.zeros(3, 2),
    {"lr": 0.1},
    torch.ones(5, dtype=torch.int64),
    7,
    torch.tensor(2.0),
]


def test_a_file_that_is_cut_off_keeps_its_whole_items(folder: Path) -> None:
    parts = [item(value) for value in ITEMS]
    data, ends = (
        b"".join(parts),
        [sum(map(len, parts[:count])) for count in range(len(parts) + 1)],
    )
    for size in [
        *range(0, len(data), 97),
        *ends,
        *(end - 1 for end in ends[1:]),
        *(end + 1 for end in ends[:-1]),
    ]:
        (folder / "__0_0.distcp").write_bytes(data[:size])
        row = found_in(folder)["__0_0.distcp"]
        whole = sum(end <= size for end in ends[1:])
        assert (row.items, row.rest) == (whole, size - ends[whole]), size
        assert sum(row.tensors.values()) == sum(
            isinstance(value, torch.Tensor) for value in ITEMS[:whole]
        )


def test_bytes_that_look_like_an_archive_are_elements(folder: Path) -> None:
    """The sizes in the pickle are followed: what lies in a tensor is never searched."""
    archive = item(torch.zeros(4))
    descriptor = b"PK\x07\x08" + bytes(4) + len(archive).to_bytes(4, "little") * 2
    inner = archive + descriptor + b"PK\x05\x06" + bytes(18)
    (folder / "__0_0.distcp").write_bytes(
        item(torch.frombuffer(bytearray(inner), dtype=torch.uint8)) + item(5)
    )
    row = found_in(folder)["__0_0.distcp"]
    assert (row.items, row.tensors, row.rest) == (2, {f"uint8 [{len(inner)}]": 1}, 0)


def patched(old: bytes, new: bytes, count: int = 1) -> bytes:
    data = item(torch.zeros(3, 2))
    assert old in data and len(old) == len(new)
    return data.replace(old, new, count)


def deflated() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}, 2))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def storages(numel: int) -> bytes:
    """An item whose pickle claims so many elements."""
    made = op.tensor(size=(1,), stride=(1,), numel=numel)
    return op.torch_zip(op.pickled(made))


NO_ITEMS: dict[str, bytes] = {
    "other bytes": b"of another save",
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(100),
    "a header alone": b"PK\x03\x04",
    "an end record alone": b"PK\x05\x06" + bytes(18),
    "a directory alone": b"PK\x01\x02" + bytes(60),
    "ends of 64 bits": b"PK\x06\x06" + b"\xff" * 60,
    "zeros": bytes(3000),
    "another first record": patched(b"data.pkl", b"data.pk2"),
    "another pickle": patched(b"ctorch", b"ztorch"),
    "another name in the directory": patched(b"archive/data/0", b"archive/data/1", 1),
    "deflated": deflated(),
    "no zip after the pickle": item(torch.zeros(3, 2))[:300] + bytes(5000),
    "a huge storage": storages(2**62),
    "more than all numbers": storages(2**70),
}


@pytest.mark.parametrize("kind", NO_ITEMS)
def test_what_is_no_item_is_not_counted(kind: str, folder: Path) -> None:
    (folder / "__0_0.distcp").write_bytes(NO_ITEMS[kind])
    (folder / "__1_0.distcp").write_bytes(item(torch.zeros(2)) + NO_ITEMS[kind])
    one, two = found_in(folder).values()
    size = len(NO_ITEMS[kind])
    assert (one.items, one.rest) == (0, size)
    assert one.text == f"__0_0.distcp: no whole item is found in its {size:,} bytes"
    assert (two.items, two.rest) == (1, size)
    assert two.text == (
        f"__1_0.distcp: 1 whole tensor (float32 [2]), then {size:,} bytes that are "
        "no whole item"
    )


def test_files_that_cannot_be_read_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(item(5))
    (folder / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "__1_0.distcp")
    (folder / "__2_0.distcp").write_bytes(b"")
    (folder / "__3_0.distcp\x1b[31m.distcp").write_bytes(b"x")
    rows = found_in(folder)
    assert all((row.items, row.tensors) == (0, {}) for row in rows.values())
    assert [(row.size, row.rest) for row in rows.values()] == [
        (0, 0),
        (0, 0),
        (0, 0),
        (1, 1),
    ]
    texts = [row.text for row in rows.values()]
    assert (
        "is a link: only one to the blobs" in texts[0]
        and "FIFO" in texts[1]
        and texts[2] == "__2_0.distcp is empty"
    )
    assert "\x1b" not in texts[3] and "1 byte" in texts[3]
    done = inside("inspect", "c", cwd=tmp_path)
    assert (done.code, done.err.count(b"\n")) == (2, 1) and b"item" not in done.err, (
        done
    )


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_nothing_is_run(folder: Path, tmp_path: Path) -> None:
    data = item(Runs(tmp_path / "ran"))
    (folder / "__0_0.distcp").write_bytes(data)
    assert found_in(folder)["__0_0.distcp"].items == 1
    assert inside("verify", "c", cwd=tmp_path).code == 1
    assert not (tmp_path / "ran").exists()


def test_inspect_counts_and_verify_lists(folder: Path, tmp_path: Path) -> None:
    (folder / "__0_0.distcp").write_bytes(b"".join(map(item, ITEMS)) + b"PK")
    (folder / "__1_0.distcp").write_bytes(item(torch.zeros(3, 2)) * 2)
    done = inside("inspect", "c", cwd=tmp_path)
    said = "an interrupted save: 2 data files without .metadata, which is written last"
    lost = f"{said}: 7 whole items lie in them, their names are lost"
    assert (done.code, done.err.decode()) == (2, f"ckpt: c: {lost}\n"), done
    done = inside("verify", "c", "--json", cwd=tmp_path)
    report = json.loads(done.out)
    assert (done.code, report["verdict"], report["lost"]) == (1, "damaged", None)
    assert [row["what"] for row in report["problems"]] == [
        lost,
        "__0_0.distcp: 3 whole tensors (float32 [3, 2], int64 [5], float32 []) and 2 "
        "whole objects, then 2 bytes that are no whole item",
        "__1_0.distcp: 2 whole tensors (2 × float32 [3, 2])",
    ]
    done = inside("verify", "c", cwd=tmp_path)
    assert "__1_0.distcp: 2 whole tensors" in " ".join(done.out.decode().split())


def test_inspect_counts_a_bounded_number(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("ckpt.ext.dcp.reader"), "_ITEMS", 3)
    for rank in range(2):
        (folder / f"__{rank}_0.distcp").write_bytes(b"".join(map(item, ITEMS[:2])))
    found = found_in(folder, 3)
    assert [row.items for row in found.values()] == [2, 1]
    done = inside("inspect", "c", cwd=tmp_path)
    assert (
        "at least 3 whole items lie in them, their names are lost" in done.err.decode()
    ), done


def test_other_folders_have_no_remains(trained: Path, tmp_path: Path) -> None:
    """A folder that is damaged in another way says only that."""
    shutil.copytree(trained / "fsdp2", tmp_path / "c")
    (tmp_path / "c/.metadata").write_bytes(b"")
    done = inside("verify", "c", "--json", cwd=tmp_path)
    assert done.code == 1 and len(json.loads(done.out)["problems"]) == 1, done

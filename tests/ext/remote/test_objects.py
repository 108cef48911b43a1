"""Object stores through obstore: its store in memory, and a server that speaks S3 where
moto is installed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from buckets import Bucket
from needs import skip_without

from ckpt import formats
from ckpt.bytes.location import locate
from ckpt.ext.remote import objects
from ckpt.ext.remote.objects import StoredObject, names_in, translate_read_error
from ckpt.ext.remote.source import RangeSource
from ckpt.ext.remote.store import BusyError, ChangedError, Known
from ckpt.ext.remote.url import parse_url
from ckpt.model.errors import NotOpenedError
from ckpt.surface.api.walk import found

obstore = pytest.importorskip(
    "obstore", reason="obstore, the extra [cloud], is not installed"
)
SAMPLES = Path(__file__).resolve().parents[3] / "sample_checkpoints"
DATA = random.Random(4).randbytes(300_000)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    store = obstore.store.MemoryStore()
    monkeypatch.setattr(objects, "open_bucket", lambda scheme, name: store)
    return store


def test_ranges(memory: Any) -> None:
    obstore.put(memory, "a/b.bin", DATA)
    found = StoredObject(memory, parse_url("s3://b/a/b.bin"))
    tail, middle = found.get(None, 1000, ""), found.get(10, 20, "")
    assert (tail.data, tail.begin, tail.size) == (DATA[-1000:], 299_000, 300_000)
    assert (middle.data, middle.begin) == (DATA[10:30], 10)
    assert middle.etag == tail.etag != ""


def test_the_etag_is_pinned(memory: Any) -> None:
    obstore.put(memory, "a.bin", DATA)
    source = RangeSource(
        StoredObject(memory, parse_url("s3://b/a.bin")), "s3://b/a.bin"
    )
    obstore.put(memory, "a.bin", DATA[::-1])
    with pytest.raises(ChangedError):
        source.read(0, 10)


def test_what_is_not_there_and_what_is_empty(memory: Any) -> None:
    with pytest.raises(NotOpenedError, match="no such object"):
        StoredObject(memory, parse_url("s3://b/none")).get(None, 10, "")
    obstore.put(memory, "empty", b"")
    assert StoredObject(memory, parse_url("s3://b/empty")).get(None, 10, "")[:3] == (
        b"",
        0,
        0,
    )


def test_an_error_does_not_repeat_what_obstore_says() -> None:
    for error in (
        PermissionError("403 https://u:p@h?sig=1"),
        ValueError("sig=1"),
        OSError("sig=1"),
    ):
        assert "sig" not in str(translate_read_error(error, "s3"))
    assert isinstance(translate_read_error(OSError("x"), "s3"), BusyError)
    assert isinstance(translate_read_error(ValueError("x"), "s3"), NotOpenedError)


def store_error(name: str, text: str = "") -> Exception:
    """An error as obstore raises it. Its classes do not derive from OSError."""
    error: Exception = getattr(obstore.exceptions, name)(text)
    return error


@pytest.mark.parametrize(
    ("name", "text", "kind", "problem"),
    [
        (
            "GenericError",
            "error sending request",
            BusyError,
            "the object store does not answer",
        ),
        (
            "GenericError",
            "Error performing GET https://h/epoch_403.pth",
            BusyError,
            "the object store does not",
        ),
        ("PermissionDeniedError", "", NotOpenedError, "no permission to read it"),
        ("UnauthenticatedError", "", NotOpenedError, "no permission to read it"),
        ("NotFoundError", "", NotOpenedError, "no such object"),
        ("PreconditionError", "", ChangedError, "the object changed while it was read"),
        ("NotModifiedError", "", ChangedError, "the object changed while it was read"),
        (
            "InvalidPathError",
            "",
            NotOpenedError,
            "the object store fails: InvalidPathError",
        ),
    ],
)
def test_each_error_of_obstore(
    name: str, text: str, kind: type[Exception], problem: str
) -> None:
    error = translate_read_error(store_error(name, text), "s3")
    assert type(error) is kind and str(error).startswith(problem)


def test_a_store_that_fails_for_a_moment_is_asked_again(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(memory, "a.bin", DATA)
    counting, pauses = Counting(), []
    counting.failures = [store_error("GenericError")] * 2
    monkeypatch.setattr(objects, "_import_obstore", lambda: counting)
    source = RangeSource(
        StoredObject(memory, parse_url("s3://b/a.bin")),
        "s3://b/a.bin",
        sleep=pauses.append,
    )
    assert source.read(5, 5) == DATA[5:10]
    assert len(pauses) == 2 and counting.failures == []


def test_folders(memory: Any) -> None:
    for name in ("run/a.pth", "run/sub/b.pth", "runs/c.pth"):
        obstore.put(memory, name, DATA)
    assert sorted(names_in(parse_url("s3://b/run/"))) == ["a.pth", "sub/"]
    found = names_in(parse_url("az://b/run/"))
    assert found == {"a.pth": Known(len(DATA), ""), "sub/": None}, (
        "its listings give another ETag"
    )
    at = locate("s3://b/run")
    assert at.is_folder() and not at.is_file()
    assert at.names() == ["a.pth", "sub/"]
    assert at.child("sub").is_folder() and at.child("a.pth").is_file()
    assert at.child("a.pth").open().read(0, 5) == DATA[:5]
    assert at.child("a.pth").parent().names() == ["a.pth", "sub/"]
    assert not at.child("none").is_file() and not at.child("none").is_folder()
    assert locate("s3://b/").names() == ["run/", "runs/"]


@pytest.mark.parametrize("name", ["dcp", "sharded"])
def test_folders_read_the_same(name: str, memory: Any) -> None:
    if name == "sharded":
        skip_without("folders")
    from ckpt.commands.sum.sums import digests
    from ckpt.evidence.survey import Survey

    for path in (SAMPLES / name).rglob("*"):
        if path.is_file():
            obstore.put(memory, f"run/{path.relative_to(SAMPLES)}", path.read_bytes())
    far, local = formats.open(f"s3://b/run/{name}"), formats.open(str(SAMPLES / name))
    with far, local:
        assert [(row.path, row.tensor.shape) for row in far.tensors] == [
            (row.path, row.tensor.shape) for row in local.tensors
        ]
        assert digests(Survey(far)) == digests(Survey(local))


def test_a_shard_that_no_index_names_is_found(memory: Any) -> None:
    """It was passed over wherever an index lies beside it."""
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}, "metadata": {}}
    for name in (
        "model-00001-of-00001.safetensors",
        "other-00001-of-00001.safetensors",
    ):
        obstore.put(
            memory, f"run/{name}", (SAMPLES / "weights.safetensors").read_bytes()
        )
    obstore.put(memory, "run/model.safetensors.index.json", json.dumps(index).encode())
    assert [item.path for item in found(["s3://b/run/"])] == [
        "s3://b/run/model.safetensors.index.json",
        "s3://b/run/other-00001-of-00001.safetensors",
    ]


def test_an_object_that_cannot_be_read_is_an_error(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(memory, "run/a", DATA)
    refused = PermissionError("403")
    monkeypatch.setattr(
        StoredObject,
        "get",
        lambda *_: (_ for _ in ()).throw(translate_read_error(refused, "s3")),
    )
    assert [
        (item.path, item.is_other, str(item.error)) for item in found(["s3://b/run/"])
    ] == [
        ("s3://b/run/a", False, f"s3://b/run/a: {translate_read_error(refused, 's3')}")
    ]


class Counting:
    """The module obstore, which counts what is asked. `failures` are raised first, one
    for each request of a range.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        def call(store: Any, path: Any, **options: Any) -> Any:
            self.asked.append(f"{name} {path}")
            if name == "get" and self.failures:
                raise self.failures.pop()
            return getattr(obstore, name)(store, path, **options)

        return call


@pytest.mark.needs("dcp")
def test_a_distributed_checkpoint_costs_its_metadata_and_its_small_items(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (SAMPLES / "dcp").iterdir():
        obstore.put(memory, f"run/{path.name}", path.read_bytes())
    counting = Counting()
    monkeypatch.setattr(objects, "_import_obstore", lambda: counting)
    with formats.open("s3://b/run/") as found:
        assert found.format == "dcp"
        data = [row for row in counting.asked if row.endswith(".distcp")]
        assert [row for row in counting.asked if row.startswith("list")] == [
            "list_with_delimiter run"
        ]
        assert counting.asked.count("get run/.metadata") == 1
        small = len(found.values)
        assert len(data) <= small
    assert len(counting.asked) == 2 + len(data)


def test_the_items_of_a_distributed_checkpoint_cost_one_or_two_requests_each(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Large items, each with its ends, of which two neighbours are one request; small
    ones are read whole.
    """
    import torch
    from process import ckpt

    large = {f"large.{i}": torch.full((400_000,), float(i)) for i in range(6)}
    small = {f"small.{i}": torch.full((10, 10), float(i)) for i in range(30)}
    torch.save({**large, **small}, tmp_path / "a.pth")
    assert ckpt("convert", tmp_path / "a.pth", "-o", tmp_path / "run.dcp").code == 0
    for path in (tmp_path / "run.dcp").iterdir():
        obstore.put(memory, f"run/{path.name}", path.read_bytes())
    counting = Counting()
    monkeypatch.setattr(objects, "_import_obstore", lambda: counting)
    with (
        formats.open("s3://b/run/") as found,
        formats.open(str(tmp_path / "run.dcp")) as local,
    ):
        assert counting.asked == ["list_with_delimiter run", "get run/.metadata"]
        places = [row.tensor.storage.place for row in found.tensors]
        for place in places:
            for box in place.boxes:
                box.part.tensor()
        asked = sum(row.endswith(".distcp") for row in counting.asked)
        assert asked <= 2 * len(large) + 6, counting.asked
        from ckpt.commands.sum.sums import digests
        from ckpt.evidence.survey import Survey

        assert digests(Survey(found)) == digests(Survey(local))


def test_what_is_missing_is_not_asked_for_twice(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting()
    monkeypatch.setattr(objects, "_import_obstore", lambda: counting)
    assert not locate("s3://b/none").is_file()
    assert counting.asked == ["get none"]


# --- S3 -------------------------------------------------------------------------------


def test_s3(s3: Bucket) -> None:
    store = objects.open_bucket("s3", s3.name)
    for name in ("train_cuda.pth", "llama_bf16.pth"):
        obstore.put(store, f"run/{name}", (SAMPLES / name).read_bytes())
    source = locate(f"{s3.url}/run/train_cuda.pth").open()
    whole = (SAMPLES / "train_cuda.pth").read_bytes()
    assert source.read(0, source.size) == whole
    assert locate(f"{s3.url}/run").names() == ["llama_bf16.pth", "train_cuda.pth"]
    with formats.open(f"{s3.url}/run/llama_bf16.pth") as found:
        assert len(found.tensors) == 57
    big = random.Random(5).randbytes(400_000)
    obstore.put(store, "big.bin", big)
    source = locate(f"{s3.url}/big.bin").open()
    obstore.put(store, "big.bin", big[::-1])
    with pytest.raises(ChangedError):
        source.read(0, 10)
    with pytest.raises(NotOpenedError, match="no such object"):
        locate(f"{s3.url}/none.pth").open()

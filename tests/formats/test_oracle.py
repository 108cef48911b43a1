"""Our view of random checkpoints against torch's, in every container that torch
opens.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import strategies
import torch
from hypothesis import HealthCheck, given, settings
from paths import many
from torch import nn

from ckpt.formats import open
from ckpt.model.limits import Limits
from ckpt.model.tensors import Composite, TensorRef
from ckpt.tree.find import find_nodes

pytestmark = oracle.QUIET
EXAMPLES = settings(
    max_examples=many(12, 50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def tag(storage: Any) -> str:
    return strategies.tag_of(storage.nbytes())


def saved(state: Any, protocol: int = 2, legacy: bool = False) -> bytes:
    """The file that torch.save makes, its storages tagged with devices that this
    machine does not have.
    """
    out = io.BytesIO()
    with mock.patch.object(torch.serialization, "location_tag", tag):
        torch.save(
            state,
            out,
            pickle_protocol=protocol,
            _use_new_zipfile_serialization=not legacy,
        )
    return out.getvalue()


def rezipped(data: bytes, methods: list[int], **changed: bytes) -> bytes:
    """The same records written by Python's zipfile, each by the next method in turn,
    some with other bytes.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for index, name in enumerate(old.namelist()):
            record = changed.get(name.rpartition("/")[2], old.read(name))
            new.writestr(name, record, methods[index % len(methods)])
    return out.getvalue()


@contextmanager
def without_crc() -> Iterator[None]:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def saved_without_crc(state: Any) -> bytes:
    with without_crc():
        return saved(state)


@dataclass(frozen=True)
class Way:
    """A way to write a checkpoint, and what our view says of the file as a whole."""

    write: Callable[[Any], bytes]
    format: str = "torch-zip"
    byteorder: str = "little"
    crc: Callable[[bytes], int] | None = zlib.crc32


OUT_OF_BOUNDS = "a tensor of it leads torch out of its memory"
STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
WAYS = {
    **{
        f"zip-{protocol}": Way(lambda state, p=protocol: saved(state, p))
        for protocol in (2, 3, 4, 5)
    },
    "stored": Way(lambda state: rezipped(saved(state), [STORED])),
    "deflated": Way(lambda state: rezipped(saved(state), [DEFLATED])),
    "mixed": Way(lambda state: rezipped(saved(state), [DEFLATED, STORED, STORED])),
    "no-crc": Way(saved_without_crc, crc=None),
    "big-endian": Way(
        lambda state: rezipped(saved(state), [STORED], byteorder=b"big"),
        byteorder="big",
    ),
}
LEGACY = {
    f"legacy-{protocol}": Way(
        lambda state, p=protocol: saved(state, p, legacy=True), "torch-legacy", crc=None
    )
    for protocol in (2, 3, 4, 5)
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oracle") / "file.pth"


def check(file: Path, way: Way, state: Any) -> None:
    file.write_bytes(way.write(state))
    loaded = torch.load(file, map_location="cpu", weights_only=False)
    with open(str(file)) as checkpoint:
        assert checkpoint.format == way.format
        assert checkpoint.byteorder == way.byteorder
        assert checkpoint.nbytes == file.stat().st_size
        if way.byteorder == "little":
            assert checkpoint.not_loadable is None
        else:  # nobody swapped the bytes, so indices may be any numbers
            assert checkpoint.not_loadable in (None, OUT_OF_BOUNDS)
        assert [
            notice
            for notice in checkpoint.account.notices
            if notice.code == "trailing-data"
        ] == []
        oracle.Comparison(checkpoint).tensors(loaded)
        tags(checkpoint.tensors)
        storages(checkpoint, way)
        values(checkpoint, loaded)


def tags(entries: Any) -> None:
    for entry in entries:
        refs = (
            [entry.tensor]
            if isinstance(entry.tensor, TensorRef)
            else [ref for _, ref in entry.tensor.parts]
        )
        for ref in refs:
            if ref.storage.place is not None:
                assert ref.device == strategies.tag_of(ref.storage.nbytes)


def storages(checkpoint: Any, way: Way) -> None:
    used = set()
    for entry in checkpoint.tensors:
        parts = (
            entry.tensor.parts
            if isinstance(entry.tensor, Composite)
            else (("", entry.tensor),)
        )
        used.update(id(ref.storage) for _, ref in parts)
    assert {id(storage) for storage in checkpoint.storages} == used
    assert len({storage.id for storage in checkpoint.storages}) == len(
        checkpoint.storages
    )
    for storage in checkpoint.storages:
        if storage.place is None:
            continue
        if way.crc is None:
            assert not storage.crc
        else:
            assert storage.crc == way.crc(oracle.stored(storage))


def values(checkpoint: Any, loaded: Any) -> None:
    """Plain values are where torch has them, and are the same."""
    for row in checkpoint.values:
        exact = all(type(key) in (str, int) for key in row.path)
        if (
            exact
            and row.same_as is None
            and row.type in ("str", "int", "float", "bool", "None")
        ):
            theirs = oracle.at(loaded, row.path)
            assert type(row.node) is type(theirs)
            assert row.node == theirs


@pytest.mark.parametrize("way", WAYS)
@EXAMPLES
@given(state=strategies.states())
def test_zip_is_seen_as_torch_sees_it(
    file: Path, way: str, state: strategies.State
) -> None:
    check(file, WAYS[way], state.value)


@pytest.mark.parametrize("way", LEGACY)
@EXAMPLES
@given(state=strategies.states(dtypes=tuple(strategies.TYPED)))
def test_legacy_is_seen_as_torch_sees_it(
    file: Path, way: str, state: strategies.State
) -> None:
    check(file, LEGACY[way], state.value)


@EXAMPLES
@given(state=strategies.states())
def test_every_way_shows_the_same(file: Path, state: strategies.State) -> None:
    """Not what torch says, but that the container makes no difference at all."""

    def seen(way: Way) -> list[Any]:
        file.write_bytes(way.write(state.value))
        with open(str(file)) as checkpoint:
            return [
                (
                    entry.path,
                    entry.name,
                    part.dtype,
                    part.shape,
                    part.stride,
                    part.offset,
                    part.storage.id,
                )
                for entry in checkpoint.tensors
                for _, part in (entry.tensor.parts or [("", entry.tensor)])
            ]

    first, *others = [
        seen(way) for name, way in WAYS.items() if not name.startswith("zip-")
    ] + [seen(WAYS["zip-2"])]
    assert all(other == first for other in others)


@pytest.mark.parametrize("dtype", strategies.UNTYPED)
def test_legacy_that_no_torch_reads_back_is_read(file: Path, dtype: str) -> None:
    tensor = torch.arange(16, dtype=torch.uint8).view(getattr(torch, dtype))
    file.write_bytes(saved({"a": tensor}, legacy=True))
    with pytest.raises(Exception, match="dtype"):
        torch.load(file, map_location="cpu", weights_only=False)
    with open(str(file)) as checkpoint:
        assert checkpoint.not_loadable
        assert checkpoint.weights_only
        oracle.Comparison(checkpoint).tensors({"a": tensor})


@pytest.mark.parametrize("legacy", [False, True])
def test_every_layout(file: Path, legacy: bool) -> None:
    """The layouts that random states hold are all met, and nested tensors, which they
    do not hold.
    """
    grid = torch.linspace(-1, 1, 24).reshape(4, 6)
    eye = torch.eye(4)
    scales, zeros = torch.rand(4).double(), torch.arange(4)
    state = {
        "coo": eye.to_sparse(),
        "coo hybrid": torch.stack([eye, eye], 2).to_sparse(2),
        "coo uncoalesced": torch.sparse_coo_tensor(
            [[1, 1]], [2.0, 3.0], (4,), check_invariants=True
        ),
        "csr": eye.to_sparse_csr(),
        "csc": eye.to_sparse_csc(),
        "bsr": eye.to_sparse_bsr((2, 2)),
        "bsc": eye.to_sparse_bsc((2, 2)),
        **{
            str(dtype): torch.quantize_per_tensor(grid, 0.1, 2, dtype)
            for dtype in (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2)
        },
        "channels": torch.quantize_per_channel(grid, scales, zeros, 0, torch.qint8),
        "float qparams": torch.quantize_per_channel(
            grid, scales.float(), zeros.float(), 0, torch.quint4x2
        ),
        "two bits": torch.quantize_per_channel(
            grid, scales.float(), zeros.float(), 0, torch.quint2x4
        ),
        "meta": torch.empty(2, 3, device="meta"),
        "sparse parameter": nn.Parameter(eye.to_sparse(), requires_grad=False),
        "quantized slice": torch.quantize_per_tensor(grid, 0.1, 2, torch.qint8)[1:3],
        "deep": torch.zeros([1] * 40),
    }
    if not legacy:  # torch builds a nested tensor from sizes that it has not read yet
        state["nested"] = torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.zeros(4, 3)]
        )
    check(file, LEGACY["legacy-2"] if legacy else WAYS["zip-2"], state)


def test_empty_key_keeps_its_dot(file: Path) -> None:
    """Or two tensors go by one name, and neither `find_nodes` nor a person can tell
    which is meant.
    """
    state = {"a": torch.ones(1), "": {"a": torch.ones(2), "": torch.ones(3)}}
    file.write_bytes(saved(state))
    with open(str(file)) as checkpoint:
        assert [entry.name for entry in checkpoint.tensors] == ["a", ".a", "."]
        for entry in checkpoint.tensors:
            assert [
                path for path, _ in find_nodes(checkpoint.root, entry.name, Limits())
            ] == [entry.path]


def test_attributes_do_not_hide_a_tensor(file: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    tensor.note = "an attribute"
    parameter = nn.Parameter(torch.ones(2))
    parameter.tensor_parallel = True
    check(file, WAYS["zip-2"], {"plain": tensor, "parameter": parameter})


def test_views_of_two_dtypes_share_an_untyped_storage(file: Path) -> None:
    """What torch refuses for typed storages, it writes for others: one storage, two
    dtypes.
    """
    base = torch.arange(8, dtype=torch.uint8).view(torch.uint32)
    check(file, WAYS["zip-2"], {"a": base, "b": base.view(torch.uint16)[1:]})


def test_bare_storage(file: Path) -> None:
    tensor, other = torch.arange(6.0), torch.arange(5, dtype=torch.uint8)
    file.write_bytes(
        saved(
            {
                "typed": tensor.storage(),
                "tensor": tensor,
                "untyped": other.untyped_storage(),
            }
        )
    )
    with open(str(file)) as checkpoint:
        typed, ref, untyped = (entry.tensor for entry in checkpoint.tensors)
        assert isinstance(typed, Composite)
        assert isinstance(untyped, Composite)
        assert isinstance(ref, TensorRef)
        assert (typed.layout, typed.dtype.name, typed.shape) == (
            "storage",
            "float32",
            (6,),
        )
        assert (untyped.layout, untyped.dtype.name, untyped.shape) == (
            "storage",
            "uint8",
            (5,),
        )
        assert typed.parts[0][1].storage is ref.storage
        assert oracle.stored(untyped.parts[0][1].storage) == oracle.raw(other)


@pytest.mark.parametrize("depth", [1, 50, 150])
def test_state_nested_deep(file: Path, depth: int) -> None:
    state: Any = torch.ones(2)
    for level in range(depth):
        state = {f"level{level}": state} if level % 2 else [state, level]
    check(file, WAYS["zip-2"], state)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("count", [1, 256, 1001])
def test_many_tensors(file: Path, count: int, legacy: bool) -> None:
    """Storages sort as text or as numbers, depending on who wrote the file; each must
    find its own bytes.
    """
    state = {
        f"layer.{index}": torch.full((1 + index % 3,), float(index))
        for index in range(count)
    }
    check(file, LEGACY["legacy-2"] if legacy else WAYS["zip-2"], state)

"""Tensors of several parts whose shapes or numbers lead torch out of their memory are
refused, or named.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from inside import inside
from process import ckpt

from ckpt.formats import open
from ckpt.model.errors import CkptError
from ckpt.pickle import bounds

pytestmark = [
    *oracle.QUIET,
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]
FAR = 10**9


class Rebuilt:
    """What a pickle makes by a call of torch."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def longs(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def nested(*parts: torch.Tensor) -> Rebuilt:
    """A nested tensor of two rows of two numbers, with other parts from the
    first on.
    """
    usual = (torch.arange(4.0), longs([[2], [2]]), longs([[1], [1]]), longs([0, 2]))
    return Rebuilt(torch._utils._rebuild_nested_tensor, *parts, *usual[len(parts) :])


def sparse(layout: torch.layout, *data: Any) -> Rebuilt:
    return Rebuilt(torch._utils._rebuild_sparse_tensor, layout, data)


def compressed(
    rows: Any,
    columns: Any,
    *,
    values: Any = None,
    size: Any = (2, 3),
    by: Any = torch.sparse_csr,
) -> Rebuilt:
    values = torch.ones(len(columns)) if values is None else values
    return sparse(by, longs(rows), longs(columns), values, torch.Size(size))


def quantized(scales: Any, zero_points: Any, axis: int) -> Rebuilt:
    scheme = (torch.per_channel_affine, scales, zero_points, axis)
    return Rebuilt(
        torch._utils._rebuild_qtensor,
        codes(torch.quint8),
        0,
        (2, 3),
        (3, 1),
        scheme,
        False,
        {},
    )


def codes(dtype: torch.dtype) -> Any:
    """A storage of six codes."""
    return torch.quantize_per_tensor(torch.ones(6), 1.0, 0, dtype)._typed_storage()


class Jagged:
    """A jagged tensor of rows of 2 and 4 numbers, with other arguments, and another
    state.
    """

    def __init__(self, state: dict[str, Any] | None = None, **arguments: Any) -> None:
        self.arguments = {
            "values": torch.ones(6, 3),
            "offsets": longs([0, 2, 6]),
            "lengths": None,
            "_ragged_idx": 1,
            "_metadata_cache": {},
            "requires_grad": False,
            **arguments,
        }
        self.state = state or {}

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        inner = torch.nested._internal.nested_tensor
        made = (inner._rebuild_njt, inner.NestedTensor, (self.arguments,), self.state)
        return torch._tensor._rebuild_from_type_v2, made


EMPTY = torch.arange(1).as_strided((4096, 0), (1, 1))
ODD: dict[str, Callable[[], Any]] = {
    "a longest row that is no size": lambda: Jagged(_metadata_cache={"max_seqlen": torch.zeros(4)}),
    "a shortest row that is a text": lambda: Jagged(_metadata_cache={"min_seqlen": "2"}),
    "another longest row in the state": lambda: Jagged({"_metadata_cache": {"max_seqlen": torch.zeros(0, 0)}}),
    "offsets without elements": lambda: nested(*nested().arguments[:3], torch.zeros((2, 0), dtype=torch.int64)),
    "offsets of two dimensions": lambda: nested(*nested().arguments[:3], longs([[0], [2]])),
    "offsets with gaps": lambda: nested(*nested().arguments[:3], longs([0, 9, 2, 9])[::2]),
    "offsets of another type": lambda: nested(*nested().arguments[:3], torch.tensor([0, 2], dtype=torch.int32)),
    "fewer offsets than rows": lambda: nested(*nested().arguments[:3], longs([0])),
    "fewer strides than sizes": lambda: nested(torch.arange(4.0), longs([[2], [2]]), longs([[1]])),
    "rows without elements": lambda: nested(torch.arange(4.0), EMPTY, EMPTY, EMPTY),
    "rows that share one number": lambda: nested(torch.arange(4.0), EMPTY, EMPTY, longs([0]).expand(4096)),
    "values of two dimensions": lambda: nested(torch.ones(2, 2)),
    "values with gaps": lambda: nested(torch.ones(8)[::2]),
    "sizes in a row": lambda: nested(torch.arange(4.0), longs([2, 2]), longs([1, 1])),
    "indices in a row": lambda: sparse(torch.sparse_coo, longs([0, 1]), torch.ones(2), torch.Size((3,)), False),
    "indices of another type": lambda: sparse(
        torch.sparse_coo, torch.tensor([[0, 1]], dtype=torch.int32), torch.ones(2), torch.Size((3,)), False
    ),
    "fewer values than indices": lambda: sparse(torch.sparse_coo, longs([[0, 1]]), torch.ones(1), torch.Size((3,))),
    "values of another size": lambda: sparse(torch.sparse_coo, longs([[0]]), torch.ones(1, 2), torch.Size((3, 5)), False),
    "an index for more dimensions": lambda: sparse(torch.sparse_coo, longs([[0], [0]]), torch.ones(1), torch.Size((3,)), False),
    "rows without an end": lambda: compressed([0, 1], [0, 1, 2]),
    "rows of nothing": lambda: sparse(torch.sparse_csr, longs(0), longs(0), torch.tensor(1.0), torch.Size((2, 3))),
    "rows of columns": lambda: compressed([0, 1, 2], [0, 1], by=torch.sparse_csc),
    "columns of floats": lambda: sparse(torch.sparse_csr, longs([0, 1]), torch.zeros(1), torch.ones(1), torch.Size((1, 1))),
    "rows of another type": lambda: sparse(
        torch.sparse_csr, torch.tensor([0, 1], dtype=torch.int32), longs([0]), torch.ones(1), torch.Size((1, 1))
    ),
    "more values than columns": lambda: compressed([0, 1, 2], [0, 1], values=torch.ones(3)),
    "blocks without dimensions": lambda: compressed([0, 1, 2], [0, 1], by=torch.sparse_bsr),
    "blocks without elements": lambda: compressed([0, 1, 2], [0, 1], values=torch.ones(2, 0, 1), by=torch.sparse_bsr),
    "blocks that do not fit": lambda: compressed([0, 1, 2], [0, 1], values=torch.ones(2, 1, 2), by=torch.sparse_bsr),
    "other batches": lambda: sparse(torch.sparse_csr, longs([[0, 0, 1]]), longs([[0]]), torch.ones(1, 1), torch.Size((2, 2, 3))),
    "an axis that is not there": lambda: quantized(torch.ones(2).double(), longs([0, 0]), 2),
    "an axis before the first": lambda: quantized(torch.ones(3).double(), longs([0, 0, 0]), -1),
    "too few scales": lambda: quantized(torch.ones(1).double(), longs([0, 0]), 0),
    "too few zero points in a list": lambda: quantized([1.0, 1.0], [0], 0),
    "a matrix of scales": lambda: quantized(torch.ones(2, 1).double(), longs([0, 0]), 0),
    "codes without a scale": lambda: Rebuilt(torch._utils._rebuild_tensor_v2, codes(torch.quint8), 0, (2,), (1,), False, {}),
    "codes without a scale as torch 0.3 wrote them": lambda: Rebuilt(
        torch._utils._rebuild_tensor, codes(torch.qint8), 0, (2,), (1,)
    ),
    "numbers that become codes": lambda: Rebuilt(
        torch._utils._rebuild_tensor_v3, torch.ones(4)._typed_storage(), 0, (2,), (1,), False, {}, torch.qint32
    ),
    "codes on meta": lambda: Rebuilt(torch._utils._rebuild_meta_tensor_no_storage, torch.quint8, (2,), (1,), False),
    "long codes with zero points that are floats": lambda: Rebuilt(
        torch._utils._rebuild_qtensor, codes(torch.qint32), 0, (2, 3), (3, 1),
        (torch.per_channel_affine, torch.ones(2).double(), torch.zeros(2), 0), False, {},
    ),
    "no offsets": lambda: Jagged(offsets=None),
    "offsets of floats": lambda: Jagged(offsets=torch.tensor([0.0, 2, 6])),
    "offsets without an end": lambda: Jagged(offsets=longs([])),
    "more lengths than rows": lambda: Jagged(lengths=longs([1, 1, 1])),
    "rows along no dimension": lambda: Jagged(_ragged_idx=3),
    "a state with other values": lambda: Jagged({"_values": torch.ones(1, 3)}),
    "a state with other offsets": lambda: Jagged({"_offsets": longs([0, 2, 7])}),
    "a state with lengths": lambda: Jagged({"_lengths": longs([1, 1])}),
    "a state with another dimension": lambda: Jagged({"_ragged_idx": 2}),
    "a state with sizes": lambda: Jagged({"_size": (2, 9, 3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_parts_that_do_not_fit_each_other_are_refused(
    name: str, tmp_path: Path
) -> None:
    torch.save({"w": torch.ones(2), "x": ODD[name]()}, tmp_path / "x.pth")
    with pytest.raises(CkptError, match="damaged pickle: _rebuild"):
        open(str(tmp_path / "x.pth"))


def strided(*size: int) -> Rebuilt:
    storage = torch.ones(4)._typed_storage()
    return Rebuilt(
        torch._utils._rebuild_tensor_v2, storage, 0, size, (1,) * len(size), False, {}
    )


def on_meta(*size: int) -> Rebuilt:
    return Rebuilt(
        torch._utils._rebuild_meta_tensor_no_storage,
        torch.float32,
        size,
        (1,) * len(size),
        False,
    )


def coordinates(*size: int) -> Rebuilt:
    empty = torch.zeros((len(size), 0), dtype=torch.int64)
    return sparse(torch.sparse_coo, empty, torch.zeros(0), torch.Size(size), True)


@pytest.mark.parametrize("size", [(2**62, 8, 0), (2**62, 4, 0), (8, 2**62, 0)])
@pytest.mark.parametrize("make", [strided, on_meta, coordinates])
def test_elements_that_torch_cannot_count_before_a_0_are_refused(
    make: Callable[..., Rebuilt], size: tuple[int, ...], tmp_path: Path
) -> None:
    torch.save({"w": torch.ones(2), "x": make(*size)}, tmp_path / "x.pth")
    with pytest.raises(RuntimeError, match="overflow"):
        torch.load(tmp_path / "x.pth", weights_only=False)
    with pytest.raises(CkptError, match="more elements than torch counts"):
        open(str(tmp_path / "x.pth"))


@pytest.mark.parametrize("size", [(2**61, 4, 0), (0, 2**62, 8), (2**63 - 1, 2, 0)])
@pytest.mark.parametrize("make", [strided, on_meta])
def test_elements_that_torch_counts_before_a_0_are_read(
    make: Callable[..., Rebuilt], size: tuple[int, ...], tmp_path: Path
) -> None:
    torch.save({"w": torch.ones(2), "x": make(*size)}, tmp_path / "x.pth")
    loaded = torch.load(tmp_path / "x.pth", weights_only=False)["x"]
    with open(str(tmp_path / "x.pth")) as checkpoint:
        (tensor,) = [row.tensor for row in checkpoint.tensors if row.name == "x"]
    assert tensor.shape == tuple(loaded.shape) == size


OUTSIDE: dict[str, Callable[[], Any]] = {
    "an offset behind the values": lambda: nested(*nested().arguments[:3], longs([0, 4])),
    "the first of no rows": lambda: nested(
        torch.ones(1), *[torch.zeros((0, 2), dtype=torch.int64)] * 2, torch.zeros(0, dtype=torch.int64)
    ),
    "an offset before them": lambda: nested(*nested().arguments[:3], longs([0, -1])),
    "a row that is too long": lambda: nested(torch.arange(4.0), longs([[2], [3]])),
    "a size before 0": lambda: nested(torch.arange(4.0), longs([[2], [-1]])),
    "a stride that is too long": lambda: nested(torch.arange(4.0), longs([[2], [2]]), longs([[1], [2]])),
    "a row whose end overflows": lambda: nested(torch.ones(1).expand(1), longs([[2**62], [2**62]]), longs([[4], [4]])),
    "an index behind the size": lambda: sparse(torch.sparse_coo, longs([[0, 3]]), torch.ones(2), torch.Size((3,)), False),
    "an index far behind the size": lambda: sparse(torch.sparse_coo, longs([[0, FAR]]), torch.ones(2), torch.Size((3,)), True),
    "an index before 0": lambda: sparse(torch.sparse_coo, longs([[0, 0], [0, -1]]), torch.ones(2), torch.Size((1, 3)), False),
    "an index into nothing": lambda: sparse(torch.sparse_coo, longs([[0]]), torch.ones(1), torch.Size((0,)), False),
    "a row behind the values": lambda: compressed([0, FAR, 2], [0, 1]),
    "rows that run back": lambda: compressed([0, 2, 1, 2], [0, 1], size=(3, 3)),
    "rows that begin late": lambda: compressed([1, 1, 2], [0, 1]),
    "rows that end early": lambda: compressed([0, 1, 1], [0, 1]),
    "a column behind the size": lambda: compressed([0, 1, 2], [0, 3]),
    "a column before 0": lambda: compressed([0, 1, 2], [0, -1]),
    "a row of columns behind the size": lambda: compressed([0, 1, 2, 2], [0, 2], by=torch.sparse_csc),
    "a block behind the size": lambda: compressed([0, 1], [2], values=torch.ones(1, 2, 2), size=(2, 4), by=torch.sparse_bsr),
    "a batch behind the size": lambda: sparse(
        torch.sparse_csr, longs([[0, 1], [0, 1]]), longs([[0], [5]]), torch.ones(2, 1), torch.Size((2, 1, 3))
    ),
    "a jagged row behind the values": lambda: Jagged(offsets=longs([0, 2, 7])),
    "a jagged row before the values": lambda: Jagged(offsets=longs([-1, 2, 6])),
    "jagged rows that run back": lambda: Jagged(offsets=longs([0, 5, 2])),
    "jagged rows along another dimension": lambda: Jagged(_ragged_idx=2),
    "a jagged length behind the values": lambda: Jagged(lengths=longs([2, 5])),
    "a jagged length before 0": lambda: Jagged(lengths=longs([2, -1])),
    "a jagged longest row that is too short": lambda: Jagged(_metadata_cache={"max_seqlen": torch.zeros(1, 0)}),
    "a jagged longest row of nothing": lambda: Jagged(_metadata_cache={"max_seqlen": torch.zeros(0, 0)}),
    "a jagged longest row that is far too long": lambda: Jagged(_metadata_cache={"max_seqlen": torch.zeros(10**9, 0)}),
    "a jagged shortest row that is too long": lambda: Jagged(_metadata_cache={"min_seqlen": torch.zeros(5, 0)}),
    "a jagged longest row that is shorter than a length": lambda: Jagged(
        lengths=longs([2, 1]), _metadata_cache={"max_seqlen": torch.zeros(1, 0)}
    ),
    "a jagged offset with a length": lambda: Jagged(offsets=longs([0, FAR, 6]), lengths=longs([2, 1])),
}  # fmt: skip


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_numbers_that_lead_out_of_a_tensor_are_an_error(
    name: str, is_zip: bool, tmp_path: Path
) -> None:
    torch.save(
        {"x": OUTSIDE[name]()},
        tmp_path / "x.pth",
        _use_new_zipfile_serialization=is_zip,
    )
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert checkpoint.account.has_noticed("out-of-bounds")
        assert checkpoint.not_loadable is not None


def generator_at(left: int, place: int) -> torch.Generator:
    """A generator on the CPU with so many numbers left, and the place of the next."""
    generator = torch.Generator()
    state = generator.get_state()
    head = struct.pack("<QiiQ", 1, left, 1, place)
    state[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    generator.set_state(state)
    return generator


@pytest.mark.parametrize(
    ("left", "place", "is_good"),
    [
        (1, 0, True),
        (624, 0, True),
        (624, 1, True),
        (2, 623, True),
        (1, 624, True),
        (624, 2, False),
        (624, 624, False),
        (2, 624, False),
        (624, 2**32 + 2, False),
    ],
)
def test_a_generator_that_reads_behind_its_numbers(
    left: int, place: int, is_good: bool, tmp_path: Path
) -> None:
    """torch takes each of both numbers up to 624, and reads where they lead together."""
    torch.save({"x": generator_at(left, place)}, tmp_path / "x.pth")
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert checkpoint.account.has_noticed("out-of-bounds") != is_good
        assert (checkpoint.not_loadable is None) == is_good


def test_numbers_that_lead_out_of_a_tensor_fail_the_gate(tmp_path: Path) -> None:
    torch.save({"x": OUTSIDE["an index behind the size"]()}, tmp_path / "x.pth")
    run = ckpt("lint", "--level", "error", str(tmp_path / "x.pth"))
    assert run.code == 1 and b"the index 3 in a dimension of 3" in run.out
    assert b"torch.load" not in ckpt("inspect", str(tmp_path / "x.pth")).out


@pytest.mark.parametrize("command", [("slim",), ("convert", "--plain")])
@pytest.mark.parametrize(
    "name", [name for name in OUTSIDE if not name.startswith(("a jagged", "jagged"))]
)
def test_a_tensor_that_leads_out_of_its_memory_is_not_made_plain(
    name: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    """A plain file is one that weights_only loads."""
    tensors = {"x": OUTSIDE[name](), "kept": torch.ones(2)}
    torch.save(tensors, tmp_path / "x.pth")

    refused = inside(*command, "x.pth", "-o", "y.pth", cwd=tmp_path)
    dropped = inside(*command, "x.pth", "--drop-other", "-o", "z.pth", cwd=tmp_path)

    assert refused.code == 2 and not (tmp_path / "y.pth").exists()
    assert b"made plain: x (a tensor that leads torch out of" in refused.err
    assert dropped.code == 0
    assert torch.load(tmp_path / "z.pth")["kept"].tolist() == [1.0, 1.0]


DENSE = torch.eye(6) + torch.eye(6)[:, torch.tensor([3, 2, 1, 0, 5, 4])]
HONEST: dict[str, Callable[[], Any]] = {
    "rows": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "no rows": lambda: torch.nested.nested_tensor([]),
    "rows of numbers": lambda: torch.nested.nested_tensor([torch.tensor(1.0), torch.tensor(2.0)]),
    "rows without numbers": lambda: torch.nested.nested_tensor([torch.ones(0, 3), torch.ones(2, 3)]),
    "rows that are turned": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).transpose(1, 2),
    "parts of rows": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]).chunk(2, -1)[1],
    "rows of a matrix": lambda: torch.nested.as_nested_tensor(torch.ones(4, 3)[1:]),
    "rows that have a gradient": lambda: torch.nn.Parameter(torch.nested.nested_tensor([torch.ones(2, 4)])),
    "coordinates": lambda: DENSE.to_sparse(),
    "coordinates of rows": lambda: DENSE.to_sparse(1),
    "coordinates that repeat": lambda: torch.sparse_coo_tensor(longs([[1, 1, 0]]), torch.ones(3), (2,)),
    "coordinates of a turned matrix": lambda: torch.sparse_coo_tensor(longs([[0, 1], [2, 0], [1, 1]]).t(), torch.ones(3), (3, 2)),
    "coordinates of a number": lambda: torch.tensor(3.0).to_sparse(),
    "coordinates of nothing": lambda: torch.zeros(0, 3).to_sparse(),
    "one value for all coordinates": lambda: torch.sparse_coo_tensor(longs([list(range(99))]), torch.ones(1).expand(99), (99,)),
    "a gradient of an embedding": lambda: torch.sparse_coo_tensor(longs([[5, 2]]), torch.ones(2, 4), (9, 4)),
    "rows of columns": lambda: DENSE.to_sparse_csr(),
    "columns of rows": lambda: DENSE.to_sparse_csc(),
    "blocks": lambda: DENSE.to_sparse_bsr((2, 3)),
    "blocks by columns": lambda: DENSE.to_sparse_bsc((3, 2)),
    "batches": lambda: torch.stack([DENSE, DENSE.roll(1)]).to_sparse_csr(),
    "batches of blocks": lambda: torch.stack([DENSE, DENSE]).to_sparse_bsr((2, 2)),
    "values of more dimensions": lambda: torch.ones(2, 2, 3).to_sparse_csr(dense_dim=1),
    "rows of nothing": lambda: torch.zeros(0, 3).to_sparse_csr(),
    "columns of nothing": lambda: torch.zeros(3, 0).to_sparse_csr(),
    "short numbers": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32), torch.ones(1), (1, 1)
    ),
    "columns in no order": lambda: torch.sparse_csr_tensor(longs([0, 2]), longs([1, 0]), torch.ones(2), (1, 2)),
    "columns of pairs": lambda: torch.sparse_csr_tensor(longs([0, 2]), longs([[1, 9], [0, 9]])[:, 0], torch.ones(2), (1, 2)),
    "scales": lambda: torch.quantize_per_channel(DENSE, torch.ones(6), torch.zeros(6), 1, torch.qint8),
    "one scale": lambda: torch.quantize_per_tensor(DENSE, 0.5, 3, torch.quint8),
    "scales of floats": lambda: torch.quantize_per_channel(
        DENSE, torch.ones(6), torch.zeros(6), 0, torch.quint4x2
    ),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "jagged without rows": lambda: torch.nested.nested_tensor_from_jagged(torch.ones(0, 3), longs([0])),
    "jagged along another dimension": lambda: torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged
    ).transpose(1, 2),
    "jagged with lengths": lambda: torch.nested.narrow(
        torch.ones(3, 6, 2), 1, longs([0, 1, 2]), longs([1, 2, 3]), layout=torch.jagged
    ),
    "jagged with a limit of all batches": lambda: torch.nested.nested_tensor_from_jagged(
        torch.ones(6, 3), longs([0, 2, 6]), min_seqlen=0, max_seqlen=4_096
    ),
    "jagged with limits": lambda: torch.nn.Parameter(
        torch.nested.nested_tensor_from_jagged(torch.ones(6, 3), longs([0, 2, 6]), min_seqlen=2, max_seqlen=4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", HONEST)
def test_what_torch_writes_is_no_alarm(name: str, is_zip: bool, tmp_path: Path) -> None:
    torch.save(
        {"x": HONEST[name]()}, tmp_path / "x.pth", _use_new_zipfile_serialization=is_zip
    )
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert not checkpoint.account.notices
        assert not {row.group for row in checkpoint.imports} & {"called", "odd"}


def test_numbers_are_read_in_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of many numbers leads out, and a run ends anywhere before it."""
    monkeypatch.setattr(bounds, "_RUN", 3)
    monkeypatch.setattr(bounds, "_SPAN", 40)
    for last in (10, 11):
        rows = [0, 2, 4, 5, 6, 7, 8, 9, last]
        places = longs([rows[::-1], rows]).t().contiguous().t()
        tensors = [
            compressed(rows, [0] * 10, size=(8, 3)),
            sparse(torch.sparse_coo, places, torch.ones(9), torch.Size((11, 11))),
            nested(torch.ones(12), longs([[2]] * 9), longs([[1]] * 9), longs(rows)),
            Jagged(values=torch.ones(10, 1), offsets=longs(rows)),
            Jagged(
                values=torch.ones(13, 1),
                offsets=longs([*rows, 99]),
                lengths=longs([3] * 9),
            ),
            Jagged(
                values=torch.ones(13, 1),
                offsets=longs([[row, 99] for row in [*rows, 99]])[:, 0],
                lengths=longs([3] * 9),
            ),
        ]
        for tensor in tensors:
            torch.save({"x": tensor}, tmp_path / "x.pth")
            with open(str(tmp_path / "x.pth")) as checkpoint:
                assert checkpoint.account.has_noticed("out-of-bounds") is (last == 11)


def test_parts_that_many_tensors_share_are_not_read_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grammar counts the same numbers, and calls the file dangerous."""
    read: list[int] = []
    numbers = bounds._read_numbers
    monkeypatch.setattr(
        bounds, "_read_numbers", lambda ref: (read.append(ref.numel), numbers(ref))[1]
    )
    indices, values = torch.zeros((1, 100_000), dtype=torch.int64), torch.ones(100_000)
    tensors = [
        sparse(torch.sparse_coo, indices, values, torch.Size((n + 1,)), False)
        for n in range(100)
    ]
    torch.save({"x": tensors}, tmp_path / "x.pth")
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert "called" in {row.group for row in checkpoint.imports}
    assert sum(read) < 3_000_000


def test_a_number_that_is_read_again_is_found_up_to_what_the_grammar_allows(
    tmp_path: Path,
) -> None:
    count = 1_200_000
    indices = torch.zeros((1, count), dtype=torch.int64)
    indices[0, -1] = FAR
    tensors = [
        sparse(torch.sparse_coo, part, torch.ones(1).expand(part.shape[1]), torch.Size((5,)))
        for part in (indices[:, :1], indices)
    ]  # fmt: skip
    torch.save({"x": tensors}, tmp_path / "x.pth")
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert checkpoint.account.has_noticed("out-of-bounds")


WIDE = 10**12
"""More numbers than anybody reads."""


def repeated(number: int, count: int = WIDE) -> torch.Tensor:
    return longs([number]).expand(count)


def weights(*size: int) -> torch.Tensor:
    return torch.ones(1).expand(size)


REPEATED: dict[str, Callable[[int], Any]] = {
    "indices": lambda far: sparse(
        torch.sparse_coo, repeated(far)[None], weights(WIDE), torch.Size((5,))
    ),
    "columns": lambda far: sparse(
        torch.sparse_csr, longs([0, WIDE]), repeated(far), weights(WIDE), torch.Size((1, 5))
    ),
    "offsets": lambda far: Jagged(values=torch.ones(3, 1), offsets=repeated(far)),
    "offsets and lengths": lambda far: Jagged(
        values=torch.ones(3, 1), offsets=repeated(far, WIDE + 1), lengths=repeated(0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATED)
def test_one_number_that_a_file_shows_many_times_is_read_once(
    name: str, tmp_path: Path
) -> None:
    for number in (0, 7):
        torch.save({"x": REPEATED[name](number)}, tmp_path / "x.pth")
        with open(str(tmp_path / "x.pth")) as checkpoint:
            is_outside = checkpoint.account.has_noticed("out-of-bounds")
            assert is_outside is (number == 7)
            assert "called" not in {row.group for row in checkpoint.imports}


def test_rows_without_numbers_are_not_walked(tmp_path: Path) -> None:
    rows = longs([0, 0]).expand(WIDE, 2)
    columns = torch.as_strided(longs([0]), (WIDE, 0), (1, 1))
    values = torch.as_strided(torch.ones(1), (WIDE, 0), (1, 1))
    tensor = sparse(torch.sparse_csr, rows, columns, values, torch.Size((WIDE, 1, 5)))
    torch.save({"x": tensor}, tmp_path / "x.pth")
    with open(str(tmp_path / "x.pth")) as checkpoint:
        assert not checkpoint.account.has_noticed("out-of-bounds")


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_indices_that_are_stored_as_their_negatives_are_refused(
    layout: torch.layout, tmp_path: Path
) -> None:
    """The stored numbers lie within the size, and those that torch reads do not."""
    values = torch.ones(1)
    if layout is torch.sparse_coo:
        good = sparse(layout, longs([[3]]), values, (5,), True)
        odd = sparse(layout, torch._neg_view(longs([[3]])), values, (5,), True)
    else:
        rows = longs([0, 1])
        good = sparse(layout, rows, longs([3]), values, (1, 5))
        odd = sparse(layout, rows, torch._neg_view(longs([3])), values, (1, 5))
    torch.save({"x": good}, tmp_path / "good.pth")
    torch.save({"x": odd}, tmp_path / "odd.pth")

    assert inside("inspect", "good.pth", cwd=tmp_path).code == 0
    done = inside("inspect", "odd.pth", cwd=tmp_path)

    assert done.code == 2
    assert b"its indices are stored as their negatives" in done.err


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_values_that_are_stored_as_their_negatives_are_refused(
    layout: torch.layout, tmp_path: Path
) -> None:
    """A writer would keep the numbers and lose the sign."""
    values = torch._neg_view(torch.ones(1))
    if layout is torch.sparse_coo:
        odd = sparse(layout, longs([[3]]), values, (5,), True)
    else:
        odd = sparse(layout, longs([0, 1]), longs([3]), values, (1, 5))
    torch.save({"x": odd}, tmp_path / "odd.pth")

    done = inside("inspect", "odd.pth", cwd=tmp_path)

    assert done.code == 2
    assert b"its values are stored as their negatives" in done.err


def test_scales_that_are_stored_as_their_negatives_are_refused(tmp_path: Path) -> None:
    for name in ("scales", "zero_points"):
        numbers = {"scales": torch.ones(2).double(), "zero_points": longs([0, 0])}
        numbers[name] = torch._neg_view(numbers[name])
        torch.save({"x": quantized(*numbers.values(), 0)}, tmp_path / "odd.pth")

        done = inside("inspect", "odd.pth", cwd=tmp_path)

        assert done.code == 2
        assert b"are stored as their negatives" in done.err

"""The values of a tensor and of parts of it, against torch and numpy, in every
container.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import paths
import pytest
import rewriting
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import (
    CONTAINERS,
    Save,
    deflated,
    distributed,
    legacy,
    safetensors,
    shards,
    stored,
    strided,
)

import ckpt
from ckpt.elements import fill
from ckpt.model import places as places_module
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool", "complex32",
    "complex64", "complex128",
]  # fmt: skip


def filled(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor of any dtype with many bits set."""
    generator = torch.Generator().manual_seed(7)
    wide = torch.rand(shape, generator=generator) * 200 - 100
    if dtype.startswith("complex"):
        wide = torch.complex(wide, wide.flip(0) if wide.dim() else wide)
    return (wide.abs() if dtype.startswith("u") else wide).to(getattr(torch, dtype))


def as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The values as we give them, by way of torch."""
    name = str(tensor.dtype).removeprefix("torch.")
    if "float8" in name or name == "bfloat16":
        return tensor.to(torch.float32).numpy()
    return (
        tensor.to(torch.complex64)
        if name == "complex32"
        else tensor.resolve_conj().resolve_neg()
    ).numpy()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return (
            tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
        )

    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(bits(one), bits(other))
    )


IN_NO_SAFETENSORS = ("complex32", "complex128")


def savable(save: Save, dtype: str) -> str:
    if save is safetensors and dtype in IN_NO_SAFETENSORS:
        return "complex64"
    return "float32" if save is distributed and dtype == "float8_e8m0fnu" else dtype


@pytest.fixture(params=["shipped", "small"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as they are shipped, and blocks of a few elements."""
    if request.param == "small":
        monkeypatch.setattr(fill, "PIECE", 64)
        monkeypatch.setattr(fill, "_WIDEN", 5)
        monkeypatch.setattr(fill, "GAP", 16)
        monkeypatch.setattr(fill, "_RUNS", 3)
        monkeypatch.setattr(places_module, "BLOCK", 64)
        monkeypatch.setattr(places_module, "_CACHED", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("save", CONTAINERS, ids=lambda save: save.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_all_dtypes_and_strides(
    dtype: str, save: Save, tmp_path: Path
) -> None:
    made = strided(filled((6, 7, 8), savable(save, dtype)))
    with ckpt.open(save(made, tmp_path)) as opened:
        assert sorted(opened) == sorted(made)
        for name, tensor in made.items():
            ref = opened[name]
            assert same_bits(ref.torch(), tensor)
            wanted = as_numpy(tensor)
            values = ref.numpy()
            np.testing.assert_array_equal(values, wanted)
            assert values.dtype == wanted.dtype and values.shape == wanted.shape
            assert (
                values.flags.writeable and values.flags.owndata
            ) or values.base is not None
            for key in (
                0,
                -1,
                slice(1, 3),
                (Ellipsis, 0),
                (slice(None, None, -2), None),
            ):
                if tensor.dim() and (
                    tensor.shape[0] or isinstance(key, (slice, tuple))
                ):
                    np.testing.assert_array_equal(ref[key], wanted[key])


def test_values_of_both_byte_orders_and_pending_bits(tmp_path: Path) -> None:
    made = {
        "conj": torch.randn(5, 3, dtype=torch.complex64).conj().t(),
        "neg": torch.randn(4, dtype=torch.complex128).conj().imag,
        "half": torch._neg_view(torch.randn(6).to(torch.bfloat16)),
        "int": torch._neg_view(torch.arange(-3, 3)),
        "both": torch._neg_view(torch.randn(4, dtype=torch.complex64).conj()),
        "wide": torch.arange(12.0, dtype=torch.float64).reshape(3, 4),
        "short": torch.arange(6, dtype=torch.int16),
        "odd": torch.randn(4, 2, dtype=torch.complex128)[:, 0],
    }
    little = rewriting.saved(made, tmp_path / "a.pt")
    for path in (little, swapped(little, tmp_path / "b.pt")):
        with ckpt.open(path) as opened:
            loaded = opened.state_dict()
            for name, tensor in made.items():
                assert same_bits(opened[name].torch(), tensor), name
                assert same_bits(loaded[name], tensor), name
                np.testing.assert_array_equal(opened[name].numpy(), as_numpy(tensor))
                np.testing.assert_array_equal(opened[name][1:3], as_numpy(tensor)[1:3])


def swapped(path: Path, to: Path) -> Path:
    """The file as a big-endian machine writes it."""
    with ckpt.open(path) as opened:
        widths = {}
        for storage in opened.checkpoint.storages:
            assert storage.dtype is not None
            bits = storage.dtype.bits // (2 if storage.dtype.kind == "complex" else 1)
            widths[storage.id] = bits // 8
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("/byteorder"):
                data = b"big"
            elif "/data/" in name:
                width = widths[name.rpartition("/")[2]]
                data = np.frombuffer(data, f"u{width}").byteswap().tobytes()
            new.writestr(name, data)
    return to


KEYS = st.recursive(
    st.one_of(
        st.integers(-9, 9),
        st.slices(8),
        st.builds(slice, st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9), st.sampled_from([None, 1, -1, 2, -3])),
        st.none(),
        st.just(Ellipsis),
        st.booleans(),
        st.lists(st.integers(-7, 6), max_size=3),
    ),
    lambda key: st.lists(key, max_size=4).map(tuple),
    max_leaves=4,
)  # fmt: skip


class Files:
    """A file of each container, which is made once."""

    made: dict[str, torch.Tensor]
    opened: dict[str, ckpt.Checkpoint]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    files = Files()
    files.made = strided(filled((6, 7, 8), "float32"))
    files.opened = {}
    for save in CONTAINERS:
        files.opened[save.__name__] = ckpt.open(
            save(files.made, tmp_path_factory.mktemp("files"))
        )
    return files


@settings(max_examples=paths.many(150, 3_000), deadline=None)
@given(
    st.sampled_from([save.__name__ for save in CONTAINERS]),
    st.sampled_from(sorted(strided(torch.ones(6, 7, 8)))),
    KEYS,
)
def test_any_index_gives_what_numpy_gives(
    files: Files, container: str, name: str, key: Any
) -> None:
    wanted = files.made[name].numpy()
    ref = files.opened[container][name]
    try:
        part = wanted[key]
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            ref[key]
        assert str(caught.value) == str(error)
        return
    values = ref[key]
    assert type(values) is type(part)
    np.testing.assert_array_equal(values, part)
    assert values.shape == part.shape and values.dtype == part.dtype


def test_an_index_may_be_an_array(files: Files) -> None:
    wanted = files.made["whole"].numpy()
    ref = files.opened["stored"]["whole"]
    for key in (
        np.array([1, 3]),
        wanted > 0,
        [0, 2],
        torch.tensor([1, 1]),
        (slice(None), np.array([[0], [1]])),
        np.int64(3),
        np.bool_(True),
    ):
        np.testing.assert_array_equal(ref[key], wanted[key])


def test_a_reference_is_an_array_for_numpy(tmp_path: Path) -> None:
    made = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    path = rewriting.saved({"w": made, "n": torch.tensor(3.0)}, tmp_path / "a.pt")
    with ckpt.open(path) as opened:
        ref = opened["w"]
        assert (
            np.asarray(ref).dtype == np.float32
            and np.asarray(ref, np.float64).dtype == np.float64
        )
        np.savez(tmp_path / "w.npz", w=ref)  # type: ignore[arg-type]
        assert (
            np.load(tmp_path / "w.npz", allow_pickle=False)["w"].tolist()
            == made.tolist()
        )
        assert np.add(ref, 1).tolist() == (made + 1).tolist()
        assert torch.as_tensor(ref.numpy()).equal(made.float()) and torch.as_tensor(
            ref[::-1]
        ).shape == (3, 4)
        with pytest.raises(ValueError, match="copy=False"):
            np.asarray(ref, copy=False)
        assert np.array(ref, copy=True).shape == (3, 4)
        assert (
            not hasattr(ref, "__array_interface__")
            and not hasattr(ref, "__len__")
            and bool(ref)
        )
        assert [row.tolist() for row in ref] == made.tolist()
        with pytest.raises(TypeError, match="no dimensions"):
            iter(opened["n"])
        assert float(np.asarray(opened["n"])) == 3.0


def test_what_a_reference_says(samples: Path) -> None:
    with ckpt.open(samples / "train_cuda.pth") as opened:
        report = ckpt.inspect(opened)
        for name, row in report.items():
            ref = opened[name]
            assert (ref.role, ref.section, ref.device) == (
                row.role,
                row.section,
                row.device,
            )
            assert (ref.ndim, ref.nbytes) == (len(row.shape), row.nbytes)
        assert {ref.role for ref in opened.values()} >= {
            "parameter",
            "buffer",
            "optimizer",
        }


def test_strides_and_gradients(tmp_path: Path) -> None:
    made = {
        "t": torch.ones(2, 3).t(),
        "p": torch.nn.Parameter(torch.ones(1)),
        "s": torch.eye(2).to_sparse(),
    }
    path = rewriting.saved(made, tmp_path / "a.pt")
    with ckpt.open(path) as opened:
        assert opened["t"].stride == (1, 3) and opened["t"].requires_grad is False
        assert opened["p"].requires_grad is True and opened["s"].stride is None
    assert opened["t"] if False else True


# --- bytes that are read --------------------------------------------------------------


def read_of(opened: ckpt.Checkpoint) -> int:
    return sum(source.bytes_read for source in opened.checkpoint.sources)  # type: ignore[attr-defined]


LARGE = torch.arange(1000 * 3000, dtype=torch.float32).reshape(1000, 3000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "save", [stored, legacy, safetensors, distributed], ids=lambda save: save.__name__
)
@pytest.mark.parametrize(
    ("key", "most"),
    [
        ((slice(None), 5), 2 * 4 * 1000),
        ((slice(10, 20),), 4 * 10 * 3000),
        ((3,), 4 * 3000),
        ((3, 4), 4),
        ((slice(None, None, 100), slice(0, 10)), 2 * 4 * 10 * 10),
        ((slice(5, 900), slice(0, 3000, 2)), 4 * 895 * 3000),
        ((slice(0, 0),), 0),
        ((slice(None, None, 2), slice(None, None, 2)), 2 * 4 * 500 * 1500),
    ],
)  # fmt: skip
def test_an_index_reads_what_it_needs(
    key: Any, most: int, save: Save, tmp_path: Path
) -> None:
    with ckpt.open(save({"w": LARGE}, tmp_path)) as opened:
        opened["w"][0, 0]  # a distributed one opens the item
        before = read_of(opened)
        values = opened["w"][key]
        assert read_of(opened) - before <= most
        np.testing.assert_array_equal(values, LARGE.numpy()[key])


def test_a_transpose_is_read_once(tmp_path: Path) -> None:
    with ckpt.open(stored({"w": LARGE.t()}, tmp_path)) as opened:
        before = read_of(opened)
        assert np.array_equal(opened["w"].numpy(), LARGE.t().numpy())
        assert read_of(opened) - before == LARGE.nbytes


@pytest.mark.slow
def test_a_deflated_record_is_inflated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ckpt.open(deflated({"w": LARGE, "c": LARGE[:, 7]}, tmp_path)) as opened:
        record = opened.checkpoint.storages[0].place
        assert record is not None
        monkeypatch.setattr(places_module, "_CACHED", 0)
        before = read_of(opened)
        np.testing.assert_array_equal(opened["w"][:, 5], LARGE[:, 5].numpy())
        assert read_of(opened) - before <= record.size
        np.testing.assert_array_equal(opened["c"].numpy(), LARGE[:, 7].numpy())
        assert read_of(opened) - before <= 2 * record.size


def test_a_box_that_is_not_needed_is_not_opened(tmp_path: Path) -> None:
    path = distributed({"w": LARGE, "v": LARGE + 1}, tmp_path)
    with ckpt.open(path) as opened:
        opened["v"].numpy()
        before = read_of(opened)
        opened["v"].numpy()
        assert read_of(opened) - before == LARGE.nbytes


# --- a file that changes --------------------------------------------------------------


@pytest.mark.needs("live")
@pytest.mark.parametrize(
    "save",
    [stored, deflated, legacy, safetensors, distributed],
    ids=lambda save: save.__name__,
)
def test_a_file_that_changed_gives_no_values(save: Save, tmp_path: Path) -> None:
    import os

    with ckpt.open(save({"w": torch.ones(1000, 10)}, tmp_path)) as opened:
        opened["w"].numpy()
        for source in opened.checkpoint.sources:
            os.utime(source.name, (1, 1))
        for read in (
            opened["w"].numpy,
            opened["w"].torch,
            lambda: opened["w"][3],
            opened.state_dict,
        ):
            with pytest.raises(CkptError, match="changed while it was read"):
                read()


def test_only_the_files_of_a_tensor_are_checked(tmp_path: Path) -> None:
    import os

    with ckpt.open(
        shards({"a": torch.ones(3), "b": torch.zeros(3)}, tmp_path)
    ) as opened:
        os.utime(tmp_path / "model-00002-of-00002.bin", (1, 1))
        assert opened["a"].numpy().sum() == 3
        with pytest.raises(CkptError, match=r"00002-of-00002\.bin: the file changed"):
            opened["b"].numpy()


def test_checkpoints_that_were_made_elsewhere(tmp_path: Path) -> None:
    from ckpt import formats
    from ckpt.evidence.survey import Survey

    inner: Checkpoint = formats.open(str(stored({"w": torch.ones(2)}, tmp_path)))
    with ckpt.Checkpoint(inner) as opened:
        assert opened["w"].numpy().tolist() == [1, 1] and isinstance(
            opened.survey, Survey
        )
        assert opened == opened and opened == ckpt.Checkpoint(inner) and opened != {}

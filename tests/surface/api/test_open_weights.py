"""`state_dict` and `load_into`: the weights of an open checkpoint as torch tensors,
against torch, and their memory.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
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
from kinds import CONTAINERS, Save, deflated, legacy, stored, strided
from process import SAMPLES
from torch import nn

import ckpt
from ckpt.model.errors import CkptError, LossError, UnsupportedError, UsageError

pytestmark = oracle.QUIET


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one, other)
    )


# --- state_dict -----------------------------------------------------------------------


@pytest.mark.parametrize("save", CONTAINERS, ids=lambda save: save.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64", "bool"])
def test_the_weights_are_those_of_torch(dtype: str, save: Save, tmp_path: Path) -> None:
    made = strided((torch.arange(336).reshape(6, 7, 8) % 120).to(getattr(torch, dtype)))
    with ckpt.open(save(made, tmp_path)) as opened:
        loaded = opened.state_dict()
        assert sorted(loaded) == sorted(made) and all(
            same(loaded[name], made[name]) for name in made
        )
        assert list(loaded) == list(opened)


def shares(loaded: dict[str, torch.Tensor]) -> list[set[str]]:
    """The names of the tensors that share memory."""
    groups: dict[int, set[str]] = {}
    for name, tensor in loaded.items():
        groups.setdefault(tensor.untyped_storage().data_ptr(), set()).add(name)
    return sorted((names for names in groups.values() if len(names) > 1), key=min)


@pytest.mark.parametrize(
    "save", [stored, deflated, legacy], ids=lambda save: save.__name__
)
def test_ties_stay_ties(save: Save, tmp_path: Path) -> None:
    whole = torch.arange(60.0).reshape(6, 10)
    pending = torch.randn(4, dtype=torch.complex64)
    made = {
        "embed": whole, "head": whole, "turned": whole.t(), "row": whole[2], "column": whole[:, 3],
        "alone": torch.ones(3), "twice": torch.arange(4), "again": None, "conj": pending.conj(), "plain": pending,
        "neg": torch._neg_view(whole[4]), "bits": torch.arange(8, dtype=torch.int32),
    }  # fmt: skip
    made["again"] = made["twice"].view(2, 2)  # type: ignore[union-attr]
    tensors: dict[str, torch.Tensor] = made  # type: ignore[assignment]
    path = save(tensors, tmp_path)
    reference = torch.load(path, weights_only=True)
    with ckpt.open(path) as opened:
        loaded = opened.state_dict()
    assert all(same(loaded[name], reference[name]) for name in reference)
    assert shares(loaded) == shares(reference) and shares(loaded)
    for name in ("embed", "head", "turned", "row", "column", "conj"):
        assert loaded[name].stride() == reference[name].stride()
    assert (
        loaded["conj"].is_conj()
        and loaded["neg"].is_neg()
        and loaded["embed"] is not loaded["head"]
    )
    loaded["embed"][2, 3] = -1
    assert (
        loaded["head"][2, 3]
        == loaded["turned"][3, 2]
        == loaded["row"][3]
        == loaded["column"][2]
        == -1
    )


def test_of_a_large_storage_the_used_part_is_read(tmp_path: Path) -> None:
    large = torch.arange(1_000_000.0)
    made = {
        "a": large[500:600],
        "b": large[550:650].view(10, 10),
        "c": large[900_000:900_010],
        "e": large[:1].expand(1000, 1000),
    }
    with ckpt.open(stored(made, tmp_path)) as opened:
        source: Any = opened.checkpoint.source
        before = source.bytes_read
        loaded = opened.state_dict()
        assert all(torch.equal(loaded[name], made[name]) for name in made)
        assert source.bytes_read - before <= 4 * (150 + 10 + 1) + 3 * 16
        assert loaded["a"].untyped_storage().nbytes() <= 4 * 150 + 16 and loaded[
            "e"
        ].stride() == (0, 0)
        assert [sorted(row) for row in shares(loaded)] == [["a", "b"]]


VIEWS = st.tuples(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=3),
)
KINDS = [
    ["float32"],
    ["int64"],
    ["bfloat16"],
    ["complex64"],
    ["uint16", "uint32", "float8_e5m2"],
]
"""Types of which torch saves views of one storage."""


@settings(max_examples=paths.many(25, 500), deadline=None)
@given(
    st.sampled_from(KINDS).flatmap(
        lambda kinds: st.lists(
            st.tuples(st.sampled_from(kinds), VIEWS), min_size=1, max_size=5
        )
    )
)
def test_any_views_of_one_storage(
    tmp_path_factory: pytest.TempPathFactory, views: list[Any]
) -> None:
    memory = torch.arange(1024, dtype=torch.uint8)
    made = {}
    for number, (dtype, (offset, dims)) in enumerate(views):
        kind = getattr(torch, dtype)
        shape, stride = [size for size, _ in dims], [step for _, step in dims]
        made[f"v{number}"] = torch.empty(0, dtype=kind).set_(
            memory.untyped_storage(), offset, shape, stride
        )
    path = stored(made, tmp_path_factory.mktemp("views"))
    with ckpt.open(path) as opened:
        loaded = opened.state_dict()
        for name, tensor in made.items():
            assert loaded[name].shape == tensor.shape
            assert loaded[name].dtype == tensor.dtype
            if tensor.numel():
                one, other = (
                    torch.empty(row.shape, dtype=row.dtype).copy_(row)
                    for row in (loaded[name], tensor)
                )
                assert (
                    one.flatten()
                    .view(torch.uint8)
                    .equal(other.flatten().view(torch.uint8))
                )
            narrow = tensor.dtype in (torch.bfloat16, torch.float8_e5m2)
            wanted = tensor.float().numpy() if narrow else tensor.numpy()
            np.testing.assert_array_equal(opened[name].numpy(), wanted)
            if tensor.dim():
                np.testing.assert_array_equal(opened[name][::-2], wanted[::-2])


def test_the_section_that_is_chosen(tmp_path: Path) -> None:
    with ckpt.open(SAMPLES / "train_cuda.pth") as opened:
        reference = torch.load(
            SAMPLES / "train_cuda.pth", weights_only=False, map_location="cpu"
        )["model"]
        loaded = opened.state_dict()
        assert list(loaded) == list(reference) and all(
            same(loaded[name], reference[name]) for name in reference
        )
        assert (
            loaded.keys()
            == opened.section("model").keys()
            == opened.state_dict("model").keys()
        )
        stripped = opened.state_dict(strip=True)
        assert list(stripped) == [name.removeprefix("module.") for name in reference]
        with pytest.raises(UsageError, match="no section none"):
            opened.state_dict("none")
    gan = {name: nn.Linear(3, 3).state_dict() for name in ("netG", "netD")}
    with ckpt.open(rewriting.saved(gan, tmp_path / "gan.pt")) as opened:
        with pytest.raises(UsageError) as error:
            opened.state_dict()
        assert str(error.value).endswith(
            "holds 2 models (section='netG', or section='netD')"
        )
        assert torch.equal(opened.state_dict("netD")["bias"], gan["netD"]["bias"])
    optimizer = torch.optim.Adam(nn.Linear(2, 2).parameters())
    state = {
        "state": {0: {"exp_avg": torch.ones(2)}},
        "param_groups": optimizer.state_dict()["param_groups"],
    }
    with ckpt.open(rewriting.saved(state, tmp_path / "optim.pt")) as opened:
        assert list(opened.state_dict()) == list(opened) == ["state.0.exp_avg"]


@pytest.mark.needs("live")
def test_two_names_never_become_one(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"module.a.weight": torch.ones(1), "a.weight": torch.ones(1)}, tmp_path / "a.pt"
    )
    with ckpt.open(path) as opened:
        with pytest.raises(UsageError) as error:
            opened.state_dict(strip=True)
        assert (
            str(error.value)
            == f"{path}: strip=True makes one name of module.a.weight and a.weight"
        )
        assert len(opened.state_dict()) == 2


def test_what_is_not_plain_is_refused(tmp_path: Path) -> None:
    made = {
        "ok": torch.ones(1), "a": torch.eye(2).to_sparse(), "m": torch.ones(2, device="meta"),
        "q": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
    }  # fmt: skip
    path = rewriting.saved(made, tmp_path / "a.pt")
    with ckpt.open(path) as opened:
        with pytest.raises(UnsupportedError) as error:
            opened.state_dict()
        text = (
            "a is sparse_coo, not strided, m is on meta, without data, q is quantized, "
            "not strided"
        )
        assert str(error.value) == f"{path}: 3 tensors without plain values: {text}"


# --- load_into ------------------------------------------------------------------------


def model(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3, bias=bias), nn.BatchNorm1d(3), nn.Linear(3, 2))


def values(of: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in of.state_dict().items()}


def test_loading_into_a_model(tmp_path: Path) -> None:
    source, target = model(), model()
    wrapped = {
        "model": {
            f"module.{name}": tensor for name, tensor in source.state_dict().items()
        },
        "epoch": 3,
    }
    with ckpt.open(rewriting.saved(wrapped, tmp_path / "a.pt")) as opened:
        coverage = opened.load_into(target, strict=True)
        assert coverage.share == 1.0 and coverage.tensors == (9, 9)
        assert all(
            torch.equal(tensor, source.state_dict()[name])
            for name, tensor in target.state_dict().items()
        )
        assert opened.load_into(model(), section="model").share == 1.0
        with pytest.raises(UsageError, match="is no torch"):
            opened.load_into("model")
        with pytest.raises(UsageError, match="on_mismatch"):
            opened.load_into(model(), on_mismatch="other")  # type: ignore[arg-type]


def test_strict_loads_all_or_nothing(tmp_path: Path) -> None:
    path = rewriting.saved(model(bias=False).state_dict(), tmp_path / "a.pt")
    more = rewriting.saved(
        model().state_dict() | {"extra": torch.ones(1)}, tmp_path / "b.pt"
    )
    for file, target, text in (
        (path, model(), "1 tensor of the model not loaded: 0.bias"),
        (more, model(), "1 tensor of the file not in the model: extra"),
        (
            more,
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 5)),
            "2 tensors of the model not loaded: 2.",
        ),
    ):
        before = values(target)
        with ckpt.open(file) as opened:
            with pytest.raises(LossError) as error:
                opened.load_into(target, strict=True)
            assert text in str(error.value)
            assert all(
                torch.equal(before[name], tensor)
                for name, tensor in target.state_dict().items()
            )
            assert opened.load_into(target).share < 1.0 or file is more


@pytest.mark.parametrize("trouble", ["cut", "changed", "deflate"])
def test_an_error_leaves_the_model_as_it_was(trouble: str, tmp_path: Path) -> None:
    import os

    path = stored(model().state_dict(), tmp_path)
    target = model()
    before = values(target)
    if trouble == "deflate":
        path = deflated(model().state_dict(), tmp_path)
        with ckpt.open(path) as opened:
            place: Any = opened.checkpoint.tensors[-2].tensor.storage.place  # type: ignore[union-attr]
        data = bytearray(path.read_bytes())
        data[place.offset : place.offset + place.size] = b"\xff" * place.size
        path.write_bytes(data)
    with ckpt.open(path) as opened:
        if trouble == "changed":
            os.utime(path, (1, 1))
        elif trouble == "cut":
            os.truncate(path, 700)
        with pytest.raises(CkptError):
            opened.load_into(target)
    assert all(
        torch.equal(before[name], tensor)
        for name, tensor in target.state_dict().items()
    )


# --- memory ---------------------------------------------------------------------------

LARGE = 32 << 20
SHAPES: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.ones(1024, LARGE // 4096),
    "transposed": lambda: torch.ones(1024, LARGE // 4096).t(),
    "bfloat16": lambda: torch.ones(1024, LARGE // 2048, dtype=torch.bfloat16),
    "float8": lambda: torch.ones(1024, LARGE // 1024).to(torch.float8_e4m3fn),
    "conj": lambda: torch.ones(1024, LARGE // 8192, dtype=torch.complex64).conj(),
    "half of each row": lambda: torch.ones(1024, LARGE // 2048)[:, : LARGE // 4096],
    "every other": lambda: torch.ones(1024, LARGE // 2048)[:, ::2],
}


PEAKS = [(stored, name) for name in SHAPES]
PEAKS += [
    (save, name)
    for save in CONTAINERS
    if save is not stored
    for name in ("float32", "bfloat16", "transposed")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "name"),
    PEAKS,
    ids=lambda row: row if isinstance(row, str) else row.__name__,
)
def test_the_peak_of_numpy_is_the_result(save: Save, name: str, tmp_path: Path) -> None:
    with ckpt.open(save({"w": SHAPES[name]()}, tmp_path)) as opened:
        opened["w"][0]
        tracemalloc.start()
        try:
            array = opened["w"].numpy()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert array.nbytes >= LARGE and peak <= array.nbytes + (5 << 20)


PEAK = """
import sys, ckpt

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10

with ckpt.open(sys.argv[1]) as opened:
    opened["small"].torch()
    for read in (opened["w"].torch, opened.state_dict):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = peak()
        value = read()
        print(peak() - before)
        del value
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_peak_of_torch_is_the_result(tmp_path: Path) -> None:
    whole = torch.ones(4096, LARGE // 8192, dtype=torch.bfloat16)
    made = {
        "w": whole.t(),
        "small": torch.ones(1),
        "tied": whole,
        "other": torch.ones(LARGE // 4),
    }
    path = deflated(made, tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True
    )
    peaks = [int(line) for line in run.stdout.split()]
    for size, peak in zip((LARGE, 2 * LARGE), peaks, strict=True):
        assert size - (1 << 20) <= peak <= size + (8 << 20)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((3, 3, 3), (1, 6, 6)),
        ((3, 3, 3), (2, 5, 6)),
        ((3, 3), (1, 1)),
        ((2, 3, 2), (3, 1, 1)),
        ((4, 5), (1, 4)),
        ((2, 1, 5), (1, 7, 2)),
    ],
)
def test_elements_that_several_indices_see(
    shape: tuple[int, ...], stride: tuple[int, ...], tmp_path: Path
) -> None:
    """A view may reach as far as a dense one, and see elements twice and others not at
    all.
    """
    view = torch.arange(64, dtype=torch.float32).as_strided(shape, stride)
    for save in (stored, deflated, legacy):
        with ckpt.open(save({"a": view}, tmp_path)) as opened:
            ref = opened["a"]
            assert torch.equal(ref.torch(), view) and torch.equal(
                opened.state_dict()["a"], view
            )
            np.testing.assert_array_equal(ref.numpy(), view.numpy())
            np.testing.assert_array_equal(ref[1:], view[1:].numpy())


# --- models and default devices of other kinds ----------------------------------------


@pytest.mark.parametrize("name", ["meta", "cpu"])
def test_the_default_device_of_torch_changes_nothing(name: str, tmp_path: Path) -> None:
    """Some scripts set it to cuda. Tensors of a file are on the CPU all the same."""
    whole = torch.arange(12.0).reshape(3, 4)
    made = {
        "a": whole,
        "b": whole[1],
        "none": torch.empty(0, 2),
        "count": torch.tensor(3),
        "c": torch.ones(2),
    }
    path, written = tmp_path / "x.pth", tmp_path / "net.pth"
    torch.save(made, path)
    net = nn.BatchNorm1d(3)
    torch.save(net.state_dict(), written)
    torch.set_default_device(name)
    try:
        with ckpt.open(path) as opened:
            loaded, one = opened.state_dict(), opened["c"].torch()
        with torch.device("cpu"):
            other = nn.BatchNorm1d(3)
        with ckpt.open(written) as opened:
            opened.load_into(other, strict=True)
        copied = tmp_path / "copy.pth"
        ckpt.convert(path, out=str(copied), verify="torch")
    finally:
        torch.set_default_device(None)  # type: ignore[arg-type]
    assert all(
        same(loaded[key], made[key]) and loaded[key].device.type == "cpu"
        for key in made
    )
    assert same(one, made["c"]) and shares(loaded) == [{"a", "b"}]
    assert other.state_dict().keys() == net.state_dict().keys()


def test_bytes_go_right_into_the_memory_of_a_model(tmp_path: Path) -> None:
    """Whole tensors of the same type are read in place; all others are copied. Both are
    noticed by autograd.
    """
    torch.manual_seed(0)

    def build() -> nn.Module:
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2).bfloat16()
        )
        net[0].to(memory_format=torch.channels_last)
        return net

    given, target = build(), build()
    path = tmp_path / "x.pth"
    torch.save(given.state_dict(), path)
    memory = {name: value.data_ptr() for name, value in target.state_dict().items()}
    versions = {
        name: value._version
        for name, value in target.state_dict(keep_vars=True).items()
    }
    with ckpt.open(path) as opened:
        opened.load_into(target, strict=True)
    state = target.state_dict(keep_vars=True)
    assert all(
        torch.equal(state[name], value) for name, value in given.state_dict().items()
    )
    assert {name: value.data_ptr() for name, value in state.items()} == memory
    assert all(value._version > versions[name] for name, value in state.items())
    assert state["0.weight"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.needs("live")
def test_a_model_on_meta_gets_the_way(tmp_path: Path) -> None:
    given, path = nn.Linear(3, 2), tmp_path / "x.pth"
    torch.save(given.state_dict(), path)
    target = nn.Linear(3, 2, device="meta")
    with ckpt.open(path) as checkpoint:
        with pytest.raises(
            UsageError, match="weight is on meta, without memory"
        ) as caught:
            checkpoint.load_into(target)
        assert "load_state_dict(checkpoint.state_dict(), assign=True)" in str(
            caught.value.hint
        )
        target.load_state_dict(checkpoint.state_dict(), assign=True)
    assert torch.equal(target.weight, given.weight)


@pytest.mark.needs("live")
def test_a_model_over_several_ranks_gets_the_way(tmp_path: Path) -> None:
    """FSDP2 and tensor parallelism make DTensors. A test of them takes a process group
    of one.
    """
    from torch import distributed
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    given, path = nn.Linear(4, 2), tmp_path / "x.pth"
    torch.save(given.state_dict(), path)
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh, target = init_device_mesh("cpu", (1,)), nn.Linear(4, 2)
        for name, value in list(target.named_parameters()):
            setattr(target, name, nn.Parameter(distribute_tensor(value.detach(), mesh)))
        with ckpt.open(path) as checkpoint:
            with pytest.raises(
                UsageError, match="weight is a DTensor, of which each rank holds a part"
            ) as caught:
                checkpoint.load_into(target)
            assert "set_model_state_dict(model, checkpoint.state_dict()" in str(
                caught.value.hint
            )
            options = StateDictOptions(full_state_dict=True)
            set_model_state_dict(target, checkpoint.state_dict(), options=options)
        assert torch.equal(target.weight.full_tensor(), given.weight)  # type: ignore[attr-defined]
    finally:
        distributed.destroy_process_group()


@pytest.mark.needs("live")
def test_a_model_on_meta_gets_no_way_that_fails_on_a_prefix(tmp_path: Path) -> None:
    given, path = nn.Linear(3, 2), tmp_path / "x.pth"
    torch.save({f"module.{k}": v for k, v in given.state_dict().items()}, path)
    target = nn.Linear(3, 2, device="meta")
    with ckpt.open(path) as checkpoint:
        with pytest.raises(UsageError, match="on meta") as caught:
            checkpoint.load_into(target)
        assert str(caught.value.hint) == "model.to_empty(device=…)"
        target.to_empty(device="cpu")
        checkpoint.load_into(target)
    assert torch.equal(target.weight, given.weight)

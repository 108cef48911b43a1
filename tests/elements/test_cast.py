"""Kernels: blocks of bytes in, blocks of bytes out, the same as torch makes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import refs
import torch

from ckpt.elements import cast as module
from ckpt.elements.cast import (
    cast,
    gathered,
    overlay_elements,
    resolve_conj_and_neg,
    swapped,
)
from ckpt.elements.computed import Computed, Overlaid
from ckpt.model.dtypes import BY_NAME, DType
from ckpt.model.tensors import Storage, tensor_ref

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every third": lambda t: t[::3],
    "columns": lambda t: t.reshape(8, -1).t(),
    "rows cut": lambda t: t.reshape(-1, 12)[:, 2:9],
    "permuted": lambda t: t.reshape(2, 3, -1, 4).permute(3, 1, 0, 2),
    "repeated": lambda t: t[:6].reshape(6, 1, 1).expand(6, 10, 7),
    "overlapping": lambda t: t.as_strided((30, 5), (2, 1)),
    "long rows": lambda t: t.reshape(2, -1)[:, ::2],
    "scalar": lambda t: t[3],
    "a row of none": lambda t: t.reshape(8, -1)[:, :0],
}


def into(overflows: list[int]) -> Callable[..., None]:
    """A tally that keeps the counts of what overflowed."""
    return lambda overflowed, vanished=0: overflows.append(overflowed)


@pytest.mark.parametrize("block", [1, 16, 20, 64, 1000])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex128], ids=str
)
def test_gathered_elements_come_in_the_order_of_the_shape(
    dtype: torch.dtype, view: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    tensor = VIEWS[view](refs.values(dtype, 24 * 8 * dtype.itemsize))
    name = str(dtype).removeprefix("torch.")
    data = refs.raw(tensor)[tensor.storage_offset() * dtype.itemsize :]

    found = list(gathered(data, BY_NAME[name], tuple(tensor.shape), tensor.stride()))

    assert b"".join(found) == refs.expected(tensor)
    assert all(len(piece) <= max(block, dtype.itemsize) for piece in found), (
        "no more at once than a block"
    )


def test_only_floats_of_8_bits_are_rounded_to_codes() -> None:
    with pytest.raises(ValueError, match="float16 has no codes of 8 bits"):
        module._float8_codes("float16")


def test_gathering_several_megabytes(nbytes: int) -> None:
    tensor = refs.values(torch.float32, 2 * nbytes)[::2]

    found = list(
        gathered(
            refs.raw(tensor), BY_NAME["float32"], tuple(tensor.shape), tensor.stride()
        )
    )

    assert len(found) > 1 and b"".join(found) == refs.expected(tensor)


CASTABLE = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)


@pytest.mark.parametrize(
    ("nbytes", "source"),
    [
        *(("64 bytes", name) for name in CASTABLE),
        ("shipped", "float32"),
        ("shipped", "bfloat16"),
    ],
    indirect=["nbytes"],
)
@pytest.mark.parametrize("to", ["float64", "float32", "float16", "bfloat16"])
def test_casts_are_those_of_torch(to: str, source: str, nbytes: int) -> None:
    tensor = refs.values(getattr(torch, source), nbytes)
    place = Computed(refs.ref_of(tensor), BY_NAME[to])
    wanted = tensor
    if source == "float64" and to in ("float16", "bfloat16"):
        wanted = tensor.float()  # by way of float32, as torch does

    overflows: list[int] = []
    assert b"".join(place.read_blocks(tally=into(overflows))) == refs.expected(
        wanted.to(getattr(torch, to))
    )
    assert sum(overflows) == 0


@pytest.mark.parametrize("block", [3, 8, 20, 64])
def test_elements_that_lie_in_two_blocks_are_cast_whole(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.elements.blocks.BLOCK", block)
    tensor = refs.values(torch.float32, 400)

    assert b"".join(
        Computed(refs.ref_of(tensor), BY_NAME["float16"]).read_blocks()
    ) == refs.expected(tensor.half())


def test_what_overflows_is_counted_over_all_blocks(nbytes: int) -> None:
    tensor = refs.values(torch.float32, nbytes)
    for at in (0, len(tensor) // 2, len(tensor) - 1):
        tensor[at] = 1e30
    tensor[1] = float("inf")
    tensor[2] = float("nan")
    place = Computed(refs.ref_of(tensor), BY_NAME["float16"])

    for _ in range(2):  # each time anew
        overflows: list[int] = []
        assert b"".join(place.read_blocks(tally=into(overflows))) == refs.expected(
            tensor.half()
        )
        assert sum(overflows) == 3


@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("source", ["int64", "int32", "int16", "uint8", "bool"])
def test_ints_wrap_around(source: str, to: str) -> None:
    tensor = refs.values(getattr(torch, source), 640)
    if source != "bool":
        tensor = tensor * 3

    found, overflowed = cast(refs.expected(tensor), BY_NAME[source], BY_NAME[to])

    assert found == refs.expected(tensor.to(getattr(torch, to))) and overflowed == 0


@pytest.mark.parametrize(
    "name", ["int16", "float32", "float64", "complex64", "complex128", "uint8", "bool"]
)
def test_swapping_is_of_each_number(name: str) -> None:
    dtype = BY_NAME[name]
    data = bytes(range(256))
    width = dtype.bits // (16 if dtype.kind == "complex" else 8)

    assert swapped(data, dtype) == refs.swapped(data, width)
    assert swapped(swapped(data, dtype), dtype) == data


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.complex64], ids=str
)
@pytest.mark.parametrize("conj", [False, True])
@pytest.mark.parametrize("neg", [False, True])
def test_pending_signs_are_carried_out(
    neg: bool, conj: bool, dtype: torch.dtype
) -> None:
    tensor = refs.values(dtype, 640)
    wanted = tensor.conj().resolve_conj() if conj else tensor
    wanted = -wanted if neg else wanted

    found = resolve_conj_and_neg(
        refs.expected(tensor),
        BY_NAME[str(dtype).removeprefix("torch.")],
        conj=conj,
        neg=neg,
    )

    assert found == refs.expected(wanted)


@pytest.mark.parametrize("shape", [(3, 4), (5, 2), (4, 4), (1, 1), (0, 4), (6, 9)])
def test_the_block_that_two_have_in_common(shape: tuple[int, int]) -> None:
    base, over = (
        torch.arange(16.0).reshape(4, 4),
        -torch.arange(float(shape[0] * shape[1])).reshape(shape) - 1,
    )
    wanted = base.clone()
    rows, columns = min(4, shape[0]), min(4, shape[1])
    wanted[:rows, :columns] = over[:rows, :columns]

    found = overlay_elements(
        refs.expected(base), (4, 4), refs.expected(over), shape, BY_NAME["float32"]
    )

    assert found == refs.expected(wanted)


def test_each_number_between_two_of_float16_is_rounded_as_torch_does() -> None:
    """Each number of float16, the middle to the next one, and the numbers of float32
    beside these: subnormals too.
    """
    codes = torch.arange(0x7C00, dtype=torch.int16)
    exact = codes.view(torch.float16).float()
    middles = (exact[1:] + exact[:-1]) / 2
    bits = torch.cat([exact, middles, torch.tensor([65519.996])]).view(torch.int32)
    bits = torch.cat([bits, bits + 1, (bits - 1).clamp_min(0)])
    numbers = bits.view(torch.float32)
    numbers = torch.cat([numbers, -numbers])
    numbers = numbers[numbers.abs() < 65_520]
    expected = numbers.half()

    data, lost = module.round_numbers(
        numbers.numpy(), BY_NAME["float16"], module.Rows()
    )
    assert bytes(data) == refs.expected(expected) and not lost
    assert cast(refs.expected(numbers), BY_NAME["float32"], BY_NAME["float16"]) == (
        bytes(data),
        0,
    )


@pytest.mark.parametrize("outer", ["computed", "cast again", "overlaid", "laid over"])
def test_overflows_are_counted_through_a_place_that_is_made_of_another(
    outer: str,
) -> None:
    wide = torch.tensor([[1e30, 1.0], [-1e30, 2.0]])
    half = BY_NAME["float16"]
    inner = Computed(refs.ref_of(wide), half)
    halved = tensor_ref(Storage("0", "cpu", half, 8, inner), half, (2, 2), (2, 1), 0)
    small = refs.ref_of(torch.ones(1, 1, dtype=torch.float16))
    place = {
        "computed": Computed(halved, half),
        "cast again": Computed(halved, BY_NAME["bfloat16"]),
        "overlaid": Overlaid(halved, small),
        "laid over": Overlaid(
            refs.ref_of(torch.zeros(2, 2, dtype=torch.float16)), refs.ref_of(wide)
        ),
    }[outer]
    overflows: list[int] = []

    assert len(b"".join(place.read_blocks(tally=into(overflows)))) == 8
    assert sum(overflows) == 2


@pytest.mark.parametrize(
    "name", [*module._CODES, "float8_e4m3fn", "complex64", "complex32"]
)
def test_a_few_elements_are_those_that_numpy_reads(name: str) -> None:
    dtype = BY_NAME[name]
    data = bytes(range(1, 1 + 3 * dtype.bits // 8)) if name != "bool" else b"\0\1\2"
    expected = module.as_numbers(data, dtype).tolist()
    found = module.few(data, dtype)
    assert found == (list(map(bool, expected)) if name == "bool" else expected)
    assert list(map(type, found)) == [bool if name == "bool" else type(expected[0])] * 3


@pytest.mark.parametrize(
    "dtype",
    [dtype for name, dtype in BY_NAME.items() if name == dtype.name],
    ids=lambda dtype: dtype.name,
)
def test_every_type_that_has_numbers_becomes_numbers(dtype: DType) -> None:
    """A row of `model/dtypes.py` alone decodes nothing."""
    if not module.has_numbers(dtype):
        return
    try:
        found = module.as_numbers(bytes(3 * dtype.bits // 8), dtype)
    except TypeError as error:
        pytest.fail(
            f"{dtype.name} has no decoder ({error}): give it a row of _FLOATS in "
            "ckpt/elements/cast.py, or have `has_numbers` say no"
        )
    assert len(found) == 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 254, 255, 256])
@pytest.mark.parametrize(
    "name",
    [
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ],
)
def test_any_number_of_codes_becomes_float32(name: str, count: int) -> None:
    codes = torch.arange(256, dtype=torch.uint8).flip(0)[:count]
    expected = codes.view(getattr(torch, name)).float().numpy()

    for block in (refs.expected(codes), memoryview(refs.expected(codes))):
        found = module.as_numbers(block, BY_NAME[name])
        np.testing.assert_array_equal(found, expected)
        signs = [
            np.signbit(values[~np.isnan(expected)]) for values in (found, expected)
        ]
        np.testing.assert_array_equal(*signs)

"""`ckpt average`: the mean in the names, order and dtypes of the last, over all
formats, with torch as the oracle.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import accounts
import hypothesis.strategies as st
import oracle
import pytest
import rewriting
import saved
import torch
from accounts import SOURCES, Size
from hypothesis import given, settings
from inside import inside
from torch import nn

import ckpt
from ckpt import formats
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.commands.slim.slim import slim
from ckpt.evidence.survey import Survey
from ckpt.ext.average.average import Options, average, shares_of
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET
State = dict[str, torch.Tensor]


def averaged(
    folder: Path, *things: Any, out: str = "out.pth", **options: Any
) -> tuple[Any, RewriteReport]:
    """The mean of some objects as torch loads it, and the report."""
    paths = [
        rewriting.saved(thing, folder / f"in{number}.pth")
        for number, thing in enumerate(things)
    ]
    return of_files(paths, folder / out, **options)


def of_files(paths: list[Path], out: Path, **options: Any) -> tuple[Any, RewriteReport]:
    opened = [formats.open(str(path)) for path in paths]
    try:
        surveys = [Survey(each) for each in opened]
        report = average(surveys[:-1], surveys[-1], Limits(), Options(**options))
        rewriting.write(report.result, out)
    finally:
        for each in opened:
            each.close()
    return torch.load(out, weights_only=True), report


def mean_of(states: list[State], shares: list[float]) -> State:
    """The mean as torch computes it."""
    found = dict(states[-1])
    for name, tensor in found.items():
        if tensor.is_floating_point():
            total = states[0][name].double() * shares[0]
            for state, share in zip(states[1:], shares[1:], strict=True):
                total = total + state[name].double() * share
            found[name] = total.to(tensor.dtype)
    return found


def same(one: State, two: State) -> bool:
    return list(one) == list(two) and all(
        one[name].dtype == two[name].dtype and torch.equal(one[name], two[name])
        for name in one
    )


def net(seed: int, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(
        **options
    )
    with torch.no_grad():
        for tensor in made.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(-1, 1)
            else:
                tensor.fill_(seed)
    return made


def test_the_mean_has_the_names_the_order_and_the_dtypes_of_the_last(
    tmp_path: Path,
) -> None:
    states = [
        net(1).state_dict(),
        net(2).state_dict(),
        net(3, dtype=torch.bfloat16).state_dict(),
    ]

    found, report = averaged(
        tmp_path,
        {"model": states[0], "epoch": 1},
        dict(reversed(states[1].items())),
        states[2],
    )

    third = 1 / 3
    assert same(found, mean_of(states, [third] * 3))
    assert type(found) is OrderedDict and found._metadata == states[2]._metadata  # type: ignore[attr-defined]
    assert [
        (row.kind, row.before, row.after, row.number) for row in report.changes
    ] == [
        ("averaged", "averaged", None, 8),
        ("dtype", "float32", "bfloat16", 8),
        ("taken", "as in the last", None, 1),
    ]
    assert [(row.name, row.what) for row in report.left_out] == [
        (f"epoch of {tmp_path / 'in0.pth'}", "1")
    ]
    where = f"{tmp_path / 'in0.pth'}, {tmp_path / 'in1.pth'}"
    assert [(row.name, row.what) for row in report.left_alone] == [
        ("1.num_batches_tracked", f"int64, differs in {where}")
    ]


def test_names_meet_without_wrappers_and_the_report_says_it(tmp_path: Path) -> None:
    states = [net(1).state_dict(), net(2).state_dict()]
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in states[0].items()}

    found, report = averaged(tmp_path, wrapped, states[1])

    assert same(found, mean_of(states, [0.5, 0.5]))
    assert [row.aligned for row in report.sources] == [
        ("module._orig_mod.", ""),
        ("", ""),
    ]
    with pytest.raises(UsageError, match="lacks 0"):
        averaged(tmp_path, wrapped, states[1], align=False)
    found, _ = averaged(tmp_path, states[1], wrapped)
    assert list(found) == list(wrapped)


@pytest.mark.parametrize("ratios", [[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
def test_ratios_weigh_and_nothing_comes_of_a_ratio_of_0(
    ratios: list[float], tmp_path: Path
) -> None:
    one, two = net(1).state_dict(), net(2, dtype=torch.float16).state_dict()
    states = [one, two]
    for state, ratio in zip(states, ratios, strict=True):
        if not ratio:
            state["0.weight"].fill_(math.nan)

    found, report = averaged(tmp_path, *states, ratios=ratios)

    shares = shares_of(ratios, 2)
    for state, share in zip(states, shares, strict=True):
        if not share:
            state["0.weight"].fill_(0.0)
    assert (
        same(found, mean_of(states, shares))
        and [row.share for row in report.sources] == shares
    )


def test_ratios_that_are_none_are_refused() -> None:
    for ratios, says in (
        ([1.0], "1 number for 2 checkpoints"),
        ([1.0, 2.0, 3.0], "3 numbers for 2"),
        ([1.0, -1.0], "not a finite"),
        ([math.nan, 1.0], "nan.?: not a finite"),
        ([math.inf, 1.0], "inf.?: not a finite"),
        ([0.0, 0.0], "their sum is 0"),
        ([1e308, 1e308], "infinite"),
    ):
        with pytest.raises(UsageError, match=says):
            shares_of(ratios, 2)


def test_tied_tensors_are_averaged_once_and_stay_tied(tmp_path: Path) -> None:
    weights = [torch.randn(4, 3) for _ in range(2)]
    tied = [{"emb": weight, "head": weight, "b": torch.ones(2)} for weight in weights]
    copied = {**tied[0], "head": weights[0].clone()}

    for first in (tied[0], copied):
        found, report = averaged(tmp_path, first, tied[1])

        assert found["emb"].data_ptr() == found["head"].data_ptr()
        assert torch.equal(
            found["head"], ((weights[0].double() + weights[1].double()) / 2).float()
        )
        assert report.changes[0].number == 3
    copied["head"] = copied["head"] + 1
    with pytest.raises(
        UsageError, match="emb and head are tied in the last, and differ"
    ) as caught:
        averaged(tmp_path, copied, tied[1])
    assert caught.value.hint == "--exclude head" and caught.value.path == str(
        tmp_path / "in0.pth"
    )
    found, _ = averaged(tmp_path, copied, tied[1], exclude=["head"])
    assert list(found) == ["emb", "b"]


def views() -> dict[str, Any]:
    base = torch.arange(18.0)
    last = torch.randn(2, 3, 4, 5)
    return {
        "packed a": base[:6].view(2, 3),
        "packed b": base[6:18].view(3, 4),
        "last": last.to(memory_format=torch.channels_last),
        "t": torch.randn(3, 4).t(),
        "expanded": torch.randn(3, 1).expand(3, 4),
        "slice": torch.randn(50)[10:20],
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "gaps": torch.randn(6, 4)[:, :2],
        "f64": torch.randn(3, dtype=torch.float64),
    }


def test_views_keep_their_strides_and_sharing(tmp_path: Path) -> None:
    torch.manual_seed(2)
    one, two = views(), views()
    plain = {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in one.items()
        if name != "expanded"
    }

    for first in (one, {**plain, "expanded": one["expanded"]}):
        found, _ = averaged(tmp_path, first, two)

        assert same(found, mean_of([first, two], [0.5, 0.5]))
        assert {
            name: tensor.stride() for name, tensor in found.items() if name != "gaps"
        } == {name: tensor.stride() for name, tensor in two.items() if name != "gaps"}
        assert (
            found["packed a"].untyped_storage().data_ptr()
            == found["packed b"].untyped_storage().data_ptr()
        )
    with pytest.raises(UsageError, match="expanded is expanded in the last only"):
        averaged(tmp_path, {**one, "expanded": one["expanded"].contiguous()}, two)


def test_tensors_that_share_a_part_of_their_memory_are_refused(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    thing = {"a": base[:6], "b": base[3:], "c": torch.ones(2)}

    with pytest.raises(
        UsageError, match=r"\{a,b\} share a part of their memory"
    ) as caught:
        averaged(tmp_path, thing, thing)
    assert caught.value.hint == "--exclude b"


REFUSED: dict[str, tuple[Any, Any, str, str | None]] = {
    "a missing tensor": ({}, {"x.a": torch.ones(2)}, "lacks x.a", "--exclude x.a"),
    "another tensor": (
        {"x.a": torch.ones(2)},
        {},
        "has x.a, which that lacks",
        "--exclude x.a",
    ),
    "another shape": (
        {"x": torch.ones(2)},
        {"x": torch.ones(3)},
        r"x is \[2\], there \[3\]",
        "--exclude x",
    ),
    "float and int": (
        {"x": torch.ones(2)},
        {"x": torch.ones(2, dtype=torch.int64)},
        "x is float32, in the last int64",
        "--exclude x",
    ),
    "int and float": (
        {"x": torch.ones(2, dtype=torch.int64)},
        {"x": torch.ones(2)},
        "x is int64, in the last float32",
        "--exclude x",
    ),
    "complex and float": (
        {"x": torch.ones(2) + 1j},
        {"x": torch.ones(2)},
        "x is complex64, in the last float32",
        "--exclude x",
    ),
    "conjugated": (
        {"x": torch.ones(2) + 1j},
        {"x": (torch.ones(2) + 1j).conj()},
        "x is a view with gaps",
        "--exclude x",
    ),
    "sparse": (
        {"x": torch.eye(3).to_sparse()},
        {"x": torch.eye(3).to_sparse()},
        "x is sparse_coo",
        "--exclude x",
    ),
    "on meta": (
        {"x": torch.empty(2, device="meta")},
        {"x": torch.ones(2)},
        "x is on meta",
        "--exclude x",
    ),
    "quantized weights": (
        {"x.weight": torch.tensor([1])},
        {"x.weight": torch.tensor([2])},
        "a part of quantized weights",
        "--exclude x.weight",
    ),
    "scales": (
        {"x": torch.ones(2).to(torch.float8_e4m3fn), "x_scale": torch.ones(1)},
        {"x": torch.ones(2).to(torch.float8_e4m3fn), "x_scale": torch.ones(1) * 2},
        "x_scale, which scales x, differs",
        "--exclude x --exclude x_scale",
    ),
    "numbers of scales": (
        {"x": torch.ones(2).to(torch.float8_e8m0fnu)},
        {"x": (torch.ones(2) * 4).to(torch.float8_e8m0fnu)},
        "x is float8_e8m0fnu, a part of quantized weights",
        "--exclude x",
    ),
    "several": (
        {"x": torch.ones(2), "y": torch.tensor([1])},
        {"x": torch.ones(3), "y": torch.ones(1)},
        "x is",
        "--exclude x --exclude y",
    ),
    "many below one name": (
        {},
        {f"head.{number}": torch.ones(1) for number in range(9)},
        "lacks head",
        "--exclude 'head.*'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_the_option_that_leaves_it_out(
    case: str, tmp_path: Path
) -> None:
    one, two, says, hint = REFUSED[case]
    more = {"w.a": torch.ones(2), "w.b": torch.ones(3)}

    with pytest.raises(UsageError, match=says) as caught:
        averaged(tmp_path, {**more, **one}, {**more, **two})

    assert caught.value.hint == hint
    assert not (tmp_path / "out.pth").exists()
    words = [word.strip("'") for word in (hint or "").split() if word != "--exclude"]
    found, _ = averaged(tmp_path, {**more, **one}, {**more, **two}, exclude=words)
    assert same(found, more)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
def test_complex_numbers_are_averaged(dtype: torch.dtype, tmp_path: Path) -> None:
    """More elements than one span, a transposed one, and one that does not change."""
    torch.manual_seed(0)
    models = []
    for _ in range(3):
        x = torch.randn(3, 50_001, dtype=torch.complex64).to(dtype)
        models.append(
            {
                "x": x,
                "t": x[:, :7].t().clone().t(),
                "same": torch.full((2,), 1 / 3 + 2j),
            }
        )

    found, _ = averaged(tmp_path, *models)

    for name, before in models[0].items():
        assert found[name].dtype == before.dtype
        exact = sum(model[name].to(torch.complex128) for model in models) / 3
        error = (found[name].to(torch.complex128) - exact).abs().max()
        assert error <= (2e-3 if dtype == torch.complex32 else 1e-6), name
    assert torch.equal(found["same"], models[0]["same"])


def test_an_error_of_python_has_keywords_and_a_public_class(tmp_path: Path) -> None:
    things = {"a": torch.eye(3).to_sparse(), "b": torch.eye(2).to_sparse()}
    paths = [tmp_path / "1.pth", tmp_path / "2.pth"]
    for path in paths:
        torch.save({**things, "c": torch.ones(2)}, path)

    with pytest.raises(ckpt.UsageError) as caught:
        ckpt.average(paths, out=tmp_path / "out.pth")

    assert type(caught.value) is ckpt.UsageError
    assert str(caught.value).endswith('and has no mean (exclude=["a", "b"])')
    ckpt.average(paths, out=tmp_path / "out.pth", exclude=["a", "b"])


def test_quantized_tensors_have_no_mean(tmp_path: Path) -> None:
    thing = {"x": saved.quantized(torch.qint8), "y": torch.ones(2)}

    with pytest.raises(UsageError, match="x is quantized, and has no mean") as caught:
        averaged(tmp_path, thing, thing)
    assert caught.value.hint == "--exclude x"


def test_equal_scales_and_quantized_weights_that_do_not_differ_are_no_hindrance(
    tmp_path: Path,
) -> None:
    state = {
        "x": torch.ones(2).to(torch.float8_e4m3fn),
        "x_scale": torch.ones(1) * 3,
        "q.weight": torch.arange(4, dtype=torch.uint8),
    }

    found, report = averaged(tmp_path, state, state)

    assert (
        all(torch.equal(found[name].float(), state[name].float()) for name in state)
        and not report.left_alone
    )


def test_what_is_selected_is_averaged(tmp_path: Path) -> None:
    one = {"a.w": torch.ones(2), "b.w": torch.ones(2), "only": torch.ones(1)}
    two = {"a.w": torch.zeros(2), "b.w": torch.zeros(3)}

    found, report = averaged(tmp_path, {"model": one}, {"model": two}, include=["a.*"])

    assert same(found, {"a.w": torch.full((2,), 0.5)})
    assert [(row.name, row.what) for row in report.left_out] == [
        ("(not selected)", "1 tensor")
    ]
    with pytest.raises(UsageError, match="holds no floating tensors"):
        averaged(
            tmp_path,
            {"n": torch.tensor(1), "m": torch.tensor(2)},
            {"n": torch.tensor(1), "m": torch.tensor(2)},
        )


def test_a_section_is_averaged(tmp_path: Path) -> None:
    things = [
        {"model": net(seed).state_dict(), "ema": net(seed + 5).state_dict()}
        for seed in (1, 2)
    ]

    found, _ = averaged(tmp_path, *things, section="ema")

    assert same(found, mean_of([thing["ema"] for thing in things], [0.5, 0.5]))
    gans = [
        {"G": net(seed).state_dict(), "D": net(seed + 5).state_dict()}
        for seed in (1, 2)
    ]
    with pytest.raises(UsageError, match="holds 2 models"):
        averaged(tmp_path, *gans)


SIZES = (Size(3, True, 1), Size(64, False, 2))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.text)
def test_the_mean_of_copies_is_what_slim_writes_in_every_format(
    source: Any, size: Size, tmp_path: Path
) -> None:
    path = source.make(tmp_path, size)
    with formats.open(str(path)) as checkpoint:
        expected = elements(slim(Survey(checkpoint), Limits()).result)
        survey = Survey(checkpoint)
        report = average(
            [survey, survey], survey, Limits(), Options(ratios=[1.0, 2.0, 3.0])
        )

        assert elements(report.result) == expected


def elements(checkpoint: Checkpoint) -> dict[str, bytes]:
    from ckpt.elements.blocks import elements as of
    from ckpt.model.tensors import TensorRef

    return {
        entry.name: b"".join(map(bytes, of(entry.tensor)))
        for entry in checkpoint.tensors
        if isinstance(entry.tensor, TensorRef)
    }


@pytest.mark.slow
@pytest.mark.parametrize("out", ["o.pth", "o.safetensors", "o.dcp"])
@pytest.mark.parametrize(
    "source",
    [source for source in SOURCES if source.name != "gguf"],  # convert writes it first
    ids=lambda source: source.name,
)
def test_any_format_becomes_the_format_of_out(
    source: Any, out: str, tmp_path: Path
) -> None:
    size = SIZES[1]
    path = source.make(tmp_path, size)
    other = rewriting.saved(
        {name: tensor + 1 for name, tensor in accounts.weights(size).items()},
        tmp_path / "z.pth",
    )

    done = inside("average", other, path, "-o", out, "--verify", "crc", cwd=tmp_path)

    assert done.code == 0, done
    with formats.open(str(tmp_path / out)) as checkpoint:
        found = elements(checkpoint)
    weights = accounts.weights(size)
    assert len(found) == size.count
    for name, data in found.items():
        tensor = weights[name[name.index("layers.") :]]
        mean = (tensor.double() * 0.5 + (tensor + 1).double() * 0.5).to(tensor.dtype)
        expected = mean if tensor.is_floating_point() else tensor
        assert data == expected.reshape(-1).view(torch.uint8).numpy().tobytes(), name


@pytest.mark.slow
def test_many_tensors_meet(tmp_path: Path) -> None:
    size = Size(2_100, True, 3)
    weights = accounts.weights(size)

    found, report = averaged(
        tmp_path,
        accounts.nested(size),
        {f"module.{name}": tensor for name, tensor in weights.items()},
    )

    assert same(found, {f"module.{name}": tensor for name, tensor in weights.items()})
    assert sum(row.number for row in report.changes) == 2_100


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_random_models(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = [
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.bool,
    ]
    shapes = data.draw(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6
        )
    )
    count = data.draw(st.integers(2, 4))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    states: list[State] = [
        {"first": torch.randn(3, generator=generator)} for _ in range(count)
    ]
    for number, shape in enumerate(shapes):
        name = data.draw(st.sampled_from(names))
        for state in states:
            other = name
            if name.is_floating_point:
                other = (
                    data.draw(st.sampled_from(names[:4]))
                    if state is not states[-1]
                    else name
                )
            state[f"l{number}"] = (torch.randn(shape, generator=generator) * 3).to(
                other
            )
    ratios = data.draw(
        st.lists(st.integers(0, 5).map(float), min_size=count, max_size=count)
    )
    if not sum(ratios):
        ratios[0] = 1.0
    folder = tmp_path_factory.mktemp("models")

    found, _ = averaged(folder, *states, ratios=ratios)

    shares = shares_of(ratios, count)
    used = [
        (state, share) for state, share in zip(states, shares, strict=True) if share
    ]
    for name, tensor in states[-1].items():
        if not tensor.is_floating_point():
            assert torch.equal(found[name], tensor)
            continue
        total = used[0][0][name].double() * used[0][1]
        for state, share in used[1:]:
            total = total + state[name].double() * share
        agree = torch.stack(
            [state[name].double() == used[0][0][name].double() for state, _ in used]
        ).all(0)
        total = torch.where(agree, used[0][0][name].double(), total)
        assert found[name].dtype == tensor.dtype and torch.equal(
            found[name], total.to(tensor.dtype)
        ), name


def test_a_mean_can_be_averaged_again(tmp_path: Path) -> None:
    first, _ = averaged(tmp_path, {"w": torch.ones(3)}, {"w": torch.zeros(3)})
    second, _ = of_files(
        [tmp_path / "out.pth", tmp_path / "in0.pth"], tmp_path / "again.pth"
    )

    assert torch.equal(first["w"], torch.full((3,), 0.5)) and torch.equal(
        second["w"], torch.full((3,), 0.75)
    )


def test_an_empty_tensor_of_any_size_is_averaged(tmp_path: Path) -> None:
    empty = torch.empty(1).expand(2, 1)[:, :0].expand(2, 0)
    state = {"a": torch.empty(0).as_strided((0, 4), (0, 0)), "b": empty}

    averaged_state, _ = averaged(tmp_path, state, state)

    assert averaged_state["a"].shape == (0, 4)

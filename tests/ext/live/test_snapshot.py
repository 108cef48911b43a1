"""`ckpt.snapshot`: what torch loads is the state dict, and the record says what the
live model says.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from paths import many
from process import ckpt as run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ckpt
from ckpt import formats
from ckpt.commands.inspect.inspect import Inspection, inspect
from ckpt.evidence import record as snapshots
from ckpt.evidence.numbering import Numbers, numbered_parameters
from ckpt.evidence.record import ModelRecord
from ckpt.evidence.survey import Survey
from ckpt.ext.live import memory
from ckpt.model.errors import CkptError, WriteError

pytestmark = oracle.QUIET


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)
        self.tied = nn.Linear(4, 2)
        self.tied.weight = self.head.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("hidden", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.head(self.norm(self.conv(x)).mean((2, 3))) + self.tied.bias
        found: torch.Tensor = self.frozen(out * self.scale)
        return found


def loaded(path: Path | str) -> Any:
    return torch.load(path, weights_only=True)


def record(path: Path | str) -> ModelRecord:
    with formats.open(str(path)) as checkpoint:
        found = snapshots.record_of(checkpoint)
    assert found is not None
    return found


def inspected(path: Path | str) -> Inspection:
    with formats.open(str(path)) as checkpoint:
        return inspect(Survey(checkpoint))


def findings(path: Path | str) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.tensors for finding in inspected(path).findings}


def stepped(net: nn.Module, path: Path, optimizer: Any = None) -> Path:
    net(torch.randn(5, 3, 9, 9)).square().sum().backward()
    if optimizer is not None:
        optimizer.step()
    ckpt.snapshot(net, path, optimizer)
    return path


def assert_state(path: Path | str, model: nn.Module) -> None:
    """The file holds the state dict of a model: names, order, values, dtypes, strides,
    sharing, `_metadata`.
    """
    state, expected = loaded(path)["state_dict"], model.state_dict()
    assert type(state) is OrderedDict and list(state) == list(expected)
    assert state._metadata == expected._metadata  # type: ignore[attr-defined]
    for name, tensor in expected.items():
        found = state[name]
        assert (found.dtype, found.shape, found.stride()) == (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
        )
        assert torch.equal(found, tensor.cpu()) and found.device.type == "cpu", name
    shared = {
        (a, b)
        for a in expected
        for b in expected
        if expected[a].untyped_storage()._cdata == expected[b].untyped_storage()._cdata
    }
    assert shared == {
        (a, b)
        for a in state
        for b in state
        if state[a].untyped_storage()._cdata == state[b].untyped_storage()._cdata
    }


NEWER = pytest.mark.skipif(
    torch.__version__.startswith("2.0."), reason="uses what torch 2.0 does not have"
)


# --- what the file is -----------------------------------------------------------------


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("wrap", "classes"),
    [
        (lambda net: net, []),
        (nn.DataParallel, ["DataParallel"]),
        (DistributedDataParallel, ["DistributedDataParallel"]),
        pytest.param(
            lambda net: torch.compile(nn.DataParallel(net)),
            ["OptimizedModule", "DataParallel"],
            marks=NEWER,
        ),
        pytest.param(
            lambda net: DistributedDataParallel(torch.compile(net)),
            ["DistributedDataParallel", "OptimizedModule"],
            marks=NEWER,
        ),
    ],
    ids=["bare", "dp", "ddp", "compile-dp", "ddp-compile"],
)
def test_an_ordinary_file_without_the_names_of_wrappers(
    wrap: Any, classes: list[str], tmp_path: Path
) -> None:
    net = Net()

    assert ckpt.snapshot(wrap(net), tmp_path / "a.pth") == str(tmp_path / "a.pth")

    assert_state(tmp_path / "a.pth", net)
    assert [
        name.rpartition(".")[2] for name in record(tmp_path / "a.pth").wrappers
    ] == classes
    assert run("inspect", str(tmp_path / "a.pth")).code == 0
    Net().load_state_dict(loaded(tmp_path / "a.pth")["state_dict"])


@NEWER
def test_a_wrapper_inside(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1] = torch.compile(net[1])

    ckpt.snapshot(net, tmp_path / "a.pth")

    assert list(loaded(tmp_path / "a.pth")["state_dict"]) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


def test_a_model_with_an_attribute_called_module_keeps_it(tmp_path: Path) -> None:
    net = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))

    ckpt.snapshot(net, tmp_path / "a.pth")

    assert_state(tmp_path / "a.pth", net)


@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "bfloat16",
        "float16",
        "complex64",
        "int64",
        "bool",
        *(pytest.param(name, marks=NEWER) for name in ("float8_e4m3fn", "uint16")),
    ],
)
def test_every_dtype(dtype: str, tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    values = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    net.register_buffer("values", values)
    net.register_buffer("columns", values[:, 1:])
    net.register_buffer("turned", values.t())
    net.register_buffer("repeated", torch.ones(1, dtype=torch.float32).expand(1000))

    ckpt.snapshot(net, tmp_path / "a.pth")

    assert_state_bits(tmp_path / "a.pth", net)
    assert (tmp_path / "a.pth").stat().st_size < 10_000


def assert_state_bits(path: Path, model: nn.Module) -> None:
    state = loaded(path)["state_dict"]
    for name, tensor in model.state_dict().items():
        assert (
            state[name].dtype == tensor.dtype
            and state[name].stride() == tensor.stride()
        )

        assert (
            state[name]
            .contiguous()
            .view(torch.uint8)
            .equal(tensor.contiguous().view(torch.uint8))
        ), name


def test_a_slice_does_not_bring_its_storage(tmp_path: Path) -> None:
    net = nn.Module()
    whole = torch.arange(100_000.0)
    net.register_buffer("low", whole[5_000:5_010])
    net.register_buffer("high", whole[5_005:5_020])
    net.register_buffer("pair", torch.view_as_complex(torch.randn(3, 2)).conj())

    ckpt.snapshot(net, tmp_path / "a.pth")

    state = loaded(tmp_path / "a.pth")["state_dict"]
    assert torch.equal(state["low"], net.low) and torch.equal(state["high"], net.high)
    assert torch.equal(state["pair"], net.pair) and state["pair"].is_conj()
    assert (
        state["low"].untyped_storage()._cdata == state["high"].untyped_storage()._cdata
    )
    assert (tmp_path / "a.pth").stat().st_size < 10_000


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_what_plain_tensors_cannot_hold_is_left_out_and_said(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def get_extra_state(self) -> Any:
            return frozenset((1, 2))

    net = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3), Odd())
    net.register_buffer("sparse", torch.eye(2).to_sparse())

    with pytest.warns(
        UserWarning, match="left out: sparse .sparse_coo.; 1.weight .uninitialized"
    ):
        ckpt.snapshot(net, tmp_path / "a.pth")

    assert list(loaded(tmp_path / "a.pth")["state_dict"]) == ["0.weight", "0.bias"]
    assert dict(record(tmp_path / "a.pth").left_out).keys() == {
        "sparse",
        "1.weight",
        "1.bias",
        "2._extra_state",
    }
    assert "left out: sparse" in run("inspect", str(tmp_path / "a.pth")).out.decode()


def test_meta_and_empty_models(tmp_path: Path) -> None:
    with torch.device("meta"):
        net = nn.Linear(2, 2)
    for number, model in enumerate((net, nn.Identity(), nn.Module())):
        ckpt.snapshot(model, tmp_path / f"{number}.pth")
        assert list(loaded(tmp_path / f"{number}.pth")["state_dict"]) == list(
            model.state_dict()
        )


def test_one_storage_at_a_time(tmp_path: Path) -> None:
    net = nn.Sequential(*(nn.Linear(300, 300) for _ in range(4)))
    held: list[int] = []
    fetch = memory.LiveSource._fetch

    def fetched(self: memory.LiveSource) -> memoryview:
        held.append(0 if memory.LiveSource._held is None else 1)
        return fetch(self)

    with mock.patch.object(memory.LiveSource, "_fetch", fetched):
        ckpt.snapshot(net, tmp_path / "a.pth")

    assert (
        held == [0] * 8
    )  # the one before was let go each time, and none was fetched twice
    assert memory.LiveSource._held is None


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.Adam(net.parameters())

    stepped(net, tmp_path / "a.pth", optimizer)
    gradients = [p.grad is None for p in net.parameters()]
    after = {name: value.clone() for name, value in net.state_dict().items()}
    ckpt.snapshot(net, tmp_path / "a.pth", optimizer)

    assert before.keys() == after.keys() and net.training
    assert [p.grad is None for p in net.parameters()] == gradients
    assert all(
        torch.equal(value, net.state_dict()[name]) for name, value in after.items()
    )


def test_trouble(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not dict"):
        ckpt.snapshot({}, tmp_path / "a.pth")
    with pytest.raises(WriteError, match="no such folder"):
        ckpt.snapshot(nn.Linear(1, 1), tmp_path / "none" / "a.pth")
    with pytest.raises(CkptError, match="no param_groups"):
        ckpt.snapshot(nn.Linear(1, 1), tmp_path / "a.pth", optimizer=nn.Linear(1, 1))
    assert list(tmp_path.iterdir()) == []


def test_ranks(tmp_path: Path) -> None:
    net = nn.Linear(1, 1)
    with mock.patch("ckpt.ext.live.snapshot._rank_and_world", return_value=(1, 4)):
        assert ckpt.snapshot(net, tmp_path / "a.pth") is None
        assert ckpt.snapshot(net, tmp_path / "a.pth", ranks=1) == str(
            tmp_path / "a.pth"
        )
        assert ckpt.snapshot(net, tmp_path / "b.pth", ranks="all") == str(
            tmp_path / "b.rank1.pth"
        )

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth", "b.rank1.pth"]
    assert (
        record(tmp_path / "b.rank1.pth").rank,
        record(tmp_path / "b.rank1.pth").world_size,
    ) == (1, 4)


@NEWER
@pytest.mark.usefixtures("group")
def test_no_collective_is_called(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    sharded = FullyShardedDataParallel(
        net,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.NO_SHARD,
        use_orig_params=True,
    )
    ddp = DistributedDataParallel(Net())
    names = (
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "broadcast",
        "barrier",
        "gather",
    )
    with (
        mock.patch.multiple(
            dist, **dict.fromkeys(names, mock.Mock(side_effect=AssertionError))
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        ckpt.snapshot(sharded, tmp_path / "a.pth")
        ckpt.snapshot(ddp, tmp_path / "b.pth")

    found = record(tmp_path / "a.pth")
    assert list(found.tensors) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(known.is_sharded for known in found.tensors.values())


# --- what the record says -------------------------------------------------------------


def test_roles_and_gradients(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    path = stepped(net, tmp_path / "a.pth", optimizer)

    found = record(path)
    parameters = dict(net.named_parameters(remove_duplicate=False))
    for name, known in found.tensors.items():
        parameter = parameters.get(name)
        assert (known.role == "parameter") == (parameter is not None)
        assert known.requires_grad == (
            parameter is not None and parameter.requires_grad
        )
        if parameter is None or parameter.grad is None:
            assert known.gradient is None
        else:
            norm = torch.linalg.vector_norm(parameter.grad.double()).item()
            assert known.gradient == pytest.approx(norm, rel=1e-12)
    assert found.parameters == tuple(name for name, _ in net.named_parameters())
    assert found.modules == {
        name: f"{type(m).__module__}.{type(m).__qualname__}"
        for name, m in net.named_modules()
    }
    with formats.open(str(path)) as checkpoint:
        roles = Survey(checkpoint).roles
        expected = [
            "parameter" if name in parameters else "buffer" for name in net.state_dict()
        ]
        assert [(role.role, role.trust, role.source) for role in roles] == [
            (role, "certain", "snapshot") for role in expected
        ]


def test_unused_and_frozen_are_told_apart(tmp_path: Path) -> None:
    net = Net()
    spare = ("state_dict.spare.weight", "state_dict.spare.bias")

    assert "unused" not in findings(stepped_not(net, tmp_path / "a.pth"))
    for optimizer in (
        None,
        torch.optim.SGD(net.parameters(), 0.1),
        torch.optim.AdamW(net.parameters()),
    ):
        path = stepped(net, tmp_path / "a.pth", optimizer)
        assert findings(path)["unused"] == spare
        (finding,) = (row for row in inspected(path).findings if row.code == "unused")
        assert finding.level == "warning" and "DDP stops" in str(finding.consequence), (
            finding
        )


def stepped_not(net: nn.Module, path: Path) -> Path:
    ckpt.snapshot(net, path)
    return path


def test_a_gradient_that_comes_and_goes(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, way: bool) -> torch.Tensor:
            found: torch.Tensor = self.b(self.a(x)) if way else self.a(x)
            return found

    net = Branch()
    optimizer = torch.optim.Adam(net.parameters())
    for way in (True, False):
        optimizer.zero_grad()
        net(torch.randn(3, 2), way).sum().backward()
        optimizer.step()
    ckpt.snapshot(net, tmp_path / "a.pth", optimizer)

    found = findings(tmp_path / "a.pth")
    assert found["unused"] == ("state_dict.c.weight", "state_dict.c.bias")
    assert found["sometimes-unused"] == ("state_dict.b.weight", "state_dict.b.bias")


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-200, float("inf"), float("nan")])
def test_only_a_zero_gradient_is_zero(size: float, tmp_path: Path) -> None:
    net = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    net.weight.grad = torch.tensor([[size, 0.0]], dtype=torch.float64)

    ckpt.snapshot(net, tmp_path / "a.pth")

    gradient = record(tmp_path / "a.pth").tensors["weight"].gradient
    assert gradient is not None
    assert gradient == size or (size != size and gradient != gradient)
    assert (gradient == 0) == (size == 0)


def test_sparse_and_complex_gradients(tmp_path: Path) -> None:
    net = nn.Module()
    net.emb = nn.Embedding(10, 3, sparse=True)
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    (net.emb(torch.tensor([1, 1, 2])).sum() + net.phase.abs().sum()).backward()

    ckpt.snapshot(net, tmp_path / "a.pth")

    tensors = record(tmp_path / "a.pth").tensors
    assert tensors["emb.weight"].gradient == pytest.approx((3 * 4 + 3 * 1) ** 0.5)
    assert tensors["phase"].gradient == pytest.approx(2**0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "Adagrad",
        "LBFGS",
        "Adam",
        "RMSprop",
        *(pytest.param(name, marks=NEWER) for name in ("SGD", "Adafactor")),
    ],
)
def test_optimizers(name: str, tmp_path: Path) -> None:
    net = Net()
    parameters = [p for p in net.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, name)(parameters)
    x = torch.randn(5, 3, 9, 9)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    ckpt.snapshot(net, tmp_path / "a.pth", optimizer)

    (handed,) = record(tmp_path / "a.pth").optimizers
    names = {id(p): n for n, p in net.named_parameters()}
    assert handed.names == tuple(names[id(p)] for p in parameters)
    assert handed.has_state == tuple(bool(optimizer.state.get(p)) for p in parameters)
    assert findings(tmp_path / "a.pth")["unused"] == (
        "state_dict.spare.weight",
        "state_dict.spare.bias",
    )


def test_a_gradient_of_zero_is_named(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()
    for row in net[1].parameters():
        row.grad = torch.zeros_like(row)
    ckpt.snapshot(net, tmp_path / "a.pth")

    assert findings(tmp_path / "a.pth")["zero-gradient"] == (
        "state_dict.1.weight",
        "state_dict.1.bias",
    )
    assert "unused" not in findings(tmp_path / "a.pth")


def asked(*numbers: int) -> Numbers:
    return Numbers(((None, numbers),))


def test_index_is_certain(tmp_path: Path) -> None:
    net = Net()
    path = stepped(net, tmp_path / "a.pth")
    numbered = [name for name, p in net.named_parameters() if p.requires_grad]

    with formats.open(str(path)) as checkpoint:
        found = numbered_parameters(Survey(checkpoint), asked(*range(len(numbered))))
        with pytest.raises(CkptError, match=f"it has {len(numbered)} parameters"):
            numbered_parameters(Survey(checkpoint), asked(len(numbered)))

    assert [
        found.section.relative(entry.name)
        for row in found.rows
        for entry in row.entries
    ] == numbered
    assert found.trust == "certain" and found.assumes is None


@pytest.mark.usefixtures("group")
def test_ddp_does_not_number_what_it_was_told_to_ignore(tmp_path: Path) -> None:
    net = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        net, ["conv.weight", "spare.bias"]
    )
    ddp = DistributedDataParallel(net)

    ckpt.snapshot(ddp, tmp_path / "a.pth")

    expected = [
        n
        for n, p in net.named_parameters()
        if p.requires_grad and n not in ("conv.weight", "spare.bias")
    ]
    assert list(record(tmp_path / "a.pth").numbered) == expected


# --- plain lists ----------------------------------------------------------------------


def test_modules_in_plain_lists(tmp_path: Path) -> None:
    net = Net()
    net.cells = [nn.Linear(2, 2), (nn.Linear(2, 2), {"a": nn.ReLU()})]
    net.again = [net.head, net.spare]
    net.loose = [nn.Parameter(torch.ones(2)), net.head.weight]
    net.lstm = nn.LSTM(2, 2)
    net.fine = nn.ModuleList([nn.Linear(1, 1)])
    net.names = ["a", "b"]

    ckpt.snapshot(net, tmp_path / "a.pth")

    rows = {
        (row.place, row.kind, row.registered)
        for row in record(tmp_path / "a.pth").loose
    }
    assert rows == {
        ("cells[0]", "module", None),
        ("cells[1][0]", "module", None),
        ("again[0]", "module", "head"),
        ("again[1]", "module", "spare"),
        ("loose[0]", "parameter", None),
    }
    messages = [
        f.message
        for f in inspected(tmp_path / "a.pth").findings
        if f.code == "list-modules"
    ]
    assert (
        len(messages) == 2
        and "are not registered" in messages[0]
        and "as head, spare too" in messages[1]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Transformer(8, 2, 1, 1, 8, batch_first=True),
        lambda: nn.LSTM(3, 3, 2, bidirectional=True),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.ModuleDict({"a": nn.ModuleList([nn.Linear(1, 1)])}),
        pytest.param(
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), marks=NEWER
        ),
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(2, 2))),
    ],
)
def test_torchs_own_modules_hide_nothing(make: Any, tmp_path: Path) -> None:
    ckpt.snapshot(make(), tmp_path / "a.pth")

    assert record(tmp_path / "a.pth").loose == ()
    assert "list-modules" not in findings(tmp_path / "a.pth")


# --- records that are none ------------------------------------------------------------

_JUNK = [
    None,
    1,
    "a",
    [],
    [1],
    [None, "x"],
    {"name": [1]},
    {"name": ["a"], "class": []},
    b"x",
    float("nan"),
]


@given(st.data())
@settings(max_examples=many(20, 80))
def test_a_record_that_lies_breaks_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("record")
    ckpt.snapshot(
        nn.Linear(2, 2),
        folder / "a.pth",
        torch.optim.SGD(nn.Linear(2, 2).parameters(), 1.0),
    )
    thing = loaded(folder / "a.pth")
    fields = thing["ckpt"]
    for _ in range(data.draw(st.integers(1, 3))):
        at, key = fields, data.draw(st.sampled_from(sorted(fields)))
        if isinstance(at[key], dict) and data.draw(st.booleans()):
            at = at[key]
            key = data.draw(st.sampled_from(sorted(at))) if at else "x"
        if data.draw(st.booleans()):
            at.pop(key, None)
        else:
            at[key] = data.draw(st.sampled_from(_JUNK))
        if not isinstance(thing["ckpt"], dict) or not fields:
            break
    torch.save(thing, folder / "b.pth")

    with formats.open(str(folder / "b.pth")) as checkpoint:
        snapshots.record_of(checkpoint)
        inspect(Survey(checkpoint)).to_json()
        ckpt.diff(str(folder / "a.pth"), str(folder / "b.pth")).to_json()


def test_a_dict_that_is_called_ckpt_is_no_record(tmp_path: Path) -> None:
    torch.save(
        {"state_dict": nn.Linear(2, 2).state_dict(), "ckpt": {"path": "x"}},
        tmp_path / "a.pth",
    )

    with formats.open(str(tmp_path / "a.pth")) as checkpoint:
        assert snapshots.record_of(checkpoint) is None
        assert [part.kind for part in Survey(checkpoint).sections] == ["model"]


# --- state dicts that are not what torch makes ----------------------------------------


class Hooked(nn.Module):
    def __init__(self, hook: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self._register_state_dict_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.b(x)
        return found


def drops(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    for name in [name for name in state if name.startswith("a.")]:
        del state[name]


def copies(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    for name in list(state):
        state[name] = state[name].detach().clone()


def renames(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    for name in list(state):
        state[f"net.{name}"] = state.pop(name)


@pytest.mark.parametrize("hook", [drops, copies, renames])
def test_hooks_do_not_change_what_the_model_is(hook: Any, tmp_path: Path) -> None:
    net = Hooked(hook)
    net(torch.ones(1, 2)).sum().backward()
    ckpt.snapshot(net, tmp_path / "a.pth")

    found = record(tmp_path / "a.pth")
    prefix = "net." if hook is renames else ""
    assert found.numbered == tuple(prefix + name for name, _ in net.named_parameters())
    assert {
        name: known.gradient is not None
        for name, known in found.tensors.items()
        if known.role == "parameter"
    } == {prefix + name: p.grad is not None for name, p in net.named_parameters()}
    with formats.open(str(tmp_path / "a.pth")) as checkpoint:
        if hook is drops:
            with pytest.raises(CkptError, match=r"the file does not hold a\.weight"):
                numbered_parameters(Survey(checkpoint), asked(0))
        else:
            assert [
                row.entries[0].name
                for row in numbered_parameters(Survey(checkpoint), asked(2)).rows
            ] == [f"state_dict.{prefix}b.weight"]


def test_a_state_dict_of_the_users_own(tmp_path: Path) -> None:
    class Own(nn.Linear):
        def state_dict(self) -> Any:  # type: ignore[override]
            return {"w": self.weight}

    class Odd(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return [1, 2]

    class Numbered(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {0: self.weight}

    for number, cls in enumerate((Own, Odd, Numbered)):
        ckpt.snapshot(cls(2, 2), tmp_path / f"{number}.pth")
    assert list(loaded(tmp_path / "0.pth")["state_dict"]) == ["w"]
    for number in (1, 2):
        assert list(loaded(tmp_path / f"{number}.pth")["state_dict"]) == [
            "weight",
            "bias",
        ]
    assert ckpt.snapshot(nn.Linear(1, 1), bytes(tmp_path / "3.pth")) == str(
        tmp_path / "3.pth"
    )  # type: ignore[arg-type]


@NEWER
def test_values_that_weights_only_takes(tmp_path: Path) -> None:
    extra = {
        "bytes": b"ab",
        "set": {1, 2},
        "size": torch.Size([1, 2]),
        "dtype": torch.float16,
        "device": torch.device("cuda", 1),
        "ordered": OrderedDict(a=1),
        "tensor": torch.arange(3),
        "list": [(1, None), 2.5, True],
    }

    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return extra

        def set_extra_state(self, state: Any) -> None:
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ckpt.snapshot(Odd(2, 2), tmp_path / "a.pth")

    found = loaded(tmp_path / "a.pth")["state_dict"]["_extra_state"]
    assert torch.equal(found.pop("tensor"), extra["tensor"])
    assert found == {name: value for name, value in extra.items() if name != "tensor"}


@NEWER
def test_tensors_that_are_made_of_others(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    net = nn.Linear(2, 2)
    net.weight = nn.Parameter(TwoTensor(torch.ones(2, 2), torch.ones(2, 2)))

    ckpt.snapshot(net, tmp_path / "a.pth")

    found = loaded(tmp_path / "a.pth")["state_dict"]
    assert list(found) == [
        "weight.dtype",
        "weight.shape",
        "weight.a",
        "weight.b",
        "bias",
    ]
    assert torch.equal(found["weight.a"], torch.ones(2, 2))


def test_lists_of_what_is_registered_inside(tmp_path: Path) -> None:
    net = Net()
    net.a = nn.Linear(2, 2)
    net.wrapped = [nn.Sequential(net.a)]
    net.acts = [nn.ReLU(), nn.Dropout()]

    ckpt.snapshot(net, tmp_path / "a.pth")

    (row,) = record(tmp_path / "a.pth").loose
    assert (row.place, row.registered) == ("wrapped[0]", "a")


def test_two_optimizers_are_not_taken_for_one(tmp_path: Path) -> None:
    net = nn.ModuleDict({name: nn.Linear(2, 2) for name in "abc"})
    both = [
        torch.optim.Adam([*net["a"].parameters(), *net["c"].parameters()]),
        torch.optim.SGD(net["b"].parameters(), 0.1),
    ]
    for parts in ("ab", "a"):
        for optimizer in both:
            optimizer.zero_grad()
        sum(net[name](torch.ones(1, 2)).sum() for name in parts).backward()  # type: ignore[union-attr]
        for optimizer in both:
            optimizer.step()
    ckpt.snapshot(net, tmp_path / "a.pth", both)

    messages = [
        f.message for f in inspected(tmp_path / "a.pth").findings if f.code == "unused"
    ]
    assert len(messages) == 1 and "ever before" not in messages[0]


def test_ranks_of_two_moments_say_nothing_of_branches(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    for rank in range(2):
        if rank:
            net(torch.ones(1, 2)).sum().backward()
        with mock.patch(
            "ckpt.ext.live.snapshot._rank_and_world", return_value=(rank, 2)
        ):
            ckpt.snapshot(net, tmp_path / "a.pth", ranks="all")

    assert ckpt.diff(tmp_path / "a.rank0.pth", tmp_path / "a.rank1.pth").findings == ()


def test_one_hidden_module_is_one(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)
            self.aux = {"x": nn.Linear(2, 2)}

    ckpt.snapshot(Net(), tmp_path / "a.pth")

    (message,) = [
        row.message
        for row in inspected(tmp_path / "a.pth").findings
        if row.code == "list-modules"
    ]

    assert message.startswith("aux['x'] (Linear) is not registered (1 module,")


def test_a_snapshot_without_the_gradients_of_a_step_says_why(tmp_path: Path) -> None:
    """A snapshot after `zero_grad()` has none, though the optimizer has stepped."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    ckpt.snapshot(model, tmp_path / "before.pth", optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    ckpt.snapshot(model, tmp_path / "in_time.pth", optimizer)
    optimizer.zero_grad()
    ckpt.snapshot(model, tmp_path / "late.pth", optimizer)
    late = inside("inspect", "late.pth", cwd=tmp_path).out
    assert b"had a gradient (taken after zero_grad()? take it before)" in late
    for name in ("before.pth", "in_time.pth"):
        assert b"zero_grad" not in inside("inspect", name, cwd=tmp_path).out

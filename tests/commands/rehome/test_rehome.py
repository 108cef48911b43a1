"""`ckpt rehome`: only tags change, all of them, and the result loads where there is no
such device.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import real_files
import rewriting
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import many
from process import ckpt as run
from same import difference
from saved import OBJECTS
from torch import nn

from ckpt import formats
from ckpt.commands.rehome.rehome import Moves, moves, rehome
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError
from ckpt.model.limits import Limits

pytestmark = [*oracle.QUIET, pytest.mark.usefixtures("fresh_torch")]
SAMPLES = Path(__file__).resolve().parents[3] / "sample_checkpoints"
REAL_SAMPLES = sorted(
    path.name
    for path in SAMPLES.iterdir()
    if path.suffix in (".pth", ".pt", ".ckpt", ".safetensors")
    and path.name
    not in ("html_page.pth", "lfs_pointer.pth", "truncated.pth", "scripted.pt")
)
FORMATS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}


def cuda(thing: Any, path: Path, tag: str = "cuda:0", **options: Any) -> Path:
    """`thing` saved as a machine with GPUs would tag it."""
    with mock.patch.object(torch.serialization, "location_tag", lambda storage: tag):
        torch.save(thing, path, **options)
    return path


def move(
    source: Path, out: Path, *asked: str, to: str | None = None, objects: bool = False
) -> RewriteReport:
    with formats.open(str(source)) as checkpoint:
        report = rehome(
            Survey(checkpoint), moves(to, list(asked)), Limits(), objects=objects
        )
        rewriting.write(report.result, out)
    return report


def takes(path: Path, weights_only: bool, **options: Any) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(path, weights_only=weights_only, **options)
    except Exception:
        return False
    return True


# --- the law --------------------------------------------------------------------------


def agrees(source: Path, made: Path) -> None:
    """The result loads without map_location, as the source does with it; weights_only
    as before.
    """
    with formats.open(str(source)) as checkpoint:
        encoding = checkpoint.encoding or "utf-8"
    expected = rewriting.load(source, map_location="cpu", encoding=encoding)
    assert difference(expected, rewriting.load(made, encoding=encoding)) is None
    if takes(source, True, map_location="cpu"):
        assert difference(expected, torch.load(made, weights_only=True)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_SAMPLES)
def test_samples(name: str, tmp_path: Path) -> None:
    source, made = SAMPLES / name, tmp_path / name
    move(source, made)

    with formats.open(str(made)) as checkpoint:
        assert {storage.device for storage in checkpoint.storages} <= {
            "cpu",
            "meta",
            None,
        }
    with formats.open(str(source)) as checkpoint:
        loads = (
            all(row.group == "known" for row in checkpoint.imports)
            and not checkpoint.not_loadable
        )
    if (
        loads
        and name.endswith((".pth", ".pt", ".ckpt"))
        and takes(source, False, map_location="cpu", encoding="latin1")
    ):
        agrees(source, made)


@pytest.mark.parametrize("name", real_files.FILES)
def test_real_files(name: str, tmp_path: Path) -> None:
    source, made = real_files.path(name), tmp_path / "made.pt"

    report = move(source, made)

    with formats.open(str(made)) as after, formats.open(str(source)) as before:
        assert [row.name for row in after.tensors] == [
            row.name for row in before.tensors
        ]
        assert {storage.device for storage in after.storages} == {"cpu"}
        encoding = before.encoding or "utf-8"
        for one, two in zip(before.tensors, after.tensors, strict=True):
            assert oracle.stored(
                one.tensor.parts[0][1].storage
                if one.tensor.parts
                else one.tensor.storage
            ) == (  # type: ignore[union-attr]
                oracle.stored(
                    two.tensor.parts[0][1].storage
                    if two.tensor.parts
                    else two.tensor.storage
                )  # type: ignore[union-attr]
            )
    assert bool(report.changes) == name.startswith("lpips")
    if takes(source, False, map_location="cpu", encoding=encoding):
        agrees(source, made)


@pytest.mark.slow
@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.parametrize("name", OBJECTS)
def test_saved_objects(name: str, how: str, tmp_path: Path) -> None:
    if name in ("Generator", "nested") and how == "legacy":
        pytest.skip("torch uses its tensors before it has read them")
    source = tmp_path / "source.pt"
    try:
        cuda({"it": OBJECTS[name](), "place": "cuda:0"}, source, **FORMATS[how])
        rewriting.load(source, map_location="cpu")
    except Exception:
        pytest.skip("torch does not save it so, or does not read it back")
    move(source, tmp_path / "made.pt")

    agrees(source, tmp_path / "made.pt")


@given(strategies.states(), st.sampled_from(strategies.TAGS))
@settings(max_examples=many(20, 80))
def test_states(
    tmp_path_factory: pytest.TempPathFactory, state: strategies.State, tag: str
) -> None:
    folder = tmp_path_factory.mktemp("state")
    source = cuda(state.value, folder / "source.pt", tag)
    move(source, folder / "made.pt")

    found = rewriting.load(folder / "made.pt")

    assert difference(rewriting.load(source, map_location="cpu"), found) is None
    with formats.open(str(folder / "made.pt")) as checkpoint:
        assert (
            rehome(Survey(checkpoint), moves(None, []), Limits()).changes == ()
        )  # twice is once


# --- every place ----------------------------------------------------------------------


def test_texts_of_the_user_that_read_like_a_tag_stay(tmp_path: Path) -> None:
    source = rewriting.saved(
        {"device": "cpu", "t": torch.ones(2), "u": torch.ones(3)}, tmp_path / "a.pt"
    )

    move(source, tmp_path / "b.pt", to="cuda:1")
    move(tmp_path / "b.pt", tmp_path / "c.pt")

    found = torch.load(tmp_path / "b.pt", map_location="cpu")
    assert found["device"] == "cpu"
    assert difference(torch.load(source), torch.load(tmp_path / "c.pt")) is None
    with formats.open(str(tmp_path / "b.pt")) as checkpoint:
        assert {storage.device for storage in checkpoint.storages} == {"cuda:1"}


def test_one_device_of_several(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    tags = iter(["cuda:0", "cuda:1", "cpu", "mps"])
    with mock.patch.object(
        torch.serialization, "location_tag", lambda storage: next(tags)
    ):
        torch.save([torch.ones(2), torch.ones(3), torch.ones(4), torch.ones(5)], source)

    report = move(source, tmp_path / "b.pt", "cuda:0=cuda:3", "mps=xpu:1")

    with formats.open(str(tmp_path / "b.pt")) as checkpoint:
        assert [storage.device for storage in checkpoint.storages] == [
            "cuda:3",
            "cuda:1",
            "cpu",
            "xpu:1",
        ]
    assert [(c.before, c.after, c.number, c.nbytes) for c in report.changes] == [
        ("cuda:0", "cuda:3", 1, 8),
        ("mps", "xpu:1", 1, 20),
    ]


def test_the_checkpoint_inside_a_pickle(tmp_path: Path) -> None:
    inner = pickle.dumps(torch.arange(4.0).untyped_storage())
    assert b"_load_from_bytes" in inner
    source = tmp_path / "a.pt"

    class Inside:
        def __reduce__(self) -> Any:
            return torch.storage._load_from_bytes, (tagged,)

    tagged = rewriting.in_memory(
        torch.arange(4.0), _use_new_zipfile_serialization=False
    )
    with mock.patch.object(
        torch.serialization, "location_tag", lambda storage: "cuda:0"
    ):
        tagged = rewriting.in_memory(
            torch.arange(4.0), _use_new_zipfile_serialization=False
        )
    torch.save({"a": Inside(), "b": torch.ones(2)}, source)

    report = move(source, tmp_path / "b.pt")

    assert [(c.before, c.number) for c in report.changes] == [("cuda:0", 1)]
    assert torch.load(tmp_path / "b.pt", weights_only=False)["a"].tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_tensors_of_devices_without_storages(tmp_path: Path) -> None:
    class Xla:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_device_tensor_from_cpu_tensor, (
                torch.ones(3),
                torch.float32,
                "xla:0",
                False,
            )

    source = rewriting.saved({"x": Xla()}, tmp_path / "a.pt")

    report = move(source, tmp_path / "b.pt")

    assert [(c.before, c.after, c.unit) for c in report.changes] == [
        ("xla:0", "cpu", "wrapped tensor")
    ]
    assert torch.load(tmp_path / "b.pt")["x"].tolist() == [1, 1, 1]


def test_wrapper_subclasses_move_with_what_they_hold(tmp_path: Path) -> None:
    class Wrapped:
        def __reduce__(self) -> Any:
            args = (
                torch.Tensor,
                torch.float32,
                torch.Size([3]),
                (1,),
                0,
                torch.strided,
                torch.device("cuda", 1),
                False,
            )
            return torch._tensor._rebuild_from_type_v2, (
                torch._utils._rebuild_wrapper_subclass,
                torch.Tensor,
                args,
                {"inner": torch.ones(3)},
            )

    same = torch.device("cuda", 1)
    source = cuda({"x": Wrapped(), "user": same}, tmp_path / "a.pt", "cuda:1")

    move(source, tmp_path / "b.pt")

    with formats.open(str(tmp_path / "b.pt")) as checkpoint:
        assert {entry.tensor.device for entry in checkpoint.tensors} == {"cpu"}
        values = {value.name: value for value in checkpoint.values}
    assert values["user"].type == "torch.device"
    with formats.open(str(tmp_path / "b.pt")) as checkpoint:
        report = rehome(Survey(checkpoint), moves(None, []), Limits())
    assert [row.name for row in report.left_alone] == ["user"]


def test_devices_in_values_move_on_request_only(tmp_path: Path) -> None:
    thing = {
        "args": {
            "device": torch.device("cuda", 0),
            "name": "cuda:0",
            "gpus": ["cuda:0", "cuda:1"],
            "arch": "cuda:0 gpu",
        },
        "cuda:0": torch.get_rng_state(),
        "t": torch.ones(2),
    }
    source = cuda(thing, tmp_path / "a.pt")

    report = move(source, tmp_path / "b.pt")
    assert [row.name for row in report.left_alone] == [
        "args.device",
        "args.name",
        "args.gpus.0",
        "args.gpus.1",
    ]
    assert torch.load(tmp_path / "b.pt")["args"] == thing["args"]

    report = move(source, tmp_path / "c.pt", objects=True)
    found = torch.load(tmp_path / "c.pt")
    assert found["args"] == {
        "device": torch.device("cpu"),
        "name": "cpu",
        "gpus": ["cpu", "cpu"],
        "arch": "cuda:0 gpu",
    }
    assert "cuda:0" in found and report.left_alone == ()


def test_generators_are_named_and_left(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"

    class Generator:
        def __reduce__(self) -> Any:
            return torch._C.Generator, (torch.device("cuda", 0),)

    cuda({"g": Generator(), "t": torch.ones(1)}, source)

    report = move(source, tmp_path / "b.pt", objects=True)

    assert [(row.name, "generator" in row.what) for row in report.left_alone] == [
        ("g", True)
    ]
    with formats.open(str(tmp_path / "b.pt")) as one:
        assert {storage.device for storage in one.storages} == {"cpu"}


def test_random_states_stay_on_the_cpu(tmp_path: Path) -> None:
    thing = {"model": nn.Linear(2, 2).state_dict(), "rng_state": torch.get_rng_state()}
    source = rewriting.saved(thing, tmp_path / "a.pt")

    report = move(source, tmp_path / "b.pt", to="cuda:0")

    with formats.open(str(tmp_path / "b.pt")) as checkpoint:
        assert [entry.tensor.device for entry in checkpoint.tensors] == [
            "cuda:0",
            "cuda:0",
            "cpu",
        ]
    assert [row.name for row in report.left_alone] == ["rng_state"]


def test_a_random_state_that_was_saved_on_a_gpu_is_repaired(tmp_path: Path) -> None:
    source = cuda({"rng_state": torch.get_rng_state()}, tmp_path / "a.pt")
    move(source, tmp_path / "b.pt")

    torch.set_rng_state(torch.load(tmp_path / "b.pt")["rng_state"])


def test_meta_has_nothing_to_move(tmp_path: Path) -> None:
    source = rewriting.saved({"m": torch.empty(3, device="meta")}, tmp_path / "a.pt")

    assert move(source, tmp_path / "b.pt", to="cuda:0").changes == ()
    assert (tmp_path / "b.pt").read_bytes() == source.read_bytes()


def test_meta_in_a_value_is_no_place_to_move_from(tmp_path: Path) -> None:
    thing = {"init_device": torch.device("meta"), "device": torch.device("cuda", 0)}
    source = rewriting.saved(thing, tmp_path / "a.pt")

    move(source, tmp_path / "b.pt", objects=True)

    assert rewriting.load(tmp_path / "b.pt") == {
        "init_device": torch.device("meta"),
        "device": torch.device("cpu"),
    }


def test_tags_that_no_torch_knows_move_too(tmp_path: Path) -> None:
    source = cuda([torch.ones(2)], tmp_path / "a.pt", "foo")

    move(source, tmp_path / "b.pt")

    assert torch.load(tmp_path / "b.pt")[0].tolist() == [1, 1]


def test_both_ids_of_a_storage_move(tmp_path: Path) -> None:
    """torch takes the tag of the first id that names a storage; a rewriter changes
    each.
    """
    base = torch.arange(6.0)
    source = cuda(
        {"a": base, "b": base[2:], "c": base.view(2, 3)}, tmp_path / "a.pt", "cuda:12"
    )
    move(source, tmp_path / "b.pt")

    with zipfile.ZipFile(tmp_path / "b.pt") as archive:
        assert b"cuda" not in archive.read("a/data.pkl")


# --- what is asked --------------------------------------------------------------------


@pytest.mark.parametrize(
    "tag",
    [
        "cuda",
        "cuda:0",
        "cuda:15",
        "mps",
        "mps:0",
        "xpu:3",
        "hpu",
        "npu:1",
        "mtia:2",
        "cpu",
        "privateuseone:0",
    ],
)
def test_tags_that_are_known(tag: str) -> None:
    assert moves(tag, []) == Moves({}, tag)


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "gpu",
        "cuda0",
        "cuda:",
        "cuda:-1",
        "cpu:0",
        "CPU",
        "meta",
        "cuda:0 ",
        "cuda:1000",
    ],
)
def test_tags_that_are_not(tag: str) -> None:
    with pytest.raises(UsageError, match=r"not a device|cpu has no number"):
        moves(tag, [])


def test_a_device_of_two_digits_is_another_one(tmp_path: Path) -> None:
    tags = ["cuda:1", "cuda:10", "cuda:2", "cuda:11"]
    source = tmp_path / "a.pt"
    left = iter(tags)
    with mock.patch.object(
        torch.serialization, "location_tag", lambda storage: next(left)
    ):
        torch.save(
            [torch.ones(2), torch.ones(3), torch.ones(4), torch.ones(5), "cuda:10"],
            source,
        )

    def moved(
        *asked: str, to: str | None = None, objects: bool = False
    ) -> tuple[list[Any], RewriteReport]:
        report = move(source, tmp_path / "b.pt", *asked, to=to, objects=objects)
        with formats.open(str(tmp_path / "b.pt")) as checkpoint:
            values = [str(value.node) for value in checkpoint.values]
            return [
                *(storage.device for storage in checkpoint.storages),
                *values,
            ], report

    assert moved("cuda:1=cuda:0")[0] == [
        "cuda:0",
        "cuda:10",
        "cuda:2",
        "cuda:11",
        "cuda:10",
    ]
    assert moved("cuda:10=cuda:1")[0] == [
        "cuda:1",
        "cuda:1",
        "cuda:2",
        "cuda:11",
        "cuda:10",
    ]
    assert moved("cuda:10=cuda:1", objects=True)[0] == [
        "cuda:1",
        "cuda:1",
        "cuda:2",
        "cuda:11",
        "cuda:1",
    ]
    assert moved("cuda:1=cuda:12", to="cuda:10")[0] == [
        "cuda:12",
        "cuda:10",
        "cuda:10",
        "cuda:10",
        "cuda:10",
    ]
    found, report = moved(to="cpu")
    assert found == ["cpu"] * 4 + ["cuda:10"]
    assert [row.before for row in report.changes] == [
        "cuda:1",
        "cuda:2",
        "cuda:10",
        "cuda:11",
    ]
    assert [(row.name, row.what) for row in report.left_alone] == [("4", "'cuda:10'")]


def test_maps() -> None:
    assert moves(None, []) == Moves({}, "cpu")
    assert moves(None, ["cuda:0=cuda:1"]) == Moves({"cuda:0": "cuda:1"}, None)
    assert moves("cpu", ["cuda:0=cuda:1"]).target("cuda:2") == "cpu"
    for wrong in ("cuda:0", "=cpu", "cuda:0=", "cuda:0=gpu"):
        with pytest.raises(UsageError):
            moves(None, [wrong])
    with pytest.raises(UsageError, match="twice"):
        moves(None, ["cuda:0=cpu", "cuda:0=mps"])


def test_no_tensor_byte_is_read_in_place(tmp_path: Path) -> None:
    source = cuda({"a": torch.ones(4_000_000)}, tmp_path / "a.pt")
    from ckpt.formats import save

    with formats.open(str(source)) as checkpoint:
        save.append(
            rehome(Survey(checkpoint), moves(None, []), Limits()).result, Limits()
        )
        assert checkpoint.source is not None and checkpoint.source.bytes_read < 100_000
    assert torch.load(source)["a"].sum() == 4_000_000


def test_bytes_under_two_names_of_their_type(tmp_path: Path) -> None:
    """torch saves uint8 as a ByteStorage and uint64 as bytes: over one memory the
    storage has both.
    """
    base = torch.arange(16, dtype=torch.uint8)
    source = cuda({"a": base, "b": base.view(torch.uint64)}, tmp_path / "a.pt")

    move(source, tmp_path / "b.pt")

    agrees(source, tmp_path / "b.pt")


def test_checkpoints_in_bytes_are_named(tmp_path: Path) -> None:
    with mock.patch.object(
        torch.serialization, "location_tag", lambda storage: "cuda:0"
    ):
        inner = rewriting.in_memory(torch.ones(2))
    source = cuda(
        {
            "raw": inner,
            "buffer": io.BytesIO(bytes(bytearray(inner))),
            "w": torch.ones(1),
        },
        tmp_path / "a.pt",
    )

    report = move(source, tmp_path / "b.pt")

    assert [(row.name, row.what[:13]) for row in report.left_alone] == [
        ("raw", "a checkpoint "),
        ("buffer.0", "a checkpoint "),
    ]


@pytest.mark.parametrize(
    ("names", "states", "stays"),
    [
        *(
            (key, torch.get_rng_state(), True)
            for key in ("rng", "generator", "sampler_generator", "gen", "x")
        ),
        *(
            (key, torch.zeros(16, dtype=torch.uint8), True)
            for key in ("cuda_rng_state_all", "seed", "prng")
        ),
        ("x", torch.zeros(16, dtype=torch.uint8), False),
        ("rng", torch.zeros(5056, dtype=torch.uint8), True),
        ("picture", torch.zeros(17, dtype=torch.uint8), False),
        ("gen", torch.zeros(16), False),
    ],
)
def test_a_state_of_a_random_generator_stays_on_the_cpu_under_any_name(
    names: str, states: torch.Tensor, stays: bool, tmp_path: Path
) -> None:
    state = {
        "model": {"a.weight": torch.ones(2), "b.bias": torch.ones(2)},
        names: [states],
    }
    torch.save(state, tmp_path / "a.pth")

    done = run("rehome", tmp_path / "a.pth", "--to", "cuda:1", "-o", tmp_path / "b.pth")

    rows = json.loads(run("inspect", tmp_path / "b.pth", "--json").out)["tensors"]
    found = {row["name"]: row["device"] for row in rows}
    assert (
        found[f"{names}.0"] == ("cpu" if stays else "cuda:1")
        and found["model.a.weight"] == "cuda:1"
    )
    assert (f"{names}.0: the state of a random generator" in done.out.decode()) == stays


def test_the_state_of_a_gpu_beside_that_of_the_cpu_stays(tmp_path: Path) -> None:
    states = {
        "host": torch.get_rng_state(),
        "devices": [torch.zeros(16, dtype=torch.uint8) for _ in range(5)],
    }
    torch.save(
        {"model": {"a.weight": torch.ones(2)}, "states": states}, tmp_path / "a.pth"
    )

    done = run("rehome", tmp_path / "a.pth", "--to", "cuda:1", "-o", tmp_path / "b.pth")

    assert (
        b"left alone: states.host, states.devices.0, states.devices.1 and 3 more: "
        b"the state"
    ) in done.out, done
    rows = json.loads(run("inspect", tmp_path / "b.pth", "--json").out)["tensors"]
    assert {row["device"] for row in rows if row["dtype"] == "uint8"} == {"cpu"}


@pytest.mark.parametrize("to", ["cpu", "cuda:1"])
def test_a_file_without_tensors_has_nothing_to_move(to: str, tmp_path: Path) -> None:
    """It said that the format keeps no device."""
    torch.save({"last_epoch": 3}, tmp_path / "a.pth")

    done = run("rehome", tmp_path / "a.pth", "--to", to, "-o", tmp_path / "b.pth")

    assert (
        done.code == 0 and b"nothing to move: it holds no tensor" in done.out + done.err
    )
    assert torch.load(tmp_path / "b.pth", weights_only=True) == {"last_epoch": 3}

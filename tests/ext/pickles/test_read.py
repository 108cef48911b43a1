"""Plain pickles of arrays and tensors: values as numpy and torch give them, bytes where
they lie in the file.
"""

from __future__ import annotations

import base64
import gzip
import pickle
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import pytest
import torch
from process import check_error, ckpt
from torch import nn

from ckpt import formats
from ckpt.bytes.source import File
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError, CutOffError, LimitError
from ckpt.model.limits import Limits
from ckpt.model.places import Range
from ckpt.model.tensors import TensorRef

DTYPES = (
    "f2",
    "f4",
    "f8",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "?",
    "c8",
    "c16",
    ">f4",
    ">i8",
)


def arrays(longest: int = 400) -> dict[str, Any]:
    """Arrays of every dtype, long and short, in both orders."""
    made: dict[str, Any] = {}
    for size in (3, longest):
        for dtype in DTYPES:
            made[f"{dtype}.{size}"] = (np.arange(2 * size).reshape(2, size) % 7).astype(
                dtype
            )
    made["fortran"] = np.asfortranarray(np.arange(600.0).reshape(20, 30))
    made["strided"] = np.arange(900, dtype=np.float32)[::3]
    made["number"] = np.array(3.5)
    made["empty"] = np.zeros((0, 4), np.float32)
    return made


def same(loaded: Any, expected: Any) -> bool:
    """Whether both are equal, with tensors in the place of arrays."""
    if isinstance(expected, np.ndarray):
        native = np.array(expected, dtype=expected.dtype.newbyteorder("="), order="C")
        return isinstance(loaded, torch.Tensor) and same(
            loaded, torch.from_numpy(native)
        )
    if isinstance(expected, torch.Tensor):
        return loaded.dtype == expected.dtype and torch.equal(loaded, expected)
    if isinstance(expected, Mapping):
        return list(loaded) == list(expected) and all(
            same(loaded[key], expected[key]) for key in expected
        )
    if isinstance(expected, (list, tuple)):
        return len(loaded) == len(expected) and all(map(same, loaded, expected))
    return type(loaded) is type(expected) and bool(loaded == expected)


def check_values(path: Path, expected: Any) -> None:
    """What convert makes of a file equals what Python loads."""
    out = path.parent / "converted.pth"
    assert ckpt("convert", path, "-o", out, "--force").code == 0
    loaded = torch.load(out, weights_only=True)
    assert same(loaded, expected)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_are_tensors(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "zoo.pkl"
    made = arrays(400 if protocol else 40)  # at protocol 0 a line ends an array
    saved = {
        "model": made,
        "__author__": "the zoo",
        "lists": [np.ones(300), {"a": (1, "x" * 500)}],
    }
    path.write_bytes(pickle.dumps(saved, protocol))
    with formats.open(str(path)) as checkpoint:
        assert (checkpoint.format, checkpoint.weights_only) == ("pickle", None)
        assert len(checkpoint.tensors) == len(made) + 1
        assert [
            row.kind for row in Survey(checkpoint).sections if row.name == "model"
        ] == ["model"]
        in_file = [
            entry.tensor.storage.place
            for entry in checkpoint.tensors
            if isinstance(entry.tensor, TensorRef)
        ]
        sources = {
            type(place.source).__name__ for place in in_file if isinstance(place, Range)
        }
        assert ("File" in sources) is (
            protocol >= 3
        )  # below, the bytes are spelled as text
    check_values(path, saved)


@pytest.mark.parametrize(
    "protocol", range(2, pickle.HIGHEST_PROTOCOL + 1)
)  # torch refuses older ones
@pytest.mark.parametrize("width", [2, 300])
@pytest.mark.filterwarnings(
    "ignore:Exception ignored"
)  # a file that the expression leaves open
def test_tensors_of_torch(tmp_path: Path, protocol: int, width: int) -> None:
    net = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
    net[0].bias = nn.Parameter(net[0].weight[0].detach())  # shares its storage
    state = net.state_dict()
    path = tmp_path / "net.pkl"
    path.write_bytes(pickle.dumps(state, protocol))
    check_values(path, state)
    path.write_bytes(pickle.dumps({"best": net.state_dict(), "epoch": 3}, protocol))
    check_values(path, {"best": state, "epoch": 3})
    with formats.open(str(path)) as checkpoint:
        load = Survey(checkpoint).load.expression
    assert load is not None
    loaded = eval(load, {"pickle": pickle})
    assert set(loaded) == set(state)


def test_a_parameter_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(
        pickle.dumps({"w": nn.Parameter(torch.ones(400)), "b": torch.ones(2)})
    )
    assert ckpt("convert", path, "-o", tmp_path / "p.pth").code == 0
    loaded = torch.load(tmp_path / "p.pth", weights_only=True)
    assert (type(loaded["w"]), loaded["w"].requires_grad) == (nn.Parameter, True)


def test_shared_things_stay_shared(tmp_path: Path) -> None:
    shared, inner = np.ones(300, np.float32), {"deep": np.zeros(300, np.float32)}
    saved = {
        "a.weight": shared,
        "b.weight": shared,
        "pair": (shared, 1),
        "one": inner,
        "two": inner,
    }
    path = tmp_path / "shared.pkl"
    path.write_bytes(pickle.dumps(saved))
    assert ckpt("convert", path, "-o", tmp_path / "shared.pth").code == 0
    loaded = torch.load(tmp_path / "shared.pth", weights_only=True)
    assert loaded["a.weight"] is loaded["b.weight"] is loaded["pair"][0]
    assert loaded["one"] is loaded["two"]


def test_memory_does_not_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.pkl"
    path.write_bytes(
        pickle.dumps(
            {f"layers.{i}.weight": np.full(400_000, i, np.float32) for i in range(20)},
            4,
        )
    )
    with formats.open(str(path)) as checkpoint:
        first = checkpoint.tensors[3].tensor
        assert isinstance(first, TensorRef)
        assert isinstance(first.storage.place, Range)
        assert isinstance(first.storage.place.source, File)
        assert (
            first.storage.place.source.bytes_read < 21 * 17_000 + 70_000
        )  # the end is looked at
    with formats.open(str(path), Limits(pickle_bytes=20_000)) as checkpoint:
        assert len(checkpoint.tensors) == 20


def test_bytes_that_are_no_array_stay_bytes(tmp_path: Path) -> None:
    saved = {
        "w": np.ones(3),
        "raw": bytes(range(256)) * 2,
        "more": bytearray(300),
        "long": "\u00e4" * 9000,
        "n": 7**300,
    }
    for protocol in range(6):
        path = tmp_path / "bytes.pkl"
        path.write_bytes(pickle.dumps(saved, protocol))
        check_values(path, saved)


PYTHON2 = (
    b"\x80\x02}q\x00U\x05modelq\x01}q\x02U\x08a.weightq\x03cnumpy.core.multiarray\n"
    b"_reconstruct\nq\x04"
    b"cnumpy\nndarray\nq\x05K\x00\x85U\x01b\x87Rq\x06(K\x01M\x90\x01\x85cnumpy\ndtype\n"
    b"q\x07U\x02f4K\x00K\x01\x87R"
    b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x40\x06\x00\x00%btbssU\x06authorU\x03R\xe9ds."
)


@pytest.mark.filterwarnings("ignore:Exception ignored")
def test_python_2(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 400, dtype=np.float32)
    path = tmp_path / "zoo.pkl"
    path.write_bytes(PYTHON2.replace(b"%b", values.tobytes()))
    with formats.open(str(path)) as checkpoint:
        load = Survey(checkpoint).load
        assert (
            load.expression
            == f'pickle.load(open("{path}", "rb"), encoding="latin1")["model"]'
        )
    loaded = eval(load.expression, {"pickle": pickle})
    assert np.array_equal(loaded["a.weight"], values)
    assert ckpt("slim", path, "-o", tmp_path / "slim.pth").code == 0
    assert torch.equal(
        torch.load(tmp_path / "slim.pth")["a.weight"], torch.from_numpy(values)
    )


# joblib.dump({"w": arange(4, float32), "t": array(["a", "bc"]), "f": a (2, 3) float64
# in Fortran's order, "b": arange(3, ">i2")}), by joblib 1.6 and numpy 2
JOBLIB = base64.b64decode(
    "gASV2AAAAAAAAAB9lCiMAXeUjBNqb2JsaWIubnVtcHlfcGlja2xllIwRTnVtcHlBcnJheVdyYXBwZXKUk5QpgZR9lCiMCHN1YmNs"
    "YXNzlIwFbnVtcHmUjAduZGFycmF5lJOUjAVzaGFwZZRLBIWUjAVvcmRlcpSMAUOUjAVkdHlwZZRoCIwFZHR5cGWUk5SMAmY0lImI"
    "h5RSlChLA4wBPJROTk5K/////0r/////SwB0lGKMCmFsbG93X21tYXCUiIwbbnVtcHlfYXJyYXlfYWxpZ25tZW50X2J5dGVzlEsQ"
    "dWIM////////////////AAAAAAAAgD8AAABAAABAQJVDAAAAAAAAAIwBdJRoBCmBlH2UKGgHaApoC0sChZRoDWgOaA9oEYwCVTKU"
    "iYiHlFKUKEsDaBVOTk5LCEsESwh0lGJoF4hoGEsQdWID////YQAAAAAAAABiAAAAYwAAAJVNAAAAAAAAAIwBZpRoBCmBlH2UKGgH"
    "aApoC0sCSwOGlGgNjAFGlGgPaBGMAmY4lImIh5RSlChLA2gVTk5OSv////9K/////0sAdJRiaBeIaBhLEHViCf///////////wAA"
    "AAAAAAAAAAAAAAAACEAAAAAAAADwPwAAAAAAABBAAAAAAAAAAEAAAAAAAAAUQJVLAAAAAAAAAIwBYpRoBCmBlH2UKGgHaApoC0sD"
    "hZRoDWgOaA9oEYwCaTKUiYiHlFKUKEsDjAE+lE5OTkr/////Sv////9LAHSUYmgXiGgYSxB1Ygv//////////////wAAAAEAAnUu"
)
# the same of {"w", "t"} by joblib 1.6 with protocol 2
JOBLIB2 = base64.b64decode(
    "gAJ9cQAoWAEAAAB3cQFjam9ibGliLm51bXB5X3BpY2tsZQpOdW1weUFycmF5V3JhcHBlcgpxAimBcQN9cQQoWAgAAABzdWJjbGFz"
    "c3EFY251bXB5Cm5kYXJyYXkKcQZYBQAAAHNoYXBlcQdLBIVxCFgFAAAAb3JkZXJxCVgBAAAAQ3EKWAUAAABkdHlwZXELY251bXB5"
    "CmR0eXBlCnEMWAIAAABmNHENiYiHcQ5ScQ8oSwNYAQAAADxxEE5OTkr/////Sv////9LAHRxEWJYCgAAAGFsbG93X21tYXBxEohY"
    "GwAAAG51bXB5X2FycmF5X2FsaWdubWVudF9ieXRlc3ETSxB1Ygn///////////8AAAAAAACAPwAAAEAAAEBAWAEAAAB0cRRoAimB"
    "cRV9cRYoaAVoBmgHSwKFcRdoCWgKaAtoDFgCAAAAVTJxGImIh3EZUnEaKEsDaBBOTk5LCEsESwh0cRtiaBKIaBNLEHViDv//////"
    "////////////YQAAAAAAAABiAAAAYwAAAHUu"
)


def test_joblib(tmp_path: Path) -> None:
    path = tmp_path / "model.joblib"
    path.write_bytes(JOBLIB)
    with formats.open(str(path)) as checkpoint:
        assert checkpoint.traits.label == "joblib pickle"
        assert {
            entry.name: (entry.tensor.dtype.name, entry.tensor.shape)
            for entry in checkpoint.tensors
        } == {
            "w": ("float32", (4,)),
            "f": ("float64", (2, 3)),
            "b": ("int16", (3,)),
        }
        assert [row.name for row in checkpoint.values] == ["t"]
        load = Survey(checkpoint).load
        assert (load.expression, load.note) == (
            f'joblib.load("{path}")',
            "only if you trust its author; import joblib",
        )
    out = tmp_path / "model.pth"
    assert ckpt("convert", path, "-o", out).code == 0
    loaded = torch.load(out, weights_only=False)
    assert torch.equal(loaded["w"], torch.arange(4.0))
    assert torch.equal(
        loaded["f"], torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    )
    assert torch.equal(loaded["b"], torch.arange(3, dtype=torch.int16))
    assert loaded["t"].tolist() == ["a", "bc"]
    path.write_bytes(JOBLIB2)
    assert ckpt("convert", path, "-o", out, "--force").code == 0
    assert torch.equal(torch.load(out, weights_only=False)["w"], torch.arange(4.0))


def test_joblib_is_never_guessed() -> None:
    cases: dict[str, tuple[bytes, str]] = {
        "shape": (
            JOBLIB.replace(b"shape\x94K\x04", b"shape\x94K\xff"),
            "cut off|damaged",
        ),
        "name": (
            JOBLIB.replace(
                b"\x8c\x13joblib.numpy_pickle", b"V\\u006aoblib.numpy_pickle\n"
            ),
            "spelled",
        ),
        "order": (
            JOBLIB.replace(b"\x8c\x01C", b"\x8c\x01A", 1),
            "lacks its shape, order",
        ),
        "dtype": (JOBLIB.replace(b"\x8c\x02f4", b"\x8c\x02O8"), "array of objects"),
    }
    for name, (data, says) in cases.items():
        assert data != JOBLIB, name
        with pytest.raises(CkptError, match=says):
            opened(data)
    for size in range(2, len(JOBLIB)):
        with pytest.raises(CkptError):
            opened(JOBLIB[:size])


def opened(data: bytes, limits: Limits | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.pkl")
        path.write_bytes(data)
        formats.open(str(path), limits).close()


@pytest.mark.parametrize(
    "saved", [{"a": 1}, [1, 2], {"text": "x" * 5000}, {"b": b"x" * 5000}, np.float32(2)]
)
def test_a_pickle_without_arrays_is_read_too(tmp_path: Path, saved: Any) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(saved))
    done = ckpt("inspect", "a.pkl", cwd=tmp_path)
    assert (
        done.code == 0
        and "plain pickle" in done.out.decode()
        and "0 tensors" in done.out.decode()
    )
    assert ckpt("lint", "a.pkl", cwd=tmp_path).code == 0


def test_damage_is_named_by_its_byte_in_the_file() -> None:
    data = pickle.dumps({"a": np.ones(900), "b": [1, 2, 3]}, 4)
    at = data.index(b"\x8c\x01b")
    with pytest.raises(CkptError, match=f"at byte {at + 4:,}"):
        opened(data[: at + 4] + b"\xff" + data[at + 5 :])
    with pytest.raises(CutOffError, match="the file ends at 1,000"):
        opened(data[:1000])


def test_every_cut_is_noticed() -> None:
    data = pickle.dumps({"a": np.ones(90), "b": [1, 2, 3], "t": torch.ones(2)}, 2)
    for size in range(2, len(data), 7):
        with pytest.raises(CkptError):
            opened(data[:size])


def test_sizes_must_agree() -> None:
    data = pickle.dumps({"a": np.ones(90, np.float32)}, 4)
    with pytest.raises(CkptError, match="an array of 364 bytes"):
        opened(data.replace(b"KZ\x85", b"K[\x85"))


FLOATS = op.binary(np.array([1, 2], "<f4").tobytes())
USUAL = (3, "<", None, None, None, -1, -1, 0)


def dtype(*state: Any) -> bytes:
    return (
        op.call(op.glob("numpy", "dtype"), "f4", False, True)
        + op.value(state)
        + op.build()
    )


def of_two(kind: bytes) -> bytes:
    start = op.call(
        op.glob("numpy.core.multiarray", "_reconstruct"),
        *(op.glob("numpy", "ndarray"), (0,), op.binary(b"b")),
    )
    return start + op.value((1, (2,), kind, False, FLOATS)) + op.build()


def from_buffer() -> bytes:
    return op.call(
        op.glob("numpy.core.numeric", "_frombuffer"), FLOATS, dtype(*USUAL), (2,), "C"
    )


CHANGED: dict[str, bytes] = {
    "an item of an array": of_two(dtype(*USUAL))
    + op.value(0)
    + op.value(9.0)
    + op.setitem(),
    "an item of an array of a buffer": from_buffer()
    + op.value(0)
    + op.value(9.0)
    + op.setitem(),
    "a dtype that others have": op.value(
        [
            of_two(dtype(*USUAL) + op.put(5)),
            op.get(5) + op.value((3, ">", *USUAL[2:])) + op.build(),
        ]
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_array_that_changes_is_refused(name: str) -> None:
    opened(op.pickled({"w": of_two(dtype(*USUAL))}))
    with pytest.raises(CkptError, match=r"is replaced|after its use"):
        opened(op.pickled({"w": CHANGED[name]}))


def test_a_dtype_that_numpy_reads_otherwise_is_no_tensor(tmp_path: Path) -> None:
    for state in ((">", None, None, -1, -1), (3, op.binary(b">"), *USUAL[2:])):
        (tmp_path / "x.pkl").write_bytes(op.pickled({"w": of_two(dtype(*state))}))
        with formats.open(str(tmp_path / "x.pkl")) as checkpoint:
            assert not checkpoint.tensors


def test_a_matrix_or_a_masked_array_is_no_tensor(tmp_path: Path) -> None:
    saved = {
        "w": np.ones(3),
        "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
        "text": np.array(["a", "b" * 99]),
    }
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(saved))
    with formats.open(str(tmp_path / "m.pkl")) as checkpoint:
        assert [entry.name for entry in checkpoint.tensors] == ["w"]


def test_code_is_named_and_never_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            import os

            return os.system, (f"touch {tmp_path / 'ran'}",)

    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"w": np.ones(300), "x": Evil()}))
    done = ckpt("inspect", path)
    assert b"DANGER  loading this file runs posix.system" in done.out
    assert b"pickle.load" not in done.out
    path.write_bytes(pickle.dumps({"w": np.ones(300), "x": Survey}))
    done = ckpt("inspect", path)
    assert b"imports ckpt.evidence.survey.Survey, which ckpt does not know" in done.out
    assert b"pickle.load" not in done.out
    assert not (tmp_path / "ran").exists()


def test_limits(tmp_path: Path) -> None:
    data = pickle.dumps(
        {"w": np.ones(3), "text": ["x" * 200] + [str(i) for i in range(5000)]}
    )
    opened(data)
    for limits in (
        Limits(pickle_bytes=9_000),
        Limits(operations=5_000),
        Limits(memory=20_000),
    ):
        with pytest.raises(LimitError):
            opened(data, limits)


def test_bytes_after_the_pickle_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "two.pkl").write_bytes(
        pickle.dumps({"w": np.ones(300)}) + pickle.dumps({"v": np.ones(300)})
    )
    done = ckpt("inspect", tmp_path / "two.pkl")
    assert b"1 more pickle from byte" in done.out
    assert b" v " not in done.out


def test_a_pickle_is_never_rewritten(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a.weight": np.ones(3)}))
    check_error(
        ckpt("strip", "a.pkl", cwd=tmp_path), "where to write? (-o a.stripped.pkl)"
    )
    (tmp_path / "a.joblib").write_bytes(JOBLIB)
    check_error(
        ckpt("strip", "a.joblib", cwd=tmp_path), "where to write? (-o a.stripped.pth)"
    )
    done = ckpt("rename", "a.pkl", "--sub", "s/a/b/", "--in-place", cwd=tmp_path)
    check_error(done, "pickle files cannot be changed in place (-o out)")


@pytest.mark.parametrize(
    ("compress", "opens"),
    [(gzip.compress, "pickle.load(gzip.open("), (zlib.compress, "joblib.load(")],
)
def test_a_packed_pickle_names_what_opens_it(
    compress: Callable[[bytes], bytes], opens: str, tmp_path: Path
) -> None:
    """Python has no function that opens a stream of zlib by its path."""
    path = tmp_path / "net.pkl"
    path.write_bytes(compress(pickle.dumps({"w": torch.ones(3)})))

    with formats.open(str(path)) as checkpoint:
        load = Survey(checkpoint).load.expression

    assert load is not None and load.startswith(opens), load

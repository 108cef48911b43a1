"""Headers that the safetensors library wrote are read by one expression: the result is
that of the JSON parser.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from inside import inside
from process import SAMPLES
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ckpt import formats
from ckpt.formats.common import safetensors as reader
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits


def read(path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> object:
    monkeypatch.setattr(reader, "_LEAST", least)
    try:
        checkpoint = formats.open(str(path), Limits())
    except CkptError as error:
        return f"{type(error).__name__}: {error}"
    rows = [
        (
            row.path,
            row.name,
            row.tensor[1:],
            row.tensor.storage[:4],
            row.tensor.storage.place[1:],
        )
        for row in checkpoint.tensors
    ]  # type: ignore[index,union-attr]
    return rows, checkpoint.values, [len(checkpoint.storages), checkpoint.nbytes]


def both(data: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    path = folder / "a.safetensors"
    path.write_bytes(data)
    alone = read(path, monkeypatch, 1 << 40)
    assert read(path, monkeypatch, 0) == alone
    for piece in (130, 131, 200, 1_000):  # most tensors have 70 bytes
        with monkeypatch.context() as small:
            small.setattr(reader, "_PIECE", piece)
            assert read(path, small, 0) == alone
    return alone


def with_header(header: str | bytes, data: bytes = bytes(64)) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return len(raw).to_bytes(8, "little") + raw + data


def usual() -> bytes:
    arrays = {
        f"layers.{n}.w": np.zeros((n % 5, 3), np.float16 if n % 3 else np.int64)
        for n in range(60)
    }
    return save(
        {**arrays, "scalar": np.zeros((), np.float32)},
        {"format": "pt", "note": "a, b: {c}"},
    )


def row(begin: int, end: int, dtype: str = "F32", shape: str = "[4]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'


A, B, C, D = (row(begin, begin + 16) for begin in (0, 16, 32, 48))
FOUR = f'"a":{A},"b":{B},"c":{C},"d":{D}'
MANY = "[" + 70 * "1," + "4]"
HEADERS = {
    "four": f"{{{FOUR}}}",
    "padded": f"{{{FOUR}}}   ",
    "padded by more than a piece": f"{{{FOUR}}}" + 1_500 * " ",
    "more behind the padding": f"{{{FOUR}}}" + 1_500 * " " + "x",
    "metadata": f'{{"__metadata__":{{"a":"b"}},{FOUR}}}',
    "empty metadata": f'{{"__metadata__":{{}},{FOUR}}}',
    "metadata twice": f'{{"__metadata__":{{"a":"b"}},"__metadata__":{{"a":"c"}},{FOUR}}}',
    "text twice": f'{{"__metadata__":{{"a":"b","a":"c"}},{FOUR}}}',
    "escapes in metadata": f'{{"__metadata__":{{"a":"x\\"y\\u0041"}},{FOUR}}}',
    "surrogate in metadata": f'{{"__metadata__":{{"a":"\\ud800"}},{FOUR}}}',
    "metadata of numbers": f'{{"__metadata__":{{"a":1}},{FOUR}}}',
    "metadata of lists": f'{{"__metadata__":[],{FOUR}}}',
    "metadata last": f'{{{FOUR},"__metadata__":{{"a":"b"}}}}',
    "metadata is a tensor": f'{{"__metadata__":{A},"b":{B},"c":{C},"d":{D}}}',
    "other first": f'{{"x":1,{FOUR}}}',
    "tensor in a tensor": f'{{"a":{{"b":{A}}}}}',
    "tensors in metadata": f'{{"__metadata__":{{"x":"y",{FOUR}}}}}',
    "name twice": f'{{"a":{A},"a":{B},"c":{C},"d":{D}}}',
    "spaces": f'{{ "a": {A}, "b": {B}, "c": {C}, "d": {D} }}',
    "escape": f'{{"a\\u0041":{A},"b":{B},"c":{C},"d":{D}}}',
    "escaped quote": f'{{"a\\"":{A},"b":{B},"c":{C},"d":{D}}}',
    "chinese": f'{{"键":{A},"b":{B},"c":{C},"d":{D}}}',
    "control": f'{{"a\x01":{A},"b":{B},"c":{C},"d":{D}}}',
    "no comma": f'{{"a":{A}"b":{B},"c":{C},"d":{D}}}',
    "two commas": f'{{"a":{A},,"b":{B},"c":{C},"d":{D}}}',
    "last comma": f"{{{FOUR},}}",
    "unclosed": f"{{{FOUR}",
    "more": f"{{{FOUR}}}}}",
    "in a list": f"[{FOUR}]",
    "gap": f'{{"a":{A},"b":{B},"c":{row(36, 52)},"d":{D}}}',
    "overlap": f'{{"a":{A},"b":{B},"c":{row(28, 44)},"d":{D}}}',
    "short": f'{{"a":{A},"b":{B},"c":{row(32, 44)},"d":{D}}}',
    "backwards": f'{{"a":{A},"b":{B},"c":{row(48, 32)},"d":{D}}}',
    "another size": f'{{"a":{A},"b":{B},"c":{row(32, 47)},"d":{row(47, 63)}}}',
    "unknown dtype": f'{{"a":{row(0, 16, "F99")},"b":{B},"c":{C},"d":{D}}}',
    "leading zero": f'{{"a":{A},"b":{B},"c":{C},"d":{row(48, 64, shape="[04]")}}}',
    "empty shape": f'{{"a":{A},"b":{B},"c":{C},"d":{row(48, 52, shape="[]")}}}',
    "zero": f'{{"a":{A},"b":{B},"c":{C},"d":{D},"e":{row(64, 64, shape="[0,5]")}}}',
    "huge": f'{{"a":{A},"b":{row(16, 32, shape="[99999999999999999,999999999999]")},"c":{C},"d":{D}}}',
    "long number": f'{{"a":{A},"b":{row(16, 32, shape="[9999999999999999999999]")},"c":{C},"d":{D}}}',
    "many dimensions": f'{{"a":{row(0, 16, shape=MANY)},"b":{B},"c":{C},"d":{D}}}',
    "float4": f'{{"a":{row(0, 16, "F4", "[4,8]")},"b":{B},"c":{C},"d":{D}}}',
    "float4 odd": f'{{"a":{row(0, 18, "F4", "[12,3]")},"b":{row(18, 34)},"c":{row(34, 50)}}}',
    "nothing": "{}",
    "only metadata": '{"__metadata__":{"a":"b"}}',
}  # fmt: skip


@pytest.mark.parametrize("name", list(HEADERS))
def test_headers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both(with_header(HEADERS[name]), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "path", sorted(SAMPLES.glob("**/*.safetensors")), ids=lambda path: path.name
)
def test_samples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(both(path.read_bytes(), tmp_path, monkeypatch), tuple)


def test_what_the_library_writes_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(usual())
    alone = read(path, monkeypatch, 1 << 40)
    monkeypatch.setattr(reader, "parse_json", None)
    assert read(path, monkeypatch, 0) == alone


@pytest.mark.slow
def test_changed_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(5)
    whole = usual()
    length = int.from_bytes(whole[:8], "little")
    assert json.loads(whole[8 : 8 + length])
    good = bad = 0
    for _ in range(1_500):
        data = bytearray(whole)
        for _ in range(random_.choice((1, 1, 2))):
            at = random_.randrange(8, 8 + length)
            data[at] = random_.choice(
                (
                    random_.randrange(32, 127),
                    random_.choice(b'{}[]",:0123456789 '),
                    data[at],
                )
            )
        found = both(bytes(data), tmp_path, monkeypatch)
        good += isinstance(found, tuple)
        bad += isinstance(found, str)
    assert good > 100 and bad > 100


def test_the_tensors_fill_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = HEADERS["four"]
    assert not isinstance(both(with_header(header), tmp_path, monkeypatch), str)
    more = both(with_header(header, bytes(65)), tmp_path, monkeypatch)
    assert (
        "the file has 1 byte (zeros) after the last tensor, which safetensors refuses"
        in str(more)
    )
    less = both(with_header(header, bytes(63)), tmp_path, monkeypatch)
    assert "cut off: the tensors need 64 bytes of data, the file has 63" in str(less)


@pytest.mark.parametrize(
    ("header", "is_read"),
    [
        (f'{{"a":{row(0, 0, shape="[-0]")}}}', False),
        ('{"a":{"data_offsets":[ -0 ,0],"dtype":"F32","shape":[0]}}', False),
        (f'{{"__metadata__":{{"a":"[-0]"}},"b,-0]":{row(0, 0, shape="[0]")}}}', True),
    ],
)
def test_minus_zero_is_no_whole_number(
    header: str, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = with_header(header, b"")
    assert isinstance(both(data, tmp_path, monkeypatch), tuple) == is_read
    if is_read:
        load(data)
        return
    with pytest.raises(SafetensorError):
        load(data)


@pytest.mark.needs("lint")
def test_raw_numbers_with_a_brace_are_no_header(tmp_path: Path) -> None:
    """The ninth byte of a file of floats is a brace in one of 256: only what JSON has
    behind it makes a header.
    """
    raw = bytes.fromhex("cd0c59b9000000007b3cccb9ff9f53b9") * 32
    (tmp_path / "layer.bparam").write_bytes(raw)
    (tmp_path / "layer.safetensors").write_bytes(raw)
    (tmp_path / "router.inc").write_text("router1 {\n    mode: interior\n}\n")
    done = inside("lint", ".", cwd=tmp_path)
    assert done.code == 2
    wrong, closing = done.complaints
    assert wrong.startswith("ckpt: layer.safetensors: ")
    assert closing.endswith("not looked at: 1 *.bparam, 1 *.inc (--others)")


@pytest.mark.needs("lint")
@pytest.mark.parametrize("rest", [b"{", b'{"a"', b"{}", b"{ ", b"{\n"])
def test_a_cut_header_is_one(rest: bytes, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes((1_000).to_bytes(8, "little") + rest)
    done = inside("lint", ".", cwd=tmp_path)
    assert done.code == 2 and "cut off: the safetensors header" in done.complaints[0]

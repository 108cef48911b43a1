"""A large pickle is read in columns: the result is that of the machine alone, whatever
the file holds.
"""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from pickletools import genops
from typing import Any

import opcodes as op
import pytest
import torch
from process import SAMPLES
from states import blocks, shaped, states, usual
from trees import dump

from ckpt import formats
from ckpt.formats.common import pickled
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.pickle.skim import Cut
from ckpt.pickle.skim.tensors import Loose, TensorSkimmer

NEVER = 1 << 40


@pytest.fixture
def skimmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many tensors were cut into columns at a time."""
    counts: list[int] = []
    take = TensorSkimmer._take

    def counted(self: TensorSkimmer, cut: Cut, *args: Any) -> None:
        counts.append(len(cut.keys))
        take(self, cut, *args)

    monkeypatch.setattr(TensorSkimmer, "_take", counted)
    yield counts


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the pickles that the machine had to read once more, alone."""
    sizes: list[int] = []
    run = pickled.run

    def counted(data: bytes, *args: Any) -> Any:
        sizes.append(len(data))
        return run(data, *args)

    monkeypatch.setattr(pickled, "run", counted)
    yield sizes


def read(path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> Checkpoint | str:
    monkeypatch.setattr(pickled, "LEAST_BYTES", least)
    try:
        return formats.open(str(path), Limits())
    except CkptError as error:
        return f"{type(error).__name__}: {error}"


def saved(state: object, path: Path, **options: Any) -> Path:
    torch.save(state, path, **options)
    return path


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """What both ways of reading give, which is the same."""
    alone = dump(read(path, monkeypatch, NEVER))
    assert dump(read(path, monkeypatch, 0)) == alone
    return alone


@pytest.mark.parametrize(
    "path", sorted(SAMPLES.glob("*.pt*")), ids=lambda path: path.name
)
def test_samples_give_the_tree_of_the_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(states()))
def test_states_give_the_tree_of_the_machine(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(states()[kind], tmp_path / "state.pth")
    with_meta = both(path, monkeypatch)
    assert isinstance(with_meta, dict) and with_meta["tensors"]


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("blocks", 0.85),
        ("two thousand", 0.95),
        ("shapes", 0.95),
        ("views", 0.6),
        ("dims", 0.6),
        ("strided", 0.5),
        ("sections", 0.8),
        ("grad", 0.6),
        ("adam", 0.7),
        ("same storage", 0.6),
        ("tied", 0.5),
        ("wide", 0.9),
        ("names", 0.3),
    ],
)
def test_most_of_a_state_is_read_in_columns(
    kind: str,
    least: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    skimmed: list[int],
    again: list[int],
) -> None:
    checkpoint = read(saved(states()[kind], tmp_path / "state.pth"), monkeypatch, 0)
    assert isinstance(checkpoint, Checkpoint)
    assert sum(skimmed) >= least * len(checkpoint.tensors)
    assert not again


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("kind", "most"), [("shapes", 0), ("two thousand", 0), ("blocks", 400)]
)
def test_state_dicts_are_cut_as_such(
    kind: str,
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    skimmed: list[int],
) -> None:
    """Where a few tensors are otherwise, both ways do not take turns."""
    cut, loose = Loose.cut, []

    def counted(self: Loose, data: bytes, slot: int) -> Cut | None:
        found = cut(self, data, slot)
        loose.append(0 if found is None else len(found.keys))
        return found

    monkeypatch.setattr(Loose, "cut", counted)
    read(saved(states()[kind], tmp_path / "state.pth"), monkeypatch, 0)
    assert sum(loose) <= most
    assert len(skimmed) < 30


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_gives_the_tree_of_the_machine(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(
        saved(blocks(30, usual), tmp_path / "state.pth", pickle_protocol=protocol),
        monkeypatch,
    )


# --- archives that torch did not write ------------------------------------------------


def rewritten(
    path: Path,
    made: Path,
    *,
    deflated: bool = False,
    longer: int = 0,
    checksums: bool = True,
) -> Path:
    """The archive with other records."""
    method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w", method) as new:
        for name in old.namelist():
            new.writestr(
                name, old.read(name) + bytes(longer if "/data/" in name else 0)
            )
    if not checksums:
        data = bytearray(made.read_bytes())
        at = data.find(b"PK\1\2")
        while at >= 0:
            if b"/data/" in data[at + 46 : at + 60]:
                data[at + 16 : at + 20] = bytes(4)
            at = data.find(b"PK\1\2", at + 46)
        made.write_bytes(data)
    return made


@pytest.mark.parametrize(
    "change", [{"deflated": True}, {"longer": 8}, {"checksums": False}, {}], ids=str
)
def test_records_are_those_that_the_machine_finds(
    change: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    skimmed: list[int],
) -> None:
    path = saved(states()["same storage"], tmp_path / "state.pth")
    found = both(rewritten(path, tmp_path / "made.pth", **change), monkeypatch)
    assert isinstance(found, dict) and sum(skimmed) > 60


@pytest.mark.needs("archives")
def test_storages_of_an_archive_in_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their offsets count from the begin of the outer file."""
    inner = saved(states()["blocks"], tmp_path / "policy.pth")
    outer = tmp_path / "agent.zip"
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("_stable_baselines3_version", "2.3.0")
        archive.write(inner, "policy.pth")
    found = both(outer, monkeypatch)
    assert isinstance(found, dict) and len(found["tensors"]) == 300


# --- pickles that torch did not write -------------------------------------------------


def with_pickle(path: Path, change: Callable[[bytes], bytes], made: Path) -> Path:
    """The archive with another pickle."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith("data.pkl") else data)
    return made


def small(tmp_path: Path, tied: bool = True) -> Path:
    """60 tensors, of which two thirds are read in columns: in those of any pairs if
    some are tied, else of plain ones.
    """
    one = usual("x")
    state = {
        f"layer.{n}.w": one.detach()
        if tied and n % 9 == 4
        else usual("attn.weight" if n % 2 else "x")
        for n in range(60)
    }
    return saved(state, tmp_path / "small.pth")


def last(data: bytes, part: bytes) -> int:
    at = data.rfind(part)
    assert at > 0
    return at


def put_earlier(data: bytes) -> bytes:
    """The name of a late tensor also fills the slot of the word `storage`."""
    at = last(data, b"layer.50.w") + len(b"layer.50.w")
    return data[: at + 1] + (4).to_bytes(4, "little") + data[at + 5 :]


def shape_put_earlier(data: bytes) -> bytes:
    """The shape of a late tensor does so."""
    at = data.index(b"\x86r", last(data, b"layer.51.w")) + 2
    return data[:at] + (4).to_bytes(4, "little") + data[at + 4 :]


def put_later(data: bytes) -> bytes:
    """Before the tensors, a slot is filled that one of them fills too, and it is asked
    for at the end.
    """
    at = data.index(b"X\x09\0\0\0layer.0.w")
    return (
        data[:at]
        + b"X\x01\0\0\0zr"
        + (400).to_bytes(4, "little")
        + b"0"
        + data[at:-2]
        + b"X\x01\0\0\0yj"
        + (400).to_bytes(4, "little")
        + b"u."
    )


def in_a_list(data: bytes) -> bytes:
    """The pairs lie in a list."""
    return data.replace(b"}q\x00(", b"]q\x00(", 1)[:-2] + b"e."


def pairs_of_a_list(data: bytes) -> bytes:
    """Pairs are set on a list, which no list takes."""
    return in_a_list(data).replace(b"X\x0a\0\0\0layer.50.w", b"u(X\x0a\0\0\0layer.50.w")


def long_name(data: bytes) -> bytes:
    """The length of a name reaches into what follows it."""
    return data.replace(b"X\x0a\0\0\0layer.50.w", b"X\x0b\0\0\0layer.50.w")


def short_name(data: bytes) -> bytes:
    return data.replace(b"X\x0a\0\0\0layer.50.w", b"X\x09\0\0\0layer.50.w")


def two_names(data: bytes) -> bytes:
    """One is too long, the other too short."""
    return short_name(data).replace(b"X\x0a\0\0\0layer.51.w", b"X\x0b\0\0\0layer.51.w")


def two_keys(data: bytes) -> bytes:
    """The same of the keys of storages."""
    keys = sorted(
        {
            row[1]
            for row in genops(data)
            if isinstance(row[1], str) and row[1].isdigit()
        },
        key=int,
    )
    one, two = (f"X\x02\0\0\0{key}r".encode() for key in keys[-6:-4])
    return data.replace(one, one.replace(b"\x02", b"\x03")).replace(
        two, two.replace(b"\x02", b"\x01")
    )


def no_digit(data: bytes) -> bytes:
    """The key of a storage is no number."""
    return data.replace(b"X\x02\0\0\x0040r", b"X\x02\0\0\x004xr")


def nul_digit(data: bytes) -> bytes:
    return data.replace(b"X\x02\0\0\x0040r", b"X\x02\0\0\x004\0r")


def part_again(data: bytes) -> bytes:
    """The arguments of a tensor are the value of one more key."""
    at = last(data, b"layer.50.w")
    slot = int.from_bytes(data[data.index(b"tr", at) + 2 :][:4], "little")
    return data[:-2] + b"X\x01\0\0\0yj" + slot.to_bytes(4, "little") + b"u."


def name_again(data: bytes) -> bytes:
    at = last(data, b"layer.50.w") + len(b"layer.50.w")
    return data[:-2] + b"X\x01\0\0\0yj" + data[at + 1 : at + 5] + b"u."


def tensor_again(data: bytes) -> bytes:
    return data[:-2] + b"X\x01\0\0\0yj" + data[-6:-2] + b"u."


def tensor_as_key(data: bytes) -> bytes:
    return data[:-2] + b"j" + data[-6:-2] + b"K\x01u."


def too_large(data: bytes) -> bytes:
    """A tensor reaches past its storage."""
    at = last(data, b"layer.51.w")
    return data[:at] + data[at:].replace(b"K\x03K\x05\x86", b"K\x04K\x05\x86", 1)


def three_of_two(data: bytes) -> bytes:
    """A tuple takes a number more than the opcodes before it push."""
    at = last(data, b"layer.51.w")
    return data[:at] + data[at:].replace(b"K\x03K\x05\x86", b"K\x03K\x05\x87", 1)


def negative(data: bytes) -> bytes:
    at = last(data, b"layer.51.w")
    return data[:at] + data[at:].replace(
        b"K\x03K\x05\x86", b"J\xff\xff\xff\xffK\x05\x86", 1
    )


def state_on_a_tensor(data: bytes) -> bytes:
    return data[:-2] + b"}X\x01\0\0\0aK\x01sbu."


def memoized(data: bytes) -> bytes:
    """MEMOIZE fills the next slot, behind those in columns, and GET asks for it."""
    slot = int.from_bytes(data[-6:-2], "little") + 1
    return (
        data[:-2]
        + b"X\x01\0\0\0yq\x01]\x94X\x01\0\0\0zj"
        + slot.to_bytes(4, "little")
        + b"u."
    )


def odd_pairs(data: bytes) -> bytes:
    """Pairs are set where a key has no value, and a last value makes the number
    even.
    """
    early, late = (
        data.index(b"X\x0a\0\0\0layer.33.w"),
        data.index(b"X\x0a\0\0\0layer.50.w"),
    )
    return (
        data[:early] + b"K\x01" + data[early:late] + b"u(" + data[late:-2] + b"K\x02u."
    )


def slots_again(data: bytes) -> bytes:
    """Tensors behind a number fill the slots of earlier ones again; one of the slots is
    asked for.
    """
    late = data.index(b"X\x0a\0\0\0layer.48.w")
    puts = [
        (at, int(slot))
        for op, slot, at in genops(data)
        if op.name == "LONG_BINPUT" and isinstance(slot, int) and at
    ]
    first = next(slot for at, slot in puts if at > late)
    out = bytearray(data)
    for at, slot in puts:
        moved = slot + 5_000 - (first - puts[0][1] + 30 if at > late else 0)
        out[at + 1 : at + 5] = moved.to_bytes(4, "little")
    again = bytes(out[-6:-2])
    return (
        bytes(out[:late])
        + b"X\x01\0\0\0xK\x01"
        + bytes(out[late:-2])
        + b"X\x01\0\0\0yj"
        + again
        + b"u."
    )


def global_as_key(data: bytes) -> bytes:
    """A key is a class."""
    at = data.index(b"X\x0a\0\0\0layer.50.w")
    return data[:at] + b"h\x05" + data[at + len(b"X\x0a\0\0\0layer.50.w") :]


def other_key(data: bytes) -> bytes:
    """A storage that the archive lacks."""
    return data.replace(b"X\x02\0\0\x0040r", b"X\x02\0\0\x0099r")


def on_devices(data: bytes) -> bytes:
    """torch writes the tag of a device with a number anew for each tensor, here of
    every second one.
    """
    at = data.index(b"X\x03\0\0\0cpu")
    out, slot, moved = bytearray(), 10_000, {}
    opcodes = [*genops(data)]
    ends = [position for _, _, position in opcodes[1:]] + [len(data)]
    number = 0
    for (opcode, value, position), end in zip(opcodes, ends, strict=True):
        part = data[position:end]
        assert position is not None
        if opcode.name == "BINGET" and value == data[at + 9]:
            number += 1
            tag = (b"cuda:0", b"cuda:11", b"")[number % 3]
            if tag:
                part = (
                    b"X"
                    + len(tag).to_bytes(4, "little")
                    + tag
                    + b"r"
                    + slot.to_bytes(4, "little")
                )
                slot += 1
        elif opcode.name in ("BINPUT", "LONG_BINPUT") and position > at + 10:
            moved[value] = slot
            part = b"r" + slot.to_bytes(4, "little")
            slot += 1
        elif opcode.name in ("BINGET", "LONG_BINGET") and value in moved:
            part = b"j" + moved[value].to_bytes(4, "little")
        out += part
    return bytes(out)


def device_again(data: bytes) -> bytes:
    """A later tensor gets the tag of an earlier one from the memo."""
    made = on_devices(data)
    first = made.rindex(b"X\x06\0\0\0cuda:0r")
    slot = made[first + 12 : first + 16]
    return made[:-2] + b"X\x01\0\0\0yj" + slot + b"u."


def _before_49(data: bytes, extra: bytes) -> bytes:
    at = data.index(b"X\x0a\0\0\0layer.49.w")
    return data[:at] + extra + data[at:]


def class_refilled(data: bytes) -> bytes:
    """The slot of a class of storages holds another class from tensor 49 on."""
    at = data.index(b"ctorch\nFloatStorage\n") + len(b"ctorch\nFloatStorage\n")
    return _before_49(data, b"ctorch\nIntStorage\n" + data[at : at + 2] + b"0")


def device_refilled(data: bytes) -> bytes:
    """The slot of a device holds another one from tensor 49 on."""
    at = data.index(b"X\x03\0\0\0cpu") + 8
    return _before_49(data, b"X\x06\0\0\0cuda:1" + data[at : at + 2] + b"0")


def function_refilled(data: bytes) -> bytes:
    """The slot of the function holds os.system from tensor 50 on; tensor 49 finds the
    function in a slot of its own.
    """
    name = b"ctorch._utils\n_rebuild_tensor_v2\n"
    at = data.index(name) + len(name)
    assert data[at : at + 1] == b"q"
    slot, own = data[at + 1 : at + 2], (5_000).to_bytes(4, "little")
    late = data.index(b"h" + slot + b"((", data.index(b"layer.49.w"))
    data = data[:late] + b"j" + own + data[late + 2 :]
    return _before_49(data, name + b"r" + own + b"0cos\nsystem\nq" + slot + b"0")


CHANGES = [
    class_refilled,
    device_refilled,
    function_refilled,
    put_earlier,
    shape_put_earlier,
    two_names,
    two_keys,
    no_digit,
    nul_digit,
    put_later,
    in_a_list,
    pairs_of_a_list,
    long_name,
    short_name,
    part_again,
    name_again,
    tensor_again,
    tensor_as_key,
    too_large,
    three_of_two,
    negative,
    state_on_a_tensor,
    memoized,
    odd_pairs,
    slots_again,
    other_key,
    global_as_key,
    on_devices,
    device_again,
]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_odd_pickles_give_the_tree_of_the_machine(
    change: Callable[[bytes], bytes],
    tied: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    skimmed: list[int],
) -> None:
    def changed(data: bytes) -> bytes:
        made = change(data)
        assert made != data
        return made

    both(with_pickle(small(tmp_path, tied), changed, tmp_path / "odd.pth"), monkeypatch)
    assert sum(skimmed) or change in (in_a_list, pairs_of_a_list)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "change",
    [name_again, tensor_again, memoized, on_devices, device_again],
    ids=lambda change: change.__name__,
)
def test_what_the_memo_finds_in_columns_is_read_once(
    change: Callable[[bytes], bytes],
    tied: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: list[int],
) -> None:
    path = with_pickle(small(tmp_path, tied), change, tmp_path / "odd.pth")
    assert isinstance(read(path, monkeypatch, 0), Checkpoint)
    assert not again


def test_an_unusual_class_of_storage_is_left_to_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: list[int]
) -> None:
    """The name of the class is written again as it was."""
    path = with_pickle(
        small(tmp_path),
        lambda data: data.replace(b"ctorch\nHalf", b"ctorch.cuda\nHalf"),
        tmp_path / "odd.pth",
    )
    assert isinstance(read(path, monkeypatch, 0), Checkpoint)
    assert len(again) == 1


def of_shapes(tmp_path: Path) -> Path:
    """70 tensors of many shapes."""
    return saved({f"layer.{n}.w": shaped(n) for n in range(70)}, tmp_path / "small.pth")


def plain(tmp_path: Path) -> Path:
    return small(tmp_path, tied=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [small, plain, of_shapes], ids=lambda make: make.__name__
)
def test_changed_bytes_give_the_tree_of_the_machine(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots, opcodes, numbers and whole pieces are changed at random."""
    random_ = random.Random(7)
    path = make(tmp_path)
    same = whole = 0

    def changed(data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(random_.choice((1, 1, 2, 3))):
            at = random_.randrange(1_500, len(out) - 1)
            kind = random_.randrange(4)
            if kind == 0:
                out[at] = random_.randrange(256)
            elif kind == 1:
                out[at] = (out[at] + random_.choice((-1, 1))) % 256
            elif kind == 2:
                other, count = (
                    random_.randrange(1_500, len(out)),
                    random_.randrange(1, 200),
                )
                out[at:at] = out[other : other + count]
            else:
                del out[at : at + random_.choice((1, 2, 5, 100))]
        return bytes(out)

    for _ in range(400):
        found = both(with_pickle(path, changed, tmp_path / "changed.pth"), monkeypatch)
        same += 1
        whole += isinstance(found, dict)
    assert whole > 15 and same - whole > 15


@pytest.mark.parametrize("least", [0, NEVER])
def test_far_slots_are_refused_in_columns_too(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's unpickler makes a table up to the largest number, of gigabytes."""

    def far(data: bytes) -> bytes:
        out, calls, start = b"", 0, None
        for code, argument, position, end in rows(data):
            calls += code == "REDUCE"
            if start is None and calls == 2 and "PUT" in code:
                start = argument
            if (
                start is not None
                and code.endswith(("BINPUT", "BINGET"))
                and argument >= start
            ):
                out += (b"r" if "PUT" in code else b"j") + (
                    argument + (1 << 28)
                ).to_bytes(4, "little")
            else:
                out += data[position:end]
        return out

    def rows(data: bytes) -> Iterator[tuple[str, Any, int, int]]:
        every = list(genops(data))
        ends = [position or 0 for _, _, position in every[1:]] + [len(data)]
        for (code, argument, position), end in zip(every, ends, strict=True):
            yield code.name, argument, position or 0, end

    path = with_pickle(small(tmp_path), far, tmp_path / "far.pt")
    assert "memo slot is too large" in str(read(path, monkeypatch, least))


class Saved:
    """A pickle as torch.save writes it, opcode by opcode, so that tensors come in
    columns behind whatever a test puts before them.
    """

    def __init__(self, tensors: int = 80) -> None:
        self.data = bytearray(b"\x80\2}")
        self.slots = 0
        self.names: dict[str, int] = {}
        self.numbers = 0
        self.put()
        self.add(b"(").text("m").dict()
        for number in range(tensors):
            self.tensor(f"w{number}")
        self.add(b"u")

    def add(self, opcodes: bytes) -> Saved:
        self.data += opcodes
        return self

    def put(self) -> int:
        slot, self.slots = self.slots, self.slots + 1
        self.data += b"q%c" % slot if slot < 256 else b"r" + slot.to_bytes(4, "little")
        return slot

    def get(self, slot: int) -> Saved:
        self.data += b"h%c" % slot if slot < 256 else b"j" + slot.to_bytes(4, "little")
        return self

    def text(self, text: str) -> Saved:
        self.data += op.text(text)
        self.put()
        return self

    def dict(self) -> Saved:
        self.add(b"}").put()
        return self.add(b"(")

    def name(self, name: str, opcodes: bytes) -> None:
        """Get a node, or make it the first time."""
        if name in self.names:
            self.get(self.names[name])
        else:
            self.names[name] = self.add(opcodes).put()

    def tensor(self, key: str, kind: str = "FloatStorage") -> None:
        self.text(key).name("v2", op.glob("torch._utils", "_rebuild_tensor_v2"))
        self.add(b"((").name("storage", op.text("storage"))
        self.name(kind, op.glob("torch", kind))
        self.text(str(self.numbers)).name("cpu", op.text("cpu"))
        self.numbers += 1
        for opcodes in (b"K\2t", b"QK\0K\2\x85", b"K\1\x85"):
            self.add(opcodes).put()
        self.add(b"\x89").name("dict", op.glob("collections", "OrderedDict"))
        for opcodes in (b")R", b"t", b"R"):
            self.add(opcodes).put()

    def dicts(self, before: bytes = b"") -> None:
        """The state of an optimizer: dicts by their numbers. `before` are pairs of the
        first one, which is on the stack.
        """
        self.add(before)
        for number in range(4):
            for key in "abc":
                self.tensor(key)
            if number < 3:
                self.add(b"uK%c}" % (number + 1)).put()
                self.add(b"(")
        self.add(b"uu")

    def file(self, path: Path) -> Path:
        records = {
            "archive/data.pkl": bytes(self.data) + b"u.",
            "archive/version": b"3\n",
        }
        records |= {f"archive/data/{n}": bytes(8) for n in range(self.numbers)}
        path.write_bytes(op.zip_file(records))
        return path


@pytest.mark.parametrize("least", [0, NEVER])
def test_a_dict_that_a_call_has_seen_is_judged_in_columns_too(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch copies an empty dict, whatever is put into it afterwards."""
    saved = Saved()
    saved.text("D").add(b"}")
    seen = saved.put()
    saved.text("copy").get(saved.names["dict"]).get(seen).add(b"\x85R").put()
    saved.text("state").dict().add(b"K\0").get(seen).add(b"(").dicts()
    path = saved.file(tmp_path / "seen.pth")
    loaded = torch.load(path, weights_only=True)
    assert len(loaded["copy"]) == 0 and len(loaded["D"]) == 3
    opened = read(path, monkeypatch, least)
    assert isinstance(opened, Checkpoint)
    assert [row.name for row in opened.imports if row.group == "called"] == [
        "OrderedDict"
    ]


@pytest.mark.parametrize("least", [0, NEVER])
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        # All of these have the hash 0: each is compared with all before.
        (
            b"".join(op.integer(k * (2**61 - 1)) + b"N" for k in range(1, 2_000)),
            "too many keys of a dict have one hash",
        ),
        (
            b"".join(op.glob("torch", name) + b"N" for name in ("half", "float16")),
            "two keys of a dict may be equal",
        ),
    ],
    ids=["one hash", "equal"],
)
def test_keys_before_columns_are_judged(
    keys: bytes, why: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Saved()
    saved.text("state").dict().add(b"K\0").dict().dicts(keys)
    path = saved.file(tmp_path / "keys.pth")
    assert why in str(read(path, monkeypatch, least))


@pytest.mark.parametrize("least", [0, NEVER])
def test_codes_without_a_scale_are_refused_in_columns_too(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Saved()
    # The class comes from the memo, as it does for each tensor but the first.
    saved.text("class").name("QInt8Storage", op.glob("torch", "QInt8Storage"))
    saved.text("codes").dict()
    for number in range(80):
        saved.tensor(f"w{number}", "FloatStorage" if number < 40 else "QInt8Storage")
    path = saved.add(b"u").file(tmp_path / "codes.pth")
    assert "its qint8 tensor has no scale" in str(read(path, monkeypatch, least))

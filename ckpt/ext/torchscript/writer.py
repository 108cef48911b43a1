"""Writing a TorchScript archive again with other devices in its pickles. Every other
record keeps its bytes.

Nothing else is changed, and no archive is made of another checkpoint: the code in it
goes with its names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import pack, unpack_from
from typing import Literal, TypeAlias

from ckpt.bytes.target import Sink
from ckpt.ext.torchscript.reader import PICKLES, ScriptOrigin, read_from
from ckpt.formats.common.appended import end_before
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.layout import (
    PlannedRecord,
    alignment_of,
    appended_records,
    bytes_record,
    copied_record,
    lay_out,
)
from ckpt.formats.common.writing import Draft, compare, compare_bytes, difference_error
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import UnsupportedError
from ckpt.model.limits import Budget, Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage
from ckpt.pickle.opcodes import (
    APPEND,
    APPENDS,
    ARGUMENT_BYTES,
    BINFLOAT,
    BINGET,
    BININT,
    BININT1,
    BININT2,
    BINPERSID,
    BINPUT,
    BINUNICODE,
    BUILD,
    DICT,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    GLOBAL,
    LIST,
    LONG1,
    LONG_BINGET,
    LONG_BINPUT,
    MARK,
    NAMES,
    NEWFALSE,
    NEWOBJ,
    NEWTRUE,
    NONE,
    PROTO,
    REDUCE,
    SETITEM,
    SETITEMS,
    STOP,
    TUPLE,
    TUPLE1,
    TUPLE2,
    TUPLE3,
)
from ckpt.tree.view import look

__all__ = [
    "append",
    "compare",
    "compare_bytes",
    "draft",
    "end_before",
    "losses",
    "unfit",
]

_LARGE = 1 << 20


def losses(checkpoint: Checkpoint) -> list[str]:
    """Return an empty list: the archive stays as it is."""
    return []


def unfit(entry: Entry) -> str | None:
    """Return None: the archive stays as it is."""
    return None


def draft(checkpoint: Checkpoint, limits: Limits) -> Draft:
    """The archive with the devices of a checkpoint, its records in their order. Raises
    CkptError.
    """
    archive = _source_archive(checkpoint)
    pickles = _retag_pickles(checkpoint, archive, limits)
    records = [
        _plan_record(
            archive, record, pickles.get(record.name.removeprefix(f"{archive.root}/"))
        )
        for record in sorted(archive.records.values(), key=lambda record: record.header)
    ]
    layout = lay_out(records, alignment_of(archive))
    return Draft(layout.size, layout.write)


def append(checkpoint: Checkpoint, limits: Limits) -> tuple[bytes, bytes]:
    """The changed pickles behind the archive, and the directory that makes them valid.
    Raises CkptError.
    """
    archive = _source_archive(checkpoint)
    records, directory, whole = appended_records(
        archive, _retag_pickles(checkpoint, archive, limits), limits
    )
    # The archive is read with the new records before anything is written.
    compare(checkpoint, read_from(whole, checkpoint.path, limits))
    return records, directory


def _source_archive(checkpoint: Checkpoint) -> Archive:
    if not isinstance(checkpoint.origin, ScriptOrigin):
        raise UnsupportedError(
            "a TorchScript archive is not made of another file", path=checkpoint.path
        )
    return checkpoint.origin.archive


def _retag_pickles(
    checkpoint: Checkpoint, archive: Archive, limits: Limits
) -> dict[str, bytes]:
    """The pickles with tensors, by their names, with the devices of the checkpoint.
    `data.pkl` is the first.
    """
    tags = _changed_tags(checkpoint, archive, limits)
    budget = Budget(limits)
    pickles: dict[str, bytes] = {}
    for name in PICKLES:
        record = archive.find(name)
        if record is not None:
            data = archive.read_pickle(record, limits, budget)
            pickles[name] = retag_pickle(data, partial(_moved_text, tags, name))
    return pickles


def _moved_text(
    tags: dict[Use, dict[str, str]], pickle: str, use: Use, text: str
) -> str:
    """Return the text that takes the place of a text.

    Devices in the bytecode are constants of its code, which stay.
    """
    # Its storages still move with the others.
    if use != "storage" and pickle != PICKLES[0]:
        return text
    return tags[use].get(text, text)


def _changed_tags(
    checkpoint: Checkpoint, archive: Archive, limits: Limits
) -> dict[Use, dict[str, str]]:
    """Compare the checkpoint with its file. Return the new text for each old text, by
    use.
    """
    before = read_from(archive, checkpoint.path, limits)
    # Other texts stay.
    tags: dict[Use, dict[str, str]] = {"storage": {}, "device": {}, "text": {}}
    new = {storage.id: storage.device for storage in checkpoint.storages}
    for storage in before.storages:
        _note_tag(tags["storage"], storage.device, new.get(storage.id, storage.device))
    # The edit keeps the values in their order, so both lists are of one length.
    for old, value in zip(before.values, checkpoint.values, strict=True):
        if old.type == "torch.device":
            _note_tag(
                tags["device"], str(look(old.node).value), str(look(value.node).value)
            )
    return tags


def _note_tag(tags: dict[str, str], before: str | None, after: str | None) -> None:
    if (
        before is not None
        and after is not None
        # The pickle is changed text by text, so equal texts can only become one text.
        and tags.setdefault(before, after) != after
    ):
        raise difference_error(f"{before} would become two devices")


def _plan_record(
    archive: Archive, record: Record, pickle: bytes | None
) -> PlannedRecord:
    """A record of the result: a changed pickle, or the record as it is, deflated where
    it is deflated.
    """
    if pickle is not None:
        return bytes_record(record.name, pickle)
    # The deflated bytes are copied as they are; the checksum is of what they hold.
    if record.deflated and record.crc is not None:
        crc, place = record.crc, record.place(archive.source)

        def pour(sink: Sink) -> int:
            sink.copy(place.source, place.offset, record.stored)
            return crc

        return PlannedRecord(
            record.name,
            record.stored,
            pour,
            inflated=record.size,
            of=Storage(record.name, None, None, record.stored, place),
        )
    # Small records are not worth blocks that both files share.
    like = record.offset if record.size >= _LARGE else None
    return copied_record(archive, record)._replace(like=like)


Use: TypeAlias = Literal["storage", "device", "text"]
"""The use of a text: the location of a storage, the argument of `torch.device`,
anything else.
"""
Moved: TypeAlias = Callable[[Use, str], str]
"""Gives the text that takes the place of a text."""

_TUPLES = frozenset((EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3))
_LISTS = frozenset(
    (APPEND, APPENDS, DICT, EMPTY_DICT, EMPTY_LIST, LIST, SETITEM, SETITEMS)
)
_SCALARS = frozenset(
    (BINFLOAT, BININT, BININT1, BININT2, BINUNICODE, LONG1, NEWFALSE, NEWTRUE, NONE)
)
_MEMO = frozenset((BINGET, BINPUT, LONG_BINGET, LONG_BINPUT))
_OBJECTS = frozenset((BINPERSID, BUILD, GLOBAL, MARK, NEWOBJ, PROTO, REDUCE, STOP))
_KNOWN = _TUPLES | _LISTS | _SCALARS | _MEMO | _OBJECTS
"""The opcodes that torch's C++ writer writes. Anything else is not from there."""
_PUTS, _GETS = (BINPUT, LONG_BINPUT), (BINGET, LONG_BINGET)
_NUMBERS = (BININT1, BININT2, BININT, LONG1)
_DEVICE = b"torch\ndevice\n"


class _Token(NamedTuple):
    """An opcode with its bytes. `slot` is its slot of the memo, for PUT and GET."""

    code: int
    begin: int
    end: int
    slot: int = -1


def retag_pickle(data: bytes, moved: Moved) -> bytes:
    """The pickle with its texts replaced as `moved` says. Raises UnsupportedError for
    one of another writer.
    """
    tokens = _read_tokens(data)
    return _Retag(data, tokens, moved).run()


def _read_tokens(data: bytes) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(data):
        code, begin = data[position], position
        if code not in _KNOWN:
            what = NAMES.get(code, f"{code:#04x}")
            raise UnsupportedError(
                f"torch.jit.save writes no {what}, which is at byte {position:,} of a "
                "pickle"
            )
        # Opcodes of a fixed size end here; others have their length or two lines
        # behind.
        position += 1 + ARGUMENT_BYTES.get(code, 0)
        slot = -1
        if code == GLOBAL:
            position = data.index(b"\n", data.index(b"\n", position) + 1) + 1
        elif code == BINUNICODE:
            position += int(unpack_from("<I", data, begin + 1)[0])
        elif code == LONG1:
            position += data[begin + 1]
        elif code in (BINPUT, BINGET):
            slot = data[begin + 1]
        elif code in (LONG_BINPUT, LONG_BINGET):
            slot = int(unpack_from("<I", data, begin + 1)[0])
        tokens.append(_Token(code, begin, position, slot))
        # Bytes behind the end are no opcodes, and are copied at the end.
        if code == STOP:
            break
    return tokens


class _Retag:
    """One pickle. `_slots` has the text of each slot of the memo, `_held` the slots
    that hold a text now.
    """

    def __init__(self, data: bytes, tokens: list[_Token], moved: Moved) -> None:
        self._data = data
        self._tokens = tokens
        self._moved = moved
        self._uses = self._find_uses()
        # New slots begin behind all that the pickle uses, so none is overwritten.
        self._next = max((token.slot for token in tokens), default=-1) + 1

    def run(self) -> bytes:
        out: list[bytes] = []
        was: dict[int, str] = {}
        """Slot of the source -> its text there."""
        place: dict[int, dict[str, int]] = {}
        """Slot of the source -> the slots of the result that hold it, by its
        new text.
        """
        skip = False
        end = self._tokens[-1].end if self._tokens else 0
        for index, token in enumerate(self._tokens):
            # The PUT behind a text was written with it.
            if skip:
                skip = False
                continue
            after = self._tokens[index + 1] if index + 1 < len(self._tokens) else token
            if token.code == BINUNICODE:
                text = self._text(token)
                new = self._moved(self._uses.get(index, "text"), text)
                out.append(
                    self._token_bytes(token) if new == text else _text_opcode(new)
                )
                # One slot may be read with two uses: a location stays `cpu` where a
                # text `cpu` is data.
                if after.code in _PUTS:
                    was[after.slot] = text
                    place[after.slot] = {new: after.slot}
                    out.append(self._token_bytes(after))
                    skip = True
            elif token.code in _GETS and token.slot in was:
                text = was[token.slot]
                new = self._moved(self._uses.get(index, "text"), text)
                slot = place[token.slot].get(new)
                if slot is None:
                    slot = place[token.slot][new] = self._next
                    self._next += 1
                    # The first use with another text writes it out, and keeps it in a
                    # slot of its own.
                    out += (_text_opcode(new), _memo_opcode(BINPUT, LONG_BINPUT, slot))
                else:
                    same = slot == token.slot
                    out.append(
                        self._token_bytes(token)
                        if same
                        else _memo_opcode(BINGET, LONG_BINGET, slot)
                    )
            else:
                if token.code in _PUTS:
                    # The slot now holds something that is no text.
                    was.pop(token.slot, None)
                out.append(self._token_bytes(token))
        return b"".join(out) + self._data[end:]

    def _find_uses(self) -> dict[int, Use]:
        """The tokens that give the location of a storage or the argument of
        `torch.device`.
        """
        uses: dict[int, Use] = {}
        devices: set[int] = set()
        """Slots of the memo that hold the class `torch.device`."""
        for index, token in enumerate(self._tokens):
            # C++ writes the class once, and gets it from the memo afterwards.
            if token.code == GLOBAL and self._is_put(index + 1):
                slot = self._tokens[index + 1].slot
                (devices.add if self._is_device(token) else devices.discard)(slot)
            elif token.code == BINPERSID:
                location = self._location_token(index)
                if location is None:
                    where = f"the storage at byte {token.begin:,} of a pickle"
                    raise UnsupportedError(
                        f"{where} is not written as torch.jit.save writes it"
                    )
                uses[location] = "storage"
            elif token.code == REDUCE and self._tokens[index - 1].code == TUPLE1:
                text = self._text_before(index - 1)
                # A call with one argument that is no text is no device.
                if text is None:
                    continue
                # Before the text stands the class, or its PUT when it is met first.
                source = self._tokens[text - 1]
                if source.code in _PUTS:
                    source = self._tokens[text - 2]
                if (source.code == GLOBAL and self._is_device(source)) or (
                    source.code in _GETS and source.slot in devices
                ):
                    uses[text] = "device"
        return uses

    def _location_token(self, index: int) -> int | None:
        """The token of the location in `('storage', class, key, location, size)`; torch
        1.4 has a None at its end.
        """
        # Backwards from BINPERSID: TUPLE, perhaps None, the size, then the location.
        token = index - 1
        if token < 0 or self._tokens[token].code != TUPLE:
            return None
        token -= 1
        if self._tokens[token].code == NONE:
            token -= 1
        return (
            self._text_before(token) if self._tokens[token].code in _NUMBERS else None
        )

    def _text_before(self, index: int) -> int | None:
        """The token before another one that gives a text: its literal, or a GET
        of one.
        """
        token = index - 1
        if token >= 0 and self._tokens[token].code in _PUTS:
            token -= 1
        if token < 0:
            return None
        return token if self._tokens[token].code in (BINUNICODE, *_GETS) else None

    def _is_put(self, index: int) -> bool:
        return index < len(self._tokens) and self._tokens[index].code in _PUTS

    def _is_device(self, token: _Token) -> bool:
        return self._data[token.begin + 1 : token.end] == _DEVICE

    def _text(self, token: _Token) -> str:
        return self._data[token.begin + 5 : token.end].decode("utf-8", "surrogatepass")

    def _token_bytes(self, token: _Token) -> bytes:
        return self._data[token.begin : token.end]


def _text_opcode(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return pack("<BI", BINUNICODE, len(data)) + data


def _memo_opcode(short: int, long: int, slot: int) -> bytes:
    return pack("<BB", short, slot) if slot < 256 else pack("<BI", long, slot)

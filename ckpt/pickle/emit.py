"""An inert tree -> the bytes of a pickle: at protocol 2, which every torch since 0.4
and weights_only read, or at 4.

The counterpart of `machine`: a tree that it read is written as the same object, with
its order, its sharing and its cycles. Opcodes are chosen as CPython's pickler does
(Modules/_pickle.c), so a pickle of torch is written again byte for byte. Opcodes that
weights_only refuses are used only where there is no other. No recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import Literal, cast, final

from ckpt.model.errors import LimitError
from ckpt.model.limits import Limits
from ckpt.model.nodes import (
    WITH_STATE,
    ByteStr,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    is_tuple,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef
from ckpt.pickle.calls import rebuild_call

BATCH = 1000
"""Items of one APPENDS or SETITEMS."""

_INT32, _UINT16, _UINT32, _DOUBLE = (Struct(code) for code in ("<i", "<H", "<I", ">d"))
_TUPLES = {1: b"\x85", 2: b"\x86", 3: b"\x87"}


class StorageId(NamedTuple):
    """The name of a storage in the pickle: its class, its key, its device tag, and its
    number of elements.
    """

    cls: Global
    key: str
    device: str
    numel: int


class _Raw(bytes):
    """Opcodes to write after everything that was pushed later."""


@final
class _Close:
    """The end of a tuple, a set or a call: the opcode, and the opcodes that undo it in
    a cycle.
    """

    __slots__ = ("node", "opcode", "undo")

    def __init__(self, node: Node, opcode: bytes, undo: bytes) -> None:
        self.node = node
        self.opcode = opcode
        self.undo = undo


def emit_pickle(
    root: Node,
    storage_id: Callable[[Storage, PersistentId | None], StorageId],
    nested: Callable[[Node], bytes],
    limits: Limits,
    *,
    legacy: bool = False,
    protocol: Literal[2, 4] = 2,
) -> bytes:
    """The pickle of a tree. `storage_id` names the storages, `nested` writes
    checkpoints inside it.

    `legacy` keeps what only the format before 1.6 has: views of storages, classes with
    their source. Raises LimitError when the pickle would exceed the limit for reading
    it.
    """
    return _Emitter(storage_id, nested, limits, legacy, protocol).run(root)


def holds_itself(root: Node) -> dict[int, Node]:
    """The tuples, sets and calls of a tree that are met again before all of their parts
    are written, by their id.

    They take POP, which weights_only refuses. Views of storages are no cycles, so plain
    tensors are passed over.
    """
    repeats: dict[int, Node] = {}
    # Id of a node that was met -> whether its parts are still being written.
    is_open: dict[int, bool] = {}
    todo: list[Node | _Close] = [root]
    while todo:
        node = todo.pop()
        if type(node) is _Close:
            call = node.node
            is_open[id(call)] = False
            if type(call) is Opaque:
                todo += reversed((*call.items, *call.keys, *call.values, *call.states))
            continue
        if not (type(node) in (list, Dict, Set, Opaque) or is_tuple(node)):
            continue
        if id(node) in is_open:
            if is_open[id(node)]:
                repeats[id(node)] = node
            continue
        is_late = type(node) in (tuple, Set, Opaque)
        is_open[id(node)] = is_late
        if is_late:
            todo.append(_Close(node, b"", b""))
        todo += reversed(_first_parts(node))
    return repeats


def _first_parts(node: Node) -> Sequence[Node]:
    """Return the parts of a container, or the parts of a call that come before the call
    is made.
    """
    if type(node) is Opaque:
        is_view = type(node.meaning) is TensorRef and len(node.args) != WITH_STATE
        return () if is_view else (node.func, *node.args, node.kwargs)
    if type(node) is Dict:
        # Key, value, key, value: as SETITEMS finds them on the stack.
        return list(chain.from_iterable(zip(node.keys, node.values, strict=True)))
    if type(node) is Set:
        return node.items
    if type(node) is list or is_tuple(node):
        return node
    return ()


class _Emitter:
    def __init__(
        self,
        storage_id: Callable[[Storage, PersistentId | None], StorageId],
        nested: Callable[[Node], bytes],
        limits: Limits,
        legacy: bool,
        protocol: Literal[2, 4],
    ) -> None:
        self._storage_id = storage_id
        self._nested = nested
        self._limit = limits.pickle_bytes
        self._legacy = legacy
        self._out = bytearray((0x80, protocol))
        # Slots are counted, and short texts have an opcode of their own.
        self._is_short = protocol == 4
        self._memo: dict[int, bytes] = {}  # id of a node -> the opcode that gets it
        self._names: dict[tuple[str, str, int], bytes] = {}
        self._slots = 0
        # Nodes that replace others: calls for tensors, bytes, sets.
        self._made: dict[int, Node] = {}
        self._alive: list[Node | Storage] = []  # keeps the ids of the memo taken
        self._texts: dict[str, str] = {}
        # Id of a storage -> the opcode that gets its key.
        self._keys: dict[int, bytes] = {}

    def run(self, root: Node) -> bytes:
        out, memo = self._out, self._memo
        todo: list[Node | _Close] = [root]
        while todo:
            node = todo.pop()
            if type(node) is str:
                self._text_of(node)
            elif type(node) is int:
                out += _int_opcode(node)
            elif type(node) is _Raw:
                out += node
            elif type(node) is tuple:
                # For mypy it may still be a TensorRef.
                self._emit_tuple(cast("tuple[Node, ...]", node), todo)
            elif type(node) is _Close:
                self._emit_close(node, todo)
            elif type(node) is Opaque:
                self._call(node, todo)
            elif type(node) is PersistentId:
                self._emit_persistent(node, todo)
            elif type(node) is Global:
                self._emit_global(node)
            elif type(node) is bool:
                out += b"\x88" if node else b"\x89"
            elif node is None:
                out += b"N"
            elif type(node) is float:
                out += b"G" + _DOUBLE.pack(node)
            elif id(node) in memo:
                out += memo[id(node)]
            else:
                self._container(node, todo)
            if len(out) >= self._limit:  # one more opcode ends it
                raise LimitError(
                    "the new pickle is too long", "pickle-bytes", self._limit
                )
        out += b"."
        return bytes(out)

    # --- the memo ---------------------------------------------------------------------

    def _memoize_node(self, node: Node) -> None:
        self._memo[id(node)] = self._write_put()

    def _write_put(self) -> bytes:
        """Write PUT for the top of the stack, and return the opcode that gets
        it again.
        """
        slot = self._slots
        self._slots = slot + 1
        number = bytes((slot,)) if slot < 256 else _UINT32.pack(slot)
        self._out += (
            b"\x94" if self._is_short else (b"q" if slot < 256 else b"r") + number
        )
        return (b"h" if slot < 256 else b"j") + number

    # --- one method per kind of node --------------------------------------------------

    def _container(self, node: Node, todo: list[Node | _Close]) -> None:
        out = self._out
        if type(node) is list:
            out += b"]"
            self._memoize_node(node)
            todo.extend(reversed(list(_list_batches(node))))
        elif type(node) is Dict:
            out += b"}"
            self._memoize_node(node)
            todo.extend(reversed(list(_dict_batches(node.keys, node.values))))
        elif type(node) is ByteStr:
            data = node.raw
            out += (
                b"U" + bytes((len(data),))
                if len(data) < 256
                else b"T" + _INT32.pack(len(data))
            )
            out += data
            self._memoize_node(node)
        else:
            todo.append(self._stand_in(node))

    def _stand_in(self, node: Node) -> Node:
        """A call that makes a node without an opcode of its own in protocol 2."""
        call = self._made.get(id(node))
        if call is None:
            if isinstance(node, TensorRef):
                call = rebuild_call(node)
            elif isinstance(node, Set):
                name = "frozenset" if node.frozen else "set"
                call = Opaque(
                    "reduce", Global("__builtin__", name), (list(node.items),), None, 0
                )
            elif isinstance(node, bytearray):
                args = (node.decode("latin-1"), self._text("latin-1"))
                call = Opaque(
                    "reduce", Global("__builtin__", "bytearray"), args, None, 0
                )
            elif isinstance(node, bytes):
                args = (node.decode("latin-1"), self._text("latin1"))
                call = Opaque("reduce", Global("_codecs", "encode"), args, None, 0)
            else:
                raise TypeError(f"a node of type {type(node).__name__}")
            self._made[id(node)] = call
            self._alive.append(node)
        return call

    def _text(self, text: str) -> str:
        """One object per text that is made here, so that the memo finds it again."""
        return self._texts.setdefault(text, text)

    def _emit_tuple(self, node: tuple[Node, ...], todo: list[Node | _Close]) -> None:
        get = self._memo.get(id(node))
        if get is not None:
            self._out += get
        elif not node:
            self._out += b")"
        else:
            size = len(node)
            if size > 3:
                self._out += b"("
            undo = b"0" * size if size <= 3 else b"1"
            todo.append(_Close(node, _TUPLES.get(size, b"t"), undo))
            todo.extend(reversed(node))

    def _emit_global(self, node: Global) -> None:
        # From protocol 3 on, names are taken literally; below, Python 3 translates
        # names of Python 2.
        translated = node.protocol >= 3 and (
            _is_python2_name(node.module, node.name)
            or (node.protocol >= 4 and "." in node.name)
        )
        key = (node.module, node.name, node.protocol if translated else 2)
        get = self._names.get(key)
        if get is not None:
            self._out += get
            return
        if self._is_short:
            self._text_of(self._text(node.module))
            self._text_of(self._text(node.name))
            self._out += b"\x93"
            self._names[key] = self._write_put()
            return
        opcodes = _name_opcodes(node.module, node.name)
        self._out += (
            b"\x80" + bytes((node.protocol,)) + opcodes + b"\x80\x02"
            if translated
            else opcodes
        )
        self._names[key] = self._write_put()

    def _emit_persistent(self, node: PersistentId, todo: list[Node | _Close]) -> None:
        meaning = node.meaning
        if type(meaning) is Storage:
            view = None
            if self._legacy and type(node.pid) is tuple and len(node.pid) == 6:
                view = node.pid[5]
            self._emit_storage(meaning, node, view, todo)
        elif type(meaning) is Global and not self._legacy:
            self._emit_global(meaning)
        else:
            todo.append(_Raw(b"Q"))
            todo.append(node.pid)

    def _emit_storage(
        self,
        storage: Storage,
        node: PersistentId,
        view: Node,
        todo: list[Node | _Close],
    ) -> None:
        # As in torch, the tuple is new for each use; its key is one text per storage.
        out = self._out
        cls, key, device, numel = self._storage_id(storage, node)
        out += b"("
        self._text_of(self._text("storage"))
        self._emit_global(cls)
        get = self._keys.get(id(storage))
        if get is not None:
            out += get
        else:
            data = key.encode()
            out += b"X" + _UINT32.pack(len(data)) + data
            self._keys[id(storage)] = self._write_put()
            self._alive.append(storage)
        self._text_of(device)
        out += _int_opcode(numel)
        if view is not None:
            todo.append(_Raw(b"tQ"))
            todo.append(view)
        else:
            out += b"Nt" if self._legacy else b"t"
            self._write_put()
            out += b"Q"

    def _text_of(self, text: str) -> None:
        get = self._memo.get(id(text))
        if get is not None:
            self._out += get
        else:
            data = text.encode("utf-8", "surrogatepass")
            is_short = self._is_short and len(data) < 256
            self._out += (
                b"\x8c" + bytes((len(data),))
                if is_short
                else b"X" + _UINT32.pack(len(data))
            ) + data
            self._memoize_node(text)
            self._alive.append(text)

    def _call(self, node: Opaque, todo: list[Node | _Close]) -> None:
        get = self._memo.get(id(node))
        if get is not None:
            self._out += get
            return
        args = node.args
        # It was edited, so its bytes are written anew.
        if type(node.meaning) is Nested and not args:
            args = (self._nested(node.meaning.root),)
            self._alive.append(args)
        if node.how in ("obj", "inst"):
            self._out += b"("
            todo.append(_Close(node, b"o", b"1"))
            todo.extend(reversed((node.func, *args)))
        elif node.how == "newobj_ex":
            todo.append(_Close(node, b"\x92", b"000"))
            todo += (node.kwargs, args, node.func)
        else:
            todo.append(_Close(node, b"R" if node.how == "reduce" else b"\x81", b"00"))
            todo += (args, node.func)

    def _emit_close(self, close: _Close, todo: list[Node | _Close]) -> None:
        node = close.node
        get = self._memo.get(id(node))
        if get is not None:  # a cycle: its own parts have written it already
            self._out += close.undo + get
            return
        self._out += close.opcode
        self._memoize_node(node)
        if type(node) is Opaque:
            for state in reversed(node.states):
                todo.append(_Raw(b"b"))
                todo.append(state)
            if node.keys:
                todo.extend(reversed(list(_pair_batches(node.keys, node.values))))
            if node.items:
                todo.extend(reversed(list(_item_batches(node.items))))


def _int_opcode(value: int) -> bytes:
    if 0 <= value < 256:
        return bytes((0x4B, value))
    if 0 <= value < 65_536:
        return b"M" + _UINT16.pack(value)
    if -(2**31) <= value < 2**31:
        return b"J" + _INT32.pack(value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    # Like CPython, no more bytes than needed.
    if value < 0 and data[-1] == 0xFF and data[-2] & 0x80:
        data = data[:-1]
    if len(data) < 256:
        return b"\x8a" + bytes((len(data),)) + data
    return b"\x8b" + _INT32.pack(len(data)) + data


def _name_opcodes(module: str, name: str) -> bytes:
    try:
        pair = module.encode(), name.encode()
    except UnicodeEncodeError:
        pair = b"\n", b""
    if b"\n" not in pair[0] and b"\n" not in pair[1]:
        return b"c" + pair[0] + b"\n" + pair[1] + b"\n"
    texts = [text.encode("utf-8", "surrogatepass") for text in (module, name)]
    return b"".join(b"X" + _UINT32.pack(len(text)) + text for text in texts) + b"\x93"


def _is_python2_name(module: str, name: str) -> bool:
    """Tell whether Python 3 translates this name in a pickle below protocol 3
    (Lib/_compat_pickle.py).
    """
    from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

    return module in IMPORT_MAPPING or (module, name) in NAME_MAPPING


# --- batches, as CPython's pickler makes them for each type ---------------------------


def _list_batches(items: Sequence[Node]) -> Iterator[Node]:
    if len(items) == 1:
        yield items[0]
        yield _Raw(b"a")
        return
    for start in range(0, len(items), BATCH):
        yield _Raw(b"(")
        yield from items[start : start + BATCH]
        yield _Raw(b"e")


def _dict_batches(keys: Sequence[Node], values: Sequence[Node]) -> Iterator[Node]:
    if len(keys) == 1:
        yield from (keys[0], values[0], _Raw(b"s"))
        return
    for start in range(0, len(keys), BATCH):
        yield from _pair_batch(
            keys[start : start + BATCH], values[start : start + BATCH]
        )
    if keys and not len(keys) % BATCH:
        yield _Raw(b"(u")  # CPython looks for one more batch, which is empty


def _item_batches(items: Sequence[Node]) -> Iterator[Node]:
    for start in range(0, len(items), BATCH):
        yield from _list_batches(items[start : start + BATCH])


def _pair_batches(keys: Sequence[Node], values: Sequence[Node]) -> Iterator[Node]:
    for start in range(0, len(keys), BATCH):
        keys_of_batch = keys[start : start + BATCH]
        values_of_batch = values[start : start + BATCH]
        if len(keys_of_batch) > 1:
            yield from _pair_batch(keys_of_batch, values_of_batch)
        else:
            # SETITEM, as the pickler of Python writes a single pair.
            yield from (keys_of_batch[0], values_of_batch[0], _Raw(b"s"))


def _pair_batch(keys: Sequence[Node], values: Sequence[Node]) -> Iterator[Node]:
    yield _Raw(b"(")
    for key, value in zip(keys, values, strict=True):
        yield key
        yield value
    yield _Raw(b"u")

"""Trees without foreign classes: objects become dicts, lists and scalars, numpy becomes tensors and numbers.

The result loads with torch alone and weights_only=True. What cannot be made plain is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ckpt.errors import UnsupportedError
from ckpt.nodes import (
    ByteStr,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    Tagged,
    is_tuple,
    tensor_of,
)
from ckpt.pickles.apart import Spread
from ckpt.pickles.edit import DROPPED, Edit
from ckpt.pickles.emit import holds_itself
from ckpt.pickles.known import is_known, python3_name
from ckpt.pickles.state_dict import state_dict
from ckpt.pickles.weights_only import ALLOWED, call_refusals, impossible_call
from ckpt.tensors import Composite, TensorRef
from ckpt.tree.arrays import NumpyArray, array
from ckpt.tree.dense import numpy_tensor
from ckpt.tree.fields import Known, constructed, known_parts
from ckpt.tree.quantized import packed
from ckpt.tree.scalars import READERS, class_of
from ckpt.tree.steps import key_text
from ckpt.tree.view import UNINITIALIZED, View, look, shaped

_OPAQUE = ("torch._C.", "builtins.getattr", "functools.partial", "numpy.")
"""What begins the names of classes whose fields are not what they are."""
_CLASSES = ("array.array", "operator.attrgetter", "operator.itemgetter", "operator.methodcaller")
"""Classes in small letters that are pickled as a call with what they hold."""
_KEY_PARTS = 1_000
_NOT_HASHABLE: Node = Opaque("not hashable", None, (), None, 0)  # never in a tree; compared by identity
_SCALARS = (str, int, float, bool, bytes, bytearray, type(None))
_INT_BITS = 8 * 255
"""Ints of so many bits need an opcode that weights_only refuses."""
LAZY = "uninitialized: its lazy module has not run yet"
_SETS = ("builtins.set", "builtins.frozenset")


_ROUNDS = 100
"""How often what holds itself is looked for: each time at least one tensor or tuple of those that hold each other is found."""


class Plain(Spread):
    """Makes trees plain. `lost` are the nodes that could not be, with what they are; None stands in their place.

    `encoding` decodes the strings of Python 2; without one those that are no UTF-8 are lost. With `dense` quantized
    tensors are taken apart too, because the format holds dense ones alone.
    """

    def __init__(self, encoding: str | None = None, *, dense: bool = False) -> None:
        super().__init__(_allowed, dense=dense)
        self.lost: dict[int, tuple[Node, str]] = {}
        self.made: dict[str, int] = {}
        """Classes that were made plain, and how many objects of each."""
        self._encoding = encoding
        self._hashed: dict[int, Node] = {}
        self._unfolded: dict[int, int] = {}

    def copy(self, root: Node) -> Node:
        copied = super().copy(self.leaf(root) if type(root) in (Global, ByteStr, int) else root)
        for _ in range(_ROUNDS):
            held = holds_itself(copied)
            if not held:
                return copied
            copied = self._unroll(copied, held)
        raise UnsupportedError("its tensors and tuples hold each other in too many ways to be made plain")

    def _unroll(self, copied: Node, held: dict[int, Node]) -> Node:
        """The copy without what holds itself. Others that hold the same list may only be met then."""
        originals = {id(copy): marker for marker, copy in self._copies.items()}
        nodes = {id(node): node for node in self._alive}
        for marker, node in held.items():
            if type(node) is Opaque:
                original = nodes.get(originals.get(marker, 0), node)
                self._lose(original, "attributes that hold their own tensor")
            else:
                self._note(f"a {look(node).type} that holds itself")
        unrolled = _Unrolled(held)
        copied = unrolled.copy(copied)
        self._copies = {marker: unrolled.copy_of(copy) for marker, copy in self._copies.items()}
        unrolled.copy(None)  # what only the copies of left-out nodes need
        return copied

    # --- the hooks --------------------------------------------------------------------------------------------

    def instead(self, node: Node) -> Node | None:
        if type(node) is Opaque:
            if type(node.meaning) is Nested:
                self._note("a nested checkpoint")
                return self.copy_of(node.meaning.root)
            if type(node.meaning) is Tagged:
                self._note("a type tag of torch in C++")
                value = self._item(node.meaning.root)
                return DROPPED if value is None else value
            return self._tensor(node) if node.meaning is not None else self._object(node)
        if type(node) is PersistentId and type(node.meaning) is Global:
            return self.leaf(node.meaning)
        if type(node) is Set:
            return self._set(node.items, node.frozen)
        return None

    def leaf(self, node: Node) -> Node:
        if type(node) is ByteStr:
            return self._text(node)
        if type(node) is Global and python3_name(node.module, node.name) not in ALLOWED:
            self._note("a name")
            return python3_name(node.module, node.name)
        if type(node) is int and node.bit_length() >= _INT_BITS:
            self._lose(node, f"an int of {node.bit_length():,} bits")
            return None
        return node

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        # Of Python 2: OrderedDict([[key, value], ...]) holds texts in its arguments.
        return tuple([self._argument(arg) for arg in call.args])

    def _argument(self, arg: Node) -> Node:
        if type(arg) is Global and not _allowed(arg):  # the hooks of a tensor, say: a text is none
            self._lose(arg, f"the name {arg.qualified}")
            return None
        return self.leaf(arg) if type(arg) is ByteStr else arg

    def keys(self, node: Dict | Opaque, keys: Sequence[Node]) -> Sequence[Node]:
        made: list[Node] = []
        taken: set[str] = set()
        for key in keys:
            new = self._hashable(key)
            text = key_text(new)
            if new is _NOT_HASHABLE or text in taken:
                self._lose(
                    key,
                    "a key that is no text or number"
                    if new is _NOT_HASHABLE
                    else "a key that is there twice",
                )
                new = f"<{look(key).type} {len(self.lost)}>"
                text = key_text(new)
            taken.add(text)
            made.append(new)
        return made

    def _hashable(self, node: Node) -> Node:
        """A node as the key of a dict or the item of a set: scalars, tuples of them, tensors; else _NOT_HASHABLE."""
        if type(node) in (str, int, float, bool, bytes, type(None)) or _allowed(node):
            return node
        if is_tuple(node):
            if id(node) not in self._hashed:
                items = tuple([self._hashable(item) for item in node])
                # Tuples that hold each other many times over would never be hashed to the end.
                size = self._unfolded[id(items)] = 1 + sum(self._unfolded.get(id(item), 1) for item in items)
                whole = size <= _KEY_PARTS and not any(item is _NOT_HASHABLE for item in items)
                self._hashed[id(node)] = items if whole else _NOT_HASHABLE
            return self._hashed[id(node)]
        view = look(node)
        if view.kind == "tensor":
            return node
        if (
            view.kind == "scalar"
            and isinstance(view.value, _SCALARS)
            and not isinstance(view.value, bytearray)
        ):
            if type(node) is Opaque and view.type != "bytes":  # which protocol 2 writes as a call
                self._note(view.type)
            return self._text(view.value)
        return _NOT_HASHABLE

    def _set(self, items: Sequence[Node], frozen: bool) -> Node:
        """A set of what may lie in one; a list where something may not, or where two items would become one."""
        if frozen:
            self._note("frozenset")
        found = [self._hashable(item) for item in items]
        if any(item is _NOT_HASHABLE for item in found) or len({key_text(item) for item in found}) < len(
            found
        ):
            self._note("a set")
            return self.shell_of(list(items))
        return self.shell_of(Set(found, frozen=False))

    # --- tensors ----------------------------------------------------------------------------------------------

    def _tensor(self, call: Opaque) -> Node | None:
        func = call.func
        whole = self.parts_of(call)
        if whole is not None:
            return self.shell_of(whole)
        if type(func) is Global and func.name in ("_rebuild_from_type_v2", "_rebuild_from_type"):
            kind = call.args[1] if len(call.args) > 1 else None
            if isinstance(call.meaning, TensorRef) and not (type(kind) is Global and _allowed(kind)):
                self._note(f"a tensor of {kind.qualified if type(kind) is Global else 'a subclass'}")
                return call.meaning._replace(storage=self.storage(call.meaning.storage))
        if isinstance(call.meaning, TensorRef) and not _allowed(func):
            return call.meaning._replace(storage=self.storage(call.meaning.storage))
        if isinstance(call.meaning, Composite):
            if type(func) is Global and func.name == "_rebuild_sparse_csr_tensor":
                self._note("a sparse CSR tensor of torch 1")
                return self.shell_of(
                    Opaque(
                        call.how,
                        Global("torch._utils", "_rebuild_sparse_tensor"),
                        call.args,
                        None,
                        call.offset,
                    ),
                    call,
                )
            if not _allowed(func) or (
                type(func) is Global
                and func.name.startswith("_rebuild_from_type")
                and not _allowed(call.args[1])
            ):
                found = array(call.args[0]) if call.args else None
                tensor = None if found is None else numpy_tensor(found)
                return (
                    tensor
                    if tensor is not None
                    else self._lose(call, f"a tensor: {call.meaning.detail or call.meaning.layout}")
                )
            if call.meaning.layout == "wrapper":
                return self._lose(call, f"a tensor: {call.meaning.detail or 'a wrapper'}")
        return None

    # --- objects ----------------------------------------------------------------------------------------------

    def _object(self, call: Opaque) -> Node | None:
        call = constructed(call)
        name = class_of(call)
        if name in _SETS:
            return self._set(look(call).children, name == "builtins.frozenset")
        if _allowed(call.func):
            return (
                None
                if _is_kept(call)
                else self._lose(call, f"{look(call).type} with odd arguments or changes")
            )
        found = array(call)
        if found is not None:
            unit = f" of {found.dtype.name}" if found.dtype.unit else ""
            self._note((name if "ndarray" in name else "numpy.ndarray") + unit)
            return self._array(call, found)
        inside = packed(call)
        known = self.known(call)
        if inside is not None:
            self._note(inside[0])
            return self._content(inside[1])
        if known is not None:
            self._note(known.type)
            return self._content(known.node)
        view = look(call)
        if view.type in UNINITIALIZED:
            return self._lose(call, LAZY)
        if view.type == "numpy.dtype" and str(view.value).startswith("V"):
            return self._lose(call, "a numpy dtype of several fields")
        if view.kind == "scalar":
            if view.type.startswith("numpy.complex") and isinstance(view.value, str):
                number = complex(view.value)
                self._note(view.type)
                return Opaque("reduce", Global("__builtin__", "complex"), (number.real, number.imag), None, 0)
            if isinstance(view.value, _SCALARS) and (
                is_known(call.func) or _is_class(call) or name in READERS or name in _CLASSES
            ):
                self._note("a name" if view.type == "name" else view.type)
                value = self._text(view.value)
                return DROPPED if value is None else value
        elif view.kind == "sequence":
            self._note(view.type)
            return self.shell_of(list(view.children))
        elif view.kind == "mapping":
            self._note(view.type)
            return self.shell_of(_dict(view))
        elif view.kind == "module":
            self._note(f"module {view.type}")
            return self.shell_of(state_dict(view))
        elif view.kind == "object" and self.is_taken_apart(call, name):
            self._note(view.type)
            numbered = all(type(key) is int for key in view.keys)
            if (
                not _is_built(call) and len(view.children) == 1
            ):  # an enum whose value is a tuple, a set of a class
                return self._content(view.children[0])
            return self.shell_of(list(view.children) if numbered and view.keys else _dict(view))
        return self._lose(call, view.type)

    def known(self, call: Opaque) -> Known | None:
        """The parts of an object of a known class, where they are wanted."""
        return known_parts(call)

    def is_taken_apart(self, call: Opaque, name: str) -> bool:
        """Whether the fields of an object of the class `name` say what it is."""
        if name.startswith(_OPAQUE):
            return False
        return _is_built(call) or (
            type(call.func) is Global and (_is_class(call) or name in _CLASSES) and not call.kwargs
        )

    def _content(self, node: Node) -> Node:
        """What stands for an object. A tuple becomes a list where objects are inside, because those may hold it."""
        if is_tuple(node) and not all(type(item) in _SCALARS or tensor_of(item) is not None for item in node):
            return self.shell_of(list(node))
        if type(node) in (list, tuple, Dict):
            return self.shell_of(node)
        made = self._item(node)
        return DROPPED if made is None else made

    def _array(self, call: Opaque, found: NumpyArray) -> Node:
        if found.items is not None:
            if len(found.items) != prod(found.shape):
                return self._lose(call, "a damaged numpy array")
            return self._rows(found.items, found)
        tensor = numpy_tensor(found)
        if tensor is not None:
            return tensor
        count = prod(found.shape)
        if found.data is not None and found.dtype.code[:1] in ("U", "S") and count <= len(found.data):
            values = found.dtype.decode(found.data, count)
            if values is not None:
                return self._rows(values, found)
        return self._lose(call, f"a numpy array of {found.dtype.name}")

    def _rows(self, values: list[Node], found: NumpyArray) -> Node:
        """The items of an array as nested lists in its shape, or the item of an array without dimensions."""
        if not found.shape:
            return self._item(values[0])
        return self.shell_of(shaped(values, found.shape, found.fortran))

    def _text(self, value: Node) -> Node:
        if type(value) is not ByteStr:
            return value
        if value.isascii():
            return str(value)
        try:
            return value.raw.decode(self._encoding or "utf-8")
        except UnicodeDecodeError:
            self._lose(value, "text of Python 2 that is not UTF-8: ckpt convert --encoding latin1 reads it")
            return None

    def _lose(self, node: Node, what: str) -> Node:
        self.lost[id(node)] = node, what
        return DROPPED

    def _note(self, kind: str) -> None:
        self.made[kind] = self.made.get(kind, 0) + 1


class _Unrolled(Edit):
    """Makes lists of tuples and sets that hold themselves, and bare tensors of those whose attributes do.

    weights_only refuses the opcode that such a pickle takes.
    """

    def __init__(self, held: dict[int, Node]) -> None:
        super().__init__()
        self._held = held

    def instead(self, node: Node) -> Node | None:
        if id(node) not in self._held:
            return None
        if type(node) is Opaque:
            return node.meaning if isinstance(node.meaning, TensorRef) else DROPPED
        return self.shell_of(node.items if type(node) is Set else list(node) if is_tuple(node) else node)


def _dict(view: View) -> Dict:
    made = Dict()
    made.set(list(view.keys), list(view.children))
    return made


def _is_built(call: Opaque) -> bool:
    """Whether an object is put together from its fields, rather than the result of some function."""
    return call.how != "reduce" or bool(call.states) or class_of(call) != call.class_name or not call.args


def _is_class(call: Opaque) -> bool:
    """Whether what is called looks like a class (an enum, say), going by how Python's classes are written."""
    return class_of(call).rpartition(".")[2][:1].isupper()


def _is_kept(call: Opaque, depth: int = 8) -> bool:
    """Whether weights_only loads a call of an allowed name as it stands, with the calls among its arguments."""
    if depth == 0 or call_refusals(call) or impossible_call([call.func], [call]) is not None:
        return False
    for arg in call.args:
        if (type(arg) is Global and not _allowed(arg)) or (type(arg) is ByteStr and not arg.isascii()):
            return False
        if (
            type(arg) is Opaque
            and arg.meaning is None
            and not (_allowed(arg.func) and _is_kept(arg, depth - 1))
        ):
            return False
    return True


def _allowed(node: Node) -> bool:
    return type(node) is Global and python3_name(node.module, node.name) in ALLOWED

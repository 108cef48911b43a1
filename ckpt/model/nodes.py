"""The nodes of the inert tree of a pickle. None is an instance of a class that the file
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeGuard

from ckpt.model.columns import Chain, Column
from ckpt.model.names import NamedKey
from ckpt.model.rows import dataclass
from ckpt.model.tensors import Composite, Storage, Tensor, TensorRef

# A node is a Python scalar, a list, a tuple, or one of the classes below (a ByteStr is
# a str). Nodes are compared by identity: one object in the file is one node here, even
# when it occurs several times.
Node: TypeAlias = (
    "bool | int | float | str | bytes | bytearray | list[Node] | tuple[Node, ...] | "
    "Dict | Set | Global | PersistentId | Opaque | TensorRef | Composite | None"
)


class ByteStr(str):
    """A Python 2 `str`: bytes, held as latin-1 text. `.raw` gives the bytes."""

    __slots__ = ()

    @property
    def raw(self) -> bytes:
        return self.encode("latin-1")

    @property
    def text(self) -> str:
        """Its likely text: decoded as UTF-8, or as latin-1 when it is not UTF-8."""
        try:
            return self.raw.decode("utf-8")
        except UnicodeDecodeError:
            return str(self)


class Dict:
    """A dict as its pairs in file order. Keys are never hashed, because a file may hold
    unhashable keys.
    """

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[Node] = []
        self.values: Sequence[Node] = []

    def set(self, keys: Sequence[Node], values: Sequence[Node]) -> None:
        """Add keys with their values, as SETITEMS does. Values in a column stay
        in it.
        """
        self.keys += keys
        self.values = _join_nodes(self.values, values)


def _join_nodes(before: Sequence[Node], values: Sequence[Node]) -> Sequence[Node]:
    """The values before and these. What came before may grow."""
    if type(before) is list and not isinstance(values, Column):
        before += values
        return before
    if not len(before) and not isinstance(values, Column):
        return list(values)
    # A column stays one, so that its tensors are made only when they are asked for.
    both = before if isinstance(before, Chain) else Chain(before)
    both.extend(values)
    return both


def dict_of(rows: Iterable[tuple[Node, Node]]) -> Dict:
    """Return a dict with these items."""
    node = Dict()
    pairs = list(rows)
    node.keys = [key for key, _ in pairs]
    node.values = [value for _, value in pairs]
    return node


class Set:
    """A set as its items in file order. Items are never hashed."""

    __slots__ = ("frozen", "items")

    def __init__(self, items: list[Node], frozen: bool) -> None:
        self.items = items
        self.frozen = frozen

    def append(self, items: Sequence[Node]) -> None:
        """Add items, as ADDITEMS does."""
        self.items += items


class Global:
    """A name that the pickle imports.

    There is one node per pair of module and name; `offset` is its first opcode.
    `protocol` is the protocol of the pickle and decides how a loader looks the name up:
    below 3, `copy_reg` means `copyreg`; from 4 on, a dotted name means attributes.
    """

    __slots__ = ("module", "name", "offset", "protocol", "qualified")

    def __init__(
        self, module: str, name: str, offset: int = 0, protocol: int = 2
    ) -> None:
        self.module = module
        self.name = name
        self.offset = offset
        self.protocol = protocol
        self.qualified = f"{module}.{name}"


class PersistentId:
    """An object that torch keeps outside the pickle: a storage, or the class of a
    module in a legacy file.

    `shift` is where its view of the storage begins, in elements, and `reach` where it
    ends. They are 0 and None except for views of torch before 0.4.
    """

    __slots__ = ("meaning", "offset", "pid", "reach", "shift")

    def __init__(self, pid: Node, offset: int) -> None:
        self.pid = pid
        self.offset = offset
        self.shift = 0
        self.reach: int | None = None
        self.meaning: Storage | Global | None = None


WITH_STATE = 4
"""Arguments of `_rebuild_from_type_v2` and `_rebuild_parameter_with_state`, whose last
holds a tensor's attributes.
"""


NEW = ("newobj", "newobj_ex")
"""Opcodes that make an object without calling its class: values of `Opaque.how`."""


class Opaque:
    """An object that is not built: a call of `func` with `args`, and the changes after
    it.

    `how` is the opcode of the call. `states` are the arguments of BUILD (nearly always
    none or one), `items` the appended items, `keys` and `values` the items set by key.
    `meaning` comes from `pickles.rebuild`: a TensorRef, a Composite, a Nested
    checkpoint, a Tagged value, or None.
    """

    __slots__ = (
        "args",
        "func",
        "how",
        "items",
        "keys",
        "kwargs",
        "meaning",
        "offset",
        "states",
        "values",
    )

    def __init__(
        self,
        how: str,
        func: Node,
        args: tuple[Node, ...],
        kwargs: Dict | None,
        offset: int,
    ) -> None:
        self.how = how
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.offset = offset
        # Empty tuples at first, because most calls are tensors and an empty list costs
        # as much as a call.
        self.states: Sequence[Node] = ()
        self.items: Sequence[Node] = ()
        self.keys: Sequence[Node] = ()
        self.values: Sequence[Node] = ()
        self.meaning: TensorRef | Composite | Nested | Tagged | None = None

    def append(self, items: Sequence[Node]) -> None:
        """Add items, as APPENDS does."""
        if type(self.items) is list:
            self.items += items
        else:
            self.items = list(items)

    def set(self, keys: Sequence[Node], values: Sequence[Node]) -> None:
        """Add keys with their values, as SETITEMS does."""
        if type(self.keys) is list:
            self.keys += keys
        else:
            self.keys = list(keys)
        self.values = _join_nodes(self.values, values)

    def build(self, state: Node) -> None:
        """Add a state, as BUILD does."""
        if type(self.states) is list:
            self.states.append(state)
        else:
            self.states = [state]

    @property
    def class_name(self) -> str:
        """The dotted name of its function: `argparse.Namespace`, or `(the result of a
        call)` if that is an object.
        """
        func = self.func.meaning if type(self.func) is PersistentId else self.func
        if type(func) is Global:
            return func.qualified
        if (
            type(func) is Opaque
            and type(func.func) is Global
            and func.func.name == "getattr"
        ):
            of, *inner = func.args or (None,)  # a class inside a class, at protocol 2
            if type(of) is Global and inner and isinstance(inner[0], str):
                return f"{of.qualified}.{inner[0]}"
        return "(the result of a call)"


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """A whole checkpoint inside a pickle (`torch.storage._load_from_bytes`). Its root
    replaces the call.
    """

    root: Node


@dataclass(frozen=True, slots=True, eq=False)
class Tagged:
    """A value that its call returns as it is: torch in C++ writes the type of a list or
    dict beside it.

    The call stays in the tree, because torch in C++ asks for the type.
    """

    root: Node


def inside(node: Node) -> Node:
    """The value that a call stands for: the root of a nested checkpoint, a value with a
    tag; any other node itself.
    """
    # One checkpoint may lie inside of another.
    while type(node) is Opaque and isinstance(node.meaning, (Nested, Tagged)):
        node = node.meaning.root
    return node


def tensor_of(node: Node) -> Tensor | None:
    """The tensor of a node, None for any other node.

    A tensor has two shapes in a tree: the call that makes it, and the tensor itself, as
    formats without calls and columns of large pickles hold it. Everything that looks
    for tensors asks here.
    """
    if type(node) is Opaque:
        meaning = node.meaning
        if isinstance(meaning, (Nested, Tagged)):
            return tensor_of(meaning.root)
        return meaning
    return node if type(node) is TensorRef or type(node) is Composite else None


def is_tuple(node: Node) -> TypeGuard[tuple[Node, ...]]:
    """Tell whether a node is a tuple of nodes.

    A TensorRef is a tuple as well, which mypy cannot rule out by itself.
    """
    return type(node) is tuple


def key_of(node: Node, index: int) -> str | int:
    """The step of a path for a key of a dict. `index` is its position among the
    keys.
    """
    if type(node) is str:
        return node
    # A larger one would be written out in each name.
    if type(node) is int and -(2**63) <= node < 2**63:
        return node
    if isinstance(node, ByteStr):
        if node.isascii():
            return str(node)
        return NamedKey(node.raw.decode("utf-8", "backslashreplace"), "bytes")
    if type(node) is bytes:
        return NamedKey(node[:100].decode("utf-8", "backslashreplace"), "bytes")
    if node is None or isinstance(node, (bool, float)):
        return NamedKey(repr(node), type(node).__name__)
    if type(node) is tuple and all(
        type(item) in (str, int, bool, float, type(None)) for item in node[:20]
    ):
        if len(node) <= 20 and all(
            type(item) is not int or item.bit_length() < 512 for item in node
        ):
            return NamedKey(f"({', '.join(map(repr, node))})", "tuple")
    if type(node) is Global:
        return NamedKey(node.qualified, "global")
    # Protocol 2 writes a frozenset as a call, and protocol 4 by an opcode.
    if type(node) is Set and node.frozen:
        return NamedKey(f"<frozenset {index}>", "builtins.frozenset")
    if type(node) is Opaque:
        if (
            node.class_name == "_codecs.encode"
            and node.args
            and type(node.args[0]) is str
        ):
            # Protocol 2 writes bytes this way.
            data = node.args[0][:100].encode("latin-1", "replace")
            return NamedKey(data.decode("utf-8", "backslashreplace"), "bytes")
        what = (
            "tensor" if node.meaning is not None else node.class_name.rpartition(".")[2]
        )
        return NamedKey(f"<{what} {index}>", node.class_name)
    if type(node) is TensorRef:
        return NamedKey(f"<tensor {index}>", "tensor")
    return NamedKey(
        f"<{type(node).__name__.lower()} {index}>", type(node).__name__.lower()
    )

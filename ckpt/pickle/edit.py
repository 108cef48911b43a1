"""Changing a tree: a copy with changes that keeps the order, the sharing and the cycles
of everything else.

A subclass of `Edit` overrides a method to say what changes. The code that reads files
finds the meaning of every copied call again, so an edit cannot make a tensor that
reaches outside its storage.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    Tagged,
    inside,
    is_tuple,
)
from ckpt.model.rows import replace
from ckpt.model.tensors import Composite, Storage, Tensor, TensorRef, tensor_ref
from ckpt.pickle.rebuild import Rebuilder

_LEAVES = frozenset(
    (type(None), bool, int, float, str, bytes, bytearray, ByteStr, Global)
)
_CONTAINERS = frozenset((list, Dict, Set, Opaque))


DROPPED: Node = Opaque("dropped", None, (), None, 0)
"""The answer of `instead` for a node that becomes None. Compared by identity, never
part of a tree.
"""


class Edit:
    """Copies trees. One edit shares its copies between all trees that it is given."""

    def __init__(self) -> None:
        self._copies: dict[int, Node] = {}
        self._alive: list[Node] = []  # the ids of originals must stay taken
        self._todo: list[tuple[Node, Node]] = []
        self._calls: list[tuple[int, Opaque]] = []

    # --- what an edit may override ----------------------------------------------------

    def instead(self, node: Node) -> Node | None:
        """Return the node that replaces a node, or None for a copy.

        The node itself keeps it and all below it unchanged.
        """
        return None

    def storage(self, storage: Storage) -> Storage:
        """The storage that replaces a storage."""
        return storage

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        """The arguments of a call, before they are copied."""
        return call.args

    def keys(self, node: Dict | Opaque, keys: Sequence[Node]) -> Sequence[Node]:
        """The keys of a dict. Their number must stay the same."""
        return keys

    def state(self, call: Opaque, state: Node) -> Node:
        """A state of an object, before it is copied."""
        return state

    def leaf(self, node: Node) -> Node:
        """A scalar that is an item of a list, tuple, dict or object, but not a key or
        an argument of a call.
        """
        return node

    # --- the copy ---------------------------------------------------------------------

    def copy(self, root: Node) -> Node:
        """The edited tree."""
        copied = self.copy_of(root)
        while self._todo:
            self._fill_shell(*self._todo.pop())
        self._find_meanings()
        return copied

    def _find_meanings(self) -> None:
        """Find the meaning of each copied call again."""
        rebuilder = Rebuilder(lambda data: None)
        # Inner calls first: in a pickle they come before the calls that use them.
        for _, call in sorted(self._calls, key=lambda row: row[0]):
            rebuilder.set_meaning(call)
        self._calls.clear()

    def copy_of(self, node: Node) -> Node:
        """The copy of a node, for an edit that builds its own nodes. Its parts may
        follow later.
        """
        if type(node) in _LEAVES:
            return node
        copied = self._copies.get(id(node))
        if copied is not None:
            return copied
        copy = self.instead(node)
        if copy is DROPPED:
            return None
        if copy is None:
            copy = self.shell_of(node)
        self._copies[id(node)] = copy
        self._alive.append(node)
        return copy

    def shell_of(self, node: Node, like: Opaque | None = None) -> Node:
        """A new node with the edited parts of `node`, which need not be in the tree.
        Its parts may follow later.

        A call that replaces the call of a tensor names the old call as `like`.
        """
        shell: Node
        if is_tuple(node):
            # A tuple cannot be filled later. Tuples nest 64 deep at most; everything
            # else is a shell by now.
            items = tuple([self._item(item) for item in node])
            return node if all(map(_is_same, items, node)) else items
        if type(node) is list:
            shell = []
        elif type(node) is Dict:
            shell = Dict()
        elif type(node) is Set:
            shell = Set([], node.frozen)
        elif type(node) is PersistentId:
            named = PersistentId(node.pid, node.offset)
            named.shift = node.shift
            named.reach = node.reach
            named.meaning = node.meaning
            if type(node.meaning) is Storage:
                named.meaning = storage = self.storage(node.meaning)
                if storage.dtype is not node.meaning.dtype:
                    named.pid = None  # it names the class of the old storage
            return named
        elif type(node) is Opaque:
            shell = Opaque(node.how, node.func, (), None, node.offset)
        elif isinstance(node, (TensorRef, Composite)):
            return self.tensor_over(node)
        else:
            raise TypeError(f"a node of type {type(node).__name__}")
        if like is not None and type(node) is Opaque:
            node.meaning = like.meaning
        self._todo.append((node, shell))
        self._alive.append(node)
        return shell

    def tensor_over(self, tensor: Tensor) -> Tensor:
        """The tensor over the storages that replace its own."""
        if isinstance(tensor, TensorRef):
            return _move_view(tensor, self.storage(tensor.storage))
        parts = tuple(
            [
                (name, _move_view(part, self.storage(part.storage)))
                for name, part in tensor.parts
            ]
        )
        is_same = all(
            new is old for (_, new), (_, old) in zip(parts, tensor.parts, strict=True)
        )
        return tensor if is_same else replace(tensor, parts=parts)

    def _fill_shell(self, node: Node, shell: Node) -> None:
        if type(node) is list and type(shell) is list:
            shell[:] = [self._item(item) for item in node]
        elif type(node) is Dict and type(shell) is Dict:
            shell.keys = [self.copy_of(key) for key in self.keys(node, node.keys)]
            shell.values = [self._item(value) for value in node.values]
        elif type(node) is Set and type(shell) is Set:
            shell.items = [self._item(item) for item in node.items]
        elif type(node) is Opaque and type(shell) is Opaque:
            self._fill_call(node, shell)

    def _fill_call(self, node: Opaque, shell: Opaque) -> None:
        shell.func = self.copy_of(node.func)
        kwargs = self.copy_of(node.kwargs)
        assert kwargs is None or type(kwargs) is Dict
        shell.kwargs = kwargs
        shell.states = (
            [self._item(self.state(node, state)) for state in node.states]
            if node.states
            else ()
        )
        shell.items = [self._item(item) for item in node.items] if node.items else ()
        if node.keys:
            shell.keys = [self.copy_of(key) for key in self.keys(node, node.keys)]
            shell.values = [self._item(value) for value in node.values]
        if type(node.meaning) is Nested:
            root = self.copy_of(node.meaning.root)
            # Without arguments, because its bytes are written anew.
            shell.meaning = Nested(root)
            return
        shell.args = self._copy_arguments(self.arguments(node))
        if node.meaning is not None:
            self._calls.append((node.offset, shell))

    def _copy_arguments(self, args: tuple[Node, ...]) -> tuple[Node, ...]:
        copy = self._copies.get(id(args))
        if copy is None:
            items = tuple([self.copy_of(arg) for arg in args])
            copy = self._copies[id(args)] = (
                args if all(map(_is_same, items, args)) else items
            )
            self._alive.append(args)
        assert is_tuple(copy)
        return copy

    def _item(self, node: Node) -> Node:
        return self.leaf(node) if type(node) in _LEAVES else self.copy_of(node)


class EditInPlace(Edit):
    """An edit that changes the containers and calls of a tree themselves, for a reader
    whose tree nobody else has yet.

    Only `instead` has a say. A call that stays keeps its meaning, and a value with a
    tag is the new one.
    """

    def shell_of(self, node: Node, like: Opaque | None = None) -> Node:
        if is_tuple(node):
            return super().shell_of(node)
        if type(node) in _CONTAINERS:
            self._todo.append((node, node))
        return node

    def _find_meanings(self) -> None:
        for _, call in sorted(self._calls, key=lambda row: row[0]):
            if type(call.meaning) is Tagged:
                call.meaning = Tagged(inside(call.args[0]))
        self._calls.clear()


def _move_view(ref: TensorRef, storage: Storage) -> TensorRef:
    """The view of the storage that takes the place of its own; of that one's dtype
    where it is another.
    """
    if storage is ref.storage:
        return ref
    if storage.dtype is None or storage.dtype == ref.storage.dtype:
        return ref._replace(storage=storage)
    view = tensor_ref(
        storage, storage.dtype, ref.shape, ref.stride, ref.offset, ref.requires_grad
    )
    return view._replace(
        is_parameter=ref.is_parameter,
        is_buffer=ref.is_buffer,
        conj=ref.conj,
        neg=ref.neg,
    )


def _is_same(node: Node, other: Node) -> bool:
    return node is other

"""Walking the inert tree: its flat views (tensors, values, containers), in file order;
and a state dict taken apart as torch's planner does it.

Iterative, by identity: cycles are cut, a repeated subtree without tensors is listed
once, and the limits bound how far a small file may expand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import cast

from ckpt.model.checkpoint import Container, Entries, Entry, Role, Tensors, Value
from ckpt.model.columns import Chain, row_parts
from ckpt.model.errors import LimitError
from ckpt.model.limits import (
    LONG_NAME,
    TENSOR_BYTES,
    Budget,
    Limits,
    long_name_bytes,
)
from ckpt.model.names import NamedKey, Path
from ckpt.model.nodes import (
    WITH_STATE,
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    Set,
    inside,
    is_tuple,
    key_of,
    tensor_of,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, Storage, TensorRef, is_same_view, tensor_ref
from ckpt.tree.arrays import as_bytes
from ckpt.tree.find import (
    Registered,
    Step,
    are_texts,
    container_steps,
    is_scalar,
    merge_repeats,
    module_steps,
    named_children,
    refuse_repeats,
)
from ckpt.tree.view import SCALAR_NAMES, SCALARS, View, attribute_nodes, look

ROW_ITEMS = 100
"""A dict with more scalars than this (a vocabulary) is one value, not one row per
scalar.
"""
_PLACED = 100_000
"""The most globals and objects that are kept with their names."""
_PLACES = 1_000
"""The most names that are kept of each."""
_TOGETHER = 100
"""The most scalars of a dict that are recorded together."""
REPEAT_LENGTH = 256
"""A repeated string or list of at least this length is shown only once."""


class Flat:
    """The flat views of one tree, in file order, and the names under which its globals
    and objects occur.

    `where`: id of a Global, or of an Opaque that is not a tensor -> the names that hold
    it. `at_once` counts the tensors of the last large state dict: their names are the
    keys of one dict, so they differ. `repeats` says which keys a dict sets twice.
    """

    def __init__(self) -> None:
        self.tensors: Chain[Entry] = Chain()
        self.values: list[Value] = []
        self.containers: list[Container] = []
        self.where: dict[int, list[str]] = {}
        self.at_once = 0
        self.repeats: list[str] = []

    @property
    def names_differ(self) -> bool:
        """Tell whether it is certain that no two tensors have one name."""
        return self.at_once == len(self.tensors)


class _Frame(NamedTuple):
    """An open container. `below` gives the children that are not visited yet."""

    node: Node
    view: View
    path: Path
    name: str
    below: Iterator[Step]
    tensors: int
    """The number of tensors that were recorded before it was opened."""
    container: int | None
    """Its index in `Flat.containers`."""


def flatten_tree(root: Node, limits: Limits, budget: Budget | None = None) -> Flat:
    """The tensors, values and containers of a tree. Raises LimitError when it expands
    beyond the limits.

    `budget` is what is left for the file of the tree. A tree without one, such as an
    edited one, counts alone.
    """
    return _Walk(limits, budget).flatten_tree(root)


_FEW = 8
"""Children that are looked at again wherever their container stands."""
_MANY = 64
"""Children of a state dict that are worth to be recorded at once."""
_ROW = 700
"""Bytes of memory of a row and what is made of it."""
_STEP = 8
"""Bytes of memory of a step of its path."""
_ELEMENT = 8
"""Bytes of memory of a number of a numpy array."""
_AGAIN_EACH = 100
"""Bytes of memory that stand for the time of an entry that several objects are made
of.
"""


class _Walk:
    def __init__(self, limits: Limits, budget: Budget | None) -> None:
        self._limits = limits
        self._budget = budget or Budget(limits)
        # Tensors that the budget knows.
        self._counted: set[int] | None = set() if budget is None else None
        self._out = Flat()
        self._open: set[int] = set()  # containers above the current node
        # Containers and long scalars without tensors that were seen before: name and
        # type.
        self._barren: dict[int, tuple[str, str]] = {}
        # Nodes in attributes that were looked into.
        self._entered: dict[int, Node] = {}
        # Large containers that objects are made of.
        self._given: dict[int, Node] = {}
        # Containers of many parts -> whether they are shown as one value.
        self._rows: dict[int, bool] = {}
        # Modules, their own tensors, objects: what is shown once.
        self._registered: dict[int, str] = {}

    def flatten_tree(self, root: Node) -> Flat:
        # A stack of iterators and no recursion: a file may nest its containers deeper
        # than Python's own stack goes.
        stack: list[_Frame] = []
        first = self._visit_node(root, (), "", None, None, True, 0)
        if first is not None:
            stack.append(first)
        while stack:
            frame = stack[-1]
            entered = None
            # The iterator remembers where it was when a child is entered.
            for path, name, node, kind, registered, persistent in frame.below:
                entered = self._visit_node(
                    node, path, name, kind, registered, persistent, len(stack)
                )
                if entered is not None:
                    break
            if entered is not None:
                stack.append(entered)
            else:
                stack.pop()
                self._leave_container(frame)
        return self._out

    def _visit_node(
        self,
        node: Node,
        path: Path,
        name: str,
        kind: Role | None,
        registered: Registered,
        persistent: bool,
        depth: int,
    ) -> _Frame | None:
        """Record a leaf, or open a container."""
        self._charge_row(path, name)
        out = self._out
        # Scalars and logs first: most nodes are one of them.
        if type(node) in SCALAR_NAMES and not _is_long(node):
            out.values.append(_value_row(path, name, node))
            return None
        if type(node) is Dict and self._record_scalars(
            node, path, name, registered, depth
        ):
            return None
        tensor = tensor_of(node)
        if registered is not True and id(node) in self._registered:
            # `self.layers = [self.conv1, self.conv2]`, or the parameters of an
            # optimizer: not tensors of their own.
            what = "torch.Tensor" if tensor is not None else look(node).type
            first_name = self._registered[id(node)]
            out.values.append(Value(path, name, what, same_as=first_name))
            return None
        if tensor is not None:
            self._count(node)
            self._record_tensor(tensor, path, name, kind, registered, persistent)
            if registered:
                self._registered.setdefault(id(node), name)
            if type(node) is Opaque and (len(node.args) == WITH_STATE or node.states):
                self._record_attached(node, path, name)
            return None
        if type(node) is Global or type(node) is Opaque:
            # Before the wrapping is taken off: a wrapper has a class of its own.
            self._record_places(node, name)
            node = inside(node)
        if type(node) is PersistentId and type(node.meaning) is Storage:
            bare = bare_storage(node.meaning, _count_elements(node.meaning))
            is_registered = registered is not False
            out.tensors.append(
                Entry(path, name, bare, None, None, is_registered, persistent)
            )
            return None
        marker = id(node)
        if marker in self._open:
            out.values.append(Value(path, name, "cycle", same_as="an object above it"))
            return None
        if marker in self._barren:
            before, what = self._barren[marker]
            out.values.append(Value(path, name, what, same_as=before))
            return None
        if type(node) is Opaque:
            self._charge_shared(node)
        view = look(node)
        if view.kind == "scalar":
            out.values.append(Value(path, name, view.type, node))
            if _is_long(view.value):
                self._barren[marker] = name, view.type
            return None
        if depth >= self._limits.depth:
            raise LimitError(
                "the tree of the file is nested too deep", "depth", self._limits.depth
            )
        if view.kind == "mapping":
            view = self._check_keys(node, view, name)
        if view.type.startswith("numpy.ndarray") or type(node) is Opaque:
            # The pickle holds the bytes of an array; the view has made a number of each
            # element. Many calls may be given one list, of which each view is a copy.
            self._budget.charge(_ELEMENT * len(view.children), "the tree of the file")
        if self._is_row(node, view):
            self._record_row(node, view, path, name)
            return None
        return self._enter_container(node, view, path, name, registered)

    def _check_keys(self, node: Node, view: View, name: str) -> View:
        """Return the view of a mapping in which no key is set twice, or raise
        UnreadableError.
        """
        # The tree of a file is mended, as Python would read it, and the mending is
        # told. An edit makes no repeats, so one in its tree is an error of the edit.
        is_of_file = self._counted is None
        repeat_text = merge_repeats(node, name) if is_of_file else None
        if repeat_text is not None:
            self._out.repeats.append(repeat_text)
            view = look(node)
        refuse_repeats(view, name)
        return view

    def _record_row(self, node: Node, view: View, path: Path, name: str) -> None:
        """Record a container as one value."""
        # Without the checks of a call of the class, as `_value_row` makes one.
        fields = path, name, view.type, node, None, None
        self._out.values.append(tuple.__new__(Value, fields))
        if type(node) is Opaque and view.kind == "mapping" and node.states:
            # Its attributes may lead back to it.
            self._open.add(id(node))
            self._record_attached(node, path, name)
            self._open.discard(id(node))
        is_long = len(view.children) >= REPEAT_LENGTH
        # Short lists are shown wherever they occur: `betas` of each parameter group.
        if is_long or (view.kind != "sequence" and view.children):
            self._barren[id(node)] = name, view.type

    def _record_scalars(
        self, node: Dict, path: Path, name: str, registered: Registered, depth: int
    ) -> bool:
        """Record a small dict of scalars at once, as `_enter_container` would. Tell
        whether it is one.

        A log of a training has one for each step. Without tensors it leaves no
        container.
        """
        keys, children = node.keys, node.values
        # The dicts near the root leave a container, with tensors or without.
        if registered is False or len(path) < 2 or depth >= self._limits.depth:
            return False
        if not 0 < len(children) <= _TOGETHER:
            return False
        if not SCALARS.issuperset(map(type, children)):
            return False
        if not are_texts(keys) or len(set(keys)) < len(keys) or "param_groups" in keys:
            return False
        if any(map(_is_long, children)):
            return False
        if id(node) in self._open or id(node) in self._barren:
            return False
        for key, child in zip(cast("Sequence[str]", keys), children, strict=True):
            child_path = (*path, key)
            child_name = f"{name}.{key}"
            self._charge_row(child_path, child_name)
            self._out.values.append(_value_row(child_path, child_name, child))
        self._barren[id(node)] = name, "dict"
        return True

    def _charge_shared(self, call: Opaque) -> None:
        """Charge what a call is given, or its state, where another one before was given
        the same: each looks through all of it.
        """
        for given in (*call.args, *call.states):
            for part in given if is_tuple(given) and len(given) == 2 else (given,):
                size = _size_of(part)
                if size < REPEAT_LENGTH:
                    continue
                if id(part) in self._given:
                    self._budget.charge(_AGAIN_EACH * size, "the tree of the file")
                self._given[id(part)] = part

    def _is_row(self, node: Node, view: View) -> bool:
        """Tell whether a container is shown as one value. What stands at many places is
        looked at once.
        """
        if len(view.children) < _FEW:
            return _is_row(view)
        if id(node) not in self._rows:
            self._rows[id(node)] = _is_row(view)
        return self._rows[id(node)]

    def _charge_row(self, path: Path, name: str) -> None:
        """Charge one row. A text with a character beyond Latin takes up to four bytes
        for each.
        """
        budget = self._budget
        name_bytes = len(name) if name.isascii() else 4 * len(name)
        if name_bytes > LONG_NAME:
            name_bytes += long_name_bytes(name)
        # Not by `charge`: this runs for every row, and a call costs more than the sum.
        budget.memory -= _ROW + _STEP * len(path) + name_bytes
        if budget.memory < 0:
            budget.charge_rows("the tree of the file")

    def _count(self, node: Node) -> None:
        """Charge a tensor to a budget that no file has charged before."""
        # Reading a pickle has charged its tensors to the budget of the file already.
        if self._counted is not None and id(node) not in self._counted:
            self._counted.add(id(node))
            self._budget.hold(TENSOR_BYTES)
            self._budget.claim(1)

    def _record_tensor(
        self,
        tensor: TensorRef | Composite,
        path: Path,
        name: str,
        kind: Role | None,
        registered: Registered,
        persistent: bool,
    ) -> None:
        # The place where a module registers a tensor is certain. A tensor outside of
        # modules says itself whether it is a Parameter, if it was not detached.
        source = "module" if kind else None
        if kind is None and tensor.is_parameter:
            kind, source = "parameter", "Parameter"
        elif kind is None and tensor.is_buffer:
            kind, source = "buffer", "Buffer"
        is_registered = registered is not False
        self._out.tensors.append(
            Entry(path, name, tensor, kind, source, is_registered, persistent)
        )

    def _record_attached(self, owner: Opaque, path: Path, name: str) -> None:
        """Add the tensors in attributes of a tensor or of a dict. torch restores them,
        state_dict() lacks them.

        A container in an attribute is entered once in the whole tree.
        """
        todo: list[_Attached] = []
        self._push_children(todo, _attribute_children(owner), path, name, owner)
        while todo:
            node, place, text, owner = todo.pop()
            if len(place) - len(path) >= self._limits.depth:
                raise LimitError(
                    "the tree of the file is nested too deep",
                    "depth",
                    self._limits.depth,
                )
            tensor = tensor_of(node)
            if tensor is None:
                node = inside(node)
            # Subclasses keep their own data as an attribute as well.
            elif not is_same_view(tensor, owner.meaning):
                self._record_tensor(tensor, place, text, None, False, True)
            if id(node) in self._entered or id(node) in self._open:
                continue
            self._entered[id(node)] = node
            below: list[tuple[Path, str, Node]] = []
            if tensor is None:
                below += named_children(look(node))
            if type(node) is Opaque:
                # The attributes of any other object are its children already.
                if tensor is not None or look(node).kind == "mapping":
                    below += _attribute_children(node)
                owner = node
            self._push_children(todo, below, place, text, owner)

    def _push_children(
        self,
        todo: list[_Attached],
        below: list[tuple[Path, str, Node]],
        path: Path,
        name: str,
        owner: Opaque,
    ) -> None:
        """Push children so that the first is popped first."""
        for inner, text, node in reversed(below):
            # Scalars in attributes are not shown, and most attributes are scalars.
            if not _is_barren(node):
                child_name = f"{name}.{text}" if path else text
                # Each name stands here until its node is looked at.
                self._charge_row(path, child_name)
                todo.append(_Attached(node, (*path, *inner), child_name, owner))

    def _record_places(self, node: Node, name: str) -> None:
        """Note the name of a node, and of what its call names: its function, and the
        classes among its arguments.
        """
        self._record_place(node, name)
        if type(node) is not Opaque:
            return
        self._record_place(node.func, name)
        self._record_classes(node.args, name)
        function = node.func
        if type(function) is PersistentId:
            # The class of a module in a file of an old format, with its source text.
            self._record_place(function.meaning, name)
        elif type(function) is Opaque:
            # `getattr(Outer, "Inner")()`: protocol 2 calls for a nested class.
            self._record_place(function.func, name)
            self._record_classes(function.args, name)

    def _record_classes(self, args: tuple[Node, ...], name: str) -> None:
        for part in args:
            if type(part) is Global:
                self._record_place(part, name)

    def _record_place(self, place: Node | Storage, name: str) -> None:
        """Note the name of a global or an object."""
        if type(place) is not Global and type(place) is not Opaque:
            return
        names = self._out.where.get(id(place))
        if names is None:
            if len(self._out.where) < _PLACED:
                self._out.where[id(place)] = [name]
        elif len(names) < _PLACES:
            names.append(name)

    def _enter_container(
        self, node: Node, view: View, path: Path, name: str, registered: Registered
    ) -> _Frame:
        """Open a container, and record what is recorded of it before its children."""
        out = self._out
        # Before any tensor of it is recorded, attached ones and those of `_record_flat`
        # too.
        first = len(out.tensors)
        self._open.add(id(node))
        container = None
        # A list deep in a tree is no section of a checkpoint: it needs no row.
        if view.kind != "sequence" or len(path) < 3:
            container = len(out.containers)
            out.containers.append(_container_row(node, view, path, name, first))
        # Objects of TorchScript are its modules, which may be shown at every place.
        is_script = view.type.startswith("__torch__.")
        if view.kind == "object" and view.children and not is_script:
            # A repeated object with tensors is shown once.
            self._registered[id(node)] = name
        if view.kind in ("object", "module"):
            out.values.append(Value(path, name, view.type, fields=len(view.children)))
        if type(node) is Opaque and view.kind == "mapping" and node.states:
            self._record_attached(node, path, name)
        if view.kind == "module":
            self._registered.setdefault(id(node), name)
            below = module_steps(view, path, name, registered)
        elif self._record_flat(view, path, name, registered):
            below = iter(())
        else:
            below = container_steps(view, path, name, registered)
        if type(view.metadata) is Opaque:
            metadata_name = f"{name}._metadata" if path else "_metadata"
            self._record_places(view.metadata, metadata_name)
        return _Frame(node, view, path, name, below, first, container)

    def _record_flat(
        self, view: View, path: Path, name: str, registered: Registered
    ) -> bool:
        """Record a large state dict at once, as `_visit_node` would tensor by tensor.
        Tell whether it is one.
        """
        nodes, keys = view.children, view.keys
        if view.kind != "mapping" or len(nodes) < _MANY:
            return False
        # Inside of modules, and after them, a tensor may be one that was shown before.
        if registered is not None or self._registered:
            return False
        if not are_texts(keys):
            return False
        columns: list[Sequence[TensorRef]] = []
        for part in row_parts(nodes):
            tensors = part if isinstance(part, Tensors) else _plain_tensors(part)
            if tensors is None:
                return False
            columns.append(tensors)
        texts = cast("Sequence[str]", keys)
        # The charges of `_charge_row` for each, in one sum, before the names are made:
        # all of them begin with the name of the dict, which may be long.
        letters = "".join(texts)
        is_ascii = letters.isascii() and name.isascii()
        letter_bytes = len(letters) + len(texts) * (len(name) + 1 if path else 0)
        row_bytes = _ROW + _STEP * (len(path) + 1)
        self._budget.charge(
            row_bytes * len(texts) + letter_bytes * (1 if is_ascii else 4),
            "the tree of the file",
        )
        names = [f"{name}.{key}" for key in texts] if path else texts
        self._budget.charge_names(names, "the tree of the file")
        if self._counted is not None:
            for node in nodes:
                self._count(node)
        self._out.at_once = len(texts)
        position = 0
        for tensors in columns:
            span = slice(position, position + len(tensors))
            position += len(tensors)
            if isinstance(tensors, Tensors):
                # Rows in columns are not made before somebody looks at them.
                self._out.tensors.extend(
                    Entries(path, texts[span], names[span], tensors)
                )
                continue
            # The fields of Entry in its order, without the checks of a call of the
            # class: kind and source are None, registered and persistent are True.
            paths = map(path.__add__, zip(texts[span], strict=True))
            fields = zip(
                paths,
                names[span],
                tensors,
                repeat(None),
                repeat(None),
                repeat(True),
                repeat(True),
            )
            self._out.tensors.extend(map(tuple.__new__, repeat(Entry), fields))
        return True

    def _leave_container(self, frame: _Frame) -> None:
        """Close a container, and drop its row if nobody would ask for it."""
        out = self._out
        self._open.discard(id(frame.node))
        has_tensors = len(out.tensors) > frame.tensors
        if not has_tensors and frame.view.children:
            self._barren[id(frame.node)] = frame.name, frame.view.type
        if frame.container is None:
            return
        row = out.containers[frame.container]
        if has_tensors or len(row.path) <= 1 or "param_groups" in row.keys:
            out.containers[frame.container] = row._replace(last=len(out.tensors))
        else:
            # It is the last one, because those inside it were removed before.
            out.containers.pop()


class _Attached(NamedTuple):
    """A node in an attribute, and the call that it is attached to."""

    node: Node
    path: Path
    name: str
    owner: Opaque


def _attribute_children(owner: Opaque) -> list[tuple[Path, str, Node]]:
    """The attributes of a tensor or a dict as children: path, name, node."""
    return [((key,), key, value) for key, value in attribute_nodes(owner)]


def _container_row(
    node: Node, view: View, path: Path, name: str, first: int
) -> Container:
    """Return the row of a container whose tensors begin at the index `first`."""
    keys: tuple[str | int, ...] = ()
    if view.kind != "sequence":
        if are_texts(view.keys):
            keys = cast("tuple[str, ...]", tuple(view.keys))
        else:
            keys = tuple([key for key in view.keys if isinstance(key, (str, int))])
    return Container(
        path,
        name,
        view.type,
        keys,
        first,
        0,
        view.kind == "module",
        view.metadata is not None,
        node,
    )


def _count_elements(storage: Storage) -> int:
    """Return the number of elements of a storage, or of its bytes if no class says its
    dtype.
    """
    if storage.dtype is None:
        return storage.nbytes
    # A storage of a type with two elements in a byte counts its bytes.
    return storage.nbytes * 8 // max(8, storage.dtype.bits)


def _value_row(path: Path, name: str, scalar: Node) -> Value:
    """Return the row of a scalar, which is made without the checks of a call of the
    class.
    """
    return tuple.__new__(
        Value, (path, name, SCALAR_NAMES[type(scalar)], scalar, None, None)
    )


def _plain_tensors(nodes: Sequence[Node]) -> Sequence[TensorRef] | None:
    """The tensors of nodes that are all plain tensors, and no Parameters; else None."""
    refs = [node if type(node) is TensorRef else _made_by(node) for node in nodes]
    # One set of all types, because this runs for each state dict of every file.
    if set(map(type, refs)) != {TensorRef}:
        return None
    tensors = cast("list[TensorRef]", refs)
    if any(tensor.is_parameter or tensor.is_buffer for tensor in tensors):
        return None
    return tensors


def _made_by(node: Node) -> TensorRef | None:
    """The tensor of a call that makes nothing else."""
    if (
        type(node) is Opaque
        and type(node.meaning) is TensorRef
        and len(node.args) != WITH_STATE
        and not node.states
    ):
        return node.meaning
    return None


def _is_barren(node: Node) -> bool:
    """Tell whether a node in an attribute is a scalar, or a plain container of nothing
    else.
    """
    if type(node) is Dict:
        return SCALARS.issuperset(map(type, node.values))
    if type(node) is list or type(node) is tuple:
        return SCALARS.issuperset(map(type, cast("Sequence[Node]", node)))
    return type(node) in SCALARS


def bare_storage(storage: Storage, numel: int) -> Composite:
    """A storage in the tree without a tensor around it."""
    from ckpt.model.dtypes import UINT8

    dtype = storage.dtype or UINT8
    view = tensor_ref(storage, dtype, (numel,), (1,), 0)
    return Composite("storage", dtype, (numel,), (("storage", view),))


def _size_of(node: Node) -> int:
    """The entries of a plain container, or 0 for any other node."""
    if type(node) is Dict:
        return len(node.keys)
    if type(node) is Set:
        return len(node.items)
    return len(node) if type(node) is list or is_tuple(node) else 0


def _is_row(view: View) -> bool:
    """Tell whether a container is shown as one value: a sequence of scalars, or a large
    mapping of them.
    """
    if view.type.startswith("numpy.ndarray") and "object" not in view.type:
        return True
    if view.kind == "sequence":
        if not view.children:
            return True
        return _holds_rows(view.children) and not _repeats_text(view.children)
    if view.kind != "mapping" or view.metadata is not None:
        return False
    if not view.children:
        return True
    return len(view.children) > ROW_ITEMS and all(map(is_scalar, view.children))


def _holds_rows(nodes: Sequence[Node]) -> bool:
    """Tell whether all nodes are scalars, bytes or rows of scalars.

    A long row is looked at once, however often it occurs.
    """
    if SCALARS.issuperset(map(type, nodes)):
        return True
    seen: set[int] = set()
    for node in map(inside, nodes):
        if type(node) in SCALARS or id(node) in seen:
            continue
        if not _is_scalar_row(node) and as_bytes(node) is None:
            return False
        if type(node) is not list or len(node) > 16:
            seen.add(id(node))
    return True


def _repeats_text(nodes: Sequence[Node]) -> bool:
    """Tell whether a list repeats long texts so often that writing all of them would
    multiply the file.
    """
    if _LETTERED.isdisjoint(map(type, nodes)):
        return False
    lengths: dict[int, int] = {}
    for node in nodes:
        length = _count_letters(node)
        if length >= REPEAT_LENGTH:
            lengths[id(node)] = length
    if not lengths:
        return False
    written = sum(lengths.get(id(node), 0) for node in nodes)
    return written > 1_000_000 and written > 2 * sum(lengths.values())


def _count_letters(node: Node) -> int:
    """Count the letters of a text or of bytes, which protocol 2 writes as a call with a
    text; 0 of any other node.
    """
    if type(node) is Opaque:
        node = node.args[0] if len(node.args) == 2 else None
    return len(node) if isinstance(node, (str, bytes)) else 0


def _is_scalar_row(node: Node) -> bool:
    """Tell whether a node is a row of a small array: a list of scalars inside a
    list.
    """
    return type(node) is list and len(node) <= ROW_ITEMS and all(map(is_scalar, node))


_LETTERS = (str, bytes, bytearray)
_LETTERED = frozenset((str, bytes, ByteStr, Opaque))


def _is_long(value: Node | Storage) -> bool:
    return isinstance(value, _LETTERS) and len(value) >= REPEAT_LENGTH


_TEXT_KINDS = ("NoneType", "bool", "float", "tuple")
"""The kinds of keys, beside int, whose text says the key."""
_STEPS = 10_000_000
"""The most nodes that are visited: dicts that hold each other many times over would
never be taken apart.
"""
_AGAIN = 50_000
"""Dicts and lists that stand at a second place: a small file may hold each other sixty
levels deep.
"""


class Leaf(NamedTuple):
    """A tensor or an object, its name, and its path in the state dict."""

    name: str
    path: tuple[str | int, ...]
    node: Node


class Parts:
    """The leaves of a state dict, and what they cannot say of it."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.texts: dict[str, int] = {}
        """Dicts whose keys become text, by the names of the dicts, and how many
        keys.
        """
        self.empty: list[str] = []
        """Dicts that vanish because nothing is in them."""
        self.versions: list[str] = []
        """Dicts with `_metadata`, which holds the versions of modules."""
        self.tuples: list[str] = []
        """Tuples with a tensor or a dict inside: each stays one object."""
        self.odd: list[str] = []
        """Keys that are no text and no number."""


def parts_of(root: Node, limits: Limits, *, whole: bool = False) -> Parts:
    """The leaves of a state dict. With `whole` each item of the root is one. Raises
    LimitError.
    """
    parts = Parts()
    _Taker(parts, limits).take_apart(root, whole)
    return parts


class _Taker:
    """Takes a state dict apart.

    Source: `flatten_state_dict` in torch/distributed/checkpoint/_nested_dict.py, which
    the planner calls.
    """

    def __init__(self, parts: Parts, limits: Limits) -> None:
        self._parts = parts
        self._limits = limits
        self._steps = 0
        self._seen: set[int] = set()
        self._again = 0
        self._closed: dict[int, bool] = {}
        self._hollow: set[int] = set()

    def take_apart(self, root: Node, whole: bool) -> None:
        todo: list[tuple[tuple[str | int, ...], Node]] = [((), root)]
        while todo:
            path, node = todo.pop()
            self._count_step(path, node)
            view = look(node)
            is_in_list = any(type(step) is int for step in path)
            if whole and path:
                self._add_leaf(path, node)
            # An empty dict in a list is a leaf: torch cannot load its own list that
            # lacks a position.
            elif view.kind == "mapping" and (view.children or not is_in_list):
                todo += reversed(self._list_items(path, view))
            elif type(node) is list and not self._is_closed(node):
                todo += reversed(
                    [((*path, place), item) for place, item in enumerate(node)]
                )
            else:
                self._add_leaf(path, node, view)

    def _count_step(self, path: tuple[str | int, ...], node: Node) -> None:
        """Count a visit of a node. Raises LimitError."""
        if len(path) > self._limits.depth:
            raise LimitError("dicts are nested too deep", "depth", self._limits.depth)
        self._steps += 1
        if id(node) in self._seen:
            self._again += 1
        if isinstance(node, (Dict, Opaque, list)):
            self._seen.add(id(node))
        if self._steps > _STEPS or self._again > _AGAIN:
            raise LimitError(
                "the dict holds too many items", "depth", self._limits.depth
            )

    def _list_items(
        self, path: tuple[str | int, ...], view: View
    ) -> list[tuple[tuple[str | int, ...], Node]]:
        """The items of a dict with their paths."""
        parts = self._parts
        name = _dotted_name(path)
        if not view.children and path:
            parts.empty.append(name)
        if view.metadata is not None:
            parts.versions.append(name)
        rows: list[tuple[tuple[str | int, ...], Node]] = []
        for place, (key, child) in enumerate(
            zip(view.keys, view.children, strict=True)
        ):
            if not isinstance(key, str):
                parts.texts[name] = parts.texts.get(name, 0) + 1
            rows.append(((*path, self._text_of_key(key, place, name)), child))
        return rows

    def _text_of_key(self, key: Node, place: int, name: str) -> str:
        """Return the text that `str` makes of a key."""
        if isinstance(key, str):
            return key.text if isinstance(key, ByteStr) else key
        text = key_of(key, place)
        if isinstance(text, NamedKey) and text.kind not in _TEXT_KINDS:
            self._parts.odd.append(f"{name}.{text}" if name else text)
        return str(text)

    def _is_closed(self, node: list[Node]) -> bool:
        """Tell whether a list stays one object.

        Then nothing in it is a tensor, a dict, or a list that is taken apart, or all of
        it is hollow.
        """
        # A stack and no recursion. A list is answered after the lists in it: while one
        # of them has no answer yet, it is put on top.
        todo = [node]
        while todo:
            items = todo[-1]
            if id(items) in self._closed:
                todo.pop()
                continue
            self._steps += len(items) + 1
            if len(todo) > self._limits.depth or self._steps > _STEPS:
                raise LimitError(
                    "lists are nested too deep", "depth", self._limits.depth
                )
            inner = [item for item in items if type(item) is list]
            missing = [item for item in inner if id(item) not in self._closed]
            if missing:
                todo.append(missing[0])
                continue
            todo.pop()
            if self._is_hollow(items):
                self._hollow.add(id(items))
            is_whole = all(map(self._stays_whole, items))
            self._closed[id(items)] = is_whole or id(items) in self._hollow
        return self._closed[id(node)]

    def _stays_whole(self, item: Node) -> bool:
        """Tell whether an item leaves its list whole. Lists in it have answers."""
        if type(item) is list:
            return self._closed[id(item)] and id(item) not in self._hollow
        return look(item).kind not in ("mapping", "tensor")

    def _is_hollow(self, items: list[Node]) -> bool:
        """Tell whether a list holds nothing but empty dicts, also in lists.

        torch asks for no item of it, and finds none where each dict is an item.
        """
        for item in items:
            if type(item) is list:
                if id(item) not in self._hollow:
                    return False
                continue
            view = look(item)
            if view.kind != "mapping" or view.children:
                return False
        return bool(items)

    def _add_leaf(
        self, path: tuple[str | int, ...], node: Node, view: View | None = None
    ) -> None:
        name = _dotted_name(path)
        self._parts.leaves.append(Leaf(name, path, node))
        if view is None or view.kind != "sequence" or type(node) is list:
            return
        if any(look(item).kind in ("tensor", "mapping") for item in view.children):
            self._parts.tuples.append(name)


def _dotted_name(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))

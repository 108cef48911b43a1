"""The modules of a pickled model, walked as torch walks a live model: what is
registered, and what torch does not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.evidence.record import LooseModule
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.nodes import Global, Node, Opaque, key_of, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.pickle.judge.names import is_known
from ckpt.tree.find import HOOKS, REGISTERED
from ckpt.tree.view import View, look

# Containers in each other, and nodes, that are looked at: a hostile file has more.
_DEPTH = 8
_VISITS = 1_000_000


class Hook(NamedTuple):
    """A hook of a module that is a function of unknown code. Loading needs that
    code.
    """

    module: str
    function: str


class UnseenParts(NamedTuple):
    """The parts of a pickled model that torch does not see, or sees twice."""

    loose: tuple[LooseModule, ...]
    plain_tensors: tuple[str, ...]
    """Tensors that are plain attributes: neither parameters nor buffers."""
    twice: tuple[tuple[str, str], ...]
    """(a name, the other name) of modules that are registered under two names."""
    hooks: tuple[Hook, ...]


def unseen_parts(checkpoint: Checkpoint) -> UnseenParts:
    """The parts of the pickled models in a checkpoint that torch does not see. Reads no
    tensor.
    """
    loose: list[LooseModule] = []
    plain: list[str] = []
    twice: list[tuple[str, str]] = []
    hooks: list[Hook] = []
    for name, node in _outermost_modules(checkpoint):
        model = _Model(name, node)
        twice += model.twice
        for place, view in model.modules.values():
            hooks += _unknown_hooks(place, view)
            if view.type.startswith(("torch.nn.", "torch.ao.nn.")):
                # Its lists are of torch itself: the flat weights of an LSTM, and the
                # packed ones of a quantized layer, which its state dict has.
                continue
            for attribute, child in _plain_attributes(view):
                child_place = f"{place}.{attribute}" if place else attribute
                if tensor_of(child) is not None:
                    if id(child) not in model.tensors:
                        plain.append(child_place)
                    continue
                kind = _container_view(child, look(child)).kind
                if kind in ("sequence", "mapping"):
                    loose += model.loose(child, child_place)
    return UnseenParts(tuple(loose), tuple(plain), tuple(twice), tuple(hooks))


def _outermost_modules(checkpoint: Checkpoint) -> Iterator[tuple[str, Node]]:
    """The outermost pickled modules and their names."""
    covered: list[tuple[object, ...]] = []
    for row in checkpoint.containers:
        if row.is_module and not any(row.path[: len(path)] == path for path in covered):
            covered.append(row.path)
            yield row.name, row.node


class _Model:
    """One model: its registered modules by id with their names, and the tensors that
    they register.
    """

    def __init__(self, name: str, root: Node) -> None:
        self.modules: dict[int, tuple[str, View]] = {}
        self.twice: list[tuple[str, str]] = []
        self.tensors: set[int] = set()
        self._seen: set[int] = set()
        self._depths: dict[int, int] = {}
        """The least depth at which each plain container was seen, by its id."""
        for place, node, view in _modules_below(name, root):
            if id(node) in self.modules:
                first_place, _ = self.modules[id(node)]
                self.twice.append((place, first_place))
                continue
            self.modules[id(node)] = (place, view)
            registered = _registered_children(view)
            for attribute in ("_parameters", "_buffers"):
                self.tensors.update(id(child) for _, child in registered[attribute])

    def loose(self, container: Node, place: str) -> Iterator[LooseModule]:
        """The modules and Parameters in a plain container, and in the containers inside
        it.
        """
        todo = [(container, place, 0)]
        while todo and len(self._seen) < _VISITS:
            node, path, depth = todo.pop()
            if tensor_of(node) is not None:
                if self._is_loose_parameter(node):
                    self._seen.add(id(node))
                    yield LooseModule(
                        path, "parameter", "torch.nn.parameter.Parameter", 1, None
                    )
                continue
            if id(node) in self._seen:
                continue
            view = _container_view(node, look(node))
            if view.kind == "module":
                self._seen.add(id(node))
                module = self._loose_module(node, view, path)
                if module is not None:
                    yield module
            elif view.kind in ("sequence", "mapping") and depth <= _DEPTH:
                # Lists that hold one list many times would double at each depth. What
                # lies below a list was seen whole where it stood as high before.
                if self._depths.get(id(node), _DEPTH + 1) <= depth:
                    continue
                self._depths[id(node)] = depth
                # The last of the list is taken first: so the order is the file's.
                todo += reversed(_items_below(view, path, depth + 1))

    def _is_loose_parameter(self, node: Node) -> bool:
        """Tell whether a tensor is a Parameter that no module registers, seen for the
        first time.
        """
        tensor = tensor_of(node)
        if tensor is None or not tensor.is_parameter:
            return False
        return id(node) not in self.tensors and id(node) not in self._seen

    def _loose_module(self, node: Node, view: View, path: str) -> LooseModule | None:
        """Return the record of a module in a plain container, or None without
        parameters and buffers.
        """
        registered_place = None
        lost = 0  # parameters that torch does not see
        held = 0
        seen: set[int] = set()
        for _, module, module_view in _modules_below(path, node):
            if id(module) in seen:
                continue
            seen.add(id(module))
            registered = _registered_children(module_view)
            for _, parameter in registered["_parameters"]:
                if id(parameter) not in self.tensors:
                    lost += 1
            held += len(registered["_buffers"]) + len(registered["_parameters"])
            if id(module) in self.modules and not registered_place:
                registered_place, _ = self.modules[id(module)]
        if not held:
            return None  # an activation
        if lost:
            registered_place = None
        return LooseModule(path, "module", view.type, lost, registered_place)


def _items_below(view: View, path: str, depth: int) -> list[tuple[Node, str, int]]:
    """The items of a sequence or mapping, each with its path as Python source."""
    keys: Sequence[Node] = range(len(view.children))
    if view.kind == "mapping":
        keys = view.keys
    rows: list[tuple[Node, str, int]] = []
    for number, (key, child) in enumerate(zip(keys, view.children, strict=True)):
        rows.append((child, f"{path}[{_key_source(key, number)}]", depth))
    return rows


def _modules_below(name: str, root: Node) -> Iterator[tuple[str, Node, View]]:
    """Yield a module and those that are registered below it: name, node and view. One
    at a second place comes again, alone.
    """
    seen: set[int] = set()
    todo = [(name, root)]
    while todo and len(seen) < _VISITS:
        place, node = todo.pop()
        view = look(node)
        if view.kind != "module":
            continue
        yield place, node, view
        if id(node) in seen:
            continue
        seen.add(id(node))
        children = [
            (f"{place}.{key}" if place else key, child)
            for key, child in _registered_children(view)["_modules"]
        ]
        todo += reversed(children)


def _container_view(node: Node, view: View) -> View:
    """The view of an object whose class derives from list, dict or tuple as one of
    these; else the view itself.
    """
    if view.kind != "object" or type(node) is not Opaque:
        return view
    if node.items:
        return View("sequence", view.type, children=node.items)
    if node.keys:
        return View("mapping", view.type, keys=node.keys, children=node.values)
    if node.how == "newobj" and node.args and not node.states:  # a named tuple
        return View("sequence", view.type, children=node.args)
    return view


def _key_source(key: Node, number: int) -> str:
    """A key as Python source."""
    return repr(str(key)) if isinstance(key, str) else str(key_of(key, number))


def _registered_children(view: View) -> dict[str, list[tuple[str, Node]]]:
    """Return the parameters, buffers and children of a module that are not None, by
    name.
    """
    state = dict(zip(view.keys, view.children, strict=True))
    registered: dict[str, list[tuple[str, Node]]] = {}
    for attribute in REGISTERED:
        inner = look(state.get(attribute))
        children: list[tuple[str, Node]] = []
        if inner.kind == "mapping":
            for key, child in zip(inner.keys, inner.children, strict=True):
                # `register_buffer(name, None)` keeps a name without a tensor.
                if child is not None:
                    children.append((str(key), child))
        registered[attribute] = children
    return registered


def _plain_attributes(view: View) -> Iterator[tuple[str, Node]]:
    for key, child in zip(view.keys, view.children, strict=True):
        if isinstance(key, str) and key not in REGISTERED and key not in HOOKS:
            yield str(key), child


def _unknown_hooks(place: str, view: View) -> Iterator[Hook]:
    """The hooks of a module that are functions with unknown names."""
    for key, child in zip(view.keys, view.children, strict=True):
        if key not in HOOKS:
            continue
        for function in look(child).children:
            name = function if type(function) is Global else _hook_function(function)
            if name is not None and not is_known(name):
                yield Hook(place, name.qualified)


def _hook_function(node: Node) -> Global | None:
    """The function of a partial, or the class of a callable object."""
    if type(node) is not Opaque:
        return None
    if node.class_name == "functools.partial":
        return next((arg for arg in node.args if type(arg) is Global), None)
    if node.class_name.endswith(".getattr") and node.args:
        owner = node.args[0]
        if type(owner) is Opaque:  # a method of an object
            module, _, name = look(owner).type.rpartition(".")
            return Global(module, name)
    return node.func if type(node.func) is Global else None

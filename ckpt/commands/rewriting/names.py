"""Other names for the tensors of a model: what `ckpt strip` and `ckpt rename` share.

Keys of state dicts change where they stand, with the module paths of `_metadata` and
the names that an optimizer keeps; order and all else stay. Two names never become one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.report import Leftover, keys_beside
from ckpt.evidence.alignment import both_called
from ckpt.evidence.optimizers import flattened_names, named_parts
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import LossError, UnsupportedError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs, Path
from ckpt.model.nodes import Dict, Node, Opaque, tensor_of
from ckpt.model.text import counted_noun, show
from ckpt.pickle.edit import Edit
from ckpt.pickle.judge.imports import nodes_below
from ckpt.tree.find import METADATA, node_at
from ckpt.tree.view import attributes, look

_EXTRA = "_extra_state"
"""The key of the state that a module keeps beside its tensors, under its own name."""
NewName = Callable[[str], str]
"""A name inside its section -> the new one."""


def in_scope(
    survey: Survey, section: str | None, select: Globs | None, new_name: NewName
) -> tuple[list[Section], NewName]:
    """The sections that change, and the new name of those tensors alone that are
    selected.

    A selection is of one model. Raises UsageError where it matches nothing, or where
    there are several models.
    """
    if not select:
        return survey.weights(section), new_name
    only = survey.only_model(section)
    chosen = only.selected(select, survey.path)
    assert chosen

    def renamed(name: str) -> str:
        full = f"{only.name}.{name}" if only.path else name
        return new_name(name) if select.match(name, full) else name

    return [only], renamed


def not_selected(entries: Sequence[Entry]) -> list[Leftover]:
    """The line of a report about the tensors that were not selected."""
    if not entries:
        return []
    nbytes = sum(entry.tensor.nbytes for entry in entries)
    return [Leftover("(not selected)", counted_noun(len(entries), "tensor"), nbytes)]


def with_new_names(
    survey: Survey,
    chosen: list[Section],
    new_name: NewName,
    limits: Limits,
    unwrapped: dict[int, Node] | None = None,
) -> tuple[Checkpoint, dict[str, dict[str, str]]]:
    """The checkpoint under new names, and for each section that changed its old names
    with their new ones.

    `unwrapped` are modules that give way to the one that they wrap. Raises LossError
    when two tensors would get one name, UnsupportedError when a tensor would have to
    move into another dict.
    """
    checkpoint = survey.checkpoint
    edit = _Rename(new_name, unwrapped or {})
    changed: dict[str, dict[str, str]] = {}
    for section in chosen:
        # State of a module beside its tensors is renamed with them.
        beside = {
            key for key in keys_beside(survey, section) if not str(key).endswith(_EXTRA)
        }
        names = _plan_renames(checkpoint, section, new_name, edit, beside)
        if names:
            changed[section.name] = names
    if not changed and not unwrapped:
        return checkpoint, {}
    edit.known = _known_names(survey, chosen, changed)
    for section in survey.sections:
        if section.kind == "optimizer":
            edit.named.update({id(node): node for node in named_parts(section.node)})
            flattened = flattened_names(section.node)
            if flattened is not None:
                edit.flattened[id(section.node)] = flattened(edit.known)
    result = edited_checkpoint(checkpoint, edit.copy(checkpoint.root), limits)
    # A module that comes out of its wrapper has other paths, which are not checked.
    if not unwrapped:
        _check_names(checkpoint, chosen, new_name, result)
    return result, changed


def _known_names(
    survey: Survey,
    chosen: list[Section],
    changed: dict[str, dict[str, str]],
) -> dict[str, str]:
    """Return an optimizer's new names: the sections' names that change, unless another
    section keeps them.
    """
    # An optimizer may name parameters of several models.
    new_names: dict[str, str] = {}
    for names in changed.values():
        new_names |= names
    for part in survey.sections:
        if part.kind in ("model", "ema") and part not in chosen:
            for name in part.names():
                new_names.pop(name, None)
    return new_names


def _check_names(
    checkpoint: Checkpoint, chosen: list[Section], new_name: NewName, result: Checkpoint
) -> None:
    """Raise UnsupportedError unless exactly the tensors of the sections have their new
    names.
    """
    for section in chosen:
        for index, entry in zip(section.indices, section.entries, strict=True):
            old = entry.name
            name = section.relative(old)
            expected = old.removesuffix(name) + new_name(name)
            if result.tensors[index].name != expected:
                raise UnsupportedError(
                    (
                        f"{show(expected, 80)} cannot be a name: the dict is used "
                        "elsewhere too, or the key is not text"
                    ),
                    path=checkpoint.path,
                )


def _plan_renames(
    checkpoint: Checkpoint,
    section: Section,
    new_name: NewName,
    edit: _Rename,
    beside: set[str | int],
) -> dict[str, str]:
    """Mark the dicts of a section that change; old name -> new name of its tensors.
    Keys `beside` them stay.
    """
    depth = len(section.path)
    # The dicts that hold tensors with other names, by their paths.
    parents: dict[Path, None] = {}
    names: dict[str, str] = {}
    for entry in section.entries:
        name = section.relative(entry.name)
        new = new_name(name)
        if new != name and entry.path:
            names[name] = new
            parents.setdefault(entry.path[depth:-1])
    # An attribute that is renamed is not found by the code of its class.
    if names and section.is_module:
        raise UnsupportedError(
            (
                f"{section.name or 'the root'} is a pickled module, whose names are "
                "those of its attributes"
            ),
            path=checkpoint.path,
            way=("plain",),
        )
    # The root of a folder holds the weights and keys beside them: the section knows the
    # root of its own file alone.
    top = section.node if depth and section.node is not None else checkpoint.root
    for path in parents:
        node = node_at(top, path)
        view = look(node)
        if view.kind != "mapping":
            continue  # an attribute of a tensor
        prefix = "".join(f"{key}." for key in path)
        edit.dicts[id(node)] = prefix, node
        own = view.keys
        if not depth and not path and beside:
            edit.beside = beside
            own = [
                key
                for key in view.keys
                if not isinstance(key, str) or key not in beside
            ]
        _check_keys(own, prefix, new_name, checkpoint)
        for key in own:  # values beside the tensors: an `_extra_state`
            if (
                isinstance(key, str)
                and key != METADATA
                and new_name(f"{prefix}{key}") != f"{prefix}{key}"
            ):
                names.setdefault(f"{prefix}{key}", new_name(f"{prefix}{key}"))
    return names


def _check_keys(
    keys: Sequence[Node], prefix: str, new_name: NewName, checkpoint: Checkpoint
) -> None:
    """Raise when two keys of one dict would become one, or one would have to
    leave it.
    """
    taken: dict[str, str] = {}
    for key in keys:
        if not isinstance(key, str) or key == METADATA:
            continue
        old = f"{prefix}{key}"
        new = new_name(old)
        if not new.startswith(prefix) or new == prefix:
            raise UnsupportedError(
                (
                    f"{show(old, 80)} would become {show(new, 80)}, which lies in "
                    "another dict"
                ),
                path=checkpoint.path,
            )
        if new in taken:
            raise LossError(
                both_called(taken[new], old, new),
                path=checkpoint.path,
            )
        taken[new] = old


def module_path(path: str, new_name: NewName) -> str:
    """The new path of a module, as the names of its tensors tell it."""
    # Paths of modules have no name of their own: the name of a tensor in them tells it.
    leaf = "weight"
    new = new_name(f"{path}.{leaf}" if path else leaf)
    module, _, last = new.rpartition(".")
    return module if last == leaf else path


class _Rename(Edit):
    """Changes the keys of marked dicts, their `_metadata`, and the names in marked
    parts of optimizers.
    """

    def __init__(self, new_name: NewName, unwrapped: dict[int, Node]) -> None:
        super().__init__()
        self.dicts: dict[int, tuple[str, Node]] = {}
        self.named: dict[int, Node] = {}
        self.known: dict[str, str] = {}
        self.flattened: dict[int, dict[str, str]] = {}
        self.beside: set[str | int] = set()
        """Keys of the root that are not of the model which lies there."""
        self._new_name = new_name
        self._unwrapped = unwrapped

    def instead(self, node: Node) -> Node | None:
        inner = self._unwrapped.get(id(node))
        if inner is not None:
            return self.copy_of(inner)
        if type(node) is list and id(node) in self.named:
            return [self._text(item) for item in node]
        if tensor_of(node) is not None:
            return node  # no name lies inside of a tensor
        if type(node) is Opaque and id(node) in self.dicts and not node.keys:
            return self._fill_dict(node)
        return None

    def keys(self, node: Dict | Opaque, keys: Sequence[Node]) -> Sequence[Node]:
        if id(node) in self.dicts:
            prefix = self.dicts[id(node)][0]
            return [self._rename_key(key, prefix) for key in keys]
        if id(node) in self.flattened:
            new = self.flattened[id(node)]
            return [
                type(key)(new.get(str(key), key)) if isinstance(key, str) else key
                for key in keys
            ]
        return [self._text(key) for key in keys] if id(node) in self.named else keys

    def state(self, call: Opaque, state: Node) -> Node:
        if id(call) not in self.dicts or type(state) is not Dict:
            return state
        renamed = Dict()
        prefix = self.dicts[id(call)][0]
        values = [
            self._metadata(value, prefix) if key == "_metadata" else value
            for key, value in zip(state.keys, state.values, strict=True)
        ]
        renamed.set(list(state.keys), values)
        return renamed

    def _metadata(self, node: Node, prefix: str) -> Node:
        view = look(node)
        if view.kind != "mapping":
            return node
        entries: dict[object, tuple[str, Node, Node]] = {}
        for key, value in zip(view.keys, view.children, strict=True):
            new = key
            if isinstance(key, str):
                new = module_path(f"{prefix}{key}".rstrip("."), self._new_name)[
                    len(prefix) :
                ]
            # What was wrapped is the model; the wrapper's own entry gives way.
            # A file may hold keys that Python cannot hash.
            same = new if isinstance(new, (str, int)) else id(new)
            if same not in entries or len(str(key)) >= len(entries[same][0]):
                entries[same] = str(key), new, value
        keys = [new for _, new, _ in entries.values()]
        values = [value for _, _, value in entries.values()]
        if type(node) is Opaque:
            call = Opaque(node.how, node.func, (), None, node.offset)
            call.set(keys, values)
            return call
        plain = Dict()
        plain.set(keys, values)
        return plain

    def _fill_dict(self, node: Opaque) -> Opaque:
        """An OrderedDict of Python 2, whose items are its argument, with its items set
        one by one.
        """
        view = look(node)
        call = Opaque(node.how, node.func, (), None, node.offset)
        prefix = self.dicts[id(node)][0]
        call.set(
            [self._rename_key(key, prefix) for key in view.keys],
            [self.copy_of(child) for child in view.children],
        )
        call.states = [self.copy_of(self.state(node, state)) for state in node.states]
        return call

    def _rename_key(self, key: Node, prefix: str) -> Node:
        if (
            not isinstance(key, str)
            or key == METADATA
            or (not prefix and key in self.beside)
        ):
            return key
        new = self._new_name(f"{prefix}{key}")[len(prefix) :]
        return key if new == key else type(key)(new)

    def _text(self, item: Node) -> Node:
        if not isinstance(item, str):
            return item
        new = self.known.get(str(item))
        return item if new is None else type(item)(new)


ATTRIBUTE = "a tensor in an attribute"
"""The note on a tensor that Python code keeps on a tensor or a dict, if the result has
no place for it.
"""


def attributes_left(root: Node) -> list[Leftover]:
    """Attributes that Python code put on tensors: only pickles of classes hold them."""
    tensors = [
        node
        for node in nodes_below(root)
        if type(node) is Opaque and tensor_of(node) is not None
    ]
    names = Counter(chain.from_iterable(map(attributes, tensors)))
    return [
        Leftover(name, f"an attribute of {counted_noun(count, 'tensor')}")
        for name, count in names.items()
    ]

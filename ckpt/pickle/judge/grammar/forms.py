"""The judge of one pickle, and the forms of which rules are made: what an argument, a
state or an item may be.

A form looks at one node. A form whose check takes time in proportion to the node is
asked for it once (`Grammar.once`), however many calls share the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from ckpt.model.dtypes import BY_NAME
from ckpt.model.nodes import (
    NEW,
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
    tensor_of,
)
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Composite, Storage, TensorRef
from ckpt.pickle.depth import Depths
from ckpt.pickle.judge.known import MODULES, OPERATORS, OPTIMIZERS, VALUES
from ckpt.pickle.judge.names import is_own, passes_module, python3_name
from ckpt.pickle.judge.names_of_torch import LOOKED_UP
from ckpt.pickle.keys import number_of
from ckpt.pickle.machine import NAME_CHARACTERS, Fillings
from ckpt.tree.view import DICTS

Kind = Literal["value", "container", "instance"]
"""The kind of a call's result, for other calls that take it.

A value has no parts of the file's choice. A container is a list, set, dict or record,
as plain as its parts. An instance is an object whose attributes the file sets: nothing
may be given one.
"""

_SCALARS = frozenset((type(None), bool, int, float, str, ByteStr, bytes, bytearray))
_NUMBERS = frozenset((bool, int, float))
_HEAVY = 10_000_000
"""The most entries of nested tuples and lists, each counted as often as it is reached,
that a call is given.
"""
_LONG = 2_000
"""The most characters of all regular expressions of a pickle."""
_LARGE, _LONG_TEXT = 16, 256
"""Items of a container, and characters of a text, from which on a copy counts."""
_WORK = 10_000_000
"""The most work that calls may do beyond what the bytes of a file pay for: items that
are copied again, steps of loops.
"""
_SHORT = 10_000
"""The most characters of a text, or bytes, that a call reads as something else."""
_LONG_NUMBER = 4_096
"""The most bits of a number that a call is given."""
_LONG_NAME = 1_000
"""The most characters of a text among types."""
_FEW_KEYS = 2_000
"""The most keys that are objects whose hashes a file can choose."""
_MOST_LAYERS = 1_000_000
"""The most entries of the dicts of layers inside each other, each counted as often as
it is reached. A large mixture of experts has 200,000.
"""
_NESTED = 16
"""The most dtypes inside each other."""
_WORDS = frozenset(
    [f"torch.{name}" for name in BY_NAME]
    + [f"torch.sparse_{kind}" for kind in ("coo", "csr", "csc", "bsr", "bsc")]
    + ["torch.strided", "builtins.Ellipsis", "builtins.NotImplemented"]
    + [
        f"torch.{name}"
        for name in (
            "contiguous_format",
            "channels_last",
            "channels_last_3d",
            "preserve_format",
        )
    ]
    + [
        f"torch.per_{name}"
        for name in (
            "tensor_affine",
            "tensor_symmetric",
            "channel_affine",
            "channel_symmetric",
            "channel_affine_float_qparams",
        )
    ]
)
"""Names of values that are neither functions nor classes."""

COPYREG = ("copyreg", "copy_reg")
_METHODS = (
    "zoneinfo.ZoneInfo._unpickle",
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor.ProcessGroupState",
)
"""Methods and classes inside of classes that have a rule."""


class _Search:
    """Searches nodes for a form that all of their parts must have. Each node is
    searched once, however many calls share it.

    `leaf` tells of a node without parts if it has the form, or how many entries it
    counts as, and is None for one whose parts must have it. A node has at most `most`
    entries, each counted as often as it is reached, because a hash or a text of it
    takes as long. With `cycles`, a node may hold itself. `scalars` are the types whose
    values have the form. With `letters` the letters of long texts count too. `parts_of`
    gives the parts of a node.
    """

    def __init__(
        self,
        leaf: Callable[[Node], bool | int | None],
        most: int,
        *,
        cycles: bool,
        scalars: frozenset[type] = _SCALARS,
        letters: bool = False,
        parts_of: Callable[[Node], list[Node]] | None = None,
    ) -> None:
        self._scalars = scalars
        self._parts_of = parts_of or _node_parts
        self._letters = letters
        self._leaf = leaf
        self._most = most
        self._cycles = cycles
        # Id of a node with parts -> its entries; 0 without the form.
        self._sizes: dict[int, int] = {}

    def has(self, root: Node) -> bool:
        """Tell whether a node and all nodes below it have the form."""
        # A stack of our own: a pickle may nest deeper than Python can call.
        sizes = self._sizes
        todo: list[tuple[Node, list[Node] | None]] = [(root, None)]
        finished: list[int] = []
        is_open: set[int] = set()
        is_cyclic = False
        while todo:
            node, parts = todo.pop()
            if parts is None:
                if (
                    id(node) in sizes
                    or id(node) in is_open
                    or self._leaf(node) is not None
                ):
                    continue
                parts = self._parts_of(node)
                is_open.add(id(node))
                # The node comes back behind its parts, when their sizes are known.
                todo.append((node, parts))
                todo += [(part, None) for part in parts if type(part) not in _SCALARS]
                continue
            size = 1
            for part in parts:
                if type(part) is int:
                    of = 1 + (part.bit_length() >> 6)  # a hash visits all of it
                elif type(part) in self._scalars:
                    of = 1 + (_length_of_text(part) >> 6 if self._letters else 0)
                elif id(part) in is_open:  # one of those around it
                    is_cyclic, of = True, int(self._cycles)
                else:
                    of = self._size(part)
                # One part without the form, and the whole does not have it.
                size = 0 if not of or not size else size + of
            is_open.discard(id(node))  # behind its parts, for it may be one of them
            # Nodes that each hold the next twice would double this number level by
            # level.
            sizes[id(node)] = size if size <= self._most else 0
            finished.append(id(node))
        has = self._size(root) > 0
        if not has and is_cyclic:  # what seemed to have it may hold what is around it
            sizes.update(dict.fromkeys(finished, 0))
        return has

    def size(self, root: Node) -> int:
        """The entries of a node, 0 without the form."""
        self.has(root)
        return self._size(root)

    def _size(self, node: Node) -> int:
        leaf = self._leaf(node)
        return self._sizes.get(id(node), 0) if leaf is None else int(leaf)


_UNFOLDED = 100
"""The entries of a value for each byte of its pickle. A long list may stand at hundreds
of places.
"""


def unfolds_far(root: Node, size: int) -> bool:
    """Tell whether the lists and dicts of a tree hold each other so many times that
    printing the tree, or copying it part by part, hardly ends.

    `size` is the number of bytes that the pickle of the tree takes.
    """
    most = max(_HEAVY, _UNFOLDED * size)
    return not _Search(_is_part, most, cycles=True).has(root)


def _is_part(node: Node) -> bool | None:
    """Tell whether a node is one entry, with nothing inside that is looked at."""
    if type(node) is Opaque:
        return True if tensor_of(node) is not None else None
    return None if type(node) in _INNER else True


_UNGUARDED = (
    "collections.deque",
    "collections.defaultdict",
    "numpy.core.multiarray._reconstruct",
)
"""Containers that Python frees one inside the other. It does lists, tuples and dicts in
turns.
"""
_MOST_UNGUARDED = 200
"""The most of these containers inside each other. The stack ends at some 20,000."""


def _nesting_parts(node: Node) -> list[Node]:
    return [part for part in _node_parts(node) if type(part) in _NESTING]


_INNER = (list, tuple, Dict, Set)
"""The containers of the pickle itself."""
_NESTING = (Opaque, *_INNER)


def is_unguarded(node: Node) -> bool:
    origin = made_by(node) if type(node) is Opaque else None
    return (
        origin is not None
        and python3_name(origin[0].module, origin[0].name) in _UNGUARDED
    )


class Grammar:
    """Judges the calls of one pickle, whose tree must not change meanwhile.

    What many calls share is looked at once, so judging takes time in proportion to the
    pickle. `fillings` are the nodes that change after others could see them.
    """

    def __init__(
        self,
        rule_by_name: Callable[[str], Rule | None],
        fillings: Fillings | None = None,
    ) -> None:
        self.rule_by_name = rule_by_name
        """Gives the rule of a dotted name, as Python 3 and numpy 1 have it."""
        self.odd: list[str] = []
        """The attributes of the last call that its class does not write, and that torch
        does not look up either.
        """
        self.called: list[str] = []
        """The attributes of the last call that torch calls, or looks up, by these
        names.
        """
        self._fillings = fillings or Fillings()
        self._depth = 0
        self._patterns = 0
        self._work = 0
        self._works: dict[int, tuple[int, Opaque]] = {}
        self._sources: dict[int, Node | Storage] = {}
        self._crowds: dict[object, int] = {}
        """The part of a hash that a file does not choose -> the keys that have it."""
        self._crowd_of: dict[int, tuple[object, Opaque]] = {}
        self._neighbours: dict[int, tuple[int, Node]] = {}
        self._hashed = 0
        self._rules: dict[tuple[str, str], Rule | None] = {}
        self._answers: dict[
            tuple[int, int], tuple[bool, tuple[str, ...], tuple[str, ...]]
        ] = {}
        self._plain = _Search(self._is_plain, _HEAVY, cycles=True)
        self._numbers = _Search(_is_numbers, _HEAVY, cycles=False, scalars=_NUMBERS)
        self._changed: dict[int, tuple[Node, Opaque]] = {}
        """Nodes that loading changes, and the first call that does."""
        self._types = _Search(self._is_type, 1_000, cycles=False)
        self._held = _Search(self._is_held, 10_000, cycles=False)
        self._handed = _Search(self._is_handed, _HEAVY, cycles=True)
        self._layers = _Search(
            _is_part, _MOST_LAYERS, cycles=False, parts_of=_layers_in
        )
        self._nesting = Depths(_nesting_parts, is_unguarded)
        self._visited = _Search(
            self._is_hashed_at_once, _HEAVY, cycles=False, letters=True
        )

    def allows(self, call: Opaque) -> bool:
        """Tell whether a call is harmless, with all that is done to its result."""
        # Both lists are of one call: judge_imports reads them behind each.
        self.odd, self.called = [], []
        origin = made_by(call)
        rule = None if origin is None else self.rule(origin[0])
        if origin is None or rule is None or not rule.takes(self, origin[1], call):
            return False
        # The arguments and attributes of a tensor or an array stand in a tuple.
        inner = [part for state in call.states if is_tuple(state) for part in state]
        if not self.may_copy((*call.args, *inner, *call.states)):
            return False
        if rule.work is not None and not self.charge(rule.work(self, call)):
            return False
        # Only a pickle with such nodes pays for this search.
        if self._fillings.last and self._is_seen_early(call, rule):
            return False
        if call.states and not (
            rule.state and len(call.states) == 1 and rule.state(self, call.states[0])
        ):
            return False
        if call.keys and rule.keys is not None and not rule.keys(self, call):
            return False
        if (call.items and not rule.has_items) or (call.keys and not rule.has_keys):
            return False
        if rule.changes is not None:
            for node in rule.changes(self, call):
                self._changed.setdefault(id(node), (node, call))
        return True

    def shared_changes(
        self, calls: Sequence[Opaque], roots: Sequence[Node]
    ) -> Iterator[Opaque]:
        """Yield the allowed calls that change a node of the file when they are loaded,
        where another place of the file holds it too: that place shows what it was.

        `calls` are all calls of the pickle, `roots` its values outside of calls.
        """
        if not self._changed:
            return
        shown = self._list_below(self._held_twice(calls, roots))
        for key, (_, call) in self._changed.items():
            if key in shown:
                yield call

    def _held_twice(self, calls: Sequence[Opaque], roots: Sequence[Node]) -> list[Node]:
        """Return the containers, and the nodes that loading changes, that two places
        of the file hold.
        """
        seen: set[int] = set()
        twice: dict[int, Node] = {}
        todo: list[Iterable[Node]] = [roots]
        for call in calls:
            named = () if call.kwargs is None else (call.kwargs,)
            todo.append((call.func, *call.args, *named, *call.states, *call.items))
            todo += [call.keys, call.values]
        while todo:
            for node in todo.pop():
                # Objects are not followed, for all calls are here.
                is_inner = type(node) in _INNER
                if id(node) in seen:
                    twice[id(node)] = node
                elif is_inner or type(node) is Opaque or id(node) in self._changed:
                    seen.add(id(node))
                    if is_inner:
                        todo.append(_node_parts(node))
        return list(twice.values())

    def _list_below(self, nodes: Sequence[Node]) -> set[int]:
        """Return the ids of nodes and of all in the containers that they are.

        What an object holds is its own, however many places hold the object.
        """
        below: set[int] = set()
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if id(node) in below:
                continue
            below.add(id(node))
            if type(node) in _INNER or (type(node) is Opaque and self._fills(node)):
                todo += _node_parts(node)
        return below

    def _fills(self, call: Opaque) -> bool:
        """Tell whether a call makes a container."""
        origin = made_by(call)
        rule = None if origin is None else self.rule(origin[0])
        return rule is not None and rule.makes == "container"

    def rule(self, name: Global) -> Rule | None:
        """Return the rule of a function or class, or None when it is not listed."""
        key = (name.module, name.name)
        if key not in self._rules:
            # The text of the name is made once, not for each of a million calls.
            self._rules[key] = self.rule_by_name(python3_name(*key))
        return self._rules[key]

    def once(self, form: Form, node: Node) -> bool:
        """Tell whether a node has a form whose check takes time in proportion to the
        node.

        Each node of the tree is checked once.
        """
        # The ids stay, because the forms are constants and the tree does not change.
        key = (id(form), id(node))
        answer = self._answers.get(key)
        if answer is None:
            # A shared node has the same odd attributes for each call that is given it.
            before = len(self.odd), len(self.called)
            is_form = form(self, node)
            answer = (
                is_form,
                tuple(self.odd[before[0] :]),
                tuple(self.called[before[1] :]),
            )
            self._answers[key] = answer
        else:
            self.odd += answer[1]
            self.called += answer[2]
        return answer[0]

    def once_nested(self, form: Form, node: Node) -> bool:
        """Call `once` for a node inside another of its kind. Deeper than numpy's own
        ones nest, the form is denied.
        """
        self._depth += 1
        try:
            return self._depth <= _NESTED and self.once(form, node)
        finally:
            self._depth -= 1

    def may_be_key(self, call: Opaque) -> bool:
        """Tell whether an object may be hashed: a container, or a record, could take as
        long as its parts, all levels of them.
        """
        origin = made_by(call)
        rule = (
            None
            if origin is None or tensor_of(call) is not None
            else self.rule(origin[0])
        )
        if rule is None or origin is None:
            return True
        name = python3_name(origin[0].module, origin[0].name)
        if name == _INDEX:
            parts = _hash_of_index(call)
            if parts is None:
                return False
            # Many places of one tensor are usual, and may have one hash.
            self._join_crowd(call, parts)
            return True
        # A hash of an object may be a method that asks its attributes.
        if rule.makes == "instance" and name != _RANGE:
            return _hashes_itself(name)
        if name in _RECORDS:
            return False
        if rule.makes == "value":
            # The hash of a record of numpy is made of all its fields.
            dtype = (
                call.args[0]
                if name == "numpy.core.multiarray.scalar" and call.args
                else call
            )
            is_record = (
                type(dtype) is Opaque and dtype.states and _has_parts(dtype.states[0])
            )
            if is_record and name.startswith("numpy."):
                return False
        elif rule.makes == "container" and not _is_shallow(call):
            return False
        # Equal hashes are compared with each other, so a few such keys stay cheap.
        return _hashes_apart(name, call) or self._join_crowd(call, None) <= _FEW_KEYS

    def may_compile(self, pattern: Node) -> bool:
        """Tell whether a regular expression is short, with all others of the pickle:
        compiling takes long.
        """
        if isinstance(pattern, (str, bytes)):
            self._patterns += len(pattern) + _letters_of_ranges(pattern)
        else:
            self._patterns += _LONG
        return self._patterns <= _LONG

    def may_hash(self, key: Node) -> bool:
        """Tell whether hashing a key, with all others of the pickle, and comparing it
        with those that have its hash, takes time in proportion to the pickle.

        A hash visits all entries of a tuple each time. `may_be_key` was asked for all
        objects before.
        """
        size = self._visited.size(key)
        self._hashed += size
        is_short = size > 0 and self._hashed <= 2 * _HEAVY
        return is_short and self.charge(self._count_neighbours(key))

    def _join_crowd(self, call: Opaque, of: object) -> int:
        """Add an object to the keys that may have its hash, and return how many they
        are.
        """
        self._crowds[of] = count = self._crowds.get(of, 0) + 1
        self._crowd_of[id(call)] = of, call
        return count

    def _count_neighbours(self, key: Node) -> int:
        """Return how many other keys a key may be compared with, each time that it is
        one.
        """
        if not self._crowd_of:
            return 0
        if id(key) not in self._neighbours:
            # `may_hash` has counted all that is visited here.
            count, seen, todo = 0, set[int](), [key]
            while todo:
                node = todo.pop()
                if id(node) in seen:
                    continue
                seen.add(id(node))
                if type(node) is Opaque and id(node) in self._crowd_of:
                    count += self._crowds[self._crowd_of[id(node)][0]] - 1
                elif is_tuple(node) or type(node) is Set:
                    todo += _node_parts(node)
            # The key is kept, so that nothing else gets its id.
            self._neighbours[id(key)] = count, key
        return self._neighbours[id(key)][0]

    def may_be_freed(self, call: Opaque) -> bool:
        """Tell whether freeing what a call makes takes no more of the stack than there
        is.
        """
        return not is_unguarded(call) or self._nesting.depth(call) <= _MOST_UNGUARDED

    def charge(self, work: int) -> bool:
        """Add work that a call does beyond what its bytes pay for. Tells whether all of
        it stays little.
        """
        self._work += work
        return self._work <= _WORK

    def work_once(self, call: Opaque, count: Callable[[Grammar, Opaque], int]) -> int:
        """Return the work that a call makes for each call that is given it. It is
        counted once.
        """
        if id(call) not in self._works:
            self._works[id(call)] = count(self, call), call
        return self._works[id(call)][0]

    def is_again(self, node: Node | Storage) -> bool:
        """Tell whether a call before was given a node too."""
        is_again = id(node) in self._sources
        self._sources[id(node)] = node
        return is_again

    def weight(self, node: Node) -> int:
        """The entries of plain data, each as often as it is reached; 0 for what is no
        plain data.
        """
        return self._plain.size(node)

    def may_copy(self, args: tuple[Node, ...]) -> bool:
        """Tell whether copies of what calls share stay small: a call of five bytes may
        copy a million.
        """
        for node in args:
            size = _count_copied(node)
            if size >= _LARGE and self.is_again(node):
                self._work += size
        return self._work <= _WORK

    def is_refilled(self, node: Node, offset: int = -1) -> bool:
        """Tell whether a container changes after an offset, though others could see it
        before.

        A call at that offset has seen less than the tree shows.
        """
        if not self._fillings.is_filled_after(node, offset):
            return False
        if type(node) is not Opaque:
            return True
        origin = made_by(node)
        rule = None if origin is None else self.rule(origin[0])
        return rule is not None and rule.makes != "instance"

    def _is_seen_early(self, call: Opaque, rule: Rule) -> bool:
        """Tell whether a call, or what its result is used for, has seen a container
        before it was full.
        """
        # A value is read when it is made, so what is added later was not judged.
        if rule.makes == "value" and self._fillings.is_filled_after(call, -1):
            return True
        built = self._fillings.build_of(call)
        # torch reads the tables in a state, and looks no further.
        if rule.makes == "instance":
            tables = [
                value
                for state in call.states
                if type(state) is Dict
                for value in state.values
            ]
            late = (self.is_refilled(node, built) for node in (*call.states, *tables))
            return any(late) or any(
                self.is_refilled(arg, call.offset) for arg in call.args
            )
        is_tensor = tensor_of(call) is not None and len(call.args) == WITH_STATE
        # Attributes may hold the tensor itself.
        args = call.args[:-1] if is_tensor else call.args
        # The arguments count from the call on, a state from its BUILD on.
        todo: list[tuple[Node, int]] = [(arg, call.offset) for arg in args]
        todo += [(state, built) for state in call.states]
        seen: set[int] = set()
        while todo:
            node, offset = todo.pop()
            if self.is_refilled(node, offset):
                return True
            if type(node) in (list, tuple, Dict, Set) and id(node) not in seen:
                seen.add(id(node))
                todo += [(part, offset) for part in _node_parts(node)]
        return False

    def is_plain(self, node: Node) -> bool:
        """Tell whether a node and all below it are data.

        There is no function, no class, no object with attributes of the file.
        """
        return self._plain.has(node)

    def numbers_in(self, node: Node) -> int:
        """The numbers in a list, in its lists and so on, each as often as it is
        reached; 0 where there is anything else.
        """
        return self._numbers.size(node)

    def is_type_expression(self, node: Node) -> bool:
        """Tell whether a node can stand in brackets behind a type.

        Types, words, and tuples and lists of them can. Nothing calls them.
        """
        return self._types.has(node)

    def has_few_layers(self, node: Node) -> bool:
        """Tell whether the layers in the dict of a layer, and in those layers, are few,
        each as often as it is reached: `state_dict()` goes through all of them.
        """
        return self._layers.has(node)

    def types_in(self, node: Node) -> int:
        """The entries of a type expression, each as often as it is reached; 0 for what
        is none.
        """
        return self._types.size(node)

    def is_held(self, node: Node) -> bool:
        """Tell whether a partial may hold a node as arguments: data, functions, and
        other partials.
        """
        return self._held.has(node)

    def is_handed(self, node: Node) -> bool:
        """Tell whether `__new__` of an unknown class may be given a node: data, and
        objects that nobody can call, or whose class nobody knows.
        """
        return self._handed.has(node)

    def _is_plain(self, node: Node) -> bool | None:
        kind = type(node)
        if kind in _SCALARS or kind is TensorRef or kind is Composite:
            return True
        if kind in (list, tuple, Dict, Set):
            return None
        # A function or class is no data; dtypes and layouts are.
        if type(node) is Global:
            return python3_name(node.module, node.name) in _WORDS
        # A legacy file keeps names outside of the pickle as well.
        if type(node) is PersistentId:
            return type(node.meaning) is not Global
        if type(node) is not Opaque:
            return False
        if tensor_of(node) is not None:
            return True
        origin = made_by(node)
        rule = None if origin is None else self.rule(origin[0])
        if rule is None or rule.makes == "instance":
            return False
        return True if rule.makes == "value" else None

    def _is_type(self, node: Node) -> bool | None:
        if type(node) in (list, tuple):
            return None
        if type(node) is Opaque:
            return None if TYPES(self, node) else False
        # Python compiles it, as the name of a type that comes later.
        if holds_text(node):
            return len(node) <= _LONG_NAME  # type: ignore[arg-type]
        return type(node) in _SCALARS or class_of(node) is not None

    def _is_hashed_at_once(self, node: Node) -> bool | int | None:
        if type(node) in (list, tuple, Dict, Set):
            return None
        if type(node) is not Opaque or tensor_of(node) is not None:
            return True
        origin = made_by(node)
        rule = None if origin is None else self.rule(origin[0])
        if rule is None or origin is None:
            return True
        name = python3_name(origin[0].module, origin[0].name)
        if rule.makes == "instance":
            return True if name != _INDEX else None
        is_apart = rule.makes == "value" and _hashes_apart(name, node)
        return 1 + _letters_given(node) if is_apart else None

    def _is_held(self, node: Node) -> bool | None:
        if type(node) in (list, tuple, Dict):
            return None
        return is_function(self, node) or PARTIALS(self, node) or self.is_plain(node)

    def _is_handed(self, node: Node) -> bool | None:
        if type(node) in (list, tuple, Dict, Set):
            return None
        origin = made_by(node) if type(node) is Opaque else None
        if type(node) is not Opaque or origin is None or tensor_of(node) is not None:
            return self._is_plain(node)
        rule = self.rule(origin[0])
        # The import of a foreign class is a finding by itself.
        if rule is None:
            return not is_own(origin[0].module)
        if rule.makes != "instance":
            return self._is_plain(node)
        return python3_name(origin[0].module, origin[0].name) in _NEVER_CALLED


def _layers_in(node: Node) -> list[Node]:
    """The dict of layers of a layer, and what any other node holds."""
    if type(node) is not Opaque:
        return _node_parts(node)
    tables = [
        value
        for state in node.states
        if type(state) is Dict
        for key, value in zip(state.keys, state.values, strict=True)
        if key == "_modules"
    ]
    return tables or [*node.args, *node.values]


def _letters_of_ranges(pattern: str | bytes) -> int:
    """The letters that the ranges of a regular expression count for: Python goes
    through all characters of each, up to 65,536.
    """
    if not isinstance(pattern, str):
        return 0
    is_wide = not pattern.isascii() or any(mark in pattern for mark in _WIDE)
    return pattern.count("-") * _RANGE_LETTERS if is_wide else 0


_WIDE = ("\\u", "\\U", "\\N")
"""The beginnings of names of characters that need not be ASCII."""
_RANGE_LETTERS = 50


def _is_numbers(node: Node) -> bool | None:
    return None if type(node) in (list, tuple) else type(node) in _NUMBERS


def _length_of_text(node: Node) -> int:
    """The length of a text or of bytes, also of those that a call makes of others, or
    that stay in the file.
    """
    # Protocol 2 writes bytes as `_codecs.encode(text, "latin1")`.
    for _ in range(_MADE):
        if type(node) is not Opaque or not node.args or not _makes_text(node):
            break
        node = node.args[0]
    else:
        return _LONG_MADE
    if type(node) is PersistentId:
        return (
            node.meaning.nbytes
            if type(node.pid) is int and type(node.meaning) is Storage
            else 0
        )
    return len(node) if type(node) in (str, bytes, bytearray, ByteStr) else 0  # type: ignore[arg-type]


def _count_copied(node: Node) -> int:
    """The items of a container, or the characters of a long text, that a copy takes:
    the direct ones only, for what they hold is shared.
    """
    made = 0
    # An OrderedDict or a torch.Size has the items that its call is given, and those
    # that are set later.
    for _ in range(_MADE):
        if type(node) is not Opaque or _makes_text(node):
            break
        made += len(node.items) + len(node.keys)
        made += sum(map(_count_items, node.args))
        inner = [arg for arg in node.args if type(arg) is Opaque]
        if len(inner) != 1:
            return made
        node = inner[0]
    else:
        return _LONG_MADE
    length = _length_of_text(node)
    return made + _count_items(node) + (length if length >= _LONG_TEXT else 0)


def _count_items(node: Node) -> int:
    """The direct items of a container of the pickle itself, 0 for any other node."""
    if type(node) is list or is_tuple(node):
        return len(node)
    if type(node) is Dict:
        return len(node.keys)
    return len(node.items) if type(node) is Set else 0


def _letters_given(call: Opaque) -> int:
    """The letters of the long texts and bytes that a call makes a value of, in the unit
    of an entry: equal values are compared letter by letter.
    """
    lengths = [_length_of_text(part) for part in (call, *call.args)]
    return sum(length for length in lengths if length >= _LONG_TEXT) >> 6


def _makes_text(call: Opaque) -> bool:
    name = class_of(call.func)
    return name is not None and python3_name(name.module, name.name) in _MAKERS_OF_TEXT


_MADE = 8
"""Calls around a text that are followed: picklers write two. All of a long chain would
be walked for each of its calls.
"""
_LONG_MADE = 1 << 20
"""The length that a text behind more calls is taken to have."""
_MAKERS_OF_TEXT = (
    "_codecs.encode",
    "builtins.bytes",
    "builtins.bytearray",
    "builtins.str",
)


def _node_parts(node: Node) -> list[Node]:
    if type(node) is Opaque:
        if type(node.meaning) is Nested:
            return [node.meaning.root]
        if _is_array(node):  # of objects, whose list is in the state
            return [
                part
                for state in node.states
                if is_tuple(state)
                for part in state
                if type(part) is list
            ]
        # Of a defaultdict.
        args = node.args[1:] if node.args and is_factory(node.args[0]) else node.args
        return [*args, *node.items, *node.keys, *node.values, *node.states]
    if type(node) is Dict:
        return [*node.keys, *node.values]
    return list(node.items if type(node) is Set else node)  # type: ignore[arg-type]


_RECORDS = frozenset(
    [
        "torch.nn.modules.module._IncompatibleKeys",
        *(
            f"torch.distributed.tensor._dtensor_spec.{name}"
            for name in ("TensorMeta", "ShardOrderEntry")
        ),
        "torch.distributed._tensor._dtensor_spec.TensorMeta",
        "torch.distributed._tensor.placement_types.TensorMeta",
    ]
)
"""Tuples by another name, whose parts are hashed too."""


_INDEX = "torch.distributed.checkpoint.metadata.MetadataIndex"
_RANGE = "builtins.range"
_CHOSEN = (
    "uuid.UUID",
    "decimal.Decimal",
    "fractions.Fraction",
    "builtins.complex",
    "builtins.slice",
    "datetime.timedelta",
    "datetime.timezone",
    # All times have one hash, whatever their unit counts.
    "numpy.dtype",
    "torch._dynamo.decorators._DimRange",
)
"""Values whose hashes are made of numbers that a file chooses, or of fewer things than
they are compared by.
"""


def _hashes_apart(name: str, call: Opaque) -> bool:
    """Tell whether the hash of a value is not for a file to choose: it is made of text
    or bytes, or stands for few values.
    """
    # With one argument it is bytes, as picklers write it; numbers a file could choose.
    if name.startswith("datetime."):
        return name not in _CHOSEN and len(call.args) == 1
    if name == "numpy.core.multiarray.scalar":
        return number_of(call) is not None or _scalar_code(call)[:1] in ("S", "U")
    if name == "builtins.frozenset":
        return all(holds_text(item) for arg in call.args for item in _items_of(arg))
    if (
        name.endswith("Tensor")
        or name in _CHOSEN
        or name.startswith("torch.distributed.")
    ):
        return False
    return name not in ("torch.Size", _RANGE)


def _scalar_code(call: Opaque) -> str:
    dtype = call.args[0] if call.args else None
    code = dtype.args[0] if type(dtype) is Opaque and dtype.args else None
    return str(code) if holds_text(code) else ""


_NEVER_CALLED = DICTS | {
    "argparse.Namespace",
    "builtins.range",
    "collections.UserDict",
    "collections.UserList",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "types.SimpleNamespace",
}
"""Known classes whose objects nobody can call, whatever attributes they have."""


def _hashes_itself(name: str) -> bool:
    """Tell whether objects of a class have hashes of their own, which do not ask their
    attributes.
    """
    return name in MODULES or name in OPTIMIZERS or name in _ALONE


_ALONE = (
    "builtins.getattr",
    "builtins.type",
    "functools.partial",
    "random.Random",
    "itertools.count",
    "io.BytesIO",
    "_io.BytesIO",
    "io.StringIO",
    "_io.StringIO",
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.utils.hooks.RemovableHandle",
    "torch._C.Generator",
)
"""Further names whose objects hash by themselves."""


def _hash_of_index(call: Opaque) -> tuple[str, int] | None:
    """The parts of the hash of a place in a distributed checkpoint: the name, whose
    hash Python salts, and the hash of the offset, which a file can choose. None where
    it has anything but a text and short numbers.
    """
    name, offset = "", 0
    for state in call.states:
        for part in state if is_tuple(state) else (state,):
            if part is not None and type(part) is not Dict:
                return None
            pairs = zip(part.keys, part.values, strict=True) if part is not None else ()
            for key, value in pairs:
                # `fqn` is a text, `offset` a torch.Size, `index` a number or None.
                if holds_text(value):
                    name = str(value) if key == "fqn" and type(value) is str else name
                    continue
                numbers = _short_numbers(value)
                if numbers is None:
                    return None
                if key == "offset":
                    offset = hash(numbers)
    is_named = not call.args or all(map(holds_text, call.args))
    return (name, offset) if is_named else None


def _short_numbers(value: Node) -> tuple[int | None, ...] | None:
    """Return the numbers of a torch.Size or a list, or the number or None by itself, or
    None for anything else and for long numbers.
    """
    is_size = type(value) is Opaque and value.class_name == "torch.Size"
    if type(value) is Opaque and is_size and len(value.args) == 1:
        value = value.args[0]
    numbers = value if is_tuple(value) or type(value) is list else (value,)
    if len(numbers) > 64:
        return None
    short: list[int | None] = []
    for number in numbers:
        if number is not None and type(number) is not int:
            return None
        if number is not None and number.bit_length() >= 64:
            return None
        short.append(number)
    return tuple(short)


def _is_shallow(call: Opaque) -> bool:
    """Tell whether a container holds scalars, and tuples of them, alone."""
    # Items that a call makes may lie in each other to any depth.
    items = call.args[0] if call.args else ()
    if type(items) is list or is_tuple(items):
        return not any(
            type(item) not in _SCALARS and not _is_flat(item) for item in items
        )
    return False


def _items_of(node: Node) -> list[Node] | tuple[Node, ...]:
    return node if type(node) is list or is_tuple(node) else ()


def _is_flat(node: Node) -> bool:
    return is_tuple(node) and all(type(part) in _SCALARS for part in node)


def _has_parts(state: Node) -> bool:
    return is_tuple(state) and any(
        type(part) is Dict or is_tuple(part) for part in state[2:5]
    )


def _is_array(call: Opaque) -> bool:
    name = class_of(call.func)
    return (
        name is not None
        and python3_name(name.module, name.name) == "numpy.core.multiarray._reconstruct"
    )


def class_of(node: Node) -> Global | None:
    """Return the name that a node is, or None.

    Legacy files keep the names of modules outside of the pickle.
    """
    named = node.meaning if type(node) is PersistentId else node
    return named if type(named) is Global else None


def made_by(call: Opaque) -> tuple[Global, tuple[Node, ...]] | None:
    """The class or function of a call, and its arguments. None where that is no name,
    or there are keyword arguments.

    `copyreg._reconstructor` and `copyreg.__newobj__` make objects as NEWOBJ does.
    """
    func, args = class_of(call.func), call.args
    # `getattr(ZoneInfo, "_unpickle")(...)`: only listed methods go on.
    if type(call.func) is Opaque:
        func = _method_behind(call.func)
    if func is None or (call.kwargs is not None and call.kwargs.keys):
        return None
    cls = (
        class_of(args[0])
        if args and call.how not in NEW and func.module in COPYREG
        else None
    )
    if cls is None:
        return func, args
    # `copyreg.__newobj__(cls, *args)` is what NEWOBJ does.
    if func.name == "__newobj__":
        return cls, args[1:]
    if func.name != "_reconstructor" or len(args) != 3:
        return func, args
    # `copyreg._reconstructor(cls, base, state)`, as protocols 0 and 1 write an object.
    base = class_of(args[1])
    of = base and python3_name(base.module, base.name)
    made = python3_name(cls.module, cls.name)
    # Python refuses an object of C without the call of its class.
    is_of_c = made.startswith(_OF_C) and made not in _OF_PYTHON_CODE
    if of == "builtins.object" and args[2] is None:
        return (func, args) if is_of_c else (cls, ())
    is_filled = of in _BASES and _is_content(of, args[2])
    # It would fill the dict or the list inside of such a class behind its back.
    return (cls, (args[2],)) if is_filled and not is_of_c else (func, args)


_OF_C = ("builtins.", "collections.", "numpy.", "torch.Size")
_OF_PYTHON_CODE = (
    "builtins.object",
    *(
        f"collections.{name}"
        for name in ("ChainMap", "UserDict", "UserList", "UserString")
    ),
)
"""Further classes of these modules, whose objects old protocols write in this way."""
_CONTENTS: dict[str | None, type] = {
    "builtins.list": list,
    "builtins.tuple": tuple,
    "builtins.dict": Dict,
    "builtins.set": Set,
    "builtins.frozenset": Set,
}
"""Bases of Python -> the only node of which they are filled as it shows."""


def _is_content(of: str | None, node: Node) -> bool:
    """Tell whether a base of an object is filled with a node as it stands: a list with
    a list, and not with the keys of a dict.
    """
    kind = _CONTENTS.get(of)
    return type(node) in _SCALARS if kind is None else type(node) is kind


_BASES = frozenset(
    f"builtins.{name}"
    for name in (
        "list",
        "dict",
        "set",
        "frozenset",
        "tuple",
        "str",
        "int",
        "float",
        "complex",
        "bytes",
        "bytearray",
    )
)


def _method_behind(call: Opaque) -> Global | None:
    """The method or class that `getattr(C, "name")` is, where it has a rule."""
    of = call.args[0] if is_getattr(call) else None
    # A class that a call makes has no name to look up.
    if type(of) is not Global:
        return None
    name = f"{of.name}.{call.args[1]!s}"
    return (
        Global(of.module, name) if python3_name(of.module, name) in _METHODS else None
    )


def is_getattr(call: Opaque) -> bool:
    func = call.func
    return (
        type(func) is Global
        and python3_name(func.module, func.name) == "builtins.getattr"
        and call.how == "reduce"
        and len(call.args) == 2
        and isinstance(call.args[1], str)
        and len(call.args[1]) <= NAME_CHARACTERS
    )


# --- forms: what one node may be ------------------------------------------------------

Form = Callable[["Grammar", Node], bool]
Args = Callable[[Grammar, tuple[Node, ...], Opaque], bool]


class Rule(NamedTuple):
    """The values that a function or class may be given: arguments, one state, items,
    and items set by key.
    """

    takes: Args
    makes: Kind = "value"
    state: Form | None = None
    has_items: bool = False
    has_keys: bool = False
    keys: Callable[[Grammar, Opaque], bool] | None = None
    """Judges keys that become attributes, with their values."""
    work: Callable[[Grammar, Opaque], int] | None = None
    """Counts the work that a call and its state do beyond what their bytes pay for."""
    changes: Callable[[Grammar, Opaque], list[Node]] | None = None
    """Lists the nodes of the file that loading the call changes, so that another place
    which holds one of them loads to other values than it shows.
    """


def result_of(*names: str) -> Form:
    """The result of a call of one of these names."""

    def form(grammar: Grammar, node: Node) -> bool:
        origin = made_by(node) if type(node) is Opaque else None
        return (
            origin is not None
            and python3_name(origin[0].module, origin[0].name) in names
        )

    return form


def is_plain(grammar: Grammar, node: Node) -> bool:
    return grammar.is_plain(node)


def holds_text(node: Node) -> bool:
    return type(node) is str or type(node) is ByteStr


def is_any_text(grammar: Grammar, node: Node) -> bool:
    return holds_text(node)


def is_short_text(grammar: Grammar, node: Node) -> bool:
    return holds_text(node) and len(node) <= _SHORT  # type: ignore[arg-type]


def text_matching(pattern: str) -> Form:
    return lambda grammar, node: (
        is_short_text(grammar, node) and re.fullmatch(pattern, str(node)) is not None
    )


def is_raw(grammar: Grammar, node: Node) -> bool:
    """Bytes, as they are, as protocol 2 writes them (by a call, which is judged by
    itself), or that stay in the file.
    """
    if type(node) is PersistentId:
        return type(node.pid) is int and type(node.meaning) is Storage
    return type(node) in (bytes, bytearray, ByteStr) or _BYTES(grammar, node)


_BYTES = result_of("_codecs.encode", "builtins.bytes", "builtins.bytearray")


def is_number(grammar: Grammar, node: Node) -> bool:
    """A number whose arithmetic takes no time: dividing long ones takes a square of
    their length.
    """
    return type(node) in (float, bool) or (
        type(node) is int and node.bit_length() <= _LONG_NUMBER
    )


def is_short(grammar: Grammar, node: Node) -> bool:
    """A scalar that is no long text and no long number: reading a number from digits
    takes a square of their number.
    """
    return (
        is_number(grammar, node)
        or node is None
        or is_short_text(grammar, node)
        or is_short_raw(node)
    )


def is_short_raw(node: Node) -> bool:
    return type(node) in (bytes, bytearray) and len(node) <= _SHORT  # type: ignore[arg-type]


def is_count(grammar: Grammar, node: Node) -> bool:
    return type(node) is int and 0 <= node < 2**31


def is_scalar(grammar: Grammar, node: Node) -> bool:
    return type(node) in _SCALARS


def is_anything(grammar: Grammar, node: Node) -> bool:
    return True


def is_nowhere(grammar: Grammar, node: Node) -> bool:
    return False


def is_none(grammar: Grammar, node: Node) -> bool:
    return node is None


def is_tensor(grammar: Grammar, node: Node) -> bool:
    return tensor_of(node) is not None


def is_series(grammar: Grammar, node: Node) -> bool:
    """A list, tuple, set or dict of the pickle itself, with any parts: iterating it
    runs nothing.
    """
    return type(node) in (list, tuple, Dict, Set)


def is_pairs(grammar: Grammar, node: Node) -> bool:
    return type(node) is Dict or (
        (type(node) is list or is_tuple(node)) and grammar.once(_all_pairs, node)
    )


def _all_pairs(grammar: Grammar, node: Node) -> bool:
    assert type(node) is list or is_tuple(node)
    return all(
        (type(pair) is list or type(pair) is tuple) and len(pair) == 2 for pair in node
    )


def named(*names: str) -> Form:
    """One of these names, none of which is called where it stands, or is called with
    what this rule allows.
    """

    def form(grammar: Grammar, node: Node) -> bool:
        name = class_of(node)
        return name is not None and python3_name(name.module, name.name) in names

    return form


def one_of_forms(*forms: Form) -> Form:
    return lambda grammar, node: any(form(grammar, node) for form in forms)


def tuple_of(*forms: Form) -> Form:
    return lambda grammar, node: (
        is_tuple(node)
        and len(node) == len(forms)
        and all(form(grammar, part) for form, part in zip(forms, node, strict=True))
    )


def free_attributes(**forms: Form) -> Form:
    """A state that becomes the attributes of an object whose names are free: a dict
    with texts as keys, and one of slots.

    `forms` judge the attributes that the class calls or iterates when it is loaded. No
    other is looked at by then, but for those with two underscores in front.
    """
    return State(forms, lambda grammar, name, value: "fine", has_slots=True)


Manner = Literal["fine", "odd", "called"]
"""The standing of an attribute that is not listed: nobody looks at it, nobody knows it,
or torch calls it by its name.
"""


class State:
    """The form of a state: its listed attributes have forms of their own, `other`
    judges each further one.

    `needed` are the attributes that must be there: torch looks for them among the
    layers and parameters if they are not. `wrong` is how a listed attribute stands that
    does not have its form. With `has_slots` a state may have a second dict, whose
    attributes are set one by one.
    """

    def __init__(
        self,
        forms: Mapping[str, Form],
        other: Callable[[Grammar, str, Node], Manner],
        needed: Iterable[str] = (),
        *,
        has_slots: bool = False,
        wrong: Manner = "called",
    ) -> None:
        self._wrong = wrong
        self._forms = forms
        self._other = other
        self._has_slots = has_slots
        self._needed = frozenset(needed)
        # One object, for answers are kept by its id.
        self._judging: Form = self._judge_state

    def __call__(self, grammar: Grammar, node: Node) -> bool:
        # `(dict of attributes, dict of slots)`, as Python gives the state of a class
        # with slots.
        if is_tuple(node) and len(node) == 2 and self._has_slots:
            return all(
                part is None
                or (type(part) is Dict and grammar.once(self._judging, part))
                for part in node
            )
        return grammar.once(self._judging, node) if type(node) is Dict else node is None

    def _judge_state(self, grammar: Grammar, node: Node) -> bool:
        assert type(node) is Dict
        # A scalar of numpy is equal to a text, and would become an attribute unseen.
        if not all(map(holds_text, node.keys)):
            return False
        names = [str(key) for key in node.keys]
        is_fine = self._needed.issubset(names)
        for name, value in zip(names, node.values, strict=True):
            form = self._forms.get(name)
            if form is not None:
                manner: Manner = "fine" if form(grammar, value) else self._wrong
            # Python looks names with two underscores up itself.
            elif name.startswith("__") and type(value) not in _SCALARS:
                manner = "called"
            else:
                manner = self._other(grammar, name, value)
            # torch goes through the parts of an attribute when it shows or copies it.
            if manner == "fine" and _is_endless(grammar, value):
                manner = "odd"
            if manner == "odd":
                grammar.odd.append(name)
            elif manner == "called":
                grammar.called.append(name)
                is_fine = False
        return is_fine


def _is_endless(grammar: Grammar, value: Node) -> bool:
    """Tell whether a value has no end that anybody sees, where torch iterates an
    attribute: an iterator, or the numbers of a range.
    """
    if type(value) is not Opaque:
        return False
    if _COUNT(grammar, value):
        return True
    return _RANGE_OF(grammar, value) and any(
        isinstance(number, int) and abs(number) > _LONG_RANGE for number in value.args
    )


_COUNT = result_of("itertools.count")
_RANGE_OF = result_of(_RANGE)
_LONG_RANGE = 100_000_000
"""More numbers than any data set of a sampler."""


def stands_closed(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute of a class whose objects have the listed ones only."""
    return "called" if name in LOOKED_UP else "odd"


def stands_decorated(grammar: Grammar, name: str, value: Node) -> Manner:
    """An attribute of an object on which people put what they like, as on layers,
    tensors and state dicts.

    Data cannot be called. A function can, where torch or Python looks for the name.
    """
    if grammar.is_plain(value):
        return "fine"
    if name in LOOKED_UP:
        return "called"
    return "fine" if grammar.is_held(value) else "odd"


is_attributes = free_attributes()


# --- forms of arguments ---------------------------------------------------------------


def takes(*forms: Form, least: int | None = None) -> Args:
    """One form for each argument; those after the first `least` may be left out."""
    fewest = len(forms) if least is None else least

    def check(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
        return fewest <= len(args) <= len(forms) and all(
            form(grammar, arg) for form, arg in zip(forms, args, strict=False)
        )

    return check


MOST_ARGUMENTS = 100
"""The most arguments of a call that takes any number of them."""


def takes_many(form: Form) -> Args:
    return lambda grammar, args, call: (
        len(args) <= MOST_ARGUMENTS and all(form(grammar, arg) for arg in args)
    )


takes_nothing = takes()


def much_work(grammar: Grammar, call: Opaque) -> int:
    """The work of making an object of kilobytes in a few bytes of a pickle: a generator
    of numbers, a table of times.
    """
    return _KILOBYTES


_KILOBYTES = 1_000


def is_called(call: Opaque) -> bool:
    """Tell whether a class is called, so that `__init__` runs. NEWOBJ and `copyreg`
    leave the memory of an object of C++ as it was.
    """
    func = class_of(call.func)
    return call.how == "reduce" and func is not None and func.module not in COPYREG


def is_made_without_call(
    grammar: Grammar, args: tuple[Node, ...], call: Opaque
) -> bool:
    """An object that is made without calling its class, whose `__init__` may take time
    and memory (`Transformer()`).
    """
    func = class_of(call.func)
    # NEWOBJ and `copyreg` make an object without `__init__`; REDUCE would run it.
    return not args and (
        call.how != "reduce" or (func is not None and func.module in COPYREG)
    )


# --- values that could be called ---

_FACTORIES = (
    *(
        f"builtins.{name}"
        for name in (
            "list",
            "dict",
            "set",
            "frozenset",
            "tuple",
            "int",
            "float",
            "str",
            "bool",
        )
    ),
    "collections.OrderedDict",
    "collections.Counter",
    "collections.deque",
    "torch.amp.grad_scaler._refresh_per_optimizer_state",
    "torch.cuda.amp.grad_scaler._refresh_per_optimizer_state",
)
"""Classes and functions that a `defaultdict` may call, without arguments, whenever
somebody looks up a key.
"""


def is_factory(node: Node) -> bool:
    name = class_of(node)
    return name is not None and python3_name(name.module, name.name) in _FACTORIES


TYPES = result_of(
    "types.GenericAlias", "operator.getitem", "functools.reduce", "builtins.type"
)


PARTIALS = result_of("functools.partial")


def takes_getattr(grammar: Grammar, args: tuple[Node, ...], call: Opaque) -> bool:
    """An operator of torch, a listed method, or a class or function inside a class that
    is itself unknown.
    """
    if not is_getattr(call):
        return False
    of, name = args[0], str(args[1])
    # A class in a class in a class: the inner one is judged by itself.
    if type(of) is Opaque:
        is_in_class = is_getattr(of) and not passes_module(f"C.{of.args[1]!s}.{name}")
        is_method = _is_hook_of_lazy(of, name) or _is_method_of_scheduler(of, name)
        return (is_in_class and is_inner(name)) or is_method
    if type(of) is not Global:
        return False
    owner = python3_name(of.module, of.name)
    if owner in OPERATOR_OWNERS:
        # The list lacks `from_file`, which opens files.
        return name in OPERATORS
    # `torch.os.system` is no attribute of a class.
    if passes_module(f"{of.name}.{name}"):
        return False
    if grammar.rule_by_name(f"{owner}.{name}") is not None:
        return True
    # A method of a module, as a value.
    if owner.startswith(("torch.nn.modules.", "torch.nn.parallel.")):
        return name.isidentifier() and not name.startswith("_")
    if (owner, name) in _ANNEALING:
        return True
    return is_inner(name) and not is_own(of.module)


_ANNEALING = frozenset(
    (f"torch.optim.{owner}", name)
    for owner, names in (
        ("swa_utils.SWALR", ("_cosine_anneal", "_linear_anneal")),
        ("lr_scheduler.OneCycleLR", ("_annealing_cos", "_annealing_linear")),
        (
            "lr_scheduler.CyclicLR",
            ("_triangular_scale_fn", "_triangular2_scale_fn", "_exp_range_scale_fn"),
        ),
    )
    for name in names
)
"""The functions inside schedulers that they hold as values."""


def _is_hook_of_lazy(layer: Opaque, name: str) -> bool:
    """Tell whether a value is the method of a lazy layer that torch itself hooks into
    it. Its own attributes are judged.
    """
    origin = made_by(layer)
    if origin is None or name not in ("_infer_parameters", "_lazy_load_hook"):
        return False
    cls = python3_name(origin[0].module, origin[0].name)
    return cls in MODULES and origin[0].name.startswith("Lazy")


def _is_method_of_scheduler(scheduler: Opaque, name: str) -> bool:
    """Tell whether a value is a method that CyclicLR before torch 1.12 kept in its
    state. The scheduler's own attributes are judged.
    """
    origin = made_by(scheduler)
    if origin is None:
        return False
    return (python3_name(origin[0].module, origin[0].name), name) in _ANNEALING


OPERATOR_OWNERS = (
    "torch._C._VariableFunctionsClass",
    "torch._C._VariableFunctions",
    "torch._C.TensorBase",
    "torch._C._TensorBase",
    "torch.Tensor",
    "torch._tensor.Tensor",
)


def is_inner(name: str) -> bool:
    return name.isidentifier() and not name.startswith("__")


_TYPES = frozenset(
    [
        "builtins.int",
        "builtins.float",
        "builtins.complex",
        "builtins.bool",
        "builtins.str",
        "builtins.bytes",
        "builtins.list",
        "builtins.tuple",
        "builtins.dict",
        "builtins.set",
        "builtins.frozenset",
        "collections.OrderedDict",
    ]
)
"""Types that a partial may hold. Making the partial calls none of them."""


def is_function(grammar: Grammar, node: Node) -> bool:
    """A function that a partial may hold: a plain type, of torch.nn, an operator of
    torch, or of a package, which is told of by itself.
    """
    if type(node) is Opaque:
        return is_getattr(node) and takes_getattr(grammar, node.args, node)
    # A partial only holds the function: who calls it later is not the loader.
    name = class_of(node)
    if name is None:
        return False
    text = python3_name(name.module, name.name)
    return (
        text in VALUES
        or text in _TYPES
        or text.startswith("torch.nn.")
        or not is_own(name.module)
    )


def is_numbers(grammar: Grammar, node: Node) -> bool:
    """A list of numbers, of lists of numbers, and so on. Other values have parts that a
    call reads as numbers too.
    """
    return (type(node) is list or type(node) is tuple) and grammar.numbers_in(node) > 0


def holds_flag(node: Node) -> bool:
    return type(node) in (bool, int)

"""The keys of dicts and the items of sets: what hashing them costs, and keys that are
equal though a pickle spells them otherwise.

Python keeps one of equal keys. A key that a call makes is compared by what the call
surely makes. Where that is not sure, the key may stand in its dict alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import UnreadableError
from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    Set,
    is_tuple,
    tensor_of,
)
from ckpt.model.rows import NamedTuple
from ckpt.pickle.judge.names import (
    is_enum,
    is_known,
    is_module_class,
    is_optimizer_class,
    python3_name,
)
from ckpt.pickle.machine import Pickle, note_hashed, note_unhashable
from ckpt.tree.arrays import as_bytes, numpy_dtype
from ckpt.tree.find import are_texts, is_compared, key_text
from ckpt.tree.view import DICTS

_DICTS = (
    "builtins.dict",
    "collections.OrderedDict",
    "collections.defaultdict",
    *sorted(DICTS),
)
_SETS = ("builtins.set", "builtins.frozenset", "collections.Counter")
_HASHING = frozenset(name.rpartition(".")[2] for name in (*_DICTS, *_SETS)) | {
    "__newobj__",
    "_reconstructor",
}
NEVER_KEYS = frozenset(
    [
        *(
            f"{module}.{name}"
            for module in ("builtins", "__builtin__")
            for name in ("str", "int", "float", "bool", "tuple")
        ),
        "__builtin__.unicode",
        "__builtin__.long",
        "builtins.complex",
        "__builtin__.complex",
        "collections.UserString",
        "UserString.UserString",
        "torch.torch_version.TorchVersion",
        "numpy.str_",
        *(
            f"numpy.{kind}{bits}"
            for kind in ("int", "uint", "float")
            for bits in (8, 16, 32, 64)
        ),
        *(
            f"torch.jit._pickle.{name}"
            for name in ("restore_type_tag", "build_intlist", "build_doublelist")
        ),
    ]
)
"""Calls that make texts, numbers and tuples, which pickles spell as they are."""


_ALIASES = {
    "torch.float": "torch.float32",
    "torch.double": "torch.float64",
    "torch.half": "torch.float16",
    "torch.short": "torch.int16",
    "torch.int": "torch.int32",
    "torch.long": "torch.int64",
    "torch.chalf": "torch.complex32",
    "torch.cfloat": "torch.complex64",
    "torch.cdouble": "torch.complex128",
    "torch._tensor.Tensor": "Tensor",
    "typing.Text": "str",
}
"""Second names that are spelled otherwise."""
_MOST_OBJECTS = 5_000_000
"""The most objects that calls hash, each as often as it is hashed."""
_DEEPEST = 100
"""The most tuples and sets inside each other that are compared."""
_LONGEST = 10_000
"""The most bits of a number that is a key: Python refuses to write out more, and names
are made of keys.
"""
_FEW_NUMBERS = 5_000
"""Numbers in a dict that cannot lie in each other's way for long."""
_STEPS, _STEPS_OF_ONE = 3_000_000, 12
"""The most slots that Python looks at for the numbers of a dict: at first, and more for
each. Real numbers need two to 200.
"""
_MOST_OF_TEN = 50_000
"""The most slots for ten numbers that come one after the other."""


def refuse_equal_keys(pickle: Pickle) -> None:
    """Refuse dicts with keys that may be equal, sets with equal items, and numbers as
    keys that take ages to find. Raises UnreadableError.
    """
    # Calls first, then what opcodes set, then sets.
    spellings = _Spellings()
    makers = {name for name in pickle.globals.values() if name.name in _HASHING}
    sets: list[tuple[Opaque, Node]] = []
    noted: dict[int, _Noted] = {}
    for call in pickle.calls if makers else ():
        func = call.func.meaning if type(call.func) is PersistentId else call.func
        if not call.args or func not in makers:
            continue
        name, given = _class_and_content(call)
        if name in _SETS:
            sets.append((call, given))
        elif name in _DICTS:
            keys = _keys_of(given)
            # A defaultdict gets its items by opcodes, when Python pickles it.
            if name == "collections.defaultdict" and keys:
                raise _call_error(call, "it is given items when it is made")
            if name in DICTS and keys and call.keys:
                raise _call_error(
                    call, "it is given items when it is made, and others afterwards"
                )
            # One list that is given to many calls is compared once.
            is_new = id(given) not in noted
            _count_call_keys(pickle, call, given, keys, noted, linear=0)
            if is_new or call.keys:
                spellings.compare([*keys, *call.keys])
    for call in objects_in(pickle.hashed):
        if call.class_name in NEVER_KEYS:
            raise _may_be_equal(call)
    for target in pickle.keyed.values():
        spellings.compare(target.keys)
        _refuse_crowd(target.keys, linear=0)
    noted = {}
    for of_items in pickle.sets.values():
        if spellings.have_equal(of_items.items):
            raise UnreadableError("damaged pickle: two items of a set are equal")
    for call, given in sets:
        items = _items_of(given)
        # One list that is given to many calls is compared once.
        if id(given) not in noted and spellings.have_equal(items):
            raise _call_error(call, "two of the items that it is given are equal")
        # An empty set, of which a file may hold very many, hashes nothing.
        if items:
            _count_call_keys(pickle, call, given, items, noted, linear=9)
    for of in pickle.numbered.values():
        if isinstance(of, Set):
            _refuse_crowd(of.items, linear=9)
        else:
            _refuse_crowd(of.keys, linear=0)


def objects_in(
    keys: Sequence[Node], seen: dict[int, Node] | None = None
) -> Iterator[Opaque]:
    """Objects among keys, and in the tuples and sets among them, each once. `seen` has
    the nodes of other calls.
    """
    seen = {} if seen is None else seen
    todo = list(reversed(keys))
    while todo:
        node = todo.pop()
        if type(node) in (Opaque, tuple, Set) and id(node) not in seen:
            seen[id(node)] = node
            if type(node) is Opaque:
                # The content of an object is not hashed with it.
                yield node
            else:
                todo += reversed(_items_of(node))


def _path_text(parts: Sequence[str], *, is_windows: bool) -> str | None:
    """The text by which pathlib compares a path of these parts, or None where a later
    part begins anew.
    """
    # Windows takes both slashes and all letters as equal.
    texts = [part.replace("\\", "/").lower() if is_windows else part for part in parts]
    if any(text.startswith("/") or (is_windows and ":" in text) for text in texts[1:]):
        return None
    first = texts[0] if texts else ""
    slashes = len(first) - len(first.lstrip("/"))
    root = ""
    if slashes:
        # POSIX: two slashes in front are another root, three are one again.
        root = "//" if slashes == 2 else "/"
    words: list[str] = []
    for text in texts:
        words += [word for word in text.split("/") if word not in ("", ".")]
    return root + "/".join(words)


def number_of(key: Node) -> int | float | None:
    """The number that a key is, also as a scalar of numpy, or None."""
    if type(key) in (int, float, bool):
        return key  # type: ignore[return-value]
    value = _numpy_scalar(key) if type(key) is Opaque else None
    return value if type(value) in (int, float, bool) else None  # type: ignore[return-value]


class _Noted(NamedTuple):
    """The work of a call that hashes: entries of its tuples, its objects, and the node
    that it is given, to keep the id taken.
    """

    entries: int
    objects: Sequence[Node]
    given: Node


def _count_call_keys(
    pickle: Pickle,
    call: Opaque,
    given: Node,
    keys: Sequence[Node],
    noted: dict[int, _Noted],
    *,
    linear: int,
) -> None:
    """Count what a call hashes as what a dict or set of the pickle itself hashes.

    What many calls share is looked at once, and counted as often.
    """
    # The work is counted as often as it is done, and worked out once.
    again = noted.get(id(given))
    if again is not None:
        few = len(pickle.hashed) + len(again.objects) <= _MOST_OBJECTS
        if not few or not pickle.hashes.count_entries(again.entries):
            pickle.crowded.append(call)
        elif again.objects:
            pickle.hashed += again.objects
        return
    if not keys:
        noted[id(given)] = _Noted(0, (), given)
        return
    note_unhashable(pickle, keys, call.offset)
    entries, objects = pickle.hashes.entries, len(pickle.hashed)
    try:
        _refuse_crowd(keys, linear=linear)
        if not {str, int}.issuperset(map(type, keys)):
            note_hashed(pickle, keys, call.offset)
    except UnreadableError:
        pickle.crowded.append(call)
    if pickle.hashes.count_numbers(keys) is not None or not pickle.hashes.count_texts(
        keys
    ):
        pickle.crowded.append(call)
    noted[id(given)] = _Noted(
        pickle.hashes.entries - entries, pickle.hashed[objects:], given
    )


def _class_and_content(call: Opaque) -> tuple[str, Node]:
    """The class whose object a call makes, and what it is filled with."""
    args = call.args
    func = call.func.meaning if type(call.func) is PersistentId else call.func
    name = python3_name(func.module, func.name) if type(func) is Global else ""
    # `_reconstructor(class, base, content)`, `__newobj__(class, content)`.
    if name in ("copyreg._reconstructor", "copyreg.__newobj__"):
        args = args[2:3] if name.endswith("_reconstructor") else args[1:]
        name = python3_name(*_class_name(call.args[0]))
    if name == "collections.defaultdict":
        args = args[1:]
    return name, args[0] if args else None


def _class_name(node: Node) -> tuple[str, str]:
    if type(node) is PersistentId and type(node.meaning) is Global:
        node = node.meaning
    return (node.module, node.name) if type(node) is Global else ("", "")


def _keys_of(given: Node) -> Sequence[Node]:
    """The keys of a dict, or of pairs."""
    if type(given) is Dict:
        return given.keys
    pairs = given if type(given) is list or is_tuple(given) else ()
    return [
        pair[0] for pair in pairs if (type(pair) is list or is_tuple(pair)) and pair
    ]


def _items_of(given: Node) -> Sequence[Node]:
    """The items that a loop over a container gives."""
    if type(given) is Dict:
        return given.keys
    if type(given) is Set:
        return given.items
    return given if type(given) is list or is_tuple(given) else ()


def _call_error(call: Opaque, problem: str) -> UnreadableError:
    return UnreadableError(
        f"damaged pickle: {call.class_name} at byte {call.offset:,}: {problem}"
    )


def _may_be_equal(call: Opaque) -> UnreadableError:
    what = f"a call of {call.class_name} at byte {call.offset:,} is the key of a dict"
    return UnreadableError(
        f"damaged pickle: {what}, where it may be equal to another key"
    )


# --- keys that are equal --------------------------------------------------------------


class _Spellings:
    """Gives equal keys one number each, in time in proportion to the keys."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[int, tuple[int | None, Node]] = {}
        self._items: dict[int, tuple[int | None, Node]] = {}

    def compare(self, keys: Sequence[Node]) -> None:
        """Refuse keys of one dict of which two may be equal, though they are spelled in
        two ways. Raises UnreadableError.
        """
        if len(keys) < 2 or all(
            type(key) is not Global and is_compared(key) for key in keys
        ):
            return
        first: dict[int, Node] = {}
        for key in keys:
            number = self._number_key(key, 0)
            if number is not None and (
                number not in first or _is_shown_twice(first[number], key)
            ):
                first[number] = key
                continue
            if type(key) is Opaque:
                raise _may_be_equal(key)
            raise UnreadableError("damaged pickle: two keys of a dict may be equal")

    def have_equal(self, items: Sequence[Node]) -> bool:
        """Tell whether two items of a set are surely equal, of which Python keeps
        one.
        """
        if len(items) < 2 or (are_texts(items) and len(set(items)) == len(items)):
            return False
        seen: set[int] = set()
        for item in items:
            number = self._number_item(item, 0)
            if number in seen:
                return True
            if number is not None:
                seen.add(number)
        return False

    def _number_item(self, item: Node, depth: int) -> int | None:
        """The number of an item of a set, which another one has only if both are surely
        equal. None is no answer.
        """
        if type(item) is PersistentId and type(item.meaning) is Global:
            item = item.meaning
        if type(item) is Global:
            text = python3_name(item.module, item.name)
            return self._number_spelling("class", _ALIASES.get(text, text))
        if type(item) not in (tuple, Set, Opaque):
            return self._number_key(item, depth)
        if id(item) not in self._items:
            number = self._number_parts(item, depth) if depth < _DEEPEST else None
            self._items[id(item)] = number, item
        return self._items[id(item)][0]

    def _number_parts(self, item: Node, depth: int) -> int | None:
        if type(item) is not Opaque:
            numbers = [self._number_item(part, depth + 1) for part in _items_of(item)]
            if None in numbers:
                return None
            if type(item) is Set:
                return self._number_spelling("set", *sorted(set(numbers)))  # type: ignore[type-var]
            return self._number_spelling("tuple", *numbers)
        # Bytes of protocol 2 are the result of a call.
        if is_compared(item):
            number = self._number_key(item, depth)
            if number is not None:
                return number
        name = python3_name(*item.class_name.rpartition(".")[::2])
        is_changed = item.kwargs is not None or item.items or item.keys
        if not is_changed and is_enum(name) and len(item.args) == 1:
            value = self._number_item(item.args[0], depth + 1)
            return None if value is None else self._number_spelling(name, value)
        if not is_changed and name.startswith(_COMPARED):
            number = self._number_call(item, depth)
            if number is not None:
                return number
        # One object of a pickle is one item, whatever it is.
        return self._number_spelling("one", id(item))

    def _number_spelling(self, *spelling: object) -> int:
        return self._numbers.setdefault(spelling, len(self._numbers))

    def _number_key(self, key: Node, depth: int) -> int | None:
        """The number of a key, or None for one that may be equal to any other."""
        # The class of a legacy file that brings its source along.
        if type(key) is PersistentId and type(key.meaning) is Global:
            key = key.meaning
        if type(key) is Global:
            return self._number_spelling("name", _name_of(key))
        if type(key) not in (tuple, Set, Opaque):
            if is_compared(key):
                return self._number_spelling("plain", key_text(key))
            return self._number_spelling("one", id(key))
        if id(key) not in self._known:
            number = self._number_compound(key, depth) if depth < _DEEPEST else None
            self._known[id(key)] = number, key
        return self._known[id(key)][0]

    def _number_keys(self, kind: str, keys: Sequence[Node], depth: int) -> int | None:
        numbers = [self._number_key(key, depth + 1) for key in keys]
        if None in numbers:
            return None
        if kind == "set":
            numbers = sorted(set(numbers))  # type: ignore[type-var]
        return self._number_spelling(kind, *numbers)

    def _number_compound(self, key: Node, depth: int) -> int | None:
        if is_tuple(key):
            return self._number_keys("tuple", key, depth)
        if type(key) is Set:
            return self._number_keys("set", key.items, depth)
        assert type(key) is Opaque
        if as_bytes(key) is not None:
            return self._number_spelling("plain", key_text(key))
        if tensor_of(key) is not None and tensor_of(key) is key.meaning:
            return self._number_spelling("one", id(key))
        if key.kwargs is not None or key.items or key.keys:
            return None
        return self._number_call(key, depth)

    def _number_call(self, call: Opaque, depth: int) -> int | None:
        name, args = python3_name(*call.class_name.rpartition(".")[::2]), call.args
        if name == "uuid.UUID":
            return self._number_uuid(call)
        if name.endswith(".MetadataIndex"):
            return self._number_index(call, depth)
        if _is_itself(call, name):
            return self._number_spelling("one", id(call))
        # A method that a class inherits has the names of several classes.
        if name == "builtins.getattr":
            if len(args) == 2 and isinstance(args[1], str):
                return self._number_spelling("method", args[1])
            return None
        if call.states and name != "numpy.dtype":
            return None
        if name in ("torch.Size", "builtins.frozenset") and not args:
            return self._number_keys(
                "tuple" if name == "torch.Size" else "set", [], depth
            )
        if (
            name == "torch.Size"
            and len(args) == 1
            and (type(args[0]) is list or is_tuple(args[0]))
        ):
            return self._number_keys("tuple", args[0], depth)
        if name == "builtins.frozenset" and len(args) == 1:
            if type(args[0]) in (list, tuple, Set):
                return self._number_keys("set", _items_of(args[0]), depth)
            return None
        if name == "torch.device" and 1 <= len(args) <= 2:
            return self._number_spelling("device", ":".join(map(str, args)))
        if name == "numpy.core.multiarray.scalar":
            value = _numpy_scalar(call)
            if value is None:
                return None
            return self._number_spelling("plain", key_text(value))
        if name == "numpy.dtype":
            return self._number_dtype(call)
        if name.startswith("pathlib."):
            return self._number_path(name, args)
        if name.startswith("datetime."):
            return self._number_time(name, args)
        if type(call.func) is Global and not is_known(call.func):
            return self._number_spelling(
                "one",
                id(call),
                # the file is no harmless one anyway, and what it makes is shown as an
                # object
            )
        if (
            is_enum(name)
            and args
            and all(type(arg) in (str, int, float, bool, ByteStr) for arg in args)
        ):
            # A member of an enum may be equal to its value, and a named tuple to one
            # without a name.
            if len(args) == 1:
                return self._number_key(args[0], depth)
            return self._number_keys("tuple", args, depth)
        return None

    def _number_uuid(self, call: Opaque) -> int | None:
        # The whole UUID is the number `int` in its state.
        numbers = [_value_in(state, "int") for state in call.states]
        if len(numbers) == 1 and type(numbers[0]) is int:
            return self._number_spelling("uuid", key_text(numbers[0]))
        return None

    def _number_index(self, call: Opaque, depth: int) -> int | None:
        if call.args or len(call.states) != 1:
            return None
        # Not by its number.
        fields = [_value_in(call.states[0], field) for field in ("fqn", "offset")]
        return self._number_keys("index", fields, depth)

    def _number_dtype(self, call: Opaque) -> int | None:
        dtype = numpy_dtype(call)
        if dtype is None or dtype.order not in "<|" or dtype.code[:1] not in "biufcSUO":
            return None
        return self._number_spelling("dtype", dtype.code)

    def _number_path(self, name: str, args: tuple[Node, ...]) -> int | None:
        parts = [str(arg) for arg in args if isinstance(arg, str)]
        if len(parts) < len(args):
            return None
        is_windows = name.endswith("WindowsPath")
        spelled = _path_text(parts, is_windows=is_windows)
        if spelled is None:
            return None
        return self._number_spelling("windows" if is_windows else "path", spelled)

    def _number_time(self, name: str, args: tuple[Node, ...]) -> int | None:
        if name == "datetime.timedelta":
            if len(args) != 3 or not all(type(arg) is int for arg in args):
                return None
            _, seconds, micros = args
            is_written = 0 <= seconds < 86_400 and 0 <= micros < 1_000_000  # type: ignore[operator]
            if is_written:
                return self._number_spelling(name, *map(key_text, args))
            return None
        # datetime pickles itself as bytes: 10 with the date, 6 of the time alone.
        raw = as_bytes(args[0]) if len(args) == 1 else None
        if raw is None:
            return None
        # The highest bit says which of two equal times is meant.
        place = {10: 2, 6: 0}.get(len(raw))
        if place is not None:
            raw = raw[:place] + bytes([raw[place] & 0x7F]) + raw[place + 1 :]
        return self._number_spelling(name, raw)


_COMPARED = (
    "datetime.",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "pathlib.",
    "torch.device",
    "uuid.UUID",
)
"""The beginnings of the names of objects that are equal if they are spelled alike."""


def _is_itself(call: Opaque, name: str) -> bool:
    """Tell whether an object is equal to itself alone: a layer, or what a class that
    nobody knows here is made without a call.
    """
    func = call.func
    if type(func) is Opaque:  # the class is an attribute of another
        return call.how.startswith("newobj") and not call.args
    if type(func) is Global and func.name == "_reconstructor":
        base = call.args[1] if len(call.args) == 3 else None
        is_object = type(base) is Global and base.name == "object"
        return is_object and _is_equal_to_itself(
            python3_name(*_class_name(call.args[0]))
        )
    return _is_equal_to_itself(name) or (
        type(func) is Global
        and not is_known(func)
        and call.how.startswith("newobj")
        and not call.args
    )


def _is_equal_to_itself(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return (
        is_module_class(name)
        or is_optimizer_class(name)
        or name in _ITSELF
        or not is_known(Global(module, last, 0))
    )


_ITSELF = (
    "functools.partial",
    "random.Random",
    "torch._C.Generator",
    "torch.utils.hooks.RemovableHandle",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
"""Further names whose objects are equal to themselves alone."""


def _numpy_scalar(call: Opaque) -> Node:
    """The value of a scalar of numpy that is a number, a text or bytes, or None."""
    if not call.class_name.endswith(".multiarray.scalar") or len(call.args) != 2:
        return None
    dtype, raw = numpy_dtype(call.args[0]), as_bytes(call.args[1])
    if dtype is None or raw is None or dtype.unit or dtype.code[:1] not in "biufSU":
        return None
    values = dtype.decode(raw, 1)
    return None if values is None else values[0]


def _name_of(name: Global) -> str:
    """A text that is the same for two names of one object.

    A class of layers or of a package is written by the name under which it is defined.
    Other known names stand in several modules of torch and Python, some without the
    underscore in front.
    """
    text = _ALIASES.get(python3_name(name.module, name.name))
    if text is not None:
        return text
    text = python3_name(name.module, name.name)
    is_dtype = name.module == "torch" and name.name in BY_NAME
    is_layer = is_module_class(text) or is_optimizer_class(text)
    is_one = is_dtype or is_layer or not is_known(name)
    return text if is_one else name.name.rpartition(".")[2].lstrip("_")


def _is_shown_twice(first: Node, key: Node) -> bool:
    """Tell whether the reading of dicts by itself says that two keys are equal."""
    return is_compared(first) and is_compared(key) and key_text(first) == key_text(key)


# --- numbers that lie in each other's way ---------------------------------------------


def _refuse_crowd(keys: Sequence[Node], *, linear: int) -> None:
    """Refuse numbers, and tuples of them, that are chosen so that Python looks at many
    others for each. Raises UnreadableError.

    `linear` is how many slots a set looks at one after the other: 9, and a dict none.
    """
    if any(type(key) is int and key.bit_length() > _LONGEST for key in keys):
        raise UnreadableError(
            "damaged pickle: a key or an item of a set is a number of thousands of "
            "digits"
        )
    # The usual dict ends here.
    if len(keys) <= _FEW_NUMBERS:
        return
    hashes = [number for key in keys if (number := _chosen_hash(key)) is not None]
    if len(hashes) <= _FEW_NUMBERS:
        return
    # Numbers almost without gaps, such as 0, 1, 2, fill a table in order.
    if max(hashes) - min(hashes) < len(hashes) * 1.1:
        return
    if not _are_spread(hashes, linear):
        raise UnreadableError(
            "damaged pickle: the numbers that are keys of a dict lie in each other's "
            "way"
        )


def _chosen_hash(key: Node) -> int | None:
    """The hash of a number, or of a tuple of numbers. Python salts the hashes
    of texts.
    """
    number = number_of(key)
    if number is not None:
        return hash(number)
    return hash(key) if is_tuple(key) and _has_numbers_alone(key) else None


def _has_numbers_alone(key: tuple[Node, ...]) -> bool:
    return all(
        type(part) in (int, float, bool)
        or (is_tuple(part) and _has_numbers_alone(part))
        for part in key
    )


def _are_spread(hashes: Sequence[int], linear: int) -> bool:
    """Put hashes into a table as Python puts keys into a dict or set. Tells whether
    each finds its slot soon.
    """
    steps = _STEPS + len(hashes) * _STEPS_OF_ONE
    window = steps
    slots: list[int | None] = [None] * 8
    for used, number in enumerate(hashes, 1):
        steps = _put_hash(slots, number, linear, steps)
        if not used % 10:
            if window - steps > _MOST_OF_TEN:
                return False
            window = steps
        if steps < 0:
            return False
        # Objects/setobject.c and dictobject.c: a set grows at 3/5, a dict at 2/3.
        full = (
            used * 5 >= (len(slots) - 1) * 3 if linear else used >= len(slots) * 2 // 3
        )
        if full:
            least = used * (2 if used > 50_000 else 4) if linear else used * 3
            size = 8
            while size <= least:
                size *= 2
            slots = [None] * size
            for other in hashes[:used]:
                steps = _put_hash(slots, other, linear, steps)
                if steps < 0:
                    return False
            window = steps
    return True


def _put_hash(slots: list[int | None], number: int, linear: int, steps: int) -> int:
    """Put a hash into its slot, and return how many steps are left."""
    # As CPython probes: slots beside the first, then places by the higher bits.
    mask = len(slots) - 1
    place = number & mask
    rest = number & (2**64 - 1)
    while True:
        near = linear if place + linear <= mask else 0
        for slot in range(place, place + near + 1):
            steps -= 1
            if slots[slot] is None:
                slots[slot] = number
                return steps
            if slots[slot] == number:
                return steps
        if steps < 0:
            return steps
        rest >>= 5
        place = (place * 5 + rest + 1) & mask


def _value_in(state: Node, name: str) -> Node:
    """An attribute in a state, which is a dict, or a pair of one and the dict
    of slots.
    """
    for part in state if is_tuple(state) else (state,):
        if type(part) is Dict:
            for key, value in zip(part.keys, part.values, strict=True):
                if key == name:
                    return value
    return None

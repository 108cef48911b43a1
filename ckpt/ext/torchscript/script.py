"""The code of a TorchScript archive as classes and functions, and what of it a load
runs.

torch.jit.load runs each `__setstate__`, the defaults of arguments, the constants of
classes, and all that these call. Layout:
torch/csrc/jit/frontend/{parser,ir_emitter,script_type_parser}.cpp,
torch/csrc/jit/serialization/import_source.cpp.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from ckpt.ext.torchscript.branches import find_unwritten
from ckpt.ext.torchscript.constants import Constants, is_safe_divisor
from ckpt.ext.torchscript.doubling import Work, find_doubling
from ckpt.ext.torchscript.lexer import (
    DEDENT,
    INDENT,
    KEYWORDS,
    NAME,
    NEWLINE,
    NUMBER,
    SIGN,
    TEXT,
    TYPE_COMMENT,
    UNKNOWN,
    Token,
    limit_nesting,
    tokens_of,
)
from ckpt.ext.torchscript.operators import (
    BUILTINS,
    CHANGING,
    DIVIDING,
    DTYPED,
    DTYPES,
    GROUPED,
    LIGHT,
    MAKING,
    MATCHING,
    METHODS,
    OPERATORS,
    SHAPING,
    SIZED,
    SIZES,
    packs_weights,
    touches_files,
)
from ckpt.model.limits import Budget
from ckpt.model.rows import NamedTuple, dataclass
from ckpt.model.text import show

_WHAT = "the code of the archive"
_TOKEN_MEMORY = 160
_ROW = 500
"""Bytes of memory of a class, a function or an attribute."""
_SAID = 100
"""The most places of one kind that are kept."""
_ROUNDS = 1_000
"""The most rounds of a loop that a load may run."""
_STEPS = 10_000_000
"""The most calls and tokens that a load may run."""
_MADE = 100
"""The most copies of data that a load may make."""
_MEMBERS = 20_000
"""The most attributes and methods of a class: torch looks through all of them
for each.
"""
_LONG_TEXT = 200
"""A literal of more letters counts as a value."""
# Any other escape may stand for a brace: `"\x7b"` is a `{` that the code hides.
_ESCAPE = re.compile(r"""\\[^ntr'"\\]""")
_MOST_GROUPS = 2**31
_STATEMENT = 80
"""The most tokens of a statement that are looked at as a whole."""
_SIZE = "|".join(sorted(SIZES))
# `self.stride = (state)[3]`: the `__setstate__` of torch's quantized layers.
_SET_SIZE = re.compile(rf"self \. ({_SIZE}) = \( state \) \[ (\d{{1,3}}) \]")
_GET_SIZE = re.compile(rf"\w+ = [a-z]\w*(?: \. \w+)* \. (?:{_SIZE})")
_NUMBERS = r"(?:_\d+|\[ (?:_\d+|\d{1,5})(?: , (?:_\d+|\d{1,5}))* \])"
_PACKING = re.compile(
    "|".join(
        (
            rf"(padding_mode|{_SIZE})\d* = self \. \1",
            rf"(?:_\d+ , )+= (?:{_SIZE})\d*",
            rf"(?:_\d+ , )*_\d+ = (?:{_SIZE})\d*",
            rf"_\d+ = {_NUMBERS}",
            r"_\d+ = ops \. quantized \. conv(?:(?:_transpose)?\dd)?_prepack \( w , b"
            rf"(?: , {_NUMBERS}){{3,4}} , (?:groups\d*|[1-9]\d{{0,4}}) \)",
            r"self \. _packed_params = _\d+",
            r'if torch \. (?:eq|ne) \( padding_mode\d* , "zeros" \) :',
            "else :|pass|return None",
        )
    )
)
"""The statements of torch's own layers that pack a weight. Names that begin with an
underscore stand for values that such statements have made.
"""
_PACKED = frozenset(("self", "w", "b"))
_FOREVER = 2**31
"""A loop of so many rounds has no end that anybody sees."""

_LITERALS = frozenset(("True", "False", "None", "inf", "nan"))
_LITERAL_SIGNS = frozenset("-+,()[]{}:")
_TYPE_NAMES = """
    Any AnyClassType AnyEnumType AnyListType AnyTupleType Await BroadcastingList1
    BroadcastingList2 BroadcastingList3 BroadcastingList4 BroadcastingList5
    BroadcastingList6 Capsule Device Dict Final Future Generator InferredType Layout
    List MemoryFormat NoneType Optional QScheme RRef ScalarType Storage Stream Tensor
    Tuple Union number t
"""
_TYPES = frozenset(_TYPE_NAMES.split())
_IMPLICIT = ("__setstate__", "__getstate__", "__init__")
"""Methods with two underscores that no operator calls."""
_OF_WITH = ("__enter__", "__exit__")
"""Methods that only a `with` calls, of an object of any class."""
_ROOTS = frozenset(("torch", "ops", "CONSTANTS", "__torch__"))


class Place(NamedTuple):
    """A place in the code: the file and the first byte of a token."""

    file: str
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A function or a method: its file, the part of the file that is its body, and the
    types that it names.
    """

    file: str
    begin: int
    end: int
    params: dict[str, str | None]
    returns: str | None


@dataclass(frozen=True, slots=True, eq=False)
class ScriptClass:
    """A class: its base, the types of its attributes, and its methods. A type is a name
    with dots, or None.
    """

    name: str
    base: str
    attributes: dict[str, str | None]
    methods: dict[str, Body]
    types: dict[str, str]
    """The whole types of its attributes, without blanks."""
    states: list[str]
    """The whole type of the argument of its `__setstate__`."""

    @property
    def state(self) -> str:
        """Return the type that `__setstate__` gets, or the empty text."""
        return self.states[0] if self.states else ""

    @property
    def is_interface(self) -> bool:
        """Tell whether other classes have the code of its methods."""
        return self.base.endswith("Interface")


class Deed(NamedTuple):
    """An operator or a loop of the code, and where it stands. `is_method` is an
    operator behind a value.
    """

    what: str
    place: Place
    is_method: bool = False


class Script:
    """All code of an archive, file by file (`add_file`), and then what a load runs of
    it (`find_deeds`).
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.has_values = True
        """Some of the constants beside the code may be no tensors."""
        self.texts: dict[str, str] = {}
        self.classes: dict[str, ScriptClass] = {}
        self.functions: dict[str, Body] = {}
        self.places: dict[str, Place] = {}
        """The place of each class."""
        self.modules: set[str] = set()
        self.loaders: list[Place] = []
        """The places of `__setstate__`."""
        self.deeds: list[Deed] = []
        """Operators that touch files and loops without a bound, in all of the code."""
        self.early: list[tuple[str, int, int]] = []
        """Expressions that a load evaluates at once, as parts of files."""
        self.groups: set[int] = set()
        """The items of states that an operator divides by."""
        self.shaping: list[Deed] = []
        self.packing: list[Deed] = []
        """Operators that a load runs: they shape tensors anew, or pack weights."""
        self.sized: list[Place] = []
        """Attributes of classes that are constants and have the name of a size."""
        self.odd: list[Deed] = []
        """Code that does not look like the code of torch.jit.save."""

    def add_file(self, code: str, file: str, module: str) -> None:
        """Read one file. `module` is the name of its classes before the last dot.
        Raises LimitError.
        """
        self.texts[file] = code
        steps = module.split(".")
        # A class of `__torch__.a.b` makes modules of `__torch__` and `__torch__.a` too.
        self.modules.update(".".join(steps[: end + 1]) for end in range(len(steps)))
        _FileReader(self, code, file, module, self._budget).read()

    def deeds_anywhere(self) -> list[Deed]:
        """Return the operators that touch files, and the loops without a bound, that
        somebody may call.

        A method of this name in the code is no operator.
        """
        methods = {name for cls in self.classes.values() for name in cls.methods}
        return [
            deed for deed in self.deeds if not (deed.is_method and deed.what in methods)
        ]

    def deeds_of_load(self) -> tuple[list[Deed], list[Deed]]:
        """Return what a load runs that touches files or may never end, and what else it
        runs that is not listed.

        Raises LimitError.
        """
        reach = _Reach(self, self._budget)
        reach.run()
        # torch compiles all bodies of the archive, also those that a load does not run.
        for what, place in self._find_computed():
            reach.strange(what, place.file, place.at)
        reach.judge_packing()
        self.shaping, self.packing = reach.shaping, reach.packing
        return reach.dangers, [*self.odd, *reach.unknown]

    def _find_computed(self) -> Iterator[tuple[str, Place]]:
        """Yield what of any body or class a load computes, or compiles for longer than
        its text is.
        """
        tuples = frozenset(
            cls.name for cls in self.classes.values() if cls.base == "NamedTuple"
        )
        work = Work()
        methods = (
            body for cls in self.classes.values() for body in cls.methods.values()
        )
        for body in (*self.functions.values(), *methods):
            found = Constants(iter(body.params), tuples, self.has_values, self._budget)
            for what, token in found.find(
                tokens_of(self.texts[body.file], body.begin, body.end)
            ):
                yield what, Place(body.file, token.begin)
            # Tokens come from a generator, so each of the three looks cuts the body
            # again.
            doubled = find_doubling(
                tokens_of(self.texts[body.file], body.begin, body.end),
                self._budget,
                work,
            )
            if doubled is not None:
                yield "a tuple of many others", Place(body.file, doubled.begin)
            tokens = tokens_of(self.texts[body.file], body.begin, body.end)
            for what, token in find_unwritten(tokens, self._budget):
                yield what, Place(body.file, token.begin)
        for cls in self.classes.values():
            if len(cls.attributes) + len(cls.methods) > _MEMBERS:
                yield f"a class of over {_MEMBERS:,} attributes", self.places[cls.name]

    def line_of(self, place: Place) -> str:
        """Return the file and the line of a place, for people."""
        line = self.texts[place.file].count("\n", 0, place.at) + 1
        return f"{show(place.file, 80)}:{line}"


# --- the structure of a file ----------------------------------------------------------


class _FileReader:
    """One file. Classes and functions are read line by line; bodies are passed over,
    with a look at their calls.
    """

    def __init__(
        self, script: Script, code: str, file: str, module: str, budget: Budget
    ) -> None:
        self._script = script
        self._file = file
        self._module = module
        self._budget = budget
        self._tokens = self._note_empty_brackets(limit_nesting(tokens_of(code)))
        self._ended = False
        self._after = len(code)
        """The beginning of the token behind the last line or body."""

    def read(self) -> None:
        cls: ScriptClass | None = None
        while (line := self._line()) is not None:
            is_inside = cls is not None and self._line_level > 0
            if not is_inside:
                cls = None
            first = line[0].text if line else ""
            if first == "class" and not is_inside:
                cls = self._read_class(line)
            elif first == "def":
                self._read_function(line, cls)
            elif cls is not None:
                self._read_attribute(line, cls)
            elif line and first not in ("import", "op_version_set"):
                self._note_evaluated(line)

    _last_type = ""
    """The whole type of the last argument of the last function."""
    _level = 0
    _line_level = 0
    """The level of the last line."""

    def _line(self) -> list[Token] | None:
        """Return the tokens of the next line, or None at the end."""
        line: list[Token] = []
        for token in self._tokens:
            if token.kind == NEWLINE:
                if line:
                    return line
            elif token.kind == INDENT:
                self._level += 1
                if line:
                    self._after = token.begin
                    return line
            elif token.kind == DEDENT:
                self._level -= 1
            else:
                if token.kind == UNKNOWN:
                    self._note_odd(token)
                if not line:
                    self._line_level = self._level
                # Only heads and attributes are kept as tokens; bodies are passed over.
                self._budget.charge(_TOKEN_MEMORY, _WHAT)
                line.append(token)
        return line or None

    def _read_class(self, line: Sequence[Token]) -> ScriptClass:
        self._budget.charge(_ROW, _WHAT)
        name = line[1].text if len(line) > 1 else ""
        base = line[3].text if len(line) > 3 else ""
        signs = ["NAME" if token.kind == NAME else token.text for token in line[1:]]
        # `class X:` or `class X(Module):`, as torch writes it.
        if signs not in (["NAME", ":"], ["NAME", "(", "NAME", ")", ":"]):
            self._note_odd(line[0])
        cls = ScriptClass(f"{self._module}.{name}", base, {}, {}, {}, [])
        if cls.name in self._script.classes:
            self._note_odd(line[0])
        self._script.classes[cls.name] = cls
        self._script.places[cls.name] = Place(self._file, line[0].begin)
        return cls

    def _read_attribute(self, line: Sequence[Token], cls: ScriptClass) -> None:
        """`name : type`, `name : type = constant`, `__parameters__ = [...]` or
        `__annotations__["0"] = type`.
        """
        self._budget.charge(_ROW, _WHAT)
        name = line[0].text
        if (
            # The name `0`, as in a Sequential, cannot stand before a colon.
            name == "__annotations__"
            and len(line) > 5
            and line[1].text == "["
            and line[4].text == "="
        ):
            cls.attributes[line[2].text[1:-1]] = _type_of(line[5:])
            cls.types[line[2].text[1:-1]] = _text_of(line[5:])
            return
        equals = next(
            (index for index, token in enumerate(line) if token.text == "="), len(line)
        )
        if len(line) > 1 and line[1].text == ":":
            cls.attributes[name] = _type_of(line[2:equals])
            cls.types[name] = _text_of(line[2:equals])
        # A constant of the class is in no state, where the groups are checked.
        if name in SIZES and equals < len(line) and len(self._script.sized) < _SAID:
            self._script.sized.append(Place(self._file, line[0].begin))
        self._note_evaluated(line[equals + 1 :])

    def _read_function(self, line: Sequence[Token], cls: ScriptClass | None) -> None:
        self._budget.charge(_ROW, _WHAT)
        name = line[1].text if len(line) > 1 else ""
        params, rest = self._read_parameters(line)
        returns = None
        if rest < len(line) and line[rest].text == "->":
            returns = _type_of(line[rest + 1 : -1])
        if line[-1].text != ":":
            self._note_odd(line[-1])
        # The body changes the level, and ends where the level is back.
        outer = self._line_level
        begin = self._after
        body = Body(self._file, begin, self._pass_body(outer), params, returns)
        if cls is None:
            self._script.functions[f"{self._module}.{name}"] = body
            return
        if name == "__setstate__":
            self._script.loaders.append(Place(self._file, line[0].begin))
            cls.states.append(self._last_type)
        if name in cls.methods:
            self._note_odd(line[-1])
        cls.methods[name] = body

    def _read_parameters(
        self, line: Sequence[Token]
    ) -> tuple[dict[str, str | None], int]:
        """Return the type of each argument, and the index behind the list. Its defaults
        are evaluated at once.
        """
        params: dict[str, str | None] = {}
        depth, index = 0, 2
        start, colon, equals = 3, -1, -1
        self._last_type = ""
        while index < len(line):
            token = line[index]
            if token.kind == SIGN and token.text in "([{":
                depth += 1
            elif token.kind == SIGN and token.text in ")]}":
                depth -= 1
            elif depth == 1 and token.text == ":" and colon < 0:
                colon = index
            elif depth == 1 and token.text == "=" and equals < 0:
                equals = index
            if (depth <= 1 and token.text == ",") or depth == 0:
                if start < index:
                    self._budget.charge(_ROW, _WHAT)
                    end = equals if equals > 0 else index
                    params[line[start].text] = (
                        _type_of(line[colon + 1 : end]) if colon > 0 else None
                    )
                    self._last_type = (
                        _text_of(line[colon + 1 : end]) if colon > 0 else ""
                    )
                    if equals > 0:
                        self._note_evaluated(line[equals + 1 : index])
                start, colon, equals = index + 1, -1, -1
            index += 1
            if depth == 0:
                break
        return params, index

    def _pass_body(self, outer: int) -> int:
        """Pass over the lines of a body, and return where it ends."""
        look = _Look(self._script, self._file)
        if self._level <= outer:
            return self._after  # a body in the line of its head, which torch refuses
        for token in self._tokens:
            if token.kind == INDENT:
                self._level += 1
            elif token.kind == DEDENT:
                self._level -= 1
                if self._level <= outer:
                    return token.begin
            else:
                if token.kind == UNKNOWN:
                    self._note_odd(token)
                look.at(token)
        return self._after

    def _note_evaluated(self, expression: Sequence[Token]) -> None:
        """Note an expression that a load evaluates, unless it is made of
        literals only.
        """
        for token in expression:
            # Literals, and the lists, tuples and dicts that are made of them, run
            # nothing.
            literal = token.kind in (NUMBER, TEXT) or token.text in _LITERALS
            if not literal and token.text not in _LITERAL_SIGNS:
                self._budget.charge(_ROW, _WHAT)
                last = expression[-1]
                self._script.early.append(
                    (self._file, expression[0].begin, last.begin + len(last.text))
                )
                return

    def _note_empty_brackets(self, tokens: Iterator[Token]) -> Iterator[Token]:
        """Yield tokens, and note brackets with nothing in them behind a name: of the
        type `Optional[]` torch reads the first part, which is not there.
        """
        before = opened = None
        for token in tokens:
            if token.text == "]" and opened is not None:
                self._note_odd(opened)
            follows_name = before is not None and (
                before.text == "]"
                or (before.kind == NAME and before.text not in KEYWORDS)
            )
            opened = token if token.text == "[" and follows_name else None
            before = token
            yield token

    def _note_odd(self, token: Token) -> None:
        if len(self._script.odd) < _SAID:
            self._script.odd.append(
                Deed("code that ckpt cannot read", Place(self._file, token.begin))
            )


def _type_of(tokens: Sequence[Token]) -> str | None:
    """A type that is one name with dots, or None."""
    # Names stand at even places, the dots between them at odd ones.
    if not tokens or any(
        (token.kind == NAME) is (index % 2 == 1) for index, token in enumerate(tokens)
    ):
        return None
    if any(token.text != "." for token in tokens[1::2]):
        return None
    return "".join(token.text for token in tokens)


def _text_of(tokens: Sequence[Token]) -> str:
    """A type without blanks."""
    return "".join(token.text for token in tokens)


class _Look:
    """A look at the calls of a body that somebody may run later: operators on files,
    loops without a bound.
    """

    def __init__(self, script: Script, file: str) -> None:
        self._script = script
        self._file = file
        self._chain: list[str] = []
        self._is_member = False
        self._last = ["", "", ""]
        """The texts of the last tokens."""

    def at(self, token: Token) -> None:
        """Take the next token."""
        text = token.text
        if token.kind == NAME:
            if self._is_member and self._chain:
                # Only the root and the last name decide: `torch.ops.aten.save` is
                # `torch.save`.
                self._chain = [self._chain[0], text]
                self._name(text, token)
            else:
                self._chain = [text]
            self._is_member = False
        elif text == ".":
            self._is_member = True
        # Brackets stay in the chain, for `(torch).save` is `torch.save`.
        elif text not in ("(", ")"):
            self._chain, self._is_member = [], False
        if text == ":" and self._last[1:] == ["while", "True"]:
            self._note_deed("a loop without a bound", token)
        if (
            token.kind == NUMBER
            and self._last[1:] == ["range", "("]
            and _parse_number(text) >= _FOREVER
        ):
            self._note_deed("a loop without a bound", token)
        self._last = [self._last[1], self._last[2], text]

    def _name(self, name: str, token: Token) -> None:
        if not touches_files(name):
            return
        if self._chain[0] in ("torch", "ops"):
            self._note_deed(f"torch.{name}", token)
        elif name in ("save", "from_file"):
            self._note_deed(name, token, is_method=True)

    def _note_deed(self, what: str, token: Token, is_method: bool = False) -> None:
        if len(self._script.deeds) < _SAID:
            self._script.deeds.append(
                Deed(what, Place(self._file, token.begin), is_method)
            )


def _unquote_text(text: str) -> str:
    """The characters between the quotes of a text. Its escapes stay, so no name has
    one.
    """
    return (
        text[3:-3] if text.startswith(('"""', "'''")) and len(text) >= 6 else text[1:-1]
    )


def _parse_number(text: str) -> float:
    """A number of the code; one that Python does not read is without a bound."""
    try:
        return int(text, 16) if text[:2].lower() == "0x" else float(text)
    except (ValueError, OverflowError):
        return float("inf")


# --- what a load runs -----------------------------------------------------------------

_Kind = Literal[
    "value",
    "torch",
    "namespace",
    "operator",
    "module",
    "class",
    "new",
    "object",
    "method",
    "function",
    "member",
    "builtin",
]


class _Thing(NamedTuple):
    """The meaning of an expression, as far as the code says it.

    `name` is the class of an object, the name of a module, of an operator or of a
    function; `member` is what stands behind its last dot.
    """

    kind: _Kind
    name: str = ""
    member: str = ""


_VALUE = _Thing("value")
_TYPE = _Thing("value", "a type")
_HELD = _Thing("value", "a tuple, list or dict that is an argument")
_NO_NUMBER = _Thing("value", "a list, or a dtype or device that torch has made")
_PLAIN = _Thing("value", "a literal that may be a dtype")
_ASKED = frozenset(("ops.prim.dtype", "ops.prim.device", "torch.device"))
"""Operators whose results are dtypes and devices."""
_KEYWORD = -1
"""The place of an argument with a name."""
_MAKERS = frozenset(("dict", "list", "sorted", "str", "zip"))
"""Names without a module that make data."""
_BACKENDS = "__torch__.torch.classes.__backends__."
"""The classes of the libraries of backends, to which modules are lowered. A lowered
module makes one and compiles with it.
"""
_OF_BACKENDS = frozenset(("__init__", "__new__", "compile", "is_available"))
_TORCH = _Thing("torch", "aten")


class _Part:
    """A part of the code that a load runs: its steps, and the parts that it calls, each
    with the rounds of its loops.
    """

    __slots__ = (
        "begin",
        "calls",
        "end",
        "file",
        "is_sized",
        "made",
        "odd",
        "owner",
        "params",
        "steps",
    )

    def __init__(self, body: Body, owner: str | None) -> None:
        self.file, self.begin, self.end, self.params = (
            body.file,
            body.begin,
            body.end,
            body.params,
        )
        self.owner = owner
        """The class of its first argument, for a method."""
        self.steps = self.made = 0
        """The tokens that it runs, and the operators that make data."""
        self.calls: dict[str, int] = {}
        self.is_sized = False
        """One of its operators computes with the sizes of a layer."""
        self.odd: int | None = None
        """The first statement that torch's own layers do not have beside those."""


class _Reach:
    """The parts of the code that a load runs, from `__setstate__` and the expressions
    that it evaluates on.
    """

    def __init__(self, script: Script, budget: Budget) -> None:
        self.script = script
        self.budget = budget
        self.dangers: list[Deed] = []
        self.unknown: list[Deed] = []
        self.is_sized = False
        """An operator computes with the sizes of a layer."""
        self.odd_sizes: list[Deed] = []
        self.shaping: list[Deed] = []
        self.packing: list[Deed] = []
        self.making: list[Deed] = []
        """Statements that set sizes in another way than torch writes; operators that
        shape tensors anew, pack weights, make tensors.
        """
        self._parts: dict[str, _Part] = {}
        self._todo: list[str] = []

    def run(self) -> None:
        for index, (file, begin, end) in enumerate(self.script.early):
            # No name of the code has an `=`, so these keys meet no function or method.
            self._parts[f"={index}"] = _Part(Body(file, begin, end, {}, None), None)
            self._todo.append(f"={index}")
        for cls in self.script.classes.values():
            if "__setstate__" in cls.methods:
                self.method(cls.name, "__setstate__")
        # Without a start nothing runs, so nothing can call the methods below.
        if not self._todo:
            return
        for cls in self.script.classes.values():
            for name in cls.methods:
                # An operator, an index or a comparison may call it.
                if (
                    name.startswith("__")
                    and name.endswith("__")
                    and name not in (*_IMPLICIT, *_OF_WITH)
                ):
                    self.method(cls.name, name)
        starts = list(self._todo)
        while self._todo:
            _Run(self, self._parts[self._todo.pop()]).run()
        self._count_steps(starts)

    def method(self, owner: str, name: str) -> list[str]:
        """Return the parts that a call of a method runs. For an interface, each class
        may have one.
        """
        # The object behind an interface may be of any class with the method.
        cls = self.script.classes[owner]
        if not cls.is_interface:
            return [self._part(f"{owner}.{name}", cls.methods[name], owner)]
        return self.methods(name)

    def methods(self, name: str) -> list[str]:
        """Return the parts that a call of a method of an unknown object may run."""
        whole = f"*.{name}"
        if whole not in self._parts:
            # One part stands for all of them, so a call costs the same however many
            # there are.
            self._parts[whole] = every = _Part(Body("", 0, 0, {}, None), None)
            for other in self.script.classes.values():
                if name in other.methods and not other.is_interface:
                    every.calls[
                        self._part(
                            f"{other.name}.{name}", other.methods[name], other.name
                        )
                    ] = 1
        return [whole]

    def function(self, name: str) -> list[str]:
        """Return the part that a call of a function runs."""
        return [self._part(name, self.script.functions[name], None)]

    def danger(self, what: str, file: str, at: int) -> None:
        """Note what touches files or may never end."""
        if len(self.dangers) < _SAID:
            self.dangers.append(Deed(what, Place(file, at)))

    def strange(self, what: str, file: str, at: int) -> None:
        """Note what is not on the closed list."""
        if len(self.unknown) < _SAID:
            self.unknown.append(Deed(what, Place(file, at)))

    def odd_size(self, file: str, at: int) -> None:
        """Note what sets a size in another way than torch's own layers do."""
        if len(self.odd_sizes) < _SAID:
            deed = Deed("sizes of a layer that ckpt cannot follow", Place(file, at))
            self.odd_sizes.append(deed)

    def note_index(self, file: str, at: int) -> None:
        """Note an index of what may be a tensor."""
        if len(self.shaping) < _SAID:
            self.shaping.append(Deed("an index", Place(file, at)))

    def note_tensors(self, name: str, file: str, at: int) -> None:
        """Note an operator that packs, shapes or makes tensors."""
        place = Place(file, at)
        what = f"torch.{show(name, 40)}"
        if name in CHANGING:
            self.odd_size(file, at)
        if packs_weights(name) and len(self.packing) < _SAID:
            self.packing.append(Deed(what, place))
        if name in SHAPING and len(self.shaping) < _SAID:
            self.shaping.append(Deed(what, place))
        if name in MAKING and len(self.making) < _SAID:
            self.making.append(Deed(f"{what} beside the packing of a weight", place))

    def judge_packing(self) -> None:
        """Say what the code does with sizes and weights that are packed, and that
        torch's own layers do not.
        """
        odd: list[Deed] = []
        if self.is_sized:
            odd += self.odd_sizes
            odd += (Deed("a size of a layer", place) for place in self.script.sized)
        odd += self.making if self.packing else ()
        for deed in odd:
            self.strange(deed.what, deed.place.file, deed.place.at)

    def _part(self, name: str, body: Body, owner: str | None) -> str:
        if name not in self._parts:
            self.budget.charge(_ROW, _WHAT)
            self._parts[name] = _Part(body, owner)
            self._todo.append(name)
        return name

    def _count_steps(self, starts: Sequence[str]) -> None:
        """Count the steps of all parts, callees first. A part that calls itself in a
        circle never ends.
        """
        steps: dict[str, int] = {}
        made: dict[str, int] = {}
        opened: set[str] = set()
        for start in starts:
            if start in steps:
                continue
            # A stack of our own: calls may nest deeper than Python can call.
            todo = [(start, iter(self._parts[start].calls))]
            opened.add(start)
            while todo:
                name, callees = todo[-1]
                callee = next(callees, None)
                part = self._parts[name]
                if callee is None:
                    todo.pop()
                    opened.discard(name)
                    inner = sum(
                        rounds * steps[other] for other, rounds in part.calls.items()
                    )
                    # Without the cap, calls that double make huge integers.
                    steps[name] = min(part.steps + inner, _STEPS + 1)
                    inner = sum(
                        rounds * made.get(other, 0)
                        for other, rounds in part.calls.items()
                    )
                    made[name] = min(part.made + inner, _MADE + 1)
                elif callee in opened:
                    # The part that stands for all methods of a name has no file.
                    here = part if part.file else self._parts[callee]
                    if here.file:
                        self.danger("code that calls itself", here.file, here.begin)
                    steps.setdefault(callee, 0)
                elif callee not in steps:
                    opened.add(callee)
                    todo.append((callee, iter(self._parts[callee].calls)))
        for start in starts:
            part = self._parts[start]
            if made.get(start, 0) > _MADE:
                self.strange(
                    "more operators that make data than are listed",
                    part.file,
                    part.begin,
                )
        if sum(steps.get(start, 0) for start in starts) > _STEPS and starts:
            part = self._parts[starts[0]]
            self.danger(f"more than {_STEPS:,} steps", part.file, part.begin)


class _Group:
    """An open bracket: what stands before it, and what is inside so far."""

    __slots__ = (
        "before",
        "braces",
        "divisor",
        "ended",
        "first",
        "has_class",
        "has_literal",
        "is_computed",
        "is_keyword",
        "is_mixed",
        "is_named",
        "is_single",
        "is_size",
        "is_text",
        "sign",
        "unsure",
        "word",
    )

    def __init__(self, sign: str, before: _Thing | None) -> None:
        self.sign = sign
        self.before = before
        self.first: _Thing | None = None
        """The meaning of the first argument."""
        self.word = ""
        """The text of the second argument, where it is a literal."""
        self.is_single = True
        self.has_literal = self.is_named = False
        """One of the arguments without a name is a number or a short text; an argument
        with a name stands before.
        """
        self.is_size = False
        """A size of a layer stands before."""
        self.is_text = self.is_computed = False
        """The first argument is a literal; something inside is none."""
        self.has_class = False
        """A type inside is a class, a tuple or a dict."""
        self.ended = 0
        """The arguments that ended."""
        self.divisor = ("", -1)
        """The last argument that is one number, and its index."""
        self.braces = 0
        """The places in the texts inside where `format` puts a value."""
        self.is_keyword = self.is_mixed = False
        """The argument has a name; an operator stands in it."""
        self.unsure: set[int] = set()
        """The places of the arguments that may be numbers of no dtype."""

    def end_argument(self, now: _Thing | None) -> None:
        """End an argument that stands for something."""
        is_sure = not self.is_mixed and now in (_PLAIN, _NO_NUMBER)
        if now is not None and not is_sure:
            # All arguments from the tenth on share a place; no operator takes a dtype
            # there.
            self.unsure.add(_KEYWORD if self.is_keyword else min(self.ended, 9))
        self.is_keyword = self.is_mixed = False


class _Run:
    """One part, token by token. `_now` is what the expression so far stands for, None
    before an expression.
    """

    def __init__(self, reach: _Reach, part: _Part) -> None:
        self._reach = reach
        self._script = reach.script
        self._part = part
        self._names: dict[str, _Thing] = {
            name: self._thing_of_type(kind) if kind is not None else _HELD
            for name, kind in part.params.items()
        }
        if part.owner is not None and part.params:
            # The first argument is self, whatever its name and its type in the code.
            self._names[next(iter(part.params))] = _Thing("object", part.owner)
        self._groups: list[_Group] = []
        self._now: _Thing | None = None
        self._targets: list[Token] = []
        """The names of the statement that may be assigned to."""
        self._is_fresh = False
        """The last of the targets is all of the expression so far."""
        self._is_plain = True
        """All of the statement so far is one name."""
        self._assigned: list[str] = []
        self._tokens: Iterator[Token] = iter(())
        self._pending: Token | None = None
        self._loops: list[tuple[int, int]] = []
        """The level of each open loop, and the rounds outside of it."""
        self._level = 0
        self._rounds = 1
        self._head = ""
        """The keyword that begins the statement."""
        self._last_sign = ""
        self._is_size = False
        """The last name is one of a size of a layer."""
        self._statement: list[Token] = []
        """The tokens of the statement so far."""

    def run(self) -> None:
        code = self._script.texts[self._part.file]
        self._tokens = tokens_of(code, self._part.begin, self._part.end)
        while (token := self._next_token()) is not None:
            self._part.steps += self._rounds
            if token.kind == NEWLINE:
                self._end_statement()
            elif token.kind == INDENT:
                self._end_statement()
                self._level += 1
            elif token.kind == DEDENT:
                self._end_statement()
                self._level -= 1
                # Code behind a loop runs as often as the code before it.
                while self._loops and self._loops[-1][0] >= self._level:
                    self._rounds = self._loops.pop()[1]
            elif token.kind == NAME:
                self._name(token)
            elif token.kind in (NUMBER, TEXT):
                self._take_literal(token)
            elif token.kind == UNKNOWN or token.text in (TYPE_COMMENT, "@"):
                self._note_strange("code that ckpt cannot read", token)
            else:
                self._take_sign(token)
        self._look_at_statement()
        part = self._part
        # torch's own packing has no arguments but `self`, `w` and `b`.
        if part.is_sized and part.odd is None and not _PACKED.issuperset(part.params):
            part.odd = part.begin
        if part.is_sized and part.odd is not None:
            self._reach.odd_size(part.file, part.odd)

    def _next_token(self) -> Token | None:
        token, self._pending = self._pending, None
        token = token if token is not None else next(self._tokens, None)
        if token is not None and len(self._statement) < _STATEMENT:
            self._statement.append(token)
        return token

    def _look_at_statement(self) -> None:
        """Look at a whole statement: what sets a size, and what stands beside packing,
        must be as torch writes it.
        """
        tokens = [
            token
            for token in self._statement
            if token.kind not in (NEWLINE, INDENT, DEDENT)
        ]
        # The rest of a longer statement is not kept, so it counts as odd.
        is_cut = len(self._statement) == _STATEMENT
        self._statement.clear()
        if not tokens:
            return
        text = " ".join(token.text for token in tokens)
        names_size = any(
            token.text == "." and after.text in SIZES
            for token, after in itertools.pairwise(tokens)
        )
        is_set = _SET_SIZE.fullmatch(text)
        if is_set is not None and is_set[1] == "groups":
            self._script.groups.add(int(is_set[2]))
        is_usual = is_set is not None or _GET_SIZE.fullmatch(text) is not None
        if (names_size or is_cut) and not is_usual:
            self._reach.odd_size(self._part.file, tokens[0].begin)
        if self._part.odd is None and (is_cut or not _PACKING.fullmatch(text)):
            self._part.odd = tokens[0].begin

    def _peek_token(self) -> Token | None:
        if self._pending is None:
            self._pending = next(self._tokens, None)
        return self._pending

    # --- statements -------------------------------------------------------------------

    def _end_statement(self) -> None:
        self._look_at_statement()
        if self._groups:
            self._groups.clear()
        value = self._now if self._now is not None and self._is_plain_value else _VALUE
        for name in self._assigned:
            self._assign_name(name, value)
        self._assigned.clear()
        self._targets.clear()
        self._now = None
        self._is_fresh = False
        self._is_plain = self._is_plain_value = True
        self._head = ""

    _is_plain_value = True
    """The expression behind the last `=` is one chain of names and calls."""

    def _assign_name(self, name: str, value: _Thing) -> None:
        self._reach.budget.charge(_ROW, _WHAT)
        known = self._names.get(name)
        if value in (_PLAIN, _NO_NUMBER) or (known is not None and known != value):
            # By one branch this, by another that, or later in a loop.
            value = _VALUE
        self._names[name] = value

    def _take_equals(self, token: Token) -> None:
        """Take what stands before `=` as names that are assigned to."""
        names = [target.text for target in self._targets]
        # A new meaning of a name such as `torch` would mislead all later looks.
        if _ROOTS.intersection(names):
            self._note_strange("code that ckpt cannot read", token)
        if self._is_plain and len(names) == 1:
            self._assigned += names
        else:
            for name in names:
                self._assign_name(name, _VALUE)
        self._targets.clear()
        self._now = None
        self._is_fresh = False
        self._is_plain = self._is_plain_value = True

    # --- tokens -----------------------------------------------------------------------

    def _name(self, token: Token) -> None:
        text = token.text
        # torch.jit.save numbers a name that it needs again: `stride0` is a size too.
        self._is_size = text.rstrip("0123456789") in SIZES
        if self._now is not None and text not in KEYWORDS:
            self._note_strange("code that ckpt cannot read", token)
        if text in KEYWORDS:
            self._take_keyword(token)
            return
        following = self._peek_token()
        follows = (
            following.text if following is not None and following.kind == SIGN else ""
        )
        if self._groups and follows == "=":
            self._groups[-1].is_named = True
            return  # the name of an argument, whose `=` ends nothing
        if self._groups:
            self._groups[-1].is_computed = True
        if all(group.before is None for group in self._groups[-2:]):
            self._targets.append(token)  # `a, b = c` or `(a, b) = c`
            self._is_fresh = True
        self._now = self._look_up(token)
        if self._groups and (
            text in ("Tuple", "Dict", "Union") or self._now.kind == "class"
        ):
            self._groups[-1].has_class = True
        if text == "range" and self._now == _Thing("builtin", "range"):
            self._take_range(token)

    def _look_up(self, token: Token) -> _Thing:
        text = token.text
        known = self._names.get(text)
        if known is not None:
            return known
        if text == "torch":
            return _TORCH
        if text == "ops":
            return _Thing("namespace")
        if text == "__torch__":
            return _Thing("module", "__torch__")
        if text in BUILTINS:
            return _Thing("builtin", text)
        if text in _TYPES:
            return _TYPE
        if text in ("True", "False", "None"):
            return _PLAIN
        if text in _LITERALS or text == "CONSTANTS":
            return _VALUE
        return _Thing("member", "", text)

    def _take_keyword(self, token: Token) -> None:
        text = token.text
        self._operator()
        if text == "while":
            # Its condition may stay true, so no number of rounds would be enough.
            self._note_danger("a loop without a bound", token)
            self._begin_loop(1)
        elif text == "for":
            if self._groups:
                self._note_strange("a loop in an expression", token)
            else:
                self._head = "for"
                self._targets.clear()
        elif text == "in" and self._head == "for" and not self._groups:
            for target in self._targets:
                self._assign_name(target.text, _VALUE)
            self._head = ""
            following = self._peek_token()
            if following is not None and following.text == "range":
                # _take_range begins this loop, for it knows the rounds.
                return
            self._note_strange("a loop over a value", token)
            self._begin_loop(_ROUNDS)
        elif text == "as":
            following = self._peek_token()
            if following is not None and following.kind == NAME:
                self._assign_name(following.text, _VALUE)
        elif text == "with":
            for name in _OF_WITH:
                self._add_calls(self._reach.methods(name))
        elif text in ("def", "import", "global"):
            self._note_strange("code that ckpt cannot read", token)

    def _begin_loop(self, rounds: int) -> None:
        rounds = max(rounds, 1)
        self._loops.append((self._level, self._rounds))
        # Rounds of loops in loops multiply; the cap keeps the product small.
        self._rounds = min(self._rounds * rounds, _STEPS * _STEPS)

    def _take_range(self, token: Token) -> None:
        """Look at the numbers of a range: only small ones bound a loop."""
        numbers: list[float] = []
        following = self._peek_token()
        if following is None or following.text != "(":
            self._note_danger("a loop without a bound", token)
            return
        self._next_token()
        is_small = True
        while (inner := self._next_token()) is not None and inner.text != ")":
            # Signs are left out: two bounds are never further apart than their sum.
            if inner.kind == NUMBER:
                numbers.append(_parse_number(inner.text))
            elif inner.text not in (",", "-"):
                is_small = False
                if inner.kind != SIGN:
                    break
        is_small = is_small and bool(numbers) and sum(map(abs, numbers[:2])) <= _ROUNDS
        if not is_small:
            self._note_danger("a loop without a small bound", token)
        self._now = _VALUE
        self._begin_loop(int(sum(map(abs, numbers[:2]))) if is_small else _ROUNDS)

    def _take_literal(self, token: Token) -> None:
        group = self._groups[-1] if self._groups else None
        if group is not None and token.kind == TEXT and not group.is_single:
            # Texts side by side are one text, so two of them are no name.
            group.word = f"{group.word}?" if group.word else _unquote_text(token.text)
        if group is not None and token.kind == NUMBER and self._now is None:
            is_alone = not group.is_named and self._last_sign in ("(", ",")
            group.divisor = (token.text, group.ended) if is_alone else ("", -1)
        if group is not None:
            group.braces += token.text.count("{") + 2 * len(_ESCAPE.findall(token.text))
            group.is_text = group.is_text or (group.is_single and self._now is None)
            is_short = len(token.text) <= _LONG_TEXT
            group.has_literal = group.has_literal or (
                is_short and not group.is_named and self._now is None
            )
        is_dtype = token.kind == TEXT or (
            self._last_sign in ("(", ",", "=") and _parse_number(token.text) < DTYPES
        )
        self._now = _PLAIN if is_dtype and self._now is None else _VALUE

    def _take_sign(self, token: Token) -> None:
        text = token.text
        self._last_sign = text
        if text == ".":
            following = self._next_token()
            if following is None or following.kind != NAME or self._now is None:
                self._note_strange("code that ckpt cannot read", token)
                return
            self._now = self._thing_of_member(self._now, following)
            if self._groups and self._now.kind == "class":
                self._groups[-1].has_class = True
            self._forget_target()
        elif text in ("(", "[", "{"):
            if self._now is not None:
                self._forget_target()
            self._reach.budget.charge(_TOKEN_MEMORY, _WHAT)
            if self._groups:
                self._groups[-1].is_computed = True
            self._groups.append(_Group(text, self._now))
            self._groups[-1].is_size = self._is_size
            if self._now is not None and text == "(":
                self._judge_call(self._now, token)
            self._now = None
        elif text in (")", "]", "}"):
            self._close_group(token)
        elif text == "=" and not self._groups:
            self._take_equals(token)
        elif text == "=":
            self._groups[-1].is_keyword = True
            self._now = None
        elif text == ",":
            if self._groups:
                group = self._groups[-1]
                group.end_argument(self._now)
                if group.is_single:
                    group.first = self._now
                group.is_single = False
                group.ended += 1
            else:
                self._is_plain = self._is_plain_value = False
            self._is_fresh = False
            self._now = None
        else:
            if self._groups and text == ":":
                self._groups[-1].is_computed = True
            if self._now is not None and text not in (":", "->", ";", "~"):
                # torch.jit.save writes operators by their names. `[1] * n` is as long
                # as it likes.
                self._note_strange(f"the operator {show(text, 10)}", token)
            self._operator()

    def _forget_target(self) -> None:
        """Take a name off the targets: an attribute or an item of it is assigned to, or
        it is called.
        """
        if self._is_fresh:
            self._targets.pop()
        self._is_fresh = self._is_plain = False

    def _operator(self) -> None:
        """An operator or a keyword: what is around it makes a value."""
        if self._groups:
            self._groups[-1].is_single = False
            self._groups[-1].is_mixed = True
            self._groups[-1].first = self._groups[-1].first or _VALUE
            # A divisor must be one number: `2 - 2` is none.
            self._groups[-1].divisor = ("", -1)
        else:
            self._is_plain = self._is_plain_value = False
        self._is_fresh = False
        self._now = None

    def _close_group(self, token: Token) -> None:
        if not self._groups:
            self._note_strange("code that ckpt cannot read", token)
            return
        group = self._groups.pop()
        group.end_argument(self._now)
        self._count_made_data(group, token)
        inside = self._now
        group.has_class = group.has_class or (
            inside is not None and inside.kind == "class"
        )
        # `List[Dict[str, X]]`: the class inside counts for the brackets around it.
        if group.has_class and group.before == _TYPE and self._groups:
            self._groups[-1].has_class = True
        if group.is_single:
            group.first = inside
        if group.before is None:
            # `(x)` is x, while `(x,)`, `[x]` and `{x}` are new values.
            is_alone = group.sign == "(" and group.is_single and inside is not None
            made = _NO_NUMBER if group.sign != "(" else _VALUE
            self._now = inside if is_alone else made
        elif group.sign == "(":
            if group.before == _Thing("builtin", "unchecked_cast") and group.has_class:
                # Nobody looks at the class of the value.
                self._note_strange("unchecked_cast to a class", token)
            self._now = self._call_result(group)
        else:
            self._now = _VALUE

    def _count_made_data(self, group: _Group, token: Token) -> None:
        """Count an operator that makes data. One that may make more than it is given is
        said.
        """
        thing = group.before
        if group.sign == "[" and thing not in (None, _TYPE) and group.is_computed:
            # A tensor as an index makes as many copies as it has numbers, and a slice
            # is a copy.
            self._note_strange("an index that is no literal", token)
        is_index = group.sign == "[" and thing not in (None, _TYPE, _HELD)
        if is_index and not group.is_size:
            self._reach.note_index(self._part.file, token.begin)
        if thing is None or group.sign != "(":
            return
        name = thing.member if thing.kind == "member" else thing.name
        if thing.kind == "operator" and name.rpartition(".")[2] in GROUPED:
            self._judge_groups(group, token)
        if thing.kind == "operator" and name.startswith("torch."):
            name = name.removeprefix("torch.")
        elif thing.kind not in ("member", "builtin"):
            return
        # For a method the value before the dot is argument 0.
        places = [place + (thing.kind == "member") for place in group.unsure]
        if name in DTYPED and (
            _KEYWORD in group.unsure or not set(DTYPED[name]).isdisjoint(places)
        ):
            self._note_strange(f"{name} with a dtype that is no literal", token)
        is_few = name in LIGHT or name not in METHODS | _MAKERS
        is_alone = group.is_single and thing.kind != "member"  # `torch.max(w)`
        divisor, index = group.divisor
        # The divisor is argument 1, which is the first in the brackets of a method.
        if name in DIVIDING and not (
            index == (thing.kind != "member") and is_safe_divisor(divisor)
        ):
            self._note_strange(f"{name} by a value", token)
        elif name in MATCHING and not group.has_literal and not is_alone:
            self._note_strange(f"{name} of two values", token)
        elif not is_few and self._rounds > 1:
            self._note_strange(f"{name} in a loop", token)
        # Two places in a text double a long value, and again with the result.
        elif name == "format" and (not group.is_text or group.braces > 1):
            self._note_strange("format of two values", token)
        elif not is_few:
            self._part.made += self._rounds

    def _judge_groups(self, group: _Group, token: Token) -> None:
        """Judge the last argument of an operator that divides by it: a literal, or what
        is called `groups`.
        """
        text, index = group.divisor
        code = self._script.texts[self._part.file]
        if index == group.ended and is_safe_divisor(text):
            is_small = _parse_number(text) < _MOST_GROUPS
        else:
            # judge_packs compares the number that a state has for the name `groups`.
            is_small = not group.is_named and code.endswith(", groups", 0, token.begin)
        if not is_small:
            self._note_strange("groups that may be 0", token)

    # --- what a name means ------------------------------------------------------------

    def _thing_of_type(self, name: str | None) -> _Thing:
        """A value of a type: an object of a class of the code, or any other value."""
        if name is not None and name.startswith(_BACKENDS):
            return _Thing("module", name)
        return (
            _Thing("object", name)
            if name is not None and name in self._script.classes
            else _VALUE
        )

    def _thing_of_member(self, thing: _Thing, token: Token) -> _Thing:
        name = token.text
        if thing.kind == "torch":
            # torch takes `torch.autograd.save` for `torch.save`.
            if name == "autograd":
                return _TORCH
            return self._operator_of("aten", name, token)
        if thing.kind == "namespace":
            return (
                self._operator_of(thing.name, name, token)
                if thing.name
                else _Thing("namespace", name)
            )
        if (
            thing.kind == "module"
            and thing.name.startswith(_BACKENDS)
            and name in _OF_BACKENDS
        ):
            return _Thing("builtin", f"{thing.name}.{name}")
        if thing.kind == "module":
            whole = f"{thing.name}.{name}"
            if whole in self._script.classes:
                return _Thing("class", whole)
            if whole in self._script.functions:
                # A name of it may be called elsewhere.
                self._add_calls(self._reach.function(whole))
                return _Thing("function", whole)
            return _Thing("module", whole)
        if thing.kind == "class":
            if name == "__new__":
                return _Thing("new", thing.name)
            return self._of_class(thing.name, name) or _VALUE
        if thing.kind == "object":
            return self._of_class(thing.name, name) or _Thing("member", "", name)
        return _Thing("member", "", name)

    def _of_class(self, owner: str, name: str) -> _Thing | None:
        cls = self._script.classes[owner]
        if name in cls.attributes:
            return self._thing_of_type(cls.attributes[name])
        if name not in cls.methods:
            return None
        # A name of it may be called elsewhere.
        self._add_calls(self._reach.method(owner, name))
        return _Thing("method", owner, name)

    def _operator_of(self, namespace: str, name: str, token: Token) -> _Thing:
        qualified = (
            f"torch.{name}" if namespace == "aten" else f"ops.{namespace}.{name}"
        )
        if touches_files(name):
            self._note_danger(qualified, token)
        elif name not in OPERATORS.get(namespace, ()):
            self._note_strange(qualified, token)
        self._reach.note_tensors(name, self._part.file, token.begin)
        if name in SIZED:
            self._part.is_sized = self._reach.is_sized = True
        return _Thing("operator", qualified)

    # --- calls ------------------------------------------------------------------------

    def _judge_call(self, thing: _Thing, token: Token) -> None:
        if thing.kind == "method":
            self._add_calls(self._reach.method(thing.name, thing.member))
        elif thing.kind == "function":
            self._add_calls(self._reach.function(thing.name))
        elif thing.kind == "class":
            if "__init__" in self._script.classes[thing.name].methods:
                self._add_calls(self._reach.method(thing.name, "__init__"))
        elif thing.kind == "member":
            if touches_files(thing.member):
                self._note_danger(f"{show(thing.member, 40)}()", token)
            elif thing.member not in METHODS:
                self._note_strange(f"{show(thing.member, 40)}()", token)
            self._reach.note_tensors(thing.member, self._part.file, token.begin)
            # A method of a class may have the name of a harmless operator, and the
            # class of the value is not known.
            self._add_calls(self._reach.methods(thing.member))
        elif thing.kind not in (
            "operator",
            "builtin",
            "new",
        ) and not thing.name.startswith(_BACKENDS):
            self._note_strange(f"a call of {show(thing.name, 60) or 'a value'}", token)

    def _add_calls(self, parts: Sequence[str]) -> None:
        for name in parts:
            self._part.calls[name] = self._part.calls.get(name, 0) + self._rounds

    def _call_result(self, group: _Group) -> _Thing:
        """The result of a call, as far as the code says it."""
        thing, first = group.before, group.first
        assert thing is not None
        if thing.kind == "operator" and thing.name in _ASKED:
            return _NO_NUMBER
        if thing.name.startswith(_BACKENDS):
            return _Thing("module", thing.name.removesuffix(".__new__"))
        if thing.kind in ("class", "new"):
            return _Thing("object", thing.name)
        if thing.kind == "method":
            return self._thing_of_type(
                self._script.classes[thing.name].methods[thing.member].returns
            )
        if thing.kind == "function":
            return self._thing_of_type(self._script.functions[thing.name].returns)
        # `getattr(x, "a")` is `x.a`; `word` is the text of the second argument.
        if (
            thing == _Thing("builtin", "getattr")
            and first is not None
            and first.kind == "object"
        ):
            return self._of_class(first.name, group.word) or _Thing(
                "member", "", group.word
            )
        if thing == _Thing("builtin", "getattr"):
            return _Thing("member", "", group.word)
        if (
            thing == _Thing("builtin", "unchecked_cast")
            and first is not None
            and first.kind == "class"
        ):
            return _Thing("object", first.name)
        return _VALUE

    def _note_danger(self, what: str, token: Token) -> None:
        self._reach.danger(what, self._part.file, token.begin)

    def _note_strange(self, what: str, token: Token) -> None:
        self._reach.strange(what, self._part.file, token.begin)

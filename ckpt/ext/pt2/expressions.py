"""The texts of a PT2 program that torch.export.load evaluates or imports from, held
against closed grammars.

torch hands an `expr_str` to `sympy.sympify`, which evaluates it as Python; torch itself
writes `sympy.srepr`. The trees of inputs name modules, which torch imports. Layout:
torch/_export/serde/serialize.py, torch/utils/_pytree.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget, parse_json
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, show

_LONGEST = 20_000
"""The most characters of an expression. torch writes a few hundred."""
_DEEPEST = 80
"""The most open brackets: Python's parser takes some more."""
# sympy computes powers of numbers digit by digit.
_POWERS = 64
"""The most that all exponents of an expression give when they are multiplied."""
_ROOT = "2"
"""The exponent that a square root counts as: whether a sum of roots is a whole number
takes sympy a polynomial whose degree doubles with each of them.
"""
_TERMS = 1_000
"""The most terms that an expression may have once its products and powers are
multiplied out: torch does that to compare.
"""
_COMPARED = 8
"""The most arguments of Max and Min. sympy compares each with each."""
_DIVIDED = 32
"""The most terms of an argument of which the greatest common divisor is computed."""
# The most digits of a number.
_DIGITS = 40
_ARGUMENT = 24
"""The most tokens of an argument that are kept."""
_PLACES = 20
"""The most places of one program that are named."""

_FUNCTIONS = """
    Abs Add And Equality Eq Float FloatTrueDiv FloorDiv FloorToInt Ge GreaterThan Gt Identity Integer IntTrueDiv
    IsNonOverlappingAndDenseIndicator ITE Le LessThan Lt Max Min Mod ModularIndexing Mul Ne Not Or Piecewise ExprCondPair
    Pow PowByNatural PythonMod CeilDiv CeilToInt CleanDiv FloatPow LShift RShift Rational RoundDecimal RoundToInt
    StrictGreaterThan StrictLessThan Symbol Dummy ToFloat TruncToFloat TruncToInt Tuple Unequality Where Xor ceiling floor
    BitwiseFn_bitwise_and BitwiseFn_bitwise_or BitwiseFn_bitwise_xor
    OpaqueUnaryFn_sqrt OpaqueUnaryFn_cos OpaqueUnaryFn_cosh OpaqueUnaryFn_sin OpaqueUnaryFn_sinh OpaqueUnaryFn_tan
    OpaqueUnaryFn_tanh OpaqueUnaryFn_asin OpaqueUnaryFn_acos OpaqueUnaryFn_atan OpaqueUnaryFn_exp OpaqueUnaryFn_log
    OpaqueUnaryFn_log2 IntInfinity NegativeIntInfinity sqrt
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
_POWER_FUNCTIONS = frozenset(("LShift", "Pow", "PowByNatural", "RShift"))
"""Functions that raise to the power of their second argument."""
_EXPANDED = frozenset(("Pow", "PowByNatural"))
_COMPARING = frozenset(("Max", "Min"))
_DIVIDING = frozenset(
    ("CeilDiv", "CleanDiv", "FloorDiv", "Mod", "ModularIndexing", "PythonMod")
)
_ROUNDING = frozenset(
    ("CeilToInt", "FloorToInt", "RoundToInt", "TruncToInt", "ceiling", "floor")
)
_OPAQUE = frozenset(name for name in FUNCTIONS if name.startswith("OpaqueUnaryFn_")) | {
    "FloatPow"
}
"""Functions that torch computes for numbers, unless the result is too large: then sympy
computes it, digit by digit.
"""
_NO_WHOLE = _OPAQUE | {
    "Float",
    "FloatTrueDiv",
    "IntTrueDiv",
    "ToFloat",
    "TruncToFloat",
    "sqrt",
}
"""Functions whose value is no whole number. Where such a number is divided, sympy may
look for a common divisor without end.
"""
_NO_WHOLE_CONSTANTS = frozenset(
    ("E", "IntInfinity", "int_oo", "nan", "oo", "pi", "zoo")
)
_RELATIONS = frozenset(
    ("Eq", "Equality", "Ge", "GreaterThan", "Gt", "Le", "LessThan", "Lt", "Ne")
)
_RELATIONS |= {"StrictGreaterThan", "StrictLessThan", "Unequality"}
_RELATION_SIGNS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_PLAIN_VALUES = frozenset(("Dummy", "Float", "Integer", "Rational", "Symbol"))
"""Functions whose value is one term, whatever they are given."""
_JOINING = frozenset(("+", "-", "<", "<=", ">", ">=", "==", "!=", "&", "|"))
"""The signs between terms; all others stand between factors."""
_PRECISION = 4
"""The most digits of a number of places."""
_ASSUMPTIONS = """
    algebraic antihermitian commutative complex composite even extended_negative extended_nonnegative extended_nonpositive
    extended_nonzero extended_positive extended_real finite hermitian imaginary infinite integer irrational negative
    noninteger nonnegative nonpositive nonzero odd polar positive prime rational real transcendental zero
"""
_KEYWORDS = frozenset(_ASSUMPTIONS.split()) | {"precision", "evaluate", "dummy_index"}
"""Named arguments that `srepr` writes."""
_CONSTANTS = frozenset(
    (
        "False",
        "True",
        "None",
        "false",
        "true",
        "oo",
        "int_oo",
        "zoo",
        "nan",
        "pi",
        "E",
        "IntInfinity",
    )
)
# Two underscores are left out of names, as they begin Python's own.
_NAME = re.compile(
    r"(?:Identity|[a-z]{1,5})_?[0-9]{1,7}|[a-z](?:[a-z0-9]|_(?!_)){0,39}", re.ASCII
)
"""The name of a symbol: `s0`, `u12`, `zuf3`."""
# A sign that is not here, such as a dot or a bracket for an index, ends the reading.
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<name>[A-Za-z_][A-Za-z_0-9]*)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)(?![A-Za-z_0-9.])
    | '(?P<text>[A-Za-z_0-9.+-]*)'
    | (?P<sign>\*\*|//|<=|>=|==|!=|[-+*/(),=<>&|~])
    )""",
    re.VERBOSE | re.ASCII,
)
_FLOAT = re.compile(
    (
        r"-?(?:[0-9]{1,40}(?:\.[0-9]{0,60})?|\.[0-9]{1,60})(?:[eE][-+]?[0-9]{1,3})?"
        r"|-?inf|nan"
    ),
    re.ASCII,
)


def is_expression(text: str) -> bool:
    """Tell whether sympy makes an expression of a text, and nothing else happens."""
    if len(text) > _LONGEST:
        return False
    reader = _Expression()
    position, end = 0, len(text.rstrip())
    # One pass over the tokens, without recursion: the text may be hostile.
    while position < end:
        match = _TOKEN.match(text, position, end)
        if match is None:
            return False
        kind = str(match.lastgroup)
        if not reader.take(kind, match[kind]):
            return False
        position = match.end()
    return reader.is_whole()


class _Open:
    """An open bracket: the function before it, how many arguments ended, the first
    tokens of the last one, and their terms.
    """

    __slots__ = (
        "argument",
        "compares",
        "ended",
        "exponent",
        "factor",
        "fractions",
        "function",
        "product",
        "symbols",
        "terms",
        "total",
    )

    def __init__(self, function: str) -> None:
        self.function = function
        self.ended = 0
        self.argument: list[tuple[str, str]] = []
        self.exponent = 1
        """The largest whole number of the second argument."""
        self.fractions = int(function in _NO_WHOLE)
        """The roots, floats and infinite numbers in it."""
        self.symbols = int(function in ("Symbol", "Dummy"))
        self.compares = function in _RELATIONS
        self.total, self.product, self.factor = 0, 1, 1
        """The terms of the argument so far: of all before the last `+`, of the product
        behind it, of its last factor.
        """
        self.terms: list[int] = []
        """The terms of each argument that ended."""

    def add_factor(self, terms: int) -> None:
        """Take the next factor of a product."""
        self.factor = terms
        # Counts stop one above the bound: a number of thousands of digits is never
        # made.
        self.product = min(self.product * terms, _TERMS + 1)

    def add_power(self, exponent: int) -> None:
        """Take the exponent of the last factor."""
        # One factor at a time, so that the bound holds on the way.
        for _ in range(exponent - 1 if self.factor > 1 else 0):
            self.product = min(self.product * self.factor, _TERMS + 1)

    def end_product(self) -> None:
        """End a product at a sign between terms."""
        self.total = min(self.total + self.product, _TERMS + 1)
        self.product = self.factor = 1

    def end_argument(self) -> None:
        self.end_product()
        self.terms.append(self.total)
        self.total = 0

    def take_value(self, kind: str, text: str) -> None:
        """Take a name or a number."""
        self.add_factor(1)
        if kind == "name":
            self.fractions += text in _NO_WHOLE_CONSTANTS
        elif kind == "number" and self.function not in _PLAIN_VALUES:
            self.fractions += not text.isdigit()

    def is_odd(self) -> bool:
        """Tell whether numbers alone are compared or computed, or a function that
        divides is given what is no whole number.

        sympy simplifies conditions, and a condition without a symbol may take it
        forever.
        """
        is_divided = self.function in _DIVIDING and (
            self.fractions or max(self.terms) > _DIVIDED
        )
        needs_symbol = self.compares or self.function in _OPAQUE
        return bool(is_divided or (needs_symbol and not self.symbols))

    def take_inner(self, inner: _Open) -> None:
        """Take a bracket that ended as a factor."""
        self.add_factor(inner.value())
        self.symbols += inner.symbols
        # A rounded value is whole, whatever it was made of.
        if inner.function not in _ROUNDING:
            self.fractions += inner.fractions

    def value(self) -> int:
        """Return the terms of the whole bracket, once its last argument ended."""
        if self.function in _PLAIN_VALUES:
            return 1
        if self.function in ("", "Add"):
            return sum(self.terms)
        if self.function == "Mul":
            return prod(self.terms)
        # A power of a sum is multiplied out; a power of one term stays one term.
        if self.function in _EXPANDED and self.terms[0] > 1:
            return int(self.terms[0] ** min(self.exponent, _POWERS))
        return max(self.terms)


class _Expression:
    """An expression, token by token."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._kind, self._text = "sign", "("
        """The last token."""
        self._powers = 1
        self._all = _Open("")
        """The expression around all brackets."""
        self._compared = 0

    def take(self, kind: str, text: str) -> bool:
        """Take the next token. Return False where the grammar has no such token."""
        # The checks look at two neighbours: the last token, and this one.
        follows_value = self._kind != "sign" or self._text == ")"
        if kind != "sign" and follows_value:
            return False
        # Behind `**` stands a small number, and nothing else.
        if self._text == "**" and not (kind == "number" and self._is_small_power(text)):
            return False
        if self._kind == "name" and text != "(" and not _is_name(self._text, text):
            return False
        if kind == "number" and self._text == "=" and len(text) > _PRECISION:
            return False
        if kind == "number" and self._text != "=" and len(text) > _DIGITS:
            return False
        if kind == "text" and not self._is_quoted(text):
            return False
        if kind == "sign" and not self._is_sign(text, follows_value):
            return False
        if text == "(" and self._text == "sqrt" and not self._is_small_power(_ROOT):
            return False
        # An exponent is known when its argument ends.
        if text == "," and self._open and not self._ends_argument(self._open[-1]):
            return False
        if not self._count_terms(kind, text, follows_value):
            return False
        # Arguments that are longer than these tokens are never looked at.
        for bracket in self._open:
            if len(bracket.argument) <= _ARGUMENT:
                bracket.argument.append((kind, text))
        if self._open and text == ",":
            self._open[-1].argument.clear()
            self._open[-1].ended += 1
        elif text == ")":
            self._open.pop()
        elif text == "(":
            self._open.append(_Open(self._text if self._kind == "name" else ""))
        self._kind, self._text = kind, text
        return len(self._open) <= _DEEPEST

    def is_whole(self) -> bool:
        """Tell whether the expression may end here."""
        if self._kind == "name" and not _is_name(self._text, ""):
            return False
        if self._all.compares and not (self._all.symbols or self._is_symbol()):
            return False
        return not self._open and (
            self._kind in ("name", "number") or self._text == ")"
        )

    def _is_symbol(self) -> bool:
        """Tell whether the last token is a name that no bracket follows, and no
        constant.
        """
        return self._kind == "name" and self._text not in _CONSTANTS

    def _count_terms(self, kind: str, text: str, follows_value: bool) -> bool:
        """Count the terms of the expression up to a token. Return False where there are
        too many.
        """
        inner = self._open[-1] if self._open else self._all
        # A name before a bracket is a function, one before `=` names an argument.
        inner.symbols += text not in ("(", "=") and self._is_symbol()
        if self._text == "**":
            inner.add_power(int(text))
        elif kind != "sign":
            inner.take_value(kind, text)
        elif text in _JOINING and follows_value:
            inner.end_product()
            inner.compares = inner.compares or text in _RELATION_SIGNS
        elif text in (",", ")"):
            inner.end_argument()
            if inner.function in _COMPARING:
                self._compared += 1
        if text == ")":
            if inner.is_odd():
                return False
            # A bracket that ends is one factor of the expression around it.
            outer = self._open[-2] if len(self._open) > 1 else self._all
            outer.take_inner(inner)
            inner = outer
        return inner.total + inner.product <= _TERMS and self._compared <= _COMPARED

    def _is_sign(self, text: str, follows_value: bool) -> bool:
        if text == "(":
            if self._kind == "name":
                return self._text in FUNCTIONS
            # Behind a value that is no name, a bracket would call it.
            return not follows_value
        if text == ")":
            if not self._open or not (follows_value or self._text in ("(", ",")):
                return False
            return self._ends_argument(self._open[-1])
        if text in ("-", "+", "~"):
            return True
        # Only in the brackets of a function is it the name of an argument; else it is
        # no sign.
        if text == "=":
            return self._kind == "name" and bool(self._open and self._open[-1].function)
        return follows_value

    def _is_quoted(self, text: str) -> bool:
        """Tell whether a text is the name of a new symbol or the digits of a number."""
        if self._text != "(" or not self._open:
            return False
        if self._open[-1].function in ("Symbol", "Dummy"):
            return _NAME.fullmatch(text) is not None
        return self._open[-1].function == "Float" and _FLOAT.fullmatch(text) is not None

    def _ends_argument(self, bracket: _Open) -> bool:
        """Tell whether an argument may stand where it does: an exponent is small, a
        number of places is short.
        """
        argument = bracket.argument
        if not bracket.ended or not argument:
            return True
        if bracket.function in _POWER_FUNCTIONS:
            # The second argument is the exponent, a third one can only be `evaluate=`.
            if bracket.ended == 1:
                return self._is_power(argument)
            return _is_named(argument, "evaluate")
        if bracket.function == "Float":
            if _is_named(argument, "precision"):
                argument = argument[2:]
            return _is_places(argument)
        if bracket.function == "RoundDecimal":
            return _is_places([token for token in argument if token[1] != "-"])
        return True

    def _is_small_power(self, digits: str) -> bool:
        if not digits.isdigit() or len(digits) > 3:
            return False
        # Powers of powers multiply.
        self._powers *= max(int(digits), 1)
        return self._powers <= _POWERS

    def _is_power(self, argument: list[tuple[str, str]]) -> bool:
        """Tell whether the last argument of a power is a small number, or a symbol,
        which stays as it is.
        """
        if len(argument) > _ARGUMENT:
            return False
        texts = [text for _, text in argument]
        if len(argument) == 1 and argument[0][0] == "name":
            return True
        if texts[:1] == ["Symbol"]:
            return texts.count("(") == 1 and texts[-1] == ")"
        is_call = texts[1:2] == ["("] and texts[-1] == ")"
        if texts[:1] in (["Integer"], ["Rational"]) and is_call:
            texts = texts[2:-1]
        # A whole number, or numerator and denominator.
        numbers = [text for text in texts if text not in ("-", ",")]
        if not 1 <= len(numbers) <= 2:
            return False
        if not all(self._is_small_power(number) for number in numbers):
            return False
        self._open[-1].exponent = max(map(int, numbers))
        self._open[-1].fractions += len(numbers) - 1
        return True


def _is_named(argument: list[tuple[str, str]], name: str) -> bool:
    """Tell whether an argument is handed over under a name."""
    return argument[:2] == [("name", name), ("sign", "=")]


def _is_places(argument: list[tuple[str, str]]) -> bool:
    """Tell whether an argument is one short number, plain or as an Integer: sympy
    computes so many places.
    """
    texts = [text for _, text in argument]
    if texts[:2] == ["Integer", "("] and texts[-1] == ")":
        texts = texts[2:-1]
    return len(texts) == 1 and texts[0].isdigit() and len(texts[0]) <= _PRECISION


def _is_name(name: str, following: str) -> bool:
    """Tell whether a name stands for a symbol or a constant, or names an argument."""
    if following == "=":
        return name in _KEYWORDS
    return name in _CONSTANTS or (
        _NAME.fullmatch(name) is not None and name not in _PYTHON
    )


_PYTHON_WORDS = """
    and as assert async await class def del elif else except exec eval finally for from global if import in is lambda
    nonlocal not or pass print raise return try while with yield
"""
_PYTHON = frozenset(_PYTHON_WORDS.split())


# --- a program ------------------------------------------------------------------------


class Doubts(NamedTuple):
    """The unusual things that loading a program evaluates, imports or calls, each as a
    text for people.
    """

    dangers: list[str]
    imports: list[str]
    operators: list[str]


_LABEL = re.compile(r"[A-Za-z_][A-Za-z_0-9]*", re.ASCII)
_TARGETS = re.compile(
    r"torch\.ops\.[A-Za-z_0-9]+\.[A-Za-z_0-9.]+|torch\.(?:_?sym_[a-z_0-9]+)"
    r"|math\.[a-z0-9]+|_operator\.(?!_)[a-z_]+"
    r"|torch\._C\._(?:set_grad_enabled|functorch\.[a-z_0-9]+)"
    r"|torch\._functorch\.predispatch\.[A-Za-z_0-9]+"
    r"|torch\.amp\.autocast_mode\._(?:enter|exit)_autocast"
    r"|torch\.utils\._sympy\.functions\.[A-Za-z]+|#[A-Za-z_0-9]+:[^\s]*"
    r"|(?!torch|math|_operator)[A-Za-z_0-9.:]+",
    re.ASCII,
)
"""The operators that the graph may call. A target that begins with no root of torch is
a text, which torch refuses.
"""
_NAMED = r"[A-Za-z_][A-Za-z_0-9]*"
_SOURCE = re.compile(
    rf"torch[A-Za-z_0-9]*(?:\.{_NAMED}){{0,2}}"
    r"|torch\.(?:_C|_dynamo|_functorch|_higher_order_ops|_refs|_tensor|amp|autograd"
    r"|distributed|distributions|fft|func"
    rf"|functional|jit|linalg|masked|nn|quantization|sparse|utils)\.{_NAMED}\.{_NAMED}"
    r"|torch\.(?:ao\.nn\.(?:(?:dynamic|intrinsic|qat|quantizable|quantized|reference"
    rf"|sparse)\.)*|nn\.)modules\.{_NAMED}\.{_NAMED}"
    rf"|torch(?:audio|text|vision)\.(?:models|ops|transforms)\.[A-Za-z_0-9.]+"
    r"|(?!torch|math|_operator|\#).*",
    re.ASCII | re.DOTALL,
)
"""A function of Python that a node came from: torch looks up its path from `torch` on,
name by name. A path of two names, or of one more behind a part of torch, comes no
further than to a module that one of torch imports. Any other one may come to
`torch.ctypes.cdll`, where a name is a library that is loaded. A text that begins with
no root stays a text.
"""
_PLAIN = re.compile(r"[A-Za-z_0-9.]*")
_LOADERS = frozenset(("LibraryLoader", "cdll", "oledll", "pydll", "windll"))
"""Names of `ctypes` behind which any name is a library: a path with one of them is an
error, others are warnings.
"""
_SCANNED = 100_000_000
"""The most characters that torch up to 2.7 reads while it looks for the ends of the
brackets in the path of a module.
"""
_COUNTED = re.compile(
    r"(?:u|zuf)[0-9]{1,6}|(?!u|zuf)(?:" + _NAME.pattern + ")", re.ASCII
)
"""The name of a symbol among the constraints. torch reads what follows `u` or `zuf` as
a number, as `int` does, and counts up to it.
"""
_GUARD = re.compile(
    r"""(?:\s|[-+*/%()<>=!,&|~]|[0-9]+(?:\.[0-9]+)?(?![A-Za-z_0-9])|\[(?:[0-9]+|'[A-Za-z_0-9.]*'|"[A-Za-z_0-9.]*")\]
    |\b(?:L|and|or|not|is|None|True|False|int|float|Max|Min|Mod|FloorDiv|PythonMod|IntTrueDiv|FloatTrueDiv|CleanDiv|Eq|Ne)\b
    |\.(?:size|stride|storage_offset|dim|ndim|shape|item)\b|\bmath\.(?:floor|ceil|trunc|sqrt|log2|pow)\b)*""",
    re.VERBOSE | re.ASCII,
)
_QUOTED = re.compile(r'[^"\\\x00-\x1f\x7f]*')
"""A text that ends no text of Python around it."""
_FACTORIES = frozenset(("list", "dict", "int", "float", "set", "str", "tuple", "bool"))


_MAPS = frozenset(
    (
        "as_string_to_argument",
        "config",
        "custom_obj_values",
        "metadata",
        "opset_version",
        "range_constraints",
        "sym_bool_values",
        "sym_float_values",
        "sym_int_values",
        "tensor_values",
        "treespec_namedtuple_fields",
    )
)
"""The fields whose keys are names that the file chooses. Everywhere else a key is the
name of a field.
"""
_PATHS = frozenset(
    (
        "buffer_name",
        "custom_obj_name",
        "parameter_name",
        "tensor_constant_name",
        "user_input_name",
    )
)
"""The fields with the name of an attribute, whose parts torch writes into source
between quotes.
"""


def doubts_of(document: Json, budget: Budget) -> Doubts:
    """Return what is not as torch writes it in the JSON of a program. Raises
    LimitError.
    """
    doubts = Doubts([], [], [])
    # A list of what is left, not calls of calls: JSON may be nested deep.
    todo: list[tuple[str, Json]] = [("", document)]
    while todo:
        key, node = todo.pop()
        _note_field(key, node, doubts, budget)
        if isinstance(node, dict):
            # The names of a map are no fields, so nothing hides behind a tensor with
            # the name of a field.
            if key in _MAPS:
                todo += (("", inner) for inner in node.values())
            else:
                todo += node.items()
        elif isinstance(node, list):
            todo += ((key, inner) for inner in node)
    return doubts


def _note_field(key: str, node: Json, doubts: Doubts, budget: Budget) -> None:
    """Note what is unusual in one field. What is inside of it is looked at by
    itself.
    """
    if key == "expr_str":
        if not isinstance(node, str) or not is_expression(node):
            _note_doubt(doubts.dangers, f"evaluates {show(str(node)[:200], 60)}")
    elif key in ("in_spec", "out_spec"):
        if isinstance(node, str):
            _note_spec(node, key == "in_spec", doubts, budget)
    elif key == "range_constraints" and isinstance(node, dict):
        for name in node:
            if _COUNTED.fullmatch(name) is None:
                _note_doubt(doubts.dangers, f"counts to the symbol {show(name, 40)}")
    elif key == "guards_code" and node is not None and not isinstance(node, list):
        if not isinstance(node, str) or _GUARD.fullmatch(node) is None:
            _note_doubt(doubts.operators, f"the guard {show(str(node)[:200], 60)}")
    elif key in ("target", "as_operator") and isinstance(node, str):
        if _TARGETS.fullmatch(node) is None:
            _note_doubt(doubts.operators, f"the operator {show(node, 60)}")
    elif key == "metadata" and isinstance(node, dict):
        _note_metadata(node, doubts)
    elif key in ("name", "as_name") and isinstance(node, str):
        # torch writes these names into the source of a function.
        if node and _LABEL.fullmatch(node) is None:
            _note_doubt(doubts.dangers, f"makes code of the name {show(node, 60)}")
    elif key == "forward_arg_names" and node is not None and not isinstance(node, list):
        _note_argument(node, doubts)
    elif key in _PATHS and isinstance(node, str) and _QUOTED.fullmatch(node) is None:
        _note_doubt(doubts.dangers, f"makes code of the name {show(node[:200], 60)}")


def _note_metadata(metadata: dict[str, Json], doubts: Doubts) -> None:
    """Note what torch looks up, or scans too long, in the metadata of a node."""
    for field in ("source_fn", "source_fn_stack"):
        functions = metadata.get(field)
        # Several functions stand in one text, each as `name,path`.
        for function in functions.split(";") if isinstance(functions, str) else ():
            path = function.partition(",")[2]
            if _SOURCE.fullmatch(path) or _TARGETS.fullmatch(path):
                continue
            if _PLAIN.fullmatch(path) and _LOADERS.isdisjoint(path.split(".")):
                _note_doubt(doubts.operators, f"the function {show(path[:200], 60)}")
            else:
                _note_doubt(doubts.dangers, f"looks up {show(path[:200], 60)}")
    modules = metadata.get("nn_module_stack")
    if isinstance(modules, str) and modules.count("(") * len(modules) > _SCANNED:
        _note_doubt(doubts.operators, "a path of modules with many brackets")


def _note_argument(name: Json, doubts: Doubts) -> None:
    """Note the name of an argument that is no name of Python: torch writes it into the
    head of a function.
    """
    if not isinstance(name, str) or not name.isidentifier():
        _note_doubt(
            doubts.dangers, f"makes code of the name {show(str(name)[:200], 60)}"
        )


def _note_doubt(doubts: list[str], doubt: str) -> None:
    if len(doubts) < _PLACES and doubt not in doubts:
        doubts.append(doubt)


def _note_spec(text: str, is_called: bool, doubts: Doubts, budget: Budget) -> None:
    """Note the modules that a tree of inputs or outputs names. Its contexts are JSON in
    texts.

    A tree that is called is one of inputs: the keys of its second child are the names
    of arguments.
    """
    if is_called:
        for name in _keywords_of(text, budget):
            _note_argument(name, doubts)
    # The context of a node is JSON in a text, which may hold such texts again.
    texts = [text]
    while texts:
        inner = texts.pop()
        try:
            todo: list[Json] = [
                parse_json(inner.encode("utf-8", "replace"), "a tree of inputs", budget)
            ]
        except UnreadableError:
            # Texts without a bracket are no JSON: they name a type.
            if "{" in inner:
                _note_doubt(doubts.operators, "a tree of inputs that ckpt cannot read")
            continue
        while todo:
            node = todo.pop()
            if isinstance(node, list):
                todo += node
            if not isinstance(node, dict):
                continue
            for name in _modules_of(node):
                _note_doubt(doubts.imports, name)
            context = node.get("context")
            if isinstance(context, str):
                texts.append(context)
            todo += node.values()


def _keywords_of(text: str, budget: Budget) -> Sequence[Json]:
    """Return the names of the keyword arguments of a tree of inputs: the keys of the
    dict behind the tuple.
    """
    try:
        tree = parse_json(text.encode("utf-8", "replace"), "a tree of inputs", budget)
        root = tree[1] if isinstance(tree, list) and len(tree) > 1 else None
        children = root.get("children_spec") if isinstance(root, dict) else None
        # The first child are the positional arguments, the second the keyword ones.
        second = None
        if isinstance(children, list) and len(children) > 1:
            second = children[1]
        if not isinstance(second, dict) or second.get("type") != "builtins.dict":
            return ()
        context = second.get("context")
        if isinstance(context, str):
            context = parse_json(
                context.encode("utf-8", "replace"), "a tree of inputs", budget
            )
    except UnreadableError:
        return ()  # torch cannot read it either
    if isinstance(context, list):
        return context
    return () if context is None else (context,)


def _modules_of(node: dict[str, Json]) -> Iterator[str]:
    """Yield the modules that torch imports for a dict of a tree: of an enum, and of the
    default of a dict.
    """
    if "__enum__" in node:
        yield str(node.get("fqn"))[:200].partition(":")[0]
    if "default_factory_module" in node:
        module, name = node["default_factory_module"], node.get("default_factory_name")
        if module != "builtins" or name not in _FACTORIES:
            yield str(module)[:200]

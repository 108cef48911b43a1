"""Calls of the classes of Python and of numpy that make no value, because the class
refuses what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone

from ckpt.model.nodes import ByteStr, Node, Opaque, is_tuple
from ckpt.tree.arrays import CODECS, as_bytes, numpy_dtype
from ckpt.tree.scalars import class_of

_SHORT = 128
"""The most characters or bytes of a value that Python is asked about: one text may be
the argument of a million calls.
"""
_BITS = 2_048
"""The most bits of an int. No float has more than 1,024 before its point."""
_UNKNOWN = object()
"""Stands for an argument that Python is not asked about."""


def _refused_by(make: type) -> Callable[[Opaque], bool]:
    """Return a rule: a class of Python does not take the plain values of a call."""

    def is_refused(call: Opaque) -> bool:
        args = [_plain_value(arg) for arg in call.args]
        # These classes refuse it when they make an object, also without a call.
        if call.kwargs is not None or _UNKNOWN in args:
            return False
        try:
            make(*args)
        except (TypeError, ValueError, ArithmeticError):
            return True
        return False

    return is_refused


def _plain_value(node: Node) -> object:
    """The value of a node that takes no time to make, else `_UNKNOWN`."""
    if node is None or type(node) in (bool, float):
        return node
    if type(node) is int and node.bit_length() <= _BITS:
        return node
    if type(node) is str and len(node) <= _SHORT:
        return node
    if type(node) is Opaque and class_of(node).startswith(_ZONES):
        # Any timezone will do.
        return timezone.utc
    if type(node) is Opaque and class_of(node) == "datetime.timedelta":
        return _duration_of(node)
    data = as_bytes(node)
    return data if data is not None and len(data) <= _SHORT else _UNKNOWN


_ZONES = ("datetime.timezone", "zoneinfo.ZoneInfo")


def _duration_of(call: Opaque) -> object:
    numbers = [arg for arg in call.args if type(arg) in (int, float, bool)]
    if len(numbers) < len(call.args):
        return _UNKNOWN
    try:
        return timedelta(*numbers)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return _UNKNOWN


def _is_no_decimal(call: Opaque) -> bool:
    from decimal import Decimal  # here: few files have such numbers

    return _refused_by(Decimal)(call)


def _is_no_fraction(call: Opaque) -> bool:
    from fractions import Fraction  # here: few files have such numbers

    # Python writes the exponent of `1e999999999` out.
    if any(type(arg) is str and "e" in arg.lower() for arg in call.args):
        return False
    return _refused_by(Fraction)(call)


def _are_no_bytes(call: Opaque) -> bool:
    """Tell whether a call of `bytes` or `bytearray` is given other items than bytes, or
    a text that its codec does not have.
    """
    args = call.args
    # A bytearray that is made without a call looks at nothing.
    is_filled = call.how == "reduce" or class_of(call) == "builtins.bytes"
    if not is_filled or call.kwargs is not None:
        return False
    if len(args) == 1 and (type(args[0]) is list or is_tuple(args[0])):
        return not all(_is_byte(item) for item in args[0])
    if len(args) == 2 and type(args[0]) is str and args[1] in CODECS:
        # Protocol 2 writes bytes by such a call, and the codec takes each of them.
        return as_bytes(call) is None
    return False


def _is_byte(node: Node) -> bool:
    return type(node) is Opaque or (
        type(node) in (int, bool) and 0 <= node < 256  # type: ignore[operator]
    )


def _is_no_text(call: Opaque) -> bool:
    """Tell whether a call of `str` is given bytes that are no text in its codec."""
    if len(call.args) != 2 or call.args[1] not in CODECS:
        return False
    data = as_bytes(call.args[0])
    if data is None:
        return False
    try:
        str(data, str(call.args[1]))
    except UnicodeDecodeError:
        return True
    return False


def _is_no_scalar(call: Opaque) -> bool:
    """Tell whether a scalar of numpy is of objects, or has data of another type or of
    too few bytes. numpy itself makes no text with a character beyond Unicode.
    """
    if call.how != "reduce" or not call.args:
        return False
    dtype = numpy_dtype(call.args[0])
    if dtype is None:
        return False
    if dtype.name == "object" or dtype.code.startswith("O"):
        return True
    if len(call.args) < 2:
        return False
    given = call.args[1]
    data = as_bytes(given)
    # numpy takes a text for bytes of Python 2.
    if data is None and type(given) is str:
        data = given.encode("latin-1", "replace")
    if data is None:
        return type(given) is not Opaque
    if type(given) is bytearray or (
        type(given) is Opaque and class_of(given) == "builtins.bytearray"
    ):
        return True
    size = dtype.itemsize
    if size is None:
        return False
    is_text = dtype.code.startswith("U")
    return len(data) < size or (is_text and dtype.decode(data, 1) is None)


def _is_no_expression(call: Opaque) -> bool:
    """Tell whether flags of a regular expression exclude each other, or its kind."""
    pattern, flags = call.args if len(call.args) == 2 else (None, None)
    if type(flags) is not int:
        return False
    if flags & _ASCII and flags & (_UNICODE | _LOCALE):
        return True
    # Of texts none follows the locale, of bytes none is Unicode.
    if isinstance(pattern, ByteStr) or not isinstance(pattern, (str, bytes)):
        return False
    return bool(flags & (_LOCALE if isinstance(pattern, str) else _UNICODE))


_LOCALE, _UNICODE, _ASCII = 4, 32, 256
"""Flags of the module re."""
UNMADE: dict[str, Callable[[Opaque], bool]] = {
    "builtins.int": _refused_by(int),
    "builtins.float": _refused_by(float),
    "builtins.complex": _refused_by(complex),
    "builtins.range": _refused_by(range),
    "builtins.bytes": _are_no_bytes,
    "builtins.bytearray": _are_no_bytes,
    "builtins.str": _is_no_text,
    "datetime.date": _refused_by(date),
    "datetime.time": _refused_by(time),
    "datetime.datetime": _refused_by(datetime),
    "datetime.timedelta": _refused_by(timedelta),
    "datetime.timezone": _refused_by(timezone),
    "decimal.Decimal": _is_no_decimal,
    "fractions.Fraction": _is_no_fraction,
    "numpy.core.multiarray.scalar": _is_no_scalar,
    "re._compile": _is_no_expression,
}
"""Name -> its rule. What takes long or depends on the system is not asked."""

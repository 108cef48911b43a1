"""Objects of a pickle that stand for one value: a time, a path, a device, a numpy
scalar. They are never built.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone

from ckpt.model.nodes import ByteStr, Dict, Global, Node, Opaque
from ckpt.model.rows import NamedTuple
from ckpt.tree.arrays import as_bytes, numpy_dtype


class Scalar(NamedTuple):
    """A value, and the name of its class."""

    type: str
    value: Node


def class_of(call: Opaque) -> str:
    """The Python 3 name of the class of an object, from the call that made it."""
    name = call.class_name
    made = class_for_copyreg(call)
    if made is not None:
        name = made.qualified
    # Protocol 2 writes the names of Python 2.
    if name.startswith("__builtin__."):
        return "builtins." + name.removeprefix("__builtin__.")
    return name


def class_for_copyreg(call: Opaque) -> Global | None:
    """The class that a call of `copyreg` gets as its first argument, or None."""
    if call.class_name not in _MAKERS or not call.args:
        return None
    first = call.args[0]
    return first if type(first) is Global else None


_MAKERS = (
    "copy_reg._reconstructor",
    "copyreg._reconstructor",
    "copyreg.__newobj__",
    "copy_reg.__newobj__",
)
"""Functions whose first argument is the class of the object that they make."""


def _read_attribute(call: Opaque, name: str) -> Scalar | None:
    """`getattr(module.Class, "name")`, as protocol 2 writes functions that are
    attributes.
    """
    if len(call.args) != 2:
        return None
    owner, attribute = call.args
    if type(owner) is Global and isinstance(attribute, str):
        return Scalar("name", f"{owner.qualified}.{attribute}")
    return None


def _numpy_dtype(call: Opaque, name: str) -> Scalar | None:
    dtype = numpy_dtype(call)
    return None if dtype is None else Scalar("numpy.dtype", dtype.name)


def _read_encoded(call: Opaque, name: str) -> Scalar | None:
    data = as_bytes(call)
    return None if data is None else Scalar("bytes", data)


def _read_bytes(call: Opaque, name: str) -> Scalar | None:
    kind = name.rpartition(".")[2]
    data = as_bytes(call)
    return None if data is None else Scalar(kind, data)


def _read_device(call: Opaque, name: str) -> Scalar | None:
    text = device_text(call)
    return None if text is None else Scalar("torch.device", text)


def _read_path(call: Opaque, name: str) -> Scalar | None:
    if not all(isinstance(part, str) for part in call.args):
        return None
    parts = [str(part) for part in call.args]
    separator = "\\" if "Windows" in name else "/"
    # Python begins anew at a part that is a path from the root, and no pickler writes
    # one.
    if any(_begins_anew(part, separator) for part in parts[1:]):
        return None
    # Here: few files hold paths.
    from pathlib import PurePosixPath, PureWindowsPath

    # Both join texts alone, and ask no file system.
    joined = PureWindowsPath(*parts) if "Windows" in name else PurePosixPath(*parts)
    return Scalar(name, str(joined))


def _begins_anew(part: str, separator: str) -> bool:
    return part.startswith(("/", separator)) or (separator != "/" and ":" in part)


def _read_moment(call: Opaque, name: str) -> Scalar | None:
    data = as_bytes(call.args[0]) if call.args else None
    # Python 2 writes bytes as a text of its own.
    if data is None and call.args and isinstance(call.args[0], ByteStr):
        data = call.args[0].raw
    kind = name.rpartition(".")[2]
    if data is None or len(data) != _MOMENT_BYTES[kind]:
        return None
    try:
        moment = _decode_moment(kind, data)
        zone = _zone_suffix(call.args[1]) if len(call.args) > 1 else ""
    except (ValueError, IndexError):
        return None
    return Scalar(name, moment.isoformat() + zone)


_MOMENT_BYTES = {"date": 4, "time": 6, "datetime": 10}
"""Class -> the bytes of its pickle."""


def _decode_moment(kind: str, data: bytes) -> date | time:
    """Return the date, the time or the datetime in the bytes of its pickle. Raises
    ValueError, IndexError.

    Source: `_getstate` of the classes in Lib/_pydatetime.py.
    """
    if kind == "date":
        return date(data[0] * 256 + data[1], data[2], data[3])
    # The highest bit of one byte is `fold`, and no part of the number.
    if kind == "time":
        microsecond = int.from_bytes(data[3:6], "big")
        return time(data[0] & 0x7F, data[1], data[2], microsecond)
    year = data[0] * 256 + data[1]
    microsecond = int.from_bytes(data[7:10], "big")
    return datetime(
        year, data[2] & 0x7F, data[3], data[4], data[5], data[6], microsecond
    )


def _zone_suffix(node: Node) -> str:
    """A timezone as the end of an ISO time: `+00:00`, or its class in brackets without
    a fixed offset.
    """
    if type(node) is not Opaque or as_bytes(node) is not None:
        return " [a timezone]"
    if class_of(node) == "datetime.timezone" and node.args:
        offset = node.args[0]
        if type(offset) is Opaque and _read_duration(offset, "") is not None:
            return _offset_text(offset)
    # An offset that is not fixed follows from the class, which is never built.
    return f" [{class_of(node)}]"


def _offset_text(span: Opaque) -> str:
    """Return the offset of a timezone as in `+02:00`. Raises ValueError."""
    try:
        duration = timedelta(*span.args)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        raise ValueError("not a duration") from None
    # Python takes offsets of less than a day alone, and shows seconds where there are
    # some.
    return timezone(duration).tzname(None).removeprefix("UTC") or "+00:00"


def _read_timezone(call: Opaque, name: str) -> Scalar | None:
    """`timezone(offset)` as text: `+02:00`, and its name behind that where it has
    one.
    """
    given_name = call.args[1] if len(call.args) == 2 else None
    suffix = f" {given_name}" if type(given_name) is str else ""
    if len(call.args) != 1 and not suffix:
        return None
    offset = call.args[0]
    if type(offset) is not Opaque or _read_duration(offset, "") is None:
        return None
    try:
        return Scalar(name, _offset_text(offset) + suffix)
    except ValueError:
        return None


def _named_zone(call: Opaque, name: str) -> Scalar | None:
    key = call.args[0] if call.args else None
    return Scalar("zoneinfo.ZoneInfo", str(key)) if isinstance(key, str) else None


def _read_uuid(call: Opaque, name: str) -> Scalar | None:
    state = call.states[0] if len(call.states) == 1 else None
    if type(state) is not Dict or call.args:
        return None
    pairs = zip(state.keys, state.values, strict=True)
    number = next((value for key, value in pairs if key == "int"), None)
    if type(number) is not int or not 0 <= number < 2**128:
        return None
    text = f"{number:032x}"
    groups = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return Scalar(name, "-".join(groups))


def _read_text(call: Opaque, name: str) -> Scalar | None:
    value = call.args[0] if len(call.args) == 1 and not call.states else None
    return Scalar(name, str(value)) if isinstance(value, str) else None


def _read_duration(call: Opaque, name: str) -> Scalar | None:
    try:
        days, seconds, micro = call.args
        if type(days) is type(seconds) is type(micro) is int:
            return Scalar(name, str(timedelta(days, seconds, micro)))
    except (ValueError, OverflowError):
        pass
    return None


def _read_number(call: Opaque, name: str) -> Scalar | None:
    """`complex`, `range`, `slice`, `Fraction` and `Decimal` of the numbers that they
    are called with.
    """
    kind = name.rpartition(".")[2]
    # Protocol 2 uses the names of Python 2.
    if kind == "xrange":
        kind = "range"
    args = call.args
    if kind == "complex":
        parts = [arg for arg in args if type(arg) is int or type(arg) is float]
        if len(parts) == len(args) <= 2:
            return _read_complex(kind, parts)
    if kind in ("range", "slice"):
        if all(arg is None or _is_short_int(arg) for arg in args):
            return Scalar(kind, f"{kind}({', '.join(map(str, args))})")
    if kind == "Fraction" and len(args) == 2 and all(map(_is_short_int, args)):
        # As Python prints it: 3, and not 3/1.
        numbers = args[:1] if args[1] == 1 else args
        return Scalar(name, "/".join(map(str, numbers)))
    if kind in ("Decimal", "Fraction") and len(args) == 1 and isinstance(args[0], str):
        return Scalar(name, str(args[0]))
    return None


def _read_complex(kind: str, parts: list[int | float]) -> Scalar | None:
    try:
        return Scalar(kind, str(complex(*parts)))
    except OverflowError:
        return None


def _is_short_int(node: Node) -> bool:
    """Tell whether a node is an int that may be written out: Python refuses to do so
    with more than 4,300 digits.
    """
    return type(node) is int and node.bit_length() < 512


def _numpy_scalar(call: Opaque, name: str) -> Scalar | None:
    if len(call.args) != 2:
        return None
    dtype, data = numpy_dtype(call.args[0]), as_bytes(call.args[1])
    if dtype is None:
        return None
    if data is None and isinstance(call.args[1], ByteStr):
        data = call.args[1].raw
    values = dtype.decode(data, 1) if data is not None else None
    return None if not values else Scalar(f"numpy.{dtype.name}", values[0])


def device_text(node: Node) -> str | None:
    """A torch.device object, or a device string, as text: `cuda:1`. None for anything
    else.
    """
    if isinstance(node, str):
        return str(node)
    if type(node) is not Opaque or node.class_name != "torch.device" or not node.args:
        return None
    kind = node.args[0]
    if not isinstance(kind, str):
        return None
    index = node.args[1] if len(node.args) > 1 else None
    if type(index) is int and index.bit_length() < 64:
        return f"{kind}:{index}"
    return str(kind)


READERS: dict[str, Callable[[Opaque, str], Scalar | None]] = {
    "builtins.getattr": _read_attribute,
    "numpy.dtype": _numpy_dtype,
    "torch.device": _read_device,
    "_codecs.encode": _read_encoded,
    **{f"builtins.{name}": _read_bytes for name in ("bytes", "bytearray")},
    **{
        f"builtins.{name}": _read_number
        for name in ("complex", "range", "xrange", "slice")
    },
    **dict.fromkeys(("decimal.Decimal", "fractions.Fraction"), _read_number),
    **{
        f"{module}.{name}": _read_path
        for module in ("pathlib", "pathlib._local")
        for name in (
            "PosixPath",
            "WindowsPath",
            "PurePosixPath",
            "PureWindowsPath",
            "Path",
            "PurePath",
        )
    },
    **{f"datetime.{name}": _read_moment for name in ("datetime", "date", "time")},
    "datetime.timedelta": _read_duration,
    "datetime.timezone": _read_timezone,
    "zoneinfo.ZoneInfo._unpickle": _named_zone,
    "uuid.UUID": _read_uuid,
    "torch.torch_version.TorchVersion": _read_text,
    **{f"numpy.{core}.multiarray.scalar": _numpy_scalar for core in ("core", "_core")},
}
"""Class -> its reader, which returns None for a call that the class does not make."""

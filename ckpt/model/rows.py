"""`NamedTuple` and `dataclass`, as in Python, for all our classes: these are made
twenty times faster.

Python compiles each annotation and the methods: 0.2 ms for a named tuple, 1 ms for a
dataclass, and what `ckpt inspect` imports has sixty of them. These compile nothing.
Type checkers see Python's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
    from typing import NamedTuple as NamedTuple
else:
    from _collections import (
        _tuplegetter,
    )  # what reads a field of `collections.namedtuple`

    def _take_fields(name, body):
        """The fields in the body of a class, and their defaults, which leave
        the body.
        """
        fields = tuple(body.get("__annotations__", ()))
        given = {field: body.pop(field) for field in fields if field in body}
        # As Python refuses it: a call by position would be ambiguous.
        if tuple(given) != fields[len(fields) - len(given) :]:
            raise TypeError(
                f"{name}: a field without a default follows one with a default"
            )
        body.update(__match_args__=fields, _fields=fields, _field_defaults=given)
        return fields, given

    def _filled(cls, values, named):
        """All values, in the order of the fields. Raises TypeError unless each field
        has one.
        """
        # Rows of tables, of which there are many, name all that they give.
        if not values:
            fields = cls._field_defaults | named
            if len(fields) == len(cls._fields):
                try:
                    return list(map(fields.__getitem__, cls._fields))
                except KeyError:
                    pass  # said below, with the name that is no field
        if len(values) > len(cls._fields):
            raise TypeError(
                f"{cls.__name__} takes {len(cls._fields)} values, got {len(values)}"
            )
        given = dict(zip(cls._fields, values, strict=False))
        fields = cls._field_defaults | given | named
        # Each name is looked at on the way to an error only: tables have many rows.
        if len(fields) > len(cls._fields) or not given.keys().isdisjoint(named):
            odd = [name for name in named if name in given or name not in cls._fields]
            raise TypeError(
                f"{cls.__name__} got an unexpected or second value {odd[0]!r}"
            )
        try:
            return [fields[field] for field in cls._fields]
        except KeyError as missing:
            raise TypeError(f"{cls.__name__} lacks the value {missing}") from None

    def _signature(cls):
        """Return the signature that `help` and `inspect.signature` show."""
        from inspect import Parameter, Signature  # here: no command asks

        kind = Parameter.POSITIONAL_OR_KEYWORD
        return Signature(
            Parameter(
                field,
                kind,
                annotation=cls.__annotations__[field],
                default=cls._field_defaults.get(field, Parameter.empty),
            )
            for field in cls._fields
        )

    class _Meta(type):
        """Makes a named tuple of the annotations in the body of a class."""

        def __new__(meta, name, bases, body):
            fields, given = _take_fields(name, body)
            body.update(
                (field, _tuplegetter(index, "")) for index, field in enumerate(fields)
            )
            # For each number of values that a call may give, the defaults behind them.
            defaults, least = tuple(given.values()), len(fields) - len(given)
            rest = {least + count: defaults[count:] for count in range(len(given) + 1)}
            body.update(__slots__=(), _rest=rest)
            return super().__new__(meta, name, bases, body)

        @property
        def __signature__(cls):
            return _signature(cls)

    class NamedTuple(tuple, metaclass=_Meta):
        """Base class of a row: a tuple whose fields are the annotations of the
        class.
        """

        def __new__(cls, *values, **named):
            rest = cls._rest.get(len(values))  # the defaults behind so many values
            if named or rest is None:
                return tuple.__new__(cls, _filled(cls, values, named))
            return tuple.__new__(cls, values + rest)

        @classmethod
        def _make(cls, values):
            record = tuple.__new__(cls, values)
            if len(record) != len(cls._fields):
                raise TypeError(
                    f"{cls.__name__} takes {len(cls._fields)} values, got {len(record)}"
                )
            return record

        def _replace(self, **changes):
            # `pop` takes each change once; what is left has no field.
            record = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(
                    f"{type(self).__name__} has no field {', '.join(changes)}"
                )
            return record

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            fields = ", ".join(
                f"{field}={value!r}" for field, value in self._asdict().items()
            )
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self):
            return tuple(self)

    class _RecordMeta(type):
        __signature__ = property(_signature)

    class _Record(metaclass=_RecordMeta):
        """The methods of a dataclass that is frozen and equal to itself alone."""

        __slots__ = ()

        def __init__(self, *values, **named):
            if named or len(values) != len(self._fields):
                values = _filled(type(self), values, named)
            for field, value in zip(self._fields, values, strict=True):
                object.__setattr__(self, field, value)

        def __setattr__(self, field, value=None):
            raise AttributeError(f"{type(self).__name__}.{field} cannot be changed")

        __delattr__ = __setattr__

        def __reduce__(self):
            return type(self), tuple(getattr(self, field) for field in self._fields)

    def dataclass(*, frozen, slots, eq):
        """Makes a class a dataclass. There is one kind: frozen, with slots, and equal
        to itself alone.
        """
        assert frozen and slots and not eq

        def decorate(cls):
            body = {
                name: value
                for name, value in cls.__dict__.items()
                if name not in ("__dict__", "__weakref__")
            }
            fields, _ = _take_fields(cls.__name__, body)
            bases = tuple(base for base in cls.__bases__ if base is not object)
            return type(_Record)(
                cls.__name__, (_Record, *bases), {**body, "__slots__": fields}
            )

        return decorate

    def replace(record, /, **changes):
        """A dataclass with other values of some fields. Raises TypeError for a field
        that it lacks.
        """
        fields = {field: getattr(record, field) for field in record._fields}
        if not changes.keys() <= fields.keys():
            raise TypeError(
                f"{type(record).__name__} has no field "
                f"{', '.join(changes.keys() - fields.keys())}"
            )
        return type(record)(*(fields | changes).values())

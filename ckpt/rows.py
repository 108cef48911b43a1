"""`NamedTuple`, as that of `typing`, for all classes of rows: it is made twenty times faster.

That of `typing` compiles each annotation and a constructor: 0.2 ms for a class, and what `ckpt inspect` imports has
sixty of them. This one compiles nothing. Type checkers see that of `typing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter  # what reads a field of `collections.namedtuple`

    class _Meta(type):
        """Makes the fields out of the annotations in the body of a class."""

        def __new__(meta, name, bases, body):
            fields = tuple(body.get("__annotations__", ()))
            given = {field: body.pop(field) for field in fields if field in body}
            if tuple(given) != fields[len(fields) - len(given) :]:
                raise TypeError(f"{name}: a field without a default follows one with a default")
            body.update((field, _tuplegetter(index, "")) for index, field in enumerate(fields))
            body.update(
                __slots__=(),
                __match_args__=fields,
                _fields=fields,
                _field_defaults=given,
                _defaults=tuple(given.values()),
            )
            return super().__new__(meta, name, bases, body)

        @property
        def __signature__(cls):
            """What `help` and `inspect.signature` show."""
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

    class NamedTuple(tuple, metaclass=_Meta):
        """Base class of a row: a tuple whose fields are the annotations of the class."""

        def __new__(cls, *values, **named):
            missing = len(cls._fields) - len(values)
            if named or missing:
                if named or not 0 < missing <= len(cls._defaults):
                    values = cls._filled(values, named)
                else:
                    values += cls._defaults[-missing:]
            return tuple.__new__(cls, values)

        @classmethod
        def _filled(cls, values, named):
            """All values, in the order of the fields. Raises TypeError unless each field has one."""
            if len(values) > len(cls._fields):
                raise TypeError(f"{cls.__name__} takes {len(cls._fields)} values, got {len(values)}")
            found = cls._field_defaults | dict(zip(cls._fields, values, strict=False))
            for field in named:
                if field not in cls._fields[len(values) :]:
                    raise TypeError(f"{cls.__name__} got an unexpected or second value {field!r}")
            found.update(named)
            try:
                return [found[field] for field in cls._fields]
            except KeyError as missing:
                raise TypeError(f"{cls.__name__} lacks the value {missing}") from None

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"{cls.__name__} takes {len(cls._fields)} values, got {len(made)}")
            return made

        def _replace(self, **changes):
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"{type(self).__name__} has no field {', '.join(changes)}")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            fields = ", ".join(f"{field}={value!r}" for field, value in self._asdict().items())
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self):
            return tuple(self)

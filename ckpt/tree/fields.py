"""Objects of Python, numpy and torch whose call says what they hold: partial, Generator, RandomState, a pattern.

Nothing is called. The parts come under the names that the classes give them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt.nodes import Dict, Global, Node, Opaque, is_tuple
from ckpt.rows import NamedTuple
from ckpt.tree.scalars import class_of, device_text


class Known(NamedTuple):
    """What an object is, and a node that says the same without its class."""

    type: str
    node: Node


def known_parts(call: Opaque) -> Known | None:
    """The parts of an object of one of these classes; None for any other, and for a call that the class does not make."""
    reader = _READERS.get(class_of(call))
    return None if reader is None or call.items or call.keys or call.kwargs else reader(call)


def constructed(call: Opaque) -> Opaque:
    """An object that protocol 2 makes by `partial(cls.__new__, cls, *args, **kwargs)()`, as a call of its class.

    Source: `copyreg.__newobj_ex__` in Lib/pickle.py. Any other call stays as it is.
    """
    made = call.func
    if (
        type(made) is not Opaque
        or class_of(made) != "functools.partial"
        or call.args
        or len(made.states) != 1
    ):
        return call
    state = made.states[0]
    if not is_tuple(state) or len(state) < 3:
        return call
    func, args, keywords = state[:3]
    if type(func) is not Opaque or class_of(func) != "builtins.getattr" or func.args[1:] != ("__new__",):
        return call
    if (
        not is_tuple(args)
        or not args
        or type(args[0]) is not Global
        or not isinstance(keywords, (Dict, type(None)))
    ):
        return call
    whole = Opaque("newobj_ex", args[0], args[1:], keywords, call.offset)
    whole.states, whole.items, whole.keys, whole.values = call.states, call.items, call.keys, call.values
    return whole


def _named(keys: Sequence[str], values: Sequence[Node]) -> Dict:
    made = Dict()
    made.set(list(keys), list(values))
    return made


def _partial(call: Opaque) -> Known | None:
    state = call.states[0] if len(call.states) == 1 else None
    if not is_tuple(state) or len(state) != 4:
        return None
    made = _named(("func", "args", "keywords"), (state[0], state[1], state[2]))
    if type(state[3]) is Dict and state[3].keys:
        made.set(["attributes"], [state[3]])
    return Known("functools.partial", made)


def _torch_generator(call: Opaque) -> Known | None:
    state = call.states[0] if len(call.states) == 1 else None
    if len(call.args) != 1 or not is_tuple(state) or len(state) != 3:
        return None
    device = device_text(call.args[0])  # torch 2.0 knows no devices in a pickle of plain values
    made = _named(("device", "seed", "offset", "state"), (device, *state))
    return Known("torch.Generator", made)


def _numpy_random(call: Opaque) -> Known | None:
    name = {"__randomstate_ctor": "RandomState", "__generator_ctor": "Generator"}.get(
        class_of(call).rpartition(".")[2], "BitGenerator"
    )
    for state in call.states:
        whole = state[0] if is_tuple(state) and state else state
        if type(whole) is Dict:
            return Known(f"numpy.random.{name}", whole)
    inner = call.args[0] if call.args else None
    found = known_parts(inner) if name == "Generator" and type(inner) is Opaque and not call.states else None
    return None if found is None else Known("numpy.random.Generator", found.node)


def _pattern(call: Opaque) -> Known | None:
    if len(call.args) != 2 or call.states or not isinstance(call.args[0], (str, bytes)):
        return None
    return Known("re.Pattern", _named(("pattern", "flags"), call.args))


def _logger(call: Opaque) -> Known | None:
    name = call.args[0] if len(call.args) == 1 and not call.states else None
    return Known("logging.Logger", name) if isinstance(name, str) else None


_READERS: dict[str, Callable[[Opaque], Known | None]] = {
    "functools.partial": _partial,
    "_functools.partial": _partial,
    "torch._C.Generator": _torch_generator,
    **{
        f"numpy.random._pickle.__{kind}_ctor": _numpy_random
        for kind in ("randomstate", "generator", "bit_generator")
    },
    "re._compile": _pattern,
    "logging.getLogger": _logger,
}

"""`write_names.py tensors` or `write_names.py classes < states.json`: the names that classes have, as JSON.

Each name has its kind: a data descriptor takes what is set on an object, so a state that sets such a name runs code.
Runs on Python 2.7 and later with every torch from 1.0 on.
"""

import importlib
import json
import sys
import warnings

import torch

warnings.simplefilter("ignore")
TENSORS = (
    "torch.Tensor",
    "torch.nn.Parameter",
    "torch.nn.Buffer",
    "torch.nn.parameter.UninitializedParameter",
    "torch.nn.parameter.UninitializedBuffer",
    "torch.nn.parameter.UninitializedTensorMixin",
    "torch.distributed.tensor.DTensor",
    "torch.distributed._tensor.DTensor",
)


def found(name):
    """The object of a dotted name, or None."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:count]))
        except Exception:
            continue
        try:
            for part in parts[count:]:
                thing = getattr(thing, part)
        except AttributeError:
            return None
        return thing
    return None


def kind_of(cls, name):
    """The kind of an attribute of a class, as it stands in the class that has it."""
    for base in cls.__mro__:
        if name in vars(base):
            value = vars(base)[name]
            break
    else:
        return "of the metaclass"
    if isinstance(value, property):
        return "property with a setter" if value.fset else "property"
    if hasattr(type(value), "__set__") or hasattr(type(value), "__delete__"):
        return "data descriptor " + type(value).__name__
    if isinstance(value, (staticmethod, classmethod)):
        return type(value).__name__
    if callable(value):
        return "method"
    if hasattr(type(value), "__get__"):
        return "descriptor " + type(value).__name__
    return "value " + type(value).__name__


def names_of(cls, left_out):
    return {name: kind_of(cls, name) for name in sorted(set(dir(cls)) - set(left_out))}


def main():
    tables = {}
    if sys.argv[1] == "tensors":
        for name in TENSORS:
            cls = found(name)
            if isinstance(cls, type):
                tables[name] = names_of(cls, ())
    else:
        for name in json.load(sys.stdin):
            cls = found(name)
            if isinstance(cls, type):
                tables[name] = names_of(cls, dir(object))
    print(json.dumps({"torch": torch.__version__, "classes": tables}, sort_keys=True))


if __name__ == "__main__":
    main()

"""`list_names.py CLASSES`: the names that `torch.Tensor` and the listed classes have in
the torch that runs this, as JSON.

Runs with any Python from 3.6 on and any torch from 1.0 on. `names_of_torch.py` merges
the answers of several versions.
"""

import importlib
import inspect
import json
import sys
import warnings

warnings.simplefilter("ignore")
import torch  # noqa: E402


def names_of(cls):
    return [name for name in dir(cls) if not name.startswith("__")]


def properties_of(cls):
    """The names that take what is set on an object: a property, or an attribute
    of C.
    """
    return [
        name
        for name in names_of(cls)
        if hasattr(inspect.getattr_static(cls, name), "__set__")
    ]


def main():
    looked_up = set()
    with open(sys.argv[1]) as listed:
        names = listed.read().split()
    for line in names:
        module, _, name = line.rpartition(".")
        try:
            cls = getattr(importlib.import_module(module), name)
        except Exception:  # this torch has no such class, or cannot import its module
            continue
        if isinstance(cls, type):
            looked_up.update(names_of(cls))
    answer = {
        "version": torch.__version__,
        "tensor": names_of(torch.Tensor),
        "properties": properties_of(torch.Tensor),
        "classes": sorted(looked_up),
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

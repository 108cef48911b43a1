"""`list_names.py CLASSES`: the names that `torch.Tensor` and the listed classes have in the torch that runs this, as JSON.

Runs with any Python from 3.6 on and any torch from 1.0 on. `names_of_torch.py` merges the answers of several versions.
"""

import importlib
import json
import sys
import warnings

warnings.simplefilter("ignore")
import torch  # noqa: E402


def names_of(cls):
    return [name for name in dir(cls) if not name.startswith("__")]


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
    json.dump(
        {"version": torch.__version__, "tensor": names_of(torch.Tensor), "classes": sorted(looked_up)},
        sys.stdout,
    )


if __name__ == "__main__":
    main()

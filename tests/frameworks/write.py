"""`write.py FOLDER PACKAGE`: writes the files of one package, with the truth about
each.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import optional  # noqa: F401
import recorder
import torch
from zoo import DEVICE

PLACED = ("accelerate", "lightning", "peft", "transformers")
"""They move models and batches to the device themselves."""


def main() -> int:
    warnings.simplefilter("ignore")
    folder, package = Path(sys.argv[1]).resolve(), sys.argv[2]
    if package not in PLACED:
        torch.set_default_device(DEVICE)
    module = importlib.import_module("write_" + package.replace("-", "_"))
    cases = [
        case
        for case in module.CASES
        if not sys.argv[3:] or case.__name__ in sys.argv[3:]
    ]
    return recorder.run(folder, package, cases)


if __name__ == "__main__":
    sys.exit(main())

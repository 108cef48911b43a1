"""`write.py FOLDER PACKAGE`: writes the files of one package, with the truth about each."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import optional  # noqa: F401
import recorder


def main() -> int:
    warnings.simplefilter("ignore")
    folder, package = Path(sys.argv[1]).resolve(), sys.argv[2]
    module = importlib.import_module("write_" + package.replace("-", "_"))
    cases = [case for case in module.CASES if not sys.argv[3:] or case.__name__ in sys.argv[3:]]
    return recorder.run(folder, package, cases)


if __name__ == "__main__":
    sys.exit(main())

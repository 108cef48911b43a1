"""`names_of_torch.py PYTHON…`: writes ckpt/pickle/judge/names_of_torch.py from the
torch of each Python.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path

from ckpt.pickle.judge import known

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "ckpt" / "pickle" / "judge" / "names_of_torch.py"
DICTS = (
    dict,
    list,
    set,
    collections.OrderedDict,
    collections.Counter,
    collections.deque,
    collections.UserDict,
)
TEMPLATE = '''"""Names that torch has itself: `tools/states/names_of_torch.py` writes this file. Versions: {versions}.

An attribute of such a name hides what torch calls, or is a property that changes the object.
"""

from __future__ import annotations

_TENSOR = """
{tensor}
"""

_PROPERTIES = """
{properties}
"""

_OTHERS = """
{others}
"""

TENSOR_NAMES = frozenset(_TENSOR.split())
"""The names of `torch.Tensor`, but for those with two underscores in front."""

TENSOR_PROPERTIES = frozenset(_PROPERTIES.split())
"""The names among them that take what is set: `data` would put other values in place, `real` would write into its storage."""

LOOKED_UP = frozenset(_OTHERS.split()) | TENSOR_NAMES
"""The names of layers, optimizers and other known classes, of tensors, and of Python's containers."""
'''


def classes() -> list[str]:
    """The known classes whose objects get attributes: enums and what torch has in C are
    none.
    """
    others = known.KNOWN - known.ENUMS - known.VALUES
    return sorted(
        name for name in others if name.startswith("torch.") and "._C." not in name
    )


def wrapped(names: Iterable[str]) -> str:
    return textwrap.fill(" ".join(sorted(names)), width=108, break_on_hyphens=False)


def main() -> int:
    versions: list[str] = []
    tensor: set[str] = set()
    properties: set[str] = set()
    others: set[str] = {
        name for cls in DICTS for name in dir(cls) if not name.startswith("__")
    }
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(classes()))
        listed.flush()
        for python in sys.argv[1:]:
            command = [python, str(HERE / "list_names.py"), listed.name]
            answer = json.loads(
                subprocess.run(
                    command, capture_output=True, text=True, check=True
                ).stdout
            )
            versions.append(answer["version"].partition("+")[0])
            tensor.update(answer["tensor"])
            properties.update(answer["properties"])
            others.update(answer["classes"])
    text = TEMPLATE.format(
        versions=", ".join(versions),
        tensor=wrapped(tensor),
        properties=wrapped(properties),
        others=wrapped(others - tensor),
    )
    TARGET.write_text(text)
    print(f"{len(tensor)} names of tensors, {len(others - tensor)} of others")
    return 0


if __name__ == "__main__":
    sys.exit(main())

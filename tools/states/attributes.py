"""`attributes.py STATES.json`: writes ckpt/pickle/attributes.py from what `collect.py`
found in files of torch and others.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from ckpt.pickle.judge import known

TARGET = Path(__file__).resolve().parents[2] / "ckpt" / "pickle" / "attributes.py"
PLAIN_CLASSES = (
    "torch.distributions.",
    "torch.utils.data.dataset.",
    "torch.utils.data.sampler.",
)
"""Modules whose classes are values with attributes: each class that somebody has
written is known.
"""
OF_MODULES = frozenset(
    [
        "_parameters",
        "_buffers",
        "_modules",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
    ]
)
"""Attributes of every layer that `grammar` has rules for."""
HARMLESS = ("torch.nn.parameter.", "torch.Size", "torch.device", "torch.is_tensor")
WRITTEN_BY_CALLS = frozenset(
    [
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.nn.modules.module._WrappedHook",
        "torch._dynamo.decorators._DimRange",
        "torch.backends.cudnn.rnn.Unserializable",
        "torch.distributed.tensor._api.DTensor",
        "torch.distributed._tensor.api.DTensor",
        "torch.distributed.tensor.DTensor",
        "joblib.numpy_pickle.NumpyArrayWrapper",
        "omegaconf.dictconfig.DictConfig",
        "omegaconf.listconfig.ListConfig",
    ]
)
"""Classes with a rule of their own whose objects have attributes."""
TEMPLATE = '''"""The attributes that objects of known classes have when torch, and the packages that are named here, write them.

`tools/states/` runs torch {versions} and writes this file. A star marks an attribute that holds objects or functions;
of layers only those are listed, because everybody puts data on layers.
"""

from __future__ import annotations

_TABLE = """
{table}
"""


def _read_table(text: str) -> dict[str, dict[str, bool]]:
    rows: dict[str, dict[str, bool]] = {{}}
    for row in text.replace("\\n  ", " ").strip().splitlines():
        cls, _, names = row.partition(":")
        rows[cls] = {{name.rstrip("*"): name.endswith("*") for name in names.split()}}
    return rows


ATTRIBUTES = _read_table(_TABLE)
"""Class -> its attributes -> whether it holds objects or functions."""

_FURTHER = """
{further}
"""

WRITTEN = frozenset(_FURTHER.split())
"""Further classes of torch whose objects somebody has written: each is a class of its own, not another one by this name."""
'''


def holds_objects(row: dict[str, Any]) -> bool:
    return any(not name.startswith(HARMLESS) for name in row.get("names", ()))


def fields_of(cls: str) -> list[str]:
    """The fields of a dataclass of the torch that is here, which files may lack where
    they have their defaults.
    """
    module, _, name = cls.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return []
    return (
        [field.name for field in dataclasses.fields(found)]
        if dataclasses.is_dataclass(found)
        else []
    )


def main() -> int:
    states = json.loads(Path(sys.argv[1]).read_text())
    versions = {
        by
        for row in states.values()
        for cell in row.get("attributes", {}).values()
        for by in cell["by"]
    }
    lines: list[str] = []
    for cls, row in sorted(states.items()):
        cells = row.get("attributes", {})
        if (
            cls in known.MODULES
            or cls == "torch.nn.parallel.distributed.DistributedDataParallel"
        ):
            cells = {
                name: cell
                for name, cell in cells.items()
                if name not in OF_MODULES and holds_objects(cell)
            }
            if not cells:
                continue
        elif (
            cls in known.CLASSES
            or cls in WRITTEN_BY_CALLS
            or cls.startswith(PLAIN_CLASSES)
        ):
            if not cells and not cls.startswith(PLAIN_CLASSES):
                continue
        else:
            continue
        if cls not in known.MODULES:
            cells = {name: {} for name in fields_of(cls)} | cells
        names = " ".join(
            f"{name}*" if holds_objects(cell) else name
            for name, cell in sorted(cells.items())
        )
        lines.append(
            textwrap.fill(
                f"{cls}: {names}".strip(),
                width=108,
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
        )
    numbers = sorted(
        (by for by in versions if by.replace(".", "").isdigit()),
        key=lambda by: [int(part) for part in by.split(".")],
    )
    further = [
        cls
        for cls, row in states.items()
        if cls.startswith("torch.")
        and cls not in known.KNOWN
        and {"newobj", "reconstructor"} & set(row["how"])
    ]
    text = textwrap.fill(" ".join(sorted(further)), width=108, break_on_hyphens=False)
    TARGET.write_text(
        TEMPLATE.format(
            versions=", ".join(numbers), table="\n".join(lines), further=text
        )
    )
    print(f"{len(lines)} classes")
    missing = sorted(cls for cls in known.CLASSES if cls not in states)
    print("without data:", *missing, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())

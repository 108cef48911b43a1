"""Makes packages importable that are not whole: torchvision without its operators, for
the package index has it built for CUDA, and torch is not; PEFT beside gptqmodel, of
which only the layers can be had.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from unittest.mock import patch

_KEPT = []


class _Declared(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> None:
        """Declares what torchvision registers fakes for, right before it is
        imported.
        """
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is not None:
                return
            library = torch.library.Library("torchvision", "FRAGMENT")
            for name in ("nms", "qnms"):
                try:
                    library.define(
                        f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> "
                        "Tensor"
                    )
                except RuntimeError:  # it is there
                    pass
            _KEPT.append(library)


sys.meta_path.insert(0, _Declared())


def hide_gptqmodel() -> None:
    """Make PEFT work beside gptqmodel: it looks whether that is there, and keeps the
    answer.
    """
    from peft.import_utils import is_gptqmodel_available

    find_spec = importlib.util.find_spec

    def find_other_spec(name: str, package: str | None = None) -> object:
        return None if name == "gptqmodel" else find_spec(name, package)

    with patch("importlib.util.find_spec", find_other_spec):
        assert not is_gptqmodel_available()

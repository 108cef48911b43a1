"""Makes torchvision importable where its operators are missing: the package index has
it built for CUDA, and torch is not.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys

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

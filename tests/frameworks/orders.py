"""The order of names, against each fourth architecture of timm and all of transformers:
on the meta device they take no memory.

None is taken for sorted, and each with more than 8 names is when a program sorts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import optional  # noqa: F401 - makes torchvision importable
import pytest
import timm
import torch
from torch import nn
from transformers import AutoModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from ckpt.evidence.order import disorder_reason, may_be_sorted

LAYERS = ("num_hidden_layers", "num_layers", "n_layer")


def of_timm() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    for name in timm.list_models()[::4]:
        yield name, lambda name=name: timm.create_model(name)


def of_transformers() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    for kind in MODEL_MAPPING:

        def build(kind: type = kind) -> nn.Module:
            config = kind()
            for name in LAYERS:
                if isinstance(getattr(config, name, None), int):
                    setattr(config, name, min(12, getattr(config, name)))
            return AutoModel.from_config(config)

        yield kind.__name__, build


def order(names: list[str], dtypes: dict[str, torch.dtype]) -> str | None:
    blocks: dict[torch.dtype, list[str]] = {}
    for name in names:
        blocks.setdefault(dtypes[name], []).append(name)
    rows = list(blocks.values())
    return disorder_reason(names, rows) or (
        "may be sorted" if may_be_sorted(rows) else None
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("models", [of_timm, of_transformers])
def test_no_model_is_taken_for_sorted(
    models: Callable[[], Iterator[tuple[str, Callable[[], nn.Module]]]],
) -> None:
    seen: Counter[str] = Counter()
    wrong = {}
    for name, build in models():
        try:
            with torch.device("meta"):
                state = build().state_dict()
        except Exception:  # needs a package, or a choice that its config lacks
            seen["not built"] += 1
            continue
        seen["built"] += 1
        dtypes = {key: tensor.dtype for key, tensor in state.items()}
        if (why := order(list(state), dtypes)) is not None:
            wrong[name] = why
        if len(state) > 8 and order(sorted(state), dtypes) is None:
            wrong[name] = "not seen to be sorted"
    print(models.__name__, dict(seen))
    assert not wrong
    assert seen["built"] > 4 * seen["not built"], seen

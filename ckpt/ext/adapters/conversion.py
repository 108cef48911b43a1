"""`ckpt convert --adapter-names`: the names of PEFT for an adapter of kohya, and the
other way.

Where a name does not say where its dots are, or to which part of a pipeline it belongs,
nothing is written.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Sequence

from ckpt.bytes.far import is_url
from ckpt.bytes.source import Given
from ckpt.bytes.target import target, writing_file
from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.report import Change, RewriteReport
from ckpt.elements.blocks import is_dense
from ckpt.evidence.survey import Survey
from ckpt.ext.adapters.base import Base, met_flat_names, met_names
from ckpt.ext.adapters.config import CONFIG
from ckpt.ext.adapters.merge import new_tensor
from ckpt.ext.adapters.names import PREFIX
from ckpt.ext.adapters.reader import (
    Adapter,
    Layer,
    read_adapter,
    refuse_unscaled,
    scale_of,
)
from ckpt.model.dtypes import BY_NAME
from ckpt.model.errors import UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict
from ckpt.model.places import Range
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import TensorRef, tensor_ref
from ckpt.model.text import counted_noun, show, show_folded_names

NAMES = ("peft", "kohya")
"""The programs whose names an adapter can get."""
_PIPELINE = {
    "unet": "lora_unet",
    "text_encoder": "lora_te",
    "text_encoder_2": "lora_te2",
    "text_encoder_3": "lora_te3",
}
"""The part of a pipeline in the names of diffusers -> the beginning of kohya's
names.
"""
_UNET = (
    "down_blocks",
    "mid_block",
    "up_blocks",
    "conv_in",
    "conv_out",
    "time_embedding",
    "add_embedding",
)
"""The modules of a UNet of diffusers."""
_TEXT = "text_model"
"""The module of a text encoder of CLIP."""


class Renaming(NamedTuple):
    """An adapter in other names. `settings` is the text that PEFT needs beside the
    tensors, or None.
    """

    report: RewriteReport
    settings: str | None


def rename_adapter(
    survey: Survey,
    limits: Limits,
    names: str,
    base: Survey | None,
) -> Renaming:
    """The adapter in the names of another program. Raises UsageError, UnsupportedError
    where these are not certain.
    """
    if names not in NAMES:
        raise UsageError(
            f"--adapter-names {show(names, 40)}: not one of {' '.join(NAMES)}"
        )
    adapter = read_adapter(survey, limits)
    _refuse_others(adapter)
    wanted = {"peft": "PEFT", "kohya": "kohya"}[names]
    if adapter.style == wanted:
        raise UsageError(f"has the names of {wanted} already", path=adapter.path)
    settings: str | None = None
    if names == "kohya":
        tensors = _kohya_tensors(adapter)
    else:
        modules = _dotted_modules(adapter, base)
        tensors = _peft_tensors(adapter, modules, base)
        settings = _peft_settings(adapter, modules)
    root = Dict()
    root.set(list(tensors), list(tensors.values()))
    result = edited_checkpoint(survey.checkpoint, root, limits, origin=None)
    change = Change(
        "name",
        f"names of {adapter.style}",
        f"names of {wanted}",
        len(adapter.layers),
        "layer",
    )
    report = RewriteReport(
        "convert",
        survey.checkpoint,
        result,
        (change,),
        unchanged_bytes=False,
    )
    return Renaming(report, settings)


def _refuse_others(adapter: Adapter) -> None:
    """Raise UnsupportedError for tensors that only one program has a name for."""
    entries = [
        *adapter.wholes.values(),
        *adapter.tokens.values(),
        *adapter.copies.values(),
    ]
    others = [entry.name for entry in entries]
    kinds = ("down", "up", "alpha")
    for layer in adapter.layers:
        others += [
            entry.name for kind, entry in layer.parts.items() if kind not in kinds
        ]
    has_parameters = adapter.settings is not None and bool(adapter.settings.targets)
    if others or has_parameters:
        what = show_folded_names(others, 3) if others else "parameters of experts"
        raise UnsupportedError(
            f"holds {what}, for which the other program has no name", path=adapter.path
        )


def _layer_scale(adapter: Adapter, layer: Layer) -> float:
    scale = scale_of(adapter, layer, layer.up.shape[1])
    if scale.value is None:
        refuse_unscaled(adapter, [layer])
    assert scale.value is not None
    return scale.value


# --- to kohya -------------------------------------------------------------------------


def _kohya_tensors(adapter: Adapter) -> dict[str, TensorRef]:
    """The tensors by the names of kohya, with an alpha for each layer."""
    has_several = any(
        layer.module.startswith("text_encoder_2.") for layer in adapter.layers
    )
    tensors: dict[str, TensorRef] = {}
    for layer in adapter.layers:
        begin, module = _pipeline_part(adapter, layer)
        # With two text encoders kohya counts them from 1.
        if begin == "lora_te" and has_several:
            begin = "lora_te1"
        flat = f"{begin}_{module.replace('.', '_')}"
        if f"{flat}.alpha" in tensors:
            raise UsageError(
                f"two layers would be called {show(flat, 80)}", path=adapter.path
            )
        rank = layer.up.shape[1]
        # kohya divides its alpha by the rank, also where rsLoRA divided by the root.
        tensors[f"{flat}.lora_down.weight"] = layer.down
        tensors[f"{flat}.lora_up.weight"] = layer.up
        tensors[f"{flat}.alpha"] = _number_tensor(_layer_scale(adapter, layer) * rank)
    return tensors


def _pipeline_part(adapter: Adapter, layer: Layer) -> tuple[str, str]:
    """The beginning of kohya's name for a layer, and the layer in its part of a
    pipeline. Raises UnsupportedError.
    """
    first, _, rest = layer.name.partition(".")
    if first in _PIPELINE:
        return _PIPELINE[first], rest
    if first in _UNET:
        return "lora_unet", layer.name
    if first == _TEXT:
        return "lora_te", layer.name
    problem = (
        f"nothing says to which part of a pipeline {show(layer.name, 80)} belongs, and "
        "kohya's names begin with it"
    )
    raise UnsupportedError(problem, path=adapter.path)


def _number_tensor(value: float) -> TensorRef:
    """A tensor with one number."""
    place = Range(Given(struct.pack("<f", value)), 0, 4)
    return new_tensor(place, BY_NAME["float32"], (), None)


# --- to PEFT --------------------------------------------------------------------------


def _dotted_modules(adapter: Adapter, base: Survey | None) -> dict[str, str]:
    """The names of the layers in the model that PEFT wraps. Raises UsageError where a
    base has to say them.
    """
    components = {_layer_component(layer) for layer in adapter.layers}
    if len(components) > 1:
        listed = ", ".join(sorted(components))
        problem = (
            f"holds layers of {counted_noun(len(components), 'part')} of a pipeline "
            f"({listed}), and PEFT has an adapter for each"
        )
        raise UnsupportedError(problem, path=adapter.path)
    modules = [layer.module for layer in adapter.layers]
    # Names with dots are those of the model, behind the part of a pipeline.
    if base is None:
        if any(layer.is_flat for layer in adapter.layers):
            problem = (
                "has names with _ for dots, and only the base says where the dots are"
            )
            raise UsageError(problem, path=adapter.path, hint="--base BASE")
        if components == {""}:
            return {module: module for module in modules}
        return {module: module.partition(".")[2] for module in modules}
    tensors = Base(base.only_model(None).entries, base.path)
    if adapter.layers[0].is_flat:
        met, _ = met_flat_names(modules, tensors)
    else:
        met, _ = met_names(modules, tensors, lambda module, name: True)
    lost = [module for module in modules if module not in met]
    if lost:
        raise UsageError(
            f"lacks {counted_noun(len(lost), 'layer')}: {show_folded_names(lost, 3)}",
            path=base.path,
        )
    return met


def _layer_component(layer: Layer) -> str:
    """The part of a pipeline that a layer is in, or ``."""
    if layer.is_flat:
        return layer.component
    first, _, rest = layer.module.partition(".")
    is_part = first in _PIPELINE or first in ("diffusion_model", "transformer")
    return first if rest and is_part else ""


def _peft_tensors(
    adapter: Adapter,
    modules: dict[str, str],
    base: Survey | None,
) -> dict[str, TensorRef]:
    """The tensors by the names of PEFT."""
    shapes: dict[str, tuple[int, ...]] = {}
    if base is not None:
        for entry in base.only_model(None).entries:
            shapes[entry.name] = entry.tensor.shape
    tensors: dict[str, TensorRef] = {}
    for layer in adapter.layers:
        module = modules[layer.module]
        # kohya writes a 1 × 1 convolution where the base may have a Linear layer.
        is_linear = len(shapes.get(f"{module}.weight", ())) == 2
        for letter, ref in (("A", layer.down), ("B", layer.up)):
            name = f"{PREFIX}{module}.lora_{letter}.weight"
            tensors[name] = _as_matrix(ref) if is_linear else ref
    return tensors


def _as_matrix(ref: TensorRef) -> TensorRef:
    """A matrix that kohya wrote as a convolution with a kernel of one element."""
    if len(ref.shape) != 4 or ref.shape[2:] != (1, 1) or not is_dense(ref):
        return ref
    return tensor_ref(
        ref.storage,
        ref.dtype,
        ref.shape[:2],
        (ref.shape[1], 1),
        ref.offset,
    )


def _peft_settings(adapter: Adapter, modules: dict[str, str]) -> str:
    """The settings for the layers, as adapter_config.json has them."""
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for layer in adapter.layers:
        name = modules[layer.module]
        ranks[name] = layer.up.shape[1]
        alphas[name] = _layer_scale(adapter, layer) * layer.up.shape[1]
    # The most common ones hold for all layers; patterns name the others.
    rank = _most_common(list(ranks.values()))
    alpha = _most_common(list(alphas.values()))
    settings = {
        "alpha_pattern": {
            name: _plain_number(value)
            for name, value in alphas.items()
            if value != alpha
        },
        "lora_alpha": _plain_number(alpha),
        "peft_type": "LORA",
        "r": int(rank),
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "target_modules": sorted(ranks),
    }
    return f"{json.dumps(settings, indent=2)}\n"


def _most_common(values: Sequence[float]) -> float:
    return Counter(values).most_common(1)[0][0]


def _plain_number(value: float) -> float | int:
    """A number without a point where it is whole."""
    return int(value) if value == int(value) else value


# --- the file beside it ---------------------------------------------------------------


def check_place(out: str | None, *, force: bool) -> None:
    """Raise UsageError where no settings can be written beside OUT, before anything is
    written.
    """
    if out is None:
        return
    if is_url(out):
        raise UsageError(
            f"{CONFIG} is written beside OUT, and OUT is a URL",
            path=out,
            hint="-o FOLDER/adapter_model.safetensors",
        )
    target(_config_path(out), force=force, parents=True)


def _config_path(out: str) -> str:
    folder = out if os.path.isdir(out) else os.path.dirname(out)
    return os.path.join(folder, CONFIG)


def write_settings(
    report: RewriteReport,
    settings: str,
    *,
    force: bool,
) -> RewriteReport:
    """Write the settings beside the file that was written. Raises WriteError."""
    if report.saved is None:
        return report
    data = settings.encode()
    path = report.saved.path
    # Nobody may read the settings of weights that he may not read.
    weights = os.stat(path)
    place = target(_config_path(path), force=force)._replace(like=(weights,))
    with writing_file(place, len(data)) as sink:
        sink.write(data)
    return report._replace(carried=(*report.carried, CONFIG))

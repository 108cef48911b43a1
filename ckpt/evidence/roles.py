"""Parameter or buffer: what the file says about each tensor, and with what evidence.

Strongest first: the module, TorchScript's lists, Parameters and `param_names`
(certain); siblings, dtypes, and the order of an optimizer when only one assignment fits
(strong); well-known names (likely). Everything else is unknown; callers treat it as a
parameter and say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Literal

from ckpt.evidence.extras import extra_kind, is_mask
from ckpt.evidence.record import STATE_DICT, ModelRecord, TensorRecord, record_of
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import unwrapped_name, unwrapping_rule
from ckpt.model.checkpoint import Checkpoint, Entries, looks_of
from ckpt.model.columns import row_parts
from ckpt.model.errors import UsageError
from ckpt.model.names import Block, Path, name_blocks
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor, TensorRef
from ckpt.model.text import show
from ckpt.tree.find import children_of
from ckpt.tree.view import look

if TYPE_CHECKING:
    from ckpt.evidence.matching import Match

RoleName = Literal["parameter", "buffer", "optimizer", "other", "unknown"]
Trust = Literal["certain", "strong", "likely", "none"]


class Role(NamedTuple):
    """The role of a tensor. `source` names the kind of evidence, `note`
    describes it.
    """

    role: RoleName
    trust: Trust
    source: str
    note: str = ""


_CERTAIN = {
    "module": "listed by the module in this file",
    "torchscript": "listed by the code in this file",
    "pt2": "listed by the signature of the program in this file",
    "Parameter": "saved as a Parameter",
    "Buffer": "saved as a Buffer",
    "deepspeed": "by the list of buffers that DeepSpeed saved",
}
_BATCH_NORM = frozenset(("running_mean", "running_var", "num_batches_tracked"))
_UNKNOWN = Role(
    "unknown", "none", "none", "a state dict does not say; treated as a parameter"
)
_FROZEN_NORM = Role(
    "unknown",
    "none",
    "batchnorm",
    "beside statistics without a counter: a frozen batch norm has buffers only",
)
_OTHER = Role("other", "none", "none", "outside the model")
_NAMED = Role("parameter", "certain", "param_names", "named by the optimizer")
_STATE = Role("optimizer", "certain", "section")
_HANDED = Role(
    "parameter", "certain", "optimizer", "a parameter of the optimizer in this file"
)
_LIKELY_BUFFERS = frozenset(
    [
        "position_ids",
        "inv_freq",
        "masked_bias",
        "relative_position_index",
        "relative_coords_table",
        "anchor_grid",
        "anchors",
        "pe",
        "queue",
        "queue_ptr",
        "pos_enc",
        "mask",
        "attn_mask",
        "causal_mask",
        "output_mask",
    ]
)
_PARAMETERS = re.compile(
    r"weight|bias|(?:weight|bias)_(?:(?:ih|hh|hr)\w*|orig)|in_proj_(?:weight|bias)"
    r"|[qkv]_proj_weight|bias_[kv]|weight_g"
)
"""Names that the modules of torch give to parameters (torch/nn/modules). `weight_v`
alone may be spectral_norm's.
"""
_ADAPTED = frozenset(("lora_down", "hada_w1_a", "lokr_w1", "lokr_w1_a"))
"""Names beside the scale of an adapter's layer."""
_ADAPTERS = (
    "hada_",
    "lokr_",
    "lora_embedding_",
    "lora_magnitude_vector",
    "ia3_l",
    "vera_lambda_",
)
"""Beginnings of the names that PEFT and LyCORIS give to parameters without a module."""
_OUTSIDE = frozenset(("criterion", "loss", "loss_fn"))
_TOLD_BY_PARENT = _OUTSIDE | {"parametrizations"}
"""Modules whose weights are usually constants, such as the weights of classes."""
_PACKED = frozenset(
    (
        "scales",
        "scale",
        "zero_point",
        "qweight",
        "weight_scale",
        "weight_scale_inv",
        "weight_zero_point",
    )
)
"""Beside them a weight is quantized: frameworks disagree whether it is a parameter."""
# Packed weights of quantized models are integers, but not ordinary buffers.
_QUANTIZED_NAMES = frozenset(
    ("qweight", "qzeros", "g_idx", "weight", "weight_packed", "scales")
)


_BUFFERS = (
    r"(?:^|\.)(?:\w+_constraint\.(?:lower|upper)_bound|\w+_prior\.(?!raw_)\w+"
    r"|model_ema\.\w+|_codebook\.(?:embed|embed_avg"
    r"|cluster_size|initted)|betas|log_one_minus_alphas_cumprod|alphas_cumprod(?:_prev"
    r"|_next)?|lvlb_weights"
    r"|sqrt_(?:one_minus_)?(?:recip_?|recipm1_)?alphas?\w*|posterior_(?:variance"
    r"|log_variance_clipped|mean_coef[12]))$"
)
"""Buffers of GPyTorch (constraints, priors), diffusion models (schedules), LitEma and
vector quantization.
"""


class RecordMatch(NamedTuple):
    """A record of a live model, the section of the file that it describes, and the
    indices of its tensors there.
    """

    record: ModelRecord
    section: Section
    indices: dict[str, int]

    def known(self) -> dict[int, TensorRecord]:
        """Index of a tensor -> its row of the record."""
        return {
            index: self.record.tensors[name] for name, index in self.indices.items()
        }

    def only_in_file(self) -> list[str]:
        """The tensors of the section that the model does not have, by their names
        inside of it.
        """
        known = set(self.indices.values())
        names = self.section.names()
        return [
            name
            for number, name in enumerate(names)
            if self.section.first + number not in known
        ]

    def only_in_model(self) -> list[str]:
        """The tensors of the model that the section does not have."""
        return [name for name in self.record.tensors if name not in self.indices]


class Evidence(NamedTuple):
    """The role of each of `checkpoint.tensors`, in the same order, and the matches of
    the optimizers.

    `record` comes from a snapshot or a live model, if there is one.
    """

    roles: list[Role]
    matches: tuple[Match, ...]
    record: RecordMatch | None = None
    in_optimizer: Sequence[bool | None] = ()
    """The answer for each tensor whether an optimizer in the file holds it. None means
    open.
    """


def find_roles(
    checkpoint: Checkpoint,
    sections: tuple[Section, ...],
    model: ModelRecord | None = None,
) -> Evidence:
    """Return what the file says about its tensors, also by the order and state of its
    optimizers.

    `model` is a live model. Raises UsageError when the model does not fit the file.
    """
    match = _record_match(checkpoint, sections, model)
    if checkpoint.declared is not None:
        roles = [Role(*row) for row in checkpoint.declared.roles]  # type: ignore[arg-type]
    else:
        roles = _roles_by_sections(checkpoint, sections)
    if match is not None:
        source, note = _SOURCES[match.record.source]
        for index, row in match.known().items():
            roles[index] = Role(row.role, "certain", source, note)
    optimizers: tuple[Match, ...] = ()
    has_optimizer = any(section.kind == "optimizer" for section in sections)
    if has_optimizer:
        # Here and below: many files hold no optimizer.
        from ckpt.evidence.matching import matches

        sure_buffers = [
            # A likely buffer may be a parameter: the optimizer's order can decide it.
            role.role == "buffer" and role.trust in ("certain", "strong")
            for role in roles
        ]
        optimizers = matches(checkpoint, sections, sure_buffers, _parameters_of(match))
    # The record knows the optimizers by name, so their order is not needed.
    if match is not None and match.record.optimizers:
        from ckpt.evidence.matching import recorded

        several = len(match.record.optimizers) > 1
        for optimizer in match.record.optimizers:
            name = optimizer.cls.rpartition(".")[2] if several else ""
            optimizers += (recorded(optimizer, name, match.section, match.indices),)
    for optimizer_match in optimizers:
        _use_optimizer(roles, optimizer_match)
    held = _in_optimizer(checkpoint, optimizers)
    if optimizers:
        for index, role in enumerate(roles):
            # Certain and strong roles need no hint of the optimizer.
            if held[index] is False and role.trust in ("likely", "none"):
                roles[index] = role._replace(
                    note=f"{role.note}; not in the optimizer, so a buffer or frozen"
                )
    return Evidence(roles, optimizers, match, held)


def _use_optimizer(roles: list[Role], match: Match) -> None:
    """Make parameters of the tensors that an optimizer holds, where nothing else says
    more.
    """
    for number, index in enumerate(match.indices):
        if index is None or roles[index].trust not in ("likely", "none"):
            continue
        trust: Trust
        if match.by_name:
            trust = "certain"
        elif _is_decided(match, number):
            trust = "strong"
        else:
            trust = "likely"
        name = match.optimizer.name or "the optimizer"
        note = f"parameter {number} of {name}"
        roles[index] = Role("parameter", trust, "optimizer", note)


def _parameters_of(
    match: RecordMatch | None,
) -> tuple[Path, list[int], list[int]] | None:
    """The section of a live model, its parameters in the order of the model, and those
    that require a gradient.
    """
    # A snapshot records its optimizers itself; a live model only has parameters.
    if match is None or match.record.source != "model":
        return None
    record = match.record
    parameters: list[int] = []
    trained: list[int] = []
    for name in record.parameters:
        index = match.indices.get(name)
        if index is None:
            continue
        parameters.append(index)
        if record.tensors[name].requires_grad:
            trained.append(index)
    return match.section.path, parameters, trained


def _is_decided(match: Match, number: int) -> bool:
    """Tell whether more than a place in the order says which tensor a parameter of an
    optimizer is.
    """
    return match.exact or match.by_name or match.slots[number].shape is not None


def _in_optimizer(
    checkpoint: Checkpoint, matches: tuple[Match, ...]
) -> list[bool | None]:
    """Tell for each tensor whether an optimizer in this file holds it, or a tensor that
    is tied to it.

    None means open: outside of the models that the optimizers hold, and in a model of
    which an optimizer may hold another tensor: while any parameter of one that holds
    some of it is unknown.
    """
    held: list[bool | None] = [None] * len(checkpoint.tensors)
    decided: set[int] = set()
    for match in matches:
        for number, index in enumerate(match.indices):
            if index is not None and _is_decided(match, number):
                decided.add(index)
    # An optimizer of no known model may hold tensors of any.
    is_told = all(match.models for match in matches if match.slots)
    open_models: set[Path] = set()
    for match in matches:
        if any(index not in decided for index in match.indices):
            open_models.update(model.path for model in match.models)
    views: set[object] = set()
    for index in decided:
        tensor = checkpoint.tensors[index].tensor
        # Empty tensors share a view with all others at their place.
        if isinstance(tensor, TensorRef) and tensor.numel:
            views.add(tensor.view)
    for match in matches:
        if not match.slots:
            continue
        for model in match.models:
            is_closed = is_told and model.path not in open_models
            for index in model.indices:
                tensor = checkpoint.tensors[index].tensor
                if index in decided or _shows_one_of(tensor, views):
                    held[index] = True
                elif is_closed and held[index] is None:
                    held[index] = False
    return held


def _shows_one_of(tensor: Tensor, views: Set[object]) -> bool:
    """Tell whether a tensor shows the same memory as one of these views."""
    return isinstance(tensor, TensorRef) and tensor.numel > 0 and tensor.view in views


_SOURCES = {
    "snapshot": ("snapshot", "recorded by ckpt.snapshot"),
    "model": ("model", "built by --model"),
}


def _record_match(
    checkpoint: Checkpoint, sections: tuple[Section, ...], model: ModelRecord | None
) -> RecordMatch | None:
    """Return the record of the file when it is a snapshot, else of the live model, with
    its section.
    """
    own = record_of(checkpoint)
    record = own or model  # a snapshot records everything that its model says
    if record is None:
        return None
    best: RecordMatch | None = None
    for section in sections:
        if section.kind not in ("model", "ema", "other"):
            continue
        # A snapshot has its tensors here: it says nothing about other sections.
        if own is not None and section.path != (STATE_DICT,):
            continue
        names = section.names()
        # The rules from the mildest to the boldest: on a tie the milder one stays.
        rules: tuple[Callable[[str], str], ...] = (
            str,
            unwrapped_name,
            unwrapping_rule(names, every=True),
        )
        for rule in rules:
            own_indices = {
                rule(name): section.first + number for number, name in enumerate(names)
            }
            indices = {
                name: own_indices[name]
                for name in record.tensors
                if name in own_indices
            }
            if best is None or len(indices) > len(best.indices):
                best = RecordMatch(record, section, indices)
    if own is None and model is not None:
        _refuse_another_model(checkpoint, model, best)
    # A snapshot does not record shapes.
    if best is not None and record.source == "model":
        _refuse_other_shapes(checkpoint, best)
    return best


def _refuse_another_model(
    checkpoint: Checkpoint, model: ModelRecord, best: RecordMatch | None
) -> None:
    """Raise UsageError where a file has less than half of the tensors of a live
    model.
    """
    indices = {} if best is None else best.indices
    if best is not None and 2 * len(indices) >= len(model.tensors):
        return
    lost = next((name for name in model.tensors if name not in indices), "")
    raise UsageError(
        f"not the model that --model builds: the file has {len(indices):,} of its "
        f"{len(model.tensors):,} tensors and lacks {show(lost, 80)}",
        path=checkpoint.path,
    )


def _refuse_other_shapes(checkpoint: Checkpoint, match: RecordMatch) -> None:
    """Raise UsageError where a tensor has another shape in the file than in a live
    model.
    """
    for name, index in match.indices.items():
        shape = checkpoint.tensors[index].tensor.shape
        if shape != match.record.shapes.get(name, shape):
            raise UsageError(
                f"not the model that --model builds: {show(name, 80)} has shape "
                f"{list(shape)} in the file and {list(match.record.shapes[name])} in "
                "the model",
                path=checkpoint.path,
                hint="--arg K=V",
            )


def _roles_by_sections(
    checkpoint: Checkpoint, sections: tuple[Section, ...]
) -> list[Role]:
    """The role of each tensor by the kind of its section, its name and its siblings,
    and by what the format itself says.
    """
    roles = [_OTHER] * len(checkpoint.tensors)
    named = _optimizer_names(sections)
    for section in sections:
        last = section.first + section.tensors
        if section.kind == "optimizer":
            depth = len(section.path)
            roles[section.first : last] = [
                _HANDED if _is_handed(entry.path[depth:]) else _STATE
                for entry in section.entries
            ]
        elif section.kind in ("model", "ema"):
            roles[section.first : last] = _model_roles(section, named)
    index = 0
    for part in row_parts(checkpoint.tensors):
        if isinstance(part, Entries):
            # The format says nothing about what lies in columns, so no entry is made.
            index += len(part)
            continue
        for entry in part:
            if entry.source is not None and roles[index].role != "optimizer":
                roles[index] = _format_role(entry.kind, entry.source)
            index += 1
    return roles


def _is_handed(path: Path) -> bool:
    """Tell whether a tensor in an optimizer is a parameter that its group holds, and no
    option such as a learning rate.
    """
    return path[:1] == ("param_groups",) and path[2:3] == ("params",)


def _format_role(kind: str | None, source: str) -> Role:
    """The role that the format itself gives. One that tells all parameters and buffers
    names the others too.
    """
    if kind is None:
        return Role(
            "other",
            "certain",
            source,
            "neither a parameter nor a buffer of the program in this file",
        )
    return Role(
        "parameter" if kind == "parameter" else "buffer",
        "certain",
        source,
        _CERTAIN[source],
    )


def _model_roles(section: Section, named: frozenset[str]) -> list[Role]:
    """The roles of the tensors of a model. `named` are the names that an optimizer
    gives its parameters.
    """
    names = section.names()
    tensors = looks_of(section.entries)
    looks = _look_numbers(tensors)
    # Names hardly ever come back to a layer, and a list for each of a million layers
    # takes as much memory as their names.
    first_blocks: dict[str, Block] = {}
    later_blocks: dict[str, list[Block]] = {}
    for block in name_blocks(names):
        if first_blocks.setdefault(block.begin, block) is not block:
            later_blocks.setdefault(block.begin, []).append(block)
    # A model repeats its layers: one that is alike inside has the roles of the one
    # before.
    known_layers: dict[tuple[object, ...], list[Role]] = {}
    roles = [_UNKNOWN] * len(names)
    all_names = "\n".join(names)
    told = {word for word in _TOLD_BY_PARENT if word in all_names}
    for begin, first_block in first_blocks.items():
        _, first, last = first_block
        inside = [name[len(begin) :] for name in names[first:last]]
        inside_looks = looks[first:last]
        later = later_blocks.get(begin, ())
        for _, later_first, later_last in later:
            inside += [name[len(begin) :] for name in names[later_first:later_last]]
            inside_looks += looks[later_first:later_last]
        # Texts, numbers and texts again: no two layers that differ have one key.
        told_by_parent = told.intersection(begin.split(".")) if told else told
        key = (*inside, *inside_looks, *told_by_parent)
        layer = known_layers.get(key)
        if layer is None:
            inside_tensors = list(tensors[first:last])
            for _, later_first, later_last in later:
                inside_tensors += tensors[later_first:later_last]
            layer = _layer_roles(begin, inside, inside_tensors)
            known_layers[key] = layer
        position = last - first
        roles[first:last] = layer[:position]
        for _, later_first, later_last in later:
            end = position + later_last - later_first
            roles[later_first:later_last] = layer[position:end]
            position = end
    if named:
        for position, name in enumerate(names):
            # The optimizer may have been given the names inside of DDP.
            if name in named or name.removeprefix("module.") in named:
                roles[position] = _NAMED
    return roles


def _look_numbers(tensors: Sequence[Tensor]) -> list[int]:
    """A number for each tensor, equal where dtype and shape are: cheaper to compare
    than these.
    """
    numbers: dict[tuple[object, ...], int] = {}
    number_of: dict[Tensor, int] = {}
    for tensor in dict.fromkeys(tensors):
        look = (tensor.dtype.name, tensor.shape, not tensor.numel)
        number_of[tensor] = numbers.setdefault(look, len(numbers))
    return [number_of[tensor] for tensor in tensors]


def _numbers_with_prefix(
    names: Sequence[str], begin: str, number: int
) -> Sequence[int]:
    """Return the numbers of the names that begin with `begin`, as the name `number`
    does.

    They are neighbours, as a rule.
    """
    first, last = number, number + 1
    while first and names[first - 1].startswith(begin):
        first -= 1
    while last < len(names) and names[last].startswith(begin):
        last += 1
    # As many in the whole text as in the run: no further name begins so.
    if "\n".join(["", *names]).count(f"\n{begin}") == last - first:
        return range(first, last)
    return [index for index, name in enumerate(names) if name.startswith(begin)]


def role_alone(section: Section, number: int) -> Role:
    """The role of the tensor `number` of a section, in a file without optimizers and
    records: its layer decides.
    """
    entry = section.entries[number]
    if entry.source is not None:
        return _format_role(entry.kind, entry.source)
    if section.kind not in ("model", "ema"):
        return _OTHER
    names = section.names()
    begin = next(block.begin for block in name_blocks([names[number]]))
    if not begin:
        # Every name begins with an empty text: the layer would be the whole model.
        return _model_roles(section, frozenset())[number]
    layer = _numbers_with_prefix(names, begin, number)
    tensors = looks_of(section.entries)
    inside = [names[index][len(begin) :] for index in layer]
    roles = _layer_roles(begin, inside, [tensors[index] for index in layer])
    return roles[layer.index(number)]


def _layer_roles(
    begin: str, names: Sequence[str], tensors: Sequence[Tensor]
) -> list[Role]:
    """The roles of the tensors whose names go on with `names` behind `begin`."""
    siblings: dict[str, list[str]] = {}
    for name in names:
        parent, _, leaf = name.rpartition(".")
        siblings.setdefault(parent, []).append(leaf)
    # `x.alpha` is a sibling of `x.lora_down.weight`, one level below.
    for parent in list(siblings):
        if parent.endswith(".lora_down"):
            layer = parent.removesuffix(".lora_down")
            siblings.setdefault(layer, []).append("lora_down")
    beside = {parent: frozenset(leaves) for parent, leaves in siblings.items()}
    roles: list[Role] = []
    for name, tensor in zip(names, tensors, strict=True):
        parent, _, leaf = name.rpartition(".")
        roles.append(_role_in_layer(tensor, begin + parent, leaf, beside[parent]))
    return roles


def _role_in_layer(tensor: Tensor, parent: str, leaf: str, beside: Set[str]) -> Role:
    """The role of a tensor by the strongest evidence: what stands beside it, its
    dtype, its name. `beside` has the last parts of all names below `parent`.
    """
    role = _role_by_siblings(tensor, parent, leaf, beside)
    if role is not None:
        return role
    kind = tensor.dtype.kind
    if kind in ("int", "bool") and leaf not in _QUANTIZED_NAMES:
        # Narrow integers may be the packed weights of a quantized model.
        trust: Trust = "strong" if tensor.dtype.name in ("int64", "bool") else "likely"
        return Role("buffer", trust, "dtype", f"{tensor.dtype.name} takes no gradient")
    return _role_by_name(tensor, parent, leaf, beside)


def _role_by_siblings(
    tensor: Tensor, parent: str, leaf: str, beside: Set[str]
) -> Role | None:
    """The role that the names beside a tensor show: strong evidence; or None."""
    if {"running_mean", "running_var"} <= beside:
        if leaf in _BATCH_NORM:
            return Role(
                "buffer", "strong", "batchnorm", "statistics of a normalization layer"
            )
        if leaf in ("weight", "bias"):
            if "num_batches_tracked" in beside:
                return Role(
                    "parameter",
                    "strong",
                    "batchnorm",
                    "beside the statistics of a normalization layer",
                )
            return _FROZEN_NORM
    if "parametrizations" in parent.split("."):
        if leaf.startswith("original"):
            return Role(
                "parameter",
                "strong",
                "parametrization",
                "the original of a parametrization",
            )
        if leaf in ("_u", "_v"):
            return Role(
                "buffer", "strong", "spectral_norm", "a vector of spectral_norm"
            )
    # spectral_norm comes first: it has `weight_v` too, and there it is a buffer.
    for base in ("weight", "bias"):
        if f"{base}_orig" in beside and leaf in (f"{base}_u", f"{base}_v"):
            return Role("buffer", "strong", "spectral_norm", f"beside {base}_orig")
        if {f"{base}_g", f"{base}_v"} <= beside and leaf in (f"{base}_g", f"{base}_v"):
            return Role(
                "parameter", "strong", "weight_norm", f"{base}_g beside {base}_v"
            )
    if extra_kind(leaf, tensor, beside) in ("thop", "torchstat"):
        return Role(
            "buffer", "strong", "profiler", "a counter that a profiler registered"
        )
    return None


def _role_by_name(tensor: Tensor, parent: str, leaf: str, beside: Set[str]) -> Role:
    """The role that a tensor usually has by its name: likely, or unknown."""
    kind = tensor.dtype.kind
    is_adapted = not _ADAPTED.isdisjoint(beside)
    if leaf == "alpha" and not tensor.shape and is_adapted:
        return Role("buffer", "likely", "name", "the scale of an adapter's layer")
    if leaf.startswith(_ADAPTERS) or (leaf == "dora_scale" and is_adapted):
        return Role("parameter", "likely", "name", f"{leaf} is usually a parameter")
    if leaf in _LIKELY_BUFFERS:
        return Role("buffer", "likely", "name", f"{leaf} is usually a buffer")
    is_outside = not _OUTSIDE.isdisjoint(parent.split("."))
    is_usual = kind in ("float", "complex") and _PARAMETERS.fullmatch(leaf) is not None
    if is_outside or not is_usual:
        if kind == "float" and re.search(_BUFFERS, f"{parent}.{leaf}"):
            return Role("buffer", "likely", "name", f"{leaf} is usually a buffer")
        return _UNKNOWN
    if f"{leaf}_orig" in beside:
        return Role(
            "buffer", "likely", "name", f"beside {leaf}_orig, from which it is computed"
        )
    if leaf == "bias" and is_mask(tensor.shape):
        return Role(
            "buffer", "likely", "name", "a bias of this shape is usually a causal mask"
        )
    # An FP8 weight is a Parameter everywhere, also beside its scale.
    is_packed = not _PACKED.isdisjoint(beside) and tensor.dtype.bits > 8
    if is_packed or not tensor.numel:
        # e3nn registers an empty buffer where a layer has no weight or bias
        return _UNKNOWN
    return Role("parameter", "likely", "name", f"{leaf} is usually a parameter")


def _optimizer_names(sections: tuple[Section, ...]) -> frozenset[str]:
    """Names of parameters in optimizers: `param_names` (torch 2.6), or the keys of the
    state (FSDP).
    """
    optimizers = [section for section in sections if section.kind == "optimizer"]
    if not optimizers:
        return frozenset()
    from ckpt.evidence.optimizers import parts_of

    names: set[str] = set()
    for section in optimizers:
        parts = parts_of(section.node)
        state = parts.get("state")
        if state is not None:
            for key, _ in children_of(state):
                # torch numbers its states, FSDP names them by their paths.
                if isinstance(key, str) and "." in key:
                    names.add(key)
        for _, group in children_of(parts.get("param_groups")):
            fields = dict(children_of(group))
            for field in ("param_names", "params"):
                if look(fields.get(field)).kind == "sequence":
                    for _, name in children_of(fields[field]):
                        if isinstance(name, str):
                            names.add(str(name))
    return frozenset(names)

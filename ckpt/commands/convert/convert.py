"""`ckpt convert`: the same content in another format, in plain classes, in another
dtype, in repaired text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ckpt.commands.convert.optimizers import keys_of, with_optimizers
from ckpt.commands.convert.plain import Plain
from ckpt.commands.rewriting.edited import edited_checkpoint, storages_of, with_ties
from ckpt.commands.rewriting.names import ATTRIBUTE, attributes_left, not_selected
from ckpt.commands.rewriting.report import (
    Change,
    Leftover,
    RewriteReport,
    keys_beside,
    losses_of,
    made_plain,
    make_with_drop_hint,
    refuse_empty,
    refuse_pieces,
    rest_of,
    uninitialized_leftovers,
    weightless_leftovers,
    weights_of,
    without_documents,
)
from ckpt.commands.rewriting.sets import (
    refuse_incomplete,
    refuse_ranks,
    with_flattening,
)
from ckpt.commands.slim.slim import slim
from ckpt.elements.cast import CASTS, is_castable
from ckpt.elements.computed import Computed, place_of
from ckpt.elements.unpacked import can_unpack, unpacked
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.weights import refuse_scaled
from ckpt.hooks import find_hook
from ckpt.model.checkpoint import Checkpoint, Entry, Traits
from ckpt.model.dtypes import BY_NAME, DType, contiguous
from ckpt.model.errors import LossError, UsageError, about
from ckpt.model.limits import Limits
from ckpt.model.names import Globs, NamedKey, dotted_name
from ckpt.model.nodes import (
    ByteStr,
    Dict,
    Global,
    Node,
    Opaque,
    PersistentId,
    dict_of,
    is_tuple,
)
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import (
    Storage,
    Tensor,
    TensorRef,
    blocks_in,
    parts_of,
    tensor_ref,
)
from ckpt.model.text import and_more, counted_noun, show, show_name
from ckpt.pickle.edit import Edit
from ckpt.tree.arrays import as_bytes
from ckpt.tree.find import (
    METADATA,
    REGISTERED,
    aliases_to_note,
    children_of,
    is_metadata,
    metadata_of,
    with_metadata,
)
from ckpt.tree.quantized import is_quantized
from ckpt.tree.scalars import class_of

ENCODINGS = ("latin1", "utf-8", "ascii", "cp1252")


class Decode(Edit):
    """The byte strings of Python 2 as text, but for those that hold data."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding
        self._texts: dict[int, str] = {}
        self.decoded = 0

    def leaf(self, node: Node) -> Node:
        return self._decoded(node) if type(node) is ByteStr else node

    def keys(self, node: Dict | Opaque, keys: Sequence[Node]) -> Sequence[Node]:
        return [self.leaf(key) for key in keys]

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        name = class_of(call)
        data_index = None
        if name.startswith(("numpy.", "datetime.")):
            data_index = _DATA_ARGUMENTS.get(name.rpartition(".")[2])
        # The bytes of an array or a date stay bytes; any other argument is a text.
        args: list[Node] = []
        for index, arg in enumerate(call.args):
            is_data = index == data_index and type(arg) is ByteStr
            args.append(as_bytes(arg) if is_data else self.leaf(arg))
        return tuple(args)

    def state(self, call: Opaque, state: Node) -> Node:
        # (version, shape, dtype, order, data): Python 2 pickles the data as `str`.
        if class_of(call).endswith(".multiarray._reconstruct") and is_tuple(state):
            return tuple(
                [as_bytes(item) if type(item) is ByteStr else item for item in state]
            )
        return state

    def _decoded(self, node: ByteStr) -> str:
        # By its id: a text that the pickle shares stays one object.
        if id(node) not in self._texts:
            try:
                self._texts[id(node)] = node.raw.decode(self._encoding)
            except UnicodeDecodeError:
                raise UsageError(
                    f"a text is not {self._encoding}: {show(str(node), 60)}",
                    hint="--encoding latin1 takes any",
                ) from None
            # ASCII reads the same in all encodings, so it does not count as changed.
            self.decoded += not node.isascii()
        return self._texts[id(node)]


_DATA_ARGUMENTS = {"scalar": 1, "_reconstruct": 2, "datetime": 0, "date": 0, "time": 0}
"""Functions of numpy and datetime, and which of their arguments is bytes: Python 2 has
one type for those and for texts.
"""

_SHORT = {
    **dict.fromkeys(("bf16", "bfloat", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half", "float16"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single", "float32"), "float32"),
}
"""Other names of the dtypes of `--dtype`."""


def dtype_of(name: str | None) -> DType | None:
    """The dtype that `--dtype` names. Raises UsageError for one that is not cast to."""
    if name is None:
        return None
    if name not in CASTS:
        meant = _SHORT.get(name.lower().removeprefix("torch."))
        hint = f"did you mean {meant}?" if meant else None
        raise UsageError(
            f"--dtype {show(name, 40)}: not one of {' '.join(CASTS)}", hint=hint
        )
    return BY_NAME[name]


def uncastable_reason(tensor: Tensor) -> str | None:
    """Return why a floating tensor keeps its dtype: its layout, its dtype, or no data;
    else None.
    """
    if not isinstance(tensor, TensorRef):
        return tensor.layout
    if tensor.dtype.kind in ("float", "quantized") and not is_castable(tensor.dtype):
        return tensor.dtype.name
    if tensor.dtype.block is not None and not can_unpack(tensor):
        return tensor.dtype.name
    return "on meta, without data" if tensor.storage.place is None else None


_SCALES = "a scale, or what belongs to one"


def _kept_as_it_is(entry: Entry, to: DType, scales: frozenset[str]) -> str | None:
    """Return why a floating tensor is not cast, or None."""
    if entry.name in scales and entry.tensor.dtype.kind == "float":
        return _SCALES if entry.tensor.dtype != to else None
    return uncastable_reason(entry.tensor)


class CastRefs:
    """Tensors in another dtype, each range of a storage once."""

    def __init__(self, to: DType | None) -> None:
        self._to = to
        self._made: dict[tuple[object, ...], TensorRef] = {}
        self.counts: Counter[str] = Counter()
        """The number of tensors that were cast from each dtype."""

    def ref(self, tensor: object) -> TensorRef:
        assert isinstance(tensor, TensorRef)
        to = self._to
        if to is None or tensor.dtype == to or not is_castable(tensor.dtype):
            return tensor
        # Tied tensors get one storage again.
        if tensor.view not in self._made:
            self.counts[tensor.dtype.name] += 1
            storage = Storage(
                "", tensor.device, to, to.nbytes(tensor.numel), place_of(tensor, to)
            )
            ref = tensor_ref(
                storage,
                to,
                tensor.shape,
                contiguous(tensor.shape),
                0,
                tensor.requires_grad,
            )
            self._made[tensor.view] = ref
        return self._made[tensor.view]._replace(
            is_parameter=tensor.is_parameter, requires_grad=tensor.requires_grad
        )

    def changes(self, unit: str = "tensor") -> list[Change]:
        to = self._to.name if self._to else ""
        # The most common dtype first: the order of a copy is not that of the file.
        most = sorted(self.counts.items(), key=lambda row: (-row[1], row[0]))
        return [Change("dtype", name, to, count, unit) for name, count in most]


class Cast(Edit):
    """Storages of models in another dtype. Views and ties stay what they are.

    `uncast` are the tensors that keep their dtype, and why: sparse and quantized ones,
    and tensors that have no data, a dtype that is not cast from, or a storage with
    several dtypes.
    """

    def __init__(
        self,
        survey: Survey,
        to: DType,
        section: str | None,
        scales: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        scales |= scales_of(survey, None)
        self._to = to
        self._refs = CastRefs(to)
        self._made: dict[Storage, Storage] = {}
        self.uncast: list[tuple[Entry, str]] = []
        # Bytes that are seen as two dtypes cannot be cast for one of them.
        dtypes: dict[Storage, set[DType]] = {}
        for entry in survey.tensors:
            for part in parts_of(entry.tensor):
                dtypes.setdefault(part.storage, set()).add(part.dtype)
        self._chosen: dict[Storage, DType] = {}
        for chosen in survey.weights(section):
            for entry in chosen.entries:
                tensor = entry.tensor
                if tensor.dtype.kind not in ("float", "quantized"):
                    continue
                if tensor.dtype == to:
                    continue
                why = _kept_as_it_is(entry, to, scales)
                if why is None and isinstance(tensor, TensorRef):
                    if len(dtypes[tensor.storage]) == 1:
                        self._chosen[tensor.storage] = tensor.dtype
                        continue
                    why = "a view of a storage of several dtypes"
                self.uncast.append((entry, why or ""))

    def storage(self, storage: Storage) -> Storage:
        # One copy for all that look into a storage: ties stay ties.
        copy = self._made.get(storage)
        if copy is None:
            copy = self._made[storage] = self._cast_storage(storage)
        return copy

    def _cast_storage(self, storage: Storage) -> Storage:
        dtype = self._chosen.get(storage)
        if dtype is None:
            return storage
        self._refs.counts[dtype.name] += 1
        # All elements of the storage in a row, also those that no view sees.
        whole = tensor_ref(storage, dtype, (dtype.numel(storage.nbytes),), (1,), 0)
        place = Computed(whole, self._to)
        return storage._replace(
            dtype=self._to, nbytes=place.nbytes, place=place, crc=None
        )

    def instead(self, node: Node) -> Node | None:
        # A call that names its dtype becomes one whose storage says it.
        # The dtype is the seventh of the arguments of `_rebuild_tensor_v3`.
        if type(node) is not Opaque or not isinstance(node.meaning, TensorRef):
            return None
        if type(node.func) is not Global:
            return None
        typed = self._args_without_dtype(node.func, node.args)
        if typed is None:
            return None
        return self.shell_of(Opaque(node.how, _V2, typed, None, node.offset), node)

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        func, args = call.func, call.args
        if type(func) is not Global or func.name != "_rebuild_from_type_v2":
            return args
        # (function, class, arguments of the function, state).
        typed = None
        if is_tuple(args[2]):
            typed = self._args_without_dtype(args[0], args[2])
        return args if typed is None else (_V2, args[1], typed, *args[3:])

    def _args_without_dtype(
        self, func: Node, args: tuple[Node, ...]
    ) -> tuple[Node, ...] | None:
        """The arguments of `_rebuild_tensor_v3` without the dtype, when its storage is
        cast.
        """
        if type(func) is not Global or func.name != "_rebuild_tensor_v3":
            return None
        # torch writes dtypes that have no class of storages so, over untyped ones. What
        # is cast to has such a class.
        storage = args[0].meaning if type(args[0]) is PersistentId else None
        if type(storage) is not Storage or self.storage(storage) is storage:
            return None
        return (*args[:6], *args[7:])

    def changes(self) -> list[Change]:
        return self._refs.changes("storage")


_V2 = Global("torch._utils", "_rebuild_tensor_v2")


Unfit = Callable[[Entry], str | None]
WEIGHTS = ("fp32", "module")
"""The weights of DeepSpeed: those that its optimizer keeps, and those that the model
computes with.
"""


def convert(
    survey: Survey,
    format: str,
    traits: Traits,
    limits: Limits,
    unfit: Unfit,
    *,
    plain: bool = False,
    dtype: str | None = None,
    encoding: str | None = None,
    section: str | None = None,
    select: Globs | None = None,
    weights: str | None = None,
    drop_other: bool = False,
    optimizer_keys: str | None = None,
    complete_optimizer: bool = False,
) -> RewriteReport:
    """The checkpoint as `format`, which has these traits, holds it.

    A format that is not a pickle gets the only model, or `section`, under its own
    names; `unfit` says why it cannot hold a tensor. So does a folder where `section` or
    `select` ask for a part. `dtype` casts the floating tensors of models, `encoding`
    reads texts of Python 2. `weights` is `fp32` or `module` where a checkpoint holds
    both. `optimizer_keys` and `complete_optimizer` change optimizers, as
    `with_optimizers` does. Raises UsageError, and LossError for what the format or
    plain classes cannot say, unless it may be dropped.
    """
    # Names for who loads a training into a DCP; what is one already keeps its keys.
    keys = keys_of(
        optimizer_keys,
        is_folder=traits.is_folder and not survey.checkpoint.traits.is_folder,
    )
    if not traits.is_pickle and (optimizer_keys is not None or complete_optimizer):
        option = "--complete-optimizer" if complete_optimizer else "--optimizer-keys"
        raise UsageError(
            f"{option}: {traits.label} holds no optimizer", path=survey.path
        )
    if survey.model is not None and keys == "numbers":
        raise UsageError(
            "--model says the order of the parameters", hint="--optimizer-keys order"
        )
    if encoding is not None and encoding not in ENCODINGS:
        raise UsageError(
            f"--encoding {show(encoding, 40)}: not one of {' '.join(ENCODINGS)}"
        )
    refuse_ranks(survey.checkpoint, section)
    refuse_incomplete(survey.checkpoint, weights or section, "--weights")
    survey, section = _chosen_weights(survey, weights, section, traits, limits)
    if dtype is not None:
        _refuse_codes(survey, section, select, traits, limits)
    # A folder of which a part is asked for: `slim` takes the part, then it is
    # converted.
    if traits.is_folder and (section is not None or select):
        if optimizer_keys is not None or complete_optimizer:
            option = (
                "--complete-optimizer" if complete_optimizer else "--optimizer-keys"
            )
            raise UsageError(
                f"{option} goes with the whole checkpoint, which holds the optimizer",
                path=survey.path,
            )
        part = slim(
            survey, limits, section=section, select=select, drop_other=drop_other
        )
        request = _Asked(format, traits, plain, dtype_of(dtype), encoding, None, None)
        scales = scales_of(survey, section)
        whole = make_with_drop_hint(
            lambda drop: _convert_survey(
                Survey(part.result), request, limits, unfit, drop, scales
            ),
            drop_other,
        )
        return whole._replace(
            source=survey.checkpoint,
            changes=(*part.changes, *whole.changes),
            left_out=(*part.left_out, *whole.left_out),
        )
    request = _Asked(format, traits, plain, dtype_of(dtype), encoding, section, select)
    report = make_with_drop_hint(
        lambda drop: _convert_survey(survey, request, limits, unfit, drop), drop_other
    )
    return with_optimizers(
        report, keys, limits, complete=complete_optimizer, model=survey.model
    )


def _chosen_weights(
    survey: Survey,
    weights: str | None,
    section: str | None,
    traits: Traits,
    limits: Limits,
) -> tuple[Survey, str | None]:
    """The checkpoint with the weights that were asked for as its model, and the section
    to take.
    """
    if weights is None:
        return survey, section
    if weights not in WEIGHTS:
        raise UsageError(
            f"--weights {show(weights, 40)}: not one of {' '.join(WEIGHTS)}"
        )
    checkpoint = survey.checkpoint
    if weights not in checkpoint.copies:
        if weights != WEIGHTS[0]:
            raise UsageError(
                f"holds no weights of its {weights} beside those in fp32",
                path=checkpoint.path,
            )
        return survey, section
    if not traits.is_pickle:
        return survey, weights
    nodes = dict(children_of(checkpoint.root))
    # The pickle keeps both, each below the key of the other.
    swapped = {"model": nodes[weights], weights: nodes["model"]}
    root = dict_of((key, swapped.get(str(key), child)) for key, child in nodes.items())
    return Survey(edited_checkpoint(checkpoint, root, limits), survey.model), section


class _Asked(NamedTuple):
    """The options for the result of a conversion."""

    format: str
    traits: Traits
    plain: bool
    to: DType | None
    encoding: str | None
    section: str | None
    select: Globs | None


def _refuse_codes(
    survey: Survey,
    section: str | None,
    select: Globs | None,
    traits: Traits,
    limits: Limits,
) -> None:
    """Raise UsageError where tensors that would be cast hold codes: without their
    scales they are other weights.
    """
    if not (survey.scaled.codes or survey.scaled.unpaired):
        return
    # A pickle is cast as a whole, anything else gets one section.
    is_whole = (
        traits.is_pickle and not survey.checkpoint.traits.names_are_code and not select
    )
    chosen = survey.weights(section) if is_whole else [survey.only_model(section)]
    names: list[str] = []
    for part in chosen:
        names += [entry.name for entry in part.selected(select, survey.path)]
    try:
        refuse_scaled(survey, names, "--dtype")
    except UsageError as error:
        quantised = find_hook("quantised")
        if quantised is not None:
            found = quantised.find_logical(survey.checkpoint, limits, for_values=True)
            if found.logical:
                error.hint = f"--dequantize makes values of them; {error.hint}"
        raise


def scales_of(survey: Survey, section: str | None) -> frozenset[str]:
    """The names of the tensors that scale others or belong to them, in the file and
    inside of a section.
    """
    beside = survey.scaled.beside
    names = {survey.tensors[index].name for index in beside}
    # A section that is written alone has the names without its own.
    depth = 0
    if beside and section is not None:
        # The name of the section, and the dot behind it.
        depth = len(survey.only_model(section).name) + 1
    return frozenset(names | {name[depth:] for name in names})


def _convert_survey(
    survey: Survey,
    request: _Asked,
    limits: Limits,
    unfit: Unfit,
    drop_other: bool,
    scales: frozenset[str] = frozenset(),
) -> RewriteReport:
    format = request.format
    traits = request.traits
    plain = request.plain
    to = request.to
    encoding = request.encoding
    section = request.section
    select = request.select
    with about(survey.path):
        _refuse_blocks(survey.checkpoint, traits, to)
    if select and traits.is_pickle:
        raise UsageError(
            (
                f"--include and --exclude go with tensors alone; {traits.label} holds "
                "the whole checkpoint"
            ),
            path=survey.path,
            hint="ckpt slim takes them",
        )
    is_program = survey.checkpoint.traits.names_are_code
    if section is not None and traits.is_pickle and to is None and not is_program:
        raise UsageError(
            (
                f"--section chooses what --dtype casts; {traits.label} holds the whole "
                "checkpoint"
            ),
            path=survey.path,
            way=("slim", "--section", section),
        )
    changes: list[Change] = []
    dropped: list[Leftover] = []
    checkpoint = survey.checkpoint
    current = with_ties(survey, limits).checkpoint
    if traits.is_pickle:
        current, leftovers = without_documents(current, limits)
        dropped += leftovers
    if current.traits.names_are_code and traits.is_pickle:
        current, leftovers = _script_weights(current, limits, section)
        dropped += leftovers
    if encoding is not None and not plain:
        decode = Decode(encoding)
        current = edited_checkpoint(
            current, decode.copy(current.root), limits, origin=None
        )
        changes.append(Change("text", "Python 2", encoding, decode.decoded, "text"))
    # Tensors in parts are taken apart where a format holds dense ones alone. A program
    # gives nothing but dense tensors.
    apart = False
    if not traits.is_pickle and not current.traits.names_are_code:
        apart = plain or _holds_apart(current, section)
    was_module = False
    if apart or (plain and traits.is_pickle):
        edit = Plain(encoding, dense=apart)
        if apart:
            whole = Survey(current).only_model(section)
            was_module = whole.is_module
            dropped += weightless_leftovers(current, whole)
        current = edited_checkpoint(
            current, edit.copy(current.root), limits, origin=None
        )
        if plain:
            dropped += losses_of(checkpoint, edit, edit.lost, drop_other)
        if traits.is_pickle and not checkpoint.traits.names_are_code:
            # The others take one section, and name what lies beside it.
            for part in survey.sections:
                dropped += weightless_leftovers(checkpoint, part)
        changes += [
            change for change in made_plain(edit) if plain or change.kind == "apart"
        ]
        if edit.lost and plain:
            what = "what cannot be made plain"
            changes.append(Change("dropped", what, "None", len(edit.lost), "object"))
    if not traits.is_pickle:
        result = Result(checkpoint, current, format, traits, was_module)
        return _to_tensors(
            result, unfit, changes, dropped, to, section, select, drop_other
        )
    if not checkpoint.traits.is_pickle:
        current, leftovers = _as_state_dict(current, limits)
        dropped += leftovers
    if current.members and not current.is_edited:
        # With the tables of documents, which a folder does not show.
        current = edited_checkpoint(current, current.root, limits)
    if checkpoint.traits.has_views and not traits.has_views:
        current = _drop_views(current, limits)
    alone: list[Leftover] = []
    if to is not None:
        survey_before = Survey(current)
        cast = Cast(survey_before, to, section, scales)
        current = edited_checkpoint(
            current, cast.copy(current.root), limits, origin=None
        )
        changes += cast.changes()
        alone = [
            *_uncast_leftovers(cast.uncast),
            *_sections_left(survey_before, to, section),
        ]
    return refuse_empty(
        RewriteReport(
            "convert",
            checkpoint,
            current,
            (*_format_change(checkpoint, format, len(current.tensors)), *changes),
            tuple(dropped),
            tuple(alone),
            unchanged_bytes=to is None,
            nothing=f"is {format} already",
        )
    )


def _holds_apart(checkpoint: Checkpoint, section: str | None) -> bool:
    """Tell whether the model has tensors that a dense format holds in parts: quantized
    ones, and wrappers.

    Quantized modules also save numbers as tensors that their pickle has as numbers.
    """
    whole = Survey(checkpoint).only_model(section)
    layouts = {entry.tensor.layout for entry in whole.entries}
    if not layouts.isdisjoint(("quantized", "wrapper", "jagged")):
        return True
    if not whole.is_module:
        return False
    return any(
        is_quantized(value.type) and value.path[: len(whole.path)] == whole.path
        for value in checkpoint.values
    )


def _format_change(checkpoint: Checkpoint, format: str, tensors: int) -> list[Change]:
    before = checkpoint.format
    if before == format:
        is_anew = (
            checkpoint.is_edited
            and checkpoint.not_loadable is not None
            and not checkpoint.parts
        )
        if not is_anew or checkpoint.damage:
            return []
        before = f"{format} that torch refuses"
    return [Change("format", before, format, tensors, "tensor")]


# --- to tensors alone -----------------------------------------------------------------


class Result(NamedTuple):
    """The checkpoint that was read, its current state, and the format of the result.

    `was_module` says that the model was a module before it was taken apart: what it
    holds beside tensors is left out, as the attributes of every module are.
    """

    checkpoint: Checkpoint
    current: Checkpoint
    format: str
    traits: Traits
    was_module: bool = False


def _to_tensors(
    result: Result,
    unfit: Unfit,
    changes: list[Change],
    dropped: list[Leftover],
    to: DType | None,
    section: str | None,
    select: Globs | None,
    drop_other: bool,
) -> RewriteReport:
    checkpoint = result.checkpoint
    current = result.current
    format = result.format
    traits = result.traits
    parts = Survey(current)
    chosen = parts.only_model(section)
    entries: list[Entry] = []
    same: list[Entry] = []
    leftovers = [
        *dropped,
        *rest_of(parts, chosen),
        *weightless_leftovers(current, chosen),
    ]
    if chosen.node is not None:
        leftovers += attributes_left(chosen.node)
    # Tensors that are attributes and not in the state dict cannot be loaded by name.
    picked = chosen.selected(select, checkpoint.path)
    if not chosen.is_module and not current.traits.names_are_code:
        loose = [entry for entry in picked if not entry.registered]
        leftovers += [
            Leftover(entry.name, ATTRIBUTE, entry.tensor.nbytes) for entry in loose
        ]
    wanted = set(map(id, picked))
    leftovers += not_selected(
        [entry for entry in chosen.entries if id(entry) not in wanted]
    )
    for entry in picked:
        # A section that is one tensor.
        name = chosen.relative(entry.name) or chosen.name
        # The mark of two tensors whose keys read as one name.
        if "#" in name and name != chosen.relative(readable_name(entry)):
            same.append(entry)
        if (
            entry.registered
            and entry.persistent
            and (not current.traits.names_are_code or entry.kind)
        ):
            entries.append(
                entry._replace(
                    path=(name,) if _is_text(entry) else entry.path, name=name
                )
            )
    values = [] if chosen.is_module else _values_inside(parts, chosen)
    # The format has one name for both, so that neither is written.
    twice = {chosen.relative(entry.name) for entry in same}
    refused: list[tuple[Entry, str]] = []
    for entry in entries:
        why = "two tensors of one name"
        if entry.name not in twice:
            why = unfit(_decoded(entry, to)) or ""
        if why:
            refused.append((entry, why))
    lost = [Leftover(entry.name, why, entry.tensor.nbytes) for entry, why in refused]
    lazy: dict[str, Leftover] = {}
    if not chosen.is_module:
        lazy = {row.name: row for row in uninitialized_leftovers(current, chosen)}
    rows = [lazy.get(name) or Leftover(name, "not a tensor") for name in values]
    # The attributes of every module are left out; those of a dict are lost.
    if result.was_module:
        leftovers += rows
    else:
        lost += rows
    if lost and not drop_other:
        names = {row.name for row in lost}
        refuse_pieces(
            [
                entry.tensor
                for entry in checkpoint.tensors
                if entry.name in names or chosen.relative(entry.name) in names
            ],
            checkpoint.path,
        )
        listed = and_more(
            [f"{show_name(row.name, 60)} ({row.what})" for row in lost], 5, "; "
        )
        raise LossError(
            f"{traits.label} holds only dense tensors, so {listed} would be lost",
            path=checkpoint.path,
            hint="--drop-other",
        )
    # From here on something may be lost: --drop-other allows it.
    gone = {id(entry) for entry, _ in refused}
    entries = [entry for entry in entries if id(entry) not in gone]
    cast = CastRefs(to)
    scales: frozenset[str] = frozenset()
    uncast: list[tuple[Entry, str]] = []
    if to is not None:
        scales = scales_of(parts, chosen.name if chosen.path else None)
        for entry in entries:
            reason = _kept_as_it_is(entry, to, scales)
            if reason:
                uncast.append((entry, reason))
    entries = [
        entry if entry.name in scales else entry._replace(tensor=cast.ref(entry.tensor))
        for entry in entries
    ]
    root = dict_of((entry.name, entry.tensor) for entry in entries)
    # Texts go along between safetensors; those of another program are its own.
    is_left = checkpoint.traits.is_pickle or checkpoint.traits.has_own_metadata
    metadata = {} if is_left else metadata_of(current.root)
    leftovers += _own_metadata(checkpoint)
    target = Checkpoint(
        path=checkpoint.path,
        format=format,
        traits=traits,
        nbytes=checkpoint.nbytes,
        root=with_metadata(root, metadata),
        tensors=tuple(entries),
        storages=storages_of(entries),
        byteorder=current.byteorder,
        is_edited=True,
    )
    changes += cast.changes()
    untied = len(entries) - len(aliases_to_note(entries))
    return refuse_empty(
        RewriteReport(
            "convert",
            checkpoint,
            target,
            (*_format_change(checkpoint, format, untied), *changes),
            (*leftovers, *lost),
            tuple(_uncast_leftovers(uncast)),
            unchanged_bytes=to is None,
            nothing=f"is {format} already",
        )
    )


def _decoded(entry: Entry, to: DType | None) -> Entry:
    """A tensor as it is written: one in blocks has the dtype that they are
    decoded to.
    """
    tensor = entry.tensor
    if to is None or not isinstance(tensor, TensorRef) or not can_unpack(tensor):
        return entry
    return entry._replace(tensor=tensor._replace(dtype=to))


def _refuse_blocks(checkpoint: Checkpoint, traits: Traits, to: DType | None) -> None:
    """Raise LossError for blocks that the format cannot hold, and UnsupportedError for
    blocks that cannot be decoded.
    """
    blocks = blocks_in(entry.tensor for entry in checkpoint.tensors)
    if blocks and to is None:
        raise LossError(
            f"{traits.label} holds no blocks of {and_more(blocks, 5)}",
            path=checkpoint.path,
            way=("convert", "--dtype", "bfloat16"),
        )
    for entry in checkpoint.tensors:
        for part in parts_of(entry.tensor):
            if part.dtype.block is not None and not can_unpack(part):
                # It raises the error that says why.
                unpacked(part)


def _uncast_leftovers(rows: list[tuple[Entry, str]]) -> list[Leftover]:
    """The tensors that keep their dtype, and why."""
    return [
        Leftover(entry.name, f"{why}, which is not cast", entry.tensor.nbytes)
        for entry, why in rows
    ]


def _sections_left(survey: Survey, to: DType, section: str | None) -> list[Leftover]:
    """The sections beside the weights that hold floating tensors of other dtypes, one
    row each.
    """
    chosen = {part.path for part in survey.weights(section)}
    rows: list[Leftover] = []
    for part in survey.sections:
        if part.path in chosen or part.path[:1] in {
            (key,) for key in survey.checkpoint.copies
        }:
            continue
        floats = [
            entry.tensor for entry in part.entries if entry.tensor.dtype.kind == "float"
        ]
        nbytes = sum(tensor.nbytes for tensor in floats if tensor.dtype != to)
        if nbytes:
            is_optimizer = part.kind == "optimizer"
            why = "not among the weights that are cast"
            if is_optimizer:
                why = "an optimizer keeps its precision"
            rows.append(Leftover(part.name or "(the root)", why, nbytes))
    return rows


def _is_text(entry: Entry) -> bool:
    return not any(isinstance(key, NamedKey) for key in entry.path)


def readable_name(entry: Entry) -> str:
    """The name that the path of a tensor reads as, without a mark."""
    return dotted_name([key for key in entry.path if key not in REGISTERED])


def _values_inside(survey: Survey, section: Section) -> list[str]:
    """The values of a section that are no tensors, by their names; not what safetensors
    say of themselves.
    """
    depth = len(section.path)
    beside = keys_beside(survey, section)
    return [
        value.name
        for value in survey.checkpoint.values
        if value.path[:depth] == section.path
        and not is_metadata(value.path)
        and not (beside and value.path and value.path[0] in beside)
    ]


# --- to pickles -----------------------------------------------------------------------


def _as_state_dict(
    current: Checkpoint, limits: Limits
) -> tuple[Checkpoint, list[Leftover]]:
    """The tensors of safetensors as a plain dict; what their metadata says is
    left out.
    """
    root = with_metadata(current.root, {})
    if current.traits.has_own_metadata:
        return edited_checkpoint(current, root, limits, origin=None), _own_metadata(
            current
        )
    leftovers = [
        Leftover(f"{METADATA}.{name}", repr(text[:60]), is_value=True)
        for name, text in metadata_of(current.root).items()
        if (name, text) != ("format", "pt")
    ]
    return edited_checkpoint(current, root, limits, origin=None), leftovers


def _own_metadata(checkpoint: Checkpoint) -> list[Leftover]:
    """The metadata of another program in one row: no other format holds it."""
    # The same names for a file that is cut off, whose tree is made anew.
    names = [
        value.name.removeprefix(f"{METADATA}.")
        for value in checkpoint.values
        if is_metadata(value.path)
    ]
    if not checkpoint.traits.has_own_metadata or not names:
        return []
    text = (
        f"{counted_noun(len(names), 'value')} of {checkpoint.traits.label}: "
        f"{and_more(names, 3)}"
    )
    return [Leftover(METADATA, show(text, 200), is_value=True)]


def _script_weights(
    current: Checkpoint, limits: Limits, section: str | None
) -> tuple[Checkpoint, list[Leftover]]:
    """The parameters and buffers of a script as a plain dict."""
    parts = Survey(current)
    chosen = parts.only_model(section)
    root = weights_of(parts, chosen)
    leftovers = [*rest_of(parts, chosen), *weightless_leftovers(current, chosen)]
    return edited_checkpoint(current, root, limits, origin=None), leftovers


def _drop_views(current: Checkpoint, limits: Limits) -> Checkpoint:
    """Without the views of storages that only the format before 1.6 knows: their offset
    goes to the tensors.
    """
    edit = _Viewless()
    root = edit.copy(current.root)
    return (
        edited_checkpoint(current, root, limits, origin=None) if edit.found else current
    )


class _Viewless(Edit):
    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        args = call.args
        if (
            args
            and type(args[0]) is PersistentId
            and args[0].shift
            and type(args[1]) is int
        ):
            self.found = True
            # The whole storage, and the offset of the view added to that of the tensor.
            whole = PersistentId(args[0].pid, args[0].offset)
            whole.meaning = args[0].meaning
            return (whole, args[1] + args[0].shift, *args[2:])
        return args

    def state(self, call: Opaque, state: Node) -> Node:
        # torch.FloatTensor() with (storage, offset, size, stride) set on it: torch 0.1.
        if (
            is_tuple(state)
            and len(state) > 1
            and type(state[0]) is PersistentId
            and state[0].shift
        ):
            offset = state[1]
            if type(offset) is int:
                self.found = True
                whole = PersistentId(state[0].pid, state[0].offset)
                whole.meaning = state[0].meaning
                return (whole, offset + state[0].shift, *state[2:])
        return state


def as_format(
    report: RewriteReport,
    format: str,
    traits: Traits,
    limits: Limits,
    unfit: Unfit,
    ranks: int | None = None,
    *,
    drop_other: bool = False,
) -> RewriteReport:
    """The report with its result as another format holds it, as `convert` makes it.
    Raises as `convert`.

    A distributed checkpoint is cut into the files of so many `ranks`. With `drop_other`
    what the format cannot hold is left out.
    """
    result = report.result
    if format == result.format:
        return report
    # Of an optimizer: what is rescued stays what it was.
    keys = "numbers" if traits.is_folder else None
    done = convert(
        Survey(result),
        format,
        traits,
        limits,
        unfit,
        optimizer_keys=keys,
        drop_other=drop_other,
    )
    if traits.is_folder:
        done = with_flattening(done, ranks or 1, limits)
    return report._replace(
        # is_edited: it is written anew, for a copy would be what the source is.
        result=replace(done.result, format=format, traits=traits, is_edited=True),
        changes=(*report.changes, *done.changes),
        left_out=(*report.left_out, *done.left_out),
        left_alone=(*report.left_alone, *done.left_alone),
    )

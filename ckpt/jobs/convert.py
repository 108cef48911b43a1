"""`ckpt convert`: the same content in another format, in plain classes, in another dtype, in repaired text."""

from __future__ import annotations

from collections.abc import Callable

from ckpt.checkpoint import (
    Checkpoint,
    Dict,
    Entry,
    Node,
    Opaque,
    PersistentId,
)
from ckpt.dtypes import DType
from ckpt.errors import LossError, UsageError
from ckpt.jobs.casting import Cast, CastRefs, dtype_of
from ckpt.jobs.decoding import ENCODINGS, Decode
from ckpt.jobs.plain import Plain, state_dict
from ckpt.jobs.rewrite import Change, Left, RewriteReport, edited, losses_of, rest_of, storages_of, weightless
from ckpt.limits import Limits
from ckpt.names import show
from ckpt.objects import look
from ckpt.pickles.edit import Edit
from ckpt.places import node_at
from ckpt.sections import Section, only_model, sections
from ckpt.tree import metadata_of

_LISTED = 5

Unfit = Callable[[Entry], str | None]


def convert(
    checkpoint: Checkpoint,
    format: str,
    limits: Limits,
    unfit: Unfit,
    *,
    plain: bool = False,
    dtype: str | None = None,
    encoding: str | None = None,
    section: str | None = None,
    drop_other: bool = False,
) -> RewriteReport:
    """The checkpoint as `format` holds it. safetensors get the only model, or `section`, under its own names.

    `unfit` tells why safetensors cannot hold a tensor. `dtype` casts the floating tensors of models, `encoding`
    reads texts of Python 2. Raises UsageError, and LossError for what the format or plain classes cannot say,
    unless it may be dropped.
    """
    if encoding is not None and encoding not in ENCODINGS:
        raise UsageError(f"--encoding {show(encoding, 40)}: not one of {' '.join(ENCODINGS)}")
    to = dtype_of(dtype)
    changes: list[Change] = []
    dropped: list[Left] = []
    current = checkpoint
    if encoding is not None and not plain:
        decode = Decode(encoding)
        current = edited(current, decode.copy(current.root), limits, origin=None)
        changes.append(Change("text", "Python 2", encoding, decode.decoded, "text"))
    if plain:
        edit = Plain(encoding)
        current = edited(current, edit.copy(current.root), limits, origin=None)
        dropped += losses_of(checkpoint, edit.lost, drop_other)
        if format != "safetensors":  # which takes one section, and names what lies beside it
            dropped += [row for part in sections(checkpoint) for row in weightless(checkpoint, part)]
        changes += [Change("plain", kind, "plain", count, "object") for kind, count in edit.made.items()]
    if format == "safetensors":
        return _to_safetensors(checkpoint, current, unfit, changes, dropped, to, section, drop_other)
    if checkpoint.format in ("safetensors", "sharded", "torchscript"):
        current, left = _as_state_dict(current, limits, section)
        dropped += left
    current = _viewless(current, limits) if checkpoint.format == "torch-legacy" != format else current
    if to is not None or (current.byteorder == "big" and format != checkpoint.format):
        cast = Cast(current, to, section)
        current = edited(current, cast.copy(current.root), limits, byteorder="little", origin=None)
        changes += cast.changes()
    return RewriteReport(
        "convert",
        checkpoint,
        current,
        (*_format_change(checkpoint, format, len(current.tensors)), *changes),
        tuple(dropped),
        unchanged_bytes=to is None,
        nothing=f"is {format} already",
    )


def _format_change(checkpoint: Checkpoint, format: str, tensors: int) -> list[Change]:
    return (
        []
        if checkpoint.format == format
        else [Change("format", checkpoint.format, format, tensors, "tensor")]
    )


# --- to safetensors -------------------------------------------------------------------------------------------------


def _to_safetensors(
    checkpoint: Checkpoint,
    current: Checkpoint,
    unfit: Unfit,
    changes: list[Change],
    dropped: list[Left],
    to: DType | None,
    section: str | None,
    drop_other: bool,
) -> RewriteReport:
    parts = sections(current)
    chosen = only_model(current, parts, section)
    entries: list[Entry] = []
    left = [*dropped, *rest_of(current, parts, chosen), *weightless(current, chosen)]
    for entry in current.tensors[chosen.first : chosen.last]:
        name = chosen.relative(entry.name)
        if entry.registered and entry.persistent and (current.format != "torchscript" or entry.kind):
            entries.append(entry._replace(path=(name,), name=name))
    values = [] if chosen.is_module else _values_inside(current, chosen)
    refused = [(entry, why) for entry in entries if (why := unfit(entry))]
    lost = [Left(entry.name, why, entry.tensor.nbytes) for entry, why in refused]
    lost += [Left(name, "no tensor") for name in values]
    if lost and not drop_other:
        listed = "; ".join(f"{show(row.name, 60)} ({row.what})" for row in lost[:_LISTED])
        more = f" and {len(lost) - _LISTED:,} more" if len(lost) > _LISTED else ""
        raise LossError(
            f"safetensors holds only dense tensors: {listed}{more} would be lost",
            path=checkpoint.path,
            hint="--drop-other",
        )
    gone = {id(entry) for entry, _ in refused}
    entries = [entry for entry in entries if id(entry) not in gone]
    cast = CastRefs(current.byteorder == "big", to)
    entries = [entry._replace(tensor=cast.ref(entry.tensor)) for entry in entries]
    root = Dict()
    root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
    metadata = metadata_of(checkpoint.root) if checkpoint.format in ("safetensors", "sharded") else {}
    if metadata:
        texts = Dict()
        texts.set(list(metadata), list(metadata.values()))
        root.set(["__metadata__"], [texts])
    result = Checkpoint(
        path=checkpoint.path,
        format="safetensors",
        nbytes=checkpoint.nbytes,
        root=root,
        tensors=tuple(entries),
        storages=storages_of(entries),
        byteorder=current.byteorder,
        is_edited=True,
    )
    changes += cast.changes()
    return RewriteReport(
        "convert",
        checkpoint,
        result,
        (*_format_change(checkpoint, "safetensors", len(entries)), *changes),
        (*left, *lost),
        unchanged_bytes=to is None,
        nothing="is safetensors already",
    )


def _values_inside(checkpoint: Checkpoint, section: Section) -> list[str]:
    """The values of a section that are no tensors, by their names; not what safetensors say of themselves."""
    depth = len(section.path)
    return [
        value.name
        for value in checkpoint.values
        if value.path[:depth] == section.path and value.path[:1] != ("__metadata__",)
    ]


# --- to pickles -----------------------------------------------------------------------------------------------------


def _as_state_dict(current: Checkpoint, limits: Limits, section: str | None) -> tuple[Checkpoint, list[Left]]:
    """The weights of a format without pickles of its own, or of a script, as a plain dict."""
    if current.format == "torchscript":
        parts = sections(current)
        chosen = only_model(current, parts, section)
        root = (
            state_dict(look(current.root))
            if look(current.root).kind == "module"
            else _script(current, chosen)
        )
        return edited(current, root, limits, origin=None, format="torch-zip"), rest_of(current, parts, chosen)
    root = Dict()
    assert type(current.root) is Dict
    known: dict[str, Node] = {}
    for key, value in zip(current.root.keys, current.root.values, strict=True):
        if key != "__metadata__":
            root.set([key], [value])
            known[str(key)] = value
    left: list[Left] = []
    for name, text in metadata_of(current.root).items():
        if text in known and name not in known:  # tied weights, as save_model notes them
            root.set([name], [known[text]])
        elif (name, text) != ("format", "pt"):
            left.append(Left(f"__metadata__.{name}", repr(text[:60]), is_value=True))
    return edited(current, root, limits, origin=None, format="torch-zip"), left


def _script(current: Checkpoint, chosen: Section) -> Dict:
    """The parameters and buffers of a script by their names, in its order."""
    root = Dict()
    for entry in current.tensors[chosen.first : chosen.last]:
        if entry.kind:
            root.set([entry.name], [node_at(current.root, entry.path)])
    return root


def _viewless(current: Checkpoint, limits: Limits) -> Checkpoint:
    """Without the views of storages that only the format before 1.6 knows: their offset goes to the tensors."""
    edit = _Viewless()
    root = edit.copy(current.root)
    return edited(current, root, limits, origin=None) if edit.found else current


class _Viewless(Edit):
    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        args = call.args
        if args and type(args[0]) is PersistentId and args[0].shift and type(args[1]) is int:
            self.found = True
            whole = PersistentId(args[0].pid, args[0].offset)
            whole.meaning = args[0].meaning
            return (whole, args[1] + args[0].shift, *args[2:])
        return args

    def state(self, call: Opaque, state: Node) -> Node:
        # torch.FloatTensor() with (storage, offset, size, stride) set on it: torch 0.1.
        if type(state) is tuple and state and type(state[0]) is PersistentId and state[0].shift:
            self.found = True
            whole = PersistentId(state[0].pid, state[0].offset)
            whole.meaning = state[0].meaning
            return (whole, state[1] + state[0].shift, *state[2:])
        return state

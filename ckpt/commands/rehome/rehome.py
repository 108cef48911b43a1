"""`ckpt rehome`: the tensors of a checkpoint on other devices. No byte of them changes:
a device is a tag.
"""

from __future__ import annotations

from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.commands.rewriting.report import Change, Leftover, RewriteReport
from ckpt.commands.rewriting.sets import refuse_incomplete
from ckpt.evidence.devices import check_device, hidden_devices, is_accelerator
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint, Entry, Traits
from ckpt.model.columns import row_looks
from ckpt.model.errors import UnsupportedError, UsageError
from ckpt.model.limits import Budget, Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import Node, Opaque
from ckpt.model.rows import NamedTuple, replace
from ckpt.model.tensors import Storage, parts_of
from ckpt.model.text import and_more, show
from ckpt.pickle.calls import device_call, with_device
from ckpt.pickle.edit import Edit
from ckpt.tree.arrays import as_bytes
from ckpt.tree.scalars import class_of, device_text
from ckpt.tree.walk import flatten_tree

OBJECTS_HINT = "--objects to change it"
"""The option of `rehome` for a device that is a value."""
_GENERATOR = "torch._C.Generator"
_LINES = 12
"""Lines of the code that are listed of each file."""
_CHECKPOINTS = (b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
"""The first bytes of files of torch.save: zip archives, and the stream before 1.6."""


class Moves(NamedTuple):
    """The new devices: `map` replaces devices one by one, `rest` all others. None
    leaves them.
    """

    map: dict[str, str]
    rest: str | None

    def target(self, tag: str | None) -> str | None:
        """The new tag of what is saved on a device, None when it stays. On `meta` there
        is nothing to move.
        """
        if tag is None or tag == "meta":
            return None
        to = self.map.get(tag, self.rest)
        return None if to == tag else to


def moves(to: str | None, maps: list[str]) -> Moves:
    """The moves that `--to TAG` and `--map FROM=TO` ask for; neither means to the CPU.
    Raises UsageError.
    """
    targets: dict[str, str] = {}
    for setting in maps:
        before, equals, after = setting.partition("=")
        if not equals or not before:
            raise UsageError(
                f"--map {setting}: not FROM=TO", hint="as in cuda:0=cuda:1"
            )
        if before in targets:
            raise UsageError(f"--map {setting}: {before} is moved twice")
        targets[before] = check_device(after)
    if to is not None:
        return Moves(targets, check_device(to))
    return Moves(targets, None if targets else "cpu")


def rehome(
    survey: Survey, request: Moves, limits: Limits, *, objects: bool = False
) -> RewriteReport:
    """The checkpoint with its device tags moved; with `objects`, devices in values too.

    Raises UnsupportedError for a program whose code holds its devices, and where no
    device is kept but one is asked for.
    """
    checkpoint = survey.checkpoint
    if checkpoint.traits.names_are_code and not checkpoint.traits.tags_are_apart:
        raise UnsupportedError(
            (
                f"{checkpoint.traits.label} is not moved: its program names devices "
                "beside each tensor"
            ),
            path=checkpoint.path,
            way=("extracted",),
        )
    has_device = any(storage.device for storage in row_looks(checkpoint.storages))
    is_empty = checkpoint.traits.keeps_devices and not checkpoint.storages
    if not (has_device or is_empty):
        refuse_device(
            request, checkpoint.traits._replace(keeps_devices=False), checkpoint.path
        )
    refuse_incomplete(checkpoint)
    edit = _Rehome(survey, request, objects)
    if checkpoint.traits.names_are_code:
        result = edit.program(checkpoint, limits)
    else:
        root = edit.copy(checkpoint.root)
        result = (
            edited_checkpoint(checkpoint, root, limits) if edit.counts else checkpoint
        )
    changes = [
        Change("device", before, after, count, unit, nbytes)
        for (before, after, unit), (count, nbytes) in sorted(
            edit.counts.items(), key=_order_key
        )
    ]
    return RewriteReport(
        "rehome",
        checkpoint,
        result,
        tuple(changes),
        (),
        tuple(_list_leftovers(result, edit)),
        nothing="nothing to move: it holds no tensor"
        if is_empty
        else f"nothing to move: all tensors are on {saved_on(checkpoint)}",
    )


def refuse_device(request: Moves, traits: Traits, path: str) -> None:
    """Raise UnsupportedError for a device other than the CPU in a format that keeps
    none.
    """
    if traits.keeps_devices or request.rest in (None, "cpu"):
        return
    raise UnsupportedError(
        (
            f"{traits.label} keeps no device, so nothing in it can be moved to "
            f"{request.rest}"
        ),
        path=path,
        hint="name the device where you load it",
    )


_TRAINED = ("model", "ema", "optimizer")
"""Kinds of sections that hold no states of random generators."""
_OF_CPU = 5_056
"""Bytes of the state of a generator on the CPU. Source: torch 2.0 to 2.13."""
_OF_GPU = 16
"""Bytes of the state of one on a GPU: a seed and an offset."""
_WORDS = ("rng", "gen", "rand", "seed")


def _is_state(entry: Entry, sizes: set[int]) -> bool:
    """Tell whether a tensor of bytes is the state of a random generator: by its size,
    of a GPU by its name too.
    """
    shape = entry.tensor.shape
    if len(shape) != 1:
        return False
    # Sixteen bytes may be anything.
    is_named = any(word in entry.name.lower() for word in _WORDS)
    return shape[0] in sizes or (is_named and shape[0] == _OF_GPU)


def _order_key(
    row: tuple[tuple[str, str, str], tuple[int, int]],
) -> tuple[bool, object]:
    """Storages first, then by the number of the device."""
    return row[0][2] != "storage", natural_sort_key(row[0][0])


def _list_leftovers(result: Checkpoint, edit: _Rehome) -> list[Leftover]:
    generators = {value.name for value in result.values if value.type == _GENERATOR}
    rows = []
    for hidden in hidden_devices(result.values):
        holder = hidden.name.rpartition(".")[0]
        if not edit.asked.target(hidden.device):
            continue
        if holder in generators:
            rows.append(
                Leftover(
                    holder, "a random generator, which loads on its own device only"
                )
            )
        else:
            is_text = hidden.type == "str"
            what = repr(hidden.device) if is_text else f"device({hidden.device!r})"
            # The code of a program may compare its texts.
            is_in_program = is_text and result.traits.names_are_code
            hint = None if is_in_program else OBJECTS_HINT
            rows.append(Leftover(hidden.name, what, None, hint, is_value=True))
    for value in result.values:
        data = as_bytes(value.node) if value.type in ("bytes", "bytearray") else None
        if data is not None and data.startswith(_CHECKPOINTS):
            what = "a checkpoint inside of bytes, which is not changed"
            rows.append(Leftover(value.name, what))
    rows += _in_code(result, edit.asked)
    if edit.stayed:
        what = "the state of a random generator, which torch needs on the CPU"
        rows.append(Leftover(and_more(edit.stayed, 3), what))
    return rows


def _in_code(result: Checkpoint, request: Moves) -> list[Leftover]:
    """The devices that code names: one row for each file and device, with the lines."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row in result.code_devices:
        if request.target(row.device):
            lines = rows.setdefault((row.file, row.device), [])
            if row.line is not None:
                lines.append(row.line)
    leftovers = []
    for (file, tag), lines in rows.items():
        name = f"{file}:{lines[0]}" if lines else file
        times = ""
        if len(lines) > 1:
            listed = and_more(list(map(str, lines)), _LINES)
            times = f", {len(lines):,} times (lines {listed})"
        what = f"the code names {tag}{times}, which map_location leaves too"
        leftovers.append(Leftover(name, what))
    return leftovers


class _Rehome(Edit):
    """Moves storages, the devices beside them, and on request those in values. `counts`
    says how many.
    """

    def __init__(self, survey: Survey, request: Moves, objects: bool) -> None:
        super().__init__()
        self.asked = request
        self._objects = objects
        self.counts: dict[tuple[str, str, str], tuple[int, int]] = {}
        self.stayed: list[str] = []
        self._storages: dict[Storage, Storage] = {}
        self._devices: dict[int, Node] = {}
        self._texts: dict[str, str] = {}
        self._fixed: dict[int, Node] = {}
        self._is_program = survey.checkpoint.traits.names_are_code
        # map_location moves these states too, and then set_rng_state fails.
        is_away = request.rest not in (None, "cpu") and not self._is_program
        self._rng = self._generator_storages(survey) if is_away else set()

    def program(self, checkpoint: Checkpoint, limits: Limits) -> Checkpoint:
        """Move the devices of a program. Its tensors are its tree's, then the constants
        of its code.
        """
        root = self.copy(checkpoint.root)
        flat = flatten_tree(root, limits, Budget(limits, checkpoint.nbytes))
        tensors = [
            old._replace(tensor=new.tensor)
            for old, new in zip(checkpoint.tensors, flat.tensors, strict=False)
        ]
        for entry in checkpoint.tensors[len(tensors) :]:
            tensors.append(entry._replace(tensor=self.tensor_over(entry.tensor)))
        values = [
            old._replace(node=new.node)
            for old, new in zip(checkpoint.values, flat.values, strict=False)
        ]
        # Storages that only the bytecode names are none of a tensor.
        storages = tuple(map(self.storage, checkpoint.storages))
        if not self.counts:
            return checkpoint
        return replace(
            checkpoint,
            root=root,
            tensors=tuple(tensors),
            storages=storages,
            values=(*values, *checkpoint.values[len(values) :]),
            is_edited=True,
        )

    def _generator_storages(self, survey: Survey) -> set[Storage]:
        """Storages of random states on the CPU: set_rng_state takes them from nowhere
        else.
        """
        found: list[tuple[bool, Entry]] = []
        for section in survey.sections:
            if section.kind in _TRAINED:
                continue
            for entry in section.entries:
                tensor = entry.tensor
                if tensor.dtype.name == "uint8" and tensor.device == "cpu":
                    found.append((section.kind == "rng", entry))
        sizes = {_OF_CPU}
        # A save of the state of the CPU has that of the GPU beside it.
        if any(entry.tensor.shape == (_OF_CPU,) for _, entry in found):
            sizes.add(_OF_GPU)
        stayed = [
            entry for is_named, entry in found if is_named or _is_state(entry, sizes)
        ]
        self.stayed = [entry.name for entry in stayed]
        storages: set[Storage] = set()
        for entry in stayed:
            storages.update(part.storage for part in parts_of(entry.tensor))
        return storages

    def storage(self, storage: Storage) -> Storage:
        moved = self._storages.get(storage)
        if moved is None:
            to = None if storage in self._rng else self.asked.target(storage.device)
            moved = storage
            if to is not None and storage.place is not None:
                moved = storage._replace(device=self._text(to))
                self._count_move(storage.device or "", to, "storage", storage.nbytes)
            self._storages[storage] = moved
        return moved

    def instead(self, node: Node) -> Node | None:
        # map_location leaves these objects, so they are changed on request only.
        if not self._objects or type(node) is not Opaque or node.meaning is not None:
            return None
        if class_of(node) != "torch.device" or id(node) in self._fixed:
            return None
        tag = device_text(node)
        to = self.asked.target(tag)
        if to is None:
            return None
        self._count_move(tag or "", to, "object", 0)
        return device_call(to)

    def arguments(self, call: Opaque) -> tuple[Node, ...]:
        if class_of(call) == _GENERATOR and call.args:
            # Its state is that of its device. A device of its own: the object may lie
            # elsewhere too.
            own = device_call(device_text(call.args[0]) or "cpu")
            self._fixed[id(own)] = own
            return (own, *call.args[1:])
        return with_device(call, self._move_device)

    def _move_device(self, node: Node) -> Node:
        """The device argument of a call, moved as a storage is."""
        if id(node) not in self._devices:
            tag = device_text(node)
            to = self.asked.target(tag)
            moved = node
            if to is not None:
                self._count_move(str(tag), to, "wrapped tensor", 0)
                moved = self._text(to) if isinstance(node, str) else device_call(to)
            self._devices[id(node)] = moved
        return self._devices[id(node)]

    def leaf(self, node: Node) -> Node:
        # The meaning of a text is not known, so it is changed on request only.
        if not self._objects or self._is_program or not isinstance(node, str):
            return node
        # No device has a name of so many letters.
        if len(node) >= 20 or not is_accelerator(node):
            return node
        to = self.asked.target(str(node))
        if to is None:
            return node
        self._count_move(str(node), to, "text", 0)
        return self._text(to)

    def _count_move(self, before: str, after: str, unit: str, nbytes: int) -> None:
        count, total = self.counts.get((before, after, unit), (0, 0))
        self.counts[before, after, unit] = count + 1, total + nbytes

    def _text(self, tag: str) -> str:
        # One object for each tag: the pickle then writes it once.
        return self._texts.setdefault(tag, tag)


def saved_on(checkpoint: Checkpoint) -> str:
    """Name the devices of the tensors of a checkpoint: `cpu`, `cuda:0 and cuda:1`."""
    tags = dict.fromkeys(
        storage.device for storage in row_looks(checkpoint.storages) if storage.device
    )
    return (
        " and ".join(show(tag, 40) for tag in tags)
        or "no device (the format keeps none)"
    )

"""A GGUF file as a checkpoint: its tensors in torch's shapes, its metadata as values.
The files of a set are one checkpoint.
"""

from __future__ import annotations

from ckpt.bytes.executor import Executor
from ckpt.bytes.source import Source
from ckpt.ext.gguf import NAME, TRAITS, sniff
from ckpt.ext.gguf.header import FEW, MANY, Array, Header, Row, read_header
from ckpt.formats.common.early import is_pickle_too
from ckpt.formats.common.holes import lost_notices, partial_place
from ckpt.formats.format import Check, ChecksumReport, Probe, Progress
from ckpt.model.account import Account, Notice
from ckpt.model.checkpoint import Checkpoint, Entry, Value
from ckpt.model.columns import Column
from ckpt.model.dtypes import contiguous
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Limits
from ckpt.model.names import natural_sort_key
from ckpt.model.nodes import Dict, Node
from ckpt.model.places import Range
from ckpt.model.tensors import Storage, tensor_ref
from ckpt.model.text import counted_noun, show
from ckpt.tree.find import METADATA

_FACTS = (
    ("architecture", "general.architecture"),
    ("name", "general.name"),
    ("license", "general.license"),
)
"""The facts that are shown above the tensors: a label, and the key of the metadata."""


def read(probe: Probe, limits: Limits) -> Checkpoint:
    header = _header_of(probe, limits)
    count = header.values.get("split.count")
    # A file with a mark is opened by its set, which must not be opened again.
    if probe.mark or type(count) is not int or count < 2:
        return _checkpoint(probe, header)
    # Here, for most files are whole.
    from ckpt.ext.gguf.files import read_set

    return read_set(probe, count)


def _header_of(probe: Probe, limits: Limits, *, is_cut: bool = False) -> Header:
    """The header of the file. Raises CkptError."""
    # Here, for it loads all modules of compression.
    from ckpt.formats.common.two_files import refuse_second

    if is_pickle_too(probe.head, probe.file, limits):
        raise UnreadableError(
            "two files in one: GGUF, and a pickle that pickle.load and torch.load run"
        )
    refuse_second(probe.head, probe.file, limits)
    return read_header(probe.file, probe.head, limits, probe.budget, is_cut=is_cut)


def salvage(probe: Probe, limits: Limits) -> Checkpoint | None:
    if not sniff(probe):
        return None
    return _checkpoint(probe, _header_of(probe, limits, is_cut=True))


def _checkpoint(probe: Probe, header: Header) -> Checkpoint:
    """The checkpoint of one file."""
    short: dict[Storage, int] = {}
    entries: list[Entry] = []
    storages: list[Storage] = []
    # In the order of people: block 2 comes before block 10.
    for index, name in enumerate(sorted(header.tensors, key=natural_sort_key)):
        row = header.tensors[name]
        storage = _storage(probe.file, f"{probe.mark}{index}", name, row, header, short)
        storages.append(storage)
        tensor = tensor_ref(storage, row.dtype, row.shape, contiguous(row.shape), 0)
        entries.append(Entry((name,), name, tensor))
    notices = lost_notices(entries, short)
    if header.gap is not None:
        notices.append(Notice("container", f"{header.gap}, and refuses the file"))
    if probe.size > header.end:
        rest = counted_noun(probe.size - header.end, "byte")
        text = f"{rest} after the last tensor, which no loader reads"
        notices.append(Notice("trailing-data", text))
    root = Dict()
    root.set([entry.name for entry in entries], [entry.tensor for entry in entries])
    metadata = metadata_node(header) if header.values else None
    if metadata is not None:
        root.set([METADATA], [metadata])
    facts = [(label, header.values.get(key)) for label, key in _FACTS]
    return Checkpoint(
        path=probe.path,
        format=NAME,
        traits=TRAITS,
        nbytes=probe.size,
        root=root,
        tensors=tuple(entries),
        storages=tuple(storages),
        values=tuple(values_of(header)),
        byteorder="big" if header.big else "little",
        account=Account(tuple(notices)),
        beside=metadata,
        facts=tuple((label, value) for label, value in facts if isinstance(value, str)),
        sources=(probe.file,),
    )


def _storage(
    source: Source,
    id: str,
    name: str,
    row: Row,
    header: Header,
    short: dict[Storage, int],
) -> Storage:
    """The storage of a tensor. One that lacks bytes is `short`."""
    nbytes = row.end - row.begin
    if nbytes and row.end > source.size:
        # None of it is given: a tensor with zeros at its end would be taken for whole.
        lost = partial_place(nbytes, f"tensor {show(name, 80)} is not whole")
        storage = Storage(id, None, row.dtype, nbytes, lost)
        short[storage] = 0
        return storage
    place = Range(source, row.begin, nbytes, big=header.big)
    return Storage(id, None, row.dtype, nbytes, place)


def metadata_node(header: Header) -> Dict:
    """The metadata as a dict. A long array becomes a list when it is asked for: a
    vocabulary has 150,000 texts.
    """
    values = list(header.values.values())

    def make(first: int, last: int) -> list[Node]:
        nodes: list[Node] = []
        for value in values[first:last]:
            nodes.append(value.items() if isinstance(value, Array) else value)
        return nodes

    node = Dict()
    node.keys = list(header.values)
    node.values = Column(len(values), make)
    return node


def values_of(header: Header) -> list[Value]:
    """The rows of the metadata. A long array is told by its length, and so is one after
    very many short ones.
    """
    rows: list[Value] = []
    left = MANY
    for key, value in header.values.items():
        path = (METADATA, key)
        if not isinstance(value, Array):
            rows.append(Value(path, key, type(value).__name__, value))
        elif value.length <= min(FEW, left):
            left -= value.length
            rows.append(Value(path, key, "list", value.items()))
        else:
            rows.append(Value(path, key, f"list of {value.type}", fields=value.length))
    return rows


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Progress | None,
    check: Check,
) -> ChecksumReport:
    """GGUF records no checksums: all files of a set are opened, and none of their bytes
    can be checked.
    """
    with read(probe, limits) as checkpoint:
        return ChecksumReport(0, (), checkpoint.nbytes)

"""Reading a library's archive that holds checkpoints: each member where it lies, as a
part under its name.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence

from ckpt.bytes.executor import Executor
from ckpt.bytes.source import Memory
from ckpt.ext.archives import FORMAT
from ckpt.ext.archives.arrays import read_arrays
from ckpt.ext.archives.layouts import layout_of
from ckpt.formats.common.following import judge_records
from ckpt.formats.common.members import Member
from ckpt.formats.common.merge import merge_members
from ckpt.formats.common.pickled import Contents, make_checkpoint
from ckpt.formats.common.two_files import refuse_second
from ckpt.formats.format import Check, ChecksumReport, Damage, List, Probe
from ckpt.model.account import Notice
from ckpt.model.checkpoint import Checkpoint, Import, RecordedFile, RecordedItem
from ckpt.model.checkpoint import Member as Part
from ckpt.model.errors import CkptError, DamagedDataError, UnreadableError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.nodes import Dict, Global, Node, Opaque, dict_of
from ckpt.model.rows import replace
from ckpt.model.text import Json, and_more, counted_noun, show
from ckpt.pickle.judge.names import is_own
from ckpt.pickle.machine import run_machine


def read(probe: Probe, limits: Limits) -> Checkpoint:
    # The header of a tar can be a pickle or a safetensors header at the same time.
    if probe.archive is None:
        refuse_second(probe.head, probe.file, limits)
    layout = layout_of(probe, limits)
    traits = FORMAT.traits._replace(
        label=layout.label, load=layout.load, has_checksums=layout.has_checksums
    )
    root = Dict()
    parts: list[Part] = []
    notices: list[Notice] = []
    imports: list[Import] = []
    try:
        for key, member in layout.parts.items():
            member.admit(limits, probe.budget)
            opened = probe.open(member, f"{probe.mark}{key}:")
            # The model comes first.
            parts.append(Part(member.member, key, opened, is_model=not parts))
        for key, member in layout.arrays:
            arrays = read_arrays(member, f"{probe.mark}{key}:", limits, probe.budget)
            parts.append(Part(member.member, key, arrays, is_model=True))
        for key, member in layout.jsons.items():
            data = member.read(limits, probe.budget)
            value, pickles = json_value(data, member.member, probe.budget)
            root.set([key], [value])
            # An object of Stable-Baselines3 is a pickle in base64 inside of the JSON.
            said, strange = pickles_inside(probe, member.member, pickles)
            notices += said
            imports += strange
        for key, member in layout.texts.items():
            data = member.read(limits, probe.budget)
            root.set([key], [text_value(data, member.member)])
        if layout.others:
            text = (
                f"{counted_noun(len(layout.others), 'member')} of the archive that "
                "nobody reads: "
                f"{and_more([show(name, 60) for name in layout.others], 3)}"
            )
            notices.append(Notice("unread-file", text))
        contents = Contents(notices, None, probe.mark, probe.budget)
        if probe.archive is not None:
            judge_records(probe.archive, layout.others, contents, limits, probe.budget)
        values = make_checkpoint(
            probe.path, FORMAT.name, traits, root, contents, limits
        )
        whole = merge_members(probe.path, FORMAT.name, [Part("", "", values), *parts])
        return replace(
            whole,
            traits=traits,
            nbytes=probe.size,
            imports=(*whole.imports, *imports),
            byteorder=parts[0].checkpoint.byteorder,
            not_loadable=_ONLY_SB2 if layout.arrays else whole.not_loadable,
            # torch.load opens the members, not the archive.
            weights_only=whole.weights_only or None,
            parts=tuple(part.file for part in parts),
            members=(),  # they are not files of their own
            sources=(probe.file,),
        )
    # An interrupt too must not leave the members open.
    except BaseException:
        for part in parts:
            part.checkpoint.close()
        raise


def checksums(
    probe: Probe,
    limits: Limits,
    executor: Executor,
    progress: Callable[[int], None] | None,
    check: Check,
) -> ChecksumReport:
    layout = layout_of(probe, limits)
    # Checkpoints have a verifier of their own.
    reports = [
        check(member, f"{probe.mark}{key}:") for key, member in layout.parts.items()
    ]
    documents = (
        *dict(layout.arrays).values(),
        *layout.jsons.values(),
        *layout.texts.values(),
    )
    for member in documents:
        damage: tuple[Damage, ...] = ()
        try:
            # Reading compares the bytes with the checksum of the archive.
            member.read(limits, Budget(limits))
        except DamagedDataError as error:
            damage = (Damage(error.problem),)
        # A tar archive has no checksums of its members' bytes.
        if member.crc is None:
            checked, unknown = 0, member.size
        else:
            checked, unknown = member.size, 0
        reports.append(ChecksumReport(checked, damage, unknown))
    return ChecksumReport.together(reports)


def recorded(
    probe: Probe, limits: Limits, executor: Executor, inner: List
) -> list[RecordedFile]:
    """List the members that have a CRC-32 of the archive, and what the others record
    themselves.
    """
    layout = layout_of(probe, limits)
    rows: list[RecordedItem] = []
    for member in layout.members:
        # A member of a tar without a checksum may be a zip, which has its own.
        if member.crc is not None or member not in layout.parts.values():
            rows.append(RecordedItem(member.member, member.size, member.crc))
            continue
        for file in inner(member, ""):
            rows += [
                row._replace(name=f"{member.member}/{row.name}") for row in file.items
            ]
    return [RecordedFile("", probe.size, tuple(rows))]


_ONLY_SB2 = "only Stable-Baselines 2 loads it, which needs TensorFlow 1"
_PICKLED, _TYPE = ":serialized:", ":type:"
"""The keys of Stable-Baselines3 for an object: its pickle in base64, and its class
(common/save_util.py).
"""
_DEPTH = 50


def text_value(data: bytes, what: str) -> str:
    """A text member. Raises UnreadableError when it is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(f"{show(what, 80)} is not UTF-8") from None


def json_value(data: bytes, what: str, budget: Budget) -> tuple[Node, list[bytes]]:
    """A JSON member as inert nodes, and the pickles in it. An object that was pickled
    is the text of its class.

    Raises UnreadableError.
    """
    pickles: list[bytes] = []
    value = parse_json(data, show(what, 80), budget)
    return _json_node(value, what, 0, pickles), pickles


def _json_node(value: Json, what: str, depth: int, pickles: list[bytes]) -> Node:
    # Each level is a call of Python, whose own limit would end in a traceback.
    if depth > _DEPTH:
        raise UnreadableError(f"damaged {show(what, 80)}: it is nested too deep")
    if isinstance(value, dict):
        if _PICKLED in value:
            pickles.append(_decode_pickle(value[_PICKLED], what))
            return str(value.get(_TYPE, ""))
        return dict_of(
            (key, _json_node(item, what, depth + 1, pickles))
            for key, item in value.items()
        )
    if isinstance(value, (str, int, float)) or value is None:
        return value
    return [_json_node(item, what, depth + 1, pickles) for item in value]


def _decode_pickle(text: Json, what: str) -> bytes:
    """The bytes of a pickle, decoded as its loader does."""
    # Without `validate`, as the library decodes it: other letters are passed over.
    try:
        return b64decode(text.encode()) if isinstance(text, str) else b""
    except ValueError:
        raise UnreadableError(
            f"damaged {show(what, 80)}: a pickle in it is no base64"
        ) from None


_CLOUD = "cloudpickle.cloudpickle"
_MAKERS = (
    "_make_function",
    "_builtin_type",
    "_make_empty_cell",
    "_make_cell",
    "_function_setstate",
)
"""Functions of cloudpickle that make a function of code in the file, and run none of
it: a schedule of the learning rate.
"""


def _only_makes(row: Import) -> bool:
    """Tell whether all calls of a name make a function or its code object, and none
    calls the result.
    """
    # Each call that `inspect` shows must begin with one of these: a call of the result
    # begins with a bracket of its own.
    starts = (f"{_CLOUD}.{row.name}(", f"({_CLOUD}._builtin_type('CodeType'))(")
    is_maker = row.module == _CLOUD and row.name in _MAKERS
    return (
        # `calls` are cut to a few; `times` counts all of them.
        is_maker
        and row.times == len(row.calls)
        and all(text.startswith(starts) for text in row.calls)
    )


_PACKAGES = (
    "stable_baselines3",
    "sb3_contrib",
    "stable_baselines",
    "tensorflow",
    "gymnasium",
    "gym",
    "cloudpickle",
)
"""The packages whose classes Stable-Baselines writes into every archive."""
_ENUM = ("stable_baselines3.common.type_aliases", "TrainFrequencyUnit")


def _is_usual(row: Import) -> bool:
    """Tell whether an import is one that the library writes itself, and calls nothing
    else than cloudpickle's makers.
    """
    # An enum of the library is called by value: `TrainFrequencyUnit("step")`.
    if row.group == "called":
        return row.module == _CLOUD or (row.is_enum and (row.module, row.name) == _ENUM)
    return row.group == "unknown" and row.module.partition(".")[0] in _PACKAGES


def _misuse_of_makers(calls: Sequence[Opaque]) -> str | None:
    """Return how calls of cloudpickle do more than make functions of the file, or
    None.
    """
    for call in calls:
        is_filled = bool(call.states or call.items or call.keys)
        # The result of a call, or an object of cloudpickle itself.
        is_made = isinstance(call.func, Opaque) or _maker(call) is not None
        if is_filled and is_made:
            # Opcodes call the attributes of what they fill.
            return "gives a state or items to a function that it makes, which calls it"
        # Any function has a code that can be replaced.
        if _maker(call) == "_function_setstate" and not _is_of_file(call):
            return "changes a function that is not its own"
    return None


def _maker(call: Node) -> str | None:
    """The function of cloudpickle that a call calls, or None."""
    func = call.func if isinstance(call, Opaque) else None
    is_cloud = isinstance(func, Global) and func.module == _CLOUD
    return func.name if is_cloud else None  # type: ignore[union-attr]


def _is_of_file(call: Opaque) -> bool:
    """Tell whether a call gives its state to a function that the file makes."""
    return bool(call.args) and _maker(call.args[0]) == "_make_function"


def _with_raw_states(calls: Sequence[Opaque]) -> set[tuple[str, str]]:
    """The classes that get bytes or a text as their state, which many unpickle. The
    library writes no such object.
    """
    names: set[tuple[str, str]] = set()
    for call in calls:
        if any(isinstance(state, (bytes, bytearray, str)) for state in call.states):
            # copyreg is given the class.
            for name in (call.func, *call.args[:1]):
                if isinstance(name, Global):
                    names.add((name.module, name.name))
    return names


def pickles_inside(
    probe: Probe, what: str, pickles: Sequence[bytes]
) -> tuple[list[Notice], list[Import]]:
    """Return what the unpickling of the objects of a member does beyond making values
    of known kinds.

    Calls of Python, torch and numpy are one notice; all others are imports of the file.
    """
    strange: list[Import] = []
    raw: set[tuple[str, str]] = set()
    for number, data in enumerate(pickles):
        name = f"pickle {number + 1:,} in {what}"
        member = Member(Memory(data), name, 0, len(data))
        try:
            with probe.open(member, f"{probe.mark}{name}:") as opened:
                # The library unpickles these bytes whatever else they are.
                if opened.format != "pickle":
                    text = f"DANGER: {show(name, 80)} is none."
                    return [Notice("code-inside", text)], []
                strange += [row for row in opened.imports if row.group != "known"]
            made = run_machine(data, probe.limits).calls
            misuse = _misuse_of_makers(made)
            if misuse is not None:
                return [
                    Notice("code-inside", f"DANGER: {show(name, 80)} {misuse}.")
                ], []
            raw |= _with_raw_states(made)
        except CkptError as error:
            # A pickle that breaks may have called something before.
            text = f"DANGER: {show(name, 80)} cannot be judged: {error.problem}."
            return [Notice("code-inside", text)], []
    if not strange:
        return [], []
    runs = [
        row
        for row in strange
        if row.group == "called" and is_own(row.module) and not _only_makes(row)
    ]
    if runs:
        listed = [
            row.calls[0] if row.calls else f"{row.module}.{row.name}" for row in runs
        ]
        calls = and_more(listed, 3)
        text = f"DANGER: who unpickles the objects in {show(what, 80)} calls {calls}."
        return [Notice("code-inside", text)], []
    every = dict.fromkeys(show(f"{row.module}.{row.name}", 80) for row in strange)
    names = and_more(list(every), 3)
    text = (
        f"{show(what, 80)} holds {counted_noun(len(pickles), 'pickle')}, which its "
        f"library unpickles; they name {names}."
    )
    # The classes of the library stand in every archive: they are no imports to judge.
    rest = [
        row._replace(where=(), file=what)
        for row in strange
        if not _is_usual(row) or (row.module, row.name) in raw
    ]
    return [Notice("pickles-inside", text)], rest

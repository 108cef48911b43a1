"""The targets: what is fed to which part of ckpt, and what must hold then. docs:
tests/fuzz/fuzz.py.
"""

from __future__ import annotations

import io
import json
import pickle as std_pickle
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import containers
import mutate
import opcodes as op
import seeds
from harness import (
    LIMITS,
    InMemory,
    check,
    clean,
    looked,
    opened,
    refused,
    rows,
    watched,
    written,
)
from trees import dump

from ckpt import formats
from ckpt.bytes.executor import Serial
from ckpt.bytes.source import Memory
from ckpt.commands.diff.diff import Options, diff
from ckpt.commands.diff.text import diff_lines, diff_table
from ckpt.commands.get.get import first_values, get, top_items
from ckpt.commands.get.text import content_lines, get_lines, get_text, tensor_lines
from ckpt.commands.inspect.card import card_of
from ckpt.commands.inspect.numbering import numbering_lines
from ckpt.commands.rehome.rehome import moves
from ckpt.commands.rename.rename import substitution
from ckpt.commands.sum import sums
from ckpt.commands.verify.text import verify_lines
from ckpt.commands.verify.verify import judge_structure, with_checksums
from ckpt.elements.blocks import elements
from ckpt.elements.unpacked import can_unpack, unpacked
from ckpt.evidence.numbering import Numbers, numbered_parameters, numbers
from ckpt.evidence.survey import Survey
from ckpt.ext.dcp.metadata import metadata_of
from ckpt.ext.dcp.skim import read_metadata
from ckpt.ext.lint import api as lint_functions
from ckpt.ext.lint import lint, settings
from ckpt.ext.lint.baseline import baseline_of
from ckpt.ext.lint.text import lint_lines
from ckpt.ext.live import model as factory
from ckpt.ext.quantised.facts import Facts
from ckpt.ext.quantised.find import match_entries
from ckpt.ext.remote import connections
from ckpt.ext.remote import http as web
from ckpt.ext.remote.store import BusyError, ChangedError
from ckpt.formats import listing, save, verify
from ckpt.formats.common import pickled
from ckpt.formats.common.archive import Archive
from ckpt.formats.common.directory import Record
from ckpt.formats.common.pickled import run
from ckpt.formats.common.writing import Keys, compare
from ckpt.formats.format import ChecksumReport
from ckpt.formats.torch_zip.reader import read_from
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, UnreadableError
from ckpt.model.findings import Rules
from ckpt.model.limits import Budget, Limits, number_of, parse_json
from ckpt.model.names import Globs
from ckpt.model.nodes import Node
from ckpt.model.tensors import TensorRef
from ckpt.pickle.emit import emit_pickle
from ckpt.pickle.judge.imports import judge_imports, names_and_calls
from ckpt.surface.api import keywords
from ckpt.surface.api.rewriting import WriteOptions
from ckpt.surface.api.writing import with_format
from ckpt.surface.cli import inputs
from ckpt.surface.text.lines import plain_text


class Target(NamedTuple):
    """One target: what it checks of some bytes, what it starts from, and how they are
    changed.
    """

    check: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]
    mutate: mutate.Mutate
    needs_torch: bool = False


# --------------------------------------------------------------------------------------
# one file


class _AnyKey(dict[str, Record]):
    """The records of an archive that holds every storage a pickle may name."""

    def __init__(self, records: dict[str, Record]) -> None:
        super().__init__(records)
        self.names: list[str] = list(records)

    def find(self, name: str, near: int) -> int:
        if name.startswith("archive/data/") and name not in self.names:
            self.names.append(name)
        return self.names.index(name) if name in self.names else -1

    def find_alike(self, name: str) -> int:
        return -1

    def at(self, position: int) -> Record:
        name = self.names[position]
        return self.get(name) or Record(name, 0, 1 << 62, 1 << 62, False, None, 0)

    def run(self, names: str, near: int) -> int:
        return -1  # that nothing is read in columns


def _wrapped(data: bytes) -> Checkpoint:
    record = Record("archive/data.pkl", 0, len(data), len(data), False, None, 0)
    version = Record("archive/version", 0, 0, 0, False, None, 0)
    records = _AnyKey({"archive/data.pkl": record, "archive/version": version})
    return read_from(Archive(Memory(data), "archive", records, ()), "x.pt", LIMITS)


def pickle(data: bytes) -> None:
    """The machine, the rebuilders, the verdict on weights_only, the walk, `get`,
    `lint`, and the emitter.
    """
    with watched():
        survey = looked(lambda: _wrapped(data))
        if survey is None:
            return
        checkpoint = survey.checkpoint
        for name in [
            *[row.name for row in checkpoint.tensors[:2]],
            *[row.name for row in checkpoint.values[:6]],
        ]:
            _got(survey, name)
        clean(
            plain_text(
                content_lines(
                    "x.pt", checkpoint.traits.label, *top_items(checkpoint, 40)
                )
            )
        )
        findings = lint.lint_structure(survey)
        clean(plain_text(lint_lines([lint.FileReport("x.pt", tuple(findings))], None)))
        _emitted(checkpoint)


def _got(survey: Survey, name: str) -> None:
    try:
        for item in get(survey, [name], LIMITS):
            written(item.to_json())
            if item.row is not None and item.role is not None:
                clean(
                    plain_text(
                        tensor_lines(
                            item.row, item.role, first_values(item.row.tensor, 8)
                        )
                    )
                )
            else:
                clean(plain_text(get_lines(item.name, item.node)))
                clean(get_text(item.node), allowed="")
    except CkptError as error:
        refused(error)


class _Nested(Exception):
    """A checkpoint inside of the pickle, which only a format can write."""


def _emitted(checkpoint: Checkpoint) -> None:
    """What is written reads again as the same: what a writing command compares, before
    a file takes its place.
    """

    def nested(root: Node) -> bytes:
        raise _Nested

    try:
        data = emit_pickle(checkpoint.root, Keys(checkpoint.storages), nested, LIMITS)
    except (CkptError, _Nested):
        return
    try:
        written = _wrapped(data)
    except UnreadableError:
        # A set as a key is written as a call, and then it is refused: no Python makes
        # a dict with such a key.
        if checkpoint.not_loadable is None:
            raise
        return
    compare(checkpoint, written)


def archive(data: bytes) -> None:
    """The zip reader with all formats that use it, and the checksums."""
    with watched():
        survey = looked(lambda: opened("x.pt", data))
        _verified(data, survey)


def _verified(data: bytes, survey: Survey | None) -> None:
    try:
        with (
            mock.patch.object(
                verify, "locate", lambda path: InMemory(path, {path: data})
            ),
            mock.patch.object(
                formats, "locate", lambda path: InMemory(path, {path: data})
            ),
        ):
            report = verify.checksums("x.pt", LIMITS, executor=Serial())
            verify.remainder("x.pt", LIMITS)
    except CkptError as error:
        refused(error)
        return
    if survey is not None:
        whole = with_checksums(
            judge_structure(survey.checkpoint),
            survey.checkpoint,
            report.damage,
            report.nbytes,
            report.unchecked,
        )
        written(whole.to_json())
        clean(plain_text(verify_lines(whole)))


def legacy(data: bytes) -> None:
    """The reader of torch before 1.6, with what follows the five pickles."""
    with watched():
        survey = looked(lambda: opened("x.pth", data))
        _verified(data, survey)


def safetensors(data: bytes) -> bool:
    """The header, against the library's own reader. Whether both took it: then names,
    types and shapes are the same.
    """
    with watched():
        survey = looked(lambda: opened("x.safetensors", data))
    if survey is None or survey.checkpoint.format != "safetensors":
        return False
    from safetensors import deserialize

    try:
        theirs = deserialize(data)
    except Exception as error:
        check(
            _known_difference(survey.checkpoint, str(error)),
            f"safetensors refuses it: {error}",
        )
        return False
    ours = {
        entry.name: (
            entry.tensor.dtype.safetensors,
            tuple(entry.tensor.shape),
            entry.tensor.nbytes,
        )
        for entry in survey.checkpoint.tensors
    }
    expected = {
        name: (row["dtype"], _in_torch(row["dtype"], row["shape"]), len(row["data"]))
        for name, row in theirs
    }
    check(ours == expected, f"safetensors reads {expected}, ckpt {ours}")
    return True


def gguf(data: bytes) -> None:
    """The header, and the bytes and numbers of what it lists: each tensor lies within
    the file, its blocks are as many as it says.
    """
    with watched():
        survey = looked(lambda: opened("x.gguf", data))
    if survey is None or survey.checkpoint.format != "gguf":
        return
    for entry in survey.checkpoint.tensors:
        tensor = entry.tensor
        check(isinstance(tensor, TensorRef), "a tensor is not strided")
        place = tensor.storage.place
        check(
            place is not None and place.nbytes == tensor.nbytes,
            "a tensor has other bytes than its place",
        )
        if tensor.numel <= 4_096 and can_unpack(tensor):
            numbers = b"".join(elements(unpacked(tensor)))
            check(
                len(numbers) == 4 * tensor.numel,
                "blocks hold other numbers than the shape says",
            )
    for value in survey.checkpoint.values[:4]:
        get(survey, [value.name], LIMITS)


def quantised(data: bytes) -> None:
    """The logical tensors of a file: each has the bytes that its shape says, and a
    refusal is one of ckpt.
    """
    with watched():
        survey = looked(lambda: opened("x.safetensors", data))
    if survey is None or survey.checkpoint.format != "safetensors":
        return
    try:
        found = match_entries(survey.checkpoint.tensors, Facts(), for_values=True)
        for row in found.logical:
            row.to_json()
            if row.numel > 65_536:
                continue
            ref = row.decoded()
            numbers = b"".join(elements(ref))
            check(
                len(numbers) == ref.dtype.nbytes(row.numel),
                "a weight has other bytes than its shape says",
            )
    except CkptError as error:
        refused(error)


def _in_torch(dtype: str, shape: list[int]) -> tuple[int, ...]:
    """The shape of a tensor as torch counts it: two elements of 4 bits are one."""
    return (*shape[:-1], shape[-1] // 2) if dtype == "F4" and shape else tuple(shape)


def _known_difference(checkpoint: Checkpoint, error: str) -> bool:
    return False


# --------------------------------------------------------------------------------------
# several files

_HEADER = {"a.weight": op.entry(), "a.bias": op.entry("F16", [2], [24, 28])}
SHARDS = {
    "a.safetensors": op.safetensors_file(_HEADER, op.SIX + bytes(4)),
    "b.safetensors": op.safetensors_file({"b.weight": op.entry()}, op.SIX),
    "c.bin": op.torch_zip(
        op.pickled({"c.weight": op.tensor(), "a.weight": op.tensor()})
    ),
    "bad.bin": b"PK\3\4",
    "nested.safetensors.index.json": b"{}",
}
_PLACES = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "optimizer.pt",
    "model.safetensors",
)


def shards(data: bytes) -> None:
    """An index, as itself and as the file that its folder is opened by."""
    with watched():
        for place in _PLACES[:2]:
            files = {**SHARDS, place: data}
            looked(
                lambda files=files, place=place: formats._open_location(
                    InMemory(f"m/{place}", files), LIMITS, False, ""
                )
            )
        files = {
            name: shard
            for name, shard in SHARDS.items()
            if not name.startswith("nested")
        }
        files |= {_PLACES[0]: data, "optimizer.pt": SHARDS["c.bin"]}
        looked(lambda: formats._open_location(InMemory("m/", files), LIMITS, False, ""))


def metadata(data: bytes) -> None:
    """The `.metadata` of a distributed checkpoint beside the data of the sample, which
    it may name.
    """
    files = {**seeds.distributed(), ".metadata": data}
    with watched():
        survey = looked(
            lambda: formats._open_location(InMemory("c/", files), LIMITS, False, "")
        )
        if survey is not None:
            for entry in survey.tensors[:3]:
                try:
                    first_values(entry.tensor, 8)
                except CkptError as error:
                    refused(error)
            try:
                with mock.patch.object(
                    verify, "locate", lambda path: InMemory("c/", files)
                ):
                    report = verify.checksums("c/", LIMITS, executor=Serial())
            except CkptError as error:
                refused(error)
                return
            checked = judge_structure(survey.checkpoint)
            written(
                with_checksums(checked, survey.checkpoint, *_rest(report)).to_json()
            )


def _rest(report: ChecksumReport) -> tuple[Any, int, int]:
    return report.damage, report.nbytes, report.unchecked


def columns(data: bytes) -> bool:
    """A `.metadata` read in columns is that of the machine alone. Tell whether there
    was one.
    """
    with watched():
        alone = _content(data, skimmed=False)
        check(_content(data, skimmed=True) == alone, "columns differ from the machine")
    return alone is not None


def tensors(data: bytes) -> bool:
    """The `data.pkl` of an archive read in columns gives the tree of the machine alone.
    Tell whether there was one.
    """
    file = op.torch_zip(data, {str(number): bytes(60) for number in range(80)})
    trees: list[object] = []
    with watched():
        for least in (0, 1 << 40):
            with mock.patch.object(pickled, "LEAST_BYTES", least):
                try:
                    trees.append(dump(opened("x.pt", file)))
                except CkptError as error:
                    trees.append(f"{type(error).__name__}: {error}")
    check(trees[0] == trees[1], "columns differ from the machine")
    return isinstance(trees[1], dict)


def _content(data: bytes, *, skimmed: bool) -> object:
    """All that a `.metadata` says, in plain values, or None where it is refused."""
    try:
        budget = Budget(LIMITS, len(data))
        found = (
            read_metadata(data, LIMITS, budget)
            if skimmed
            else metadata_of(run(data, LIMITS, budget))
        )
    except CkptError:
        return None
    rows = [
        (
            row[:4],
            [
                (box, found.item(row, at) if row.chunks.files[at] >= 0 else None)
                for at, box in enumerate(row.chunks.boxes())
            ],
        )
        for row in found.tensors.values()
    ]
    return (
        rows,
        found.objects,
        found.paths,
        sorted(found.files),
        found.unused,
        found.version,
    )


@cache
def _sample() -> Checkpoint:
    return opened("x.pt", seeds.samples()["lightning.ckpt"])


def listed(data: bytes) -> None:
    """A stored `inspect --json`, compared with a checkpoint and with itself."""
    sample = _sample()
    with (
        watched(),
        mock.patch.object(listing, "locate", lambda path: InMemory(path, {path: data})),
    ):
        try:
            checkpoint = listing.open_listing("kept.json", LIMITS)
        except CkptError as error:
            refused(error)
            return
        if checkpoint is not None:
            _differing(checkpoint, sample)
            _differing(sample, checkpoint)
            check(
                not _differing(checkpoint, checkpoint), "a listing differs from itself"
            )


def _differing(before: Checkpoint, after: Checkpoint) -> bool:
    """Whether two checkpoints differ in structure; the report is written in
    every form.
    """
    try:
        report = diff(Survey(before), Survey(after), Options(structure=True))
    except CkptError as error:
        refused(error)
        return False
    written(report.to_json())
    rows(diff_table(report))
    for width in (None, 40):
        clean(plain_text(diff_lines(report, width=width, show_rows="all", stat=False)))
    return report.differs


def torchscript(data: bytes) -> None:
    """The pickle and the code of a TorchScript archive; the first two bytes are the
    length of the pickle.
    """
    length = int.from_bytes(data[:2], "big")
    pickle, code = data[2 : 2 + length], data[2 + length :]
    records = {
        "net/data.pkl": pickle,
        "net/constants.pkl": op.pickled(()),
        "net/version": b"3\n",
        "net/code/__torch__/my_project/nets.py": code,
        "net/code/__torch__/torch/nn/modules/conv.py": code[: len(code) // 2],
        **{f"net/data/{key}": bytes(size) for key, size in _SIZES.items()},
    }
    with watched():
        looked(lambda: opened("x.pt", op.zip_file(records)))


_SIZES = dict(zip("0123456789", (864, 32, 32, 32, 32, 32, 8, 128, 16, 64), strict=True))


def _script_parts(data: bytes, random: Any) -> bytes:
    length = int.from_bytes(data[:2], "big")
    pickle, code = data[2 : 2 + length], data[2 + length :]
    if random.random() < 0.5:
        pickle = mutate.pickles(pickle, random)[:0xFFFF]
    else:
        code = random.choice((mutate.texts, mutate.plain, mutate.lines))(code, random)
    return len(pickle).to_bytes(2, "big") + pickle + code


def pt2(data: bytes) -> None:
    """The lists and the graph of a PT2 archive."""
    _container("x.pt2", containers.pt2(data))


def tar(data: bytes) -> None:
    """The three members of a tar archive of torch 0.1."""
    _container("x.pth", containers.tar(data))


def plain(data: bytes) -> None:
    """A plain pickle, with PROTO or without, and the same compressed."""
    for pack in (bytes, zlib.compress):
        _container("x.pkl", pack(data))


def grammar(data: bytes) -> None:
    """Names and calls are judged alike in the pickle and in the tree that it leaves,
    and each name once.
    """
    with watched():
        survey = looked(lambda: _wrapped(data))
        if survey is None:
            return
        checkpoint = survey.checkpoint
        pairs = [(row.file, row.module, row.name) for row in checkpoint.imports]
        check(len(pairs) == len(set(pairs)), "a name is judged twice")
        called = {
            row.module + row.name for row in checkpoint.imports if row.group == "called"
        }
        names, calls = names_and_calls(checkpoint.root)
        left = {
            name.module + name.name
            for name, row in judge_imports(names, calls, [checkpoint.root]).items()
            if row.group == "called"
        }
        check(left <= called, "a call of the tree is no call of the pickle")
        shown = survey.load.expression
        check(
            not called or shown is None or checkpoint.traits.fills_a_state,
            "what calls has a way to load it",
        )


class _Said:
    """A connection that has said something."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str, buffering: int = -1) -> io.BytesIO:
        return io.BytesIO(self._data)


def answers(data: bytes) -> None:
    """What a web server answers to a request for ten bytes. A larger file would lie on
    the disk.
    """
    with mock.patch.object(web, "WHOLE", 10_000), watched():
        try:
            response = connections._Response(_Said(data))  # type: ignore[arg-type]
            response.begin()
            server = connections.Server("http", "host", 80)
            reply = connections.Reply(
                server, connections.http.client.HTTPConnection("host"), response
            )
            found = web._read_answer(reply, 0, 10)
            check(len(found.data) <= web.WHOLE, "more than was asked for")
        except web.BROKEN as error:
            check(
                isinstance(web.translate_error(error, "http://host/x"), Exception),
                "an error without an answer",
            )
        except (CkptError, BusyError, ChangedError):
            pass


def _said() -> Iterator[bytes]:
    ranged = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/"
    yield ranged + b'10\r\nETag: "1"\r\n\r\n0123456789'
    yield ranged + b"99\r\nContent-Length: 10\r\n\r\n0123456789"
    yield (
        ranged
        + (
            b"10\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n0\r\n"
            b"\r\n"
        )
    )
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    yield b"HTTP/1.0 200 OK\r\n\r\nabc"
    yield b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    yield b"HTTP/1.1 416 No\r\nContent-Range: bytes */0\r\n\r\n"
    for size in (b"1" * 5_000, "²".encode("latin-1"), b"-5", b"0x10"):
        yield ranged + size + b"\r\n\r\nx"
        yield b"HTTP/1.1 200 OK\r\nContent-Length: " + size + b"\r\n\r\nx"


def _plain_pickles() -> Iterator[bytes]:
    for data in seeds.pickles():
        yield data
        yield data.removeprefix(op.proto(2))
    for protocol in range(6):
        yield std_pickle.dumps(
            {"a": [1, 2.5, "x", None, (1, 2)], "b": {1, 2}, "c": b"x" * 300}, protocol
        )


def _container(name: str, data: bytes) -> None:
    with watched():
        survey = looked(lambda: opened(name, data))
        _verified(data, survey)


def snapshot(data: bytes) -> None:
    """A record as `ckpt.snapshot` leaves it, as JSON, in a file that always opens."""
    try:
        document = json.loads(data)
        shapes = {
            name: [size for size in shape if type(size) is int and 0 <= size < 64][:3]
            for name, shape in document["state_dict"].items()
        }
        record = document["ckpt"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    _snapshot()
    program = op.pickled(
        {
            "state_dict": {name: _zeros(shape) for name, shape in shapes.items()},
            "ckpt": record,
        }
    )
    with watched():
        survey = looked(lambda: _wrapped(program))
        if survey is None:
            return
        for asked in ((0,), (1, 2), tuple(range(40))):
            try:
                found = numbered_parameters(
                    survey, Numbers(((None, asked),), "without")
                )
                written(found.to_json())
                clean(plain_text(numbering_lines(found)))
            except CkptError as error:
                refused(error)
        clean(
            plain_text(
                lint_lines(
                    [lint.FileReport("x.pt", tuple(lint.lint_structure(survey)))], None
                )
            )
        )
        _differing(_snapshot(), survey.checkpoint)
        _differing(survey.checkpoint, _snapshot())


@cache
def _snapshot() -> Checkpoint:
    return opened("x.pt", seeds.samples()["snapshot_after.pth"])


def _zeros(shape: list[int]) -> bytes:
    strides = [1] * len(shape)
    for place in range(len(shape) - 2, -1, -1):
        strides[place] = strides[place + 1] * shape[place + 1]
    return op.tensor(tuple(shape), tuple(strides), numel=1 << 20)


# --------------------------------------------------------------------------------------
# the command line


def _glob(text: str) -> None:
    Globs([text], [f"{text}.bias"]).match("layer.0.weight", "a[0].b", "\n", "")


def _substitution(text: str) -> None:
    rule = substitution(text)
    for name in (
        "",
        "a",
        "a.b",
        "fc1.w",
        "é\n",
    ):  # short: what a pattern costs is up to whoever typed it
        rule.apply(name)


def _limit(text: str) -> None:
    Limits().raised([text])


def _name(text: str) -> None:
    _got(Survey(_sample()), text)


def _section(text: str) -> None:
    Survey(_sample()).section(text)


def _map(text: str) -> None:
    moves(None, [text])


def _to(text: str) -> None:
    moves(text, [])


def _shard_size(text: str) -> None:
    asked = WriteOptions(out="out.safetensors")
    check(
        with_format(asked, None, text, plain=False).shard_bytes == number_of(text),
        "another size",
    )


def _format(text: str) -> None:
    save.format_for("x.pt", text)


def _settings(text: str) -> None:
    place = {"pyproject.toml": text.encode("utf-8", "surrogatepass")}
    with mock.patch.object(settings, "locate", lambda path: InMemory(path, place)):
        lint_functions._with_settings(
            Rules(), settings.settings_at("pyproject.toml"), None
        )


def _card(text: str) -> None:
    card = card_of(text.encode("utf-8", "surrogatepass"))
    check(card is None or all(len(tag) <= 200 for tag in card.tags), "a long tag")


def _baseline(text: str) -> None:
    baseline_of(
        parse_json(text.encode("utf-8", "surrogatepass"), "baseline", Budget(Limits()))
    )


def _codes(text: str) -> None:
    keywords.codes_of("--fail-on", [text], "inspect")


def _select(text: str) -> None:
    keywords.rules_of("lint", [text], [text], None)


def _arguments(text: str) -> None:
    factory._parse_keywords([text])


def _sums(text: str) -> None:
    sums.parse(text)


_TOML = (
    '[tool.ckpt.lint]\nselect = ["nan"]\nignore = ["cuda", "unused"]\nlevel = "error"\n'
    "values = true\n"
)
LANGUAGES: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "--include": (_glob, ("*.bias", "layers.[0-9]*.weight", "[!a-c]?x", "[", "*" * 30, "[]]", "[[a]b--c]")),
    "--index": (numbers, ("6,7-9", "6 7 8 9", "0-9999", "", "-", "1-0", "999999999-999999999")),
    "--sub": (_substitution, ("s/^bert\\.//", "s/a\\/(.)/\\1/g", "s|(?P<n>x)|\\g<n>|", "s/(a)?/\\1/", "s/[/x/", "s/x{2,3}/y/", "s/x{99999999999}/y/", "s/[[a]/y/", f"s/{'(' * 3000}{')' * 3000}/y/")),
    "--limit": (_limit, ("pickle-bytes=1GiB", "values=5", "depth=1e9", "=", "entries=99999999999999999999", "x=1")),
    "NAME": (_name, ("global_step", "state_dict", "hyper_parameters.lr", "a.b.c", "#2", "state_dict.#2", "")),
    "--section": (_section, ("state_dict", "", "optimizer_states.0", "nothing")),
    "--map": (_map, ("cuda:0=cuda:1", "cpu=meta", "=", "cuda=", "cuda:0=cuda:99999999999")),
    "--to": (_to, ("cpu", "cuda", "cuda:0", "meta", "mps:0", "")),
    "--shard-size": (_shard_size, ("5GB", "1", "0", "2MiB", "KB", "9" * 30)),
    "--format": (_format, ("torch-zip", "safetensors", "x", "")),
    "--table": (
        lambda text: inputs.check_table(text, tsv=False, header=True),
        ("github", "plain", "", "x"),
    ),
    "settings": (_settings, (_TOML, "[tool]\nckpt = 1\n", 'tool.ckpt.lint.select = "x"', "[tool.ckpt.lint]\nx = 1\n", "a = [", "a.b.c = 1\n[a.b]\n", "x = 0x" + "f" * 99)),
    "card": (_card, ((
        "---\nlicense: mit\ntags: [a, 'b']\n"
        "base_model:\n- x\n---\n"
    ), "---\ntags:\n- - a\n---\n", "---\n---")),
    "baseline": (_baseline, ((
        '{"schema": {"name": "ckpt.baseline", "version": 1}, "findings": [{"path": '
        '"a", "code": "b", "level": "c", "about": "d"}]}'
    ), "[]", "{")),
    "--fail-on": (_codes, ("nan,inf", "called-on-load", " , ", "x")),
    "--select": (_select, ("nan", "called-on-load,nan", "x")),
    "--arg": (_arguments, ("width=64", "a=[1, 2]", "b={'a': 1}", "c=-1e999", "=", "d=(((1)))", "e='\\d'", "f=1_0j", "g={[]: 1}")),
    "sums": (_sums, ("0" * 64 + "  a.weight\n", "# x\n", "0" * 64 + " *\\u1234\\\\\n", "x")),
}  # fmt: skip


def language(data: bytes) -> None:
    """One of the small languages of the command line: a usage error, or what was asked
    for.
    """
    if not data:
        return
    run, _ = list(LANGUAGES.values())[data[0] % len(LANGUAGES)]
    text = data[1:].decode("utf-8", "surrogateescape")
    _sample()
    with nullcontext() if run is _arguments else watched(), warnings.catch_warnings():
        warnings.simplefilter("error")  # one would be shown on stderr, above the answer
        try:
            run(text)
        except CkptError as error:
            refused(error)


def _phrase(data: bytes, random: Any) -> bytes:
    head = data[:1] if random.random() < 0.9 else random.randbytes(1)
    return head + mutate.texts(data[1:], random)


# --------------------------------------------------------------------------------------
# against torch


def torch(data: bytes) -> bool:
    """A pickle in an archive, against `torch.load(weights_only=True)`. Whether both
    took it: then they saw the same.
    """
    import torch
    import torch._weights_only_unpickler

    with watched():
        survey = looked(lambda: _wrapped(data))
    if (
        survey is None
        or sum(storage.nbytes for storage in survey.checkpoint.storages) > 1 << 20
    ):
        return False
    records = {
        storage.id: bytes(storage.nbytes)
        for storage in survey.checkpoint.storages
        if storage.place
    }
    file = op.torch_zip(data, records)  # torch refuses records of any other size
    with watched():
        survey = looked(lambda: opened("x.pt", file))
    try:
        # What importing parts of torch adds to the names of weights_only is not there
        # in a bare process.
        bare = mock.patch.object(
            torch._weights_only_unpickler, "_marked_safe_globals_set", set()
        )
        with warnings.catch_warnings(), bare:
            warnings.simplefilter("ignore")
            loaded = torch.load(io.BytesIO(file), weights_only=True, map_location="cpu")
    except Exception:
        return False
    check(survey is not None, "torch loads it, ckpt refuses it")
    assert survey is not None
    checkpoint = survey.checkpoint
    check(
        not checkpoint.weights_only,
        f"torch loads it, ckpt says that it refuses {checkpoint.weights_only}",
    )
    theirs = dict(_flat(loaded, torch))
    ours = {entry.name: entry.tensor for entry in checkpoint.tensors}
    for name in theirs.keys() & ours.keys():
        tensor, other = ours[name], theirs[name]
        check(
            tuple(tensor.shape) == tuple(other.shape),
            f"{name}: {tensor.shape}, torch has {other.shape}",
        )
        check(
            f"torch.{tensor.dtype.name}" == str(other.dtype),
            f"{name}: {tensor.dtype.name}, torch has {other.dtype}",
        )
        if type(tensor) is TensorRef and other.layout is torch.strided:
            view = (other.stride(), other.storage_offset())
            check((tensor.stride, tensor.offset) == view, f"{name}: another view")
    return True


def _flat(
    thing: Any, torch: Any, path: tuple[str, ...] = (), depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """The tensors in dicts, by their dotted names; only where the name is
    beyond doubt.
    """
    if isinstance(thing, torch.Tensor) and not thing.is_nested:
        yield ".".join(path), thing
    elif (
        type(thing) is dict
        and depth < 50
        and all(type(key) is str and "." not in key for key in thing)
    ):
        for key, value in thing.items():
            yield from _flat(value, torch, (*path, key), depth + 1)


TARGETS: dict[str, Target] = {
    "pickle": Target(pickle, seeds.pickles, mutate.pickles),
    "zip": Target(archive, seeds.zips, mutate.zips),
    "legacy": Target(legacy, seeds.legacy, mutate.streams),
    "safetensors": Target(safetensors, seeds.safetensors, mutate.headers),
    "quantised": Target(quantised, seeds.quantised, mutate.headers),
    "gguf": Target(gguf, seeds.ggufs, mutate.fields),
    "index": Target(shards, seeds.indexes, mutate.documents),
    "metadata": Target(metadata, seeds.metadata, mutate.pickles, needs_torch=True),
    "columns": Target(columns, seeds.entries, mutate.entries, needs_torch=True),
    "tensors": Target(tensors, seeds.tensors, mutate.entries, needs_torch=True),
    "listing": Target(listed, seeds.listings, mutate.documents),
    "torchscript": Target(torchscript, seeds.scripts, _script_parts),
    "pt2": Target(pt2, containers.lists, mutate.documents),
    "tar": Target(tar, containers.members, containers.member_parts),
    "plain": Target(plain, _plain_pickles, mutate.pickles),
    "grammar": Target(grammar, seeds.pickles, mutate.pickles),
    "answers": Target(answers, _said, mutate.lines),
    "snapshot": Target(snapshot, seeds.snapshots, mutate.documents),
    "language": Target(language, seeds.phrases, _phrase),
    "torch": Target(torch, seeds.allowed, mutate.values, needs_torch=True),
}

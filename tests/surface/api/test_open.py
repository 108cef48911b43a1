"""`ckpt.open`: paths, bytes and files, and what a checkpoint is once it is closed,
pickled, or read by many at once.
"""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import pickle
import tempfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import processes
import pytest
import rewriting
import torch
from kinds import CONTAINERS, Save, distributed, shards, stored, strided
from summed import sum_into, total

import ckpt
from ckpt.bytes import source
from ckpt.model.errors import CkptError, UsageError
from ckpt.model.limits import Limits

pytestmark = oracle.QUIET

MADE = {
    "a.weight": torch.arange(12.0).reshape(3, 4),
    "b.weight": torch.ones(2, dtype=torch.bfloat16),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return rewriting.saved(MADE, tmp_path / "a.pt")


def is_read(opened: ckpt.Checkpoint) -> bool:
    return list(opened) == list(MADE) and all(
        torch.equal(opened[name].torch(), MADE[name]) for name in MADE
    )


# --- what it takes --------------------------------------------------------------------


class Fspath:
    """A path of another library."""

    def __init__(self, path: str | bytes) -> None:
        self.path = path

    def __fspath__(self) -> str | bytes:
        return self.path


@pytest.mark.parametrize(
    "form",
    [Path, str, lambda path: Fspath(str(path)), lambda path: Fspath(os.fsencode(path))],
)
def test_a_path(form: Callable[[Path], Any], path: Path) -> None:
    with ckpt.open(form(path)) as opened:
        assert opened.path == str(path) and is_read(opened)
    assert (
        ckpt.inspect(form(path)).path == str(path) and ckpt.diff(form(path), path).same
    )


def test_a_home(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    with ckpt.open("~/a.pt") as opened:
        assert opened.path == str(path) and is_read(opened)
    with ckpt.open(Path("~") / "a.pt") as opened:
        assert is_read(opened)


@pytest.mark.parametrize(
    "form", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))]
)
def test_bytes_are_the_content(form: Callable[[bytes], Any], path: Path) -> None:
    data = form(path.read_bytes())
    with ckpt.open(data) as opened:
        assert opened.path == "(memory)" and is_read(opened)
        if isinstance(data, bytearray):
            data[:] = bytes(len(data))
            assert is_read(opened)
    assert "(memory)" in repr(opened) and len(ckpt.inspect(path.read_bytes())) == 2
    assert ckpt.diff(path.read_bytes(), path).same


class Unnamed:
    """A file object of another library: it seeks, reads, and has neither a name nor a
    descriptor.
    """

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()

    def read(self, count: int = -1) -> bytes:
        return self.inner.read(
            min(count, 1000)
        )  # fewer than asked for, as a raw file may


def test_a_file_object(path: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.gz", "wb") as zipped:
        zipped.write(path.read_bytes())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, "a.pt")
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.NamedTemporaryFile())
        temporary.write(path.read_bytes())  # not yet on the disk
        nameless = stack.enter_context(tempfile.TemporaryFile())
        nameless.write(path.read_bytes())
        archive = stack.enter_context(zipfile.ZipFile(tmp_path / "a.zip"))
        for unwritten in (temporary, nameless):
            with ckpt.open(unwritten) as opened:  # type: ignore[arg-type]
                assert is_read(opened) and unwritten.tell() == path.stat().st_size
        files: list[tuple[Any, str]] = [
            (stack.enter_context(path.open("rb")), str(path)),
            (stack.enter_context(path.open("rb", buffering=0)), str(path)),
            (stack.enter_context(path.open("r+b")), str(path)),
            (temporary, temporary.name),
            (nameless, "(file object)"),
            (io.BytesIO(path.read_bytes()), "(file object)"),
            (Unnamed(path.read_bytes()), "(file object)"),
            (stack.enter_context(gzip.open(tmp_path / "a.gz")), str(tmp_path / "a.gz")),
            (stack.enter_context(archive.open("a.pt")), "a.pt"),
        ]
        for file, name in files:
            file.seek(5)
            with ckpt.open(file) as opened:
                assert opened.path == name
                assert is_read(opened) and file.tell() == 5
                assert ckpt.diff(opened, path).same and ckpt.diff(file, path).same
            assert file.tell() == 5 and file.read(1)  # still open
            with pytest.raises(CkptError, match="the checkpoint is closed"):
                opened["a.weight"]


def test_a_file_is_read_after_its_owner_closed_it(path: Path) -> None:
    with path.open("rb") as file:
        opened = ckpt.open(file)
    assert is_read(opened)
    opened.close()
    held = io.BytesIO(path.read_bytes())
    opened = ckpt.open(held)
    held.close()
    with pytest.raises(
        CkptError, match=r"^\(file object\): the file object is closed$"
    ):
        opened["a.weight"].numpy()


def test_a_file_object_that_changes(path: Path) -> None:
    held = io.BytesIO(path.read_bytes())
    opened = ckpt.open(held)
    held.truncate(400)
    with pytest.raises(CkptError, match="changed while it was read"):
        opened["a.weight"].numpy()
    with path.open("r+b") as file, ckpt.open(file) as opened:
        os.utime(path, (1, 1))
        with pytest.raises(CkptError, match="changed while it was read"):
            opened["a.weight"].numpy()


class Stream(io.BytesIO):
    """A file that cannot seek."""

    def seekable(self) -> bool:
        return False


def test_what_is_not_a_binary_file_that_seeks(path: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb") as pipe,
        path.open(encoding="latin-1") as text,
        (tmp_path / "w").open("wb") as out,
    ):
        for file, problem in (
            (
                Stream(b"x"),
                "cannot seek: give ckpt.open its path, or its bytes: file.read()",
            ),
            (pipe, "cannot seek"),
            (text, "is open as text"),
            (io.StringIO("x"), "is open as text"),
            (out, "is not open for reading"),
        ):
            for take in (ckpt.open, ckpt.inspect):
                with pytest.raises(TypeError) as error:
                    take(file)  # type: ignore[operator]
                assert problem in str(error.value) and "\n" not in str(error.value)
    os.close(writing)


@pytest.mark.parametrize("wrong", [3, None, 1.5, ["a.pt"], torch.ones(1), np.ones(1)])
def test_another_type(wrong: Any, path: Path) -> None:
    kind = type(wrong).__name__
    for take in (ckpt.open, ckpt.inspect, lambda given: ckpt.diff(path, given)):
        with pytest.raises(TypeError) as error:
            take(wrong)  # type: ignore[operator]
        assert (
            str(error.value)
            == f"one path, bytes or a binary file is taken here, not {kind}"
        )


def test_a_live_state_names_the_way_into_a_file(path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"not OrderedDict \(a state dict is a file af"):
        ckpt.diff(model.state_dict(), path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not Linear \(ckpt\.snapshot writes a live"):
        ckpt.diff(model, path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not Linear: .*load_into\(model\) fills"):
        ckpt.warmstart(path, into_model=model, dry_run=True)  # type: ignore[arg-type]


def test_bytes_of_one_file_of_several(tmp_path: Path) -> None:
    index = shards({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path)
    for take in (index.read_bytes(), io.BytesIO(index.read_bytes())):
        with pytest.raises(
            CkptError, match=r"^\((memory|file object)\): not a checkpoint: JSON"
        ):
            ckpt.open(take)
    with index.open("rb") as handle, pytest.raises(CkptError) as error:
        ckpt.open(handle)
    assert (
        str(error.value)
        == f"{index}: it needs model-00001-of-00002.bin beside it (open it by its path)"
    )


@pytest.mark.parametrize(
    "data", [b"", b"x", b"PK\x03\x04", b"\x80\x02", b"{}", bytes(4096)]
)
def test_bytes_that_are_no_checkpoint(data: bytes) -> None:
    for take in (data, io.BytesIO(data)):
        with pytest.raises(CkptError, match=r"^\((memory|file object)\): "):
            ckpt.open(take)


# --- closed ---------------------------------------------------------------------------


@pytest.mark.needs("live")
@pytest.mark.parametrize("given", ["path", "bytes", "file", "object"])
def test_a_closed_checkpoint_says_so(given: str, path: Path) -> None:
    data = path.read_bytes()
    take = {"path": path, "bytes": data, "object": io.BytesIO(data)}.get(
        given
    ) or path.open("rb")
    opened = ckpt.open(take)  # type: ignore[arg-type]
    if isinstance(take, io.BufferedReader):
        take.close()
    ref, twin = opened["a.weight"], ckpt.open(path)["a.weight"]
    section = opened.sections[0]
    shard = next(iter(opened.shards()))
    number, role = hash(opened), ref.role
    opened.close()
    opened.close()

    uses: list[Callable[[], object]] = [
        ref.numpy, ref.torch, lambda: ref[0], lambda: np.asarray(ref), lambda: list(ref),
        lambda: opened["a.weight"], lambda: opened["none"], lambda: opened.get("x"), lambda: "a" in opened,
        lambda: list(opened), lambda: len(opened), lambda: opened.values, lambda: opened.value("x"),
        lambda: opened.sections, lambda: opened.section("x"), lambda: next(opened.shards()), opened.state_dict,
        lambda: opened.load_into(torch.nn.Linear(1, 1)), lambda: opened.survey, opened.check_unchanged,
        lambda: dict(opened.items()), lambda: list(section), lambda: len(section), lambda: section["a.weight"],
        lambda: shard["a.weight"], lambda: ckpt.inspect(opened), lambda: ckpt.diff(opened, path),
        lambda: pickle.dumps(opened), lambda: pickle.dumps(ref),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(CkptError) as error:
            use()
        assert str(error.value) == f"{opened.path}: the checkpoint is closed"
    assert (ref.name, ref.shape, ref.dtype, ref.device) == (
        "a.weight",
        (3, 4),
        "float32",
        "cpu",
    )
    assert (ref.nbytes, ref.stride, ref.role) == (48, (4, 1), role)
    assert (
        opened.format == "torch-zip"
        and repr(opened).endswith(": closed>")
        and "a.weight" in repr(ref)
    )
    assert opened._repr_html_() is None and hash(opened) == number and opened == opened
    assert ref == ref and (ref == twin) is (given in ("path", "file"))


def test_leaving_the_block_closes_it(path: Path) -> None:
    with ckpt.open(path) as opened:
        assert opened._repr_html_()
    with pytest.raises(CkptError, match="the checkpoint is closed"):
        len(opened)


@pytest.mark.needs("live")
@pytest.mark.parametrize(
    "save", [stored, shards, distributed], ids=lambda save: save.__name__
)
def test_a_file_that_another_thread_closes(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is closed while a read runs: between its start and its bytes."""
    place = save({"a": torch.ones(300), "b": torch.ones(300)}, tmp_path)
    read_into = source.File.read_into
    for read in (ckpt.Ref.numpy, ckpt.Ref.torch, lambda ref: ref[3:5]):
        opened = ckpt.open(place)
        ref = opened["a"]

        def closing(
            file: source.File,
            offset: int,
            buffer: memoryview,
            opened: ckpt.Checkpoint = opened,
        ) -> None:
            thread = threading.Thread(target=opened.close)
            thread.start()
            thread.join()
            read_into(file, offset, buffer)

        ref.numpy()
        monkeypatch.setattr(source.File, "read_into", closing)
        with pytest.raises(CkptError) as error:
            read(ref)  # type: ignore[operator]
            ref.numpy()
        monkeypatch.setattr(source.File, "read_into", read_into)
        assert str(error.value) == f"{opened.path}: the checkpoint is closed"


def test_an_own_descriptor_that_another_thread_closes(path: Path) -> None:
    with path.open("rb") as file:
        opened = ckpt.open(file)
    inner = opened.checkpoint.source
    assert isinstance(inner, source.File)
    with inner.descriptor() as fd:
        assert fd is not None
        opened.close()
        assert os.pread(fd, 2, 0) == b"PK"  # whoever reads already may end it
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(fd, 2, 0)
    with pytest.raises(CkptError, match="the checkpoint is closed"):
        inner.read(0, 2)


# --- equality -------------------------------------------------------------------------


@pytest.mark.parametrize("save", CONTAINERS, ids=lambda save: save.__name__)
def test_two_opens_of_one_file_are_equal(save: Save, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    made = strided(torch.ones(6, 7, 8))
    place = save(made, tmp_path)
    with (
        ckpt.open(place) as one,
        ckpt.open(str(place)) as two,
        ckpt.open(save(made, tmp_path / "other")) as other,
    ):
        assert (
            one == one
            and one == two
            and hash(one) == hash(two)
            and one != other
            and one != dict(two)
        )
        assert one["whole"] == two["whole"] and hash(one["whole"]) == hash(two["whole"])
        assert (
            one["whole"] != one["rows"]
            and one["whole"] != other["whole"]
            and one["whole"] != "whole"
        )
        assert set(one.values()) == set(two.values()) and len(set(one.values())) == len(
            made
        )
        assert one.sections == two.sections and hash(one.sections) == hash(two.sections)
        assert (
            list(one.shards()) == list(two.shards()) and one.sections != other.sections
        )
    with ckpt.open(place, partial=True) as partial:
        assert partial != one


def test_a_changed_file_is_another_one(path: Path) -> None:
    one = ckpt.open(path)
    os.utime(path, (1, 1))
    assert one != ckpt.open(path)
    data = path.read_bytes()
    assert ckpt.open(data) == ckpt.open(bytearray(data)) and ckpt.open(
        data
    ) != ckpt.open(data[:-1] + b"\1", partial=True)
    file = io.BytesIO(data)
    assert ckpt.open(file) != ckpt.open(file) and (
        ckpt.open(path)["a.weight"] == np.ones((3, 4))
    ).shape == (
        3,
        4,
    )


# --- parts ----------------------------------------------------------------------------


def test_sections(samples: Path) -> None:
    with ckpt.open(samples / "train_cuda.pth") as opened:
        summary = ckpt.inspect(opened).sections
        sections = opened.sections
        assert [
            (row.name, row.kind, row.tensor_count, row.nbytes) for row in sections
        ] == [tuple(row) for row in summary]
        model = opened.section("model")
        assert (
            isinstance(model, ckpt.Section)
            and len(model) == model.tensor_count
            and model in sections
        )
        assert [ref.name for ref in model.tensors] == [
            model[name].name for name in model
        ]
        assert model["module.fc.weight"] == opened["model.module.fc.weight"]
        assert {f"model.{name}" for name in model} < set(
            opened
        ) and model.nbytes == sum(r.nbytes for r in model.values())
        assert all(
            ref.section == section.name
            for section in sections
            for ref in section.values()
        )
        assert repr(model) == (
            f"<ckpt.Section model: model, {len(model)} tensors, "
            f"{repr(model).rpartition(', ')[2]}"
        )
        with pytest.raises(KeyError, match=r"did you mean module\.fc\.weight"):
            model["module.fc.wieght"]
        with pytest.raises(UsageError, match=r"no section modle \(did you mean model"):
            opened.section("modle")


def test_the_section_at_the_root(path: Path) -> None:
    with ckpt.open(path) as opened:
        assert dict(opened.section("")) == dict(opened) and "(the root)" in repr(
            opened.section("")
        )


@pytest.mark.parametrize("save", CONTAINERS, ids=lambda save: save.__name__)
def test_shards_hold_every_tensor_once(save: Save, tmp_path: Path) -> None:
    made = {f"w{number}": torch.full((3,), float(number)) for number in range(9)}
    with ckpt.open(save(made, tmp_path)) as opened:
        files = list(opened.shards())
        names = [name for file in files for name in file]
        assert sorted(names) == sorted(made) and len(files) == (
            2 if save is shards else 1
        )
        assert all(file[name] == opened[name] for file in files for name in file)
        assert sum(file.nbytes for file in files) == 9 * 12
        if save is shards:
            assert [file.name for file in files] == [
                "model-00001-of-00002.bin",
                "model-00002-of-00002.bin",
            ]
            assert list(files[0]) == ["w0", "w2", "w4", "w6", "w8"] and repr(
                files[0]
            ).startswith("<ckpt.Shard model-0")
        if save is stored:
            assert files[0].name == "a.pt"


def test_shards_of_tensors_without_bytes(tmp_path: Path) -> None:
    made = {
        "m": torch.ones(2, device="meta"),
        "a": torch.ones(1),
        "s": torch.eye(2).to_sparse(),
        "e": torch.ones(0),
    }
    with ckpt.open(stored(made, tmp_path)) as opened:
        assert [list(file) for file in opened.shards()] == [["m", "a", "s", "e"]]


# --- other processes ------------------------------------------------------------------


def test_pickling(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    limits = Limits(depth=99)
    opened = ckpt.open("a.pt", limits=limits)
    ref = opened["a.weight"]
    data, data_of_ref = pickle.dumps(opened), pickle.dumps(ref)
    both = pickle.loads(pickle.dumps((opened, ref)))
    monkeypatch.chdir("/")
    again = pickle.loads(data)
    assert (
        is_read(again)
        and again == opened
        and again.limits == limits
        and not again.plugins
    )
    assert (
        pickle.loads(data_of_ref) == ref
        and pickle.loads(data_of_ref).numpy().sum() == 66
    )
    both[0].close()
    with pytest.raises(CkptError, match="is closed"):
        both[1].numpy()
    os.utime(path, (1, 1))
    for one in (data, data_of_ref):
        with pytest.raises(
            CkptError, match=r"a\.pt: the file changed after it was opened"
        ):
            pickle.loads(one)
    path.unlink()
    with pytest.raises(CkptError, match="no such file"):
        pickle.loads(data)


def test_pickling_bytes_and_files(path: Path) -> None:
    opened = ckpt.open(path.read_bytes())
    assert pickle.loads(pickle.dumps(opened)) == opened and is_read(
        pickle.loads(pickle.dumps(opened))
    )
    for file in (path.open("rb"), io.BytesIO(path.read_bytes())):
        with (
            closing(file),
            pytest.raises(
                TypeError, match="opened from a file object does not pickle: open it"
            ),
        ):
            pickle.dumps(ckpt.open(file)["a.weight"])


def test_another_process_reads(tmp_path: Path) -> None:
    made = {f"w{number}": torch.full((3,), float(number)) for number in range(9)}
    with processes.pool(1) as pool:
        for save in (stored, shards, distributed):
            (tmp_path / save.__name__).mkdir()
            with ckpt.open(save(made, tmp_path / save.__name__)) as opened:
                assert pool.submit(total, opened).result() == 3 * 36
                assert pool.submit(total, opened["w5"]).result() == 15


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_reads(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with ckpt.open(path) as opened:
        opened["a.weight"].numpy()
        children = [
            context.Process(target=sum_into, args=(queue, opened)) for _ in range(3)
        ]
        for child in children:
            child.start()
        assert {queue.get() for _ in children} == {68.0} and total(opened) == 68
        for child in children:
            child.join()
            assert child.exitcode == 0


@pytest.mark.needs("live")
@pytest.mark.parametrize("save", CONTAINERS, ids=lambda save: save.__name__)
def test_threads_read_at_once(save: Save, tmp_path: Path) -> None:
    made = {f"w{number}": torch.randn(50, 40)[:, :30].t() for number in range(40)}
    place = save(made, tmp_path)
    opened: list[Any] = [
        ckpt.open(place),
        ckpt.open(Unnamed(place.read_bytes())) if save is stored else None,
    ]
    for one in filter(None, opened):
        failed: list[str] = []
        begin = threading.Barrier(8)

        def read(
            number: int,
            one: ckpt.Checkpoint = one,
            failed: list[str] = failed,
            begin: threading.Barrier = begin,
        ) -> None:
            begin.wait()
            names = list(one)
            for name in names[number * 5 :] + names[: number * 5]:
                ref = one[name]
                good = torch.equal(ref.torch(), made[name]) and np.array_equal(
                    ref[3:5], made[name].numpy()[3:5]
                )
                if not good:
                    failed.append(name)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed


class Watched(Unnamed):
    """A file object that tries, from another thread, to use its source in the middle of
    a read.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.lock: threading.RLock | None = None  # type: ignore[valid-type]
        self.free: list[bool] = []

    def read(self, count: int = -1) -> bytes:
        if self.lock is not None:
            thread = threading.Thread(
                target=lambda: self.free.append(self.lock.acquire(blocking=False))
            )
            thread.start()
            thread.join()
        return super().read(count)


def test_threads_take_turns_with_a_file_object(path: Path) -> None:
    file = Watched(path.read_bytes())
    with ckpt.open(file) as opened:  # type: ignore[arg-type]
        inner = opened.checkpoint.source
        assert isinstance(inner, source.FileObject)
        file.lock = inner._lock
        assert is_read(opened) and file.free and not any(file.free)


# --- sizes and types ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 64, 2_100, 100_000])
def test_many_tensors(count: int, tmp_path: Path) -> None:
    names = [f"model.layers.{number}.weight" for number in range(count)]
    header = {
        name: {
            "dtype": "F32",
            "shape": [1],
            "data_offsets": [4 * number, 4 * number + 4],
        }
        for number, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    (tmp_path / "a.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + np.arange(count, dtype="f4").tobytes()
    )
    with (
        ckpt.open(tmp_path / "a.safetensors") as opened,
        ckpt.open(tmp_path / "a.safetensors") as other,
    ):
        assert len(opened) == count and list(opened) == names and opened == other
        last = opened[f"model.layers.{count - 1}.weight"]
        assert (
            last.numpy() == count - 1
            and last.section == ""
            and last.role == "parameter"
        )
        assert last == other[last.name] and len(opened.section("")) == count
        assert [len(file) for file in opened.shards()] == [count]


TYPED = """
import ckpt
with ckpt.open("a.pt") as c:
    for name, ref in c.items():
        reveal_type(name)
        reveal_type(ref.numpy())
        reveal_type(ref.shape)
    reveal_type(c["a"])
    reveal_type(c.sections)
    reveal_type(c.section("a")["b"])
    reveal_type(c.state_dict())
    reveal_type([file.name for file in c.shards()])
ckpt.open(b"x")
ckpt.open(open("a.pt", "rb"))
ckpt.inspect(open("a.pt", "rb"))
"""


@pytest.mark.slow
def test_the_types_that_mypy_sees(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    root = Path(ckpt.__file__).parents[1]
    (tmp_path / "use.py").write_text(TYPED)
    before = os.environ.get("MYPYPATH")
    os.environ["MYPYPATH"] = str(root)
    try:
        out, err, _ = api.run(
            [
                "--strict",
                "--follow-imports=silent",
                f"--cache-dir={root}/.mypy_cache",
                str(tmp_path / "use.py"),
            ]
        )
    finally:
        os.environ.pop("MYPYPATH") if before is None else os.environ.update(
            MYPYPATH=before
        )
    types = [
        line.partition("is ")[2].strip('"').replace("builtins.", "")
        for line in out.splitlines()
        if "Revealed" in line
    ]
    assert " error: " not in out and not err, out
    assert (
        types[0] == "str"
        and types[1].startswith("numpy.ndarray")
        and types[2] == "tuple[int, ...]"
    )
    assert (
        types[3] == "ckpt.surface.api.reference.Ref"
        and types[4] == "tuple[ckpt.surface.api.sections.Section, ...]"
    )
    assert (
        types[5] == "ckpt.surface.api.reference.Ref"
        and types[6] == "dict[str, Any]"
        and types[7] == "list[str]"
    )

"""Files of other programs, and checkpoints inside of something else: each is named as
what it is, with what opens it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shlex
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import oracle
import pytest
import torch
from answered import Answered
from inside import inside
from process import check_error, ckpt

pytestmark = oracle.QUIET

REFUSED = "_pickle.UnpicklingError: invalid load key, 'x'."
TABLE = bytes(200) + struct.pack("<Q", 0xDB4775248B80FB57)
PROGRAMS: dict[str, tuple[str, bytes, str, str]] = {
    "ggml": (
        "ggml-base.bin",
        struct.pack("<I", 0x67676D6C),
        "ggml (whisper.cpp",
        "converted for opens it",
    ),
    "ggjt": (
        "ggml-model.bin",
        struct.pack("<I", 0x67676A74),
        "ggml (whisper.cpp",
        "converted for opens it",
    ),
    "hdf5": ("m.h5", b"\x89HDF\r\n\x1a\n", "hdf5 (keras?)", "h5py opens it"),
    "onnx": (
        "m.onnx",
        b"\x08\x08\x12\x07pytorch\x1a\x052.0.0",
        "onnx",
        "onnxruntime opens it",
    ),
    "saved model": (
        "saved_model.pb",
        b"\x08\x01\x12\x90\4\x0a\x84\2",
        "a tensorflow savedmodel",
        "tf.saved_model",
    ),
    "coreml": ("m.mlmodel", b"\x08\x04\x12\x90\4\x0a\x84\2", "coreml", "coremltools"),
    "tensorrt": ("m.engine", b"ftrt", "tensorrt engine", "the tensorrt that built it"),
    "ultralytics' engine": (
        "m.engine",
        b'\x40\0\0\0{"description": ',
        "tensorrt engine",
        "built it opens it",
    ),
    "tflite": ("m.tflite", b"\x1c\0\0\0TFL3", "tensorflow lite", "tf.lite.interpreter"),
    "flax": (
        "flax_model.msgpack",
        b"\x82\xa4bert\x81\xa6kernel\xc7",
        "msgpack (flax?)",
        "msgpack_restore",
    ),
    "ctranslate2": (
        "model.bin",
        b"\x06\0\0\0\x0c\0WhisperSpec\0",
        "ctranslate2",
        "faster-whisper",
    ),
    "fasttext": (
        "cc.en.300.bin",
        struct.pack("<I", 793712314),
        "fasttext",
        "fasttext.load_model",
    ),
    "darknet": (
        "yolov3.weights",
        struct.pack("<iii", 0, 2, 5),
        "darknet (yolo)",
        "readnet",
    ),
    "caffe": ("x.caffemodel", b"\x0a\x07resnet5", "caffe", "readnetfromcaffe"),
    "mindspore": (
        "x.ckpt",
        b"\x0a\x30\x0a\x0cconv1.weight\x12",
        "mindspore",
        "mindspore.load_checkpoint",
    ),
    "tf data": (
        "m.ckpt-9.data-00000-of-00001",
        b"\x3f\x80",
        "the data of a tensorflow",
        "tf.train.load",
    ),
    "tf index": (
        "m.ckpt-9.index",
        TABLE,
        "a tensorflow checkpoint",
        "by the name before .index",
    ),
    "tf version 1": (
        "m.ckpt",
        TABLE,
        "a tensorflow checkpoint",
        "tf.train.load_checkpoint opens it",
    ),
    "tf meta": (
        "m.ckpt-9.meta",
        b"\n\x9c\x0a\x12",
        "the graph of a tensorflow",
        "in the files beside it",
    ),
    "tf list": (
        "checkpoint",
        b'model_checkpoint_path: "m.ckpt-9"\n',
        "the list of tensorflow's",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_file_of_another_program_is_named(kind: str, tmp_path: Path) -> None:
    name, content, what, opener = PROGRAMS[kind]
    rest = (
        b"" if content is TABLE or content.endswith(b"\n") else Random(0).randbytes(300)
    )
    (tmp_path / name).write_bytes(content + rest)
    line = check_error(
        ckpt("inspect", name, cwd=tmp_path),
        f"{name}: not a pytorch checkpoint: {what}".lower(),
    )
    assert opener in line.lower()
    verified = inside("verify", name, cwd=tmp_path)
    assert (
        verified.code == 2
        and b"unreadable" in verified.out
        and b"damaged" not in verified.out
    )
    found = Answered(REFUSED, tmp_path / name)
    assert (
        what in found.page.lower()
        and "damaged" not in found.page
        and not found.commands
    )


@pytest.mark.parametrize(
    ("head", "more", "said"),
    [
        (
            struct.pack("<iiii", 0, 1, 0, 7),
            40,
            "10 float32 numbers behind a header of 16 bytes (darknet and",
        ),
        (
            struct.pack("<iiiq", 0, 2, 5, 7),
            40,
            "10 float32 numbers behind a header of 20 bytes (darknet and",
        ),
        (
            struct.pack("<iiiq", 0, 2, 5, 7),
            42,
            "and 2 bytes more (an unfinished download)",
        ),
    ],
)
def test_weights_of_darknet_are_counted(
    head: bytes, more: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "yolo.weights").write_bytes(head + bytes(range(more)))
    check_error(ckpt("inspect", "yolo.weights", cwd=tmp_path), said)


@pytest.mark.parametrize(
    "name", ["m.bin", "m.ckpt", "m.weights", "m.msgpack", "m.engine", "m.meta"]
)
def test_a_name_alone_says_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xee\x01\x02" + bytes(range(200)))
    check_error(
        ckpt("inspect", name, cwd=tmp_path), "its first bytes match no known format"
    )


def test_a_model_of_keras_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            archive.writestr(name, "{}")
    check_error(
        ckpt("inspect", "m.keras", cwd=tmp_path),
        "not a pytorch checkpoint: keras (keras.models.load_model",
    )


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (
            ("saved_model.pb", "variables/variables.index"),
            "tensorflow savedmodel (tf.saved_model.load opens it)",
        ),
        (
            ("m.index", "m.data-00000-of-00001"),
            "tensorflow checkpoint (tf.train.load_checkpoint opens it)",
        ),
        (("Manifest.json", "Data/weight.bin"), "coreml package (coremltools"),
    ],
)
def test_a_folder_of_another_program_is_named(
    names: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / "saved" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / name).write_bytes(b"x")
    check_error(
        ckpt("inspect", "saved", cwd=tmp_path), f"not a pytorch checkpoint: a {what}"
    )


# --- inside of something else ---------------------------------------------------------


def saved(*, legacy: bool = False) -> bytes:
    stream = io.BytesIO()
    state = {"weight": torch.arange(6.0), "bias": torch.ones(2)}
    torch.save(state, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def packed(*names: str, mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(saved())
            archive.addfile(member, io.BytesIO(saved()))
    return stream.getvalue()


def lzma_alone(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_ALONE)


def taken_out(path: Path, result: str) -> None:
    """Run the only command that the answer prints, and load its result."""
    (command,) = Answered(REFUSED, path).commands
    subprocess.run(command, shell=True, cwd=path.parent, check=True)
    loaded = torch.load(path.parent / result, weights_only=True)
    assert torch.equal(loaded["weight"], torch.arange(6.0)) and len(loaded) == 2


@pytest.mark.slow
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("name", "compress", "what", "result"),
    [
        ("w.pth.gz", gzip.compress, "compressed with gzip", "w.pth"),
        ("w.pth", gzip.compress, "compressed with gzip", "w.unpacked.pth"),
        ("w.pth.bz2", bz2.compress, "compressed with bzip2", "w.pth"),
        ("w.pth.xz", lzma.compress, "compressed with xz", "w.pth"),
    ],
)
def test_the_command_unpacks(
    name: str, compress: object, what: str, result: str, legacy: bool, tmp_path: Path
) -> None:
    assert callable(compress)
    (tmp_path / name).write_bytes(compress(saved(legacy=legacy)))
    check_error(ckpt("inspect", name, cwd=tmp_path), f"{name}: {what} (")
    taken_out(tmp_path / name, result)


@pytest.mark.parametrize(
    ("compress", "what"), [(zlib.compress, "zlib"), (lzma_alone, "lzma")]
)
def test_what_no_usual_program_unpacks_is_named_too(
    compress: Callable[[bytes], bytes], what: str, tmp_path: Path
) -> None:
    (tmp_path / "w.pth").write_bytes(compress(saved(legacy=True)))
    says = f"compressed with {what} (unpack it first)"
    check_error(ckpt("inspect", "w.pth", cwd=tmp_path), f"w.pth: {says}")
    for command in ("lint", "verify"):
        done = ckpt(command, "w.pth", cwd=tmp_path)
        assert done.code == 2 and says in (done.out + done.err).decode()


@pytest.mark.parametrize(
    ("name", "mode", "what"),
    [
        ("real.pth.tar", "w", "a tar archive"),
        ("real.tar.gz", "w:gz", "a tar archive in gzip"),
        ("real.tar.bz2", "w:bz2", "a tar archive in bzip2"),
        ("real.tgz", "w:gz", "a tar archive in gzip"),
        ("real.pth", "w:xz", "a tar archive in xz"),
    ],
)
def test_a_tar_archive_says_which_checkpoint_it_holds(
    name: str, mode: str, what: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(packed("notes.md", "./run/model.pth", mode=mode))
    check_error(
        ckpt("inspect", name, cwd=tmp_path),
        f"{name}: {what} with run/model.pth (tar -xf {name})",
    )
    taken_out(tmp_path / name, "run/model.pth")


def test_a_tar_archive_that_is_cut_off_names_what_it_begins_with(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.tar").write_bytes(packed("a.pth", "b.pth", "c.pth")[:-9_000])
    check_error(ckpt("inspect", "a.tar", cwd=tmp_path), "a tar archive with a.pth")


def zipped(path: Path, root: str, more: tuple[str, ...] = ()) -> None:
    """Write the records of torch.save under other names."""
    with zipfile.ZipFile(io.BytesIO(saved())) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(root + name.removeprefix("archive/"), old.read(name))
        for name in more:
            new.writestr(name, b"" if name.endswith("/") else b"\0\5\x16\7")


@pytest.mark.parametrize(
    ("root", "more", "where"),
    [
        ("archive/archive/", (), "lies in archive/archive/, too deep for torch"),
        (
            "up load/archive/",
            ("__MACOSX/archive/._data.pkl",),
            "lies in up load/archive/, too deep for torch",
        ),
        ("", (), "lies at its root, where torch wants a folder"),
    ],
)
def test_an_archive_that_was_zipped_again_is_not_damaged(
    root: str, more: tuple[str, ...], where: str, tmp_path: Path
) -> None:
    path = tmp_path / "again.pth"
    zipped(path, root, more)
    with pytest.raises(RuntimeError):
        torch.load(path)
    for words in (("inspect", "again.pth"), ("salvage", "again.pth", "-o", "out.pth")):
        line = check_error(
            ckpt(*words, cwd=tmp_path), "unpacked and zipped again: data.pkl lies"
        )
        assert where in line and "cut off" not in line
    assert b"damaged" not in inside("verify", "again.pth", cwd=tmp_path).out
    (command,) = Answered(
        'Expected hasRecord("version") to be true, but got false.', path
    ).commands
    unzip, _, convert = command.partition(" && ")
    with zipfile.ZipFile(path) as archive:
        assert unzip == "unzip -q again.pth -d again.unpacked"
        archive.extractall(tmp_path / "again.unpacked")
    words = shlex.split(convert)
    assert words[0] == "ckpt" and ckpt(*words[1:], cwd=tmp_path).code == 0
    assert torch.equal(torch.load(tmp_path / words[-1])["weight"], torch.arange(6.0))


def test_two_unpacked_archives_in_one_are_counted(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for name in ("run/a/data.pkl", "run/a/version", "run/b/data.pkl"):
            archive.writestr(name, b"x")
    check_error(
        ckpt("inspect", "two.zip", cwd=tmp_path),
        "a zip archive of 2 unpacked archives of torch.save",
    )


@pytest.mark.parametrize(
    "more", [("__MACOSX/archive/._data.pkl",), ("w/", "w/data/"), ("notes.txt",)]
)
def test_records_outside_are_left_behind_in_a_new_file(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "mac.pth"
    zipped(path, "archive/", more)
    with pytest.raises(RuntimeError) as caught:
        torch.load(path)
    found = Answered(f"RuntimeError: {caught.value}", path)
    assert (
        found.code == 0
        and "torch refuses the archive" in found.said
        and "another one" not in found.said
    )
    loaded = torch.load(found.run("ckpt convert"), weights_only=True)
    assert torch.equal(loaded["weight"], torch.arange(6.0)) and len(loaded) == 2
    for words in (("salvage",), ("slim",), ("rehome", "--to", "cuda")):
        out = tmp_path / f"{words[0]}.pth"
        done = ckpt(words[0], path.name, *words[1:], "-o", out.name, cwd=tmp_path)
        assert done.code == 0, done
        assert len(torch.load(out, map_location="cpu", weights_only=True)) == 2
        held = [name for name in more if not name.endswith("/")]
        assert all(name in done.out.decode() + done.err.decode() for name in held)
    compared = ckpt("diff", "mac.pth", "salvage.pth", cwd=tmp_path)
    assert compared.code == 0 and b"lost" not in compared.out + compared.err

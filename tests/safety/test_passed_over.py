"""A gate over a folder passes no file over: what lies beside a checkpoint, and what
begins as a pickle, is judged.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from pathlib import Path

import frameworks_dcp as written
import numpy as np
import pytest
import torch
from inside import inside
from opcodes import call, glob, mapping, pickled
from process import check_error
from safetensors.torch import load_file, save_file

EVIL = pickled(call(glob("builtins", "print"), "runs"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["evil.pt", "evil.pkl", "sub/evil.pt", "__9_9.distcp", "__9.metadata"]
)
@pytest.mark.parametrize(
    "inside_of", ["pytorch_model_fsdp_0", "optimizer_0", "optimizer_0 alone"]
)
def test_a_stranger_in_a_part_of_a_folder_is_judged(
    name: str, inside_of: str, tmp_path: Path
) -> None:
    folder, _ = written.accelerate(tmp_path / "state")
    if inside_of.endswith(" alone"):
        folder /= "optimizer_0"
    path = folder / inside_of / name if inside_of.endswith("_0") else folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(EVIL)

    done = inside("lint", "--level", "error", folder, cwd=tmp_path)

    assert done.code == 1 and b"builtins.print('runs')" in done.out, done


def test_a_data_file_that_begins_as_a_pickle_is_judged(tmp_path: Path) -> None:
    folder, _ = written.accelerate(tmp_path / "state")
    data = folder / "optimizer_0/__0_0.distcp"
    data.write_bytes(EVIL + data.read_bytes()[len(EVIL) :])

    assert inside("lint", "--level", "error", folder, cwd=tmp_path).code == 1


@pytest.mark.needs("pickles")
def test_weights_beside_the_ones_that_are_read_are_judged(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    torch.save({"w": torch.ones(2)}, tmp_path / "optimizer.pt")
    (tmp_path / "pytorch_model.bin").write_bytes(EVIL)

    done = inside("lint", "--level", "error", ".", cwd=tmp_path)

    assert done.code == 1 and b"builtins.print('runs')" in done.out, done


CALL = call(glob("builtins", "print"), "runs") + b"."
EQUAL = b"".join(
    b"\x8a\x09" + (n * (2**61 - 1)).to_bytes(9, "little") + b"N"
    for n in range(1, 1_500)
)
LONG = b"X" + (2 << 20).to_bytes(4, "little") + bytes(2 << 20) + b"0"
EARLY = {
    "with a far slot alone": b"}p268435456\n.",
    "behind NEWTRUE": b"\x880" + CALL,
    "behind NEWFALSE": b"\x890" + CALL,
    "behind LONG1": b"\x8a\x000" + CALL,
    "behind LONG4": b"\x8b\x00\x00\x00\x000" + CALL,
    "behind a long text": LONG + CALL,
    "behind many long texts": LONG * 3 + CALL,
    "behind a megabyte of numbers": b"K\x010" * 600_000 + CALL,
    "odd: behind a long float": b"F" + b"0" * 100 + b"\n0" + CALL,
    "odd: behind a number with zeros": b"I0001\n0" + CALL,
    "odd: behind a number with a sign": b"I+1\n0" + CALL,
    "odd: behind a number of base 16": b"I0x10\n0" + CALL,
    "odd: behind a number with a blank": b"I 1\n0" + CALL,
    "odd: behind a number with a line": b"I1_0\n0" + CALL,
    "odd: behind a slot with a blank": b"Np 1\n0" + CALL,
    "odd: behind a number with a NUL": b"I1\0a\n0" + CALL,
    "odd: behind a long number with a NUL": b"L1\0aL\n0" + CALL,
    "odd: behind a float with a NUL": b"F1.5\0a\n0" + CALL,
    "odd: behind a slot with a NUL": b"Np1\0a\n0" + CALL,
    "odd: behind less than nothing": b"I-0\n0" + CALL,
    "odd: behind an item of a list": b"(NlI0\nNs0" + CALL,
    "odd: behind a state of None": b"NNb0" + CALL,
    "odd: behind a buffer": b"C\x01a\x980" + CALL,
    "odd: behind bytes that grow": b"\x96" + bytes(8) + b"K\x01a0" + CALL,
    "odd: behind deep tuples": b"(" * 100 + b"N" + b"t" * 100 + b"0" + CALL,
    "odd: behind wide tuples": b"N\x85" + b"2\x86" * 30 + b"0" + CALL,
    "odd: behind a frame that ends early": b"\x95\x03" + bytes(7) + b"N0K\x010" + CALL,
    "odd: behind frames in frames": b"\x95\x14"
    + bytes(7)
    + b"N0\x95\x04"
    + bytes(7)
    + b"N0N0N0N0N0"
    + CALL,
    "odd: behind keys of one hash": b"}(" + EQUAL + b"u0" + CALL,
    "odd: behind a text on a long line": b"V" + b"a" * 70_000 + b"\n0" + CALL,
    "odd: behind texts on longer lines": (b"S'" + b"a" * (2 << 20) + b"'\n0") * 2
    + CALL,
    "of a module beside it": b"(]cevil_mod\nx\n.\n",
    "of a module beside it, broken": b"K\x010cevil_mod\nx\n\xff",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.pkl", "x.dat", "x.bin", "x.pkl.gz"])
@pytest.mark.parametrize("kind", EARLY)
def test_a_pickle_is_known_by_any_first_opcode(
    kind: str, name: str, tmp_path: Path
) -> None:
    data = EARLY[kind]
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    is_refused = (
        kind.startswith("odd")
        or "beside it" in kind
        or "far" in kind
        or ("many" in kind and name.endswith(".gz"))
    )  # damaged, inflates too far
    for words in (("lint", "."), ("lint", "--skip-others", "--", name)):
        done = inside(*words, cwd=tmp_path)

        assert done.code == (2 if is_refused else 1), done
        assert b"not looked at" not in done.err and b"skipped" not in done.err, done


@pytest.mark.parametrize("kind", [kind for kind in EARLY if kind.startswith("odd")])
def test_python_runs_what_is_odd(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pickle.loads(EARLY[kind])

    assert capsys.readouterr().out == "runs\n"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    "first",
    [
        b"Title,Name\n",
        b"XML\n",
        b"Begin\n",
        b"cat\ndog\n",
        b"(a)\n",
        b"In\n",
        b"Zz\n",
        b"I18n\n",
        b"Float\n",
        b"V1,V2," + b"V3," * 30_000 + b"\n",
        b"S" * 100_000 + b"\n",
        b"String," * 20_000 + b"\n",
        b"Id," * 30_000,
    ],
)
def test_a_text_is_no_pickle(first: bytes, suffix: str, tmp_path: Path) -> None:
    data = first + b"some more words, 1\n" * 150_000
    (tmp_path / f"notes.txt{suffix}").write_bytes(
        gzip.compress(data) if suffix else data
    )
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")

    done = inside("lint", ".", cwd=tmp_path)

    assert done.code == 0 and b"1 file not looked at" in done.err, done


def polyglot() -> bytes:
    """A safetensors file in which a pickle passes over the header, as texts, and begins
    in the data.
    """
    header_bytes, data_bytes = (
        0x0558,
        1024,
    )  # X takes the five bytes behind the length's first four
    end = f'":{{"dtype":"U8","shape":[{data_bytes}],"data_offsets":[0,{data_bytes}]}}}}'.encode()
    left, key = header_bytes - 2, b""
    while left > 128:
        key += b"U~" + b"a" * 126
        left -= 128
    key += b"U" + bytes([left - 2])
    key += b"b" * (header_bytes - 2 - len(end) - len(key))
    data = glob("builtins", "print") + b"(X\x04\x00\x00\x00runstR."
    return (
        header_bytes.to_bytes(8, "little")
        + b'{"'
        + key
        + end
        + data
        + bytes(data_bytes - len(data))
    )


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model.pt", "model.bin", "model"]
)
def test_a_safetensors_file_that_is_a_pickle_is_refused(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(polyglot())
    assert list(load_file(path)) and len(polyglot()) == 8 + 0x0558 + 1024

    assert b"two files in one" in inside("lint", ".", cwd=tmp_path).err
    check_error(inside("inspect", path, cwd=tmp_path), "two files in one")


@pytest.mark.needs("archives")
def test_members_of_an_archive_that_nobody_reads_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as out:
        torch.save({"w": torch.ones(2)}, tmp_path / "policy.pth")
        out.write(tmp_path / "policy.pth", "policy.pth")
        out.writestr("data", "{}")
        out.writestr("_stable_baselines3_version", "2.0")
        out.writestr("replay.pkl", EVIL)
        out.writestr("sub/x.pt", EVIL)

    done = inside("inspect", "model.zip", cwd=tmp_path)

    text = b" ".join(done.out.split())
    assert b"unread-file" in text and b"replay.pkl" in text and b"sub/x.pt" in text, (
        done
    )


@pytest.mark.needs("pickles")
@pytest.mark.parametrize(
    "name", [".hg/evil.pt", ".svn/pristine/evil", "sub/.hg/evil.pt"]
)
def test_folders_of_other_version_control_are_entered(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(EVIL)
    assert b"builtins.print('runs')" in inside("lint", ".", cwd=tmp_path).out


@pytest.mark.needs("pickles")
def test_a_leftover_that_is_named_is_judged(tmp_path: Path) -> None:
    """A hook names each file that is committed, whatever it is called."""
    name = ".model.pt.0123456789ab.ckpt-tmp"
    (tmp_path / name).write_bytes(EVIL)
    done = inside("lint", "--skip-others", "--", name, cwd=tmp_path)
    assert done.code == 1 and b"builtins.print('runs')" in done.out


def archive(*names: str) -> bytes:
    """A zip archive in which each file is a pickle that calls something."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name in names:
            file.writestr(name, EVIL)
    return out.getvalue()


def tar(*names: str, link: bool = False) -> bytes:
    """A tar archive in which each file is a pickle that calls something."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(EVIL)
            file.addfile(member, io.BytesIO(EVIL))
        if link:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, "../elsewhere"
            file.addfile(member)
    return out.getvalue()


@pytest.mark.needs("pickles")
def test_a_storage_of_an_unpacked_archive_that_is_a_pickle_is_judged(
    tmp_path: Path,
) -> None:
    saved = io.BytesIO()
    torch.save({"w": torch.ones(64)}, saved)
    zipfile.ZipFile(saved).extractall(tmp_path / "a")
    storage = next(tmp_path.glob("a/*/data/0"))
    assert inside("lint", "--level", "error", "a", cwd=tmp_path).code == 0
    storage.write_bytes(EVIL.ljust(256, b"\0"))

    done = inside("lint", "--level", "error", "a", cwd=tmp_path)

    assert done.code == 2 and b"data/0: " in done.err, done


@pytest.mark.needs("pickles")
@pytest.mark.parametrize("kind", ["a pickle", "an archive"])
def test_a_leftover_that_a_loader_takes_is_judged(kind: str, tmp_path: Path) -> None:
    data = EVIL if kind == "a pickle" else archive("a/data.pkl", "a/version")
    (tmp_path / ".model.pt.0123456789ab.ckpt-tmp").write_bytes(data)
    done = inside("lint", ".", cwd=tmp_path)
    assert done.code == 1 and b"builtins.print('runs')" in done.out, done


def objects(is_archive: bool) -> bytes:
    """An array of objects of numpy, or an archive with one, in which each object calls
    something.
    """
    out = io.BytesIO()
    values = np.array([None, "x"], dtype=object)
    if is_archive:
        np.savez_compressed(out, values=values)
    else:
        np.save(out, values, allow_pickle=True)
    return out.getvalue()


def objects_of(dtype: str) -> bytes:
    """An array of objects whose header spells its dtype so."""
    whole = objects(False)
    data = whole[whole.index(b"\n", 10) + 1 :]
    fields = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': (2,), }}\n"
    return b"\x93NUMPY\1\0" + len(fields).to_bytes(2, "little") + fields.encode() + data


SPELLED = [
    "'object'",
    "'object_'",
    "'ob' 'ject'",
    "'ob'\n'ject'",
    "'\\x4f'",
    "'\\117'",
    "'\\N{LATIN CAPITAL LETTER O}'",
    "'T'",
    "'|T'",
    "'i4,T'",
    "'i4,object'",
    "'2T'",
    "[('a', 'T')]",
    "[('a', '<f8'), ('T', 'T')]",
    "[('a', [('b', 'object')])]",
    "[('a', '<f8', (2,)), ('b', 'T', (2,))]",
    "('T', (1,))",
    "[('a', ('T', (1,)))]",
    "['aT']",
    "[[('t', 'a'), 'T']]",
]


@pytest.mark.parametrize("dtype", SPELLED)
def test_objects_of_numpy_are_found_however_they_are_spelled(
    dtype: str, tmp_path: Path
) -> None:
    (tmp_path / "x.npy").write_bytes(objects_of(dtype))
    assert inside("lint", ".", cwd=tmp_path).code == 2

    torch.save({"w": torch.ones(2)}, tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npy", "a") as file:
        array = objects_of(dtype)
        file.writestr("y.npy", array[: array.index(b"}\n") + 2] + EVIL)
    done = inside("lint", "--level", "error", ".", cwd=tmp_path)
    assert done.code == 1 and b"builtins.print" in done.out, done


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((), np.float16),
        np.zeros((2, 3), ">i4").T,
        np.zeros(2, "datetime64[ns]"),
        np.zeros(2, [("T", "<f8"), ("object", "<i4", (3,)), ("b", [("c", "U9")])]),
        np.zeros(2, [("it's", "?"), ("", "V4"), ("température", "M8[25us]")]),
    ],
    ids=lambda values: str(values.dtype),
)
def test_arrays_without_objects_are_no_pickles(
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", values, allow_pickle=False)
    assert inside("lint", "--skip-others", "--", "x.npy", cwd=tmp_path).code == 0


def test_headers_of_other_writers_are_no_pickles(tmp_path: Path) -> None:
    texts = (
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (3L,), }",
        b'{"descr":"<f4","fortran_order":false,"shape":[]}'.replace(b"false", b"False"),
        b"{'shape': (3,), 'fortran_order': True, 'descr': 'float32'}\n",
    )
    for text in texts:
        size = len(text).to_bytes(2, "little")
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + size + text + bytes(12))
        assert inside("lint", "--skip-others", "--", "x.npy", cwd=tmp_path).code == 0


def objects_in(method: int, *names: str) -> bytes:
    """An archive of arrays of objects with these names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name in names:
            file.writestr(name, objects(False))
    return out.getvalue()


def numbers(is_archive: bool) -> bytes:
    out = io.BytesIO()
    (np.savez if is_archive else np.save)(out, np.arange(3.0))
    return out.getvalue()


TORCH = archive("a/data.pkl", "a/version")
HIDDEN = {
    "an archive of torch in gzip": gzip.compress(TORCH),
    "an archive of torch in xz": lzma.compress(TORCH),
    "an archive of torch in bzip2": bz2.compress(TORCH),
    "an archive of torch in zlib": zlib.compress(TORCH),
    "a pickle in gzip in xz": lzma.compress(gzip.compress(EVIL)),
    "a tar archive in gzip": gzip.compress(tar("notes.md", "./sub/evil.pt")),
    "a tar archive with a link in gzip": gzip.compress(tar("evil.pt", link=True)),
    "a tar archive of torch in gzip": gzip.compress(
        tar("sys_info", "pickle", "storages", "tensors")
    ),
    "a tar archive with a long name in gzip": gzip.compress(tar("d/" * 90 + "evil.pt")),
    "a tar archive of a member of torch": tar("notes.md", "storages"),
    "a tar archive of a member of torch with a link": tar("storages", link=True),
    "an array of objects in a file of joblib": pickled(
        glob("joblib.numpy_pickle", "NumpyArrayWrapper"),
        (),
        b"\x81",
        mapping(
            [
                ("dtype", call(glob("numpy", "dtype"), "O8", False, True)),
                ("shape", (1,)),
                ("order", "C"),
            ]
        ),
        b"b",
    )[:-1]
    + EVIL,
    "a tar archive of many files": tar(
        *[f"{number}.md" for number in range(1_100)], "evil.pt"
    ),
    "an archive that is refused": archive("a/data.pkl", "a/DATA.pkl"),
    "an archive that is refused, of checkpoints": archive("a/evil.pt", "a/x", "a/X"),
    "an archive with bytes behind it in gzip": gzip.compress(TORCH + bytes(99_999)),
    "a broken stream of gzip": gzip.compress(EVIL)[:10],
    "a broken stream of xz": lzma.compress(EVIL)[:30],
    "a broken stream of bzip2": b"BZh91AY&SYxxxxx",
    "an archive behind a picture": b"\x89PNG\r\n\x1a\n" + bytes(99) + TORCH,
    "an archive behind a script": b"#!/bin/sh\n" + TORCH,
    "an archive behind a model of others": b"GGUF" + bytes(60) + TORCH,
    "an archive of checkpoints behind a text": b"some words\n" * 9_000
    + archive("policy.pth", "data")
    + bytes(99),
    "an archive of weights of Hugging Face": archive(
        "pytorch_model-00001-of-00002.bin"
    ),
    "an archive of an optimizer": archive("state/optimizer.bin"),
    "an archive of an exported program": archive("a.pt2"),
    "an archive of a distributed checkpoint": archive("a/.metadata"),
    "an archive in an archive": archive("inner.zip"),
    "a compressed file in an archive": archive("a.tar.gz"),
    "a compressed tar archive in a tar archive": tar("a.tar.gz"),
    "an array of objects": objects(False),
    "an archive of arrays of objects": objects(True),
    "an archive of arrays of objects in bzip2": objects_in(zipfile.ZIP_BZIP2, "a.npy"),
    "an archive of arrays of objects in xz": objects_in(zipfile.ZIP_LZMA, "a.npy"),
    "an archive of arrays of objects of one name": objects_in(
        zipfile.ZIP_STORED, "a.npy", "b.npy"
    ).replace(b"b.npy", b"a.npy"),
    "an archive of arrays of objects behind an empty one": b"PK\x05\x06"
    + bytes(18)
    + objects(True),
    "a frame of lz4": b"\x04\x22\x4d\x18\x60\x40\x82" + EVIL,
    "a frame of lz4 behind another": b"\x50\x2a\x4d\x18"
    + bytes(4)
    + b"\x04\x22\x4d\x18\x60\x40\x82"
    + EVIL,
    "a frame of zstd": b"\x28\xb5\x2f\xfd" + bytes(60),
    "a 7z archive": b"7z\xbc\xaf\x27\x1c" + bytes(60),
    "a RAR archive": b"Rar!\x1a\x07" + bytes(60),
}


@pytest.mark.needs("pickles")
@pytest.mark.parametrize("name", ["x.dat", "x.bin"])
@pytest.mark.parametrize("kind", HIDDEN)
def test_what_cannot_be_looked_into_is_unreadable(
    kind: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(HIDDEN[kind])
    for words in (("lint", "."), ("lint", "--skip-others", "--", name)):
        assert inside(*words, cwd=tmp_path).code == 2, kind


OTHERS = {
    "a text in gzip": gzip.compress(b"some words\n" * 9_000),
    "nothing in gzip": gzip.compress(b""),
    "a tar archive of sources in gzip": gzip.compress(
        tar("setup.py", "src/x.py", link=True)
    ),
    "an array": numbers(False),
    "an archive of arrays": numbers(True),
    "an archive of other binaries": archive("boot.bin", "data/train.bin"),
    "an empty archive": b"PK\x05\x06" + bytes(18),
    "an archive of sources": archive("setup.py", "LICENSE", "license"),
    "an archive of sources in xz": lzma.compress(archive("setup.py")),
    "a text that begins as a container": b"ZF is a company, and BZ is not one.\n",
}


@pytest.mark.parametrize("name", ["x.dat", "x.bin"])
@pytest.mark.parametrize("kind", OTHERS)
def test_archives_of_other_things_are_not_looked_at(
    kind: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(OTHERS[kind])
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    assert inside("lint", "--skip-others", "--", name, cwd=tmp_path).code == 0, kind
    assert inside("lint", ".", cwd=tmp_path).code == 0, kind


@pytest.mark.parametrize("command", ["lint", "ls", "verify"])
def test_folders_that_are_nested_too_deep_are_an_error(
    command: str, tmp_path: Path
) -> None:
    folder = tmp_path
    for _ in range(250):
        folder /= "d"
        folder.mkdir()
    (folder / "evil.pt").write_bytes(EVIL)

    done = inside(command, ".", cwd=tmp_path)

    assert (
        done.code == 2
        and b"folders are nested more than 200 deep" in done.out + done.err
    ), done


def test_a_path_that_is_not_there_is_not_another_kind_of_file(tmp_path: Path) -> None:
    """A gate with a typing error in it lets nothing pass."""
    (tmp_path / "link").symlink_to("gone")

    for name in ("modles", "modles.txt", "link"):
        done = inside("lint", "--skip-others", "--", name, cwd=tmp_path)
        assert done.code == 2, name
        assert "no such file" in done.err.decode()

"""What is written to a URL is what is written here, byte for byte; an interrupt leaves
nothing; memory stays small.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from buckets import Bucket, Holes
from process import SAMPLES, TIMEOUT, ckpt, environment, python

PARTS = 5_300_000
"""Elements of a float tensor that takes more than one part."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("source")
    torch.manual_seed(1)
    weights = {
        "a.weight": torch.randn(PARTS),
        "b.weight": torch.randn(70, 30),
        "b.bias": torch.randn(30),
    }
    torch.save({"model": weights, "epoch": 3}, made / "x.pth")
    return made / "x.pth"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


ONE_FILE = [
    ("convert", "a.safetensors", "--drop-other"),
    ("convert", "a.pth", "--plain"),
    ("convert", "a.pth", "--format", "torch-legacy"),
    ("convert", "a.safetensors", "--dtype", "bfloat16", "--drop-other"),
    ("slim", "a.pth"),
    ("rehome", "a.pth", "--to", "cuda:1"),
]


@pytest.mark.slow
@pytest.mark.parametrize("line", ONE_FILE, ids=" ".join)
def test_a_file_is_the_same_there_as_here(
    line: tuple[str, ...], s3: Bucket, source: Path, tmp_path: Path
) -> None:
    command, name, *options = line
    here = ckpt(command, str(source), "-o", str(tmp_path / name), *options)
    there = ckpt(command, str(source), "-o", f"{s3.url}/run/{name}", *options)
    assert (here.code, there.code) == (0, 0), there.err.decode()
    assert there.out.decode() == here.out.decode().replace(
        str(tmp_path / name), f"{s3.url}/run/{name}"
    )
    assert there.err.decode() == here.err.decode().replace(
        str(tmp_path / name), f"{s3.url}/run/{name}"
    )
    assert (
        s3.objects == {f"run/{name}": (tmp_path / name).read_bytes()}
        and s3.uploads == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("run.dcp", ["--ranks", "3"]),
        ("run", ["--format", "dcp"]),
        ("run.dcp/", []),
        ("run/", ["--shard-size", "1MB"]),
    ],
    ids=lambda row: row if isinstance(row, str) else " ".join(row),
)
def test_a_folder_is_the_same_there_as_here(
    out: str, options: list[str], s3: Bucket, source: Path, tmp_path: Path
) -> None:
    here = tmp_path / out
    if out == "run/":
        here.mkdir()
        options = [*options, "--drop-other"]
    assert ckpt("convert", str(source), "-o", str(here), *options).code == 0
    done = ckpt("convert", str(source), "-o", f"{s3.url}/deep/{out}", *options)
    assert done.code == 0, done.err.decode()
    assert s3.objects == {
        f"deep/{here.name}/{name}": data for name, data in files(here).items()
    }
    made = [
        row.split("?")[0] for row in s3.front.whats() if row.startswith(("PUT", "POST"))
    ]
    last = "model.safetensors.index.json" if "--shard-size" in options else ".metadata"
    assert made[-1] == f"PUT deep/{here.name}/{last}" and made.count(made[-1]) == 1
    assert s3.uploads == 0


@pytest.mark.slow
def test_from_there_to_there(s3: Bucket, source: Path, tmp_path: Path) -> None:
    url = s3.put("in/x.pth", source.read_bytes())
    for command, name, *options in (
        ("convert", "y.safetensors", "--drop-other"),
        ("rehome", "y.pth"),
    ):
        assert (
            ckpt(command, str(source), "-o", str(tmp_path / name), *options).code == 0
        )
        done = ckpt(
            command,
            url,
            "-o",
            f"{s3.url}/out/{name}",
            *options,
            "--verify",
            "crc",
            "--json",
        )
        assert done.code == 0, done.err.decode()
        report = json.loads(done.out)
        assert (
            report["output"]["path"] == f"{s3.url}/out/{name}"
            and "crc" in report["verified"]
        )
        assert s3.objects[f"out/{name}"] == (tmp_path / name).read_bytes()
    diff = ckpt("diff", f"{s3.url}/out/y.pth", str(source))
    assert diff.code == 0, diff.out.decode()


def test_several_and_a_folder_for_them(s3: Bucket) -> None:
    names = ["train_cuda.pth", "llama_bf16.pth"]
    done = ckpt("rehome", *names, "-o", f"{s3.url}/runs/", cwd=SAMPLES)
    assert done.code == 0, done.err.decode()
    assert sorted(s3.objects) == sorted(f"runs/{name}" for name in names)


def test_a_folder_of_checkpoints_and_a_dry_run(s3: Bucket, tmp_path: Path) -> None:
    for name in ("a/x.pth", "y.pth"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((SAMPLES / "train_cuda.pth").read_bytes())
    line = ["rehome", "-r", str(tmp_path), "-o", f"{s3.url}/out"]
    done = ckpt(*line, "--dry-run")
    assert (
        done.code == 0
        and all(row.startswith("HEAD") for row in s3.front.whats())
        and not s3.objects
    )
    done = ckpt(*line)
    assert done.code == 0, done.err.decode()
    assert sorted(s3.objects) == ["out/a/x.pth", "out/y.pth"]


def test_an_existing_object(s3: Bucket) -> None:
    url = s3.put("a.pth", b"old")
    done = ckpt("rehome", "train_cuda.pth", "-o", url, cwd=SAMPLES)
    assert (done.code, done.out) == (2, b"")
    assert done.err.decode() == f"ckpt: {url}: already exists (--force to replace)\n"
    assert s3.front.whats() == ["HEAD a.pth"] and s3.objects == {"a.pth": b"old"}
    assert ckpt("rehome", "train_cuda.pth", "-o", url, "--force", cwd=SAMPLES).code == 0
    done = ckpt("rehome", url, "-o", url, "--force")
    assert (
        done.code == 2
        and b"OUT is the source, which --force does not replace" in done.err
    )
    assert len(s3.objects["a.pth"]) > 1000


@pytest.mark.slow
def test_a_set_replaces_a_set(s3: Bucket, source: Path) -> None:
    line = [
        "convert",
        str(source),
        "--drop-other",
        "--shard-size",
        "1MB",
        "-o",
        f"{s3.url}/run/",
    ]
    assert ckpt(*line).code == 0
    first = set(s3.objects)
    assert b"already exists" in ckpt(*line).err and set(s3.objects) == first
    done = ckpt(*line, "--force")
    assert (done.code, done.err) == (0, b"")
    index = json.loads(s3.objects["run/model.safetensors.index.json"])
    assert {f"run/{name}" for name in index["weight_map"].values()} == set(
        s3.objects
    ) - {"run/model.safetensors.index.json"}
    assert all("-r2-" in name for name in index["weight_map"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        "PUT run/model.safetensors.index.json",
        "PUT run/model-00002-of-00002.safetensors",
    ],
)
def test_a_set_that_fails_leaves_nothing(what: str, s3: Bucket, source: Path) -> None:
    s3.front.fail = [(what, 403)]
    done = ckpt(
        "convert",
        str(source),
        "--drop-other",
        "--shard-size",
        "1MB",
        "-o",
        f"{s3.url}/run/",
    )
    assert (
        done.code == 2
        and b"no permission to write it" in done.err
        and done.err.count(b"\n") == 1
    )
    assert s3.objects == {} and s3.uploads == 0


def test_a_source_that_changes_meanwhile_writes_nothing(
    s3: Bucket, source: Path
) -> None:
    data = source.read_bytes()
    url = s3.put("x.pth", data)

    def change(left: int) -> None:
        if left:
            s3.front.before["GET x.pth"] = lambda: change(left - 1)
        else:
            s3.put("x.pth", data[::-1])

    change(6)
    done = ckpt("rehome", url, "-o", f"{s3.url}/y.pth")
    assert done.code == 2, done
    assert (
        done.err.decode()
        == f"ckpt: {url}: the object changed while it was read (still being written?)\n"
    )
    assert list(s3.objects) == ["x.pth"] and s3.uploads == 0


def test_errors_of_the_store_say_nothing_secret(s3: Bucket, source: Path) -> None:
    for fail in (("?partNumber=1", 403), ("HEAD y.pth", 403), ("?uploads", 400)):
        s3.front.fail = [fail]
        done = ckpt("rehome", str(source), "-o", f"{s3.url}/y.pth")
        assert (done.code, done.out, done.err.count(b"\n")) == (2, b"", 1)
        assert done.err.startswith(f"ckpt: {s3.url}/y.pth: ".encode())
        assert not any(
            word in done.err
            for word in (b"secret", b"s3cret", b"key-id", b"127.0.0.1", b"Signature")
        )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "moment",
    ["?uploads", "?partNumber=1", "?partNumber=2", "POST y.pth?uploadId", "PUT y.pth"],
)
def test_a_signal_leaves_neither_object_nor_upload(
    moment: str, number: signal.Signals, s3: Bucket, source: Path
) -> None:
    path = SAMPLES / "train_cuda.pth" if moment == "PUT y.pth" else source
    s3.front.held = moment
    line = [sys.executable, "-m", "ckpt", "rehome", str(path), "-o", f"{s3.url}/y.pth"]
    with subprocess.Popen(line, env=environment(), stderr=subprocess.PIPE) as process:
        assert s3.front.arrived.wait(TIMEOUT)
        process.send_signal(number)
        s3.front.released.set()
        _, err = process.communicate(timeout=TIMEOUT)
    word = {
        signal.SIGINT: "interrupted",
        signal.SIGTERM: "terminated",
        signal.SIGHUP: "hung up",
    }[number]
    assert (process.returncode, err.decode()) == (128 + number, f"ckpt: {word}\n")
    assert s3.objects == {} and s3.uploads == 0


MEASURED = """
import os, sys
def left(code):
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    os.write(2, peak.encode()); leave(code)
leave = os._exit; os._exit = left
from ckpt.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells the peak")
def test_memory_does_not_grow_with_the_file(s3: Bucket, tmp_path: Path) -> None:
    size = 300 << 20
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    ).encode()
    with open(tmp_path / "a.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    for name in ("x.safetensors", "y.pth"):
        s3.front.keeps[name] = Holes()
    for path, out in (
        (str(tmp_path / "a.safetensors"), "x.safetensors"),
        (f"{s3.url}/x.safetensors", "y.pth"),
    ):
        done = python("-c", MEASURED, "convert", path, "-o", f"{s3.url}/{out}")
        assert done.code == 0, done.err.decode()
        assert s3.front.keeps[out].size >= size
        peak = int(done.err.split()[-2]) * 1024
        assert peak <= 150_000_000, f"{peak:,}"


def test_local_writers_import_nothing_of_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; leave = os._exit\n"
        "def left(code):\n"
        "    print(*sys.modules, flush=True); leave(code)\n"
        "os._exit = left\nfrom ckpt.__main__ import main\nmain()\n"
    )
    done = python(
        "-c",
        code,
        "rehome",
        "train_cuda.pth",
        "-o",
        str(tmp_path / "x.pth"),
        cwd=SAMPLES,
    )
    names = done.lines[-1].split()
    assert done.code == 0 and "ckpt.bytes.target" in names
    assert [
        name
        for name in names
        if name.startswith(("ckpt.ext.remote", "obstore", "mmap", "tempfile"))
    ] == []

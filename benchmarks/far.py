"""Checkpoints behind URLs at 50 ms: what `inspect` and `stats` ask for, how long they
take, how much memory they hold.

Beside them: a download over one connection, huggingface_hub and s3fs, where they are
installed. The servers are one process (`benchmarks.serving`), which makes every reader
wait the same: 50 ms for each answer, and 50 ms more for a new connection. It has no TLS
and no limit of bandwidth, so seconds compare readers, and are no forecast for a
network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shlex import join
from typing import NamedTuple

from benchmarks import timing
from benchmarks.distant import BUCKET, INDEX, Addresses, serving, taken, variables
from benchmarks.inspect import write_zeros
from benchmarks.many import write_shards
from benchmarks.setting import LARGE_TENSORS, Setting, ckpt_command, tensor_name
from benchmarks.timing import Job

DELAY = 50
"""Milliseconds."""
ROUNDS = 3
"""The most rounds: the delay is most of the time, and it does not vary."""
SHARD_ROWS = 512
"""Rows of 1,024 float32 elements in each of the four tensors of a shard: 8.4 MB."""
COMMANDS = ("inspect", "stats")
HEADINGS = (
    "checkpoint",
    "job",
    "requests",
    "bytes",
    "at once",
    "connections",
    "seconds",
    "MB",
)

DOWNLOAD = """\
import http.client
import os
import sys
from urllib.parse import urlsplit

base, out, *names = sys.argv[1:]
line = http.client.HTTPConnection(urlsplit(base).netloc)
for name in names:
    line.request("GET", f"{urlsplit(base).path}/{name}")
    answer = line.getresponse()
    path = os.path.join(out, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        while block := answer.read(1 << 20):
            file.write(block)
"""

SNAPSHOT = """\
import sys
from huggingface_hub import snapshot_download

snapshot_download(sys.argv[1], local_dir=sys.argv[2])
"""

METADATA = """\
import sys
from huggingface_hub import HfApi

found = HfApi().get_safetensors_metadata(sys.argv[1])
for file in found.files_metadata.values():
    for name, tensor in file.tensors.items():
        print(name, tensor.dtype, tensor.shape)
"""

S3FS = """\
import os
import sys
import s3fs
import torch

files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
with files.open(sys.argv[1], "rb") as file:
    state = torch.load(file, map_location="cpu", weights_only=True)
for name, tensor in state.items():
    shown = [tensor.dtype, tuple(tensor.shape)]
    if sys.argv[2] == "stats":
        shown += [one.item() for one in (tensor.min(), tensor.max(), tensor.mean(), tensor.std())]
    print(name, *shown)
"""


class Kind(NamedTuple):
    """A checkpoint to read: its label, its folder below the root, its file in it (or
    none), and all of its files.
    """

    label: str
    folder: str
    file: str
    names: tuple[str, ...]
    nbytes: int

    def url(self, scheme: str, addresses: Addresses) -> str:
        """Where it is on a server."""
        base = addresses.http if scheme == "http" else f"{scheme}://{BUCKET}"
        return f"{base}/{self.folder}/{self.file}"


class FarRow(NamedTuple):
    """A job over a checkpoint. `problem` is why there are no figures; `ratio` is of the
    bytes of the checkpoint.
    """

    kind: str
    name: str
    requests: int = 0
    ratio: float = 0
    most: int = 0
    connections: int = 0
    seconds: float = 0
    peak_mb: float = 0
    problem: str = ""


def write_model(folder: Path, tensors: int, shape: tuple[int, ...]) -> None:
    """Save a state dict as the one file of a folder."""
    folder.mkdir()
    write_zeros(folder / "model.pth", tensors, shape)


def write_items(folder: Path, files: int) -> None:
    """Saves a distributed checkpoint of so many files, each but one with a tensor of 4
    MiB. Imports torch.
    """
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")  # that there is no group of processes
    state = {
        tensor_name(number): torch.zeros(1024, 1024) for number in range(files - 1)
    }
    dcp.save(
        state,
        storage_writer=dcp.FileSystemWriter(folder, single_file_per_rank=False),
        no_dist=True,
    )


def kinds(setting: Setting, root: Path) -> list[Kind]:
    """Makes the checkpoints below a folder."""
    sizes = setting.sizes
    rows = max(1, round(sizes.size_gb * 1e9 / LARGE_TENSORS / 1024 / 4))
    setting.made(root / "zip", write_model, LARGE_TENSORS, (rows, 1024))
    setting.made(root / "many", write_model, sizes.tensors, (4, 4))
    setting.made(root / "shards", write_shards, sizes.far_shards, (SHARD_ROWS, 1024))
    setting.made(root / "dcp", write_items, sizes.far_files)

    def kind(label: str, folder: str, file: str) -> Kind:
        paths = [path for path in sorted((root / folder).rglob("*")) if path.is_file()]
        names = tuple(path.relative_to(root / folder).as_posix() for path in paths)
        return Kind(
            label, folder, file, names, sum(path.stat().st_size for path in paths)
        )

    return [
        kind(f"zip of {sizes.size_gb:g} GB", "zip", "model.pth"),
        kind(f"zip of {sizes.tensors:,} tensors", "many", "model.pth"),
        kind(f"{sizes.far_shards} safetensors shards", "shards", INDEX),
        kind(f"DCP of {sizes.far_files} files", "dcp", ""),
    ]


def jobs(
    setting: Setting, kind: Kind, addresses: Addresses
) -> Iterator[tuple[str, Job | str]]:
    """The jobs over a checkpoint by their names, or why there is none."""
    out, cache = setting.scripts / "out", setting.scripts / "cache"
    known = {**variables(addresses), "HF_HOME": str(cache)}
    environment = ("env", *(f"{name}={value}" for name, value in known.items()))
    fresh = (
        "sh",
        "-c",
        f"rm -rf {join([str(out), str(cache)])} && mkdir {join([str(out)])}",
    )
    local = str(out / kind.file) if kind.file else str(out)
    model = f"{BUCKET}/{kind.folder}"

    def run(*words: str) -> Job:
        return Job("", (*environment, *words), prepare=fresh)

    def first(words: Sequence[str], command: str) -> Job:
        line = f"{join(words)} && {join([*ckpt_command(), command, local])}"
        return Job("", (*environment, "sh", "-c", line), prepare=fresh)

    for command in COMMANDS:
        for scheme in ("http", "s3", "az", "hf"):
            if scheme == "http" and not kind.file:
                yield f"`ckpt {command}`, http", "a web server does not list a folder"
            elif scheme in ("s3", "az") and find_spec("obstore") is None:
                yield f"`ckpt {command}`, {scheme}", "obstore is not installed"
            else:
                yield (
                    f"`ckpt {command}`, {scheme}",
                    run(*ckpt_command(), command, kind.url(scheme, addresses)),
                )
        download = [
            *setting.script("download", DOWNLOAD),
            f"{addresses.http}/{kind.folder}",
            str(out),
        ]
        yield (
            f"download, then `ckpt {command}`",
            first([*download, *kind.names], command),
        )
        missing = "not installed" if find_spec("huggingface_hub") is None else ""
        snapshot = [*setting.script("snapshot", SNAPSHOT), model, str(out)]
        yield (
            f"`snapshot_download`, then `ckpt {command}`",
            missing or first(snapshot, command),
        )
        if command == "inspect" and kind.folder == "shards":
            script = setting.script("hub_metadata", METADATA)
            yield "`get_safetensors_metadata`", missing or run(*script, model)
        if kind.file.endswith(".pth"):
            missing = "not installed" if find_spec("s3fs") is None else ""
            script = setting.script("s3fs_load", S3FS)
            name = f"s3fs + `torch.load`, as {command}"
            yield (
                name,
                missing or run(*script, f"{BUCKET}/{kind.folder}/{kind.file}", command),
            )


def measured(setting: Setting) -> Iterator[FarRow]:
    """Makes the checkpoints and runs every job. A job that fails is a row that
    says so.
    """
    sizes = setting.sizes
    name = (
        f"far_{sizes.size_gb:g}GB_{sizes.tensors}_{sizes.far_shards}_{sizes.far_files}"
    )
    root = setting.folder / name
    root.mkdir(exist_ok=True)
    found = kinds(setting, root)
    with serving(root, DELAY) as addresses:
        for kind in found:
            for name, job in jobs(setting, kind, addresses):
                print(f"{kind.label}: {name}", file=sys.stderr)
                yield row_of(kind, name, job, addresses, min(sizes.runs, ROUNDS))
    setting.forget(root)


def row_of(
    kind: Kind, name: str, job: Job | str, addresses: Addresses, rounds: int
) -> FarRow:
    """Runs a job so often; its row is the round with the median of the seconds."""
    if isinstance(job, str):
        return FarRow(kind.label, name, problem=job)
    rows = []
    for _ in range(rounds):
        taken(addresses)
        try:
            sample = timing.run(replace(job, name=name))
        except SystemExit as error:
            last = str(error).strip().splitlines()[-1]
            return FarRow(kind.label, name, problem=f"failed: {last[:80]}")
        counts = taken(addresses)
        row = FarRow(
            kind.label, name, counts.requests, counts.bytes / kind.nbytes, counts.most
        )
        rows.append(
            row._replace(
                connections=counts.connections,
                seconds=sample.seconds,
                peak_mb=sample.peak / 1e6,
            )
        )
    return sorted(rows, key=lambda row: row.seconds)[len(rows) // 2]


def cells(row: FarRow) -> list[str]:
    """The row as text, under HEADINGS."""
    if row.problem:
        return [row.kind, f"{row.name}: {row.problem}", *["–"] * 6]
    return [
        row.kind,
        row.name,
        f"{row.requests:,}",
        f"{row.ratio:.3g} ×",
        f"{row.most}",
        f"{row.connections:,}",
        f"{row.seconds:.2f}",
        f"{row.peak_mb:.0f}",
    ]


def table(rows: Sequence[FarRow]) -> str:
    """The rows as a GitHub table. Imports tabulate."""
    from tabulate import tabulate

    aligned = ("left", "left", *["right"] * 6)
    return tabulate(
        [cells(row) for row in rows],
        HEADINGS,
        "github",
        colalign=aligned,
        disable_numparse=True,
    )


def lines(rows: Sequence[FarRow]) -> str:
    """The table with what it says."""
    about = (
        f"URLs at {DELAY} ms: each answer waits for so long, a new connection twice. "
        "Bytes are multiples of the checkpoint's. MB is the peak of the largest "
        "process."
    )
    return f"{about}\n\n{table(rows)}"

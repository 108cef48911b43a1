"""The servers of `benchmarks.serving`, started and asked from another process, which
stays small: see `timing.own_peak_mb`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

BUCKET, ACCOUNT, KEY = "bench", "devstoreaccount1", "c2VjcmV0"
"""Any key does, for no signature is looked at."""
MADE_BYTES = 100_000_000
"""The bytes of a shard that is made up, about."""
INDEX = "model.safetensors.index.json"


class Addresses(NamedTuple):
    """The URLs of the servers. `hf` sends its readers to `cdn`; `control` gives the
    counts.
    """

    http: str
    s3: str
    az: str
    hf: str
    cdn: str
    control: str


class Counts(NamedTuple):
    """The requests, the bytes of their answers, the most requests at once, and the
    connections that were made.
    """

    requests: int
    bytes: int
    most: int
    connections: int


@contextmanager
def serving(folder: Path, delay: int, shards: int = 0) -> Iterator[Addresses]:
    """Runs the servers in a process of their own until the end of the block. `delay` in
    milliseconds.

    Raises SystemExit when they do not start.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.serving",
        str(folder),
        "--delay",
        str(delay),
    ]
    command += ["--shards", str(shards)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the servers do not start")
        yield Addresses(*json.loads(line))  # at the end its stdin is closed


def taken(addresses: Addresses) -> Counts:
    """The counts since the last call."""
    host, _, port = addresses.control.rpartition("/")[2].partition(":")
    with (
        socket.create_connection((host, int(port))) as line,
        line.makefile("rb") as answer,
    ):
        line.sendall(b"GET /take HTTP/1.1\r\nConnection: close\r\n\r\n")
        return Counts(*json.loads(answer.read().partition(b"\r\n\r\n")[2]))


def variables(addresses: Addresses) -> dict[str, str]:
    """The variables of the environment that lead there."""
    return {
        "AWS_ENDPOINT_URL": addresses.s3,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key-id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"{addresses.az}/{ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
        "HF_ENDPOINT": addresses.hf,
        "no_proxy": "127.0.0.1",
    }

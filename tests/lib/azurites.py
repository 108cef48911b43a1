"""Azurite, the emulator of Azure's blobs: fetched once with npm into a cache outside of
the repository.

Without npm or its registry the tests that need it are skipped. `CKPT_TEST_CACHE` names
another cache.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from process import TIMEOUT
from real_files import CACHE

VERSION = "3.35.0"
"""The last one that needs no node above 20."""
SHA512 = "GzKmi+/5U0baNRjEEVtBMLpLuIKEJ0uSh0VWBzOI4qe4f5ziJyoZQmcTO7QhxZTF6+rphj7TZS3PtJY7uiiacA=="
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, and its key: Microsoft's page on Azurite prints
both.
"""
_NUMBERS = count(1)


class Azurite:
    """A running Azurite. `behind` is its own address; `url` is what clients are told,
    such as a proxy before it.
    """

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self.url = behind

    def container(self) -> Container:
        """Return a new, empty container."""
        return Container(self, f"container-{next(_NUMBERS)}")

    def variables(self) -> dict[str, str]:
        """What the environment must say."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }


class Container:
    """A container, into which obstore itself puts objects."""

    def __init__(self, server: Azurite, name: str) -> None:
        from obstore.store import AzureStore

        self.name = name
        self.url = f"az://{name}"
        self._make(server.behind)
        self.store: Any = AzureStore(
            name,
            account_name=ACCOUNT,
            account_key=KEY,
            endpoint=f"{server.behind}/{ACCOUNT}",
            client_options={"allow_http": True},
        )

    def _make(self, server: str) -> None:
        """Make the container: obstore has no call for it, so the request is signed
        here.
        """
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed = (
            f"PUT{chr(10) * 12}{lines}/{ACCOUNT}/{ACCOUNT}/{self.name}\n"
            "restype:container"
        )
        digest = hmac.new(
            base64.b64decode(KEY), signed.encode(), hashlib.sha256
        ).digest()
        headers["Authorization"] = (
            f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        )
        call = urllib.request.Request(
            f"{server}/{ACCOUNT}/{self.name}?restype=container", method="PUT"
        )
        for name, value in headers.items():
            call.add_header(name, value)
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(call).close()

    def put(self, path: Path, name: str = "") -> None:
        """Put a file, or all files of a folder."""
        import obstore

        if path.is_dir():
            for inner in path.rglob("*"):
                if inner.is_file():
                    self.put(inner, f"{name or path.name}/{inner.relative_to(path)}")
            return
        obstore.put(self.store, name or path.name, path.read_bytes())


@contextmanager
def running() -> Iterator[Azurite]:
    """Run Azurite on a free port until the end of the block. Skips the test where it
    cannot be installed.
    """
    pytest.importorskip(
        "obstore", reason="obstore, the extra [cloud], is not installed"
    )
    folder, reason = installed()
    if reason:
        pytest.skip(reason)
    command = [
        str(shutil.which("node")),
        str(folder / "node_modules/azurite/dist/src/blob/main.js"),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        "0",
        "--inMemoryPersistence",
        "--disableTelemetry",
        "--skipApiVersionCheck",
        "--silent",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:  # it says its port when it listens
            said += line
            if "listens on" in line:
                break
        else:
            raise AssertionError(f"Azurite does not start: {said}")
        yield Azurite(line.rpartition(" ")[2].strip())
    finally:
        process.terminate()
        process.communicate()


@cache
def installed() -> tuple[Path, str]:
    """Return the folder with Azurite, and why it cannot be had, or nothing.

    npm compares every package with its hash in the registry, and the one of Azurite is
    compared with ours.
    """
    folder = CACHE / f"azurite-{VERSION}"
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return folder, "npm is not installed"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may need it at once
        if not (folder / "done").exists():
            reason = _install(npm, folder)
            if reason:
                return folder, reason
            (folder / "done").touch()
    return folder, ""


def _install(npm: str, folder: Path) -> str:
    options = [
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--fetch-retries=1",
        "--fetch-timeout=20000",
    ]
    command = [npm, "install", "--prefix", str(folder), *options, f"azurite@{VERSION}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"azurite {VERSION} cannot be installed: npm took too long"
    if ended.returncode:
        first = (ended.stderr.strip().splitlines() or ["npm failed"])[0]
        return f"azurite {VERSION} cannot be installed: {first}"
    lock = (folder / "package-lock.json").read_text(encoding="utf-8")
    if f'"sha512-{SHA512}"' not in lock:
        raise AssertionError(
            f"the registry gives another azurite {VERSION} than the one that the tests "
            "know"
        )
    return ""

"""One process that serves a folder four ways, each answer after a delay, and counts: a
web server, S3, Azure, the hub.

    python -m benchmarks.serving FOLDER [--delay 50] [--shards 10000]

It prints its addresses as JSON, and ends when its stdin does. Files go out with
sendfile, so two cores serve more than a reader takes. A connection that is new waits
twice, as with a real distance: once to be made, once for the answer. `GET /take` at its
control address gives the counts since the last one. --shards adds a model of so many
shards of 100 MB to the folder, as `made`: its headers are in memory, its data are
zeros.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from benchmarks.distant import BUCKET, INDEX, MADE_BYTES, Addresses, Counts

_DATE = "Sun, 22 Nov 2026 10:00:00 GMT"
_PAGE = {"s3": 1000, "az": 5000, "hf": 1000}
"""The rows of a page of a listing, as these services give it."""


class Item(NamedTuple):
    """A file: its bytes are a file on the disk, or `head` and then zeros."""

    size: int
    etag: str
    path: str | None = None
    head: bytes = b""


class _Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    item: Item | None = None
    """The file whose bytes `span` are the body."""
    span: tuple[int, int] = (0, 0)


_Answer = Callable[[str, dict[str, str]], _Reply]
_REASONS = {
    200: "OK",
    206: "Partial Content",
    302: "Found",
    404: "Not Found",
    412: "Precondition Failed",
}


def files_of(folder: Path) -> dict[str, Item]:
    """The files below a folder by their names, in order."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            about = path.stat()
            etag = hashlib.md5(
                f"{name} {about.st_size} {about.st_mtime_ns}".encode()
            ).hexdigest()
            found[name] = Item(about.st_size, etag, str(path))
    return dict(sorted(found.items()))


def made_model(shards: int) -> dict[str, Item]:
    """The files of a model of so many shards, each one layer of seven tensors with 100
    MB, and their index.
    """
    rows = MADE_BYTES // 7 // 1024 // 2
    found, weights = {}, {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        tensors = {
            f"model.layers.{number}.{part}.weight": {
                "dtype": "BF16",
                "shape": [rows, 1024],
                "data_offsets": [at * rows * 2048, (at + 1) * rows * 2048],
            }
            for at, part in enumerate(("q", "k", "v", "o", "up", "gate", "down"))
        }
        text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
        text += b" " * (-len(text) % 8)
        head = struct.pack("<Q", len(text)) + text
        size = len(head) + 7 * rows * 2048
        found[f"made/{name}"] = Item(size, hashlib.md5(head).hexdigest(), None, head)
        weights |= dict.fromkeys(tensors, name)
    document = {
        "metadata": {"total_size": shards * 7 * rows * 2048},
        "weight_map": weights,
    }
    text = json.dumps(document).encode()
    found[f"made/{INDEX}"] = Item(len(text), hashlib.md5(text).hexdigest(), None, text)
    return dict(sorted(found.items()))


class Service:
    """The answers of the four services over one set of files."""

    def __init__(self, items: dict[str, Item]) -> None:
        self.items = items
        etags = "".join(item.etag for item in items.values())
        self.commit = hashlib.sha1(
            etags.encode()
        ).hexdigest()  # other files are another revision
        self.cdn = ""
        self.hf = ""

    def file(
        self, name: str, headers: dict[str, str], more: Mapping[str, str] | None = None
    ) -> _Reply:
        """A file, or the range of it that is asked for."""
        item = self.items.get(name)
        if item is None:
            return _Reply(404, {})
        etag = f'"{item.etag}"'
        about = {
            "ETag": etag,
            "Last-Modified": _DATE,
            "Accept-Ranges": "bytes",
            **(more or {}),
        }
        if headers.get("if-match", etag) != etag:
            return _Reply(412, about)
        asked = headers.get("range") or headers.get("x-ms-range", "")
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", asked)
        if span is None or not item.size:
            return _Reply(200, about, item=item, span=(0, item.size))
        first = int(span[1]) if span[1] else max(0, item.size - int(span[2]))
        last = (
            min(int(span[2]), item.size - 1) if span[1] and span[2] else item.size - 1
        )
        about["Content-Range"] = f"bytes {first}-{last}/{item.size}"
        return _Reply(206, about, item=item, span=(first, last + 1))

    def web(self, target: str, headers: dict[str, str]) -> _Reply:
        """A web server without lists."""
        return self.file(unquote(urlsplit(target).path).lstrip("/"), headers)

    def s3(self, target: str, headers: dict[str, str]) -> _Reply:
        """A bucket of S3, addressed by its path."""
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        if key:
            return self.file(key, headers)
        prefix, flat = query.get("prefix", [""])[0], not query.get("delimiter", [""])[0]
        after = query.get("continuation-token", [""])[0]
        limit = min(int(query.get("max-keys", ["1000"])[0]), _PAGE["s3"])
        rows, following = self.listed(prefix, flat, after, limit)
        inner = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            if item is None
            else f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-22T10:00:00.000Z</LastModified>"
            f"<ETag>&quot;{item.etag}&quot;</ETag><Size>{item.size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for name, item in rows
        )
        token = (
            f"<NextContinuationToken>{escape(following)}</NextContinuationToken>"
            if following
            else ""
        )
        text = (
            f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(rows)}</KeyCount>"
            f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{'true' if following else 'false'}</IsTruncated>"
            f"{token}{inner}</ListBucketResult>"
        )
        return _Reply(200, {"Content-Type": "application/xml"}, text.encode())

    def azure(self, target: str, headers: dict[str, str]) -> _Reply:
        """A container of Azure, below an account."""
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        name = unquote(parts.path).lstrip("/").partition("/")[2].partition("/")[2]
        if name:
            return self.file(
                name,
                headers,
                {"x-ms-version": "2023-11-03", "x-ms-blob-type": "BlockBlob"},
            )
        prefix, flat = query.get("prefix", [""])[0], not query.get("delimiter", [""])[0]
        rows, following = self.listed(
            prefix, flat, query.get("marker", [""])[0], _PAGE["az"]
        )
        inner = "".join(
            f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>"
            if item is None
            else f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{_DATE}</Last-Modified>"
            f"<Etag>{item.etag}</Etag><Content-Length>{item.size}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for name, item in rows
        )
        text = (
            f"<EnumerationResults><Prefix>{escape(prefix)}</Prefix><Blobs>{inner}</Blobs>"
            f"<NextMarker>{escape(following)}</NextMarker></EnumerationResults>"
        )
        return _Reply(200, {"Content-Type": "application/xml"}, text.encode())

    def hub(self, target: str, headers: dict[str, str]) -> _Reply:
        """The models `bench/NAME`, each a folder: lists, and redirects to the second
        server.
        """
        parts = urlsplit(target)
        path, query = unquote(parts.path), parse_qs(parts.query)
        if found := re.fullmatch(
            rf"/api/models/{BUCKET}/([^/]+)/tree/[^/]+(?:/(.*))?", path
        ):
            return self._tree(found[1], found[2] or "", parts.path, query)
        if found := re.fullmatch(
            rf"/api/models/{BUCKET}/([^/]+)(?:/revision/[^/]+)?", path
        ):
            prefix = f"{found[1]}/"
            names = [
                name[len(prefix) :] for name in self.items if name.startswith(prefix)
            ]
            about = {
                "id": f"{BUCKET}/{found[1]}",
                "modelId": f"{BUCKET}/{found[1]}",
                "sha": self.commit,
                "siblings": [{"rfilename": name} for name in names],
                **{
                    "private": False,
                    "gated": False,
                    "disabled": False,
                    "tags": [],
                    "downloads": 0,
                    "likes": 0,
                },
            }
            return _Reply(
                200, {"Content-Type": "application/json"}, json.dumps(about).encode()
            )
        found = re.fullmatch(rf"/{BUCKET}/([^/]+)/resolve/[^/]+/(.+)", path)
        item = self.items.get(f"{found[1]}/{found[2]}") if found else None
        if found is None or item is None:
            return _Reply(
                404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.commit}
            )
        about = {
            "X-Repo-Commit": self.commit,
            "X-Linked-Size": str(item.size),
            "X-Linked-ETag": f'"{hashlib.sha256(item.etag.encode()).hexdigest()}"',
            "Location": f"{self.cdn}/{quote(found[1] + '/' + found[2])}?Expires=1800000000&Signature=x",
        }
        return _Reply(302, about)

    def _tree(
        self, model: str, folder: str, path: str, query: dict[str, list[str]]
    ) -> _Reply:
        prefix = f"{model}/{folder}/" if folder else f"{model}/"
        after = query.get("cursor", [""])[0]
        rows, following = self.listed(prefix, "recursive" in query, after, _PAGE["hf"])
        document = []
        for name, item in rows:
            inner, oid = (
                name[len(model) + 1 :].rstrip("/"),
                hashlib.sha1(name.encode()).hexdigest(),
            )
            if item is None:
                document.append(
                    {"type": "directory", "oid": oid, "size": 0, "path": inner}
                )
                continue
            sha = hashlib.sha256(item.etag.encode()).hexdigest()
            lfs = {"oid": sha, "size": item.size, "pointerSize": 134}
            document.append(
                {
                    "type": "file",
                    "oid": oid,
                    "size": item.size,
                    "lfs": lfs,
                    "path": inner,
                }
            )
        headers = {"Content-Type": "application/json"}
        if following:
            recursive = "recursive=true&" if "recursive" in query else ""
            headers["Link"] = (
                f'<{self.hf}{path}?{recursive}cursor={quote(following)}>; rel="next"'
            )
        return _Reply(200 if document else 404, headers, json.dumps(document).encode())

    def listed(
        self, prefix: str, flat: bool, after: str, limit: int
    ) -> tuple[list[tuple[str, Item | None]], str]:
        """The rows of a page of a list, a folder without an item, and what the next
        page begins after.
        """
        rows: list[tuple[str, Item | None]] = []
        for name, item in self.items.items():
            if not name.startswith(prefix):
                continue
            inner, slash, _ = name[len(prefix) :].partition("/")
            row = (name, item) if flat or not slash else (f"{prefix}{inner}/", None)
            if row[0] <= after or (rows and rows[-1][0] == row[0]):
                continue
            if len(rows) == limit:
                return rows, rows[-1][0]
            rows.append(row)
        return rows, ""


class _Server:
    """The counts of all services, and the connections."""

    def __init__(self, delay: float, zeros: str) -> None:
        self.delay = delay
        self._zeros = zeros
        self._now = 0
        self._counts = Counts(0, 0, 0, 0)

    def take(self, target: str, headers: dict[str, str]) -> _Reply:
        """The counts since the last call."""
        counts, self._counts = self._counts, Counts(0, 0, 0, 0)
        return _Reply(200, {}, json.dumps(counts).encode())

    def _count(self, requests: int = 0, nbytes: int = 0, connections: int = 0) -> None:
        now = self._counts
        self._counts = Counts(
            now.requests + requests,
            now.bytes + nbytes,
            max(now.most, self._now),
            now.connections + connections,
        )

    async def start(self, answer: _Answer, *, counts: bool = True) -> str:
        """Listen on a free port; its URL."""

        async def talk(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            try:
                await self._talk(reader, writer, answer, counts)
            except (
                ConnectionError,
                asyncio.IncompleteReadError,
                asyncio.LimitOverrunError,
            ):
                pass  # the client went away
            finally:
                writer.close()

        server = await asyncio.start_server(
            talk, "127.0.0.1", 0, backlog=512, limit=1 << 20
        )
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _talk(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: _Answer,
        counts: bool,
    ) -> None:
        delay = 2 * self.delay
        if counts:
            self._count(connections=1)
        while True:
            lines = (
                (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            )
            method, target, _ = lines[0].split(" ", 2)
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (
                    line.partition(":") for line in lines[1:] if line
                )
            }
            await reader.readexactly(int(headers.get("content-length") or 0))
            if not counts:
                await self._send(writer, method, answer(target, headers))
                return
            self._now += 1
            self._count(requests=1)
            try:
                await asyncio.sleep(delay)
                delay = self.delay
                self._count(
                    nbytes=await self._send(writer, method, answer(target, headers))
                )
            finally:
                self._now -= 1
            if headers.get("connection", "").lower() == "close":
                return

    async def _send(
        self, writer: asyncio.StreamWriter, method: str, reply: _Reply
    ) -> int:
        """Send an answer. Returns the bytes of its body."""
        begin, end = reply.span
        size = len(reply.body) if reply.item is None else end - begin
        lines = [
            f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}",
            f"Content-Length: {size}",
        ]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if method == "HEAD":
            await writer.drain()
            return 0
        if reply.item is None:
            writer.write(reply.body)
        elif reply.item.path is not None:
            await self._send_file(writer, reply.item.path, begin, size)
        else:
            head = reply.item.head[begin:end]
            writer.write(head)
            await self._send_file(writer, self._zeros, 0, size - len(head))
        await writer.drain()
        return size

    async def _send_file(
        self, writer: asyncio.StreamWriter, path: str, begin: int, size: int
    ) -> None:
        if size:
            await writer.drain()
            with open(path, "rb") as file:
                await asyncio.get_running_loop().sendfile(
                    writer.transport, file, begin, size
                )


async def serve(folder: Path, delay: float, shards: int) -> None:
    """Serve until stdin ends. `delay` in seconds."""
    with tempfile.NamedTemporaryFile() as zeros:
        os.truncate(zeros.name, 2 * MADE_BYTES)  # a hole, which sendfile sends as zeros
        service = Service(
            {**files_of(folder), **(made_model(shards) if shards else {})}
        )
        server = _Server(delay, zeros.name)
        service.cdn = await server.start(service.web)
        service.hf = await server.start(service.hub)
        rest = [
            await server.start(answer)
            for answer in (service.web, service.s3, service.azure)
        ]
        control = await server.start(server.take, counts=False)
        print(
            json.dumps(Addresses(*rest, service.hf, service.cdn, control)), flush=True
        )
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the options and serves."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--delay", type=float, default=50, metavar="MS", help="before each answer"
    )
    parser.add_argument(
        "--shards", type=int, default=0, metavar="N", help="of a model that is made up"
    )
    options = parser.parse_args(arguments)
    asyncio.run(serve(options.folder, options.delay / 1000, options.shards))


if __name__ == "__main__":
    main()

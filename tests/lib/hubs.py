"""An imitation of the Hugging Face hub: lists in pages, and files that a second server
hands out for a signed query.

As on the hub: a large file is a redirect to the CDN, whose ETag is another than the one
that the hub gives of the file; a small one comes from the hub itself. The CDN refuses a
signed request that has a token too, as S3 does.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

MODEL = "org/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Asked(NamedTuple):
    """One request: its path with query, its Range, its Authorization, and the status of
    the answer.
    """

    path: str
    range: str
    login: str
    status: int


class Reply(NamedTuple):
    """An answer: its status, headers and body."""

    status: int
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


class Hub:
    """One model, `hf://org/model`. `asked` are the requests to the hub, `cdn` those to
    its second server.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.url = self.cdn_url = ""
        self._signatures = count(1)
        self._used: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Behave well again, and forget the requests. The files stay."""
        self.asked: list[Asked] = []
        self.cdn: list[Asked] = []
        self.connections: set[int] = set()
        """The ports of the clients that either server saw."""
        self.token: str | None = None
        """The token that a gated model wants."""
        self.per_page = 1000
        self.lasts: int | None = None
        """How many requests each signed query answers. Later ones get 403."""
        self.small = 0
        """Files of at most so many bytes are no LFS files: the hub gives them
        itself.
        """

    def put(self, path: Path, name: str = "") -> None:
        """Put a file, or all files of a folder, into the model."""
        if path.is_dir():
            for inner in path.rglob("*"):
                if inner.is_file():
                    self.put(inner, f"{name or path.name}/{inner.relative_to(path)}")
            return
        self.files[name or path.name] = path.read_bytes()

    def variables(self) -> dict[str, str]:
        """What the environment must say."""
        return {"HF_ENDPOINT": self.url}

    # --- the hub ---

    def answer(self, path: str, headers: dict[str, str]) -> Reply:
        """Answer a request to the hub."""
        parts = urlsplit(path)
        route = unquote(parts.path)
        login = headers.get("authorization", "")
        if self.token is not None and login != f"Bearer {self.token}":
            said = (
                f"Access to model {MODEL} is restricted. You must have access to it "
                "and be authenticated."
            )
            return Reply(
                401,
                {"X-Error-Code": "GatedRepo", "X-Error-Message": said},
                said.encode(),
            )
        tree = re.fullmatch(rf"/api/models/{MODEL}/tree/[^/]+(?:/(.*))?", route)
        if tree:
            return self._tree(tree[1] or "", parts.path, parse_qs(parts.query))
        file = re.fullmatch(rf"/{MODEL}/resolve/[^/]+/(.+)", route)
        if file is None or file[1] not in self.files:
            code = "EntryNotFound" if file else "RepoNotFound"
            return Reply(404, {"X-Error-Code": code, "X-Repo-Commit": COMMIT})
        data = self.files[file[1]]
        about = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if len(data) <= self.small:
            return _part(data, headers, {**about, "ETag": f'"{_blob(data)}"'})
        sha = hashlib.sha256(data).hexdigest()
        query = f"Expires=1800000000&Signature={next(self._signatures)}&Key-Pair-Id=K"
        about |= {
            "X-Linked-Size": str(len(data)),
            "X-Linked-ETag": f'"{sha}"',
            "Vary": "Origin",
        }
        place = f"{self.cdn_url}/repos/{sha}?{query}"
        return Reply(
            302, {**about, "Location": place}, f"Found. Redirecting to {place}".encode()
        )

    def _tree(self, folder: str, path: str, query: dict[str, list[str]]) -> Reply:
        prefix = f"{folder}/" if folder else ""
        rows: dict[str, dict[str, object]] = {}
        for name, data in sorted(self.files.items()):
            if not name.startswith(prefix):
                continue
            inner = name[len(prefix) :].split("/")
            if len(inner) > 1 and "recursive" not in query:
                below = prefix + inner[0]
                rows[below] = {
                    "type": "directory",
                    "oid": _blob(below.encode()),
                    "size": 0,
                    "path": below,
                }
                continue
            rows[name] = {
                "type": "file",
                "oid": _blob(data),
                "size": len(data),
                "path": name,
            }
            if len(data) > self.small:
                sha = hashlib.sha256(data).hexdigest()
                rows[name]["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 134}
        if not rows and folder:
            return Reply(404, {"X-Error-Code": "EntryNotFound"})
        first = int(query.get("cursor", ["0"])[0])
        page = list(rows.values())[first : first + self.per_page]
        headers = {"Content-Type": "application/json; charset=utf-8"}
        if first + self.per_page < len(rows):
            recursive = "recursive=true&" if "recursive" in query else ""
            following = f"{self.url}{path}?{recursive}cursor={first + self.per_page}"
            headers["Link"] = f'<{following}>; rel="next"'
        return Reply(200, headers, json.dumps(page).encode())

    # --- its second server ---

    def hand_out(self, path: str, headers: dict[str, str]) -> Reply:
        """Answer a request to the CDN."""
        parts = urlsplit(path)
        signature = parse_qs(parts.query).get("Signature", [""])[0]
        if headers.get("authorization"):
            return Reply(400, {}, b"Only one auth mechanism allowed")
        with self._lock:
            self._used[signature] += 1
            used = self._used[signature]
        if not signature or (self.lasts is not None and used > self.lasts):
            return Reply(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        sha = parts.path.rpartition("/")[2]
        data = next(
            (
                data
                for data in self.files.values()
                if hashlib.sha256(data).hexdigest() == sha
            ),
            None,
        )
        if data is None:
            return Reply(404)
        etag = f'"{hashlib.md5(data).hexdigest()}-64"'
        return _part(data, headers, {"Accept-Ranges": "bytes", "ETag": etag})


def _blob(data: bytes) -> str:
    """The name that git gives a file."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def _part(data: bytes, headers: dict[str, str], about: dict[str, str]) -> Reply:
    if headers.get("if-match", about["ETag"]) != about["ETag"]:
        return Reply(412, about)
    span = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
    if span is None:
        return Reply(200, about, data)
    first = int(span[1]) if span[1] else max(0, len(data) - int(span[2]))
    last = min(int(span[2]), len(data) - 1) if span[1] and span[2] else len(data) - 1
    if first > last:
        return Reply(416, {**about, "Content-Range": f"bytes */{len(data)}"})
    return Reply(
        206,
        {**about, "Content-Range": f"bytes {first}-{last}/{len(data)}"},
        data[first : last + 1],
    )


@contextmanager
def hub(files: Path) -> Iterator[Hub]:
    """Run the hub and its second server on free ports of this machine, until the end of
    the block.

    It has the files of a folder.
    """
    made = Hub()
    for path in files.iterdir():
        made.put(path)
    with ExitStack() as opened:
        made.cdn_url = opened.enter_context(
            _server(made, made.hand_out, lambda row: made.cdn.append(row))
        )
        made.url = opened.enter_context(
            _server(made, made.answer, lambda row: made.asked.append(row))
        )
        yield made


@contextmanager
def _server(
    made: Hub,
    answer: Callable[[str, dict[str, str]], Reply],
    keep: Callable[[Asked], None],
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(self.path, headers)
            made.connections.add(self.client_address[1])
            row = (
                headers.get("range", ""),
                headers.get("authorization", ""),
                reply.status,
            )
            keep(Asked(self.path, *row))
            try:
                self.send_response(reply.status)
                for name, value in {
                    **reply.headers,
                    "Content-Length": str(len(reply.body)),
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with started(Handler) as url:
        yield url


@contextmanager
def started(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server of threads on a free port until the end of the block; its URL."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that went away

    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def url_of(name: str, revision: str = "") -> str:
    """The URL of a file of the model."""
    return f"hf://{MODEL}{'@' + revision if revision else ''}/{quote(name)}"

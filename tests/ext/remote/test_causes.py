"""The cause of what obstore raises, from the answers of real requests: the status, the
code, the server; never a path.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ckpt.bytes.location import locate
from ckpt.ext.remote.causes import cause_of
from ckpt.ext.remote.credentials import looked_at
from ckpt.ext.remote.objects import StoredObject, translate_read_error
from ckpt.ext.remote.store import BusyError, ChangedError
from ckpt.ext.remote.url import parse_url
from ckpt.model.errors import CkptError, NotOpenedError

stores = pytest.importorskip("obstore.store")
PATHS = (
    "run/epoch_403.pth",
    "a/status: 403, status code: 401 <Code>ExpiredToken</Code>.pth",
)


class Answer:
    status = 200
    body = b""


@pytest.fixture
def server() -> Iterator[tuple[str, Answer]]:
    answer = Answer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(answer.body)

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}", answer
    made.shutdown()
    thread.join()
    made.server_close()


def store(endpoint: str, **options: Any) -> Any:
    return stores.S3Store(
        "bucket",
        endpoint=endpoint,
        access_key_id="id",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True, **options},
        retry_config={"max_retries": 0},
    )


def xml(code: str, more: str = "") -> bytes:
    return (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>\n   status: 404,\n"
        f"</Message>{more}</Error>"
    ).encode()


def raised(endpoint: str, path: str = "a.pth", **options: Any) -> Exception:
    """What reading an object raises."""
    url = parse_url("s3://bucket/x")._replace(path=path)
    with pytest.raises(Exception) as caught:
        StoredObject(store(endpoint, **options), url).get(0, 10, "")
    return caught.value


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (503, xml("SlowDown"), BusyError, "the object store answers 503 SlowDown"),
        (429, b"", BusyError, "the object store answers 429"),
        (500, b"no xml", BusyError, "the object store answers 500"),
        (418, b"", NotOpenedError, "the object store answers 418"),
        (403, xml("AccessDenied"), NotOpenedError, (
            "no permission to read it: 403 AccessDenied (credentials come from HERE)"
        )),
        (401, b"", NotOpenedError, (
            "no permission to read it: 401 (credentials come from HERE)"
        )),
        (403, xml("ExpiredToken"), NotOpenedError, (
            "the credentials have expired: 403 ExpiredToken (log in again)"
        )),
        (400, xml("ExpiredToken"), NotOpenedError, (
            "the credentials have expired: 400 ExpiredToken (log in again)"
        )),
        (404, xml("NoSuchKey"), NotOpenedError, "no such object"),
        (404, xml("NoSuchBucket"), NotOpenedError, "no such bucket"),
        (
            400,
            xml("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
            NotOpenedError,
            "the bucket lies in another region (AWS_REGION=eu-west-1)",
        ),
        (301, b"", NotOpenedError, (
            "the bucket lies in another region (AWS_REGION names its region)"
        )),
        (412, b"", ChangedError, (
            "the object changed while it was read (still being written?)"
        )),
    ],
)  # fmt: skip
def test_what_a_store_answers(
    status: int,
    body: bytes,
    kind: type[Exception],
    says: str,
    path: str,
    server: tuple[str, Answer],
) -> None:
    endpoint, answer = server
    answer.status, answer.body = status, body
    error = raised(endpoint, path)
    assert type(error) is kind and str(error) == says.replace("HERE", looked_at("s3"))
    assert getattr(error, "is_overload", status == 429) is (status in (429, 503))


@pytest.mark.slow
def test_why_a_store_is_not_reached(server: tuple[str, Answer]) -> None:
    endpoint, _ = server
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        error = raised(f"http://{host}", timeout="1s")
        assert type(error) is BusyError and str(error) == f"{host} does not answer"
    error = raised(f"http://{host}")
    assert type(error) is BusyError and str(error) == f"{host} refuses the connection"
    error = raised("http://no.such.host.invalid")
    assert (
        type(error) is NotOpenedError
        and str(error) == "unknown host no.such.host.invalid"
    )
    error = raised(endpoint.replace("http:", "https:"))
    assert type(error) is NotOpenedError and str(error).endswith(
        "does not answer with TLS"
    )


@pytest.mark.parametrize(
    ("uri", "scheme"),
    [
        ("http://169.254.169.254/latest/api/token", "s3"),
        ("http://metadata.google.internal/x", "gs"),
        ("http://169.254.169.254/metadata/identity", "az"),
    ],
)
def test_no_credentials_names_what_was_looked_at(uri: str, scheme: str) -> None:
    tree = (
        f"Generic {{\n            uri: Some(\n                {uri},\n            ),\n "
        f"               status: 403,\n}}"
    )
    cause = cause_of(Exception(f"x\n\nDebug source:\n{tree}"), scheme, "read")
    assert (cause.problem, cause.hint) == (
        "no credentials",
        f"looked at {looked_at(scheme)}",
    )
    assert not cause.may_pass


def test_no_account() -> None:
    with pytest.raises(Exception) as caught:
        stores.AzureStore("container")
    error = translate_read_error(caught.value, "az")
    assert str(error) == f"no account (looked at {looked_at('az')})"


def test_an_error_without_a_tree_is_no_decision() -> None:
    assert (
        cause_of(Exception("403 ExpiredToken"), "s3", "read").problem
        == "the object store does not answer"
    )


def test_a_store_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        if name.startswith(("AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    with pytest.raises(CkptError) as error:
        locate("az://container-without-account/a.pth").is_folder()
    assert str(error.value) == f"no account (looked at {looked_at('az')})"
    (tmp_path / "x.json").write_text("{")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "x.json"))
    with pytest.raises(
        CkptError,
        match=r"^the settings of gs:// are not valid \(GOOGLE_APPLICATION_CREDENTIALS",
    ):
        locate("gs://bucket-of-damaged-credentials/a.pth").is_folder()

"""nginx as real web servers are set up: passwords, compression, redirects, slow
answers, kept connections, TLS.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

USER, PASSWORD = "me", "p@ss"
RATE = 400_000
"""Bytes a second of `/slow/`."""

_PLACES = f"""
    location /plain/ {{ alias files/; }}
    location /auth/ {{ alias files/; auth_basic "models"; auth_basic_user_file users; }}
    location /gzip/ {{ alias files/; gzip on; gzip_types *; gzip_min_length 1; gzip_http_version 1.0; }}
    location /forced/ {{
      proxy_pass http://127.0.0.1:{{plain}}/gzip/;
      proxy_http_version 1.1; proxy_set_header Accept-Encoding gzip; proxy_set_header Connection "";
    }}
    location /packed/ {{ alias packed/; gzip_static always; }}
    location ~ ^/coded/(.*)$ {{ alias packed/$1.gz; add_header Content-Encoding gzip; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /plain/$1 redirect; }}
    location /away/ {{ return 302 http://127.0.0.1:{{other}}/plain/$uri_rest; }}
    location /slow/ {{ alias files/; limit_rate {RATE}; }}
    location /few/ {{ alias files/; keepalive_requests 3; }}
    location = /-/mark {{ access_log off; return 204; }}
"""
_CONFIG = """
daemon off; worker_processes 1; user {user} {group}; pid nginx.pid; error_log stderr error;
events {{ worker_connections 512; }}
http {{
  log_format row '$server_port\t$connection\t$status\t$body_bytes_sent\t$request_method\t$uri\t'
    '$http_range\t$http_authorization\t$sent_http_content_encoding\t$limit_rate';
  access_log requests row;
  client_body_temp_path temp/1; proxy_temp_path temp/2; fastcgi_temp_path temp/3;
  uwsgi_temp_path temp/4; scgi_temp_path temp/5;
  absolute_redirect off; default_type application/octet-stream; sendfile on;
  map $uri $uri_rest {{ ~^/[^/]+/(.*)$ $1; }}
  server {{ listen 127.0.0.1:{plain}; {places} }}
  server {{ listen 127.0.0.1:{other}; {places} }}
  {secure}
}}
"""


class Asked(NamedTuple):
    """One answered request: its port and connection, its status, the bytes of the body,
    and what was asked.
    """

    port: int
    connection: int
    status: int
    sent: int
    method: str
    path: str
    range: str
    login: str
    encoding: str
    """The Content-Encoding of the answer."""
    limit: str
    """The bytes a second that it may have, or 0."""


class Nginx:
    """A running nginx. `url` leads to the files, `other` to another port of it,
    `secure` is TLS or empty.
    """

    def __init__(self, folder: Path, ports: list[int], secure: bool) -> None:
        self.folder = folder
        self.url, self.other = (f"http://127.0.0.1:{port}" for port in ports[:2])
        self.secure = f"https://127.0.0.1:{ports[2]}" if secure else ""
        self._skipped = 0

    @property
    def certificate(self) -> str:
        """The path of the certificate, for `SSL_CERT_FILE`."""
        return str(self.folder / "cert.pem")

    def put(self, path: Path, name: str = "") -> None:
        """Serve a file, or all files of a folder; no copy is made where a link
        can be.
        """
        if path.is_dir():
            for inner in path.rglob("*"):
                if inner.is_file():
                    self.put(inner, f"{name or path.name}/{inner.relative_to(path)}")
            return
        target = self.folder / "files" / (name or path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)

    def pack(self, path: Path) -> None:
        """Put the gzip of a file: `/packed/` sends it whole, `/coded/` sends ranges of
        it, both with Content-Encoding.
        """
        import gzip

        (self.folder / "packed" / f"{path.name}.gz").write_bytes(
            gzip.compress(path.read_bytes(), 1)
        )

    def clear(self) -> None:
        """Forget the requests so far."""
        self._skipped += len(self.asked)

    @property
    def asked(self) -> list[Asked]:
        """The answered requests since the last `clear`.

        One worker answers all, so a request that is answered now comes after all of
        their lines in the log.
        """
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"{self.url}/-/mark").close()
        rows = [
            line.split("\t")
            for line in (self.folder / "requests")
            .read_text(encoding="utf-8")
            .splitlines()
        ]
        return [Asked(*map(int, row[:4]), *row[4:]) for row in rows[self._skipped :]]  # type: ignore[arg-type]


def program() -> str | None:
    """The path of nginx, None where it is not there."""
    return shutil.which("nginx") or shutil.which(
        "nginx", path="/usr/sbin:/usr/local/sbin"
    )


@contextmanager
def running(folder: Path, files: Path, packed: Iterable[str] = ()) -> Iterator[Nginx]:
    """Run nginx on free ports of this machine until the end of the block. Skips the
    test where it is not there.

    It has the files of a folder, some of them also compressed.

    The ports are open before it starts: it inherits the sockets, and nothing has to
    wait for it.
    """
    nginx = program()
    if nginx is None:
        pytest.skip("nginx is not installed")
    openssl = shutil.which("openssl")
    for name in ("files", "packed", "temp"):
        (folder / name).mkdir()
    (folder / "users").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n", encoding="utf-8")
    if openssl:
        _certify(openssl, folder)
    with ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(3)
        ]
        ports = [each.getsockname()[1] for each in sockets]
        places = _PLACES.replace("{{", "{").replace("}}", "}")
        places = places.replace("{plain}", str(ports[0])).replace(
            "{other}", str(ports[1])
        )
        secure = (
            f"server {{ listen 127.0.0.1:{ports[2]} ssl; ssl_certificate cert.pem; "
            f"ssl_certificate_key key.pem; {places} }}"
        )
        user = pwd.getpwuid(os.geteuid())
        config = _CONFIG.format(
            user=user.pw_name,
            group=grp.getgrgid(user.pw_gid).gr_name,
            plain=ports[0],
            other=ports[1],
            places=places,
            secure=secure if openssl else "",
        )
        (folder / "nginx.conf").write_text(config, encoding="utf-8")
        used = sockets if openssl else sockets[:2]
        errors = opened.enter_context(open(folder / "errors", "wb"))
        process = subprocess.Popen(
            [
                nginx,
                "-p",
                str(folder),
                "-e",
                "stderr",
                "-c",
                str(folder / "nginx.conf"),
            ],
            env={"NGINX": "".join(f"{each.fileno()};" for each in used)},
            pass_fds=[each.fileno() for each in used],
            stderr=errors,
        )
        for each in sockets:
            each.close()  # else a connection to an nginx that ended would wait
        try:
            made = Nginx(folder, ports, bool(openssl))
            for path in files.iterdir():
                made.put(path)
            for name in packed:
                made.pack(files / name)
            yield made
        finally:
            process.terminate()
            process.wait()


def _certify(openssl: str, folder: Path) -> None:
    """A certificate for 127.0.0.1 that is its own authority, for two days."""
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-keyout",
            str(folder / "key.pem"),
            "-out",
            str(folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    assert (
        ssl.create_default_context(cafile=str(folder / "cert.pem")).cert_store_stats()[
            "x509"
        ]
        == 1
    )

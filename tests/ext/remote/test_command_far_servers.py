"""Checkpoints on real servers: each gives what the local file gives, whatever the
server does on the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import azurites
import kinds_of_files
import nginxes
import oracle
import pytest
from azurites import Azurite
from buckets import Bucket, Front
from hubs import MODEL, Hub, hub
from kinds_of_files import FOLDERS, SINGLE
from nginxes import Nginx
from process import Done, ckpt
from proxies import Proxy, proxy

pytestmark = oracle.QUIET
LOGIN = f"{nginxes.USER}:{nginxes.PASSWORD.replace('@', '%40')}"
COMMANDS = (
    ("inspect", "--json"),
    ("stats", "--json"),
    ("verify", "--json"),
    ("ls", "--json"),
)
DIRECT = dict.fromkeys(
    (
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "HF_TOKEN",
    ),
    "",
)
"""No proxy and no token, whatever the machine has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each kind."""
    return kinds_of_files.write(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def nginx(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginxes.running(tmp_path_factory.mktemp("nginx"), folder) as made:
        yield made


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    with azurites.running() as made:
        yield made


@pytest.fixture(scope="module")
def models(folder: Path) -> Iterator[Hub]:
    with hub(folder) as made:
        yield made


@pytest.fixture
def model(models: Hub) -> Hub:
    models.clear()
    return models


@pytest.fixture
def between() -> Iterator[Proxy]:
    with proxy() as made:
        yield made


class Place(NamedTuple):
    """Where the files are: a URL before their names, as it is typed and as it is shown,
    and the environment.
    """

    typed: str
    shown: str
    environment: dict[str, str]

    def run(self, *words: str, name: str) -> Done:
        return ckpt(*words, f"{self.typed}/{name}", **{**DIRECT, **self.environment})


def plain(url: str, **variables: str) -> Place:
    return Place(url, url, {"no_proxy": "127.0.0.1", **variables})


def nginx_place(path: str) -> Callable[[pytest.FixtureRequest], Place]:
    return lambda request: plain(request.getfixturevalue("nginx").url + path)


def nginx_password(request: pytest.FixtureRequest) -> Place:
    url = request.getfixturevalue("nginx").url + "/auth"
    return plain(url)._replace(typed=url.replace("://", f"://{LOGIN}@"))


def nginx_secure(request: pytest.FixtureRequest) -> Place:
    made = request.getfixturevalue("nginx")
    if not made.secure:
        pytest.skip("openssl is not installed")
    return plain(f"{made.secure}/plain", SSL_CERT_FILE=made.certificate)


def through_proxy(request: pytest.FixtureRequest) -> Place:
    made, between = request.getfixturevalue("nginx"), request.getfixturevalue("between")
    return plain(f"{made.url}/plain", http_proxy=between.url, no_proxy="")


def through_tunnel(request: pytest.FixtureRequest) -> Place:
    place, between = nginx_secure(request), request.getfixturevalue("between")
    return place._replace(
        environment={**place.environment, "https_proxy": between.url, "no_proxy": ""}
    )


def s3(request: pytest.FixtureRequest) -> Place:
    front: Front = request.getfixturevalue("front")
    front.clear()
    bucket, folder = Bucket(front), request.getfixturevalue("folder")
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put(str(path.relative_to(folder)), path.read_bytes())
    return plain(bucket.url, **bucket.variables())


def azure(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue("azurite")
    container, folder = server.container(), request.getfixturevalue("folder")
    for path in folder.iterdir():
        container.put(path)
    return plain(container.url, **server.variables())


def of_hub(**behaviour: object) -> Callable[[pytest.FixtureRequest], Place]:
    def place(request: pytest.FixtureRequest) -> Place:
        made: Hub = request.getfixturevalue("model")
        for name, value in behaviour.items():
            setattr(made, name, value)
        token = {"HF_TOKEN": made.token} if made.token else {}
        return plain(f"hf://{MODEL}", **made.variables(), **token)

    return place


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "nginx": nginx_place("/plain"),
    "a password": nginx_password,
    "TLS": nginx_secure,
    "gzip for those who ask": nginx_place("/gzip"),
    "a redirect": nginx_place("/moved"),
    "a redirect to another port": nginx_place("/away"),
    "connections of three requests": nginx_place("/few"),
    "a proxy": through_proxy,
    "a tunnel": through_tunnel,
    "S3": s3,
    "Azurite": azure,
    "the hub": of_hub(),
    "the hub, small files": of_hub(small=1 << 30),
    "the hub, pages of two": of_hub(per_page=2),
    "the hub, a token": of_hub(token="secret"),
    "the hub, signatures for one request": of_hub(lasts=1),
    "the hub, signatures for three requests": of_hub(lasts=3),
}
LISTING = [name for name in PLACES if name.startswith(("S3", "Azurite", "the hub"))]
SLOW = (
    "gzip for those who ask",
    "a redirect",
    "the hub, small files",
    "the hub, pages of two",
    "the hub, a token",
    "the hub, signatures for three requests",
)
"""tests/ext/remote/test_servers.py asks about the ways of these, so all that they give
is left to `make test-slow`.
"""


def rows(servers: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Every server with every name."""
    return [
        pytest.param(server, name, marks=pytest.mark.slow if server in SLOW else ())
        for server in servers
        for name in names
    ]


_LOCAL: dict[tuple[str, ...], Done] = {}


def local(folder: Path, *words: str, name: str) -> Done:
    """What a command says of the local file, run once."""
    key = (str(folder), *words, name)
    if key not in _LOCAL:
        _LOCAL[key] = ckpt(*words, f"{folder}/{name}")
    return _LOCAL[key]


def document(done: Done, base: str) -> Any:
    """The document of a command without where the file is. The `load:` expression names
    a local copy.
    """
    found = json.loads(done.out.replace(base.encode(), b"BASE"))
    found.pop("load", None)
    return found


def same(place: Place, folder: Path, *words: str, name: str) -> None:
    """Assert that a command says the same of both, but for where the file is."""
    here, far = local(folder, *words, name=name), place.run(*words, name=name)
    assert (far.code, far.err) == (here.code, here.err)
    assert document(far, place.shown) == document(here, str(folder))
    assert b"secret" not in far.out and nginxes.PASSWORD.encode() not in far.out


def all_the_same(place: Place, folder: Path, name: str) -> None:
    """Assert that every command says the same of both, and `diff` that they are."""
    for words in COMMANDS:
        same(place, folder, *words, name=name)
    done = place.run("diff", f"{folder}/{name}", name=name)
    assert (done.code, done.err) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize(("server", "name"), rows(PLACES, SINGLE))
def test_every_command_says_what_it_says_of_the_file(
    server: str, name: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    place = PLACES[server](request)
    all_the_same(place, folder, name)
    assert place.run("diff", str(folder / "zip.pth"), name="legacy.pth").code == 1


@pytest.mark.slow
@pytest.mark.parametrize(("server", "name"), rows(LISTING, FOLDERS))
def test_every_command_says_what_it_says_of_the_folder(
    server: str, name: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    all_the_same(PLACES[server](request), folder, name)

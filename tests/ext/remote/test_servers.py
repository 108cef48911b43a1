"""Real servers and their ways: passwords, compression, slow answers, proxies, pages,
tokens, signatures that expire.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import azurites
import kinds_of_files
import nginxes
import pytest
from buckets import Bucket
from hubs import MODEL, Hub, hub, url_of
from nginxes import Nginx
from process import Done, check_error, ckpt
from proxies import Proxy, proxy

SMALL = "zip.pth"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kinds_of_files.write(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginxes.running(
        tmp_path_factory.mktemp("nginx"), folder, [SMALL, "a.safetensors"]
    ) as made:
        yield made


@pytest.fixture
def nginx(served: Nginx) -> Nginx:
    served.clear()
    return served


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


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no token, whatever the machine has."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "hf_token"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def run(*words: str, **variables: str) -> Done:
    """The command, with a few variables of the environment."""
    return ckpt(*words, **variables)


# --- nginx ----------------------------------------------------------------------------


@pytest.mark.parametrize("login", ["", "me:wrong@", "other:p%40ss@"])
def test_a_wrong_password_is_one_line_without_it(login: str, nginx: Nginx) -> None:
    done = run("inspect", nginx.url.replace("://", f"://{login}") + f"/auth/{SMALL}")
    check_error(
        done,
        f"{nginx.url}/auth/{SMALL}: no permission to read it: the server answers 401",
    )
    assert len(nginx.asked) == 1, "it is not tried again"
    assert b"wrong" not in done.err and b"p%40ss" not in done.err


def test_a_password_goes_to_its_server_only(nginx: Nginx) -> None:
    """Another port is another server."""
    for path, sent in (("moved", True), ("away", False)):
        nginx.clear()
        assert (
            run(
                "inspect",
                nginx.url.replace("://", "://me:p%40ss@") + f"/{path}/{SMALL}",
            ).code
            == 0
        )
        followed = [row for row in nginx.asked if row.path.startswith("/plain/")]
        assert followed and all((row.login != "-") == sent for row in followed)
        assert all((f":{row.port}" in nginx.url) == sent for row in followed)


@pytest.mark.parametrize("path", ["forced", "packed", "coded"])
@pytest.mark.parametrize("name", [SMALL, "a.safetensors"])
def test_a_server_that_compresses_all_the_same_is_refused(
    path: str, name: str, nginx: Nginx
) -> None:
    """`/coded/` sends ranges of the gzip. None of its bytes may be taken for
    the file.
    """
    done = run("inspect", f"{nginx.url}/{path}/{name}")
    assert {row.encoding for row in nginx.asked} == {"gzip"}
    check_error(done, "compress")


def test_no_server_is_asked_to_compress(nginx: Nginx) -> None:
    assert run("stats", f"{nginx.url}/gzip/{SMALL}").code == 0
    assert {row.encoding for row in nginx.asked} == {"-"}


def test_a_certificate_that_nobody_vouches_for_is_refused(nginx: Nginx) -> None:
    if not nginx.secure:
        pytest.skip("openssl is not installed")
    check_error(run("inspect", f"{nginx.secure}/plain/{SMALL}"), "certificate")
    assert nginx.asked == []


@pytest.mark.slow
def test_a_slow_server_is_waited_for(folder: Path, nginx: Nginx) -> None:
    done, here = (
        run("sum", f"{nginx.url}/slow/{SMALL}"),
        run("sum", str(folder / SMALL)),
    )
    assert done.code == 0 and done.out.splitlines()[-1] == here.out.splitlines()[-1]
    assert all(row.status == 206 for row in nginx.asked), "nothing is tried again"
    assert {row.limit for row in nginx.asked} == {str(nginxes.RATE)}


# --- proxies --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_http_goes_through_the_proxy(name: str, nginx: Nginx, between: Proxy) -> None:
    url = f"{nginx.url}/plain/{SMALL}"
    done = run("inspect", url, **{name: between.url})
    assert done.code == 0
    assert {row.what for row in between.asked} == {f"GET {url}"}
    assert len(between.asked) == len(nginx.asked) > 0


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_https_goes_through_a_tunnel(name: str, nginx: Nginx, between: Proxy) -> None:
    if not nginx.secure:
        pytest.skip("openssl is not installed")
    variables = {"SSL_CERT_FILE": nginx.certificate, name: between.url}
    assert run("inspect", f"{nginx.secure}/plain/{SMALL}", **variables).code == 0
    host = nginx.secure.partition("//")[2]
    assert {row.what for row in between.asked} == {f"CONNECT {host}"}
    assert nginx.asked


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize("hosts", ["127.0.0.1", "example.com, 127.0.0.1", "*"])
def test_no_proxy_names_the_servers_that_are_asked_directly(
    hosts: str, name: str, secure: bool, nginx: Nginx, between: Proxy
) -> None:
    if secure and not nginx.secure:
        pytest.skip("openssl is not installed")
    url = nginx.secure if secure else nginx.url
    proxied = {
        "http_proxy": between.url,
        "https_proxy": between.url,
        "SSL_CERT_FILE": nginx.certificate,
    }
    assert run("inspect", f"{url}/plain/{SMALL}", **{**proxied, name: hosts}).code == 0
    assert between.asked == [] and nginx.asked
    other = {**proxied, name: "example.com"}
    assert run("inspect", f"{url}/plain/{SMALL}", **other).code == 0
    assert between.asked


def test_a_proxy_that_is_not_there_is_one_line(nginx: Nginx) -> None:
    variables = {"http_proxy": "http://127.0.0.1:1"}
    check_error(run("inspect", f"{nginx.url}/plain/{SMALL}", **variables))
    assert nginx.asked == []


def test_the_hub_is_asked_through_the_proxy(model: Hub, between: Proxy) -> None:
    variables = {**model.variables(), "http_proxy": between.url, "HF_TOKEN": "secret"}
    assert run("inspect", url_of(SMALL), **variables).code == 0
    hosts = {row.what.split("/")[2] for row in between.asked}
    assert hosts == {url.partition("//")[2] for url in (model.url, model.cdn_url)}
    assert {row.login for row in model.cdn} == {""}


def test_object_stores_are_asked_through_the_proxy(
    s3: Bucket, folder: Path, between: Proxy
) -> None:
    url = s3.put(SMALL, (folder / SMALL).read_bytes())
    s3.front.clear()
    variables = {**s3.variables(), "no_proxy": ""}
    assert run("inspect", url, **{**variables, "http_proxy": between.url}).code == 0
    assert len(between.asked) == len(s3.front.asked) > 0
    between.clear()
    assert (
        run(
            "inspect",
            url,
            **{**variables, "http_proxy": between.url, "no_proxy": "127.0.0.1"},
        ).code
        == 0
    )
    assert between.asked == []


# --- in front of an object store ------------------------------------------------------


def test_azure_through_a_front(folder: Path) -> None:
    """What is signed does not name the server, so a front can count what Azurite is
    asked.
    """
    with azurites.running() as server, proxy(server.behind) as front:
        container = server.container()
        container.put(folder / SMALL)
        server.url = front.url
        assert (
            run("inspect", f"{container.url}/{SMALL}", **server.variables()).code == 0
        )
        assert all(
            row.what == f"GET /{azurites.ACCOUNT}/{container.name}/{SMALL}"
            for row in front.asked
        )
        assert (
            0 < len(front.asked) <= 4 and front.sent < (folder / SMALL).stat().st_size
        )


def test_azure_refuses_a_wrong_key(folder: Path) -> None:
    with azurites.running() as server:
        container = server.container()
        container.put(folder / SMALL)
        key = {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}
        check_error(
            run("inspect", f"{container.url}/{SMALL}", **{**server.variables(), **key}),
            "permission",
        )


# --- the hub --------------------------------------------------------------------------


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def test_the_imitation_answers_as_the_hub_does(model: Hub, folder: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)
    data = (folder / SMALL).read_bytes()
    with pytest.raises(urllib.error.HTTPError) as caught:
        opener.open(
            urllib.request.Request(
                f"{model.url}/{MODEL}/resolve/main/{SMALL}", method="HEAD"
            )
        )
    found = caught.value.headers
    caught.value.close()
    assert (caught.value.code, found["X-Linked-Size"]) == (302, str(len(data)))
    assert found["X-Linked-ETag"] == f'"{hashlib.sha256(data).hexdigest()}"'
    assert len(found["X-Repo-Commit"]) == 40
    call = urllib.request.Request(found["Location"], headers={"Range": "bytes=-7"})
    with opener.open(call) as answer:
        assert (answer.status, answer.read()) == (206, data[-7:])
        assert answer.headers["ETag"] != found["X-Linked-ETag"]
    for change, status in (
        ({"Authorization": "Bearer x"}, 400),
        ({"If-Match": '"x"'}, 412),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            opener.open(urllib.request.Request(found["Location"], headers=change))
        caught.value.close()
        assert caught.value.code == status
    model.per_page = 2
    with opener.open(f"{model.url}/api/models/{MODEL}/tree/main") as answer:
        rows = json.loads(answer.read())
        assert [row["path"] for row in rows] == ["a.safetensors", "legacy.pth"]
        assert (
            rows[0]["lfs"]["size"]
            == rows[0]["size"]
            == (folder / "a.safetensors").stat().st_size
        )
        assert answer.headers["Link"].endswith('/tree/main?cursor=2>; rel="next"')


@pytest.mark.parametrize("words", [("inspect",), ("stats",), ("ls",)])
def test_the_token_never_reaches_the_second_server(
    words: tuple[str, ...], model: Hub
) -> None:
    model.token, model.lasts = "secret", 2
    for name in (SMALL, "run.dcp", "sharded"):
        assert (
            run(*words, url_of(name), **model.variables(), HF_TOKEN="secret").code == 0
        )
    assert {row.login for row in model.asked} == {"Bearer secret"}
    assert model.cdn and {row.login for row in model.cdn} == {""}


@pytest.mark.parametrize("token", ["", "wrong"])
@pytest.mark.parametrize(
    "name", [SMALL, "run.dcp", "sharded/model.safetensors.index.json"]
)
def test_a_gated_model_without_its_token_is_one_line(
    name: str, token: str, model: Hub
) -> None:
    model.token = "secret"
    done = run("inspect", f"hf://{MODEL}/{name}", **model.variables(), HF_TOKEN=token)
    check_error(done, "the server answers 401")
    assert len(model.asked) == 1 and model.cdn == [], "it is not tried again"


def test_a_listing_of_several_pages_is_whole(model: Hub) -> None:
    whole = run("ls", f"hf://{MODEL}/", "--json", **model.variables())
    model.clear()
    model.per_page = 2
    paged = run("ls", f"hf://{MODEL}/", "--json", **model.variables())
    assert (paged.code, paged.out) == (whole.code, whole.out)
    assert any("cursor=4" in row.path for row in model.asked)
    assert len(paged.lines) == 5


@pytest.mark.parametrize("lasts", [1, 2])
def test_a_signature_that_expires_is_asked_for_anew(lasts: int, model: Hub) -> None:
    whole = run("stats", url_of(SMALL), "--json", **model.variables())
    model.clear()
    model.lasts = lasts
    done = run("stats", url_of(SMALL), "--json", **model.variables())
    assert (done.code, done.out, done.err) == (0, whole.out, b"")
    assert len(model.asked) >= 2


def test_a_signature_that_never_works_is_one_line(model: Hub) -> None:
    """A server that always answers 403 is not asked for ever."""
    model.lasts = 0
    check_error(run("inspect", url_of(SMALL), **model.variables()), "403")
    assert len(model.asked) <= 2 and len(model.cdn) <= 2

"""Reading from servers costs what it must: kept connections, many requests at once,
each byte once, redirects once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kinds_of_files
import nginxes
import pytest
from hubs import MODEL, Hub, hub, url_of
from nginxes import Nginx
from process import Done, check_error, ckpt
from proxies import Proxy, proxy

ZIP, SHARDS = "zip.pth", 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each kind, and one of a hundred small shards."""
    import torch
    from safetensors.torch import save_file

    made = kinds_of_files.write(tmp_path_factory.mktemp("local"))
    (made / "many").mkdir()
    index = {}
    for number in range(SHARDS):
        name = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        save_file(
            {f"layers.{number}.weight": torch.full((9,), float(number))},
            made / "many" / name,
        )
        index[f"layers.{number}.weight"] = name
    document = {"metadata": {"total_size": SHARDS * 36}, "weight_map": index}
    (made / "many" / "model.safetensors.index.json").write_text(json.dumps(document))
    return made


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginxes.running(tmp_path_factory.mktemp("nginx"), folder, [ZIP]) as made:
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


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no token, whatever the machine has."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "hf_token"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def far_away(nginx: Nginx) -> Iterator[Proxy]:
    """nginx behind a front whose answers take so long that requests can meet."""
    with proxy(nginx.url) as made:
        made.delay = 50
        yield made


def run(*words: str, **variables: str) -> Done:
    """A command that works."""
    done = ckpt(*words, **variables)
    assert (done.code, done.err) == (0, b""), done.err
    return done


INDEX = "many/model.safetensors.index.json"


@pytest.mark.parametrize("place", ["plain", "few"])
def test_connections_are_kept(place: str, nginx: Nginx) -> None:
    """nginx closes those of `/few/` after three requests: no answer is lost, and no
    request made twice.
    """
    run("inspect", f"{nginx.url}/{place}/{INDEX}")
    asked = nginx.asked
    assert {row.status for row in asked} == {206}
    assert SHARDS < len(asked) <= SHARDS + 3, "the index, and each shard once"
    each = Counter(row.connection for row in asked)
    assert len(each) < SHARDS / 2
    assert (max(each.values()) > 3) == (place == "plain")


def test_shards_are_asked_for_at_once(far_away: Proxy, nginx: Nginx) -> None:
    run("inspect", f"{far_away.url}/plain/{INDEX}")
    assert len(far_away.asked) > SHARDS
    assert far_away.most_at_once >= 4


def test_the_data_of_a_file_are_asked_for_at_once(far_away: Proxy) -> None:
    run("stats", f"{far_away.url}/plain/{INDEX}")
    assert far_away.most_at_once >= 4


@pytest.mark.parametrize("command", ["stats", "sum", "verify"])
@pytest.mark.parametrize("name", kinds_of_files.SINGLE)
def test_each_byte_is_asked_for_once(
    name: str, command: str, folder: Path, nginx: Nginx
) -> None:
    """`verify` opens a file twice, so it asks for its ends twice."""
    run(command, f"{nginx.url}/plain/{name}")
    path = folder / name
    paths = path.parent.glob("*") if path.name.endswith(".json") else [path]
    size = sum(each.stat().st_size for each in paths)
    sent = sum(row.sent for row in nginx.asked)
    if command == "verify":  # which has nothing to compare in safetensors
        assert sent <= 1.02 * size + (200 << 10)
    else:
        assert 0.98 * size < sent <= 1.02 * size


@pytest.mark.needs("folders")
def test_a_redirect_is_remembered(model: Hub) -> None:
    run("sum", url_of(ZIP), **model.variables())
    assert 1 <= len(model.asked) <= 2 < len(model.cdn)
    model.clear()
    run("inspect", f"hf://{MODEL}/many/", **model.variables())
    resolved = [row.path for row in model.asked if "/resolve/" in row.path]
    assert len(set(resolved)) == SHARDS + 1 >= len(resolved) - 1, (
        "the index is opened twice"
    )


def test_a_redirect_is_remembered_until_it_fails(model: Hub) -> None:
    whole = run("sum", url_of(ZIP), **model.variables())
    model.clear()
    model.lasts = 2
    assert run("sum", url_of(ZIP), **model.variables()).out == whole.out
    refused = [row for row in model.cdn if row.status == 403]
    assert refused and len(model.asked) <= len(refused) + 2


def test_a_listing_says_the_sizes(model: Hub) -> None:
    """The files of a distributed checkpoint are not asked for theirs."""
    run("inspect", f"hf://{MODEL}/run.dcp", **model.variables())
    assert [row.path for row in model.asked if row.path.endswith(".distcp")] == []


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_listing_that_is_refused_is_asked_for_once(token: str, model: Hub) -> None:
    model.token = "secret"
    done = ckpt(
        "inspect", f"hf://{MODEL}/sharded/", **model.variables(), HF_TOKEN=token
    )
    check_error(done, "the server answers 401")
    assert len(model.asked) == 1 and model.cdn == []


@pytest.mark.parametrize("place", ["forced", "packed", "coded"])
def test_who_compresses_is_said(place: str, nginx: Nginx) -> None:
    """It is the server that compresses, not the file: no command for it is printed."""
    line = check_error(
        ckpt("inspect", f"{nginx.url}/{place}/{ZIP}"), "the server sends"
    )
    assert "gunzip" not in line
    assert len(nginx.asked) <= 2, "gzip of another nginx is a second one"


def test_why_a_server_does_not_answer_is_said(nginx: Nginx) -> None:
    check_error(
        ckpt("inspect", f"http://127.0.0.1:1/{ZIP}"),
        "127.0.0.1:1 refuses the connection",
    )
    host = nginx.url.partition("//")[2]
    check_error(ckpt("inspect", f"https://{host}/plain/{ZIP}"), "tls")
    if nginx.secure:
        check_error(ckpt("inspect", f"{nginx.secure}/plain/{ZIP}"), "self-signed")

"""The servers of the benchmarks answer as real ones do, count what they are asked, and
their table says it.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from process import SAMPLES, ckpt

from benchmarks import far, terabyte
from benchmarks.distant import INDEX, Addresses, Counts, serving, taken, variables
from benchmarks.far import HEADINGS, FarRow, Kind, cells, jobs, row_of, table
from benchmarks.serving import Item, Service, files_of, made_model
from benchmarks.setting import QUICK, Setting
from benchmarks.timing import Job


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("root")
    for name, sample in (
        ("zip/model.pth", "llama_bf16.pth"),
        ("shards/model.safetensors", "weights.safetensors"),
    ):
        (made / name).parent.mkdir()
        (made / name).write_bytes((SAMPLES / sample).read_bytes())
    (made / "dcp").mkdir()
    for path in (SAMPLES / "dcp").iterdir():
        (made / "dcp" / path.name).write_bytes(path.read_bytes())
    return made


@pytest.fixture(scope="module")
def addresses(root: Path) -> Iterator[Addresses]:
    with serving(root, 0, 3) as found:
        yield found


def ask(url: str, **headers: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers)) as answer:
        return answer.status, answer.read()


def test_ranges_are_those_of_the_file(root: Path, addresses: Addresses) -> None:
    data = (root / "zip/model.pth").read_bytes()
    url = f"{addresses.http}/zip/model.pth"
    taken(addresses)
    assert ask(url) == (200, data)
    for asked, wanted in (
        ("5-9", data[5:10]),
        ("-7", data[-7:]),
        ("60000-", data[60000:]),
        ("5-999999", data[5:]),
    ):
        assert ask(url, Range=f"bytes={asked}") == (206, wanted)
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, **{"If-Match": '"another"'})
    caught.value.close()
    assert caught.value.code == 412
    counts = taken(addresses)
    assert counts == Counts(6, len(data) * 2 + 5 + 7 + len(data) - 60000 - 5, 1, 6)
    assert taken(addresses) == Counts(0, 0, 0, 0)


@pytest.mark.parametrize("scheme", ["s3", "az", "hf"])
@pytest.mark.parametrize("name", ["zip/model.pth", "dcp/"])
def test_each_service_gives_what_the_file_gives(
    scheme: str, name: str, root: Path, addresses: Addresses
) -> None:
    if scheme != "hf":
        pytest.importorskip(
            "obstore", reason="obstore, the extra [cloud], is not installed"
        )
    local = ckpt("stats", f"{root}/{name}", "--json")
    done = ckpt("stats", f"{scheme}://bench/{name}", "--json", **variables(addresses))
    assert done.code == 0, done.err
    assert json.loads(done.out)["tensors"] == json.loads(local.out)["tensors"]


@pytest.mark.parametrize(
    "url", ["s3://bench/made/", "hf://bench/made/", "{http}/made/" + INDEX]
)
def test_a_made_up_model_is_a_checkpoint(url: str, addresses: Addresses) -> None:
    if url.startswith("s3"):
        pytest.importorskip(
            "obstore", reason="obstore, the extra [cloud], is not installed"
        )
    words = ("--include", "model.layers.1.*", "--json")
    done = ckpt(
        "stats", url.format(http=addresses.http), *words, **variables(addresses)
    )
    assert done.code == 0, done.err
    rows = json.loads(done.out)["tensors"]
    assert [row["max"] for row in rows] == [0] * 7 and sum(
        row["numel"] for row in rows
    ) * 2 > 99_000_000


@pytest.mark.parametrize("flat", [True, False])
def test_pages_of_a_listing_are_whole(flat: bool) -> None:
    items = made_model(4)
    items |= {f"made/sub/{number}": items[f"made/{INDEX}"] for number in range(3)} | {
        "other": items[f"made/{INDEX}"]
    }
    service = Service(dict(sorted(items.items())))
    found: list[str] = []
    after, pages = "", 0
    while True:
        rows, after = service.listed("made/", flat, after, 2)
        found += [name for name, _ in rows]
        pages += 1
        if not after:
            break
    assert len(found) == len(set(found)) == (8 if flat else 6) and pages == (
        4 if flat else 3
    )
    assert ("made/sub/" in found) is not flat and "other" not in found


def test_other_files_are_another_revision() -> None:
    """huggingface_hub takes from its cache what it knows of a revision."""
    first, second = (Service({"a/b": Item(1, etag)}) for etag in ("1", "2"))
    assert len(first.commit) == 40 and first.commit != second.commit


def test_a_folder_is_served_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b/x", "a", "b-", "b/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert list(files_of(tmp_path)) == ["a", "b-", "b/a", "b/x"]


KIND = Kind("a kind", "zip", "model.pth", ("model.pth",), 64_949)


def test_a_job_is_counted(addresses: Addresses) -> None:
    code = (
        "import urllib.request as u; "
        f"u.build_opener(u.ProxyHandler({{}})).open({addresses.http + '/zip/model.pth'!r}).read()"
    )
    row = row_of(KIND, "a job", Job("", (sys.executable, "-c", code)), addresses, 2)
    assert (row.requests, row.ratio, row.most, row.connections, row.problem) == (
        1,
        1.0,
        1,
        1,
        "",
    )
    assert row.seconds > 0 and row.peak_mb > 5


def test_a_job_that_fails_is_a_row_that_says_so(addresses: Addresses) -> None:
    code = "import sys; sys.exit('no such thing')"
    row = row_of(KIND, "a job", Job("", (sys.executable, "-c", code)), addresses, 1)
    assert row.problem == "failed: no such thing"
    assert cells(row) == ["a kind", "a job: failed: no such thing", *["–"] * 6]
    assert (
        row_of(KIND, "a job", "not installed", addresses, 1).problem == "not installed"
    )


def test_a_row() -> None:
    row = FarRow("a kind", "a job", 1234, 0.0123, 3, 2, 1.5, 40.4)
    assert cells(row) == [
        "a kind",
        "a job",
        "1,234",
        "0.0123 ×",
        "3",
        "2",
        "1.50",
        "40",
    ]
    assert len(cells(row)) == len(HEADINGS)
    assert "| a kind " in table([row])


def test_every_scheme_and_every_peer_has_a_row(
    tmp_path: Path, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(QUICK, tmp_path, tmp_path)
    monkeypatch.setattr(far, "find_spec", lambda name: None)
    found = dict(jobs(setting, KIND, addresses))
    missing = {name for name, job in found.items() if isinstance(job, str)}
    assert {name for name in found if name.startswith("`ckpt")} == {
        f"`ckpt {command}`, {scheme}"
        for command in ("inspect", "stats")
        for scheme in ("http", "s3", "az", "hf")
    }
    assert {found[name] for name in missing} == {
        "not installed",
        "obstore is not installed",
    }
    assert (
        sum("s3fs" in name for name in missing)
        == sum("snapshot" in name for name in missing)
        == 2
    )
    folder = KIND._replace(file="")
    assert (
        dict(jobs(setting, folder, addresses))["`ckpt stats`, http"]
        == "a web server does not list a folder"
    )
    monkeypatch.setattr(far, "find_spec", lambda name: True)
    assert not any(isinstance(job, str) for _, job in jobs(setting, KIND, addresses))


def test_a_download_gives_the_files(
    root: Path, tmp_path: Path, addresses: Addresses
) -> None:
    names = tuple(path.name for path in (root / "dcp").iterdir())
    kind = Kind("a folder", "dcp", "", names, 1)
    job = dict(jobs(Setting(QUICK, tmp_path, tmp_path), kind, addresses))[
        "download, then `ckpt inspect`"
    ]
    assert isinstance(job, Job)
    row = row_of(kind, "a job", job, addresses, 1)
    assert (row.problem, row.requests, row.connections) == ("", len(names), 1)


def test_the_look_at_a_terabyte_says_what_works() -> None:
    pytest.importorskip(
        "obstore", reason="obstore, the extra [cloud], is not installed"
    )
    found = list(terabyte.looks(3, 0, 600, ["inspect, s3", "stats of a layer, http"]))
    assert [row.problem for row in found] == ["", ""]
    assert found[0].requests >= 4 and found[1].received > 99_000_000 > found[0].received
    assert "| inspect, s3 " in terabyte.table(found)
    with pytest.raises(SystemExit, match="unknown job 'x'"):
        list(terabyte.looks(3, 0, 600, ["x"]))


def test_what_takes_too_long_is_said(addresses: Addresses) -> None:
    row = terabyte.look(Job("a job", ("timeout", "0.1", "sleep", "60")), addresses)
    assert (
        row.problem == "not done in time"
        and "| not done in time " in terabyte.table([row])
    )

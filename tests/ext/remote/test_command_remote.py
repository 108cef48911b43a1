"""Every command that reads gives the same for a URL as for the file, with few requests;
the others refuse in one line.
"""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from process import SAMPLES, Done, ckpt, environment, python
from safetensors.torch import save_file
from webs import Web, served

NAMES = ("zip.pth", "few.pth", "legacy.pth", "a.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("local")
    many = {f"layers.{i}.weight": torch.full((100, 30), float(i)) for i in range(700)}
    torch.save({"model": many, "epoch": 3}, made / "zip.pth")
    torch.save(
        {"a": torch.arange(300_000.0), "b": torch.zeros(200_000)}, made / "few.pth"
    )
    torch.save(
        {"a": torch.arange(300_000.0)},
        made / "legacy.pth",
        _use_new_zipfile_serialization=False,
    )
    save_file(many, made / "a.safetensors")
    return made


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[Web]:
    with served() as web, pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        patch.setenv("no_proxy", "127.0.0.1")
        for path in folder.iterdir():
            web.put(f"/{path.name}", path.read_bytes())
        yield web


@pytest.fixture(autouse=True)
def forget(web: Web) -> None:
    web.asked.clear()


def same(local: Done, far: Done, path: Path, url: str) -> bool:
    """Whether two runs say the same, but for the name of the file."""
    ours = local.out.replace(str(path).encode(), b"FILE")
    theirs = far.out.replace(url.encode(), b"FILE").replace(
        b'"' + path.name.encode(), b'"FILE'
    )
    return (local.code, ours) == (far.code, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--json"),
        ("inspect", "--storages", "--tsv"),
        ("stats", "--json"),
        ("verify", "--json"),
        ("sum",),
        ("lint", "--json"),
        ("ls", "--tsv"),
    ],
    ids=" ".join,
)
def test_reads_the_same(
    words: tuple[str, ...], name: str, folder: Path, web: Web
) -> None:
    path, url = folder / name, f"{web.url}/{name}"
    local, far = ckpt(*words, str(path)), ckpt(*words, url)
    assert far.err.replace(url.encode(), b"") == local.err.replace(
        str(path).encode(), b""
    )
    assert same(local, far, path, url), far.out.decode()[:500]
    assert web.asked


@pytest.mark.parametrize("name", NAMES)
def test_diff_of_a_url_and_a_file(name: str, folder: Path, web: Web) -> None:
    url = f"{web.url}/{name}"
    done = ckpt("diff", url, str(folder / name))
    assert (done.code, done.err) == (0, b"")
    other = ckpt("diff", url, f"{web.url}/{NAMES[0]}", "--json")
    assert other.out.replace(url.encode(), b"") and other.code == (
        0 if name in ("zip.pth",) else other.code
    )


def test_get(folder: Path, web: Web) -> None:
    assert ckpt("get", f"{web.url}/zip.pth", "epoch").out == b"3\n"
    found = [
        ckpt("get", f"{at}/zip.pth", "model.layers.9.weight", "--json")
        for at in (web.url, folder)
    ]
    assert found[0].out == found[1].out and found[0].code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["convert", "slim", "rehome"])
def test_writes_the_same_bytes(
    command: str, name: str, folder: Path, web: Web, tmp_path: Path
) -> None:
    ending = ".safetensors" if command == "convert" else Path(name).suffix
    outs = [tmp_path / f"{place}{ending}" for place in ("far", "local")]
    for source, out in zip(
        (f"{web.url}/{name}", str(folder / name)), outs, strict=True
    ):
        done = ckpt(command, source, "-o", str(out))
        assert done.code == 0, done.err.decode()
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_zip_is_opened_with_three_requests(
    folder: Path, web: Web, tmp_path: Path
) -> None:
    """9,000 records, whose local headers lie far apart: their directory and the pickle
    are larger than what is guessed.
    """
    state = {f"layers.{i}.weight": torch.full((2000,), float(i)) for i in range(9000)}
    torch.save(state, tmp_path / "a.pth")
    data = (tmp_path / "a.pth").read_bytes()
    end = len(data)
    with torch.serialization._open_zipfile_reader(str(tmp_path / "a.pth")) as archive:
        needed = len(archive.get_record("data.pkl"))
    directory = int.from_bytes(data[end - 22 + 12 : end - 22 + 16], "little")
    assert directory > 400_000 and needed > 400_000
    done = ckpt("inspect", web.put("/a.pth", data))
    assert done.code == 0, done.err.decode()
    assert len(web.asked) == 3
    assert web.sent <= directory + needed + (256 << 10)


def test_others_are_opened_with_few_requests(web: Web) -> None:
    for name, most in (("a.safetensors", 2), ("few.pth", 2), ("legacy.pth", 3)):
        web.asked.clear()
        assert ckpt("inspect", f"{web.url}/{name}").code == 0
        assert len(web.asked) <= most, name


def test_a_file_that_is_written_is_opened_once(web: Web, tmp_path: Path) -> None:
    assert ckpt("rehome", f"{web.url}/few.pth", "-o", str(tmp_path / "a.pth")).code == 0
    assert len(web.asked) <= 3, [row.range for row in web.asked]


def test_the_storages_of_a_legacy_file_are_found_together(
    web: Web, tmp_path: Path
) -> None:
    """Each begins with its count, and where it ends is known before: counts that lie
    close are one request.
    """
    state = {f"{i}": torch.full((10_000,), float(i)) for i in range(200)}
    torch.save(state, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    url = web.put("/a.pth", (tmp_path / "a.pth").read_bytes())
    far, local = (
        ckpt("inspect", "--json", url),
        ckpt("inspect", "--json", str(tmp_path / "a.pth")),
    )
    assert same(local, far, tmp_path / "a.pth", url) and far.code == 0
    assert len(web.asked) <= 5, [row.range for row in web.asked]


def test_a_legacy_file_with_a_wrong_count(web: Web, tmp_path: Path) -> None:
    torch.save(
        [torch.zeros(300_000), torch.ones(9)],
        tmp_path / "a.pth",
        _use_new_zipfile_serialization=False,
    )
    data = bytearray((tmp_path / "a.pth").read_bytes())
    at = data.rindex((9).to_bytes(8, "little"))
    for wrong in (
        data[:at] + b"\x08" + data[at + 1 :],
        data[: at + 4],
        data[: at + 20],
    ):
        (tmp_path / "b.pth").write_bytes(wrong)
        far, local = (
            ckpt("inspect", web.put("/b.pth", bytes(wrong))),
            ckpt("inspect", str(tmp_path / "b.pth")),
        )
        path = str(tmp_path / "b.pth").encode()
        # A URL may hold a password, so no command with it is printed.
        said = local.err.replace(b"ckpt verify %s names what is lost" % path, b"")
        said = said.replace(b" ()\n", b"\n").replace(path, b"")
        assert far.err.replace(f"{web.url}/b.pth".encode(), b"") == said
        assert far.code == local.code != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "line",
    [
        "stats",
        "verify",
        "sum",
        "diff OTHER",
        "diff --structure OTHER",
        "convert -o OUT",
        "rehome -o OUT.pth",
    ],
)
def test_each_byte_is_asked_for_once(
    line: str, name: str, folder: Path, web: Web, tmp_path: Path
) -> None:
    """At most 2 % more than the file, and what finds out how it is opened."""
    words = (
        line.replace("OTHER", str(folder / name))
        .replace("OUT", str(tmp_path / "o.safetensors"))
        .split()
    )
    if name.endswith(".safetensors") and "rehome" in words:
        words[-1] = words[-1].removesuffix(".pth")
    done = ckpt(words[0], f"{web.url}/{name}", *words[1:])
    assert done.code == 0, done
    size = (folder / name).stat().st_size
    assert web.sent <= 1.02 * size + (128 << 10 if name == "legacy.pth" else 2 << 10), [
        row.range for row in web.asked
    ]
    assert len(web.asked) <= 8, [row.range for row in web.asked]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("inspect", "--tsv"), ("stats",), ("sum",)], ids=" ".join
)
def test_a_set_of_shards_is_opened_many_at_once(
    words: tuple[str, ...], web: Web, tmp_path: Path
) -> None:
    """Sixteen are under way at the same time, whatever the number of cores, and none is
    asked for twice.
    """
    weights: dict[str, str] = {}
    for number in range(1, 34):
        name = f"model-{number:05}-of-00033.safetensors"
        tensors = {
            f"layers.{number}.{key}.weight": torch.full((200, 100), float(number))
            for key in "abc"
        }
        save_file(tensors, tmp_path / name)
        web.put(f"/set/{name}", (tmp_path / name).read_bytes())
        weights |= dict.fromkeys(tensors, name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    url = web.put(f"/set/{index.name}", index.read_bytes())
    local = ckpt(*words, str(index))
    web.gather, web.most = 16, 0
    far = ckpt(*words, url)
    assert same(local, far, index, url) and local.code == 0
    assert web.most == 16
    assert web.sent <= 1.02 * sum(path.stat().st_size for path in tmp_path.iterdir())
    assert len(web.asked) <= 2 + 2 * 33


def test_a_shard_that_is_missing_far_away(web: Web, tmp_path: Path) -> None:
    weights = {}
    for number in (1, 2, 3):
        name = f"model-{number:05}-of-00003.safetensors"
        save_file({f"w{number}": torch.ones(3)}, tmp_path / name)
        weights[f"w{number}"] = name
        if number != 2:
            web.put(f"/gap/{name}", (tmp_path / name).read_bytes())
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    url = web.put(f"/gap/{index.name}", index.read_bytes())
    far, local = ckpt("inspect", url), ckpt("inspect", str(index))
    far_text = far.err.replace(url.encode(), b"").partition(b" (")[0]
    local_text, _, way = local.err.replace(str(index).encode(), b"").partition(b" (")
    assert (far.code, far_text) == (2, local_text)
    assert b"1 of 3 shards missing" in far.err
    # Only the set of this machine has a command that goes on.
    assert b"ckpt verify" in way and b"ckpt verify" not in far.err


@pytest.mark.slow
def test_many_tensors_are_opened_with_five_requests(web: Web, tmp_path: Path) -> None:
    """100,000 names: the directory and the pickle are large, and each is read once;
    small records are judged.
    """
    state = {
        f"model.layers.{i}.some.module.weight": torch.zeros(4) for i in range(100_000)
    }
    torch.save(state, tmp_path / "many.pth")
    url = web.put("/many.pth", (tmp_path / "many.pth").read_bytes())
    assert ckpt("inspect", "--quiet", url).code == 0
    assert len(web.asked) <= 5 and web.sent < 1.02 * len(web.files["/many.pth"])
    web.asked.clear()
    assert ckpt("sum", url).out == ckpt("sum", str(tmp_path / "many.pth")).out
    assert len(web.asked) <= 12 and web.sent <= 1.02 * len(web.files["/many.pth"]), [
        row.range for row in web.asked
    ]


def test_a_record_that_does_not_begin_where_it_should(folder: Path, web: Web) -> None:
    """The directory is right and the local header of one record is not: inspect reads
    neither, what reads it refuses.
    """
    data = bytearray((folder / "zip.pth").read_bytes())
    at = data.index(b"PK\3\4", data.index(b"zip/data/300") - 31)
    data[at + 28] ^= 4  # the length of the padding
    url = web.put("/moved.pth", bytes(data))
    assert ckpt("inspect", url).code == 0
    done = ckpt("sum", url)
    assert (
        done.code == 2
        and b"does not begin where the directory of the archive foretells" in done.err
    )
    assert done.err.count(b"\n") == 1


def test_an_archive_that_torch_did_not_write(
    folder: Path, web: Web, tmp_path: Path
) -> None:
    """Data lies right behind its header: nothing is foreseen, and neighbours are read
    together.
    """
    with (
        zipfile.ZipFile(folder / "zip.pth") as source,
        zipfile.ZipFile(tmp_path / "z.pth", "w") as made,
    ):
        for row in source.infolist():
            made.writestr(row.filename, source.read(row))
    url = web.put("/z.pth", (tmp_path / "z.pth").read_bytes())
    far, local = (
        ckpt("inspect", "--json", url),
        ckpt("inspect", "--json", str(tmp_path / "z.pth")),
    )
    assert same(local, far, tmp_path / "z.pth", url) and far.code == 0
    assert len(web.asked) <= 10
    assert ckpt("sum", url).out == ckpt("sum", str(tmp_path / "z.pth")).out


def test_a_wrong_checksum_is_found(folder: Path, web: Web) -> None:
    data = bytearray((folder / "zip.pth").read_bytes())
    data[len(data) // 2] ^= 1
    (folder.parent / "bad.pth").write_bytes(data)
    far, local = (
        ckpt("verify", web.put("/bad.pth", bytes(data))),
        ckpt("verify", str(folder.parent / "bad.pth")),
    )
    assert far.code == local.code == 1
    # A way out is printed for a file of this machine alone.
    assert far.lines[0][-60:] == local.lines[0][-60:]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("strip URL -o x.pth", "ckpt strip takes local files only (download it first)"),
        (
            "rename --sub s/a/b/ URL -o x.pth",
            "ckpt rename takes local files only (download it first)",
        ),
        (
            "warmstart URL --into x.pth -o y.pth",
            "ckpt warmstart takes local files only (download it first)",
        ),
        (
            "rehome URL --in-place",
            "--in-place takes local files only (download it first)",
        ),
        ("rehome --undo URL", "--undo takes local files only (download it first)"),
    ],
)
def test_other_writers_refuse_a_url(line: str, problem: str, web: Web) -> None:
    url = f"{web.url}/few.pth"
    done = ckpt(*line.replace("URL", url).split())
    assert (done.code, done.out, done.err) == (
        2,
        b"",
        f"ckpt: {url}: {problem}\n".encode(),
    )
    assert not web.asked


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "strip FILE -o s3://bucket/a.pth",
            "s3://bucket/a.pth: ckpt strip writes local files only",
        ),
        (
            "rename --sub s/a/b/ FILE -o s3://bucket/a.pth",
            "s3://bucket/a.pth: ckpt rename writes local files only",
        ),
        (
            "warmstart FILE --into FILE -o s3://bucket/a.pth",
            "s3://bucket/a.pth: ckpt warmstart writes local files only",
        ),
        (
            "rehome FILE -o https://me:p4ss@host/a.pth",
            "https://host/a.pth: ckpt writes to s3://, gs:// and az:// only",
        ),
        (
            "slim FILE -o hf://org/model/a.pth",
            "hf://org/model/a.pth: ckpt writes to s3://, gs:// and az:// only",
        ),
        (
            "convert FILE --format dcp -o https://host/run",
            "https://host/run: ckpt writes to s3://, gs:// and az:// only",
        ),
        (
            "convert FILE --shard-size 1MB -o https://host/run/",
            (
                "https://host/run/model.safetensors.index.json: ckpt writes to s3://, "
                "gs:// and az:// only"
            ),
        ),
        (
            "convert FILE -o s3://me:p4ss@bucket/a.pth",
            (
                "s3://bucket/a.pth: a user or a query in the URL: credentials come "
                "from the environment"
            ),
        ),
        (
            "convert FILE -o s3://a.pth",
            "s3://a.pth: a folder, not an object to write to",
        ),
        (
            "rehome FILE -o s3://bucket/a.pth --verify torch",
            "s3://bucket/a.pth: --verify torch opens local files only (--verify crc)",
        ),
    ],
)
def test_what_is_not_written_to_a_url(line: str, problem: str, folder: Path) -> None:
    done = ckpt(*line.replace("FILE", str(folder / "few.pth")).split())
    assert (done.code, done.out, done.err) == (2, b"", f"ckpt: {problem}\n".encode())


def test_secrets_are_never_shown(web: Web) -> None:
    host = web.url.partition("//")[2]
    secret = f"http://me:p4ss@{host}/few.pth?signature=s1gned"
    for words in (
        ("inspect", secret),
        ("inspect", "--json", secret),
        ("ls", secret),
        ("lint", "--json", secret),
    ):
        done = ckpt(*words)
        assert done.code == 0 and f"{web.url}/few.pth".encode() in done.out
        assert not any(
            word in done.out + done.err for word in (b"p4ss", b"s1gned", b"me:")
        )
    assert all(row.path.endswith("?signature=s1gned") for row in web.asked)
    for line in (
        f"inspect {secret.replace('few', 'none')}",
        f"strip {secret} -o x.pth",
        f"slim {secret} -o s3://b/c",
        "inspect s3://u:p4ss@b/x",
    ):
        done = ckpt(*line.split())
        assert (done.code, done.err.count(b"\n")) == (2, 1)
        assert not any(
            word in done.out + done.err for word in (b"p4ss", b"s1gned", b"me:")
        )


def test_a_file_that_is_not_there(web: Web) -> None:
    done = ckpt("inspect", f"{web.url}/none.pth")
    assert (done.code, done.err) == (
        2,
        f"ckpt: {web.url}/none.pth: no such file\n".encode(),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "s3://bucket/a.pth"),
        ("rehome", "train_cuda.pth", "-o", "s3://bucket/a.pth"),
    ],
)
def test_the_missing_extra_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "obstore").mkdir()
    (tmp_path / "obstore" / "__init__.py").write_text("raise ImportError")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from ckpt.__main__ import "
        "main; main()"
    )
    done = python("-c", code, str(tmp_path), *words, cwd=SAMPLES)
    line = (
        b"ckpt: s3://bucket/a.pth: s3:// needs obstore (pip install "
        b"'torch-ckpt[cloud]')\n"
    )
    assert (done.code, done.out, done.err) == (2, b"", line)


LISTENING = """
import sys
def hook(event, arguments):
    if event.startswith(("socket.", "urllib.", "http.")):
        print("EVENT", event, file=sys.stderr, flush=True)
sys.addaudithook(hook)
from ckpt.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("stats",),
        ("verify",),
        ("sum",),
        ("lint",),
        ("diff", "llama_bf16.pth"),
        ("ls",),
    ],
)
def test_no_network_unless_a_path_is_a_url(words: tuple[str, ...]) -> None:
    done = python("-c", LISTENING, *words, "llama_bf16.pth", cwd=SAMPLES)
    assert done.code in (0, 1) and b"EVENT" not in done.err


def test_a_cluster_is_heard_and_nothing_else() -> None:
    done = python(
        "-c",
        LISTENING,
        "stats",
        "llama_bf16.pth",
        "--cluster",
        "tcp://127.0.0.1:1",
        cwd=SAMPLES,
    )
    connects = [
        line for line in done.complaints if line.startswith("EVENT socket.connect")
    ]
    assert done.code == 2 and connects == ["EVENT socket.connect"]


def test_the_network_is_heard(web: Web) -> None:
    done = python(
        "-c",
        LISTENING,
        "inspect",
        f"{web.url}/few.pth",
        env=environment(no_proxy="127.0.0.1"),
    )
    assert done.code == 0 and b"EVENT socket.connect" in done.err


def test_local_files_import_nothing_of_it() -> None:
    code = (
        "import json, os, sys; leave = os._exit\n"
        "def left(code):\n"
        "    print(json.dumps(sorted(sys.modules)), flush=True); leave(code)\n"
        "os._exit = left\nfrom ckpt.__main__ import main\nmain()\n"
    )
    done = python("-c", code, "inspect", "--quiet", "llama_bf16.pth", cwd=SAMPLES)
    names = json.loads(done.lines[-1])
    assert "ckpt.formats.common.archive" in names
    ours = (
        "ckpt.ext.remote",
        "ckpt.ext.cluster",
        "distributed",
        "pickle",
        "ckpt.formats.common.columns",
        "urllib.request",
        "http.",
        "obstore",
        "socket",
    )
    assert [name for name in names if name.startswith(ours)] == []


def test_hostile_archives_cost_few_requests(web: Web) -> None:
    data = random.Random(3).randbytes(400_000)
    for name, tail in (("x", b"PK\5\6" + bytes(18)), ("y", b"PK\5\6" + b"\xff" * 18)):
        web.asked.clear()
        done = ckpt("inspect", web.put(f"/{name}.pth", b"PK\3\4" + data + tail))
        assert (done.code, done.err.count(b"\n")) == (2, 1)
        assert len(web.asked) <= 4


@pytest.mark.parametrize("url", ["s3://", "gs:///", "http://", "hf://org"])
@pytest.mark.parametrize("command", ["ls", "lint", "stats", "verify", "inspect"])
def test_half_a_url_gives_the_document_of_an_error(
    command: str, url: str, tmp_path: Path
) -> None:
    done = ckpt(command, url, "--json", cwd=tmp_path)
    document = json.loads(done.out)
    found = document["files"][0] if command == "lint" else document
    assert done.code == 2 and found["error"]["code"] == "usage", done


def test_what_is_damaged_behind_a_url_gets_no_figures(folder: Path, web: Web) -> None:
    data = bytearray((folder / "few.pth").read_bytes())
    data[data.index(torch.arange(1000.0).numpy().tobytes()) + 1_000_001] ^= 1
    web.put("/damaged.pth", bytes(data))

    done = ckpt("stats", f"{web.url}/damaged.pth", "--json")

    assert done.code == 2 and json.loads(done.out)["unread"] == ["a"]
    assert sum(asked.sent for asked in web.asked) < 1.1 * len(data)

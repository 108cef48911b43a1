"""JSON and small texts beside weights: read as plain values, bounded, and hostile ones
refused in one line.
"""

from __future__ import annotations

from pathlib import Path

import folders
import oracle
import pytest
from inside import inside

from ckpt import formats
from ckpt.bytes.location import locate
from ckpt.ext.folders.reader import TEXT_BYTES, read_text
from ckpt.model.errors import LimitError
from ckpt.model.limits import Budget, Limits
from ckpt.model.text import Json
from ckpt.tree.json import plain

pytestmark = oracle.QUIET


def text(path: Path, content: str | bytes) -> Json:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = read_text(locate(str(path)), path.name, Limits(), Budget(Limits()))
    assert found is not None
    return plain(found.root)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("7", 7),
        ("7\n", 7),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e5", "1e5"),  # as YAML 1.1 reads it
        ("007", "007"),
        ("9" * 40, "9" * 40),
        ("true", True),
        ("null", None),
        ("a: 1\nb: -2.5\nc: two words\n", {"a": 1, "b": -2.5, "c": "two words"}),
        ("# comment\na: 1\n", {"a": 1}),
        ("a: 1\na: 2\n", "a: 1\na: 2\n"),
        ("a:\n  b: 1\n", "a:\n  b: 1\n"),
        ("a: [1, 2]\n", "a: [1, 2]"),
        ("a: 'quoted'\nb: 1", "a: 'quoted'\nb: 1"),
        (
            "a: !!python/object/apply:os.system ['x']\n",
            "a: !!python/object/apply:os.system ['x']",
        ),
        ("a: 1 # one\nb: 2", "a: 1 # one\nb: 2"),
        ("any text\nof lines", "any text\nof lines"),
    ],
)
def test_what_a_text_is(content: str, expected: Json, tmp_path: Path) -> None:
    """Nothing is interpreted that could mean something else in YAML: the text stays a
    text.
    """
    assert text(tmp_path / "x.ckpt", content) == expected


@pytest.mark.parametrize(
    "content",
    [b"", b"  \n", b"\x80\x02K\x01.", b"a\x00b", b"\xff\xfe", b"1" * (TEXT_BYTES + 1)],
)
def test_what_is_no_small_text(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").write_bytes(content)
    assert (
        read_text(locate(str(tmp_path / "x.ckpt")), "x", Limits(), Budget(Limits()))
        is None
    )


HOSTILE = {
    "deep": b"[" * 100_000,
    "nested": b'{"a":' * 300 + b"1" + b"}" * 300,
    "twice": b'{"a": 1, "a": 2}',
    "digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "surrogate": b'{"\\ud800": 1}',
    "bytes": b"\xff\xfe{}",
    "cut": b'{"global_step": [',
    "nothing": b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", ["trainer_state.json", "config.json"])
def test_a_hostile_document_is_refused_in_one_line(
    kind: str, name: str, tmp_path: Path
) -> None:
    folder = folders.trainer(tmp_path / "c")
    (folder / name).write_bytes(HOSTILE[kind])
    done = inside("verify", "c", cwd=tmp_path)
    assert done.code in (1, 2) and len(done.lines) == 1 and not done.complaints, done
    assert (
        done.lines[0].startswith(f"c: damaged: {name} was not read: ")
        or "--limit depth" in done.lines[0]
    )


@pytest.mark.parametrize("name", ["modules.json", "model_index.json"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_list_of_parts_is_refused_in_one_line(
    name: str, kind: str, tmp_path: Path
) -> None:
    folder = folders.adapter(tmp_path / "c")
    (folder / name).write_bytes(HOSTILE[kind])
    done = inside("inspect", "c", cwd=tmp_path)
    assert done.code in (0, 2) and len(done.complaints) <= 1, done
    assert all("Traceback" not in line for line in done.complaints)


def test_a_large_document_is_within_the_limits(tmp_path: Path) -> None:
    """A log of a long run: it is in the tree, and its rows are not values."""
    folder = folders.trainer(tmp_path / "c")
    rows = [
        {"epoch": number / 7, "loss": 1.0, "step": number} for number in range(30_000)
    ]
    folders.save(folder / "trainer_state.json", {"global_step": 5, "log_history": rows})
    with formats.open(str(folder)) as checkpoint:
        assert not checkpoint.account.notices
    with pytest.raises(LimitError):
        formats.open(str(folder), Limits(memory=1_000_000))


def test_what_looks_like_an_optimizer_in_a_document_is_none(tmp_path: Path) -> None:
    folder = folders.adapter(tmp_path / "c")
    folders.save(
        folder / "config.json", {"state": {}, "param_groups": [], "scheduler": {"a": 1}}
    )
    done = inside("inspect", "c", cwd=tmp_path)
    assert done.code == 0 and not any(
        line.startswith("  config ") and "optimizer" in line for line in done.lines
    )

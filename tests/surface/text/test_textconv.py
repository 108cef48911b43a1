"""A checkpoint as text for git: what stands there is of the file alone, and escaped."""

from __future__ import annotations

from pathlib import Path

import pytest
from process import SAMPLES, ckpt

from ckpt.commands.inspect.text import unread_line

OID = b"5f" * 32


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:"
            + OID
            + b"\nsize 1234\n",
            f"Git LFS pointer to 1,234 bytes, sha256 {OID.decode()}",
        ),
        (
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:\x1b[2J\nsize "
                b"1234\n"
            ),
            "not read: why \\x1b",
        ),
        (b"", "not read: why \\x1b"),
    ],
)
def test_what_cannot_be_read_is_one_line(head: bytes, expected: str) -> None:
    assert unread_line(head, "why \x1b") == expected


def test_a_file_is_text_whatever_its_path_is(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes((SAMPLES / "train_cuda.pth").read_bytes())
    here = ckpt("inspect", "--textconv", "train_cuda.pth", cwd=SAMPLES)
    done = ckpt("inspect", "--textconv", "blob", cwd=tmp_path)

    assert (done.code, done.err, done.out) == (0, b"", here.out)
    assert done.lines[0] == "format torch-zip"
    assert [
        line.split(":")[0] for line in done.lines if line.startswith("finding ")
    ] == [
        f"finding {code}"
        for code in ("weights-only", "prefix", "unused", "cuda", "optimizer-heavy")
    ]
    assert (
        "value epoch = 12" in done.lines
        and "import known argparse.Namespace" in done.lines
    )
    assert (
        "tensor optimizer.state.0.step float32 [] cuda:1 6ce1f51ef5a9afdd" in done.lines
    )
    assert sum(line.startswith("tensor ") for line in done.lines) == 115
    assert "blob" not in done.out.decode()


def test_a_tensor_without_data_stands_in_its_place() -> None:
    done = ckpt("inspect", "--textconv", "dtypes.pth", cwd=SAMPLES)

    assert done.code == 0 and "tensor meta float32 [2, 3] meta no data" in done.lines


@pytest.mark.parametrize(
    "name", ["lfs_pointer.pth", "truncated.pth", "html_page.pth", "nope.pth", "."]
)
def test_git_goes_on_after_what_cannot_be_read(name: str) -> None:
    done = ckpt("inspect", "--textconv", name, cwd=SAMPLES)

    assert (done.code, len(done.lines), done.err) == (0, 1, b"")


def test_it_excludes_other_forms() -> None:
    done = ckpt("inspect", "--textconv", "--json", "zoo.pkl", cwd=SAMPLES)

    assert done.code == 2 and "exclude each other" in done.complaints[0]

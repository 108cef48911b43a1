"""Torn rewrites in place: whatever a power loss leaves behind the old end, --undo finds
the archive before it.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from struct import pack
from unittest import mock

import pytest
import rewriting
import torch
from process import SAMPLES, check_error, ckpt

from ckpt import formats
from ckpt.bytes.source import Memory
from ckpt.commands.rehome.rehome import moves, rehome
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.formats.common import appended
from ckpt.formats.common.appended import end_before
from ckpt.formats.common.zip_layout import LOCAL_MAGIC, LocalHeader
from ckpt.model.errors import CkptError, LimitError, UnreadableError, UsageError
from ckpt.model.limits import Limits

LIMITS = Limits()
HINT = "ckpt rehome --undo --dry-run"


def rewritten(path: Path, tag: str) -> bytes:
    """A file after its tensors were moved in place."""
    with formats.open(str(path)) as checkpoint:
        save.append(rehome(Survey(checkpoint), moves(tag, []), LIMITS).result, LIMITS)
    return path.read_bytes()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, bytes]:
    """A small file, with one rewrite, with two."""
    path = rewriting.saved(
        {"a": torch.ones(3), "n": 1}, tmp_path_factory.mktemp("torn") / "a.pth"
    )
    return path.read_bytes(), rewritten(path, "cuda:0"), rewritten(path, "cuda:1")


def garbage(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


@pytest.mark.slow
def test_every_prefix_of_what_is_appended(states: tuple[bytes, bytes, bytes]) -> None:
    """Alone, with zeros behind it, with stale bytes behind it."""
    for old, new in pairwise(states):
        for cut in range(len(old), len(new) + 1):
            for rest in (
                b"",
                bytes(len(new) - cut),
                bytes(9000),
                garbage(len(new) - cut),
                garbage(9000),
            ):
                torn = new[:cut] + rest
                if torn == old or len(new) - 2 <= cut < len(new):
                    # nothing was appended; stale bytes are the length of a comment
                    continue
                end = end_before(Memory(torn), LIMITS)
                assert end == (
                    len(new) if torn.startswith(new) and torn != new else len(old)
                ), (
                    cut,
                    rest[:9],
                )


def test_a_few_zeros_and_any_number_of_other_bytes(
    states: tuple[bytes, bytes, bytes],
) -> None:
    for whole in states:
        for count in (1, 2, 3, 4, 5, 21, 22, 23, 29, 30, 31, 100, 4096, 70_000):
            for rest in (bytes(count), garbage(count), b"\xff" * count, b"P" * count):
                assert end_before(Memory(whole + rest), LIMITS) == len(whole), (
                    count,
                    rest[:9],
                )


def test_an_end_that_lies_across_two_blocks(states: tuple[bytes, bytes, bytes]) -> None:
    old, new, _ = states
    for step in (23, 64, 100):
        with mock.patch.object(appended, "_STEP", step):
            for cut in range(len(old) + 1, len(new), 7):
                assert end_before(Memory(new[:cut]), LIMITS) == len(old), (step, cut)
            assert end_before(Memory(old), LIMITS) is None


def test_the_end_of_an_older_rewrite_on_the_same_blocks(
    states: tuple[bytes, bytes, bytes],
) -> None:
    """Taken back and done again: behind the torn bytes lie those of the rewrite before,
    with a directory of their own.
    """
    old, new, _ = states
    begin = new.index(b"\x80\x02", len(old))  # of the pickle
    for cut in range(len(old) + 4, begin + 200):
        for lost in (40, 400):
            if cut + lost > begin:
                stale = new[:cut] + garbage(lost) + new[cut + lost :]
                assert end_before(Memory(stale), LIMITS) == len(old), cut


@pytest.mark.parametrize("count", [31, 64, 200, None])
def test_another_archive_behind_the_first_is_not_ours(
    count: int | None, states: tuple[bytes, bytes, bytes]
) -> None:
    old = states[0]
    other = (SAMPLES / "train_cuda.pth").read_bytes()
    names = int.from_bytes(other[26:28], "little")
    for begin in (old, other):
        whole = begin[: None if count is None else max(count, 30 + names + 2)]
        assert end_before(Memory(old + whole), LIMITS) is None


def test_an_end_is_believed_only_with_an_archive_that_is_read(
    states: tuple[bytes, bytes, bytes],
) -> None:
    """A directory that fits its place is not enough: the pickle and every record are
    read as ever.
    """
    old, new, _ = states
    broken = bytearray(new)
    broken[old.index(b"_rebuild_tensor")] ^= (
        0xFF  # in the pickle, whose checksum is in the directory
    )
    assert end_before(Memory(bytes(broken)), LIMITS) is None
    assert end_before(Memory(bytes(broken[:-5])), LIMITS) is None
    for size in range(0, len(old), 11):
        assert end_before(Memory(old[:size] + bytes(50)), LIMITS) is None


def test_a_mark_that_lies_about_the_end(states: tuple[bytes, bytes, bytes]) -> None:
    """The record claims that an archive ends where none does."""
    forged = b"\0" + states[1]  # everything is one byte later than it says
    assert end_before(Memory(forged), LIMITS) is None


def test_ends_made_on_purpose_cost_little(states: tuple[bytes, bytes, bytes]) -> None:
    old = states[0]
    with mock.patch.object(appended, "end_at", side_effect=appended.end_at) as looked:
        assert end_before(Memory(old + b"PK\5\6" * 200_000 + b"x"), LIMITS) is None
    assert looked.call_count == appended._LOOKED_AT
    many, directory = old, old.index(b"PK\1\2")
    for _ in range(50):  # each fits the bytes before it
        many += pack(
            "<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(many) - directory, directory, 0
        )
    with mock.patch.object(appended, "_is_whole", return_value=False) as tried:
        assert end_before(Memory(many + b"x"), LIMITS) is None
    assert tried.call_count == appended._TRIED


def test_a_limit_is_named(states: tuple[bytes, bytes, bytes]) -> None:
    old, new, _ = states
    for torn in (new, new[:-5], old + b"x"):
        with pytest.raises(LimitError):
            end_before(Memory(torn), Limits(pickle_bytes=3))


# --- what is said, and what --undo does -----------------------------------------------


def torn_files(states: tuple[bytes, bytes, bytes]) -> dict[str, bytes]:
    old, new, _ = states
    half = (len(old) + len(new)) // 2
    return {
        "cut": new[:half],
        "zeros": new[:half] + bytes(len(new) - half),
        "stale": new[:half] + garbage(len(new) - half),
        "zeros before": new[: len(old)] + bytes(100) + new[len(old) + 100 : half],
        "many zeros": old + bytes(70_000),
        "long stale": old + garbage(70_000),
    }


@pytest.mark.parametrize(
    "kind", ["cut", "zeros", "stale", "zeros before", "many zeros", "long stale"]
)
def test_the_error_names_undo_and_undo_brings_the_file_back(
    kind: str, states: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    path, torn = tmp_path / "a b.pth", torn_files(states)[kind]
    path.write_bytes(torn)

    with pytest.raises(UnreadableError) as caught:
        formats.open(str(path))
    ours = "an in-place rewrite was interrupted, the first"
    other = "follow the zip archive, which ends at byte"
    assert (other if kind == "long stale" else ours) in caught.value.problem
    assert f"{len(states[0]):,}" in caught.value.problem and str(caught.value).endswith(
        f"({HINT} '{path}')"
    )

    assert save.undo_rewrite(str(path), LIMITS, dry_run=True) == (
        len(torn),
        len(states[0]),
        (),
    )
    assert path.read_bytes() == torn
    assert save.undo_rewrite(str(path), LIMITS) == (len(torn), len(states[0]), ())
    assert path.read_bytes() == states[0]
    with pytest.raises(UsageError, match="no in-place rewrite to undo"):
        save.undo_rewrite(str(path), LIMITS)


def opened_by_torch(path: Path) -> bool:
    try:
        torch.load(path, map_location="cpu")
    except (OSError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("elements", [3, 400, 20_000])
@pytest.mark.parametrize(
    "count", [1, 21, 22, 3_000, 4_074, 4_075, 5_000, 9_000, 65_535]
)
def test_bytes_behind_an_archive_that_torch_opens(
    elements: int, count: int, tmp_path: Path
) -> None:
    path = rewriting.saved({"a": torch.ones(elements)}, tmp_path / "a.pth")
    old = path.read_bytes()
    opened = 0
    for whole in (old, rewritten(path, "cuda:0")):
        for rest in (bytes(count), b"x" * count, garbage(count)):
            path.write_bytes(whole + rest)
            kind = (
                f" (text: '{'x' * min(count, 40)}')"
                if rest[:1] == b"x"
                else ""
                if any(rest)
                else " (zeros)"
            )
            count_text = f"{count:,} byte{'' if count == 1 else 's'}{kind}"
            verb = "follows" if count == 1 else "follow"
            text = (
                f"{count_text} {verb} the zip archive, which ends at byte "
                f"{len(whole):,}"
            )
            if opened_by_torch(path) and (
                any(rest) or count < 30
            ):  # more zeros are those of a rewrite
                with formats.open(str(path)) as checkpoint:
                    (notice,) = checkpoint.account.notices
                    assert (notice.code, notice.message) == (
                        "trailing-data",
                        f"{text}: torch ignores them",
                    )
                    assert [entry.name for entry in checkpoint.tensors] == ["a"]
                opened += 1
            else:
                with pytest.raises(UnreadableError):
                    formats.open(str(path))
            assert save.undo_rewrite(str(path), LIMITS) == (
                len(whole) + count,
                len(whole),
                (),
            )
    assert opened >= 4 or elements < 20_000


def test_a_rewrite_of_a_file_with_bytes_behind_it(
    states: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(states[0] + garbage(500))

    new = rewritten(path, "cuda:3")

    with formats.open(str(path)) as checkpoint:
        assert (
            not checkpoint.account.notices
            and checkpoint.tensors[0].tensor.device == "cuda:3"
        )
    assert torch.load(path, map_location="cpu")["n"] == 1
    assert save.undo_rewrite(str(path), LIMITS) == (len(new), len(states[0]) + 500, ())


def test_an_end_record_behind_the_archive_is_the_one_that_torch_takes(
    states: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    """Also inside of a comment, where other readers pass over it."""
    old, false = states[0], pack("<4s4H2IH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)
    for data in (
        old + false,
        old + false + b"x",
        old[:-2] + pack("<H", 26) + false + b"abcd",
    ):
        (tmp_path / "a.pth").write_bytes(data)
        with pytest.raises(RuntimeError):
            torch.load(tmp_path / "a.pth")
        with pytest.raises(UnreadableError):
            formats.open(str(tmp_path / "a.pth"))
    for data in (
        old + false[:21],
        old[:-2] + pack("<H", 5) + b"hello",
        old[:-2] + pack("<H", 5) + b"hello, too",
    ):
        (tmp_path / "a.pth").write_bytes(data)
        torch.load(tmp_path / "a.pth", map_location="cpu")
        formats.open(str(tmp_path / "a.pth")).close()


def test_undo_is_named_only_where_it_works(
    states: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    old, new, _ = states
    broken = bytearray(new)
    broken[old.index(b"_rebuild_tensor")] ^= 0xFF
    files = [
        old + old,
        old[:-5],
        old[:-5] + bytes(40),
        bytes(broken[:-5]),
        b"\0" + new,
        old[:200],
    ]
    for number, data in enumerate(files):
        path = tmp_path / f"{number}.pth"
        path.write_bytes(data)
        with pytest.raises(CkptError) as caught:
            formats.open(str(path))
        assert "--undo" not in str(caught.value), number
        with pytest.raises(UsageError, match="no in-place rewrite to undo"):
            save.undo_rewrite(str(path), LIMITS)
        assert path.read_bytes() == data


def test_a_damaged_pickle_that_was_appended_keeps_its_error(
    states: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    old, new, _ = states
    broken = bytearray(new)
    broken[new.index(b"cuda:0", len(old))] ^= 0xFF
    (tmp_path / "a.pth").write_bytes(broken)

    with pytest.raises(
        UnreadableError, match="do not match the recorded checksum"
    ) as caught:
        formats.open(str(tmp_path / "a.pth"))
    assert HINT in str(caught.value)
    assert save.undo_rewrite(str(tmp_path / "a.pth"), LIMITS).after == len(old)


def test_what_the_commands_say(
    states: tuple[bytes, bytes, bytes], tmp_path: Path
) -> None:
    old, torn = states[0], torn_files(states)["stale"]
    (tmp_path / "a.pth").write_bytes(torn)

    check_error(ckpt("inspect", "a.pth", cwd=tmp_path), f"({HINT} a.pth)")
    done = ckpt("verify", "a.pth", cwd=tmp_path)
    assert done.code == 1 and f"({HINT} a.pth)" in done.lines[0]
    done = ckpt("rehome", "--undo", "--dry-run", "a.pth", cwd=tmp_path)
    assert done.code == 0 and done.lines == [
        (
            f"a.pth: a whole archive ends at byte {len(old):,}, {len(torn) - len(old)} "
            "B behind it would be cut off"
        ),
        "nothing was written (--dry-run)",
    ]
    assert (tmp_path / "a.pth").read_bytes() == torn
    done = ckpt("rehome", "--undo", "a.pth", cwd=tmp_path)
    assert done.lines == [
        f"a.pth: took back the last rewrite, {len(torn) - len(old)} B cut off"
    ]
    assert (tmp_path / "a.pth").read_bytes() == old


@pytest.mark.parametrize(
    ("method", "name", "is_ours"),
    [
        (0, b"a/data.pkl", False),
        (8, b"a/data.pkl", False),
        (1, b"a/data.pkl", True),
        (0, b"", True),
        (0, b"a\0b", True),
        (0, b"a\xff\xfe", True),
    ],
)
def test_a_header_that_makes_no_sense_is_no_other_archive(
    method: int, name: bytes, is_ours: bool, states: tuple[bytes, bytes, bytes]
) -> None:
    """A rewrite that was torn inside of its header leaves one: what follows the old end
    may be cut off.
    """
    old = states[0]
    head = LocalHeader(LOCAL_MAGIC, 0, 0, method, 0, 0, 5, 5, len(name), 0).as_bytes()
    assert end_before(Memory(old + head + name + b"12345"), LIMITS) == (
        len(old) if is_ours else None
    )

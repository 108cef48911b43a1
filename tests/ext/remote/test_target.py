"""Objects on a server that speaks S3: what appears, what is refused, and that nothing
is left when something fails.
"""

from __future__ import annotations

import random
from hashlib import sha256

import pytest
from buckets import Bucket

from ckpt.bytes import target as io_target
from ckpt.bytes.target import Target
from ckpt.ext.remote import target as module
from ckpt.ext.remote.credentials import looked_at
from ckpt.model.errors import CkptError, UsageError, WriteError

SIZE = 21 << 20
DATA = random.Random(9).randbytes(SIZE)  # a part, and a short one


def to(url: str, *, force: bool = False) -> Target:
    return io_target.target(url, force=force)


def write(target: Target, data: bytes) -> None:
    with io_target.writing_file(target, len(data)) as sink:
        sink.write(data)


def test_a_large_object_is_sent_in_parts_and_a_small_one_is_not(s3: Bucket) -> None:
    write(to(f"{s3.url}/run/a.bin"), DATA)
    assert s3.front.whats() == [
        "HEAD run/a.bin",
        "POST run/a.bin?uploads",
        "PUT run/a.bin?partNumber=1",
        "HEAD run/a.bin",
        "PUT run/a.bin?partNumber=2",
        "POST run/a.bin?uploadId",
    ]
    parts = [row for row in s3.front.asked if row.is_part]
    assert [row.size for row in parts] == [16 << 20, SIZE - (16 << 20)]
    assert [row.headers["x-amz-content-sha256"] for row in parts] == [
        sha256(DATA[: 16 << 20]).hexdigest(),
        sha256(DATA[16 << 20 :]).hexdigest(),
    ], "what Amazon compares"
    s3.front.clear()
    write(to(f"{s3.url}/run/b.bin"), b"small")
    assert s3.front.whats() == ["HEAD run/b.bin", "PUT run/b.bin"]
    assert s3.front.asked[1].headers["if-none-match"] == "*"
    assert s3.objects == {"run/a.bin": DATA, "run/b.bin": b"small"} and s3.uploads == 0


@pytest.mark.slow
def test_no_more_than_three_parts_at_once(s3: Bucket) -> None:
    size = (100 << 20) + 5
    with io_target.writing_file(to(f"{s3.url}/a.bin"), size) as sink:
        for _ in range(100):
            sink.write(DATA[: 1 << 20])
        sink.write(DATA[:5])
    assert s3.front.most_at_once <= 3
    assert s3.objects["a.bin"] == DATA[: 1 << 20] * 100 + DATA[:5]


def test_an_existing_object_is_refused_and_replaced_with_force(s3: Bucket) -> None:
    url = s3.put("a.bin", b"old")
    with pytest.raises(UsageError) as error:
        to(url)
    assert str(error.value) == f"{url}: already exists (force=True to replace)"
    for data in (DATA, b"new"):
        target = to(url, force=True)
        assert target.is_replacing
        write(target, data)
        assert s3.objects == {"a.bin": data}
    assert not to(f"{s3.url}/other.bin", force=True).is_replacing


@pytest.mark.parametrize("size", [5, SIZE])
def test_an_object_that_appears_meanwhile_stays(size: int, s3: Bucket) -> None:
    target = to(f"{s3.url}/a.bin")
    moment = "PUT a.bin?partNumber=1" if size == SIZE else "PUT a.bin"
    s3.front.before[moment] = lambda: s3.put("a.bin", b"of another")
    with pytest.raises(UsageError, match="already exists"):
        write(target, DATA[:size])
    assert s3.objects == {"a.bin": b"of another"} and s3.uploads == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["?uploads", "?partNumber=1", "?partNumber=2", "POST a.bin?uploadId"]
)
def test_what_fails_thrice_is_tried_again(what: str, s3: Bucket) -> None:
    s3.front.fail = [(what, 503)] * 3
    write(to(f"{s3.url}/a.bin"), DATA)
    assert s3.objects == {"a.bin": DATA} and s3.uploads == 0 and not s3.front.fail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status", "says"),
    [
        ("?uploads", 503, "the object store answers 503 Refused, 4 times in a row"),
        (
            "?partNumber=1",
            503,
            "the object store answers 503 Refused, 4 times in a row",
        ),
        (
            "?partNumber=1",
            403,
            "no permission to write it: 403 Refused (credentials come from HERE)",
        ),
        ("?partNumber=1", 400, "the object store answers 400 Refused"),
        (
            "POST a.bin?uploadId",
            503,
            "the object store answers 503 Refused, 4 times in a row",
        ),
        (
            "POST a.bin?uploadId",
            403,
            "no permission to write it: 403 Refused (credentials come from HERE)",
        ),
    ],
)
def test_what_fails_leaves_neither_object_nor_upload(
    what: str, status: int, says: str, s3: Bucket
) -> None:
    s3.front.fail = [(what, status)] * (4 if status == 503 else 1)
    with pytest.raises(WriteError) as error:
        write(to(f"{s3.url}/a.bin"), DATA)
    assert str(error.value) == f"{s3.url}/a.bin: {says}".replace(
        "HERE", looked_at("s3")
    )
    assert s3.objects == {} and s3.uploads == 0 and not s3.front.fail


def test_an_upload_that_is_left_is_named(s3: Bucket) -> None:
    """obstore aborts nothing when the last part fails."""
    s3.front.fail = [("?partNumber=2", 403)]
    with pytest.raises(WriteError) as error:
        write(to(f"{s3.url}/a.bin"), DATA)
    problem = "no permission to write it: 403 Refused"
    rest = "an upload may be left unfinished in the bucket: a lifecycle rule removes it"
    assert str(error.value) == f"{s3.url}/a.bin: {problem} ({rest})"
    assert s3.objects == {} and s3.uploads == 1


def test_a_bit_that_changes_on_the_way_is_found(s3: Bucket) -> None:
    for number in (1, 2):
        s3.front.flip = [f"?partNumber={number}"]
        with pytest.raises(
            WriteError, match=f"part {number} of 2 did not arrive as it was sent"
        ):
            write(to(f"{s3.url}/a.bin"), DATA)
        assert s3.objects == {}
    s3.front.flip = ["PUT b.bin"]
    with pytest.raises(WriteError, match="part 1 of 1 did not arrive"):
        write(to(f"{s3.url}/b.bin"), b"small")
    assert s3.objects == {}


class InterruptError(BaseException): ...


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, SIZE])
@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize(
    "error", [CkptError("no"), InterruptError()], ids=["error", "interrupt"]
)
def test_an_error_in_the_block_leaves_nothing(
    error: BaseException, is_complete: bool, size: int, s3: Bucket
) -> None:
    with (
        pytest.raises(type(error)),
        io_target.writing_file(to(f"{s3.url}/a.bin"), size) as sink,
    ):
        sink.write(DATA[: size if is_complete else size - 1])
        if is_complete:
            sink.complete()
            assert s3.objects == {"a.bin": DATA[:size]}, (
                "it can be read back inside the block"
            )
        raise error
    assert s3.objects == {} and s3.uploads == 0 and not sink.is_placed


@pytest.mark.parametrize(
    "error", [CkptError("no"), InterruptError()], ids=["error", "interrupt"]
)
def test_an_error_when_parts_were_sent_ends_the_upload(
    error: BaseException, s3: Bucket
) -> None:
    with (
        pytest.raises(type(error)),
        io_target.writing_file(to(f"{s3.url}/a.bin"), (48 << 20) + 5) as sink,
    ):
        for _ in range(48):
            sink.write(DATA[: 1 << 20])
        raise error
    assert s3.objects == {} and s3.uploads == 0
    whats = s3.front.whats()
    assert sum("?partNumber=" in row for row in whats) == 3
    assert whats[-1] == "DELETE a.bin?uploadId", (
        "after its parts, so that none arrives later"
    )


def test_a_part_that_fails_while_the_next_ones_are_filled(s3: Bucket) -> None:
    s3.front.fail = [("?partNumber=2", 403)]
    with pytest.raises(WriteError, match="no permission to write it"):
        write(to(f"{s3.url}/a.bin"), DATA * 4)
    assert s3.objects == {} and s3.uploads == 0
    assert "PUT a.bin?partNumber=4" not in s3.front.whats()


def test_a_complete_object_that_replaced_another_survives_an_interrupt_and_no_failed_check(
    s3: Bucket,
) -> None:
    for error, left in (
        (InterruptError(), {"a.bin": b"new"}),
        (CkptError("differs"), {}),
    ):
        url = s3.put("a.bin", b"old")
        with (
            pytest.raises(type(error)),
            io_target.writing_file(to(url, force=True), 3) as sink,
        ):
            sink.write(b"new")
            sink.complete()
            raise error
        assert s3.objects == left
    url = s3.put("a.bin", b"old")
    with (
        pytest.raises(CkptError),
        io_target.writing_file(to(url, force=True), 3) as sink,
    ):
        sink.write(b"new")
        raise CkptError("before it is complete")
    assert s3.objects == {"a.bin": b"old"}


def test_the_object_of_somebody_else_is_not_removed(s3: Bucket) -> None:
    with (
        pytest.raises(CkptError) as error,
        io_target.writing_file(to(f"{s3.url}/a.bin"), 3) as sink,
    ):
        sink.write(b"new")
        sink.complete()
        s3.put("a.bin", b"of another")
        raise CkptError("differs")
    assert error.value.hint == f"{s3.url}/a.bin is another object by now, and is kept"
    assert s3.objects == {"a.bin": b"of another"}


def test_what_cannot_be_removed_is_named(s3: Bucket) -> None:
    s3.front.fail = [("DELETE a.bin", 403)]
    with (
        pytest.raises(CkptError) as error,
        io_target.writing_file(to(f"{s3.url}/a.bin"), 3) as sink,
    ):
        sink.write(b"new")
        sink.complete()
        raise CkptError("differs")
    assert (
        error.value.hint
        == f"{s3.url}/a.bin is left over: no permission to write it: 403 Refused"
    )


def test_no_bucket(s3: Bucket) -> None:
    with pytest.raises(WriteError) as error:
        write(to("s3://nowhere-at-all/a.bin"), b"x")
    assert str(error.value) == "s3://nowhere-at-all/a.bin: no such bucket"


# --- folders --------------------------------------------------------------------------


def folder_to(url: str, *, force: bool = False) -> Target:
    return io_target.folder_target(url, lambda name: True, force=force)


def test_the_objects_of_a_folder_are_there_one_after_the_other(s3: Bucket) -> None:
    with io_target.writing_folder(
        folder_to(f"{s3.url}/run/"), 8, lambda name: True
    ) as sink:
        for name, data in (("one", b"1234"), (".metadata", b"5678")):
            with sink.file(name, 4) as inner:
                inner.write(data)
            assert s3.objects[f"run/{name}"] == data
    assert sink.is_placed
    assert all(
        row.headers["if-none-match"] == "*"
        for row in s3.front.asked
        if row.what.startswith("PUT")
    )


@pytest.mark.parametrize("at", ["inside", "behind"])
def test_a_folder_that_fails_leaves_nothing_and_what_completes_it_goes_first(
    at: str, s3: Bucket
) -> None:
    with (
        pytest.raises(CkptError),
        io_target.writing_folder(
            folder_to(f"{s3.url}/run"), 8, lambda name: True
        ) as sink,
    ):
        for name in ("one", "two", ".metadata"):
            with sink.file(name, 2) as inner:
                inner.write(b"12")
                if at == "inside" and name == ".metadata":
                    raise CkptError("no")
        raise CkptError("no")
    assert s3.objects == {}
    gone = [row.split()[1] for row in s3.front.whats() if row.startswith("DELETE")]
    assert gone == ([] if at == "inside" else ["run/.metadata"]) + [
        "run/two",
        "run/one",
    ]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_is_not_replaced(force: bool, s3: Bucket) -> None:
    s3.put("run/.metadata", b"x")
    with pytest.raises(UsageError) as error:
        folder_to(f"{s3.url}/run", force=force)
    problem = (
        "holds 1 object already: ckpt replaces no folder of an object store ("
        "another name for out=)"
    )
    assert str(error.value) == f"{s3.url}/run: {problem}"
    s3.put("one", b"x")
    with pytest.raises(UsageError, match="an object, and the result is a folder"):
        folder_to(f"{s3.url}/one", force=force)
    with pytest.raises(UsageError, match="a bucket, not a new folder"):
        folder_to(f"{s3.url}/", force=force)


def test_links(s3: Bucket) -> None:
    from ckpt.bytes.source import Memory

    with (
        pytest.raises(WriteError, match="an object store has no hard links"),
        io_target.writing_folder(
            folder_to(f"{s3.url}/run"), 8, lambda name: True
        ) as sink,
    ):
        sink.link("one", Memory(b""))


def test_names_and_what_is_cleared(s3: Bucket) -> None:
    assert module.names(f"{s3.url}/run") == []
    for name in ("run/a", "run/b", "run/c"):
        s3.put(name, b"x")
    assert module.names(f"{s3.url}/run") == ["a", "b", "c"]
    assert module.cleared(f"{s3.url}/run", ["a", "c", "none"]) == []
    assert list(s3.objects) == ["run/b"]

"""Whether a store received what was sent: by its ETag, else by reading back."""

from __future__ import annotations

import random
from hashlib import md5
from typing import Any

import pytest
from webs import Kept

from ckpt.ext.remote import target as received
from ckpt.ext.remote.source import RangeSource
from ckpt.ext.remote.target import Sums, has_to_compare
from ckpt.model.errors import WriteError

URL = "s3://b/a.bin"
DATA = random.Random(3).randbytes(1000)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is there, and how often it was opened."""
    opened: list[Any] = [Kept(DATA), 0]

    def open_address(url: str) -> RangeSource:
        opened[1] += 1
        return RangeSource(opened[0], url)

    monkeypatch.setattr(received, "open_address", open_address)
    return opened


def sums(data: bytes, part: int, piece: int = 37) -> Sums:
    made = Sums(part, len(data))
    for at in range(0, len(data), piece):
        made.add(memoryview(data[at : at + piece]))
    return made


@pytest.mark.parametrize("part", [100, 300, 999])
def test_the_etag_of_parts(part: int, there: list[Any]) -> None:
    each = [md5(DATA[at : at + part]).digest() for at in range(0, 1000, part)]
    sums(DATA, part).check(URL, f'"{md5(b"".join(each)).hexdigest()}-{len(each)}"')
    assert there[1] == 0


@pytest.mark.parametrize("part", [1000, 1001])
def test_the_etag_of_a_whole(part: int, there: list[Any]) -> None:
    sums(DATA, part).check(URL, md5(DATA).hexdigest())
    sums(b"", part).check(URL, md5(b"").hexdigest())
    assert there[1] == 0


def test_another_etag_is_read_back(there: list[Any]) -> None:
    there[0].etag = '"of-kms"'
    sums(DATA, 300).check(URL, '"of-kms"')
    assert there[1] == 1


@pytest.mark.parametrize(
    ("at", "part"), [(0, "1 of 4"), (299, "1 of 4"), (300, "2 of 4"), (999, "4 of 4")]
)
def test_what_did_not_arrive(at: int, part: str, there: list[Any]) -> None:
    there[0].data = DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]
    with pytest.raises(WriteError) as error:
        sums(DATA, 300).check(URL, '"1"')
    assert str(error.value) == f"{URL}: part {part} did not arrive as it was sent"


def test_what_is_shorter(there: list[Any]) -> None:
    there[0].data = DATA[:900]
    with pytest.raises(WriteError, match="part 4 of 4"):
        sums(DATA, 300).check(URL, '"1"')


def test_an_object_of_somebody_else(there: list[Any]) -> None:
    there[0].etag = '"2"'
    with pytest.raises(WriteError, match="another object took its place meanwhile"):
        sums(DATA, 300).check(URL, '"1"')


def test_which_stores_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert not has_to_compare("s3"), "Amazon compares the SHA-256 of each request"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio")
    assert (
        has_to_compare("s3") and not has_to_compare("gs") and not has_to_compare("az")
    )

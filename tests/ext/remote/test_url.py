"""URLs: which are ours, what of them is shown, what a server is asked for."""

from __future__ import annotations

import pytest

from ckpt.bytes.far import is_url
from ckpt.bytes.location import LocalPath, locate
from ckpt.ext.remote.url import parse_url, shown, typed_url
from ckpt.model.errors import UsageError


@pytest.mark.parametrize(
    "text",
    ["s3://b/a.pt", "gs://b/k", "az://c/k", "http://h/x", "HTTPS://h/x", "hf://o/m/x"],
)
def test_urls(text: str) -> None:
    assert is_url(text) and not isinstance(locate(text), LocalPath)


@pytest.mark.parametrize(
    "text",
    [
        "a.pth",
        "s3/b",
        "file:///etc/passwd",
        "ftp://h/x",
        "./s3://b/a",
        "s3:/b",
        "http:x",
    ],
)
def test_paths(text: str) -> None:
    assert not is_url(text) and isinstance(locate(text), LocalPath)


def test_what_is_secret_is_not_shown() -> None:
    secret = "https://me:pass@host:8443/a%20b/x.pth?token=abc#part"
    name = shown(secret)
    assert name == "https://host:8443/a%20b/x.pth"
    assert shown(name) == name
    assert typed_url(name) == "https://me:pass@host:8443/a%20b/x.pth?token=abc"
    other = shown("https://host:8443/a%20b/x.pth?token=other")
    assert other == "https://host:8443/a%20b/x.pth#2"
    assert typed_url(other).endswith("?token=other")


def test_what_a_url_may_not_hold_is_quoted() -> None:
    assert typed_url("http://host/ä b.pth") == "http://host/%C3%A4%20b.pth"


@pytest.mark.parametrize(
    "text", ["s3://me:pass@b/x", "gs://b/x?sig=1", "az://c/x?sig=1"]
)
def test_object_stores_take_no_secrets_in_a_url(text: str) -> None:
    with pytest.raises(UsageError) as error:
        shown(text)
    assert (
        "environment" in str(error.value)
        and "pass" not in str(error.value)
        and "sig" not in str(error.value)
    )


def test_the_parts() -> None:
    assert parse_url("s3://bucket/a/b.pt") == ("s3", "bucket", "a/b.pt")
    assert parse_url("hf://org/model@v1/sub/x.pt") == ("hf", "org/model@v1", "sub/x.pt")
    assert str(parse_url(shown("hf://org/model@v1/x"))) == "hf://org/model@v1/x"


@pytest.mark.parametrize("text", ["s3://", "hf://org", "https:///x"])
def test_a_part_that_lacks(text: str) -> None:
    with pytest.raises(UsageError):
        parse_url(text)


def test_files_beside_one_are_asked_for_with_its_password_and_without_its_query() -> (
    None
):
    at = locate("https://me:p4ss@beside.example/set/model.index.json?signature=1")
    for place in (at.parent().child("a.bin"), at.parent().child("in").child("a.bin")):
        assert "p4ss" not in place.name and place.name.endswith("/a.bin")
        assert typed_url(place.name) == place.name.replace(
            "https://", "https://me:p4ss@"
        )
    assert (
        typed_url(locate("https://beside.example/set/b.bin").name)
        == "https://beside.example/set/b.bin"
    )

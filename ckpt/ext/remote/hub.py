"""Files and folders on Hugging Face."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from ckpt.ext.remote.http import HttpObject
from ckpt.ext.remote.store import Known
from ckpt.ext.remote.url import Url, escape_name, typed_url
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import json_list, json_object
from ckpt.model.text import Json

_PAGES = 1000
DAMAGED = "the server's list of files is damaged"


def _hub_parts(url: Url) -> tuple[str, str, str, str | None]:
    """(server, model, revision, token)."""
    server = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    model, _, revision = url.host.partition("@")
    return (
        server.rstrip("/"),
        model,
        escape_name(revision or "main").replace("/", "%2F"),
        _find_token(),
    )


def _find_token() -> str | None:
    """The token of the environment, else the one that `hf auth login` has stored."""
    token = os.environ.get("HF_TOKEN")
    disabled = os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper()
    # An empty variable asks without a token, as in huggingface_hub.
    if token is not None or disabled in ("1", "ON", "YES", "TRUE"):
        return token or None
    try:
        with open(token_path()) as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def token_path() -> str:
    """The file in which `hf auth login` stores a token."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(
        os.path.expanduser("~"), ".cache"
    )
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    return os.path.expanduser(
        os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    )


def hub_object(url: Url) -> HttpObject:
    """The file of an hf URL."""
    server, model, revision, token = _hub_parts(url)
    return HttpObject(
        typed_url(f"{server}/{model}/resolve/{revision}/{escape_name(url.path)}"), token
    )


def names_in(url: Url) -> dict[str, Known | None]:
    """Return the names in a folder of a model, with the sizes of files. The names of
    folders end with `/`.

    Requests for a file give another ETag than the listing. Raises BusyError,
    NotOpenedError, UnreadableError.
    """
    names: dict[str, Known | None] = {}
    try:
        for row in rows_of(url, url.path.strip("/")):
            name = str(row["path"]).rpartition("/")[2]
            # A size that is no size leaves the file without one: it is asked for.
            is_folder, size = row["type"] == "directory", row.get("size")
            names[name + "/" if is_folder else name] = None
            if not is_folder and type(size) is int and 0 <= size < 1 << 63:
                names[name] = Known(size, "")
    except KeyError:
        raise UnreadableError(DAMAGED) from None
    return names


def rows_of(
    url: Url, path: str, *, recursive: bool = False
) -> Iterator[dict[str, Json]]:
    """Yield the rows of the list of a folder, as the server sends them. Raises
    BusyError, NotOpenedError, UnreadableError.
    """
    server, model, revision, token = _hub_parts(url)
    page = f"{server}/api/models/{model}/tree/{revision}"
    if path:
        page += f"/{escape_name(path)}"
    if recursive:
        page += "?recursive=true"
    # A server could send pages without end.
    for _ in range(_PAGES):
        data, more = HttpObject(typed_url(page), token).document()
        try:
            rows = [json_object(row) for row in json_list(json.loads(data))]
        except (ValueError, RecursionError):
            raise UnreadableError(DAMAGED) from None
        yield from rows
        if more is None:
            return
        if not more.startswith(f"{server}/"):
            break  # a token goes to no other server
        page = more
    raise UnreadableError("the server's list of files is too long")

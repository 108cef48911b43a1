"""Files and folders on Hugging Face."""

from __future__ import annotations

import json
import os

from ckpt.ext.remote.http import HttpObject
from ckpt.ext.remote.store import Known
from ckpt.ext.remote.url import Url, escaped, typed
from ckpt.model.errors import UnreadableError

_PAGES = 1000


def _hub(url: Url) -> tuple[str, str, str, str | None]:
    """(server, model, revision, token)."""
    server = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    model, _, revision = url.host.partition("@")
    return server.rstrip("/"), model, escaped(revision or "main").replace("/", "%2F"), _token()


def _token() -> str | None:
    """The token of the environment, else the one that `hf auth login` has stored."""
    token = os.environ.get("HF_TOKEN")
    if token is not None or os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in (
        "1",
        "ON",
        "YES",
        "TRUE",
    ):
        return token or None
    try:
        with open(token_path()) as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def token_path() -> str:
    """The file in which `hf auth login` stores a token."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    return os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token"))


def hub_object(url: Url) -> HttpObject:
    """The file of an hf URL."""
    server, model, revision, token = _hub(url)
    return HttpObject(typed(f"{server}/{model}/resolve/{revision}/{escaped(url.path)}"), token)


def names_in(url: Url) -> dict[str, Known | None]:
    """Return the names in a folder of a model, with the sizes of files. The names of folders end with `/`.

    Requests for a file give another ETag than the listing. Raises BusyError, NotOpenedError, UnreadableError.
    """
    server, model, revision, token = _hub(url)
    path = url.path.strip("/")
    page = f"{server}/api/models/{model}/tree/{revision}" + (f"/{escaped(path)}" if path else "")
    names: dict[str, Known | None] = {}
    for _ in range(_PAGES):
        data, more = HttpObject(typed(page), token).document()
        try:
            for row in json.loads(data):
                name = str(row["path"]).rpartition("/")[2]
                is_folder, size = row["type"] == "directory", row.get("size")
                is_known = not is_folder and type(size) is int and 0 <= size < 1 << 63
                names[name + "/" if is_folder else name] = Known(size, "") if is_known else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UnreadableError("the server's list of files is damaged") from None
        if more is None:
            return names
        if not more.startswith(f"{server}/"):
            break  # a token goes to no other server
        page = more
    raise UnreadableError("the server's list of files is too long")

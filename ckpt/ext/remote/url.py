"""URLs as they are typed and as they are shown. Secrets of a URL stay in this process
and are never shown.
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

from ckpt.bytes.far import SCHEMES, Scheme
from ckpt.model.errors import UsageError
from ckpt.model.rows import NamedTuple

_KEPT: dict[str, str] = {}
"""The shown URL -> the typed one, for those with a password, a token or a signature."""


class Url(NamedTuple):
    """A URL without secrets: `host` is the server, the bucket or ORG/MODEL@REV, `path`
    the rest, without `/` in front.
    """

    scheme: str
    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.path}"

    @property
    def server(self) -> Scheme:
        """The abilities of its server."""
        return SCHEMES[self.scheme]

    @property
    def last(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def with_path(self, path: str) -> Url:
        return self._replace(path=path)


def parse_url(text: str) -> Url:
    """A shown URL. Raises UsageError where a part is missing."""
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    host, _, path = rest.partition("/")
    if scheme == "hf":
        model, _, path = path.partition("/")
        if not host or not model:
            raise UsageError(
                "not a Hugging Face URL",
                path=text,
                hint="hf://ORG/MODEL[@REVISION]/PATH",
            )
        return Url(scheme, f"{host}/{model}", path)
    if not host:
        raise UsageError("the URL names no server or bucket", path=text)
    return Url(scheme, host, path)


def shown(text: str) -> str:
    """A URL without user, password, query and fragment. What it hides is kept for
    `typed_url`. Raises UsageError.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        # Nothing of the text is shown that may be a secret.
        scheme, _, rest = text.partition("?")[0].partition("://")
        raise UsageError(
            "not a URL", path=f"{scheme}://{rest.rpartition('@')[2]}"
        ) from None
    scheme = parts.scheme.lower()
    server = parts.netloc.rpartition("@")[2]
    path = parts.path
    if scheme == "hf":
        # @REVISION belongs to the name of the model, never to a user.
        server, path = (parts.netloc, parts.path)
        if "@" in server:
            raise UsageError(
                "not a Hugging Face URL", hint="hf://ORG/MODEL[@REVISION]/PATH"
            )
    plain = f"{scheme}://{server}{path}"
    has_secret = bool(parts.query) or server != parts.netloc
    if not has_secret:
        return plain
    if SCHEMES[scheme].lists:
        problem = "a user or a query in the URL: credentials come from the environment"
        # Object stores get their credentials from the environment alone.
        raise UsageError(problem, path=plain)
    # Two files that differ in the query only get a number behind their names.
    name, number = plain, 1
    while _KEPT.setdefault(name, text) != text:
        number += 1
        name = f"{plain}#{number}"
    return name


def share_login(name: str, other: str) -> str:
    """The shown URL of a file beside another one: with its user and password, and
    without its query.
    """
    # The query may be a signature of the one file.
    login = urlsplit(_KEPT.get(name, name)).netloc.rpartition("@")[0]
    if not login:
        return other
    scheme, _, rest = other.partition("://")
    return shown(f"{scheme}://{login}@{rest}")


def has_secret(name: str) -> bool:
    """Tell whether a shown URL hides a user or a query of the typed one."""
    return name in _KEPT


def escape_name(name: str) -> str:
    """Escape a name that is no part of a URL yet, such as the name of a shard in an
    index.
    """
    return quote(name, safe=_SAFE)


_SAFE = "/:@!$&'()*+,;=~-._"


def typed_url(name: str) -> str:
    """The URL to ask for, of a shown one. Keep it out of every text."""
    parts = urlsplit(_KEPT.get(name, name))
    # `%` stays: the path may be escaped already.
    path = quote(parts.path, safe=f"%{_SAFE}")
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))

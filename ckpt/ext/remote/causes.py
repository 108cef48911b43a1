"""The cause of an error of obstore: the status and the code of the store, or why it was
not reached.

The text of an error begins with the path and the URL, in which anything may stand, and
holds the answer of the store. What follows `Debug source` is a tree of the error, in
which texts are quoted: only its own lines are looked at.
"""

from __future__ import annotations

import re

from ckpt.ext.remote.credentials import looked_at
from ckpt.model.rows import NamedTuple

_STATUS = re.compile(r"^ +status: (\d{3}),$", re.MULTILINE)
_BODY = re.compile(r'^ +body: Some\(\n +"(.*)",$', re.MULTILINE)
_URI = re.compile(
    r"^ +uri: Some\(\n +https?://([^/?#\s]*@)?([^/?#\s]{1,200})", re.MULTILINE
)
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
_METADATA = (
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "metadata.google.internal",
    "metadata",
)
"""The servers that give a machine in a cloud its credentials."""
_SILENCE = (
    ('"dns error",', "unknown host {server}", True),
    ("kind: ConnectionRefused,", "{server} refuses the connection", False),
    ("InvalidCertificate(", "the certificate of {server} is not valid", True),
    ("InvalidMessage(", "{server} does not answer with TLS", True),
    ("kind: Timeout,", "{server} does not answer", False),
    ("kind: Connect,", "{server} cannot be reached", False),
)
"""A line of the tree, the problem, and whether it is final."""
_REFUSED = ("PermissionError", "PermissionDeniedError", "UnauthenticatedError")
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired", "InvalidToken")
_ELSEWHERE = (
    "AuthorizationHeaderMalformed",
    "PermanentRedirect",
    "IllegalLocationConstraintException",
)


class Cause(NamedTuple):
    """The cause of an error, for people. It `may_pass` unless the store has decided.

    `status` is None without an answer. `is_overload` says that the store gets too many
    requests.
    """

    problem: str
    hint: str | None = None
    status: int | None = None
    code: str = ""
    may_pass: bool = False
    is_overload: bool = False


def cause_of(error: Exception, scheme: str, verb: str) -> Cause:
    """The cause of an error of obstore, from the store of a scheme. `verb` says what
    was not allowed.
    """
    # The last part alone: the texts before it may quote anything.
    tree = str(error).rpartition("\n\nDebug source:\n")[2]
    found = _STATUS.search(tree)
    status = int(found[1]) if found else None
    server = (_URI.search(tree) or ("", "", "the object store"))[2]
    # obstore asks the machine's cloud for credentials last: nothing else was there.
    if server.partition(":")[0] in _METADATA or "MissingAccount" in tree:
        what = "no account" if "MissingAccount" in tree else "no credentials"
        return Cause(what, f"looked at {looked_at(scheme)}")
    body = (_BODY.search(tree) or ("", ""))[1]
    code, region = (
        (pattern.search(body) or ("", ""))[1] for pattern in (_CODE, _REGION)
    )
    said = f"{status or ''} {code}".strip()
    # A wrong region has several answers, some without a body.
    if region or code in _ELSEWHERE or "inner: BareRedirect," in tree:
        hint = f"AWS_REGION={region}" if region else "AWS_REGION names its region"
        return Cause("the bucket lies in another region", hint, status, code)
    if code in _EXPIRED:
        return Cause(
            f"the credentials have expired: {said}", "log in again", status, code
        )
    if code == "NoSuchBucket" or code == "ContainerNotFound":
        return Cause(
            f"no such {'container' if scheme == 'az' else 'bucket'}", None, status, code
        )
    # Without a status the class of the error says it.
    if status in (401, 403) or (status is None and type(error).__name__ in _REFUSED):
        hint = f"credentials come from {looked_at(scheme)}"
        return Cause(
            f"no permission to {verb} it" + (f": {said}" if status else ""),
            hint,
            status,
            code,
        )
    if status is not None:
        may_pass = status in (408, 425, 429) or status >= 500
        problem = f"the object store answers {said}"
        return Cause(
            problem, None, status, code, may_pass, is_overload=status in (429, 503)
        )
    # No answer: a line of the tree says how far the request came.
    for line, problem, is_final in _SILENCE:
        if line in tree:
            return Cause(problem.format(server=server), may_pass=not is_final)
    return Cause("the object store does not answer", may_pass=True)

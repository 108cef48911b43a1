"""The fence around the commands that only look: when it goes up, and when it stays
down.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ckpt.bytes.far import is_url
from ckpt.surface.cli import output, start

_ASKED = ("http", "https", "hf")
"""The schemes of URLs that are read by requests alone. To log in to an object store, a
tool may start and write.
"""


def fence_in(
    names: Iterable[str | None],
    *,
    workers: bool,
    cluster: str | None = None,
    own_code: bool = False,
    writing: str | None = None,
) -> None:
    """Give up for this process what reading never needs, before the first of the files
    is opened.

    `names` are all PATHs that are read. `workers` says that copies of this process may
    read some of them. With `own_code` the command runs code of the user, which may do
    what it likes. `writing` is an option with which it writes a file. CKPT_DEBUG says
    on stderr what is up.
    """
    urls = [name for name in names if name is not None and is_url(name)]
    missing = _reason_against(urls, cluster, own_code, writing)
    if not missing:
        from ckpt.bytes.fence import raise_fence  # here: most commands have none

        output.keep_nowhere()
        fence = raise_fence(network=bool(urls), workers=workers)
    if os.environ.get("CKPT_DEBUG"):
        output.write_talk(f"ckpt: fence: {f'none: {missing}' if missing else fence}")


def _reason_against(
    urls: Iterable[str], cluster: str | None, own_code: bool, writing: str | None
) -> str:
    """Return why there is no fence, or nothing."""
    if os.environ.get("CKPT_FENCE", "") == "0":
        return "CKPT_FENCE=0"
    # A fence cannot be taken down, so a host process would keep it.
    if not start.is_ours():
        return "this process does not end with the command"
    if cluster is not None:
        return "--cluster connects, and may start processes"
    if own_code:
        return "--model runs your own code"
    if writing is not None:
        return f"{writing} writes a file"
    if any(url.partition("://")[0].lower() not in _ASKED for url in urls):
        return "a tool may start to log in to the object store"
    return ""

"""The parcels to a worker and back: tasks as bytes, in which a source is its address
and its identity.

No data, no file name as code and no credential is in a parcel. A worker finds
credentials in its own environment.
"""

from __future__ import annotations

import io
import pickle
import platform
import socket
from collections.abc import Iterator, Sequence

from ckpt import __version__
from ckpt.bytes.executor import SPAN, R, Task
from ckpt.bytes.far import Claim, is_url, iterate_ahead
from ckpt.bytes.source import BaseSource, Identity, Source, open_address
from ckpt.model.errors import CkptError, NotOpenedError, UnsupportedError
from ckpt.model.rows import NamedTuple

_TASKS = 256
"""The most tasks of one parcel."""
_AT = (("size", -2), ("modification time", -1))
"""The facts on which two machines agree that see one file, each with its place in the
identity.

Devices and inodes have other numbers on each machine.
"""


class Sender(NamedTuple):
    """The sender of tasks: the versions of ckpt and Python, and the name of the
    machine.

    The version of Python is without its last number.
    """

    version: str
    python: str
    host: str


class Outcome(NamedTuple):
    """The results of the tasks of a parcel, up to the first error."""

    results: Sequence[object]
    error: Exception | None = None


def sender() -> Sender:
    """This process as a sender, or as a worker that is compared with one."""
    return Sender(
        __version__, ".".join(platform.python_version_tuple()[:2]), socket.gethostname()
    )


class _Pickler(pickle.Pickler):
    """Writes sources as their addresses. What has no address, such as bytes in memory,
    goes along.
    """

    def reducer_override(self, obj: object) -> tuple[object, ...]:  # type: ignore[override]  # it has Any
        # Sources alone are written in another way. All else in a task is plain data.
        if isinstance(obj, BaseSource) and obj.address is not None:
            claims = () if obj.far is None else tuple(obj.far.claims)
            return _open_sent_source, (
                obj.address,
                obj.identity,
                socket.gethostname(),
                claims,
            )
        usual: tuple[object, ...] = NotImplemented
        return usual


def parcels_of(tasks: Sequence[Task[R]]) -> Iterator[Sequence[Task[R]]]:
    """Neighbours that go to a worker together. They depend on the tasks alone."""
    parcel: list[Task[R]] = []
    room = 0
    for task in tasks:
        # The size of a parcel is bounded by bytes, as one task is; and by tasks, for a
        # result comes back for each.
        if parcel and (task.nbytes > room or len(parcel) == _TASKS):
            yield parcel
            parcel = []
        if not parcel:
            room = SPAN
        parcel.append(task)
        room -= task.nbytes
    if parcel:
        yield parcel


def packed(tasks: Sequence[Task[R]]) -> bytes:
    """The tasks as bytes. Raises UnsupportedError where a format of another
    distribution makes others than plain data.
    """
    out = io.BytesIO()
    try:
        _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(tasks)
    except (AttributeError, TypeError, pickle.PicklingError):
        # pickle writes functions and classes of modules by their names, and no others.
        problem = "the work on this checkpoint cannot be sent to workers"
        raise UnsupportedError(problem, hint="without --cluster") from None
    return out.getvalue()


def perform(data: bytes, by: Sender) -> Outcome:
    """Run the tasks of a parcel, on a worker."""
    here = sender()
    if problem := version_difference(here, by):
        return Outcome((), CkptError(f"worker {here.host} {problem}"))
    try:
        tasks: Sequence[Task[object]] = pickle.loads(data)
    except NotOpenedError as error:
        return Outcome((), error)
    results: list[object] = []
    for task in iterate_ahead(tasks):
        try:
            results.append(task())
        except MemoryError:
            raise  # the parcel goes to another worker, which may have more
        except Exception as error:
            return Outcome(results, error)
    return Outcome(results)


def version_difference(worker: Sender, by: Sender) -> str | None:
    """Return the reason why a worker cannot take tasks, or None: `has ckpt 0.1.0, this
    is 0.2.0`.
    """
    if worker.version != by.version:
        return f"has ckpt {worker.version}, this is {by.version}"
    if worker.python != by.python:
        return f"has Python {worker.python}, this is {by.python}"
    return None


def _open_sent_source(
    address: str, identity: Identity, host: str, claims: Sequence[Claim]
) -> Source:
    """The source of a task from the machine `host`. Raises NotOpenedError, with the
    name of this one.
    """
    # A URL is pinned by what its server said to the sender.
    if is_url(address):
        from ckpt.ext.remote.location import open_pinned

        return open_pinned(address, identity, claims)
    here = socket.gethostname()
    hint = "all workers must see the same files"
    try:
        source = open_address(address)
    except NotOpenedError as error:
        raise NotOpenedError(
            f"{error.problem} on worker {here}", path=address, hint=hint
        ) from None
    current = source.identity
    # Only on the same machine are inodes comparable.
    differing = [what for what, index in _AT if current[index] != identity[index]]
    if not differing and current != identity and host == here:
        differing = ["inode"]
    if differing:
        source.close()
        problem = f"another file on worker {here}: its {differing[0]} differs"
        raise NotOpenedError(problem, path=address, hint=hint)
    return source

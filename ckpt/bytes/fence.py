"""A second fence around reading: from some moment on, this process cannot write files,
connect, or start a program.

The first fence is the reader, which runs nothing of a file. This one is for its bugs:
the kernel refuses what reading never needs. Linux keeps it up to the end of the
process, in its threads and in its copies too. It has three parts:

- `no_new_privs`: no program gives this process more rights.
- Landlock, from Linux 5.13 on: no path can be written, made, removed or run. It also
  refuses connections by TCP (from 6.7 on) and signals to processes outside (from 6.12
  on).
- A filter of system calls (seccomp) for all that has no path, and for kernels without
  Landlock.

The filter lists what it refuses. A list of what it allows would be stronger, but other
releases of libc, numpy and Python make other calls for the same work, so a healthy file
would fail on some machines. Two rules make up for that: calls that are newer than the
list do not exist in here, and Landlock refuses by default.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING

from ckpt.bytes import syscalls
from ckpt.model.errors import STOPPED
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ctypes import CDLL


class Fence(NamedTuple):
    """The parts of the fence that are up: the version of Landlock, 0 without it, and
    the filter of system calls.

    `missing` is the reason why there is none.
    """

    landlock: int = 0
    has_filter: bool = False
    missing: str = ""

    @property
    def is_up(self) -> bool:
        return self.landlock > 0 or self.has_filter

    def __str__(self) -> str:
        parts = [f"Landlock {self.landlock}"] if self.landlock else []
        parts += ["seccomp"] if self.has_filter else []
        return " and ".join(parts) or f"none: {self.missing}"


class Machine(NamedTuple):
    """An architecture: its column in the table of calls, and its number in a filter."""

    column: int
    audit: int


MACHINES = {"x86_64": Machine(0, 0xC000003E), "aarch64": Machine(1, 0xC00000B7)}
"""The architectures whose calls are known, by the name that the kernel gives them."""


def raise_fence(*, network: bool = False, workers: bool = True) -> Fence:
    """Fence this process in until it ends, and return the parts that the kernel has.

    With `network` it may still connect, for a PATH behind a URL. With `workers` it may
    still copy itself, because the copies that read many files are made when the work is
    there; they are inside of the fence too.
    """
    if sys.platform != "linux":
        return Fence(missing="the system is not Linux")
    name = os.uname().machine
    machine = MACHINES.get(name)
    if machine is None or sys.maxsize < 1 << 32:
        return Fence(missing=f"the calls of {name} are not known")
    try:
        # Here: it takes longer than all other parts of the fence.
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return Fence(missing="this Python has no ctypes")
    if libc.prctl(_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
        return Fence(missing="the kernel lacks no_new_privs")
    landlock = _restrict_paths(libc, network)
    has_filter = _filter_calls(
        libc, filter_of(machine, os.getpid(), network=network, workers=workers)
    )
    missing = "" if landlock or has_filter else "the kernel lacks Landlock and seccomp"
    return Fence(landlock, has_filter, missing)


_NO_NEW_PRIVS = 38
"""PR_SET_NO_NEW_PRIVS."""


# --- Landlock -------------------------------------------------------------------------

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""Numbers of calls, which are the same on all architectures."""
_GET_VERSION = 1
"""LANDLOCK_CREATE_RULESET_VERSION."""
_RIGHTS = (
    # Of version 1: run, write; remove a folder or a file; make a device, a folder, a
    # file, a socket, a pipe, a disk, a link.
    (1, 0b1_1111_1111_0011),
    (2, 1 << 13),  # move to another folder
    (3, 1 << 14),  # truncate
    (5, 1 << 15),  # control a device
)
"""Version of Landlock -> the rights on paths that it knows, but for reading files and
folders.
"""
_TCP = 0b11
"""The rights to bind and to connect, from version 4 on."""
_SCOPES = 0b11
"""No sockets without a path, and no signals, to processes outside: from version
6 on.
"""


def _restrict_paths(libc: CDLL, network: bool) -> int:
    """Refuse by Landlock to change any path; the version of it, or 0 where the kernel
    lacks it.
    """
    import ctypes

    version = libc.syscall(*map(ctypes.c_long, (_CREATE_RULESET, 0, 0, _GET_VERSION)))
    if version < 1:
        return 0
    rules = rights_of(version, network)
    size = ctypes.c_size_t(len(rules))
    ruleset = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), ctypes.c_char_p(rules), size, ctypes.c_uint(0)
    )
    if ruleset < 0:
        return 0
    try:
        refused = libc.syscall(
            ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint(0)
        )
    finally:
        os.close(ruleset)
    return 0 if refused else int(version)


def rights_of(version: int, network: bool) -> bytes:
    """Return the `struct landlock_ruleset_attr` of a version: what it handles, and so
    refuses, as no rule grants any of it.
    """
    paths = sum(bits for since, bits in _RIGHTS if since <= version)
    fields = [paths]
    if version >= 4:
        fields.append(0 if network else _TCP)
    if version >= 6:
        fields.append(_SCOPES)
    return struct.pack(f"={len(fields)}Q", *fields)


# --- the filter of system calls -------------------------------------------------------

Step = tuple[int, int, int, int]
"""One instruction of classic BPF: what it does, the steps to skip if true and if false,
and a number.
"""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`: the number of the call, the architecture, and the
arguments of 8 bytes each.
"""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE = _ERROR | STOPPED
_ABSENT = _ERROR | 38
"""ENOSYS: the kernel does not have this call."""

_SET_FILTER, _ALL_THREADS = 1, 1
_SECCOMP = (317, 277)
"""The number of seccomp(2)."""

_WRITING = 0o20001103
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and O_TMPFILE: one bit of them makes an open more
than reading.
"""
_ASKING = (0x5401, 0x802C542A, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451)
"""The ioctl of a reader: is it a terminal (twice), its size, its group, bytes that
wait, blocking, closing at exec.

Others change attributes of files that are open for reading, or type into the terminal.
"""
_OWNING = (8, 10, 15, 1024, 1026)
"""The fcntl that send signals to others: F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE,
F_NOTIFY.
"""
_FAMILIES = (2, 10)
"""AF_INET and AF_INET6. libc looks up names without AF_UNIX and AF_NETLINK too, by a
server of names.
"""
_THREAD = 0x10000
"""CLONE_THREAD."""
_SPACES = 0x7E020000
"""CLONE_NEWNS and all other namespaces."""
_SIGKILL = 9
_NEGATIVE = 1 << 31


def filter_of(
    machine: Machine, pid: int, *, network: bool, workers: bool
) -> list[Step]:
    """Return the program that judges each system call of the process `pid` on an
    architecture.
    """
    numbers = {name: pair[machine.column] for name, pair in syscalls.JUDGED.items()}
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        # A call of 32 bits has other numbers: no code of this process makes one.
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # The calls of x32 too, whose numbers have a high bit.
        (_AT_LEAST, 0, 1, syscalls.UNKNOWN),
        (_RETURN, 0, 0, _ABSENT),
    ]
    groups = [
        syscalls.FILES,
        syscalls.MOUNTS,
        syscalls.PROGRAMS,
        syscalls.PROCESSES,
        syscalls.SYSTEM,
        syscalls.SERVING,
    ]
    if not network:
        groups.append(syscalls.NETWORK)
    for group in groups:
        steps += _answer_steps(group, machine, _REFUSE)
    steps += _answer_steps(syscalls.OPAQUE, machine, _ABSENT)

    opening = [(_ANY_BIT, _WRITING, _REFUSE)]
    copying = [(_ANY_BIT, _SPACES, _REFUSE), (_ANY_BIT, _THREAD, _ALLOW)]
    killing = [(_EQUAL, pid, _ALLOW)]
    # The workers are killed in the end. From version 6 on, Landlock refuses it for all
    # other processes.
    if workers:
        killing += [(_ANY_BIT, _NEGATIVE, _REFUSE), (_EQUAL, 0, _REFUSE)]
    for name, argument, tests, otherwise in (
        ("open", 1, opening, _ALLOW),
        ("openat", 2, opening, _ALLOW),
        ("ioctl", 1, [(_EQUAL, value, _ALLOW) for value in _ASKING], _REFUSE),
        ("fcntl", 1, [(_EQUAL, value, _REFUSE) for value in _OWNING], _ALLOW),
        ("fork", 0, [], _ALLOW if workers else _REFUSE),
        ("clone", 0, copying, _ALLOW if workers else _REFUSE),
        ("tgkill", 0, [(_EQUAL, pid, _ALLOW)], _REFUSE),
        ("prlimit64", 0, [(_EQUAL, 0, _ALLOW)], _REFUSE),
        ("sched_setaffinity", 0, [(_EQUAL, 0, _ALLOW), (_EQUAL, pid, _ALLOW)], _REFUSE),
        (
            "socket",
            0,
            [(_EQUAL, family, _ALLOW) for family in _FAMILIES] if network else [],
            _REFUSE,
        ),
    ):
        number = numbers[name]
        if number is not None:
            steps += _single_call_steps(
                number, [*_argument_steps(argument, tests), (_RETURN, 0, 0, otherwise)]
            )
    signal = _argument_steps(1, [(_EQUAL, _SIGKILL, _ALLOW)]) if workers else []
    kill = [*_argument_steps(0, killing), *signal, (_RETURN, 0, 0, _REFUSE)]
    steps += _single_call_steps(numbers["kill"] or 0, kill)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _answer_steps(
    group: syscalls.Numbers, machine: Machine, answer: int
) -> Iterable[Step]:
    """Yield the steps that give each call of a group one answer."""
    for pair in group.values():
        number = pair[machine.column]
        if number is not None:
            yield from _single_call_steps(number, [(_RETURN, 0, 0, answer)])


def _single_call_steps(number: int, steps: Sequence[Step]) -> list[Step]:
    """Return steps that are taken for one call only. The last of them must return."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _argument_steps(argument: int, tests: Iterable[tuple[int, int, int]]) -> list[Step]:
    """Return the steps that test an argument, of which the kernel takes 32 bits: (test,
    value, answer if true).
    """
    steps: list[Step] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
    for test, value, answer in tests:
        steps += [(test, 0, 1, value), (_RETURN, 0, 0, answer)]
    return steps


def _filter_calls(libc: CDLL, steps: Sequence[Step]) -> bool:
    """Have the kernel judge each call of all threads; False where it lacks that."""
    import ctypes

    code = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *step) for step in steps)
    )
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    number = _SECCOMP[MACHINES[os.uname().machine].column]
    mode, flags = ctypes.c_uint(_SET_FILTER), ctypes.c_uint(_ALL_THREADS)
    refused = libc.syscall(ctypes.c_long(number), mode, flags, ctypes.c_char_p(program))
    return bool(refused == 0)

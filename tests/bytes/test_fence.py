"""The fence: inside of it the kernel refuses to write, to connect and to start, and
reading goes on as before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import deeds
import pytest
from deeds import DEEDS, HAS_FILTERS
from process import python

from ckpt.bytes import fence, syscalls
from ckpt.bytes.source import read_failure_reason
from ckpt.model.errors import STOPPED, NotOpenedError

LEAVES_NETWORK = {"make_a_socket", "connect", "send"}
"""What a fence with `network` does not refuse."""
ABSENT = {"open_by_a_call_of_its_own": "ENOSYS"}
"""What seems to lack in the kernel."""
PATHS_ONLY = {
    "write_a_file",
    "write_null",
    "append",
    "truncate_by_opening_to_read",
    "make_by_opening_to_read",
    "make_without_a_name",
    "write_through_a_map",
    "make_a_folder",
    "remove_a_folder",
    "link",
    "symlink",
    "make_a_pipe",
    "rename",
    "open_by_a_call_of_its_own",
    "run_a_program",
    "spawn_a_program",
    "become_a_program",
}
"""What the first version of Landlock refuses by itself."""


class Tried(NamedTuple):
    """What the process of `deeds` says, and the files that it leaves: name -> (mode,
    bytes, time, attributes).
    """

    said: dict[str, Any]
    files: dict[str, tuple[object, ...]]


UNTOUCHED = {
    "there": (b"as it was", []),
    "other": (b"as it was", []),
    "folder": (None, []),
}


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tried]:
    """Tries all deeds behind these parts of a fence, once for all tests."""
    known: dict[tuple[str, ...], Tried] = {}

    def run(*parts: str) -> Tried:
        if parts not in known:
            folder = tmp_path_factory.mktemp("deeds")
            done = python(deeds.__file__, folder, *parts)
            assert done.code == 0, done.err.decode()
            known[parts] = Tried(json.loads(done.out), _files(folder))
        if "seccomp" in parts and not HAS_FILTERS:
            pytest.skip("this kernel filters no calls")
        if parts == ("landlock",) and not known[parts].said["fence"][0]:
            pytest.skip("this kernel has no Landlock")
        return known[parts]

    return run


def _files(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in folder.iterdir():
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else None
        found[path.name] = (
            status.st_mode,
            status.st_mtime_ns,
            data,
            os.listxattr(path, follow_symlinks=False),
        )
    return found


needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the fence is for Linux"
)


# --- what is refused ------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize("name", DEEDS)
def test_a_deed_is_refused(name: str, tried: Callable[..., Tried]) -> None:
    outside, inside = tried(), tried("landlock", "seccomp")

    assert inside.said["deeds"][name] == ABSENT.get(name, "EL2HLT")
    assert outside.said["deeds"][name] not in ("EL2HLT", "ENOSYS"), (
        "outside it fails for another reason, or is done"
    )


@needs_linux
def test_most_deeds_are_done_outside(tried: Callable[..., Tried]) -> None:
    """So that what is refused inside is not refused because the test is wrong."""
    done = {name for name, how in tried().said["deeds"].items() if how == "done"}

    assert {
        *PATHS_ONLY,
        *LEAVES_NETWORK,
        "run_by_the_shell",
        "fork",
        "set_the_mode",
        "kill_another",
    } <= done
    assert len(done) > 40
    assert {name: row[2:] for name, row in tried().files.items()} != UNTOUCHED


@needs_linux
@pytest.mark.parametrize(
    "parts",
    [
        ("landlock", "seccomp"),
        ("seccomp",),
        ("landlock", "seccomp", "network", "workers"),
    ],
)
def test_nothing_is_changed(
    parts: tuple[str, ...], tried: Callable[..., Tried]
) -> None:
    inside = tried(*parts)

    assert {name: row[2:] for name, row in inside.files.items()} == UNTOUCHED
    assert {
        oct(row[0] & 0o777) for name, row in inside.files.items() if name != "folder"
    } == {  # type: ignore[operator]
        oct(0o666 & ~_umask())
    }
    assert all(row[1] != 10**9 for row in inside.files.values())
    assert inside.said["victim"] is None, "the other process lives"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@needs_linux
def test_the_filter_alone_refuses_all(tried: Callable[..., Tried]) -> None:
    """On a kernel without Landlock."""
    both, alone = tried("landlock", "seccomp"), tried("seccomp")

    assert alone.said["fence"] == [0, True, ""]
    assert alone.said["deeds"] == both.said["deeds"]


@needs_linux
def test_landlock_alone_refuses_paths(tried: Callable[..., Tried]) -> None:
    """On a kernel without filters, and where a call is new to the filter."""
    alone = tried("landlock")
    version = alone.said["fence"][0]

    refused = {
        name
        for name, how in alone.said["deeds"].items()
        if how in ("EACCES", "EPERM", "EXDEV")
    }
    assert refused >= PATHS_ONLY
    if version >= 3:
        assert "truncate" in refused
    if version >= 4:
        assert {"connect", "bind"} <= refused
    if version >= 6:
        assert {"kill_another", "hang_another_up", "signal_by_a_descriptor"} <= refused


@needs_linux
def test_the_network_alone_can_be_left(tried: Callable[..., Tried]) -> None:
    inside, without = (
        tried("landlock", "seccomp"),
        tried("landlock", "seccomp", "network", "workers"),
    )
    differing = {
        name
        for name, how in without.said["deeds"].items()
        if how != inside.said["deeds"][name] and how == "done"
    }

    assert differing == {*LEAVES_NETWORK, "fork"}


@needs_linux
def test_copies_are_inside(tried: Callable[..., Tried]) -> None:
    """A copy of the process writes nothing either, and can be ended."""
    said = tried("landlock", "seccomp", "network", "workers").said

    assert said["copies"] == "EL2HLT -9"
    if said["fence"][0] >= 6:
        assert said["deeds"]["kill_another"] == "EPERM", (
            "Landlock tells the copies from others"
        )


@needs_linux
def test_threads_that_run_already_are_inside(tried: Callable[..., Tried]) -> None:
    assert tried("landlock", "seccomp").said["early thread"] == "EL2HLT"
    assert tried().said["early thread"] == "done"


@needs_linux
@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("landlock", "seccomp"),
        ("seccomp",),
        ("landlock",),
        ("landlock", "seccomp", "network", "workers"),
    ],
)
def test_reading_goes_on(parts: tuple[str, ...], tried: Callable[..., Tried]) -> None:
    assert tried(*parts).said["needs"] == {}


@needs_linux
def test_the_kernel_says_that_it_is_up(tried: Callable[..., Tried]) -> None:
    said = tried("landlock", "seccomp").said

    assert said["fence"][1:] == [True, ""] and said["status"] == [
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ]


# --- where there is none --------------------------------------------------------------


class _Uname(NamedTuple):
    machine: str


def test_none_without_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    assert fence.raise_fence() == fence.Fence(missing="the system is not Linux")
    assert not fence.raise_fence().is_up


@needs_linux
def test_none_on_an_unknown_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: _Uname("riscv64"))

    assert str(fence.raise_fence()) == "none: the calls of riscv64 are not known"


@needs_linux
def test_none_where_the_program_has_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)

    assert not fence.raise_fence().is_up


@needs_linux
def test_none_without_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)

    assert fence.raise_fence().missing == "this Python has no ctypes"


@needs_linux
def test_none_where_the_kernel_lacks_it() -> None:
    program = """
from ckpt.bytes import fence
class Libc:
    def prctl(self, *_): return 0
    def syscall(self, *_): return -1
import ctypes
ctypes.CDLL = lambda *_, **__: Libc()
print(fence.raise_fence())
Libc.prctl = lambda *_: -1
print(fence.raise_fence())
"""
    assert python("-c", program).lines == [
        "none: the kernel lacks Landlock and seccomp",
        "none: the kernel lacks no_new_privs",
    ]


# --- errors ---------------------------------------------------------------------------


@needs_linux
def test_what_the_fence_refuses_is_no_fault_of_a_file() -> None:
    with pytest.raises(OSError) as caught:
        read_failure_reason(OSError(STOPPED, os.strerror(STOPPED)))
    assert (
        not isinstance(caught.value, NotOpenedError) and caught.value.errno == STOPPED
    )
    assert (
        read_failure_reason(PermissionError(1, "Operation not permitted"))
        == "no permission to read it"
    )


# --- the program of the filter --------------------------------------------------------


def _judged(
    machine: str,
    number: int,
    *arguments: int,
    audit: int | None = None,
    pid: int = 7,
    **kinds: bool,
) -> str:
    """What the filter answers to a call, by a machine for its instructions."""
    audit = fence.MACHINES[machine].audit if audit is None else audit
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, audit, 0, *padded)
    steps = fence.filter_of(
        fence.MACHINES[machine],
        pid,
        network=kinds.get("network", False),
        workers=kinds.get("workers", False),
    )
    held, at = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return {
                0x7FFF0000: "allowed",
                0x80000000: "killed",
                0x50000 | 38: "absent",
                0x50000 | STOPPED: "refused",
            }[value]
        else:
            is_true = {
                0x15: held == value,
                0x35: held >= value,
                0x45: bool(held & value),
            }[code]
            at += if_true if is_true else if_false


GROUPS = ("FILES", "MOUNTS", "PROGRAMS", "PROCESSES", "SYSTEM", "NETWORK")


def _numbers(group: str, machine: str) -> dict[str, int]:
    table: syscalls.Numbers = {
        "FILES": syscalls.FILES,
        "MOUNTS": syscalls.MOUNTS,
        "PROGRAMS": syscalls.PROGRAMS,
        "PROCESSES": syscalls.PROCESSES,
        "SYSTEM": syscalls.SYSTEM,
        "NETWORK": syscalls.NETWORK,
        "JUDGED": syscalls.JUDGED,
        "OPAQUE": syscalls.OPAQUE,
    }[group]
    pairs = {name: pair[fence.MACHINES[machine].column] for name, pair in table.items()}
    return {name: number for name, number in pairs.items() if number is not None}


@pytest.mark.parametrize("machine", fence.MACHINES)
@pytest.mark.parametrize("group", GROUPS)
def test_each_call_of_a_group_is_refused(group: str, machine: str) -> None:
    for name, number in _numbers(group, machine).items():
        assert _judged(machine, number) == "refused", name
        assert (_judged(machine, number, network=True) == "allowed") == (
            group == "NETWORK"
        ), name


@pytest.mark.parametrize("machine", fence.MACHINES)
def test_other_architectures_and_later_calls(machine: str) -> None:
    read = {"x86_64": 0, "aarch64": 63}[machine]

    assert _judged(machine, read) == "allowed"
    assert _judged(machine, read, audit=0x40000003) == "killed"
    assert _judged(machine, read | 0x40000000) == "absent", "x32"
    assert _judged(machine, syscalls.UNKNOWN) == "absent"
    for number in _numbers("OPAQUE", machine).values():
        assert _judged(machine, number) == "absent"


@pytest.mark.parametrize("machine", fence.MACHINES)
def test_arguments_decide(machine: str) -> None:
    calls = _numbers("JUDGED", machine)
    high = (
        1 << 32
    )  # the kernel takes 32 bits of these arguments, so the others change nothing
    by = {
        ("openat", (0, 0, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)): "allowed",
        ("openat", (0, 0, os.O_WRONLY)): "refused",
        ("openat", (0, 0, os.O_RDWR | high)): "refused",
        ("openat", (0, 0, os.O_CREAT)): "refused",
        ("openat", (0, 0, os.O_TRUNC)): "refused",
        ("openat", (0, 0, 0o20000000)): "refused",
        ("ioctl", (1, 0x5401)): "allowed",
        ("ioctl", (1, 0x5413)): "allowed",
        ("ioctl", (1, 0x5412)): "refused",
        ("ioctl", (1, 0x5412 | high)): "refused",
        ("ioctl", (1, 0x40086602)): "refused",
        ("fcntl", (1, 3)): "allowed",
        ("fcntl", (1, 8)): "refused",
        ("prlimit64", (0, 7)): "allowed",
        ("prlimit64", (9, 7)): "refused",
        ("tgkill", (7, 7, 6)): "allowed",
        ("tgkill", (8, 8, 6)): "refused",
    }
    for (name, arguments), answer in by.items():
        assert _judged(machine, calls[name], *arguments) == answer, (name, arguments)


@pytest.mark.parametrize("machine", fence.MACHINES)
def test_copies_and_their_end(machine: str) -> None:
    calls = _numbers("JUDGED", machine)
    thread, copy, spaces = 0x3D0F00, 0x1200011, 0x10000011
    for workers in (False, True):
        allowed = "allowed" if workers else "refused"
        assert _judged(machine, calls["clone"], thread, workers=workers) == "allowed"
        assert _judged(machine, calls["clone"], copy, workers=workers) == allowed
        assert _judged(machine, calls["clone"], spaces, workers=workers) == "refused"
        assert _judged(machine, calls["kill"], 7, 15, workers=workers) == "allowed", (
            "itself"
        )
        assert _judged(machine, calls["kill"], 9, 9, workers=workers) == allowed
        assert _judged(machine, calls["kill"], 9, 15, workers=workers) == "refused"
        assert _judged(machine, calls["kill"], 0, 9, workers=workers) == "refused"
        assert (
            _judged(machine, calls["kill"], 0xFFFFFFFF, 9, workers=workers) == "refused"
        )


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", fence.MACHINES)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    """Where its headers are installed, which may be older than some calls."""
    header = HEADERS[machine]
    if not header.exists() or shutil.which("cpp") is None:
        pytest.skip("no headers of the kernel here")
    kinds = [
        "-D__ARCH_WANT_RENAMEAT",
        "-D__ARCH_WANT_MEMFD_SECRET",
        "-D__ARCH_WANT_SYS_CLONE3",
        "-D__BITS_PER_LONG=64",
    ]
    text = subprocess.run(
        ["cpp", "-dM", *kinds, header], capture_output=True, text=True, check=True
    ).stdout
    given = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\w+)", text))
    own = {
        name: number
        for group in (*GROUPS, "JUDGED", "OPAQUE")
        for name, number in _numbers(group, machine).items()
    }

    found = {
        name: int(number) for name in own if (number := given.get(name, "")).isdigit()
    }
    assert found == {name: own[name] for name in found}
    assert len(found) > 100
    missing = {name for name in own if own[name] < 440 and name not in found}
    assert missing <= {"fcntl", "ftruncate"}, "their numbers are those of other names"


def test_each_version_of_landlock_gets_the_rights_that_it_knows() -> None:
    sizes = {
        version: len(fence.rights_of(version, network=False)) for version in range(1, 9)
    }

    assert sizes == {1: 8, 2: 8, 3: 8, 4: 16, 5: 16, 6: 24, 7: 24, 8: 24}
    assert struct.unpack("=Q", fence.rights_of(1, network=False)) == (0x1FF3,)
    assert struct.unpack("=Q", fence.rights_of(3, network=False)) == (0x7FF3,)
    assert struct.unpack("=QQQ", fence.rights_of(6, network=False)) == (0xFFF3, 3, 3)
    assert struct.unpack("=QQQ", fence.rights_of(6, network=True)) == (0xFFF3, 0, 3)

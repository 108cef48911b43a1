"""A process that tries what reading never does, inside of the fence or outside, and
says how each try ended.

`python deeds.py FOLDER PARTS` works in a folder of its own. PARTS are words: `landlock`
and `seccomp` for the parts of the fence that go up, `network` and `workers` for what it
leaves. It prints name -> `done`, or the name of an error.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
COLUMN = (
    ("x86_64", "aarch64").index(os.uname().machine)
    if os.uname().machine in ("x86_64", "aarch64")
    else -1
)

_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")
HAS_FILTERS = (
    COLUMN >= 0 and _ACTIONS.exists() and "errno" in _ACTIONS.read_text().split()
)
"""What the kernel says of itself: if the fence is not up here, that is a mistake."""

Deed = Callable[[], object]
DEEDS: dict[str, Deed] = {}
OPEN: dict[str, Any] = {}
"""What was open, or ran, before the fence went up."""


def deed(function: Deed) -> Deed:
    DEEDS[function.__name__] = function
    return function


def call(numbers: tuple[int, int], *arguments: Any) -> int:
    """Make a system call past libc's own functions. Raises OSError."""
    number = numbers[COLUMN]
    result = LIBC.syscall(
        ctypes.c_long(number),
        *[
            each if not isinstance(each, int) else ctypes.c_long(each)
            for each in arguments
        ],
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def prepare() -> None:
    Path("there").write_bytes(b"as it was")
    Path("other").write_bytes(b"as it was")
    Path("folder").mkdir()
    OPEN["file"] = os.open("there", os.O_RDWR)
    OPEN["reading"] = os.open("there", os.O_RDONLY)
    OPEN["listener"] = socket.create_server(("127.0.0.1", 0))
    OPEN["stream"] = socket.socket()
    OPEN["datagrams"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    OPEN["unbound"] = socket.socket()
    OPEN["terminal"] = pty.openpty()
    OPEN["victim"] = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    OPEN["pidfd"] = call((434, 434), OPEN["victim"].pid, 0)


# --- files ----------------------------------------------------------------------------


@deed
def write_a_file() -> None:
    Path("new").write_bytes(b"x")


@deed
def write_null() -> None:
    os.close(os.open(os.devnull, os.O_WRONLY))


@deed
def append() -> None:
    with open("there", "ab") as file:
        file.write(b"x")


@deed
def truncate_by_opening_to_read() -> None:
    os.close(os.open("there", os.O_RDONLY | os.O_TRUNC))


@deed
def make_by_opening_to_read() -> None:
    os.close(os.open("made", os.O_RDONLY | os.O_CREAT))


@deed
def make_without_a_name() -> None:
    os.close(os.open(".", os.O_TMPFILE | os.O_RDWR))


@deed
def write_through_a_map() -> None:
    with open("other", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:2] = b"xx"


@deed
def truncate() -> None:
    os.truncate("there", 3)


@deed
def truncate_what_is_open() -> None:
    os.ftruncate(OPEN["file"], 2)


@deed
def reserve_in_what_is_open() -> None:
    os.posix_fallocate(OPEN["file"], 0, 4096)


@deed
def make_a_folder() -> None:
    os.mkdir("made_folder")


@deed
def remove_a_folder() -> None:
    os.rmdir("folder")


@deed
def link() -> None:
    os.link("there", "linked")


@deed
def symlink() -> None:
    os.symlink("there", "pointing")


@deed
def make_a_pipe() -> None:
    os.mkfifo("pipe")


@deed
def rename() -> None:
    os.rename("other", "renamed")


@deed
def replace() -> None:
    os.replace("linked", "pointing")


@deed
def remove() -> None:
    os.unlink("pointing")


@deed
def set_the_mode() -> None:
    os.chmod("there", 0o640)


@deed
def set_the_mode_of_what_is_open() -> None:
    os.fchmod(OPEN["reading"], 0o600)


@deed
def set_the_owner() -> None:
    os.chown("there", os.getuid(), os.getgid())


@deed
def set_the_times() -> None:
    os.utime("there", (1, 1))


@deed
def set_an_attribute() -> None:
    os.setxattr("there", "user.ckpt", b"x")


@deed
def set_flags_of_what_is_open() -> None:
    flags = bytearray(8)
    call((16, 29), OPEN["reading"], 0x80086601, (ctypes.c_char * 8).from_buffer(flags))
    call((16, 29), OPEN["reading"], 0x40086602, (ctypes.c_char * 8).from_buffer(flags))


@deed
def open_by_a_call_of_its_own() -> None:
    how = ctypes.create_string_buffer(
        (os.O_WRONLY | os.O_CREAT).to_bytes(8, "little") + bytes(16), 24
    )
    os.close(call((437, 437), -100, ctypes.c_char_p(b"opened"), how, 24))


@deed
def change_what_paths_mean() -> None:
    call((272, 97), 0x00020000)  # a namespace of mounts


# --- programs and processes -----------------------------------------------------------


@deed
def run_by_the_shell() -> None:
    if os.system("true"):
        raise OSError(errno.EL2HLT, "no shell")


@deed
def run_a_program() -> None:
    subprocess.run(["true"], check=True)


@deed
def spawn_a_program() -> None:
    pid = os.posix_spawnp("true", ["true"], {"PATH": os.environ["PATH"]})
    assert os.waitpid(pid, 0)[1] == 0


@deed
def become_a_program() -> None:
    if OPEN["is_fenced"] or not (pid := os.fork()):
        os.execvp("true", ["true"])
    else:
        os.waitpid(pid, 0)


@deed
def make_memory_that_can_run() -> None:
    os.close(os.memfd_create("x"))


@deed
def fork() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@deed
def kill_another() -> None:
    os.kill(OPEN["victim"].pid, 0 if not OPEN["is_fenced"] else signal.SIGKILL)


@deed
def slow_another_down() -> None:
    os.setpriority(os.PRIO_PROCESS, OPEN["victim"].pid, 19)


@deed
def move_another_to_one_core() -> None:
    os.sched_setaffinity(OPEN["victim"].pid, {min(os.sched_getaffinity(0))})


@deed
def hang_another_up() -> None:
    os.kill(OPEN["victim"].pid, signal.SIGCONT)


@deed
def kill_everybody() -> None:
    if OPEN["is_fenced"]:
        os.kill(-OPEN["victim"].pid, signal.SIGKILL)


@deed
def signal_by_a_descriptor() -> None:
    call((424, 424), OPEN["pidfd"], int(signal.SIGCONT), 0, 0)


@deed
def signal_by_a_pipe() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, OPEN["victim"].pid)
    os.close(reader), os.close(writer)


@deed
def take_a_descriptor() -> None:
    os.close(call((438, 438), OPEN["pidfd"], 0, 0))


@deed
def trace_another() -> None:
    call((101, 117), 0x4206, OPEN["victim"].pid, 0, 0)  # PTRACE_SEIZE


@deed
def write_into_another() -> None:
    call((311, 271), OPEN["victim"].pid, None, 0, None, 0, 0)


@deed
def limit_another() -> None:
    resource.prlimit(OPEN["victim"].pid, resource.RLIMIT_NOFILE)


@deed
def type_into_the_terminal() -> None:
    fcntl.ioctl(OPEN["terminal"][1], termios.TIOCSTI, b"x")


# --- network --------------------------------------------------------------------------


@deed
def make_a_socket() -> None:
    socket.socket().close()


@deed
def make_a_socket_of_this_machine() -> None:
    socket.socket(socket.AF_UNIX).close()


@deed
def connect() -> None:
    OPEN["stream"].connect(OPEN["listener"].getsockname())


@deed
def send() -> None:
    OPEN["datagrams"].sendto(b"x", OPEN["listener"].getsockname())


@deed
def bind() -> None:
    OPEN["unbound"].bind(("127.0.0.1", 0))


# --- the kernel -----------------------------------------------------------------------


@deed
def queue_calls() -> None:
    os.close(call((425, 425), 1, ctypes.create_string_buffer(120)))


@deed
def share_memory() -> None:
    call((31, 195), call((29, 194), 0, 4096, 0o1600), 0, None)


@deed
def make_a_key() -> None:
    call(
        (250, 219), 0, -2, 0
    )  # the number of the keyring of the process, which exists or not


@deed
def change_the_user() -> None:
    os.setuid(os.getuid())


@deed
def count_events() -> None:
    call((298, 241), None, 0, -1, -1, 0)


@deed
def load_into_the_kernel() -> None:
    call((321, 280), -1, None, 0)


# --- what reading needs ---------------------------------------------------------------


def needs() -> dict[str, str]:
    """Do what reading needs; the name of what failed, and why."""
    failed: dict[str, str] = {}

    def numbers() -> None:
        import numpy  # loads libraries

        assert numpy.arange(3).sum() == 3

    def threads() -> None:
        seen: list[int] = []
        several = [
            threading.Thread(target=seen.append, args=(number,)) for number in range(4)
        ]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
        assert sorted(seen) == [0, 1, 2, 3]

    def pipes() -> None:
        reader, writer = os.pipe()
        os.set_inheritable(reader, True)
        os.set_blocking(reader, False)
        os.write(writer, b"x")
        assert os.read(reader, 1) == b"x"
        os.close(reader), os.close(writer)

    def reading() -> None:
        assert os.pread(OPEN["reading"], 2, 0) == b"as"
        assert Path("other").read_bytes() == b"as it was" and "there" in os.listdir(".")
        assert os.stat("there").st_size == 9 and os.path.exists("/proc/self/status")
        assert next(os.scandir("folder"), None) is None

    def mapping() -> None:
        with (
            open("there", "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory,
        ):
            assert memory[:2] == b"as"

    def what_is_open() -> None:
        os.pwrite(OPEN["file"], b"as it was", 0)

    def limits() -> None:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)
        )

    def the_terminal() -> None:
        assert not os.isatty(OPEN["file"])
        assert os.cpu_count() and time.monotonic() and len(os.urandom(4)) == 4

    def own_signals() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.raise_signal(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.setitimer(signal.ITIMER_REAL, 0)

    for need in (
        numbers,
        threads,
        pipes,
        reading,
        mapping,
        what_is_open,
        limits,
        the_terminal,
        own_signals,
    ):
        try:
            need()
        except Exception as error:
            failed[need.__name__] = repr(error)
    return failed


def copies() -> str:
    """Fork as `ckpt` does for many files, and end a copy that still works."""
    pid = os.fork()
    if not pid:
        try:
            Path("by_a_copy").touch()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    pid = os.fork()
    if not pid:
        time.sleep(600)
    os.kill(pid, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"{errno.errorcode.get(code, code)} {ended}"


def attempt(function: Deed) -> str:
    try:
        function()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    except subprocess.SubprocessError as error:
        return repr(error)
    return "done"


def main(folder: str, *parts: str) -> None:
    os.chdir(folder)
    sys.dont_write_bytecode = True
    prepare()
    OPEN["is_fenced"] = bool({"landlock", "seccomp"} & set(parts))
    before, go = [], threading.Event()

    def early() -> None:
        go.wait()
        before.append(attempt(lambda: os.mkdir("by_an_early_thread")))

    thread = threading.Thread(target=early, daemon=True)
    thread.start()
    said: dict[str, Any] = {"fence": None}
    if OPEN["is_fenced"]:
        from ckpt.bytes import fence

        if "landlock" not in parts:
            fence._restrict_paths = lambda *_: 0
        if "seccomp" not in parts:
            fence._filter_calls = lambda *_: False
        raised = fence.raise_fence(
            network="network" in parts, workers="workers" in parts
        )
        said["fence"] = [raised.landlock, raised.has_filter, raised.missing]
    go.set()
    thread.join()
    said["needs"] = needs()
    said["early thread"] = before[0]
    said["copies"] = copies() if "workers" in parts else None
    said["deeds"] = {name: attempt(function) for name, function in DEEDS.items()}
    said["victim"] = OPEN["victim"].poll()
    said["status"] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(("Seccomp:", "NoNew"))
    ]
    print(json.dumps(said), flush=True)
    OPEN["victim"].stdin.close()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

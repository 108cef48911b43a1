"""What all tests share: the samples, and the command as a user runs it."""

from __future__ import annotations

import copyreg
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from unittest import mock

import needs
import paths
import pytest
from buckets import Bucket, Front, fronted
from hypothesis import settings
from kills import Killer
from once import once, script
from paths import many
from process import ROOT, Run, close_server
from process import ckpt as in_a_process

# The same examples each time: what passes here passes there.
settings.register_profile(
    "ckpt", derandomize=True, deadline=None, max_examples=many(25, 100)
)
settings.load_profile("ckpt")

# A whole run may take one side of all paths.
side = paths.asked()
if side is not None:
    paths.take(paths.values(side))

# Each run of ckpt in a Python of its own would compile all of it anew. The bytecode
# lies where Python puts it; git ignores it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell without job control starts what runs in the background with SIGINT ignored,
# nohup ignores SIGHUP, and children inherit that.
for ignored, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, usual)


collect_ignore = needs.ignored()


def pytest_sessionfinish() -> None:
    close_server()


def pytest_runtest_setup(item: pytest.Item) -> None:
    needs.skip_marked(item)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        needs.skip_asking(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        needs.skip_asking(error)
        raise


if needs.ABSENT:

    @pytest.fixture(autouse=True)
    def no_files_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
        """No file of torch that only a missing extension reads."""
        needs.stop_writers(monkeypatch)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Of what a test or a library leaves in this process, what another test would
    notice.

    The threads of a cluster use `random`, which hypothesis must not see. tblib, which
    comes with Dask, changes how exceptions are pickled. And Dask sets variables that
    Python reads when it starts, such as PYTHONHASHSEED.
    """
    for kind, how in list(copyreg.dispatch_table.items()):
        if how.__module__.startswith("tblib") and "clusters" in sys.modules:
            del copyreg.dispatch_table[kind]
    with mock.patch.dict(os.environ):
        yield
        if "clusters" in sys.modules:
            sys.modules["clusters"].close()


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of sample checkpoints."""
    return ROOT / "sample_checkpoints"


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the ranks of sharded runs save. All tests share it, so none
    may change it.
    """
    return once(tmp_path_factory, "ranks", script("train_ranks.py"))


@pytest.fixture
def ckpt(samples: Path) -> Run:
    """Runs `ckpt ARGUMENTS` in a process of its own, among the samples, its streams
    piped.
    """

    def run(
        *arguments: str, cwd: Path = samples, input: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        done = in_a_process(*arguments, cwd=cwd, input=input.encode(), **environment)
        return subprocess.CompletedProcess(
            arguments, done.code, done.out.decode(), done.err.decode()
        )

    return run


@pytest.fixture
def folder_of_all() -> Iterator[Path]:
    """A folder that every user may enter, whatever the folders of the tests allow."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)
        Path(made).chmod(0o755)


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """Runs the command and kills it at any of its events. Its process is that of one
    module.
    """
    with Killer() as made:
        yield made


@pytest.fixture
def as_shipped() -> Iterator[None]:
    """The paths that are shipped, also in a run that takes one side: for tests of the
    paths themselves.
    """
    before = paths.now()
    paths.take(paths.SHIPPED)
    yield
    paths.take(before)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 bytes wherever something is done block by block."""
    for name, size in paths.SMALL.items():
        module, _, constant = name.rpartition(".")
        monkeypatch.setattr(import_module(module), constant, size)


@pytest.fixture(scope="session")
def front() -> Iterator[Front]:
    """A server that speaks S3, the same for all tests."""
    pytest.importorskip(
        "obstore", reason="obstore, the extra [cloud], is not installed"
    )
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with fronted() as made:
        yield made


@pytest.fixture
def s3(front: Front, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket, which the environment leads to."""
    from ckpt.ext.remote import objects

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    front.clear()
    made = Bucket(front)
    for name, value in made.variables().items():
        monkeypatch.setenv(name, value)
    objects.open_bucket.cache_clear()
    yield made
    front.released.set()
    objects.open_bucket.cache_clear()


@pytest.fixture
def fresh_torch() -> Iterator[None]:
    """No names that importing a part of torch (DTensor, nested tensors) adds to those
    of weights_only.
    """
    import torch._weights_only_unpickler as unpickler

    with mock.patch.object(unpickler, "_marked_safe_globals_set", set()):
        yield


@pytest.fixture
def group() -> Iterator[None]:
    """A group of one process, as DDP and sharded tensors need it."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=["64 bytes", "shipped"])
def nbytes(request: pytest.FixtureRequest) -> int:
    """Bytes that are several blocks and a part of one: with small blocks a few hundred,
    else some megabytes.
    """
    if request.param == "64 bytes":
        request.getfixturevalue("small_blocks")
        return 64 * 9 + 24
    return paths.LARGE

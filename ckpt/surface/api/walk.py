"""The files that paths lead to: folders walked, each file judged by its first bytes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ckpt import formats
from ckpt.bytes.far import is_url
from ckpt.bytes.location import SNAPSHOTS, is_cached_model, locate, read_file
from ckpt.bytes.source import first_bytes, irregular_text
from ckpt.formats.common.sets import following_in, is_shard
from ckpt.formats.common.zip_layout import LOCAL_MAGIC
from ckpt.formats.format import DISTRIBUTED, PERHAPS, has_checkpoint_name
from ckpt.model.errors import (
    CkptError,
    FolderError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
    is_stopped,
)
from ckpt.model.limits import Budget, Limits, json_object, parse_json
from ckpt.model.names import count_endings, is_index, natural_sort_key
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun, show

if TYPE_CHECKING:
    from ckpt.bytes.executor import Each, R, Task


MOST = 200_000
"""The most regular files of a folder that are looked at."""
MOST_FAR = 1_000
"""The most objects behind a URL of which the first bytes are read."""
_DEEPEST = 200
"""The most folders inside of each other that are entered: Python calls itself
for each.
"""
_SHARD = r"-\d{5,}-of-\d{5,}(?:\.\w{1,40})?\.(?:safetensors|bin)"
_GIT = ".git"
"""The folder of git, which no checkout can bring along. It is not entered, and named
where it is not the one of the PATH.

Folders of other version control are folders like any other: git commits them.
"""
_LEFTOVER = r"\..*\.ckpt-tmp"


class Found(NamedTuple):
    """A path to look at. `named` is set when the user typed it.

    `error` says why a folder cannot be looked at, `skipped` why a name in it is not.
    `is_other` marks a file in a folder whose first bytes are of no checkpoint. `folder`
    is the folder, as it was typed, in which `find_items_to_open` found it.
    """

    path: str
    named: bool = True
    error: CkptError | None = None
    skipped: str | None = None
    is_other: bool = False
    folder: str | None = None


def is_concern(item: Found, code: str) -> bool:
    """Tell whether a path is an error that cannot be read, by the code of its error.

    A `.bin` in a folder that never was a checkpoint is none: many are something else.
    One that holds checkpoints, or that a loader would unpickle, is one.
    """
    is_foreign = code in (UnsupportedError.code, FolderError.code)
    if item.named or not is_foreign or not item.path.lower().endswith(".bin"):
        return True
    try:
        return formats.is_checkpoint_file(item.path, Limits())
    except NotOpenedError:
        return True


def found(
    paths: Sequence[str], *, picked: bool = False, plugins: bool = False
) -> Iterator[Found]:
    """Yield what the paths lead to, folders in natural order.

    The first bytes of a file in a folder say what it is. A folder that is one
    checkpoint is one item; a file in it that does not belong to it is another. Links to
    folders are skipped, the folder of git and virtual environments are not entered.
    With `picked` a path to a file is looked at as if it were found in a folder. With
    `plugins` formats of other distributions are asked too.
    """
    for path in paths:
        if os.path.isdir(path):
            yield from _walk_folder(path, plugins)
        elif is_url(path):
            yield from _at_url(path, plugins)
        else:
            yield (
                _of_file(path, os.path.basename(path), plugins, typed=True)
                # A path that is not there is no file of another kind: a typing error in
                # a gate must not let it pass.
                if picked and os.path.exists(path)
                else Found(path)
            )


def find_items_to_open(
    paths: Sequence[str], limits: Limits, *, plugins: bool = False
) -> list[Found]:
    """As `found`, for commands that open each item: a folder that one of them can open
    stands for itself.

    A folder in which nothing is found has the `error` that opening it gives.
    """
    items: list[Found] = []
    for path in paths:
        is_far = is_url(path)
        try:
            is_folder = locate(path).is_folder() if is_far else os.path.isdir(path)
        except CkptError as failure:
            items.append(Found(path, error=failure))
            continue
        # None where one reader opens the folder as one checkpoint.
        error = (
            formats.refusal_error(path, limits, plugins=plugins) if is_folder else None
        )
        inside = [Found(path)]
        if error is not None:
            walked = (
                _walked_far(path, plugins) if is_far else _walk_folder(path, plugins)
            )
            # As ls lists them.
            in_order = sorted(walked, key=lambda item: natural_sort_key(item.path))
            inside = [item._replace(folder=path) for item in in_order]
        items += inside
        if all(item.skipped is not None or item.is_other for item in inside):
            items.append(Found(path, error=error))
    return items


def _at_url(path: str, plugins: bool) -> Iterator[Found]:
    try:
        is_folder = locate(path).is_folder()
    except CkptError as error:
        yield Found(path, error=error)
        return
    if is_folder:
        yield from _walked_far(path, plugins, named=True)
    else:
        yield Found(path)


def split_items(items: Iterable[Found]) -> tuple[list[Found], list[str]]:
    """Return the items that are to be looked at, and the paths of the other files."""
    ours: list[Found] = []
    others: list[str] = []
    for item in items:
        if item.is_other:
            others.append(item.path)
        else:
            ours.append(item)
    return ours, others


def others_text(paths: Sequence[str]) -> str:
    """Return how many files were not looked at: `21 files not looked at: 9 *.json, 4
    *.md and 8 others`.
    """
    counts = []
    for ending, count in count_endings(paths).items():
        kind = f"*{show(ending, 20)}" if ending else "without an ending"
        counts.append((count, f"{count:,} {kind}"))
    rest = sum(count for count, _ in counts[3:])
    shown = ", ".join(text for _, text in counts[:3]) + (
        f" and {counted_noun(rest, 'other')}" if rest else ""
    )
    return f"{counted_noun(len(paths), 'file')} not looked at: {shown}"


def _walk_folder(folder: str, plugins: bool) -> Iterator[Found]:
    """Yield what lies in a folder."""
    if is_cached_model(folder):
        yield from _walked_cache(folder, plugins)
        return
    # Folders that cannot be listed come last, for os.walk reports them by a call.
    refused: list[Found] = []
    taken: dict[str, list[str]] = {}
    count = 0

    for current_folder, folders, names in os.walk(
        folder, onerror=lambda error: refused.append(_unreadable_folder(error))
    ):
        is_top = current_folder == folder
        if os.path.normpath(current_folder).count(os.sep) > _DEEPEST and folders:
            folders[:] = []
            yield Found(
                os.path.normpath(current_folder), error=_nested_error(current_folder)
            )
        # os.walk goes into what is left in `folders`: links and caches are taken out.
        every = sorted(
            (name for name in folders if name != _GIT or not is_top),
            key=natural_sort_key,
        )
        folders[:] = []
        cached: list[str] = []
        for name in every:
            inner = os.path.join(current_folder, name)
            if os.path.islink(inner):
                yield Found(os.path.normpath(inner), skipped="a link to a folder")
            elif name == _GIT:
                yield Found(os.path.normpath(inner), skipped="a folder of git")
            elif os.path.lexists(os.path.join(inner, "pyvenv.cfg")):
                yield Found(
                    os.path.normpath(inner), skipped="a virtual environment of Python"
                )
            elif is_cached_model(inner):
                cached.append(inner)
            else:
                folders.append(name)
        for inner in cached:
            yield from _walked_cache(inner, plugins)
        # The files of a checkpoint above that lie in this folder.
        own: Sequence[str] = taken.pop(current_folder, ())
        is_taken = len(own) > 0
        if not is_taken:
            own = (
                formats.files_of_folder(current_folder, Limits(), plugins=plugins) or ()
            )
        if is_taken or _is_one(own):
            if not is_taken:
                yield Found(os.path.normpath(current_folder), named=False)
            files = set(own)
            names = [name for name in names if name not in files]
            for name, inside in _below_each(own).items():
                taken[os.path.join(current_folder, name)] = inside
        for name in _names_without_shards(current_folder, names, own):
            # The rest of a huge folder is an error, and not passed over.
            count += 1
            if count > MOST:
                problem = f"the folder holds over {MOST:,} files"
                yield Found(
                    folder,
                    error=UnreadableError(
                        problem, path=folder, hint="name its parts one by one"
                    ),
                )
                return
            yield _of_file(
                os.path.normpath(os.path.join(current_folder, name)), name, plugins
            )
    yield from refused


def _nested_error(folder: str) -> CkptError:
    """Return the error for a folder whose folders are not entered."""
    problem = f"folders are nested more than {_DEEPEST} deep"
    return UnreadableError(
        problem, path=os.path.normpath(folder), hint="name the inner one"
    )


def _unreadable_folder(error: OSError) -> Found:
    """Return the folder that cannot be listed. Raises the error where the command is
    stopped.
    """
    if is_stopped(error):
        raise error
    path = os.path.normpath(os.fsdecode(error.filename))
    problem = f"cannot be read: {(error.strerror or '').lower()}"
    return Found(path, error=NotOpenedError(problem, path=path))


def _walked_cache(folder: str, plugins: bool) -> Iterator[Found]:
    """As `_walk_folder`, for the folder of a model in a Hugging Face cache. Its path
    stands for the snapshot that opening it opens.

    A blob that was looked at through the link of a snapshot is not looked at again.
    """
    # A cached model has one snapshot for each revision; one of them is meant.
    main = _main_snapshot(folder)
    snapshots = os.path.join(folder, SNAPSHOTS)
    seen: set[str] = set()
    for item in () if os.path.islink(snapshots) else _walk_folder(snapshots, plugins):
        seen.update(_files_behind(item, plugins))
        is_main = main is not None and item.path == main
        yield item._replace(path=os.path.normpath(folder)) if is_main else item
    try:
        names = sorted(os.listdir(folder), key=natural_sort_key)
    except OSError as error:
        yield _unreadable_folder(error)
        return
    for name in names:
        inner = os.path.join(folder, name)
        if not os.path.isdir(inner):
            yield _of_file(os.path.normpath(inner), name, plugins)
        elif os.path.islink(inner):
            yield Found(os.path.normpath(inner), skipped="a link to a folder")
        elif name != SNAPSHOTS:
            yield from (
                item
                for item in _walk_folder(inner, plugins)
                if os.path.realpath(item.path) not in seen
            )


def _main_snapshot(folder: str) -> str | None:
    """The path of the snapshot that the folder of a cached model stands for, or
    None.
    """
    from ckpt.formats.common.cached import (
        snapshot_of,
    )  # here: few folders lie in a cache

    try:
        return os.path.normpath(snapshot_of(locate(folder), Limits()).name)
    except CkptError:
        return None


def _files_behind(item: Found, plugins: bool) -> Iterator[str]:
    """Yield the real paths of the files that are looked at with an item."""
    if item.skipped is not None or item.error is not None:
        return
    is_folder = os.path.isdir(item.path)
    folder = item.path if is_folder else os.path.dirname(item.path)
    if not is_folder:
        yield os.path.realpath(item.path)
    if is_folder:
        own = formats.files_of_folder(folder, Limits(), plugins=plugins) or ()
    else:
        own = ()
    names = os.listdir(folder) if is_folder or is_index(item.path) else []
    shards = set(names).difference(_names_without_shards(folder, names, own))
    for name in shards.union(own):
        yield os.path.realpath(os.path.join(folder, name))


def _below_each(own: Iterable[str]) -> dict[str, list[str]]:
    """Return the files of a checkpoint in each folder right below it, as paths from
    there.

    Only these files are looked at with it: any other file in such a folder is one of
    its own.
    """
    files: dict[str, list[str]] = {}
    for file in own:
        folder, slash, rest = file.partition("/")
        if slash:
            files.setdefault(folder, []).append(rest)
    return files


def _is_one(own: Sequence[str]) -> bool:
    """Tell whether a folder is one checkpoint by the files of it that belong together,
    or a save that was interrupted.
    """
    # Several files of one checkpoint make a folder one; so does a part of a larger
    # save.
    if len(own) > 1:
        return True
    for name in own:
        if name.startswith(".") or name.endswith(DISTRIBUTED):
            return True
        if is_shard(name.rpartition("/")[2]):
            return True
    return False


def checkpoint_around(path: str) -> tuple[str, int] | None:
    """Return the folder around a file and the number of its files, where it is one
    checkpoint and the file a part of it; or None.
    """
    folder, name = os.path.split(path)
    folder = folder or os.curdir
    own = formats.files_of_folder(folder, Limits()) or ()
    try:
        names = os.listdir(folder)
    except OSError:
        return None  # a file can be read where its folder cannot be listed
    shards = {*names}.difference(_names_without_shards(folder, names, own))
    parts = shards.union(own if _is_one(own) else ())
    if name not in parts:
        return None
    return folder, len(shards.union(own))


def _names_without_shards(
    folder: str, names: Sequence[str], own: Sequence[str]
) -> list[str]:
    """The names in a folder, in natural order, without the shards that an index names,
    or that the first one opens.
    """
    # Most folders have no shards, so that no index is read.
    has_shards = any(re.search(f"{_SHARD}$", name) for name in names)
    if has_shards:
        indices = [name for name in {*names, *own} if is_index(name)]
    else:
        indices = []
    indexed = following_in(names)
    for index in indices:
        try:
            text = read_file(
                locate(f"{folder.rstrip('/')}/{index}"), Limits(), "the index"
            )
            content = parse_json(text, "index", Budget(Limits(), len(text)))
        except CkptError:
            continue  # opening it says why it cannot be read
        # Only what the index is opened with: a name elsewhere in it would hide its
        # file.
        if isinstance(content, dict):
            weight_map = json_object(content).get("weight_map")
        else:
            weight_map = None
        if isinstance(weight_map, dict):
            files = {file for file in weight_map.values() if isinstance(file, str)}
            indexed.update(file for file in files if re.search(f"{_SHARD}$", file))
    return sorted((name for name in names if name not in indexed), key=natural_sort_key)


def _of_file(path: str, name: str, plugins: bool, *, typed: bool = False) -> Found:
    """A file in a folder, or one whose path was `typed`: one to look at, or another
    one.
    """
    # A temporary file of a killed run has a name of ours.
    is_leftover = not typed and re.fullmatch(_LEFTOVER, name) is not None
    is_named_so = has_checkpoint_name(name)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        # A link that leads nowhere.
        item = Found(path, named=False, is_other=not is_named_so)
    except OSError:  # opening it says why it cannot be read
        item = Found(path, named=False)
    else:
        if is_named_so and not stat.S_ISREG(mode):
            return Found(path, named=False, skipped=irregular_text(mode))
        item = Found(path, named=False, is_other=not stat.S_ISREG(mode))
        if not is_named_so and not item.is_other:
            item = _by_bytes(item, plugins, cut_off=not is_leftover)
    if is_leftover and item.is_other:
        # What a loader would take is judged: a name alone hides no file.
        return item._replace(
            is_other=False, skipped="a leftover of a write that was interrupted"
        )
    return item


def _by_bytes(item: Found, plugins: bool, *, cut_off: bool) -> Found:
    """A file in a folder whose name does not say what it is: one to look at or another
    one, by its first bytes. One that was `cut_off` may be the save of a run; a leftover
    of a write always is cut off.
    """
    try:
        return item._replace(
            is_other=not formats.is_checkpoint_file(
                item.path, Limits(), plugins=plugins, cut_off=cut_off
            )
        )
    except NotOpenedError as error:
        return item._replace(error=error)


def _walked_far(path: str, plugins: bool, *, named: bool = False) -> Iterator[Found]:
    """As `_walk_folder`, for a folder behind a URL."""
    from ckpt.bytes.executor import Task, Waiting  # here: as in `choose_executor`

    # All names first: how many there are decides whether their bytes are read.
    objects = list(_find_objects(path, plugins, named, is_top=True))
    files = [
        item for item in objects if item.error is None and not item.path.endswith("/")
    ]
    is_looked_into = len(files) <= MOST_FAR

    def judged(item: Found) -> Found:
        may_be_one = item.path.lower().endswith(PERHAPS)
        is_named_so = may_be_one or has_checkpoint_name(item.path)
        if (
            item.error is not None
            or item.named
            or item.folder is not None
            or is_named_so
        ):
            return item._replace(folder=None)
        if is_looked_into:
            return _by_bytes(item, plugins, cut_off=True)
        return item._replace(is_other=True)

    yield from Waiting().each([Task(judged, (item,)) for item in objects])
    if not is_looked_into:
        yield Found(
            path,
            named=False,
            skipped=f"it holds over {MOST_FAR:,} objects: only names were looked at",
        )


def _find_objects(
    path: str,
    plugins: bool,
    named: bool = False,
    taken: Sequence[str] = (),
    *,
    is_top: bool = False,
) -> Iterator[Found]:
    """The objects behind a URL. One that is a checkpoint of several has a `folder`.

    `taken` are the files in it that the checkpoint above holds.
    """
    try:
        names = locate(path).names()
    except CkptError as error:
        yield Found(path, named=named, error=error)
        return
    own = taken or formats.files_of_folder(path, Limits(), plugins=plugins) or ()
    below: dict[str, list[str]] = {}
    if taken or _is_one(own):
        if not taken:
            yield Found(path, named=named, folder=path)
        files, below = set(own), _below_each(own)
        names = [name for name in names if name not in files]
    for name in _names_without_shards(path, names, own):
        inner = f"{path.rstrip('/')}/{name}"
        if not name.endswith("/"):
            yield Found(inner, named=False)
        elif name[:-1] != _GIT:
            yield from _find_objects(inner, plugins, taken=below.get(name[:-1], ()))
        elif not is_top:
            yield Found(inner, skipped="a folder of git")


def list_archives(folder: str) -> list[str]:
    """The zip archives below a folder, whatever they are called, in natural order.
    Links are skipped.
    """
    archive_paths = []
    for current_folder, folders, names in os.walk(folder):
        if os.path.normpath(current_folder).count(os.sep) > _DEEPEST and folders:
            raise _nested_error(current_folder)
        folders.sort(key=natural_sort_key)
        paths = (
            os.path.normpath(os.path.join(current_folder, name))
            for name in sorted(names, key=natural_sort_key)
        )
        archive_paths += [path for path in paths if _is_archive(path)]
    return archive_paths


def _is_archive(path: str) -> bool:
    is_file = os.path.isfile(path) and not os.path.islink(path)
    return is_file and first_bytes(path, len(LOCAL_MAGIC)) == LOCAL_MAGIC


FEW = 8
"""Files for which no process is started: they are read before it is."""


def choose_executor(tasks: Sequence[Task[R]], jobs: int | None = None) -> Each:
    """Return the processes that run a task for each file, `jobs` of them.

    For files behind URLs, and in a process that has threads, they are threads. Without
    a number this one runs a few tasks, and copies of it run many.
    """
    from ckpt.bytes.executor import (
        Forks,
        Waiting,
        is_alone,
    )  # here: one file needs no others

    # The first argument of such a task is the file that it is about.
    items = chain.from_iterable(task.arguments[:1] for task in tasks)
    if any(isinstance(item, Found) and is_url(item.path) for item in items):
        # They wait for a server, so that processes would win nothing.
        return Waiting(jobs)
    if not is_alone():
        return Waiting(jobs or 1)
    return Forks(jobs) if jobs is not None or len(tasks) >= FEW else Forks(1)


def empty_folders(paths: Sequence[str], seen: Iterable[str]) -> list[str]:
    """The folders among the paths below which none of the `seen` ones lies."""
    names = set(map(os.path.normpath, seen))
    return [
        path for path in paths if os.path.isdir(path) and not _is_any_below(path, names)
    ]


def nothing_in(folder: str) -> CkptError:
    """The error for a folder without a checkpoint."""
    return UnsupportedError("no checkpoint in this folder", path=folder)


def _is_any_below(folder: str, paths: Iterable[str]) -> bool:
    """Tell whether one of the paths is the folder or lies in it."""
    folder = os.path.normpath(folder)
    start = "" if folder == os.curdir else os.path.join(folder, "")
    return any(path == folder or path.startswith(start) for path in paths)

"""The saves in the folder of a run, and what points to them. Only what lies right in
the folder may ever go.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator

from ckpt import formats
from ckpt.bytes.far import is_url
from ckpt.bytes.location import is_cached_model, locate, read_file
from ckpt.bytes.source import read_failure_reason
from ckpt.ext.prune.identity import Identity, identity_of
from ckpt.ext.prune.naming import (
    Place,
    SaveName,
    is_called,
    is_in_work,
    is_one_of_several,
    parse_name,
    split_ending,
)
from ckpt.ext.prune.removal import is_hidden, is_left_over
from ckpt.formats.common.sets import is_shard
from ckpt.formats.format import has_checkpoint_name
from ckpt.model.errors import CkptError, NotOpenedError, UnreadableError, UsageError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.names import is_index, natural_sort_key
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, pasted_path, show

TRAINER = "trainer_state.json"
"""The file in which the Trainer of transformers keeps its metrics. It writes it
last.
"""
_POINTER = re.compile(
    r"(?i)(?:.*[._-])?(?:latest|last|best|newest|checkpoint)(?:[._-].*)?"
)
"""Names of small files of text that may name a save: `latest`, `last_checkpoint`,
`latest_checkpointed_iteration.txt`.
"""
_POINTER_BYTES = 4096
_MOST = 200_000
"""The most names of a folder."""
_DEPTH = 3
"""Folders below the folder of a run that are searched for the one that is meant."""


class Run(NamedTuple):
    """The folder of a run, and what it is."""

    path: str
    """The path as it was typed."""
    device: int
    inode: int


class Candidate(NamedTuple):
    """A file or folder right in the folder of a run that may be a save, or why it is
    none.
    """

    name: str
    path: str
    parsed: SaveName
    identity: Identity | None = None
    passed_over: str | None = None
    """The reason why it is never looked at, and stays."""
    is_left_over: bool = False
    """True for what an interrupted removal has left."""
    links: int = 1
    """The hard links to it."""


class Found(NamedTuple):
    """The contents of the folder of a run. `pointers` are names of candidates with the
    reasons why they are needed.
    """

    run: Run
    candidates: tuple[Candidate, ...]
    pointers: tuple[tuple[str, str], ...] = ()


def find_saves(
    path: str, wanted: Iterable[str], limits: Limits, *, plugins: bool = False
) -> Found:
    """Return the saves in the folder of a run. `wanted` are names of metrics. Raises
    CkptError for what is no such folder.
    """
    run = _run_at(path)
    candidates: list[Candidate] = []
    links: list[tuple[str, str]] = []
    # Only what lies right in the folder is looked at, as only that may ever go.
    try:
        names = sorted(os.listdir(path), key=natural_sort_key)
    except OSError as error:
        raise NotOpenedError(read_failure_reason(error), path=path) from None
    if len(names) > _MOST:
        raise UnreadableError(f"the folder holds over {_MOST:,} names", path=path)
    for name in names:
        candidate = _candidate_at(run, name, tuple(wanted), limits, plugins)
        if candidate is not None:
            candidates.append(candidate)
        if os.path.islink(os.path.join(path, name)):
            links.append((os.path.join(path, name), name))
    # Without any candidate the wrong folder was named.
    if not any(row.passed_over is None for row in candidates):
        raise _no_saves(path, limits, plugins)
    pointers = _pointers(run, names, links, candidates, limits)
    return Found(run, tuple(candidates), pointers)


def find_pointers(run: Run, saves: Iterable[str]) -> dict[str, str]:
    """Return the saves of a run that something points to by now, each with what
    does.
    """
    try:
        names = os.listdir(run.path)
    except OSError:
        # The folder may have gone: then nothing can be removed from it.
        return {}  # the folder went away; its saves cannot be removed either
    paths = [(os.path.join(run.path, name), name) for name in names]
    links = [(path, name) for path, name in paths if os.path.islink(path)]
    candidates = [
        Candidate(name, os.path.join(run.path, name), parse_name(name))
        for name in saves
    ]
    return dict(_pointers(run, names, links, candidates, Limits()))


def _pointers(
    run: Run,
    names: Iterable[str],
    links: Iterable[tuple[str, str]],
    candidates: Iterable[Candidate],
    limits: Limits,
) -> tuple[tuple[str, str], ...]:
    """The candidates that links and texts point to, with what does."""
    # `last.ckpt` beside the folder points into it as well.
    every, saves = [*links, *_links_above(run.path)], list(candidates)
    texts = [
        _Text(os.path.join(run.path, name), name) for name in names if _is_pointer(name)
    ]
    texts += _texts_above(run.path)
    return (*_links_to(run, every, saves), *_texts_to(texts, saves, limits))


def _run_at(path: str) -> Run:
    """Return the folder at a path. Raises CkptError for what can never be the folder of
    one run.
    """
    if is_url(path):
        raise UsageError("ckpt prune works on folders of this machine", path=path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise NotOpenedError(read_failure_reason(error), path=path) from None
    except ValueError:
        raise NotOpenedError("not a file name: it holds a NUL", path=path) from None
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(
            "not the folder of a run",
            path=path,
            hint="ckpt prune takes a folder of checkpoints",
        )
    # The root of the disk, or of a user, is a mistake in the command.
    real = os.path.realpath(path)
    if real in (os.sep, os.path.realpath(os.path.expanduser("~"))):
        raise UsageError(
            "not the folder of a run",
            path=path,
            hint="name the folder that holds the checkpoints",
        )
    # Any folder above may be the one of the cache.
    above = real
    while above != os.path.dirname(above):
        if is_cached_model(above):
            problem = "lies in a Hugging Face cache, whose files belong together"
            raise UsageError(problem, path=path, hint="hf cache rm removes revisions")
        above = os.path.dirname(above)
    return Run(path, status.st_dev, status.st_ino)


def _candidate_at(
    run: Run, name: str, wanted: tuple[str, ...], limits: Limits, plugins: bool
) -> Candidate | None:
    """Return the candidate of a name, or None for what is no checkpoint by its name and
    its first bytes.
    """
    path = os.path.join(run.path, name)
    parsed = parse_name(name, wanted)
    try:
        # Not `stat`: a link is told from what it leads to.
        status = os.lstat(path)
    except OSError:
        return None  # it went away while the folder was listed
    is_folder = stat.S_ISDIR(status.st_mode)
    # A name that a removal has given.
    if is_hidden(name):
        return _left_over_at(path, name, parsed)
    if name.startswith("."):
        return None
    # A number alone counts for a file. For a folder it counts only if it is the whole
    # name, as in `run/500`.
    is_counted = bool(parsed.place) or (
        parsed.number is not None and (not is_folder or name.isdecimal())
    )
    if stat.S_ISLNK(status.st_mode):
        is_checkpoint = os.path.isdir(path) or has_checkpoint_name(name)
        if not (is_counted and is_checkpoint):
            return None
        return Candidate(name, path, parsed, passed_over="a link, which stays")
    if is_folder and not is_counted:
        return None
    if not is_folder:
        # Pipes and devices are never opened.
        if not stat.S_ISREG(status.st_mode):
            return None
        if not _is_checkpoint(path, name, limits, plugins):
            return None
    why = _why_passed_over(run, path, name, status, is_counted)
    if why is not None:
        return Candidate(name, path, parsed, passed_over=why)
    # The identity is taken before anything is read: a change from here on is seen.
    try:
        identity = identity_of(path)
    except CkptError as error:
        return Candidate(name, path, parsed, passed_over=error.problem)
    except OSError as error:
        return Candidate(name, path, parsed, passed_over=read_failure_reason(error))
    why = None
    if any(member.device != run.device for member in identity.members):
        why = "another disk is mounted in it"
    elif _holds_run(identity):
        why = "it holds several saves, as a run of its own"
    if why is not None:
        return Candidate(name, path, parsed, passed_over=why)
    links = 1 if is_folder else status.st_nlink
    return Candidate(name, path, parsed, identity, links=links)


def _why_passed_over(
    run: Run, path: str, name: str, status: os.stat_result, is_counted: bool
) -> str | None:
    """Return the reason why a checkpoint is no save of a series by its name and place,
    or None.
    """
    if is_in_work(name):
        return "by its name it is still being written"
    # A file that is mounted over another one is not this run's.
    if status.st_dev != run.device:
        return "it lies on another disk"
    if is_shard(name) or is_one_of_several(name) or is_index(name.lower()):
        return "one of the files of a checkpoint in shards"
    if is_called(name):
        return "by its name it is kept apart from a series"
    if not is_counted:
        return "no epoch or step in its name"
    if os.path.lexists(os.path.join(path, ".git")):
        return "it is a git repository"
    return None


def _holds_run(identity: Identity) -> bool:
    """Tell whether several saves of steps lie in one folder of a folder:
    `round_1/checkpoint-100` and `-200`.

    One is usual: DeepSpeed puts `global_step500` into `checkpoint-500` of the Trainer.
    """
    places: dict[str, Place] = {}
    for member in identity.members:
        above, _, name = member.path.rpartition("/")
        if not member.is_folder and not has_checkpoint_name(name):
            continue
        # By folder: DeepSpeed's inside of one save has one place.
        place = parse_name(name).place
        if place and places.setdefault(above, place) != place:
            return True
    return False


def _left_over_at(path: str, name: str, parsed: SaveName) -> Candidate | None:
    """Return what an interrupted removal has left, or None where that went away."""
    try:
        identity = identity_of(path)
    except (OSError, CkptError):
        return None
    # The token in the name is of this very file: another one is not removed.
    if is_left_over(name, identity):
        return Candidate(name, path, parsed, identity, is_left_over=True)
    return Candidate(
        name,
        path,
        parsed,
        passed_over="named like the rest of a removal, and is something else",
    )


def _is_checkpoint(path: str, name: str, limits: Limits, plugins: bool) -> bool:
    if has_checkpoint_name(name):
        return True
    try:
        return formats.is_checkpoint_file(path, limits, plugins=plugins)
    # A look into the first bytes may fail; then the file is no save.
    except CkptError:
        return False


def _no_saves(path: str, limits: Limits, plugins: bool) -> CkptError:
    """Return the error for a folder in which no save lies, with the folder below it
    that is meant, if there is one.
    """
    below = [
        folder
        for folder in _folders_below(path, _DEPTH)
        if _holds_saves(folder, limits, plugins)
    ]
    # Folders alone: a command would lack the rules that were typed, and let more go.
    pasted = [whole for whole in map(pasted_path, below) if whole is not None]
    hint = None
    if pasted:
        hint = f"name {'one of ' if len(below) > 1 else ''}{and_more(pasted, 3)}"
    return UsageError(
        "no save with an epoch or step in its name lies right in this folder",
        path=path,
        hint=hint,
    )


def _folders_below(path: str, depth: int) -> Iterator[str]:
    """Yield the folders below a folder, a bounded number."""
    try:
        with os.scandir(path) as entries:
            inner = sorted(
                entry.path
                # `zip` with a range ends the listing of a large folder early.
                for entry, _ in zip(entries, range(_MOST_LOOKED), strict=False)
                if entry.is_dir(follow_symlinks=False)
                and not entry.name.startswith(".")
            )
    except OSError:
        return
    for folder in inner[:_MOST_FOLDERS]:
        yield folder
        if depth > 1:
            yield from _folders_below(folder, depth - 1)


_MOST_LOOKED, _MOST_FOLDERS = 2000, 50
"""Names of one folder that are looked at, and folders in it that are entered, for a
hint.
"""


def _holds_saves(folder: str, limits: Limits, plugins: bool) -> bool:
    """Tell whether saves lie right in a folder, by their names."""
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry, _ in zip(entries, range(_MOST_LOOKED), strict=False)
                if entry.is_dir(follow_symlinks=False)
                or has_checkpoint_name(entry.name)
            ]
    except OSError:
        return False
    return any(parse_name(name).place for name in names)


# --- what points to a save ------------------------------------------------------------


class _Text(NamedTuple):
    """A small file that may name a save. `run` is the folder of the run, for a text
    above it.
    """

    path: str
    shown: str
    run: str | None = None


def _links_above(path: str) -> list[tuple[str, str]]:
    """The links beside the folder of a run: `last.ckpt` may lead into
    `checkpoints/`.
    """
    # Not the path as it was typed, which may be a link itself.
    above = os.path.dirname(os.path.realpath(path))
    names = _names_above(above, is_link=True)
    return [(os.path.join(above, name), f"../{name}") for name in names]


def _texts_above(path: str) -> list[_Text]:
    """The small files of text beside the folder of a run: `latest` may name
    `checkpoints/epoch_3.pth`.
    """
    run = os.path.realpath(path)
    above = os.path.dirname(run)
    names = filter(_is_pointer, _names_above(above, is_link=False))
    return [_Text(os.path.join(above, name), f"../{name}", run) for name in names]


def _names_above(above: str, *, is_link: bool) -> list[str]:
    """The names of the links in the folder above a run, or of its files."""
    names: list[str] = []
    try:
        with os.scandir(above) as entries:
            for entry, _ in zip(entries, range(_MOST), strict=False):
                is_wanted = entry.is_symlink() if is_link else entry.is_file()
                if is_wanted:
                    names.append(entry.name)
    except OSError:
        return []
    return sorted(names)


def _is_pointer(name: str) -> bool:
    return _POINTER.fullmatch(os.path.splitext(name)[0]) is not None


def _links_to(
    run: Run, links: Iterable[tuple[str, str]], candidates: Iterable[Candidate]
) -> Iterator[tuple[str, str]]:
    """Yield the candidates that links lead to, or into."""
    real = os.path.realpath(run.path)
    names = {candidate.name for candidate in candidates}
    for path, shown in links:
        target = os.path.realpath(path)
        # The separator at the end keeps `run2` out of `run`.
        if not target.startswith(os.path.join(real, "")):
            continue
        # A link may lead to a file inside of a save: the save is what is needed.
        first = target[len(real) :].lstrip(os.sep).partition(os.sep)[0]
        if first in names:
            yield first, f"{show(shown, 60)} links to it"


def _texts_to(
    texts: Iterable[_Text], candidates: Iterable[Candidate], limits: Limits
) -> Iterator[tuple[str, str]]:
    """Yield the candidates that small files of text name: `latest` of DeepSpeed,
    `last_checkpoint` of detectron2.
    """
    every = list(candidates)
    names = {candidate.name for candidate in every}
    for pointer in texts:
        # A save with the name of a pointer is a save.
        is_save = pointer.run is None and pointer.shown in names
        if is_save or not os.path.isfile(pointer.path):
            continue
        try:
            if os.path.getsize(pointer.path) > _POINTER_BYTES:
                continue
            text = read_file(locate(pointer.path), limits, pointer.shown).decode()
        except (CkptError, OSError, UnicodeDecodeError):
            continue
        why = f"{show(pointer.shown, 60)} names it"
        for candidate in every:
            if _names(text, candidate.name, pointer.run):
                yield candidate.name, why
        # Megatron writes the number alone.
        # At most 18 digits: a longer number is no step.
        if text.strip().isdecimal() and len(text.strip()) < 19:
            for candidate in every:
                if dict(candidate.parsed.place).get("step") == int(text):
                    yield candidate.name, why


def _names(text: str, name: str, run: str | None) -> bool:
    """Tell whether a text has the name of a save as words of its own, whole or without
    its ending.

    `run` is the folder of the run for a text above it, where a path may lead to a save
    of another run.
    """
    stem = split_ending(name)[0]
    # A number alone would be found in any text.
    parts = {name, name if stem.isdecimal() else stem}
    for part in parts:
        if part not in text:
            continue
        # Words of their own: `epoch_1` is not in `epoch_10`, nor in `my_epoch_1`. The
        # group is the folder before it, if there is one.
        pattern = rf"(?<![\w.-])(?:([\w.-]+)[/\\])?{re.escape(part)}(?![\w-]|\.\w)"
        for match in re.finditer(pattern, text):
            if run is None or _leads_into(match[1], run):
                return True
    return False


def _leads_into(folder: str | None, run: str) -> bool:
    """Tell whether a path through a folder leads into the run, unless it is another
    folder beside it.
    """
    if folder is None:
        return True
    beside = os.path.join(os.path.dirname(run), folder)
    # A path of another machine may name a folder that is not here: that is no reason to
    # let the save go.
    return not os.path.isdir(beside) or os.path.realpath(beside) == run


def best_of_trainer(path: str, limits: Limits) -> str | None:
    """Return the name of the best save by a `trainer_state.json` in a folder,
    or None.
    """
    document = trainer_state(path, limits)
    best = None if document is None else document.get("best_model_checkpoint")
    if not isinstance(best, str):
        return None
    # The path is the one on the machine of the run, which may be Windows.
    return best.replace("\\", "/").rstrip("/").rpartition("/")[2]


def trainer_state(path: str, limits: Limits) -> dict[str, object] | None:
    """Return the content of the `trainer_state.json` in a folder, or None where there
    is none that can be read.
    """
    file = os.path.join(path, TRAINER)
    # A link may lead out of the save.
    if os.path.islink(file) or not os.path.isfile(file):
        return None
    try:
        data = read_file(locate(file), limits, TRAINER)
        document = parse_json(data, TRAINER, Budget(limits, len(data)), constants=True)
    except CkptError:
        return None
    return dict(document) if isinstance(document, dict) else None

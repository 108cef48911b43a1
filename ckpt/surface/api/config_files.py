"""`--with-config`: config.json, the tokenizer and their like go along with the weights,
so that a folder loads as a model.

They are texts and tables of a tokenizer. Code is never carried along.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ckpt import formats
from ckpt.bytes import target
from ckpt.bytes.far import is_url
from ckpt.bytes.location import Alone, Location, locate
from ckpt.bytes.source import Given, read_limited
from ckpt.commands.rewriting.report import (
    Change,
    ConfigValue,
    Leftover,
    RewriteReport,
)
from ckpt.formats import save
from ckpt.formats.format import CHECKPOINTS
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, UnsupportedError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json, and_more, pasted_path, show

_CARRIED = re.compile(
    r"""
      (.+_)?config\.json                # config.json, generation_config.json …
    | (tokenizer|added_tokens|special_tokens_map|normalizer|vocab|chat_template)\.json
    | .+\.(model|tiktoken|jinja)        # SentencePiece, tiktoken, templates of a chat
    | (vocab|merges)\.(txt|bpe)
    | (README|LICENSE|NOTICE)(\.(md|rst|txt|html?))?
    """,
    re.VERBOSE,
)
"""The files that the loaders of Hugging Face look for beside the weights, and those
that say who made them and what is allowed.
"""
_OF_PEOPLE = re.compile(r"README|LICENSE|NOTICE")
_STEMS = ("adapter_model", "diffusion_pytorch_model")
"""Names of weights files that loaders look for, other than `model`."""


class ConfigFile(NamedTuple):
    """A small file that is carried along."""

    name: str
    content: bytes
    to: target.Target

    def write(self) -> None:
        """Write it to its place. Raises WriteError."""
        with target.writing_file(self.to, len(self.content)) as sink:
            sink.write(self.content)


def weights_place(path: str, out: str | None, format: str) -> str:
    """Return the place of the weights in the folder `out`, under the name that loaders
    look for. Raises UsageError.

    `path` is the checkpoint that is read.
    """
    if out is None:
        raise UsageError("--with-config: where to write?", path=path, hint="-o FOLDER")
    if is_url(out):
        raise UsageError("--with-config writes local files only", path=out)
    if format != save.SHARD_FORMAT:
        raise UsageError(
            f"--with-config goes with {save.SHARD_FORMAT}, not with {format}", path=path
        )
    # OUT is the name of a folder here, and often given as that of a file.
    is_file = os.path.lexists(out) or out.endswith((*CHECKPOINTS, ".json"))
    if is_file and not os.path.isdir(out):
        named = os.path.dirname(out) or os.path.splitext(out)[0]
        folder = pasted_path(named)
        is_taken = folder is None or (
            os.path.lexists(named) and not os.path.isdir(named)
        )
        hint = None if is_taken else f"-o {folder}"
        raise UsageError("--with-config: OUT is a folder", path=out, hint=hint)
    # The name that the weights have tells which loader looks for it.
    names = _folder_of(path).names()
    stem = next(
        (stem for stem in _STEMS if any(name.startswith(stem) for name in names)),
        "model",
    )
    return os.path.join(out, f"{stem}.{save.SHARD_FORMAT}")


def config_files(
    path: str, folder: str, limits: Limits, *, force: bool
) -> tuple[list[ConfigFile], list[Leftover]]:
    """Read the files that are carried from beside `path` into `folder`, and list the
    code, which is not carried along.

    Raises UsageError, CkptError. A link is followed only inside of one Hugging Face
    cache: a folder from strangers cannot name a file of yours.
    """
    beside = _folder_of(path)
    every = beside.names()
    names = _carried_names(every)
    if not _has_config(names):
        problem = "--with-config finds no config.json beside the weights"
        alone = pasted_path(f"{folder.rstrip('/')}.{save.SHARD_FORMAT}")
        hint = None if alone is None else f"-o {alone} writes the weights alone"
        raise UsageError(problem, path=show(path, None), hint=hint)
    files: list[ConfigFile] = []
    code: list[Leftover] = []
    for name in names:
        # Read now, though written last: nothing is written where one of them lacks.
        source = beside.child(name, "cache").open()
        try:
            content = read_limited(source, limits.index_bytes, "index-bytes", name)
            like = target.list_status(source.status)
        finally:
            source.close()
        if _runs_code(content, limits):
            code.append(Leftover(name, "runs code, and is not carried along"))
            continue
        to = target.target(os.path.join(folder, name), force=force, parents=True)
        files.append(ConfigFile(name, content, to._replace(like=like)))
    code += [
        Leftover(name, "code, which is not carried along")
        for name in every
        if name.endswith(".py")
    ]
    return files, code


def _runs_code(content: bytes, limits: Limits) -> bool:
    """Tell whether a file that is called a text or a table is a pickle that imports
    what ckpt does not know, or a checkpoint that ckpt refuses.
    """
    if not content:
        return False
    try:
        with formats.open(Alone(Given(content)), limits) as checkpoint:
            return any(row.group != "known" for row in checkpoint.imports)
    except UnsupportedError:
        # Its bytes are those of no checkpoint.
        return False
    except CkptError:
        return True


def with_texts_left(report: RewriteReport, folder: Checkpoint) -> RewriteReport:
    """The report with the tokenizer and the other files that a model is opened with and
    a single file of weights has no room for.
    """
    if is_url(folder.path) or not os.path.isdir(folder.path):
        return report
    told = {member.file for member in folder.members}
    names = [
        name
        for name in _carried_names(_folder_of(folder.path).names())
        if name not in told and not _OF_PEOPLE.match(name)
    ]
    if not names:
        return report
    shown = and_more([show(name, 60) for name in names], 4)
    noun = "a file" if len(names) == 1 else "files"
    row = Leftover(shown, f"{noun} of the folder")
    return report._replace(left_out=(*report.left_out, row))


def other_dtypes(files: Sequence[ConfigFile], report: RewriteReport) -> list[Leftover]:
    """The configs that name another dtype than the weights were cast to: loaders cast
    them back to it.
    """
    cast = [change.after for change in report.changes if change.kind == "dtype"]
    if not cast:
        return []
    # A config that names a dtype which some weights still have is right for these.
    now = {entry.tensor.dtype.name for entry in report.result.tensors}
    rows: list[Leftover] = []
    for file in files:
        dtype = _dtype_of(file.content) if file.name == "config.json" else None
        if dtype is not None and dtype not in now:
            text = (
                f"says dtype {dtype}, so transformers casts the weights of {cast[0]} "
                "to that"
            )
            rows.append(Leftover(file.name, text, hint=f"set its dtype to {cast[0]}"))
    return rows


def with_config_values(
    files: Sequence[ConfigFile], report: RewriteReport
) -> tuple[list[ConfigFile], RewriteReport]:
    """The files with the values that config.json must have for the result, and the
    report that says so.
    """
    made: list[ConfigFile] = []
    for file in files:
        for wanted in report.config if file.name == "config.json" else ():
            found = _set_value(file.content, wanted)
            # A config that has no place for the value stays as it is, and the report
            # says so.
            if found is None:
                continue
            content, before = found
            file = file._replace(content=content)
            report = _with_value_set(report, wanted, before)
        made.append(file)
    return made, report


def _with_value_set(
    report: RewriteReport, wanted: ConfigValue, before: Json
) -> RewriteReport:
    """The report after a value of config.json was set: nobody has to do it by hand."""
    change = Change(
        "value",
        None if before is None else json.dumps(before),
        json.dumps(wanted.after),
        1,
        "",
        name=f"config.json: {wanted.key}",
    )
    # The advice to set it by hand is done.
    end = f": {wanted.text}"
    rows = [row._replace(what=row.what.removesuffix(end)) for row in report.left_alone]
    return report._replace(changes=(*report.changes, change), left_alone=tuple(rows))


def _set_value(content: bytes, wanted: ConfigValue) -> tuple[bytes, Json] | None:
    """A config.json with a value, and what it said before; or None where that has no
    place in it, or the document cannot be written again.

    A model of several parts has the values of its text model in a part of their own.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    inner = document.get("text_config")
    # A model of pictures and texts keeps the values of its text part apart.
    parts = [document, inner] if isinstance(inner, dict) else [document]
    places = [part for part in parts if wanted.key in part]
    # Another value than the expected one may be there on purpose.
    if wanted.before is not None:
        places = [part for part in places if part[wanted.key] == wanted.before]
    elif not places:
        places = [document]
    # A list of the labels wins over their number, and only the user knows the names.
    if wanted.key == "num_labels" and any("id2label" in part for part in parts):
        return None
    if not places:
        return None
    before = places[0].get(wanted.key)
    for part in places:
        part[wanted.key] = wanted.after
    written = document_bytes(document)
    return None if written is None else (written, before)


def document_bytes(document: Json) -> bytes | None:
    """Return a JSON document as transformers writes it, or None where it is nested too
    deep. Half a surrogate, which no UTF-8 has, stays an escape.
    """
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False)
        try:
            return f"{text}\n".encode()
        except UnicodeEncodeError:
            return f"{json.dumps(document, indent=2)}\n".encode()
    except RecursionError:
        return None


def _dtype_of(content: bytes) -> str | None:
    """The dtype that a config.json names, as torch calls it; `torch_dtype` is the older
    word.
    """
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        return None  # the loader says so
    for key in ("dtype", "torch_dtype"):
        value = config.get(key) if isinstance(config, dict) else None
        if isinstance(value, str):
            return value.removeprefix("torch.")
    return None


def has_config(path: str) -> bool:
    """Tell whether a folder of this machine has a config.json, which loaders read
    together with the weights.
    """
    return _has_config(_carried_names(locate(path).names()))


@contextmanager
def with_folder_hint(path: str | None, out: str | None) -> Iterator[None]:
    """Name --with-config where the ending of `out` names no format, and `path` has a
    config; else a file in the folder, where `out` ends with a slash.

    Who types a folder as OUT of a model of Hugging Face means a model that loads there.
    """
    try:
        yield
    except UsageError as error:
        is_about_out = (
            error.path is not None
            and out is not None
            and error.hint is not None
            and error.path.rstrip("/") == out.rstrip("/")
            and not os.path.lexists(out)
        )
        if (
            is_about_out
            and path is not None
            and not is_url(path)
            and os.path.isdir(path)
        ):
            folder = pasted_path(os.path.join(str(out), ""))
            if folder is not None and has_config(path):
                error.hint = f"-o {folder} --with-config, or {error.hint}"
        elif is_about_out and path is not None and str(out).endswith("/"):
            stem = os.path.splitext(os.path.basename(path.rstrip("/")))[0]
            file = pasted_path(os.path.join(str(out), f"{stem}.{save.SHARD_FORMAT}"))
            if file is not None and not is_url(str(out)):
                error.hint = f"-o {file} --parents, or {error.hint}"
        raise


def _carried_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if _CARRIED.fullmatch(name)]


def _has_config(names: Iterable[str]) -> bool:
    return any(name.endswith("config.json") for name in names)


def _folder_of(path: str) -> Location:
    place = locate(path)
    return place if place.is_folder() else place.parent()

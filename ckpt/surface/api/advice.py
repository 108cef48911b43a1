"""The commands that work on a checkpoint. Each is planned before it is printed, and can
be pasted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ckpt import formats
from ckpt.bytes.location import is_lasting, path_beside
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import can_strip_wrappers
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, LossError
from ckpt.model.findings import Plan, Way
from ckpt.model.limits import Limits
from ckpt.model.tensors import TensorRef
from ckpt.model.text import pasted_path, shell_word

SUFFIXES = {
    "rehome": ".cpu",
    "strip": ".stripped",
    "rename": ".renamed",
    "set": ".set",
    "slim": ".slim",
    "convert": ".converted",
    "convert --plain": ".plain",
    "convert --complete-optimizer": ".complete",
    "convert --dequantize": ".dequantized",
    "warmstart": ".warm",
    "salvage": ".whole",
    "average": ".average",
    "merge": ".merged",
}
"""Command -> the suffix, in what a command suggests and in commands that others
suggest.
"""
_COMPLETE = "--complete-optimizer"
_WITH_CONFIG = "--with-config"
_DEQUANTIZE = "--dequantize"
_SHARD_BYTES = 5_000_000_000
"""Bytes of weights that are written as one file; more of them as shards."""
_SECTIONS = 8
"""Models that are tried one after the other."""


class Ways:
    """The commands that work on one checkpoint. Each is planned once, and no tensor
    data is read.
    """

    def __init__(self, survey: Survey, limits: Limits | None = None) -> None:
        self._survey = survey
        self._limits = limits or Limits()
        self._plans: dict[tuple[str, ...], Way] = {}
        self._changed: dict[tuple[str, ...], set[str]] = {}

    def way(self, words: tuple[str, ...]) -> Way:
        """The command for what `words` ask for: `Plan` of ckpt/model/findings.py lists
        them; others are a command's own.
        """
        if words[0] == "weights":
            return self._first_way(
                [
                    *self._slim_commands(),
                    *self._plain_commands(),
                    *self._section_commands(),
                ]
            )
        if words[0] == "plain" and len(words) > 1:
            files = {
                member.file: member.checkpoint
                for member in self._survey.checkpoint.members
            }
            if words[1] in files:
                return Ways(Survey(files[words[1]]), self._limits).way(words[:1])
            words = words[
                :1
                # a member of an archive is no file of its own: the command is about the
                # archive
            ]
        if words[0] == "plain":
            return self._first_way(
                [
                    *self._plain_commands(),
                    *self._slim_commands(),
                    *self._section_commands(),
                ]
            )
        if words[0] == "smaller":
            return self._first_way([*self._slim_commands(), *self._section_commands()])
        if words == ("salvage",) and self._survey.checkpoint.traits.has_own_metadata:
            # No command but convert writes what it holds, and that in another format.
            partial = ("convert", "--partial")
            return self._first_way([partial, (*partial, "--dtype", "bfloat16")])
        if words[0] == "extracted":
            return self._first_way(
                [("convert",), *self._slim_commands(), *self._section_commands()]
            )
        if words[0] == "indexed":
            is_large = self._survey.checkpoint.nbytes > _SHARD_BYTES
            return self._planned_way(
                ("convert", "--shard-size", "5GB") if is_large else ("convert",)
            )
        if words[0] == "dequantized":
            return self._first_way(self._dequantizing_commands())
        if words[0] == "completed":
            return self._planned_way(("convert", _COMPLETE))
        if words[0] == "stripped":
            return self._strip_way(words[1])
        return self._planned_way(words)

    # --- which are tried, in their order ----------------------------------------------

    def _strip_way(self, section: str) -> Way:
        """From all models, or else from this section. A folder with nothing but a model
        and its config stays one.
        """
        is_model_alone = len(self._survey.sections) == len(self._survey.candidates) == 1
        if is_model_alone and self._has_config():
            way = self._planned_way(("slim", "--strip", _WITH_CONFIG))
            if way.command is not None:
                return way
        whole = self._planned_way(("strip",))
        touched = section in self._changed.get(("strip",), (section,))
        if whole.command and touched:
            return whole
        return self._planned_way(("strip", "--section", section))

    def _slim_commands(self) -> Iterator[tuple[str, ...]]:
        """With the config, without which from_pretrained does not open the weights,
        where a folder has one.
        """
        if len(self._survey.candidates) < 2:
            if self._has_config():
                yield ("slim", _WITH_CONFIG)
            yield ("slim",)

    def _section_commands(self) -> Iterator[tuple[str, ...]]:
        models = self._survey.candidates
        if len(models) < 2:
            return
        if len(models) <= _SECTIONS:
            # A generator and its discriminator: half of them is not the weights.
            first, *others = models
            keep = [word for other in others for word in ("--keep", other.name)]
            yield ("slim", "--section", first.name, *keep)
        for section in models[:_SECTIONS]:
            yield ("slim", "--section", section.name)

    def _dequantizing_commands(self) -> Iterator[tuple[str, ...]]:
        """With the config, which names the quantization, where a folder has one."""
        if self._has_config():
            yield ("convert", _DEQUANTIZE, _WITH_CONFIG)
        yield ("convert", _DEQUANTIZE)

    def _has_config(self) -> bool:
        """Tell whether the checkpoint is a folder of this machine with a config."""
        path = self._survey.path
        if not os.path.isdir(path):
            return False
        # Here: only a folder may have one.
        from ckpt.surface.api.config_files import has_config

        return has_config(path)

    def _plain_commands(self) -> Iterator[tuple[str, ...]]:
        if not self._survey.checkpoint.traits.names_are_code:
            yield ("convert", "--plain")
            encoding = self._survey.checkpoint.encoding
            if encoding == "latin1":
                yield ("convert", "--plain", "--encoding", encoding)

    def _first_way(
        self, tried: Sequence[tuple[str, ...]] | Iterator[tuple[str, ...]]
    ) -> Way:
        """The first command that works; without one, the first reason."""
        reason = None
        for words in tried:
            way = self._planned_way(words)
            if way.command is not None:
                return way
            reason = reason or way.reason
        return Way(None, reason=reason)

    def _planned_way(self, words: tuple[str, ...]) -> Way:
        if words not in self._plans:
            self._plans[words] = self._plan_way(words)
        return self._plans[words]

    def _plan_way(self, words: tuple[str, ...]) -> Way:
        path, to = pasted_path(self._survey.path), self._out_path(words)
        out = None if to is None else pasted_path(to)
        options = [shell_word(word) for word in _command_options(words)]
        if (
            path is None
            or out is None
            or None in options
            or not is_lasting(self._survey.path)
        ):
            return Way(None)
        # No plan reads data: the command would stop at the first tensor that is not
        # whole.
        if words[0] != "salvage" and _lacks_bytes(self._survey.checkpoint):
            return Way(None)
        try:
            if not _is_plain(self._survey, words):
                from ckpt.surface.api.plans import (
                    changed_by,
                )  # here: most files pay nothing for what writes

                self._changed[words] = changed_by(
                    self._survey, words, to or "", self._limits
                )
        except CkptError as error:
            if not isinstance(error, LossError):
                return Way(None)
            # An option of the command that is not printed says nothing.
            hint = error.hint or "--"
            more = "" if hint.startswith("--") else f" ({hint})"
            return Way(None, reason=f"{error.problem}{more}")
        command = " ".join(["ckpt", words[0], path, *map(str, options), "-o", out])
        return Way(command, "weights" if words[0] == "slim" else "all")

    # --- one command ------------------------------------------------------------------

    def _out_path(self, words: Sequence[str]) -> str | None:
        if "-o" in words:
            return words[-1]
        if _COMPLETE in words:
            folder = next(
                row
                for row in formats.written_formats().values()
                if row.traits.is_folder
            )
            return path_beside(
                self._survey.path, SUFFIXES[f"convert {_COMPLETE}"], folder.suffixes
            )
        if _WITH_CONFIG in words:
            suffix = words[0]
            if _DEQUANTIZE in words:
                suffix = f"convert {_DEQUANTIZE}"
            elif "--strip" in words:
                suffix = "strip"
            return path_beside(self._survey.path, SUFFIXES[suffix], ())
        if _DEQUANTIZE in words:
            suffix = SUFFIXES[f"convert {_DEQUANTIZE}"]
            return formats.out_beside(self._survey.checkpoint, suffix, same_format=True)
        suffix = SUFFIXES["convert --plain" if "--plain" in words else words[0]]
        checkpoint = self._survey.checkpoint
        stays = words[0] != "convert" or (
            "--plain" in words and checkpoint.traits.is_folder
        )
        return formats.out_beside(checkpoint, suffix, same_format=stays)


def _command_options(words: Sequence[str]) -> Sequence[str]:
    """The words of a command behind its name, without `-o OUT`."""
    return words[1 : words.index("-o")] if "-o" in words else words[1:]


def add_way_out(
    error: CkptError, survey: Survey, limits: Limits, out: str | None = None
) -> None:
    """Give an error the command that works instead, where it names one. Its own hint
    stays where none does.

    `out` is where the user wants the result: the command writes there, if it can.
    """
    if error.way is None:
        return
    ways = Ways(survey, limits)
    text = None
    if out is not None and error.way[0] == "convert":
        text = ways.way((*error.way, "-o", out)).text
    error.hint = text or ways.way(error.way).text or error.hint


def _lacks_bytes(checkpoint: Checkpoint) -> bool:
    """Tell whether a distributed checkpoint lists tensors of which bytes are
    missing.
    """
    return checkpoint.traits.fills_a_state and bool(checkpoint.account.lost_names)


def _is_plain(survey: Survey, words: tuple[str, ...]) -> bool:
    """Tell whether a command certainly works, without loading what writes.

    It works for the usual file, whose tensors are plain and whose pickle calls nothing
    that a writer would refuse to pass on. Other objects are written as they were read,
    and `slim` leaves them out. False says nothing.
    """
    checkpoint = survey.checkpoint
    if checkpoint.parts or checkpoint.members or checkpoint.not_loadable:
        return False
    if any(row.group == "called" for row in checkpoint.imports):
        return False
    if not checkpoint.traits.in_place or not all(
        type(row.tensor) is TensorRef for row in checkpoint.tensors
    ):
        return False
    if words == ("rehome",):
        return True
    if words == ("strip",):
        sections = [
            section for section in survey.sections if section.kind in ("model", "ema")
        ]
        return bool(sections) and all(
            section.is_flat and can_strip_wrappers(section.names())
            for section in sections
        )
    if words != ("slim",) or len(survey.candidates) != 1:
        return False
    return survey.candidates[0].tensors > 0 and survey.candidates[0].is_flat


def planning(survey: Survey) -> Plan:
    """Return what finds the commands that work on a checkpoint; nothing is planned
    until it is asked.
    """
    ways: list[Ways] = []

    def plan(words: tuple[str, ...]) -> Way:
        if not ways:
            ways.append(Ways(survey))
        return ways[0].way(words)

    return plan

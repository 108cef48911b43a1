"""The layouts of folders, as data: the files that name a layout, its files, and the
places of their content.

The names are those that the writers use: transformers (`trainer.py`), accelerate
(`checkpointing.py`), PEFT (`save_pretrained`), SpeechBrain (`utils/checkpoints.py`).

The plan of one folder is made of them: which files are read, and under which key each
goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from ckpt.bytes.location import Location
from ckpt.ext.dcp.file_names import METADATA, is_part
from ckpt.formats.common.sets import ShardSet
from ckpt.model.names import Path
from ckpt.model.rows import NamedTuple

if TYPE_CHECKING:  # most folders have none
    from ckpt.ext.dcp.metadata import Metadata

Kind = Literal["checkpoint", "json", "text", "any", "dcp", "shards", "folder"]
"""The kind of a file. `any` is a checkpoint or a small text, as SpeechBrain gives both
one ending.

`dcp` is a folder, `shards` are several files without an index; `folder` stands where a
file should be, and is not read.
"""


class Rule(NamedTuple):
    """The files whose whole name matches `pattern`. Their content gets `key`, in which
    `\\1` is a group.
    """

    pattern: str
    key: str
    kind: Kind = "checkpoint"


class Fact(NamedTuple):
    """A value of a document that says something about the whole folder, with its label
    for people.

    It is a default only where `unless`, a field of the same document, holds anything.
    """

    label: str
    path: tuple[str | int, ...]
    unless: str = ""


class Layout(NamedTuple):
    """A folder with any file of `marks` has this layout. Without marks any folder has
    it.
    """

    name: str
    marks: tuple[str, ...]
    rules: tuple[Rule, ...]
    facts: tuple[Fact, ...] = ()

    def is_in(self, names: Sequence[str]) -> bool:
        if not self.marks:
            return True
        # A folder may hold thousands of shards, and nearly none is a mark.
        patterns = map(re.compile, self.marks)
        return any(any(map(pattern.fullmatch, names)) for pattern in patterns)


SPEECHBRAIN = Layout(
    "SpeechBrain checkpoint",
    (r"CKPT\.yaml",),
    # `CKPT.yaml` is read as text: no YAML is interpreted.
    (Rule(r"(CKPT)\.yaml", r"\1", "text"), Rule(r"([^.].*)\.ckpt", r"\1", "any")),
)
"""One file for each object that is saved, by its name. The hooks of some objects write
text.
"""

LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "Hugging Face Trainer checkpoint",
        (r"trainer_state\.json", r"training_args\.bin", r"optimizer\.pt"),
        (
            Rule(r"optimizer\.pt", "optimizer"),
            Rule(r"scheduler\.pt", "scheduler"),
            Rule(r"scaler\.pt", "scaler"),
            # A run of several ranks has a file of random states for each.
            Rule(r"rng_state((?:_\d+)?)\.pth", r"rng_state\1"),
            Rule(r"trainer_state\.json", "trainer_state", "json"),
            Rule(r"training_args\.bin", "training_args"),
        ),
        (
            Fact("step", ("trainer_state", "global_step")),
            Fact("epoch", ("trainer_state", "epoch")),
            Fact("best metric", ("trainer_state", "best_metric")),
        ),
    ),
    Layout(
        "accelerate checkpoint",
        (r"random_states_\d+\.pkl", r"optimizer(_\d+)?\.bin", r"scheduler\.bin"),
        (
            Rule(r"optimizer((?:_\d+)?)\.bin", r"optimizer\1"),
            Rule(r"scheduler((?:_\d+)?)\.bin", r"scheduler\1"),
            Rule(r"sampler((?:_\d+)?)\.bin", r"sampler\1"),
            Rule(r"dl_state_dict((?:_\d+)?)\.bin", r"dl_state_dict\1"),
            Rule(r"scaler\.pt", "scaler"),
            Rule(r"(random_states_\d+)\.pkl", r"\1"),
            Rule(r"(custom_checkpoint_\d+)\.pkl", r"\1"),
            # kohya's sd-scripts put it beside the files of accelerate.
            Rule(r"train_state\.json", "train_state", "json"),
        ),
        (
            Fact("step", ("train_state", "current_step")),
            Fact("epoch", ("train_state", "current_epoch")),
        ),
    ),
    Layout(
        "PEFT adapter",
        (r"adapter_config\.json",),
        (Rule(r"adapter_config\.json", "adapter_config", "json"),),
        (
            Fact("adapter", ("adapter_config", "peft_type")),
            # PEFT gives single modules another rank in `rank_pattern`.
            Fact("rank", ("adapter_config", "r"), "rank_pattern"),
            Fact("alpha", ("adapter_config", "lora_alpha"), "alpha_pattern"),
            Fact("base model", ("adapter_config", "base_model_name_or_path")),
        ),
    ),
    Layout(
        "Hugging Face model",
        (),
        (Rule(r"config\.json", "config", "json"),),
        (
            Fact("architecture", ("config", "architectures", 0)),
            # Classes of diffusers have no `architectures`.
            Fact("class", ("config", "_class_name")),
        ),
    ),
)
"""Layouts with one model in files of well-known names. A folder may have several: each
gives its files and facts.
"""


class Part(NamedTuple):
    """A file of the folder: its path below the folder, where it is, and the key of its
    content.

    Of a distributed checkpoint (`dcp`) it is `.metadata`, and `at` is the folder. Its
    own keys stand at the root unless another file has them, else below `key`. Of shards
    without an index it is their label, and `at` is the folder.
    """

    file: str
    at: Location
    key: str
    kind: Kind = "checkpoint"
    is_model: bool = False
    shards: ShardSet | None = None
    """The files of the kind `shards`."""

    @property
    def may_hold_tensors(self) -> bool:
        return self.kind in ("checkpoint", "any", "dcp", "shards")


class Plan(NamedTuple):
    """The files that are read, the weights first, the layout by its name, and what its
    documents say of the folder.
    """

    layout: str
    parts: tuple[Part, ...]
    facts: tuple[Fact, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    """Files of weights that are not read, and the file that is read instead."""
    path: str = ""
    """The folder of a framework around its data; empty where the path itself stands for
    the checkpoint.
    """
    tree: Callable[[Metadata], dict[str, Path]] | None = None
    """Gives the names of a distributed checkpoint their paths, where it has none."""
    settings: tuple[Part, ...] = ()
    """The documents of its parts. They are no values of the checkpoint, and loaders
    follow them.
    """
    is_ranks: bool = False
    """A flag: the files belong to ranks and are shown side by side."""

    def mark(self, part: Part) -> str:
        """Return the prefix of the storage ids of a file, which keeps the ids of
        several files apart.
        """
        several = sum(other.may_hold_tensors for other in self.parts) > 1
        return f"{part.key or 'model'}:" if several else ""


def files_of(part: Part) -> list[str]:
    """The files of a part by their paths below the folder. Raises NotOpenedError."""
    if part.shards is not None:
        before = part.file.removesuffix(part.shards.label)
        return [before + name for name in part.shards.files.values()]
    if part.kind != "dcp":
        return [part.file]
    return [
        part.file.removesuffix(METADATA) + name
        for name in part.at.names()
        if is_part(name)
    ]

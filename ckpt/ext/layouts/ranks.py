"""The files of ranks of one side of a recipe: which file each tensor lies in, and where
in it.

They are read as one checkpoint whose names begin with the key of their file. Where a
recipe makes that side, it is written as those files again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import isfinite

from ckpt.bytes.location import is_plain_name
from ckpt.commands.rewriting.edited import edited_checkpoint
from ckpt.evidence.survey import Survey
from ckpt.formats import save
from ckpt.model.checkpoint import Checkpoint, Entry
from ckpt.model.errors import LossError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.nodes import Dict, Node, dict_of, tensor_of
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Tensor
from ckpt.model.text import and_more, show, show_name
from ckpt.tree.view import look

MOST_FILES = 10_000
"""The most files of ranks that a recipe names."""
MOST_DICTS = 256
"""The most dicts of one file that hold tensors."""
MOST_BESIDE = 64
"""The most values beside the tensors that are kept, and names of others."""
LONGEST_TEXT = 1000
"""The most characters of a text that is kept, or of the path of a file."""
_LARGEST = 1 << 62
_STEPS = 4
"""The most steps in the path of a file, or to a dict in it."""

Scalar = int | float | str | bool | None


class RankFile(NamedTuple):
    """A file by its path below the folder of all ranks, and the key that the names of
    its tensors begin with.
    """

    file: str
    key: str


class Ranks(NamedTuple):
    """The files of ranks, and what each of them holds.

    `dicts` are the paths of the dicts with tensors in a file. `values` are the numbers
    and texts that each file has beside them; `beside` names what else the files of the
    example had.
    """

    files: tuple[RankFile, ...]
    dicts: tuple[tuple[str, ...], ...]
    values: tuple[tuple[str, Scalar], ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        """The format of the files."""
        return save.format_for(self.files[0].file, None)

    def owns(self, name: str) -> bool:
        """Tell whether a file, or with a slash a folder, is one that is written, by its
        path below the folder of all ranks.
        """
        files = [row.file for row in self.files]
        if name.endswith("/"):
            return any(file.startswith(name) for file in files)
        return name in files

    def split_checkpoint(
        self,
        checkpoint: Checkpoint,
        limits: Limits,
    ) -> list[tuple[str, Checkpoint]]:
        """The checkpoint of each file, of one whose names begin with their keys.

        Raises LossError for a tensor of no file, and for a file without tensors.
        """
        # Each file appears, or none does: a folder that lacks a rank loads nowhere.
        roots = self._roots_of(checkpoint)
        empty = [row.file for row in self.files if row.key not in roots]
        if empty:
            listed = and_more([show(name, 80) for name in empty], 3)
            problem = f"the recipe makes no tensor of {listed}"
            raise LossError(problem, path=checkpoint.path)
        parts: list[tuple[str, Checkpoint]] = []
        for row in self.files:
            part = edited_checkpoint(checkpoint, roots[row.key], limits, origin=None)
            parts.append((row.file, part))
        return parts

    def nested_checkpoint(self, checkpoint: Checkpoint, limits: Limits) -> Checkpoint:
        """The checkpoint as it is read from the files: a dict for each of them.

        Raises LossError for a tensor of no file.
        """
        root = dict_of(self._roots_of(checkpoint).items())
        return edited_checkpoint(checkpoint, root, limits, origin=None)

    def _roots_of(self, checkpoint: Checkpoint) -> dict[str, Dict]:
        """The root of each file with tensors by its key: dicts of these, and the values
        beside them.

        Raises LossError for a tensor of no file, and for one in the place of a value.
        """
        trees: dict[str, _Tree] = {row.key: {} for row in self.files}
        # The deepest dict first: `model.` would take what lies in
        # `model.language_model.`.
        by_length = sorted(self.dicts, key=len, reverse=True)
        for entry in checkpoint.tensors:
            key, _, rest = entry.name.partition(".")
            if key not in trees or not rest:
                problem = f"{show_name(entry.name)} belongs to no file of the recipe"
                raise LossError(problem, path=checkpoint.path)
            _put_tensor(trees[key], _path_within(rest, by_length), entry)
        roots: dict[str, Dict] = {}
        for key, tree in trees.items():
            if not tree:
                continue
            # The values stand in each file, as they did in the example.
            root = roots[key] = _dict_of_tree(tree)
            for name, value in self.values:
                if name in root.keys:
                    problem = f"{show_name(name)} is a tensor and a value in one file"
                    raise LossError(problem, path=checkpoint.path)
                root.set([name], [value])
        return roots


_Tree = dict[str, "Tensor | _Tree"]
"""The dicts of a file, by their keys, with the tensors in them."""


def _path_within(rest: str, dicts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The path of a tensor in its file by its name there: the first of some dicts whose
    path it begins with, and what is left of the name.
    """
    for path in dicts:
        begin = "".join([f"{step}." for step in path])
        if rest.startswith(begin) and len(rest) > len(begin):
            return (*path, rest[len(begin) :])
    return (rest,)


def _put_tensor(tree: _Tree, path: Sequence[str], entry: Entry) -> None:
    """Put a tensor into the dicts of its file. Raises LossError where another one is in
    the way.
    """
    for step in path[:-1]:
        below = tree.setdefault(step, {})
        if not isinstance(below, dict):
            raise LossError(f"{show_name(entry.name)} lies below a tensor")
        tree = below
    if path[-1] in tree:
        raise LossError(f"{show_name(entry.name)} stands twice in its file")
    tree[path[-1]] = entry.tensor


def _dict_of_tree(tree: _Tree) -> Dict:
    """The dicts of a file as the nodes of its pickle."""
    items = [
        (key, _dict_of_tree(below) if isinstance(below, dict) else below)
        for key, below in tree.items()
    ]
    return dict_of(items)


# --- the files of an example ----------------------------------------------------------


def ranks_of(survey: Survey, rows: Sequence[tuple[str, Entry]]) -> Ranks | None:
    """The files of ranks that a checkpoint was read from, or None for one that was not,
    or that they do not describe.

    `rows` are the tensors of its layout by the names that they have in it.
    """
    checkpoint = survey.checkpoint
    keys = _keys_of_files(checkpoint)
    dicts: dict[tuple[str, ...], None] = {}
    used: dict[str, None] = {}
    for name, entry in rows:
        key, *path = entry.path
        # A list or a key that is no text has no name that leads back to it.
        texts = [step for step in path if type(step) is str]
        if len(texts) < len(path) or not path:
            return None
        if name != entry.name or key not in keys:
            return None
        dicts[tuple(texts[:-1])] = None
        used[str(key)] = None
    if not used or len(used) > MOST_FILES or len(dicts) > MOST_DICTS:
        return None
    # The names must lead back to the paths: a key with a dot could be two dicts.
    by_length = sorted(dicts, key=len, reverse=True)
    for name, entry in rows:
        key, _, rest = name.partition(".")
        if entry.path != (key, *_path_within(rest, by_length)):
            return None
    files = _below_one_folder([keys[key] for key in used])
    if files is None:
        return None
    values, beside = _values_beside(checkpoint.root, list(used), set(dicts))
    made = [RankFile(file, key) for file, key in zip(files, used, strict=True)]
    ranks = Ranks(tuple(made), tuple(dicts), values, beside)
    return ranks if problem_of_ranks(ranks) is None else None


def _keys_of_files(checkpoint: Checkpoint) -> dict[object, str]:
    """The path of each file of ranks by the key of its content."""
    if not checkpoint.traits.is_set:
        return {}
    if checkpoint.members:
        return {member.key: member.file for member in checkpoint.members}
    # DeepSpeed: the key is the name of the file.
    return {
        file.rpartition("/")[2].removesuffix(".pt"): file for file in checkpoint.parts
    }


def _below_one_folder(files: Sequence[str]) -> list[str] | None:
    """The paths below the innermost folder that holds all of them.

    It is None where one is no plain path with a known ending.
    """
    folder = files[0].rpartition("/")[0]
    if len(files) > 1:
        folder = os.path.commonpath(files)
    short = files
    if folder:
        short = [os.path.relpath(file, folder) for file in files]
    return list(short) if all(map(is_rank_path, short)) else None


def is_rank_path(path: str) -> bool:
    """Tell whether a path leads to a file of a rank: a few plain names, with an ending
    that ckpt writes.
    """
    steps = path.split("/")
    if len(path) > LONGEST_TEXT or not 0 < len(steps) <= _STEPS:
        return False
    # No step may lead up, and a name with a dot in front would be hidden.
    if not all(is_plain_name(step) and not step.startswith(".") for step in steps):
        return False
    try:
        return not save.traits_of(save.format_for(path, None)).is_folder
    except UsageError:
        return False


def problem_of_ranks(ranks: Ranks) -> str | None:
    """Return why files of ranks cannot be written as a recipe names them, or None."""
    files = [row.file for row in ranks.files]
    if not 0 < len(files) <= MOST_FILES:
        return f"not 1 to {MOST_FILES:,} files"
    wrong = [file for file in files if not is_rank_path(file)]
    if wrong:
        return f"{show(wrong[0], 80)} is no path of a file of a rank"
    # A path that is a file and a folder at once cannot be written.
    folders = {file.rpartition("/")[0] for file in files}
    keys = {row.key for row in ranks.files}
    if len(set(files)) < len(files) or len(keys) < len(files) or folders & set(files):
        return "two files have one path or one key"
    # Names begin with the key and a dot: a key with a dot in it would end too early.
    if any(not key or "." in key or len(key) > LONGEST_TEXT for key in keys):
        return "a key is no beginning of names"
    if len({save.format_for(file, None) for file in files}) > 1:
        return "its files have several formats"
    is_nested = any(ranks.dicts) or ranks.values
    if is_nested and not save.traits_of(ranks.format).is_pickle:
        return f"{save.traits_of(ranks.format).label} holds tensors alone"
    holders = {path[0] for path in ranks.dicts if path}
    if any(name in holders for name, _ in ranks.values):
        return "a value stands in the place of tensors"
    return None


def _values_beside(
    root: Node,
    keys: Sequence[str],
    dicts: set[tuple[str, ...]],
) -> tuple[tuple[tuple[str, Scalar], ...], tuple[str, ...]]:
    """The numbers and texts that all files have beside their tensors, and the names of
    what else lies there.
    """
    view = look(root)
    below = dict(zip(view.keys, view.children, strict=True))
    holders = {path[0] for path in dicts if path}
    rows = [_fields_of(below[key], holders) for key in keys]
    kept: list[tuple[str, Scalar]] = []
    beside: dict[str, None] = {}
    for name in dict.fromkeys([name for row in rows for name in row]):
        values = [row.get(name, _NOTHING) for row in rows]
        # A value that differs by rank, such as a state of random numbers, is no value
        # of the layout.
        if all(is_kept_value(value) for value in values) and _are_one(values):
            kept.append((name, values[0]))  # type: ignore[arg-type]
        else:
            beside[name] = None
    rest = [name for name, _ in kept[MOST_BESIDE:]]
    return tuple(kept[:MOST_BESIDE]), tuple([*beside, *rest][:MOST_BESIDE])


_NOTHING = object()


def _fields_of(root: Node, holders: set[str]) -> dict[str, object]:
    """The fields of the root of a file beside those that hold tensors."""
    view = look(root)
    if view.kind != "mapping":
        return {}
    fields: dict[str, object] = {}
    for key, node in zip(view.keys, view.children, strict=True):
        if type(key) is not str or len(key) > LONGEST_TEXT:
            continue
        if key not in holders and tensor_of(node) is None:
            fields[key] = node
    return fields


def is_kept_value(value: object) -> bool:
    """Tell whether a value is a plain number or text that a recipe holds."""
    if value is None or type(value) is bool:
        return True
    if type(value) is int:
        return abs(value) < _LARGEST
    if type(value) is float:
        # JSON has no number for infinity and NaN.
        return isfinite(value)
    return type(value) is str and len(value) <= LONGEST_TEXT


def _are_one(values: Sequence[object]) -> bool:
    # 1, 1.0 and True are equal in Python, and other values in a file.
    """Tell whether values are equal and of one type."""
    return len({(type(value), value) for value in values}) == 1

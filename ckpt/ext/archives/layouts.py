"""A library's archive that holds checkpoints: each member is read where it lies, and
becomes a part under its name.

Stable-Baselines 2: a zip of `parameters` (arrays of numpy), `parameter_list` and `data`
(JSON; common/base_class.py). Stable-Baselines3: a zip of `policy.pth`, an optimizer for
each, `data` (JSON) and texts (common/save_util.py). NeMo: a tar of `model_weights.ckpt`
and `model_config.yaml` (core/connectors/save_restore_connector.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.bytes.location import is_plain_name
from ckpt.formats.common.members import Member, of_record
from ckpt.formats.common.tar import read_tar, walk_tar
from ckpt.formats.format import PICKLE, Probe
from ckpt.model.errors import CkptError, LimitError, UnreadableError
from ckpt.model.limits import Budget, Limits
from ckpt.model.rows import NamedTuple
from ckpt.model.text import counted_noun, show


class Layout(NamedTuple):
    """The members of an archive, checkpoints, JSON and texts, each by the key of its
    part; its label, and how to load it.
    """

    label: str
    load: str
    has_checksums: bool
    parts: dict[str, Member]
    jsons: dict[str, Member]
    texts: dict[str, Member]
    others: tuple[str, ...] = ()
    """The names of further members, which nobody reads."""
    arrays: tuple[tuple[str, Member], ...] = ()
    """Members that hold arrays of numpy."""

    @property
    def members(self) -> list[Member]:
        return [
            *self.parts.values(),
            *(member for _, member in self.arrays),
            *self.jsons.values(),
            *self.texts.values(),
        ]


def is_known(probe: Probe) -> bool:
    """Tell whether this format reads the archive."""
    return _layout_function(probe) is not None


def layout_of(probe: Probe, limits: Limits) -> Layout:
    """The members of an archive. Raises UnreadableError, LimitError."""
    kind = _layout_function(probe)
    assert kind is not None
    layout = kind(probe, limits)
    if len(layout.parts) > limits.shards:
        problem = f"the archive holds {counted_noun(len(layout.parts), 'checkpoint')}"
        raise LimitError(problem, "shards", limits.shards)
    return layout


def _layout_function(probe: Probe) -> Callable[[Probe, Limits], Layout] | None:
    if probe.archive is not None:
        names = probe.archive.records.keys()
        is_sb3 = "policy.pth" in names and not names.isdisjoint(
            ("data", "_stable_baselines3_version")
        )
        if is_sb3:
            return _stable_baselines
        return _stable_baselines_2 if names >= _SB2_FILES else None
    if probe.source is not None and probe.is_tar:
        return _nemo_layout if _has_nemo_weights(probe) else None
    return None


# --- Stable-Baselines3 ----------------------------------------------------------------

_SB3 = (
    "Stable-Baselines3",
    "torch.load(zipfile.ZipFile({path}).open({part}), {options})",
    True,
)
_TEXTS = ("_stable_baselines3_version", "system_info.txt")


def _stable_baselines(probe: Probe, limits: Limits) -> Layout:
    archive = probe.archive
    assert archive is not None
    parts: dict[str, Member] = {}
    # A name becomes a key of the tree, and a path in the line that loads the file.
    for name, record in archive.records.items():
        if name.endswith(".pth"):
            if not is_plain_name(name) or name == ".pth":
                raise UnreadableError(f"member {show(name, 80)} is not a plain name")
            parts[name.removesuffix(".pth")] = of_record(probe.file, record)
    others = {
        name: of_record(probe.file, record) for name, record in archive.records.items()
    }
    texts = {
        name.removesuffix(".txt"): others[name] for name in _TEXTS if name in others
    }
    jsons = {"data": others["data"]} if "data" in others else {}
    # A part named `data.pth` would have the key of the JSON.
    twice = parts.keys() & (texts.keys() | jsons.keys())
    if twice:
        raise UnreadableError(f"the archive holds {show(min(twice), 80)} twice")
    # The model before its optimizers.
    first = ["policy", *(key for key in parts if key != "policy")]
    read = {f"{key}.pth" for key in parts} | {"data", *_TEXTS}
    return Layout(
        *_SB3,
        {key: parts[key] for key in first},
        jsons,
        texts,
        tuple(name for name in others if name not in read),
    )


# --- Stable-Baselines 2 ---------------------------------------------------------------

_SB2_FILES = frozenset(("data", "parameters", "parameter_list"))


def _stable_baselines_2(probe: Probe, limits: Limits) -> Layout:
    archive = probe.archive
    assert archive is not None
    members = {
        name: of_record(probe.file, record) for name, record in archive.records.items()
    }
    jsons = {name: members[name] for name in ("data", "parameter_list")}
    others = tuple(name for name in members if name not in _SB2_FILES)
    return Layout(
        "Stable-Baselines 2",
        "",
        True,
        {},
        jsons,
        {},
        others,
        (("parameters", members["parameters"]),),
    )


# --- NeMo -----------------------------------------------------------------------------

_OURS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", *PICKLE)
"""Endings of members that are told of where nobody reads them; tokenizers and settings
are usual.
"""
_NEMO = "NeMo", "torch.load(tarfile.open({path}).extractfile({part}), {options})", False
_WEIGHTS, _CONFIG = "model_weights.ckpt", "model_config.yaml"


def _has_nemo_weights(probe: Probe) -> bool:
    """Tell whether a tar archive holds the weights of NeMo. `read` finds what is wrong
    behind them.
    """
    # Only the names are walked, within the limits of a budget of its own: the test of
    # the kind costs the reader nothing.
    try:
        return any(
            name == _WEIGHTS
            for name, _ in walk_tar(
                probe.file, probe.limits, Budget(probe.limits, probe.size)
            )
        )
    except CkptError:
        return False


def _nemo_layout(probe: Probe, limits: Limits) -> Layout:
    members = read_tar(probe.file, limits, probe.budget)

    def member_of(name: str) -> dict[str, Member]:
        row = members.get(name)
        stem = name.rpartition(".")[0]
        if row is None:
            return {}
        return {stem: Member(probe.file, row.name, row.offset, row.size)}

    others = [
        name
        for name in members
        if name not in (_WEIGHTS, _CONFIG) and name.lower().endswith(_OURS)
    ]
    return Layout(*_NEMO, member_of(_WEIGHTS), {}, member_of(_CONFIG), tuple(others))

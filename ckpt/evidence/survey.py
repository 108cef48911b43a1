"""The survey of what a checkpoint says about itself. Each property is computed once, at
its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ckpt.evidence.record import ModelRecord
from ckpt.evidence.roles import Evidence, RecordMatch, Role, find_roles, role_alone
from ckpt.evidence.sections import Section, find_sections
from ckpt.model.checkpoint import Checkpoint, Entry, looks_of
from ckpt.model.errors import UsageError
from ckpt.model.names import ROOT, nearest_names
from ckpt.model.tensors import TensorRef
from ckpt.model.text import and_more, shell_word, show

if TYPE_CHECKING:
    from ckpt.evidence.gradients import GradientUse, MixedSteps
    from ckpt.evidence.loading import Load
    from ckpt.evidence.matching import Match
    from ckpt.evidence.modules import UnseenParts
    from ckpt.evidence.scaled import Scaled


_LOOSE = frozenset(("dict", "OrderedDict", "defaultdict", "list", "tuple"))
"""Types of a root whose content is tensors and nothing else."""


class Survey:
    """A checkpoint with its parts, roles and gradients, and how to load it.

    `model` is the record of a live model. What uses it raises UsageError when it does
    not fit the file. Step counters are read, and small moments of parameters that lag
    behind; no other tensor data.
    """

    def __init__(
        self, checkpoint: Checkpoint, model: ModelRecord | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.model = model

    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def tensors(self) -> Sequence[Entry]:
        return self.checkpoint.tensors

    # --- parts ------------------------------------------------------------------------

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The parts in file order, without overlap."""
        return find_sections(self.checkpoint)

    @property
    def models(self) -> list[Section]:
        """The sections that hold a model's weights."""
        return [section for section in self.sections if section.kind == "model"]

    @property
    def main(self) -> list[Section]:
        """The models, or their averages where these are all that there is."""
        return self.models or [
            section for section in self.sections if section.kind == "ema"
        ]

    @property
    def parameters(self) -> list[int]:
        """The indices of the parameters of the models, or of their averages where these
        are all that there is.
        """
        return self._with_role("parameter")

    @property
    def unknown(self) -> list[int]:
        """The indices of the tensors of the models that may be parameters or buffers,
        without second names of tensors that are known.
        """
        found = self._with_role("unknown")
        # No two share a storage: their rows need not be made.
        if not found or len(self.checkpoint.storages) >= len(self.tensors):
            return found
        known = set()
        for index in (*self.parameters, *self._with_role("buffer")):
            tensor = self.tensors[index].tensor
            if isinstance(tensor, TensorRef):
                known.add(tensor.view)
        return [
            index
            for index in found
            if getattr(self.tensors[index].tensor, "view", None) not in known
        ]

    @property
    def weight_indices(self) -> list[int]:
        """The indices of the parameters, and of `unknown` if most bytes are there:
        packed weights beside their scales.
        """
        parameters, unknown = self.parameters, self.unknown
        looks = looks_of(self.tensors)
        sizes = [
            sum([looks[index].nbytes for index in indices])
            for indices in (parameters, unknown)
        ]
        return parameters if sizes[0] >= sizes[1] else [*parameters, *unknown]

    def count_elements(self, indices: Sequence[int]) -> int:
        """Return the number of elements of some tensors. One that is tied counts once,
        as in `model.parameters()`.
        """
        looks = looks_of(self.tensors)
        # No two share a storage: their rows need not be made.
        if len(self.checkpoint.storages) >= len(self.tensors):
            return sum([looks[index].numel for index in indices])
        views: dict[object, int] = {}
        for index in indices:
            tensor = self.tensors[index].tensor
            view = tensor.view if isinstance(tensor, TensorRef) else index
            views[view] = tensor.numel
        return sum(views.values())

    def _with_role(self, role: str) -> list[int]:
        roles = self.roles
        found: list[int] = []
        for section in self.main:
            found += [index for index in section.indices if roles[index].role == role]
        return found

    def section_name(self, name: str) -> str:
        """Return the name of a section as it is asked for: `.` is the root, as in a
        path, unless a section is called so.
        """
        is_root = name == ROOT and all(
            section.name != ROOT for section in self.sections
        )
        return "" if is_root else name

    def section(self, name: str) -> Section:
        """The section with this name, or the one that is the same object. Raises
        UsageError with the nearest names.
        """
        same = next(
            (
                row.same_as
                for row in self.checkpoint.values
                if row.name == name and row.same_as
            ),
            None,
        )
        for wanted in (self.section_name(name), same):
            for section in self.sections:
                if section.name == wanted:
                    return section
        raise UsageError(
            f"no section {name}", path=self.path, hint=self._hint_of_section(name)
        )

    def _hint_of_section(self, name: str) -> str:
        """Return the sections that may be meant by a name, or else all of them."""
        names = [section.name for section in self.sections]
        near = nearest_names(name, names)
        listed = and_more(
            [show(other, 60) or "(the root)" for other in near or names], 8
        )
        if near:
            return f"did you mean {listed}?"
        return f"sections: {listed or 'none'}"

    def weights(self, name: str | None) -> list[Section]:
        """The sections of weights, averaged ones too, or the named one. Raises
        UsageError without any.
        """
        if name is not None:
            return [self.section(name)]
        chosen = [
            section for section in self.sections if section.kind in ("model", "ema")
        ]
        if not chosen:
            raise self._no_model_error("--section")
        return chosen

    def _no_model_error(self, option: str) -> UsageError:
        """The error where nothing looks like a model, with the sections that `option`
        takes for one.
        """
        others = [section for section in self.sections if section.kind == "other"]
        # Beside an optimizer the rest is named: a list of all of them says nothing.
        names = [section.name or ROOT for section in others if section.tensors]
        words = filter(None, map(shell_word, names))
        listed = and_more([f"{option} {word}" for word in words], 4, ", or ")
        return UsageError(
            "ckpt finds no model in this file",
            path=self.path,
            hint=f"{listed} takes it for one" if listed else None,
        )

    def only_model(self, name: str | None, option: str = "--section") -> Section:
        """The named section, or the only model. Raises UsageError with the list of
        models, as `option` takes them.
        """
        if name is not None:
            return self.section(name)
        chosen = self.candidates
        if not chosen:
            raise self._no_model_error(option)
        if len(chosen) > 1:
            # A name that no shell takes cannot be proposed.
            words = filter(None, (shell_word(section.name) for section in chosen))
            listed = and_more([f"{option} {word}" for word in words], 8, ", or ")
            raise UsageError(
                f"holds {len(chosen)} models", path=self.path, hint=listed or None
            )
        return chosen[0]

    @property
    def candidates(self) -> Sequence[Section]:
        """The sections that a command takes for the model: models, else averages, else
        a file of tensors only.
        """

        averages = [section for section in self.sections if section.kind == "ema"]
        loose = [
            section
            for section in self.sections
            if section.kind == "other" and not section.path
        ]
        root = next((row for row in self.checkpoint.containers if not row.path), None)
        if root is not None and root.type not in _LOOSE:
            loose = []  # an object, of which tensors are fields
        return self.models or averages or loose

    def model_or_all(self, name: str | None) -> Section:
        """As `only_model`, but all tensors of a file that has tensors and no model,
        such as an optimizer's.
        """
        return (
            self.everything
            if name is None and self.tensors and not self.candidates
            else self.only_model(name)
        )

    @property
    def everything(self) -> Section:
        """All tensors of the file, by their full names."""
        return Section((), "", "other", 0, self.tensors)

    # --- evidence ---------------------------------------------------------------------

    @cached_property
    def _role_evidence(self) -> Evidence:
        return find_roles(self.checkpoint, self.sections, self.model)

    @property
    def roles(self) -> list[Role]:
        """The role of each of `tensors`, in the same order."""
        return self._role_evidence.roles

    @property
    def in_optimizer(self) -> Sequence[bool | None]:
        """Tell for each of `tensors` whether an optimizer in the file holds it; None
        means unknown.

        A tensor of which this is False is a buffer or frozen.
        """
        return self._role_evidence.in_optimizer

    def role_of(self, index: int) -> tuple[Role, bool | None]:
        """Return the answers of `roles` and `in_optimizer` for one tensor.

        When nothing but its layer decides, no other tensor is looked at.
        """
        alone = (
            self.model is None
            and self.checkpoint.declared is None
            and not self.knows_gradients
        )
        section = next((part for part in self.sections if index in part.indices), None)
        if not alone or section is None:
            return self.roles[index], self.in_optimizer[index]
        return role_alone(section, index - section.first), None

    @property
    def matches(self) -> tuple[Match, ...]:
        """The parameters of each optimizer, and which tensors they are."""
        return self._role_evidence.matches

    @cached_property
    def state_parameters(self) -> dict[int, tuple[int, Section | None]]:
        """Return the parameters that the state of optimizers belongs to, where they are
        known.

        The index of a tensor in a state -> the index of its parameter, and the only
        model of that optimizer.
        """
        found: dict[int, tuple[int, Section | None]] = {}
        for match in self.matches:
            part = match.optimizer
            # LBFGS keeps the state of all parameters under its first one.
            if not match.models or match.is_flat:
                continue
            depth = len(part.path)
            indices = {
                str(slot.key): index
                for slot, index in zip(match.slots, match.indices, strict=True)
                if index is not None
            }
            for position, entry in zip(part.indices, part.entries, strict=True):
                path = entry.path
                if path[depth : depth + 1] == ("state",) and len(path) == depth + 3:
                    index = indices.get(str(path[depth + 1]))
                    if index is not None:
                        found[position] = index, match.model
        return found

    @property
    def record(self) -> RecordMatch | None:
        """The record of a snapshot or a live model, if there is one."""
        return self._role_evidence.record

    @cached_property
    def uses(self) -> tuple[GradientUse, ...]:
        """Return the parameters that had a gradient, by the state of each optimizer."""
        if not self.matches:
            return ()
        # Here and below: a file without an optimizer says nothing of gradients.
        from ckpt.evidence.gradients import gradient_uses

        shares_states = self.checkpoint.shares_states
        return gradient_uses(self.matches, is_shared=shares_states)

    @cached_property
    def mixed(self) -> MixedSteps | None:
        """Return the files that seem to be of another step than the others, or None."""
        if not self.checkpoint.traits.fills_a_state or not self.knows_gradients:
            # all other formats hold the counters in one file, or refuse what
            # contradicts itself
            return None
        from ckpt.evidence.gradients import mixed_steps

        optimizers = [part.path for part in self.sections if part.kind == "optimizer"]
        return mixed_steps(self.checkpoint, self.matches, optimizers)

    @cached_property
    def scaled(self) -> Scaled:
        """Return the tensors that hold codes, and the scales beside them."""
        # Here and below: commands other than inspect do not ask.
        from ckpt.evidence.scaled import config_of, find_scaled, is_shard

        part = is_shard(self.checkpoint)
        return find_scaled(self.tensors, config_of(self.checkpoint), is_part=part)

    @property
    def knows_gradients(self) -> bool:
        """Tell whether anything in the file says which parameters had a gradient."""
        kinds = {section.kind for section in self.sections}
        return self.model is not None or not kinds.isdisjoint(("optimizer", "snapshot"))

    @cached_property
    def unseen(self) -> UnseenParts:
        """The parts of the pickled models that torch does not see."""
        from ckpt.evidence.modules import unseen_parts  # here: only lint pays for it

        return unseen_parts(self.checkpoint)

    @cached_property
    def load(self) -> Load:
        """Return the way to open the file in Python."""
        from ckpt.evidence.loading import load_of

        averages = [section for section in self.sections if section.kind == "ema"]
        return load_of(self.checkpoint, self.models or averages)

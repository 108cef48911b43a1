"""What a checkpoint says about itself, each thing worked out once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ckpt.checkpoint import Checkpoint, Entry
from ckpt.errors import UsageError
from ckpt.evidence.gradients import GradientUse, gradient_uses
from ckpt.evidence.loading import Load, load_of
from ckpt.evidence.matching import Match
from ckpt.evidence.record import ModelRecord
from ckpt.evidence.roles import Evidence, RecordMatch, Role, find_roles
from ckpt.evidence.sections import Section, find_sections
from ckpt.names import nearest
from ckpt.text import show

if TYPE_CHECKING:
    from ckpt.evidence.modules import UnseenParts


class Survey:
    """A checkpoint with what it says of its parts, roles, gradients and how to load it.

    `model` is what a live model of the same kind says. Whatever reads it raises UsageError where that is another model
    than the file's. Nothing here reads tensor data but step counters.
    """

    def __init__(self, checkpoint: Checkpoint, model: ModelRecord | None = None) -> None:
        self.checkpoint = checkpoint
        self.model = model

    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def tensors(self) -> Sequence[Entry]:
        return self.checkpoint.tensors

    # --- parts ------------------------------------------------------------------------------------------------

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The parts in file order; they do not overlap."""
        return find_sections(self.checkpoint)

    @property
    def models(self) -> list[Section]:
        """The sections that hold a model's weights."""
        return [section for section in self.sections if section.kind == "model"]

    def section(self, name: str) -> Section:
        """The section of a name. Raises UsageError with the nearest ones."""
        for section in self.sections:
            if section.name == name:
                return section
        names = [section.name for section in self.sections]
        listed = ", ".join(show(other, 60) or "(the root)" for other in nearest(name, names) or names[:8])
        raise UsageError(f"no section {name}", path=self.path, hint=f"sections: {listed or 'none'}")

    def weights(self, name: str | None) -> list[Section]:
        """The sections of weights, averaged ones too, or the one that is asked for. Raises UsageError without any."""
        if name is not None:
            return [self.section(name)]
        chosen = [section for section in self.sections if section.kind in ("model", "ema")]
        if not chosen:
            raise UsageError("holds no model that could be told from the rest", path=self.path)
        return chosen

    def only_model(self, name: str | None) -> Section:
        """The section that is asked for, or the only model. Raises UsageError with the list of those that there are."""
        if name is not None:
            return self.section(name)
        chosen = self.models or [section for section in self.sections if section.kind == "ema"]
        if not chosen:  # a file of nothing but tensors
            chosen = [section for section in self.sections if section.kind == "other" and not section.path]
        if not chosen:
            raise UsageError("holds no model that could be told from the rest", path=self.path)
        if len(chosen) > 1:
            listed = ", or ".join(f"--section {show(section.name, 60)}" for section in chosen[:8])
            raise UsageError(f"holds {len(chosen)} models", path=self.path, hint=listed)
        return chosen[0]

    # --- evidence ---------------------------------------------------------------------------------------------

    @cached_property
    def _evidence(self) -> Evidence:
        return find_roles(self.checkpoint, self.sections, self.model)

    @property
    def roles(self) -> list[Role]:
        """The role of each of `tensors`, in the same order."""
        return self._evidence.roles

    @property
    def matches(self) -> tuple[Match, ...]:
        """The parameters of each optimizer, and which tensors they are."""
        return self._evidence.matches

    @property
    def record(self) -> RecordMatch | None:
        """What a snapshot or a live model says, where there is one."""
        return self._evidence.record

    @cached_property
    def uses(self) -> tuple[GradientUse, ...]:
        """Who had a gradient, as the state of each optimizer says it."""
        return gradient_uses(self.matches)

    @property
    def knows_gradients(self) -> bool:
        """Whether anything here can tell who had a gradient."""
        kinds = {section.kind for section in self.sections}
        return self.model is not None or not kinds.isdisjoint(("optimizer", "snapshot"))

    @cached_property
    def unseen(self) -> UnseenParts:
        """What the pickled models hold that torch does not see."""
        from ckpt.evidence.modules import unseen_parts  # here: only lint pays for it

        return unseen_parts(self.checkpoint)

    @cached_property
    def load(self) -> Load:
        """How to open the file in Python."""
        return load_of(self.checkpoint, self.models)

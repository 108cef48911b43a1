"""The account of a checkpoint: what its reader noticed, and which parts of it are lost,
left out or doubtful.

Each reader fills one, each command asks it, and each screen prints what it says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ckpt.model.findings import LOST
from ckpt.model.rows import NamedTuple
from ckpt.model.text import show

UNREAD = "(unread)"
"""The name of what was not read, and whose names are not known."""

DAMAGED_FILE = "damaged-file"
"""The code of a notice about a file, or a part of one, that was passed over because it
is damaged.
"""


class Notice(NamedTuple):
    """An oddity that the reader noticed while it read on: a code of the catalogue of
    findings, and a sentence.

    `hint` is a command that mends it, ready to paste. `file` is the one that was not
    read.
    """

    code: str
    message: str
    tensors: tuple[str, ...] = ()
    hint: str | None = None
    file: str | None = None


class Absence(NamedTuple):
    """A part of a checkpoint that is not there, by its name or UNREAD, and the
    reason.
    """

    name: str
    why: str


class Account(NamedTuple):
    """The notices of a reader in their order, and the values that are not in the tree
    although they belong there.

    `left_out` are the values that a live model holds and no file can, or that a file
    lacks.
    """

    notices: tuple[Notice, ...] = ()
    left_out: tuple[Absence, ...] = ()

    def noticed(self, *codes: str) -> list[Notice]:
        """Return the notices with one of these codes, in the order of the reader."""
        return [notice for notice in self.notices if notice.code in codes]

    def has_noticed(self, *codes: str) -> bool:
        """Tell whether there is a notice with one of these codes."""
        return any(notice.code in codes for notice in self.notices)

    def messages(self, codes: Collection[str]) -> list[str]:
        """Return the sentences of the notices with one of these codes."""
        return [notice.message for notice in self.noticed(*codes)]

    @property
    def lost_names(self) -> tuple[str, ...]:
        """The names of the tensors whose elements are not all there once, each one
        time.
        """
        # Several notices may name one tensor.
        names: dict[str, None] = {}
        for notice in self.noticed(*LOST):
            names.update(dict.fromkeys(notice.tensors))
        return tuple(names)

    @property
    def is_partial(self) -> bool:
        """Tell whether tensors or values are missing."""
        return bool(self.left_out) or self.has_noticed(*LOST)

    @property
    def is_damaged(self) -> bool:
        """Tell whether something was passed over because it is damaged."""
        return self.has_noticed(DAMAGED_FILE)

    @property
    def unread(self) -> tuple[Absence, ...]:
        """The parts that could not be read. A damaged file of which no part is known
        stands there as UNREAD.
        """
        # A damaged file whose values have names is in `left_out` already.
        known = {absence.why for absence in self.left_out}
        damage = [why for why in self.messages((DAMAGED_FILE,)) if why not in known]
        return (*self.left_out, *(Absence(UNREAD, why) for why in damage))

    def unlisted(self, listed: Collection[str]) -> list[Absence]:
        """Return the lost tensors that are not among the `listed` names, or UNREAD
        where a notice names none.
        """
        absences: list[Absence] = []
        for notice in self.noticed(*LOST):
            for name in notice.tensors or (UNREAD,):
                if name not in listed:
                    absences.append(Absence(name, notice.message))
        return absences

    @property
    def first_lack(self) -> str | None:
        """The first reason why the checkpoint is not whole, by its own metadata, or
        None.
        """
        # Notices are about files, and come before the values in them.
        for message in self.messages((*LOST, DAMAGED_FILE)):
            return message
        for absence in self.left_out:
            return f"{show(absence.name, 60)}: {absence.why}"
        return None

    def with_notices(self, *notices: Notice) -> Account:
        """Return the account with further notices at its end."""
        return self._replace(notices=(*self.notices, *notices))

    def after(self, notices: Iterable[Notice]) -> Account:
        """Return the account with the notices of a set before its own."""
        return self._replace(notices=(*notices, *self.notices))

    def without_values(self, absences: Iterable[Absence]) -> Account:
        """Return the account with further values that are not in the tree."""
        return self._replace(left_out=(*self.left_out, *absences))

    def without_losses(self) -> Account:
        """Return the account of what is left when the lost parts are taken out: nothing
        is missing from it.
        """
        return Account(
            tuple(notice for notice in self.notices if notice.code not in LOST)
        )

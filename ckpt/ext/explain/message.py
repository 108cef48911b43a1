"""An error of a program, as a text holds it: its family, and the numbers, names and
shapes that it names.
"""

from __future__ import annotations

from ckpt.evidence.numbering import Numbers
from ckpt.model.rows import NamedTuple
from ckpt.model.text import Json

LONGEST_LINE = 4_000
"""Characters of an error that are kept to be shown and to find its page."""
MOST_NAMES = 1_000_000
"""Names that are taken from one message."""


class Mismatch(NamedTuple):
    """A tensor that has one shape in the checkpoint and another one in the model."""

    name: str
    checkpoint: tuple[int, ...]
    model: tuple[int, ...]


class Message(NamedTuple):
    """An error of a program. `text` is its line. What it names depends on its kind, the
    word of its family.

    `names` are parameters without a gradient (`ddp`, where DDP prints names too), names
    that loading imports (`globals`, `code`), keys that a distributed checkpoint lacks
    (`distributed`), words that the error quotes, or pairs of names that a loader
    compared by their ends (`keys`, `sizes`).
    """

    kind: str
    text: str
    numbers: Numbers | None = None
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()
    device: str | None = None
    types: tuple[str, str] | None = None
    """The model types that transformers names where they differ: of the checkpoint, and
    of the class that was built.
    """
    task: str | None = None
    """The task of the class of transformers that was built:
    `ForSequenceClassification`.
    """
    is_cut: bool = False
    """True where a list of names has dots: somebody left names out."""
    owner: str | None = None
    """The variable from which a program takes a key that it lacks, where that is no
    state of an optimizer.
    """

    @property
    def fields(self) -> dict[str, str]:
        """The words of the error that the commands of a page take."""
        # A page without numbers shows where they stand in the command: `--index N,N`.
        numbers = self.numbers.all if self.numbers is not None else []
        return {"numbers": ",".join(map(str, numbers)) or "N,N"}

    def to_json(self) -> dict[str, Json]:
        """The object `message` of the document `ckpt.explain`."""
        numbers = self.numbers
        return {
            "kind": self.kind,
            "text": self.text,
            "numbers": [
                {"rank": rank, "indices": list(indices)}
                # Each rank has its own list: DDP prints the parameters of one rank in
                # one message.
                for rank, indices in (numbers.ranks if numbers else ())
            ],
            "names": list(self.names),
            "missing": list(self.missing),
            "unexpected": list(self.unexpected),
            "mismatched": [
                {
                    "name": row.name,
                    "checkpoint": list(row.checkpoint),
                    "model": list(row.model),
                }
                for row in self.mismatched
            ],
            "device": self.device,
        }

"""The result of `ckpt.open`: a checkpoint as a mapping of names to tensors, each read when it is asked for.

`ckpt.inspect` gives a report without tensor data, `ckpt.diff` a comparison.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, ValuesView
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ckpt import checkpoint as contents
from ckpt.checkpoint import Entry
from ckpt.elements import cast
from ckpt.elements.blocks import elements
from ckpt.errors import UnsupportedError, UsageError, about
from ckpt.limits import Limits
from ckpt.names import nearest
from ckpt.nodes import Node
from ckpt.rows import NamedTuple
from ckpt.tensors import TensorRef
from ckpt.text import Json, listed, plural, show, size_text

if TYPE_CHECKING:
    import numpy as np

    from ckpt.evidence.survey import Survey

R = TypeVar("R")


class MissingNameError(KeyError):
    """A name that a checkpoint does not have. Its text suggests the names that are most like it."""

    def __init__(self, name: str, what: str = "tensor", names: Iterable[str] = ()) -> None:
        super().__init__(name)
        self._what = what
        self._names = names

    @property
    def hint(self) -> str | None:
        """The question `did you mean …?` with the nearest names, or None."""
        near = nearest(str(self.args[0]), self._names)
        return f"did you mean {', '.join(show(other, 60) for other in near)}?" if near else None

    def __str__(self) -> str:  # only here are all names compared: `in` raises and drops one for each question
        hint = self.hint
        return f"no {self._what} '{show(str(self.args[0]), 80)}'" + (f" ({hint})" if hint else "")


class SectionSummary(NamedTuple):
    """A part of a checkpoint: its dotted name, its kind (`model`, `optimizer` …), and its tensors with their bytes."""

    name: str
    kind: str
    tensors: int
    nbytes: int


class Values(Mapping[str, Json]):
    """The values that are not tensors: dotted names -> plain values, in file order.

    A call gives the tensors, as `Mapping.values` does.
    """

    def __init__(self, checkpoint: contents.Checkpoint, tensors: ValuesView[Any]) -> None:
        self._checkpoint = checkpoint
        self._tensors = tensors
        self._rows = {row.name: row for row in checkpoint.values}

    def __call__(self) -> ValuesView[Any]:
        return self._tensors

    def __getitem__(self, name: str) -> Json:
        from ckpt.tree.find import find, node_at

        matches = find(self._checkpoint.root, name, Limits())
        if matches:
            return _plain(matches[0][1])
        if name not in self._rows:
            raise MissingNameError(name, "value", self._rows)
        return _plain(
            node_at(self._checkpoint.root, self._rows[name].path)
        )  # marked, as a second one of its name

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'value')}: {listed(list(self), 4, 40)}>"


def _plain(node: Node) -> Json:
    """A node as plain Python: scalars exactly, all else as `ckpt get --json` has it."""
    from ckpt.tree.json import plain
    from ckpt.tree.view import look

    view = look(node)
    if view.kind == "scalar" and (view.value is None or isinstance(view.value, (bool, int, float))):
        return view.value
    return plain(node)


class Ref:
    """One tensor of an open checkpoint: what it is without a byte read, and its values when they are asked for."""

    __slots__ = ("_checkpoint", "_entry")

    def __init__(self, checkpoint: contents.Checkpoint, entry: Entry) -> None:
        self._checkpoint = checkpoint
        self._entry = entry

    @property
    def name(self) -> str:
        """The dotted name."""
        return self._entry.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._entry.tensor.shape

    @property
    def dtype(self) -> str:
        """torch's name of the element type: `bfloat16`."""
        return self._entry.tensor.dtype.name

    @property
    def device(self) -> str | None:
        """The tag in the file (`cuda:0`), or None if the format keeps none."""
        return self._entry.tensor.device

    @property
    def numel(self) -> int:
        """Elements."""
        return self._entry.tensor.numel

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self._entry.tensor.nbytes

    @property
    def layout(self) -> str:
        """`strided`, or `sparse_coo`, `quantized` and so on."""
        return self._entry.tensor.layout

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a new array of this shape.

        float16 and wider keep their type; bfloat16 and 8-bit floats become float32, complex32 complex64, all exactly.
        Raises UnsupportedError for layouts and element types that numpy has no numbers for, UnreadableError.
        """
        import numpy as np

        ref = self._strided()
        if not cast.has_numbers(ref.dtype):
            raise UnsupportedError(
                f"{show(self.name, 80)}: numpy has no {self.dtype}", path=self._checkpoint.path
            )
        data = self._bytes(ref)
        if ref.dtype.kind == "bool":
            return np.frombuffer(data, "?").reshape(ref.shape).copy()
        if ref.dtype.name == "float16":
            return np.frombuffer(data, "<f2").reshape(ref.shape).copy()
        return cast.numbers(data, ref.dtype).reshape(ref.shape).copy()

    def torch(self) -> Any:
        """The values as a new torch.Tensor on the CPU. Raises UsageError where torch is not installed."""
        from ckpt.live.memory import tensor

        ref = self._strided()
        return tensor(ref, self._bytes(ref))

    def _strided(self) -> TensorRef:
        tensor = self._entry.tensor
        if not isinstance(tensor, TensorRef):
            raise UnsupportedError(
                f"{show(self.name, 80)} is {tensor.layout}, not strided", path=self._checkpoint.path
            )
        if tensor.storage.place is None and tensor.numel:
            raise UnsupportedError(
                f"{show(self.name, 80)} is on meta, without data", path=self._checkpoint.path
            )
        return tensor

    def _bytes(self, ref: TensorRef) -> bytes:
        with about(self._checkpoint.path):
            return b"".join(elements(ref))

    def __repr__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        return f"<{show(self.name)}: {self.dtype} {list(self.shape)}{where}>"


class Shown(Mapping[str, R]):
    """The members that an open checkpoint and a report share: path, values, sections."""

    checkpoint: contents.Checkpoint

    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def format(self) -> str:
        """`torch-zip`, `torch-legacy`, `safetensors`, `sharded`, `folder`, `torchscript`, `pt2` and others."""
        return self.checkpoint.format

    @property
    def values(self) -> Values:  # a mapping that can be called, as the method
        """The values that are not tensors: dotted names -> plain values.

        `values()` gives the tensors, as of any mapping.
        """
        return Values(self.checkpoint, ValuesView(self))

    def value(self, name: str) -> Json:
        """Return a value by its dotted name: a scalar exactly, all else as `ckpt get --json` has it.

        A tensor is not a value. Raises UsageError when it is not there.
        """
        try:
            return self.values[name]
        except MissingNameError as error:
            raise UsageError(f"no value {show(name, 80)}", path=self.path, hint=error.hint) from None

    @property
    def survey(self) -> Survey:
        """The survey of the checkpoint."""
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        """Return the lines of `ckpt inspect` as HTML, or None if the file cannot be read any more."""
        # Named as text: only a notebook loads what it shows.
        html: str | None = import_module("ckpt.render.notebook").html_inspect(self.survey)
        return html

    def _sizes(self) -> str:
        nbytes = sum(entry.tensor.nbytes for entry in self.checkpoint.tensors)
        name = os.path.basename(os.path.abspath(self.path))
        return f"{show(name)}: {plural(len(self), 'tensor')}, {size_text(nbytes)}"


class Checkpoint(Shown[Ref]):
    """An open checkpoint: dotted names -> tensors, in file order. A context manager: leaving it closes the file.

    A name that is not there raises KeyError with the names most like it. `checkpoint` is all that was read.
    """

    def __init__(
        self, checkpoint: contents.Checkpoint, limits: Limits | None = None, *, plugins: bool = False
    ) -> None:
        self.checkpoint = checkpoint
        self.limits = limits or Limits()
        self.plugins = plugins
        self._survey: Survey | None = None
        self._entries = {entry.name: entry for entry in checkpoint.tensors}

    def __getitem__(self, name: str) -> Ref:
        if name not in self._entries:
            raise MissingNameError(name, "tensor", self._entries)
        return Ref(self.checkpoint, self._entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def sections(self) -> tuple[SectionSummary, ...]:
        """The parts of the checkpoint: its models, optimizers, schedulers …"""
        return summaries(self.survey)

    @property
    def survey(self) -> Survey:
        """The survey of the checkpoint, which is made once."""
        from ckpt.evidence.survey import Survey

        if self._survey is None:
            self._survey = Survey(self.checkpoint)
        return self._survey

    def check_unchanged(self) -> None:
        """Raise NotOpenedError when a file has changed since it was opened."""
        self.checkpoint.check_unchanged()

    def close(self) -> None:
        """Close the file."""
        self.checkpoint.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ckpt.Checkpoint {self._sizes()}>"


def summaries(survey: Survey) -> tuple[SectionSummary, ...]:
    return tuple(SectionSummary(row.name, row.kind, row.tensors, row.nbytes) for row in survey.sections)

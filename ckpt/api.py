"""What `ckpt.open` gives a program: a checkpoint as a mapping of names to tensors, each read when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ckpt import formats
from ckpt.checkpoint import Checkpoint, Entry
from ckpt.elements import cast
from ckpt.elements.blocks import elements
from ckpt.errors import UnsupportedError, UsageError, about
from ckpt.limits import Limits
from ckpt.names import nearest
from ckpt.tensors import TensorRef
from ckpt.text import Json, show

if TYPE_CHECKING:
    import numpy as np

    from ckpt.jobs.diff.diff import DiffReport, Options


class Ref:
    """One tensor of an open checkpoint: what it is without a byte read, and its values when they are asked for."""

    __slots__ = ("_checkpoint", "_entry")

    def __init__(self, checkpoint: Checkpoint, entry: Entry) -> None:
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
        """The tag in the file (`cuda:0`), None where the format keeps none."""
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


class OpenCheckpoint(Mapping[str, Ref]):
    """An open checkpoint: dotted names -> tensors, in file order. A context manager: leaving it closes the file.

    `checkpoint` is all that was read: sections, values, imports, findings of the reader.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._entries = {entry.name: entry for entry in checkpoint.tensors}

    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def format(self) -> str:
        """`torch-zip`, `torch-legacy`, `safetensors`, `sharded`, `folder`, `torchscript`."""
        return self.checkpoint.format

    def __getitem__(self, name: str) -> Ref:
        return Ref(self.checkpoint, self._entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def value(self, name: str) -> Json:
        """What is no tensor, by its dotted name, as `ckpt get --json` has it. Raises UsageError when it is not there."""
        from ckpt.tree.find import find
        from ckpt.tree.json import plain

        found = find(self.checkpoint.root, name, Limits())
        if not found:
            near = nearest(name, [value.name for value in self.checkpoint.values])
            hint = f"near: {', '.join(show(other, 60) for other in near)}" if near else None
            raise UsageError(f"no value {show(name, 80)}", path=self.path, hint=hint)
        return plain(found[0][1])

    def close(self) -> None:
        """Close the file."""
        self.checkpoint.close()

    def __enter__(self) -> OpenCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{show(self.path)}: {self.format}, {len(self)} tensors>"


def diff(
    before: str | os.PathLike[str] | OpenCheckpoint,
    after: str | os.PathLike[str] | OpenCheckpoint,
    options: Options | None = None,
) -> DiffReport:
    """What differs between two checkpoints, given as paths or open: what `ckpt diff` prints, as a report.

    `report.same` is the answer, `report.rows` the tensors, `report.to_json()` the document. Raises CkptError.
    """
    from ckpt.evidence.survey import Survey
    from ckpt.jobs.diff.diff import diff as compare

    with ExitStack() as stack:
        sides = []
        for side in (before, after):
            if not isinstance(side, OpenCheckpoint):
                side = stack.enter_context(open(side))
            sides.append(side.checkpoint)
        report = compare(Survey(sides[0]), Survey(sides[1]), options)
        for checkpoint in sides:
            checkpoint.check_unchanged()
    return report


def open(path: str | os.PathLike[str], limits: Limits | None = None) -> OpenCheckpoint:
    """The checkpoint at a path: a file, an index of shards, or a directory that holds one.

    Nothing that the file names is run or imported, and no tensor data is read until it is asked for. Raises
    CkptError with the path in front.
    """
    return OpenCheckpoint(formats.open(os.fsdecode(path), limits))

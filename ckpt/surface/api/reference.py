"""One tensor of an open checkpoint: what it is without a byte read, and its values when
they are asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ckpt.bytes.source import Source
from ckpt.hooks import load_hook
from ckpt.model.checkpoint import Entry
from ckpt.model.errors import UnsupportedError, lines_in_notebook
from ckpt.model.names import nearest_names
from ckpt.model.tensors import TensorRef, unwrap_dtensor
from ckpt.model.text import show

if TYPE_CHECKING:
    import numpy as np

    from ckpt.surface.api.handle import Handle

R = TypeVar("R")


def show_key(name: str) -> str:
    """A name as a key of Python, in double quotes, safe to print."""
    return f'"{show(name, 80)}"'


class MissingNameError(KeyError):
    """A name that a checkpoint does not have. Its text suggests the names that are most
    like it.

    `elsewhere` gives the expression for something else of this name, if there is one: a
    value, a section.
    """

    def __init__(
        self,
        name: str,
        what: str = "tensor",
        names: Iterable[str] = (),
        elsewhere: Callable[[], str | None] | str | None = None,
    ) -> None:
        # KeyError: whoever asks a mapping for a name expects it.
        super().__init__(name)
        self._what = what
        self._names = names
        self._elsewhere = elsewhere

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (
            self.args[0],
            self._what,
            list(self._names),
            self._other_place,
        )

    @property
    def _other_place(self) -> str | None:
        return self._elsewhere() if callable(self._elsewhere) else self._elsewhere

    @property
    def hint(self) -> str | None:
        """The expression for what has this name, else the question `did you mean …?`
        with the nearest names, or None.
        """
        if self._other_place is not None:
            return self._other_place
        near = nearest_names(str(self.args[0]), self._names)
        if near:
            return f"did you mean {', '.join(show(other, 60) for other in near)}?"
        return None

    def __str__(
        self,
    ) -> (
        str
    ):  # only here are all names compared: `in` raises and drops one for each question
        hint = self.hint
        return f"no {self._what} '{show(str(self.args[0]), 80)}'" + (
            f" ({hint})" if hint else ""
        )

    def _render_traceback_(self) -> list[str]:
        return lines_in_notebook(self)


class Ref:
    """A tensor of an open checkpoint. `ref[10:20]` reads these rows only, and
    `np.asarray(ref)` all of it.

    References to the same tensor of the same file are equal.
    """

    __slots__ = ("_entry", "_handle", "_index")

    def __init__(self, handle: Handle, index: int) -> None:
        self._handle = handle
        self._index = index
        self._entry: Entry = handle.checkpoint.tensors[index]

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError with the way to a method of an array or a tensor."""
        # A reference is often taken for an array.
        text = f"'Ref' object has no attribute '{show(name, 80)}'"
        if not name.startswith("_"):
            text += " (.numpy() and .torch() read the tensor)"
        raise AttributeError(text, name=name, obj=self)

    @property
    def name(self) -> str:
        """The dotted name."""
        return self._entry.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._entry.tensor.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._entry.tensor.shape)

    @property
    def stride(self) -> tuple[int, ...] | None:
        """The strides in the file, in elements, or None for a tensor that is not
        strided.
        """
        tensor = unwrap_dtensor(self._entry.tensor)
        return tensor.stride if isinstance(tensor, TensorRef) else None

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

    @property
    def requires_grad(self) -> bool | None:
        """The flag in the file, or None if the file does not record it."""
        return self._entry.tensor.requires_grad

    @property
    def section(self) -> str | None:
        """The name of the section that holds it, or None."""
        return self._handle.section_of(self._index)

    @property
    def role(self) -> str:
        """`parameter`, `buffer`, `optimizer`, `other` or `unknown`, as `ckpt inspect`
        has it.
        """
        return self._handle.role_of(self._index)

    # --- values -----------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a new array of this shape, whose memory has the order of the
        file.

        float16 and wider keep their type; bfloat16 and 8-bit floats become float32,
        complex32 complex64, all exactly. Elements that come in blocks, as GGUF has
        them, are decoded to float32. Raises UnsupportedError for layouts and element
        types that numpy has no numbers for, UnreadableError.
        """
        from ckpt.elements.fill import array

        ref = self._with_numbers()
        return self._read(lambda sources: array(ref, sources=sources))

    def torch(self) -> Any:
        """The values as a new torch.Tensor on the CPU. Raises UsageError where torch is
        not installed.
        """
        load_hook("torch").require_torch()
        memory = load_hook("live memory")
        ref = self._strided_tensor()
        return self._read(lambda sources: memory.tensor(ref, sources))

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(
                "reading a tensor makes new memory: copy=False is not possible"
            )
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        """Read the elements at an index as numpy has it. Slices and numbers read only
        what they need.
        """
        import numpy as np

        from ckpt.elements.fill import array

        # An array of one byte in the shape of the tensor: the index is checked by numpy
        # itself.
        np.broadcast_to(np.zeros((), "u1"), self.shape)[key]  # raises what numpy raises
        items = key if isinstance(key, tuple) else (key,)
        # Masks and arrays as indices: numpy takes them from the whole tensor.
        if not all(map(_is_basic, items)):
            return self.numpy()[key]
        ref = self._with_numbers()
        region, flipped, view = _indexed_region(items, self.shape)
        return self._read(lambda sources: array(ref, region, flipped, sources))[view]

    def __iter__(self) -> Iterator[Any]:
        # As numpy refuses it.
        if not self.ndim:
            raise TypeError("iteration over a tensor of no dimensions")
        return (self[index] for index in range(self.shape[0]))

    def _read(self, read: Callable[[list[Source]], R]) -> R:
        return self._handle.read(read)

    def _strided_tensor(self) -> TensorRef:
        self._handle.check_open()
        problem, tensor = unfit(self._entry), unwrap_dtensor(self._entry.tensor)
        if problem is not None or not isinstance(tensor, TensorRef):
            raise UnsupportedError(
                f"{show(self.name, 80)} is {problem}", path=self._handle.path
            )
        return tensor

    def _with_numbers(self) -> TensorRef:
        ref = self._strided_tensor()
        if ref.dtype.block is not None:
            from ckpt.elements.unpacked import (
                can_unpack,
                unpacked,
            )  # here: few tensors have blocks

            if can_unpack(ref):
                return unpacked(ref)
        # Here: most references are asked for a shape or a device alone.
        from ckpt.elements.cast import has_numbers

        if not has_numbers(ref.dtype):
            raise UnsupportedError(
                f"{show(self.name, 80)}: numpy has no {self.dtype}",
                path=self._handle.path,
            )
        return ref

    # --- identity ---------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ref):
            return NotImplemented
        return self._index == other._index and self._handle == other._handle

    def __hash__(self) -> int:
        return hash((self._handle, self._index))

    def __copy__(self) -> Ref:
        return self

    def __deepcopy__(self, memo: object) -> Ref:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return Ref, (self._handle, self._index)

    def __repr__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        return f"<{show(self.name)}: {self.dtype} {list(self.shape)}{where}>"


def unfit(entry: Entry) -> str | None:
    """Return the reason why a tensor has no plain values, or None."""
    tensor = unwrap_dtensor(entry.tensor)
    if not isinstance(tensor, TensorRef):
        return f"{tensor.layout}, not strided"
    if tensor.storage.place is None and tensor.numel:
        return "on meta, without data"
    return None


def _is_basic(item: Any) -> bool:
    """Tell whether numpy takes a part of an index as a number, a slice or a new
    dimension.
    """
    if item is None or item is Ellipsis or isinstance(item, slice):
        return True
    shape: object = getattr(item, "shape", None)
    if shape or type(item).__name__ in ("bool", "bool_"):  # arrays and masks
        return False
    try:
        operator.index(item)
    except TypeError:
        return False
    return True


def _indexed_region(
    items: tuple[Any, ...], shape: tuple[int, ...]
) -> tuple[tuple[range, ...], list[int], tuple[Any, ...]]:
    """(the indices of each dimension, the dimensions that are backwards, the index that
    gives the result its shape).
    """
    # The dimensions that the index names; `...` stands for all others.
    count = sum(item is not None and item is not Ellipsis for item in items)
    if not any(item is Ellipsis for item in items):
        items = (*items, *[slice(None)] * (len(shape) - count))
    region: list[range] = []
    flipped: list[int] = []
    view: list[Any] = []
    for item in items:
        if item is None:
            view.append(None)
        elif item is Ellipsis:
            rest = shape[len(region) : len(region) + len(shape) - count]
            region += map(range, rest)
            view.append(item)
        elif isinstance(item, slice):
            # Read forwards, and turned in memory.
            indices = range(*item.indices(shape[len(region)]))
            if indices.step < 0:
                flipped.append(len(region))
                indices = indices[::-1]
            region.append(indices)
            view.append(slice(None))
        else:
            index = operator.index(item) % shape[len(region)]
            region.append(range(index, index + 1))
            view.append(0)
    return tuple(region), flipped, tuple(view)

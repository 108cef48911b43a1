"""torch's rebuild calls in an inert tree -> what they stand for: tensor references,
composites, nested trees.

`annotate` writes the meaning beside each call; the tree itself stays as the file has
it. One function checks the shape and strides of every tensor. Calls: torch/_utils.py,
torch/_tensor.py, torch/storage.py of torch 0.1 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, cast

from ckpt.model.dtypes import BY_NAME, BY_STORAGE, UINT8, DType
from ckpt.model.errors import UnreadableError
from ckpt.model.limits import Budget
from ckpt.model.names import LazyPattern
from ckpt.model.nodes import (
    WITH_STATE,
    Dict,
    Global,
    Nested,
    Node,
    Opaque,
    PersistentId,
    Set,
    Tagged,
    inside,
    is_tuple,
    tensor_of,
)
from ckpt.model.places import Place, Range
from ckpt.model.rows import replace
from ckpt.model.tensors import (
    DIMENSIONS,
    Composite,
    Storage,
    Tensor,
    TensorRef,
    is_countable,
    tensor_ref,
    unexpanded_view,
)
from ckpt.model.text import show
from ckpt.pickle.bounds import Bounds, odd_jagged, odd_nested, odd_scheme, odd_sparse
from ckpt.pickle.machine import Fillings, Pickle
from ckpt.tree.arrays import array_of, as_bytes
from ckpt.tree.scalars import device_text

if TYPE_CHECKING:
    from ckpt.pickle.sharded import Mesh

_STEP, _TENSOR = 1_000, 500
"""Tensors after which the budget is charged, and bytes of memory of a tensor and its
storage.
"""
_TOO_MANY = 2**63
_MOST_AROUND = 16
"""The most parameters around each other. Each command walks through all of them."""

UNTYPED = ("UntypedStorage", "_UntypedStorage")


class Rebuilder:
    """Finds the meaning of the calls of one pickle. `nested` opens a checkpoint inside
    bytes.

    The tensors are charged to `budget`, if there is one. With `bounds` the numbers in
    the parts of tensors are read, and `excesses` names those that lead out of their
    tensors.
    """

    def __init__(
        self,
        nested: Callable[[bytes | Range], Node],
        budget: Budget | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._nested = nested
        self._budget = budget
        self._bounds = bounds
        self.excesses: list[str] = []
        self._meta = 0
        self._fillings = Fillings()
        self._meshes: dict[int, Mesh | None] = {}
        self._states: dict[int, Node] = {}
        self._again = 0
        self._depths: dict[int, int] = {}

    def annotate(self, pickle: Pickle) -> None:
        """Set `meaning` of every call that torch would turn into a tensor. Raises
        UnreadableError.
        """
        # By the node of the name: each call is then one lookup, and no text is
        # compared.
        builders: dict[Node, _Builder] = {
            name: build
            for name in pickle.globals.values()
            if (build := _BUILDERS.get(name.qualified))
        }
        self._fillings = pickle.fillings
        built = 0
        from_states: list[tuple[Opaque, _Builder]] = []
        # In the order of the file: the arguments of a call come before it.
        for call in pickle.calls:
            build = builders.get(call.func)
            if build is not None and call.states and not call.args:
                from_states.append((call, build))  # its state comes after it
            elif build is not None:
                self._annotate_call(call, build)
                built += 1
                if not built % _STEP and self._budget is not None:
                    self._budget.charge(_STEP * _TENSOR)
        # A state comes after its call, so that inner calls are the last in the file.
        for call, build in reversed(from_states):
            self._annotate_call(call, build)
        if self._bounds is not None:
            self._look_at_generators(pickle, self._bounds)
        refuse_odd_containers(pickle)

    def _look_at_generators(self, pickle: Pickle, bounds: Bounds) -> None:
        """Note the states of generators that lead out of their numbers."""
        classes = {
            name
            for name in pickle.globals.values()
            if name.qualified == "torch._C.Generator"
        }
        if not classes:
            return
        for call in pickle.calls:
            # A class may be given to a function of copyreg. Others are given lists,
            # which have no hash.
            names = [call.func, *call.args[:1]]
            is_generator = any(type(row) is Global and row in classes for row in names)
            if not call.states or not is_generator:
                continue
            for part in _tuple_state(call):
                state = tensor_of(part)
                if type(state) is not TensorRef:
                    continue
                excess = bounds.excess_of_generator(state)
                if excess is not None:
                    self.excesses.append(
                        f"{excess}, in the generator at byte {call.offset:,} of the "
                        "pickle"
                    )

    def set_meaning(self, call: Opaque) -> None:
        """Set the `meaning` of one call, whose parts have theirs already. Raises
        UnreadableError.
        """
        build = (
            _BUILDERS.get(call.func.qualified) if type(call.func) is Global else None
        )
        if build is not None:
            self._annotate_call(call, build)

    def _annotate_call(self, call: Opaque, build: _Builder) -> None:
        try:
            call.meaning = build(self, call.args, call)
            if call.states and build in _FINISHED and call.meaning is not None:
                raise BadCallError("its tensor is changed by a state afterwards")
            if (
                call.states
                and type(call.meaning) is Nested
                and tensor_of(call) is not None
            ):
                raise BadCallError("its tensor is changed by a state afterwards")
            if (
                self._fillings.last
                and tensor_of(call) is not None
                and self._is_filled_late(call)
            ):
                raise BadCallError("what it is called with is filled afterwards")
            if (call.items or call.keys) and tensor_of(call) is not None:
                raise BadCallError(
                    "items are set on its tensor, a fault in memory with torch up to "
                    "2.9"
                )
        except BadCallError as error:
            assert type(call.func) is Global  # else there would be no builder
            problem = (
                f"damaged pickle: {call.func.name} at byte {call.offset:,}: {error}"
            )
            raise UnreadableError(problem) from None

    def _is_filled_late(self, call: Opaque) -> bool:
        """Tell whether a list or dict that the call is given got items after the call,
        which torch has not seen.
        """
        fillings = self._fillings
        if fillings.is_filled_after(call, call.offset) and not call.states:
            return True
        args = call.args
        if type(call.meaning) is TensorRef and len(args) == WITH_STATE:
            args = args[:-1]  # attributes that come later are no part of the tensor
        todo: list[tuple[Node, int]] = [(arg, call.offset) for arg in args]
        todo += [(state, fillings.build_of(call)) for state in call.states]
        seen: set[tuple[int, int]] = set()  # a list may hold itself
        while todo:
            node, offset = todo.pop()
            if (id(node), offset) in seen:
                continue
            seen.add((id(node), offset))
            is_container = type(node) is not Opaque or _is_dict(node)
            if is_container and fillings.is_filled_after(node, offset):
                return True
            if type(node) is list or is_tuple(node):
                todo += [(part, offset) for part in node]
            elif type(node) is Opaque and node.class_name == "torch.Size":
                todo += [(part, node.offset) for part in node.args]
        return False

    # --- one method per call --------------------------------------------------------
    # `args` are those of the rebuild function, `call` is the node in the tree.

    def _tensor(self, args: tuple[Node, ...], call: Opaque) -> TensorRef:
        _check_arity(args, 4)
        return _numeric_tensor(_storage_view(args[0], args[2], args[3], args[1]))

    def _tensor_v2(self, args: tuple[Node, ...], call: Opaque) -> TensorRef:
        _check_arity(args, 5)
        return _flagged_view(args, None, args[6] if len(args) > 6 else None)

    def _tensor_v3(self, args: tuple[Node, ...], call: Opaque) -> TensorRef:
        _check_arity(args, 7)
        return _flagged_view(
            args, _parse_dtype(args[6]), args[7] if len(args) > 7 else None
        )

    def _parameter_tensor(self, args: tuple[Node, ...], call: Opaque) -> Tensor:
        _check_arity(args, 2)
        # (data, requires_grad, backward hooks).
        data = _tensor(args[0])
        depth = self._depths.get(id(args[0]), 0) + 1
        if depth > _MOST_AROUND:
            raise BadCallError("parameters lie around each other")
        # The pickle keeps the call, so that nothing else gets its id.
        self._depths[id(call)] = depth
        return _with_flags(data, True, data.is_buffer, _flag_or_none(args[1]))

    def _parameter_with_state(self, args: tuple[Node, ...], call: Opaque) -> Tensor:
        tensor = self._parameter_tensor(args, call)
        state = args[3] if len(args) > WITH_STATE - 1 else None
        _refuse_odd_state(state)
        _refuse_properties(tensor, self._attributes_of(state))
        return tensor

    def _attributes_of(self, state: Node) -> dict[str, Node]:
        """The attributes in a state, which many tensors may share. Raises
        BadCallError where that takes far longer than reading the file.
        """
        attributes = _state_attributes(state)
        for part in state if is_tuple(state) else (state,):
            if id(part) in self._states:
                self._again += len(attributes)
            self._states[id(part)] = part
        if self._again > _MOST_AGAIN:
            raise BadCallError("its many attributes are those of other tensors too")
        return attributes

    def _old_parameter(self, args: tuple[Node, ...], call: Opaque) -> Tensor | None:
        inner = _tuple_state(call)
        data: Node = None
        if args:
            data = args[0]
        elif inner:
            data = inner[0]
        # 0.1 to 0.3: (requires_grad, volatile, hooks), or without arguments (data,
        # gradient, hooks, requires_grad, volatile). torch takes four items for another
        # view of a storage.
        if call.states and (len(call.states) > 1 or len(inner) != (3 if args else 5)):
            raise BadCallError("its tensor is changed by a state afterwards")
        if tensor_of(data) is None:
            return None
        requires_grad = args[1] if len(args) > 1 else None
        if call.states:
            requires_grad = inner[0 if args else 3]
        is_parameter = type(call.func) is Global and call.func.name == "Parameter"
        tensor = _tensor(data)
        return _with_flags(
            tensor, is_parameter, tensor.is_buffer, _flag_or_none(requires_grad)
        )

    def _buffer(self, args: tuple[Node, ...], call: Opaque) -> Tensor | None:
        if call.states:
            raise BadCallError("its tensor is changed by a state afterwards")
        data = tensor_of(args[0]) if args else None
        if data is None:
            return None
        return _with_flags(data, data.is_parameter, True, data.requires_grad)

    def _from_type(self, args: tuple[Node, ...], call: Opaque) -> Tensor | None:
        _check_arity(args, 4)
        # (function, class, arguments of the function, state): torch/_tensor.py.
        func, subclass, inner, state = args[:4]
        if type(func) is not Global or not is_tuple(inner):
            return None
        build = _BUILDERS.get(func.qualified)
        if build is None or build is Rebuilder._from_type:
            return None
        tensor = build(self, inner, call)
        if not isinstance(tensor, (TensorRef, Composite)):
            return None
        attributes = self._attributes_of(state)
        # Another class may take its state by code of its own.
        if _is_of_torch(subclass):
            _refuse_odd_state(None if is_tuple(state) and len(state) > 2 else state)
        _refuse_properties(tensor, attributes)
        if isinstance(tensor, Composite) and tensor.layout == "wrapper":
            tensor = self._of_ranks(tensor, state, attributes)
        elif _is_made_of_others(subclass, attributes) and tensor.layout != "jagged":
            raise BadCallError(
                "its values are those of inner tensors, and torch makes it by another "
                "call"
            )
        if tensor.layout == "jagged":
            _refuse_other_parts(_state_attributes(inner[0]), attributes)
        is_parameter = tensor.is_parameter or attributes.get("_is_param") is True
        if type(subclass) is Global and subclass.name in (
            "Parameter",
            "UninitializedParameter",
        ):
            is_parameter = True
        return _with_flags(
            tensor,
            is_parameter,
            attributes.get("_is_buffer") is True,
            tensor.requires_grad,
        )

    def _of_ranks(
        self, tensor: Composite, state: Node, attributes: dict[str, Node]
    ) -> Composite:
        """Return a tensor of a subclass with its parts.

        The parts of a class of torch.distributed are what one rank holds.
        """
        if (tensor.detail or "").startswith("torch.distributed."):
            from ckpt.pickle.sharded import (
                DTENSORS,
                SHARDED,
                as_piece,
            )  # here: most files are of one process

            if tensor.detail in SHARDED:
                return _with_shards(tensor, state, self._budget)
            if tensor.detail in DTENSORS:
                tensor = replace(tensor, parts=_inner_tensors(attributes))
                return as_piece(tensor, attributes.get("_spec"), self._meshes)
        return replace(tensor, parts=_inner_tensors(attributes))

    def _wrapper_tensor(self, args: tuple[Node, ...], call: Opaque) -> Composite:
        _check_arity(args, 8)
        # torch/_utils.py `_rebuild_wrapper_subclass`: the wrapper itself has no
        # storage.
        cls, dtype, size, _stride, _offset, _layout, device, requires_grad = args[:8]
        # In this order: the first one that is bad says why.
        parsed_dtype = _parse_dtype(dtype)
        shape = _parse_shape(size)
        attributes = _state_attributes(call.states[0]) if call.states else {}
        return Composite(
            layout="wrapper",
            dtype=parsed_dtype,
            shape=shape,
            parts=_inner_tensors(attributes),
            own_device=device_text(device),
            requires_grad=_flag_or_none(requires_grad),
            detail=cls.qualified if type(cls) is Global else None,
        )

    def _quantized(self, args: tuple[Node, ...], call: Opaque) -> Composite:
        _check_arity(args, 6)
        data = _storage_view(args[0], args[2], args[3], args[1])
        # (scheme, scale, zero point), or per channel (scheme, scales, zero points,
        # axis).
        scheme = args[4] if type(args[4]) is tuple and args[4] else (None,)
        if type(scheme[0]) is not Global or not all(map(_is_of_scheme, scheme[1:])):
            raise BadCallError("its scheme is not a name, numbers, tensors, and lists")
        name = scheme[0].name
        _refuse_expanded(data, data.dtype)
        parts = [("int_repr", data)]
        for label, node in zip(("scales", "zero_points"), scheme[1:], strict=False):
            part = tensor_of(node)
            if isinstance(part, TensorRef):
                _refuse_expanded(part, BY_NAME["float64"])  # torch makes them anew
                parts.append((label, part))
            elif type(node) is float or (type(node) is int and node.bit_length() < 64):
                name += f", {label.replace('_', ' ').removesuffix('s')} {node!r}"
        _refuse_odd(odd_scheme(scheme, data.dtype, dict(parts), data.shape))
        return Composite(
            "quantized",
            data.dtype,
            data.shape,
            tuple(parts),
            requires_grad=_flag_or_none(args[5]),
            detail=name,
        )

    def _sparse_tensor(self, args: tuple[Node, ...], call: Opaque) -> Composite:
        _check_arity(args, 2)
        layout = _layout(args[0])
        data = args[1]
        labels: tuple[str, ...] = ("compressed_indices", "plain_indices", "values")
        if layout == "sparse_coo":
            labels = ("indices", "values")
        # The tensors, then the size, and in newer files whether it is coalesced.
        if not is_tuple(data) or len(data) <= len(labels):
            raise BadCallError("its data is not a tuple of tensors and a size")
        tensors = [_tensor(node) for node in data[: len(labels)]]
        parts = tuple(
            (label, part)
            for label, part in zip(labels, tensors, strict=True)
            if isinstance(part, TensorRef)
        )
        if len(parts) != len(labels):
            raise BadCallError("its parts are not plain tensors")
        shape = _parse_shape(data[len(labels)])
        for _, part in parts[:-1]:
            # Each index is looked at.
            _refuse_expanded(unexpanded_view(part), part.dtype)
        _refuse_odd(odd_sparse(layout, dict(parts), shape))
        tensor = Composite(layout, tensors[-1].dtype, shape, parts)
        self._look_at(tensor, call)
        return tensor

    def _meta_tensor(self, args: tuple[Node, ...], call: Opaque) -> TensorRef:
        _check_arity(args, 4)
        dtype = _parse_dtype(args[0])
        size, stride = _parse_shape(args[1]), _parse_sizes(args[2])
        if len(size) != len(stride):
            raise BadCallError("the numbers of sizes and strides differ")
        numel = 0
        if prod(size):
            # The place of the last element, and one more.
            steps = zip(size, stride, strict=True)
            numel = 1 + sum((count - 1) * step for count, step in steps)
        storage = Storage(
            f"meta:{self._meta}", "meta", dtype, dtype.nbytes(numel), None
        )
        self._meta += 1
        return _numeric_tensor(
            strided_tensor(
                storage, dtype, size, stride, 0, requires_grad=_flag_or_none(args[3])
            )
        )

    def _nested_tensor(self, args: tuple[Node, ...], call: Opaque) -> Composite:
        _check_arity(args, 4)
        labels = ("values", "sizes", "strides", "offsets")
        parts = tuple(
            (label, _plain_tensor(node))
            for label, node in zip(labels, args, strict=False)
        )
        for _, part in parts[1:]:
            _refuse_expanded(part, part.dtype)  # torch looks at each row
        _refuse_odd(odd_nested(dict(parts)))
        values, sizes = parts[0][1], parts[1][1]
        tensor = Composite(
            "nested", values.dtype, sizes.shape[:1], parts, elements=values.numel
        )
        self._look_at(tensor, call)
        return tensor

    def _jagged_tensor(self, args: tuple[Node, ...], call: Opaque) -> Composite:
        _check_arity(args, 1)
        fields = _state_attributes(args[0])
        values = _plain_tensor(fields.get("values"))
        offsets = _plain_tensor(fields.get("offsets"))
        lengths = (
            None if fields.get("lengths") is None else _plain_tensor(fields["lengths"])
        )
        ragged = fields.get("_ragged_idx", 1)
        _refuse_odd(odd_jagged(values, offsets, lengths, ragged))
        assert type(ragged) is int
        parts = [("values", values), ("offsets", offsets)]
        if lengths is not None:
            parts.append(("lengths", lengths))
        rows = offsets.numel - 1
        tensor = Composite(
            "jagged", values.dtype, (rows,), tuple(parts), elements=values.numel
        )
        said = _said_lengths(fields.get("_metadata_cache"))
        if call.args is not args and len(call.args) == WITH_STATE:
            # The attributes come after the arguments, and hold them once more.
            kept = _state_attributes(call.args[-1]).get("_metadata_cache")
            if kept is not None and _said_lengths(kept) != said:
                raise BadCallError("its state sets other lengths of its rows")
        self._look_at(tensor, call, values.shape[ragged - 1], said)
        return tensor

    def _look_at(
        self,
        tensor: Composite,
        call: Opaque,
        length: int = 0,
        said: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Note a number in the parts of a tensor that leads out of it. `length` is the
        length of the values of a jagged one, `said` what it says of its rows.
        """
        excess = (
            None if self._bounds is None else self._bounds.excess(tensor, length, said)
        )
        if excess is not None:
            self.excesses.append(
                f"{excess}, in the {tensor.layout} tensor at byte {call.offset:,} of "
                "the pickle"
            )

    def _on_device(self, args: tuple[Node, ...], call: Opaque) -> Composite | None:
        _check_arity(args, 4)
        dtype = _parse_dtype(args[1])
        device = device_text(args[2])
        requires_grad = _flag_or_none(args[3])
        data = tensor_of(args[0])
        if isinstance(data, TensorRef):
            _refuse_expanded(data, dtype)  # torch makes all elements of a view
            return Composite(
                "strided", dtype, data.shape, (("data", data),), device, requires_grad
            )
        if data is not None:
            raise BadCallError("its data is not a plain tensor")
        stored = array_of(args[0])
        if stored is None:
            return None
        return Composite(
            "strided",
            dtype,
            _parse_shape(stored.shape),
            (),
            device,
            requires_grad,
            detail="numpy",
        )

    def _oldest_tensor(self, args: tuple[Node, ...], call: Opaque) -> TensorRef | None:
        # torch.FloatTensor() with (storage, offset, size, stride) set on it: torch 0.1.
        if any(tensor_of(arg) is not None for arg in args):
            raise BadCallError("it is called with a tensor")
        if not call.states:
            return None
        state = _tuple_state(call)
        if len(call.states) > 1 or len(state) != 4:
            raise BadCallError(
                "its tensor is changed by a state that is no view of a storage"
            )
        storage, offset, size, stride = state
        return _numeric_tensor(_storage_view(storage, size, stride, offset))

    def _from_bytes(self, args: tuple[Node, ...], call: Opaque) -> Nested | None:
        data: bytes | Range | None = as_bytes(args[0]) if args else None
        # Bytes that stay in the file.
        if args and type(args[0]) is PersistentId and type(args[0].pid) is int:
            meaning = args[0].meaning
            if type(meaning) is Storage and type(meaning.place) is Range:
                data = meaning.place
            else:
                data = None
        return None if data is None else Nested(self._nested(data))

    def _tagged_value(self, args: tuple[Node, ...], call: Opaque) -> Tagged | None:
        # `restore_type_tag(value, type)`, and `build_…list(values)`.
        if type(call.func) is Global and call.func.name == "restore_type_tag":
            taken = 2
        else:
            taken = 1
        if call.how != "reduce" or len(args) != taken:
            raise BadCallError(f"it is not called with {taken} arguments")
        if call.states or call.items or call.keys:
            raise BadCallError("its value is changed afterwards")
        if taken == 2:
            _refuse_odd_type(args[1])
        return Tagged(inside(args[0]))


_DEEPEST_TYPE = 300
"""The most brackets of a type, and dots of a name: torch calls itself for each, and the
process ends at about 5,000.
"""
_TYPE_NAME = rf"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){{0,{_DEEPEST_TYPE}}}"
_TYPE = LazyPattern(rf"(?a)(?:(?:{_TYPE_NAME}\[)*(?:\(\)|{_TYPE_NAME})\]*(?:, ?|\Z))+")
"""A type as torch writes it: names, brackets and commas. torch parses it as an
expression, with all signs and words that one may have.
"""


def _refuse_odd_type(kind: Node) -> None:
    """Refuse a type that torch does not write. Raises BadCallError."""
    if type(kind) is not str or _TYPE.fullmatch(kind) is None:
        raise BadCallError("its type is not written as torch writes types")
    if kind.count("[") > _DEEPEST_TYPE:
        raise BadCallError("its type is nested deeper than torch can read")


def strided_tensor(
    storage: Storage,
    dtype: DType,
    size: Node,
    stride: Node,
    offset: Node,
    requires_grad: bool | None = None,
) -> TensorRef:
    """A tensor that surely lies within its storage. Sizes, strides and offset are in
    elements of `dtype`.
    """
    # Checked once, here: whatever reads the tensor trusts its numbers.
    shape, steps = _parse_sizes(size), _parse_sizes(stride)
    if len(shape) != len(steps):
        raise BadCallError(f"{len(shape)} sizes and {len(steps)} strides")
    if type(offset) is not int or not 0 <= offset < _TOO_MANY:
        raise BadCallError("invalid storage offset")
    ref = tensor_ref(storage, dtype, shape, steps, offset, requires_grad)
    # Most tensors have elements, and less than 2^63 of them.
    if not 0 < ref.numel < _TOO_MANY and not is_countable(shape):
        raise BadCallError(_UNCOUNTABLE)
    place = storage.place
    if (
        place is not None
        and place.big
        and _swapped_bits(storage.dtype or UINT8) != _swapped_bits(dtype)
    ):
        raise BadCallError(
            "torch turns the bytes of its big-endian storage in units of another size"
        )
    if ref.extent[1] > storage.nbytes:
        raise BadCallError(
            f"size {_format_numbers(shape)} with stride {_format_numbers(steps)} at "
            f"offset {_format_numbers((offset,))} reaches past the "
            f"{storage.nbytes:,} bytes of storage {show(storage.id, 80)}"
        )
    return ref


def _swapped_bits(dtype: DType) -> int:
    """The bits of the numbers that change their byte order: a complex number is two."""
    return max(8, dtype.bits // 2 if dtype.kind == "complex" else dtype.bits)


def storage_type(node: Node) -> DType | None:
    """Return the element type of a storage class in a pickle, or None for an untyped
    one.

    Only the class name decides, as in torch, because old files name
    `torch.cuda.FloatStorage`. Raises UnreadableError.
    """
    if type(node) is Global:
        if node.name in BY_STORAGE:
            return BY_STORAGE[node.name]
        if node.name in UNTYPED:
            return None
        raise UnreadableError(f"unknown storage class {show(node.qualified, 80)}")
    raise UnreadableError("a storage has no class")


def storage_bytes(dtype: DType | None, numel: Node) -> int:
    """Bytes of a storage of `numel` elements. An untyped storage counts bytes. Raises
    UnreadableError.

    Classes with less than one byte per element (QUInt4x2Storage) count bytes as well.
    """
    if type(numel) is not int or not 0 <= numel < _TOO_MANY:
        raise UnreadableError("a storage has an invalid number of elements")
    return numel * max(1, dtype.bits // 8) if dtype else numel


def make_storage(
    id: str,
    device: Node,
    dtype: DType | None,
    nbytes: int,
    place: Place | None,
    crc: int | None = None,
) -> Storage:
    """A storage with the device tag of the file. Raises UnreadableError when the tag is
    not a string.
    """
    if not isinstance(device, str) or len(device) > 256:
        raise UnreadableError(f"storage {show(id, 80)}: its device is not a string")
    return Storage(id, str(device), dtype, nbytes, place, crc)


_MOST_AGAIN = 1_000_000
"""The most attributes that tensors share with others, each as often as it is set."""
_CONTAINERS = frozenset(
    f"{module}.{name}"
    for modules, names in (
        (
            ("builtins", "__builtin__"),
            ("list", "dict", "set", "tuple", "frozenset", "bytearray"),
        ),
        (("collections",), ("OrderedDict", "Counter", "deque", "defaultdict")),
    )
    for module in modules
    for name in names
)
_PATHS = (
    "Path",
    "PosixPath",
    "PurePath",
    "PurePosixPath",
    "PureWindowsPath",
    "WindowsPath",
)
_LOOKED_AT = _CONTAINERS | {
    f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in _PATHS
}
_FILLED_BY_INIT = tuple(
    f".{name}"
    for name in (
        "list",
        "dict",
        "set",
        "bytearray",
        "OrderedDict",
        "Counter",
        "deque",
        "defaultdict",
        # Since Python 3.12.
        *_PATHS,
    )
)
_DICTS = (
    "builtins.dict",
    "__builtin__.dict",
    "collections.OrderedDict",
    "collections.Counter",
    "collections.defaultdict",
)
_OF_ITEMS = (".list", ".tuple", ".deque")
_OF_KEYS = (*_OF_ITEMS, ".set", ".frozenset")
_REPLACED = (
    *(
        f"{module}.{name}"
        for module in ("builtins", "__builtin__")
        for name in ("list", "bytearray")
    ),
    "collections.deque",
    ".multiarray._reconstruct",
    ".numeric._frombuffer",
)
"""Calls that make what has items by their numbers."""


def refuse_odd_containers(pickle: Pickle) -> None:
    """Refuse containers that Python makes in another way than they read.

    A container that is made without its `__init__` is empty, whatever it is given. A
    list of a dict has its keys alone, one of a set has its items in an order that is
    not in the file, a deque with a length drops what was there first, and a Counter
    counts the items of a list. One that gets items by their numbers has others than it
    is given, and so has an array of numpy. No writer makes one of these. Raises
    UnreadableError.
    """
    for call in pickle.calls:
        # Few calls get items by keys, so that most pickles end here.
        if not call.keys:
            continue
        made, of = call.class_name, call.args[0] if call.args else None
        # Both take the class as their first argument.
        if made.endswith((".__newobj__", "._reconstructor")) and type(of) is Global:
            made = of.qualified
        if made.endswith(_REPLACED):
            where = f"{made} at byte {call.offset:,}"
            raise UnreadableError(f"damaged pickle: {where}: an item of it is replaced")
    names = {name for name in pickle.globals.values() if name.qualified in _LOOKED_AT}
    makers = {
        name
        for name in pickle.globals.values()
        if name.qualified.endswith(".__newobj__")
    }
    for call in pickle.calls if names else ():
        func, args = call.func, call.args
        is_new = call.how.startswith("newobj")
        if type(func) is Global and func in makers and args:
            func, args, is_new = args[0], args[1:], True
        if type(func) is not Global or func not in names or not args:
            continue
        name, problem = func.qualified, None
        if is_new and name.endswith(_FILLED_BY_INIT):
            problem = "it is made without the call that fills it"
        elif name.endswith(_OF_KEYS) and (
            type(args[0]) is Dict
            or (type(args[0]) is Opaque and args[0].class_name in _DICTS)
        ):
            problem = "it takes the keys of a dict, and not its values"
        elif name.endswith(_OF_ITEMS) and _is_set_of_some(args[0]):
            problem = "it is given a set, whose order is another one each time"
        elif name == "collections.Counter" and not _may_be_dict(args[0]):
            problem = "it counts the items that it is given"
        elif name.endswith(".deque") and len(args) > 1 and type(args[1]) is int:
            items = args[0] if type(args[0]) is list or is_tuple(args[0]) else ()
            if len(items) + len(call.items) > args[1]:
                problem = "it is longer than it may be"
            else:
                problem = None
        if problem is not None:
            raise UnreadableError(
                f"damaged pickle: {name} at byte {call.offset:,}: {problem}"
            )


def _may_be_dict(node: Node) -> bool:
    """Tell whether a node may be a dict, or is None, which stands for an empty one."""
    return node is None or type(node) is Dict or type(node) is Opaque


def _is_set_of_some(node: Node) -> bool:
    """Tell whether a node may be a set of more than one item, in either spelling."""
    if type(node) is not Opaque:
        return type(node) is Set and len(node.items) > 1
    if node.class_name.rpartition(".")[2] not in ("set", "frozenset"):
        return False
    given = node.args[0] if node.args else []
    return (
        not (type(given) is list or is_tuple(given)) or len(given) + len(node.items) > 1
    )


class BadCallError(Exception):
    """An error in the arguments of one call. `annotate` adds the name of the call."""


def _check_arity(args: tuple[Node, ...], least: int) -> None:
    if len(args) < least:
        raise BadCallError(f"it has {len(args)} arguments and needs {least}")


def _storage_view(
    node: Node,
    size: Node,
    stride: Node,
    offset: Node,
    dtype: DType | None = None,
    requires_grad: bool | None = None,
) -> TensorRef:
    """A tensor over the storage that `node` names. It has the type of the storage
    unless `dtype` is given.
    """
    node = inside(node)
    if type(node) is not PersistentId or type(node.meaning) is not Storage:
        raise BadCallError("its first argument is not a storage")
    storage = node.meaning
    # A view of a storage, as old savers of the legacy format wrote it.
    if node.shift and type(offset) is int:
        offset += node.shift
    # As in torch, a tensor without a dtype over an untyped storage holds bytes.
    held = dtype or storage.dtype or UINT8
    ref = strided_tensor(storage, held, size, stride, offset, requires_grad)
    if node.reach is not None:
        # torch counts the view in elements of the class of its storage.
        if held != (storage.dtype or UINT8):
            raise BadCallError("its type is not that of the view of its storage")
        if ref.extent[1] * 8 > node.reach * held.bits:
            raise BadCallError("it reaches past the view of its storage")
    return ref


def _parse_dtype(node: Node) -> DType:
    if type(node) is Global and node.module == "torch" and node.name in BY_NAME:
        return BY_NAME[node.name]
    raise BadCallError("unknown dtype")


def _parse_sizes(node: Node) -> tuple[int, ...]:
    if type(node) is Opaque and node.class_name == "torch.Size" and len(node.args) == 1:
        node = node.args[0]
    if type(node) is list:
        node = tuple(node)
    if type(node) is not tuple:
        raise BadCallError("sizes and strides must be tuples")
    if len(node) > DIMENSIONS:
        raise BadCallError(f"{len(node):,} dimensions, at most {DIMENSIONS} are read")
    for number in node:
        if type(number) is not int or not 0 <= number < _TOO_MANY:
            raise BadCallError("invalid size or stride")
    # Every tensor comes here twice, so its numbers are not checked again.
    return cast("tuple[int, ...]", node)


_UNCOUNTABLE = "more elements than torch counts in 64 bits"


def _parse_shape(node: Node) -> tuple[int, ...]:
    shape = _parse_sizes(node)
    if not is_countable(shape):
        raise BadCallError(_UNCOUNTABLE)
    return shape


def _with_flags(
    tensor: Tensor, is_parameter: bool, is_buffer: bool, requires_grad: bool | None
) -> Tensor:
    if isinstance(tensor, TensorRef):
        return tensor._replace(
            is_parameter=is_parameter, is_buffer=is_buffer, requires_grad=requires_grad
        )
    return replace(
        tensor,
        is_parameter=is_parameter,
        is_buffer=is_buffer,
        requires_grad=requires_grad,
    )


def _flag_or_none(node: Node) -> bool | None:
    return node if type(node) is bool else None


def _flagged_view(
    args: tuple[Node, ...], dtype: DType | None, flags: Node
) -> TensorRef:
    ref = _storage_view(
        args[0], args[2], args[3], args[1], dtype, _flag_or_none(args[4])
    )
    if flags is not None:
        # conj and neg: the bytes are of the tensor without it.
        bits = _state_attributes(flags)
        is_usual = (
            type(flags) is Dict
            and len(bits) == len(flags.keys)
            and set(bits) <= {"conj", "neg"}
        )
        # torch takes False for True.
        if not is_usual or not all(bit is True for bit in bits.values()):
            raise BadCallError(
                "its metadata is not a dict of the flags conj and neg, each True"
            )
        ref = ref._replace(conj=bits.get("conj") is True, neg=bits.get("neg") is True)
    return _numeric_tensor(ref)


def _numeric_tensor(ref: TensorRef) -> TensorRef:
    """Return a tensor of numbers. Raises BadCallError for one of codes, which has no
    scale: torch looks for it at address 0.
    """
    if ref.dtype.kind == "quantized":
        raise BadCallError(f"its {ref.dtype.name} tensor has no scale")
    return ref


def _tensor(node: Node) -> Tensor:
    tensor = tensor_of(node)
    if tensor is None:
        raise BadCallError("one of its arguments is not a tensor")
    return tensor


def _plain_tensor(node: Node) -> TensorRef:
    tensor = _tensor(node)
    if not isinstance(tensor, TensorRef):
        raise BadCallError("one of its arguments is not a plain tensor")
    return tensor


def _layout(node: Node) -> str:
    name: Node = None
    if (
        type(node) is Opaque
        and node.class_name == "torch.serialization._get_layout"
        and node.args
    ):
        name = node.args[0]
    elif type(node) is Global:
        name = node.qualified
    if not isinstance(name, str) or name not in _LAYOUTS:
        raise BadCallError("unknown layout")
    return str(name).removeprefix("torch.")


_LAYOUTS = frozenset(
    f"torch.{name}"
    for name in (
        "strided",
        "jagged",
        "sparse_coo",
        "sparse_csr",
        "sparse_csc",
        "sparse_bsr",
        "sparse_bsc",
        "_mkldnn",
    )
)


def _said_lengths(cache: Node) -> tuple[int | None, int | None]:
    """The lengths of the shortest and the longest row that a jagged tensor says it has,
    each None where it says nothing. Raises BadCallError.

    torch keeps a length as the size of an empty tensor.
    """
    lengths: list[int | None] = []
    fields = _state_attributes(cache)
    for name in ("min_seqlen", "max_seqlen"):
        node = fields.get(name)
        length = tensor_of(node)
        if node is None:
            lengths.append(None)
        elif isinstance(length, TensorRef) and length.shape[1:] == (0,):
            lengths.append(length.shape[0])
        elif type(node) is int:  # torch 2.2 and 2.3
            lengths.append(node)
        else:
            raise BadCallError("a length of its rows is no size of an empty tensor")
    return lengths[0], lengths[1]


def _tuple_state(call: Opaque) -> tuple[Node, ...]:
    """The first state of a call when it is a tuple, else an empty tuple."""
    state = call.states[0] if call.states else ()
    return state if is_tuple(state) else ()


def _state_attributes(state: Node) -> dict[str, Node]:
    """The attributes in a state: a dict, or a pair of the instance's dict and its
    slots.

    Raises BadCallError for a name that a call makes, such as a scalar of numpy, which
    is equal to the text that it holds.
    """
    attributes: dict[str, Node] = {}
    parts = state if is_tuple(state) else (state,)
    for pairs in chain.from_iterable(map(_pairs_of_state, parts)):
        if any(type(name) is Opaque for name, _ in pairs):
            raise BadCallError("a name in its state is made by a call")
        attributes.update(
            (str(name), value) for name, value in pairs if isinstance(name, str)
        )
    return attributes


def _pairs_of_state(part: Node) -> list[list[tuple[Node, Node]]]:
    """The names and values of a dict, also of one that a call makes, such as an
    OrderedDict: of what it is given, and of its items.
    """
    if type(part) is Dict:
        return [list(zip(part.keys, part.values, strict=True))]
    if type(part) is not Opaque or tensor_of(part) is not None:
        return []
    pairs = [list(zip(part.keys, part.values, strict=True))]
    for arg in part.args:
        if type(arg) is Dict:
            pairs.append(list(zip(arg.keys, arg.values, strict=True)))
        elif type(arg) is list or is_tuple(arg):
            both = [row for row in arg if type(row) is list or is_tuple(row)]
            pairs.append([(row[0], row[1]) for row in both if len(row) == 2])
    return pairs


def _refuse_odd_state(state: Node) -> None:
    """Refuse the state of a tensor that torch reads as a dict, though a call makes it.
    Raises BadCallError.

    torch writes a dict, or a pair of them, and asks whatever it gets for its items.
    """
    for part in state if type(state) is tuple else (state,):
        if type(part) is Opaque and tensor_of(part) is None:
            raise BadCallError(
                f"its state is made by a call of {show(part.class_name, 80)}"
            )


def _refuse_expanded(tensor: TensorRef, dtype: DType) -> None:
    """Refuse a tensor of which torch makes far more elements than its storage has.
    Raises BadCallError.
    """
    if tensor.numel * dtype.bits > 64 * max(tensor.storage.nbytes, 16):
        raise BadCallError("its tensor has more elements than its storage")


def _refuse_odd(problem: str | None) -> None:
    if problem is not None:
        raise BadCallError(problem)


def _is_of_scheme(node: Node) -> bool:
    """Tell whether a node can say how a tensor is quantized: torch shows, or makes
    tensors of, whatever is there.
    """
    is_number = type(node) is float or (type(node) is int and node.bit_length() < 64)
    # The grammar looks into lists, once.
    return is_number or type(node) is list or tensor_of(node) is not None


def _is_dict(node: Opaque) -> bool:
    return node.class_name in _CONTAINERS


_OF_VALUES = (
    "torch.Tensor",
    "torch._tensor.Tensor",
    "torch.tensor.Tensor",
    "torch.autograd.variable.Variable",
    *(f"torch.nn.parameter.{name}" for name in ("Parameter", "Buffer")),
    *(
        f"torch.nn.parameter.{name}"
        for name in ("UninitializedParameter", "UninitializedBuffer")
    ),
)
"""Classes of torch whose tensors hold their own values, and may have other tensors as
attributes.
"""


def _is_of_torch(subclass: Node) -> bool:
    return type(subclass) is Global and subclass.module.partition(".")[0] == "torch"


def _is_made_of_others(subclass: Node, attributes: Mapping[str, Node]) -> bool:
    """Tell whether a tensor of a class of torch shows the values of the tensors inside
    it.
    """
    if type(subclass) is not Global or not _is_of_torch(subclass):
        return False
    has_tensors = any(tensor_of(node) is not None for node in attributes.values())
    return has_tensors and subclass.qualified not in _OF_VALUES


def _refuse_properties(tensor: Tensor, attributes: Mapping[str, Node]) -> None:
    """Refuse a state that sets a property: `data` puts other values in place, `real`
    writes into a storage.

    A method that is hidden changes no value. bitsandbytes writes the tensor itself as
    `data`, which changes nothing. Raises BadCallError.
    """
    if not attributes:
        return
    # here: most tensors have no state
    from ckpt.pickle.judge.names_of_torch import TENSOR_PROPERTIES

    # torch sets each of these by `setattr`, also with weights_only=True.
    for name, value in attributes.items():
        if name not in TENSOR_PROPERTIES and name != "__class__":
            continue
        if name == "requires_grad" and type(value) is bool:
            continue
        if name == "data" and _is_same_view(tensor, tensor_of(value)):
            continue
        raise BadCallError(
            f"its state sets {name}, so that torch loads other values than the file "
            "shows"
        )


def _refuse_other_parts(
    fields: Mapping[str, Node], attributes: Mapping[str, Node]
) -> None:
    """Refuse a state that puts other parts into a jagged tensor than it was made of.
    Raises BadCallError.

    torch writes the same parts twice, and no sizes and strides.
    """
    for name, node in attributes.items():
        # The attribute `_values` is the argument `values`.
        part = fields.get(name[1:])
        if name in ("_size", "_strides"):
            raise BadCallError(f"its state sets {name}")
        if name in ("_values", "_offsets", "_lengths") and node is not part:
            tensor, other = tensor_of(part), tensor_of(node)
            if tensor is None or not _is_same_view(tensor, other):
                raise BadCallError(f"its state sets other {name[1:]}")
        if name == "_ragged_idx" and node != fields.get(name, 1):
            raise BadCallError("its state sets another dimension for its rows")


def _is_same_view(tensor: Tensor, other: Tensor | None) -> bool:
    if not isinstance(tensor, TensorRef) or not isinstance(other, TensorRef):
        return False
    views = [
        (ref.storage, ref.dtype, ref.shape, ref.stride, ref.offset)
        for ref in (tensor, other)
    ]
    return views[0] == views[1] and not (
        other.conj or other.neg or tensor.conj or tensor.neg
    )


def _inner_tensors(attributes: dict[str, Node]) -> tuple[tuple[str, TensorRef], ...]:
    parts: list[tuple[str, TensorRef]] = []
    for label, node in attributes.items():
        tensor = tensor_of(node)
        if isinstance(tensor, TensorRef):
            parts.append((label, tensor))
        elif isinstance(tensor, Composite):
            parts += [(f"{label}.{inner}", part) for inner, part in tensor.parts]
    return tuple(parts)


def _with_shards(whole: Composite, state: Node, budget: Budget | None) -> Composite:
    """A ShardedTensor with the shards that its file holds, by where they begin in the
    tensor of all ranks.

    State: (local shards, metadata, process group, spec, flag),
    torch/distributed/_shard/sharded_tensor/api.py.
    """
    shards = state[0] if is_tuple(state) and state else None
    parts: list[tuple[str, TensorRef]] = []
    begins: list[tuple[int, ...]] = []
    places: list[str] = []
    for shard in shards if type(shards) is list else ():
        if type(shard) is Opaque and shard.states:
            fields = _state_attributes(shard.states[0])
        else:
            fields = {}
        metadata = fields.get("metadata")
        if type(metadata) is Opaque and metadata.states:
            shard_fields = _state_attributes(metadata.states[0])
        else:
            shard_fields = {}
        tensor = tensor_of(fields.get("tensor"))
        if not isinstance(tensor, TensorRef) or not shard_fields:
            raise BadCallError("a shard has no tensor or no place")
        # In elements of the whole tensor.
        offsets = _parse_sizes(shard_fields.get("shard_offsets"))
        sizes = _parse_sizes(shard_fields.get("shard_sizes"))
        if (
            sizes != tensor.shape
            or len(offsets) != len(whole.shape)
            or len(sizes) != len(whole.shape)
        ):
            raise BadCallError("the size of a shard is not that of its tensor")
        ends = [first + size for first, size in zip(offsets, sizes, strict=True)]
        if any(end > size for end, size in zip(ends, whole.shape, strict=True)):
            raise BadCallError(
                f"a shard at {_format_numbers(offsets)} of size "
                f"{_format_numbers(sizes)} lies outside of its tensor"
            )
        # A name by its place, so that the shards of all ranks have names of their own.
        label = "_".join(["shard", *map(str, offsets)])
        if any(label == other for other, _ in parts):
            raise BadCallError("two shards begin at one place")
        parts.append((label, tensor))
        begins.append(offsets)
        places.append(
            ", ".join(
                f"{first}:{end}" for first, end in zip(offsets, ends, strict=True)
            )
        )
    detail = (
        f"{whole.detail} "
        f"{' '.join(f'[{place}]' for place in places[:2]) or 'without a shard'}"
    )
    if len(places) > 2:
        detail += f" and {len(places) - 2} more"
    from ckpt.pickle.sharded import (
        LISTED,
        placed,
    )  # here: only ShardedTensors pay for it

    placement = placed(whole, tuple(begins), state)
    if placement is not None and budget is not None:  # many tensors may name one list
        budget.charge(len(placement.listed) * LISTED)
    if placement is not None and placement.rank is not None and parts:
        detail += f" of rank {placement.rank}"
    held = sum(part.numel for _, part in parts)
    return replace(
        whole, parts=tuple(parts), elements=held, detail=detail, shards=placement
    )


def _format_numbers(numbers: tuple[int, ...]) -> str:
    shown = [
        f"{n}" if n.bit_length() < 80 else f"(int of {n.bit_length()} bits)"
        for n in numbers[:8]
    ]
    return f"[{', '.join(shown)}{', …' if len(numbers) > 8 else ''}]"


_Builder = Callable[
    [Rebuilder, tuple[Node, ...], Opaque], Tensor | Nested | Tagged | None
]

_BUILDERS: dict[str, _Builder] = {
    "torch._utils._rebuild_tensor": Rebuilder._tensor,
    "torch._utils._rebuild_tensor_v2": Rebuilder._tensor_v2,
    "torch._utils._rebuild_tensor_v3": Rebuilder._tensor_v3,
    "torch._utils._rebuild_parameter": Rebuilder._parameter_tensor,
    "torch._utils._rebuild_parameter_with_state": Rebuilder._parameter_with_state,
    "torch._tensor._rebuild_from_type_v2": Rebuilder._from_type,
    "torch._tensor._rebuild_from_type": Rebuilder._from_type,
    "torch.tensor._rebuild_from_type": Rebuilder._from_type,
    "torch._utils._rebuild_qtensor": Rebuilder._quantized,
    "torch._utils._rebuild_sparse_tensor": Rebuilder._sparse_tensor,
    "torch._utils._rebuild_sparse_csr_tensor": Rebuilder._sparse_tensor,
    "torch._utils._rebuild_meta_tensor_no_storage": Rebuilder._meta_tensor,
    "torch._utils._rebuild_nested_tensor": Rebuilder._nested_tensor,
    "torch.nested._internal.nested_tensor._rebuild_njt": Rebuilder._jagged_tensor,
    "torch._utils._rebuild_wrapper_subclass": Rebuilder._wrapper_tensor,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": Rebuilder._on_device,
    "torch._utils._rebuild_device_tensor_from_numpy": Rebuilder._on_device,
    "torch._utils._rebuild_xla_tensor": Rebuilder._on_device,
    "torch._utils._rebuild_mlc_tensor": Rebuilder._on_device,
    "torch.storage._load_from_bytes": Rebuilder._from_bytes,
    "torch.jit._pickle.restore_type_tag": Rebuilder._tagged_value,
    **{
        f"torch.jit._pickle.build_{kind}list": Rebuilder._tagged_value
        for kind in ("int", "tensor", "double", "bool")
    },
    "torch.nn.parameter.Parameter": Rebuilder._old_parameter,
    "torch.nn.parameter.Buffer": Rebuilder._buffer,
    "torch.autograd.variable.Variable": Rebuilder._old_parameter,
    "torch.Tensor": Rebuilder._oldest_tensor,
    **{
        f"{module}.{kind}Tensor": Rebuilder._oldest_tensor
        for module in ("torch", "torch.cuda")
        for kind in (name.removesuffix("Storage") for name in BY_STORAGE)
    },
}
_FINISHED = frozenset(
    build
    for name, build in _BUILDERS.items()
    if name.startswith(("torch._utils._rebuild_", "torch._tensor.", "torch.tensor."))
    and not name.endswith("_wrapper_subclass")
)
"""Builders of tensors that torch never gives a state. One would put another view, or
nothing, in place of the tensor.
"""
REBUILD_CALLS = frozenset(_BUILDERS)
"""The dotted names whose calls stand for tensors."""

"""Weights of integers packed in words: GPTQ, AWQ and the packed integers of
compressed-tensors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ckpt.elements import blocks, cast, fill
from ckpt.ext.quantised.grids import Grid, read_scales
from ckpt.ext.quantised.matrix import Cells, Matrix
from ckpt.ext.quantised.schemes import SCALES, Given, MisfitError, Planned
from ckpt.ext.quantised.unpacking import (
    Columns,
    read_part,
    read_rows,
    read_small,
    shifted,
    unpack_bits,
)
from ckpt.model.tensors import TensorRef

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_GROUPS = (16, 32, 64, 128, 256, 512, 1024)
"""Sizes of groups that are in use, where the shapes leave several."""
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of each code of a word of AWQ. Source: AutoAWQ, utils/packing_utils.py."""


def group_of(columns: int, groups: int, named: int | None) -> int:
    """Return the number of columns of a group. Raises MisfitError where the config
    contradicts, or several sizes are possible.
    """
    # One group is all of a row, whatever size the config names for it.
    if groups == 1 and named in (None, -1, columns):
        return columns
    if named is not None and named > 0:
        if -(-columns // named) != groups:
            raise MisfitError(
                f"{groups} groups for {columns} columns are not groups of {named}, as "
                "the config says"
            )
        return named
    # Without a size in the config, the shapes must leave one alone.
    sizes = {size for size in _GROUPS if -(-columns // size) == groups}
    if groups and columns % groups == 0:
        sizes.add(columns // groups)
    if len(sizes) != 1:
        raise MisfitError(
            f"{groups} groups for {columns} columns do not say how large a group is"
        )
    return sizes.pop()


# --- GPTQ -----------------------------------------------------------------------------


class Gptq:
    """A layer of GPTQ: words of codes along the inputs, with the inputs as rows. The
    weight has the outputs as rows.
    """

    def __init__(
        self,
        given: Given,
        bits: int,
        columns: int,
        group: int,
        zero_shift: int,
    ) -> None:
        self._given = given
        self._bits = bits
        self._columns = columns
        self._zero_shift = zero_shift
        self._words = Columns(given.parts["qweight"])
        self._scales = Columns(given.parts["scales"])
        self._zeros = given.parts["qzeros"]
        self._group_of = _group_indices(given, columns, group)

    def read_codes(self, first: int, last: int) -> Array:
        # `qweight` is [inputs × bits / 32, outputs]: columns of it are rows of the
        # weight.
        words = self._words.read_columns(first, last)
        return unpack_bits(words, self._bits, self._columns)

    def read_cells(self, first: int, last: int) -> Cells:
        import numpy as np

        scales = self._scales.read_columns(first, last)
        zeros = self._read_zeros(first, last).T
        return Cells(np.arange(last - first), self._group_of, (scales, zeros))

    def _read_zeros(self, first: int, last: int) -> Array:
        """Return the zero points of some outputs, by groups and outputs."""
        # Words are read from the first bit that these outputs need, in whole groups of
        # 32 codes.
        begin = first // 32 * 32
        end = -(-last // 32) * 32
        first_word = begin * self._bits // 32
        last_word = min(end * self._bits // 32, self._zeros.shape[1])
        words = range(first_word, last_word)
        packed = read_part(self._zeros, range(self._zeros.shape[0]), words)
        shift = self._zero_shift
        if shift and self._bits != 3:
            packed = _with_one_more(packed, self._bits)
            shift = 0
        unpacked = unpack_bits(packed, self._bits, end - begin)
        zeros = unpacked[:, first - begin : last - begin]
        # Bits beyond the width after 1 is added are forgotten, as by gptqmodel.
        return (zeros.astype("<i2") + shift) & ((1 << self._bits) - 1)


def _with_one_more(packed: Array, bits: int) -> Array:
    """Return words of zero points with 1 added to each of these.

    The first format of GPTQ takes 1 from all zero points of a word at once, so one of 0
    borrows from the next one. Adding it to the word gives that back. Codes of 3 bits go
    beyond a word, and there each is counted alone. Source: gptqmodel, utils/model.py.
    """
    import numpy as np

    ones = np.uint32(sum(1 << place for place in range(0, 32, bits)))
    words: Array = packed.view("<u4") + ones
    return words


def _group_indices(given: Given, columns: int, group: int) -> Array:
    """Return the group of each column: as `g_idx` says, or in turn. Raises MisfitError
    for one that is not there.
    """
    import numpy as np

    # Without `g_idx` the columns of a group lie side by side.
    ref = given.parts.get("g_idx")
    if ref is None or not ref.numel:
        return np.arange(columns) // group
    _refuse_strange_groups(given)
    return fill.array(ref).reshape(-1).astype(np.intp)


def _refuse_strange_groups(given: Given) -> None:
    """Raise MisfitError where `g_idx` names a group that is not there. numpy is not
    loaded for it, so that other processes may take the work that follows.
    """
    ref = given.parts.get("g_idx")
    if ref is None or not ref.numel:
        return
    if ref.dtype.kind != "int":
        raise MisfitError(f"g_idx is {ref.dtype.name}")
    scales = given.parts.get("scales")
    count = given.parts["scale"].shape[1] if scales is None else scales.shape[0]
    for block in blocks.in_whole_elements(blocks.elements(ref), ref.dtype.bits // 8):
        # Few files are wrong, so only these look at number after number.
        numbers: list[Any] = cast.few(bytes(block), ref.dtype)
        if min(numbers) >= 0 and max(numbers) < count:
            continue
        wrong = next(number for number in numbers if not 0 <= number < count)
        raise MisfitError(f"g_idx names group {wrong}, and there are {count}")


def plan_gptq(given: Given) -> Planned:
    """Plan a layer of GPTQ. Raises MisfitError."""
    words = given.require("qweight")
    scales = given.require("scales")
    zeros = given.require("qzeros")
    _refuse_method(given, "gptq")
    _require_matrices(words, scales, zeros)
    if zeros.dtype.name != "int32":
        raise MisfitError(f"qzeros is {zeros.dtype.name}")
    # `scales` is [groups, outputs], and `qzeros` [groups, outputs × bits / 32].
    outputs, groups = scales.shape[1], scales.shape[0]
    if words.shape[1] != outputs:
        raise MisfitError("qweight and scales have other numbers of outputs")
    if zeros.shape[0] != groups:
        raise MisfitError(f"qzeros has {zeros.shape[0]} groups, and scales {groups}")
    bits = 32 * zeros.shape[1] // outputs
    if bits not in (2, 3, 4, 8) or bits * outputs != 32 * zeros.shape[1]:
        raise MisfitError(
            f"qzeros of {zeros.shape[1]} words for {outputs} outputs are not of 2, 3, "
            "4 or 8 bits"
        )
    # A mixed file has other bits in some layers: there the shapes alone say them.
    named = given.facts.number_of("bits")
    if named not in (None, bits) and not given.facts.is_mixed:
        raise MisfitError(f"qzeros has {bits} bits, and the config says {named}")
    columns = words.shape[0] * 32 // bits
    if columns * bits != words.shape[0] * 32:
        raise MisfitError(
            f"qweight has {words.shape[0]} rows, which are not codes of {bits} bits"
        )
    order = given.parts.get("g_idx")
    if order is not None and order.numel and order.numel != columns:
        raise MisfitError(
            f"g_idx has {order.numel} elements, and the weight {columns} columns"
        )
    if scales.dtype.name not in SCALES:
        raise MisfitError(f"its scales are {scales.dtype.name}")
    group = _named_group(given, columns, groups)
    if given.for_values:
        _refuse_strange_groups(given)
    shift = _zero_shift(given, bits)
    make = partial(Gptq, given, bits, columns, group, shift)
    matrix = Matrix(outputs, columns, 1 << bits, scales.dtype, shifted, make)
    text = f"{bits} bits (GPTQ, {_groups_text(group, columns)})"
    return Planned((outputs, columns), bits, (1, group), text, scales.dtype, matrix)


def _groups_text(group: int, columns: int) -> str:
    return "a scale for each row" if group >= columns else f"groups of {group}"


def _refuse_method(given: Given, method: str) -> None:
    """Raise MisfitError where the config names another method, or another way
    to pack.
    """
    named = given.facts.method
    # AutoRound writes the layout of GPTQ or of AWQ under its own name.
    if named is not None and named not in (method, "auto-round", "intel/auto-round"):
        raise MisfitError(f"the config says {named}")
    packing = given.facts.text_of("packing_format") or given.facts.text_of("version")
    others = ("gemv", "marlin", "exllama_v3")
    if packing is not None and any(word in packing.lower() for word in others):
        raise MisfitError(f"the config says {packing}, which packs in another order")
    kind = _gptq_format(given)
    if method == "gptq" and kind not in (None, "gptq", "gptq_v2"):
        raise MisfitError(f"the config says {kind}, which packs in another order")


def _gptq_format(given: Given) -> str | None:
    """Return the format of zero points that the config of a GPTQ file names, or
    None.
    """
    return given.facts.text_of("checkpoint_format") or given.facts.text_of("format")


def _named_group(given: Given, columns: int, groups: int) -> int:
    """Return the columns of a group, as the config says.

    Some layers of a mixed file have another size. Raises MisfitError.
    """
    named = given.facts.number_of("group_size")
    if given.facts.is_mixed and named and -(-columns // named) != groups:
        named = None
    return group_of(columns, groups, named)


def _require_matrices(*refs: TensorRef) -> None:
    """Raise MisfitError unless each of some tensors is a matrix with elements."""
    if any(len(ref.shape) != 2 or not ref.numel for ref in refs):
        raise MisfitError("a part is not a matrix")


def _zero_shift(given: Given, bits: int) -> int:
    """Return what is added to stored zero points: 1 in the first format of GPTQ. Raises
    MisfitError where nothing says it.
    """
    kind = _gptq_format(given)
    if kind is not None:
        return 0 if kind == "gptq_v2" else 1
    # Only the second format is named, so any other config means the first one.
    if given.facts.method is not None:
        return 1
    # The zero points are looked at only when values are asked for.
    if not given.for_values:
        return 1
    # Symmetric zero points are all in the middle of the codes: stored so, or less 1.
    middle = 1 << (bits - 1)
    found = _single_zero(given.parts["qzeros"], bits)
    if found in (middle - 1, middle):
        return middle - found
    raise MisfitError(
        "no config says whether zero points are stored less 1 (checkpoint_format)"
    )


def _single_zero(zeros: TensorRef, bits: int) -> int | None:
    """Return the zero point that all groups have, or None. numpy is not loaded for
    it.
    """
    # The bytes that hold whole codes: 3 bits go beyond a byte.
    unit = 3 if bits == 3 else 1
    first = b""
    for block in blocks.in_whole_elements(blocks.elements(zeros), unit):
        first = first or bytes(block[:unit])
        if bytes(block) != first * (len(block) // unit):
            return None
    number = int.from_bytes(first, "little")
    zero = number & ((1 << bits) - 1)
    repeated = sum(zero << place for place in range(0, 8 * unit, bits))
    return zero if repeated == number else None


# --- AWQ ------------------------------------------------------------------------------


class Awq:
    """A layer of AWQ: words of eight codes along the outputs, with the inputs as rows.
    The weight has the outputs as rows.
    """

    def __init__(self, given: Given, columns: int, group: int) -> None:
        self._columns = columns
        self._group = group
        self._words = Columns(given.parts["qweight"])
        self._zeros = Columns(given.parts["qzeros"])
        self._scales = Columns(given.parts["scales"])

    def read_codes(self, first: int, last: int) -> Array:
        return self._read_words(self._words, first, last)

    def read_cells(self, first: int, last: int) -> Cells:
        import numpy as np

        scales = self._scales.read_columns(first, last)
        zeros = self._read_words(self._zeros, first, last)
        groups = np.arange(self._columns) // self._group
        return Cells(np.arange(last - first), groups, (scales, zeros))

    def _read_words(self, words: Columns, first: int, last: int) -> Array:
        """Return the codes of some outputs, by outputs and inputs."""
        import numpy as np

        # Each word has the codes of eight outputs: the first and the last may be cut.
        begin = first // 8
        end = -(-last // 8)
        packed = words.read_columns(begin, end).view("<u4")
        # [words, 8 outputs, inputs]
        codes = np.empty((end - begin, 8, packed.shape[1]), "u1")
        for place, column in enumerate(_AWQ_ORDER):
            np.copyto(codes[:, column], (packed >> (4 * place)) & 15, casting="unsafe")
        flat = codes.reshape(-1, packed.shape[1])
        return flat[first - begin * 8 : last - begin * 8]


def plan_awq(given: Given) -> Planned:
    """Plan a layer of AWQ, as its GEMM kernels take it. Raises MisfitError."""
    words = given.require("qweight")
    scales = given.require("scales")
    zeros = given.require("qzeros")
    _refuse_method(given, "awq")
    _require_matrices(words, scales, zeros)
    if zeros.dtype.name != "int32":
        raise MisfitError(f"qzeros is {zeros.dtype.name}")
    outputs, columns, groups = scales.shape[1], words.shape[0], scales.shape[0]
    if words.shape[1] * 8 != outputs:
        raise MisfitError("qweight and scales have other numbers of outputs")
    if zeros.shape != (groups, words.shape[1]):
        raise MisfitError("qzeros has not the shape that scales and qweight ask for")
    named = given.facts.number_of("bits")
    if named not in (None, 4) and not given.facts.is_mixed:
        raise MisfitError(f"AWQ packs 4 bits, and the config says {named}")
    if scales.dtype.name not in SCALES:
        raise MisfitError(f"its scales are {scales.dtype.name}")
    group = _named_group(given, columns, groups)
    make = partial(Awq, given, columns, group)
    matrix = Matrix(outputs, columns, 16, scales.dtype, shifted, make)
    text = f"4 bits (AWQ, {_groups_text(group, columns)})"
    return Planned((outputs, columns), 4, (1, group), text, scales.dtype, matrix)


# --- compressed-tensors ---------------------------------------------------------------


class Words:
    """Rows of codes that lie bit by bit in words, with a scale, and perhaps a zero
    point, for each group of columns.
    """

    def __init__(self, given: Given, bits: int, grid: Grid) -> None:
        self._given = given
        self._bits = bits
        self._grid = grid
        self._codes = given.parts["codes"]
        self._scale = grid.fit(given.parts["scale"])
        self._group_of = _group_indices(given, grid.columns, grid.block[1])

    def read_codes(self, first: int, last: int) -> Array:
        words = read_rows(self._codes, first, last)
        return unpack_bits(words, self._bits, self._grid.columns)

    def read_cells(self, first: int, last: int) -> Cells:
        numbers, begin, end = self._grid.rows_of(first, last)
        scales = read_scales(self._scale, begin, end)
        return Cells(numbers, self._group_of, (scales, self._zeros(begin, end)))

    def _zeros(self, begin: int, end: int) -> Array:
        """Return the zero points of some rows: the middle of the codes, where none are
        stored.
        """
        import numpy as np

        ref = self._given.parts.get("zero_point")
        if ref is None:
            middle = 1 << (self._bits - 1)
            return np.full((end - begin, self._grid.across), middle, "<i2")
        # Zero points are packed along the rows, other than the codes: they are turned.
        low = begin // 32 * 32
        high = -(-end // 32) * 32
        last_word = min(high * self._bits // 32, ref.shape[0])
        words = range(low * self._bits // 32, last_word)
        packed = np.ascontiguousarray(read_part(ref, words, range(ref.shape[1])).T)
        unpacked = unpack_bits(packed, self._bits, high - low)
        zeros = unpacked[:, begin - low : end - low]
        return zeros.T.astype("<i2")


def plan_words(given: Given) -> Planned:
    """Plan the packed integers of compressed-tensors. Raises MisfitError."""
    codes = given.require("codes")
    scale = given.require("scale")
    shape_ref = given.require("shape")
    _require_matrices(codes)
    if scale.dtype.name not in SCALES:
        raise MisfitError(f"its scales are {scale.dtype.name}")
    if shape_ref.numel != 2 or shape_ref.dtype.kind != "int":
        raise MisfitError("weight_shape is not two numbers")
    rows, columns = _shape_in(given, codes, shape_ref)
    if rows != codes.shape[0] or columns < 1:
        raise MisfitError(
            f"weight_shape says {rows} rows, and there are {codes.shape[0]}"
        )
    named = given.facts.same_number("num_bits")
    # The columns and the words of a row leave one number of bits, or the config says
    # it.
    ways = [bits for bits in range(1, 9) if -(-columns * bits // 32) == codes.shape[1]]
    if named is not None:
        ways = [bits for bits in ways if bits == named]
    if len(ways) != 1:
        raise MisfitError(
            f"{codes.shape[1]} words for {columns} columns do not say how many bits a "
            "code has"
        )
    bits = ways[0]
    groups = scale.numel // rows
    if groups * rows != scale.numel or scale.shape not in ((rows, groups), (rows,)):
        raise MisfitError("the scales do not have the rows of the codes")
    group = group_of(columns, groups, given.facts.same_number("group_size"))
    zero = given.parts.get("zero_point")
    if zero is not None and zero.dtype.name != "int32":
        raise MisfitError(f"its zero points are {zero.dtype.name}")
    if zero is not None and zero.shape != (-(-rows * bits // 32), groups):
        raise MisfitError("the zero points do not have the rows of the codes")
    order = given.parts.get("g_idx")
    if order is not None and order.numel not in (0, columns):
        raise MisfitError(
            f"weight_g_idx has {order.numel} elements, and the weight {columns} columns"
        )
    if given.for_values:
        _refuse_strange_groups(given)
    grid = Grid(rows, columns, (1, group))
    make = partial(Words, given, bits, grid)
    matrix = Matrix(rows, columns, 1 << bits, scale.dtype, shifted, make)
    text = f"{bits} bits (compressed-tensors, {_groups_text(group, columns)})"
    return Planned((rows, columns), bits, (1, group), text, scale.dtype, matrix)


def _shape_in(given: Given, codes: TensorRef, shape: TensorRef) -> tuple[int, int]:
    """Return the shape that `weight_shape` holds; without reading, the shape that the
    config leaves.
    """
    if given.can_read:
        numbers: list[int] = []
        for number in cast.few(read_small(shape), shape.dtype):
            if isinstance(number, int):
                numbers.append(number)
        return numbers[0], numbers[1]
    # Far files are not read for it: without padding, words and bits say the columns.
    bits = given.facts.same_number("num_bits")
    if bits is None or bits < 1 or codes.shape[1] * 32 % bits:
        raise MisfitError("its shape is in weight_shape, which was not read")
    return codes.shape[0], codes.shape[1] * 32 // bits

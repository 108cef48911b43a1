"""The element types of GGUF: the number in the file, the name, and how many elements
lie in how many bytes.
"""

from __future__ import annotations

from ckpt.model.dtypes import BY_NAME, Block, DType

DECODER = "ckpt.ext.gguf.decode"
"""The module that makes numbers of the blocks."""

# The numbers are those of ggml_type in ggml.h: one that was given up is not used again.
_PLAIN = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}

_BLOCKS = (
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)

BY_NUMBER: dict[int, DType] = {number: BY_NAME[name] for number, name in _PLAIN.items()}
for _number, _name, _elements, _nbytes in _BLOCKS:
    # An element of a block has no size of its own, so it is 0.
    BY_NUMBER[_number] = DType(
        _name,
        0,
        "float",
        block=Block(_elements, _nbytes, DECODER),
    )

GONE: dict[int, str] = {
    4: "Q4_2, which llama.cpp removed in 2023",
    5: "Q4_3, which llama.cpp removed in 2023",
    9: (
        "Q8_1, which has 36 bytes a block in llama.cpp and 40 in its Python package: "
        "no file holds it"
    ),
    31: (
        "Q4_0_4_4, which llama.cpp removed in 2024; the same weights as Q4_0 work "
        "everywhere"
    ),
    32: (
        "Q4_0_4_8, which llama.cpp removed in 2024; the same weights as Q4_0 work "
        "everywhere"
    ),
    33: (
        "Q4_0_8_8, which llama.cpp removed in 2024; the same weights as Q4_0 work "
        "everywhere"
    ),
    36: (
        "IQ4_NL_4_4, which llama.cpp removed in 2024; the same weights as IQ4_NL work "
        "everywhere"
    ),
    37: (
        "IQ4_NL_4_8, which llama.cpp removed in 2024; the same weights as IQ4_NL work "
        "everywhere"
    ),
    38: (
        "IQ4_NL_8_8, which llama.cpp removed in 2024; the same weights as IQ4_NL work "
        "everywhere"
    ),
}
"""Numbers that are known, and why nothing reads them."""

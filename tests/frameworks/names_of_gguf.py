"""The table of names of GGUF and transformers, held against that of gguf-py, the Python
package of llama.cpp.
"""

from __future__ import annotations

import pytest

from ckpt.ext.gguf.names import ARCHITECTURES

gguf = pytest.importorskip("gguf")
ENDINGS = (".weight", ".bias")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_names_are_those_of_gguf(name: str) -> None:
    """Names that gguf-py does not know of an architecture are never in its files."""
    numbers = {word: number for number, word in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[name], 2)
    found, wrong = 0, {}
    for ours, theirs in ARCHITECTURES[name].names.items():
        if "{e}" in ours:
            continue  # names of the winter of 2023, which the converter writes no more
        # The converter drops these before it asks.
        asked = theirs.replace("{n}", "1").replace(".{e}", "").removeprefix("bert.")
        asked = asked.replace("correction_bias", "correction.bias")
        given = names.get_name(asked, try_suffixes=ENDINGS)
        if given is None:
            continue
        found += 1
        if given != ours.replace("{n}", "1"):
            wrong[ours] = given
    assert not wrong
    assert found > 8

"""Which texts are devices besides the CPU."""

from __future__ import annotations

from ckpt.evidence.devices import KINDS, is_accelerator


def test_kinds_with_and_without_a_number() -> None:
    assert all(
        map(
            is_accelerator,
            [*KINDS, *(f"{kind}:0" for kind in KINDS), "cuda:10", "cuda:999"],
        )
    )


def test_other_texts() -> None:
    assert not any(
        map(
            is_accelerator,
            [
                "",
                "cpu",
                "meta",
                "cuda:",
                "cuda:1000",
                "cuda:x",
                "a cuda",
                "cuda\n",
                "mps ",
            ],
        )
    )

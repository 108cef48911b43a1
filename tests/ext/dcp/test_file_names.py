"""The files of a folder by their names: which hold weights, and what lies beside a
distributed checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.bytes.location import LocalPath
from ckpt.ext.dcp.file_names import find_companion, names_beside, weights_in
from ckpt.model.errors import UnreadableError


@pytest.mark.parametrize(
    ("names", "files", "unread"),
    [
        (
            ["model.safetensors", "pytorch_model.bin"],
            [("model.safetensors", "")],
            ["pytorch_model.bin"],
        ),
        (["pytorch_model.bin", "model.bin"], [("pytorch_model.bin", "")], []),
        (
            [
                "model.safetensors.index.json",
                "model.safetensors",
                "model.fp16.safetensors",
            ],
            [("model.safetensors", "")],
            ["model.safetensors.index.json", "model.fp16.safetensors"],
        ),
        (
            ["model.safetensors.index.json", "pytorch_model.bin"],
            [("model.safetensors.index.json", "")],
            ["pytorch_model.bin"],
        ),
        (
            ["adapter_model.bin", "model.fp16.bin"],
            [("adapter_model.bin", "")],
            ["model.fp16.bin"],
        ),
        (
            [
                "model.safetensors.index.fp16.json",
                "pytorch_model.bin.index.json",
                "model.bf16.bin",
            ],
            [("pytorch_model.bin.index.json", "")],
            ["model.bf16.bin", "model.safetensors.index.fp16.json"],
        ),
        (
            ["pytorch_model.bin.index.fp16.json"],
            [("pytorch_model.bin.index.fp16.json", "")],
            [],
        ),
        (
            ["model.bf16.bin", "model.safetensors.index.fp16.json"],
            [("model.safetensors.index.fp16.json", "")],
            ["model.bf16.bin"],
        ),
        (
            ["model.fp16.bin", "model.fp16.safetensors"],
            [("model.fp16.safetensors", "")],
            ["model.fp16.bin"],
        ),
        (
            [
                "model_10.safetensors",
                "model_2.safetensors",
                "model.safetensors",
                "pytorch_model_1.bin",
            ],
            [
                ("model.safetensors", "model"),
                ("model_2.safetensors", "model_2"),
                ("model_10.safetensors", "model_10"),
            ],
            [],
        ),
    ],
)
def test_weights_are_chosen_as_their_writers_choose(
    names: list[str], files: list[tuple[str, str]], unread: list[str]
) -> None:
    found = weights_in(names)
    assert (
        found is not None
        and list(found.files) == files
        and sorted(found.unread) == sorted(unread)
    )


@pytest.mark.parametrize(
    "names", [[], ["model.bin"], ["a.safetensors", "config.json"], ["model.x.y.bin"]]
)
def test_other_names_are_no_weights(names: list[str]) -> None:
    assert weights_in(names) is None


def test_two_files_that_are_as_good_are_refused() -> None:
    with pytest.raises(
        UnreadableError, match="the directory holds 2 checkpoints: model"
    ):
        weights_in(["adapter_model.safetensors", "model.safetensors"])


def test_a_document_is_a_companion_only_with_the_key_of_megatron(
    tmp_path: Path,
) -> None:
    """Other programs have a `metadata.json` too."""
    folder, name = LocalPath(str(tmp_path)), "metadata.json"
    assert find_companion(folder, []) == ""
    for text, expected in (
        ('{"sharded_backend": "torch_dist"}', name),
        ('{"author": "x"}', ""),
        ("", ""),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert find_companion(folder, [name]) == expected
    (tmp_path / "common.pt").mkdir()
    assert find_companion(folder, ["common.pt"]) == ""
    (tmp_path / "meta.pt").write_bytes(b"")
    assert find_companion(folder, ["common.pt", "meta.pt"]) == "meta.pt"


def test_what_accelerate_saves_beside_a_folder_is_named_once(tmp_path: Path) -> None:
    for name in ("pytorch_model_fsdp_0", "optimizer_0", "optimizer_1", "logs"):
        (tmp_path / name).mkdir()
    for name in (
        "random_states_0.pkl",
        "random_states_1.pkl",
        "scheduler.bin",
        "notes.txt",
    ):
        (tmp_path / name).write_bytes(b"")
    found = names_beside(LocalPath(str(tmp_path / "optimizer_0")))
    assert found == (
        "optimizer_1/",
        "pytorch_model_fsdp_0/",
        "random_states_*.pkl",
        "scheduler.bin",
    )
    assert names_beside(LocalPath(str(tmp_path / "logs"))) == ()

"""A gate over a folder passes no file over: what lies beside a checkpoint, and what begins as a pickle, is judged."""

from __future__ import annotations

from pathlib import Path

import frameworks_dcp as written
import pytest
import torch
from inside import inside
from opcodes import call, glob, pickled
from safetensors.torch import save_file

EVIL = pickled(call(glob("builtins", "print"), "runs"))


@pytest.mark.parametrize("name", ["evil.pt", "evil.pkl", "sub/evil.pt", "__9_9.distcp", "__9.metadata"])
@pytest.mark.parametrize("inside_of", ["pytorch_model_fsdp_0", "optimizer_0", "optimizer_0 alone"])
def test_a_stranger_in_a_part_of_a_folder_is_judged(name: str, inside_of: str, tmp_path: Path) -> None:
    folder, _ = written.accelerate(tmp_path / "state")
    if inside_of.endswith(" alone"):
        folder /= "optimizer_0"
    path = folder / inside_of / name if inside_of.endswith("_0") else folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(EVIL)

    done = inside("lint", "--level", "error", folder, cwd=tmp_path)

    assert done.code == 1 and b"builtins.print('runs')" in done.out, done


def test_a_data_file_that_begins_as_a_pickle_is_judged(tmp_path: Path) -> None:
    folder, _ = written.accelerate(tmp_path / "state")
    data = folder / "optimizer_0/__0_0.distcp"
    data.write_bytes(EVIL + data.read_bytes()[len(EVIL) :])

    assert inside("lint", "--level", "error", folder, cwd=tmp_path).code == 1


def test_weights_beside_the_ones_that_are_read_are_judged(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    torch.save({"w": torch.ones(2)}, tmp_path / "optimizer.pt")
    (tmp_path / "pytorch_model.bin").write_bytes(EVIL)

    done = inside("lint", "--level", "error", ".", cwd=tmp_path)

    assert done.code == 1 and b"builtins.print('runs')" in done.out, done

"""Checkpoints that nobody here made: paths, shapes, dtypes, devices, bytes as torch
sees them; no false finding.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import oracle
import pytest
import real_files
import torch

from ckpt import formats
from ckpt.commands.get.get import get
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.limits import Limits
from ckpt.model.tensors import TensorRef

FINDINGS = {"lpips": ["cuda"], "pesto/mir-1k_g7.ckpt": ["weights-only"]}
"""File, or the package that it is from -> every finding that is true of it."""
FORMATS = {"lpips": "torch-legacy", "facenet": "torch-legacy", "pesto": "torch-zip"}


def loaded(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, dict[int, str]]:
    """What torch loads, and address of a storage -> the device that it was saved on."""
    for row in checkpoint.imports:
        if (
            row.module.startswith("omegaconf")
            and PathFinder.find_spec("omegaconf") is None
        ):
            # Not installed here: a class that takes any state stands in, in each of its
            # modules.
            for name in ("omegaconf", row.module):
                if name not in sys.modules:
                    monkeypatch.setitem(sys.modules, name, ModuleType(name))
            setattr(sys.modules[row.module], row.name, type(row.name, (), {}))
    tags: dict[int, str] = {}

    def note(storage: Any, location: str) -> Any:
        tags[storage.data_ptr()] = location
        return storage

    return torch.load(checkpoint.path, map_location=note, weights_only=False), tags


@pytest.mark.parametrize("file", real_files.FILES)
def test_it_is_seen_as_torch_sees_it(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with formats.open(str(real_files.path(file))) as checkpoint:
        theirs, tags = loaded(checkpoint, monkeypatch)

        assert (
            oracle.Comparison(
                checkpoint, records_grad="lpips/v0.0" not in file
            ).tensors(theirs)
            > 0
        )
        assert checkpoint.format == FORMATS[file.partition("/")[0]]
        for entry in checkpoint.tensors:
            assert isinstance(entry.tensor, TensorRef)
            tensor = oracle.at(theirs, entry.path)
            assert entry.tensor.device == tags[tensor.untyped_storage().data_ptr()]


@pytest.mark.parametrize("file", real_files.FILES)
def test_every_finding_is_true(file: str) -> None:
    with formats.open(str(real_files.path(file))) as checkpoint:
        report = inspect(Survey(checkpoint))

    expected = FINDINGS.get(file, FINDINGS.get(file.partition("/")[0], []))
    assert [finding.code for finding in report.findings] == expected
    assert [part.kind for part in report.sections] == ["model"]


def test_values_of_lightning_and_omegaconf() -> None:
    with formats.open(str(real_files.path("pesto/mir-1k_g7.ckpt"))) as checkpoint:
        channels, version = get(
            Survey(checkpoint),
            ["hparams.encoder.n_chan_layers", "pytorch-lightning_version"],
            Limits(),
        )
        assert channels.to_json()["value"] == [40, 30, 30, 10, 3]
        assert channels.to_json()["type"] == "omegaconf.listconfig.ListConfig"
        assert str(version.node)[0].isdigit()
        groups = {row.group for row in checkpoint.imports}
    assert groups == {"known"}

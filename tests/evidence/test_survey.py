"""What a checkpoint says about itself is worked out once, when it is first
asked for.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence import gradients
from ckpt.evidence import survey as surveys
from ckpt.evidence.record import LooseModule, ModelRecord, TensorRecord
from ckpt.evidence.survey import Survey
from ckpt.model.errors import UsageError


def test_each_thing_is_worked_out_once(samples: Path) -> None:
    with (
        formats.open(str(samples / "train_cuda.pth")) as checkpoint,
        mock.patch.object(
            surveys, "find_sections", wraps=surveys.find_sections
        ) as sections,
        mock.patch.object(surveys, "find_roles", wraps=surveys.find_roles) as roles,
        mock.patch.object(
            gradients, "gradient_uses", wraps=gradients.gradient_uses
        ) as uses,
    ):
        survey = Survey(checkpoint)
        assert not (sections.called or roles.called or uses.called)
        for _ in range(2):
            assert survey.sections and survey.roles and survey.matches and survey.uses
            assert survey.load.expression is not None and survey.record is None
            assert survey.knows_gradients and not survey.unseen.loose
        assert (sections.call_count, roles.call_count, uses.call_count) == (1, 1, 1)


def test_the_state_of_an_optimizer_belongs_to_its_parameters(samples: Path) -> None:
    with formats.open(str(samples / "train_cuda.pth")) as checkpoint:
        survey = Survey(checkpoint)
        names = {
            survey.tensors[at].name: (survey.tensors[index].name, model and model.name)
            for at, (index, model) in survey.state_parameters.items()
        }
        states = [
            row.name
            for row in survey.tensors
            if row.name.startswith("optimizer.state.")
        ]

    assert list(names) == states and len(states) == 23 * 3
    assert names["optimizer.state.1.exp_avg"] == ("model.module.bn1.weight", "model")


@pytest.mark.parametrize(
    "name", ["train_cuda.pth", "lightning.ckpt", "sharded", "snapshot_after.pth"]
)
def test_a_section_holds_its_entries(name: str, samples: Path) -> None:
    with formats.open(str(samples / name)) as checkpoint:
        survey = Survey(checkpoint)
        for section in survey.sections:
            assert (
                len(section.entries)
                == section.tensors
                == len(section.indices)
                == len(section.names())
            )
            for index, entry, inner in zip(
                section.indices, section.entries, section.names(), strict=True
            ):
                assert checkpoint.tensors[index] is entry
                assert entry.name.endswith(inner)
            assert section.numel == sum(entry.tensor.numel for entry in section.entries)
            assert section.nbytes == sum(
                entry.tensor.nbytes for entry in section.entries
            )
        indices = [index for section in survey.sections for index in section.indices]
        assert len(indices) == len(set(indices)) == len(checkpoint.tensors)


def test_the_model_that_is_asked_for(samples: Path) -> None:
    with formats.open(str(samples / "train_cuda.pth")) as checkpoint:
        survey = Survey(checkpoint)
        assert survey.only_model(None) is survey.models[0] is survey.section("model")
        assert survey.section("optimizer").kind == "optimizer"
        with pytest.raises(UsageError, match="no section modell"):
            survey.section("modell")
        assert [part.name for part in survey.weights(None)] == ["model"]
        assert [part.name for part in survey.weights("optimizer")] == ["optimizer"]


@pytest.mark.parametrize(
    ("name", "knows"),
    [
        ("train_cuda.pth", True),
        ("snapshot_after.pth", True),
        ("weights.safetensors", False),
    ],
)
def test_a_file_of_weights_alone_does_not_know_of_gradients(
    name: str, knows: bool, samples: Path
) -> None:
    with formats.open(str(samples / name)) as checkpoint:
        assert Survey(checkpoint).knows_gradients is knows


def test_a_live_model_is_asked_for_its_gradients_and_loose_modules(
    samples: Path,
) -> None:
    loose = LooseModule("blocks[0]", "module", "Linear", 2, None)
    with formats.open(str(samples / "weights.safetensors")) as checkpoint:
        rows = {
            entry.name: TensorRecord("parameter", "cpu", True)
            for entry in checkpoint.tensors
        }
        model = ModelRecord("model", rows, tuple(rows), {}, loose=(loose,))
        codes = [
            finding.code for finding in inspect(Survey(checkpoint, model)).findings
        ]
    assert "list-modules" in codes

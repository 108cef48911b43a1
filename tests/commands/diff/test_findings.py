"""What follows from a comparison, and why a parameter did not move: each claim with its
evidence, and silence without.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from rewriting import compared
from torch import nn

from ckpt import formats
from ckpt.commands.diff.diff import DiffReport, Options, diff
from ckpt.commands.diff.rows import Row
from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.record import ModelRecord, TensorRecord, record_columns
from ckpt.evidence.roles import Role
from ckpt.evidence.survey import Survey

pytestmark = oracle.QUIET
A, B, C = torch.ones(2, 3), torch.ones(4), torch.ones(5)


def adam(**steps: tuple[tuple[int, ...], float | None]) -> dict[str, Any]:
    """Its state over parameters of these shapes, each with its counter; None: without
    state.
    """
    state = {
        number: {"step": torch.tensor(step), "exp_avg": torch.ones(shape)}
        for number, (shape, step) in enumerate(steps.values())
        if step is not None
    }
    return {
        "state": state,
        "param_groups": [{"lr": 0.1, "params": list(range(len(steps)))}],
    }


def training(
    a: torch.Tensor, b: torch.Tensor, step_a: float | None, step_b: float | None
) -> dict[str, Any]:
    model = {"a.weight": a, "b.weight": b}
    return {"model": model, "optimizer": adam(a=((2, 3), step_a), b=((4,), step_b))}


def codes(report: DiffReport) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.tensors for finding in report.findings}


def causes(report: DiffReport) -> dict[str, str | None]:
    return {
        row.name.rpartition("model.")[2]: row.cause
        for row in report.rows
        if row.role.role != "optimizer"
    }


# --- frozen ---------------------------------------------------------------------------


def test_a_parameter_whose_counter_stood_still_while_another_moved(
    tmp_path: Path,
) -> None:
    report = compared(training(A, B, 5, 5), training(A + 1, B, 6, 5), tmp_path)
    assert causes(report)["b.weight"] == "not-stepped"
    assert codes(report) == {"frozen": ("model.b.weight",)}
    assert report.findings[0].level == "warning"


def test_two_saves_of_one_step_say_nothing_of_gradients(tmp_path: Path) -> None:
    """There is no between: something else than the optimizer changed the weights."""
    report = compared(training(A, B, 5, 5), training(A + 1, B, 5, 5), tmp_path)
    (row,) = (row for row in report.rows if row.name == "model.b.weight")
    assert (row.cause, row.reason) == (
        "unknown",
        "did not change; both files are at step 5",
    )
    (finding,) = report.findings
    assert (finding.code, finding.level, finding.tensors) == (
        "frozen",
        "info",
        ("model.b.weight",),
    )
    assert (
        finding.consequence
        == "Both files are at step 5, so they do not show what a step changes."
    )
    assert "gradient" not in f"{finding.message} {finding.consequence}"


def test_a_parameter_whose_own_optimizer_stood_still(tmp_path: Path) -> None:
    def gan(by: float, step: float) -> dict[str, Any]:
        return {
            "netG": {"a.weight": A + by},
            "netD": {"b.weight": B, "c.weight": C},
            "optimizerG": adam(a=((2, 3), step)),
            "optimizerD": adam(b=((4,), 5.0), c=((5,), 5.0)),
        }

    report = compared(gan(0, 5), gan(1, 6), tmp_path)
    reasons = {row.name: row.reason for row in report.rows if row.reason}
    assert reasons == dict.fromkeys(
        ("netD.b.weight", "netD.c.weight"),
        "its optimizer did not step, its step counter stayed at 5",
    )


def test_a_parameter_that_was_stepped_is_never_called_frozen(tmp_path: Path) -> None:
    report = compared(training(A, B, 5, 5), training(A + 1, B, 6, 6), tmp_path)
    assert causes(report)["b.weight"] == "stepped" and codes(report) == {}


def test_a_tensor_without_elements_is_not_frozen(tmp_path: Path) -> None:
    """e3nn registers an empty buffer where a layer has no bias."""
    before = {"a.weight": A, "b.bias": torch.empty(0)}
    after = {"a.weight": A + 1, "b.bias": torch.empty(0)}

    assert codes(compared(before, after, tmp_path)) == {}


def test_a_gradient_of_zero_is_among_the_reasons(tmp_path: Path) -> None:
    """The last bias of a critic: the gradients of the real and the drawn batch
    cancel.
    """
    critic = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(critic.parameters())
    states = []
    for _ in range(2):
        optimizer.zero_grad()
        (critic(torch.randn(4, 3)).mean() - critic(torch.randn(4, 3)).mean()).backward()
        assert critic.bias.grad is not None and not critic.bias.grad.any()
        optimizer.step()
        states.append(
            copy.deepcopy(
                {"model": critic.state_dict(), "optimizer": optimizer.state_dict()}
            )
        )

    (row,) = (
        row for row in compared(*states, tmp_path).rows if row.name == "model.bias"
    )
    assert row.cause == "stepped" and "the gradient was zero" in str(row.reason)


def test_a_counter_that_went_back_tells_nothing(tmp_path: Path) -> None:
    report = compared(training(A, B, 5, 5), training(A + 1, B, 6, 4), tmp_path)
    assert causes(report)["b.weight"] == "unknown"
    assert [(row.code, row.level, row.tensors) for row in report.findings] == [
        ("frozen", "info", ("model.b.weight",))
    ]


def test_left_out_of_the_optimizer_is_frozen_on_purpose_and_no_warning(
    tmp_path: Path,
) -> None:
    model = {"a.weight": A, "b.weight": B}
    before = {"model": model, "optimizer": adam(a=((2, 3), 5.0))}
    after = {"model": {**model, "a.weight": A + 1}, "optimizer": adam(a=((2, 3), 6.0))}
    report = compared(before, after, tmp_path)
    assert causes(report)["b.weight"] == "not-in-optimizer"
    assert [(finding.code, finding.level) for finding in report.findings] == [
        ("frozen", "info")
    ]


def test_where_the_order_leaves_a_choice_nobody_is_said_to_be_left_out(
    tmp_path: Path,
) -> None:
    """One of two tensors of a shape is the optimizer's: neither is known to be out of
    it.
    """
    model = {"a.weight": A, "b.weight": B, "c.weight": B.clone()}
    before = {"model": model, "optimizer": adam(a=((2, 3), 5.0), b=((4,), 5.0))}
    after = {
        "model": {**model, "a.weight": A + 1},
        "optimizer": adam(a=((2, 3), 6.0), b=((4,), 5.0)),
    }
    report = compared(before, after, tmp_path)
    assert (causes(report)["b.weight"], causes(report)["c.weight"]) == (
        "unknown",
        "unknown",
    )
    assert codes(report) == {"frozen": ("model.b.weight", "model.c.weight")}
    assert "cannot say which" in str(report.findings[0].consequence)


@pytest.mark.parametrize("is_vector_changed", [False, True])
def test_only_matrices_that_changed_may_have_been_quantised(
    tmp_path: Path, *, is_vector_changed: bool
) -> None:
    """`diff BASE DEQUANTISED`: no step of a training leaves all vectors alone."""
    model = {"a.weight": A, "b.weight": A * 2, "norm.weight": B, "last.weight": B + 1}
    after = {**model, "a.weight": A * 1.01, "b.weight": A * 2.02}
    if is_vector_changed:
        after["last.weight"] = B + 2
    report = compared(model, after, tmp_path)
    (finding,) = report.findings
    assert (finding.code, finding.level) == ("frozen", "info")
    assert finding.tensors[0] == "norm.weight"
    assert "stayed unchanged" in finding.message
    said = "quantised and taken back" in str(finding.consequence)
    assert said is not is_vector_changed
    assert "cannot say which" in str(finding.consequence)


def test_only_a_parameter_that_moved_makes_the_others_frozen(tmp_path: Path) -> None:
    """Of a tensor that may be a buffer nothing follows."""
    model = {"x.table": C, "b.weight": B}
    before, after = (
        {"model": {**model, "x.table": C + by}, "optimizer": adam(b=((4,), 5.0))}
        for by in (0, 1)
    )
    report = compared(before, after, tmp_path)
    assert causes(report)["b.weight"] == "unknown" and "frozen" not in codes(report)


def test_what_the_file_before_knows_counts_where_the_one_after_is_bare(
    tmp_path: Path,
) -> None:
    before = training(A, B, 5, None)
    after = {"model": {"a.weight": A + 1, "b.weight": B}}
    assert causes(compared(before, after, tmp_path))["b.weight"] == "never"


def test_what_a_snapshot_recorded_before_counts_where_the_file_after_is_bare(
    tmp_path: Path,
) -> None:
    rows = {
        name: TensorRecord("parameter", "cpu", name != "b.weight")
        for name in ("a.weight", "b.weight")
    }
    record = record_columns(ModelRecord("snapshot", rows, tuple(rows), {}))
    before = {"state_dict": {"a.weight": A, "b.weight": B}, "ckpt": record}
    report = compared(
        before, {"state_dict": {"a.weight": A + 1, "b.weight": B}}, tmp_path
    )
    assert {row.name: row.cause for row in report.rows}[
        "state_dict.b.weight"
    ] == "frozen"


def test_before_backward_no_parameter_has_a_gradient_and_that_says_nothing(
    tmp_path: Path,
) -> None:
    state = {"a.weight": A, "b.weight": B}

    def snapshot(a: torch.Tensor, gradient: float | None) -> dict[str, Any]:
        rows = {name: TensorRecord("parameter", "cpu", True) for name in state}
        rows["a.weight"] = rows["a.weight"]._replace(gradient=gradient)
        return {
            "state_dict": {**state, "a.weight": a},
            "ckpt": record_columns(ModelRecord("snapshot", rows, tuple(rows), {})),
        }

    for gradient, cause in ((None, "unknown"), (1.0, "no-gradient")):
        report = compared(snapshot(A, None), snapshot(A + 1, gradient), tmp_path)
        assert {row.name: row.cause for row in report.rows}[
            "state_dict.b.weight"
        ] == cause


def test_requires_grad_of_a_plain_tensor_says_nothing_and_of_a_parameter_it_does(
    tmp_path: Path,
) -> None:
    before = {
        "a.weight": A,
        "b.weight": B,
        "c.weight": nn.Parameter(C, requires_grad=False),
    }
    report = compared(before, {**before, "a.weight": A + 1}, tmp_path)
    assert (causes(report)["b.weight"], causes(report)["c.weight"]) == (
        "unknown",
        "frozen",
    )


def test_counters_that_an_optimizer_does_not_keep_did_not_stand_still(
    tmp_path: Path,
) -> None:
    def sgd(a: torch.Tensor) -> dict[str, Any]:
        state = {
            0: {"momentum_buffer": torch.ones(2, 3)},
            1: {"momentum_buffer": torch.ones(4)},
        }
        groups = [{"lr": 0.1, "momentum": 0.9, "params": [0, 1]}]
        model = {"a.weight": a, "b.weight": B}
        return {"model": model, "optimizer": {"state": state, "param_groups": groups}}

    report = compared(sgd(A), sgd(A + 1), tmp_path)
    assert causes(report)["b.weight"] == "unknown"
    assert [(row.code, row.level) for row in report.findings] == [("frozen", "info")]


def test_two_bare_state_dicts_always_say_what_did_not_change(tmp_path: Path) -> None:
    """One step of plain SGD: the fact is there, and the reason is not."""
    before = {
        "a.weight": A,
        "b.weight": B,
        "b.bias": B.clone(),
        "gain": C,
        "pos.inv_freq": C.clone(),
    }
    report = compared(before, {**before, "a.weight": A + 1}, tmp_path)
    assert [(row.code, row.level, row.tensors) for row in report.findings] == [
        ("frozen", "info", ("b.weight", "b.bias")),
        ("frozen", "info", ("gain",)),  # a parameter or a buffer
    ]
    assert report.findings[0].message.startswith(
        "b.{weight,bias} stayed unchanged while 1 other parameter changed."
    )
    assert "may be a buffer" in str(report.findings[1].consequence)


def test_of_tensors_whose_names_say_nothing_nothing_but_the_fact_is_said(
    tmp_path: Path,
) -> None:
    report = compared({"x": A, "y.z": B}, {"x": A + 1, "y.z": B}, tmp_path)
    assert codes(report) == {"frozen": ("y.z",)} and "may be a buffer" in str(
        report.findings[0].consequence
    )
    same = compared({"x": A, "y.weight": B}, {"x": A + 1, "y.weight": B}, tmp_path)
    assert codes(same) == {}  # x may be a buffer, and then no parameter moved


def test_a_layer_with_statistics_but_no_counter_may_have_only_buffers(
    tmp_path: Path,
) -> None:
    norm = {
        f"n.{leaf}": B.clone()
        for leaf in ("weight", "bias", "running_mean", "running_var")
    }
    report = compared({"a.weight": A, **norm}, {"a.weight": A + 1, **norm}, tmp_path)
    assert codes(report) == {"frozen": ("n.weight", "n.bias")}
    assert "may be buffers" in str(report.findings[0].consequence)


def test_averages_are_not_called_frozen_beside_the_model_and_are_without_it(
    tmp_path: Path,
) -> None:
    model, moved = {"a.weight": A, "b.weight": B}, {"a.weight": A + 1, "b.weight": B}
    report = compared(
        {"model": model, "ema": model}, {"model": moved, "ema": model}, tmp_path
    )
    assert codes(report) == {"frozen": ("model.b.weight",)}
    assert codes(compared({"ema": model}, {"ema": moved}, tmp_path)) == {
        "frozen": ("ema.b.weight",)
    }


# --- who wrote the weights ------------------------------------------------------------


def test_a_parameter_moved_that_never_had_a_gradient(tmp_path: Path) -> None:
    report = compared(
        training(A, B, 5, None), training(A + 1, B + 1, 6, None), tmp_path
    )
    assert codes(report) == {"changed-without-state": ("model.b.weight",)}


def test_between_files_of_one_step_somebody_else_may_have_moved_it(
    tmp_path: Path,
) -> None:
    report = compared(
        training(A, B, 5, None), training(A + 1, B + 1, 5, None), tmp_path
    )
    assert "changed-without-state" not in codes(report)


def test_texts_name_the_model_where_there_are_several(tmp_path: Path) -> None:
    def file(by: float, step: float) -> dict[str, Any]:
        models = {
            "G": {"0.weight": A + by, "1.weight": B + by},
            "D": {"0.weight": C + by, "1.weight": B + 1},
        }
        optimizers = {
            "optG": adam(a=((2, 3), step), b=((4,), step)),
            "optD": adam(a=((5,), step), b=((4,), None)),
        }
        return {**models, **optimizers}

    first, second = file(0, 5), file(1, 6)
    (finding,) = compared(first, second, tmp_path).findings
    assert finding.message.startswith("D.1.weight stayed unchanged")
    # Also where the other file has but one of them.
    (finding,) = compared(first, {"D": second["D"]}, tmp_path).findings
    assert finding.message.startswith("D.1.weight stayed unchanged")
    with formats.open(str(rewriting.saved(second, tmp_path / "c.pt"))) as checkpoint:
        messages = [
            row.message
            for row in inspect(Survey(checkpoint)).findings
            if row.code == "unused"
        ]
    assert [message.split(" ")[0] for message in messages] == ["D.1.weight"]


# --- steps ----------------------------------------------------------------------------


def test_no_step_was_made(tmp_path: Path) -> None:
    still = training(A, B, 5, 5)
    assert set(codes(compared(still, {**still, "epoch": 2}, tmp_path))) == set()
    report = compared({**still, "epoch": 1}, {**still, "epoch": 2}, tmp_path)
    assert [(row.code, row.message) for row in report.findings] == [
        ("step-skipped", "Both files are at step 5, and no parameter differs.")
    ]
    assert "step-skipped" in codes(compared(still, training(A, B, 6, 6), tmp_path))


def test_a_change_of_what_may_be_a_parameter_is_no_skipped_step(tmp_path: Path) -> None:
    """By order alone neither `gain` nor `tone` is known to be the optimizer's: one of
    them moved.
    """

    def file(by: float, step: float) -> dict[str, Any]:
        model = {"a.weight": A, "gain": B + by, "tone": B}
        return {
            "model": model,
            "optimizer": adam(a=((2, 3), step), gain=((4,), step)),
            "epoch": by,
        }

    for step in (5.0, 6.0):
        report = compared(file(0, 5.0), file(1, step), tmp_path)
        assert report.differs and "step-skipped" not in codes(report)


def test_parameters_of_one_side_may_have_changed(tmp_path: Path) -> None:
    before, after = training(A, B, 5, 5), training(A, B, 6, 6)
    before["model"]["old.weight"], after["model"]["new.weight"] = C, C + 1
    assert "step-skipped" not in codes(compared(before, after, tmp_path))


def test_checksums_that_are_missing_show_no_skipped_step(tmp_path: Path) -> None:
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for step, path in zip((5, 6), paths, strict=True):
        rewriting.saved(
            training(A, B, step, step), path, _use_new_zipfile_serialization=False
        )
    with formats.open(str(paths[0])) as one, formats.open(str(paths[1])) as two:
        report = diff(Survey(one), Survey(two), Options(quick=True))
    assert report.count("unchecked") and "step-skipped" not in codes(report)


def test_an_optimizer_whose_state_changed_did_something(tmp_path: Path) -> None:
    before, after = training(A, B, 5, 5), training(A, B, 5, 5)
    after["optimizer"]["state"][0]["exp_avg"] = torch.zeros(2, 3)
    assert "step-skipped" not in codes(compared(before, after, tmp_path))


def test_files_without_parameters_have_no_steps_to_skip(tmp_path: Path) -> None:
    optimizer = adam(a=((2, 3), 5.0))
    report = compared(
        {"optimizer": optimizer, "epoch": 1},
        {"optimizer": optimizer, "epoch": 2},
        tmp_path,
    )
    assert report.differs and codes(report) == {}


def test_one_of_two_optimizers_stepped(tmp_path: Path) -> None:
    def gan(step: float) -> dict[str, Any]:
        return {
            "netG": {"a.weight": A},
            "netD": {"b.weight": B},
            "optimizerG": adam(a=((2, 3), step)),
            "optimizerD": adam(b=((4,), 5.0)),
        }

    assert "step-skipped" not in codes(compared(gan(5), gan(6), tmp_path))


def test_another_vocabulary_or_a_cast_freezes_nothing(tmp_path: Path) -> None:
    """A base model beside one with more words, or with some weights in another dtype:
    nobody trained it.
    """
    base = {
        "emb.weight": torch.ones(4, 2),
        "a.weight": A,
        "n.weight": B,
        "n.running_mean": B,
        "n.running_var": B,
    }
    resized = {**base, "emb.weight": torch.ones(6, 2), "n.running_mean": B + 1}
    for other in (
        resized,
        {
            **base,
            "emb.weight": torch.full((4, 2), 1.001).half(),
            "n.running_mean": B + 1,
        },
    ):
        assert (
            not {"frozen", "buffers-in-frozen"}
            & codes(compared(base, other, tmp_path)).keys()
        )
    trained = {**resized, "a.weight": A + 1}
    assert codes(compared(base, trained, tmp_path))["frozen"] == ("n.weight",)


# --- statistics and numbers -----------------------------------------------------------


def normed(a: torch.Tensor, mean: torch.Tensor, step_a: float) -> dict[str, Any]:
    model = {
        "a.weight": a,
        "n.weight": B,
        "n.running_mean": mean,
        "n.running_var": B.clone(),
        "n.num_batches_tracked": torch.tensor(1),
    }
    return {"model": model, "optimizer": adam(a=((2, 3), step_a), n=((4,), 5.0))}


def test_statistics_move_beside_parameters_that_do_not(tmp_path: Path) -> None:
    report = compared(normed(A, B, 5), normed(A + 1, B + 1, 6), tmp_path)
    assert codes(report)["buffers-in-frozen"] == ("model.n.running_mean",)
    report = compared(
        normed(A, B, 5), normed(A, B + 1, 5), tmp_path
    )  # no parameter moved at all
    assert "buffers-in-frozen" not in codes(report)


def test_nan_and_infinities_are_told_of_the_file_after(tmp_path: Path) -> None:
    bad = {"a.weight": torch.tensor([float("nan"), float("inf")])}
    good = {"a.weight": torch.zeros(2)}
    assert set(codes(compared(good, bad, tmp_path))) == {"nan", "inf"}
    assert codes(compared(bad, good, tmp_path)) == {}


# --- rows -----------------------------------------------------------------------------


def test_a_tensor_of_another_dtype_or_shape_has_moved() -> None:
    role = Role("parameter", "certain", "test")
    moved = {
        status: Row(status, None, None, role).moved
        for status in ("changed", "reshaped", "retyped")
    }  # type: ignore[arg-type]
    assert moved == {"changed": True, "reshaped": True, "retyped": True}
    assert not Row("same", None, None, role).moved


def test_a_renamed_tensor_goes_by_the_name_after(tmp_path: Path) -> None:
    report = compared(
        {"a.weight": A, "b.weight": B}, {"a.weight": A, "c.weight": B}, tmp_path
    )
    assert [
        (row.name, row.label) for row in report.rows if row.status == "renamed"
    ] == [("c.weight",) * 2]


def test_other_parts_go_together_only_by_their_place(tmp_path: Path) -> None:
    model = {"a.weight": torch.ones(20, 20), "a.bias": torch.ones(20)}
    report = compared(
        {"model": model, "old": {"x": B}},
        {"model": model, "new": {"x": B + 1}},
        tmp_path,
    )
    assert [(pair.before.name, pair.after.name) for pair in report.pairs] == [
        ("model", "model")
    ]
    assert len(report.not_compared) == 2 and report.same


# --- ranks ----------------------------------------------------------------------------


def of_rank(
    rank: int,
    state: dict[str, torch.Tensor],
    gradients: dict[str, float | None],
    *sharded: str,
) -> dict[str, Any]:
    """What ckpt.snapshot writes on one of two ranks."""
    rows = {
        name: TensorRecord(
            "parameter", "cpu", True, gradients.get(name), name in sharded
        )
        for name in state
    }
    record = ModelRecord("snapshot", rows, tuple(state), {}, rank=rank, world_size=2)
    return {"state_dict": state, "ckpt": record_columns(record)}


STATE = {"a.weight": A, "b.weight": B, "c.weight": C}


def test_ranks_with_other_values_and_a_branch_that_one_of_them_took(
    tmp_path: Path,
) -> None:
    first = of_rank(0, STATE, {"a.weight": 1.0, "b.weight": 1.0})
    second = of_rank(
        1, {**STATE, "c.weight": C + 1}, {"a.weight": 1.0, "c.weight": 1.0}
    )
    report = compared(first, second, tmp_path)
    assert [finding.code for finding in report.findings] == ["ranks-differ"] * 3
    values, mine, other = report.findings
    assert values.tensors == ("state_dict.c.weight",)
    assert mine.tensors == ("state_dict.b.weight",) and "rank 0" in mine.message
    assert other.tensors == ("state_dict.c.weight",) and "rank 1" in other.message


def test_shards_of_a_tensor_differ_on_each_rank(tmp_path: Path) -> None:
    gradients = dict.fromkeys(STATE, 1.0)
    first = of_rank(0, STATE, gradients, "c.weight")
    second = of_rank(1, {**STATE, "c.weight": C + 1}, gradients, "c.weight")
    assert compared(first, second, tmp_path).findings == ()


def test_ranks_of_which_one_did_not_propagate_took_no_other_branch(
    tmp_path: Path,
) -> None:
    first, second = of_rank(0, STATE, dict.fromkeys(STATE, 1.0)), of_rank(1, STATE, {})
    assert compared(first, second, tmp_path).findings == ()


def test_two_moments_of_one_rank_are_no_ranks(tmp_path: Path) -> None:
    gradients = dict.fromkeys(STATE, 1.0)
    first, second = (
        of_rank(1, STATE, gradients),
        of_rank(1, {**STATE, "c.weight": C + 1}, gradients),
    )
    assert "ranks-differ" not in codes(compared(first, second, tmp_path))


def test_long_names_in_a_sentence_are_told_apart(tmp_path: Path) -> None:
    names = [
        f"{'a_long_module_name.' * 8}{word}.weight"
        for word in ("query", "key", "value", "out")
    ]
    before = {
        name: torch.full((2, number + 2), 1.0) for number, name in enumerate(names)
    }
    after = {**before, names[3]: before[names[3]] + 1}
    (finding,) = compared(before, after, tmp_path).findings

    said = finding.message.partition(" stayed unchanged")[0]
    assert all(word in said for word in ("query", "key", "value")) and set(
        finding.tensors
    ) == set(names[:3])

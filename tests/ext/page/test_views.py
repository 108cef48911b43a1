"""What a page shows of documents: which views there are, what they hold, and columns
that hold what the rows held.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from process import SAMPLES
from reports import compared, inspected, listed, measured

from ckpt.commands.ls.ls import LsRow
from ckpt.ext.page import views as report
from ckpt.ext.page.views import is_series, pack_rows, page_payload
from ckpt.model.errors import UnreadableError
from ckpt.model.text import Json

BEFORE, AFTER = SAMPLES / "ddp_before.pth", SAMPLES / "ddp_after.pth"


def views(*documents: dict[str, Any]) -> list[str]:
    return [view["kind"] for view in page_payload(documents, "1")["views"]]  # type: ignore[union-attr, index, call-overload]


def unpacked(table: Any) -> list[dict[str, Any]]:
    """As `rows_of` in data.js."""
    rows: list[dict[str, Any]] = [{} for _ in range(table["count"])]
    for name, column in table["columns"].items():
        for at, row in enumerate(rows):
            row[name] = (
                column["all"]
                if "all" in column
                else column["of"][column["at"][at]]
                if "of" in column
                else column["is"][at]
            )
    return rows


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, 1.0, -0.0, 0.5]),
    st.text(max_size=2),
    st.lists(st.integers(0, 2), max_size=2),
)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12))
def test_columns_hold_what_the_rows_held(pairs: list[tuple[Any, Any]]) -> None:
    rows = [{"a": one, "b": two} for one, two in pairs]
    table = pack_rows(rows)

    assert json.dumps(unpacked(json.loads(json.dumps(table)))) == json.dumps(rows)


def test_a_column_numbers_what_repeats() -> None:
    rows = [{"a": "x" if at % 3 else "y", "b": 1, "c": at} for at in range(9)]
    assert pack_rows(rows)["columns"] == {
        "a": {"of": ["y", "x"], "at": [0, 1, 1] * 3},
        "b": {"all": 1},
        "c": {"is": list(range(9))},
    }
    assert pack_rows([]) == {"count": 0, "columns": {}}


def test_the_documents_decide_about_the_views() -> None:
    one, two = measured(BEFORE), measured(AFTER)
    change = compared(BEFORE, AFTER)

    assert views(inspected()) == ["checkpoint"]
    assert (
        views(change) == ["diff"]
        and views(one) == ["stats"]
        and views(listed(BEFORE)) == ["folder"]
    )
    assert (
        views(one, two)
        == ["series"]
        == views(change, change)
        == views(listed(BEFORE), one, listed(AFTER), two, change)
    )
    assert views(inspected(), one, change) == ["diff", "checkpoint", "stats"]
    assert views(inspected(BEFORE), one) == ["checkpoint"]
    assert views(listed(BEFORE), inspected()) == ["folder", "checkpoint"]
    with pytest.raises(UnreadableError, match="no document to draw"):
        page_payload([], "1")


def test_two_files_with_their_rows_are_one_comparison() -> None:
    rows = [listed(BEFORE), listed(AFTER)]
    assert views(*rows, compared(BEFORE, AFTER)) == ["diff"]
    (view,) = page_payload([*rows, compared(BEFORE, AFTER)], "1")["views"]  # type: ignore[misc]
    assert [row["path"] for row in view["files"]] == [str(BEFORE), str(AFTER)]  # type: ignore[index, call-overload, union-attr]
    assert views(*rows, listed(SAMPLES / "legacy.pth"), compared(BEFORE, AFTER)) == [
        "folder",
        "diff",
    ]


def test_files_of_several_have_labels() -> None:
    measures = [measured(BEFORE), measured(AFTER)]
    (view,) = page_payload(measures, "1")["views"]  # type: ignore[misc]
    assert view["labels"] == [[str(BEFORE), "ddp_before"], [str(AFTER), "ddp_after"]]  # type: ignore[index, call-overload]
    (view,) = page_payload([listed(BEFORE), listed(AFTER)], "1")["views"]  # type: ignore[misc]
    assert [label for _, label in view["labels"]] == ["ddp_before", "ddp_after"]  # type: ignore[index, call-overload, union-attr]


def strange(met: int, of: int, optimizer: int = 0) -> dict[str, Any]:
    """A comparison in which `met` of `of` tensors are in both files, and `optimizer`
    further ones.
    """
    document = compared(BEFORE, AFTER)
    row = {**document["tensors"][0], "role": "parameter"}
    document["tensors"] = [
        *[row] * met,
        *[{**row, "after": None}] * (of - met),
        *[{**row, "before": None}] * (of - met),
        *[{**row, "role": "optimizer"}] * optimizer,
    ]
    return document


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (strange(0, 1), "These files have no tensor in common."),
        (strange(0, 30, 9), "These files have no tensor in common."),
        (strange(1, 30), "These files have 1 of 30 tensors in common."),
        (strange(2, 40), None),
        (strange(0, 0, 9), None),
        (strange(0, 0), None),
    ],
)
def test_files_of_other_models_are_a_list(
    change: dict[str, Any], says: str | None
) -> None:
    (view,) = page_payload([listed(BEFORE), listed(AFTER), change], "1")["views"]  # type: ignore[misc]
    assert view["kind"] == ("folder" if says else "diff")  # type: ignore[index, call-overload]
    assert view.get("note") == says  # type: ignore[union-attr]
    assert views(change) == ["diff"], "there is no row of a file"


def test_a_series_of_strangers_is_a_list_and_one_with_a_stranger_is_a_series() -> None:
    rows = [listed(path) for path in (BEFORE, AFTER, SAMPLES / "legacy.pth")]
    (view,) = page_payload([*rows, strange(0, 3), strange(0, 3)], "1")["views"]  # type: ignore[misc]
    assert (view["kind"], view["note"]) == (
        "folder",
        "These files have next to no tensor in common.",
    )  # type: ignore[index, call-overload]
    (view,) = page_payload([*rows, strange(3, 3), strange(0, 3)], "1")["views"]  # type: ignore[misc]
    assert [each["strangers"] for each in view["diffs"]] == [
        None,
        "no tensor in common",
    ]  # type: ignore[index, call-overload, union-attr]


def test_weights_that_are_quantised_are_judged_on_the_page_too() -> None:
    """The command calls them what their type makes, so the page does not call them
    changed alone.
    """
    document = compared(BEFORE, AFTER)
    within, other = (
        {"within": True, "verdict": "within"},
        {"within": False, "verdict": "other"},
    )

    def judged(name: str, part: dict[str, Any]) -> Any:
        (view,) = page_payload([{**document, name: part}], "1")["views"]  # type: ignore[misc]
        return view["judged"]  # type: ignore[index, call-overload]

    text = "of 2 tensors within what quantised types make of the other side"
    gguf = {"tensors": [within, within], "lacking": [], "more": []}
    assert judged("gguf", gguf) == {"text": f"2 {text}", "is_within": True}
    assert not judged("gguf", {**gguf, "lacking": ["x"]})["is_within"]
    weights = {"weights": [within, other], "others": []}
    assert judged("quantised", weights) == {"text": f"1 {text}", "is_within": False}
    assert judged("notes", []) is None
    assert judged("gguf", {"tensors": 3}) is None


def test_the_checkpoints_of_documents_are_counted_once() -> None:
    error = {
        "schema": {"name": "ckpt.ls", "version": 2},
        "path": "x",
        "error": {"code": "x"},
    }
    documents = [
        listed(BEFORE),
        measured(BEFORE),
        compared(BEFORE, AFTER),
        inspected(),
        error,
    ]
    paths = [str(path) for path in (BEFORE, AFTER, SAMPLES / "train_cuda.pth")]
    assert report.checkpoint_paths(documents) == paths


def row(path: str, **counters: float) -> LsRow:
    """A row of a series that records these counters."""
    return LsRow(path, counters=tuple(counters.items()))


@pytest.mark.parametrize(
    "order",
    [
        [row("best", epoch=2), row("a_3", epoch=3), row("last", epoch=10)],
        [
            row("b", epoch=1, step=20),
            row("a", epoch=1, step=100),
            row("c", epoch=2, step=3),
        ],
        [row("a", epoch=9), row("b", epoch=1), row("last")],
        [row("e_2", epoch=1), row("e_10", epoch=1)],
        [row("y/s", step=100), row("x/s", step=200)],
        [
            row("x/best", step=3),
            row("x/a", step=9),
            row("y/best", step=2),
            row("y/a", step=7),
        ],
    ],
)
def test_a_series_is_in_the_order_of_what_all_of_its_files_record(
    order: list[LsRow],
) -> None:
    for rows in (order, order[::-1], sorted(order)):
        assert report.in_series(rows) == order


def test_a_page_takes_the_fields_that_it_draws_and_changes_none() -> None:
    document = inspected()
    (view,) = page_payload([document], "1")["views"]  # type: ignore[misc]
    assert isinstance(view, dict)
    rows = unpacked(view["tensors"])
    for row, tensor in zip(rows, document["tensors"], strict=True):
        assert {name: row[name] for name in row if name in tensor} == {
            name: tensor[name] for name in row if name in tensor
        }
    assert {"path", "stride", "offset"}.isdisjoint(rows[0])
    storages = unpacked(view["storages"])
    assert [row["tensors"] for row in storages] == [
        len(row["tensors"]) for row in document["storages"]
    ]
    texts = {row["name"]: row["text"] for row in unpacked(view["values"])}
    assert (texts["epoch"], texts["optimizer.param_groups.0.betas"], texts["args"]) == (
        "12",
        "[0.9, 0.999]",
        None,
    )


def test_long_values_are_cut() -> None:
    document = inspected()
    document["values"] = [{"name": "x", "path": [], "type": "str", "value": "é" * 5000}]
    (view,) = page_payload([document], "1")["views"]  # type: ignore[misc]
    (row,) = unpacked(view["values"])  # type: ignore[index, call-overload]
    assert len(row["text"]) == 2000 and row["text"].endswith("é…")


def test_a_number_that_is_not_finite_is_its_name() -> None:
    document = compared(BEFORE, AFTER)
    document["tensors"][0]["change"] |= {
        "rel_l2": None,
        "rel_l2_is": "inf",
        "max_abs": True,
    }
    (view,) = page_payload([document], "1")["views"]  # type: ignore[misc]
    row = unpacked(view["tensors"])[0]  # type: ignore[index, call-overload]
    assert (row["rel_l2"], row["max_abs"], row["rms"]) == (
        "inf",
        None,
        document["tensors"][0]["change"]["rms"],
    )


@pytest.mark.parametrize(
    "bad",
    [
        5,
        {},
        {"low": 0, "high": "x", "counts": [1]},
        {"low": 0, "high": 1, "counts": "x"},
        {"low": 0, "high": 1, "counts": [True]},
    ],
)
def test_a_histogram_of_another_form_is_left_out(bad: object) -> None:
    document = compared(BEFORE, AFTER)
    document["tensors"][0]["change"]["histogram"] = bad
    document["tensors"][1]["change"]["histogram"] = {
        "low": 0,
        "high": 1.5,
        "counts": [1, 2],
    }
    (view,) = page_payload([document], "1")["views"]  # type: ignore[misc]
    first, second, *_ = unpacked(view["tensors"])  # type: ignore[index, call-overload]
    assert first["histogram"] is None and second["histogram"] == {
        "low": 0,
        "high": 1.5,
        "counts": [1, 2],
    }


def test_errors_are_listed_apart() -> None:
    error = {
        "schema": {"name": "ckpt.stats", "version": 7},
        "file": {"path": 5},
        "error": {"code": "x", "message": None},
    }
    made = page_payload([error, inspected()], "1")
    assert made["unreadable"] == [
        {"path": "", "code": "x", "message": None, "hint": None}
    ]


@pytest.mark.parametrize(
    ("value", "kinds", "fits"),
    [
        (True, report.COUNT, False),
        (True, report.NUMBER, False),
        (True, report.FLAG, True),
        (True, report.ANY, True),
        (1, report.COUNT, True),
        (1, report.FLAG, False),
        (1.5, report.COUNT, False),
        (None, report.COUNT, False),
        (None, report.or_null(report.COUNT), True),
        ((), report.LIST, True),
        ("1", report.NUMBER, False),
    ],
)
def test_a_field_of_another_kind_is_refused(
    value: Json, kinds: report.Kinds, fits: bool
) -> None:
    """A flag is a number to Python, and none to a page."""
    if fits:
        assert report.take_fields({"a": value}, {"a": kinds}) == {"a": value}
        return
    with pytest.raises(UnreadableError, match=r"invalid document: of\.a is not as"):
        report.take_fields({"a": value}, {"a": kinds}, "of.")


def curves(
    *numbers: dict[str, float], **options: Any
) -> list[tuple[list[str], list[float]]]:
    """The curves of a series of files that record these numbers."""
    rows = [listed(BEFORE), listed(AFTER)]
    for row, path in zip(rows, ("e1.pth", "e2.pth"), strict=True):
        row["path"] = row["file"]["path"] = path
    both = [measured(BEFORE), measured(AFTER)]
    for document, path in zip(both, ("e1.pth", "e2.pth"), strict=True):
        document["file"]["path"] = path
    recorded = dict(zip(("e1.pth", "e2.pth"), numbers, strict=False))
    (view,) = page_payload([*rows, *both], "1", recorded)["views"]  # type: ignore[misc]
    assert isinstance(view, dict) and view["kind"] == "series"
    return [(curve["names"], curve["values"]) for curve in view["curves"]]  # type: ignore[union-attr, index, call-overload]


def test_a_curve_is_a_number_that_all_files_record() -> None:
    found = curves(
        {
            "epoch": 1,
            "lr": 0.1,
            "train_loss": 2.5,
            "acc": 0.5,
            "only_here": 3,
            "last_epoch": 1,
        },
        {"epoch": 2, "lr": 0.05, "train_loss": 1.5, "acc": 0.7, "last_epoch": 2},
    )
    assert found == [
        (["train_loss"], [2.5, 1.5]),
        (["lr"], [0.1, 0.05]),
        (["acc"], [0.5, 0.7]),
        (["epoch", "last_epoch"], [1, 2]),
    ]
    assert curves() == [(["epoch"], [0, 1])], "counters, where no numbers are at hand"
    assert curves({"loss": 1.0}, {}) == []


def row(path: str, parameters: int = 10, **counters: float) -> LsRow:
    return LsRow(
        path,
        "torch-zip",
        1,
        1,
        parameters,
        0,
        (),
        (),
        "weights_only",
        (),
        counters=tuple(counters.items()),
    )


@pytest.mark.parametrize(
    ("rows", "is_one"),
    [
        ([row("r/epoch_1.pth"), row("r/epoch_2.pth")], True),
        ([row("r/checkpoint-500/m.pt"), row("r/checkpoint-1000/m.pt")], True),
        (
            [
                row("r/best.pth", epoch=3),
                row("r/epoch_1.pth", epoch=1),
                row("r/last.pth", epoch=9),
            ],
            True,
        ),
        ([row("r/epoch_1.pth"), row("r/epoch_2.pth", 11)], False),
        ([row("r/one.pth"), row("r/two.pth")], False),
        ([row("r/one.pth", epoch=1), row("r/two.pth", epoch=1)], False),
        ([row("a/best.pth", epoch=1), row("b/last.pth", epoch=2)], False),
        ([row("r/rank0.pth"), row("r/rank1.pth")], False),
        ([row("r/epoch_1.pth", 0), row("r/epoch_2.pth", 0)], False),
        ([row("r/epoch_1.pth")], False),
    ],
)
def test_saves_of_one_run_are_a_series(rows: list[LsRow], is_one: bool) -> None:
    assert is_series(rows) is is_one

"""The parts of a job beside each other: those that are not of one job, and those that are missing."""

from __future__ import annotations

import pytest

from ckpt.jobs.parts import Input, Part, Share, refusals
from ckpt.text import Json

OPTIONS: dict[str, Json] = {"section": None, "everything": False}
ONE = Part(
    Share(0, 2),
    "stats",
    (Input("a.pth", 1, 100, "0" * 64),),
    OPTIONS,
    7,
    "1" * 64,
    0,
    [],
    file="p0.json",
)
TWO = ONE._replace(share=Share(1, 2), file="p1.json")


def texts(*parts: Part) -> list[str]:
    return [f"{error.path}: {error.problem}" for error in refusals(parts)]


def test_parts_of_one_job_are_taken_in_any_order() -> None:
    assert texts(ONE, TWO) == texts(TWO, ONE) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (TWO._replace(command="sum"), "the command"),
        (TWO._replace(share=Share(1, 3)), "the number of parts"),
        (TWO._replace(inputs=ONE.inputs * 2), "the number of inputs"),
        (TWO._replace(inputs=(ONE.inputs[0]._replace(digest="2" * 64),)), "the files of a.pth"),
        (TWO._replace(options={**OPTIONS, "everything": True}), "--everything"),
        (TWO._replace(options={"section": None}), "the options"),
        (TWO._replace(problem="cut off"), "whether the file opens"),
        (TWO._replace(tasks=8), "the tasks"),
        (TWO._replace(plan="3" * 64), "the tasks"),
    ],
)
def test_a_part_of_another_job_is_named_with_the_first_difference(other: Part, what: str) -> None:
    first = f"p1.json: {other.share} differs from part 0 of 2 in {what}"
    assert texts(ONE, other) == [first, "None: part 1 of 2 is missing"]


def test_the_path_of_an_input_may_differ() -> None:
    assert texts(ONE, TWO._replace(inputs=(ONE.inputs[0]._replace(path="/mnt/a.pth"),))) == []


def test_parts_that_are_there_twice_or_missing_are_named() -> None:
    again = ONE._replace(file="p2.json")
    assert texts(ONE, again) == [
        "p2.json: part 0 of 2 is there twice, also as p0.json",
        "None: part 1 of 2 is missing",
    ]
    many = texts(ONE._replace(share=Share(3, 30)))
    assert many[0] == "None: part 0 of 30 is missing" and many[3] == "None: part 4 of 30 is missing"
    assert many[20:] == ["None: 9 further parts of 30 are missing"]

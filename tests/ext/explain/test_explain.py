"""Every finding and every error of the pages is found, by its code, by its text, and
inside of a traceback.
"""

from __future__ import annotations

import re

import pytest

from ckpt.ext.explain import Page, explain, pages
from ckpt.ext.explain.families import find_message
from ckpt.ext.explain.pages import source
from ckpt.model.errors import UsageError
from ckpt.model.findings import CATALOGUE

ERRORS = [page for page in pages() if page.code is None]
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss.backward()
{}
E1122 10:00:00 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0"""


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_has_its_page(code: str) -> None:
    page = explain(code).page

    assert page.code == CATALOGUE[code]
    assert page.body and all(
        block.text and "\n" not in block.text for block in page.body
    )
    assert explain(f" {code.upper().replace('-', '_')}\n").page == page


def title(text: str) -> str:
    return explain(text).page.title


@pytest.mark.parametrize("page", ERRORS, ids=lambda page: page.word[:40])
def test_every_message_leads_to_its_answer(page: Page) -> None:
    for message in page.messages:
        assert title(message) == page.title
        assert title(re.sub(r"\d+", "77", message)) == page.title
        assert title(TRACEBACK.format(message)) == page.title
        # A part of the page has several answers, each with its own messages.
        found = find_message(message)
        assert found is not None and found.kind in page.kinds, message


@pytest.mark.parametrize("page", ERRORS[:3], ids=lambda page: page.word[:40])
def test_the_last_error_of_a_long_log_is_found(page: Page) -> None:
    log = "step 7 of 9000, all is well\n" * 2_000
    assert title(f"{log}{TRACEBACK.format(page.messages[0])}{log}") == page.title
    with pytest.raises(UsageError):
        explain(log)


def test_the_pages_hold_all_messages_and_commands_of_their_source() -> None:
    text = source("errors")

    assert [message for page in ERRORS for message in page.messages] == re.findall(
        r"```text\n(.*?)\n```", text, re.DOTALL
    )
    commands = [
        block.text for page in ERRORS for block in page.body if block.kind == "command"
    ]
    shown = re.findall(r"<!-- run: .+? -->\n<!-- yours: (.+?) -->", text)
    assert commands == shown and text.count("<!-- run: ") == len(shown)
    assert not re.search(r"\.pth|\.pt\b", " ".join(commands)), "no file of the samples"
    assert all(page.body for page in ERRORS)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.word[:40])
def test_bodies_hold_no_markup(page: Page) -> None:
    for block in page.body:
        if block.kind != "command":
            assert not re.search(r"`|\]\(|<!--|\*\w+\*", block.text), block.text


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Expected to have finished reduction", (
            "DDP: parameters that received no gradient"
        )),
        ("Parameter indices which did not receive grad for rank 0: 4 5", (
            "DDP: parameters that received no gradient"
        )),
        ("Missing key(s) in state_dict", "Keys that do not match"),
        # Nothing says that it was a load.
        ("CUDA out of memory. Tried to allocate 20.00 MiB", (
            "The memory of a GPU is full"
        )),
        ("loss is nan", "NaN or Inf among the numbers"),
        ("found at least two devices, cuda:0 and cpu", "Tensors on two devices"),
    ],
)  # fmt: skip
def test_parts_of_a_message_are_enough(text: str, title: str) -> None:
    assert explain(text).page.title == title


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("unusd", "unused"),
        ("prefixes", "prefix"),
        ("the optimizer skipped a step", "step-skipped"),
        ("bad gradient reduction", (
            "RuntimeError: Expected to have finished reduction in the prior iteration"
        )),
    ],
)  # fmt: skip
def test_an_unknown_text_names_the_nearest_three(text: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain(text)

    hint = caught.value.hint or ""
    assert hint.startswith("the nearest: ") and near in hint
    words = re.findall(r'"([^"]+)"|([\w-]+)(?=,|$)', hint.removeprefix("the nearest: "))
    assert 1 <= len(words) <= 3
    for quoted, bare in words:
        word = quoted or bare
        assert title(word) == next(page.title for page in pages() if page.word == word)


@pytest.mark.parametrize(
    "text", ["xyzzy", "HeaderWrong", "RuntimeError: the file could not be loaded"]
)
def test_a_page_without_a_word_of_substance_is_not_near(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain(text)

    hint = caught.value.hint or ""
    assert "listed by ckpt explain" in hint and "with a file behind it" in hint


@pytest.mark.parametrize(
    "text", ["", " \n", "the", "of the", "1 2 3", "[" * 50_000, "reduction " * 20_000]
)
def test_what_says_nothing_leads_nowhere(text: str) -> None:
    with pytest.raises(UsageError):
        explain(text)

"""The account of a checkpoint: each question that commands ask of it, over notices of
all codes.
"""

from __future__ import annotations

import pytest

from ckpt.model.account import UNREAD, Absence, Account, Notice
from ckpt.model.findings import CATALOGUE, LOST

LOSS = Notice("incomplete", "b.bin is gone", ("b", "c"))
NAMELESS = Notice("incomplete", "a file of weights is gone")
TWICE = Notice("overlap", "b lies there twice", ("b",))
DAMAGE = Notice("damaged-file", "rng.pth was not read")
HARMLESS = Notice("unread-file", "old.bin is beside it", ("z",))
VALUE = Absence("step", "it was in a lost file")


def test_an_account_of_nothing_lacks_nothing() -> None:
    account = Account()

    assert not account.is_partial and not account.is_damaged
    assert (
        account.lost_names == () and account.unread == () and account.unlisted(()) == []
    )
    assert account.first_lack is None


def test_lost_names_are_those_of_losses_each_once_in_order() -> None:
    account = Account((HARMLESS, LOSS, DAMAGE, TWICE))

    assert account.lost_names == ("b", "c")


@pytest.mark.parametrize("code", CATALOGUE)
def test_only_losses_and_values_make_it_partial(code: str) -> None:
    account = Account((Notice(code, "a sentence", ("w",)),))

    assert account.is_partial is (code in LOST)
    assert account.is_damaged is (code == "damaged-file")
    assert Account(left_out=(VALUE,)).is_partial
    assert account.has_noticed(code) and not account.has_noticed("another")


def test_unread_says_each_reason_once() -> None:
    known = Absence("rng", DAMAGE.message)

    assert Account((DAMAGE,)).unread == ((UNREAD, DAMAGE.message),)
    assert Account((DAMAGE, LOSS), (known, VALUE)).unread == (known, VALUE)


def test_unlisted_are_lost_tensors_that_nothing_shows() -> None:
    account = Account((LOSS, NAMELESS, HARMLESS))

    assert account.unlisted({"b"}) == [("c", LOSS.message), (UNREAD, NAMELESS.message)]


def test_the_first_lack_is_a_notice_before_a_value() -> None:
    assert Account((HARMLESS, DAMAGE, LOSS), (VALUE,)).first_lack == DAMAGE.message
    assert Account((HARMLESS,), (VALUE,)).first_lack == "step: it was in a lost file"


def test_messages_are_in_the_order_of_the_reader() -> None:
    account = Account((DAMAGE, LOSS, HARMLESS))

    assert account.messages(("incomplete", "damaged-file")) == [
        DAMAGE.message,
        LOSS.message,
    ]
    assert account.noticed("unread-file") == [HARMLESS]


def test_notices_are_added_at_the_end_or_before() -> None:
    account = Account((LOSS,), (VALUE,))

    assert account.with_notices(DAMAGE) == ((LOSS, DAMAGE), (VALUE,))
    assert account.after([DAMAGE]) == ((DAMAGE, LOSS), (VALUE,))
    assert account.without_values([VALUE]) == ((LOSS,), (VALUE, VALUE))


def test_without_losses_nothing_is_missing() -> None:
    account = Account((LOSS, TWICE, DAMAGE), (VALUE,)).without_losses()

    assert account == ((DAMAGE,), ()) and not account.is_partial

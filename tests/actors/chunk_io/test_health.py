"""Trouble with long-term storage is one state with a cause (rules A16, S7)."""

from __future__ import annotations

import pytest

from tierlog.actors.chunk_io.health import LastFailure, StorageHealthStatistics, TroubleKind, trouble_of
from tierlog.storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable


def heard(*, full: str = "", last: str = "") -> LastFailure:
    notes = LastFailure()
    notes.full, notes.last = full, last
    return notes


@pytest.mark.parametrize(
    ("notes", "over_quota", "is_open", "late", "expected"),
    [
        (heard(), "", False, 0, TroubleKind.NONE),
        (heard(last="gone"), "", False, 0, TroubleKind.NONE),
        (heard(last="gone"), "", True, 0, TroubleKind.UNREACHABLE),
        (heard(last="gone"), "", True, 3, TroubleKind.UNREACHABLE),
        (heard(), "", False, 3, TroubleKind.SLOW),
        (heard(full="no room"), "", True, 3, TroubleKind.FULL),
        (heard(), "too much", False, 0, TroubleKind.FULL),
    ],
)
def test_the_state_is_what_an_operator_would_mend_first(
    notes: LastFailure, over_quota: str, is_open: bool, late: int, expected: TroubleKind
) -> None:
    told = trouble_of(notes, over_quota=over_quota, failures=5, is_open=is_open, late=late)

    assert told.kind is expected
    assert bool(told.cause) is (expected is not TroubleKind.NONE)


def test_a_cause_says_what_was_seen() -> None:
    assert (
        "5 calls in a row failed, the last one with: gone"
        in trouble_of(heard(last="gone"), over_quota="", failures=5, is_open=True, late=0).cause
    )
    assert (
        trouble_of(heard(full="disk"), over_quota="safe size", failures=0, is_open=False, late=0).cause
        == "safe size"
    )
    assert StorageHealthStatistics().document() == {"trouble": "none", "cause": ""}


def test_a_full_backend_is_full_until_something_grows_again() -> None:
    notes = LastFailure()
    notes.heard(StorageFull("no room"), grows=True, is_failure=False)
    notes.heard(None, grows=False, is_failure=False)
    assert notes.full == "no room", "a delete that succeeds does not show that there is room"
    notes.heard(Unavailable("gone"), grows=True, is_failure=True)
    assert (notes.full, notes.last) == ("no room", "gone")
    notes.heard(None, grows=True, is_failure=False)
    assert notes.full == ""


def test_an_error_without_words_is_told_by_its_name() -> None:
    notes = LastFailure()
    notes.heard(OutcomeUnknown(), grows=True, is_failure=True)
    assert notes.last == "OutcomeUnknown"

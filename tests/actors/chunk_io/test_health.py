"""The health of long-term storage is one state with its cause (rules A16, S7)."""

from __future__ import annotations

import pytest

from tierlog.actors.chunk_io.health import LastFailure, StorageHealth, StorageHealthStatistics, health_of
from tierlog.storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable


def noted(*, full: str = "", last: str = "") -> LastFailure:
    notes = LastFailure()
    notes.full, notes.message = full, last
    return notes


@pytest.mark.parametrize(
    ("notes", "over_quota", "is_open", "late", "expected"),
    [
        (noted(), "", False, 0, StorageHealth.OK),
        (noted(last="gone"), "", False, 0, StorageHealth.OK),
        (noted(last="gone"), "", True, 0, StorageHealth.UNREACHABLE),
        (noted(last="gone"), "", True, 3, StorageHealth.UNREACHABLE),
        (noted(), "", False, 3, StorageHealth.SLOW),
        (noted(full="no room"), "", True, 3, StorageHealth.FULL),
        (noted(), "too much", False, 0, StorageHealth.FULL),
    ],
)
def test_the_state_is_the_most_urgent_cause(
    notes: LastFailure, over_quota: str, is_open: bool, late: int, expected: StorageHealth
) -> None:
    health = health_of(notes, over_quota=over_quota, failures=5, is_open=is_open, late=late)

    assert health.state is expected
    assert bool(health.cause) is (expected is not StorageHealth.OK)


def test_the_cause_of_bad_health_is_described() -> None:
    assert (
        "5 calls in a row failed, the last one with: gone"
        in health_of(noted(last="gone"), over_quota="", failures=5, is_open=True, late=0).cause
    )
    assert (
        health_of(noted(full="disk"), over_quota="safe size", failures=0, is_open=False, late=0).cause
        == "safe size"
    )
    assert StorageHealthStatistics().document() == {"state": "ok", "cause": ""}


def test_a_full_backend_is_full_until_something_grows_again() -> None:
    notes = LastFailure()
    notes.note(StorageFull("no room"), grows=True, is_failure=False)
    notes.note(None, grows=False, is_failure=False)
    assert notes.full == "no room", "a delete that succeeds does not show that there is room"
    notes.note(Unavailable("gone"), grows=True, is_failure=True)
    assert (notes.full, notes.message) == ("no room", "gone")
    notes.note(None, grows=True, is_failure=False)
    assert notes.full == ""


def test_an_error_without_a_message_is_named_by_its_type() -> None:
    notes = LastFailure()
    notes.note(OutcomeUnknown(), grows=True, is_failure=True)
    assert notes.message == "OutcomeUnknown"

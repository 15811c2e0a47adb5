"""Updates of tables over HTTP: which of them are sent again (rule H19)."""

from __future__ import annotations

from random import Random

import pytest

from tierlog.actors.gateway.client.retries import Failure, Kind, Repeat, Retry, decide
from tierlog.actors.gateway.client.tables import update_rows
from tierlog.storage_backends.base.errors import OutcomeUnknown, TableConflict, TierlogError
from tierlog.storage_backends.base.table import WriterEvent
from tierlog.storage_backends.base.tables import ABSENT

CONFLICT = TableConflict("", segment="t", key_hex="6b", expected=1, present=2)
LOST = OutcomeUnknown("the connection broke")


def after(repeat: Repeat, error: TierlogError, kind: Kind, *, doubt: bool) -> Retry | TierlogError:
    return decide(repeat, Failure(kind, error), doubt=doubt, attempt=0, left=10.0, random=Random(1))


@pytest.mark.parametrize(
    ("rows", "expected", "event", "repeat"),
    [
        ([(b"k", b"v")], {}, WriterEvent(), Repeat.NEVER),
        ([(b"k", b"v")], {b"other": 1}, WriterEvent(), Repeat.NEVER),
        ([(b"k", None)], {b"k": 0}, WriterEvent(), Repeat.NEVER),
        ([(b"k", b"v")], {b"k": 0}, WriterEvent(), Repeat.NEVER),  # it may be absent again
        ([(b"k", b"v"), (b"l", None)], {b"k": 0, b"l": 7}, WriterEvent(), Repeat.AT_VERSION),
        ([(b"k", None)], {b"k": 7}, WriterEvent(), Repeat.AT_VERSION),
        ([(b"k", b"v")], {}, WriterEvent(b"w", 3), Repeat.NUMBERED),
        ([], {b"k": 7}, WriterEvent(), Repeat.READS),
    ],
)
def test_h19_an_update_is_repeated_if_it_cannot_be_applied_twice(
    rows: list[tuple[bytes, bytes | None]], expected: dict[bytes, int], event: WriterEvent, repeat: Repeat
) -> None:
    call = update_rows("t", rows, expected, event)

    assert call.repeat is repeat
    answer = after(repeat, LOST, Kind.UNKNOWN, doubt=False)
    assert isinstance(answer, Retry) == (repeat is not Repeat.NEVER)


def test_h19_a_conflict_about_absence_proves_nothing_while_an_attempt_may_be_under_way() -> None:
    """Once the row is removed, the attempt can still be applied (M15)."""
    conflict = TableConflict("", segment="t", key_hex="6b", expected=ABSENT, present=2)
    assert after(Repeat.NUMBERED, conflict, Kind.REFUSED, doubt=False) is conflict
    assert isinstance(after(Repeat.NUMBERED, conflict, Kind.REFUSED, doubt=True), OutcomeUnknown)
    assert after(Repeat.READS, conflict, Kind.REFUSED, doubt=True) is conflict


def test_h19_a_conflict_after_a_lost_answer_is_proof_for_a_writer_only() -> None:
    assert after(Repeat.NUMBERED, CONFLICT, Kind.REFUSED, doubt=True) is CONFLICT
    assert after(Repeat.AT_VERSION, CONFLICT, Kind.REFUSED, doubt=False) is CONFLICT
    assert isinstance(after(Repeat.AT_VERSION, CONFLICT, Kind.REFUSED, doubt=True), OutcomeUnknown)

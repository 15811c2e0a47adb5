"""Rules H2 and H3: an error arrives as it left, and a foreign answer says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tierlog.actors.gateway.wire.errors import (
    PROBLEM_TYPE,
    TABLE,
    MethodNotAllowed,
    OwnedElsewhere,
    RangeNotSatisfiable,
    RetryHint,
    Row,
    from_problem,
    malformed_answer,
    retry_after,
    row_of,
    to_problem,
)
from tierlog.storage_backends.base.errors import (
    BadOffset,
    DataCorruption,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    OutOfOrder,
    SegmentNotFound,
    StorageFull,
    Throttled,
    TierlogError,
    TransactionEnded,
    TransactionNotFound,
    Unavailable,
)

VALUES = {
    "segment": "app/events#7",
    "chunk": "containers/0/1",
    "file": "wal/0.wal",
    "owner": "http://127.0.0.1:9",
    "holder": "process 7 of node-a",
    "allowed": "GET",
    "state": "aborted",
    "offset": 12,
    "length": 99,
    "sealed": True,
    "start_offset": 5,
    "expected": 1,
    "given": 2,
    "present": 3,
    "key_hex": "6b00",
    "complete_since": 8,
    "last_event_number": 7,
    "history": 1 << 20,
    "recovered_length": 11,
}


def every_class(kind: type[TierlogError] = TierlogError) -> Iterator[type[TierlogError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_class(child)


def sample(row: Row, text: str = "so \u00e4nd \ud800 so") -> TierlogError:
    return row.kind(text, **{name: VALUES[name] for name in row.fields})


def returned(error: TierlogError) -> TierlogError:
    problem = to_problem(error)
    headers = {name.lower(): value for name, value in problem.headers.items()}
    return from_problem(problem.status, headers, problem.body(), maybe_applied=True)


def test_h2_the_table_has_every_error_of_the_store() -> None:
    rows = {row.kind for row in TABLE}
    homes = ("tierlog.storage_backends.", "tierlog.actors.gateway.")
    served = {
        kind
        for kind in every_class()
        if (kind.__module__ == "tierlog" or kind.__module__.startswith(homes))
        # Those of the log's own service travel as their base.
        and kind.__module__ != "tierlog.storage_backends.base.ledger_service"
    }

    assert served == rows


def test_h2_classes_that_share_a_code_differ_in_their_fields() -> None:
    codes = [row.kind.code for row in TABLE]
    twins = [row for row in TABLE if codes.count(row.kind.code) > 1]

    assert [(row.kind.code, row.fields) for row in twins] == [
        ("error", ("segment",)),
        (Unavailable.code, ("holder",)),
        (Unavailable.code, ()),
        (NotOwner.code, ("owner",)),
        (NotOwner.code, ()),
        ("error", ()),
    ]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind.__name__)
def test_h2_an_error_arrives_with_its_class_message_and_fields(row: Row) -> None:
    error = sample(row)

    back = returned(error)

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind.__name__)
def test_h2_statuses_and_hints_agree_with_what_the_class_promises(row: Row) -> None:
    problem = to_problem(sample(row))

    assert problem.headers["Content-Type"] == PROBLEM_TYPE
    assert problem.document["type"] == f"urn:tierlog:{row.kind.code}"
    assert problem.document["title"]
    assert "`" not in problem.document["title"]
    assert ("Retry-After" in problem.headers) == (row.retry is RetryHint.LATER)
    if row.kind.retryable:
        assert row.retry is RetryHint.LATER


def test_h2_the_statuses_of_the_protocol() -> None:
    assert to_problem(BadOffset("x", expected=1, given=2)).status == 412
    assert to_problem(Throttled("x")).headers["Retry-After"] == "1"
    assert to_problem(Throttled("x")).document["retry_after"] == 0.1
    assert to_problem(StorageFull("x")).status == 507
    assert to_problem(SegmentNotFound("x")).status == 404
    assert to_problem(TransactionNotFound("x")).status == 404
    assert (
        to_problem(TransactionEnded("x", state="aborted")).status,
        to_problem(TransactionEnded("x")).document["code"],
    ) == (409, "transaction-ended")
    assert to_problem(OutcomeUnknown("x")).document["code"] == "outcome-unknown"
    assert to_problem(RangeNotSatisfiable("x", length=7)).headers["Content-Range"] == "bytes */7"
    assert to_problem(MethodNotAllowed("x", allowed="GET, POST")).headers["Allow"] == "GET, POST"
    assert to_problem(OwnedElsewhere("x", owner="http://b")).headers["Tierlog-Owner"] == "http://b"


def test_an_unknown_last_event_number_stays_unknown() -> None:
    back = returned(OutOfOrder("x", segment="a"))

    assert isinstance(back, OutOfOrder)
    assert back.last_event_number is None


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("wal/0000/7", "file wal/0000/7"),
        ("s3://b/store/wal/0000/register", "at s3://b/store/wal/0000/register"),
        ("zookeeper://z:2181/logs/0000 ledger 4 entry 2", "at zookeeper://z:2181/logs/0000 ledger 4 entry 2"),
    ],
)
def test_corruption_keeps_its_reason_and_location_separate(place: str, shown: str) -> None:
    back = returned(DataCorruption("a bad block", file=place, offset=3))

    assert isinstance(back, DataCorruption)
    assert (back.reason, str(back)) == ("a bad block", f"a bad block [{shown}, offset 3]")


def test_h2_the_text_of_a_foreign_exception_is_not_sent() -> None:
    problem = to_problem(KeyError("a secret"))

    assert problem.status == 500
    assert problem.document["code"] == "internal"
    assert "secret" not in problem.body().decode()


def test_an_error_class_without_a_row_travels_as_its_base_class() -> None:
    class Own(InvalidArgument):
        pass

    row = row_of(Own("x"))

    assert row is not None
    assert row.kind is InvalidArgument


@pytest.mark.parametrize("maybe_applied", [True, False])
@pytest.mark.parametrize(
    "status, content_type, body",
    [
        (502, "text/html", b"<html>bad gateway</html>"),
        (503, PROBLEM_TYPE, b"\xff\xfe"),
        (503, PROBLEM_TYPE, b"[]"),
        (500, PROBLEM_TYPE, b'{"code":"unavailable"}'),
        (500, PROBLEM_TYPE, b'{"code":"of-the-future","detail":"x"}'),
        (412, PROBLEM_TYPE, b'{"code":"bad-offset","detail":"x","segment":"a","expected":"1","given":2}'),
        (412, PROBLEM_TYPE, b'{"code":"bad-offset","detail":"x","segment":"a","expected":true,"given":2}'),
        (500, PROBLEM_TYPE, b"[" * 100_000),
        (500, "", b""),
        (200, "text/plain", b"hello"),
    ],
)
def test_h3_a_foreign_answer_proves_nothing(
    status: int, content_type: str, body: bytes, maybe_applied: bool
) -> None:
    error = from_problem(status, {"content-type": content_type}, body, maybe_applied=maybe_applied)

    assert type(error) is (OutcomeUnknown if maybe_applied else Unavailable)


def test_h3_a_problem_of_another_media_type_is_foreign() -> None:
    problem = to_problem(SegmentNotFound("x"))

    assert (
        type(from_problem(404, {"content-type": "application/json"}, problem.body(), maybe_applied=False))
        is Unavailable
    )
    assert (
        type(
            from_problem(
                404, {"content-type": PROBLEM_TYPE + "; charset=utf-8"}, problem.body(), maybe_applied=False
            )
        )
        is SegmentNotFound
    )


def test_h3_a_malformed_success_is_unknown_or_unavailable() -> None:
    assert type(malformed_answer("x", maybe_applied=True)) is OutcomeUnknown
    assert type(malformed_answer("x", maybe_applied=False)) is Unavailable


def test_the_pause_is_the_finer_of_the_two() -> None:
    problem = to_problem(Throttled("x"))

    assert retry_after({"retry-after": "1"}, problem.body()) == 0.1
    assert retry_after({"retry-after": "2"}) == 2.0
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) is None
    assert retry_after({}, b'{"retry_after": -1}') is None
    assert retry_after({}, b"nonsense") is None

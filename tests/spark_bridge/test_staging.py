"""One attempt: whole frames in each append, a part of its own, harmless repeats, and a stop where the
transaction has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.spark_bridge import events
from tierlog.spark_bridge.events import Frames
from tierlog.spark_bridge.identity import Identity
from tierlog.spark_bridge.schema import row_frames
from tierlog.spark_bridge.staging import (
    REPEATS_MAX,
    DirectAppender,
    InFlight,
    TaskResult,
    append_directly,
    pack,
    stage,
)
from tierlog.storage_backends.base.arguments import WriterId
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import (
    BadOffset,
    InvalidArgument,
    OutcomeUnknown,
    SegmentNotFound,
    TransactionEnded,
)
from tierlog.storage_backends.base.segments import SegmentInfo
from tierlog.storage_backends.base.transactions import (
    LEASE_DEFAULT,
    TransactionInfo,
    TransactionState,
    TransactionToken,
    staged_name,
)

WHO = Identity("t", "id", TransactionToken("app", 3), 60.0)


class Store:
    """As much of a store as an attempt sees; ``lost`` and ``dropped``: answers and requests that do not
    arrive, by number of the append."""

    def __init__(
        self,
        state: TransactionState = TransactionState.OPEN,
        *,
        lost: Sequence[int] = (),
        dropped: Sequence[int] = (),
    ) -> None:
        self.state = state
        self.ends_by_error = False
        self.has_target = True
        self.data: dict[str, bytes] = {}
        self.appends: list[bytes] = []
        self.numbers: list[tuple[WriterId | None, int | None]] = []
        self._lost, self._dropped, self._count = lost, dropped, 0

    def create_segment(self, name: str, *, exist_ok: bool = False) -> None:
        assert (name, exist_ok) == ("t", True)
        self.has_target = True

    def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo:
        assert (target, transaction_id, token, lease) == attrs.astuple(WHO, recurse=False)
        if not self.has_target:
            raise SegmentNotFound("there is no segment", segment=target)
        if self.ends_by_error:
            raise TransactionEnded("it is over", segment=target, state=self.state.value)
        return TransactionInfo(transaction_id, target, self.state, token, lease, lease, "the reason", None, 0)

    def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        name = staged_name(target, transaction_id, part)
        self.data.setdefault(name, b"")
        return name

    def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        expected_offset: int | None = None,
    ) -> int | None:
        self._count += 1
        if self._count in self._dropped:
            raise OutcomeUnknown("the connection broke")
        if name not in self.data:
            raise SegmentNotFound("there is no segment", segment=name)
        length = len(self.data[name])
        if expected_offset not in (None, length):
            raise BadOffset("it is longer", segment=name, expected=length, given=expected_offset or 0)
        self.data[name] += bytes(data)
        self.appends.append(bytes(data))
        self.numbers.append((writer_id, event_number))
        if self._count in self._lost:
            raise OutcomeUnknown("the answer was lost")
        return length

    def segment_info(self, name: str) -> SegmentInfo:
        if name not in self.data:
            raise SegmentNotFound("there is no segment", segment=name)
        return SegmentInfo(name, 1, len(self.data[name]), 0, False, {}, 0, 0)


def batch(contents: Sequence[bytes]) -> Frames:
    data = events.encode(contents)
    return Frames(memoryview(data), events.boundaries(data)[1:])


def run(store: Store, contents: Sequence[bytes] = (b"one", b"two", b"three"), size: int = 10) -> TaskResult:
    return stage(store, WHO, "p00000-x", [batch(contents)], size)


@given(st.lists(st.lists(st.binary(max_size=30), max_size=8), max_size=6), st.integers(4, 100))
def test_appends_are_whole_frames_and_as_many_as_fit(batches: list[list[bytes]], size: int) -> None:
    packed = list(pack(map(batch, batches), size))

    assert [event for data in packed for event in events.decode(data)] == [
        event for each in batches for event in each
    ]
    for data, following in pairwise(packed):
        assert len(data) <= size or len(events.decode(data)) == 1
        assert len(data) + events.boundaries(following)[1] > size


def test_what_was_staged_is_described_to_the_driver() -> None:
    store = Store()

    staged = run(store)

    data = events.encode([b"one", b"two", b"three"])
    assert staged == TaskResult(WHO, "t#txn.id.p00000-x", len(data))
    assert store.data == {"t#txn.id.p00000-x": data}
    assert [len(append) for append in store.appends] == [7, 7, 9]


def test_an_attempt_without_rows_stages_nothing() -> None:
    store = Store()

    assert run(store, ()).parts == ()
    assert store.data == {}


@pytest.mark.parametrize("by_error", [False, True])
def test_a_committed_write_is_drained_and_nothing_is_sent(by_error: bool) -> None:
    store, rows = Store(TransactionState.COMMITTED), iter([batch([b"one"]), batch([b"two"])])
    store.ends_by_error = by_error

    assert stage(store, WHO, "p", rows, 10) == TaskResult(WHO, "", 0)
    assert next(rows, None) is None
    assert store.data == {}


@pytest.mark.parametrize("by_error", [False, True])
def test_a_task_of_an_aborted_write_fails(by_error: bool) -> None:
    store = Store(TransactionState.ABORTED)
    store.ends_by_error = by_error

    with pytest.raises(TransactionEnded):
        run(store)


@pytest.mark.parametrize("contents", [[], [b"one"]])
def test_a_task_creates_a_missing_target_only_where_that_is_wanted(contents: list[bytes]) -> None:
    """The driver has looked before the first micro-batch, and not before each."""
    store = Store()
    store.has_target = False

    with pytest.raises(SegmentNotFound):
        run(store, contents)
    assert not store.has_target

    stage(store, WHO, "p00000-x", [batch(contents)], 10, create=True)
    assert store.has_target


def test_rows_are_taken_while_the_transaction_begins() -> None:
    class Slow(Store):
        def begin_transaction(self, *args: Any, **kwargs: Any) -> TransactionInfo:
            assert taken.wait(30)
            return super().begin_transaction(*args, **kwargs)

    taken, store = threading.Event(), Slow()

    def rows() -> Iterator[Frames]:
        taken.set()
        yield batch([b"one"])

    assert stage(store, WHO, "p00000-x", rows(), 10).length == 7


@pytest.mark.parametrize("failure", ["lost", "dropped"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_append_with_unknown_outcome_is_applied_once(failure: str, number: int) -> None:
    store = Store(lost=[number]) if failure == "lost" else Store(dropped=[number])

    staged = run(store)

    assert store.data == {"t#txn.id.p00000-x": events.encode([b"one", b"two", b"three"])}
    assert staged.length == 23


def test_an_append_that_never_gets_through_fails_the_attempt() -> None:
    with pytest.raises(OutcomeUnknown):
        run(Store(dropped=range(1, REPEATS_MAX + 2)))


def test_direct_appends_are_numbered_so_that_http_repeats_add_nothing() -> None:
    store = Store()
    store.data["t"] = b""

    append_directly(DirectAppender(store, "t", "w"), [batch([b"one", b"two"])], 7)

    assert store.numbers == [("w", 0), ("w", 1)]


def test_rows_are_framed_like_columns() -> None:
    def rows() -> Iterator[tuple[object, ...]]:
        yield 1, "ä"
        yield 2, bytearray(b"b")

    [frames] = row_frames(rows(), 1)

    assert bytes(frames.data) == events.encode(["ä".encode(), b"b"])
    assert [0, *frames.ends] == events.boundaries(frames.data)


@pytest.mark.parametrize(("value", "words"), [(None, "null: filter such rows"), (1, "not int")])
def test_rows_without_an_event_are_refused(value: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        list(row_frames([(value,)], 0))


# --- several appends under way ------------------------------------------------------------------


class Overtaking(Store):
    """The first append comes only after the second was refused; ``refused``: the offsets of those that
    were."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[int] = []
        self._overtaken = threading.Event()
        self._third = threading.Event()

    def append(self, name: str, data: Buffer, **conditions: Any) -> int | None:
        offset = conditions["expected_offset"]
        if offset == 0:
            assert self._overtaken.wait(30)
        elif offset > 7:
            self._third.set()
        elif self.refused:
            self._third.wait(0.2)  # time enough for the third to come before the second try
        try:
            return super().append(name, data, **conditions)
        except BadOffset:
            self.refused.append(offset)
            self._overtaken.set()
            raise


def test_an_append_that_overtakes_the_one_before_is_resent() -> None:
    """And no third one overtakes it meanwhile."""
    store = Overtaking()

    staged = run(store, [b"one", b"two", b"three", b"four", b"five"])

    assert store.data == {"t#txn.id.p00000-x": events.encode([b"one", b"two", b"three", b"four", b"five"])}
    assert staged.length == len(store.data["t#txn.id.p00000-x"])
    assert store.refused == [7]


class SlowStage(Store):
    """The segment is staged when the first append was refused, because it did not exist."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.refused: list[int] = []
        self._error = error
        self._overtaken = threading.Event()

    def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        assert self._overtaken.wait(30)
        if self._error is not None:
            raise self._error
        return super().stage_segment(target, transaction_id, part)

    def append(self, name: str, data: Buffer, **conditions: Any) -> int | None:
        try:
            return super().append(name, data, **conditions)
        except SegmentNotFound:
            self.refused.append(conditions["expected_offset"])
            self._overtaken.set()
            raise


def test_the_first_append_does_not_wait_until_its_segment_is_staged() -> None:
    """One that comes too early is resent, and no second one comes before it."""
    store = SlowStage()

    staged = run(store)

    assert store.data == {"t#txn.id.p00000-x": events.encode([b"one", b"two", b"three"])}
    assert staged.length == 23
    assert store.refused == [0]


@pytest.mark.parametrize("contents", [[b"one"], [b"one", b"two", b"three"]])
def test_an_attempt_whose_part_is_not_staged_fails_with_the_reason(contents: list[bytes]) -> None:
    """And not with what its appends met for that."""
    store = SlowStage(TransactionEnded("it is over", segment="t", state="aborted"))

    with pytest.raises(TransactionEnded):
        run(store, contents)

    assert (store.data, store.refused) == ({}, [0])


class Ending(Store):
    """The first append is refused for good when the second was."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[int] = []
        self._second = threading.Event()

    def append(self, name: str, data: Buffer, **conditions: Any) -> int | None:
        self.tried.append(conditions["expected_offset"])
        if conditions["expected_offset"] > 0:
            self._second.set()
            raise BadOffset("it is shorter", segment=name, expected=0, given=7)
        assert self._second.wait(30)
        raise TransactionEnded("it is over", segment=name, state="aborted")


def test_behind_an_append_that_fails_for_good_none_is_retried() -> None:
    """The error is that of the first, the refusals behind it are its consequence; and no thread is left."""
    store = Ending()
    threads = set(threading.enumerate())

    with pytest.raises(TransactionEnded):
        run(store)

    assert store.tried == [0, 7]
    assert set(threading.enumerate()) <= threads  # idle ones of earlier tests may have ended


def test_what_is_under_way_ends_before_a_failed_attempt_does() -> None:
    """Rows that cannot be read any further: what was begun ends, nothing more begins, nothing is staged for
    the driver."""
    store, going = Store(), threading.Event()
    appended = store.append

    def slow(name: str, data: Buffer, **conditions: Any) -> int | None:
        assert going.wait(30)
        return appended(name, data, **conditions)

    store.append = slow  # type: ignore[method-assign]

    def rows() -> Iterator[Frames]:
        yield batch([b"one", b"two"])
        threading.Timer(0.05, going.set).start()
        raise OSError("the executor lost a shuffle block")

    with pytest.raises(OSError, match="shuffle block"):
        stage(store, WHO, "p00000-x", rows(), 7)

    assert store.data == {"t#txn.id.p00000-x": events.encode([b"one", b"two"])[: len(store.appends) * 7]}
    assert len(store.appends) >= 1


def test_one_more_than_the_width_is_not_taken() -> None:
    """So that a slow service bounds what a task holds in memory."""
    going = threading.Event()

    def append(before: Callable[[], None]) -> None:
        assert going.wait(30)

    with InFlight(2) as in_flight:
        in_flight.submit(append)
        in_flight.submit(append)
        threading.Timer(0.05, going.set).start()
        in_flight.submit(append)
        assert going.is_set()
        in_flight.finish()

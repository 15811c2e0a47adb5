"""The record ``control`` as a supervisor puts it: after others, of other stores, and late (D1, V12)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
import attrs
import pytest

from support.joining import WORLD, FixedTerm, coordination_in, joinable
from support.memory_objects import Bucket, MemoryObjects
from support.patience import scaled
from tierlog.actors.supervisor import join_listener
from tierlog.actors.supervisor.control.record import (
    FORMAT_VERSION,
    ControlRecord,
    decode_control,
    encode_control,
)
from tierlog.actors.supervisor.join_listener import JoinListener, find_predecessor
from tierlog.actors.supervisor.term import Term
from tierlog.journal.coordination.contract import CONTROL, RECORD_BYTES_MAX
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.storage_backends.base.checksum import Buffer, crc32c
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    StoreMismatch,
    Unavailable,
)

pytestmark = pytest.mark.anyio
STORE = b"s" * 16


async def joined_before(bucket: Bucket) -> tuple[str, ...]:
    return (await find_predecessor(coordination_in(bucket), STORE.hex())).hosts


async def test_v12_the_record_of_the_store_that_was_there_before_is_replaced() -> None:
    bucket = Bucket()
    other = ControlRecord(9, bytes(32), "10.0.0.9", 1, "node-b", ("x",), b"other store's id")
    bucket.put(CONTROL, encode_control(other), "")
    assert await joined_before(bucket) == (), "its hosts are another store's"
    async with joinable(bucket, term=2, store=STORE.hex()) as found:
        with anyio.fail_after(scaled(10)):
            while (await found.record()).term != 2:
                await anyio.sleep(0.01)
        assert (await found.record()).store_id == STORE


class ByContent(Bucket):
    """Objects have their digest as version, as ETags in S3: equal bytes have the same one."""

    def put(self, key: str, data: bytes, version: str) -> str | None:
        if super().put(key, data, version) is None:
            return None
        self.objects[key] = (data, hashlib.sha256(data).hexdigest())
        return self.objects[key][1]


class Delaying(MemoryObjects):
    """Delays one put, whose answer is lost."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.is_due = False
        self.late: tuple[bytes, str] | None = None

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        if self.is_due:
            self.is_due, self.late = False, (b"".join(data), version)
            raise OutcomeUnknown("no answer")
        return await super().put(key, data, version=version)


async def test_d1_a_late_put_of_the_record_is_refused_though_its_hosts_are_those_of_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_listener, "_RETRY_SECONDS", 0.01)
    bucket = ByContent()
    objects = Delaying(bucket)
    coordination = ObjectCoordination(objects, "", WORLD)
    record = ControlRecord(1, bytes(32), "10.0.0.9", 1, "node-b", (), STORE)
    [listener] = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners
    joins = JoinListener(coordination, listener, record, WORLD.id_bytes, cast(Term, FixedTerm(1)))

    async def published(*hosts: str) -> None:
        joins.note(hosts)
        while CONTROL not in bucket.objects or await joined_before(bucket) != hosts:
            await anyio.sleep(0.001)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(joins.publish)
        with anyio.fail_after(scaled(10)):
            await published()
            objects.is_due = True
            await published("a")
            await published()
        tasks.cancel_scope.cancel()
    assert objects.late is not None
    data, version = objects.late
    assert bucket.put(CONTROL, data, version) is None
    assert await joined_before(bucket) == ()


# --- a record that is lost -----------------------------------------------------------------------


class Confirming(FixedTerm):
    """Looks often. ``refusals``: what ``confirm`` and ``check`` raise, one after the other."""

    interval = 0.01

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.refusals: list[Exception] = []
        self.refused = 0

    async def confirm(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.refusals:
            self.refused += 1
            raise self.refusals.pop(0)

    check = confirm


RECORD = ControlRecord(3, b"s" * 32, "10.0.0.9", 1, "node-b", ("a",), STORE)


@asynccontextmanager
async def publishing(bucket: Bucket, term: Confirming) -> AsyncIterator[None]:
    [listener] = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners
    joins = JoinListener(coordination_in(bucket), listener, RECORD, WORLD.id_bytes, cast(Term, term))
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(joins.publish)
        with anyio.fail_after(scaled(10)):
            await joins.published.wait()
            yield
        tasks.cancel_scope.cancel()


def found_in(bucket: Bucket) -> ControlRecord | None:
    """But for its put id; None if it is missing or damaged."""
    if CONTROL not in bucket.objects:
        return None
    try:
        return attrs.evolve(decode_control(bucket.objects[CONTROL][0], "x"), put_id=RECORD.put_id)
    except DataCorruption:
        return None


def lose(bucket: Bucket, data: bytes | None) -> None:
    if data is None:
        del bucket.objects[CONTROL]
    else:
        bucket.put(CONTROL, data, bucket.objects[CONTROL][1])


LOST = {
    "is missing": None,
    "is damaged": encode_control(RECORD)[:-1] + b"?",
    "the control record is damaged": bytes(RECORD_BYTES_MAX + 1),
    "is of the term 2": encode_control(attrs.evolve(RECORD, term=2)),
    "is of another store": encode_control(attrs.evolve(RECORD, term=9, store_id=b"t" * 16)),
}


def of_a_newer_format() -> bytes:
    body = bytearray(encode_control(RECORD)[:-4])
    body[4:6] = (FORMAT_VERSION + 1).to_bytes(2)
    return bytes(body) + crc32c(bytes(body)).to_bytes(4)


@pytest.mark.parametrize("what", LOST)
async def test_v12_a_lost_record_is_put_again_though_no_host_joins(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket()
    async with publishing(bucket, Confirming(3)):
        assert found_in(bucket) == RECORD
        assert "control_record_lost" not in caplog.text
        lose(bucket, LOST[what])
        while found_in(bucket) != RECORD:
            await anyio.sleep(0.001)
    assert "control_record_lost" in caplog.text
    assert what in caplog.text


async def test_a_record_that_is_there_is_not_put_again() -> None:
    bucket = Bucket()
    async with publishing(bucket, Confirming(3)):
        version = bucket.objects[CONTROL][1]
        await anyio.sleep(0.2)
    assert bucket.objects[CONTROL][1] == version


@pytest.mark.parametrize("what", ["is damaged", "the control record is damaged"])
async def test_v12_a_damaged_record_keeps_no_supervisor_from_starting(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket()
    bucket.put(CONTROL, LOST[what] or b"", "")
    assert await joined_before(bucket) == ()
    assert "control_record_lost" in caplog.text
    async with publishing(bucket, Confirming(3)):
        assert found_in(bucket) == RECORD


async def test_v12_while_the_lease_may_have_ended_a_lost_record_is_not_put(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(join_listener, "_RETRY_SECONDS", 0.01)
    bucket, term = Bucket(), Confirming(3)
    async with publishing(bucket, term):
        term.refusals = [Unavailable("the lease may have ended")] * 3
        lose(bucket, None)
        while found_in(bucket) != RECORD:
            assert term.refusals or term.refused == 3
            await anyio.sleep(0.001)
    assert term.refused == 3


@pytest.mark.parametrize(
    ("data", "refusal", "error"),
    [
        (None, StoreMismatch("the identity was removed"), StoreMismatch),
        (encode_control(attrs.evolve(RECORD, term=4)), None, NotOwner),
    ],
)
async def test_v12_nothing_is_put_where_the_store_or_the_term_is_gone(
    data: bytes | None, refusal: Exception | None, error: type[Exception]
) -> None:
    bucket, term = Bucket(), Confirming(3)
    with pytest.RaisesGroup(error):
        async with publishing(bucket, term):
            term.refusals = [refusal] if refusal else []
            lose(bucket, data)
            await anyio.sleep_forever()
    assert (bucket.objects[CONTROL][0] if CONTROL in bucket.objects else None) == data


async def test_v12_a_record_of_a_newer_format_is_replaced_by_who_has_the_term(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not while nobody can tell whose the term is."""
    monkeypatch.setattr(join_listener, "_RETRY_SECONDS", 0.01)
    bucket, term = Bucket(), Confirming(3)
    async with publishing(bucket, term):
        term.refusals = [Unavailable("nobody answers")] * 3
        lose(bucket, of_a_newer_format())
        while bucket.objects[CONTROL][0] == of_a_newer_format():
            await anyio.sleep(0.001)
        assert found_in(bucket) == RECORD
    assert term.refused == 3
    assert "no supervisor that has taken over has put it: memory:control has format 3" in caplog.text


async def test_v12_a_record_of_a_newer_supervisor_is_left_alone() -> None:
    bucket, term = Bucket(), Confirming(3)
    with pytest.RaisesGroup(NotOwner):
        async with publishing(bucket, term):
            term.refusals = [NotOwner("another supervisor took over")]
            lose(bucket, of_a_newer_format())
            await anyio.sleep_forever()
    assert bucket.objects[CONTROL][0] == of_a_newer_format()


async def test_v12_a_record_of_a_newer_format_keeps_supervisors_from_starting() -> None:
    """It may be of one that served before, whose term and hosts only a newer build can read."""
    bucket = Bucket()
    bucket.put(CONTROL, of_a_newer_format(), "")
    with pytest.raises(StoreMismatch, match="use a newer tierlog, or remove the record if no newer one"):
        await joined_before(bucket)

"""The record ``control`` as a supervisor puts it: after others, of other stores, and late (D1, V12)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import anyio
import pytest

from support.joining import WORLD, coordination_in, joinable
from support.memory_objects import Bucket, MemoryObjects
from support.patience import scaled
from tierlog.actors.supervisor import join_listener
from tierlog.actors.supervisor.control.record import ControlRecord, encode_control
from tierlog.actors.supervisor.join_listener import JoinListener, joined_before
from tierlog.journal.coordination.contract import CONTROL
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import OutcomeUnknown

pytestmark = pytest.mark.anyio
STORE = b"s" * 16


async def test_v12_the_record_of_the_store_that_was_there_before_is_replaced() -> None:
    bucket = Bucket()
    other = ControlRecord(9, bytes(32), "10.0.0.9", 1, "node-b", ("x",), b"other store's id")
    bucket.put(CONTROL, encode_control(other), "")
    assert await joined_before(coordination_in(bucket), STORE.hex()) == (), "its hosts are another store's"
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
    joins = JoinListener(coordination, listener, record, WORLD.id_bytes)

    async def published(*hosts: str) -> None:
        joins.note(hosts)
        while CONTROL not in bucket.objects or await joined_before(coordination, STORE.hex()) != hosts:
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
    assert await joined_before(coordination, STORE.hex()) == ()

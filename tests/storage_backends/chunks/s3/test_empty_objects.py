"""An object of which nothing is left is damaged, as one that is cut: its reader says so at once, or puts it
again. A service refuses to send a range of it (416), which is no reason to ask again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest

from support.s3 import numbered_world
from support.s3_server import BUCKET, Fault, S3Server
from tierlog import StoreConfig
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.store.bucket import refuse_others
from tierlog.actors.store.shared import identify_shared
from tierlog.actors.supervisor.join_listener import find_predecessor
from tierlog.actors.supervisor.term import Predecessor, claim_term
from tierlog.journal.coordination.contract import CONTROL, IDENTITY, SUPERVISOR, TERM, LeaseHeld, Record
from tierlog.journal.coordination.lease_record import lease_name
from tierlog.journal.coordination.objects import ObjectCoordination, ObjectCoordinationOptions
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.errors import DataCorruption, Unavailable
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_objects import S3Objects
from tierlog.storage_backends.chunks.s3_requests import S3Options

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("reused_clients")]

STORE = StoreIdentity(b"s" * 16, b"l" * 16, 1, 0)
LEASE = lease_name(SUPERVISOR)
WORLD = numbered_world()


@pytest.fixture
async def objects(server: S3Server, anyio_backend: str) -> AsyncIterator[S3Objects]:
    made = S3Objects(S3Location(BUCKET, "store/"), S3Options(endpoint=server.url))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def coordination_on(objects: S3Objects) -> ObjectCoordination:
    """Which repeats no request: one that gets no answer fails at once."""
    return ObjectCoordination(objects, "", WORLD, ObjectCoordinationOptions(patience=-1.0))


def log_on(objects: S3Objects) -> S3Log:
    return S3Log(objects, "wal/0000/", b"l" * 16, WORLD, S3LogOptions(pace=0.0, patience=-1.0))


def cut(server: S3Server, name: str) -> None:
    server.put(f"store/{name}", b"")


async def confirm() -> None:
    """The store is still there."""


async def test_the_service_answers_as_s3_does(server: S3Server, objects: S3Objects) -> None:
    cut(server, "r")

    found = await objects.get("r", 10)

    assert found is not None
    assert (found.data, found.length) == (b"", 0)
    assert [each.status for each in server.seen if each.operation == "GetObject"] == [416, 200]


async def test_one_that_is_replaced_meanwhile_is_asked_for_again(
    server: S3Server, objects: S3Objects
) -> None:
    server.put("store/r", b"new")
    server.fail(Fault("GetObject", refuse=(416, "InvalidRange")))

    with pytest.raises(Unavailable, match="was empty, and was replaced meanwhile"):
        await objects.get("r", 10)
    found = await objects.get("r", 10)
    assert found is not None
    assert found.data == b"new"


async def test_d4_the_holder_of_an_empty_lease_puts_it_again(server: S3Server, objects: S3Objects) -> None:
    lease = await coordination_on(objects).take_lease(SUPERVISOR, "first", 60.0)
    cut(server, LEASE)

    with pytest.raises(LeaseHeld, match="a process that the damaged record does not name"):
        await coordination_on(objects).take_lease(SUPERVISOR, "second", 60.0)
    await lease.renew(confirm)

    with pytest.raises(LeaseHeld, match="first"):
        await coordination_on(objects).take_lease(SUPERVISOR, "second", 60.0)


async def test_d3_an_empty_lease_that_nobody_renews_ends(server: S3Server, objects: S3Objects) -> None:
    cut(server, LEASE)
    observer = coordination_on(objects)

    async def is_taken() -> bool:
        try:
            return (await observer.take_lease(SUPERVISOR, "second", 0.05)).is_held()
        except LeaseHeld:
            return False

    while not await is_taken():
        await anyio.sleep(0.01)


async def test_v1_an_empty_term_is_put_again_by_the_supervisor_and_raised_by_the_next(
    server: S3Server, objects: S3Objects
) -> None:
    coordination = coordination_on(objects)
    async with claim_term(coordination, STORE, b"a" * 16) as term:
        cut(server, TERM)
        await term.check()
        assert server.objects()[f"store/{TERM}"]
        cut(server, TERM)
    async with claim_term(coordination, STORE, b"b" * 16) as term:
        assert term.number == 1
        assert server.objects()[f"store/{TERM}"]


async def test_v12_an_empty_control_record_names_no_predecessor(server: S3Server, objects: S3Objects) -> None:
    cut(server, CONTROL)
    coordination = coordination_on(objects)

    assert await find_predecessor(coordination, STORE.store_id.hex()) == Predecessor()
    found = await coordination.load(CONTROL)
    assert found == Record(b"", found.version if found else "")
    assert await coordination.compare_and_set(CONTROL, b"again", found.version)


async def test_an_empty_identity_is_named(server: S3Server, objects: S3Objects) -> None:
    cut(server, IDENTITY)
    coordination = coordination_on(objects)
    begin = partial(refuse_others, objects, coordination, WORLD)

    with pytest.raises(DataCorruption) as caught:
        await identify_shared(coordination, begin, None, StoreConfig(), WORLD)
    assert caught.value.file == f"s3://{BUCKET}/store/{IDENTITY}"


@pytest.mark.parametrize("of", ["register", "group"])
async def test_an_empty_object_of_a_log_is_named(server: S3Server, objects: S3Objects, of: str) -> None:
    log = log_on(objects)
    await log.open()
    await log.append([b"x"])
    keys = sorted(key for key in server.objects() if "/g/" in key)
    key = keys[-1] if of == "group" else "store/wal/0000/register"
    cut(server, key.removeprefix("store/"))

    for opened in (log_on(objects).open(), log_on(objects).inspect()):
        with pytest.raises(DataCorruption) as caught:
            await opened
        assert caught.value.file == f"s3://{BUCKET}/{key}"

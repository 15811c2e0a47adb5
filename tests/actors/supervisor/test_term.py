"""One supervisor at a time (V1): the lock, and the term that only grows."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import pytest
import trio.testing
from msgspec.structs import replace

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import until
from support.memory_objects import Bucket, MemoryObjects
from support.patience import scaled
from support.s3 import numbered_world
from tierlog.actors.folder.identity import StoreIdentity, encode
from tierlog.actors.folder.local_coordination import LocalCoordination
from tierlog.actors.folder.paths import StoreFolder, check_path
from tierlog.actors.gateway.client.container_map import is_complete
from tierlog.actors.supervisor.commands import Command, OpenContainer
from tierlog.actors.supervisor.control.record import ControlRecord, encode_control
from tierlog.actors.supervisor.join_listener import find_predecessor
from tierlog.actors.supervisor.term import Term, TermOptions, claim_term, confirm_identity, nobody_serves
from tierlog.journal.coordination.contract import CONTROL, RECORD_BYTES_MAX, SUPERVISOR, TERM, Lease, Record
from tierlog.journal.coordination.contract import IDENTITY as RECORD
from tierlog.journal.coordination.objects import OBSERVED, ObjectCoordination
from tierlog.journal.registers.local import REGISTER_BYTES, encode_epoch
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import (
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StoreMismatch,
    Unavailable,
    Unsupported,
)
from tierlog.storage_backends.base.object_store import StoredObject
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio
WORLD = numbered_world()
IDENTITY = StoreIdentity(bytes(16), b"l" * 16, 2, 0)
LEASE = 0.4
"""Seconds."""


def claimed(folder: StoreFolder, identity: StoreIdentity = IDENTITY) -> AbstractAsyncContextManager[Term]:
    coordination = LocalCoordination(LocalFiles(), folder, WORLD.new_id)
    return claim_term(coordination, identity, WORLD.id_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolder:
    return check_path(tmp_path)


async def test_v1_each_supervisor_has_a_higher_term_than_all_before(folder: StoreFolder) -> None:
    numbers = []
    for _ in range(3):
        async with claimed(folder) as term:
            await term.check()
            numbers.append(term.number)
    assert numbers == [1, 2, 3]


async def test_v1_a_standby_makes_nothing_where_its_store_is_no_more() -> None:
    """Nor a part of one: a bucket may have been emptied while it stood by."""
    bucket = Bucket()
    coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
    await coordination.compare_and_set(RECORD, encode(IDENTITY))
    term = TermOptions.watched(LEASE, takes_over=False, stands_by=True)
    confirm = partial(confirm_identity, coordination, IDENTITY)
    async with claim_term(coordination, IDENTITY, b"a" * 16, term, confirm=confirm):
        pass
    for other, why in ((None, "was removed"), (replace(IDENTITY, created_ms=1), "of another store")):
        bucket.objects.clear()
        if other is not None:
            await coordination.compare_and_set(RECORD, encode(other))
        with pytest.raises(StoreMismatch, match=f"{why} .*since this process was started"):
            async with claim_term(coordination, IDENTITY, b"a" * 16, term, confirm=confirm):
                raise AssertionError("it supervises nothing")
        assert TERM not in bucket.objects


async def test_v1_while_one_lives_no_other_starts(folder: StoreFolder) -> None:
    async with claimed(folder):
        with pytest.raises(Unavailable, match=f"process {os.getpid()} already supervises this store"):
            async with claimed(folder):
                raise AssertionError("there are two")


async def test_v1_an_overtaken_supervisor_learns_of_it(folder: StoreFolder) -> None:
    async with claimed(folder) as earlier:
        await anyio.Path(folder.path, "supervisor", "lock").unlink()
        async with claimed(folder) as later:
            await later.check()
            with pytest.raises(NotOwner, match="its term is 2, this one's 1"):
                await earlier.check()


async def test_another_stores_register_is_refused(folder: StoreFolder) -> None:
    async with claimed(folder):
        pass
    with pytest.raises(StoreMismatch):
        async with claimed(folder, StoreIdentity(bytes(16), b"x" * 16, 2, 0)):
            raise AssertionError("it was taken")
    async with claimed(folder) as term:
        assert term.number == 2, "the lock was freed"


async def test_v1_a_term_of_an_earlier_version_goes_on(folder: StoreFolder) -> None:
    """It was written in place, without an owner."""
    path = anyio.Path(folder.path, "supervisor")
    await path.mkdir()
    await (path / "term").write_bytes(encode_epoch(IDENTITY.log_id, 41).ljust(REGISTER_BYTES, b"\0"))
    async with claimed(folder) as term:
        assert term.number == 42


# --- in a bucket ----------------------------------------------------------------------------------


def claimed_in(
    bucket: Bucket, owner: bytes, *, takes_over: bool = False
) -> AbstractAsyncContextManager[Term]:
    """As on a machine of its own."""
    coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
    return claim_term(
        coordination, IDENTITY, owner.ljust(16), TermOptions.watched(LEASE, takes_over=takes_over)
    )


async def check_until_it_ends(term: Term, ended: anyio.Event) -> None:
    while not ended.is_set():
        await anyio.sleep(term.interval)
        await term.check()


class CutOff(ObjectCoordination):
    """Whoever has taken its lease can put nothing any more."""

    async def compare_and_set(self, name: str, data: bytes, version: str = "") -> str | None:
        if name == "leases/supervisor" and version:
            raise Unavailable("nobody answers")
        return await super().compare_and_set(name, data, version)


async def test_d3_one_that_died_is_followed_once_its_lease_has_ended() -> None:
    bucket = Bucket()
    options = TermOptions.watched(LEASE, takes_over=False)
    async with claim_term(CutOff(MemoryObjects(bucket), "", WORLD), IDENTITY, b"a" * 16, options):
        pass  # it could not release its lease, as if it had died
    began = anyio.current_time()
    async with claimed_in(bucket, b"b") as later:
        assert later.number == 2
        assert anyio.current_time() - began >= OBSERVED * LEASE


async def test_v1_while_one_renews_its_lease_no_other_starts() -> None:
    bucket, ended = Bucket(), anyio.Event()
    async with claimed_in(bucket, b"a") as first, anyio.create_task_group() as tasks:
        tasks.start_soon(check_until_it_ends, first, ended)
        with pytest.raises(Unavailable, match=rf"process {os.getpid()} of \S+ already supervises this store"):
            async with claimed_in(bucket, b"b"):
                raise AssertionError("there are two")
        await first.check()
        ended.set()


async def test_v1_one_that_stands_by_waits_while_another_lives_and_follows_when_that_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket, ended, followed = Bucket(), anyio.Event(), anyio.Event()
    options = TermOptions.watched(LEASE, takes_over=False, stands_by=True)

    async def stand_by() -> None:
        coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
        async with claim_term(coordination, IDENTITY, b"standby".ljust(16), options) as term:
            assert term.number == 2
            followed.set()

    with caplog.at_level(logging.INFO, logger="tierlog.supervisor"):
        async with anyio.create_task_group() as tasks:
            async with claimed_in(bucket, b"a") as first, anyio.create_task_group() as checks:
                checks.start_soon(check_until_it_ends, first, ended)
                tasks.start_soon(stand_by)
                await anyio.sleep(4 * LEASE)
                assert not followed.is_set()
                ended.set()
            await followed.wait()
    waits = [each.getMessage() for each in caplog.records if "standing_by" in each.getMessage()]
    assert len(waits) == 1


AWAY = [Unavailable("nobody answers"), OutcomeUnknown("no answer"), StorageFull("the quota is used up")]


class Away(ObjectCoordination):
    """The bucket is away, or full, the first times that ``name`` is asked for."""

    def __init__(self, bucket: Bucket, name: str, answers: Sequence[Exception]) -> None:
        super().__init__(MemoryObjects(bucket), "", WORLD)
        self._name = name
        self.answers = list(answers)

    async def load(self, name: str) -> Record | None:
        if name == self._name and self.answers:
            raise self.answers.pop(0)
        return await super().load(name)


@pytest.mark.parametrize("name", ["leases/supervisor", TERM, CONTROL])
async def test_v1_a_bucket_that_is_away_ends_no_standby(name: str) -> None:
    """Whatever of its start is asked of it then; it begins again with the lease."""
    options = TermOptions.watched(LEASE, takes_over=False, stands_by=True)
    bucket = Bucket()
    coordination = Away(bucket, name, AWAY)
    find = partial(find_predecessor, coordination, IDENTITY.store_id.hex())
    async with claim_term(coordination, IDENTITY, b"s" * 16, options, find) as term:
        assert not coordination.answers
        assert term.is_held()
    for error in AWAY:
        with pytest.raises(type(error)):
            async with claim_term(
                Away(bucket, name, [error]),
                IDENTITY,
                b"t" * 16,
                TermOptions.watched(LEASE, takes_over=False),
                find_predecessor=partial(
                    find_predecessor, Away(bucket, name, [error]), IDENTITY.store_id.hex()
                ),
            ):
                raise AssertionError("it started")


async def test_v1_a_bucket_that_is_away_ends_no_standby_that_takes_over() -> None:
    """It asks for a higher term while another supervisor has the lease."""
    bucket, begun = Bucket(), anyio.Event()
    options = TermOptions.watched(LEASE, takes_over=True, stands_by=True)

    async def first() -> None:
        with pytest.raises(NotOwner):
            async with claimed_in(bucket, b"a") as term:
                begun.set()
                await check_until_it_ends(term, anyio.Event())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await begun.wait()
        with anyio.fail_after(scaled(10)):
            async with claim_term(Away(bucket, TERM, AWAY[:2]), IDENTITY, b"s" * 16, options) as term:
                assert term.number > 2


async def test_v1_an_error_of_an_active_supervisor_ends_its_term() -> None:
    options = TermOptions.watched(LEASE, takes_over=False, stands_by=True)
    with pytest.raises(Unavailable, match="its own"):
        async with claim_term(Away(Bucket(), TERM, []), IDENTITY, b"s" * 16, options):
            raise Unavailable("its own")


async def test_v1_one_that_lives_ends_for_one_that_takes_over() -> None:
    bucket, numbers = Bucket(), list[int]()

    async def first() -> None:
        with pytest.raises(NotOwner, match="another supervisor took over"):
            async with claimed_in(bucket, b"a") as term:
                numbers.append(term.number)
                await check_until_it_ends(term, anyio.Event())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await until(lambda: numbers)
        async with claimed_in(bucket, b"b", takes_over=True) as second:
            # Higher than the one that it took when it was refused.
            numbers.append(second.number)
            await second.check()
    assert numbers == [1, 3]


async def test_v1_a_lease_that_another_supervisor_took_ends_the_term() -> None:
    bucket = Bucket()
    with pytest.raises(NotOwner, match="or the record of the lease was exchanged .*another has it"):
        async with claimed_in(bucket, b"a") as first:
            del bucket.objects["leases/supervisor"]
            other = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
            await other.take_lease(SUPERVISOR, "another", LEASE)
            await first.check()


# --- records that were put back, or removed ------------------------------------------------------


def claimed_after_control(
    coordination: ObjectCoordination, owner: bytes, options: TermOptions | None = None
) -> AbstractAsyncContextManager[Term]:
    """As a supervisor with a port for hosts starts."""
    find = partial(find_predecessor, coordination, IDENTITY.store_id.hex())
    return claim_term(coordination, IDENTITY, owner.ljust(16), options, find)


def put_control(bucket: Bucket, term: int) -> None:
    data = encode_control(ControlRecord(term, bytes(32), "10.0.0.9", 1, "m", ("x",), IDENTITY.store_id))
    bucket.put(CONTROL, data, bucket.objects[CONTROL][1] if CONTROL in bucket.objects else "")


@pytest.mark.parametrize("found", [0, 2])
async def test_v1_an_older_term_that_was_put_back_leads_to_none_that_was_there_before(
    found: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor one that is removed: the first supervisor that starts has a higher one than all before."""
    bucket = Bucket()
    coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
    if found:
        await coordination.compare_and_set(
            TERM, encode_epoch(IDENTITY.log_id, found).ljust(REGISTER_BYTES, b"\0")
        )
    put_control(bucket, 7)
    async with claimed_after_control(coordination, b"a") as term:
        assert (term.number, term.awaited) == (8, ("x",))
        await term.check()
    assert "term_was_put_back" in caplog.text
    caplog.clear()
    async with claimed_after_control(coordination, b"b") as term:
        assert term.number == 9
    assert "term_was_put_back" not in caplog.text


async def test_v1_one_that_takes_over_is_heard_though_an_older_term_was_put_back() -> None:
    bucket, begun = Bucket(), anyio.Event()
    put_control(bucket, 7)

    async def first() -> None:
        with pytest.raises(NotOwner, match="another supervisor took over"):
            coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
            options = TermOptions.watched(LEASE, takes_over=False)
            async with claimed_after_control(coordination, b"a", options) as term:
                put_control(bucket, term.number)
                del bucket.objects[TERM]
                begun.set()
                await check_until_it_ends(term, anyio.Event())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await begun.wait()
        coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
        with anyio.fail_after(scaled(10)):
            options = TermOptions.watched(LEASE, takes_over=True)
            async with claimed_after_control(coordination, b"b", options) as term:
                assert term.number == 10, "it took 9 while it waited"


LEASE_RECORD = "leases/supervisor"


@asynccontextmanager
async def confirmed_term(bucket: Bucket) -> AsyncIterator[Term]:
    """Of a supervisor whose store has an identity."""
    coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
    await coordination.compare_and_set(RECORD, encode(IDENTITY))
    options = TermOptions.watched(LEASE, takes_over=False)
    confirm = partial(confirm_identity, coordination, IDENTITY)
    async with claim_term(coordination, IDENTITY, b"a" * 16, options, confirm=confirm) as term:
        yield term


async def test_d4_a_lease_whose_record_was_removed_is_put_again(caplog: pytest.LogCaptureFixture) -> None:
    bucket = Bucket()
    async with confirmed_term(bucket) as term:
        del bucket.objects[LEASE_RECORD]
        await term.check()
        assert term.is_held()
        assert "lease_put_again" in caplog.text
        await term.check()
        with pytest.raises(Unavailable, match="is held by"):
            await ObjectCoordination(MemoryObjects(bucket), "", WORLD).take_lease(SUPERVISOR, "b", LEASE)
    # It was released as ever.
    await ObjectCoordination(MemoryObjects(bucket), "", WORLD).take_lease(SUPERVISOR, "b", LEASE)


@pytest.mark.parametrize("name", [LEASE_RECORD, TERM])
@pytest.mark.parametrize("damaged", [b"damaged", bytes(RECORD_BYTES_MAX + 1)], ids=["damaged", "too-large"])
async def test_d4_a_damaged_record_of_a_supervisor_is_put_again_and_keeps_none_out(
    name: str, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def damage() -> None:
        bucket.put(name, damaged, bucket.objects[name][1])

    bucket = Bucket()
    async with confirmed_term(bucket) as term:
        damage()
        await term.check()
        assert term.is_held()
        assert "lost" in caplog.text or "lease_put_again" in caplog.text
        assert bucket.objects[name][0] != damaged
        caplog.clear()
        await term.check()
        assert not caplog.text
        damage()
    put_control(bucket, 1)
    coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
    options = TermOptions.watched(LEASE, takes_over=False)
    async with claimed_after_control(coordination, b"b", options) as term:
        assert term.number == 2
        await term.check()


async def test_d4_of_a_store_that_was_removed_no_lease_is_put_again() -> None:
    bucket = Bucket()
    with pytest.raises(StoreMismatch, match="was removed since this process was started"):
        async with confirmed_term(bucket) as term:
            bucket.objects.clear()
            await term.check()
    assert not bucket.objects


async def test_d4_a_removed_lease_that_another_takes_meanwhile_is_lost() -> None:
    bucket = Bucket()
    coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)

    async def another_takes_it() -> None:
        await ObjectCoordination(MemoryObjects(bucket), "", WORLD).take_lease(SUPERVISOR, "b", LEASE)

    lease = await coordination.take_lease(SUPERVISOR, "a", LEASE)
    del bucket.objects[LEASE_RECORD]
    with pytest.raises(NotOwner, match="b has it"):
        await lease.renew(another_takes_it)
    assert not lease.is_held()


async def test_d5_a_supervisor_that_cannot_check_its_term_goes_on() -> None:
    answers: list[Exception] = [
        Unavailable("the bucket does not answer"),
        OutcomeUnknown("nor now"),
        StorageFull("the bucket's quota is used up"),
        Unsupported("it takes no conditional puts now"),
        NotOwner("another supervisor took over"),
    ]

    class Asked:
        number, interval = 1, 0.001

        def is_held(self) -> bool:
            return True

        async def check(self) -> None:
            raise answers.pop(0)

    with pytest.raises(NotOwner):
        await FakeHostsSupervisor(1, 1, term=cast(Term, Asked())).check_term()
    assert not answers


class Unanswered(MemoryObjects):
    """Nobody answers the calls of the numbers ``unanswered``."""

    calls = 0
    unanswered: tuple[int, ...] = ()

    async def _wait(self) -> None:
        self.calls += 1
        if self.calls in self.unanswered:
            await anyio.sleep_forever()

    async def get(self, key: str, size: int) -> StoredObject | None:
        await self._wait()
        return await super().get(key, size)

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        made = await super().put(key, data, version=version)
        await self._wait()  # It was carried out.
        return made


@pytest.mark.parametrize("unanswered", [(1, 2), (2, 3), (2, 4)])
def test_v1_two_checks_in_a_row_without_an_answer_do_not_cost_the_lease(unanswered: tuple[int, int]) -> None:
    """Each check has a get and, if that is answered, a put."""

    async def body() -> None:
        bucket, lease = Bucket(), 20.0
        first = Unanswered(bucket)
        options = TermOptions.watched(lease, takes_over=False)
        async with (
            claim_term(ObjectCoordination(first, "", WORLD), IDENTITY, b"a" * 16, options) as term,
            anyio.create_task_group() as tasks,
        ):
            first.unanswered = tuple(first.calls + number for number in unanswered)
            tasks.start_soon(FakeHostsSupervisor(1, 1, term=term).check_term)
            for _ in range(3):
                with pytest.raises(Unavailable, match="already supervises this store"):
                    async with claim_term(
                        ObjectCoordination(MemoryObjects(bucket), "", WORLD), IDENTITY, b"b" * 16, options
                    ):
                        raise AssertionError("there are two")
            tasks.cancel_scope.cancel()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


class Noted(FakeHostsSupervisor):
    """Notes the openings that it orders."""

    def __init__(self, containers: int, hosts: int, term: Term) -> None:
        self.openings: list[OpenContainer] = []
        super().__init__(containers, hosts, term=term)

    def _execute_one(self, command: Command) -> None:
        if isinstance(command, OpenContainer):
            self.openings.append(command)
        super()._execute_one(command)


@pytest.mark.parametrize(
    "error", [Unavailable("no answer"), StorageFull("no space"), Unsupported("no conditions")], ids=repr
)
async def test_a_lease_that_cannot_be_released_hides_no_error(error: Exception) -> None:
    class Refusing(ObjectCoordination):
        has_begun = False

        async def compare_and_set(self, name: str, data: bytes, version: str = "") -> str | None:
            if self.has_begun:
                raise error
            return await super().compare_and_set(name, data, version)

    coordination = Refusing(MemoryObjects(Bucket()), "", WORLD)
    with pytest.raises(NotOwner, match="the cause"):
        async with claim_term(coordination, IDENTITY, b"a" * 16):
            coordination.has_begun = True
            raise NotOwner("the cause")


def test_a_release_that_nobody_answers_is_given_up_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        objects = Unanswered(Bucket())
        async with claim_term(ObjectCoordination(objects, "", WORLD), IDENTITY, b"a" * 16):
            objects.unanswered = (objects.calls + 1,)

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))
    assert "event='lease_not_released' reason='no answer within 5 s'" in caplog.text


@pytest.mark.parametrize("takes_over", [False, True])
def test_d3_one_that_died_is_followed_also_with_a_shorter_lease(takes_over: bool) -> None:
    """Its record has its own lease's duration: the setting was changed since."""

    async def body() -> None:
        bucket = Bucket()
        long, short = (TermOptions.watched(lease, takes_over=takes_over) for lease in (60.0, 1.0))
        async with claim_term(CutOff(MemoryObjects(bucket), "", WORLD), IDENTITY, b"a" * 16, long):
            pass
        coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
        async with claim_term(coordination, IDENTITY, b"b" * 16, short) as later:
            await later.check()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def test_v1_one_that_takes_over_in_vain_gets_no_advice_to_take_over() -> None:
    async def body() -> None:
        bucket, options = Bucket(), TermOptions.watched(1.0, takes_over=True)

        async def renew(lease: Lease) -> None:
            while True:
                await lease.renew()
                await anyio.sleep(0.1)

        async with anyio.create_task_group() as tasks:
            coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
            # It asks for no term, so that it does not end.
            tasks.start_soon(renew, await coordination.take_lease(SUPERVISOR, "deaf", 1.0))
            with pytest.raises(Unavailable, match="^deaf already supervises this store: stop it first$"):
                async with claim_term(
                    ObjectCoordination(MemoryObjects(bucket), "", WORLD), IDENTITY, b"b" * 16, options
                ):
                    raise AssertionError("there are two")
            tasks.cancel_scope.cancel()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def test_v1_a_supervisor_that_stood_still_orders_no_opening_before_it_has_checked_its_term() -> None:
    """A successor may have opened the container: another opening would fence its owner."""

    async def body() -> None:
        bucket, lease = Bucket(), 20.0
        options = TermOptions.watched(lease, takes_over=False)
        coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
        async with (
            claim_term(coordination, IDENTITY, b"a" * 16, options) as term,
            anyio.create_task_group() as tasks,
        ):
            supervisor = Noted(2, 3, term=term)
            assert supervisor.is_ready
            await anyio.sleep(lease)
            supervisor.openings.clear()
            # The second one ends while it is to open what the first one had.
            for host in ("host-0", "host-2"):
                supervisor.end(host)
            newest = [each.request for each in supervisor.fleet.assignments]
            assert supervisor.openings == []
            tasks.start_soon(supervisor.check_term)
            await anyio.sleep(1.5 * term.interval)

            assert supervisor.is_ready
            assert all(each.request >= newest[each.index] for each in supervisor.openings), "none is outdated"
            supervisor.end("host-1")
            assert supervisor.is_ready, "the next opening is ordered at once"
            tasks.cancel_scope.cancel()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def test_v1_a_supervisor_in_doubt_of_its_lease_moves_nothing_and_knows_nothing_at_first_hand() -> None:
    """A container that is closed for a move could be opened nowhere before the bucket answers."""

    async def body() -> None:
        bucket, lease = Bucket(), 20.0
        options = TermOptions.watched(lease, takes_over=False)
        coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
        async with (
            claim_term(coordination, IDENTITY, b"a" * 16, options) as term,
            anyio.create_task_group() as tasks,
        ):
            supervisor = Noted(4, 2, term=term)
            assert is_complete(supervisor.map())
            await anyio.sleep(lease)
            before = [each.host for each in supervisor.fleet.assignments]
            supervisor.openings.clear()
            await supervisor.drain("host-0")
            assert supervisor.is_ready, "all are served"
            assert [each.host for each in supervisor.fleet.assignments] == before
            found = supervisor.map()
            assert {each.url for each in found.containers} == {supervisor.url}
            assert not is_complete(found)

            tasks.start_soon(supervisor.check_term)
            await anyio.sleep(1.5 * term.interval)
            moved = {each.index for each in supervisor.openings}
            assert moved >= {index for index, host in enumerate(before) if host == "host-0"}
            assert is_complete(supervisor.map())
            tasks.cancel_scope.cancel()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_v1_two_that_start_at_once_have_different_terms() -> None:
    """Both read the same record, because one of them took the lease from the other."""
    bucket = Bucket()
    numbers: list[int] = []

    class Racing(ObjectCoordination):
        async def compare_and_set(self, name: str, data: bytes, version: str = "") -> str | None:
            if name == TERM and not numbers:
                bucket.delete("leases/supervisor")
                numbers.append(0)
                async with claim_term(
                    ObjectCoordination(MemoryObjects(bucket), "", WORLD), IDENTITY, b"b" * 16
                ) as term:
                    numbers.append(term.number)
            return await super().compare_and_set(name, data, version)

    async with claim_term(ObjectCoordination(MemoryObjects(bucket), "", WORLD), IDENTITY, b"c" * 16):
        pass  # both replace a term
    async with claim_term(Racing(MemoryObjects(bucket), "", WORLD), IDENTITY, b"a" * 16) as term:
        numbers.append(term.number)
    assert numbers == [0, 2, 3]


async def test_who_serves_nothing_is_refused_as_soon_as_the_lease_is_renewed() -> None:
    """And says what it waits for."""
    bucket = Bucket()
    awaited: list[tuple[str, str]] = []
    holder, other = (ObjectCoordination(MemoryObjects(bucket), "", WORLD) for _ in range(2))
    long = 600.0
    async with claim_term(holder, IDENTITY, b"a" * 16, TermOptions.watched(long, takes_over=False)) as term:

        async def renew() -> None:
            await until(lambda: bool(awaited))
            await term.check()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            with anyio.fail_after(scaled(30)), pytest.raises(Unavailable, match="already supervises"):
                async with nobody_serves(
                    other, IDENTITY, b"b" * 16, LEASE, lambda *found: awaited.append(found)
                ):
                    raise AssertionError("there are two")
        gone = "if that process is gone, its lease ends within 751 s"
        prospect = f"{gone}; if it renews the lease, this one is refused"
        assert awaited == [(f"process {os.getpid()} of {socket.gethostname()}", prospect)]

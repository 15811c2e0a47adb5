"""The log in ledgers, rule by rule; what every log does is in the conformance suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest

from support.call_faults import CallFault, FaultKind
from support.faulty_ledgers import FaultyLedgers
from support.ledger_logs import FAST, LOG_ID, PATH, WORLD, contents, log_on, record_in, reopened
from support.ledger_stores import ConnectedLedgers
from support.memory_ledgers import Cluster, MemoryLedger, MemoryLedgers
from support.patience import scaled
from tierlog.journal.log import bookkeeper_entry, bookkeeper_log
from tierlog.journal.log.bookkeeper_entry import PART_BYTES
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.bookkeeper_quorum import LARGE, SMALL, check_quorum, choose_quorum, quorum_warning
from tierlog.journal.log.bookkeeper_sweep import KnownLedgers
from tierlog.storage_backends.base.errors import (
    ConfigError,
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    Unavailable,
)
from tierlog.storage_backends.base.ledger_service import (
    Ledger,
    LedgerFenced,
    LedgerLost,
    NotEnoughBookies,
    Quorum,
    SidecarNotStarted,
)

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def service(cluster: Cluster) -> FaultyLedgers:
    return FaultyLedgers(cluster)


def listed_in(cluster: Cluster) -> list[int]:
    return [ledger.id for ledger in record_in(cluster).ledgers]


# --- B1, B2: opening ------------------------------------------------------------------------------


async def test_b1_an_owner_whose_record_was_taken_begins_no_ledger(cluster: Cluster) -> None:
    """Although its own ledger was not recovered yet."""
    old = log_on(MemoryLedgers(cluster), ledger_bytes=1)
    await old.open()
    await old.append([b"acked"])
    service = FaultyLedgers(cluster)
    held = service.faults.hold("recover")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log_on(service).open)
        await held.arrived.wait()
        ledgers = set(cluster.ledgers)
        with pytest.raises(NotOwner):
            await old.append([b"in another ledger"])
        assert set(cluster.ledgers) == ledgers
        held.go_on.set()

    assert await reopened(cluster) == {1: b"acked"}


async def test_b2_the_own_ledger_is_listed_before_it_is_written_to(cluster: Cluster) -> None:
    service = FaultyLedgers(cluster)
    log = log_on(service, ledger_bytes=1)
    await log.open()
    for number in range(3):
        await log.append([b"%d" % number])
        assert listed_in(cluster)[-1] == max(cluster.ledgers)

    calls = [each for each in service.faults.asked if each in {"create_ledger", "replace", "append"}]
    # The record is taken, and then for each ledger listed.
    assert calls == ["replace", *["create_ledger", "replace", "append"] * 3]


async def test_b2_an_opener_that_was_overtaken_leaves_no_ledger(cluster: Cluster) -> None:
    service = FaultyLedgers(cluster)
    held = service.faults.hold("create_ledger")
    overtaken = log_on(service)
    async with anyio.create_task_group() as tasks:

        async def open_() -> None:
            with pytest.raises(NotOwner):
                await overtaken.open()

        tasks.start_soon(open_)
        await held.arrived.wait()
        log = log_on(MemoryLedgers(cluster))
        await log.open()
        held.go_on.set()

    assert listed_in(cluster) == list(cluster.ledgers)
    assert await log.append([b"x"]) == 1


async def test_b2_what_a_fenced_owner_wrote_late_is_refused(cluster: Cluster) -> None:
    service = FaultyLedgers(cluster)
    old = log_on(service)
    await old.open()
    service.faults.fail_next(FaultKind.LOST)
    with pytest.raises(OutcomeUnknown):
        await old.append([b"late"])
    new = log_on(MemoryLedgers(cluster))
    await new.open()
    with pytest.raises(LedgerFenced):
        cluster.add(1, 0, b"late")

    assert await new.append([b"first"]) == 1
    assert await reopened(cluster) == {1: b"first"}


async def test_b2_ledgers_without_a_group_leave_the_list(cluster: Cluster) -> None:
    for _ in range(5):
        await log_on(MemoryLedgers(cluster)).open()

    assert len(listed_in(cluster)) == 1


@pytest.mark.parametrize("skip", [1, 2], ids=["an opening", "another ledger"])
async def test_b2_a_ledger_that_could_not_be_listed_is_let_go_of(cluster: Cluster, skip: int) -> None:
    """Its handle in the sidecar would stay, one for each attempt while ZooKeeper is away."""
    service = KeepsItsWriter(cluster)
    await log_on(service).open()
    log = log_on(service, ledger_bytes=1, patience=-1.0)
    held = service.faults.hold("replace", skip=skip, most=1)
    async with anyio.create_task_group() as tasks:

        async def begin_ledgers() -> None:
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await log.open()
                for _ in range(2):
                    await log.append([b"x"])

        tasks.start_soon(begin_ledgers)
        await held.arrived.wait()
        service.faults.fault = CallFault(len(service.faults.asked), FaultKind.REFUSED)
        held.go_on.set()
    assert service.faults.asked[-1] == "replace"
    assert service.writer._is_dropped
    await log.close()


# --- B3 to B5: groups and ledgers -----------------------------------------------------------------


async def test_b3_a_group_without_its_last_part_was_never_acked(cluster: Cluster) -> None:
    log = log_on(MemoryLedgers(cluster))
    await log.open()
    await log.append([b"acked"])
    await log.append([bytes(PART_BYTES + 1)])
    del cluster.ledgers[1].entries[2]

    log = log_on(MemoryLedgers(cluster))
    assert (await log.open()).next_group == 2
    assert await log.append([b"in its place"]) == 2
    assert await reopened(cluster) == {1: b"acked", 2: b"in its place"}


@pytest.mark.parametrize("arrived", range(1 << 6))
async def test_b3_whichever_entries_have_arrived_a_group_counts_as_a_whole_or_not_at_all(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, arrived: int
) -> None:
    """The owner is killed with a group of four parts and one of two under way. Each bit of ``arrived`` is an
    entry that a bookie has."""
    monkeypatch.setattr(bookkeeper_entry, "PART_BYTES", 4)
    payloads = {1: b"acked", 2: b"in four parts", 3: b"in two"}
    log = log_on(MemoryLedgers(cluster))
    await log.open()
    for payload in payloads.values():
        await log.append([payload])
    entries, acked = cluster.ledgers[1].entries, 2
    for bit in range(6):
        if not arrived >> bit & 1:
            del entries[acked + bit]

    whole = 1 + (arrived & 0b1111 == 0b1111) + (arrived == 0b111111)
    later = log_on(MemoryLedgers(cluster))
    assert (await later.open()).next_group == whole + 1
    assert await contents(later) == {number: payloads[number] for number in range(1, whole + 1)}
    # The next owner goes on behind what counts, and what it acks is there as a whole.
    assert await later.append([b"in its place"]) == whole + 1
    assert (await reopened(cluster))[whole + 1] == b"in its place"


async def test_b3_a_part_of_another_group_of_that_number_is_corruption(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeper_entry, "PART_BYTES", 4)
    other = Cluster()
    for place, payload in ((cluster, b"in two"), (other, b"also 2")):
        log = log_on(MemoryLedgers(place))
        await log.open()
        await log.append([payload], tag=int(place is other))
    cluster.ledgers[1].entries[1] = other.ledgers[1].entries[1]

    with pytest.raises(DataCorruption, match="a part of another group") as caught:
        await log_on(MemoryLedgers(cluster)).open()
    assert caught.value.file == f"memory:{PATH} ledger 1 entry 1"


async def test_b3_an_entry_that_was_acked_with_another_number_is_corruption(cluster: Cluster) -> None:
    service = KeepsItsWriter(cluster)
    log = log_on(service)
    await log.open()
    await log.append([b"first"])
    # As if another writer had added an entry.
    service.writer._next += 1

    with pytest.raises(DataCorruption, match="group 2 became entry 2, not 1"):
        await log.append([b"second"])


async def test_b4_another_ledger_begins_when_all_before_is_acked(cluster: Cluster) -> None:
    service = FaultyLedgers(cluster)
    log = log_on(service, appends_max=3, ledger_bytes=2)
    await log.open()
    service.faults.asked.clear()
    held = service.faults.hold("append")
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(log.append, [b"x"])
        await held.arrived.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert service.faults.asked == ["append waits"] * 2
        held.go_on.set()

    assert [ledger.first for ledger in record_in(cluster).ledgers] == [1, 3]


async def test_b4_a_log_with_as_many_ledgers_as_it_may_have_goes_on_in_the_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeper_log, "LEDGERS_MAX", 2)
    log = log_on(MemoryLedgers(cluster), ledger_bytes=1)
    await log.open()
    for number in range(1, 6):
        assert await log.append([b"%d" % number]) == number

    assert len(listed_in(cluster)) == 2
    assert len(await reopened(cluster)) == 5


async def test_b4_a_log_goes_on_in_its_ledger_while_no_other_can_be_made(cluster: Cluster) -> None:
    log = log_on(MemoryLedgers(cluster), ledger_bytes=2)
    await log.open()
    assert await log.append([b"1"]) == 1
    cluster.bookies = 1
    for number in range(2, 8):
        assert await log.append([b"%d" % number]) == number
        await log.truncate()
    cluster.bookies = 3
    for number in range(8, 12):
        assert await log.append([b"%d" % number]) == number
        await log.truncate()

    assert [ledger.first for ledger in record_in(cluster).ledgers] == [1, 9, 11]
    assert len(await reopened(cluster)) == 11


async def test_b4_appends_wait_a_moment_only_for_the_next_ledger(cluster: Cluster) -> None:
    """What is made later is an orphan."""
    service = FaultyLedgers(cluster)
    log = log_on(service, ledger_bytes=1, roll_seconds=0.01)
    await log.open()
    await log.append([b"1"])
    service.faults.hold("create_ledger")
    assert await log.append([b"2"]) == 2
    assert [ledger.first for ledger in record_in(cluster).ledgers] == [1]
    assert len(await reopened(cluster)) == 2


async def rolled(cluster: Cluster) -> list[int]:
    """The ledgers of a log with one group in each of three."""
    log = log_on(MemoryLedgers(cluster), ledger_bytes=1)
    await log.open()
    for number in range(1, 4):
        await log.append([b"%d" % number])
    return listed_in(cluster)


async def test_b5_a_ledger_that_is_gone_is_corruption(cluster: Cluster) -> None:
    for ledger in await rolled(cluster):
        stored = cluster.ledgers.pop(ledger)
        for opened in (log_on(MemoryLedgers(cluster)).open(), log_on(MemoryLedgers(cluster)).inspect()):
            with pytest.raises(DataCorruption, match=f"ledger {ledger}"):
                await opened
        cluster.ledgers[ledger] = stored


async def test_b5_a_ledger_that_lacks_its_last_group_is_corruption(cluster: Cluster) -> None:
    ledgers = await rolled(cluster)
    cluster.ledgers[ledgers[1]].entries.clear()

    with pytest.raises(DataCorruption, match="begins with group 3") as caught:
        await log_on(MemoryLedgers(cluster)).open()
    assert caught.value.file == f"memory:{PATH} ledger {ledgers[2]} entry 0"


async def test_b5_an_entry_of_another_place_is_corruption(cluster: Cluster) -> None:
    first, second, _ = await rolled(cluster)
    cluster.ledgers[second].entries = dict(cluster.ledgers[first].entries)

    with pytest.raises(DataCorruption, match="does not belong here") as caught:
        await log_on(MemoryLedgers(cluster)).open()
    assert caught.value.file == f"memory:{PATH} ledger {second} entry 0"


async def test_b5_an_opener_whose_ledgers_a_later_owner_truncated_is_fenced(cluster: Cluster) -> None:
    ledgers = await rolled(cluster)
    service = FaultyLedgers(cluster)
    held = service.faults.hold("recover")
    overtaken = log_on(service)
    async with anyio.create_task_group() as tasks:

        async def open_() -> None:
            with pytest.raises(NotOwner):
                await overtaken.open()

        tasks.start_soon(open_)
        await held.arrived.wait()
        log = log_on(MemoryLedgers(cluster), ledger_bytes=1)
        await log.open()
        number = await log.append([b"checkpoint"], truncate_before=log.next_group)
        assert number == 4
        await log.truncate()
        assert not set(ledgers) & set(cluster.ledgers)
        held.go_on.set()


# --- B6 to B8: verdicts, truncation, orphans ------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.LOST, FaultKind.UNANSWERED, FaultKind.REPEATED])
async def test_b6_a_change_of_the_record_that_was_carried_out_is_recognised(
    cluster: Cluster, kind: FaultKind
) -> None:
    await log_on(MemoryLedgers(cluster)).open()
    service = FaultyLedgers(cluster)
    held = service.faults.hold("replace")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log_on(service).open)
        await held.arrived.wait()
        service.faults.fail_next(kind)
        held.go_on.set()

    assert record_in(cluster).epoch == 2


async def test_b7_the_list_is_shorter_before_a_ledger_is_deleted(cluster: Cluster) -> None:
    service = FaultyLedgers(cluster)
    held = service.faults.hold("delete_ledger")
    log = log_on(service, ledger_bytes=1)
    await log.open()
    for number in range(1, 5):
        await log.append([b"%d" % number], truncate_before=3 if number == 4 else 0)
    kept = listed_in(cluster)[2:]
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.truncate)
            await held.arrived.wait()
            scope.cancel()

    assert listed_in(cluster) == kept
    assert await reopened(cluster) == {3: b"3", 4: b"4"}


async def orphan(cluster: Cluster, log: BookKeeperLog, epoch: int) -> int:
    return cluster.create_ledger(SMALL, log._ctx.metadata(epoch))


async def test_b8_orphans_of_earlier_epochs_are_deleted_and_others_are_not(cluster: Cluster) -> None:
    first = log_on(MemoryLedgers(cluster))
    await first.open()
    await first.append([b"x"])
    log = log_on(MemoryLedgers(cluster))
    await log.open()
    elsewhere = log_on(MemoryLedgers(cluster), path="/copy/log")
    gone = [await orphan(cluster, log, 1) for _ in range(3)]
    kept = [
        await orphan(cluster, log, 2),  # perhaps the next one of this owner
        await orphan(cluster, log, 3),
        await orphan(cluster, elsewhere, 1),
        await orphan(cluster, log_on(MemoryLedgers(cluster), b"f" * 16), 1),
        cluster.create_ledger(SMALL, {}),
    ]
    await log.truncate()

    assert not set(gone) & set(cluster.ledgers)
    assert set(kept) | set(listed_in(cluster)) == set(cluster.ledgers)


async def test_b8_a_sweep_looks_at_a_few_ledgers_at_a_time_and_at_each_once(cluster: Cluster) -> None:
    service = FaultyLedgers(cluster)
    log = log_on(service, swept_max=4)
    await log.open()
    for _ in range(9):
        cluster.create_ledger(SMALL, {})
    looks = []
    for _ in range(5):
        service.faults.asked.clear()
        await log.truncate()
        looks.append(service.faults.asked.count("describe"))

    # The first of the ten is listed.
    assert looks == [3, 4, 2, 0, 0]


@pytest.mark.parametrize("logs", [10, 40])
async def test_b8_the_logs_of_a_process_look_at_each_ledger_once(cluster: Cluster, logs: int) -> None:
    service, known = FaultyLedgers(cluster), KnownLedgers()
    owners = []
    for number in range(logs):
        path, log_id = f"/logs/{number}", number.to_bytes(16, "big")
        await log_on(MemoryLedgers(cluster), log_id, path).open()
        log = BookKeeperLog(service, path, log_id, WORLD, FAST, known=known)
        await log.open()
        await log.append([b"x"])
        owners.append(log)
    gone = [await orphan(cluster, log, 1) for log in owners]
    for log in owners:
        await log.truncate()

    # Three of each log: those of both openings, and the orphan.
    assert service.faults.asked.count("describe") <= 3 * logs
    assert service.faults.asked.count("list") == logs
    assert not set(gone) & set(cluster.ledgers)
    assert len(cluster.ledgers) == logs


async def test_b8_one_log_of_a_process_looks_at_a_time_and_the_others_do_not_wait(cluster: Cluster) -> None:
    service, known = FaultyLedgers(cluster), KnownLedgers()
    first, second = (BookKeeperLog(service, f"/{each}", LOG_ID, WORLD, FAST, known=known) for each in "ab")
    await first.open()
    await second.open()
    gone = [await orphan(cluster, log, 0) for log in (first, second)]
    held = service.faults.hold("describe")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.truncate)
        await held.arrived.wait()
        with anyio.fail_after(scaled(5)):
            await second.truncate()
        assert set(gone) <= set(cluster.ledgers)
        held.go_on.set()
    await second.truncate()

    assert not set(gone) & set(cluster.ledgers)


# --- B9, B10: quorums, confirmation ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("bookies", "wanted", "chosen"),
    [(2, None, SMALL), (3, None, SMALL), (4, None, LARGE), (9, None, LARGE), (3, LARGE, LARGE)],
)
def test_b9_the_quorum_follows_the_number_of_bookies(
    bookies: int, wanted: Quorum | None, chosen: Quorum
) -> None:
    assert choose_quorum(bookies, wanted) == chosen


def test_b9_a_quorum_that_a_lost_bookie_would_stop_is_warned_of() -> None:
    assert "3 bookies" in quorum_warning(3, LARGE)
    assert not quorum_warning(4, LARGE)
    assert not quorum_warning(3, None)
    assert "2 bookies" in quorum_warning(2, None)


@pytest.mark.parametrize("quorum", [Quorum(2, 3, 2), Quorum(3, 2, 3), Quorum(1, 1, 0)])
def test_b9_a_quorum_that_contradicts_itself_is_refused(quorum: Quorum) -> None:
    with pytest.raises(ConfigError):
        check_quorum(quorum)
    with pytest.raises(ConfigError):
        BookKeeperLogOptions(quorum=quorum)


async def test_b9_a_log_that_needs_more_bookies_than_there_are_says_so(cluster: Cluster) -> None:
    log = log_on(MemoryLedgers(cluster), quorum=Quorum(4, 4, 3), patience=-1.0)

    with pytest.raises(NotEnoughBookies, match="4 of 4 bookies, and 3 answer"):
        await log.open()


async def test_b10_an_owner_that_changed_its_record_itself_is_still_the_owner(cluster: Cluster) -> None:
    log = log_on(MemoryLedgers(cluster))
    await log.open()
    record = cluster.records[PATH]
    # As a change does that takes effect after its caller was cancelled.
    cluster.replace(PATH, record.data, record.version)

    await log.confirm_owner()
    assert await log.append([b"x"]) == 1


async def test_b11_an_owner_without_a_way_to_the_service_ends_when_it_cannot_be_confirmed(
    cluster: Cluster,
) -> None:
    """Another process may have a way: its supervisor gives the container to that one."""
    service = ConnectedLedgers(cluster)
    log = log_on(service)
    await log.open()
    service.can_start = False
    with pytest.raises(SidecarNotStarted):
        await log.confirm_owner()

    with pytest.raises(Unavailable, match="stopped after a failure"):
        log.check_owner()


# --- the rest -------------------------------------------------------------------------------------


async def test_an_append_is_one_entry_for_each_part_and_all_calls_are_counted(service: FaultyLedgers) -> None:
    log = log_on(service)
    await log.open()
    service.faults.asked.clear()
    before = log.statistics()
    for _ in range(5):
        await log.append([b"group"])
    await log.append([bytes(PART_BYTES + 1)])
    assert service.faults.asked == ["append"] * 7
    await log.confirm_owner()
    await log.read_window(1)

    after = log.statistics()
    assert after.entries - before.entries == 7
    assert after.ledger_calls - before.ledger_calls == len(["check", "read"])


async def test_a_failed_append_says_whether_another_owner_is_the_reason(cluster: Cluster) -> None:
    """The ledger is gone, so that nobody is there to say that it was fenced."""
    old = log_on(MemoryLedgers(cluster))
    await old.open()
    await old.append([b"x"])
    new = log_on(MemoryLedgers(cluster), ledger_bytes=1)
    await new.open()
    await new.append([b"y"], truncate_before=2)
    await new.truncate()
    assert list(cluster.ledgers) == listed_in(cluster)

    with pytest.raises(NotOwner):
        await old.append([b"zombie"])


async def test_a_ledger_that_was_deleted_by_hand_ends_its_owner_with_an_unknown_outcome(
    cluster: Cluster,
) -> None:
    log = log_on(MemoryLedgers(cluster))
    await log.open()
    cluster.ledgers.clear()

    with pytest.raises(OutcomeUnknown, match="group 1 may be in"):
        await log.append([b"x"])


async def test_groups_that_follow_each_other_are_read_together(cluster: Cluster) -> None:
    log = log_on(MemoryLedgers(cluster))
    await log.open()
    for number in range(40):
        await log.append([b"%d" % number])
    service = FaultyLedgers(cluster)
    later = log_on(service, kept_bytes=1000)
    await later.open()
    service.faults.asked.clear()

    assert len(await contents(later)) == 40
    assert service.faults.asked.count("read") < 8


# --- B11: the sidecar -----------------------------------------------------------------------------


class EndsBehindOpenings(FaultyLedgers):
    """Its sidecar ends as soon as a ledger is open."""

    async def open_ledger(self, ledger: int, *, recover: bool) -> Ledger:
        opened = await super().open_ledger(ledger, recover=recover)
        assert isinstance(opened, MemoryLedger)
        opened.end()
        return opened


class KeepsItsWriter(FaultyLedgers):
    writer: MemoryLedger

    async def create_ledger(self, quorum: Quorum, metadata: Mapping[str, bytes]) -> Ledger:
        made = await super().create_ledger(quorum, metadata)
        assert isinstance(made, MemoryLedger)
        self.writer = made
        return made


async def test_b11_an_append_whose_sidecar_has_ended_fails_without_waiting_for_the_next_one(
    cluster: Cluster,
) -> None:
    """Which takes seconds to start: another host may have the container until then."""
    service = KeepsItsWriter(cluster)
    log = log_on(service)
    await log.open()
    service.writer.end()
    calls = log.requests.others
    with pytest.raises(OutcomeUnknown, match="the sidecar ended"):
        await log.append([b"lost"])
    assert log.requests.others == calls
    await log.close()


async def test_b11_an_opening_does_not_repeat_reads_of_a_ledger_whose_sidecar_has_ended(
    cluster: Cluster,
) -> None:
    first = log_on(MemoryLedgers(cluster))
    await first.open()
    await first.append([b"acked"])
    await first.close()

    second = log_on(EndsBehindOpenings(cluster))
    with pytest.raises(LedgerLost):
        await second.open()
    assert second.requests.reads == 1

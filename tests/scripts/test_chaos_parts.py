"""The parts of the chaos scripts that a healthy service never exercises: the checks find every violation."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from random import Random

import anyio
import pytest
from rich.console import Console

import tierlog
from chaos_parts.events import SegmentCheck, event_bytes
from chaos_parts.ledger import Ledger, Outcome, Record, Writer, split_records
from chaos_parts.processes import RunError, Usage, compare_usage, counted
from chaos_parts.report import Report, Samples, takeovers_in
from chaos_parts.service import OwnService, Service
from chaos_parts.writers import EventWriter, Plan, WriterPlan, command_of_writer, segment_names
from support.scripted_server import problem, scripted
from tierlog.storage_backends.base.names import container_of

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


# --- events -------------------------------------------------------------------------------------


def events(*numbers: int, writer: str = "w0") -> bytes:
    return b"".join(event_bytes(writer, number) for number in numbers)


def numbered(acked: int, sent: int | None = None, offsets: dict[int, int] | None = None) -> Writer:
    sent = acked if sent is None else sent
    return Writer("w0", "s", 0, numbered=True, next=acked, sent_max=sent, offsets=offsets or {})


def plain(
    acked: int, unknown: Iterable[int] = (), rejected: Iterable[int] = (), *, ordered: bool = True
) -> Writer:
    made = Writer("w0", "s", 0, numbered=False, ordered=ordered, next=acked)
    made.unknown.update(unknown)
    made.rejected.update(rejected)
    return made


def checked(writer: Writer, data: bytes, block: int = 1 << 20) -> SegmentCheck:
    check = SegmentCheck("s", [writer])
    for at in range(0, len(data), block):
        check.feed(data[at : at + block])
    return check


@pytest.mark.parametrize("block", [1, 7, 100, 1 << 20])
def test_events_are_found_whatever_the_blocks_are(block: int) -> None:
    data = events(*range(300))
    offsets = {number: data.index(event_bytes("w0", number)) for number in (0, 7, 299)}
    check = checked(numbered(300, offsets=offsets), data, block)

    assert check.finish() == []
    assert (check.events, check.bytes) == (300, len(data))


def test_events_have_many_sizes() -> None:
    sizes = {len(event_bytes("w0", number)) for number in range(3000)}

    assert min(sizes) < 50
    assert max(sizes) > 50_000
    assert len(sizes) > 100


def test_every_flipped_bit_of_an_event_is_torn() -> None:
    data = events(0)
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        [torn, *_] = checked(numbered(2), damaged + events(1)).finish()
        assert torn.startswith("s, offset 0: no event begins here")


def test_a_segment_that_ends_within_an_event_is_torn() -> None:
    [torn, *_] = checked(numbered(2), events(0, 1)[:-1]).finish()

    assert torn.startswith(f"s, offset {len(events(0))}: no event begins here")


# --- checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "writer, numbers",
    [
        (numbered(3), (0, 1, 2)),
        (numbered(3, sent=5), (0, 1, 2)),
        (numbered(3, sent=5), (0, 1, 2, 3, 4)),
        (plain(4, unknown=[1], rejected=[2]), (0, 1, 3)),
        (plain(4, unknown=[1], rejected=[2]), (0, 3)),
        (plain(4, unknown=[1]), (0, 2, 3, 1)),
        (plain(3, ordered=False), (2, 0, 1)),
    ],
)
def test_a_segment_that_may_be_is_accepted(writer: Writer, numbers: tuple[int, ...]) -> None:
    assert checked(writer, events(*numbers)).finish() == []


@pytest.mark.parametrize(
    "writer, numbers, what",
    [
        (numbered(3), (0, 1), "1 acked event of w0 lost, the first is 2"),
        (numbered(3), (0, 2), "event 2 of w0 comes where 1 should"),
        (numbered(3), (0, 1, 1, 2), "event 1 of w0 is there twice"),
        (numbered(3), (0, 2, 1), "event 2 of w0 comes where 1 should"),
        (numbered(2), (0, 1, 2), "event 2 of w0 was never sent"),
        (numbered(2, offsets={1: 9}), (0, 1), "event 1 of w0 was acked at offset 9"),
        (plain(3), (0, 2), "1 acked event of w0 lost, the first is 1"),
        (plain(3), (0, 2, 1), "event 1 of w0 follows 2, which was sent later"),
        (plain(3, unknown=[1]), (0, 1, 1, 2), "event 1 of w0 is there twice"),
        (plain(3, rejected=[1]), (0, 1, 2), "is there, though it was rejected"),
        (plain(3), (0, 1, 2, 3), "event 3 of w0 has no outcome"),
    ],
)
def test_every_violation_is_reported(writer: Writer, numbers: tuple[int, ...], what: str) -> None:
    assert any(what in violation for violation in checked(writer, events(*numbers)).finish())


def test_an_event_of_an_unknown_writer_is_reported() -> None:
    found = checked(numbered(0), events(0, writer="x")).finish()
    assert found == ["s, offset 0: there is no writer x"]


@pytest.mark.parametrize("writer", [numbered(3, sent=9), plain(3)])
def test_while_writers_go_on_what_was_acked_is_there_and_more_may_be(writer: Writer) -> None:
    check = SegmentCheck("s", [writer], is_live=True)
    acked = check.acked
    check.feed(events(0, 1))
    [lost] = check.finish_round(acked)
    assert "1 acked event of w0 lost, the first is 2" in lost

    writer.next = 5
    check = SegmentCheck("s", [writer], is_live=True)
    check.feed(events(0, 1, 2, 3))
    assert check.finish_round({"w0": 3}) == []
    check.feed(events(4, 5)[:-1])
    assert check.finish_round(check.acked) == []
    check.feed(events(4))
    assert any("no event begins here" in each for each in check.finish_round(check.acked))


def test_torn_bytes_are_reported_with_their_offset() -> None:
    [torn] = checked(numbered(1), events(0) + b"rubbish\n").finish()
    assert torn.startswith(f"s, offset {len(events(0))}: no event begins here")


# --- the ledger --------------------------------------------------------------------------------


def test_a_record_that_is_cut_off_waits_for_its_end() -> None:
    records = [Record(Outcome.ACKED, 1, 7, 2, 0.5, 0.75), Record(Outcome.UNKNOWN, 0, 3, 1, 1.0, 2.0)]
    data = b"".join(record.encode() for record in records)

    assert split_records(data + data[:5]) == (records, data[:5])


def test_acks_out_of_order_and_calls_that_hang_are_problems() -> None:
    ledger = Ledger()
    writer = ledger.add_writer(Writer("w0", "s", 0, numbered=True))
    ledger.add(
        [
            Record(Outcome.ACKED, writer, 0, 2, 0, 0),
            Record(Outcome.ACKED, writer, 3, 1, 0, 0),
            Record(Outcome.HUNG, writer, 4, 1, 1.0, 61.0),
        ]
    )

    assert ledger.problems == [
        "w0 on s: event 3 was acked after 1",
        "w0 on s: a call did not return within 60.0 s",
    ]


@pytest.mark.anyio
async def test_only_an_event_sent_after_the_fault_ends_a_wait() -> None:
    ledger = Ledger()
    writer = ledger.add_writer(Writer("w0", "s", 3, numbered=True))
    found = []

    async def wait() -> None:
        found.append(await ledger.first(Outcome.ACKED, [3], since=10.0, limit=5))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        ledger.add(
            [
                Record(Outcome.ACKED, writer, 0, 1, 9.0, 11.0),
                Record(Outcome.RETRIED, writer, 1, 1, 11.0, 11.1),
            ]
        )
        ledger.add([Record(Outcome.ACKED, writer, 1, 1, 11.0, 12.5)])

    assert (found[0].seconds, found[0].missing) == ({3: 2.5}, set())


@pytest.mark.anyio
async def test_waits_end_with_the_run() -> None:
    ledger = Ledger()
    ledger.add_writer(Writer("w0", "s", 0, numbered=True))
    ledger.fail("a writer ended by itself")

    assert (await ledger.first(Outcome.ACKED, [0], since=0.0, limit=60)).missing == {0}


# --- figures and the report --------------------------------------------------------------------


def test_percentiles_are_values_that_occurred() -> None:
    samples = Samples("x", 1.0, [0.1] * 98 + [0.5, 2.0])

    assert (samples.percentile(0.5), samples.percentile(0.99), samples.percentile(1.0)) == (0.1, 0.5, 2.0)
    assert samples.holds
    assert not Samples("x", 0.5, samples.values).holds


def test_an_interrupted_run_reports_its_finished_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=200)
    Report("failover", 7).show_interrupted(console, 9)
    assert capsys.readouterr().out == ""

    Report("failover", 7, rounds=3, violations=["round 2: lost"]).show_interrupted(console, 9)
    assert (
        capsys.readouterr().out
        == "- round 2: lost\ninterrupted after 3 of 9 rounds, seed 7: until then 1 violation\n"
    )


def test_counts_have_the_right_plural() -> None:
    report = Report("failover", 7, rounds=1, violations=["an event is lost"])

    assert (counted(1, "host"), counted(0, "host"), counted(2, "host")) == ("1 host", "0 hosts", "2 hosts")
    assert report.line == "BROKEN 1 round, seed 7: no faults; 0 acked, 0 unknown, 1 violation"


def test_only_a_clean_run_holds_and_a_missed_goal_breaks_it_when_asked_for() -> None:
    report = Report("failover", 7, rounds=3, acked=12)
    report.count_fault("SIGKILL of a host")
    report.samples_of("kill", 1.0).values.append(1.5)

    assert (report.holds, report.line.split()[0]) == (True, "HOLDS")
    assert report.document()["slow"] == ["kill: p99 is 1.500 s, not under 1 s"]

    report.strict = True
    assert (report.holds, report.line.split()[0]) == (False, "BROKEN")

    report.strict = False
    report.violations.append("an event is lost")
    assert not report.holds


def test_takeovers_are_timed_and_moves_are_none() -> None:
    def line(second: float, event: str, kind: str, **fields: int) -> dict[str, object]:
        return {"timestamp": f"2026-01-01T00:00:{second:09.6f}Z", "event": event, "kind": kind, **fields}

    lines = [
        line(1, "command_issued", "OpenContainer", index=0),
        line(1, "command_issued", "CloseContainer", index=1),
        line(1.2, "order_answered", "opened", container=0),
        line(1.3, "command_issued", "OpenContainer", index=1),
        line(1.9, "order_answered", "opened", container=1),
        line(2.0, "command_issued", "OpenContainer", index=1),
        line(2.5, "order_answered", "opened", container=1),
    ]

    found = list(takeovers_in(lines))
    assert [seconds for _, seconds in found] == pytest.approx([0.2, 0.5])
    assert found[1][0] - found[0][0] == pytest.approx(1.0)


def test_growth_beyond_some_slack_is_a_leak() -> None:
    before = {"host-0": Usage("host", 40, 10, 5), "host-1": Usage("host", 30, 8, 5)}

    assert compare_usage(before, {"host-1": Usage("host", 44, 12, 6)}) == []
    assert compare_usage(before, {"host-1": Usage("host", 60, 12, 6)}) == [
        "host-1 has 60 descriptors, 40 at the beginning: they leak"
    ]


# --- writers ------------------------------------------------------------------------------------


def test_each_container_has_a_segment() -> None:
    names = segment_names("chaos", 8)

    assert [container_of(name, 8) for name in names] == list(range(8))


class FailingStore:
    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def append(self, name: str, data: object, **_: object) -> None:
        if self._errors:
            raise self._errors.pop(0)

    async def append_many(self, name: str, events: object, **_: object) -> None:
        await self.append(name, events)


@pytest.mark.parametrize(
    "error, of_numbered, of_plain",
    [
        (tierlog.OutcomeUnknown("lost"), [Outcome.RETRIED], [Outcome.UNKNOWN]),
        (tierlog.Unavailable("starting"), [Outcome.RETRIED], [Outcome.REJECTED]),
        (tierlog.StorageFull("full"), [Outcome.FULL], [Outcome.FULL, Outcome.REJECTED]),
    ],
)
@pytest.mark.anyio
async def test_the_outcome_of_a_failed_call_depends_on_the_writer(
    error: Exception, of_numbered: list[Outcome], of_plain: list[Outcome]
) -> None:
    found: list[Record] = []

    def writer(*, is_numbered: bool) -> EventWriter:
        plan = WriterPlan(0, "w0", "s", is_numbered)
        return EventWriter(plan, FailingStore(error), Random(1), 0.0, found.append)

    await writer(is_numbered=True).send_numbered()
    assert [record.outcome for record in found] == [*of_numbered, Outcome.ACKED]

    found.clear()
    await writer(is_numbered=False).send_plain()
    assert [record.outcome for record in found] == of_plain


def test_a_failed_writer_ends_while_its_parent_still_waits() -> None:
    """Waiting for the parent must not keep the process alive."""
    gone = problem(tierlog.SegmentNotFound("no segment 's'", segment="s"))
    with scripted(lambda received: gone) as server:
        plan = Plan(server.url, "raw", "1/0", 0.001, [WriterPlan(0, "w0", "s", numbered=False)])
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        with subprocess.Popen(
            command_of_writer(plan),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        ) as writer:
            assert writer.stdin is not None
            assert writer.stderr is not None
            try:
                assert writer.wait(20) != 0
            finally:
                writer.kill()
            assert b"no segment 's'" in writer.stderr.read()


@pytest.mark.anyio
async def test_a_service_has_more_time_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0 * (os.cpu_count() or 1), 0.0, 0.0))
    service = Service("http://127.0.0.1:1")
    service.patience = 0.025
    with pytest.raises(RunError, match="not within 0.1 s: .*; if this machine is busy, try again when it is"):
        await service.settled()


@pytest.mark.anyio
async def test_a_service_that_ended_by_itself_is_reported_with_its_last_line(tmp_path: Path) -> None:
    service = OwnService(tmp_path, hosts=1, containers=1, config="no_such_key = 1\n")
    service.patience = 0.1
    with pytest.raises(
        RunError,
        match="none at all; the supervisor has ended with exit status 1, and its last line is: .*no_such_key",
    ):
        async with service.started():
            await anyio.to_thread.run_sync(os.waitid, os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)
            await service.settled()
    assert service.exit_reason()
    service.close()

"""What time does to transactions: the checker lets an owner do it late or never, and notices when it is done
too early."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.lease_expiry import LeaseExpiries
from simulation.linearize import Checker
from simulation.model import staged_names
from simulation.model_calls import Append, Create, Op
from simulation.model_transactions import Abort, Begin, LookUp, Stage
from simulation.view import SegmentView

from support.checker_bench import impossible
from tierlog.storage_backends.base.errors import TransactionEnded, TransactionNotFound
from tierlog.storage_backends.base.transactions import TransactionInfo, TransactionState

LEASE, TOMBSTONE = 10.0, 50.0
P0 = staged_names("f", "t0")[0]
STAGED_X = {"f": SegmentView(), P0: SegmentView(0, b"x")}
NOBODY_KNOWS = TransactionNotFound("unknown", segment="f")


def returned_open(length: int = 0) -> TransactionInfo:
    return TransactionInfo("t0", "f", TransactionState.OPEN, None, LEASE, LEASE, "", None, length)


ABORTED = TransactionInfo(
    "t0", "f", TransactionState.ABORTED, None, LEASE, 0.0, "its lease was over", None, 0
)


class World:
    """A checker with a clock, and owner 1 who began at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.checker = Checker("f")
        self.expiries = LeaseExpiries(self.checker, TOMBSTONE, lambda: self.now)
        self.owners = {1: 0.0}
        self.returns(Create("f"), None)
        self.returns(Begin("f", "t0", None, LEASE), returned_open())

    def at(self, time: float) -> World:
        self.now = time
        return self

    def returns(self, op: Op, answer: Any) -> None:
        op = op.begun(self.now)
        self.expiries.note(op)
        call = self.checker.begin(op, max(self.owners))
        self.pass_time()
        if isinstance(answer, Exception):
            self.checker.refused(call, answer)  # type: ignore[arg-type]
        else:
            self.checker.answered(call, answer)

    def pass_time(self) -> None:
        self.expiries.tell(
            (owner, since) for owner, since in self.owners.items() if owner >= self.checker.bound
        )

    def succeed(self, since: float) -> None:
        self.owners[max(self.owners) + 1] = since
        self.checker.fence(max(self.owners))


@pytest.fixture
def world() -> World:
    return World()


def stage_a_byte(world: World) -> None:
    world.returns(Stage("f", "t0", "p0"), P0)
    world.returns(Append(P0, (b"x",)), 0)


@pytest.mark.parametrize("answer", [returned_open(), ABORTED], ids=["late", "in time"])
def test_a_lease_that_is_over_may_end_the_transaction_or_not_yet(
    world: World, answer: TransactionInfo
) -> None:
    world.at(10.0).returns(LookUp("f", "t0"), answer)


def test_a_lease_that_ends_too_early_is_noticed(world: World) -> None:
    with impossible():
        world.at(9.9).returns(LookUp("f", "t0"), ABORTED)


def test_an_append_makes_the_lease_whole_again(world: World) -> None:
    stage_a_byte(world.at(5.0))

    with impossible():
        world.at(14.9).returns(LookUp("f", "t0"), ABORTED)


def test_a_take_over_makes_the_lease_whole_again(world: World) -> None:
    world.at(6.0).succeed(since=6.0)

    with impossible():
        world.at(15.9).returns(LookUp("f", "t0"), ABORTED)


def test_an_append_without_bytes_keeps_no_lease(world: World) -> None:
    world.at(5.0).returns(Stage("f", "t0", "p0"), P0)
    world.at(9.0).returns(Append(P0, (b"",)), 0)

    world.at(15.0).returns(LookUp("f", "t0"), ABORTED)


def test_an_append_after_the_lease_is_refused_or_applied(world: World) -> None:
    stage_a_byte(world)

    world.at(20.0).returns(Append(P0, (b"y",)), TransactionEnded("over", segment="f", state="aborted"))
    with impossible():
        world.returns(Append(P0, (b"y",)), 1)


def test_what_was_staged_is_gone_with_its_transaction(world: World) -> None:
    stage_a_byte(world)
    world.checker.observe(STAGED_X)

    world.at(10.0).pass_time()
    world.checker.observe({"f": SegmentView()})
    world.returns(LookUp("f", "t0"), ABORTED)


def test_what_was_staged_is_not_gone_before(world: World) -> None:
    stage_a_byte(world)
    world.at(9.0).pass_time()

    with impossible():
        world.checker.observe({"f": SegmentView()})


def test_a_tombstone_is_forgotten_after_its_time_and_the_id_can_begin_and_end_again(world: World) -> None:
    for begin in (0.0, 200.0, 400.0):
        if begin:
            world.at(begin).returns(Begin("f", "t0", None, LEASE), returned_open())
        world.at(begin + 10).returns(LookUp("f", "t0"), ABORTED)
        world.at(begin + 10 + TOMBSTONE).returns(LookUp("f", "t0"), NOBODY_KNOWS)


def test_a_tombstone_that_is_forgotten_too_early_is_noticed(world: World) -> None:
    world.at(3.0).returns(Abort("f", "t0", "its lease was over"), ABORTED)

    with impossible():
        world.at(52.9).returns(LookUp("f", "t0"), NOBODY_KNOWS)


def test_a_begin_in_doubt_may_have_begun_ended_and_been_forgotten(world: World) -> None:
    op = Begin("f", "t1", None, LEASE).begun(0.0)
    world.expiries.note(op)
    world.checker.doubtful(world.checker.begin(op, 1))

    world.at(10.0).returns(Stage("f", "t1", "p0"), TransactionEnded("over", segment="f", state="aborted"))
    world.at(60.0).returns(LookUp("f", "t1"), NOBODY_KNOWS)


def test_many_leases_that_are_over_are_no_harder_than_one(world: World) -> None:
    """None of them is given its place before somebody asks."""
    targets = [f"f#{number}" for number in range(12)]
    for target in targets:
        world.returns(Create(target), None)
        world.returns(
            Begin(target, "t0", None, LEASE),
            TransactionInfo("t0", target, TransactionState.OPEN, None, LEASE, LEASE, "", None, 0),
        )
    world.at(500.0).pass_time()
    world.checker.observe({name: SegmentView() for name in ("f", *targets)})
    world.returns(LookUp("f#3", "t0"), TransactionNotFound("unknown", segment="f#3"))

    assert len(world.checker.states) == 1

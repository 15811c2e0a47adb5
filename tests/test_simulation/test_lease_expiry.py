"""What the checker believes that owners do to transactions by themselves."""

from __future__ import annotations

import pytest
from simulation.lease_expiry import LeaseExpiries
from simulation.linearize import Checker, Violation
from simulation.model_calls import Create
from simulation.model_transactions import Begin, LookUp

from tierlog import TransactionInfo, TransactionState, TransactionToken

LEASE, TOMBSTONE = 5.0, 20.0
FIRST, SECOND = TransactionToken("q1", 2), TransactionToken("q0", 0)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.checker = Checker("f")
        self.expiries = LeaseExpiries(self.checker, TOMBSTONE, lambda: self.now)
        create = self.checker.begin(Create("f"))
        self.checker.answered(create, None)

    def begin(self, token: TransactionToken) -> None:
        """In doubt."""
        op = Begin("f", "t", token, LEASE).begun(self.now)
        self.expiries.note(op)
        self.checker.doubtful(self.checker.begin(op))

    def look_up(self, token: TransactionToken, state: TransactionState, reason: str) -> None:
        call = self.checker.begin(LookUp("f", "t"))
        self.expiries.tell([(0, 0.0)])
        is_open = state is TransactionState.OPEN
        info = TransactionInfo(
            "t", "f", state, token, LEASE, LEASE if is_open else TOMBSTONE, reason, None, 0
        )
        self.checker.answered(call, info)


def begun_again() -> World:
    """At 30 s: the first one expired and was forgotten, and a call in doubt may have begun a second one."""
    world = World()
    world.begin(FIRST)
    world.look_up(FIRST, TransactionState.OPEN, "")
    for world.now in (10.0, 30.0):
        world.expiries.tell([(0, 0.0)])
    world.begin(SECOND)
    return world


def test_an_id_that_was_begun_again_by_a_call_in_doubt_may_expire_again() -> None:
    """Nobody asked in between: the first one expired and was forgotten, and so did the second one expire."""
    world = begun_again()
    world.now = 40.0
    world.look_up(SECOND, TransactionState.ABORTED, "its lease expired")


def test_no_second_one_may_expire_before_its_lease_is_over() -> None:
    world = begun_again()
    world.now = 34.0
    with pytest.raises(Violation):
        world.look_up(SECOND, TransactionState.ABORTED, "its lease expired")

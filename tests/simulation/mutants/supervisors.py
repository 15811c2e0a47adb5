"""Planted bugs of leases and of the supervisor's term (docs/protocols/coordination.md, supervision.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from tierlog.actors.host.link import Link
from tierlog.actors.supervisor import term
from tierlog.actors.supervisor.control.messages import Close, Drain, Open
from tierlog.actors.supervisor.term import Term
from tierlog.journal.coordination.contract import RECORD_BYTES_MAX, Record
from tierlog.journal.coordination.lease_record import LeaseRecord
from tierlog.journal.coordination.objects import Moment, ObjectCoordination
from tierlog.journal.log.s3_calls import Put, RepeatedCalls
from tierlog.storage_backends.base.checksum import Buffer

from ..supervised import FIRST_SUPERVISED
from .planting import Planter, mutant

_planted = partial(mutant, worlds_from=FIRST_SUPERVISED)


@_planted("D1")
def own_record_is_not_recognised(plant: Planter) -> None:
    """Whose answer was lost waits for its own lease to end."""

    async def put(
        original: Any,
        self: RepeatedCalls,
        key: str,
        data: Sequence[Buffer],
        *,
        version: str = "",
        proof: int = 0,
    ) -> Put:
        if proof != RECORD_BYTES_MAX:
            return await original(self, key, data, version=version)  # type: ignore[no-any-return]
        made = await self._repeat(lambda: self._objects.put(key, data, version=version))
        return Put(made) if made else Put("", await self.get(key, proof))

    plant(RepeatedCalls.put, put)


@_planted("D1")
def term_names_no_owner(plant: Planter) -> None:
    """Two that start at once take each other's record for their own, and have the same term."""

    async def raise_term(original: Any, coordination: Any, log_id: bytes, owner: bytes) -> int:
        return await original(coordination, log_id, bytes(16))  # type: ignore[no-any-return]

    plant(term._raise_term, raise_term)


@_planted("D3")
def observer_waits_for_one_duration_only(plant: Planter) -> None:
    """Whose clock is fast takes a lease while its holder, whose clock is slow, still has it."""

    def check(original: Any, self: ObjectCoordination, name: str, found: Record, lease: LeaseRecord) -> None:
        original(self, name, found, attrs.evolve(lease, duration_ms=lease.duration_ms * 4 // 5))

    plant(ObjectCoordination._check_ended, check)


@_planted("D4")
def wall_clock_is_not_asked(plant: Planter) -> None:
    """A machine that was suspended believes in a lease that another has taken meanwhile."""
    plant(Moment.elapsed, lambda original, self, now: now.monotonic - self.monotonic)


@_planted("D4")
def monotonic_clock_is_not_asked(plant: Planter) -> None:
    """A holder whose wall clock is put back keeps its lease for longer."""
    plant(Moment.elapsed, lambda original, self, now: now.wall - self.wall)


@_planted("D4")
def duration_counts_from_the_answer(plant: Planter) -> None:
    """A holder whose put was answered late believes in its lease for longer than observers do."""

    async def take(original: Any, self: ObjectCoordination, *arguments: Any) -> Any:
        lease = await original(self, *arguments)
        lease._begun = self.now()
        return lease

    plant(ObjectCoordination.take_lease, take)


@_planted("V1")
def host_obeys_a_superseded_supervisor(plant: Planter) -> None:
    """An order that was late opens a container on a host that knows a later supervisor."""

    def handle(original: Any, self: Link, message: object, obey: Callable[[Any], None]) -> None:
        if isinstance(message, Open | Close | Drain):
            obey(message)
        else:
            original(self, message, obey)

    plant(Link._handle, handle)


@_planted("V1")
def opening_does_not_wait_for_the_lease(plant: Planter) -> None:
    """Who stood still orders an opening, which fences its successor's owner."""
    plant(Term.is_held, lambda original, self: True)


@_planted("V1")
def higher_term_ends_nobody(plant: Planter) -> None:
    """Who is started to take over waits for ever."""

    async def check(original: Any, self: Term) -> None:
        await self._lease.renew()

    plant(Term.check, check)

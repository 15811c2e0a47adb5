"""One supervisor at a time: a lease that its death ends, and a term that its hosts remember.

The lease keeps a second supervisor from starting while the first lives, even frozen: in a data folder it is
the lock file in ``supervisor/``. The term covers what a lease cannot see, such as a folder copied under a
running supervisor: each start takes a higher term, hosts obey the highest they have seen, and a supervisor
that learns of a higher one ends (rule V1). The term's record has the format of a log's register. Crash: the
system frees the lock; the record is as before or as after (rule D6).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs

from ...journal.coordination.contract import SUPERVISOR, TERM, Coordination, Lease, LeaseHeld, Record
from ...journal.registers.local import REGISTER_BYTES, decode_image, encode_epoch
from ...storage_backends.base.errors import DataCorruption, NotOwner, Unavailable
from ...storage_backends.base.ids import EPOCH_MAX
from ..folder.identity import StoreIdentity

_LEASE_SECONDS = 10.0
"""Several times as long as the interval at which a supervisor checks its term."""


@attrs.frozen
class Term:
    """This supervisor's term."""

    number: int
    _coordination: Coordination
    _log_id: bytes
    _lease: Lease

    async def check(self) -> None:
        """Renew the lease. Raises ``NotOwner`` if a later supervisor has started."""
        record = await self._coordination.load(TERM)
        newest = 0 if record is None else _number(self._coordination, record, self._log_id)
        if newest > self.number:
            raise superseded(self.number, newest)
        await self._lease.renew()


def superseded(own: int, newer: int) -> NotOwner:
    return NotOwner(
        f"another supervisor took over (its term is {newer}, this one's {own}): this one ends, the hosts "
        f"obey the newer one"
    )


@asynccontextmanager
async def claim_term(
    coordination: Coordination, identity: StoreIdentity, owner: bytes
) -> AsyncIterator[Term]:
    """Become the store's supervisor. ``owner``: 16 bytes that no other start has. Raises ``Unavailable`` if
    another process is."""
    try:
        lease = await coordination.take_lease(SUPERVISOR, f"process {os.getpid()}", _LEASE_SECONDS)
    except LeaseHeld as error:
        raise Unavailable(f"{error.holder} already supervises this store: stop it first") from error
    try:
        # V1: durable before the first order, so that no later supervisor takes the same term.
        number = await _raise_term(coordination, identity.log_id, owner)
        yield Term(number, coordination, identity.log_id, lease)
    finally:
        # A cancelled stop must free the lease too, or the next supervisor in this process is refused.
        with anyio.CancelScope(shield=True):
            await lease.release()


async def _raise_term(coordination: Coordination, log_id: bytes, owner: bytes) -> int:
    while True:
        record = await coordination.load(TERM)
        number = 1 + (0 if record is None else _number(coordination, record, log_id))
        if number > EPOCH_MAX:
            raise DataCorruption(f"the term {number - 1} has no successor", file=coordination.place(TERM))
        # D1: with the owner, or two that start at once would both have set the same bytes.
        data = encode_epoch(log_id, number, owner).ljust(REGISTER_BYTES, b"\0")
        if await coordination.compare_and_set(TERM, data, record.version if record else ""):
            return number


def _number(coordination: Coordination, record: Record, log_id: bytes) -> int:
    return decode_image(record.data, log_id, coordination.place(TERM)).epoch

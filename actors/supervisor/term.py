"""One supervisor at a time: a lease that its death ends, and a term that its hosts remember.

The lease keeps a second supervisor from starting while the first lives. In a data folder it is the lock file
in ``supervisor/``, which also a frozen one has; in a bucket it is a record, which its holder renews. The term
covers what a lease cannot see, such as a folder copied under a running supervisor: each start takes a higher
term, hosts obey the highest they have seen, and a supervisor that learns of a higher one ends (rule V1). The
term's record has the format of a log's register. Crash: the system frees the lock, and a lease in a bucket
ends without being renewed (rule D3); the record is as before or as after (rules D1 and D6).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio
import attrs

from ...journal.coordination.contract import (
    IDENTITY,
    SUPERVISOR,
    TERM,
    Coordination,
    Lease,
    LeaseHeld,
    Record,
)
from ...journal.registers.local import REGISTER_BYTES, OtherLog, decode_image, encode_epoch
from ...storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StoreMismatch,
    Unavailable,
    Unsupported,
)
from ...storage_backends.base.ids import EPOCH_MAX
from ...storage_backends.base.values import Value
from ..folder.identity import StoreIdentity, decode
from ..kernel.task_groups import body_group
from ..telemetry.logging import get_logger

_log = get_logger("supervisor")
_PATIENCE = 1.5
"""How many durations a lease that is not renewed is waited for. It ends after 1.25 of them (rule D3)."""
_ENDED = 1.25
"""How many durations a lease that is not renewed counts as held (rule D3)."""
_LOOKS = 8
"""How often a lease that is waited for is looked at within its duration: a request each time."""
_AWAY = (Unavailable, OutcomeUnknown, StorageFull)
"""A bucket that answers later, or takes puts later."""
_RELEASE_SECONDS = 5.0
"""A lease that could not be released by then ends by itself."""


class Predecessor(NamedTuple):
    """The supervisor before, as the record ``control`` shows it; the defaults if there is none."""

    term: int = 0
    hosts: tuple[str, ...] = ()
    """Those that had joined it."""


OnWait = Callable[[str, str], None]
"""Called with the holder of a lease that is waited for, and with what will end the wait; again if another one
has it."""
FindPredecessor = Callable[[], Awaitable[Predecessor]]
Confirm = Callable[[], Awaitable[None]]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TermOptions(Value):
    """Times in seconds. The defaults are for a lease that ends with its process, at once."""

    lease: float = 10.0
    interval: float = 1.0
    """Between two checks, each of which renews the lease."""
    patience: float = 0.0
    """How long a start waits at least for another's lease, whose end may show only by watching it (rule
    D3). One that stands by waits for ever."""
    takes_over: bool = False
    """Have a supervisor that lives end, in place of being refused."""
    awaits_renewed: bool = True
    """Wait also for a lease that its holder is seen to renew: it may be about to end."""
    on_wait: OnWait | None = None

    @classmethod
    def watched(cls, lease: float, *, takes_over: bool, stands_by: bool = False) -> TermOptions:
        """For a lease that ends if it is not renewed."""
        patience = math.inf if stands_by else _PATIENCE * lease
        # Two renewals may fail.
        return cls(lease=lease, interval=lease / 3, patience=patience, takes_over=takes_over)


@attrs.frozen
class Term:
    """This supervisor's term."""

    number: int
    interval: float
    """Seconds between two checks."""
    _coordination: Coordination
    _log_id: bytes
    _owner: bytes
    _lease: Lease
    awaited: tuple[str, ...] = ()
    """The hosts that had joined the supervisor before."""
    _confirm: Confirm | None = None

    def is_held(self) -> bool:
        """Whether no later supervisor can have started since the last check (rule D4)."""
        return self._lease.is_held()

    async def check(self) -> None:
        """Renew the lease. Raises ``NotOwner`` if a later supervisor has started."""
        record = await self._coordination.load(TERM)
        newest = await _number(self._coordination, record, self._log_id, self._confirm)
        if newest is not None and newest > self.number:
            raise superseded(self.number, newest)
        try:
            await self._lease.renew(self._confirm and self._confirm_removed)
        except NotOwner as error:
            # Another supervisor is about to raise the term, or the record was copied here, or put back.
            raise NotOwner(
                f"another supervisor took over, or the record of the lease was exchanged ({error}): this one "
                f"ends, and the hosts wait for the next one, which you start if none stands by"
            ) from error
        if record is not None and newest is None:
            data = _encoded(self._log_id, self.number, self._owner)
            await self._coordination.compare_and_set(TERM, data, record.version)

    async def confirm(self) -> None:
        """Raises ``StoreMismatch`` if the store is not there any more, and ``Unavailable`` while a later
        supervisor may have started."""
        if self._confirm is not None:
            await self._confirm()
        if not self.is_held():
            raise Unavailable("the supervisor's lease may have ended")

    async def _confirm_removed(self) -> None:
        assert self._confirm is not None
        await self._confirm()
        _log.warning("lease_put_again", reason="its record was removed, or is damaged")


def superseded(own: int, newer: int) -> NotOwner:
    return NotOwner(
        f"another supervisor took over (its term is {newer}, this one's {own}): this one ends, the hosts "
        f"obey the newer one"
    )


async def confirm_identity(coordination: Coordination, identity: StoreIdentity) -> None:
    """Of a store that all machines reach: raises ``StoreMismatch`` if it is not there any more."""
    record, place = await coordination.load(IDENTITY), coordination.place(IDENTITY)
    if record is None or decode(record.data, place) != identity:
        what = "was removed" if record is None else "is that of another store now"
        raise StoreMismatch(
            f"{place}, the identity of store {identity.store_id.hex()}, {what} since this process was "
            f"started: put it back, with everything else of the store"
        )


@asynccontextmanager
async def claim_term(
    coordination: Coordination,
    identity: StoreIdentity,
    owner: bytes,
    options: TermOptions | None = None,
    find_predecessor: FindPredecessor | None = None,
    confirm: Confirm | None = None,
) -> AsyncIterator[Term]:
    """Become the store's supervisor. ``owner``: 16 bytes that no other start has. ``confirm``, called before
    a term is taken and before a lost record is put again, raises if the store is not there any more. Raises
    ``Unavailable`` if another process is."""
    options, is_active = options or TermOptions(), False
    while True:
        try:
            async with _claimed(
                coordination, identity.log_id, owner, options, find_predecessor or _find_none, confirm
            ) as term:
                is_active = True
                yield term
                return
        except _AWAY as error:
            # A bucket that is away ends no standby, which nobody might start again. It begins again, because
            # the lease may have ended meanwhile.
            if is_active or not math.isinf(options.patience):
                raise
            _log.warning("term_not_claimed", reason=str(error))
        await anyio.sleep(options.lease / _LOOKS)


@asynccontextmanager
async def _claimed(
    coordination: Coordination,
    log_id: bytes,
    owner: bytes,
    options: TermOptions,
    find_predecessor: FindPredecessor,
    confirm: Confirm | None,
) -> AsyncIterator[Term]:

    async def raise_term() -> tuple[int, Predecessor]:
        predecessor = await find_predecessor()
        return await _raise_term(coordination, log_id, owner, predecessor.term, confirm), predecessor

    lease = await _take_lease(coordination, options, raise_term)
    try:
        # V1: it may have stood by for weeks.
        if confirm is not None:
            await confirm()
        # V1: durable before the first order, so that no later supervisor takes the same term.
        number, predecessor = await raise_term()
        yield Term(number, options.interval, coordination, log_id, owner, lease, predecessor.hosts, confirm)
    finally:
        # A cancelled stop must free the lease too, or the next supervisor in this process is refused.
        with anyio.move_on_after(_RELEASE_SECONDS, shield=True) as limit:
            try:
                await lease.release()
            except (*_AWAY, Unsupported) as error:
                _log.warning("lease_not_released", reason=str(error))
        if limit.cancelled_caught:
            _log.warning("lease_not_released", reason=f"no answer within {_RELEASE_SECONDS:g} s")


@asynccontextmanager
async def nobody_serves(
    coordination: Coordination,
    identity: StoreIdentity,
    owner: bytes,
    lease: float,
    on_wait: OnWait | None = None,
) -> AsyncIterator[None]:
    """No supervisor is active while the body runs: this process has its lease, for a store that other
    machines reach. ``on_wait`` as in ``TermOptions``. Raises ``Unavailable`` if a supervisor has it, as soon
    as it is seen to renew it."""
    options = TermOptions(lease=lease, interval=lease / 3, awaits_renewed=False, on_wait=on_wait)
    confirm = partial(confirm_identity, coordination, identity)
    async with (
        claim_term(coordination, identity, owner, options, confirm=confirm) as term,
        body_group() as tasks,
    ):
        tasks.start_soon(_renew, term)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _renew(term: Term) -> None:
    while True:
        await anyio.sleep(term.interval)
        try:
            await term.check()
        except (*_AWAY, NotOwner) as error:
            # The logs decide who owns the store (rule D5): a supervisor that follows fences this process.
            _log.warning("lease_not_renewed", reason=str(error))


async def _find_none() -> Predecessor:
    return Predecessor()


async def _take_lease(
    coordination: Coordination, options: TermOptions, raise_term: Callable[[], Awaitable[object]]
) -> Lease:
    holder = f"process {os.getpid()} of {socket.gethostname()}"
    begun = anyio.current_time()
    awaited: str | None = None
    while True:
        try:
            return await coordination.take_lease(SUPERVISOR, holder, options.lease)
        except LeaseHeld as error:
            # The other one may have been started with a longer lease.
            patience = max(options.patience, _PATIENCE * error.duration)
            is_alive = error.is_renewed and not options.awaits_renewed
            if is_alive or anyio.current_time() >= begun + patience:
                raise _refused(error, options) from error
            if error.holder != awaited:
                is_first, awaited = awaited is None, error.holder
                left = begun + patience - anyio.current_time()
                if math.isinf(patience):
                    _log.info("standing_by", holder=error.holder)
                else:
                    _log.info("lease_awaited", holder=error.holder, seconds=round(left, 3))
                if options.on_wait is not None:
                    options.on_wait(error.holder, _prospect(options, error, left))
                if options.takes_over and is_first:
                    # V1: the other one sees it at its next check, ends, and releases the lease.
                    await raise_term()
        await anyio.sleep(options.lease / _LOOKS)


def _prospect(options: TermOptions, error: LeaseHeld, left: float) -> str:
    """What will end the wait, which lasts ``left`` seconds at most."""
    duration, look = error.duration or options.lease, options.lease / _LOOKS
    gone = f"if that process is gone, its lease ends within {math.ceil(_ENDED * duration + look)} s"
    if options.takes_over:
        # Its next check, and the next look here.
        seconds = math.ceil(duration / 3 + look)
        return f"at its next check that process finds this one, and ends, within {seconds} s; {gone}"
    if not options.awaits_renewed:
        return f"{gone}; if it renews the lease, this one is refused"
    if math.isinf(left):
        return gone
    refused = f"if it still has the lease after {math.ceil(left)} s, this one is refused"
    return f"{gone}, and this one follows; {refused}"


def _refused(error: LeaseHeld, options: TermOptions) -> Unavailable:
    # A lock tells of a living process, which an operator of this machine can stop.
    can_take_over = options.patience and not options.takes_over
    remedy = ", or start this one with --take-over" if can_take_over else ""
    return Unavailable(f"{error.holder} already supervises this store: stop it first{remedy}")


async def _raise_term(
    coordination: Coordination, log_id: bytes, owner: bytes, served: int, confirm: Confirm | None
) -> int:
    """``served``: the newest term that is known to have been taken."""
    while True:
        record = await coordination.load(TERM)
        newest = await _number(coordination, record, log_id, confirm) or 0
        if newest < served:
            _log.warning("term_was_put_back", place=coordination.place(TERM), term=newest, served=served)
        # V1: the record alone could lead to a term that was there before.
        number = 1 + max(newest, served)
        if number > EPOCH_MAX:
            raise DataCorruption(f"the term {number - 1} has no successor", file=coordination.place(TERM))
        # D1: with the owner, or two that start at once would both have set the same bytes.
        data = _encoded(log_id, number, owner)
        if await coordination.compare_and_set(TERM, data, record.version if record else ""):
            return number


def _encoded(log_id: bytes, number: int, owner: bytes) -> bytes:
    return encode_epoch(log_id, number, owner).ljust(REGISTER_BYTES, b"\0")


async def _number(
    coordination: Coordination, record: Record | None, log_id: bytes, confirm: Confirm | None
) -> int | None:
    """The term in the record; None if there is none, or it is damaged or another store's."""
    if record is None:
        return None
    try:
        return decode_image(record.data, log_id, coordination.place(TERM)).epoch
    except DataCorruption as error:
        lost = str(error)
    except OtherLog as error:
        # V1: that store may be here, and its supervisor: its identity is put before its term.
        if confirm is None:
            raise
        await confirm()
        lost = str(error)
    # V1: what is left of it would keep every supervisor out, and the lease shows who is active.
    _log.warning("term_lost", reason=lost)
    return None

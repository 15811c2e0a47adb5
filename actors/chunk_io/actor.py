"""The storage-backend actor: the only holder of one ``ChunkStorage``. Everybody else has a ``StorageClient``,
which is a ``ChunkStorage`` itself.

Rules: S3 and A12 (the only layer that retries, and only what is safe), A6, A13 and W7 (a call past its
deadline is answered but never abandoned: it keeps its slot until the backend returns, and counts as late),
A14 (reads and writes apart), A15 and C6 (the quota; the store's own chunks and deletes go by the internal
lane and pass it), A16 and S7 (the breaker).

Stop order (rule A11): refuse new calls, let queued and running ones finish within ``drain_deadline``, answer
the rest, cancel what still runs, close the backend. Cancelling ``run`` skips the draining, not the answers.
Crash: nothing here is durable; the outcome of a mutation that was running is unknown.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from msgspec.structs import replace

from ...storage_backends.base.chunk_storage import Capabilities, ChunkStorage
from ...storage_backends.base.errors import (
    ClosedError,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.state_table import StateTable
from ..kernel.exits import CLEAN_EXIT, ActorExit, ExitKind, exit_of
from ..kernel.task_groups import finish_within
from ..telemetry.logging import get_logger
from .breaker import Breaker, BreakerState
from .calls import LIST, USED_SPACE, ChunkCall, PendingCall, PoolKind
from .health import LastFailure, StorageHealthStatistics, health_of
from .options import StorageOptions
from .pool import Pool
from .quota import Quota
from .retries import Attempts

if TYPE_CHECKING:
    from .statistics import StorageActorStatistics

_log = get_logger("storage")


class StorageState(enum.Enum):
    NEW = "new"
    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"
    STOPPED = "stopped"


class StorageEvent(enum.Enum):
    START = "start"
    OPENED = "opened"
    STOP = "stop"
    END = "end"


STATES: StateTable[StorageState, StorageEvent] = StateTable(
    {
        (StorageState.NEW, StorageEvent.START): StorageState.STARTING,
        (StorageState.STARTING, StorageEvent.OPENED): StorageState.ACTIVE,
        (StorageState.STARTING, StorageEvent.END): StorageState.STOPPED,
        (StorageState.ACTIVE, StorageEvent.STOP): StorageState.DRAINING,
        (StorageState.ACTIVE, StorageEvent.END): StorageState.STOPPED,
        (StorageState.DRAINING, StorageEvent.END): StorageState.STOPPED,
    }
)


def _unfinished(call: ChunkCall[Any], why: str) -> TierlogError:
    """The answer to a call that was begun and whose end its caller will not see."""
    if call.verb.mutates:
        return OutcomeUnknown(f"{call.name}: {why}; it may still take effect")
    return Unavailable(f"{call.name}: {why}; try again later")


class StorageActor:
    """See the module's head. Runs once; make a new one to start again."""

    def __init__(self, chunks: ChunkStorage, options: StorageOptions, random: Random) -> None:
        self._chunks = chunks
        self.options = options
        self._pools = {
            PoolKind.READ: Pool(options.reads_max, options.queue),
            PoolKind.WRITE: Pool(options.writes_max, options.queue),
        }
        self._attempts = Attempts(chunks, options.attempts, options.backoff, random, self._observe)
        self._quota = Quota(options.safe_size_bytes)
        self._breaker = Breaker(options.breaker_failures, options.breaker_interval)
        self._last_failure = LastFailure()
        self._state = StorageState.NEW
        self._ended: ActorExit | None = None
        self._started = anyio.Event()
        """Set once the actor is active, or has ended."""
        self._was_active = False
        # A dict and not a set: at the end it is iterated in the order of arrival.
        self._running: dict[PendingCall[Any], None] = {}
        self._failed_at_exit = 0
        self._notified: dict[Callable[[], None], None] = {}
        self._stop = anyio.Event()

    def __repr__(self) -> str:
        reads, writes = self._pools.values()
        return (
            f"<StorageActor {self._state.value}, reads {reads!r}, writes {writes!r}, "
            f"{self._breaker!r}, {self._quota!r}>"
        )

    @property
    def state(self) -> StorageState:
        return self._state

    @property
    def capabilities(self) -> Capabilities:
        return self._chunks.capabilities

    @property
    def health(self) -> StorageHealthStatistics:
        """The health of long-term storage now."""
        return health_of(
            self._last_failure,
            over_quota=self._quota.reason,
            failures=self._breaker.failures,
            is_open=self._breaker.state is not BreakerState.CLOSED,
            late=sum(pool.late for pool in self._pools.values()),
        )

    # --- life ------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> ActorExit:
        """Open the backend, report started, serve until ``stop``, and return why it ended. An error of
        opening is raised."""
        self._step(StorageEvent.START)
        reason: BaseException = ClosedError("the storage actor was stopped")
        ended = CLEAN_EXIT
        try:
            # Not retried: an opening that fails is raised, and its caller decides whether to try again.
            await self._chunks.open()
            self._step(StorageEvent.OPENED)
            self._was_active = True
            self._started.set()
            task_status.started()
            await self._serve_until_stopped()
        except anyio.get_cancelled_exc_class():
            ended = ActorExit(ExitKind.CLEAN, detail="cancelled")
            raise
        except BaseException as error:
            reason, ended = error, exit_of(error)
            raise
        finally:
            # Callers do not wait for the backend to close, which may take until its deadline.
            self._answer_everybody(reason)
            self._step(StorageEvent.END)
            self._ended = ended
            self._started.set()
            if not await finish_within(self.options.drain_deadline, self._chunks.close):
                ended = replace(ended, detail="closing the backend did not finish within its deadline")
        return ended

    def stop(self) -> None:
        """Ask ``run`` to end; new calls are refused from now on. Idempotent."""
        if self._state is StorageState.ACTIVE:
            self._step(StorageEvent.STOP)
        self._stop.set()

    async def wait_active(self) -> None:
        """Wait until calls are served.

        Raises ``ClosedError`` if the actor was stopped before this call, or ends before it serves. If it was
        started and stopped at once, this returns, and the next call is refused.
        """
        if self._state in {StorageState.NEW, StorageState.STARTING}:
            await self._started.wait()
            if self._was_active:
                return

        if self._state is not StorageState.ACTIVE:
            reason = "it was stopped" if self._ended is None else str(self._ended)
            raise ClosedError(f"the storage actor has ended: {reason}")

    def _step(self, event: StorageEvent) -> None:
        self._state = STATES.next(self._state, event)

    async def _serve_until_stopped(self) -> None:
        # Two groups: at a stop the loops end first, so that nothing is begun while the calls finish.
        async with anyio.create_task_group() as calls:
            async with anyio.create_task_group() as loops:
                for pool in self._pools.values():
                    loops.start_soon(self._dispatch, pool, calls)
                # Without a limit nobody needs the measurement, which lists everything that the storage holds.
                if self._quota.is_limited:
                    loops.start_soon(self._measure_space)
                loops.start_soon(self._sweep_at_intervals)
                await self._stop.wait()
                with anyio.move_on_after(self.options.drain_deadline):
                    for pool in self._pools.values():
                        await pool.wait_idle()
                # A11: from here on nothing is begun. What still runs is answered, then cancelled.
                loops.cancel_scope.cancel()

            self._answer_everybody(ClosedError("the storage actor was stopped"))
            calls.cancel_scope.cancel()

    def _answer_everybody(self, reason: BaseException) -> None:
        """Fail all calls: what was queued did not happen, what is running may still take effect."""
        refusal = (
            reason
            if isinstance(reason, TierlogError)
            else Unavailable(f"the storage actor ended: {reason!r}; nothing was done")
        )
        for pool in self._pools.values():
            for pending in pool.mailbox.close(refusal):
                pending.fail(refusal)
        # Before the tasks are cancelled: a caller must not wait for a backend that ignores its cancellation.
        for pending in self._running:
            self._failed_at_exit += pending.fail(_unfinished(pending.call, "the storage actor ended"))

    # --- called by clients -----------------------------------------------------------------------

    def accept(self, call: ChunkCall[Any]) -> Pool:
        """The pool whose mailbox takes ``call``. Raises ``ClosedError``, ``Unavailable`` or ``StorageFull``
        where no queueing can help."""
        if self._state is not StorageState.ACTIVE:
            self._refuse()

        # Before the mailbox (C6): a refusal must not wait behind the calls that fill the storage, and needs
        # no room in it.
        if call.verb.grows:
            self._quota.check(call.name)
        return self._pools[call.verb.pool]

    def _refuse(self) -> None:
        if self._state in {StorageState.NEW, StorageState.STARTING}:
            raise Unavailable("the storage actor is starting; try again later")
        raise ClosedError(f"the storage actor is {self._state.value}")

    def admit(self, name: str) -> None:
        """Check before naming and tracking a chunk, or appending to one (rule S7). Raises ``Unavailable``
        while the breaker is open, ``StorageFull`` above the quota.

        ``name`` is the chunk's, or the prefix that it will have. While the breaker is open, one caller per
        interval passes as the probe.
        """
        if self._state is not StorageState.ACTIVE:
            self._refuse()

        self._quota.check(name)
        now = anyio.current_time()
        # Last: it may make this caller the probe, and a probe that the quota then refuses would hold up the
        # next one for an interval.
        if not self._breaker.admit(now):
            raise Unavailable(
                f"long-term storage failed {self._breaker.failures} times in a row; next try in "
                f"{self._breaker.retry_in(now):.1f} s"
            )

    def retry_in(self) -> float:
        """Seconds until the breaker lets a change pass; 0.0 if it does now (rule S7)."""
        return self._breaker.retry_in(anyio.current_time())

    @contextmanager
    def notifying(self, notify: Callable[[], None]) -> Iterator[None]:
        """Inside the body ``notify()`` is called when the breaker closes: who waits for the next probe need
        not wait any longer (rule S7)."""
        self._notified[notify] = None
        try:
            yield
        finally:
            del self._notified[notify]

    def expire(self, pending: PendingCall[Any]) -> None:
        """Answer a call whose deadline has passed, unless it was answered just now. If it is running it goes
        on, as late."""
        call = pending.call
        if pending.done:
            return

        if not pending.is_started:
            pending.fail(
                Unavailable(f"{call.name}: still queued at its deadline; nothing was done, try again later")
            )
            return

        self._pools[call.verb.pool].became_late(pending)
        # Now and not when it returns, which it may never do: a hanging storage has to open the breaker too.
        self._observe(call, TimeoutError(f"{call.name}: no answer at its deadline"))
        pending.fail(_unfinished(call, "no answer at its deadline"))

    # --- calls -----------------------------------------------------------------------------------

    async def _dispatch(self, pool: Pool, calls: anyio.abc.TaskGroup) -> None:
        while True:
            for pending in await pool.take():
                self._running[pending] = None
                calls.start_soon(self._serve, pool, pending)

    async def _serve(self, pool: Pool, pending: PendingCall[Any]) -> None:
        """Perform one call and answer it. Only a cancellation, or what is meant for the process, leaves
        here."""
        call = pending.call
        try:
            # A call that was answered at its deadline has no waiter and is not repeated (A12).
            result = await self._attempts.perform(call, lambda: not pending.done)
        except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is
            pool.failed += 1
            pending.fail(error)
        except BaseException:
            pending.fail(_unfinished(call, "cancelled while it was running"))
            raise
        else:
            # A late call counts too: its bytes are in the storage, although its caller has another answer.
            moved = call.moved(result)
            pool.done += 1
            pool.bytes += moved
            if call.verb.grows:
                self._quota.add(moved)
            pending.resolve(result)
        finally:
            # In the same step, also for a late call: only now is the backend free for another one (A13).
            del self._running[pending]
            pool.finished(pending)

    def _observe(self, call: ChunkCall[Any], error: BaseException | None) -> None:
        """Note how an attempt ended (rule A16). The breaker guards the creation of chunks, so reads do not
        count: those that work do not show that writes do. A failed list counts: a flush that cannot list the
        claims writes nothing (rule W8)."""
        is_failure = isinstance(error, (Unavailable, OutcomeUnknown, TimeoutError))
        counts = call.verb.mutates or (call.verb is LIST and is_failure)
        if not counts or isinstance(error, ClosedError):
            return

        self._last_failure.note(error, grows=call.verb.grows, is_failure=is_failure)
        # It is an answer, but no proof that writes work, so the breaker stays as it is. Health reports it
        # (A16).
        if isinstance(error, StorageFull):
            return

        if is_failure:
            self._breaker.failure(anyio.current_time())
        elif self._breaker.success(anyio.current_time()):
            for notify in tuple(self._notified):
                notify()

    async def _measure_space(self) -> None:
        """Measure at each interval. A measurement that fails keeps the last one."""
        while True:
            try:
                self._quota.measure(await self._attempts.perform(ChunkCall(USED_SPACE, ""), lambda: True))
            except (Unavailable, OutcomeUnknown):
                self._quota.missed()
            # Whether it failed or not: a storage that is down is asked no more often than one that works.
            await anyio.sleep(self.options.safe_size_interval)

    async def _sweep_at_intervals(self) -> None:
        """Sweep again in a process that lives long; opening the backend did it first. A sweep that fails
        waits for the next interval."""
        while True:
            await anyio.sleep(self.options.sweep_interval)
            try:
                await self._chunks.sweep()
            except TierlogError as error:
                _log.warning("storage_sweep_failed", error=str(error))

    def statistics(self) -> StorageActorStatistics:
        from .statistics import StorageActorStatistics

        return StorageActorStatistics(
            state=self._state.value,
            reads=self._pools[PoolKind.READ].statistics(),
            writes=self._pools[PoolKind.WRITE].statistics(),
            attempts=self._attempts.statistics(),
            quota=self._quota.statistics(),
            breaker=self._breaker.statistics(),
            health=self.health,
            backend=self._chunks.statistics(),
            failed_at_exit=self._failed_at_exit,
        )

"""The storage-backend actor: the only holder of one ``ChunkStorage``.

Owns: the backend's open and close, the two queues and their limits, retries (through ``attempts.py``), the
quota, the breaker, and the answers to everybody who asked. Does not own: chunk names, nor what a chunk is
for. Others see a ``StorageClient``, which is a ``ChunkStorage`` itself.

Rules upheld: A12, S3 (the only layer that retries, and only what is safe to), A13, W7
(an operation past its deadline is answered, never abandoned: it keeps its place until the backend returns,
and is counted as late), A14, A15 and C6 (the store's own chunks and deletes go by the internal lane and pass
the quota), A16, S7 (the breaker).

Stop order (rule A11): refuse new asks, let queue and running operations finish within ``drain_deadline``,
answer whoever is left, cancel what still runs, close the backend. Cancelling ``run`` skips the draining, not
the answers. Crash: nothing here is durable; an operation that was running then has an unknown outcome.
"""

from __future__ import annotations

import enum
from random import Random
from typing import Any

import anyio
import anyio.abc
import attrs

from ...storage_backends.base.chunk_storage import Capabilities, ChunkStorage, ChunkStorageStatistics
from ...storage_backends.base.errors import (
    ClosedError,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.statistics import counter, state
from ..kernel.lifecycle import CLEAN_EXIT, ActorExit, ExitKind, Lifecycle, StateTable, exit_of
from ..kernel.shutdown import finish_within
from ..telemetry.logging import get_logger
from .breaker import Breaker, BreakerState, BreakerStatistics
from .health import LastFailure, StorageHealthStatistics, trouble_of
from .messages import Operation, PoolKind, Request, UsedSpace
from .options import StorageOptions
from .pool import Pool, PoolStatistics
from .quota import Quota, QuotaStatistics
from .retries import Attempts, AttemptsStatistics

_log = get_logger("storage")


class StorageState(enum.Enum):
    NEW = "new"
    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"
    STOPPED = "stopped"


STATES = StateTable(
    StorageState,
    {
        StorageState.NEW: {StorageState.STARTING, StorageState.STOPPED},
        StorageState.STARTING: {StorageState.ACTIVE, StorageState.STOPPED},
        StorageState.ACTIVE: {StorageState.DRAINING, StorageState.STOPPED},
        StorageState.DRAINING: {StorageState.STOPPED},
        StorageState.STOPPED: (),
    },
)


@attrs.frozen
class StorageActorStatistics:
    state: str = attrs.field(metadata=state("Where the storage actor is."))
    reads: PoolStatistics
    writes: PoolStatistics
    attempts: AttemptsStatistics
    quota: QuotaStatistics
    breaker: BreakerStatistics
    trouble: StorageHealthStatistics
    backend: ChunkStorageStatistics
    failed_at_exit: int = attrs.field(metadata=counter("Asks that were running when the actor ended."))


def _lost(operation: Operation[Any], why: str) -> TierlogError:
    """What to tell the asker of an operation that was begun and whose end it will not see."""
    if operation.mutates:
        return OutcomeUnknown(f"{operation.name}: {why}; it may still be carried out")
    return Unavailable(f"{operation.name}: {why}; try again later")


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
        self._heard = LastFailure()
        self._life = Lifecycle(STATES, StorageState.NEW)
        # A dict and not a set: it is iterated at the end, in the order of arrival.
        self._running: dict[Request, None] = {}
        self._failed_at_exit = 0
        self._stop = anyio.Event()

    def __repr__(self) -> str:
        reads, writes = self._pools.values()
        return (
            f"<StorageActor {self._life.state.value}, reads {reads!r}, writes {writes!r}, "
            f"{self._breaker!r}, {self._quota!r}>"
        )

    @property
    def state(self) -> StorageState:
        return self._life.state

    @property
    def capabilities(self) -> Capabilities:
        return self._chunks.capabilities

    @property
    def trouble(self) -> StorageHealthStatistics:
        """What is wrong with long-term storage now, if anything."""
        return trouble_of(
            self._heard,
            over_quota=self._quota.reason,
            failures=self._breaker.failures,
            is_open=self._breaker.state is not BreakerState.CLOSED,
            late=sum(pool.late for pool in self._pools.values()),
        )

    # --- life ------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> ActorExit:
        """Open the backend, report started, serve until ``stop``, and return why it ended. An error of
        opening is raised."""
        self._life.go(StorageState.STARTING)
        reason: BaseException = ClosedError("the storage actor was stopped")
        ended = CLEAN_EXIT
        try:
            await self._chunks.open()
            self._life.go(StorageState.ACTIVE)
            task_status.started()
            await self._serve_until_stopped()
        except anyio.get_cancelled_exc_class():
            ended = ActorExit(ExitKind.CLEAN, detail="cancelled")
            raise
        except BaseException as error:
            reason, ended = error, exit_of(error)
            raise
        finally:
            self._end(ended, reason)
            if not await finish_within(self.options.drain_deadline, self._chunks.close):
                ended = attrs.evolve(ended, detail="closing the backend did not finish within its deadline")
        return ended

    def stop(self) -> None:
        """Ask ``run`` to end: new asks are refused from now on. Idempotent."""
        if self._life.state is StorageState.ACTIVE:
            self._life.go(StorageState.DRAINING)
        self._stop.set()

    async def wait_active(self) -> None:
        """Wait until asks are served. Raises ``Unreachable`` if the actor has ended."""
        await self._life.wait_for(StorageState.ACTIVE)

    async def _serve_until_stopped(self) -> None:
        async with anyio.create_task_group() as operations:
            async with anyio.create_task_group() as loops:
                for pool in self._pools.values():
                    loops.start_soon(self._dispatch, pool, operations)
                if self._quota.is_limited:
                    loops.start_soon(self._measure_space)
                loops.start_soon(self._sweep_now_and_then)
                await self._stop.wait()
                with anyio.move_on_after(self.options.drain_deadline):
                    for pool in self._pools.values():
                        await pool.wait_idle()
                loops.cancel_scope.cancel()

            self._answer_everybody(ClosedError("the storage actor was stopped"))
            operations.cancel_scope.cancel()

    def _end(self, ended: ActorExit, reason: BaseException) -> None:
        self._answer_everybody(reason)
        self._life.go(StorageState.STOPPED, ended)

    def _answer_everybody(self, reason: BaseException) -> None:
        """Tell each asker the truth: queued means nothing was done, running means that it may have been."""
        refusal = (
            reason
            if isinstance(reason, TierlogError)
            else Unavailable(f"the storage actor ended: {reason!r}; nothing was done")
        )
        for pool in self._pools.values():
            for request in pool.mailbox.close(refusal):
                request.ticket.fail(refusal)
        for request in self._running:
            self._failed_at_exit += request.ticket.fail(_lost(request.operation, "the storage actor ended"))

    # --- asks (called by clients) ----------------------------------------------------------------

    def accept(self, operation: Operation[Any]) -> Pool:
        """The pool whose mailbox takes ``operation``. Raises at once what needs no queue: ``ClosedError``,
        ``Unavailable``, ``StorageFull``."""
        if self._life.state is not StorageState.ACTIVE:
            self._refuse()

        if operation.grows:
            self._quota.check(operation.name)
        return self._pools[operation.pool]

    def _refuse(self) -> None:
        if self._life.state in {StorageState.NEW, StorageState.STARTING}:
            raise Unavailable("the storage actor is starting; try again later")
        raise ClosedError(f"the storage actor is {self._life.state.value}")

    def admit(self, name: str) -> None:
        """Ask before naming and tracking a chunk (rule S7): raises ``Unavailable`` while the breaker is open,
        ``StorageFull`` above the quota.

        ``name`` is the chunk's, or the prefix that it will have. While the storage is in trouble one caller
        per interval passes, as the probe.
        """
        if self._life.state is not StorageState.ACTIVE:
            self._refuse()

        self._quota.check(name)
        now = anyio.current_time()
        if not self._breaker.admit(now):
            raise Unavailable(
                f"long-term storage failed {self._breaker.failures} times in a row; next try in "
                f"{self._breaker.retry_in(now):.1f} s"
            )

    def expire(self, request: Request) -> None:
        """Answer a request whose deadline has passed, unless the answer has just come. A running one goes on
        as late."""
        operation, ticket = request.operation, request.ticket
        if ticket.done:
            return

        if not ticket.started:
            ticket.fail(
                Unavailable(
                    f"{operation.name}: still queued at its deadline; nothing was done, try again later"
                )
            )
            return

        self._pools[operation.pool].became_late(request)
        self._observe(operation, TimeoutError(f"{operation.name}: no answer at its deadline"))
        ticket.fail(_lost(operation, "no answer at its deadline"))

    # --- operations ------------------------------------------------------------------------------

    async def _dispatch(self, pool: Pool, operations: anyio.abc.TaskGroup) -> None:
        while True:
            for request in await pool.take():
                self._running[request] = None
                operations.start_soon(self._serve, pool, request)

    async def _serve(self, pool: Pool, request: Request) -> None:
        """Carry one request out and answer it. Only its own cancellation, or what is meant for the process,
        gets out of here."""
        operation, ticket = request.operation, request.ticket
        try:
            result = await self._attempts.carry_out(operation, lambda: not ticket.done)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to whoever asked
            pool.failed += 1
            ticket.fail(error)
        except BaseException:
            ticket.fail(_lost(operation, "cancelled while it was running"))
            raise
        else:
            self._count(pool, operation, operation.moved(result))
            ticket.resolve(result)
        finally:
            del self._running[request]
            pool.finished(request)

    def _count(self, pool: Pool, operation: Operation[Any], size: int) -> None:
        pool.done += 1
        pool.bytes += size
        if operation.grows:
            self._quota.add(size)

    def _observe(self, operation: Operation[Any], error: BaseException | None) -> None:
        """Tell the breaker how an attempt ended. It guards the making of chunks, so mutations alone count:
        reads that still work do not show that writes do."""
        if not operation.mutates or isinstance(error, ClosedError):
            return

        is_failure = isinstance(error, (Unavailable, OutcomeUnknown, TimeoutError))
        self._heard.heard(error, grows=operation.grows, is_failure=is_failure)
        if isinstance(error, StorageFull):
            return

        if is_failure:
            self._breaker.failure(anyio.current_time())
        else:
            self._breaker.success(anyio.current_time())

    async def _measure_space(self) -> None:
        """Measure now and then. A measurement that fails leaves the last one standing."""
        while True:
            try:
                self._quota.measure(await self._attempts.carry_out(UsedSpace(), lambda: True))
            except (Unavailable, OutcomeUnknown):
                self._quota.missed()
            await anyio.sleep(self.options.safe_size_interval)

    async def _sweep_now_and_then(self) -> None:
        """Opening swept. A process that lives long sweeps again, and after trouble once more at the next
        time."""
        while True:
            await anyio.sleep(self.options.sweep_interval)
            try:
                await self._chunks.sweep()
            except TierlogError as error:
                _log.warning("storage_sweep_failed", error=str(error))

    def statistics(self) -> StorageActorStatistics:
        return StorageActorStatistics(
            state=self._life.state.value,
            reads=self._pools[PoolKind.READ].statistics(),
            writes=self._pools[PoolKind.WRITE].statistics(),
            attempts=self._attempts.statistics(),
            quota=self._quota.statistics(),
            breaker=self._breaker.statistics(),
            trouble=self.trouble,
            backend=self._chunks.statistics(),
            failed_at_exit=self._failed_at_exit,
        )

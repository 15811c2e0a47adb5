"""The pipeline: mailbox -> decide and apply (sync) -> one log group -> publish and answer (sync).

Owns the order of everything that enters the log, and the moment when an effect becomes visible. What requests
mean and what operations change is in ``operations/``.

Its tasks: ``_prepare`` drains the mailbox in batches, decides each request against the speculative state,
applies it and adds it to the group being built; ``_commit`` makes that group durable, then publishes it:
durable lengths, tail cache, waiters, answers. While one group is being written the next is built. There are
as many committers as the log takes appends at once: one, where a group is written only after the one before
is durable (rule W2). They take turns to take a group, and publish in the same order. All work in slices,
between which the event loop runs others: an operation that is durable and not published yet is to them what
one in the log's hands is.

Rules: C1 (nothing is readable or answered before it is durable, refusals included), C5 (an exception out of a
sync step poisons the container: no request succeeds any more, nothing more is logged), C6 (internal requests
have their own lane).

Cancellation: an append that was cancelled leaves its group in doubt; the pipeline ends and every waiter gets
``OutcomeUnknown``. Crash: recovery reads the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from msgspec import Struct

from ...journal.log.contract import DurableDataLog
from ...journal.operations.checkpoint import CheckpointBegin
from ...journal.operations.load_segment import LoadSegment
from ...journal.operations.operation import Operation
from ...storage_backends.base.errors import (
    ClosedError,
    NotOwner,
    OutcomeUnknown,
    Throttled,
    TierlogError,
    Unavailable,
)
from ..kernel.event_source import OneShot
from ..kernel.exits import first_leaf
from ..kernel.mailbox import Mailbox
from ..kernel.reply import fail_all
from ..kernel.slices import SLICE
from ..telemetry.tracing import SpanHook
from .loader import Loader, Resumed
from .operations import DECIDE
from .operations.append import AppendRequest, append_plain, decide_append
from .operations.handlers import Decision
from .parked import Parked
from .pending_group import Group, Unconfirmed
from .publish import Publisher
from .requests import LogRequest, Request, SnapshotRequest
from .segments import NotLoaded
from .state import ContainerState

if TYPE_CHECKING:
    from .statistics import PipelineStatistics

_STEP = 384
"""Requests that are decided and applied in one step of the event loop, or their ``work``: an append takes 1
us, a creation 9, a row of a table 3."""
_LOADED_BYTES = 64 << 10
"""Of the images that are loaded in one step of the event loop, with ``_LOADED_OVERHEAD`` for each."""
_LOADED_FEW_BYTES = _LOADED_BYTES // 4
"""The same, if requests are decided in that step."""
_LOADED_OVERHEAD = 1024


class PipelineOptions(Struct, frozen=True):
    group_bytes: int = 4 << 20
    """A batch taken from the mailbox ends at about this size. A larger append is a batch of its own."""
    group_count: int = 4096
    """Operations that are decided in one step, and ``_STEP`` at most."""


Protect = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Wraps a task's function so that no KeyboardInterrupt is raised inside it; how depends on the event loop."""


def unprotected(run: Callable[..., Any]) -> Callable[..., Any]:
    """For event loops that raise KeyboardInterrupt between steps only (asyncio)."""
    return run


class PipelineHooks(Struct, frozen=True, eq=False):
    on_published: Callable[[], None] = lambda: None
    """Called after each group that logged something."""
    protect: Protect = unprotected
    """Keeps Ctrl-C out of the sync steps (rule C5)."""
    span: SpanHook | None = None
    """Called around the log's append of a group that holds traced appends."""


class Pipeline:
    def __init__(
        self,
        state: ContainerState,
        log: DurableDataLog,
        mailbox: Mailbox[Request],
        publisher: Publisher,
        loader: Loader,
        options: PipelineOptions,
        hooks: PipelineHooks,
    ) -> None:
        self._state = state
        self._log = log
        self._mailbox = mailbox
        self._publisher = publisher
        self._loader = loader
        self._parked = loader.parked
        state.parked = self._parked.queues
        self._options = options
        self._hooks = hooks
        self._building = Group(state.sequence + 1)
        self._in_flight: deque[Group] = deque()
        """In the log's hands, or durable and not published yet; in order."""
        self._published: anyio.Event | None = None
        self._last_number = 0
        """That of the group published last."""
        self._work: OneShot | None = None
        self._taken: OneShot | None = None
        self._loads_wait: OneShot | None = None
        self._closing = False
        self.poisoned = False
        """A sync step failed half-way: nothing in memory may be written any more (no checkpoint, no flush, no
        footer; rule C5)."""
        self._operations = self._groups = self._refused = 0
        self.payload_bytes = 0
        """Payload bytes that this owner made durable."""
        self._decide: dict[type, Callable[[ContainerState, Any], Decision]] = DECIDE
        if hooks.span is not None:
            # Chosen once: without a hook, appends pay nothing for their spans.
            self._decide = {**DECIDE, AppendRequest: self._decide_traced}

    async def run(self) -> None:
        """Work until the mailbox is closed and everything in it is answered, or until something fails (the
        error is raised)."""
        self._building = Group(self._state.sequence + 1)  # recovery has moved it since ``__init__``
        self._last_number = self._log.next_group - 1
        # One committer alone has every turn, and a lock would cost each of its groups a microsecond and more.
        turn = anyio.Lock(fast_acquire=True) if self._log.appends_max > 1 else None
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._log.appends_max):
                    tasks.start_soon(self._hooks.protect(self._commit), turn)
                # Returns when the mailbox is closed; the committers then end once the last group is
                # published.
                await self._hooks.protect(self._prepare)()
                self._wake_committer()
        except BaseException as error:
            self._fail_unanswered(first_leaf(error))
            raise

    def _fail_unanswered(self, cause: BaseException) -> None:
        """``cause``: the log, a sync step or a cancellation."""
        # Other errors have no text for users.
        why = f" ({cause})" if isinstance(cause, TierlogError) else ""
        error = OutcomeUnknown(
            f"the container stopped before this was known to be durable{why}: it may or may not have been "
            f"applied"
        )
        unchanged = Unavailable(
            f"the container stopped before the operations that this answer depends on were durable{why}: "
            f"repeat the call"
        )
        if isinstance(cause, NotOwner):
            # Callers may ask for it. A copy: its traceback would keep the container in memory.
            error.__cause__ = unchanged.__cause__ = NotOwner(str(cause))
        for group in (*self._in_flight, self._building):
            group.fail(error, unchanged)
        self._fail_parked()

    def _fail_parked(self) -> None:
        self._closing = True
        error = Unavailable("the container stopped before it started this call: nothing was applied")
        fail_all((request.reply for request in self._parked.clear()), error)

    # --- prepare: decide and apply ---------------------------------------------------------------

    async def _prepare(self) -> None:
        options = self._options
        count = min(options.group_count, _STEP)
        while True:
            try:
                batch = await self._mailbox.drain(count, options.group_bytes)
            except ClosedError:
                self._fail_parked()
                return

            self.step(batch)
            self._wake_committer()
            while self._building.size >= options.group_bytes:
                # The group is full: what comes next waits until the committer has taken it.
                self._taken = self._mailbox.events.new()
                await self._taken.wait()
            if len(self._mailbox):
                await anyio.lowlevel.checkpoint()

    def _wake_committer(self) -> None:
        if self._work is not None:
            self._work.set()
            self._work = None

    def step(self, batch: list[Request]) -> None:
        """Decide and apply a batch. Whatever is raised here poisons the container (rule C5)."""
        try:
            self._step_all(batch)
        except BaseException:
            self._poison(batch)
            raise

    def _poison(self, batch: Iterable[Request]) -> None:
        self.poisoned = True
        error = OutcomeUnknown(
            "the container failed during this operation: it may or may not have been applied"
        )
        fail_all((request.reply for request in batch), error)

    def _step_all(self, batch: list[Request]) -> None:
        group, state, decisions = self._building, self._state, self._decide.get
        # Looked up once: the loop runs for every request.
        add, apply = group.add, state.apply
        answered, answers = group.replies.append, group.values.append
        blocked = self._parked.queues
        requests = iter(batch)
        for begin in requests:
            request: Request | None = begin
            if type(begin) is AppendRequest and not blocked and self._hooks.span is None:
                request = append_plain(state, begin, requests, group)
            if request is None:
                break

            decide = decisions(type(request))
            if decide is None:
                self._step_internal(request, group)
                continue

            if blocked and self._parked.is_blocked(request):
                self._park(request, None, group)
                continue

            try:
                op, answer = decide(state, request)
            except NotLoaded as missing:
                self._park(request, missing, group)
                continue
            except TierlogError as error:
                self._refused += 1
                # C1: a refusal may depend on operations that are not durable yet. While it waits, its
                # traceback would keep frames, of thousands of refusals in a batch.
                group.errors.append((request.reply, error.with_traceback(None)))
                continue

            if op is None:
                # C1: what it has read may not be durable, so it waits for the group.
                group.reads.append((request.reply, answer))
                continue

            # Rare: a delete or a merge with open transactions, which end in the same group (T8).
            if isinstance(op, list):
                for each in op:
                    apply(each)
                    add(each)
            else:
                apply(op)
                add(op)
            answered(request.reply)
            answers(answer)

    def _park(self, request: Request, missing: NotLoaded | None, group: Group) -> None:
        """The request waits for cold segments, or behind others that do (rule M4)."""
        if request.is_read and missing is not None:
            # Its caller looks the segment up, and nothing is loaded.
            group.errors.append((request.reply, missing))
            return

        try:
            self._parked.park(request, missing)
        except Throttled as error:
            self._refused += 1
            group.errors.append((request.reply, error))
        else:
            self._loader.wake()

    async def wait_for_room(self) -> None:
        """Return when the group that is being built takes what a lookup loads: many loads during one slow
        write would make a group that is too large for the log."""
        while self._building.size >= self._options.group_bytes and not self._has_ended():
            self._loads_wait = self._mailbox.events.new()
            await self._loads_wait.wait()

    def resume(self, resumed: Resumed) -> Iterator[None]:
        """Load what was looked up, and decide the requests that waited for it, and those behind them, in
        order; some in each step, like those of a batch. Between the steps they are the first that name these
        segments, so what was looked up does not change."""
        if self._has_ended():
            return  # they are answered

        loads, left = deque(resumed.loads), deque(resumed.ready)
        for parked in left:
            parked.missing = None
        for parked, error in resumed.failed:
            self._refused += 1
            self._building.errors.append((parked.request.reply, error))
            # It is answered; what is behind it may go on.
            left += self._parked.remove(parked)
        while not self._has_ended():
            try:
                self._resume_some(loads, left, resumed)
            except BaseException:
                self._poison(parked.request for parked in self._parked)
                raise
            self._wake_committer()
            if not (loads or left):
                break
            yield

    def _resume_some(self, loads: deque[LoadSegment], left: deque[Parked], resumed: Resumed) -> None:
        size = self._load_some(loads)
        # A few loads and the requests that wait for them are one group: one write of the log.
        if not loads and size <= _LOADED_FEW_BYTES:
            # What left memory since is in runs that the lookup did not read.
            is_valid = self._state.table.runs.records_to == resumed.records_to
            self._state.looked_up = resumed.known if is_valid else {}
            self._decide_some(left)
            self._state.looked_up = {}

    def _has_ended(self) -> bool:
        return self._closing or self.poisoned

    def _load_some(self, loads: deque[LoadSegment]) -> int:
        """The size of what was loaded."""
        size = 0
        while loads and size < _LOADED_BYTES:
            op = loads.popleft()
            self._state.apply(op)
            self._building.add(op)
            size += _LOADED_OVERHEAD + len(op.image)
        return size

    def _decide_some(self, left: deque[Parked]) -> None:
        work = 0
        while left and work < _STEP:
            parked = left.popleft()
            work += parked.request.work
            if parked.missing is None and self._decide_parked(parked, self._building):
                left += self._parked.remove(parked)

    def _decide_parked(self, parked: Parked, group: Group) -> bool:
        """Whether the request is answered, or will be by its group."""
        request, state = parked.request, self._state
        state.looked_up_rows = parked.rows
        try:
            op, answer = self._decide[type(request)](state, request)
        except NotLoaded as missing:
            if not request.is_read:
                parked.missing = missing
                return False

            group.errors.append((request.reply, missing))
            return True
        except TierlogError as error:
            self._refused += 1
            group.errors.append((request.reply, error))
            return True
        finally:
            state.looked_up_rows = {}

        if op is None:
            group.reads.append((request.reply, answer))
            return True

        for each in op if isinstance(op, list) else (op,):
            state.apply(each)
            group.add(each)
        group.replies.append(request.reply)
        group.values.append(answer)
        return True

    def _step_internal(self, request: Request, group: Group) -> None:
        if type(request) is SnapshotRequest:
            op: Operation = CheckpointBegin(request.checkpoint)
            self._state.apply(op)
            value: object = self._state.begin_snapshot()
        elif type(request) is LogRequest:
            op, value = request.op, None
            self._state.apply(op)
            group.tag = max(group.tag, request.tag)
            group.truncate_before = max(group.truncate_before, request.truncate_before)
        else:
            raise TypeError(f"no handler is registered for {request!r}")

        group.add(op)
        group.group_answers.append((request.reply, value))

    def _decide_traced(self, state: ContainerState, request: AppendRequest) -> Decision:
        decision = decide_append(state, request)
        span = getattr(request, "span", None)
        if decision[0] is not None and span is not None:
            self._building.links.append(span)
        return decision

    # --- commit: make durable, then publish ------------------------------------------------------

    async def _commit(self, turn: anyio.Lock | None) -> None:
        while True:
            if turn is None:
                group = await self._take()
            else:
                async with turn:
                    group = await self._take()
            if group is None:
                return

            # Without a pause since the group was taken: the log numbers groups in the order of the calls.
            await self._commit_one(group)
            # Only when it is published: until then ``_fail_unanswered`` has to answer its callers.
            self._in_flight.popleft()
            if self._published is not None:
                self._published.set()
                self._published = None
            if turn is None and not self._building.is_empty:
                await self._gather()

    async def _gather(self) -> None:
        """Let those that were just answered add to the group that waits. Otherwise the callers would be
        divided into two groups that take turns, each with a part of them, and a single operation of a flush
        cycle would take a sync of its own."""
        # In the first turn they put their next requests into the mailbox, in the second these are applied.
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        # Trio runs the tasks of a turn in any order.
        if len(self._mailbox):
            await anyio.lowlevel.checkpoint()

    async def _take(self) -> Group | None:
        """The group that is built, once there is one and the log takes it; None at the end."""
        while not self.poisoned:  # a group from a failed step is never written
            group = self._building
            if group.is_empty:
                if self._closing:
                    return None
                self._work = self._mailbox.events.new()
                await self._work.wait()
            # Nothing that could join the last group comes any more.
            elif (
                group.operations and not self._closing and (delay := self._log.append_delay(group.size)) > 0.0
            ):
                self._work = self._mailbox.events.new()
                with anyio.move_on_after(delay):
                    await self._work.wait()
            else:
                # No await since ``group`` was looked up, so it ends at the present sequence.
                self._building = Group(self._state.sequence + 1)
                self._in_flight.append(group)
                for waiting in (self._taken, self._loads_wait):
                    if waiting is not None:
                        waiting.set()
                self._taken = self._loads_wait = None
                return group
        return None

    async def _commit_one(self, group: Group) -> None:
        if group.operations:
            number = await (self._append_traced(group) if group.links else self._append(group))
            if self._in_flight[0] is not group:
                self._confirm_earlier(group)
        else:
            await self._confirm(group)
            number = 0
        while self._in_flight[0] is not group:  # C1: those before it are published first
            self._published = self._published or anyio.Event()
            await self._published.wait()
        self._last_number = number = number or self._last_number

        finishing = self._finish(group, number)
        while self._advance(finishing):
            await anyio.lowlevel.checkpoint()

    async def _confirm(self, group: Group) -> None:
        """Nothing to log, so no write of its own proves ownership: confirm it before answering (W12)."""
        try:
            with anyio.CancelScope() as group.confirming:
                await self._log.confirm_owner()
        except Unavailable as error:
            # L10, B10: appends may go on, unless the log has ended.
            self._log.check_owner()
            group.refuse(
                Unconfirmed(
                    f"whether the container has another owner is not known ({error}): repeat the call"
                )
            )

    def _confirm_earlier(self, durable: Group) -> None:
        """W12: its write began after those before it were taken, and proves the ownership for them too: what
        is acked does not wait for a service that it does not need."""
        for group in self._in_flight:
            if group is durable:
                return
            if group.confirming is not None:
                group.confirming.cancel()

    def _advance(self, finishing: Iterator[None]) -> bool:
        """Take one step. Returns whether there may be more."""
        try:
            for _ in finishing:
                return True
        except BaseException:
            # C5: a half-published slice must reach neither a checkpoint nor a flush.
            self.poisoned = True
            raise
        return False

    def _append(self, group: Group) -> Awaitable[int]:
        return self._log.append(group.parts, tag=group.tag, truncate_before=group.truncate_before)

    async def _append_traced(self, group: Group) -> int:
        assert self._hooks.span is not None
        attributes = {
            "container": self._state.container,
            "epoch": self._state.epoch,
            "group": self._log.next_group,
            "bytes": group.size,
            "count": len(group.operations),
        }
        with self._hooks.span("tierlog.wal.append", attributes, group.links):
            return await self._append(group)

    def _finish(self, group: Group, number: int) -> Iterator[None]:
        """Publish and answer, in steps of at most ``SLICE`` operations or answers."""
        if group.operations:
            count = len(group.operations)
            for start in range(0, count, SLICE):
                self._publisher.publish(group.operations[start : start + SLICE], number)
                if start + SLICE <= count:
                    yield
            self._operations += count
            self._groups += 1
            self.payload_bytes += group.size
            self._hooks.on_published()

        yield from group.answer(number)

    def statistics(self) -> PipelineStatistics:
        from .statistics import PipelineStatistics

        return PipelineStatistics(self._operations, self._groups, self.payload_bytes, self._refused)

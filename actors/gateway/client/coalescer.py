"""Combines appends: the queues of those that wait, and the batches made of them. Plain code, no I/O.

There is one queue for each container, with at most one batch in flight, so appends to one segment arrive in
the order in which they were made. A batch takes from all free queues of one server, so that one request
carries the appends of many segments; a queue whose batch is slow delays no other. The first append of an idle
queue goes at once; while a batch is in flight the others gather. An append that is too large to share a
request goes alone.

What has to be sent again goes back to the front of its queue, before everything that came later. An append
that was refused as ``OutOfOrder`` only because its writer's previous one has to be sent again goes back with
it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

import attrs

from ....storage_backends.base.arguments import JoinedAppend, check_many, not_an_append
from ....storage_backends.base.errors import NotOwner, OutcomeUnknown, OutOfOrder, TierlogError, Unavailable
from ....storage_backends.base.names import check_segment_name
from ...kernel.event_source import Answer
from ..wire.batch import BatchItem, Outcome
from . import requests
from .attempts import follows_hint
from .container_map import ContainerMapCache
from .requests import Call
from .retries import ANSWERED, Failure, Kind, decide, given_up, is_too_much_at_once, kind_of

ALONE_BYTES = 256 << 10
"""An append larger than this gains nothing from sharing a request."""
BATCH_BYTES = 2 << 20
BATCH_ITEMS = 4096
QUEUE_BYTES = 32 << 20
QUEUE_ITEMS = 32_768
NAMES_MAX = 65_536
"""The most that one queue holds; further callers wait for room. The cache of names is cleared when it is
full."""


class AppendCall:
    """The appends of one call, in order."""

    __slots__ = ("appends", "deadline", "is_abandoned", "left", "reply", "span")

    def __init__(
        self, items: Sequence[BatchItem], deadline: float, reply: Answer, span: object = None
    ) -> None:
        # Most have one, for which a comprehension would be a call more, here and in ``end``.
        self.appends = (
            [PendingAppend(items[0], self)]
            if len(items) == 1
            else [PendingAppend(item, self) for item in items]
        )
        self.left = len(items)
        self.deadline = deadline
        self.reply = reply
        """Resolved when each append has its outcome, or nobody waits any more."""
        self.span = span
        """The span of the call, if it is traced."""
        self.is_abandoned = False
        """No caller waits any more: what was not sent is never sent."""

    def abandon(self) -> None:
        self.is_abandoned = True
        self.reply.resolve(None)

    def give_up(self, why: str) -> None:
        """End the call; appends without an answer get an error with what is known of them."""
        for append in self.appends:
            if not append.is_answered:
                append.outcome = append.given_up(why)
        self.abandon()

    def end(self) -> list[Outcome]:
        """No caller waits any more: what was not sent is never sent. Returns the outcomes, in order."""
        self.is_abandoned = True
        # Each append refers to its call: only the garbage collector would free both, with the bytes.
        appends, self.appends = self.appends, []
        return [appends[0].outcome] if len(appends) == 1 else [append.outcome for append in appends]


class PendingAppend:
    """One append without an answer."""

    __slots__ = (
        "alone",
        "attempts",
        "call",
        "doubt",
        "failure",
        "is_answered",
        "is_in_flight",
        "item",
        "outcome",
        "queue",
        "size",
    )

    def __init__(self, item: BatchItem, call: AppendCall) -> None:
        self.item = item
        self.call = call
        self.queue: ContainerQueue | None = None
        """The queue in which it waits; None before it is in one."""
        self.size = len(item.data)
        self.alone = self.size > ALONE_BYTES
        self.attempts = 0
        self.doubt = False
        """One of its attempts may have been applied."""
        self.is_in_flight = False
        self.is_answered = False
        self.outcome: Outcome = None
        self.failure: TierlogError | None = None
        """Why its last attempt failed."""

    def answer(self, outcome: Outcome) -> None:
        self.is_in_flight = False
        self.is_answered = True
        self.outcome = outcome
        call = self.call
        call.left -= 1
        if not call.left:
            call.reply.resolve(None)

    def given_up(self, why: str) -> TierlogError:
        what = why if self.failure is None else f"{why}; the last failure was: {self.failure}"
        # An attempt in flight may be applied, whatever its answer will be.
        if self.doubt or self.is_in_flight:
            return OutcomeUnknown(f"{what}; the append may be applied")

        return Unavailable(f"{what}; nothing was done")


class ContainerQueue:
    """The appends to one container that wait, in order."""

    __slots__ = ("container", "is_busy", "size", "waiting")

    def __init__(self, container: int) -> None:
        self.container = container
        self.waiting: deque[PendingAppend] = deque()
        self.size = 0
        self.is_busy = False
        """A batch of it is in flight, or waits before it is sent again."""

    @property
    def is_full(self) -> bool:
        return self.size >= QUEUE_BYTES or len(self.waiting) >= QUEUE_ITEMS

    def put(self, append: PendingAppend) -> None:
        append.queue = self
        self.waiting.append(append)
        self.size += append.size

    def offer(self, append: PendingAppend) -> bool:
        """``put`` unless it is full. Returns whether it did."""
        waiting = self.waiting
        if self.size >= QUEUE_BYTES or len(waiting) >= QUEUE_ITEMS:
            return False

        append.queue = self
        waiting.append(append)
        self.size += append.size
        return True

    def put_back(self, append: PendingAppend) -> None:
        self.waiting.appendleft(append)
        self.size += append.size

    def first(self) -> PendingAppend | None:
        """The first one whose caller still waits."""
        waiting = self.waiting
        # When it is their turn: to remove them at once, from the middle, would search the whole queue.
        while waiting and waiting[0].call.is_abandoned:
            self.take()
        return waiting[0] if waiting else None

    def take(self) -> PendingAppend:
        append = self.waiting.popleft()
        self.size -= append.size
        return append


class Batch:
    """Appends that travel in one request to ``url``."""

    __slots__ = ("appends", "generation", "queues", "size", "url")

    def __init__(self, url: str, generation: int) -> None:
        self.url = url
        self.generation = generation
        """The generation of the map when the batch was put together."""
        self.appends: list[PendingAppend] = []
        self.queues: list[ContainerQueue] = []
        self.size = 0

    @property
    def is_full(self) -> bool:
        return self.size >= BATCH_BYTES or len(self.appends) >= BATCH_ITEMS

    @property
    def containers(self) -> tuple[int, ...]:
        return tuple(queue.container for queue in self.queues)

    def fill(self, queue: ContainerQueue) -> None:
        """Take what fits from the queue's front."""
        queue.is_busy = True
        self.queues.append(queue)
        # It ends at the first one that does not fit: one that overtook it could be a later append to the same
        # segment.
        # In one loop, without calls: it runs for each append.
        waiting, appends, size = queue.waiting, self.appends, self.size
        taken = 0
        while waiting:
            append = waiting[0]
            is_wanted = not append.call.is_abandoned
            if is_wanted and appends and (append.alone or size >= BATCH_BYTES or len(appends) >= BATCH_ITEMS):
                break
            waiting.popleft()
            taken += append.size
            if is_wanted:
                append.is_in_flight = True
                appends.append(append)
                size += append.size
                if append.alone:
                    break
        queue.size -= taken
        self.size = size

    def call(self) -> Call[list[Outcome]]:
        items = [append.item for append in self.appends]
        return requests.append(items[0]) if self.appends[0].alone else requests.batch(items)

    @property
    def deadline(self) -> float:
        """The latest deadline of its callers."""
        # A caller whose deadline is earlier gives up by itself; the answer still counts for the others.
        return max([append.call.deadline for append in self.appends])

    @property
    def spans(self) -> tuple[object, ...]:
        """The spans of the calls whose appends it carries, each once."""
        return tuple(
            # A call of ``append_each`` may have many appends here.
            dict.fromkeys(append.call.span for append in self.appends if append.call.span is not None)
        )


@attrs.frozen
class BatchResult:
    """What remains to be done after an answer."""

    free: list[ContainerQueue]
    """Nothing of theirs has to be sent again: they continue at once."""
    held: list[ContainerQueue]
    """They wait ``pause`` seconds first."""
    pause: float
    refresh: bool


class Coalescer:
    def __init__(self, map: ContainerMapCache, random: Random) -> None:
        self._map = map
        self._random = random
        self._queues: dict[int, ContainerQueue] = {}
        self._named: dict[str, ContainerQueue] = {}
        """A cache by segment name: finding a name's container costs more than the rest of queueing an
        append."""

    def queue(self, name: str) -> ContainerQueue:
        """The queue of this segment's container. Raises ``InvalidArgument`` for a bad name."""
        queue = self._named.get(name) if type(name) is str else None
        if queue is None:
            check_segment_name(name)
            container = self._map.container_of(name)
            queue = self._queues.setdefault(container, ContainerQueue(container))
            # An order of use, to evict single names, would cost each append more than it saves.
            if len(self._named) >= NAMES_MAX:
                self._named.clear()
            self._named[name] = queue
        return queue

    @property
    def has_waiting(self) -> bool:
        return any(queue.waiting for queue in self._queues.values())

    def take(self, has_room: Callable[[str], bool]) -> Batch | None:
        """The next batch for a server that ``has_room`` for one more; None if nothing can go now."""
        taken: Batch | None = None
        for queue in self._queues.values():
            if queue.is_busy or (first := queue.first()) is None:
                continue

            url = self._map.url_of(queue.container)
            if taken is None:
                # Another server, further on, may have room.
                if not has_room(url):
                    continue
                taken = Batch(url, self._map.generation)
            elif taken.url != url or first.alone or taken.appends[0].alone or taken.is_full:
                continue
            taken.fill(queue)

        if taken is not None:
            self._turn(taken.queues)
        return taken

    def _turn(self, queues: Iterable[ContainerQueue]) -> None:
        """Queues that were served go behind the others, so that none starves when batches are full."""
        for queue in queues:
            self._queues[queue.container] = self._queues.pop(queue.container)

    def complete(self, sent: Batch, answer: Sequence[Outcome] | Failure, now: float) -> BatchResult:
        """Answer the batch's appends, or put back those that can be sent again. The queues stay busy until
        the caller frees them."""
        # H7: one bad append, or the sum of all, refuses the whole batch. Alone, each gets its own answer.
        if isinstance(answer, Failure) and len(sent.appends) > 1 and is_too_much_at_once(answer):
            for append in sent.appends:
                append.alone = True
            self._put_back(sent.appends)
            return BatchResult(sent.queues, [], 0.0, refresh=False)

        again: list[PendingAppend] = []
        completion = _Completion(self._map, self._random, now)
        outcomes = [answer] * len(sent.appends) if isinstance(answer, Failure) else answer
        for append, outcome in zip(sent.appends, outcomes, strict=True):
            if isinstance(outcome, (Failure, TierlogError)):
                if completion.must_retry(append, outcome):
                    again.append(append)
            elif not append.call.is_abandoned:
                append.answer(outcome)

        self._put_back(again)
        held = [queue for queue in sent.queues if any(append.queue is queue for append in again)]
        return BatchResult(
            [queue for queue in sent.queues if queue not in held], held, completion.pause, completion.refresh
        )

    def _put_back(self, appends: list[PendingAppend]) -> None:
        # The last one first, so that they stand in the order in which they were made.
        for append in reversed(appends):
            append.is_in_flight = False
            assert append.queue is not None
            append.queue.put_back(append)


class _Completion:
    """The failures of one batch, append by append, in order."""

    def __init__(self, map: ContainerMapCache, random: Random, now: float) -> None:
        self._map = map
        self._random = random
        self._now = now
        self._writers: set[tuple[str, bytes]] = set()
        """Writers with an append that goes back."""
        self.pause = 0.0
        self.refresh = False

    def must_retry(self, append: PendingAppend, outcome: Failure | TierlogError) -> bool:
        """Whether the append goes back; otherwise it is answered."""
        if append.call.is_abandoned:
            return False

        assert append.queue is not None
        container = append.queue.container
        failure = outcome if isinstance(outcome, Failure) else Failure(kind_of(outcome), outcome)
        failure = self._map.explained(failure)
        refusal = failure.error
        # A supervisor refuses every batch; its map knows why this container has no owner.
        if isinstance(refusal, NotOwner) and (absence := self._map.assignments[container].absence):
            failure = attrs.evolve(failure, error=Unavailable(absence))
        writer = (append.item.name, append.item.writer)
        # It is refused only because the one before it did not arrive: in order once that was sent again.
        if isinstance(failure.error, OutOfOrder) and writer in self._writers:
            failure = Failure(Kind.LATER, failure.error)
        repeat = requests.repeat_of(append.item)
        left = append.call.deadline - self._now
        # Refreshed after the attempt before, the map knows whether waiting is of any use.
        is_answered = append.attempts and failure.kind in ANSWERED
        closed = self._map.withheld((container,)) if is_answered else None
        retry = (
            given_up(closed, doubt=append.doubt)
            if closed
            else decide(
                repeat,
                failure,
                doubt=append.doubt,
                attempt=append.attempts,
                left=left,
                random=self._random,
                size=append.size,
            )
        )
        if isinstance(retry, TierlogError):
            append.answer(retry)
            return False

        append.doubt, append.failure, append.attempts = retry.doubt, failure.error, append.attempts + 1
        # Two hosts that name each other as the owner must not be asked forever.
        is_hinted = follows_hint(self._map, container, refusal) and append.attempts <= 2
        if not is_hinted:
            self.pause = max(self.pause, retry.pause)
            self.refresh = self.refresh or retry.refresh
        if append.item.writer:
            self._writers.add(writer)
        return True


# --- append_each --------------------------------------------------------------------------------


def checked_items(
    appends: Sequence[JoinedAppend], bytes_max: int
) -> tuple[list[BatchItem], list[TierlogError | None]]:
    """The valid appends, and for each given one its refusal, or None."""
    items: list[BatchItem] = []
    refusals: list[TierlogError | None] = []
    for given in check_many("appends", appends):
        try:
            items.append(requests.joined_item(given, bytes_max))
            refusals.append(None)
        # An object of another type: a mistake of the whole call, and not the outcome of one append.
        except AttributeError as error:
            raise not_an_append(given) from error
        except TierlogError as error:
            refusals.append(error)

    return items, refusals


def with_refusals(refusals: Sequence[TierlogError | None], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome for each append: its refusal, or the next of the ``outcomes``."""
    coming = iter(outcomes)
    return [next(coming) if refusal is None else refusal for refusal in refusals]

"""Which appends travel together: the order of waiting appends, and the batches they make. Plain code, no I/O.

Owns: one lane for each container, the bounds of a batch and of a lane, what an answer does to the appends of
its batch. Does not own: the requests (``appends.py``), nor what may be sent again (``retries.py``).

A lane has at most one batch under way, so appends to one segment arrive in the order in which they were made.
A batch takes from all lanes of one server that are free, so that one request carries what many segments have;
a lane whose batch is slow holds up no other. The first append of an idle lane goes at once; while a batch is
under way the others gather. An append that is too large to share a request goes alone.

What is to be sent again goes back to the front of its lane, before everything that came later. An append
behind its writer's previous one, refused as ``OutOfOrder`` only because that one has to be sent again, goes
back with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

import attrs

from ....storage_backends.base.arguments import JoinedAppend
from ....storage_backends.base.errors import OutcomeUnknown, OutOfOrder, TierlogError, Unavailable
from ....storage_backends.base.names import check_segment_name
from ...kernel.one_shot import EventSource
from ...kernel.reply import Reply
from ..wire.batch import BatchItem, Outcome
from .calls import Call, append, batch, joined_item, repeat_of
from .container_map import ContainerMapCache
from .conversation import follows_hint
from .retries import Kind, Trouble, decide, is_too_much_at_once, kind_of

ALONE_BYTES = 256 << 10
"""An append larger than this gains nothing from company."""
BATCH_BYTES = 2 << 20
BATCH_ITEMS = 4096
LANE_BYTES = 32 << 20
LANE_ITEMS = 32_768
NAMES_MAX = 65_536
"""What waits in one lane at most; who comes then waits at its door. Names are forgotten all at once above
their bound."""


class Parcel:
    """What one caller waits for: some appends, each with its own outcome, in order."""

    __slots__ = ("deadline", "entries", "is_abandoned", "left", "outcomes", "reply", "span")

    def __init__(
        self, items: Sequence[BatchItem], deadline: float, events: EventSource, span: object = None
    ) -> None:
        self.entries = [Entry(item, self, index) for index, item in enumerate(items)]
        self.outcomes: list[Outcome] = [None] * len(items)
        self.left = len(items)
        self.deadline = deadline
        self.reply: Reply[None] = Reply(events)
        self.span = span
        """Of the call, where it is traced."""
        self.is_abandoned = False
        """Nobody waits any more: what was not sent is not sent."""

    def abandon(self) -> None:
        self.is_abandoned = True
        self.reply.resolve(None)

    def give_up(self, why: str) -> None:
        """Tell the caller what is known of each append that has no answer yet."""
        for entry in self.entries:
            if not entry.is_answered:
                self.outcomes[entry.index] = entry.given_up(why)
        self.abandon()


class Entry:
    """One append on its way."""

    __slots__ = (
        "alone",
        "attempts",
        "doubt",
        "index",
        "is_answered",
        "is_under_way",
        "item",
        "lane",
        "parcel",
        "size",
        "trouble",
    )

    def __init__(self, item: BatchItem, parcel: Parcel, index: int) -> None:
        self.item = item
        self.parcel = parcel
        self.index = index
        self.lane: Lane | None = None
        """None while it is not in one yet."""
        self.size = len(item.data)
        self.alone = self.size > ALONE_BYTES
        self.attempts = 0
        self.doubt = False
        """One of its attempts may have been applied."""
        self.is_under_way = False
        self.is_answered = False
        self.trouble: TierlogError | None = None
        """Of its last attempt."""

    def answer(self, outcome: Outcome) -> None:
        self.is_under_way = False
        self.is_answered = True
        parcel = self.parcel
        parcel.outcomes[self.index] = outcome
        parcel.left -= 1
        if not parcel.left:
            parcel.reply.resolve(None)

    def given_up(self, why: str) -> TierlogError:
        what = why if self.trouble is None else f"{why}; the last trouble was: {self.trouble}"
        if self.doubt or self.is_under_way:
            return OutcomeUnknown(f"{what}; the append may be applied")

        return Unavailable(f"{what}; nothing was done")


class Lane:
    """The appends to one container that wait, in order."""

    __slots__ = ("container", "is_busy", "size", "waiting")

    def __init__(self, container: int) -> None:
        self.container = container
        self.waiting: deque[Entry] = deque()
        self.size = 0
        self.is_busy = False
        """A batch of it is under way, or has to be sent again and waits for its time."""

    @property
    def is_full(self) -> bool:
        return self.size >= LANE_BYTES or len(self.waiting) >= LANE_ITEMS

    def put(self, entry: Entry) -> None:
        entry.lane = self
        self.waiting.append(entry)
        self.size += entry.size

    def put_back(self, entry: Entry) -> None:
        self.waiting.appendleft(entry)
        self.size += entry.size

    def first(self) -> Entry | None:
        """The first one that anybody still waits for."""
        waiting = self.waiting
        while waiting and waiting[0].parcel.is_abandoned:
            self.take()
        return waiting[0] if waiting else None

    def take(self) -> Entry:
        entry = self.waiting.popleft()
        self.size -= entry.size
        return entry


class Batch:
    """Appends that travel in one request to ``url``."""

    __slots__ = ("entries", "lanes", "looks", "size", "url")

    def __init__(self, url: str, looks: int) -> None:
        self.url = url
        self.looks = looks
        """Of the map when it was put together."""
        self.entries: list[Entry] = []
        self.lanes: list[Lane] = []
        self.size = 0

    @property
    def is_full(self) -> bool:
        return self.size >= BATCH_BYTES or len(self.entries) >= BATCH_ITEMS

    @property
    def containers(self) -> tuple[int, ...]:
        return tuple(lane.container for lane in self.lanes)

    def fill(self, lane: Lane) -> None:
        """Take what fits from the lane's front."""
        lane.is_busy = True
        self.lanes.append(lane)
        while (entry := lane.first()) is not None and not (self.entries and (self.is_full or entry.alone)):
            self._add(lane.take())
            if entry.alone:
                return

    def call(self) -> Call[list[Outcome]]:
        items = [entry.item for entry in self.entries]
        return append(items[0]) if self.entries[0].alone else batch(items)

    def seconds(self, now: float) -> float:
        """What the most patient of its callers has left."""
        return max(entry.parcel.deadline for entry in self.entries) - now

    @property
    def spans(self) -> tuple[object, ...]:
        """Of the calls whose appends it carries, each once."""
        return tuple(
            dict.fromkeys(entry.parcel.span for entry in self.entries if entry.parcel.span is not None)
        )

    def _add(self, entry: Entry) -> None:
        entry.is_under_way = True
        self.entries.append(entry)
        self.size += entry.size


@attrs.frozen
class Sorted:
    """What an answer left to do."""

    free: list[Lane]
    """Nothing of theirs has to be sent again: they go on."""
    held: list[Lane]
    """They wait for ``pause`` seconds first."""
    pause: float
    refresh: bool


class Coalescer:
    def __init__(self, map: ContainerMapCache, random: Random) -> None:
        self._map = map
        self._random = random
        self._lanes: dict[int, Lane] = {}
        self._named: dict[str, Lane] = {}
        """The lanes of names that were seen: finding a name's container costs more than the rest of putting
        an append there."""

    def lane(self, name: str) -> Lane:
        """Where appends to this segment wait. The name is checked."""
        lane = self._named.get(name) if type(name) is str else None
        if lane is None:
            check_segment_name(name)
            container = self._map.container_of(name)
            lane = self._lanes.setdefault(container, Lane(container))
            if len(self._named) >= NAMES_MAX:
                self._named.clear()
            self._named[name] = lane
        return lane

    @property
    def waiting(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def take(self, has_room: Callable[[str], bool]) -> Batch | None:
        """The next batch for a server that ``has_room`` for one more; None if nothing can go now."""
        taken: Batch | None = None
        for lane in self._lanes.values():
            if lane.is_busy or (first := lane.first()) is None:
                continue

            url = self._map.url_of(lane.container)
            if taken is None:
                if not has_room(url):
                    continue
                taken = Batch(url, self._map.looks)
            elif taken.url != url or first.alone or taken.entries[0].alone or taken.is_full:
                continue
            taken.fill(lane)

        if taken is not None:
            self._turn(taken.lanes)
        return taken

    def _turn(self, lanes: Iterable[Lane]) -> None:
        """Lanes that were served go behind the others, so that none starves when batches are full."""
        for lane in lanes:
            self._lanes[lane.container] = self._lanes.pop(lane.container)

    def settle(self, sent: Batch, answer: Sequence[Outcome] | Trouble, now: float) -> Sorted:
        """Answer the batch's appends, or put them back where they can be sent again. The lanes stay busy
        until the driver frees them."""
        if isinstance(answer, Trouble) and len(sent.entries) > 1 and is_too_much_at_once(answer):
            for entry in sent.entries:
                entry.alone = True
            self._put_back(sent.entries)
            return Sorted(sent.lanes, [], 0.0, refresh=False)

        again: list[Entry] = []
        sorting = _Sorting(self._map, self._random, now)
        outcomes = [answer] * len(sent.entries) if isinstance(answer, Trouble) else answer
        for entry, outcome in zip(sent.entries, outcomes, strict=True):
            if isinstance(outcome, (Trouble, TierlogError)):
                if sorting.is_for_later(entry, outcome):
                    again.append(entry)
            elif not entry.parcel.is_abandoned:
                entry.answer(outcome)

        self._put_back(again)
        held = [lane for lane in sent.lanes if any(entry.lane is lane for entry in again)]
        return Sorted([lane for lane in sent.lanes if lane not in held], held, sorting.pause, sorting.refresh)

    def _put_back(self, entries: list[Entry]) -> None:
        for entry in reversed(entries):
            entry.is_under_way = False
            assert entry.lane is not None
            entry.lane.put_back(entry)


class _Sorting:
    """The troubles of one batch, entry by entry, in order."""

    def __init__(self, map: ContainerMapCache, random: Random, now: float) -> None:
        self._map = map
        self._random = random
        self._now = now
        self._writers: set[tuple[str, bytes]] = set()
        """Whose append goes back."""
        self.pause = 0.0
        self.refresh = False

    def is_for_later(self, entry: Entry, outcome: Trouble | TierlogError) -> bool:
        """Whether the entry goes back; else it is answered."""
        if entry.parcel.is_abandoned:
            return False

        trouble = outcome if isinstance(outcome, Trouble) else Trouble(kind_of(outcome), outcome)
        writer = (entry.item.name, entry.item.writer)
        if isinstance(trouble.error, OutOfOrder) and writer in self._writers:
            trouble = Trouble(Kind.LATER, trouble.error)
        repeat = repeat_of(entry.item)
        left = entry.parcel.deadline - self._now
        verdict = decide(
            repeat,
            trouble,
            doubt=entry.doubt,
            attempt=entry.attempts,
            left=left,
            random=self._random,
            size=entry.size,
        )
        if isinstance(verdict, TierlogError):
            entry.answer(verdict)
            return False

        entry.doubt, entry.trouble, entry.attempts = verdict.doubt, trouble.error, entry.attempts + 1
        assert entry.lane is not None
        is_told = follows_hint(self._map, entry.lane.container, trouble.error) and entry.attempts <= 2
        if not is_told:
            self.pause = max(self.pause, verdict.pause)
            self.refresh = self.refresh or verdict.refresh
        if entry.item.writer:
            self._writers.add(writer)
        return True


# --- append_each --------------------------------------------------------------------------------


def checked_items(appends: Sequence[JoinedAppend]) -> tuple[list[BatchItem], list[TierlogError | None]]:
    """Those that can be sent, and for each append its refusal, if it has one."""
    items: list[BatchItem] = []
    refusals: list[TierlogError | None] = []
    for given in appends:
        try:
            items.append(joined_item(given))
            refusals.append(None)
        except TierlogError as error:
            refusals.append(error)

    return items, refusals


def told(refusals: Sequence[TierlogError | None], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome for each append: its refusal, or the next of the ``outcomes``."""
    coming = iter(outcomes)
    return [next(coming) if refusal is None else refusal for refusal in refusals]

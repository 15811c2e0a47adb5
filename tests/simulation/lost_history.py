"""Clients that go on across recoveries from long-term storage alone, and what they must be answered (rules R8
to R10).

One writer of each segment numbers all of its appends, so the bytes of a segment are its events. After a
recovery it goes on in one of three ways: behind the events that it was acked, which is ``HistoryLost`` if one
of them is lost; by sending all that is lost again, twice each; or only some of it. Readers that know any
earlier history ask for offsets that they share with the present one, and for the next one behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random

import attrs

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import HistoryLost, TierlogError

from .copied_folder import Folder
from .invariants import Broken

WRITER = "w"


@attrs.define(eq=False)
class Events:
    """The events of one segment, as its writer knows them."""

    ends: list[int] = attrs.field(factory=list)
    """Where each ends, of those that were sent; the last one may not have been applied."""
    common: dict[int, int] = attrs.field(factory=dict)
    """By earlier history: up to where it has the bytes of the present one."""

    def count(self, length: int) -> int:
        """How many there are in ``length`` bytes."""
        return sum(end <= length for end in self.ends)

    def next(self, length: int, size: int) -> int:
        """The number of an event that is sent behind ``length`` bytes."""
        self.ends = [end for end in self.ends if end <= length]
        self.ends.append(length + size)
        return len(self.ends) - 1


class LostHistory:
    def __init__(self, random: Random, names: tuple[str, ...]) -> None:
        self._random = random
        self.events = {name: Events() for name in names}

    async def go_on(
        self, recovered: Folder, lost: Folder, before: dict[str, int], names: Iterable[str]
    ) -> None:
        """Every client of the segments ``names`` goes on. ``recovered`` has what is left of ``lost``, whose
        histories were ``before``, and nothing has been appended since."""
        for name in names:
            events = self.events[name]
            known = lost.acked[name]
            kept = len(recovered.acked[name])
            if kept and kept not in events.ends:
                raise _broken(f"{name} ends at {kept}, within an event")

            events.common = {history: min(length, kept) for history, length in events.common.items()}
            events.common[before[name]] = kept
            sent = await self._go_on(recovered, name, known)
            await self._read(recovered, name, sent)

    async def _go_on(self, folder: Folder, name: str, known: bytes) -> int:
        """As the writer that was acked ``known``; returns the length afterwards."""
        events, length = self.events[name], len(folder.acked[name])
        first, believed = events.count(length), events.count(len(known))
        ends, history = events.ends[:believed], max(events.common)
        if first < believed:
            await _lost(folder, f"{name}: event {believed} behind lost ones", _append(name, b"x", believed))
            await _lost(
                folder,
                f"{name}: an append at {len(known)}",
                lambda store: store.append(name, b"x", expected_offset=len(known)),
            )
        until = self._random.choice((first, believed, self._random.randint(first, max(first, believed))))
        for number in range(first, until):
            start, end = ends[number - 1] if number else 0, ends[number]
            for _ in range(2):
                offset = await _must(
                    folder, f"{name}: event {number} again", _append(name, known[start:end], number)
                )
                if offset != start:
                    raise _broken(f"{name}: event {number}, sent again, is at {offset} and not at {start}")
            length = end
        folder.acked[name] += known[len(folder.acked[name]) : length]
        if first < believed:
            # Also if as many bytes are there again.
            await _lost(
                folder,
                f"{name}: an append at {len(known)} of history {history}",
                lambda store: store.append(name, b"x", expected_offset=len(known), history=history),
            )
        return length

    async def _read(self, folder: Folder, name: str, length: int) -> None:
        """As readers that know earlier histories."""
        for history, common in self.events[name].common.items():
            await _lost(
                folder,
                f"{name}: a read at {common + 1} of history {history}",
                lambda store, history=history, common=common: store.read(  # type: ignore[misc]
                    name, common + 1, 1, history=history
                ),
            )
            if common >= folder.starts[name]:
                found = await _must(
                    folder,
                    f"{name}: a read at {common} of history {history}",
                    lambda store, history=history, common=common: store.read(  # type: ignore[misc]
                        name, common, 1, history=history
                    ),
                )
                if found != folder.acked[name][common : common + 1]:
                    raise _broken(f"{name} at {common} has {found!r}")
        await _lost(folder, f"{name}: a read behind its end", lambda store: store.read(name, length + 1, 1))


def _append(name: str, data: bytes, number: int) -> Callable[[SegmentStore], Awaitable[object]]:
    return lambda store: store.append(name, data, writer_id=WRITER, event_number=number)


async def _lost(folder: Folder, what: str, verb: Callable[[SegmentStore], Awaitable[object]]) -> None:
    assert folder.process is not None
    try:
        found = await folder.process.call(verb)
    except HistoryLost:
        return
    except TierlogError as error:
        raise _broken(f"{what}: {error!r}") from error
    raise _broken(f"{what}: {found!r}")


async def _must(folder: Folder, what: str, verb: Callable[[SegmentStore], Awaitable[object]]) -> object:
    assert folder.process is not None
    try:
        return await folder.process.call(verb)
    except TierlogError as error:
        raise _broken(f"{what}: {error!r}") from error


def _broken(what: str) -> Broken:
    return Broken(f"it does not hold that no client mixes two histories\n{what}")

"""The oracle of crash tests: what was acked, what is in doubt, and whether a recovered store agrees.

It never looks at how the store works. A family's client calls one operation after the other, so at a crash
one of them is in doubt: the recovered family is the one with it or the one without it, whole. Racers append
to one segment at the same time: each of their acked records is there once, at the returned offset, in
the order of its racer; the one in doubt once or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from support.segment_model import Family, Op
from tierlog.actors.store.store import SegmentStore


def race_record(racer: str, number: int, size: int) -> bytes:
    """A record that says whose it is and how long."""
    head = b"<%s %d %d>" % (racer.encode(), number, size)
    return head + b"." * size


def race_records(data: bytes) -> Iterator[tuple[int, str, int]]:
    """(offset, racer, number) of each record in ``data``; fails on anything else."""
    position = 0
    while position < len(data):
        end = data.index(b">", position)
        racer, number, size = data[position + 1 : end].split()
        stop = end + 1 + int(size)
        assert data[position : position + 1] + data[end + 1 : stop] == b"<" + b"." * int(size), (
            f"broken record at {position}"
        )
        yield position, racer.decode(), int(number)
        position = stop


@attrs.frozen
class View:
    """What a store shows: each segment as the model would show it."""

    segments: Mapping[str, tuple[object, ...]]

    def family(self, prefix: str) -> dict[str, tuple[object, ...]]:
        return {name: shown for name, shown in self.segments.items() if name.startswith(prefix)}


async def all_names(store: SegmentStore) -> list[str]:
    """Staged segments too, behind their targets."""
    found = []
    for name in await store.list_segments():
        found += [name, *await store.list_segments(f"{name}#txn.")]
    return found


async def observe(store: SegmentStore, writers: Mapping[str, frozenset[str]]) -> View:
    """Read everything. ``writers``: which writers may have state, by segment."""
    segments = {}
    for name in await all_names(store):
        info = await store.segment_info(name)
        data = b""
        while info.start_offset + len(data) < info.length:
            block = await store.read(name, info.start_offset + len(data), 4096)
            assert block, f"{name}: nothing to read at {info.start_offset + len(data)} of {info.length}"
            data += block
        assert await store.read(name, info.length, 1) == b""
        numbers = {
            writer: await store.last_event_number(name, writer) for writer in sorted(writers.get(name, ()))
        }
        known = {writer: number for writer, number in numbers.items() if number is not None}
        segments[name] = (info.start_offset, data, info.sealed, dict(info.attributes), known)
    return View(segments)


@attrs.define
class FamilyState:
    settled: Family = attrs.field(factory=dict)
    pending: Op | None = None

    def copy(self) -> FamilyState:
        return FamilyState(self.settled, self.pending)


@attrs.define
class RaceState:
    """One segment that many append to."""

    created: bool = False
    """Whether its creation was acked."""
    acked: dict[tuple[str, int], int] = attrs.field(factory=dict)
    tried: dict[str, int] = attrs.field(factory=dict)
    """The highest number each racer tried."""

    def copy(self) -> RaceState:
        return RaceState(self.created, dict(self.acked), dict(self.tried))

    def check(self, data: bytes) -> None:
        found: dict[tuple[str, int], int] = {}
        for offset, racer, number in race_records(data):
            assert (racer, number) not in found, f"{racer}'s event {number} is there twice"
            assert number == 1 or (racer, number - 1) in found, (
                f"{racer}'s event {number} is there before or without {number - 1}"
            )
            assert number <= self.tried.get(racer, 0)
            found[racer, number] = offset
        for event, offset in self.acked.items():
            assert found.get(event) == offset, (
                f"acked event {event}: acked at {offset}, found {found.get(event)}"
            )

    def settle(self, data: bytes) -> None:
        self.acked = {(racer, number): offset for offset, racer, number in race_records(data)}


@attrs.define
class Oracle:
    families: dict[str, FamilyState] = attrs.field(factory=dict)
    """By the prefix of their names."""
    races: dict[str, RaceState] = attrs.field(factory=dict)
    """By name."""
    writers: dict[str, frozenset[str]] = attrs.field(factory=dict)

    def copy(self) -> Oracle:
        families = {prefix: state.copy() for prefix, state in self.families.items()}
        return Oracle(
            families, {name: state.copy() for name, state in self.races.items()}, dict(self.writers)
        )

    # --- telling it what happens ---

    async def call(self, store: SegmentStore, prefix: str, op: Op) -> None:
        """Let a family's client call ``op``; the answer must be the model's."""
        state = self.families.setdefault(prefix, FamilyState())
        self._note_writer(op)
        state.pending = op
        answer = await op.send(store)
        expected = op.answer(state.settled)
        assert answer == expected, f"{op} was answered with {answer!r} instead of {expected!r}"
        state.settled, state.pending = op.apply(state.settled), None

    async def create_race(self, store: SegmentStore, name: str) -> None:
        state = self.races.setdefault(name, RaceState())
        await store.create_segment(name, rolling_size=900)
        state.created = True

    async def race(self, store: SegmentStore, name: str, racer: str, number: int, size: int) -> None:
        state = self.races[name]
        self.writers[name] = self.writers.get(name, frozenset()) | {racer}
        state.tried[racer] = number
        offset = await store.append(
            name, race_record(racer, number, size), writer_id=racer, event_number=number
        )
        assert offset is not None
        state.acked[racer, number] = offset

    def _note_writer(self, op: Op) -> None:
        name, writer = getattr(op, "name", ""), getattr(op, "writer", "")
        if writer:
            self.writers[name] = self.writers.get(name, frozenset()) | {writer}

    # --- judging a recovered store ---

    def check(self, view: View) -> None:
        """Every family is what it was, or that plus the operation in doubt; every race holds what it
        promised. Then it is a fact."""
        known = [*self.families, *self.races]
        strangers = [name for name in view.segments if not any(name.startswith(prefix) for prefix in known)]
        assert not strangers, f"segments that nobody made: {strangers}"
        for prefix, state in self.families.items():
            self._check_family(prefix, state, view.family(prefix))
        for name, race in self.races.items():
            self._check_race(name, race, view)

    def _check_family(self, prefix: str, state: FamilyState, found: dict[str, tuple[object, ...]]) -> None:
        if found == _shown(state.settled):
            return

        assert state.pending is not None, f"{prefix}: {_difference(found, _shown(state.settled))}"
        applied = state.pending.apply(state.settled)
        assert found == _shown(applied), (
            f"{prefix}: neither without {state.pending} ({_difference(found, _shown(state.settled))}) "
            f"nor with it ({_difference(found, _shown(applied))})"
        )
        state.settled = applied

    def _check_race(self, name: str, race: RaceState, view: View) -> None:
        if name not in view.segments:
            assert not race.created, f"{name} with {len(race.acked)} acked events is gone"
            return

        race.created = True

        _, data, _, _, writers = view.segments[name]
        assert isinstance(data, bytes)
        race.check(data)
        race.settle(data)
        found = {racer: max(n for r, n in race.acked if r == racer) for racer, _ in race.acked}
        assert writers == found, f"{name}: events {found}, writers' state {writers}"

    def has_doubtful(self) -> bool:
        """Whether ``repeat_doubtful`` would send anything."""
        return bool(self.races) or any(
            state.pending is not None and state.pending.is_idempotent for state in self.families.values()
        )

    def forget_doubtful(self) -> None:
        """What ``repeat_doubtful`` does where there is nothing to send: what was in doubt was checked, and is
        a fact."""
        assert not self.has_doubtful()
        for state in self.families.values():
            state.pending = None

    async def repeat_doubtful(self, store: SegmentStore) -> None:
        """Send every idempotent append in doubt again: it is a duplicate if and only if it was applied."""
        for prefix, state in self.families.items():
            op, state.pending = state.pending, None
            if op is not None and op.is_idempotent:
                await self.call(store, prefix, op)
        for name, race in self.races.items():
            for racer, number in race.tried.items():
                known = race.acked.get((racer, number))
                offset = await store.append(
                    name, race_record(racer, number, 30), writer_id=racer, event_number=number
                )
                assert known in (None, offset), (
                    f"{racer}'s event {number} is at {known}, its repeat was answered with {offset}"
                )
                assert offset is not None
                race.acked[racer, number] = offset


def _shown(family: Family) -> dict[str, tuple[object, ...]]:
    return {name: life.shown() for name, life in family.items()}


def _difference(found: dict[str, tuple[object, ...]], expected: dict[str, tuple[object, ...]]) -> str:
    differing = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    return "; ".join(
        f"{name} is {_brief(found.get(name))} instead of {_brief(expected.get(name))}" for name in differing
    )


def _brief(shown: tuple[object, ...] | None) -> str:
    if shown is None:
        return "missing"

    start, data, *rest = shown
    assert isinstance(data, bytes)
    return f"[{start}+{len(data)} bytes {data[:12]!r}..{data[-12:]!r} {rest}]"

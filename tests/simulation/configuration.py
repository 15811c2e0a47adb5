"""One explanation of the answers that a family's callers got so far, and the walk from one explanation to
those that it can lead to.

A ``Configuration`` is a state and the fate of the pending calls: which of them took effect and what they must
return, which calls in doubt are spent, and what each open call *could* have returned without effect at some
moment since it began. So a call that changes nothing (a query, a refusal, a repeat) is never ordered, and
configurations do not multiply by it. The same events give the same configurations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from .model import Cell, Outcome, State
from .model_calls import Op

Ids = tuple[tuple[tuple[str, int], int], ...]


class TooManyConfigurations(Exception):
    """The calls in doubt allow more explanations than the bound: nothing is known to be wrong, but nothing
    can be decided any more."""


@attrs.define(eq=False)
class Pending:
    """A call that was begun, until it returns or can no longer take effect."""

    number: int
    op: Op
    owner: int
    is_open: bool = True
    """It may still return. Otherwise it is in doubt: it takes effect once or never."""
    is_fenced: bool = False
    """A newer owner has recovered: from now on it takes no effect, though it may still return what was true
    before."""
    reads: frozenset[Cell] = attrs.field(init=False)
    writes: frozenset[Cell] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reads, self.writes = self.op.reads, self.op.writes

    def depends_on(self, other: Pending) -> bool:
        """Whether it matters which of the two is first."""
        return not (self.writes.isdisjoint(other.reads) and other.writes.isdisjoint(self.reads))

    def __str__(self) -> str:
        notes = [
            note for note, holds in (("in doubt", not self.is_open), ("fenced", self.is_fenced)) if holds
        ]
        return (
            f"#{self.number} to owner {self.owner}{' (' + ', '.join(notes) + ')' if notes else ''}: {self.op}"
        )


@attrs.frozen(cache_hash=True)
class Configuration:
    state: State = State()
    applied: tuple[tuple[int, Outcome], ...] = ()
    """Open calls that took effect, and what they must return."""
    spent: tuple[int, ...] = ()
    """Calls in doubt that took effect."""
    seen: tuple[tuple[int, frozenset[Outcome]], ...] = ()
    """What open calls could have returned without effect."""
    ids: Ids = ()
    """The segment ids that were shown, by name and number of the segment."""

    def has_applied(self, call: Pending) -> bool:
        return call.number in self.spent or any(number == call.number for number, _ in self.applied)

    def outcome_of(self, call: Pending) -> Outcome | None:
        return dict(self.applied).get(call.number)

    def seen_by(self, call: Pending) -> frozenset[Outcome]:
        return dict(self.seen).get(call.number, frozenset())

    def noting(self, calls: Iterable[Pending]) -> Configuration:
        """With what these open calls could return without effect in the present state."""
        seen = dict(self.seen)
        applied = dict(self.applied)
        for call in calls:
            if call.number in applied:
                continue

            state, outcome = call.op.apply(self.state)
            if state == self.state:
                seen[call.number] = seen.get(call.number, frozenset()) | {outcome}
        return attrs.evolve(self, seen=tuple(sorted(seen.items(), key=_number)))

    def applying(self, call: Pending, state: State, outcome: Outcome) -> Configuration:
        """After ``call`` took effect."""
        seen = tuple(item for item in self.seen if item[0] != call.number)
        if not call.is_open:
            return attrs.evolve(self, state=state, spent=tuple(sorted((*self.spent, call.number))), seen=seen)

        applied = tuple(sorted((*self.applied, (call.number, outcome)), key=_number))
        return attrs.evolve(self, state=state, applied=applied, seen=seen)

    def without(self, call: Pending) -> Configuration:
        """After everything about ``call`` is settled."""
        return attrs.evolve(
            self,
            applied=tuple(item for item in self.applied if item[0] != call.number),
            spent=tuple(number for number in self.spent if number != call.number),
            seen=tuple(item for item in self.seen if item[0] != call.number),
        )

    def doubting(self, call: Pending) -> Configuration:
        """After its caller lost ``call``: if it took effect it is spent."""
        settled = self.without(call)
        return (
            attrs.evolve(settled, spent=tuple(sorted((*settled.spent, call.number))))
            if self.has_applied(call)
            else settled
        )

    def has_id(self, name: str, number: int, segment_id: int) -> bool:
        """Whether a segment was shown to have ``segment_id``."""
        return ((name, number), segment_id) in self.ids

    def with_id(self, name: str, number: int, segment_id: int) -> Configuration | None:
        """After a segment was shown to have ``segment_id``; None if it has another, or another segment has
        it."""
        known = dict(self.ids)
        if (
            known.setdefault((name, number), segment_id) != segment_id
            or list(known.values()).count(segment_id) > 1
        ):
            return None

        return attrs.evolve(self, ids=tuple(sorted(known.items())))


def _number(item: tuple[int, object]) -> int:
    return item[0]


def distinct(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Without repeats, and without those that differ from another one only in having spent more calls in
    doubt."""
    kept: dict[Configuration, list[set[int]]] = {}
    for configuration in configurations:
        spent = set(configuration.spent)
        others = kept.setdefault(attrs.evolve(configuration, spent=()), [])
        if not any(other <= spent for other in others):
            others[:] = [*(other for other in others if not spent <= other), spent]

    return [attrs.evolve(rest, spent=tuple(sorted(spent))) for rest, sets in kept.items() for spent in sets]


def connected(call: Pending, others: Sequence[Pending]) -> list[Pending]:
    """The calls of ``others`` whose position before or after ``call`` can matter, directly or through each
    other."""
    found, rest = [call], [other for other in others if not other.op.is_spontaneous]
    for known in found:  # it grows meanwhile
        found += [other for other in rest if other.depends_on(known)]
        rest = [other for other in rest if other not in found]
    found += spontaneous_for(found, others)
    return [other for other in others if other in found]


def spontaneous_for(calls: Sequence[Pending], others: Iterable[Pending]) -> list[Pending]:
    """What owners may have done by themselves that ``calls`` would notice. There may be much more of it, so
    all else must wait.

    An operation that ends a transaction on the side, such as the deletion of its target, leaves the same
    behind if its lease was over.
    """
    read: frozenset[Cell] = frozenset().union(*(call.reads for call in calls))
    return [other for other in others if other.op.is_spontaneous and not other.writes.isdisjoint(read)]


Visit = Callable[[Configuration, bool], tuple[bool, bool]]
"""``visit(configuration, flag)`` gives whether to go on from there, and the flag for what comes after."""


class Walk:
    """Walks from a configuration to all that pending calls can make of it, each once."""

    def __init__(self, calls: Iterable[Pending], watching: Sequence[Pending], limit: int) -> None:
        """``calls`` may take effect; ``watching``: open calls that note what they could return on the
        way."""
        able = [call for call in calls if not (call.op.is_query or call.is_fenced)]
        # Of equal calls in doubt the first one stands in for all: let it be the one that a fence takes first.
        self._calls = sorted(able, key=lambda call: (call.owner, call.number))
        self._watching = watching
        self._left = limit
        self.removable = frozenset(name for call in self._calls for name in call.op.removes)
        """Names that may be ended on the way."""

    def from_(self, start: Configuration, visit: Visit, *, flag: bool = False) -> None:
        """Visit ``start``, then what it leads to, in a fixed order."""
        stack = [(start, flag)]
        known = set(stack)
        while stack:
            here, flag = stack.pop()
            self._left -= 1
            if self._left < 0:
                raise TooManyConfigurations("too many orders of the pending calls are possible")

            go_on, flag = visit(here, flag)
            following = [(next_one, flag) for next_one in self._next(here)] if go_on else []
            fresh = [item for item in following if item not in known]
            known.update(fresh)
            stack += reversed(fresh)

    def _next(self, here: Configuration) -> Iterable[Configuration]:
        tried: list[Op] = []
        for call in self._calls:
            if here.has_applied(call) or (not call.is_open and call.op in tried):
                continue

            if not call.is_open:
                tried.append(call.op)
            state, outcome = call.op.apply(here.state)
            if state != here.state:
                yield self.note(here.applying(call, state, outcome))

    def note(self, configuration: Configuration) -> Configuration:
        return configuration.noting(self._watching) if self._watching else configuration

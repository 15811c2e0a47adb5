"""The oracle of crash tests: what was acked, what is in doubt, and whether a recovered store agrees.

It never looks at how the store works. Each family of segments has the simulator's ``Checker``, so a call that
was open at a crash took effect whole or not at all, and calls of several clients in any order that explains
their answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import attrs
from simulation.linearize import Checker
from simulation.model import Segment
from simulation.model_calls import ImplicitImport, Import, Op
from simulation.view import STAGED, SegmentView, View, observe_segment

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import InvalidArgument, SegmentExists
from tierlog.storage_backends.base.names import placement_key

__all__ = ["Oracle", "Unseen", "View", "all_names", "observe"]


class Unseen(ABC):
    """A call that changes nothing in the model."""

    @abstractmethod
    async def send(self, store: SegmentStore) -> Any: ...


async def all_names(store: SegmentStore) -> list[str]:
    """Staged segments too, behind their targets."""
    found = []
    for name in await store.list_segments():
        found += [name, *await store.list_segments(f"{name}{STAGED}")]
    return found


async def observe(store: SegmentStore, writers: Mapping[str, Sequence[str]]) -> View:
    """Read everything but segment ids, which another restore changes. ``writers``: which writers may have
    state, by segment."""
    found = {}
    for name in await all_names(store):
        segment = await observe_one(store, name, writers.get(name, ()))
        found[name] = attrs.evolve(segment, segment_id=None)
    return found


async def observe_one(store: SegmentStore, name: str, writers: Sequence[str]) -> SegmentView:
    """A table is shown as a segment without bytes: its rows are the attributes."""
    info = await store.segment_info(name)
    if not info.is_table:
        return await observe_segment(store, name, writers)

    rows = {row.key.decode(): int(row.value) async for row in store.table(name).items()}
    numbers = {writer: await store.last_event_number(name, writer) for writer in writers}
    return SegmentView(0, b"", info.sealed, rows, numbers, info.segment_id)


def is_repeatable(op: Op) -> bool:
    """Whether a client may send ``op`` again without knowing what became of it."""
    return isinstance(op, (Import, ImplicitImport)) or getattr(op, "writer", None) is not None


@attrs.define
class Oracle:
    checkers: dict[str, Checker] = attrs.field(factory=dict)
    """Checkers by family."""
    latest: dict[str, Op] = attrs.field(factory=dict)
    """The latest call of each client."""
    owner: int = 0
    """How many recovered owners were checked."""

    def after_crash(self) -> Oracle:
        """What is known of the store if it crashes now."""
        checkers = {family: checker.after_crash() for family, checker in self.checkers.items()}
        return Oracle(checkers, dict(self.latest), self.owner)

    def known(self) -> Hashable:
        """Equal for two oracles only if both accept the same, and send the same again."""
        explained = [(family, checker.explanations) for family, checker in self.checkers.items()]
        return tuple(explained), tuple(self._repeatable().items())

    @property
    def writers(self) -> dict[str, tuple[str, ...]]:
        """The writers that may have state, by segment."""
        return {name: found for checker in self.checkers.values() for name, found in checker.writers.items()}

    @property
    def has_pending(self) -> bool:
        return any(checker.pending for checker in self.checkers.values())

    def segments(self) -> dict[str, Segment]:
        """All segments, where no call is in doubt."""
        found: dict[str, Segment] = {}
        for checker in self.checkers.values():
            [state] = checker.states
            found |= dict(state.segments)
        return found

    # --- what happens ---

    async def call(self, store: SegmentStore, client: str, op: Op | Unseen) -> None:
        """``client`` makes a call; the answer must be the model's."""
        if isinstance(op, Unseen):
            self.latest.pop(client, None)
            await op.send(store)
            return

        self.latest[client] = op
        checker = self.checkers.setdefault(op.family, Checker(op.family))
        call = checker.begin(op, self.owner)
        try:
            answer = await op.send(store)
        except (InvalidArgument, SegmentExists) as error:
            checker.refused(call, error)
        else:
            checker.answered(call, answer)

    def check(self, view: View) -> None:
        """``view`` is what a new owner shows: all that was acked, and each call in doubt whole or not at
        all."""
        self.owner += 1
        shown: dict[str, dict[str, Any]] = {family: {} for family in self.checkers}
        for name, segment in view.items():
            family = placement_key(name)
            assert family in shown, f"a segment that nobody made: {name}"
            shown[family][name] = segment
        for family, checker in self.checkers.items():
            checker.fence(self.owner, shown[family])

    def _repeatable(self) -> dict[str, Op]:
        return {client: op for client, op in self.latest.items() if is_repeatable(op)}

    def has_repeatable(self) -> bool:
        """Whether ``repeat_latest`` would send anything."""
        return bool(self._repeatable())

    async def repeat_latest(self, store: SegmentStore) -> None:
        """Every client sends its latest call again, if it can be repeated: the answer says whether it had
        been applied."""
        for client, op in self._repeatable().items():
            await self.call(store, client, op)

"""The legacy layout's segments in the model: an explicit import, and the one that the first access brings
about (rules S14 and S18).

A family's state knows from the start what lies in the legacy layout. Until it is imported it is in no list,
and what a call is told depends on how the store's layout is configured: either there is no such segment, or
nothing can be said before it is imported.

Does not own: the files (``older.py``). Nothing here waits but ``send``, whose cancellation leaves the outcome
to the store.
"""

from __future__ import annotations

import attrs

from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.maintenance import import_segment
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import InvalidArgument, SegmentExists, SegmentNotFound

from .model import Life, Outcome, Refusal, State, Told, refusal
from .model_calls import NAMES, Op, Place, places
from .model_queries import ListNames
from .model_transactions import LookUp


@attrs.frozen
class Import(Op):
    """On demand. A name is imported once: what was deleted or merged since does not come back."""

    name: str

    @property
    def writes(self) -> frozenset[Place]:
        return places(self.name) | {NAMES}

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        return state, refusal(SegmentExists, segment=self.name)

    def apply(self, state: State) -> tuple[State, Outcome]:
        older = dict(state.legacy)
        if state.find(self.name) is not None:
            return super().apply(state)

        life = older.get(self.name)
        if life is not None:
            return state.bring(self.name, life), Told(life.length)

        return state, Refusal(InvalidArgument) if self.name in older else refusal(
            SegmentNotFound, segment=self.name
        )

    async def send(self, store: SegmentStore) -> int:
        return (await import_segment(store, self.name, no_progress)).length


@attrs.frozen
class Bring(Op):
    """What any call may do before it does what it is about, and whatever becomes of it then."""

    name: str

    @property
    def writes(self) -> frozenset[Place]:
        return places(self.name) | {NAMES}

    def apply(self, state: State) -> tuple[State, Outcome]:
        life = dict(state.legacy).get(self.name)
        return (state if life is None or not state.brings else state.bring(self.name, life)), Told(None)


def accesses(op: Op) -> tuple[str, ...]:
    """The names that ``op`` may bring. A list shows what is there, and what nobody knows of a transaction is
    not looked up."""
    return () if isinstance(op, (ListNames, LookUp)) else op.names

"""Full observations of a family, and whether a model state shows the same.

An observation takes many calls: they belong to one moment only while no other call of the family can take
effect. If the owner ends a transaction meanwhile, the observation begins again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import SegmentNotFound
from tierlog.storage_backends.base.segments import AttributeName
from tierlog.storage_backends.base.transactions import is_staged

from .model import Segment, State, brief, plain_values
from .model_calls import ListNames

READ_SIZE = 1 << 16
STAGED = "#txn."


class TornObservation(AssertionError):
    """The answers of one observation contradict each other: a read gave nothing below the length, or
    something at it."""


@attrs.frozen
class SegmentView:
    """One segment as it is seen from outside."""

    start: int = 0
    data: bytes = attrs.field(default=b"", repr=brief)
    sealed: bool = False
    attributes: Mapping[str, int] = attrs.field(factory=dict)
    last_numbers: Mapping[str, int | None] = attrs.field(factory=dict)
    """The last numbers by writer, for the writers that it includes; None for one that is not known."""
    segment_id: int | None = None
    """Compared only with the ids that the checker was shown before."""

    @property
    def length(self) -> int:
        return self.start + len(self.data)


View = Mapping[str, SegmentView]
"""The segments of a family by name, staged ones too, and no other."""


async def observe(
    store: SegmentStore, family: str, writers: Mapping[str, Sequence[str]], targets: Sequence[str] = ()
) -> View:
    """Read everything of a family. ``writers``: whom to ask about, by segment; ``targets``: what may have
    staged segments."""
    while True:
        staged = await staged_names(store, targets)
        names = [*await ListNames(family).send(store), *staged]
        try:
            view = {name: await observe_segment(store, name, writers.get(name, ())) for name in names}
        except SegmentNotFound as error:
            if not is_staged(error.segment):
                raise
            continue
        if await staged_names(store, targets) == staged:
            return view


async def staged_names(store: SegmentStore, targets: Sequence[str]) -> list[str]:
    return [name for target in targets for name in await store.list_segments(f"{target}{STAGED}")]


async def observe_segment(store: SegmentStore, name: str, writers: Sequence[str]) -> SegmentView:
    info = await store.segment_info(name)
    data = b""
    while info.start_offset + len(data) < info.length:
        position = info.start_offset + len(data)
        block = await store.read(name, position, min(READ_SIZE, info.length - position))
        if not block:
            raise TornObservation(
                f"{name}: nothing to read at {position}, though it is {info.length} bytes long"
            )

        data += block

    if await store.read(name, info.length, 1):
        raise TornObservation(f"{name}: there is something to read at {info.length}, though it ends there")

    numbers = {writer: await store.last_event_number(name, writer) for writer in writers}
    attributes = await observe_attributes(store, name)
    return SegmentView(info.start_offset, data, info.sealed, attributes, numbers, info.segment_id)


async def observe_attributes(store: SegmentStore, name: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for prefix in ("", b""):
        after: AttributeName | None = None
        while True:
            page = await store.list_attributes(name, prefix, after=after, limit=2)
            found.update(plain_values(page.attributes))
            if (after := page.after) is None:
                break
    return found


# --- views and states ---------------------------------------------------------------------------


def view_for(state: State, view: View) -> View:
    """What ``state`` shows of the writers that ``view`` includes."""
    return {name: _segment_view(segment, view.get(name, SegmentView())) for name, segment in state.segments}


def _segment_view(segment: Segment, like: SegmentView) -> SegmentView:
    numbers = {writer: segment.last_event(writer) for writer in like.last_numbers}
    return SegmentView(
        segment.start, segment.data, segment.sealed, dict(segment.attributes), numbers, like.segment_id
    )


def shows(state: State, view: View) -> bool:
    return len(state.segments) == len(view) and view_for(state, view) == view


def can_lead_to(state: State, view: View, removable: Collection[str]) -> bool:
    """False if no more calls can make ``state`` show ``view``, unless they end a segment; ``removable``:
    those that they may end."""
    return all(name in removable or _can_grow_to(segment, view.get(name)) for name, segment in state.segments)


def _can_grow_to(segment: Segment, shown: SegmentView | None) -> bool:
    if (
        shown is None
        or segment.start > shown.start
        or segment.length > shown.length
        or segment.sealed > shown.sealed
    ):
        return False

    return shown.data.startswith(segment.data[shown.start - segment.start :])


def difference(state: State, view: View) -> list[str]:
    """One line for each segment that ``view`` shows otherwise than ``state``."""
    expected = view_for(state, view)
    differing = [name for name in sorted({*expected, *view}) if expected.get(name) != view.get(name)]
    return [f"{name} is {_text(view.get(name))}, expected {_text(expected.get(name))}" for name in differing]


def _text(shown: SegmentView | None) -> str:
    return "missing" if shown is None else str(shown)

"""The crash scenarios of segments that leave memory, of users' tables, and of attributes that are rows.

To the model a table is a segment without bytes whose rows are its attributes: the oracle reads it so
(``observe_one``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from msgspec.structs import replace
from simulation.model import Events, Outcome, Part, Refusal, Returned, Segment, State
from simulation.model_calls import Create, Delete, Seal, SegmentOp, UpdateAttributes

from support.crash_enumeration import Scenario
from support.crash_scripts import Flush, alone, append, create, set_attribute
from support.crash_tier2 import MergeRuns, Tier2Limits
from support.crash_world import container, eventually
from support.live_segments import live_ids
from support.oracle import Oracle, Unseen
from support.table_rows import records_of
from tierlog.actors.container.left_rows import MARK_PREFIX
from tierlog.actors.container.options import ContainerOptions
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import TableConflict
from tierlog.storage_backends.base.segments import AttributeName, AttributeUpdate, AttributeUpdateKind
from tierlog.storage_backends.base.tables import ABSENT, TableUpdate


@attrs.frozen(kw_only=True)
class FewInMemory(Tier2Limits):
    """Images keep two attributes and writers."""

    def container(self, config: StoreConfig, *, adopt: bool) -> ContainerOptions:
        return replace(super().container(config, adopt=adopt), image_entries=2)


@attrs.frozen(kw_only=True)
class UnloadAll(Tier2Limits):
    """A checkpoint unloads whatever is idle."""

    active_segments: int = 100

    def container(self, config: StoreConfig, *, adopt: bool) -> ContainerOptions:
        options = super().container(config, adopt=adopt)
        return replace(options, checkpoint=replace(options.checkpoint, idle_segments=0))


# --- calls --------------------------------------------------------------------------------------


@attrs.frozen
class CreateTable(Create):
    async def send(self, store: SegmentStore) -> None:
        await store.create_table(self.name)


@attrs.frozen
class ChangeRows(SegmentOp):
    """Rows are put, or removed where their value is None."""

    name: str
    rows: Mapping[str, int | None] = attrs.field(hash=False)
    writer: str | None = None
    number: int = 0
    is_new: bool = False
    """None of the rows may be there."""
    depends_on: ClassVar = (Part.ATTRIBUTES,)
    changes: ClassVar = (Part.ATTRIBUTES,)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        if self.writer is not None and (segment.last_event(self.writer) or 0) >= self.number:
            return state, Returned(None)
        if self.is_new and not self.rows.keys().isdisjoint(dict(segment.attributes)):
            return state, Refusal(TableConflict)

        rows = {
            key: value
            for key, value in {**dict(segment.attributes), **self.rows}.items()
            if value is not None
        }
        if self.writer is not None:
            segment = segment.appended(b"", self.writer, Events(self.number, self.number, 0))
        return state.put(self.name, attrs.evolve(segment, attributes=tuple(sorted(rows.items())))), Returned(
            None
        )

    async def send(self, store: SegmentStore) -> None:
        expected = ABSENT if self.is_new else None
        updates = [
            TableUpdate(key.encode(), None if value is None else b"%d" % value, expected)
            for key, value in self.rows.items()
        ]
        number = None if self.writer is None else self.number
        await store.table(self.name).update(updates, writer_id=self.writer, event_number=number)


class RowsRemoved(Unseen):
    """Waits until nothing is left of what was deleted."""

    async def send(self, store: SegmentStore) -> Any:
        await eventually(lambda: not _left(store), lambda: f"left: {_left(store)}")


def _left(store: SegmentStore) -> list[str]:
    """Marks of rows that go in the background, and rows of no segment."""
    owner = container(store)
    live = {f"{sid:016x}" for sid in live_ids(owner).values()}
    return [
        key
        for key in records_of(owner)
        if key.startswith(MARK_PREFIX.decode())
        or (key.startswith("a:") and key[2:18] not in live)
        or (key.startswith("r:") and key.encode(errors="surrogateescape")[2:10].hex() not in live)
    ]


async def rows_removed(store: SegmentStore, oracle: Oracle) -> None:
    """Rules M17, M19: whatever was interrupted goes on, and nothing is left of what was deleted."""
    await store.flush()
    await RowsRemoved().send(store)
    await store.flush()


def _sets(name: str, values: Mapping[AttributeName, int], kind: AttributeUpdateKind) -> UpdateAttributes:
    return UpdateAttributes(name, tuple(AttributeUpdate(key, value, kind) for key, value in values.items()))


# --- scenarios ----------------------------------------------------------------------------------

_REPLACE, _ADD, _NONE = (
    AttributeUpdateKind.REPLACE,
    AttributeUpdateKind.ACCUMULATE,
    AttributeUpdateKind.NONE,
)
_ID = bytes(range(16))

UNLOAD = Scenario(
    rules="M4, M5, M8, C7: a checkpoint unloads idle segments, what changes them loads them again, and some "
    "are deleted while they are cold.",
    before=[
        alone(
            create("a/s"),
            append("a/s", "first", 30),
            create("a/t"),
            append("a/t", "second", 40),
            create("a/u"),
            set_attribute("a/u", "epoch", 7),
            Flush(),
        )
    ],
    sessions=[
        alone(
            append("a/t", "on", 10),
            Delete("a/s"),
            set_attribute("a/u", "epoch", 8),
            Seal("a/u"),
            Flush(),
            append("a/t", "end", 10),
        )
    ],
    limits=UnloadAll(),
    reaches=[
        "Begin 2 > Logged LoadSegment > Logged Append > Logged LoadSegment > Logged DeleteSegment",
        "Logged DeleteSegment > Logged ElementCreated > Logged UnloadSegments > Logged CheckpointEnd",
    ],
)
USER_TABLE = Scenario(
    rules="M10, M14, M15, M17, C3: rows are updated, removed and put again while runs are published and "
    "merged; a deleted table leaves nothing.",
    before=[
        alone(CreateTable("a/t"), ChangeRows("a/t", {"a": 1, "b": 2, "c": 3}), CreateTable("a/u"), Flush()),
        alone(ChangeRows("a/u", {"k": 1, "l": 2}), Flush()),
    ],
    sessions=[
        alone(
            ChangeRows("a/t", {"a": 4, "b": None}, "w", 1),
            Flush(),
            MergeRuns(),
            ChangeRows("a/t", {"b": 5}, "w", 2, is_new=True),
            Delete("a/u"),
            ChangeRows("a/t", {"c": None, "d": 6}),
            RowsRemoved(),
            Flush(),
            CreateTable("a/u"),
            ChangeRows("a/u", {"k": 9}, "w", 1),
        )
    ],
    limits=Tier2Limits(merge_fan_out=2),
    settle=rows_removed,
    reaches=[
        "Begin 3 > Logged UpdateTable > Logged LogElement* > Logged ElementCreated > Logged UpdateTable",
        "Begin 3 > Logged ElementCreated > Unlink /data/wal/*/runs/* > Logged DeleteSegment",
        "Logged DeleteSegment > Logged UpdateTable > Logged ForgetRows > Logged CreateTable",
    ],
)
ATTRIBUTE_ROWS = Scenario(
    rules="M19, M4, M10: attributes become rows, are updated by what runs say, and go with their segment.",
    before=[
        alone(
            create("a/s"),
            append("a/s", "bytes", 20),
            _sets("a/s", {"a": 1, "b": 2, "c": 3, _ID: 4}, _REPLACE),
            create("a/t"),
            Flush(),
        )
    ],
    sessions=[
        alone(
            _sets("a/s", {"a": 1, "c": 1, _ID: 1}, _ADD),
            _sets("a/t", {"x": 1, "y": 2, "z": 3}, _NONE),
            Flush(),
            _sets("a/s", {"d": 5, _ID[::-1]: 6}, _NONE),
            Delete("a/s"),
            Flush(),
            RowsRemoved(),
            create("a/s"),
            _sets("a/s", {_ID: 8}, _NONE),
        )
    ],
    limits=FewInMemory(),
    settle=rows_removed,
    reaches=[
        "Begin 2 > Logged SpillAttributes > Logged LogElement* > Logged ElementCreated",
        "Logged UpdateAttributeIds > Logged DeleteSegment > Logged ForgetSegment > Logged LogElement*",
    ],
)
TABLE_SCENARIOS = {"unload": UNLOAD, "user-table": USER_TABLE, "attribute-rows": ATTRIBUTE_ROWS}

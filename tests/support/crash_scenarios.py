"""The scenarios that are crashed at every I/O call: one per protocol, each of a few dozen calls, as data.

Each says in its first line which rules it exercises, and in ``reaches`` what must have happened for that to
be true.
"""

from __future__ import annotations

import anyio
import attrs
import pytest
from simulation.model_calls import Append, Delete, Merge, Op, Seal, Truncate
from simulation.model_transactions import Abort, Begin, Commit, Stage

from support.crash_enumeration import Scenario
from support.crash_held import HELD_SCENARIOS
from support.crash_scenarios_tier2 import TIER2_SCENARIOS
from support.crash_scripts import Flush, Session, alone, append, create, events, merge, set_attribute
from support.crash_tables import TABLE_SCENARIOS
from support.crash_world import Limits
from support.oracle import Unseen
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, StorageFull, TierlogError
from tierlog.storage_backends.base.transactions import LEASE_DEFAULT, StagedPart, TransactionToken


@attrs.frozen
class Refused(Unseen):
    """A call that must end in one of ``errors``, and has no effect."""

    op: Op
    errors: tuple[type[TierlogError], ...]

    async def send(self, store: SegmentStore) -> None:
        with pytest.raises(self.errors):
            await self.op.send(store)


@attrs.frozen
class Awaited(Append):
    """It is refused while the disk is full, and repeated until there is room."""

    async def send(self, store: SegmentStore) -> int | None:
        for _ in range(1000):
            try:
                return await super().send(store)
            except StorageFull:
                await anyio.sleep(0.01)
        raise AssertionError(f"there is still no room for {self}")


_TOKEN = TransactionToken("query", 7)
_PARTS = (StagedPart("a/s#txn.t0.p1", 700), StagedPart("a/s#txn.t0.p0", 120))
PATIENT = Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=1 << 20)
"""Nothing happens by itself: no roll, no cycle, no checkpoint."""

FRESH = Scenario(
    rules="W1, W4, J3, J10: a folder that is not there yet gets its identity, its register, its first log "
    "file, the store record and its first element.",
    sessions=[alone(create("a/s"), append("a/s", "first", 700))],
    limits=PATIENT,
    reaches=[
        (
            "Link */wal/store > Link */wal/0000/register > Open *.wal > Link */_system/store > "
            "Logged LogElement > Link */journal/* > Logged ElementCreated > "
            "Logged CreateSegment > Logged Append"
        )
    ],
)
CONTAINER = Scenario(
    rules="C1, C2, C3: every verb is logged, answered once it is durable, and replayed; repeats change "
    "nothing.",
    before=[alone(create("a/s"), create("a/s#1"), append("a/s#1", "part", 120), create("a/gone"))],
    sessions=[
        alone(
            Append("a/s", events("w", 90), "w", 1),
            Append("a/s", (b"x" * 30, b"y" * 40, b"z" * 50), "w", 2),
            Append("a/s", (b"x" * 30, b"y" * 40, b"z" * 50), "w", 2),
            Append("a/s", events("at", 20), expected_offset=210),
            set_attribute("a/s", "epoch", 7),
            Truncate("a/s", 100),
            Seal("a/s#1"),
            merge("a/s", "a/s#1", batch=1),
            Delete("a/gone"),
            Seal("a/s"),
        )
    ],
    limits=PATIENT,
    reaches=[
        (
            "Begin 2 > Logged Append > Logged UpdateAttributes > Logged TruncateSegment > "
            "Logged SealSegment > Logged MergeSegments"
        ),
        "Logged MergeSegments > Logged DeleteSegment > Logged SealSegment",
    ],
)
WAL = Scenario(
    rules="W2, W3: groups of one sector and of many, of several callers at once, and a kill without a "
    "footer between two owners.",
    before=[Session({"a/": [create("a/s")], "b/": [create("b/s")]})],
    sessions=[
        Session(
            {
                "a/": [append("a/s", "one", 30), append("a/s", "many", 1800)],
                "b/": [append("b/s", "other", 600)],
            },
            killed=True,
        ),
        alone(append("a/s", "two", 520)),
    ],
    limits=PATIENT,
    reaches=["Begin 2 > Logged Append > Logged Append > Begin 3 > Relogged * > Logged Append"],
)
ROLL = Scenario(
    rules="W4, W5, C7: the log rolls while appends go on, a checkpoint becomes durable, and the files below "
    "it are unlinked.",
    before=[alone(create("a/s"), append("a/s", "old", 900), Flush())],
    sessions=[
        alone(
            append("a/s", "fill", 700),
            append("a/s", "more", 600),
            # While the checkpoint is written: it becomes durable before the flush.
            append("a/s", "beside", 30),
            append("a/s", "it", 30),
            Flush(),
            append("a/s", "last", 100),
        )
    ],
    limits=Limits(wal_file=1600, flush=1 << 20, checkpoint=2600),
    reaches=[
        "Begin 2 > Relogged * > Logged Append > Open *0000000000000002-00000002.wal > Logged Append",
        (
            "Logged CheckpointBegin > Logged CheckpointEnd > Unlink *0000000000000001-*.wal > "
            "SyncFolder */wal/0000 > Logged CommitMetadata"
        ),
    ],
)
CHECKPOINT = Scenario(
    rules="C7: a checkpoint is cut in parts, with operations between them; it counts with its end or not at "
    "all.",
    before=[
        alone(
            create("a/s"),
            create("a/t"),
            create("a/u"),
            append("a/s", "old", 100),
            append("a/t", "old", 10),
            append("a/u", "old", 10),
            Flush(),
        )
    ],
    sessions=[
        Session(
            {
                "a/": [append("a/s", "due", 700), append("a/t", "between", 30)],
                "b/": [
                    create("b/s"),
                    append("b/s", "b", 40),
                    append("b/s", "more", 40),
                    Seal("b/s"),
                    Flush(),
                ],
            }
        )
    ],
    limits=Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=1600, checkpoint_part=2),
    reaches=[
        (
            "Begin 2 > Logged CheckpointBegin > Logged CheckpointImages > Logged CheckpointImages > "
            "Logged CheckpointEnd"
        ),
        "Logged CheckpointImages > Logged SealSegment > Logged CheckpointImages",
    ],
)
CHUNKS = Scenario(
    rules="S1, S2, S3, S5: chunks roll, one is appended to, the rest begin anew after a takeover; their "
    "bytes are the segment's.",
    before=[alone(create("a/s", 400), append("a/s", "old", 150), Flush())],
    sessions=[alone(append("a/s", "roll", 500), Flush(), append("a/s", "append", 90), Flush())],
    limits=PATIENT,
    reaches=[
        (
            "Begin 2 > Link */lts/containers/* > Link */lts/containers/* > Logged CommitMetadata > "
            "Logged CycleComplete"
        ),
        "Logged CycleComplete > Write */lts/containers/* > Logged CommitMetadata > Logged CycleComplete",
    ],
)
FLUSH = Scenario(
    rules="F1, F4, F5: a cycle becomes due by size; it brings length, start and seal of two segments over "
    "while appends go on.",
    sessions=[
        Session(
            {
                "a/": [append("a/s", "due", 700), Truncate("a/s", 300), Seal("a/s"), Flush()],
                "b/": [append("b/s", "beside", 500), append("b/s", "late", 60), append("b/s", "later", 70)],
            }
        )
    ],
    before=[Session({"a/": [create("a/s")], "b/": [create("b/s")]})],
    limits=Limits(wal_file=1 << 20, flush=600, checkpoint=1 << 20),
    reaches=[
        (
            "Begin 2 > Write */lts/.tmp-* > Logged CommitMetadata > Logged CycleComplete > "
            "Logged CommitMetadata > Logged CycleComplete"
        )
    ],
)
MERGE_UNFLUSHED = Scenario(
    rules="F3, C2: a merge of sources that long-term storage does not know, through two levels, flushes as "
    "one.",
    before=[
        alone(
            *(create(name) for name in ("a/s", "a/s#1", "a/s#2")), append("a/s#2", "deep", 130), Seal("a/s#2")
        )
    ],
    sessions=[alone(Merge("a/s#1", ("a/s#2",)), Seal("a/s#1"), merge("a/s", "a/s#1", batch=2), Flush())],
    limits=PATIENT,
    reaches=[
        (
            "Logged MergeSegments > Logged MergeSegments > Link */lts/containers/* > Logged CommitMetadata > "
            "Logged CycleComplete"
        )
    ],
)
MERGE_FLUSHED = Scenario(
    rules="F3, S4, S6: a merge of a flushed source links its chunks into the target and touches none.",
    before=[
        alone(
            *(create(name) for name in ("a/s", "a/s#1")),
            append("a/s", "head", 90),
            append("a/s#1", "part", 110),
            Seal("a/s#1"),
            Flush(),
        )
    ],
    sessions=[alone(Merge("a/s", ("a/s#1",)), append("a/s", "tail", 60), Flush(), append("a/s", "end", 20))],
    limits=PATIENT,
    reaches=["Begin 2 > Logged MergeSegments > Logged CommitMetadata > Logged CycleComplete > Logged Append"],
)
COLLECT = Scenario(
    rules="F2, G1, G2, J3: truncated and deleted chunks go after their cycle and a barrier; a dead owner's "
    "leftovers go as well.",
    before=[
        alone(
            create("a/s", 200), append("a/s", "cut", 600), create("a/t"), append("a/t", "gone", 100), Flush()
        )
    ],
    sessions=[alone(Truncate("a/s", 450), Delete("a/t"), Flush(), append("a/s", "on", 30), Flush())],
    limits=PATIENT,
    reaches=[
        (
            "Begin 2 > Logged CommitMetadata > Logged CycleComplete > Logged Barrier > "
            "Unlink */lts/containers/* > Unlink */lts/containers/*"
        ),
        "Begin 2 > Logged LogElementChange > Link */journal/* > Logged ElementCreated",
    ],
)
REBORN = Scenario(
    rules="C2, F1, F2: a segment is deleted and created again under its name while its first life is being "
    "flushed.",
    before=[
        Session(
            {
                "a/": [create("a/s"), append("a/s", "first", 200)],
                "b/": [create("b/s"), append("b/s", "b", 50)],
            }
        )
    ],
    sessions=[
        Session(
            {
                "b/": [Flush()],
                "a/": [append("a/s", "x", 40), Delete("a/s"), create("a/s"), append("a/s", "second", 80)],
                "c/": [Flush()],
            }
        )
    ],
    limits=PATIENT,
    reaches=[
        (
            "Begin 2 > Open */lts/.tmp-* > Logged DeleteSegment > Logged CreateSegment > Logged Append > "
            "Logged CycleComplete"
        )
    ],
)
TRANSACTIONS = Scenario(
    rules="T2, T4, T6, T9: parts join their target in one step with their token, what is left over goes; "
    "another transaction is aborted.",
    before=[alone(create("a/s"), create("a/x"), create("a/y"), append("a/s", "base", 50), Flush())],
    sessions=[
        alone(
            Begin("a/s", "t0", _TOKEN, LEASE_DEFAULT),
            *(Stage("a/s", "t0", part) for part in ("p0", "p1", "p2")),
            append("a/s#txn.t0.p0", "one", 120),
            append("a/s#txn.t0.p1", "two", 700),
            Begin("a/s", "t1", None, LEASE_DEFAULT),
            Stage("a/s", "t1", "p0"),
            append("a/s#txn.t1.p0", "dropped", 90),
            append("a/s", "beside", 20),
            Commit("a/s", "t0", _PARTS, _TOKEN),
            Abort("a/s", "t1"),
            Flush(),
        )
    ],
    limits=Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=5000, checkpoint_part=1),
    reaches=[
        (
            "Begin 2 > Logged BeginTransaction > Logged CreateSegment > Logged CommitTransaction > "
            "Logged AbortTransaction"
        ),
        (
            "Logged CheckpointBegin > Logged CheckpointManifest > Logged CommitTransaction > "
            "Logged CheckpointImages > Logged AbortTransaction > Logged CheckpointImages > "
            "Logged CheckpointEnd"
        ),
        ("Logged CommitTransaction > Logged AbortTransaction > Logged CommitMetadata > Logged CycleComplete"),
    ],
)
FULL = Scenario(
    rules="W6, S22, G6: on a full disk appends are refused before anything is written; truncation, flush, an "
    "element in the reserve and a checkpoint make room again.",
    before=[alone(create("a/s", 4000), append("a/s", "old", 6000), Flush())],
    sessions=[
        alone(
            append("a/s", "fits", 3500),
            Refused(append("a/s", "refused", 12000), (StorageFull,)),
            Truncate("a/s", 7000),
            Flush(),  # with room for a run in the reserve only (rule S22)
            Awaited("a/s", events("room", 500)),
        )
    ],
    limits=Limits(wal_file=3000, flush=1 << 20, checkpoint=1 << 20, low_water=3 * 4096),
    capacity=23 * 4096,
    reaches=[
        "Begin 2 > Logged TruncateSegment > Logged CheckpointEnd > Unlink *.wal > Logged Append",
        "Begin 2 > Logged TruncateSegment > Logged CycleComplete > Logged Append",
        (
            "Begin 2 > Logged TruncateSegment > Unlink */lts/.tierlog-reserve > Link */runs/* > "
            "Logged ElementCreated > Logged Barrier > Unlink */lts/containers/*"
        ),
    ],
)
FULL_OPENINGS = Scenario(
    rules="W6, W9: two openings on a full disk: the first takes the reserve and is killed, the second takes "
    "what the first had allocated and not used.",
    before=[alone(create("a/s", 4000), append("a/s", "old", 3000))],
    sessions=[alone(Truncate("a/s", 1000), killed=True), alone(Delete("a/s"), Flush())],
    limits=attrs.evolve(PATIENT, reserve=3 * 4096),
    capacity=14 * 4096,
    reaches=[
        "Begin 2 > Rename *.wal > Logged TruncateSegment",
        "Begin 3 > Trim *.wal > Open *.wal > Logged DeleteSegment > Logged CheckpointEnd",
    ],
)
ZOMBIE = Scenario(
    rules="W1, W4, W8: an owner frozen behind its sync is succeeded; what it does after it resumes counts "
    "for nothing.",
    zombie=alone(
        create("a/s"),
        Append("a/s", events("doubt", 300), "w", 1),
        Refused(append("a/s", "late", 40), (NotOwner, OutcomeUnknown)),
    ),
    freezes_at="Read */register",
    sessions=[
        Session({"b/": [create("b/s"), append("b/s", "next", 100)]}),
        Session({"b/": [append("b/s", "third", 50)]}),
    ],
    limits=PATIENT,
    reaches=["Begin 1 > Begin 2 > Resume 1 > Fenced 1 > Begin 3 > Logged Append"],
)
RECOVERY = Scenario(
    rules="W3, W4, W5, C7: a recovery after a kill crashes at every call of its own, and is recovered.",
    before=[alone(create("a/s"), append("a/s", "old", 900), Flush(), killed=True)],
    sessions=[alone(append("a/s", "tail", 600), killed=True)],
    limits=Limits(wal_file=1000, flush=1 << 20, checkpoint=1 << 20),
    twice=True,
    reaches=["Begin 2 > Relogged * > Logged Append"],
)
BRIEF = Scenario(
    rules="J7, J8, C7, W9: brief owners left an element and a log file each; a checkpoint makes the files "
    "needless, and an opener deletes the elements but the newest two.",
    before=[
        alone(create("a/s"), append("a/s", "first", 20)),
        *(alone(append("a/s", f"{number}", 10)) for number in range(7)),
    ],
    sessions=[alone(append("a/s", "files", 10)), alone(append("a/s", "elements", 10))],
    limits=PATIENT,
    reaches=[
        "Begin 9 > Logged RelogData > Logged CheckpointEnd > Unlink *.wal > Unlink *.wal > Trim *.wal",
        "Begin 10 > Logged LogElement > Link */journal/* > Logged ElementCreated > Unlink */journal/*",
    ],
)

SCENARIOS = {
    "brief": BRIEF,
    "fresh": FRESH,
    "container": CONTAINER,
    "wal": WAL,
    "roll": ROLL,
    "checkpoint": CHECKPOINT,
    "chunked-storage": CHUNKS,
    "flush": FLUSH,
    "merge-unflushed": MERGE_UNFLUSHED,
    "merge-flushed": MERGE_FLUSHED,
    "gc": COLLECT,
    "reborn": REBORN,
    "transactions": TRANSACTIONS,
    "full-disk": FULL,
    "full-openings": FULL_OPENINGS,
    "zombie": ZOMBIE,
    "recovery": RECOVERY,
    **TABLE_SCENARIOS,
    **HELD_SCENARIOS,
    **TIER2_SCENARIOS,
}

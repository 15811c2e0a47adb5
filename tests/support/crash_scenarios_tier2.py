"""The crash scenarios of long-term storage's own protocols: deferred work, joins, relocation, the legacy
layout, backup and restore.

As in ``crash_scenarios.py``, each says which rules it exercises and what must have happened; its ``settle``
says what must be true beside what holds after every crash (``crash_tier2.py``).
"""

from __future__ import annotations

from simulation.model_calls import Append, Delete, Merge, Seal, Truncate

from support.crash_enumeration import Scenario
from support.crash_layout import BEFORE_UPGRADE, Upgrade, upgraded, upgraded_from_headers
from support.crash_scripts import Call, Flush, Session, alone, append, create, merge, set_attribute
from support.crash_tables import ChangeRows, CreateTable
from support.crash_tier2 import (
    LATER,
    LEGACY_A,
    LEGACY_B,
    NO_DEFRAG,
    AfterBackup,
    Backup,
    Collect,
    Copy,
    DeclaredLost,
    Defrag,
    Export,
    FirstAccess,
    Import,
    LostLogs,
    MergeRuns,
    Pin,
    RunDeferredWork,
    Tier2Limits,
    Unpin,
    accessed,
    copied,
    exported,
    imported,
    imported_in_pieces,
    pinned,
    recovered,
    recovered_alone,
    restored,
    unpinned,
    work_done,
)
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.options import ChunkedOptions

STEPS = Tier2Limits(
    chunked=ChunkedOptions(defrag=NO_DEFRAG, index_spacing=32, inline_records=1, maintenance_records=3)
)
"""An operation looks at one record itself, a step at three; there is an index record for every 32 bytes."""

PIECES = Tier2Limits(
    chunked=ChunkedOptions(defrag=NO_DEFRAG, index_spacing=32, maintenance_records=2, adopt_bytes=1)
)
"""The records of each chunk are a piece of their own, and a step takes two back."""


def _parts(*sizes: int, rolling_size: int = 900) -> list[Call]:
    """Sealed and flushed segments ``a/s#1``, ``a/s#2``...: what is merged out of them has the chunks of
    all."""
    made: list[Call] = []
    for number, size in enumerate(sizes, 1):
        made += [
            create(f"a/s#{number}", rolling_size),
            append(f"a/s#{number}", f"part{number}", size),
            Seal(f"a/s#{number}"),
        ]
    return [*made, Flush()]


def _merge(count: int) -> Merge:
    return merge("a/s", *(f"a/s#{number}" for number in range(1, count + 1)), batch=1)


DEFERRED_TRUNCATE = Scenario(
    rules="S11, F6, F2, G6: a truncation below many chunks is done in steps, one a cycle; the chunks of a "
    "step go after an element with its cycle.",
    before=[alone(create("a/s", 20), append("a/s", "cut", 150), Flush())],
    sessions=[alone(Collect(), Truncate("a/s", 110), Flush(), RunDeferredWork(), Collect())],
    limits=STEPS,
    settle=work_done,
    reaches=[
        (
            "Begin 2 > Logged TruncateSegment > Logged CommitMetadata > Logged CommitMetadata > "
            "Logged CycleComplete > Logged CommitMetadata > Logged CycleComplete > Logged CommitMetadata > "
            "Logged CycleComplete"
        ),
        (
            "Logged CycleComplete > Link */runs/* > Logged ElementCreated > Unlink */lts/containers/* > "
            "Logged CommitMetadata > Logged CycleComplete > Link */runs/* > Logged ElementCreated > "
            "Unlink */lts/containers/*"
        ),
    ],
)
DEFERRED_DELETE = Scenario(
    rules="S11, F6, F2: a deletion of many chunks is done in steps, the segment's record being gone at once.",
    before=[
        alone(
            create("a/s", 20), append("a/s", "gone", 95), create("a/t"), append("a/t", "stays", 30), Flush()
        )
    ],
    sessions=[alone(Delete("a/s"), Flush(), RunDeferredWork(), Collect())],
    limits=STEPS,
    settle=work_done,
    reaches=[
        (
            "Begin 2 > Logged DeleteSegment > Logged CommitMetadata > Logged CommitMetadata > "
            "Logged CycleComplete > Logged CommitMetadata > Logged CycleComplete"
        ),
        "Logged CycleComplete > Logged Barrier > Unlink */lts/containers/*",
    ],
)
DEFERRED_CONCAT = Scenario(
    rules="S11, F3, F6: a splice of many chunks makes its index in steps, beside a truncation that is not "
    "done yet.",
    before=[
        alone(
            create("a/s", 20),
            append("a/s", "head", 55),
            create("a/s#1", 20),
            append("a/s#1", "spliced", 90),
            Seal("a/s#1"),
            Flush(),
        )
    ],
    sessions=[alone(Merge("a/s", ("a/s#1",)), Truncate("a/s", 45), Flush(), RunDeferredWork())],
    limits=STEPS,
    settle=work_done,
    reaches=[
        (
            "Begin 2 > Logged MergeSegments > Logged CommitMetadata > Logged CycleComplete > "
            "Logged CommitMetadata > Logged CycleComplete > Logged CommitMetadata > Logged CycleComplete > "
            "Logged CommitMetadata > Logged CycleComplete"
        )
    ],
)
DEFRAG = Scenario(
    rules="S8, S9: an operator packs a segment of small chunks, copied through memory, run by run; a reader "
    "meets either layout.",
    before=[alone(create("a/s", 150), *_parts(60, 40, 70, 50), _merge(4), Seal("a/s"), Flush())],
    sessions=[alone(Defrag("a/s"), Collect())],
    limits=Tier2Limits(),
    settle=work_done,
    reaches=[
        (
            "Begin 2 > Link */lts/containers/* > Logged CommitMetadata > Link */lts/containers/* > "
            "Logged CommitMetadata"
        ),
        "Logged CommitMetadata" + 4 * " > Unlink */lts/containers/*",
    ],
)
DEFRAG_DEFERRED = Scenario(
    rules="S8, S9, S11, F6: small chunks that a merge brings are joined by deferred work, inside the "
    "storage, and grow on as more come.",
    before=[alone(create("a/s"), *_parts(70, rolling_size=20))],
    sessions=[alone(_merge(1), Flush(), RunDeferredWork())],
    limits=Tier2Limits(chunked=ChunkedOptions(defrag=DefragOptions(loose_chunks=2, native_min=0, growth=2))),
    settle=work_done,
    reaches=[
        (
            "Begin 2 > Logged MergeSegments > Logged CommitMetadata > Link */lts/containers/* > "
            "Logged CommitMetadata"
        ),
        "Link */lts/containers/* > Logged CommitMetadata > Logged CycleComplete",
    ],
)
DEFRAG_INLINE = Scenario(
    rules="S8, S9, S6: a merge joins small chunks before its commit, which has the splice and the new chunk "
    "or neither.",
    before=[alone(create("a/s"), *_parts(70, rolling_size=20))],
    sessions=[alone(_merge(1), Flush(), Flush(), Collect())],
    limits=Tier2Limits(chunked=ChunkedOptions(defrag=DefragOptions(loose_chunks=2, growth=2, inline=True))),
    settle=work_done,
    reaches=[
        (
            "Begin 2 > Logged MergeSegments > Link */lts/containers/* > Logged CommitMetadata > "
            "Unlink */lts/containers/*"
        )
    ],
)
RELOCATE = Scenario(
    rules="S10, S8, S11: the live rest of a mostly truncated first chunk moves as a part of the deferred "
    "work, never of the truncation.",
    before=[alone(create("a/s", 200), append("a/s", "old", 300), Flush())],
    sessions=[alone(Truncate("a/s", 180), Flush(), RunDeferredWork(), append("a/s", "on", 30), Flush())],
    limits=Tier2Limits(chunked=ChunkedOptions(defrag=DefragOptions(loose_chunks=0, relocate_above=0))),
    settle=work_done,
    reaches=[
        (
            "Begin 2 > Logged TruncateSegment > Logged CommitMetadata > Link */lts/containers/* > "
            "Logged CommitMetadata"
        ),
        (
            "Link */lts/containers/* > Logged CommitMetadata > Logged CycleComplete > "
            "Unlink */lts/containers/*"
        ),
    ],
)
IMPORT = Scenario(
    rules="S14, S3, F2, S19, G3: two segments of the legacy layout come in, one grows, one is deleted with "
    "its files and never comes back.",
    before=[Session({"a/": [LEGACY_A], "b/": [LEGACY_B]})],
    sessions=[
        Session(
            {
                "a/": [Import("a/o"), append("a/o", "new", 30), Flush()],
                "b/": [Import("b/o"), Delete("b/o"), Flush(), Flush(), Collect()],
            }
        )
    ],
    limits=Tier2Limits(),
    settle=imported,
    reaches=[
        "Begin 2 > Logged ImportSegment > Logged Append > Logged CommitMetadata > Logged CycleComplete",
        (
            "Logged ImportSegment > Logged DeleteSegment > Logged CommitMetadata > "
            "Unlink */lts/b/o$offset.* > Logged CommitMetadata"
        ),
    ],
)
IMPORT_PIECES = Scenario(
    rules="S14, S11: the records of a segment of many chunks come in pieces before it; what a crash leaves "
    "of them goes, and no file does.",
    before=[alone(LEGACY_A)],
    sessions=[alone(Import("a/o"), append("a/o", "new", 30), Flush(), RunDeferredWork())],
    limits=PIECES,
    settle=imported_in_pieces,
    reaches=[
        (
            "Begin 2 > Logged CommitMetadata > Logged CommitMetadata > Logged CommitMetadata > "
            "Logged ImportSegment > Logged Append > Logged CycleComplete"
        )
    ],
)
FIRST_ACCESS = Scenario(
    rules="S14, S15, F2: a segment of the legacy layout comes in at first access, and its header follows "
    "each flush.",
    before=[alone(LEGACY_A)],
    sessions=[alone(FirstAccess("a/o", LEGACY_A), append("a/o", "new", 30), Flush())],
    limits=Tier2Limits(layout=LayoutMode.CODE_ONLY_UPGRADE),
    settle=accessed,
    reaches=[
        "Begin 2 > Logged ImportSegment > Logged Append > Logged CycleComplete > Write */lts/a/o$header"
    ],
)
LAYOUT_UPGRADE = Scenario(
    rules="S18, S14, S3: a store that kept headers up to date is upgraded for good; legacy segments come in, "
    "no header is written.",
    before=[alone(create("a/s"), append("a/s", "kept", BEFORE_UPGRADE), Flush())],
    sessions=[alone(FirstAccess("a/o", LEGACY_A), append("a/s", "on", 20), Flush())],
    limits=Upgrade(first=2),
    settle=upgraded_from_headers,
    reaches=["Begin 2 > Rename */wal/layout > Relogged * > Logged ImportSegment > Logged Append"],
)
LAYOUT_UPGRADE_FIRST = Scenario(
    rules="S18, S14, W8: a new folder is upgraded at its first opening, over legacy segments that only their "
    "own software has seen.",
    sessions=[alone(FirstAccess("a/o", LEGACY_A), append("a/o", "new", 30), Flush())],
    limits=Upgrade(first=1),
    settle=upgraded,
    reaches=[
        (
            "Link */wal/store > Rename */wal/layout > Open *.wal > Link */journal/* > Logged ImportSegment > "
            "Logged CycleComplete"
        )
    ],
)
EXPORT = Scenario(
    rules="S15: a header appears whole, is appended to while chunks are added, and written again when some "
    "go; the seal is shown last.",
    before=[alone(create("a/s", 40), append("a/s", "old", 70), Flush())],
    sessions=[
        alone(
            Export("a/s"),
            append("a/s", "new", 30),
            Flush(),
            Export("a/s"),
            Truncate("a/s", 50),
            Seal("a/s"),
            Flush(),
            Export("a/s"),
        )
    ],
    limits=Tier2Limits(),
    settle=exported,
    reaches=[
        ("Begin 2 > Link */lts/a/s$header > Logged Append > Write */lts/a/s$header > Logged TruncateSegment"),
        (
            "Logged SealSegment > Unlink */lts/a/s$header > Link */lts/a/s$header > "
            "SetReadOnly */lts/a/s$header"
        ),
    ],
)
PIN = Scenario(
    rules="P1 to P3: a backup is an element with a pin, then its record; without the record it is dropped.",
    before=[
        alone(
            create("a/s", 40),
            Append("a/s", (b"x" * 70,), "w", 1),
            create("a/t"),
            append("a/t", "t", 30),
            Flush(),
        )
    ],
    sessions=[alone(append("a/s", "unflushed", 30), Pin())],
    limits=Tier2Limits(),
    settle=pinned,
    reaches=[
        (
            "Begin 2 > Logged Append > Logged LogElement* > Link */lts/_system/*/journal/* > "
            "Logged ElementCreated > Logged LogElement* > Link */lts/_system/*/journal/* > "
            "Logged ElementCreated > Link */lts/_system/pins/b"
        )
    ],
)
COPY = Scenario(
    rules="P7: a copy of a later backup leaves the earlier one whole at any moment, and goes on.",
    before=[alone(create("a/s", 40), append("a/s", "x", 70), Pin(), Copy())],
    sessions=[alone(append("a/s", "y", 5), Pin(LATER), Copy(LATER))],
    limits=Tier2Limits(),
    settle=copied,
    reaches=[
        (
            "Begin 2 > Link */lts/_system/pins/c > Link /copies/_system/*/runs/* > "
            "Write /copies/containers/* > Link /copies/_system/pins/c > Link /copies/_system/*/journal/*"
        )
    ],
)
UNPIN = Scenario(
    rules="P2 to P4: what is deleted stays while a backup needs it, and goes once its record is gone.",
    before=[
        alone(
            create("a/s", 40),
            append("a/s", "x", 70),
            create("a/t"),
            append("a/t", "t", 30),
            Flush(),
            Pin(),
            Delete("a/t"),
            Flush(),
        )
    ],
    sessions=[alone(Unpin(), append("a/s", "more", 30), Flush(), Collect())],
    limits=PIECES,
    settle=unpinned,
    reaches=[
        "Begin 2 > Unlink */lts/_system/pins/b > Logged LogElement* > Logged ElementCreated",
        "Logged ElementCreated > Logged Barrier > Unlink */lts/containers/*",
    ],
)
RESTORE = Scenario(
    rules="S17, S16, S18: the logs are made again from a backup and appear by one rename; what is newer is "
    "collected after it.",
    before=[
        alone(
            create("a/s", 40),
            Append("a/s", (b"x" * 70,), "w", 1),
            set_attribute("a/s", "epoch", 7),
            Truncate("a/s", 10),
            Flush(),
            Backup(upgraded=True),
            AfterBackup(append("a/s", "newer", 50)),
            Flush(),
        )
    ],
    sessions=[alone(append("a/s", "on", 30))],
    limits=LostLogs(chunked=PIECES.chunked),
    settle=restored,
    reaches=[
        (
            "Begin 2 > Link */.restoring/wal/store > Rename */.restoring/wal/layout > "
            "Logged CommitMetadata > Logged CommitMetadata > Logged ImportSegment > Rename /data/wal"
        ),
        "Rename /data/wal > SyncFolder /data > Unlink /data/.restoring/lock > Relogged * > Logged Append",
    ],
)

RECOVER = Scenario(
    rules="R1, R4 to R7: the logs are made again from long-term storage alone; the chain is claimed before "
    "they appear by one rename.",
    before=[
        alone(
            create("a/s", 40),
            Append("a/s", (b"x" * 70,), "w", 1),
            set_attribute("a/s", "epoch", 7),
            Truncate("a/s", 10),
            CreateTable("a/t"),
            ChangeRows("a/t", {"a": 1}, "w", 1),
            Flush(),
            AfterBackup(append("a/s", "newer", 50)),
        )
    ],
    sessions=[alone(append("a/s", "on", 30), ChangeRows("a/t", {"a": 2}, "w", 2), Flush())],
    limits=LostLogs(has_backup=False),
    settle=recovered,
    reaches=[
        (
            "Begin 2 > Link */.restoring/wal/store > Write */.restoring/wal/0000/*.wal > "
            "Link */lts/_system/*/journal/* > Rename /data/wal > SyncFolder /data"
        ),
        "Rename /data/wal > Unlink /data/.restoring/lock > Logged LogElement* > Logged Append",
    ],
)

RECOVER_CONTAINER = Scenario(
    rules="R11: the log of one container is replaced: the lost one is moved away, the chain is claimed, and "
    "the new one appears by one rename.",
    before=RECOVER.before,
    sessions=RECOVER.sessions,
    limits=DeclaredLost(),
    settle=recovered_alone,
    reaches=[
        (
            "Begin 2 > Write */.restoring/0000/0000/*.wal > Rename /data/wal/0000-before-* > "
            "Link */lts/_system/*/journal/* > Rename /data/wal/0000 > SyncFolder /data/wal"
        ),
        "SyncFolder /data/wal > Unlink /data/.restoring/lock > Logged LogElement* > Logged Append",
    ],
)

RESTORE_PIN = Scenario(
    rules="P5, P6: the logs are made again as of a backup; what is newer is collected after it.",
    before=[
        alone(
            create("a/s", 40),
            Append("a/s", (b"x" * 70,), "w", 1),
            set_attribute("a/s", "epoch", 7),
            Truncate("a/s", 10),
            CreateTable("a/t"),
            ChangeRows("a/t", {"a": 1}, "w", 1),
            Pin(),
            AfterBackup(append("a/s", "newer", 50)),
            Flush(),
        )
    ],
    sessions=[alone(append("a/s", "on", 30), ChangeRows("a/t", {"a": 2}, "w", 2), Flush())],
    limits=LostLogs(has_backup=False, is_pinned=True),
    settle=recovered,
    reaches=[
        (
            "Begin 2 > Link */.restoring/wal/store > Write */.restoring/wal/0000/*.wal > "
            "Link */lts/_system/*/journal/* > Rename /data/wal > SyncFolder /data"
        ),
    ],
)

MERGE_RUNS = Scenario(
    rules="M6, M7, M10, M11, J3, J5, J8: rows are published and merged; an element counts before the local "
    "copies and the objects of merged runs go.",
    before=[
        alone(create("a/s"), append("a/s", "first", 30), create("a/t"), Flush()),
        alone(append("a/s", "more", 30), Flush()),
    ],
    sessions=[alone(Delete("a/t"), Flush(), MergeRuns(), set_attribute("a/s", "b", 1), Flush(), Collect())],
    limits=Tier2Limits(chunked=ChunkedOptions(defrag=NO_DEFRAG), merge_fan_out=2),
    reaches=[
        "Logged LogElement* > Link */lts/_system/*/journal/* > Logged ElementCreated",
        "Logged LogElement* > Logged ElementCreated > Unlink /data/wal/*/runs/*",
        "Logged Barrier > Unlink */lts/_system/*/runs/*",
    ],
)

TIER2_SCENARIOS = {
    "merge-runs": MERGE_RUNS,
    "deferred-truncate": DEFERRED_TRUNCATE,
    "deferred-delete": DEFERRED_DELETE,
    "deferred-concat": DEFERRED_CONCAT,
    "defrag": DEFRAG,
    "defrag-deferred": DEFRAG_DEFERRED,
    "defrag-inline": DEFRAG_INLINE,
    "relocate": RELOCATE,
    "import": IMPORT,
    "import-pieces": IMPORT_PIECES,
    "first-access": FIRST_ACCESS,
    "layout-upgrade": LAYOUT_UPGRADE,
    "layout-upgrade-first": LAYOUT_UPGRADE_FIRST,
    "export": EXPORT,
    "pin": PIN,
    "copy": COPY,
    "unpin": UNPIN,
    "restore": RESTORE,
    "restore-pin": RESTORE_PIN,
    "recover": RECOVER,
    "recover-container": RECOVER_CONTAINER,
}

"""The crash scenarios of long-term storage: what an order of calls shows that no crash can, and that their
checks can fail."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import partial
from random import Random
from unittest import mock

import pytest

from support.crash_checker import CrashChecker
from support.crash_enumeration import live, missing
from support.crash_scenarios import SCENARIOS
from support.virtual import run_virtual
from tierlog.actors.folder import layout_version, restore_folder
from tierlog.actors.legacy_rolling import importing
from tierlog.actors.legacy_rolling.file_claims import claim_files
from tierlog.actors.legacy_rolling.header import header_name
from tierlog.actors.store import opening
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import Close, Open, Program, Rename, SyncFolder, Write
from tierlog.storage_backends.segments.operations import deferred_work

CHUNK = "Unlink */lts/containers/*"


@pytest.mark.parametrize("scenario", ["deferred-truncate", "deferred-delete", "defrag-deferred", "relocate"])
def test_no_chunk_of_deferred_work_goes_before_the_end_of_its_cycle(scenario: str) -> None:
    """Rules F2, F6. The log alone would forgive it: no crash can show it while recovery needs nothing but the
    log."""
    events = run_virtual(partial(live, SCENARIOS[scenario], 0), 0).events
    begin = events.index("Begin 2")
    until_the_end = events[begin : events.index("Logged CycleComplete", begin)]
    assert not missing(until_the_end, "Logged CommitMetadata")
    assert missing(until_the_end, CHUNK)


def test_the_chunks_of_each_step_of_a_truncation_go_after_an_element_with_its_cycle() -> None:
    """Rules S11, F6, G6. Garbage is collected between the steps; the cycle of a step alone has no element."""
    events = run_virtual(partial(live, SCENARIOS["deferred-truncate"], 0), 0).events
    kinds = {
        "Logged CommitMetadata": "step",
        "Logged CycleComplete": "cycle",
        "Link */runs/*": "run",
        "Logged ElementCreated": "element",
        CHUNK: "chunk",
    }
    begin = events.index("Logged CommitMetadata", events.index("Begin 2")) + 1  # behind the truncation's
    found = [kind for event in events[begin:] for pattern, kind in kinds.items() if fnmatch(event, pattern)]
    published = ["run", "element", "element"]  # with the rows, and of the proof (G1)
    assert found == [
        *("step", "cycle"),
        *("step", "cycle", *published, *3 * ["chunk"]),
        *("step", "cycle", "cycle", *published, *2 * ["chunk"]),
    ]


def _crash_at_calls(scenario: str) -> None:
    checker = CrashChecker(SCENARIOS[scenario])
    for instant in run_virtual(partial(live, SCENARIOS[scenario], 0), 0).instants:
        checker.crash(instant, "none", Random(0))


def _remake_without_sync(path: str, temporary: str, content: bytes) -> Program[None]:
    handle = yield Open(temporary, write=True, create=True)
    yield Write(handle, 0, [content])
    yield Close(handle)
    yield Rename(temporary, path)
    yield SyncFolder(os.path.dirname(path))


async def _remove_header_before_commit(chunks: ChunkStorage, name: str, files: Iterable[str]) -> None:
    await claim_files(chunks, name, files)
    await chunks.delete(header_name(name))


@pytest.mark.parametrize(
    "scenario, place, name, planted",
    [
        (
            "deferred-delete",
            deferred_work,
            "_record",
            lambda txn, stored, left: txn.defer(left) if stored is None else txn.metadata.drop(stored),
        ),
        ("layout-upgrade", layout_version, "remake_name", lambda *_: iter(())),
        ("layout-upgrade-first", layout_version, "remake_name", _remake_without_sync),
        ("layout-upgrade-first", importing, "claim_files", _remove_header_before_commit),
    ],
)
def test_a_planted_bug_is_caught(scenario: str, place: object, name: str, planted: object) -> None:
    """A step takes its deferred work out although something is left; a layout's mark is not durable before
    the store is opened, its name or its bytes; an import takes the header before its commit."""
    with mock.patch.object(place, name, planted), pytest.raises((AssertionError, TierlogError)):
        _crash_at_calls(scenario)


def _sync_nothing(folder: str) -> Program[None]:
    yield from ()


def test_a_rename_at_the_end_of_a_restore_that_nobody_syncs_is_caught() -> None:
    """Neither the restore nor the next opening."""
    with (
        mock.patch.object(restore_folder, "sync_ancestry", _sync_nothing),
        mock.patch.object(opening, "sync_ancestry", _sync_nothing),
        pytest.raises((AssertionError, TierlogError)),
    ):
        _crash_at_calls("restore")

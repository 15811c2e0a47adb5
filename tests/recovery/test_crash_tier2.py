"""The crash scenarios of long-term storage: what an order of calls shows that no crash can, and that their
checks can fail."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from unittest import mock

import pytest

from support.crash_checker import CrashChecker
from support.crash_enumeration import live, missing
from support.crash_scenarios import SCENARIOS
from support.virtual import run_virtual
from tierlog.actors.folder import layout_version as layout_mark
from tierlog.actors.legacy_rolling import importing
from tierlog.actors.legacy_rolling.file_claims import claim_files
from tierlog.actors.legacy_rolling.header import header_name
from tierlog.actors.maintenance import restore as restore_module
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import Close, Open, Program, Write
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


def _crash_at_calls(scenario: str) -> None:
    checker = CrashChecker(SCENARIOS[scenario])
    for instant in run_virtual(partial(live, SCENARIOS[scenario], 0), 0).instants:
        checker.crash(instant, "none", Random(0))


def _write_without_sync(path: str, content: bytes) -> Program[None]:
    handle = yield Open(path, write=True, create=True)
    yield Write(handle, 0, [content])
    yield Close(handle)


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
        ("restore", restore_module, "sync_ancestry", lambda folder: iter(())),
        ("layout-upgrade", layout_mark, "sync_name", lambda *_: iter(())),
        ("layout-upgrade-first", layout_mark, "write_file", _write_without_sync),
        ("layout-upgrade-first", importing, "claim_files", _remove_header_before_commit),
    ],
)
def test_a_planted_bug_is_caught(scenario: str, place: object, name: str, planted: object) -> None:
    """A step takes its deferred work out although something is left; the rename that ends a restore is not
    synced.

    A layout's mark is not durable before the store is opened, its name or its bytes; an import takes the
    header before its commit.
    """
    with mock.patch.object(place, name, planted), pytest.raises((AssertionError, TierlogError)):
        _crash_at_calls(scenario)

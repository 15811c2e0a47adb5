"""Queries that go on across a recovery from long-term storage alone: they fail, and say what to do (rule
R10). The store is real, Spark is not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from support.service import service
from tierlog import HistoryLost, StoreConfig, SyncClient, TransactionToken, connect_sync, events
from tierlog.actors.folder.paths import check_path
from tierlog.actors.settings.configuration import WriterConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.recover import recover_store
from tierlog.spark_bridge.identity import Identity
from tierlog.spark_bridge.options import parse_options
from tierlog.spark_bridge.ranges import Range
from tierlog.spark_bridge.reader import RangePartition, check_same
from tierlog.spark_bridge.staging import check_batches
from tierlog.spark_bridge.stream_reader import (
    HISTORIES,
    TierlogStreamReader,
    histories_of,
    offsets_of,
    position,
)
from tierlog.storage_backends.files.local import LocalFiles

QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0))
NAME = "events"
FRAME = len(events.encode([b"x"]))


@contextmanager
def connected(folder: Path) -> Iterator[SyncClient]:
    with service(folder, config=QUIET) as url, connect_sync(url) as client:
        yield client


def lose(folder: Path) -> None:
    shutil.rmtree(folder / "wal")
    anyio.run(recover_store, check_path(folder), QUIET, LocalFiles(), system_world())


def append(client: SyncClient, *contents: bytes) -> None:
    client.append(NAME, events.encode(list(contents)))


def make(folder: Path) -> None:
    """Two events are flushed, and two are lost."""
    with connected(folder) as client:
        client.create_segment(NAME)
        append(client, b"0", b"1")
        client.flush()
        append(client, b"2", b"3")
    lose(folder)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Callable[[SyncClient], TierlogStreamReader]:
    """A query's reader, as Spark makes it again at each start."""

    def stream(client: SyncClient) -> TierlogStreamReader:
        monkeypatch.setattr("tierlog.spark_bridge.stream_reader.connections.client", lambda options: client)
        return TierlogStreamReader(parse_options({"endpoint": "http://127.0.0.1:1", "path": NAME}), ())

    return stream


Stream = Callable[[SyncClient], TierlogStreamReader]


def test_a_position_of_a_store_that_was_never_recovered_has_offsets_only() -> None:
    assert position({"a": 1}, {"a": 0}) == {"a": 1}
    assert histories_of({"a": 1}) == {"a": 0}


def test_a_position_keeps_the_histories_of_its_offsets() -> None:
    at = position({"a": 1, "b": 2}, {"a": 7})
    assert at == {"a": 1, "b": 2, HISTORIES: {"a": 7}}
    assert offsets_of(at) == {"a": 1, "b": 2}
    assert histories_of(at) == {"a": 7, "b": 0}


def test_a_query_that_read_what_is_lost_fails_and_says_what_to_do(tmp_path: Path, stream: Stream) -> None:
    make(tmp_path)
    with connected(tmp_path) as client:
        for contents in ([], [b"4", b"5", b"6"]):
            if contents:
                append(client, *contents)
            with pytest.raises(HistoryLost, match=f'startingOffsets {{"{NAME}": {2 * FRAME}}}'):
                stream(client).latestOffset({NAME: 4 * FRAME}, ReadAllAvailable())


def test_a_query_that_lacks_nothing_goes_on_in_the_new_history(tmp_path: Path, stream: Stream) -> None:
    make(tmp_path)
    with connected(tmp_path) as client:
        now = client.segment_info(NAME).history
        append(client, b"4")
        end = stream(client).latestOffset({NAME: 2 * FRAME}, ReadAllAvailable())
        assert end == {NAME: 3 * FRAME, HISTORIES: {NAME: now}}
        assert json.loads(json.dumps(end)) == end
        [part] = stream(client).partitions({NAME: 2 * FRAME}, end)
        assert isinstance(part, RangePartition)
        assert part.range == Range(NAME, None, 2 * FRAME, 3 * FRAME, now)
        assert stream(client).initialOffset() == {NAME: 0, HISTORIES: {NAME: now}}


def test_a_task_of_a_micro_batch_that_was_planned_before_the_recovery_fails(
    tmp_path: Path, stream: Stream
) -> None:
    make(tmp_path)
    with connected(tmp_path) as client:
        append(client, b"4", b"5")
        [lost] = stream(client).partitions({NAME: FRAME}, {NAME: 4 * FRAME})
        [whole] = stream(client).partitions({NAME: FRAME}, {NAME: 2 * FRAME})
        assert isinstance(lost, RangePartition)
        assert isinstance(whole, RangePartition)
        with pytest.raises(HistoryLost):
            check_same(client, lost.range)
        check_same(client, whole.range)


def test_a_query_whose_commits_are_lost_fails_at_its_next_one(tmp_path: Path) -> None:
    def commit(client: SyncClient, epoch: int) -> None:
        identity = Identity(NAME, f"t{epoch}", TransactionToken("q", epoch), 60.0)
        check_batches(client, identity)
        client.begin_transaction(NAME, identity.transaction_id, identity.token)
        client.commit_transaction(NAME, identity.transaction_id, [], identity.token)

    with connected(tmp_path) as client:
        client.create_segment(NAME)
        commit(client, 3)
        client.flush()
        commit(client, 4)
        commit(client, 5)
    lose(tmp_path)
    with connected(tmp_path) as client:
        with pytest.raises(
            HistoryLost, match="the micro-batches 4 to 5 .* above 4 in offsets/ and above 3 in"
        ):
            commit(client, 6)
        for epoch in (3, 4, 5, 6):
            commit(client, epoch)

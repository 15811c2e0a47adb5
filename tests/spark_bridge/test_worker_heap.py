"""The heap of a worker that is used again: its modules are frozen, once, in Spark's workers only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import spark as support
from tierlog import SyncClient
from tierlog.spark_bridge.worker_heap import WorkerHeap

DAEMON = "pyspark.daemon"


@pytest.mark.parametrize(("program", "expected"), [(DAEMON, [0, 1, 1, 1]), ("notebook", [0, 0, 0, 0]), ("", [0, 0, 0, 0])])
def test_a_worker_of_sparks_daemon_freezes_its_heap_when_its_second_piece_of_work_begins(program: str, expected: list[int]) -> None:
    freezes: list[str] = []
    heap = WorkerHeap(lambda: freezes.append("frozen"), lambda: program)
    found = []
    for _ in range(4):
        heap.begin()
        found.append(len(freezes))

    assert found == expected


def test_a_program_is_known_by_the_module_it_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text("from tierlog.spark_bridge.worker_heap import program\nprint(repr(program()))\n")

    def told(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert told("-m", "starter") == "'starter'\n"
    assert told("starter.py") == "''\n"


def test_each_piece_of_work_says_once_that_it_begins(url: str, store: SyncClient, segment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the steps in which Spark's workers do them, each step being a piece of work."""
    if reason := support.missing():
        pytest.skip(reason)

    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType

    from tierlog.spark_bridge import TierlogDataSource

    begun: list[None] = []
    monkeypatch.setattr(WorkerHeap, "begin", lambda self: begun.append(None))
    schema = StructType([StructField("value", BinaryType())])
    source = TierlogDataSource({"endpoint": url, "segment": segment, "includemetadata": "false", "delivery": "at-least-once"})
    batch = pa.record_batch([pa.array([b"one", b"two"], pa.binary())], ["value"])

    def once(act: Callable[[], Any]) -> Any:
        begun.clear()
        value = act()
        assert len(begun) == 1
        return value

    writer = once(lambda: source.writer(schema, False))
    message = once(lambda: writer.write(iter([batch])))
    once(lambda: writer.commit([message]))
    once(lambda: writer.abort([None]))
    stream_writer = once(lambda: source.streamWriter(schema, False))
    message = once(lambda: stream_writer.write(iter([batch])))
    once(lambda: source.streamWriter(schema, False).commit([message], 0))
    once(lambda: source.streamWriter(schema, False).abort([None], 0))
    reader = once(lambda: source.reader(schema))
    [part] = reader.partitions()
    assert sum(found.num_rows for found in once(lambda: list(reader.read(part)))) == 4
    assert sum(found.num_rows for found in once(lambda: list(source.streamReader(schema).read(part)))) == 4


def test_workers_that_spark_uses_again_have_a_frozen_heap(spark: Any, url: str, segment: str, tmp_path: Path) -> None:
    """On the driver and in tasks."""
    notes = tmp_path / "notes"
    notes.touch()
    spark.dataSource.register(noting(str(notes)))
    for _ in range(3):
        support.numbered(spark, 100, 1).write.format("noting").option("endpoint", url).mode("append").save(segment)

    frozen: dict[tuple[str, str], list[int]] = defaultdict(list)
    for line in notes.read_text().splitlines():
        what, pid, count = line.split()
        frozen[what, pid].append(int(count))
    assert {what for what, _ in frozen} == {"plan", "write", "commit"}
    again = {key: counts[1:] for key, counts in frozen.items() if len(counts) > 1}
    assert {what for what, _ in again} == {"plan", "write", "commit"}
    assert all(count > 10_000 for counts in again.values() for count in counts)


def noting(path: str) -> type:
    """A data source that also writes down how much was frozen where its work was done. Spark pickles it, so all of it is in here."""
    from tierlog.spark_bridge.source import TierlogDataSource
    from tierlog.spark_bridge.writer import BatchArrowWriter, Message, Messages

    def note(what: str) -> None:
        import gc

        with open(path, "a") as stream:
            stream.write(f"{what} {os.getpid()} {gc.get_freeze_count()}\n")

    class Writer(BatchArrowWriter):
        def write(self, iterator: Iterator[Any]) -> Message:
            message = BatchArrowWriter.write(self, iterator)
            note("write")
            return message

        def commit(self, messages: Messages) -> None:
            BatchArrowWriter.commit(self, messages)
            note("commit")

    class Source(TierlogDataSource):
        @classmethod
        def name(cls) -> str:
            return "noting"

        def writer(self, schema: Any, overwrite: bool) -> BatchArrowWriter:
            made = TierlogDataSource.writer(self, schema, overwrite)
            note("plan")
            return Writer(made.job, made.identity)

    return Source

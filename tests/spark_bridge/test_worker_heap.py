"""The heap of a worker that is used again: its modules are frozen, in Spark's workers only."""

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


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (DAEMON, [["kept", "frozen"], *[["kept", "frozen", "frozen"]] * 3]),
        ("notebook", [[]] * 4),
        ("", [[]] * 4),
    ],
)
def test_a_worker_of_sparks_daemon_keeps_memory_at_once_and_freezes_its_heap_twice(
    program: str, expected: list[list[str]]
) -> None:
    """When its first two pieces of work begin. Nobody else's process is changed."""
    done: list[str] = []
    heap = WorkerHeap(lambda: done.append("frozen"), lambda: done.append("kept"), lambda: program)
    found = []
    for _ in range(4):
        heap.begin()
        found.append(list(done))

    assert found == expected


def test_where_spark_makes_data_sources_the_heap_is_frozen_twice_without_arrow() -> None:
    done: list[str] = []
    heap = WorkerHeap(lambda: done.append("frozen"), lambda: done.append("kept"), lambda: DAEMON)
    for _ in range(4):
        heap.make()

    assert done == ["frozen", "frozen"]


def test_arrow_takes_memory_from_the_c_library_from_there_on(tmp_path: Path) -> None:
    """In a process of its own, because that holds for all of a process."""
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install -e '.[dev,spark]'")
    (tmp_path / "starter.py").write_text(
        "import pyarrow as pa\n"
        "from tierlog.spark_bridge.worker_heap import keep_memory\n"
        "keep_memory()\n"
        "kept = pa.array([1, 2, 3])\n"
        "print(pa.default_memory_pool().backend_name, pa.system_memory_pool().bytes_allocated() > 0)\n"
    )
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}  # whatever the tests run with
    reported = subprocess.run(
        [sys.executable, "starter.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert reported == "system True\n"


def test_a_program_is_known_by_the_module_it_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text(
        "from tierlog.spark_bridge.worker_heap import program\nprint(repr(program()))\n"
    )

    def reported(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert reported("-m", "starter") == "'starter'\n"
    assert reported("starter.py") == "''\n"


def test_each_piece_of_work_announces_its_start_once(
    url: str, store: SyncClient, segment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the steps in which Spark's workers do them, each step being a piece of work."""
    if reason := support.missing():
        pytest.skip(reason)

    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType

    from tierlog.spark_bridge import TierlogDataSource

    begun: list[None] = []
    made: list[None] = []
    monkeypatch.setattr(WorkerHeap, "begin", lambda self: begun.append(None))
    monkeypatch.setattr(WorkerHeap, "make", lambda self: made.append(None))
    schema = StructType([StructField("value", BinaryType())])
    source = TierlogDataSource(
        {"endpoint": url, "segment": segment, "includemetadata": "false", "delivery": "at-least-once"}
    )
    assert (len(made), len(begun)) == (1, 0)
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


@pytest.mark.long  # whether Spark reuses a worker in time depends on the load of the machine
def test_workers_that_spark_uses_again_have_a_frozen_heap_and_keep_memory(
    spark: Any, url: str, segment: str, tmp_path: Path
) -> None:
    """On the driver and in tasks. The program that Spark is used from is left as it is."""
    import pyarrow as pa

    own_pool = pa.default_memory_pool().backend_name
    notes = tmp_path / "notes"
    notes.touch()
    spark.dataSource.register(noting(str(notes)))
    for _ in range(3):
        support.numbered(spark, 100, 1).write.format("noting").option("endpoint", url).mode("append").save(
            segment
        )

    frozen: dict[tuple[str, str], list[int]] = defaultdict(list)
    pools = set()
    for line in notes.read_text().splitlines():
        what, pid, count, pool = line.split()
        frozen[what, pid].append(int(count))
        pools.add((what, pool))
    assert pools == {("plan", "system"), ("write", "system"), ("commit", "system")}
    assert pa.default_memory_pool().backend_name == own_pool
    assert {what for what, _ in frozen} == {"plan", "write", "commit"}
    again = {key: counts[1:] for key, counts in frozen.items() if len(counts) > 1}
    assert {what for what, _ in again} == {"plan", "write", "commit"}
    assert all(count > 10_000 for counts in again.values() for count in counts)


def noting(path: str) -> type:
    """A data source that also writes down, where its work was done, how much was frozen and what Arrow takes
    its memory from.

    Spark pickles it, so all of it is in here.
    """
    from tierlog.spark_bridge.source import TierlogDataSource
    from tierlog.spark_bridge.writer import BatchArrowWriter, Message, Messages

    def note(what: str) -> None:
        import gc

        import pyarrow as pa

        with open(path, "a") as stream:
            stream.write(
                f"{what} {os.getpid()} {gc.get_freeze_count()} {pa.default_memory_pool().backend_name}\n"
            )

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

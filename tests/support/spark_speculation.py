"""A program: Spark makes a copy of a slow task, and both of them write everything that they have.

``python -m support.spark_speculation URL SEGMENT FOLDER``, with ``tests`` and ``scripts`` on the path. A copy
runs on another host, so there is a standalone master with two workers on two loopback addresses. The first
attempt of partition 0 stops half-way, with rows staged, until its copy has handed over its last row. Before
either goes on, the names of what is staged are in the file ``staged`` of FOLDER.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tierlog
from chaos_parts.spark_drivers import SPECULATION, standalone
from support.spark import FAILING_BATCH, WIDE, numbered, session, staged

ROWS = 4_000
PARTITIONS = 4
_COPY_SECONDS = 120


def slowly(frame: Any, url: str, segment: str, folder: str) -> Any:
    def later(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        copied, seen = Path(folder) / "copied", Path(folder) / "staged"
        for number, batch in enumerate(batches):
            if context.partitionId() == 0 and context.attemptNumber() == 0 and number == FAILING_BATCH // 2:
                _wait_for(copied)
                with tierlog.connect_sync(url) as store:
                    names = Path(folder) / "names"
                    names.write_text("\n".join(staged(store, segment)))
                names.rename(seen)
            yield batch
        if context.partitionId() == 0 and context.attemptNumber() > 0:
            copied.touch()
            _wait_for(seen)

    return frame.mapInArrow(later, "value string")


def _wait_for(path: Path) -> None:
    """Made by the task on the other host: there is nothing to be woken by."""
    deadline = time.monotonic() + _COPY_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nobody made {path}: Spark made no copy of the slow task")
        time.sleep(0.01)


def main(url: str, segment: str, folder: str) -> None:
    with (
        standalone(Path(folder)) as master,
        session(
            master, **SPECULATION, **{"spark.executor.memory": "1g", "spark.executor.cores": "1"}
        ) as spark,
    ):
        frame = slowly(numbered(spark, ROWS, PARTITIONS, WIDE), url, segment, folder)
        frame.write.format("tierlog").options(endpoint=url, batchBytes="4096").mode("append").save(segment)


if __name__ == "__main__":
    main(*sys.argv[1:])

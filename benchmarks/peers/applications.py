"""Spark applications beside each other: with tierlog's data source, with Spark's own for Kafka, and with its
parquet files. Each figure is one application, a process of its own that begins, works and ends
(``spark_program.py``), so that all are cold; the servers run all the time."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

import anyio
import anyio.to_thread
import attrs

from benchmarks.harness import BenchmarkError
from benchmarks.peers.contract import Kind
from benchmarks.peers.servers import kill_family, last_line
from benchmarks.service import line_of

_ROOT = Path(__file__).resolve().parents[2]
_TARGET = "{target}"


@attrs.frozen
class Connector:
    """How Spark reaches a peer. In options ``{target}`` stands for the name of what is written or read."""

    format: str
    writes: Mapping[str, str]
    reads: Mapping[str, str]
    jars: Sequence[Path] = ()


async def _nothing(*_: str) -> None:
    """Spark makes it by itself, or there is nothing to do later."""


@attrs.define(eq=False)
class SparkPeer:
    connector: Connector
    folder: Path
    create: Callable[[str], Awaitable[object]] = _nothing
    """Makes an empty target."""
    settle: Callable[[], Awaitable[object]] = _nothing
    """Does the deferred work of what was written, off the clock."""
    _last: int = 0
    _loaded: str = ""

    async def write(self, rows: int) -> float:
        """Seconds."""
        return await self._run("write", await self._new(), rows)

    async def read(self, rows: int) -> float:
        """Seconds. What is read was written by another application."""
        if not self._loaded:
            target = await self._new()
            await self._run("write", target, rows)
            self._loaded = target
        return await self._run("read", self._loaded, rows)

    async def batches(self, count: int) -> float:
        """Milliseconds of a micro-batch, the median of so many."""
        return await self._run("batches", await self._new(), count)

    async def _new(self) -> str:
        self._last += 1
        target = f"spark-{self._last}"
        await self.create(target)
        return target

    async def _run(self, what: str, target: str, count: int) -> float:
        options = {
            verb: {name: value.replace(_TARGET, target) for name, value in options.items()}
            for verb, options in (("writes", self.connector.writes), ("reads", self.connector.reads))
        }
        connector = json.dumps({"format": self.connector.format, **options})
        command = [sys.executable, "-m", "benchmarks.peers.spark_program", what, connector, str(count)]
        own = mkdtemp(prefix="application-", dir=self.folder)
        jars = ["--jars", ",".join(map(str, self.connector.jars))] if self.connector.jars else []
        variables = {"PYSPARK_SUBMIT_ARGS": shlex.join([*jars, "pyspark-shell"]), "SPARK_LOCAL_DIRS": own}
        log = Path(own, "log")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, own],
                cwd=_ROOT,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            figure = float(await anyio.to_thread.run_sync(line_of, process, abandon_on_cancel=True))
            await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        except BenchmarkError as error:
            raise BenchmarkError(f"the application failed: {last_line(log)}") from error
        finally:
            kill_family(process)
            assert process.stdout is not None
            process.stdout.close()
        await self.settle()
        return figure


@asynccontextmanager
async def _parquet(folder: Path) -> AsyncIterator[SparkPeer]:
    path = {"path": f"{folder}/{_TARGET}"}
    yield SparkPeer(Connector("parquet", path, path), folder)


KINDS = (
    Kind(
        "parquet",
        "parquet files",
        "embedded",
        "the files are in the page cache",
        is_synced=False,
        open=None,
        version=lambda: f"PySpark {version('pyspark')}",
        spark=_parquet,
    ),
)

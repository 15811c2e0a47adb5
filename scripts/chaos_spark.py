#!/usr/bin/env python3
"""Breaks Spark's exactly-once writes at every point, in every way, and proves that each row is there once.

It starts `tierlog serve` on a temporary folder, and Spark for one master after another: `local[2,4]`,
`local-cluster[2,1,1024]`, and a standalone master with two workers on two loopback addresses. In each round a
batch or a stream is written with tierlog's data source, and something happens to it: before any append,
mid-way, after the last append, before the commit, or after it, when its answer is lost. What happens: tasks
fail and run again, on another executor after a shuffle too; executors, drivers and tierlog's hosts are
killed; a host is frozen; slow tasks get copies; a stream goes on with other partitions. A write that failed
is run again.

Then every row must be there exactly once, partition by partition as one attempt wrote it. A reader polls
meanwhile and must never see a part of a write. Nothing that was staged may be left after the lease, and no
process.

  scripts/chaos_spark.py --rounds 5
  scripts/chaos_spark.py --rounds 200 --seed 7         # each 40 rounds meet every combination once
  scripts/chaos_spark.py --seed 7 --only 23            # one round again, such as one that broke

It needs PySpark and Java 17. Rounds are done master by master, because a session takes its time to start.
Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C, which leaves nothing behind.
"""

import sys

from chaos_parts.bootstrap import run

if __name__ == "__main__":
    sys.exit(run("spark", __doc__))

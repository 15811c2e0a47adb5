#!/usr/bin/env python3
"""Injects faults into Spark's exactly-once writes at every point, and proves that each row is there once.

It starts `tierlog serve` on a temporary folder, and Spark for one master after another: `local[2,4]`,
`local-cluster[2,1,1024]`, and a standalone master with two workers on two loopback addresses. In each round a
batch or a stream is written with tierlog's data source, with a fault before any append, mid-way, after the
last append, before the commit, or after it, when its answer is lost. The faults: tasks fail and are retried,
after a shuffle on another executor; executors, drivers and tierlog's hosts are killed; a host is frozen; slow
tasks get copies; a stream restarts with other partitions. A failed write is repeated.

Then every row must be there exactly once, partition by partition as one attempt wrote it. A reader polls
meanwhile and must never see a part of a write. Nothing staged may be left after the lease, and no
process.

  scripts/chaos_spark.py --rounds 5
  scripts/chaos_spark.py --rounds 200 --seed 7         # every 40 rounds cover each combination once
  scripts/chaos_spark.py --seed 7 --only 23            # repeat one round

It needs PySpark and Java 17. Rounds run master by master, because a session takes long to start.
Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C, which leaves nothing behind.
"""

import sys

from chaos_parts.bootstrap import run

if __name__ == "__main__":
    sys.exit(run("spark", __doc__))

#!/usr/bin/env python3
"""Kills a running service with SIGKILL, again and again, and proves that nothing acked is lost.

It starts `tierlog serve` on a temporary folder (or attaches to yours with --url) and writers that record
every ack. In each round it kills a host, all hosts, the supervisor, or supervisor and host together, and
waits until every container acks again. At the end every segment is read back: each acked event must be there
exactly once and in the order of its writer, nothing may be torn, and an event with an unknown outcome may be
there once. No process, descriptor or socket may be left.

  scripts/chaos_failover.py --rounds 5
  scripts/chaos_failover.py --rounds 100 --tail 10000 --goals     # p99 of the first ack within 1 s
  scripts/chaos_failover.py --url http://127.0.0.1:8470           # attached: only hosts are killed

Times are from SIGKILL until the answer to an event that was sent after it, including detection, opening and
replay. Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C, which leaves nothing
behind."""

import sys

from chaos_parts.bootstrap import run

if __name__ == "__main__":
    sys.exit(run("failover", __doc__))

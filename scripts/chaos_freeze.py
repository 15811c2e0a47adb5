#!/usr/bin/env python3
"""Freezes hosts of a running service with SIGSTOP, lets others take over, wakes them as zombies, and proves
that nobody lied.

It starts `tierlog serve` on a temporary folder (or attaches to yours with --url) and writers that remember
every ack. In each round a host is frozen: for a moment, for longer than the supervisor's patience, or for
ever; or the supervisor is. Other writers talk straight to the frozen host, so that it finds requests when it
wakes up, after another host has opened its containers. What it acks must be in what the new owner serves;
what it refuses must not. At the end every segment is read back and judged as by scripts/chaos_failover.py.

  scripts/chaos_freeze.py --rounds 5
  scripts/chaos_freeze.py --rounds 100 --tail 10000 --goals       # p99 of the first ack within 1.5 s

Times are from SIGSTOP until the answer to an event that was sent after it, so the noticing is in them.
Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C, which leaves nothing behind.
"""

import sys

from chaos_parts.bootstrap import run

if __name__ == "__main__":
    sys.exit(run("freeze", __doc__))

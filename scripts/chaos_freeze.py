#!/usr/bin/env python3
"""Freezes hosts of a running service with SIGSTOP, lets others take over, resumes them as zombies, and
proves that every answer was true.

It starts `tierlog serve` on a temporary folder (or attaches to yours with --url) and writers that record
every ack. In each round a host is frozen: for a moment, for longer than the supervisor waits, or forever; or
the supervisor is frozen. Other writers send directly to the frozen host, so that it finds requests when it
wakes up, after another host has opened its containers. What it acks must be in what the new owner serves;
what it rejects must not. At the end every segment is checked as by scripts/chaos_failover.py.

  scripts/chaos_freeze.py --rounds 5
  scripts/chaos_freeze.py --rounds 100 --tail 10000 --goals       # p99 of the first ack within 1.5 s

Times are from SIGSTOP until the answer to an event that was sent after it, including detection.
Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C, which leaves nothing behind.
"""

import sys

from chaos_parts.bootstrap import run

if __name__ == "__main__":
    sys.exit(run("freeze", __doc__))

#!/usr/bin/env python3
"""Breaks the network of a service: between clients and hosts, clients and supervisor, hosts and supervisor.

It starts `tierlog serve` on a temporary folder, with a proxy in the middle of every connection, the control
socket's too, and writers that record every ack. In each round some connections are cut (reset), silent
(nothing passes, and no side notices), slow, thin, broken once, or doubled (what a client sends arrives at two
connections). When the fault ends every container must ack again. At the end every segment is checked
as by scripts/chaos_failover.py.

  scripts/chaos_partition.py --rounds 5
  scripts/chaos_partition.py --rounds 100 --hosts 3 --containers 8

It needs a machine where all of 127.0.0.0/8 is loopback, as on Linux: clients are given addresses of
127.0.0.2. Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C, which leaves
nothing behind.
"""

import sys

from chaos_parts.bootstrap import run

if __name__ == "__main__":
    sys.exit(run("partition", __doc__))

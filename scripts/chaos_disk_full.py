#!/usr/bin/env python3
"""Fills the disk under a running service, and frees it again.

It starts `tierlog serve` on a small disk of its own (a tmpfs, which needs root, or root in a user namespace)
and writers that record every ack. In each round the disk is filled, to below the low-water mark or to the
last byte. Appends must be rejected as StorageFull (HTTP status 507) in every container, reads must go on;
sometimes a host is killed meanwhile. When the space is free again every container must ack again. At the end
every segment is checked as by scripts/chaos_failover.py.

  scripts/chaos_disk_full.py --rounds 5
  unshare --user --map-root-user --mount scripts/chaos_disk_full.py --rounds 5     # without being root

Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C, which leaves nothing behind.
"""

import sys

from chaos_parts.bootstrap import run

if __name__ == "__main__":
    sys.exit(run("disk_full", __doc__))

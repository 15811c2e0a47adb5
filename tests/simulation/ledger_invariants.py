"""What a service of ledgers must hold once the log was swept: those that the logs' records list (rules B7
and B8). Looks past all faults."""

from __future__ import annotations

from tierlog.journal.log.bookkeeper_record import decode_record

from .invariants import Broken
from .ledgers import log_path
from .process import Process
from .settings import WalKind
from .world import Site


async def check_ledgers(site: Site, process: Process) -> None:
    """Nothing is wrong any more, and ``process`` opened after everybody else ended."""
    if site.kind.wal is not WalKind.LEDGERS:
        return

    cluster = site.ledgers.cluster
    listed: set[int] = set()
    for container in process.containers():
        # Each looks at some ledgers in search of orphans.
        for _ in range(1 + len(cluster.ledgers)):
            await container.log.truncate()
        path = log_path(container.index)
        data = cluster.records[path].data
        listed.update(each.id for each in decode_record(data, data[8:24], path).ledgers)
    if cluster.ledgers.keys() != listed:
        raise Broken(
            f"it does not hold that a log is swept\nledgers {sorted(cluster.ledgers)}, listed are "
            f"{sorted(listed)}"
        )

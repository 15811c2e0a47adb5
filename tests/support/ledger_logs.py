"""A log in ledgers in memory, and what is in it."""

from __future__ import annotations

from typing import Any

import attrs

from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.bookkeeper_record import LogRecord, decode_record
from tierlog.storage_backends.base.ledger_service import LedgerService

from .memory_ledgers import Cluster, MemoryLedgers
from .s3 import numbered_world

LOG_ID = b"0123456789abcdef"
PATH = "/store/log"
FAST = BookKeeperLogOptions(first_delay=0.0, longest_delay=0.0)
WORLD = numbered_world()


def log_on(service: LedgerService, log_id: bytes = LOG_ID, path: str = PATH, **options: Any) -> BookKeeperLog:
    return BookKeeperLog(service, path, log_id, WORLD, attrs.evolve(FAST, **options))


def record_in(cluster: Cluster) -> LogRecord:
    return decode_record(cluster.records[PATH].data, LOG_ID, "")


async def contents(log: BookKeeperLog) -> dict[int, bytes]:
    return {number: bytes(payload) async for number, payload in log.read()}


async def reopened(cluster: Cluster) -> dict[int, bytes]:
    """The groups that the next owner reads, who deletes orphan ledgers too."""
    log = log_on(MemoryLedgers(cluster))
    await log.open()
    found = await contents(log)
    await log.truncate()
    await log.close()
    return found

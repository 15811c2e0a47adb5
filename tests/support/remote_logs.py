"""A log in a service in memory, for tests that say the same of every service: a bucket, or ledgers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import attrs

from support.call_faults import CallFault, CallFaults
from support.faulty_ledgers import FaultyLedgers
from support.faulty_objects import FaultyObjects
from support.memory_ledgers import Cluster
from support.memory_objects import Bucket
from support.s3 import numbered_world
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import SLOTS_AHEAD
from tierlog.journal.log.remote_log import RemoteLog
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log

LOG_ID = b"0123456789abcdef"
FAST_PUTS = S3LogOptions(pace=0.0, first_delay=0.0, longest_delay=0.0)
FAST_LEDGERS = BookKeeperLogOptions(first_delay=0.0, longest_delay=0.0)


class LogService(ABC):
    faults: CallFaults
    append_call: str
    """The name of the call that makes a group durable."""
    confirm_call: str
    read_call: str

    def __init__(self) -> None:
        self.world = numbered_world()

    @abstractmethod
    def log(self, log_id: bytes = LOG_ID, *, is_busy: bool = False, **options: Any) -> RemoteLog:
        """Another owner, not open yet. ``is_busy``: it makes as many calls as it can."""

    @abstractmethod
    def make_reliable(self) -> None:
        """Logs that are made from now on meet no fault."""

    @abstractmethod
    def lose_owner(self) -> None:
        """What says whose the log is is gone."""

    @abstractmethod
    def damage_first_group(self) -> str:
        """Its last byte changes. Returns its place."""


class BucketService(LogService):
    append_call, confirm_call, read_call = "put", "get", "get"

    def __init__(self, fault: CallFault | None = None) -> None:
        super().__init__()
        self.bucket = Bucket()
        self.objects = FaultyObjects(self.bucket, fault)
        self.faults = self.objects.faults

    def log(self, log_id: bytes = LOG_ID, *, is_busy: bool = False, **options: Any) -> S3Log:
        busy: dict[str, Any] = {"check_after": 0.0} if is_busy else {}
        return S3Log(self.objects, "wal/", log_id, self.world, attrs.evolve(FAST_PUTS, **busy, **options))

    def make_reliable(self) -> None:
        self.objects = FaultyObjects(self.bucket)

    def lose_owner(self) -> None:
        self.bucket.objects.clear()

    def damage_first_group(self) -> str:
        key = f"wal/g/{1 + SLOTS_AHEAD:016x}"
        data, version = self.bucket.objects[key]
        self.bucket.objects[key] = (data[:-1] + b"?", version)
        return f"memory:{key}"


class LedgersService(LogService):
    append_call, confirm_call, read_call = "append", "check", "read"

    def __init__(self, fault: CallFault | None = None) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.service = FaultyLedgers(self.cluster, fault)
        self.faults = self.service.faults

    def log(self, log_id: bytes = LOG_ID, *, is_busy: bool = False, **options: Any) -> BookKeeperLog:
        busy: dict[str, Any] = {"ledger_bytes": 2} if is_busy else {}
        given = attrs.evolve(FAST_LEDGERS, **busy, **options)
        return BookKeeperLog(self.service, "/store/log", log_id, self.world, given)

    def make_reliable(self) -> None:
        self.service = FaultyLedgers(self.cluster)

    def lose_owner(self) -> None:
        self.cluster.records.clear()

    def damage_first_group(self) -> str:
        entries = self.cluster.ledgers[1].entries
        entries[0] = entries[0][:-1] + b"?"
        return "memory:/store/log ledger 1 entry 0"


SERVICES = (BucketService, LedgersService)

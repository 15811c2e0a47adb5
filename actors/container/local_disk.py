"""What a container has on the local disk: its log, and whole copies of the runs of its system table beside it
(rules W1, M6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ...journal.log.contract import DurableDataLog
from ...storage_backends.base.files import Files

if TYPE_CHECKING:
    from ...storage_backends.sorted_runs.compaction import MergeRuns


class RunFolder(Struct, frozen=True, eq=False):
    files: Files
    path: str
    merge: MergeRuns
    """Merges runs in the folder: in a helper process, unless the disk is simulated."""
    low_water: int = 0
    """Bytes. Merges and fetches leave twice as much free: what they write must not keep the log from appends
    (rule W6)."""


class LocalDisk(Struct, frozen=True, eq=False):
    log: DurableDataLog
    runs: RunFolder


def run_folder(log_folder: str) -> str:
    """The folder of the runs beside the log in ``log_folder``."""
    return f"{log_folder}/runs"

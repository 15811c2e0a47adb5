"""Carries out a merge over local copies (rule M7).

The caller records the new runs' names, puts them into long-term storage and changes the manifest; only then
does the table use them. Cancellation leaves nothing that counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..base.errors import DataCorruption
from .compaction_policy import Merge
from .local_copies import LocalCopies
from .merge import MergeOrder
from .run_entry import RunEntry

MergeRuns = Callable[[MergeOrder], Awaitable[list[RunEntry]]]
"""``merge_helper.merge``, or the program ``merge.merge_runs`` on the caller's files."""


async def compact(merge: Merge, name: str, copies: LocalCopies, merge_runs: MergeRuns) -> list[RunEntry]:
    """The new runs, named after ``name``, whose local copies are durable. Inputs without a sound local copy
    are fetched first. Raises ``DataCorruption`` if long-term storage has a damaged one, or the local disk
    damages one again; ``Unavailable`` or ``StorageFull``."""
    order = MergeOrder(copies.folder, merge.generations, merge.drop_tombstones_to, name)
    not_replaced = {run.name: run for run in merge.runs}
    while True:
        for run in merge.runs:
            await copies.fetch(run)
        try:
            winners = await merge_runs(order)
        except DataCorruption as error:
            # A copy is replaced once: a disk that damages what it stores would keep a merge going for ever.
            damaged = not_replaced.pop(error.file, None)
            if damaged is None:
                raise DataCorruption(
                    f"{error.reason}; its local copy had just been replaced: check the local disk",
                    file=error.file,
                    offset=error.offset,
                ) from error
            await copies.distrust(damaged)
            continue

        for run in winners:
            copies.adopt(run)
        return winners

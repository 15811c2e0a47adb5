"""Carries out a merge over local copies (rule M7).

The caller records the new runs' names, puts them into long-term storage and changes the manifest; only then
does the table use them. Cancellation leaves nothing that counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..base.errors import DataCorruption, TierlogError
from .compaction_policy import Merge
from .encoder import RUN_BYTES_MAX
from .local_copies import LocalCopies
from .merge import MergeOrder
from .run_entry import RunEntry

MergeRuns = Callable[[MergeOrder], Awaitable[list[RunEntry]]]
"""``merge_helper.merge``, or the program ``merge.merge_runs`` on the caller's files."""


async def compact(
    merge: Merge, name: str, copies: LocalCopies, merge_runs: MergeRuns, run_bytes_max: int = RUN_BYTES_MAX
) -> list[RunEntry]:
    """The new runs, named after ``name``, whose local copies are durable. Inputs without a sound local copy
    are fetched first. Raises ``DataCorruption`` if long-term storage has a damaged one, or the local disk
    damages one again; ``Unavailable`` or ``StorageFull``. An error leaves no file of the merge."""
    order = MergeOrder(copies.folder, merge.generations, merge.drop_tombstones_to, name, run_bytes_max)
    try:
        return await _compact(merge, order, copies, merge_runs)
    except TierlogError:
        # Its runs have a name that is not used again; on a full disk they would take the room.
        await copies.remove_outputs(name)
        raise


async def _compact(
    merge: Merge, order: MergeOrder, copies: LocalCopies, merge_runs: MergeRuns
) -> list[RunEntry]:
    not_replaced = {run.name: run for run in merge.runs}
    while True:
        # In each round: a replaced copy may have been dropped, and another one be damaged.
        for run in merge.runs:
            await copies.fetch(run)
        try:
            merged = await merge_runs(order)
        except DataCorruption as error:
            # A copy is replaced once: a disk that damages what it stores would keep a merge going forever.
            damaged = not_replaced.pop(error.file, None)
            if damaged is None:
                raise DataCorruption(
                    f"{error.reason}; its local copy had just been replaced: check the local disk",
                    file=error.file,
                    offset=error.offset,
                ) from error
            await copies.replace_damaged(damaged)
            continue

        for run in merged:
            copies.note_written(run)
        return merged

"""Whether a store and its long-term storage agree, beside a living owner: everything that the store refers to
is there, each chunk belongs to one segment, and what else is there is listed. It is read-only."""

from __future__ import annotations

from contextlib import aclosing

import attrs

from ...journal.manifest.chain import ChainProblem
from ..legacy_rolling.importing import Progress, no_progress
from ..store.read_only import StoreView
from .journal import verify_journals
from .report import ChunkUse, ListedChunk, VerifyReport, pages_of_chunks, verify_and_index
from .tables import verify_runs


@attrs.frozen
class StoreVerification:
    elements: int
    runs: int
    problems: tuple[ChainProblem, ...]
    """Of journals and sorted runs."""
    chunks: VerifyReport
    unreferenced: tuple[ListedChunk, ...]
    """Objects that nothing refers to: a crash left them, or they are newer than what was read of the log."""

    @property
    def sound(self) -> bool:
        return self.chunks.sound and not self.problems


async def verify_store(
    view: StoreView, *, deep: bool = False, progress: Progress = no_progress
) -> StoreVerification:
    """Compare everything that the store refers to with listings; with ``deep`` read it, and verify every
    checksum. Raises ``Unavailable`` if long-term storage does not answer, ``DataCorruption`` if a log or a
    run that is needed for this cannot be read."""
    journals = await verify_journals(view)
    tables = await verify_runs(view, deep=deep)
    chunks, indexes = await verify_and_index(view, deep=deep, progress=progress)
    unreferenced: list[ListedChunk] = []
    async with aclosing(pages_of_chunks(view, indexes=indexes)) as pages:
        async for page in pages:
            unreferenced += (each for each in page if each.use is ChunkUse.UNREFERENCED)
    return StoreVerification(
        sum(len(chain.elements) for chain in journals.chains),
        tables.runs,
        (*journals.problems, *tables.problems),
        chunks,
        tuple(unreferenced),
    )

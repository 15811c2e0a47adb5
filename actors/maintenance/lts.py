"""Whether long-term storage alone has a whole, sound store: what its elements, runs, records and chunks are
worth without the logs. It is read-only, and works beside a living owner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs

from ...journal.manifest.chain import ChainProblem, journal_prefix, read_chain
from ...journal.manifest.element import Element
from ...journal.manifest.pin_record import find_lost_element
from ...storage_backends.base.errors import DataCorruption, StoreMismatch, Unavailable
from ...storage_backends.sorted_runs.run_list import RunList
from ..container.published_check import Inconsistency, check_published
from ..legacy_rolling.importing import Progress, no_progress
from ..store.lts_view import LtsContainer, LtsView
from .report import VerifyReport, verify
from .tables import object_damage

_ATTEMPTS_MAX = 3
"""Attempts at one container, whose living owner may delete what an older element needs."""


@attrs.frozen
class LtsContainerReport:
    container: int
    element: Element | None
    """What a boot would begin with; None if there is none."""
    problems: tuple[ChainProblem, ...]
    """Objects that are damaged or missing."""
    inconsistencies: tuple[Inconsistency, ...] = ()
    """Segments that the element has as of two moments, and more: see ``published_check``."""


@attrs.frozen
class LtsReport:
    containers: tuple[LtsContainerReport, ...]
    chunks: VerifyReport | None
    """None if a container's table cannot be read."""

    @property
    def sound(self) -> bool:
        """Whether all that is published is there."""
        is_whole = self.chunks is not None and self.chunks.sound
        return is_whole and not any(each.problems for each in self.containers)

    @property
    def consistent(self) -> bool:
        """Whether each segment is as of one moment."""
        return self.sound and not any(each.inconsistencies for each in self.containers)


async def verify_lts(view: LtsView, *, progress: Progress = no_progress) -> LtsReport:
    """Read all that the newest elements name, and verify every checksum. Raises ``Unavailable`` if long-term
    storage does not answer."""
    containers = [await _verify_repeatedly(view, container) for container in view.containers]
    chunks = None
    if not any(each.problems for each in containers):
        chunks = await verify(view, progress=progress)
    return LtsReport(tuple(containers), chunks)


async def _verify_repeatedly(view: LtsView, container: LtsContainer) -> LtsContainerReport:
    for _ in range(_ATTEMPTS_MAX - 1):
        with suppress(Unavailable):
            report = await _verify(view, container)
            if not report.problems or not await _has_newer(container):
                return report
    return await _verify(view, container)


async def _has_newer(container: LtsContainer) -> bool:
    try:
        return await container.refresh()
    except (DataCorruption, StoreMismatch):
        return False


async def _verify(view: LtsView, container: LtsContainer) -> LtsContainerReport:
    problems = list((await read_chain(view.chunks, container.index)).problems)
    element: Element | None = None
    found: Sequence[Inconsistency] = ()
    try:
        newest = await container.newest()
        element = None if newest is None else newest.element
        lost = await find_lost_element(view.chunks, container.index, 0 if newest is None else newest.n)
        problems += [] if lost is None else [lost]
        # First: without its runs a container has no snapshot.
        problems += await _damaged_runs(view, RunList() if element is None else element.runs)
        if not problems:
            await container.refresh()
            snapshot = await container.snapshot()
            element = snapshot.element
            with snapshot.state.table.view() as rows:
                found = (await check_published(rows, snapshot.runs, container.index)).inconsistencies
    except (DataCorruption, StoreMismatch) as error:
        problem = _problem(error, container.index)
        # A damaged newest element is among those of the chain already.
        if problem.name not in {each.name for each in problems}:
            problems.append(problem)
    return LtsContainerReport(container.index, element, tuple(problems), tuple(found))


async def _damaged_runs(view: LtsView, runs: RunList) -> list[ChainProblem]:
    return [
        ChainProblem(run.name, damage.reason, damage.offset)
        for run in runs
        if (damage := await object_damage(run, view.chunks)) is not None
    ]


def _problem(error: DataCorruption | StoreMismatch, container: int) -> ChainProblem:
    if isinstance(error, DataCorruption):
        return ChainProblem(error.file, error.reason, error.offset)
    return ChainProblem(journal_prefix(container), str(error))

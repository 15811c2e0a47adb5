"""The journals of a store: the chains of all containers and the store record, as they are in long-term
storage, and whether they are those that the logs know. It is read-only."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...journal.manifest.chain import (
    ChainProblem,
    ChainReport,
    StoredElement,
    element_name,
    journal_prefix,
    read_chain,
)
from ...journal.manifest.store_record import (
    STORE_RECORD,
    check_store_record,
    read_store_record,
    require_store_record,
)
from ...storage_backends.base.errors import DataCorruption, InvalidArgument, StoreMismatch, Unavailable
from ..container.listed_chain import ListedChain
from ..store.read_only import StoreView

_ATTEMPTS_MAX = 3
"""Comparisons with one log. An owner that flushes all the time changes it during each of them."""


@attrs.frozen
class JournalReport:
    """The chains of a store's containers."""

    store_id: str
    chains: tuple[ChainReport, ...]
    problems: tuple[ChainProblem, ...]
    """Problems of the store record and of all chains."""

    @property
    def sound(self) -> bool:
        return not self.problems


def container_numbers(view: StoreView, container: int | None) -> Sequence[int]:
    """``container``, or all of the store. Raises ``InvalidArgument`` for a number too high."""
    count = view.identity.containers
    if container is not None and container >= count:
        raise InvalidArgument(f"there is no container {container}: the store has {count}")

    return range(count) if container is None else [container]


async def read_journals(view: StoreView, container: int | None = None) -> JournalReport:
    """Read the chain of ``container``, or of all. Raises ``InvalidArgument`` for a number too high."""
    chains = [await read_chain(view.chunks, index) for index in container_numbers(view, container)]
    problems = [
        *await _record_problems(view, is_needed=any(chain.listed for chain in chains)),
        *(problem for chain in chains for problem in _check(chain, view)),
    ]
    return JournalReport(view.identity.store_id.hex(), tuple(chains), tuple(problems))


async def verify_journals(view: StoreView, container: int | None = None) -> JournalReport:
    """``read_journals``, and compare the newest elements with those that the logs know (rule J6)."""
    report = await read_journals(view, container)
    if not view.has_logs:
        return report

    problems = [problem for chain in report.chains for problem in await _compare(chain, view)]
    return attrs.evolve(report, problems=(*report.problems, *problems))


async def _compare(chain: ChainReport, view: StoreView) -> list[ChainProblem]:
    """What the log of a container says of its chain, unless the newest element is damaged or another
    store's, which was reported."""
    index, log = chain.container, view.containers[chain.container]
    problems: list[ChainProblem] = []
    for _ in range(_ATTEMPTS_MAX):
        newest = next(iter(chain.listed), None)
        if isinstance(newest, ChainProblem) or _is_other_store(newest, view):
            return []

        name = journal_prefix(index) if newest is None else element_name(index, newest.n)
        try:
            known = (await log.snapshot()).state.manifest.known
            ListedChain(newest).check(known, view.identity.store_id, index)
        except DataCorruption as error:
            return [ChainProblem(name, f"it cannot be compared with the log: {error}")]
        except (StoreMismatch, Unavailable) as error:
            problems = [ChainProblem(name, str(error))]
        else:
            return []

        if not await log.refresh():
            break  # else an owner has changed both meanwhile
        chain = await read_chain(view.chunks, index)
    return problems


async def check_record(view: StoreView, *, is_needed: bool) -> None:
    """Check the store record, which each container with an element needs (rule J10). Raises
    ``DataCorruption``, ``StoreMismatch``."""
    record = await (require_store_record if is_needed else read_store_record)(view.chunks)
    if record is not None:
        check_store_record(record, view.identity.store_id, view.identity.containers)


def _is_other_store(newest: StoredElement | None, view: StoreView) -> bool:
    return newest is not None and newest.element.owner.store != view.identity.store_id


async def _record_problems(view: StoreView, *, is_needed: bool) -> list[ChainProblem]:
    try:
        await check_record(view, is_needed=is_needed)
    except DataCorruption as error:
        return [ChainProblem(STORE_RECORD, error.reason, error.offset)]
    except StoreMismatch as error:
        return [ChainProblem(STORE_RECORD, str(error))]

    return []


def _check(chain: ChainReport, view: StoreView) -> list[ChainProblem]:
    newest, problems = next(iter(chain.elements), None), list(chain.problems)
    # A chain that another store has written is sound in itself.
    if newest is not None and _is_other_store(newest, view):
        name, store = element_name(chain.container, newest.n), newest.element.owner.store
        problems.append(ChainProblem(name, f"it is of store {store.hex()}, not of this one"))
    return problems

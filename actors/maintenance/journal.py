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
    numbers = container_numbers(view, container)
    return await _report(view, [await read_chain(view.chunks, index) for index in numbers])


async def verify_journals(view: StoreView, container: int | None = None) -> JournalReport:
    """``read_journals``, and compare the newest elements with those that the logs know (rule J6)."""
    if not view.has_logs:
        return await read_journals(view, container)

    numbers = container_numbers(view, container)
    return await _report(view, [await _read_and_compare(view, index) for index in numbers])


async def _report(view: StoreView, chains: Sequence[ChainReport]) -> JournalReport:
    problems = [
        *await _record_problems(view, is_needed=any(chain.listed for chain in chains)),
        *(problem for chain in chains for problem in _check(chain, view)),
    ]
    return JournalReport(view.identity.store_id.hex(), tuple(chains), tuple(problems))


async def _read_and_compare(view: StoreView, index: int) -> ChainReport:
    """A container's chain, with what its log says against it."""
    log = view.containers[index]
    try:
        before = (await log.snapshot()).state.manifest.known
    except (DataCorruption, StoreMismatch, Unavailable) as error:
        chain = await read_chain(view.chunks, index)
        return _with_problem(chain, journal_prefix(index), f"it cannot be compared with the log: {error}")

    chain = await read_chain(view.chunks, index)
    newest = next(iter(chain.listed), None)
    if isinstance(newest, ChainProblem) or _is_other_store(newest, view):
        return chain  # which is reported anyway

    name = journal_prefix(index) if newest is None else element_name(index, newest.n)
    try:
        await log.refresh()  # an owner at work changes both
        snapshot = await log.snapshot()
        after = snapshot.state.manifest.known
        ListedChain(newest).check_between(
            before, after, view.identity.store_id, index, is_empty=snapshot.is_empty
        )
    except DataCorruption as error:
        return _with_problem(chain, name, f"it cannot be compared with the log: {error}")
    except (StoreMismatch, Unavailable) as error:
        return _with_problem(chain, name, str(error))

    return chain


def _with_problem(chain: ChainReport, name: str, message: str) -> ChainReport:
    return attrs.evolve(chain, problems=(*chain.problems, ChainProblem(name, message)))


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

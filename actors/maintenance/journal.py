"""The journals of a store: the chains of all containers and the store record, from long-term storage
alone. It is read-only."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...journal.manifest.chain import ChainProblem, ChainReport, element_name, read_chain
from ...journal.manifest.store_record import STORE_RECORD, check_store_record, read_store_record
from ...storage_backends.base.errors import DataCorruption, InvalidArgument, StoreMismatch
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
    chains = [await read_chain(view.chunks, index) for index in container_numbers(view, container)]
    problems = [
        *await _record_problems(view),
        *(problem for chain in chains for problem in _check(chain, view)),
    ]
    return JournalReport(view.identity.store_id.hex(), tuple(chains), tuple(problems))


async def check_record(view: StoreView) -> None:
    """Check the store record, if there is one. Raises ``DataCorruption``, ``StoreMismatch``."""
    record = await read_store_record(view.chunks)
    if record is not None:
        check_store_record(record, view.identity.store_id, view.identity.containers)


async def _record_problems(view: StoreView) -> list[ChainProblem]:
    try:
        await check_record(view)
    except DataCorruption as error:
        return [ChainProblem(STORE_RECORD, error.reason, error.offset)]
    except StoreMismatch as error:
        return [ChainProblem(STORE_RECORD, str(error))]

    return []


def _check(chain: ChainReport, view: StoreView) -> list[ChainProblem]:
    newest, problems = chain.newest, list(chain.problems)
    # A chain that another store has written is sound in itself.
    if newest is not None and newest.owner.store != view.identity.store_id:
        name = element_name(chain.container, newest.n)
        problems.append(ChainProblem(name, f"it is of store {newest.owner.store.hex()}, not of this one"))
    return problems

"""All planted bugs, by name.

Owns: the list, and that no two bugs have one name. The bugs are in the files beside this one, by protocol;
each of those says what is left out and why: a bug that nobody could ever notice is none.
"""

from __future__ import annotations

from collections.abc import Iterable

from .catalogue_chunked import CHUNKED
from .catalogue_container import CONTAINER
from .catalogue_defrag import DEFRAG
from .catalogue_flush import FLUSH
from .catalogue_gc import GC
from .catalogue_legacy import OLDER
from .catalogue_recovery import RECOVERY
from .catalogue_transactions import TRANSACTIONS
from .catalogue_wal import WAL
from .mutant import Mutant


def _by_name(mutants: Iterable[Mutant]) -> dict[str, Mutant]:
    found: dict[str, Mutant] = {}
    for mutant in mutants:
        if mutant.name in found:
            raise ValueError(f"two mutants are called {mutant.name}")
        found[mutant.name] = mutant
    return found


CATALOGUE = _by_name((*WAL, *CONTAINER, *CHUNKED, *DEFRAG, *FLUSH, *GC, *OLDER, *RECOVERY, *TRANSACTIONS))

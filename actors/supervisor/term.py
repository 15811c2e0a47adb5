"""One supervisor at a time: a lock that its death frees, and a term that its hosts remember.

The folder ``supervisor/`` in the data folder has the lock file and the register of terms. The lock keeps a
second supervisor from starting while the first lives, even frozen. The term covers what a lock cannot see,
such as a folder copied under a running supervisor: each start takes a higher term, hosts obey the highest
they have seen, and a supervisor that learns of a higher one ends (rule V1). Crash: the system frees the lock;
the register is as in rule W1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs

from ...journal.registers.local import LocalRegister
from ...storage_backends.base.errors import NotOwner, Unavailable
from ...storage_backends.base.files import Close, FileHandle, Files, Program
from ...storage_backends.base.os_errors import reason_of
from ..folder.identity import StoreIdentity
from ..folder.paths import StoreFolder, run_program
from ..folder.process_lock import take_lock


@attrs.frozen
class Term:
    """This supervisor's term."""

    number: int
    _register: LocalRegister

    async def check(self) -> None:
        """Raises ``NotOwner`` if a later supervisor has started."""
        try:
            newest = await self._register.load()
        except OSError as error:
            raise Unavailable(f"the supervisor's register cannot be read: {reason_of(error)}") from error

        if newest is not None and newest > self.number:
            raise superseded(self.number, newest)


def superseded(own: int, newer: int) -> NotOwner:
    return NotOwner(
        f"another supervisor took over (its term is {newer}, this one's {own}): this one ends, the hosts "
        f"obey the newer one"
    )


@asynccontextmanager
async def claim_term(files: Files, folder: StoreFolder, identity: StoreIdentity) -> AsyncIterator[Term]:
    """Become the store's supervisor. Raises ``Unavailable`` if another process is."""
    path = f"{folder.path}/supervisor"
    lock = await run_program(files, _lock(path), path)
    try:
        register = LocalRegister(files, path, f"{path}/term", identity.log_id)
        try:
            # V1: durable before the first order, so that no later supervisor takes the same term.
            number = await register.raise_above(0)
        except OSError as error:
            raise Unavailable(f"{path}/term cannot be written: {reason_of(error)}") from error
        yield Term(number, register)
    finally:
        # A cancelled stop must free the lock too, or the next supervisor in this process is refused.
        with anyio.CancelScope(shield=True):
            await files.run(_close(lock))


def _lock(path: str) -> Program[FileHandle]:
    def refusal(pid: str) -> Unavailable:
        return Unavailable(f"process {pid} already supervises this store: stop it first")

    return (yield from take_lock(path, refusal))


def _close(handle: FileHandle) -> Program[None]:
    yield Close(handle)

"""Which hosts may connect, by what their hello says (rules V1, V11 and V13).

A host's word alone ends no supervisor: a higher term than the supervisor's counts once the coordination
confirms it. Cancellation and crash: nothing was changed but the lease, which was renewed or not.
"""

from __future__ import annotations

import anyio

from ...storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable, Unsupported
from .control.messages import Hello, ProtocolError, Unanswered, agreed_version
from .fleet import Fleet
from .term import Term


class Admission:
    def __init__(self, term: Term, fleet: Fleet, store: str) -> None:
        """``store``: the store's id in hexadecimal, which hosts must have too; empty: any."""
        self._term = term
        self._fleet = fleet
        self._store = store

    async def check(self, hello: Hello, *, joined: bool) -> int:
        """The version to speak with the host. Raises ``ProtocolError`` unless it may connect, and
        ``NotOwner`` if a later supervisor has started. Waits only if the host may not connect."""
        # Before its term, which is another store's: a bucket may have been emptied under a host.
        if hello.store and self._store and hello.store != self._store:
            raise ProtocolError(
                f"{hello.host} has store {hello.store} open, and this is the supervisor of store "
                f"{self._store}, which was made in its place: start the host again"
            )
        if hello.term > self._term.number:
            await self._refute(hello)
        # V13: a host of another build that shares a version is kept, and serves on through an upgrade.
        version = agreed_version(hello)
        if refusal := self._fleet.refusal(hello.host, hello.instance, joined=joined):
            raise ProtocolError(refusal)
        return version

    async def _refute(self, hello: Hello) -> None:
        """V1: a term is durable before any host hears of it. If the record has it, or another supervisor has
        the lease, the check raises ``NotOwner``."""
        seen = f"{hello.host} has seen the term {hello.term}, and this supervisor's is {self._term.number}"
        with anyio.move_on_after(self._term.interval):
            try:
                await self._term.check()
            except (Unavailable, OutcomeUnknown, StorageFull, Unsupported) as error:
                # The host may be another supervisor's, and would end if it was refused.
                raise Unanswered(f"{seen}: that cannot be checked now ({error})") from error
            raise ProtocolError(
                f"{seen}, above which the store knows none: if the store was put back to an earlier state, "
                f"the host has what was in it later; start the host again"
            )
        raise Unanswered(f"{seen}: that cannot be checked now (no answer)")

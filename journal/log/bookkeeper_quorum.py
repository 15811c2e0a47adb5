"""How many bookies a ledger is written to (rule B9). Pure."""

from __future__ import annotations

from ...storage_backends.base.errors import ConfigError
from ...storage_backends.base.ledger_service import NotEnoughBookies, Quorum

SMALL, LARGE = Quorum(2, 2, 2), Quorum(3, 3, 2)
_LARGE_BOOKIES = 4
"""With fewer, a ledger of three needs all that are left when one is down, and no new one can be made."""


def check_quorum(quorum: Quorum) -> None:
    """Raises ``ConfigError`` if no number of bookies allows it."""
    if not 1 <= quorum.ack <= quorum.write <= quorum.ensemble:
        raise ConfigError(
            f"quorums {quorum.ensemble}/{quorum.write}/{quorum.ack}: the ack quorum is at most the write "
            f"quorum, which is at most the ensemble, and all are at least 1"
        )


def choose_quorum(bookies: int, wanted: Quorum | None) -> Quorum:
    """That of the next ledger; ``wanted`` is the configured one. Raises ``NotEnoughBookies``."""
    quorum = wanted or (LARGE if bookies >= _LARGE_BOOKIES else SMALL)
    if quorum.ensemble > bookies:
        raise NotEnoughBookies(
            f"the log writes each entry to {quorum.write} of {quorum.ensemble} bookies, and {bookies} "
            f"answer: start more, or configure a smaller write quorum"
        )
    return quorum


def quorum_warning(bookies: int, wanted: Quorum | None) -> str:
    """What the operator should know; empty if nothing."""
    quorum = wanted or SMALL
    if quorum.ensemble < bookies:
        return ""
    return (
        f"ledgers of {quorum.ensemble} bookies, of which there are {bookies}: while one is down, no ledger "
        f"can be made, hence no container opened; start more bookies, or configure a smaller ensemble"
    )

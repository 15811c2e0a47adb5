"""What the fleet asks the supervisor to do."""

from __future__ import annotations

import attrs


@attrs.frozen
class SpawnHost:
    host: str


@attrs.frozen
class KillHost:
    """It was silent for too long, or connects again after it was killed."""

    host: str
    pid: int


@attrs.frozen
class ForgetHost:
    """It joined, and is gone: it may join again."""

    host: str
    reason: str
    """Empty if its connection ended after the order to exit."""
    containers: tuple[int, ...]
    """What it served, or was to serve, when it was lost."""


@attrs.frozen
class CutHost:
    """It joined, and is silent: orders that have not reached it must not do so when it is back."""

    host: str


@attrs.frozen
class ReportSilence:
    """Its containers go to other hosts because nothing was heard of it."""

    host: str
    silence: float
    """Seconds since it was last heard."""
    limit: float
    """Seconds that the settings allow."""
    containers: tuple[int, ...]


@attrs.frozen
class DrainHost:
    """It serves no container any more, or the fleet stops: let it finish and exit."""

    host: str


@attrs.frozen
class OpenContainer:
    host: str
    index: int
    request: int


@attrs.frozen
class CloseContainer:
    host: str
    index: int
    request: int


Command = (
    SpawnHost | KillHost | ForgetHost | CutHost | ReportSilence | DrainHost | OpenContainer | CloseContainer
)

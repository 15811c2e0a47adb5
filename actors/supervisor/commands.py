"""What the fleet's state asks the supervisor to do. Values without behaviour."""

from __future__ import annotations

import attrs


@attrs.frozen
class SpawnHost:
    host: str


@attrs.frozen
class KillHost:
    """It was silent for too long, or comes back after it was killed."""

    host: str
    pid: int


@attrs.frozen
class DrainHost:
    """It serves nothing any more (or the fleet stops): let it finish and exit."""

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


Command = SpawnHost | KillHost | DrainHost | OpenContainer | CloseContainer

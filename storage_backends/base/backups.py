"""What callers see of backups, and the order in which one is made and removed, as programs without I/O: each
yields the steps that containers are asked for, wherever these are. An error of a step is thrown into it.

Cancellation: ``undo`` follows. Crash: a program may be dropped at any step. Without the record there is no
backup, and the containers drop what they keep for it (rule P3)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from enum import Enum

import anyio
from msgspec import Struct

from .errors import BackupIncomplete, BackupNotFound, InvalidArgument, TierlogError

NAME_PATTERN = r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}"
UNDO_SECONDS = 5.0
"""Seconds that a caller who goes away waits at most for what it did to be undone."""


def is_backup_name(name: str) -> bool:
    """Whether a backup can have it."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def check_backup_name(name: str) -> str:
    """``name`` if a backup can have it; otherwise raises ``InvalidArgument``."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a backup's name is a str, not {type(name).__name__}")
    if not is_backup_name(name):
        raise InvalidArgument(
            f"a backup's name has 1 to 100 letters, digits, '.', '_' and '-' and does not begin with '.'; "
            f"{name[:40]!r} is not one"
        )
    return name


class Backup(Struct, frozen=True):
    """A backup in long-term storage."""

    name: str
    created_ms: int
    """When its newest container was pinned, in milliseconds since 1970; 0 if it is damaged."""
    containers: int
    problem: str = ""
    """Why it cannot be restored; empty if nothing is known against it."""


class StepKind(Enum):
    PIN = "pin"
    """Flush the container, and keep what is complete then."""
    PUT = "put"
    """Create the record of the backup. Of any container."""
    KEEP = "keep"
    """Confirm that the container keeps what the record has of it."""
    REMOVE = "remove"
    """Remove the record. Of any container."""
    DROP = "drop"
    """Keep nothing for which there is no record; but with a token what another call is making."""


class BackupStep(Struct, frozen=True):
    """What one container is asked to do. All steps may be repeated."""

    container: int
    kind: StepKind
    name: str
    token: str = ""
    """Of ``PIN`` and ``DROP``: identifies the call, so that a repeat pins nothing else, and a call that fails
    undoes nothing of another one."""
    positions: tuple[tuple[int, int], ...] = ()
    """Of ``PUT``: what each container answered to ``PIN``."""


class StepAnswer(Struct, frozen=True):
    position: tuple[int, int] = (0, 0)
    """Of ``PIN``: number and CRC of the element that lists the pin."""
    found: bool = False
    """Of ``REMOVE`` and ``DROP``: whether there was any."""


Steps = Generator[BackupStep, StepAnswer, None]


def make_backup(name: str, token: str, containers: int) -> Steps:
    """Pin each container; create the record, which makes it a backup; have each container confirm (rules P1
    to P3). If a step fails, what this call did is undone as far as possible; the rest is given up later."""
    is_put, reached = False, 0
    try:
        positions = []
        for container in range(containers):
            reached = container + 1
            answer = yield BackupStep(container, StepKind.PIN, name, token)
            positions.append(answer.position)
        yield BackupStep(0, StepKind.PUT, name, positions=tuple(positions))
        is_put = True
        for container in range(containers):
            yield BackupStep(container, StepKind.KEEP, name)
    except TierlogError:
        if is_put:
            with suppress(TierlogError):
                yield BackupStep(0, StepKind.REMOVE, name)
        for container in range(reached):
            with suppress(TierlogError):
                yield BackupStep(container, StepKind.DROP, name, token)
        raise


def remove_backup(name: str, containers: int) -> Steps:
    """Remove the record, then the pins. Raises ``BackupNotFound``."""
    found = (yield BackupStep(0, StepKind.REMOVE, name)).found
    for container in range(containers):
        found |= (yield BackupStep(container, StepKind.DROP, name)).found
    if not found:
        raise BackupNotFound(f"there is no backup {name!r}: `tierlog backup ls` lists them")


def undo(steps: Steps) -> Steps:
    """What a program does that is dropped at a step: it undoes what it did."""
    with suppress(StopIteration, BackupIncomplete):
        step = steps.throw(BackupIncomplete("the call was cancelled"))
        while True:
            try:
                answer = yield step
            except TierlogError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)


async def take_steps(steps: Steps, take: Callable[[BackupStep], Awaitable[StepAnswer]]) -> None:
    """Run a program. ``take`` has a container take one step. If it is cancelled, it is undone, for at most
    ``UNDO_SECONDS``."""
    try:
        await _take_steps(steps, take)
    except TierlogError:
        raise
    except BaseException:
        with anyio.move_on_after(UNDO_SECONDS, shield=True):
            await _take_steps(undo(steps), take)
        raise


async def _take_steps(steps: Steps, take: Callable[[BackupStep], Awaitable[StepAnswer]]) -> None:
    with suppress(StopIteration):
        step = next(steps)
        while True:
            try:
                answer = await take(step)
            except TierlogError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)

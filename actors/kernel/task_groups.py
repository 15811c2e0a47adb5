"""Task groups that belong to a body: of an app, or of a caller that must not learn that there are tasks.

Owns: ``body_group``. Does not own: how the tasks end; the body says so before it ends
(``cancel_scope.cancel``, or a stop that they obey).

A task group wraps whatever is raised in it into an exception group, also what its body raised. Somebody who
runs a body for others has to give them their own exception back as it was. Cancellation: passes, after the
tasks have ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def body_group() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group; what the body raises comes out unwrapped, when all tasks have ended. What a task raises
    comes in a group."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure = error

    if failure is not None:
        raise failure

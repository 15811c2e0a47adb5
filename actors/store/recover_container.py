"""Recovering what is lost of a store's logs: all of them, or the log of one container, whose others go on
(rule R11).

A recovery of one container replaces its log and creates one element in its chain, and nothing else. The store
keeps its identity, so the new log has the id of the lost one; its epoch tells them apart (rule R4), and the
chain whose owner the lost one no longer is (rule R5). The lost log is moved to ``wal/NNNN-before-...``, never
removed.

Order: lock the folder; read and check the container; build the log in ``.restoring``; raise the register of
the lost log, and move that away; create the element that claims the chain; move the new log to its place;
unlock. Cancellation: what fails puts the lost log back. Crash: the container has its lost log, none, or the
new one, and its chain at most one element more; the next recovery goes on from each. Until then an opening
refuses the container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio
import attrs

from ...journal.log.local import LocalLog
from ...journal.log.local_layout import log_folder, moved_folder
from ...journal.log.local_open import fence_log
from ...journal.manifest.chain import list_elements
from ...journal.manifest.store_record import check_store_record, ensure_store_record, require_store_record
from ...storage_backends.base.errors import DataCorruption, InvalidArgument, StoreMismatch
from ...storage_backends.base.files import Files
from ...storage_backends.base.world import World
from ..container.lts_boot import claim_chain
from ..folder.chunk_location import make_chunk_reader, make_chunk_storage, resolve_location
from ..folder.identity import StoreIdentity, read_identity
from ..folder.paths import StoreFolder, existing_identity, run_program
from ..folder.restore_folder import (
    finish_restore,
    log_building,
    move_log_away,
    only_log,
    publish_log,
    put_back_log,
    refuse_missing_log,
    refuse_open,
    restore_lane,
)
from ..settings.configuration import StoreConfig
from ..telemetry.logging import get_logger
from .folder_opening import announced
from .opening import log_options
from .recover import RecoveredContainer, RecoveredStore, Recovery, recover_store

_log = get_logger("node")


@attrs.frozen
class FoundLog:
    """The log of a container that is to be recovered."""

    is_empty: bool
    """Whether it holds nothing: nothing is lost with it."""
    state: str


async def inspect_log(folder: StoreFolder, config: StoreConfig, files: Files, container: int) -> FoundLog:
    """What would be lost with the container's log. Raises ``InvalidArgument`` if there is no such container,
    or if a process has the folder open."""
    identity = await _existing_container(folder, files, container)
    await run_program(restore_lane(files, folder), refuse_open(folder), folder.path)
    log = _log_of(folder, config, files, identity, container)
    await run_program(files, refuse_missing_log(folder, container), folder.wal)
    try:
        if await log.holds_nothing():
            return FoundLog(True, "holds nothing")
        groups = (await log.inspect()).groups
    except (DataCorruption, StoreMismatch) as error:
        return FoundLog(False, f"is damaged: {error}")
    return FoundLog(False, f"has {len(groups)} groups, and no damage")


async def recover_container(
    folder: StoreFolder,
    config: StoreConfig,
    files: Files,
    world: World,
    container: int,
    *,
    only_empty: bool = False,
) -> RecoveredStore:
    """Recover one container of the store in ``folder`` from long-term storage alone. Whatever log it has is
    moved away; with ``only_empty`` one that holds something is refused.

    Raises ``InvalidArgument`` (no such container, or a process has the folder open) and the errors of
    ``recover_store``."""
    identity = await _existing_container(folder, files, container)
    async with (
        only_log(folder, files, container),
        announced(files, world, folder, "", take_over=False),
    ):
        # An opening may have been under way until now.
        await run_program(files, refuse_missing_log(folder, container), folder.wal)
        is_empty = await _holds_nothing(_log_of(folder, config, files, identity, container))
        if only_empty and not is_empty:
            raise InvalidArgument(f"the log of container {container} is not lost: open the store")
        location = await resolve_location(files, folder, config, world)
        chunks = make_chunk_storage(location, files, folder, world, create=False)
        await chunks.open()
        try:
            record = await require_store_record(chunks)
            check_store_record(record, identity.store_id, identity.containers)
            recovery = Recovery(folder, chunks, config, files, world)
            boot, described = await recovery.read(record, container)
            claim = await recovery.write(log_building(folder, container), folder.wal, identity, boot)
            await ensure_store_record(chunks, record.store, record.containers, record)
            log_id = identity.container_log_id(container)
            fence = fence_log(log_folder(folder.wal, container), log_id)
            await run_program(files, fence, folder.wal)
            kept = moved_folder(log_folder(folder.wal, container), world.new_id())
            async with _replaced(folder, files, container, kept) as was_there:
                await claim_chain(chunks, container, claim)
        finally:
            await chunks.close()
    holds_lost_log = was_there and not is_empty
    return RecoveredStore(identity.store_id.hex(), (described,), kept=kept if holds_lost_log else "")


@asynccontextmanager
async def _replaced(folder: StoreFolder, files: Files, container: int, kept: str) -> AsyncIterator[bool]:
    """Replace the container's log, which is moved to ``kept``, by the one that was built. In between, with
    none in its place, the body claims the chain: whoever has the log open finds that it was moved (rule
    W1)."""
    lane = restore_lane(files, folder)
    try:
        was_there = await run_program(lane, move_log_away(folder, container, kept), folder.wal)
        yield was_there
        await run_program(lane, publish_log(folder, container), folder.wal)
    except BaseException:
        # Whatever was moved: asyncio's own cancellation comes when a program has ended (W7).
        with anyio.CancelScope(shield=True):
            await run_program(lane, put_back_log(folder, container, kept), folder.wal)
        raise


async def recover_if_lost(
    folder: StoreFolder, config: StoreConfig, files: Files, world: World, *, take_over: bool = False
) -> None:
    """Recover the store in ``folder`` if it has no logs, or those of its containers whose log is lost: the
    choice of whoever opens it (rule R11). What each container is as of is logged. Raises the errors of
    ``recover_store``."""
    identity = await run_program(files, read_identity(folder.wal), folder.wal)
    if identity is None:
        _report(await recover_store(folder, config, files, world, take_over=take_over))
        return

    for container in await _find_lost(folder, config, files, world, identity):
        _report(await recover_container(folder, config, files, world, container, only_empty=True))


async def _holds_nothing(log: LocalLog) -> bool:
    try:
        return await log.holds_nothing()
    except (DataCorruption, StoreMismatch):
        return False  # It holds something; its opening says what is wrong.


async def _find_lost(
    folder: StoreFolder, config: StoreConfig, files: Files, world: World, identity: StoreIdentity
) -> list[int]:
    """The containers whose log holds nothing although their chain has elements."""
    empty = list[int]()
    for container in range(identity.containers):
        await run_program(files, refuse_missing_log(folder, container), folder.wal)
        if await _holds_nothing(_log_of(folder, config, files, identity, container)):
            empty.append(container)
    if not empty:
        return []

    location = await resolve_location(files, folder, config, world)
    chunks = make_chunk_reader(location, files, folder, world)
    await chunks.open()
    try:
        return [container for container in empty if await list_elements(chunks, container)]
    finally:
        await chunks.close()


async def _existing_container(folder: StoreFolder, files: Files, container: int) -> StoreIdentity:
    await finish_restore(files, folder)
    identity = await existing_identity(files, folder)
    if container >= identity.containers:
        raise InvalidArgument(
            f"{folder.path} has the containers 0 to {identity.containers - 1}: there is no container "
            f"{container}"
        )
    return identity


def _log_of(
    folder: StoreFolder, config: StoreConfig, files: Files, identity: StoreIdentity, container: int
) -> LocalLog:
    path, log_id = log_folder(folder.wal, container), identity.container_log_id(container)
    return LocalLog(files, path, log_id, log_options(config))


def _report(recovered: RecoveredStore) -> None:
    for each in recovered.containers:
        _log.warning(
            "recovered_from_lts",
            container=each.container,
            cycle=each.cycle,
            element=each.element,
            complete=_shown_time(each),
            segments=each.segments,
        )


def _shown_time(each: RecoveredContainer) -> str:
    if not each.cycle:
        return "never"

    time = datetime.fromtimestamp(each.completed_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return time if each.is_exact else f"before {time}"

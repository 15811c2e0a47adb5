"""The mark that a store's layout was upgraded: ``wal/layout``. There is no way back from it (rule S18).

Owns: the file, and the refusal of a mode that the mark forbids. Does not own: what the modes do
(``LayoutMode``).

The mark is made before the store is opened with ``layout-upgrade`` for the first time, whole and durable:
from then on headers of the older layout are not kept up to date, and software that reads them would see old
bytes. So a mode that promises something to such software is ``StoreMismatch`` ever after. A file that is
damaged is ``DataCorruption``, never "no mark".

Crash: the mark is there, or it is not. One that is seen may not be durable yet, so whoever goes on with it
syncs its name. A temporary file that is left goes with the next opening.
"""

from __future__ import annotations

from contextlib import suppress

from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.files import (
    Close,
    Files,
    Link,
    Open,
    Program,
    Read,
    Sync,
    SyncFolder,
    Unlink,
    Write,
)
from ...storage_backends.base.world import World
from ..settings.layout_mode import LayoutMode
from .paths import LAYOUT_TEMPORARY, StoreFolder, run_program

_CONTENT = b"tierlog: the layout of this store was upgraded; there is no way back\n"


async def apply_layout_mode(files: Files, folder: StoreFolder, mode: LayoutMode, world: World) -> None:
    """Let a store be opened in ``mode``, or raise ``StoreMismatch``. The folder is a store's already."""
    await run_program(files, _settle(folder, mode, f"{LAYOUT_TEMPORARY}{world.new_id()}"), folder.wal)


async def is_upgraded(files: Files, folder: StoreFolder) -> bool:
    return await run_program(files, _read(folder), folder.wal)


def _settle(folder: StoreFolder, mode: LayoutMode, temporary: str) -> Program[None]:
    upgraded = yield from _read(folder)
    if upgraded and mode.needs_legacy_readers:
        raise StoreMismatch(
            f"the layout of {folder.path} was upgraded for good, layout = {mode.value!r} is not possible "
            f"any more: "
            f"use {LayoutMode.LAYOUT_UPGRADE.value!r} or {LayoutMode.INSTALL_NEW.value!r}"
        )

    if mode is LayoutMode.LAYOUT_UPGRADE:
        while not upgraded:
            yield from _make(folder, temporary)
            upgraded = yield from _read(folder)
        # Of a mark that was there too: who made it may have died before this (rule S18).
        yield SyncFolder(folder.wal)


def _read(folder: StoreFolder) -> Program[bool]:
    path = f"{folder.wal}/layout"
    try:
        handle = yield Open(path)
    except FileNotFoundError:
        return False

    content = yield Read(handle, 0, len(_CONTENT) + 1)
    yield Close(handle)
    if content != _CONTENT:
        raise DataCorruption("the mark of the layout upgrade is damaged: restore it from a backup", file=path)

    return True


def _make(folder: StoreFolder, temporary: str) -> Program[None]:
    """Try to make the mark. Another opening may make it first, or sweep the temporary file: the caller looks
    whether there is one now."""
    handle = yield Open(f"{folder.wal}/{temporary}", write=True, create=True)
    yield Write(handle, 0, [_CONTENT])
    yield Sync(handle)
    yield Close(handle)
    with suppress(FileExistsError, FileNotFoundError):
        yield Link(f"{folder.wal}/{temporary}", f"{folder.wal}/layout")
    with suppress(FileNotFoundError):
        yield Unlink(f"{folder.wal}/{temporary}")

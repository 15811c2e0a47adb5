"""The layout version of a store: the file ``wal/layout`` exists once its layout was upgraded (rule S18).

It is written, whole and durable, before a store is opened with ``layout-upgrade`` for the first time. From
then on legacy headers are no longer kept up to date and software that reads them would return stale bytes, so
modes that support such software are refused with ``StoreMismatch``. A damaged file is ``DataCorruption``,
never "not upgraded".

Crash: the file exists or it does not. Its directory entry may not be durable yet, so every opening that
relies on it syncs the folder. A leftover temporary file is removed by the next opening.
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
    Unlink,
    sync_name,
    write_file,
)
from ...storage_backends.base.world import World
from ..settings.layout_mode import LayoutMode
from .paths import LAYOUT_TEMPORARY, StoreFolder, run_program

_CONTENT = b"tierlog: the layout of this store was upgraded; there is no way back\n"


async def apply_layout_mode(files: Files, folder: StoreFolder, mode: LayoutMode, world: World) -> None:
    """Prepare an existing store for ``mode``. Raises ``StoreMismatch`` if its layout version rules the mode
    out."""
    await run_program(files, _apply(folder, mode, f"{LAYOUT_TEMPORARY}{world.new_id()}"), folder.wal)


async def is_upgraded(files: Files, folder: StoreFolder) -> bool:
    return await run_program(files, _read(folder), folder.wal)


def _apply(folder: StoreFolder, mode: LayoutMode, temporary: str) -> Program[None]:
    upgraded = yield from _read(folder)
    if upgraded and mode.needs_legacy_readers:
        raise StoreMismatch(
            f"the layout of {folder.path} was upgraded, which cannot be undone; layout = {mode.value!r} is "
            f"no longer possible: use {LayoutMode.LAYOUT_UPGRADE.value!r} or {LayoutMode.INSTALL_NEW.value!r}"
        )

    if mode is LayoutMode.LAYOUT_UPGRADE:
        while not upgraded:
            yield from _create(folder, temporary)
            upgraded = yield from _read(folder)
        # Also if the file was there: its creator may have crashed before this sync (rule S18).
        yield from sync_name(f"{folder.wal}/layout", f"{folder.wal}/{temporary}", _CONTENT)


def _read(folder: StoreFolder) -> Program[bool]:
    path = f"{folder.wal}/layout"
    try:
        handle = yield Open(path)
    except FileNotFoundError:
        return False

    content = yield Read(handle, 0, len(_CONTENT) + 1)
    yield Close(handle)
    if content != _CONTENT:
        raise DataCorruption("the layout version is damaged: restore it from a backup", file=path)

    return True


def _create(folder: StoreFolder, temporary: str) -> Program[None]:
    """Try to create the file. Another opening may create it first or remove the temporary file, so the caller
    checks again."""
    yield from write_file(f"{folder.wal}/{temporary}", _CONTENT)
    with suppress(FileExistsError, FileNotFoundError):
        yield Link(f"{folder.wal}/{temporary}", f"{folder.wal}/layout")
    with suppress(FileNotFoundError):
        yield Unlink(f"{folder.wal}/{temporary}")

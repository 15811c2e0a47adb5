"""The layout version of a store: the file ``wal/layout`` exists once its layout was upgraded (rule S18).

It is written, whole and durable, before a store is opened with ``layout-upgrade`` for the first time. From
then on legacy headers are no longer kept up to date and software that reads them would return stale bytes, so
modes that support such software are refused with ``StoreMismatch``. A damaged file is ``DataCorruption``,
never "not upgraded".

Crash: the file exists or it does not. Its directory entry may not be durable yet, so every opening that
relies on it syncs the folder. A leftover temporary file is removed by the next opening.
"""

from __future__ import annotations

from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.files import (
    FULL,
    Close,
    Files,
    Open,
    Program,
    Read,
    SyncFolder,
    remake_name,
)
from ...storage_backends.base.world import World
from ..settings.layout_mode import LayoutMode
from .paths import LAYOUT_TEMPORARY, StoreFolder, run_program

_CONTENT = b"tierlog: the layout of this store was upgraded; there is no way back\n"


def apply_layout_mode(folder: StoreFolder, mode: LayoutMode, world: World) -> Program[None]:
    """Prepare an existing store for ``mode``. Raises ``StoreMismatch`` if its layout version rules the mode
    out."""
    temporary = f"{folder.wal}/{LAYOUT_TEMPORARY}{world.new_id()}"
    upgraded = yield from _read(folder)
    if upgraded and mode.needs_legacy_readers:
        raise StoreMismatch(
            f"the layout of {folder.path} was upgraded, which cannot be undone; layout = {mode.value!r} is "
            f"no longer possible: use {LayoutMode.LAYOUT_UPGRADE.value!r} or {LayoutMode.INSTALL_NEW.value!r}"
        )

    if mode is LayoutMode.LAYOUT_UPGRADE:
        # Also if the file is there: its creator may have crashed before its sync, or have failed (rules S18,
        # W11).
        try:
            yield from remake_name(f"{folder.wal}/layout", temporary, _CONTENT)
        except OSError as error:
            # An opening on a full disk makes room (rule W6).
            if not upgraded or error.errno not in FULL:
                raise
            yield SyncFolder(folder.wal)


async def is_upgraded(files: Files, folder: StoreFolder) -> bool:
    return await run_program(files, _read(folder), folder.wal)


def _read(folder: StoreFolder) -> Program[bool]:
    path = f"{folder.wal}/layout"
    try:
        handle = yield Open(path)
    except FileNotFoundError:
        return False

    # One byte more, so that a longer file is refused.
    content = yield Read(handle, 0, len(_CONTENT) + 1)
    yield Close(handle)
    if content != _CONTENT:
        raise DataCorruption("the layout version is damaged", file=path)

    return True

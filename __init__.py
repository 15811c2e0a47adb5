"""tierlog: a tiered segment store.

``async with tierlog.open_store("data") as store: await store.append("app/events", b"...")``; the README shows
the rest.

This is the public API and nothing else. Names are loaded at their first use, so that ``import tierlog``
stays quick.
"""

# This module runs before the program can handle Ctrl-C, so it must not take the time of importing ``typing``.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .actors.gateway.client.async_client import Client
    from .actors.gateway.client.base import ClientStatistics
    from .actors.gateway.client.connect import connect, connect_sync
    from .actors.gateway.client.sync_client import SyncClient
    from .actors.gateway.client.tables import SyncTable
    from .actors.gateway.wire.batch import BatchItem
    from .actors.gateway.wire.bodies import HostStatus
    from .actors.settings.configuration import StoreConfig
    from .actors.settings.configuration_file import load_config
    from .actors.store.lts_view import LtsView, open_lts
    from .actors.store.opening import open_store
    from .actors.store.statistics import StoreStatistics
    from .actors.store.store import SegmentStore
    from .actors.telemetry.opentelemetry import opentelemetry_tracing
    from .actors.telemetry.tracing import SpanHook
    from .spark_bridge import events
    from .storage_backends.base.arguments import WriterId
    from .storage_backends.base.backups import Backup
    from .storage_backends.base.errors import (
        AttributeConflict,
        BackupExists,
        BackupIncomplete,
        BackupNotFound,
        BadOffset,
        ChangesIncomplete,
        ClosedError,
        ConfigError,
        DataCorruption,
        HistoryLost,
        InvalidArgument,
        NotOwner,
        OutcomeUnknown,
        OutOfOrder,
        SegmentExists,
        SegmentNotFound,
        SegmentNotSealed,
        SegmentSealed,
        SegmentTruncated,
        StorageFull,
        StoreMismatch,
        TableConflict,
        Throttled,
        TierlogError,
        TooLarge,
        TransactionEnded,
        TransactionNotFound,
        Unavailable,
        UnknownWriter,
        Unsupported,
        WrongSegmentKind,
    )
    from .storage_backends.base.segment_layout import ChunkExtent, SegmentLayout, StoragePlace
    from .storage_backends.base.segments import (
        AttributePage,
        AttributeUpdate,
        AttributeUpdateKind,
        SegmentInfo,
        SegmentPage,
    )
    from .storage_backends.base.table import Table, TableTransaction
    from .storage_backends.base.tables import (
        ABSENT,
        ChangesPage,
        TableChange,
        TablePage,
        TableRow,
        TableUpdate,
    )
    from .storage_backends.base.transactions import (
        CommitResult,
        StagedPart,
        TransactionInfo,
        TransactionPage,
        TransactionState,
        TransactionToken,
    )
    from .storage_backends.base.verbs import SegmentVerbs

    __version__: str

_HOMES = {
    "actors.settings.configuration": ("StoreConfig",),
    "actors.settings.configuration_file": ("load_config",),
    "actors.gateway.client.async_client": ("Client",),
    "actors.gateway.client.base": ("ClientStatistics",),
    "actors.gateway.client.connect": ("connect", "connect_sync"),
    "actors.gateway.client.sync_client": ("SyncClient",),
    "actors.gateway.client.tables": ("SyncTable",),
    "actors.gateway.wire.batch": ("BatchItem",),
    "actors.gateway.wire.bodies": ("HostStatus",),
    "actors.store.lts_view": ("LtsView", "open_lts"),
    "actors.store.opening": ("open_store",),
    "actors.telemetry.opentelemetry": ("opentelemetry_tracing",),
    "actors.telemetry.tracing": ("SpanHook",),
    "actors.store.statistics": ("StoreStatistics",),
    "actors.store.store": ("SegmentStore",),
    "storage_backends.base.arguments": ("WriterId",),
    "storage_backends.base.backups": ("Backup",),
    "storage_backends.base.verbs": ("SegmentVerbs",),
    "storage_backends.base.segment_layout": ("ChunkExtent", "SegmentLayout", "StoragePlace"),
    "storage_backends.base.segments": (
        "AttributePage",
        "AttributeUpdate",
        "AttributeUpdateKind",
        "SegmentInfo",
        "SegmentPage",
    ),
    "storage_backends.base.table": ("Table", "TableTransaction"),
    "storage_backends.base.tables": (
        "ABSENT",
        "ChangesPage",
        "TableChange",
        "TablePage",
        "TableRow",
        "TableUpdate",
    ),
    "storage_backends.base.transactions": (
        "CommitResult",
        "StagedPart",
        "TransactionInfo",
        "TransactionPage",
        "TransactionState",
        "TransactionToken",
    ),
}

__all__ = [
    "ABSENT",
    "AttributeConflict",
    "AttributePage",
    "AttributeUpdate",
    "AttributeUpdateKind",
    "Backup",
    "BackupExists",
    "BackupIncomplete",
    "BackupNotFound",
    "BadOffset",
    "BatchItem",
    "ChangesIncomplete",
    "ChangesPage",
    "ChunkExtent",
    "Client",
    "ClientStatistics",
    "ClosedError",
    "CommitResult",
    "ConfigError",
    "DataCorruption",
    "HistoryLost",
    "HostStatus",
    "InvalidArgument",
    "LtsView",
    "NotOwner",
    "OutOfOrder",
    "OutcomeUnknown",
    "SegmentExists",
    "SegmentInfo",
    "SegmentLayout",
    "SegmentNotFound",
    "SegmentNotSealed",
    "SegmentPage",
    "SegmentSealed",
    "SegmentStore",
    "SegmentTruncated",
    "SegmentVerbs",
    "SpanHook",
    "StagedPart",
    "StorageFull",
    "StoragePlace",
    "StoreConfig",
    "StoreMismatch",
    "StoreStatistics",
    "SyncClient",
    "SyncTable",
    "Table",
    "TableChange",
    "TableConflict",
    "TablePage",
    "TableRow",
    "TableTransaction",
    "TableUpdate",
    "Throttled",
    "TooLarge",
    "TierlogError",
    "TransactionEnded",
    "TransactionInfo",
    "TransactionNotFound",
    "TransactionPage",
    "TransactionState",
    "TransactionToken",
    "Unavailable",
    "UnknownWriter",
    "Unsupported",
    "WriterId",
    "WrongSegmentKind",
    "connect",
    "connect_sync",
    "events",
    "load_config",
    "open_lts",
    "open_store",
    "opentelemetry_tracing",
]


if not TYPE_CHECKING:  # a checker would take every misspelt name for an object

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("tierlog")

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        if name == "events":
            value = _import("spark_bridge.events")
        else:
            homes = (module for module, names in _HOMES.items() if name in names)
            value = getattr(_import(next(homes, "storage_backends.base.errors")), name)
        globals()[name] = value
        return value

    def _import(module: str) -> object:
        """The module, imported without collections of garbage: hardly anything that an import makes becomes
        garbage, and traversing it again and again takes a tenth of the time from an open to the first ack."""
        import gc
        from importlib import import_module

        collects = gc.isenabled()
        gc.disable()
        try:
            return import_module(f".{module}", __name__)
        finally:
            if collects:
                # The next collections would traverse it all the same: now everything is old. Not if the app
                # has excluded objects, which would no longer be.
                if not gc.get_freeze_count():
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

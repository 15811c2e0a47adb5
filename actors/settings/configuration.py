"""The configuration of a store and its service: one attrs class for each table of ``tierlog.toml``.

The classes are the only source: ``configuration_file.py`` reads files into them and writes them with each
setting's help, range and default; their validators check values given in code. Sizes are bytes, durations
are seconds, shares are fractions of one.

A configuration is frozen: it is read once, before a store opens. ``ConfigError`` names the file, the setting
by its full path, such as ``writer.flush_age``, the value, and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

import attrs

from ...journal.log.contract import GROUP_BYTES_MAX, SLOTS_AHEAD
from ...storage_backends.base.arguments import APPEND_BYTES_MAX, ROLLING_SIZE_MAX, ROLLING_SIZE_MIN
from ...storage_backends.base.errors import ConfigError, InvalidArgument
from ...storage_backends.base.transactions import LEASE_MAX, LEASE_MIN, STAGED_MAX
from ...storage_backends.base.values import Value
from ...storage_backends.chunks.s3_location import parse_location
from .layout_mode import LayoutMode
from .units import (
    ChoiceSetting,
    GiB,
    KiB,
    MiB,
    Setting,
    SwitchSetting,
    TextSetting,
    UnitError,
    UrlSetting,
    count,
    duration,
    share,
    size,
)

P = ParamSpec("P")
TiB = 1024 * GiB


def _check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    try:
        attribute.metadata[Setting].check(value)
    except UnitError as error:
        raise ConfigError(f"{type(instance).__name__}.{attribute.name}: {error}") from error


def _as_field(make: Callable[P, Setting]) -> Callable[P, Any]:
    """``make`` for a class body: it returns the attrs field that carries the setting."""

    def field(*args: P.args, **kwargs: P.kwargs) -> Any:
        setting = make(*args, **kwargs)
        return attrs.field(default=setting.default, metadata={Setting: setting})

    return field


_size, _duration, _count, _share = _as_field(size), _as_field(duration), _as_field(count), _as_field(share)
_text, _switch, _choice = _as_field(TextSetting), _as_field(SwitchSetting), _as_field(ChoiceSetting)
_url = _as_field(UrlSetting)


def _section(kind: type) -> Any:
    return attrs.field(factory=kind)


class _Table(Value):
    """Holds values given in code to the same ranges as values read from a file. Here, for all fields:
    validators would double the time in which attrs makes the classes."""

    __slots__ = ()

    def __attrs_post_init__(self) -> None:
        for field in self._fields():
            value = getattr(self, field.name)
            if Setting in field.metadata:
                _check(self, field, value)
            elif not isinstance(value, kind := table_of(field)):
                raise ConfigError(f"{field.name} must be a {kind.__name__}, not {type(value).__name__}")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WalConfig(_Table):
    """Tier 1: the write-ahead log of each container, in local files."""

    file_size: int = _size(
        64 * MiB, 64 * KiB, 16 * GiB, "A log file that reaches this size is closed and a new one begun."
    )
    reserve: int = _size(
        4 * MiB,
        64 * KiB,
        GiB,
        "Reserved per container so that flush, truncate and delete work on a full disk.",
    )
    low_water: int = _size(
        64 * MiB,
        0,
        TiB,
        "Appends are refused as StorageFull when the disk has less free space, until it has twice as much.",
    )
    unflushed_max: int = _size(
        16 * GiB,
        MiB,
        TiB,
        "Appends are delayed above three quarters of this many unflushed bytes per container, and refused as "
        "Throttled above it.",
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GroupConfig(_Table):
    """Group commit: appends that wait together become durable with one disk sync."""

    bytes: int = _size(4 * MiB, 4 * KiB, GROUP_BYTES_MAX, "A group is closed when it holds this many bytes.")
    count: int = _count(
        4096, 1, 65_536, "The most operations that are decided in one step; more than 384 never are."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MailboxConfig(_Table):
    """The queue between clients and a container. Callers wait while it is full."""

    count: int = _count(16_384, 16, 1_048_576, "The most operations that wait.")
    bytes: int = _size(64 * MiB, MiB, 16 * GiB, "The most bytes that wait.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CacheConfig(_Table):
    """The tail cache of each container: its newest bytes. When room is needed, flushed bytes go first.
    Unflushed ones are then read back from the log."""

    bytes: int = _size(256 * MiB, MiB, TiB, "Memory for cached bytes, per container.")
    soft: float = _share(
        0.6, 0.05, 1.0, "Everything is flushed at once when unflushed bytes are more than this share of it."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ReadAheadConfig(_Table):
    """Read-ahead for sequential readers of long-term storage."""

    bytes: int = _size(
        32 * MiB, 0, 16 * GiB, "The most that is read ahead of one reader: 1 MiB or more; 0 turns it off."
    )
    total_bytes: int = _size(
        128 * MiB, 2 * MiB, TiB, "Memory for read-ahead, shared by all containers of a process."
    )

    def __attrs_post_init__(self) -> None:
        if 0 < self.bytes < MiB:
            raise ConfigError(
                f"read_ahead.bytes is {self.bytes}: whole blocks of 1 MiB are read ahead, so set it to 0 for "
                f"none, or to 1 MiB or more"
            )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ChunkCacheConfig(_Table):
    """The local chunk cache: flushed data of long-term storage in a bucket, on the local disk. All processes
    of a store share it, and its folder may be removed at any time."""

    path: str = _text(
        "",
        "Its folder, relative to the data folder; empty means `cache` if `chunks` names a bucket, and no "
        "cache otherwise. With a path, lts/ is cached too, which is useful on a network mount. Of a store in "
        "a bucket: relative to the working folder; empty means `tierlog` in the user's cache folder.",
    )
    bytes: int = _size(10 * GiB, 0, 1 << 50, "Disk space for cached data; 0 turns the cache off.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SegmentsConfig(_Table):
    """What a container keeps in memory about its segments."""

    active_max: int = _count(
        25_000, 100, 10_000_000, "The most segments with state in memory; above it idle ones leave it."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckpointConfig(_Table):
    """Checkpoints limit how much of the log is replayed at open."""

    wal_bytes: int = _size(
        64 * MiB, MiB, 64 * GiB, "A checkpoint is due after this much log, or after four times its own size."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WriterConfig(_Table):
    """The storage writer flushes acked bytes from the log to long-term storage."""

    flush_bytes: int = _size(
        4 * MiB,
        KiB,
        GiB,
        "A segment with this much unflushed data is flushed; with a whole chunk of it, where chunks cannot "
        "grow.",
    )
    flush_age: float = _duration(
        30.0, 0.01, 86_400.0, "A segment whose oldest unflushed byte is this old is flushed."
    )
    rolling_size: int = _size(
        128 * MiB,
        ROLLING_SIZE_MIN,
        ROLLING_SIZE_MAX,
        "A chunk that reaches this size is closed and a new one begun.",
    )
    concurrent_segments: int = _count(8, 1, 1_024, "Segments flushed at the same time, per container.")
    error_pause: float = _duration(
        1.0, 0.001, 3_600.0, "The wait after a failed flush cycle before the next one."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DefragConfig(_Table):
    """Defragmentation: joins small chunks of a segment, and relocates the rest of a first chunk that is
    mostly truncated."""

    small_max: int = _size(16 * MiB, 0, TiB, "Chunks above this size are not joined; 0 joins none.")
    native_min: int = _size(
        MiB, 0, TiB, "Chunks of this size or more are joined inside the storage, smaller ones in memory."
    )
    growth: int = _count(
        4, 2, 64, "A joined chunk is at least this many times as long as its longest source."
    )
    loose_chunks: int = _count(
        16, 0, 65_536, "Small chunks are joined once a segment has this many new ones; 0 joins none."
    )
    inline: bool = _switch(False, "Join as a part of each merge, instead of after it.")
    relocate_above: int = _size(64 * MiB, 0, TiB, "A first chunk of this size or less is not relocated.")
    relocate_max: int = _size(
        GiB, 0, TiB, "A first chunk above this size is not relocated; 0 relocates none."
    )
    relocate_share: float = _share(
        0.8, 0.5, 1.0, "The share of a first chunk that must be truncated before its rest is relocated."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StorageConfig(_Table):
    """Calls to long-term storage. Calls are retried here and nowhere else, and only those that are safe to
    retry."""

    attempts: int = _count(3, 1, 100, "Attempts of a call that can be retried before it fails.")
    backoff: float = _duration(
        0.1, 0.001, 60.0, "The wait before the second attempt; it doubles with each further one."
    )
    backoff_max: float = _duration(5.0, 0.001, 600.0, "The longest wait between two attempts.")
    read_deadline: float = _duration(30.0, 0.1, 3_600.0, "A read that takes longer fails as Unavailable.")
    write_deadline: float = _duration(60.0, 0.1, 3_600.0, "A write that takes longer has an unknown outcome.")
    concurrent_calls: int = _count(16, 1, 1_024, "Calls in flight at the same time, for the whole store.")
    probe_interval: float = _duration(
        5.0, 0.01, 3_600.0, "How often long-term storage is probed while it is down."
    )
    safe_size: int = _size(
        0, 0, 1 << 60, "Flushes stop while more space than this is in use; 0 means no limit."
    )
    safe_size_interval: float = _duration(60.0, 0.1, 86_400.0, "How often the space in use is measured.")
    reserve: int = _size(
        16 * MiB,
        0,
        GiB,
        "Space in the folder `lts` that only the store's own objects may use, so that a full disk can be "
        "freed by deleting or truncating segments; 0 reserves none.",
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class S3Config(_Table):
    """How an S3 service is reached, if the store or its `chunks` are in a bucket. Credentials come from the
    usual AWS variables, files or roles."""

    endpoint: str = _url("", "The service's URL, such as https://s3.example.org; empty means AWS.")
    region: str = _text(
        "", "The bucket's region; empty means the region of AWS_REGION or of the AWS profile."
    )
    append: bool = _switch(
        False, "The bucket takes puts with a write offset, as directory buckets do, so that chunks can grow."
    )
    connections: int = _count(32, 1, 1_024, "The most connections to the service.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class S3LogConfig(_Table):
    """The log of a store that is in a bucket as a whole: a group is one put, and puts cost money."""

    pace: float = _duration(
        0.05,
        0.0,
        60.0,
        "The shortest time between two puts of a container; appends meanwhile share the next one.",
    )
    pace_bytes: int = _size(
        MiB, KiB, GROUP_BYTES_MAX, "A group that holds this many bytes is put without waiting."
    )
    appends_max: int = _count(
        4, 1, SLOTS_AHEAD, "The most groups of a container that are put at once; acks stay in order."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BookKeeperConfig(_Table):
    """A store on BookKeeper: its logs, and the sidecar, a Java process that reaches BookKeeper and ZooKeeper
    for each process that opens the store."""

    write_quorum: int = _count(
        0, 0, 16, "The bookies that each entry is written to; 0: 3 where there are four or more, else 2."
    )
    ack_quorum: int = _count(
        0, 0, 16, "The bookies that must have an entry before it is acked; 0: 2, or the write quorum if less."
    )
    appends_max: int = _count(
        4, 1, 64, "The most groups of a container that are under way at once; acks stay in order."
    )
    ledger_bytes: int = _size(
        64 * MiB, MiB, 16 * GiB, "A ledger that holds this many bytes is closed and a new one begun."
    )
    ledgers: str = _text("/ledgers", "Where the BookKeeper cluster has its metadata in ZooKeeper.")
    timeout: float = _duration(
        10.0, 1.0, 600.0, "The session at ZooKeeper: who does not answer for so long counts as gone."
    )
    memory: int = _size(128 * MiB, 64 * MiB, 16 * GiB, "The heap of the sidecar; it takes about twice that.")
    folder: str = _text(
        "", "What `tierlog bookkeeper install` has filled; empty means ~/.local/share/tierlog/bookkeeper."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GcConfig(_Table):
    """Garbage collection: deletes chunks that nothing refers to any more."""

    delay: float = _duration(
        60.0, 0.0, 31_536_000.0, "Garbage is deleted when its owner has known it for so long."
    )
    attempts: int = _count(
        3, 1, 1_000, "Attempts of a deletion before it is retried at ever longer intervals."
    )
    concurrent_deletes: int = _count(10, 1, 1_024, "Deletions in flight at the same time, per container.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TransactionsConfig(_Table):
    """Transactions: staged bytes that join their segment in one step."""

    tombstone: float = _duration(
        86_400.0, 1.0, 31_536_000.0, "How long an ended transaction is remembered, for late writers."
    )
    lease_max: float = _duration(
        LEASE_MAX,
        LEASE_MIN,
        LEASE_MAX,
        "The longest lease; a transaction without appends is aborted when it expires.",
    )
    staged_max: int = _count(
        STAGED_MAX,
        1,
        4 * STAGED_MAX,
        "The most staged segments of one transaction, failed attempts included.",
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SupervisionConfig(_Table):
    """Restarts of a container that stopped on an error: it recovers from its log."""

    restarts: int = _count(
        5, 0, 1_000, "Restarts of one container within the period before it stays stopped."
    )
    period: float = _duration(60.0, 0.1, 86_400.0, "The period in which restarts are counted.")
    backoff: float = _duration(
        0.1, 0.001, 60.0, "The wait before the first restart; it doubles with each further one."
    )
    backoff_max: float = _duration(10.0, 0.001, 3_600.0, "The longest wait before a restart.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TimeoutsConfig(_Table):
    """How long calls and a closing store wait."""

    unavailable: float = _duration(
        10.0, 0.0, 3_600.0, "A call waits this long for a recovering container, then raises Unavailable."
    )
    close: float = _duration(10.0, 0.1, 3_600.0, "A closing store waits this long for work in flight.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ShutdownConfig(_Table):
    """A graceful end: everything is flushed first, so that the next opening has nothing to do again. What is
    not flushed when the budget ends stays in the log."""

    flush_budget: float = _duration(
        5.0, 0.0, 3_600.0, "A host of the service flushes for this long before it ends; 0 means not at all."
    )
    embedded_budget: float = _duration(
        0.0, 0.0, 3_600.0, "The same for an embedded store at its close, and for commands on a data folder."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerConfig(_Table):
    """The service, `tierlog serve`: the supervisor and its host processes. An embedded store ignores this
    table."""

    listen: str = _text(
        "127.0.0.1", "The address on which the supervisor and its hosts listen. There is no access control."
    )
    port: int = _count(8470, 0, 65_535, "The supervisor's port; 0 lets the system choose one.")
    host_port: int = _count(
        0, 0, 65_535, "The port of host-0; the other hosts take the next ones. 0 lets the system choose."
    )
    control_port: int = _count(
        0,
        0,
        65_535,
        "The port on which the supervisor of a store in a bucket lets hosts of other machines join; 0 lets "
        "the system choose.",
    )
    advertise: str = _text(
        "",
        "The name or address under which clients reach this machine; empty means the one listened on. "
        "Requests to other names are refused, but for loopback's. https://NAME behind a proxy that ends TLS "
        "makes its pages the service's own.",
    )
    names: str = _text(
        "",
        "Further names, with commas between them, under which clients reach the service: that of a load "
        "balancer which passes Host on.",
    )
    forward: bool = _switch(
        False,
        "One-port mode, for load balancers: each host, and the supervisor, passes requests for other hosts "
        "on to them, and clients need to reach one address only.",
    )
    connections: int = _count(
        0,
        0,
        1_000_000,
        "The most connections of the supervisor and of each host. 0 means 32768. Never more than the hard "
        "limit of open files (ulimit -Hn) less 144, and in a host less 4 for each container.",
    )
    hosts: int = _count(0, 0, 256, "Host processes; 0 means one for each core.")
    heartbeat: float = _duration(0.1, 0.01, 60.0, "The interval of a host's heartbeats.")
    silence: float = _duration(
        0.75, 0.05, 600.0, "A host without a heartbeat for this long is silent: its containers fail over."
    )
    silent_grace: float = _duration(5.0, 0.1, 3_600.0, "A silent host is killed after this long.")
    start_limit: float = _duration(20.0, 0.5, 3_600.0, "A host that is not up after this long is killed.")
    drain_limit: float = _duration(
        30.0, 0.5, 3_600.0, "A draining host that has not ended after this long is killed."
    )
    orphan_grace: float = _duration(
        60.0, 0.0, 86_400.0, "A host without a supervisor serves for this long, then drains."
    )
    lease: float = _duration(
        20.0,
        1.0,
        3_600.0,
        "The lease of the supervisor of a store in a bucket: if it dies, another one can follow after 1.25 "
        "of this. It is renewed in every third of this, which costs requests.",
    )
    adoption: float = _duration(
        1.5, 0.0, 600.0, "A starting supervisor waits this long for the hosts of an earlier one."
    )
    restarts: int = _count(
        10, 0, 1_000, "Unexpected exits of one host within the period before it stays down."
    )
    restart_period: float = _duration(60.0, 0.1, 86_400.0, "The period in which exits of a host are counted.")
    restart_backoff: float = _duration(
        0.05, 0.001, 60.0, "The wait after the second exit; it doubles with each further one."
    )
    restart_backoff_max: float = _duration(
        10.0, 0.001, 3_600.0, "The longest wait before a host is started again."
    )
    container_crashes: int = _count(
        3, 1, 1_000, "A container that crashes this many hosts in a row while it opens is quarantined."
    )
    failovers: int = _count(
        30, 1, 100_000, "The most failovers of one container within a minute; further ones wait."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LogConfig(_Table):
    """The log of the program, on stderr. An embedded store ignores this table: its app configures the logger
    `tierlog`."""

    level: str = _choice(
        "auto",
        "The least level that is logged; auto is info for `tierlog serve`, `tierlog supervise` "
        "and `tierlog host run`, and nothing for other commands.",
        ("auto", "error", "warning", "info"),
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StoreConfig(_Table):
    """The configuration of one store. ``StoreConfig()`` is a good configuration."""

    containers: int = _count(
        4, 1, 1_024, "Containers that share the segments. Fixed when the data folder is made."
    )
    append_bytes_max: int = _size(
        8 * MiB, KiB, APPEND_BYTES_MAX, "The largest single append; a larger one is refused as TooLarge."
    )
    chunks: str = _text(
        "",
        "Where long-term storage is, such as s3://bucket/prefix; empty means lts/ in the data folder. A "
        "store on BookKeeper also takes the absolute path of a folder that all machines share. Fixed when "
        "the store is made.",
    )
    segments: SegmentsConfig = _section(SegmentsConfig)
    mailbox: MailboxConfig = _section(MailboxConfig)
    group: GroupConfig = _section(GroupConfig)
    wal: WalConfig = _section(WalConfig)
    checkpoint: CheckpointConfig = _section(CheckpointConfig)
    cache: CacheConfig = _section(CacheConfig)
    chunk_cache: ChunkCacheConfig = _section(ChunkCacheConfig)
    read_ahead: ReadAheadConfig = _section(ReadAheadConfig)
    writer: WriterConfig = _section(WriterConfig)
    defrag: DefragConfig = _section(DefragConfig)
    storage: StorageConfig = _section(StorageConfig)
    layout: str = _choice(
        LayoutMode.INSTALL_NEW.value,
        "What is done about segments in the legacy layout, header files beside rolling files. "
        "layout-upgrade cannot be undone.",
        tuple(mode.value for mode in LayoutMode),
    )
    s3: S3Config = _section(S3Config)
    s3_log: S3LogConfig = _section(S3LogConfig)
    bookkeeper: BookKeeperConfig = _section(BookKeeperConfig)
    gc: GcConfig = _section(GcConfig)
    transactions: TransactionsConfig = _section(TransactionsConfig)
    supervision: SupervisionConfig = _section(SupervisionConfig)
    timeouts: TimeoutsConfig = _section(TimeoutsConfig)
    shutdown: ShutdownConfig = _section(ShutdownConfig)
    server: ServerConfig = _section(ServerConfig)
    log: LogConfig = _section(LogConfig)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for low, high in _NOT_ABOVE:
            (least, low_setting), (most, high_setting) = _lookup(self, low), _lookup(self, high)
            if least > most:
                raise ConfigError(
                    f"{low} ({low_setting.show(least)}) must not exceed {high} ({high_setting.show(most)})"
                )

        try:
            if self.chunks and not is_folder(self.chunks):
                parse_location(self.chunks)
        except InvalidArgument as error:
            hint = "" if self.chunks.startswith("s3:") else f". {FOLDER_OF_CHUNKS}"
            raise ConfigError(f"chunks: {error}{hint}") from error


def is_folder(chunks: str) -> bool:
    """Whether the setting ``chunks`` names a folder, which all machines of a store on BookKeeper share."""
    return chunks.startswith("/")


FOLDER_OF_CHUNKS = (
    "A folder is always lts/ in the data folder; only a store on BookKeeper takes another one, by its "
    "absolute path"
)

_NOT_ABOVE = (
    ("append_bytes_max", "mailbox.bytes"),
    ("append_bytes_max", "cache.bytes"),
    ("bookkeeper.ack_quorum", "bookkeeper.write_quorum"),
    ("storage.backoff", "storage.backoff_max"),
    ("supervision.backoff", "supervision.backoff_max"),
    ("server.heartbeat", "server.silence"),
    ("shutdown.flush_budget", "server.drain_limit"),
    ("server.restart_backoff", "server.restart_backoff_max"),
)
"""Pairs of settings of which the first must not be above the second. A queue and the
cache admit an append that is larger than their bound, and a host would be silent between two heartbeats."""


def setting_of(field: attrs.Attribute[Any]) -> Setting | None:
    """The setting that a field of a configuration class carries; None for a table."""
    return field.metadata.get(Setting)


def table_of(field: attrs.Attribute[Any]) -> Any:
    """The class of a field that is a table."""
    default: Any = field.default  # ``_section`` made it: a factory that is the table's class
    return default.factory


def _lookup(config: StoreConfig, path: str) -> tuple[Any, Setting]:
    """The value of the setting ``path``, and the setting."""
    section, _, name = path.rpartition(".")
    owner = getattr(config, section) if section else config
    value = getattr(owner, name)
    return value, attrs.fields_dict(type(owner))[name].metadata[Setting]

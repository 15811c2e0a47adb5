"""The configuration of a store and its service: one attrs class for each table of ``tierlog.toml``.

The classes are the only source: cattrs parses files into them, their validators check values given in code,
and ``tierlog init`` renders them with each setting's help, range and default. Sizes are bytes, durations are
seconds, shares are fractions of one.

A configuration is frozen: it is read once, before a store opens. ``ConfigError`` names the file, the setting
by its full path, such as ``writer.flush_age``, the value, and what is allowed.
"""

from __future__ import annotations

import os
import stat
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec

import attrs

from ...journal.log.contract import GROUP_BYTES_MAX
from ...storage_backends.base.arguments import APPEND_BYTES_MAX, ROLLING_SIZE_MAX, ROLLING_SIZE_MIN
from ...storage_backends.base.errors import ConfigError, InvalidArgument
from ...storage_backends.base.os_errors import reason_of
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

if TYPE_CHECKING:
    from cattrs import Converter

P = ParamSpec("P")
_MISTAKES_SHOWN = 5
_FILE_BYTES_MAX = 1 << 20
TiB = 1024 * GiB


def _check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Hold values given in code to the same ranges as values read from a file."""
    try:
        attribute.metadata[Setting].check(value)
    except UnitError as error:
        raise ConfigError(f"{type(instance).__name__}.{attribute.name}: {error}") from error


def _as_field(make: Callable[P, Setting]) -> Callable[P, Any]:
    """``make`` for a class body: it returns the attrs field that carries the setting."""

    def field(*args: P.args, **kwargs: P.kwargs) -> Any:
        setting = make(*args, **kwargs)
        return attrs.field(default=setting.default, validator=_check, metadata={Setting: setting})

    return field


_size, _duration, _count, _share = _as_field(size), _as_field(duration), _as_field(count), _as_field(share)
_text, _switch, _choice = _as_field(TextSetting), _as_field(SwitchSetting), _as_field(ChoiceSetting)
_url = _as_field(UrlSetting)


def _section(kind: type) -> Any:
    return attrs.field(factory=kind, validator=_check_section)


def _check_section(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    kind = _table_of(attribute)
    if not isinstance(value, kind):
        raise ConfigError(f"{attribute.name} must be a {kind.__name__}, not {type(value).__name__}")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WalConfig(Value):
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
class GroupConfig(Value):
    """Group commit: appends that wait together become durable with one disk sync."""

    bytes: int = _size(4 * MiB, 4 * KiB, GROUP_BYTES_MAX, "A group is closed when it holds this many bytes.")
    count: int = _count(
        4096, 1, 65_536, "The most operations that are decided in one step; more than 384 never are."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MailboxConfig(Value):
    """The queue between clients and a container. Callers wait while it is full."""

    count: int = _count(16_384, 16, 1_048_576, "The most operations that wait.")
    bytes: int = _size(64 * MiB, MiB, 16 * GiB, "The most bytes that wait.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CacheConfig(Value):
    """The tail cache of each container: its newest bytes. When room is needed, flushed bytes go first.
    Unflushed ones are then read back from the log."""

    bytes: int = _size(256 * MiB, MiB, TiB, "Memory for cached bytes, per container.")
    soft: float = _share(
        0.6, 0.05, 1.0, "Everything is flushed at once when unflushed bytes are more than this share of it."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ReadAheadConfig(Value):
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
class ChunkCacheConfig(Value):
    """The local chunk cache: flushed data of long-term storage in a bucket, on the local disk. All processes
    of a store share it, and its folder may be removed at any time."""

    path: str = _text(
        "",
        "Its folder, relative to the data folder; empty means `cache` if `chunks` names a bucket, and no "
        "cache otherwise. With a path, lts/ is cached too, which is useful on a network mount.",
    )
    bytes: int = _size(10 * GiB, 0, 1 << 50, "Disk space for cached data; 0 turns the cache off.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SegmentsConfig(Value):
    """What a container keeps in memory about its segments."""

    active_max: int = _count(
        25_000, 100, 10_000_000, "The most segments with state in memory; above it idle ones leave it."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckpointConfig(Value):
    """Checkpoints limit how much of the log is replayed at open."""

    wal_bytes: int = _size(
        64 * MiB, MiB, 64 * GiB, "A checkpoint is due after this much log, or after four times its own size."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WriterConfig(Value):
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
class DefragConfig(Value):
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
class StorageConfig(Value):
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
class S3Config(Value):
    """How an S3 service is reached, if `chunks` names a bucket. Credentials come from the usual AWS
    variables, files or roles."""

    endpoint: str = _url("", "The service's URL, such as https://s3.example.org; empty means AWS.")
    region: str = _text(
        "", "The bucket's region; empty means the region of AWS_REGION or of the AWS profile."
    )
    append: bool = _switch(
        False, "The bucket takes puts with a write offset, as directory buckets do, so that chunks can grow."
    )
    connections: int = _count(32, 1, 1_024, "The most connections to the service.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GcConfig(Value):
    """Garbage collection: deletes chunks that nothing refers to any more."""

    delay: float = _duration(
        60.0, 0.0, 31_536_000.0, "Garbage is deleted when its owner has known it for so long."
    )
    attempts: int = _count(
        3, 1, 1_000, "Attempts of a deletion before it is retried at ever longer intervals."
    )
    concurrent_deletes: int = _count(10, 1, 1_024, "Deletions in flight at the same time, per container.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TransactionsConfig(Value):
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
class SupervisionConfig(Value):
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
class TimeoutsConfig(Value):
    """How long calls and a closing store wait."""

    unavailable: float = _duration(
        10.0, 0.0, 3_600.0, "A call waits this long for a recovering container, then raises Unavailable."
    )
    close: float = _duration(10.0, 0.1, 3_600.0, "A closing store waits this long for work in flight.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ShutdownConfig(Value):
    """A graceful end: everything is flushed first, so that the next opening has nothing to do again. What is
    not flushed when the budget ends stays in the log."""

    flush_budget: float = _duration(
        5.0, 0.0, 3_600.0, "A host of the service flushes for this long before it ends; 0 means not at all."
    )
    embedded_budget: float = _duration(
        0.0, 0.0, 3_600.0, "The same for an embedded store at its close, and for commands on a data folder."
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerConfig(Value):
    """The service, `tierlog serve`: the supervisor and its host processes. An embedded store ignores this
    table."""

    listen: str = _text(
        "127.0.0.1", "The address on which the supervisor and its hosts listen. There is no access control."
    )
    port: int = _count(8470, 0, 65_535, "The supervisor's port; 0 lets the system choose one.")
    host_port: int = _count(
        0, 0, 65_535, "The port of host-0; the other hosts take the next ones. 0 lets the system choose."
    )
    advertise: str = _text(
        "",
        "The name or address under which clients reach this machine; empty means the one listened on. "
        "Requests to other names are refused, but for loopback's. https://NAME behind a proxy that ends TLS "
        "makes its pages the service's own.",
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
class LogConfig(Value):
    """The log of the program, on stderr. An embedded store ignores this table: its app configures the logger
    `tierlog`."""

    level: str = _choice(
        "auto",
        "The least level that is logged; auto is info for `tierlog serve`, and nothing for other commands.",
        ("auto", "error", "warning", "info"),
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StoreConfig(Value):
    """The configuration of one store. ``StoreConfig()`` is a good configuration."""

    containers: int = _count(
        4, 1, 1_024, "Containers that share the segments. Fixed when the data folder is made."
    )
    append_bytes_max: int = _size(
        8 * MiB, KiB, APPEND_BYTES_MAX, "The largest single append; a larger one is refused as TooLarge."
    )
    chunks: str = _text(
        "",
        "Where long-term storage is, such as s3://bucket/prefix; empty means lts/ in the data folder. "
        "Fixed when the folder is made.",
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
    gc: GcConfig = _section(GcConfig)
    transactions: TransactionsConfig = _section(TransactionsConfig)
    supervision: SupervisionConfig = _section(SupervisionConfig)
    timeouts: TimeoutsConfig = _section(TimeoutsConfig)
    shutdown: ShutdownConfig = _section(ShutdownConfig)
    server: ServerConfig = _section(ServerConfig)
    log: LogConfig = _section(LogConfig)

    def __attrs_post_init__(self) -> None:
        for low, high in _NOT_ABOVE:
            (least, low_setting), (most, high_setting) = _lookup(self, low), _lookup(self, high)
            if least > most:
                raise ConfigError(
                    f"{low} ({low_setting.show(least)}) must not exceed {high} ({high_setting.show(most)})"
                )

        try:
            if self.chunks:
                parse_location(self.chunks)
        except InvalidArgument as error:
            hint = "" if self.chunks.startswith("s3:") else ". A folder is always lts/ in the data folder"
            raise ConfigError(f"chunks: {error}{hint}") from error


_NOT_ABOVE = (
    ("append_bytes_max", "mailbox.bytes"),
    ("append_bytes_max", "cache.bytes"),
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


def _lookup(config: StoreConfig, path: str) -> tuple[Any, Setting]:
    """The value of the setting ``path``, and the setting."""
    section, _, name = path.rpartition(".")
    owner = getattr(config, section) if section else config
    value = getattr(owner, name)
    return value, attrs.fields_dict(type(owner))[name].metadata[Setting]


def load_config(path: str | os.PathLike[str]) -> StoreConfig:
    """Read a TOML file. Settings that it leaves out have their defaults.

    Raises ``ConfigError`` if the file cannot be read, is not TOML, or has an unknown setting or a value that
    is not allowed.
    """
    try:
        file = os.fspath(path)
    except TypeError:
        raise ConfigError(
            f"the file must be a str or a pathlib.Path, not {type(path).__name__}; StoreConfig() has the "
            f"defaults"
        ) from None
    try:
        return decode_config(_read(file))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None  # the message names the cause


def _read(file: str) -> bytes:
    try:
        # Opening a pipe would wait for its other end, and a device may never end.
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError("this is not a regular file")
            data = stream.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise ConfigError("no such file; `tierlog init` writes one with the defaults") from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {reason_of(error)}") from error
    except ValueError as error:  # for a path that no file can have
        raise ConfigError(f"cannot be read: {error}") from error

    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"it is larger than {_FILE_BYTES_MAX} bytes, so it is not a configuration")
    return data


def decode_config(data: bytes) -> StoreConfig:
    """The configuration in a TOML file's bytes. Raises ``ConfigError``."""
    import tomllib  # an opening without a file does not wait for it

    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        # tomllib also raises these, for huge numbers and deep nesting.
        raise ConfigError(f"not valid TOML: {error}") from error
    return parse_config(tables)


def parse_config(tables: Mapping[str, object]) -> StoreConfig:
    """The configuration in parsed TOML. Raises ``ConfigError`` with all mistakes, five at most."""
    from cattrs import BaseValidationError

    try:
        return _converter().structure(tables, StoreConfig)
    except BaseValidationError as error:
        raise ConfigError("; also ".join(islice(_mistakes(error, ""), _MISTAKES_SHOWN))) from None


class _NotATable(TypeError):
    """A table was expected where a value is."""


@cache
def _converter() -> Converter:
    # Imported with the first file that is read: most stores are opened without one.
    from cattrs import Converter
    from cattrs.gen import make_dict_structure_fn, override

    converter = Converter(detailed_validation=True)

    def table_hook(kind: type[Any]) -> Callable[[Any, Any], Any]:
        overrides: dict[str, Any] = {
            field.name: override(struct_hook=partial(_read_setting, setting))
            for field in attrs.fields(kind)
            if (setting := setting_of(field)) is not None
        }
        structure = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **overrides)

        def hook(value: Any, _: Any) -> Any:
            if not isinstance(value, Mapping):
                raise _NotATable
            return structure(value, kind)

        return hook

    converter.register_structure_hook_factory(attrs.has, table_hook)
    return converter


def _read_setting(setting: Setting, value: object, _: object) -> Any:
    return setting.read(value)


def _mistakes(error: BaseException, path: str) -> Iterator[str]:
    """What is wrong, by the full path of each setting. ``path``: of the table or the setting."""
    from cattrs import ClassValidationError, ForbiddenExtraKeysError

    if isinstance(error, ClassValidationError):
        of_fields, of_table = error.group_exceptions()
        for inner, note in of_fields:
            yield from _mistakes(inner, f"{path}.{note.name}".lstrip("."))
        for inner in of_table:
            yield from _mistakes(inner, path)
    elif isinstance(error, ForbiddenExtraKeysError):
        # A set: messages must not depend on its order.
        for key in sorted(error.extra_fields):
            unknown = f"{path}.{key}".lstrip(".")
            yield f"there is no setting {unknown!r}{_did_you_mean(unknown)}"
    elif isinstance(error, _NotATable):
        yield f"{path} is a table, not a value: write [{path}] on a line of its own and its settings below it"
    else:
        yield str(error) if isinstance(error, ConfigError) else f"{path}: {error}"


def _all_paths() -> list[str]:
    """The full path of every setting, and the name of every table."""
    paths = []
    for field in attrs.fields(StoreConfig):
        paths.append(field.name)
        if setting_of(field) is None:
            paths += [f"{field.name}.{inner.name}" for inner in attrs.fields(_table_of(field))]

    return paths


def _table_of(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default  # ``_section`` made it: a factory that is the table's class
    return default.factory


def _did_you_mean(path: str) -> str:
    import difflib  # only mistakes need it

    paths = _all_paths()
    name = path.rpartition(".")[2]
    # A right name in the wrong table is more likely than a typo.
    elsewhere = [known for known in paths if known.rpartition(".")[2] == name]
    close = elsewhere or difflib.get_close_matches(path, paths, n=1, cutoff=0.6)
    return (
        f"; did you mean {' or '.join(map(repr, close))}?"
        if close
        else "; `tierlog init` writes a file with all of them"
    )


_HEAD = """\
# The configuration of a tierlog store. Every setting is here with its default; a line that is left out means
# the default. Sizes are bytes, as 1048576 or "1 MiB". Durations are seconds, as 0.5 or "500 ms". Shares are
# fractions, as 0.6 or "60 %".
"""


def render_config(config: StoreConfig) -> str:
    """The configuration as a commented TOML file that ``load_config`` reads back as an equal value."""
    parts = [_HEAD, *_render_settings(config)]
    for field in attrs.fields(StoreConfig):
        if setting_of(field) is None:
            table = getattr(config, field.name)
            title = " ".join((type(table).__doc__ or "").split())
            parts += ["", *_comment(title), f"[{field.name}]", *_render_settings(table)]

    return "\n".join(parts) + "\n"


def _comment(text: str) -> list[str]:
    """As lines of at most 110 columns; names such as layout-upgrade stay whole."""
    return textwrap.wrap(
        text,
        110,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _render_settings(table: attrs.AttrsInstance) -> Iterator[str]:
    for field in attrs.fields(type(table)):
        setting = setting_of(field)
        if setting is not None:
            yield from _comment(f"{setting.help} ({setting.range})")
            yield f"{field.name} = {setting.show_toml(getattr(table, field.name))}"

"""The configuration of a store and its service: everything that an operator may turn, with its unit, range
and reason.

Owns: the settings, their defaults and ranges, how they are read from TOML and how they are written back. Does
not own: what a setting does (the part that reads it says so) nor where a store lives (that is an argument of
``open_store``).

One description per setting, in its field's metadata, serves validation, error messages and the commented file
of ``tierlog init``. A configuration is a frozen value: it is read once, before the store opens, and never
changes under a running part. Reading a file is plain blocking I/O, done before any event loop needs the
thread. Every mistake raises ``ConfigError`` that names the setting by its full path, such as
``writer.flush_age``, and says what is allowed; nothing was opened by then.

Sizes are whole bytes, durations are seconds, shares are fractions of one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from typing import Any

import attrs

from ...journal.log.contract import GROUP_BYTES_MAX
from ...storage_backends.base.errors import ConfigError, InvalidArgument
from ...storage_backends.base.transactions import LEASE_MAX, LEASE_MIN, STAGED_MAX
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
    choice,
    count,
    duration,
    setting_of,
    share,
    size,
    switch,
    text,
)


def _check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Hold values given in code to the same ranges as values read from a file."""
    try:
        setting_of(attribute).check(value)
    except UnitError as error:
        raise ConfigError(f"{type(instance).__name__}.{attribute.name}: {error}") from error


def _setting(description: ChoiceSetting | Setting | TextSetting | SwitchSetting) -> Any:
    return attrs.field(default=description.default, validator=_check, metadata={Setting: description})


def _section(kind: type) -> Any:
    return attrs.field(factory=kind, validator=attrs.validators.instance_of(kind))


@attrs.frozen(kw_only=True)
class WalConfig:
    """Tier 1: the write-ahead log of each container, in local files."""

    file_size: int = _setting(
        size(
            64 * MiB,
            64 * KiB,
            16 * GiB,
            "A log file that has grown to this size is closed and a new one begun.",
        )
    )
    reserve: int = _setting(
        size(
            4 * MiB,
            64 * KiB,
            GiB,
            "Disk space set aside per container, so that flush, truncate and delete still work on a full "
            "disk.",
        )
    )
    low_water: int = _setting(
        size(
            64 * MiB, 0, 1024 * GiB, "Appends are refused as StorageFull while the disk has less free space."
        )
    )


@attrs.frozen(kw_only=True)
class GroupConfig:
    """Group commit: appends that wait together become durable with one disk sync."""

    bytes: int = _setting(
        size(4 * MiB, 4 * KiB, GROUP_BYTES_MAX, "A group is closed when it holds this much.")
    )
    count: int = _setting(count(4096, 1, 65_536, "A group is closed when it holds this many operations."))


@attrs.frozen(kw_only=True)
class MailboxConfig:
    """The one queue between clients and a container. A full one delays its senders."""

    count: int = _setting(count(16_384, 16, 1_048_576, "Operations waiting, at most."))
    bytes: int = _setting(size(64 * MiB, MiB, 16 * GiB, "Bytes waiting, at most."))


@attrs.frozen(kw_only=True)
class CacheConfig:
    """The tail cache of each container: unflushed bytes are pinned in it, flushed ones make room when
    needed."""

    bytes: int = _setting(size(256 * MiB, MiB, 1024 * GiB, "Memory for cached bytes, per container."))
    soft: float = _setting(share(0.6, 0.05, 1.0, "Above this share of unflushed bytes appends are delayed."))
    hard: float = _setting(
        share(0.9, 0.05, 1.0, "Above this share of unflushed bytes appends are refused as Throttled.")
    )


@attrs.frozen(kw_only=True)
class ReadAheadConfig:
    """Readers of long-term storage that read on find the next bytes already there."""

    bytes: int = _setting(
        size(
            32 * MiB,
            0,
            16 * GiB,
            "How far one reader is read ahead of, at most: 1 MiB or more. It begins small; 0 turns it off.",
        )
    )
    total_bytes: int = _setting(
        size(
            128 * MiB, 2 * MiB, 1024 * GiB, "Memory for what was read ahead, for all containers of a process."
        )
    )

    def __attrs_post_init__(self) -> None:
        if 0 < self.bytes < MiB:
            raise ConfigError(
                f"read_ahead.bytes is {self.bytes}: whole blocks of 1 MiB are read ahead, so set it to 0 "
                f"for none, or to 1 MiB or more"
            )


@attrs.frozen(kw_only=True)
class SegmentsConfig:
    """What a container keeps in memory about its segments."""

    active_max: int = _setting(
        count(
            25_000, 100, 10_000_000, "Segments with state in memory, at most; idle ones are evicted above it."
        )
    )


@attrs.frozen(kw_only=True)
class CheckpointConfig:
    """Checkpoints bound how much of the log is replayed at open."""

    wal_bytes: int = _setting(
        size(64 * MiB, MiB, 64 * GiB, "A checkpoint is due after this much log, or four times its own size.")
    )


@attrs.frozen(kw_only=True)
class WriterConfig:
    """The storage writer moves acked bytes from the log to long-term storage."""

    flush_bytes: int = _setting(
        size(4 * MiB, KiB, GiB, "A segment with this much unflushed data is flushed.")
    )
    flush_age: float = _setting(
        duration(30.0, 0.01, 86_400.0, "A segment whose oldest unflushed byte is this old is flushed.")
    )
    rolling_size: int = _setting(
        size(
            128 * MiB,
            64 * KiB,
            1024 * GiB,
            "A chunk that has grown to this size is closed and a new one begun.",
        )
    )
    concurrent_segments: int = _setting(
        count(8, 1, 1_024, "Segments flushed at the same time, per container.")
    )
    error_pause: float = _setting(
        duration(1.0, 0.001, 3_600.0, "The wait after a failed flush cycle before the next one.")
    )


@attrs.frozen(kw_only=True)
class DefragConfig:
    """Joining small chunks of a segment, and moving the rest of a first chunk that is mostly truncated."""

    small_max: int = _setting(
        size(16 * MiB, 0, 1024 * GiB, "Chunks above this are left alone; 0 joins none.")
    )
    native_min: int = _setting(
        size(
            MiB,
            0,
            1024 * GiB,
            "Chunks that all have this much are joined inside the storage, smaller ones are copied through "
            "memory.",
        )
    )
    growth: int = _setting(
        count(
            4,
            2,
            64,
            "A joined chunk is at least so many times as long as its longest source. More copies less and "
            "leaves more chunks.",
        )
    )
    loose_chunks: int = _setting(
        count(
            16,
            0,
            65_536,
            "Small chunks that a segment gains before they are joined; 0 leaves it to `tierlog chunks "
            "defrag`.",
        )
    )
    inline: bool = _setting(switch(False, "Join as a part of each merge, instead of after it."))
    relocate_above: int = _setting(
        size(64 * MiB, 0, 1024 * GiB, "A first chunk of this size or less is not moved.")
    )
    relocate_max: int = _setting(
        size(GiB, 0, 1024 * GiB, "A first chunk above this is not moved; 0 moves none.")
    )
    relocate_share: float = _setting(
        share(0.8, 0.5, 1.0, "The least part of a first chunk that must be truncated before its rest moves.")
    )


@attrs.frozen(kw_only=True)
class StorageConfig:
    """Calls to long-term storage. This is the only layer that repeats a call, and only calls that are safe to
    repeat."""

    attempts: int = _setting(count(3, 1, 100, "Tries of a repeatable call before it fails."))
    backoff: float = _setting(
        duration(0.1, 0.001, 60.0, "The wait before the second try; it doubles with each further one.")
    )
    backoff_max: float = _setting(duration(5.0, 0.001, 600.0, "The longest wait between two tries."))
    read_deadline: float = _setting(
        duration(30.0, 0.1, 3_600.0, "A read that takes longer fails as Unavailable.")
    )
    write_deadline: float = _setting(
        duration(60.0, 0.1, 3_600.0, "A write that takes longer has an unknown outcome.")
    )
    concurrent_calls: int = _setting(
        count(16, 1, 1_024, "Calls in flight at the same time, for the whole store.")
    )
    probe_interval: float = _setting(
        duration(5.0, 0.01, 3_600.0, "While long-term storage is down it is tried this often.")
    )
    safe_size: int = _setting(
        size(0, 0, 1 << 60, "Flushes stop while more space than this is in use; 0 means no limit.")
    )
    safe_size_interval: float = _setting(
        duration(60.0, 0.1, 86_400.0, "How often the space in use is measured.")
    )


@attrs.frozen(kw_only=True)
class S3Config:
    """How an S3 service is reached, if `chunks` names a bucket. Credentials come from the usual AWS
    variables, files or roles."""

    endpoint: str = _setting(text("", "The service's URL, such as https://s3.example.org; empty means AWS."))
    region: str = _setting(
        text("", "The bucket's region; empty means what AWS_REGION or the AWS profile says.")
    )
    append: bool = _setting(
        switch(
            False,
            "The bucket takes puts with a write offset, as directory buckets do, so that chunks can grow.",
        )
    )
    connections: int = _setting(count(32, 1, 1_024, "Connections to the service, at most."))


@attrs.frozen(kw_only=True)
class GcConfig:
    """Deletion of chunks that nothing refers to any more."""

    delay: float = _setting(
        duration(60.0, 0.0, 31_536_000.0, "The least age of garbage before it is deleted.")
    )
    attempts: int = _setting(
        count(3, 1, 1_000, "Tries of a deletion before it is set aside, to be tried ever more rarely.")
    )
    concurrent_deletes: int = _setting(
        count(10, 1, 1_024, "Deletions in flight at the same time, per container.")
    )


@attrs.frozen(kw_only=True)
class TransactionsConfig:
    """Transactions: staged bytes that join their segment in one step."""

    tombstone: float = _setting(
        duration(
            86_400.0,
            1.0,
            31_536_000.0,
            "An ended transaction is remembered this long, so that its late writers are told.",
        )
    )
    lease_max: float = _setting(
        duration(
            LEASE_MAX,
            LEASE_MIN,
            LEASE_MAX,
            "The longest lease: a transaction without an append for its lease is aborted.",
        )
    )
    staged_max: int = _setting(
        count(
            STAGED_MAX,
            1,
            4 * STAGED_MAX,
            "Staged segments of one open transaction, those of failed attempts too; one more is refused.",
        )
    )


@attrs.frozen(kw_only=True)
class SupervisionConfig:
    """What happens when a container stops on an error: recovery is the only way back."""

    restarts: int = _setting(
        count(5, 0, 1_000, "Restarts of one container within the period before it stays stopped.")
    )
    period: float = _setting(duration(60.0, 0.1, 86_400.0, "The period in which restarts are counted."))
    backoff: float = _setting(
        duration(0.1, 0.001, 60.0, "The wait before the first restart; it doubles with each further one.")
    )
    backoff_max: float = _setting(duration(10.0, 0.001, 3_600.0, "The longest wait before a restart."))


@attrs.frozen(kw_only=True)
class TimeoutsConfig:
    """How long a caller, or a stop, waits."""

    unavailable: float = _setting(
        duration(
            10.0, 0.0, 3_600.0, "A call waits this long for a recovering container, then raises Unavailable."
        )
    )
    close: float = _setting(
        duration(10.0, 0.1, 3_600.0, "A closing store waits this long for work in flight.")
    )


@attrs.frozen(kw_only=True)
class ServerConfig:
    """The service, `tierlog serve`: the supervisor and its host processes. An embedded store does not read
    this."""

    listen: str = _setting(
        text(
            "127.0.0.1",
            "The address on which the supervisor and its hosts listen. There is no access control.",
        )
    )
    port: int = _setting(count(8470, 0, 65_535, "The supervisor's port; 0 lets the system choose one."))
    host_port: int = _setting(
        count(
            0,
            0,
            65_535,
            "The port of host-0; the next hosts take the next ports. 0 lets the system choose them.",
        )
    )
    advertise: str = _setting(
        text(
            "",
            "The name or address under which clients reach this machine, if it is another than the one "
            "listened on.",
        )
    )
    hosts: int = _setting(count(0, 0, 256, "Host processes; 0 means one for each core."))
    heartbeat: float = _setting(duration(0.1, 0.01, 60.0, "How often a host says that it lives."))
    silence: float = _setting(
        duration(
            0.75,
            0.05,
            600.0,
            "The containers of a host that was not heard for this long are opened elsewhere.",
        )
    )
    silent_grace: float = _setting(duration(5.0, 0.1, 3_600.0, "A silent host is killed after this long."))
    start_limit: float = _setting(
        duration(20.0, 0.5, 3_600.0, "A host that has not come up after this long is killed.")
    )
    drain_limit: float = _setting(
        duration(30.0, 0.5, 3_600.0, "A host that has not finished this long after it was told to is killed.")
    )
    orphan_grace: float = _setting(
        duration(60.0, 0.0, 86_400.0, "A host serves on for this long without a supervisor, then drains.")
    )
    adoption: float = _setting(
        duration(1.5, 0.0, 600.0, "A supervisor that starts waits this long for the hosts of an earlier one.")
    )
    restarts: int = _setting(
        count(10, 0, 1_000, "Unasked exits of one host within the period before it stays down.")
    )
    restart_period: float = _setting(
        duration(60.0, 0.1, 86_400.0, "The period in which exits of a host are counted.")
    )
    restart_backoff: float = _setting(
        duration(0.05, 0.001, 60.0, "The wait after the second exit; it doubles with each further one.")
    )
    restart_backoff_max: float = _setting(
        duration(10.0, 0.001, 3_600.0, "The longest wait before a host is started again.")
    )
    container_crashes: int = _setting(
        count(
            3,
            1,
            1_000,
            "Hosts in a row that a container may take down while it opens, before it is set aside.",
        )
    )
    failovers: int = _setting(
        count(30, 1, 100_000, "Failovers of one container within a minute; more of them wait.")
    )


@attrs.frozen(kw_only=True)
class StoreConfig:
    """Everything about one store. ``StoreConfig()`` is a good configuration."""

    containers: int = _setting(
        count(4, 1, 1_024, "Segment containers that share the segments. Fixed when the data folder is made.")
    )
    append_bytes_max: int = _setting(
        size(8 * MiB, KiB, 32 * MiB, "The largest single append; a larger one is refused as InvalidArgument.")
    )
    chunks: str = _setting(
        text(
            "",
            "Where long-term storage is, such as s3://bucket/prefix; empty means lts/ in the data folder. "
            "Fixed when the folder is made.",
        )
    )
    segments: SegmentsConfig = _section(SegmentsConfig)
    mailbox: MailboxConfig = _section(MailboxConfig)
    group: GroupConfig = _section(GroupConfig)
    wal: WalConfig = _section(WalConfig)
    checkpoint: CheckpointConfig = _section(CheckpointConfig)
    cache: CacheConfig = _section(CacheConfig)
    read_ahead: ReadAheadConfig = _section(ReadAheadConfig)
    writer: WriterConfig = _section(WriterConfig)
    defrag: DefragConfig = _section(DefragConfig)
    storage: StorageConfig = _section(StorageConfig)
    layout: str = _setting(
        choice(
            LayoutMode.INSTALL_NEW.value,
            tuple(mode.value for mode in LayoutMode),
            "What becomes of segments in the legacy layout, header files beside rolling files. After "
            "layout-upgrade there is no way back.",
        )
    )
    s3: S3Config = _section(S3Config)
    gc: GcConfig = _section(GcConfig)
    transactions: TransactionsConfig = _section(TransactionsConfig)
    supervision: SupervisionConfig = _section(SupervisionConfig)
    timeouts: TimeoutsConfig = _section(TimeoutsConfig)
    server: ServerConfig = _section(ServerConfig)

    def __attrs_post_init__(self) -> None:
        for low, high in _NOT_ABOVE:
            if _value_at(self, low) > _value_at(self, high):
                raise ConfigError(
                    f"{low} is {_shown_at(self, low)}, which is more than {high} ({_shown_at(self, high)}); "
                    f"it may not be"
                )
        _check_chunks(self.chunks)


def _check_chunks(place: str) -> None:
    try:
        if place:
            parse_location(place)
    except InvalidArgument as error:
        raise ConfigError(f"chunks: {error}") from error


_NOT_ABOVE = (
    ("cache.soft", "cache.hard"),
    ("append_bytes_max", "mailbox.bytes"),
    ("append_bytes_max", "cache.bytes"),
    ("storage.backoff", "storage.backoff_max"),
    ("supervision.backoff", "supervision.backoff_max"),
    ("server.heartbeat", "server.silence"),
    ("server.restart_backoff", "server.restart_backoff_max"),
)
"""Pairs of settings of which the first must not be above the second: the other way round nothing could ever
pass."""


def load_config(path: str | os.PathLike[str]) -> StoreConfig:
    """Read a TOML file; what it leaves out has its default. ``ConfigError`` names the file, the setting and
    what is allowed."""
    file = os.fspath(path)
    try:
        return decode_config(_read(file))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def decode_config(data: bytes) -> StoreConfig:
    """A configuration out of a TOML file's bytes."""
    try:
        tables = tomllib.loads(data.decode())
    except (
        ValueError,
        RecursionError,
    ) as error:  # The parser lets out more than its own error: for huge numbers, and for deep nests.
        raise ConfigError(f"not valid TOML: {error}") from error
    return parse_config(tables)


def parse_config(tables: Mapping[str, object]) -> StoreConfig:
    """A configuration out of parsed TOML."""
    return StoreConfig(**_parse_section(StoreConfig, tables, prefix=""))


def render_config(config: StoreConfig) -> str:
    """The configuration as a commented TOML file that ``load_config`` reads back as an equal value."""
    parts = [_HEAD, *_render_settings(config)]
    for field in attrs.fields(StoreConfig):
        if _is_section(field):
            section = getattr(config, field.name)
            title = " ".join((type(section).__doc__ or "").split())
            parts += [f"\n# {title}\n[{field.name}]", *_render_settings(section)]

    return "\n".join(parts) + "\n"


_HEAD = """\
# The configuration of a tierlog store. Every setting is here with its default; a line that is left out means
# the default. Sizes are bytes, as 1048576 or "1 MiB". Durations are seconds, as 0.5 or "500 ms". Shares are
# fractions, as 0.6 or "60 %".
"""


def _render_settings(section: attrs.AttrsInstance) -> list[str]:
    lines = []
    for field in attrs.fields(type(section)):
        if not _is_section(field):
            setting = setting_of(field)
            value = setting.show_toml(getattr(section, field.name))
            lines += [f"# {setting.help} ({setting.range})", f"{field.name} = {value}"]

    return lines


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except FileNotFoundError as error:
        raise ConfigError("no such file; `tierlog init` writes one with the defaults") from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error


def _parse_section(kind: type, table: Mapping[str, object], prefix: str) -> dict[str, Any]:
    fields = attrs.fields_dict(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        path = prefix + key
        if key not in fields:
            raise ConfigError(f"there is no setting {path!r}{_did_you_mean(path)}")

        values[key] = (
            _parse_subsection(fields[key], value, path)
            if _is_section(fields[key])
            else _parse_value(fields[key], value, path)
        )

    return values


def _parse_subsection(field: attrs.Attribute[Any], value: object, path: str) -> object:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{path} is a section, not a value: write [{path}] on a line of its own and its settings below"
        )

    kind = _section_kind(field)
    return kind(**_parse_section(kind, value, prefix=f"{path}."))


def _parse_value(field: attrs.Attribute[Any], value: object, path: str) -> float | str:
    setting = setting_of(field)
    try:
        number: float | str = setting.read(value)
        setting.check(number)
    except UnitError as error:
        raise ConfigError(f"{path}: {error}") from error

    return number


def _is_section(field: attrs.Attribute[Any]) -> bool:
    return Setting not in field.metadata


def _section_kind(field: attrs.Attribute[Any]) -> Any:
    # `_section` made the default: a factory that is the section's class itself.
    factory: Any = field.default
    return factory.factory


def _all_paths() -> list[str]:
    """The full path of every setting, and the name of every section."""
    paths = []
    for field in attrs.fields(StoreConfig):
        paths.append(field.name)
        if _is_section(field):
            paths += [f"{field.name}.{inner.name}" for inner in attrs.fields(_section_kind(field))]

    return paths


def _did_you_mean(path: str) -> str:
    paths = _all_paths()
    name = path.rpartition(".")[2]
    # A right name in the wrong section is the likelier mistake than a typo.
    moved = [known for known in paths if known.rpartition(".")[2] == name]
    close = moved or difflib.get_close_matches(path, paths, n=1, cutoff=0.6)
    return (
        f"; did you mean {' or '.join(repr(known) for known in close)}?"
        if close
        else "; `tierlog init` writes a file with all of them"
    )


def _value_at(config: StoreConfig, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)

    return value


def _shown_at(config: StoreConfig, path: str) -> str:
    section, _, name = path.rpartition(".")
    owner = getattr(config, section) if section else config
    shown: str = setting_of(attrs.fields_dict(type(owner))[name]).show(getattr(owner, name))
    return shown

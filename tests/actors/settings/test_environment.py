"""Settings from environment variables."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tierlog.actors.settings.configuration import StoreConfig, setting_of
from tierlog.actors.settings.environment import read_config
from tierlog.storage_backends.base.errors import ConfigError


def test_a_variable_overrides_the_file_which_overrides_the_default(tmp_path: Path) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text('containers = 3\n[writer]\nflush_age = 7\nrolling_size = "1 MiB"\n')
    config = read_config(file, {"TIERLOG_WRITER_FLUSH_AGE": "500 ms", "PATH": "/bin"})

    assert (config.containers, config.writer.rolling_size) == (3, 1 << 20)
    assert config.writer.flush_age == 0.5
    assert config.gc == StoreConfig().gc


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("TIERLOG_CONTAINERS", "8", "containers", 8),
        ("TIERLOG_CACHE_BYTES", "33554432", "cache.bytes", 32 << 20),
        ("TIERLOG_CACHE_BYTES", "32 MiB", "cache.bytes", 32 << 20),
        ("TIERLOG_CACHE_SOFT", "0.5", "cache.soft", 0.5),
        ("TIERLOG_READ_AHEAD_BYTES", "0", "read_ahead.bytes", 0),
        ("TIERLOG_S3_APPEND", "true", "s3.append", True),
        ("TIERLOG_SERVER_ADVERTISE", "tierlog.example.org", "server.advertise", "tierlog.example.org"),
        ("TIERLOG_LOG_LEVEL", "warning", "log.level", "warning"),
    ],
)
def test_every_kind_of_setting_has_a_variable(variable: str, text: str, path: str, value: object) -> None:
    found: object = read_config(None, {variable: text})
    for name in path.split("."):
        found = getattr(found, name)

    assert found == value
    assert type(found) is type(value)


def test_no_two_settings_have_the_same_variable() -> None:
    names = [
        f"{outer.name}_{inner.name}"
        for outer in attrs.fields(StoreConfig)
        if setting_of(outer) is None
        for inner in attrs.fields(type(getattr(StoreConfig(), outer.name)))
    ] + [outer.name for outer in attrs.fields(StoreConfig)]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TIERLOG_WRITER_FLUSH_AG", "1", "no such setting; did you mean TIERLOG_WRITER_FLUSH_AGE?"),
        ("TIERLOG_CONTAINER", "1", "did you mean TIERLOG_CONTAINERS?"),
        ("TIERLOG_GC_COLOUR", "1", "`tierlog init` writes"),
        ("TIERLOG_WRITER", "3", "no such setting"),
        ("TIERLOG_CACHE_BYTES", "1", "TIERLOG_CACHE_BYTES: 1 is out of range"),
        ("TIERLOG_CACHE_BYTES", "-1", "TIERLOG_CACHE_BYTES: '-1' is not allowed"),
        ("TIERLOG_S3_APPEND", "yes", "TIERLOG_S3_APPEND: 'yes' is not allowed; write true or false"),
        (
            "TIERLOG_STORAGE_BACKOFF",
            "50 s",
            "storage.backoff (50 s) must not exceed storage.backoff_max (5 s)",
        ),
    ],
)
def test_a_mistake_is_refused_with_the_variable_and_a_hint(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(None, {variable: text})

    assert message in str(caught.value)


def test_options_and_other_programs_variables_are_left_alone() -> None:
    others = ("DATA", "CONFIG", "URL", "CHUNKS", "BOOKKEEPER", "MAVEN_MIRROR", "VENV", "CRASH", "SEED")

    assert read_config(None, {f"TIERLOG_{name}": "x" for name in others}) == StoreConfig()

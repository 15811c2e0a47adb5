"""The configuration file: what it accepts, what it refuses, and with which words."""

from __future__ import annotations

import math
import os
import traceback
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.settings.configuration import (
    CacheConfig,
    GcConfig,
    S3Config,
    StoreConfig,
    TimeoutsConfig,
    WalConfig,
    WriterConfig,
)
from tierlog.actors.settings.configuration_file import load_config, parse_config, render_config
from tierlog.actors.settings.units import MiB, Setting, count, duration, share, size
from tierlog.storage_backends.base.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "tierlog.toml"
    path.write_text(text)

    return path


def refusal(folder: Path, text: str) -> str:
    """The message with which a file is refused, without the file's name, which must come first."""
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)

    message = str(caught.value)

    assert message.startswith(f"{path}: ")

    return message.removeprefix(f"{path}: ")


def settings() -> list[tuple[str, Setting]]:
    found = []
    for section in [
        StoreConfig(),
        *(getattr(StoreConfig(), field.name) for field in attrs.fields(StoreConfig)),
    ]:
        if attrs.has(type(section)):
            found += [
                (field.name, field.metadata[Setting])
                for field in attrs.fields(type(section))
                if Setting in field.metadata
            ]

    return found


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == StoreConfig()


def test_the_rendered_defaults_read_back_as_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, render_config(StoreConfig()))) == StoreConfig()


def test_the_rendered_file_explains_each_setting_above_its_line() -> None:
    lines = render_config(StoreConfig()).splitlines()
    text = " ".join(line.removeprefix("# ") for line in lines)

    for name, setting in settings():
        assert f"{setting.help} ({setting.range}) {name} = " in text
        assert f"{name} = {setting.show_toml(setting.default)}" in lines


def test_the_comments_of_the_rendered_file_are_wrapped_between_words() -> None:
    lines = render_config(StoreConfig()).splitlines()

    assert max(map(len, lines)) <= 110
    assert not [line for line in lines if line.endswith("-") or "- " in line]


def test_every_default_lies_in_its_own_range() -> None:
    for _, setting in settings():
        setting.check(setting.default)


def test_other_values_survive_rendering(tmp_path: Path) -> None:
    config = StoreConfig(
        containers=7,
        wal=WalConfig(file_size=1_000_001, low_water=0),
        cache=CacheConfig(soft=0.333),
        writer=WriterConfig(flush_age=0.0125),
        gc=GcConfig(delay=0),
    )

    assert load_config(write(tmp_path, render_config(config))) == config


def test_sizes_are_numbers_or_text_with_a_unit() -> None:
    for written, expected in [
        (65_536, 65_536),
        ("65536 B", 65_536),
        ("64 KiB", 65_536),
        ("1.5 MiB", 1_572_864),
        ("2GiB", 2 << 30),
    ]:
        assert parse_config({"wal": {"file_size": written}}).wal.file_size == expected


def test_durations_are_seconds_or_text_with_a_unit() -> None:
    for written, expected in [
        (5, 5.0),
        (0.25, 0.25),
        ("30 s", 30.0),
        ("250 ms", 0.25),
        ("1.5 min", 90.0),
        ("2 h", 7200.0),
    ]:
        assert parse_config({"writer": {"flush_age": written}}).writer.flush_age == expected


def test_shares_are_fractions_or_percentages() -> None:
    assert parse_config({"cache": {"soft": "45 %"}}).cache == CacheConfig(soft=0.45)
    assert parse_config({"cache": {"soft": 0.5}}).cache == CacheConfig(soft=0.5)


def test_an_unknown_setting_is_refused_with_its_path_and_a_suggestion(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[writer]\nflush_byts = 1\n")

    assert message == "there is no setting 'writer.flush_byts'; did you mean 'writer.flush_bytes'?"


def test_a_setting_in_the_wrong_section_is_reported_with_the_right_one(tmp_path: Path) -> None:
    message = refusal(tmp_path, "flush_age = 3\n")

    assert message == "there is no setting 'flush_age'; did you mean 'writer.flush_age'?"


def test_a_misspelt_section_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[writter]\n") == "there is no setting 'writter'; did you mean 'writer'?"


def test_a_key_like_nothing_known_points_to_the_full_list(tmp_path: Path) -> None:
    assert "`tierlog init`" in refusal(tmp_path, "zzzzzz = 1\n")


def test_a_section_given_as_a_value_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "wal = 3\n").startswith("wal is a table, not a value: write [wal]")


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, "containers = 0\nwal = 3\n[writer]\nflush_age = false\nflush_byts = 1\n")

    assert [part.split(" is ")[0] for part in message.split("; also ")] == [
        "containers: 0",
        "wal",
        "writer.flush_age: False",
        "there",
    ]


def test_a_value_of_the_wrong_kind_is_reported_with_the_allowed_one(tmp_path: Path) -> None:
    message = refusal(tmp_path, '[writer]\nconcurrent_segments = "many"\n')

    assert (
        message == "writer.concurrent_segments: 'many' is not allowed; write a whole number, from 1 to 1024, "
        "default 8"
    )


@pytest.mark.parametrize(
    ("section", "key", "value", "why"),
    [
        ("wal", "file_size", True, "is not allowed"),
        ("wal", "file_size", 1.5e6, "is not allowed"),
        ("wal", "file_size", "64 MB", "has an unknown unit"),
        ("wal", "file_size", "64", "is not allowed"),
        ("wal", "file_size", "70000.5 B", "is not allowed"),
        ("wal", "file_size", "-64 MiB", "is not allowed"),
        ("wal", "file_size", 1, "is out of range"),
        ("wal", "file_size", "9999999 TiB", "is out of range"),
        ("wal", "file_size", [1], "is not allowed"),
        ("writer", "flush_age", False, "is not allowed"),
        ("writer", "flush_age", math.nan, "is out of range"),
        ("writer", "flush_age", math.inf, "is out of range"),
        ("writer", "flush_age", -1, "is out of range"),
        ("writer", "flush_age", "30 parsecs", "has an unknown unit"),
        ("cache", "soft", "101 %", "is out of range"),
        ("cache", "soft", {}, "is not allowed"),
    ],
)
def test_a_bad_value_is_refused_by_its_path(section: str, key: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{section}\.{key}: .* {why}; write a"):
        parse_config({section: {key: value}})


def test_values_given_in_code_are_held_to_the_same_ranges() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^StoreConfig\.containers: 0 is out of range; write a whole number, from 1 to 1024",
    ):
        StoreConfig(containers=0)

    nothing: Any = None
    with pytest.raises(ConfigError, match=r"^TimeoutsConfig\.unavailable: None is not allowed"):
        TimeoutsConfig(unavailable=nothing)


def test_a_table_given_in_code_as_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^writer must be a WriterConfig, not dict$"):
        StoreConfig(writer={})  # type: ignore[arg-type]


def test_a_path_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="the file must be a str or a pathlib.Path, not NoneType"):
        load_config(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["[writer]\nflush_agee = 1\n", "writer = 1\n", "writer\n"])
def test_the_traceback_of_a_refused_file_shows_the_message_only(tmp_path: Path, text: str) -> None:
    (tmp_path / "tierlog.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "tierlog.toml")
    assert "".join(traceback.format_exception(refused.value)).count("Traceback") == 1


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, '[storage]\nbackoff = "2 s"\nbackoff_max = "1 s"\n')

    assert message == "storage.backoff (2 s) must not exceed storage.backoff_max (1 s)"


def test_an_append_that_no_mailbox_could_hold_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"append_bytes_max \(8 MiB\) must not exceed mailbox.bytes \(4 MiB\)"
    ):
        parse_config({"mailbox": {"bytes": "4 MiB"}})


@pytest.mark.parametrize("written", [1, "1023 KiB", (1 << 20) - 1])
def test_less_than_a_block_cannot_be_read_ahead(written: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^read_ahead\.bytes is \d+: .* set it to 0 for none, or to 1 MiB or more"
    ):
        parse_config({"read_ahead": {"bytes": written}})


def test_the_error_for_a_missing_file_explains_how_to_create_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such file; `tierlog init`"):
        load_config(tmp_path / "nowhere.toml")


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ConfigError, match="not a regular file"):
            load_config(path)


def test_a_file_far_too_large_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        load_config(tmp_path / "huge")


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)


def test_broken_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[wal\n").startswith("not valid TOML: ")
    assert "line 2" in refusal(tmp_path, "\ncontainers = = 3\n")


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tierlog.toml"
    path.write_bytes(b"containers = 4 # \xff\n")

    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path)


@given(st.integers(0, 1 << 60))
def test_any_size_reads_back_from_its_text(value: int) -> None:
    setting = size(MiB, 0, 1 << 60, "")

    assert setting.read(setting.show(value) if value >= 1024 and value % 1024 == 0 else value) == value


@given(st.floats(0.001, 1e9))
def test_any_duration_reads_back_from_its_text(value: float) -> None:
    setting = duration(1.0, 0.0, 1e9, "")

    assert setting.read(setting.show(value)) == value


@given(st.text(max_size=30) | st.integers() | st.floats() | st.booleans() | st.none())
def test_a_value_is_a_number_in_range_or_a_config_error(value: object) -> None:
    try:
        config = parse_config({"writer": {"flush_age": value}})
    except ConfigError as error:
        assert "writer.flush_age: " in str(error)  # noqa: PT017 - both outcomes are right, and each is checked
    else:
        assert 0.01 <= config.writer.flush_age <= 86_400


def test_a_unit_shows_the_largest_prefix_that_is_exact() -> None:
    assert [size(0, 0, 1, "").show(value) for value in (0, 1023, 1024, 1536, MiB, MiB + 1)] == [
        "0",
        "1023",
        "1 KiB",
        "1536",
        "1 MiB",
        "1048577",
    ]
    assert count(0, 0, 1, "").show(25_000) == "25000"
    assert share(0, 0, 1, "").show(0.05) == "0.05"


def test_a_switch_is_true_or_false_and_nothing_else(tmp_path: Path) -> None:
    config = StoreConfig(s3=S3Config(append=True))

    assert load_config(write(tmp_path, "[s3]\nappend = true")) == config
    assert load_config(write(tmp_path, render_config(config))) == config
    for value in ('"yes"', "1", '"true"'):
        assert refusal(tmp_path, f"[s3]\nappend = {value}").startswith("s3.append: ")
        assert "write true or false, default false" in refusal(tmp_path, f"[s3]\nappend = {value}")


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:9000", "localhost:9000", "s3.example.org", "ftp://x", "http://", "https://:1", "x"],
)
def test_an_endpoint_is_a_url(tmp_path: Path, endpoint: str) -> None:
    expected = (
        f"s3.endpoint: '{endpoint}' is not the URL of a service; write https://NAME or http://NAME:PORT"
    )
    assert refusal(tmp_path, f'[s3]\nendpoint = "{endpoint}"').startswith(expected)
    for right in ("http://127.0.0.1:9000", "http://[::1]:9000", "https://s3.example.org/gateway"):
        assert S3Config(endpoint=right).endpoint == right


def test_an_endpoint_with_a_password_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text('[s3]\nendpoint = "https://me:hunter2@s3.example.org"\n')
    location = tmp_path / "location.toml"
    location.write_text('chunks = "s3://me:hunter2@bucket/app"\n')
    for make in (
        lambda: load_config(file),
        lambda: load_config(location),
        lambda: S3Config(endpoint="https://me:hunter2@s3.example.org"),
        lambda: S3Config(endpoint="https://me:hunter2@s3.example.org/a b"),
    ):
        with pytest.raises(ConfigError, match="user name or") as caught:
            make()
        assert "hunter2" not in str(caught.value)

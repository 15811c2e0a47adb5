"""Commands on segments, as a shell sees them: bytes on stdout, exit codes, and what is in the folder
afterwards."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.command_line import NAME, Run, is_one_line, make_store, piped
from tierlog import Unavailable
from tierlog.actors.cli import output
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.settings.configuration_file import load_config
from tierlog.actors.store.read_only import StoreView
from tierlog.storage_backends.base.segments import SegmentPage

# --- a segment's life ----------------------------------------------------------------------------


def test_a_segment_from_its_creation_to_its_end(run: Run, folder: Path) -> None:
    assert run("segment", "create", NAME, "--rolling-size", "1 MiB").code == 0
    assert run("segment", "append", NAME, "--data-text", "hello ").out == "0\n"
    assert run("segment", "append", NAME, "--data-text", "world", "--expected-offset", "6").out == "6\n"
    assert run("segment", "read", NAME).out == "hello world"
    assert run("segment", "truncate", NAME, "6").code == 0
    assert run("segment", "read", NAME).out == "world"
    assert run("segment", "seal", NAME).out == "11\n"
    assert run("segment", "tail", NAME).out == "world"
    assert run("segment", "delete", NAME).code == 0
    assert run("segment", "ls").out == ""


def test_parts_are_merged_into_their_target(run: Run) -> None:
    for name in (NAME, NAME + "#1", NAME + "#2"):
        run("segment", "create", name)
        run("segment", "append", name, "--data-text", name[-2:])
    for part in ("#1", "#2"):
        run("segment", "seal", NAME + part)

    done = run("segment", "merge", NAME, NAME + "#1", NAME + "#2")

    assert (done.code, done.out) == (0, "2\n")
    assert run("segment", "read", NAME).out == "ts#1#2"
    assert run("segment", "ls").out == f"{NAME}\n"


def test_a_range_is_read_to_a_file(run: Run, folder: Path, tmp_path: Path) -> None:
    make_store(folder)

    done = run("segment", "read", NAME, "--offset", "2", "--size", "9", "--output", "part")

    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "part").read_bytes() == b"ushed tai"
    assert run("segment", "read", NAME, "--size", "0").out == ""
    assert run("segment", "read", NAME, "--offset", "100").out == ""


def test_a_failed_read_leaves_the_output_file_alone(run: Run, folder: Path, tmp_path: Path) -> None:
    make_store(folder)
    (tmp_path / "precious").write_text("years of work")

    assert run("segment", "read", "no/such", "--output", "precious").code == 1
    assert (tmp_path / "precious").read_text() == "years of work"


@pytest.mark.parametrize("command", [("segment", "read"), ("lts", "cat")])
@pytest.mark.parametrize("link", ["", "lts", "wal"])
def test_no_file_of_the_store_is_overwritten(
    run: Run, folder: Path, tmp_path: Path, command: tuple[str, str], link: str
) -> None:
    """Also if its folder is a link, or if the file is named by one."""
    make_store(folder)
    if link:
        (folder / link).rename(tmp_path / "elsewhere")
        (folder / link).symlink_to(tmp_path / "elsewhere")
    inside = [path for path in folder.glob("*/**/*") if path.is_file()]
    inside += [path for path in tmp_path.glob("elsewhere/**/*") if path.is_file()]
    (tmp_path / "alias").symlink_to(folder)
    before = {path: path.read_bytes() for path in inside}
    arguments = (command[0], command[1], NAME) if command[0] == "segment" else (*command, str(folder), NAME)

    for path in [*inside, folder / "new", tmp_path / "alias" / "lts" / "new"]:
        refused = run(*arguments, "--output", str(path))

        assert (refused.code, refused.out) == (1, "")
        assert is_one_line(refused.err)
        assert "the store's own folder: name another one" in refused.err
    assert before == {path: path.read_bytes() for path in inside}
    assert not (folder / "new").exists()


def test_info_and_ls_print_json_too(run: Run, folder: Path) -> None:
    make_store(folder)
    expected = {
        "name": NAME,
        "segment_id": 1 << 32 | 1,
        "length": 13,
        "start_offset": 0,
        "sealed": False,
        "attributes": {"colour": 7},
        "flushed_length": 8,
        "container": 0,
        "is_table": False,
        "more_attributes": False,
        "history": 0,
    }

    assert json.loads(run("segment", "info", NAME, "--json").out) == expected
    assert json.loads(run("segment", "ls", "app/", "--json").out) == [expected]
    assert json.loads(run("segment", "ls", "other", "--json").out) == []
    assert "colour = 7" in run("segment", "info", NAME).out
    assert run("segment", "attributes", NAME).out == "colour = 7\n"
    assert json.loads(run("segment", "attributes", NAME, "c", "--json").out) == {"colour": 7}
    assert run("segment", "attributes", NAME, "--ids").out == ""
    assert run("segment", "attributes", NAME, "x", "--ids").code == 2
    assert run("segment", "ls", "--long").out.splitlines()[1].split() == ["13", "0", "8", "open", NAME]


def test_a_list_survives_the_deletion_of_a_listed_segment(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names need one question; what is described and gone by then is left out."""
    make_store(folder)
    page_of_segments = StoreView.page_of_segments

    async def with_a_deleted_one(self: StoreView, prefix: str = "", **page: Any) -> SegmentPage:
        found = await page_of_segments(self, prefix, **page)
        return replace(found, names=[*found.names, "deleted"])

    monkeypatch.setattr(StoreView, "page_of_segments", with_a_deleted_one)

    assert run("segment", "ls").out == f"{NAME}\ndeleted\n"
    assert [each["name"] for each in json.loads(run("segment", "ls", "--json").out)] == [NAME]
    assert len(run("segment", "ls", "--long").out.splitlines()) == 2


def test_names_are_printed_page_by_page(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was printed before a failure stays. A whole list in JSON is that of one value."""
    names = [f"app/{number}" for number in range(5)]
    for name in names:
        assert run("segment", "create", name).code == 0
    page_of_segments = StoreView.page_of_segments
    asked = 0

    async def in_small_pages(self: StoreView, prefix: str = "", *, token: str | None = None) -> SegmentPage:
        nonlocal asked
        asked += 1
        if asked == fails_at:
            raise Unavailable("on the way")
        return await page_of_segments(self, prefix, token=token, limit=2)

    monkeypatch.setattr(StoreView, "page_of_segments", in_small_pages)
    fails_at = 0
    assert run("segment", "ls").out.split() == names
    described = run("segment", "ls", "--json").out
    assert [each["name"] for each in json.loads(described)] == names
    assert described == json.dumps(json.loads(described), indent=2) + "\n"

    monkeypatch.setattr(output, "_FITTED_MAX", 1)
    header, *rows = run("segment", "ls", "--long").out.splitlines()
    assert header.split() == ["length", "start", "flushed", "state", "name"]
    assert [row.split()[-1] for row in rows] == names

    asked, fails_at = 0, 2
    failed = run("segment", "ls", "--long")
    listed = [row.split()[-1] for row in failed.out.splitlines()][1:]
    assert (failed.code, listed == names[: len(listed)], len(listed) > 0) == (1, True, True)
    asked = 0
    failed = run("segment", "ls")
    assert (failed.code, failed.out.split() == names[: len(failed.out.split())]) == (1, True)
    assert failed.out
    asked = 0
    failed = run("segment", "ls", "--json")
    assert (failed.code, failed.out.endswith("]\n"), failed.out[0]) == (1, False, "[")


# --- input --------------------------------------------------------------------------------------


def test_stdin_is_appended_byte_for_byte(run: Run, folder: Path) -> None:
    make_store(folder)
    data = os.urandom(5 << 20)

    done = piped(folder, data, "segment", "append", NAME)

    assert (done.code, done.out, done.err) == (0, "13\n", "")
    run("segment", "read", NAME, "--offset", "13", "--output", "back")
    assert (folder.parent / "back").read_bytes() == data


def test_a_large_file_is_appended_in_pieces(run: Run, folder: Path, tmp_path: Path) -> None:
    make_store(folder)
    data = os.urandom((9 << 20) + 1)
    (tmp_path / "big").write_bytes(data)

    assert run("segment", "append", NAME, "--file", "big", "--expected-offset", "13").out == "13\n"
    assert run("segment", "info", NAME, "--json").code == 0
    run("segment", "read", NAME, "--offset", "13", "--output", "back")
    assert (tmp_path / "back").read_bytes() == data


def test_empty_input_appends_nothing(run: Run, folder: Path) -> None:
    make_store(folder)

    for option in ((), ("--lines",)):
        done = piped(folder, b"", "segment", "append", NAME, *option)
        assert (done.code, done.out) == (0, "13\n")


def test_lines_resent_in_other_batches_are_applied_once(run: Run, folder: Path, tmp_path: Path) -> None:
    """Rule C3: after a crash the same command is run again, with more lines behind, and nothing is
    doubled."""
    make_store(folder)
    numbered = ("--lines", "--writer", "loader", "--event-number", "0")
    (tmp_path / "lines").write_bytes(b"a\nb\nc\n")
    first = run("segment", "append", NAME, "--file", "lines", *numbered)
    (tmp_path / "lines").write_bytes(b"a\nb\nc\nd\ne")
    second = run("segment", "append", NAME, "--file", "lines", *numbered)
    third = run("segment", "append", NAME, "--file", "lines", *numbered)

    assert (first.out, second.out) == ("13\n", "19\n")
    assert (third.code, third.out) == (0, "")
    assert run("segment", "read", NAME).out == "flushed tail\na\nb\nc\nd\ne"


def test_an_event_sent_again_is_applied_once(run: Run, folder: Path) -> None:
    make_store(folder)
    event = ("segment", "append", NAME, "--data-text", "event", "--writer", "w", "--event-number", "3")

    assert [run(*event).out, run(*event).out] == ["13\n", "13\n"]
    assert run("segment", "info", NAME, "--json").out.count('"length": 18') == 1


def test_a_numbered_append_that_is_too_large_is_refused_before_anything_is_written(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    make_store(folder)
    (tmp_path / "big").write_bytes(b"x" * ((8 << 20) + 1))

    done = run("segment", "append", NAME, "--file", "big", "--writer", "w", "--event-number", "0")

    assert done.code == 1
    assert "append_bytes_max" in done.err
    assert '"length": 13' in run("segment", "info", NAME, "--json").out


def test_a_failure_in_the_middle_reports_how_much_was_appended(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    make_store(folder)
    (tmp_path / "config.toml").write_text('append_bytes_max = "4 KiB"')
    (tmp_path / "lines").write_bytes(b"short\n" * 200_000 + b"y" * 5000 + b"\n")

    done = run("segment", "append", NAME, "--file", "lines", "--lines", "--config", "config.toml")

    assert done.code == 1
    assert is_one_line(done.err)
    length = json.loads(run("segment", "info", NAME, "--json").out)["length"]
    assert f"appended before that: the first {length - 13} bytes" in done.err
    assert length > 13


def test_settings_come_from_a_file(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("containers = 3\n")

    assert run("segment", "create", NAME, "--config", "config.toml").code == 0
    assert len(json.loads(run("doctor", "--json").out)["containers"]) == 3


# --- init ---------------------------------------------------------------------------------------


def test_init_writes_the_defaults_and_does_not_overwrite(run: Run, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert run("init").code == 0
    finally:
        os.umask(before)
    # It may be given credentials.
    assert stat.S_IMODE((tmp_path / "tierlog.toml").stat().st_mode) == 0o600
    assert load_config(tmp_path / "tierlog.toml") == StoreConfig()
    (tmp_path / "tierlog.toml").write_text("containers = 2\n")

    refused = run("init")

    assert refused.code == 1
    assert "--force" in refused.err
    assert tomllib.loads((tmp_path / "tierlog.toml").read_text()) == {"containers": 2}
    assert run("init", "--force").code == 0
    assert run("init", str(tmp_path / "no" / "folder")).code == 1


def test_an_init_without_room_leaves_no_file_that_blocks_the_next_one(run: Run, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tierlog", "init"]
    full = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *call],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )

    assert (full.returncode, os.listdir(tmp_path)) == (1, [])
    assert full.stderr.startswith(b"error: tierlog.toml cannot be written: File too large; raise the limit")
    assert run("init").code == 0


def test_init_refuses_what_is_not_a_regular_file(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        read = run("init", "pipe", "--force")
    finally:
        os.close(reader)
    unread = run("init", "pipe", "--force")

    for refused in (read, unread):
        assert (refused.code, refused.out) == (1, "")
        assert refused.err == "error: pipe cannot be written: not a regular file\n"


def test_json_of_changes_is_what_the_service_answers(run: Run) -> None:
    def answer(*arguments: str) -> Any:
        return json.loads(run("segment", *arguments, "--json").out)

    part = f"{NAME}#part"
    assert answer("create", NAME) == answer("create", part) == {}
    assert answer("append", NAME, "--data-text", "ab") == {"offset": 0}
    assert answer("append", part, "--data-text", "c") == {"offset": 0}
    assert answer("seal", part) == {"length": 1}
    assert answer("merge", NAME, part) == {"offset": 2}
    assert answer("truncate", NAME, "1") == answer("delete", NAME) == {}

"""What errors tell their reader to do: the path, the user, the option or the command that helps."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.command_line import NAME, Run, is_one_line, make_store
from support.folders import flip_bit, newest_log_file
from tierlog.actors.folder.lock_files import Owner, encode_owner
from tierlog.actors.gateway.client.transport import describe
from tierlog.actors.gateway.server.listener import bind
from tierlog.storage_backends.base.errors import ConfigError
from tierlog.storage_backends.base.os_errors import explain

# --- permissions ---------------------------------------------------------------------------------


def deny(monkeypatch: pytest.MonkeyPatch, denied: Path) -> None:
    """The system refuses to open ``denied``, as it does to a user without the permission."""
    allowed = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if path == str(denied):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return allowed(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)


def test_a_missing_permission_is_reported_with_path_user_and_remedy(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(folder)
    register = folder / "wal/0000/register"
    deny(monkeypatch, register)

    done = run("segment", "ls")

    assert (done.code, is_one_line(done.err)) == (1, True)
    assert done.err.startswith(f"error: {register}: Permission denied for user ")
    assert f"({os.geteuid()}); run as its owner, or give this user access" in done.err


def test_the_doctor_does_not_report_a_missing_permission_as_damage(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(folder)
    register = folder / "wal/0000/register"
    deny(monkeypatch, register)

    done = run("doctor", "--json")

    (problem,) = json.loads(done.out)["containers"][0]["problems"]
    assert (done.code, problem["advice"]) == (1, ""), "a restore would lose data for nothing"
    assert problem["message"].startswith(f"{register}: Permission denied for user ")


def test_a_user_without_a_name_and_a_part_of_a_path_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: (1 << 31) - 2)
    error = PermissionError(errno.EACCES, "Permission denied", "journal")

    assert explain(error, "/data/lts/journal").startswith(
        "/data/lts/journal: Permission denied for user 2147483646; run as its owner"
    )
    assert explain(OSError(errno.EROFS, "Read-only file system"), "/data").endswith(
        "for writing, or name another folder"
    )
    assert explain(OSError(errno.EMFILE, "Too many open files"), "/data").endswith(
        "raise the limit (`ulimit -n`)"
    )
    assert (
        explain(OSError(errno.EIO, "Input/output error", "/data/wal"), "/data")
        == "/data/wal: Input/output error"
    )


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_no_missing_permission(number: int) -> None:
    error = OSError(number, os.strerror(number), ".tmp-1", None, "store")
    assert explain(error, "/data/lts/store") == (
        f"/data/lts/store: {os.strerror(number)}; the file system has no hard links, which tierlog needs: "
        f"name a folder on another one"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("segment", "ls"),
        ("segment", "append", NAME, "--file", "file", "--config", "file"),
        ("segment", "read", NAME, "--output", "file"),
        ("backup", "ls", "--from", "."),
        ("restore", "b", "--from", "."),
        ("init", "file"),
    ],
)
def test_the_parser_checks_no_permission(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """It would refuse a path as "not readable", without a remedy and as wrong usage."""
    make_store(folder)
    (folder.parent / "file").touch()
    monkeypatch.setattr(os, "access", lambda *_arguments, **_options: False)

    done = run(*arguments)

    assert (done.code == 2, "not readable" in done.err) == (False, False)


# --- damage --------------------------------------------------------------------------------------


def test_the_advised_command_finds_the_damage(run: Run, folder: Path) -> None:
    make_store(folder)
    file = newest_log_file(folder)
    flip_bit(file, 3)

    refused = run("segment", "read", NAME)
    advised = refused.err.rpartition("; `tierlog ")[2].partition("`")[0]

    assert (refused.code, advised) == (1, "doctor --deep")
    assert file.name in run(*advised.split()).out


@pytest.mark.parametrize("remedy", ["recover", "restore"])
def test_damage_of_a_log_is_answered_with_a_procedure_that_works(run: Run, folder: Path, remedy: str) -> None:
    """R11: the first one leaves the logs of the other containers, with what they did not flush."""
    make_store(folder)
    assert run("backup", "before").code == 0
    flip_bit(newest_log_file(folder), 3)

    shown = run("doctor").out

    recover = "recover --from-lts --container 0"
    steps = (f"run `tierlog {recover}`", "move wal/ away and keep it", "`tierlog restore NAME` with a backup")
    assert [step in shown for step in steps] == [True] * 3
    assert "before" in run("backup", "ls").out
    if remedy == "recover":
        assert run(*recover.split(), "--yes").code == 0
    else:
        (folder / "wal").rename(folder / "wal.damaged")
        assert "before" in run("backup", "ls").out, "the restore that follows takes it from there"
        assert run("restore", "before").code == 0
    assert run("segment", "read", NAME).out == "flushed tail\n"


@pytest.mark.parametrize("command", ["doctor", "verify", "journal verify", "gc sweep"])
@pytest.mark.parametrize("refusals", [0, 1])
def test_r11_no_command_advises_to_adopt_the_empty_log_of_a_container_that_lost_its_own(
    run: Run, folder: Path, command: str, refusals: int
) -> None:
    """It would be served empty, and no recovery would bring its segments back."""
    make_store(folder)
    shutil.rmtree(folder / "wal/0000")
    for _ in range(refusals):
        assert "its log is lost" in run("segment", "create", "another").err  # which makes an empty log

    done = run(*command.split())

    shown = done.out + done.err
    assert done.code == 1
    assert "its log is lost" in shown
    assert "`tierlog recover --from-lts --container 0`" in shown
    assert "adopt" not in shown


def test_the_verdict_says_what_was_not_read(run: Run, folder: Path) -> None:
    make_store(folder)
    shallow, deep = run("doctor").out.splitlines()[-1], run("doctor", "--deep").out.splitlines()[-1]
    assert shallow == "sound; chunks and runs not read (--deep)"
    assert deep == "sound"


def test_long_term_storage_that_does_not_answer_is_one_problem_of_all_containers(
    run: Run, folder: Path
) -> None:
    make_store(folder)
    (folder / "lts").rename(folder / "unmounted")
    (folder / "lts").mkdir()

    done = run("doctor")

    assert done.code == 1
    assert done.out.count("problem: ") == 1
    assert "not sound, problems: 1;" in done.out


# --- folders, addresses and services --------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("segment", "ls", "--data", ""),
        ("serve", ""),
        ("backup", "ls", "--from", ""),
        ("restore", "b", "--from", ""),
    ],
)
def test_an_empty_folder_name_is_not_the_current_folder(
    run: Run, folder: Path, arguments: tuple[str, ...]
) -> None:
    make_store(folder)
    os.chdir(folder)

    done = run(*arguments)

    assert done.code == 2
    assert "it is empty: name a folder" in done.err


def test_an_empty_variable_is_not_the_default_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(Path("tierlog-data"))
    monkeypatch.setenv("TIERLOG_DATA", "")

    assert "TIERLOG_DATA is empty: name a folder, or unset it" in run("segment", "ls").err
    assert run("segment", "ls", "--data", "tierlog-data").code == 0


@pytest.mark.parametrize(
    "variable, arguments, advice",
    [
        ("TIERLOG_URL", ("roll",), "TIERLOG_URL is empty: name a service, or unset it"),
        ("TIERLOG_CONFIG", ("segment", "create", "a"), "TIERLOG_CONFIG is empty: name a file, or unset it"),
    ],
)
def test_an_empty_variable_is_not_the_default_service_or_configuration(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, arguments: tuple[str, ...], advice: str
) -> None:
    """`roll` restarted the hosts of the service at the default URL."""
    monkeypatch.setenv(variable, "")
    done = run(*arguments)

    assert (done.code, done.out) == (2, "")
    assert advice in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("segment", "append", NAME, "--file", ""),
        ("segment", "read", NAME, "--output", ""),
        ("segment", "create", "new", "--config", ""),
    ],
)
def test_an_empty_file_name_is_not_the_current_folder(
    run: Run, folder: Path, arguments: tuple[str, ...]
) -> None:
    make_store(folder)
    done = run(*arguments)

    assert (done.code, is_one_line(done.err)) == (2, True)
    assert f"'{arguments[-2]}'" in done.err
    assert "it is empty: name a file" in done.err


@pytest.mark.parametrize(
    "role, advice",
    [
        ("", "stop that process, or fence it with --take-over"),
        ("host-0", "start `tierlog serve` again, which goes on with its hosts; "),
    ],
)
def test_an_opening_at_the_same_moment_is_answered_in_options_of_the_command(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, role: str, advice: str
) -> None:
    """The other one has the folder open just after the command looked."""

    async def nobody_yet(*_: object) -> list[Owner]:
        return []

    make_store(folder)
    owner = Owner("a" * 32, 1, "here", 0, role=role)
    (folder / "owners").mkdir(exist_ok=True)
    with open(folder / "owners" / owner.owner_id, "wb") as held:
        held.write(encode_owner(owner))
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        looked = run("segment", "append", NAME, "--data-text", "x")
        monkeypatch.setattr("tierlog.actors.folder.paths.live_owners", nobody_yet)
        raced = run("segment", "append", NAME, "--data-text", "x")

    assert (raced.code, is_one_line(raced.err)) == (1, True)
    assert raced.err.startswith(f"error: {folder} is open in process 1 on here")
    assert advice in raced.err
    assert raced.err.endswith("with --take-over\n")
    assert looked.err == raced.err


@pytest.mark.parametrize(
    "arguments",
    [("backup", "ls", "--from", "."), ("restore", "b", "--from", "."), ("restore", "b", "--from", "no")],
)
def test_a_folder_without_backups_is_answered_with_what_the_options_mean(
    run: Run, folder: Path, arguments: tuple[str, ...]
) -> None:
    make_store(folder)
    (folder / "wal").rename(folder / "old")

    done = run(*arguments)

    assert (done.code, is_one_line(done.err)) == (1, True)
    assert "--from names the folder that `tierlog backup --copy-to` has written" in done.err
    assert "chunk" not in done.err


@pytest.mark.parametrize(
    "number, advice",
    [
        (errno.EADDRINUSE, "choose another port with --host-port, or stop the process that uses it"),
        (errno.EADDRNOTAVAIL, "--listen takes an address of this machine, such as 127.0.0.1"),
        (errno.EACCES, "need the capability CAP_NET_BIND_SERVICE: choose a higher one with --host-port"),
    ],
)
def test_an_address_that_cannot_be_had_is_answered_by_its_reason(
    monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    class Refusing(socket.socket):
        def bind(self, _address: Any) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(ConfigError) as refused:
        bind("127.0.0.1", 80, "--host-port")

    assert str(refused.value).startswith(f"cannot listen on 127.0.0.1:80: {os.strerror(number)}; ")
    assert advice in str(refused.value)


def test_a_name_that_is_no_address_is_answered_with_what_is_one() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on a b:80: .*; --listen takes an address of this"):
        bind("a b", 80)


def test_an_ipv6_address_with_a_port_needs_brackets() -> None:
    with pytest.raises(ConfigError, match=r"an IPv6 address is in brackets: \[::1\]:9490"):
        bind("::1:9490", 8470)


def test_a_link_to_a_missing_folder_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    for data in ("link", "link/data"):
        done = run("segment", "create", NAME, "--data", data)

        assert (done.code, is_one_line(done.err)) == (1, True)
        assert f"{tmp_path}/link is a link to a missing folder: make that folder" in done.err


def test_links_that_form_a_circle_are_no_damage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    for command in (("segment", "create", NAME), ("segment", "ls"), ("doctor",)):
        for data in ("link", "link/data"):
            done = run(*command, "--data", data)

            assert (done.code, is_one_line(done.err)) == (1, True)
            assert f"{tmp_path}/{data}: Too many levels of symbolic links: its links form a" in done.err


def test_a_working_directory_that_was_deleted_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = run("segment", "ls", "--data", "store")

    assert done.code == 1
    assert done.err == (
        "error: there is no working directory for 'store', it was deleted: change to another one\n"
    )


def test_a_folder_that_lost_its_wal_is_a_store_to_restore(run: Run, folder: Path) -> None:
    make_store(folder)
    (folder / "wal").rename(folder / "wal.lost")
    for command in (("segment", "ls"), ("doctor",), ("segment", "create", "new")):
        done = run(*command)

        assert (done.code, is_one_line(done.err)) == (1, True)
        assert "lts/, but its wal/ is missing or empty: put wal/ back, recover what lts/ has" in done.err


REFUSED = "Connection refused; check the URL, and that `tierlog serve` runs there"


@pytest.mark.parametrize("command", [("status",), ("segment", "ls")])
@pytest.mark.parametrize(
    "url, words",
    [
        ("http://127.0.0.1:1", f"error: no tierlog server answers at http://127.0.0.1:1: {REFUSED}\n"),
        ("a:1", "error: a server's URL is like http://127.0.0.1:8470, not 'a:1': write http://a:1\n"),
        ("http://a b", "error: a server's URL is like http://127.0.0.1:8470, not 'http://a b'\n"),
    ],
)
def test_a_url_without_a_service_is_answered_with_the_systems_reason(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], url: str, words: str
) -> None:
    monkeypatch.setattr("tierlog.actors.gateway.client.attempts.OPENING_SECONDS", 1.0)

    done = run(*command, "--url", url)

    assert (done.code, is_one_line(done.err)) == (1, True)
    assert done.err.endswith(words)


@pytest.mark.parametrize("command", [("status",), ("segment", "ls")])
def test_the_reason_of_each_address_is_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tierlog.actors.gateway.client.attempts.OPENING_SECONDS", 1.0)

    done = run(*command, "--url", "http://127.0.0.1:1,http://127.0.0.1:2")

    assert (done.code, is_one_line(done.err)) == (1, True)
    assert "http://127.0.0.1:1 (Connection refused); http://127.0.0.1:2 (Connection refused)" in done.err


def test_reasons_of_lost_connections_are_those_of_the_system() -> None:
    def caused_by(cause: OSError) -> httpx.ConnectError:
        hidden = OSError("All connection attempts failed")
        hidden.__cause__ = cause
        error = httpx.ConnectError("All connection attempts failed")
        error.__cause__ = hidden
        return error

    url = "http://vm:8470"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 8470)")
    assert describe(url, caused_by(unknown)) == "Name or service not known"
    assert describe(url, caused_by(refused)) == os.strerror(errno.ECONNREFUSED)
    assert describe(url, httpx.ConnectTimeout("")) == "no connection within 3 s"
    assert describe(url, httpx.ReadTimeout("")) == "ReadTimeout"

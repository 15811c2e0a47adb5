"""Installing the sidecar: from a mirror of this machine, with a small list."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import attrs
import pytest

from support.patience import scaled
from tierlog.storage_backends.base.errors import ConfigError, DataCorruption, Unavailable
from tierlog.storage_backends.base.ledger_service import SidecarNotStarted
from tierlog.storage_backends.ledgers import install as module
from tierlog.storage_backends.ledgers import installed
from tierlog.storage_backends.ledgers.install import _locked, download, install
from tierlog.storage_backends.ledgers.installed import (
    CLIENT,
    COMPILER,
    SERVER,
    Artifact,
    Installation,
    artifacts,
    default_folder,
    find_program,
    sidecar,
)
from tierlog.storage_backends.ledgers.java_runtime import check_java, find_java
from tierlog.storage_backends.ledgers.sidecar import SidecarOptions, SidecarService

pytestmark = pytest.mark.anyio

FILES = {"org/a/a-1.jar": b"a" * 5_000, "org/b/b-1.jar": b"b" * 70_000, "org/c/c-1.jar": b"c"}


def entry(group: str, path: str) -> Artifact:
    return Artifact(group, path, len(FILES[path]), hashlib.sha256(FILES[path]).hexdigest())


LIST = (entry(CLIENT, "org/a/a-1.jar"), entry(SERVER, "org/b/b-1.jar"), entry(COMPILER, "org/c/c-1.jar"))

_ENDLESS = 100 << 20


@attrs.define
class Mirror:
    url: str
    files: dict[str, bytes] = attrs.field(factory=lambda: dict(FILES))
    asked: list[tuple[str, str]] = attrs.field(factory=list)
    """Paths and ranges."""
    cut: int | None = None
    """Answers end after so many bytes."""
    endless: bool = False
    """Answers go on after the file until nobody reads them."""
    sent: int = 0
    moved_to: str = ""
    """Every answer redirects there."""
    credentials: set[str] = attrs.field(factory=set)


@contextmanager
def serving() -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = self.path.removeprefix("/maven/"), self.headers.get("Range", "")
            served.asked.append((path, wanted))
            served.credentials.add(self.headers.get("Authorization", ""))
            if served.moved_to:
                self.send_response(302)
                self.send_header("Location", served.moved_to)
                self.end_headers()
                return
            if path not in served.files:
                self.send_error(404)
                return
            start = int(wanted[6:-1]) if wanted else 0
            data = served.files[path][start:]
            self.send_response(206 if wanted else 200)
            if not served.endless:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: served.cut])
            with suppress(ConnectionError):
                while served.endless and served.sent < _ENDLESS:
                    served.sent += self.wfile.write(bytes(65_536))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Mirror(f"http://127.0.0.1:{server.server_port}/maven")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setattr(installed, "artifacts", lambda: LIST)
    monkeypatch.setattr(module, "artifacts", lambda: LIST)
    with serving() as served:
        yield served


async def fetch(folder: Path, mirror: Mirror, *groups: str) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    wanted = [each for each in LIST if each.group in groups]
    await download(Installation(folder), wanted, f"{mirror.url}/", lambda *step: seen.append(step))
    return seen


async def test_the_files_of_the_groups_are_fetched_once(mirror: Mirror, tmp_path: Path) -> None:
    steps = await fetch(tmp_path, mirror, CLIENT, SERVER)

    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == ["a-1.jar", "b-1.jar"]
    assert (tmp_path / "jars" / "b-1.jar").read_bytes() == FILES["org/b/b-1.jar"]
    assert [sum(each) for each in zip(*steps, strict=True)] == [75_000, 75_000]
    mirror.asked.clear()
    await fetch(tmp_path, mirror, CLIENT, SERVER)
    assert mirror.asked == []


async def test_a_file_that_was_damaged_is_fetched_again(mirror: Mirror, tmp_path: Path) -> None:
    await fetch(tmp_path, mirror, CLIENT)
    (tmp_path / "jars" / "a-1.jar").write_bytes(b"A" * 5_000)
    await fetch(tmp_path, mirror, CLIENT)

    assert (tmp_path / "jars" / "a-1.jar").read_bytes() == FILES["org/a/a-1.jar"]


async def test_an_interrupted_download_is_continued(mirror: Mirror, tmp_path: Path) -> None:
    mirror.cut = 20_000
    with pytest.raises(Unavailable, match="run it again to continue"):
        await fetch(tmp_path, mirror, SERVER)
    assert [wanted for _, wanted in mirror.asked] == ["", "bytes=20000-", "bytes=40000-"]
    mirror.cut = None
    await fetch(tmp_path, mirror, SERVER)

    assert mirror.asked[-1] == ("org/b/b-1.jar", "bytes=60000-")
    assert (tmp_path / "jars" / "b-1.jar").read_bytes() == FILES["org/b/b-1.jar"]


async def test_another_file_than_the_pinned_one_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["org/a/a-1.jar"] = b"A" * 5_000
    with pytest.raises(DataCorruption, match="use another mirror"):
        await fetch(tmp_path, mirror, CLIENT)

    assert not (tmp_path / "jars").exists()


@pytest.mark.parametrize("begun", [0, 4_000, 6_000])
async def test_a_file_longer_than_the_pinned_one_is_refused_at_once(
    mirror: Mirror, tmp_path: Path, begun: int
) -> None:
    mirror.endless = True
    part = tmp_path / "jars" / "a-1.jar.part"
    part.parent.mkdir()
    if begun:
        part.write_bytes(b"a" * begun)
    with pytest.raises(DataCorruption, match="more than the 5000 bytes .*use another mirror"):
        await fetch(tmp_path, mirror, CLIENT)

    assert not part.parent.exists()
    assert mirror.sent < _ENDLESS


async def test_a_file_that_cannot_be_written_is_named(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "jars" / "a-1.jar.part").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"a-1\.jar\.part: Is a directory"):
        await fetch(tmp_path, mirror, CLIENT, SERVER)


async def test_a_mirror_without_a_file_is_named(mirror: Mirror, tmp_path: Path) -> None:
    del mirror.files["org/a/a-1.jar"]
    with pytest.raises(ConfigError, match=r"org/a/a-1\.jar answers 404: use a mirror"):
        await fetch(tmp_path, mirror, CLIENT)


async def test_the_password_of_a_mirror_is_sent_and_not_shown(mirror: Mirror, tmp_path: Path) -> None:
    mirror.url = mirror.url.replace("//", "//me:s%2Fcret@")
    await fetch(tmp_path, mirror, CLIENT)
    assert mirror.credentials == {"Basic " + base64.b64encode(b"me:s/cret").decode()}

    del mirror.files["org/c/c-1.jar"]
    mirror.cut = 0
    for group, kind in ((COMPILER, ConfigError), (SERVER, Unavailable)):
        with pytest.raises(kind) as caught:
            await fetch(tmp_path, mirror, group)
        assert mirror.url.rpartition("@")[2] in str(caught.value)
        assert "cret" not in str(caught.value)


@pytest.mark.parametrize("place", ["http://127.0.0.1:99999/", f"http://{'a' * 70}.invalid/"])
async def test_a_redirection_to_nowhere_is_named(mirror: Mirror, tmp_path: Path, place: str) -> None:
    mirror.moved_to = place
    with pytest.raises(Unavailable, match=r"org/a/a-1\.jar: .*; run it again to continue"):
        await fetch(tmp_path, mirror, CLIENT)


def test_the_list_pins_every_file() -> None:
    for each in artifacts():
        assert each.group in {CLIENT, SERVER, COMPILER}
        assert each.size > 0
        assert len(bytes.fromhex(each.sha256)) == 32
    assert len({each.name for each in artifacts()}) == len(artifacts())
    assert {name.removesuffix(".java") for name in sidecar().sources} >= {"Sidecar", "Calls"}


def test_what_is_missing_is_named_java_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierlog.storage_backends.ledgers.java_runtime.find_spec", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no Java 17 or newer"):
        find_program(str(tmp_path))
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o700)
    with pytest.raises(ConfigError, match="has no .*jar and 3. more, which BookKeeper needs"):
        find_program(str(tmp_path))
    (tmp_path / "jars").mkdir()
    for each in artifacts():
        (tmp_path / "jars" / each.name).touch()
        os.truncate(tmp_path / "jars" / each.name, each.size)
    with pytest.raises(ConfigError, match="no sidecar for BookKeeper of this version"):
        find_program(str(tmp_path))
    zipfile.ZipFile(tmp_path / sidecar().archive, "w").close()
    command = find_program(str(tmp_path), heap_mb=77).command()

    assert command[0] == str(java)
    assert "-Xmx77m" in command


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "needs 17 or newer"),
        ("echo hello >&2", "is hello"),
        ("exit 3", "does not work"),
    ],
    ids=["old", "none", "broken"],
)
def test_a_java_that_does_not_do_is_refused(tmp_path: Path, output: str, why: str) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{output}\n")
    java.chmod(0o700)
    with pytest.raises(ConfigError, match=why):
        check_java(str(java))


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    for folder in ("home/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "java").touch(0o700)

    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(environment) == str(tmp_path / "home" / "bin" / "java")
    assert find_java({**environment, "JAVA_HOME": ""}) == str(tmp_path / "path" / "java")


def test_the_folder_follows_the_environment() -> None:
    named = {"TIERLOG_BOOKKEEPER_FOLDER": "/srv/bk", "XDG_DATA_HOME": "/data"}
    assert default_folder(named) == Path("/srv/bk")
    assert default_folder({"XDG_DATA_HOME": "/data"}) == Path("/data/tierlog/bookkeeper")
    assert default_folder({}).parts[-4:] == (".local", "share", "tierlog", "bookkeeper")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in Java's place, which stands in for the compiler and counts its runs in ``runs``."""
    java = tmp_path / "java"
    java.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if sys.argv[1] == '-version':\n    print('openjdk version \"21\"', file=sys.stderr)\n"
        "else:\n    open(os.environ['RUNS'], 'a').write('x')\n"
        "    made = sys.argv[sys.argv.index('-d') + 1]\n    os.mkdir(made)\n"
        "    open(made + '/Sidecar.class', 'w').write('compiled')\n"
    )
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return java


async def install_from(
    mirror: Mirror, folder: Path, waits: Callable[[], None] = lambda: None
) -> Installation:
    installation = Installation(folder)
    with anyio.fail_after(scaled(30)):
        await install(installation, server=False, mirror=mirror.url, advance=lambda *_: None, waits=waits)
    return installation


async def test_installing_compiles_the_sidecar_of_its_version_once(
    mirror: Mirror, tmp_path: Path, java: Path
) -> None:
    installation = await install_from(mirror, tmp_path / "into")
    await install_from(mirror, tmp_path / "into")

    assert (tmp_path / "runs").read_text() == "x"
    with zipfile.ZipFile(installation.classes(sidecar())) as archive:
        assert archive.read("Sidecar.class") == b"compiled"
    assert installation.program().java == str(java)


async def test_an_installation_waits_for_another_one_into_the_same_folder(
    mirror: Mirror, tmp_path: Path, java: Path
) -> None:
    waiting = anyio.Event()

    async def install_second() -> None:
        await install_from(mirror, tmp_path / "into", waiting.set)
        waiting.set()

    async with _locked(Installation(tmp_path / "into"), lambda: None), anyio.create_task_group() as tasks:
        tasks.start_soon(install_second)
        with anyio.fail_after(scaled(30)):
            await waiting.wait()
        assert mirror.asked == []
        # It is given up when the other one ends with an error, or is killed.
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(install_from, mirror, tmp_path / "into")
    assert len(mirror.asked) == 2
    Installation(tmp_path / "into").check()


@pytest.mark.parametrize(
    "harm", ["a jar is short", "a jar is changed", "the classes are short", "the classes are changed"]
)
async def test_installing_again_repairs_what_is_damaged(
    mirror: Mirror, tmp_path: Path, java: Path, harm: str
) -> None:
    installation = await install_from(mirror, tmp_path / "into")
    before = contents(installation.folder)
    program = installation.program()
    path = installation.jar(LIST[0]) if "jar" in harm else installation.classes(sidecar())
    if "short" in harm:
        os.truncate(path, path.stat().st_size // 2)
    else:
        as_it_was = path.stat()
        path.write_bytes(path.read_bytes().replace(b"compiled", b"complied").replace(b"aaa", b"aba"))
        os.utime(path, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
    with pytest.raises(ConfigError, match=rf"{path.name} is damaged.*run `tierlog bookkeeper install`"):
        program.check()
    await install_from(mirror, tmp_path / "into")

    assert contents(installation.folder) == before
    program.check()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_b11_a_sidecar_whose_files_were_damaged_since_is_not_started(
    mirror: Mirror, tmp_path: Path, java: Path
) -> None:
    installation = await install_from(mirror, tmp_path / "into")
    service = SidecarService(installation.program(), SidecarOptions(servers="127.0.0.1:1"))
    installation.jar(LIST[0]).write_bytes(b"A" * LIST[0].size)
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        with pytest.raises(SidecarNotStarted, match=r"a-1\.jar is damaged, its checksum is wrong"):
            await service.count_bookies()
        service.close()


async def test_what_cannot_be_read_is_named(mirror: Mirror, tmp_path: Path, java: Path) -> None:
    installation = await install_from(mirror, tmp_path / "into")
    classes = installation.classes(sidecar())
    classes.unlink()
    classes.mkdir()
    with pytest.raises(ConfigError, match=rf"{classes.name}: Is a directory"):
        installation.check()


@pytest.mark.parametrize("umask", [0o000, 0o002])
async def test_only_its_user_may_change_what_is_installed(
    mirror: Mirror, tmp_path: Path, java: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        installation = await install_from(mirror, tmp_path / "new" / "into")
    finally:
        os.umask(before)
    made = [tmp_path / "new", installation.folder, *installation.folder.rglob("*")]
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_dir()} == {"0o755"}
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_file()} <= {"0o644", "0o600"}
    installation.check()


@pytest.mark.parametrize(
    ("part", "mode"),
    [("..", 0o020), (".", 0o002), ("jars", 0o020), ("jars/a-1.jar", 0o002), (sidecar().archive, 0o020)],
    ids=["above", "folder", "jars", "jar", "classes"],
)
async def test_what_others_can_change_is_not_run(
    mirror: Mirror, tmp_path: Path, java: Path, part: str, mode: int
) -> None:
    folder = tmp_path / "new" / "into"
    installation = await install_from(mirror, folder)
    path = Path(os.path.normpath(folder / part))
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(ConfigError, match="other users can change .*chmod -R go-w") as refused:
        installation.program()
    assert (f"chmod go-w {tmp_path / 'new'} " in str(refused.value)) == (part == "..")

    if path.is_dir():
        mirror.asked.clear()
        with pytest.raises(ConfigError, match="other users can change"):
            await install_from(mirror, folder)
        assert mirror.asked == []
    else:
        # Another file takes the place of the one that they may have open.
        number = path.stat().st_ino
        with path.open("rb"):
            await install_from(mirror, folder)
            assert path.stat().st_ino != number
        installation.check()


async def test_what_another_user_has_installed_is_not_run(
    mirror: Mirror, tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = await install_from(mirror, tmp_path / "into")
    monkeypatch.setattr("tierlog.storage_backends.base.modes.os.geteuid", lambda: os.getuid() + 1)
    if os.getuid() == 0:  # whom everybody trusts
        os.chown(installation.jar(LIST[0]), 12345, -1)
    with pytest.raises(ConfigError, match="other users can change .*`chown`"):
        installation.check()


async def test_a_relative_folder_is_one_of_the_working_folder(
    mirror: Mirror, tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sidecar runs in another one."""
    monkeypatch.chdir(tmp_path)
    await install_from(mirror, Path("into"))
    monkeypatch.setenv("TIERLOG_BOOKKEEPER_FOLDER", "into")
    for program in (find_program(), find_program("into")):
        assert program.folder == str(tmp_path / "into")
        assert all(os.path.isfile(path) and os.path.isabs(path) for path in program.class_path)

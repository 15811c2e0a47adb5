"""Installing the sidecar: from a mirror of this machine, with a small list."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import attrs
import pytest

from tierlog.storage_backends.base.errors import ConfigError, DataCorruption, Unavailable
from tierlog.storage_backends.ledgers import install as module
from tierlog.storage_backends.ledgers import installed
from tierlog.storage_backends.ledgers.install import download, install
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

pytestmark = pytest.mark.anyio

FILES = {"org/a/a-1.jar": b"a" * 5_000, "org/b/b-1.jar": b"b" * 70_000, "org/c/c-1.jar": b"c"}


def entry(group: str, path: str) -> Artifact:
    return Artifact(group, path, len(FILES[path]), hashlib.sha256(FILES[path]).hexdigest())


LIST = (entry(CLIENT, "org/a/a-1.jar"), entry(SERVER, "org/b/b-1.jar"), entry(COMPILER, "org/c/c-1.jar"))


@attrs.define
class Mirror:
    url: str
    files: dict[str, bytes] = attrs.field(factory=lambda: dict(FILES))
    asked: list[tuple[str, str]] = attrs.field(factory=list)
    """Paths and ranges."""
    cut: int | None = None
    """Answers end after so many bytes."""


@contextmanager
def serving() -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = self.path.removeprefix("/maven/"), self.headers.get("Range", "")
            served.asked.append((path, wanted))
            if path not in served.files:
                self.send_error(404)
                return
            start = int(wanted[6:-1]) if wanted else 0
            data = served.files[path][start:]
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: served.cut])

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
    await download(Installation(folder), groups, f"{mirror.url}/", lambda *step: seen.append(step))
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

    assert list((tmp_path / "jars").iterdir()) == []


async def test_a_mirror_without_a_file_is_named(mirror: Mirror, tmp_path: Path) -> None:
    del mirror.files["org/a/a-1.jar"]
    with pytest.raises(ConfigError, match=r"org/a/a-1\.jar answers 404: use a mirror"):
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
    with pytest.raises(ConfigError, match="no sidecar for BookKeeper of this version"):
        find_program(str(tmp_path))
    (tmp_path / sidecar().folder).mkdir()
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


async def test_installing_compiles_the_sidecar_of_its_version_once(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program in Java's place, which stands in for the compiler."""
    java = tmp_path / "java"
    java.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if sys.argv[1] == '-version':\n    print('openjdk version \"21\"', file=sys.stderr)\n"
        "else:\n    open(os.environ['RUNS'], 'a').write('x')\n"
        "    os.mkdir(sys.argv[sys.argv.index('-d') + 1])\n"
    )
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    installation = Installation(tmp_path / "into")
    for _ in range(2):
        with anyio.fail_after(30):
            await install(installation, server=False, mirror=mirror.url, advance=lambda *_: None)

    assert (tmp_path / "runs").read_text() == "x"
    assert installation.classes(sidecar()).is_dir()
    assert installation.program().java == str(java)

"""Installs the sidecar: downloads the pinned files, checks them, and compiles its sources.

Each file has its name only when it is complete and has its SHA-256. After a crash or cancellation, what was
downloaded so far is continued. Of several installations into one folder one downloads at a time.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
import httpx

from ..base.errors import ConfigError, DataCorruption, Unavailable
from ..base.modes import FILE, PROGRAM_FILE, PROGRAM_FOLDER, is_guarded, make_folders
from ..base.os_errors import explain
from ..base.parallel import in_parallel
from .installed import (
    CLIENT,
    COMPILER,
    SERVER,
    Artifact,
    Installation,
    JavaProgram,
    artifacts,
    digest_of,
    is_archive,
    sidecar,
    size_of,
)
from .java_runtime import check_java, find_java

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
_PARALLEL = 4
_ATTEMPTS = 3
_TIMEOUT = httpx.Timeout(30.0)
_LOCK = ".lock"
_POLL_SECONDS = 0.1
_PORT_MAX = 65_535
_OTHER_MIRROR = "use another mirror (--mirror)"

Advance = Callable[[int, int], None]
"""Is called with the bytes done and the bytes found to do since the last call."""


async def install(
    installation: Installation,
    *,
    server: bool,
    mirror: str,
    advance: Advance,
    waits: Callable[[], None] = lambda: None,
) -> None:
    """``waits`` is called if another installation is under way, before it is waited for. What is there and
    damaged is replaced.

    Raises ``ConfigError`` if there is no Java, the mirror lacks a file, or others can change the folder;
    ``Unavailable`` if the mirror does not answer; ``DataCorruption`` if it sends another file than the list
    says."""
    java = find_java()
    await anyio.to_thread.run_sync(check_java, java)
    groups = {CLIENT, COMPILER, SERVER} if server else {CLIENT, COMPILER}
    wanted = [each for each in artifacts() if each.group in groups]
    async with _locked(installation, waits):
        await _download(installation, wanted, mirror, advance)
        await anyio.to_thread.run_sync(compile_program, installation, java, sidecar())


async def download(
    installation: Installation, wanted: Sequence[Artifact], mirror: str, advance: Advance
) -> None:
    """Only the files, of any list. Raises the errors of ``install``."""
    async with _locked(installation, lambda: None):
        await _download(installation, wanted, mirror, advance)


@asynccontextmanager
async def _locked(installation: Installation, waits: Callable[[], None]) -> AsyncIterator[None]:
    """Makes the folder, and lets nobody else install there during the body. Nothing but the lock is left
    in it if nothing was downloaded."""
    make_folders(str(installation.folder), PROGRAM_FOLDER)
    installation.refuse_shared([installation.folder])
    lock = os.open(installation.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
    try:
        is_first = True
        while not _has_locked(lock):
            if is_first:
                waits()
            is_first = False
            # The system reports no end of a lock, but to a thread that waits for nothing else.
            await anyio.sleep(_POLL_SECONDS)
        make_folders(str(installation.jars), PROGRAM_FOLDER)
        installation.refuse_shared([installation.jars])
        try:
            yield
        finally:
            with suppress(OSError):  # It has files.
                installation.jars.rmdir()
    finally:
        os.close(lock)


def _has_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _download(
    installation: Installation, wanted: Sequence[Artifact], mirror: str, advance: Advance
) -> None:
    missing = [each for each in wanted if not _is_whole(installation.jar(each), each)]
    advance(0, sum(each.size for each in missing))
    # Its user and password are in no request's URL, and so in no error.
    place = httpx.URL(mirror.rstrip("/"))
    auth = httpx.BasicAuth(place.username, place.password) if place.userinfo else None
    base = str(place.copy_with(username="", password=""))
    hooks = {"request": [_check_port]}
    async with httpx.AsyncClient(
        auth=auth, timeout=_TIMEOUT, follow_redirects=True, event_hooks=hooks
    ) as client:
        fetch = partial(_fetch, client, base, installation, advance)
        await in_parallel(_PARALLEL, [partial(fetch, each) for each in missing])


async def _check_port(request: httpx.Request) -> None:
    """Also of redirections. The error that sockets have for it is no ``OSError``."""
    port = request.url.port
    if port is not None and port > _PORT_MAX:
        raise httpx.ConnectError(f"there is no port {port}", request=request)


def _is_whole(path: Path, artifact: Artifact) -> bool:
    # What others could change they may have open still: another file takes its place.
    return size_of(path) == artifact.size and is_guarded(str(path)) and digest_of(path) == artifact.sha256


async def _fetch(
    client: httpx.AsyncClient, mirror: str, installation: Installation, advance: Advance, artifact: Artifact
) -> None:
    url = f"{mirror}/{artifact.path}"
    path = installation.jar(artifact)
    part = path.with_name(f"{path.name}.part")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await _continue(client, url, part, advance, artifact)
            break
        except (httpx.HTTPError, UnicodeError) as error:  # a name of a host that cannot be is a UnicodeError
            if attempt == _ATTEMPTS:
                what = str(error) or type(error).__name__
                raise Unavailable(f"{url}: {what}; run it again to continue") from error
        except DataCorruption:
            part.unlink()
            raise
        except OSError as error:
            raise Unavailable(f"{explain(error, str(part))}; run it again to continue") from error
    found = digest_of(part)
    if found != artifact.sha256:
        part.unlink()
        raise DataCorruption(
            f"{url} has SHA-256 {found}, not {artifact.sha256}: {_OTHER_MIRROR}", file=str(part)
        )
    part.replace(path)


async def _continue(
    client: httpx.AsyncClient, url: str, part: Path, advance: Advance, artifact: Artifact
) -> None:
    """Download what is missing in ``part``."""
    done = size_of(part) or 0
    if done > artifact.size:
        done = 0
    if done == artifact.size:
        advance(artifact.size, 0)
        return
    headers = {"Range": f"bytes={done}-"} if done else {}
    async with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code in {httpx.codes.NOT_FOUND, httpx.codes.FORBIDDEN, httpx.codes.UNAUTHORIZED}:
            raise ConfigError(f"{url} answers {answer.status_code}: use a mirror that has it (--mirror)")
        answer.raise_for_status()
        is_rest = answer.status_code == httpx.codes.PARTIAL_CONTENT
        if not is_rest:
            done = 0
        advance(done, 0)
        # Cancelled, which ends httpx's iterators in order; an error in the body would leave them open.
        with _opened(part, "ab" if is_rest else "wb") as file, anyio.CancelScope() as rest:
            async for data in answer.aiter_raw():
                done += len(data)
                if done > artifact.size:
                    rest.cancel()
                else:
                    file.write(data)
                    advance(len(data), 0)
    if done > artifact.size:
        raise DataCorruption(
            f"{url} has more than the {artifact.size} bytes that it should: {_OTHER_MIRROR}", file=str(part)
        )


def _opened(path: Path, mode: str) -> IO[bytes]:
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, PROGRAM_FILE))


def compile_program(
    installation: Installation, java: str, program: JavaProgram, groups: Collection[str] = (CLIENT,)
) -> Path:
    """The archive of its classes, which is made unless it is there and whole. Raises ``ConfigError``."""
    classes = installation.classes(program)
    if is_archive(classes, deep=True) and is_guarded(str(classes)):
        return classes
    (compiler,) = installation.class_path([COMPILER])
    with tempfile.TemporaryDirectory(dir=installation.folder, prefix=f".{program.name}-") as scratch:
        for name, source in program.sources.items():
            Path(scratch, name).write_bytes(source)
        made = Path(scratch, "classes")
        options = ["-17", "-proc:none", "-nowarn", "-d", str(made)]
        path = ["-cp", os.pathsep.join(installation.class_path(groups))]
        command = [java, "-jar", compiler, *options, *path, *program.sources]
        ended = subprocess.run(  # noqa: S603 - the Java that was found, and the pinned compiler
            command, cwd=scratch, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise ConfigError(f"{java} cannot compile the {program.name}: {ended.stderr[-2000:]}")
        archive = Path(scratch, "archive")
        with _opened(archive, "wb") as file, zipfile.ZipFile(file, "w") as entries:
            for each in sorted(made.rglob("*.class")):
                entries.writestr(zipfile.ZipInfo(each.relative_to(made).as_posix()), each.read_bytes())
        # At once: others may use the one that is there.
        archive.replace(classes)
    return classes

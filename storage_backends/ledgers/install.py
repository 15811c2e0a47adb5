"""Installs the sidecar: downloads the pinned files, checks them, and compiles its sources.

Each file has its name only when it is complete and has its SHA-256. After a crash or cancellation, what was
downloaded so far is continued. Several installations into one folder at a time do no harm.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx

from ..base.errors import ConfigError, DataCorruption, Unavailable
from ..base.parallel import in_parallel
from .installed import CLIENT, COMPILER, SERVER, Artifact, Installation, JavaProgram, artifacts, sidecar
from .java_runtime import check_java, find_java

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
_PARALLEL = 4
_ATTEMPTS = 3
_TIMEOUT = httpx.Timeout(30.0)

Advance = Callable[[int, int], None]
"""Is called with the bytes done and the bytes found to do since the last call."""


async def install(installation: Installation, *, server: bool, mirror: str, advance: Advance) -> None:
    """Raises ``ConfigError`` if there is no Java, or the mirror lacks a file; ``Unavailable`` if it does not
    answer; ``DataCorruption`` if it sends another file than the list says."""
    java = find_java()
    await anyio.to_thread.run_sync(check_java, java)
    groups = {CLIENT, COMPILER, SERVER} if server else {CLIENT, COMPILER}
    await download(installation, groups, mirror, advance)
    await anyio.to_thread.run_sync(compile_program, installation, java, sidecar())


async def download(
    installation: Installation, groups: Collection[str], mirror: str, advance: Advance
) -> None:
    wanted = [each for each in artifacts() if each.group in groups]
    missing = [each for each in wanted if not _is_whole(installation.jar(each), each)]
    (installation.folder / "jars").mkdir(parents=True, exist_ok=True)
    advance(0, sum(each.size for each in missing))
    async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=True) as client:
        fetch = partial(_fetch, client, mirror.rstrip("/"), installation, advance)
        await in_parallel(_PARALLEL, [partial(fetch, each) for each in missing])


def _is_whole(path: Path, artifact: Artifact) -> bool:
    return _size(path) == artifact.size and _digest(path) == artifact.sha256


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        except httpx.HTTPError as error:
            if attempt == _ATTEMPTS:
                what = str(error) or type(error).__name__
                raise Unavailable(f"{url}: {what}; run it again to continue") from error
    found = _digest(part)
    if found != artifact.sha256:
        part.unlink()
        raise DataCorruption(
            f"{url} has SHA-256 {found}, not {artifact.sha256}: use another mirror", file=str(part)
        )
    part.replace(path)


async def _continue(
    client: httpx.AsyncClient, url: str, part: Path, advance: Advance, artifact: Artifact
) -> None:
    """Download what is missing in ``part``."""
    done = _size(part)
    if done >= artifact.size:
        advance(artifact.size, 0)
        return
    headers = {"Range": f"bytes={done}-"} if done else {}
    async with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code in {httpx.codes.NOT_FOUND, httpx.codes.FORBIDDEN, httpx.codes.UNAUTHORIZED}:
            raise ConfigError(f"{url} answers {answer.status_code}: use a mirror that has it (--mirror)")
        answer.raise_for_status()
        is_rest = answer.status_code == httpx.codes.PARTIAL_CONTENT
        advance(done if is_rest else 0, 0)
        with part.open("ab" if is_rest else "wb") as file:
            async for data in answer.aiter_raw():
                file.write(data)
                advance(len(data), 0)


def compile_program(
    installation: Installation, java: str, program: JavaProgram, groups: Collection[str] = (CLIENT,)
) -> Path:
    """The folder of its classes, which are made unless they are there. Raises ``ConfigError``."""
    classes = installation.classes(program)
    if classes.exists():
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
        try:
            made.rename(classes)
        except OSError:
            # Another installation was first.
            if not classes.exists():
                raise
    return classes

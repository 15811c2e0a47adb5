"""A real S3 service on this machine: versitygw, which keeps objects as files and honours the conditions of
puts.

As a program: prints the path of the gateway, after building it if need be, or serves a folder with it until
Ctrl-C (``--serve``); exit status 1 if it cannot be had, with the reason on the standard error output.

The gateway is built with Go, once for each version, into the user's cache folder. Go verifies what it
fetches, and the module's checksum is compared with the one that is pinned here. Where Go is missing, a
``versitygw`` on PATH serves. It syncs no files: it proves protocols, not what survives a power loss.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

VERSION = "v1.8.0"
_MODULE = "github.com/versity/versitygw"
_CHECKSUM = "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc="
_BUILD_SECONDS = 400
"""On one core it takes about two minutes."""
_START_SECONDS = 30
_STOP_SECONDS = 5
_POLL = 0.01

BUCKET = "chunks"
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tierlog-access-key",
    "AWS_SECRET_ACCESS_KEY": "tierlog-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""Of an AWS client: its credentials."""


class NoGateway(Exception):
    """There is no gateway here, and none can be made. The message says what is missing."""


# --- the program ---------------------------------------------------------------------------------


def find_gateway(environment: Mapping[str, str] = os.environ) -> Path:
    """The program, built if need be. Raises ``NoGateway``."""
    found = is_there(environment)
    if found is not None:
        return found

    go = _on_path("go", environment)
    if go is None:
        raise NoGateway("the S3 gateway versitygw is built with Go, and there is no `go` on PATH")

    program = _program(environment)
    cache = program.parent
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "versitygw.lock").open("wb") as lock:
        had_to_wait = _lock(lock.fileno())
        if not program.exists():
            if had_to_wait:
                raise NoGateway("another process could not build the S3 gateway versitygw")
            _build(go, cache / "versitygw.build", program, environment)
    return program


def can_be_had(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether it is there, or may be built."""
    return bool(_on_path("go", environment) or is_there(environment))


def is_there(environment: Mapping[str, str]) -> Path | None:
    """The program, if nothing needs to be built."""
    program = _program(environment)
    if program.exists():
        return program

    found = None if _on_path("go", environment) else _on_path("versitygw", environment)
    return None if found is None else Path(found)


def _program(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME", "")
    cache = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return cache / "tierlog" / f"versitygw-{VERSION}"


def _on_path(program: str, environment: Mapping[str, str]) -> str | None:
    return shutil.which(program, path=environment.get("PATH", os.defpath))


def _lock(descriptor: int) -> bool:
    """Lock it; returns whether another process had it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    return False


def _build(go: str, work: Path, program: Path, environment: Mapping[str, str]) -> None:
    """All that Go fetches and makes is in ``work``, which is removed."""
    _remove(work)  # of a build that was killed
    try:
        for folder in ("bin", "tmp"):
            (work / folder).mkdir(parents=True)
        folders = {
            "GOBIN": "bin",
            "GOPATH": "path",
            "GOMODCACHE": "modules",
            "GOCACHE": "cache",
            "GOTMPDIR": "tmp",
        }
        environment = {**environment, **{name: str(work / folder) for name, folder in folders.items()}}
        ask = [go, "install", "-trimpath", "-ldflags=-s -w", f"{_MODULE}/cmd/versitygw@{VERSION}"]
        _run(ask, environment, work)
        made = work / "bin" / "versitygw"
        contents = _run([go, "version", "-m", str(made)], environment, work).split()
        if f"mod {_MODULE} {VERSION} {_CHECKSUM}" not in " ".join(contents):
            raise NoGateway(f"the S3 gateway {_MODULE} {VERSION} has another checksum than {_CHECKSUM}")
        os.replace(made, program)
    finally:
        _remove(work)


def _remove(work: Path) -> None:
    # Go makes what it fetches read-only, a newer compiler too, whatever its flags say.
    for folder, _, _ in os.walk(work):
        Path(folder).chmod(0o700)
    shutil.rmtree(work, ignore_errors=True)


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """What it prints."""
    output = folder / "output"
    with output.open("wb") as stream:
        # In a session of its own, so that its compilers end with it.
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        process.wait(_BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        raise NoGateway(f"`{' '.join(command)}` took longer than {_BUILD_SECONDS} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    printed = output.read_text(errors="replace").strip()
    if process.returncode:
        raise NoGateway(f"`{' '.join(command)}` failed: {_last_line(printed)}")
    return printed


def _last_line(printed: str) -> str:
    return (printed.splitlines() or ["it prints nothing"])[-1].strip()


# --- a running one -------------------------------------------------------------------------------


class S3Gateway:
    """A gateway with one bucket, ``BUCKET``. Entered, it answers; after the body it is gone.

    ``command`` begins its command line: the program, behind what it is to run under. Its objects are files in
    ``folder``/objects; they outlive it, so it can be killed and started again.
    """

    def __init__(self, command: Sequence[str | Path], folder: Path, *, address: str, port: int) -> None:
        self._objects = folder / "objects"
        self._metadata = folder / "metadata"
        self.log = folder / "gateway.log"
        self._command = command
        self._address = (address, port)
        self.url = f"http://{address}:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers. Raises ``NoGateway`` if it does not."""
        self.add_bucket()
        self._metadata.mkdir(exist_ok=True)
        own = {
            "ROOT_ACCESS_KEY": AWS_ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": AWS_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        }
        options = () if _has_attributes(self._objects) else ("--sidecar", self._metadata)
        host, port = self._address
        with self.log.open("ab") as stream:
            # In a session of its own: Ctrl-C in a terminal does not reach it.
            self.process = subprocess.Popen(
                [*self._command, "--quiet", "--port", f"{host}:{port}", "posix", *options, self._objects],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            self._wait_for_answer(self.process)
        except BaseException:
            self.stop()
            raise

    def _wait_for_answer(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            with suppress(OSError), socket.create_connection(self._address, timeout=_START_SECONDS):
                return
            time.sleep(_POLL)
        last = _last_line(self.log.read_text(errors="replace"))
        raise NoGateway(f"the S3 gateway does not answer at {self.url}; its last line is: {last}")

    def wait(self) -> None:
        """Return once it has ended."""
        if self.process is not None:
            self.process.wait()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """End it, even one that stands still."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_SECONDS)
        self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- its objects -----------------------------------------------------------------------------

    def add_bucket(self) -> None:
        (self._objects / BUCKET).mkdir(parents=True, exist_ok=True)

    def remove_bucket(self) -> None:
        """With all that is in it."""
        for folder in (self._objects, self._metadata):
            shutil.rmtree(folder / BUCKET, ignore_errors=True)


def _has_attributes(folder: Path) -> bool:
    """Whether files below it can have the attributes in which the gateway keeps entity tags and metadata."""
    try:
        os.setxattr(folder, "user.tierlog", b"1")
    except (AttributeError, OSError):
        return False
    return True


# --- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description="A local S3 service for trying tierlog out: versitygw, which is built with Go once. "
        "Without arguments it prints where the program is."
    )
    parser.add_argument(
        "--serve",
        metavar="FOLDER",
        type=Path,
        help=f"serve one bucket, {BUCKET}, on this machine until Ctrl-C; its objects are in FOLDER and are "
        "there the next time",
    )
    parser.add_argument("--port", type=int, default=9000, help="default: 9000")
    options = parser.parse_args(arguments)
    try:
        program = find_gateway()
        if options.serve is None:
            print(program)
        else:
            _serve(S3Gateway([program], options.serve.resolve(), address="127.0.0.1", port=options.port))
    except NoGateway as error:
        sys.exit(str(error))


def _serve(gateway: S3Gateway) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), gateway:
        variables = {**AWS_ENVIRONMENT, "AWS_ENDPOINT_URL_S3": gateway.url}
        print(f"an S3 service with the bucket {BUCKET} at {gateway.url}; in another terminal:")
        for name, value in variables.items():
            print(f"export {name}={value}")
        print(f"tierlog serve s3://{BUCKET}/my-store", flush=True)
        gateway.wait()
        raise NoGateway(f"the S3 gateway has ended; its log is {gateway.log}")


if __name__ == "__main__":
    main(sys.argv[1:])

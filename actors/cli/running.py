"""How a command runs: its event loop, its store, view or client, and the report of a failure.

Ctrl-C and SIGTERM (``interrupts.py``): a command that writes is cancelled and closes its store in order; one
that only reads ends at once. If the reader of stdout goes away, a command ends quietly with 141.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    NotOwner,
    SegmentNotFound,
    SegmentSealed,
    TierlogError,
    TransactionNotFound,
    WrongSegmentKind,
)
from ...storage_backends.base.names import check_segment_name
from ...storage_backends.base.os_errors import explain
from ..kernel.process_memory import importing
from ..telemetry.logging import is_logging, log_to_stderr
from ..telemetry.printable import printable
from .interrupts import Interrupts, end_at_once
from .output import BROKEN_PIPE, exit_broken_pipe

if TYPE_CHECKING:
    from ..folder.lock_files import Owner
    from ..folder.paths import StoreFolder
    from ..gateway.client.async_client import Client
    from ..settings.configuration import StoreConfig
    from ..store.read_only import StoreView
    from ..store.store import SegmentStore

T = TypeVar("T")
FAILED = 1
OUT_OF_MEMORY = "this process got no more memory: raise its limit (`ulimit -v`, a container's), or free some"
USE_URL = "use --url {url}"
Hints = Mapping[type[TierlogError], str]
_HINTS: Hints = {
    SegmentNotFound: "`tierlog segment ls` shows the names, `tierlog segment create` makes a segment",
    TransactionNotFound: "`tierlog txn ls` shows the known ones",
    SegmentSealed: "it can still be read, truncated, merged into another segment and deleted",
    WrongSegmentKind: "`tierlog table` has the commands of tables",
    DataCorruption: "`tierlog doctor --deep` lists all damage and what to do",
    NotOwner: "`tierlog doctor` shows which process has opened the folder: run the command again after it",
}
RUN_AGAIN = "run the same command again to go on"
NO_HINTS: Hints = MappingProxyType({})
SERVICE_HINTS: Hints = MappingProxyType({NotOwner: ""})
"""Nothing is to be run again: another service took over, and goes on."""
_REQUEST_SECONDS = 10.0
_HEAD_START_SECONDS = 1.0
"""Seconds to connect to one of several addresses, before the next one is asked."""
_STANDBY_SECONDS = 2.0
"""For the answer of a supervisor that may stand by. One on a machine that stands still is left out."""
_NOTICE_SECONDS = 1.0


def print_error(message: str) -> None:
    """Print the message as one line on stderr."""
    sys.stderr.write(f"error: {printable(' '.join(message.split()))}\n")


def print_notice(message: str) -> None:
    """Print on stderr what the command is waiting for."""
    sys.stderr.write(f"{printable(message)}\n")
    sys.stderr.flush()


def show_lease_wait(holder: str, prospect: str) -> None:
    """For scripts too: it may take longer than the rest of the command."""
    print_notice(f"waiting: {holder} has the lease of the store's supervisor; {prospect}")


def report_os_error(error: OSError) -> int:
    """Print what the system refused, and return the exit code. Outside of a command that is stdout."""
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    print_error(explain(error, "stdout"))
    return FAILED


def fail(message: str) -> NoReturn:
    print_error(message)
    raise typer.Exit(FAILED)


def execute(
    command: Callable[[], Coroutine[Any, Any, T]],
    *,
    uvloop: bool = False,
    hints: Hints = NO_HINTS,
    interrupted: str = "",
) -> T:
    """Run ``command`` in its own event loop. A failure becomes one line on stderr and an exit code. ``hints``
    replace those that most commands give. ``interrupted``: what to do after an interruption, if the user has
    to know."""
    import anyio

    interrupts = Interrupts()
    try:
        with interrupts.listening():
            # uvloop takes 36 ms to import, more than a short command gains by it.
            return anyio.run(interrupts.run, command, backend_options={"use_uvloop": uvloop})
    except TierlogError as error:
        fail(f"{error}{_hint(error, {**_HINTS, **hints})}")
    except BrokenPipeError:
        exit_broken_pipe()
    except KeyboardInterrupt:
        # Most without a message: the user asked for it.
        if interrupted:
            sys.stderr.write(f"interrupted: {interrupted}\n")
        raise typer.Exit(interrupts.exit_code) from None
    except OSError as error:
        fail(explain(error))
    except MemoryError:
        fail(OUT_OF_MEMORY)


def _hint(error: TierlogError, hints: Hints) -> str:
    """What to do on the command line, for errors whose message does not contain it."""
    hint = next((hint for kind, hint in hints.items() if isinstance(error, kind)), "")
    return f"; {hint}" if hint else ""


@asynccontextmanager
async def viewing(data: Path) -> AsyncIterator[StoreView]:
    """The read-only view of a data folder."""
    from ..store.read_only import open_reader

    end_at_once()
    async with opening(str(data), open_reader(data)) as view:
        yield view


@asynccontextmanager
async def viewing_storage(data: Path) -> AsyncIterator[StoreView]:
    """``viewing``, for what long-term storage shows although the logs are lost."""
    from ..store.read_only import open_storage

    end_at_once()
    async with opening(str(data), open_storage(data)) as view:
        if not view.has_logs:
            sys.stderr.write("wal/ is missing: this is what long-term storage alone has\n")
        yield view


@asynccontextmanager
async def reading(data: Path, url: str | None) -> AsyncIterator[StoreView | Client]:
    """The read-only view of a data folder, or a client of the service at ``url``."""
    if url is None:
        async with viewing(data) as view:
            yield view
    else:
        end_at_once()
        async with _client(url) as client:
            yield client


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Client]:
    # Here, because it takes 0.2 s, which commands on a folder need not wait.
    from ..gateway.client.connect import connect

    async with opening(url, connect(url)) as client:
        yield client


@asynccontextmanager
async def opening(name: str, context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """``context``, whose entry is waited for with a notice about ``name``."""
    async with AsyncExitStack() as stack:
        with notice_of_wait(name):
            entered = await stack.enter_async_context(context)
        yield entered


@contextmanager
def notice_of_wait(opened: str) -> Iterator[None]:
    """Say on a terminal that the body waits for what it opens, if it takes long: a client goes on trying for
    seconds, in which a service may start again, and so does a store whose bucket does not answer."""
    import asyncio

    def show() -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"waiting for {printable(opened)}: no answer yet\n")

    notice = asyncio.get_running_loop().call_later(_NOTICE_SECONDS, show)
    try:
        yield
    finally:
        notice.cancel()


@asynccontextmanager
async def writing(
    data: Path,
    config_file: Path | None,
    *,
    take_over: bool,
    creates: str | None = None,
    url: str | None = None,
    chunks: str | None = None,
) -> AsyncIterator[SegmentStore | Client]:
    """The store in a data folder, opened as its owner (see ``owning``), or a client of the service at
    ``url``. ``creates``: the name of the segment that the command creates, with a new folder if there is
    none. Raises ``InvalidArgument`` for a bad one."""
    if creates is not None:
        check_segment_name(creates)  # first: a refused command leaves no new store
    if url is None:
        create = creates is not None
        async with owning(
            data, config_file, take_over=take_over, create=create, chunks=chunks, remedy=USE_URL
        ) as store:
            yield store
        return

    check_no_take_over(take_over)
    async with _client(url) as client:
        yield client


def check_no_take_over(take_over: bool) -> None:
    if take_over:
        raise InvalidArgument("--take-over is for a data folder: a service manages its owners itself")


@asynccontextmanager
async def owning(
    data: Path,
    config_file: Path | None,
    *,
    take_over: bool,
    create: bool = False,
    chunks: str | None = None,
    remedy: str = "stop the service first",
) -> AsyncIterator[SegmentStore]:
    """The store in a data folder, opened as its owner.

    Raises ``InvalidArgument`` if another process has the folder open, unless ``take_over``. ``create`` makes
    a new folder, with its long-term storage at ``chunks``. ``remedy`` is the advice if a service has the
    folder open; ``{url}`` in it is the service's.
    """
    # Here, because they take 0.3 s, which commands with --url need not wait.
    with importing():
        from ...storage_backends.files.local import LocalFiles
        from ..folder.lock_files import OpenElsewhere
        from ..folder.paths import check_folder, check_path, existing_identity, live_owners
        from ..folder.restore_folder import finish_restore
        from ..store.opening import open_store

    config = read_settings(config_file, chunks)
    folder, files = check_path(data), LocalFiles()
    await finish_restore(files, folder)
    if create:
        await check_folder(files, folder)
    else:
        # A wrong --data must not create a store.
        await existing_identity(files, folder)

    # For people, not for safety: another process may open the folder right after this. The epoch decides then
    # (W1), and the older owner is fenced.
    if not take_over and (owners := await live_owners(files, folder)):
        raise _in_use(folder, owners, remedy)
    try:
        opened = open_store(folder.path, config=config, take_over=take_over)
        async with opening(str(data), opened) as store:
            yield store
    except OpenElsewhere as error:
        # Of another command that began at the same moment. The store's message is for programs.
        raise _in_use(folder, error.owners, remedy) from error


def _in_use(folder: StoreFolder, owners: Sequence[Owner], remedy: str) -> InvalidArgument:
    from ..folder.lock_files import describe_opening

    message = describe_opening(folder.path, owners, take_over="--take-over", use_service=remedy)
    return InvalidArgument(message)


def read_settings(config_file: Path | None, chunks: str | None) -> StoreConfig:
    """The settings of the file, or the defaults, with those of the environment and ``chunks`` from the
    command line. Logs at the level that they name, unless an option named one."""
    import attrs

    from ..settings.environment import read_config

    config = read_config(config_file, os.environ)
    if config.log.level != "auto" and not is_logging():
        log_to_stderr(config.log.level)
    if chunks and config.chunks not in {"", chunks}:
        raise InvalidArgument(
            f"--chunks is {chunks}, but {config_file} has {config.chunks}: leave out one of them"
        )

    return attrs.evolve(config, chunks=chunks) if chunks else config


async def lengths_of(store: SegmentStore, names: list[str] | None) -> dict[str, int]:
    """The lengths of the segments ``names``, or of all that have bytes."""
    infos = [await store.segment_info(name) for name in names or await store.list_segments()]
    # A table that is named is left to the verb, which refuses it.
    return {info.name: info.length for info in infos if names or not info.is_table}


async def ask_service(
    url: str,
    method: str,
    path: str,
    body: Mapping[str, str | None] | None = None,
    *,
    kind: type = dict,
    seconds: float = _REQUEST_SECONDS,
) -> dict[str, Any]:
    """Send a request to the service at ``url``; returns the JSON of its answer, which is waited for
    ``seconds``. The environment's proxies are not used.

    Of several addresses in ``url`` the next one is asked if there is no connection, if what was asked is a
    host, which does not have the path, or a supervisor that stands by, or if a read gets no proper answer.

    Raises the error in its answer, ``InvalidArgument`` if ``url`` is malformed, or ``Unavailable`` if there
    is no answer, or one that is no ``kind``.
    """
    from ..gateway.client.addresses import check_addresses, no_supervisor, nobody_answers
    from ..gateway.wire.errors import NoSuchPath, StandsBy

    *others, last = check_addresses(url)
    silent: dict[str, _NoAnswer] = {}
    hosts: list[str] = []
    standbys: dict[str, str] = {}
    with notice_of_wait(url):
        for address in (*others, last):
            # That nobody listens shows at once, but for a machine that is gone.
            connect = _REQUEST_SECONDS if address == last else _HEAD_START_SECONDS
            try:
                return await _ask(address, method, path, body, kind, seconds, connect)
            except NoSuchPath as error:
                if not await _is_host(address):
                    if address == last and not silent:
                        raise
                    silent[address] = _NoAnswer(str(error), is_unsent=True)
                elif others:
                    hosts.append(address)
                else:
                    raise type(error)(_only_a_host(address)) from None
            except StandsBy as error:
                standbys[address] = str(error)
            except _NoAnswer as error:
                if not error.is_unsent and method != "GET":
                    raise nobody_answers({address: error.reason}) from error.__cause__
                silent[address] = error
    reasons = {each: error.reason for each, error in silent.items()}
    if hosts or standbys:
        raise no_supervisor(hosts, reasons, standbys)
    raise nobody_answers(reasons) from silent[last].__cause__


async def find_standbys(url: str) -> list[dict[str, Any]]:
    """What the supervisors say of themselves that stand by at these addresses, of which there are several."""
    import anyio

    from ..gateway.client.addresses import check_addresses
    from ..gateway.wire import paths
    from ..gateway.wire.bodies import StandbyHealth

    addresses = check_addresses(url)
    found: dict[str, dict[str, Any]] = {}

    async def ask(address: str) -> None:
        with suppress(TierlogError, _NoAnswer):
            found[address] = await _ask(
                address, "GET", paths.HEALTH, None, StandbyHealth, _STANDBY_SECONDS, _HEAD_START_SECONDS
            )

    async with anyio.create_task_group() as tasks:
        for address in addresses if len(addresses) > 1 else ():
            tasks.start_soon(ask, address)
    return [{"url": address, **found[address]} for address in addresses if address in found]


async def _is_host(address: str) -> bool:
    """Whether a host is there, which lacks the paths of the supervisor."""
    from ..gateway.wire import paths
    from ..gateway.wire.bodies import Health

    try:
        await _ask(address, "GET", paths.HEALTH, None, Health, _REQUEST_SECONDS, _REQUEST_SECONDS)
    except (TierlogError, _NoAnswer):
        return False
    return True


def _only_a_host(address: str) -> str:
    return (
        f"{address} is a host, and only the supervisor knows all hosts and containers: ask it, at the URL "
        f"that `tierlog serve` or `tierlog supervise` printed"
    )


class _NoAnswer(Exception):
    def __init__(self, reason: str, *, is_unsent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_unsent = is_unsent


async def _ask(
    url: str,
    method: str,
    path: str,
    body: Mapping[str, str | None] | None,
    kind: type,
    seconds: float,
    connect: float,
) -> dict[str, Any]:
    """One request to one address."""
    # Takes 0.1 s.
    import httpx
    import msgspec

    from ..gateway.client.transport import describe
    from ..gateway.wire.bodies import decode_answer
    from ..gateway.wire.errors import from_problem, is_problem

    try:
        # Only the answer may take long.
        timeout = httpx.Timeout(_REQUEST_SECONDS, connect=connect, read=seconds)
        async with httpx.AsyncClient(
            base_url=url, timeout=timeout, trust_env=False, follow_redirects=True
        ) as client:
            answer = await client.request(method, path, json=body)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        is_unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
        raise _NoAnswer(describe(url, error, connect), is_unsent=is_unsent) from error

    if not answer.is_success:
        problem = from_problem(answer.status_code, answer.headers, answer.content, maybe_applied=False)
        raise problem if is_problem(answer.headers) else _NoAnswer(str(problem))
    try:
        document = decode_answer(answer.content, dict[str, Any])
        # Only a check: fields that a newer service sends stay in the document, and so in --json.
        msgspec.convert(document, kind)
    except ValueError as error:
        raise _NoAnswer(f"what answers is not a tierlog service ({error})") from error
    return document

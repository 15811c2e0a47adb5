"""How a command is carried out: its event loop, its store or view, and what is said when it fails.

Owns: ``execute``, ``reading``, ``writing``, exit codes, the one line on stderr. Does not own: what commands
do.

Ctrl-C (``interrupts.py``): a command that writes is cancelled and closes its store in order; one that only
reads ends at once. A reader that goes away ends a command with 141, quietly.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    NotOwner,
    SegmentExists,
    SegmentNotFound,
    SegmentSealed,
    StorageFull,
    TierlogError,
    TransactionNotFound,
)
from .interrupts import INTERRUPTED, Interrupts, end_at_once
from .output import leave

if TYPE_CHECKING:
    from ..folder.lock_files import Owner
    from ..folder.paths import StoreFolder
    from ..gateway.client.async_client import Client
    from ..settings.configuration import StoreConfig
    from ..store.read_only import StoreView
    from ..store.store import SegmentStore

T = TypeVar("T")
FAILED = 1
_HINTS = {
    SegmentNotFound: "`tierlog segment ls` shows the names, `tierlog segment create` makes a segment",
    TransactionNotFound: "`tierlog txn ls` shows those that are remembered",
    SegmentExists: "append to it, or choose another name",
    SegmentSealed: "it can still be read, truncated, merged into another segment and deleted",
    DataCorruption: "nothing was changed; `tierlog doctor` shows all that is damaged and what to do",
    StorageFull: "free some space on that disk, then try again",
    NotOwner: "another process opened the folder meanwhile; see `tierlog doctor`",
}
_ASK_SECONDS = 10.0
_MAY_STAND_IN_A_NEW_FOLDER = {"lts", "tierlog.toml", "wal"}


def complain(message: str) -> None:
    """One line on stderr, whatever the message is."""
    sys.stderr.write(f"error: {' '.join(message.split())}\n")


def fail(message: str) -> NoReturn:
    complain(message)
    raise typer.Exit(FAILED)


def execute(command: Callable[[], Coroutine[Any, Any, T]], *, uvloop: bool = False) -> T:
    """Run ``command`` in an event loop of its own; failures become exit codes."""
    import anyio

    interrupts = Interrupts()
    try:
        with interrupts.listening():
            return anyio.run(interrupts.run, command, backend_options={"use_uvloop": uvloop})
    except TierlogError as error:
        fail(f"{error}{_hint(error)}")
    except BrokenPipeError:
        leave()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _hint(error: TierlogError) -> str:
    """What to do on the command line, where the error itself does not say it."""
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
    return f"; {hint}" if hint else ""


@asynccontextmanager
async def viewing(data: Path) -> AsyncIterator[StoreView]:
    """The read-only view of a data folder."""
    from ..store.read_only import open_reader

    end_at_once()
    async with open_reader(data) as view:
        yield view


@asynccontextmanager
async def reading(data: Path, url: str | None) -> AsyncIterator[StoreView | Client]:
    """What reads: the view of a data folder, or with ``url`` a client of the service there, and no folder is
    touched."""
    if url is None:
        async with viewing(data) as view:
            yield view
    else:
        end_at_once()
        async with _client(url) as client:
            yield client


def _client(url: str) -> AbstractAsyncContextManager[Client]:
    from ..gateway.client.connect import connect

    return connect(url)


@asynccontextmanager
async def writing(
    data: Path,
    config_file: Path | None,
    *,
    take_over: bool,
    create: bool = False,
    url: str | None = None,
    chunks: str | None = None,
) -> AsyncIterator[SegmentStore | Client]:
    """The store in a data folder, opened as its owner; refused while somebody else has it open, unless
    ``take_over``.

    With ``url`` a client of the service there, and no folder is touched. ``chunks``: where a new folder's
    long-term storage is.
    """
    if url is not None:
        if take_over:
            raise InvalidArgument("--take-over is for a data folder: a service looks after its owners itself")

        async with _client(url) as client:
            yield client
        return

    from ..folder.paths import check_path
    from ..store.opening import open_store

    config = read_settings(config_file, chunks)
    folder = check_path(data)
    await _check_folder(folder, take_over=take_over, create=create)
    async with open_store(folder.path, config=config) as store:
        yield store


def read_settings(config_file: Path | None, chunks: str | None) -> StoreConfig:
    """The file's settings, or the defaults, with ``chunks`` for the place that was named on the command
    line."""
    import attrs

    from ..settings.configuration import StoreConfig, load_config

    config = StoreConfig() if config_file is None else load_config(config_file)
    if chunks and config.chunks not in {"", chunks}:
        raise InvalidArgument(
            f"--chunks says {chunks}, and {config_file} says {config.chunks}: leave one of them out"
        )

    return attrs.evolve(config, chunks=chunks) if chunks else config


async def check_new_folder(folder: StoreFolder) -> None:
    """Refuse to make a store in a folder that holds other files."""
    from ...storage_backends.files.local import LocalFiles
    from ..folder.paths import existing_identity, list_files, run_program

    files = LocalFiles()
    entries = [entry.name for entry in await run_program(files, list_files(folder.path), folder.path)]
    if "wal" in entries:
        await existing_identity(files, folder)
    elif strangers := [name for name in entries if name not in _MAY_STAND_IN_A_NEW_FOLDER]:
        raise InvalidArgument(
            f"{folder.path} holds {strangers[0]!r} and no store: name a new or an empty folder for a new "
            f"store"
        )


async def _check_folder(folder: StoreFolder, *, take_over: bool, create: bool) -> None:
    from ...storage_backends.files.local import LocalFiles
    from ..folder.paths import existing_identity, live_owners

    files = LocalFiles()
    if create:
        await check_new_folder(folder)
    else:
        await existing_identity(files, folder)

    if not take_over and (owners := await live_owners(files, folder)):
        raise InvalidArgument(_open_elsewhere(folder, owners))


def _open_elsewhere(folder: StoreFolder, owners: Sequence[Owner]) -> str:
    url = next((owner.url for owner in owners if owner.url), "")
    if url:
        return f"{folder.path} is served at {url}: use --url {url}"

    first = owners[0]
    return (
        f"{folder.path} is open in process {first.pid} on {first.host}: stop that one, or fence it on "
        f"purpose with --take-over"
    )


async def ask_service(url: str, method: str, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    """Ask the supervisor at ``url``; returns its document. Raises what it refused, ``Unavailable`` if nobody
    answers there.

    As for every client of the service, the environment's proxies are not for it.
    """
    import httpx

    from ...storage_backends.base.errors import Unavailable
    from ..gateway.wire.errors import from_problem

    try:
        async with httpx.AsyncClient(base_url=url, timeout=_ASK_SECONDS, trust_env=False) as client:
            answer = await client.request(method, path, json=body)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(
            f"no service answers at {url} ({str(error) or type(error).__name__}); is `tierlog serve` running?"
        ) from error

    if not answer.is_success:
        raise from_problem(answer.status_code, answer.headers, answer.content, maybe_applied=False)
    document: dict[str, Any] = answer.json()
    return document

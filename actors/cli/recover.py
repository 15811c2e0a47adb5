"""The command that recovers a store whose logs are lost, or one container of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ...storage_backends.base.errors import DataCorruption, NotOwner
from . import output
from .agreement import check_agreed
from .options import DEFAULT_DATA, Config, Data, Json, number_option
from .running import RUN_AGAIN, Hints, execute, read_settings

if TYPE_CHECKING:
    from ..folder.paths import StoreFolder
    from ..settings.configuration import StoreConfig
    from ..store.recover import RecoveredContainer, RecoveredStore
    from ..store.recover_container import FoundLog

_CONTAINER_HELP = "Recover only this container, whose log is lost or damaged. The others keep theirs."
ChunksToRecover = Annotated[
    str | None,
    typer.Option(
        "--chunks",
        envvar="TIERLOG_CHUNKS",
        show_envvar=True,
        metavar="LOCATION",
        help="Long-term storage, if it is not lts/ in the data folder: s3://BUCKET/PREFIX, or the absolute "
        "path of a folder, to which lts/ becomes a link.",
        show_default="lts/ in the data folder",
    ),
]
_HINTS: Hints = {
    DataCorruption: "`tierlog lts verify` lists all problems; a backup is restored with `tierlog restore`"
}
_STORE_HINTS: Hints = {**_HINTS, NotOwner: "if the service is not to go on, add --take-over"}
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Recover also from the long-term storage of a store in a bucket that a service serves: its "
        "containers are shut out.",
    ),
]


def recover(
    from_lts: Annotated[
        bool, typer.Option("--from-lts", help="From long-term storage alone: there is no other way.")
    ] = False,
    container: Annotated[int | None, number_option("--container", _CONTAINER_HELP)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, for scripts.")] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: ChunksToRecover = None,
    take_over: TakeOver = False,
) -> None:
    """Recover a store whose logs (wal/) are lost from its long-term storage alone, as of the last complete
    full flush of each container; with --container one container, whose log is moved away after a question if
    it holds anything.

    Anything later is lost. What cannot be recovered as of one moment is
    refused: `tierlog lts verify` shows why, and `tierlog lts cat` reads what is there. Chunks that only the
    lost logs knew are kept until `tierlog gc sweep --confirm`. An old folder of the store can no longer be
    opened.
    """
    if not from_lts:
        raise typer.BadParameter("name what to recover from: --from-lts")

    if container is not None and take_over:
        raise typer.BadParameter("--take-over is for whole stores: leave it or --container out")

    if container is None and yes:
        raise typer.BadParameter("--yes answers the question of --container: add that, or leave --yes out")

    async def inspect(container: int) -> FoundLog:
        from ...storage_backends.files.local import LocalFiles
        from ..folder.paths import check_path
        from ..store.recover_container import inspect_log

        folder = check_path(data)
        async with _linked(folder, read_settings(config, chunks)) as settings:
            return await inspect_log(folder, settings, LocalFiles(), container)

    async def command() -> RecoveredStore:
        from ...storage_backends.files.local import LocalFiles
        from ..folder.paths import check_path
        from ..store.folder_opening import system_world
        from ..store.recover import recover_store
        from ..store.recover_container import recover_container

        folder = check_path(data)
        async with _linked(folder, read_settings(config, chunks)) as settings:
            if container is None:
                return await recover_store(
                    folder, settings, LocalFiles(), system_world(), take_over=take_over
                )
            return await recover_container(folder, settings, LocalFiles(), system_world(), container)

    if container is not None and not yes:
        found = execute(lambda: inspect(container))
        if not found.is_empty:
            facts = f"the log of container {container} {found.state}"
            question = f"{facts[0].upper()}{facts[1:]}. Give up what it alone has?"
            check_agreed(question, asks=not json, facts=facts)
    hints = _STORE_HINTS if container is None else _HINTS
    recovered = execute(command, hints=hints, interrupted=RUN_AGAIN)
    if json:
        output.print_json(output.as_json(recovered))
    else:
        _show(recovered)


@asynccontextmanager
async def _linked(folder: StoreFolder, settings: StoreConfig) -> AsyncIterator[StoreConfig]:
    """If ``settings`` name a folder of chunks: ``lts/`` becomes a link to it, unless it is that already, and
    is removed again if the body fails and has made no logs. Raises ``InvalidArgument`` if that is
    impossible."""
    import anyio
    import attrs

    from ...storage_backends.base.errors import InvalidArgument
    from ...storage_backends.base.os_errors import explain
    from ..settings.configuration import is_folder

    if not is_folder(settings.chunks):
        yield settings
        return

    there, link, logs = map(anyio.Path, (settings.chunks, folder.chunks, folder.wal))
    try:
        had_logs = await logs.exists()
        if not await there.is_dir():
            raise InvalidArgument(f"--chunks: there is no folder {there}")
        is_new = not await link.exists()
        is_new_folder = not await anyio.Path(folder.path).exists()
        if is_new:
            await anyio.Path(folder.path).mkdir(parents=True, exist_ok=True)
            await link.symlink_to(await there.resolve())
        elif not await link.samefile(there):
            raise InvalidArgument(
                f"{link} is there, and not {there}: move it away, or recover it without --chunks"
            )
    except OSError as error:
        raise InvalidArgument(explain(error, str(link))) from error
    try:
        yield attrs.evolve(settings, chunks="")
    except BaseException:
        if is_new:
            with anyio.CancelScope(shield=True):
                # It may have been interrupted after it was complete: then this is the store's.
                if had_logs or not await logs.exists():
                    await link.unlink()
                if is_new_folder:
                    with suppress(OSError):  # it has something else meanwhile
                        await anyio.Path(folder.path).rmdir()
        raise


def show_containers(recovered: RecoveredStore) -> None:
    headers = ("container", "element", "cycle", "complete", "segments")
    output.print_table(headers, [_row(each) for each in recovered.containers])


def _show(recovered: RecoveredStore) -> None:
    show_containers(recovered)
    output.print_lines(
        [
            f"{output.count(recovered.segments, 'segment')}, as of these cycles; anything later is unknown",
            "chunks that only the lost logs knew are kept until `tierlog gc sweep --confirm`",
            *([f"the lost log is kept: {recovered.kept}"] if recovered.kept else []),
        ]
    )


def _row(each: RecoveredContainer) -> tuple[object, ...]:
    if not each.cycle:
        return each.container, each.element or "-", "-", "-", 0

    time = output.show_time(each.completed_ms)
    complete = time if each.is_exact else f"before {time}"
    return each.container, each.element, each.cycle, complete, each.segments

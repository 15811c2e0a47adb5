"""The command that recovers a store whose logs are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...storage_backends.base.errors import DataCorruption
from . import output
from .options import DEFAULT_DATA, Chunks, Config, Data, Json
from .running import RUN_AGAIN, Hints, execute, read_settings

if TYPE_CHECKING:
    from ..store.recover import RecoveredContainer, RecoveredStore

_HINTS: Hints = {
    DataCorruption: "`tierlog lts verify` lists all problems; a backup is restored with `tierlog restore`"
}


def recover(
    from_lts: Annotated[
        bool, typer.Option("--from-lts", help="From long-term storage alone: there is no other way.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: Chunks = None,
) -> None:
    """Recover a store whose logs (wal/) are lost from its long-term storage alone, as of the last complete
    full flush of each container.

    Anything later is lost, and so are open transactions. What cannot be recovered as of one moment is
    refused: `tierlog lts verify` shows why, and `tierlog lts cat` reads what is there. Chunks that only the
    lost logs knew are kept until `tierlog gc sweep --confirm`. An old folder of the store can no longer be
    opened.
    """
    if not from_lts:
        raise typer.BadParameter("name what to recover from: --from-lts")

    async def command() -> RecoveredStore:
        from ...storage_backends.files.local import LocalFiles
        from ..folder.paths import check_path
        from ..store.opening import system_world
        from ..store.recover import recover_store

        settings = read_settings(config, chunks)
        return await recover_store(check_path(data), settings, LocalFiles(), system_world())

    recovered = execute(command, hints=_HINTS, interrupted=RUN_AGAIN)
    if json:
        output.print_json(output.as_json(recovered))
    else:
        _show(recovered)


def show_containers(recovered: RecoveredStore) -> None:
    headers = ("container", "element", "cycle", "complete", "segments")
    output.print_table(headers, [_row(each) for each in recovered.containers])


def _show(recovered: RecoveredStore) -> None:
    show_containers(recovered)
    output.print_lines(
        [
            f"{output.count(recovered.segments, 'segment')}, as of these cycles; anything later is unknown",
            "chunks that only the lost logs knew are kept until `tierlog gc sweep --confirm`",
        ]
    )


def _row(each: RecoveredContainer) -> tuple[object, ...]:
    if not each.cycle:
        return each.container, each.element or "-", "-", "-", 0

    time = output.show_time(each.completed_ms)
    complete = time if each.is_exact else f"before {time}"
    return each.container, each.element, each.cycle, complete, each.segments

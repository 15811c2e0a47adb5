"""Commands about garbage collection: its tasks, those that failed, pause and resume, and the sweep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ...storage_backends.base.errors import DataCorruption, StoreMismatch, TierlogError
from . import output
from .agreement import check_agreed
from .options import (
    DEFAULT_DATA,
    DEFAULT_URL,
    Config,
    Data,
    Json,
    Service,
    TakeOver,
    Url,
    container_option,
    number_option,
)
from .running import FAILED, ask_service, check_no_take_over, execute, fail, owning, print_error, viewing

if TYPE_CHECKING:
    from ..gateway.wire.bodies import GcAction
    from ..gc.tasks import GcReport, GcTask
    from ..maintenance.report import ContainerGarbage
    from ..store.read_only import ContainerView, StoreView

T = TypeVar("T")

_COUNT_SECONDS = 600.0
"""For a service to list the chunks of one container."""

Limit = Annotated[int, number_option("--limit", "At most so many tasks of each container.", 1, 1000)]
OnlyContainer = Annotated[int | None, container_option("garbage")]


def status(
    container: OnlyContainer = None, json: Json = False, data: Data = DEFAULT_DATA, url: Service = None
) -> None:
    """Show how much garbage collection has to do, by container.

    The queue of container 0 is called GC_queue_0. It has the objects that wait for their deletion, each for
    the setting gc.delay, and then until an element in long-term storage no longer names it. What cannot be
    deleted after several attempts is in GC_failed_queue_0, and is tried again ever more rarely. Of a folder,
    this is what its next owner finds; a running owner has more, which only --url shows.
    """
    found, failures = execute(lambda: _reports(data, url, 1, container))
    if json:
        output.print_json([_as_json(each) for each in found])
    else:
        rows = [
            (each.queue, each.queued, each.unpublished, each.steps, each.failed, _state(each))
            for each in found
        ]
        output.print_table(("queue", "queued", "wait for element", "deferred work", "failed", "state"), rows)
    _report_failures(failures)


def ls(
    limit: Limit = 100,
    container: OnlyContainer = None,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List the tasks of garbage collection, by container.

    Deferred work, which takes apart deleted or truncated segments step by step, and objects to delete. A task
    waits for: steps, which flush cycles do; its delay; an element that no longer names the object; the
    confirmation of an adopted, restored or moved store; or the listing of the next owner.
    """
    found, failures = execute(lambda: _reports(data, url, limit, container))
    _show_tasks([(each, each.tasks) for each in found], json=json)
    _report_failures(failures)


def failed(
    limit: Limit = 100, container: OnlyContainer = None, url: Url = DEFAULT_URL, json: Json = False
) -> None:
    """List what a running service could not delete after several attempts.

    It is tried again in rounds: after five minutes, then ever more rarely, up to once an hour. The list is in
    the memory of the container's owner; the next owner begins again.
    """
    found, failures = execute(lambda: _reports(DEFAULT_DATA, url, limit, container))
    _show_tasks([(each, each.failed_tasks) for each in found], json=json)
    _report_failures(failures)


def retry(container: OnlyContainer = None, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Try to delete now what failed repeatedly."""
    _order("retry", url, container, "tried again", json=json)


def purge(container: OnlyContainer = None, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Forget what failed repeatedly. The objects stay; a later sweep or opening finds them again."""
    _order("purge", url, container, "forgotten", json=json)


def pause(container: OnlyContainer = None, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Begin no more deletions, until `resume` or until the container is opened again.

    A batch under way goes on. Flushes and deferred work go on as well, so the queue grows.
    """
    _order("pause", url, container, json=json)


def resume(container: OnlyContainer = None, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Go on with deletions after `pause`."""
    _order("resume", url, container, json=json)


def sweep(
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Let the store delete what was found; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, for scripts.")] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """List long-term storage and show what nothing refers to. Delete it with --confirm only.

    Most of it goes by itself: it waits for its deletion, or the next opening finds it. But a store that was
    adopted, restored or moved deletes nothing that it does not know, because another folder may need it: for
    data newer than a backup, or because this folder is a copy of that one. Confirm such a store once it is
    clear that no other folder will be used with this long-term storage. What it deletes cannot be brought
    back. Backups that need some of it become unusable, such as those newer than a restored one: to keep them,
    do not confirm. It is deleted while the store is open, after the setting gc.delay. A moved folder confirms
    itself after it has been open for 24 hours. `tierlog chunks ls --unreferenced` shows the names.
    """
    from ..container.container import Container

    if yes and not confirm:
        raise typer.BadParameter("--yes answers the question of --confirm: add that, or leave --yes out")

    # Read-only, so that a "no" to the question has fenced nobody.
    found, failures = execute(lambda: _find_garbage(data, url, take_over=take_over))
    # A folder is opened as a whole, or not at all.
    confirms = confirm and bool(found) and (url is not None or not failures)
    _show_garbage(found, is_last=not confirms, is_all=not failures, json=json, asks_service=url is not None)
    if not confirms:
        unconfirmed = ["nothing was confirmed, since a folder is opened as a whole, or not at all"]
        _report_failures(failures + unconfirmed if failures and confirm else failures)
        return

    chunks, size = sum(each.chunks for each in found), sum(each.bytes for each in found)
    question = (
        f"Let the store delete {output.count(chunks, 'unreferenced object')}, {output.show_bytes(size)}?"
    )
    if not yes:
        # --json is for scripts, which cannot answer.
        check_agreed(question, asks=not json)

    async def command() -> None:
        if url is not None:
            for each in found:
                await ask_service(url, "POST", f"/v1/containers/{each.container}/confirm")
            return

        async with owning(data, config, take_over=take_over) as store:
            for each in found:
                # Only what was shown: others may have become unconfirmed since.
                await store.on_container(each.container, Container.confirm)

    execute(command)
    if json:
        output.print_json([output.as_json(each) for each in found])
    else:
        containers = output.count(len(found), "container")
        output.print_lines(
            [f"confirmed {containers}: they delete it while the store is open, after `gc.delay`"]
        )
    _report_failures(failures)


async def _find_garbage(
    data: Path, url: str | None, *, take_over: bool
) -> tuple[list[ContainerGarbage], list[str]]:
    """The containers that have garbage or are unconfirmed, and the failures of ``_ask_each``."""
    from ..maintenance.report import chunks_of_backups, garbage_of

    if url is not None:
        check_no_take_over(take_over)
        answers, failures = await _ask_service(url, None, lambda index: _ask_garbage(url, index))
    else:
        async with viewing(data) as view:
            needed = await chunks_of_backups(view)
            answers, failures = await _ask_view(view, None, lambda each: garbage_of(view, each, needed))
    return [each for each in answers if each.reason or each.chunks], failures


def _show_garbage(
    found: list[ContainerGarbage], *, is_last: bool, is_all: bool, json: bool, asks_service: bool
) -> None:
    """``is_last``: only errors are printed after it; ``is_all``: all containers were looked at."""
    if json:
        if is_last:
            output.print_json([output.as_json(each) for each in found])
        return

    rows = [(each.container, each.chunks, output.show_bytes(each.bytes)) for each in found]
    output.print_table(("container", "unreferenced", "size"), rows)
    waits = [each for each in found if each.reason]
    output.print_lines(
        [f"container {each.container} waits for a confirmation: {each.reason}" for each in waits]
    )
    output.print_lines(_endangered(found, is_last=is_last, asks_service=asks_service))
    if not found and is_all:
        output.print_lines(["nothing to sweep"])


def _endangered(found: list[ContainerGarbage], *, is_last: bool, asks_service: bool) -> list[str]:
    """What is known of the backups that need what would be deleted, and before the question what is not."""
    if not any(each.reason for each in found):
        return []

    backups = sorted({backup for each in found for backup in each.backups})
    lines = [f"backup {each} needs some of this, and cannot be restored without it" for each in backups]
    if is_last:
        return lines

    where = "" if asks_service else " in other folders"
    warning = (
        f"Backups of an earlier version{where} are not looked at: those newer than a restored one need some "
        f"of this too. To keep them usable, do not confirm: until then nothing of it is deleted"
    )
    return [*lines, warning]


async def _ask_garbage(url: str, index: int) -> ContainerGarbage:
    """``garbage_of`` a container of a running service."""
    import msgspec

    from ..gateway.wire.bodies import Unconfirmed
    from ..maintenance.report import ContainerGarbage

    path = f"/v1/containers/{index}/unconfirmed"
    answer = await ask_service(url, "GET", path, kind=Unconfirmed, seconds=_COUNT_SECONDS)
    return msgspec.convert(answer, ContainerGarbage)


async def _reports(
    data: Path, url: str | None, limit: int, container: int | None
) -> tuple[list[GcReport], list[str]]:
    """The reports, and the failures of ``_ask_each``."""
    from ..maintenance.garbage import report_of

    if url is not None:
        return await _ask_service(url, container, lambda index: _ask_report(url, index, limit))

    async with viewing(data) as view:
        return await _ask_view(view, container, lambda each: report_of(view, each, limit))


def _indexes(count: int, container: int | None) -> Sequence[int]:
    if container is not None and container >= count:
        fail(f"there is no container {container}: the store has {count}")
    return range(count) if container is None else (container,)


async def _ask_service(
    url: str, container: int | None, ask: Callable[[int], Awaitable[T]]
) -> tuple[list[T], list[str]]:
    """``_ask_each`` of a running service: a container that is not served hides none of the others."""
    return await _ask_each(_indexes(await _count_containers(url), container), ask, (TierlogError,))


async def _ask_view(
    view: StoreView, container: int | None, ask: Callable[[ContainerView], Awaitable[T]]
) -> tuple[list[T], list[str]]:
    """``_ask_each`` of a folder: a container whose log is lost (rule R11) or damaged hides none of the
    others. That files or long-term storage do not answer is not about one container."""
    indexes = _indexes(len(view.containers), container)
    return await _ask_each(
        indexes, lambda index: ask(view.containers[index]), (StoreMismatch, DataCorruption)
    )


async def _ask_each(
    indexes: Sequence[int], ask: Callable[[int], Awaitable[T]], kinds: tuple[type[TierlogError], ...]
) -> tuple[list[T], list[str]]:
    """The answers of the containers, and the errors of these ``kinds`` of those that did not answer. If there
    is only one to ask, its error is raised."""
    answers, failures = list[T](), list[str]()
    for index in indexes:
        try:
            answers.append(await ask(index))
        except kinds as error:
            if len(indexes) == 1:
                raise
            subject = f"container {index}"
            failures.append(str(error) if str(error).startswith(subject) else f"{subject}: {error}")
    return answers, failures


def _report_failures(failures: list[str]) -> None:
    """After what the others answered."""
    for each in failures:
        print_error(each)
    if failures:
        raise typer.Exit(FAILED)


async def _count_containers(url: str) -> int:
    from ..gateway.wire.bodies import ContainerMap

    # The supervisor has the map, and redirects what is asked of a container to its host.
    return len((await ask_service(url, "GET", "/v1/containers", kind=ContainerMap))["containers"])


async def _ask_report(url: str, index: int, limit: int) -> GcReport:
    import msgspec

    from ..gateway.wire.bodies import GcQueue
    from ..gc.tasks import GcReport

    path = f"/v1/containers/{index}/gc?limit={limit}"
    return msgspec.convert(await ask_service(url, "GET", path, kind=GcQueue), GcReport)


def _order(action: GcAction, url: str, container: int | None, counted: str = "", *, json: bool) -> None:
    """Give each container, or one, the order. ``counted``: what happened to the names in its answer, for
    those orders that are about names."""

    async def order(index: int) -> dict[str, object]:
        from ..gateway.wire.bodies import GcDone

        return await ask_service(
            url, "POST", f"/v1/containers/{index}/gc-order", {"action": action}, kind=GcDone
        )

    done, failures = execute(lambda: _ask_service(url, container, order))
    if json:
        output.print_json(done)
    else:
        states = ["paused" if each["paused"] else "running" for each in done]
        if counted:
            rows = [(each["queue"], each["names"], state) for each, state in zip(done, states, strict=True)]
            output.print_table(("queue", counted, "state"), rows)
        else:
            queues = [(each["queue"], state) for each, state in zip(done, states, strict=True)]
            output.print_table(("queue", "state"), queues)
    _report_failures(failures)


def _state(report: GcReport) -> str:
    if report.unconfirmed:
        return f"unconfirmed: {report.unconfirmed}"
    return "paused" if report.paused else "-"


def _show_tasks(found: list[tuple[GcReport, tuple[GcTask, ...]]], *, json: bool) -> None:
    if json:
        output.print_json(
            [
                {"container": report.container, **output.as_json(task)}
                for report, tasks in found
                for task in tasks
            ]
        )
        return

    rows = [
        (
            report.container,
            task.kind,
            task.name,
            task.state.value,
            round(task.seconds) or "-",
            task.error or "-",
        )
        for report, tasks in found
        for task in tasks
    ]
    output.print_table(("container", "task", "of", "waits for", "seconds", "error"), rows)


def _as_json(report: GcReport) -> dict[str, object]:
    return {
        "queue": report.queue,
        "failed_queue": report.failed_queue,
        "container": report.container,
        "queued": report.queued,
        "unpublished": report.unpublished,
        "steps": report.steps,
        "failed": report.failed,
        "paused": report.paused,
        "unconfirmed": report.unconfirmed,
    }

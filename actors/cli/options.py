"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from ..telemetry.logging import is_logging, log_to_stderr

DEFAULT_DATA = Path("tierlog-data")
NUMBER_MAX = (1 << 63) - 1
"""No number of a store is larger."""
_DIGITS_MAX = 40
"""More than any number here needs; Python itself refuses to convert thousands."""


def whole_number(least: int = -NUMBER_MAX, most: int = NUMBER_MAX) -> Callable[[object], int]:
    """A parser of an option or argument, whose errors are plain sentences."""

    def parse(value: object) -> int:
        text = str(value)  # a default is a number already
        # `int` also takes `1_000`, spaces around it, and the digits of every script.
        if not (text.isascii() and text.removeprefix("-").isdigit()):
            raise typer.BadParameter("it must be a whole number")
        if len(text) > _DIGITS_MAX:
            raise typer.BadParameter(f"it must have at most {_DIGITS_MAX} digits")
        number = int(text)
        if number < least:
            raise typer.BadParameter(f"it must be at least {least}")
        if number > most:
            raise typer.BadParameter(f"it must be at most {most}")
        return number

    return parse


def number_option(flag: str, help: str, least: int = 0, most: int = NUMBER_MAX) -> Any:
    """An option that takes a whole number."""
    return typer.Option(flag, parser=whole_number(least, most), metavar="NUMBER", help=help)


def container_option(what: str) -> Any:
    """An option that selects one container's ``what``."""
    help = f"Only this container's {what}."
    return typer.Option("--container", parser=whole_number(0), metavar="N", help=help, show_default=False)


def _path_of(kind: str) -> Callable[[object], Path]:
    """A parser of an option or argument. ``Path`` alone takes an empty text, such as that of a variable which
    a script has not set, for the current folder."""

    def parse(value: object) -> Path:
        text = str(value)
        if not text:
            raise typer.BadParameter(f"it is empty: name a {kind}")
        return Path(text)

    return parse


folder_path = _path_of("folder")
file_path = _path_of("file")


def store_place(value: object) -> str:
    """A parser of an argument that is a folder or ``s3://BUCKET/PREFIX``, which a path would change."""
    return str(value) if "://" in str(value) else os.fspath(folder_path(value))


def _not_empty(kind: str) -> Callable[[typer.Context, typer.CallbackParam, Any], Any]:
    """Refuses an empty environment variable of an option, which click takes for one that is not set."""

    def check(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
        source, variable = context.get_parameter_source(str(parameter.name)), str(parameter.envvar)
        if source is not None and source.name == "DEFAULT" and os.environ.get(variable) == "":
            raise typer.BadParameter(f"{variable} is empty: name a {kind}, or unset it")
        return value

    return check


Data = Annotated[
    Path,
    typer.Option(
        "--data",
        parser=folder_path,
        callback=_not_empty("folder"),
        envvar="TIERLOG_DATA",
        show_envvar=True,
        metavar="PATH",
        help="The data folder.",
        show_default="tierlog-data",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_not_empty("file"),
        envvar="TIERLOG_CONFIG",
        show_envvar=True,
        parser=file_path,
        metavar="FILE",
        help="The configuration file, such as tierlog.toml; default: the built-in settings.",
    ),
]
Chunks = Annotated[
    str | None,
    typer.Option(
        "--chunks",
        envvar="TIERLOG_CHUNKS",
        show_envvar=True,
        metavar="LOCATION",
        help="Long-term storage of a new store: s3://BUCKET/PREFIX or, for a store on BookKeeper, also the "
        "absolute path of a folder that all machines share. It cannot be changed later.",
        show_default="lts/ in the data folder",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Open the folder even if another process has it open: that process is fenced."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The segment's name, such as app/events.", show_default=False)
]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="The segments' names.", show_default=False)
]
DEFAULT_URL = "http://127.0.0.1:8470"
Url = Annotated[
    str,
    typer.Option(
        "--url",
        callback=_not_empty("service"),
        envvar="TIERLOG_URL",
        show_envvar=True,
        metavar="URL",
        help="The service's URL, or several with commas between them.",
        show_default=DEFAULT_URL,
    ),
]
Service = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Use the service at this URL instead of a data folder; several may be given, with commas "
        "between them.",
        show_default=False,
    ),
]
"""For commands that also work on a folder. It is never read from the environment, so that the command line
alone decides which of the two is used."""


def _set_log_level(context: typer.Context, level: LogLevel | None) -> None:
    """An option overrides the variable, which overrides the file (``read_settings``)."""
    source = context.get_parameter_source("log_level")
    is_option = source is not None and source.name == "COMMANDLINE"
    if level not in (None, "auto") and (is_option or not is_logging()):
        log_to_stderr(level)


LogLevel = Literal["auto", "error", "warning", "info"]


def _log_level(text: str) -> str:
    if text not in get_args(LogLevel):
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, get_args(LogLevel)))}")
    return text


LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        parser=_log_level,
        metavar=f"[{'|'.join(get_args(LogLevel))}]",
        callback=_set_log_level,
        envvar="TIERLOG_LOG_LEVEL",
        show_envvar=True,
        help="Log to stderr from this level on; default: info for `serve`, `supervise` and `host run`, "
        "nothing for other commands.",
        show_default=False,
    ),
]


def check_selection(names: list[str] | None, everything: bool) -> None:
    """A command takes either names or ``--all``."""
    if bool(names) == everything:
        raise typer.BadParameter("name segments, or select all with --all")

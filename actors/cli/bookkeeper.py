"""The command that installs what stores on BookKeeper need besides Python."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from ...storage_backends.base.errors import DataCorruption
from ..telemetry.printable import printable
from . import output
from .options import Json
from .running import Hints, execute

_CONTROL = re.compile(r"[\x00-\x20\x7f]")


def mirror_url(value: object) -> str:
    """A parser of the option. What is refused is not shown: it may have a password."""
    text = str(value)
    try:
        parts = urlsplit(text)
        is_well_formed = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an address in brackets, or a port, that is none
        is_well_formed = False
    if not is_well_formed or "?" in text or "#" in text or _CONTROL.search(text):
        raise typer.BadParameter(
            "it is no address of a Maven repository: write https://HOST/PATH, such as "
            "https://repo1.maven.org/maven2"
        )
    return text


def install(
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="FOLDER",
            envvar="TIERLOG_BOOKKEEPER_FOLDER",
            show_envvar=True,
            help="Where to; by default tierlog/bookkeeper in XDG_DATA_HOME or ~/.local/share.",
        ),
    ] = None,
    mirror: Annotated[
        str,
        typer.Option(
            "--mirror",
            parser=mirror_url,
            metavar="URL",
            envvar="TIERLOG_MAVEN_MIRROR",
            show_envvar=True,
            help="A mirror of Maven Central.",
        ),
    ] = "https://repo1.maven.org/maven2",
    server: Annotated[
        bool, typer.Option("--server", help="Also what a local BookKeeper needs, for trying it out.")
    ] = False,
    json: Json = False,
) -> None:
    """Install BookKeeper's client, which runs in a Java process beside each host.

    Downloads about 20 MB (26 with --server) of pinned files, verifies their checksums, and compiles the
    program that tierlog starts. Needs Java 17 or newer, without a compiler. Interrupted, it continues when it
    is run again; files that are there and right are not downloaded again, damaged ones are replaced.
    """

    async def command() -> Path:
        from ...storage_backends.ledgers.install import install
        from ...storage_backends.ledgers.installed import Installation, default_folder

        installation = Installation(into or default_folder())
        with output.progress("downloading", None) as advance:

            def say() -> None:
                where = printable(str(installation.folder))
                sys.stderr.write(f"waiting for another installation into {where}\n")

            await install(installation, server=server, mirror=mirror, advance=advance, waits=say)
        return installation.folder

    # The error names the mirror to replace: no store is damaged.
    hints: Hints = {DataCorruption: ""}
    folder = execute(command, hints=hints, interrupted="run it again to continue")
    if json:
        output.print_json({"folder": str(folder)})
    else:
        typer.echo(f"installed in {folder}")

"""Options that several commands share, written once.

Owns: their names, defaults, environment variables and help. Does not own: what they mean (``running.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DATA = Path("tierlog-data")

Data = Annotated[
    Path,
    typer.Option(
        "--data",
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
        envvar="TIERLOG_CONFIG",
        show_envvar=True,
        metavar="FILE",
        help="A tierlog.toml; default: the built-in settings.",
    ),
]
Chunks = Annotated[
    str | None,
    typer.Option(
        "--chunks",
        envvar="TIERLOG_CHUNKS",
        show_envvar=True,
        metavar="PLACE",
        help="Where a new folder keeps its long-term storage: s3://BUCKET/PREFIX. Fixed from then on.",
        show_default="lts/ in the data folder",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Go on although another process has the folder open: it is fenced and loses its store.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The segment's name, such as app/events.", show_default=False)
]
DEFAULT_URL = "http://127.0.0.1:8470"
Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="TIERLOG_URL",
        show_envvar=True,
        metavar="URL",
        help="The service.",
        show_default=DEFAULT_URL,
    ),
]
Service = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Ask the service there instead of a data folder.", show_default=False
    ),
]
"""Of commands that work on a folder as well: never from the environment, so that what is typed says what is
meant."""

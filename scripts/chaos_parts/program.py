"""What all chaos scripts do around their trouble: read the command line, make the service, show the verdict,
return the exit status.

Exit status: 0 if everything holds, 1 if something does not, 2 for wrong arguments, 130 after Ctrl-C (or 128
and the number of another signal), when the service and the writers are ended and the temporary folder is
removed.
"""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
from rich.console import Console

from chaos_parts.campaign import Nemesis, Run, campaign, until_signalled
from chaos_parts.options import Options, options_of, parser
from chaos_parts.service import ChaosError, OwnService, Service
from chaos_parts.tail import settings_for
from chaos_parts.verdict import Verdict

_SETTINGS = """\
[server]
restarts = 1000                 # hosts die more often here than anywhere else, and shall come back each time
restart_backoff_max = "0.2 s"
failovers = 100000
container_crashes = 1000
"""
"""What differs from the defaults: only how often a host may die."""
MakeService = Callable[[Options, Path], Service]


def run_script(
    script: str,
    text: str,
    arguments: Sequence[str],
    nemesis: Nemesis,
    *,
    rounds: int,
    attach: bool = False,
    plain: bool = True,
    make_service: MakeService | None = None,
) -> int:
    """``text``: the help. ``make_service``: how a service is started in a folder, if not in the common
    way."""
    options = Options(
        **vars(options_of(parser(script, text, attach=attach, rounds=rounds), arguments)), plain=plain
    )
    verdict = Verdict(script, options.seed, strict=options.goals)
    return carry_out(options, verdict, partial(campaign, nemesis=nemesis), make_service=make_service)


def carry_out(
    options: Options,
    verdict: Verdict,
    work: Callable[[Run], Awaitable[None]],
    *,
    make_service: MakeService | None = None,
) -> int:
    """Make the service, do the work, show the verdict."""
    script = verdict.script
    folder = options.keep or Path(tempfile.mkdtemp(prefix=f"tierlog-chaos-{script}-"))
    folder.mkdir(exist_ok=True)
    console = Console(stderr=options.json)
    keep = options.keep is not None
    try:
        service = _attached(options) if options.url else (make_service or own_service)(options, folder)
    except ChaosError as error:
        folder.rmdir()
        print(f"chaos_{script}: {error}", file=sys.stderr)
        return 1
    service.patience = options.patience
    try:
        run = Run(options, service, verdict, folder, console)
        with run.progress:
            status = anyio.run(partial(until_signalled, run, work), backend_options={"use_uvloop": True})
        if status:
            verdict.show_interrupted(console, options.rounds)
            return status

        verdict.show(console, as_json=options.json)
        keep = keep or bool(verdict.violations)
        if keep:
            service.keep(folder)
            console.print(
                f"the data and the log are kept in {folder}", highlight=False, markup=False, soft_wrap=True
            )
        return verdict.exit_status
    finally:
        service.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def settings(options: Options, server: str = "") -> str:
    """The configuration of a service that is started here; ``server``: more lines for its section of that
    name."""
    return _SETTINGS + server + settings_for(options.tail)


def _attached(options: Options) -> Service:
    assert options.url is not None
    return Service(options.url, pids_from=options.pids_from)


def own_service(options: Options, folder: Path) -> OwnService:
    return OwnService(
        folder / "data",
        folder,
        hosts=options.hosts,
        containers=options.containers,
        config=settings(options),
        port=free_port(),
    )


def free_port() -> int:
    """A port that the system just had free: a supervisor that is started again shall be found where its
    predecessor was."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port

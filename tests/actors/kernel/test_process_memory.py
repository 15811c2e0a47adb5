"""What a process of tierlog's own imports, the collector leaves alone: while it is made, afterwards, and at
the end."""

from __future__ import annotations

import subprocess
import sys

import pytest

HOST = (
    "import gc, tierlog.actors.host.__main__ as host\nprint(host.main.__module__, gc.isenabled(), "
    "len(gc.get_objects()) < 5_000)"
)
IMPORTING = (
    "import gc\nfrom tierlog.actors.kernel.process_memory import importing as i\nwith i():\n    "
    "print(gc.isenabled())\nprint(gc.isenabled())"
)
END = (
    "import gc, sys\nfrom tierlog.actors.cli import main\nsys.argv[1:] = ['nothing']\nprint(main(), "
    "len(gc.get_objects()) < 5_000)"
)


@pytest.mark.parametrize(
    "program, printed",
    [(HOST, "tierlog.actors.host.main True True\n"), (IMPORTING, "False\nTrue\n"), (END, "2 True\n")],
    ids=["a host's start", "the collector waits", "a command's end"],
)
def test_the_collector_does_not_look_at_what_stays(program: str, printed: str) -> None:
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == printed
    )

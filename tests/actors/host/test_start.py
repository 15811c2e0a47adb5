"""What a host says that cannot start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.patience import scaled


def test_a_host_that_cannot_start_logs_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "tierlog.actors.host", "--id=host-0", "--control=socket"]
    done = subprocess.run(
        [*command, f"--data={tmp_path / 'missing'}"],
        capture_output=True,
        timeout=scaled(30),
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    [line] = done.stderr.splitlines()
    assert json.loads(line)["event"] == "host_failed"

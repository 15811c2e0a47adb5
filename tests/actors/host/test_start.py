"""What a host says that cannot start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import scaled
from tierlog.actors.host import main
from tierlog.actors.host.main import HostOptions, HostService
from tierlog.actors.settings.configuration import StoreConfig


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


@pytest.mark.parametrize(
    ("control", "restarts"), [("", 0), ("/run/control", StoreConfig().supervision.restarts)]
)
def test_v8_a_host_that_joins_restarts_no_container_itself(
    control: str, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it runs may be the reason: its supervisor has another host open the container."""
    opened: list[StoreConfig] = []
    monkeypatch.setattr(main, "open_host", lambda *_, config, **more: opened.append(config))
    options = HostOptions(place="s3://b/p", id="a", address="127.0.0.1", port=0, control=control)
    HostService(options, StoreConfig())._opened()
    assert [config.supervision.restarts for config in opened] == [restarts]

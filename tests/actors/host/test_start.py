"""What a host says that cannot start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.patience import scaled
from support.runtime_site import Site
from tierlog.actors.host import main
from tierlog.actors.host.link import Link
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


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("control", "was_welcome", "events"), [("", False, 0), ("", True, 1), ("/run/control", False, 1)]
)
async def test_a_joining_host_that_is_refused_at_its_start_says_nothing_of_a_drain(
    control: str, was_welcome: bool, events: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error has the reason; one of a supervisor's own has no other line with it."""
    caplog.set_level("INFO")
    options = HostOptions(place="s3://b/p", id="a", address="127.0.0.1", port=0, control=control)
    service = HostService(options, StoreConfig())
    nobody: Any = None
    link = Link(nobody, hello=nobody, redirect=nobody, monitor=nobody, grace=1)
    link.refusal = "process 7 is a now"
    if was_welcome:
        link.welcomed.set()
    service._supervised = link
    service._drain(f"refused by the supervisor: {link.refusal}")
    assert sum("draining" in record.getMessage() for record in caplog.records) == events


@pytest.mark.anyio
async def test_a_host_that_has_no_container_does_not_say_that_all_is_flushed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with Site().runtime() as runtime:
        await runtime.flush_before_end()
        assert "ended_flushed" not in caplog.text
        await runtime.open(0)
        await runtime.flush_before_end()
        assert "ended_flushed" in caplog.text


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

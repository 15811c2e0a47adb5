"""Backups of a running service: steps go to the hosts of the containers, and a copy is made beside it (rules
P1, P3, P7)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tierlog
from support.command_line import Run
from support.live_service import SyncOwnService, name_in

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


def test_a_running_service_is_backed_up_copied_and_restored(run: Run, folder: Path, tmp_path: Path) -> None:
    place, other = str(tmp_path / "place"), str(tmp_path / "other")
    with SyncOwnService(folder, containers=3) as service:
        service.settle()
        url, data = f"--url={service.url}", f"--data={folder}"
        with tierlog.connect_sync(service.url) as store:
            for index in range(3):
                store.create_segment(name_in(index, 3))
                store.append(name_in(index, 3), b"kept")
            assert run("backup", "first", url).out == "backup first: complete\n"
            for index in range(3):
                store.append(name_in(index, 3), b" and more")
            with pytest.raises(tierlog.BackupExists):
                store.backup("first")
            assert [each.name for each in store.backups()] == ["first"]
        [listed] = json.loads(run("backup", "ls", url, "--json").out)
        assert (listed["name"], listed["containers"], listed["problem"]) == ("first", 3, "")
        refused = run("backup", "second", "--copy-to", place, data)
        assert (refused.code, f"use --url {service.url}" in refused.err) == (1, True)
        copied = run("backup", "first", "--copy-to", place, data)
        assert (copied.code, copied.err) == (0, "")
        assert run("backup", "rm", "first", url).code == 0
        assert json.loads(run("backup", "ls", url, "--json").out) == []
    assert run("restore", "first", "--from", place, "--data", other).code == 0
    for index in range(3):
        assert run("segment", "read", name_in(index, 3), "--data", other).out == "kept"

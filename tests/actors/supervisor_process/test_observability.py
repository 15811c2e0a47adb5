"""Observability of a real service: the metrics that docs/observability.md lists, and traces when its
environment asks for them."""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest

import tierlog
from support.live_service import SyncOwnService
from tierlog.actors.supervisor.standby import StandbyStatistics
from tierlog.actors.telemetry.metrics import render_metrics

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")

ROOT = Path(__file__).parents[3]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def listed() -> set[tuple[str, str, str]]:
    page = (ROOT / "docs" / "observability.md").read_text()
    return set(re.findall(r"^\| `(tierlog_\w+)` \| (\w+) \| [^|]* \| (.+) \|$", page, re.MULTILINE))


def scraped(text: str) -> set[tuple[str, str, str]]:
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    return {
        (name, kind, helps[name]) for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    }


def test_the_page_lists_every_metric_with_its_type_and_meaning(folder: Path) -> None:
    with SyncOwnService(folder, hosts=1, containers=1) as service:
        service.settle()
        host = service.host("host-0")["url"]
        with tierlog.connect_sync(service.url) as client:
            client.create_segment("s")
            texts = [
                client.metrics().decode(),
                *(service.client.get(f"{url}/metrics").text for url in (service.url, host)),
                render_metrics(lambda: [StandbyStatistics(0.0)]).decode(),
            ]
        assert service.stop() == 0
    assert set().union(*map(scraped, texts)) == listed()


def spans(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_supervisor_and_hosts_trace_when_the_environment_enables_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "site" / "otel_to_file-1.dist-info"
    declared.mkdir(parents=True)
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: otel-to-file\nVersion: 1\n")
    (declared / "entry_points.txt").write_text(
        "[opentelemetry_configurator]\nto-file = otel_to_file:Configurator\n"
    )
    paths = [
        str(declared.parent),
        str(ROOT / "tests" / "support"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    file = tmp_path / "spans"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("SPANS_FILE", str(file))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "file")
    monkeypatch.setenv("OTEL_PYTHON_CONFIGURATOR", "to-file")
    with SyncOwnService(folder, hosts=1, containers=1) as service:
        service.settle()
        service.create("s")
        url = f"{service.host('host-0')['url']}/v1/segments/s/append"
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "Content-Type": "application/octet-stream"}
        assert service.client.post(url, content=b"abc", headers=headers).is_success
        asked = service.client.get("/v1/status", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert asked.is_success
        assert service.stop() == 0

    mine = {span["name"]: span for span in spans(file) if span["context"]["trace_id"] == f"0x{TRACE}"}
    assert mine.keys() == {"POST /v1/segments/{name}/append", "tierlog.append", "GET /v1/status"}
    assert mine["POST /v1/segments/{name}/append"]["parent_id"] == f"0x{PARENT}"
    group = spans(file)[[span["name"] for span in spans(file)].index("tierlog.wal.append")]
    assert [link["context"]["span_id"] for link in group["links"]] == [
        mine["tierlog.append"]["context"]["span_id"]
    ]
    reported = group["resource"]["attributes"]
    assert (reported["service.name"], reported["service.instance.id"]) == ("tierlog", "host-0")
    status = mine["GET /v1/status"]
    assert status["parent_id"] == f"0x{PARENT}"
    assert status["resource"]["attributes"]["service.instance.id"] == "supervisor"


def _limit_of_files(pid: int) -> tuple[int, int]:
    """Soft and hard."""
    found = re.search(
        r"^Max open files +(\d+) +(\d+) ", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE
    )
    assert found is not None
    return int(found[1]), int(found[2])


@pytest.mark.extended
def test_h12_supervisor_and_hosts_raise_their_limit_of_open_files(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        with SyncOwnService(folder, hosts=1, containers=1) as service:
            service.settle()
            limits = [_limit_of_files(pid) for pid in (service.process.pid, *service.pids().values())]
            assert service.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert limits == [(hard, hard)] * 2

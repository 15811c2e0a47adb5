"""Snapshots in, Prometheus text out."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import tierlog
from tierlog.actors.telemetry.metrics import CONTENT_TYPE, StatisticsCollector, render_metrics, samples
from tierlog.journal.log.contract import LogStatistics
from tierlog.storage_backends.base.statistics import counter, gauge, label, state
from tierlog.storage_backends.base.storage_statistics import ChunkStorageStatistics, FilesStatistics


class Light(enum.Enum):
    GREEN = "green"


@attrs.frozen
class LaneStatistics:
    waiting: int = attrs.field(metadata=gauge("Operations that wait."))


@attrs.frozen
class TailCacheStatistics:
    bytes: int = attrs.field(metadata=gauge("Bytes held."))
    ratio: float = 0.5
    name: str = "left out"
    nothing: int | None = None
    _secret: int = 3


@attrs.frozen
class ContainerStatistics:
    container: int = attrs.field(metadata=label())
    append_bytes: int = attrs.field(metadata=counter("Bytes of acked appends."))
    light: Light = attrs.field(default=Light.GREEN, metadata=state("Where its life is."))
    full: bool = attrs.field(default=False, metadata=gauge("Whether appends are refused."))
    cache: TailCacheStatistics = TailCacheStatistics(bytes=7)
    lanes: Mapping[str, LaneStatistics] = attrs.field(factory=dict)


@attrs.frozen
class HostStatistics:
    host: int
    load: int


@attrs.frozen
class OuterStatistics:
    host: int = attrs.field(metadata=label())
    inner: HostStatistics


@attrs.frozen
class MailboxStatistics:
    normal: LaneStatistics
    internal: LaneStatistics


@attrs.frozen
class StoreStatistics:
    containers: Sequence[ContainerStatistics]


def lines(*snapshots: object) -> list[str]:
    text = render_metrics(lambda: snapshots).decode()

    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_counter_is_named_after_its_class_and_field() -> None:
    assert 'tierlog_container_append_bytes_total{container="3"} 10.0' in lines(ContainerStatistics(3, 10))


def test_help_and_type_come_from_the_field() -> None:
    text = render_metrics(lambda: [ContainerStatistics(3, 10)]).decode()

    assert (
        "# HELP tierlog_container_append_bytes_total Bytes of acked appends.\n# TYPE "
        "tierlog_container_append_bytes_total counter\n" in text
    )


def test_a_nested_snapshot_has_its_own_name_and_inherits_the_labels() -> None:
    assert 'tierlog_tail_cache_bytes{container="3"} 7.0' in lines(ContainerStatistics(3, 10))


def test_the_keys_of_a_mapping_become_labels() -> None:
    snapshot = ContainerStatistics(3, 10, lanes={"user": LaneStatistics(1), "internal": LaneStatistics(2)})

    assert [line for line in lines(snapshot) if "lane" in line] == [
        'tierlog_lane_waiting{container="3",lane="user"} 1.0',
        'tierlog_lane_waiting{container="3",lane="internal"} 2.0',
    ]


def test_a_field_named_like_its_class_is_a_label() -> None:
    assert lines(HostStatistics(1, 20), HostStatistics(2, 30)) == [
        'tierlog_host_load{host="1"} 20.0',
        'tierlog_host_load{host="2"} 30.0',
    ]


def test_fields_of_one_class_are_distinguished_by_their_names() -> None:
    assert lines(MailboxStatistics(normal=LaneStatistics(1), internal=LaneStatistics(2))) == [
        'tierlog_lane_waiting{lane="normal"} 1.0',
        'tierlog_lane_waiting{lane="internal"} 2.0',
    ]


def test_a_label_that_occurs_twice_has_its_inner_value() -> None:
    assert [sample.labels for sample in samples([OuterStatistics(1, HostStatistics(2, 20))])] == [
        (("host", "2"),)
    ]


def test_a_state_is_a_one_with_the_state_as_label() -> None:
    assert 'tierlog_container_light{container="3",light="green"} 1.0' in lines(ContainerStatistics(3, 10))


def test_a_number_without_metadata_is_exported_untyped() -> None:
    text = render_metrics(lambda: [TailCacheStatistics(1)]).decode()

    assert "# TYPE tierlog_tail_cache_ratio untyped\ntierlog_tail_cache_ratio 0.5\n" in text


def test_the_contracts_own_snapshots_are_typed() -> None:
    log = LogStatistics(
        epoch=2,
        next_group=5,
        appended_groups=4,
        appended_bytes=100,
        retained_bytes=100,
        allocated_bytes=4096,
        files=1,
        syncs=4,
    )

    assert {
        (sample.name, sample.kind)
        for sample in samples([log, ChunkStorageStatistics(), FilesStatistics(1, 0)])
    } >= {
        ("tierlog_log_epoch", "gauge"),
        ("tierlog_log_appended_bytes", "counter"),
        ("tierlog_chunk_storage_reads", "counter"),
        ("tierlog_files_running", "gauge"),
    }


def test_text_nothing_and_private_fields_are_left_out() -> None:
    assert lines(TailCacheStatistics(1)) == ["tierlog_tail_cache_bytes 1.0", "tierlog_tail_cache_ratio 0.5"]


def test_objects_of_one_kind_share_a_family() -> None:
    text = render_metrics(
        lambda: [StoreStatistics([ContainerStatistics(0, 1), ContainerStatistics(1, 2)])]
    ).decode()

    assert text.count("# TYPE tierlog_container_append_bytes_total") == 1
    assert {family.name: len(family.samples) for family in text_string_to_metric_families(text)} == {
        "tierlog_container_append_bytes": 2,
        "tierlog_container_light": 2,
        "tierlog_container_full": 2,
        "tierlog_tail_cache_bytes": 2,
        "tierlog_tail_cache_ratio": 2,
    }


def test_two_indistinguishable_objects_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two snapshots give tierlog_lane_waiting\{\}; mark a field"):
        list(samples([LaneStatistics(1), LaneStatistics(2)]))


def test_a_snapshot_is_taken_per_scrape_and_not_when_registered() -> None:
    taken = []

    def snapshots() -> list[object]:
        taken.append(1)
        return [LaneStatistics(len(taken))]

    registry = CollectorRegistry()
    registry.register(StatisticsCollector(snapshots))

    assert taken == []
    assert [registry.get_sample_value("tierlog_lane_waiting") for _ in range(2)] == [1.0, 2.0]


def test_the_content_type_is_the_text_format_that_is_rendered() -> None:
    from prometheus_client import CONTENT_TYPE_LATEST

    assert CONTENT_TYPE.split(";")[0] == CONTENT_TYPE_LATEST.split(";")[0]


@pytest.mark.anyio
async def test_metrics_name_each_container(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=2) as store:
        await store.create_segment("s")
        await store.append("s", b"abc")
        text = store.metrics().decode()

    for container in ("0", "1"):
        assert f'tierlog_container_segments{{container="{container}"}}' in text

    assert "# TYPE tierlog_pipeline_operations_total counter" in text

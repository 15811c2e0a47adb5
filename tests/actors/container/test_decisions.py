"""Decisions: what each request means in each state, and that a refusal changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.container_parts import NAME, ROLLING, Parts, append, by_writer, record_of, refused
from support.table_rows import records_in_memory
from tierlog.actors.container.operations.attributes import AttributesRequest, SpillRequest
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.metadata import CommitMetadataRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.truncate import TruncateRequest
from tierlog.actors.container.operations.writers import ExpireWritersRequest
from tierlog.actors.container.requests import Request
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.attribute_rows import SpillAttributes
from tierlog.journal.operations.create_segment import CreateSegment
from tierlog.journal.operations.update_attributes import UpdateAttributes
from tierlog.storage_backends.base.errors import (
    AttributeConflict,
    MetadataConflict,
    TierlogError,
)
from tierlog.storage_backends.base.ids import segment_id
from tierlog.storage_backends.base.segments import (
    AttributeUpdate,
    AttributeUpdateKind,
)
from tierlog.storage_backends.segments.records.segment import segment_key

KIND = AttributeUpdateKind


# --- create, seal, truncate, delete -------------------------------------------------------------


def test_a_creation_gets_a_fresh_id() -> None:
    parts = Parts()
    (op,), answer = parts.operations(CreateRequest(NAME, ROLLING))

    assert (op, answer) == (CreateSegment(segment_id(1, 1), NAME, ROLLING), None)


def test_a_seal_returns_the_final_length_also_when_repeated() -> None:
    parts = Parts()
    parts.create()
    parts.do(append(NAME, b"abc"))

    assert parts.do(SealRequest(NAME)) == 3
    assert parts.operations(SealRequest(NAME)) == ([], 3)
    assert parts.segment().sealed


@pytest.mark.parametrize("offset", [0, 2])
def test_a_truncation_at_or_before_the_start_logs_nothing(offset: int) -> None:
    parts = Parts()
    parts.create()
    parts.do(append(NAME, b"abcdef"), TruncateRequest(NAME, 2))

    assert parts.operations(TruncateRequest(NAME, offset)) == ([], None)


# --- appends ------------------------------------------------------------------------------------


def test_the_data_is_not_copied() -> None:
    parts = Parts()
    parts.create()
    data = bytes(1000)
    (op,), _ = parts.operations(append(NAME, data))

    assert isinstance(op, Append)
    assert op.data is data


# --- attributes ---------------------------------------------------------------------------------


def test_m19_an_image_has_the_names_that_were_set_first() -> None:
    parts = Parts()
    parts.state.image_entries = 3
    segment = parts.create()
    parts.do(AttributesRequest(NAME, [AttributeUpdate(name, 1) for name in "cab"]))
    assert not segment.has_attribute_rows
    request = AttributesRequest(NAME, [AttributeUpdate("a", 2), AttributeUpdate("d", 2)])
    (op, spill), _ = parts.operations(request)
    assert op == UpdateAttributes(segment.sid, (("a", 2), ("d", 2)))
    assert spill == SpillAttributes(segment.sid, 3)
    assert parts.do(request) == {"a": 2, "d": 2}
    assert segment.attributes == {"c": 1, "a": 2, "b": 1}
    update = AttributeUpdate("d", 5, KIND.ACCUMULATE)
    (op,), values = parts.operations(AttributesRequest(NAME, [update]))
    assert (op, values) == (UpdateAttributes(segment.sid, (("d", 7),)), {"d": 7})
    assert segment.attributes.keys() == set("cab")


def test_m19_ids_are_no_names() -> None:
    parts = Parts()
    segment = parts.create()
    name, each = "0123456789abcdef", b"0123456789abcdef"
    assert parts.do(AttributesRequest(NAME, [AttributeUpdate(name, 1), AttributeUpdate(each, 2)])) == {
        name: 1,
        each: 2,
    }
    assert segment.attributes == {name: 1}
    refused(parts, AttributesRequest(NAME, [AttributeUpdate(each, 3, KIND.NONE)]), AttributeConflict)
    assert parts.do(AttributesRequest(NAME, [AttributeUpdate(each, 3, KIND.ACCUMULATE)])) == {each: 5}


def test_m19_an_image_of_an_earlier_version_is_shortened_in_steps() -> None:
    parts = Parts()
    parts.state.image_entries = 100
    segment = parts.create()
    segment.attributes.update((f"a{number}", number) for number in range(500))
    parts.do(SpillRequest(segment.sid))
    assert (len(segment.attributes), segment.spilled) == (244, True)
    parts.do(SpillRequest(segment.sid))
    assert list(segment.attributes) == [f"a{number}" for number in range(100)]
    assert parts.operations(SpillRequest(segment.sid)) == ([], None)
    update = AttributeUpdate("a499", 1, KIND.ACCUMULATE)
    assert parts.do(AttributesRequest(NAME, [update])) == {"a499": 500}


# --- merges -------------------------------------------------------------------------------------


# --- metadata commits (S6) ----------------------------------------------------------------------


def test_a_commit_returns_the_version_of_its_keys() -> None:
    parts = Parts()
    version = parts.commit({"c:x": b"1"})

    assert version == parts.state.sequence
    assert records_in_memory(parts.state) == {"c:x": (version, b"1")}
    assert parts.do(CommitMetadataRequest({"c:x": version}, {"c:x": None})) == version + 1
    assert records_in_memory(parts.state) == {}


@pytest.mark.parametrize("expected", [{"c:x": 0}, {"c:x": 99}, {"c:new": 1}])
def test_a_commit_on_old_versions_is_refused(expected: dict[str, int]) -> None:
    """S6: conditions on keys that were only read count too."""
    parts = Parts()
    parts.commit({"c:x": b"1"})
    refused(parts, CommitMetadataRequest({**expected, "c:y": 0}, {"c:y": b"2"}), MetadataConflict)


def test_a_commit_without_writes_only_checks() -> None:
    parts = Parts()
    version = parts.commit({"c:x": b"1"})

    assert parts.operations(CommitMetadataRequest({"c:x": version}, {})) == ([], version)
    refused(parts, CommitMetadataRequest({"c:x": 0}, {}), MetadataConflict)


def test_the_record_of_a_deleted_segment_can_only_be_removed() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    parts.flush()
    key, value = next(iter(record_of(segment).items()))
    version = records_in_memory(parts.state)[key][0]
    parts.do(DeleteRequest(NAME))
    refused(parts, CommitMetadataRequest({key: version}, {key: value}), MetadataConflict)

    assert parts.do(CommitMetadataRequest({key: version}, {key: None})) > version


def test_the_record_of_an_unknown_segment_is_refused() -> None:
    parts = Parts()
    key = segment_key(segment_id(1, 77))
    refused(parts, CommitMetadataRequest({key: 0}, {key: b"record"}), MetadataConflict)


# --- everything together ------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(CreateRequest, names, st.just(ROLLING)),
    st.builds(append, names, st.binary(max_size=3)),
    st.builds(
        lambda name, first, count: by_writer(b"x" * count, first, first + count - 1, name=name),
        names,
        st.integers(0, 6),
        st.integers(1, 3),
    ),
    st.builds(SealRequest, names),
    st.builds(TruncateRequest, names, st.integers(0, 5)),
    st.builds(DeleteRequest, names),
    st.builds(
        lambda name, kind: AttributesRequest(name, [AttributeUpdate("n", 2, kind)]),
        names,
        st.sampled_from(KIND),
    ),
    st.builds(
        lambda target, sources: MergeRequest(target, sources, []),
        names,
        st.lists(names, min_size=1, max_size=2, unique=True),
    ),
    st.builds(lambda name: ExpireWritersRequest(name, [b"w"]), names),
)


@given(st.lists(requests, max_size=30))
def test_whatever_was_decided_can_be_applied(script: list[Request]) -> None:
    """C5: validation makes apply, publishing and encoding total."""
    parts = Parts()
    for request in script:
        try:
            parts.do(request)
        except TierlogError:
            continue

    for segment in parts.state.segments.by_id.values():
        assert segment.image()
        assert segment.durable_length == segment.length

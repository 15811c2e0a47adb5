"""Options: parsed once, refused with the option's name and what is allowed, secrets never shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.spark import ROOT
from tierlog.spark_bridge.options import (
    _NAMES,
    Delivery,
    Edge,
    Options,
    Rows,
    check_batch_read,
    check_batch_write,
    check_stream_read,
    check_stream_write,
    parse_options,
)
from tierlog.storage_backends.base.errors import InvalidArgument

URL = "http://127.0.0.1:8470"


def parsed(**given: str) -> Options:
    return parse_options(
        {"endpoint": URL, "segment": "app/events", **{key.lower(): value for key, value in given.items()}}
    )


def test_the_document_lists_every_option() -> None:
    text = (Path(ROOT) / "docs" / "spark.md").read_text(encoding="utf-8")
    chapter = text.partition("\n## Options\n")[2].partition("\n## ")[0]
    names = [line.split("|")[1] for line in chapter.splitlines() if line.startswith("| `")]

    assert {*re.findall(r"`(\w+)`", " ".join(names))} == {*_NAMES} - {"path"}


def test_two_options_are_enough() -> None:
    options = parse_options({"endpoint": URL + "/", "path": "app/events"})

    assert (options.endpoint, options.segment) == (URL, "app/events")
    assert (options.starting_offsets, options.ending_offsets) == (Edge.EARLIEST, Edge.LATEST)
    assert (options.delivery, options.rows, options.batch_bytes) == (
        Delivery.EXACTLY_ONCE,
        Rows.ARROW,
        4 << 20,
    )
    assert options.fail_on_data_loss
    assert options.include_metadata


def test_keys_come_in_any_case_and_sizes_with_units() -> None:
    options = parse_options(
        {
            "Endpoint": URL,
            "SEGMENTPREFIX": "app/",
            "maxBytesPerTrigger": "64 MiB",
            "batchbytes": "4096",
            "txnLease": "2 h",
        }
    )

    assert (options.segment, options.segment_prefix) == (None, "app/")
    assert (options.max_bytes_per_trigger, options.batch_bytes, options.txn_lease) == (64 << 20, 4096, 7200.0)


def test_offsets_are_an_edge_or_json() -> None:
    assert parsed(startingOffsets="Latest").starting_offsets is Edge.LATEST
    assert parsed(startingOffsets='{"app/events": 7}').starting_offsets == {"app/events": 7}


def test_sparks_own_options_are_ignored() -> None:
    assert parsed(checkpointLocation="/somewhere") == parsed()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffset": "latest"}, "no option 'startingoffset'; did you mean 'startingOffsets'"),
        ({"colour": "red"}, "no option 'colour'; there are endpoint, segment"),
        ({"startingOffsets": "newest"}, "option startingOffsets: 'earliest', 'latest' or JSON"),
        ({"startingOffsets": '{"app/events": -1}'}, "option startingOffsets: the offset of 'app/events'"),
        ({"startingOffsets": '{"a//b": 1}'}, "option startingOffsets: bad segment name"),
        ({"startingOffsets": "[" * 5000}, "option startingOffsets"),
        ({"minPartitions": "0"}, "option minPartitions: a whole number from 1"),
        ({"minPartitions": "٣"}, "option minPartitions"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: true or false"),
        ({"batchBytes": "1"}, "option batchBytes: .* from 4 KiB to 32 MiB"),
        ({"batchBytes": "64 m"}, "option batchBytes"),
        ({"txnLease": "1 d"}, "option txnLease"),
        ({"delivery": "at-most-once"}, "option delivery: 'exactly-once' or 'at-least-once'"),
        ({"txnId": "a b"}, "option txnId: 1 to 80 letters"),
        ({"txnAppId": ""}, "option txnAppId: a token's writer"),
        ({"segment": "a//b"}, "bad segment name"),
        (
            {"path": "app/other"},
            "option segment is 'app/events', and the argument of load or save is 'app/other'",
        ),
        ({"segmentPrefix": "app/"}, "name one segment"),
        ({"endpoint": "8470"}, "a server's URL"),
        ({"endpoint": "http://127.0.0.1:8470/v1"}, "has no path"),
        ({"endpoint": ""}, "option endpoint is missing"),
        ({"endpoint": f"{URL},,http://b:1"}, "address 2 of 3 is empty"),
        ({"direct": "yes"}, "option direct: 'auto' or 'always' or 'never'"),
        (
            {"storageLocation": "lts"},
            "option storageLocation: long-term storage is at an absolute path or s3",
        ),
        ({"storageLocation": "file:///lts"}, "option storageLocation"),
        ({"storageLocation": ""}, "option storageLocation"),
        ({"lts": "s3://B/x"}, "option lts: 's3://B/x' is not a location in S3"),
    ],
)
def test_errors_name_the_option(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parsed(**given)


def test_an_endpoint_has_several_addresses_with_commas_between_them() -> None:
    assert parsed(endpoint=f"{URL}/, http://b:1").endpoint == f"{URL},http://b:1"


def test_a_password_in_the_endpoint_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parsed(endpoint="http://me:hunter2@127.0.0.1:1")

    assert "hunter2" not in str(caught.value)


def test_a_password_in_a_location_is_refused_and_not_shown() -> None:
    for option in ("lts", "storageLocation"):
        with pytest.raises(InvalidArgument, match=f"option {option}") as caught:
            parsed(**{option: "s3://me:hunter2@bucket/prefix"})

        assert "hunter2" not in str(caught.value)


def test_a_store_without_a_service_needs_no_endpoint() -> None:
    options = parse_options({"lts": "/data", "path": "app/events"})

    check_batch_read(options)
    assert (options.endpoint, options.lts) == ("", "/data")
    with pytest.raises(InvalidArgument, match="option endpoint is missing"):
        parse_options({"path": "app/events"})


def test_the_value_of_an_unknown_option_is_not_shown() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parsed(token="hunter2")

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("check", "given", "words"),
    [
        (check_batch_read, {"maxBytesPerTrigger": "1"}, "is for streams"),
        (check_batch_read, {"startingOffsets": "latest"}, "reads nothing"),
        (check_batch_read, {"endingOffsets": "earliest"}, "reads nothing"),
        (check_stream_read, {"endingOffsets": "earliest"}, "reads nothing"),
        (check_batch_write, {"txnAppId": "a"}, "give both or neither"),
        (check_batch_write, {"txnVersion": "1"}, "give both or neither"),
        (check_batch_write, {"txnAppId": "a", "txnVersion": "1", "txnId": "b"}, "both name the write"),
        (
            check_batch_write,
            {"txnId": "b", "delivery": "at-least-once"},
            "have no effect with delivery 'at-least-once'",
        ),
        (check_batch_write, {"segment": "a#txn.b.c"}, "a name for staged data of transactions"),
        (check_stream_write, {"txnVersion": "1"}, "are for batch writes"),
        (check_stream_write, {"txnId": "b"}, "are for batch writes"),
        (check_batch_read, {"lts": "/data"}, "leave out endpoint and direct, or lts"),
        (check_stream_read, {"lts": "/data"}, "option lts is for batch reads"),
        (check_batch_write, {"lts": "/data"}, "option lts is for batch reads"),
        (check_stream_write, {"lts": "/data"}, "option lts is for batch reads"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    check: object, given: dict[str, str], words: str
) -> None:
    assert callable(check)
    with pytest.raises(InvalidArgument, match=words):
        check(parsed(**given))


def test_a_write_needs_a_segment_and_no_prefix() -> None:
    options = parse_options({"endpoint": URL, "segmentprefix": "app/"})

    with pytest.raises(InvalidArgument, match="a write has one target"):
        check_batch_write(options)


def test_what_goes_together_is_taken() -> None:
    check_batch_read(parsed(startingOffsets='{"app/events": 7}'))
    check_stream_read(parsed(maxBytesPerTrigger="1 MiB", startingOffsets="latest"))
    check_stream_read(parsed(direct="always", storageLocation="s3://bucket/prefix"))
    assert check_batch_write(parsed(txnAppId="a", txnVersion="0")) == "app/events"
    assert check_stream_write(parsed(txnAppId="a")) == "app/events"

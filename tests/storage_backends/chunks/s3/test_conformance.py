"""S3 chunks keep the contract, without and with write offsets, and behind a local chunk cache; with write
offsets only in what they do differently, unless ``--long`` is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chunk_caches import cached
from support.s3 import s3_storage
from support.s3_server import S3Server
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance as Every

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("reused_clients")]


def prefix_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}/"


class OnS3(Every):
    append = False

    @pytest.fixture(autouse=True)
    def _served(self, server: S3Server) -> None:
        server.page_size = 3
        self.url = server.url

    def make(self, folder: Path) -> ChunkStorage:
        return self.make_plain(folder)

    def make_plain(self, folder: Path) -> S3ChunkStorage:
        return s3_storage(self.url, prefix_of(folder), append=self.append)


class TestS3(OnS3):
    extended = (
        Every.test_a_chunk_is_read_in_pieces_of_any_size,
        Every.test_a_list_of_many_chunks_has_no_gap,
        Every.test_concurrent_creations_of_different_names_all_succeed,
        Every.test_every_name_of_the_grammar_can_be_a_chunks,
        Every.test_large_content_is_written_and_read_at_once,
        Every.test_many_cancelled_calls_use_nothing_up,
        Every.test_many_reads_of_one_chunk_do_not_mix,
        Every.test_verbs_on_many_chunks_at_once_all_work,
    )


class TestS3WithWriteOffsets(OnS3):
    append = True
    short = (
        Every.test_create_makes_an_empty_chunk,
        Every.test_create_refuses_an_existing_name,
        Every.test_writes_grow_a_chunk_at_its_end,
        Every.test_content_given_at_creation_can_grow,
        Every.test_a_write_of_nothing_changes_nothing,
        Every.test_a_write_at_another_offset_is_refused,
        Every.test_a_write_of_nothing_at_another_offset_is_refused_too,
        Every.test_a_write_to_a_missing_chunk_makes_none,
        Every.test_many_small_writes_are_kept_in_order,
        Every.test_two_chunks_grow_apart,
        Every.test_a_read_only_chunk_refuses_writes_until_it_is_writable_again,
        Every.test_a_read_only_chunk_is_read_and_deleted_like_any_other,
        Every.test_list_gives_each_chunk_once_in_order_with_its_length,
        Every.test_a_list_shows_the_length_after_a_write,
        Every.test_another_instance_sees_a_write,
        Every.test_a_reader_during_writes_sees_a_growing_prefix,
        Every.test_source_and_joined_chunk_grow_apart,
        Every.test_a_cancelled_write_leaves_a_prefix_of_its_bytes,
        Every.test_create_works_exactly_with_the_append_flag,
        Every.test_write_works_exactly_with_the_append_flag,
    )


class TestS3BehindACache(TestS3):
    short = ()

    def make(self, folder: Path) -> ChunkStorage:
        return cached(self.make_plain(folder), folder / "cache").storage


class TestS3WithWriteOffsetsBehindACache(TestS3WithWriteOffsets):
    def make(self, folder: Path) -> ChunkStorage:
        return cached(self.make_plain(folder), folder / "cache").storage

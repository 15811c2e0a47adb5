"""S3 chunks keep the contract: on our own server by small pages, with write offsets, and on moto's server as
a second judge of S3.

The last two do only what they may do differently, unless ``--long`` is given.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.s3 import s3_storage
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance as Every
from tierlog.testing.s3_server import LocalS3Server

pytestmark = [pytest.mark.one_loop, pytest.mark.usefixtures("reused_clients")]


def prefix_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}/"


class OnOurServer(Every):
    append = False

    @pytest.fixture(autouse=True)
    def _served(self, server: LocalS3Server) -> None:
        server.page_size = 3
        self.url = server.url

    def make(self, folder: Path) -> S3ChunkStorage:
        return s3_storage(self.url, prefix_of(folder), append=self.append)


class TestS3(OnOurServer):
    pass


class TestS3WithWriteOffsets(OnOurServer):
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
        Every.test_a_read_only_chunk_is_read_and_deleted_like_any,
        Every.test_list_gives_each_chunk_once_in_order_with_its_length,
        Every.test_a_list_tells_the_length_after_a_write,
        Every.test_another_instance_sees_a_write,
        Every.test_a_reader_beside_a_writer_sees_a_prefix_that_grows,
        Every.test_source_and_joined_chunk_grow_apart,
        Every.test_a_cancelled_write_leaves_a_prefix_of_its_bytes,
        Every.test_create_works_exactly_with_the_append_flag,
        Every.test_write_works_exactly_with_the_append_flag,
    )


class TestS3OnMoto(Every):
    short = (
        Every.test_content_comes_back_as_it_was_given,
        Every.test_no_buffers_make_an_empty_chunk,
        Every.test_an_existing_name_is_refused_and_its_chunk_untouched,
        Every.test_an_existing_empty_chunk_is_refused_like_any,
        Every.test_of_several_creators_of_one_name_one_wins,
        Every.test_info_of_a_missing_chunk_names_it,
        Every.test_a_deleted_chunk_is_gone,
        Every.test_deleting_a_missing_chunk_names_it,
        Every.test_a_name_can_be_made_again_after_its_delete,
        Every.test_reads_are_short_only_at_the_end,
        Every.test_reading_a_missing_chunk_names_it,
        Every.test_an_empty_chunk_reads_as_nothing,
        Every.test_list_gives_each_chunk_once_in_order_with_its_length,
        Every.test_deleting_what_is_listed_while_it_is_listed_skips_nothing,
        Every.test_a_refusal_names_the_source,
        Every.test_an_existing_target_is_refused_and_untouched,
        Every.test_a_read_only_chunk_is_read_and_deleted_like_any,
        Every.test_names_that_differ_a_little_are_different_chunks,
    )

    @pytest.fixture(autouse=True)
    def _served(self, moto_url: str) -> None:
        self.url = moto_url

    def make(self, folder: Path) -> S3ChunkStorage:
        return s3_storage(self.url, prefix_of(folder))

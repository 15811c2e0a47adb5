"""Names: those of the grammar work everywhere, others reach no backend."""

from __future__ import annotations

import pytest

from ...storage_backends.base.chunk_storage import NAME_BYTES_MAX, ChunkRange, ChunkStorage
from ...storage_backends.base.errors import ChunkExists, ChunkNotFound, InvalidArgument
from .suite import VERBS, ChunkSuite, names_in, refuses

GOOD_NAMES = [
    "a",
    "0",
    "A-b_c.d",
    "-",
    "_",
    "-rf",
    "--",
    "a..b",
    "a.",
    "a...",
    "containers/0001/0000000100000001/00000001-0000000000000000-0123456789abcdef0123456789abcdef",
    "scope/stream/0.#epoch.0$header",
    "scope/stream/0.#epoch.0$offset.1024",
    "$",
    "#",
    "#a$",
    "CON",
    "index.html",
    "a" * 255,
    "a" * 255 + "/" + "b" * 255 + "/",
    "/".join(["deep"] * 100),
    "/".join("abcdefghijklmnopqrstuvwxyz"),
]
GOOD_NAMES = [name.rstrip("/") for name in GOOD_NAMES]

BAD_NAMES = {
    "empty": "",
    "absolute": "/a",
    "trailing-slash": "a/",
    "double-slash": "a//b",
    "only-slash": "/",
    "parent-first": "../a",
    "parent-inside": "a/../b",
    "parent-last": "a/..",
    "parent-alone": "..",
    "here-alone": ".",
    "here-first": "./a",
    "here-last": "a/.",
    "dot-file": ".hidden",
    "dot-file-inside": "a/.b",
    "dot-folder": ".git/config",
    "temporary": ".tmp-0",
    "mark": ".tierlog-chunks",
    "three-dots": "...",
    "space": "a b",
    "space-first": " a",
    "tab": "a\tb",
    "newline-inside": "a\nb",
    "newline-last": "a\n",
    "return": "a\rb",
    "nul": "a\0b",
    "nul-last": "a\0",
    "escape": "a\x1bb",
    "delete-character": "a\x7f",
    "accent": "\u00e9",
    "combining": "e\u0301",
    "other-digits": "\u0661",
    "full-width": "\uff0e\uff0e/a",
    "right-to-left": "a\u202eb",
    "surrogate": "a\udc80",
    "emoji": "\U0001f600",
    "backslash": "a\\b",
    "backslash-parent": "..\\a",
    "drive": "C:a",
    "percent-parent": "%2e%2e/a",
    "percent-slash": "a%2Fb",
    "percent-nul": "a%00",
    "plus": "a+b",
    "star": "a*",
    "question": "a?b",
    "ampersand": "a&b",
    "quote": "a'b",
    "home": "~",
    "url": "file:///etc/passwd",
    "stream": "a:b",
    "part-too-long": "a" * 256,
    "too-long": "/".join(["a" * 200] * 3),
    "one-too-long": "a" * 255 + "/" + "b" * 255 + "/c",
}


class NameConformance(ChunkSuite):
    async def test_every_name_of_the_grammar_can_be_a_chunks(self, storage: ChunkStorage) -> None:
        for name in GOOD_NAMES:
            assert len(name) <= NAME_BYTES_MAX
            await storage.create_with_content(name, [b"abc"])
            assert await storage.exists(name)
            assert (await storage.info(name)).name == name
            assert await storage.read(name, 1, 1) == b"b"
            assert await names_in(storage) == [name]
            assert await names_in(storage, name) == [name]
            if storage.capabilities.concat:
                await storage.concat("joined", [ChunkRange(name, 0, 2)])
                await storage.delete("joined")
            await storage.delete(name)
            assert not await storage.exists(name)

    async def test_a_name_outside_the_grammar_is_refused_by_every_verb(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("source", [b"abc"])
        accepted = [
            f"{verb} {name!r}"
            for name in BAD_NAMES.values()
            for verb in VERBS
            if not await refuses(VERBS[verb](storage, name))
        ]
        accepted += [
            f"concat from {name!r}"
            for name in BAD_NAMES.values()
            if not await refuses(storage.concat("joined", [ChunkRange(name, 0, 1)]))
        ]

        assert accepted == []
        assert await names_in(storage) == ["source"]
        assert await storage.read("source", 0, 9) == b"abc"

    async def test_names_that_differ_a_little_are_different_chunks(self, storage: ChunkStorage) -> None:
        names = ["a", "aa", "a.", "a-", "a_", "a#", "a$", "a.a", "a0", "a00", "b/a", "b/a.", "b.a", "b-a"]
        for name in names:
            await storage.create_with_content(name, [name.encode()])

        assert {name: await storage.read(name, 0, 9) for name in names} == {
            name: name.encode() for name in names
        }

    async def test_a_folder_of_names_is_no_chunk(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a/b/c", [b"x"])
        for name in ("a", "a/b"):
            assert not await storage.exists(name)
            for verb in ("info", "read", "delete", "set_read_only"):
                with pytest.raises(ChunkNotFound):
                    await VERBS[verb](storage, name)
        assert await names_in(storage) == ["a/b/c"]

    async def test_below_a_chunk_there_is_no_chunk(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"x"])

        assert not await storage.exists("a/b")
        for verb in ("info", "read", "delete", "set_read_only"):
            with pytest.raises(ChunkNotFound):
                await VERBS[verb](storage, "a/b")
        assert await names_in(storage, "a/") == []

    @pytest.mark.parametrize(
        ("first", "second"), [("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c/d"), ("a/b/c", "a/b")]
    )
    async def test_a_name_that_is_another_names_folder_works_or_is_refused(
        self, storage: ChunkStorage, first: str, second: str
    ) -> None:
        await storage.create_with_content(first, [b"first"])
        try:
            await storage.create_with_content(second, [b"second"])
        except (ChunkExists, InvalidArgument):
            assert await names_in(storage) == [first]
        else:
            assert await names_in(storage) == sorted([first, second])
            assert await storage.read(second, 0, 9) == b"second"
        assert await storage.read(first, 0, 9) == b"first"

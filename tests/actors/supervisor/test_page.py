"""The status page on a phone: what is wider than the screen scrolls in a box of its own, or wraps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from typing import Any

import anyio
import pytest

from support.fake_hosts import FakeHostsSupervisor
from tierlog.actors.supervisor.page import status_page

PHONE = 360
"""Pixels of a narrow screen."""
PIXELS = {"px": 1.0, "rem": 15.0, "em": 15.0}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.metas: dict[str, str] = {}
        self.texts: list[tuple[tuple[str, ...], str]] = []
        """(the elements around it, text) of all text."""
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.attributes += found
        if tag == "meta":
            self.metas[found.get("name", "")] = found.get("content", "")
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((tuple(self.open), data))

    @property
    def style(self) -> dict[str, dict[str, str]]:
        """The declarations of each selector."""
        [text] = [data for around, data in self.texts if around[-1] == "style"]
        found: dict[str, dict[str, str]] = {}
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
            declared = {name: value.strip() for name, value in re.findall(r"([\w-]+)\s*:([^;]+)", body)}
            for selector in selectors.split(","):
                found.setdefault(selector.strip(), {}).update(declared)
        return found


async def status_of_two_hosts() -> dict[str, Any]:
    return FakeHostsSupervisor(3, 2).view().document()


@pytest.fixture
def page() -> Page:
    status = anyio.run(status_of_two_hosts)
    status["folder"] = "/srv/" + "folder" * 30
    for each in status["containers"]:
        each["reason"] = "Unavailable: " + "chunk" * 40
    return Page(status_page(status, escape))


def lengths(style: dict[str, dict[str, str]], names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """(selector, pixels) of each length that one of these properties has."""
    for selector, declared in style.items():
        for name in names:
            for number, unit in re.findall(r"([\d.]+)(px|rem|em)\b", declared.get(name, "")):
                yield selector, float(number) * PIXELS[unit]


def test_a_phone_shows_the_page_at_its_own_width(page: Page) -> None:
    assert "width=device-width" in page.metas["viewport"]


def test_nothing_is_wider_than_a_phone_by_its_style(page: Page) -> None:
    style = page.style
    assert list(lengths({"x": {"width": "30rem"}}, ("width",))) == [("x", 450.0)]
    assert all(pixels <= PHONE for _, pixels in lengths(style, ("width", "min-width")))
    assert all(pixels <= PHONE / 10 for _, pixels in lengths(style, ("margin", "padding")))
    assert not any(declared.get("white-space") in {"nowrap", "pre"} for declared in style.values())
    assert not {"style", "width", "nowrap"} & set(page.attributes)


def test_tables_scroll_in_a_box_of_their_own_and_other_text_wraps(page: Page) -> None:
    style = page.style
    assert style["div"]["overflow-x"] == "auto"
    assert style["p"]["overflow-wrap"] == "anywhere"
    shown = [(around, text) for around, text in page.texts if "body" in around]
    assert any("table" in around for around, _ in shown)
    for around, text in shown:
        if "table" in around:
            assert around[around.index("table") - 1] == "div"
        elif "p" not in around:
            assert max(map(len, text.split())) < 20, "long words wrap in paragraphs only"

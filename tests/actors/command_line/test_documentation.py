"""Every command and option is in docs/cli.md, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tierlog.actors.cli.app import app
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.supervisor.hosts import joined_id_refusal
from tierlog.actors.supervisor.service import PORT_MAX

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path, groups left out."""
    for name, inner in group.commands.items():
        if hasattr(inner, "commands"):
            yield from commands(inner, (*path, name))
        else:
            yield (*path, name), inner


def test_every_command_and_option_is_documented_and_has_help() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    tree = typer.main.get_command(app)
    shared = text.split("## Two kinds", 1)[0]
    sections = {part.split("\n", 1)[0].strip("` "): part for part in text.split("### ")[1:]}
    missing = [
        option for parameter in tree.params for option in parameter.opts if f"`{option}`" not in shared
    ]

    for path, inner in commands(tree):
        call = " ".join(("tierlog", *path))
        section = next(
            (part for head, part in sections.items() if head == call or head.startswith(call + " ")), None
        )
        missing += [call] if section is None or not inner.help else []
        for parameter in inner.params:
            options = [option for option in parameter.opts if option.startswith("--")]
            missing += [f"{call} {option}" for option in options if option not in (section or "") + shared]
            missing += [f"{call} {option}: no help" for option in options if not parameter.help]

    assert missing == []


def test_the_help_names_defaults_and_limits_of_addresses_and_ids() -> None:
    helps = {
        (" ".join(path), option): parameter.help
        for path, command in commands(typer.main.get_command(app))
        for parameter in command.params
        for option in parameter.opts
    }
    server = StoreConfig().server
    for command, port in (("serve", server.port), ("supervise", server.port), ("host run", server.host_port)):
        assert f"at most {PORT_MAX}" in helps[command, "--listen"]
        assert helps[command, "--listen"].endswith(f", {server.listen}:{port}.")
    assert "up to 32 letters" in helps["host run", "--id"]
    assert "none like host-0" in helps["host run", "--id"]
    refused = [text for text in ("a" * 32, "a" * 33, "host-0", "-a") if joined_id_refusal(text)]
    assert refused == ["a" * 33, "host-0", "-a"]


def test_every_command_that_is_documented_exists() -> None:
    known = {" ".join(("tierlog", *path)) for path, _ in commands(typer.main.get_command(app))}
    heads = [
        line[4:].strip("`").split()
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("### ")
    ]
    documented = {" ".join(word for word in head if word.islower() and "/" not in word) for head in heads}

    assert documented == known


def test_every_command_that_prints_a_result_has_json() -> None:
    tree = typer.main.get_command(app)
    without = {
        " ".join(path)
        for path, command in commands(tree)
        if not any("--json" in parameter.opts for parameter in command.params)
    }

    assert without == {"lts cat", "segment read", "segment tail", "serve", "supervise", "host run"}

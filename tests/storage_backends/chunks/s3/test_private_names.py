"""The private names of libraries that the S3 storage uses, because nothing public turns off the retry on a
kept connection, or gives the class of requests. ``pyproject.toml`` bounds the versions of both libraries."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import anyio
from aiobotocore.httpsession import AIOHTTPSession

import tierlog

_NAMING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Attribute, ast.Import, ast.ImportFrom)
"""The nodes that define a name or take one from elsewhere."""
_PRIVATE = re.compile(r"(?:^|\.)_(?!_)\w")


def test_aiobotocore_makes_its_session_in_the_method_that_is_overridden() -> None:
    assert list(inspect.signature(AIOHTTPSession._get_session).parameters) == ["self", "proxy_url"]


def test_aiohttp_reads_the_attributes_that_are_set() -> None:
    async def read() -> None:
        async with aiohttp.ClientSession() as session:
            assert session._retry_connection is True
            assert session._request_class is aiohttp.ClientRequest

    anyio.run(read)


def test_no_other_private_name_is_used() -> None:
    """In the whole product: imports, and attributes that no class of the product defines or inherits."""
    modules = [ast.parse(path.read_text()) for path in _product()]
    nodes = [node for module in modules for node in ast.walk(module) if isinstance(node, _NAMING)]
    defined = set().union(*map(_defined, nodes))
    used = {name for node in nodes for name in _used(node, defined)}
    documented = {"os._exit"}  # public in spite of its name
    assert used - documented == {"_get_session", "_request_class", "_retry_connection", "_thread"}


def _product() -> Iterator[Path]:
    root = Path(tierlog.__file__).parent
    yield from root.glob("*.py")
    for folder in ("actors", "journal", "spark_bridge", "storage_backends", "testing"):
        yield from (root / folder).rglob("*.py")


def _defined(node: ast.AST) -> set[str]:
    """The functions, classes and attributes that a node of the product defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.ClassDef(body=body):
            return {
                each.target.id
                for each in body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
        case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
            return {name}
        case _:
            return set()


def _used(node: ast.AST, defined: set[str]) -> list[str]:
    """The private names that a node takes from a library. A call of ``super()`` counts, although the product
    defines the override."""
    match node:
        case ast.Import(names=names):
            found = [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            found = [module, *(alias.name for alias in names)]
        case ast.Attribute(value=ast.Call(func=ast.Name("super")), attr=name):
            found = [name]
        case ast.Attribute(value=ast.Name("os"), attr=name):
            found = [f"os.{name}"]
        case ast.Attribute(attr=name) if name not in defined:
            found = [name]
        case _:
            return []
    return [name for name in found if _PRIVATE.search(name)]

"""The configuration as a file: ``tierlog.toml`` read into ``StoreConfig``, and written from it.

``ConfigError`` names the file and each mistake by the full path of its setting, with what is allowed, or with
what may be meant.
"""

from __future__ import annotations

import os
import stat
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from ...storage_backends.base.errors import ConfigError
from ...storage_backends.base.os_errors import reason_of
from .configuration import StoreConfig, setting_of, table_of
from .units import Setting

if TYPE_CHECKING:
    from cattrs import Converter

_MISTAKES_SHOWN = 5
_FILE_BYTES_MAX = 1 << 20


def load_config(path: str | os.PathLike[str]) -> StoreConfig:
    """Read a TOML file. Settings that it leaves out have their defaults.

    Raises ``ConfigError`` if the file cannot be read, is not TOML, or has an unknown setting or a value that
    is not allowed.
    """
    try:
        file = os.fspath(path)
    except TypeError:
        raise ConfigError(
            f"the file must be a str or a pathlib.Path, not {type(path).__name__}; StoreConfig() has the "
            f"defaults"
        ) from None
    try:
        return decode_config(_read(file))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None  # the message names the cause


def _read(file: str) -> bytes:
    try:
        # Opening a pipe would wait for its other end, and a device may never end.
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError("this is not a regular file")
            data = stream.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise ConfigError("no such file; `tierlog init` writes one with the defaults") from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {reason_of(error)}") from error
    except ValueError as error:  # for a path that no file can have
        raise ConfigError(f"cannot be read: {error}") from error

    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"it is larger than {_FILE_BYTES_MAX} bytes, so it is not a configuration")
    return data


def decode_config(data: bytes) -> StoreConfig:
    """The configuration in a TOML file's bytes. Raises ``ConfigError``."""
    import tomllib  # an opening without a file does not wait for it

    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        # tomllib also raises these, for huge numbers and deep nesting.
        raise ConfigError(f"not valid TOML: {error}") from error
    return parse_config(tables)


def parse_config(tables: Mapping[str, object]) -> StoreConfig:
    """The configuration in parsed TOML. Raises ``ConfigError`` with all mistakes, five at most."""
    from cattrs import BaseValidationError

    try:
        return _converter().structure(tables, StoreConfig)
    except BaseValidationError as error:
        raise ConfigError("; also ".join(islice(_mistakes(error, ""), _MISTAKES_SHOWN))) from None


class _NotATable(TypeError):
    """A table was expected where a value is."""


@cache
def _converter() -> Converter:
    # Imported with the first file that is read: most stores are opened without one.
    from cattrs import Converter
    from cattrs.gen import make_dict_structure_fn, override

    converter = Converter(detailed_validation=True)

    def table_hook(kind: type[Any]) -> Callable[[Any, Any], Any]:
        overrides: dict[str, Any] = {
            field.name: override(struct_hook=partial(_read_setting, setting))
            for field in attrs.fields(kind)
            if (setting := setting_of(field)) is not None
        }
        structure = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **overrides)

        def hook(value: Any, _: Any) -> Any:
            if not isinstance(value, Mapping):
                raise _NotATable
            return structure(value, kind)

        return hook

    converter.register_structure_hook_factory(attrs.has, table_hook)
    return converter


def _read_setting(setting: Setting, value: object, _: object) -> Any:
    return setting.read(value)


def _mistakes(error: BaseException, path: str) -> Iterator[str]:
    """What is wrong, by the full path of each setting. ``path``: of the table or the setting."""
    from cattrs import ClassValidationError, ForbiddenExtraKeysError

    if isinstance(error, ClassValidationError):
        of_fields, of_table = error.group_exceptions()
        for inner, note in of_fields:
            yield from _mistakes(inner, f"{path}.{note.name}".lstrip("."))
        for inner in of_table:
            yield from _mistakes(inner, path)
    elif isinstance(error, ForbiddenExtraKeysError):
        # A set: messages must not depend on its order.
        for key in sorted(error.extra_fields):
            unknown = f"{path}.{key}".lstrip(".")
            yield f"there is no setting {unknown!r}{_did_you_mean(unknown)}"
    elif isinstance(error, _NotATable):
        yield f"{path} is a table, not a value: write [{path}] on a line of its own and its settings below it"
    else:
        yield str(error) if isinstance(error, ConfigError) else f"{path}: {error}"


def _all_paths() -> list[str]:
    """The full path of every setting, and the name of every table."""
    paths = []
    for field in attrs.fields(StoreConfig):
        paths.append(field.name)
        if setting_of(field) is None:
            paths += [f"{field.name}.{inner.name}" for inner in attrs.fields(table_of(field))]

    return paths


def _did_you_mean(path: str) -> str:
    import difflib  # only mistakes need it

    paths = _all_paths()
    name = path.rpartition(".")[2]
    # A right name in the wrong table is more likely than a typo.
    elsewhere = [known for known in paths if known.rpartition(".")[2] == name]
    close = elsewhere or difflib.get_close_matches(path, paths, n=1, cutoff=0.6)
    return (
        f"; did you mean {' or '.join(map(repr, close))}?"
        if close
        else "; `tierlog init` writes a file with all of them"
    )


_HEAD = """\
# The configuration of a tierlog store. Every setting is here with its default; a line that is left out means
# the default. Sizes are bytes, as 1048576 or "1 MiB". Durations are seconds, as 0.5 or "500 ms". Shares are
# fractions, as 0.6 or "60 %".
"""


def render_config(config: StoreConfig) -> str:
    """The configuration as a commented TOML file that ``load_config`` reads back as an equal value."""
    parts = [_HEAD, *_render_settings(config)]
    for field in attrs.fields(StoreConfig):
        if setting_of(field) is None:
            table = getattr(config, field.name)
            title = " ".join((type(table).__doc__ or "").split())
            parts += ["", *_comment(title), f"[{field.name}]", *_render_settings(table)]

    return "\n".join(parts) + "\n"


def _comment(text: str) -> list[str]:
    """As lines of at most 110 columns; names such as layout-upgrade stay whole."""
    return textwrap.wrap(
        text,
        110,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _render_settings(table: attrs.AttrsInstance) -> Iterator[str]:
    for field in attrs.fields(type(table)):
        setting = setting_of(field)
        if setting is not None:
            yield from _comment(f"{setting.help} ({setting.range})")
            yield f"{field.name} = {setting.show_toml(getattr(table, field.name))}"

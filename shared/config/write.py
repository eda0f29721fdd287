"""Writes a list of rungs into a config file, or leaves the file as it was."""

import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shared.config.edit import with_list
from shared.config.explain import KeyPath
from shared.config.load import serving_from
from shared.config.overrides import read_overrides
from shared.config.serving import ServingConfig
from shared.config.yaml import parse_mapping, read_text

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def write_rungs(
    path: Path, key: KeyPath, rungs: Sequence[int], environ: Mapping[str, str] = os.environ
) -> ServingConfig:
    """Sets the rungs at `key` in a shared config; all else in the file stays, character for character.

    The file is replaced at once, when what it will say has been checked.

    Returns:
        The config as the file now says it, without variables that set the key.

    Raises:
        ConfigError: the file cannot be read or edited, or would be refused with these rungs.
        OSError: it cannot be written.
    """
    text = read_text(path)
    edited = with_list(text, key, rungs, str(path))
    written = serving_from(parse_mapping(edited, str(path)), path, _without(key, environ))
    if edited != text:
        _replace(path.resolve(), edited)
    return written


def overriding_variables(key: KeyPath, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The environment variables that set a key of the shared config, or what it holds.

    Raises:
        ConfigError: a variable is malformed.
    """
    return [override.variable for override in read_overrides("SERVING", environ) if override.sets(key)]


def _without(key: KeyPath, environ: Mapping[str, str]) -> dict[str, str]:
    left_out = overriding_variables(key, environ)
    return {name: value for name, value in environ.items() if name not in left_out}


def _replace(path: Path, text: str) -> None:
    """Puts a new file in the place of an old one, with its mode and, where allowed, its owner."""
    with path.open("r+b") as file:  # refuses a file that may not be written
        mark = _BYTE_ORDER_MARK if file.read(3) == _BYTE_ORDER_MARK else b""
    before = path.stat()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(mark + text.encode())
            file.flush()
            os.fsync(descriptor)
        with suppress(PermissionError):
            os.chown(name, before.st_uid, before.st_gid)
        os.chmod(name, stat.S_IMODE(before.st_mode))  # noqa: PTH101
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        os.unlink(name)  # noqa: PTH108
        raise

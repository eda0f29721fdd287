"""Environment variables that override config keys: `BATON_<SECTION>__<KEY>__<KEY>=<YAML value>`.

Names are case-insensitive; `__` separates levels, so `BATON_SERVING__KV__BLOCK_SIZE=16` sets `kv.block_size`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from shared.config.yaml import parse
from shared.errors import ConfigError

SECTIONS = ("SERVING", "PREFILL", "DECODE")


@dataclass(frozen=True)
class Override:
    """One variable: the key path that it sets, and the value."""

    variable: str
    path: tuple[str, ...]
    value: object

    def sets(self, path: Sequence[str]) -> bool:
        """Whether the value at `path` comes from this variable: it set the key itself, one above it, or one inside."""
        return all(mine == theirs.partition("[")[0] for mine, theirs in zip(self.path, path, strict=False))


def read_overrides(section: str, environ: Mapping[str, str]) -> list[Override]:
    """The variables of one section (SERVING, PREFILL or DECODE), outer keys before the keys inside them.

    Raises:
        ConfigError: a variable names no section, its value is not YAML, or two variables set the same key.
    """
    overrides: dict[tuple[str, ...], Override] = {}
    for variable, text in sorted(environ.items()):
        head, separator, rest = variable.partition("__")
        prefix, _, named_section = head.upper().partition("_")
        if prefix != "BATON" or not separator:
            continue
        if named_section not in SECTIONS:
            raise ConfigError(_unknown_section(variable, named_section), metadata={"variable": variable})
        if named_section != section:
            continue
        path = tuple(rest.lower().split("__"))
        if path in overrides:
            message = f"{variable}: found {overrides[path].variable} too; needs one variable for a key"
            raise ConfigError(message, metadata={"variable": variable})
        overrides[path] = Override(variable, path, parse(text, variable))
    return sorted(overrides.values(), key=lambda override: len(override.path))


def apply(overrides: Sequence[Override], mapping: Mapping[object, object]) -> dict[object, object]:
    """A copy of `mapping` with the overridden keys set; an override replaces whatever stands in its way."""
    result = dict(mapping)
    for override in overrides:
        result = _with(result, override.path, override.value)
    return result


def _with(mapping: Mapping[object, object], path: Sequence[str], value: object) -> dict[object, object]:
    key, *inner_path = path
    if not inner_path:
        return {**mapping, key: value}
    inner = mapping.get(key)
    return {**mapping, key: _with(inner if isinstance(inner, Mapping) else {}, inner_path, value)}


def _unknown_section(variable: str, section: str) -> str:
    close = get_close_matches(section, SECTIONS, n=1)
    hint = f" (did you mean BATON_{close[0]}__?)" if close else ""
    return f"{variable}: found an unknown section; needs one of {', '.join(f'BATON_{s}__' for s in SECTIONS)}{hint}"

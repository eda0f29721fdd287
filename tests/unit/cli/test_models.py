from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import models
from cli.main import app
from shared.engine.models.registry import ImportProgress

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def _put(cache: Path, name: str) -> Path:
    folder = cache / "models" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_cached_model_is_named_and_nothing_else_said(cache: Path) -> None:
    folder = _put(cache, "smollm2-135m-instruct")
    result = run(app, ["model", "import", "smollm2-135m-instruct"])
    assert result.exit_code == 0
    assert result.stdout == f"{folder}\n"
    assert result.stderr.strip() == ""


def test_an_unknown_model_fails_with_a_plain_message() -> None:
    result = run(app, ["model", "import", "no-such-model"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "no-such-model" in result.stderr
    assert "smollm2-135m-instruct" in result.stderr


def test_the_list_shows_built_in_and_imported_models(cache: Path) -> None:
    folder = _put(cache, "mine")
    (folder / "model.safetensors").write_bytes(b"x" * 3_000_000)
    result = run(app, ["model", "list"])
    assert result.exit_code == 0
    lines = {line.split()[1]: line for line in result.stdout.splitlines() if line.startswith("│")}
    assert "not imported yet" in lines["smollm2-135m-instruct"]
    assert "3 MB" in lines["mine"]
    assert str(folder) in lines["mine"]


def test_an_import_shows_a_full_bar_for_each_stage(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_import(name_or_gguf: str, name: str | None, on_progress: Callable[[ImportProgress], None]) -> Path:
        on_progress(ImportProgress("downloading", None))
        on_progress(ImportProgress("converting", 0.5))
        return cache / f"{name_or_gguf}-{name}"

    monkeypatch.setattr(models, "import_model", fake_import)
    result = run(app, ["model", "import", "a.gguf", "--name", "mine"])
    assert result.stdout == f"{cache}/a.gguf-mine\n"
    bars = [line.split() for line in result.stderr.splitlines() if line.strip()]
    assert [(words[0], words[2]) for words in bars] == [("downloading", "100%"), ("converting", "100%")]

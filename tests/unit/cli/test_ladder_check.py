"""`baton ladder check`: every malformed file through the command, and what it does not import."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.unit.config.malformed_ladders import LADDERS
from tests.unit.config.malformed_settings import SETTINGS
from tests.unit.config.unreadable import UNREADABLE

MALFORMED = {**SETTINGS, **LADDERS}
run = CliRunner().invoke


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_2_with_file_key_and_reason(name: str, tmp_path: Path) -> None:
    text, key, reason = MALFORMED[name]
    file = tmp_path / "serving.yaml"
    file.write_text(text)
    result = run(app, ["ladder", "check", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {file}: {key}: {reason}\n"


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_holds_no_mapping_is_2_with_the_reason(name: str, tmp_path: Path) -> None:
    content, reason = UNREADABLE[name]
    file = tmp_path / "serving.yaml"
    file.write_bytes(content)
    result = run(app, ["ladder", "check", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {file}: {reason}\n"


def test_files_that_are_not_there_or_are_none_are_2(tmp_path: Path) -> None:
    result = run(app, ["ladder", "check", str(tmp_path / "missing.yaml")])
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path}/missing.yaml: found no such file; needs a YAML file\n"
    result = run(app, ["ladder", "check", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path}: found a directory; needs a YAML file\n"


def test_a_right_file_is_0_and_ok(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text("max_batch_tokens: {prefill: 64}")
    result = run(app, ["ladder", "check", str(file)])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{file}: ok\n", "")


def test_the_default_is_the_shipped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(app, ["ladder", "check"])
    shipped = Path(__file__).parents[3] / "configs" / "serving.yaml"
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{shipped}: ok\n", "")


def test_cautions_do_not_fail_the_check(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text("max_batch_tokens: {prefill: 64}\nprefill_token_buckets: {prefill: {prefill_text: [32]}}")
    result = run(app, ["ladder", "check", str(file)])
    assert (result.exit_code, result.stdout) == (0, f"{file}: ok\n")
    assert result.stderr == (
        "caution: prefill.prefill_text may run steps of 64 tokens and its top rung is 32: while work waits, "
        "steps are cut to the top rung; larger ones run unpadded, "
        "without a capture\n"
    )


def test_variables_count_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text("{}")
    monkeypatch.setenv("BATON_SERVING__KV__BLOCK_SIZE", "16")
    result = run(app, ["ladder", "check", str(file)])
    assert (result.exit_code, result.stdout) == (0, f"{file}: ok\n")
    assert result.stderr == "note: BATON_SERVING__KV__BLOCK_SIZE overrides what the file says\n"
    monkeypatch.setenv("BATON_SERVING__KV__BLOCK_SIZE", "none")
    result = run(app, ["ladder", "check", str(file)])
    assert result.exit_code == 2
    assert result.stderr == (
        'error: BATON_SERVING__KV__BLOCK_SIZE: kv.block_size: found "none"; needs an integer ≥ 1\n'
    )


CHECK = """
import sys
from cli.main import main
try:
    main()
finally:
    heavy = {"torch", "numpy", "matplotlib", "transformers", "tokenizers", "safetensors", "huggingface_hub"}
    print(sorted(heavy & sys.modules.keys()))
"""


@pytest.mark.parametrize(("text", "exit_code"), [("{}", 0), ("kv: 1", 2), ("kv: [", 2)])
def test_a_check_imports_nothing_heavy(text: str, exit_code: int, tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(text)
    command = [sys.executable, "-c", CHECK, "ladder", "check", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == exit_code
    assert result.stdout.splitlines()[-1] == "[]"

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

run = CliRunner().invoke


def test_version_and_help() -> None:
    assert run(app, ["--version"]).stdout.strip() == version("baton")
    for arguments in (["--help"], ["generate", "--help"], ["up", "-h"], ["model", "--help"]):
        result = run(app, arguments)
        assert result.exit_code == 0
        assert "Usage: baton" in result.stdout or "Usage: root" in result.stdout


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, cli.main\n"
        "try: cli.main.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'grpc', 'google', 'pydantic', 'shared'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["generate", "a", "--no-such-option"],
        ["generate", "a", "--temperature", "warm"],
        ["generate", "a", "--top-k", "-1"],
        ["generate", "a", "--system", "be kind"],
        ["generate", "a", "--token-ids"],
        ["generate", "a", "--target", " , "],
        ["up", "--prefill", "0", "--decode", "0"],
        ["up", "--prefill", "-1"],
        ["model", "import"],
    ],
)
def test_bad_usage_is_2(arguments: list[str]) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_standard_input_that_is_no_text_is_bad_usage() -> None:
    result = run(app, ["generate", "-"], input=b"\xff\xfe")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


@pytest.mark.parametrize(("content", "message"), [("sorts: 1", "sorts"), ("port: [", "prefill.yaml")])
def test_a_wrong_config_is_2_and_says_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    config = tmp_path / "prefill.yaml"
    config.write_text(content)
    result = run(app, ["up", "--prefill-config", str(config)])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.main import app

run = CliRunner().invoke


def test_version_and_help() -> None:
    assert run(app, ["--version"]).stdout.strip() == version("baton")
    for arguments in (["--help"], ["generate", "--help"], ["up", "-h"], ["model", "--help"]):
        result = run(app, arguments)
        assert result.exit_code == 0
        assert "Usage: baton" in result.stdout or "Usage: root" in result.stdout


def _commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, *names, name)


def test_help_shows_every_word_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words in brackets were taken for markup, and left out."""
    monkeypatch.setenv("COLUMNS", "300")
    seen = []
    for names, command in _commands(typer.main.get_command(app)):
        shown = run(app, [*names, "--help"]).stdout
        helps = [parameter.help for parameter in command.params]
        for text in (*helps, *(command.help or "").split("\n\n")):
            assert text
            assert " ".join(text.split()) in " ".join(shown.split())
        seen.append(names)
    assert {("generate",), ("up",), ("model", "import"), ("model", "list")} <= set(seen)


def test_help_of_up_names_the_default_files_and_what_it_does_not_do() -> None:
    shown = run(app, ["up", "--help"]).stdout
    for name in ("serving", "prefill", "decode"):
        assert f"(configs/{name}.yaml)" in shown
    assert "is not started again" in " ".join(shown.split())


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
class Interrupter:
    def find_spec(self, name, *_):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
module, interrupted, *sys.argv[1:] = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
sys.meta_path.insert(0, Interrupter())
if module == "baton":
    from cli.main import main
    main()
else:
    runpy.run_module(module, run_name="__main__")
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["baton", "typer", "--help"],
        ["baton", "rich", "--help"],
        ["baton", "grpc", "generate", "a"],
        ["baton", "grpc._cython", "generate", "a"],
        ["baton", "pydantic", "up"],
        ["baton", "cli.models", "model", "list"],
        ["cli.demo", "grpc"],
        ["cli.demo", "cli.stats"],
    ],
)
def test_ctrl_c_during_an_import_is_130_and_silent(arguments: list[str]) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_a_sigint_that_is_ignored_stays_so() -> None:
    program = (
        "import os, signal\n"
        "from cli.start import interrupts_exit\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "with interrupts_exit(): os.kill(os.getpid(), signal.SIGINT)\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


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
        ["generate", "a", "--n", "two"],
        ["generate", "a", "--logprobs", "1.5"],
        ["generate", "a", "--logit-bias", "5"],
        ["generate", "a", "--regex", "a", "--choice", "a"],
        ["generate", "a", "--json-schema", "@/no/such/file"],
        ["generate", "a", "--prompt-token-ids"],
        ["generate", "a", "--chat", "--messages", "-"],
        ["generate", "a", "--embeddings", "/no/such/file.npy"],
        ["generate", "a", "--no-generation-prompt"],
        ["chat", "--temperature", "warm"],
        ["chat", "--logit-bias", "5"],
        ["chat", "--target", "foo"],
        ["chat", "--timeout", "0"],
        ["chat", "a"],
        ["generate", "a", "--target", " , "],
        ["generate", "a", "--target", "foo"],
        ["generate", "a", "--timeout", "inf"],
        ["generate", "a", "--timeout", "nan"],
        ["generate", "a", "--timeout", "0"],
        ["generate", "a", "--timeout", "-1"],
        ["up", "--ready-timeout", "nan"],
        ["up", "--ready-timeout", "0"],
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

import sys
from pathlib import Path

import pytest

from cli import demo
from cli.fleet import ProcessSpec
from cli.layout import Layout, free_port
from tests.integration.client.echo_server import SERVICE
from tests.integration.client.stand_in import __file__ as stand_in

ROOT = Path(__file__).parents[3]
ECHO = """
import asyncio, sys
from tests.integration.client.echo_server import running_server
async def main():
    async with running_server(int(sys.argv[1])):
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _lay_out(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    port = free_port()
    environment = {"PYTHONPATH": str(ROOT), "STAND_IN_NAME": "decode-0"}
    filled = tuple(word.format(port=port) for word in command)
    spec = ProcessSpec("decode-0", "decode", filled, "127.0.0.1", port, free_port(), SERVICE, environment)
    monkeypatch.setattr(demo, "lay_out", lambda *_args, **_kwargs: Layout((spec,), 1.0))


def test_the_prompt_is_continued_and_everything_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], temporary: Path
) -> None:
    _lay_out(monkeypatch, sys.executable, "-c", ECHO, "{port}")
    monkeypatch.setenv("PROMPT", "a b c")
    assert demo.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("started decode-0: pid ")
    assert lines[1:4] == ["ready", "", "a b c" + "".join(f"{token} " for token in range(4, 68))]
    assert lines[5].startswith("3 prompt tokens (1 cached), 64 generated, finished: length")
    assert lines[6:] == ["stopped both services"]
    assert not list(temporary.iterdir()), "no log is left behind"


def test_without_a_prompt_a_question_is_asked_as_a_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _lay_out(monkeypatch, sys.executable, "-c", ECHO, "{port}")
    monkeypatch.setenv("PROMPT", "")
    assert demo.main() == 0
    num_words = len(demo.QUESTION.split())
    assert f"{demo.QUESTION}\n\n{num_words + 1} {num_words + 2} " in capsys.readouterr().out


def test_a_failure_shows_the_end_of_the_log_and_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], temporary: Path
) -> None:
    _lay_out(monkeypatch, sys.executable, stand_in, "{port}", SERVICE, "--exit-at-once", "3")
    assert demo.main() == 1
    (log,) = temporary.iterdir()
    assert capsys.readouterr().err.splitlines() == [
        "error: decode-0 exited with code 3 before it was ready",
        "decode-0 | hello from decode-0",
        "decode-0 | about to fail",
        f"the services' log: {log}",
    ]


def test_a_wrong_config_is_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BATON_DECODE__PROT", "1")
    assert demo.main() == 2
    assert "prot" in capsys.readouterr().err

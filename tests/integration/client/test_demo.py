import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cli import demo
from cli.fleet import ProcessSpec
from cli.layout import Layout, free_port
from tests.integration.client.echo_server import SERVICE
from tests.integration.client.stand_in import __file__ as stand_in

ROOT = Path(__file__).parents[3]
ECHO = """
import asyncio, os, signal, sys
from tests.integration.client.echo_server import running_server
async def main():
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    async with running_server(int(sys.argv[1])) as server:
        server.servicer.silent_after = int(os.environ["SILENT_AFTER"]) if "SILENT_AFTER" in os.environ else None
        await asked.wait()
    if "DRAINED" in os.environ:
        open(os.environ["DRAINED"], "w").close()
asyncio.run(main())
"""
IN_A_PROCESS = """
import sys
from cli import demo
from tests.integration.client import test_demo
demo.lay_out = lambda *_args, **_kwargs: test_demo.layout(sys.executable, "-c", test_demo.ECHO, "{port}")
sys.exit(demo.main())
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def layout(*command: str) -> Layout:
    port = free_port()
    environment = {"PYTHONPATH": str(ROOT), "STAND_IN_NAME": "decode-0"}
    filled = tuple(word.replace("{port}", str(port)) for word in command)
    spec = ProcessSpec("decode-0", "decode", filled, "127.0.0.1", port, free_port(), SERVICE, environment)
    return Layout((spec,), 1.0, Path(tempfile.gettempdir()))


def _lay_out(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    monkeypatch.setattr(demo, "lay_out", lambda *_args, **_kwargs: layout(*command))


def _start_demo(temporary: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "PROMPT": "a b c", "PYTHONUNBUFFERED": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


def test_ctrl_c_lets_the_processes_end_and_is_130(temporary: Path) -> None:
    drained = temporary / "drained"
    with _start_demo(temporary, SILENT_AFTER="2", DRAINED=str(drained)) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("ready"):
            pass
        assert process.stdout.read(len("\na b c4 5 ")) == "\na b c4 5 "
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert list(temporary.iterdir()) == [drained], "the process ended by itself, and no log is left behind"


def test_a_reader_that_leaves_ends_the_demo_without_a_word(temporary: Path) -> None:
    drained = temporary / "drained"
    with _start_demo(temporary, DRAINED=str(drained)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("started decode-0: pid ")
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert list(temporary.iterdir()) == [drained]


def test_what_a_dead_process_leaves_in_shared_memory_is_removed(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    segment = temporary / "baton-kv-0"
    segment.touch()
    _lay_out(monkeypatch, sys.executable, stand_in, "{port}", SERVICE, "--exit-at-once", "3")
    assert demo.main() == 1
    assert not segment.exists()

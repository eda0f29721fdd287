"""`baton chat` through a pipe and on a terminal, against a server whose answers can be computed by hand.

The server counts on from the number of words in all messages: after "a b" comes "3 4 ", and after that turn "c" is the
fifth word.
"""

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from typer.testing import CliRunner

from baton.v1 import generation_pb2 as pb
from cli.main import app
from tests.integration.client.echo_server import Failure, ServerThread

DEADLINE_S = 60.0
TOO_LONG = Failure(grpc.StatusCode.INVALID_ARGUMENT, "200 tokens are too many", reason="PROMPT_TOO_LONG")


@pytest.fixture
def runner(server: ServerThread) -> CliRunner:
    return CliRunner(env={"BATON_TARGET": server.target})


def _chats(server: ServerThread) -> list[list[tuple[str, str]]]:
    requests = server.servicer.requests
    assert all(isinstance(request, pb.StreamGenerateRequest) for request in requests)
    return [[(message.role, message.content) for message in request.chat.messages] for request in requests]  # type: ignore[attr-defined]


def test_both_sides_are_remembered(runner: CliRunner, server: ServerThread) -> None:
    result = runner.invoke(app, ["chat", "--max-tokens", "2", "--system", "be kind"], input="a b\n\nc")
    assert (result.exit_code, result.stdout) == (0, "5 6 \n8 9 \n")
    head = [("system", "be kind"), ("user", "a b")]
    assert _chats(server) == [head, [*head, ("assistant", "5 6 "), ("user", "c")]]


def test_options_go_with_every_turn(runner: CliRunner, server: ServerThread) -> None:
    options = (
        "--temperature 0 --top-k 3 --top-p 0.5 --min-p 0.25 --repetition-penalty 1.5 --frequency-penalty 0.5 "
        "--presence-penalty -0.5 --logit-bias 3=1 --seed 7 --max-tokens 2 --min-tokens 1 --stop x --model m "
        "--cache-salt s --priority 3"
    )
    assert runner.invoke(app, ["chat", *options.split()], input="a\nb\n").exit_code == 0
    expected = pb.StreamGenerateRequest(
        sampling=pb.Sampling(
            temperature=0,
            top_k=3,
            top_p=0.5,
            min_p=0.25,
            repetition_penalty=1.5,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            logit_bias={3: 1},
            seed=7,
        ),
        stopping=pb.Stopping(max_tokens=2, min_tokens=1, stop=["x"]),
        model="m",
        cache_salt="s",
        priority=3,
        output=pb.Output(token_ids=True),
    )
    for request in server.servicer.requests:
        request.ClearField("chat")
    assert server.servicer.requests == [expected, expected]


def test_stats_follow_each_turn(runner: CliRunner) -> None:
    result = runner.invoke(app, ["chat", "--max-tokens", "2", "--stats"], input="a\nb\n")
    first, second = result.stderr.splitlines()
    assert first.startswith("1 prompt tokens (1 cached), 2 generated, finished: length")
    assert second.startswith("4 prompt tokens (1 cached), 2 generated, finished: length")


def test_commands(runner: CliRunner, server: ServerThread) -> None:
    lines = ["a", "/reset", "b", "/system be kind", "c", "/system", "//reset", "/help", "/what", "/exit", "d"]
    result = runner.invoke(app, ["chat", "--max-tokens", "1"], input="\n".join(lines))
    assert result.exit_code == 0
    answered_b = [("user", "b"), ("assistant", "2 ")]
    answered_c = [("user", "c"), ("assistant", "6 ")]
    assert _chats(server) == [
        [("user", "a")],
        [("user", "b")],
        [("system", "be kind"), *answered_b, ("user", "c")],
        [*answered_b, *answered_c, ("user", "/reset")],
    ]
    assert "error: no command /what" in result.stderr
    assert "/system TEXT" in result.stderr


def test_a_failed_turn_is_left_out_and_shows_in_the_exit_code(runner: CliRunner, server: ServerThread) -> None:
    server.servicer.failures = [Failure(grpc.StatusCode.INTERNAL, "no luck", reason="ENGINE_FAILED")]
    result = runner.invoke(app, ["chat", "--max-tokens", "1"], input="a\nb\n")
    assert (result.exit_code, result.stdout) == (1, "2 \n")
    assert result.stderr.startswith("error: INTERNAL (ENGINE_FAILED): no luck\n")
    assert _chats(server) == [[("user", "a")], [("user", "b")]]


def test_a_first_question_that_is_too_long_gets_no_hint(runner: CliRunner, server: ServerThread) -> None:
    server.servicer.failures = [TOO_LONG]
    result = runner.invoke(app, ["chat"], input="a\n")
    assert result.exit_code == 1
    assert "/reset" not in result.stderr, "forgetting nothing would not help"


def test_a_lost_server_is_not_noticed_unless_that_is_wished(runner: CliRunner, server: ServerThread) -> None:
    server.servicer.losses = [(2, Failure(grpc.StatusCode.UNAVAILABLE, "gone"))]
    result = runner.invoke(app, ["chat"], input="a\n")
    assert (result.exit_code, result.stdout) == (0, "2 3 4 \n")
    server.servicer.losses = [(2, Failure(grpc.StatusCode.UNAVAILABLE, "gone"))]
    result = runner.invoke(app, ["chat", "--no-resume"], input="a\n")
    assert (result.exit_code, result.stdout) == (1, "2 \n")
    assert result.stderr.startswith("error: UNAVAILABLE: gone")


def test_a_line_that_is_no_text_fails_alone(runner: CliRunner, server: ServerThread) -> None:
    result = runner.invoke(app, ["chat", "--max-tokens", "1"], input=b"\xff\xfe\na\n")
    assert (result.exit_code, result.stdout) == (1, "2 \n")
    assert result.stderr.startswith("error: INVALID_ARGUMENT (MALFORMED_MESSAGE): chat.messages[0].content")
    assert _chats(server) == [[("user", "a")]]


def test_a_cut_answer_is_told_of(runner: CliRunner) -> None:
    assert runner.invoke(app, ["chat"], input="a\n").stderr.startswith("cut at --max-tokens")


def test_no_server_is_a_failed_turn(dead_target: str) -> None:
    result = CliRunner().invoke(app, ["chat", "--target", dead_target], input="a\n")
    assert result.exit_code == 1
    assert f"is a decode service running at {dead_target}?" in result.stderr


_PROGRAM = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from cli.main import main
main()
"""


def _command(server: ServerThread, *arguments: str) -> list[str]:
    return [sys.executable, "-c", _PROGRAM, "chat", "--target", server.target, *arguments]


class Terminal:
    """`baton chat` on a terminal of its own; every wait has a deadline."""

    def __init__(self, server: ServerThread, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x18\x00\xc8\x00\x00\x00\x00\x00")  # 24 rows of 200 columns
        self._process = subprocess.Popen(
            _command(server, *arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(slave)
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> str:
        """Reads until `text` is shown; returns what came before it."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self._shown:
            assert select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0], self._shown
            self._shown += self._read() or pytest.fail(f"ended without {text!r}: {self._shown!r}")
        before, _, self._shown = self._shown.partition(text)
        return before

    def wait(self) -> int:
        return self._process.wait(DEADLINE_S)

    def interrupt_until_it_ends(self) -> int:
        """Types Ctrl-C; again, where Python's readline loses one that comes while it takes in a key."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self.type("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(1)
        pytest.fail("Ctrl-C did not end it")

    def _read(self) -> str:
        try:
            return os.read(self._master, 4096).decode()
        except OSError:  # its other end is closed
            return ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        os.close(self._master)


@pytest.fixture
def terminal(server: ServerThread) -> Iterator[Terminal]:
    with Terminal(server) as started:
        started.expect("> ")
        yield started


def test_lines_are_edited_at_a_prompt(terminal: Terminal, server: ServerThread) -> None:
    pytest.importorskip("readline")
    terminal.type("x b\x01\x04a\r")  # to the beginning of the line, delete the x, put an a there
    terminal.expect("3 4 5 \r\n")
    terminal.expect("> ")
    terminal.type("c\r")
    terminal.expect("7 8 9 \r\n")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.wait() == 0
    assert _chats(server)[1] == [("user", "a b"), ("assistant", "3 4 5 "), ("user", "c")]


def test_a_conversation_that_is_too_long_gets_a_hint(terminal: Terminal, server: ServerThread) -> None:
    terminal.type("a\r")
    terminal.expect("2 3 4 \r\n")
    terminal.expect("> ")
    server.servicer.failures = [TOO_LONG]
    terminal.type("b\r")
    terminal.expect("error: INVALID_ARGUMENT (PROMPT_TOO_LONG): 200 tokens are too many\r\n")
    terminal.expect("/reset forgets what was said")


def test_ctrl_c_stops_an_answer_and_keeps_what_came(terminal: Terminal, server: ServerThread) -> None:
    server.servicer.silent_after = 1
    terminal.type("a\r")
    terminal.expect("2 ")
    terminal.type("\x03")
    terminal.expect("stopped\r\n")
    assert server.servicer.cancelled.wait(DEADLINE_S)
    terminal.expect("> ")
    server.servicer.silent_after = None
    terminal.type("b\r")
    terminal.expect("4 5 6 \r\n")
    assert _chats(server)[1] == [("user", "a"), ("assistant", "2 "), ("user", "b")]


def test_ctrl_c_before_anything_came_drops_the_turn(terminal: Terminal, server: ServerThread) -> None:
    server.servicer.silent_after = 0
    terminal.type("a\r")
    _until(lambda: bool(server.servicer.requests))
    terminal.type("\x03")
    terminal.expect("the question is not kept")
    server.servicer.silent_after = None
    terminal.expect("> ")
    terminal.type("b\r")
    terminal.expect("2 3 4 \r\n")
    assert _chats(server)[1] == [("user", "b")]


def test_ctrl_c_at_the_prompt_is_130(terminal: Terminal) -> None:
    terminal.type("half a line")
    terminal.expect("half a line")
    assert terminal.interrupt_until_it_ends() == 130
    assert "Traceback" not in terminal.expect("\n")


def test_a_typed_conversation_that_had_a_failure_ends_with_0(terminal: Terminal, server: ServerThread) -> None:
    server.servicer.failures = [Failure(grpc.StatusCode.INTERNAL, "the engine is gone")]
    terminal.type("a\r")
    terminal.expect("error: INTERNAL: the engine is gone")
    terminal.expect("> ")
    terminal.type("/exit\r")
    assert terminal.wait() == 0


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _piped(server: ServerThread, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        _command(server, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_pipe_is_answered_line_by_line_without_a_prompt(server: ServerThread) -> None:
    with _piped(server, "--max-tokens", "1", "--stats") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("a\n")
        process.stdin.flush()
        assert process.stdout.readline() == "2 \n", "the answer is there before the pipe ends"
        rest, errors = process.communicate("b\n", timeout=DEADLINE_S)
    assert (process.returncode, rest) == (0, "4 \n")
    assert len(errors.splitlines()) == 2


def test_ctrl_c_ends_a_piped_conversation(server: ServerThread) -> None:
    server.servicer.silent_after = 1
    with _piped(server) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("a\nb\n")
        process.stdin.flush()
        assert process.stdout.read(2) == "2 "
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, rest, errors) == (130, "\n", "")
    assert server.servicer.cancelled.wait(DEADLINE_S)


def test_a_reader_that_leaves_ends_the_conversation(server: ServerThread) -> None:
    server.servicer.silent_after = 2000
    with _piped(server, "--max-tokens", "4000") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("a\n")
        process.stdin.flush()
        assert process.stdout.read(2) == "2 "
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 1
        assert process.stderr.read() == ""

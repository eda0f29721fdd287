import json
import os
import signal
import subprocess
import sys

import grpc
import pytest
from typer.testing import CliRunner

from baton.v1 import generation_pb2 as pb
from cli.main import app
from tests.integration.client.echo_server import Failure, ServerThread


@pytest.fixture
def runner(server: ServerThread) -> CliRunner:
    return CliRunner(env={"BATON_TARGET": server.target})


def test_text_goes_to_standard_output(runner: CliRunner) -> None:
    result = runner.invoke(app, ["generate", "a b c", "--max-tokens", "2"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "4 5 \n", "")


def test_stats_go_to_standard_error(runner: CliRunner) -> None:
    result = runner.invoke(app, ["generate", "a b c", "--max-tokens", "2", "--stats"])
    assert result.stdout == "4 5 \n"
    assert result.stderr.startswith("3 prompt tokens (1 cached), 2 generated, finished: length, first token after ")
    assert "(queue 1.0 ms, prefill 20.0 ms, kv transfer 3.0 ms)" in result.stderr


def test_json_is_one_object_a_message(runner: CliRunner) -> None:
    result = runner.invoke(app, ["generate", "a", "--json", "--max-tokens", "1", "--token-ids", "--request-id", "r"])
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"started": {"request_id": "r", "prompt_tokens": 1, "cached_tokens": 1, "prompt_logprobs": []}},
        {"delta": {"index": 0, "text": "2 ", "token_ids": [2], "logprobs": []}},
        {"finished": {"index": 0, "finish_reason": "FINISH_REASON_LENGTH"}},
        {
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 1,
                "cached_tokens": 1,
                "timings": {
                    "queue": "0.001s",
                    "prefill": "0.020s",
                    "kv_transfer": "0.003s",
                    "first_token": "0.021s",
                    "total": "1.500s",
                },
            }
        },
    ]


@pytest.mark.parametrize("arguments", [["-"], []])
def test_the_prompt_can_come_from_standard_input(runner: CliRunner, server: ServerThread, arguments: list[str]) -> None:
    assert runner.invoke(app, ["generate", *arguments], input="é b\n\n").exit_code == 0
    (request,) = server.servicer.requests
    assert request == pb.StreamGenerateRequest(text="é b\n")


def test_chat_and_system_messages(runner: CliRunner, server: ServerThread) -> None:
    assert runner.invoke(app, ["generate", "hi", "--chat", "--system", "be kind"]).exit_code == 0
    (request,) = server.servicer.requests
    messages = [pb.ChatMessage(role="system", content="be kind"), pb.ChatMessage(role="user", content="hi")]
    assert request == pb.StreamGenerateRequest(chat=pb.Chat(messages=messages))


def test_every_flag_has_its_field(runner: CliRunner, server: ServerThread) -> None:
    flags = (
        "--temperature 0 --top-k 3 --top-p 0.5 --min-p 0.25 --seed 7 --max-tokens 2 --min-tokens 1 --stop x --stop y "
        "--stop-token-id 9 --stop-token-id 0 --ignore-eos --include-stop --request-id r --model m --cache-salt s "
        "--priority -1 --timeout 5"
    )
    assert runner.invoke(app, ["generate", "a", *flags.split()]).exit_code == 0
    (request,) = server.servicer.requests
    assert request == pb.StreamGenerateRequest(
        text="a",
        sampling=pb.Sampling(temperature=0, top_k=3, top_p=0.5, min_p=0.25, seed=7),
        stopping=pb.Stopping(
            max_tokens=2, min_tokens=1, stop=["x", "y"], stop_token_ids=[9, 0], ignore_eos=True, include_stop=True
        ),
        request_id="r",
        model="m",
        cache_salt="s",
        priority=-1,
    )
    (deadline,) = server.servicer.deadlines
    assert deadline is not None
    assert deadline <= 6


def test_a_failure_shows_status_reason_message_and_numbers(runner: CliRunner, server: ServerThread) -> None:
    server.servicer.failures = [
        Failure(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "the queue is full",
            reason="QUEUE_FULL",
            metadata={"queue_len": "256"},
            retry_after_ms=1500,
        )
    ]
    result = runner.invoke(app, ["generate", "a"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "error: RESOURCE_EXHAUSTED (QUEUE_FULL): the queue is full\n"
        "  queue_len: 256\n"
        "  try again after 1.5 s\n"
    )  # fmt: skip


def test_a_failure_after_text_keeps_the_text(runner: CliRunner, server: ServerThread) -> None:
    server.servicer.failure_after = (1, Failure(grpc.StatusCode.INTERNAL, "the engine is gone"))
    result = runner.invoke(app, ["generate", "a"])
    assert (result.exit_code, result.stdout) == (1, "2 \n")
    assert result.stderr == "error: INTERNAL: the engine is gone\n"


def test_no_server_is_a_failure(dead_target: str) -> None:
    result = CliRunner().invoke(app, ["generate", "a", "--target", dead_target])
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert first.startswith("error: UNAVAILABLE: ")
    assert second == f"  is a decode service running at {dead_target}? `baton up` starts both services"


def test_a_service_that_answers_is_not_asked_after(runner: CliRunner, server: ServerThread) -> None:
    draining = Failure(grpc.StatusCode.UNAVAILABLE, "draining", reason="DRAINING")
    server.servicer.failures = [draining]
    assert runner.invoke(app, ["generate", "a"]).stderr == "error: UNAVAILABLE (DRAINING): draining\n"
    server.servicer.failure_after = (1, Failure(grpc.StatusCode.UNAVAILABLE, "gone"))
    assert runner.invoke(app, ["generate", "a"]).stderr == "error: UNAVAILABLE: gone\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--target", "foo", "needs host:port"), ("--timeout", "inf", "needs seconds > 0")],
)
def test_bad_usage_names_the_option_and_what_it_needs(option: str, value: str, message: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["generate", "a", option, value])
    assert result.exit_code == 2
    assert f"Invalid value for {option}: " in result.stderr
    assert message in result.stderr


def _generate(server: ServerThread, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", "from cli.main import main; main()", "generate", "a", "--target", server.target]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_ctrl_c_during_a_stream_cancels_it_and_is_130(server: ServerThread) -> None:
    server.servicer.silent_after = 1
    with _generate(server) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == "2 ", "text is there before the stream has ended"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (130, "\n", "")
    assert server.servicer.cancelled.wait(10)


def test_a_reader_that_leaves_ends_the_stream(server: ServerThread) -> None:
    server.servicer.silent_after = 2000
    with _generate(server, "--max-tokens", "4000") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == "2 "
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""

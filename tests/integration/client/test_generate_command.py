import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from typer.main import get_command
from typer.testing import CliRunner

from baton.v1 import generation_pb2 as pb
from cli.main import app
from tests.integration.client.echo_server import Failure, ServerThread


@pytest.fixture
def runner(server: ServerThread) -> CliRunner:
    return CliRunner(env={"BATON_TARGET": server.target})


def _request(**fields: Any) -> pb.StreamGenerateRequest:
    return pb.StreamGenerateRequest(text="a", **fields)


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


RESUMPTIONS = [pb.Resumption(index=1, token_ids=[5, 6]), pb.Resumption(index=0)]

OPTIONS: list[tuple[str, pb.StreamGenerateRequest]] = [
    ("--temperature 0", _request(sampling=pb.Sampling(temperature=0))),
    ("--temperature 0.5", _request(sampling=pb.Sampling(temperature=0.5))),
    ("--top-k 3", _request(sampling=pb.Sampling(top_k=3))),
    ("--top-p 0.5", _request(sampling=pb.Sampling(top_p=0.5))),
    ("--min-p 0.25", _request(sampling=pb.Sampling(min_p=0.25))),
    ("--repetition-penalty 1.5", _request(sampling=pb.Sampling(repetition_penalty=1.5))),
    ("--frequency-penalty -0.5", _request(sampling=pb.Sampling(frequency_penalty=-0.5))),
    ("--presence-penalty 2", _request(sampling=pb.Sampling(presence_penalty=2))),
    ("--logit-bias 3=-100 --logit-bias 4=0.5", _request(sampling=pb.Sampling(logit_bias={3: -100, 4: 0.5}))),
    ("--seed 7", _request(sampling=pb.Sampling(seed=7))),
    ("--n 2", _request(sampling=pb.Sampling(n=2))),
    ("--json-schema {}", _request(sampling=pb.Sampling(json_schema="{}"))),
    ("--regex a+", _request(sampling=pb.Sampling(regex="a+"))),
    ("--grammar start:", _request(sampling=pb.Sampling(grammar="start:"))),
    ("--choice yes --choice no", _request(sampling=pb.Sampling(choices=pb.Choices(values=["yes", "no"])))),
    ("--max-tokens 2", _request(stopping=pb.Stopping(max_tokens=2))),
    ("--min-tokens 1", _request(stopping=pb.Stopping(min_tokens=1))),
    ("--stop x --stop y", _request(stopping=pb.Stopping(stop=["x", "y"]))),
    ("--stop-token-id 9 --stop-token-id 0", _request(stopping=pb.Stopping(stop_token_ids=[9, 0]))),
    ("--ignore-eos", _request(stopping=pb.Stopping(ignore_eos=True))),
    ("--include-stop", _request(stopping=pb.Stopping(include_stop=True))),
    ("--logprobs 0", _request(output=pb.Output(logprobs=0))),
    ("--prompt-logprobs 3", _request(output=pb.Output(prompt_logprobs=3))),
    ("--json --token-ids", _request(output=pb.Output(token_ids=True))),
    ("--no-skip-special-tokens", _request(output=pb.Output(skip_special_tokens=False))),
    ("--request-id r", _request(request_id="r")),
    ("--model m", _request(model="m")),
    ("--cache-salt s", _request(cache_salt="s")),
    ("--priority -1", _request(priority=-1)),
    ("--priority 0", _request(priority=0)),
    ("--resume-from 1=5,6 --resume-from 0=", _request(resume=RESUMPTIONS)),
    ("--resume --seed 7", _request(sampling=pb.Sampling(seed=7), output=pb.Output(token_ids=True))),
    ("--json --stats --timeout 5", _request()),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS, ids=[options for options, _ in OPTIONS])
def test_an_option_sets_its_field_and_nothing_else(
    runner: CliRunner, server: ServerThread, options: str, expected: pb.StreamGenerateRequest
) -> None:
    assert runner.invoke(app, ["generate", "a", *options.split()]).exit_code == 0
    assert server.servicer.requests == [expected]


def test_every_option_is_in_the_table_or_about_the_prompt() -> None:
    (command,) = (command for name, command in get_command(app).commands.items() if name == "generate")  # type: ignore[attr-defined]
    options = {parameter.opts[0] for parameter in command.params if parameter.opts[0].startswith("--")}
    tested = {word for line, _ in OPTIONS for word in line.split() if word.startswith("--")}
    of_the_prompt = {"--chat", "--system", "--messages", "--no-generation-prompt", "--prompt-token-ids", "--embeddings"}
    assert options - tested == of_the_prompt | {"--target"}


def test_every_field_of_a_request_has_an_option() -> None:
    set_by_options = {path for _, request in OPTIONS for path in _paths(request)}
    missing = _all_paths() - set_by_options
    assert missing == {"token_ids", "chat", "embeddings"}, "prompts are tested apart"


def _paths(request: Message) -> Iterator[str]:
    for field, value in request.ListFields():
        if field.name in ("sampling", "stopping", "output"):
            yield from (f"{field.name}.{inner.name}" for inner, _ in value.ListFields())
        else:
            yield field.name


def _all_paths() -> set[str]:
    paths = set()
    for field in pb.StreamGenerateRequest.DESCRIPTOR.fields:
        if field.name in ("sampling", "stopping", "output"):
            assert field.message_type is not None
            paths |= {f"{field.name}.{inner.name}" for inner in field.message_type.fields}
        else:
            paths.add(field.name)
    return paths


def test_the_timeout_is_the_calls_deadline(runner: CliRunner, server: ServerThread) -> None:
    assert runner.invoke(app, ["generate", "a", "--timeout", "5"]).exit_code == 0
    (deadline,) = server.servicer.deadlines
    assert deadline is not None
    assert deadline <= 6


@pytest.mark.parametrize("is_piped", [False, True])
def test_token_ids_for_a_prompt(runner: CliRunner, server: ServerThread, is_piped: bool) -> None:
    arguments, standard_input = (["-"], "4, 5\n6\n") if is_piped else (["4 5,6"], None)
    result = runner.invoke(app, ["generate", "--prompt-token-ids", *arguments], input=standard_input)
    assert (result.exit_code, result.stdout) == (0, "7 8 9 \n")
    assert server.servicer.requests == [pb.StreamGenerateRequest(token_ids=pb.TokenIds(ids=[4, 5, 6]))]


@pytest.mark.parametrize("is_piped", [False, True])
def test_messages_of_every_role(runner: CliRunner, server: ServerThread, tmp_path: Path, is_piped: bool) -> None:
    messages = [{"role": role, "content": f"of {role}"} for role in ("system", "user", "assistant", "tool")]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(messages))
    result = runner.invoke(
        app, ["generate", "--messages", "-" if is_piped else str(file)], input=file.read_text() if is_piped else None
    )
    assert result.exit_code == 0
    expected = [pb.ChatMessage(**message) for message in messages]
    assert server.servicer.requests == [pb.StreamGenerateRequest(chat=pb.Chat(messages=expected))]


@pytest.mark.parametrize("arguments", [["a", "--chat"], ["--messages", "-"]])
def test_a_chat_may_end_with_its_last_message(runner: CliRunner, server: ServerThread, arguments: list[str]) -> None:
    messages = '[{"role": "user", "content": "a"}]'
    assert runner.invoke(app, ["generate", *arguments, "--no-generation-prompt"], input=messages).exit_code == 0
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="a")], add_generation_prompt=False)
    assert server.servicer.requests == [pb.StreamGenerateRequest(chat=chat)]


def test_embeddings_for_a_prompt(runner: CliRunner, server: ServerThread, tmp_path: Path) -> None:
    array = np.array([[1.0, -2.0], [0.5, 3.0]], dtype=np.float32)
    np.save(tmp_path / "vectors.npy", array)
    assert runner.invoke(app, ["generate", "--embeddings", str(tmp_path / "vectors.npy")]).exit_code == 0
    embeddings = pb.Embeddings(data=array.tobytes(), num_tokens=2, dtype="float32")
    assert server.servicer.requests == [pb.StreamGenerateRequest(embeddings=embeddings)]


@pytest.mark.parametrize("options", ["--logit-bias 4294967296=1", "--n -1", "--stop-token-id 4294967296"])
def test_what_does_not_fit_its_field_is_a_failure(runner: CliRunner, options: str) -> None:
    result = runner.invoke(app, ["generate", "a", *options.split()])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: INVALID_ARGUMENT (MALFORMED_MESSAGE): s")
    assert "  field: s" in result.stderr


def test_several_completions_come_one_after_another(runner: CliRunner) -> None:
    result = runner.invoke(app, ["generate", "a b c", "--max-tokens", "2", "--n", "2", "--stats"])
    assert result.stdout == "--- completion 0 ---\n4 5 \n--- completion 1 ---\n104 105 \n"
    assert "4 generated in 2 completions, finished: length, length, " in result.stderr


def test_a_lost_server_is_not_noticed_with_resume(runner: CliRunner, server: ServerThread) -> None:
    lost = Failure(grpc.StatusCode.UNAVAILABLE, "gone")
    server.servicer.losses = [(2, lost)]
    assert runner.invoke(app, ["generate", "a"]).exit_code == 1
    server.servicer.losses = [(2, lost), (2, lost)]
    result = runner.invoke(app, ["generate", "a", "--resume"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "2 3 4 \n", "")


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

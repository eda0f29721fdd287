"""`baton batch` with a real, tiny model: answers, bad lines, interruptions."""

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app

NUM_LINES = 60
WAIT_S = 120.0


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, tiny_llama_dir: Path) -> Path:
    """A config with few rows, so that the batch runs in many waves."""
    path = tmp_path_factory.mktemp("config") / "serving.yaml"
    path.write_text(
        f"model: {tiny_llama_dir}\n"
        "kv: {block_size: 8}\n"
        "max_batch_tokens: {prefill: 64}\n"
        "max_num_seqs: {prefill: 8, decode: 8}\n"
    )
    return path


def requests(num_lines: int) -> list[dict[str, Any]]:
    """Greedy and sampled ones, of different lengths."""
    return [
        {
            "request_id": f"r{number}",
            "token_ids": [(number * 7 + place) % 256 for place in range(1 + number % 90)],
            "sampling": {"temperature": number % 2, "seed": number},
            "stopping": {"max_tokens": 10 + number % 40, "ignore_eos": True},
            "output": {"token_ids": True},
        }
        for number in range(num_lines)
    ]


def write_lines(path: Path, lines: list[dict[str, Any] | str]) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def answers(path: Path) -> list[tuple[int, str, object]]:
    """Line, id, and completions or reason of each record; times differ from run to run."""
    records = [json.loads(data) for data in path.read_text().splitlines()]
    return [
        (
            record["line"],
            record["request_id"],
            record["response"]["completions"] if "response" in record else record["error"]["reason"],
        )
        for record in records
    ]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["batch", *map(str, arguments)])


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """For the processes that the tests start, too: a tiny model runs no faster on more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATON_DECODE__THREADS", "1")
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("in") / "in.jsonl", [*requests(NUM_LINES)])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, source: Path, serving: Path) -> list[tuple[int, str, object]]:
    """What a run without interruption answers."""
    output = tmp_path_factory.mktemp("out") / "out.jsonl"
    assert run(source, output, "--serving", serving).exit_code == 0
    return answers(output)


def test_every_line_is_answered_in_order(undisturbed: list[tuple[int, str, object]]) -> None:
    assert [(line, request_id) for line, request_id, _ in undisturbed] == [
        (number + 1, f"r{number}") for number in range(NUM_LINES)
    ]
    for number, (_, _, completions) in enumerate(undisturbed):
        assert isinstance(completions, list)
        assert len(completions[0]["token_ids"]) == 10 + number % 40
        assert completions[0]["finish_reason"] == "FINISH_REASON_LENGTH"


def test_a_line_alone_is_answered_as_among_others(
    tmp_path: Path, serving: Path, undisturbed: list[tuple[int, str, object]]
) -> None:
    picked = [3, 34, 59]
    source = write_lines(tmp_path / "in.jsonl", [requests(NUM_LINES)[number] for number in picked])
    assert run(source, tmp_path / "out.jsonl", "--serving", serving).exit_code == 0
    assert [completions for _, _, completions in answers(tmp_path / "out.jsonl")] == [
        undisturbed[number][2] for number in picked
    ]


def test_a_bad_line_does_not_stop_the_rest(tmp_path: Path, serving: Path) -> None:
    good = requests(3)
    lines: list[dict[str, Any] | str] = [
        good[0],
        "{",
        "",
        good[1],
        {"request_id": "x", "token_ids": [999]},
        {"token_ids": [1] * 2000},
        good[2],
    ]
    big = {"request_id": "big", "token_ids": [1] * 900, "stopping": {"max_tokens": 100}}
    source = write_lines(tmp_path / "in.jsonl", [*lines, big])
    config = tmp_path / "decode.yaml"
    config.write_text("num_kv_blocks: 65\n")  # 64 blocks of 8 tokens
    result = run(source, tmp_path / "out.jsonl", "--serving", serving, "--config", config)
    assert result.exit_code == 1
    found = answers(tmp_path / "out.jsonl")
    assert [(line, request_id) for line, request_id, _ in found] == [
        (1, "r0"),
        (2, "line-2"),
        (4, "r1"),
        (5, "x"),
        (6, "line-6"),
        (7, "r2"),
        (8, "big"),
    ]
    reasons = {line: what for line, _, what in found if isinstance(what, str)}
    assert reasons == {
        2: "MALFORMED_MESSAGE",
        5: "TOKEN_ID_OUT_OF_RANGE",
        6: "PROMPT_TOO_LONG",
        8: "REQUEST_EXCEEDS_POOL",
    }
    for number, reason in reasons.items():
        assert f"line {number}: {reason}: " in result.stderr
    assert "7 lines done, 4 failed" in result.stderr
    # What failed is asked again: now there is room for the big one.
    again = run(source, tmp_path / "out.jsonl", "--serving", serving)
    assert again.exit_code == 1
    assert "7 lines done, 3 of them before, 3 failed" in again.stderr
    assert isinstance(answers(tmp_path / "out.jsonl")[-1][2], list)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_run_goes_on(
    tmp_path: Path, source: Path, serving: Path, undisturbed: list[tuple[int, str, object]], signum: signal.Signals
) -> None:
    output = tmp_path / "out.jsonl"
    arguments = ["batch", str(source), str(output), "--serving", str(serving)]
    command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + WAIT_S
        while not (output.exists() and output.read_bytes().count(b"\n") >= 3):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.001)
        process.send_signal(signum)
        _, stderr = process.communicate(timeout=WAIT_S)
    if signum == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted: " in stderr
        assert "Traceback" not in stderr
    else:
        assert process.returncode == -signum
    early = output.with_name("out.jsonl.early")
    num_done = sum(path.read_bytes().count(b"\n") for path in (output, early) if path.exists())
    assert 3 <= num_done < NUM_LINES, "interrupted in the middle"
    result = run(source, output, "--serving", serving)
    assert result.exit_code == 0
    assert f"{NUM_LINES} lines done, {num_done} of them before" in result.stderr
    assert not early.exists()
    assert answers(output) == undisturbed


def test_answers_behind_a_slow_line_are_not_lost(tmp_path: Path, serving: Path) -> None:
    slow = {"request_id": "slow", "token_ids": [1], "stopping": {"max_tokens": 900, "ignore_eos": True}}
    fast = [{"request_id": f"f{n}", "token_ids": [n], "stopping": {"max_tokens": 2}} for n in range(40)]
    source = write_lines(tmp_path / "in.jsonl", [slow, *fast])
    output = tmp_path / "out.jsonl"
    arguments = ["batch", str(source), str(output), "--serving", str(serving)]
    command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        early = output.with_name("out.jsonl.early")
        until = time.monotonic() + WAIT_S
        while not (early.exists() and early.read_bytes().count(b"\n") == 40):
            assert time.monotonic() < until
            time.sleep(0.001)
        process.kill()
        process.communicate()
    assert output.read_bytes() == b""
    result = run(source, output, "--serving", serving)
    assert result.exit_code == 0
    assert "41 lines done, 40 of them before" in result.stderr
    assert [request_id for _, request_id, _ in answers(output)] == ["slow", *(f"f{n}" for n in range(40))]


def test_standard_input_is_read(tmp_path: Path, serving: Path, undisturbed: list[tuple[int, str, object]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in requests(5))
    arguments = ["batch", "-", str(tmp_path / "out.jsonl"), "--serving", str(serving)]
    assert CliRunner().invoke(app, arguments, input=text).exit_code == 0
    assert answers(tmp_path / "out.jsonl") == undisturbed[:5]


def test_what_cannot_be_meant_is_refused(tmp_path: Path, serving: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [*requests(1)])
    for arguments, message in [
        ((tmp_path / "none.jsonl", tmp_path / "out.jsonl"), "none.jsonl: cannot be read (No such file or directory)"),
        ((tmp_path, tmp_path / "out.jsonl"), "cannot be read (Is a directory)"),
        ((source, tmp_path), "cannot be written (Is a directory)"),
        ((source, source), "is both input and output"),
        ((source, "/dev/null"), "is no regular file"),
    ]:
        result = run(*arguments, "--serving", serving)
        assert result.exit_code == 2, message
        assert message in result.stderr
    assert "r0" in source.read_text()


def test_settings_count_as_what_they_stand_for(tmp_path: Path, serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 8 `kernels: auto` is plain torch: named or not, that makes no difference; another dtype does."""
    source, output = write_lines(tmp_path / "in.jsonl", [*requests(2)]), tmp_path / "out.jsonl"
    monkeypatch.setenv("BATON_SERVING__DTYPE", "float32")
    assert run(source, output, "--serving", serving).exit_code == 0
    before = output.read_bytes()

    monkeypatch.setenv("BATON_SERVING__KERNELS", "torch")
    again = run(source, output, "--serving", serving)
    assert (again.exit_code, output.read_bytes()) == (0, before)
    assert "nothing is left to do" in again.stderr

    monkeypatch.setenv("BATON_SERVING__DTYPE", "bfloat16")
    other = run(source, output, "--serving", serving)
    assert "nothing is left to do" not in other.stderr


def test_an_input_without_requests_is_done(tmp_path: Path, serving: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n\n")
    result = run(source, tmp_path / "out.jsonl", "--serving", serving)
    assert result.exit_code == 0
    assert "0 lines done; nothing is left to do" in result.stderr
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_write_that_fails_is_said_and_not_traced(tmp_path: Path, source: Path, serving: Path) -> None:
    arguments = ["batch", str(source), str(tmp_path / "out.jsonl"), "--serving", str(serving), "--quiet"]
    command = [sys.executable, "-B", "-c", "from cli.main import main; main()", *arguments]

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    done = subprocess.run(command, preexec_fn=limit_files, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: {source} to {tmp_path / 'out.jsonl'}: File too large\n"
    assert 0 < (tmp_path / "out.jsonl").stat().st_size <= 2000


@pytest.mark.parametrize("model", ["/nowhere/at/all", "no-such-model"])
def test_a_model_that_is_not_there_is_a_wrong_config(tmp_path: Path, source: Path, model: str) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text(f"model: {model}\n")
    result = run(source, tmp_path / "out.jsonl", "--serving", config)
    assert result.exit_code == 2
    assert model in result.stderr

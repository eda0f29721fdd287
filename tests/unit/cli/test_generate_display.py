"""What `baton generate` prints of messages, without a call."""

import pytest

from baton.v1 import generation_pb2 as pb
from cli.generate import _print_text
from cli.stats import StreamStats


def _token(token_id: int, text: str, logprob: float, rank: int) -> pb.TokenLogprob:
    return pb.TokenLogprob(token_id=token_id, text=text, logprob=logprob, rank=rank)


A = _token(7, " [b]a", -0.25, 1)
B = _token(8, "é\n", -1.5, 2)


def _print(messages: list[pb.StreamGenerateResponse], *, has_several: bool) -> None:
    _print_text(messages, StreamStats(), has_several)


def test_tables_follow_the_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    started = pb.Started(prompt_logprobs=[pb.TokenLogprobs(token=A)])
    delta = pb.Delta(text="é\n", logprobs=[pb.TokenLogprobs(token=B, alternatives=[A, B])])
    _print([pb.StreamGenerateResponse(started=started), pb.StreamGenerateResponse(delta=delta)], has_several=False)
    shown = capsys.readouterr().out
    assert shown.startswith("é\nprompt, from its second token on")
    assert _rows(shown) == [
        ['" [b]a"', "7", "-0.250", "1", ""],
        ['"é\\n"', "8", "-1.500", "2", '" [b]a" -0.250  "é\\n" -1.500'],
    ]


def _rows(shown: str) -> list[list[str]]:
    lines = [line for line in shown.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_each_completion_has_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    deltas = [pb.Delta(index=index, text=f"t{index}", logprobs=[pb.TokenLogprobs(token=A)]) for index in (1, 0)]
    _print([pb.StreamGenerateResponse(delta=delta) for delta in deltas], has_several=True)
    shown = capsys.readouterr().out
    assert shown.startswith("--- completion 0 ---\nt0\n--- completion 1 ---\nt1\n")
    assert [line.strip() for line in shown.splitlines() if line.startswith("completion")] == [
        "completion 0",
        "completion 1",
    ]


def test_without_log_probabilities_there_is_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    _print([pb.StreamGenerateResponse(delta=pb.Delta(text="a"))], has_several=False)
    assert capsys.readouterr().out == "a\n"

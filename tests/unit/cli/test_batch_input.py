import base64
import io
import struct
from pathlib import Path

import pytest

from baton.v1 import generation_pb2 as pb
from cli.batch_input import InputLine, parse_request, read_lines, request_id_of
from decode_service.translate import ServedModel
from shared.constraints.compiler import ConstraintCompiler
from shared.errors import BatonError, Reason
from shared.text.tokenizer import Tokenizer

MAX_LINE_BYTES = 40


@pytest.fixture(scope="module")
def model(tiny_llama_dir: Path) -> ServedModel:
    tokenizer = Tokenizer.from_directory(tiny_llama_dir)
    return ServedModel(
        name="tiny",
        fingerprint="f",
        dtype="float32",
        max_model_len=32,
        vocab_size=272,
        hidden_size=2,
        default_max_tokens=16,
        max_completions=4,
        tokenizer=tokenizer,
        constraints=ConstraintCompiler(tokenizer, 272),
    )


def line(text: str | bytes, number: int = 7) -> InputLine:
    return InputLine(number, text if isinstance(text, bytes) else text.encode())


def test_blank_lines_are_counted_and_left_out() -> None:
    assert list(read_lines(io.BytesIO(b"a\n\n  \r\nb\r\nc"))) == [
        InputLine(1, b"a"),
        InputLine(4, b"b"),
        InputLine(5, b"c"),
    ]


def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.batch_input.MAX_LINE_BYTES", MAX_LINE_BYTES)
    stream = io.BytesIO(b"x" * MAX_LINE_BYTES + b"\n" + b"y" * (3 * MAX_LINE_BYTES) + b"\nz\n")
    assert list(read_lines(stream)) == [
        InputLine(1, b"x" * MAX_LINE_BYTES),
        InputLine(2, None),
        InputLine(3, b"z"),
    ]


def test_a_line_is_a_request_of_the_wire_contract(model: ServedModel) -> None:
    asked = parse_request(
        line(
            '{"request_id": "a", "text": "AB", "sampling": {"temperature": 0.5, "topK": 3, "seed": "9"}, '
            '"stopping": {"max_tokens": 4, "stop": ["."]}, "output": {"token_ids": true}, "cache_salt": "s"}'
        ),
        model,
    )
    request = asked.request
    assert (request.request_id, request.prompt_token_ids, request.cache_salt) == ("a", (65, 66), "s")
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0.5, 3, 9)
    assert (request.stopping.max_tokens, request.stopping.stop) == (4, (".",))
    assert asked.wants_token_ids
    assert asked.line.number == 7


@pytest.mark.parametrize("spelling", ['{"token_ids": [5, 6]}', '{"tokenIds": {"ids": [5, 6]}}'])
def test_token_ids_may_be_a_plain_list(model: ServedModel, spelling: str) -> None:
    asked = parse_request(line(spelling), model)
    assert asked.request.prompt_token_ids == (5, 6)
    assert asked.request.request_id == "line-7"
    assert not asked.wants_token_ids


def test_a_chat_may_be_a_plain_list(model: ServedModel) -> None:
    messages = '[{"role": "user", "content": "A"}]'
    plain, whole = (
        parse_request(line(f'{{"chat": {chat}}}'), model) for chat in (messages, f'{{"messages": {messages}}}')
    )
    assert plain.request.prompt_token_ids == whole.request.prompt_token_ids


def test_embeddings_may_be_a_list_of_vectors(model: ServedModel) -> None:
    data = base64.b64encode(struct.pack("<4f", 1, 2, 3, 4)).decode()
    asked = [
        parse_request(line(f'{{"embeddings": {embeddings}}}'), model).request.input_embeddings
        for embeddings in ("[[1, 2], [3, 4]]", f'{{"data": "{data}", "numTokens": 2, "dtype": "float32"}}')
    ]
    for vectors in asked:
        assert vectors is not None
        assert vectors.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        ("{", Reason.MALFORMED_MESSAGE, "the line is not JSON"),
        ("[" * 100_000, Reason.MALFORMED_MESSAGE, "the line is not JSON"),
        (b'{"text": "\xff"}', Reason.MALFORMED_MESSAGE, "the line is not UTF-8"),
        ("[1]", Reason.MALFORMED_MESSAGE, "the line holds list, not an object"),
        ('{"txt": "a"}', Reason.MALFORMED_MESSAGE, 'no field named "txt"'),
        ('{"text": 5}', Reason.MALFORMED_MESSAGE, "text"),
        ('{"text": "a", "token_ids": [1]}', Reason.MALFORMED_MESSAGE, "oneof"),
        ('{"token_ids": [-1]}', Reason.MALFORMED_MESSAGE, "-1"),
        ('{"embeddings": [[1, 2], [3]]}', Reason.MALFORMED_MESSAGE, "embeddings: "),
        ('{"embeddings": [1, 2]}', Reason.MALFORMED_MESSAGE, "needs a list of lists of numbers"),
        ('{"embeddings": [["1.0", "2"]]}', Reason.MALFORMED_MESSAGE, "needs a list of lists of numbers"),
        ('{"embeddings": [[true, false]]}', Reason.MALFORMED_MESSAGE, "needs a list of lists of numbers"),
        (f'{{"embeddings": [[{"9" * 400}, 1]]}}', Reason.MALFORMED_MESSAGE, "needs a list of lists of numbers"),
        ('{"embeddings": [[1e39, 1]]}', Reason.EMBEDDINGS_INVALID, "inf"),
        ('{"embeddings": {"data": [1]}}', Reason.MALFORMED_MESSAGE, "data field"),
        (r'{"request_id": "\ud800", "text": "b"}', Reason.MALFORMED_MESSAGE, "half a character"),
        (r'{"\ud800": 1}', Reason.MALFORMED_MESSAGE, "half a character"),
        ("{}", Reason.PROMPT_MISSING, "no prompt"),
        ('{"text": ""}', Reason.PROMPT_EMPTY, "empty"),
        ('{"token_ids": [272]}', Reason.TOKEN_ID_OUT_OF_RANGE, "272"),
        ('{"text": "a", "sampling": {"temperature": "NaN"}}', Reason.SAMPLING_INVALID, "temperature"),
        ('{"text": "a", "sampling": {"n": 0}}', Reason.SAMPLING_INVALID, "sampling.n"),
        ('{"text": "a", "model": "other"}', Reason.MODEL_UNKNOWN, "other"),
        (f'{{"text": "{"a" * 32}"}}', Reason.PROMPT_TOO_LONG, "32"),
    ],
)
def test_what_is_wrong_with_a_line(model: ServedModel, text: str | bytes, reason: Reason, message: str) -> None:
    with pytest.raises(BatonError) as caught:
        parse_request(line(text), model)
    assert caught.value.reason is reason
    assert message in caught.value.message


def test_a_line_that_was_too_long_says_so(model: ServedModel) -> None:
    with pytest.raises(BatonError, match="the line is longer than"):
        parse_request(InputLine(1, None), model)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"request_id": "a", "txt": 1}', "a"),
        ('{"requestId": "b"}', "b"),
        ('{"request_id": 5}', "line-7"),
        (r'{"request_id": "\ud800"}', "line-7"),
        ("{}", "line-7"),
        ("{", "line-7"),
    ],
)
def test_a_bad_line_keeps_its_id_where_that_can_be_read(text: str, expected: str) -> None:
    assert request_id_of(line(text)) == expected


def test_every_field_of_a_request_can_stand_in_a_line() -> None:
    """Field names are the contract's own, so a new one needs no code here."""
    assert {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields} >= {"text", "token_ids", "chat", "embeddings"}

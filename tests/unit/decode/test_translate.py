"""Every field of a request: what a valid value becomes, and how each other one is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from baton.v1 import generation_pb2 as pb
from decode_service.answers import event_to_proto, events_to_proto
from decode_service.request import Delta, Finished, GenerationEvent, GenerationRequest, Started, Usage
from decode_service.translate import (
    MAX_CACHE_SALT_LEN,
    MAX_REQUEST_ID_LEN,
    AnyGenerateRequest,
    ServedModel,
    check_answer_len,
    check_model,
    model_to_proto,
    request_from_proto,
)
from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.errors import InvalidRequestError, Reason
from shared.sampling.logprobs import TokenLogprob, TokenLogprobs
from shared.sampling.params import SamplingParams
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.text.tokenizer import Tokenizer
from tests.tiny_models import EOS_TOKEN_ID, IM_END_ID, IM_START_ID, VOCAB_SIZE

MAX_MODEL_LEN = 20
DEFAULT_MAX_TOKENS = 8
HIDDEN_SIZE = 2
PROMPT = "token_ids {ids: [5, 6, 7]}"
# [[1, -2], [0.5, 0]]: in bfloat16 0x3f80 0xc000 0x3f00 0x0000
VECTORS = r"embeddings {num_tokens: 2 dtype: 'bfloat16' data: '\200\077\000\300\000\077\000\000'}"
# [1, 1 + 2**-23]: in float32 0x3f800000 0x3f800001
FLOAT32_VECTOR = r"embeddings {num_tokens: 1 dtype: 'float32' data: '\000\000\200\077\001\000\200\077'}"


@pytest.fixture(scope="module")
def model(tiny_llama_dir: Path) -> ServedModel:
    tokenizer = Tokenizer.from_directory(tiny_llama_dir)
    return ServedModel(
        name="tiny",
        fingerprint="f00d",
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        max_completions=4,
        tokenizer=tokenizer,
        constraints=ConstraintCompiler(tokenizer, VOCAB_SIZE),
    )


def request(text: str) -> pb.GenerateRequest:
    """A request in protobuf's text form; bytes of the tokenizer are the token ids."""
    return text_format.Parse(text, pb.GenerateRequest())


def translated(text: str, model: ServedModel) -> GenerationRequest:
    return request_from_proto(request(text), model)


def value_at(wanted: GenerationRequest, path: str) -> Any:
    value: Any = wanted
    for name in path.split("."):
        value = getattr(value, name)
    return value


ACCEPTED: list[tuple[str, str, object]] = [
    # prompts
    ("text: 'Hi'", "prompt_token_ids", (72, 105)),
    ("token_ids {ids: [0, 271]}", "prompt_token_ids", (0, 271)),
    (
        "chat {messages {role: 'user' content: 'A'} add_generation_prompt: false}",
        "prompt_token_ids",
        (IM_START_ID, *b"user\nA", IM_END_ID, *b"\n"),
    ),
    (VECTORS, "prompt_token_ids", (0, 0)),
    (VECTORS, "prompt_len", 2),
    (VECTORS, "max_total_len", 10),
    # defaults
    (PROMPT, "prompt_token_ids", (5, 6, 7)),
    (PROMPT, "input_embeddings", None),
    (PROMPT, "prompt_len", 3),
    (PROMPT, "sampling.temperature", 1.0),
    (PROMPT, "sampling.top_k", 0),
    (PROMPT, "sampling.top_p", 1.0),
    (PROMPT, "sampling.min_p", 0.0),
    (PROMPT, "stopping", StoppingParams(max_tokens=DEFAULT_MAX_TOKENS)),
    (PROMPT, "max_total_len", 11),
    (PROMPT, "skip_special_tokens", True),
    (PROMPT, "priority", 0),
    (PROMPT, "cache_salt", ""),
    # values, those included that are proto3's zero
    (PROMPT + "request_id: 'mine'", "request_id", "mine"),
    (PROMPT + f"request_id: '{'é' * MAX_REQUEST_ID_LEN}'", "request_id", "é" * MAX_REQUEST_ID_LEN),
    (PROMPT + "model: 'tiny'", "prompt_len", 3),
    (PROMPT + "sampling {temperature: 0}", "sampling.temperature", 0.0),
    (PROMPT + "sampling {temperature: 0.5}", "sampling.temperature", 0.5),
    (PROMPT + "sampling {top_k: 40}", "sampling.top_k", 40),
    (PROMPT + "sampling {top_p: 0.25}", "sampling.top_p", 0.25),
    (PROMPT + "sampling {min_p: 0.125}", "sampling.min_p", 0.125),
    (PROMPT + "sampling {seed: 0}", "sampling.seed", 0),
    (PROMPT + "sampling {seed: 18446744073709551615}", "sampling.seed", 2**64 - 1),
    (PROMPT + "sampling {repetition_penalty: 1.5}", "sampling.repetition_penalty", 1.5),
    (PROMPT + "sampling {frequency_penalty: -2}", "sampling.frequency_penalty", -2.0),
    (PROMPT + "sampling {presence_penalty: 0.5}", "sampling.presence_penalty", 0.5),
    (
        PROMPT + "sampling {logit_bias {key: 9 value: 2} logit_bias {key: 0 value: -100}}",
        "sampling.logit_bias",
        ((0, -100.0), (9, 2.0)),
    ),
    (PROMPT, "sampling.n", 1),
    (PROMPT + "sampling {n: 4}", "num_completions", 4),
    (PROMPT + "sampling {json_schema: '{}'}", "sampling.constraint", Constraint(ConstraintKind.JSON_SCHEMA, "{}")),
    (PROMPT + "sampling {regex: 'a+'}", "sampling.constraint", Constraint(ConstraintKind.REGEX, "a+")),
    (
        PROMPT + "sampling {grammar: 'start: /a/'}",
        "sampling.constraint",
        Constraint(ConstraintKind.GRAMMAR, "start: /a/"),
    ),
    (
        PROMPT + "sampling {choices {values: ['a', 'b']}}",
        "sampling.constraint",
        Constraint(ConstraintKind.CHOICES, choices=("a", "b")),
    ),
    (PROMPT, "logprobs", None),
    (PROMPT + "output {logprobs: 0}", "logprobs", 0),
    (PROMPT + "output {prompt_logprobs: 20}", "prompt_logprobs", 20),
    (PROMPT, "resumed", {}),
    (PROMPT + "resume {token_ids: [8, 9]}", "resumed", {0: (8, 9)}),
    (PROMPT + "resume {token_ids: [8, 9]}", "input_token_ids", (5, 6, 7, 8, 9)),
    (PROMPT + "sampling {n: 3} resume {index: 2 token_ids: 8} resume {index: 1}", "resumed", {2: (8,)}),
    (PROMPT + "sampling {n: 3} resume {index: 2 token_ids: 8}", "input_token_ids", (5, 6, 7)),
    (PROMPT + "resume {token_ids: [8, 9]}", "max_total_len", 11),
    (PROMPT + "stopping {max_tokens: 1}", "stopping.max_tokens", 1),
    (PROMPT + "stopping {max_tokens: 1}", "max_total_len", 4),
    (PROMPT + "stopping {max_tokens: 1000}", "stopping.max_tokens", 1000),
    (PROMPT + "stopping {max_tokens: 1000}", "max_total_len", MAX_MODEL_LEN),
    (PROMPT + "stopping {min_tokens: 2}", "stopping.min_tokens", 2),
    (PROMPT + "stopping {stop: ['a', 'b']}", "stopping.stop", ("a", "b")),
    (PROMPT + "stopping {stop_token_ids: [271, 0]}", "stopping.stop_token_ids", (271, 0)),
    (PROMPT + "stopping {ignore_eos: true}", "stopping.ignore_eos", True),
    (PROMPT + "stopping {include_stop: true}", "stopping.include_stop", True),
    (PROMPT + "output {skip_special_tokens: false}", "skip_special_tokens", False),
    (PROMPT + "output {token_ids: true}", "skip_special_tokens", True),
    (PROMPT + "priority: -3", "priority", -3),
    (PROMPT + "cache_salt: 'pepper'", "cache_salt", "pepper"),
    (PROMPT + f"cache_salt: '{'é' * MAX_CACHE_SALT_LEN}'", "cache_salt", "é" * MAX_CACHE_SALT_LEN),
    # what the context leaves, where that is less than the default
    ("token_ids {ids: [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", "stopping.max_tokens", 1),
    ("token_ids {ids: [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", "max_total_len", 20),
]


@pytest.mark.parametrize(("text", "path", "value"), ACCEPTED)
def test_a_valid_field_becomes_a_value(text: str, path: str, value: object, model: ServedModel) -> None:
    assert value_at(translated(text, model), path) == value


@pytest.mark.parametrize(("text", "vectors"), [(VECTORS, [[1, -2], [0.5, 0]]), (FLOAT32_VECTOR, [[1, 1 + 2**-23]])])
def test_an_embeddings_prompt_is_its_vectors(text: str, vectors: list[list[float]], model: ServedModel) -> None:
    found = translated(text, model).input_embeddings
    assert found is not None
    assert found.dtype == np.float32
    assert found.tolist() == vectors


SAMPLING, STOPPING = Reason.SAMPLING_INVALID, Reason.STOPPING_INVALID
REFUSED: list[tuple[str, Reason, dict[str, str]]] = [
    ("", Reason.PROMPT_MISSING, {"field": "prompt"}),
    ("text: ''", Reason.PROMPT_EMPTY, {"field": "prompt", "prompt_tokens": "0", "max_model_len": "20"}),
    ("token_ids {}", Reason.PROMPT_EMPTY, {"field": "prompt", "prompt_tokens": "0", "max_model_len": "20"}),
    (
        "text: '12345678901234567890'",
        Reason.PROMPT_TOO_LONG,
        {"field": "prompt", "prompt_tokens": "20", "max_model_len": "20"},
    ),
    (
        "token_ids {ids: [1, 272]}",
        Reason.TOKEN_ID_OUT_OF_RANGE,
        {"field": "token_ids.ids", "token_id": "272", "position": "1", "vocab_size": "272"},
    ),
    ("chat {}", Reason.CHAT_INVALID, {"field": "chat.messages"}),
    (
        "chat {" + "messages {role: 'user'}" * 21 + "}",
        Reason.PROMPT_TOO_LONG,
        {"field": "prompt", "messages": "21", "max_model_len": "20"},
    ),
    (
        "token_ids {ids: [" + "272, " * 19 + "272]}",
        Reason.PROMPT_TOO_LONG,
        {"field": "prompt", "prompt_tokens": "20", "max_model_len": "20"},
    ),
    (
        "embeddings {}",
        Reason.PROMPT_EMPTY,
        {"field": "embeddings.num_tokens", "prompt_tokens": "0", "max_model_len": "20"},
    ),
    (
        "embeddings {num_tokens: 20 dtype: 'int3'}",
        Reason.PROMPT_TOO_LONG,
        {"field": "embeddings.num_tokens", "prompt_tokens": "20", "max_model_len": "20"},
    ),
    (
        "embeddings {num_tokens: 2 dtype: 'float32' data: '1234567'}",
        Reason.EMBEDDINGS_INVALID,
        {
            "field": "embeddings.data",
            "data_bytes": "7",
            "needed_bytes": "16",
            "num_tokens": "2",
            "hidden_size": "2",
            "dtype": "float32",
        },
    ),
    (
        PROMPT + f"cache_salt: '{'x' * 1025}'",
        Reason.MALFORMED_MESSAGE,
        {"field": "cache_salt", "length": "1025", "max_length": "1024"},
    ),
    (PROMPT + "model: 'other'", Reason.MODEL_UNKNOWN, {"field": "model", "model": "other", "served_model": "tiny"}),
    (
        PROMPT + f"request_id: '{'x' * 129}'",
        Reason.REQUEST_ID_INVALID,
        {"field": "request_id", "length": "129", "max_length": "128"},
    ),
    (
        PROMPT + "sampling {temperature: -1}",
        SAMPLING,
        {"field": "sampling.temperature", "value": "-1.0", "bounds": "[0, 100]"},
    ),
    (
        PROMPT + "sampling {temperature: nan}",
        SAMPLING,
        {"field": "sampling.temperature", "value": "nan", "bounds": "[0, 100]"},
    ),
    (
        PROMPT + "sampling {top_p: 0}",
        SAMPLING,
        {"field": "sampling.top_p", "value": "0.0", "bounds": "(0, 1]"},
    ),
    (
        PROMPT + "sampling {min_p: 2}",
        SAMPLING,
        {"field": "sampling.min_p", "value": "2.0", "bounds": "[0, 1]"},
    ),
    (PROMPT + "sampling {n: 0}", SAMPLING, {"field": "sampling.n", "value": "0", "bounds": "[1, 1024]"}),
    (
        PROMPT + "sampling {n: 5}",
        SAMPLING,
        {"field": "sampling.n", "value": "5", "bounds": "[1, 4] (the rows of a decode batch)"},
    ),
    (
        PROMPT + "sampling {logit_bias {key: 272 value: 1}}",
        Reason.TOKEN_ID_OUT_OF_RANGE,
        {"field": "sampling.logit_bias[272]", "value": "272", "bounds": "[0, 272)"},
    ),
    (
        PROMPT + "output {logprobs: 21}",
        Reason.OUTPUT_INVALID,
        {"field": "output.logprobs", "value": "21", "bounds": "[0, 20]"},
    ),
    (
        PROMPT + "output {prompt_logprobs: 21}",
        Reason.OUTPUT_INVALID,
        {"field": "output.prompt_logprobs", "value": "21", "bounds": "[0, 20]"},
    ),
    (VECTORS + "output {prompt_logprobs: 0}", Reason.OUTPUT_INVALID, {"field": "output.prompt_logprobs"}),
    (
        PROMPT + "output {prompt_logprobs: 0} resume {token_ids: 1}",
        Reason.OUTPUT_INVALID,
        {"field": "output.prompt_logprobs"},
    ),
    (
        PROMPT + "resume {index: 1}",
        Reason.RESUME_INVALID,
        {"field": "resume[0].index", "value": "1", "bounds": "[0, 1), each once"},
    ),
    (
        PROMPT + "sampling {n: 2} resume {index: 1 token_ids: 8} resume {index: 1 token_ids: 8}",
        Reason.RESUME_INVALID,
        {"field": "resume[1].index", "value": "1", "bounds": "[0, 2), each once"},
    ),
    (
        PROMPT + "stopping {max_tokens: 2} resume {token_ids: [8, 9, 10]}",
        Reason.RESUME_INVALID,
        {"field": "resume[0].token_ids", "value": "3", "bounds": "[0, 2] tokens, which is all there may be"},
    ),
    (
        PROMPT + "resume {token_ids: 272}",
        Reason.TOKEN_ID_OUT_OF_RANGE,
        {"field": "resume[0].token_ids", "token_id": "272", "position": "0", "vocab_size": "272"},
    ),
    (
        PROMPT + "stopping {max_tokens: 0}",
        STOPPING,
        {"field": "stopping.max_tokens", "value": "0", "bounds": "[1, inf)"},
    ),
    (
        PROMPT + "stopping {min_tokens: 9}",
        STOPPING,
        {"field": "stopping.min_tokens", "value": "9", "bounds": "[0, 8]"},
    ),
    (
        PROMPT + "stopping {stop: ['ok', '']}",
        STOPPING,
        {"field": "stopping.stop[1]", "value": "0", "bounds": "[1, 256] characters"},
    ),
    (
        PROMPT + "stopping {" + "stop: 'x' " * 17 + "}",
        STOPPING,
        {"field": "stopping.stop", "value": "17", "bounds": "[0, 16] strings"},
    ),
    (
        PROMPT + "stopping {" + "stop_token_ids: 1 " * 65 + "}",
        STOPPING,
        {"field": "stopping.stop_token_ids", "value": "65", "bounds": "[0, 64] ids"},
    ),
    (
        PROMPT + "stopping {stop_token_ids: [1, 272]}",
        Reason.TOKEN_ID_OUT_OF_RANGE,
        {"field": "stopping.stop_token_ids[1]", "value": "272", "bounds": "[0, 272)"},
    ),
]


@pytest.mark.parametrize(("text", "reason", "metadata"), REFUSED)
def test_a_wrong_field_is_refused_with_its_numbers(
    text: str, reason: Reason, metadata: dict[str, str], model: ServedModel
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        translated(text, model)
    assert (caught.value.reason, caught.value.metadata) == (reason, metadata)


def test_a_constraint_that_cannot_be_compiled_is_refused(model: ServedModel) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        translated(PROMPT + "sampling {regex: '('}", model)
    assert (caught.value.reason, caught.value.metadata["field"]) == (Reason.CONSTRAINT_INVALID, "sampling.regex")


def test_log_probabilities_that_may_not_fit_in_one_answer_are_refused(model: ServedModel) -> None:
    wide = dataclasses.replace(model, max_model_len=10_000)
    text = PROMPT + "output {logprobs: 20} stopping {max_tokens: %d}"
    check_answer_len(translated(text % 8322, wide))
    with pytest.raises(InvalidRequestError) as caught:
        check_answer_len(translated(text % 8323, wide))
    assert (caught.value.reason, caught.value.metadata) == (
        Reason.OUTPUT_INVALID,
        {"field": "output.logprobs", "logprobs": "174783", "max_logprobs": "174762"},
    )


def test_every_field_of_a_request_stands_in_the_table() -> None:
    """A field that is added to the wire contract must be served, never ignored."""
    texts = [text for text, _, _ in ACCEPTED]
    assert set(leaves(pb.GenerateRequest.DESCRIPTOR.fields)) == {path for text in texts for path in set_in(text)}


def leaves(fields: Any, prefix: str = "") -> list[str]:
    """Paths of all fields down to sampling, stopping and output; prompts and constraints are one each."""
    paths = []
    for field in fields:
        if field.name in ("sampling", "stopping", "output"):
            paths += leaves(field.message_type.fields, f"{field.name}.")
        else:
            paths.append(prefix + field.name)
    return paths


def set_in(text: str) -> list[str]:
    message = request(text)
    names = [field.name for field, _ in message.ListFields()]
    nested = {"sampling", "stopping", "output"} & set(names)
    return [name for name in names if name not in nested] + [
        f"{name}.{field.name}" for name in nested for field, _ in getattr(message, name).ListFields()
    ]


def test_the_two_request_messages_are_field_for_field_the_same() -> None:
    unary, stream = pb.GenerateRequest.DESCRIPTOR, pb.StreamGenerateRequest.DESCRIPTOR
    assert [facts(field) for field in stream.fields] == [facts(field) for field in unary.fields]
    assert [oneof.name for oneof in stream.oneofs] == [oneof.name for oneof in unary.oneofs]


def facts(field: FieldDescriptor) -> tuple[object, ...]:
    message = field.message_type.full_name if field.message_type else None
    oneof = field.containing_oneof.name if field.containing_oneof else None
    return field.name, field.number, field.type, field.is_repeated, field.has_presence, message, oneof


def test_both_request_messages_are_translated_alike(model: ServedModel) -> None:
    text = (
        PROMPT + "request_id: 'r' sampling {seed: 4 top_k: 2} stopping {stop: 'x'} output {token_ids: true} priority: 2"
    )
    stream: AnyGenerateRequest = text_format.Parse(text, pb.StreamGenerateRequest())
    assert request_from_proto(stream, model) == translated(text, model)


def test_ids_and_seeds_are_made_where_absent(model: ServedModel) -> None:
    first, second = translated(PROMPT, model), translated(PROMPT, model)
    assert first.request_id != second.request_id
    assert len(first.request_id) == 32
    assert first.sampling.seed != second.sampling.seed
    assert first.sampling == dataclasses.replace(SamplingParams(), seed=first.sampling.seed)


def test_a_chat_ends_where_the_answer_begins_by_default(model: ServedModel) -> None:
    wide = dataclasses.replace(model, max_model_len=100)
    wanted = translated("chat {messages {role: 'user' content: 'A'}}", wide)
    assert wanted.prompt_token_ids == (
        IM_START_ID,
        *b"user\nA",
        IM_END_ID,
        *b"\n",
        IM_START_ID,
        *b"assistant\n",
    )


def test_a_request_may_leave_the_model_out(model: ServedModel) -> None:
    check_model("", model)
    check_model("tiny", model)
    with pytest.raises(InvalidRequestError, match="model 'Tiny' is not served here; this is 'tiny'"):
        check_model("Tiny", model)


USAGE = Usage(
    prompt_len=9,
    num_completion_tokens=2,
    num_cached_tokens=4,
    queue_s=0.25,
    prefill_s=1.5,
    kv_transfer_s=0.0,
    first_token_s=1.75,
    total_s=2.000000001,
)
USAGE_TEXT = """
    prompt_tokens: 9 completion_tokens: 2 cached_tokens: 4
    timings {
        queue {nanos: 250000000} prefill {seconds: 1 nanos: 500000000} kv_transfer {}
        first_token {seconds: 1 nanos: 750000000} total {seconds: 2 nanos: 1}
    }
"""
BY_TOKEN = Finish(FinishReason.STOP, matched_token_id=0)
BY_TEXT = Finish(FinishReason.STOP, matched_text="END")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Started("r", 9, 4), "started {request_id: 'r' prompt_tokens: 9 cached_tokens: 4}"),
        (
            Started("r", 2, 0, (TokenLogprobs(TokenLogprob(65, -0.5, 1)),)),
            """started {
                request_id: 'r' prompt_tokens: 2
                prompt_logprobs {token {token_id: 65 logprob: -0.5 rank: 1 text: 'A'}}
            }""",
        ),
        (
            Delta("b", (66,), 3, (TokenLogprobs(TokenLogprob(66, -2, 2), (TokenLogprob(67, -1, 1),)),)),
            """delta {
                index: 3 text: 'b' token_ids: 66
                logprobs {
                    token {token_id: 66 logprob: -2 rank: 2 text: 'B'}
                    alternatives {token_id: 67 logprob: -1 rank: 1 text: 'C'}
                }
            }""",
        ),
        (Finished(BY_TEXT, 2), "finished {index: 2 finish_reason: FINISH_REASON_STOP matched_stop {text: 'END'}}"),
        (Delta("ab", (1, 2)), "delta {text: 'ab' token_ids: [1, 2]}"),
        (Finished(Finish(FinishReason.LENGTH)), "finished {finish_reason: FINISH_REASON_LENGTH}"),
        (Finished(BY_TOKEN), "finished {finish_reason: FINISH_REASON_STOP matched_stop {token_id: 0}}"),
        (Finished(BY_TEXT), "finished {finish_reason: FINISH_REASON_STOP matched_stop {text: 'END'}}"),
        (USAGE, f"usage {{{USAGE_TEXT}}}"),
    ],
)
def test_events_as_messages(event: Any, text: str) -> None:
    assert event_to_proto(event, True, chr) == text_format.Parse(text, pb.StreamGenerateResponse())


def test_token_ids_are_sent_on_request_only() -> None:
    message = event_to_proto(Delta("ab", (1, 2)), False, chr)
    assert message == text_format.Parse("delta {text: 'ab'}", pb.StreamGenerateResponse())


def test_several_completions_as_one_answer() -> None:
    events: list[GenerationEvent] = [
        Started("r", 9, 4),
        Delta("x", (1,), 1),
        Delta("a", (2,)),
        Finished(Finish(FinishReason.LENGTH), 1),
        Delta("b", (3,)),
        Finished(BY_TEXT),
        USAGE,
    ]
    text = f"""
        request_id: 'r'
        completions {{text: 'ab' finish_reason: FINISH_REASON_STOP matched_stop {{text: 'END'}}}}
        completions {{index: 1 text: 'x' finish_reason: FINISH_REASON_LENGTH}}
        usage {{{USAGE_TEXT}}}
    """
    assert events_to_proto(events, False, chr) == text_format.Parse(text, pb.GenerateResponse())


@pytest.mark.parametrize(("wants_token_ids", "ids"), [(True, "token_ids: [1, 2, 3]"), (False, "")])
def test_a_stream_as_one_answer(wants_token_ids: bool, ids: str) -> None:
    deltas = [Delta("a", (1,)), Delta("", (2,)), Delta("bc", (3,))]
    text = f"""
        request_id: 'r'
        completions {{text: 'abc' {ids} finish_reason: FINISH_REASON_STOP matched_stop {{text: 'END'}}}}
        usage {{{USAGE_TEXT}}}
    """
    events: list[GenerationEvent] = [Started("r", 9, 4), *deltas, Finished(BY_TEXT), USAGE]
    message = events_to_proto(events, wants_token_ids, chr)
    assert message == text_format.Parse(text, pb.GenerateResponse())


def test_the_model_as_a_message(model: ServedModel) -> None:
    text = f"""
        model: 'tiny' fingerprint: 'f00d' max_model_len: 20 vocab_size: 272 dtype: 'float32'
        eos_token_ids: [{EOS_TOKEN_ID}, {IM_END_ID}] has_chat_template: true hidden_size: 2
    """
    assert model_to_proto(model) == text_format.Parse(text, pb.GetModelResponse())

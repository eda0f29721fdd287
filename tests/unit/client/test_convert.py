import math
from typing import Any, cast

import pytest

from baton.v1 import generation_pb2 as pb
from baton_client import (
    Chat,
    ChatMessage,
    Choices,
    Completion,
    Delta,
    Event,
    FieldViolation,
    Finished,
    FinishReason,
    GenerateResult,
    Grammar,
    InvalidArgument,
    JsonSchema,
    Output,
    Prompt,
    Regex,
    Sampling,
    Started,
    Stopping,
    Timings,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from baton_client.convert import event_from_message, fill_prompt, fill_request, result_from_message
from baton_client.values import Constraint, Options


def _request(prompt: Prompt = "a", **options: Any) -> pb.GenerateRequest:
    return fill_request(pb.GenerateRequest(), prompt, Options(**options))  # type: ignore[typeddict-item]


def test_a_bare_prompt_sets_nothing_else() -> None:
    assert _request("hi") == pb.GenerateRequest(text="hi")


def test_the_kinds_of_prompt() -> None:
    assert _request([1, 2]).token_ids.ids == [1, 2]
    assert _request(range(3)).token_ids.ids == [0, 1, 2]
    assert _request([]).WhichOneof("prompt") == "token_ids"
    chat = _request([ChatMessage("system", "be kind"), ChatMessage("user", "hi")]).chat
    assert [(message.role, message.content) for message in chat.messages] == [("system", "be kind"), ("user", "hi")]
    assert not chat.HasField("add_generation_prompt")
    open_chat = _request(Chat([ChatMessage("user", "hi")], add_generation_prompt=False)).chat
    assert open_chat == pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], add_generation_prompt=False)
    assert _request(Chat([])).WhichOneof("prompt") == "chat"


def test_a_chat_may_say_where_it_ends() -> None:
    messages = [ChatMessage("user", "hi"), ChatMessage("assistant", "Hel")]
    assert _request(Chat(messages)) == _request(messages)
    assert _request(Chat(messages, add_generation_prompt=False)).chat.HasField("add_generation_prompt")
    assert _request(Chat([])).WhichOneof("prompt") == "chat"
    tokenize = fill_prompt(pb.TokenizeRequest(), Chat(messages, add_generation_prompt=True))
    assert tokenize.chat.add_generation_prompt
    assert len(tokenize.chat.messages) == 2


def test_completions_that_were_begun_before() -> None:
    assert list(_request(resumptions={2: [5, 6], 0: (7,)}).resume) == [
        pb.Resumption(index=2, token_ids=[5, 6]),
        pb.Resumption(index=0, token_ids=[7]),
    ]


def test_zero_is_sent_and_none_is_not() -> None:
    request = _request(temperature=0, top_k=0, seed=None, max_tokens=None, priority=0)
    assert request.sampling.HasField("temperature")
    assert request.sampling.HasField("top_k")
    assert request.HasField("priority")
    assert not request.sampling.HasField("seed")
    assert not request.HasField("stopping")


def test_every_option_has_its_field() -> None:
    request = _request(
        request_id="r",
        model="m",
        priority=-1,
        cache_salt="s",
        temperature=0.5,
        top_k=3,
        top_p=0.5,
        min_p=0.25,
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logit_bias={7: -1.0},
        seed=2**63,
        n=2,
        max_tokens=5,
        min_tokens=1,
        stop=["x", "é"],
        stop_token_ids=[9],
        ignore_eos=True,
        include_stop=True,
        logprobs=0,
        prompt_logprobs=2,
        token_ids=True,
        skip_special_tokens=False,
    )
    assert request == pb.GenerateRequest(
        text="a",
        request_id="r",
        model="m",
        priority=-1,
        cache_salt="s",
        sampling=pb.Sampling(
            temperature=0.5,
            top_k=3,
            top_p=0.5,
            min_p=0.25,
            repetition_penalty=1.5,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            logit_bias={7: -1.0},
            seed=2**63,
            n=2,
        ),
        stopping=pb.Stopping(
            max_tokens=5, min_tokens=1, stop=["x", "é"], stop_token_ids=[9], ignore_eos=True, include_stop=True
        ),
        output=pb.Output(logprobs=0, prompt_logprobs=2, token_ids=True, skip_special_tokens=False),
    )


def test_values_given_whole_are_changed_by_name() -> None:
    request = _request(
        sampling=Sampling(temperature=0.5, top_k=3),
        top_k=None,
        stopping=Stopping(max_tokens=4),
        stop="\n\n",
        output=Output(token_ids=True),
    )
    assert request == pb.GenerateRequest(
        text="a",
        sampling=pb.Sampling(temperature=0.5),
        stopping=pb.Stopping(max_tokens=4, stop=["\n\n"]),
        output=pb.Output(token_ids=True),
    )


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (JsonSchema("{}"), pb.Sampling(json_schema="{}")),
        (Regex("a+"), pb.Sampling(regex="a+")),
        (Grammar("root ::= 'a'"), pb.Sampling(grammar="root ::= 'a'")),
        (Choices(("yes", "no")), pb.Sampling(choices=pb.Choices(values=["yes", "no"]))),
    ],
)
def test_constraints(constraint: Constraint, message: pb.Sampling) -> None:
    assert _request(constraint=constraint).sampling == message


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_k": -1}, "sampling.top_k"),
        ({"seed": 2**64}, "sampling.seed"),
        ({"max_tokens": 1.5}, "stopping.max_tokens"),
        ({"stop": ["\udc80"]}, "stopping.stop"),
        ({"stop_token_ids": [2**32]}, "stopping.stop_token_ids"),
        ({"request_id": 5}, "request_id"),
        ({"resumptions": {0: [1], 1: [-1]}}, "resume[1].token_ids"),
        ({"resumptions": {-1: [1]}}, "resume[0].index"),
        ({"prompt": Chat([ChatMessage("user", "a")], cast("bool", "yes"))}, "chat.add_generation_prompt"),
        ({"prompt": [1, -1]}, "token_ids.ids"),
        ({"prompt": [ChatMessage("user", "\ud800")]}, "chat.messages[0].content"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        _request(**options)
    assert raised.value.metadata["field"] == field
    assert raised.value.reason == "MALFORMED_MESSAGE"
    assert raised.value.message.startswith(f"{field}: ")
    assert raised.value.field_violations == (FieldViolation(field, raised.value.message),)


def test_the_server_judges_what_fits_the_wire() -> None:
    assert math.isnan(_request(temperature=math.nan).sampling.temperature)
    assert _request(max_tokens=0).stopping.HasField("max_tokens")


def test_an_option_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        _request(temprature=1)


def test_token_ids_cannot_be_tokenized() -> None:
    with pytest.raises(TypeError, match="text or chat"):
        fill_prompt(pb.TokenizeRequest(), [1])


def test_events_of_a_newer_server_are_passed_over() -> None:
    assert event_from_message(pb.StreamGenerateResponse()) is None


def test_log_probabilities_stops_and_unknown_reasons() -> None:
    result = result_from_message(
        pb.GenerateResponse(
            request_id="r",
            completions=[
                pb.Completion(
                    index=1,
                    text="x",
                    logprobs=[
                        pb.TokenLogprobs(
                            token=pb.TokenLogprob(token_id=5, logprob=-0.5, rank=2, text="x"),
                            alternatives=[pb.TokenLogprob(token_id=6, logprob=-0.25, rank=1, text="y")],
                        )
                    ],
                    finish_reason=99,  # type: ignore[arg-type]
                    matched_stop=pb.MatchedStop(token_id=0),
                )
            ],
        )
    )
    (completion,) = result.completions
    assert completion.logprobs == (TokenLogprobs(TokenLogprob(5, -0.5, 2, "x"), (TokenLogprob(6, -0.25, 1, "y"),)),)
    assert completion.finish_reason is FinishReason.UNKNOWN
    assert completion.matched_stop == 0


def test_the_events_of_a_stream_make_a_result() -> None:
    usage = Usage(2, 3, 1, Timings(0.0, 0.0, 0.0, 0.0, 0.0))
    first, second = (TokenLogprobs(TokenLogprob(token_id, -0.5, 2, "x"), ()) for token_id in (5, 6))
    events: list[Event] = [
        Started("r", 2, 0, (first,)),
        Delta(1, "a", (5,), (first,)),
        Delta(0, "", (9,)),
        Delta(1, "b", (6,), (second,)),
        Finished(1, FinishReason.STOP, "b"),
        Finished(0, FinishReason.LENGTH),
        usage,
    ]
    result = GenerateResult.from_events(events)
    assert (result.request_id, result.prompt_logprobs, result.usage) == ("r", (first,), usage)
    assert result.completions == (
        Completion(0, "", (9,), (), FinishReason.LENGTH, None),
        Completion(1, "ab", (5, 6), (first, second), FinishReason.STOP, "b"),
    )
    with pytest.raises(ValueError, match="not all events"):
        GenerateResult.from_events(events[:-1])


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("prompt", {"prompt": 3}),
        ("prompt", {"prompt": b"abc"}),
        ("prompt", {"prompt": {"role": "user"}}),
        ("prompt", {"prompt": None}),
        ("chat.messages[0]", {"prompt": Chat("abc")}),  # type: ignore[arg-type]
        ("chat.messages[1]", {"prompt": [ChatMessage("user", "a"), "b"]}),
        ("sampling", {"sampling": {"temperature": 1}}),
        ("stopping", {"stopping": None}),
        ("output", {"output": Sampling()}),
        ("sampling.logit_bias", {"logit_bias": [1, 2]}),
        ("sampling.constraint", {"constraint": "[a-z]+"}),
        ("sampling.constraint", {"constraint": Regex(None)}),  # type: ignore[arg-type]
        ("sampling.json_schema", {"constraint": JsonSchema({"type": "object"})}),  # type: ignore[arg-type]
        ("sampling.choices.values", {"constraint": Choices("abc")}),  # type: ignore[arg-type]
        ("resumptions", {"resumptions": [1, 2]}),
    ],
)
def test_values_of_a_wrong_shape_are_refused_by_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        _request(**options)
    assert caught.value.metadata["field"] == field
    assert caught.value.field_violations[0].field == field

"""Between the client's values and the messages of baton.v1: the one place that knows both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from baton.v1 import generation_pb2 as pb
from baton_client import values
from baton_client.errors import InvalidArgument, invalid_argument
from baton_client.targets import MAX_EMBEDDINGS_BYTES

_Options = TypeVar("_Options", values.Sampling, values.Stopping, values.Output)
_Request = TypeVar("_Request", pb.GenerateRequest, pb.StreamGenerateRequest)
_Prompted = TypeVar("_Prompted", pb.GenerateRequest, pb.StreamGenerateRequest, pb.TokenizeRequest)

_FINISH_REASONS = {
    pb.FINISH_REASON_STOP: values.FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: values.FinishReason.LENGTH,
}


def fill_request(request: _Request, prompt: values.Prompt, options: values.Options) -> _Request:
    """Writes prompt and options into an empty `request` and returns it.

    Raises:
        InvalidArgument: a value does not fit its field's type; `metadata["field"]` names it.
        TypeError: an option that does not exist.
    """
    rest: dict[str, Any] = dict(options)
    sampling = _merged("sampling", values.Sampling(), rest)
    stopping = _merged("stopping", values.Stopping(), rest)
    output = _merged("output", values.Output(), rest)
    resumptions = rest.pop("resumptions", None) or {}
    unknown = rest.keys() - {"request_id", "model", "priority", "cache_salt"}
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    fill_prompt(request, prompt)
    _assign(request, "", rest)
    if not isinstance(resumptions, Mapping):
        raise _misfit("resumptions", resumptions, "token ids by index")
    for index, token_ids in resumptions.items():
        _assign(request.resume.add(), f"resume[{len(request.resume) - 1}].", {"index": index, "token_ids": token_ids})
    if sampling != values.Sampling():
        _fill_sampling(request.sampling, sampling)
    if stopping != values.Stopping():
        _fill_stopping(request.stopping, stopping)
    if output != values.Output():
        _assign(request.output, "output.", _as_dict(output))
    return request


def fill_prompt(request: _Prompted, prompt: values.Prompt) -> _Prompted:
    """Writes the prompt into `request` and returns it; an empty sequence counts as token ids."""
    if isinstance(prompt, str):
        _assign(request, "", {"text": prompt})
    elif isinstance(prompt, values.Embeddings):
        if isinstance(request, pb.TokenizeRequest):
            raise TypeError("tokenize takes text or chat messages")
        _fill_embeddings(request.embeddings, prompt)
    elif isinstance(prompt, values.Chat):
        _fill_chat(request.chat, prompt)
    elif not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray | memoryview | Mapping):
        raise _misfit("prompt", prompt, "a text, token ids, chat messages or embeddings")
    elif (items := list(prompt)) and isinstance(items[0], values.ChatMessage):
        _fill_chat(request.chat, values.Chat(cast("Sequence[values.ChatMessage]", items)))
    elif isinstance(request, pb.TokenizeRequest):
        raise TypeError("tokenize takes text or chat messages")
    else:
        request.token_ids.SetInParent()
        _assign(request.token_ids, "token_ids.", {"ids": items})
    return request


def detokenize_request(token_ids: Sequence[int], model: str, skip_special_tokens: bool | None) -> pb.DetokenizeRequest:
    """The DetokenizeRequest of these values."""
    request = pb.DetokenizeRequest(model=model)
    _assign(request, "", {"token_ids": token_ids, "skip_special_tokens": skip_special_tokens})
    return request


def _merged(name: str, default: _Options, options: dict[str, Any]) -> _Options:
    """The group that `options` has under `name`, with the fields that it names beside; all are taken out of it."""
    base = options.pop(name, default)
    if not isinstance(base, type(default)):
        raise _misfit(name, base, type(default).__name__)
    changes = {field.name: options.pop(field.name) for field in fields(base) if field.name in options}
    return replace(base, **changes)


def _fill_chat(message: pb.Chat, chat: values.Chat) -> None:
    message.SetInParent()
    for index, chat_message in enumerate(chat.messages):
        if not isinstance(chat_message, values.ChatMessage):
            raise _misfit(f"chat.messages[{index}]", chat_message, "a ChatMessage")
        _assign(message.messages.add(), f"chat.messages[{index}].", _as_dict(chat_message))
    _assign(message, "chat.", {"add_generation_prompt": chat.add_generation_prompt})


def _fill_embeddings(message: pb.Embeddings, embeddings: values.Embeddings) -> None:
    num_bytes = len(embeddings.data)
    if num_bytes > MAX_EMBEDDINGS_BYTES:
        raise invalid_argument(
            f"embeddings.data has {num_bytes} bytes; at most {MAX_EMBEDDINGS_BYTES} can be sent",
            "embeddings.data",
            num_bytes,
        )
    message.SetInParent()
    _assign(message, "embeddings.", _as_dict(embeddings))


def _fill_sampling(message: pb.Sampling, sampling: values.Sampling) -> None:
    given = _as_dict(sampling)
    constraint = given.pop("constraint")
    _assign(message, "sampling.", given)
    match constraint:
        case values.JsonSchema(schema):
            _assign(message, "sampling.", {"json_schema": schema})
        case values.Regex(pattern):
            _assign(message, "sampling.", {"regex": pattern})
        case values.Grammar(grammar):
            _assign(message, "sampling.", {"grammar": grammar})
        case values.Choices(choices):
            message.choices.SetInParent()
            _assign(message.choices, "sampling.choices.", {"values": choices})
        case None:
            return
        case _:
            raise _misfit("sampling.constraint", constraint, "a JsonSchema, Regex, Grammar or Choices")
    if message.WhichOneof("constraint") is None:  # its text is None
        raise _misfit("sampling.constraint", constraint, "a text")


def _fill_stopping(message: pb.Stopping, stopping: values.Stopping) -> None:
    stops = (stopping.stop,) if isinstance(stopping.stop, str) else stopping.stop
    _assign(message, "stopping.", {**_as_dict(stopping), "stop": stops})


def _misfit(field: str, value: object, needed: str) -> InvalidArgument:
    return invalid_argument(f"{field} needs {needed}, not {type(value).__name__}", field, value)


def _as_dict(
    value: values.Sampling | values.Stopping | values.Output | values.ChatMessage | values.Embeddings,
) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _assign(message: Message, prefix: str, given: Mapping[str, object]) -> None:
    """Sets the fields that are not None; an error names the field, which protobuf's own does not."""
    for name, value in given.items():
        if value is None:
            continue
        try:
            if isinstance(value, Mapping):
                getattr(message, name).update(value)
            elif isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | memoryview):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError, AttributeError) as error:  # the last: of another shape
            raise invalid_argument(f"{prefix}{name}: {error}", f"{prefix}{name}", value) from error


def result_from_message(response: pb.GenerateResponse) -> values.GenerateResult:
    """The value of a GenerateResponse."""
    return values.GenerateResult(
        request_id=response.request_id,
        completions=tuple(
            values.Completion(
                index=completion.index,
                text=completion.text,
                token_ids=tuple(completion.token_ids),
                logprobs=_logprobs(completion.logprobs),
                finish_reason=_finish_reason(completion.finish_reason),
                matched_stop=_matched_stop(completion.matched_stop),
            )
            for completion in response.completions
        ),
        prompt_logprobs=_logprobs(response.prompt_logprobs),
        usage=_usage(response.usage),
    )


def event_from_message(response: pb.StreamGenerateResponse) -> values.Event | None:
    """The value of a stream's message; None for a kind of event that this client is too old for."""
    match response.WhichOneof("event"):
        case "started":
            started = response.started
            return values.Started(
                started.request_id, started.prompt_tokens, started.cached_tokens, _logprobs(started.prompt_logprobs)
            )
        case "delta":
            delta = response.delta
            return values.Delta(delta.index, delta.text, tuple(delta.token_ids), _logprobs(delta.logprobs))
        case "finished":
            finished = response.finished
            return values.Finished(
                finished.index, _finish_reason(finished.finish_reason), _matched_stop(finished.matched_stop)
            )
        case "usage":
            return _usage(response.usage)
        case _:
            return None


def model_from_message(response: pb.GetModelResponse) -> values.ModelInfo:
    """The value of a GetModelResponse."""
    return values.ModelInfo(
        model=response.model,
        fingerprint=response.fingerprint,
        max_model_len=response.max_model_len,
        vocab_size=response.vocab_size,
        eos_token_ids=tuple(response.eos_token_ids),
        has_chat_template=response.has_chat_template,
        dtype=response.dtype,
        hidden_size=response.hidden_size,
    )


def _finish_reason(reason: pb.FinishReason.ValueType) -> values.FinishReason:
    return _FINISH_REASONS.get(reason, values.FinishReason.UNKNOWN)


def _matched_stop(stop: pb.MatchedStop) -> int | str | None:
    match stop.WhichOneof("stop"):
        case "token_id":
            return stop.token_id
        case "text":
            return stop.text
        case _:
            return None


def _usage(usage: pb.Usage) -> values.Usage:
    timings = usage.timings
    return values.Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        values.Timings(
            queue=_seconds(timings.queue),
            prefill=_seconds(timings.prefill),
            kv_transfer=_seconds(timings.kv_transfer),
            first_token=_seconds(timings.first_token),
            total=_seconds(timings.total),
        ),
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _logprobs(messages: Iterable[pb.TokenLogprobs]) -> tuple[values.TokenLogprobs, ...]:
    return tuple(
        values.TokenLogprobs(_logprob(message.token), tuple(map(_logprob, message.alternatives)))
        for message in messages
    )


def _logprob(message: pb.TokenLogprob) -> values.TokenLogprob:
    return values.TokenLogprob(message.token_id, message.logprob, message.rank, message.text)

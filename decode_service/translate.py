"""Messages of `GenerationService` to domain values and back: the one place that knows both."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from baton.v1 import generation_pb2
from decode_service.request import Delta, Finished, GenerationEvent, GenerationRequest, Started, Usage
from shared.errors import InvalidRequestError, Reason, UnimplementedFieldError, require
from shared.rpc.convert import sampling_from_proto
from shared.rpc.prompt import check_prompt_len, embeddings_from_proto
from shared.text.stopping import Finish, FinishReason, StoppingParams
from shared.text.tokenizer import Tokenizer
from shared.text.types import ChatMessage

AnyGenerateRequest = generation_pb2.GenerateRequest | generation_pb2.StreamGenerateRequest

MAX_REQUEST_ID_LEN = 128

MAX_CACHE_SALT_LEN = 1024
"""It goes on to prefill, whose messages may be no larger than decode's own."""

_UNIMPLEMENTED_SAMPLING = (
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "json_schema",
    "regex",
    "grammar",
    "choices",
)
_UNIMPLEMENTED_OUTPUT = ("logprobs", "prompt_logprobs")

_FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


@dataclass(frozen=True)
class ServedModel:
    """What requests are checked against.

    Attributes:
        name: as in the config; requests may name it or leave it out.
        max_model_len: most tokens of a prompt and its completion together.
        hidden_size: values of one vector of an embeddings prompt.
    """

    name: str
    fingerprint: str
    dtype: str
    max_model_len: int
    vocab_size: int
    hidden_size: int
    default_max_tokens: int
    tokenizer: Tokenizer

    @property
    def max_text_len(self) -> int:
        """Characters that `max_model_len` tokens can stand for, at most."""
        return self.max_model_len * self.tokenizer.vocabulary.longest_token_len


def request_from_proto(message: AnyGenerateRequest, model: ServedModel) -> GenerationRequest:
    """Validates a request and tokenizes its prompt, or reads its vectors. Takes long: run it off the event loop.

    Raises:
        InvalidRequestError: a field is wrong; the metadata has the numbers.
        UnimplementedFieldError: a field is set whose behaviour this version does not have.
    """
    check_model(message.model, model)
    _refuse_unimplemented(message)
    sampling = sampling_from_proto(message.sampling, default_seed=secrets.randbits(64))
    if message.sampling.HasField("n"):
        require(message.sampling.n >= 1, "sampling.n", message.sampling.n, "[1, inf)", Reason.SAMPLING_INVALID)
    prompt, input_embeddings = _prompt(message, model)
    check_prompt_len(len(prompt), model.max_model_len)
    room = model.max_model_len - len(prompt)
    stopping = _stopping(message.stopping, default_max_tokens=min(model.default_max_tokens, room))
    stopping.check_vocabulary(model.vocab_size)
    output = message.output
    return GenerationRequest(
        request_id=_request_id(message.request_id),
        prompt_token_ids=tuple(prompt),
        sampling=sampling,
        stopping=stopping,
        max_total_len=len(prompt) + min(stopping.max_tokens, room),
        skip_special_tokens=output.skip_special_tokens if output.HasField("skip_special_tokens") else True,
        priority=message.priority,
        cache_salt=_cache_salt(message.cache_salt),
        input_embeddings=input_embeddings,
    )


def check_model(name: str, model: ServedModel) -> None:
    """Refuses a request for another model.

    Raises:
        InvalidRequestError: MODEL_UNKNOWN.
    """
    if name not in ("", model.name):
        raise InvalidRequestError(
            f"model {name!r} is not served here; this is {model.name!r}",
            Reason.MODEL_UNKNOWN,
            {"model": name, "served_model": model.name},
        )


def chat_messages(chat: generation_pb2.Chat) -> list[ChatMessage]:
    """The conversation of a chat prompt."""
    return [ChatMessage(message.role, message.content) for message in chat.messages]


def encode_text(text: str, model: ServedModel) -> list[int]:
    """The token ids of a text.

    Raises:
        InvalidRequestError: PROMPT_TOO_LONG, before time is spent on tokenizing what can never fit.
    """
    _check_text_len(len(text), model)
    return model.tokenizer.encode(text)


def encode_chat(chat: generation_pb2.Chat, model: ServedModel) -> list[int]:
    """The token ids of a chat prompt.

    Raises:
        InvalidRequestError: CHAT_INVALID, or PROMPT_TOO_LONG.
    """
    _check_text_len(sum(len(message.content) for message in chat.messages), model)
    add_generation_prompt = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    return model.tokenizer.encode_chat(chat_messages(chat), add_generation_prompt)


def check_token_ids(token_ids: Iterable[int], model: ServedModel) -> None:
    """Refuses ids that the model does not have.

    Raises:
        InvalidRequestError: TOKEN_ID_OUT_OF_RANGE, with the first one and its position.
    """
    for position, token_id in enumerate(token_ids):
        if token_id >= model.vocab_size:
            raise InvalidRequestError(
                f"token id {token_id} at position {position} is out of range; needs 0 to {model.vocab_size - 1}",
                Reason.TOKEN_ID_OUT_OF_RANGE,
                {"token_id": token_id, "position": position, "vocab_size": model.vocab_size},
            )


def event_to_proto(event: GenerationEvent, wants_token_ids: bool) -> generation_pb2.StreamGenerateResponse:
    """One event as a message of the stream."""
    match event:
        case Started(request_id, prompt_len, num_cached_tokens):
            started = generation_pb2.Started(
                request_id=request_id, prompt_tokens=prompt_len, cached_tokens=num_cached_tokens
            )
            return generation_pb2.StreamGenerateResponse(started=started)
        case Delta(text, token_ids):
            delta = generation_pb2.Delta(index=0, text=text, token_ids=token_ids if wants_token_ids else ())
            return generation_pb2.StreamGenerateResponse(delta=delta)
        case Finished(finish):
            return generation_pb2.StreamGenerateResponse(
                finished=generation_pb2.Finished(
                    index=0, finish_reason=_FINISH_REASONS[finish.reason], matched_stop=_matched_stop(finish)
                )
            )
        case Usage():
            return generation_pb2.StreamGenerateResponse(usage=usage_to_proto(event))


def completion_to_proto(
    request_id: str, deltas: list[Delta], finish: Finish, usage: Usage, wants_token_ids: bool
) -> generation_pb2.GenerateResponse:
    """A whole stream as one answer."""
    completion = generation_pb2.Completion(
        index=0,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids] if wants_token_ids else (),
        finish_reason=_FINISH_REASONS[finish.reason],
        matched_stop=_matched_stop(finish),
    )
    return generation_pb2.GenerateResponse(request_id=request_id, completions=[completion], usage=usage_to_proto(usage))


def usage_to_proto(usage: Usage) -> generation_pb2.Usage:
    """Counts and times as a message."""
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_len,
        completion_tokens=usage.num_completion_tokens,
        cached_tokens=usage.num_cached_tokens,
        timings=generation_pb2.Timings(
            queue=_duration(usage.queue_s),
            prefill=_duration(usage.prefill_s),
            kv_transfer=_duration(usage.kv_transfer_s),
            first_token=_duration(usage.first_token_s),
            total=_duration(usage.total_s),
        ),
    )


def model_to_proto(model: ServedModel) -> generation_pb2.GetModelResponse:
    """What is served, as a message."""
    return generation_pb2.GetModelResponse(
        model=model.name,
        fingerprint=model.fingerprint,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=model.tokenizer.eos_token_ids,
        has_chat_template=model.tokenizer.has_chat_template,
        dtype=model.dtype,
        hidden_size=model.hidden_size,
    )


def _refuse_unimplemented(message: AnyGenerateRequest) -> None:
    _refuse_set(message.sampling, "sampling", _UNIMPLEMENTED_SAMPLING)
    if message.sampling.logit_bias:
        raise UnimplementedFieldError("sampling.logit_bias")
    if message.sampling.n > 1:
        raise UnimplementedFieldError("sampling.n")
    _refuse_set(message.output, "output", _UNIMPLEMENTED_OUTPUT)


def _refuse_set(message: Message, path: str, fields: Iterable[str]) -> None:
    for field in fields:
        if message.HasField(field):
            raise UnimplementedFieldError(f"{path}.{field}")


def _request_id(requested: str) -> str:
    if len(requested) > MAX_REQUEST_ID_LEN:
        raise InvalidRequestError(
            f"request_id has {len(requested)} characters; at most {MAX_REQUEST_ID_LEN} are allowed",
            Reason.REQUEST_ID_INVALID,
            {"length": len(requested), "max_length": MAX_REQUEST_ID_LEN},
        )
    return requested or secrets.token_hex(16)


def _cache_salt(salt: str) -> str:
    if len(salt) > MAX_CACHE_SALT_LEN:
        raise InvalidRequestError(
            f"cache_salt has {len(salt)} characters; at most {MAX_CACHE_SALT_LEN} are allowed",
            metadata={"field": "cache_salt", "length": len(salt), "max_length": MAX_CACHE_SALT_LEN},
        )
    return salt


def _prompt(message: AnyGenerateRequest, model: ServedModel) -> tuple[list[int], npt.NDArray[np.float32] | None]:
    """The prompt's token ids; or vectors, and a 0 in the place of each id."""
    if message.WhichOneof("prompt") == "embeddings":
        vectors = embeddings_from_proto(message.embeddings, model.hidden_size, model.max_model_len)
        return [0] * len(vectors), vectors
    return _prompt_token_ids(message, model), None


def _prompt_token_ids(message: AnyGenerateRequest, model: ServedModel) -> list[int]:
    match message.WhichOneof("prompt"):
        case "text":
            return encode_text(message.text, model) if message.text else []
        case "token_ids":
            check_token_ids(message.token_ids.ids, model)
            return list(message.token_ids.ids)
        case "chat":
            return encode_chat(message.chat, model)
        case _:
            raise InvalidRequestError(
                "the request has no prompt; needs one of text, token_ids, chat, embeddings", Reason.PROMPT_MISSING
            )


def _check_text_len(num_characters: int, model: ServedModel) -> None:
    if num_characters > model.max_text_len:
        raise InvalidRequestError(
            f"the text has {num_characters} characters; a context of {model.max_model_len} tokens holds at most "
            f"{model.max_text_len}",
            Reason.PROMPT_TOO_LONG,
            {
                "characters": num_characters,
                "max_characters": model.max_text_len,
                "max_model_len": model.max_model_len,
            },
        )


def _stopping(message: generation_pb2.Stopping, default_max_tokens: int) -> StoppingParams:
    return StoppingParams(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else default_max_tokens,
        min_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop=message.include_stop,
    )


def _matched_stop(finish: Finish) -> generation_pb2.MatchedStop | None:
    if finish.matched_token_id is not None:
        return generation_pb2.MatchedStop(token_id=finish.matched_token_id)
    if finish.matched_text is not None:
        return generation_pb2.MatchedStop(text=finish.matched_text)
    return None


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration

"""Requests of `GenerationService` to domain values: with `answers` the one place that knows both."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from baton.v1 import generation_pb2
from decode_service.request import GenerationRequest
from shared.constraints.compiler import ConstraintCompiler
from shared.errors import InvalidRequestError, Reason, require
from shared.rpc.convert import sampling_from_proto
from shared.rpc.options import MAX_RESPONSE_BYTES
from shared.rpc.prompt import check_prompt_len, embeddings_from_proto
from shared.sampling.logprobs import MAX_LOGPROBS
from shared.sampling.params import SamplingParams
from shared.text.stopping import StoppingParams
from shared.text.tokenizer import Tokenizer
from shared.text.types import ChatMessage

AnyGenerateRequest = generation_pb2.GenerateRequest | generation_pb2.StreamGenerateRequest

MAX_REQUEST_ID_LEN = 128

MAX_CACHE_SALT_LEN = 1024
"""It goes on to prefill, whose messages may be no larger than decode's own."""

_LOGPROB_BYTES = 48
"""Most that one log-probability takes in a message, but for tokens that are spelled at great length."""


@dataclass(frozen=True)
class ServedModel:
    """What requests are checked against.

    Attributes:
        name: as in the config; requests may name it or leave it out.
        max_model_len: most tokens of a prompt and its completion together.
        hidden_size: values of one vector of an embeddings prompt.
        max_completions: most completions of one prompt.
    """

    name: str
    fingerprint: str
    dtype: str
    max_model_len: int
    vocab_size: int
    hidden_size: int
    default_max_tokens: int
    max_completions: int
    tokenizer: Tokenizer
    constraints: ConstraintCompiler
    _texts: dict[int, str] = field(default_factory=dict, repr=False)

    @property
    def max_text_len(self) -> int:
        """Characters that `max_model_len` tokens can stand for, at most."""
        return self.max_model_len * self.tokenizer.vocabulary.longest_token_len

    def text_of(self, token_id: int) -> str:
        """What a token alone reads as, special tokens included."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.tokenizer.decode([token_id], skip_special_tokens=False)
        return text


def request_from_proto(message: AnyGenerateRequest, model: ServedModel) -> GenerationRequest:
    """Validates a request, tokenizes its prompt or reads its vectors, and compiles its constraint.

    Takes long: run it off the event loop.

    Raises:
        InvalidRequestError: a field is wrong; the metadata has its path and the numbers.
    """
    check_model(message.model, model)
    sampling = sampling_from_proto(message.sampling, default_seed=secrets.randbits(64))
    _check_sampling(sampling, model)
    prompt, input_embeddings = _prompt(message, model)
    check_prompt_len(len(prompt), model.max_model_len)
    room = model.max_model_len - len(prompt)
    default_max_tokens = min(model.default_max_tokens, room)
    stopping = _stopping(message.stopping, default_max_tokens, is_constrained=sampling.constraint is not None)
    stopping.check_vocabulary(model.vocab_size)
    max_tokens = min(stopping.max_tokens, room)
    output = message.output
    request = GenerationRequest(
        request_id=_request_id(message.request_id),
        prompt_token_ids=tuple(prompt),
        sampling=sampling,
        stopping=stopping,
        max_total_len=len(prompt) + max_tokens,
        skip_special_tokens=output.skip_special_tokens if output.HasField("skip_special_tokens") else True,
        priority=message.priority,
        cache_salt=_cache_salt(message.cache_salt),
        input_embeddings=input_embeddings,
        logprobs=output.logprobs if output.HasField("logprobs") else None,
        prompt_logprobs=output.prompt_logprobs if output.HasField("prompt_logprobs") else None,
        matcher=model.constraints.matcher(sampling.constraint) if sampling.constraint is not None else None,
        resumed=_resumed(message.resume, sampling.n, max_tokens, model),
    )
    _check_logprobs(request)
    return request


def check_answer_len(request: GenerationRequest) -> None:
    """Refuses what may not fit in one message, before it is computed.

    Raises:
        InvalidRequestError: OUTPUT_INVALID; the same can be had as a stream.
    """
    if request.logprobs is not None:
        num_tokens = request.num_completions * (request.max_total_len - request.prompt_len)
        _check_num_logprobs("output.logprobs", num_tokens, request.logprobs, "ask for a stream, or for fewer tokens")


def check_model(name: str, model: ServedModel) -> None:
    """Refuses a request for another model.

    Raises:
        InvalidRequestError: MODEL_UNKNOWN.
    """
    if name not in ("", model.name):
        raise InvalidRequestError(
            f"model {name!r} is not served here; this is {model.name!r}",
            Reason.MODEL_UNKNOWN,
            {"field": "model", "model": name, "served_model": model.name},
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
    _check_num_messages(len(chat.messages), model)
    _check_text_len(sum(len(message.content) for message in chat.messages), model)
    add_generation_prompt = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    return model.tokenizer.encode_chat(chat_messages(chat), add_generation_prompt)


def check_token_ids(token_ids: Iterable[int], model: ServedModel, path: str) -> None:
    """Refuses ids that the model does not have; `path` is where they stand.

    Raises:
        InvalidRequestError: TOKEN_ID_OUT_OF_RANGE, with the first one and its position.
    """
    for position, token_id in enumerate(token_ids):
        if token_id >= model.vocab_size:
            raise InvalidRequestError(
                f"{path}: token id {token_id} at position {position} is out of range; needs 0 to "
                f"{model.vocab_size - 1}",
                Reason.TOKEN_ID_OUT_OF_RANGE,
                {"field": path, "token_id": token_id, "position": position, "vocab_size": model.vocab_size},
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


def _check_sampling(sampling: SamplingParams, model: ServedModel) -> None:
    bounds = f"[1, {model.max_completions}] (the rows of a decode batch)"
    require(sampling.n <= model.max_completions, "sampling.n", sampling.n, bounds, Reason.SAMPLING_INVALID)
    for token_id, _ in sampling.logit_bias:
        require(
            token_id < model.vocab_size,
            f"sampling.logit_bias[{token_id}]",
            token_id,
            f"[0, {model.vocab_size})",
            Reason.TOKEN_ID_OUT_OF_RANGE,
        )


def _resumed(
    messages: Iterable[generation_pb2.Resumption], num_completions: int, max_tokens: int, model: ServedModel
) -> dict[int, tuple[int, ...]]:
    """By completion, the tokens that were generated before."""
    resumed: dict[int, tuple[int, ...]] = {}
    for place, message in enumerate(messages):
        path = f"resume[{place}]"
        is_new = message.index < num_completions and message.index not in resumed
        bounds = f"[0, {num_completions}), each once"
        require(is_new, f"{path}.index", message.index, bounds, Reason.RESUME_INVALID)
        num_tokens = len(message.token_ids)
        bounds = f"[0, {max_tokens}] tokens, which is all there may be"
        require(num_tokens <= max_tokens, f"{path}.token_ids", num_tokens, bounds, Reason.RESUME_INVALID)
        check_token_ids(message.token_ids, model, f"{path}.token_ids")
        if num_tokens:
            resumed[message.index] = tuple(message.token_ids)
    return resumed


def _check_logprobs(request: GenerationRequest) -> None:
    for name, num_alternatives in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
        is_inside = (num_alternatives or 0) <= MAX_LOGPROBS
        bounds = f"[0, {MAX_LOGPROBS}]"
        require(is_inside, f"output.{name}", num_alternatives, bounds, Reason.OUTPUT_INVALID)
    if request.prompt_logprobs is None:
        return
    if request.input_embeddings is not None:
        raise _no_prompt_logprobs("a prompt of vectors has no tokens")
    if request.resumed:
        raise _no_prompt_logprobs("a resumed request has had them")
    advice = "ask for fewer alternatives"
    _check_num_logprobs("output.prompt_logprobs", request.prompt_len, request.prompt_logprobs, advice)


def _no_prompt_logprobs(why: str) -> InvalidRequestError:
    path = "output.prompt_logprobs"
    return InvalidRequestError(f"{path} is set, and {why}", Reason.OUTPUT_INVALID, {"field": path})


def _check_num_logprobs(path: str, num_tokens: int, num_alternatives: int, advice: str) -> None:
    num_logprobs = num_tokens * (num_alternatives + 1)
    most = MAX_RESPONSE_BYTES // _LOGPROB_BYTES
    if num_logprobs > most:
        raise InvalidRequestError(
            f"{path}: {num_logprobs} log-probabilities may not fit in one message, which holds {most}; {advice}",
            Reason.OUTPUT_INVALID,
            {"field": path, "logprobs": num_logprobs, "max_logprobs": most},
        )


def _request_id(requested: str) -> str:
    if len(requested) > MAX_REQUEST_ID_LEN:
        raise InvalidRequestError(
            f"request_id has {len(requested)} characters; at most {MAX_REQUEST_ID_LEN} are allowed",
            Reason.REQUEST_ID_INVALID,
            {"field": "request_id", "length": len(requested), "max_length": MAX_REQUEST_ID_LEN},
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
            check_prompt_len(len(message.token_ids.ids), model.max_model_len)
            check_token_ids(message.token_ids.ids, model, "token_ids.ids")
            return list(message.token_ids.ids)
        case "chat":
            return encode_chat(message.chat, model)
        case _:
            raise InvalidRequestError(
                "the request has no prompt; needs one of text, token_ids, chat, embeddings",
                Reason.PROMPT_MISSING,
                {"field": "prompt"},
            )


def _check_num_messages(num_messages: int, model: ServedModel) -> None:
    """Each takes a token at least, and the template's time is the interpreter's, which the steps need too."""
    if num_messages > model.max_model_len:
        raise InvalidRequestError(
            f"the chat has {num_messages} messages; a context of {model.max_model_len} tokens holds fewer",
            Reason.PROMPT_TOO_LONG,
            {"field": "prompt", "messages": num_messages, "max_model_len": model.max_model_len},
        )


def _check_text_len(num_characters: int, model: ServedModel) -> None:
    if num_characters > model.max_text_len:
        raise InvalidRequestError(
            f"the text has {num_characters} characters; a context of {model.max_model_len} tokens holds at most "
            f"{model.max_text_len}",
            Reason.PROMPT_TOO_LONG,
            {
                "field": "prompt",
                "characters": num_characters,
                "max_characters": model.max_text_len,
                "max_model_len": model.max_model_len,
            },
        )


def _stopping(message: generation_pb2.Stopping, default_max_tokens: int, is_constrained: bool) -> StoppingParams:
    return StoppingParams(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else default_max_tokens,
        min_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop=message.include_stop,
        is_constrained=is_constrained,
    )

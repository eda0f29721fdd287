"""What the client takes and gives: frozen values that know nothing of protobuf or gRPC.

An option that is None is left out of the message, so that the server's default holds.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeAlias, TypedDict

_FLOAT32_FORMATS = ("f", "<f") if sys.byteorder == "little" else ("<f",)
"""Of the buffer protocol, those that are in memory what goes over the wire."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat; `role` is "system", "user", "assistant" or "tool"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat whose prompt need not end where the assistant's answer begins.

    Attributes:
        messages: at least one.
        add_generation_prompt: whether it ends there; the server's default is True.
    """

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A prompt of vectors in place of token ids: what the model's first layer gets.

    Attributes:
        data: the vectors' values, little-endian, one vector after another, `ModelInfo.hidden_size` values each.
        num_tokens: how many vectors.
        dtype: "float32" or "bfloat16".
    """

    data: bytes = field(repr=False)
    num_tokens: int
    dtype: str = "float32"

    @classmethod
    def from_array(cls, vectors: object) -> Self:
        """The vectors of a float32 array [num_tokens, hidden_size], which is copied.

        Args:
            vectors: a NumPy array, or whatever else has the buffer protocol; of a PyTorch tensor, its `.numpy()`.

        Raises:
            ValueError: it has no buffer, or one that is not of two dimensions, or not of float32.
        """
        try:
            view = memoryview(vectors)  # type: ignore[arg-type]  # asked of the object itself, whose type says nothing
        except TypeError as error:
            raise ValueError(
                f"{type(vectors).__name__} has no buffer; needs a float32 array of two dimensions, such as NumPy's"
            ) from error
        with view:
            if view.shape is None or view.ndim != 2 or view.format not in _FLOAT32_FORMATS:
                raise ValueError(
                    f"the array has {view.ndim} dimensions and format {view.format!r}; needs 2, and float32 ('f')"
                )
            return cls(view.tobytes(), view.shape[0])


Prompt: TypeAlias = str | Sequence[int] | Sequence[ChatMessage] | Chat | Embeddings
"""Text, token ids, a chat or its messages (rendered with the model's own template), or vectors."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is JSON that this schema (itself JSON text) accepts, with ", " and ": " and no other white space."""

    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """This pattern (Rust's syntax, without look-around and back references) matches the output from end to end."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output is a sentence of this context-free grammar, in the Lark-like notation of llguidance."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Choices:
    """The output is one of these texts."""

    values: tuple[str, ...]


Constraint: TypeAlias = JsonSchema | Regex | Grammar | Choices


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; the fields mean, and apply in the order of, what they do in vLLM.

    Attributes:
        temperature: logits are divided by it. In [0, 100]; 0 is greedy; the server's default is 1.
        top_k: keep the k most likely tokens; 0, the default, keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this. In (0, 1]; 1 by default.
        min_p: drop tokens less likely than this share of the most likely one. In [0, 1]; 0 by default.
        repetition_penalty: of tokens of prompt and completion, positive logits are divided by it, others multiplied. In
            (0, 100]; 1, the default, is off.
        frequency_penalty: subtracted from a token's logit for each time that it is in the completion. In [-2, 2]; 0,
            the default, is off.
        presence_penalty: subtracted once from the logit of each token of the completion. In [-2, 2]; 0, the default, is
            off.
        logit_bias: token id → what is added to its logit, in [-100, 100]; at most 1024 of them.
        seed: the draw at output position i depends on (seed, index, i) alone. In [0, 2^64); chosen by the server by
            default.
        n: completions of one prompt, from 1 (the default) to the rows of a decode batch.
        constraint: what the output has to be.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    n: int | None = None
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Stopping:
    """When generation ends.

    Attributes:
        max_tokens: most tokens to generate; by default the server's `default_max_tokens`, or what the context leaves.
        min_tokens: end of sequence and stops are held off until so many tokens are generated; 0 by default.
        stop: generation ends where one of these appears in the text.
        stop_token_ids: generation ends at one of these tokens.
        ignore_eos: go on after the model's end-of-sequence token.
        include_stop: leave the matched stop in the text.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What is sent back beside the text.

    Attributes:
        logprobs: log-probabilities of the generated tokens, with this many alternatives, in [0, 20]. They are the
            model's own: nothing in `Sampling` changes them.
        prompt_logprobs: the same for the tokens of the prompt, which is then computed whole; not for vectors.
        token_ids: the ids of the generated tokens.
        skip_special_tokens: whether special tokens are left out of the text; the server's default is True.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    skip_special_tokens: bool | None = None


class Options(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`.

    `request_id` has at most 128 characters, and `cache_salt` 1024: requests share cached prefixes only with those of
    the same salt. Of two requests the one of higher `priority` (0 by default) goes first. `resumptions` are the tokens
    that completions begin with, by index, as `Delta.token_ids` had them: given the same prompt, options and seed, they
    go on after them exactly as they would have; these tokens are counted but not sent again.

    The fields of `Sampling`, `Stopping` and `Output` can be given by name, alone or to change one field of the value
    that is given whole: `stream(prompt, sampling=creative, seed=7)`.
    """

    request_id: str
    model: str
    priority: int
    cache_salt: str
    resumptions: Mapping[int, Sequence[int]]
    sampling: Sampling
    stopping: Stopping
    output: Output

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    n: int | None
    constraint: Constraint | None

    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop: bool

    logprobs: int | None
    prompt_logprobs: int | None
    token_ids: bool
    skip_special_tokens: bool | None


class FinishReason(StrEnum):
    """Why a completion ended; UNKNOWN is a reason that this client is too old for."""

    STOP = "stop"
    LENGTH = "length"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's natural log-probability; rank 1 is the most likely token.

    `text` is what the token alone reads as, with U+FFFD for part of a character.
    """

    token_id: int
    logprob: float
    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a position's token, and of its most likely alternatives, most likely first.

    There are as many as were asked for; the token itself may be among them.
    """

    token: TokenLogprob
    alternatives: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the server spent a request's time, in seconds.

    Attributes:
        queue: arrival to admission.
        prefill: admission to the first token's arrival at the decode service.
        kv_transfer: fetching KV, some of it while prefill computed.
        first_token: arrival to the first token's leaving for the client.
        total: arrival to the last token.
    """

    queue: float
    prefill: float
    kv_transfer: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a stream: the request was admitted.

    `prompt_logprobs` are those of all tokens of the prompt but the first, which nothing comes before.
    """

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """More of completion `index`; `text` may be empty while a character or a possible stop is unfinished."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Completion `index` has ended; `matched_stop` is the stop token's id or the stop string, if one was the cause."""

    index: int
    finish_reason: FinishReason
    matched_stop: int | str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Last event of a stream: what the request used.

    `completion_tokens` are those of all indices together, `cached_tokens` those of the prompt whose KV was reused.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    timings: Timings


Event: TypeAlias = Started | Delta | Finished | Usage


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole completion.

    `token_ids` and `logprobs` have one entry a token if they were asked for, and none otherwise.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    matched_stop: int | str | None


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Answer of `generate`: `completions` by index (one, unless `n` was more)."""

    request_id: str
    completions: tuple[Completion, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.completions[0].text

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Self:
        """What the events of a whole stream come to.

        Raises:
            ValueError: `Started` or `Usage` is missing.
        """
        started: Started | None = None
        usage: Usage | None = None
        deltas: dict[int, list[Delta]] = {}
        finished: list[Finished] = []
        for event in events:
            match event:
                case Started():
                    started = event
                case Delta():
                    deltas.setdefault(event.index, []).append(event)
                case Finished():
                    finished.append(event)
                case Usage():
                    usage = event
        if started is None or usage is None:
            raise ValueError("these are not all events of a stream")
        completions = [
            _completion(deltas.get(end.index, []), end) for end in sorted(finished, key=lambda end: end.index)
        ]
        return cls(started.request_id, tuple(completions), started.prompt_logprobs, usage)


def _completion(deltas: Sequence[Delta], end: Finished) -> Completion:
    return Completion(
        index=end.index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprobs for delta in deltas for logprobs in delta.logprobs),
        finish_reason=end.finish_reason,
        matched_stop=end.matched_stop,
    )


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served, and its limits; `max_model_len` is the most tokens of a prompt and its completion together."""

    model: str
    fingerprint: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    dtype: str
    hidden_size: int

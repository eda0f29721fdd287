"""When a generation ends: the parameters of one request, validated, and the rules as pure functions."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from shared.errors import Reason, require
from shared.text.stop_matcher import StopMatcher

__all__ = [
    "MAX_STOP_LEN",
    "MAX_STOP_STRINGS",
    "MAX_STOP_TOKEN_IDS",
    "Finish",
    "FinishReason",
    "StopMatcher",
    "StoppingParams",
    "banned_token_ids",
    "token_finish",
]

MAX_STOP_STRINGS = 16
MAX_STOP_LEN = 256
MAX_STOP_TOKEN_IDS = 64


@dataclass(frozen=True, slots=True)
class StoppingParams:
    """Stopping options of one request.

    Attributes:
        max_tokens: Most tokens to generate, at least 1.
        min_tokens: End of sequence, stop tokens and stop strings are held off until so many tokens are generated.
        stop: Strings that end the text, at most 16 of 1 to 256 characters.
        stop_token_ids: Tokens that end the text, at most 64.
        ignore_eos: Whether to go on after the model's end-of-sequence tokens.
        include_stop: Whether the matched stop stays in the text.
        is_constrained: Whether a constraint says where the text may end. Nothing can follow an end of sequence then: it
            ends the text, and under `min_tokens` and `ignore_eos` comes only where nothing else can.

    Raises:
        InvalidRequestError: STOPPING_INVALID, with `field`, `value` and `bounds` in the metadata.
    """

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    is_constrained: bool = False

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "[1, inf)")
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, f"[0, {self.max_tokens}]")
        _require(len(self.stop) <= MAX_STOP_STRINGS, "stop", len(self.stop), f"[0, {MAX_STOP_STRINGS}] strings")
        for index, text in enumerate(self.stop):
            _require(1 <= len(text) <= MAX_STOP_LEN, f"stop[{index}]", len(text), f"[1, {MAX_STOP_LEN}] characters")
        num_ids = len(self.stop_token_ids)
        _require(num_ids <= MAX_STOP_TOKEN_IDS, "stop_token_ids", num_ids, f"[0, {MAX_STOP_TOKEN_IDS}] ids")
        for index, token_id in enumerate(self.stop_token_ids):
            _require(token_id >= 0, f"stop_token_ids[{index}]", token_id, "[0, vocab_size)")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse stop tokens that the model does not have.

        Raises:
            InvalidRequestError: TOKEN_ID_OUT_OF_RANGE.
        """
        for index, token_id in enumerate(self.stop_token_ids):
            _require(
                token_id < vocab_size,
                f"stop_token_ids[{index}]",
                token_id,
                f"[0, {vocab_size})",
                Reason.TOKEN_ID_OUT_OF_RANGE,
            )


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation.

    Attributes:
        reason: STOP for a stop string, a stop token or an end of sequence; LENGTH for max_tokens or a full context.
        matched_token_id: The stop or end-of-sequence token, if one ended it.
        matched_text: The stop string, if one ended it.
    """

    reason: FinishReason
    matched_token_id: int | None = None
    matched_text: str | None = None


def token_finish(
    params: StoppingParams, eos_token_ids: Collection[int], token_id: int, num_generated: int, room: int
) -> Finish | None:
    """Return how the generation ends with this token, or None if it goes on as far as token ids tell.

    A stop token on the last allowed place is a stop, not a length.

    Args:
        params: The request's options.
        eos_token_ids: The model's end-of-sequence tokens.
        token_id: The newest token.
        num_generated: Tokens generated, this one included.
        room: Tokens that the context still holds after this one.
    """
    is_last = params.is_constrained and token_id in eos_token_ids
    if is_last or (num_generated > params.min_tokens and token_id in _stop_ids(params, eos_token_ids)):
        return Finish(FinishReason.STOP, matched_token_id=token_id)
    if num_generated >= params.max_tokens or room <= 0:
        return Finish(FinishReason.LENGTH)
    return None


def banned_token_ids(params: StoppingParams, eos_token_ids: Collection[int], num_generated: int) -> tuple[int, ...]:
    """Return the tokens that must not come next: all that end the text, while fewer than `min_tokens` are generated.

    The same rule as vLLM's `MinTokensLogitsProcessor`. Under a constraint `ignore_eos` bans the ends of sequence too. A
    ban of all that a constraint allows yields (`shared.sampling.logits.restrict`).

    Args:
        params: The request's options.
        eos_token_ids: The model's end-of-sequence tokens.
        num_generated: Tokens generated so far.
    """
    banned = set(eos_token_ids) if params.is_constrained and params.ignore_eos else set[int]()
    if num_generated < params.min_tokens:
        banned |= _stop_ids(params, eos_token_ids)
    return tuple(sorted(banned))


def _stop_ids(params: StoppingParams, eos_token_ids: Collection[int]) -> set[int]:
    return set(params.stop_token_ids) if params.ignore_eos else {*params.stop_token_ids, *eos_token_ids}


def _require(is_inside: bool, field: str, value: int, bounds: str, reason: Reason = Reason.STOPPING_INVALID) -> None:
    require(is_inside, f"stopping.{field}", value, bounds, reason)

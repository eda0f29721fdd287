"""Log-probabilities of tokens, from the model's own logits.

They are natural logarithms of the softmax, before masks, bias, penalties and temperature. Each row is computed alone,
on one thread, with a float64 sum, so that it has the same bits in any batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from shared.sampling.ranking import find_highest, mark_largest

MAX_LOGPROBS = 20
"""Most alternatives that a request may ask for, as in vLLM."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's natural log-probability, and its rank.

    Attributes:
        token_id: Which token.
        logprob: At most 0; -inf for a token that the model makes impossible.
        rank: 1 + how many tokens are more likely; equally likely tokens share it.
    """

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A position's token, and the most likely tokens there, most likely first."""

    token: TokenLogprob
    alternatives: tuple[TokenLogprob, ...] = ()


def token_logprobs(logits: npt.NDArray[np.float32], token_id: int, num_alternatives: int) -> TokenLogprobs:
    """Return the log-probabilities of a token and of the most likely ones at its position.

    Args:
        logits: float32 [vocab_size], as the model made them; left unchanged.
        token_id: The token that stands there; an id of the vocabulary.
        num_alternatives: How many of the most likely tokens to give, at least 0; no more than the vocabulary has. Among
            equally likely tokens the lowest id goes first.

    Raises:
        FloatingPointError: A logit is NaN or +inf, or none is finite.
    """
    highest = find_highest(logits)
    if isinstance(highest, FloatingPointError):
        raise highest
    log_total = _log_sum(logits, logits[highest])
    rank = 1 + int(np.count_nonzero(logits > logits[token_id]))
    token = TokenLogprob(token_id, float(logits[token_id]) - log_total, rank)
    return TokenLogprobs(token, _alternatives(logits, log_total, num_alternatives))


def prompt_logprobs(
    logits: npt.NDArray[np.float32], token_ids: Sequence[int], num_alternatives: int
) -> list[TokenLogprobs]:
    """Return the log-probabilities of many positions, each as `token_logprobs` gives it.

    Args:
        logits: float32 [len(token_ids), vocab_size]; row i is of the place where `token_ids[i]` stands.
        token_ids: The tokens that stand there.
        num_alternatives: As for `token_logprobs`.

    Raises:
        FloatingPointError: A row is not finite, as for `token_logprobs`.
    """
    assert len(logits) == len(token_ids), (logits.shape, len(token_ids))
    return [token_logprobs(row, token_id, num_alternatives) for row, token_id in zip(logits, token_ids, strict=True)]


def _log_sum(logits: npt.NDArray[np.float32], highest: np.float32) -> float:
    """The logarithm of the sum of exponentials."""
    with np.errstate(over="ignore"):  # a distance beyond float32 is -inf, and weighs nothing, as it should
        below = logits - highest
    return float(highest) + log(np.exp(below).sum(dtype=np.float64))


def _alternatives(logits: npt.NDArray[np.float32], log_total: float, num_alternatives: int) -> tuple[TokenLogprob, ...]:
    token_ids = _most_likely(logits, num_alternatives)
    values = logits[token_ids]
    # Whatever is more likely than one of these is among them, so that ranks can be counted here.
    ranks = 1 + np.searchsorted(-values, -values)
    rows = zip(token_ids.tolist(), values.tolist(), ranks.tolist(), strict=True)
    return tuple(TokenLogprob(token_id, value - log_total, rank) for token_id, value, rank in rows)


def _most_likely(logits: npt.NDArray[np.float32], num_wanted: int) -> npt.NDArray[np.int64]:
    """Token ids of the highest logits, highest first, the lowest id first among equals."""
    num_kept = min(num_wanted, len(logits))
    if num_kept == 0:
        return np.empty(0, dtype=np.int64)
    last = len(logits) - num_kept
    token_ids = np.flatnonzero(mark_largest(logits, np.partition(logits, last)[last], num_kept))
    return token_ids[np.argsort(-logits[token_ids], kind="stable")]

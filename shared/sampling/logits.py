"""What changes one row of logits before a token is chosen from it, greedily or not.

It applies in vLLM's order (`Sampler.apply_logits_processors` in `vllm/v1/sample/sampler.py`): the tokens that a
constraint allows, the tokens banned under min_tokens, logit_bias, and the penalties (`apply_penalties` in
`vllm/model_executor/layers/utils.py`): repetition, frequency, presence. Everything is float32, as there, and works on
the row in place: float32 [vocab_size], with no NaN and no +inf. A token whose logit is -inf keeps it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shared.sampling.history import TokenHistory
from shared.sampling.params import SamplingParams

_LARGEST = np.finfo(np.float32).max
_SMALLEST_PENALTY = np.finfo(np.float32).tiny


def restrict(
    logits: npt.NDArray[np.float32], allowed: npt.NDArray[np.bool_] | None, banned_token_ids: Sequence[int]
) -> None:
    """Make every token impossible that is not allowed, or that is banned.

    A ban of all that is allowed is lifted: a constraint that can only end must end, however few tokens there are.

    Args:
        logits: float32 [vocab_size], changed in place.
        allowed: [vocab_size], left unchanged; None allows all.
        banned_token_ids: Ids of the vocabulary.
    """
    if allowed is None:
        logits[list(banned_token_ids)] = -np.inf
        return
    assert allowed.shape == logits.shape, (allowed.shape, logits.shape)
    kept = allowed.copy()
    kept[list(banned_token_ids)] = False
    logits[~(kept if kept.any() else allowed)] = -np.inf


def add_bias(logits: npt.NDArray[np.float32], logit_bias: Sequence[tuple[int, float]]) -> None:
    """Add to the logits of single tokens.

    Args:
        logits: float32 [vocab_size], changed in place.
        logit_bias: As in `SamplingParams`; ids of the vocabulary.
    """
    if not logit_bias:
        return
    assert logit_bias[-1][0] < len(logits), (logit_bias[-1], len(logits))
    token_ids = np.fromiter((token_id for token_id, _ in logit_bias), np.int64, len(logit_bias))
    logits[token_ids] += np.fromiter((bias for _, bias in logit_bias), np.float32, len(logit_bias))


def penalize(logits: npt.NDArray[np.float32], history: TokenHistory, params: SamplingParams) -> None:
    """Apply the repetition, frequency and presence penalties, in this order, to the tokens that were seen.

    A positive logit is divided by the repetition penalty, any other multiplied by it. Frequency and presence look only
    at what was generated. A quotient beyond float32 becomes its largest number.

    Args:
        logits: float32 [vocab_size], changed in place.
        history: Ids of the vocabulary.
        params: The penalties.
    """
    values = _repeat(logits[history.token_ids], params.repetition_penalty)
    values -= np.float32(params.frequency_penalty) * history.counts
    values -= np.float32(params.presence_penalty) * (history.counts > 0)
    logits[history.token_ids] = values


def _repeat(values: npt.NDArray[np.float32], penalty: float) -> npt.NDArray[np.float32]:
    # A penalty that float32 rounds to 0 would make NaN of -inf.
    factor = max(np.float32(penalty), _SMALLEST_PENALTY)
    with np.errstate(over="ignore"):
        return np.where(values > 0, np.minimum(values / factor, _LARGEST), values * factor)

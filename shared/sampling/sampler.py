"""From logits to tokens. Each row's token depends on that row alone: never on its batch, process or replica.

Temperature, min_p, top_k and top_p mean what they mean in vLLM (`vllm/v1/sample/sampler.py`), and apply in that order.
Among equally likely tokens the lowest id goes first, in top_k and top_p as in the greedy choice, so that k tokens are k
tokens and `top_k: 1` is greedy. Rows are computed one by one, in float64 and on one thread: a reduction over a whole
batch, or one divided among threads, would round differently as the batch or the machine changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log

import numpy as np
import numpy.typing as npt
import torch

from shared.sampling.params import SamplingParams
from shared.sampling.random import uniform


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one row of logits is sampled for.

    Attributes:
        params: The request's options.
        index: Which completion of the prompt, from 0.
        position: Position of the wanted token in the completion, from 0.
        banned_token_ids: Tokens that must not be chosen; ids of the vocabulary.
    """

    params: SamplingParams
    index: int
    position: int
    banned_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may be drawn, with weights in proportion to their probabilities.

    Attributes:
        token_ids: int64 [num_candidates], ascending.
        weights: float64 [num_candidates]; the most likely token weighs 1.
    """

    token_ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Choose one token for each row.

    Args:
        logits: Floating point [len(rows), vocab_size]; left unchanged.
        rows: What each row of logits is sampled for.

    Returns:
        One token id a row.
    """
    assert logits.shape[0] == len(rows), (logits.shape, len(rows))
    values = logits.detach().to(device="cpu", dtype=torch.float32).numpy()
    return [_choose(row_values, row) for row_values, row in zip(values, rows, strict=True)]


def find_candidates(logits: npt.NDArray[np.float32], params: SamplingParams) -> Candidates:
    """Return what temperature, min_p, top_k and top_p leave of one row of logits.

    Args:
        logits: [vocab_size]; at least one is finite and none is NaN or +inf.
        params: Options with a temperature above 0.
    """
    highest = logits.max()
    assert isfinite(highest), f"the highest logit is {highest}"
    token_ids = np.arange(len(logits), dtype=np.int64)
    # top_k and min_p each keep a head of the same ranking, so their order is free; top_k works on the narrower type.
    if 0 < params.top_k < len(logits):
        kth = len(logits) - params.top_k
        token_ids = token_ids[_mark_largest(logits, np.partition(logits, kth)[kth], params.top_k)]
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the highest to -inf, as it should
        scaled = (logits[token_ids].astype(np.float64) - np.float64(highest)) / params.temperature
    if params.min_p > 0:
        likely = scaled >= log(params.min_p)
        token_ids, scaled = token_ids[likely], scaled[likely]
    weights = np.exp(scaled)
    if params.top_p < 1:
        nucleus = _mark_nucleus(weights, params.top_p)
        token_ids, weights = token_ids[nucleus], weights[nucleus]
    return Candidates(token_ids, weights)


def _choose(logits: npt.NDArray[np.float32], row: SampleRow) -> int:
    if row.banned_token_ids:
        logits = logits.copy()
        logits[list(row.banned_token_ids)] = -np.inf
    if row.params.is_greedy:
        return int(logits.argmax())  # the first of equal maxima
    candidates = find_candidates(logits, row.params)
    return _draw(candidates, uniform(row.params.seed, row.index, row.position))


def _draw(candidates: Candidates, number: float) -> int:
    """Return the token at `number`, in [0, 1), of the cumulative distribution in order of token id."""
    cumulative = np.cumsum(candidates.weights)
    place = np.searchsorted(cumulative, number * cumulative[-1], side="right")
    return int(candidates.token_ids[place])


def _mark_nucleus(weights: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.bool_]:
    """Mark the smallest set of the heaviest whose sum reaches `top_p` of the whole."""
    total = weights.sum()
    # Tokens under this weigh less than 1 - top_p even all together, so none is needed: this spares sorting them.
    needless = min((1 - top_p) * total / len(weights), weights.max())
    heaviest = np.sort(weights[weights >= needless])[::-1]
    cumulative = np.cumsum(heaviest)
    last = min(int(np.searchsorted(cumulative, top_p * total)), len(heaviest) - 1)
    return _mark_largest(weights, heaviest[last], last + 1)


def _mark_largest(values: npt.NDArray[np.floating], smallest: np.floating, num_marked: int) -> npt.NDArray[np.bool_]:
    """Mark the `num_marked` largest values, of which `smallest` is the last; the first ones win among equals."""
    marked: npt.NDArray[np.bool_] = values > smallest
    num_equal = num_marked - np.count_nonzero(marked)
    marked[np.flatnonzero(values == smallest)[:num_equal]] = True
    return marked

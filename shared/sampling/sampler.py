"""From logits to tokens. Each row's token depends on that row alone: never on its batch, process or replica.

What changes logits (`shared/sampling/logits.py`) applies first, to greedy rows too. Temperature, min_p, top_k and top_p
mean what they mean in vLLM (`vllm/v1/sample/sampler.py`), and apply in that order.
Among equally likely tokens the lowest id goes first, in top_k and top_p as in the greedy choice, so that k tokens are k
tokens and `top_k: 1` is greedy. Rows are computed one by one and on one thread: a reduction over a whole batch, or one
divided among threads, would round differently as the batch or the machine changes. Weights are float32, as logits are,
and their sums are float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log

import numpy as np
import numpy.typing as npt
import torch

from shared.sampling.history import TokenHistory
from shared.sampling.logits import add_bias, penalize, restrict
from shared.sampling.params import SamplingParams
from shared.sampling.random import uniform
from shared.sampling.ranking import find_highest, mark_largest, no_number

# Most nuclei of language models are smaller than this, and to sort so few costs little.
_SMALL_NUCLEUS = 2048
_DRAW_SPAN = 256


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one row of logits is sampled for.

    Attributes:
        params: The request's options.
        index: Which completion of the prompt, from 0.
        position: Position of the wanted token in the completion, from 0.
        banned_token_ids: Tokens that must not be chosen, unless nothing else is allowed; ids of the vocabulary.
        allowed: [vocab_size], True for the tokens that a constraint allows; None allows all.
        history: The tokens before this one; there must be one where `params` has penalties.
    """

    params: SamplingParams
    index: int
    position: int
    banned_token_ids: tuple[int, ...] = ()
    allowed: npt.NDArray[np.bool_] | None = None
    history: TokenHistory | None = None

    @property
    def is_adjusted(self) -> bool:
        """Whether the token is chosen from other logits than the model's own."""
        return (
            self.allowed is not None
            or bool(self.banned_token_ids)
            or bool(self.params.logit_bias)
            or self.params.has_penalties
        )

    @property
    def is_plain(self) -> bool:
        """Whether the highest of the model's own logits is taken."""
        return self.params.is_greedy and not self.is_adjusted


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may be drawn, with weights in proportion to their probabilities.

    Attributes:
        token_ids: int64 [num_candidates], ascending.
        weights: float32 [num_candidates]; the most likely token weighs 1, and one that was dropped 0.
    """

    token_ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int | FloatingPointError]:
    """Choose one token for each row.

    Where a row is plain, the choice is made where the logits are, on whatever device.

    Args:
        logits: Floating point [len(rows), vocab_size]; left unchanged.
        rows: What each row of logits is sampled for.

    Returns:
        One token id a row; an error for a row that has a NaN or +inf, or nothing that is finite, or whose mask leaves
        nothing that is. It says nothing of others.
    """
    assert logits.shape[0] == len(rows), (logits.shape, len(rows))
    chosen = _choose_highest(logits)
    for place, row in enumerate(rows):
        if not row.is_plain and not isinstance(chosen[place], FloatingPointError):
            chosen[place] = _choose(_to_numpy(logits[place]), row)
    return chosen


def find_candidates(logits: npt.NDArray[np.float32], params: SamplingParams) -> Candidates:
    """Return what temperature, min_p, top_k and top_p leave of one row of logits.

    Args:
        logits: [vocab_size]; at least one is finite and none is NaN or +inf.
        params: Options with a temperature above 0.
    """
    highest = logits.max()
    token_ids = np.arange(len(logits))
    # top_k and min_p each keep a head of the same ranking, so their order is free; top_k first leaves less to compute.
    if 0 < params.top_k < len(logits):
        kth = len(logits) - params.top_k
        token_ids = np.flatnonzero(mark_largest(logits, np.partition(logits, kth)[kth], params.top_k))
        logits = logits[token_ids]
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the highest to -inf, as it should
        scaled = ((logits.astype(np.float64) - np.float64(highest)) / params.temperature).astype(np.float32)
    weights = np.exp(scaled)
    if params.min_p > 0:
        weights *= scaled >= log(params.min_p)
    if params.top_p < 1:
        weights *= _mark_nucleus(weights, params.top_p)
    return Candidates(token_ids, weights)


def _choose_highest(logits: torch.Tensor) -> list[int | FloatingPointError]:
    """The first of the highest logits of each row; a NaN counts as the highest."""
    if not len(logits):
        return []
    if logits.device.type == "cpu":  # where numpy finds it ten times faster
        return [find_highest(values) for values in _to_numpy(logits)]
    highest = logits.argmax(dim=-1, keepdim=True)
    pairs = zip(highest.flatten().tolist(), logits.gather(-1, highest).flatten().tolist(), strict=True)
    return [token_id if isfinite(value) else no_number(value) for token_id, value in pairs]


def _to_numpy(logits: torch.Tensor) -> npt.NDArray[np.float32]:
    """The same numbers, float32 and on the CPU; where they are both already, the same memory."""
    values: npt.NDArray[np.float32] = logits.detach().to(device="cpu", dtype=torch.float32).numpy()
    return values


def _choose(logits: npt.NDArray[np.float32], row: SampleRow) -> int | FloatingPointError:
    """The token of a row that is not plain, from logits that are finite."""
    if row.is_adjusted:
        logits = _adjust(logits, row)
        highest = find_highest(logits)
        if row.params.is_greedy or isinstance(highest, FloatingPointError):
            return highest
    candidates = find_candidates(logits, row.params)
    place = _find_place(candidates.weights.astype(np.float64), uniform(row.params.seed, row.index, row.position))
    return int(candidates.token_ids[place])


def _adjust(logits: npt.NDArray[np.float32], row: SampleRow) -> npt.NDArray[np.float32]:
    """What the constraint, bans, bias and penalties make of the logits; a copy."""
    logits = logits.copy()
    restrict(logits, row.allowed, row.banned_token_ids)
    add_bias(logits, row.params.logit_bias)
    if row.params.has_penalties:
        assert row.history is not None, "penalties without a history"
        penalize(logits, row.history, row.params)
    return logits


def _find_place(weights: npt.NDArray[np.float64], number: float) -> int:
    """Return where `number`, in [0, 1), falls in the cumulative distribution of `weights`; never at a weight of 0.

    Summed by spans first and then within one, because a running sum of all would take most of a draw's time.
    """
    ends = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _DRAW_SPAN)))
    target = number * ends[-1]
    span = int(np.searchsorted(ends, target, side="right"))
    first = span * _DRAW_SPAN
    inside = weights[first : first + _DRAW_SPAN]
    before = ends[span - 1] if span else 0.0
    place = int(np.searchsorted(before + np.cumsum(inside), target, side="right"))
    # The span's own sum may round to just above its running one, and the target lie between.
    return first + min(place, int(np.flatnonzero(inside)[-1]))


def _mark_nucleus(weights: npt.NDArray[np.float32], top_p: float) -> npt.NDArray[np.bool_]:
    """Mark the smallest set of the heaviest whose sum reaches `top_p` of the whole."""
    target = top_p * weights.sum(dtype=np.float64)
    heaviest = weights
    if len(weights) > _SMALL_NUCLEUS:
        few = np.partition(weights, -_SMALL_NUCLEUS)[-_SMALL_NUCLEUS:]
        heaviest = few if few.sum(dtype=np.float64) > target else weights
    descending = np.sort(heaviest)[::-1]
    reached = np.searchsorted(np.cumsum(descending, dtype=np.float64), target)
    last = min(int(reached), len(descending) - 1)
    return mark_largest(weights, descending[last], last + 1)

"""Log-probabilities of prompts, from the LM head over the chunks of a step."""

from collections.abc import Sequence as Several
from typing import Protocol

import torch

from shared.sampling.logprobs import TokenLogprobs, prompt_logprobs
from shared.worker.sequence import Sequence

Scores = tuple[TokenLogprobs, ...] | FloatingPointError
"""Log-probabilities of the prompt's tokens that follow those of a chunk, or why there are none."""


class Head(Protocol):
    """The LM head over the step just run: `shared.engine.runner.Runner`."""

    @property
    def max_num_logits(self) -> int:
        """Most tokens that `logits_of` takes."""

    def logits_of(self, first: int, end: int) -> torch.Tensor:
        """Float32 logits [end - first, vocab] of tokens [first, end) of the step, in its order; until the next call."""


def score_prompts(head: Head, planned: Several[tuple[Sequence, int]]) -> dict[str, Scores]:
    """Scores the chunks of the sequences that want it.

    It overwrites the step's own logits, so it comes after the draws.

    Args:
        head: of the step.
        planned: its sequences, as they were before it, and how many tokens of each it ran; in its order.

    Returns:
        By request id.
    """
    scores: dict[str, Scores] = {}
    first = 0
    for sequence, num_tokens in planned:
        if sequence.prompt_logprobs is not None:
            try:
                scores[sequence.request_id] = _score(head, sequence, first, num_tokens, sequence.prompt_logprobs)
            except FloatingPointError as error:
                scores[sequence.request_id] = error
        first += num_tokens
    return scores


def _score(
    head: Head, sequence: Sequence, first: int, num_tokens: int, num_alternatives: int
) -> tuple[TokenLogprobs, ...]:
    #   prompt   t0 t1 t2 t3 t4      the logits at t2 and t3 are of what follows them: t3 and t4.
    #   chunk          t2 t3 t4      Those at t4 are of the first generated token.
    start = sequence.num_computed_tokens + 1
    followers = sequence.token_ids[start : min(start + num_tokens, sequence.prompt_len)]
    scores: list[TokenLogprobs] = []
    for place in range(0, len(followers), head.max_num_logits):
        piece = followers[place : place + head.max_num_logits]
        logits = head.logits_of(first + place, first + place + len(piece))
        scores += prompt_logprobs(logits.cpu().numpy(), piece, num_alternatives)
    return tuple(scores)

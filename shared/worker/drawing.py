"""The next tokens of sequences, drawn from a step's logits."""

from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch

from shared.constraints.matcher import ConstraintError
from shared.sampling.logprobs import TokenLogprobs, token_logprobs
from shared.sampling.sampler import SampleRow, sample
from shared.worker.sequence import Sequence

RowFailure = FloatingPointError | ConstraintError
"""Why a row has no next token. It says nothing of others."""


@dataclass(slots=True)
class Draw:
    """A token, and its log-probabilities where they are wanted."""

    token_id: int
    logprobs: TokenLogprobs | None = None


Draws = list[Draw] | RowFailure
"""One draw for each of a sequence's completions, or why there are none."""


def draw(sequences: Several[Sequence], logits: torch.Tensor) -> dict[str, Draws]:
    """Draws the next token of each completion of each sequence.

    Args:
        sequences: whose last tokens were in the step.
        logits: float32 [len(sequences), vocab_size].

    Returns:
        By request id.
    """
    wanted = [_sample_rows(sequence) for sequence in sequences]
    drawn = _draw_together(wanted, logits) or [_draw_alone(rows, logits[place]) for place, rows in enumerate(wanted)]
    for place, sequence in enumerate(sequences):
        if sequence.logprobs is not None:
            _add_logprobs(drawn[place], logits[place], sequence.logprobs)
    return {sequence.request_id: draws for sequence, draws in zip(sequences, drawn, strict=True)}


def _sample_rows(sequence: Sequence) -> list[SampleRow] | ConstraintError:
    try:
        return sequence.sample_rows()
    except ConstraintError as error:
        return error


def _draw_together(wanted: Several[list[SampleRow] | ConstraintError], logits: torch.Tensor) -> list[Draws] | None:
    """One token a row of logits, as most steps have it; None for any other step."""
    rows = [rows[0] for rows in wanted if isinstance(rows, list) and len(rows) == 1]
    if len(rows) < len(wanted):
        return None
    return [_draws([token_id]) for token_id in sample(logits, rows)]


def _draw_alone(rows: list[SampleRow] | ConstraintError, logits: torch.Tensor) -> Draws:
    """The tokens of all completions from one row of logits, [vocab_size], which is not copied for each of them."""
    if isinstance(rows, ConstraintError):
        return rows
    return _draws(sample(logits.expand(len(rows), -1), rows))


def _draws(token_ids: Several[int | FloatingPointError]) -> Draws:
    draws: list[Draw] = []
    for token_id in token_ids:
        if isinstance(token_id, FloatingPointError):
            return token_id
        draws.append(Draw(token_id))
    return draws


def _add_logprobs(draws: Draws, logits: torch.Tensor, num_alternatives: int) -> None:
    """Adds what the model itself says of the tokens that were drawn from these logits, [vocab_size]."""
    if isinstance(draws, list):
        values = logits.cpu().numpy()
        for drawn in draws:
            drawn.logprobs = token_logprobs(values, drawn.token_id, num_alternatives)

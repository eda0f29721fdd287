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
    drawn: dict[str, Draws] = {}
    rows: list[SampleRow] = []
    places: list[int] = []
    for place, sequence in enumerate(sequences):
        try:
            wanted = sequence.sample_rows()
        except ConstraintError as error:
            drawn[sequence.request_id] = error
            continue
        rows += wanted
        places += [place] * len(wanted)
    is_one_a_sequence = len(rows) == len(sequences) and not drawn
    token_ids = sample(logits if is_one_a_sequence else logits[places], rows)
    for place, token_id in zip(places, token_ids, strict=True):
        _note(drawn, sequences[place], token_id)
    for place, sequence in enumerate(sequences):
        if sequence.logprobs is not None:
            _add_logprobs(drawn[sequence.request_id], logits[place], sequence.logprobs)
    return drawn


def _note(drawn: dict[str, Draws], sequence: Sequence, token_id: int | FloatingPointError) -> None:
    if isinstance(token_id, FloatingPointError):
        drawn[sequence.request_id] = token_id
        return
    draws = drawn.setdefault(sequence.request_id, [])
    if isinstance(draws, list):
        draws.append(Draw(token_id))


def _add_logprobs(draws: Draws, logits: torch.Tensor, num_alternatives: int) -> None:
    """Adds what the model itself says of the tokens that were drawn from these logits, [vocab_size]."""
    if isinstance(draws, list):
        values = logits.cpu().numpy()
        for drawn in draws:
            drawn.logprobs = token_logprobs(values, drawn.token_id, num_alternatives)

"""Log-probabilities of tokens, from the model's own logits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's natural log-probability; rank 1 is the most likely token."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A position's token, and the most likely tokens there, most likely first."""

    token: TokenLogprob
    alternatives: tuple[TokenLogprob, ...] = ()

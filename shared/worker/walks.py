"""Which walk a step is, by what is to be computed."""

from collections.abc import Sequence as Several
from dataclasses import dataclass

from shared.planning import StepLimits
from shared.worker.sequence import Sequence


@dataclass(frozen=True)
class TokenWalk:
    """A walk whose steps are planned under a token budget."""

    name: str
    limits: StepLimits


@dataclass(frozen=True)
class WalkChoice:
    """The walks of a node.

    | to compute | walk |
    |---|---|
    | prompts | `prefill` |
    | prompts and decode rows | `mixed`; without one, `prefill` for the prompts, and the decode rows wait |
    | decode rows | `decode` |

    Attributes:
        prefill: prompt chunks alone.
        mixed: prompt chunks and decode rows in one step.
        decode: one token a row; None: prompts are all there is.
    """

    prefill: TokenWalk
    mixed: TokenWalk | None = None
    decode: str | None = None

    def token_walk(self, sequences: Several[Sequence]) -> TokenWalk | None:
        """The walk that the next step is planned for; None: `decode`, which takes every row."""
        are_decoding = [sequence.is_decoding for sequence in sequences]
        if self.decode is not None and all(are_decoding):
            return None
        return self.mixed if self.mixed is not None and any(are_decoding) else self.prefill

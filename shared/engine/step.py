"""What one row of a step computes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BeforeCompute = Callable[[], None]
"""Called once a step is planned and loaded, and nothing is left but to compute it."""


def do_nothing() -> None:
    """The `BeforeCompute` of who waits for nothing."""


@dataclass(frozen=True)
class StepRow:
    """A contiguous slice of one sequence's tokens, at absolute positions [start, kv_len)."""

    token_ids: Sequence[int]
    """The tokens to compute; at least one."""
    start: int
    """Position of the first one. KV of all positions before it is in the blocks already."""
    block_table: Sequence[int]
    """Blocks of the sequence from position 0, enough for `kv_len` tokens; more may follow."""
    wants_logits: bool
    """Whether the LM head runs on the last token."""
    input_embeddings: npt.NDArray[np.float32] | None = None
    """float32 [n, hidden_size], n <= len(token_ids): stand in the place of the embeddings of the row's first n tokens,
    whose token ids mean nothing (any id of the vocabulary will do). None: all tokens have ids."""

    @property
    def kv_len(self) -> int:
        """Tokens of the sequence that have KV after this step."""
        return self.start + len(self.token_ids)

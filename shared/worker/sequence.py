"""One request as the step loop sees it: tokens, how many have KV, and where that KV lies."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.engine.step import StepRow
from shared.planning import PlanRow
from shared.sampling.params import SamplingParams
from shared.sampling.sampler import SampleRow
from shared.text.stopping import StoppingParams, banned_token_ids


@dataclass
class Sequence:
    """Belongs to the step loop's thread from `StepLoop.submit` until it is retired.

        token_ids  [ prompt ............ | generated ... ]
                   0      num_computed_tokens     len(token_ids)
                   |- KV in the pool -|- to compute -|

    Attributes:
        token_ids: the prompt, then what was generated.
        input_embeddings: float32 [prompt_len, hidden_size], the vectors of a prompt without token ids: `token_ids`
            holds a 0 for each of its positions.
        prompt_len: tokens of the prompt.
        num_computed_tokens: tokens whose KV is in the pool.
        block_table: blocks of the pool, in token order; enough for `max_total_len` tokens.
        max_total_len: most tokens of prompt and completion together.
        banned_token_ids: token ids that must not be sampled, beyond those that `stopping` bans.
        is_partial: whether a step has run a part of the prompt already.
    """

    request_id: str
    token_ids: list[int]
    prompt_len: int
    num_computed_tokens: int
    block_table: tuple[int, ...]
    sampling: SamplingParams
    stopping: StoppingParams
    eos_token_ids: tuple[int, ...]
    max_total_len: int
    priority: int = 0
    banned_token_ids: tuple[int, ...] = ()
    is_partial: bool = False
    input_embeddings: npt.NDArray[np.float32] | None = None

    @property
    def num_generated(self) -> int:
        """Tokens generated so far, on any service."""
        return len(self.token_ids) - self.prompt_len

    @property
    def num_remaining(self) -> int:
        """Tokens whose KV is still to be computed."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest generated token is left to compute."""
        return self.num_computed_tokens >= self.prompt_len

    @property
    def room(self) -> int:
        """Tokens that the context still holds."""
        return self.max_total_len - len(self.token_ids)

    def plan_row(self) -> PlanRow:
        """This sequence as the planner sees it."""
        return PlanRow(
            num_remaining=self.num_remaining,
            can_cut=not self.is_decoding,
            priority=self.priority,
            is_partial=self.is_partial,
        )

    def step_row(self, num_tokens: int) -> StepRow:
        """The next `num_tokens` tokens as a row of a step."""
        start = self.num_computed_tokens
        return StepRow(
            token_ids=self.token_ids[start : start + num_tokens],
            start=start,
            block_table=self.block_table,
            wants_logits=num_tokens == self.num_remaining,
            input_embeddings=self._embeddings(start, start + num_tokens),
        )

    def sample_row(self) -> SampleRow:
        """How to draw the next token."""
        banned = banned_token_ids(self.stopping, self.eos_token_ids, self.num_generated)
        return SampleRow(
            params=self.sampling,
            index=0,
            position=self.num_generated,
            banned_token_ids=(*self.banned_token_ids, *banned),
        )

    def _embeddings(self, start: int, end: int) -> npt.NDArray[np.float32] | None:
        """The vectors of the prompt's tokens among [start, end); None where there are none."""
        if self.input_embeddings is None or start >= self.prompt_len:
            return None
        return self.input_embeddings[start:end]

"""One request as the step loop sees it: tokens, how many have KV, and where that KV lies."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.constraints.matcher import ConstraintMatcher
from shared.engine.step import StepRow
from shared.planning import PlanRow
from shared.sampling.history import TokenHistory
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
        indices: the completions whose next token is drawn; with more than one, the sequence ends with that draw.
        logprobs: alternatives wanted beside each drawn token's log-probability; None: no log-probabilities.
        prompt_logprobs: the same for the tokens of the prompt.
        matcher: the constraint's, in its state after `token_ids`. Several completions have none of the tokens yet.
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
    indices: tuple[int, ...] = (0,)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    matcher: ConstraintMatcher | None = None
    _history: TokenHistory | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.sampling.has_penalties:
            prompt = self.token_ids[: self.prompt_len] if self.input_embeddings is None else ()
            self._history = TokenHistory(prompt, self.token_ids[self.prompt_len :])

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
        """Whether only the newest generated token is left to compute.

        A text that was resumed has more of them, and is computed in chunks like a prompt.
        """
        return self.prompt_len <= self.num_computed_tokens == len(self.token_ids) - 1

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

    def sample_rows(self) -> list[SampleRow]:
        """How to draw the next token of each completion.

        Raises:
            ConstraintError: the constraint leaves nothing to draw.
        """
        position = self.num_generated
        banned = (*self.banned_token_ids, *banned_token_ids(self.stopping, self.eos_token_ids, position))
        allowed = self.matcher.allowed() if self.matcher is not None else None
        return [
            SampleRow(
                params=self.sampling,
                index=index,
                position=position,
                banned_token_ids=banned,
                allowed=allowed,
                history=self._history,
            )
            for index in self.indices
        ]

    def append(self, token_id: int) -> None:
        """Goes on with a drawn token.

        Raises:
            ConstraintError: the constraint is too complex to go on.
        """
        assert len(self.indices) == 1
        self.token_ids.append(token_id)
        if self._history is not None:
            self._history.push(token_id)
        if self.matcher is not None:
            self.matcher.advance(token_id)

    def _embeddings(self, start: int, end: int) -> npt.NDArray[np.float32] | None:
        """The vectors of the prompt's tokens among [start, end); None where there are none."""
        if self.input_embeddings is None or start >= self.prompt_len:
            return None
        return self.input_embeddings[start:end]

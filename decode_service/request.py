"""What a client asks for and what it is sent, as values that know no grpc."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shared.constraints.matcher import ConstraintMatcher
from shared.sampling.logprobs import TokenLogprobs
from shared.sampling.params import SamplingParams
from shared.text.stopping import Finish, StoppingParams


@dataclass(frozen=True)
class GenerationRequest:
    """A validated request.

    Attributes:
        prompt_token_ids: a 0 for each position where the prompt is vectors.
        input_embeddings: float32 [prompt_len, hidden_size], the vectors of a prompt without token ids.
        max_total_len: most tokens of prompt and completion together: what was asked for, or what the context holds.
        logprobs: alternatives wanted beside each generated token's log-probability; None: no log-probabilities.
        prompt_logprobs: the same for the tokens of the prompt.
        matcher: the constraint's, at the start of a completion; each completion takes a copy.
        resumed: by completion, the tokens that were generated before.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stopping: StoppingParams
    max_total_len: int
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    input_embeddings: npt.NDArray[np.float32] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    matcher: ConstraintMatcher | None = None
    resumed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_completions(self) -> int:
        """Completions of the prompt."""
        return self.sampling.n

    @cached_property
    def input_token_ids(self) -> tuple[int, ...]:
        """What is computed before the completions part: the prompt, and what a single one has already."""
        resumed = self.resumed.get(0, ()) if self.num_completions == 1 else ()
        return (*self.prompt_token_ids, *resumed) if resumed else self.prompt_token_ids

    @property
    def input_len(self) -> int:
        """Tokens of the input."""
        return len(self.input_token_ids)


@dataclass(frozen=True)
class Started:
    """The prompt is being computed, or is computed if `prompt_logprobs` are wanted; `num_cached_tokens` need not be."""

    request_id: str
    prompt_len: int
    num_cached_tokens: int
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Delta:
    """What newly generated tokens add to the text of completion `index`, which may be nothing yet."""

    text: str
    token_ids: tuple[int, ...]
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Finished:
    """Why completion `index` ended."""

    finish: Finish
    index: int = 0


@dataclass(frozen=True)
class Usage:
    """Counts and times of one request, over all its completions; times in seconds.

    Attributes:
        queue_s: arrival to admission.
        prefill_s: admission to the first token's arrival.
        kv_transfer_s: time spent fetching KV, some of it while prefill computed.
        first_token_s: arrival to the first token's leaving for the client.
        total_s: arrival to the last token.
    """

    prompt_len: int
    num_completion_tokens: int
    num_cached_tokens: int
    queue_s: float
    prefill_s: float
    kv_transfer_s: float
    first_token_s: float
    total_s: float


GenerationEvent = Started | Delta | Finished | Usage

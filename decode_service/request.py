"""What a client asks for and what it is sent, as values that know no grpc."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.sampling.params import SamplingParams
from shared.text.stopping import Finish, StoppingParams


@dataclass(frozen=True)
class GenerationRequest:
    """A validated request.

    Attributes:
        prompt_token_ids: a 0 for each position where the prompt is vectors.
        input_embeddings: float32 [prompt_len, hidden_size], the vectors of a prompt without token ids.
        max_total_len: most tokens of prompt and completion together: what was asked for, or what the context holds.
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

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)


@dataclass(frozen=True)
class Started:
    """The prompt is being computed; `num_cached_tokens` of it need not be."""

    request_id: str
    prompt_len: int
    num_cached_tokens: int


@dataclass(frozen=True)
class Delta:
    """What newly generated tokens add to the text, which may be nothing yet."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Finished:
    """Why the completion ended."""

    finish: Finish


@dataclass(frozen=True)
class Usage:
    """Counts and times of one request; times in seconds.

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

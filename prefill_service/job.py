"""A prompt to compute, what its stream is told, and what has become of it."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.constraints.matcher import ConstraintMatcher
from shared.errors import BatonError
from shared.kv.handle import KvHandle
from shared.sampling.logprobs import TokenLogprobs
from shared.sampling.params import SamplingParams
from shared.worker.ledger import Reservation


@dataclass(frozen=True)
class PrefillTask:
    """One prompt to compute.

    Attributes:
        token_ids: a 0 for each position where the prompt is vectors.
        input_embeddings: float32 [prompt_len, hidden_size], the vectors of a prompt without token ids.
        first_needed_token: KV of tokens before it is not exported; a multiple of the block size.
        transport: name of the transport that handles are for.
        num_generated_tokens: how many of `token_ids`, counted from the last, are not prompt.
        matcher: the constraint's, in its state after `token_ids`.
        logprobs: alternatives wanted beside each first token's log-probability; None: no log-probabilities.
        prompt_logprobs: the same for the tokens of the prompt, which is then computed whole.
    """

    request_id: str
    token_ids: tuple[int, ...]
    first_needed_token: int
    transport: str
    sampling: SamplingParams
    banned_token_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str = ""
    input_embeddings: npt.NDArray[np.float32] | None = None
    num_generated_tokens: int = 0
    matcher: ConstraintMatcher | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class FirstToken:
    """The token that follows the input, of completion `index`."""

    token_id: int
    index: int = 0
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Accepted:
    """The prompt has its blocks; `num_cached_tokens` of it were computed before."""

    num_cached_tokens: int


@dataclass(frozen=True)
class HandleReady:
    """A chunk's KV can be fetched; the last handle comes with the first token of each completion."""

    handle: KvHandle
    first_tokens: tuple[FirstToken, ...] = ()


@dataclass(frozen=True)
class PromptScored:
    """The log-probabilities of the prompt's tokens that follow those of a chunk."""

    logprobs: tuple[TokenLogprobs, ...]


JobMessage = Accepted | HandleReady | PromptScored | BatonError


@dataclass(eq=False)
class PrefillJob:
    """A task and what has become of it.

    Attributes:
        outbox: at most one message a block, and two more; where log-probabilities of the prompt are wanted, at most one
            more a token, as a chunk has at least one.
        first_tokens: those drawn so far.
    """

    task: PrefillTask
    block_hashes: list[bytes]
    outbox: asyncio.Queue[JobMessage]
    reservation: Reservation | None = None
    num_computed_tokens: int = 0
    num_exported_tokens: int = 0
    is_computing: bool = False
    is_closed: bool = False
    exports: dict[bytes, KvHandle] = field(default_factory=dict)
    first_tokens: list[FirstToken] = field(default_factory=list)

    @property
    def input_len(self) -> int:
        """Tokens to compute: the prompt, and what was generated after it."""
        return len(self.task.token_ids)


@dataclass(frozen=True)
class Load:
    """How much work the service has."""

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    num_free_blocks: int
    num_blocks: int

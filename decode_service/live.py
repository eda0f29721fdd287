"""A request that is being served, by a service or in a batch, and what has become of it so far."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from decode_service.completion import Completion, Drawn
from decode_service.request import Finished, GenerationEvent, GenerationRequest, Started, Usage
from shared.errors import BatonError, DeadlineError
from shared.sampling.logprobs import TokenLogprobs
from shared.worker.ledger import Reservation


@dataclass(frozen=True)
class PromptComputed:
    """The step loop is done with a prompt whose completions now part."""


News = Drawn | PromptComputed | BatonError


@dataclass(eq=False)
class Lane:
    """A completion's place in this service.

    Attributes:
        name: what step events call its sequence.
        token_ids: the prompt, and what was generated.
        reservation: its blocks; None once they are released.
        is_computing: whether the step loop may touch its blocks.
        is_cancelled: whether the step loop was asked to let go of it.
    """

    completion: Completion
    name: str
    token_ids: list[int]
    reservation: Reservation | None
    is_computing: bool = False
    is_cancelled: bool = False


@dataclass(eq=False)
class LiveRequest:
    """A request and what has become of it. Times are of the monotonic clock.

    Attributes:
        name: what the step loop knows it by.
        news: at most one item a token and completion, and three more: the parting, and two errors.
        completions: by index.
        lanes: of the completions that are still to be generated; the first one's blocks take the prompt.
        is_parting: whether the first lane's sequence ends with the prompt, for the completions to go on as their own.
        has_started: whether the caller was told so.
    """

    request: GenerationRequest
    name: str
    arrived_s: float
    deadline_s: float
    news: "asyncio.Queue[News]"
    completions: list[Completion] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    is_parting: bool = False
    has_started: bool = False
    is_closed: bool = False
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    first_delta_s: float = 0.0
    num_cached_tokens: int = 0

    @classmethod
    def arrived(cls, request: GenerationRequest, name: str, arrived_s: float, limit_s: float) -> "LiveRequest":
        """A request that came at `arrived_s`, and may take `limit_s` seconds."""
        num_tokens = request.num_completions * (request.max_total_len - request.prompt_len)
        return cls(request, name, arrived_s, arrived_s + limit_s, asyncio.Queue(num_tokens + 3))

    @property
    def unfinished(self) -> list[Completion]:
        """Completions that have not ended."""
        return [completion for completion in self.completions if completion.finish is None]

    def lane_of(self, index: int) -> Lane | None:
        """The lane of a completion; None if it had ended when the request came."""
        return next((lane for lane in self.lanes if lane.completion.index == index), None)

    def begin(self, num_cached_tokens: int) -> list[GenerationEvent]:
        """What the caller is told first, once: Started, and the ends of completions that were resumed at their ends."""
        assert not self.has_started
        self.has_started = True
        request = self.request
        # What was resumed may be cached too, and is no prompt.
        self.num_cached_tokens = num_cached_tokens = min(num_cached_tokens, request.prompt_len)
        started = Started(request.request_id, request.prompt_len, num_cached_tokens, tuple(self.prompt_logprobs))
        ended = ((completion.finish, completion.index) for completion in self.completions)
        return [started, *(Finished(finish, index) for finish, index in ended if finish is not None)]

    def usage(self, kv_transfer_s: float) -> Usage:
        """What the caller is told last."""
        now = time.monotonic()
        first_token_s, first_delta_s = self.first_token_s or now, self.first_delta_s or now
        return Usage(
            prompt_len=self.request.prompt_len,
            num_completion_tokens=sum(completion.num_generated for completion in self.completions),
            num_cached_tokens=self.num_cached_tokens,
            queue_s=self.admitted_s - self.arrived_s,
            prefill_s=first_token_s - self.admitted_s,
            kv_transfer_s=kv_transfer_s,
            first_token_s=first_delta_s - self.arrived_s,
            total_s=now - self.arrived_s,
        )


@asynccontextmanager
async def until_deadline(live: LiveRequest) -> AsyncGenerator[None]:
    """Ends a wait at the request's deadline with DeadlineError."""
    # A timeout of asyncio lets pass what needs no waiting.
    if time.monotonic() >= live.deadline_s:
        raise too_late(live)
    try:
        async with asyncio.timeout_at(live.deadline_s):
            yield
    except TimeoutError as error:
        raise too_late(live) from error


def too_late(live: LiveRequest) -> DeadlineError:
    """What a request gets whose time has run out."""
    limit_s = round(live.deadline_s - live.arrived_s, 3)
    return DeadlineError(f"the request was not done after {limit_s:g} s", metadata={"timeout_s": limit_s})

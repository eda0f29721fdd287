"""A batch as it runs in one process, prompts first.

The life of a request here:

1. It is admitted, in order, while there are rows and KV blocks: one reservation for all its tokens.
2. Admitted prompts run `prefill_text` steps under the effective budget: one step where all fit in it, else chunks.
3. A prompt's last chunk gives its final logits, and from them the first token.
4. Where no admitted prompt is left to compute, all rows run `decode` steps.
5. A finished request frees its row and blocks for the next one.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

import torch

from decode_service.admission import check_fits, reserve_blocks
from decode_service.completion import begin_completions
from decode_service.lanes import Lanes, copy_block
from decode_service.live import LiveRequest, PromptComputed
from decode_service.request import Delta, Finished, GenerationEvent, GenerationRequest, Usage
from shared.config.resolve import ResolvedServing
from shared.errors import BatonError, InvalidRequestError
from shared.text.stopping import Finish
from shared.worker.engine import Engine, token_walk
from shared.worker.sequence import Sequence
from shared.worker.stepper import Retired, Stepper
from shared.worker.walks import WalkChoice


@dataclass(frozen=True, eq=False)
class OfflineResult:
    """A completed request.

    Attributes:
        index: place of the request in the input, from 0.
        events: what a stream would have told, token by token.
        final_logits: float32 [vocab_size], of the prompt's last token; None unless they were asked for, and
            where generation goes on from resumed tokens.
    """

    index: int
    request: GenerationRequest
    events: tuple[GenerationEvent, ...]
    final_logits: torch.Tensor | None = None

    @property
    def text(self) -> str:
        """The first completion."""
        return self.text_of(0)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first completion's tokens."""
        return tuple(token_id for delta in self._deltas(0) for token_id in delta.token_ids)

    @property
    def finish(self) -> Finish:
        """How the first completion ended."""
        return next(event.finish for event in self.events if isinstance(event, Finished) and event.index == 0)

    @property
    def usage(self) -> Usage:
        """Counts and times, over all completions."""
        return next(event for event in self.events if isinstance(event, Usage))

    def text_of(self, index: int) -> str:
        """A completion."""
        return "".join(delta.text for delta in self._deltas(index))

    def _deltas(self, index: int) -> Iterator[Delta]:
        return (event for event in self.events if isinstance(event, Delta) and event.index == index)


@dataclass(frozen=True)
class OfflineFailure:
    """A request that could not be completed; `index` is its place in the input, from 0."""

    index: int
    request: GenerationRequest
    error: BatonError


Outcome = OfflineResult | OfflineFailure


@dataclass(eq=False)
class _Asked:
    """An admitted request and what has been told of it."""

    index: int
    live: LiveRequest
    events: list[GenerationEvent] = field(default_factory=list)
    final_logits: torch.Tensor | None = None
    error: BatonError | None = None

    def outcome(self) -> Outcome:
        """What came of it."""
        request = self.live.request
        if self.error is not None:
            return OfflineFailure(self.index, request, self.error)
        self.events.append(self.live.usage(kv_transfer_s=0.0))
        return OfflineResult(self.index, request, tuple(self.events), self.final_logits)


@dataclass(frozen=True)
class _Pending:
    """A request that waits for room; its hashes and its beginning are made once, however long it waits."""

    asked: _Asked
    block_hashes: list[bytes]


class _Intake:
    """The requests to come; the next one can be looked at before it is taken."""

    def __init__(self, requests: Iterable[GenerationRequest], engine: Engine) -> None:
        self._requests = enumerate(requests)
        self._engine = engine
        self._next: _Pending | OfflineFailure | None = None

    def peek(self) -> _Pending | OfflineFailure | None:
        """The next request, or why it cannot be completed; None when all were taken."""
        if self._next is None and (item := next(self._requests, None)) is not None:
            try:
                self._next = self._begin(*item)
            except InvalidRequestError as error:
                self._next = OfflineFailure(*item, error)
        return self._next

    def take(self) -> None:
        """Goes on to the one after."""
        self._next = None

    def _begin(self, index: int, request: GenerationRequest) -> _Pending:
        # A name of its own, as the requests' ids may be equal.
        live = LiveRequest.arrived(request, str(index), time.monotonic(), inf)
        live.completions = begin_completions(request, self._engine.tokenizer)
        check_fits(self._engine.ledger, request, len(live.unfinished))
        prompt = (request.input_token_ids, request.cache_salt, request.input_embeddings)
        return _Pending(_Asked(index, live), self._engine.ledger.prompt_hashes(*prompt))


class _HandSteps:
    """Sequences go to the stepper at once; what it retires early is told with the next step."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self.retired: list[Retired] = []

    def submit(self, sequence: Sequence) -> None:
        """See `decode_service.lanes.Steps`."""
        self._stepper.add(sequence)

    def cancel(self, request_id: str) -> None:
        """See `decode_service.lanes.Steps`."""
        self.retired += self._stepper.drop(request_id)


class Batch:
    """One run: who is admitted, and what becomes of them.

    Args:
        engine: prepared for `offline_load`.
        resolved: what it was prepared from.
        keep_logits: whether results hold their prompts' final logits.
        on_step: called after each step.
    """

    def __init__(
        self, engine: Engine, resolved: ResolvedServing, *, keep_logits: bool, on_step: Callable[[], None] | None
    ) -> None:
        self._engine = engine
        self._on_step = on_step
        self._max_num_seqs = resolved.max_num_seqs("decode")
        prefill = token_walk(resolved, resolved.offline_walk("prefill", "prefill_text"))
        walks = WalkChoice(prefill, decode="decode")
        self._stepper = Stepper(engine.runner, walks, self._note_logits if keep_logits else None)
        self._steps = _HandSteps(self._stepper)
        self._lanes = Lanes(engine, self._steps, engine.ledger.release, on_token=lambda: None)
        self._asked: dict[str, _Asked] = {}

    def run(self, requests: Iterable[GenerationRequest]) -> Iterator[Outcome]:
        """Takes requests as there is room; yields each as it is done."""
        intake = _Intake(requests, self._engine)
        while True:
            yield from self._admit_from(intake)
            if self._stepper.is_idle:
                return
            events = self._stepper.step()
            if self._on_step is not None:
                self._on_step()
            self._lanes.on_events(events)
            for asked in list(self._asked.values()):
                yield from self._follow(asked)

    def close(self) -> None:
        """Frees what is left."""
        for asked in self._asked.values():
            self._lanes.close(asked.live)
        self._lanes.on_events(self._steps.retired)
        self._asked.clear()

    def _admit_from(self, intake: _Intake) -> Iterator[Outcome]:
        """Admits while there is room; yields those that cannot be completed, or that are complete already."""
        while (pending := intake.peek()) is not None:
            if isinstance(pending, OfflineFailure):
                yield pending
            elif self._admit(pending.asked, pending.block_hashes):
                yield from self._follow(pending.asked)
            else:
                return
            intake.take()

    def _admit(self, asked: _Asked, block_hashes: list[bytes]) -> bool:
        live = asked.live
        request, num_completions = live.request, len(live.unfinished)
        assert num_completions <= self._max_num_seqs
        num_rows = sum(lane.reservation is not None for other in self._asked.values() for lane in other.live.lanes)
        if num_rows + num_completions > self._max_num_seqs:
            return False
        num_cached_tokens = 0
        if num_completions:
            reservations = reserve_blocks(self._engine.ledger, request, block_hashes, num_completions)
            if reservations is None:
                return False
            self._lanes.open(live, reservations)
            num_cached_tokens = reservations[0].num_cached_tokens
            self._lanes.start(live, num_cached_tokens)
        live.admitted_s = time.monotonic()
        self._asked[live.name] = asked
        if request.prompt_logprobs is None:
            asked.events += live.begin(num_cached_tokens)
        return True

    def _follow(self, asked: _Asked) -> Iterator[Outcome]:
        """Takes what is new of a request; yields it if it is done."""
        live = asked.live
        while not live.news.empty() and asked.error is None:
            match live.news.get_nowait():
                case PromptComputed():
                    copy_block(self._engine.pool, self._lanes.open_blocks(live))
                    self._lanes.part(live)
                case BatonError() as error:
                    asked.error = error
                case drawn:
                    live.first_token_s = live.first_delta_s = live.first_token_s or time.monotonic()
                    asked.events += [] if live.has_started else live.begin(0)
                    asked.events += self._lanes.push(live, drawn)
        if asked.error is not None or not live.unfinished:
            self._lanes.close(live)
            del self._asked[live.name]
            yield asked.outcome()
        self._take_retired()

    def _take_retired(self) -> None:
        retired, self._steps.retired = self._steps.retired, []
        self._lanes.on_events(retired)

    def _note_logits(self, sequence: Sequence, logits: torch.Tensor) -> None:
        if sequence.num_generated == 0:
            self._asked[sequence.request_id].final_logits = logits.clone()

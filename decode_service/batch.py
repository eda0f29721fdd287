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

import torch

from decode_service.admission import check_fits
from decode_service.request import Delta, GenerationRequest, Usage
from decode_service.sequences import sequence_of
from shared.config.resolve import ResolvedServing
from shared.errors import BatonError, InvalidRequestError, Reason, UnavailableError
from shared.text.output import OutputStream
from shared.text.stopping import Finish
from shared.worker.engine import Engine, token_walk
from shared.worker.ledger import BlockLedger, Reservation
from shared.worker.sequence import Sequence
from shared.worker.stepper import ChunkLanded, Retired, SequenceEvent, Stepper, TokenSampled
from shared.worker.walks import WalkChoice


@dataclass(frozen=True, eq=False)
class OfflineResult:
    """A completed request.

    Attributes:
        index: place of the request in the input, from 0.
        deltas: the completion, token by token.
        final_logits: float32 [vocab_size], of the prompt's last token; None unless they were asked for.
    """

    index: int
    request: GenerationRequest
    deltas: tuple[Delta, ...]
    finish: Finish
    usage: Usage
    final_logits: torch.Tensor | None = None

    @property
    def text(self) -> str:
        """The completion."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The completion's tokens."""
        return tuple(token_id for delta in self.deltas for token_id in delta.token_ids)


@dataclass(frozen=True)
class OfflineFailure:
    """A request that could not be completed; `index` is its place in the input, from 0."""

    index: int
    request: GenerationRequest
    error: BatonError


Outcome = OfflineResult | OfflineFailure


@dataclass(frozen=True)
class _Pending:
    """A request that waits for room, and since when; its hashes are made once, however long it waits."""

    index: int
    request: GenerationRequest
    taken_s: float
    block_hashes: list[bytes]


class _Intake:
    """The requests to come; the next one can be looked at before it is taken."""

    def __init__(self, requests: Iterable[GenerationRequest], ledger: BlockLedger) -> None:
        self._requests = enumerate(requests)
        self._ledger = ledger
        self._next: _Pending | None = None

    def peek(self) -> _Pending | None:
        """The next request; None when all were taken."""
        if self._next is None and (item := next(self._requests, None)) is not None:
            index, request = item
            taken_s = time.monotonic()
            prompt = (request.prompt_token_ids, request.cache_salt, request.input_embeddings)
            self._next = _Pending(index, request, taken_s, self._ledger.prompt_hashes(*prompt))
        return self._next

    def take(self) -> None:
        """Goes on to the one after."""
        self._next = None


@dataclass(eq=False)
class _Live:
    """An admitted request and what has become of it. Times are of the monotonic clock."""

    pending: _Pending
    reservation: Reservation
    output: OutputStream
    token_ids: list[int]
    admitted_s: float
    num_cached_tokens: int
    deltas: list[Delta] = field(default_factory=list)
    finish: Finish | None = None
    final_logits: torch.Tensor | None = None
    first_token_s: float = 0.0

    def result(self) -> OfflineResult:
        """What came of it; it must have finished."""
        assert self.finish is not None, "retired without a finish"
        return OfflineResult(
            self.pending.index,
            self.pending.request,
            tuple(self.deltas),
            self.finish,
            self._usage(),
            self.final_logits,
        )

    def _usage(self) -> Usage:
        taken_s = self.pending.taken_s
        return Usage(
            prompt_len=self.pending.request.prompt_len,
            num_completion_tokens=len(self.deltas),
            num_cached_tokens=self.num_cached_tokens,
            queue_s=self.admitted_s - taken_s,
            prefill_s=self.first_token_s - self.admitted_s,
            kv_transfer_s=0.0,
            first_token_s=self.first_token_s - taken_s,
            total_s=time.monotonic() - taken_s,
        )


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
        self._live: dict[str, _Live] = {}

    def run(self, requests: Iterable[GenerationRequest]) -> Iterator[Outcome]:
        """Takes requests as there is room; yields each as it is done."""
        intake = _Intake(requests, self._engine.ledger)
        while True:
            yield from self._admit_from(intake)
            if self._stepper.is_idle:
                return
            events = self._stepper.step()
            if self._on_step is not None:
                self._on_step()
            for event in events:
                yield from self._take(event)

    def close(self) -> None:
        """Frees what is left."""
        for live in self._live.values():
            self._engine.ledger.release(live.reservation)
        self._live.clear()

    def _admit_from(self, intake: _Intake) -> Iterator[OfflineFailure]:
        """Admits while there is room; yields those that there will never be room for."""
        while len(self._live) < self._max_num_seqs and (pending := intake.peek()) is not None:
            try:
                check_fits(self._engine.ledger, pending.request)
            except InvalidRequestError as error:
                yield OfflineFailure(pending.index, pending.request, error)
            else:
                if not self._admit(pending):
                    return
            intake.take()

    def _admit(self, pending: _Pending) -> bool:
        request, ledger = pending.request, self._engine.ledger
        reservation = ledger.reserve_hashed(pending.block_hashes, request.prompt_len, request.max_total_len)
        if reservation is None:
            return False
        # An id of its own, as the requests' own may be equal.
        name = str(pending.index)
        room = request.max_total_len - request.prompt_len
        self._live[name] = _Live(
            pending=pending,
            reservation=reservation,
            output=OutputStream(self._engine.tokenizer, request.stopping, request.skip_special_tokens, room),
            token_ids=list(request.prompt_token_ids),
            admitted_s=time.monotonic(),
            num_cached_tokens=reservation.num_cached_tokens,
        )
        self._stepper.add(
            sequence_of(
                request,
                self._engine,
                reservation,
                name=name,
                token_ids=request.prompt_token_ids,
                num_computed_tokens=reservation.num_cached_tokens,
            )
        )
        return True

    def _take(self, event: SequenceEvent) -> Iterator[Outcome]:
        match event:
            case ChunkLanded(name, num_computed_tokens):
                self._engine.ledger.commit(self._live[name].reservation, num_computed_tokens)
            case TokenSampled(name, token_id):
                self._push(self._live[name], token_id)
                if self._live[name].finish is not None:
                    yield from (self._retire(retired) for retired in self._stepper.drop(name))
            case Retired():
                yield self._retire(event)

    def _push(self, live: _Live, token_id: int) -> None:
        live.first_token_s = live.first_token_s or time.monotonic()
        live.token_ids.append(token_id)
        delta = live.output.push(token_id)
        live.deltas.append(Delta(delta.text, delta.token_ids))
        live.finish = delta.finish

    def _retire(self, retired: Retired) -> Outcome:
        live = self._live.pop(retired.request_id)
        request, ledger = live.pending.request, self._engine.ledger
        if retired.error is None:
            computed = live.token_ids[: retired.num_computed_tokens]
            ledger.share(live.reservation, computed, request.cache_salt, request.input_embeddings)
        ledger.release(live.reservation)
        if retired.error is not None:
            error = UnavailableError(f"a step failed: {retired.error}", Reason.ENGINE_FAILED)
            return OfflineFailure(live.pending.index, request, error)
        return live.result()

    def _note_logits(self, sequence: Sequence, logits: torch.Tensor) -> None:
        if sequence.num_generated == 0:
            self._live[sequence.request_id].final_logits = logits.clone()

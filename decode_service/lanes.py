"""Completions that are computed here: which sequence is whose, and what becomes of its blocks. Of one thread.

    n = 1    prompt and completion are one sequence

    n > 1    first lane   [ prompt ] draws the first token of each ─▶ retired
                                                                        │ the open block is copied
             every lane                       [ the prompt's blocks, shared | its own ] goes on as a sequence

Where a replica has computed the prompt, completions part at once.
"""

import secrets
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Protocol

from decode_service.completion import Drawn, constraint_failed
from decode_service.live import Lane, LiveRequest, PromptComputed
from decode_service.request import Finished, GenerationEvent
from decode_service.sequences import sequence_of
from shared.constraints.matcher import ConstraintError
from shared.errors import Reason, UnavailableError
from shared.kv.pool import KvPool
from shared.kv.transports.copier import Abandoned
from shared.sampling.logprobs import TokenLogprobs
from shared.worker.engine import Engine
from shared.worker.ledger import Reservation
from shared.worker.sequence import Sequence
from shared.worker.step_loop import ChunkLanded, LoopStopped, Retired, StepEvent, TokenSampled, loop_stopped_error


class Steps(Protocol):
    """What computes sequences: `shared.worker.step_loop.StepLoop`, or whoever steps by hand."""

    def submit(self, sequence: Sequence) -> None:
        """Takes a sequence until `Retired` is told of it."""

    def cancel(self, request_id: str) -> None:
        """Retires a sequence before its next step."""


class Lanes:
    """The lanes of all requests.

    Args:
        engine: whose blocks they are.
        steps: computes them.
        release: takes their blocks back.
        on_token: called for each new token that a step generated.
    """

    def __init__(
        self,
        engine: Engine,
        steps: Steps,
        release: Callable[[Reservation], None],
        on_token: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._steps = steps
        self._give_back = release
        self._on_token = on_token
        self._live_of: dict[str, LiveRequest] = {}
        self._failure: str | None = None

    def open(self, live: LiveRequest, reservations: list[Reservation]) -> None:
        """Gives each unfinished completion its blocks."""
        request = live.request
        for completion, reservation in zip(live.unfinished, reservations, strict=True):
            resumed = request.resumed.get(completion.index, ())
            # Request ids are the callers' to choose: no made-up one may be another's.
            name = f"{live.name}/{secrets.token_hex(8)}" if live.lanes else live.name
            live.lanes.append(Lane(completion, name, [*request.prompt_token_ids, *resumed], reservation))

    def require_steps(self) -> None:
        """Refuses what would wait for a step loop that is gone.

        Raises:
            UnavailableError: ENGINE_FAILED.
        """
        if self._failure is not None:
            raise loop_stopped_error(self._failure)

    def start(self, live: LiveRequest, num_computed_tokens: int) -> None:
        """Has what is left of the prompt computed, and then generates."""
        self.require_steps()
        live.is_parting = len(live.lanes) > 1
        self._submit(live, live.lanes[0], live.lanes, num_computed_tokens)

    def open_blocks(self, live: LiveRequest) -> list[int]:
        """The block of each lane that the prompt ends in; none where it ends with a block."""
        place, num_tokens = divmod(live.request.prompt_len, self._engine.pool.layout.block_size)
        reservations = [lane.reservation for lane in live.lanes if lane.reservation is not None]
        return [reservation.block_table[place] for reservation in reservations] if num_tokens else []

    def part(self, live: LiveRequest) -> None:
        """Lets each completion go on by itself.

        The prompt's KV is here, in every lane's `open_blocks` too, and so is the first token of each.
        """
        self.require_steps()
        live.is_parting = False
        for lane in live.lanes:
            if lane.completion.finish is None:
                self._submit(live, lane, [lane], live.request.prompt_len)
            else:
                self._release(lane)

    def push(self, live: LiveRequest, drawn: Drawn) -> list[GenerationEvent]:
        """Takes a token: what the caller is told. A completion that ends with it is computed no further."""
        completion = live.completions[drawn.index]
        if completion.finish is not None:  # drawn in a step that was planned before the text ended
            return []
        delta = completion.push(drawn.token_id, drawn.logprobs)
        if completion.finish is None:
            return [delta]
        lane = live.lane_of(drawn.index)
        assert lane is not None
        self._cancel(lane)
        return [delta, Finished(completion.finish, drawn.index)]

    def close(self, live: LiveRequest) -> bool:
        """The caller wants nothing more: frees the blocks, at once or as soon as the step in flight is done.

        Returns:
            Whether all are free.
        """
        live.is_closed = True
        for lane in live.lanes:
            if lane.is_computing:
                self._cancel(lane)
            else:
                self._release(lane)
        return _is_free(live)

    def on_events(self, events: Several[StepEvent]) -> list[LiveRequest]:
        """Takes what one step did; returns the closed requests whose last block it has freed."""
        freed: list[LiveRequest] = []
        for event in events:
            match event:
                case ChunkLanded(name, num_computed_tokens, prompt_logprobs):
                    self._land(self._live_of[name], name, num_computed_tokens, prompt_logprobs)
                case TokenSampled():
                    self._take_token(self._live_of[event.request_id], event)
                case Retired():
                    live = self._live_of.pop(event.request_id)
                    self._retire(live, _lane_named(live, event.request_id), event)
                    freed += [live] if live.is_closed and _is_free(live) else []
                case LoopStopped(error):
                    freed += self._fail_all(error or "the service stops")
        return freed

    def _submit(self, live: LiveRequest, lane: Lane, drawing: list[Lane], num_computed_tokens: int) -> None:
        assert lane.reservation is not None
        lane.is_computing = True
        self._live_of[lane.name] = live
        self._steps.submit(
            sequence_of(
                live.request,
                self._engine,
                lane.reservation,
                [drawer.completion for drawer in drawing],
                name=lane.name,
                token_ids=live.request.prompt_token_ids if live.is_parting else lane.token_ids,
                num_computed_tokens=num_computed_tokens,
            )
        )

    def _land(
        self, live: LiveRequest, name: str, num_computed_tokens: int, prompt_logprobs: tuple[TokenLogprobs, ...]
    ) -> None:
        lane = _lane_named(live, name)
        assert lane.reservation is not None
        self._engine.ledger.commit(lane.reservation, num_computed_tokens)
        live.prompt_logprobs += prompt_logprobs

    def _take_token(self, live: LiveRequest, event: TokenSampled) -> None:
        lane = live.lane_of(event.index)
        assert lane is not None
        # It may be known: what was resumed, or a first token that came before KV was lost.
        if live.is_parting and len(lane.token_ids) > live.request.prompt_len:
            return
        self._on_token()
        if live.is_parting:
            try:
                lane.completion.follow(event.token_id)
            except ConstraintError as error:  # of this request alone: the step's other events are still to be taken
                live.news.put_nowait(constraint_failed(live.request, str(error)))
                return
        lane.token_ids.append(event.token_id)
        live.news.put_nowait(Drawn(event.token_id, event.index, event.logprobs))

    def _retire(self, live: LiveRequest, lane: Lane, retired: Retired) -> None:
        lane.is_computing = False
        if retired.is_constraint:
            live.news.put_nowait(constraint_failed(live.request, str(retired.error)))
        elif retired.error is not None:
            live.news.put_nowait(UnavailableError(f"a step failed: {retired.error}", Reason.ENGINE_FAILED))
        elif live.is_parting and not live.is_closed:
            live.news.put_nowait(PromptComputed())
            return
        elif lane.reservation is not None:
            # Generated tokens too: a conversation's next turn can start from there.
            request, computed = live.request, lane.token_ids[: retired.num_computed_tokens]
            self._engine.ledger.share(lane.reservation, computed, request.cache_salt, request.input_embeddings)
        self._release(lane)

    def _cancel(self, lane: Lane) -> None:
        if lane.is_computing and not lane.is_cancelled:
            lane.is_cancelled = True
            self._steps.cancel(lane.name)

    def _release(self, lane: Lane) -> None:
        if lane.reservation is not None:
            self._give_back(lane.reservation)
            lane.reservation = None

    def _fail_all(self, error: str) -> list[LiveRequest]:
        """The step loop is gone: what it was computing will not be, and it no longer touches any block."""
        self._failure = error
        computing = list(dict.fromkeys(self._live_of.values()))
        self._live_of.clear()
        for live in computing:
            live.news.put_nowait(loop_stopped_error(error))
            for lane in live.lanes:
                lane.is_computing = False
                self._release(lane)
        return [live for live in computing if live.is_closed]


def copy_block(pool: KvPool, block_ids: Several[int], is_abandoned: Abandoned = lambda: False) -> None:
    """Copies the first of some blocks to the others. Blocking: a fraction of a millisecond a block."""
    for block_id in block_ids[1:]:
        if not is_abandoned():
            pool.block_view(block_id)[:] = pool.block_view(block_ids[0])


def _lane_named(live: LiveRequest, name: str) -> Lane:
    return next(lane for lane in live.lanes if lane.name == name)


def _is_free(live: LiveRequest) -> bool:
    return all(lane.reservation is None for lane in live.lanes)

"""Who may start: rows in the batch and KV blocks for the whole request, or a place in a bounded queue.

Blocks for the prompt and every token that may be generated are reserved before anything is computed, so that an
admitted request always finishes. Each completion takes a row; they share the full blocks of their prompt.
"""

import asyncio
from dataclasses import dataclass, field

from decode_service.request import GenerationRequest
from shared.errors import InvalidRequestError, QueueFullError, Reason
from shared.worker.ledger import BlockLedger, Reservation

_RETRY_AFTER_S = 1.0


@dataclass(eq=False)
class _Waiter:
    request: GenerationRequest
    num_completions: int
    block_hashes: list[bytes]
    admitted: asyncio.Future[list[Reservation]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Admission:
    """Grants reservations in order of priority, then arrival. Used on the event loop only.

    Args:
        max_num_seqs: completions admitted at a time: the rows of the decode batch.
        max_queue_len: requests that may wait. It bounds memory and the wait; beyond it callers try again later.
    """

    def __init__(self, ledger: BlockLedger, max_num_seqs: int, max_queue_len: int) -> None:
        self._ledger = ledger
        self._max_num_seqs = max_num_seqs
        self._max_queue_len = max_queue_len
        self._num_admitted = 0
        self._waiters: list[_Waiter] = []

    @property
    def num_admitted(self) -> int:
        """Completions that hold a reservation."""
        return self._num_admitted

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    async def reserve(self, request: GenerationRequest, num_completions: int = 1) -> list[Reservation]:
        """Waits for a row and blocks for each completion; pair each with `release`.

        Args:
            request: whose prompt the blocks are for.
            num_completions: how many of its completions are to be generated.

        Raises:
            InvalidRequestError: the pool can never hold the request.
            QueueFullError: as many requests wait as may.
        """
        assert 0 < num_completions <= self._max_num_seqs
        check_fits(self._ledger, request, num_completions)
        self._check_queue()
        block_hashes = await self._hashes(request)
        self._check_queue()
        waiter = _Waiter(request, num_completions, block_hashes)
        self._waiters.append(waiter)
        self._admit()
        try:
            return await waiter.admitted
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def release(self, reservation: Reservation) -> None:
        """Gives a row and its blocks back."""
        self._ledger.release(reservation)
        self._num_admitted -= 1
        self._admit()

    def _check_queue(self) -> None:
        if len(self._waiters) >= self._max_queue_len:
            raise QueueFullError(
                f"{len(self._waiters)} requests wait, which is the limit",
                _RETRY_AFTER_S,
                {"queue_len": len(self._waiters), "max_queue_len": self._max_queue_len},
            )

    async def _hashes(self, request: GenerationRequest) -> list[bytes]:
        """What the prompt is found by in the cache; megabytes of vectors are hashed off the event loop."""
        prompt = (request.input_token_ids, request.cache_salt, request.input_embeddings)
        if request.input_embeddings is None:
            return self._ledger.prompt_hashes(*prompt)
        return await asyncio.to_thread(self._ledger.prompt_hashes, *prompt)

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._admit()
        elif waiter.admitted.done() and not waiter.admitted.cancelled():
            # Granted in the same turn of the event loop in which the caller went away.
            for reservation in waiter.admitted.result():
                self.release(reservation)

    def _admit(self) -> None:
        """Grants from the head of the queue; a head that does not fit yet holds the rest, so that it cannot starve."""
        # A caller that went away a moment ago may not have run yet to withdraw.
        self._waiters = [waiter for waiter in self._waiters if not waiter.admitted.cancelled()]
        while self._waiters:
            head = max(self._waiters, key=lambda waiter: waiter.request.priority)
            if self._num_admitted + head.num_completions > self._max_num_seqs:
                return
            reservations = reserve_blocks(self._ledger, head.request, head.block_hashes, head.num_completions)
            if reservations is None:
                return
            self._waiters.remove(head)
            self._num_admitted += head.num_completions
            head.admitted.set_result(reservations)


def reserve_blocks(
    ledger: BlockLedger, request: GenerationRequest, block_hashes: list[bytes], num_completions: int
) -> list[Reservation] | None:
    """Blocks for each of so many completions, the first one's with the prompt; None where the pool has too few now.

    A prompt whose log-probabilities are wanted is computed whole, and so begins with no cached blocks.
    """
    first = ledger.reserve_hashed(
        block_hashes, request.input_len, request.max_total_len, reuse=request.prompt_logprobs is None
    )
    reservations = [] if first is None else [first]
    while first is not None and len(reservations) < num_completions:
        fork = ledger.fork(first, request.prompt_len, request.max_total_len)
        if fork is None:
            for reservation in reservations:
                ledger.release(reservation)
            return None
        reservations.append(fork)
    return reservations or None


def check_fits(ledger: BlockLedger, request: GenerationRequest, num_completions: int) -> None:
    """Refuses a request that the pool can never hold.

    Raises:
        InvalidRequestError: REQUEST_EXCEEDS_POOL, with the numbers.
    """
    num_shared_blocks = request.prompt_len // ledger.block_size
    num_blocks = ledger.num_blocks_for(request.max_total_len)
    num_blocks += max(num_completions - 1, 0) * (num_blocks - num_shared_blocks)
    if num_blocks > ledger.max_reservation:
        raise InvalidRequestError(
            f"a prompt of {request.prompt_len} tokens, and completions to {request.max_total_len} tokens with it, need "
            f"{num_blocks} KV blocks; the decode pool has {ledger.max_reservation}",
            Reason.REQUEST_EXCEEDS_POOL,
            {
                "prompt_tokens": request.prompt_len,
                "max_total_tokens": request.max_total_len,
                "completions": num_completions,
                "needed_blocks": num_blocks,
                "pool_blocks": ledger.max_reservation,
            },
        )

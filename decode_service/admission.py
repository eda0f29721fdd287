"""Who may start: a row in the batch and KV blocks for the whole request, or a place in a bounded queue.

Blocks for the prompt and every token that may be generated are reserved before anything is computed, so that an
admitted request always finishes.
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
    block_hashes: list[bytes]
    admitted: asyncio.Future[Reservation] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Admission:
    """Grants reservations in order of priority, then arrival. Used on the event loop only.

    Args:
        max_num_seqs: requests admitted at a time: the rows of the decode batch.
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
        """Requests that hold a reservation."""
        return self._num_admitted

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    async def reserve(self, request: GenerationRequest) -> Reservation:
        """Waits for a row and blocks; pair with `release`.

        Raises:
            InvalidRequestError: the pool can never hold the request.
            QueueFullError: as many requests wait as may.
        """
        check_fits(self._ledger, request)
        self._check_queue()
        block_hashes = await self._hashes(request)
        self._check_queue()
        waiter = _Waiter(request, block_hashes)
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
        prompt = (request.prompt_token_ids, request.cache_salt, request.input_embeddings)
        if request.input_embeddings is None:
            return self._ledger.prompt_hashes(*prompt)
        return await asyncio.to_thread(self._ledger.prompt_hashes, *prompt)

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._admit()
        elif waiter.admitted.done() and not waiter.admitted.cancelled():
            # Granted in the same turn of the event loop in which the caller went away.
            self.release(waiter.admitted.result())

    def _admit(self) -> None:
        """Grants from the head of the queue; a head that does not fit yet holds the rest, so that it cannot starve."""
        # A caller that went away a moment ago may not have run yet to withdraw.
        self._waiters = [waiter for waiter in self._waiters if not waiter.admitted.cancelled()]
        while self._waiters and self._num_admitted < self._max_num_seqs:
            head = max(self._waiters, key=lambda waiter: waiter.request.priority)
            request = head.request
            reservation = self._ledger.reserve_hashed(head.block_hashes, request.prompt_len, request.max_total_len)
            if reservation is None:
                return
            self._waiters.remove(head)
            self._num_admitted += 1
            head.admitted.set_result(reservation)


def check_fits(ledger: BlockLedger, request: GenerationRequest) -> None:
    """Refuses a request that the pool can never hold.

    Raises:
        InvalidRequestError: REQUEST_EXCEEDS_POOL, with the numbers.
    """
    num_blocks = ledger.num_blocks_for(request.max_total_len)
    if num_blocks > ledger.max_reservation:
        raise InvalidRequestError(
            f"prompt and completion of up to {request.max_total_len} tokens need {num_blocks} KV blocks; "
            f"the decode pool has {ledger.max_reservation}",
            Reason.REQUEST_EXCEEDS_POOL,
            {
                "prompt_tokens": request.prompt_len,
                "max_total_tokens": request.max_total_len,
                "needed_blocks": num_blocks,
                "pool_blocks": ledger.max_reservation,
            },
        )

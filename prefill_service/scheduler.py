"""Which prompts wait, run, and hold exported blocks. Runs on the event loop; the step loop computes.

Lifetimes of a request's blocks:

    reserved ──submit──▶ computing ──Retired──▶ (reservation released)
                             │ chunk landed
                             ▼
                          exported ──acknowledge or end of stream──▶ released

An exported block has a reference of its own, so it outlives the reservation, and no cache eviction touches it.
"""

import asyncio
from collections import deque
from dataclasses import replace

import structlog

from prefill_service.bounds import TaskBounds
from prefill_service.exports import ExportTable
from prefill_service.job import Accepted, FirstToken, HandleReady, Load, PrefillJob, PrefillTask, PromptScored
from shared.constraints.constraint import constraint_refusal
from shared.errors import (
    BatonError,
    DuplicateRequestError,
    HandleError,
    QueueFullError,
    Reason,
    UnavailableError,
)
from shared.kv.handle import GrpcLocation, KvHandle
from shared.kv.pool import KvPool
from shared.kv.transports.base import KvTransport
from shared.kv.transports.blocks import checksum
from shared.telemetry.metrics import ServiceMetrics
from shared.text.stopping import StoppingParams
from shared.worker.ledger import BlockLedger, Reservation
from shared.worker.sequence import Sequence
from shared.worker.step_loop import (
    ChunkLanded,
    LoopStopped,
    Retired,
    StepEvent,
    StepLoop,
    TokenSampled,
    loop_stopped_error,
)

log = structlog.get_logger()


class PrefillScheduler:
    """Admits tasks, turns landed chunks into handles, frees what is acknowledged or abandoned.

    Args:
        transports: by name; they place exported blocks.
        max_num_seqs: prompts computed at a time.
        max_queue_len: prompts that may wait; beyond it callers should try another replica.
    """

    def __init__(
        self,
        step_loop: StepLoop,
        ledger: BlockLedger,
        pool: KvPool,
        exports: ExportTable,
        transports: dict[str, KvTransport],
        max_model_len: int,
        vocab_size: int,
        max_num_seqs: int,
        max_queue_len: int,
        metrics: ServiceMetrics,
    ) -> None:
        self._metrics = metrics
        self._step_loop = step_loop
        self._ledger = ledger
        self._pool = pool
        self._exports = exports
        self._transports = transports
        self._max_model_len = max_model_len
        self._bounds = TaskBounds(
            max_model_len, vocab_size, pool.layout.block_size, ledger.max_reservation, tuple(transports)
        )
        self._max_num_seqs = max_num_seqs
        self._max_queue_len = max_queue_len
        self._layout = pool.layout
        self._jobs: dict[str, PrefillJob] = {}
        self._waiting: deque[PrefillJob] = deque()
        self._failure: str | None = None
        self._load_changed = asyncio.Event()

    def submit(self, task: PrefillTask, block_hashes: list[bytes] | None = None) -> PrefillJob:
        """Queues a task.

        Args:
            task: what to compute.
            block_hashes: the ledger's `prompt_hashes` of its prompt, where the caller has them.

        Raises:
            InvalidRequestError: the prompt cannot fit the model or the pool, or the task contradicts itself.
            DuplicateRequestError: a live task has this id.
            QueueFullError: as many tasks wait as may.
            UnavailableError: the step loop has stopped (ENGINE_FAILED).
        """
        self._bounds.check(task, self._ledger.num_blocks_for(len(task.token_ids)))
        if self._failure is not None:
            raise loop_stopped_error(self._failure)
        if task.request_id in self._jobs:
            raise DuplicateRequestError(
                f"request {task.request_id!r} is live on this prefill service", metadata={"request_id": task.request_id}
            )
        if len(self._waiting) >= self._max_queue_len:
            raise QueueFullError(
                f"{len(self._waiting)} prompts wait for prefill, which is the limit",
                retry_after_s=1.0,
                metadata={"queue_len": len(self._waiting), "max_queue_len": self._max_queue_len},
            )
        if block_hashes is None:
            block_hashes = self._ledger.prompt_hashes(task.token_ids, task.cache_salt, task.input_embeddings)
        num_blocks = self._ledger.num_blocks_for(len(task.token_ids))
        num_scores = 0 if task.prompt_logprobs is None else len(task.token_ids)
        job = PrefillJob(task, block_hashes, asyncio.Queue(num_blocks + num_scores + 2))
        self._jobs[task.request_id] = job
        self._waiting.append(job)
        self._admit()
        return job

    def acknowledge(self, job: PrefillJob, handle_id: bytes) -> None:
        """The handle's KV has arrived: unpins its blocks.

        Raises:
            HandleError: the job has no such live handle.
        """
        handle = job.exports.get(handle_id)
        if handle is None:
            self._exports.find(handle_id, self._pool.epoch, job.task.request_id)
            raise HandleError("the handle is not of this stream", Reason.HANDLE_FOREIGN, {"handle_id": handle_id.hex()})
        self._release_export(job, handle)
        self._admit()

    async def seal(self, message: HandleReady) -> HandleReady:
        """Adds the checksum that a handle needs where its bytes cross a network."""
        if not isinstance(message.handle.location, GrpcLocation):
            return message
        crc = await asyncio.to_thread(checksum, self._pool, message.handle.block_ids)
        return replace(message, handle=replace(message.handle, checksum=crc))

    def close(self, job: PrefillJob) -> None:
        """The stream has ended: frees every block, at once or as soon as the step in flight is done with it."""
        job.is_closed = True
        for handle in list(job.exports.values()):
            self._release_export(job, handle)
        if job.is_computing:
            self._step_loop.cancel(job.task.request_id)
            return
        if job in self._waiting:
            self._waiting.remove(job)
        del self._jobs[job.task.request_id]
        self._admit()

    def on_events(self, events: list[StepEvent]) -> None:
        """Takes what one step did."""
        for event in events:
            match event:
                case ChunkLanded():
                    self._land(self._jobs[event.request_id], event)
                case TokenSampled():
                    self._metrics.generated_tokens.inc()
                    self._note_first(self._jobs[event.request_id], event)
                case Retired():
                    job = self._jobs[event.request_id]
                    self._retire(job, None if event.error is None else _failure(job, event.error, event.is_constraint))
                case LoopStopped(error):
                    self._fail_all(error or "the service stops")
        self._admit()

    @property
    def load_changed(self) -> asyncio.Event:
        """Set when the load differs from what it is now; each change has an event of its own."""
        return self._load_changed

    def announce_load(self) -> None:
        """Wakes whoever waits for the load to change."""
        self._load_changed.set()
        self._load_changed = asyncio.Event()

    @property
    def num_live(self) -> int:
        """Tasks that wait, are computed, or have handles out."""
        return len(self._jobs)

    def load(self) -> Load:
        """How much work there is; may be called from any thread."""
        jobs = list(self._jobs.values())
        return Load(
            num_running=sum(job.is_computing for job in jobs),
            num_waiting=len(self._waiting),
            num_waiting_tokens=sum(job.input_len - job.num_computed_tokens for job in jobs),
            num_free_blocks=self._ledger.num_free,
            num_blocks=self._ledger.max_reservation,
        )

    def _admit(self) -> None:
        """Starts waiting tasks, the highest priority first, while there are rows and blocks."""
        num_running = sum(job.is_computing for job in self._jobs.values())
        while self._waiting and num_running < self._max_num_seqs:
            job = max(self._waiting, key=lambda waiting: waiting.task.priority)
            reuse = job.task.prompt_logprobs is None
            reservation = self._ledger.reserve_hashed(job.block_hashes, job.input_len, job.input_len, reuse=reuse)
            if reservation is None:
                break
            self._waiting.remove(job)
            self._start(job, reservation)
            num_running += 1
        self.announce_load()

    def _start(self, job: PrefillJob, reservation: Reservation) -> None:
        task = job.task
        job.reservation = reservation
        job.num_computed_tokens = reservation.num_cached_tokens
        job.num_exported_tokens = task.first_needed_token
        job.is_computing = True
        self._metrics.prompt_tokens.inc(job.input_len)
        self._metrics.cached_tokens.inc(reservation.num_cached_tokens)
        job.outbox.put_nowait(Accepted(reservation.num_cached_tokens))
        self._export(job, is_final=False)
        self._step_loop.submit(
            Sequence(
                request_id=task.request_id,
                token_ids=list(task.token_ids),
                prompt_len=job.input_len - task.num_generated_tokens,
                num_computed_tokens=reservation.num_cached_tokens,
                block_table=reservation.block_table,
                sampling=task.sampling,
                stopping=StoppingParams(max_tokens=task.num_generated_tokens + 1),
                eos_token_ids=(),
                max_total_len=self._max_model_len,
                priority=task.priority,
                banned_token_ids=task.banned_token_ids,
                input_embeddings=task.input_embeddings,
                indices=tuple(range(task.sampling.n)),
                logprobs=task.logprobs,
                prompt_logprobs=task.prompt_logprobs,
                matcher=task.matcher,
            )
        )

    def _land(self, job: PrefillJob, landed: ChunkLanded) -> None:
        self._note_computed(job, landed.num_computed_tokens)
        log.debug(
            "chunk_landed",
            request_id=job.task.request_id,
            num_computed_tokens=landed.num_computed_tokens,
            input_len=job.input_len,
        )
        if landed.prompt_logprobs and not job.is_closed:
            job.outbox.put_nowait(PromptScored(landed.prompt_logprobs))
        if landed.num_computed_tokens < job.input_len:
            self._export(job, is_final=False)

    def _note_first(self, job: PrefillJob, sampled: TokenSampled) -> None:
        job.first_tokens.append(FirstToken(sampled.token_id, sampled.index, sampled.logprobs))
        if len(job.first_tokens) == job.task.sampling.n:
            # The last token of what was generated before is computed as a decode row, not as a chunk.
            self._note_computed(job, job.input_len)
            self._export(job, is_final=True)

    def _note_computed(self, job: PrefillJob, num_tokens: int) -> None:
        assert job.reservation is not None
        job.num_computed_tokens = num_tokens
        self._ledger.commit(job.reservation, num_tokens)

    def _export(self, job: PrefillJob, *, is_final: bool) -> None:
        """Sends a handle for the blocks closed since the last one; with the first tokens also the open block."""
        if job.is_closed:
            return
        assert job.reservation is not None
        block_size = self._layout.block_size
        end_token = job.input_len if is_final else job.num_computed_tokens // block_size * block_size
        start_token = job.num_exported_tokens
        if end_token <= start_token:
            return
        block_ids = job.reservation.block_table[start_token // block_size : self._ledger.num_blocks_for(end_token)]
        self._ledger.retain(block_ids)
        transport = self._transports[job.task.transport]
        exported = transport.export(block_ids)
        handle = KvHandle(
            handle_id=self._exports.new_id(),
            epoch=self._pool.epoch,
            request_id=job.task.request_id,
            first_token=start_token,
            end_token=end_token,
            is_final=is_final,
            block_ids=tuple(block_ids),
            block_generations=tuple(self._pool.generations[block_id] for block_id in block_ids),
            layout=self._layout,
            location=exported,
        )
        self._exports.add(handle)
        job.exports[handle.handle_id] = handle
        job.num_exported_tokens = end_token
        job.outbox.put_nowait(HandleReady(handle, tuple(job.first_tokens) if is_final else ()))
        log.debug("handle_sent", request_id=handle.request_id, first_token=start_token, end_token=end_token)

    def _release_export(self, job: PrefillJob, handle: KvHandle) -> None:
        del job.exports[handle.handle_id]
        self._exports.remove(handle)
        self._transports[job.task.transport].release(handle.handle_id)
        self._ledger.release_blocks(handle.block_ids)

    def _retire(self, job: PrefillJob, error: BatonError | None) -> None:
        assert job.reservation is not None
        job.is_computing = False
        self._ledger.release(job.reservation)
        if job.is_closed:
            del self._jobs[job.task.request_id]
        elif error is not None:
            job.outbox.put_nowait(error)

    def _fail_all(self, error: str) -> None:
        """The step loop is gone: what it was computing will not be, and it no longer touches any block."""
        self._failure = error
        self._waiting.clear()
        for job in list(self._jobs.values()):
            if job.is_computing:
                self._retire(job, error=None)
            if not job.is_closed:
                job.outbox.put_nowait(loop_stopped_error(error))


def _failure(job: PrefillJob, error: str, is_constraint: bool) -> BatonError:
    """What a prompt's stream ends with that a step failed."""
    if is_constraint:
        assert job.task.sampling.constraint is not None
        return constraint_refusal(job.task.sampling.constraint, "cannot go on", error)
    return UnavailableError(f"a prefill step failed: {error}", Reason.PREFILL_FAILED)
